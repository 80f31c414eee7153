//! Figures that the project has set itself, each for a problem on an H200.

use crate::points::Point;
use crate::record::Row;
use serde::{Deserialize, Serialize};
use std::fmt;
use upsweep::types::DType;

/// What a problem's time should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// At least so many percent of what a plain copy (or read, for reductions) of the same bytes reaches in the same run.
    PercentOfCeiling(f64),
    /// At most so many seconds.
    Seconds(f64),
}

impl Figure {
    /// Whether a row's time is so; nothing where the row has no time, or no ceiling to stand beside.
    pub fn is_met(self, row: &Row) -> Option<bool> {
        match self {
            Figure::PercentOfCeiling(least) => row.percent_of_ceiling.map(|percent| percent >= least),
            Figure::Seconds(most) => row.seconds.map(|seconds| seconds <= most),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::PercentOfCeiling(least) => write!(f, ">= {least} %"),
            Figure::Seconds(most) => write!(f, "<= {} us", most * 1e6),
        }
    }
}

/// A problem and its figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is asked, as [`crate::judged::Judged::problem_at`] names it.
    pub operator: &'static str,
    /// The element type.
    pub dtype: DType,
    /// Size, shape and place.
    pub point: Point,
    /// What its time should be.
    pub figure: Figure,
}

impl Goal {
    /// At least so many percent of the ceiling.
    pub const fn percent(operator: &'static str, dtype: DType, point: Point, least: f64) -> Goal {
        Goal { operator, dtype, point, figure: Figure::PercentOfCeiling(least) }
    }

    /// At most so many microseconds.
    pub fn microseconds(operator: &'static str, dtype: DType, point: Point, most: f64) -> Goal {
        Goal { operator, dtype, point, figure: Figure::Seconds(most * 1e-6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_met_missed_or_not_known() {
        let row = |percent, seconds| Row { percent_of_ceiling: percent, seconds, ..Row::default() };
        let half = Figure::PercentOfCeiling(50.0);
        assert_eq!(half.is_met(&row(Some(50.0), None)), Some(true));
        assert_eq!(half.is_met(&row(Some(49.9), None)), Some(false));
        assert_eq!(half.is_met(&row(None, Some(1.0))), None);
        let quick = Figure::Seconds(2e-6);
        assert_eq!(quick.is_met(&row(None, Some(2e-6))), Some(true));
        assert_eq!(quick.is_met(&row(None, Some(2.1e-6))), Some(false));
        assert_eq!((half.to_string(), quick.to_string()), (">= 50 %".into(), "<= 2 us".into()));
    }
}
