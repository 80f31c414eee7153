//! Planted faults: each kernel of `faults.cu` has one, at the line that says so, and none without its flag.

mod support;

use support::Bytes;
use upsweep::device::caps::DeviceKind;
use upsweep::flow::{Arg, ControlBlock, KernelFile, KernelSpec, Launch, Plan, Program, Rung, Step};
use upsweep::ops::softmax::{Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::DType;
use upsweep_sim::{FaultKind, Report, Sim};

const FILE: KernelFile = KernelFile::cuda("upsweep-sim/tests/faults.cu", include_str!("faults.cu"));

/// A launch over 2048 elements, as a plan of an operation with as many outputs.
fn plan(kernel: &str, more: &[Arg]) -> Plan<Softmax> {
    let mut args = vec![Arg::Input { operand: 0, bytes: 0 }, Arg::Output { operand: 0 }];
    args.extend_from_slice(more);
    let kernel = KernelSpec { file: FILE, expression: format!("upsweep::{kernel}") };
    let launch = Launch { kernel, grid: 8, block: 256, shared_bytes: 0, args };
    let program = Program { steps: vec![Step::Launch(launch)], control: ControlBlock { words: 4 }, ..Program::default() };
    let problem = SoftmaxProblem::whole(SoftmaxKind::Softmax, DType::F32, 2048).unwrap();
    let rung = Rung::<Softmax>::find(DeviceKind::Cuda, "three_pass").unwrap();
    Plan { problem, rung, why: "a planted fault".into(), program: Some(program) }
}

fn report(sim: &Sim, kernel: &str, more: &[Arg]) -> Report {
    let values: Vec<f32> = (0..2048).map(|i| i as f32).collect();
    support::run::<Softmax>(sim, &plan(kernel, more), &mut Bytes::of(&values)).1
}

/// The line of a kernel that its comment marks.
fn marked(kernel: &str, kind: FaultKind) -> u32 {
    let lines = (1..).zip(FILE.text.lines()).skip_while(|(_, line)| !line.contains(&format!(" {kernel}(")));
    let mark = format!("// fault: {}", kind.name());
    lines.clone().find(|(_, line)| line.contains(&mark)).unwrap_or_else(|| panic!("{kernel} has no line marked `{mark}`")).0
}

#[test]
fn every_planted_fault_is_found_at_its_line_and_nothing_else_is() {
    use FaultKind::*;
    let sim = Sim::new();
    let planted: &[(&str, FaultKind, &[Arg])] = &[
        ("shared_race", SharedRace, &[]),
        ("warp_race", SharedRace, &[]),
        ("global_race_in_block", GlobalRace, &[]),
        ("global_race_of_blocks", GlobalRace, &[]),
        ("handed_over", GlobalRace, &[Arg::Control]),
        ("out_of_bounds", OutOfBounds, &[]),
        ("out_of_bounds_store", OutOfBounds, &[]),
        ("stored_input", OutOfBounds, &[]),
        ("uninitialised_shared", Uninitialised, &[]),
        ("uninitialised_output", Uninitialised, &[]),
        ("unwritten_output", Unwritten, &[]),
        ("barrier_divergence", BarrierDivergence, &[]),
        ("early_return", EarlyReturn, &[]),
        ("absent_lane", AbsentLane, &[]),
        ("deadlock_of_warp", Deadlock, &[]),
        ("endless_spin", EndlessSpin, &[Arg::Control]),
        ("endless_loop", EndlessSpin, &[Arg::U64(0)]),
        ("misaligned", Misaligned, &[]),
    ];
    let all = |flag: bool| planted.iter().map(move |(kernel, _, more)| plan(&format!("{kernel}<{flag}>"), more));
    let programs: Vec<Program> = all(true).chain(all(false)).filter_map(|plan| plan.program).collect();
    sim.precompile(&programs).unwrap();
    let mut wrong = vec![];
    for (kernel, kind, more) in planted {
        let faulty = report(&sim, &format!("{kernel}<true>"), more);
        faulty.faults().for_each(|fault| println!("{fault}"));
        let line = if *kind == Unwritten { 0 } else { marked(kernel, *kind) };
        let found = |fault: &upsweep_sim::Fault| {
            let place = &fault.place.line;
            fault.kind == *kind && place.line == line && place.file.ends_with("faults.cu")
        };
        if !faulty.faults().any(found) {
            wrong.push(format!("{kernel}: no {} at line {line}", kind.name()));
        }
        let right = report(&sim, &format!("{kernel}<false>"), more);
        wrong.extend(right.faults().map(|fault| format!("{kernel} without its fault: {fault}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let kinds: Vec<FaultKind> = planted.iter().map(|(_, kind, _)| *kind).collect();
    assert!(FaultKind::ALL.iter().all(|kind| kinds.contains(kind)), "every kind has a kernel");
}

#[test]
fn races_name_both_threads_and_the_variable() {
    let faulty = report(&Sim::new(), "shared_race<true>", &[]);
    let race = faulty.faults().find(|fault| fault.kind == FaultKind::SharedRace).unwrap();
    let text = race.to_string();
    assert!(text.contains("`tree`") && text.contains("nothing orders the two"), "{text}");
    let (place, other, _) = race.other.clone().unwrap();
    assert!(place != race.place && other.thread / 32 != race.thread.thread / 32 && other.block == race.thread.block, "{text}");
}
