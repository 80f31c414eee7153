//! The faults of softmaxes, each with the case that must reject it, and the CPU's forms.

use super::Case;
use crate::candidate::Candidate;
use crate::families::{Family, Place, Special};
use crate::judged::Fault;
use upsweep::Result;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Body, Claims, Expect, Explain, Forms, Rung};
use upsweep::ops::softmax::{HostBody, Masked, Softmax, SoftmaxKind, SoftmaxOperands, SoftmaxProblem, SoftmaxRung};
use upsweep::types::DType;

const BOTH: &[DeviceKind] = &[DeviceKind::Cpu, DeviceKind::Cuda];
const CPU: &[DeviceKind] = &[DeviceKind::Cpu];

/// Every fault.
pub(super) fn faults() -> Vec<Fault<Softmax>> {
    use DType::F32;
    use SoftmaxKind::{LogSoftmax, LogSumExp, Softmax as Probabilities};
    let fault = |name, fault, forms, case| Fault { name, fault, forms, case, runs: 2 };
    let rows = Case::rows;
    let masked_at_start = Family::With(Special::NegativeInfinity, Place::Start);
    vec![
        fault("softmax_zeros", "the output is zeroed and nothing else", BOTH, rows(Probabilities, F32, Family::Signed, 257)),
        fault(
            "unshifted",
            "exponentials are taken without subtracting the maximum",
            BOTH,
            rows(Probabilities, F32, Family::LargeLogits, 257),
        ),
        fault(
            "unguarded_merge",
            "two empty partial states are merged: -inf - -inf",
            BOTH,
            rows(Probabilities, F32, masked_at_start, 257),
        ),
        fault(
            "max_reset_per_tile",
            "the maximum is found anew in each tile of 128 and the sum is not rescaled",
            BOTH,
            rows(Probabilities, F32, Family::Growing, 1025),
        ),
        fault(
            "row_skipped_when_short",
            "a row shorter than a block of 256 is not written",
            BOTH,
            rows(Probabilities, F32, Family::Signed, 33),
        ),
        fault(
            "finite_floor",
            "the maximum starts from -10000 instead of -inf",
            BOTH,
            rows(Probabilities, F32, Family::DeepLogits, 257),
        ),
        fault(
            "tail_not_normalised",
            "what does not fill a tile of 128 is left out of the sum",
            BOTH,
            rows(Probabilities, F32, Family::Signed, 257),
        ),
        fault(
            "nan_dropping_softmax",
            "the maximum loses a NaN, and the row is finite",
            CPU,
            rows(Probabilities, F32, Family::With(Special::Nan, Place::Middle), 257),
        ),
        fault(
            "masked_zero_ignored",
            "rows of only -inf give NaN though zeros were asked for",
            BOTH,
            Case { masked: Masked::Zero, ..rows(Probabilities, F32, Family::Identity, 257) },
        ),
        fault(
            "log_of_softmax",
            "the logarithm is taken of a probability that underflowed",
            BOTH,
            rows(LogSoftmax, F32, Family::WideLogits, 257),
        ),
        fault("logsumexp_without_maximum", "the maximum is not added back", BOTH, rows(LogSumExp, F32, Family::Offset, 257)),
    ]
}

/// The CPU's forms.
pub(super) fn on_cpu() -> Vec<Candidate<Softmax>> {
    ON_CPU.iter().map(Candidate::real).collect()
}

const fn wrong(name: &'static str, body: HostBody) -> SoftmaxRung {
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

/// Packed rows of f32 by a function of a row's elements and its outputs (one for logsumexp).
fn rows_of(problem: &SoftmaxProblem, operands: SoftmaxOperands<'_>, row: impl Fn(&[f32], &mut [f32])) -> Result<()> {
    let (cols, output) = (problem.cols() as usize, operands.output.typed::<f32>()?);
    let out = output.len() / problem.rows() as usize;
    let input = operands.input.typed::<f32>()?.chunks(cols);
    input.zip(output.chunks_mut(out)).for_each(|(x, y)| row(x, y));
    Ok(())
}

fn maximum(x: &[f32]) -> f32 {
    x.iter().copied().fold(f32::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b })
}

/// A right softmax over a maximum, with a sum over a part of the row.
fn over(x: &[f32], y: &mut [f32], max: f32, summed: usize) {
    let sum: f64 = x[..summed].iter().map(|x| f64::from((x - max).exp())).sum();
    x.iter().zip(y).for_each(|(x, y)| *y = (f64::from((x - max).exp()) / sum) as f32);
}

static ON_CPU: [SoftmaxRung; 11] = [
    wrong("softmax_zeros", |problem, operands| rows_of(problem, operands, |_, y| y.fill(0.0))),
    wrong("unshifted", |problem, operands| rows_of(problem, operands, |x, y| over(x, y, 0.0, x.len()))),
    wrong("unguarded_merge", |problem, operands| {
        rows_of(problem, operands, |x, y| {
            let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
            for x in x {
                let next = max.max(*x);
                sum = sum * (max - next).exp() + (x - next).exp();
                max = next;
            }
            x.iter().zip(y).for_each(|(x, y)| *y = (x - max).exp() / sum);
        })
    }),
    wrong("max_reset_per_tile", |problem, operands| {
        rows_of(problem, operands, |x, y| {
            let sum: f32 = x.chunks(128).map(|tile| tile.iter().map(|x| (x - maximum(tile)).exp()).sum::<f32>()).sum();
            let max = maximum(x);
            x.iter().zip(y).for_each(|(x, y)| *y = (x - max).exp() / sum);
        })
    }),
    wrong("row_skipped_when_short", |problem, operands| {
        rows_of(problem, operands, |x, y| {
            if x.len() >= 256 {
                over(x, y, maximum(x), x.len());
            }
        })
    }),
    wrong("finite_floor", |problem, operands| rows_of(problem, operands, |x, y| over(x, y, maximum(x).max(-1e4), x.len()))),
    wrong("tail_not_normalised", |problem, operands| {
        rows_of(problem, operands, |x, y| over(x, y, maximum(x), x.len() / 128 * 128))
    }),
    wrong("nan_dropping_softmax", |problem, operands| {
        rows_of(problem, operands, |x, y| {
            let numbers: Vec<f32> = x.iter().map(|x| if x.is_nan() { f32::NEG_INFINITY } else { *x }).collect();
            over(&numbers, y, maximum(&numbers), numbers.len());
        })
    }),
    wrong("masked_zero_ignored", |problem, operands| rows_of(problem, operands, |x, y| over(x, y, maximum(x), x.len()))),
    wrong("log_of_softmax", |problem, operands| {
        rows_of(problem, operands, |x, y| {
            over(x, y, maximum(x), x.len());
            y.iter_mut().for_each(|y| *y = y.ln());
        })
    }),
    wrong("logsumexp_without_maximum", |problem, operands| {
        rows_of(problem, operands, |x, y| y[0] = x.iter().map(|v| (v - maximum(x)).exp()).sum::<f32>().ln())
    }),
];
