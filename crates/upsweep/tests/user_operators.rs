//! Operators of the caller's own: what the CPU gives, what is planned for CUDA devices, and, where the compiler is found, that
//! their C++ form compiles for every target.
#![cfg(feature = "cpu")]

use upsweep::Error;
use upsweep::device::caps::{Caps, CudaCaps};
use upsweep::device::cpu::Cpu;
use upsweep::ops::reduce::{self, ReduceProblem};
use upsweep::ops::scan::{self, ScanOptions, ScanProblem};
use upsweep::ops::user::{DeviceText, State, UserOperator, examples};
use upsweep::types::{Element, Layout, Operator};

/// Lengths on both sides of a strip, a chunk, what all threads are worth, and rows.
const LENGTHS: [usize; 14] =
    [0, 1, 2, 63, 64, 65, 1000, 65_535, 65_536, 65_537, 131_072, 4 * 65_536 - 1, 4 * 65_536, 5 * 65_536 + 77];

const OPTIONS: [ScanOptions; 4] = [
    ScanOptions { exclusive: false, reverse: false },
    ScanOptions { exclusive: true, reverse: false },
    ScanOptions { exclusive: false, reverse: true },
    ScanOptions { exclusive: true, reverse: true },
];

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}

/// The definition, one element after the other.
fn hashes(x: &[u8], options: ScanOptions) -> Vec<u64> {
    let mut x = x.to_vec();
    if options.reverse {
        x.reverse();
    }
    let mut hash = 0u64;
    let mut results: Vec<u64> = Vec::new();
    for x in x {
        let next = hash.wrapping_mul(1_099_511_628_211).wrapping_add(u64::from(x));
        results.push(if options.exclusive { hash } else { next });
        hash = next;
    }
    if options.reverse {
        results.reverse();
    }
    results
}

#[test]
fn an_operator_that_does_not_commute_keeps_the_order_at_every_edge() {
    let (cpu, operator) = (Cpu::new(), examples::polynomial_hash().unwrap());
    for n in LENGTHS {
        let x = bytes(n);
        for options in OPTIONS {
            let got = scan::scan_with(&cpu, &operator, options, &x[..], None, None).unwrap();
            assert!(got.values == hashes(&x, options), "{n} {options:?}");
            let problem = ScanProblem::of_operator(&operator, options, &Layout::contiguous(&[n as u64]).unwrap(), None).unwrap();
            let rung = scan::scan_with_rung::<_, u8, u64>(&cpu, &problem, "sequential", Default::default(), &x[..]).unwrap();
            assert!(rung.values == got.values, "{n} {options:?}");
        }
        let last = hashes(&x, ScanOptions::default()).last().copied().unwrap_or(0);
        let got = reduce::reduce_with(&cpu, &operator, &x[..], None, None).unwrap();
        assert_eq!((got.values, got.shape), (vec![last], vec![]), "{n}");
        let problem = ReduceProblem::of_operator(&operator, &Layout::contiguous(&[n as u64]).unwrap(), None).unwrap();
        let rung = reduce::reduce_with_rung::<_, u8, u64>(&cpu, &problem, "sequential", Default::default(), &x[..]).unwrap();
        assert_eq!(rung.values, [last], "{n}");
    }
}

#[test]
fn nothing_gives_what_is_made_of_the_identity() {
    let cpu = Cpu::new();
    let identity_shows = UserOperator::new("seven", [7i32], |x: i32| [x], |_, b: [i32; 1]| b, |s| s[0]).unwrap();
    assert_eq!(reduce::reduce_with(&cpu, &identity_shows, &[][..], None, None).unwrap().values, [7]);
    let exclusive = ScanOptions { exclusive: true, reverse: false };
    assert_eq!(scan::scan_with(&cpu, &identity_shows, exclusive, &[1, 2][..], None, None).unwrap().values, [7, 1]);
    assert_eq!(scan::scan_with(&cpu, &identity_shows, exclusive, &[][..], None, None).unwrap().values, [0i32; 0]);
    let layout = Layout::contiguous(&[2, 0]).unwrap();
    assert_eq!(reduce::reduce_with(&cpu, &identity_shows, &[][..], Some(&layout), Some(&[1])).unwrap().values, [7, 7]);
    let variance = examples::variance().unwrap();
    assert!(reduce::reduce_with(&cpu, &variance, &[][..], None, None).unwrap().values[0].is_nan());
}

#[test]
fn rows_columns_and_strides_are_rows_of_their_own() {
    let (cpu, operator) = (Cpu::new(), examples::polynomial_hash().unwrap());
    for shape in [[3u64, 1000], [1000, 3], [2, 70_000], [70_000, 5]] {
        let x = bytes((shape[0] * shape[1]) as usize);
        let layout = Layout::contiguous(&shape).unwrap();
        for axis in [0usize, 1] {
            let (rows, length) = (shape[1 - axis] as usize, shape[axis] as usize);
            let (along, across) = if axis == 1 { (1, length) } else { (rows, 1) };
            let reduced = reduce::reduce_with(&cpu, &operator, &x[..], Some(&layout), Some(&[axis as i64])).unwrap();
            for options in OPTIONS {
                let got = scan::scan_with(&cpu, &operator, options, &x[..], Some(&layout), Some(axis as i64)).unwrap();
                assert_eq!(got.shape, shape);
                for row in [0, rows / 2, rows - 1] {
                    let of_row: Vec<usize> = (0..length).map(|i| row * across + i * along).collect();
                    let elements: Vec<u8> = of_row.iter().map(|at| x[*at]).collect();
                    let expected = hashes(&elements, options);
                    let results: Vec<u64> = of_row.iter().map(|at| got.values[*at]).collect();
                    assert!(results == expected, "{shape:?} along {axis}, row {row}, {options:?}");
                    let whole = *hashes(&elements, ScanOptions::default()).last().unwrap();
                    assert_eq!(reduced.values[row], whole, "{shape:?} along {axis}, row {row}");
                }
            }
        }
    }
}

#[test]
fn the_bits_of_a_rounding_operator_do_not_depend_on_threads_or_neighbours() {
    let (cpu, operator) = (Cpu::new(), examples::variance().unwrap());
    let n = 5 * 65_536 + 777;
    let x: Vec<f32> = bytes(2 * n).iter().map(|x| f32::from(*x) / 7.0).collect();
    let on = |threads: usize, work: &(dyn Fn() -> (Vec<f64>, Vec<f64>) + Sync)| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    };
    let alone = || {
        let scanned = scan::scan_with(&cpu, &operator, ScanOptions::default(), &x[..n], None, None).unwrap().values;
        (scanned, reduce::reduce_with(&cpu, &operator, &x[..n], None, None).unwrap().values)
    };
    let one = on(1, &alone);
    assert!(on(2, &alone) == one && on(3, &alone) == one);
    let rows = Layout::contiguous(&[2, n as u64]).unwrap();
    let scanned = scan::scan_with(&cpu, &operator, ScanOptions::default(), &x[..], Some(&rows), Some(1)).unwrap().values;
    assert!(scanned[..n] == one.0);
    let reduced = reduce::reduce_with(&cpu, &operator, &x[..], Some(&rows), Some(&[1])).unwrap().values;
    assert_eq!(reduced[0], one.1[0]);
    // And they are right.
    let mean = x[..n].iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64;
    let variance = x[..n].iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n as f64;
    assert!((one.1[0] - variance).abs() < 1e-9 * variance, "{} {variance}", one.1[0]);
    assert!((one.0[n - 1] - variance).abs() < 1e-9 * variance);
}

#[test]
fn a_closure_that_panics_panics_in_the_caller_and_hangs_nobody() {
    let combine =
        |a: [u32; 1], b: [u32; 1]| if b[0] == 3_000_000 { panic!("a combination that fails") } else { [a[0].max(b[0])] };
    let operator = UserOperator::new("fails", [0], |x: u32| [x], combine, |s| s[0]).unwrap();
    let x: Vec<u32> = (0..5 * 65_536).map(|i| if i == 100_000 { 3_000_000 } else { i }).collect();
    let scan = || scan::scan_with(&Cpu::new(), &operator, ScanOptions::default(), &x[..], None, None);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(scan)).is_err());
    let reduce = || reduce::reduce_with(&Cpu::new(), &operator, &x[..], None, None);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(reduce)).is_err());
}

#[test]
fn wrong_operands_of_an_operator_are_typed_errors() {
    let (cpu, operator) = (Cpu::new(), examples::largest_span().unwrap());
    let layout = Layout::contiguous(&[2, 3]).unwrap();
    let scanned = scan::scan_with(&cpu, &operator, ScanOptions::default(), &[1, 2][..], Some(&layout), Some(1));
    assert!(matches!(scanned, Err(Error::LengthMismatch { argument: "input", got: 2, expected: 6, .. })), "{scanned:?}");
    let scanned = scan::scan_with(&cpu, &operator, ScanOptions::default(), &[1; 6][..], Some(&layout), Some(2));
    assert!(matches!(scanned, Err(Error::InvalidAxis { axis: 2, rank: 2 })), "{scanned:?}");
    let reduced = reduce::reduce_with(&cpu, &operator, &[1, 2][..], Some(&layout), None);
    assert!(matches!(reduced, Err(Error::LengthMismatch { argument: "input", .. })), "{reduced:?}");
    // The table's name for it is no operator to ask for, and it has no reference.
    assert!(ScanProblem::whole(scan::ScanSpec::inclusive(Operator::User), i32::DTYPE, 4).is_err());
    assert!(ReduceProblem::whole(Operator::User, i32::DTYPE, 4).is_err());
    let problem = ScanProblem::of_operator(&operator, ScanOptions::default(), &layout, Some(1)).unwrap();
    assert!(scan::oracle::reference(&problem, (&[1; 6][..]).into(), None).is_err());
    assert_eq!(problem.to_string(), "inclusive largest span scan of i32 along 2 rows of 3 elements");
    assert_eq!(problem, ScanProblem::of_operator(&operator.clone(), ScanOptions::default(), &layout, Some(1)).unwrap());
    let other = examples::largest_span().unwrap();
    assert_ne!(problem, ScanProblem::of_operator(&other, ScanOptions::default(), &layout, Some(1)).unwrap());
    let reduced = ReduceProblem::of_operator(&operator, &layout, None).unwrap();
    assert!(reduce::oracle::reference(&reduced, (&[1; 6][..]).into()).is_err());
}

/// An operator whose results have fewer bytes than its elements.
fn is_rising() -> UserOperator<f64, [f64; 3], bool> {
    let combine = |a: [f64; 3], b: [f64; 3]| [a[0].min(b[0]), a[1].max(b[1]), if a[1] <= b[0] { a[2] * b[2] } else { 0.0 }];
    let (inf, lift) = (f64::INFINITY, |x: f64| [x, x, 1.0]);
    UserOperator::new("is rising", [inf, -inf, 1.0], lift, combine, |s| s[2] == 1.0).unwrap().with_device(&DeviceText {
        state: "double least, most, rises;",
        lift: "return {x, x, 1.0};",
        combine: "return {fmin(a.least, b.least), fmax(a.most, b.most), a.most <= b.least ? a.rises * b.rises : 0.0};",
        finish: "return state.rises == 1.0;",
    })
}

/// f16 on both sides, and a state of one word.
#[cfg(feature = "cuda")]
fn most() -> UserOperator<half::f16, [f32; 1], half::f16> {
    let combine = |a: [f32; 1], b: [f32; 1]| [a[0].max(b[0])];
    let finish = |s: [f32; 1]| half::f16::from_f32(s[0]);
    UserOperator::new("most", [f32::NEG_INFINITY], |x: half::f16| [x.to_f32()], combine, finish)
        .unwrap()
        .commutative()
        .with_device(&DeviceText {
            state: "float most;",
            lift: "return {x};",
            combine: "return {fmaxf(a.most, b.most)};",
            finish: "return state.most;",
        })
}

fn planned_scan<T: Element, S: State, R: Element>(
    operator: &UserOperator<T, S, R>,
    shape: &[u64],
    axis: Option<i64>,
    caps: &CudaCaps,
) -> scan::ScanPlan {
    let layout = Layout::contiguous(shape).unwrap();
    let problem = ScanProblem::of_operator(operator, ScanOptions::default(), &layout, axis).unwrap();
    scan::plan(&problem, &Caps::Cuda(caps.clone())).unwrap()
}

#[test]
fn the_planner_keeps_the_order_of_operators_that_do_not_commute() {
    for caps in CudaCaps::known() {
        let hopper = caps.compute >= (9, 0) && caps.shared_bytes_per_block >= 200 << 10;
        let best = if hopper { "look_ahead" } else { "three_phase" };
        let hash = examples::polynomial_hash().unwrap();
        for n in [1u64, 1000, 1 << 20, 1 << 33] {
            assert_eq!(planned_scan(&hash, &[n], None, &caps).rung.name, best, "{} {n}", caps.name);
            assert_eq!(planned_scan(&examples::largest_span().unwrap(), &[n], None, &caps).rung.name, best, "{}", caps.name);
            assert_eq!(planned_scan(&examples::variance().unwrap(), &[n], None, &caps).rung.name, best, "{}", caps.name);
            assert_eq!(planned_scan(&is_rising(), &[n], None, &caps).rung.name, "axes");
        }
        assert_eq!(planned_scan(&hash, &[100, 100], Some(1), &caps).rung.name, "axes");
        assert_eq!(planned_scan(&hash, &[100, 1 << 20], Some(1), &caps).rung.name, if hopper { best } else { "axes" });
        assert_eq!(planned_scan(&hash, &[100, 1 << 20], Some(0), &caps).rung.name, "axes");
        let nothing = planned_scan(&hash, &[0], None, &caps);
        assert_eq!(nothing.program.unwrap().steps.len(), 0);
        let caps = Caps::Cuda(caps);
        let reduced = |operator: &UserOperator<_, _, _>, shape: &[u64], axes: Option<&[i64]>| {
            reduce::plan(&ReduceProblem::of_operator(operator, &Layout::contiguous(shape).unwrap(), axes).unwrap(), &caps)
        };
        for n in [0u64, 1, 1000, 1 << 20, 1 << 33] {
            let plan = reduced(&hash, &[n], None).unwrap();
            assert_eq!(plan.rung.name, "in_order");
            assert_eq!(reduced(&hash.clone().commutative(), &[n], None).unwrap().rung.name, "published_words");
        }
        let refused = reduced(&hash, &[10, 10], Some(&[1]));
        assert!(matches!(&refused, Err(Error::NotClaimed { why, .. }) if why.contains("polynomial hash")), "{refused:?}");
        assert_eq!(reduced(&hash.clone().commutative(), &[10, 10], Some(&[1])).unwrap().rung.name, "axes");
    }
}

#[test]
fn an_operator_without_text_is_for_the_cpu_alone() {
    let caps = Caps::Cuda(CudaCaps::known().remove(0));
    let least = UserOperator::new("least", [i32::MAX], |x: i32| [x], |a: [i32; 1], b| a.min(b), |s| s[0]).unwrap();
    let layout = Layout::contiguous(&[10]).unwrap();
    let error = scan::plan(&ScanProblem::of_operator(&least, ScanOptions::default(), &layout, None).unwrap(), &caps).unwrap_err();
    assert!(matches!(&error, Error::Unavailable { why, .. } if why.contains("`least` has no C++ text")), "{error}");
    let error = reduce::plan(&ReduceProblem::of_operator(&least, &layout, None).unwrap(), &caps).unwrap_err();
    assert!(matches!(&error, Error::NotClaimed { why, .. } if why.contains("`least` has no C++ text")), "{error}");
    assert_eq!(
        scan::scan_with(&Cpu::new(), &least, ScanOptions::default(), &[3, 1, 2][..], None, None).unwrap().values,
        [3, 1, 1]
    );
}

#[cfg(feature = "cuda")]
mod compiled {
    use super::*;
    use upsweep::device::cuda::nvrtc::{Compiler, OPTIONS};
    use upsweep::flow::{Plan, Program, Rung, Step, Tuning};
    use upsweep::kernels::full_source;
    use upsweep::ops::reduce::Reduce;
    use upsweep::ops::scan::{Scan, ScanSpec};
    use upsweep::types::DType;

    /// The compiler, or a line that says why there is none: the build of the kernels (`cargo xtask kernels`) has one.
    fn compiler() -> Option<Compiler> {
        Compiler::load().inspect_err(|error| eprintln!("not compiled: {error}")).ok()
    }

    fn compile(compiler: &Compiler, program: &Program, target: &str) -> upsweep::Result<String> {
        let mut logs = String::new();
        for Step::Launch(launch) in &program.steps {
            let (file, expression) = (launch.kernel.file, launch.kernel.expression.clone());
            let source = full_source(file, program.operator.as_deref());
            logs += &compiler.compile_source(&source, file.path, &[expression], target, &OPTIONS)?.log;
        }
        Ok(logs)
    }

    /// Compiles every kernel that a device's rungs have for an operator.
    fn all_kernels<T: Element, S: State, R: Element>(compiler: &Compiler, operator: &UserOperator<T, S, R>, caps: &CudaCaps) {
        let (target, layout) = (caps.target(), Layout::contiguous(&[1 << 24]).unwrap());
        let erased = Caps::Cuda(caps.clone());
        let compile_all = |name: &str, program: Program| {
            let log = compile(compiler, &program, &target).unwrap();
            println!("{} by {name} for {target}:\n{log}", operator.name());
        };
        let problem = ScanProblem::of_operator(operator, ScanOptions::default(), &layout, None).unwrap();
        for rung in ["three_phase", "axes", "look_ahead"] {
            let rung = Rung::<Scan>::find(erased.kind(), rung).unwrap();
            match Plan::with_rung(&problem, &erased, rung, Tuning::default(), String::new()) {
                Ok(plan) => compile_all(rung.name, plan.program.unwrap()),
                Err(Error::NotClaimed { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        let problem = ReduceProblem::of_operator(operator, &layout, None).unwrap();
        for rung in ["in_order", "published_words", "axes"] {
            let rung = Rung::<Reduce>::find(erased.kind(), rung).unwrap();
            match Plan::with_rung(&problem, &erased, rung, Tuning::default(), String::new()) {
                Ok(plan) => compile_all(rung.name, plan.program.unwrap()),
                Err(Error::NotClaimed { .. }) => assert!(!operator.is_commutative(), "{}", operator.name()),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_text_of_every_example_compiles() {
        let Some(compiler) = compiler() else { return };
        for caps in CudaCaps::known().into_iter().filter(|caps| ["sm_75", "sm_90a"].contains(&caps.target().as_str())) {
            all_kernels(&compiler, &examples::variance().unwrap(), &caps);
            all_kernels(&compiler, &examples::fill_forward().unwrap(), &caps);
            all_kernels(&compiler, &examples::polynomial_hash().unwrap(), &caps);
            all_kernels(&compiler, &examples::largest_span().unwrap(), &caps);
            all_kernels(&compiler, &is_rising(), &caps);
            all_kernels(&compiler, &most(), &caps);
        }
    }

    /// The library's own pairs take the same kernels.
    #[test]
    fn the_kernels_of_a_logcumsumexp_compile() {
        let Some(compiler) = compiler() else { return };
        let caps = CudaCaps::known().remove(4);
        let erased = Caps::Cuda(caps.clone());
        for dtype in [DType::F16, DType::F32, DType::F64] {
            let problem = ScanProblem::whole(ScanSpec::exclusive(Operator::LogSumExp), dtype, 1 << 24).unwrap();
            for rung in ["three_phase", "axes", "look_ahead"] {
                let rung = Rung::<Scan>::find(erased.kind(), rung).unwrap();
                let plan = Plan::with_rung(&problem, &erased, rung, Tuning::default(), String::new()).unwrap();
                let log = compile(&compiler, &plan.program.unwrap(), &caps.target()).unwrap();
                println!("logcumsumexp of {dtype} by {}:\n{log}", rung.name);
            }
        }
        let sizes = scan::state_sizes().into_iter().filter(|(name, _)| name.contains("LogSumExp"));
        let asserted: String =
            sizes.map(|(name, bytes)| format!("static_assert(sizeof({name}::State) == {bytes}, \"{name}\");\n")).collect();
        assert_eq!(asserted.lines().count(), 8);
        let source =
            full_source(upsweep::flow::KernelFile::cuda("sizes", "extern \"C\" __global__ void k() {}"), None) + &asserted;
        compiler.compile_source(&source, "sizes", &["k".into()], &caps.target(), &OPTIONS).unwrap();
    }

    #[test]
    fn what_does_not_compile_is_reported_by_the_callers_lines() {
        let Some(compiler) = compiler() else { return };
        let caps = CudaCaps::known().remove(0);
        let compile = |text: DeviceText<'_>| {
            let operator = UserOperator::new("my sum", [0.0f32], |x: f32| [x], |a: [f32; 1], b| [a[0] + b[0]], |s| s[0]).unwrap();
            let plan = planned_scan(&operator.with_device(&text), &[1000], None, &caps);
            match compile(&compiler, &plan.program.unwrap(), &caps.target()) {
                Err(Error::Compile { log, .. }) => log,
                other => panic!("{other:?}"),
            }
        };
        let right = DeviceText {
            state: "float sum;",
            lift: "return {x};",
            combine: "return {a.sum + b.sum};",
            finish: "return state.sum;",
        };
        let log = compile(DeviceText { combine: "// two lines\nreturn {a.sum + b.some};", ..right });
        assert!(log.contains("operator my sum, combine(2)") && log.contains("some"), "{log}");
        let log = compile(DeviceText { state: "double sum;", ..right });
        assert!(log.contains("operator my sum: the members of `state`") && log.contains("4 bytes"), "{log}");
        let log = compile(DeviceText { finish: "return missing;", ..right });
        assert!(log.contains("operator my sum, finish(1)"), "{log}");
    }
}
