//! Times and throughputs, which only a verification opens.

use crate::error::Result;
use crate::statistics::Spread;
use crate::target::{Samples, Target, TimingRequest};
use crate::verify::Verified;

/// Measured seconds of a verified plan.
#[derive(Clone, Debug)]
pub struct Timing {
    verified: Verified,
    spread: Spread,
    samples: Samples,
}

/// Bytes per second of a verified plan.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Throughput {
    bytes_per_second: f64,
}

impl Timing {
    /// Times a verified plan on the device that it was verified on.
    ///
    /// # Errors
    /// [`crate::GateError::OtherDevice`]; [`crate::GateError::Measurement`] for times that cannot be.
    pub fn measure(verified: &Verified, target: &mut dyn Target, request: &TimingRequest) -> Result<Timing> {
        let samples = target.time(verified, request)?;
        let spread = Spread::of(&samples.seconds)?;
        Ok(Timing { verified: verified.clone(), spread, samples })
    }

    /// Median, minimum, percentiles.
    pub fn spread(&self) -> &Spread {
        &self.spread
    }

    /// What was verified and timed.
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    /// The samples and what else was seen.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The least bytes over the median.
    pub fn throughput(&self) -> Throughput {
        Throughput { bytes_per_second: self.verified.plan().problem.bytes() as f64 / self.spread.median }
    }
}

impl Throughput {
    /// Bytes per second.
    pub fn bytes_per_second(self) -> f64 {
        self.bytes_per_second
    }
}
