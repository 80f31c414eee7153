//! Wrong kernels that the gate must reject. Each is a rung like any other, planned, run and compared by the code that
//! judges the real ones; `verify` fails if one passes.
//!
//! The list of faults is here, with the case that must reject each. A device brings its forms of them: this module has
//! the CPU's, [`Judged::wrong_on_cuda`](crate::judged::Judged::wrong_on_cuda) has CUDA's.

use super::Case;
use crate::candidate::Candidate;
use crate::cases::Form;
use crate::families::{Family, Place, Special};
use crate::judged::Fault;
use std::sync::atomic::{AtomicU32, Ordering};
use upsweep::Result;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Body, Claims, Expect, Explain, Forms, Rung};
use upsweep::half::f16;
use upsweep::ops::reduce::{HostBody, Reduce, ReduceOperands, ReduceProblem, ReduceRung};
use upsweep::types::{Accuracy, DType, Operator};

const CPU: &[DeviceKind] = &[DeviceKind::Cpu];
const CUDA: &[DeviceKind] = &[DeviceKind::Cuda];

/// Every fault.
pub(super) fn faults() -> Vec<Fault<Reduce>> {
    use DType::{F16, F32, F64, I32};
    use Operator::{ArgMax, LogSumExp, Max, Mean, Sum};
    let nan_inside = Family::With(Special::Nan, Place::Middle);
    let fault = |name, fault, forms, case| Fault { name, fault, forms, case, runs: 2 };
    let whole = Case::whole;
    let with = |form, case| Case { form, ..case };
    vec![
        // What is dropped must be more than the bound whatever the seed: an element of about 1000, or 1023 of one sign.
        fault("dropped_last_element", "the last element is never read", CPU, whole(Sum, F32, Family::Offset, 1025)),
        fault("dropped_last_tile", "what does not fill a tile of 1024 is dropped", CPU, whole(Sum, F32, Family::Uniform, 17_407)),
        fault(
            "second_pass_one_block",
            "the second pass reads 512 of the partials (the document's own launch)",
            CPU,
            whole(Sum, F32, Family::Uniform, (1 << 20) + 13),
        ),
        fault("stale_output", "the output is never written", CPU, whole(Sum, F32, nan_inside, 1025)),
        fault("zeros", "the output is zeroed and nothing else", CPU, whole(Sum, F32, Family::Signed, 1025)),
        fault("copy_of_input", "the first element is returned", CPU, whole(Max, F32, Family::Ascending, 1025)),
        fault(
            "accumulates",
            "adds into the output without zeroing it (the document's atomic variant)",
            CPU,
            whole(Sum, F32, Family::Signed, 257),
        ),
        fault("f16_accumulator", "the sum runs in the storage type", CPU, whole(Sum, F16, Family::Offset, 33)),
        fault("nan_dropping_max", "comparisons lose a NaN", CPU, whole(Max, F32, nan_inside, 1025)),
        fault("last_tie", "argmax returns the last of equal elements", CPU, whole(ArgMax, F32, Family::Ties, 257)),
        fault("finite_sentinel", "max starts from the least finite number", CPU, whole(Max, F32, Family::Identity, 33)),
        fault("positive_seed", "max starts from the least positive number", CPU, whole(Max, F32, Family::Ascending, 33)),
        fault(
            "narrow_index",
            "the index passes through a type too narrow for it",
            CPU,
            whole(ArgMax, F32, Family::Growing, 70_001),
        ),
        fault(
            "sequential_f32",
            "one f32 accumulator over everything, which loses every fraction",
            CPU,
            whole(Sum, F32, Family::OnesLike, (1 << 20) + 13),
        ),
        fault("sum_in_i32", "a sum of i32 wraps at 32 bits", CPU, whole(Sum, I32, Family::Uniform, 1025)),
        fault(
            "ignored_offset",
            "elements are read from the base pointer, not from the view's start",
            CPU,
            with(Form::Slice, whole(Sum, F32, Family::Signed, 257)),
        ),
        fault(
            "ignored_stride",
            "padded rows are read as if they were packed",
            CPU,
            with(Form::PaddedRows, whole(Sum, F32, Family::Signed, 33)),
        ),
        fault("through_integers", "elements pass through an integer", CPU, whole(Sum, F32, Family::Fractions, 257)),
        fault("mean_rounds_first", "the mean is rounded before it is divided", CPU, whole(Mean, F16, Family::Offset, 257)),
        fault(
            "unshifted_logsumexp",
            "exponentials are taken without subtracting the maximum",
            CPU,
            whole(LogSumExp, F32, Family::Offset, 33),
        ),
        fault(
            "not_compensated",
            "a compensated sum runs in plain f64",
            CPU,
            Case { accuracy: Accuracy::Compensated, ..whole(Sum, F64, Family::Alternating, 4096) },
        ),
        Fault {
            runs: 20,
            ..fault(
                "claims_determinism",
                "the last bit changes from run to run, within the bound, though the rung claims it does not",
                CPU,
                whole(Sum, F32, Family::Signed, 4097),
            )
        },
        fault(
            "missing_barrier",
            "a barrier is missing, and one warp is delayed so that the wrong order is certain",
            CUDA,
            whole(Sum, F32, Family::Signed, (1 << 20) + 13),
        ),
    ]
}

/// The CPU's forms.
pub(super) fn on_cpu() -> Vec<Candidate<Reduce>> {
    ON_CPU.iter().map(Candidate::real).collect()
}

const fn wrong(name: &'static str, body: HostBody) -> ReduceRung {
    Rung {
        number: "wrong",
        name,
        // Claims are wide: a wrong kernel may not hide behind them. Its case is one that its body can run.
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

static ON_CPU: [ReduceRung; 22] = [
    wrong("dropped_last_element", |problem, operands| with_f32(problem, operands, |x| tree(&x[..x.len() - 1]))),
    wrong("dropped_last_tile", |problem, operands| with_f32(problem, operands, |x| tree(&x[..x.len() / 1024 * 1024]))),
    wrong("second_pass_one_block", |problem, operands| {
        with_f32(problem, operands, |x| {
            let partials: Vec<f32> = x.chunks(512).map(tree).collect();
            tree(&partials[..partials.len().min(512)])
        })
    }),
    wrong("stale_output", |_, _| Ok(())),
    wrong("zeros", |problem, operands| with_f32(problem, operands, |_| 0.0)),
    wrong("copy_of_input", |problem, operands| with_f32(problem, operands, |x| x[0])),
    wrong("accumulates", |problem, operands| {
        let start = problem.shape().offset as usize;
        let sum = tree(&operands.input.typed::<f32>()?[start..]);
        operands.output.typed::<f32>()?.iter_mut().for_each(|y| *y += sum);
        Ok(())
    }),
    wrong("f16_accumulator", |_, operands| {
        let sum = operands.input.typed::<f16>()?.iter().fold(f16::ZERO, |a, x| f16::from_f32(a.to_f32() + x.to_f32()));
        operands.output.typed::<f16>()?.fill(sum);
        Ok(())
    }),
    wrong("nan_dropping_max", |problem, operands| {
        with_f32(problem, operands, |x| x.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    }),
    wrong("last_tie", |_, operands| {
        let x = operands.input.typed::<f32>()?;
        let last = (0..x.len()).fold(0, |best, i| if x[i] >= x[best] { i } else { best });
        operands.output.typed::<u64>()?.fill(last as u64);
        Ok(())
    }),
    wrong("finite_sentinel", |problem, operands| with_f32(problem, operands, |x| x.iter().copied().fold(f32::MIN, f32::max))),
    wrong("positive_seed", |problem, operands| {
        with_f32(problem, operands, |x| x.iter().copied().fold(f32::MIN_POSITIVE, f32::max))
    }),
    wrong("narrow_index", |_, operands| {
        let x = operands.input.typed::<f32>()?;
        let first = (0..x.len()).fold(0, |best, i| if x[i] > x[best] { i } else { best });
        operands.output.typed::<u64>()?.fill((first as u16).into());
        Ok(())
    }),
    wrong("sequential_f32", |problem, operands| with_f32(problem, operands, |x| x.iter().sum())),
    wrong("sum_in_i32", |_, operands| {
        let sum = operands.input.typed::<i32>()?.iter().fold(0i32, |a, x| a.wrapping_add(*x));
        operands.output.typed::<i64>()?.fill(sum.into());
        Ok(())
    }),
    wrong("ignored_offset", |problem, operands| {
        let length = problem.shape().length as usize;
        let sum = tree(&operands.input.typed::<f32>()?[..length]);
        operands.output.typed::<f32>()?.fill(sum);
        Ok(())
    }),
    wrong("ignored_stride", |problem, operands| {
        let shape = problem.shape();
        let x = &operands.input.typed::<f32>()?[shape.offset as usize..];
        let rows = x.chunks(shape.length as usize);
        operands.output.typed::<f32>()?.iter_mut().zip(rows).for_each(|(y, row)| *y = tree(row));
        Ok(())
    }),
    wrong("through_integers", |problem, operands| {
        with_f32(problem, operands, |x| tree(&x.iter().map(|x| *x as i32 as f32).collect::<Vec<_>>()))
    }),
    wrong("mean_rounds_first", |_, operands| {
        let x = operands.input.typed::<f16>()?;
        let sum = f16::from_f32(tree(&x.iter().map(|x| x.to_f32()).collect::<Vec<_>>()));
        operands.output.typed::<f16>()?.fill(f16::from_f32(sum.to_f32() / x.len() as f32));
        Ok(())
    }),
    wrong("unshifted_logsumexp", |problem, operands| {
        with_f32(problem, operands, |x| x.iter().map(|x| x.exp()).sum::<f32>().ln())
    }),
    wrong("not_compensated", |_, operands| {
        let sum: f64 = operands.input.typed::<f64>()?.iter().sum();
        operands.output.typed::<f64>()?.fill(sum);
        Ok(())
    }),
    wrong("claims_determinism", |problem, operands| {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let late = RUNS.fetch_add(1, Ordering::Relaxed) % 7 == 6;
        with_f32(problem, operands, |x| {
            let sum = tree(x);
            if late { f32::from_bits(sum.to_bits() ^ 1) } else { sum }
        })
    }),
];

/// One f32 from the elements of a contiguous array.
fn with_f32(problem: &ReduceProblem, operands: ReduceOperands<'_>, f: impl Fn(&[f32]) -> f32) -> Result<()> {
    let start = problem.shape().offset as usize;
    let value = f(&operands.input.typed::<f32>()?[start..]);
    operands.output.typed::<f32>()?.fill(value);
    Ok(())
}

/// A right sum, so that each wrong kernel has one fault and no other.
fn tree(x: &[f32]) -> f32 {
    if x.len() <= 32 { x.iter().sum() } else { tree(&x[..x.len() / 2]) + tree(&x[x.len() / 2..]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn forms_and_faults_belong_together() {
        let faults = faults();
        let names: HashSet<&str> = faults.iter().map(|f| f.name).collect();
        assert_eq!(names.len(), faults.len());
        let forms: HashSet<&str> = ON_CPU.iter().map(|r| r.name).collect();
        let required: HashSet<&str> = faults.iter().filter(|f| f.forms.contains(&DeviceKind::Cpu)).map(|f| f.name).collect();
        assert_eq!(forms, required);
        assert!(faults.len() >= 12 && forms.len() >= 8);
    }
}
