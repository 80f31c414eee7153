//! The ladder: every rung at one size, each verified and then timed.

use crate::error::Result;
use crate::record::Record;
use crate::target::Target;
use crate::verify::{Context, OnProgress};
use upsweep::types::{DType, Operator};

/// What [`climb`] is asked.
#[derive(Clone, Debug)]
pub struct ClimbOptions {
    /// Elements.
    pub n: u64,
    /// Element type.
    pub dtype: DType,
    /// Operators; each gets its own rows.
    pub operators: Vec<Operator>,
    /// Rungs, by number, name or `number-name`; empty means all.
    pub rungs: Vec<String>,
    /// Threads of a block; `None`: the best of a small sweep, reported in each row.
    pub block: Option<u32>,
    /// Timed calls of a rung.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

/// Climbs the ladder of a device. A rung that fails has a row with `failure` and no time.
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn climb(_target: &mut dyn Target, _options: &ClimbOptions, _context: &Context, _progress: OnProgress<'_>) -> Result<Record> {
    unimplemented!()
}
