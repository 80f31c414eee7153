//! The CPU rungs. A row's bits depend on its values, its length and its dtype alone: never on the number of threads or
//! rows, on strides, on alignment, or on whether it is done in place.

use super::online::OnlineState;
use super::problem::{Masked, SoftmaxKind, SoftmaxOperands, SoftmaxProblem};
use super::simd::{self, BLOCK, CACHED_ROW, Instructions, Outputs, SoftmaxElement};
use crate::error::Result;
use crate::ops::reduce::operators::{Accumulator, DoubleDouble, Key, Real};
use crate::ops::reduce::simd::Pairwise;
use crate::types::{DType, Element};
use half::{bf16, f16};
use rayon::prelude::*;
use std::ops::Range;

/// Elements that a thread should have before another one is asked to help.
const WORTH_A_THREAD: u64 = 1 << 16;

/// Groups of rows for each thread at most: rows within a group overlap, and the last group to end is waited for.
const GROUPS_OF_A_THREAD: u64 = 64;

/// Rows that are gathered together where their elements are not neighbours: those of a 64-byte line of f32.
const TILE_ROWS: usize = 16;

/// Elements of a gathered tile at most.
const TILE: usize = 1 << 18;

/// Output bytes from which results are stored past the caches: more than a second-level cache keeps for a reader, and
/// an ordinary store would first read the line that it overwrites.
const STREAMED: u64 = 8 << 20;

/// Elements that the online rung folds one after the other before states are merged pairwise.
const LEAF: usize = 16;

/// How a rung computes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    ThreePass,
    Online,
    Simd,
}

/// Input and output, which are the same memory for a call in place. Accesses go through pointers for that reason; no
/// reference to input elements is alive while output elements are written.
struct Memory<T> {
    input: *const T,
    output: *mut T,
}

// SAFETY: threads write disjoint rows or blocks of the output, and read only rows or blocks of the input that no other
// thread writes; elements are `Send + Sync`.
unsafe impl<T: Element> Send for Memory<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Memory<T> {}

/// A problem with its memory. Invariant: the memory holds what the problem's layout reaches and what its output needs,
/// and if input and output overlap, they coincide element by element.
struct Job<'a, T> {
    problem: &'a SoftmaxProblem,
    memory: Memory<T>,
    kind: SoftmaxKind,
    cols: usize,
    /// Distance of a row's neighbours in the input and in the output.
    strides: (i64, i64),
    /// Distance of neighbouring rows in the input, where there is one.
    pitch: Option<i64>,
    stream: bool,
    /// Distance of the next row, asked for early where a row is more than the hardware foresees and fits the cache.
    ahead: usize,
    instructions: Instructions,
}

impl<'a, T: SoftmaxElement> Job<'a, T> {
    fn new(problem: &'a SoftmaxProblem, memory: Memory<T>) -> Self {
        // One axis is at most one dimension; a row of one element has no distance.
        let stride = problem.shape().reduced.first().map_or(1, |dim| dim.stride);
        let first = memory.input.wrapping_add(problem.shape().offset as usize);
        let in_place = first == memory.output.cast_const();
        let bytes = problem.output_len() * T::DTYPE.size();
        Job {
            problem,
            kind: problem.kind(),
            cols: problem.cols() as usize,
            strides: (stride, problem.inner() as i64),
            pitch: (problem.shape().kept.len() <= 1).then(|| problem.pitch()),
            // In place the line is in the cache already.
            stream: !in_place && bytes >= STREAMED,
            ahead: match problem.pitch() {
                pitch if (1 << 9..=CACHED_ROW as i64).contains(&pitch) && problem.rows_are_plain() => pitch as usize,
                _ => 0,
            },
            instructions: Instructions::best(),
            memory,
        }
    }

    /// Address of a row's first element in the input.
    fn source(&self, row: u64) -> *const T {
        if self.cols == 0 {
            return self.memory.input;
        }
        let index = match self.pitch {
            // Most rows: without the divisions of a walk through dimensions.
            Some(pitch) => (self.problem.shape().offset as i64 + row as i64 * pitch) as usize,
            None => self.problem.shape().index(row, 0) as usize,
        };
        // SAFETY: the problem's layout lies within the memory.
        unsafe { self.memory.input.add(index) }
    }

    /// Address of a row's first (or only) output.
    fn target(&self, row: u64) -> *mut T {
        let index = match (self.kind, self.strides.1) {
            (SoftmaxKind::LogSumExp, _) => row,
            (_, 1) => row * self.cols as u64,
            _ => self.problem.output_index(row, 0),
        };
        // SAFETY: the output holds `output_len` elements.
        unsafe { self.memory.output.add(index as usize) }
    }

    /// Element `position` of the row that starts at `source`.
    ///
    /// # Safety
    /// `source` is a row's start, `position` below the number of columns, and no thread writes the element.
    unsafe fn read(&self, source: *const T, position: usize) -> T {
        // SAFETY: by the caller's word.
        unsafe { *source.offset(position as isize * self.strides.0 as isize) }
    }

    /// # Safety
    /// As [`Job::read`], for the output.
    unsafe fn write(&self, target: *mut T, position: usize, value: T) {
        // SAFETY: by the caller's word.
        unsafe { *target.offset(position as isize * self.strides.1 as isize) = value }
    }

    /// The maximum of neighbouring elements, NaN if there is one, and their sum if it is finite. The outputs of the row
    /// `before` are written while the sum is taken, or stay where there is none to take.
    fn state(&self, x: &[T], kept: &mut [T::Real], before: &mut Outputs<'_, T>, ahead: usize) -> (T::Real, T::Real) {
        let max = simd::row_max(self.instructions, x);
        if !max.to_f64().is_finite() {
            return (max, T::Real::ZERO);
        }
        let sum = simd::row_sum(self.instructions, self.kind, x, max, kept, std::mem::take(before), ahead);
        (if sum.to_f64().is_nan() { sum } else { max }, sum)
    }

    /// Writes the outputs of a row that no row follows.
    fn finish(&self, kept: &mut [T::Real], outputs: Outputs<'_, T>) {
        simd::row_sum(self.instructions, self.kind, &[], T::Real::ZERO, kept, outputs, 0);
    }

    /// What a row gives whose maximum is not finite; `None` if it is finite.
    fn without_sum(&self, max: f64) -> Option<f64> {
        if max.is_finite() {
            return None;
        }
        Some(match (self.kind, self.problem.masked()) {
            (SoftmaxKind::LogSumExp, _) => max,
            (kind, Masked::Zero) if max == f64::NEG_INFINITY => {
                if kind == SoftmaxKind::Softmax {
                    0.0
                } else {
                    f64::NEG_INFINITY
                }
            }
            _ => f64::NAN,
        })
    }

    /// What all outputs of a row are, if they are one number.
    fn single(&self, max: T::Real, sum: T::Real) -> Option<f64> {
        let log_sum = || (self.kind == SoftmaxKind::LogSumExp).then(|| max.to_f64() + sum.to_f64().ln());
        self.without_sum(max.to_f64()).or_else(log_sum)
    }

    /// Writes one value to all outputs of a row.
    fn fill(&self, row: u64, value: f64) {
        let value = T::from_f64(if value.is_nan() { f64::NAN } else { value });
        let outputs = if self.kind == SoftmaxKind::LogSumExp { 1 } else { self.cols };
        let target = self.target(row);
        for position in 0..outputs {
            // SAFETY: within the row's outputs, which this thread writes alone.
            unsafe { self.write(target, position, value) };
        }
    }

    /// Rungs 0 and 1: scalar, in f64, one row after the other.
    fn scalar_rows(&self, online: bool) {
        for row in 0..self.problem.rows() {
            let source = self.source(row);
            // SAFETY: positions are below the number of columns; the one thread writes only what it has read.
            let element = |position: usize| unsafe { self.read(source, position) }.to_f64();
            let state = if online { online_state(self.cols, element) } else { two_pass_state(self.cols, element) };
            if self.kind == SoftmaxKind::LogSumExp || !state.max.is_finite() {
                self.fill(row, self.without_sum(state.max).unwrap_or_else(|| state.finish()));
                continue;
            }
            let target = self.target(row);
            for position in 0..self.cols {
                let x = element(position);
                let value = if self.kind == SoftmaxKind::Softmax { state.probability(x) } else { state.log_probability(x) };
                // SAFETY: as above.
                unsafe { self.write(target, position, T::from_f64(value)) };
            }
        }
    }

    /// Rung 2.
    fn vector_rows(&self) {
        let rows = self.problem.rows();
        if self.cols > CACHED_ROW {
            return (0..rows).for_each(|row| self.long_row(row));
        }
        let busy = GROUPS_OF_A_THREAD * rayon::current_num_threads() as u64;
        let group = (WORTH_A_THREAD / self.cols.max(1) as u64).max(rows / busy).clamp(1, rows.max(1));
        let plain = self.strides.0 == 1 && (self.strides.1 == 1 || self.kind == SoftmaxKind::LogSumExp) || self.cols <= 1;
        // Gathered rows share lines of memory, so a thread takes whole tiles.
        let tile = if plain { 1 } else { (TILE / self.cols).clamp(1, TILE_ROWS) as u64 };
        let group = group.next_multiple_of(tile);
        let groups = rows.div_ceil(group);
        let one = |number: u64| {
            let range = number * group..((number + 1) * group).min(rows);
            if plain {
                self.plain_rows(range);
            } else {
                self.gathered_rows(range, tile);
            }
            if self.stream {
                simd::fence();
            }
        };
        if groups > 1 {
            (0..groups).into_par_iter().for_each(one);
        } else if groups == 1 {
            one(0);
        }
    }

    /// Rows of up to [`CACHED_ROW`] neighbouring elements.
    fn plain_rows(&self, rows: Range<u64>) {
        let mut kept = vec![T::Real::ZERO; if self.kind == SoftmaxKind::LogSumExp { 0 } else { self.cols }];
        let mut before = Outputs::default();
        for row in rows {
            // SAFETY: the row's elements; nothing writes them while the slice is in use.
            let x = unsafe { std::slice::from_raw_parts(self.source(row), self.cols) };
            let (max, sum) = self.state(x, &mut kept, &mut before, self.ahead);
            if let Some(value) = self.single(max, sum) {
                self.fill(row, value);
            } else {
                // SAFETY: the row's outputs, which this thread writes alone. In place they are its elements: those were
                // read, and no slice of them is alive.
                let out = unsafe { std::slice::from_raw_parts_mut(self.target(row), self.cols) };
                before = Outputs::new(self.kind, sum, out, self.stream);
            }
        }
        self.finish(&mut kept, before);
    }

    /// Rows whose elements are not neighbours, in tiles of rows that are, mostly, each other's.
    fn gathered_rows(&self, rows: Range<u64>, tile: u64) {
        let cols = self.cols;
        let mut kept = vec![T::Real::ZERO; cols];
        let mut elements = vec![T::default(); tile as usize * cols];
        let mut first = rows.start;
        while first < rows.end {
            let count = tile.min(rows.end - first) as usize;
            let sources: Vec<*const T> = (0..count as u64).map(|n| self.source(first + n)).collect();
            let targets: Vec<*mut T> = (0..count as u64).map(|n| self.target(first + n)).collect();
            for position in 0..cols {
                for (number, &source) in sources.iter().enumerate() {
                    // SAFETY: a row's element, which only this thread may overwrite, later.
                    elements[number * cols + position] = unsafe { self.read(source, position) };
                }
            }
            for (number, &target) in targets.iter().enumerate() {
                let x = &mut elements[number * cols..(number + 1) * cols];
                let (max, sum) = self.state(x, &mut kept, &mut Outputs::default(), 0);
                let single = self.single(max, sum);
                if self.kind == SoftmaxKind::LogSumExp {
                    // SAFETY: the row's one output.
                    single.iter().for_each(|value| unsafe { *target = T::from_f64(*value) });
                } else if let Some(value) = single {
                    x.fill(T::from_f64(value));
                } else {
                    self.finish(&mut kept, Outputs::new(self.kind, sum, x, false));
                }
            }
            if self.kind != SoftmaxKind::LogSumExp {
                for position in 0..cols {
                    for (number, &target) in targets.iter().enumerate() {
                        // SAFETY: the row's outputs, which this thread writes alone.
                        unsafe { self.write(target, position, elements[number * cols + position]) };
                    }
                }
            }
            first += count as u64;
        }
    }

    /// Elements of a long row: borrowed if they are neighbours, else copied.
    ///
    /// # Safety
    /// No thread writes them while the slice is in use.
    unsafe fn piece<'b>(&self, source: *const T, range: Range<usize>, buffer: &'b mut Vec<T>) -> &'b [T] {
        if self.strides.0 == 1 {
            // SAFETY: the row's elements, which nobody writes, by the caller's word.
            return unsafe { std::slice::from_raw_parts(source.add(range.start), range.len()) };
        }
        buffer.clear();
        // SAFETY: as above.
        buffer.extend(range.map(|position| unsafe { self.read(source, position) }));
        buffer
    }

    /// A row longer than [`CACHED_ROW`], by all threads: the state (maximum, sum) of each piece of that length, the states
    /// merged in their order, then the outputs.
    fn long_row(&self, row: u64) {
        let (source, target) = (Shared(self.source(row)), SharedMut(self.target(row)));
        let ranges = |length: usize| {
            let range = move |number: usize| number * length..((number + 1) * length).min(self.cols);
            (0..self.cols.div_ceil(length)).into_par_iter().map(range)
        };
        let states: Vec<(T::Real, T::Real)> = ranges(CACHED_ROW)
            .map(|range| {
                let mut buffer = Vec::new();
                // SAFETY: outputs are written after all states are known.
                let x = unsafe { self.piece(source.get(), range, &mut buffer) };
                self.state(x, &mut [], &mut Outputs::default(), 0)
            })
            .collect();
        let larger = |a: T::Real, b: T::Real| if a > b || a.to_f64().is_nan() { a } else { b };
        let max = states.iter().fold(<T::Real as Key>::LOWEST, |max, state| larger(max, state.0));
        if let Some(value) = self.without_sum(max.to_f64()) {
            return self.fill(row, value);
        }
        // The maximum is known, so each sum is rescaled once. A piece of only -inf has the sum 0.
        let mut sums = Pairwise::<T::Real, 64>::new(T::Real::ZERO);
        for (piece_max, sum) in states {
            sums.push(sum.mul(T::exp(piece_max.sub(max))), |a, b| a.add(b));
        }
        let sum = sums.finish(|a, b| a.add(b)).unwrap_or(T::Real::ZERO);
        if let Some(value) = self.single(max, sum) {
            return self.fill(row, value);
        }
        ranges(CACHED_ROW).for_each(|range| {
            let (mut buffer, mut kept, mut before) = (Vec::new(), [T::Real::ZERO; BLOCK], Outputs::default());
            for start in range.clone().step_by(BLOCK) {
                let block = start..(start + BLOCK).min(range.end);
                // SAFETY: this thread alone writes these elements' outputs, after the slice's last use.
                let x = unsafe { self.piece(source.get(), block.clone(), &mut buffer) };
                simd::row_sum(self.instructions, self.kind, x, max, &mut kept, std::mem::take(&mut before), 0);
                if self.strides.1 == 1 {
                    // SAFETY: as above.
                    let out = unsafe { std::slice::from_raw_parts_mut(target.get().add(start), block.len()) };
                    before = Outputs::new(self.kind, sum, out, self.stream);
                    continue;
                }
                let mut out = [T::default(); BLOCK];
                self.finish(&mut kept, Outputs::new(self.kind, sum, &mut out[..block.len()], false));
                for (position, value) in block.zip(out) {
                    // SAFETY: the block's outputs, which this thread writes alone.
                    unsafe { self.write(target.get(), position, value) };
                }
            }
            self.finish(&mut kept, before);
            if self.stream {
                simd::fence();
            }
        });
    }
}

/// A row's address, for all threads.
#[derive(Clone, Copy)]
struct Shared<T>(*const T);
// SAFETY: see `Memory`.
unsafe impl<T: Element> Send for Shared<T> {}
// SAFETY: see `Memory`.
unsafe impl<T: Element> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn get(&self) -> *const T {
        self.0
    }
}

/// A row's output address, for all threads.
#[derive(Clone, Copy)]
struct SharedMut<T>(*mut T);
// SAFETY: see `Memory`.
unsafe impl<T: Element> Send for SharedMut<T> {}
// SAFETY: see `Memory`.
unsafe impl<T: Element> Sync for SharedMut<T> {}
impl<T> SharedMut<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// The maximum first, then the sum, in double-double: n roundings of one f64 accumulator would show for f64 rows.
fn two_pass_state(cols: usize, element: impl Fn(usize) -> f64) -> OnlineState {
    let larger = |a: f64, b: f64| if a > b || a.is_nan() { a } else { b };
    let max = (0..cols).map(&element).fold(f64::NEG_INFINITY, larger);
    if !max.is_finite() {
        return OnlineState { max, sum: 0.0 };
    }
    let zero = DoubleDouble { high: 0.0, low: 0.0 };
    let sum = (0..cols).fold(zero, |sum, position| sum + DoubleDouble { high: (element(position) - max).exp(), low: 0.0 });
    OnlineState { max, sum: sum.high + sum.low }
}

/// One pass; leaves are folded element by element and merged pairwise, so roundings grow with log2(n).
fn online_state(cols: usize, element: impl Fn(usize) -> f64) -> OnlineState {
    let mut states = Pairwise::<OnlineState, 64>::new(OnlineState::empty());
    for start in (0..cols).step_by(LEAF) {
        let leaf = start..(start + LEAF).min(cols);
        states.push(leaf.fold(OnlineState::empty(), |state, position| state.push(element(position))), OnlineState::merge);
    }
    states.finish(OnlineState::merge).unwrap_or_else(OnlineState::empty)
}

fn run_typed<T: SoftmaxElement>(problem: &SoftmaxProblem, memory: Memory<T>, method: Method) {
    if problem.output_len() == 0 {
        return;
    }
    let job = Job::new(problem, memory);
    match method {
        Method::ThreePass => job.scalar_rows(false),
        Method::Online => job.scalar_rows(true),
        Method::Simd => job.vector_rows(),
    }
}

/// Runs an expression with a type alias bound to the Rust type of a float dtype, which the problem has checked.
macro_rules! for_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::F16 => {
                type $t = f16;
                $body
            }
            DType::Bf16 => {
                type $t = bf16;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}

fn run(problem: &SoftmaxProblem, operands: SoftmaxOperands<'_>, method: Method) -> Result<()> {
    let SoftmaxOperands { input, output } = operands;
    problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
    for_float!(problem.dtype(), T => {
        let (input, output) = (input.typed::<T>()?, output.typed::<T>()?);
        run_typed(problem, Memory { input: input.as_ptr(), output: output.as_mut_ptr() }, method);
    });
    Ok(())
}

/// The rung `simd` over one memory, which holds the input and then the output.
///
/// # Errors
/// Mismatched memory; [`crate::Error::InvalidArgument`] for logsumexp or an array that is not contiguous.
pub(super) fn run_in_place<T: Element>(problem: &SoftmaxProblem, values: &mut [T]) -> Result<()> {
    problem.check_in_place()?;
    let offset = problem.shape().offset;
    problem.check_operands((T::DTYPE, values.len() as u64), (T::DTYPE, (values.len() as u64).saturating_sub(offset)))?;
    for_float!(problem.dtype(), F => {
        // The dtypes are the same, hence the types are.
        let start = values.as_mut_ptr().cast::<F>();
        // SAFETY: the check has found offset + output_len elements.
        let output = unsafe { start.add(offset as usize) };
        // Input and output coincide: rows are contiguous from the offset on.
        run_typed(problem, Memory { input: start.cast_const(), output }, Method::Simd);
    });
    Ok(())
}

/// Rung 0.
pub(super) fn rung_three_pass(problem: &SoftmaxProblem, operands: SoftmaxOperands<'_>) -> Result<()> {
    run(problem, operands, Method::ThreePass)
}

/// Rung 1.
pub(super) fn rung_online(problem: &SoftmaxProblem, operands: SoftmaxOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Online)
}

/// Rung 2.
pub(super) fn rung_simd(problem: &SoftmaxProblem, operands: SoftmaxOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Simd)
}
