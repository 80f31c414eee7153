//! What the planner of scans chooses on known devices, held so that a change of policy is a change of this file.

use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::flow::{Arg, Body, Expect, Op, Plan, Rung, Step, Tuning};
use upsweep::ops::scan::{OPERATORS, Scan, ScanPlan, ScanProblem, ScanSpec, plan};
use upsweep::types::{DType, Layout, Operator};

fn launches(plan: &ScanPlan) -> Vec<(String, u32, u32)> {
    assert!(!plan.why.is_empty());
    let launch = |Step::Launch(l): &Step| {
        let name = l.kernel.expression.replace("upsweep::", "");
        (name.split('<').next().unwrap().to_string(), l.grid, l.block)
    };
    plan.program.as_ref().unwrap().steps.iter().map(launch).collect()
}

fn planned(problem: &ScanProblem, caps: &CudaCaps) -> ScanPlan {
    plan(problem, &Caps::Cuda(caps.clone())).unwrap()
}

fn whole(operator: Operator, dtype: DType, n: u64) -> ScanProblem {
    ScanProblem::whole(ScanSpec::inclusive(operator), dtype, n).unwrap()
}

#[test]
fn devices_with_a_copy_engine_look_ahead_and_the_others_as_the_operator_allows() {
    let devices = CudaCaps::known();
    assert_eq!(devices.len(), 6);
    for caps in &devices {
        let launch = |name: &str, grid, block| (name.to_string(), grid, block);
        // What a block holds needs no other.
        for (n, block) in [(1u64, 128), (128, 128), (129, 128), (4096, 256), (8192, 512)] {
            for operator in [Operator::Max, Operator::Sum] {
                assert_eq!(launches(&planned(&whole(operator, DType::F32, n), caps)), [launch("scan_rows", 1, block)], "{n}");
            }
        }
        // Tiles of 20480, of 12288 and of 8192 elements.
        for (n, looking, tiles, ahead) in [
            (8193u64, 1, 1, 2),
            (12_288, 1, 1, 2),
            (12_289, 1, 2, 2),
            (20_480, 1, 2, 3),
            (20_481, 2, 2, 3),
            (65_537, 4, 6, 9),
            (1 << 28, 13_108, 21_846, caps.multiprocessors),
        ] {
            let exact = launches(&planned(&whole(Operator::Max, DType::F32, n), caps));
            let rounding = launches(&planned(&whole(Operator::Sum, DType::F32, n), caps));
            if caps.compute >= (9, 0) {
                assert_eq!([exact, rounding].concat(), vec![launch("scan_look_ahead", ahead, 20 * 32); 2], "{}", caps.name);
                continue;
            }
            assert_eq!(exact, [launch("scan_look_back", looking, 512)], "{}", caps.name);
            if tiles == 1 {
                assert_eq!(rounding, [launch("scan_tiles", 1, 512)]);
            } else {
                let expected = [("scan_tile_totals", tiles, 512), ("scan_spine", 1, 1024), ("scan_tiles", tiles, 512)];
                assert_eq!(rounding, expected.map(|(name, grid, block)| launch(name, grid, block)));
            }
        }
        // The newest consumer devices have the engine, but not the shared memory.
        let small = CudaCaps { compute: (12, 0), shared_bytes_per_block: 99 << 10, ..caps.clone() };
        assert_eq!(planned(&whole(Operator::Sum, DType::F32, 1 << 20), &small).rung.name, "three_phase");
        assert_eq!(planned(&whole(Operator::Max, DType::F32, 1 << 20), &small).rung.name, "look_back");
    }
}

#[test]
fn rows_go_to_threads_to_tiles_or_to_a_walk_and_columns_lie_side_by_side() {
    for caps in CudaCaps::known() {
        let name = |shape: &[u64], axis, strides: Option<&[i64]>| {
            let layout = match strides {
                Some(strides) => Layout::strided(shape, strides, 40).unwrap(),
                None => Layout::contiguous(shape).unwrap(),
            };
            let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Sum), DType::F32, &layout, Some(axis)).unwrap();
            planned(&problem, &caps).rung.name
        };
        let long = if caps.compute >= (9, 0) { "look_ahead" } else { "axes" };
        assert_eq!(name(&[1 << 20, 128], 1, None), "rows");
        assert_eq!(name(&[65_536, 4096], 1, None), "rows");
        assert_eq!(name(&[16_384, 16_384], 1, None), long);
        assert_eq!(name(&[2, 16_384], 1, None), long);
        assert_eq!(name(&[128, 1 << 20], -1, None), long);
        // Rows that are further apart, and rows that are not: neighbours of a row must be neighbours in memory.
        assert_eq!(name(&[7, 100], 1, Some(&[128, 1])), "rows");
        assert_eq!(name(&[7, 100], 1, Some(&[300, 3])), "axes");
        assert_eq!(name(&[3, 7, 100], 2, Some(&[1000, 128, 1])), "axes");
        let in_one_pass = if caps.compute >= (9, 0) { "column_ahead" } else { "columns" };
        assert_eq!(name(&[65_536, 4096], 0, None), in_one_pass);
        assert_eq!(name(&[1 << 20, 128], 0, None), in_one_pass);
        assert_eq!(name(&[16_384, 100], 0, None), in_one_pass);
        assert_eq!(name(&[16_384, 16_384], 0, None), "columns");
        assert_eq!(name(&[5, 70, 33], 1, None), "columns");
        assert_eq!(name(&[70, 33], 0, Some(&[33, -1])), "axes");
    }
}

#[test]
fn few_long_columns_look_ahead_or_are_cut_and_many_are_walked_down() {
    let of = |caps: &CudaCaps, shape: &[u64], dtype| {
        let layout = Layout::contiguous(shape).unwrap();
        let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Sum), dtype, &layout, Some(0)).unwrap();
        launches(&planned(&problem, caps)).into_iter().map(|(name, grid, _)| (name, grid)).collect::<Vec<_>>()
    };
    let launch = |name: &str, grid| (name.to_string(), grid);
    let hopper = CudaCaps::known().remove(4);
    let known = CudaCaps::known();
    let older = known.iter().find(|caps| caps.compute < (9, 0)).unwrap();
    for caps in [&hopper, older] {
        // Strips of 64 columns, steps of 128 rows.
        assert_eq!(of(caps, &[128, 1 << 20], DType::F32), [launch("scan_columns", 16_384)]);
        assert_eq!(of(caps, &[16_384, 16_384], DType::F32), [launch("scan_columns", 256)]);
        // Rows that are no multiple of 16 bytes long: strips of 16 columns.
        assert_eq!(of(caps, &[16_384, 4095], DType::F32), [launch("scan_columns", 256)]);
        assert_eq!(of(caps, &[64, 3], DType::F32), [launch("scan_columns", 1)]);
    }
    // Strips of 32 columns, steps of 256 rows.
    assert_eq!(of(&hopper, &[1 << 20, 128], DType::F32), [launch("scan_column_ahead", 132)]);
    assert_eq!(of(&hopper, &[40_000, 3], DType::F32), [launch("scan_column_ahead", 132)]);
    let cut = [launch("scan_column_totals", 16_384), launch("scan_column_spine", 1), launch("scan_columns", 16_384)];
    assert_eq!(of(older, &[1 << 20, 128], DType::F32), cut);
    // Elements of two bytes are not copied one by one.
    assert_eq!(of(&hopper, &[40_000, 3], DType::F16).len(), 3);
}

#[test]
fn a_ring_of_tiles_fits_whatever_the_widths_of_elements_and_results() {
    let caps = CudaCaps::known().remove(4);
    for operator in OPERATORS {
        for dtype in DType::all().filter(|d| operator.accepts(*d)) {
            let plan = planned(&whole(operator, dtype, 1 << 30), &caps);
            let Step::Launch(launch) = &plan.program.as_ref().unwrap().steps[0];
            let shared = launch.shared_bytes;
            assert!(shared > 64 << 10 && shared <= caps.shared_bytes_per_block, "{plan}: {shared}");
        }
    }
}

#[test]
fn the_planner_takes_every_scan_and_only_deterministic_ways_for_rounding_ones() {
    for caps in CudaCaps::known() {
        for operator in OPERATORS {
            for dtype in DType::all().filter(|d| operator.accepts(*d)) {
                let layouts = [
                    Layout::contiguous(&[1]).unwrap(),
                    Layout::contiguous(&[1000]).unwrap(),
                    Layout::contiguous(&[(1 << 33) + 5]).unwrap(),
                    Layout::contiguous(&[3, 70_000, 2]).unwrap(),
                    Layout::contiguous(&[1 << 20, 1 << 13]).unwrap(),
                    Layout::strided(&[1000], &[-3], 2997).unwrap(),
                ];
                for layout in &layouts {
                    for spec in [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator).reversed()] {
                        for axis in (0..layout.rank() as i64).map(Some).chain([None]) {
                            let problem = ScanProblem::new(spec, dtype, layout, axis).unwrap();
                            let plan = planned(&problem, &caps);
                            assert_eq!(plan.rung.expect, Expect::Pass);
                            let rounds = operator.row().rounds && dtype.is_float();
                            assert!(plan.rung.deterministic || !rounds, "{plan}");
                            assert_eq!(plan.to_string(), planned(&problem, &caps).to_string(), "planning is pure");
                            for Step::Launch(launch) in &plan.program.unwrap().steps {
                                assert!(launch.grid > 0 && launch.block <= caps.threads_per_multiprocessor);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_is_a_success_without_a_launch() {
    for caps in CudaCaps::known() {
        for (shape, axis) in [(vec![0u64], None), (vec![0, 4], Some(1)), (vec![4, 0], Some(1)), (vec![4, 0], Some(0))] {
            for operator in [Operator::Sum, Operator::Min] {
                let layout = Layout::contiguous(&shape).unwrap();
                let problem = ScanProblem::new(ScanSpec::inclusive(operator), DType::F32, &layout, axis).unwrap();
                let plan = planned(&problem, &caps);
                assert_eq!((plan.program.as_ref().unwrap().launches(), plan.scratch_bytes()), (0, 0));
            }
        }
    }
}

#[test]
fn teaching_rungs_compose_over_as_many_levels_as_there_are() {
    let caps = Caps::Cuda(CudaCaps::known().remove(4));
    let with = |rung: &str, n: u64, block: u32| {
        let rung = Rung::<Scan>::find(DeviceKind::Cuda, rung).unwrap();
        Plan::with_rung(&whole(Operator::Sum, DType::F32, n), &caps, rung, Tuning { block }, "a test".into())
    };
    for rung in ["hillis_steele", "warp_shuffle"] {
        let grids: Vec<u32> = launches(&with(rung, (1 << 28) + 1, 256).unwrap()).iter().map(|l| l.1).collect();
        let up = [(1 << 20) + 1, 4097, 17, 1];
        assert_eq!(grids, [&up[..], &[17, 4097, (1 << 20) + 1]].concat(), "{rung}");
        assert_eq!(launches(&with(rung, 256, 256).unwrap()).len(), 1);
        assert_eq!(launches(&with(rung, 257, 256).unwrap()).len(), 3);
    }
    let first = launches(&with("blelloch", 1 << 28, 0).unwrap()).remove(0);
    assert_eq!(first, ("scan_blelloch".to_string(), 1 << 19, 256), "the first launch is the scan of the blocks alone");
    assert!(matches!(with("blelloch", 5, 100), Err(Error::InvalidArgument { argument: "block", .. })));
}

#[test]
fn scratch_regions_lie_side_by_side_inside_the_stated_bytes() {
    let caps = Caps::Cuda(CudaCaps::known().remove(4));
    for rung in Scan::ladder().iter().filter(|r| r.device() == DeviceKind::Cuda) {
        for n in [1u64, 511, 513, 8193, 1 << 20, (1 << 24) + 1] {
            let problem = whole(Operator::Sum, DType::F64, n);
            let plan = match Plan::with_rung(&problem, &caps, rung, Tuning::default(), "a test".into()) {
                Err(Error::NotClaimed { .. }) => continue,
                plan => plan.unwrap(),
            };
            for Step::Launch(launch) in &plan.program.as_ref().unwrap().steps {
                for arg in &launch.args {
                    let Arg::Scratch(start) = arg else { continue };
                    // A launch of a single block names totals that it does not write.
                    assert!(*start < plan.scratch_bytes().max(1), "{}: {start}", rung.id());
                }
            }
            // A few MiB at most, whatever the size (cub#221 answered 1.8e19 bytes).
            assert!(plan.scratch_bytes() <= n * 8 / 250 + 64, "{}: {}", rung.id(), plan.scratch_bytes());
        }
    }
}

#[test]
fn claims_say_what_is_missing() {
    let caps = Caps::Cuda(CudaCaps::known().remove(0));
    let refused = |rung: &str, problem: &ScanProblem| {
        let rung = Rung::<Scan>::find(DeviceKind::Cuda, rung).unwrap();
        Plan::with_rung(problem, &caps, rung, Tuning::default(), String::new()).unwrap_err().to_string()
    };
    let of = |spec: ScanSpec, dtype| ScanProblem::whole(spec, dtype, 9).unwrap();
    let sum = Operator::Sum;
    assert!(refused("hillis_steele", &of(ScanSpec::exclusive(sum), DType::F32)).contains("inclusively"));
    assert!(refused("blelloch", &of(ScanSpec::inclusive(sum).reversed(), DType::F32)).contains("inclusively"));
    assert!(refused("blelloch", &of(ScanSpec::inclusive(sum), DType::U8)).contains("f32, f64, i32"));
    let columns = ScanProblem::new(ScanSpec::inclusive(sum), DType::F32, &Layout::contiguous(&[4, 4]).unwrap(), Some(0));
    assert!(refused("look_back", &columns.unwrap()).contains("contiguous"));
    let Body::Cuda { file, .. } = Rung::<Scan>::find(DeviceKind::Cuda, "5").unwrap().body else { panic!() };
    assert!(file.path.ends_with("05_look_back.cu"));
}

#[test]
fn sizes_of_scans_are_counted_in_64_bits() {
    let caps = &CudaCaps::known()[4];
    for n in [(1u64 << 31) - 1, 1 << 31, (1 << 32) + 1] {
        for operator in [Operator::Sum, Operator::Max] {
            let problem = whole(operator, DType::U8, n);
            let plan = planned(&problem, caps);
            let control = plan.program.as_ref().unwrap().control.bytes();
            assert!(control < 64 << 20, "{control}");
            assert_eq!(problem.bytes(), n * (1 + problem.output_dtype().size()));
        }
    }
    // More tiles than a grid has blocks: an error that says so, not a wrapped number.
    let broadcast = Layout::strided(&[1 << 50], &[1], 0).unwrap();
    let problem = ScanProblem::new(ScanSpec::inclusive(Operator::Max), DType::F64, &broadcast, None).unwrap();
    let error = plan(&problem, &Caps::Cuda(caps.clone())).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}
