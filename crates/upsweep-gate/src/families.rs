//! Input families: which numbers a case holds. Each is there because some wrong kernel passes on friendlier data.
//!
//! An element is a pure function of family, operator, dtype, seed, row and position, so any slice can be made anywhere,
//! in parallel, and again.

use crate::error::{GateError, Result};
use crate::target::Input;
use rayon::prelude::*;
use upsweep::ops::reduce::operators::Number;
use upsweep::types::{DType, Kind, Layout, Operator, ReduceShape, dispatch};

/// Where a special value stands in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Place {
    Start,
    Middle,
    End,
}

/// A special value. Integers take the nearest thing they have: their least and greatest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Special {
    NegativeInfinity,
    Nan,
    Infinity,
}

/// An input family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// 0 to 1; integers over their whole range.
    Uniform,
    /// -1 to 1; integers from -1000 to 1000.
    Signed,
    /// 1000 and a little noise: the mean is large against the spread.
    Offset,
    /// Huge, small, minus huge, small: cancellation.
    Alternating,
    /// k + 0.5 for small integers k of both signs: a detour through integers shows.
    Fractions,
    /// 1 or 1 + 2^-7: a single f32 accumulator loses the fraction of every element from 2^18 on.
    OnesLike,
    /// Three values, so that nearly everything ties; zeros of both signs among them.
    Ties,
    /// Sorted up, all negative where the dtype has negatives: a seed of zero, or a positive one, shows.
    Ascending,
    /// Sorted down, all positive.
    Descending,
    /// Growing by powers of two along the row: the last elements decide.
    Growing,
    /// Every element is the operator's identity (constant on purpose): a finite sentinel shows.
    Identity,
    /// Logits of 80 to 100 (f64: to 1000), the first of a row always beyond what an unshifted exponential holds.
    LargeLogits,
    /// Logits around -20000: a finite floor in the place of -inf shows.
    DeepLogits,
    /// Logits from -500 to 500: most probabilities are too small for the dtype, their logarithms are not.
    WideLogits,
    /// Signed data with a special value in one place (NaN: there and, from three elements on, at the end).
    With(Special, Place),
}

impl Family {
    /// Every family.
    pub const ALL: [Family; 23] = [
        Family::Uniform,
        Family::Signed,
        Family::Offset,
        Family::Alternating,
        Family::Fractions,
        Family::OnesLike,
        Family::Ties,
        Family::Ascending,
        Family::Descending,
        Family::Growing,
        Family::Identity,
        Family::LargeLogits,
        Family::DeepLogits,
        Family::WideLogits,
        Family::With(Special::NegativeInfinity, Place::Start),
        Family::With(Special::NegativeInfinity, Place::Middle),
        Family::With(Special::NegativeInfinity, Place::End),
        Family::With(Special::Nan, Place::Start),
        Family::With(Special::Nan, Place::Middle),
        Family::With(Special::Nan, Place::End),
        Family::With(Special::Infinity, Place::Start),
        Family::With(Special::Infinity, Place::Middle),
        Family::With(Special::Infinity, Place::End),
    ];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Family::Uniform => "uniform",
            Family::Signed => "signed",
            Family::Offset => "offset",
            Family::Alternating => "alternating",
            Family::Fractions => "fractions",
            Family::OnesLike => "ones_like",
            Family::Ties => "ties",
            Family::Ascending => "ascending",
            Family::Descending => "descending",
            Family::Growing => "growing",
            Family::Identity => "identity",
            Family::LargeLogits => "large_logits",
            Family::DeepLogits => "deep_logits",
            Family::WideLogits => "wide_logits",
            Family::With(Special::NegativeInfinity, Place::Start) => "-inf_at_start",
            Family::With(Special::NegativeInfinity, Place::Middle) => "-inf_in_middle",
            Family::With(Special::NegativeInfinity, Place::End) => "-inf_at_end",
            Family::With(Special::Nan, Place::Start) => "nan_at_start",
            Family::With(Special::Nan, Place::Middle) => "nan_in_middle",
            Family::With(Special::Nan, Place::End) => "nan_at_end",
            Family::With(Special::Infinity, Place::Start) => "inf_at_start",
            Family::With(Special::Infinity, Place::Middle) => "inf_in_middle",
            Family::With(Special::Infinity, Place::End) => "inf_at_end",
        }
    }

    /// Whether the family exists for a dtype.
    pub fn suits_dtype(self, dtype: DType) -> bool {
        match self {
            Family::LargeLogits | Family::DeepLogits | Family::WideLogits => dtype.is_float(),
            Family::Fractions | Family::OnesLike | Family::With(Special::Nan, _) => dtype.is_float(),
            Family::With(..) => dtype != DType::Bool,
            _ => true,
        }
    }

    /// Finite, and exponentials of the elements fit every accumulator without subtracting a maximum.
    pub fn logits_are_small(self) -> bool {
        matches!(self, Family::Uniform | Family::Signed | Family::Fractions | Family::OnesLike | Family::Ties)
    }

    /// Whether the family says anything about an operator. Products get bounded data of their own from a few families:
    /// long products of any others overflow or vanish, and then every answer is right.
    pub fn suits_operator(self, operator: Operator) -> bool {
        match operator {
            _ if matches!(self, Family::LargeLogits | Family::DeepLogits | Family::WideLogits) => operator == Operator::LogSumExp,
            Operator::Prod | Operator::WrappingProd => matches!(self, Family::Uniform | Family::Signed | Family::With(..)),
            _ if self == Family::Identity => operator.row().empty_is_error || operator == Operator::LogSumExp,
            _ => true,
        }
    }
}

/// A 64-bit hash of a seed and a counter: Steele, Lea and Flood's SplitMix64 finaliser, twice.
pub fn hash(seed: u64, counter: u64) -> u64 {
    mix(mix(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed)).wrapping_add(seed.rotate_left(32)))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// One row's generator.
#[derive(Clone, Copy, Debug)]
struct Generator {
    family: Family,
    operator: Operator,
    seed: u64,
    row: u64,
    length: u64,
}

impl Generator {
    /// The element at a position. The second element is chosen to differ from the first where the family leaves a
    /// choice, so that no row of two or more is constant by chance.
    fn element<T: Number>(&self, position: u64) -> T {
        let value = self.salted::<T>(position, 0);
        if position != 1 || self.length < 2 {
            return value;
        }
        let first = self.salted::<T>(0, 0);
        (0..64).map(|salt| self.salted::<T>(1, salt)).find(|x| *x != first).unwrap_or(value)
    }

    fn salted<T: Number>(&self, position: u64, salt: u64) -> T {
        let counter = self.row.wrapping_mul(self.length).wrapping_add(position);
        let h = hash(self.seed ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03), counter);
        let last = self.length - 1;
        if let Family::With(special, place) = self.family {
            let here = match place {
                Place::Start => 0,
                Place::Middle => self.length / 2,
                Place::End => last,
            };
            if position == here || (special == Special::Nan && position == last && self.length > 2) {
                return match special {
                    Special::NegativeInfinity => T::LOWEST,
                    Special::Infinity => T::HIGHEST,
                    Special::Nan => T::from_f64(f64::NAN),
                };
            }
        }
        let family = if let Family::With(..) = self.family { Family::Signed } else { self.family };
        if family == Family::Identity {
            let of_minimum = matches!(self.operator, Operator::Min | Operator::ArgMin | Operator::NanMin);
            return if of_minimum { T::HIGHEST } else { T::LOWEST };
        }
        let along = position as f64 / self.length as f64;
        match T::DTYPE.row().kind {
            Kind::Float if self.operator == Operator::Prod => T::from_f64(self.factor(family, position, h)),
            Kind::Float => T::from_f64(self.float(family, T::DTYPE, position, along, h)),
            Kind::Bool => T::from_i128(i128::from(match family {
                Family::Offset | Family::OnesLike => !h.is_multiple_of(8),
                Family::Ascending => 2 * position >= self.length,
                Family::Descending => 2 * position < self.length,
                Family::Growing => position == last,
                _ => h & 1 == 1,
            })),
            Kind::Signed | Kind::Unsigned => {
                let low_bits = T::from_i128(self.integer::<T>(family, position, along, h));
                // Even factors multiply to zero in 64 bits soon, and then any answer of zero is right.
                let product = matches!(self.operator, Operator::Prod | Operator::WrappingProd);
                if product { T::from_i128(low_bits.to_i128() | 1) } else { low_bits }
            }
        }
    }

    /// A float of a product: plus or minus one, but for about 64 factors between 1/2 and 2, the ends and the middle
    /// always among them. No order of multiplication overflows or underflows f32, whatever the length.
    fn factor(&self, family: Family, position: u64, h: u64) -> f64 {
        let anchors = [0, self.length / 2, self.length - 1];
        let active = anchors.contains(&position) || (h >> 32).is_multiple_of((self.length / 64).max(1));
        let magnitude = if active && self.length > 1 { (2.0 * unit(h, 24) - 1.0).exp2() } else { 1.0 + unit(h, 24) };
        let magnitude = if active { magnitude } else { 1.0 };
        let negative = family == Family::Signed && h & 1 == 1;
        if negative { -magnitude } else { magnitude }
    }

    fn float(&self, family: Family, dtype: DType, position: u64, along: f64, h: u64) -> f64 {
        let u = unit(h, if dtype == DType::F64 { 53 } else { 24 });
        match family {
            Family::Signed => 2.0 * u - 1.0,
            // The noise spans several of the dtype's steps at 1000.
            Family::Offset if dtype == DType::F16 => 1000.0 + 8.0 * u,
            Family::Offset if dtype == DType::Bf16 => 1000.0 + 32.0 * u,
            Family::Offset => 1000.0 + u,
            Family::Alternating => {
                // Beyond f64's 53 bits of the small ones, within the 106 of a double-double.
                let huge = if dtype == DType::F16 { 30000.0 } else { 2f64.powi(80) };
                match position % 4 {
                    0 => huge,
                    2 => -huge,
                    _ => u,
                }
            }
            Family::Fractions => (h % 64) as f64 - 31.5,
            Family::OnesLike => 1.0 + (h & 1) as f64 / 128.0,
            Family::Ties => [if h & (1 << 40) == 0 { 0.0 } else { -0.0 }, 1.0, 2.0][(h % 3) as usize],
            Family::Ascending => -1000.0 * (1.0 - along),
            Family::Descending => 1000.0 * (1.0 - along),
            Family::Growing => (12.0 * along).exp2() * (1.0 + u / 8.0),
            // Beyond the exponents of f32 (88.7) and of f64 (709.8).
            Family::LargeLogits if dtype == DType::F64 && position == 0 => 900.0 + 100.0 * u,
            Family::LargeLogits if position == 0 => 95.0 + 5.0 * u,
            Family::LargeLogits => 80.0 + 20.0 * u,
            Family::DeepLogits => -20000.0 - if dtype == DType::Bf16 { 1000.0 } else { 100.0 } * u,
            Family::WideLogits => 1000.0 * u - 500.0,
            _ => u,
        }
    }

    fn integer<T: Number>(&self, family: Family, position: u64, along: f64, h: u64) -> i128 {
        match family {
            Family::Signed => i128::from(h % 2001) - 1000,
            Family::Offset => 1000 + i128::from(h % 8),
            Family::Alternating => match position % 4 {
                0 => T::HIGHEST.to_i128(),
                2 => T::LOWEST.to_i128(),
                _ => i128::from(h % 8),
            },
            Family::Ties => i128::from(h % 3),
            Family::Ascending if T::DTYPE.row().kind == Kind::Signed => (-100.0 * (1.0 - along)).floor() as i128,
            Family::Ascending => 1 + (200.0 * along) as i128,
            Family::Descending => 1 + (100.0 * (1.0 - along)) as i128,
            Family::Growing => i128::from(position),
            _ => i128::from(h),
        }
    }
}

/// The top `bits` bits of a hash as a number in 0..1, exactly.
fn unit(h: u64, bits: u32) -> f64 {
    (h >> (64 - bits)) as f64 / (1u64 << bits) as f64
}

/// Where a problem's elements lie, and what the data must suit.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Rows of elements: the kept axes, and the axis (or axes) along which the op runs.
    pub shape: &'a ReduceShape,
    /// The element type.
    pub dtype: DType,
    /// The reduction whose pitfalls the data are to have; a scan's is its operator, a softmax's is logsumexp.
    pub operator: Operator,
    /// Elements of memory, from the base pointer.
    pub required_len: u64,
}

/// Sets the elements of a layout, each from its row and its position in the row: by all threads where neighbours in memory
/// are neighbours of a row, or of a column.
pub(crate) fn fill<T: Copy + Send>(shape: &ReduceShape, data: &mut [T], value: impl Fn(u64, u64) -> T + Sync) {
    const PIECE: usize = 1 << 14;
    let ReduceShape { outputs, length, .. } = *shape;
    if outputs * length == 0 {
        return;
    }
    let Some(inner) = packed_columns(shape) else {
        for row in 0..outputs {
            for position in 0..length {
                data[shape.index(row, position) as usize] = value(row, position);
            }
        }
        return;
    };
    let start = shape.offset as usize;
    let elements = &mut data[start..start + (outputs * length) as usize];
    elements.par_chunks_mut(PIECE).enumerate().for_each(|(piece, elements)| {
        let first = (piece * PIECE) as u64;
        let (mut matrix, mut position, mut column) = (first / (length * inner), first / inner % length, first % inner);
        for element in elements {
            *element = value(matrix * inner + column, position);
            column += 1;
            if column == inner {
                (position, column) = (position + 1, 0);
            }
            if position == length {
                (matrix, position) = (matrix + 1, 0);
            }
        }
    });
}

/// How many columns lie side by side where the layout is matrices that follow each other without a gap, scanned or reduced
/// down their columns: one for rows.
fn packed_columns(shape: &ReduceShape) -> Option<u64> {
    let [along] = shape.reduced.as_slice() else { return (shape.reduced.is_empty() && shape.outputs == 1).then_some(1) };
    let inner = u64::try_from(along.stride).ok()?;
    let (outer, columns) = match (shape.kept.as_slice(), inner) {
        ([], 1) => (None, 1),
        ([outer], 1) => (Some(outer), 1),
        ([columns], _) if columns.stride == 1 => (None, columns.extent),
        ([outer, columns], _) if columns.stride == 1 => (Some(outer), columns.extent),
        _ => return None,
    };
    let is_packed = columns == inner && outer.is_none_or(|outer| u64::try_from(outer.stride) == Ok(shape.length * inner));
    is_packed.then_some(inner)
}

impl Rows<'_> {
    /// The data: gaps and guards that spoil every result, and the family's elements at the layout's places.
    ///
    /// # Errors
    /// [`GateError::InvalidArgument`] if the family does not suit the problem, or came out constant.
    pub fn make(&self, family: Family, seed: u64, shift: u64) -> Result<Input> {
        let (operator, dtype) = (self.operator, self.dtype);
        if !family.suits_dtype(dtype) || !family.suits_operator(operator) {
            return Err(GateError::InvalidArgument {
                argument: "family",
                got: format!("{} for {operator} of {dtype}", family.name()),
                allowed: "the family must suit the operator and the dtype".into(),
            });
        }
        let mut input = Input::new(dtype, self.required_len, shift);
        dispatch!(dtype, T => self.fill(family, seed, input.typed_mut::<T>()?));
        self.check_not_constant(family, &input)?;
        Ok(input)
    }

    fn fill<T: Number>(&self, family: Family, seed: u64, data: &mut [T]) {
        let (operator, length) = (self.operator, self.shape.length);
        fill(self.shape, data, |row, position| Generator { family, operator, seed, row, length }.element(position));
    }

    /// A constant input proves little: any kernel that reads any element may pass.
    fn check_not_constant(&self, family: Family, input: &Input) -> Result<()> {
        let shape = self.shape;
        let reads_one_element = shape.reduced.iter().all(|dim| dim.stride == 0 || dim.extent < 2);
        if shape.length < 2 || shape.outputs == 0 || reads_one_element || family == Family::Identity {
            return Ok(());
        }
        let size = input.dtype().size() as usize;
        let at = |position| {
            let start = shape.index(0, position) as usize * size;
            &input.bytes()[start..start + size]
        };
        let first = at(0);
        if (1..shape.length).any(|position| at(position) != first) {
            return Ok(());
        }
        Err(GateError::InvalidArgument {
            argument: "family",
            got: format!("{} for {}, which is constant", family.name(), self.operator),
            allowed: "the elements of a row must differ".into(),
        })
    }
}

/// A contiguous array of uniform data.
///
/// # Errors
/// [`GateError`] for lengths beyond memory.
pub fn uniform(dtype: DType, len: u64, seed: u64) -> Result<Input> {
    let shape = ReduceShape::new(&Layout::contiguous(&[len])?, None)?;
    Rows { shape: &shape, dtype, operator: Operator::Max, required_len: len }.make(Family::Uniform, seed, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judged::Judged;
    use upsweep::ops::reduce::{Reduce, ReduceProblem};

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = Family::ALL.iter().map(|f| f.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Family::ALL.len());
    }

    #[test]
    fn no_suitable_family_is_constant_at_any_length_and_seed() {
        for operator in Operator::reductions() {
            for dtype in DType::all().filter(|d| operator.accepts(*d)) {
                for family in Family::ALL.into_iter().filter(|f| f.suits_dtype(dtype) && f.suits_operator(operator)) {
                    for (seed, length) in [(1, 2), (2, 2), (3, 3), (4, 33), (5, 1025)] {
                        let problem = ReduceProblem::whole(operator, dtype, length).unwrap();
                        Reduce::make(&problem, family, seed, 0).unwrap_or_else(|e| panic!("{operator} {dtype} {family:?}: {e}"));
                    }
                }
            }
        }
    }

    #[test]
    fn an_element_depends_on_seed_and_place_alone() {
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 100_000).unwrap();
        let (a, b) =
            (Reduce::make(&problem, Family::Signed, 9, 0).unwrap(), Reduce::make(&problem, Family::Signed, 9, 5).unwrap());
        assert_eq!(a.bytes(), b.bytes());
        assert_ne!(a.bytes(), Reduce::make(&problem, Family::Signed, 10, 0).unwrap().bytes());
    }

    #[test]
    fn gaps_of_a_view_are_poisoned() {
        let layout = Layout::strided(&[4], &[2], 1).unwrap();
        let problem = ReduceProblem::new(Operator::Sum, DType::F32, &layout, None).unwrap();
        let input = Reduce::make(&problem, Family::Uniform, 1, 3).unwrap();
        let data = input.slice().typed::<f32>().unwrap();
        let nan: Vec<bool> = data.iter().map(|x| x.is_nan()).collect();
        assert_eq!(nan, [true, false, true, false, true, false, true, false]);
    }

    #[test]
    fn specials_stand_where_they_should() {
        let problem = ReduceProblem::whole(Operator::Max, DType::F64, 9).unwrap();
        let nans = |place| {
            let input = Reduce::make(&problem, Family::With(Special::Nan, place), 1, 0).unwrap();
            let data = input.slice().typed::<f64>().unwrap();
            data.iter().enumerate().filter(|(_, x)| x.is_nan()).map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!((nans(Place::Start), nans(Place::Middle), nans(Place::End)), (vec![0, 8], vec![4, 8], vec![8]));
    }

    #[test]
    fn every_layout_holds_the_element_of_its_row_and_position() {
        let layouts = [
            (Layout::contiguous(&[40_000]).unwrap(), None),
            (Layout::contiguous(&[300, 77]).unwrap(), Some(1)),
            (Layout::contiguous(&[300, 77]).unwrap(), Some(0)),
            (Layout::contiguous(&[3, 200, 33]).unwrap(), Some(1)),
            (Layout::contiguous(&[3, 20, 33]).unwrap(), Some(0)),
            (Layout::strided(&[20, 33], &[40, 1], 3).unwrap(), Some(0)),
            (Layout::strided(&[20, 33], &[40, 1], 3).unwrap(), Some(1)),
            (Layout::strided(&[3, 4], &[-4, 1], 8).unwrap(), Some(0)),
            (Layout::contiguous(&[5, 0]).unwrap(), Some(1)),
        ];
        let mut walked = 0;
        for (layout, axis) in layouts {
            let axes = axis.map(|axis: i64| [axis]);
            let shape = ReduceShape::new(&layout, axes.as_ref().map(|axes| &axes[..])).unwrap();
            let mut data = vec![u64::MAX; 50_000];
            fill(&shape, &mut data, |row, position| row * 100_000 + position);
            walked += u32::from(shape.outputs * shape.length > 0 && packed_columns(&shape).is_none());
            let mut set = 0;
            for row in 0..shape.outputs {
                for position in 0..shape.length {
                    assert_eq!(data[shape.index(row, position) as usize], row * 100_000 + position, "{layout:?} {axis:?}");
                    set += 1;
                }
            }
            assert_eq!(data.iter().filter(|x| **x != u64::MAX).count(), set);
        }
        assert_eq!(walked, 3, "rows with gaps and backwards are no matrices");
    }
}
