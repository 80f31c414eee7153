//! Every CPU rung of the scan ladder against the oracle: all operators, dtypes, directions and kinds, at every edge of
//! a dispatch.
#![cfg(feature = "cpu")]

#[path = "support/scans.rs"]
mod scans;

use scans::fits;
use upsweep::Error;
use upsweep::device::caps::DeviceKind;
use upsweep::device::cpu::Cpu;
use upsweep::flow::{Body, HostSlice, Op, Rung};
use upsweep::ops::scan::oracle::{Expected, reference};
use upsweep::ops::scan::{self, OPERATORS, Scan, ScanKind, ScanOperands, ScanProblem, ScanSpec};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

/// Around groups, blocks and chunks, and the length from which all threads share a row.
const SHORT: [usize; 14] = [0, 1, 2, 3, 31, 63, 64, 65, 127, 129, 1023, 1024, 1025, 3000];
const LONG: [usize; 6] = [65_535, 65_536, 65_537, 262_143, 262_144, 262_145];

fn rungs() -> Vec<&'static Rung<Scan>> {
    Scan::ladder().iter().filter(|r| r.device() == DeviceKind::Cpu).collect()
}

fn run<T: Element, O: Element>(rung: &Rung<Scan>, problem: &ScanProblem, input: &[T]) -> Vec<O> {
    let Body::Cpu(body) = rung.body else { panic!("{} runs on the host", rung.id()) };
    let mut output = vec![O::from_f64(77.0); problem.output_len() as usize];
    body(problem, ScanOperands { input: input.into(), second: None, output: output.as_mut_slice().into() }).unwrap();
    output
}

fn check_all<O: Element>(got: &[O], expected: &[Expected], context: &dyn Fn() -> String) {
    assert_eq!(got.len(), expected.len(), "{}", context());
    for (position, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(fits(*got, expected), "{}: output {position} is {got:?}, expected {expected:?}", context());
    }
}

/// Bits of outputs; all NaN are one.
fn bits<O: Element>(values: &[O]) -> Vec<String> {
    values.iter().map(|x| format!("{x:?}")).collect()
}

fn check<T: Element>(problem: &ScanProblem, input: &[T], what: &str) {
    let expected = reference(problem, HostSlice::from(input), None).unwrap();
    for rung in rungs() {
        dispatch!(problem.output_dtype(), O => {
            let got = run::<T, O>(rung, problem, input);
            check_all(&got, &expected, &|| format!("{} of {problem}, {what}", rung.id()));
        });
    }
}

/// Elements that are not alike: signed fractions, small for products so that they stay in range.
fn elements<T: Element>(operator: Operator, n: usize, seed: u64) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let product = matches!(operator, Operator::Prod | Operator::WrappingProd);
    let element = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let unit = (state >> 40) as f64 / (1u64 << 24) as f64;
        match (product, T::DTYPE.is_float()) {
            // Around one, so that products of thousands neither vanish nor overflow at once.
            (true, true) => T::from_f64((1.0 + (unit - 0.5) / 64.0) * if state & 64 == 0 { -1.0 } else { 1.0 }),
            (false, true) => T::from_f64(unit * 2.0 - 0.75),
            _ => T::from_i128(i128::from(state as i64 >> 32)),
        }
    };
    (0..n).map(element).collect()
}

fn specs(operator: Operator, dtype: DType) -> Vec<ScanSpec> {
    let initial = |x: f64| dispatch!(operator.output_dtype(dtype), O => ScanSpec::exclusive_from(operator, O::from_f64(x)));
    let from = initial(3.0);
    let forward =
        [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator), from, ScanSpec { kind: ScanKind::Inclusive, ..from }];
    forward.iter().flat_map(|spec| [*spec, spec.reversed()]).collect()
}

fn accepted() -> impl Iterator<Item = (Operator, DType)> {
    OPERATORS.into_iter().flat_map(|o| DType::all().filter(move |d| o.accepts(*d)).map(move |d| (o, d)))
}

#[test]
fn every_scan_operator_dtype_kind_and_direction_at_every_edge() {
    for (operator, dtype) in accepted() {
        dispatch!(dtype, T => {
            let all = elements::<T>(operator, *SHORT.last().unwrap(), 1 + dtype as u64);
            for spec in specs(operator, dtype) {
                for n in SHORT {
                    check(&ScanProblem::whole(spec, dtype, n as u64).unwrap(), &all[..n], "random elements");
                }
            }
        });
    }
}

#[test]
fn chunks_and_threads_change_nothing_but_the_time() {
    let some = [
        (Operator::Sum, DType::F32),
        (Operator::Sum, DType::F64),
        (Operator::Sum, DType::Bf16),
        (Operator::Sum, DType::I8),
        (Operator::Max, DType::F32),
        (Operator::Min, DType::U8),
        (Operator::WrappingProd, DType::I32),
        (Operator::LogSumExp, DType::F32),
        (Operator::LogSumExp, DType::F64),
    ];
    for (operator, dtype) in some {
        dispatch!(dtype, T => {
            let all = elements::<T>(operator, *LONG.last().unwrap(), 5);
            for spec in [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator).reversed()] {
                for n in LONG {
                    check(&ScanProblem::whole(spec, dtype, n as u64).unwrap(), &all[..n], "random elements");
                }
            }
        });
    }
}

#[test]
fn a_scan_has_the_same_bits_for_every_number_of_threads_and_in_every_neighbourhood() {
    let rung = Rung::<Scan>::find(DeviceKind::Cpu, "three_phase").unwrap();
    let n = 5 * 65_536 + 77;
    let x = elements::<f32>(Operator::Sum, 2 * n, 3);
    let spec = ScanSpec::inclusive(Operator::Sum);
    let with = |threads: usize, problem: &ScanProblem, input: &[f32]| -> Vec<f32> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run::<f32, f32>(rung, problem, input))
    };
    let whole = ScanProblem::whole(spec, DType::F32, n as u64).unwrap();
    let alone = with(1, &whole, &x[..n]);
    for threads in [2, 3, 8] {
        assert_eq!(bits(&alone), bits(&with(threads, &whole, &x[..n])), "{threads} threads");
    }
    // The same row beside another one, at an odd offset, and with its elements far apart.
    let two = ScanProblem::new(spec, DType::F32, &Layout::contiguous(&[2, n as u64]).unwrap(), Some(1)).unwrap();
    assert_eq!(bits(&alone), bits(&with(2, &two, &x)[..n]));
    let shifted: Vec<f32> = std::iter::once(1.0).chain(x[..n].iter().copied()).collect();
    let layout = Layout::strided(&[n as u64], &[1], 1).unwrap();
    assert_eq!(bits(&alone), bits(&with(2, &ScanProblem::new(spec, DType::F32, &layout, None).unwrap(), &shifted)));
    let spread: Vec<f32> = x[..n].iter().flat_map(|v| [*v, 9.0]).collect();
    let layout = Layout::strided(&[n as u64], &[2], 0).unwrap();
    assert_eq!(bits(&alone), bits(&with(2, &ScanProblem::new(spec, DType::F32, &layout, None).unwrap(), &spread)));
}

#[test]
fn infinities_and_nan_at_each_end_follow_one_convention() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for operator in [Operator::Sum, Operator::Prod, Operator::Min, Operator::Max, Operator::LogSumExp] {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            dispatch!(dtype, T => {
                for n in [1usize, 2, 7, 8, 64, 65, 1024, 1025] {
                    for special in [inf, -inf, nan] {
                        for at in [0, n / 2, n - 1] {
                            let mut x = elements::<T>(operator, n, n as u64);
                            x[at] = T::from_f64(special);
                            if at > 2 {
                                x[1] = T::from_f64(0.0);
                            }
                            for spec in specs(operator, dtype) {
                                check(&ScanProblem::whole(spec, dtype, n as u64).unwrap(), &x, "a special element");
                            }
                        }
                    }
                }
            });
        }
    }
    // From the first NaN on, and not before it (burn#4814).
    let cpu = Cpu::new();
    let maxima = scan::cummax(&cpu, &[1.0f32, f32::NAN, 5.0][..]).unwrap();
    assert!(maxima[0] == 1.0 && maxima[1].is_nan() && maxima[2].is_nan());
}

#[test]
fn logcumsumexp_of_rising_distant_and_flat_values() {
    let n = 70_000usize;
    type Shape = (&'static str, fn(usize) -> f64);
    let shapes: [Shape; 6] = [
        ("flat", |_| -3.0),
        ("rising slowly", |i| i as f64 * 1e-4),
        ("rising fast", |i| i as f64 * 0.3),
        ("falling", |i| i as f64 * -0.01),
        ("far apart", |i| [0.0, 1000.0, -1000.0, 3.0][i / 37 % 4]),
        ("a tiny first one before large ones", |i| if i == 0 { 1e-7 } else { 7.0 }),
    ];
    for (name, value) in shapes {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::Bf16] {
            dispatch!(dtype, T => {
                let x: Vec<T> = (0..n).map(|i| T::from_f64(value(i))).collect();
                for spec in [ScanSpec::inclusive(Operator::LogSumExp), ScanSpec::exclusive(Operator::LogSumExp).reversed()] {
                    check(&ScanProblem::whole(spec, dtype, n as u64).unwrap(), &x, name);
                }
            });
        }
    }
    let cpu = Cpu::new();
    let inf = f32::INFINITY;
    let sums = scan::logcumsumexp(&cpu, &[-inf, -inf, 2.0, 2.0, inf, 1.0, f32::NAN, 1.0][..]).unwrap();
    assert_eq!(sums[..6], [-inf, -inf, 2.0, 2.0 + 2f32.ln(), inf, inf]);
    assert!(sums[6].is_nan() && sums[7].is_nan());
    let exclusive = scan::scan::<_, f32, f32>(&cpu, ScanSpec::exclusive(Operator::LogSumExp), &[1.0f32, 5.0][..], None, None);
    assert_eq!(exclusive.unwrap().values, [-inf, 1.0]);
    assert!(matches!(scan::logcumsumexp(&cpu, &[1i32][..]), Err(Error::UnsupportedDType { .. })));
}

#[test]
fn every_axis_of_every_layout() {
    let data = elements::<f32>(Operator::Sum, 4000, 9);
    let layouts = [
        Layout::contiguous(&[3, 5, 7]).unwrap(),
        Layout::contiguous(&[1, 70, 1]).unwrap(),
        Layout::contiguous(&[2, 1100]).unwrap(),
        Layout::contiguous(&[1100, 3]).unwrap(),
        Layout::strided(&[3, 5, 7], &[1, 3, 15], 0).unwrap(),
        Layout::strided(&[3, 5, 7], &[-35, 7, -1], 76).unwrap(),
        Layout::strided(&[4, 6], &[0, 2], 1).unwrap(),
        Layout::strided(&[6, 4], &[12, 2], 5).unwrap(),
        Layout::contiguous(&[0, 4]).unwrap(),
        Layout::contiguous(&[4, 0]).unwrap(),
        Layout::contiguous(&[]).unwrap(),
    ];
    for layout in &layouts {
        let axes = (0..layout.rank() as i64).map(Some).chain([None]);
        for axis in axes {
            for spec in specs(Operator::Sum, DType::F32) {
                let problem = ScanProblem::new(spec, DType::F32, layout, axis).unwrap();
                check(&problem, &data, &format!("{layout:?} along {axis:?}"));
            }
        }
    }
}

#[test]
fn many_rows_and_columns() {
    let x = elements::<i32>(Operator::Sum, 70_000 * 4, 4);
    for (shape, axis) in [([70_000, 4], 1), ([70_000, 4], 0), ([4, 70_000], 0), ([4, 70_000], 1), ([280_000, 1], 0)] {
        let layout = Layout::contiguous(&shape).unwrap();
        for spec in [ScanSpec::inclusive(Operator::Sum), ScanSpec::exclusive(Operator::Sum).reversed()] {
            let problem = ScanProblem::new(spec, DType::I32, &layout, Some(axis)).unwrap();
            check(&problem, &x, &format!("{shape:?} along {axis}"));
        }
    }
}

#[test]
fn the_public_fault_reports_about_scans() {
    let cpu = Cpu::new();
    // oneDPL#514: exclusive and in place.
    let mut x = [3i64, 1, 4, 1, 5, 9, 2, 6];
    scan::scan_in_place(ScanSpec::exclusive(Operator::Sum), &mut x).unwrap();
    assert_eq!(x, [0, 3, 4, 8, 9, 14, 23, 25]);
    assert_eq!(scan::exclusive_sum(&cpu, &[3u8, 1, 4, 1, 5, 9, 2, 6][..]).unwrap(), [0, 3, 4, 8, 9, 14, 23, 25]);
    // thrust#1896: the accumulator is not the initial value's narrow type.
    assert_eq!(scan::exclusive_sum(&cpu, &[i64::MAX - 1, 1, 0][..]).unwrap(), [0, i64::MAX - 1, i64::MAX]);
    assert_eq!(scan::exclusive_sum(&cpu, &[0.5f32, 1.25, 2.5][..]).unwrap(), [0.0, 0.5, 1.75]);
    // pytorch#3304: bytes count beyond 255. AcceleratedKernels.jl#91: so do truth values.
    assert_eq!(scan::cumsum(&cpu, &[1u8; 300][..]).unwrap()[299], 300);
    assert_eq!(scan::cumsum(&cpu, &vec![true; 524_288][..]).unwrap()[524_287], 524_288);
    // numpy#14909: a float sum of ones does not stop at 2^24.
    let ones = vec![1.0f32; (1 << 25) + 3];
    for rung in rungs() {
        let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::F32, ones.len() as u64).unwrap();
        let sums = run::<f32, f32>(rung, &problem, &ones);
        assert_eq!(sums[(1 << 25) - 1], 33_554_432.0, "{}", rung.id());
        assert!(sums.is_sorted(), "{}", rung.id());
    }
    // pytorch#2391: halves whose running sum leaves their range on the way.
    let halves: Vec<half::f16> = [32_000.0f32; 4].iter().chain(&[-32_000.0; 4]).map(|v| half::f16::from_f32(*v)).collect();
    assert_eq!(scan::cumsum(&cpu, &halves[..]).unwrap()[7].to_f32(), 0.0);
    // candle#3200: the extremes of integers.
    assert_eq!(scan::cummax(&cpu, &[i64::MIN, -3, -9][..]).unwrap(), [i64::MIN, -3, -3]);
    assert_eq!(scan::cummin(&cpu, &[255u8, 255][..]).unwrap(), [255, 255]);
    // Nothing gives nothing.
    assert!(scan::cummin::<_, f32>(&cpu, &[][..]).unwrap().is_empty());
}

#[test]
fn in_place_gives_the_bits_of_out_of_place() {
    for n in [0usize, 1, 65, 1025, 65_537, 300_001] {
        let x = elements::<f32>(Operator::Sum, n, 11);
        for operator in [Operator::Sum, Operator::Min] {
            for spec in specs(operator, DType::F32) {
                let apart = scan::scan::<_, f32, f32>(&Cpu::new(), spec, &x[..], None, None).unwrap().values;
                let mut together = x.clone();
                scan::scan_in_place(spec, &mut together).unwrap();
                assert_eq!(bits(&apart), bits(&together), "{spec:?} of {n}");
            }
        }
    }
    let error = scan::scan_in_place(ScanSpec::inclusive(Operator::Sum), &mut [1i32]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    let mut narrow = [100i8, 100];
    scan::scan_in_place(ScanSpec::inclusive(Operator::WrappingSum), &mut narrow).unwrap();
    assert_eq!(narrow, [100, -56]);
}

#[test]
fn the_input_is_never_written_and_wrong_operands_are_refused() {
    let x = elements::<f64>(Operator::Sum, 1000, 2);
    let before = x.clone();
    scan::cumsum(&Cpu::new(), &x[..]).unwrap();
    assert_eq!(bits(&x), bits(&before));
    let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Sum), DType::F64, 1000).unwrap();
    assert_eq!(problem.kind(), ScanKind::Inclusive);
    for rung in rungs() {
        let Body::Cpu(body) = rung.body else { unreachable!() };
        let mut short = [0.0f64; 999];
        let operands = ScanOperands { input: x[..].into(), second: None, output: short.as_mut_slice().into() };
        assert!(matches!(body(&problem, operands), Err(Error::LengthMismatch { argument: "output", .. })));
        let mut other = [0.0f32; 1000];
        let operands = ScanOperands { input: x[..].into(), second: None, output: other.as_mut_slice().into() };
        assert!(matches!(body(&problem, operands), Err(Error::DTypeMismatch { argument: "output", .. })));
    }
    let far = Layout::strided(&[1 << 57], &[0], 0).unwrap();
    let spec = ScanSpec::inclusive(Operator::Max);
    let error = scan::scan::<_, f64, f64>(&Cpu::new(), spec, &x[..1], Some(&far), None).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}
