//! The wrong softmaxes' CUDA forms.

use crate::candidate::{Candidate, Lowering};
use upsweep::Result;
use upsweep::device::caps::CudaCaps;
use upsweep::flow::{Arg, Body, Claims, Expect, Explain, Forms, KernelFile, KernelSpec, Launch, Program, Rung, Step, Tuning};
use upsweep::ops::softmax::{Schedule, Softmax, SoftmaxProblem, SoftmaxRung};

const FILE: KernelFile = KernelFile::cuda("upsweep-gate/src/softmax/wrong.cu", include_str!("wrong.cu"));

const fn rung(name: &'static str) -> SoftmaxRung {
    Rung {
        number: "wrong",
        name,
        claims: Claims { operators: &[], dtypes: &[], forms: Forms::Any, compute: (7, 5), max_length: u64::MAX },
        deterministic: true,
        expect: Expect::Rejected("the case of its fault"),
        explain: Explain {
            changed: "A negative control.",
            helps: "It shows that the gate sees this fault.",
            cost: "None that is measured: a kernel that is rejected has no time.",
            source: "upsweep, negative controls",
        },
        body: Body::Cuda { file: FILE, schedule: Schedule::Axes },
    }
}

/// One thread a row of the kernel with a fault.
fn one_thread_a_row(fault: &str, problem: &SoftmaxProblem) -> Result<Program> {
    let launch = Launch {
        kernel: KernelSpec { file: FILE, expression: format!("upsweep::wrong_softmax<upsweep::{fault}>") },
        grid: problem.rows() as u32,
        block: 1,
        shared_bytes: 0,
        args: vec![Arg::Input { operand: 0, bytes: 0 }, Arg::U64(problem.cols()), Arg::Output { operand: 0 }],
    };
    Ok(Program { steps: vec![Step::Launch(launch)], scratch_bytes: 0, ..Program::default() })
}

/// Rungs with their lowerings; a lowering is a plain function, so each is written out by the macro.
macro_rules! forms {
    ($($name:literal => $fault:literal),* $(,)?) => {
        &[$(({
            static RUNG: SoftmaxRung = rung($name);
            &RUNG
        }, |problem: &SoftmaxProblem, _: &CudaCaps, _: Tuning| one_thread_a_row($fault, problem))),*]
    };
}

static FORMS: &[(&SoftmaxRung, Lowering<Softmax>)] = forms![
    "softmax_zeros" => "ZEROS",
    "unshifted" => "UNSHIFTED",
    "unguarded_merge" => "UNGUARDED",
    "max_reset_per_tile" => "RESET",
    "row_skipped_when_short" => "SHORT_ROWS",
    "finite_floor" => "FINITE_FLOOR",
    "tail_not_normalised" => "TAIL",
    "masked_zero_ignored" => "MASKED",
    "log_of_softmax" => "LOG_OF_SOFTMAX",
    "logsumexp_without_maximum" => "NO_MAXIMUM",
];

/// Every CUDA form.
pub(super) fn candidates() -> Vec<Candidate<Softmax>> {
    FORMS.iter().map(|(rung, lowering)| Candidate { rung, lowering: Some(*lowering) }).collect()
}
