//! The one-line calls, on top of the walk.

use super::plan::plan;
use super::problem::{Masked, SoftmaxKind, SoftmaxOperands, SoftmaxProblem};
use super::{Softmax, SoftmaxPlan};
use crate::device::caps::Caps;
use crate::error::Result;
use crate::flow::{Plan, Rung, Tuning};
use crate::types::{Element, Layout};

/// What a softmax returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmaxed<T> {
    /// The outputs, C order.
    pub values: Vec<T>,
    /// Extents of the output: the input's (softmax, log_softmax), or those without the axis (logsumexp).
    pub shape: Vec<u64>,
    /// The rung that ran, `op/number-name`.
    pub rung: String,
    /// Why the planner chose it.
    pub why: String,
}

/// A device that computes softmax: [`crate::device::cpu::Cpu`] over host slices, `Cuda` over cudarc's device slices.
pub trait SoftmaxDevice {
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
    fn run<T: Element>(&self, plan: &SoftmaxPlan, input: &Self::Memory<T>) -> Result<Vec<T>>;

    /// Runs a plan with one memory as input and output, and waits.
    ///
    /// # Errors
    /// As [`SoftmaxDevice::run`]; [`crate::Error::InvalidArgument`] for logsumexp or an array that is not contiguous.
    fn run_in_place<T: Element>(&self, plan: &SoftmaxPlan, memory: &mut Self::Memory<T>) -> Result<()>;
}

/// Softmax, log_softmax or logsumexp of `input`, laid out as `layout` (elements; `None`: one contiguous row), along
/// `axis` (negative ones count from the end).
///
/// Cost: one read and one write of every element while a row fits a block's registers (32768 elements; 16384 of f64) or, on
/// the CPU, a cache (65536); two reads beyond. Deterministic, and a row's bits do not depend on the other rows.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::softmax::{self, SoftmaxKind}, types::Layout};
/// let x = [1.0f32, 1.0, 1.0, 1.0, 3.0, 3.0];
/// let layout = Layout::contiguous(&[3, 2])?;
/// let columns = softmax::along(&Cpu::new(), SoftmaxKind::LogSumExp, &x[..], Some(&layout), 0)?;
/// assert_eq!(columns.shape, [2]);
/// assert!((columns.values[0] - (2.0 * 1f32.exp() + 3f32.exp()).ln()).abs() < 1e-6);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// As [`SoftmaxProblem::new`]; [`crate::Error::LengthMismatch`] if `input` is shorter than the layout needs; device errors.
pub fn along<D: SoftmaxDevice, T: Element>(
    device: &D,
    kind: SoftmaxKind,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axis: i64,
) -> Result<Softmaxed<T>> {
    let problem = problem_of(kind, T::DTYPE, device.len(input), layout, axis)?;
    run_plan(device, &plan(&problem, &device.capabilities())?, input)
}

fn problem_of(
    kind: SoftmaxKind,
    dtype: crate::types::DType,
    len: u64,
    layout: Option<&Layout>,
    axis: i64,
) -> Result<SoftmaxProblem> {
    match layout {
        Some(layout) => SoftmaxProblem::new(kind, dtype, layout, axis),
        None => SoftmaxProblem::new(kind, dtype, &Layout::contiguous(&[len])?, axis),
    }
}

/// Runs a named rung instead of the planner's choice.
///
/// # Errors
/// As [`along`]; [`crate::Error::UnknownRung`]; [`crate::Error::NotClaimed`].
pub fn softmax_with_rung<D: SoftmaxDevice, T: Element>(
    device: &D,
    problem: &SoftmaxProblem,
    rung: &str,
    tuning: Tuning,
    input: &D::Memory<T>,
) -> Result<Softmaxed<T>> {
    let caps = device.capabilities();
    let rung = Rung::<Softmax>::find(caps.kind(), rung)?;
    run_plan(device, &Plan::with_rung(problem, &caps, rung, tuning, "asked for by name".into())?, input)
}

/// Runs a plan and waits for its outputs.
///
/// # Errors
/// Mismatched operands; device errors.
pub fn run_plan<D: SoftmaxDevice, T: Element>(device: &D, plan: &SoftmaxPlan, input: &D::Memory<T>) -> Result<Softmaxed<T>> {
    let values = device.run::<T>(plan, input)?;
    Ok(Softmaxed { values, shape: plan.problem.output_shape(), rung: plan.rung.id(), why: plan.why.clone() })
}

/// Rows of `cols` elements, as many as the memory holds.
fn rows(kind: SoftmaxKind, dtype: crate::types::DType, len: u64, cols: u64) -> Result<SoftmaxProblem> {
    let rows = len.checked_div(cols).unwrap_or(0);
    if rows * cols != len {
        return Err(crate::Error::InvalidArgument {
            argument: "cols",
            got: cols.to_string(),
            allowed: format!("it divides the input's {len} elements"),
        });
    }
    SoftmaxProblem::rows_of(kind, dtype, rows, cols)
}

macro_rules! rows_call {
    ($name:ident, $kind:ident, $doc:literal, $example:literal) => {
        #[doc = $doc]
        ///
        /// `input` is contiguous rows of `cols` elements; see [`along`] for other axes and layouts.
        ///
        /// ```
        #[doc = $example]
        /// # Ok::<(), upsweep::Error>(())
        /// ```
        ///
        /// # Errors
        /// [`crate::Error::InvalidArgument`] for a dtype other than f32, f64, f16, bf16, or if `cols` does not divide the
        /// input; device errors.
        pub fn $name<D: SoftmaxDevice, T: Element>(device: &D, input: &D::Memory<T>, cols: u64) -> Result<Vec<T>> {
            let problem = rows(SoftmaxKind::$kind, T::DTYPE, device.len(input), cols)?;
            device.run(&plan(&problem, &device.capabilities())?, input)
        }
    };
}
rows_call!(
    softmax,
    Softmax,
    "`exp(x) / sum(exp(x))` of each row, safe for logits of any size. NaN or +inf in a row make it NaN, and so does nothing but -inf (see [`Masked`]); -inf among others gives exactly 0. Probabilities below 2^-126 may be flushed to zero.",
    "use upsweep::{device::cpu::Cpu, ops::softmax};\nlet y = softmax::softmax(&Cpu::new(), &[1e4f32, 1e4, 0.0, 0.0][..], 2)?;\nassert_eq!(y, [0.5, 0.5, 0.5, 0.5]);"
);
rows_call!(
    log_softmax,
    LogSoftmax,
    "`(x - max) - log(sum(exp(x - max)))` of each row: the logarithm of [`softmax`] with all its digits, also where the softmax underflows.",
    "use upsweep::{device::cpu::Cpu, ops::softmax};\nlet y = softmax::log_softmax(&Cpu::new(), &[1e8f32, 1e8, 0.0, -200.0][..], 2)?;\nassert!((y[0] + 2f32.ln()).abs() < 1e-6);\nassert_eq!(y[3], -200.0);"
);
rows_call!(
    logsumexp,
    LogSumExp,
    "`log(sum(exp(x)))` of each row, one value a row: -inf for nothing but -inf, +inf if there is one.",
    "use upsweep::{device::cpu::Cpu, ops::softmax};\nlet y = softmax::logsumexp(&Cpu::new(), &[0.0f64, 0.0, f64::NEG_INFINITY, 3.0][..], 2)?;\nassert_eq!(y, [2f64.ln(), 3.0]);"
);

/// [`softmax`] over the input itself: rows of `cols` elements in `memory` become their probabilities.
///
/// Every rung reads an element for the last time before the same thread overwrites it, so no second memory is needed; the
/// bits are those of [`softmax`].
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::softmax};
/// let mut x = [0.0f32, 0.0, f32::NEG_INFINITY, 5.0];
/// softmax::softmax_in_place(&Cpu::new(), &mut x[..], 2)?;
/// assert_eq!(x, [0.5, 0.5, 0.0, 1.0]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// As [`softmax`].
pub fn softmax_in_place<D: SoftmaxDevice, T: Element>(device: &D, memory: &mut D::Memory<T>, cols: u64) -> Result<()> {
    in_place(device, SoftmaxKind::Softmax, memory, cols, Masked::Nan)
}

/// [`log_softmax`] over the input itself, as [`softmax_in_place`].
///
/// # Errors
/// As [`softmax`].
pub fn log_softmax_in_place<D: SoftmaxDevice, T: Element>(device: &D, memory: &mut D::Memory<T>, cols: u64) -> Result<()> {
    in_place(device, SoftmaxKind::LogSoftmax, memory, cols, Masked::Nan)
}

fn in_place<D: SoftmaxDevice, T: Element>(
    device: &D,
    kind: SoftmaxKind,
    memory: &mut D::Memory<T>,
    cols: u64,
    masked: Masked,
) -> Result<()> {
    let problem = rows(kind, T::DTYPE, device.len(memory), cols)?.with_masked(masked);
    device.run_in_place(&plan(&problem, &device.capabilities())?, memory)
}

#[cfg(feature = "cpu")]
impl SoftmaxDevice for crate::device::cpu::Cpu {
    type Memory<T: Element> = [T];

    fn capabilities(&self) -> Caps {
        self.caps().clone()
    }

    fn len<T: Element>(&self, memory: &[T]) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element>(&self, plan: &SoftmaxPlan, input: &[T]) -> Result<Vec<T>> {
        let mut output = vec![T::default(); plan.problem.output_len() as usize];
        run_on_host(plan, SoftmaxOperands { input: input.into(), output: output.as_mut_slice().into() })?;
        Ok(output)
    }

    fn run_in_place<T: Element>(&self, plan: &SoftmaxPlan, memory: &mut [T]) -> Result<()> {
        super::cpu::run_in_place(&plan.problem, memory)
    }
}

/// Runs a CPU plan on host operands.
///
/// # Errors
/// [`crate::Error::NotClaimed`] for a CUDA plan; mismatched operands.
pub fn run_on_host(plan: &SoftmaxPlan, operands: SoftmaxOperands<'_>) -> Result<()> {
    match plan.rung.body {
        crate::flow::Body::Cpu(body) => body(&plan.problem, operands),
        crate::flow::Body::Cuda { .. } => {
            Err(crate::Error::NotClaimed { rung: plan.rung.id(), why: "it runs on a CUDA device".into() })
        }
    }
}

/// ```no_run
/// use upsweep::{device::cuda::Cuda, ops::softmax};
/// let cuda = Cuda::new(0)?;
/// let mut x = cuda.upload(&[1e4f32, 1e4, 0.0, 0.0])?;
/// assert_eq!(softmax::softmax(&cuda, &x, 2)?, [0.5, 0.5, 0.5, 0.5]);
/// softmax::softmax_in_place(&cuda, &mut x, 2)?;
/// # Ok::<(), upsweep::Error>(())
/// ```
#[cfg(feature = "cuda")]
impl SoftmaxDevice for crate::device::cuda::Cuda {
    type Memory<T: Element> = cudarc::driver::CudaSlice<T>;

    fn capabilities(&self) -> Caps {
        Caps::Cuda(self.caps().clone())
    }

    fn len<T: Element>(&self, memory: &Self::Memory<T>) -> u64 {
        memory.len() as u64
    }

    fn run<T: Element>(&self, plan: &SoftmaxPlan, input: &Self::Memory<T>) -> Result<Vec<T>> {
        use crate::flow::{DeviceMut, DeviceRef};
        let stream = self.stream().clone();
        let outputs = plan.problem.output_len();
        let mut prepared = self.prepare(plan)?;
        // Raw words: the driver's typed allocations need more of a type than `Element` promises.
        let mut output = self.allocate::<u8>((outputs * T::DTYPE.size()) as usize)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        self.scope(&stream, |scope| {
            let bytes = DeviceMut::of::<u8, _>(&mut output, &stream);
            // SAFETY: the allocation holds `outputs` elements of T, is aligned by the driver, and is borrowed for the scope.
            let output = unsafe { DeviceMut::from_raw(bytes.address(), outputs, T::DTYPE) }?;
            let operands = super::SoftmaxDeviceOperands { input: DeviceRef::of::<T, _>(input, &stream), output };
            scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
        })?;
        let bytes = self.download(&output)?;
        let mut values = vec![T::default(); outputs as usize];
        let size = (outputs * T::DTYPE.size()) as usize;
        // SAFETY: `values` holds outputs * size bytes of plain floats.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), size) };
        Ok(values)
    }

    fn run_in_place<T: Element>(&self, plan: &SoftmaxPlan, memory: &mut Self::Memory<T>) -> Result<()> {
        use crate::flow::DeviceMut;
        plan.problem.check_in_place()?;
        let stream = self.stream().clone();
        let mut prepared = self.prepare(plan)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        self.scope(&stream, |scope| {
            let memory = DeviceMut::of::<T, _>(memory, &stream);
            // SAFETY: the second handle goes into this one call and nowhere else.
            let operands = unsafe { super::SoftmaxDeviceOperands::in_place(memory) }?;
            scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
        })
    }
}
