//! Every barrier of every simulated kernel is needed, and the simulator knows it: deleted, one at a time, each is reported.
//! The unchanged kernels give no report on the same problems.

mod support;

use std::collections::BTreeMap;
use support::{Bytes, run_with};
use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::flow::{Op, Plan, Problem, Program, Tuning};
use upsweep::kernels::HEADERS;
use upsweep::ops::reduce::{Reduce, ReduceProblem};
use upsweep::ops::scan::{Scan, ScanProblem, ScanSpec};
use upsweep::ops::softmax::{Softmax, SoftmaxKind, SoftmaxProblem};
use upsweep::types::{DType, Layout, Operator};
use upsweep_sim::{Line, Report, Sim};

/// What is deleted.
const ORDERS: [&str; 3] = ["__syncthreads();", "__syncwarp();", "__threadfence();"];

/// Lines whose order is not needed for what the simulator can see, each with the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[];

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

fn all_subjects(sim: &Sim) -> Vec<Subject> {
    let mut all = vec![];
    let layout = |shape: &[u64]| Layout::contiguous(shape).unwrap();
    subjects::<Reduce>(sim, &ReduceProblem::whole(Operator::Sum, DType::F32, 70_001).unwrap(), &mut all);
    for shape in [[400, 50], [70, 3000]] {
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
    all
}

/// Every text that a program is made of, by path.
fn texts<'a>(subjects: impl Iterator<Item = &'a Subject>) -> BTreeMap<&'static str, &'static str> {
    let files = subjects.flat_map(|subject| subject.program.steps.iter()).map(|step| {
        let upsweep::flow::Step::Launch(launch) = step;
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
            let mutant: String =
                (1..).zip(text.lines()).map(|(n, l)| if n == number { l.replacen(order, ";", 1) } else { l.to_string() } + "\n").collect();
            let mutated = sim.replacing(path, &mutant);
            deleted += 1;
            let found = plans.iter().find_map(|plan| {
                let report = (subjects[*plan].run)(&mutated);
                report.faults().next().map(ToString::to_string)
            });
            let exception = EXCEPTIONS.iter().find(|(file, what, _)| *file == path && line.contains(what));
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
