//! The CPU rungs. A row's bits depend on its values and its length alone, never on the number of threads or rows, on
//! strides or on alignment.

use super::operators::{ScanOperator, Scanned, Visitor, visit};
use super::problem::{ScanOperands, ScanProblem};
use super::simd::{self, BLOCK, GROUP, GROUPS};
use super::{ScanKind, ScanSpec};
use crate::error::{Error, Result};
use crate::flow::{HostSlice, HostSliceMut};
use crate::types::{Element, Layout};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

/// Elements of a chunk: the unit of work of a thread. Small enough that the second look at it hits the second-level cache.
const CHUNK: usize = 1 << 16;

/// Rows of this many chunks are worth all threads; shorter ones are shared out among them.
const LONG_ROW: usize = 4;

/// Bytes of output from which stores go past the caches: what is larger than they are would push out everything else.
const BEYOND_CACHES: u64 = 16 << 20;

/// Where the elements of a row come from.
struct Row<'a, T> {
    problem: &'a ScanProblem,
    data: &'a [T],
    number: u64,
}

impl<'a, T: Element> Row<'a, T> {
    /// Elements `from..to` in the order in which they are scanned: borrowed where memory has them so, else copied.
    fn elements<'b>(&self, from: usize, to: usize, buffer: &'b mut Vec<T>) -> &'b [T]
    where
        'a: 'b,
    {
        if from == to {
            return &[];
        }
        let shape = self.problem.shape();
        let reverse = self.problem.reverse();
        let length = shape.length as usize;
        let (low, high) = if reverse { (length - to, length - from) } else { (from, to) };
        if shape.rows_are_contiguous() {
            let start = shape.index(self.number, low as u64) as usize;
            let slice = &self.data[start..start + (high - low)];
            if !reverse {
                return slice;
            }
            buffer.clear();
            buffer.extend(slice.iter().rev());
            return buffer;
        }
        buffer.clear();
        // A run along the innermost dimension at a time.
        let inner = shape.reduced.last().copied().unwrap_or(crate::types::Dim { extent: 1, stride: 1 });
        let mut at = low as u64;
        while at < high as u64 {
            let run = (inner.extent - at % inner.extent).min(high as u64 - at);
            let mut index = shape.index(self.number, at) as i64;
            for _ in 0..run {
                buffer.push(self.data[index as usize]);
                index += inner.stride;
            }
            at += run;
        }
        if reverse {
            buffer.reverse();
        }
        buffer
    }
}

/// A part of the output in memory order, and how to write to it in scan order.
struct Sink {
    reverse: bool,
    past_caches: bool,
}

impl Sink {
    /// Writes results that stand at `from` of the part's scan order.
    fn write<O: Copy>(&self, part: &mut [O], from: usize, results: &mut [O]) {
        if self.reverse {
            results.reverse();
            let end = part.len() - from;
            part[end - results.len()..end].copy_from_slice(results);
        } else if self.past_caches {
            simd::write_past_caches(results, &mut part[from..from + results.len()]);
        } else {
            part[from..from + results.len()].copy_from_slice(results);
        }
    }
}

/// One after the other: rounding sums in the carry's type, because a single f32 stops growing at 2^24.
fn in_turn<T: Scanned, O: ScanOperator<T>>(
    input: &[T],
    results: &mut [O::Output],
    mut carry: O::Carry,
    inclusive: bool,
) -> O::Carry {
    for (result, &x) in results.iter_mut().zip(input) {
        let next = O::join(carry, O::raise(O::lift(x, 0)));
        *result = O::finish(O::lower(if inclusive { next } else { carry }), 0);
        carry = next;
    }
    carry
}

/// Blocks of results, and of elements where memory does not have them in whole groups.
struct Blocks<T, R> {
    results: [[R; GROUP]; GROUPS],
    elements: [[T; GROUP]; GROUPS],
}

/// Memory that a thread uses again from row to row: clearing it would cost more than to scan a short row.
struct Space<T, R> {
    blocks: Blocks<T, R>,
    gathered: Vec<T>,
}

impl<T: Element, R: Element> Space<T, R> {
    fn new() -> Self {
        let blocks = Blocks { results: [[R::default(); GROUP]; GROUPS], elements: [[T::default(); GROUP]; GROUPS] };
        Space { blocks, gathered: Vec::new() }
    }
}

/// Scans a chunk whose elements are `source`, or, in place, the part of the output itself. `next` is what this thread
/// will probably look at afterwards: memory has time for it while the block's sums are under way.
fn scan_chunk<T: Scanned, O: ScanOperator<T>>(
    source: Option<&[T]>,
    next: &[T],
    part: &mut [O::Output],
    sink: &Sink,
    before: O::Carry,
    inclusive: bool,
    blocks: &mut Blocks<T, O::Output>,
) {
    let Blocks { results, elements } = blocks;
    let mut local = O::empty();
    for from in (0..part.len()).step_by(BLOCK) {
        let count = BLOCK.min(part.len() - from);
        let groups = count.div_ceil(GROUP);
        let block = match source {
            Some(source) if count % GROUP == 0 => source[from..from + count].as_chunks::<GROUP>().0,
            // The end of the row: what follows it in the last group reaches no result.
            Some(source) => {
                elements.as_flattened_mut()[..count].copy_from_slice(&source[from..from + count]);
                &elements[..groups]
            }
            None => {
                read_back(part, from, sink.reverse, &mut elements.as_flattened_mut()[..count]);
                &elements[..groups]
            }
        };
        simd::fetch_early(next.get(from..from + count).unwrap_or_default());
        local = simd::scan_block::<T, O>(block, &mut results[..groups], before, local, inclusive);
        sink.write(part, from, &mut results.as_flattened_mut()[..count]);
    }
}

/// Elements of a part that is scanned in place. The caller makes sure that input and output have one type.
fn read_back<T: Element, O: Element>(part: &[O], from: usize, reverse: bool, elements: &mut [T]) {
    assert_eq!(T::DTYPE, O::DTYPE, "in place, input and output have one dtype");
    let count = elements.len();
    let start = if reverse { part.len() - from - count } else { from };
    let source = &part[start..start + count];
    // SAFETY: one dtype is one Rust type, so the elements of both slices are the same plain data.
    unsafe { std::ptr::copy_nonoverlapping(source.as_ptr().cast(), elements.as_mut_ptr(), count) };
    if reverse {
        elements.reverse();
    }
}

// The machinery of threads is called through pointers, so that it is compiled once for a type and not for each operator.

/// Parts of an output, each with its number.
fn in_parallel<S: Send>(output: &mut [S], part: usize, body: &(dyn Fn(usize, &mut [S]) + Sync)) {
    output.par_chunks_mut(part).enumerate().for_each(|(number, slots)| body(number, slots));
}

/// One vector for each number, in order.
fn vectors_in_parallel<S: Send>(numbers: Range<usize>, one: &(dyn Fn(usize) -> Vec<S> + Sync)) -> Vec<Vec<S>> {
    numbers.into_par_iter().map(one).collect()
}

/// The same work on several threads.
fn on_workers(count: usize, work: &(dyn Fn() + Sync)) {
    (0..count).into_par_iter().with_max_len(1).for_each(|_| work());
}

/// How a rung scans.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    Sequential,
    ThreePhase,
}

struct Run<'a> {
    problem: &'a ScanProblem,
    /// None: the input is the output's memory.
    input: Option<HostSlice<'a>>,
    output: HostSliceMut<'a>,
    method: Method,
}

impl Visitor for Run<'_> {
    type Result = Result<()>;
    fn visit<T: Scanned, O: ScanOperator<T>>(self) -> Result<()> {
        let data = self.input.map(|input| input.typed::<T>()).transpose()?;
        let output = self.output.typed::<O::Output>()?;
        let start = match self.problem.kind() {
            ScanKind::Exclusive(Some(initial)) => O::raise(O::start(initial.typed::<O::Output>()?)),
            _ => O::empty(),
        };
        let scan = Scan::<T, O> { problem: self.problem, data, start, method: self.method };
        scan.all_rows(output);
        Ok(())
    }
}

struct Scan<'a, T: Scanned, O: ScanOperator<T>> {
    problem: &'a ScanProblem,
    data: Option<&'a [T]>,
    start: O::Carry,
    method: Method,
}

impl<T: Scanned, O: ScanOperator<T>> Scan<'_, T, O> {
    fn inclusive(&self) -> bool {
        self.problem.kind() == ScanKind::Inclusive
    }

    fn all_rows(&self, output: &mut [O::Output]) {
        let length = self.problem.length() as usize;
        if output.is_empty() {
            return;
        }
        if self.problem.inner() > 1 {
            return self.interleaved_rows(output);
        }
        let long = length >= LONG_ROW * CHUNK;
        if self.method == Method::Sequential || long || output.len() < LONG_ROW * CHUNK {
            let mut space = Space::new();
            for (number, row) in output.chunks_mut(length).enumerate() {
                self.row(number as u64, row, long && self.method == Method::ThreePhase, &mut space);
            }
        } else {
            // Rows in groups of about a chunk.
            let rows = (CHUNK / length).max(1);
            in_parallel(output, rows * length, &|group, part| {
                let mut space = Space::new();
                for (number, row) in part.chunks_mut(length).enumerate() {
                    self.row((group * rows + number) as u64, row, false, &mut space);
                }
            });
        }
        simd::fence_writes();
    }

    /// Rows whose neighbours do not lie side by side in the output: a batch of them is scanned row by row, then written
    /// together.
    fn interleaved_rows(&self, output: &mut [O::Output]) {
        const BATCH_BYTES: usize = 64 << 20;
        let (length, inner) = (self.problem.length() as usize, self.problem.inner() as usize);
        let batch = (BATCH_BYTES / (length * size_of::<O::Output>())).clamp(1, 64);
        for (slab_number, slab) in output.chunks_mut(length * inner).enumerate() {
            for first in (0..inner).step_by(batch) {
                let columns = first..(first + batch).min(inner);
                let one = |column: usize| {
                    let mut results = vec![O::Output::default(); length];
                    self.row((slab_number * inner + column) as u64, &mut results, false, &mut Space::new());
                    results
                };
                let rows = if self.method == Method::ThreePhase {
                    vectors_in_parallel(columns.clone(), &one)
                } else {
                    columns.clone().map(one).collect()
                };
                for (position, line) in slab.chunks_mut(inner).enumerate() {
                    for (slot, row) in line[columns.clone()].iter_mut().zip(&rows) {
                        *slot = row[position];
                    }
                }
            }
        }
    }

    /// Scans a row into the part of the output that is its own.
    fn row(&self, number: u64, row: &mut [O::Output], threads: bool, space: &mut Space<T, O::Output>) {
        let reverse = self.problem.reverse();
        let past_caches = threads && row.len() as u64 * O::Output::DTYPE.size() >= BEYOND_CACHES;
        let sink = Sink { reverse, past_caches };
        if self.method == Method::Sequential {
            return self.row_in_turn(number, row, &sink, space);
        }
        let chunks = row.len().div_ceil(CHUNK);
        if chunks == 1 {
            let Space { blocks, gathered } = space;
            let source = self.data.map(|data| Row { problem: self.problem, data, number }.elements(0, row.len(), gathered));
            return scan_chunk::<T, O>(source, &[], row, &sink, self.start, self.inclusive(), blocks);
        }
        let parts: Vec<Mutex<&mut [O::Output]>> = if reverse {
            row.rchunks_mut(CHUNK).map(Mutex::new).collect()
        } else {
            row.chunks_mut(CHUNK).map(Mutex::new).collect()
        };
        // The carry in front of each chunk: the chain of the totals before it, in order, whoever computed them.
        let carries: Vec<OnceLock<O::Carry>> = (0..chunks).map(|_| OnceLock::new()).collect();
        let _ = carries[0].set(self.start);
        let workers = if threads { rayon::current_num_threads().min(chunks) } else { 1 };
        let taken = AtomicUsize::new(0);
        let work = || {
            let Space { mut blocks, mut gathered } = Space::new();
            loop {
                // Chunks are taken in order, so every chunk in front of this one is done or under way in some thread.
                let chunk = taken.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(chunk) else { return };
                let mut part = part.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                let from = chunk * CHUNK;
                let source = match self.data {
                    Some(data) => {
                        let row = Row { problem: self.problem, data, number };
                        Some(row.elements(from, from + part.len(), &mut gathered))
                    }
                    None => None,
                };
                let total = (chunk + 1 < chunks).then(|| match source {
                    Some(source) => O::raise(O::total(source)),
                    None => {
                        let mut elements = vec![T::default(); part.len()];
                        read_back(&part[..], 0, reverse, &mut elements);
                        O::raise(O::total(&elements))
                    }
                });
                let before = wait(&carries[chunk]);
                if let Some(total) = total {
                    let _ = carries[chunk + 1].set(O::join(before, total));
                }
                let next = match (source, self.data) {
                    (Some(source), Some(data)) => chunk_behind(data, source, workers),
                    _ => &[],
                };
                scan_chunk::<T, O>(source, next, &mut part, &sink, before, self.inclusive(), &mut blocks);
                if past_caches {
                    simd::fence_writes();
                }
            }
        };
        if workers <= 1 {
            work();
        } else {
            on_workers(workers, &work);
        }
    }

    fn row_in_turn(&self, number: u64, row: &mut [O::Output], sink: &Sink, space: &mut Space<T, O::Output>) {
        let Space { blocks: Blocks { results, elements }, gathered } = space;
        let (results, elements) = (results.as_flattened_mut(), elements.as_flattened_mut());
        let mut carry = self.start;
        for from in (0..row.len()).step_by(BLOCK) {
            let count = BLOCK.min(row.len() - from);
            let block = match self.data {
                Some(data) => Row { problem: self.problem, data, number }.elements(from, from + count, gathered),
                None => {
                    read_back(row, from, sink.reverse, &mut elements[..count]);
                    &elements[..count]
                }
            };
            carry = in_turn::<T, O>(block, &mut results[..count], carry, self.inclusive());
            sink.write(row, from, &mut results[..count]);
        }
    }
}

/// The elements of the chunk that `chunks` threads later is this thread's again, where memory has them in order.
fn chunk_behind<'a, T>(data: &'a [T], chunk: &[T], chunks: usize) -> &'a [T] {
    // A gathered chunk lies elsewhere, and its distance from the data means nothing.
    let start = data.as_ptr_range();
    if !start.contains(&chunk.as_ptr()) {
        return &[];
    }
    let first = (chunk.as_ptr() as usize - start.start as usize) / size_of::<T>() + chunks * CHUNK;
    data.get(first..(first + CHUNK).min(data.len())).unwrap_or_default()
}

/// Waits for a carry that another thread is about to set: it holds the chunk in front, and nothing but arithmetic lies
/// between its taking the chunk and its setting the carry.
fn wait<C: Copy>(carry: &OnceLock<C>) -> C {
    const TURNS: u32 = 1 << 10;
    let mut turns = 0;
    loop {
        if let Some(carry) = carry.get() {
            return *carry;
        }
        turns += 1;
        if turns < TURNS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

fn run(problem: &ScanProblem, operands: ScanOperands<'_>, method: Method) -> Result<()> {
    let ScanOperands { input, output } = operands;
    problem.check_operands((input.dtype(), input.len() as u64), (output.dtype(), output.len() as u64))?;
    visit(problem.operator(), problem.dtype(), Run { problem, input: Some(input), output, method })
}

/// Rung 0.
pub(super) fn rung_sequential(problem: &ScanProblem, operands: ScanOperands<'_>) -> Result<()> {
    run(problem, operands, Method::Sequential)
}

/// Rung 1.
pub(super) fn rung_three_phase(problem: &ScanProblem, operands: ScanOperands<'_>) -> Result<()> {
    run(problem, operands, Method::ThreePhase)
}

/// Scans a slice in its own memory, with the bits of the planner's CPU rung.
///
/// ```
/// use upsweep::ops::scan::{self, ScanSpec};
/// use upsweep::types::Operator;
/// let mut x = [3i64, 1, 4, 1, 5];
/// scan::scan_in_place(ScanSpec::exclusive(Operator::Sum), &mut x)?;
/// assert_eq!(x, [0, 3, 4, 8, 9]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// # Errors
/// As [`ScanProblem::new`]; [`Error::InvalidArgument`] if the output's dtype is another than the input's, as in sums of
/// 32-bit integers.
pub fn scan_in_place<T: Element>(spec: ScanSpec, data: &mut [T]) -> Result<()> {
    let problem = ScanProblem::new(spec, T::DTYPE, &Layout::contiguous(&[data.len() as u64])?, None)?;
    if problem.output_dtype() != T::DTYPE {
        return Err(Error::InvalidArgument {
            argument: "data",
            got: format!("{} elements, whose {} is {}", T::DTYPE, spec.operator, problem.output_dtype()),
            allowed: "in place, input and output need one dtype; use `scan` or a wrapping operator".into(),
        });
    }
    let output = HostSliceMut::from(data);
    visit(spec.operator, T::DTYPE, Run { problem: &problem, input: None, output, method: Method::ThreePhase })
}
