//! Every barrier of every simulated kernel is needed, and the simulator knows it: deleted, one at a time, each is reported.
//! The unchanged kernels give no report on the same problems.

mod support;

use std::collections::BTreeMap;
use support::{Bytes, run_with};
use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::flow::{Arg, KernelFile, KernelSpec, Launch, Op, Plan, Problem, Program, Step, Tuning};
use upsweep::kernels::HEADERS;
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::ops::scan::{Scan, ScanProblem, ScanSpec};
use upsweep::ops::softmax::{Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::{DType, Layout, Operator};
use upsweep_sim::{Line, Report, Sim};

/// What is deleted.
const ORDERS: [&str; 3] = ["__syncthreads();", "__syncwarp();", "__threadfence();"];

/// Lines whose order is not needed for what the simulator can see, each with the reason.
const EXCEPTIONS: &[(&str, u32, &str)] = &[
    ("ops/scan/cuda/01_blelloch.cu", 24, UP_SWEEP),
    ("ops/scan/cuda/02_blelloch_padded.cu", 26, UP_SWEEP),
    ("ops/scan/cuda/04_three_phase.cu", 44, "each lane writes the word that it alone has read"),
    ("ops/softmax/cuda/01_three_pass.cu", 30, NEXT_ROW),
    ("ops/softmax/cuda/02_online.cu", 40, NEXT_ROW),
    ("ops/softmax/cuda/03_online_vector.cu", 52, NEXT_ROW),
];
const NEXT_ROW: &str = "the next row's first reduction has a barrier of its own before what this row read is written again";
const UP_SWEEP: &str =
    "the last step of the up-sweep is thread 0's alone, which goes on, and the down-sweep begins with a barrier";

/// A plan, ready to be run on any simulator.
struct Subject {
    name: String,
    program: Program,
    run: Box<dyn Fn(&Sim) -> Report>,
}

fn bytes_of(dtype: DType, len: u64) -> Bytes {
    match dtype {
        // Rising from 0, as offsets and keys may be.
        DType::U64 => Bytes::of(&(0..len).map(|i| i * 100).collect::<Vec<u64>>()),
        DType::I32 => Bytes::of(&(0..len).map(|i| (i / 7) as i32).collect::<Vec<i32>>()),
        _ => Bytes::of(&(0..len).map(|i| (i % 13) as f32).collect::<Vec<f32>>()),
    }
}

/// The plans of every simulated rung for a problem.
fn subjects<O: Op>(sim: &Sim, problem: &O::Problem, into: &mut Vec<Subject>) {
    for rung in O::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda) {
        let caps = Caps::Cuda(sim.caps().clone());
        let Ok(plan) = Plan::<O>::with_rung(problem, &caps, rung, Tuning::default(), "a test".into()) else { continue };
        let Some(program) = plan.program.clone() else { continue };
        let name = format!("{} for {problem}", rung.id());
        let run = move |sim: &Sim| {
            let input = plan.problem.input();
            let second = plan.problem.second_input();
            let mut second = second.map(|operand| bytes_of(operand.dtype, operand.len));
            run_with(sim, &plan, &mut bytes_of(input.dtype, input.len), second.as_mut()).1
        };
        into.push(Subject { name, program, run: Box::new(run) });
    }
}

/// The same with few blocks, which then take several rows each: of kernels that stride over what is left.
fn with_few_blocks(subjects: &mut Vec<Subject>, sim: &Sim, problem: &SoftmaxProblem) {
    for name in ["unshifted", "three_pass", "online", "online_vector"] {
        let mut plan = support::plan_of::<Softmax>(sim, problem, name);
        let Some(program) = &mut plan.program else { continue };
        program.steps.iter_mut().for_each(|Step::Launch(launch)| launch.grid = launch.grid.min(8));
        let (name, program) = (format!("{} with few blocks", plan.rung.id()), program.clone());
        let run = move |sim: &Sim| {
            let input = plan.problem.input();
            run_with(sim, &plan, &mut bytes_of(input.dtype, input.len), None).1
        };
        subjects.push(Subject { name, program, run: Box::new(run) });
    }
}

/// The spine of a scan by three phases over more totals than it takes in one round, which whole problems have from 2^24
/// elements on: two launches of our own, the first of which makes the totals.
fn long_spine(sim: &Sim) -> Subject {
    const TOTALS: KernelFile = KernelFile::cuda(
        "upsweep-sim/tests/totals.cu",
        "namespace upsweep {\nUPSWEEP_KERNEL totals(float* to, u64 n) {\n  for (u64 i = threadIdx.x; i < n; i += blockDim.x) to[i] = 1.0f;\n}\n}\n",
    );
    const COUNT: u64 = 5000;
    let problem = SoftmaxProblem::whole(SoftmaxKind::Softmax, DType::F32, COUNT).unwrap();
    let scan = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::F32, 1 << 20).unwrap();
    let phases = support::plan_of::<Scan>(sim, &scan, "three_phase").program.unwrap().steps;
    let Step::Launch(spine) = &phases[1];
    let args = vec![Arg::Output { operand: 0 }, Arg::U64(COUNT)];
    let kernel = KernelSpec { file: TOTALS, expression: "upsweep::totals".into() };
    let first = Launch { kernel, grid: 1, block: 256, shared_bytes: 0, args: args.clone() };
    let steps = vec![Step::Launch(first), Step::Launch(Launch { args, ..spine.clone() })];
    let mut plan = support::plan_of::<Softmax>(sim, &problem, "three_pass");
    let program = Program { steps, ..Program::default() };
    plan.program = Some(program.clone());
    let run = move |sim: &Sim| run_with(sim, &plan, &mut bytes_of(DType::F32, COUNT), None).1;
    Subject { name: "a long spine".into(), program, run: Box::new(run) }
}

fn all_subjects(sim: &Sim) -> Vec<Subject> {
    let mut all = vec![];
    let layout = |shape: &[u64]| Layout::contiguous(shape).unwrap();
    subjects::<Reduce>(sim, &ReduceProblem::whole(Operator::Sum, DType::F32, 70_001).unwrap(), &mut all);
    for shape in [[400, 50], [600, 1100]] {
        let problem = ReduceProblem::new(Operator::Sum, DType::F32, &layout(&shape), Some(&[-1])).unwrap();
        subjects::<Reduce>(sim, &problem, &mut all);
    }
    let sum = ScanSpec::inclusive(Operator::Sum);
    for spec in [sum, sum.by_key(DType::I32), sum.by_offsets(9)] {
        subjects::<Scan>(sim, &ScanProblem::whole(spec, DType::F32, 20_001).unwrap(), &mut all);
    }
    for (shape, axis) in [([3, 33], 1), ([3, 5000], 1), ([3, 40_000], 1), ([700, 256], 0), ([5000, 12], 0)] {
        subjects::<Scan>(sim, &ScanProblem::new(sum, DType::F32, &layout(&shape), Some(axis)).unwrap(), &mut all);
    }
    for (shape, axis) in [([300, 1000], 1), ([2, 40_000], 1), ([300, 40], 0)] {
        let problem = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &layout(&shape), axis).unwrap();
        subjects::<Softmax>(sim, &problem, &mut all);
    }
    let problem = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &layout(&[40, 300]), 1).unwrap();
    with_few_blocks(&mut all, sim, &problem);
    all.push(long_spine(sim));
    all
}

/// Every text that a program is made of, by path.
fn texts<'a>(subjects: impl Iterator<Item = &'a Subject>) -> BTreeMap<&'static str, &'static str> {
    let files = subjects.flat_map(|subject| subject.program.steps.iter()).map(|step| {
        let Step::Launch(launch) = step;
        (launch.kernel.file.path, launch.kernel.file.text)
    });
    files.chain(HEADERS).collect()
}

#[test]
fn a_deleted_barrier_is_reported_and_the_kernels_as_they_are_have_no_fault() {
    let sim = Sim::new();
    let subjects = all_subjects(&sim);
    sim.precompile(subjects.iter().map(|subject| &subject.program)).unwrap();
    // Which plans come by which line.
    let mut reached: BTreeMap<Line, Vec<usize>> = BTreeMap::new();
    for (number, subject) in subjects.iter().enumerate() {
        let report = (subject.run)(&sim);
        let faults: Vec<String> = report.faults().map(ToString::to_string).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", subject.name);
        for (place, _) in report.launches.iter().flat_map(|launch| launch.counts.keys()) {
            let line = place.within.as_ref().unwrap_or(&place.line);
            let plans = reached.entry(line.clone()).or_default();
            if plans.last() != Some(&number) {
                plans.push(number);
            }
        }
    }
    let (mut deleted, mut silent, mut excused) = (0, vec![], vec![]);
    for (path, text) in texts(subjects.iter()) {
        for (number, line) in (1..).zip(text.lines()) {
            let code = line.split("//").next().unwrap_or_default();
            let Some(order) = ORDERS.iter().find(|order| code.contains(**order)) else { continue };
            let at = Line { file: path.to_string(), line: number };
            let Some(plans) = reached.get(&at) else {
                // Bulk copies are not simulated, nor what only their kernels call.
                if !text_is_simulated(text, number) {
                    continue;
                }
                silent.push(format!("{at}: no plan comes by: {}", line.trim()));
                continue;
            };
            let mutant: String = (1..)
                .zip(text.lines())
                .map(|(n, l)| if n == number { l.replacen(order, ";", 1) } else { l.to_string() } + "\n")
                .collect();
            let mutated = sim.replacing(path, &mutant);
            deleted += 1;
            let found = plans.iter().find_map(|plan| {
                let report = (subjects[*plan].run)(&mutated);
                report.faults().next().map(ToString::to_string)
            });
            let exception = EXCEPTIONS.iter().find(|(file, excused, _)| (*file, *excused) == (path, number));
            match (found, exception) {
                (Some(fault), None) => println!("{at}: {fault}"),
                (None, Some((.., why))) => excused.push(format!("{at}: {why}")),
                (None, None) => silent.push(format!("{at}: {}", line.trim())),
                (Some(fault), Some(_)) => silent.push(format!("{at}: excused, but reported: {fault}")),
            }
        }
    }
    println!("{deleted} deleted, {} excused: {excused:#?}", excused.len());
    assert!(deleted > 20, "{deleted}");
    assert!(silent.is_empty(), "{silent:#?}");
}

/// Whether a line of the layer is outside of its part for compute capability 9.0.
fn text_is_simulated(text: &str, number: u32) -> bool {
    let before = text.lines().take(number as usize);
    let opened = before.clone().filter(|line| line.starts_with("#if __CUDA_ARCH__ >= 900")).count();
    opened == 0 || !text.starts_with("// The kernel layer")
}
