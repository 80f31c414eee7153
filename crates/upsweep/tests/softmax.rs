//! Softmax, log_softmax and logsumexp: the CPU rungs against the oracle, the online state's laws, the planner, and
//! public fault reports of other libraries with their right answers.
#![cfg(feature = "cpu")]

#[cfg(feature = "cuda")]
#[path = "support/edges.rs"]
mod edges;

use half::{bf16, f16};
use proptest::prelude::*;
use upsweep::Error;
use upsweep::device::caps::{Caps, CpuCaps, CudaCaps, DeviceKind};
use upsweep::device::cpu::Cpu;
use upsweep::flow::{Arg, Body, Expect, HostSlice, HostSliceMut, Launch, Op, Plan, Rung, Step, Tuning};
use upsweep::ops::reduce::oracle::Expected;
use upsweep::ops::softmax::{
    self, Masked, OnlineState, Softmax, SoftmaxKind, SoftmaxOperands, SoftmaxProblem, SoftmaxRung, oracle, plan,
};
use upsweep::types::{DType, Element, Layout, dispatch};

const DTYPES: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::Bf16];
const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn cpu_rungs() -> impl Iterator<Item = &'static SoftmaxRung> {
    Softmax::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cpu)
}

fn rung(name: &str) -> &'static SoftmaxRung {
    Rung::<Softmax>::find(DeviceKind::Cpu, name).unwrap()
}

fn cpu_caps() -> Caps {
    Caps::Cpu(CpuCaps { threads: rayon::current_num_threads(), simd: "", name: String::new() })
}

/// Runs a rung over a problem; the output starts as garbage.
fn run<T: Element>(rung: &'static SoftmaxRung, problem: &SoftmaxProblem, input: &[T]) -> Vec<T> {
    let plan = Plan::<Softmax>::with_rung(problem, &cpu_caps(), rung, Tuning::default(), "test".into()).unwrap();
    let Body::Cpu(body) = &plan.rung.body else { panic!("{} is no CPU rung", rung.id()) };
    let mut output = vec![T::from_f64(77.0); problem.output_len() as usize];
    body(problem, SoftmaxOperands { input: HostSlice::from(input), output: HostSliceMut::from(&mut output[..]) }).unwrap();
    output
}

/// What is wrong with an output, if anything.
fn fault<T: Element>(expected: &Expected, got: T) -> Option<String> {
    let got = got.to_f64();
    match *expected {
        Expected::Nan if got.is_nan() => None,
        Expected::Nan => Some(format!("{got:e}, expected NaN")),
        Expected::Near(near) => {
            let rounded = T::from_f64(near.value).to_f64();
            let error = (got - near.value).abs();
            (got != rounded && (error.is_nan() || error > near.bound))
                .then(|| format!("{got:e}, expected {:e} within {:e}, off by {error:e}", near.value, near.bound))
        }
        Expected::Exact(_) => Some("an integer was expected".into()),
    }
}

fn check<T: Element>(problem: &SoftmaxProblem, input: &[T], what: &str) {
    let expected = oracle::reference(problem, input.into()).unwrap();
    assert_eq!(expected.len() as u64, problem.output_len());
    for rung in cpu_rungs() {
        let output = run(rung, problem, input);
        for (index, (expected, got)) in expected.iter().zip(&output).enumerate() {
            if let Some(fault) = fault(expected, *got) {
                panic!("{} of {problem}, {what}: output {index} is {fault}", rung.id());
            }
        }
    }
}

/// xorshift64*.
struct Random(u64);
impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * ((self.next() >> 11) as f64 / (1u64 << 53) as f64)
    }
}

fn values<T: Element>(n: u64, low: f64, high: f64, seed: u64) -> Vec<T> {
    let mut random = Random(seed.wrapping_mul(2) + 1);
    (0..n).map(|_| T::from_f64(random.within(low, high))).collect()
}

fn bytes<T: Element>(values: &[T]) -> Vec<u8> {
    // SAFETY: elements are plain data without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

/// Lengths around what the rungs cut rows by: packs, warps, lanes, leaves, blocks and the cached row.
const LENGTHS: [u64; 31] = [
    1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097,
    8191, 8193,
];

#[test]
fn every_kind_dtype_and_length_is_within_the_bound() {
    for dtype in DTYPES {
        dispatch!(dtype, T => {
            for (seed, cols) in LENGTHS.into_iter().enumerate() {
                let rows = (600 / cols).clamp(1, 37);
                let input = values::<T>(rows * cols, -4.0, 4.0, seed as u64);
                for kind in SoftmaxKind::ALL {
                    check(&SoftmaxProblem::rows_of(kind, dtype, rows, cols).unwrap(), &input, "moderate logits");
                }
            }
        });
    }
}

#[test]
fn rows_around_the_cached_length_are_within_the_bound() {
    for cols in [65_535u64, 65_536, 65_537, (1 << 17) + 4096, 200_003] {
        for (kind, dtype) in
            [(SoftmaxKind::Softmax, DType::F32), (SoftmaxKind::LogSoftmax, DType::F16), (SoftmaxKind::LogSumExp, DType::Bf16)]
        {
            dispatch!(dtype, T => {
                let input = values::<T>(2 * cols, -4.0, 4.0, cols);
                check(&SoftmaxProblem::rows_of(kind, dtype, 2, cols).unwrap(), &input, "long rows");
            });
        }
    }
    let input = values::<f64>(70_000, -4.0, 4.0, 1);
    for kind in SoftmaxKind::ALL {
        check(&SoftmaxProblem::whole(kind, DType::F64, 70_000).unwrap(), &input, "long rows");
    }
}

#[test]
fn logits_of_any_size_are_safe() {
    for dtype in DTYPES {
        dispatch!(dtype, T => {
            for kind in SoftmaxKind::ALL {
                let problem = SoftmaxProblem::rows_of(kind, dtype, 3, 517).unwrap();
                for (low, high) in [(80.0, 100.0), (-1e4, 1e4), (1e4, 1.0001e4), (-1e4, -0.9999e4), (-100.0, 0.0), (-0.01, 0.01), (7.0, 7.0)] {
                    let input = values::<T>(3 * 517, low, high, 5);
                    check(&problem, &input, &format!("logits in [{low}, {high}]"));
                }
                // Sorted rows change the running maximum with every element.
                for step in [1e-3, -1e-3, 0.1, -0.1] {
                    let ramp: Vec<T> = (0..3 * 517).map(|i| T::from_f64(f64::from(i % 517) * step)).collect();
                    check(&problem, &ramp, &format!("a ramp of {step}"));
                }
                // Differences beyond the range of the type.
                let limits: Vec<T> = (0..3 * 517).map(|i| T::from_f64(if i % 5 == 0 { 3e38 } else { -3e38 })).collect();
                if limits.iter().all(|x| x.to_f64().is_finite()) {
                    check(&problem, &limits, "numbers at the ends of the range");
                }
            }
        });
    }
}

#[test]
fn special_values_have_one_convention_wherever_they_stand() {
    for dtype in DTYPES {
        dispatch!(dtype, T => {
            for cols in [1usize, 2, 3, 31, 32, 33, 64, 100, 257, 1024, 4097] {
                let base = values::<T>(cols as u64, -2.0, 2.0, 9);
                for special in [NAN, INF, -INF] {
                    for position in [0, cols / 2, cols - 1] {
                        let mut row = base.clone();
                        row[position] = T::from_f64(special);
                        special_rows(dtype, &row, &format!("{special} at {position}"));
                    }
                }
                let mut both = base.clone();
                both[0] = T::from_f64(INF);
                both[cols - 1] = T::from_f64(NAN);
                special_rows(dtype, &both, "+inf and NaN");
                let nothing = vec![T::from_f64(-INF); cols];
                special_rows(dtype, &nothing, "all -inf");
                for special in [NAN, INF, 1.0] {
                    for position in [0, cols / 2, cols - 1] {
                        let mut row = nothing.clone();
                        row[position] = T::from_f64(special);
                        special_rows(dtype, &row, &format!("-inf but {special} at {position}"));
                    }
                }
                // The first half masked out: what left padding gives.
                let mut half = base.clone();
                half[..cols / 2].fill(T::from_f64(-INF));
                special_rows(dtype, &half, "half -inf");
            }
        });
    }
}

fn special_rows<T: Element>(dtype: DType, row: &[T], what: &str) {
    for kind in SoftmaxKind::ALL {
        for masked in [Masked::Nan, Masked::Zero] {
            let problem = SoftmaxProblem::whole(kind, dtype, row.len() as u64).unwrap().with_masked(masked);
            check(&problem, row, what);
        }
    }
}

#[test]
fn masked_rows_give_what_was_asked_and_other_rows_are_untouched() {
    let input = [0.0f32, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY, 2.0, 2.0];
    for rung in cpu_rungs() {
        let run = |kind, masked| run(rung, &SoftmaxProblem::rows_of(kind, DType::F32, 3, 2).unwrap().with_masked(masked), &input);
        let nan = run(SoftmaxKind::Softmax, Masked::Nan);
        assert!(nan[2].is_nan() && nan[3].is_nan());
        assert_eq!(nan[4..], [0.5, 0.5]);
        let zero = run(SoftmaxKind::Softmax, Masked::Zero);
        assert_eq!(zero[2..], [0.0, 0.0, 0.5, 0.5]);
        assert_eq!(zero[..2], nan[..2]);
        let log = run(SoftmaxKind::LogSoftmax, Masked::Zero);
        assert_eq!(log[2..4], [f32::NEG_INFINITY; 2]);
        assert!(run(SoftmaxKind::LogSoftmax, Masked::Nan)[2].is_nan());
        for masked in [Masked::Nan, Masked::Zero] {
            assert_eq!(run(SoftmaxKind::LogSumExp, masked)[1], f32::NEG_INFINITY);
        }
    }
}

#[test]
fn any_axis_of_any_strides() {
    let data = values::<f32>(4000, -3.0, 3.0, 3);
    let layouts = [
        Layout::contiguous(&[5, 7, 11]).unwrap(),
        Layout::contiguous(&[3, 1, 100]).unwrap(),
        // Transposed, reversed, padded, broadcast, with an offset.
        Layout::strided(&[11, 5, 7], &[1, 77, 11], 0).unwrap(),
        Layout::strided(&[5, 7], &[-7, 1], 40).unwrap(),
        Layout::strided(&[5, 7], &[7, -1], 6).unwrap(),
        Layout::strided(&[5, 7], &[16, 2], 3).unwrap(),
        Layout::strided(&[4, 33], &[0, 1], 1).unwrap(),
        Layout::strided(&[4, 33], &[1, 0], 1).unwrap(),
        Layout::strided(&[2, 3, 4, 5], &[300, 7, 60, 1], 2).unwrap(),
        Layout::contiguous(&[600, 5]).unwrap(),
        Layout::contiguous(&[2, 40, 33]).unwrap(),
    ];
    for layout in layouts {
        for axis in 0..layout.rank() as i64 {
            for kind in SoftmaxKind::ALL {
                let problem = SoftmaxProblem::new(kind, DType::F32, &layout, axis).unwrap();
                check(&problem, &data, &format!("{layout:?} along {axis}"));
            }
        }
    }
    // Long columns, beyond what is gathered at a time.
    let long = values::<f32>(2 * 66_000, -3.0, 3.0, 4);
    for kind in SoftmaxKind::ALL {
        check(
            &SoftmaxProblem::new(kind, DType::F32, &Layout::contiguous(&[66_000, 2]).unwrap(), 0).unwrap(),
            &long,
            "long columns",
        );
    }
}

#[test]
fn empty_arrays_give_empty_results() {
    for rung in cpu_rungs() {
        for kind in SoftmaxKind::ALL {
            for (shape, axis) in
                [(vec![0u64, 4], 1), (vec![0, 4], 0), (vec![4, 0], 1), (vec![4, 0], 0), (vec![4, 0, 5, 2], 2), (vec![10, 0], -1)]
            {
                let problem = SoftmaxProblem::new(kind, DType::F32, &Layout::contiguous(&shape).unwrap(), axis).unwrap();
                let output = run::<f32>(rung, &problem, &[]);
                assert_eq!(output.len() as u64, problem.output_len());
                // Logsumexp of nothing.
                assert!(output.iter().all(|x| *x == f32::NEG_INFINITY), "{shape:?} along {axis}: {output:?}");
                assert!(kind == SoftmaxKind::LogSumExp || output.is_empty());
            }
        }
    }
}

#[test]
fn online_equals_stable() {
    for (low, high) in [(-2.0, 2.0), (80.0, 100.0), (-1e4, 1e4)] {
        let input = values::<f32>(64 * 300, low, high, 11);
        for kind in SoftmaxKind::ALL {
            let problem = SoftmaxProblem::rows_of(kind, DType::F32, 64, 300).unwrap();
            let stable = run(rung("three_pass"), &problem, &input);
            for other in ["online", "simd"] {
                for (a, b) in stable.iter().zip(run(rung(other), &problem, &input)) {
                    let floor = if kind == SoftmaxKind::Softmax { 1e-37 } else { 1e-6 };
                    assert!((a - b).abs() <= 2e-6 * a.abs() + floor, "{kind} by {other}: {a} and {b}");
                }
            }
        }
    }
}

#[test]
fn rows_sum_to_one() {
    for (low, high) in [(-2.0, 2.0), (80.0, 100.0), (-1e4, 1e4)] {
        for cols in [1u64, 7, 64, 1000, 4096, 70_000] {
            let input = values::<f32>(3 * cols, low, high, cols);
            for rung in cpu_rungs() {
                let output = run(rung, &SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, 3, cols).unwrap(), &input);
                for row in output.chunks(cols as usize) {
                    let sum: f64 = row.iter().map(|x| f64::from(*x)).sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{}: a row of {cols} sums to {sum}", rung.id());
                }
            }
        }
    }
}

#[test]
fn a_rows_bits_do_not_depend_on_the_batch_the_alignment_or_the_threads() {
    for cols in [5u64, 64, 1000, 4100, 70_001] {
        let data = values::<f32>(8 * cols + 9, -5.0, 5.0, cols);
        for kind in SoftmaxKind::ALL {
            for rung in cpu_rungs() {
                let rows = |offset: usize, rows: u64| {
                    run(
                        rung,
                        &SoftmaxProblem::rows_of(kind, DType::F32, rows, cols).unwrap(),
                        &data[offset..offset + (rows * cols) as usize],
                    )
                };
                let all = rows(0, 8);
                let per_row = all.len() / 8;
                for number in [0usize, 3, 7] {
                    let alone = rows(number * cols as usize, 1);
                    assert_eq!(
                        bytes(&alone),
                        bytes(&all[number * per_row..(number + 1) * per_row]),
                        "{} {kind} {cols}",
                        rung.id()
                    );
                }
                for shift in 1..8 {
                    let mut moved = vec![0.0f32; 8];
                    moved.extend_from_slice(&data[..cols as usize]);
                    let moved = [&moved[8 - shift..8], &data[..cols as usize]].concat();
                    let problem = SoftmaxProblem::rows_of(kind, DType::F32, 1, cols).unwrap();
                    assert_eq!(
                        bytes(&run(rung, &problem, &moved[shift..])),
                        bytes(&all[..per_row]),
                        "{} {kind} {cols}",
                        rung.id()
                    );
                }
                let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                assert_eq!(bytes(&one_thread.install(|| rows(0, 8))), bytes(&all), "{} {kind} {cols}", rung.id());
                // The same rows with a stride.
                let spread: Vec<f32> = data[..(8 * cols) as usize].iter().flat_map(|x| [*x, 9.0]).collect();
                let layout = Layout::strided(&[8, cols], &[2 * cols as i64, 2], 0).unwrap();
                let strided = SoftmaxProblem::new(kind, DType::F32, &layout, 1).unwrap();
                assert_eq!(bytes(&run(rung, &strided, &spread)), bytes(&all), "{} {kind} {cols} strided", rung.id());
            }
        }
    }
}

#[test]
fn in_place_gives_the_same_bits() {
    let cpu = Cpu::new();
    for cols in [1u64, 5, 64, 1000, 5000, 70_001] {
        let data = values::<f32>(6 * cols, -5.0, 5.0, cols);
        let mut memory = data.clone();
        softmax::softmax_in_place(&cpu, &mut memory[..], cols).unwrap();
        assert_eq!(bytes(&memory), bytes(&softmax::softmax(&cpu, &data[..], cols).unwrap()), "{cols}");
        let mut memory = data.clone();
        softmax::log_softmax_in_place(&cpu, &mut memory[..], cols).unwrap();
        assert_eq!(bytes(&memory), bytes(&softmax::log_softmax(&cpu, &data[..], cols).unwrap()), "{cols}");
    }
    // Along the first axis, and what cannot be done in place.
    use upsweep::ops::softmax::SoftmaxDevice;
    let layout = Layout::contiguous(&[30, 40]).unwrap();
    let problem = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &layout, 0).unwrap();
    let data = values::<f32>(1200, -5.0, 5.0, 8);
    let mut memory = data.clone();
    cpu.run_in_place(&plan(&problem, cpu.caps()).unwrap(), &mut memory[..]).unwrap();
    assert_eq!(bytes(&memory), bytes(&run(rung("simd"), &problem, &data)));
    for wrong in [
        SoftmaxProblem::rows_of(SoftmaxKind::LogSumExp, DType::F32, 30, 40).unwrap(),
        SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &Layout::strided(&[40, 30], &[1, 40], 0).unwrap(), 0).unwrap(),
    ] {
        let refused = cpu.run_in_place(&plan(&wrong, cpu.caps()).unwrap(), &mut memory[..]);
        assert!(matches!(refused, Err(Error::InvalidArgument { argument: "output", .. })), "{refused:?}");
    }
}

#[test]
fn large_outputs_are_streamed_with_the_same_bits() {
    // 12 MiB of output, more than is stored in the caches' way; rows of 4099 start at every alignment.
    for cols in [64u64, 4099] {
        let rows = (3 << 20) / cols;
        let data = values::<f32>(rows * cols, -5.0, 5.0, cols);
        for kind in [SoftmaxKind::Softmax, SoftmaxKind::LogSoftmax] {
            let problem = SoftmaxProblem::rows_of(kind, DType::F32, rows, cols).unwrap();
            let all = run(rung("simd"), &problem, &data);
            let few = SoftmaxProblem::rows_of(kind, DType::F32, 7, cols).unwrap();
            for start in [0, rows / 2, rows - 7] {
                let range = (start * cols) as usize..((start + 7) * cols) as usize;
                assert_eq!(bytes(&run(rung("simd"), &few, &data[range.clone()])), bytes(&all[range]), "{kind} {cols}");
            }
        }
    }
}

#[test]
fn wrong_operands_are_typed_errors() {
    let cpu = Cpu::new();
    let x = [1.0f32, 2.0, 3.0];
    for cols in [0, 2, 4] {
        let error = softmax::softmax(&cpu, &x[..], cols).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { argument: "cols", .. }), "{error}");
    }
    assert!(softmax::softmax(&cpu, &[1i32, 2][..], 2).is_err());
    let layout = Layout::contiguous(&[2, 2]).unwrap();
    let short = softmax::along(&cpu, SoftmaxKind::Softmax, &x[..], Some(&layout), 1).unwrap_err();
    assert!(matches!(short, Error::LengthMismatch { argument: "input", got: 3, expected: 4, .. }), "{short}");
    let problem = SoftmaxProblem::whole(SoftmaxKind::Softmax, DType::F32, 3).unwrap();
    let Body::Cpu(body) = &rung("simd").body else { panic!() };
    let mut wrong = [0.0f64; 3];
    assert!(body(&problem, SoftmaxOperands { input: (&x[..]).into(), output: (&mut wrong[..]).into() }).is_err());
    let mut short = [0.0f32; 2];
    assert!(body(&problem, SoftmaxOperands { input: (&x[..]).into(), output: (&mut short[..]).into() }).is_err());
}

// ------------------------------------------------------------------ public fault reports

fn softmax_f32(row: &[f32]) -> Vec<f32> {
    softmax::softmax(&Cpu::new(), row, row.len() as u64).unwrap()
}

fn close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance, "{got:?}, expected {want:?}");
    }
}

#[test]
fn reports_of_nan_where_a_part_of_the_row_is_masked() {
    // FlagGems#330, flashinfer#1178, quack#64, torch-mojo-backend#319.
    assert_eq!(softmax_f32(&[f32::NEG_INFINITY, 0.0]), [0.0, 1.0]);
    let mut row = vec![f32::NEG_INFINITY; 512];
    row[256..].fill(1.0);
    let out = softmax_f32(&row);
    assert!(out[..256].iter().all(|x| *x == 0.0) && out[256..].iter().all(|x| *x == 0.003_906_25));
    // Rows shorter than a block: constant rows give 1 / cols.
    for cols in 1..=130usize {
        close(&softmax_f32(&vec![3.0; cols]), &vec![1.0 / cols as f32; cols], 1e-9 + 1e-7);
    }
    assert_eq!(softmax_f32(&[-7.0]), [1.0]);
}

#[test]
fn reports_of_magic_floors_and_large_logits() {
    // burn#4694: a floor of -1e4 under the maximum.
    close(&softmax_f32(&[-20000.0, -20001.0]), &[0.731_058_6, 0.268_941_4], 1e-6);
    // singa#540.
    close(&softmax_f32(&[10000.0, 10001.0, 10002.0, 10003.0]), &[0.032_058_6, 0.087_144_3, 0.236_882_8, 0.643_914_3], 1e-6);
    // mlx#4169, jax#985: log_softmax as x - logsumexp(x).
    for v in [0.0f32, 1e4, 1e8] {
        let out = softmax::log_softmax(&Cpu::new(), &[v, v][..], 2).unwrap();
        close(&out, &[-std::f32::consts::LN_2; 2], 1e-7);
    }
    // llama.cpp#23339: a denormal result, or its flush to zero.
    let out = softmax_f32(&[0.0, -100.0]);
    assert!(out[0] == 1.0 && out[1] >= 0.0 && out[1] <= 4e-44);
    assert_eq!(softmax_f32(&[0.0, -104.0]), [1.0, 0.0]);
}

#[test]
fn reports_of_infinities() {
    // scipy#8872, jax#21501: NaN, as torch has it.
    assert!(softmax_f32(&[f32::INFINITY, 0.0]).iter().all(|x| x.is_nan()));
    assert!(softmax_f32(&[f32::INFINITY, f32::NEG_INFINITY]).iter().all(|x| x.is_nan()));
    let lse = |row: &[f32], cols| softmax::logsumexp(&Cpu::new(), row, cols).unwrap();
    // onnxruntime#28461: -inf twice.
    assert_eq!(lse(&[f32::NEG_INFINITY; 2], 2), [f32::NEG_INFINITY]);
    assert_eq!(lse(&[f32::NEG_INFINITY; 5], 5), [f32::NEG_INFINITY]);
    // mlx#576.
    let out = lse(&[f32::INFINITY, 2.0, 3.0, 4.0, 5.0, 6.0], 3);
    assert!(out[0] == f32::INFINITY && (out[1] - 6.407_606).abs() < 1e-6);
}

#[test]
fn reports_of_16_bit_sums() {
    // last#43: a 16-bit accumulator overflows at 65536 zeros.
    let out = softmax::logsumexp(&Cpu::new(), &vec![f16::ZERO; 65_536][..], 65_536).unwrap();
    assert_eq!(out[0], f16::from_f32(11.09375));
    let out = softmax::softmax(&Cpu::new(), &vec![bf16::ONE; 256][..], 256).unwrap();
    assert!(out.iter().all(|x| x.to_f32() == 1.0 / 256.0));
}

#[test]
fn reports_of_layouts_and_many_rows() {
    // mlx#657: rows of a slice taken as packed.
    let data = values::<f32>(16, -1.0, 1.0, 1);
    let layout = Layout::strided(&[4, 2], &[4, 1], 0).unwrap();
    let out = softmax::along(&Cpu::new(), SoftmaxKind::Softmax, &data[..], Some(&layout), 1).unwrap();
    assert_eq!(out.shape, [4, 2]);
    assert!((out.values.iter().sum::<f32>() - 4.0).abs() < 1e-6);
    // cunn#150 and others: more than 65535 rows.
    for rows in [65_536usize, 70_000] {
        let out = softmax::softmax(&Cpu::new(), &vec![0.0f32; 2 * rows][..], 2).unwrap();
        assert!(out.iter().all(|x| *x == 0.5));
    }
    // pytorch#52716: one column.
    assert!(softmax::softmax(&Cpu::new(), &vec![3.5f32; 100_000][..], 1).unwrap().iter().all(|x| *x == 1.0));
    assert!(softmax::log_softmax(&Cpu::new(), &vec![3.5f32; 100_000][..], 1).unwrap().iter().all(|x| *x == 0.0));
}

// ------------------------------------------------------------------ the online state

fn state_of(row: &[f64]) -> OnlineState {
    row.iter().fold(OnlineState::empty(), |state, &x| state.push(x))
}

fn same(a: OnlineState, b: OnlineState, tolerance: f64) -> bool {
    let number = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * a.abs().max(b.abs());
    // A NaN maximum decides everything; its sum means nothing.
    (a.max.is_nan() && b.max.is_nan()) || (number(a.max, b.max) && number(a.sum, b.sum))
}

fn logit() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => -50.0..50.0f64,
        2 => -1e4..1e4f64,
        2 => Just(-INF),
        1 => Just(INF),
        1 => Just(NAN),
    ]
}

proptest! {
    #[test]
    fn the_online_merge_is_associative_and_commutative(
        a in prop::collection::vec(logit(), 0..6),
        b in prop::collection::vec(logit(), 0..6),
        c in prop::collection::vec(logit(), 0..6),
    ) {
        let (sa, sb, sc) = (state_of(&a), state_of(&b), state_of(&c));
        // Swapping changes no bit; another tree changes roundings alone, and none where infinities or NaN decide.
        prop_assert!(same(sa.merge(sb), sb.merge(sa), 0.0));
        let (left, right) = (sa.merge(sb).merge(sc), sa.merge(sb.merge(sc)));
        prop_assert!(same(left, right, if left.max.is_finite() { 1e-14 } else { 0.0 }), "{left:?} {right:?}");
        // Nothing is the identity, exactly.
        prop_assert!(same(sa.merge(OnlineState::empty()), sa, 0.0) && same(OnlineState::empty().merge(sa), sa, 0.0));
        // And the merge of the parts is the state of the whole.
        let whole = state_of(&[a, b, c].concat());
        prop_assert!(same(left, whole, 1e-14), "{left:?} {whole:?}");
    }

    #[test]
    fn the_online_state_finishes_as_the_definition(row in prop::collection::vec(-700.0..700.0f64, 1..40)) {
        let max = row.iter().copied().fold(-INF, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        let state = state_of(&row);
        prop_assert!((state.finish() - (max + sum.ln())).abs() <= 1e-12 * (1.0 + max.abs()));
        for &x in &row {
            prop_assert!((state.probability(x) - (x - max).exp() / sum).abs() <= 1e-14);
            prop_assert!((state.log_probability(x) - ((x - max) - sum.ln())).abs() <= 1e-12 * (1.0 + (x - max).abs()));
        }
    }
}

#[test]
fn empty_states_stay_empty() {
    let empty = OnlineState::empty();
    assert_eq!(empty.merge(empty), empty);
    assert_eq!(empty.push(-INF).merge(empty.push(-INF)).finish(), -INF);
    assert_eq!(empty.push(-INF).push(2.0).finish(), 2.0);
    assert_eq!(empty.push(INF).push(2.0).finish(), INF);
    assert!(empty.push(INF).push(NAN).finish().is_nan() && empty.push(NAN).push(INF).finish().is_nan());
    assert!(empty.probability(1.0).is_nan());
}

// ------------------------------------------------------------------ the planner

fn launches(problem: &SoftmaxProblem, caps: &CudaCaps) -> Vec<(String, u32, u32)> {
    let plan = plan(problem, &Caps::Cuda(caps.clone())).unwrap();
    assert!(!plan.why.is_empty() && plan.rung.deterministic && plan.rung.expect == Expect::Pass, "{plan}");
    let steps = plan.program.unwrap().steps;
    let name = |expression: &str| expression.replace("upsweep::", "").split('<').next().unwrap().to_string();
    steps.iter().map(|Step::Launch(l)| (name(&l.kernel.expression), l.grid, l.block)).collect()
}

#[test]
fn the_planner_holds_rows_in_registers_on_every_known_device() {
    for caps in CudaCaps::known() {
        for (rows, cols, grid, block) in [
            (1 << 20, 64, 1 << 17, 128),
            (1 << 18, 1024, 1 << 18, 128),
            (1 << 16, 4096, 1 << 16, 512),
            (1 << 14, 1 << 14, 1 << 14, 1024),
        ] {
            let problem = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, rows, cols).unwrap();
            assert_eq!(launches(&problem, &caps), [("softmax_registers".to_string(), grid, block)], "{}", caps.name);
        }
        let long = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, 64, 1 << 22).unwrap();
        let names: Vec<String> = launches(&long, &caps).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["softmax_chunk_states", "softmax_merge_states", "softmax_chunk_outputs"]);
        let rows = SoftmaxProblem::rows_of(SoftmaxKind::LogSumExp, DType::F32, 64, 1 << 22).unwrap();
        assert_eq!(launches(&rows, &caps).len(), 2);
        let column = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &Layout::contiguous(&[100, 50]).unwrap(), 0).unwrap();
        assert_eq!(launches(&column, &caps), [("softmax_axes".to_string(), 2, 1024)]);
        let column =
            SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &Layout::contiguous(&[100_000, 2]).unwrap(), 0).unwrap();
        assert_eq!(launches(&column, &caps)[0].0, "softmax_chunk_states");
    }
}

/// The whole numbers among a kernel expression's template arguments.
fn numbers(expression: &str) -> Vec<u64> {
    expression.split(['<', '>', ',']).filter_map(|part| part.trim().parse().ok()).collect()
}

#[test]
fn every_row_length_has_a_kernel_that_holds_it() {
    let caps = Caps::Cuda(CudaCaps::known().remove(4));
    for dtype in DTYPES {
        let most = if dtype == DType::F64 { 16_384 } else { 32_768 };
        let lengths = (0..300)
            .chain([511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 5000, 8191, 8192, 8193, 12_288, 16_383, 16_384])
            .chain([
                16_385,
                16_388,
                20_000,
                32_760,
                32_767,
                32_768,
                32_769,
                50_257,
                131_072,
                (1 << 20) + 13,
                1 << 31,
                (1 << 33) + 1,
            ]);
        for cols in lengths {
            for (rows, block) in [(1, 0), (70_000, 0), (1 << 33, 0), (3, 64), (3, 256), (3, 1024)] {
                let rows = if cols > 1 << 20 { rows.min(3) } else { rows };
                let problem = SoftmaxProblem::rows_of(SoftmaxKind::LogSumExp, dtype, rows, cols).unwrap();
                let name = plan(&problem, &caps).unwrap().rung.name;
                assert_eq!(name, if cols <= most { "registers" } else { "long_rows" }, "{problem}");
                let rung = Rung::<Softmax>::find(DeviceKind::Cuda, name).unwrap();
                let plan = Plan::with_rung(&problem, &caps, rung, Tuning { block }, String::new()).unwrap();
                for Step::Launch(launch) in &plan.program.as_ref().unwrap().steps {
                    assert!(launch.grid >= 1 && launch.block <= 1024 && launch.block.is_power_of_two());
                    let expression = &launch.kernel.expression;
                    if expression.contains("registers") {
                        let [lanes, packs, width, threads, resident] = numbers(expression)[..] else { panic!("{expression}") };
                        assert!(lanes * packs * width >= cols && cols % width == 0, "{expression} for {problem}");
                        assert!(
                            (packs - 1) * lanes * width < cols.max(1),
                            "{expression} for {problem} has packs without elements"
                        );
                        assert!(lanes.is_power_of_two() && (lanes <= 32 || lanes == threads), "{expression}");
                        assert!(width * dtype.size() <= 16 && resident >= 1 && threads * resident <= 2048, "{expression}");
                        assert!(packs * width <= most / 1024, "{expression}: too many registers");
                    }
                }
            }
        }
    }
}

#[test]
fn a_rows_kernel_does_not_depend_on_the_number_of_rows_or_the_device() {
    for cols in [1u64, 64, 1000, 4096, 16_384, 65_536, 1 << 22] {
        let kernels = |rows: u64, caps: &CudaCaps| -> Vec<String> {
            let problem = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, rows, cols).unwrap();
            let program = plan(&problem, &Caps::Cuda(caps.clone())).unwrap().program.unwrap();
            // But for how many of its blocks the registers are shared out: that changes no bit.
            let bits = |l: &Launch| match l.kernel.expression.rsplit_once(',') {
                Some((bits, _)) if bits.contains("registers") => bits.to_string(),
                _ => l.kernel.expression.clone(),
            };
            program.steps.iter().map(|Step::Launch(l)| bits(l)).collect()
        };
        let first = kernels(1, &CudaCaps::known()[0]);
        for caps in CudaCaps::known() {
            assert_eq!(first, kernels(1, &caps));
            assert_eq!(first, kernels(70_000, &caps));
        }
    }
}

#[test]
fn sizes_are_counted_in_64_bits_and_scratch_is_small() {
    let caps = Caps::Cuda(CudaCaps::known().remove(4));
    for (rows, cols) in [(1u64 << 31, 3u64), ((1 << 31) + 1, 2), (1, (1 << 32) + 1), (1 << 20, 1 << 13), (3, (1 << 31) + 7)] {
        let problem = SoftmaxProblem::rows_of(SoftmaxKind::Softmax, DType::F32, rows, cols).unwrap();
        let plan = plan(&problem, &caps).unwrap();
        assert_eq!(problem.bytes(), 8 * rows * cols);
        // One state for each chunk and row.
        assert!(plan.scratch_bytes() <= rows * cols / 500 + 64, "{plan}");
        for Step::Launch(launch) in &plan.program.as_ref().unwrap().steps {
            let counts: Vec<u64> = launch.args.iter().filter_map(|a| if let Arg::U64(n) = a { Some(*n) } else { None }).collect();
            let words = launch.args.iter().any(|a| matches!(a, Arg::Words(w) if w[0] == rows && w[1] == cols));
            assert!(words || counts.contains(&rows), "{plan}");
        }
    }
}

#[test]
fn rungs_claim_what_they_can_do() {
    let caps = Caps::Cuda(CudaCaps::known().remove(4));
    let with = |name: &str, problem: &SoftmaxProblem| {
        let rung = Rung::<Softmax>::find(DeviceKind::Cuda, name).unwrap();
        Plan::with_rung(problem, &caps, rung, Tuning::default(), String::new())
    };
    let of = |dtype, rows, cols| SoftmaxProblem::rows_of(SoftmaxKind::Softmax, dtype, rows, cols).unwrap();
    for name in ["unshifted", "three_pass", "online", "online_vector"] {
        assert!(with(name, &of(DType::F32, 3, 65_536)).is_ok());
        assert!(with(name, &of(DType::F32, 3, 65_537)).is_err());
        assert!(with(name, &of(DType::F16, 3, 5)).is_err());
    }
    assert!(with("registers", &of(DType::F32, 3, 32_768)).is_ok() && with("registers", &of(DType::F32, 3, 32_769)).is_err());
    let column = SoftmaxProblem::new(SoftmaxKind::Softmax, DType::F32, &Layout::contiguous(&[100, 50]).unwrap(), 0).unwrap();
    for (name, takes) in [("three_pass", false), ("registers", false), ("long_rows", true), ("axes", true)] {
        assert_eq!(with(name, &column).is_ok(), takes, "{name}");
        let empty = with(name, &of(DType::F32, 0, 5)).unwrap();
        assert_eq!(empty.program.unwrap().launches(), 0);
    }
    let rung = Rung::<Softmax>::find(DeviceKind::Cuda, "registers").unwrap();
    assert!(Plan::with_rung(&of(DType::F32, 3, 5), &caps, rung, Tuning { block: 96 }, String::new()).is_err());
    // Tiles: the narrowest that holds a row; softmax of f32, rows of 32-bit distances.
    for (cols, tile) in [(1, "softmax<32, 64>"), (64, "softmax<32, 64>"), (65, "softmax<4, 1024>"), (4097, "softmax<1, 16384>")] {
        let plan = with("tiles", &of(DType::F32, 100, cols)).unwrap();
        let program = plan.program.unwrap();
        let [Step::Launch(launch)] = &program.steps[..] else { panic!("{program}") };
        assert_eq!(launch.kernel.expression, tile);
        assert_eq!(u64::from(launch.grid), 100u64.div_ceil(numbers(tile)[0]));
    }
    let log_softmax = SoftmaxProblem::rows_of(SoftmaxKind::LogSoftmax, DType::F32, 3, 5).unwrap();
    for refused in [of(DType::F32, 3, 16_385), of(DType::F64, 3, 5), of(DType::F32, 1 << 31, 1), log_softmax, column] {
        assert!(matches!(with("tiles", &refused), Err(upsweep::Error::NotClaimed { .. })), "{refused}");
    }
    let unshifted = Rung::<Softmax>::find(DeviceKind::Cuda, "unshifted").unwrap();
    assert_eq!(unshifted.expect, Expect::Rejected("large_logits"));
}

// ------------------------------------------------------------------ a CUDA device

/// On a machine with a device: `--include-ignored`.
#[cfg(feature = "cuda")]
mod cuda {
    use super::edges::{claimed, count_by_rung, edges, without_an_edge};
    use super::*;
    use upsweep::device::cuda::Cuda;
    use upsweep::flow::{DeviceMut, DeviceRef};
    use upsweep::ops::softmax::{SoftmaxDevice, SoftmaxDeviceOperands};

    fn device() -> Cuda {
        Cuda::new(0).unwrap()
    }

    fn cuda_rungs() -> impl Iterator<Item = &'static SoftmaxRung> {
        Softmax::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cuda)
    }

    fn check_rungs(cuda: &Cuda, problem: &SoftmaxProblem, input: &[f32], what: &str) {
        let expected = oracle::reference(problem, input.into()).unwrap();
        let memory = cuda.upload(input).unwrap();
        for rung in cuda_rungs().filter(|rung| rung.expect == Expect::Pass) {
            let Ok(plan) = Plan::with_rung(problem, &cuda.capabilities(), rung, Tuning::default(), String::new()) else {
                continue;
            };
            let output: Vec<f32> = cuda.run(&plan, &memory).unwrap();
            for (index, (expected, got)) in expected.iter().zip(&output).enumerate() {
                if let Some(fault) = fault(expected, *got) {
                    panic!("{} of {problem}, {what}: output {index} is {fault}", rung.id());
                }
            }
        }
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn rungs_agree_with_the_oracle() {
        let cuda = device();
        for (rows, cols) in [
            (300u64, 2u64),
            (3, 64),
            (9, 33),
            (5, 1000),
            (5, 1024),
            (5, 1025),
            (3, 4096),
            (2, 5001),
            (2, 16_384),
            (2, 32_768),
            (2, 32_769),
            (1, 70_001),
        ] {
            let mut input = values::<f32>(rows * cols, -4.0, 4.0, cols);
            input[..cols as usize / 2].fill(f32::NEG_INFINITY);
            if rows > 1 {
                input[cols as usize..2 * cols as usize].fill(f32::NEG_INFINITY);
            }
            if rows > 2 {
                input[2 * cols as usize] = f32::INFINITY;
            }
            for kind in SoftmaxKind::ALL {
                for masked in [Masked::Nan, Masked::Zero] {
                    let problem = SoftmaxProblem::rows_of(kind, DType::F32, rows, cols).unwrap().with_masked(masked);
                    check_rungs(&cuda, &problem, &input, "rows");
                }
            }
        }
        let data = values::<f32>(4000, -3.0, 3.0, 3);
        for (layout, axis) in [
            (Layout::contiguous(&[5, 7, 11]).unwrap(), 1),
            (Layout::strided(&[11, 5, 7], &[1, 77, 11], 0).unwrap(), 2),
            (Layout::strided(&[5, 64], &[-68, 1], 68 * 4 + 1).unwrap(), 1),
            (Layout::strided(&[5, 7], &[7, -1], 6).unwrap(), 1),
            (Layout::strided(&[4, 33], &[0, 1], 1).unwrap(), 1),
        ] {
            for kind in SoftmaxKind::ALL {
                check_rungs(&cuda, &SoftmaxProblem::new(kind, DType::F32, &layout, axis).unwrap(), &data, "strided");
            }
        }
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn in_place_and_at_any_alignment_the_bits_are_the_same() {
        let cuda = device();
        let stream = cuda.stream().clone();
        for cols in [2u64, 64, 1000, 1024, 4096, 16_384, 40_000] {
            let data = values::<f32>(5 * cols + 4, -5.0, 5.0, cols);
            for kind in [SoftmaxKind::Softmax, SoftmaxKind::LogSoftmax] {
                let problem = SoftmaxProblem::rows_of(kind, DType::F32, 5, cols).unwrap();
                let n = problem.output_len();
                for rung in cuda_rungs() {
                    let Ok(plan) = Plan::with_rung(&problem, &cuda.capabilities(), rung, Tuning::default(), String::new()) else {
                        continue;
                    };
                    let apart: Vec<f32> = cuda.run(&plan, &cuda.upload(&data[..n as usize]).unwrap()).unwrap();
                    let mut memory = cuda.upload(&data[..n as usize]).unwrap();
                    cuda.run_in_place(&plan, &mut memory).unwrap();
                    assert_eq!(bytes(&cuda.download(&memory).unwrap()), bytes(&apart), "{} of {problem} in place", rung.id());
                    for shift in 1..4u64 {
                        let mut moved = data.clone();
                        moved.rotate_right(shift as usize);
                        let input = cuda.upload(&moved).unwrap();
                        let mut output = cuda.upload(&vec![0.0f32; n as usize + 4]).unwrap();
                        let mut scratch = cuda.upload(&vec![0u8; plan.scratch_bytes() as usize]).unwrap();
                        let mut prepared = cuda.prepare(&plan).unwrap();
                        cuda.scope(&stream, |scope| {
                            let (from, to) =
                                (DeviceRef::of::<f32, _>(&input, &stream), DeviceMut::of::<f32, _>(&mut output, &stream));
                            // SAFETY: both ranges lie within the allocations, which the scope borrows.
                            let operands = unsafe {
                                SoftmaxDeviceOperands {
                                    input: DeviceRef::from_raw(from.address() + 4 * shift, n, DType::F32)?,
                                    output: DeviceMut::from_raw(to.address() + 4 * (4 - shift), n, DType::F32)?,
                                }
                            };
                            scope.enqueue(&mut prepared, operands, Some(DeviceMut::of::<u8, _>(&mut scratch, &stream)))
                        })
                        .unwrap();
                        let all = cuda.download(&output).unwrap();
                        let start = 4 - shift as usize;
                        assert_eq!(bytes(&all[start..start + n as usize]), bytes(&apart), "{} of {problem} shifted", rung.id());
                    }
                }
            }
        }
    }

    /// What stands in the rows of one problem, above or next to each other, and where (the start, the middle, the end); all
    /// else is between -2 and 2, or -inf where the first number says so. Two rows have nothing special.
    fn special_rows_of_one_problem() -> Vec<(f64, Vec<(usize, f64)>)> {
        let mut rows = Vec::new();
        for special in [NAN, INF, -INF] {
            rows.extend([0, 1, 2].map(|place| (0.0, vec![(place, special)])));
        }
        for special in [NAN, INF, 1.0] {
            rows.extend([0, 1, 2].map(|place| (-INF, vec![(place, special)])));
        }
        rows.extend([(0.0, vec![(0, INF), (2, NAN)]), (-INF, vec![]), (0.0, vec![]), (0.0, vec![])]);
        rows
    }

    /// The rungs that are expected to pass: the others fail on purpose, and claim what rung 1 does.
    fn passing() -> impl Iterator<Item = &'static SoftmaxRung> {
        cuda_rungs().filter(|rung| rung.expect == Expect::Pass)
    }

    /// The plans that stand at the edges of every rung, of `count` rows whose elements are neighbours, and of as many
    /// columns. Longer than the longest row that a block holds.
    fn plans_at_edges(caps: &Caps, count: u64) -> Vec<Plan<Softmax>> {
        const MOST: u64 = 40_000;
        let mut plans = Vec::new();
        for dtype in DTYPES {
            for kind in SoftmaxKind::ALL {
                for masked in [Masked::Nan, Masked::Zero].into_iter().take(if dtype == DType::F32 { 2 } else { 1 }) {
                    for axis in [1, 0] {
                        let problem = |n: u64| {
                            let layout = Layout::contiguous(&if axis == 1 { [count, n] } else { [n, count] }).unwrap();
                            SoftmaxProblem::new(kind, dtype, &layout, axis).unwrap().with_masked(masked)
                        };
                        for rung in passing() {
                            plans.extend(edges(MOST, |n| claimed(&problem(n), caps, rung)));
                        }
                    }
                }
            }
        }
        plans
    }

    #[test]
    fn the_walk_stands_on_both_sides_of_an_edge_of_every_rung_that_has_one() {
        let caps = Caps::Cuda(CudaCaps::known().into_iter().find(|caps| caps.compute >= (9, 0)).unwrap());
        let plans = plans_at_edges(&caps, special_rows_of_one_problem().len() as u64);
        let missing = without_an_edge(&plans, |plan| plan.problem.cols(), passing());
        // These have one launch for a row of any length, so there is nothing to walk round but a row of one element; the
        // full cases of the judge meet their loops' ends.
        let without = ["softmax/1-three_pass", "softmax/2-online", "softmax/3-online_vector"];
        assert_eq!(missing, without, "{:?}", count_by_rung(&plans));
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn infinities_and_nan_have_one_convention_at_the_edges_of_every_rung() {
        let cuda = device();
        let caps = cuda.capabilities();
        let rows = special_rows_of_one_problem();
        let count = rows.len() as u64;
        let cases = plans_at_edges(&caps, count);
        assert!(!cases.is_empty());
        cuda.precompile(cases.iter().filter_map(|plan| plan.program.as_ref())).unwrap();
        for plan in &cases {
            let problem = &plan.problem;
            let cols = problem.cols();
            let base = values::<f64>(count * cols, -2.0, 2.0, 9);
            dispatch!(problem.dtype(), T => {
                let mut input: Vec<T> = base.iter().map(|x| T::from_f64(*x)).collect();
                let at = |row: usize, place: u64| {
                    if problem.inner() == 1 { row as u64 * cols + place } else { place * count + row as u64 }
                };
                for (row, (all, special)) in rows.iter().enumerate() {
                    if *all == -INF {
                        (0..cols).for_each(|place| input[at(row, place) as usize] = T::from_f64(-INF));
                    }
                    for (place, value) in special {
                        input[at(row, [0, cols / 2, cols - 1][*place]) as usize] = T::from_f64(*value);
                    }
                }
                let expected = oracle::reference(problem, HostSlice::from(&input[..])).unwrap();
                let mut output = vec![T::from_f64(77.0); problem.output_len() as usize];
                cuda.run_from_host(plan, HostSlice::from(&input[..]), HostSliceMut::from(&mut output[..])).unwrap();
                for (index, (expected, got)) in expected.iter().zip(&output).enumerate() {
                    if let Some(fault) = fault(expected, *got) {
                        panic!("{plan} of {problem}: output {index} is {fault}");
                    }
                }
            });
        }
        println!("lengths walked, by rung: {:?}", count_by_rung(&cases));
    }
}
