//! What scans add to the operator table of the reductions: the carry that passes from block to block of a row.
//! The C++ side, with the same names and the same rules, is in `kernels/scan.cuh`.

use super::simd::{self, GROUP};
use crate::ops::reduce;
use crate::ops::reduce::operators::{
    Accumulator, CompensatedLogSumExp, CompensatedMaxSum, DoubleDouble, LogSumExp, Max, MaxSum, Min, Number, Prod,
    ReduceOperator, Sum, WrappingProd, WrappingSum,
};
use crate::types::{DType, Element, Operator, dispatch};

/// An accumulator with what long chains of sums are carried in.
pub(super) trait Chain: Accumulator {
    /// f64 for f32, double-double for f64, the type itself for integers: a chain of millions of additions then rounds
    /// no more than a tree would.
    type Carry: Copy + Send + Sync + 'static;
    /// 0.
    const EMPTY: Self::Carry;
    /// Exact.
    fn raise(self) -> Self::Carry;
    /// Sum.
    fn join(a: Self::Carry, b: Self::Carry) -> Self::Carry;
    /// Rounds once.
    fn lower(carry: Self::Carry) -> Self;
    /// An output as an accumulator, exact.
    fn of<E: Element>(output: E) -> Self;
    /// Sums of a group, each element's with all before it.
    fn prefix_sums<const AVX2: bool>(states: &mut [Self; GROUP]);
}

#[inline(always)]
fn f32_sums<const AVX2: bool>(states: &mut [f32; GROUP]) {
    #[cfg(target_arch = "x86_64")]
    if AVX2 {
        // SAFETY: only code that found AVX2 asks for it.
        unsafe { simd::prefix_avx2(states) };
        return;
    }
    simd::prefix_in_lanes(states, 0.0, |a, b| a + b);
}

#[inline(always)]
fn f64_sums<const AVX2: bool>(states: &mut [f64; GROUP]) {
    simd::prefix_in_lanes(states, 0.0, |a, b| a + b);
}

#[inline(always)]
fn integer_sums<const AVX2: bool>(states: &mut [impl Accumulator; GROUP]) {
    simd::prefix_in_turn(states, Accumulator::add);
}

macro_rules! chain {
    ($($t:ty => $carry:ty, $empty:expr, $raise:expr, $join:expr, $lower:expr, $of:ident, $prefix:ident;)*) => {$(
        impl Chain for $t {
            type Carry = $carry;
            const EMPTY: $carry = $empty;
            #[inline(always)]
            fn raise(self) -> $carry {
                ($raise)(self)
            }
            #[inline(always)]
            fn join(a: $carry, b: $carry) -> $carry {
                ($join)(a, b)
            }
            #[inline(always)]
            fn lower(carry: $carry) -> Self {
                ($lower)(carry)
            }
            fn of<E: Element>(output: E) -> Self {
                output.$of() as $t
            }
            #[inline(always)]
            fn prefix_sums<const AVX2: bool>(states: &mut [Self; GROUP]) {
                $prefix::<AVX2>(states);
            }
        }
    )*};
}
chain!(
    f32 => f64, 0.0, |x| x as f64, |a: f64, b: f64| a + b, |carry| carry as f32, to_f64, f32_sums;
    f64 => DoubleDouble, DoubleDouble { high: 0.0, low: 0.0 }, |x| DoubleDouble { high: x, low: 0.0 },
        |a: DoubleDouble, b: DoubleDouble| a + b, |carry: DoubleDouble| carry.high + carry.low, to_f64, f64_sums;
    i64 => i64, 0, |x| x, i64::wrapping_add, |carry| carry, to_i128, integer_sums;
    u64 => u64, 0, |x| x, u64::wrapping_add, |carry| carry, to_i128, integer_sums;
);

/// An element whose accumulator has a carry: every one.
pub(super) trait Scanned: Number<Acc: Chain> {}
impl<T: Number<Acc: Chain>> Scanned for T {}

/// An operator over elements of type `T` that scans: associative, not assumed to be commutative.
pub(super) trait ScanOperator<T: Scanned>: ReduceOperator<T> {
    /// What passes from block to block.
    type Carry: Copy + Send + Sync + 'static;
    /// The carry of no elements.
    fn empty() -> Self::Carry;
    /// A block's state as a carry.
    fn raise(state: Self::State) -> Self::Carry;
    /// The carry of both, `a` before `b`.
    fn join(a: Self::Carry, b: Self::Carry) -> Self::Carry;
    /// The carry as a state, rounded once.
    fn lower(carry: Self::Carry) -> Self::State;
    /// The caller's initial value as a state.
    fn start(initial: Self::Output) -> Self::State;
    /// Scans a group, in order. `AVX2` says that the processor has it.
    fn prefix<const AVX2: bool>(states: &mut [Self::State; GROUP]);
    /// The state of up to 65536 neighbours; an operator that commutes may combine them in any fixed order.
    fn total(chunk: &[T]) -> Self::State;
}

impl<T: Scanned> ScanOperator<T> for Sum {
    type Carry = <T::Acc as Chain>::Carry;
    #[inline(always)]
    fn empty() -> Self::Carry {
        T::Acc::EMPTY
    }
    #[inline(always)]
    fn raise(state: T::Acc) -> Self::Carry {
        state.raise()
    }
    #[inline(always)]
    fn join(a: Self::Carry, b: Self::Carry) -> Self::Carry {
        T::Acc::join(a, b)
    }
    #[inline(always)]
    fn lower(carry: Self::Carry) -> T::Acc {
        T::Acc::lower(carry)
    }
    fn start(initial: T::Total) -> T::Acc {
        T::Acc::of(initial)
    }
    #[inline(always)]
    fn prefix<const AVX2: bool>(states: &mut [T::Acc; GROUP]) {
        T::Acc::prefix_sums::<AVX2>(states);
    }
    fn total(chunk: &[T]) -> T::Acc {
        reduce::chunk::<T, Self>(chunk, 0)
    }
}

/// Numbers whose combination costs a cycle or so.
#[inline(always)]
fn in_turn<S: Copy>(states: &mut [S; GROUP], _: S, combine: impl Fn(S, S) -> S) {
    simd::prefix_in_turn(states, combine);
}

/// Comparisons that keep NaN take many cycles one after the other; vectors of 4 and 8 byte numbers compare at once.
#[inline(always)]
fn in_lanes<S: Copy>(states: &mut [S; GROUP], identity: S, combine: impl Fn(S, S) -> S) {
    if const { size_of::<S>() >= 4 } {
        simd::prefix_in_lanes(states, identity, combine);
    } else {
        simd::prefix_in_turn(states, combine);
    }
}

macro_rules! carries_its_state {
    ($($operator:ty => $start:expr, $prefix:ident;)*) => {$(
        impl<T: Scanned> ScanOperator<T> for $operator {
            type Carry = Self::State;
            #[inline(always)]
            fn empty() -> Self::State {
                <Self as ReduceOperator<T>>::identity()
            }
            #[inline(always)]
            fn raise(state: Self::State) -> Self::State {
                state
            }
            #[inline(always)]
            fn join(a: Self::State, b: Self::State) -> Self::State {
                <Self as ReduceOperator<T>>::combine(a, b)
            }
            #[inline(always)]
            fn lower(carry: Self::State) -> Self::State {
                carry
            }
            fn start(initial: Self::Output) -> Self::State {
                ($start)(initial)
            }
            #[inline(always)]
            fn prefix<const AVX2: bool>(states: &mut [Self::State; GROUP]) {
                $prefix(states, <Self as ReduceOperator<T>>::identity(), <Self as ReduceOperator<T>>::combine);
            }
            fn total(chunk: &[T]) -> Self::State {
                // Compiled for the reductions already, for the operator with the same states.
                reduce::chunk::<T, <Self as ReduceOperator<T>>::States>(chunk, 0)
            }
        }
    )*};
}
carries_its_state!(
    Prod => T::Acc::of, in_turn;
    WrappingSum => Number::widen, in_turn;
    WrappingProd => Number::widen, in_turn;
    Min => |initial| initial, in_lanes;
    Max => |initial| initial, in_lanes;
);

/// Chains of sums of exponentials are carried in double-double, as those of f64 sums are.
impl<T: Scanned> ScanOperator<T> for LogSumExp {
    type Carry = CompensatedMaxSum;
    fn empty() -> CompensatedMaxSum {
        <CompensatedLogSumExp as ReduceOperator<T>>::identity()
    }
    #[inline(always)]
    fn raise(state: MaxSum) -> CompensatedMaxSum {
        CompensatedMaxSum { max: state.max, sum: DoubleDouble { high: state.sum, low: 0.0 } }
    }
    #[inline(always)]
    fn join(a: CompensatedMaxSum, b: CompensatedMaxSum) -> CompensatedMaxSum {
        <CompensatedLogSumExp as ReduceOperator<T>>::combine(a, b)
    }
    #[inline(always)]
    fn lower(carry: CompensatedMaxSum) -> MaxSum {
        MaxSum { max: carry.max, sum: carry.sum.high + carry.sum.low }
    }
    fn start(initial: T) -> MaxSum {
        <Self as ReduceOperator<T>>::lift(initial, 0)
    }
    /// Where the group's elements lie near each other, all terms are relative to its maximum: vectors of exponentials, and
    /// sums in lanes. How near: a prefix that the maximum stands behind is brought back by the logarithm, and what that and
    /// the distance's own rounding cost must stay within the bound. Of f64 that is four; of the others no term may vanish in
    /// f64, and up to eight a distance may be rounded to f32.
    #[inline(always)]
    fn prefix<const AVX2: bool>(states: &mut [MaxSum; GROUP]) {
        let is_narrow = const { size_of::<T::Real>() == 4 };
        let least = states.iter().fold(f64::INFINITY, |least, state| least.min(state.max));
        let most = states.iter().fold(f64::NEG_INFINITY, |most, state| most.max(state.max));
        if states.iter().any(|state| !state.max.is_finite()) || most - least > if is_narrow { 600.0 } else { 4.0 } {
            return simd::prefix_in_turn(states, MaxSum::merge);
        }
        let mut sums = if is_narrow && most - least <= 8.0 {
            states.map(|state| f64::from(reduce::simd::exp_nonpositive_f32((state.max - most) as f32)))
        } else {
            states.map(|state| (state.max - most).exp())
        };
        simd::prefix_in_lanes(&mut sums, 0.0, |a, b| a + b);
        // The first is an element as it is, which comes out exactly.
        for (state, sum) in states.iter_mut().zip(sums).skip(1) {
            *state = MaxSum { max: most, sum };
        }
    }
    fn total(chunk: &[T]) -> MaxSum {
        reduce::chunk::<T, Self>(chunk, 0)
    }
}

/// Code that is generic over element type and operator.
pub(super) trait Visitor {
    /// What it returns.
    type Result;
    /// Called with the types that a problem's operator and dtype name.
    fn visit<T: Scanned, O: ScanOperator<T>>(self) -> Self::Result;
}

/// Calls a visitor with the types behind the table rows; operators that do not scan were refused with the problem.
pub(super) fn visit<V: Visitor>(operator: Operator, dtype: DType, visitor: V) -> V::Result {
    if operator == Operator::LogSumExp {
        // For floats only: nothing is compiled for the others.
        return match dtype {
            DType::F64 => visitor.visit::<f64, LogSumExp>(),
            DType::F16 => visitor.visit::<half::f16, LogSumExp>(),
            DType::Bf16 => visitor.visit::<half::bf16, LogSumExp>(),
            _ => visitor.visit::<f32, LogSumExp>(),
        };
    }
    dispatch!(dtype, T => match operator {
        Operator::Prod => visitor.visit::<T, Prod>(),
        Operator::Min => visitor.visit::<T, Min>(),
        Operator::Max => visitor.visit::<T, Max>(),
        Operator::WrappingSum => visitor.visit::<T, WrappingSum>(),
        Operator::WrappingProd => visitor.visit::<T, WrappingProd>(),
        _ => visitor.visit::<T, Sum>(),
    })
}
