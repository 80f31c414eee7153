//! The planner's choice over a sweep of sizes and shapes.

use crate::error::Result;
use crate::record::Record;
use crate::target::Target;
use crate::verify::{Context, OnProgress};
use upsweep::types::{DType, Operator};

/// What [`bench`] is asked: every operator, dtype and shape that go together.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Operators.
    pub operators: Vec<Operator>,
    /// Dtypes.
    pub dtypes: Vec<DType>,
    /// Whole arrays of so many elements.
    pub sizes: Vec<u64>,
    /// Arrays of rows and columns, reduced along the last axis.
    pub rows: Vec<(u64, u64)>,
    /// The same, reduced along the first axis.
    pub columns: Vec<(u64, u64)>,
    /// Timed calls.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

/// Verifies and times the planner's choice for each problem.
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn bench(_target: &mut dyn Target, _options: &BenchOptions, _context: &Context, _progress: OnProgress<'_>) -> Result<Record> {
    unimplemented!()
}
