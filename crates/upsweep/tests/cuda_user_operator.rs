//! Operators of the caller's own, and logcumsumexp, on a real GPU. Ignored (and shown as ignored) where there is none; run with
//! `--include-ignored` on a machine with a device.
#![cfg(all(feature = "cpu", feature = "cuda"))]

#[path = "support/scans.rs"]
mod scans;

use cudarc::driver::DeviceRepr;
use upsweep::Error;
use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::device::cuda::Cuda;
use upsweep::flow::{DeviceMut, DeviceRef, HostSlice, Plan, Rung, Tuning};
use upsweep::ops::reduce::{self, Reduce, ReduceProblem};
use upsweep::ops::scan::{self, Scan, ScanDeviceOperands, ScanOptions, ScanProblem, ScanSpec};
use upsweep::ops::user::{DeviceText, State, UserOperator, examples};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

/// Around packs, warps, tiles of every kernel, and their groups.
const LENGTHS: [usize; 16] =
    [1, 2, 31, 33, 127, 129, 1000, 4095, 4097, 8191, 8193, 70_001, 262_145, 1_050_000, 3_000_001, 1 << 22];

const OPTIONS: [ScanOptions; 4] = [
    ScanOptions { exclusive: false, reverse: false },
    ScanOptions { exclusive: true, reverse: false },
    ScanOptions { exclusive: false, reverse: true },
    ScanOptions { exclusive: true, reverse: true },
];

fn noise(i: usize) -> u32 {
    (i as u32).wrapping_mul(2_654_435_761) >> 8
}

fn agree<R: Element>(got: &[R], expected: &[R], tolerance: f64, what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (x, y) = (got.to_f64(), expected.to_f64());
        let near = got == expected || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * y.abs().max(1.0);
        assert!(near, "{what}: output {index} is {got:?}, and {expected:?} on the CPU");
    }
}

/// Every rung that takes the operator, at every edge, against the CPU.
fn every_rung<T: Element + DeviceRepr, S: State, R: Element>(
    operator: &UserOperator<T, S, R>,
    value: fn(usize) -> T,
    tolerance: f64,
) {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), upsweep::device::cpu::Cpu::new());
    let caps = Caps::Cuda(cuda.caps().clone());
    let mut rungs = std::collections::BTreeSet::new();
    for n in LENGTHS {
        let host: Vec<T> = (0..n).map(value).collect();
        let device = cuda.upload(&host).unwrap();
        let layout = Layout::contiguous(&[n as u64]).unwrap();
        for options in OPTIONS {
            let expected = scan::scan_with(&cpu, operator, options, &host[..], None, None).unwrap().values;
            let problem = ScanProblem::of_operator(operator, options, &layout, None).unwrap();
            for rung in ["look_ahead", "three_phase", "axes"] {
                let rung = Rung::<Scan>::find(DeviceKind::Cuda, rung).unwrap();
                let plan = match Plan::with_rung(&problem, &caps, rung, Tuning::default(), "a test".into()) {
                    Err(Error::NotClaimed { .. }) => continue,
                    plan => plan.unwrap(),
                };
                let got = scan::run_plan::<_, T, R>(&cuda, &plan, &device).unwrap().values;
                agree(&got, &expected, tolerance, &plan.to_string());
                let again = scan::run_plan::<_, T, R>(&cuda, &plan, &device).unwrap().values;
                agree(&again, &got, 0.0, &plan.to_string());
                rungs.insert(plan.rung.id());
            }
        }
        let expected = reduce::reduce_with(&cpu, operator, &host[..], None, None).unwrap().values;
        let problem = ReduceProblem::of_operator(operator, &layout, None).unwrap();
        for rung in ["in_order", "published_words", "last_block", "vector_loads", "bulk_copy", "axes"] {
            let rung = Rung::<Reduce>::find(DeviceKind::Cuda, rung).unwrap();
            let plan = match Plan::with_rung(&problem, &caps, rung, Tuning::default(), "a test".into()) {
                Err(Error::NotClaimed { .. }) => continue,
                plan => plan.unwrap(),
            };
            let got = reduce::run_plan::<_, T, R>(&cuda, &plan, &device).unwrap().values;
            agree(&got, &expected, tolerance, &plan.to_string());
            rungs.insert(plan.rung.id());
        }
    }
    println!("{}: {rungs:?}", operator.name());
    assert!(rungs.contains("scan/6-axes") && rungs.contains("reduce/13-in_order"));
}

#[test]
#[ignore = "needs a CUDA device"]
fn operators_that_do_not_commute_give_what_the_cpu_gives() {
    every_rung(&examples::polynomial_hash().unwrap(), |i| noise(i) as u8, 0.0);
    every_rung(&examples::largest_span().unwrap(), |i| noise(i) as i32 % 1000 - 500, 0.0);
    every_rung(&examples::fill_forward().unwrap(), |i| if noise(i).is_multiple_of(100) { i as f32 } else { f32::NAN }, 0.0);
}

#[test]
#[ignore = "needs a CUDA device"]
fn wide_states_and_narrow_results_give_what_the_cpu_gives() {
    every_rung(&examples::variance().unwrap(), |i| noise(i) as f32 / 1e6, 1e-9);
    let is_rising = UserOperator::new(
        "is rising",
        [f64::INFINITY, f64::NEG_INFINITY, 1.0],
        |x: f64| [x, x, 1.0],
        |a: [f64; 3], b: [f64; 3]| [a[0].min(b[0]), a[1].max(b[1]), if a[1] <= b[0] { a[2] * b[2] } else { 0.0 }],
        |s| s[2] == 1.0,
    )
    .unwrap()
    .with_device(&DeviceText {
        state: "double least, most, rises;",
        lift: "return {x, x, 1.0};",
        combine: "return {fmin(a.least, b.least), fmax(a.most, b.most), a.most <= b.least ? a.rises * b.rises : 0.0};",
        finish: "return state.rises == 1.0;",
    });
    every_rung(&is_rising, |i| if i == 5000 { 0.0 } else { i as f64 }, 0.0);
}

#[test]
#[ignore = "needs a CUDA device"]
fn rows_and_columns_by_an_operator_of_the_callers_own() {
    let (cuda, cpu) = (Cuda::new(0).unwrap(), upsweep::device::cpu::Cpu::new());
    let (hash, variance) = (examples::polynomial_hash().unwrap(), examples::variance().unwrap());
    for shape in [[3u64, 1000], [1000, 3], [5, 20_000], [300, 300], [2, 1_000_003]] {
        let n = (shape[0] * shape[1]) as usize;
        let bytes: Vec<u8> = (0..n).map(|i| noise(i) as u8).collect();
        let floats: Vec<f32> = (0..n).map(|i| noise(i) as f32 / 1e6).collect();
        let (device_bytes, device_floats) = (cuda.upload(&bytes).unwrap(), cuda.upload(&floats).unwrap());
        let layout = Layout::contiguous(&shape).unwrap();
        for axis in [0i64, 1] {
            for options in OPTIONS {
                let got = scan::scan_with(&cuda, &hash, options, &device_bytes, Some(&layout), Some(axis)).unwrap();
                let expected = scan::scan_with(&cpu, &hash, options, &bytes[..], Some(&layout), Some(axis)).unwrap();
                agree(&got.values, &expected.values, 0.0, &format!("{} {shape:?} along {axis}", got.rung));
            }
            let got = reduce::reduce_with(&cuda, &variance, &device_floats, Some(&layout), Some(&[axis])).unwrap();
            let expected = reduce::reduce_with(&cpu, &variance, &floats[..], Some(&layout), Some(&[axis])).unwrap();
            agree(&got.values, &expected.values, 1e-9, &format!("{} {shape:?} along {axis}", got.rung));
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn nothing_gives_the_identity_on_a_device_too() {
    let cuda = Cuda::new(0).unwrap();
    let least = UserOperator::new("least", [i32::MAX], |x: i32| [x], |a: [i32; 1], b| a.min(b), |s| s[0]).unwrap().with_device(
        &DeviceText {
            state: "i32 least;",
            lift: "return {x};",
            combine: "return {min(a.least, b.least)};",
            finish: "return state.least;",
        },
    );
    let layout = Layout::contiguous(&[0]).unwrap();
    let some = cuda.upload(&[5i32]).unwrap();
    for operator in [least.clone(), least.commutative()] {
        assert_eq!(reduce::reduce_with(&cuda, &operator, &some, Some(&layout), None).unwrap().values, [i32::MAX]);
        let exclusive = ScanOptions { exclusive: true, reverse: false };
        assert_eq!(scan::scan_with(&cuda, &operator, exclusive, &some, None, None).unwrap().values, [i32::MAX]);
        assert_eq!(scan::scan_with(&cuda, &operator, exclusive, &some, Some(&layout), None).unwrap().values, [0i32; 0]);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_check_on_a_device_accepts_the_examples_and_finds_a_wrong_text() {
    let cuda = Cuda::new(0).unwrap();
    let bytes: Vec<u8> = (0..20_000).map(|i| noise(i) as u8).collect();
    examples::polynomial_hash().unwrap().check_on(&cuda, &bytes, 0.0).unwrap();
    let floats: Vec<f32> = (0..20_000).map(|i| noise(i) as f32 / 1e6).collect();
    examples::variance().unwrap().check_on(&cuda, &floats, 1e-10).unwrap();
    examples::fill_forward().unwrap().check_on(&cuda, &floats, 0.0).unwrap();
    let greatest = |combine| {
        UserOperator::new("greatest", [f32::MIN], |x: f32| [x], |a: [f32; 1], b: [f32; 1]| [a[0].max(b[0])], |s| s[0])
            .unwrap()
            .with_device(&DeviceText { state: "float most;", lift: "return {x};", combine, finish: "return state.most;" })
    };
    greatest("return {fmaxf(a.most, b.most)};").check_on(&cuda, &floats, 0.0).unwrap();
    let error = greatest("return {fminf(a.most, b.most)};").check_on(&cuda, &floats, 0.0).unwrap_err();
    assert!(matches!(&error, Error::OperatorLaw { law: "both forms agree", .. }), "{error}");
    let error = greatest("return {fmaxf(a.most, b.least)};").check_on(&cuda, &floats, 0.0).unwrap_err();
    assert!(matches!(&error, Error::Compile { log, .. } if log.contains("operator greatest, combine(1)")), "{error}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_prepared_plan_of_an_operator_runs_again_and_again() {
    let cuda = Cuda::new(0).unwrap();
    let stream = cuda.stream().clone();
    let hash = examples::polynomial_hash().unwrap();
    let host: Vec<u8> = (0..500_000).map(|i| noise(i) as u8).collect();
    let expected =
        scan::scan_with(&upsweep::device::cpu::Cpu::new(), &hash, ScanOptions::default(), &host[..], None, None).unwrap().values;
    let input = cuda.upload(&host).unwrap();
    let mut output = cuda.upload(&vec![0u64; host.len()]).unwrap();
    let layout = Layout::contiguous(&[host.len() as u64]).unwrap();
    let problem = ScanProblem::of_operator(&hash, ScanOptions::default(), &layout, None).unwrap();
    let plan = scan::plan(&problem, &Caps::Cuda(cuda.caps().clone())).unwrap();
    let mut prepared = cuda.prepare(&plan).unwrap();
    let mut scratch = cuda.upload(&vec![0xffu8; plan.scratch_bytes().max(1) as usize]).unwrap();
    for call in 0..300 {
        cuda.scope(&stream, |scope| {
            let (input, output) = (DeviceRef::of::<u8, _>(&input, &stream), DeviceMut::of::<u64, _>(&mut output, &stream));
            let scratch = DeviceMut::of::<u8, _>(&mut scratch, &stream);
            scope.enqueue(&mut prepared, ScanDeviceOperands { input, second: None, output }, Some(scratch))
        })
        .unwrap();
        if call % 100 == 0 {
            assert!(cuda.download(&output).unwrap() == expected, "call {call}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn logcumsumexp_is_within_the_bound_on_every_rung() {
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    let shapes: [fn(usize) -> f64; 5] = [
        |_| -3.0,
        |i| f64::from(noise(i)) / 2e6 - 4.0,
        |i| i as f64 * 1e-4,
        |i| i as f64 * -0.01,
        |i| [0.0, 1000.0, -1000.0, f64::NEG_INFINITY][i / 37 % 4],
    ];
    for value in shapes {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            dispatch!(dtype, T => {
                for n in [1usize, 2, 33, 1000, 8193, 70_001, 1_050_000] {
                    let host: Vec<T> = (0..n).map(|i| T::from_f64(value(i))).collect();
                    let exclusive = ScanSpec::exclusive(Operator::LogSumExp);
                    for spec in [ScanSpec::inclusive(Operator::LogSumExp), exclusive.reversed(), ScanSpec::exclusive_from(Operator::LogSumExp, T::from_f64(2.0))] {
                        let problem = ScanProblem::whole(spec, dtype, n as u64).unwrap();
                        let expected = scan::oracle::reference(&problem, HostSlice::from(&host[..]), None).unwrap();
                        for rung in ["look_ahead", "three_phase", "axes"] {
                            let rung = Rung::<Scan>::find(DeviceKind::Cuda, rung).unwrap();
                            let Ok(plan) = Plan::with_rung(&problem, &caps, rung, Tuning::default(), "a test".into()) else { continue };
                            let mut got = vec![T::default(); n];
                            cuda.run_from_host(&plan, HostSlice::from(&host[..]), got.as_mut_slice().into()).unwrap();
                            let wrong = got.iter().zip(&expected).position(|(got, expected)| !scans::fits(*got, expected));
                            assert_eq!(wrong, None, "{plan}: {:?}", wrong.map(|i| (got[i], expected[i])));
                        }
                    }
                }
            });
        }
    }
}
