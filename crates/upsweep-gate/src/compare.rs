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
    let mut comparison = Comparison::default();
    let find = |record: &Record, key: &str| record.rows.iter().position(|row| row_key(row) == key);
    for row in &first.rows {
        let key = row_key(row);
        match find(second, &key) {
            Some(position) => comparison.pairs.push(pair(key, row, &second.rows[position], threshold)),
            None => comparison.only_in_first.push(key),
        }
    }
    let keys = second.rows.iter().map(row_key);
    comparison.only_in_second = keys.filter(|key| find(first, key).is_none()).collect();
    let differs = [
        ("device", &first.device.name, &second.device.name),
        ("host", &first.host.name, &second.host.name),
        ("op", &first.op, &second.op),
    ];
    for (what, a, b) in differs.into_iter().filter(|(_, a, b)| a != b) {
        comparison.warnings.push(format!("the {what} differs ({a}, then {b}): times are not comparable"));
    }
    if first.kind != second.kind {
        comparison.warnings.push(format!("the records are of different kinds ({:?}, then {:?})", first.kind, second.kind));
    }
    for (which, record) in [("first", first), ("second", second)] {
        comparison.warnings.extend(record.invalid.iter().map(|why| format!("the {which} record is invalid: {why}")));
    }
    comparison
}

/// What a row is of.
fn row_key(row: &Row) -> String {
    let Row { op, rung, device, operator, dtype, shape, .. } = row;
    format!("{op}/{rung} on {device}, {operator} of {dtype}, {shape}")
}

fn pair(key: String, first: &Row, second: &Row, threshold: f64) -> Pair {
    let both = first.seconds.zip(second.seconds);
    let ratio = both.map(|(a, b)| b / a);
    let bounds = |row: &Row| Some((row.seconds_p10.or(row.seconds)?, row.seconds_p90.or(row.seconds)?));
    let noise = bounds(first).zip(bounds(second)).map(|((a10, a90), (b10, b90))| (b10 / a90, b90 / a10));
    let change = match (first.verified, second.verified, ratio, noise) {
        (true, false, ..) => Change::Broken,
        // A time that was there and had to be taken back is lost like a wrong result.
        _ if first.seconds.is_some() && second.seconds.is_none() => Change::Broken,
        (false, true, ..) => Change::Mended,
        (_, _, Some(ratio), Some((low, high))) => {
            if ratio > 1.0 + threshold && low > 1.0 {
                Change::Slower
            } else if ratio < 1.0 / (1.0 + threshold) && high < 1.0 {
                Change::Faster
            } else {
                Change::Same
            }
        }
        _ => Change::Untimed,
    };
    Pair { key, first_seconds: first.seconds, second_seconds: second.seconds, ratio, noise, change }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    fn row(rung: &str, seconds: f64, spread: f64) -> Row {
        Row {
            rung: rung.into(),
            verified: true,
            seconds: Some(seconds),
            seconds_p10: Some(seconds * (1.0 - spread)),
            seconds_p90: Some(seconds * (1.0 + spread)),
            ..Row::default()
        }
    }

    #[test]
    fn a_change_must_exceed_threshold_and_noise() {
        let change = |a: Row, b: Row| compare(&sample(vec![a]), &sample(vec![b]), 0.05).pairs[0].change;
        assert_eq!(change(row("0", 1.0, 0.01), row("0", 1.02, 0.01)), Change::Same);
        assert_eq!(change(row("0", 1.0, 0.01), row("0", 1.10, 0.01)), Change::Slower);
        assert_eq!(change(row("0", 1.0, 0.20), row("0", 1.10, 0.20)), Change::Same);
        assert_eq!(change(row("0", 1.0, 0.01), row("0", 0.50, 0.01)), Change::Faster);
        let unverified = Row { rung: "0".into(), ..Row::default() };
        assert_eq!(change(row("0", 1.0, 0.0), unverified.clone()), Change::Broken);
        assert_eq!(change(unverified.clone(), row("0", 1.0, 0.0)), Change::Mended);
        assert_eq!(change(unverified.clone(), unverified), Change::Untimed);
        let taken_back = Row { seconds: None, ..row("0", 1.0, 0.0) };
        assert_eq!(change(row("0", 1.0, 0.0), taken_back), Change::Broken);
    }

    #[test]
    fn rows_are_matched_by_key() {
        let a = sample(vec![row("0", 1.0, 0.0), row("1", 1.0, 0.0)]);
        let mut b = sample(vec![row("1", 2.0, 0.0), row("2", 1.0, 0.0)]);
        b.device.name = "another".into();
        let comparison = compare(&a, &b, 0.05);
        assert_eq!(comparison.pairs.len(), 1);
        assert_eq!(comparison.pairs[0].ratio, Some(2.0));
        assert_eq!(comparison.regressions().count(), 1);
        assert!(comparison.only_in_first[0].contains("/0 ") && comparison.only_in_second[0].contains("/2 "));
        assert_eq!(comparison.warnings.len(), 1);
    }
}
