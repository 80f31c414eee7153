//! `verify`: the cases, and the wrong kernels that must be rejected.

use super::{Bar, context, of_op, record_json, rows, seed};
use crate::args::{Cases, VerifyArgs};
use crate::device::Device;
use crate::failure::Failure;
use crate::output::{Report, Section};
use std::collections::BTreeMap;
use upsweep::flow::Rung;
use upsweep_gate::cases::Level;
use upsweep_gate::judged::Judged;
use upsweep_gate::record::Record;
use upsweep_gate::verify::{Selection, VerifyOptions, verify};

/// Runs the command.
///
/// # Errors
/// [`Failure::Gate`] if a case failed, a rung had no case, or a wrong kernel passed, after the table.
pub fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let device =
        Device::select(args.device.device)?.with_sources(&args.source, args.target.as_ref().map(|target| target.op.as_str()))?;
    let records = match &args.target {
        Some(target) => vec![of_op!(&target.op, O => judge::<O>(args, &device, target.rung.as_deref()))?],
        None => {
            let mut records = vec![];
            upsweep::for_each_op!(O => if takes::<O>(args) { records.push(judge::<O>(args, &device, None)?) });
            if records.is_empty() {
                let mut known = vec![];
                upsweep::for_each_op!(O => known.extend(O::operators()));
                let asked = args.operator.as_deref().unwrap_or_default();
                let known = known.join(", ");
                return Err(Failure::Usage(format!("`{asked}` is an operator of no operation; allowed are {known}")).into());
            }
            records
        }
    };
    let json = match &records[..] {
        [only] => record_json(only)?,
        several => several.iter().map(record_json).collect::<anyhow::Result<Vec<_>>>()?.into(),
    };
    Report { sections: records.iter().flat_map(sections).collect(), json }.write(&args.output)?;
    let refused = |record: &Record| -> Vec<String> {
        let rungs = record.rungs.iter().filter(|r| !r.is_right());
        let wrong = record.wrong_kernels.iter().filter(|w| !w.rejected && !w.skipped);
        rungs
            .map(|r| format!("{}/{} {}", record.op, r.rung, r.verdict))
            .chain(wrong.map(|w| format!("wrong kernel {} was not rejected", w.name)))
            .collect()
    };
    let mut why: Vec<String> = records.iter().flat_map(refused).collect();
    if !records.iter().any(|record| record.rungs.iter().any(|rung| rung.verdict == "passed")) {
        why.push("no rung was verified".into());
    }
    if why.is_empty() {
        return Ok(());
    }
    Err(Failure::Gate(format!("verification failed: {}", why.join("; "))).into())
}

/// Whether an operation has the operator that was asked for.
fn takes<O: Judged>(args: &VerifyArgs) -> bool {
    args.operator.as_ref().is_none_or(|operator| O::operators().contains(&operator.as_str()))
}

/// Judges one operation.
fn judge<O: Judged>(args: &VerifyArgs, device: &Device, rung: Option<&str>) -> anyhow::Result<Record> {
    if let Some(name) = rung {
        Rung::<O>::find(device.kind(), name)?;
    }
    super::known_operator::<O>(args.operator.as_deref())?;
    let options = VerifyOptions {
        selection: Selection {
            operators: args.operator.iter().cloned().collect(),
            dtypes: args.dtype.into_iter().collect(),
            rungs: rung.map(str::to_string).into_iter().collect(),
            few_rows: args.few_rows,
        },
        level: match args.cases {
            Cases::Quick => Level::Quick,
            Cases::Full => Level::Full,
            Cases::Huge => Level::Huge,
        },
        seed: seed(args.seed),
        wrong_kernels: !args.no_wrong_kernels,
    };
    let mut target = device.target::<O>()?;
    let bar = Bar::new();
    let report = verify::<O>(&mut *target, &options, &mut |progress| bar.show(progress))?;
    Ok(report.into_record::<O>(&*target, &context()))
}

pub(super) fn sections(record: &Record) -> Vec<Section> {
    let name = &record.device.name;
    let mut rungs = Section::new(
        format!("{} on {name} ({})", record.op, record.device.kind),
        &["rung", "verdict", "passed", "failed", "not claimed", "worst error/bound", "deterministic"],
    );
    for rung in &record.rungs {
        rungs.row([
            rung.rung.clone(),
            rung.verdict.clone(),
            rung.passed.to_string(),
            rung.failed.to_string(),
            rung.skipped.values().sum::<u64>().to_string(),
            rows::optional(rung.worst_error_over_bound, |e| format!("{e:.3}")),
            match rung.deterministic {
                Some(true) => "yes".into(),
                Some(false) => "no".into(),
                None => "-".into(),
            },
        ]);
        rungs.notes.extend(rung.failures.iter().map(|failure| format!("{}: {failure}", rung.rung)));
    }
    if let Some(summary) = &record.verify {
        rungs.notes.push(format!(
            "{} cases ({}): {} passed, {} failed, {} not claimed{}.",
            summary.cases,
            summary.level,
            summary.passed,
            summary.failed,
            summary.skipped.values().sum::<u64>(),
            reasons(&summary.skipped)
        ));
    }
    rungs.notes.push(format!("Seed {}, commit {}.", record.seed, record.commit));
    let mut wrong =
        Section::new("Wrong kernels, which must be rejected".to_string(), &["wrong kernel", "fault", "verdict", "by"]);
    for kernel in &record.wrong_kernels {
        wrong.row([
            kernel.name.clone(),
            kernel.fault.clone(),
            kernel.verdict().into(),
            kernel.by.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    let mut sections = vec![rungs];
    if !wrong.rows.is_empty() {
        sections.push(wrong);
    }
    sections
}

fn reasons(skipped: &BTreeMap<String, u64>) -> String {
    if skipped.is_empty() {
        return String::new();
    }
    let reasons: Vec<String> = skipped.iter().map(|(reason, count)| format!("{reason}: {count}")).collect();
    format!(" ({})", reasons.join("; "))
}
