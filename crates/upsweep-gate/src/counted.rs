//! What the simulator counts of a rung, as figures that tell rungs apart. Figures are of a request of a warp or of a thread, so
//! they hardly depend on the size.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A figure: its key in records, the head of its column, and its name in a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Key in records.
    pub key: &'static str,
    /// Head of its column.
    pub column: &'static str,
    /// Name in a sentence.
    pub words: &'static str,
}

const fn figure(key: &'static str, column: &'static str, words: &'static str) -> Figure {
    Figure { key, column, words }
}

/// Every figure, in the order of tables.
pub const FIGURES: &[Figure] = &[
    figure("global_lanes", "lanes G", "lanes of a global load or store"),
    figure("global_sectors", "sectors", "32-byte sectors of a global load or store"),
    figure("bytes_per_byte_asked", "B/asked", "bytes moved for a byte asked for"),
    figure("shared_load_lanes", "lanes S", "lanes of a shared load"),
    figure("shared_load_passes", "passes ld", "passes over the banks for a shared load"),
    figure("shared_store_passes", "passes st", "passes for a shared store"),
    figure("global_loads", "loads", "global loads of a thread"),
    figure("barriers", "barriers", "barriers of a thread"),
    figure("shuffles", "shuffles", "shuffles of a thread"),
    figure("votes", "votes", "votes of a thread"),
    figure("atomics", "atomics", "atomic and ordered accesses of a thread"),
];

/// A change of less than this part of the greater value is that of a grid's last, half-filled block.
const TELLING: f64 = 0.1;

/// A rung on the simulator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// `number-name`.
    pub rung: String,
    /// Its results were right, and it had no fault.
    pub verified: bool,
    /// It is not for the problem, or uses what the simulator has not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_claimed: bool,
    /// Figures by [`Figure::key`]; what a rung does not do is missing.
    #[serde(default)]
    pub figures: BTreeMap<String, f64>,
    /// What each line of the program's largest launch did.
    #[serde(default)]
    pub lines: Vec<CountedLine>,
    /// Error and bound of the worst output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_and_bound: Option<(f64, f64)>,
    /// Why it did not run, or what was wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a line of a kernel did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedLine {
    /// File and line, and the header's if a function of it was inlined there.
    pub line: String,
    /// What is counted, for instance `shared_load`.
    pub kind: String,
    /// Instructions of warps.
    pub requests: u64,
    /// Lanes that took part.
    pub lanes: u64,
    /// Sectors of 32 bytes (global memory).
    pub sectors: u64,
    /// Passes over the banks (shared memory).
    pub passes: u64,
    /// Passes beyond the least.
    pub bank_conflicts: u64,
}

impl Counted {
    /// A figure; zero for what the rung does not do.
    pub fn figure(&self, figure: &Figure) -> f64 {
        self.figures.get(figure.key).copied().unwrap_or(0.0)
    }
}

/// A figure for people.
pub fn in_words(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// What changed from one rung to the next, in one sentence of its numbers; `None` if nothing that is counted did.
pub fn jump(before: &Counted, after: &Counted) -> Option<String> {
    if !before.verified || !after.verified {
        return None;
    }
    let changes: Vec<String> = FIGURES
        .iter()
        .filter_map(|figure| {
            let (a, b) = (before.figure(figure), after.figure(figure));
            let words = || format!("{} {} instead of {}", figure.words, in_words(b), in_words(a));
            ((a - b).abs() > TELLING * a.max(b)).then(words)
        })
        .collect();
    (!changes.is_empty()).then(|| format!("Against {}: {}.", before.rung, changes.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rung: &str, passes: f64) -> Counted {
        let figures = [("shared_load_passes", passes), ("barriers", 9.0)].map(|(key, value)| (key.to_string(), value));
        Counted { rung: rung.into(), verified: true, figures: figures.into(), ..Counted::default() }
    }

    #[test]
    fn a_jump_names_what_changed_and_nothing_else() {
        let (one, two) = (counted("1-a", 3.8), counted("2-b", 1.0));
        let sentence = jump(&one, &two).unwrap();
        assert_eq!(sentence, "Against 1-a: passes over the banks for a shared load 1.00 instead of 3.80.");
        assert_eq!(jump(&one, &counted("2-b", 3.7)), None);
        assert_eq!(jump(&one, &Counted { verified: false, ..two }), None);
    }

    #[test]
    fn keys_are_distinct() {
        let keys: std::collections::BTreeSet<&str> = FIGURES.iter().map(|figure| figure.key).collect();
        assert_eq!(keys.len(), FIGURES.len());
    }
}
