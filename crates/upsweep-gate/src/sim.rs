//! The simulator as a [`Target`]: the CUDA rungs on the host, with what they did beside what came out. It has no time, so
//! nothing on it is timed.

use crate::candidate::Candidate;
use crate::error::{GateError, Result};
use crate::judged::{Judged, Traffic};
use crate::record::{Ceiling, Device, Peak};
use crate::target::{
    GUARD_BYTE, GUARD_ELEMENTS, Input, Machine, Observed, RunRequest, Samples, Target, TimingRequest, fingerprint, poison,
};
use crate::climb::ClimbOptions;
use crate::comparator::Agreement;
use crate::verify::{Evidence, OnProgress, Progress, Selection, Verified, judge_once};
use upsweep::Error;
use upsweep::device::caps::Caps;
use upsweep::flow::{DeviceMut, DeviceRef, Operand, Plan, Problem, Tuning};
use upsweep_sim::{Report, Sim};

/// Scratch is handed over so many bytes after an aligned address.
const SCRATCH_SHIFT: usize = 3;

/// The simulator.
#[derive(Debug)]
pub struct SimTarget {
    sim: Sim,
    last: Option<Report>,
}

impl SimTarget {
    /// A simulator to judge rungs on.
    pub fn new(sim: Sim) -> SimTarget {
        SimTarget { sim, last: None }
    }

    /// What the launches of the last run did.
    pub fn last(&self) -> Option<&Report> {
        self.last.as_ref()
    }
}

/// Bytes of host memory between guards, aligned as device memory is.
struct Memory {
    words: Vec<u128>,
    lead: usize,
    length: usize,
}

impl Memory {
    /// `length` bytes, `shift` bytes after an aligned address, filled with the guard's byte.
    fn new(length: usize, shift: usize, guard: usize) -> Memory {
        let total = (2 * guard + shift + length).div_ceil(16) + 16;
        let words = vec![u128::from_ne_bytes([GUARD_BYTE; 16]); total];
        // Device memory is aligned to 256 bytes.
        let aligned = (words.as_ptr() as usize + guard).next_multiple_of(256) - words.as_ptr() as usize;
        Memory { words, lead: aligned + shift, length }
    }

    fn all(&mut self) -> &mut [u8] {
        let bytes = size_of_val(&self.words[..]);
        // SAFETY: plain integers, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), bytes) }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let (lead, length) = (self.lead, self.length);
        &mut self.all()[lead..lead + length]
    }

    fn address(&mut self) -> u64 {
        self.bytes().as_mut_ptr() as u64
    }

    fn guards_hold(&mut self) -> bool {
        let (lead, end) = (self.lead, self.lead + self.length);
        let all = self.all();
        all[..lead].iter().chain(&all[end..]).all(|byte| *byte == GUARD_BYTE)
    }
}

impl Machine for SimTarget {
    fn caps(&self) -> Caps {
        Caps::Cuda(self.sim.caps().clone())
    }

    fn describe(&self) -> Device {
        let (major, minor) = self.sim.caps().compute;
        Device {
            kind: "sim".into(),
            name: self.sim.caps().name.clone(),
            driver: self.sim.compiler().ok().map(|compiler| compiler.version().to_string()),
            compute: Some(format!("{major}.{minor}")),
            ..Device::default()
        }
    }

    fn peak(&self) -> Option<Peak> {
        None
    }

    fn cache_bytes(&self) -> u64 {
        self.sim.caps().l2_bytes
    }

    fn blocks(&self) -> &[u32] {
        &[]
    }

    fn runs_in_place(&self) -> bool {
        true
    }

    /// An output that nothing wrote is a fault here, whatever it held.
    fn case_runs(&self) -> u32 {
        1
    }

    /// What nothing orders is a fault here, whether its bits vary or not; what is left to vary is which worker ran a block.
    fn determinism_runs(&self) -> u32 {
        2
    }

    fn leaves_many_rows_out(&self) -> Option<&'static str> {
        Some("tens of thousands of rows are left out on the simulator, where each thread takes long")
    }

    fn cannot_show(&self, fault: &str) -> Option<&'static str> {
        let by_order = "blocks run in order here, so what a block waits for is there; both accesses are atomic ones, and no race";
        (fault == "value_before_flag").then_some(by_order)
    }

    fn ceiling(&mut self, _: Traffic, _: u64, _: u32) -> Result<Ceiling> {
        Err(no_time())
    }
}

/// A rung of a simulated ladder: what it did, or why it did not run.
#[derive(Clone, Debug)]
pub struct SimulatedRung {
    /// `number-name`.
    pub rung: String,
    /// What the launches did, of a rung that gave right results without a fault.
    pub report: Option<Report>,
    /// How near the results were.
    pub agreement: Agreement,
    /// It uses what the simulator has not, or does not claim the problem: why.
    pub not_claimed: Option<String>,
    /// What was wrong with it.
    pub failure: Option<String>,
}

/// Runs every rung of the simulator's ladder once at one size, judges what came out, and tells what the rungs did.
///
/// # Errors
/// [`GateError`]: a wrong argument, or a compiler that is missing.
pub fn climb<O: Judged>(
    sim: &Sim,
    options: &ClimbOptions,
    progress: OnProgress<'_>,
) -> Result<Vec<SimulatedRung>> {
    let mut target = SimTarget::new(sim.clone());
    let caps = Machine::caps(&target);
    let candidates = Selection { rungs: options.rungs.clone(), ..Selection::default() }.candidates::<O>(&caps)?;
    let operator = options.operators.first().map_or(O::operators()[0], String::as_str);
    let problem = O::problem_at(operator, options.dtype, &O::point_of_size(options.n))?;
    let plans: Vec<_> = candidates
        .iter()
        .map(|candidate| candidate.plan(&problem, &caps, Tuning { block: options.block.unwrap_or(0) }))
        .collect();
    sim.precompile(plans.iter().flatten().filter_map(|plan| plan.program.as_ref()))?;
    let evidence = Evidence::new(&problem, options.seed)?;
    let mut rungs = vec![];
    for ((candidate, plan), done) in candidates.iter().zip(plans).zip(0..) {
        progress(Progress { done, total: candidates.len() as u64, what: format!("{}: {problem}", candidate.name()) });
        let mut rung = SimulatedRung {
            rung: candidate.name(),
            report: None,
            agreement: Agreement::default(),
            not_claimed: None,
            failure: None,
        };
        target.last = None;
        let judged = match plan {
            Err(Error::NotClaimed { why, .. }) => {
                rung.not_claimed = Some(why);
                rungs.push(rung);
                continue;
            }
            Err(error) => Err(error.into()),
            Ok(plan) => judge_once(&mut target, &plan, &evidence),
        };
        match judged {
            Ok(agreement) => (rung.agreement, rung.report) = (agreement, target.last.take()),
            Err(error @ (GateError::Rejected(_) | GateError::Library(Error::Compile { .. } | Error::InvalidArgument { .. }))) => {
                rung.failure = Some(error.to_string());
            }
            Err(other) => return Err(other),
        }
        rungs.push(rung);
    }
    Ok(rungs)
}

fn no_time() -> GateError {
    GateError::Measurement("the simulator has no time".into())
}

impl<O: Judged> Target<O> for SimTarget {
    fn prefetch(&mut self, plans: &[Plan<O>]) -> Result<()> {
        Ok(self.sim.precompile(plans.iter().filter_map(|plan| plan.program.as_ref()))?)
    }

    fn wrong_kernels(&self) -> Vec<Candidate<O>> {
        O::wrong_on_cuda()
    }

    fn run(&mut self, plan: &Plan<O>, input: &Input, request: RunRequest) -> Result<Observed> {
        let mut prepared = self.sim.prepare(plan)?;
        let Operand { dtype, len } = plan.problem.output();
        let length = (len * dtype.size()) as usize;
        let guard = GUARD_ELEMENTS * dtype.size() as usize;
        let mut output = Memory::new(length, (request.output_shift * dtype.size()) as usize, guard);
        let mut scratch = Memory::new(plan.scratch_bytes() as usize, SCRATCH_SHIFT, GUARD_ELEMENTS);
        let prints = |input: &Input| (fingerprint(input.allocation()), input.second().map(|i| fingerprint(i.allocation())));
        let before = prints(input);
        let mut observed = Observed::default();
        for run in 0..request.repeats {
            poison(output.bytes(), dtype, run);
            scratch.bytes().fill(GUARD_BYTE);
            let first = if request.in_place {
                output.bytes().copy_from_slice(input.bytes());
                output.address()
            } else {
                input.bytes().as_ptr() as u64
            };
            let from = plan.problem.input();
            let second = match (plan.problem.second_input(), input.second()) {
                // SAFETY: the second input has the problem's elements and outlives the run.
                (Some(asked), Some(second)) => {
                    Some(unsafe { DeviceRef::from_raw(second.bytes().as_ptr() as u64, asked.len, asked.dtype) }?)
                }
                _ => None,
            };
            let scratch_at = (scratch.address(), scratch.length as u64);
            // SAFETY: the buffers are as long as the problem's operands and outlive the run. The simulator refuses stores to
            // an input, so it is only read.
            let outcome = unsafe {
                let operands = O::device_operands(
                    DeviceRef::from_raw(first, from.len, from.dtype)?,
                    second,
                    DeviceMut::from_raw(output.address(), len, dtype)?,
                );
                prepared.run(operands, scratch_at)
            };
            match outcome {
                Ok(report) => {
                    for fault in report.faults().map(ToString::to_string) {
                        if !observed.faults.contains(&fault) {
                            observed.faults.push(fault);
                        }
                    }
                    self.last = Some(report);
                }
                Err(Error::Device { fault, .. }) => {
                    observed.device_error.get_or_insert(fault.into());
                }
                Err(other) => return Err(other.into()),
            }
            observed.outputs.push(output.bytes().to_vec());
        }
        for (memory, name) in [(&mut output, "output"), (&mut scratch, "scratch")] {
            if !memory.guards_hold() {
                observed.broken_guard.get_or_insert(name.into());
            }
        }
        observed.input_unchanged = prints(input) == before;
        Ok(observed)
    }

    fn time(&mut self, _: &Verified<O>, _: &TimingRequest) -> Result<Samples> {
        Err(no_time())
    }
}
