//! Operators to start from, each with its C++ text. The project's tests run them on every device.

use super::{DeviceText, UserOperator};
use crate::error::Result;
use bytemuck::{Pod, Zeroable};

/// The variance so far (of the whole population; NaN of nothing), in f64: count, mean, and the sum of squared distances
/// from the mean, joined as by T. Chan, G. Golub and R. LeVeque, Updating Formulae and a Pairwise Algorithm for Computing
/// Sample Variances (1979).
///
/// # Errors
/// None that the caller could cause; as [`UserOperator::new`].
pub fn variance() -> Result<UserOperator<f32, [f64; 3], f64>> {
    let combine = |a: [f64; 3], b: [f64; 3]| {
        // Of nothing there is no mean to be at a distance from.
        if a[0] == 0.0 || b[0] == 0.0 {
            return if a[0] == 0.0 { b } else { a };
        }
        let (count, distance) = (a[0] + b[0], b[1] - a[1]);
        let share = b[0] / count;
        [count, a[1] + distance * share, a[2] + b[2] + distance * distance * a[0] * share]
    };
    let operator = UserOperator::new("variance", [0.0; 3], |x: f32| [1.0, f64::from(x), 0.0], combine, |s| s[2] / s[0])?;
    Ok(operator.commutative().with_device(&DeviceText {
        state: "double count, mean, squares;",
        lift: "return {1.0, double(x), 0.0};",
        combine: "if (a.count == 0.0 || b.count == 0.0) return a.count == 0.0 ? b : a;\n\
                  const double count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;\n\
                  return {count, a.mean + distance * share, a.squares + b.squares + distance * distance * a.count * share};",
        finish: "return state.squares / state.count;",
    }))
}

/// A value, and whether there is one.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Filled {
    /// NaN as long as there is none.
    pub value: f32,
    /// 1 or 0.
    pub is_there: u32,
}

/// The last element that is not NaN: as a scan it fills gaps forward (in reverse, backward). It does not commute.
///
/// ```
/// use upsweep::device::cpu::Cpu;
/// use upsweep::ops::{scan, user::examples};
/// let x = [f32::NAN, 2.0, f32::NAN, f32::NAN, 5.0];
/// let filled = scan::scan_with(&Cpu::new(), &examples::fill_forward()?, scan::ScanOptions::default(), &x[..], None, None)?;
/// assert_eq!(filled.values[1..], [2.0, 2.0, 2.0, 5.0]);
/// assert!(filled.values[0].is_nan());
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// None that the caller could cause; as [`UserOperator::new`].
pub fn fill_forward() -> Result<UserOperator<f32, Filled, f32>> {
    let operator = UserOperator::new(
        "fill forward",
        Filled { value: f32::NAN, is_there: 0 },
        |x: f32| Filled { value: x, is_there: u32::from(!x.is_nan()) },
        |a: Filled, b: Filled| if b.is_there == 1 { b } else { a },
        |state| state.value,
    )?;
    Ok(operator.with_device(&DeviceText {
        state: "float value;\nu32 is_there;",
        lift: "return {x, x == x ? 1u : 0u};",
        combine: "return b.is_there ? b : a;",
        finish: "return state.value;",
    }))
}

/// A polynomial hash of bytes modulo 2^64, `sum of x[i] * BASE^(n - 1 - i)`: affine maps `h -> h * multiplier + sum`, one
/// after the other. It does not commute, and it is exact.
///
/// # Errors
/// None that the caller could cause; as [`UserOperator::new`].
pub fn polynomial_hash() -> Result<UserOperator<u8, [u64; 2], u64>> {
    const BASE: u64 = 1_099_511_628_211;
    let operator = UserOperator::new(
        "polynomial hash",
        [1, 0],
        |x: u8| [BASE, u64::from(x)],
        |a: [u64; 2], b: [u64; 2]| [a[0].wrapping_mul(b[0]), a[1].wrapping_mul(b[0]).wrapping_add(b[1])],
        |state| state[1],
    )?;
    Ok(operator.with_device(&DeviceText {
        state: "u64 multiplier, sum;",
        lift: &format!("return {{{BASE}ull, x}};"),
        combine: "return {a.multiplier * b.multiplier, a.sum * b.multiplier + b.sum};",
        finish: "return state.sum;",
    }))
}

/// The largest sum of neighbours so far (0 for none): of each stretch its sum, and the largest sums at its begin, at its end
/// and anywhere in it. Sums are i64. It does not commute, and it is exact as long as no sum leaves i64.
///
/// # Errors
/// None that the caller could cause; as [`UserOperator::new`].
pub fn largest_span() -> Result<UserOperator<i32, [i64; 4], i64>> {
    let lift = |x: i32| {
        let positive = i64::from(x.max(0));
        [i64::from(x), positive, positive, positive]
    };
    let combine = |[sum_a, begin_a, end_a, best_a]: [i64; 4], [sum_b, begin_b, end_b, best_b]: [i64; 4]| {
        [
            sum_a.wrapping_add(sum_b),
            begin_a.max(sum_a.wrapping_add(begin_b)),
            end_b.max(sum_b.wrapping_add(end_a)),
            best_a.max(best_b).max(end_a.wrapping_add(begin_b)),
        ]
    };
    let operator = UserOperator::new("largest span", [0; 4], lift, combine, |state| state[3])?;
    Ok(operator.with_device(&DeviceText {
        state: "i64 sum, begin, end, best;",
        lift: "const i64 positive = x > 0 ? x : 0;\nreturn {x, positive, positive, positive};",
        combine: "return {a.sum + b.sum, max(a.begin, a.sum + b.begin), max(b.end, b.sum + a.end),\n\
                  max(max(a.best, b.best), a.end + b.begin)};",
        finish: "return state.best;",
    }))
}
