//! `verify`: the cases, and the wrong kernels that must be rejected.

use super::{Bar, context, record_json, rows, seed};
use crate::args::{Cases, VerifyArgs};
use crate::device::Device;
use crate::failure::Failure;
use crate::output::{Report, Section};
use std::collections::BTreeMap;
use upsweep::ops::reduce::ReduceRung;
use upsweep_gate::cases::Level;
use upsweep_gate::record::Record;
use upsweep_gate::verify::{Selection, VerifyOptions, verify};

/// Runs the command.
///
/// # Errors
/// [`Failure::Gate`] if a case failed, a rung had no case, or a wrong kernel passed, after the table.
pub fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let device = Device::select(args.device.device)?;
    let rung = args.target.as_ref().and_then(|target| target.rung.clone());
    if let Some(name) = &rung {
        ReduceRung::find(device.kind(), name)?;
    }
    let options = VerifyOptions {
        selection: Selection {
            operators: args.operator.into_iter().collect(),
            dtypes: args.dtype.into_iter().collect(),
            rungs: rung.into_iter().collect(),
        },
        level: match args.cases {
            Cases::Quick => Level::Quick,
            Cases::Full => Level::Full,
            Cases::Huge => Level::Huge,
        },
        seed: seed(args.seed),
        wrong_kernels: !args.no_wrong_kernels,
    };
    let mut target = device.target()?;
    let bar = Bar::new();
    let report = verify(&mut *target, &options, &mut |progress| bar.show(progress))?;
    drop(bar);
    let passed = report.passed();
    let record = report.into_record(&*target, &context());
    Report { sections: sections(&record), json: record_json(&record)? }.write(&args.output)?;
    if passed {
        return Ok(());
    }
    let refused = record.rungs.iter().filter(|r| r.verdict != "passed").map(|r| format!("{} {}", r.rung, r.verdict));
    let accepted = record
        .wrong_kernels
        .iter()
        .filter(|w| !w.rejected && !w.skipped)
        .map(|w| format!("wrong kernel {} was not rejected", w.name));
    let why: Vec<String> = refused.chain(accepted).collect();
    Err(Failure::Gate(format!("verification failed: {}", why.join("; "))).into())
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
