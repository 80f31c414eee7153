//! Times and throughputs, which only a verification opens.

use crate::error::{GateError, Result};
use crate::judged::Judged;
use crate::record::{Peak, Row};
use crate::statistics::Spread;
use crate::target::{Samples, Target, TimingRequest};
use crate::verify::{Verified, identity};
use upsweep::flow::Problem;

/// Inputs must exceed the last-level cache so many times before a time counts as one of memory.
pub const CACHE_MULTIPLE: u64 = 4;

/// Measured seconds of a verified plan. Only [`Timing::measure`] makes one.
///
/// ```compile_fail,E0451
/// # use upsweep_gate::{timing::Timing, verify::Verified, statistics::Spread, target::Samples};
/// # use upsweep::ops::reduce::Reduce;
/// # fn forge(verified: Verified<Reduce>, spread: Spread) -> Timing<Reduce> {
/// Timing { verified, spread, samples: Samples::default(), cache_resident: false }
/// # }
/// ```
#[derive(Debug)]
pub struct Timing<O: Judged> {
    verified: Verified<O>,
    spread: Spread,
    samples: Samples,
    cache_resident: bool,
}

/// Bytes per second of a verified plan. Only [`Timing::throughput`] makes one.
///
/// ```compile_fail,E0451
/// let forged = upsweep_gate::timing::Throughput { bytes_per_second: 1e15 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Throughput {
    bytes_per_second: f64,
}

impl<O: Judged> Timing<O> {
    /// Times a verified plan on the device that it was verified on.
    ///
    /// # Errors
    /// [`GateError::OtherDevice`]; [`GateError::Measurement`] for times that cannot be: none, not positive, or above
    /// the device's peak although the data cannot have been in a cache.
    pub fn measure(verified: &Verified<O>, target: &mut dyn Target<O>, request: &TimingRequest) -> Result<Timing<O>> {
        let asked = identity(&target.describe());
        if asked != verified.device() {
            return Err(GateError::OtherDevice { verified: verified.device().into(), asked });
        }
        let samples = target.time(verified, request)?;
        let spread = Spread::of(&samples.seconds)?;
        let cache_resident = samples.footprint <= CACHE_MULTIPLE * target.cache_bytes();
        let timing = Timing { verified: verified.clone(), spread, samples, cache_resident };
        if !cache_resident {
            timing.check_against(target.peak().as_ref())?;
        }
        Ok(timing)
    }

    fn check_against(&self, peak: Option<&Peak>) -> Result<()> {
        let reached = self.throughput().bytes_per_second;
        match peak {
            Some(peak) if reached > peak.bytes_per_second => Err(GateError::Measurement(format!(
                "{:.1} GB/s is above the peak of {:.1} GB/s ({}): the time is too short or the data was in a cache",
                reached / 1e9,
                peak.bytes_per_second / 1e9,
                peak.source
            ))),
            _ => Ok(()),
        }
    }

    /// Median, minimum, percentiles.
    pub fn spread(&self) -> &Spread {
        &self.spread
    }

    /// What was verified and timed.
    pub fn verified(&self) -> &Verified<O> {
        &self.verified
    }

    /// The samples and what else was seen.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The inputs may have been in the last-level cache: the figure is no share of the memory's.
    pub fn cache_resident(&self) -> bool {
        self.cache_resident
    }

    /// The least bytes over the median.
    pub fn throughput(&self) -> Throughput {
        Throughput { bytes_per_second: self.verified.plan().problem.bytes() as f64 / self.spread.median }
    }

    /// Fills a row's times. Percentages and the speedup need the run's other figures.
    pub(crate) fn fill(&self, row: &mut Row) {
        let (spread, samples) = (&self.spread, &self.samples);
        let median = |seconds: &[f64]| Spread::of(seconds).ok().map(|s| s.median);
        row.seconds = Some(spread.median);
        row.seconds_min = Some(spread.min);
        row.seconds_p10 = Some(spread.p10);
        row.seconds_p90 = Some(spread.p90);
        row.repeats = Some(spread.count as u64);
        row.bytes_per_second = Some(self.throughput().bytes_per_second());
        row.first_pass_seconds = median(&samples.first_pass_seconds);
        row.eager_seconds = median(&samples.eager_seconds);
        row.host = samples.host;
        row.launches = samples.launches;
        if self.cache_resident {
            row.marks.push(CACHE_RESIDENT.into());
        }
        if samples.launch_bound {
            row.marks.push("launch-bound".into());
        }
    }
}

/// The mark of a row whose inputs may have been in the last-level cache.
pub const CACHE_RESIDENT: &str = "cache-resident";

impl Throughput {
    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.bytes_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::cpu::CpuTarget;
    use crate::verify::{Evidence, verify_plan};
    use upsweep::device::caps::Caps;
    use upsweep::device::cpu::Cpu;
    use upsweep::flow::Tuning;
    use upsweep::ops::reduce::{Reduce, ReduceProblem};
    use upsweep::types::{DType, Operator};

    #[test]
    fn a_verified_plan_is_timed_on_its_own_device_only() {
        let cpu = Cpu::new();
        let Caps::Cpu(caps) = cpu.caps().clone() else { unreachable!("the CPU is no CUDA device") };
        let mut target = CpuTarget::new(caps.clone());
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 10_000).unwrap();
        let plan = Candidate::<Reduce>::ladder(cpu.caps()).last().unwrap().plan(&problem, cpu.caps(), Tuning::default()).unwrap();
        let verified = verify_plan(&mut target, &plan, &Evidence::new(&problem, 3).unwrap()).unwrap();
        let request = TimingRequest { warm_up: 1, repeats: 5, seed: 1, footprint: 1 << 20 };
        let timing = Timing::measure(&verified, &mut target, &request).unwrap();
        assert_eq!(timing.spread().count, 5);
        assert!(timing.throughput().bytes_per_second() > 0.0);
        let mut row = Row::default();
        timing.fill(&mut row);
        assert_eq!(row.seconds, Some(timing.spread().median));
        let mut other = CpuTarget::new(upsweep::device::caps::CpuCaps { name: "another".into(), ..caps });
        assert!(matches!(Timing::measure(&verified, &mut other, &request), Err(GateError::OtherDevice { .. })));
        // A time above the peak is an error of measurement, not a result.
        let peak = Peak { bytes_per_second: 1.0, source: "a test".into() };
        assert!(matches!(timing.check_against(Some(&peak)), Err(GateError::Measurement(_))));
        assert!(timing.check_against(None).is_ok());
    }
}
