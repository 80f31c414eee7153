//! The faults of scans, each with the case that must reject it, and the CPU's forms.

use super::{Case, Coefficients, Mode, Runs, Second};
use crate::candidate::Candidate;
use crate::cases::Form;
use crate::families::{Family, Place, Special};
use crate::judged::Fault;
use upsweep::Result;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Body, Claims, Expect, Explain, Forms, Rung};
use upsweep::half::f16;
use upsweep::ops::scan::{HostBody, Scan, ScanOperands, ScanProblem, ScanRung};
use upsweep::types::{DType, Element, Operator};

const BOTH: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Cuda];
const CPU: &[DeviceKind] = &[DeviceKind::Cpu];
const CUDA: &[DeviceKind] = &[DeviceKind::Cuda];

/// Every fault.
pub(super) fn faults() -> Vec<Fault<Scan>> {
    use DType::{F16, F32, I32};
    use Operator::{Max, Sum};
    let fault = |name, fault, forms, case| Fault { name, fault, forms, case, runs: 2 };
    let whole = Case::whole;
    let with = |mode, case| Case { mode, ..case };
    vec![
        fault("scan_zeros", "the output is zeroed and nothing else", BOTH, whole(Sum, F32, Family::Signed, 1025)),
        fault(
            "missing_block_offset",
            "blocks are scanned apart and no carry is added",
            BOTH,
            whole(Sum, F32, Family::Signed, 4097),
        ),
        fault(
            "exclusive_off_by_one",
            "an exclusive scan gives the inclusive one",
            BOTH,
            with(Mode::Exclusive, whole(Sum, F32, Family::Signed, 1025)),
        ),
        fault(
            "initial_value_ignored",
            "an exclusive scan begins with the identity whatever was asked",
            BOTH,
            with(Mode::ExclusiveFrom, whole(Sum, F32, Family::Signed, 257)),
        ),
        fault(
            "reverse_ignored",
            "a reverse scan runs forwards",
            BOTH,
            with(Mode::ReverseInclusive, whole(Sum, F32, Family::Signed, 1025)),
        ),
        fault(
            "scan_dropped_tail",
            "what does not fill a tile of 1024 is not written",
            BOTH,
            whole(Sum, F32, Family::Signed, 4097),
        ),
        fault(
            "nan_dropping_cummax",
            "comparisons lose a NaN",
            BOTH,
            whole(Max, F32, Family::With(Special::Nan, Place::Middle), 1025),
        ),
        fault(
            "scan_f16_accumulator",
            "the running sum is rounded to the storage type",
            CPU,
            whole(Sum, F16, Family::Offset, 1025),
        ),
        fault("cumsum_in_i32", "a cumulative sum of i32 wraps at 32 bits", BOTH, whole(Sum, I32, Family::Uniform, 1025)),
        fault(
            "carry_crosses_rows",
            "the running state is not reset at the start of a row",
            CPU,
            Case { form: Form::LastAxis, ..whole(Sum, F32, Family::Signed, 33) },
        ),
        fault(
            "recurrence_commuted",
            "the carry is combined with a tile's total in the wrong order: the later one first",
            BOTH,
            Case::recurrence(F32, Family::Signed, Coefficients::Fading, 4097),
        ),
        fault(
            "recurrence_coefficients_shifted",
            "an element meets its predecessor's coefficient",
            BOTH,
            Case::recurrence(F32, Family::Signed, Coefficients::Fading, 257),
        ),
        fault(
            "recurrence_initial_state_ignored",
            "the states begin with 0 whatever was asked",
            BOTH,
            with(Mode::InclusiveFrom, Case::recurrence(F32, Family::Signed, Coefficients::Fading, 257)),
        ),
        fault(
            "key_head_lost_at_edge",
            "a segment that begins with a tile of 1024 goes on from the tile before",
            BOTH,
            Case { second: Second::Keys(I32, Runs::AtEdges), ..whole(Sum, F32, Family::Signed, 4097) },
        ),
        fault(
            "offsets_off_by_one",
            "segments begin one element late",
            BOTH,
            Case { second: Second::Offsets(Runs::Short), ..whole(Sum, F32, Family::Signed, 1025) },
        ),
        fault(
            "value_before_flag",
            "a tile reads its predecessor's value before it has seen the flag, and the predecessor is delayed so that the \
             wrong order is certain",
            CUDA,
            whole(Sum, F32, Family::Signed, 4097),
        ),
    ]
}

/// The CPU's forms.
pub(super) fn on_cpu() -> Vec<Candidate<Scan>> {
    ON_CPU.iter().map(Candidate::real).collect()
}

const fn wrong(name: &'static str, body: HostBody) -> ScanRung {
    Rung {
        number: "wrong",
        name,
        claims: Claims { operators: &[], dtypes: &[], forms: Forms::Any, compute: (0, 0), max_length: u64::MAX },
        deterministic: true,
        expect: Expect::Rejected("the case of its fault"),
        explain: Explain {
            changed: "A negative control.",
            helps: "It shows that the gate sees this fault.",
            cost: "None that is measured: a kernel that is rejected has no time.",
            source: "upsweep, negative controls",
        },
        body: Body::Cpu(body),
    }
}

/// A scan of f32 elements by a function of the elements and the output.
fn with_f32(problem: &ScanProblem, operands: ScanOperands<'_>, scan: impl Fn(&[f32], &mut [f32])) -> Result<()> {
    let start = problem.shape().offset as usize;
    scan(&operands.input.typed::<f32>()?[start..], operands.output.typed::<f32>()?);
    Ok(())
}

/// A right running sum, so that each kernel has its one fault only.
fn running_sum(x: &[f32], y: &mut [f32]) {
    let mut sum = 0.0f64;
    for (x, y) in x.iter().zip(y) {
        sum += f64::from(*x);
        *y = sum as f32;
    }
}

/// Elements and the second input, which has none where it is missing.
fn with_second<S: Element>(operands: ScanOperands<'_>, scan: impl Fn(&[S], &[f32], &mut [f32])) -> Result<()> {
    let second = operands.second.map_or(Ok(&[][..]), |second| second.typed::<S>())?;
    scan(second, operands.input.typed::<f32>()?, operands.output.typed::<f32>()?);
    Ok(())
}

/// Sums that begin anew at every element for which `is_head` holds.
fn sums_from_heads(x: &[f32], y: &mut [f32], is_head: impl Fn(usize) -> bool) {
    let mut sum = 0.0f64;
    for (at, (x, y)) in x.iter().zip(y).enumerate() {
        sum = f64::from(*x) + if is_head(at) { 0.0 } else { sum };
        *y = sum as f32;
    }
}

/// A right recurrence from a state; returns the product of the coefficients and the state behind.
fn recur(a: &[f32], b: &[f32], y: &mut [f32], mut state: f64) -> (f64, f64) {
    let mut product = 1.0;
    for ((a, b), y) in a.iter().zip(b).zip(y) {
        product *= f64::from(*a);
        state = f64::from(*a) * state + f64::from(*b);
        *y = state as f32;
    }
    (product, state)
}

static ON_CPU: [ScanRung; 15] = [
    wrong("scan_zeros", |problem, operands| with_f32(problem, operands, |_, y| y.fill(0.0))),
    wrong("missing_block_offset", |problem, operands| {
        with_f32(problem, operands, |x, y| x.chunks(1024).zip(y.chunks_mut(1024)).for_each(|(x, y)| running_sum(x, y)))
    }),
    wrong("exclusive_off_by_one", |problem, operands| with_f32(problem, operands, running_sum)),
    wrong("initial_value_ignored", |problem, operands| {
        with_f32(problem, operands, |x, y| {
            y[0] = 0.0;
            running_sum(&x[..x.len() - 1], &mut y[1..]);
        })
    }),
    wrong("reverse_ignored", |problem, operands| with_f32(problem, operands, running_sum)),
    wrong("scan_dropped_tail", |problem, operands| {
        with_f32(problem, operands, |x, y| {
            let whole = x.len() / 1024 * 1024;
            running_sum(&x[..whole], &mut y[..whole]);
        })
    }),
    wrong("nan_dropping_cummax", |problem, operands| {
        with_f32(problem, operands, |x, y| {
            let mut max = f32::NEG_INFINITY;
            x.iter().zip(y).for_each(|(x, y)| {
                max = max.max(*x);
                *y = max;
            });
        })
    }),
    wrong("scan_f16_accumulator", |_, operands| {
        let mut sum = f16::ZERO;
        let x = operands.input.typed::<f16>()?;
        operands.output.typed::<f16>()?.iter_mut().zip(x).for_each(|(y, x)| {
            sum = f16::from_f32(sum.to_f32() + x.to_f32());
            *y = sum;
        });
        Ok(())
    }),
    wrong("cumsum_in_i32", |_, operands| {
        let mut sum = 0i32;
        let x = operands.input.typed::<i32>()?;
        operands.output.typed::<i64>()?.iter_mut().zip(x).for_each(|(y, x)| {
            sum = sum.wrapping_add(*x);
            *y = sum.into();
        });
        Ok(())
    }),
    wrong("carry_crosses_rows", |problem, operands| with_f32(problem, operands, running_sum)),
    wrong("recurrence_commuted", |_, operands| {
        with_second(operands, |a: &[f32], b, y| {
            let mut carry = (1.0, 0.0);
            for ((a, b), y) in a.chunks(1024).zip(b.chunks(1024)).zip(y.chunks_mut(1024)) {
                let total = recur(a, b, y, 0.0);
                recur(a, b, y, carry.1);
                carry = (total.0 * carry.0, carry.0 * total.1 + carry.1);
            }
        })
    }),
    wrong("recurrence_coefficients_shifted", |_, operands| {
        with_second(operands, |a: &[f32], b, y| {
            let behind = recur(&a[..1], &b[..1], y, 0.0).1;
            recur(a, &b[1..], &mut y[1..], behind);
        })
    }),
    wrong("recurrence_initial_state_ignored", |_, operands| {
        with_second(operands, |a: &[f32], b, y| {
            recur(a, b, y, 0.0);
        })
    }),
    wrong("key_head_lost_at_edge", |_, operands| {
        with_second(operands, |keys: &[i32], x, y| {
            sums_from_heads(x, y, |at| !at.is_multiple_of(1024) && keys[at] != keys[at - 1]);
        })
    }),
    wrong("offsets_off_by_one", |_, operands| {
        with_second(operands, |offsets: &[u64], x, y| {
            sums_from_heads(x, y, |at| offsets.binary_search(&(at as u64).wrapping_sub(1)).is_ok());
        })
    }),
];
