//! `compare`: two records side by side.

use super::rows;
use crate::args::CompareArgs;
use crate::failure::Failure;
use crate::output::{Report, Section};
use serde_json::json;
use upsweep_gate::compare::{Change, compare};
use upsweep_gate::record::Record;

/// Runs the command.
///
/// # Errors
/// [`Failure::Gate`] if a row got slower, broke or is gone, after the table; the errors of a record that cannot be read.
pub fn run(args: &CompareArgs) -> anyhow::Result<()> {
    if !(0.0..1000.0).contains(&args.tolerance) {
        return Err(Failure::Usage(format!(
            "`--tolerance` is {}, but a percentage of at least 0 and below 1000 is allowed",
            args.tolerance
        ))
        .into());
    }
    let (before, after) = (Record::read(&args.before)?, Record::read(&args.after)?);
    let comparison = compare(&before, &after, args.tolerance / 100.0);
    let mut section = Section::new(
        format!("{} to {}", args.before.display(), args.after.display()),
        &["row", "before ms", "after ms", "after/before", "noise", "change"],
    );
    let mut pairs = Vec::new();
    for pair in &comparison.pairs {
        section.row([
            pair.key.clone(),
            rows::optional(pair.first_seconds, rows::milliseconds),
            rows::optional(pair.second_seconds, rows::milliseconds),
            rows::optional(pair.ratio, |r| format!("{r:.3}")),
            pair.noise.map_or_else(|| "-".into(), |(low, high)| format!("{low:.3}..{high:.3}")),
            in_words(pair.change).into(),
        ]);
        pairs.push(json!({
            "row": pair.key,
            "before_seconds": pair.first_seconds,
            "after_seconds": pair.second_seconds,
            "ratio": pair.ratio,
            "noise": pair.noise,
            "change": in_words(pair.change),
        }));
    }
    section.notes.extend(comparison.warnings.iter().map(|warning| format!("Warning: {warning}")));
    section.notes.extend(comparison.only_in_first.iter().map(|key| format!("Only in the first: {key}")));
    section.notes.extend(comparison.only_in_second.iter().map(|key| format!("Only in the second: {key}")));
    let regressions = comparison.regressions().count();
    let json = json!({
        "tolerance": args.tolerance / 100.0,
        "pairs": pairs,
        "only_in_first": comparison.only_in_first,
        "only_in_second": comparison.only_in_second,
        "warnings": comparison.warnings,
        "regressions": regressions,
    });
    Report { sections: vec![section], json }.write(&args.output)?;
    match (regressions, comparison.only_in_first.len()) {
        (0, 0) => Ok(()),
        (worse, gone) => Err(Failure::Gate(format!("{worse} rows got worse and {gone} are gone")).into()),
    }
}

fn in_words(change: Change) -> &'static str {
    match change {
        Change::Same => "same",
        Change::Faster => "faster",
        Change::Slower => "SLOWER",
        Change::Broken => "BROKEN",
        Change::Mended => "mended",
        Change::Untimed => "untimed",
    }
}
