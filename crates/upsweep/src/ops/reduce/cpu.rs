//! The CPU rungs. Every rung reduces a row the same way whatever its neighbours: a row's bits depend on its values and
//! its length alone, never on the number of threads or rows.

use super::operators::{MeanSum, ReduceOperator, Visitor, visit};
use super::problem::{ReduceOperands, ReduceProblem};
use crate::error::Result;
use crate::flow::{HostSlice, HostSliceMut};
use crate::types::Accuracy;
use rayon::prelude::*;

/// Elements of one chunk: the unit of work of a thread, and of the fixed tree over a long row. 256 KiB of f32.
const CHUNK: u64 = 1 << 16;

/// Elements reduced sequentially at the leaves of the pairwise tree.
const LEAF: u64 = 128;

/// A row of the problem: element `i` lies at `data[start + ...]`.
struct Row<'a, T> {
    problem: &'a ReduceProblem,
    data: &'a [T],
    output: u64,
}

impl<T: Copy> Row<'_, T> {
    /// Elements `from..to` as a slice, if they are neighbours in memory.
    fn slice(&self, from: u64, to: u64) -> Option<&[T]> {
        let shape = self.problem.shape();
        if from == to {
            return Some(&[]);
        }
        shape.rows_are_contiguous().then(|| {
            let start = shape.index(self.output, from) as usize;
            &self.data[start..start + (to - from) as usize]
        })
    }

    fn get(&self, position: u64) -> T {
        self.data[self.problem.shape().index(self.output, position) as usize]
    }
}

/// One after the other, one accumulator.
fn sequential<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, from: u64, to: u64) -> O::State {
    match row.slice(from, to) {
        Some(slice) => slice.iter().zip(from..).fold(O::identity(), |state, (&x, index)| O::combine(state, O::lift(x, index))),
        None => (from..to).fold(O::identity(), |state, index| O::combine(state, O::lift(row.get(index), index))),
    }
}

/// Halves down to leaves: the error grows with log2(n), not with n.
fn pairwise<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, from: u64, to: u64) -> O::State {
    if to - from <= LEAF {
        return sequential::<T, O>(row, from, to);
    }
    let middle = from + (to - from) / 2;
    O::combine(pairwise::<T, O>(row, from, middle), pairwise::<T, O>(row, middle, to))
}

/// Several independent accumulators, so that additions overlap and vectorise.
fn accumulators<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, from: u64, to: u64) -> O::State {
    const LANES: usize = 32;
    let Some(slice) = row.slice(from, to) else {
        return pairwise::<T, O>(row, from, to);
    };
    let mut lanes = [O::identity(); LANES];
    let packs = slice.chunks_exact(LANES);
    let rest = packs.remainder();
    let mut index = from;
    for pack in packs {
        for lane in 0..LANES {
            lanes[lane] = O::combine(lanes[lane], O::lift(pack[lane], index + lane as u64));
        }
        index += LANES as u64;
    }
    for (lane, &x) in rest.iter().enumerate() {
        lanes[lane] = O::combine(lanes[lane], O::lift(x, index + lane as u64));
    }
    tree::<T, O>(&lanes)
}

/// A fixed tree over states.
fn tree<T: MeanSum, O: ReduceOperator<T>>(states: &[O::State]) -> O::State {
    match states {
        [] => O::identity(),
        [only] => *only,
        _ => {
            let (left, right) = states.split_at(states.len().div_ceil(2));
            O::combine(tree::<T, O>(left), tree::<T, O>(right))
        }
    }
}

/// Chunks of fixed length, each by accumulators, then a fixed tree over the chunks.
fn chunked<T: MeanSum, O: ReduceOperator<T>>(row: &Row<'_, T>, parallel: bool) -> O::State {
    let length = row.problem.shape().length;
    let chunks = length.div_ceil(CHUNK);
    let one = |chunk: u64| accumulators::<T, O>(row, chunk * CHUNK, ((chunk + 1) * CHUNK).min(length));
    let states: Vec<O::State> =
        if parallel { (0..chunks).into_par_iter().map(one).collect() } else { (0..chunks).map(one).collect() };
    tree::<T, O>(&states)
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
        let reduce = |o: usize, parallel: bool| {
            let row = Row { problem, data, output: o as u64 };
            let state = match self.method {
                Method::Sequential => sequential::<T, O>(&row, 0, length),
                Method::Pairwise => pairwise::<T, O>(&row, 0, length),
                Method::Accumulators | Method::Threads => chunked::<T, O>(&row, parallel),
            };
            O::finish(state, length)
        };
        let threads = self.method == Method::Threads;
        if threads && output.len() > 1 {
            output
                .par_iter_mut()
                .enumerate()
                .with_min_len((CHUNK / length.max(1)) as usize + 1)
                .for_each(|(o, slot)| *slot = reduce(o, false));
        } else {
            output.iter_mut().enumerate().for_each(|(o, slot)| *slot = reduce(o, threads));
        }
        Ok(())
    }
}

fn run(problem: &ReduceProblem, operands: ReduceOperands<'_>, method: Method, accuracy: Accuracy) -> Result<()> {
    let ReduceOperands { input, output } = operands;
    problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
    visit(problem.operator(), problem.dtype(), accuracy, Run { problem, input, output, method })
}

/// Rung 0. Sums run in the compensated state: a single f32 accumulator sticks at 2^24.
pub(super) fn rung_sequential(problem: &ReduceProblem, operands: ReduceOperands<'_>) -> Result<()> {
    let accuracy = if problem.dtype().is_float() { Accuracy::Compensated } else { Accuracy::Fast };
    run(problem, operands, Method::Sequential, accuracy)
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
