//! Reduction: many elements to one value by an associative operator, over a whole array or along a set of axes.

#[cfg(feature = "cpu")]
mod cpu;
mod ladder;
pub mod operators;
pub mod oracle;
mod plan;
mod problem;

pub use plan::{Schedule, plan};
pub use problem::{ReduceOperands, ReduceProblem};

use crate::device::caps::CudaCaps;
use crate::error::Result;
use crate::flow::{Op, Plan, Program, Rung, Tuning};

/// The reduction operation.
#[derive(Debug)]
pub enum Reduce {}

/// A CPU rung: reduces the operands, which were checked against the problem.
pub type HostBody = fn(&ReduceProblem, ReduceOperands<'_>) -> Result<()>;
/// A rung of the reduction ladder.
pub type ReduceRung = Rung<Reduce>;
/// A plan of a reduction.
pub type ReducePlan = Plan<Reduce>;

impl Op for Reduce {
    const NAME: &'static str = "reduce";
    type Problem = ReduceProblem;
    type Schedule = Schedule;
    type HostBody = HostBody;

    fn ladder() -> &'static [ReduceRung] {
        ladder::LADDER
    }

    fn claim(rung: &ReduceRung, problem: &ReduceProblem) -> Result<()> {
        plan::claim(rung, problem)
    }

    fn lower(
        rung: &'static ReduceRung,
        schedule: &Schedule,
        problem: &ReduceProblem,
        caps: &CudaCaps,
        tuning: Tuning,
    ) -> Result<Program> {
        plan::lower(rung, schedule, problem, caps, tuning)
    }
}
