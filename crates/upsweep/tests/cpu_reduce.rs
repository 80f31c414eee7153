//! The CPU rungs against references written here: exact integers, and compensated f64 for floats.
#![cfg(feature = "cpu")]

use upsweep::device::caps::{Caps, CpuCaps, DeviceKind};
use upsweep::flow::{Body, HostSlice, HostSliceMut, Op, Plan, Rung, Tuning};
use upsweep::ops::reduce::{Reduce, ReduceOperands, ReduceProblem, ReduceRung, read_ceiling};
use upsweep::types::{Accuracy, DType, Element, Kind, Layout, Operator, dispatch};

const EDGES: [u64; 16] = [1, 2, 31, 32, 33, 127, 128, 129, 1023, 1024, 1025, 65535, 65536, 65537, (1 << 17) + 5, (1 << 20) + 13];

fn cpu_rungs() -> impl Iterator<Item = &'static ReduceRung> {
    Reduce::ladder().iter().filter(|rung| rung.device() == DeviceKind::Cpu)
}

fn rung(name: &str) -> &'static ReduceRung {
    Rung::<Reduce>::find(DeviceKind::Cpu, name).unwrap()
}

fn caps() -> Caps {
    Caps::Cpu(CpuCaps { threads: rayon::current_num_threads(), simd: "", name: String::new() })
}

/// Runs a rung over a problem; the output starts as garbage.
fn run<T: Element, O: Element>(rung: &'static ReduceRung, problem: &ReduceProblem, input: &[T]) -> Vec<O> {
    let plan = Plan::<Reduce>::with_rung(problem, &caps(), rung, Tuning::default(), "test".into()).unwrap();
    let Body::Cpu(body) = &plan.rung.body else { panic!("{} is no CPU rung", rung.id()) };
    let mut output = vec![O::from_f64(77.0); problem.shape().outputs as usize];
    body(problem, ReduceOperands { input: HostSlice::from(input), output: HostSliceMut::from(&mut output[..]) }).unwrap();
    output
}

fn bytes<O: Element>(values: &[O]) -> Vec<u8> {
    // SAFETY: elements are plain data without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }.to_vec()
}

/// The output's bytes, for bitwise comparisons.
fn bits<T: Element>(rung: &'static ReduceRung, problem: &ReduceProblem, input: &[T]) -> Vec<u8> {
    dispatch!(problem.output_dtype(), O => bytes(&run::<T, O>(rung, problem, input)))
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
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Elements for an operator: signed fractions for floats, the whole range for integers. Products get signs and a few
/// factors, so that they neither overflow nor vanish.
fn elements<T: Element>(operator: Operator, n: u64, seed: u64) -> Vec<T> {
    let mut random = Random(seed.wrapping_mul(2) + 1);
    let is_float = T::DTYPE.is_float();
    (0..n)
        .map(|i| match operator {
            Operator::Prod if is_float && i % 9973 == 5 => T::from_f64([0.5, 2.0, 1.25][(random.next() % 3) as usize]),
            Operator::Prod if is_float => T::from_f64(if random.next() >> 63 == 0 { 1.0 } else { -1.0 }),
            Operator::Prod | Operator::WrappingProd => T::from_i128((random.next() | 1) as i128),
            _ if is_float => T::from_f64(4.0 * random.unit() - 2.0),
            _ => T::from_i128(random.next() as i128),
        })
        .collect()
}

/// Neumaier's compensated sum.
fn exact_sum(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut low) = (0.0f64, 0.0f64);
    for x in values {
        let next = sum + x;
        low += if sum.abs() >= x.abs() { (sum - next) + x } else { (x - next) + sum };
        sum = next;
    }
    if sum.is_finite() { sum + low } else { sum }
}

/// What a result must be.
#[derive(Debug)]
enum Expected {
    /// This integer, wrapped to the output's width.
    Integer(i128),
    /// Within the bound of a number; NaN and infinities exactly.
    Near(f64, f64),
}

/// The longest chain of roundings that a sum of `n` may take: 16 in a lane, then a tree.
fn chain(n: u64) -> f64 {
    18.0 + (n.max(1) as f64).log2()
}

fn reference<T: Element>(operator: Operator, accuracy: Accuracy, x: &[T]) -> Expected {
    let row = T::DTYPE.row();
    let (n, is_float) = (x.len() as f64, row.kind == Kind::Float);
    let float = || x.iter().map(|v| v.to_f64());
    let accumulator = row.accumulator.row().unit_roundoff;
    let magnitude = || exact_sum(float().map(f64::abs));
    // What a float sum may be off before its one rounding to the output.
    let slack = |unit: f64| match accuracy {
        Accuracy::Fast => chain(x.len() as u64) * unit * magnitude(),
        Accuracy::Compensated => n * 2f64.powi(-100) * magnitude(),
    };
    let near = |value: f64, slack: f64, unit: f64| Expected::Near(value, slack + 1.001 * unit * value.abs());
    let has_nan = float().any(f64::is_nan);
    let best = |less: fn(f64, f64) -> bool, skip_nan: bool| {
        let mut best: Option<usize> = None;
        for (i, v) in x.iter().enumerate() {
            let v64 = v.to_f64();
            if v64.is_nan() {
                if skip_nan {
                    continue;
                }
                return Some(i);
            }
            // Integers compare exactly.
            let better = best.is_none_or(|b| if is_float { less(v64, x[b].to_f64()) } else { less_exact(less, *v, x[b]) });
            if better {
                best = Some(i);
            }
        }
        best
    };
    let value = |position: Option<usize>| match position {
        None => Expected::Near(f64::NAN, 0.0),
        Some(i) if is_float => Expected::Near(x[i].to_f64(), 0.0),
        Some(i) => Expected::Integer(x[i].to_i128()),
    };
    let least: fn(f64, f64) -> bool = |a, b| a < b;
    let greatest: fn(f64, f64) -> bool = |a, b| a > b;
    match operator {
        Operator::Sum if is_float => near(exact_sum(float()), slack(accumulator), row.unit_roundoff),
        Operator::Sum | Operator::WrappingSum => Expected::Integer(x.iter().fold(0i128, |s, v| s.wrapping_add(v.to_i128()))),
        Operator::Prod if is_float => {
            let product: f64 = float().product();
            near(product, n * accumulator * product.abs(), row.unit_roundoff)
        }
        Operator::Prod | Operator::WrappingProd => {
            let product = x.iter().fold(1u64, |p, v| p.wrapping_mul(v.to_i128() as u64));
            Expected::Integer(product as i128)
        }
        Operator::Min => value(best(least, false)),
        Operator::Max => value(best(greatest, false)),
        Operator::NanMin => value(best(least, true)),
        Operator::NanMax => value(best(greatest, true)),
        Operator::ArgMin => Expected::Integer(best(least, false).unwrap() as i128),
        Operator::ArgMax => Expected::Integer(best(greatest, false).unwrap() as i128),
        Operator::Mean if is_float => near(exact_sum(float()) / n, slack(accumulator) / n, row.unit_roundoff),
        Operator::Mean => {
            let unit = 2f64.powi(-53);
            let sum = x.iter().fold(0i128, |s, v| s + v.to_i128());
            Expected::Near(sum as f64 / n, (chain(x.len() as u64) + 3.0) * unit * magnitude() / n)
        }
        Operator::LinearRecurrence | Operator::User => unreachable!("a reduction"),
        Operator::LogSumExp => {
            let max = float().fold(f64::NEG_INFINITY, |m, v| if v > m { v } else { m });
            if has_nan {
                Expected::Near(f64::NAN, 0.0)
            } else if max.is_infinite() {
                Expected::Near(max, 0.0)
            } else {
                let total = max + exact_sum(float().map(|v| (v - max).exp())).ln();
                // The sum's chain, the exponential's own error, and the rounding of x - max, which weighs up to ln n.
                near(total, (6.0 + 2.0 * chain(x.len() as u64)) * accumulator, row.unit_roundoff + 2f64.powi(-51))
            }
        }
    }
}

fn less_exact<T: Element>(less: fn(f64, f64) -> bool, a: T, b: T) -> bool {
    let order = a.to_i128().cmp(&b.to_i128()) as i8 as f64;
    less(order, 0.0)
}

fn check<O: Element>(got: O, expected: &Expected, context: &dyn Fn() -> String) {
    match *expected {
        Expected::Integer(value) => assert_eq!(got, O::from_i128(value), "{}", context()),
        Expected::Near(value, _) if value.is_nan() => assert!(got.to_f64().is_nan(), "{} gave {got:?}, not NaN", context()),
        Expected::Near(value, bound) => {
            let rounded = O::from_f64(value).to_f64();
            let got = got.to_f64();
            // The nearest output always passes: it is what an exact implementation returns, infinite or not.
            let error = (got - value).abs();
            assert!(got == rounded || error <= bound, "{}: {got} for {value}, off by {error:e}, bound {bound:e}", context());
        }
    }
}

fn verify<T: Element>(operator: Operator, accuracy: Accuracy, x: &[T], what: &str) {
    let problem = ReduceProblem::whole(operator, T::DTYPE, x.len() as u64).unwrap().with_accuracy(accuracy).unwrap();
    let expected = reference(operator, accuracy, x);
    for rung in cpu_rungs() {
        let context = || format!("{} of {problem}, {accuracy:?}, {what}", rung.id());
        dispatch!(problem.output_dtype(), O => check(run::<T, O>(rung, &problem, x)[0], &expected, &context));
    }
}

fn accuracies(operator: Operator, dtype: DType) -> Vec<Accuracy> {
    let both = [Accuracy::Fast, Accuracy::Compensated];
    let problem = ReduceProblem::whole(operator, dtype, 1).unwrap();
    both.into_iter().filter(|a| problem.clone().with_accuracy(*a).is_ok()).collect()
}

fn accepted() -> impl Iterator<Item = (Operator, DType)> {
    DType::all().flat_map(|dtype| Operator::reductions().filter(move |o| o.accepts(dtype)).map(move |o| (o, dtype)))
}

#[test]
fn every_operator_dtype_and_rung_at_every_edge() {
    for (operator, dtype) in accepted() {
        dispatch!(dtype, T => {
            let all = elements::<T>(operator, *EDGES.iter().max().unwrap(), 1 + dtype as u64);
            for accuracy in accuracies(operator, dtype) {
                for n in EDGES {
                    verify::<T>(operator, accuracy, &all[..n as usize], "random elements");
                }
            }
        });
    }
}

#[test]
fn nothing_reduces_to_the_contract() {
    for (operator, dtype) in accepted() {
        let problem = ReduceProblem::whole(operator, dtype, 0);
        if operator.row().empty_is_error {
            assert!(problem.is_err(), "{operator} of no {dtype}");
            continue;
        }
        let expected = match operator {
            Operator::Mean => f64::NAN,
            Operator::LogSumExp => f64::NEG_INFINITY,
            Operator::Prod | Operator::WrappingProd => 1.0,
            _ => 0.0,
        };
        for rung in cpu_rungs() {
            let problem = problem.clone().unwrap();
            dispatch!(dtype, T => dispatch!(problem.output_dtype(), O => {
                let got = run::<T, O>(rung, &problem, &[])[0].to_f64();
                assert!(got == expected || (got.is_nan() && expected.is_nan()), "{} of {problem}: {got}", rung.id());
            }));
        }
    }
}

/// Places special values at ends, at block and chunk edges and in the middle.
#[test]
fn nan_and_infinity_wherever_they_stand() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    for (operator, dtype) in accepted().filter(|(o, d)| d.is_float() && *o != Operator::Prod) {
        dispatch!(dtype, T => {
            for n in [1, 2, 31, 33, 64, 65, 129, 1025, 4097, 65537, 131_077] {
                let base = elements::<T>(operator, n, 7);
                let last = n as usize - 1;
                for at in [0, 1, last / 2, 4096, 65536, last].into_iter().filter(|at| *at <= last) {
                    // One special value; then NaN after, and before, an infinity.
                    for (here, at_last, at_first) in
                        [(nan, None, None), (inf, None, None), (-inf, None, None), (nan, Some(inf), None), (nan, None, Some(-inf))]
                    {
                        let mut x = base.clone();
                        if let Some(value) = at_first {
                            x[0] = T::from_f64(value);
                        }
                        if let Some(value) = at_last {
                            x[last] = T::from_f64(value);
                        }
                        x[at] = T::from_f64(here);
                        verify::<T>(operator, Accuracy::Fast, &x, &format!("{here} at {at}"));
                    }
                }
            }
        });
    }
}

#[test]
fn two_nan_and_all_nan() {
    for dtype in DType::all().filter(|d| d.is_float()) {
        dispatch!(dtype, T => {
            for n in [2usize, 100, 5000, 70_000] {
                let mut x = elements::<T>(Operator::Max, n as u64, 3);
                x[n / 2] = T::from_f64(f64::NAN);
                x[n - 1] = T::from_f64(f64::NAN);
                let all_nan = vec![T::from_f64(f64::NAN); n];
                for operator in [Operator::Min, Operator::Max, Operator::ArgMin, Operator::ArgMax, Operator::NanMin, Operator::NanMax] {
                    verify::<T>(operator, Accuracy::Fast, &x, "two NaN");
                    verify::<T>(operator, Accuracy::Fast, &all_nan, "all NaN");
                }
            }
        });
    }
}

#[test]
fn infinities_are_identities_and_not_sentinels() {
    for dtype in DType::all().filter(|d| d.is_float()) {
        dispatch!(dtype, T => {
            for n in [1usize, 2, 10, 100, 5000, 70_000] {
                for value in [f64::INFINITY, f64::NEG_INFINITY] {
                    let x = vec![T::from_f64(value); n];
                    for operator in Operator::reductions().filter(|o| o.accepts(dtype) && *o != Operator::Prod) {
                        verify::<T>(operator, Accuracy::Fast, &x, "all infinite");
                    }
                }
                // Leading -inf, as masks and padding make them.
                let mut x = vec![T::from_f64(f64::NEG_INFINITY); n];
                x[n - 1] = T::from_f64(0.5);
                for operator in [Operator::LogSumExp, Operator::Max, Operator::ArgMax, Operator::NanMax, Operator::NanMin] {
                    verify::<T>(operator, Accuracy::Fast, &x, "one finite at the end");
                }
            }
        });
    }
}

#[test]
fn integer_limits() {
    for dtype in DType::all().filter(|d| !d.is_float()) {
        dispatch!(dtype, T => {
            for value in [i64::MIN as i128, i64::MAX as i128, u64::MAX as i128, 0, 255, -1, 1 << 31, (1 << 31) - 1, 128, 127] {
                for n in [1, 2, 65, 5000, 70_000] {
                    let x = vec![T::from_i128(value); n];
                    for operator in Operator::reductions().filter(|o| o.accepts(dtype)) {
                        verify::<T>(operator, Accuracy::Fast, &x, "a limit");
                    }
                }
            }
        });
    }
}

#[test]
fn ties_go_to_the_lowest_index_and_zeros_tie() {
    for n in [2usize, 63, 64, 65, 4096, 4097, 65_537, 200_003] {
        let zeros: Vec<f32> = (0..n).map(|i| if i % 2 == 0 { -0.0 } else { 0.0 }).collect();
        let flipped: Vec<f32> = zeros.iter().map(|x| -x).collect();
        for operator in [Operator::ArgMin, Operator::ArgMax] {
            verify(operator, Accuracy::Fast, &zeros, "zeros");
            verify(operator, Accuracy::Fast, &flipped, "zeros");
        }
        for (first, second) in [(0, n - 1), (n / 2, n - 1), (n / 3, n / 2)] {
            let mut x = elements::<f32>(Operator::ArgMax, n as u64, 9);
            (x[first], x[second]) = (5.0, 5.0);
            verify(Operator::ArgMax, Accuracy::Fast, &x, "a tie");
            (x[first], x[second]) = (-5.0, -5.0);
            verify(Operator::ArgMin, Accuracy::Fast, &x, "a tie");
        }
    }
}

#[test]
fn sorted_rows_move_the_best_in_every_block() {
    let up: Vec<f32> = (0..300_000).map(|i| i as f32).collect();
    let down: Vec<f32> = up.iter().rev().copied().collect();
    for x in [&up, &down] {
        for operator in [Operator::ArgMin, Operator::ArgMax, Operator::Min, Operator::Max, Operator::LogSumExp] {
            verify(operator, Accuracy::Fast, x, "sorted");
        }
    }
}

#[test]
fn logsumexp_of_large_and_distant_values() {
    for (name, make) in [
        ("80 to 100", (|i: usize| 80.0 + (i % 21) as f64) as fn(usize) -> f64),
        ("-1e4", |i| -1e4 + (i % 7) as f64),
        ("one far above", |i| if i == 70_001 { 60.0 } else { -30.0 }),
        ("17 below one", |i| if i == 0 { 0.0 } else { -17.3 }),
        ("zeros", |_| 0.0),
        ("blocks far apart", |i| (i / 4096) as f64 * 11.0 - 300.0),
        ("close to the type's limits", |i| if i % 2 == 0 { 60_000.0 } else { -60_000.0 }),
    ] {
        for dtype in DType::all().filter(|d| d.is_float()) {
            dispatch!(dtype, T => {
                let x: Vec<T> = (0..131_072).map(|i| T::from_f64(make(i))).collect();
                verify::<T>(Operator::LogSumExp, Accuracy::Fast, &x, name);
            });
        }
    }
}

#[test]
fn ill_conditioned_sums_need_and_get_compensation() {
    let mut random = Random(11);
    let n = 100_000usize;
    let mut x: Vec<f64> = (0..n).map(|_| (random.unit() - 0.5) * 2f64.powi((random.next() % 80) as i32)).collect();
    let negated: Vec<f64> = x.iter().rev().map(|v| -v).collect();
    x.extend(negated);
    x.push(1.0 / 3.0);
    verify(Operator::Sum, Accuracy::Compensated, &x, "cancelling");
    verify(Operator::Mean, Accuracy::Compensated, &x, "cancelling");
    let narrow: Vec<f32> = x.iter().map(|v| *v as f32).collect();
    verify(Operator::Sum, Accuracy::Compensated, &narrow, "cancelling");
    // Ones stick at 2^24 in a single f32 accumulator.
    let ones = vec![1.0f32; (1 << 24) + 3];
    for rung in cpu_rungs() {
        let problem = ReduceProblem::whole(Operator::Sum, DType::F32, ones.len() as u64).unwrap();
        assert_eq!(run::<f32, f32>(rung, &problem, &ones), [16_777_220.0], "{}", rung.id());
    }
}

#[test]
fn half_types_accumulate_in_f32() {
    use upsweep::half::f16;
    let mut x = vec![f16::from_f32(32_000.0); 4];
    x.extend([f16::from_f32(-32_000.0); 4]);
    verify(Operator::Sum, Accuracy::Fast, &x, "beyond f16 on the way");
    verify(Operator::Mean, Accuracy::Fast, &[f16::from_f32(60_000.0); 2], "beyond f16 on the way");
    verify(Operator::LogSumExp, Accuracy::Fast, &[f16::ZERO; 65_536], "65536 zeros");
    verify(Operator::Sum, Accuracy::Fast, &[f16::ONE; 4097], "ones beyond 2048");
    // Subnormals are elements like others.
    let subnormal: Vec<f16> = (0..2000).map(f16::from_bits).collect();
    verify(Operator::Sum, Accuracy::Fast, &subnormal, "subnormals");
    verify(Operator::Max, Accuracy::Fast, &subnormal, "subnormals");
}

/// Every layout gives the bits of its rows laid out contiguously, on every rung: strides are no part of a result.
#[test]
fn strides_axes_and_batches_change_no_bits() {
    let data = elements::<f32>(Operator::Sum, 300_000, 21);
    // Shape, strides, offset, axes.
    type Case = (&'static [u64], &'static [i64], u64, &'static [i64]);
    let cases: [Case; 14] = [
        (&[1000], &[3], 1, &[0]),
        (&[1000], &[-1], 999, &[0]),
        (&[70_000], &[-4], 280_000, &[0]),
        (&[5000], &[0], 17, &[0]),
        (&[3, 5, 7], &[35, 7, 1], 0, &[1]),
        (&[3, 5, 7], &[35, 7, 1], 4, &[0, 2]),
        (&[3, 5, 7], &[35, 7, 1], 0, &[-1]),
        (&[3, 5, 7], &[35, 7, 1], 0, &[0, 1, 2]),
        (&[4, 300], &[0, 1], 5, &[1]),
        (&[300, 400], &[400, 1], 0, &[0]),
        (&[400, 300], &[400, -1], 299, &[1]),
        (&[2, 130_000], &[130_000, 1], 3, &[1]),
        (&[50, 20, 70], &[1400, -70, 1], 1330, &[0, 2]),
        (&[300_000, 1], &[1, 1], 0, &[1]),
    ];
    for (shape, strides, offset, axes) in cases {
        let layout = Layout::strided(shape, strides, offset).unwrap();
        for operator in [Operator::Sum, Operator::Max, Operator::ArgMin, Operator::LogSumExp, Operator::Mean, Operator::NanMax] {
            let problem = ReduceProblem::new(operator, DType::F32, &layout, Some(axes)).unwrap();
            let rows = rows_of(shape, strides, offset, axes, &data);
            assert_eq!(rows.len() as u64, problem.shape().outputs);
            for rung in cpu_rungs() {
                let got = bits(rung, &problem, &data);
                // Rows beyond a thousand are checked one in 997.
                let step = if rows.len() > 1000 { 997 } else { 1 };
                for (o, row) in rows.iter().enumerate().step_by(step) {
                    let whole = ReduceProblem::whole(operator, DType::F32, row.len() as u64).unwrap();
                    let alone = bits(rung, &whole, row);
                    let size = alone.len();
                    assert_eq!(
                        got[o * size..(o + 1) * size],
                        alone,
                        "{} of {problem}, output {o}, strides {strides:?}",
                        rung.id()
                    );
                }
            }
        }
    }
}

/// The rows that a layout and axes describe, by plain nested counting.
fn rows_of(shape: &[u64], strides: &[i64], offset: u64, axes: &[i64], data: &[f32]) -> Vec<Vec<f32>> {
    let rank = shape.len() as i64;
    let reduced: Vec<bool> = (0..rank).map(|a| axes.iter().any(|x| (x + rank) % rank == a)).collect();
    let total: u64 = shape.iter().product();
    let outputs: u64 = (0..shape.len()).filter(|a| !reduced[*a]).map(|a| shape[a]).product();
    let mut rows = vec![Vec::new(); outputs as usize];
    for flat in 0..total {
        let (mut rest, mut index, mut output, mut scale) = (flat, offset as i64, 0, 1);
        for axis in (0..shape.len()).rev() {
            let position = rest % shape[axis];
            rest /= shape[axis];
            index += position as i64 * strides[axis];
            if !reduced[axis] {
                output += position * scale;
                scale *= shape[axis];
            }
        }
        rows[output as usize].push(data[index as usize]);
    }
    rows
}

#[test]
fn extents_of_zero() {
    let problem = |shape: &[u64], axes: &[i64], operator| {
        ReduceProblem::new(operator, DType::F32, &Layout::contiguous(shape).unwrap(), Some(axes))
    };
    for rung in cpu_rungs() {
        assert!(run::<f32, f32>(rung, &problem(&[0, 4], &[1], Operator::Max).unwrap(), &[]).is_empty());
        assert!(run::<f32, u64>(rung, &problem(&[0, 1], &[1], Operator::ArgMax).unwrap(), &[]).is_empty());
        assert_eq!(run::<f32, f32>(rung, &problem(&[4, 0], &[1], Operator::Sum).unwrap(), &[]), [0.0; 4]);
        assert_eq!(run::<f32, f32>(rung, &problem(&[0, 4], &[0], Operator::Sum).unwrap(), &[]), [0.0; 4]);
    }
    assert!(problem(&[4, 0], &[1], Operator::Max).is_err());
}

#[test]
fn many_rows() {
    for (rows, columns) in [(65_536u64, 2u64), (70_000, 2), (1000, 33), (70_000, 1), (3, 100_000)] {
        let x = elements::<f32>(Operator::Sum, rows * columns, rows);
        let layout = Layout::contiguous(&[rows, columns]).unwrap();
        let problem = ReduceProblem::new(Operator::Sum, DType::F32, &layout, Some(&[1])).unwrap();
        for rung in cpu_rungs() {
            let got = run::<f32, f32>(rung, &problem, &x);
            for (row, got) in x.chunks(columns as usize).zip(&got) {
                check(*got, &reference(Operator::Sum, Accuracy::Fast, row), &|| format!("{} of {rows} x {columns}", rung.id()));
            }
        }
    }
}

#[test]
fn the_number_of_threads_alignment_and_repeats_change_no_bits() {
    let pools: Vec<_> = (1..=3).map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()).collect();
    let n = (1 << 20) + 13u64;
    for (operator, dtype) in accepted().filter(|(_, d)| matches!(d, DType::F32 | DType::F64 | DType::F16 | DType::U8)) {
        dispatch!(dtype, T => {
            let mut x = elements::<T>(operator, n + 8, 33);
            let problem = ReduceProblem::whole(operator, dtype, n).unwrap();
            for rung in ["accumulators", "threads"].map(rung) {
                let expected = bits(rung, &problem, &x[..n as usize]);
                for pool in &pools {
                    assert_eq!(pool.install(|| bits(rung, &problem, &x)), expected, "{} of {problem}", rung.id());
                }
                for _ in 0..20 {
                    assert_eq!(bits(rung, &problem, &x), expected, "{} of {problem}", rung.id());
                }
                for offset in 1..8 {
                    x.rotate_right(1);
                    assert_eq!(bits(rung, &problem, &x[offset..]), expected, "{} of {problem}, offset {offset}", rung.id());
                }
                x.rotate_left(7);
            }
            assert_eq!(bits(rung("accumulators"), &problem, &x), bits(rung("threads"), &problem, &x));
        });
    }
}

/// A short row inside a batch, at any offset, has the bits it has alone.
#[test]
fn offsets_of_short_rows() {
    let x = elements::<f32>(Operator::Sum, 64, 5);
    for n in 0..40usize {
        for offset in 0..8 {
            for operator in [Operator::Sum, Operator::LogSumExp] {
                let problem = ReduceProblem::whole(operator, DType::F32, n as u64).unwrap();
                for rung in cpu_rungs() {
                    let row = &x[offset..offset + n];
                    let moved = row.to_vec();
                    assert_eq!(bits(rung, &problem, row), bits(rung, &problem, &moved));
                }
            }
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let problem = ReduceProblem::whole(Operator::Sum, DType::F32, 100).unwrap();
    let (short, mut out) = ([0f32; 99], [0f32; 1]);
    for rung in cpu_rungs() {
        let Body::Cpu(body) = &rung.body else { unreachable!("a CPU rung") };
        let operands = ReduceOperands { input: HostSlice::from(&short[..]), output: HostSliceMut::from(&mut out[..]) };
        assert!(body(&problem, operands).is_err());
    }
}

#[test]
fn the_read_ceiling_reads_every_byte() {
    let mut bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for end in [0, 1, 7, 8, 9, 255, 256, 257, 262_143, 262_144, 262_145, bytes.len()] {
        let expected = bytes[..end]
            .chunks(8)
            .fold(0u64, |all, word| all ^ word.iter().rev().fold(0u64, |value, byte| (value << 8) | u64::from(*byte)));
        assert_eq!(read_ceiling(&bytes[..end]), expected);
    }
    let before = read_ceiling(&bytes);
    bytes[777_777] ^= 1;
    assert_ne!(read_ceiling(&bytes), before);
}
