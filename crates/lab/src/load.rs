//! Loads of random requests of one size, and their rates.

use runtime::prng::Prng;

use crate::LabError;
use crate::report::to_u64;
use crate::rig::Rig;
use crate::target::LoadTarget;
pub(crate) use crate::target::{Direction, RandomLoad};

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Rate of a load, in integers, so that reports compare byte for byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadRate {
    requests: u64,
    bytes: u64,
    took_ns: u64,
}

impl LoadRate {
    pub(crate) fn new(requests: u64, bytes: u64, took_ns: u64) -> LoadRate {
        LoadRate { requests, bytes, took_ns: took_ns.max(1) }
    }

    /// Hundredths of a megabyte (10^6 bytes) a second.
    pub(crate) fn centimegabytes(self) -> u64 {
        per_second(u128::from(self.bytes), self.took_ns, 10_000)
    }

    pub(crate) fn requests_per_second(self) -> u64 {
        per_second(u128::from(self.requests), self.took_ns, 1)
    }
}

fn per_second(count: u128, took_ns: u64, divisor: u128) -> u64 {
    u64::try_from(count * NS_PER_SECOND / u128::from(took_ns) / divisor).unwrap_or(u64::MAX)
}

impl RandomLoad {
    /// Runs the load on `target`, and then writes back all dirty data.
    pub(crate) fn run(&self, rig: &Rig, target: &dyn LoadTarget) -> Result<LoadRate, LabError> {
        let each = self.requests.div_ceil(to_u64(self.streams));
        let mut took_ns = rig.run(self.streams, &|stream, prng: &mut Prng| {
            (0..each).try_for_each(|_| target.request(self, stream, prng))
        })?;
        if self.direction == Direction::Write {
            took_ns += rig.run(1, &|_, _| target.settle())?;
        }
        let requests = each * to_u64(self.streams);
        Ok(LoadRate::new(requests, requests * self.request_bytes, took_ns))
    }
}
