//! The questions that are asked of reductions.

use crate::cases::{Form, Level, lengths_and_shifts};
use crate::families::Family;
use crate::judged::{Ask, Huge};
use crate::pairwise::Axes;
use std::fmt;
use upsweep::ops::reduce::oracle::{Expected, Near, Overflow, tree_bound};
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::types::{Accuracy, DType, Kind, Operator};

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
}

impl Ask<Reduce> for Case {
    fn problem(&self) -> upsweep::Result<ReduceProblem> {
        let (layout, axes) = self.form.geometry(self.length)?;
        ReduceProblem::new(self.operator, self.dtype, &layout, axes)?.with_accuracy(self.accuracy)
    }

    fn operator(&self) -> &'static str {
        self.operator.name()
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

const ACCURACIES: [Accuracy; 2] = [Accuracy::Fast, Accuracy::Compensated];

/// The cases of a level: a pairwise covering of operators, dtypes, accuracies, forms, lengths, shifts and families.
///
/// [`Level::Huge`] has none here: such data is made on the device, in closed form ([`huge_cases`]).
pub(super) fn cases(level: Level) -> Vec<Case> {
    let (lengths, shifts) = lengths_and_shifts(level);
    if lengths.is_empty() {
        return vec![];
    }
    let (operators, dtypes): (Vec<_>, Vec<_>) = (Operator::reductions().collect(), DType::all().collect());
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

/// Cases in which an order of additions that varies would show: operators that round, and argmax, whose ties could be
/// broken by arrival.
pub(super) fn determinism_cases(level: Level) -> Vec<Case> {
    let length = if level == Level::Full { (1 << 20) + 13 } else { (1 << 17) + 13 };
    let mut cases = vec![];
    for operator in [Operator::Sum, Operator::Prod, Operator::Mean, Operator::LogSumExp, Operator::ArgMax] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let family = if operator == Operator::ArgMax { Family::Ties } else { Family::Signed };
            cases.push(Case::whole(operator, dtype, family, length));
        }
    }
    cases
}

/// Beyond 2^31 and beyond 2^32 elements, not a multiple of anything, the marked element last or past the point where a
/// 32-bit index wraps.
pub(super) fn huge_cases() -> Vec<Huge<Reduce>> {
    use DType::{F32, I32, U8};
    use Operator::{ArgMax, Max, Sum};
    let cases = [
        (Sum, U8, (1 << 31) + 17, (1 << 31) + 16),
        (ArgMax, U8, (1 << 31) + 17, (1 << 31) + 1),
        (Sum, U8, (1 << 32) + 4099, (1 << 32) + 4098),
        (ArgMax, U8, (1 << 32) + 4099, (1 << 32) + 7),
        (Sum, I32, (1 << 31) + 17, (1 << 31) + 16),
        (Max, I32, (1 << 31) + 17, (1 << 31) + 16),
        (Sum, F32, (1 << 31) + 17, u64::MAX),
    ];
    let case = |(operator, dtype, length, marked)| huge(operator, dtype, length, marked);
    cases.into_iter().filter_map(case).collect()
}

/// `None` for a problem that does not exist, which a test excludes.
fn huge(operator: Operator, dtype: DType, length: u64, marked: u64) -> Option<Huge<Reduce>> {
    let problem = ReduceProblem::whole(operator, dtype, length).ok()?;
    Some(Huge { problem, period: 251, marked, windows: vec![(0, 1)], answer })
}

/// The answer for sum, max and argmax of integers, and for sums of floats.
fn answer(case: &Huge<Reduce>, _: u64) -> Expected {
    let (length, period) = (case.problem.shape().length, case.period);
    let triangle = |k: u64| i128::from(k) * i128::from(k.saturating_sub(1)) / 2;
    // Of whole numbers from 0 to the period, again and again.
    let sum = i128::from(length / period) * triangle(period) + triangle(length % period);
    let row = case.problem.dtype().row();
    if row.kind == Kind::Float {
        let (value, u) = (sum as f64, row.unit_roundoff);
        let bound = tree_bound(u, length, value) + u * value;
        return Expected::Near(Near { value, bound, overflow: Overflow::default() });
    }
    let greatest = match case.problem.dtype() {
        DType::U8 => i128::from(u8::MAX),
        _ => i128::from(i32::MAX),
    };
    Expected::Exact(match case.problem.operator() {
        Operator::ArgMax => case.marked.into(),
        Operator::Max => greatest,
        _ => sum - i128::from(case.marked % period) + greatest,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judged::Judged;
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
            assert_eq!(met(&|c| c.operator.to_string()), Operator::reductions().count());
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
        for operator in Operator::reductions() {
            for dtype in DType::all().filter(|d| operator.accepts(*d)) {
                assert!(pairs.contains(&(operator, dtype)), "{operator} of {dtype}");
            }
        }
    }

    #[test]
    fn closed_forms_match_a_small_sum() {
        let small = huge(Operator::Sum, DType::U8, 1000, 999).unwrap();
        let direct: i128 = (0..1000).map(|i| if i == 999 { 255 } else { i % 251 }).sum();
        assert_eq!(small.expected(), [Expected::Exact(direct)]);
        let all = huge_cases();
        assert_eq!(all.len(), 7);
        assert_eq!(all[3].expected(), [Expected::Exact((1 << 32) + 7)]);
        let is_float = |case: &Huge<Reduce>| case.problem.dtype().row().kind == Kind::Float;
        assert!(all.iter().all(|c| is_float(c) != (c.marked < c.problem.shape().length)));
        assert!(all.iter().all(|c| c.problem.shape().length > 1 << 31));
        let small = huge(Operator::Sum, DType::F32, 1000, u64::MAX).unwrap();
        let data: Vec<f32> = (0..1000).map(|i| (i % 251) as f32).collect();
        let oracle = Reduce::reference(&small.problem, (&data[..]).into(), None).unwrap();
        let (Expected::Near(closed), Expected::Near(direct)) = (&small.expected()[0], &oracle[0]) else { panic!("{oracle:?}") };
        assert_eq!(closed.value, direct.value);
        assert!(closed.bound >= direct.bound && closed.bound <= 1.1 * direct.bound, "{closed:?} {direct:?}");
    }
}
