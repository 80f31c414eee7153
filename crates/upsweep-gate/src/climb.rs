//! The ladder: every rung at one size, each verified and then timed.

use crate::candidate::Candidate;
use crate::error::{GateError, Result};
use crate::judged::{Judged, Traffic};
use crate::record::{Ceiling, Kind, Peak, Record, Row};
use crate::target::{Target, TimingRequest};
use crate::timing::{CACHE_MULTIPLE, CACHE_RESIDENT, Timing};
use crate::verify::{Context, Evidence, OnProgress, Progress, Selection, Verified, verify_plan};
use std::path::PathBuf;
use upsweep::flow::{Plan, Problem, Tuning};
use upsweep::types::DType;

/// Calls of each block size in the sweep.
const SWEEP_REPEATS: u32 = 5;

/// Calls before the timed ones.
const WARM_UP: u32 = 2;

/// A row faster than the best ceiling by more than this is an error of measurement: the ceiling is itself measured.
const CEILING_NOISE: f64 = 0.10;

/// The least ceilings of an H200 at 1 GiB, in bytes per second: below them the device was not itself, and a slow ceiling
/// flatters everything. The usual figures are 4610 and 4310 GB/s.
const H200_LEAST: [(Traffic, f64); 2] = [(Traffic::Read, 4.57e12), (Traffic::Copy, 4.23e12)];

/// What [`climb`] is asked.
#[derive(Clone, Debug)]
pub struct ClimbOptions {
    /// Elements.
    pub n: u64,
    /// Element type.
    pub dtype: DType,
    /// Operators, by name; each gets its own rows.
    pub operators: Vec<String>,
    /// Rungs, by number, name or `number-name`; empty means all.
    pub rungs: Vec<String>,
    /// Threads of a block; `None`: the best of a small sweep, reported in each row.
    pub block: Option<u32>,
    /// Other libraries, timed on the same problems.
    pub peers: Vec<PathBuf>,
    /// Timed calls of a rung.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

/// Climbs the ladder of a device. A rung that fails has a row with `failure` and no time.
///
/// # Errors
/// [`crate::GateError`]: a wrong argument, or what the driver refuses.
pub fn climb<O: Judged>(
    target: &mut dyn Target<O>,
    options: &ClimbOptions,
    context: &Context,
    progress: OnProgress<'_>,
) -> Result<Record> {
    if options.repeats == 0 {
        return Err(GateError::InvalidArgument { argument: "repeats", got: "0".into(), allowed: "at least 1 is needed".into() });
    }
    let caps = target.caps();
    let candidates = Selection { rungs: options.rungs.clone(), ..Selection::default() }.candidates::<O>(&caps)?;
    options.peers.iter().try_for_each(|peer| target.open_peer(peer))?;
    let mut record = context.record(Kind::Ladder, target, options.seed);
    let total = (options.operators.len() * candidates.len()) as u64 + 2;
    let mut done = 0;
    let mut step = |what: String| {
        progress(Progress { done, total, what });
        done += 1;
    };
    let point = O::point_of_size(options.n);
    let problems: Vec<(String, O::Problem)> = options
        .operators
        .iter()
        .map(|o| Ok((point.to_string(), O::problem_at(o, options.dtype, &point)?)))
        .collect::<Result<_>>()?;
    let mut moved: Vec<(Traffic, u64)> = problems.iter().map(|(_, problem)| (O::traffic(problem), problem.bytes())).collect();
    moved.sort_by_key(|(traffic, bytes)| (*traffic == Traffic::Copy, *bytes));
    // Outputs of another dtype change the bytes of a reduction by next to nothing.
    moved.dedup_by(|a, b| a.0 == b.0 && close(a.1, b.1));
    for (traffic, bytes) in &moved {
        step(format!("ceiling: {} of {bytes} bytes", traffic.name()));
        record.ceilings.extend(measure_ceiling(target, *traffic, *bytes, options.repeats)?);
    }
    for ((shape, problem), operator) in problems.iter().zip(&options.operators) {
        let evidence = Evidence::new(problem, options.seed)?;
        for candidate in &candidates {
            let mut row = row_of(target, problem, &candidate.name(), shape.clone());
            row.operator.clone_from(operator);
            step(format!("{}: {problem}", candidate.name()));
            match time_candidate(target, candidate, problem, &evidence, options) {
                Ok((timing, block)) => {
                    row.block = block;
                    finish_row(&mut row, &timing);
                }
                Err(error) => refuse_row(&mut row, error)?,
            }
            record.rows.push(row);
        }
        for peer in &options.peers {
            let request = request(target, options.repeats, options.seed);
            record.rows.extend(target.peer(peer, problem, point.placement, &request)?);
        }
    }
    for (traffic, bytes) in &moved {
        step(format!("ceiling again: {} of {bytes} bytes", traffic.name()));
        record.ceilings.extend(measure_ceiling(target, *traffic, *bytes, options.repeats)?);
    }
    // Names and versions were read at the start; clocks are worth knowing after the work.
    record.device = target.describe();
    settle_ceilings(target, &mut record, options.repeats)?;
    judge_figures(&mut record);
    Ok(record)
}

/// The ceiling at a number of bytes, or none for nothing to read.
pub(crate) fn measure_ceiling<O: Judged>(
    target: &mut dyn Target<O>,
    traffic: Traffic,
    bytes: u64,
    repeats: u32,
) -> Result<Option<Ceiling>> {
    if bytes == 0 { Ok(None) } else { target.ceiling(traffic, bytes, repeats.max(5)).map(Some) }
}

/// A row with its keys and nothing measured.
pub(crate) fn row_of<O: Judged>(target: &dyn Target<O>, problem: &O::Problem, rung: &str, shape: String) -> Row {
    Row {
        op: O::NAME.into(),
        rung: rung.into(),
        device: target.caps().kind().name().into(),
        operator: O::operator_of(problem).into(),
        dtype: problem.input().dtype.name().into(),
        n: O::elements(problem),
        shape,
        bytes: problem.bytes(),
        traffic: O::traffic(problem),
        ..Row::default()
    }
}

/// Fills a row from a timing.
pub(crate) fn finish_row<O: Judged>(row: &mut Row, timing: &Timing<O>) {
    let agreement = timing.verified().agreement();
    row.verified = true;
    row.error = Some(agreement.error);
    row.bound = Some(agreement.bound);
    row.rtol_1e4_met = Some(agreement.document_rtol_met);
    if !timing.verified().plan().rung.deterministic {
        row.marks.push("not deterministic".into());
    }
    timing.fill(row);
}

/// Says in a row why it has no time.
///
/// # Errors
/// Errors that are not the rung's own: they end the run.
pub(crate) fn refuse_row(row: &mut Row, error: GateError) -> Result<()> {
    match error {
        GateError::Library(upsweep::Error::NotClaimed { ref why, .. }) => {
            row.marks.push("not claimed".into());
            row.failure = Some(format!("not claimed: {why}"));
        }
        GateError::Rejected(_) | GateError::Measurement(_) => row.failure = Some(error.to_string()),
        GateError::Library(
            upsweep::Error::Compile { .. } | upsweep::Error::Driver { .. } | upsweep::Error::InvalidArgument { .. },
        ) => {
            row.failure = Some(error.to_string());
        }
        other => return Err(other),
    }
    Ok(())
}

/// The request of a timing: inputs rotate through more than four times the last-level cache.
pub(crate) fn request<O: Judged>(target: &dyn Target<O>, repeats: u32, seed: u64) -> TimingRequest {
    TimingRequest { warm_up: WARM_UP, repeats, seed, footprint: CACHE_MULTIPLE * target.cache_bytes() }
}

/// Verifies and times a rung, with the block that was asked or the best of the sweep.
fn time_candidate<O: Judged>(
    target: &mut dyn Target<O>,
    candidate: &Candidate<O>,
    problem: &O::Problem,
    evidence: &Evidence<O>,
    options: &ClimbOptions,
) -> Result<(Timing<O>, Option<u32>)> {
    let caps = target.caps();
    let blocks = target.blocks().to_vec();
    let full = request(target, options.repeats, options.seed);
    // Every launch shape of a sweep is verified by itself: with an output as long as the input that would take longer than
    // all else, so those rungs keep the block that they were written for.
    if options.block.is_some() || blocks.is_empty() || O::traffic(problem) == Traffic::Copy {
        let tuning = Tuning { block: options.block.unwrap_or(0) };
        let plan = candidate.plan(problem, &caps, tuning)?;
        let verified = verify_plan(target, &plan, evidence)?;
        let block = if blocks.is_empty() { None } else { options.block };
        return Ok((Timing::measure(&verified, target, &full)?, block));
    }
    let plans = sweep(candidate, problem, &caps, &blocks)?;
    target.prefetch(&plans.iter().map(|(_, plan)| plan.clone()).collect::<Vec<_>>())?;
    let short = TimingRequest { repeats: SWEEP_REPEATS.min(options.repeats), ..full.clone() };
    let mut best: Option<(f64, Verified<O>, u32)> = None;
    for (block, plan) in plans {
        // Every launch shape is verified by itself, and one that is wrong refuses the rung.
        let verified = verify_plan(target, &plan, evidence)?;
        let median = Timing::measure(&verified, target, &short)?.spread().median;
        if best.as_ref().is_none_or(|(least, ..)| median < *least) {
            best = Some((median, verified, block));
        }
    }
    let Some((_, verified, block)) = best else {
        return Err(GateError::Measurement(format!("{} has no block size of {blocks:?}", candidate.name())));
    };
    Ok((Timing::measure(&verified, target, &full)?, Some(block)))
}

/// The plans of the block sizes that the rung can use and that give different launches.
fn sweep<O: Judged>(
    candidate: &Candidate<O>,
    problem: &O::Problem,
    caps: &upsweep::device::caps::Caps,
    blocks: &[u32],
) -> Result<Vec<(u32, Plan<O>)>> {
    let mut plans: Vec<(u32, Plan<O>)> = vec![];
    let mut refused = None;
    for &block in blocks {
        match candidate.plan(problem, caps, Tuning { block }) {
            Ok(plan) => {
                let launches = |plan: &Plan<O>| format!("{:?}", plan.program);
                if plans.iter().all(|(_, other)| launches(other) != launches(&plan)) {
                    plans.push((block, plan));
                }
            }
            Err(error @ upsweep::Error::InvalidArgument { .. }) => refused = Some(error),
            Err(other) => return Err(other.into()),
        }
    }
    match (plans.is_empty(), refused) {
        (true, Some(error)) => Err(error.into()),
        _ => Ok(plans),
    }
}

/// Within a part in a hundred.
fn close(a: u64, b: u64) -> bool {
    (a as f64 - b as f64).abs() <= 0.01 * b as f64
}

/// The best ceiling of a traffic at a number of bytes.
pub(crate) fn best_ceiling(ceilings: &[Ceiling], traffic: Traffic, bytes: u64) -> Option<&Ceiling> {
    // Rows of a reduction count their output too: a few bytes more than the ceiling read.
    let same = ceilings.iter().filter(|c| c.traffic == traffic && close(c.bytes, bytes));
    same.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))
}

/// Bytes per second beyond which a row cannot be right beside a ceiling.
fn limit(ceiling: &Ceiling) -> f64 {
    (1.0 + CEILING_NOISE) * ceiling.bytes as f64 / ceiling.seconds_min
}

/// Measures a ceiling again while a row stands above it: a machine that others use may have been slow just then, and a
/// row would be taken back for the ceiling's error.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn settle_ceilings<O: Judged>(target: &mut dyn Target<O>, record: &mut Record, repeats: u32) -> Result<()> {
    const TRIES: u32 = 4;
    for row in record.rows.iter().filter(|row| row.marks.iter().all(|mark| mark != CACHE_RESIDENT)) {
        let Some(reached) = row.bytes_per_second else { continue };
        for _ in 0..TRIES {
            let above = best_ceiling(&record.ceilings, row.traffic, row.bytes).filter(|ceiling| reached > limit(ceiling));
            let Some(bytes) = above.map(|ceiling| ceiling.bytes) else { break };
            record.ceilings.extend(measure_ceiling(target, row.traffic, bytes, repeats)?);
        }
    }
    Ok(())
}

/// Percentages and speedups of a record's rows, once all is measured; figures that cannot be are taken back.
pub(crate) fn judge_figures(record: &mut Record) {
    let ceilings = record.ceilings.clone();
    for row in &mut record.rows {
        let Some(reached) = row.bytes_per_second else { continue };
        if row.marks.iter().any(|mark| mark == CACHE_RESIDENT) {
            continue;
        }
        row.percent_of_peak = record.peak.as_ref().map(|peak: &Peak| 100.0 * reached / peak.bytes_per_second);
        let Some(ceiling) = best_ceiling(&ceilings, row.traffic, row.bytes) else { continue };
        row.percent_of_ceiling = Some(100.0 * reached / ceiling.bytes_per_second);
        if reached > limit(ceiling) {
            let why = format!(
                "error of measurement: {:.1} GB/s is above the best {} of {:.1} GB/s",
                reached / 1e9,
                row.traffic.name(),
                ceiling.bytes as f64 / ceiling.seconds_min / 1e9
            );
            take_back(row, why);
        }
    }
    let mut first: Vec<(String, f64)> = vec![];
    for row in &mut record.rows {
        let key = format!("{} {} {}", row.operator, row.dtype, row.shape);
        let Some(seconds) = row.seconds else { continue };
        match first.iter().find(|(k, _)| *k == key) {
            Some((_, base)) => row.speedup = Some(base / seconds),
            None => {
                row.speedup = Some(1.0);
                first.push((key, seconds));
            }
        }
    }
    if record.device.name.contains("H200") {
        for (traffic, least) in H200_LEAST {
            for ceiling in best_ceiling(&ceilings, traffic, 1 << 30).iter().filter(|c| c.bytes_per_second < least) {
                record.invalid.push(format!(
                    "the {} ceiling at 1 GiB is {:.0} GB/s, an H200's is at least {:.0}: the device was not itself",
                    traffic.name(),
                    ceiling.bytes_per_second / 1e9,
                    least / 1e9
                ));
            }
        }
    }
}

fn take_back(row: &mut Row, why: String) {
    row.seconds = None;
    row.seconds_min = None;
    row.seconds_p10 = None;
    row.seconds_p90 = None;
    row.first_pass_seconds = None;
    row.eager_seconds = None;
    row.host = None;
    row.bytes_per_second = None;
    row.percent_of_peak = None;
    row.percent_of_ceiling = None;
    row.failure = Some(why);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTarget;
    use crate::record::tests::sample;
    use upsweep::device::caps::Caps;
    use upsweep::device::cpu::Cpu;
    use upsweep::ops::reduce::Reduce;

    fn target() -> CpuTarget {
        match Cpu::new().caps() {
            Caps::Cpu(caps) => CpuTarget::new(caps.clone()),
            Caps::Cuda(_) => unreachable!("the CPU is no CUDA device"),
        }
    }

    fn options(operators: &[&str]) -> ClimbOptions {
        let operators = operators.iter().map(|o| o.to_string()).collect();
        ClimbOptions { n: 50_001, dtype: DType::F32, operators, rungs: vec![], block: None, peers: vec![], repeats: 3, seed: 11 }
    }

    #[test]
    fn every_rung_has_a_verified_and_timed_row() {
        let record = climb::<Reduce>(&mut target(), &options(&["sum", "argmax"]), &Context::default(), &mut |_| {}).unwrap();
        let rungs = Candidate::<Reduce>::ladder(Cpu::new().caps()).count();
        assert_eq!(record.rows.len(), 2 * rungs);
        for row in &record.rows {
            assert!(row.verified, "{row:?}");
            assert!(row.seconds.is_some() || row.failure.is_some(), "{row:?}");
            assert!(row.error.unwrap() <= row.bound.unwrap());
        }
        assert_eq!(record.ceilings.len(), 2);
        assert_eq!(Record::from_json(&record.to_json(), "record").unwrap(), record);
    }

    #[test]
    fn wrong_arguments_are_typed_errors() {
        let refuse =
            |options: ClimbOptions| climb::<Reduce>(&mut target(), &options, &Context::default(), &mut |_| {}).unwrap_err();
        assert!(matches!(
            refuse(ClimbOptions { repeats: 0, ..options(&[]) }),
            GateError::InvalidArgument { argument: "repeats", .. }
        ));
        let float_only = ClimbOptions { dtype: DType::I32, ..options(&["logsumexp"]) };
        assert!(matches!(refuse(float_only), GateError::Library(upsweep::Error::UnsupportedDType { .. })));
        let empty = ClimbOptions { n: 0, ..options(&["max"]) };
        assert!(matches!(refuse(empty), GateError::Library(upsweep::Error::EmptyInput { .. })));
        let peers = ClimbOptions { peers: vec!["no such library".into()], ..options(&["sum"]) };
        let nothing_before = &mut |step: Progress| panic!("measured before it was refused: {}", step.what);
        let error = climb::<Reduce>(&mut target(), &peers, &Context::default(), nothing_before).unwrap_err();
        assert!(matches!(error, GateError::InvalidArgument { argument: "peer", .. }), "{error}");
    }

    #[test]
    fn figures_that_cannot_be_are_taken_back() {
        let row = |rate: f64, marks: &[&str]| Row {
            bytes: 1000,
            seconds: Some(1000.0 / rate),
            bytes_per_second: Some(rate),
            verified: true,
            marks: marks.iter().map(|m| m.to_string()).collect(),
            ..Row::default()
        };
        let mut record = sample(vec![row(50.0, &[]), row(100.0, &[]), row(150.0, &[]), row(150.0, &[CACHE_RESIDENT])]);
        record.ceilings = vec![Ceiling {
            name: "read".into(),
            traffic: Traffic::Read,
            bytes: 1000,
            seconds: 10.0,
            seconds_min: 9.9,
            bytes_per_second: 100.0,
        }];
        record.peak = Some(Peak { bytes_per_second: 200.0, source: "a test".into() });
        judge_figures(&mut record);
        assert_eq!(record.rows[0].percent_of_ceiling, Some(50.0));
        assert_eq!(record.rows[0].percent_of_peak, Some(25.0));
        assert_eq!((record.rows[0].speedup, record.rows[1].speedup), (Some(1.0), Some(2.0)));
        assert!(record.rows[2].seconds.is_none() && record.rows[2].failure.is_some());
        assert!(record.rows[3].seconds.is_some() && record.rows[3].percent_of_peak.is_none());
    }
}
