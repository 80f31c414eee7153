//! The vector code of the CPU rungs: many lanes by index, combined by fixed trees.
//!
//! Every function here is written once, in plain Rust that the compiler turns into vector instructions, and is compiled
//! twice on x86-64: for the baseline, and for AVX2 where the processor has it. Both give the same bits, because the
//! order of every rounding operation is fixed by the source: which stream and lane of its chunk an element goes to,
//! and the trees that combine lanes and chunks, depend on position and length alone, and so which multiply-adds are fused.
//! Alignment never enters: a chunk starts at a multiple of [`CHUNK`] elements of its row, wherever that lies in memory.
//!
//! Memory is read in the order that the hardware's prefetchers like: [`STREAMS`] places by turns, each in the order of
//! its addresses. Measured on two cores of an AMD EPYC, a plain sum of 2^26 f32, medians of one run: 18.7 GB/s so; 16.3
//! from one place; 12.0 where each turn of loads jumps back and forth by 1 KiB.

#[cfg(feature = "cpu")]
use super::operators::ReduceOperator;
use super::operators::{Accumulator, Key, MaxSum, Number, Real};

/// Elements that are looked at twice by turns: 16 KiB of f32, so that the second look hits the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Elements of one chunk: the unit of work of a thread. 256 KiB of f32.
pub(super) const CHUNK: usize = 1 << 16;

/// Places of a chunk that are read by turns.
const STREAMS: usize = 4;

/// Vectors that are combined pairwise before they meet a lane's state: two of them for a stream are the 512 bytes of its
/// turn.
const FOLD: usize = 8;

/// Elements that fill a 32-byte register, where a state of this size is what a lane holds.
const fn vector_width(state_size: usize) -> usize {
    match state_size {
        0..=1 => 32,
        2 => 16,
        3..=4 => 8,
        5..=8 => 4,
        _ => 2,
    }
}

/// Folds that a lane takes one after the other before lanes are combined pairwise. This is the constant of the error
/// bound: a sum of n elements adds along chains of at most `ROWS + log2(FOLD) + log2(n)` roundings.
const ROWS: usize = 8;

/// Combines states pairwise, in the order they come, as the carries of a binary counter: after `n` states the tree is
/// fixed by `n`, and no state passes through more than `log2(n) + 1` combinations. Takes up to `2^DEPTH - 1` states.
pub(crate) struct Pairwise<S, const DEPTH: usize> {
    levels: [S; DEPTH],
    count: u64,
}

impl<S: Copy, const DEPTH: usize> Pairwise<S, DEPTH> {
    #[inline(always)]
    pub(crate) fn new(identity: S) -> Self {
        Pairwise { levels: [identity; DEPTH], count: 0 }
    }

    /// Adds one state.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut state: S, combine: impl Fn(S, S) -> S) {
        let carries = self.count.trailing_ones() as usize;
        for level in 0..carries {
            state = combine(self.levels[level], state);
        }
        self.levels[carries] = state;
        self.count += 1;
    }

    /// The state of all, or `None` if there was none.
    #[inline(always)]
    pub(crate) fn finish(self, combine: impl Fn(S, S) -> S) -> Option<S> {
        let mut rest = self.count;
        let mut total = None;
        while rest != 0 {
            let earlier = self.levels[rest.trailing_zeros() as usize];
            total = Some(match total {
                Some(later) => combine(earlier, later),
                None => earlier,
            });
            rest &= rest - 1;
        }
        total
    }
}

/// Levels of the counter over the leaves of one chunk: at most `CHUNK / (STREAMS * 4 lanes * FOLD * ROWS)` = 64 leaves, and
/// one of what is left.
const LEAF_LEVELS: usize = 7;

/// Reduces up to [`CHUNK`] elements in `LANES` lanes for each of [`STREAMS`] streams, a vector being `WIDTH` lanes. The
/// lanes stay apart until the end, so that nothing waits for a tree in the middle of the stream.
#[inline(always)]
// Loops over indices of fixed arrays are the form that became vector code.
#[allow(clippy::needless_range_loop)]
fn lanes<X: Copy, S: Copy, const LANES: usize, const WIDTH: usize>(
    data: &[X],
    identity: S,
    lift: impl Fn(X, usize) -> S,
    combine: impl Fn(S, S) -> S,
) -> S {
    debug_assert!(data.len() <= CHUNK);
    let mut width = STREAMS * LANES;
    let mut total = [[identity; LANES]; STREAMS];
    if data.len() <= width {
        // A short row: no lane holds more than one element, and only the lanes in use are combined.
        width = data.len().next_power_of_two();
        for (position, (lane, &x)) in total.as_flattened_mut().iter_mut().zip(data).enumerate() {
            *lane = lift(x, position);
        }
    } else {
        let merge = |a: [[S; LANES]; STREAMS], b: [[S; LANES]; STREAMS]| {
            let mut merged = a;
            for stream in 0..STREAMS {
                for lane in 0..LANES {
                    merged[stream][lane] = combine(a[stream][lane], b[stream][lane]);
                }
            }
            merged
        };
        let mut leaves = Pairwise::<[[S; LANES]; STREAMS], LEAF_LEVELS>::new(total);
        let folds = data.len() / (STREAMS * LANES * FOLD);
        let stream_len = folds * LANES * FOLD;
        let (streams, rest) = data.split_at(STREAMS * stream_len);
        for first in (0..folds).step_by(ROWS) {
            let mut states = [[identity; LANES]; STREAMS];
            for fold in first..folds.min(first + ROWS) {
                for stream in 0..STREAMS {
                    let start = stream * stream_len + fold * LANES * FOLD;
                    let elements = &streams[start..start + LANES * FOLD];
                    for lane in 0..LANES {
                        // In the order of addresses: the vectors of a fold are neighbours.
                        let first = lane / WIDTH * WIDTH * FOLD + lane % WIDTH;
                        let one = |row: usize| lift(elements[first + row * WIDTH], start + first + row * WIDTH);
                        let mut fold: [S; FOLD] = std::array::from_fn(one);
                        let mut width = FOLD;
                        while width > 1 {
                            width /= 2;
                            for pair in 0..width {
                                fold[pair] = combine(fold[2 * pair], fold[2 * pair + 1]);
                            }
                        }
                        states[stream][lane] = combine(states[stream][lane], fold[0]);
                    }
                }
            }
            leaves.push(states, merge);
        }
        if !rest.is_empty() {
            let mut states = [[identity; LANES]; STREAMS];
            let mut position = streams.len();
            for row in rest.chunks(STREAMS * LANES) {
                for (lane, &x) in states.as_flattened_mut().iter_mut().zip(row) {
                    *lane = combine(*lane, lift(x, position));
                    position += 1;
                }
            }
            leaves.push(states, merge);
        }
        total = leaves.finish(merge).unwrap_or(total);
    }
    let total = total.as_flattened_mut();
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            total[lane] = combine(total[lane], total[lane + width]);
        }
    }
    if data.is_empty() { identity } else { total[0] }
}

/// [`lanes`] with two vectors of lanes for each stream: enough independent chains to hide the latency of a combine, few
/// enough to stay in registers.
#[inline(always)]
pub(crate) fn reduce_lanes<X: Copy, S: Copy>(
    data: &[X],
    identity: S,
    lift: impl Fn(X, usize) -> S,
    combine: impl Fn(S, S) -> S,
) -> S {
    match const { vector_width(size_of::<S>()) } {
        32 => lanes::<X, S, 64, 32>(data, identity, lift, combine),
        16 => lanes::<X, S, 32, 16>(data, identity, lift, combine),
        8 => lanes::<X, S, 16, 8>(data, identity, lift, combine),
        4 => lanes::<X, S, 8, 4>(data, identity, lift, combine),
        _ => lanes::<X, S, 4, 2>(data, identity, lift, combine),
    }
}

/// The best element under `better`; a NaN, wherever it stands, makes the result NaN.
#[inline(always)]
#[allow(clippy::eq_op)]
pub(crate) fn best_of<X: Copy, K: Key>(data: &[X], worst: K, key: impl Fn(X) -> K, better: impl Fn(K, K) -> bool) -> K {
    // A NaN on the left stays; a NaN on the right loses no comparison, so it is taken.
    reduce_lanes(data, worst, |x, _| key(x), |a, b| if better(a, b) || a != a { a } else { b })
}

/// Where the best element of a chunk stands: position and value. The first NaN wins; else the lowest position of a tie.
///
/// The best values of quarters are found in lanes; only the one that holds the answer is searched for the position.
#[inline(always)]
#[allow(clippy::eq_op)]
pub(super) fn locate_best<X: Copy, K: Key>(
    data: &[X],
    worst: K,
    key: impl Fn(X) -> K + Copy,
    better: impl Fn(K, K) -> bool + Copy,
) -> Option<(usize, X)> {
    const QUARTER: usize = CHUNK / 4;
    let mut winner: Option<(usize, K)> = None;
    for (number, quarter) in data.chunks(QUARTER).enumerate() {
        let best = best_of(quarter, worst, key, better);
        if best != best {
            winner = Some((number, best));
            break;
        }
        // A later quarter must be strictly better: on a tie the earlier one holds the lower position.
        if winner.is_none_or(|(_, value)| better(best, value)) {
            winner = Some((number, best));
        }
    }
    let (number, best) = winner?;
    let start = number * QUARTER;
    let is_answer = |x: X| {
        let k = key(x);
        k == best || (best != best && k != k)
    };
    // Whole groups first: the answer of a group is one vector test.
    const GROUP: usize = 64;
    let quarter = &data[start..data.len().min(start + QUARTER)];
    let group = quarter.chunks(GROUP).position(|group| group.iter().fold(false, |any, &x| any | is_answer(x)))?;
    let within = quarter[group * GROUP..].iter().position(|&x| is_answer(x))?;
    let position = start + group * GROUP + within;
    Some((position, data[position]))
}

/// The maximum of a block and the sum of exponentials relative to it. The passes over a block follow one that brought
/// it into the first-level cache; exponentials have a loop of their own, which compilers turn into vector code.
#[inline(always)]
fn max_sum<T: Number>(data: &[T], exponentials: &mut [T::Real; BLOCK]) -> MaxSum {
    let max = best_of(data, T::Real::LOWEST, T::real, |a, b| a > b);
    let widened = max.to_f64();
    if !widened.is_finite() {
        // Nothing to subtract from: the maximum alone decides, and merging takes no difference of infinities.
        return MaxSum { max: widened, sum: 1.0 };
    }
    let exponentials = &mut exponentials[..data.len()];
    for (exponential, x) in exponentials.iter_mut().zip(data) {
        *exponential = x.real().sub(max).exp_nonpositive();
    }
    let sum = reduce_lanes(exponentials, T::Real::ZERO, |x, _| x, |a, b| a.add(b));
    MaxSum { max: widened, sum: sum.to_f64() }
}

/// `e^d` for `d <= 0` in f32: at most 0.86 ulp off; 0 below -87.336 (where the result would be subnormal) and at -inf; NaN
/// of NaN.
///
/// `d = k ln 2 + r` with integer `k` and `|r| <= ln 2 / 2`. `k` comes from adding and subtracting 1.5 * 2^23, which
/// rounds to an integer; ln 2 is split in two, the first part short enough that `k` times it is exact. Then
/// `e^r = 1 + r (1 + r q(r))`, `q` of degree 4, fitted by weighted least squares to the least maximal relative error
/// (0.05 units of 2^-24), and `2^k` is made of exponent bits.
///
/// Multiply-adds are fused by name, so every instruction set gives the same bits: half as many instructions where the
/// processor has them, a call of the library for each where it has not, as on x86-64 before 2013. Of the error, half a
/// unit is the last addition's rounding, and a sixth each is from the roundings of `r` and of its factor.
#[inline(always)]
pub(crate) fn exp_nonpositive_f32(d: f32) -> f32 {
    const TO_INTEGER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // ln(2^-126): below it 2^k would need a subnormal.
    const LOWEST: f32 = -87.336_54;
    let shifted = d.mul_add(std::f32::consts::LOG2_E, TO_INTEGER);
    let k = shifted - TO_INTEGER;
    let r = k.mul_add(-LN_2_LOW, k.mul_add(-LN_2_HIGH, d));
    let q = 0.001_381_446_7_f32;
    let q = q.mul_add(r, 0.008_368_781);
    let q = q.mul_add(r, 0.041_668_393);
    let q = q.mul_add(r, 0.166_665_2);
    let q = q.mul_add(r, 0.499_999_94);
    let mantissa = q.mul_add(r, 1.0).mul_add(r, 1.0);
    // The low bits of `shifted` are k in two's complement; adding 1.0's exponent makes 2^k.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if d < LOWEST { 0.0 } else { mantissa * scale }
}

/// An IEEE half as f32, exact, without branches or tables, so that lanes of it vectorise.
#[inline(always)]
pub(super) fn f16_bits_to_f32(half: u16) -> f32 {
    let sign = (half as u32 & 0x8000) << 16;
    let magnitude = half as u32 & 0x7fff;
    // Exponent and mantissa in f32's places, and the biases' difference of 112 added to the exponent.
    let shifted = (magnitude << 13) + (112 << 23);
    // Infinity and NaN: the exponent is all ones in f32, too.
    let special = (magnitude << 13) | 0x7f80_0000;
    // A subnormal m * 2^-24: placed below the leading bit of 2^-14, which is then subtracted.
    let subnormal = (f32::from_bits(shifted + (1 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let bits = if magnitude < 0x0400 {
        subnormal
    } else if magnitude >= 0x7c00 {
        special
    } else {
        shifted
    };
    f32::from_bits(bits | sign)
}

/// A bfloat16 as f32: its bits are f32's upper half.
#[inline(always)]
pub(super) fn bf16_bits_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// [`max_sum`] of each block of a chunk, merged pairwise.
#[inline(always)]
pub(super) fn max_sum_of_blocks<T: Number>(data: &[T]) -> MaxSum {
    let mut blocks = Pairwise::<MaxSum, 5>::new(MaxSum::EMPTY);
    let mut exponentials = [T::Real::ZERO; BLOCK];
    for block in data.chunks(BLOCK) {
        blocks.push(max_sum(block, &mut exponentials), MaxSum::merge);
    }
    blocks.finish(MaxSum::merge).unwrap_or(MaxSum::EMPTY)
}

#[cfg(feature = "cpu")]
/// Compiles a generic function for the baseline and for AVX2, and calls the best one the processor has.
macro_rules! for_each_instruction_set {
    ($(#[$doc:meta])* $visibility:vis fn $name:ident [$($generics:tt)*] [$($names:tt)*] ($($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        $(#[$doc])*
        $visibility fn $name<$($generics)*>($($argument: $type),*) -> $result {
            #[inline(always)]
            fn portable<$($generics)*>($($argument: $type),*) -> $result $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
                fn avx2<$($generics)*>($($argument: $type),*) -> $result {
                    portable::<$($names)*>($($argument),*)
                }
                if vector_instructions() == "AVX2" {
                    // SAFETY: `vector_instructions` has found every feature that the function is compiled for.
                    return unsafe { avx2::<$($names)*>($($argument),*) };
                }
            }
            portable::<$($names)*>($($argument),*)
        }
    };
}

#[cfg(feature = "cpu")]
/// The vector instructions that the CPU rungs use on this processor. The answer changes speed, never bits.
#[inline]
pub fn vector_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        if has_avx2 && !tests_ask_for_the_baseline() { "AVX2" } else { "SSE2" }
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "none"
    }
}

#[cfg(all(test, feature = "cpu", target_arch = "x86_64"))]
thread_local! {
    /// Set by the tests that compare the two compilations.
    static BASELINE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

#[cfg(all(feature = "cpu", target_arch = "x86_64"))]
#[inline(always)]
fn tests_ask_for_the_baseline() -> bool {
    #[cfg(test)]
    {
        BASELINE.get()
    }
    #[cfg(not(test))]
    {
        false
    }
}

#[cfg(feature = "cpu")]
for_each_instruction_set! {
    /// The state of up to [`CHUNK`] elements, the first of which has index `first` in its row.
    pub(crate) fn chunk [T: Number, O: ReduceOperator<T>] [T, O] (data: &[T], first: u64) -> O::State {
        O::chunk(data, first)
    }
}

#[cfg(feature = "cpu")]
for_each_instruction_set! {
    /// Exclusive or of the 64-bit little-endian words of up to one piece, padded with zeros.
    fn xor_words [] [] (bytes: &[u8]) -> u64 {
        // The length of a turn that was measured to be fastest.
        const ROW: usize = 512;
        const WORDS: usize = ROW / 8;
        let mut lanes = [0u64; WORDS];
        let mut add = |row: &[u8]| {
            for (lane, word) in lanes.iter_mut().zip(row.as_chunks::<8>().0) {
                *lane ^= u64::from_le_bytes(*word);
            }
        };
        let rows = bytes.len() / (STREAMS * ROW);
        let (streams, rest) = bytes.split_at(STREAMS * rows * ROW);
        for row in 0..rows {
            for stream in 0..STREAMS {
                let start = (stream * rows + row) * ROW;
                add(&streams[start..start + ROW]);
            }
        }
        for row in rest.chunks(ROW) {
            let mut padded = [0u8; ROW];
            padded[..row.len()].copy_from_slice(row);
            add(&padded);
        }
        lanes.iter().fold(0, |a, b| a ^ b)
    }
}

#[cfg(feature = "cpu")]
/// Reads all bytes once with every thread of the pool, doing as little as proves it: the exclusive or of the buffer's
/// 64-bit little-endian words, the last one padded with zeros. Its speed is the measured read ceiling of the CPU.
pub fn read_ceiling(bytes: &[u8]) -> u64 {
    use rayon::prelude::*;
    const PIECE: usize = 1 << 20;
    bytes.par_chunks(PIECE).map(xor_words).reduce(|| 0, |a, b| a ^ b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn every_half_and_bfloat_converts_exactly() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in
                [(f16_bits_to_f32(bits), f16::from_bits(bits).to_f32()), (bf16_bits_to_f32(bits), bf16::from_bits(bits).to_f32())]
            {
                let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
                assert!(same, "{bits:#06x}: {ours} for {theirs}");
            }
        }
    }

    #[test]
    fn the_exponential_keeps_its_stated_error() {
        let mut worst = (0.0, 0.0f32);
        // Every 61st number from -0.0 down to where the result is flushed.
        for bits in (0x8000_0000u32..=(-87.336_54f32).to_bits()).step_by(61) {
            let d = f32::from_bits(bits);
            let exact = f64::from(d).exp();
            // The distance of neighbours at the exact value.
            let ulp = 2f64.powi(exact.log2().floor() as i32 - 23);
            let error = (f64::from(exp_nonpositive_f32(d)) - exact).abs() / ulp;
            assert!(error <= 0.86, "e^{d} is {error} ulp off");
            if error > worst.0 {
                worst = (error, d);
            }
        }
        println!("largest error {:.3} ulp, at {:e}", worst.0, worst.1);
        assert!(worst.0 > 0.5, "not even the rounding of the result was seen");
        for (d, exact) in [(0.0, 1.0), (-0.0, 1.0), (f32::NEG_INFINITY, 0.0), (-87.34, 0.0), (-1e4, 0.0), (f32::MIN, 0.0)] {
            assert_eq!(exp_nonpositive_f32(d), exact);
        }
    }

    #[test]
    fn the_counter_is_a_tree_in_order() {
        for n in 0..70u32 {
            let mut counter = Pairwise::<(u32, u32, u32), 8>::new((0, 0, 0));
            // First, last, depth; neighbours only, left to right.
            let combine = |a: (u32, u32, u32), b: (u32, u32, u32)| {
                assert_eq!(a.1 + 1, b.0);
                (a.0, b.1, a.2.max(b.2) + 1)
            };
            (0..n).for_each(|i| counter.push((i, i, 0), combine));
            match counter.finish(combine) {
                None => assert_eq!(n, 0),
                Some((first, last, depth)) => {
                    assert_eq!((first, last), (0, n - 1));
                    assert!(depth <= n.ilog2() + 1, "{n}: depth {depth}");
                }
            }
        }
    }

    /// The compilation for AVX2 against the one for the baseline.
    #[cfg(all(feature = "cpu", target_arch = "x86_64"))]
    #[test]
    fn instruction_sets_agree_bitwise() {
        use crate::ops::reduce::operators::{MeanSum, Visitor, visit};
        use crate::types::{Accuracy, DType, Operator};

        struct Compare;
        impl Visitor for Compare {
            type Result = ();
            fn visit<T: MeanSum, O: ReduceOperator<T>>(self) {
                let mut state = 0x9e37_79b9_7f4a_7c15u64;
                let mut data: Vec<T> = (0..CHUNK)
                    .map(|_| {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        T::from_f64((state >> 40) as f64 / (1u64 << 22) as f64 - 2.0)
                    })
                    .collect();
                for special in [1.5, f64::NEG_INFINITY, f64::NAN] {
                    let at = data.len() / 2;
                    data[at] = T::from_f64(special);
                    for length in [0, 1, 5, 63, 64, 65, 1000, 4096, 4097, 12_345, data.len()] {
                        let bytes = |baseline: bool| {
                            BASELINE.set(baseline);
                            let state = chunk::<T, O>(&data[..length], 0);
                            BASELINE.set(false);
                            let value = O::finish(state, length as u64);
                            // NaN payloads are no part of the contract.
                            format!("{value:?}")
                        };
                        assert_eq!(bytes(true), bytes(false), "{} {} {length}", T::DTYPE, std::any::type_name::<O>());
                    }
                }
            }
        }
        for dtype in DType::all() {
            for operator in Operator::reductions().filter(|o| o.accepts(dtype)) {
                visit(operator, dtype, Accuracy::Fast, Compare);
                visit(operator, dtype, Accuracy::Compensated, Compare);
            }
        }
    }
}
