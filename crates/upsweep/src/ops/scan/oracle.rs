//! The reference: what each output of a scan must be, and how far from it a right implementation may be.
//!
//! One walk over each row, in more precision than any rung has: compensated double precision, or exact integers. Bounds
//! come from error analysis; `u` is the unit roundoff of the accumulator, `v` of the output, `n` the row's length
//! (the initial value counts as an element), and sums run over what one output covers:
//!
//! | operator | bound on the absolute error of an output |
//! |---|---|
//! | min, max | 0 |
//! | sum, prod and the wrapping forms of integers | 0, modulo 2^64 (or the dtype's width) |
//! | sum of floats | `4 u log2(n) sum\|x\|`: see [`tree_bound`] |
//! | prod of floats | `1.01 k u \|prod\|`, `k` the number of elements that are not powers of two |
//! | logsumexp | `4 (e + u log2(n)) + 2 u (\|max\| + L)`: see [`log_sum_exp_bound`] |
//!
//! and, where the accumulator is wider than the output, half a unit in the last place of the output. An output that
//! covers one element, or none, must come out exactly. A linear recurrence has a bound of its own: see
//! [`linear_recurrence_bound`]. In segments, each is a row of its own.
//!
//! Why the bound of a tree holds for a scan: on its way into an output, an element passes the levels of one tree inside
//! a tile, then carries, which the rungs keep in a wider type for rounding sums (f64 for f32, double-double for f64),
//! then one rounding of the carry and one addition. A scan that carries a plain f32 from tile to tile commits a rounding
//! for each tile, which for inputs of one sign need not cancel: that is not covered, and must not be.

mod recurrence;

use super::{ScanKind, ScanProblem, Segments};
use crate::error::{Error, Result};
use crate::flow::HostSlice;
use crate::ops::reduce::oracle::{
    Compensated, Near, Overflow, Product, half_unit, largest, log_sum_exp_bound, map, near, product_of, tree_bound,
};
use crate::types::{DType, Element, Kind, Operator, dispatch};
use std::borrow::Cow;
use std::mem::MaybeUninit;

pub use crate::ops::reduce::oracle::Expected;
pub use recurrence::linear_recurrence_bound;

/// The expectation of every output of a problem over its input, and its second one where it has one, in the output's
/// order.
///
/// # Errors
/// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`], [`crate::Error::InvalidArgument`] if the inputs are
/// not the problem's.
pub fn reference(problem: &ScanProblem, input: HostSlice<'_>, second: Option<HostSlice<'_>>) -> Result<Vec<Expected>> {
    problem.check_host_operands(input, second, (problem.output_dtype(), problem.output_len()))?;
    if problem.user().is_some() {
        let allowed = "only the library's own operators have a reference; `UserOperator::check` tests others".into();
        return Err(Error::InvalidArgument { argument: "problem", got: problem.to_string(), allowed });
    }
    dispatch!(problem.dtype(), T => {
        let data = input.typed::<T>()?;
        if problem.operator() == Operator::LinearRecurrence {
            let coefficients = second.map_or(Ok(&[][..]), |second| second.typed::<T>())?;
            Ok(outputs(problem, |row, places| recurrence::scan_row(problem, coefficients, data, row, places)))
        } else {
            let heads = second.map_or(Ok(vec![]), |second| heads(problem, second))?;
            Ok(outputs(problem, |row, places| scan_row(problem, data, &heads, row, places)))
        }
    })
}

/// Where expectations go: they are many (as many as elements) and large, so each is written once, to where it stays.
type Places<'a> = &'a mut [MaybeUninit<Expected>];

/// Elements or outputs of one unit of parallel work.
const PIECE: usize = 1 << 16;

/// The rows' expectations in the output's order; `scan_row` writes those of a row by their position in the row.
fn outputs(problem: &ScanProblem, scan_row: impl Fn(u64, Places<'_>) + Send + Sync) -> Vec<Expected> {
    let (rows, length, inner) = (problem.rows() as usize, problem.length() as usize, problem.inner() as usize);
    if rows * length == 0 {
        return vec![];
    }
    if inner == 1 {
        return written(rows * length, |places| each_piece(places, length, |row, places| scan_row(row as u64, places)));
    }
    let columns = map(rows as u64, |row| written(length, |places| scan_row(row, places)));
    // A matrix of `inner` columns for each index in front of them; a few of its rows at once, so that lines are used whole.
    const AT_ONCE: usize = 8;
    written(rows * length, |places| {
        each_piece(places, length * inner, |matrix, places| {
            let columns = &columns[matrix * inner..(matrix + 1) * inner];
            each_piece(places, AT_ONCE * inner, |band, places| {
                for (at, column) in columns.iter().enumerate() {
                    for (place, expected) in places[at..].iter_mut().step_by(inner).zip(&column[band * AT_ONCE..]) {
                        place.write(*expected);
                    }
                }
            });
        });
    })
}

/// A list that `write` writes, every place of it.
fn written(count: usize, write: impl FnOnce(Places<'_>)) -> Vec<Expected> {
    let mut list = Vec::with_capacity(count);
    write(&mut list.spare_capacity_mut()[..count]);
    // SAFETY: the capacity is there, and who writes has written each of these places: `walk` one for each element, `outputs`
    // one for each element of each column.
    unsafe { list.set_len(count) };
    list
}

/// Calls a function for consecutive pieces, each with its number.
fn each_piece(places: Places<'_>, piece: usize, f: impl Fn(usize, Places<'_>) + Send + Sync) {
    #[cfg(feature = "cpu")]
    {
        use rayon::prelude::*;
        places.par_chunks_mut(piece).enumerate().for_each(|(number, places)| f(number, places));
    }
    #[cfg(not(feature = "cpu"))]
    places.chunks_mut(piece).enumerate().for_each(|(number, places)| f(number, places));
}

/// Does both, where threads are at hand at the same time.
fn both(a: impl FnOnce() + Send, b: impl FnOnce() + Send) {
    #[cfg(feature = "cpu")]
    rayon::join(a, b);
    #[cfg(not(feature = "cpu"))]
    {
        a();
        b();
    }
}

/// The elements of a row.
fn row_of<'a, T: Element>(problem: &ScanProblem, data: &'a [T], row: u64) -> Cow<'a, [T]> {
    let shape = problem.shape();
    if shape.length > 0 && shape.rows_are_contiguous() {
        let first = shape.index(row, 0) as usize;
        return Cow::Borrowed(&data[first..first + shape.length as usize]);
    }
    (0..shape.length).map(|position| data[shape.index(row, position) as usize]).collect()
}

/// The elements of a row, in the order in which they are scanned.
fn elements<'a, T: Element>(problem: &ScanProblem, data: &'a [T], row: u64) -> Cow<'a, [T]> {
    let mut elements = row_of(problem, data, row);
    if problem.reverse() {
        elements.to_mut().reverse();
    }
    elements
}

/// The positions at which segments begin, from the first element to the last, without those that are empty.
fn heads(problem: &ScanProblem, second: HostSlice<'_>) -> Result<Vec<usize>> {
    let shape = problem.shape();
    let mut heads = match problem.segments() {
        Segments::Offsets { .. } => second.typed::<u64>()?.iter().map(|offset| *offset as usize).collect(),
        _ => dispatch!(second.dtype(), K => {
            let keys = row_of(problem, second.typed::<K>()?, 0);
            (0..keys.len()).filter(|at| *at == 0 || keys[*at] != keys[at - 1]).collect::<Vec<_>>()
        }),
    };
    heads.dedup();
    heads.retain(|head| *head < shape.length as usize);
    Ok(heads)
}

/// The outputs of a row, by their position in the row; `heads` are where its segments begin, if it has any.
fn scan_row<T: Element>(problem: &ScanProblem, data: &[T], heads: &[usize], row: u64, places: Places<'_>) {
    let elements = elements(problem, data, row);
    let length = elements.len();
    // In reverse, the end of a segment is where its scan begins.
    let mut ends: Vec<usize> = if problem.reverse() {
        heads.iter().rev().map(|head| length - head).collect()
    } else {
        heads.iter().skip(1).copied().collect()
    };
    if ends.last() != Some(&length) {
        ends.push(length);
    }
    scan_segments(problem, &elements, &ends, 0, places);
    if problem.reverse() {
        places.reverse();
    }
}

/// The outputs of the segments that end at `ends`, of which the first begins at `from`; the places begin there, too.
fn scan_segments<T: Element>(problem: &ScanProblem, elements: &[T], ends: &[usize], from: usize, places: Places<'_>) {
    if ends.len() > 1 && places.len() > PIECE {
        let (front, back) = ends.split_at(ends.len() / 2);
        let middle = front[front.len() - 1];
        let (left, right) = places.split_at_mut(middle - from);
        return both(
            || scan_segments(problem, elements, front, from, left),
            || scan_segments(problem, elements, back, middle, right),
        );
    }
    let (mut from, mut places) = (from, places);
    for &to in ends {
        let (here, rest) = places.split_at_mut(to - from);
        scan_segment(problem, &elements[from..to], here);
        (from, places) = (to, rest);
    }
}

/// The outputs of a segment, in the order of the scan.
fn scan_segment<T: Element>(problem: &ScanProblem, elements: &[T], places: Places<'_>) {
    match problem.operator() {
        Operator::Sum if T::DTYPE.is_float() => float_sums(problem, elements, places),
        Operator::Prod if T::DTYPE.is_float() => float_products(problem, elements, places),
        Operator::Sum | Operator::WrappingSum => integers(problem, elements, 0, u64::wrapping_add, places),
        Operator::Prod | Operator::WrappingProd => integers(problem, elements, 1, u64::wrapping_mul, places),
        Operator::LogSumExp => log_sum_exps(problem, elements, places),
        Operator::Min => extrema(problem, elements, |a, b| a < b, places),
        _ => extrema(problem, elements, |a, b| a > b, places),
    }
}

/// Walks a row of as many elements as there are places: `output` makes an output of the state after elements `0..=i`, or,
/// exclusive, before element `i`.
///
/// Long rows are walked twice: once for the states at which their pieces begin, then piece by piece at the same time. What
/// is combined with what stays that of one walk.
fn walk<S: Clone + Send + Sync>(
    problem: &ScanProblem,
    initial: S,
    step: impl Fn(S, usize) -> S + Send + Sync,
    output: impl Fn(&S) -> Expected + Send + Sync,
    places: Places<'_>,
) {
    let inclusive = problem.kind() == ScanKind::Inclusive;
    let mut starts = vec![initial];
    for end in (PIECE..places.len()).step_by(PIECE) {
        let start = starts[starts.len() - 1].clone();
        starts.push((end - PIECE..end).fold(start, &step));
    }
    each_piece(places, PIECE, |piece, places| {
        let mut state = starts[piece].clone();
        for (place, i) in places.iter_mut().zip(piece * PIECE..) {
            if !inclusive {
                place.write(output(&state));
            }
            state = step(state, i);
            if inclusive {
                place.write(output(&state));
            }
        }
    });
}

fn integers<T: Element>(problem: &ScanProblem, elements: &[T], identity: u64, combine: fn(u64, u64) -> u64, places: Places<'_>) {
    let dtype = problem.output_dtype();
    let start = problem.initial().map_or(identity, |value| value.to_i128() as u64);
    let narrow = |bits: &u64| {
        let wide = if dtype.row().kind == Kind::Signed { i128::from(*bits as i64) } else { i128::from(*bits) };
        Expected::Exact(dispatch!(dtype, O => O::from_i128(wide).to_i128()))
    };
    walk(problem, start, |state, i| combine(state, elements[i].to_i128() as u64), narrow, places);
}

/// What a running sum needs to know of its elements.
#[derive(Clone, Copy, Default)]
struct Running {
    sum: Compensated,
    magnitude: f64,
    count: u64,
    nan: bool,
    positive_infinity: bool,
    negative_infinity: bool,
}

impl Running {
    fn plus(mut self, x: f64, scale: f64) -> Running {
        self.count += 1;
        match x {
            _ if x.is_nan() => self.nan = true,
            f64::INFINITY => self.positive_infinity = true,
            f64::NEG_INFINITY => self.negative_infinity = true,
            _ => {
                self.sum = self.sum.add(x * scale);
                self.magnitude += (x * scale).abs();
            }
        }
        self
    }
}

fn float_sums<T: Element>(problem: &ScanProblem, elements: &[T], places: Places<'_>) {
    let first = problem.initial();
    // Where the sum of magnitudes leaves the range of f64 itself, on elements small enough that it cannot.
    let finite = |x: f64| if x.is_finite() { x.abs() } else { 0.0 };
    let magnitude: f64 = elements.iter().map(|x| finite(x.to_f64())).chain(first.map(|x| finite(x.to_f64()))).sum();
    let scale = if magnitude.is_finite() { 1.0 } else { 2f64.powi(-100) };
    let dtype = problem.dtype();
    let accumulator = dtype.row().accumulator;
    let n = elements.len() as u64 + u64::from(first.is_some());
    let limit = largest(accumulator) * (1.0 - 1e-6);
    let output = |state: &Running| {
        match (state.nan, state.positive_infinity, state.negative_infinity) {
            (true, _, _) | (_, true, true) => return Expected::Nan,
            (_, true, _) => return near(f64::INFINITY, 0.0),
            (_, _, true) => return near(f64::NEG_INFINITY, 0.0),
            _ => {}
        }
        let value = state.sum.value() / scale;
        if state.count <= 1 {
            return near(value, 0.0);
        }
        let mut bound = tree_bound(accumulator.row().unit_roundoff, n, state.magnitude) / scale;
        if accumulator != dtype {
            bound += half_unit(dtype, value.abs() + bound);
        }
        // The sums of the positive and of the negative elements bound every partial sum.
        let reach = |sign: f64| (state.magnitude + sign * state.sum.value()) / 2.0 / scale >= limit;
        Expected::Near(Near { value, bound, overflow: Overflow { positive: reach(1.0), negative: reach(-1.0) } })
    };
    let start = first.map_or(Running::default(), |x| Running::default().plus(x.to_f64(), scale));
    walk(problem, start, |state, i| state.plus(elements[i].to_f64(), scale), output, places);
}

fn float_products<T: Element>(problem: &ScanProblem, elements: &[T], places: Places<'_>) {
    let start = problem.initial().map_or((0, Product::ONE), |x| (1, Product::ONE.times(x.to_f64())));
    let step = |(count, product): (u64, Product), i: usize| (count + 1, product.times(elements[i].to_f64()));
    walk(problem, start, step, |&(count, product)| product_of(problem.dtype(), count, product), places);
}

/// A running sum of exponentials.
#[derive(Clone)]
struct Exponentials {
    count: u64,
    nan: bool,
    max: f64,
    /// What the terms are relative to: at most one below the maximum, so that terms shrink e-fold at least whenever all are
    /// made relative to another one, and the roundings of that do not add up.
    shift: f64,
    sum: Compensated,
}

impl Exponentials {
    fn none() -> Exponentials {
        let (max, shift) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
        Exponentials { count: 0, nan: false, max, shift, sum: Compensated::default() }
    }

    fn plus(mut self, x: f64) -> Exponentials {
        self.count += 1;
        self.nan |= x.is_nan();
        self.max = self.max.max(x);
        if x.is_finite() {
            if x > self.shift + 1.0 {
                let before = if self.shift.is_finite() { self.sum.value() * (self.shift - x).exp() } else { 0.0 };
                (self.shift, self.sum) = (x, Compensated::default().add(before));
            }
            self.sum = self.sum.add((x - self.shift).exp());
        }
        self
    }
}

fn log_sum_exps<T: Element>(problem: &ScanProblem, elements: &[T], places: Places<'_>) {
    let first = problem.initial();
    let n = elements.len() as u64 + u64::from(first.is_some());
    let output = |state: &Exponentials| {
        if state.nan {
            return Expected::Nan;
        }
        if state.count <= 1 || state.max.is_infinite() {
            return near(state.max, 0.0);
        }
        let log_of_sum = state.sum.value().ln();
        let value = state.shift + log_of_sum;
        let bound = log_sum_exp_bound(T::DTYPE, n, state.max, value - state.max);
        near(value, bound + half_unit(T::DTYPE, value.abs() + bound))
    };
    let start = first.map_or(Exponentials::none(), |x| Exponentials::none().plus(x.to_f64()));
    walk(problem, start, |state, i| state.plus(elements[i].to_f64()), output, places);
}

fn extrema<T: Element>(problem: &ScanProblem, elements: &[T], better: fn(&T, &T) -> bool, places: Places<'_>) {
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    let exact = |x: &T| match T::DTYPE {
        _ if is_nan(x) => Expected::Nan,
        dtype if dtype.is_float() => near(x.to_f64(), 0.0),
        _ => Expected::Exact(x.to_i128()),
    };
    let step = |best: Option<T>, i: usize| match best {
        Some(best) if is_nan(&best) || !(is_nan(&elements[i]) || better(&elements[i], &best)) => Some(best),
        _ => Some(elements[i]),
    };
    let start = problem.initial().and_then(|value| value.typed::<T>().ok());
    // Of nothing: the identity.
    let identity = match (problem.operator(), T::DTYPE.row().kind) {
        (Operator::Min, Kind::Float) => near(f64::INFINITY, 0.0),
        (_, Kind::Float) => near(f64::NEG_INFINITY, 0.0),
        (operator, _) => {
            let (lowest, highest) = integer_limits(T::DTYPE);
            Expected::Exact(if operator == Operator::Min { highest } else { lowest })
        }
    };
    walk(problem, start, step, |best| best.as_ref().map_or(identity, exact), places);
}

/// The least and the greatest value of an integer dtype.
fn integer_limits(dtype: DType) -> (i128, i128) {
    let bits = 8 * dtype.size();
    match dtype.row().kind {
        Kind::Bool => (0, 1),
        Kind::Signed => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        _ => (0, (1 << bits) - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::scan::ScanSpec;
    use crate::types::Layout;
    use half::f16;

    fn whole<T: Element>(spec: ScanSpec, data: &[T]) -> Vec<Expected> {
        let problem = ScanProblem::whole(spec, T::DTYPE, data.len() as u64).unwrap();
        reference(&problem, HostSlice::from(data), None).unwrap()
    }

    fn values(expected: &[Expected]) -> Vec<f64> {
        let value = |e: &Expected| match *e {
            Expected::Near(near) => near.value,
            Expected::Exact(integer) => integer as f64,
            Expected::Nan => f64::NAN,
        };
        expected.iter().map(value).collect()
    }

    #[test]
    fn the_public_answers() {
        let x = [3i32, 1, 4, 1, 5, 9, 2, 6];
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Sum), &x)), [0., 3., 4., 8., 9., 14., 23., 25.]);
        assert_eq!(values(&whole(ScanSpec::inclusive(Operator::Sum).reversed(), &x)), [31., 28., 27., 23., 22., 17., 8., 6.]);
        let near_the_end = [i64::MAX - 1, 1, 0];
        let sums = whole(ScanSpec::exclusive(Operator::Sum), &near_the_end);
        assert_eq!(sums, [0, i64::MAX - 1, i64::MAX].map(|v| Expected::Exact(v.into())));
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Sum), &[0.5f32, 1.25, 2.5])), [0.0, 0.5, 1.75]);
        assert_eq!(values(&whole(ScanSpec::inclusive(Operator::Sum), &[1u8; 300]))[299], 300.0);
        let maxima = whole(ScanSpec::inclusive(Operator::Max), &[1.0f32, f32::NAN, 5.0]);
        assert_eq!(maxima, [near(1.0, 0.0), Expected::Nan, Expected::Nan]);
    }

    #[test]
    fn exclusive_starts_with_the_initial_value_and_reverse_from_the_end() {
        let x = [1.0f32, 2.0, 4.0];
        assert_eq!(values(&whole(ScanSpec::exclusive_from(Operator::Sum, 10.0f32), &x)), [10.0, 11.0, 13.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive_from(Operator::Sum, 10.0f32).reversed(), &x)), [16.0, 14.0, 10.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Prod), &x)), [1.0, 1.0, 2.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Min), &x)), [f64::INFINITY, 1.0, 1.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Max), &[3u8, 7])), [0.0, 3.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive(Operator::Min), &[3i8, 7])), [127.0, 3.0]);
        assert_eq!(values(&whole(ScanSpec::exclusive_from(Operator::WrappingSum, 100i8), &[100i8, 1])), [100.0, -56.0]);
    }

    #[test]
    fn specials_turn_the_rest_of_the_row() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let sums = whole(ScanSpec::inclusive(Operator::Sum), &[1.0, inf, 2.0, -inf, 3.0, nan]);
        assert_eq!(sums[1..3], [near(f64::INFINITY, 0.0); 2]);
        assert_eq!(sums[3..], [Expected::Nan; 3]);
        let products = whole(ScanSpec::inclusive(Operator::Prod), &[0.0, inf, 1.0]);
        assert_eq!(products, [near(0.0, 0.0), Expected::Nan, Expected::Nan]);
    }

    #[test]
    fn bounds_grow_with_the_prefix_and_short_ones_are_exact() {
        let data = vec![0.1f32; 1024];
        let sums = whole(ScanSpec::inclusive(Operator::Sum), &data);
        let bound = |i: usize| match sums[i] {
            Expected::Near(near) => near.bound,
            other => panic!("{other:?}"),
        };
        assert_eq!(bound(0), 0.0);
        assert!(bound(1) > 0.0 && bound(1) < bound(1023));
        let (u, total) = (1.0 / (1u64 << 24) as f64, 1024.0 * f64::from(0.1f32));
        assert!((bound(1023) - 4.0 * 10.0 * u * total).abs() < 1e-3 * bound(1023));
        // f64 beyond its own range, and halves whose accumulator holds what the output cannot.
        let huge = whole(ScanSpec::inclusive(Operator::Sum), &[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX, 1e300]);
        assert_eq!(values(&huge)[4], 1e300);
        let halves = whole(ScanSpec::inclusive(Operator::Sum), &[f16::MAX, f16::MAX, f16::MIN]);
        assert_eq!(values(&halves), [65504.0, 131_008.0, 65504.0]);
    }

    #[test]
    fn rows_of_any_layout() {
        let data: Vec<i32> = (0..12).collect();
        let layout = Layout::strided(&[3, 4], &[-4, 1], 8).unwrap();
        let along = |axis| {
            let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Sum), DType::I32, &layout, axis).unwrap();
            values(&reference(&problem, HostSlice::from(&data[..]), None).unwrap())
        };
        assert_eq!(along(Some(1)), [8., 17., 27., 38., 4., 9., 15., 22., 0., 1., 3., 6.]);
        assert_eq!(along(Some(0)), [8., 9., 10., 11., 12., 14., 16., 18., 12., 15., 18., 21.]);
        assert_eq!(along(None)[11], 66.0);
    }
}
