//! The vector code of the CPU rungs: a block of a row is scanned in groups of 64 elements, each from the identity, and
//! every group is then shifted by the carry before it.
//!
//! As in the reductions, everything is written once in plain Rust and compiled for the baseline and for AVX2, with the
//! same bits: the order of every rounding operation is fixed by an element's position in its row. The one exception is
//! [`prefix_avx2`], which does the additions of [`prefix_in_lanes`] with instructions that compilers do not find.

use super::operators::{ScanOperator, Scanned};

/// Elements that are scanned from the identity: their results meet the carry with one more combination.
pub(super) const GROUP: usize = 64;

/// Groups of one block: the results of a block stay in the first-level cache until they are written.
pub(super) const GROUPS: usize = 16;

/// Elements of one block.
pub(super) const BLOCK: usize = GROUPS * GROUP;

/// Scans a group of one after the other: right for exact operators, whose combinations cost a cycle or two.
#[inline(always)]
pub(super) fn prefix_in_turn<S: Copy>(states: &mut [S; GROUP], combine: impl Fn(S, S) -> S) {
    for i in 1..GROUP {
        states[i] = combine(states[i - 1], states[i]);
    }
}

/// Scans a group of sums as eight vectors of eight: in each half of a vector two steps of doubling distance, then the
/// lower half's total onto the upper half, then the vectors before. No sum passes more than 12 roundings, and only the
/// last step waits for the vector before.
#[inline(always)]
pub(super) fn prefix_in_lanes<S: Copy>(states: &mut [S; GROUP], zero: S, add: impl Fn(S, S) -> S) {
    let mut before = zero;
    for vector in states.as_chunks_mut::<8>().0 {
        let shifted =
            |x: &[S; 8], by: usize| -> [S; 8] { std::array::from_fn(|i| add(if i % 4 >= by { x[i - by] } else { zero }, x[i])) };
        let halves = shifted(&shifted(vector, 1), 2);
        let (low, high) = (halves[3], halves[7]);
        for i in 0..8 {
            vector[i] = add(before, add(if i < 4 { zero } else { low }, halves[i]));
        }
        before = add(before, add(low, high));
    }
}

/// [`prefix_in_lanes`] for f32.
///
/// # Safety
/// The processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn prefix_avx2(states: &mut [f32; GROUP]) {
    use std::arch::x86_64::*;
    let zero = _mm256_setzero_ps();
    let mut before = zero;
    for vector in states.as_chunks_mut::<8>().0 {
        // SAFETY: a vector is eight neighbouring numbers, loaded and stored without a demand on alignment.
        unsafe {
            let x = _mm256_loadu_ps(vector.as_ptr());
            let x = _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_si256::<4>(_mm256_castps_si256(x))), x);
            let x = _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_si256::<8>(_mm256_castps_si256(x))), x);
            // Each half's total in all its lanes, and the same with the halves exchanged.
            let totals = _mm256_permute_ps::<0xff>(x);
            let exchanged = _mm256_permute2f128_ps::<0x01>(totals, totals);
            let x = _mm256_add_ps(_mm256_blend_ps::<0xf0>(zero, exchanged), x);
            _mm256_storeu_ps(vector.as_mut_ptr(), _mm256_add_ps(before, x));
            before = _mm256_add_ps(before, _mm256_add_ps(totals, exchanged));
        }
    }
}

/// Scans a group into `results`: `before` is the carry of the chunks before, `local` that of the chunk's elements before
/// the group. Returns the chunk's carry behind the group.
#[inline(always)]
fn scan_group<T: Scanned, O: ScanOperator<T>, const AVX2: bool>(
    group: &[T; GROUP],
    results: &mut [O::Output; GROUP],
    before: O::Carry,
    local: O::Carry,
    inclusive: bool,
) -> O::Carry {
    let base = O::lower(O::join(before, local));
    let mut states = group.map(|x| O::lift(x, 0));
    O::prefix::<AVX2>(&mut states);
    if inclusive {
        results.iter_mut().zip(&states).for_each(|(result, state)| *result = O::finish(O::combine(base, *state), 0));
    } else {
        results[0] = O::finish(base, 0);
        let behind = results[1..].iter_mut().zip(&states);
        behind.for_each(|(result, state)| *result = O::finish(O::combine(base, *state), 0));
    }
    O::join(local, O::raise(states[GROUP - 1]))
}

/// Scans whole groups of a row into `output`, with carries as of [`scan_group`].
#[inline(always)]
fn scan_groups<T: Scanned, O: ScanOperator<T>, const AVX2: bool>(
    input: &[[T; GROUP]],
    output: &mut [[O::Output; GROUP]],
    before: O::Carry,
    mut local: O::Carry,
    inclusive: bool,
) -> O::Carry {
    for (group, results) in input.iter().zip(output) {
        local = scan_group::<T, O, AVX2>(group, results, before, local, inclusive);
    }
    local
}

/// As [`scan_block`], but results go past the caches group by group, and what `next` holds at the same place is asked for
/// meanwhile: reads, sums and writes share the time that each would else take alone. `None`, and nothing done, if the
/// processor or the output's address does not allow it.
#[inline(never)]
pub(super) fn scan_block_past_caches<T: Scanned, O: ScanOperator<T>>(
    input: &[[T; GROUP]],
    next: &[T],
    output: &mut [O::Output],
    before: O::Carry,
    local: O::Carry,
    inclusive: bool,
) -> Option<O::Carry> {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2<T: Scanned, O: ScanOperator<T>>(
            input: &[[T; GROUP]],
            next: &[T],
            output: &mut [[O::Output; GROUP]],
            before: O::Carry,
            mut local: O::Carry,
            inclusive: bool,
        ) -> O::Carry {
            for (number, (group, target)) in input.iter().zip(output).enumerate() {
                fetch_early(next.get(number * GROUP..(number + 1) * GROUP).unwrap_or_default());
                let mut results = [O::Output::default(); GROUP];
                local = scan_group::<T, O, true>(group, &mut results, before, local, inclusive);
                // SAFETY: the caller checked the address; a group is a multiple of 32 bytes.
                unsafe { stream(&results, target) };
            }
            local
        }
        let groups = output.as_chunks_mut::<GROUP>().0;
        if has_avx2() && groups.len() == input.len() && groups.as_ptr().addr().is_multiple_of(16) {
            // SAFETY: every feature that the function is compiled for was found.
            return Some(unsafe { avx2::<T, O>(input, next, groups, before, local, inclusive) });
        }
    }
    let _ = (input, next, output, before, local, inclusive);
    None
}

/// Writes a group past the caches.
///
/// # Safety
/// The processor has AVX2; `to` lies at a multiple of 16 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn stream<R: Copy>(from: &[R; GROUP], to: &mut [R; GROUP]) {
    use std::arch::x86_64::*;
    let (source, target) = (from.as_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
    let whole = target.addr().is_multiple_of(32);
    for at in (0..size_of_val(from)).step_by(32) {
        // SAFETY: both arrays hold the 32 bytes, the target at the stated alignment.
        unsafe {
            let vector = _mm256_loadu_si256(source.add(at).cast());
            if whole {
                _mm256_stream_si256(target.add(at).cast(), vector);
            } else {
                _mm_stream_si128(target.add(at).cast(), _mm256_castsi256_si128(vector));
                _mm_stream_si128(target.add(at + 16).cast(), _mm256_extracti128_si256::<1>(vector));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    crate::ops::reduce::vector_instructions() == "AVX2"
}

/// [`scan_groups`] with the best instructions that the processor has.
#[inline(never)]
pub(super) fn scan_block<T: Scanned, O: ScanOperator<T>>(
    input: &[[T; GROUP]],
    output: &mut [[O::Output; GROUP]],
    before: O::Carry,
    local: O::Carry,
    inclusive: bool,
) -> O::Carry {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2<T: Scanned, O: ScanOperator<T>>(
            input: &[[T; GROUP]],
            output: &mut [[O::Output; GROUP]],
            before: O::Carry,
            local: O::Carry,
            inclusive: bool,
        ) -> O::Carry {
            scan_groups::<T, O, true>(input, output, before, local, inclusive)
        }
        if has_avx2() {
            // SAFETY: every feature that the function is compiled for was found.
            return unsafe { avx2::<T, O>(input, output, before, local, inclusive) };
        }
    }
    scan_groups::<T, O, false>(input, output, before, local, inclusive)
}

/// Asks for elements that are about to be read, into the second-level cache. Only speed depends on it.
#[inline(always)]
pub(super) fn fetch_early<T>(elements: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        const LINE: usize = 64;
        let start = elements.as_ptr().cast::<i8>();
        for offset in (0..size_of_val(elements)).step_by(LINE) {
            // SAFETY: the address lies in the slice; fetching early reads nothing that a program can see.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(start.add(offset)) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}

/// Copies to memory that nobody reads soon, past the caches: a store then fetches no line first. Only speed depends on it.
pub(super) fn write_past_caches<O: Copy>(from: &[O], to: &mut [O]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn avx2<O: Copy>(from: &[O], to: &mut [O]) {
            use std::arch::x86_64::*;
            const LINE: usize = 64;
            let size = size_of::<O>();
            let head = (to.as_ptr().align_offset(LINE)).min(to.len());
            let (from_head, from) = from.split_at(head);
            let (to_head, to) = to.split_at_mut(head);
            to_head.copy_from_slice(from_head);
            let lines = size_of_val(to) / LINE;
            for line in 0..lines {
                // SAFETY: both slices have that many whole lines; the destination is aligned to one.
                unsafe {
                    let source = from.as_ptr().cast::<u8>().add(line * LINE);
                    let target = to.as_mut_ptr().cast::<u8>().add(line * LINE);
                    let low = _mm256_loadu_si256(source.cast());
                    let high = _mm256_loadu_si256(source.add(LINE / 2).cast());
                    _mm256_stream_si256(target.cast(), low);
                    _mm256_stream_si256(target.add(LINE / 2).cast(), high);
                }
            }
            let done = lines * LINE / size;
            to[done..].copy_from_slice(&from[done..]);
        }
        if has_avx2() && from.len() == to.len() && size_of::<O>() != 0 {
            // SAFETY: AVX2 was found; elements are plain data.
            unsafe { avx2(from, to) };
            return;
        }
    }
    to.copy_from_slice(from);
}

/// Makes [`write_past_caches`] visible before what follows; its stores are not ordered by themselves.
pub(super) fn fence_writes() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Element;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn instruction_sets_agree_bitwise() {
        if !has_avx2() {
            return;
        }
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for round in 0..100 {
            let mut plain: [f32; GROUP] = std::array::from_fn(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1 << 20) as f32 - 7.0
            });
            plain[round % GROUP] = if round % 3 == 0 { -0.0 } else { plain[round % GROUP] };
            let mut vector = plain;
            prefix_in_lanes(&mut plain, 0.0, |a, b| a + b);
            // SAFETY: the processor has AVX2.
            unsafe { prefix_avx2(&mut vector) };
            assert_eq!(plain.map(f32::to_bits), vector.map(f32::to_bits));
        }
    }

    fn past_the_caches_as_in_them<T: Scanned, O: ScanOperator<T>>(value: impl Fn(usize) -> T) {
        let input: Vec<[T; GROUP]> = (0..5).map(|group| std::array::from_fn(|i| value(group * GROUP + i))).collect();
        let bits = |results: &[O::Output]| -> Vec<u64> { results.iter().map(|x| x.to_f64().to_bits()).collect() };
        let mut answered = 0;
        for inclusive in [true, false] {
            let mut expected = [[O::Output::default(); GROUP]; 5];
            let carry = scan_block::<T, O>(&input, &mut expected, O::empty(), O::empty(), inclusive);
            for offset in 0..64 {
                let mut output = [O::Output::default(); 5 * GROUP + 64];
                let part = &mut output[offset..offset + 5 * GROUP];
                let got = scan_block_past_caches::<T, O>(&input, &[], part, O::empty(), O::empty(), inclusive);
                fence_writes();
                let Some(got) = got else { continue };
                answered += 1;
                assert_eq!(bits(&output[offset..offset + 5 * GROUP]), bits(expected.as_flattened()), "offset {offset}");
                assert!(bits(&output[..offset]).iter().chain(&bits(&output[offset + 5 * GROUP..])).all(|x| *x == 0));
                assert_eq!(O::finish(O::lower(got), 0).to_f64().to_bits(), O::finish(O::lower(carry), 0).to_f64().to_bits());
            }
        }
        // Addresses of 16 bytes come round, whatever the allocation begins at.
        #[cfg(target_arch = "x86_64")]
        assert!(answered >= if has_avx2() { 8 } else { 0 });
    }

    #[test]
    fn blocks_past_the_caches_are_those_in_them_at_every_offset() {
        use crate::ops::reduce::operators::{Max, Sum};
        past_the_caches_as_in_them::<f32, Sum>(|i| (i as f32 * 0.37).sin());
        past_the_caches_as_in_them::<f64, Sum>(|i| (i as f64 * 0.37).sin());
        past_the_caches_as_in_them::<u8, Sum>(|i| i as u8);
        past_the_caches_as_in_them::<half::f16, Sum>(|i| half::f16::from_f32((i % 7) as f32));
        past_the_caches_as_in_them::<i32, Max>(|i| ((i * 7919) % 1000) as i32);
        past_the_caches_as_in_them::<u8, Max>(|i| (i / 3) as u8);
    }

    #[test]
    fn both_prefixes_keep_the_order() {
        // First and last of neighbours: not commutative.
        let join = |a: (u32, u32), b: (u32, u32)| {
            assert_eq!(a.1 + 1, b.0);
            (a.0, b.1)
        };
        let mut states: [(u32, u32); GROUP] = std::array::from_fn(|i| (i as u32, i as u32));
        prefix_in_turn(&mut states, join);
        assert!(states.iter().enumerate().all(|(i, s)| *s == (0, i as u32)));
        let empty = (u32::MAX, 0);
        let join_or_empty = |a, b| if a == empty { b } else { join(a, b) };
        let mut states: [(u32, u32); GROUP] = std::array::from_fn(|i| (i as u32, i as u32));
        prefix_in_lanes(&mut states, empty, join_or_empty);
        assert!(states.iter().enumerate().all(|(i, s)| *s == (0, i as u32)));
    }

    #[test]
    fn writes_past_the_caches_are_copies_at_every_offset() {
        let from: Vec<u16> = (0..1000).collect();
        for offset in 0..40 {
            let mut to = vec![7u16; 1100];
            write_past_caches(&from, &mut to[offset..offset + 1000]);
            fence_writes();
            assert_eq!(to[offset..offset + 1000], from[..]);
            assert!(to[..offset].iter().chain(&to[offset + 1000..]).all(|x| *x == 7));
        }
    }
}
