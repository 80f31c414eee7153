//! The one-line calls, on top of the walk.

use super::plan::plan;
use super::problem::{ScanProblem, ScanSpec};
use super::{Scan, ScanPlan};
use crate::device::caps::Caps;
use crate::error::Result;
use crate::flow::{Plan, Rung, Tuning};
use crate::types::{Element, Layout, Operator};

/// What a scan returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Scanned<R> {
    /// One value for each element of the input, in C order.
    pub values: Vec<R>,
    /// The input's extents, or its number of elements where the whole array was scanned as one row.
    pub shape: Vec<u64>,
    /// The rung that ran, `op/number-name`.
    pub rung: String,
    /// Why the planner chose it.
    pub why: String,
}

/// A device that scans: [`crate::device::cpu::Cpu`] over host slices, `Cuda` over cudarc's device slices.
pub trait ScanDevice {
    /// The device's memory of `T`.
    type Memory<T: Element>: ?Sized;

    /// What it can do.
    fn capabilities(&self) -> Caps;

    /// Elements of a memory.
    fn len<T: Element>(&self, memory: &Self::Memory<T>) -> u64;

    /// Runs a plan on an input and waits for the outputs.
    ///
    /// # Errors
    /// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`] before anything runs; device errors.
    fn run<T: Element, R: Element>(&self, plan: &ScanPlan, input: &Self::Memory<T>) -> Result<Vec<R>>;
}

/// Scans `input`, laid out as `layout` (elements; `None`: contiguous, all of it), along `axis` (`None`: the whole array
/// as one row, in C order).
///
/// Cost: one read and one write of every element; float sums and products of a whole array read twice on a CUDA device
/// without the copy engine of compute capability 9.0 and 200 kB of shared memory a block, so that the order of additions is
/// fixed. Deterministic: the same bits in every run on the same device.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::scan::{self, ScanSpec}, types::{Layout, Operator}};
/// let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let layout = Layout::contiguous(&[2, 3])?;
/// let spec = ScanSpec::exclusive_from(Operator::Sum, 10.0f32).reversed();
/// let rows = scan::scan::<_, f32, f32>(&Cpu::new(), spec, &x[..], Some(&layout), Some(-1))?;
/// assert_eq!(rows.values, [15.0, 13.0, 10.0, 21.0, 16.0, 10.0]);
/// assert_eq!(rows.shape, [2, 3]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// On a CUDA device, under feature `cuda`:
///
#[cfg_attr(feature = "cuda", doc = "```no_run")]
#[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
/// use upsweep::{device::cuda::Cuda, ops::scan};
/// let cuda = Cuda::new(0)?;
/// let x = cuda.upload(&[1.0f32, 2.0, 3.0])?;
/// assert_eq!(scan::cumsum(&cuda, &x)?, [1.0, 3.0, 6.0]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// As [`ScanProblem::new`]; [`crate::Error::DTypeMismatch`] if `R` is not the operator's output type for `T`;
/// [`crate::Error::LengthMismatch`] if `input` is shorter than the layout needs; device errors.
pub fn scan<D: ScanDevice, T: Element, R: Element>(
    device: &D,
    spec: ScanSpec,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axis: Option<i64>,
) -> Result<Scanned<R>> {
    let problem = match layout {
        Some(layout) => ScanProblem::new(spec, T::DTYPE, layout, axis)?,
        None => ScanProblem::new(spec, T::DTYPE, &Layout::contiguous(&[device.len(input)])?, axis)?,
    };
    run_plan(device, &plan(&problem, &device.capabilities())?, input)
}

/// Runs a named rung instead of the planner's choice.
///
/// # Errors
/// As [`scan`]; [`crate::Error::UnknownRung`]; [`crate::Error::NotClaimed`].
pub fn scan_with_rung<D: ScanDevice, T: Element, R: Element>(
    device: &D,
    problem: &ScanProblem,
    rung: &str,
    tuning: Tuning,
    input: &D::Memory<T>,
) -> Result<Scanned<R>> {
    let caps = device.capabilities();
    let rung = Rung::<Scan>::find(caps.kind(), rung)?;
    run_plan(device, &Plan::with_rung(problem, &caps, rung, tuning, "asked for by name".into())?, input)
}

/// Runs a plan and waits for its outputs.
///
/// # Errors
/// Mismatched operands; device errors.
pub fn run_plan<D: ScanDevice, T: Element, R: Element>(device: &D, plan: &ScanPlan, input: &D::Memory<T>) -> Result<Scanned<R>> {
    let values = device.run::<T, R>(plan, input)?;
    Ok(Scanned { values, shape: plan.problem.output_shape().to_vec(), rung: plan.rung.id(), why: plan.why.clone() })
}

macro_rules! whole_call {
    ($name:ident, $spec:ident, $operator:ident, $output:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// The whole of contiguous memory; for an axis, strides or the other direction see [`scan`]. Nothing gives
        /// nothing. Deterministic.
        ///
        /// # Errors
        /// Device errors.
        pub fn $name<D: ScanDevice, T: Element>(device: &D, input: &D::Memory<T>) -> Result<Vec<$output>> {
            Ok(scan::<D, T, $output>(device, ScanSpec::$spec(Operator::$operator), input, None, None)?.values)
        }
    };
}
whole_call!(
    cumsum,
    inclusive,
    Sum,
    T::Total,
    "Running sum, each element included. Integers and bool in 64 bits, wrapping; f16 and bf16 in f32, rounded once an output."
);
whole_call!(cumprod, inclusive, Prod, T::Total, "Running product, each element included. Integers in 64 bits, wrapping.");
whole_call!(cummin, inclusive, Min, T, "Smallest element so far; NaN from the first NaN on.");
whole_call!(cummax, inclusive, Max, T, "Largest element so far; NaN from the first NaN on.");
whole_call!(
    exclusive_sum,
    exclusive,
    Sum,
    T::Total,
    "Sum of all elements before each; the first is 0. For another initial value see [`ScanSpec::exclusive_from`]."
);

/// Host memory for the outputs, or an error where there is not that much.
#[cfg(any(feature = "cpu", feature = "cuda"))]
fn zeros<R: Element>(len: u64) -> Result<Vec<R>> {
    let mut values = Vec::new();
    let reserved = usize::try_from(len).ok().and_then(|len| values.try_reserve_exact(len).ok());
    if reserved.is_none() {
        return Err(crate::Error::Unavailable {
            what: "host memory",
            why: format!("the output has {len} elements of {} bytes", R::DTYPE.size()),
            next_step: "scan a smaller view".into(),
        });
    }
    values.resize(len as usize, R::default());
    Ok(values)
}

#[cfg(feature = "cpu")]
impl ScanDevice for crate::device::cpu::Cpu {
    type Memory<T: Element> = [T];

    fn capabilities(&self) -> Caps {
        self.caps().clone()
    }

    fn len<T: Element>(&self, memory: &[T]) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element, R: Element>(&self, plan: &ScanPlan, input: &[T]) -> Result<Vec<R>> {
        // Checked before the output is allocated: a broadcast input may stand for more outputs than memory holds.
        let outputs = plan.problem.output_len();
        plan.problem.check_operands((T::DTYPE, input.len() as u64), (R::DTYPE, outputs))?;
        let mut output = zeros::<R>(outputs)?;
        run_on_host(plan, super::ScanOperands { input: input.into(), output: output.as_mut_slice().into() })?;
        Ok(output)
    }
}

/// Runs a CPU plan on host operands.
///
/// # Errors
/// [`crate::Error::NotClaimed`] for a CUDA plan; mismatched operands.
pub fn run_on_host(plan: &ScanPlan, operands: super::ScanOperands<'_>) -> Result<()> {
    match plan.rung.body {
        crate::flow::Body::Cpu(body) => body(&plan.problem, operands),
        crate::flow::Body::Cuda { .. } => {
            Err(crate::Error::NotClaimed { rung: plan.rung.id(), why: "it runs on a CUDA device".into() })
        }
    }
}

#[cfg(feature = "cuda")]
impl ScanDevice for crate::device::cuda::Cuda {
    type Memory<T: Element> = cudarc::driver::CudaSlice<T>;

    fn capabilities(&self) -> Caps {
        Caps::Cuda(self.caps().clone())
    }

    fn len<T: Element>(&self, memory: &Self::Memory<T>) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element, R: Element>(&self, plan: &ScanPlan, input: &Self::Memory<T>) -> Result<Vec<R>> {
        use crate::flow::{DeviceMut, DeviceRef};
        let stream = self.stream().clone();
        let outputs = plan.problem.output_len();
        plan.problem.check_operands((T::DTYPE, input.len() as u64), (R::DTYPE, outputs))?;
        let mut prepared = self.prepare(plan)?;
        // Raw words: the driver's typed allocations need more of a type than `Element` promises.
        let mut output = self.allocate::<u8>((outputs * R::DTYPE.size()) as usize)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        self.scope(&stream, |scope| {
            let bytes = DeviceMut::of::<u8, _>(&mut output, &stream);
            // SAFETY: the allocation holds `outputs` elements of R, is aligned by the driver, and is borrowed for the scope.
            let output = unsafe { DeviceMut::from_raw(bytes.address(), outputs, R::DTYPE) }?;
            let operands = super::ScanDeviceOperands { input: DeviceRef::of::<T, _>(input, &stream), output };
            scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
        })?;
        let bytes = self.download(&output)?;
        let mut values = zeros::<R>(outputs)?;
        // SAFETY: `values` holds outputs * size bytes of plain data; kernels write only valid values (0 or 1 for bool).
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), (outputs * R::DTYPE.size()) as usize)
        };
        Ok(values)
    }
}
