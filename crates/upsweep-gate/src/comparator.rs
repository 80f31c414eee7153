//! The comparator: outputs against expectations. It fails on `!(error <= bound)`, so that a NaN never walks past it.

use rayon::prelude::*;
use upsweep::ops::reduce::oracle::{Expected, Near};
use upsweep::types::{DType, Element, dispatch};

/// The document's flat relative tolerance, reported beside the bound and never used to pass anything.
pub const DOCUMENT_RTOL: f64 = 1e-4;

/// What a comparison that passed found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// The largest error as a part of its bound (0 where every output is exact).
    pub error_over_bound: f64,
    /// The error there.
    pub error: f64,
    /// The bound there.
    pub bound: f64,
    /// Every output is within [`DOCUMENT_RTOL`] too.
    pub document_rtol_met: bool,
}

impl Default for Agreement {
    fn default() -> Agreement {
        Agreement { error_over_bound: 0.0, error: 0.0, bound: 0.0, document_rtol_met: true }
    }
}

impl Agreement {
    /// The worse of two.
    pub fn worse(self, other: Agreement) -> Agreement {
        // An error equal to a bound of zero is no error, so the part alone does not order exact results.
        let take = other.error_over_bound > self.error_over_bound
            || (other.error_over_bound == self.error_over_bound && other.bound > self.bound);
        let document_rtol_met = self.document_rtol_met && other.document_rtol_met;
        Agreement { document_rtol_met, ..if take { other } else { self } }
    }
}

/// An output as the comparator sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Actual {
    Integer(i128),
    Float(f64),
}

/// The least magnitude that rounds to infinity in a float dtype; `None` for f64, whose reference is itself an f64.
fn overflow_threshold(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F16 => Some(65520.0),
        DType::Bf16 => Some(2f64.powi(128) - 2f64.powi(119)),
        DType::F32 => Some(2f64.powi(128) - 2f64.powi(103)),
        _ => None,
    }
}

/// Compares every output of `dtype` with its expectation.
///
/// # Errors
/// What is wrong with the first output that is wrong, in words.
pub fn compare_outputs(expected: &[Expected], bytes: &[u8], dtype: DType) -> Result<Agreement, String> {
    let size = dtype.size() as usize;
    if bytes.len() != expected.len() * size {
        return Err(format!("{} bytes came out, {} were expected", bytes.len(), expected.len() * size));
    }
    // Outputs of scans and softmaxes are as many as their inputs: pieces of them are compared by all threads.
    const PIECE: usize = 1 << 16;
    let pieces = expected.par_chunks(PIECE).zip(bytes.par_chunks(PIECE * size)).enumerate();
    let found: Vec<Result<Agreement, String>> =
        pieces.map(|(piece, (expected, bytes))| compare_piece(expected, bytes, dtype, piece * PIECE)).collect();
    found.into_iter().try_fold(Agreement::default(), |worst, piece| Ok(worst.worse(piece?)))
}

fn compare_piece(expected: &[Expected], bytes: &[u8], dtype: DType, first: usize) -> Result<Agreement, String> {
    let mut worst = Agreement::default();
    for (output, (expected, bytes)) in expected.iter().zip(bytes.chunks_exact(dtype.size() as usize)).enumerate() {
        let found = read(bytes, dtype).and_then(|actual| compare_one(expected, actual, dtype));
        worst = worst.worse(found.map_err(|why| format!("output {}: {why}", first + output))?);
    }
    Ok(worst)
}

fn read(bytes: &[u8], dtype: DType) -> Result<Actual, String> {
    if dtype == DType::Bool {
        // Any other byte is not a bool, whatever a device wrote.
        return if bytes[0] <= 1 { Ok(Actual::Integer(bytes[0].into())) } else { Err(format!("byte {} is no bool", bytes[0])) };
    }
    Ok(dispatch!(dtype, T => {
        let mut value = [T::default()];
        let size = std::mem::size_of::<T>();
        // SAFETY: `value` is `size` bytes of plain data (bool was handled above: every bit pattern is a value).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast::<u8>(), size) };
        if dtype.is_float() { Actual::Float(value[0].to_f64()) } else { Actual::Integer(value[0].to_i128()) }
    }))
}

fn compare_one(expected: &Expected, actual: Actual, dtype: DType) -> Result<Agreement, String> {
    let exact = Ok(Agreement::default());
    match (*expected, actual) {
        (Expected::Exact(value), Actual::Integer(got)) if got == value => exact,
        (Expected::Exact(value), Actual::Integer(got)) => Err(format!("{got}, expected exactly {value}")),
        (Expected::Nan, Actual::Float(got)) if got.is_nan() => exact,
        (Expected::Nan, Actual::Float(got)) => Err(format!("{got:e}, expected NaN")),
        (Expected::Near(near), Actual::Float(got)) => compare_float(near, got, dtype),
        (expected, actual) => Err(format!("{actual:?} cannot be compared with {expected:?}")),
    }
}

fn compare_float(near: Near, got: f64, dtype: DType) -> Result<Agreement, String> {
    let Near { value, bound, overflow } = near;
    let exact = Ok(Agreement::default());
    if value.is_infinite() {
        // Where infinities of both signs can come of partial results, so can NaN of the two.
        let other = !got.is_finite() && overflow.positive && overflow.negative;
        return if got == value || other { exact } else { Err(format!("{got:e}, expected {value}")) };
    }
    if got.is_nan() {
        // Only inf - inf (or inf * 0) of partial results can make a NaN of numbers.
        let partials_may_meet = overflow.positive && overflow.negative;
        return if partials_may_meet { exact } else { Err(format!("NaN, expected {value:e}")) };
    }
    if got.is_infinite() {
        let partial = if got > 0.0 { overflow.positive } else { overflow.negative };
        let reach = got.signum() * value + bound;
        let rounds_there = overflow_threshold(dtype).is_some_and(|threshold| reach >= threshold);
        return if partial || rounds_there { exact } else { Err(format!("{got}, expected {value:e} within {bound:e}")) };
    }
    let error = (got - value).abs();
    // Written so that a NaN in either fails.
    #[allow(clippy::neg_cmp_op_on_partial_ord)]
    if !(error <= bound) {
        return Err(format!("{got:e}, expected {value:e} within {bound:e}; the error is {error:e}"));
    }
    Ok(Agreement {
        error_over_bound: if bound > 0.0 { error / bound } else { 0.0 },
        error,
        bound,
        document_rtol_met: error <= DOCUMENT_RTOL * value.abs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use upsweep::half::f16;
    use upsweep::ops::reduce::oracle::Overflow;

    fn near(value: f64, bound: f64) -> Expected {
        Expected::Near(Near { value, bound, overflow: Overflow::default() })
    }

    fn f32s(expected: Expected, got: f32) -> Result<Agreement, String> {
        compare_outputs(&[expected], &got.to_ne_bytes(), DType::F32)
    }

    #[test]
    fn nan_passes_only_where_nan_is_right() {
        assert!(f32s(Expected::Nan, f32::NAN).is_ok());
        assert!(f32s(Expected::Nan, 0.0).is_err());
        for expected in [near(0.0, f64::INFINITY), near(1.0, 1e9), near(f64::INFINITY, 0.0), near(f64::NEG_INFINITY, 0.0)] {
            assert!(f32s(expected, f32::NAN).is_err(), "{expected:?}");
        }
        assert!(f32s(near(1.0, f64::NAN), 1.0).is_err(), "a bound that is NaN passes nothing");
    }

    #[test]
    fn just_outside_the_bound_fails() {
        let bound = 1e-3;
        assert!(f32s(near(1.0, bound), 1.000_999).is_ok());
        assert!(f32s(near(1.0, bound), 1.001_001).is_err());
        assert!(f32s(near(1.0, 0.0), 1.0).is_ok());
        assert!(f32s(near(1.0, 0.0), 1.0 + f32::EPSILON).is_err());
        assert!(f32s(near(0.0, 0.0), -0.0).is_ok());
    }

    #[test]
    fn infinities_pass_only_where_said() {
        assert!(f32s(near(f64::INFINITY, 0.0), f32::INFINITY).is_ok());
        assert!(f32s(near(f64::INFINITY, 0.0), f32::MAX).is_err());
        assert!(f32s(near(3e38, 1e30), f32::INFINITY).is_err());
        assert!(f32s(near(4e38, 1e32), f32::INFINITY).is_ok());
        let overflow = Overflow { positive: true, negative: false };
        let possible = Expected::Near(Near { value: 1.0, bound: 1e-3, overflow });
        assert!(f32s(possible, f32::INFINITY).is_ok());
        assert!(f32s(possible, f32::NEG_INFINITY).is_err());
        assert!(f32s(possible, f32::NAN).is_err());
        assert!(f32s(possible, 2.0).is_err());
        let both = Expected::Near(Near { value: 1.0, bound: 1e-3, overflow: Overflow { positive: true, negative: true } });
        assert!(f32s(both, f32::NAN).is_ok());
        // Not finite, and no more is known.
        let not_finite =
            Expected::Near(Near { value: f64::INFINITY, bound: 0.0, overflow: Overflow { positive: true, negative: true } });
        assert!([f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().all(|got| f32s(not_finite, got).is_ok()));
        assert!(f32s(not_finite, f32::MAX).is_err());
        let half = |value: f64, got: f16| compare_outputs(&[near(value, 10.0)], &got.to_ne_bytes(), DType::F16);
        assert!(half(131_008.0, f16::INFINITY).is_ok());
        assert!(half(131_008.0, f16::MAX).is_err());
        assert!(half(60_000.0, f16::INFINITY).is_err());
    }

    #[test]
    fn integers_and_bools_are_exact() {
        let compare = |expected, bytes: &[u8], dtype| compare_outputs(&[Expected::Exact(expected)], bytes, dtype);
        assert!(compare(7, &7u64.to_ne_bytes(), DType::U64).is_ok());
        assert!(compare(7, &8u64.to_ne_bytes(), DType::U64).is_err());
        assert!(compare(-1, &(-1i64).to_ne_bytes(), DType::I64).is_ok());
        assert!(compare(1, &[1], DType::Bool).is_ok());
        assert!(compare(1, &[2], DType::Bool).is_err(), "a byte of 2 is not a bool");
        assert!(compare(1, &[1, 1], DType::Bool).is_err(), "too many bytes");
    }

    #[test]
    fn the_worst_output_is_reported() {
        let bytes: Vec<u8> = [1.0f32, 2.5, 3.0].iter().flat_map(|x| x.to_ne_bytes()).collect();
        let agreement = compare_outputs(&[near(1.0, 1.0), near(2.0, 1.0), near(3.0, 0.0)], &bytes, DType::F32).unwrap();
        assert_eq!((agreement.error, agreement.bound, agreement.error_over_bound), (0.5, 1.0, 0.5));
        assert!(!agreement.document_rtol_met);
    }
}
