//! What the planner chooses on known devices, held so that a change of policy is a change of this file.

use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::flow::{Arg, Plan, Rung, Step, Tuning};
use upsweep::ops::reduce::{Reduce, ReduceProblem, plan};
use upsweep::types::{Accuracy, DType, Layout, Operator};

fn launches(problem: &ReduceProblem, caps: &CudaCaps) -> Vec<(String, u32, u32)> {
    let plan = plan(problem, &Caps::Cuda(caps.clone())).unwrap();
    assert!(!plan.why.is_empty());
    let program = plan.program.unwrap();
    program
        .steps
        .iter()
        .map(|Step::Launch(l)| {
            let name = l.kernel.expression.replace("upsweep::", "");
            (name.split('<').next().unwrap().to_string(), l.grid, l.block)
        })
        .collect()
}

#[test]
fn whole_arrays_take_one_deterministic_launch_on_every_known_device() {
    // Name, grid at 2^16, 2^20 and 2^28 f32.
    let expected = [
        ("Tesla T4", [32, 40, 40]),
        ("NVIDIA GeForce RTX 4090", [32, 64, 128]),
        ("NVIDIA A100-SXM4-80GB", [32, 64, 216]),
        ("NVIDIA H100 80GB HBM3", [32, 64, 264]),
        ("NVIDIA H200", [32, 64, 264]),
        ("NVIDIA B200", [32, 64, 296]),
    ];
    let devices = CudaCaps::known();
    assert_eq!(devices.len(), expected.len());
    for (caps, (name, grids)) in devices.iter().zip(expected) {
        assert_eq!(caps.name, name);
        for (n, grid) in [1u64 << 16, 1 << 20, 1 << 28].into_iter().zip(grids) {
            let problem = ReduceProblem::whole(Operator::Sum, DType::F32, n).unwrap();
            assert_eq!(launches(&problem, caps), [("reduce_published_words".to_string(), grid, 512)], "{name} at {n}");
        }
    }
}

#[test]
fn the_planners_kernels_claim_every_operator_dtype_and_layout_and_are_deterministic() {
    for caps in CudaCaps::known() {
        for operator in Operator::reductions() {
            for dtype in DType::all().filter(|d| operator.accepts(*d)) {
                for n in [1u64, 1000, (1 << 33) + 5] {
                    let problem = ReduceProblem::whole(operator, dtype, n).unwrap();
                    let plan = plan(&problem, &Caps::Cuda(caps.clone())).unwrap();
                    assert!(plan.rung.deterministic, "{plan}");
                    assert_eq!(plan.program.as_ref().unwrap().launches(), 1, "{plan}");
                    if let Ok(exact) = problem.with_accuracy(Accuracy::Compensated) {
                        assert!(upsweep::ops::reduce::plan(&exact, &Caps::Cuda(caps.clone())).unwrap().rung.deterministic);
                    }
                }
                let layout = Layout::contiguous(&[3, 70_000, 2]).unwrap();
                let problem = ReduceProblem::new(operator, dtype, &layout, Some(&[1])).unwrap();
                let plan = plan(&problem, &Caps::Cuda(caps.clone())).unwrap();
                assert_eq!(plan.rung.name, "axes");
            }
        }
    }
}

fn plan_is_pure(problem: &ReduceProblem, caps: &CudaCaps) -> bool {
    let once = plan(problem, &Caps::Cuda(caps.clone())).unwrap();
    let twice = plan(problem, &Caps::Cuda(caps.clone())).unwrap();
    once.to_string() == twice.to_string()
}

#[test]
fn a_rows_launch_shape_depends_on_its_length_alone() {
    let caps = &CudaCaps::known()[4];
    for length in [1u64, 31, 1024, 1025, 65_536, 65_537, (1 << 20) + 13] {
        let kernel = |rows: u64| {
            let layout = Layout::contiguous(&[rows, length]).unwrap();
            let problem = ReduceProblem::new(Operator::Sum, DType::F32, &layout, Some(&[1])).unwrap();
            assert!(plan_is_pure(&problem, caps));
            let plan = plan(&problem, &Caps::Cuda(caps.clone())).unwrap();
            let program = plan.program.unwrap();
            let chunks: Vec<_> = program
                .steps
                .iter()
                .map(|Step::Launch(l)| {
                    let Some(Arg::Words(words)) = l.args.last() else { panic!("the shape is the last argument") };
                    (l.kernel.expression.clone(), words[2], words[3])
                })
                .collect();
            chunks
        };
        assert_eq!(kernel(1), kernel(7), "{length}");
        assert_eq!(kernel(1), kernel(70_000), "{length}");
    }
}

#[test]
fn sizes_are_counted_in_64_bits() {
    let caps = &CudaCaps::known()[4];
    for n in [(1u64 << 31) - 1, 1 << 31, (1 << 31) + 1, (1 << 32) + 1, (1 << 31) - 100_000] {
        let problem = ReduceProblem::whole(Operator::Sum, DType::U8, n).unwrap();
        let plan = plan(&problem, &Caps::Cuda(caps.clone())).unwrap();
        // A few MiB at most, whatever the size (cub#221 answered 1.8e19 bytes).
        assert!(plan.scratch_bytes() < 8 << 20);
        assert_eq!(problem.bytes(), n + 8);
    }
}

#[test]
fn tile_kernels_run_where_a_cubin_was_made_for_the_device() {
    let rung = Rung::<Reduce>::find(DeviceKind::Cuda, "tiles").unwrap();
    let of = |n| ReduceProblem::whole(Operator::Sum, DType::F32, n).unwrap();
    let with = |n, caps: &CudaCaps| Plan::with_rung(&of(n), &Caps::Cuda(caps.clone()), rung, Tuning::default(), String::new());
    for caps in CudaCaps::known() {
        if caps.compute < (8, 0) {
            assert!(matches!(with(5, &caps), Err(Error::NotClaimed { .. })));
            continue;
        }
        // Any length: one block, or partial sums and one block, in parts of 2^30 elements.
        for (n, parts) in [(0u64, 0), (8192, 0), (8193, 1), (1 << 30, 1), ((1 << 30) + 1, 2), ((1 << 33) + 5, 9)] {
            let program = with(n, &caps).unwrap().program.unwrap();
            let launches: Vec<_> = program.steps.iter().map(|Step::Launch(launch)| launch).collect();
            assert_eq!(launches.len() as u64, parts + 1, "{n} on {}", caps.name);
            let (last, before) = launches.split_last().unwrap();
            let partials: u64 = before.iter().map(|launch| u64::from(launch.grid)).sum();
            let length = if before.is_empty() { n } else { partials };
            assert!(last.grid == 1 && last.args[2] == Arg::U64(length) && last.args[1] == Arg::Output { operand: 0 });
            assert!(program.scratch_bytes >= 4 * partials);
            let lengths = before.iter().map(|launch| match launch.args[2] {
                Arg::U64(length) => length,
                ref other => panic!("{other:?}"),
            });
            assert_eq!(lengths.sum::<u64>(), if before.is_empty() { 0 } else { n });
        }
        let later = CudaCaps { compute: (10, 3), ..caps.clone() };
        let error = with(5, &later).unwrap_err();
        assert!(error.to_string().contains("10.3") && matches!(error, Error::NotClaimed { .. }), "{error}");
    }
}
