//! The planner's choice over the points of a sweep.

use crate::candidate::rung_name;
use crate::climb::{best_ceiling, finish_row, judge_figures, measure_ceiling, refuse_row, request, row_of, settle_ceilings};
use crate::error::{GateError, Result};
use crate::findings::findings;
use crate::goals::{Figure, Goal};
use crate::judged::{Judged, Traffic};
use crate::points::Point;
use crate::record::{Kind, Least, Record};
use crate::target::Target;
use crate::timing::Timing;
use crate::verify::{Context, Evidence, OnProgress, Progress, verify_plan};
use std::path::PathBuf;
use upsweep::flow::Step;
use upsweep::types::DType;

/// Bytes of the plain kernel whose time is the launch floor: a word of four bytes read, and one written.
const LAUNCH_FLOOR_BYTES: u64 = 8;

/// What [`bench()`] is asked.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Operators, by name.
    pub operators: Vec<String>,
    /// Element types; those that an operator does not take are left out.
    pub dtypes: Vec<DType>,
    /// Sizes, shapes and places.
    pub points: Vec<Point>,
    /// Problems with figures of their own, after those.
    pub goals: Vec<Goal>,
    /// Other libraries, timed on the same problems.
    pub peers: Vec<PathBuf>,
    /// Timed calls of a row.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

impl BenchOptions {
    fn problems<O: Judged>(&self) -> Result<Vec<Asked<'_, O>>> {
        let mut problems = vec![];
        for operator in &self.operators {
            for &dtype in &self.dtypes {
                for point in &self.points {
                    match O::problem_at(operator, dtype, point) {
                        Ok(problem) => problems.push(Asked { operator, point: *point, problem, goal: None }),
                        Err(GateError::Library(upsweep::Error::UnsupportedDType { .. })) => {}
                        Err(other) => return Err(other),
                    }
                }
            }
        }
        for Goal { operator, dtype, point, figure } in &self.goals {
            let problem = O::problem_at(operator, *dtype, point)?;
            problems.push(Asked { operator, point: *point, problem, goal: Some(*figure) });
        }
        Ok(problems)
    }
}

/// A row that is to be.
struct Asked<'a, O: Judged> {
    operator: &'a str,
    point: Point,
    problem: O::Problem,
    goal: Option<Figure>,
}

/// Verifies and times the planner's choice for each problem. Every row stands beside the least time that the device needs for
/// it: the ceiling at its number of bytes, and the launch of a plain kernel on one word, both of this run.
///
/// # Errors
/// [`crate::GateError`]: a wrong argument (also a sweep in which no operator takes any of the dtypes), or what the
/// driver refuses.
pub fn bench<O: Judged>(
    target: &mut dyn Target<O>,
    options: &BenchOptions,
    context: &Context,
    progress: OnProgress<'_>,
) -> Result<Record> {
    let refuse =
        |argument, got: String, allowed: &str| Err(GateError::InvalidArgument { argument, got, allowed: allowed.into() });
    if options.repeats == 0 {
        return refuse("repeats", "0".into(), "at least 1 is needed");
    }
    let problems = options.problems::<O>()?;
    if problems.is_empty() {
        return refuse("operators, dtypes, sizes", "nothing that goes together".into(), "at least one problem is needed");
    }
    options.peers.iter().try_for_each(|peer| target.open_peer(peer))?;
    let kind = if options.goals.is_empty() { Kind::Bench } else { Kind::Goals };
    let mut record = context.record(kind, target, options.seed);
    let caps = target.caps();
    let plans = problems.iter().map(|asked| Ok(O::plan(&asked.problem, &caps)?)).collect::<Result<Vec<_>>>()?;
    target.prefetch(&plans)?;
    let mut traffics: Vec<Traffic> = vec![];
    for traffic in problems.iter().map(|asked| O::traffic(&asked.problem)) {
        if !traffics.contains(&traffic) {
            traffics.push(traffic);
            record.ceilings.extend(measure_ceiling(target, traffic, LAUNCH_FLOOR_BYTES, options.repeats)?);
        }
    }
    let total = problems.len() as u64;
    for (done, (Asked { operator, point, problem, goal }, plan)) in problems.into_iter().zip(plans).enumerate() {
        let shape = point.to_string();
        progress(Progress { done: done as u64, total, what: format!("{problem}, shape {shape}") });
        let mut row = row_of(target, &problem, &rung_name(plan.rung), shape.clone());
        row.operator = operator.into();
        row.point = Some(point);
        row.goal = goal;
        let request = request(target, options.repeats, options.seed);
        let timed = Evidence::at(&problem, point.placement, options.seed)
            .and_then(|evidence| verify_plan(target, &plan, &evidence))
            .and_then(|verified| Timing::measure(&verified, target, &request));
        match timed {
            Ok(timing) => {
                let first = plan.program.as_ref().and_then(|program| program.steps.first());
                row.block = first.map(|Step::Launch(launch)| launch.block);
                finish_row(&mut row, &timing);
                if best_ceiling(&record.ceilings, row.traffic, row.bytes).is_none() {
                    record.ceilings.extend(measure_ceiling(target, row.traffic, row.bytes, options.repeats)?);
                }
            }
            Err(error) => refuse_row(&mut row, error)?,
        }
        record.rows.push(row);
        for peer in &options.peers {
            let row = target.peer(peer, &problem, point.placement, &request)?;
            record.rows.extend(row.map(|row| crate::record::Row { shape: shape.clone(), ..row }));
        }
    }
    record.device = target.describe();
    settle_ceilings(target, &mut record, options.repeats)?;
    judge_figures(&mut record);
    stand_beside_the_least(&mut record);
    // A sweep has no first rung to be faster than.
    record.rows.iter_mut().for_each(|row| row.speedup = None);
    Ok(record)
}

/// As [`bench()`], and finds what stands out among the points: for the list of shapes ([`crate::points::shapes`]).
///
/// # Errors
/// As [`bench()`].
pub fn bench_shapes<O: Judged>(
    target: &mut dyn Target<O>,
    options: &BenchOptions,
    context: &Context,
    progress: OnProgress<'_>,
) -> Result<Record> {
    let record = bench(target, options, context, progress)?;
    Ok(Record { kind: Kind::Shapes, findings: Some(findings(&record.rows)), ..record })
}

/// Each of our timed rows in multiples of the least that the device needs.
fn stand_beside_the_least(record: &mut Record) {
    for row in record.rows.iter_mut().filter(|row| row.point.is_some()) {
        let launch = best_ceiling(&record.ceilings, row.traffic, LAUNCH_FLOOR_BYTES);
        let ceiling = best_ceiling(&record.ceilings, row.traffic, row.bytes);
        let (Some(seconds), Some(launch), Some(ceiling)) = (row.seconds, launch, ceiling) else { continue };
        let least = Least { ceiling_seconds: row.bytes as f64 / ceiling.bytes_per_second, launch_seconds: launch.seconds };
        row.times_least = Some(seconds / least.seconds());
        row.least = Some(least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTarget;
    use upsweep::device::caps::Caps;
    use upsweep::device::cpu::Cpu;
    use upsweep::ops::reduce::Reduce;
    use upsweep::ops::scan::Scan;

    #[test]
    fn a_sweep_times_every_problem_that_exists() {
        let Caps::Cpu(caps) = Cpu::new().caps().clone() else { unreachable!("the CPU is no CUDA device") };
        let mut target = CpuTarget::new(caps);
        let options = BenchOptions {
            operators: vec!["sum".into(), "logsumexp".into()],
            dtypes: vec![DType::F32, DType::I32],
            points: vec![Point::whole(1000), Point::rows(10, 33), Point::columns(33, 10)],
            goals: vec![],
            peers: vec![],
            repeats: 2,
            seed: 5,
        };
        let record = bench::<Reduce>(&mut target, &options, &Context::default(), &mut |_| {}).unwrap();
        // logsumexp of i32 does not exist.
        assert_eq!(record.rows.len(), 9);
        assert!(record.rows.iter().all(|row| row.verified && row.seconds.is_some()), "{:#?}", record.rows);
        assert_eq!(record.rows[2].shape, "33 x 10, first axis");
        assert!(record.rows.iter().all(|row| row.times_least.is_some_and(|times| times > 0.0)), "{:#?}", record.rows);
        let peers = BenchOptions { peers: vec!["no such library".into()], ..options.clone() };
        let nothing_before = &mut |step: Progress| panic!("measured before it was refused: {}", step.what);
        let error = bench::<Reduce>(&mut target, &peers, &Context::default(), nothing_before).unwrap_err();
        assert!(matches!(error, GateError::InvalidArgument { argument: "peer", .. }), "{error}");
        let nothing = BenchOptions { operators: vec!["logsumexp".into()], dtypes: vec![DType::U8], ..options };
        assert!(matches!(
            bench::<Reduce>(&mut target, &nothing, &Context::default(), &mut |_| {}),
            Err(GateError::InvalidArgument { .. })
        ));
    }
    #[test]
    fn problems_with_goals_carry_their_figures_into_the_record() {
        let Caps::Cpu(caps) = Cpu::new().caps().clone() else { unreachable!("the CPU is no CUDA device") };
        let mut target = CpuTarget::new(caps);
        let goals = vec![
            Goal::microseconds("sum_in_segments_of_8", DType::F32, Point::whole(1000), 1e9),
            Goal::microseconds("linear_recurrence", DType::F64, Point::whole(1000), 1e-9),
            Goal::microseconds("exclusive_sum", DType::I32, Point::columns(33, 10), 1e9),
            Goal::microseconds("sum_by_key", DType::F32, Point::whole(1000), 1e9),
        ];
        let options =
            BenchOptions { operators: vec![], dtypes: vec![], points: vec![], goals, peers: vec![], repeats: 2, seed: 7 };
        let record = bench::<Scan>(&mut target, &options, &Context::default(), &mut |_| {}).unwrap();
        assert_eq!(record.kind, Kind::Goals);
        let met: Vec<_> = record.rows.iter().map(|row| row.goal.and_then(|goal| goal.is_met(row))).collect();
        assert_eq!(met, [Some(true), Some(false), Some(true), Some(true)], "{:#?}", record.rows);
        assert_eq!(record.rows[0].operator, "sum_in_segments_of_8");
        // The list itself asks for what exists.
        for Goal { operator, dtype, point, .. } in Scan::goals() {
            assert!(Scan::problem_at(operator, dtype, &point).is_ok(), "{operator} {dtype} {point}");
        }
    }

    #[test]
    fn shapes_off_aligned_addresses_are_verified_timed_and_compared() {
        let Caps::Cpu(caps) = Cpu::new().caps().clone() else { unreachable!("the CPU is no CUDA device") };
        let mut target = CpuTarget::new(caps);
        let aligned = Point::rows(16, 64);
        let points = vec![
            Point::rows(1, 1),
            Point::rows(16, 1),
            aligned,
            aligned.placed(1, 0),
            aligned.placed(3, 2),
            Point::columns(64, 16),
        ];
        let options = BenchOptions {
            operators: vec!["sum".into()],
            dtypes: vec![DType::F32],
            points,
            goals: vec![],
            peers: vec![],
            repeats: 2,
            seed: 6,
        };
        let record = bench_shapes::<Scan>(&mut target, &options, &Context::default(), &mut |_| {}).unwrap();
        assert_eq!((record.kind, record.rows.len()), (Kind::Shapes, 6));
        for (row, point) in record.rows.iter().zip(&options.points) {
            assert!(row.verified && row.seconds.is_some(), "{row:#?}");
            assert_eq!((row.point, row.shape.clone()), (Some(*point), point.to_string()));
            let least = row.least.unwrap();
            assert!(least.ceiling_seconds > 0.0 && least.launch_seconds > 0.0);
            assert_eq!(row.times_least, row.seconds.map(|seconds| seconds / least.seconds()));
        }
        // What stands out depends on the machine's mood; how many points there were does not.
        assert_eq!(record.findings.as_ref().map(|found| (found.points, found.points_with_peer)), Some((6, 0)));
        assert_eq!(Record::from_json(&record.to_json(), "record").unwrap(), record);
    }
}
