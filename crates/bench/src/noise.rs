//! Was the machine quiet? Loops of fixed work, between the measurements.
//!
//! A loop that touches nothing but the processor, and one that writes and syncs a small file. On a
//! quiet machine each takes the same time whenever it is asked; how far the times are apart is how
//! far any other figure of the run may be trusted.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use crate::stats::{Summary, spread, summary};

/// Steps of the loop: about 5 ms at 2.5 GHz.
const SPIN_STEPS: u32 = 4 << 20;
/// Writes of the loop.
const WRITES: u64 = 16;
/// Spread of the spin loop from which on small differences mean nothing.
const RESTLESS_SPREAD: f64 = 0.10;
/// Spread of the spin loop from which on the run says nothing.
const USELESS_SPREAD: f64 = 0.40;
/// The same of the loop that writes: a device's flushes differ more, even on a quiet machine.
const WRITE_RESTLESS_SPREAD: f64 = 0.5;

/// How far a run may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As far as its intervals say.
    Quiet,
    /// Small differences may be the machine's.
    Restless,
    /// Not at all.
    TooNoisy,
}

/// Times of the loops so far.
#[derive(Debug)]
pub struct Noise {
    file: File,
    spins_ms: Vec<f64>,
    writes_ms: Vec<f64>,
}

/// What the loops say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NoiseReport {
    /// How far the run may be trusted.
    pub verdict: Verdict,
    /// Milliseconds of the loop on the processor.
    pub spin_ms: Summary,
    /// Its spread, in parts of the median.
    pub spin_spread: f64,
    /// Milliseconds of the loop of synced writes.
    pub write_ms: Summary,
    /// Its spread.
    pub write_spread: f64,
    /// Runnable processes of the last minute when the run ended; `None`: the system does not say.
    pub load: Option<f64>,
}

impl Noise {
    /// Begins, with a file at `path` for the loop that writes. Whoever owns its directory removes
    /// it.
    pub fn start(path: &Path) -> io::Result<Noise> {
        let file = File::create(path)?;
        let mut noise = Noise { file, spins_ms: Vec::new(), writes_ms: Vec::new() };
        // The first time pays for the file's blocks and the clock's ramp.
        noise.sample()?;
        noise.spins_ms.clear();
        noise.writes_ms.clear();
        Ok(noise)
    }

    /// Runs the loops once.
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

    /// Returns what the loops said; `None` before the first sample.
    #[must_use]
    pub fn report(&self) -> Option<NoiseReport> {
        report_of(&self.spins_ms, &self.writes_ms)
    }
}

fn report_of(spins_ms: &[f64], writes_ms: &[f64]) -> Option<NoiseReport> {
    let (spin_spread, write_spread) = (spread(spins_ms), spread(writes_ms));
    let verdict = if spin_spread > USELESS_SPREAD {
        Verdict::TooNoisy
    } else if spin_spread > RESTLESS_SPREAD || write_spread > WRITE_RESTLESS_SPREAD {
        Verdict::Restless
    } else {
        Verdict::Quiet
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
        assert_eq!(verdict(&quiet, &quiet), Some(Verdict::Quiet));
        assert_eq!(verdict(&shared, &quiet), Some(Verdict::TooNoisy));
        assert_eq!(verdict(&busy, &quiet), Some(Verdict::Restless));
        assert_eq!(verdict(&quiet, &shared), Some(Verdict::Restless));
        assert_eq!(verdict(&[], &[]), None);
    }
}
