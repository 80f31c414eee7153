//! The questions that are asked of scans.

use super::first_input;
use super::second::{Coefficients, Runs, Second, spoil_ends};
use crate::cases::{Form, Level, lengths_and_shifts};
use crate::error::Result;
use crate::families::{Family, Place, Special};
use crate::judged::{Ask, Huge};
use crate::pairwise::Axes;
use crate::target::Input;
use std::fmt;
use upsweep::ops::reduce::oracle::Expected;
use upsweep::ops::scan::{OPERATORS, Scan, ScanKind, ScanProblem, ScanSpec};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

/// What each output covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Elements up to its own.
    Inclusive,
    /// Elements before its own.
    Exclusive,
    /// An initial value (3) and the elements before its own.
    ExclusiveFrom,
    /// An initial value (3) and the elements up to its own.
    InclusiveFrom,
    /// As inclusive, from the last element to the first.
    ReverseInclusive,
    /// As exclusive from an initial value, from the last element to the first.
    ReverseExclusiveFrom,
}

impl Mode {
    const ALL: [Mode; 6] = [
        Mode::Inclusive,
        Mode::Exclusive,
        Mode::ExclusiveFrom,
        Mode::InclusiveFrom,
        Mode::ReverseInclusive,
        Mode::ReverseExclusiveFrom,
    ];

    /// Those that every rung for one input can take.
    const USUAL: [Mode; 5] =
        [Mode::Inclusive, Mode::Exclusive, Mode::ExclusiveFrom, Mode::ReverseInclusive, Mode::ReverseExclusiveFrom];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Inclusive => "inclusive",
            Mode::Exclusive => "exclusive",
            Mode::ExclusiveFrom => "exclusive from 3",
            Mode::InclusiveFrom => "inclusive from 3",
            Mode::ReverseInclusive => "reverse inclusive",
            Mode::ReverseExclusiveFrom => "reverse exclusive from 3",
        }
    }

    fn spec(self, operator: Operator, dtype: DType) -> ScanSpec {
        let from = || {
            let output = operator.output_dtype(dtype);
            dispatch!(output, T => ScanSpec::exclusive_from(operator, three::<T>()))
        };
        match self {
            Mode::Inclusive => ScanSpec::inclusive(operator),
            Mode::Exclusive => ScanSpec::exclusive(operator),
            Mode::ExclusiveFrom => from(),
            Mode::InclusiveFrom => ScanSpec { kind: ScanKind::Inclusive, ..from() },
            Mode::ReverseInclusive => ScanSpec::inclusive(operator).reversed(),
            Mode::ReverseExclusiveFrom => from().reversed(),
        }
    }
}

/// Three, or the nearest that a bool has.
fn three<T: Element>() -> T {
    if T::DTYPE == DType::Bool { T::from_i128(1) } else { T::from_i128(3) }
}

/// One question.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The operator.
    pub operator: Operator,
    /// The input's dtype.
    pub dtype: DType,
    /// What each output covers.
    pub mode: Mode,
    /// How the elements lie.
    pub form: Form,
    /// The length of the form's axis.
    pub length: u64,
    /// Elements between an aligned address and the base pointer.
    pub shift: u64,
    /// The data.
    pub family: Family,
    /// Into the input's own memory.
    pub in_place: bool,
    /// The second input.
    pub second: Second,
}

impl Case {
    /// An inclusive scan of a whole aligned array.
    pub fn whole(operator: Operator, dtype: DType, family: Family, length: u64) -> Case {
        Case {
            operator,
            dtype,
            mode: Mode::Inclusive,
            form: Form::Whole,
            length,
            shift: 0,
            family,
            in_place: false,
            second: Second::Nothing,
        }
    }

    /// A linear recurrence over a whole aligned array, of every state.
    pub fn recurrence(dtype: DType, family: Family, coefficients: Coefficients, length: u64) -> Case {
        let second = Second::Coefficients(coefficients);
        Case { second, ..Case::whole(Operator::LinearRecurrence, dtype, family, length) }
    }
}

impl Ask<Scan> for Case {
    fn problem(&self) -> upsweep::Result<ScanProblem> {
        let (layout, axes) = self.form.geometry(self.length)?;
        let axis = axes.and_then(|axes| axes.first().copied());
        let spec = ScanSpec { segments: self.second.segments(self.length), ..self.mode.spec(self.operator, self.dtype) };
        ScanProblem::new(spec, self.dtype, &layout, axis)
    }

    fn input(&self, problem: &ScanProblem, seed: u64) -> Result<Input> {
        let mut first = first_input(problem, self.family, seed, self.shift)?;
        if let (Some(runs), Family::With(special, place @ (Place::Start | Place::End))) = (self.second.runs(), self.family) {
            let value = match special {
                Special::NegativeInfinity => f64::NEG_INFINITY,
                Special::Infinity => f64::INFINITY,
                Special::Nan => f64::NAN,
            };
            spoil_ends(problem, &mut first, runs, value, place == Place::End)?;
        }
        // At an address of its own, but aligned where the first input is.
        let second = self.second.make(problem, seed, self.shift * (1 + self.length % 3) % 8)?;
        Ok(first.and(second))
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

    fn in_place(&self) -> bool {
        self.in_place
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mode, form, family) = (self.mode.name(), self.form.name(), self.family.name());
        write!(f, "{mode} {} scan of {}, {form}, length {}, {family} data", self.operator, self.dtype, self.length)?;
        f.write_str(&self.second.name())?;
        if self.shift > 0 {
            write!(f, ", shifted by {} elements", self.shift)?;
        }
        if self.in_place {
            f.write_str(", in place")?;
        }
        Ok(())
    }
}

/// Forms with one axis.
fn forms() -> Vec<Form> {
    Form::ALL.into_iter().filter(|form| !form.has_several_axes()).collect()
}

/// The cases of a level: a pairwise covering of operators, dtypes, modes, forms, lengths, shifts, families and places.
pub(super) fn cases(level: Level) -> Vec<Case> {
    let (lengths, shifts) = lengths_and_shifts(level);
    if lengths.is_empty() {
        return vec![];
    }
    let (forms, dtypes): (Vec<Form>, Vec<DType>) = (forms(), DType::all().collect());
    // Families are asked by operator and dtype as for reductions; those of softmax alone say nothing here.
    let families: Vec<Family> =
        Family::ALL.into_iter().filter(|f| f.suits_operator(Operator::Sum) || f.suits_operator(Operator::Max)).collect();
    let places = [false, true];
    let allowed = |a: (usize, usize), b: (usize, usize)| {
        // Axes: 0 operator, 1 dtype, 2 mode, 3 form, 4 length, 5 shift, 6 family, 7 place.
        match (a.0, b.0) {
            (0, 1) => OPERATORS[a.1].accepts(dtypes[b.1]),
            (0, 6) => families[b.1].suits_operator(OPERATORS[a.1]),
            (1, 6) => families[b.1].suits_dtype(dtypes[a.1]),
            (3, 4) => lengths[b.1] <= forms[a.1].longest(),
            (1, 7) => !places[b.1] || dtypes[a.1].is_float() || matches!(dtypes[a.1], DType::I64 | DType::U64),
            (3, 7) => !places[b.1] || forms[a.1].is_contiguous(),
            _ => true,
        }
    };
    let sizes = [
        OPERATORS.len(),
        dtypes.len(),
        Mode::USUAL.len(),
        forms.len(),
        lengths.len(),
        shifts.len(),
        families.len(),
        places.len(),
    ];
    let case = |row: &Vec<usize>| Case {
        operator: OPERATORS[row[0]],
        dtype: dtypes[row[1]],
        mode: Mode::USUAL[row[2]],
        form: forms[row[3]],
        length: lengths[row[4]],
        shift: shifts[row[5]],
        family: families[row[6]],
        in_place: places[row[7]],
        second: Second::Nothing,
    };
    let mut cases: Vec<Case> = Axes { sizes: &sizes, allowed: &allowed }.cover().rows.iter().map(case).collect();
    // The document's own rungs claim little of the covering: the same edges again for what they do claim.
    for dtype in [DType::F32, DType::F64, DType::I32] {
        for (position, &length) in lengths.iter().enumerate() {
            let shift = shifts[position % shifts.len()];
            let family = [Family::Signed, Family::Uniform, Family::Offset, Family::Alternating][position % 4];
            cases.push(Case { shift, ..Case::whole(Operator::Sum, dtype, family, length) });
            let family = [Family::Ascending, Family::Descending, Family::Identity, Family::Growing][position % 4];
            cases.push(Case { shift, ..Case::whole(Operator::Max, dtype, family, length) });
        }
    }
    for operator in OPERATORS {
        for (position, dtype) in DType::all().filter(|dtype| operator.accepts(*dtype)).enumerate().step_by(2) {
            let length = lengths[(3 * position + 7) % lengths.len()];
            cases.push(Case { mode: Mode::InclusiveFrom, ..Case::whole(operator, dtype, Family::Uniform, length) });
        }
    }
    if level == Level::Full {
        cases.push(Case::whole(Operator::Sum, DType::F32, Family::Signed, 1 << 24));
    }
    cases.extend(recurrences(lengths, shifts));
    cases.extend(segments(lengths, shifts));
    cases
}

/// A pairwise covering of dtypes, modes, forms, lengths, shifts, families and coefficients; and the edges of the CPU's
/// strips and chunks for every dtype.
fn recurrences(lengths: &[u64], shifts: &[u64]) -> Vec<Case> {
    let operator = Operator::LinearRecurrence;
    let (forms, dtypes): (Vec<Form>, Vec<DType>) = (forms(), DType::all().filter(|dtype| operator.accepts(*dtype)).collect());
    let families: Vec<Family> = Family::ALL.into_iter().filter(|family| family.suits_operator(operator)).collect();
    let coefficients = Coefficients::ALL;
    let allowed = |a: (usize, usize), b: (usize, usize)| {
        // Axes: 0 dtype, 1 mode, 2 form, 3 length, 4 shift, 5 family, 6 coefficients.
        match (a.0, b.0) {
            (0, 5) => families[b.1].suits_dtype(dtypes[a.1]),
            (2, 3) => lengths[b.1] <= forms[a.1].longest(),
            (3, 6) => lengths[a.1] <= coefficients[b.1].longest(),
            _ => true,
        }
    };
    let sizes = [dtypes.len(), Mode::ALL.len(), forms.len(), lengths.len(), shifts.len(), families.len(), coefficients.len()];
    let case = |row: &Vec<usize>| Case {
        mode: Mode::ALL[row[1]],
        form: forms[row[2]],
        shift: shifts[row[4]],
        ..Case::recurrence(dtypes[row[0]], families[row[5]], coefficients[row[6]], lengths[row[3]])
    };
    let mut cases: Vec<Case> = Axes { sizes: &sizes, allowed: &allowed }.cover().rows.iter().map(case).collect();
    for dtype in dtypes {
        for (position, length) in [511, 512, 513, 65_535, 65_536, 65_537, 262_143, 262_145].into_iter().enumerate() {
            let coefficients = [Coefficients::Fading, Coefficients::Units][position % 2];
            cases.push(Case::recurrence(dtype, Family::Signed, coefficients, length));
        }
    }
    cases
}

/// A pairwise covering of operators, dtypes, modes, forms, lengths, shifts, families, kinds of segments and their lengths.
fn segments(lengths: &[u64], shifts: &[u64]) -> Vec<Case> {
    let dtypes: Vec<DType> = DType::all().collect();
    let forms = [Form::Whole, Form::Slice];
    let families: Vec<Family> =
        Family::ALL.into_iter().filter(|f| f.suits_operator(Operator::Sum) || f.suits_operator(Operator::Max)).collect();
    // None: by offsets.
    let is_integer = |dtype: &DType| !dtype.is_float() && *dtype != DType::Bool;
    let keys: Vec<Option<DType>> = DType::all().filter(is_integer).map(Some).chain([None]).collect();
    let allowed = |a: (usize, usize), b: (usize, usize)| {
        // Axes: 0 operator, 1 dtype, 2 mode, 3 form, 4 length, 5 shift, 6 family, 7 keys, 8 lengths of segments.
        match (a.0, b.0) {
            (0, 1) => OPERATORS[a.1].accepts(dtypes[b.1]),
            (0, 6) => families[b.1].suits_operator(OPERATORS[a.1]),
            (1, 6) => families[b.1].suits_dtype(dtypes[a.1]),
            _ => true,
        }
    };
    let sizes = [
        OPERATORS.len(),
        dtypes.len(),
        Mode::ALL.len(),
        forms.len(),
        lengths.len(),
        shifts.len(),
        families.len(),
        keys.len(),
        Runs::ALL.len(),
    ];
    let second = |keys: Option<DType>, runs| keys.map_or(Second::Offsets(runs), |dtype| Second::Keys(dtype, runs));
    let case = |row: &Vec<usize>| Case {
        mode: Mode::ALL[row[2]],
        form: forms[row[3]],
        shift: shifts[row[5]],
        second: second(keys[row[7]], Runs::ALL[row[8]]),
        ..Case::whole(OPERATORS[row[0]], dtypes[row[1]], families[row[6]], lengths[row[4]])
    };
    let mut cases: Vec<Case> = Axes { sizes: &sizes, allowed: &allowed }.cover().rows.iter().map(case).collect();
    for (position, length) in [65_535, 65_536, 65_537, 262_143, 262_145].into_iter().enumerate() {
        for (number, runs) in Runs::ALL.into_iter().enumerate() {
            let by_keys = (position + number).is_multiple_of(2);
            let second = if by_keys { Second::Keys(DType::I32, runs) } else { Second::Offsets(runs) };
            let mode = Mode::ALL[position % Mode::ALL.len()];
            cases.push(Case { mode, second, ..Case::whole(Operator::Sum, DType::F32, Family::Signed, length) });
        }
    }
    cases
}

/// Cases in which an order of combinations that varies would show.
pub(super) fn determinism_cases(level: Level) -> Vec<Case> {
    let length = if level == Level::Full { (1 << 20) + 13 } else { (1 << 17) + 13 };
    let mut cases = vec![];
    for operator in [Operator::Sum, Operator::Prod, Operator::Max] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            cases.push(Case::whole(operator, dtype, Family::Signed, length));
        }
    }
    for dtype in [DType::F32, DType::F64, DType::F16] {
        cases.push(Case::recurrence(dtype, Family::Signed, Coefficients::Fading, length));
        for second in [Second::Keys(DType::I32, Runs::Long), Second::Offsets(Runs::Long)] {
            cases.push(Case { second, ..Case::whole(Operator::Sum, dtype, Family::Signed, length) });
        }
    }
    cases
}

/// Period of the huge cases' data.
const PERIOD: u64 = 251;

/// Rows beyond 2^31 and 2^32 elements, and many rows of 2^32 elements together.
pub(super) fn huge_cases() -> Vec<Huge<Scan>> {
    let mut cases = vec![];
    let around = |length: u64| -> Vec<(u64, u64)> {
        let edges = [0, 1 << 31, 1 << 32, length - 1000];
        edges
            .into_iter()
            .map(|edge: u64| (edge.saturating_sub(500), 1500))
            .filter(|(first, count)| first + count <= length)
            .chain([(length - 1000, 1000)])
            .collect()
    };
    for (operator, dtype, length) in [
        (Operator::Sum, DType::U8, (1 << 32) + 4099),
        (Operator::Max, DType::I32, (1 << 31) + 17),
        (Operator::Sum, DType::I32, (1 << 31) + 17),
    ] {
        let Ok(problem) = ScanProblem::whole(ScanSpec::inclusive(operator), dtype, length) else { continue };
        cases.push(Huge { problem, period: PERIOD, marked: (1 << 31) + 5, windows: around(length), answer });
    }
    // Rows of several tiles, and rows that a block holds.
    for shape in [[70_000, 65_537], [1_048_583, 4099]] {
        let layout = Layout::contiguous(&shape);
        let rows = layout.and_then(|layout| ScanProblem::new(ScanSpec::inclusive(Operator::Max), DType::U8, &layout, Some(-1)));
        if let Ok(problem) = rows {
            let windows = around(problem.output_len());
            cases.push(Huge { problem, period: PERIOD, marked: (1 << 32) + 7, windows, answer });
        }
    }
    // Columns, in rows of memory that are and that are not a multiple of 16 bytes long.
    for inner in [1_048_592, 1_048_583] {
        let layout = Layout::contiguous(&[4099, inner]);
        let columns = layout.and_then(|layout| ScanProblem::new(ScanSpec::inclusive(Operator::Max), DType::U8, &layout, Some(0)));
        if let Ok(problem) = columns {
            let windows = around(problem.output_len());
            cases.push(Huge { problem, period: PERIOD, marked: (1 << 31) + 5, windows, answer: answer_of_columns });
        }
    }
    cases
}

/// The exact answer for inclusive maxima of u8 along the first of two axes.
fn answer_of_columns(case: &Huge<Scan>, output: u64) -> Expected {
    let above = (output % case.problem.inner()..=output).step_by(case.problem.inner() as usize);
    let value = |index: u64| if index == case.marked { i128::from(u8::MAX) } else { i128::from(index % case.period) };
    Expected::Exact(above.map(value).max().unwrap_or(0))
}

/// The exact answer for inclusive sums and maxima of integers.
fn answer(case: &Huge<Scan>, output: u64) -> Expected {
    let greatest = match case.problem.dtype() {
        DType::U8 => i128::from(u8::MAX),
        _ => i128::from(i32::MAX),
    };
    let (length, period, marked) = (case.problem.length(), case.period, case.marked);
    let first = output / length * length;
    let has_marked = (first..=output).contains(&marked);
    let residue = |index: u64| i128::from(index % period);
    Expected::Exact(if case.problem.operator() == Operator::Sum {
        let triangle = |k: u64| i128::from(k) * i128::from(k.saturating_sub(1)) / 2;
        // Elements 0 .. count, as if no element were marked.
        let prefix = |count: u64| i128::from(count / period) * triangle(period) + triangle(count % period);
        let correction = if has_marked { greatest - residue(marked) } else { 0 };
        prefix(output + 1) - prefix(first) + correction
    } else if has_marked {
        greatest
    } else {
        // The greatest residue since the row began: all of them after a period, else up to the first wrap.
        let wrapped = output - first >= period || residue(output) < residue(first);
        if wrapped { i128::from(period - 1) } else { residue(output) }
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
                if case.in_place {
                    assert_eq!(problem.dtype().size(), problem.output_dtype().size(), "{case}");
                    assert_eq!(problem.required_len(), problem.output_len(), "{case}");
                }
            }
            let met = |f: &dyn Fn(&Case) -> String| cases.iter().map(f).collect::<HashSet<_>>().len();
            assert_eq!(met(&|c| c.operator.to_string()), OPERATORS.len() + 1);
            assert_eq!(met(&|c| c.dtype.to_string()), DType::TABLE.len());
            assert_eq!(met(&|c| c.mode.name().into()), Mode::ALL.len());
            assert_eq!(met(&|c| c.form.name().into()), forms().len());
        }
        let quick = cases(Level::Quick).len();
        assert!(quick < 900, "{quick} cases are more than a few seconds");
    }

    #[test]
    fn data_of_every_quick_case_can_be_made() {
        for case in cases(Level::Quick).iter().filter(|c| c.length < 5000) {
            case.input(&case.problem().unwrap(), 1).unwrap_or_else(|e| panic!("{case}: {e}"));
        }
    }

    #[test]
    fn closed_forms_match_small_scans() {
        for (operator, dtype, shape) in
            [(Operator::Sum, DType::U8, [1, 1000]), (Operator::Max, DType::U8, [7, 301]), (Operator::Max, DType::I32, [3, 40])]
        {
            let layout = Layout::contiguous(&shape).unwrap();
            let problem = ScanProblem::new(ScanSpec::inclusive(operator), dtype, &layout, Some(-1)).unwrap();
            let outputs = problem.output_len();
            let marked = outputs / 2 + 3;
            let case = Huge::<Scan> { problem: problem.clone(), period: PERIOD, marked, windows: vec![(0, outputs)], answer };
            let value = |i: u64| {
                if i == marked { if dtype == DType::U8 { 255 } else { i64::from(i32::MAX) } } else { (i % PERIOD) as i64 }
            };
            let expected = if dtype == DType::U8 {
                let data: Vec<u8> = (0..outputs).map(|i| value(i) as u8).collect();
                Scan::reference(&problem, (&data[..]).into(), None).unwrap()
            } else {
                let data: Vec<i32> = (0..outputs).map(|i| value(i) as i32).collect();
                Scan::reference(&problem, (&data[..]).into(), None).unwrap()
            };
            assert_eq!(case.expected(), expected, "{problem}");
        }
        let layout = Layout::contiguous(&[70, 33]).unwrap();
        let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Max), DType::U8, &layout, Some(0)).unwrap();
        let data: Vec<u8> = (0..70 * 33).map(|i| if i == 777 { 255 } else { (i as u64 % PERIOD) as u8 }).collect();
        let expected = Scan::reference(&problem, (&data[..]).into(), None).unwrap();
        let case = Huge::<Scan> { problem, period: PERIOD, marked: 777, windows: vec![(0, 70 * 33)], answer: answer_of_columns };
        assert_eq!(case.expected(), expected);
        for case in huge_cases() {
            assert!(case.windows.iter().all(|(first, count)| first + count <= case.problem.output_len()), "{case}");
            assert!(case.problem.output_len() > 1 << 31);
        }
        assert_eq!(huge_cases().len(), 7);
    }
}
