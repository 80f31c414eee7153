//! Order statistics of repeated measurements.

use crate::error::{GateError, Result};
use serde::{Deserialize, Serialize};

/// Median and spread of some seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// 50th percentile.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// 10th percentile.
    pub p10: f64,
    /// 90th percentile.
    pub p90: f64,
    /// Samples.
    pub count: usize,
}

impl Spread {
    /// The spread of samples.
    ///
    /// # Errors
    /// [`GateError::Measurement`] for no samples, or one that is not a positive number.
    pub fn of(samples: &[f64]) -> Result<Spread> {
        if let Some(bad) = samples.iter().find(|s| !(**s > 0.0 && s.is_finite())) {
            return Err(GateError::Measurement(format!("a sample of {bad} s among {}", samples.len())));
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), count) = (sorted.first(), sorted.len()) else {
            return Err(GateError::Measurement("no samples".into()));
        };
        Ok(Spread { median: quantile(&sorted, 0.5), min, p10: quantile(&sorted, 0.1), p90: quantile(&sorted, 0.9), count })
    }
}

/// A quantile of sorted samples, interpolated between neighbours.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let position = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    below + (above - below) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!((spread.median, spread.min, spread.count), (3.0, 1.0, 5));
        assert!((spread.p10 - 1.4).abs() < 1e-12 && (spread.p90 - 4.6).abs() < 1e-12);
        assert_eq!(Spread::of(&[2.0]).unwrap().p90, 2.0);
    }

    #[test]
    fn impossible_samples_are_refused() {
        for bad in [&[][..], &[0.0], &[-1.0, 1.0], &[f64::NAN], &[f64::INFINITY]] {
            assert!(matches!(Spread::of(bad), Err(GateError::Measurement(_))), "{bad:?}");
        }
    }
}
