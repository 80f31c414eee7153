//! Softmax before the judge.

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
use upsweep::flow::{Expect, HostSlice, Rung};
use upsweep::ops::reduce::oracle::Expected;
use upsweep::ops::softmax::oracle::reference;
use upsweep::ops::softmax::{DTYPES, Masked, Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::{DType, Layout, Operator};

/// Elements of a row in a ladder, where the number of elements is given.
const LADDER_ROW: u64 = 4096;

/// The kind of a name.
fn kind(name: &str) -> Result<SoftmaxKind> {
    SoftmaxKind::from_name(name).ok_or_else(|| unknown_operator::<Softmax>(name))
}

impl Judged for Softmax {
    type Case = Case;

    fn operators() -> Vec<&'static str> {
        SoftmaxKind::ALL.into_iter().map(SoftmaxKind::name).collect()
    }

    fn typical_operators() -> &'static [&'static str] {
        &["softmax", "log_softmax"]
    }

    fn cpu_sweep() -> Vec<Point> {
        let rows = [(16, 6), (14, 12), (6, 20)].map(|(i, j)| Point::rows(1 << i, 1 << j));
        rows.into_iter().chain([Point::columns(1 << 12, 1 << 12)]).collect()
    }

    fn cuda_sweep() -> Vec<Point> {
        let rows = [(20, 6), (18, 10), (16, 12), (14, 14), (10, 18)].map(|(i, j)| Point::rows(1 << i, 1 << j));
        rows.into_iter().chain([Point::rows(4096, 50_257), Point::columns(1 << 14, 1 << 14)]).collect()
    }

    fn operator_of(problem: &SoftmaxProblem) -> &'static str {
        problem.kind().name()
    }

    fn elements(problem: &SoftmaxProblem) -> u64 {
        problem.rows() * problem.cols()
    }

    fn traffic(problem: &SoftmaxProblem) -> Traffic {
        if problem.kind() == SoftmaxKind::LogSumExp { Traffic::Read } else { Traffic::Copy }
    }

    fn takes_data(rung: &Rung<Softmax>, family: Family) -> std::result::Result<(), String> {
        let small = family.logits_are_small() || family == Family::LargeLogits;
        match rung.expect {
            Expect::Rejected(_) if rung.number != "wrong" && !small => Err("it claims finite small logits".into()),
            _ => Ok(()),
        }
    }

    fn cases(level: Level) -> Vec<Case> {
        cases::cases(level)
    }

    fn determinism_cases(level: Level) -> Vec<Case> {
        cases::determinism_cases(level)
    }

    fn huge_cases() -> Vec<Huge<Softmax>> {
        cases::huge_cases()
    }

    fn faults() -> Vec<Fault<Softmax>> {
        wrong::faults()
    }

    fn wrong_on_cpu() -> Vec<Candidate<Softmax>> {
        wrong::on_cpu()
    }

    #[cfg(any(feature = "cuda", feature = "sim"))]
    fn wrong_on_cuda() -> Vec<Candidate<Softmax>> {
        wrong_cuda::candidates()
    }

    fn reference(problem: &SoftmaxProblem, input: HostSlice<'_>, _: Option<HostSlice<'_>>) -> upsweep::Result<Vec<Expected>> {
        reference(problem, input)
    }

    fn make(problem: &SoftmaxProblem, family: Family, seed: u64, shift: u64) -> Result<Input> {
        let (dtype, required_len) = (problem.dtype(), problem.required_len());
        Rows { shape: problem.shape(), dtype, operator: Operator::LogSumExp, required_len }.make(family, seed, shift)
    }

    fn evidence(_: &SoftmaxProblem) -> [Family; 2] {
        // Small logits: the unshifted rung is timed as well.
        [Family::Signed, Family::Ties]
    }

    fn lowering_problems() -> Result<Vec<SoftmaxProblem>> {
        let mut problems = vec![];
        for kind in SoftmaxKind::ALL {
            for dtype in DTYPES {
                for cols in [
                    1,
                    2,
                    3,
                    4,
                    8,
                    15,
                    16,
                    33,
                    64,
                    100,
                    128,
                    256,
                    333,
                    512,
                    1000,
                    1024,
                    2048,
                    4096,
                    5000,
                    8192,
                    16384,
                    16383,
                    32768,
                    65536,
                    1 << 20,
                ] {
                    problems.push(SoftmaxProblem::rows_of(kind, dtype, 1000, cols)?);
                }
                for shape in [[33, 1000], [5000, 100], [200_000, 3]] {
                    problems.push(SoftmaxProblem::new(kind, dtype, &Layout::contiguous(&shape)?, 0)?);
                }
            }
        }
        let masked: Vec<_> = problems.iter().map(|p| p.clone().with_masked(Masked::Zero)).collect();
        problems.extend(masked);
        Ok(problems)
    }

    fn state_sizes() -> Vec<(String, u64)> {
        upsweep::ops::softmax::state_sizes()
    }

    fn peer_problem(problem: &SoftmaxProblem) -> Option<PeerProblem> {
        let plain = problem.is_contiguous() && problem.rows_are_plain() && problem.shape().offset == 0;
        let (rows, columns, output_dtype) = (problem.rows(), problem.cols(), problem.output_dtype());
        plain.then_some(PeerProblem { what: problem.kind().name().into(), rows, columns, output_dtype })
    }

    fn point_of_size(n: u64) -> Point {
        let columns = n.min(LADDER_ROW);
        Point::rows(n.checked_div(columns).unwrap_or(0), columns)
    }

    fn problem_at(name: &str, dtype: DType, point: &Point) -> Result<SoftmaxProblem> {
        let (layout, axis) = point.layout()?;
        Ok(SoftmaxProblem::new(kind(name)?, dtype, &layout, axis.unwrap_or(-1))?)
    }
}
