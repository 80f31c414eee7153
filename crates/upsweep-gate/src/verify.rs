//! Verification: cases against the oracle, determinism, wrong kernels; and the token that a pass makes.

use crate::cases::Level;
use crate::error::{GateError, Result};
use crate::record::{Record, RungSummary, VerifySummary, WrongKernel};
use crate::target::Target;
use std::fmt;
use upsweep::ops::reduce::ReducePlan;
use upsweep::types::{DType, Operator};

/// Which part of the ladder is judged; an empty list means all.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Operators.
    pub operators: Vec<Operator>,
    /// Dtypes.
    pub dtypes: Vec<DType>,
    /// Rungs, by number, name or `number-name`.
    pub rungs: Vec<String>,
}

/// What the command line adds to a record.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The command line.
    pub command: String,
    /// The commit the binary was built from.
    pub commit: String,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
    /// What is being done, for instance `3-threads: sum of f32 over 1025 elements`.
    pub what: String,
}

/// Called before each step.
pub type OnProgress<'a> = &'a mut dyn FnMut(Progress);

/// What [`verify`] is asked.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Which part of the ladder.
    pub selection: Selection,
    /// How many cases.
    pub level: Level,
    /// The seed that every datum follows from.
    pub seed: u64,
    /// Judge the judge too.
    pub wrong_kernels: bool,
}

/// What [`verify`] found.
#[derive(Clone, Debug)]
pub struct VerifyReport {
    /// Counts over all rungs.
    pub summary: VerifySummary,
    /// Each rung.
    pub rungs: Vec<RungSummary>,
    /// Each wrong kernel.
    pub wrong_kernels: Vec<WrongKernel>,
    /// The seed.
    pub seed: u64,
}

impl VerifyReport {
    /// Every rung passed (none failed, none unverified) and every wrong kernel was rejected.
    pub fn passed(&self) -> bool {
        self.rungs.iter().all(|r| r.verdict == "passed") && self.wrong_kernels.iter().all(|w| w.rejected)
    }

    /// The report as a record.
    pub fn into_record(self, _target: &dyn Target, _context: &Context) -> Record {
        unimplemented!()
    }
}

/// Why a rung was not verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejection {
    /// `number-name`.
    pub rung: String,
    /// The case.
    pub case: String,
    /// What was wrong.
    pub why: String,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not verified: {}: {}", self.rung, self.case, self.why)
    }
}

/// Proof that a plan gave right results on a device in this process. Only [`verify_plan`] makes one.
#[derive(Clone, Debug)]
pub struct Verified {
    plan: ReducePlan,
    device: String,
}

impl Verified {
    /// The plan that was verified: rung, operator, dtype, shape and launches.
    pub fn plan(&self) -> &ReducePlan {
        &self.plan
    }

    /// The device it was verified on.
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Judges the ladder of a device.
///
/// # Errors
/// [`GateError::Library`] for a selection that names no rung, and for what the driver refuses. Wrong answers are not
/// errors: they are in the report.
pub fn verify(_target: &mut dyn Target, _options: &VerifyOptions, _progress: OnProgress<'_>) -> Result<VerifyReport, GateError> {
    unimplemented!()
}
