//! The Rust form: closures that are called for whole chunks at a time, so that they are inlined in the loops and only a call
//! a chunk goes through a pointer.

use super::State;
use crate::types::Element;

/// Stretches of a chunk that are walked side by side: what one combination waits for, others use.
pub(crate) const STRIPS: usize = 8;

/// Chunks up to this length are one strip.
const SHORT: usize = 8 * STRIPS;

/// The pieces of an operator, and loops over them.
pub(crate) trait HostForm<T, S, R>: Send + Sync {
    fn lift(&self, x: T) -> S;
    fn combine(&self, a: S, b: S) -> S;
    fn finish(&self, state: S) -> R;
    /// The state behind some elements; results are written where they are asked for.
    fn in_turn(&self, elements: &[T], state: S, inclusive: bool, results: Option<&mut [R]>) -> S;
    /// The state of each strip.
    fn totals(&self, elements: &[T]) -> [S; STRIPS];
    /// Scans a chunk from the states in front of its strips.
    fn scan(&self, elements: &[T], fronts: [S; STRIPS], inclusive: bool, results: &mut [R]);
}

/// The state in front of each strip of a chunk, and behind the last.
pub(crate) fn fronts<T, S: Copy, R>(
    form: &dyn HostForm<T, S, R>,
    length: usize,
    totals: &[S; STRIPS],
    before: S,
) -> ([S; STRIPS], S) {
    let mut fronts = [before; STRIPS];
    if strip_length(length) > 0 {
        for strip in 1..STRIPS {
            fronts[strip] = form.combine(fronts[strip - 1], totals[strip - 1]);
        }
    }
    (fronts, form.combine(fronts[STRIPS - 1], totals[STRIPS - 1]))
}

/// The state of a chunk.
pub(crate) fn chunk_total<T, S: Copy, R>(form: &dyn HostForm<T, S, R>, elements: &[T]) -> S {
    let totals = form.totals(elements);
    if strip_length(elements.len()) == 0 {
        return totals[STRIPS - 1];
    }
    totals[1..].iter().fold(totals[0], |state, total| form.combine(state, *total))
}

/// All strips but the last have this length, the last has what is left.
fn strip_length(length: usize) -> usize {
    if length < SHORT { 0 } else { length / STRIPS }
}

/// Calls `each(strip, place, element)`, in order within each strip.
#[inline(always)]
fn walk<T: Copy>(elements: &[T], mut each: impl FnMut(usize, usize, T)) {
    let length = strip_length(elements.len());
    let (strips, rest) = elements.split_at(STRIPS * length);
    let strips: [&[T]; STRIPS] = std::array::from_fn(|strip| &strips[strip * length..(strip + 1) * length]);
    for at in 0..length {
        for (strip, elements) in strips.iter().enumerate() {
            each(strip, strip * length + at, elements[at]);
        }
    }
    for (at, x) in rest.iter().enumerate() {
        each(STRIPS - 1, STRIPS * length + at, *x);
    }
}

/// The closures.
pub(super) struct Closures<S, L, C, F> {
    pub(super) identity: S,
    pub(super) lift: L,
    pub(super) combine: C,
    pub(super) finish: F,
}

impl<T, S, R, L, C, F> HostForm<T, S, R> for Closures<S, L, C, F>
where
    T: Element,
    S: State,
    R: Element,
    L: Fn(T) -> S + Send + Sync,
    C: Fn(S, S) -> S + Send + Sync,
    F: Fn(S) -> R + Send + Sync,
{
    fn lift(&self, x: T) -> S {
        (self.lift)(x)
    }

    fn combine(&self, a: S, b: S) -> S {
        (self.combine)(a, b)
    }

    fn finish(&self, state: S) -> R {
        (self.finish)(state)
    }

    fn in_turn(&self, elements: &[T], mut state: S, inclusive: bool, results: Option<&mut [R]>) -> S {
        let next = |state, x: T| (self.combine)(state, (self.lift)(x));
        let Some(results) = results else {
            return elements.iter().fold(state, |state, x| next(state, *x));
        };
        for (result, x) in results.iter_mut().zip(elements) {
            let before = state;
            state = next(state, *x);
            *result = (self.finish)(if inclusive { state } else { before });
        }
        state
    }

    fn totals(&self, elements: &[T]) -> [S; STRIPS] {
        let mut totals = [self.identity; STRIPS];
        walk(elements, |strip, _, x| totals[strip] = (self.combine)(totals[strip], (self.lift)(x)));
        totals
    }

    fn scan(&self, elements: &[T], mut states: [S; STRIPS], inclusive: bool, results: &mut [R]) {
        walk(elements, |strip, at, x| {
            let before = states[strip];
            states[strip] = (self.combine)(before, (self.lift)(x));
            results[at] = (self.finish)(if inclusive { states[strip] } else { before });
        });
    }
}
