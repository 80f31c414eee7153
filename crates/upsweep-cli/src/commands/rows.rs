//! Rows of records as people read them.

use crate::output::Section;
use upsweep_gate::findings::CLIFF;
use upsweep_gate::record::{Record, Row};
use upsweep_gate::statistics::Spread;

pub(super) fn optional(value: Option<f64>, form: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), form)
}

pub(super) fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms >= 100.0 { format!("{ms:.1}") } else { format!("{ms:.4}") }
}

fn gigabytes(bytes_per_second: f64) -> String {
    format!("{:.1}", bytes_per_second / 1e9)
}

pub(super) fn percent(value: f64) -> String {
    format!("{value:.1}")
}

/// Error and bound, for instance `1.2e-7/3.4e-6`.
fn error_of_bound(row: &Row) -> String {
    match (row.error, row.bound) {
        (Some(error), Some(bound)) => format!("{error:.1e}/{bound:.1e}"),
        (Some(error), None) => format!("{error:.1e}"),
        _ => "-".into(),
    }
}

/// What is remarkable about a row.
fn marks(row: &Row) -> String {
    let mut marks = row.marks.clone();
    if let Some(failure) = &row.failure {
        marks.insert(0, failure.clone());
    } else if !row.verified {
        marks.insert(0, "unverified".into());
    }
    marks.join(", ")
}

/// One row in a sentence, for `explain`.
pub(super) fn in_words(row: &Row) -> String {
    let mut parts = vec![format!("{} of {}, n = {}", row.operator, row.dtype, row.n)];
    parts.extend(row.seconds.map(|s| format!("{} ms", milliseconds(s))));
    parts.extend(row.bytes_per_second.map(|b| format!("{} GB/s", gigabytes(b))));
    parts.extend(row.percent_of_peak.map(|p| format!("{} % of peak", percent(p))));
    parts.extend(row.percent_of_ceiling.map(|p| format!("{} % of the ceiling", percent(p))));
    parts.extend(row.speedup.map(|s| format!("{s:.2} x rung 0")));
    parts.join(", ")
}

/// The table of a ladder.
pub(super) fn ladder(record: &Record) -> Section {
    let passes = record.rows.iter().any(|row| row.first_pass_seconds.is_some());
    let blocks = record.rows.iter().any(|row| row.block.is_some());
    let mut columns = vec!["rung"];
    columns.extend(blocks.then_some("block"));
    columns.extend(["ms", "GB/s", "% of peak", "% of ceiling", "speedup", "error/bound"]);
    columns.extend(passes.then_some("first kernel ms"));
    columns.push("marks");
    let mut section = Section::new(heading(record), &columns);
    for row in &record.rows {
        let mut cells = vec![row.rung.clone()];
        cells.extend(blocks.then(|| row.block.map_or_else(|| "-".into(), |b| b.to_string())));
        cells.extend(measures(row));
        cells.push(optional(row.speedup, |s| format!("{s:.2}")));
        cells.push(error_of_bound(row));
        cells.extend(passes.then(|| optional(row.first_pass_seconds, milliseconds)));
        cells.push(marks(row));
        section.rows.push(cells);
    }
    section.notes = notes(record);
    section
}

/// What stands out among the points of the list of shapes: cliffs, then points that are no faster than a peer; nothing for a
/// record without findings.
pub(super) fn findings(record: &Record) -> Vec<Section> {
    let Some(found) = &record.findings else { return vec![] };
    let times = |times: f64| format!("{times:.2}");
    // Nothing that stands out is a remark, not a table without rows.
    let section =
        |heading: String, columns: [&str; 5], rows: usize| Section::new(heading, if rows == 0 { &[] } else { &columns[..] });
    let mut cliffs = section(
        format!("Cliffs: points more than {CLIFF} times as costly as a neighbour, each against the least the device needs"),
        ["point", "x least", "neighbour", "its x least", "ratio"],
        found.cliffs.len(),
    );
    for cliff in &found.cliffs {
        cliffs.row([
            cliff.point.clone(),
            times(cliff.times_least),
            cliff.neighbour.clone(),
            times(cliff.neighbour_times_least),
            times(cliff.times_least / cliff.neighbour_times_least),
        ]);
    }
    cliffs.notes.push(format!("{} of {} points.", found.cliffs.len(), found.points));
    let mut behind = section(
        "Behind: points that do not beat the fastest peer".into(),
        ["point", "ms", "peer", "its ms", "ratio"],
        found.behind.len(),
    );
    for point in &found.behind {
        behind.row([
            point.point.clone(),
            milliseconds(point.seconds),
            point.peer.clone(),
            milliseconds(point.peer_seconds),
            times(point.seconds / point.peer_seconds),
        ]);
    }
    behind.notes.push(format!("{} of {} points that a peer was timed at.", found.behind.len(), found.points_with_peer));
    vec![cliffs, behind]
}

/// Microseconds with their 10th and 90th percentiles.
fn microseconds(spread: &Spread) -> String {
    format!("{:.2} ({:.2}..{:.2})", spread.median * 1e6, spread.p10 * 1e6, spread.p90 * 1e6)
}

/// The table of a bench.
pub(super) fn bench(record: &Record) -> Section {
    let eager = record.rows.iter().any(|row| row.eager_seconds.is_some());
    let host = record.rows.iter().any(|row| row.host.is_some());
    let goals = record.rows.iter().any(|row| row.goal.is_some());
    let mut columns = vec!["operator", "dtype", "shape", "rung", "ms", "GB/s", "% of peak", "% of ceiling", "x least"];
    columns.extend(goals.then_some(["goal", "met"]).into_iter().flatten());
    columns.extend(eager.then_some("eager ms"));
    columns.extend(host.then_some(["enqueue us", "raw launch us"]).into_iter().flatten());
    columns.extend(["error/bound", "marks"]);
    let mut section = Section::new(heading(record), &columns);
    for row in &record.rows {
        let mut cells = vec![row.operator.clone(), row.dtype.clone(), row.shape.clone(), row.rung.clone()];
        cells.extend(measures(row));
        cells.push(optional(row.times_least, |times| format!("{times:.2}")));
        if goals {
            cells.push(row.goal.map_or_else(|| "-".into(), |goal| goal.to_string()));
            let met = row.goal.and_then(|goal| goal.is_met(row));
            cells.push(met.map_or("-", |met| if met { "yes" } else { "no" }).into());
        }
        cells.extend(eager.then(|| optional(row.eager_seconds, milliseconds)));
        if host {
            let spreads = row.host.map(|host| [host.enqueue, host.raw_launch]);
            cells.extend(spreads.map_or_else(|| ["-".into(), "-".into()], |both| both.map(|spread| microseconds(&spread))));
        }
        cells.extend([error_of_bound(row), marks(row)]);
        section.rows.push(cells);
    }
    section.notes = notes(record);
    section
}

fn measures(row: &Row) -> [String; 4] {
    [
        optional(row.seconds, milliseconds),
        optional(row.bytes_per_second, gigabytes),
        optional(row.percent_of_peak, percent),
        optional(row.percent_of_ceiling, percent),
    ]
}

fn heading(record: &Record) -> String {
    let first = record.rows.first();
    let one_problem = first.filter(|first| {
        record.rows.iter().all(|r| (&r.operator, &r.dtype, &r.shape) == (&first.operator, &first.dtype, &first.shape))
    });
    let what = one_problem.map_or_else(String::new, |row| format!(": {} of {}, {}", row.operator, row.dtype, shape(row)));
    format!("{}{what} on {} ({})", record.op, record.device.name, record.device.kind)
}

/// The shape, and for a power of two its exponent.
fn shape(row: &Row) -> String {
    if row.n.is_power_of_two() && row.shape == row.n.to_string() {
        format!("2^{} elements", row.n.trailing_zeros())
    } else {
        format!("{} elements", row.shape)
    }
}

/// So many ceilings are listed one by one below a table.
const MOST_CEILINGS: usize = 16;

/// What every figure of a record stands on.
pub(super) fn notes(record: &Record) -> Vec<String> {
    let mut notes = Vec::new();
    match &record.peak {
        Some(peak) => notes.push(format!("Peak {} GB/s ({}).", gigabytes(peak.bytes_per_second), peak.source)),
        None => notes.push("Peak: this device states none.".into()),
    }
    if record.ceilings.len() > MOST_CEILINGS {
        let rates = || record.ceilings.iter().map(|ceiling| ceiling.bytes_per_second);
        notes.push(format!(
            "{} ceilings of {} to {} GB/s, measured in this run; the JSON form has each.",
            record.ceilings.len(),
            gigabytes(rates().fold(f64::INFINITY, f64::min)),
            gigabytes(rates().fold(0.0, f64::max))
        ));
    }
    for ceiling in record.ceilings.iter().filter(|_| record.ceilings.len() <= MOST_CEILINGS) {
        notes.push(format!(
            "Ceiling {} GB/s: {} of {} bytes, measured in this run.",
            gigabytes(ceiling.bytes_per_second),
            ceiling.name,
            ceiling.bytes
        ));
    }
    notes.extend(record.invalid.iter().map(|why| format!("INVALID RUN: {why}.")));
    notes.push(format!("Every timed row was verified in this run. Seed {}, commit {}.", record.seed, record.commit));
    notes
}
