//! The reference of linear recurrences: the definition in two f64 words, and what bounds the error of every association in
//! the same walk.

use super::super::ScanProblem;
use super::{Places, elements, walk};
use crate::ops::reduce::oracle::{Expected, Near, Overflow, half_unit, largest, near};
use crate::types::{DType, Element};

/// The bound on the absolute error of an output `h[i]` of a linear recurrence, for a row of `n` elements:
/// `u (2 D + (4 log2(n + 1) + 4) M)`, from
///
/// - `magnitude`, the recurrence of the absolute values: `M[i] = |a[i]| M[i-1] + |b[i]|`, `M[-1] = |h[-1]|`;
/// - `roundings`, the same with each term weighed by the number of its coefficients: `D[i] = |a[i]| (D[i-1] + M[i-1])`,
///   `D[-1] = 0`.
///
/// Written out, `h[i]` is the sum over `j` of `b[j] a[j+1] ... a[i]`. However the combinations `(a1 a2, a2 b1 + b2)` are
/// associated, the `k = i - j` coefficients of a term enter it by `k` multiplications, so products cost it `k u` of itself,
/// and all terms together `u D[i]`. Additions cost a term one rounding for each node of the tree that it passes. In a loop
/// that walks along the row these are `k + 1`: another `u D[i]`, and `u M[i]`. In a tree they are at most its depth; up a
/// tree over elements and down again that is `2 log2(n)`, for which `4 log2(n + 1) + 4` leaves room for a tree of trees
/// and the carries between them. Terms of second order are left out: they count where `k u` nears 1, and there roundings
/// of independent sign have grown with the root of `k` only.
pub fn linear_recurrence_bound(unit_roundoff: f64, n: u64, roundings: f64, magnitude: f64) -> f64 {
    unit_roundoff * (2.0 * roundings + (4.0 * ((n + 1) as f64).log2() + 4.0) * magnitude)
}

/// What the oracle needs of an accumulator.
#[derive(Clone, Copy)]
struct Range {
    /// Partial results from here on count as overflown.
    overflow: f64,
    /// Products below may lose digits, or all.
    smallest_normal: f64,
    /// What a product that underflows is off by, at most.
    underflow: f64,
    unit_roundoff: f64,
}

impl Range {
    fn of(accumulator: DType) -> Range {
        let (smallest_normal, underflow) = match accumulator {
            DType::F64 => (f64::MIN_POSITIVE, 2f64.powi(-1074)),
            _ => (2f64.powi(-126), 2f64.powi(-150)),
        };
        let overflow = largest(accumulator) * (1.0 - 1e-6);
        Range { overflow, smallest_normal, underflow, unit_roundoff: accumulator.row().unit_roundoff }
    }
}

/// The state of the walk: the value, what its error grows from, and what some association could have met on the way.
#[derive(Clone, Copy)]
struct Walk {
    high: f64,
    low: f64,
    magnitude: f64,
    roundings: f64,
    /// What underflowing products may have cost.
    underflow: f64,
    largest_magnitude: f64,
    /// Over runs of coefficients that end here: the largest product, and the smallest that is not 0.
    largest_product: f64,
    smallest_product: f64,
    /// Something that came is NaN.
    nan: bool,
    /// A coefficient is infinite: no result is finite from there on.
    infinite_coefficient: bool,
    /// 0 as long as all is finite; then the infinity or NaN that the definition gives.
    infinity: f64,
    /// Some association can leave the accumulator's range, from which nothing leads back.
    may_overflow: bool,
    /// The value, or its magnitude, has left the range of f64.
    lost: bool,
}

impl Walk {
    fn start(initial: f64, range: Range) -> Walk {
        let finite = if initial.is_finite() { initial } else { 0.0 };
        Walk {
            high: finite,
            low: 0.0,
            magnitude: finite.abs(),
            roundings: 0.0,
            underflow: 0.0,
            largest_magnitude: finite.abs(),
            largest_product: 0.0,
            smallest_product: f64::INFINITY,
            nan: initial.is_nan(),
            infinite_coefficient: false,
            infinity: if initial.is_infinite() { initial } else { 0.0 },
            may_overflow: finite.abs() >= range.overflow,
            lost: false,
        }
    }

    fn step(mut self, a: f64, b: f64, depth: f64, range: Range) -> Walk {
        self.nan |= a.is_nan() || b.is_nan();
        self.infinite_coefficient |= a.is_infinite();
        if self.nan || self.infinite_coefficient {
            return self;
        }
        let infinite = if b.is_infinite() { b } else { 0.0 };
        self.infinity = if self.infinity == 0.0 { infinite } else { a * self.infinity + infinite };
        let b = if b.is_infinite() { 0.0 } else { b };

        let size = a.abs();
        // 0 times what has overflown here would be NaN.
        let scaled = |x: f64| if size == 0.0 { 0.0 } else { size * x };
        self.underflow = scaled(self.underflow) + range.underflow * (1.0 + depth * self.largest_magnitude);
        self.roundings = scaled(self.roundings + self.magnitude);
        self.magnitude = scaled(self.magnitude) + b.abs();
        self.largest_magnitude = self.largest_magnitude.max(self.magnitude);

        // A run with a coefficient of 0 has the product 0, exactly.
        self.largest_product = size * self.largest_product.max(1.0);
        self.smallest_product = if size == 0.0 { f64::INFINITY } else { size * self.smallest_product.min(1.0) };
        self.may_overflow |= self.magnitude >= range.overflow || self.largest_product >= range.overflow;
        // An infinity meets a product of coefficients that may have become 0.
        self.may_overflow |= self.infinity != 0.0 && self.smallest_product < range.smallest_normal;

        let product = a * self.high;
        let left_out = a.mul_add(self.high, -product) + a * self.low;
        let sum = product + b;
        let virtual_b = sum - product;
        let low = (product - (sum - virtual_b)) + (b - virtual_b) + left_out;
        self.high = sum + low;
        self.low = (sum - self.high) + low;
        self.lost |= !(self.high.is_finite() && self.low.is_finite() && self.magnitude.is_finite() && self.roundings.is_finite());
        self
    }

    fn expected(&self, dtype: DType, n: u64, range: Range) -> Expected {
        let either = |may: bool| Overflow { positive: may, negative: may };
        let never_finite = Expected::Near(Near { value: f64::INFINITY, bound: 0.0, overflow: either(true) });
        if self.nan {
            return Expected::Nan;
        }
        if self.infinite_coefficient || (self.infinity != 0.0 && self.may_overflow) {
            return never_finite;
        }
        if self.infinity != 0.0 {
            return if self.infinity.is_nan() { Expected::Nan } else { near(self.infinity, 0.0) };
        }
        if self.lost {
            return Expected::Near(Near { value: 0.0, bound: f64::INFINITY, overflow: either(true) });
        }
        let value = self.high;
        let mut bound = linear_recurrence_bound(range.unit_roundoff, n, self.roundings, self.magnitude) + self.underflow;
        if dtype.row().accumulator != dtype {
            bound += half_unit(dtype, value.abs() + bound);
        }
        Expected::Near(Near { value, bound, overflow: either(self.may_overflow) })
    }
}

/// The outputs of a row, by their position in the row.
pub(super) fn scan_row<T: Element>(problem: &ScanProblem, coefficients: &[T], data: &[T], row: u64, places: Places<'_>) {
    let (coefficients, data) = (elements(problem, coefficients, row), elements(problem, data, row));
    let (dtype, n) = (problem.dtype(), data.len() as u64);
    let range = Range::of(dtype.row().accumulator);
    let depth = ((n + 1) as f64).log2() + 2.0;
    let initial = problem.initial().map_or(0.0, |initial| initial.to_f64());
    // With the state, whether nothing has been combined yet: the initial value comes out as it went in.
    let step = |(walk, _): (Walk, bool), i: usize| (walk.step(coefficients[i].to_f64(), data[i].to_f64(), depth, range), false);
    let output = |(walk, untouched): &(Walk, bool)| match untouched {
        true if initial.is_finite() => near(initial, 0.0),
        _ => walk.expected(dtype, n, range),
    };
    walk(problem, (Walk::start(initial, range), true), step, output, places);
    if problem.reverse() {
        places.reverse();
    }
}

#[cfg(test)]
mod tests {
    use super::super::reference;
    use super::*;
    use crate::flow::HostSlice;
    use crate::ops::scan::ScanSpec;
    use crate::types::Operator;

    const RECURRENCE: Operator = Operator::LinearRecurrence;

    fn whole<T: Element>(spec: ScanSpec, a: &[T], b: &[T]) -> Vec<Expected> {
        let problem = ScanProblem::whole(spec, T::DTYPE, b.len() as u64).unwrap();
        reference(&problem, HostSlice::from(b), Some(HostSlice::from(a))).unwrap()
    }

    fn parts(expected: &Expected) -> (f64, f64, bool) {
        match *expected {
            Expected::Near(near) => (near.value, near.bound, near.overflow.positive && near.overflow.negative),
            Expected::Nan => (f64::NAN, 0.0, false),
            other => panic!("{other:?}"),
        }
    }

    fn values(expected: &[Expected]) -> Vec<f64> {
        expected.iter().map(|e| parts(e).0).collect()
    }

    #[test]
    fn the_definition_in_every_direction() {
        let (a, b) = ([2.0f32, 3.0, 0.5], [1.0f32, 2.0, 4.0]);
        assert_eq!(values(&whole(ScanSpec::inclusive(RECURRENCE), &a, &b)), [1.0, 5.0, 6.5]);
        assert_eq!(values(&whole(ScanSpec::inclusive_from(RECURRENCE, 10.0f32), &a, &b)), [21.0, 65.0, 36.5]);
        assert_eq!(values(&whole(ScanSpec::exclusive_from(RECURRENCE, 10.0f32), &a, &b)), [10.0, 21.0, 65.0]);
        assert_eq!(values(&whole(ScanSpec::inclusive(RECURRENCE).reversed(), &a, &b)), [29.0, 14.0, 4.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive(RECURRENCE).reversed(), &a, &b)), [14.0, 4.0, 0.0]);
    }

    #[test]
    fn the_bound_is_that_of_its_two_recurrences() {
        let n = 1000usize;
        let (a, b) = (vec![-1.0f32; n], vec![1.0f32; n]);
        let expected = whole(ScanSpec::inclusive(RECURRENCE), &a, &b);
        let (u, i) = (2f64.powi(-24), 500.0);
        // |a| = |b| = 1: M[i] = i + 1 and D[i] = i (i + 1) / 2.
        let bound = u * (2.0 * i * (i + 1.0) / 2.0 + (4.0 * 1001f64.log2() + 4.0) * (i + 1.0));
        assert!((parts(&expected[500]).1 / bound - 1.0).abs() < 1e-9);
        assert_eq!(values(&expected)[499..502], [0.0, 1.0, 0.0]);
    }

    #[test]
    fn two_words_hold_what_f64_cannot() {
        let (a, b) = ([1.0, 1.0, 1.0, 1.0f64], [1.0, 2f64.powi(70), 1.0, -2f64.powi(70)]);
        assert_eq!(values(&whole(ScanSpec::inclusive(RECURRENCE), &a, &b))[3], 2.0);
        let third = 1.0f64 / 3.0;
        let exact = values(&whole(ScanSpec::inclusive_from(RECURRENCE, third), &[third, 1.0], &[0.0, -third * third]))[1];
        assert_eq!(exact, third.mul_add(third, -third * third));
    }

    #[test]
    fn nan_and_infinities_follow_the_definition_where_every_association_does() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let inclusive = ScanSpec::inclusive(RECURRENCE);
        // NaN stays, whatever the coefficients; at the first element, too, where it meets an initial state of 0.
        assert_eq!(whole(inclusive, &[1.0, 0.0, 0.0], &[1.0, nan, 1.0])[1..], [Expected::Nan; 2]);
        assert_eq!(whole(inclusive, &[nan, 0.0], &[1.0, 1.0]), [Expected::Nan; 2]);
        // An infinity keeps its sign, times those of the coefficients, until it meets 0 or its opposite.
        let got = whole(inclusive, &[1.0, 2.0, -0.5, 0.0, 1.0], &[1.0, inf, 3.0, 1.0, 1.0]);
        assert_eq!(got[1..3], [near(f64::INFINITY, 0.0), near(f64::NEG_INFINITY, 0.0)]);
        assert_eq!(got[3..], [Expected::Nan; 2]);
        assert_eq!(whole(inclusive, &[1.0, 1.0], &[inf, -inf])[1], Expected::Nan);
        // An infinite coefficient: infinite or NaN, which depends on a product with 0 that rounding may or may not make.
        for expected in &whole(inclusive, &[inf, 1.0, 0.0], &[1.0, 1.0, 1.0]) {
            assert_eq!(parts(expected), (f64::INFINITY, 0.0, true));
        }
        // Coefficients whose product overflows, times a state of 0: the definition is finite, a tree may give NaN.
        let huge = whole(inclusive, &[1e30f32, 1e30, 0.0, 1.0], &[0.0, 0.0, 5.0, 6.0]);
        assert_eq!(values(&huge), [0.0, 0.0, 5.0, 11.0]);
        assert_eq!(huge.iter().map(|e| parts(e).2).collect::<Vec<_>>(), [false, true, true, true]);
        // Coefficients whose product vanishes, times an infinity.
        let tiny = whole(inclusive, &[1.0, 1e-30f32, 1e-30], &[inf, 0.0, 0.0]);
        assert_eq!(tiny.iter().map(|e| parts(e).2).collect::<Vec<_>>(), [false, false, true]);
        // What leaves f64 itself says nothing more.
        assert_eq!(parts(&whole(inclusive, &[1e200f64; 3], &[1e200; 3])[2]), (0.0, f64::INFINITY, true));
    }
}
