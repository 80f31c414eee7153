//! What the simulator counted, as tables. No time: the simulator has none.

use crate::output::Section;
use upsweep::flow::NOT_SIMULATED;
use upsweep_gate::counted::{Counted, FIGURES, in_words};

/// The table of a simulated ladder.
pub(super) fn ladder(op: &str, what: &str, rungs: &[Counted]) -> Section {
    let mut columns = vec!["rung"];
    columns.extend(FIGURES.iter().map(|figure| figure.column));
    columns.extend(["error/bound", "marks"]);
    let mut section = Section::new(format!("{op} on the simulator: {what}; counted, not timed"), &columns);
    for rung in rungs {
        let mut cells = vec![rung.rung.clone()];
        let value = |key: &str| rung.figures.get(key).copied().map_or_else(|| "-".into(), in_words);
        cells.extend(FIGURES.iter().map(|figure| value(figure.key)));
        cells.push(rung.error_and_bound.map_or_else(|| "-".into(), |(error, bound)| format!("{error:.1e}/{bound:.1e}")));
        cells.push(match &rung.why {
            _ if rung.verified => "verified".into(),
            Some(why) if why.starts_with(NOT_SIMULATED) => NOT_SIMULATED.into(),
            _ if rung.not_claimed => "not claimed".into(),
            _ => "refused".into(),
        });
        section.rows.push(cells);
    }
    section.notes.push(
        "Of a request of a warp, over all launches: lanes (G global loads and stores, S shared loads), sectors of 32 bytes, bytes moved \
         for a byte asked for, passes over the banks (1, or more where banks conflict). Of a thread: the rest."
            .into(),
    );
    section.notes.extend(rungs.iter().filter_map(|rung| Some(format!("{}: {}", rung.rung, rung.why.as_ref()?))));
    section
}

/// What a rung's largest launch did, line by line.
pub(super) fn lines(rung: &Counted) -> Option<Section> {
    if rung.lines.is_empty() {
        return None;
    }
    let columns = ["line", "what", "requests", "lanes", "sectors", "passes", "bank conflicts"];
    let mut section = Section::new(format!("{}, line by line (lanes, sectors and passes of a request)", rung.rung), &columns);
    for line in &rung.lines {
        let each = |value: u64| in_words(value as f64 / line.requests.max(1) as f64);
        let (shared, global) = (line.kind.starts_with("shared"), line.kind.starts_with("global"));
        section.row([
            line.line.clone(),
            line.kind.replace('_', " "),
            line.requests.to_string(),
            each(line.lanes),
            if global { each(line.sectors) } else { "-".into() },
            if shared { each(line.passes) } else { "-".into() },
            if shared { line.bank_conflicts.to_string() } else { "-".into() },
        ]);
    }
    Some(section)
}
