//! Scan before the judge.

mod cases;
mod second;
mod wrong;
#[cfg(feature = "cuda")]
mod wrong_cuda;

pub use cases::{Case, Mode};
pub use second::{Coefficients, Runs, Second};

use crate::candidate::Candidate;
use crate::cases::Level;
use crate::error::Result;
use crate::families::{Family, Rows};
use crate::judged::{Fault, Huge, Judged, PeerProblem, Traffic, unknown_operator};
use crate::points::Point;
use crate::target::Input;
use upsweep::flow::HostSlice;
use upsweep::ops::reduce::oracle::Expected;
use upsweep::ops::scan::oracle::reference;
use upsweep::ops::scan::{OPERATORS, Scan, ScanKind, ScanProblem, ScanSpec};
use upsweep::types::{DType, Layout, Operator};

/// The operators that scan, over one input or two.
fn operators() -> impl Iterator<Item = Operator> {
    OPERATORS.into_iter().chain([Operator::LinearRecurrence])
}

/// The operator of a name.
fn operator(name: &str) -> Result<Operator> {
    let known = operators().find(|operator| operator.name() == name);
    known.ok_or_else(|| unknown_operator::<Scan>(name))
}

fn first_input(problem: &ScanProblem, family: Family, seed: u64, shift: u64) -> Result<Input> {
    let (dtype, operator) = (problem.dtype(), problem.operator());
    Rows { shape: problem.shape(), dtype, operator, required_len: problem.required_len() }.make(family, seed, shift)
}

impl Judged for Scan {
    type Case = Case;

    fn operators() -> Vec<&'static str> {
        operators().map(Operator::name).collect()
    }

    fn typical_operators() -> &'static [&'static str] {
        &["sum", "max"]
    }

    fn cpu_sweep() -> Vec<Point> {
        let sizes = [10, 16, 20, 24, 26].map(|k| Point::whole(1 << k));
        sizes.into_iter().chain([Point::rows(1 << 12, 1 << 12), Point::columns(1 << 12, 1 << 12)]).collect()
    }

    fn cuda_sweep() -> Vec<Point> {
        let sizes = [10, 16, 20, 24, 26, 28].map(|k| Point::whole(1 << k));
        let shapes = [Point::rows(1 << 20, 1 << 8), Point::rows(1 << 14, 1 << 14), Point::columns(1 << 14, 1 << 14)];
        sizes.into_iter().chain(shapes).collect()
    }

    fn operator_of(problem: &ScanProblem) -> &'static str {
        problem.operator().name()
    }

    fn elements(problem: &ScanProblem) -> u64 {
        problem.output_len()
    }

    fn traffic(_: &ScanProblem) -> Traffic {
        Traffic::Copy
    }

    fn cases(level: Level) -> Vec<Case> {
        cases::cases(level)
    }

    fn determinism_cases(level: Level) -> Vec<Case> {
        cases::determinism_cases(level)
    }

    fn huge_cases() -> Vec<Huge<Scan>> {
        cases::huge_cases()
    }

    fn faults() -> Vec<Fault<Scan>> {
        wrong::faults()
    }

    fn wrong_on_cpu() -> Vec<Candidate<Scan>> {
        wrong::on_cpu()
    }

    #[cfg(feature = "cuda")]
    fn wrong_on_cuda() -> Vec<Candidate<Scan>> {
        wrong_cuda::candidates()
    }

    fn reference(problem: &ScanProblem, input: HostSlice<'_>, second: Option<HostSlice<'_>>) -> upsweep::Result<Vec<Expected>> {
        reference(problem, input, second)
    }

    fn make_second(problem: &ScanProblem, _: Family, seed: u64, shift: u64) -> Result<Option<Input>> {
        second::usual(problem, seed, shift)
    }

    fn make(problem: &ScanProblem, family: Family, seed: u64, shift: u64) -> Result<Input> {
        let second = Self::make_second(problem, family, seed, shift)?;
        Ok(first_input(problem, family, seed, shift)?.and(second))
    }

    fn evidence(problem: &ScanProblem) -> [Family; 2] {
        match problem.operator() {
            Operator::Prod | Operator::WrappingProd => [Family::Signed, Family::Uniform],
            Operator::Min | Operator::Max => [Family::Signed, Family::Growing],
            Operator::WrappingSum => [Family::Uniform, Family::Alternating],
            _ => [Family::Signed, Family::Offset],
        }
    }

    fn lowering_problems() -> Result<Vec<ScanProblem>> {
        let mut problems = vec![];
        for operator in OPERATORS {
            for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
                let inclusive = ScanSpec::inclusive(operator);
                for spec in [inclusive, inclusive.reversed(), ScanSpec::exclusive(operator)] {
                    for length in [1, 1000, 1 << 17, 1 << 20, 1 << 28] {
                        problems.push(ScanProblem::whole(spec, dtype, length)?);
                    }
                    // Rows for a warp, a block and tiles; columns that are walked down, and that look ahead or are cut.
                    for (shape, axis) in [
                        ([3, 33], 1),
                        ([3, 5000], 1),
                        ([3, 40_000], 1),
                        ([700, 8192], 0),
                        ([700, 3], 0),
                        ([100, 8192], 0),
                        ([5000, 12], 0),
                    ] {
                        problems.push(ScanProblem::new(spec, dtype, &Layout::contiguous(&shape)?, Some(axis))?);
                    }
                }
            }
        }
        Ok(problems)
    }

    fn state_sizes() -> Vec<(String, u64)> {
        upsweep::ops::scan::state_sizes()
    }

    fn peer_problem(problem: &ScanProblem) -> Option<PeerProblem> {
        let plain = problem.is_contiguous_row() && problem.shape().offset == 0 && !problem.reverse();
        let inclusive = problem.kind() == ScanKind::Inclusive && problem.initial().is_none();
        let plain = plain && problem.second_input().is_none();
        let what = format!("scan inclusive {}", problem.operator().name());
        let output_dtype = problem.output_dtype();
        (plain && inclusive).then_some(PeerProblem { what, rows: 1, columns: problem.length(), output_dtype })
    }

    fn problem_at(name: &str, dtype: DType, point: &Point) -> Result<ScanProblem> {
        let (layout, axis) = point.layout()?;
        Ok(ScanProblem::new(ScanSpec::inclusive(operator(name)?), dtype, &layout, axis)?)
    }
}
