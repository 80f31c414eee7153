//! The points of a benchmark: how many elements, along which axis, at which addresses; and THE list of shapes.

use crate::error::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use upsweep::types::Layout;

/// How many elements behind an aligned address input and output begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Of the input.
    pub input: u64,
    /// Of the output.
    pub output: u64,
}

/// What a point's operation works along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Along {
    /// The whole of an array, which is a single row.
    Whole,
    /// The last axis: rows.
    Last,
    /// The first axis: columns.
    First,
}

/// One point: a shape, an axis and a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Extent of the first axis; 1 for a whole array.
    pub rows: u64,
    /// Extent of the last axis.
    pub columns: u64,
    /// The axis.
    pub along: Along,
    /// Where input and output begin.
    #[serde(default)]
    pub placement: Placement,
}

impl Point {
    /// The whole of `n` elements.
    pub fn whole(n: u64) -> Point {
        Point { rows: 1, columns: n, along: Along::Whole, placement: Placement::default() }
    }

    /// Along the last axis.
    pub fn rows(rows: u64, columns: u64) -> Point {
        Point { along: Along::Last, rows, ..Point::whole(columns) }
    }

    /// Along the first axis.
    pub fn columns(rows: u64, columns: u64) -> Point {
        Point { along: Along::First, ..Point::rows(rows, columns) }
    }

    /// The same shape elsewhere, in elements behind an aligned address.
    pub fn placed(self, input: u64, output: u64) -> Point {
        Point { placement: Placement { input, output }, ..self }
    }

    /// Elements of the input.
    pub fn elements(&self) -> u64 {
        self.rows.saturating_mul(self.columns)
    }

    /// The layout, and the axis if it is not the whole.
    ///
    /// # Errors
    /// [`upsweep::Error::InvalidLayout`] for more elements than there can be.
    pub fn layout(&self) -> Result<(Layout, Option<i64>)> {
        Ok(match self.along {
            Along::Whole => (Layout::contiguous(&[self.columns])?, None),
            Along::Last => (Layout::contiguous(&[self.rows, self.columns])?, Some(1)),
            Along::First => (Layout::contiguous(&[self.rows, self.columns])?, Some(0)),
        })
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { rows, columns, along, placement } = self;
        match along {
            Along::Whole => write!(f, "{columns}"),
            Along::Last => write!(f, "{rows} x {columns}, last axis"),
            Along::First => write!(f, "{rows} x {columns}, first axis"),
        }?;
        for (what, off) in [("input", placement.input), ("output", placement.output)] {
            if off > 0 {
                write!(f, ", {what} off by {off}")?;
            }
        }
        Ok(())
    }
}

/// The list of shapes, up to a number of elements, in order of size: where a cliff of any operation would show.
///
/// A grid of powers of four along the last axis, from one element to 2^28, and a coarser one along the first; between their
/// lines lengths on both sides of a power of two, multiples of many fives, primes and a vocabulary's 50257; and some shapes
/// of the grids with the input, the output, or both between aligned addresses.
pub fn shapes(most: u64) -> Vec<Point> {
    const LARGEST: u32 = 28;
    const LARGEST_ODD: u64 = 1 << 26;
    let mut points = vec![];
    for i in (0..=LARGEST).step_by(2) {
        for j in (0..=LARGEST - i).step_by(2) {
            // Every second of the largest: they take longest.
            if i + j < LARGEST || i % 4 == 0 {
                points.push(Point::rows(1 << i, 1 << j));
            }
        }
    }
    let odd = [
        255, 257, 375, 1009, 4095, 4097, 9375, 50_257, 65_535, 65_537, 234_375, 1_000_003, 1_048_575, 1_048_577, 5_859_375,
        16_777_213,
    ];
    for rows in [1, 3, 1000] {
        points.extend(odd.map(|columns| Point::rows(rows, columns)));
    }
    points.extend([(100_003, 33), (1_000_003, 7), (4_000_037, 3), (65_537, 256), (4097, 4096)].map(|(r, c)| Point::rows(r, c)));
    for i in (4..=20).step_by(4) {
        for j in (2..=14).step_by(4).filter(|j| i + j <= 26) {
            points.push(Point::columns(1 << i, 1 << j));
        }
    }
    points.extend(
        [(1000, 50_257), (50_257, 1000), (65_537, 33), (4095, 4097), (1_000_003, 7), (3, 5_859_375)]
            .map(|(r, c)| Point::columns(r, c)),
    );
    points.retain(|point| point.elements() <= LARGEST_ODD || point.columns.is_power_of_two());
    points.push(Point::rows(4096, 50_257));
    let placed = [Point::rows(1, 1 << 16), Point::rows(1, 1 << 24), Point::rows(1 << 10, 1 << 12), Point::rows(1 << 16, 1 << 8)];
    for point in placed.into_iter().chain([Point::columns(1 << 12, 1 << 10)]) {
        points.extend([(1, 0), (0, 1), (1, 1), (3, 2)].map(|(input, output)| point.placed(input, output)));
    }
    points.retain(|point| point.elements() <= most);
    points.sort_by_key(Point::elements);
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_shapes_is_what_it_says() {
        let all = shapes(u64::MAX);
        let along = |along: Along| all.iter().filter(move |point| point.along == along);
        assert!(along(Along::Last).count() >= 100 && along(Along::First).count() >= 20, "{}", all.len());
        assert_eq!(all.first(), Some(&Point::rows(1, 1)));
        assert_eq!(all.iter().map(Point::elements).max(), Some(1 << 28));
        let mut names: Vec<String> = all.iter().map(Point::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len(), "a shape is listed twice");
        for point in all.iter().filter(|point| point.placement != Placement::default()) {
            assert!(all.contains(&point.placed(0, 0)), "{point} has no aligned neighbour");
        }
        assert!(shapes(64).iter().all(|point| point.elements() <= 64));
        assert_eq!(shapes(0), []);
    }

    #[test]
    fn points_have_names_and_layouts() {
        assert_eq!(Point::whole(7).to_string(), "7");
        assert_eq!(Point::rows(2, 3).placed(1, 0).to_string(), "2 x 3, last axis, input off by 1");
        assert_eq!(Point::columns(2, 3).placed(0, 2).to_string(), "2 x 3, first axis, output off by 2");
        assert!(Point::rows(u64::MAX, 2).layout().is_err());
        let text = serde_json::to_string(&Point::rows(2, 3)).unwrap();
        assert_eq!(serde_json::from_str::<Point>(&text).unwrap(), Point::rows(2, 3));
    }
}
