//! Linear recurrences on the CPU. All dtypes are computed in f64; the sequential rung rounds once a step, with a fused
//! multiplication and addition. Combinations keep their order, which an element's position in its row decides.

use super::ScanKind;
use super::cpu::{CHUNK, Chunks, Method, Row, RowScan, Sink, all_rows};
use super::problem::ScanProblem;
use crate::error::Result;
use crate::flow::{HostSlice, HostSliceMut};
use crate::types::{Element, dispatch};

/// Strips of a chunk that are walked side by side: a step waits for the one before it in its own strip only.
const STRIPS: usize = 8;

/// Chunks of fewer elements are one strip.
const SHORT: usize = 64 * STRIPS;

/// What a run of elements does to the state in front of it: `h` becomes `product * h + value`.
#[derive(Clone, Copy)]
struct Affine {
    product: f64,
    value: f64,
}

impl Affine {
    const IDENTITY: Affine = Affine { product: 1.0, value: 0.0 };

    /// This run, then one more element.
    #[inline(always)]
    fn then(self, a: f64, b: f64) -> Affine {
        Affine { product: a * self.product, value: a * self.value + b }
    }

    #[inline(always)]
    fn apply(self, state: f64) -> f64 {
        self.product * state + self.value
    }
}

/// Elements of a strip that are walked before it is looked at again how many are left.
const GROUP: usize = 16;

/// The length of a chunk's strips, but for the last, which may be shorter.
fn strip_length(chunk: usize) -> usize {
    if chunk < SHORT { chunk } else { chunk.div_ceil(STRIPS) }
}

/// A chunk in strips.
fn strips<T>(elements: &[T]) -> [&[T]; STRIPS] {
    let length = strip_length(elements.len());
    let mut rest = elements;
    std::array::from_fn(|_| {
        let (strip, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        strip
    })
}

/// Calls a function for every element, the strips side by side as far as they reach: strip, position in it, coefficient,
/// element.
#[inline(always)]
fn walk<T: Copy>(coefficients: &[T], input: &[T], mut each: impl FnMut(usize, usize, T, T)) {
    let (a, b) = (strips(coefficients), strips(input));
    let groups = a[STRIPS - 1].len() / GROUP;
    let (grouped_a, grouped_b) = (a.map(|strip| strip.as_chunks::<GROUP>().0), b.map(|strip| strip.as_chunks::<GROUP>().0));
    for group in 0..groups {
        // Of known length, so that nothing is checked inside.
        let a: [&[T; GROUP]; STRIPS] = std::array::from_fn(|strip| &grouped_a[strip][group]);
        let b: [&[T; GROUP]; STRIPS] = std::array::from_fn(|strip| &grouped_b[strip][group]);
        for at in 0..GROUP {
            for strip in 0..STRIPS {
                each(strip, group * GROUP + at, a[strip][at], b[strip][at]);
            }
        }
    }
    let together = groups * GROUP;
    for (strip, (a, b)) in a.iter().zip(&b).enumerate() {
        for (at, (a, b)) in a[together..].iter().zip(&b[together..]).enumerate() {
            each(strip, together + at, *a, *b);
        }
    }
}

/// What each strip does to the state in front of it.
fn totals<T: Element>(coefficients: &[T], input: &[T]) -> [Affine; STRIPS] {
    let mut totals = [Affine::IDENTITY; STRIPS];
    walk(coefficients, input, |strip, _, a, b| totals[strip] = totals[strip].then(a.to_f64(), b.to_f64()));
    totals
}

/// Scans a chunk from the states in front of its strips.
fn scan_strips<T: Element>(coefficients: &[T], input: &[T], mut states: [f64; STRIPS], inclusive: bool, results: &mut [T]) {
    let length = strip_length(input.len());
    walk(coefficients, input, |strip, at, a, b| {
        let before = states[strip];
        states[strip] = a.to_f64() * before + b.to_f64();
        results[strip * length + at] = T::from_f64(if inclusive { states[strip] } else { before });
    });
}

/// Memory that a thread uses again from row to row.
struct Space<T> {
    coefficients: Vec<T>,
    input: Vec<T>,
    results: Vec<T>,
}

impl<T> Default for Space<T> {
    fn default() -> Self {
        Space { coefficients: Vec::new(), input: Vec::new(), results: Vec::new() }
    }
}

struct Recurrence<'a, T> {
    problem: &'a ScanProblem,
    coefficients: &'a [T],
    input: &'a [T],
    initial: f64,
    method: Method,
}

impl<T: Element> Recurrence<'_, T> {
    /// Coefficients, elements and room for results of `from..to` of a row, in scan order.
    fn gather<'b>(&'b self, number: u64, from: usize, to: usize, space: &'b mut Space<T>) -> (&'b [T], &'b [T], &'b mut [T]) {
        let Space { coefficients, input, results } = space;
        let row = |data| Row { problem: self.problem, data, number };
        results.resize(to - from, T::default());
        (row(self.coefficients).elements(from, to, coefficients), row(self.input).elements(from, to, input), results)
    }

    fn row_in_turn(&self, number: u64, row: &mut [T], sink: &Sink, space: &mut Space<T>) {
        const BLOCK: usize = 1024;
        let inclusive = self.problem.kind() == ScanKind::Inclusive;
        let mut state = self.initial;
        for from in (0..row.len()).step_by(BLOCK) {
            let (a, b, results) = self.gather(number, from, (from + BLOCK).min(row.len()), space);
            for ((a, b), result) in a.iter().zip(b).zip(&mut *results) {
                let before = state;
                state = a.to_f64().mul_add(before, b.to_f64());
                *result = T::from_f64(if inclusive { state } else { before });
            }
            sink.write(row, from, results);
        }
    }
}

impl<T: Element> RowScan for Recurrence<'_, T> {
    type Output = T;
    type Space = Space<T>;

    fn row(&self, number: u64, row: &mut [T], threads: bool, space: &mut Space<T>) {
        let sink = Sink { reverse: self.problem.reverse(), past_caches: false };
        if self.method == Method::Sequential {
            return self.row_in_turn(number, row, &sink, space);
        }
        let inclusive = self.problem.kind() == ScanKind::Inclusive;
        let workers = if threads { rayon::current_num_threads().min(row.len().div_ceil(CHUNK)) } else { 1 };
        let line = Chunks::new(row, sink.reverse, self.initial);
        let scan_all = |space: &mut Space<T>| {
            while let Some((chunk, mut part)) = line.take() {
                let from = chunk * CHUNK;
                let (a, b, results) = self.gather(number, from, from + part.len(), space);
                let totals = totals(a, b);
                let mut states = [line.before(chunk); STRIPS];
                for strip in 1..STRIPS {
                    states[strip] = totals[strip - 1].apply(states[strip - 1]);
                }
                line.pass_on(chunk, totals[STRIPS - 1].apply(states[STRIPS - 1]));
                scan_strips(a, b, states, inclusive, results);
                sink.write(&mut part, 0, results);
            }
        };
        if workers <= 1 { scan_all(space) } else { line.work(workers, &|| scan_all(&mut Space::default())) }
    }
}

/// Runs a rung on operands that were checked.
pub(super) fn run(
    problem: &ScanProblem,
    coefficients: HostSlice<'_>,
    input: HostSlice<'_>,
    output: HostSliceMut<'_>,
    method: Method,
) -> Result<()> {
    dispatch!(problem.dtype(), T => {
        let (coefficients, input) = (coefficients.typed::<T>()?, input.typed::<T>()?);
        let initial = problem.initial().map_or(0.0, |initial| initial.to_f64());
        all_rows(&Recurrence { problem, coefficients, input, initial, method }, problem, method, output.typed::<T>()?);
        Ok(())
    })
}
