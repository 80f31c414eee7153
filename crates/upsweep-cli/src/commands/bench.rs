//! `bench`: the planner's choice over a sweep of sizes and shapes.

use super::{Bar, context, ladder, of_op, record_json, rows, seed};
use crate::args::BenchArgs;
use crate::device::Device;
use crate::output::Report;
use upsweep::device::caps::DeviceKind;
use upsweep_gate::bench::{BenchOptions, bench};
use upsweep_gate::judged::{Judged, Sweep};
use upsweep_gate::record::Record;

/// Runs the command.
///
/// # Errors
/// [`crate::Failure::Gate`] if a row failed, after the table; the library's and the output's errors.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    let record = of_op!(&args.op, O => measure::<O>(args, &device))?;
    Report { sections: vec![rows::bench(&record)], json: record_json(&record)? }.write(&args.output)?;
    ladder::fail_if_any(&record.rows)
}

fn measure<O: Judged>(args: &BenchArgs, device: &Device) -> anyhow::Result<Record> {
    args.operator.iter().try_for_each(|operator| super::known_operator::<O>(Some(operator)))?;
    let mut target = device.target::<O>()?;
    let options = BenchOptions {
        operators: match &args.operator[..] {
            [] => O::typical_operators().iter().map(|operator| operator.to_string()).collect(),
            asked => asked.to_vec(),
        },
        dtypes: vec![args.dtype],
        sweep: match &args.n[..] {
            [] if device.kind() == DeviceKind::Cpu => O::cpu_sweep(),
            [] => O::cuda_sweep(),
            sizes => Sweep { sizes: sizes.to_vec(), ..Sweep::default() },
        },
        peers: args.peer.clone(),
        repeats: args.repeats.unwrap_or_else(|| ladder::default_repeats(device)),
        seed: seed(args.seed),
    };
    let bar = Bar::new();
    Ok(bench::<O>(&mut *target, &options, &context(), &mut |progress| bar.show(progress))?)
}
