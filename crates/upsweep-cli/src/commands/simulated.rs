//! What the simulator counted, as tables, as JSON and in a sentence. No time: the simulator has none.

use crate::output::Section;
use serde_json::{Value, json};
use upsweep_gate::sim::SimulatedRung;
use upsweep_sim::{Count, Kind, Report};

/// A figure that tells rungs apart.
struct Measure {
    /// Head of its column.
    column: &'static str,
    /// Its name in a sentence.
    words: &'static str,
    /// From what a rung's launches did; `None` where it did nothing of the sort.
    of: fn(&Report) -> Option<f64>,
}

const MEASURES: &[Measure] = &[
    Measure { column: "lanes G", words: "lanes of a global load or store", of: |r| lanes(r, &[Kind::GlobalLoad, Kind::GlobalStore]) },
    Measure { column: "sectors", words: "32-byte sectors of one", of: |r| per_request(r, &[Kind::GlobalLoad, Kind::GlobalStore], |c| c.sectors) },
    Measure { column: "B/asked", words: "bytes moved for a byte asked for", of: overhead },
    Measure { column: "lanes S", words: "lanes of a shared load", of: |r| lanes(r, &[Kind::SharedLoad]) },
    Measure { column: "passes ld", words: "passes over the banks for one", of: |r| per_request(r, &[Kind::SharedLoad], |c| c.wavefronts) },
    Measure { column: "passes st", words: "passes for a shared store", of: |r| per_request(r, &[Kind::SharedStore], |c| c.wavefronts) },
    Measure { column: "loads", words: "global loads of a thread", of: |r| per_thread(r, &[Kind::GlobalLoad]) },
    Measure { column: "barriers", words: "barriers of a thread", of: |r| per_thread(r, &[Kind::Barrier]) },
    Measure { column: "shuffles", words: "shuffles of a thread", of: |r| per_thread(r, &[Kind::Shuffle]) },
    Measure { column: "votes", words: "votes of a thread", of: |r| per_thread(r, &[Kind::Vote]) },
    Measure {
        column: "atomics",
        words: "atomic and ordered accesses of a thread",
        of: |r| per_thread(r, &[Kind::GlobalAtomic, Kind::SharedAtomic]),
    },
];

fn total(report: &Report, kinds: &[Kind]) -> Count {
    kinds.iter().fold(Count::default(), |mut sum, kind| {
        sum.add(&report.total(*kind));
        sum
    })
}

fn per_request(report: &Report, kinds: &[Kind], of: fn(&Count) -> u64) -> Option<f64> {
    let count = total(report, kinds);
    (count.requests > 0).then(|| of(&count) as f64 / count.requests as f64)
}

fn lanes(report: &Report, kinds: &[Kind]) -> Option<f64> {
    per_request(report, kinds, |count| count.lanes)
}

fn overhead(report: &Report) -> Option<f64> {
    let count = total(report, &[Kind::GlobalLoad, Kind::GlobalStore]);
    (count.bytes > 0).then(|| 32.0 * count.sectors as f64 / count.bytes as f64)
}

fn per_thread(report: &Report, kinds: &[Kind]) -> Option<f64> {
    let threads: u64 = report.launches.iter().map(|launch| launch.threads()).sum();
    let lanes = total(report, kinds).lanes;
    (lanes > 0).then(|| lanes as f64 / threads.max(1) as f64)
}

fn figure(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// The table of a simulated ladder.
pub(super) fn ladder(op: &str, what: &str, rungs: &[SimulatedRung]) -> Section {
    let mut columns = vec!["rung"];
    columns.extend(MEASURES.iter().map(|measure| measure.column));
    columns.extend(["error/bound", "marks"]);
    let mut section = Section::new(format!("{op} on the simulator: {what}; counted, not timed"), &columns);
    for rung in rungs {
        let mut cells = vec![rung.rung.clone()];
        let value = |measure: &Measure| rung.report.as_ref().and_then(measure.of).map_or_else(|| "-".into(), figure);
        cells.extend(MEASURES.iter().map(value));
        cells.push(match &rung.report {
            Some(_) => format!("{:.1e}/{:.1e}", rung.agreement.error, rung.agreement.bound),
            None => "-".into(),
        });
        cells.push(match (&rung.failure, &rung.not_claimed) {
            (Some(failure), _) => failure.clone(),
            (None, Some(why)) => why.split_once(':').map_or("not claimed", |(head, _)| head).to_string(),
            (None, None) => "verified".into(),
        });
        section.rows.push(cells);
    }
    section.notes.push(
        "Of a request of a warp, over all launches: lanes (G global loads and stores, S shared loads), sectors of 32 bytes, bytes moved \
         for a byte asked for, passes over the banks (1, or more where banks conflict). Of a thread: the rest."
            .into(),
    );
    section.notes.extend(rungs.iter().filter_map(|rung| Some(format!("{}: {}", rung.rung, rung.not_claimed.as_ref()?))));
    section
}

/// What a rung did, line by line.
pub(super) fn lines(rung: &SimulatedRung) -> Vec<Section> {
    let launches = rung.report.iter().flat_map(|report| &report.launches);
    let one = |launch: &upsweep_sim::LaunchReport| {
        let heading = format!("{} <<<{}, {}>>>, line by line", launch.kernel.replace("upsweep::", ""), launch.grid, launch.block);
        let mut section =
            Section::new(heading, &["line", "what", "requests", "lanes", "sectors", "passes", "bank conflicts"]);
        for ((place, kind), count) in &launch.counts {
            let each = |value: u64| figure(value as f64 / count.requests.max(1) as f64);
            let shared = matches!(kind, Kind::SharedLoad | Kind::SharedStore | Kind::SharedAtomic);
            let global = matches!(kind, Kind::GlobalLoad | Kind::GlobalStore | Kind::GlobalAtomic);
            section.row([
                place.to_string(),
                kind.name().replace('_', " "),
                count.requests.to_string(),
                each(count.lanes),
                if global { each(count.sectors) } else { "-".into() },
                if shared { each(count.wavefronts) } else { "-".into() },
                if shared { count.bank_conflicts().to_string() } else { "-".into() },
            ]);
        }
        section
    };
    launches.map(one).collect()
}

/// What changed from one rung to the next, in one sentence of its numbers; `None` if nothing that is counted did.
pub(super) fn jump(before: &SimulatedRung, after: &SimulatedRung) -> Option<String> {
    let (from, to) = (before.report.as_ref()?, after.report.as_ref()?);
    let changes: Vec<String> = MEASURES
        .iter()
        .filter_map(|measure| {
            let (a, b) = ((measure.of)(from).unwrap_or(0.0), (measure.of)(to).unwrap_or(0.0));
            // A tenth is more than what the last, half-filled block of a grid makes.
            ((a - b).abs() > 0.1 * a.max(b)).then(|| format!("{} {} instead of {}", measure.words, figure(b), figure(a)))
        })
        .collect();
    (!changes.is_empty()).then(|| format!("Against {}: {}.", before.rung, changes.join(", ")))
}

/// The same as JSON.
pub(super) fn json(rungs: &[SimulatedRung]) -> Value {
    let count = |count: &Count| {
        json!({
            "requests": count.requests,
            "lanes": count.lanes,
            "bytes": count.bytes,
            "sectors": count.sectors,
            "wavefronts": count.wavefronts,
            "least_wavefronts": count.least_wavefronts,
        })
    };
    let launch = |launch: &upsweep_sim::LaunchReport| {
        let lines: Vec<Value> = launch
            .counts
            .iter()
            .map(|((place, kind), one)| {
                let mut value = count(one);
                value["kind"] = kind.name().into();
                value["file"] = place.line.file.clone().into();
                value["line"] = place.line.line.into();
                if let Some(within) = &place.within {
                    value["within"] = within.to_string().into();
                }
                value
            })
            .collect();
        json!({ "kernel": launch.kernel, "file": launch.file, "grid": launch.grid, "block": launch.block, "lines": lines })
    };
    let rung = |rung: &SimulatedRung| {
        let launches: Vec<Value> = rung.report.iter().flat_map(|report| &report.launches).map(launch).collect();
        json!({
            "rung": rung.rung,
            "verified": rung.report.is_some(),
            "error": rung.report.as_ref().map(|_| rung.agreement.error),
            "bound": rung.report.as_ref().map(|_| rung.agreement.bound),
            "not_claimed": rung.not_claimed,
            "failure": rung.failure,
            "launches": launches,
        })
    };
    rungs.iter().map(rung).collect()
}
