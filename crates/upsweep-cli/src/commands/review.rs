//! `review`: which points of a record of `bench --shapes` stand out.

use super::{record_json, rows};
use crate::args::ReviewArgs;
use crate::failure::Failure;
use crate::output::Report;
use upsweep_gate::findings::findings;
use upsweep_gate::record::{Kind, Record};

/// Runs the command.
///
/// # Errors
/// [`Failure::Gate`] if a point stands out, after the tables; [`Failure::Usage`] for a record of another kind; the errors of a
/// record that cannot be read.
pub fn run(args: &ReviewArgs) -> anyhow::Result<()> {
    let record = Record::read(&args.record)?;
    if record.kind != Kind::Shapes {
        return Err(Failure::Usage(format!(
            "{} is a record of another kind ({:?}), but a record of `upsweep bench OP --shapes` is needed",
            args.record.display(),
            record.kind
        ))
        .into());
    }
    let found = findings(&record.rows);
    let (cliffs, behind) = (found.cliffs.len(), found.behind.len());
    let record = Record { findings: Some(found), ..record };
    Report { sections: rows::findings(&record), json: record_json(&record)? }.write(&args.output)?;
    match (cliffs, behind) {
        (0, 0) => Ok(()),
        _ => Err(Failure::Gate(format!("{cliffs} points are worse than a neighbour, {behind} no faster than a peer")).into()),
    }
}
