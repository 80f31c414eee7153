//! Scans of two inputs on the CPU: linear recurrences, and scans in segments by keys and by offsets. Every rung against the
//! oracle, at every edge of a dispatch.
#![cfg(feature = "cpu")]

#[path = "support/scans.rs"]
mod scans;

use proptest::prelude::*;
use scans::fits;
use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps, DeviceKind};
use upsweep::device::cpu::Cpu;
use upsweep::flow::{Arg, Body, HostSlice, Op, Rung, Step};
use upsweep::ops::scan::oracle::{linear_recurrence_bound, reference};
use upsweep::ops::scan::{self, OPERATORS, Scan, ScanKind, ScanOperands, ScanProblem, ScanSpec};
use upsweep::types::{DType, Element, Layout, Operator, dispatch};

const RECURRENCE: Operator = Operator::LinearRecurrence;
const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];
const KEYS: [DType; 6] = [DType::I32, DType::I64, DType::U32, DType::U64, DType::U8, DType::I8];

fn rungs() -> Vec<&'static Rung<Scan>> {
    Scan::ladder().iter().filter(|r| r.device() == DeviceKind::Cpu).collect()
}

fn try_run<T: Element, S: Element, O: Element>(
    rung: &Rung<Scan>,
    problem: &ScanProblem,
    input: &[T],
    second: &[S],
    output: &mut [O],
) -> Result<(), Error> {
    let Body::Cpu(body) = rung.body else { panic!("{} runs on the host", rung.id()) };
    body(problem, ScanOperands { input: input.into(), second: Some(second.into()), output: output.into() })
}

fn run<T: Element, S: Element, O: Element>(rung: &Rung<Scan>, problem: &ScanProblem, input: &[T], second: &[S]) -> Vec<O> {
    let mut output = vec![O::from_f64(77.0); problem.output_len() as usize];
    try_run(rung, problem, input, second, &mut output).unwrap();
    output
}

fn check<T: Element, S: Element>(problem: &ScanProblem, input: &[T], second: &[S], what: &str) {
    let expected = reference(problem, HostSlice::from(input), Some(HostSlice::from(second))).unwrap();
    for rung in rungs() {
        dispatch!(problem.output_dtype(), O => {
            let got = run::<T, S, O>(rung, problem, input, second);
            assert_eq!(got.len(), expected.len());
            for (position, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let id = rung.id();
                assert!(fits(*got, expected), "{id} of {problem}, {what}: output {position} is {got:?}, expected {expected:?}");
            }
        });
    }
}

/// Bits of outputs; all NaN are one.
fn bits<O: Element>(values: &[O]) -> Vec<String> {
    values.iter().map(|x| format!("{x:?}")).collect()
}

/// Numbers in -1..1 that are not alike.
fn units(n: usize, seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / (1u64 << 23) as f64 - 1.0
    })
}

fn elements<T: Element>(n: usize, seed: u64) -> Vec<T> {
    let of = |unit: f64| if T::DTYPE.is_float() { T::from_f64(unit) } else { T::from_i128((unit * 1000.0) as i128) };
    units(n, seed).map(of).collect()
}

/// What coefficients do: states fade, stay, grow (for short rows), or begin anew.
#[derive(Clone, Copy, Debug)]
enum Size {
    Fading,
    One,
    Growing,
    Zeros,
}

fn coefficients<T: Element>(n: usize, size: Size) -> Vec<T> {
    let of = |unit: f64| match size {
        Size::Fading => unit,
        Size::One => unit.signum(),
        Size::Growing => unit.signum() * (1.0 + unit.abs()),
        Size::Zeros if unit.abs() < 0.2 => 0.0,
        Size::Zeros => unit.signum() * (0.9 + unit.abs() / 5.0),
    };
    units(n, 77 + n as u64).map(|unit| T::from_f64(of(unit))).collect()
}

fn specs(operator: Operator, dtype: DType) -> Vec<ScanSpec> {
    let from = dispatch!(operator.output_dtype(dtype), O => ScanSpec::exclusive_from(operator, O::from_f64(3.0)));
    let inclusive_from = ScanSpec { kind: ScanKind::Inclusive, ..from };
    let forward = [ScanSpec::inclusive(operator), ScanSpec::exclusive(operator), from, inclusive_from];
    forward.iter().flat_map(|spec| [*spec, spec.reversed()]).collect()
}

fn with_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

#[test]
fn every_recurrence_dtype_kind_and_direction_at_every_edge() {
    for dtype in FLOATS {
        dispatch!(dtype, T => {
            for n in [0usize, 1, 2, 3, 31, 64, 65, 511, 512, 513, 1023, 1024, 1025, 3001] {
                let input = elements::<T>(n, 5);
                for size in [Size::Fading, Size::One, Size::Growing, Size::Zeros] {
                    if matches!(size, Size::Growing) && n > 65 {
                        continue;
                    }
                    let coefficients = coefficients::<T>(n, size);
                    for spec in specs(RECURRENCE, dtype) {
                        let problem = ScanProblem::whole(spec, dtype, n as u64).unwrap();
                        check(&problem, &input, &coefficients, &format!("{size:?} coefficients"));
                    }
                }
            }
        });
    }
}

#[test]
fn recurrences_cross_the_edges_of_chunks() {
    for dtype in FLOATS {
        dispatch!(dtype, T => {
            let input = elements::<T>(262_145, 6);
            for n in [65_535usize, 65_536, 65_537, 131_073, 262_143, 262_145] {
                for size in [Size::Fading, Size::One, Size::Zeros] {
                    let coefficients = coefficients::<T>(n, size);
                    for spec in [ScanSpec::inclusive(RECURRENCE), ScanSpec::exclusive(RECURRENCE).reversed()] {
                        let problem = ScanProblem::whole(spec, dtype, n as u64).unwrap();
                        check(&problem, &input[..n], &coefficients, &format!("{size:?} coefficients"));
                    }
                }
            }
        });
    }
}

#[test]
fn recurrences_along_every_axis_of_every_layout() {
    let (input, coefficients) = (elements::<f32>(210_000, 9), coefficients::<f32>(210_000, Size::Zeros));
    let layouts = [
        Layout::contiguous(&[3, 5, 7]).unwrap(),
        Layout::contiguous(&[2, 1100]).unwrap(),
        Layout::contiguous(&[1100, 3]).unwrap(),
        Layout::contiguous(&[70_000, 3]).unwrap(),
        Layout::contiguous(&[3, 70_000]).unwrap(),
        Layout::strided(&[3, 5, 7], &[-35, 7, -1], 76).unwrap(),
        Layout::strided(&[4, 6], &[0, 2], 1).unwrap(),
        Layout::strided(&[6, 4], &[12, 2], 5).unwrap(),
        Layout::contiguous(&[0, 4]).unwrap(),
        Layout::contiguous(&[4, 0]).unwrap(),
        Layout::contiguous(&[]).unwrap(),
    ];
    for layout in &layouts {
        for axis in (0..layout.rank() as i64).map(Some).chain([None]) {
            for spec in specs(RECURRENCE, DType::F32) {
                let problem = ScanProblem::new(spec, DType::F32, layout, axis).unwrap();
                check(&problem, &input, &coefficients, &format!("{layout:?} along {axis:?}"));
            }
        }
    }
}

#[test]
fn a_recurrence_has_the_same_bits_for_every_number_of_threads_and_in_every_neighbourhood() {
    let rung = Rung::<Scan>::find(DeviceKind::Cpu, "three_phase").unwrap();
    let n = 5 * 65_536 + 77;
    let (b, a) = (elements::<f64>(2 * n, 3), coefficients::<f64>(2 * n, Size::Fading));
    let spec = ScanSpec::inclusive_from(RECURRENCE, 2.5f64);
    let with = |threads, problem: &ScanProblem, b: &[f64], a: &[f64]| -> Vec<String> {
        with_threads(threads, || bits(&run::<f64, f64, f64>(rung, problem, b, a)))
    };
    let whole = ScanProblem::whole(spec, DType::F64, n as u64).unwrap();
    let alone = with(1, &whole, &b[..n], &a[..n]);
    for threads in [2, 3, 8] {
        assert_eq!(alone, with(threads, &whole, &b[..n], &a[..n]), "{threads} threads");
    }
    let two = ScanProblem::new(spec, DType::F64, &Layout::contiguous(&[2, n as u64]).unwrap(), Some(1)).unwrap();
    assert_eq!(alone, with(2, &two, &b, &a)[..n]);
    let shifted = |x: &[f64]| -> Vec<f64> { std::iter::once(1.0).chain(x[..n].iter().copied()).collect() };
    let view = ScanProblem::new(spec, DType::F64, &Layout::strided(&[n as u64], &[1], 1).unwrap(), None).unwrap();
    assert_eq!(alone, with(2, &view, &shifted(&b), &shifted(&a)));
    let spread = |x: &[f64]| -> Vec<f64> { x[..n].iter().flat_map(|v| [*v, 9.0]).collect() };
    let view = ScanProblem::new(spec, DType::F64, &Layout::strided(&[n as u64], &[2], 0).unwrap(), None).unwrap();
    assert_eq!(alone, with(2, &view, &spread(&b), &spread(&a)));
}

#[test]
fn infinities_nan_and_products_out_of_range_follow_one_convention() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for dtype in FLOATS {
        dispatch!(dtype, T => {
            for n in [1usize, 2, 7, 64, 65, 1025] {
                for special in [inf, -inf, nan] {
                    for at in [0, n / 2, n - 1] {
                        let (a, b) = (coefficients::<T>(n, Size::Fading), elements::<T>(n, n as u64));
                        let (mut special_a, mut special_b) = (a.clone(), b.clone());
                        special_a[at] = T::from_f64(special);
                        special_b[at] = T::from_f64(special);
                        for spec in specs(RECURRENCE, dtype) {
                            let problem = ScanProblem::whole(spec, dtype, n as u64).unwrap();
                            check(&problem, &special_b, &a, "a special element");
                            check(&problem, &b, &special_a, "a special coefficient");
                        }
                    }
                }
            }
        });
    }
    let states = |a: &[f32], b: &[f32]| -> Vec<f32> {
        scan::linear_recurrence(&Cpu::new(), ScanSpec::inclusive(RECURRENCE), a, b, None, None).unwrap().values
    };
    // NaN stays, at the first element too, where the coefficient meets an initial state of 0; and not before it.
    let got = states(&[1.0, f32::NAN, 0.0], &[1.0, 2.0, 3.0]);
    assert!(got[0] == 1.0 && got[1].is_nan() && got[2].is_nan());
    assert!(states(&[f32::NAN], &[1.0])[0].is_nan() && states(&[f32::INFINITY], &[1.0])[0].is_nan());
    assert_eq!(states(&[1.0, -1.0, 2.0], &[f32::INFINITY, 1.0, 1.0])[1..], [f32::NEG_INFINITY; 2]);
    // What leaves the range of f32 on the way may come back, or not: the oracle takes either, and no other number.
    let n = 70_000;
    let a: Vec<f32> = (0..n).map(|i| if i % 2000 < 1000 { 2.0 } else { 0.5 }).collect();
    let mut b = vec![0.0f32; n];
    (b[1], b[66_000]) = (1e-30, 1.0);
    check(&ScanProblem::whole(ScanSpec::inclusive(RECURRENCE), DType::F32, n as u64).unwrap(), &b, &a, "out of range and back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_recurrence_is_its_definition_within_the_bound(
        pairs in prop::collection::vec((-1.25f32..1.25, -100.0f32..100.0), 0..1500),
        initial in -10.0f32..10.0,
        reverse: bool,
    ) {
        let (mut a, mut b): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        // Long products of the largest leave f32.
        a.iter_mut().skip(200).for_each(|a| *a /= 1.25);
        let spec = ScanSpec::inclusive_from(RECURRENCE, initial);
        let spec = if reverse { spec.reversed() } else { spec };
        let problem = ScanProblem::whole(spec, DType::F32, b.len() as u64).unwrap();
        let mut got: Vec<Vec<f32>> = rungs().into_iter().map(|rung| run(rung, &problem, &b, &a)).collect();
        if reverse {
            got.iter_mut().for_each(|got| got.reverse());
            a.reverse();
            b.reverse();
        }
        let n = b.len() as u64;
        let (mut state, mut magnitude, mut roundings) = (f64::from(initial), f64::from(initial).abs(), 0.0);
        for (at, (a, b)) in a.iter().zip(&b).enumerate() {
            let (a, b) = (f64::from(*a), f64::from(*b));
            roundings = a.abs() * (roundings + magnitude);
            magnitude = a.abs() * magnitude + b.abs();
            state = a * state + b;
            let bound = linear_recurrence_bound(2f64.powi(-24), n, roundings, magnitude);
            for got in &got {
                prop_assert!((f64::from(got[at]) - state).abs() <= bound, "{at}: {} for {state} within {bound:e}", got[at]);
            }
        }
    }

    #[test]
    fn segments_are_scans_of_their_own(
        lengths in prop::collection::vec(prop_oneof![Just(0usize), 1usize..4, 1usize..200, 1usize..3000], 0..40),
        reverse: bool,
        inclusive: bool,
        key_dtype in 0usize..6,
    ) {
        let mut offsets = vec![0u64];
        lengths.iter().for_each(|length| offsets.push(offsets[offsets.len() - 1] + *length as u64));
        let n = offsets[offsets.len() - 1] as usize;
        let input = elements::<i32>(n, 1 + n as u64);
        let floats: Vec<f32> = elements(n, 2 + n as u64);
        let turn = |spec: ScanSpec| {
            let spec = if inclusive { ScanSpec { kind: ScanKind::Inclusive, ..spec } } else { spec };
            if reverse { spec.reversed() } else { spec }
        };
        let (sum, max) = (turn(ScanSpec::exclusive_from(Operator::Sum, 5i64)), turn(ScanSpec::exclusive_from(Operator::Max, -7i32)));
        let rounding = turn(ScanSpec::exclusive(Operator::Sum));
        let (mut sums, mut maxima, mut near) = (vec![], vec![], vec![]);
        for pair in offsets.windows(2) {
            let (from, to) = (pair[0] as usize, pair[1] as usize);
            sums.extend(scan::scan::<_, i32, i64>(&Cpu::new(), sum, &input[from..to], None, None).unwrap().values);
            maxima.extend(scan::scan::<_, i32, i32>(&Cpu::new(), max, &input[from..to], None, None).unwrap().values);
            let alone = ScanProblem::whole(rounding, DType::F32, (to - from) as u64).unwrap();
            near.extend(reference(&alone, HostSlice::from(&floats[from..to]), None).unwrap());
        }
        let count = lengths.len() as u64;
        let problem = |spec: ScanSpec, dtype| ScanProblem::whole(spec, dtype, n as u64).unwrap();
        dispatch!(KEYS[key_dtype], K => {
            let key = |segment: usize| K::from_i128(segment as i128 * 3 - 50);
            let keys: Vec<K> = lengths.iter().enumerate().flat_map(|(i, length)| vec![key(i); *length]).collect();
            for rung in rungs() {
                let by_offsets = problem(sum.by_offsets(count), DType::I32);
                prop_assert_eq!(&run::<i32, u64, i64>(rung, &by_offsets, &input, &offsets), &sums);
                let by_offsets = problem(max.by_offsets(count), DType::I32);
                prop_assert_eq!(&run::<i32, u64, i32>(rung, &by_offsets, &input, &offsets), &maxima);
                let by_key = problem(sum.by_key(K::DTYPE), DType::I32);
                prop_assert_eq!(&run::<i32, K, i64>(rung, &by_key, &input, &keys), &sums);
                let by_key = problem(rounding.by_key(K::DTYPE), DType::F32);
                let got = run::<f32, K, f32>(rung, &by_key, &floats, &keys);
                prop_assert!(got.iter().zip(&near).all(|(got, expected)| fits(*got, expected)));
            }
        });
    }
}

/// Offsets of segments whose lengths go round, some empty, until `n` elements are covered.
fn offsets_of(n: usize, lengths: &[usize]) -> Vec<u64> {
    let mut offsets = vec![0u64];
    for length in lengths.iter().cycle() {
        let last = offsets[offsets.len() - 1];
        if last as usize >= n {
            break;
        }
        offsets.push((last + *length as u64).min(n as u64));
    }
    offsets
}

fn keys_of<K: Element>(offsets: &[u64]) -> Vec<K> {
    let segments = offsets.windows(2).filter(|pair| pair[0] < pair[1]);
    segments.zip(0..).flat_map(|(pair, number)| (pair[0]..pair[1]).map(move |_| K::from_i128(number % 3))).collect()
}

#[test]
fn segments_of_every_operator_dtype_kind_and_direction() {
    for operator in OPERATORS {
        for (position, dtype) in DType::all().filter(|dtype| operator.accepts(*dtype)).enumerate() {
            dispatch!(dtype, T => {
                for n in [0usize, 1, 2, 65, 1025, 3001] {
                    let input = if operator == Operator::Prod { coefficients::<T>(n, Size::One) } else { elements::<T>(n, 5) };
                    let offsets = offsets_of(n, &[3, 0, 1, 70, 1, 0, 0, 500]);
                    for spec in specs(operator, dtype) {
                        let problem = ScanProblem::whole(spec.by_offsets(offsets.len() as u64 - 1), dtype, n as u64).unwrap();
                        check(&problem, &input, &offsets, "segments");
                        dispatch!(KEYS[position % KEYS.len()], K => {
                            let problem = ScanProblem::whole(spec.by_key(K::DTYPE), dtype, n as u64).unwrap();
                            check(&problem, &input, &keys_of::<K>(&offsets), "segments");
                        });
                    }
                }
            });
        }
    }
}

#[test]
fn segments_cross_the_edges_of_chunks() {
    let n = 262_145usize;
    let input = elements::<f32>(n, 8);
    for lengths in [&[n][..], &[1], &[65_536], &[65_535, 1, 1, 65_535], &[65_537, 3], &[9, 1, 200_000], &[64, 63, 65]] {
        for n in [65_536, 65_537, n] {
            let offsets = offsets_of(n, lengths);
            let (count, keys) = (offsets.len() as u64 - 1, keys_of::<u8>(&offsets));
            for spec in [ScanSpec::inclusive(Operator::Sum), ScanSpec::exclusive_from(Operator::Sum, 2.0f32).reversed()] {
                let problem = ScanProblem::whole(spec.by_offsets(count), DType::F32, n as u64).unwrap();
                check(&problem, &input[..n], &offsets, &format!("{lengths:?}"));
                let problem = ScanProblem::whole(spec.by_key(DType::U8), DType::F32, n as u64).unwrap();
                check(&problem, &input[..n], &keys, &format!("{lengths:?}"));
            }
        }
    }
}

#[test]
fn segments_have_the_same_bits_for_every_number_of_threads() {
    let rung = Rung::<Scan>::find(DeviceKind::Cpu, "three_phase").unwrap();
    let n = 5 * 65_536 + 77;
    let input = elements::<f32>(n, 3);
    let offsets = offsets_of(n, &[1, 100_000, 0, 70, 65_536]);
    let (count, keys) = (offsets.len() as u64 - 1, keys_of::<i64>(&offsets));
    for spec in [ScanSpec::inclusive(Operator::Sum), ScanSpec::inclusive(Operator::Sum).reversed()] {
        let by_offsets = ScanProblem::whole(spec.by_offsets(count), DType::F32, n as u64).unwrap();
        let by_key = ScanProblem::whole(spec.by_key(DType::I64), DType::F32, n as u64).unwrap();
        let alone = with_threads(1, || bits(&run::<f32, u64, f32>(rung, &by_offsets, &input, &offsets)));
        for threads in [1, 2, 3, 8] {
            let again = with_threads(threads, || bits(&run::<f32, u64, f32>(rung, &by_offsets, &input, &offsets)));
            assert_eq!(alone, again, "{threads} threads");
            let again = with_threads(threads, || bits(&run::<f32, i64, f32>(rung, &by_key, &input, &keys)));
            assert_eq!(alone, again, "{threads} threads, by keys");
        }
    }
}

#[test]
fn special_values_at_heads_and_ends_stay_in_their_segment() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let cpu = Cpu::new();
    let x = [1.0, nan, 2.0, inf, 3.0, -0.0, -0.0, inf, -inf, 5.0];
    let offsets = [0u64, 2, 4, 5, 7, 9, 10];
    let sums = |spec| scan::scan_segments::<_, f32, f32>(&cpu, spec, &offsets[..], &x[..]).unwrap().values;
    // Zeros of either sign are one.
    let forward: Vec<f32> = sums(ScanSpec::inclusive(Operator::Sum)).iter().map(|x| x + 0.0).collect();
    assert_eq!(bits(&forward), bits(&[1.0, nan, 2.0, inf, 3.0, 0.0, 0.0, inf, nan, 5.0]));
    let reverse = sums(ScanSpec::inclusive(Operator::Sum).reversed());
    assert!(reverse[0].is_nan() && reverse[2] == inf && reverse[4] == 3.0 && reverse[7].is_nan() && reverse[8] == -inf);
    let problem = ScanProblem::whole(ScanSpec::inclusive(Operator::Max).by_offsets(6), DType::F32, 10).unwrap();
    check(&problem, &x, &offsets, "specials");
}

#[test]
fn wrong_offsets_are_refused_before_anything_is_written() {
    let spec = ScanSpec::inclusive(Operator::Sum);
    for (offsets, word) in [
        (vec![1u64, 10], "first"),
        (vec![0, 9], "last"),
        (vec![0, 11], "last"),
        (vec![0, 6, 5, 10], "before"),
        (vec![0, 11, 10], "before"),
    ] {
        let problem = ScanProblem::whole(spec.by_offsets(offsets.len() as u64 - 1), DType::F32, 10).unwrap();
        for rung in rungs() {
            let mut output = [7.0f32; 10];
            let error = try_run(rung, &problem, &[1.0f32; 10], &offsets, &mut output).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { argument: "offsets", .. }), "{error}");
            assert!(error.to_string().contains(word), "{error}");
            assert_eq!(output, [7.0; 10]);
        }
    }
    let error = scan::scan_segments::<_, f32, f32>(&Cpu::new(), spec, &[][..], &[][..]).unwrap_err();
    assert!(matches!(error, Error::LengthMismatch { argument: "offsets", .. }), "{error}");
    assert!(scan::scan_segments::<_, f32, f32>(&Cpu::new(), spec, &[0][..], &[][..]).unwrap().values.is_empty());
}

#[test]
fn wrong_second_inputs_are_typed_errors_with_their_names() {
    let recurrence = ScanProblem::whole(ScanSpec::inclusive(RECURRENCE), DType::F32, 4).unwrap();
    let sum = ScanSpec::inclusive(Operator::Sum);
    let by_key = ScanProblem::whole(sum.by_key(DType::I32), DType::F32, 4).unwrap();
    let x = [1.0f32; 4];
    for rung in rungs() {
        let mut y = [0.0f32; 4];
        let short = try_run(rung, &recurrence, &x, &x[..3], &mut y);
        assert!(matches!(short, Err(Error::LengthMismatch { argument: "coefficients", got: 3, expected: 4, .. })), "{short:?}");
        let other = try_run(rung, &recurrence, &x, &[1.0f64; 4], &mut y);
        assert!(matches!(other, Err(Error::DTypeMismatch { argument: "coefficients", .. })), "{other:?}");
        let other = try_run(rung, &by_key, &x, &[1i64; 4], &mut y);
        assert!(matches!(other, Err(Error::DTypeMismatch { argument: "keys", .. })), "{other:?}");
        let Body::Cpu(body) = rung.body else { unreachable!() };
        let operands = ScanOperands { input: x[..].into(), second: None, output: y.as_mut_slice().into() };
        assert!(matches!(body(&recurrence, operands), Err(Error::LengthMismatch { argument: "coefficients", .. })));
        let plain = ScanProblem::whole(sum, DType::F32, 4).unwrap();
        let extra = try_run(rung, &plain, &x, &x, &mut y);
        assert!(matches!(extra, Err(Error::InvalidArgument { argument: "second", .. })), "{extra:?}");
    }
    let cpu = Cpu::new();
    let error = scan::linear_recurrence(&cpu, sum, &x[..], &x[..], None, None).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "spec", .. }), "{error}");
    let error = scan::scan_by_key::<_, f32, f32, f32>(&cpu, sum, &x[..], &x[..]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "keys", .. }), "{error}");
    let error = scan::scan_by_key::<_, i32, f32, f32>(&cpu, ScanSpec::inclusive(RECURRENCE), &[1; 4][..], &x[..]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "operator", .. }), "{error}");
    let error = scan::scan_in_place(ScanSpec::inclusive(RECURRENCE), &mut x.clone()).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { argument: "spec", .. }), "{error}");
}

#[test]
fn scans_of_two_inputs_are_planned_for_every_cuda_device() {
    let sum = ScanSpec::inclusive(Operator::Sum);
    let specs = [ScanSpec::inclusive(RECURRENCE), sum.by_key(DType::I32), sum.by_offsets(3).reversed()];
    let reads = |args: &[Arg]| args.iter().any(|arg| matches!(arg, Arg::Input { operand: 1, .. }));
    for (spec, n, caps) in specs.into_iter().flat_map(|spec| {
        [1, 1000, 1 << 20].into_iter().flat_map(move |n| CudaCaps::known().into_iter().map(move |caps| (spec, n, caps)))
    }) {
        let problem = ScanProblem::whole(spec, DType::F32, n).unwrap();
        let copies = caps.compute >= (9, 0);
        let plan = scan::plan(&problem, &Caps::Cuda(caps)).unwrap();
        let in_registers = spec.operator == RECURRENCE && n <= 1000;
        let expected = if in_registers {
            "rows"
        } else if copies {
            "look_ahead"
        } else {
            "three_phase"
        };
        assert_eq!(plan.rung.name, expected, "{plan}");
        let launches = || plan.program.iter().flat_map(|program| &program.steps).map(|Step::Launch(launch)| launch);
        assert!(launches().any(|launch| reads(&launch.args)), "{plan}");
        // Keys and offsets become bits, for whole tiles, before anything is scanned.
        let first = launches().next().unwrap();
        assert_eq!(first.kernel.expression.contains("scan_heads_of"), spec.operator != RECURRENCE, "{plan}");
        assert!(spec.operator == RECURRENCE || plan.scratch_bytes() >= n / 8, "{plan}");
    }
}

#[test]
fn rungs_that_read_one_array_refuse_a_second_with_a_reason() {
    let specs = [
        (ScanSpec::inclusive(RECURRENCE), "coefficients", vec!["three_phase", "axes", "look_ahead", "rows", "columns"]),
        (ScanSpec::inclusive(Operator::Sum).by_key(DType::I32), "segments", vec!["three_phase", "look_ahead"]),
    ];
    for (spec, word, taking) in specs {
        let problem = ScanProblem::whole(spec, DType::F32, 100).unwrap();
        for rung in Scan::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda && !taking.contains(&rung.name)) {
            match Scan::claim(rung, &problem) {
                Err(Error::NotClaimed { why, .. }) => {
                    assert!(why.contains(word) || why.contains("operators are") || why.contains("axis before the last"), "{why}");
                }
                other => panic!("{}: {other:?}", rung.id()),
            }
        }
    }
}
