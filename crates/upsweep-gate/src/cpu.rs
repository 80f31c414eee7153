//! The host processor as a [`Target`].

use crate::candidate::Candidate;
use crate::error::{GateError, Result};
use crate::judged::{Judged, Traffic};
use crate::record::{Ceiling, Device, Peak};
use crate::statistics::Spread;
use crate::target::{
    GUARD_BYTE, GUARD_ELEMENTS, Input, Machine, Observed, RunRequest, Samples, Target, TimingRequest, fingerprint, poison,
};
use crate::verify::Verified;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Instant;
use upsweep::device::caps::{Caps, CpuCaps, DeviceKind};
use upsweep::flow::{Body, HostSliceMut, Operand, Plan, Problem};
use upsweep::types::{DType, dispatch};

/// Reads all bytes once as fast as the machine can, and returns something that depends on all of them.
pub type ReadKernel = fn(&[u8]) -> u64;

/// A sample is at least this long: shorter calls are timed several at a time, the clock being too coarse for one.
const SHORTEST_SAMPLE: f64 = 20e-6;

/// Most inputs that are rotated through; a problem so small that these fit the cache is marked as resident in it.
const MOST_INPUTS: u64 = 64;

/// The host processor.
pub struct CpuTarget {
    caps: CpuCaps,
    cache_bytes: u64,
    read: ReadKernel,
    /// Inputs of the last timing, with the problem in words and the seed: the rungs of a ladder are timed on the same ones.
    inputs: Option<(String, u64, Vec<Input>)>,
}

impl std::fmt::Debug for CpuTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuTarget").field("caps", &self.caps).field("cache_bytes", &self.cache_bytes).finish_non_exhaustive()
    }
}

impl CpuTarget {
    /// The best plain copy by the system's own copy routine: in pieces of a MiB by turns, and a share a thread at once,
    /// which that routine may write past the caches.
    fn copy_ceiling(&self, bytes: u64, repeats: u32) -> Result<Ceiling> {
        let half = (bytes / 2).max(1);
        let buffers = (4 * self.cache_bytes / half + 1).min(MOST_INPUTS) as usize;
        let sources: Vec<Input> = (0..buffers).map(|i| Input::filled(DType::U8, half, 0, i as u8 + 1)).collect();
        let mut target = Input::filled(DType::U8, half, 0, 0);
        let mut best: Option<Ceiling> = None;
        let share = (half as usize).div_ceil(self.caps.threads.max(1));
        for (name, piece) in [("pieces of 1 MiB", 1 << 20), ("one share a thread", share)] {
            let mut once = |position: usize| {
                let start = Instant::now();
                let from = black_box(sources[position % buffers].bytes());
                let pieces = black_box(target.bytes_mut()).par_chunks_mut(piece).zip(from.par_chunks(piece));
                pieces.for_each(|(to, from)| to.copy_from_slice(from));
                start.elapsed().as_secs_f64()
            };
            for position in 0..2 {
                once(position);
            }
            let samples: Vec<f64> = (0..repeats.max(1) as usize).map(&mut once).collect();
            let last = (repeats.max(1) as usize - 1) % buffers;
            if target.bytes() != sources[last].bytes() {
                return Err(GateError::Measurement(format!("the copy by {name} did not copy")));
            }
            let spread = Spread::of(&samples)?;
            if best.as_ref().is_none_or(|b| spread.median < b.seconds) {
                best = Some(Ceiling {
                    name: format!("multi-threaded copy, {name}"),
                    traffic: Traffic::Copy,
                    bytes: 2 * half,
                    seconds: spread.median,
                    seconds_min: spread.min,
                    bytes_per_second: 2.0 * half as f64 / spread.median,
                });
            }
        }
        best.ok_or_else(|| GateError::Measurement("no copy ran".into()))
    }

    /// The machine this runs on, with rayon's current pool. The ceiling is that of the library's own read kernel.
    pub fn new(caps: CpuCaps) -> CpuTarget {
        CpuTarget { caps, cache_bytes: last_level_cache(), read: upsweep::ops::reduce::read_ceiling, inputs: None }
    }

    /// Takes another read kernel for the ceiling.
    pub fn with_read_kernel(mut self, read: ReadKernel) -> CpuTarget {
        self.read = read;
        self
    }

    /// As many inputs as it takes to exceed the footprint.
    fn inputs<O: Judged>(&mut self, problem: &O::Problem, shift: u64, seed: u64, footprint: u64) -> Result<&[Input]> {
        let name = format!("{} {problem:?} at {shift}", O::NAME);
        let same = self.inputs.as_ref().is_some_and(|(n, s, _)| *n == name && *s == seed);
        if !same {
            let operands = [Some(problem.input()), problem.second_input()];
            let bytes: u64 = operands.iter().flatten().map(|Operand { dtype, len }| len * dtype.size()).sum();
            let count = (footprint / bytes.max(1) + 1).min(MOST_INPUTS);
            self.inputs = None;
            let [family, _] = O::evidence(problem);
            let made: Result<Vec<Input>> = (0..count).map(|i| O::make(problem, family, seed.wrapping_add(i), shift)).collect();
            self.inputs = Some((name, seed, made?));
        }
        Ok(self.inputs.as_ref().map_or(&[], |(_, _, inputs)| inputs))
    }
}

/// Last-level cache in bytes, as Linux reports it; where it does not, a size that few processors exceed.
fn last_level_cache() -> u64 {
    const UNKNOWN: u64 = 64 << 20;
    let size = |index: u32| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
        let text = text.trim();
        let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let unit = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => 1,
        };
        Some(digits.parse::<u64>().ok()? * unit)
    };
    (0..8).filter_map(size).max().unwrap_or(UNKNOWN)
}

/// Of an input and of the second one.
fn fingerprints(input: &Input) -> (u64, Option<u64>) {
    (fingerprint(input.allocation()), input.second().map(|second| fingerprint(second.allocation())))
}

/// The host function of a plan.
fn body<O: Judged>(plan: &Plan<O>) -> Result<O::HostBody> {
    match plan.rung.body {
        Body::Cpu(body) => Ok(body),
        Body::Cuda { .. } => Err(GateError::Library(upsweep::Error::NotClaimed {
            rung: plan.rung.id(),
            why: "it runs on a CUDA device, not on the CPU".into(),
        })),
    }
}

/// An output between guard bands.
struct Output {
    bytes: Input,
}

impl Output {
    fn new(operand: Operand, shift: u64) -> Output {
        Output { bytes: Input::filled(operand.dtype, operand.len, shift, GUARD_BYTE) }
    }

    fn call<O: Judged>(&mut self, body: O::HostBody, problem: &O::Problem, input: &Input) -> upsweep::Result<()> {
        let output = dispatch!(problem.output().dtype, T => HostSliceMut::from(self.bytes.typed_mut::<T>()?));
        O::run_on_host(body, problem, input.slice(), input.second_slice(), output)
    }

    fn broken_guard(&self) -> Option<String> {
        let (start, len) = (self.bytes.first_byte(), self.bytes.bytes().len());
        let allocation = self.bytes.allocation();
        let guard = if self.bytes.dtype() == upsweep::types::DType::Bool { 1 } else { GUARD_BYTE };
        let broken = |side: &[u8]| side.iter().any(|byte| *byte != guard);
        if broken(&allocation[..start]) {
            return Some(format!("one of the {GUARD_ELEMENTS} elements or more before the output was written"));
        }
        broken(&allocation[start + len..]).then(|| "memory after the output was written".to_string())
    }
}

impl Machine for CpuTarget {
    fn caps(&self) -> Caps {
        Caps::Cpu(self.caps.clone())
    }

    fn describe(&self) -> Device {
        Device {
            kind: DeviceKind::Cpu.name().into(),
            name: self.caps.name.clone(),
            compute: Some(format!("{}, {} threads", self.caps.simd, self.caps.threads)),
            cache_bytes: Some(self.cache_bytes),
            ..Device::default()
        }
    }

    fn peak(&self) -> Option<Peak> {
        None
    }

    fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn blocks(&self) -> &[u32] {
        &[]
    }

    fn ceiling(&mut self, traffic: Traffic, bytes: u64, repeats: u32) -> Result<Ceiling> {
        if traffic == Traffic::Copy {
            return self.copy_ceiling(bytes, repeats);
        }
        // Several buffers, so that a small one is not read from the cache; incompressible content is not needed, but
        // untouched pages would all be the same one.
        let buffers = (4 * self.cache_bytes / bytes.max(1) + 1).min(MOST_INPUTS) as usize;
        // Made like the inputs of a timing, so that both have pages of the same size.
        let memory: Vec<Input> = (0..buffers).map(|i| Input::filled(DType::U8, bytes, 0, i as u8 + 1)).collect();
        let read = |position: usize| {
            let start = Instant::now();
            black_box((self.read)(black_box(memory[position % buffers].bytes())));
            start.elapsed().as_secs_f64()
        };
        for position in 0..2 {
            read(position);
        }
        let samples: Vec<f64> = (0..repeats.max(1) as usize).map(read).collect();
        let spread = Spread::of(&samples)?;
        Ok(Ceiling {
            name: "multi-threaded read".into(),
            traffic,
            bytes,
            seconds: spread.median,
            seconds_min: spread.min,
            bytes_per_second: bytes as f64 / spread.median,
        })
    }
}

impl<O: Judged> Target<O> for CpuTarget {
    fn wrong_kernels(&self) -> Vec<Candidate<O>> {
        O::wrong_on_cpu()
    }

    fn run(&mut self, plan: &Plan<O>, input: &Input, request: RunRequest) -> Result<Observed> {
        let body = body(plan)?;
        let problem = &plan.problem;
        let before = fingerprints(input);
        let mut output = Output::new(problem.output(), request.output_shift);
        let mut observed = Observed::default();
        for run in 0..request.repeats {
            poison(output.bytes.bytes_mut(), problem.output().dtype, run);
            output.call::<O>(body, problem, input)?;
            observed.outputs.push(output.bytes.bytes().to_vec());
        }
        observed.broken_guard = output.broken_guard();
        observed.input_unchanged = fingerprints(input) == before;
        Ok(observed)
    }

    fn time(&mut self, verified: &Verified<O>, request: &TimingRequest) -> Result<Samples> {
        let plan = verified.plan();
        let (body, problem) = (body(plan)?, &plan.problem);
        let placement = verified.placement();
        let mut output = Output::new(problem.output(), placement.output);
        let inputs = self.inputs::<O>(problem, placement.input, request.seed, request.footprint)?;
        let footprint =
            inputs.iter().flat_map(|input| [Some(input), input.second()]).flatten().map(|i| i.bytes().len() as u64).sum();
        let mut next = inputs.iter().cycle();
        let mut call = |calls: u32| -> Result<f64> {
            let start = Instant::now();
            for input in next.by_ref().take(calls as usize) {
                output.call::<O>(body, problem, black_box(input))?;
                black_box(output.bytes.bytes().first());
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let mut once = f64::INFINITY;
        for _ in 0..request.warm_up.max(1) {
            once = once.min(call(1)?);
        }
        let calls = (SHORTEST_SAMPLE / once.max(1e-9)).ceil().clamp(1.0, 1e6) as u32;
        let seconds = (0..request.repeats).map(|_| Ok(call(calls)? / f64::from(calls))).collect::<Result<_>>()?;
        Ok(Samples { seconds, footprint, ..Samples::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::families::Family;
    use upsweep::device::cpu::Cpu;
    use upsweep::flow::Tuning;
    use upsweep::ops::reduce::{Reduce, ReduceProblem};
    use upsweep::types::Operator;

    pub(crate) fn target() -> CpuTarget {
        match Cpu::new().caps() {
            Caps::Cpu(caps) => CpuTarget::new(caps.clone()),
            Caps::Cuda(_) => unreachable!("the CPU is no CUDA device"),
        }
    }

    #[test]
    fn runs_alternate_poisons_and_report_outputs() {
        let mut target = target();
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 100).unwrap();
        let input = Reduce::make(&problem, Family::Signed, 1, 3).unwrap();
        let caps = target.caps();
        let plan = |candidate: Candidate<Reduce>| candidate.plan(&problem, &caps, Tuning::default()).unwrap();
        let right = Candidate::ladder(&caps).last().unwrap();
        let observed = target.run(&plan(right), &input, RunRequest::repeats(3)).unwrap();
        assert!(observed.input_unchanged && observed.broken_guard.is_none() && observed.outputs.len() == 3);
        assert!(observed.outputs.iter().all(|o| *o == observed.outputs[0]));
        let stale = Reduce::wrong_on_cpu().into_iter().find(|c| c.rung.name == "stale_output").unwrap();
        let observed = target.run(&plan(stale), &input, RunRequest::repeats(2)).unwrap();
        assert_eq!(observed.outputs, [0xffc0_deadu32.to_le_bytes().to_vec(), 0x5a5a_5a5au32.to_le_bytes().to_vec()]);
    }

    #[test]
    fn a_written_guard_is_seen() {
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 8).unwrap();
        let mut output = Output::new(problem.output(), 0);
        assert_eq!(output.broken_guard(), None);
        let (start, len) = (output.bytes.first_byte(), output.bytes.bytes().len());
        output.bytes.allocation_mut()[start + len] ^= 1;
        assert!(output.broken_guard().is_some());
        output.bytes.allocation_mut()[start + len] ^= 1;
        output.bytes.allocation_mut()[start - 1] ^= 1;
        assert!(output.broken_guard().is_some());
    }
}
