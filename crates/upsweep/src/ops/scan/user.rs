//! Scans by an operator of the caller's own.

use super::api::{ScanDevice, Scanned, run_plan};
#[cfg(feature = "cpu")]
use super::cpu::{CHUNK, Method, Row, RowScan, Sink, all_rows};
use super::plan::plan;
use super::problem::{ScanKind, ScanProblem};
use crate::error::Result;
#[cfg(feature = "cpu")]
use crate::flow::{HostSlice, HostSliceMut};
#[cfg(feature = "cpu")]
use crate::ops::user::{STRIPS, fronts};
use crate::ops::user::{State, UserOperator};
use crate::types::{Element, Layout};
#[cfg(feature = "cpu")]
use rayon::prelude::*;

/// How elements are scanned by an operator of the caller's own; by default inclusively, from the first to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScanOptions {
    /// Output `i` covers elements `0..i`, and output 0 nothing, instead of elements `0..=i`.
    pub exclusive: bool,
    /// From the last element to the first: `flip(scan(flip(x)))`.
    pub reverse: bool,
}

impl ScanOptions {
    pub(super) fn kind(self) -> ScanKind {
        if self.exclusive { ScanKind::Exclusive } else { ScanKind::Inclusive }
    }
}

/// Scans `input` by an operator of the caller's own, laid out as `layout` (elements; `None`: contiguous, all of it), along
/// `axis` (`None`: the whole array as one row, in C order).
///
/// Elements keep their order, so the operator need not commute.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::{scan::{self, ScanOptions}, user::examples}};
/// let changes = [3i32, -5, 4, -1, 2];
/// let spans = scan::scan_with(&Cpu::new(), &examples::largest_span()?, ScanOptions::default(), &changes[..], None, None)?;
/// assert_eq!(spans.values, [3, 3, 4, 4, 5]);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// On a CUDA device, under feature `cuda`, the operator needs its C++ text:
///
#[cfg_attr(feature = "cuda", doc = "```no_run")]
#[cfg_attr(not(feature = "cuda"), doc = "```ignore")]
/// use upsweep::{device::cuda::Cuda, ops::{scan::{self, ScanOptions}, user::examples}};
/// let (cuda, operator) = (Cuda::new(0)?, examples::largest_span()?);
/// let changes = cuda.upload(&[3i32, -5, 4, -1, 2])?;
/// let spans = scan::scan_with(&cuda, &operator, ScanOptions::default(), &changes, None, None)?;
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// Cost: two reads of every element and one write of every output; on a CUDA device with a copy engine one read. Where
/// outputs have fewer bytes than elements, and along an axis before the last, CUDA devices follow each row by itself.
/// Deterministic; a row's bits depend on its values and its length alone.
///
/// # Errors
/// [`crate::Error::InvalidAxis`], [`crate::Error::InvalidLayout`]; [`crate::Error::LengthMismatch`] if `input` is shorter than
/// the layout needs; on CUDA devices [`crate::Error::Unavailable`] for an operator without C++ text,
/// [`crate::Error::Compile`] for one that does not compile, and device errors.
pub fn scan_with<D: ScanDevice, T: Element, S: State, R: Element>(
    device: &D,
    operator: &UserOperator<T, S, R>,
    options: ScanOptions,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axis: Option<i64>,
) -> Result<Scanned<R>> {
    let whole = Layout::contiguous(&[device.len(input)])?;
    let problem = ScanProblem::of_operator(operator, options, layout.unwrap_or(&whole), axis)?;
    run_plan(device, &plan(&problem, &device.capabilities())?, input)
}

/// Runs a CPU rung on operands that were checked.
#[cfg(feature = "cpu")]
pub(crate) fn run_user<T: Element, S: State, R: Element>(
    operator: &UserOperator<T, S, R>,
    problem: &ScanProblem,
    input: HostSlice<'_>,
    output: HostSliceMut<'_>,
    in_turn: bool,
) -> Result<()> {
    let method = if in_turn { Method::Sequential } else { Method::ThreePhase };
    let rows = Rows { operator, problem, data: input.typed::<T>()?, method };
    all_rows(&rows, problem, method, output.typed::<R>()?);
    Ok(())
}

#[cfg(feature = "cpu")]
struct Rows<'a, T, S, R> {
    operator: &'a UserOperator<T, S, R>,
    problem: &'a ScanProblem,
    data: &'a [T],
    method: Method,
}

/// Memory that a thread uses again from chunk to chunk.
#[cfg(feature = "cpu")]
pub(super) struct Space<T, R> {
    gathered: Vec<T>,
    results: Vec<R>,
}

#[cfg(feature = "cpu")]
impl<T, R> Default for Space<T, R> {
    fn default() -> Self {
        Space { gathered: Vec::new(), results: Vec::new() }
    }
}

#[cfg(feature = "cpu")]
impl<T: Element, S: State, R: Element> Rows<'_, T, S, R> {
    fn elements<'b>(&'b self, number: u64, chunk: usize, length: usize, gathered: &'b mut Vec<T>) -> &'b [T] {
        let from = chunk * CHUNK;
        Row { problem: self.problem, data: self.data, number }.elements(from, (from + CHUNK).min(length), gathered)
    }

    fn sink(&self) -> Sink {
        Sink { reverse: self.problem.reverse(), past_caches: false }
    }

    fn inclusive(&self) -> bool {
        self.problem.kind() == ScanKind::Inclusive
    }

    /// Scans a chunk into its part of the output.
    fn scan_chunk(&self, elements: &[T], fronts: [S; STRIPS], part: &mut [R], results: &mut Vec<R>) {
        results.resize(elements.len(), R::default());
        self.operator.host().scan(elements, fronts, self.inclusive(), results);
        self.sink().write(part, 0, results);
    }

    /// A row's chunks by all threads: first what stands in each strip, then the scans. Unlike the rungs' own operators the
    /// caller's may panic: no thread waits for another, which might not come.
    fn chunks_on_threads(&self, number: u64, row: &mut [R]) {
        let (form, length) = (self.operator.host(), row.len());
        let totals: Vec<[S; STRIPS]> = (0..length.div_ceil(CHUNK))
            .into_par_iter()
            .map(|chunk| form.totals(self.elements(number, chunk, length, &mut Vec::new())))
            .collect();
        let mut before = self.operator.identity();
        let in_front = totals.iter().enumerate().map(|(chunk, totals)| {
            let (fronts, behind) = fronts(form, CHUNK.min(length - chunk * CHUNK), totals, before);
            before = behind;
            fronts
        });
        let in_front: Vec<[S; STRIPS]> = in_front.collect();
        let parts: Vec<&mut [R]> =
            if self.problem.reverse() { row.rchunks_mut(CHUNK).collect() } else { row.chunks_mut(CHUNK).collect() };
        parts.into_par_iter().zip(in_front).enumerate().for_each_init(Space::default, |space, (chunk, (part, fronts))| {
            let Space { gathered, results } = space;
            self.scan_chunk(self.elements(number, chunk, length, gathered), fronts, part, results);
        });
    }
}

#[cfg(feature = "cpu")]
impl<T: Element, S: State, R: Element> RowScan for Rows<'_, T, S, R> {
    type Output = R;
    type Space = Space<T, R>;

    fn row(&self, number: u64, row: &mut [R], threads: bool, space: &mut Space<T, R>) {
        if threads {
            return self.chunks_on_threads(number, row);
        }
        let (form, length) = (self.operator.host(), row.len());
        let Space { gathered, results } = space;
        let mut before = self.operator.identity();
        let mut from = 0;
        for chunk in 0..length.div_ceil(CHUNK) {
            let elements = self.elements(number, chunk, length, gathered);
            let sink = self.sink();
            let part = sink.piece(row, from, from + elements.len());
            from += elements.len();
            if self.method == Method::Sequential {
                results.resize(elements.len(), R::default());
                before = form.in_turn(elements, before, self.inclusive(), Some(results));
                sink.write(part, 0, results);
            } else {
                let (fronts, behind) = fronts(form, elements.len(), &form.totals(elements), before);
                self.scan_chunk(elements, fronts, part, results);
                before = behind;
            }
        }
    }
}
