//! Loads: requests of one size, at random, by one stream or several; and how fast they are served.

use runtime::prng::Prng;

use crate::LabError;
use crate::report::to_u64;
use crate::rig::Rig;
use crate::target::Target;

const NS_PER_SECOND: u128 = 1_000_000_000;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// Requests of one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) direction: Direction,
    pub(crate) request_bytes: u64,
    /// Threads, each of which waits for a request before it makes the next.
    pub(crate) streams: usize,
    /// Of all streams together.
    pub(crate) requests: u64,
}

/// How fast a load was served: exact, for reports are compared by the byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    requests: u64,
    bytes: u64,
    took_ns: u64,
}

impl Rate {
    pub(crate) fn new(requests: u64, bytes: u64, took_ns: u64) -> Rate {
        Rate { requests, bytes, took_ns: took_ns.max(1) }
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

impl Load {
    /// Puts the load on `target`. What is written has left for the disks when it ends.
    pub(crate) fn run(&self, rig: &Rig, target: &dyn Target) -> Result<Rate, LabError> {
        let each = self.requests.div_ceil(to_u64(self.streams));
        let mut took_ns = rig.run(self.streams, &|stream, prng: &mut Prng| {
            (0..each).try_for_each(|_| target.request(self, stream, prng))
        })?;
        if self.direction == Direction::Write {
            took_ns += rig.run(1, &|_, _| target.settle())?;
        }
        let requests = each * to_u64(self.streams);
        Ok(Rate::new(requests, requests * self.request_bytes, took_ns))
    }
}
