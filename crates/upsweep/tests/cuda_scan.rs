//! Scans on a real GPU. Ignored (and shown as ignored) where there is none; run with `--include-ignored` on a machine
//! with a device.
#![cfg(feature = "cuda")]

#[path = "support/edges.rs"]
mod edges;
#[path = "support/scans.rs"]
mod scans;

use cudarc::driver::DeviceRepr;
use edges::{claimed, count_by_rung, edges, without_an_edge};
use scans::fits;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::device::cuda::Cuda;
use upsweep::flow::{DeviceMut, DeviceRef, HostSlice, Op};
use upsweep::ops::scan::oracle::{Expected, reference};
use upsweep::ops::scan::{self, Scan, ScanDeviceOperands, ScanPlan, ScanProblem, ScanRung, ScanSpec};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

fn integers(n: usize) -> Vec<i32> {
    (0..n).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 20) as i32 - 2048).collect()
}

fn cuda_rungs() -> impl Iterator<Item = &'static ScanRung> {
    Scan::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda)
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
        for rung in cuda_rungs() {
            for operator in [Operator::Sum, Operator::Max] {
                let inclusive = ScanSpec::inclusive(operator);
                for spec in
                    [inclusive, ScanSpec::exclusive(operator), inclusive.reversed(), ScanSpec::exclusive(operator).reversed()]
                {
                    let problem = |dtype| ScanProblem::whole(spec, dtype, n as u64).unwrap();
                    let Some(plan) = claimed(&problem(DType::F32), &caps, rung) else { continue };
                    let got = scan::run_plan::<_, f32, f32>(&cuda, &plan, &device_floats).unwrap().values;
                    let expected = reference(&plan.problem, HostSlice::from(&floats[..]), None).unwrap();
                    let wrong = got.iter().zip(&expected).position(|(got, expected)| !fits(*got, expected));
                    assert_eq!(wrong, None, "{plan}: {:?}", wrong.map(|i| (got[i], expected[i])));
                    // Sums of i32 are wider than themselves: a block holds fewer.
                    let Some(plan) = claimed(&problem(DType::I32), &caps, rung) else { continue };
                    let expected = reference(&plan.problem, HostSlice::from(&ints[..]), None).unwrap();
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
    let keeps_words = |plan: &ScanPlan| plan.program.as_ref().is_some_and(|program| program.control.words > 0);
    let single_passes: Vec<ScanPlan> = plans(&problem, &caps).into_iter().filter(keeps_words).collect();
    assert!(!single_passes.is_empty());
    for plan in single_passes {
        let mut prepared = cuda.prepare(&plan).unwrap();
        for call in 0..1000 {
            cuda.scope(&stream, |scope| {
                let (input, output) = (DeviceRef::of::<u8, _>(&trues, &stream), DeviceMut::of::<u64, _>(&mut output, &stream));
                scope.enqueue(&mut prepared, ScanDeviceOperands { input, second: None, output }, None)
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
            scope.enqueue(&mut prepared, ScanDeviceOperands { input, second: None, output }, Some(scratch))
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

/// Scans a part of a larger array into a part of another one, at every address within 16 bytes of each: rows of one length, or
/// columns. Types of four bytes and more go through all pairs of addresses; of the many pairs of narrower ones, each address
/// meets the same one, the next and an aligned one.
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
                let expected = reference(&problem, HostSlice::from(&host[from..from + n]), None).unwrap();
                let places = 16 / size_of::<R>();
                let some = [from % places, (from + 1) % places, 0];
                for to in (0..places).filter(|to| size_of::<T>() >= 4 || some.contains(to)) {
                    stream.memset_zeros(&mut output).unwrap();
                    {
                        // SAFETY: every bit pattern of these types is a value.
                        let mut results = unsafe { output.transmute_mut::<R>(n + 32) }.unwrap();
                        let (elements, mut part) = (input.slice(from..from + n), results.slice_mut(to..to + n));
                        cuda.scope(stream, |scope| {
                            let input = DeviceRef::of::<T, _>(&elements, stream);
                            let output = DeviceMut::of::<R, _>(&mut part, stream);
                            let scratch = DeviceMut::of::<u8, _>(&mut scratch, stream);
                            scope.enqueue(&mut prepared, ScanDeviceOperands { input, second: None, output }, Some(scratch))
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
    // One row of some tiles; rows of several tiles, of a block, of a few lanes; columns that are walked down, that are cut, and that are staged.
    let shapes = [
        ([1, 50_021], 1),
        ([3, 17_003], 1),
        ([5, 4100], 1),
        ([77, 100], 1),
        ([300, 7], 1),
        ([300, 77], 0),
        ([3000, 12], 0),
        ([40, 1028], 0),
        ([600, 260], 0),
    ];
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
                let expected = reference(&problem, HostSlice::from(&host[..]), None).unwrap();
                assert!(got.values.iter().zip(&expected).all(|(got, expected)| fits(*got, expected)), "{problem} of {layout:?}");
            }
        }
    }
}

/// The plans that stand at the edges of every rung: rounding and exact operators, both directions; the whole of an array,
/// rows above each other, and columns next to each other. Longer than three of the largest tiles.
fn plans_at_edges(caps: &Caps) -> Vec<ScanPlan> {
    const MOST: u64 = 70_000;
    type Shape = fn(u64) -> Vec<u64>;
    let forms: [(Shape, Option<i64>); 3] = [(|n| vec![n], None), (|n| vec![12, n], Some(1)), (|n| vec![n, 12], Some(0))];
    let mut plans = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
        let all = dtype == DType::F32;
        for operator in [Operator::Sum, Operator::Max, Operator::Prod, Operator::Min].into_iter().take(if all { 4 } else { 2 }) {
            for spec in [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator).reversed()] {
                for (shape, axis) in forms {
                    let problem = |n: u64| ScanProblem::new(spec, dtype, &Layout::contiguous(&shape(n)).unwrap(), axis).unwrap();
                    for rung in cuda_rungs() {
                        plans.extend(edges(MOST, |n| claimed(&problem(n), caps, rung)));
                    }
                }
            }
        }
    }
    plans
}

#[test]
fn the_walk_stands_on_both_sides_of_an_edge_of_every_rung() {
    let caps = Caps::Cuda(CudaCaps::known().into_iter().find(|caps| caps.compute >= (9, 0)).unwrap());
    let plans = plans_at_edges(&caps);
    let missing = without_an_edge(&plans, |plan| plan.problem.length(), cuda_rungs());
    assert!(missing.is_empty(), "{missing:?} of {:?}", count_by_rung(&plans));
}

#[test]
#[ignore = "needs a CUDA device"]
fn infinities_and_nan_have_one_convention_at_the_edges_of_every_rung() {
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    // What stands where in a row: at both ends and in the middle.
    let specials: Vec<Vec<(usize, f64)>> = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN]
        .into_iter()
        .flat_map(|special| [0, 1, 2].map(|place| vec![(place, special)]))
        .chain([vec![(0, f64::INFINITY), (2, f64::NEG_INFINITY)]])
        .collect();
    let cases = plans_at_edges(&caps);
    assert!(!cases.is_empty());
    cuda.precompile(cases.iter().filter_map(|plan| plan.program.as_ref())).unwrap();
    for plan in &cases {
        let problem = &plan.problem;
        let (length, inner, rows) = (problem.length() as usize, problem.inner() as usize, problem.rows() as usize);
        // Near one, so that products stay in range.
        let value = |i: usize| 1.0 + f64::from((i as u32).wrapping_mul(2_654_435_761) >> 24) / 4096.0 - 0.03125;
        let base: Vec<f64> = (0..rows * length).map(value).collect();
        // The whole of an array has one special row a run; rows and columns have all of them, and two with nothing special.
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
                let expected = reference(problem, HostSlice::from(&host[..]), None).unwrap();
                let wrong = got.iter().zip(&expected).position(|(got, expected): (&T, &Expected)| !fits(*got, expected));
                assert_eq!(wrong, None, "{plan}, {:?}: {:?}", specials.get(turn), wrong.map(|i| (got[i], expected[i])));
            });
        }
    }
    println!("lengths walked, by rung: {:?}", count_by_rung(&cases));
}

/// Runs a plan whose outputs are of the inputs' type, whatever the type.
fn run_on_device<T: Element>(cuda: &Cuda, plan: &ScanPlan, host: &[T]) -> Vec<T> {
    let mut output = vec![T::from_f64(77.0); plan.problem.output_len() as usize];
    cuda.run_from_host(plan, host.into(), output.as_mut_slice().into()).unwrap();
    output
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_bits_of_a_row_depend_on_nothing_around_it() {
    // Few rows and many, which other kernels may take: threads, a ring of tiles, a walk, steps.
    let cuda = Cuda::new(0).unwrap();
    let caps = Caps::Cuda(cuda.caps().clone());
    for dtype in [DType::F32, DType::F64, DType::F16] {
        for spec in [
            ScanSpec::inclusive(Operator::Sum),
            ScanSpec::exclusive(Operator::Sum).reversed(),
            ScanSpec::inclusive(Operator::Prod),
        ] {
            for length in [7u64, 100, 3000, 4096, 8192, 8193, 9000, 16_384, 20_001, 65_536, 65_537, 100_001] {
                for axis in [1i64, 0] {
                    dispatch!(dtype, T => {
                        let of = |count: u64| {
                            let shape = if axis == 1 { [count, length] } else { [length, count] };
                            let problem = ScanProblem::new(spec, dtype, &Layout::contiguous(&shape).unwrap(), Some(axis)).unwrap();
                            let value = |i: u64| 1.0 + f64::from((i as u32).wrapping_mul(2_654_435_761) >> 22) / 65_536.0 - 1.0 / 128.0;
                            let element = |at: u64| {
                                let (row, place) = if axis == 1 { (at / length, at % length) } else { (at % count, at / count) };
                                // The same values in every third row.
                                T::from_f64(value(place * 3 + row % 3))
                            };
                            let host: Vec<T> = (0..count * length).map(element).collect();
                            let plan = scan::plan(&problem, &caps).unwrap();
                            let got = run_on_device(&cuda, &plan, &host);
                            let row = |row: u64| -> Vec<u64> {
                                (0..length).map(|p| got[(if axis == 1 { row * length + p } else { p * count + row }) as usize].to_f64().to_bits()).collect()
                            };
                            let last = (count - 1) / 3 * 3;
                            assert!(row(0) == row(last), "{plan}: rows 0 and {last}");
                            (plan.to_string(), row(0))
                        };
                        let (alone, bits) = of(if axis == 1 { 1 } else { 4 });
                        // Columns enough for a walk, where that is not too much for a test.
                        let most = if axis == 0 && length <= 4096 { 8000 } else if length <= 20_001 { 300 } else { 40 };
                        for count in [5, 36, most] {
                            let (among, its) = of(count);
                            assert!(bits == its, "{alone} and {among}");
                        }
                    });
                }
            }
        }
    }
}
