//! `bench`: the planner's choice over a sweep of sizes and shapes.

use super::{Bar, context, ladder, record_json, rows, seed};
use crate::args::BenchArgs;
use crate::device::Device;
use crate::output::Report;
use upsweep::device::caps::DeviceKind;
use upsweep::types::Operator;
use upsweep_gate::bench::{BenchOptions, bench};

/// The operators of the sweep: one of each kind of state.
const OPERATORS: [Operator; 4] = [Operator::Sum, Operator::Max, Operator::ArgMax, Operator::LogSumExp];

/// Runs the command.
///
/// # Errors
/// [`crate::Failure::Gate`] if a row failed, after the table; the library's and the output's errors.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    let mut target = device.target()?;
    let on_cpu = device.kind() == DeviceKind::Cpu;
    let (sizes, rows_of, columns) = match args.n {
        Some(n) => (vec![n], vec![], vec![]),
        None if on_cpu => (vec![1 << 10, 1 << 16, 1 << 20, 1 << 24], vec![(1 << 12, 1 << 12)], vec![(1 << 12, 1 << 12)]),
        None => (
            vec![1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 26, 1 << 28],
            vec![(1 << 20, 1 << 8), (1 << 14, 1 << 14), (1 << 8, 1 << 20)],
            vec![(1 << 14, 1 << 14)],
        ),
    };
    let operators: Vec<Operator> = match args.operator {
        Some(operator) => vec![operator],
        None => OPERATORS.into_iter().filter(|o| o.accepts(args.dtype)).collect(),
    };
    let options = BenchOptions {
        operators,
        dtypes: vec![args.dtype],
        sizes,
        rows: rows_of,
        columns,
        peers: args.peer.clone(),
        repeats: args.repeats.unwrap_or_else(|| ladder::default_repeats(&device)),
        seed: seed(args.seed),
    };
    let bar = Bar::new();
    let record = bench(&mut *target, &options, &context(), &mut |progress| bar.show(progress))?;
    drop(bar);
    Report { sections: vec![rows::bench(&record)], json: record_json(&record)? }.write(&args.output)?;
    ladder::fail_if_any(&record.rows)
}
