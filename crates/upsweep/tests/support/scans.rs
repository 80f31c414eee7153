//! What tests of scans on every device share.

use upsweep::ops::scan::oracle::Expected;
use upsweep::types::Element;

/// Whether an output is what the oracle expects of it.
pub(crate) fn fits<O: Element>(got: O, expected: &Expected) -> bool {
    match *expected {
        Expected::Exact(value) => got.to_i128() == value,
        Expected::Nan => got.to_f64().is_nan(),
        Expected::Near(near) => {
            let value = got.to_f64();
            let overflowed = (value == f64::INFINITY && near.overflow.positive)
                || (value == f64::NEG_INFINITY && near.overflow.negative)
                || (value.is_nan() && near.overflow.positive && near.overflow.negative);
            got == O::from_f64(near.value) || (value - near.value).abs() <= near.bound || overflowed
        }
    }
}
