//! Reduction before the judge.

mod cases;
mod wrong;
#[cfg(any(feature = "cuda", feature = "sim"))]
mod wrong_cuda;

pub use cases::Case;

use crate::candidate::Candidate;
use crate::cases::Level;
use crate::error::Result;
use crate::families::{Family, Rows};
use crate::judged::{Fault, Huge, Judged, PeerProblem, Traffic, unknown_operator};
use crate::points::Point;
use crate::target::Input;
use upsweep::flow::HostSlice;
use upsweep::ops::reduce::oracle::{Expected, reference};
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::types::{Accuracy, DType, Layout, Operator};

/// The operator of a name.
fn operator(name: &str) -> Result<Operator> {
    Operator::from_name(name).filter(|operator| operator.row().reduces).ok_or_else(|| unknown_operator::<Reduce>(name))
}

impl Judged for Reduce {
    type Case = Case;

    fn operators() -> Vec<&'static str> {
        Operator::reductions().map(Operator::name).collect()
    }

    fn typical_operators() -> &'static [&'static str] {
        &["sum", "max", "argmax", "logsumexp"]
    }

    fn cpu_sweep() -> Vec<Point> {
        let sizes = [10, 16, 20, 24].map(|k| Point::whole(1 << k));
        sizes.into_iter().chain([Point::rows(1 << 12, 1 << 12), Point::columns(1 << 12, 1 << 12)]).collect()
    }

    fn cuda_sweep() -> Vec<Point> {
        let sizes = [10, 16, 20, 24, 26, 28].map(|k| Point::whole(1 << k));
        let rows = [(20, 8), (14, 14), (8, 20)].map(|(i, j)| Point::rows(1 << i, 1 << j));
        sizes.into_iter().chain(rows).chain([Point::columns(1 << 14, 1 << 14)]).collect()
    }

    fn operator_of(problem: &ReduceProblem) -> &'static str {
        problem.operator().name()
    }

    fn elements(problem: &ReduceProblem) -> u64 {
        problem.shape().outputs * problem.shape().length
    }

    fn traffic(_: &ReduceProblem) -> Traffic {
        Traffic::Read
    }

    fn cases(level: Level) -> Vec<Case> {
        cases::cases(level)
    }

    fn determinism_cases(level: Level) -> Vec<Case> {
        cases::determinism_cases(level)
    }

    fn huge_cases() -> Vec<Huge<Reduce>> {
        cases::huge_cases()
    }

    fn faults() -> Vec<Fault<Reduce>> {
        wrong::faults()
    }

    fn wrong_on_cpu() -> Vec<Candidate<Reduce>> {
        wrong::on_cpu()
    }

    #[cfg(any(feature = "cuda", feature = "sim"))]
    fn wrong_on_cuda() -> Vec<Candidate<Reduce>> {
        wrong_cuda::candidates()
    }

    fn reference(problem: &ReduceProblem, input: HostSlice<'_>, _: Option<HostSlice<'_>>) -> upsweep::Result<Vec<Expected>> {
        reference(problem, input)
    }

    fn make(problem: &ReduceProblem, family: Family, seed: u64, shift: u64) -> Result<Input> {
        let (dtype, operator) = (problem.dtype(), problem.operator());
        Rows { shape: problem.shape(), dtype, operator, required_len: problem.required_len() }.make(family, seed, shift)
    }

    fn evidence(problem: &ReduceProblem) -> [Family; 2] {
        match problem.operator() {
            Operator::Prod | Operator::WrappingProd => [Family::Signed, Family::Uniform],
            Operator::ArgMin | Operator::ArgMax => [Family::Signed, Family::Ties],
            Operator::Min | Operator::Max | Operator::NanMin | Operator::NanMax => [Family::Signed, Family::Growing],
            Operator::WrappingSum => [Family::Uniform, Family::Alternating],
            Operator::Sum | Operator::Mean | Operator::LogSumExp | Operator::LinearRecurrence | Operator::User => {
                [Family::Signed, Family::Offset]
            }
        }
    }

    fn lowering_problems() -> Result<Vec<ReduceProblem>> {
        let mut problems = vec![];
        for operator in Operator::reductions() {
            for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
                for length in [1, 1000, 1 << 17, 1 << 20, 1 << 28] {
                    problems.push(ReduceProblem::whole(operator, dtype, length)?);
                }
                // Rows for a warp, for a block, of several chunks, and of so many chunks that a block adds them.
                for shape in [[3, 33], [3, 5000], [2, 200_000], [2, 100_000_000]] {
                    problems.push(ReduceProblem::new(operator, dtype, &Layout::contiguous(&shape)?, Some(&[1]))?);
                }
            }
        }
        let compensated = |p: &ReduceProblem| p.clone().with_accuracy(Accuracy::Compensated).ok();
        let compensated: Vec<_> = problems.iter().filter_map(compensated).collect();
        problems.extend(compensated);
        Ok(problems)
    }

    fn state_sizes() -> Vec<(String, u64)> {
        upsweep::ops::reduce::state_sizes()
    }

    fn peer_problem(problem: &ReduceProblem) -> Option<PeerProblem> {
        let shape = problem.shape();
        let contiguous = shape.whole && shape.rows_are_contiguous() && shape.offset == 0;
        let (operator, dtype) = (problem.operator(), problem.dtype());
        // A peer that sums 16-bit floats returns f32: it is held to the f32 result of the same elements.
        let output_dtype = if operator == Operator::Sum && dtype.size() == 2 { DType::F32 } else { problem.output_dtype() };
        let what = format!("reduce {}", operator.name());
        contiguous.then_some(PeerProblem { what, rows: 1, columns: shape.length, output_dtype })
    }

    fn problem_at(name: &str, dtype: DType, point: &Point) -> Result<ReduceProblem> {
        let (layout, axis) = point.layout()?;
        Ok(ReduceProblem::new(operator(name)?, dtype, &layout, axis.as_ref().map(std::slice::from_ref))?)
    }
}
