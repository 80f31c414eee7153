//! What is asked of a rung: the list of cases. A rung's claims decide which of them it takes.

use crate::families::{self, Family};
use crate::pairwise::Axes;
use crate::target::Input;
use std::fmt;
use upsweep::ops::reduce::ReduceProblem;
use upsweep::types::{Accuracy, DType, Layout, Operator};

/// How many cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A pairwise covering of few lengths: a few seconds on two cores.
    Quick,
    /// A pairwise covering of every axis.
    Full,
    /// Beyond 2^31 elements; devices that make their own data only.
    Huge,
}

impl Level {
    /// Name in the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Level::Quick => "quick",
            Level::Full => "full",
            Level::Huge => "huge",
        }
    }
}

/// How the elements lie, and what is reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A contiguous array to one value.
    Whole,
    /// A contiguous part, five elements into the memory, to one value.
    Slice,
    /// Every second element to one value.
    Strided,
    /// A contiguous array walked backwards, to one value.
    Backwards,
    /// Five rows, along the last axis.
    LastAxis,
    /// Five columns, along the first axis.
    FirstAxis,
    /// 2 x length x 3, along the middle axis.
    MiddleAxis,
    /// length x 2 x 3, along the first and the last axis.
    OuterAxes,
    /// Rows a little longer than what is read of them (a matrix with padding), along the last axis.
    PaddedRows,
    /// Three times the same row by a stride of zero, along the last axis.
    Broadcast,
    /// 65536 rows, along the last axis.
    ManyRows,
    /// 70000 rows, along the last axis.
    MoreRows,
    /// No rows at all, along the last axis: an empty result.
    NoRows,
}

impl Form {
    /// Every form.
    pub const ALL: [Form; 13] = [
        Form::Whole,
        Form::Slice,
        Form::Strided,
        Form::Backwards,
        Form::LastAxis,
        Form::FirstAxis,
        Form::MiddleAxis,
        Form::OuterAxes,
        Form::PaddedRows,
        Form::Broadcast,
        Form::ManyRows,
        Form::MoreRows,
        Form::NoRows,
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Form::Whole => "whole",
            Form::Slice => "slice",
            Form::Strided => "strided",
            Form::Backwards => "backwards",
            Form::LastAxis => "last axis",
            Form::FirstAxis => "first axis",
            Form::MiddleAxis => "middle axis",
            Form::OuterAxes => "first and last axis",
            Form::PaddedRows => "padded rows",
            Form::Broadcast => "broadcast rows",
            Form::ManyRows => "65536 rows",
            Form::MoreRows => "70000 rows",
            Form::NoRows => "no rows",
        }
    }

    /// Shape, strides, offset and reduced axes for a length.
    fn geometry(self, length: u64) -> (Vec<u64>, Vec<i64>, u64, Option<&'static [i64]>) {
        let step = length as i64;
        match self {
            Form::Whole => (vec![length], vec![1], 0, None),
            Form::Slice => (vec![length], vec![1], 5, None),
            Form::Strided => (vec![length], vec![2], 1, None),
            Form::Backwards => (vec![length], vec![-1], length.saturating_sub(1), None),
            Form::LastAxis => (vec![5, length], vec![step, 1], 0, Some(&[-1])),
            Form::FirstAxis => (vec![length, 5], vec![5, 1], 0, Some(&[0])),
            Form::MiddleAxis => (vec![2, length, 3], vec![3 * step, 3, 1], 0, Some(&[1])),
            Form::OuterAxes => (vec![length, 2, 3], vec![6, 3, 1], 0, Some(&[0, -1])),
            Form::PaddedRows => (vec![3, length], vec![step + 3, 1], 2, Some(&[-1])),
            Form::Broadcast => (vec![3, length], vec![0, 1], 0, Some(&[1])),
            Form::ManyRows => (vec![65536, length], vec![step, 1], 0, Some(&[-1])),
            Form::MoreRows => (vec![70000, length], vec![step, 1], 0, Some(&[-1])),
            Form::NoRows => (vec![0, length], vec![step, 1], 0, Some(&[-1])),
        }
    }

    /// Lengths beyond this make an input too large to be worth it.
    fn longest(self) -> u64 {
        match self {
            Form::ManyRows | Form::MoreRows => 33,
            Form::Whole | Form::Slice => u64::MAX,
            _ => 1 << 18,
        }
    }
}

/// One question: which problem, on which data, at which address.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The operator.
    pub operator: Operator,
    /// The input's dtype.
    pub dtype: DType,
    /// The accuracy of sums and means.
    pub accuracy: Accuracy,
    /// How the elements lie.
    pub form: Form,
    /// The length of the form's reduced axis (elements, for whole arrays).
    pub length: u64,
    /// Elements between an aligned address and the base pointer.
    pub shift: u64,
    /// The data.
    pub family: Family,
}

impl Case {
    /// A fast reduction of a whole aligned array.
    pub fn whole(operator: Operator, dtype: DType, family: Family, length: u64) -> Case {
        Case { operator, dtype, accuracy: Accuracy::Fast, form: Form::Whole, length, shift: 0, family }
    }

    /// The problem.
    ///
    /// # Errors
    /// [`upsweep::Error`] for a case that no library call could ask.
    pub fn problem(&self) -> upsweep::Result<ReduceProblem> {
        let (shape, strides, offset, axes) = self.form.geometry(self.length);
        let layout = Layout::strided(&shape, &strides, offset)?;
        ReduceProblem::new(self.operator, self.dtype, &layout, axes)?.with_accuracy(self.accuracy)
    }

    /// The data, from a seed.
    ///
    /// # Errors
    /// [`crate::GateError`] for a case whose family does not suit it.
    pub fn input(&self, problem: &ReduceProblem, seed: u64) -> crate::Result<Input> {
        families::make(problem, self.family, seed, self.shift)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compensated = if self.accuracy == Accuracy::Compensated { "compensated " } else { "" };
        let (form, family) = (self.form.name(), self.family.name());
        write!(f, "{compensated}{} of {}, {form}, length {}, {family} data", self.operator, self.dtype, self.length)?;
        if self.shift > 0 {
            write!(f, ", shifted by {} elements", self.shift)?;
        }
        Ok(())
    }
}

/// Lengths at every edge that kernels have: warp, block, tile, chunk and pipeline stage, and one either side.
const FULL_LENGTHS: [u64; 47] = [
    0,
    1,
    2,
    3,
    7,
    15,
    16,
    17,
    31,
    32,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    257,
    511,
    512,
    513,
    1000,
    1023,
    1024,
    1025,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    16383,
    16384,
    16385,
    32767,
    32768,
    32769,
    50257,
    65535,
    65536,
    65537,
    131_073,
    262_145,
    700_001,
    (1 << 20) + 13,
];

/// A choice of the above that stays fast.
const QUICK_LENGTHS: [u64; 11] = [0, 1, 2, 31, 33, 257, 1025, 4097, 16383, 65537, 70_001];

/// Shifts: every element address within 16 bytes of the smallest dtypes that kernels load as vectors.
const FULL_SHIFTS: [u64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
const QUICK_SHIFTS: [u64; 3] = [0, 1, 3];
const ACCURACIES: [Accuracy; 2] = [Accuracy::Fast, Accuracy::Compensated];

/// The cases of a level: a pairwise covering of operators, dtypes, accuracies, forms, lengths, shifts and families.
///
/// [`Level::Huge`] has none here: such data is made on the device, in closed form ([`HUGE`]).
pub fn cases(level: Level) -> Vec<Case> {
    let (lengths, shifts): (&[u64], &[u64]) = match level {
        Level::Quick => (&QUICK_LENGTHS, &QUICK_SHIFTS),
        Level::Full => (&FULL_LENGTHS, &FULL_SHIFTS),
        Level::Huge => return vec![],
    };
    let (operators, dtypes): (Vec<_>, Vec<_>) = (Operator::all().collect(), DType::all().collect());
    let allowed = |a: (usize, usize), b: (usize, usize)| {
        // Axes: 0 operator, 1 dtype, 2 accuracy, 3 form, 4 length, 5 shift, 6 family.
        match (a.0, b.0) {
            (0, 1) => operators[a.1].accepts(dtypes[b.1]),
            (0, 2) => ACCURACIES[b.1] == Accuracy::Fast || matches!(operators[a.1], Operator::Sum | Operator::Mean),
            (1, 2) => ACCURACIES[b.1] == Accuracy::Fast || dtypes[a.1].is_float(),
            (0, 4) => !(operators[a.1].row().empty_is_error && lengths[b.1] == 0),
            (0, 6) => Family::ALL[b.1].suits_operator(operators[a.1]),
            (1, 6) => Family::ALL[b.1].suits_dtype(dtypes[a.1]),
            (3, 4) => lengths[b.1] <= Form::ALL[a.1].longest(),
            _ => true,
        }
    };
    let sizes =
        [operators.len(), dtypes.len(), ACCURACIES.len(), Form::ALL.len(), lengths.len(), shifts.len(), Family::ALL.len()];
    let covering = Axes { sizes: &sizes, allowed: &allowed }.cover();
    let case = |row: &Vec<usize>| Case {
        operator: operators[row[0]],
        dtype: dtypes[row[1]],
        accuracy: ACCURACIES[row[2]],
        form: Form::ALL[row[3]],
        length: lengths[row[4]],
        shift: shifts[row[5]],
        family: Family::ALL[row[6]],
    };
    let mut cases: Vec<Case> = covering.rows.iter().map(case).collect();
    // The document's own rungs claim little of the covering: the same edges again for what they do claim.
    for dtype in [DType::F32, DType::F64, DType::I32] {
        for (position, &length) in lengths.iter().enumerate() {
            let family = [Family::Signed, Family::Uniform, Family::Offset, Family::Alternating][position % 4];
            let shift = shifts[position % shifts.len()];
            cases.push(Case { shift, ..Case::whole(Operator::Sum, dtype, family, length) });
            if length > 0 {
                let family = [Family::Ascending, Family::Descending, Family::Identity, Family::Growing][position % 4];
                cases.push(Case { shift, ..Case::whole(Operator::Max, dtype, family, length) });
            }
        }
    }
    if level == Level::Full {
        cases.extend([Family::OnesLike, Family::Signed].map(|f| Case::whole(Operator::Sum, DType::F32, f, 1 << 25)));
    }
    cases
}

/// A case beyond 2^31 elements, with data and answer in closed form: element `i` of a whole array is
/// `i mod period` (as the dtype), but `marked` holds the dtype's greatest value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HugeCase {
    /// The operator.
    pub operator: Operator,
    /// The dtype.
    pub dtype: DType,
    /// Elements.
    pub length: u64,
    /// Period of the data.
    pub period: u64,
    /// Index of the single greatest element.
    pub marked: u64,
}

impl HugeCase {
    /// The dtype's greatest value.
    fn greatest(&self) -> u64 {
        match self.dtype {
            DType::U8 => u8::MAX.into(),
            DType::I32 => i32::MAX as u64,
            _ => u32::MAX.into(),
        }
    }

    /// The exact answer for sum, max and argmax of integers: what the device must give.
    pub fn answer(&self) -> u64 {
        match self.operator {
            Operator::ArgMax => self.marked,
            Operator::Max => self.greatest(),
            _ => {
                let (periods, rest) = (self.length / self.period, self.length % self.period);
                let triangle = |k: u64| k * k.saturating_sub(1) / 2;
                let greatest = self.greatest();
                periods * triangle(self.period) + triangle(rest) - self.marked % self.period + greatest
            }
        }
    }
}

/// The huge cases: beyond 2^31 and beyond 2^32 elements, not a multiple of anything, the marked element last or past
/// the point where a 32-bit index wraps.
pub const HUGE: [HugeCase; 6] = [
    HugeCase { operator: Operator::Sum, dtype: DType::U8, length: (1 << 31) + 17, period: 251, marked: (1 << 31) + 16 },
    HugeCase { operator: Operator::ArgMax, dtype: DType::U8, length: (1 << 31) + 17, period: 251, marked: (1 << 31) + 1 },
    HugeCase { operator: Operator::Sum, dtype: DType::U8, length: (1 << 32) + 4099, period: 251, marked: (1 << 32) + 4098 },
    HugeCase { operator: Operator::ArgMax, dtype: DType::U8, length: (1 << 32) + 4099, period: 251, marked: (1 << 32) + 7 },
    HugeCase { operator: Operator::Sum, dtype: DType::I32, length: (1 << 31) + 17, period: 251, marked: (1 << 31) + 16 },
    HugeCase { operator: Operator::Max, dtype: DType::I32, length: (1 << 31) + 17, period: 251, marked: (1 << 31) + 16 },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_case_can_be_asked() {
        for level in [Level::Quick, Level::Full] {
            let cases = cases(level);
            for case in &cases {
                let problem = case.problem().unwrap_or_else(|e| panic!("{case}: {e}"));
                assert!(problem.required_len() < 1 << 26, "{case}");
            }
            let met = |f: &dyn Fn(&Case) -> String| cases.iter().map(f).collect::<HashSet<_>>().len();
            assert_eq!(met(&|c| c.operator.to_string()), Operator::TABLE.len());
            assert_eq!(met(&|c| c.dtype.to_string()), DType::TABLE.len());
            assert_eq!(met(&|c| c.form.name().into()), Form::ALL.len());
            assert_eq!(met(&|c| c.family.name().into()), Family::ALL.len());
        }
        let full = cases(Level::Full);
        assert!((900..2500).contains(&full.len()), "{}", full.len());
        assert!(cases(Level::Quick).len() < 500);
    }

    #[test]
    fn data_of_every_quick_case_can_be_made() {
        for case in cases(Level::Quick).iter().filter(|c| c.length < 5000) {
            case.input(&case.problem().unwrap(), 1).unwrap_or_else(|e| panic!("{case}: {e}"));
        }
    }

    #[test]
    fn every_accepted_operator_and_dtype_meet() {
        let pairs: HashSet<_> = cases(Level::Quick).iter().map(|c| (c.operator, c.dtype)).collect();
        for operator in Operator::all() {
            for dtype in DType::all().filter(|d| operator.accepts(*d)) {
                assert!(pairs.contains(&(operator, dtype)), "{operator} of {dtype}");
            }
        }
    }

    #[test]
    fn closed_forms_match_a_small_sum() {
        let small = HugeCase { length: 1000, marked: 999, ..HUGE[0] };
        let direct: u64 = (0..1000u64).map(|i| if i == 999 { 255 } else { i % 251 }).sum();
        assert_eq!(small.answer(), direct);
        assert_eq!(HUGE[3].answer(), (1 << 32) + 7);
        assert!(HUGE.iter().all(|c| c.marked < c.length && c.length > 1 << 31));
    }
}
