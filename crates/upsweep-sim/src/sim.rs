//! The device: builds kernels with the host's compiler, and runs the same programs that a CUDA device runs.

use crate::compiler::{HEADER, HostCompiler};
use crate::engine::block::run_blocks;
use crate::engine::faults::{FaultKind, Faults, Thread};
use crate::engine::memory::{Contents, Region};
use crate::engine::order::Published;
use crate::engine::requests::Tally;
use crate::engine::worker::{Launched, Worker};
use crate::library::Library;
use crate::report::{Fault, LaunchReport, Report, in_words};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use upsweep::device::cache::Cache;
use upsweep::device::caps::CudaCaps;
use upsweep::flow::{
    Arg, Bindings, DeviceMut, DeviceRef, HostSlice, HostSliceMut, KernelFile, Launch, Op, Plan, Program, SCRATCH_ALIGNMENT, Step,
};
use upsweep::kernels::sources;
use upsweep::types::{DType, dispatch};
use upsweep::{Error, Result};

/// Kernels that are built together: reading the headers costs as much as a dozen of them.
const KERNELS_OF_UNIT: usize = 48;

/// Threads of a launch from which on a second worker pays.
const WORTH_A_WORKER: u64 = 1 << 11;

/// The simulator. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Sim {
    inner: Arc<Inner>,
}

struct Inner {
    caps: CudaCaps,
    compiler: OnceLock<Result<HostCompiler>>,
    cache: Cache,
    workers: u32,
    /// Texts that stand in for those of the crates, by path.
    replaced: BTreeMap<String, String>,
    libraries: Mutex<HashMap<Unit, Arc<Library>>>,
}

/// A kernel by what it is built from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Unit {
    path: &'static str,
    operator: Option<Arc<str>>,
    expression: String,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "simulator with {} workers", self.inner.workers)
    }
}

impl Default for Sim {
    fn default() -> Self {
        Sim::new()
    }
}

/// What the simulator is to the planner: compute capability 8.0, for what comes after it (bulk copies and their barriers,
/// clusters, tensor cores) is not simulated; few multiprocessors, so that blocks take several tiles already at small sizes; the
/// other numbers are an A100's.
fn caps() -> CudaCaps {
    CudaCaps {
        name: "simulator".into(),
        compute: (8, 0),
        multiprocessors: 16,
        threads_per_multiprocessor: 2048,
        shared_bytes_per_block: 163 << 10,
        l2_bytes: 40 << 20,
        memory_bytes: 80 << 30,
        bus_bytes_per_second: None,
        simulated: true,
    }
}

impl Sim {
    /// A simulator with a worker for each of the host's processors. The compiler is looked for when the first kernel is built.
    pub fn new() -> Sim {
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Sim::with(workers, BTreeMap::new())
    }

    fn with(workers: u32, replaced: BTreeMap<String, String>) -> Sim {
        let inner = Inner {
            caps: caps(),
            compiler: OnceLock::new(),
            cache: Cache::from_environment(),
            workers,
            replaced,
            libraries: Mutex::default(),
        };
        Sim { inner: Arc::new(inner) }
    }

    /// A simulator of the same kernels, but for a file whose text is another: a scratch copy, a change that is tried out.
    /// `path` is that of the file below its crate's `src/`, for instance `ops/reduce/cuda/02_sequential.cu`.
    pub fn replacing(&self, path: &str, text: &str) -> Sim {
        let mut replaced = self.inner.replaced.clone();
        replaced.insert(path.into(), text.into());
        Sim::with(self.inner.workers, replaced)
    }

    /// What the planner is told.
    pub fn caps(&self) -> &CudaCaps {
        &self.inner.caps
    }

    /// The host's compiler.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the next step.
    pub fn compiler(&self) -> Result<&HostCompiler> {
        self.inner.compiler.get_or_init(HostCompiler::find).as_ref().map_err(Clone::clone)
    }

    /// Builds what programs need and is not there yet, on all processors.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a compiler; [`Error::Compile`].
    pub fn precompile<'a>(&self, programs: impl IntoIterator<Item = &'a Program>) -> Result<()> {
        /// A file with a user operator, if there is one.
        type Source = (&'static str, Option<Arc<str>>);
        let mut files: BTreeMap<Source, (KernelFile, Vec<String>)> = BTreeMap::new();
        {
            let known = self.libraries();
            for program in programs {
                for Step::Launch(launch) in &program.steps {
                    let unit = unit_of(launch, program);
                    if launch.kernel.file.tiles.is_empty() && !known.contains_key(&unit) {
                        let entry = files.entry((unit.path, unit.operator)).or_insert_with(|| (launch.kernel.file, vec![]));
                        if !entry.1.contains(&unit.expression) {
                            entry.1.push(unit.expression);
                        }
                    }
                }
            }
        }
        let mut jobs = Vec::new();
        for ((_, operator), (file, mut expressions)) in files {
            expressions.sort();
            jobs.extend(expressions.chunks(KERNELS_OF_UNIT).map(|chunk| (file, operator.clone(), chunk.to_vec())));
        }
        let (queue, failure) = (Mutex::new(jobs.into_iter()), Mutex::new(None));
        std::thread::scope(|scope| {
            for _ in 0..self.inner.workers {
                scope.spawn(|| {
                    loop {
                        let next = queue.lock().unwrap_or_else(|e| e.into_inner()).next();
                        let Some((file, operator, expressions)) = next else { return };
                        if let Err(error) = self.build(file, operator, &expressions) {
                            failure.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                        }
                    }
                });
            }
        });
        failure.into_inner().unwrap_or_else(|e| e.into_inner()).map_or(Ok(()), Err)
    }

    fn libraries(&self) -> std::sync::MutexGuard<'_, HashMap<Unit, Arc<Library>>> {
        self.inner.libraries.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Builds or loads a library of a file's kernels.
    fn build(&self, file: KernelFile, operator: Option<Arc<str>>, expressions: &[String]) -> Result<()> {
        let compiler = self.compiler()?;
        let text = self.source(file, operator.as_deref());
        let mut parts = vec![text.as_str(), "the simulator", compiler.version()];
        parts.extend(compiler.options());
        parts.extend(expressions.iter().map(String::as_str));
        let key = Cache::key(&parts);
        let stored = self.inner.cache.get(&key).and_then(|artefact| Library::load(artefact, file.path).ok());
        let library = match stored {
            Some(library) => library,
            None => {
                let artefact = compiler.build(&text, file.path, expressions)?;
                self.inner.cache.put(&key, &artefact);
                Library::load(artefact, file.path)?
            }
        };
        let library = Arc::new(library);
        let mut libraries = self.libraries();
        for expression in expressions {
            let unit = Unit { path: file.path, operator: operator.clone(), expression: expression.clone() };
            libraries.insert(unit, library.clone());
        }
        Ok(())
    }

    /// The text that the host's compiler reads.
    fn source(&self, file: KernelFile, operator: Option<&str>) -> String {
        let own = |(path, text): (&'_ str, &'_ str)| {
            let text = self.inner.replaced.get(path).map_or(text, String::as_str);
            format!("#line 1 \"{path}\"\n{text}\n")
        };
        let files = std::iter::once(HEADER).chain(sources(file, operator));
        files.map(own).chain(["#line 1 \"entries\"\n".to_string()]).collect()
    }

    /// Runs a plan from host memory to host memory: for tools and tests of problems with one input.
    ///
    /// # Errors
    /// As [`Sim::prepare`] and [`Prepared::run`].
    pub fn run_from_host<O: Op>(&self, plan: &Plan<O>, input: HostSlice<'_>, output: HostSliceMut<'_>) -> Result<Report> {
        let mut prepared = self.prepare(plan)?;
        let (from, to) = ((input.len() as u64, input.dtype()), (output.len() as u64, output.dtype()));
        let mut scratch = vec![0u8; plan.scratch_bytes() as usize];
        let source = dispatch!(from.1, T => input.typed::<T>()?.as_ptr() as u64);
        let target = dispatch!(to.1, T => output.typed::<T>()?.as_mut_ptr() as u64);
        let scratch_at = (scratch.as_mut_ptr() as u64, scratch.len() as u64);
        // SAFETY: the addresses are of borrowed slices of so many elements, which `bind` compares with the problem, and of
        // scratch of our own; the simulator refuses stores to an input.
        unsafe {
            let operands =
                O::device_operands(DeviceRef::from_raw(source, from.0, from.1)?, None, DeviceMut::from_raw(target, to.0, to.1)?);
            prepared.run(operands, scratch_at)
        }
    }

    /// Builds or loads a plan's kernels, and makes its control block.
    ///
    /// # Errors
    /// [`Error::NotClaimed`] for a plan of the CPU or of kernels that are not simulated; [`Error::Unavailable`] without a
    /// compiler; [`Error::Compile`].
    pub fn prepare<O: Op>(&self, plan: &Plan<O>) -> Result<Prepared<O>> {
        let not_claimed = |why: &str| Error::NotClaimed { rung: plan.rung.id(), why: why.into() };
        let Some(program) = &plan.program else { return Err(not_claimed("it runs on the CPU")) };
        if program.steps.iter().any(|Step::Launch(launch)| !launch.kernel.file.tiles.is_empty()) {
            return Err(not_claimed("not simulated: a Rust tile kernel, which is compiled ahead of time"));
        }
        self.precompile([program])?;
        let libraries = self.libraries();
        let mut steps = Vec::new();
        for Step::Launch(launch) in &program.steps {
            let unit = unit_of(launch, program);
            // It was built just now.
            let library = libraries.get(&unit).cloned().ok_or_else(|| not_claimed("its kernels were not built"))?;
            steps.push((launch.clone(), library));
        }
        drop(libraries);
        let control = vec![0; (program.control.bytes() / 8) as usize];
        Ok(Prepared { sim: self.clone(), plan: plan.clone(), steps, control })
    }
}

fn unit_of(launch: &Launch, program: &Program) -> Unit {
    Unit { path: launch.kernel.file.path, operator: program.operator.clone(), expression: launch.kernel.expression.clone() }
}

/// A plan with its kernels loaded and its control block, which persists between runs.
pub struct Prepared<O: Op> {
    sim: Sim,
    plan: Plan<O>,
    steps: Vec<(Launch, Arc<Library>)>,
    control: Vec<u64>,
}

impl<O: Op> std::fmt::Debug for Prepared<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "prepared {:?} on {:?}", self.plan, self.sim)
    }
}

impl<O: Op> Prepared<O> {
    /// Runs the program's launches in order. Operands and scratch are addresses of host memory. A launch that cannot go on (an
    /// access out of bounds, a deadlock, an endless spin) is given up, and with it those after it.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`], [`Error::LengthMismatch`] before anything runs; [`Error::Device`] if a kernel set the device
    /// error word.
    ///
    /// # Safety
    /// Operands and scratch (address and bytes) must be memory of the host that is valid, and not otherwise used, until the
    /// call returns.
    pub unsafe fn run(&mut self, operands: O::DeviceOperands<'_>, scratch: (u64, u64)) -> Result<Report> {
        let bindings = O::bind(&self.plan.problem, operands)?;
        let needed = self.plan.scratch_bytes();
        if scratch.1 < needed {
            return Err(Error::LengthMismatch { argument: "scratch", got: scratch.1, expected: needed, unit: "bytes" });
        }
        let scratch_start = scratch.0.next_multiple_of(SCRATCH_ALIGNMENT);
        let scratch = (scratch_start, (scratch.0 + scratch.1).saturating_sub(scratch_start));
        let regions = regions(&bindings, scratch, &self.control);
        let mut report = Report::default();
        for (number, (launch, library)) in (1..).zip(&self.steps) {
            let words = words(launch, &bindings, scratch_start, self.control.as_ptr() as u64)?;
            // What blocks tell each other over the control block depends on who comes first: in order, and the same each time.
            let speaks = launch.args.contains(&Arg::Control);
            let workers = if speaks { 1 } else { self.sim.inner.workers };
            let entry = library.entry(&launch.kernel.expression)?;
            let launched = Launched {
                entry,
                words: &words,
                grid: launch.grid,
                block: launch.block,
                shared_bytes: launch.shared_bytes,
                image: library.image(),
                regions: &regions,
                number,
                published: Published::default(),
                next_block: AtomicU32::new(0),
                aborted: AtomicBool::new(false),
                workers: AtomicU32::new(0),
                writes: AtomicU64::new(0),
            };
            let one = run_launch(&launched, library, workers, launch).map_err(|error| Error::Compile {
                kernel: launch.kernel.expression.clone(),
                target: "the simulator".into(),
                log: format!("no memory for the stacks of its threads: {error}"),
            })?;
            report.launches.push(one);
            if launched.aborted.into_inner() {
                return Ok(report);
            }
        }
        if let (Some(last), Some((launch, library))) = (report.launches.last_mut(), self.steps.last()) {
            let outputs = regions.iter().filter(|region| region.is_output);
            let unwritten = outputs.filter_map(|region| region.first_unwritten().map(|element| (element, region)));
            last.faults.extend(unwritten.map(|(element, region)| Fault {
                kind: FaultKind::Unwritten,
                place: library.place(0),
                thread: Thread { block: launch.grid - 1, thread: launch.block - 1 },
                what: format!("is the last, and element {element} of the {} was written by none", region.name),
                other: None,
                count: 1,
            }));
        }
        match self.control.get(1).map_or(0, |word| *word as u32) {
            0 => Ok(report),
            1 => Err(Error::Device { kernel: self.plan.rung.id(), fault: "a wait between blocks ran out" }),
            _ => Err(Error::Device { kernel: self.plan.rung.id(), fault: "an unknown fault" }),
        }
    }
}

/// The memory that the launches of a program may use.
fn regions(bindings: &Bindings<'_>, scratch: (u64, u64), control: &[u64]) -> Vec<Region> {
    let mut regions = Vec::new();
    let outputs: Vec<(u64, u64, DType)> =
        bindings.outputs.iter().flatten().map(|o| (o.address(), o.len() * o.dtype().size(), o.dtype())).collect();
    let inputs: Vec<(u64, u64, DType)> =
        bindings.inputs.iter().flatten().map(|o| (o.address(), o.len() * o.dtype().size(), o.dtype())).collect();
    let is_output = |address: u64| outputs.iter().any(|output| output.0 == address);
    let grain = outputs.iter().chain(&inputs).map(|operand| operand.2.size()).min().unwrap_or(4).min(4);
    for (number, (address, bytes, dtype)) in outputs.iter().enumerate() {
        let in_place = inputs.iter().any(|input| input.0 == *address && input.1 > 0);
        let contents = if in_place { Contents::Known } else { Contents::Nothing };
        let name = if number == 0 { "output".to_string() } else { format!("output {number}") };
        let mut region = Region::new(name, *address, *bytes, contents, dtype.size(), grain);
        region.is_output = true;
        regions.push(region);
    }
    for (number, (address, bytes, dtype)) in inputs.iter().enumerate() {
        if !is_output(*address) {
            let name = if number == 0 { "input".to_string() } else { "second input".into() };
            regions.push(Region::new(name, *address, *bytes, Contents::Input, dtype.size(), 4));
        }
    }
    regions.push(Region::new("scratch memory".into(), scratch.0, scratch.1, Contents::Nothing, 1, grain));
    let control = (control.as_ptr() as u64, size_of_val(control) as u64);
    regions.push(Region::new("control block".into(), control.0, control.1, Contents::Known, 1, 4));
    regions
}

/// A launch's argument words.
fn words(launch: &Launch, bindings: &Bindings<'_>, scratch: u64, control: u64) -> Result<Vec<u64>> {
    let missing = |argument, operand: usize| Error::InvalidArgument {
        argument,
        got: format!("no operand {operand}"),
        allowed: "every operand the plan names".into(),
    };
    let mut words = Vec::new();
    for arg in &launch.args {
        match arg {
            Arg::U64(value) => words.push(*value),
            Arg::Words(values) => words.extend(values),
            Arg::Control => words.push(control),
            Arg::Scratch(offset) => words.push(scratch + offset),
            Arg::Input { operand, bytes } => {
                let bound = bindings.inputs.get(*operand).and_then(Option::as_ref);
                words.push(bound.ok_or_else(|| missing("input", *operand))?.address() + bytes);
            }
            Arg::Output { operand } => {
                let bound = bindings.outputs.get(*operand).and_then(Option::as_ref);
                words.push(bound.ok_or_else(|| missing("output", *operand))?.address());
            }
        }
    }
    Ok(words)
}

/// Runs a launch's blocks on up to `most` workers.
fn run_launch(launched: &Launched<'_>, library: &Library, most: u32, launch: &Launch) -> std::io::Result<LaunchReport> {
    let threads = u64::from(launched.grid) * u64::from(launched.block);
    let workers = u64::from(most).min(threads / WORTH_A_WORKER).min(u64::from(launched.grid)).max(1) as u32;
    launched.workers.store(workers, std::sync::atomic::Ordering::Relaxed);
    let work = || -> std::io::Result<(Tally, Faults)> {
        let dynamic = vec![0u128; (launched.shared_bytes as usize).div_ceil(16) + 8];
        let start = (dynamic.as_ptr() as u64).next_multiple_of(128);
        // SAFETY: the launch outlives its workers, which end in this function.
        let mut worker = unsafe { Worker::new(launched, library.shared(), (start, u64::from(launched.shared_bytes))) };
        // SAFETY: the library is borrowed for the call.
        unsafe { run_blocks(&mut worker, launched) }?;
        Ok((worker.tally, worker.faults))
    };
    let results = if workers == 1 {
        vec![work()]
    } else {
        std::thread::scope(|scope| {
            let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            // A worker does not panic; if one did, so would this.
            running.into_iter().map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    };
    let results = results.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    let counted = results.iter().flat_map(|(tally, _)| tally.entries().map(|(place, ..)| place));
    let faulty = results.iter().flat_map(|(_, faults)| faults.found.values());
    library.look_up(counted.chain(faulty.flat_map(|raw| [Some(raw.place), raw.other.map(|other| other.place)]).flatten()));
    let mut counts = BTreeMap::new();
    let mut faults = Faults::default();
    for (tally, found) in results {
        for (place, kind, count) in tally.entries() {
            let entry: &mut crate::Count = counts.entry((library.place(place), kind)).or_default();
            entry.add(&count);
        }
        faults.take_over(found);
    }
    let mut worded: Vec<Fault> = faults.found.values().filter_map(|raw| in_words(raw, library, launched.regions)).collect();
    worded.sort_by_key(|fault| (fault.place.clone(), fault.kind));
    // The compiler's copies of a line are one place.
    worded.dedup_by(|later, first| {
        let same = (&later.place, later.kind, &later.other.as_ref().map(|o| &o.0))
            == (&first.place, first.kind, &first.other.as_ref().map(|o| &o.0));
        if same {
            first.count += later.count;
        }
        same
    });
    Ok(LaunchReport {
        kernel: launch.kernel.expression.clone(),
        file: launch.kernel.file.path.to_string(),
        grid: launched.grid,
        block: launched.block,
        counts,
        faults: worded,
    })
}
