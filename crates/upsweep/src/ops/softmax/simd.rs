//! The vector code of the CPU rung `simd`: maxima, exponentials, sums and outputs of rows.
//!
//! Every function is written once, in plain Rust that the compiler turns into vector instructions, and compiled for the
//! baseline, for AVX2 and for AVX-512. All give the same bits: the source alone says which multiply-adds are fused, and
//! the order of additions follows from positions and lengths.
//!
//! A row is written while the exponentials of the next one are taken and the one after that is asked for. Memory that is
//! read, memory that is written and the core so work at the same time; in phases of their own, each would wait for the
//! others.

use crate::ops::reduce::operators::{Accumulator, Key, Number, Real};
use crate::ops::reduce::simd::{Pairwise, exp_nonpositive_f32};
use half::{bf16, f16};

use super::problem::SoftmaxKind;

/// Elements that are summed as one leaf of the row's tree.
pub(super) const BLOCK: usize = 4096;

/// The longest row that one thread takes whole, keeping its exponentials: 256 KiB of f32, so they stay in the
/// second-level cache until they are scaled. Longer rows are cut into pieces of this length for all threads, and their
/// exponentials taken twice.
pub(super) const CACHED_ROW: usize = 1 << 16;

/// An element with its exponential and its rounding, both in a form that becomes vector code.
pub(super) trait SoftmaxElement: Number {
    /// `e^d` for `d <= 0`, 0 at -inf; NaN of NaN.
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

/// `e^d` for `d <= 0` in f64: at most 2 ulp off; 0 below -708.396 (where the result would be subnormal) and at -inf;
/// NaN of NaN.
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

/// Independent accumulators of maxima and sums: a few vectors of each width.
const LANES: usize = 32;

/// The elements of the last, incomplete group of lanes, filled up with -inf: neither maxima nor sums notice.
#[inline(always)]
fn padded<T: SoftmaxElement>(rest: &[T]) -> [T; LANES] {
    let mut group = [T::LOWEST; LANES];
    group[..rest.len()].copy_from_slice(rest);
    group
}

/// The larger; which one beside a NaN is not said, so that this is one instruction.
#[inline(always)]
fn larger<R: Real>(a: R, b: R) -> R {
    if a > b { a } else { b }
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

/// Asks for the lines of a group of lanes, wherever they lie.
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

/// Outputs that are still to be made of what was kept of their row: exponentials, or differences from the maximum.
pub(super) struct Outputs<'a, T: SoftmaxElement> {
    out: &'a mut [T],
    /// What exponentials are multiplied with, or what is taken from differences.
    factor: T::Real,
    /// Whether they are stored past the caches.
    stream: bool,
    written: usize,
}

impl<T: SoftmaxElement> Default for Outputs<'_, T> {
    fn default() -> Self {
        Outputs { out: &mut [], factor: T::Real::ZERO, stream: false, written: 0 }
    }
}

impl<'a, T: SoftmaxElement> Outputs<'a, T> {
    /// Those of a row with this sum of exponentials. On x86-64 streamed stores are weakly ordered: [`fence`] comes before
    /// anyone else is told of them.
    pub(super) fn new(kind: SoftmaxKind, sum: T::Real, out: &'a mut [T], stream: bool) -> Self {
        let sum = sum.to_f64();
        let factor = if kind == SoftmaxKind::LogSoftmax { sum.ln() } else { 1.0 / sum };
        Outputs { out, factor: T::real_from_f64(factor), stream, written: 0 }
    }

    /// How many come before the first whole line of memory, if lines matter.
    #[inline(always)]
    fn before_lines(&self) -> usize {
        if self.stream { self.out.as_ptr().align_offset(64).min(self.out.len()) } else { 0 }
    }

    /// Writes the next `count` outputs, or as many as are left.
    #[inline(always)]
    // As in `kept_of`.
    #[allow(clippy::needless_range_loop)]
    fn write<const LOG: bool>(&mut self, level: Instructions, count: usize, kept: &[T::Real]) {
        let range = self.written..(self.written + count).min(self.out.len());
        self.written = range.end;
        let factor = self.factor;
        let output = |kept: T::Real| T::round(if LOG { kept.sub(factor) } else { kept.mul(factor) });
        let (out, kept) = (&mut self.out[range.clone()], &kept[range]);
        let (Some(group), Some(kept)) = (out.first_chunk_mut::<LANES>(), kept.first_chunk::<LANES>()) else {
            return out.iter_mut().zip(kept).for_each(|(out, kept)| *out = output(*kept));
        };
        let mut outputs = [T::default(); LANES];
        for lane in 0..LANES {
            outputs[lane] = output(kept[lane]);
        }
        if self.stream { stream(level, &outputs, group) } else { *group = outputs }
    }
}

/// What the outputs of a group are made of; its exponentials are added to `sums`.
#[inline(always)]
// Loops over indices of fixed arrays are the form that became vector code.
#[allow(clippy::needless_range_loop)]
fn kept_of<T: SoftmaxElement, const LOG: bool>(
    group: &[T; LANES],
    max: T::Real,
    sums: &mut [T::Real; LANES],
) -> [T::Real; LANES] {
    let mut kept = [T::Real::ZERO; LANES];
    for lane in 0..LANES {
        let d = group[lane].real().sub(max);
        let e = T::exp(d);
        kept[lane] = if LOG { d } else { e };
        sums[lane] = sums[lane].add(e);
    }
    kept
}

/// [`row_sum`]. A group of the row `before` is written just before this row's takes its place.
#[inline(always)]
fn sum_and_write<T: SoftmaxElement, const LOG: bool>(
    level: Instructions,
    x: &[T],
    max: T::Real,
    kept: &mut [T::Real],
    mut before: Outputs<'_, T>,
    ahead: usize,
) -> T::Real {
    before.write::<LOG>(level, before.before_lines(), kept);
    let mut blocks = Pairwise::<T::Real, 6>::new(T::Real::ZERO);
    let mut at = 0;
    for block in x.chunks(BLOCK) {
        let mut sums = [T::Real::ZERO; LANES];
        let (groups, rest) = block.as_chunks::<LANES>();
        for group in groups {
            before.write::<LOG>(level, LANES, kept);
            if ahead != 0 {
                prefetch(group.as_ptr().wrapping_add(ahead));
            }
            let keep = kept_of::<T, LOG>(group, max, &mut sums);
            if let Some(kept) = kept.get_mut(at..at + LANES) {
                kept.copy_from_slice(&keep);
            }
            at += LANES;
        }
        if !rest.is_empty() {
            before.write::<LOG>(level, LANES, kept);
            let keep = kept_of::<T, LOG>(&padded(rest), max, &mut sums);
            if let Some(kept) = kept.get_mut(at..at + rest.len()) {
                kept.copy_from_slice(&keep[..rest.len()]);
            }
        }
        blocks.push(fold_lanes(sums, |a, b| a.add(b)), |a, b| a.add(b));
    }
    while before.written < before.out.len() {
        before.write::<LOG>(level, LANES, kept);
    }
    blocks.finish(|a, b| a.add(b)).unwrap_or(T::Real::ZERO)
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
            let avx2 = ["avx2", "bmi1", "bmi2", "fma", "lzcnt", "popcnt"];
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
        "fma" => is_x86_feature_detected!("fma"),
        "lzcnt" => is_x86_feature_detected!("lzcnt"),
        "popcnt" => is_x86_feature_detected!("popcnt"),
        "avx512f" => is_x86_feature_detected!("avx512f"),
        "avx512bw" => is_x86_feature_detected!("avx512bw"),
        "avx512dq" => is_x86_feature_detected!("avx512dq"),
        "avx512vl" => is_x86_feature_detected!("avx512vl"),
        _ => false,
    }
}

/// Compiles a generic function for each level of [`Instructions`]; the first argument picks one, and is a constant in each.
macro_rules! for_each_level {
    ($(#[$doc:meta])* fn $name:ident <$t:ident> ($level:ident: Instructions, $($argument:ident: $type:ty),*) -> $result:ty $body:block) => {
        $(#[$doc])*
        pub(super) fn $name<$t: SoftmaxElement>($level: Instructions, $($argument: $type),*) -> $result {
            #[inline(always)]
            fn portable<$t: SoftmaxElement>($level: Instructions, $($argument: $type),*) -> $result {
                let _ = $level;
                $body
            }
            match $level {
                Instructions::Baseline => portable::<$t>(Instructions::Baseline, $($argument),*),
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx2 => {
                    #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
                    fn avx2<$t: SoftmaxElement>($($argument: $type),*) -> $result {
                        portable::<$t>(Instructions::Avx2, $($argument),*)
                    }
                    // SAFETY: the level came from `available`, which has found every feature.
                    unsafe { avx2::<$t>($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                Instructions::Avx512 => {
                    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
                    fn avx512<$t: SoftmaxElement>($($argument: $type),*) -> $result {
                        portable::<$t>(Instructions::Avx512, $($argument),*)
                    }
                    // SAFETY: as above.
                    unsafe { avx512::<$t>($($argument),*) }
                }
            }
        }
    };
}

for_each_level! {
    /// The largest element; -inf of none. NaN if there is one, except that beside finite elements it may only show in
    /// [`row_sum`], which looks at every element anyway.
    fn row_max<T>(level: Instructions, x: &[T]) -> T::Real {
        let mut lanes = [<T::Real as Key>::LOWEST; LANES];
        let (groups, rest) = x.as_chunks::<LANES>();
        for group in groups.iter().chain([&padded(rest)]) {
            for (lane, x) in lanes.iter_mut().zip(group) {
                *lane = larger(*lane, x.real());
            }
        }
        let max = fold_lanes(lanes, larger);
        let has_nan = || x.iter().fold(false, |any, x| any | x.real().to_f64().is_nan());
        if !max.to_f64().is_finite() && has_nan() { T::real_from_f64(f64::NAN) } else { max }
    }
}

for_each_level! {
    /// The sum of the exponentials of up to [`CACHED_ROW`] elements relative to their maximum, which is finite; NaN if an
    /// element is. What the outputs are made of is left in `kept`, unless that is empty; the outputs of the row `before`
    /// are made of what it held, and written meanwhile. Elements `ahead` are asked for (0: none).
    fn row_sum<T>(level: Instructions, kind: SoftmaxKind, x: &[T], max: T::Real, kept: &mut [T::Real], before: Outputs<'_, T>, ahead: usize) -> T::Real {
        if kind == SoftmaxKind::LogSoftmax {
            sum_and_write::<T, true>(level, x, max, kept, before, ahead)
        } else {
            sum_and_write::<T, false>(level, x, max, kept, before, ahead)
        }
    }
}

/// Stores a group, which begins with a line of memory, past the caches; a whole line at once where there are vectors for it.
#[inline(always)]
fn stream<T: SoftmaxElement>(level: Instructions, from: &[T; LANES], to: &mut [T; LANES]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the vectors lie within both arrays, and in `to` at multiples of their size, as that begins with a line. The
    // level came from `available`.
    unsafe {
        use std::arch::x86_64::*;
        let (bytes, from, to) = (size_of_val(from), from.as_ptr(), to.as_mut_ptr());
        if level == Instructions::Avx512 {
            let (from, to) = (from.cast::<__m512i>(), to.cast::<__m512i>());
            for n in 0..bytes / 64 {
                _mm512_stream_si512(to.add(n), _mm512_loadu_si512(from.add(n)));
            }
        } else {
            let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
            for n in 0..bytes / 16 {
                _mm_stream_si128(to.add(n), _mm_loadu_si128(from.add(n)));
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = level;
        to.copy_from_slice(from);
    }
}

/// Orders the streamed stores before everything that follows.
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
                    let x = &x[..length];
                    let max = row_max(instructions, x);
                    let mut kept = vec![T::Real::ZERO; length];
                    let sum = row_sum(instructions, kind, x, max, &mut kept, Outputs::default(), 0);
                    // Alone, and while the row's first elements are looked at again.
                    let [alone, meanwhile] = [0, length / 2 + 1].map(|next| {
                        let (mut kept, mut out) = (kept.clone(), vec![T::default(); length]);
                        let outputs = Outputs::new(kind, sum, &mut out, false);
                        row_sum(instructions, kind, &x[..next.min(length)], max, &mut kept, outputs, 0);
                        out
                    });
                    assert!(alone == meanwhile, "{} {kind} {length}: outputs depend on the next row", T::DTYPE);
                    format!("{max:?} {sum:?} {alone:?}")
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
    fn streamed_outputs_are_whole_at_any_alignment() {
        for offset in 0..20 {
            for length in [0, 1, 15, 16, 17, 63, 64, 100, 1000] {
                let mut kept: Vec<f32> = (0..length).map(|i| i as f32).collect();
                let (next, expected) = (vec![-1.0; length], kept.clone());
                let mut to = vec![-1.0f32; offset + length + 3];
                let outputs = Outputs::new(SoftmaxKind::Softmax, 1.0, &mut to[offset..offset + length], true);
                row_sum(Instructions::best(), SoftmaxKind::Softmax, &next, 0.0, &mut kept, outputs, 0);
                fence();
                assert!(to[..offset].iter().all(|x| *x == -1.0) && to[offset + length..].iter().all(|x| *x == -1.0));
                assert_eq!(to[offset..offset + length], expected[..]);
                assert!(kept.iter().all(|e| *e == exp_nonpositive_f32(-1.0)));
            }
        }
    }

    #[test]
    fn a_nan_is_seen_beside_anything() {
        for length in [1, 2, 33, 64, 100] {
            for other in [0.0, f32::NEG_INFINITY, f32::INFINITY] {
                for at in 0..length {
                    let mut x = vec![other; length];
                    x[at] = f32::NAN;
                    for level in Instructions::available() {
                        let max = row_max(level, &x);
                        let sum = row_sum(level, SoftmaxKind::LogSumExp, &x, max, &mut [], Outputs::default(), 0);
                        assert!(max.is_nan() || (max.is_finite() && sum.is_nan()), "{at} of {length} beside {other}");
                    }
                }
            }
        }
    }
}
