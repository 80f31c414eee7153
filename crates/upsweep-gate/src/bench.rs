//! The planner's choice over a sweep of sizes and shapes.

use crate::candidate::rung_name;
use crate::climb::{finish_row, judge_figures, measure_ceiling, refuse_row, request, row_of, settle_ceilings};
use crate::error::{GateError, Result};
use crate::judged::{Judged, Sweep};
use crate::record::{Kind, Record};
use crate::target::Target;
use crate::timing::Timing;
use crate::verify::{Context, Evidence, OnProgress, Progress, verify_plan};
use std::path::PathBuf;
use upsweep::flow::Step;
use upsweep::types::DType;

/// What [`bench()`] is asked.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Operators, by name.
    pub operators: Vec<String>,
    /// Element types; those that an operator does not take are left out.
    pub dtypes: Vec<DType>,
    /// Sizes and shapes.
    pub sweep: Sweep,
    /// Other libraries, timed on the same problems.
    pub peers: Vec<PathBuf>,
    /// Timed calls of a row.
    pub repeats: u32,
    /// The seed that every datum follows from.
    pub seed: u64,
}

impl BenchOptions {
    fn problems<O: Judged>(&self) -> Result<Vec<(String, O::Problem)>> {
        let mut problems = vec![];
        for operator in &self.operators {
            for &dtype in &self.dtypes {
                match O::sweep(operator, dtype, &self.sweep) {
                    Ok(found) => problems.extend(found),
                    Err(GateError::Library(upsweep::Error::UnsupportedDType { .. })) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(problems)
    }
}

/// Verifies and times the planner's choice for each problem.
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
    let mut record = context.record(Kind::Bench, target, options.seed);
    let total = problems.len() as u64;
    for (done, (shape, problem)) in problems.into_iter().enumerate() {
        progress(Progress { done: done as u64, total, what: format!("{problem}, shape {shape}") });
        let plan = O::plan(&problem, &target.caps())?;
        let mut row = row_of(target, &problem, &rung_name(plan.rung), shape);
        let request = request(target, options.repeats, options.seed);
        let timed = Evidence::new(&problem, options.seed)
            .and_then(|evidence| verify_plan(target, &plan, &evidence))
            .and_then(|verified| Timing::measure(&verified, target, &request));
        match timed {
            Ok(timing) => {
                let first = plan.program.as_ref().and_then(|program| program.steps.first());
                row.block = first.map(|Step::Launch(launch)| launch.block);
                finish_row(&mut row, &timing);
                // A ceiling for each number of bytes, where a percentage will be asked of it.
                let known = record.ceilings.iter().any(|c| c.bytes == row.bytes && c.traffic == row.traffic);
                if !known && !timing.cache_resident() {
                    record.ceilings.extend(measure_ceiling(target, row.traffic, row.bytes, options.repeats)?);
                }
            }
            Err(error) => refuse_row(&mut row, error)?,
        }
        record.rows.push(row);
        for peer in &options.peers {
            record.rows.extend(target.peer(peer, &problem, &request)?);
        }
    }
    record.device = target.describe();
    settle_ceilings(target, &mut record, options.repeats)?;
    judge_figures(&mut record);
    // A sweep has no first rung to be faster than.
    record.rows.iter_mut().for_each(|row| row.speedup = None);
    Ok(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::CpuTarget;
    use upsweep::device::caps::Caps;
    use upsweep::device::cpu::Cpu;
    use upsweep::ops::reduce::Reduce;

    #[test]
    fn a_sweep_times_every_problem_that_exists() {
        let Caps::Cpu(caps) = Cpu::new().caps().clone() else { unreachable!("the CPU is no CUDA device") };
        let mut target = CpuTarget::new(caps);
        let options = BenchOptions {
            operators: vec!["sum".into(), "logsumexp".into()],
            dtypes: vec![DType::F32, DType::I32],
            sweep: Sweep { sizes: vec![1000], rows: vec![(10, 33)], columns: vec![(33, 10)] },
            peers: vec![],
            repeats: 2,
            seed: 5,
        };
        let record = bench::<Reduce>(&mut target, &options, &Context::default(), &mut |_| {}).unwrap();
        // logsumexp of i32 does not exist.
        assert_eq!(record.rows.len(), 9);
        assert!(record.rows.iter().all(|row| row.verified && row.seconds.is_some()), "{:#?}", record.rows);
        assert_eq!(record.rows[2].shape, "33 x 10, first axis");
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
}
