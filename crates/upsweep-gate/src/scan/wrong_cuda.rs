//! The wrong scans' CUDA forms.

use crate::candidate::{Candidate, Lowering};
use upsweep::Result;
use upsweep::device::caps::CudaCaps;
use upsweep::flow::{Arg, Body, Claims, Expect, Explain, Forms, KernelFile, KernelSpec, Launch, Program, Rung, Step, Tuning};
use upsweep::ops::scan::{Scan, ScanProblem, ScanRung, Schedule};

const FILE: KernelFile = KernelFile::cuda("upsweep-gate/src/scan/wrong.cu", include_str!("wrong.cu"));

/// The lowerings here read no schedule, but a claim does: this one is of kernels that take second inputs of every sort.
const UNUSED: Schedule = Schedule::LookAhead { warps: 0, tile_bytes: 0, rows: 0, ring_bytes: 0, group: 0 };

const fn rung(name: &'static str) -> ScanRung {
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
        body: Body::Cuda { file: FILE, schedule: UNUSED },
    }
}

/// Blocks of one thread over the problem's elements.
fn launch(kernel: &str, grid: u32, args: Vec<Arg>) -> Step {
    let kernel = KernelSpec { file: FILE, expression: format!("upsweep::{kernel}") };
    Step::Launch(Launch { kernel, grid, block: 1, shared_bytes: 0, args })
}

fn operands(problem: &ScanProblem) -> Vec<Arg> {
    let bytes = problem.shape().offset * problem.dtype().size();
    vec![Arg::Input { operand: 0, bytes }, Arg::U64(problem.length()), Arg::Output { operand: 0 }]
}

fn one_thread(kernel: &str, problem: &ScanProblem) -> Result<Program> {
    let mut args = operands(problem);
    args.extend(problem.second_input().map(|_| Arg::Input { operand: 1, bytes: 0 }));
    let steps = vec![launch(kernel, 1, args)];
    Ok(Program { steps, scratch_bytes: 0, ..Program::default() })
}

/// Rungs with their lowerings; a lowering is a plain function, so each is written out by the macro.
macro_rules! forms {
    ($($name:literal => $kernel:literal),* $(,)?) => {
        &[$(({
            static RUNG: ScanRung = rung($name);
            &RUNG
        }, |problem: &ScanProblem, _: &CudaCaps, _: Tuning| one_thread($kernel, problem))),*]
    };
}

static ONE_THREAD: &[(&ScanRung, Lowering<Scan>)] = forms![
    "scan_zeros" => "wrong_scan_zeros",
    "missing_block_offset" => "wrong_running_sum<1024, true>",
    "exclusive_off_by_one" => "wrong_running_sum<0, true>",
    "initial_value_ignored" => "wrong_initial_value_ignored",
    "reverse_ignored" => "wrong_running_sum<0, true>",
    "scan_dropped_tail" => "wrong_running_sum<0, false>",
    "nan_dropping_cummax" => "wrong_nan_dropping_cummax",
    "cumsum_in_i32" => "wrong_cumsum_in_i32",
    "recurrence_commuted" => "wrong_recurrence<true, false>",
    "recurrence_coefficients_shifted" => "wrong_recurrence<false, true>",
    "recurrence_initial_state_ignored" => "wrong_recurrence<false, false>",
    "key_head_lost_at_edge" => "wrong_key_head_lost",
    "offsets_off_by_one" => "wrong_offsets_off_by_one",
];

static VALUE_BEFORE_FLAG: ScanRung = rung("value_before_flag");

fn value_before_flag(problem: &ScanProblem, _: &CudaCaps, _: Tuning) -> Result<Program> {
    let tiles = problem.length().div_ceil(1024).max(1);
    let words = Arg::Scratch(0);
    let mut args = operands(problem);
    args.push(words.clone());
    let steps =
        vec![launch("wrong_clear", 1, vec![words, Arg::U64(2 * tiles)]), launch("wrong_value_before_flag", tiles as u32, args)];
    Ok(Program { steps, scratch_bytes: 16 * tiles + upsweep::flow::SCRATCH_ALIGNMENT, ..Program::default() })
}

/// Every CUDA form.
pub(super) fn candidates() -> Vec<Candidate<Scan>> {
    let special: [(&'static ScanRung, Lowering<Scan>); 1] = [(&VALUE_BEFORE_FLAG, value_before_flag)];
    ONE_THREAD.iter().copied().chain(special).map(|(rung, lowering)| Candidate { rung, lowering: Some(lowering) }).collect()
}
