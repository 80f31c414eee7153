//! A CUDA device as a [`Target`]: guarded buffers, events and graphs, and the read ceilings.

mod buffer;
mod ceiling;
mod peer;
mod timer;

use crate::candidate::Candidate;
use crate::error::Result;
use crate::families;
use crate::judged::{Ask, Huge, Judged, Traffic};
use crate::points::Placement;
use crate::record::{Ceiling, Device, Peak, Row};
use crate::target::{
    GUARD_BYTE, GUARD_ELEMENTS, Input, Machine, Observed, RunRequest, Samples, Target, TimingRequest, fingerprint,
};
use crate::verify::Verified;
use buffer::Buffer;
use peer::Peer;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timer::{Timer, Way};
use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::device::cuda::{Cuda, Prepared};
use upsweep::flow::{
    Arg, BLOCK_SIZES, Body, Claims, DeviceMut, DeviceRef, Expect, Explain, Forms, KernelFile, KernelSpec, Launch, Operand, Plan,
    Problem, Program, Rung, Step, Tuning,
};
use upsweep::ops::reduce::{ReducePlan, ReduceProblem, ReduceRung, Schedule};
use upsweep::types::{DType, Operator};

/// Scratch is handed over this many bytes after an aligned address: any alignment must do.
const SCRATCH_SHIFT: u64 = 3;

/// Inputs of fewer elements are timed as graph replays: an event on each side would cost as much as the call.
const GRAPH_BELOW: u64 = 1 << 22;

/// Calls in one graph.
const GRAPH_CALLS: u32 = 100;

/// Calls of a batch whose host time is taken: of any plan's launches the driver's queue holds as many.
const HOST_CALLS: u32 = 100;

/// A call shorter than this, in seconds, is bound by launching: a few times an empty kernel's node in a graph.
const LAUNCH_BOUND: f64 = 5e-6;

/// Every kernel of the judge that serves all operations: ceilings, and what makes data. For builds without a GPU.
///
/// # Errors
/// None that a test has not excluded.
pub fn kernels() -> Result<Vec<KernelSpec>> {
    let mut plans = ceiling::plans()?;
    for dtype in DType::all().filter(|dtype| *dtype != DType::Bool) {
        plans.push(fill_plan(dtype, 1, 1, 0, 0)?);
    }
    Ok(kernels_of(plans))
}

/// The CUDA forms of an operation's wrong kernels. For builds without a GPU.
///
/// # Errors
/// A wrong kernel that cannot be planned for the case of its fault.
pub fn wrong_kernels<O: Judged>(caps: &CudaCaps) -> Result<Vec<KernelSpec>> {
    let caps = Caps::Cuda(caps.clone());
    let mut plans = vec![];
    for fault in O::faults() {
        let problem = fault.case.problem()?;
        for form in O::wrong_on_cuda().into_iter().filter(|form| form.rung.name == fault.name) {
            plans.push(form.plan(&problem, &caps, Tuning::default())?);
        }
    }
    Ok(kernels_of(plans))
}

fn kernels_of<O: Judged>(plans: Vec<Plan<O>>) -> Vec<KernelSpec> {
    let programs = plans.into_iter().filter_map(|plan| plan.program);
    programs.flat_map(|program| program.steps).map(|Step::Launch(launch)| launch.kernel).collect()
}

const FILL_FILE: KernelFile = KernelFile::cuda("upsweep-gate/src/cuda/closed_form.cu", include_str!("closed_form.cu"));

static FILL: ReduceRung = Rung {
    number: "0",
    name: "fill_closed_form",
    claims: Claims { operators: &[], dtypes: &[], forms: Forms::Any, compute: (7, 5), max_length: u64::MAX },
    deterministic: true,
    expect: Expect::Pass,
    explain: Explain {
        changed: "Data.",
        helps: "Sizes that no host makes.",
        cost: "One write of every element.",
        source: "upsweep",
    },
    body: Body::Cuda { file: FILL_FILE, schedule: Schedule::Axes },
};

/// The launch that makes a huge case's data at an address.
fn fill_plan(dtype: DType, length: u64, period: u64, marked: u64, address: u64) -> Result<ReducePlan> {
    let launch = Launch {
        kernel: KernelSpec { file: FILL_FILE, expression: format!("upsweep::fill_closed_form<{}>", dtype.row().c_name) },
        grid: 2048,
        block: 256,
        shared_bytes: 0,
        args: vec![Arg::U64(address), Arg::U64(length), Arg::U64(period), Arg::U64(marked)],
    };
    let program = Program { steps: vec![Step::Launch(launch)], scratch_bytes: 0, ..Program::default() };
    let problem = ReduceProblem::whole(Operator::Max, dtype, length)?;
    Ok(ReducePlan { problem, rung: &FILL, why: "data in closed form".into(), program: Some(program) })
}

/// A CUDA device.
pub struct CudaTarget {
    cuda: Cuda,
    exact: bool,
    timer: Timer,
    /// The data that timed calls rotate through: kept between rungs of the same dtype and seed.
    pool: Option<Pool>,
    /// The inputs of the last run, which the next rung most likely shares.
    uploaded: [Option<Uploaded>; 2],
    peers: HashMap<PathBuf, Peer>,
}

/// Where the inputs of a call begin.
#[derive(Clone, Copy)]
struct Inputs {
    first: u64,
    second: Option<u64>,
}

struct Uploaded {
    buffer: Buffer,
    fingerprint: u64,
    start: usize,
}

struct Pool {
    buffer: Buffer,
    dtype: DType,
    seed: u64,
    slot_elements: u64,
    slots: u64,
    /// Of a problem with two inputs: the problem in words, and the bytes of the second input.
    second: Option<(String, u64)>,
}

impl Pool {
    fn slot_bytes(&self) -> u64 {
        slot_bytes(self.slot_elements * self.dtype.size(), self.second.as_ref().map(|(_, bytes)| *bytes))
    }

    fn addresses(&self) -> Arc<[u64]> {
        (0..self.slots).map(|slot| self.buffer.address() + slot * self.slot_bytes()).collect()
    }
}

/// Bytes of a slot. Slots, and second inputs in them, begin on 256-byte boundaries, as allocations do.
fn slot_bytes(first: u64, second: Option<u64>) -> u64 {
    second_in_slot(first) + second.map_or(0, |bytes| bytes.max(1).next_multiple_of(256))
}

/// Where in its slot a second input begins.
fn second_in_slot(first: u64) -> u64 {
    first.max(1).next_multiple_of(256)
}

/// The second inputs of a problem that is timed.
struct SecondInputs<'a> {
    problem: String,
    bytes: u64,
    make: &'a dyn Fn(u64) -> Result<Option<Input>>,
}

impl std::fmt::Debug for CudaTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} as a target", self.cuda)
    }
}

impl CudaTarget {
    /// A device to judge.
    ///
    /// With `UPSWEEP_EXACT_ALLOCATIONS=1` in the environment inputs and outputs end where their allocations end, and
    /// scratch is not filled: what a memory checker outside (compute-sanitizer) needs to see every stray access and every
    /// read of what nothing wrote. Guards are then its work.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn new(cuda: Cuda) -> Result<CudaTarget> {
        let timer = Timer::new(&cuda)?;
        let exact = std::env::var_os("UPSWEEP_EXACT_ALLOCATIONS").is_some_and(|value| value == "1");
        Ok(CudaTarget { cuda, exact, timer, pool: None, uploaded: [None, None], peers: HashMap::new() })
    }

    /// The device.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Uploads an input, and the second one that it has, as the judge lays them out, unless they are there already; the
    /// addresses of their first elements.
    fn upload(&mut self, input: &Input) -> Result<Inputs> {
        let second = input.second().map(|second| self.upload_one(1, second)).transpose()?;
        Ok(Inputs { first: self.upload_one(0, input)?, second })
    }

    fn upload_one(&mut self, place: usize, input: &Input) -> Result<u64> {
        let shift_bytes = input.shift() as usize * input.dtype().size() as usize;
        let start = if self.exact { input.first_byte() - shift_bytes } else { 0 };
        let end = if self.exact { input.first_byte() + input.bytes().len() } else { input.allocation().len() };
        let bytes = &input.allocation()[start..end];
        let fingerprint = fingerprint(bytes);
        let same = |u: &Uploaded| u.fingerprint == fingerprint && u.start == start && u.buffer.len() == bytes.len().max(1) as u64;
        if !self.uploaded[place].as_ref().is_some_and(same) {
            self.uploaded[place] = None;
            let buffer = Buffer::new(&self.cuda, bytes.len() as u64)?;
            buffer.write(bytes)?;
            self.uploaded[place] = Some(Uploaded { buffer, fingerprint, start });
        }
        let uploaded = self.uploaded[place].as_ref().unwrap_or_else(|| unreachable!("the input was just uploaded"));
        Ok(uploaded.buffer.address() + (input.first_byte() - start) as u64)
    }

    /// Whether the uploaded inputs still hold what was uploaded; what does not is dropped.
    fn input_unchanged(&mut self) -> Result<bool> {
        let mut all_unchanged = true;
        for place in &mut self.uploaded {
            let Some(uploaded) = place else { continue };
            let mut after = vec![0; uploaded.buffer.len() as usize];
            uploaded.buffer.read(&mut after)?;
            if fingerprint(&after) != uploaded.fingerprint {
                *place = None;
                all_unchanged = false;
            }
        }
        Ok(all_unchanged)
    }
}

/// Enqueues a prepared plan on raw addresses.
fn enqueue<O: Judged>(
    prepared: &mut Prepared<O>,
    stream: &cudarc::driver::CudaStream,
    inputs: Inputs,
    output: u64,
    scratch: (u64, u64),
    first_launch_only: bool,
) -> Result<(), Error> {
    let problem = &prepared.plan().problem;
    // SAFETY: the callers of this private function own the buffers behind the addresses, sized for the plan's problem,
    // and wait for the stream before they free them.
    unsafe {
        let second = match (inputs.second, problem.second_input()) {
            (Some(address), Some(second)) => Some(DeviceRef::from_raw(address, second.len, second.dtype)?),
            _ => None,
        };
        let (from, to) = (problem.input(), problem.output());
        let input = DeviceRef::from_raw(inputs.first, from.len, from.dtype)?;
        let operands = O::device_operands(input, second, DeviceMut::from_raw(output, to.len, to.dtype)?);
        if first_launch_only {
            prepared.enqueue_first_launch(stream, operands, scratch)
        } else {
            prepared.enqueue(stream, operands, scratch)
        }
    }
}

impl Machine for CudaTarget {
    fn caps(&self) -> Caps {
        Caps::Cuda(self.cuda.caps().clone())
    }

    fn describe(&self) -> Device {
        let caps = self.cuda.caps();
        let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
        let state = timer::device_state(self.cuda.context().ordinal());
        Device {
            kind: "cuda".into(),
            name: caps.name.clone(),
            driver: state.driver,
            cuda: Some(version(self.cuda.driver_version())),
            nvrtc: self.cuda.compiler().ok().map(|c| version(c.version())),
            compute: Some(version(caps.compute)),
            clock_hertz: state.clock_hertz,
            memory_clock_hertz: state.memory_clock_hertz,
            throttle: state.throttle,
            cache_bytes: Some(caps.l2_bytes),
        }
    }

    fn peak(&self) -> Option<Peak> {
        self.cuda.caps().peak().map(|(bytes_per_second, source)| Peak { bytes_per_second, source: source.into() })
    }

    fn cache_bytes(&self) -> u64 {
        self.cuda.caps().l2_bytes
    }

    fn blocks(&self) -> &[u32] {
        // Two warps fill no multiprocessor.
        &BLOCK_SIZES[1..]
    }

    fn runs_in_place(&self) -> bool {
        true
    }

    fn ceiling(&mut self, traffic: Traffic, bytes: u64, repeats: u32) -> Result<Ceiling> {
        let words = (bytes / if traffic == Traffic::Copy { 8 } else { 4 }).max(1);
        let request = TimingRequest { warm_up: 3, repeats, seed: 1, footprint: 4 * self.cache_bytes() };
        // Words are words: the data that the rungs of this size rotate through serve as well.
        let fits = |pool: &Pool| {
            pool.slot_bytes() == (words * 4).next_multiple_of(256) && pool.slots * pool.slot_bytes() > request.footprint
        };
        let addresses = match self.pool.as_ref().filter(|pool| fits(pool)) {
            Some(pool) => pool.addresses(),
            None => self.pool(DType::U32, words, None, &request)?.0,
        };
        ceiling::measure(&self.cuda, &self.timer, &request, traffic, words, &addresses)
    }
}

impl<O: Judged> Target<O> for CudaTarget {
    fn prefetch(&mut self, plans: &[Plan<O>]) -> Result<()> {
        Ok(self.cuda.precompile(plans.iter().filter_map(|plan| plan.program.as_ref()))?)
    }

    fn wrong_kernels(&self) -> Vec<Candidate<O>> {
        O::wrong_on_cuda()
    }

    fn run(&mut self, plan: &Plan<O>, input: &Input, request: RunRequest) -> Result<Observed> {
        let mut prepared = self.cuda.prepare(plan)?;
        let stream = self.timer.stream().clone();
        let inputs = self.upload(input)?;

        let Operand { dtype, len } = plan.problem.output();
        let output_bytes = (len * dtype.size()) as usize;
        let guard = if self.exact { 0 } else { GUARD_ELEMENTS * dtype.size() as usize };
        // In front of the output lie its guard and what puts it off an aligned address.
        let lead = guard + (request.output_shift * dtype.size()) as usize;
        let output = Buffer::new(&self.cuda, (lead + output_bytes + guard) as u64)?;
        let scratch_bytes = plan.scratch_bytes();
        let scratch_guard = if self.exact { 0 } else { GUARD_ELEMENTS };
        let scratch = Buffer::new(&self.cuda, scratch_bytes + SCRATCH_SHIFT + scratch_guard as u64)?;
        let scratch_at = (scratch.address() + SCRATCH_SHIFT, scratch_bytes);

        let mut observed = Observed { input_unchanged: true, ..Observed::default() };
        for run in 0..request.repeats {
            if !self.exact {
                output.fill(GUARD_BYTE)?;
                scratch.fill(GUARD_BYTE)?;
            }
            output.poison(lead as u64, output_bytes, dtype, run)?;
            let to = output.address() + lead as u64;
            if request.in_place {
                // The output takes a fresh copy of the input, which is then both.
                output.write_at(lead as u64, input.bytes())?;
            }
            let inputs = Inputs { first: if request.in_place { to } else { inputs.first }, ..inputs };
            enqueue(&mut prepared, &stream, inputs, to, scratch_at, false)?;
            self.timer.wait()?;
            let mut guards = vec![GUARD_BYTE; if self.exact { 0 } else { lead + guard }];
            let (tail, head) = guards.split_at_mut(guard);
            output.read_at(0, head)?;
            output.read_at((lead + output_bytes) as u64, tail)?;
            if guards.iter().any(|byte| *byte != GUARD_BYTE) {
                observed.broken_guard.get_or_insert("output".into());
            }
            let mut result = vec![0; output_bytes];
            output.read_at(lead as u64, &mut result)?;
            observed.outputs.push(result);
            match prepared.check() {
                Ok(()) => {}
                Err(Error::Device { fault, .. }) => {
                    observed.device_error.get_or_insert(fault.into());
                }
                Err(other) => return Err(other.into()),
            }
        }
        if !self.exact {
            let mut guard_bytes = vec![0; scratch_guard];
            scratch.read_at(SCRATCH_SHIFT + scratch_bytes, &mut guard_bytes)?;
            if guard_bytes.iter().any(|byte| *byte != GUARD_BYTE) {
                observed.broken_guard.get_or_insert("scratch".into());
            }
            observed.input_unchanged = self.input_unchanged()?;
        }
        Ok(observed)
    }

    fn run_huge(&mut self, plan: &Plan<O>, case: &Huge<O>, request: RunRequest) -> Option<Result<Observed>> {
        Some(self.huge(plan, case, request))
    }

    fn open_peer(&mut self, path: &Path) -> Result<()> {
        if !self.peers.contains_key(path) {
            self.peers.insert(path.to_path_buf(), Peer::open(path)?);
        }
        Ok(())
    }

    fn peer(&mut self, path: &Path, problem: &O::Problem, placement: Placement, request: &TimingRequest) -> Result<Option<Row>> {
        Target::<O>::open_peer(self, path)?;
        let Some(peer) = self.peers.remove(path) else { return Ok(None) };
        let row = self.time_peer::<O>(&peer, problem, placement, request);
        self.peers.insert(path.to_path_buf(), peer);
        row
    }

    fn time(&mut self, verified: &Verified<O>, request: &TimingRequest) -> Result<Samples> {
        let plan = verified.plan();
        let problem = &plan.problem;
        let mut prepared = self.cuda.prepare(plan)?;
        let [family, _] = O::evidence(problem);
        let make = |seed: u64| O::make_second(problem, family, seed, 0);
        let second = problem.second_input().map(|operand| SecondInputs {
            problem: format!("{} {problem:?}", O::NAME),
            bytes: operand.len * operand.dtype.size(),
            make: &make,
        });
        let placement = verified.placement();
        let Operand { dtype, len } = problem.input();
        // A slot holds the elements that put the input off an aligned address, too.
        let (len, lead) = (len + placement.input, placement.input * dtype.size());
        let place_of_second = second.as_ref().map(|_| second_in_slot(len * dtype.size()));
        let (addresses, footprint) = self.pool(dtype, len, second.as_ref(), request)?;
        let output_lead = placement.output * problem.output().dtype.size();
        let output = Buffer::new(&self.cuda, output_lead + problem.output().len * problem.output().dtype.size())?;
        let to = output.address() + output_lead;
        let scratch_bytes = plan.scratch_bytes();
        let scratch = Buffer::new(&self.cuda, scratch_bytes)?;
        let stream = self.timer.stream().clone();
        let mut call = |slot: u64, first_only: bool| {
            let inputs = Inputs { first: slot + lead, second: place_of_second.map(|place| slot + place) };
            enqueue(&mut prepared, &stream, inputs, to, (scratch.address(), scratch_bytes), first_only)
        };
        let mut samples =
            Samples { launches: plan.program.as_ref().map(|p| p.launches() as u64), footprint, ..Samples::default() };
        let elements = O::elements(problem);
        if elements < GRAPH_BELOW {
            samples.seconds = self.timer.graph(&self.cuda, request, GRAPH_CALLS, &addresses, |input| call(input, false))?;
            samples.eager_seconds = self.timer.eager(request, GRAPH_CALLS, &addresses, |input| call(input, false))?;
            let inputs = Inputs { first: addresses[0] + lead, second: place_of_second.map(|place| addresses[0] + place) };
            samples.host = Some(self.timer.host(request, HOST_CALLS, |way| match way {
                Way::Enqueue => enqueue(&mut prepared, &stream, inputs, to, (scratch.address(), scratch_bytes), false),
                // SAFETY: the plan was enqueued on these buffers just before, and they outlive the waits.
                Way::RawLaunch => unsafe { prepared.launch_again(&stream) },
            })?);
            samples.launch_bound = samples.seconds.iter().copied().fold(f64::INFINITY, f64::min) < LAUNCH_BOUND;
        } else {
            samples.seconds = self.timer.events(request, &addresses, |input| call(input, false))?;
            // The document times the first kernel of its stages; a launch of one block that only prepares is not meant.
            let first = plan.program.as_ref().and_then(|program| program.steps.first());
            let streams = first.is_some_and(|Step::Launch(launch)| launch.grid > 1);
            if streams && samples.launches.is_some_and(|launches| launches > 1) {
                samples.first_pass_seconds = self.timer.events(request, &addresses, |input| call(input, true))?;
            }
        }
        self.timer.wait()?;
        prepared.check()?;
        Ok(samples)
    }
}

impl CudaTarget {
    /// Runs a plan on data in closed form that the device makes.
    fn huge<O: Judged>(&mut self, plan: &Plan<O>, case: &Huge<O>, request: RunRequest) -> Result<Observed> {
        let Operand { dtype, len } = plan.problem.input();
        let input = Buffer::new(&self.cuda, len * dtype.size())?;
        let stream = self.timer.stream().clone();
        let fill = fill_plan(dtype, len, case.period, case.marked, input.address())?;
        let nothing = Buffer::new(&self.cuda, 64)?;
        let inputs = Inputs { first: input.address(), second: None };
        enqueue(&mut self.cuda.prepare(&fill)?, &stream, inputs, nothing.address(), (0, 0), false)?;
        self.timer.wait()?;
        let mut prepared = self.cuda.prepare(plan)?;
        let scratch = Buffer::new(&self.cuda, plan.scratch_bytes() + SCRATCH_SHIFT)?;
        let Operand { dtype, len } = plan.problem.output();
        let output = Buffer::new(&self.cuda, len * dtype.size())?;
        let mut observed = Observed { input_unchanged: true, ..Observed::default() };
        let window_bytes = |count: u64| (count * dtype.size()) as usize;
        for run in 0..request.repeats {
            for (first, count) in &case.windows {
                output.poison(first * dtype.size(), window_bytes(*count), dtype, run)?;
            }
            scratch.fill(GUARD_BYTE)?;
            let scratch_at = (scratch.address() + SCRATCH_SHIFT, plan.scratch_bytes());
            enqueue(&mut prepared, &stream, inputs, output.address(), scratch_at, false)?;
            self.timer.wait()?;
            let mut seen = vec![];
            for (first, count) in &case.windows {
                let mut image = vec![0; window_bytes(*count)];
                output.read_at(first * dtype.size(), &mut image)?;
                seen.extend(image);
            }
            observed.outputs.push(seen);
        }
        if let Err(error) = prepared.check() {
            observed.device_error = Some(error.to_string());
        }
        Ok(observed)
    }

    /// Addresses of inputs of `elements` elements that together exceed the request's footprint, and that footprint. Behind
    /// each lies its second input, where there is one.
    fn pool(
        &mut self,
        dtype: DType,
        elements: u64,
        second: Option<&SecondInputs<'_>>,
        request: &TimingRequest,
    ) -> Result<(Arc<[u64]>, u64)> {
        let first_bytes = elements * dtype.size();
        let slot_bytes = slot_bytes(first_bytes, second.map(|second| second.bytes));
        let named = second.map(|second| (second.problem.clone(), second.bytes));
        // A single input beyond the footprint rotates out by itself; a graph touches no more slots than it has calls.
        let most = if elements < GRAPH_BELOW { u64::from(GRAPH_CALLS) } else { 4096 };
        let slots = (request.footprint / slot_bytes + 1).clamp(1, most);
        let fits = |pool: &Pool| {
            let same = pool.dtype == dtype && pool.seed == request.seed && pool.slot_elements == elements;
            same && pool.slots == slots && pool.second == named
        };
        if !self.pool.as_ref().is_some_and(fits) {
            self.pool = None;
            let buffer = Buffer::new(&self.cuda, slots * slot_bytes)?;
            for slot in 0..slots {
                let input = families::uniform(dtype, elements, request.seed.wrapping_add(slot))?;
                buffer.write_at(slot * slot_bytes, input.bytes())?;
                if let Some(second) = second.map(|second| (second.make)(request.seed.wrapping_add(slot))).transpose()?.flatten() {
                    buffer.write_at(slot * slot_bytes + second_in_slot(first_bytes), second.bytes())?;
                }
            }
            self.pool = Some(Pool { buffer, dtype, seed: request.seed, slot_elements: elements, slots, second: named });
        }
        let addresses = self.pool.as_ref().map_or_else(|| Arc::from([]), Pool::addresses);
        Ok((addresses, slots * slot_bytes))
    }
}
