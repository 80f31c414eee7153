//! The questions that are asked of softmaxes.

use crate::cases::{Form, Level, lengths_and_shifts};
use crate::families::Family;
use crate::judged::{Ask, Huge};
use crate::pairwise::Axes;
use std::fmt;
use upsweep::ops::reduce::oracle::{Expected, Near, Overflow};
use upsweep::ops::softmax::{DTYPES, Masked, Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::{DType, Operator};

const MASKED: [Masked; 2] = [Masked::Nan, Masked::Zero];

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The kind.
    pub kind: SoftmaxKind,
    /// The dtype.
    pub dtype: DType,
    /// What rows of only -inf give.
    pub masked: Masked,
    /// How the elements lie.
    pub form: Form,
    /// Elements of a row.
    pub length: u64,
    /// Elements between an aligned address and the base pointer.
    pub shift: u64,
    /// The data.
    pub family: Family,
    /// Into the input's own memory.
    pub in_place: bool,
}

impl Case {
    /// Five packed rows.
    pub fn rows(kind: SoftmaxKind, dtype: DType, family: Family, length: u64) -> Case {
        Case { kind, dtype, masked: Masked::Nan, form: Form::LastAxis, length, shift: 0, family, in_place: false }
    }
}

impl Ask<Softmax> for Case {
    fn problem(&self) -> upsweep::Result<SoftmaxProblem> {
        let (layout, axes) = self.form.geometry(self.length)?;
        // A whole array is one row.
        let axis = axes.and_then(|axes| axes.first().copied()).unwrap_or(-1);
        Ok(SoftmaxProblem::new(self.kind, self.dtype, &layout, axis)?.with_masked(self.masked))
    }

    fn operator(&self) -> &'static str {
        self.kind.name()
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn family(&self) -> Family {
        self.family
    }

    fn shift(&self) -> u64 {
        self.shift
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn form(&self) -> Form {
        self.form
    }

    fn in_place(&self) -> bool {
        self.in_place
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (form, family) = (self.form.name(), self.family.name());
        write!(f, "{} of {}, {form}, length {}, {family} data", self.kind, self.dtype, self.length)?;
        if self.masked == Masked::Zero {
            f.write_str(", masked rows zero")?;
        }
        if self.shift > 0 {
            write!(f, ", shifted by {} elements", self.shift)?;
        }
        if self.in_place {
            f.write_str(", in place")?;
        }
        Ok(())
    }
}

/// The cases of a level: a pairwise covering of kinds, dtypes, masks, forms, lengths, shifts, families and places.
pub(super) fn cases(level: Level) -> Vec<Case> {
    let (lengths, shifts) = lengths_and_shifts(level);
    if lengths.is_empty() {
        return vec![];
    }
    let forms: Vec<Form> = Form::ALL.into_iter().filter(|form| !form.has_several_axes()).collect();
    let families: Vec<Family> =
        Family::ALL.into_iter().filter(|f| f.suits_operator(Operator::LogSumExp) && f.suits_dtype(DType::F32)).collect();
    let places = [false, true];
    let allowed = |a: (usize, usize), b: (usize, usize)| {
        // Axes: 0 kind, 1 dtype, 2 masked, 3 form, 4 length, 5 shift, 6 family, 7 place.
        match (a.0, b.0) {
            (0, 7) => !places[b.1] || SoftmaxKind::ALL[a.1] != SoftmaxKind::LogSumExp,
            (3, 7) => !places[b.1] || forms[a.1].is_contiguous(),
            (3, 4) => lengths[b.1] <= forms[a.1].longest(),
            // Where there is no element a fault of large logits cannot show.
            (3, 6) => forms[a.1] != Form::NoRows || families[b.1] != Family::LargeLogits,
            (4, 6) => lengths[a.1] > 0 || families[b.1] != Family::LargeLogits,
            _ => true,
        }
    };
    let sizes = [
        SoftmaxKind::ALL.len(),
        DTYPES.len(),
        MASKED.len(),
        forms.len(),
        lengths.len(),
        shifts.len(),
        families.len(),
        places.len(),
    ];
    let case = |row: &Vec<usize>| Case {
        kind: SoftmaxKind::ALL[row[0]],
        dtype: DTYPES[row[1]],
        masked: MASKED[row[2]],
        form: forms[row[3]],
        length: lengths[row[4]],
        shift: shifts[row[5]],
        family: families[row[6]],
        in_place: places[row[7]],
    };
    let mut cases: Vec<Case> = Axes { sizes: &sizes, allowed: &allowed }.cover().rows.iter().map(case).collect();
    // The document's own rungs take packed rows: the same edges again for them, on data that all of them claim.
    for dtype in DTYPES {
        for (position, &length) in lengths.iter().enumerate() {
            let family = [Family::Signed, Family::Uniform, Family::Ties][position % 3];
            let kind = SoftmaxKind::ALL[position % 2];
            cases.push(Case { shift: shifts[position % shifts.len()], ..Case::rows(kind, dtype, family, length) });
            if length > 0 {
                cases.push(Case::rows(kind, dtype, Family::LargeLogits, length));
            }
        }
    }
    cases
}

/// Cases in which an order of additions that varies would show.
pub(super) fn determinism_cases(level: Level) -> Vec<Case> {
    let lengths: &[u64] = if level == Level::Full { &[1000, 16384, (1 << 20) + 13] } else { &[1000, (1 << 17) + 13] };
    let mut cases = vec![];
    for kind in [SoftmaxKind::Softmax, SoftmaxKind::LogSumExp] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            cases.extend(lengths.iter().map(|length| Case::rows(kind, dtype, Family::Signed, *length)));
        }
    }
    cases
}

/// Period of the huge cases' data: whole numbers that bf16 and f16 hold exactly.
const PERIOD: u64 = 251;

/// Period of data whose exponentials, and their sum over a row of usual length, f32 holds without a shift.
const SMALL_PERIOD: u64 = 61;

/// A row beyond 2^31 elements, rows that are beyond 2^32 together, and more rows than a grid's second dimension holds; for
/// the teaching rungs, rows of usual length and small logits, beyond 2^32 together. Where an element is marked it is
/// infinite, and its row is NaN.
pub(super) fn huge_cases() -> Vec<Huge<Softmax>> {
    let mut cases = vec![];
    let shapes = [
        (SoftmaxKind::Softmax, DType::Bf16, 1, (1 << 31) + 17, u64::MAX, PERIOD),
        (SoftmaxKind::LogSumExp, DType::F32, 1, (1 << 31) + 17, u64::MAX, PERIOD),
        (SoftmaxKind::Softmax, DType::F16, 70_000, 65_537, (1 << 32) + 7, PERIOD),
        (SoftmaxKind::LogSoftmax, DType::Bf16, 70_000, 65_537, u64::MAX, PERIOD),
        (SoftmaxKind::Softmax, DType::F32, (1 << 20) + 7, 4099, (1 << 32) + 7, SMALL_PERIOD),
    ];
    for (kind, dtype, rows, cols, marked, period) in shapes {
        let Ok(problem) = SoftmaxProblem::rows_of(kind, dtype, rows, cols) else { continue };
        let outputs = problem.output_len();
        let edges = [0u64, 1 << 31, 1 << 32].map(|edge| (edge.saturating_sub(200), 600));
        let mut windows: Vec<(u64, u64)> = edges.into_iter().filter(|(first, count)| first + count <= outputs).collect();
        let count = outputs.min(300);
        windows.push((outputs - count, count));
        cases.push(Huge { problem, period, marked, windows, answer });
    }
    cases
}

/// The answer in closed form, with the error that f32 accumulation and one rounding of the result allow.
fn answer(case: &Huge<Softmax>, output: u64) -> Expected {
    let problem = &case.problem;
    let (cols, period) = (problem.cols(), case.period);
    let (row, position) = if problem.kind() == SoftmaxKind::LogSumExp { (output, 0) } else { (output / cols, output % cols) };
    let first = row * cols;
    if (first..first + cols).contains(&case.marked) {
        return Expected::Nan;
    }
    let value = |index: u64| (index % period) as f64;
    // Every residue occurs cols / period times, and those of the last incomplete period once more.
    let (whole, rest) = (cols / period, cols % period);
    let times = |residue: u64| whole + u64::from((residue + period - first % period) % period < rest);
    let max = (0..period).filter(|residue| times(*residue) > 0).max().unwrap_or(0) as f64;
    let sum: f64 = (0..period).map(|residue| times(residue) as f64 * (residue as f64 - max).exp()).sum();
    let x = value(first + position);
    let result = match problem.kind() {
        SoftmaxKind::Softmax => (x - max).exp() / sum,
        SoftmaxKind::LogSoftmax => (x - max) - sum.ln(),
        SoftmaxKind::LogSumExp => max + sum.ln(),
    };
    let roundoff = problem.dtype().row().unit_roundoff;
    // An exponential's relative error, in units of 2^-24, is 4 + 3 |x - max| (kernels/softmax.cuh), and below e^-88 there are
    // only subnormal results, whose error is absolute; an element and its row's sum have one each, and the additions theirs.
    let exponential = 4.0 + 3.0 * (period as f64).min(88.0);
    let relative = roundoff + 2f64.powi(-24) * (2.0 * exponential + 64.0);
    let floor = if problem.dtype() == DType::F16 { 2f64.powi(-24) } else { 2f64.powi(-126) };
    Expected::Near(Near { value: result, bound: relative * result.abs().max(1e-300) + floor, overflow: Overflow::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparator::compare_outputs;
    use crate::judged::Judged;
    use std::collections::HashSet;

    #[test]
    fn every_case_can_be_asked() {
        for level in [Level::Quick, Level::Full] {
            let cases = cases(level);
            for case in &cases {
                let problem = case.problem().unwrap_or_else(|e| panic!("{case}: {e}"));
                assert!(problem.required_len() < 1 << 26, "{case}");
                if case.in_place && problem.output_len() > 0 {
                    problem.check_in_place().unwrap_or_else(|e| panic!("{case}: {e}"));
                }
            }
            let met = |f: &dyn Fn(&Case) -> String| cases.iter().map(f).collect::<HashSet<_>>().len();
            assert_eq!(met(&|c| c.kind.to_string()), SoftmaxKind::ALL.len());
            assert_eq!(met(&|c| c.dtype.to_string()), DTYPES.len());
            assert!(
                cases.iter().any(|c| c.family == Family::LargeLogits) && cases.iter().any(|c| c.family == Family::DeepLogits)
            );
        }
        assert!(cases(Level::Quick).len() < 500);
    }

    #[test]
    fn data_of_every_quick_case_can_be_made() {
        for case in cases(Level::Quick).iter().filter(|c| c.length < 5000) {
            case.input(&case.problem().unwrap(), 1).unwrap_or_else(|e| panic!("{case}: {e}"));
        }
    }

    /// The closed form stands for the oracle: on small rows both accept the same outputs.
    #[test]
    fn closed_forms_match_the_oracle() {
        for kind in SoftmaxKind::ALL {
            for (rows, cols, period) in [(3, 40, PERIOD), (2, 251, PERIOD), (4, 777, PERIOD), (3, 500, SMALL_PERIOD)] {
                let problem = SoftmaxProblem::rows_of(kind, DType::F32, rows, cols).unwrap();
                let windows = vec![(0, problem.output_len())];
                let marked = cols + 5;
                let case = Huge::<Softmax> { problem: problem.clone(), period, marked, windows, answer };
                let data: Vec<f32> =
                    (0..rows * cols).map(|i| if i == marked { f32::INFINITY } else { (i % period) as f32 }).collect();
                let oracle = Softmax::reference(&problem, (&data[..]).into(), None).unwrap();
                let right: Vec<u8> = oracle
                    .iter()
                    .flat_map(|expected| match expected {
                        Expected::Near(near) => (near.value as f32).to_ne_bytes(),
                        _ => f32::NAN.to_ne_bytes(),
                    })
                    .collect();
                let infinite = kind == SoftmaxKind::LogSumExp;
                if infinite {
                    continue;
                }
                compare_outputs(&case.expected(), &right, DType::F32).unwrap_or_else(|e| panic!("{problem}: {e}"));
            }
        }
    }
}
