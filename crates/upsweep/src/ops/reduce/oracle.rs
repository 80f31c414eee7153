//! The reference: what a reduction must give, and how far from it a right implementation may be.
//!
//! Values are computed in more precision than any rung has (compensated double precision, or exact integers), in
//! parallel, straight from the elements. Bounds come from error analysis, per operator, dtype and length; `u` is the
//! unit roundoff of the accumulator, `v` of the output:
//!
//! | operator | bound on the absolute error |
//! |---|---|
//! | min, max, argmin, argmax, nan_min, nan_max | 0 |
//! | sum, prod and the wrapping forms of integers | 0, modulo 2^64 (or the dtype's width) |
//! | sum of floats | `4 u log2(n) sum\|x\|`: see [`tree_bound`] |
//! | mean | the sum's over `n`, plus `2 u \|mean\|` for the division and the count's own rounding |
//! | sum and mean, compensated | the same with `u = 2^-53` (f32, f16, bf16) or `2^-104` (f64) |
//! | prod of floats | `1.01 k u \|prod\|`, `k` the number of elements that are not powers of two (the others multiply exactly) |
//! | logsumexp | see [`log_sum_exp_bound`] |
//!
//! and, wherever the accumulator is wider than the output or is divided at the end, half a unit in the last place of the
//! output: `v \|result\|`, or half its smallest subnormal. One element, or none, must come out exactly.
//!
//! Infinities and NaN in the input lead to the one result that IEEE arithmetic gives in any order. Where the partial
//! results of *some* order of combination could leave the accumulator's range although the input is finite, the
//! expectation says so in [`Overflow`]; only then may an infinity (or, if both signs can overflow, NaN) stand for a
//! finite value.

use super::ReduceProblem;
use crate::error::{Error, Result};
use crate::flow::HostSlice;
use crate::types::{Accuracy, DType, Element, Kind, Operator, dispatch};

/// Elements of one unit of parallel work.
const CHUNK: u64 = 1 << 15;

/// The constant of the documented promise for tree sums.
pub const TREE_CONSTANT: f64 = 4.0;

/// Relative error of the fast device exponential (`ex2.approx`), as the PTX manual states it: 2^-22.
pub const FAST_EXP_ERROR: f64 = 1.0 / (1u64 << 22) as f64;

/// What one output must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expected {
    /// Exactly this integer, truth value (0 or 1) or index.
    Exact(i128),
    /// NaN and nothing else.
    Nan,
    /// A float within a bound.
    Near(Near),
}

/// A float within a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// The reference, possibly infinite; if it is, and partial results could overflow to both signs, the other infinity and
    /// NaN are as right.
    pub value: f64,
    /// Largest allowed `|result - value|`, the output's rounding included.
    pub bound: f64,
    /// Whether partial results could overflow.
    pub overflow: Overflow,
}

/// Signs in which partial results of finite elements could overflow in some order of combination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overflow {
    /// Towards +inf.
    pub positive: bool,
    /// Towards -inf.
    pub negative: bool,
}

/// The bound of a tree sum: `4 u log2(n) sum|x|`.
///
/// A tree of depth `d` commits at most `d` roundings on the way of each element, hence `d u sum|x|` to first order.
/// Kernels whose lanes add `h` elements one after the other before the tree have depth `h + log2(n / h)`, but roundings
/// of independent sign grow with `sqrt(h)`: the constant covers runs of several thousand. A single accumulator over
/// millions of elements is not covered, and must not be.
pub fn tree_bound(unit_roundoff: f64, n: u64, sum_of_magnitudes: f64) -> f64 {
    if n <= 1 { 0.0 } else { TREE_CONSTANT * unit_roundoff * (n as f64).log2() * sum_of_magnitudes }
}

/// The bound of a logsumexp: with the largest element `m` and `L = ln(sum exp(x - m))`, `0 <= L <= ln n`.
///
/// A relative error `r` of the sum is an absolute error `r` of `L`, whatever its size, and that is the floor near zero.
/// `r` has three parts. Each exponential is off by the device's `e` (2^-22 for f32 states, four units of f64 for f64
/// states), and its argument's rounding by `2 u |t|`, which weighed with `exp(-|t|)` is below `u`. The tree of
/// additions contributes `u log2(n)`. Whenever a partial's maximum changes, its sum is rescaled once more, which costs
/// another `e` on the terms so far; terms behind many rescalings are small by then. Together `4 (e + u log2(n))` with
/// room to spare. The logarithm and the last addition round relative to their operands: `2 u (|m| + L)`.
pub fn log_sum_exp_bound(dtype: DType, n: u64, max: f64, log_of_sum: f64) -> f64 {
    let u = dtype.row().accumulator.row().unit_roundoff;
    let exponential = if dtype == DType::F64 { 4.0 * u } else { FAST_EXP_ERROR };
    4.0 * (exponential + u * (n as f64).log2().max(1.0)) + 2.0 * u * (max.abs() + log_of_sum.abs())
}

/// The expectation of every output of a problem over its input.
///
/// # Errors
/// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`] if the input is not the problem's.
pub fn reference(problem: &ReduceProblem, input: HostSlice<'_>) -> Result<Vec<Expected>> {
    problem.check_operands((input.dtype(), input.len() as u64), (problem.output_dtype(), problem.shape().outputs))?;
    if problem.user().is_some() {
        let allowed = "only the library's own operators have a reference; `UserOperator::check` tests others".into();
        return Err(Error::InvalidArgument { argument: "problem", got: problem.to_string(), allowed });
    }
    dispatch!(problem.dtype(), T => {
        let data = input.typed::<T>()?;
        Ok(map(problem.shape().outputs, |output| expect(problem, &Row { problem, data, output })))
    })
}

/// Calls a function for 0..count, on all threads where there are some, and keeps the order.
pub(crate) fn map<R: Send>(count: u64, f: impl Fn(u64) -> R + Send + Sync) -> Vec<R> {
    #[cfg(feature = "cpu")]
    {
        use rayon::prelude::*;
        (0..count as usize).into_par_iter().map(|i| f(i as u64)).collect()
    }
    #[cfg(not(feature = "cpu"))]
    (0..count).map(f).collect()
}

struct Row<'a, T> {
    problem: &'a ReduceProblem,
    data: &'a [T],
    output: u64,
}

impl<T: Element> Row<'_, T> {
    fn len(&self) -> u64 {
        self.problem.shape().length
    }

    /// Applies a function to consecutive pieces of the row, each with the index of its first element.
    fn chunks<R: Send>(&self, f: impl Fn(&[T], u64) -> R + Send + Sync) -> Vec<R> {
        let shape = self.problem.shape();
        let contiguous = shape.rows_are_contiguous();
        map(self.len().div_ceil(CHUNK), |chunk| {
            let (from, to) = (chunk * CHUNK, ((chunk + 1) * CHUNK).min(self.len()));
            if contiguous {
                let start = shape.index(self.output, from) as usize;
                f(&self.data[start..start + (to - from) as usize], from)
            } else {
                let gathered: Vec<T> = (from..to).map(|p| self.data[shape.index(self.output, p) as usize]).collect();
                f(&gathered, from)
            }
        })
    }
}

fn expect<T: Element>(problem: &ReduceProblem, row: &Row<'_, T>) -> Expected {
    let is_float = T::DTYPE.is_float();
    match problem.operator() {
        Operator::Sum if is_float => float_sum(problem, row, false),
        Operator::Mean if is_float => float_sum(problem, row, true),
        Operator::Prod if is_float => float_product(problem, row),
        Operator::Mean => integer_mean(row),
        Operator::Sum | Operator::WrappingSum => narrow(problem, integer_sum(row).0 as u64),
        Operator::Prod | Operator::WrappingProd => narrow(problem, integer_product(row)),
        Operator::LogSumExp => log_sum_exp(row),
        Operator::Min => extremum(row, |a, b| a < b, Nans::Propagate),
        Operator::Max => extremum(row, |a, b| a > b, Nans::Propagate),
        Operator::NanMin => extremum(row, |a, b| a < b, Nans::Ignore),
        Operator::NanMax => extremum(row, |a, b| a > b, Nans::Ignore),
        Operator::ArgMin => extremum(row, |a, b| a < b, Nans::Index),
        Operator::ArgMax => extremum(row, |a, b| a > b, Nans::Index),
        // Refused with the problem.
        Operator::LinearRecurrence | Operator::User => Expected::Nan,
    }
}

/// The low bits of a 64-bit result as the operator's output.
fn narrow(problem: &ReduceProblem, bits: u64) -> Expected {
    let dtype = problem.output_dtype();
    let wide = if dtype.row().kind == Kind::Signed { i128::from(bits as i64) } else { i128::from(bits) };
    Expected::Exact(dispatch!(dtype, O => O::from_i128(wide).to_i128()))
}

/// The exact sum, and the sum of magnitudes.
fn integer_sum<T: Element>(row: &Row<'_, T>) -> (i128, f64) {
    let parts = row.chunks(|chunk, _| {
        chunk.iter().fold((0i128, 0i128), |(sum, magnitude), x| {
            let x = x.to_i128();
            (sum + x, magnitude + x.abs())
        })
    });
    let (sum, magnitude) = parts.iter().fold((0i128, 0i128), |a, b| (a.0 + b.0, a.1 + b.1));
    (sum, magnitude as f64)
}

fn integer_product<T: Element>(row: &Row<'_, T>) -> u64 {
    let multiply = |a: u64, b: u64| a.wrapping_mul(b);
    row.chunks(|chunk, _| chunk.iter().map(|x| x.to_i128() as u64).fold(1, multiply)).into_iter().fold(1, multiply)
}

/// Integers are averaged in f64: each element rounds once (64-bit ones), then the tree, then the division.
fn integer_mean<T: Element>(row: &Row<'_, T>) -> Expected {
    let n = row.len();
    if n == 0 {
        return Expected::Nan;
    }
    let u = DType::F64.row().unit_roundoff;
    let (sum, magnitude) = integer_sum(row);
    let value = sum as f64 / n as f64;
    let bound = (tree_bound(u, n, magnitude) + u * magnitude) / n as f64 + 2.0 * u * value.abs();
    Expected::Near(Near { value, bound, overflow: Overflow::default() })
}

/// A sum in twice the working precision: `high` rounded, `low` what rounding left out.
#[derive(Clone, Copy, Default)]
pub(crate) struct Compensated {
    high: f64,
    low: f64,
}

impl Compensated {
    #[inline(always)]
    pub(crate) fn add(self, x: f64) -> Compensated {
        let high = self.high + x;
        let virtual_x = high - self.high;
        let lost = (self.high - (high - virtual_x)) + (x - virtual_x);
        Compensated { high, low: self.low + lost }
    }

    fn merge(self, other: Compensated) -> Compensated {
        let sum = self.add(other.high);
        Compensated { low: sum.low + other.low, ..sum }
    }

    pub(crate) fn value(self) -> f64 {
        self.high + self.low
    }
}

/// What a sum needs to know of its elements.
#[derive(Clone, Copy, Default)]
struct Total {
    sum: Compensated,
    magnitude: f64,
    nan: bool,
    positive_infinity: bool,
    negative_infinity: bool,
}

impl Total {
    fn merge(self, other: Total) -> Total {
        Total {
            sum: self.sum.merge(other.sum),
            magnitude: self.magnitude + other.magnitude,
            nan: self.nan || other.nan,
            positive_infinity: self.positive_infinity || other.positive_infinity,
            negative_infinity: self.negative_infinity || other.negative_infinity,
        }
    }

    fn of<T: Element>(chunk: &[T], scale: f64) -> Total {
        const LANES: usize = 8;
        let mut sums = [Compensated::default(); LANES];
        let mut magnitudes = [0.0f64; LANES];
        let packs = chunk.chunks_exact(LANES);
        let rest = packs.remainder();
        for pack in packs {
            for lane in 0..LANES {
                let x = pack[lane].to_f64() * scale;
                sums[lane] = sums[lane].add(x);
                magnitudes[lane] += x.abs();
            }
        }
        for (lane, x) in rest.iter().enumerate() {
            let x = x.to_f64() * scale;
            sums[lane] = sums[lane].add(x);
            magnitudes[lane] += x.abs();
        }
        let sum = sums.into_iter().fold(Compensated::default(), Compensated::merge);
        let magnitude: f64 = magnitudes.iter().sum();
        if sum.value().is_finite() && magnitude.is_finite() {
            return Total { sum, magnitude, ..Total::default() };
        }
        // Something here is not finite: look at each element.
        let mut total = Total::default();
        for x in chunk.iter().map(|x| x.to_f64()) {
            match x {
                _ if x.is_nan() => total.nan = true,
                f64::INFINITY => total.positive_infinity = true,
                f64::NEG_INFINITY => total.negative_infinity = true,
                _ => {
                    total.sum = total.sum.add(x * scale);
                    total.magnitude += (x * scale).abs();
                }
            }
        }
        total
    }
}

/// Largest finite value of an accumulator.
pub(crate) fn largest(accumulator: DType) -> f64 {
    if accumulator == DType::F64 { f64::MAX } else { f32::MAX.into() }
}

/// Half the distance between `value` and its neighbours in a float dtype, at most.
pub(crate) fn half_unit(dtype: DType, value: f64) -> f64 {
    let half_smallest_subnormal = match dtype {
        DType::F16 => 2f64.powi(-25),
        DType::Bf16 => 2f64.powi(-134),
        DType::F32 => 2f64.powi(-150),
        _ => 0.0,
    };
    dtype.row().unit_roundoff * value.abs() + half_smallest_subnormal
}

pub(crate) fn near(value: f64, bound: f64) -> Expected {
    Expected::Near(Near { value, bound, overflow: Overflow::default() })
}

fn float_sum<T: Element>(problem: &ReduceProblem, row: &Row<'_, T>, mean: bool) -> Expected {
    let n = row.len();
    if n == 0 {
        return if mean { Expected::Nan } else { near(0.0, 0.0) };
    }
    let total = |scale: f64| row.chunks(|chunk, _| Total::of(chunk, scale)).into_iter().fold(Total::default(), Total::merge);
    let mut facts = total(1.0);
    let mut unscale = 1.0;
    if !(facts.sum.value().is_finite() && facts.magnitude.is_finite()) {
        // Partial sums left the range of f64 itself: again, on elements small enough that they cannot.
        (facts, unscale) = (total(2f64.powi(-100)), 2f64.powi(100));
    }
    match (facts.nan, facts.positive_infinity, facts.negative_infinity) {
        (true, _, _) | (_, true, true) => return Expected::Nan,
        (_, true, _) => return near(f64::INFINITY, 0.0),
        (_, _, true) => return near(f64::NEG_INFINITY, 0.0),
        _ => {}
    }
    let dtype = problem.dtype();
    let compensated = problem.accuracy() == Accuracy::Compensated;
    let accumulator = if compensated { DType::F64 } else { dtype.row().accumulator };
    let u = match (compensated, dtype) {
        (true, DType::F64) => 2f64.powi(-104),
        _ => accumulator.row().unit_roundoff,
    };
    let count = if mean { n as f64 } else { 1.0 };
    let value = facts.sum.value() / count * unscale;
    let mut bound = tree_bound(u, n, facts.magnitude) / count * unscale;
    if n > 1 {
        if mean {
            bound += 2.0 * accumulator.row().unit_roundoff * value.abs();
        }
        // Plain sums are rounded to the output's type by the tree's own last addition.
        if accumulator != dtype || mean || compensated {
            bound += half_unit(dtype, value.abs() + bound);
        }
    }
    // The sums of the positive and of the negative elements, with room for rounding, bound every partial sum.
    let limit = largest(accumulator) * (1.0 - 1e-6);
    let reach = |sign: f64| (facts.magnitude + sign * facts.sum.value()) / 2.0 * unscale >= limit;
    Expected::Near(Near { value, bound, overflow: Overflow { positive: reach(1.0), negative: reach(-1.0) } })
}

/// A product as `(high + low) * 2^exponent`.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    high: f64,
    low: f64,
    exponent: i64,
    /// Elements that are not powers of two.
    inexact: u64,
    /// Sum of the positive, and of the negative, base-2 logarithms of the magnitudes.
    up: f64,
    down: f64,
    zero: bool,
    nan: bool,
    infinity: bool,
    negative: bool,
}

impl Product {
    pub(crate) const ONE: Product = Product {
        high: 1.0,
        low: 0.0,
        exponent: 0,
        inexact: 0,
        up: 0.0,
        down: 0.0,
        zero: false,
        nan: false,
        infinity: false,
        negative: false,
    };

    pub(crate) fn times(mut self, x: f64) -> Product {
        if x.is_nan() {
            self.nan = true;
            return self;
        }
        self.negative ^= x.is_sign_negative();
        let magnitude = x.abs();
        if magnitude == 1.0 {
            return self;
        }
        if magnitude == 0.0 || magnitude.is_infinite() {
            self.zero |= magnitude == 0.0;
            self.infinity |= magnitude != 0.0;
            return self;
        }
        let (fraction, exponent) = split(magnitude);
        self.inexact += u64::from(fraction != 0.5);
        let logarithm = fraction.log2() + exponent as f64;
        self.up += logarithm.max(0.0);
        self.down -= logarithm.min(0.0);
        self.multiply(fraction, 0.0, exponent);
        self
    }

    fn multiply(&mut self, high: f64, low: f64, exponent: i64) {
        let product = self.high * high;
        let lost = self.high.mul_add(high, -product) + (self.low * high + self.high * low);
        let rounded = product + lost;
        let (fraction, shift) = split(rounded);
        let scale = 2f64.powi(-shift as i32);
        self.low = (lost - (rounded - product)) * scale;
        self.high = fraction;
        self.exponent += exponent + shift;
    }

    fn merge(mut self, other: Product) -> Product {
        self.multiply(other.high, other.low, other.exponent);
        self.inexact += other.inexact;
        self.up += other.up;
        self.down += other.down;
        self.zero |= other.zero;
        self.nan |= other.nan;
        self.infinity |= other.infinity;
        self.negative ^= other.negative;
        self
    }

    /// The magnitude as f64, which may overflow or underflow.
    fn magnitude(self) -> f64 {
        // In two steps, because a single power of two could overflow or underflow before the product does.
        let exponent = self.exponent.clamp(-2400, 2400) as i32;
        (self.high + self.low) * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
    }
}

/// A positive finite number as `fraction * 2^exponent` with the fraction in 0.5..1.
fn split(x: f64) -> (f64, i64) {
    let (x, shift) = if x < f64::MIN_POSITIVE { (x * 2f64.powi(64), -64) } else { (x, 0) };
    let bits = x.to_bits();
    let exponent = ((bits >> 52) & 0x7ff) as i64 - 1022;
    (f64::from_bits((bits & !(0x7ff << 52)) | (1022 << 52)), exponent + shift)
}

fn float_product<T: Element>(problem: &ReduceProblem, row: &Row<'_, T>) -> Expected {
    let n = row.len();
    let parts = row.chunks(|chunk, _| chunk.iter().fold(Product::ONE, |product, x| product.times(x.to_f64())));
    product_of(problem.dtype(), n, parts.into_iter().fold(Product::ONE, Product::merge))
}

/// What a product of `n` elements of a dtype must be.
pub(crate) fn product_of(dtype: DType, n: u64, product: Product) -> Expected {
    let sign = if product.negative { -1.0 } else { 1.0 };
    if product.nan || (product.zero && product.infinity) {
        return Expected::Nan;
    }
    if product.infinity {
        return near(sign * f64::INFINITY, 0.0);
    }
    let accumulator = dtype.row().accumulator;
    // Exponents beyond which some order of multiplication could overflow, or underflow.
    let (highest, lowest) = if accumulator == DType::F64 { (1024.0, 1022.0) } else { (128.0, 126.0) };
    let may_overflow = product.up >= highest - 1e-6;
    let may_underflow = product.down >= lowest - 1e-6;
    if product.zero {
        // A partial that overflowed meets the zero as inf * 0.
        return Expected::Near(Near {
            value: 0.0,
            bound: 0.0,
            overflow: Overflow { positive: may_overflow, negative: may_overflow },
        });
    }
    let value = sign * product.magnitude();
    let mut bound = 1.01 * product.inexact as f64 * accumulator.row().unit_roundoff * value.abs();
    if n > 1 && accumulator != dtype {
        bound += half_unit(dtype, value.abs() + bound);
    }
    if may_underflow && n > 1 {
        // A partial may have lost its digits, or become zero.
        bound += value.abs();
    }
    let overflow = n > 1 && may_overflow;
    Expected::Near(Near { value, bound, overflow: Overflow { positive: overflow, negative: overflow } })
}

fn log_sum_exp<T: Element>(row: &Row<'_, T>) -> Expected {
    let n = row.len();
    let parts = row.chunks(|chunk, _| {
        chunk.iter().fold((false, f64::NEG_INFINITY), |(nan, max), x| {
            let x = x.to_f64();
            (nan || x.is_nan(), max.max(x))
        })
    });
    let (nan, max) = parts.into_iter().fold((false, f64::NEG_INFINITY), |a, b| (a.0 || b.0, a.1.max(b.1)));
    if nan {
        return Expected::Nan;
    }
    if max.is_infinite() {
        return near(max, 0.0);
    }
    let sum = row
        .chunks(|chunk, _| chunk.iter().fold(Compensated::default(), |sum, x| sum.add((x.to_f64() - max).exp())))
        .into_iter()
        .fold(Compensated::default(), Compensated::merge)
        .value();
    let log_of_sum = sum.ln();
    let value = max + log_of_sum;
    if n == 1 {
        return near(value, 0.0);
    }
    let bound = log_sum_exp_bound(T::DTYPE, n, max, log_of_sum);
    near(value, bound + half_unit(T::DTYPE, value.abs() + bound))
}

enum Nans {
    Propagate,
    Ignore,
    Index,
}

fn extremum<T: Element>(row: &Row<'_, T>, better: fn(&T, &T) -> bool, nans: Nans) -> Expected {
    // Per piece: where the first NaN is, and the first of the best elements that are not NaN.
    let parts = row.chunks(|chunk, from| {
        let (mut first_nan, mut best): (Option<u64>, Option<(T, u64)>) = (None, None);
        for (x, index) in chunk.iter().zip(from..) {
            if x.partial_cmp(x).is_none() {
                first_nan = first_nan.or(Some(index));
            } else if best.is_none_or(|(value, _)| better(x, &value)) {
                best = Some((*x, index));
            }
        }
        (first_nan, best)
    });
    let mut first_nan = None;
    let mut best: Option<(T, u64)> = None;
    for (nan, candidate) in parts {
        first_nan = first_nan.or(nan);
        if let Some(candidate) = candidate
            && best.is_none_or(|(value, _)| better(&candidate.0, &value))
        {
            best = Some(candidate);
        }
    }
    match (nans, first_nan, best) {
        (Nans::Index, Some(index), _) | (Nans::Index, None, Some((_, index))) => Expected::Exact(index.into()),
        (Nans::Propagate, Some(_), _) => Expected::Nan,
        (_, _, Some((value, _))) if T::DTYPE.is_float() => near(value.to_f64(), 0.0),
        (_, _, Some((value, _))) => Expected::Exact(value.to_i128()),
        // Nothing but NaN; an empty row was refused when the problem was built.
        (_, _, None) => Expected::Nan,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Layout;
    use half::f16;

    fn whole<T: Element>(operator: Operator, data: &[T]) -> Expected {
        let problem = ReduceProblem::whole(operator, T::DTYPE, data.len() as u64).unwrap();
        reference(&problem, HostSlice::from(data)).unwrap()[0]
    }

    fn value(expected: Expected) -> f64 {
        match expected {
            Expected::Near(near) => near.value,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sums_keep_what_plain_f64_loses() {
        let data: Vec<f64> = (0..100_000).flat_map(|i| [1e16, i as f64, -1e16]).collect();
        assert_eq!(value(whole(Operator::Sum, &data)), 4_999_950_000.0);
        assert_eq!(value(whole(Operator::Mean, &[f16::from_f32(60000.0); 2])), 60000.0);
        let ones = vec![1f32; 1 << 20];
        assert_eq!(value(whole(Operator::Sum, &ones)), (1 << 20) as f64);
    }

    #[test]
    fn nothing_gives_the_identity() {
        assert_eq!(whole::<f32>(Operator::Sum, &[]), near(0.0, 0.0));
        assert_eq!(whole::<f32>(Operator::Prod, &[]), near(1.0, 0.0));
        assert_eq!(whole::<u8>(Operator::Sum, &[]), Expected::Exact(0));
        assert_eq!(whole::<i8>(Operator::Prod, &[]), Expected::Exact(1));
        assert_eq!(whole::<i32>(Operator::Mean, &[]), Expected::Nan);
        assert_eq!(whole::<f64>(Operator::LogSumExp, &[]), near(f64::NEG_INFINITY, 0.0));
    }

    #[test]
    fn specials_follow_ieee() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(whole(Operator::Sum, &[1.0, inf, -inf]), Expected::Nan);
        assert_eq!(whole(Operator::Sum, &[1.0, inf, 2.0]), near(f64::INFINITY, 0.0));
        assert_eq!(whole(Operator::Prod, &[0.0, inf]), Expected::Nan);
        assert_eq!(whole(Operator::Prod, &[-2.0, inf]), near(f64::NEG_INFINITY, 0.0));
        assert_eq!(whole(Operator::Max, &[3.0, nan, 7.0]), Expected::Nan);
        assert_eq!(whole(Operator::NanMax, &[3.0, nan, 7.0]), near(7.0, 0.0));
        assert_eq!(whole(Operator::NanMin, &[nan, nan]), Expected::Nan);
        assert_eq!(whole(Operator::ArgMax, &[3.0, nan, 7.0, nan]), Expected::Exact(1));
        assert_eq!(whole(Operator::ArgMin, &[inf; 10]), Expected::Exact(0));
        assert_eq!(whole(Operator::LogSumExp, &[-inf, -inf]), near(f64::NEG_INFINITY, 0.0));
        assert_eq!(whole(Operator::LogSumExp, &[1.0, inf]), near(f64::INFINITY, 0.0));
        assert_eq!(whole(Operator::LogSumExp, &[nan, inf]), Expected::Nan);
    }

    #[test]
    fn integers_wrap_at_their_width() {
        assert_eq!(whole(Operator::Sum, &[i64::MAX, 1]), Expected::Exact(i64::MIN.into()));
        assert_eq!(whole(Operator::Sum, &[u64::MAX, 2]), Expected::Exact(1));
        assert_eq!(whole(Operator::WrappingSum, &[100i8, 100]), Expected::Exact(-56));
        assert_eq!(whole(Operator::Sum, &[100i8, 100]), Expected::Exact(200));
        assert_eq!(whole(Operator::Prod, &[-3i32, i32::MAX]), Expected::Exact(-3 * i128::from(i32::MAX)));
        assert_eq!(whole(Operator::WrappingProd, &[200u8, 2]), Expected::Exact(144));
        assert_eq!(whole(Operator::Sum, &[true, true, false]), Expected::Exact(2));
        assert_eq!(whole(Operator::Max, &[false, true]), Expected::Exact(1));
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(whole(Operator::ArgMax, &[1.0f32, 5.0, 5.0]), Expected::Exact(1));
        assert_eq!(whole(Operator::ArgMin, &[0.0f32, -0.0]), Expected::Exact(0));
        let mut data = vec![0u8; CHUNK as usize * 3];
        data[CHUNK as usize + 5] = 1;
        data[CHUNK as usize * 2] = 1;
        assert_eq!(whole(Operator::ArgMax, &data), Expected::Exact(i128::from(CHUNK) + 5));
    }

    #[test]
    fn products_do_not_overflow_inside() {
        let data: Vec<f64> = (0..4000).map(|i| if i % 2 == 0 { 1e300 } else { 1e-300 }).collect();
        let expected = whole(Operator::Prod, &data);
        assert!((value(expected) - 1.0).abs() < 1e-12, "{expected:?}");
        assert!(matches!(expected, Expected::Near(Near { overflow: Overflow { positive: true, .. }, .. })));
        assert_eq!(value(whole(Operator::Prod, &[2.0f32, -0.5, 3.0])), -3.0);
        assert_eq!(value(whole(Operator::Prod, &[f64::MIN_POSITIVE / 8.0, 8.0])), f64::MIN_POSITIVE);
        // Powers of two multiply exactly, so the bound is zero.
        assert_eq!(whole(Operator::Prod, &[2.0f32, -0.5, 4.0]), near(-4.0, 0.0));
    }

    #[test]
    fn possible_overflow_is_said_and_only_then() {
        let overflow = |data: &[f32]| match whole(Operator::Sum, data) {
            Expected::Near(near) => near.overflow,
            other => panic!("{other:?}"),
        };
        assert_eq!(overflow(&[3e38, 3e38, -3e38]), Overflow { positive: true, negative: false });
        assert_eq!(overflow(&[1e38, 1e38, -1e38]), Overflow::default());
        assert_eq!(value(whole(Operator::Sum, &[f64::MAX, f64::MAX, -f64::MAX, -f64::MAX, 1e300])), 1e300);
        // Two halves of the f16 range: the accumulator is f32, so nothing overflows inside.
        let halves = whole(Operator::Sum, &[f16::MAX, f16::MAX]);
        assert!(matches!(halves, Expected::Near(Near { value: 131_008.0, overflow, .. }) if overflow == Overflow::default()));
    }

    #[test]
    fn bounds_follow_the_analysis() {
        let bound = |operator, accuracy| {
            let data: Vec<f32> = (0..1024).map(|i| 1.0 + i as f32 / 1024.0).collect();
            let mut problem = ReduceProblem::whole(operator, DType::F32, 1024).unwrap();
            if accuracy == Accuracy::Compensated {
                problem = problem.with_accuracy(accuracy).unwrap();
            }
            match reference(&problem, HostSlice::from(&data[..])).unwrap()[0] {
                Expected::Near(near) => (near.bound, near.value),
                other => panic!("{other:?}"),
            }
        };
        let (fast, sum) = bound(Operator::Sum, Accuracy::Fast);
        assert!((fast - 4.0 * 10.0 * sum / (1u64 << 24) as f64).abs() < fast * 1e-9);
        let (compensated, _) = bound(Operator::Sum, Accuracy::Compensated);
        assert!(compensated < fast / 30.0 && compensated > 0.0);
        let (log, _) = bound(Operator::LogSumExp, Accuracy::Fast);
        assert!(log > 4.0 * FAST_EXP_ERROR && log < 1e-5);
        assert_eq!(whole(Operator::Sum, &[0.1f32]), near(0.1f32.into(), 0.0));
    }

    #[test]
    fn log_sum_exp_of_large_and_of_flat_inputs() {
        assert!((value(whole(Operator::LogSumExp, &[1000.0f32, 1000.0])) - (1000.0 + 2f64.ln())).abs() < 1e-12);
        let zeros = vec![f16::ZERO; 65536];
        assert!((value(whole(Operator::LogSumExp, &zeros)) - 65536f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn rows_of_any_layout() {
        let data: Vec<i32> = (0..12).collect();
        let layout = Layout::strided(&[3, 4], &[-4, 1], 8).unwrap();
        let problem = ReduceProblem::new(Operator::Sum, DType::I32, &layout, Some(&[1])).unwrap();
        let rows = reference(&problem, HostSlice::from(&data[..])).unwrap();
        assert_eq!(rows, [38, 22, 6].map(Expected::Exact));
        let columns = ReduceProblem::new(Operator::ArgMax, DType::I32, &layout, Some(&[0])).unwrap();
        assert_eq!(reference(&columns, HostSlice::from(&data[..])).unwrap(), [Expected::Exact(0); 4]);
        assert!(reference(&columns, HostSlice::from(&data[..11])).is_err());
    }
}
