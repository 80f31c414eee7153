//! What stands out among the points of a benchmark: cliffs beside a neighbour, and points that a peer is as fast at.

use crate::points::{Placement, Point};
use crate::record::Row;
use serde::{Deserialize, Serialize};

/// A point is a cliff if it takes more than this many times what a neighbour takes, each in multiples of the least.
pub const CLIFF: f64 = 1.5;

/// Points further apart than by this factor are no neighbours.
const WIDEST_STEP: u64 = 16;

/// What stands out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Points that were timed.
    pub points: u64,
    /// Those that a peer was timed at, too.
    pub points_with_peer: u64,
    /// Points that are more than [`CLIFF`] times as costly as a neighbour.
    pub cliffs: Vec<Cliff>,
    /// Points that do not beat the best peer.
    pub behind: Vec<Behind>,
}

/// A point beside its best neighbour.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cliff {
    /// The point, by name.
    pub point: String,
    /// Its time in multiples of the least that the device needs.
    pub times_least: f64,
    /// The neighbour, by name.
    pub neighbour: String,
    /// The neighbour's time in multiples of its least.
    pub neighbour_times_least: f64,
}

/// A point beside the fastest peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Behind {
    /// The point, by name.
    pub point: String,
    /// Our median.
    pub seconds: f64,
    /// The peer.
    pub peer: String,
    /// Its median.
    pub peer_seconds: f64,
}

/// One of our rows that was timed beside the least.
#[derive(Clone, Copy)]
struct Timed<'a> {
    row: &'a Row,
    point: Point,
    seconds: f64,
    times_least: f64,
}

impl<'a> Timed<'a> {
    fn of(row: &'a Row) -> Option<Timed<'a>> {
        Some(Timed { row, point: row.point?, seconds: row.seconds?, times_least: row.times_least? })
    }

    fn is_comparable(&self, other: &Timed<'_>) -> bool {
        let (ours, theirs) = (self.row, other.row);
        (&ours.operator, &ours.dtype, self.point.along) == (&theirs.operator, &theirs.dtype, other.point.along)
    }

    fn name(&self) -> String {
        format!("{} of {}, {}", self.row.operator, self.row.dtype, self.point)
    }
}

/// Finds what stands out among rows: ours are those with a point, all others are peers'.
pub fn findings(rows: &[Row]) -> Findings {
    let timed: Vec<Timed<'_>> = rows.iter().filter_map(Timed::of).collect();
    let mut found = Findings { points: timed.len() as u64, ..Findings::default() };
    for one in &timed {
        let best = neighbours(one, &timed).into_iter().min_by(|a, b| a.times_least.total_cmp(&b.times_least));
        if let Some(best) = best.filter(|best| one.times_least > CLIFF * best.times_least) {
            found.cliffs.push(Cliff {
                point: one.name(),
                times_least: one.times_least,
                neighbour: best.name(),
                neighbour_times_least: best.times_least,
            });
        }
        let same = |row: &&Row| {
            let key = |row: &Row| (row.operator.clone(), row.dtype.clone(), row.shape.clone());
            row.point.is_none() && key(row) == key(one.row)
        };
        let peers = rows.iter().filter(same).filter_map(|row| Some((row, row.seconds?)));
        if let Some((peer, peer_seconds)) = peers.min_by(|(_, a), (_, b)| a.total_cmp(b)) {
            found.points_with_peer += 1;
            if one.seconds >= peer_seconds {
                found.behind.push(Behind { point: one.name(), seconds: one.seconds, peer: peer.rung.clone(), peer_seconds });
            }
        }
    }
    found
}

/// The points next to one: with as many rows and the next fewer and more columns, with as many columns and the next fewer and
/// more rows, and of the same shape at aligned addresses where it is not, or the other way round.
fn neighbours<'a>(one: &Timed<'_>, all: &'a [Timed<'a>]) -> Vec<&'a Timed<'a>> {
    let comparable: Vec<&Timed<'a>> = all.iter().filter(|other| one.is_comparable(other)).collect();
    let next = |extent: fn(&Point) -> u64, kept: fn(&Point) -> u64| {
        let own = extent(&one.point);
        let is_on_line = |other: &Point| (kept(other), other.placement) == (kept(&one.point), one.point.placement);
        let is_near = |other: u64| own.max(other) <= own.min(other).saturating_mul(WIDEST_STEP);
        let line: Vec<&Timed<'a>> =
            comparable.iter().copied().filter(|other| is_on_line(&other.point) && is_near(extent(&other.point))).collect();
        let below = line.iter().filter(|other| extent(&other.point) < own).max_by_key(|other| extent(&other.point));
        let above = line.iter().filter(|other| extent(&other.point) > own).min_by_key(|other| extent(&other.point));
        [below.copied(), above.copied()]
    };
    let mut found: Vec<&Timed<'a>> = next(|point| point.rows, |point| point.columns).into_iter().flatten().collect();
    found.extend(next(|point| point.columns, |point| point.rows).into_iter().flatten());
    let is_aligned = |point: &Point| point.placement == Placement::default();
    let is_the_same_elsewhere = |other: &Point| {
        let same_shape = (other.rows, other.columns) == (one.point.rows, one.point.columns);
        same_shape && is_aligned(other) != is_aligned(&one.point)
    };
    found.extend(comparable.into_iter().filter(|other| is_the_same_elsewhere(&other.point)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(point: Point, times_least: f64) -> Row {
        let (seconds, shape) = (Some(times_least * 1e-6), point.to_string());
        let (operator, dtype) = ("sum".into(), "f32".into());
        Row { operator, dtype, shape, seconds, point: Some(point), times_least: Some(times_least), ..Row::default() }
    }

    /// Rows and columns of powers of four, all equally good.
    fn plain() -> Vec<Row> {
        let lengths = || (0..=8).step_by(2).map(|i| 1u64 << i);
        lengths().flat_map(|rows| lengths().map(move |columns| row(Point::rows(rows, columns), 1.2))).collect()
    }

    #[test]
    fn even_ground_has_no_cliff() {
        let found = findings(&plain());
        assert_eq!((found.points, found.points_with_peer), (25, 0));
        assert_eq!((found.cliffs, found.behind), (vec![], vec![]));
    }

    #[test]
    fn a_planted_cliff_is_found_and_only_that() {
        let mut rows = plain();
        let planted = rows.iter_mut().find(|row| row.point == Some(Point::rows(16, 64))).unwrap();
        planted.times_least = Some(1.9);
        let cliffs = findings(&rows).cliffs;
        assert_eq!(cliffs.len(), 1, "{cliffs:?}");
        assert_eq!(cliffs[0].point, "sum of f32, 16 x 64, last axis");
        assert_eq!((cliffs[0].times_least, cliffs[0].neighbour_times_least), (1.9, 1.2));
    }

    #[test]
    fn a_gentle_slope_is_none_but_a_step_is() {
        let line = |costs: &[f64]| -> Vec<Row> {
            costs.iter().zip(0..).map(|(cost, i)| row(Point::rows(1, 1 << (2 * i)), *cost)).collect()
        };
        assert!(findings(&line(&[4.0, 3.0, 2.2, 1.5, 1.1])).cliffs.is_empty());
        // Exactly at the limit is not beyond it.
        assert!(findings(&line(&[1.0, 1.5])).cliffs.is_empty());
        let cliffs = findings(&line(&[1.0, 1.0, 1.6, 1.6])).cliffs;
        assert_eq!(cliffs.iter().map(|cliff| cliff.point.as_str()).collect::<Vec<_>>(), ["sum of f32, 1 x 16, last axis"]);
    }

    #[test]
    fn neighbours_share_all_but_one_coordinate() {
        let cliffs = |a: Row, b: Row| findings(&[a, b]).cliffs.len();
        let aligned = Point::rows(8, 100);
        // Off an aligned address, one column more, one row more.
        assert_eq!(cliffs(row(aligned, 1.0), row(aligned.placed(1, 0), 2.0)), 1);
        assert_eq!(cliffs(row(aligned, 1.0), row(Point::rows(8, 101), 2.0)), 1);
        assert_eq!(cliffs(row(aligned, 1.0), row(Point::rows(9, 100), 2.0)), 1);
        // Both extents, another axis, both off, too far, another operator.
        assert_eq!(cliffs(row(aligned, 1.0), row(Point::rows(9, 101), 2.0)), 0);
        assert_eq!(cliffs(row(aligned, 1.0), row(Point::columns(8, 101), 2.0)), 0);
        assert_eq!(cliffs(row(aligned.placed(0, 1), 1.0), row(aligned.placed(1, 0), 2.0)), 0);
        assert_eq!(cliffs(row(aligned, 1.0), row(Point::rows(8, 1601), 2.0)), 0);
        assert_eq!(cliffs(row(aligned, 1.0), Row { operator: "max".into(), ..row(Point::rows(8, 101), 2.0) }), 0);
    }

    #[test]
    fn points_behind_the_best_peer_are_named() {
        let peer = |rung: &str, point: Point, seconds: f64| Row {
            rung: rung.into(),
            seconds: Some(seconds),
            point: None,
            times_least: None,
            ..row(point, 1.0)
        };
        let (one, two, alone) = (Point::rows(1, 64), Point::rows(1, 256), Point::rows(1, 1024));
        let mut rows = vec![row(one, 1.0), row(two, 1.0), row(alone, 1.0)];
        rows.extend([peer("CUB", one, 1.1e-6), peer("torch", one, 3e-6), peer("CUB", two, 2e-6), peer("torch", two, 0.9e-6)]);
        // A peer that was not verified has no time, and beats nobody.
        rows.push(Row { seconds: None, ..peer("torch", alone, 1.0) });
        let found = findings(&rows);
        assert_eq!((found.points, found.points_with_peer), (3, 2));
        assert_eq!(found.behind.len(), 1);
        assert_eq!((found.behind[0].point.as_str(), found.behind[0].peer.as_str()), ("sum of f32, 1 x 256, last axis", "torch"));
    }
}
