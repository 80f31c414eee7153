//! The wrong kernels' CUDA forms: the same faults as on the CPU, and those that only a GPU can have.

use crate::candidate::{Candidate, Lowering};
use upsweep::Result;
use upsweep::device::caps::{CudaCaps, DeviceKind};
use upsweep::flow::{Arg, Body, Claims, Expect, Explain, Forms, KernelFile, KernelSpec, Launch, Program, Rung, Step, Tuning};
use upsweep::ops::reduce::{Reduce, ReduceProblem, ReduceRung, Schedule};

const FILE: KernelFile = KernelFile::cuda("upsweep-gate/src/reduce/wrong.cu", include_str!("wrong.cu"));

const fn rung(name: &'static str) -> ReduceRung {
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

/// One block of the kernel `wrong_NAME`, on the operator of the problem.
fn one_block(name: &str, problem: &ReduceProblem) -> Result<Program> {
    let op = format!("upsweep::{}<{}>", problem.operator().row().c_name, problem.dtype().row().c_name);
    let shape = problem.shape();
    let launch = Launch {
        kernel: KernelSpec { file: FILE, expression: format!("upsweep::wrong_{name}<{op}>") },
        grid: 1,
        block: 256,
        shared_bytes: 0,
        args: vec![
            Arg::Input { operand: 0, bytes: shape.offset * problem.dtype().size() },
            Arg::U64(shape.length),
            Arg::Output { operand: 0 },
        ],
    };
    Ok(Program { steps: vec![Step::Launch(launch)], scratch_bytes: 0, ..Program::default() })
}

/// Rungs with their lowerings; a lowering is a plain function, so each is written out by the macro.
macro_rules! forms {
    ($($name:literal),* $(,)?) => {
        &[$(({
            static RUNG: ReduceRung = rung($name);
            &RUNG
        }, |problem: &ReduceProblem, _: &CudaCaps, _: Tuning| one_block($name, problem))),*]
    };
}

static ONE_BLOCK: &[(&ReduceRung, Lowering<Reduce>)] = forms![
    "dropped_last_element",
    "dropped_last_tile",
    "stale_output",
    "zeros",
    "copy_of_input",
    "accumulates",
    "f16_accumulator",
    "nan_dropping_max",
    "last_tie",
    "finite_sentinel",
    "positive_seed",
    "narrow_index",
    "sum_in_i32",
    "missing_barrier",
];

static SECOND_PASS: ReduceRung = rung("second_pass_one_block");
static IGNORED_OFFSET: ReduceRung = rung("ignored_offset");

/// The document's own launch: one block over the partials, whose kernel reads two items a thread.
fn second_pass_one_block(problem: &ReduceProblem, caps: &CudaCaps, _: Tuning) -> Result<Program> {
    let right = Rung::<Reduce>::find(DeviceKind::Cuda, "multi_pass")?;
    let Body::Cuda { schedule, .. } = &right.body else { return one_block("stale_output", problem) };
    let mut program = <Reduce as upsweep::flow::Op>::lower(right, schedule, problem, caps, Tuning { block: 256 })?;
    program.steps.truncate(2);
    if let Some(Step::Launch(second)) = program.steps.last_mut() {
        second.grid = 1;
    }
    Ok(program)
}

/// Elements are read from the base pointer, not from the view's start.
fn ignored_offset(problem: &ReduceProblem, _: &CudaCaps, _: Tuning) -> Result<Program> {
    let mut program = one_block("dropped_last_element", problem)?;
    let Some(Step::Launch(launch)) = program.steps.first_mut() else { return Ok(program) };
    launch.args[0] = Arg::Input { operand: 0, bytes: 0 };
    // The kernel drops an element of what it is told, so tell it one more: only the offset is wrong.
    launch.args[1] = Arg::U64(problem.shape().length + 1);
    Ok(program)
}

/// Every CUDA form.
pub(super) fn candidates() -> Vec<Candidate<Reduce>> {
    let special: [(&'static ReduceRung, Lowering<Reduce>); 2] =
        [(&SECOND_PASS, second_pass_one_block), (&IGNORED_OFFSET, ignored_offset)];
    ONE_BLOCK.iter().copied().chain(special).map(|(rung, lowering)| Candidate { rung, lowering: Some(lowering) }).collect()
}
