//! Reduction before the judge.

mod cases;
mod wrong;
#[cfg(feature = "cuda")]
mod wrong_cuda;

pub use cases::Case;

use crate::candidate::Candidate;
use crate::cases::Level;
use crate::error::Result;
use crate::families::{Family, Rows};
use crate::judged::{Fault, Huge, Judged, PeerProblem, Sweep, Traffic, unknown_operator};
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

    fn cpu_sweep() -> Sweep {
        let square = vec![(1 << 12, 1 << 12)];
        Sweep { sizes: vec![1 << 10, 1 << 16, 1 << 20, 1 << 24], rows: square.clone(), columns: square }
    }

    fn cuda_sweep() -> Sweep {
        Sweep {
            sizes: vec![1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28],
            rows: vec![(1 << 20, 1 << 8), (1 << 14, 1 << 14), (1 << 8, 1 << 20)],
            columns: vec![(1 << 14, 1 << 14)],
        }
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

    #[cfg(feature = "cuda")]
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
            Operator::Sum | Operator::Mean | Operator::LogSumExp | Operator::LinearRecurrence => [Family::Signed, Family::Offset],
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

    fn ladder_problem(name: &str, dtype: DType, n: u64) -> Result<(String, ReduceProblem)> {
        Ok((n.to_string(), ReduceProblem::whole(operator(name)?, dtype, n)?))
    }

    fn sweep(name: &str, dtype: DType, sweep: &Sweep) -> Result<Vec<(String, ReduceProblem)>> {
        let operator = operator(name)?;
        let mut problems = vec![];
        for &n in &sweep.sizes {
            problems.push((n.to_string(), ReduceProblem::whole(operator, dtype, n)?));
        }
        for (shapes, axis, words) in [(&sweep.rows, -1, "last"), (&sweep.columns, 0, "first")] {
            for &(rows, columns) in shapes {
                let layout = Layout::contiguous(&[rows, columns])?;
                let problem = ReduceProblem::new(operator, dtype, &layout, Some(&[axis]))?;
                problems.push((format!("{rows} x {columns}, {words} axis"), problem));
            }
        }
        Ok(problems)
    }
}
