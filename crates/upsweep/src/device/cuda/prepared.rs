//! Prepared plans, and the three ways to run them: the unsafe enqueue, the scope that makes it safe, and graphs.

use super::{Cuda, Module, driver, units_of};
use crate::error::{Error, Result};
use crate::flow::{Arg, Bindings, Op, Plan, SCRATCH_ALIGNMENT, Step};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, DriverError, result, sys};
use std::cell::RefCell;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::Arc;

/// The small zeroed device memory that a prepared plan keeps between calls (see [`crate::flow::ControlBlock`]).
struct Control {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
}

impl Control {
    fn new(cuda: &Cuda, bytes: u64) -> Result<Control> {
        let context = cuda.context().clone();
        context.bind_to_thread().map_err(driver("cuCtxSetCurrent", || "the device's context".into()))?;
        let asked = || format!("{bytes} bytes of control memory");
        // SAFETY: a plain allocation, freed once in drop.
        let address = unsafe { result::malloc_sync(bytes as usize) }.map_err(driver("cuMemAlloc", asked))?;
        let control = Control { context, address };
        // SAFETY: the allocation has that many bytes.
        unsafe { result::memset_d8_sync(address, 0, bytes as usize) }.map_err(driver("cuMemsetD8", asked))?;
        // The fill runs in the default stream: the host does not wait for it, and neither do non-blocking streams. Late,
        // it would wipe the words and tickets of a call that is under way.
        // SAFETY: the null stream is the context's default stream.
        unsafe { result::stream::synchronize(std::ptr::null_mut()) }.map_err(driver("cuStreamSynchronize", asked))?;
        Ok(control)
    }

    /// The device error word.
    fn error_word(&self) -> Result<u32> {
        self.context.bind_to_thread().map_err(driver("cuCtxSetCurrent", || "the device's context".into()))?;
        let mut header = [0u32; 4];
        // SAFETY: the control block is at least 16 bytes.
        unsafe { result::memcpy_dtoh_sync(&mut header, self.address) }
            .map_err(driver("cuMemcpyDtoH", || "the device error word".into()))?;
        Ok(header[2])
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // Work that was enqueued may still write here: wait for it. After a device fault both calls fail, harmlessly.
            let _ = self.context.synchronize();
            // SAFETY: allocated once in `new`; everything that uses it holds the Arc it lives in.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Where a patched argument word comes from.
#[derive(Clone, Copy, Debug)]
enum Patch {
    Input { operand: usize, bytes: u64 },
    Output { operand: usize },
    Scratch(u64),
}

/// A launch with everything resolved but the operands' addresses.
struct Ready {
    function: sys::CUfunction,
    grid: u32,
    block: u32,
    shared_bytes: u32,
    /// Argument words; `starts[i]` is where argument `i` begins.
    words: Vec<u64>,
    starts: Vec<usize>,
    patches: Vec<(usize, Patch)>,
}

impl Ready {
    /// Launches the kernel with the words as they are.
    ///
    /// # Safety
    /// The words' addresses must be of memory that the kernel may use, the function's module must be loaded, and the stream
    /// must belong to its context, which is the calling thread's current one.
    unsafe fn launch(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        // The driver reads at most this many pointers; programs have fewer arguments.
        let mut pointers = [std::ptr::null_mut::<c_void>(); 16];
        for (pointer, &start) in pointers.iter_mut().zip(&self.starts) {
            *pointer = (&raw mut self.words[start]).cast();
        }
        let pointers = &mut pointers[..self.starts.len()];
        let (grid, block) = ((self.grid, 1, 1), (self.block, 1, 1));
        // SAFETY: the argument words live until the call returns (the driver copies them); the rest is the caller's contract.
        unsafe { result::launch_kernel(self.function, grid, block, self.shared_bytes, stream.cu_stream(), pointers) }
    }
}

/// A plan with its kernels loaded and its control block allocated. Serves one stream at a time: enqueueing takes
/// `&mut self`; [`Prepared::try_clone`] makes another for another stream.
pub struct Prepared<O: Op> {
    cuda: Cuda,
    plan: Plan<O>,
    steps: Vec<Ready>,
    control: Arc<Control>,
    modules: Vec<Arc<Module>>,
}

// SAFETY: function handles belong to modules that are held by Arc, not to a thread.
unsafe impl<O: Op> Send for Prepared<O> {}

impl<O: Op> std::fmt::Debug for Prepared<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prepared {:?} on {:?}", self.plan, self.cuda)
    }
}

impl Cuda {
    /// Builds or loads a plan's kernels, and allocates and zeroes its control block (`8 * words + 16` bytes). Waits for
    /// what the context's default stream holds.
    ///
    /// # Errors
    /// [`Error::NotClaimed`] for a CPU plan; [`Error::Unavailable`] without NVRTC; [`Error::Compile`]; [`Error::Driver`].
    pub fn prepare<O: Op>(&self, plan: &Plan<O>) -> Result<Prepared<O>> {
        let Some(program) = &plan.program else {
            return Err(Error::NotClaimed { rung: plan.rung.id(), why: "it runs on the CPU".into() });
        };
        let units = units_of(program);
        let build = |(file, expressions): &(_, Vec<String>)| self.build(*file, expressions, program.operator.as_deref());
        let modules = units.iter().map(build).collect::<Result<Vec<_>>>()?;
        let control = Arc::new(Control::new(self, program.control.bytes())?);
        let mut steps = Vec::with_capacity(program.steps.len());
        for Step::Launch(launch) in &program.steps {
            let position = units
                .iter()
                .position(|(file, expressions)| {
                    file.path == launch.kernel.file.path && expressions.contains(&launch.kernel.expression)
                })
                .unwrap_or(0);
            let function = modules[position].function(&launch.kernel.expression)?;
            let allow = |attribute, value: i32| {
                // SAFETY: the function is loaded.
                unsafe { result::function::set_function_attribute(function, attribute, value) }
                    .map_err(driver("cuFuncSetAttribute", || format!("{attribute:?} = {value}")))
            };
            if launch.shared_bytes > 0 {
                allow(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.shared_bytes as i32)?;
            }
            let (mut words, mut starts, mut patches) = (Vec::new(), Vec::new(), Vec::new());
            for arg in &launch.args {
                let at = words.len();
                starts.push(at);
                match arg {
                    Arg::U64(value) => words.push(*value),
                    Arg::Control => words.push(control.address),
                    Arg::Words(values) => words.extend(values),
                    Arg::Input { operand, bytes } => {
                        patches.push((at, Patch::Input { operand: *operand, bytes: *bytes }));
                        words.push(0);
                    }
                    Arg::Output { operand } => {
                        patches.push((at, Patch::Output { operand: *operand }));
                        words.push(0);
                    }
                    Arg::Scratch(offset) => {
                        patches.push((at, Patch::Scratch(*offset)));
                        words.push(0);
                    }
                }
            }
            let (grid, block, shared_bytes) = (launch.grid, launch.block, launch.shared_bytes);
            steps.push(Ready { function, grid, block, shared_bytes, words, starts, patches });
        }
        Ok(Prepared { cuda: self.clone(), plan: plan.clone(), steps, control, modules })
    }

    /// Runs `work` with a [`Scope`] on a stream and waits for everything it enqueued before returning, also when it
    /// returns an error or panics: what the scope borrowed is free again afterwards. The device's error words are checked.
    ///
    /// A buffer cannot be dropped, read or written by the host while the scope has it:
    ///
    /// ```compile_fail
    /// # use upsweep::{device::cuda::Cuda, flow::*, ops::reduce::*};
    /// # fn wrong(cuda: &Cuda, prepared: &mut upsweep::device::cuda::Prepared<Reduce>) -> Result<(), upsweep::Error> {
    /// let stream = cuda.stream().clone();
    /// let x = cuda.upload(&[1.0f32])?;
    /// let mut y = cuda.upload(&[0.0f32])?;
    /// cuda.scope(&stream, |scope| {
    ///     let operands = ReduceDeviceOperands { input: DeviceRef::of::<f32, _>(&x, &stream), output: DeviceMut::of::<f32, _>(&mut y, &stream) };
    ///     scope.enqueue(prepared, operands, None)?;
    ///     drop(x); // the work still reads it
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `work` returned; [`Error::Driver`]; [`Error::Device`].
    pub fn scope<'env, R>(&self, stream: &'env Arc<CudaStream>, work: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let scope = Scope { stream, enqueued: RefCell::default(), env: PhantomData };
        // Waits in its drop, so a panic in `work` cannot free buffers under running kernels.
        let wait = WaitOnDrop { stream };
        let returned = work(&scope)?;
        std::mem::forget(wait);
        self.synchronize(stream)?;
        for (control, rung) in scope.enqueued.into_inner() {
            check(&control, &rung)?;
        }
        Ok(returned)
    }

    /// Captures what `work` enqueues into a graph that can be replayed.
    ///
    /// The graph keeps the kernels and control blocks alive; prepared plans may be dropped before it.
    ///
    /// # Errors
    /// What `work` returned; [`Error::Driver`]. A failed capture leaves the stream usable.
    ///
    /// # Safety
    /// A replay is a call of the prepared plans that were captured, which must not run at the same time as another one (see
    /// [`Prepared::enqueue`]). Operands and scratch that `work` enqueues must stay valid until the graph's last replay has
    /// finished. They must
    /// have been allocated while cudarc's event tracking was off, or not be tracked at all (raw pointers): waiting for an
    /// event from outside is not allowed while capturing.
    pub unsafe fn capture(
        &self,
        stream: &Arc<CudaStream>,
        work: impl FnOnce(&mut GraphCapture<'_>) -> Result<()>,
    ) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(driver("cuStreamBeginCapture", || "thread-local mode".into()))?;
        let mut capture = GraphCapture { stream, keep: Vec::new() };
        let worked = work(&mut capture);
        let keep = std::mem::take(&mut capture.keep);
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        worked?;
        let graph = ended.map_err(driver("cuStreamEndCapture", || "the captured graph".into()))?;
        let graph = graph.ok_or_else(|| Error::InvalidArgument {
            argument: "work",
            got: "nothing enqueued".into(),
            allowed: "a graph needs at least one enqueue on the captured stream".into(),
        })?;
        Ok(Graph { graph, stream: stream.clone(), keep })
    }
}

fn check(control: &Control, rung: &str) -> Result<()> {
    match control.error_word()? {
        0 => Ok(()),
        1 => Err(Error::Device { kernel: rung.to_string(), fault: "a wait between blocks ran out" }),
        _ => Err(Error::Device { kernel: rung.to_string(), fault: "an unknown fault" }),
    }
}

impl<O: Op> Prepared<O> {
    /// The plan.
    pub fn plan(&self) -> &Plan<O> {
        &self.plan
    }

    /// Bytes of scratch each enqueue needs, at any alignment and with any content.
    pub fn scratch_bytes(&self) -> u64 {
        self.plan.scratch_bytes()
    }

    /// Another prepared plan for another stream: shares the kernels, owns its control block.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn try_clone(&self) -> Result<Prepared<O>> {
        self.cuda.prepare(&self.plan)
    }

    /// Enqueues the plan on a stream: no allocation, no synchronisation, graph-capturable.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] and [`Error::DTypeMismatch`] for operands or scratch that do not fit, before any
    /// launch; [`Error::Driver`].
    ///
    /// # Safety
    /// Operands, scratch (`address`, `bytes`) and `self` must stay valid until the enqueued work has finished; the
    /// output and the scratch must not be used by other work at the same time; the stream must belong to the same context.
    /// Calls of one prepared plan must not run at the same time, because they share its control block: they are enqueued on
    /// one stream, or a second stream waits for the first; [`Prepared::try_clone`] makes a plan for a stream of its own.
    pub unsafe fn enqueue(&mut self, stream: &CudaStream, operands: O::DeviceOperands<'_>, scratch: (u64, u64)) -> Result<()> {
        let bindings = O::bind(&self.plan.problem, operands)?;
        let needed = self.plan.scratch_bytes();
        if scratch.1 < needed {
            return Err(Error::LengthMismatch { argument: "scratch", got: scratch.1, expected: needed, unit: "bytes" });
        }
        let scratch_start = scratch.0.next_multiple_of(SCRATCH_ALIGNMENT);
        self.cuda.context().bind_to_thread().map_err(driver("cuCtxSetCurrent", || "the device's context".into()))?;
        for step in &mut self.steps {
            for &(at, patch) in &step.patches {
                step.words[at] = resolve(patch, &bindings, scratch_start)?;
            }
            // SAFETY: the caller vouches for the addresses, which the words now hold.
            unsafe { step.launch(stream) }.map_err(driver("cuLaunchKernel", || {
                format!("{} with {} x {} threads", self.plan.rung.id(), step.grid, step.block)
            }))?;
        }
        Ok(())
    }

    /// The launches of the last enqueue once more, by the driver's call and nothing else: what the host's part of an enqueue
    /// is measured against.
    ///
    /// # Errors
    /// [`Error::Driver`].
    ///
    /// # Safety
    /// As [`Prepared::enqueue`], for the operands and the scratch of the last enqueue, of which there must have been one.
    #[doc(hidden)]
    pub unsafe fn launch_again(&mut self, stream: &CudaStream) -> Result<()> {
        self.steps.iter_mut().try_for_each(|step| {
            // SAFETY: the words are those of the last enqueue, for which the caller vouches.
            unsafe { step.launch(stream) }.map_err(driver("cuLaunchKernel", || "the last enqueue's launches".into()))
        })
    }

    /// As [`Prepared::enqueue`], only the first launch of the program: what the teaching ladder times as "the kernel".
    ///
    /// # Errors
    /// As [`Prepared::enqueue`].
    ///
    /// # Safety
    /// As [`Prepared::enqueue`].
    #[doc(hidden)]
    pub unsafe fn enqueue_first_launch(
        &mut self,
        stream: &CudaStream,
        operands: O::DeviceOperands<'_>,
        scratch: (u64, u64),
    ) -> Result<()> {
        let rest = self.steps.split_off(self.steps.len().min(1));
        // SAFETY: the caller's contract is the same.
        let outcome = unsafe { self.enqueue(stream, operands, scratch) };
        self.steps.extend(rest);
        outcome
    }

    /// Reads the device error word; waits for the device.
    ///
    /// # Errors
    /// [`Error::Device`] if a kernel reported a fault; [`Error::Driver`].
    pub fn check(&self) -> Result<()> {
        check(&self.control, &self.plan.rung.id())
    }

    fn keep(&self) -> (Arc<Control>, Vec<Arc<Module>>) {
        (self.control.clone(), self.modules.clone())
    }
}

fn resolve(patch: Patch, bindings: &Bindings<'_>, scratch: u64) -> Result<u64> {
    let missing = |argument, operand: usize| Error::InvalidArgument {
        argument,
        got: format!("no operand {operand}"),
        allowed: "every operand the plan names".into(),
    };
    match patch {
        Patch::Input { operand, bytes } => {
            let bound = bindings.inputs.get(operand).and_then(Option::as_ref).ok_or_else(|| missing("input", operand))?;
            Ok(bound.address() + bytes)
        }
        Patch::Output { operand } => {
            let bound = bindings.outputs.get(operand).and_then(Option::as_ref).ok_or_else(|| missing("output", operand))?;
            Ok(bound.address())
        }
        Patch::Scratch(offset) => Ok(scratch + offset),
    }
}

/// Enqueues on one stream; everything it borrows stays borrowed until the scope has waited for the work.
pub struct Scope<'env> {
    stream: &'env Arc<CudaStream>,
    enqueued: RefCell<Vec<(Arc<Control>, String)>>,
    // Invariant in 'env: borrows handed in cannot be shortened.
    env: PhantomData<&'env mut &'env ()>,
}

impl std::fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "scope with {} enqueued plans", self.enqueued.borrow().len())
    }
}

impl<'env> Scope<'env> {
    /// Enqueues a prepared plan. Scratch may be left out when the plan needs none.
    ///
    /// # Errors
    /// As [`Prepared::enqueue`].
    pub fn enqueue<O: Op>(
        &self,
        prepared: &'env mut Prepared<O>,
        operands: O::DeviceOperands<'env>,
        scratch: Option<crate::flow::DeviceMut<'env>>,
    ) -> Result<()> {
        let scratch = scratch.map_or((0, 0), |s| (s.address(), s.len() * s.dtype().size()));
        // SAFETY: plan, operands and scratch are borrowed for 'env, which ends after the scope has waited for the stream.
        unsafe { prepared.enqueue(self.stream, operands, scratch) }?;
        self.enqueued.borrow_mut().push((prepared.control.clone(), prepared.plan.rung.id()));
        Ok(())
    }
}

struct WaitOnDrop<'a> {
    stream: &'a CudaStream,
}

impl Drop for WaitOnDrop<'_> {
    fn drop(&mut self) {
        let _ = self.stream.synchronize();
    }
}

/// Collects what a graph must keep alive while its stream is capturing.
pub struct GraphCapture<'a> {
    stream: &'a Arc<CudaStream>,
    keep: Vec<(Arc<Control>, Vec<Arc<Module>>)>,
}

impl std::fmt::Debug for GraphCapture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "capture of {} plans", self.keep.len())
    }
}

impl GraphCapture<'_> {
    /// Enqueues a prepared plan into the graph.
    ///
    /// # Errors
    /// As [`Prepared::enqueue`].
    ///
    /// # Safety
    /// Operands and scratch must stay valid until the graph's last replay has finished.
    pub unsafe fn enqueue<O: Op>(
        &mut self,
        prepared: &mut Prepared<O>,
        operands: O::DeviceOperands<'_>,
        scratch: (u64, u64),
    ) -> Result<()> {
        // SAFETY: the caller's contract covers the operands; the graph keeps control block and kernels alive.
        unsafe { prepared.enqueue(self.stream, operands, scratch) }?;
        self.keep.push(prepared.keep());
        Ok(())
    }
}

/// A captured graph. Replays run in stream order; drop order against the prepared plans does not matter.
pub struct Graph {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    keep: Vec<(Arc<Control>, Vec<Arc<Module>>)>,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "graph of {} plans", self.keep.len())
    }
}

impl Graph {
    /// Enqueues one replay on the stream it was captured on.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn replay(&self) -> Result<()> {
        self.graph.launch().map_err(driver("cuGraphLaunch", || format!("{} plans", self.keep.len())))
    }

    /// Waits for the replays and checks the device error words.
    ///
    /// # Errors
    /// [`Error::Driver`], [`Error::Device`].
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(driver("cuStreamSynchronize", || "the graph's replays".into()))?;
        self.keep.iter().try_for_each(|(control, _)| check(control, "a captured plan"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Replays may still run on what `keep` holds.
        let _ = self.stream.synchronize();
    }
}
