//! Scans on a real GPU. Ignored (and shown as ignored) where there is none; run with `--include-ignored` on a machine
//! with a device.
#![cfg(feature = "cuda")]

use cudarc::driver::DeviceRepr;
use upsweep::Error;
use upsweep::device::caps::{Caps, DeviceKind};
use upsweep::device::cuda::Cuda;
use upsweep::flow::{DeviceMut, DeviceRef, HostSlice, Op, Plan, Step, Tuning};
use upsweep::ops::scan::oracle::{Expected, reference};
use upsweep::ops::scan::{self, Scan, ScanDeviceOperands, ScanPlan, ScanProblem, ScanRung, ScanSpec};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

fn integers(n: usize) -> Vec<i32> {
    (0..n).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 20) as i32 - 2048).collect()
}

fn fits<O: Element>(got: O, expected: &Expected) -> bool {
    match *expected {
        Expected::Exact(value) => got.to_i128() == value,
        Expected::Nan => got.to_f64().is_nan(),
        Expected::Near(near) => {
            let value = got.to_f64();
            let overflowed = (value == f64::INFINITY && near.overflow.positive)
                || (value == f64::NEG_INFINITY && near.overflow.negative)
                || (value.is_nan() && near.overflow.positive && near.overflow.negative);
            got == O::from_f64(near.value) || (value - near.value).abs() <= near.bound || overflowed
        }
    }
}

fn cuda_rungs() -> impl Iterator<Item = &'static ScanRung> {
    Scan::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda)
}

/// A rung's plan, if it takes the problem on the device.
fn claimed(problem: &ScanProblem, caps: &Caps, rung: &'static ScanRung) -> Option<ScanPlan> {
    match Plan::with_rung(problem, caps, rung, Tuning::default(), "a test".into()) {
        Ok(plan) => Some(plan),
        Err(Error::NotClaimed { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The plans of all rungs that take the problem on the device; of a problem that some rung must take.
fn plans(problem: &ScanProblem, caps: &Caps) -> Vec<ScanPlan> {
    let plans: Vec<_> = cuda_rungs().filter_map(|rung| claimed(problem, caps, rung)).collect();
    assert!(!plans.is_empty(), "no rung takes {problem}");
    plans
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_rung_of_the_scan_ladder_answers_as_the_oracle_does() {
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    for n in [1usize, 2, 31, 33, 255, 257, 511, 513, 8191, 8192, 8193, 70_001, 1 << 20] {
        let ints = integers(n);
        let floats: Vec<f32> = ints.iter().map(|v| *v as f32 / 512.0).collect();
        let (device_ints, device_floats) = (cuda.upload(&ints).unwrap(), cuda.upload(&floats).unwrap());
        for rung in Scan::ladder().iter().filter(|r| r.device() == DeviceKind::Cuda) {
            for operator in [Operator::Sum, Operator::Max] {
                let inclusive = ScanSpec::inclusive(operator);
                for spec in
                    [inclusive, ScanSpec::exclusive(operator), inclusive.reversed(), ScanSpec::exclusive(operator).reversed()]
                {
                    let problem = |dtype| ScanProblem::whole(spec, dtype, n as u64).unwrap();
                    let float_plan = Plan::with_rung(&problem(DType::F32), &caps, rung, Tuning::default(), "a test".into());
                    let plan = match float_plan {
                        Ok(plan) => plan,
                        Err(Error::NotClaimed { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let got = scan::run_plan::<_, f32, f32>(&cuda, &plan, &device_floats).unwrap().values;
                    let expected = reference(&plan.problem, HostSlice::from(&floats[..])).unwrap();
                    let wrong = got.iter().zip(&expected).position(|(got, expected)| !fits(*got, expected));
                    assert_eq!(wrong, None, "{plan}: {:?}", wrong.map(|i| (got[i], expected[i])));
                    let plan = match Plan::with_rung(&problem(DType::I32), &caps, rung, Tuning::default(), "a test".into()) {
                        Err(Error::NotClaimed { .. }) => continue,
                        plan => plan.unwrap(),
                    };
                    let expected = reference(&plan.problem, HostSlice::from(&ints[..])).unwrap();
                    let wrong = match operator {
                        Operator::Sum => {
                            let got = scan::run_plan::<_, i32, i64>(&cuda, &plan, &device_ints).unwrap().values;
                            got.iter().zip(&expected).position(|(got, expected)| !fits(*got, expected))
                        }
                        _ => {
                            let got = scan::run_plan::<_, i32, i32>(&cuda, &plan, &device_ints).unwrap().values;
                            got.iter().zip(&expected).position(|(got, expected)| !fits(*got, expected))
                        }
                    };
                    assert_eq!(wrong, None, "{plan}");
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_prepared_single_pass_answers_a_thousand_times_and_in_place() {
    // AcceleratedKernels.jl#91: right in one run proves little.
    let cuda = Cuda::new(0).unwrap();
    let n = 524_288usize;
    let trues = cuda.upload(&vec![1u8; n]).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::U8, n as u64).unwrap();
    let stream = cuda.stream().clone();
    let mut output = cuda.upload(&vec![0u64; n]).unwrap();
    for plan in plans(&problem, &caps).into_iter().filter(|plan| ["look_back", "look_ahead"].contains(&plan.rung.name)) {
        let mut prepared = cuda.prepare(&plan).unwrap();
        for call in 0..1000 {
            cuda.scope(&stream, |scope| {
                let (input, output) = (DeviceRef::of::<u8, _>(&trues, &stream), DeviceMut::of::<u64, _>(&mut output, &stream));
                scope.enqueue(&mut prepared, ScanDeviceOperands { input, output }, None)
            })
            .unwrap();
            if call % 100 == 0 {
                let sums = cuda.download(&output).unwrap();
                assert!(sums.iter().zip(1..).all(|(sum, count)| *sum == count), "call {call} of {plan}");
            }
        }
    }
    let host = integers(100_003);
    let spec = ScanSpec::exclusive_from(Operator::Max, -5i32);
    let apart = scan::scan::<_, i32, i32>(&cuda, spec, &cuda.upload(&host).unwrap(), None, None).unwrap().values;
    let problem = ScanProblem::whole(spec, DType::I32, host.len() as u64).unwrap();
    for plan in plans(&problem, &caps) {
        let mut prepared = cuda.prepare(&plan).unwrap();
        let mut memory = cuda.upload(&host).unwrap();
        let mut scratch = cuda.upload(&vec![0xffu8; plan.scratch_bytes().max(1) as usize]).unwrap();
        cuda.scope(&stream, |scope| {
            let output = DeviceMut::of::<i32, _>(&mut memory, &stream);
            // SAFETY: the same live memory as the output; a scan reads each element before it writes there.
            let input = unsafe { DeviceRef::from_raw(output.address(), output.len(), DType::I32) }?;
            let scratch = DeviceMut::of::<u8, _>(&mut scratch, &stream);
            scope.enqueue(&mut prepared, ScanDeviceOperands { input, output }, Some(scratch))
        })
        .unwrap();
        assert_eq!(cuda.download(&memory).unwrap(), apart, "{plan}");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn deterministic_rungs_give_the_same_bits_in_every_run() {
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    let floats: Vec<f32> = integers((1 << 22) + 77).iter().map(|v| *v as f32 / 1000.0).collect();
    let x = cuda.upload(&floats).unwrap();
    let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::F32, floats.len() as u64).unwrap();
    for plan in plans(&problem, &caps).into_iter().filter(|plan| plan.rung.deterministic) {
        let bits = || -> Vec<u32> {
            scan::run_plan::<_, f32, f32>(&cuda, &plan, &x).unwrap().values.into_iter().map(f32::to_bits).collect()
        };
        let first = bits();
        for _ in 0..20 {
            assert!(first == bits(), "{plan}");
        }
    }
}

/// Scans a part of a larger array into a part of another one, for every pair of addresses within 16 bytes: rows of one
/// length, or columns.
fn at_every_address<T: Element + DeviceRepr + FromInt, R: Element>(cuda: &Cuda, operator: Operator, shape: [u64; 2], axis: i64) {
    let n = (shape[0] * shape[1]) as usize;
    let layout = Layout::contiguous(&shape).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    let stream = cuda.stream();
    let host: Vec<T> = integers(n + 16).into_iter().map(T::from_int).collect();
    let input = cuda.upload(&host).unwrap();
    let mut output = stream.alloc_zeros::<u8>((n + 32) * size_of::<R>()).unwrap();
    for spec in [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator).reversed()] {
        let problem = ScanProblem::new(spec, T::DTYPE, &layout, Some(axis)).unwrap();
        for plan in plans(&problem, &caps) {
            let mut prepared = cuda.prepare(&plan).unwrap();
            let mut scratch = stream.alloc_zeros::<u8>(plan.scratch_bytes().max(1) as usize).unwrap();
            for from in 0..16 / size_of::<T>() {
                let expected = reference(&problem, HostSlice::from(&host[from..from + n])).unwrap();
                for to in 0..16 / size_of::<R>() {
                    stream.memset_zeros(&mut output).unwrap();
                    {
                        // SAFETY: every bit pattern of these types is a value.
                        let mut results = unsafe { output.transmute_mut::<R>(n + 32) }.unwrap();
                        let (elements, mut part) = (input.slice(from..from + n), results.slice_mut(to..to + n));
                        cuda.scope(stream, |scope| {
                            let input = DeviceRef::of::<T, _>(&elements, stream);
                            let output = DeviceMut::of::<R, _>(&mut part, stream);
                            let scratch = DeviceMut::of::<u8, _>(&mut scratch, stream);
                            scope.enqueue(&mut prepared, ScanDeviceOperands { input, output }, Some(scratch))
                        })
                        .unwrap();
                    }
                    let bytes = cuda.download(&output).unwrap();
                    let (before, rest) = bytes.split_at(to * size_of::<R>());
                    let (results, behind) = rest.split_at(n * size_of::<R>());
                    assert!(before.iter().chain(behind).all(|byte| *byte == 0), "{plan}: wrote outside, {from} to {to}");
                    // SAFETY: as many bytes as a value has, at any alignment.
                    let got = results.chunks(size_of::<R>()).map(|bytes| unsafe { bytes.as_ptr().cast::<R>().read_unaligned() });
                    let wrong = got.zip(&expected).position(|(got, expected)| !fits(got, expected));
                    assert_eq!(wrong, None, "{plan}: {from} to {to}");
                }
            }
        }
    }
}

/// Values of a type from small integers.
trait FromInt {
    fn from_int(value: i32) -> Self;
}

macro_rules! from_int {
    ($($name:ty),*) => { $(impl FromInt for $name { fn from_int(value: i32) -> Self { value as $name } })* };
}
from_int!(f32, f64, i32, u8);

impl FromInt for half::f16 {
    fn from_int(value: i32) -> Self {
        half::f16::from_f32(value as f32 / 4096.0)
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn inputs_and_outputs_at_every_address() {
    let cuda = Cuda::new(0).unwrap();
    // One row of some tiles, and rows.
    let shapes = [([1, 50_021], 1), ([3, 4001], 1)];
    for (shape, axis) in shapes {
        at_every_address::<f32, f32>(&cuda, Operator::Sum, shape, axis);
        at_every_address::<f64, f64>(&cuda, Operator::Sum, shape, axis);
        at_every_address::<i32, i64>(&cuda, Operator::Sum, shape, axis);
        at_every_address::<i32, i32>(&cuda, Operator::Min, shape, axis);
        at_every_address::<half::f16, half::f16>(&cuda, Operator::Sum, shape, axis);
        at_every_address::<u8, u64>(&cuda, Operator::Sum, shape, axis);
        at_every_address::<u8, u8>(&cuda, Operator::Max, shape, axis);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn axes_of_any_layout_on_the_device() {
    let cuda = Cuda::new(0).unwrap();
    let host = integers(70_000 * 4);
    let x = cuda.upload(&host).unwrap();
    let layouts = [
        Layout::contiguous(&[70_000, 4]).unwrap(),
        Layout::contiguous(&[4, 70_000]).unwrap(),
        Layout::contiguous(&[5, 1025, 7]).unwrap(),
        Layout::strided(&[3, 5, 7], &[-35, 7, -1], 76).unwrap(),
        Layout::strided(&[4, 6], &[0, 2], 1).unwrap(),
        Layout::contiguous(&[0, 4]).unwrap(),
    ];
    for layout in &layouts {
        for axis in (0..layout.rank() as i64).map(Some).chain([None]) {
            for spec in [ScanSpec::inclusive(Operator::Sum), ScanSpec::exclusive_from(Operator::Sum, 9i64).reversed()] {
                let got = scan::scan::<_, i32, i64>(&cuda, spec, &x, Some(layout), axis).unwrap();
                let problem = ScanProblem::new(spec, DType::I32, layout, axis).unwrap();
                let expected = reference(&problem, HostSlice::from(&host[..])).unwrap();
                assert!(got.values.iter().zip(&expected).all(|(got, expected)| fits(*got, expected)), "{problem} of {layout:?}");
            }
        }
    }
}

/// What shows where a rung's launches change: the kernels, their grids, and what they keep between blocks.
fn signature(plan: &ScanPlan) -> String {
    let program = plan.program.as_ref().unwrap();
    let launch = |Step::Launch(l): &Step| format!("{} {} {} ", l.kernel.expression, l.grid, l.shared_bytes);
    let launches: String = program.steps.iter().map(launch).collect();
    format!("{launches} {} {}", program.control.words, program.scratch_bytes)
}

/// Lengths on both sides of a rung's edges, up to `most`: wherever, from one power of two to the next, another kernel takes
/// over or a tile or block more is needed, one place where it does.
fn edges(most: u64, plan_of: impl Fn(u64) -> Option<ScanPlan>) -> Vec<u64> {
    let of = |length: u64| plan_of(length).map(|plan| signature(&plan));
    let mut lengths = vec![1];
    let mut octave = 1;
    while octave < most {
        let (mut low, mut high) = (octave, (2 * octave).min(most));
        let first = of(low);
        if first != of(high) {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if of(middle) == first { low = middle } else { high = middle }
            }
            lengths.extend([low, high, high + 1]);
        }
        octave *= 2;
    }
    lengths.retain(|length| of(*length).is_some());
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

#[test]
#[ignore = "needs a CUDA device"]
fn infinities_and_nan_have_one_convention_at_the_edges_of_every_rung() {
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    const MOST: u64 = 70_000;
    // What stands where in a row: at both ends and in the middle.
    let specials: Vec<Vec<(usize, f64)>> = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN]
        .into_iter()
        .flat_map(|special| [0, 1, 2].map(|place| vec![(place, special)]))
        .chain([vec![(0, f64::INFINITY), (2, f64::NEG_INFINITY)]])
        .collect();
    // The whole of an array, one special row a run; or rows above each other and columns next to each other, all of them in
    // one run, with two that have nothing special.
    type Shape = fn(u64) -> Vec<u64>;
    let forms: [(Shape, Option<i64>); 3] = [(|n| vec![n], None), (|n| vec![12, n], Some(1)), (|n| vec![n, 12], Some(0))];
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
        let all = dtype == DType::F32;
        for operator in [Operator::Sum, Operator::Max, Operator::Prod, Operator::Min].into_iter().take(if all { 4 } else { 2 }) {
            for spec in [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator).reversed()] {
                for (shape, axis) in forms {
                    let problem = |n: u64| ScanProblem::new(spec, dtype, &Layout::contiguous(&shape(n)).unwrap(), axis).unwrap();
                    for rung in cuda_rungs() {
                        let lengths = edges(MOST, |n| claimed(&problem(n), &caps, rung));
                        cases.extend(lengths.into_iter().filter_map(|n| claimed(&problem(n), &caps, rung)));
                    }
                }
            }
        }
    }
    cuda.precompile(cases.iter().filter_map(|plan| plan.program.as_ref())).unwrap();
    let mut covered = std::collections::BTreeMap::<&str, u64>::new();
    for plan in &cases {
        let problem = &plan.problem;
        let (length, inner, rows) = (problem.length() as usize, problem.inner() as usize, problem.rows() as usize);
        // Near one, so that products stay in range.
        let value = |i: usize| 1.0 + f64::from((i as u32).wrapping_mul(2_654_435_761) >> 24) / 4096.0 - 0.03125;
        let base: Vec<f64> = (0..rows * length).map(value).collect();
        for turn in 0..if rows == 1 { specials.len() } else { 1 } {
            let mut values = base.clone();
            for row in 0..rows {
                for (place, special) in specials.get(turn + row).into_iter().flatten().filter(|_| rows > 1 || row == 0) {
                    let place = [0, length / 2, length - 1][*place];
                    values[problem.output_start(row as u64) as usize + place * inner] = *special;
                }
            }
            dispatch!(problem.dtype(), T => {
                let host: Vec<T> = values.iter().map(|x| T::from_f64(*x)).collect();
                let got = run_on_device(&cuda, plan, &host);
                let expected = reference(problem, HostSlice::from(&host[..])).unwrap();
                let wrong = got.iter().zip(&expected).position(|(got, expected): (&T, &Expected)| !fits(*got, expected));
                assert_eq!(wrong, None, "{plan}, {:?}: {:?}", specials.get(turn), wrong.map(|i| (got[i], expected[i])));
            });
        }
        *covered.entry(plan.rung.name).or_default() += 1;
    }
    for rung in cuda_rungs() {
        assert!(covered.contains_key(rung.name), "{} was not walked", rung.id());
    }
    println!("lengths walked, by rung: {covered:?}");
}

/// Runs a plan whose outputs are of the inputs' type, whatever the type.
fn run_on_device<T: Element>(cuda: &Cuda, plan: &ScanPlan, host: &[T]) -> Vec<T> {
    let mut output = vec![T::from_f64(77.0); plan.problem.output_len() as usize];
    cuda.run_from_host(plan, host.into(), output.as_mut_slice().into()).unwrap();
    output
}
