//! The host processor as a [`Target`].

use crate::error::Result;
use crate::record::{Ceiling, Device, Peak};
use crate::target::{Input, Observed, RunRequest, Samples, Target, TimingRequest};
use crate::verify::Verified;
use upsweep::device::caps::{Caps, CpuCaps};
use upsweep::ops::reduce::ReducePlan;

/// The host processor.
#[derive(Debug)]
pub struct CpuTarget {
    caps: CpuCaps,
}

impl CpuTarget {
    /// The machine this runs on, with rayon's current pool.
    pub fn new(caps: CpuCaps) -> CpuTarget {
        CpuTarget { caps }
    }
}

impl Target for CpuTarget {
    fn caps(&self) -> Caps {
        Caps::Cpu(self.caps.clone())
    }
    fn describe(&self) -> Device {
        unimplemented!()
    }
    fn peak(&self) -> Option<Peak> {
        None
    }
    fn cache_bytes(&self) -> u64 {
        unimplemented!()
    }
    fn blocks(&self) -> &[u32] {
        &[]
    }
    fn run(&mut self, _: &ReducePlan, _: &Input, _: RunRequest) -> Result<Observed> {
        unimplemented!()
    }
    fn time(&mut self, _: &Verified, _: &TimingRequest) -> Result<Samples> {
        unimplemented!()
    }
    fn ceiling(&mut self, _: u64, _: u32) -> Result<Ceiling> {
        unimplemented!()
    }
}
