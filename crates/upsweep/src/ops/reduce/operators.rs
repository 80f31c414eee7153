//! The Rust side of the operator table: state, `lift`, `identity`, `combine`, `finish` of each operator.
//! The C++ side, with the same names and the same rules, is `kernels/operators.cuh`.

use crate::types::{Accuracy, DType, Element, Operator, dispatch};
use half::{bf16, f16};
use std::fmt::Debug;

/// Arithmetic in an accumulator type; integers wrap, in debug builds too.
pub trait Accumulator: Copy + Debug + Send + Sync + PartialOrd + 'static {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Sum.
    fn add(self, other: Self) -> Self;
    /// Product.
    fn mul(self, other: Self) -> Self;
}

macro_rules! accumulator {
    ($t:ty, $zero:expr, $one:expr, $add:expr, $mul:expr) => {
        impl Accumulator for $t {
            const ZERO: Self = $zero;
            const ONE: Self = $one;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                ($add)(self, other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                ($mul)(self, other)
            }
        }
    };
}
accumulator!(f32, 0.0, 1.0, |a, b| a + b, |a, b| a * b);
accumulator!(f64, 0.0, 1.0, |a, b| a + b, |a, b| a * b);
accumulator!(i64, 0, 1, i64::wrapping_add, i64::wrapping_mul);
accumulator!(u64, 0, 1, u64::wrapping_add, u64::wrapping_mul);

/// An element with its accumulator.
pub trait Number: Element {
    /// f32 for f32, f16, bf16; f64 for f64; i64 or u64 for integers and bool.
    type Acc: Accumulator;
    /// Exact.
    fn widen(self) -> Self::Acc;
    /// Rounds floats once to nearest; truncates integers to their low bits.
    fn narrow(acc: Self::Acc) -> Self;
    /// A sum or product in the accumulator as the operator's output.
    fn total(acc: Self::Acc) -> Self::Total;
    /// The least and the greatest value that an element can have: -inf and +inf for floats.
    const LOWEST: Self;
    /// See [`Number::LOWEST`].
    const HIGHEST: Self;
    /// True for a floating-point NaN.
    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn is_nan(self) -> bool {
        self != self
    }
}

macro_rules! number {
    ($t:ty, $acc:ty, $widen:expr, $narrow:expr, $total:expr, $low:expr, $high:expr) => {
        impl Number for $t {
            type Acc = $acc;
            #[inline(always)]
            fn widen(self) -> $acc {
                ($widen)(self)
            }
            #[inline(always)]
            fn narrow(acc: $acc) -> Self {
                ($narrow)(acc)
            }
            #[inline(always)]
            fn total(acc: $acc) -> Self::Total {
                ($total)(acc)
            }
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
        }
    };
}
macro_rules! integer {
    ($t:ty, $acc:ty) => {
        number!($t, $acc, |x| x as $acc, |a| a as $t, |a| a, <$t>::MIN, <$t>::MAX);
    };
}
number!(f32, f32, |x| x, |a| a, |a| a, f32::NEG_INFINITY, f32::INFINITY);
number!(f64, f64, |x| x, |a| a, |a| a, f64::NEG_INFINITY, f64::INFINITY);
number!(f16, f32, f16::to_f32, f16::from_f32, f16::from_f32, f16::NEG_INFINITY, f16::INFINITY);
number!(bf16, f32, bf16::to_f32, bf16::from_f32, bf16::from_f32, bf16::NEG_INFINITY, bf16::INFINITY);
integer!(i32, i64);
integer!(i64, i64);
integer!(u32, u64);
integer!(u64, u64);
integer!(u8, u64);
integer!(i8, i64);
number!(bool, u64, |x| x as u64, |a| a != 0, |a| a, false, true);

/// An operator over elements of type `T`. `combine` is associative up to rounding and commutative.
pub trait ReduceOperator<T: Number>: Send + Sync + 'static {
    /// What is carried: one Rust struct here, one C struct of the same fields in the kernels.
    type State: Copy + Send + Sync + 'static;
    /// What comes out.
    type Output: Element;
    /// The state of no elements: `combine(identity, s) == s`.
    fn identity() -> Self::State;
    /// The state of the element at `index`.
    fn lift(x: T, index: u64) -> Self::State;
    /// The state of both.
    fn combine(a: Self::State, b: Self::State) -> Self::State;
    /// The result for `count` elements.
    fn finish(state: Self::State, count: u64) -> Self::Output;
}

/// Sum in the accumulator type.
pub struct Sum;
/// Product in the accumulator type.
pub struct Prod;
/// Sum in f64, or in double-double for f64.
pub struct CompensatedSum;
/// Smallest, NaN propagates.
pub struct Min;
/// Largest, NaN propagates.
pub struct Max;
/// Index of the smallest.
pub struct ArgMin;
/// Index of the largest.
pub struct ArgMax;
/// Mean: the sum divided by the count before rounding.
pub struct Mean;
/// Mean of a compensated sum.
pub struct CompensatedMean;
/// Shifted log of the sum of exponentials.
pub struct LogSumExp;
/// Smallest that is not NaN.
pub struct NanMin;
/// Largest that is not NaN.
pub struct NanMax;
/// Sum in the input's width.
pub struct WrappingSum;
/// Product in the input's width.
pub struct WrappingProd;

impl<T: Number> ReduceOperator<T> for Sum {
    type State = T::Acc;
    type Output = T::Total;
    #[inline(always)]
    fn identity() -> T::Acc {
        T::Acc::ZERO
    }
    #[inline(always)]
    fn lift(x: T, _: u64) -> T::Acc {
        x.widen()
    }
    #[inline(always)]
    fn combine(a: T::Acc, b: T::Acc) -> T::Acc {
        a.add(b)
    }
    fn finish(state: T::Acc, _: u64) -> T::Total {
        T::total(state)
    }
}

impl<T: Number> ReduceOperator<T> for Prod {
    type State = T::Acc;
    type Output = T::Total;
    #[inline(always)]
    fn identity() -> T::Acc {
        T::Acc::ONE
    }
    #[inline(always)]
    fn lift(x: T, _: u64) -> T::Acc {
        x.widen()
    }
    #[inline(always)]
    fn combine(a: T::Acc, b: T::Acc) -> T::Acc {
        a.mul(b)
    }
    fn finish(state: T::Acc, _: u64) -> T::Total {
        T::total(state)
    }
}

/// A value as an unevaluated sum `high + low`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DoubleDouble {
    /// The rounded value.
    pub high: f64,
    /// What rounding left out.
    pub low: f64,
}

impl DoubleDouble {
    /// Sum of two, with Knuth's two-sum; an infinite or NaN high part carries no low part.
    #[inline(always)]
    pub fn add(self, other: DoubleDouble) -> DoubleDouble {
        let high = self.high + other.high;
        let virtual_other = high - self.high;
        let error = (self.high - (high - virtual_other)) + (other.high - virtual_other);
        let low = error + (self.low + other.low);
        let total = high + low;
        if total.is_finite() { DoubleDouble { high: total, low: (high - total) + low } } else { DoubleDouble { high, low: 0.0 } }
    }
}

macro_rules! compensated {
    ($name:ident, $output:ident, $finish:expr) => {
        impl<T: Number> ReduceOperator<T> for $name {
            type State = DoubleDouble;
            type Output = T::$output;
            #[inline(always)]
            fn identity() -> DoubleDouble {
                DoubleDouble { high: 0.0, low: 0.0 }
            }
            #[inline(always)]
            fn lift(x: T, _: u64) -> DoubleDouble {
                DoubleDouble { high: x.to_f64(), low: 0.0 }
            }
            #[inline(always)]
            fn combine(a: DoubleDouble, b: DoubleDouble) -> DoubleDouble {
                a.add(b)
            }
            fn finish(state: DoubleDouble, count: u64) -> Self::Output {
                <Self::Output as Element>::from_f64(($finish)(state, count))
            }
        }
    };
}
compensated!(CompensatedSum, Total, |s: DoubleDouble, _| s.high + s.low);
compensated!(CompensatedMean, Mean, |s: DoubleDouble, n| (s.high + s.low) / n as f64);

macro_rules! extremum {
    ($name:ident, $identity:ident, $better:tt) => {
        impl<T: Number> ReduceOperator<T> for $name {
            type State = T;
            type Output = T;
            #[inline(always)]
            fn identity() -> T {
                T::$identity
            }
            #[inline(always)]
            fn lift(x: T, _: u64) -> T {
                x
            }
            #[inline(always)]
            fn combine(a: T, b: T) -> T {
                // A NaN on the left stays; a NaN on the right loses no comparison, so it is taken.
                if a $better b || a.is_nan() { a } else { b }
            }
            fn finish(state: T, _: u64) -> T {
                state
            }
        }
    };
}
extremum!(Min, HIGHEST, <);
extremum!(Max, LOWEST, >);

macro_rules! nan_extremum {
    ($name:ident, $better:tt) => {
        impl<T: Number> ReduceOperator<T> for $name {
            /// `None` until an element that is not NaN was seen.
            type State = (T, bool);
            type Output = T;
            #[inline(always)]
            fn identity() -> (T, bool) {
                (T::default(), false)
            }
            #[inline(always)]
            fn lift(x: T, _: u64) -> (T, bool) {
                (x, !x.is_nan())
            }
            #[inline(always)]
            fn combine(a: (T, bool), b: (T, bool)) -> (T, bool) {
                match (a.1, b.1) {
                    (true, true) => if a.0 $better b.0 { a } else { b },
                    (true, false) => a,
                    (false, true) => b,
                    // Keep the NaN rather than the identity's placeholder.
                    (false, false) => if a.0.is_nan() { a } else { b },
                }
            }
            fn finish(state: (T, bool), _: u64) -> T {
                state.0
            }
        }
    };
}
nan_extremum!(NanMin, <);
nan_extremum!(NanMax, >);

/// A value and where it stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Indexed<T> {
    /// The value.
    pub value: T,
    /// Its index along the reduced axes.
    pub index: u64,
}

macro_rules! arg_extremum {
    ($name:ident, $identity:ident, $better:tt) => {
        impl<T: Number> ReduceOperator<T> for $name {
            type State = Indexed<T>;
            type Output = u64;
            #[inline(always)]
            fn identity() -> Indexed<T> {
                // No element has this index, so on a tie with the identity's value the element wins.
                Indexed { value: T::$identity, index: u64::MAX }
            }
            #[inline(always)]
            fn lift(x: T, index: u64) -> Indexed<T> {
                Indexed { value: x, index }
            }
            #[inline(always)]
            fn combine(a: Indexed<T>, b: Indexed<T>) -> Indexed<T> {
                let a_wins = match (a.value.is_nan(), b.value.is_nan()) {
                    (true, false) => true,
                    (false, true) => false,
                    (true, true) => a.index < b.index,
                    _ => a.value $better b.value || (a.value == b.value && a.index < b.index),
                };
                if a_wins { a } else { b }
            }
            fn finish(state: Indexed<T>, _: u64) -> u64 {
                state.index
            }
        }
    };
}
arg_extremum!(ArgMin, HIGHEST, <);
arg_extremum!(ArgMax, LOWEST, >);

/// What a mean is accumulated in: the accumulator for floats, f64 for integers.
pub trait MeanSum: Number {
    /// The sum's type.
    type Sum: Accumulator;
    /// Exact for floats; nearest for 64-bit integers.
    fn mean_widen(self) -> Self::Sum;
    /// Divides in the sum's type, then rounds once.
    fn mean_finish(sum: Self::Sum, count: u64) -> Self::Mean;
}
macro_rules! mean_sum {
    ($($t:ty => $sum:ty),*) => {$(
        impl MeanSum for $t {
            type Sum = $sum;
            #[inline(always)]
            fn mean_widen(self) -> $sum {
                self.to_f64() as $sum
            }
            fn mean_finish(sum: $sum, count: u64) -> Self::Mean {
                <Self::Mean as Element>::from_f64((sum / count as $sum) as f64)
            }
        }
    )*};
}
mean_sum!(f32 => f32, f64 => f64, f16 => f32, bf16 => f32, i32 => f64, i64 => f64, u32 => f64, u64 => f64, u8 => f64, i8 => f64, bool => f64);

impl<T: MeanSum> ReduceOperator<T> for Mean {
    type State = T::Sum;
    type Output = T::Mean;
    #[inline(always)]
    fn identity() -> T::Sum {
        T::Sum::ZERO
    }
    #[inline(always)]
    fn lift(x: T, _: u64) -> T::Sum {
        x.mean_widen()
    }
    #[inline(always)]
    fn combine(a: T::Sum, b: T::Sum) -> T::Sum {
        a.add(b)
    }
    fn finish(state: T::Sum, count: u64) -> T::Mean {
        T::mean_finish(state, count)
    }
}

/// The maximum and the sum of exponentials relative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxSum {
    /// Largest element so far.
    pub max: f64,
    /// Sum of `exp(x - max)`.
    pub sum: f64,
}

impl MaxSum {
    /// Nothing seen.
    pub const EMPTY: MaxSum = MaxSum { max: f64::NEG_INFINITY, sum: 0.0 };

    /// The merge of online softmax. An infinite maximum is never subtracted from itself: two empty states stay empty,
    /// and +inf stays +inf.
    #[inline(always)]
    pub fn merge(self, other: MaxSum) -> MaxSum {
        let max = <Max as ReduceOperator<f64>>::combine(self.max, other.max);
        let scale = |state: MaxSum| if state.max == max { state.sum } else { state.sum * (state.max - max).exp() };
        MaxSum { max, sum: scale(self) + scale(other) }
    }
}

impl<T: Number> ReduceOperator<T> for LogSumExp {
    type State = MaxSum;
    type Output = T;
    #[inline(always)]
    fn identity() -> MaxSum {
        MaxSum::EMPTY
    }
    #[inline(always)]
    fn lift(x: T, _: u64) -> MaxSum {
        MaxSum { max: x.to_f64(), sum: 1.0 }
    }
    #[inline(always)]
    fn combine(a: MaxSum, b: MaxSum) -> MaxSum {
        a.merge(b)
    }
    fn finish(state: MaxSum, _: u64) -> T {
        if state.max == f64::NEG_INFINITY || state.max == f64::INFINITY || state.max.is_nan() {
            T::from_f64(state.max)
        } else {
            T::from_f64(state.max + state.sum.ln())
        }
    }
}

macro_rules! wrapping {
    ($name:ident, $identity:ident, $combine:ident) => {
        impl<T: Number> ReduceOperator<T> for $name {
            type State = T::Acc;
            type Output = T;
            #[inline(always)]
            fn identity() -> T::Acc {
                T::Acc::$identity
            }
            #[inline(always)]
            fn lift(x: T, _: u64) -> T::Acc {
                x.widen()
            }
            #[inline(always)]
            fn combine(a: T::Acc, b: T::Acc) -> T::Acc {
                a.$combine(b)
            }
            fn finish(state: T::Acc, _: u64) -> T {
                T::narrow(state)
            }
        }
    };
}
wrapping!(WrappingSum, ZERO, add);
wrapping!(WrappingProd, ONE, mul);

/// Code that is generic over element type and operator.
pub trait Visitor {
    /// What it returns.
    type Result;
    /// Called with the types that a problem's operator, dtype and accuracy name.
    fn visit<T: MeanSum, O: ReduceOperator<T>>(self) -> Self::Result;
}

/// Calls a visitor with the types behind the table rows.
pub fn visit<V: Visitor>(operator: Operator, dtype: DType, accuracy: Accuracy, visitor: V) -> V::Result {
    dispatch!(dtype, T => match (operator, accuracy) {
        (Operator::Sum, Accuracy::Fast) => visitor.visit::<T, Sum>(),
        (Operator::Sum, Accuracy::Compensated) => visitor.visit::<T, CompensatedSum>(),
        (Operator::Prod, _) => visitor.visit::<T, Prod>(),
        (Operator::Min, _) => visitor.visit::<T, Min>(),
        (Operator::Max, _) => visitor.visit::<T, Max>(),
        (Operator::ArgMin, _) => visitor.visit::<T, ArgMin>(),
        (Operator::ArgMax, _) => visitor.visit::<T, ArgMax>(),
        (Operator::Mean, Accuracy::Fast) => visitor.visit::<T, Mean>(),
        (Operator::Mean, Accuracy::Compensated) => visitor.visit::<T, CompensatedMean>(),
        (Operator::LogSumExp, _) => visitor.visit::<T, LogSumExp>(),
        (Operator::NanMin, _) => visitor.visit::<T, NanMin>(),
        (Operator::NanMax, _) => visitor.visit::<T, NanMax>(),
        (Operator::WrappingSum, _) => visitor.visit::<T, WrappingSum>(),
        (Operator::WrappingProd, _) => visitor.visit::<T, WrappingProd>(),
    })
}
