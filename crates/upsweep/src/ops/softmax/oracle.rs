//! The reference: what a softmax must give, and how far from it a right implementation may be.
//!
//! Values are computed in f64 for f32, f16 and bf16, and in double-double for f64, straight from the elements. With the
//! row's maximum `m`, `d = x - m`, `S = sum(exp(d))` (so `1 <= S <= n`), `u` the unit roundoff of the accumulator and `v`
//! that of the output, the bounds follow from these errors:
//!
//! - An exponential is off by `e` (2^-22 for f32 states: the device's fast exponential; four units for f64), and
//!   because its argument was rounded: the difference, the factor log2(e) and the product are each off by `u` relative to
//!   `|d|`, and an error of the argument is a relative error of the result. Together `e + 3 u |d|`.
//! - In the sum, terms are weighed with their share, and `sum |d| exp(d) / S` is at most `ln(n) + 1`, so the arguments
//!   contribute at most `3 u (ln(n) + 1)`; additions contribute as in a tree sum, `u log2(n)` with the reduction's constant 4.
//! - A rung that finds the maximum on the way rescales its sum when the maximum grows. Each time costs another `e`
//!   relative to what was summed so far; [`RESCALED_EVERY`] says how often that happens at most.
//! - The quotient, its reciprocal and the output's own rounding: `2 u`, and half a unit of the output.
//!
//! | kind | bound on the absolute error |
//! |---|---|
//! | softmax | `y (r + e + 3 u \|d\| + 2 u)`, plus [`underflow`]: exponentials below 2^-126 may be flushed to zero |
//! | log_softmax | `r + 2 u (\|d\| + ln S)` |
//! | logsumexp | `r + 2 u (\|m\| + ln S)` |
//!
//! with `r = 4 (e + u max(log2 n, 1)) + 3 u (ln(n) + 1) + e k`, `k` the rescalings; and everywhere half a unit in the last
//! place of the output.

use super::problem::{Masked, SoftmaxKind, SoftmaxProblem};
use crate::error::Result;
use crate::flow::HostSlice;
use crate::ops::reduce::oracle::{Expected, FAST_EXP_ERROR, Near, Overflow, TREE_CONSTANT, half_unit};
use crate::types::{DType, Element, dispatch};

/// Elements that the online rungs read between two changes of a running maximum, and the longest row they take: later
/// rungs take the maximum first and never rescale.
pub const RESCALED_EVERY: u64 = 2048;

/// Rows up to this length may have been summed online, an element at a time.
pub const ONLINE_LENGTH: u64 = 1 << 16;

/// The absolute floor of softmax: below it exponentials may be flushed to zero. 2^-126 for f32 accumulators, 2^-1022 for
/// f64. Smaller than half the smallest f16, and below what any sum of probabilities shows.
pub fn underflow(dtype: DType) -> f64 {
    if dtype == DType::F64 { f64::MIN_POSITIVE } else { f64::from(f32::MIN_POSITIVE) }
}

/// The relative error of a row's sum: `r` of the table above.
pub fn sum_bound(dtype: DType, cols: u64) -> f64 {
    let (u, e) = roundings(dtype);
    let n = cols.max(1) as f64;
    let rescalings = if cols <= ONLINE_LENGTH { cols.div_ceil(RESCALED_EVERY) as f64 } else { 1.0 };
    TREE_CONSTANT * (e + u * n.log2().max(1.0)) + 3.0 * u * (n.ln() + 1.0) + e * rescalings
}

/// Unit roundoff of the accumulator, and the error of an exponential.
fn roundings(dtype: DType) -> (f64, f64) {
    let u = dtype.row().accumulator.row().unit_roundoff;
    (u, if dtype == DType::F64 { 4.0 * u } else { FAST_EXP_ERROR })
}

/// The expectation of every output of a problem over its input.
///
/// # Errors
/// [`crate::Error::DTypeMismatch`], [`crate::Error::LengthMismatch`] if the input is not the problem's.
pub fn reference(problem: &SoftmaxProblem, input: HostSlice<'_>) -> Result<Vec<Expected>> {
    problem.check_operands((input.dtype(), input.len() as u64), (problem.dtype(), problem.output_len()))?;
    dispatch!(problem.dtype(), T => Ok(expect::<T>(problem, input.typed::<T>()?)))
}

/// Calls a function for 0..count, on all threads where there are some, and keeps the order.
fn map<R: Send>(count: u64, f: impl Fn(u64) -> R + Send + Sync) -> Vec<R> {
    #[cfg(feature = "cpu")]
    {
        use rayon::prelude::*;
        (0..count as usize).into_par_iter().map(|i| f(i as u64)).collect()
    }
    #[cfg(not(feature = "cpu"))]
    (0..count).map(f).collect()
}

/// What a row's outputs follow from.
#[derive(Clone, Copy)]
struct RowFacts {
    nan: bool,
    max: f64,
    /// `sum(exp(x - max))` as an unevaluated sum of two, 0 unless the maximum is finite.
    sum: (f64, f64),
}

/// Elements that are summed one after the other by one thread.
const CHUNK: u64 = 1 << 15;

fn expect<T: Element>(problem: &SoftmaxProblem, data: &[T]) -> Vec<Expected> {
    let (rows, cols) = (problem.rows(), problem.cols());
    let facts = map(rows, |row| facts(problem, data, row));
    match problem.kind() {
        SoftmaxKind::LogSumExp => facts.iter().map(|row| log_sum_exp(T::DTYPE, cols, row)).collect(),
        _ if rows == 0 || cols == 0 => Vec::new(),
        kind => {
            let inner = problem.inner();
            let bound = sum_bound(T::DTYPE, cols);
            // In the output's order: index = (outer * cols + position) * inner + within.
            map(problem.output_len(), |index| {
                let within = index % inner;
                let (outer, position) = (index / inner / cols, index / inner % cols);
                let row = outer * inner + within;
                let x = data[problem.shape().index(row, position) as usize].to_f64();
                element(T::DTYPE, kind, problem.masked(), &facts[row as usize], x, bound)
            })
        }
    }
}

fn facts<T: Element>(problem: &SoftmaxProblem, data: &[T], row: u64) -> RowFacts {
    let cols = problem.cols();
    let start = if cols == 0 { 0 } else { problem.shape().index(row, 0) as i64 };
    // One axis is at most one dimension.
    let stride = problem.shape().reduced.first().map_or(0, |dim| dim.stride);
    let at = |position: u64| data[(start + position as i64 * stride) as usize].to_f64();
    let chunks = cols.div_ceil(CHUNK);
    let range = |chunk: u64| chunk * CHUNK..((chunk + 1) * CHUNK).min(cols);
    let extremes = map(chunks, |chunk| {
        range(chunk).fold((false, f64::NEG_INFINITY), |(nan, max), position| {
            let x = at(position);
            (nan || x.is_nan(), max.max(x))
        })
    });
    let (nan, max) = extremes.into_iter().fold((false, f64::NEG_INFINITY), |a, b| (a.0 || b.0, a.1.max(b.1)));
    if nan || !max.is_finite() {
        return RowFacts { nan, max, sum: (0.0, 0.0) };
    }
    let precise = T::DTYPE == DType::F64;
    let partials = map(chunks, |chunk| {
        range(chunk).fold((0.0, 0.0), |sum, position| {
            let (high, low) = difference(at(position), max);
            let exp = if precise { exp_in_two(high, low) } else { (high.exp(), 0.0) };
            add(add(sum, exp.0), exp.1)
        })
    });
    let sum = partials.into_iter().fold((0.0, 0.0), |a, b| add(add(a, b.0), b.1));
    RowFacts { nan, max, sum }
}

/// `a - b` and what its rounding left out (0 where the difference overflows).
fn difference(a: f64, b: f64) -> (f64, f64) {
    let high = a - b;
    let virtual_b = a - high;
    let low = (a - (high + virtual_b)) + (virtual_b - b);
    (high, if low.is_finite() { low } else { 0.0 })
}

/// An unevaluated sum of two plus a number (Knuth's two-sum, then renormalised).
fn add((high, low): (f64, f64), x: f64) -> (f64, f64) {
    let sum = high + x;
    let virtual_x = sum - high;
    let lost = (high - (sum - virtual_x)) + (x - virtual_x);
    let low = low + lost;
    let total = sum + low;
    (total, (sum - total) + low)
}

/// `exp(high + low)` to about 2^-75 as an unevaluated sum of two, for arguments that are at most 0: the argument is
/// halved ten times, a Taylor series taken in twice the precision, and the result squared ten times.
fn exp_in_two(high: f64, low: f64) -> (f64, f64) {
    if high < -746.0 {
        return (0.0, 0.0);
    }
    // exp(d) = exp(d / 1024)^1024. After the scaling |d| < 0.73; 22 terms leave less than 2^-80.
    let d = (high / 1024.0, low / 1024.0);
    let mut exp = (1.0, 0.0);
    for k in (1..=22).rev() {
        // Horner: 1 + d / k * (the terms behind).
        exp = add(multiply(divide(d, f64::from(k)), exp), 1.0);
    }
    for _ in 0..10 {
        exp = multiply(exp, exp);
    }
    exp
}

fn multiply(a: (f64, f64), b: (f64, f64)) -> (f64, f64) {
    let product = a.0 * b.0;
    let lost = a.0.mul_add(b.0, -product) + (a.0 * b.1 + a.1 * b.0);
    let total = product + lost;
    (total, (product - total) + lost)
}

fn divide(a: (f64, f64), b: f64) -> (f64, f64) {
    let quotient = a.0 / b;
    let rest = (-quotient).mul_add(b, a.0) + a.1;
    let low = rest / b;
    let total = quotient + low;
    (total, (quotient - total) + low)
}

/// `ln` of an unevaluated sum of two.
fn log_of((high, low): (f64, f64)) -> f64 {
    high.ln() + (low / high)
}

fn near(value: f64, bound: f64) -> Expected {
    // An infinite value is exact: comparing takes no difference of infinities.
    let bound = if value.is_finite() { bound } else { 0.0 };
    Expected::Near(Near { value, bound, overflow: Overflow::default() })
}

fn log_sum_exp(dtype: DType, cols: u64, row: &RowFacts) -> Expected {
    if row.nan {
        return Expected::Nan;
    }
    if !row.max.is_finite() {
        return near(row.max, 0.0);
    }
    let log = log_of(row.sum);
    let value = row.max + log;
    let (u, _) = roundings(dtype);
    let bound = sum_bound(dtype, cols) + 2.0 * u * (row.max.abs() + log);
    near(value, bound + half_unit(dtype, value.abs() + bound))
}

fn element(dtype: DType, kind: SoftmaxKind, masked: Masked, row: &RowFacts, x: f64, r: f64) -> Expected {
    let log = kind == SoftmaxKind::LogSoftmax;
    if row.nan || row.max == f64::INFINITY {
        return Expected::Nan;
    }
    if row.max == f64::NEG_INFINITY {
        return match masked {
            Masked::Nan => Expected::Nan,
            Masked::Zero => near(if log { f64::NEG_INFINITY } else { 0.0 }, 0.0),
        };
    }
    let (d, d_low) = difference(x, row.max);
    let (u, e) = roundings(dtype);
    if log {
        let log_of_sum = log_of(row.sum);
        let value = (d - log_of_sum) + d_low;
        let bound = r + 2.0 * u * (d.abs() + log_of_sum);
        return near(value, bound + half_unit(dtype, value.abs() + bound));
    }
    if d == f64::NEG_INFINITY {
        // A masked entry among others is exactly 0.
        return near(0.0, 0.0);
    }
    let exp = if dtype == DType::F64 { exp_in_two(d, d_low) } else { (d.exp(), 0.0) };
    let value = (exp.0 + exp.1) / (row.sum.0 + row.sum.1);
    // Beyond the range of exponents the relative error of the argument means nothing: the floor covers it.
    let relative = r + e + 3.0 * u * d.abs().min(1e6) + 2.0 * u;
    let bound = value * relative + underflow(dtype);
    near(value, bound + half_unit(dtype, value + bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(kind: SoftmaxKind, masked: Masked, row: &[f64]) -> Vec<f64> {
        let problem = SoftmaxProblem::whole(kind, DType::F64, row.len() as u64).unwrap().with_masked(masked);
        let expected = reference(&problem, row.into()).unwrap();
        expected
            .iter()
            .map(|e| match e {
                Expected::Near(near) => near.value,
                Expected::Nan => f64::NAN,
                Expected::Exact(_) => unreachable!(),
            })
            .collect()
    }

    #[test]
    fn the_reference_agrees_with_known_values() {
        let close = |got: &[f64], want: &[f64], tolerance: f64| {
            assert_eq!(got.len(), want.len());
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() <= tolerance || g == w || (g.is_nan() && w.is_nan()), "{got:?} for {want:?}");
            }
        };
        let softmax = |row: &[f64]| values(SoftmaxKind::Softmax, Masked::Nan, row);
        close(&softmax(&[1e4, 10001.0, 10002.0, 10003.0]), &[0.032059, 0.087144, 0.236883, 0.643914], 1e-6);
        close(&softmax(&[-20000.0, -20001.0]), &[0.731059, 0.268941], 1e-6);
        close(&softmax(&[f64::NEG_INFINITY, 0.0]), &[0.0, 1.0], 0.0);
        close(&softmax(&[f64::INFINITY, 0.0]), &[f64::NAN, f64::NAN], 0.0);
        close(&softmax(&[f64::NEG_INFINITY; 2]), &[f64::NAN, f64::NAN], 0.0);
        close(&values(SoftmaxKind::Softmax, Masked::Zero, &[f64::NEG_INFINITY; 2]), &[0.0, 0.0], 0.0);
        close(&values(SoftmaxKind::LogSoftmax, Masked::Zero, &[f64::NEG_INFINITY; 2]), &[f64::NEG_INFINITY; 2], 0.0);
        close(&values(SoftmaxKind::Softmax, Masked::Zero, &[f64::NEG_INFINITY, f64::NAN]), &[f64::NAN; 2], 0.0);
        for v in [0.0, 1e4, 1e8] {
            close(&values(SoftmaxKind::LogSoftmax, Masked::Nan, &[v, v]), &[-(2f64.ln()); 2], 1e-15);
        }
        close(&values(SoftmaxKind::LogSumExp, Masked::Nan, &[f64::INFINITY, 2.0]), &[f64::INFINITY], 0.0);
        close(&values(SoftmaxKind::LogSumExp, Masked::Nan, &[4.0, 5.0, 6.0]), &[6.407_605_964_444_38], 1e-14);
        close(&values(SoftmaxKind::LogSumExp, Masked::Nan, &[]), &[f64::NEG_INFINITY], 0.0);
    }

    #[test]
    fn the_exponential_in_two_parts_is_one() {
        for i in 0..4000 {
            let d = -0.173 * f64::from(i);
            let (high, low) = exp_in_two(d, 0.0);
            assert!((high - d.exp()).abs() <= d.exp() * 4e-16 + 1e-300 && low.abs() <= high * 2.3e-16, "{d}: {high} {low}");
            // exp(d) * exp(-d / 2)^2 = 1 to far more digits than f64 has.
            if d > -300.0 {
                let half = exp_in_two(d / 2.0, 0.0);
                let square = multiply(half, half);
                let error = (square.0 - high) + (square.1 - low);
                assert!(error.abs() <= high * 2f64.powi(-75), "{d}: {error:e}");
            }
        }
    }
}
