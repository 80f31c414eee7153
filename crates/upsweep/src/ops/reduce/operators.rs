//! The Rust side of the operator table: state, `lift`, `identity`, `combine`, `finish` of each operator.
//! The C++ side, with the same names and the same rules, is `kernels/operators.cuh`.
//!
//! `chunk` says how the fast CPU rungs reduce many elements at once; its default follows from the five.

use super::simd;
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
accumulator!(i32, 0, 1, i32::wrapping_add, i32::wrapping_mul);
accumulator!(i64, 0, 1, i64::wrapping_add, i64::wrapping_mul);
accumulator!(u64, 0, 1, u64::wrapping_add, u64::wrapping_mul);

/// What elements are compared in on the CPU: a machine type whose comparisons are one vector instruction.
pub trait Key: Copy + Debug + Send + Sync + PartialOrd + 'static {
    /// -inf, or the least integer.
    const LOWEST: Self;
    /// +inf, or the greatest integer.
    const HIGHEST: Self;
}
macro_rules! key {
    ($($t:ty: $low:expr, $high:expr;)*) => {$(
        impl Key for $t {
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
        }
    )*};
}
macro_rules! integer_key {
    ($($t:ty)*) => { key!($($t: <$t>::MIN, <$t>::MAX;)*); };
}
key!(f32: f32::NEG_INFINITY, f32::INFINITY; f64: f64::NEG_INFINITY, f64::INFINITY;);
integer_key!(i32 i64 u32 u64 u8 i8);

/// What exponentials are taken in on the CPU.
pub trait Real: Accumulator + Key {
    /// Difference.
    fn sub(self, other: Self) -> Self;
    /// `e^self` for `self <= 0`, -inf included; not meant for NaN.
    fn exp_nonpositive(self) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
}
impl Real for f32 {
    #[inline(always)]
    fn sub(self, other: f32) -> f32 {
        self - other
    }
    #[inline(always)]
    fn exp_nonpositive(self) -> f32 {
        simd::exp_nonpositive_f32(self)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self as f64
    }
}
impl Real for f64 {
    #[inline(always)]
    fn sub(self, other: f64) -> f64 {
        self - other
    }
    #[inline(always)]
    fn exp_nonpositive(self) -> f64 {
        self.exp()
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// An element with its accumulator.
pub trait Number: Element {
    /// f32 for f32, f16, bf16; f64 for f64; i64 or u64 for integers and bool.
    type Acc: Accumulator;
    /// What a chunk of elements is summed in: the accumulator, or i32 where a chunk's sum cannot leave it.
    type ChunkSum: Accumulator;
    /// What elements are compared in.
    type Key: Key;
    /// What exponentials are taken in: f32 for f32, f16 and bf16, else f64.
    type Real: Real;
    /// Exact.
    fn to_chunk_sum(self) -> Self::ChunkSum;
    /// Exact.
    fn from_chunk_sum(sum: Self::ChunkSum) -> Self::Acc;
    /// Exact, order-preserving.
    fn key(self) -> Self::Key;
    /// The element with this key, exact for keys that came from elements.
    fn from_key(key: Self::Key) -> Self;
    /// Exact for floats.
    fn real(self) -> Self::Real;
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
    (
        $t:ty, acc: $acc:ty, chunk_sum: $chunk:ty, key: $key:ty, real: $real:ty,
        widen: $widen:expr, narrow: $narrow:expr, total: $total:expr,
        to_chunk: $to_chunk:expr, from_chunk: $from_chunk:expr, to_key: $to_key:expr, from_key: $from_key:expr,
        to_real: $to_real:expr, lowest: $low:expr, highest: $high:expr
    ) => {
        impl Number for $t {
            type Acc = $acc;
            type ChunkSum = $chunk;
            type Key = $key;
            type Real = $real;
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
            #[inline(always)]
            fn to_chunk_sum(self) -> $chunk {
                ($to_chunk)(self)
            }
            #[inline(always)]
            fn from_chunk_sum(sum: $chunk) -> $acc {
                ($from_chunk)(sum)
            }
            #[inline(always)]
            fn key(self) -> $key {
                ($to_key)(self)
            }
            #[inline(always)]
            fn from_key(key: $key) -> Self {
                ($from_key)(key)
            }
            #[inline(always)]
            fn real(self) -> $real {
                ($to_real)(self)
            }
            const LOWEST: Self = $low;
            const HIGHEST: Self = $high;
        }
    };
}
macro_rules! float {
    ($t:ty, $acc:ty, $widen:expr, $narrow:expr) => {
        number!(
            $t, acc: $acc, chunk_sum: $acc, key: $acc, real: $acc,
            widen: $widen, narrow: $narrow, total: $narrow,
            to_chunk: $widen, from_chunk: |sum| sum, to_key: $widen, from_key: $narrow,
            to_real: $widen, lowest: <$t>::NEG_INFINITY, highest: <$t>::INFINITY
        );
    };
}
macro_rules! integer {
    ($t:ty, $acc:ty, $chunk:ty) => {
        number!(
            $t, acc: $acc, chunk_sum: $chunk, key: $t, real: f64,
            widen: |x| x as $acc, narrow: |a| a as $t, total: |a| a,
            to_chunk: |x| x as $chunk, from_chunk: |sum| sum as $acc, to_key: |x| x, from_key: |key| key,
            to_real: |x| x as f64, lowest: <$t>::MIN, highest: <$t>::MAX
        );
    };
}
float!(f32, f32, |x| x, |a| a);
float!(f64, f64, |x| x, |a| a);
float!(f16, f32, |x: f16| simd::f16_bits_to_f32(x.to_bits()), f16::from_f32);
float!(bf16, f32, |x: bf16| simd::bf16_bits_to_f32(x.to_bits()), bf16::from_f32);
integer!(i32, i64, i64);
integer!(i64, i64, i64);
integer!(u32, u64, u64);
integer!(u64, u64, u64);
integer!(u8, u64, i32);
integer!(i8, i64, i32);
number!(
    bool, acc: u64, chunk_sum: i32, key: u8, real: f64,
    widen: |x| x as u64, narrow: |a| a != 0, total: |a| a,
    to_chunk: |x| x as i32, from_chunk: |sum| sum as u64, to_key: |x| x as u8, from_key: |key| key != 0,
    to_real: |x| x as u8 as f64, lowest: false, highest: true
);

/// An operator over elements of type `T`. `combine` is associative up to rounding and commutative.
pub trait ReduceOperator<T: Number>: Sized + Send + Sync + 'static {
    /// What is carried: one Rust struct here, one C struct of the same fields in the kernels.
    type State: Copy + Send + Sync + 'static;
    /// What comes out.
    type Output: Element;
    /// The operator that reduces to the same states: itself, or one that differs in `finish` alone, so that the code of
    /// the rungs is compiled once for both.
    type States: ReduceOperator<T, State = Self::State>;
    /// The state of no elements: `combine(identity, s) == s`.
    fn identity() -> Self::State;
    /// The state of the element at `index`.
    fn lift(x: T, index: u64) -> Self::State;
    /// The state of both.
    fn combine(a: Self::State, b: Self::State) -> Self::State;
    /// The result for `count` elements.
    fn finish(state: Self::State, count: u64) -> Self::Output;
    /// The state of up to one chunk of neighbours, the first of which has index `first`. Rounding operators combine in
    /// an order that the number of elements alone decides.
    #[inline(always)]
    fn chunk(data: &[T], first: u64) -> Self::State {
        simd::reduce_lanes(data, Self::identity(), |x, position| Self::lift(x, first + position as u64), Self::combine)
    }
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
/// Logsumexp with a compensated sum.
pub struct CompensatedLogSumExp;
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
    type States = Self;
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
    #[inline(always)]
    fn chunk(data: &[T], _: u64) -> T::Acc {
        T::from_chunk_sum(simd::reduce_lanes(data, T::ChunkSum::ZERO, |x, _| x.to_chunk_sum(), T::ChunkSum::add))
    }
}

impl<T: Number> ReduceOperator<T> for Prod {
    type State = T::Acc;
    type Output = T::Total;
    type States = Self;
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

impl std::ops::Add for DoubleDouble {
    type Output = DoubleDouble;
    /// Sum of two, with Knuth's two-sum; an infinite or NaN high part carries no low part.
    #[inline(always)]
    fn add(self, other: DoubleDouble) -> DoubleDouble {
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
            type States = CompensatedSum;
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
                a + b
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
            type States = Self;
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
            #[inline(always)]
            fn chunk(data: &[T], _: u64) -> T {
                T::from_key(simd::best_of(data, T::Key::$identity, T::key, |a, b| a $better b))
            }
        }
    };
}
extremum!(Min, HIGHEST, <);
extremum!(Max, LOWEST, >);

macro_rules! nan_extremum {
    ($name:ident, $identity:ident, $better:tt) => {
        impl<T: Number> ReduceOperator<T> for $name {
            /// The best element that is not NaN, and whether there was one; until then any NaN that was seen.
            type State = (T, bool);
            type Output = T;
            type States = Self;
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
            #[inline(always)]
            fn chunk(data: &[T], _: u64) -> (T, bool) {
                let better = |a: T::Key, b: T::Key| if b $better a { b } else { a };
                let key = |x: T, _| if x.is_nan() { T::Key::$identity } else { x.key() };
                let best = simd::reduce_lanes(data, T::Key::$identity, key, better);
                if best != T::Key::$identity {
                    return (T::from_key(best), true);
                }
                // Either every number is the identity, or there is none.
                match data.iter().find(|x| !x.is_nan()) {
                    Some(&number) => (number, true),
                    None => data.first().map_or_else(<Self as ReduceOperator<T>>::identity, |&nan| (nan, false)),
                }
            }
        }
    };
}
nan_extremum!(NanMin, HIGHEST, <);
nan_extremum!(NanMax, LOWEST, >);

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
            type States = Self;
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
            #[inline(always)]
            fn chunk(data: &[T], first: u64) -> Indexed<T> {
                match simd::locate_best(data, T::Key::$identity, T::key, |a, b| a $better b) {
                    Some((position, value)) => Indexed { value, index: first + position as u64 },
                    None => <Self as ReduceOperator<T>>::identity(),
                }
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
    /// [`Sum`] where it adds in the same type, else [`Mean`] itself.
    type MeanStates: ReduceOperator<Self, State = Self::Sum>;
    /// The compensated sum of floats; the sum of integers is exact as it is.
    type CompensatedSum: ReduceOperator<Self>;
    /// The mean of a compensated sum; of integers, too, whose sum may leave f64's 53 bits.
    type CompensatedMean: ReduceOperator<Self>;
    /// The compensated form for floats; there is none for integers, which have no logsumexp in the operator table.
    type CompensatedLogSumExp: ReduceOperator<Self>;
    /// Exact for floats; nearest for 64-bit integers.
    fn mean_widen(self) -> Self::Sum;
    /// Divides in f64, where the count is exact up to 2^53, then rounds to the output.
    fn mean_finish(sum: Self::Sum, count: u64) -> Self::Mean;
}
macro_rules! mean_sum {
    ($($t:ty => $sum:ty, $widen:expr, $states:ty, $compensated_sum:ty, $compensated_mean:ty, $compensated_log:ty;)*) => {$(
        impl MeanSum for $t {
            type Sum = $sum;
            type MeanStates = $states;
            type CompensatedSum = $compensated_sum;
            type CompensatedMean = $compensated_mean;
            type CompensatedLogSumExp = $compensated_log;
            #[inline(always)]
            fn mean_widen(self) -> $sum {
                ($widen)(self)
            }
            fn mean_finish(sum: $sum, count: u64) -> Self::Mean {
                <Self::Mean as Element>::from_f64(f64::from(sum) / count as f64)
            }
        }
    )*};
}
macro_rules! float_mean {
    ($($t:ty => $sum:ty;)*) => {
        mean_sum!($($t => $sum, Number::widen, Sum, CompensatedSum, CompensatedMean, CompensatedLogSumExp;)*);
    };
}
macro_rules! integer_mean {
    ($($t:ty, $widen:expr;)*) => { mean_sum!($($t => f64, $widen, Mean, Sum, CompensatedMean, LogSumExp;)*); };
}
float_mean!(f32 => f32; f64 => f64; f16 => f32; bf16 => f32;);
integer_mean!(
    i32, |x| x as f64;
    i64, |x| x as f64;
    u32, |x| x as f64;
    u64, |x| x as f64;
    u8, |x| x as f64;
    i8, |x| x as f64;
    bool, |x| x as u8 as f64;
);

impl<T: MeanSum> ReduceOperator<T> for Mean {
    type State = T::Sum;
    type Output = T::Mean;
    type States = T::MeanStates;
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
    type States = Self;
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
    #[inline(always)]
    fn chunk(data: &[T], _: u64) -> MaxSum {
        simd::max_sum_of_blocks(data)
    }
}

/// A number at most one below the maximum, and the sum of exponentials relative to it in double-double: for chains, which add
/// one after the other. Where the maximum rises slowly, terms relative to itself would be made relative to another one at
/// every step, and the roundings of that would add up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompensatedMaxSum {
    /// What terms are relative to; infinite or NaN if the maximum is.
    pub max: f64,
    /// Sum of `exp(x - max)`.
    pub sum: DoubleDouble,
}

impl<T: Number> ReduceOperator<T> for CompensatedLogSumExp {
    type State = CompensatedMaxSum;
    type Output = T;
    type States = Self;
    #[inline(always)]
    fn identity() -> CompensatedMaxSum {
        CompensatedMaxSum { max: f64::NEG_INFINITY, sum: DoubleDouble { high: 0.0, low: 0.0 } }
    }
    #[inline(always)]
    fn lift(x: T, _: u64) -> CompensatedMaxSum {
        CompensatedMaxSum { max: x.to_f64(), sum: DoubleDouble { high: 1.0, low: 0.0 } }
    }
    #[inline(always)]
    fn combine(a: CompensatedMaxSum, b: CompensatedMaxSum) -> CompensatedMaxSum {
        // As `MaxSum::merge`, but that `a` stays as it is where it may.
        let most = <Max as ReduceOperator<f64>>::combine(a.max, b.max);
        let max = if most - a.max <= 1.0 { a.max } else { most };
        let scale = |state: CompensatedMaxSum| {
            if state.max == max {
                return state.sum;
            }
            let factor = (state.max - max).exp();
            DoubleDouble { high: state.sum.high * factor, low: state.sum.low * factor }
        };
        CompensatedMaxSum { max, sum: scale(a) + scale(b) }
    }
    fn finish(state: CompensatedMaxSum, count: u64) -> T {
        let sum = MaxSum { max: state.max, sum: state.sum.high + state.sum.low };
        <LogSumExp as ReduceOperator<T>>::finish(sum, count)
    }
}

macro_rules! wrapping {
    ($name:ident, $states:ident, $identity:ident, $combine:ident) => {
        impl<T: Number> ReduceOperator<T> for $name {
            type State = T::Acc;
            type Output = T;
            type States = $states;
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
wrapping!(WrappingSum, Sum, ZERO, add);
wrapping!(WrappingProd, Prod, ONE, mul);

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
        (Operator::Sum, Accuracy::Compensated) => visitor.visit::<T, <T as MeanSum>::CompensatedSum>(),
        (Operator::Prod, _) => visitor.visit::<T, Prod>(),
        (Operator::Min, _) => visitor.visit::<T, Min>(),
        (Operator::Max, _) => visitor.visit::<T, Max>(),
        (Operator::ArgMin, _) => visitor.visit::<T, ArgMin>(),
        (Operator::ArgMax, _) => visitor.visit::<T, ArgMax>(),
        (Operator::Mean, Accuracy::Fast) => visitor.visit::<T, Mean>(),
        (Operator::Mean, Accuracy::Compensated) => visitor.visit::<T, <T as MeanSum>::CompensatedMean>(),
        (Operator::LogSumExp, Accuracy::Compensated) => visitor.visit::<T, <T as MeanSum>::CompensatedLogSumExp>(),
        (Operator::LogSumExp, Accuracy::Fast) => visitor.visit::<T, LogSumExp>(),
        (Operator::NanMin, _) => visitor.visit::<T, NanMin>(),
        (Operator::NanMax, _) => visitor.visit::<T, NanMax>(),
        (Operator::WrappingSum, _) => visitor.visit::<T, WrappingSum>(),
        (Operator::WrappingProd, _) => visitor.visit::<T, WrappingProd>(),
        // Refused with the problem.
        (Operator::LinearRecurrence | Operator::User, _) => visitor.visit::<T, Sum>(),
    })
}
