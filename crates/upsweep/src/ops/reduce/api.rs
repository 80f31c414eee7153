//! The one-line calls, on top of the walk.

use super::plan::plan;
use super::problem::ReduceProblem;
use super::{Reduce, ReducePlan};
use crate::device::caps::Caps;
use crate::error::Result;
use crate::flow::{Plan, Rung, Tuning};
use crate::types::{Element, Layout, Operator};

/// What a reduction returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced<R> {
    /// One value for each output, C order over the kept axes.
    pub values: Vec<R>,
    /// Extents of the kept axes; empty when everything was reduced to one value.
    pub shape: Vec<u64>,
    /// The rung that ran, `op/number-name`.
    pub rung: String,
    /// Why the planner chose it.
    pub why: String,
}

/// A device that reduces: [`crate::device::cpu::Cpu`] over host slices, `Cuda` over cudarc's device slices.
pub trait ReduceDevice {
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
    fn run<T: Element, R: Element>(&self, plan: &ReducePlan, input: &Self::Memory<T>) -> Result<Vec<R>>;
}

/// Reduces `input`, laid out as `layout` (elements; `None`: contiguous, all of it), along `axes` (`None`: all).
///
/// Cost: one read of every element, one write of every output; one launch on a CUDA device (two for rows beyond 65536
/// elements). Deterministic: the same bits in every run on the same device.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::reduce, types::{Layout, Operator}};
/// let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
/// let layout = Layout::contiguous(&[2, 3])?;
/// let rows = reduce::reduce::<_, f32, f32>(&Cpu::new(), Operator::Sum, &x[..], Some(&layout), Some(&[-1]))?;
/// assert_eq!((rows.values, rows.shape), (vec![6.0, 15.0], vec![2]));
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// As [`ReduceProblem::new`]; [`crate::Error::DTypeMismatch`] if `R` is not the operator's output type for `T`;
/// [`crate::Error::LengthMismatch`] if `input` is shorter than the layout needs; device errors.
pub fn reduce<D: ReduceDevice, T: Element, R: Element>(
    device: &D,
    operator: Operator,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axes: Option<&[i64]>,
) -> Result<Reduced<R>> {
    let problem = match layout {
        Some(layout) => ReduceProblem::new(operator, T::DTYPE, layout, axes)?,
        None => ReduceProblem::new(operator, T::DTYPE, &Layout::contiguous(&[device.len(input)])?, axes)?,
    };
    run_plan(device, &plan(&problem, &device.capabilities())?, input)
}

/// Runs a named rung instead of the planner's choice.
///
/// # Errors
/// As [`reduce`]; [`crate::Error::UnknownRung`]; [`crate::Error::NotClaimed`].
pub fn reduce_with_rung<D: ReduceDevice, T: Element, R: Element>(
    device: &D,
    problem: &ReduceProblem,
    rung: &str,
    tuning: Tuning,
    input: &D::Memory<T>,
) -> Result<Reduced<R>> {
    let caps = device.capabilities();
    let rung = Rung::<Reduce>::find(caps.kind(), rung)?;
    run_plan(device, &Plan::with_rung(problem, &caps, rung, tuning, "asked for by name".into())?, input)
}

/// Runs a plan and waits for its outputs.
///
/// # Errors
/// Mismatched operands; device errors.
pub fn run_plan<D: ReduceDevice, T: Element, R: Element>(
    device: &D,
    plan: &ReducePlan,
    input: &D::Memory<T>,
) -> Result<Reduced<R>> {
    let values = device.run::<T, R>(plan, input)?;
    Ok(Reduced { values, shape: plan.problem.shape().output_shape.clone(), rung: plan.rung.id(), why: plan.why.clone() })
}

fn scalar<D: ReduceDevice, T: Element, R: Element>(device: &D, operator: Operator, input: &D::Memory<T>) -> Result<R> {
    let reduced = reduce::<D, T, R>(device, operator, input, None, None)?;
    // A reduction of every axis has exactly one output.
    Ok(reduced.values.first().copied().unwrap_or_default())
}

macro_rules! scalar_call {
    ($name:ident, $operator:ident, $output:ty, $doc:literal, $empty:literal) => {
        #[doc = $doc]
        ///
        /// The whole of contiguous memory to one value; one read of every element, one launch, deterministic.
        ///
        /// # Errors
        #[doc = $empty]
        pub fn $name<D: ReduceDevice, T: Element>(device: &D, input: &D::Memory<T>) -> Result<$output> {
            scalar::<D, T, $output>(device, Operator::$operator, input)
        }
    };
}
scalar_call!(
    sum,
    Sum,
    T::Total,
    "Sum; 0 for nothing. Integers and bool in 64 bits, wrapping; floats in their accumulator type by a tree.",
    "Device errors."
);
scalar_call!(prod, Prod, T::Total, "Product; 1 for nothing. Integers in 64 bits, wrapping.", "Device errors.");
scalar_call!(min, Min, T, "Smallest element; NaN propagates.", "[`crate::Error::EmptyInput`]; device errors.");
scalar_call!(max, Max, T, "Largest element; NaN propagates.", "[`crate::Error::EmptyInput`]; device errors.");
scalar_call!(
    nan_min,
    NanMin,
    T,
    "Smallest element that is not NaN; NaN if all are.",
    "[`crate::Error::EmptyInput`]; device errors."
);
scalar_call!(
    nan_max,
    NanMax,
    T,
    "Largest element that is not NaN; NaN if all are.",
    "[`crate::Error::EmptyInput`]; device errors."
);
scalar_call!(
    argmin,
    ArgMin,
    u64,
    "Index of the smallest element: the first NaN, else the lowest index of a tie.",
    "[`crate::Error::EmptyInput`]; device errors."
);
scalar_call!(
    argmax,
    ArgMax,
    u64,
    "Index of the largest element: the first NaN, else the lowest index of a tie.",
    "[`crate::Error::EmptyInput`]; device errors."
);
scalar_call!(
    mean,
    Mean,
    T::Mean,
    "Arithmetic mean; NaN for nothing. Divides before it rounds; f64 for integers and bool.",
    "Device errors."
);
scalar_call!(
    logsumexp,
    LogSumExp,
    T,
    "log(sum(exp(x))), shifted by the maximum; -inf for nothing.",
    "[`crate::Error::UnsupportedDType`] for integers; device errors."
);

#[cfg(feature = "cpu")]
impl ReduceDevice for crate::device::cpu::Cpu {
    type Memory<T: Element> = [T];

    fn capabilities(&self) -> Caps {
        self.caps().clone()
    }

    fn len<T: Element>(&self, memory: &[T]) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element, R: Element>(&self, plan: &ReducePlan, input: &[T]) -> Result<Vec<R>> {
        let mut output = vec![R::default(); plan.problem.shape().outputs as usize];
        run_on_host(plan, super::ReduceOperands { input: input.into(), output: output.as_mut_slice().into() })?;
        Ok(output)
    }
}

/// Runs a CPU plan on host operands.
///
/// # Errors
/// [`crate::Error::NotClaimed`] for a CUDA plan; mismatched operands.
pub fn run_on_host(plan: &ReducePlan, operands: super::ReduceOperands<'_>) -> Result<()> {
    match plan.rung.body {
        crate::flow::Body::Cpu(body) => body(&plan.problem, operands),
        crate::flow::Body::Cuda { .. } => {
            Err(crate::Error::NotClaimed { rung: plan.rung.id(), why: "it runs on a CUDA device".into() })
        }
    }
}

#[cfg(feature = "cuda")]
impl ReduceDevice for crate::device::cuda::Cuda {
    type Memory<T: Element> = cudarc::driver::CudaSlice<T>;

    fn capabilities(&self) -> Caps {
        Caps::Cuda(self.caps().clone())
    }

    fn len<T: Element>(&self, memory: &Self::Memory<T>) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element, R: Element>(&self, plan: &ReducePlan, input: &Self::Memory<T>) -> Result<Vec<R>> {
        use crate::flow::{DeviceMut, DeviceRef};
        let stream = self.stream().clone();
        let outputs = plan.problem.shape().outputs;
        let mut prepared = self.prepare(plan)?;
        // Raw words: the driver's typed allocations need more of a type than `Element` promises.
        let mut output = self.allocate::<u8>((outputs * R::DTYPE.size()) as usize)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        self.scope(&stream, |scope| {
            let bytes = DeviceMut::of::<u8, _>(&mut output, &stream);
            // SAFETY: the allocation holds `outputs` elements of R, is aligned by the driver, and is borrowed for the scope.
            let output = unsafe { DeviceMut::from_raw(bytes.address(), outputs, R::DTYPE) }?;
            let operands = super::ReduceDeviceOperands { input: DeviceRef::of::<T, _>(input, &stream), output };
            scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
        })?;
        let bytes = self.download(&output)?;
        let mut values = vec![R::default(); outputs as usize];
        // SAFETY: `values` holds outputs * size bytes of plain data; kernels write only valid values (0 or 1 for bool).
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), (outputs * R::DTYPE.size()) as usize)
        };
        Ok(values)
    }
}
