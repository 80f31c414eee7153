//! Reductions by an operator of the caller's own.

use super::api::{ReduceDevice, Reduced, run_plan};
#[cfg(feature = "cpu")]
use super::cpu::{Row, WORTH_A_THREAD, parallel_rows, parallel_states};
use super::plan::plan;
#[cfg(feature = "cpu")]
use super::problem::ReduceOperands;
use super::problem::ReduceProblem;
#[cfg(feature = "cpu")]
use super::simd::{CHUNK, Pairwise};
use crate::error::Result;
#[cfg(feature = "cpu")]
use crate::ops::user::chunk_total;
use crate::ops::user::{State, UserOperator};
use crate::types::{Element, Layout};

/// Reduces `input` by an operator of the caller's own, laid out as `layout` (elements; `None`: contiguous, all of it), along
/// `axes` (`None`: all). Nothing gives what the operator makes of its identity.
///
/// ```
/// use upsweep::{device::cpu::Cpu, ops::{reduce, user::examples}, types::Layout};
/// let x = [1.0f32, 2.0, 3.0, 5.0, 5.0, 5.0];
/// let rows = Layout::contiguous(&[2, 3])?;
/// let variances = reduce::reduce_with(&Cpu::new(), &examples::variance()?, &x[..], Some(&rows), Some(&[-1]))?;
/// assert!((variances.values[0] - 2.0 / 3.0).abs() < 1e-12);
/// assert_eq!(variances.values[1], 0.0);
/// # Ok::<(), upsweep::Error>(())
/// ```
///
/// Elements keep their order on the CPU, and on CUDA devices unless the operator was said to commute
/// ([`UserOperator::commutative`]).
///
/// Cost: one read of every element. Deterministic; on the CPU a row's bits depend on its values and its length alone.
///
/// # Errors
/// [`crate::Error::InvalidAxis`], [`crate::Error::InvalidLayout`]; [`crate::Error::LengthMismatch`] if `input` is shorter than
/// the layout needs; on CUDA devices [`crate::Error::NotClaimed`] for an operator without C++ text, and for one that does not
/// commute over anything but the whole of contiguous memory, [`crate::Error::Compile`] for a text that does not compile, and
/// device errors.
pub fn reduce_with<D: ReduceDevice, T: Element, S: State, R: Element>(
    device: &D,
    operator: &UserOperator<T, S, R>,
    input: &D::Memory<T>,
    layout: Option<&Layout>,
    axes: Option<&[i64]>,
) -> Result<Reduced<R>> {
    let whole = Layout::contiguous(&[device.len(input)])?;
    let problem = ReduceProblem::of_operator(operator, layout.unwrap_or(&whole), axes)?;
    run_plan(device, &plan(&problem, &device.capabilities())?, input)
}

/// Runs a CPU rung on operands that were checked: chunks of fixed length, combined pairwise in their order.
#[cfg(feature = "cpu")]
pub(crate) fn run_user<T: Element, S: State, R: Element>(
    operator: &UserOperator<T, S, R>,
    problem: &ReduceProblem,
    operands: ReduceOperands<'_>,
    in_turn: bool,
) -> Result<()> {
    let (data, output) = (operands.input.typed::<T>()?, operands.output.typed::<R>()?);
    let (form, length) = (operator.host(), problem.shape().length);
    let chunks = length.div_ceil(CHUNK as u64);
    let combine = |a, b| form.combine(a, b);
    let reduce_row = |number: u64, threads: bool, buffer: &mut Vec<T>| -> R {
        let row = Row::new(problem, data, number);
        let range = |chunk: u64| (chunk * CHUNK as u64, ((chunk + 1) * CHUNK as u64).min(length));
        if in_turn {
            let state = (0..chunks).fold(operator.identity(), |state, chunk| {
                let (from, to) = range(chunk);
                form.in_turn(row.elements(from, to, buffer), state, true, None)
            });
            return form.finish(state);
        }
        // Of 2^64 elements there are 2^48 chunks.
        let mut states = Pairwise::<S, 49>::new(operator.identity());
        let total = |chunk: u64, buffer: &mut Vec<T>| {
            let (from, to) = range(chunk);
            chunk_total(form, row.elements(from, to, buffer))
        };
        if threads {
            const BATCH: u64 = 1 << 20;
            for first in (0..chunks).step_by(BATCH as usize) {
                let one = |chunk: u32| total(first + u64::from(chunk), &mut Vec::new());
                let batch = parallel_states(BATCH.min(chunks - first) as u32, &one);
                batch.into_iter().for_each(|state| states.push(state, combine));
            }
        } else {
            (0..chunks).for_each(|chunk| states.push(total(chunk, buffer), combine));
        }
        form.finish(states.finish(combine).unwrap_or(operator.identity()))
    };
    let elements = (output.len() as u64).saturating_mul(length);
    let worth_it = !in_turn && elements >= 2 * WORTH_A_THREAD;
    let group = |threads: bool, first: usize, slots: &mut [R]| {
        let mut buffer = Vec::new();
        for (slot, number) in slots.iter_mut().zip(first as u64..) {
            *slot = reduce_row(number, threads, &mut buffer);
        }
    };
    if worth_it && output.len() > 1 {
        let rows = WORTH_A_THREAD.div_ceil(length.max(1)) as usize;
        parallel_rows(output, rows, &|first, slots| group(false, first, slots));
    } else {
        group(worth_it, 0, output);
    }
    Ok(())
}
