//! The one-line calls, on top of the walk.

use super::plan::plan;
use super::problem::{ScanProblem, ScanSpec};
use super::{Scan, ScanPlan};
use crate::device::caps::Caps;
use crate::error::{Error, Result};
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

    /// Runs a plan on an input, and on the second one that the problem asks for, and waits for the outputs.
    ///
    /// # Errors
    /// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`], [`crate::Error::InvalidArgument`] before anything
    /// runs; device errors.
    fn run<T: Element, S: Element, R: Element>(
        &self,
        plan: &ScanPlan,
        input: &Self::Memory<T>,
        second: Option<&Self::Memory<S>>,
    ) -> Result<Vec<R>>;
}

/// Scans `input`, laid out as `layout` (elements; `None`: contiguous, all of it), along `axis` (`None`: the whole array
/// as one row, in C order).
///
/// Cost: one read and one write of every element; on a CUDA device without a copy engine a long row's float sums and products
/// and few long columns are read twice, so that the order of additions is fixed. Deterministic: the same bits in every run on
/// the same device.
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
    run_plan_on::<D, T, T, R>(device, plan, input, None)
}

/// Runs a plan on an input and the second one that its problem asks for (coefficients, keys or offsets), and waits for its
/// outputs.
///
/// # Errors
/// Mismatched operands; [`crate::Error::InvalidArgument`] for wrong offsets; device errors.
pub fn run_plan_of_two<D: ScanDevice, T: Element, S: Element, R: Element>(
    device: &D,
    plan: &ScanPlan,
    input: &D::Memory<T>,
    second: &D::Memory<S>,
) -> Result<Scanned<R>> {
    run_plan_on(device, plan, input, Some(second))
}

fn run_plan_on<D: ScanDevice, T: Element, S: Element, R: Element>(
    device: &D,
    plan: &ScanPlan,
    input: &D::Memory<T>,
    second: Option<&D::Memory<S>>,
) -> Result<Scanned<R>> {
    let values = device.run::<T, S, R>(plan, input, second)?;
    Ok(Scanned { values, shape: plan.problem.output_shape().to_vec(), rung: plan.rung.id(), why: plan.why.clone() })
}

/// The linear recurrence `h[i] = a[i] * h[i-1] + b[i]` of coefficients `a` and an input `b` of one float dtype and one
/// `layout` (elements; `None`: contiguous, all of it), along `axis` (`None`: the whole array as one row, in C order): what
/// state-space models and exponential averages compute.
///
/// `spec` says which states come out and where they begin, with [`Operator::LinearRecurrence`]: an inclusive scan gives
/// `h[i]`, an exclusive one `h[i-1]`, from `h[-1]` = 0 or the initial value; in reverse, `h[i] = a[i] * h[i+1] + b[i]`.
/// Arithmetic is in f32 for f16 and bf16 at least; an output is rounded once.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::scan::{self, ScanSpec}, types::Operator};
/// let (a, b) = ([0.5f32, 0.5, 2.0], [1.0f32, 2.0, 3.0]);
/// let spec = ScanSpec::inclusive_from(Operator::LinearRecurrence, 4.0f32);
/// let states = scan::linear_recurrence(&Cpu::new(), spec, &a[..], &b[..], None, None)?;
/// assert_eq!(states.values, [3.0, 3.5, 10.0]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// Cost: one read of every element and coefficient and one write of every state. Deterministic; a row's bits depend on its
/// values and its length alone.
///
/// Accuracy: [`super::oracle::linear_recurrence_bound`]. NaN among coefficients, elements or the initial value makes every
/// state from there on NaN. An infinite element gives what the definition gives, an infinite coefficient infinities or NaN.
/// But a state is computed from products of coefficients, and where those, or states, leave the range of the arithmetic
/// (overflow; or underflow, where an infinity meets them), infinities and NaN may stand for what the definition gives there
/// and after.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] if the operator is another; as [`scan`], errors of `coefficients` under that name.
pub fn linear_recurrence<D: ScanDevice, T: Element>(
    device: &D,
    spec: ScanSpec,
    coefficients: &D::Memory<T>,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axis: Option<i64>,
) -> Result<Scanned<T>> {
    if spec.operator != Operator::LinearRecurrence {
        return Err(Error::InvalidArgument {
            argument: "spec",
            got: format!("with operator {}", spec.operator),
            allowed: format!("the operator is {}", Operator::LinearRecurrence),
        });
    }
    let whole = Layout::contiguous(&[device.len(input)])?;
    let problem = ScanProblem::new(spec, T::DTYPE, layout.unwrap_or(&whole), axis)?;
    run_plan_of_two(device, &plan(&problem, &device.capabilities())?, input, coefficients)
}

/// Scans contiguous `input` in segments of neighbours with equal keys, one integer key for each element; each segment
/// starts anew with the initial value, or the identity, at its first element (in reverse, its last).
///
/// A key that comes again further on is a segment of its own: keys need not be sorted.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::scan::{self, ScanSpec}, types::Operator};
/// let (keys, x) = ([7u8, 7, 7, 2, 2, 7], [1i32, 2, 3, 4, 5, 6]);
/// let sums = scan::scan_by_key::<_, u8, i32, i64>(&Cpu::new(), ScanSpec::inclusive(Operator::Sum), &keys[..], &x[..])?;
/// assert_eq!(sums.values, [1, 3, 6, 4, 9, 6]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// Cost: one read of every element and key and one write of every output; on a CUDA device also a bit an element of scratch,
/// written and read once (twice without a copy engine), by a launch of its own. Deterministic; the last bits of a segment's float
/// sums and products may depend on its place in the array.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] for keys that are no integers, or the operator of a linear recurrence;
/// [`crate::Error::LengthMismatch`] if there are fewer keys than elements; otherwise as [`scan`].
pub fn scan_by_key<D: ScanDevice, K: Element, T: Element, R: Element>(
    device: &D,
    spec: ScanSpec,
    keys: &D::Memory<K>,
    input: &D::Memory<T>,
) -> Result<Scanned<R>> {
    let problem = ScanProblem::whole(spec.by_key(K::DTYPE), T::DTYPE, device.len(input))?;
    run_plan_of_two(device, &plan(&problem, &device.capabilities())?, input, keys)
}

/// Scans contiguous `input` in the segments between neighbouring `offsets` (elements): segment `i` is elements
/// `offsets[i]..offsets[i + 1]`, so there is one offset more than there are segments. Each segment starts anew with the
/// initial value, or the identity, at its first element (in reverse, its last); empty segments are allowed.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::scan::{self, ScanSpec}, types::Operator};
/// let (offsets, x) = ([0u64, 3, 3, 5], [1.0f32, 2.0, 3.0, 4.0, 5.0]);
/// let spec = ScanSpec::exclusive_from(Operator::Max, 2.5f32);
/// let maxima = scan::scan_segments::<_, f32, f32>(&Cpu::new(), spec, &offsets[..], &x[..])?;
/// assert_eq!(maxima.values, [2.5, 2.5, 2.5, 2.5, 4.0]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// Cost: one read of every element and offset and one write of every output; on a CUDA device also a bit an element of scratch,
/// as [`scan_by_key`]. Deterministic; the last bits of a segment's
/// float sums and products may depend on its place in the array.
///
/// # Errors
/// [`crate::Error::InvalidArgument`] for offsets that decrease, do not begin with 0 or do not end with the number of
/// elements, before anything is written, and for the operator of a linear recurrence; otherwise as [`scan`]. Offsets in a
/// device's memory are not looked at first: the caller answers for them. With wrong ones results are wrong, but nothing is read
/// or written out of bounds.
pub fn scan_segments<D: ScanDevice, T: Element, R: Element>(
    device: &D,
    spec: ScanSpec,
    offsets: &D::Memory<u64>,
    input: &D::Memory<T>,
) -> Result<Scanned<R>> {
    let Some(count) = device.len(offsets).checked_sub(1) else {
        return Err(Error::LengthMismatch { argument: "offsets", got: 0, expected: 1, unit: "elements" });
    };
    let problem = ScanProblem::whole(spec.by_offsets(count), T::DTYPE, device.len(input))?;
    run_plan_of_two(device, &plan(&problem, &device.capabilities())?, input, offsets)
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
    logcumsumexp,
    inclusive,
    LogSumExp,
    T,
    "Logarithm of the running sum of exponentials, each element included, shifted by the maximum so far; floats only."
);
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
        return Err(Error::Unavailable {
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

    fn run<T: Element, S: Element, R: Element>(&self, plan: &ScanPlan, input: &[T], second: Option<&[S]>) -> Result<Vec<R>> {
        // Checked before the output is allocated: a broadcast input may stand for more outputs than memory holds.
        let outputs = plan.problem.output_len();
        let second_len = second.map(|second| (S::DTYPE, second.len() as u64));
        plan.problem.check_operands((T::DTYPE, input.len() as u64), second_len, (R::DTYPE, outputs))?;
        let mut output = zeros::<R>(outputs)?;
        let (second, output_slice) = (second.map(Into::into), output.as_mut_slice().into());
        run_on_host(plan, super::ScanOperands { input: input.into(), second, output: output_slice })?;
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
        crate::flow::Body::Cuda { .. } => Err(Error::NotClaimed { rung: plan.rung.id(), why: "it runs on a CUDA device".into() }),
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

    fn run<T: Element, S: Element, R: Element>(
        &self,
        plan: &ScanPlan,
        input: &Self::Memory<T>,
        second: Option<&Self::Memory<S>>,
    ) -> Result<Vec<R>> {
        use crate::flow::{DeviceMut, DeviceRef};
        let stream = self.stream().clone();
        let outputs = plan.problem.output_len();
        let second_len = second.map(|second| (S::DTYPE, second.len() as u64));
        plan.problem.check_operands((T::DTYPE, input.len() as u64), second_len, (R::DTYPE, outputs))?;
        let mut prepared = self.prepare(plan)?;
        // Raw words: the driver's typed allocations need more of a type than `Element` promises.
        let mut output = self.allocate::<u8>((outputs * R::DTYPE.size()) as usize)?;
        let mut scratch = self.allocate::<u8>(plan.scratch_bytes() as usize)?;
        self.scope(&stream, |scope| {
            let bytes = DeviceMut::of::<u8, _>(&mut output, &stream);
            // SAFETY: the allocation holds `outputs` elements of R, is aligned by the driver, and is borrowed for the scope.
            let output = unsafe { DeviceMut::from_raw(bytes.address(), outputs, R::DTYPE) }?;
            let second = second.map(|second| DeviceRef::of::<S, _>(second, &stream));
            let operands = super::ScanDeviceOperands { input: DeviceRef::of::<T, _>(input, &stream), second, output };
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
