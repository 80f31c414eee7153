//! The CPU rungs. Every rung reduces a row the same way whatever its neighbours: a row's bits depend on its values and
//! its length alone, never on the number of threads or rows, on strides or on alignment.

use super::operators::{MeanSum, ReduceOperator, Visitor, visit};
use super::problem::{ReduceOperands, ReduceProblem};
use super::simd::{self, BLOCK, CHUNK, Pairwise};
use crate::error::Result;
use crate::flow::{HostSlice, HostSliceMut};
use crate::types::{Accuracy, Dim, Element};
use rayon::prelude::*;

/// Elements reduced sequentially at the leaves of the pairwise rung's tree.
const LEAF: u64 = 16;

/// Elements that a thread should have before another one is asked to help: waking one costs microseconds, in which a
/// single core reads about this much.
pub(super) const WORTH_A_THREAD: u64 = 2 * CHUNK as u64;

/// A row of the problem: the elements that make one output.
pub(super) struct Row<'a, T> {
    data: &'a [T],
    reduced: &'a [Dim],
    /// Index of the row's first element in `data`.
    start: i64,
    contiguous: bool,
}

impl<'a, T: Element> Row<'a, T> {
    pub(super) fn new(problem: &'a ReduceProblem, data: &'a [T], output: u64) -> Self {
        let shape = problem.shape();
        // A row of no elements has no first one.
        let start = if shape.length == 0 { 0 } else { shape.index(output, 0) as i64 };
        Row { data, reduced: &shape.reduced, start, contiguous: shape.rows_are_contiguous() }
    }

    /// Elements `from..to` of the row, in order: borrowed if they are neighbours in memory, else copied to `buffer`.
    pub(super) fn elements<'b>(&self, from: u64, to: u64, buffer: &'b mut Vec<T>) -> &'b [T]
    where
        'a: 'b,
    {
        if from == to {
            return &[];
        }
        if self.contiguous {
            let start = self.start as usize + from as usize;
            return &self.data[start..start + (to - from) as usize];
        }
        self.gather(from, to, buffer);
        buffer
    }

    /// Copies elements `from..to` of a row that is not contiguous, a run along the innermost dimension at a time.
    #[inline(never)]
    fn gather(&self, mut from: u64, to: u64, buffer: &mut Vec<T>) {
        buffer.clear();
        let Some((inner, outer)) = self.reduced.split_last() else {
            return;
        };
        while from < to {
            let within = from % inner.extent;
            let run = (inner.extent - within).min(to - from);
            let mut index = self.start + within as i64 * inner.stride;
            let mut rest = from / inner.extent;
            for dim in outer.iter().rev() {
                index += (rest % dim.extent) as i64 * dim.stride;
                rest /= dim.extent;
            }
            for _ in 0..run {
                buffer.push(self.data[index as usize]);
                index += inner.stride;
            }
            from += run;
        }
    }
}

/// One after the other, one accumulator.
#[inline(never)]
fn sequential<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, from: u64, to: u64, buffer: &mut Vec<T>) -> O::State {
    let mut state = O::identity();
    // The whole of a contiguous row at once; a strided one a block at a time, which changes no order.
    let step = if row.contiguous { to - from } else { BLOCK as u64 };
    let mut at = from;
    while at < to {
        let end = (at + step).min(to);
        state = row.elements(at, end, buffer).iter().zip(at..).fold(state, |s, (&x, i)| O::combine(s, O::lift(x, i)));
        at = end;
    }
    state
}

/// Halves down to leaves: the error grows with log2(n), not with n.
#[inline(never)]
fn pairwise<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, from: u64, to: u64, buffer: &mut Vec<T>) -> O::State {
    if to - from <= LEAF {
        return sequential::<T, O>(row, from, to, buffer);
    }
    let middle = from + (to - from) / 2;
    let left = pairwise::<T, O>(row, from, middle, buffer);
    O::combine(left, pairwise::<T, O>(row, middle, to, buffer))
}

/// The state of a chunk of a row, in lanes.
fn chunk<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, number: u64, length: u64, buffer: &mut Vec<T>) -> O::State {
    let from = number * CHUNK as u64;
    let to = (from + CHUNK as u64).min(length);
    simd::chunk::<T, O>(row.elements(from, to, buffer), from)
}

/// Chunks of fixed length, each in lanes, combined pairwise in their order.
#[inline(never)]
fn chunked<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, length: u64, threads: bool, buffer: &mut Vec<T>) -> O::State {
    let chunks = length.div_ceil(CHUNK as u64);
    if chunks <= 1 {
        return chunk::<T, O>(row, 0, length, buffer);
    }
    // Of 2^64 elements there are 2^48 chunks.
    let mut states = Pairwise::<O::State, 49>::new(O::identity());
    if threads && length >= 2 * WORTH_A_THREAD {
        // In batches, so that the states of a row that is broadcast beyond memory's size need no memory of that size.
        const BATCH: u64 = 1 << 20;
        for first in (0..chunks).step_by(BATCH as usize) {
            let one = |number: u32| chunk::<T, O>(row, first + u64::from(number), length, &mut Vec::new());
            let batch = parallel_states(BATCH.min(chunks - first) as u32, &one);
            batch.into_iter().for_each(|state| states.push(state, O::combine));
        }
    } else {
        (0..chunks).for_each(|number| states.push(chunk::<T, O>(row, number, length, buffer), O::combine));
    }
    states.finish(O::combine).unwrap_or_else(O::identity)
}

/// The states of chunks, by all threads, in order. The body is called through a pointer, once a chunk, so that the
/// machinery of threads is compiled once for each type of state and not for each operator.
pub(super) fn parallel_states<S: Send>(chunks: u32, one: &(dyn Fn(u32) -> S + Sync)) -> Vec<S> {
    (0..chunks).into_par_iter().with_min_len((WORTH_A_THREAD / CHUNK as u64) as usize).map(one).collect()
}

/// Outputs in groups of `rows`, by all threads: the body gets the number of a group's first output, and its slots.
pub(super) fn parallel_rows<S: Send>(output: &mut [S], rows: usize, group: &(dyn Fn(usize, &mut [S]) + Sync)) {
    output.par_chunks_mut(rows).enumerate().for_each(|(number, slots)| group(number * rows, slots));
}

/// The result of a row. All NaN become the one NaN of `from_f64`: their payloads and signs differ between instruction
/// sets and are no part of the contract.
#[allow(clippy::eq_op)]
fn finish<T: MeanSum, O: ReduceOperator<T>>(state: O::State, length: u64) -> O::Output {
    let value = O::finish(state, length);
    if value != value { O::Output::from_f64(f64::NAN) } else { value }
}

/// How a rung reduces.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    Sequential,
    Pairwise,
    Accumulators,
    Threads,
}

struct Run<'a> {
    problem: &'a ReduceProblem,
    input: HostSlice<'a>,
    output: HostSliceMut<'a>,
    method: Method,
}

impl Visitor for Run<'_> {
    type Result = Result<()>;
    fn visit<T: MeanSum, O: ReduceOperator<T>>(self) -> Result<()> {
        let data = self.input.typed::<T>()?;
        let output = self.output.typed::<O::Output>()?;
        let problem = self.problem;
        let length = problem.shape().length;
        let threads = self.method == Method::Threads;
        let group = |first: usize, slots: &mut [O::Output]| {
            let mut buffer = Vec::new();
            for (slot, o) in slots.iter_mut().zip(first as u64..) {
                let row = Row::new(problem, data, o);
                let state = match self.method {
                    Method::Sequential => sequential::<T, O::States>(&row, 0, length, &mut buffer),
                    Method::Pairwise => pairwise::<T, O::States>(&row, 0, length, &mut buffer),
                    Method::Accumulators | Method::Threads => chunked::<T, O::States>(&row, length, threads, &mut buffer),
                };
                *slot = finish::<T, O>(state, length);
            }
        };
        let elements = (output.len() as u64).saturating_mul(length);
        if threads && output.len() > 1 && elements >= 2 * WORTH_A_THREAD {
            parallel_rows(output, WORTH_A_THREAD.div_ceil(length.max(1)) as usize, &group);
        } else {
            group(0, output);
        }
        Ok(())
    }
}

fn run(problem: &ReduceProblem, operands: ReduceOperands<'_>, method: Method, accuracy: Accuracy) -> Result<()> {
    let ReduceOperands { input, output } = operands;
    problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
    if let Some(user) = problem.user() {
        return user.erased().reduce(problem, ReduceOperands { input, output }, method == Method::Sequential);
    }
    visit(problem.operator(), problem.dtype(), accuracy, Run { problem, input, output, method })
}

/// Rung 0. Rounding sums, those of a mean and of a logsumexp included, run in the compensated state: a single f32
/// accumulator sticks at 2^24, and the error of one f64 accumulator would grow with n.
pub(super) fn rung_sequential(problem: &ReduceProblem, operands: ReduceOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Sequential, Accuracy::Compensated)
}

/// Rung 1.
pub(super) fn rung_pairwise(problem: &ReduceProblem, operands: ReduceOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Pairwise, problem.accuracy())
}

/// Rung 2.
pub(super) fn rung_accumulators(problem: &ReduceProblem, operands: ReduceOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Accumulators, problem.accuracy())
}

/// Rung 3.
pub(super) fn rung_threads(problem: &ReduceProblem, operands: ReduceOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Threads, problem.accuracy())
}
