//! The CPU rungs. A row's bits depend on its values and its length alone, never on the number of threads or rows, on
//! strides or on alignment. Those of a segment depend on its place, too: where chunks end follows from the whole array.

use super::operators::{ScanOperator, Scanned, Visitor, visit};
use super::problem::{ScanOperands, ScanProblem};
use super::simd::{self, BLOCK, GROUP, GROUPS};
use super::{ScanKind, ScanSpec, Segments};
use crate::error::{Error, Result};
use crate::flow::{HostSlice, HostSliceMut};
use crate::types::{Element, Layout, Operator, dispatch};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Elements of a chunk: the unit of work of a thread. Small enough that the second look at it hits the second-level cache.
pub(super) const CHUNK: usize = 1 << 16;

/// Rows of this many chunks are worth all threads; shorter ones are shared out among them.
const LONG_ROW: usize = 4;

/// Bytes of output from which stores go past the caches: what is larger than they are would push out everything else.
const BEYOND_CACHES: u64 = 16 << 20;

/// Where the elements of a row come from.
pub(super) struct Row<'a, T> {
    pub(super) problem: &'a ScanProblem,
    pub(super) data: &'a [T],
    pub(super) number: u64,
}

impl<'a, T: Element> Row<'a, T> {
    /// Elements `from..to` in the order in which they are scanned: borrowed where memory has them so, else copied.
    pub(super) fn elements<'b>(&self, from: usize, to: usize, buffer: &'b mut Vec<T>) -> &'b [T]
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
pub(super) struct Sink {
    pub(super) reverse: bool,
    pub(super) past_caches: bool,
}

impl Sink {
    /// Writes results that stand at `from` of the part's scan order.
    pub(super) fn write<O: Copy>(&self, part: &mut [O], from: usize, results: &mut [O]) {
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

    /// The piece `from..to`, in scan order, of a part.
    pub(super) fn piece<'b, O>(&self, part: &'b mut [O], from: usize, to: usize) -> &'b mut [O] {
        let length = part.len();
        if self.reverse { &mut part[length - to..length - from] } else { &mut part[from..to] }
    }
}

/// Where segments begin, in scan order.
trait Heads: Sync {
    /// Puts the heads in `from..to` into `heads`, in order; position 0 is one.
    fn find(&self, from: usize, to: usize, heads: &mut Vec<usize>);
}

/// Heads where the key changes.
struct KeyHeads<'a, K> {
    problem: &'a ScanProblem,
    keys: &'a [K],
}

impl<K: Element> Heads for KeyHeads<'_, K> {
    fn find(&self, from: usize, to: usize, heads: &mut Vec<usize>) {
        heads.clear();
        let mut buffer = Vec::new();
        // The element before the first decides about it.
        let before = from.saturating_sub(1);
        let row = Row { problem: self.problem, data: self.keys, number: 0 };
        let keys = row.elements(before, to, &mut buffer);
        if from == 0 && to > 0 {
            heads.push(0);
        }
        heads.extend(keys.windows(2).zip(before + 1..).filter(|(pair, _)| pair[0] != pair[1]).map(|(_, at)| at));
    }
}

/// Heads at offsets, which were checked.
struct OffsetHeads<'a> {
    offsets: &'a [u64],
    length: u64,
    reverse: bool,
}

impl Heads for OffsetHeads<'_> {
    fn find(&self, from: usize, to: usize, heads: &mut Vec<usize>) {
        heads.clear();
        let (from, to) = (from as u64, to as u64);
        let before = |limit: u64| self.offsets.partition_point(|offset| *offset < limit);
        if self.reverse {
            // A scan from the end of a segment begins where the segment behind it does.
            let inside = &self.offsets[before(self.length - to + 1)..before(self.length - from + 1)];
            heads.extend(inside.iter().rev().map(|offset| (self.length - offset) as usize));
        } else {
            heads.extend(self.offsets[before(from)..before(to)].iter().map(|offset| *offset as usize));
        }
        heads.dedup();
    }
}

/// The heads of a problem in segments.
fn heads<'a>(problem: &'a ScanProblem, second: Option<HostSlice<'a>>) -> Result<Option<Box<dyn Heads + 'a>>> {
    Ok(match (problem.segments(), second) {
        (Segments::Keys(_), Some(keys)) => {
            Some(dispatch!(keys.dtype(), K => Box::new(KeyHeads { problem, keys: keys.typed::<K>()? })))
        }
        (Segments::Offsets { .. }, Some(offsets)) => {
            let (length, reverse) = (problem.length(), problem.reverse());
            Some(Box::new(OffsetHeads { offsets: offsets.typed::<u64>()?, length, reverse }))
        }
        _ => None,
    })
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
pub(super) struct Space<T, R> {
    blocks: Blocks<T, R>,
    gathered: Vec<T>,
}

impl<T: Element, R: Element> Default for Space<T, R> {
    fn default() -> Self {
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
        let next = next.get(from..from + count).unwrap_or_default();
        if sink.past_caches && !sink.reverse && count % GROUP == 0 {
            let target = &mut part[from..from + count];
            if let Some(behind) = simd::scan_block_past_caches::<T, O>(block, next, target, before, local, inclusive) {
                local = behind;
                continue;
            }
        }
        simd::fetch_early(next);
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

/// The chunks of a long row, in scan order, and the carry in front of each: the chain of the totals before it, in order,
/// whoever computed them.
pub(super) struct Chunks<'a, R, C> {
    parts: Vec<Mutex<&'a mut [R]>>,
    carries: Vec<OnceLock<C>>,
    taken: AtomicUsize,
}

impl<'a, R: Send, C: Copy + Send + Sync> Chunks<'a, R, C> {
    pub(super) fn new(row: &'a mut [R], reverse: bool, start: C) -> Self {
        let parts: Vec<Mutex<&mut [R]>> = if reverse {
            row.rchunks_mut(CHUNK).map(Mutex::new).collect()
        } else {
            row.chunks_mut(CHUNK).map(Mutex::new).collect()
        };
        let carries: Vec<OnceLock<C>> = parts.iter().map(|_| OnceLock::new()).collect();
        let _ = carries.first().map(|first| first.set(start));
        Chunks { parts, carries, taken: AtomicUsize::new(0) }
    }

    /// The next chunk that nobody works at, with its number. Chunks are taken in order, so every chunk in front of this
    /// one is done or under way in some thread.
    pub(super) fn take(&self) -> Option<(usize, MutexGuard<'_, &'a mut [R]>)> {
        let chunk = self.taken.fetch_add(1, Ordering::Relaxed);
        let part = self.parts.get(chunk)?;
        Some((chunk, part.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }

    /// The carry in front of a chunk.
    pub(super) fn before(&self, chunk: usize) -> C {
        wait(&self.carries[chunk])
    }

    /// Tells the carry behind a chunk to the next, if there is one.
    pub(super) fn pass_on(&self, chunk: usize, carry: C) {
        let _ = self.carries.get(chunk + 1).map(|next| next.set(carry));
    }

    /// Whether no chunk follows.
    pub(super) fn is_last(&self, chunk: usize) -> bool {
        chunk + 1 == self.parts.len()
    }

    /// Does the work on so many threads.
    pub(super) fn work(&self, workers: usize, work: &(dyn Fn() + Sync)) {
        if workers <= 1 { work() } else { on_workers(workers, work) }
    }
}

/// How a rung scans.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Method {
    Sequential,
    ThreePhase,
}

/// Scans single rows: what the walk over all rows needs of an operator.
pub(super) trait RowScan: Sync {
    /// What comes out.
    type Output: Element;
    /// Memory that a thread uses again from row to row.
    type Space: Default;
    /// Scans a row into the part of the output that is its own; `threads` says that it is worth all of them.
    fn row(&self, number: u64, row: &mut [Self::Output], threads: bool, space: &mut Self::Space);
}

/// Scans every row of a problem.
pub(super) fn all_rows<S: RowScan>(scan: &S, problem: &ScanProblem, method: Method, output: &mut [S::Output]) {
    let length = problem.length() as usize;
    if output.is_empty() {
        return;
    }
    if problem.inner() > 1 {
        return interleaved_rows(scan, problem, method, output);
    }
    let long = length >= LONG_ROW * CHUNK;
    if method == Method::Sequential || long || output.len() < LONG_ROW * CHUNK {
        let mut space = S::Space::default();
        for (number, row) in output.chunks_mut(length).enumerate() {
            scan.row(number as u64, row, long && method == Method::ThreePhase, &mut space);
        }
    } else {
        // Rows in groups of about a chunk.
        let rows = (CHUNK / length).max(1);
        in_parallel(output, rows * length, &|group, part| {
            let mut space = S::Space::default();
            for (number, row) in part.chunks_mut(length).enumerate() {
                scan.row((group * rows + number) as u64, row, false, &mut space);
            }
        });
    }
    simd::fence_writes();
}

/// Rows whose neighbours do not lie side by side in the output: a batch of them is scanned row by row, then written
/// together.
fn interleaved_rows<S: RowScan>(scan: &S, problem: &ScanProblem, method: Method, output: &mut [S::Output]) {
    const BATCH_BYTES: usize = 64 << 20;
    let (length, inner) = (problem.length() as usize, problem.inner() as usize);
    let batch = (BATCH_BYTES / (length * size_of::<S::Output>())).clamp(1, 64);
    for (slab_number, slab) in output.chunks_mut(length * inner).enumerate() {
        for first in (0..inner).step_by(batch) {
            let columns = first..(first + batch).min(inner);
            let one = |column: usize| {
                let mut results = vec![S::Output::default(); length];
                scan.row((slab_number * inner + column) as u64, &mut results, false, &mut S::Space::default());
                results
            };
            let rows = if method == Method::ThreePhase {
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

struct Run<'a> {
    problem: &'a ScanProblem,
    /// None: the input is the output's memory.
    input: Option<HostSlice<'a>>,
    /// Keys or offsets.
    second: Option<HostSlice<'a>>,
    output: HostSliceMut<'a>,
    method: Method,
}

impl Visitor for Run<'_> {
    type Result = Result<()>;
    fn visit<T: Scanned, O: ScanOperator<T>>(self) -> Result<()> {
        let data = self.input.map(|input| input.typed::<T>()).transpose()?;
        let output = self.output.typed::<O::Output>()?;
        let start = match self.problem.initial() {
            Some(initial) => O::raise(O::start(initial.typed::<O::Output>()?)),
            None => O::empty(),
        };
        let heads = heads(self.problem, self.second)?;
        let scan = Scan::<T, O> { problem: self.problem, data, heads: heads.as_deref(), start, method: self.method };
        all_rows(&scan, self.problem, self.method, output);
        Ok(())
    }
}

struct Scan<'a, T: Scanned, O: ScanOperator<T>> {
    problem: &'a ScanProblem,
    data: Option<&'a [T]>,
    heads: Option<&'a dyn Heads>,
    start: O::Carry,
    method: Method,
}

impl<T: Scanned, O: ScanOperator<T>> RowScan for Scan<'_, T, O> {
    type Output = O::Output;
    type Space = Space<T, O::Output>;
    fn row(&self, number: u64, row: &mut [O::Output], threads: bool, space: &mut Self::Space) {
        let reverse = self.problem.reverse();
        // Segments are written in pieces, for which no store past the caches is worth its while.
        let past_caches = threads && self.heads.is_none() && row.len() as u64 * O::Output::DTYPE.size() >= BEYOND_CACHES;
        let sink = Sink { reverse, past_caches };
        match (self.method, self.heads) {
            (Method::Sequential, None) => self.row_in_turn(number, row, &sink, space),
            (Method::Sequential, Some(heads)) => self.segments_in_turn(heads, row, &sink, space),
            (Method::ThreePhase, _) => self.row_in_chunks(number, row, threads, &sink, space),
        }
    }
}

impl<T: Scanned, O: ScanOperator<T>> Scan<'_, T, O> {
    fn inclusive(&self) -> bool {
        self.problem.kind() == ScanKind::Inclusive
    }

    fn row_in_chunks(&self, number: u64, row: &mut [O::Output], threads: bool, sink: &Sink, space: &mut Space<T, O::Output>) {
        let (reverse, past_caches) = (sink.reverse, sink.past_caches);
        let chunks = row.len().div_ceil(CHUNK);
        if chunks == 1 {
            let Space { blocks, gathered } = space;
            let source = self.data.map(|data| Row { problem: self.problem, data, number }.elements(0, row.len(), gathered));
            return match (self.heads, source) {
                (Some(heads), Some(source)) => {
                    let mut found = Vec::new();
                    heads.find(0, row.len(), &mut found);
                    self.pieces(source, row, sink, &found, self.start, blocks);
                }
                _ => {
                    scan_chunk::<T, O>(source, &[], row, sink, self.start, self.inclusive(), blocks);
                }
            };
        }
        let workers = if threads { rayon::current_num_threads().min(chunks) } else { 1 };
        let line = Chunks::new(row, reverse, self.start);
        line.work(workers, &|| {
            let Space { mut blocks, mut gathered } = Space::default();
            let mut found = Vec::new();
            while let Some((chunk, mut part)) = line.take() {
                let from = chunk * CHUNK;
                let source = match self.data {
                    Some(data) => {
                        let row = Row { problem: self.problem, data, number };
                        Some(row.elements(from, from + part.len(), &mut gathered))
                    }
                    None => None,
                };
                // Only what lies behind the chunk's last head goes on into the next chunk.
                let mut last_head = None;
                if let Some(heads) = self.heads {
                    heads.find(from, from + part.len(), &mut found);
                    found.iter_mut().for_each(|head| *head -= from);
                    last_head = found.last().copied();
                }
                let total = (!line.is_last(chunk)).then(|| match source {
                    Some(source) => O::raise(O::total(&source[last_head.unwrap_or(0)..])),
                    None => {
                        let mut elements = vec![T::default(); part.len()];
                        read_back(&part[..], 0, reverse, &mut elements);
                        O::raise(O::total(&elements))
                    }
                });
                if let (Some(total), Some(_)) = (total, last_head) {
                    line.pass_on(chunk, O::join(self.start, total));
                }
                let before = line.before(chunk);
                if let (Some(total), None) = (total, last_head) {
                    line.pass_on(chunk, O::join(before, total));
                }
                if let (Some(_), Some(source)) = (self.heads, source) {
                    self.pieces(source, &mut part, sink, &found, before, &mut blocks);
                    continue;
                }
                let next = match (source, self.data) {
                    (Some(source), Some(data)) => chunk_behind(data, source, workers),
                    _ => &[],
                };
                scan_chunk::<T, O>(source, next, &mut part, sink, before, self.inclusive(), &mut blocks);
                if past_caches {
                    simd::fence_writes();
                }
            }
        });
    }

    /// Scans a chunk in pieces, each from its own start, but for elements before the first head, which go on from `before`.
    /// `heads` are counted from the chunk's first element.
    fn pieces(
        &self,
        source: &[T],
        part: &mut [O::Output],
        sink: &Sink,
        heads: &[usize],
        before: O::Carry,
        blocks: &mut Blocks<T, O::Output>,
    ) {
        let (mut from, mut carry) = (0, before);
        for to in heads.iter().copied().chain([source.len()]) {
            let (elements, piece) = (&source[from..to], sink.piece(part, from, to));
            if elements.len() < GROUP {
                // A short piece would pay for a whole group.
                let results = &mut blocks.results[0][..elements.len()];
                in_turn::<T, O>(elements, results, carry, self.inclusive());
                sink.write(piece, 0, results);
            } else {
                scan_chunk::<T, O>(Some(elements), &[], piece, sink, carry, self.inclusive(), blocks);
            }
            (from, carry) = (to, self.start);
        }
    }

    fn segments_in_turn(&self, heads: &dyn Heads, row: &mut [O::Output], sink: &Sink, space: &mut Space<T, O::Output>) {
        let Space { blocks: Blocks { results, .. }, gathered } = space;
        let Some(data) = self.data else { return };
        let results = results.as_flattened_mut();
        let mut found = Vec::new();
        let mut carry = self.start;
        for from in (0..row.len()).step_by(BLOCK) {
            let count = BLOCK.min(row.len() - from);
            let block = Row { problem: self.problem, data, number: 0 }.elements(from, from + count, gathered);
            heads.find(from, from + count, &mut found);
            let mut at = 0;
            for to in found.iter().map(|head| head - from).chain([count]) {
                carry = in_turn::<T, O>(&block[at..to], &mut results[at..to], carry, self.inclusive());
                if to < count {
                    carry = self.start;
                }
                at = to;
            }
            sink.write(row, from, &mut results[..count]);
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
    let ScanOperands { input, second, output } = operands;
    problem.check_host_operands(input, second, (output.dtype(), output.len() as u64))?;
    if let Some(user) = problem.user() {
        return user.erased().scan(problem, input, output, method == Method::Sequential);
    }
    match (problem.operator(), second) {
        (Operator::LinearRecurrence, Some(coefficients)) => super::recurrence::run(problem, coefficients, input, output, method),
        _ => visit(problem.operator(), problem.dtype(), Run { problem, input: Some(input), second, output, method }),
    }
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
/// 32-bit integers, or if the scan has a second input.
pub fn scan_in_place<T: Element>(spec: ScanSpec, data: &mut [T]) -> Result<()> {
    let problem = ScanProblem::new(spec, T::DTYPE, &Layout::contiguous(&[data.len() as u64])?, None)?;
    if problem.second_input().is_some() {
        return Err(Error::InvalidArgument {
            argument: "spec",
            got: problem.to_string(),
            allowed: "in place, a scan has one input; use `linear_recurrence`, `scan_by_key` or `scan_segments`".into(),
        });
    }
    if problem.output_dtype() != T::DTYPE {
        return Err(Error::InvalidArgument {
            argument: "data",
            got: format!("{} elements, whose {} is {}", T::DTYPE, spec.operator, problem.output_dtype()),
            allowed: "in place, input and output need one dtype; use `scan` or a wrapping operator".into(),
        });
    }
    let output = HostSliceMut::from(data);
    visit(spec.operator, T::DTYPE, Run { problem: &problem, input: None, second: None, output, method: Method::ThreePhase })
}
