//! Scan before the judge.

mod cases;
mod second;
mod wrong;
#[cfg(any(feature = "cuda", feature = "sim"))]
mod wrong_cuda;

pub use cases::{Case, Mode};
pub use second::{Coefficients, Runs, Second};

use crate::candidate::Candidate;
use crate::cases::Level;
use crate::error::Result;
use crate::families::{Family, Rows};
use crate::goals::Goal;
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

/// What a name asks of `n` elements: an operator's, `exclusive_sum`, `sum_by_key` (keys of i32), or `sum_in_segments_of_1024` (offsets of
/// segments of so many elements on average).
fn asked(name: &str, n: u64) -> Result<ScanSpec> {
    let mean = name.rsplit_once("_in_segments_of_").and_then(|(plain, mean)| Some((plain, mean.parse::<u64>().ok()?)));
    match (name.strip_suffix("_by_key"), mean) {
        (Some(plain), _) => Ok(ScanSpec::inclusive(operator(plain)?).by_key(DType::I32)),
        (_, Some((plain, mean @ 1..))) => Ok(ScanSpec::inclusive(operator(plain)?).by_offsets(n.div_ceil(mean))),
        _ => match name.strip_prefix("exclusive_") {
            Some(plain) => Ok(ScanSpec::exclusive(operator(plain)?)),
            None => Ok(ScanSpec::inclusive(operator(name)?)),
        },
    }
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

    fn goals() -> Vec<Goal> {
        use DType::{Bf16, F16, F32, F64, I32, I64};
        let whole = |exponent: u32| Point::whole(1 << exponent);
        let percent = |operator, dtype, point, least| Goal::percent(operator, dtype, point, least);
        let mut goals = vec![
            percent("sum", F32, whole(28), 99.0),
            percent("exclusive_sum", F32, whole(28), 99.0),
            percent("wrapping_sum", I32, whole(28), 99.0),
            percent("sum", F32, whole(30), 99.0),
            Goal::microseconds("sum", F32, whole(24), 38.0),
            Goal::microseconds("sum", F32, whole(20), 6.2),
            Goal::microseconds("sum", F32, whole(16), 3.4),
            percent("sum", I64, whole(28), 97.0),
            percent("sum", F64, whole(28), 97.0),
            percent("sum", F16, whole(28), 92.0),
            percent("sum", Bf16, whole(28), 92.0),
            percent("max", F32, whole(28), 95.0),
            percent("linear_recurrence", F32, whole(28), 95.0),
            percent("sum", I32, whole(28), 95.0),
            percent("sum_by_key", F32, whole(28), 90.0),
        ];
        for in_segments in ["sum_in_segments_of_8", "sum_in_segments_of_1024", "sum_in_segments_of_1048576"] {
            goals.push(percent(in_segments, F32, whole(28), 85.0));
        }
        let shapes = [(1 << 16, 1 << 12, 97.0), (1 << 20, 1 << 7, 97.0), (1 << 7, 1 << 20, 95.0), (1 << 14, 1 << 14, 97.0)];
        for (rows, columns, least) in shapes {
            goals.push(percent("sum", F32, Point::rows(rows, columns), least));
        }
        goals.extend(shapes.map(|(rows, columns, _)| percent("sum", F32, Point::columns(rows, columns), 93.0)));
        goals
    }

    fn can_be_timed(name: &str) -> bool {
        asked(name, 1).is_ok()
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

    #[cfg(any(feature = "cuda", feature = "sim"))]
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
        // Keys of every width, and offsets.
        let second = [DType::U8, DType::I32, DType::U64].map(Some).into_iter().chain([None]);
        let segmented = |spec: ScanSpec, keys: Option<DType>| keys.map_or(spec.by_offsets(9), |dtype| spec.by_key(dtype));
        for operator in OPERATORS {
            for dtype in DType::all().filter(|dtype| operator.accepts(*dtype)) {
                // Every operator and dtype once; the other direction, and few tiles, change nothing that depends on them.
                let forward = ScanSpec::inclusive(operator);
                let others = [(forward, 1 << 17), (forward.reversed(), 1 << 17), (forward.reversed(), 1 << 28)];
                let others = others.into_iter().filter(|_| operator == Operator::Sum);
                for (spec, length) in others.chain([(forward, 1 << 28)]) {
                    for keys in second.clone() {
                        problems.push(ScanProblem::whole(segmented(spec, keys), dtype, length)?);
                    }
                }
            }
        }
        for operator in OPERATORS.into_iter().chain([Operator::LinearRecurrence]) {
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
        Ok(ScanProblem::new(asked(name, point.elements())?, dtype, &layout, axis)?)
    }
}
