//! Two records side by side.

use crate::record::{Record, Row};

/// Two records' rows, matched by what was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Rows that both records have.
    pub pairs: Vec<Pair>,
    /// Keys of rows that only the first record has.
    pub only_in_first: Vec<String>,
    /// Keys of rows that only the second record has.
    pub only_in_second: Vec<String>,
    /// What makes the two hard to compare: another device, another host, an invalid run.
    pub warnings: Vec<String>,
}

/// One row in both records.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Op, rung, device, operator, dtype, shape.
    pub key: String,
    /// Median seconds in the first record, if it was timed.
    pub first_seconds: Option<f64>,
    /// Median seconds in the second record, if it was timed.
    pub second_seconds: Option<f64>,
    /// Second over first: above 1 is slower.
    pub ratio: Option<f64>,
    /// The lowest and the highest ratio that the 10th and 90th percentiles allow.
    pub noise: Option<(f64, f64)>,
    /// The verdict.
    pub change: Change,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Within the threshold, or within the noise.
    Same,
    /// Faster by more than the threshold and the noise.
    Faster,
    /// Slower by more than the threshold and the noise.
    Slower,
    /// It was verified in the first record and is not in the second.
    Broken,
    /// It is verified in the second record and was not in the first.
    Mended,
    /// Timed in neither.
    Untimed,
}

impl Comparison {
    /// Rows that are slower or broken, and rows that are gone.
    pub fn regressions(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.iter().filter(|pair| matches!(pair.change, Change::Slower | Change::Broken))
    }
}

/// Compares two records; `threshold` is the change that matters, for instance 0.05 for 5 %.
pub fn compare(first: &Record, second: &Record, threshold: f64) -> Comparison {
    let _ = (first, second, threshold, Row::default());
    unimplemented!()
}
