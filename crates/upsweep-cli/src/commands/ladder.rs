//! `ladder`: every rung of a device at one size, verified and then timed.

use super::{Bar, context, note, of_op, record_json, rows, seed};
#[cfg(feature = "sim")]
use crate::args::DeviceChoice;
use crate::args::LadderArgs;
use crate::device::{Device, cuda_hint};
use crate::failure::Failure;
use crate::output::{Report, Section};
use upsweep::device::caps::DeviceKind;
use upsweep_gate::climb::{ClimbOptions, climb};
#[cfg(feature = "sim")]
use upsweep_gate::counted::Counted;
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
    #[cfg(feature = "sim")]
    if let Device::Sim(sim) = &device {
        return simulate(args, sim);
    }
    let record = of_op!(&args.op, O => measure::<O>(args, &device))?;
    let mut sections = vec![rows::ladder(&record)];
    if device.kind() == DeviceKind::Cpu
        && let Some(hint) = cuda_hint()
    {
        sections.extend(beside_the_cpu(args));
        note(&hint);
    }
    Report { sections, json: record_json(&record)? }.write(&args.output)?;
    fail_if_any(&record.rows)
}

/// Elements on the simulator: enough blocks to tell rungs apart, and a rung takes a fraction of a second.
#[cfg(feature = "sim")]
const SIM_N: u64 = 1 << 20;

/// What the options are to the simulator.
#[cfg(feature = "sim")]
fn simulated_options<O: Judged>(args: &LadderArgs, n: u64) -> anyhow::Result<ClimbOptions> {
    super::timed_operator::<O>(args.operator.as_deref())?;
    Ok(ClimbOptions {
        n,
        dtype: args.dtype,
        operators: args.operator.iter().cloned().collect(),
        rungs: vec![],
        block: args.block,
        peers: vec![],
        repeats: 1,
        seed: seed(args.seed),
    })
}

/// The CUDA rungs, verified and counted.
#[cfg(feature = "sim")]
fn count(args: &LadderArgs, sim: &upsweep_sim::Sim, n: u64) -> anyhow::Result<Record> {
    let bar = Bar::new();
    of_op!(&args.op, O => {
        let options = simulated_options::<O>(args, n)?;
        anyhow::Ok(upsweep_gate::sim::climb::<O>(sim, &options, &context(), &mut |progress| bar.show(progress))?)
    })
}

#[cfg(feature = "sim")]
fn simulated_section(args: &LadderArgs, record: &Record, n: u64) -> Section {
    super::simulated::ladder(&args.op, &format!("{n} elements of {}", args.dtype), &record.counted)
}

/// The ladder of `--device sim`.
#[cfg(feature = "sim")]
fn simulate(args: &LadderArgs, sim: &upsweep_sim::Sim) -> anyhow::Result<()> {
    if args.repeats.is_some() || !args.peer.is_empty() {
        let why = "`--repeats` and `--peer` are for timing, and the simulator has no time; leave them out";
        return Err(Failure::Usage(why.into()).into());
    }
    let n = args.n.unwrap_or(SIM_N);
    let record = count(args, sim, n)?;
    Report { sections: vec![simulated_section(args, &record, n)], json: record_json(&record)? }.write(&args.output)?;
    let ran = |rung: &&Counted| !rung.not_claimed;
    let failed: Vec<&str> =
        record.counted.iter().filter(ran).filter(|rung| !rung.verified).map(|rung| rung.rung.as_str()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let all = record.counted.len();
    Err(Failure::Gate(format!("the gate refused {} of {all} rungs: {}", failed.len(), failed.join(", "))).into())
}

/// The CUDA rungs on the simulator, for a machine without a GPU that has a C++ compiler. Whatever is wrong there is told by
/// `--device sim`, not here: the ladder that was asked for is the CPU's.
#[cfg(feature = "sim")]
fn beside_the_cpu(args: &LadderArgs) -> Option<Section> {
    if args.device.device != DeviceChoice::Auto {
        return None;
    }
    let sim = upsweep_sim::Sim::new();
    sim.compiler().ok()?;
    let n = args.n.unwrap_or(SIM_N).min(SIM_N);
    Some(simulated_section(args, &count(args, &sim, n).ok()?, n))
}

#[cfg(not(feature = "sim"))]
fn beside_the_cpu(_: &LadderArgs) -> Option<Section> {
    None
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
