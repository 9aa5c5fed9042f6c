//! Samples of a server's load in the last hour, in memory.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use front::counts::{LATENCY_BOUNDS_US, OperationCounts};
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) const STEP: Duration = Duration::from_secs(5);
const SAMPLES_MAX: usize = 720;

/// Load since the previous sample.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct LoadSample {
    /// Time of the sample, in seconds since 1970.
    pub(crate) seconds: u64,
    /// Operations per second.
    pub(crate) rate: f64,
    /// Failed operations per second.
    pub(crate) failed_rate: f64,
    /// Bytes read by clients and mounts per second.
    pub(crate) read_rate_bytes: f64,
    /// Bytes written by clients and mounts per second.
    pub(crate) write_rate_bytes: f64,
    /// Mean latency in microseconds. Null without operations.
    pub(crate) mean_us: Option<f64>,
    /// 99th percentile of the latency in microseconds, rounded up to a histogram bucket. Null
    /// without operations.
    pub(crate) p99_us: Option<u64>,
}

#[derive(Default)]
pub(crate) struct LoadHistory(Mutex<LoadHistoryState>);

#[derive(Default)]
struct LoadHistoryState {
    samples: VecDeque<LoadSample>,
    last: Option<Vec<OperationCounts>>,
}

impl LoadHistory {
    /// Adds a sample from the total `counts` at `seconds`, `passed` after the sample before.
    pub(crate) fn take(&self, counts: Vec<OperationCounts>, seconds: u64, passed: Duration) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = kept.last.replace(counts.clone()) {
            let sample = sample_of(&last, &counts, seconds, passed);
            if kept.samples.len() == SAMPLES_MAX {
                kept.samples.pop_front();
            }
            kept.samples.push_back(sample);
        }
    }

    pub(crate) fn samples(&self) -> Vec<LoadSample> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.samples.iter().cloned().collect()
    }
}

fn sample_of(
    last: &[OperationCounts],
    now: &[OperationCounts],
    seconds: u64,
    passed: Duration,
) -> LoadSample {
    let grown = |of: &dyn Fn(&OperationCounts) -> u64| -> u64 {
        now.iter().zip(last).map(|(now, last)| of(now).saturating_sub(of(last))).sum()
    };
    let answered = grown(&|count| count.answered);
    let failed = grown(&|count| count.failed);
    let latency_ns = grown(&|count| count.latency_ns);
    let per_second = |count: u64| to_float(count) / passed.as_secs_f64().max(0.001);
    let bytes_of = |name: &str| grown(&|count| if count.name == name { count.bytes } else { 0 });
    let mut seen = 0;
    let p99 = LATENCY_BOUNDS_US.iter().enumerate().find(|(index, _)| {
        seen += grown(&|count| count.buckets[*index]);
        u128::from(seen) * 100 >= u128::from(answered) * 99
    });
    let slowest = LATENCY_BOUNDS_US.last().copied();
    LoadSample {
        seconds,
        rate: per_second(answered),
        failed_rate: per_second(failed),
        read_rate_bytes: per_second(bytes_of("READ")),
        write_rate_bytes: per_second(bytes_of("WRITE")),
        mean_us: (answered > 0).then(|| to_float(latency_ns) / to_float(answered) / 1000.0),
        p99_us: p99.map(|(_, &bound)| bound).or(slowest).filter(|_| answered > 0),
    }
}

/// Converts a count for display. Inexact above 2^53.
#[allow(clippy::as_conversions, reason = "no other way from u64 to f64")]
pub(crate) fn to_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(answered: u64, failed: u64, slow: u64) -> Vec<OperationCounts> {
        let mut buckets = [0; LATENCY_BOUNDS_US.len() + 1];
        buckets[3] = answered - slow;
        buckets[9] = slow;
        let (latency_ns, bytes) = (answered * 100_000, answered * 4096);
        vec![OperationCounts { name: "READ", answered, failed, latency_ns, bytes, buckets }]
    }

    #[test]
    fn a_sample_is_what_happened_since_the_last() {
        let history = LoadHistory::default();
        history.take(counts(1000, 0, 1000), 100, STEP);
        assert!(history.samples().is_empty(), "nothing is known of what was before");
        history.take(counts(1500, 5, 1000), 105, STEP);
        history.take(counts(1500, 5, 1000), 110, STEP);
        history.take(counts(1600, 5, 1002), 115, STEP);
        let samples = history.samples();
        assert_eq!((samples[0].rate, samples[0].failed_rate), (100.0, 1.0));
        assert_eq!((samples[0].read_rate_bytes, samples[0].write_rate_bytes), (409_600.0, 0.0));
        assert_eq!((samples[0].mean_us, samples[0].p99_us), (Some(100.0), Some(100)));
        assert_eq!((samples[1].rate, samples[1].mean_us, samples[1].p99_us), (0.0, None, None));
        assert_eq!(samples[2].p99_us, Some(10_000), "two of a hundred were slow");
        for second in 0..2000 {
            history.take(counts(1600, 5, 0), second, STEP);
        }
        assert_eq!(history.samples().len(), SAMPLES_MAX);
    }
}
