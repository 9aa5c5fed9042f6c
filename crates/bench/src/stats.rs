//! Medians, ranges, and confidence intervals for medians of paired ratios.
//!
//! The interval is that of the sign test: the k-th smallest and k-th largest of n ratios enclose
//! the true median with a probability that depends on n and k only. No distribution is assumed, and
//! nothing is sampled at random. With fewer than six pairs no such interval reaches 95 %, so it is
//! the full range, reported with its actual confidence.

use serde::Serialize;

use crate::number::{to_f64, to_u64};

/// Confidence of an interval.
pub const CONFIDENCE: f64 = 0.95;

/// Summary of repeated measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SampleSummary {
    /// Median.
    pub median: f64,
    /// Minimum.
    pub least: f64,
    /// Maximum.
    pub most: f64,
}

/// A ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Median of the pairs' ratios.
    pub median: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Confidence: at least [`CONFIDENCE`] from six pairs on, less with fewer.
    pub confidence: f64,
    /// Number of pairs.
    pub pairs: u64,
}

impl Ratio {
    /// Returns the relative width of the interval.
    #[must_use]
    pub fn width(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// Summarizes `values`. `None` if empty.
#[must_use]
pub fn summary(values: &[f64]) -> Option<SampleSummary> {
    let sorted = sorted(values);
    let (least, most) = (*sorted.first()?, *sorted.last()?);
    Some(SampleSummary { median: median_of(&sorted), least, most })
}

/// Returns the ratio of `values` to `bases`, paired in order of rounds. `None` without pairs.
#[must_use]
pub fn ratio(values: &[f64], bases: &[f64]) -> Option<Ratio> {
    let ratios: Vec<f64> = values.iter().zip(bases).map(|(value, base)| value / base).collect();
    let sorted = sorted(&ratios);
    let (rank, confidence) = rank_of(sorted.len());
    let (low, high) = (*sorted.get(rank)?, *sorted.get(sorted.len().checked_sub(rank + 1)?)?);
    let pairs = to_u64(sorted.len());
    Some(Ratio { median: median_of(&sorted), low, high, confidence, pairs })
}

/// Returns the range of the middle four fifths of `values`, relative to the median, or 0 if empty.
#[must_use]
pub fn spread(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let tenth = sorted.len() / 10;
    match (sorted.get(tenth), sorted.len().checked_sub(tenth + 1).and_then(|at| sorted.get(at))) {
        (Some(low), Some(high)) => (high - low) / median_of(&sorted),
        _ => 0.0,
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

fn median_of(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match (sorted.get(middle.wrapping_sub(1)), sorted.get(middle)) {
        (Some(low), Some(high)) if sorted.len().is_multiple_of(2) => low.midpoint(*high),
        (_, Some(middle)) => *middle,
        _ => f64::NAN,
    }
}

/// Returns the rank (from 0) of the interval's lower end among `count`, and its confidence.
fn rank_of(count: usize) -> (usize, f64) {
    // Probability of at most `rank` heads among `count` fair coins.
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = term;
    let (mut rank, mut confidence) = (0, 1.0 - 2.0 * tail);
    for next in 1..count.div_ceil(2) {
        term *= to_f64(to_u64(count - next + 1)) / to_f64(to_u64(next));
        tail += term;
        if 1.0 - 2.0 * tail < CONFIDENCE {
            break;
        }
        (rank, confidence) = (next, 1.0 - 2.0 * tail);
    }
    (rank, confidence.max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the ranks match published tables of the sign test.
    #[test]
    fn ranks_are_those_of_the_sign_test() {
        let known = [(5, 1, 0.9375), (6, 1, 0.96875), (9, 2, 0.9609), (10, 2, 0.9785)];
        let more =
            [(8, 1, 0.9922), (11, 2, 0.9883), (15, 4, 0.9648), (20, 6, 0.9586), (25, 8, 0.9567)];
        for (count, rank, confidence) in known.into_iter().chain(more) {
            let (found, sure) = rank_of(count);
            assert_eq!(found + 1, rank, "{count}");
            assert!((sure - confidence).abs() < 1e-3, "{count}: {sure}");
        }
    }

    #[test]
    fn a_ratio_is_of_pairs_and_not_of_medians() {
        // The machine slows down: each pair has ratio 2, unlike the medians.
        let values = [200.0, 100.0, 50.0, 20.0, 10.0, 4.0];
        let bases = [100.0, 50.0, 25.0, 10.0, 5.0, 2.0];
        let ratio = ratio(&values, &bases).expect("there are pairs");
        assert_eq!((ratio.median, ratio.low, ratio.high, ratio.pairs), (2.0, 2.0, 2.0, 6));
    }

    #[test]
    fn few_pairs_say_how_little_they_say() {
        let few = ratio(&[1.0, 2.0, 4.0], &[1.0, 1.0, 1.0]).expect("there are pairs");
        assert_eq!((few.low, few.median, few.high), (1.0, 2.0, 4.0));
        assert!(few.confidence < CONFIDENCE);
        assert_eq!(ratio(&[], &[]), None);
        assert_eq!(ratio(&[1.0], &[1.0]).map(|ratio| ratio.confidence), Some(0.0));
    }

    #[test]
    fn a_spread_leaves_out_the_outermost_tenths() {
        let mut values = vec![100.0; 18];
        values.extend([1.0, 10_000.0]);
        assert_eq!(spread(&values), 0.0);
        assert!(spread(&[90.0, 100.0, 110.0]) > 0.19);
        assert_eq!(summary(&[3.0, 1.0]).map(|all| all.median), Some(2.0));
    }
}
