//! The simulator as a [`Target`]: the CUDA rungs on the host, with what they did beside what came out. It has no time, so
//! nothing on it is timed.

use crate::candidate::Candidate;
use crate::climb::ClimbOptions;
use crate::counted::{Counted, CountedLine, FIGURES};
use crate::error::{GateError, Result};
use crate::judged::{Judged, Traffic};
use crate::record::{Ceiling, Device, Kind, Peak, Record};
use crate::target::{
    GUARD_BYTE, GUARD_ELEMENTS, Input, Machine, Observed, RunRequest, Samples, Target, TimingRequest, fingerprint, poison,
};
use crate::verify::{Context, Evidence, OnProgress, Progress, Selection, Verified, judge_once};
use std::collections::BTreeMap;
use upsweep::Error;
use upsweep::device::caps::Caps;
use upsweep::flow::{DeviceMut, DeviceRef, Operand, Plan, Problem, Tuning};
use upsweep_sim::{Count, Kind as Counts, LaunchReport, Report, Sim};

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

/// Runs every rung of the simulator's ladder once at one size, judges what came out, and tells what the rungs did.
///
/// # Errors
/// [`GateError`]: a wrong argument, or a compiler that is missing.
pub fn climb<O: Judged>(sim: &Sim, options: &ClimbOptions, context: &Context, progress: OnProgress<'_>) -> Result<Record> {
    let mut target = SimTarget::new(sim.clone());
    let caps = Machine::caps(&target);
    let candidates = Selection { rungs: options.rungs.clone(), ..Selection::default() }.candidates::<O>(&caps)?;
    let operator = options.operators.first().map_or(O::operators()[0], String::as_str);
    let problem = O::problem_at(operator, options.dtype, &O::point_of_size(options.n))?;
    let tuning = Tuning { block: options.block.unwrap_or(0) };
    let plans: Vec<_> = candidates.iter().map(|candidate| candidate.plan(&problem, &caps, tuning)).collect();
    sim.precompile(plans.iter().flatten().filter_map(|plan| plan.program.as_ref()))?;
    let evidence = Evidence::new(&problem, options.seed)?;
    let mut record = context.record::<O>(Kind::Counted, &target, options.seed);
    for ((candidate, plan), done) in candidates.iter().zip(plans).zip(0..) {
        progress(Progress { done, total: candidates.len() as u64, what: format!("{}: {problem}", candidate.name()) });
        let mut rung = Counted { rung: candidate.name(), ..Counted::default() };
        target.last = None;
        let judged = plan.map_err(GateError::from).and_then(|plan| judge_once(&mut target, &plan, &evidence));
        match (judged, target.last.take()) {
            (Ok(agreement), Some(report)) => {
                rung.verified = true;
                rung.error_and_bound = Some((agreement.error, agreement.bound));
                rung.figures = figures(&report);
                rung.lines = report.launches.iter().max_by_key(|launch| launch.threads()).map(lines).unwrap_or_default();
            }
            (Ok(_), None) => rung.why = Some("it launched nothing".into()),
            (Err(GateError::Library(Error::NotClaimed { why, .. })), _) => {
                (rung.not_claimed, rung.why) = (true, Some(why));
            }
            (
                Err(error @ (GateError::Rejected(_) | GateError::Library(Error::Compile { .. } | Error::InvalidArgument { .. }))),
                _,
            ) => {
                rung.why = Some(error.to_string());
            }
            (Err(other), _) => return Err(other),
        }
        record.counted.push(rung);
    }
    Ok(record)
}

/// The figures of a program's launches ([`FIGURES`]).
fn figures(report: &Report) -> BTreeMap<String, f64> {
    let total = |kinds: &[Counts]| {
        kinds.iter().fold(Count::default(), |mut sum, kind| {
            sum.add(&report.total(*kind));
            sum
        })
    };
    let threads: u64 = report.launches.iter().map(|launch| launch.threads()).sum();
    let ratio = |a: u64, b: u64| (a > 0 && b > 0).then(|| a as f64 / b as f64);
    let global = total(&[Counts::GlobalLoad, Counts::GlobalStore]);
    let (load, store) = (total(&[Counts::SharedLoad]), total(&[Counts::SharedStore]));
    let per_thread = |kinds: &[Counts]| ratio(total(kinds).lanes, threads);
    let value = |key: &str| match key {
        "global_lanes" => ratio(global.lanes, global.requests),
        "global_sectors" => ratio(global.sectors, global.requests),
        "bytes_per_byte_asked" => ratio(32 * global.sectors, global.bytes),
        "shared_load_lanes" => ratio(load.lanes, load.requests),
        "shared_load_passes" => ratio(load.wavefronts, load.requests),
        "shared_store_passes" => ratio(store.wavefronts, store.requests),
        "global_loads" => per_thread(&[Counts::GlobalLoad]),
        "barriers" => per_thread(&[Counts::Barrier]),
        "shuffles" => per_thread(&[Counts::Shuffle]),
        "votes" => per_thread(&[Counts::Vote]),
        "atomics" => per_thread(&[Counts::GlobalAtomic, Counts::SharedAtomic]),
        _ => None,
    };
    FIGURES.iter().filter_map(|figure| Some((figure.key.to_string(), value(figure.key)?))).collect()
}

fn lines(launch: &LaunchReport) -> Vec<CountedLine> {
    let line = |((place, kind), count): (&(upsweep_sim::Place, Counts), &Count)| CountedLine {
        line: place.to_string(),
        kind: kind.name().into(),
        requests: count.requests,
        lanes: count.lanes,
        sectors: count.sectors,
        passes: count.wavefronts,
        bank_conflicts: count.bank_conflicts(),
    };
    launch.counts.iter().map(line).collect()
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
                (Some(asked), Some(second)) => {
                    let address = second.bytes().as_ptr() as u64;
                    // SAFETY: the second input has the problem's elements and outlives the run.
                    Some(unsafe { DeviceRef::from_raw(address, asked.len, asked.dtype) }?)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_value_where_everything_is_done() {
        // Rung 8 loads, stores, waits, shuffles and counts blocks; votes are the scans' alone.
        let options = ClimbOptions {
            n: 1 << 16,
            dtype: upsweep::types::DType::F32,
            operators: vec![],
            rungs: vec!["last_block".into(), "bulk_copy".into()],
            block: None,
            peers: vec![],
            repeats: 1,
            seed: 1,
        };
        let record = climb::<upsweep::ops::reduce::Reduce>(&Sim::new(), &options, &Context::default(), &mut |_| ()).unwrap();
        let [last_block, bulk_copy] = &record.counted[..] else { panic!("{:?}", record.counted) };
        assert!(last_block.verified && !last_block.lines.is_empty(), "{last_block:?}");
        for figure in FIGURES.iter().filter(|figure| figure.key != "votes") {
            assert!(last_block.figures.contains_key(figure.key), "{}", figure.key);
        }
        assert!(bulk_copy.why.as_ref().is_some_and(|why| why.starts_with(upsweep::flow::NOT_SIMULATED)), "{bulk_copy:?}");
    }
}
