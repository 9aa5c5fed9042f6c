//! Loops of fixed work between the measurements, to detect a noisy machine.
//!
//! One loop only computes, the other writes and syncs a small file. The spread of their times
//! limits the trust in the run.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::stats::{SampleSummary, spread, summary};

/// Steps of the spin loop: about 5 ms at 2.5 GHz.
const SPIN_STEPS: u32 = 4 << 20;
const WRITES: u64 = 16;
/// Spread of the spin loop above which small differences mean nothing.
const RESTLESS_SPREAD: f64 = 0.10;
/// Spread of the spin loop above which the run is useless.
const USELESS_SPREAD: f64 = 0.40;
/// Limit for the write loop instead. Flush times vary more, even on a quiet machine.
const WRITE_RESTLESS_SPREAD: f64 = 0.5;

/// Trustworthiness of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NoiseLevel {
    /// Trust the intervals.
    Quiet,
    /// Small differences may be noise.
    Restless,
    /// Useless.
    TooNoisy,
}

/// Times of the loops so far.
#[derive(Debug)]
pub struct Noise {
    file: File,
    spins_ms: Vec<f64>,
    writes_ms: Vec<f64>,
}

/// Summary of the loops.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoiseReport {
    /// Trustworthiness of the run.
    pub verdict: NoiseLevel,
    /// Times of the spin loop.
    pub spin_ms: SampleSummary,
    /// Spread of the spin loop, as a fraction of the median.
    pub spin_spread: f64,
    /// Times of the write loop.
    pub write_ms: SampleSummary,
    /// Spread of the write loop, as a fraction of the median.
    pub write_spread: f64,
    /// Load average of one minute at the end, if known.
    pub load: Option<f64>,
}

impl Noise {
    /// Starts the loops, with a file at `path` for writes. The caller removes the file.
    pub fn start(path: &Path) -> io::Result<Noise> {
        let file = File::create(path)?;
        let mut noise = Noise { file, spins_ms: Vec::new(), writes_ms: Vec::new() };
        // The first sample includes block allocation and frequency ramp-up.
        noise.sample()?;
        noise.spins_ms.clear();
        noise.writes_ms.clear();
        Ok(noise)
    }

    /// Runs both loops once.
    pub fn sample(&mut self) -> io::Result<()> {
        let start = Instant::now();
        let mut state = 1_u64;
        for step in 0..SPIN_STEPS {
            state = black_box(state.wrapping_mul(6_364_136_223_846_793_005) ^ u64::from(step));
        }
        self.spins_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        for write in 0..WRITES {
            self.file.write_all_at(&[7; 4096], write * 4096)?;
            self.file.sync_data()?;
        }
        self.writes_ms.push(start.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }

    /// Summarizes the loops. `None` before the first sample.
    #[must_use]
    pub fn report(&self) -> Option<NoiseReport> {
        report_of(&self.spins_ms, &self.writes_ms)
    }
}

fn report_of(spins_ms: &[f64], writes_ms: &[f64]) -> Option<NoiseReport> {
    let (spin_spread, write_spread) = (spread(spins_ms), spread(writes_ms));
    let verdict = if spin_spread > USELESS_SPREAD {
        NoiseLevel::TooNoisy
    } else if spin_spread > RESTLESS_SPREAD || write_spread > WRITE_RESTLESS_SPREAD {
        NoiseLevel::Restless
    } else {
        NoiseLevel::Quiet
    };
    Some(NoiseReport {
        verdict,
        spin_ms: summary(spins_ms)?,
        spin_spread,
        write_ms: summary(writes_ms)?,
        write_spread,
        load: load(),
    })
}

fn load() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_others_use_is_told_from_a_quiet_one() {
        let verdict = |spins: &[f64], writes: &[f64]| report_of(spins, writes).map(|r| r.verdict);
        let quiet: Vec<f64> = (0..20_u32).map(|at| 5.0 + f64::from(at) / 100.0).collect();
        let shared: Vec<f64> = (0..20_u32).map(|at| 5.0 + f64::from(at % 2) * 5.0).collect();
        let busy: Vec<f64> = (0..20_u32).map(|at| 5.0 + f64::from(at % 2)).collect();
        assert_eq!(verdict(&quiet, &quiet), Some(NoiseLevel::Quiet));
        assert_eq!(verdict(&shared, &quiet), Some(NoiseLevel::TooNoisy));
        assert_eq!(verdict(&busy, &quiet), Some(NoiseLevel::Restless));
        assert_eq!(verdict(&quiet, &shared), Some(NoiseLevel::Restless));
        assert_eq!(verdict(&[], &[]), None);
    }
}
