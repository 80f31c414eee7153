//! `ladder`: every rung of a device at one size, verified and then timed.

use super::{Bar, context, note, of_op, record_json, rows, seed};
use crate::args::LadderArgs;
use crate::device::{Device, cuda_hint};
use crate::failure::Failure;
use crate::output::Report;
use upsweep::device::caps::DeviceKind;
use upsweep_gate::climb::{ClimbOptions, climb};
use upsweep_gate::judged::Judged;
use upsweep_gate::record::{Record, Row};

/// Elements on a GPU: the size of the assignment's table, 1 GiB of f32.
const CUDA_N: u64 = 1 << 28;
/// Elements on a CPU: 256 MiB of f32, beyond any cache, and the sequential rung still ends within a second.
const CPU_N: u64 = 1 << 26;

/// The default number of elements of a ladder.
pub(super) fn default_n(device: &Device) -> u64 {
    match device.kind() {
        DeviceKind::Cpu => CPU_N,
        DeviceKind::Cuda => CUDA_N,
    }
}

/// The default number of timed repeats of a row.
pub(super) fn default_repeats(device: &Device) -> u32 {
    match device.kind() {
        DeviceKind::Cpu => 9,
        DeviceKind::Cuda => 50,
    }
}

/// Runs the command.
///
/// # Errors
/// [`Failure::Gate`] if a rung failed, after the table; the library's and the output's errors.
pub fn run(args: &LadderArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    if args.block.is_some() && device.kind() == DeviceKind::Cpu {
        return Err(Failure::Usage(
            "`--block` has no meaning on the CPU, which has no blocks; leave it out or use `--device cuda`".into(),
        )
        .into());
    }
    let record = of_op!(&args.op, O => measure::<O>(args, &device))?;
    Report { sections: vec![rows::ladder(&record)], json: record_json(&record)? }.write(&args.output)?;
    if device.kind() == DeviceKind::Cpu
        && let Some(hint) = cuda_hint()
    {
        note(&hint);
    }
    fail_if_any(&record.rows)
}

/// Climbs one operation's ladder.
fn measure<O: Judged>(args: &LadderArgs, device: &Device) -> anyhow::Result<Record> {
    super::timed_operator::<O>(args.operator.as_deref())?;
    let operator = args.operator.clone().unwrap_or_else(|| O::operators()[0].to_string());
    let mut target = device.target::<O>()?;
    let options = ClimbOptions {
        n: args.n.unwrap_or_else(|| default_n(device)),
        dtype: args.dtype,
        operators: vec![operator],
        rungs: vec![],
        block: args.block,
        peers: args.peer.clone(),
        repeats: args.repeats.unwrap_or_else(|| default_repeats(device)),
        seed: seed(args.seed),
    };
    let bar = Bar::new();
    Ok(climb::<O>(&mut *target, &options, &context(), &mut |progress| bar.show(progress))?)
}

/// Exit code 1 if a row was refused.
pub(super) fn fail_if_any(rows: &[Row]) -> anyhow::Result<()> {
    let failed: Vec<&str> = rows.iter().filter(|row| row.failure.is_some()).map(|row| row.rung.as_str()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Gate(format!("the gate refused {} of {} rows: {}", failed.len(), rows.len(), failed.join(", "))).into())
}
