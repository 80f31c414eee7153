//! The vector code of the CPU rung `simd`: maxima, exponentials and sums of blocks of a row.
//!
//! Every function is written once, in plain Rust that the compiler turns into vector instructions, and compiled for the
//! baseline, for AVX2 and for AVX-512. All give the same bits: no multiply-add is fused, and the order of additions
//! follows from positions and lengths alone.

use crate::ops::reduce::operators::{Accumulator, Key, Number, Real};
use crate::ops::reduce::simd::{Pairwise, exp_nonpositive_f32};
use half::{bf16, f16};

use super::problem::SoftmaxKind;

/// Elements that are summed as one leaf of the row's tree, and that pass through the first-level cache together.
pub(super) const BLOCK: usize = 4096;

/// The longest row that one thread takes whole, keeping its exponentials: 256 KiB of f32, so they stay in the
/// second-level cache until they are scaled. Longer rows are cut into pieces of this length for all threads, and their
/// exponentials taken twice.
pub(super) const CACHED_ROW: usize = 1 << 16;

/// An element with its exponential and its rounding, both in a form that becomes vector code.
pub(super) trait SoftmaxElement: Number {
    /// `e^d` for `d <= 0`, 0 at -inf; not meant for NaN.
    fn exp(d: Self::Real) -> Self::Real;
    /// Rounds to nearest even.
    fn round(x: Self::Real) -> Self;
    /// The nearest number of the accumulator.
    fn real_from_f64(x: f64) -> Self::Real;
}

impl SoftmaxElement for f32 {
    #[inline(always)]
    fn exp(d: f32) -> f32 {
        exp_nonpositive_f32(d)
    }
    #[inline(always)]
    fn round(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn real_from_f64(x: f64) -> f32 {
        x as f32
    }
}

impl SoftmaxElement for f64 {
    #[inline(always)]
    fn exp(d: f64) -> f64 {
        exp_nonpositive_f64(d)
    }
    #[inline(always)]
    fn round(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn real_from_f64(x: f64) -> f64 {
        x
    }
}

impl SoftmaxElement for f16 {
    #[inline(always)]
    fn exp(d: f32) -> f32 {
        exp_nonpositive_f32(d)
    }
    #[inline(always)]
    fn round(x: f32) -> f16 {
        f16::from_bits(f32_to_f16_bits(x))
    }
    #[inline(always)]
    fn real_from_f64(x: f64) -> f32 {
        x as f32
    }
}

impl SoftmaxElement for bf16 {
    #[inline(always)]
    fn exp(d: f32) -> f32 {
        exp_nonpositive_f32(d)
    }
    #[inline(always)]
    fn round(x: f32) -> bf16 {
        bf16::from_bits(f32_to_bf16_bits(x))
    }
    #[inline(always)]
    fn real_from_f64(x: f64) -> f32 {
        x as f32
    }
}

/// `e^d` for `d <= 0` in f64: at most 2 ulp off; 0 below -708.396 (where the result would be subnormal) and at -inf.
///
/// As the f32 form of the reduction: `d = k ln 2 + r` with integer `k`, rounded by adding 1.5 * 2^52; ln 2 in two parts,
/// the first with 21 trailing zeros so that `k` times it is exact; the Taylor polynomial of degree 13 for `|r| <= ln 2 / 2`,
/// whose remainder is a twentieth of a unit; `2^k` made of exponent bits.
#[inline(always)]
pub(super) fn exp_nonpositive_f64(d: f64) -> f64 {
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0;
    const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
    const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    // ln(2^-1022): below it 2^k would need a subnormal.
    const LOWEST: f64 = -708.396_418_532_264_1;
    let shifted = d * std::f64::consts::LOG2_E + TO_INTEGER;
    let k = shifted - TO_INTEGER;
    let r = (d - k * LN_2_HIGH) - k * LN_2_LOW;
    // 1 / 13! down to 1 / 2!.
    let q = 1.605_904_383_682_161_3e-10;
    let q = q * r + 2.087_675_698_786_81e-9;
    let q = q * r + 2.505_210_838_544_172e-8;
    let q = q * r + 2.755_731_922_398_589_3e-7;
    let q = q * r + 2.755_731_922_398_589e-6;
    let q = q * r + 2.480_158_730_158_73e-5;
    let q = q * r + 1.984_126_984_126_984e-4;
    let q = q * r + 1.388_888_888_888_889e-3;
    let q = q * r + 8.333_333_333_333_333e-3;
    let q = q * r + 4.166_666_666_666_666_4e-2;
    let q = q * r + 1.666_666_666_666_666_6e-1;
    let q = q * r + 0.5;
    let mantissa = 1.0 + (r + (r * r) * q);
    let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0f64.to_bits()));
    if d < LOWEST { 0.0 } else { mantissa * scale }
}

/// An f32 as IEEE half, rounded to nearest even, without branches or tables, so that lanes of it vectorise.
#[inline(always)]
pub(super) fn f32_to_f16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: half a unit less one, plus the last bit that stays; a carry out of the mantissa is right.
    let odd = (magnitude >> 13) & 1;
    let normal = (magnitude.wrapping_add(0xfff + odd) >> 13).wrapping_sub(112 << 10);
    // Subnormal results: added to 0.5, whose unit is the smallest half, the sum rounds there.
    let subnormal = (f32::from_bits(magnitude.min(0x3900_0000)) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    // 65520 and above round to infinity.
    let large = if magnitude >= 0x477f_f000 { 0x7c00 } else { finite };
    let half = if magnitude > 0x7f80_0000 { 0x7e00 } else { large };
    (half | sign) as u16
}

/// An f32 as bfloat16, rounded to nearest even.
#[inline(always)]
pub(super) fn f32_to_bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN must not round to infinity.
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// What a row's elements become: `exp(x - max) * factor`, or `(x - max) - factor`.
#[derive(Clone, Copy)]
pub(super) struct Scale<R> {
    pub(super) max: R,
    pub(super) factor: R,
}

impl<R: Real> Scale<R> {
    /// From the row's maximum, which is finite, and its sum.
    #[inline(always)]
    pub(super) fn new<T: SoftmaxElement<Real = R>>(kind: SoftmaxKind, max: R, sum: R) -> Scale<R> {
        let sum = sum.to_f64();
        let factor = if kind == SoftmaxKind::LogSoftmax { sum.ln() } else { 1.0 / sum };
        Scale { max, factor: T::real_from_f64(factor) }
    }
}

/// Independent accumulators of maxima and sums: a few vectors of each width.
const LANES: usize = 32;

/// The elements of the last, incomplete group of lanes, filled up with -inf: neither maxima nor sums notice.
#[inline(always)]
fn padded<T: SoftmaxElement>(rest: &[T]) -> [T; LANES] {
    let mut group = [T::LOWEST; LANES];
    group[..rest.len()].copy_from_slice(rest);
    group
}

/// The larger, or NaN if either is.
#[inline(always)]
#[allow(clippy::eq_op)]
fn larger<R: Real>(a: R, b: R) -> R {
    // A NaN on the left stays; a NaN on the right loses no comparison, so it is taken.
    if a > b || a != a { a } else { b }
}

/// Combines lanes pairwise.
#[inline(always)]
fn fold_lanes<R: Real>(mut lanes: [R; LANES], combine: impl Fn(R, R) -> R) -> R {
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = combine(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// The largest element; -inf of none, NaN if there is one.
#[inline(always)]
// Loops over indices of fixed arrays are the form that became vector code.
#[allow(clippy::needless_range_loop)]
fn largest<T: SoftmaxElement>(x: &[T]) -> T::Real {
    let mut lanes = [<T::Real as Key>::LOWEST; LANES];
    let groups = x.chunks_exact(LANES);
    let rest = groups.remainder();
    for group in groups {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], group[lane].real());
        }
    }
    if !rest.is_empty() {
        let group = padded(rest);
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], group[lane].real());
        }
    }
    fold_lanes(lanes, larger)
}

/// Asks for the lines of a group of lanes, wherever they lie: exponentials keep the core busy and memory idle, so the
/// next row comes meanwhile.
#[inline(always)]
fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..(LANES * size_of::<T>()).div_ceil(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, without effect on memory and without a fault at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>().wrapping_add(64 * line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Exponentials of a block relative to the maximum; their sum is returned. Elements `ahead` of them are asked for (0:
/// none). A lane adds at most BLOCK / LANES of them one
/// after the other.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn exponentials<T: SoftmaxElement>(x: &[T], max: T::Real, out: &mut [T::Real], ahead: usize) -> T::Real {
    let mut sums = [T::Real::ZERO; LANES];
    let groups = x.chunks_exact(LANES);
    let rest = groups.remainder();
    let whole = x.len() - rest.len();
    for (group, out) in groups.zip(out.chunks_exact_mut(LANES)) {
        if ahead != 0 {
            prefetch(group.as_ptr().wrapping_add(ahead));
        }
        for lane in 0..LANES {
            let e = T::exp(group[lane].real().sub(max));
            out[lane] = e;
            sums[lane] = sums[lane].add(e);
        }
    }
    if !rest.is_empty() {
        let group = padded(rest);
        let mut last = [T::Real::ZERO; LANES];
        for lane in 0..LANES {
            let e = T::exp(group[lane].real().sub(max));
            last[lane] = e;
            sums[lane] = sums[lane].add(e);
        }
        out[whole..x.len()].copy_from_slice(&last[..rest.len()]);
    }
    fold_lanes(sums, |a, b| a.add(b))
}

/// The outputs of a block, from its exponentials.
#[inline(always)]
fn scaled<T: SoftmaxElement>(exponentials: &[T::Real], factor: T::Real, out: &mut [T]) {
    for (out, e) in out.iter_mut().zip(exponentials) {
        *out = T::round(e.mul(factor));
    }
}

/// The outputs of a block of log_softmax.
#[inline(always)]
fn shifted<T: SoftmaxElement>(x: &[T], scale: Scale<T::Real>, out: &mut [T]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = T::round(x.real().sub(scale.max).sub(scale.factor));
    }
}

/// The vector instructions that functions are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instructions {
    /// What every processor of the target has.
    Baseline,
    /// 32-byte vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 64-byte vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Those that this processor has, widest last. The choice changes speed, never bits.
    pub(super) fn available() -> Vec<Instructions> {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = ["avx2", "bmi1", "bmi2", "lzcnt", "popcnt"];
            let has_avx2 = avx2.iter().all(|name| has(name));
            let has_avx512 = has_avx2 && ["avx512f", "avx512bw", "avx512dq", "avx512vl"].iter().all(|name| has(name));
            let found = [(true, Instructions::Baseline), (has_avx2, Instructions::Avx2), (has_avx512, Instructions::Avx512)];
            found.into_iter().filter(|(has, _)| *has).map(|(_, instructions)| instructions).collect()
        }
        #[cfg(not(target_arch = "x86_64"))]
        vec![Instructions::Baseline]
    }

    /// The widest of [`Instructions::available`].
    pub(super) fn best() -> Instructions {
        Instructions::available().last().copied().unwrap_or(Instructions::Baseline)
    }
}

#[cfg(target_arch = "x86_64")]
fn has(feature: &str) -> bool {
    match feature {
        "avx2" => is_x86_feature_detected!("avx2"),
        "bmi1" => is_x86_feature_detected!("bmi1"),
        "bmi2" => is_x86_feature_detected!("bmi2"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        "popcnt" => is_x86_feature_detected!("popcnt"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        _ => false,
    }
}

/// Compiles a generic function for each level of [`Instructions`]; the first argument picks one.
macro_rules! for_each_level {
    ($(#[$doc:meta])* fn $name:ident <$t:ident> ($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block) => {
        $(#[$doc])*
        pub(super) fn $name<$t: SoftmaxElement>(instructions: Instructions, $($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn portable<$t: SoftmaxElement>($($argument: $type),*) $(-> $result)? $body
            match instructions {
                Instructions::Baseline => portable::<$t>($($argument),*),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2 => {
                    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
                    fn avx2<$t: SoftmaxElement>($($argument: $type),*) $(-> $result)? {
                        portable::<$t>($($argument),*)
                    }
                    // SAFETY: the level came from `available`, which has found every feature.
                    unsafe { avx2::<$t>($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512 => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
                    fn avx512<$t: SoftmaxElement>($($argument: $type),*) $(-> $result)? {
                        portable::<$t>($($argument),*)
                    }
                    // SAFETY: as above.
                    unsafe { avx512::<$t>($($argument),*) }
                }
            }
        }
    };
}

for_each_level! {
    /// The outputs of up to [`BLOCK`] elements, from the elements.
    fn block_outputs<T>(kind: SoftmaxKind, x: &[T], scale: Scale<T::Real>, exponentials: &mut [T::Real], out: &mut [T]) {
        if kind == SoftmaxKind::LogSoftmax {
            shifted(x, scale, out);
        } else {
            for (e, x) in exponentials.iter_mut().zip(x) {
                *e = T::exp(x.real().sub(scale.max));
            }
            scaled(&exponentials[..x.len()], scale.factor, out);
        }
    }
}

for_each_level! {
    /// The maximum of a row of up to [`CACHED_ROW`] elements and, if it is finite, the sum of its exponentials, which
    /// are left in `exponentials` (for log_softmax and logsumexp only the last block's). Elements `ahead` are asked for.
    fn row_sum<T>(kind: SoftmaxKind, x: &[T], exponentials: &mut [T::Real], ahead: usize) -> (T::Real, T::Real) {
        let max = largest(x);
        if !max.to_f64().is_finite() {
            return (max, T::Real::ZERO);
        }
        let mut sums = Pairwise::<T::Real, 6>::new(T::Real::ZERO);
        for (number, block) in x.chunks(BLOCK).enumerate() {
            let start = if kind == SoftmaxKind::Softmax { number * BLOCK } else { 0 };
            let sum = self::exponentials(block, max, &mut exponentials[start..start + block.len()], ahead);
            sums.push(sum, |a, b| a.add(b));
        }
        (max, sums.finish(|a, b| a.add(b)).unwrap_or(T::Real::ZERO))
    }
}

for_each_level! {
    /// The outputs of up to [`BLOCK`] elements of a row whose exponentials were kept.
    fn kept_outputs<T>(kind: SoftmaxKind, x: &[T], exponentials: &[T::Real], scale: Scale<T::Real>, out: &mut [T]) {
        if kind == SoftmaxKind::LogSoftmax {
            shifted(x, scale, out);
        } else {
            scaled(exponentials, scale.factor, out);
        }
    }
}

/// Copies elements past the caches. On x86-64 the stores are weakly ordered: [`fence`] comes before anyone else is told
/// of them.
///
/// # Safety
/// `to` must be valid for writes of as many elements as `from` has, and not overlap it.
#[inline]
pub(super) unsafe fn stream<T: SoftmaxElement>(from: &[T], to: *mut T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let size = size_of::<T>();
        // Elements before the first 64-byte line, and whole lines after them.
        let head = (to.align_offset(64)).min(from.len());
        let per_line = 64 / size;
        let lines = (from.len() - head) / per_line;
        let tail = head + lines * per_line;
        // SAFETY: all ranges lie within `from` and, by the caller's word, within `to`; the destination of each streaming
        // store is 16-byte aligned, as it lies whole 16 bytes behind a line's start.
        unsafe {
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, head);
            let (source, target) = (from.as_ptr().add(head).cast::<__m128i>(), to.add(head).cast::<__m128i>());
            for word in 0..lines * 4 {
                _mm_stream_si128(target.add(word), _mm_loadu_si128(source.add(word)));
            }
            std::ptr::copy_nonoverlapping(from.as_ptr().add(tail), to.add(tail), from.len() - tail);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: by the caller's word.
    unsafe {
        std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
    }
}

/// Orders the stores of [`stream`] before everything that follows.
#[inline]
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_to_16_bits_are_to_nearest_even() {
        // Every half and bfloat, the numbers half-way to their neighbours, and those around.
        let check = |x: f32| {
            for x in [x, -x] {
                let (ours, theirs) = (f16::from_bits(f32_to_f16_bits(x)), f16::from_f32(x));
                assert!(
                    ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                    "f16 of {x:e}: {ours:e} for {theirs:e}"
                );
                let (ours, theirs) = (bf16::from_bits(f32_to_bf16_bits(x)), bf16::from_f32(x));
                assert!(
                    ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
                    "bf16 of {x:e}: {ours:e} for {theirs:e}"
                );
            }
        };
        for bits in (0..=0x7fff_ffffu32).step_by(0x1000) {
            for near in [bits.saturating_sub(1), bits, bits + 1, bits + 0x7ff] {
                check(f32::from_bits(near.min(0x7fff_ffff)));
            }
        }
    }

    #[test]
    fn the_double_exponential_keeps_its_stated_error() {
        let mut worst = 0.0f64;
        for i in 0..2_000_000u64 {
            let d = -708.396 * (i as f64 / 2e6).powi(2);
            let exact = d.exp();
            let ulp = f64::from_bits(exact.to_bits() + 1) - exact;
            let error = (exp_nonpositive_f64(d) - exact).abs() / ulp;
            assert!(error <= 2.0, "e^{d} is {error} ulp off");
            worst = worst.max(error);
        }
        println!("largest difference from the library {worst} ulp");
        for (d, exact) in [(0.0, 1.0), (-0.0, 1.0), (f64::NEG_INFINITY, 0.0), (-709.0, 0.0), (-1e9, 0.0), (f64::MIN, 0.0)] {
            assert_eq!(exp_nonpositive_f64(d), exact);
        }
    }

    fn rows_agree<T: SoftmaxElement>() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let x: Vec<T> = (0..CACHED_ROW)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                T::from_f64((state >> 40) as f64 / (1u64 << 20) as f64 - 8.0)
            })
            .collect();
        for length in [1, 2, 3, 63, 64, 65, 1000, 4095, 4096, 4097, 12_345, CACHED_ROW] {
            for kind in SoftmaxKind::ALL {
                let run = |instructions: Instructions| {
                    let mut exponentials = vec![T::Real::ZERO; length];
                    let (max, sum) = row_sum(instructions, kind, &x[..length], &mut exponentials, 0);
                    let scale = Scale::new::<T>(kind, max, sum);
                    let mut out = vec![T::default(); length];
                    let last = length.min(BLOCK);
                    kept_outputs(instructions, kind, &x[..last], &exponentials[..last], scale, &mut out);
                    let mut again = vec![T::default(); length];
                    block_outputs(instructions, kind, &x[..last], scale, &mut exponentials[..last], &mut again);
                    assert!(
                        kind == SoftmaxKind::LogSumExp || out == again,
                        "{}: kept and repeated exponentials differ",
                        T::DTYPE
                    );
                    format!("{max:?} {sum:?} {again:?}")
                };
                for level in Instructions::available() {
                    assert_eq!(run(Instructions::Baseline), run(level), "{} {kind} {length} {level:?}", T::DTYPE);
                }
            }
        }
    }

    #[test]
    fn levels_of_instructions_agree_bitwise() {
        rows_agree::<f32>();
        rows_agree::<f64>();
        rows_agree::<f16>();
        rows_agree::<bf16>();
    }

    #[test]
    fn streaming_copies_everything_at_any_alignment() {
        for offset in 0..20 {
            for length in [0, 1, 15, 16, 17, 63, 64, 100, 1000] {
                let from: Vec<f32> = (0..length).map(|i| i as f32).collect();
                let mut to = vec![-1.0f32; offset + length + 3];
                // SAFETY: `to` holds offset + length elements and more, and is another allocation.
                unsafe { stream(&from, to.as_mut_ptr().add(offset)) };
                fence();
                assert!(to[..offset].iter().all(|x| *x == -1.0) && to[offset + length..].iter().all(|x| *x == -1.0));
                assert_eq!(to[offset..offset + length], from[..]);
            }
        }
    }
}
