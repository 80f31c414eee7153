//! `bench`: the planner's choice over a sweep of sizes and shapes.

use super::{Bar, context, ladder, of_op, record_json, rows, seed};
use crate::args::BenchArgs;
use crate::device::Device;
use crate::failure::Failure;
use crate::output::Report;
use upsweep::device::caps::DeviceKind;
use upsweep_gate::bench::{BenchOptions, bench, bench_shapes};
use upsweep_gate::judged::Judged;
use upsweep_gate::points::shapes;
use upsweep_gate::record::Record;

/// Runs the command.
///
/// # Errors
/// [`crate::Failure::Gate`] if a row failed, after the table; the library's and the output's errors.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    let record = of_op!(&args.op, O => measure::<O>(args, &device))?;
    let sections = [rows::bench(&record)].into_iter().chain(rows::findings(&record)).collect();
    Report { sections, json: record_json(&record)? }.write(&args.output)?;
    ladder::fail_if_any(&record.rows)
}

/// Elements of the largest shape of the list where nothing is asked.
fn largest_shape(kind: DeviceKind) -> u64 {
    match kind {
        DeviceKind::Cpu => 1 << 22,
        DeviceKind::Cuda => 1 << 28,
    }
}

fn measure<O: Judged>(args: &BenchArgs, device: &Device) -> anyhow::Result<Record> {
    if device.is_simulated() {
        return Err(super::no_time("bench"));
    }
    args.operator.iter().try_for_each(|operator| super::timed_operator::<O>(Some(operator)))?;
    if args.goals && (device.kind() != DeviceKind::Cuda || O::goals().is_empty()) {
        let asked = format!("`--goals` of {} on {}", O::NAME, device.kind().name());
        return Err(
            Failure::Usage(format!("{asked}: the figures are scans' on a CUDA device; leave it out to time others")).into()
        );
    }
    let mut target = device.target::<O>()?;
    let options = BenchOptions {
        operators: match &args.operator[..] {
            _ if args.goals => vec![],
            [] => O::typical_operators().iter().map(|operator| operator.to_string()).collect(),
            asked => asked.to_vec(),
        },
        dtypes: vec![args.dtype],
        points: match (&args.n[..], device.kind()) {
            ([], kind) if args.shapes => shapes(args.up_to.unwrap_or_else(|| largest_shape(kind))),
            ([], DeviceKind::Cpu) => O::cpu_sweep(),
            ([], DeviceKind::Cuda) => O::cuda_sweep(),
            (sizes, _) => sizes.iter().map(|n| O::point_of_size(*n)).collect(),
        },
        goals: if args.goals { O::goals() } else { vec![] },
        peers: args.peer.clone(),
        repeats: args.repeats.unwrap_or_else(|| ladder::default_repeats(device)),
        seed: seed(args.seed),
    };
    let bar = Bar::new();
    let measure = if args.shapes { bench_shapes::<O> } else { bench::<O> };
    Ok(measure(&mut *target, &options, &context(), &mut |progress| bar.show(progress))?)
}
