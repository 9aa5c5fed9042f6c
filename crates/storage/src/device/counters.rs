//! I/O counters by purpose and request kind, for `status` and for I/O budgets in tests.

use std::fmt;
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DeviceOperation, IoPurpose, RequestKind};

const PURPOSE_COUNT: usize = IoPurpose::ALL.len();
const KIND_COUNT: usize = RequestKind::ALL.len();

/// A number of requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCount {
    /// Number of requests.
    pub requests: u64,
    /// 0 for flushes.
    pub bytes: u64,
}

impl std::ops::AddAssign for IoCount {
    fn add_assign(&mut self, other: IoCount) {
        self.requests += other.requests;
        self.bytes += other.bytes;
    }
}

/// I/O counts of a device at one moment.
///
/// The I/O of an interval is the difference `after - before`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct IoCounts {
    counts: [[IoCount; KIND_COUNT]; PURPOSE_COUNT],
    write_throughs: u64,
}

impl IoCounts {
    /// Returns one count.
    #[must_use]
    pub fn of(&self, purpose: IoPurpose, kind: RequestKind) -> IoCount {
        self.counts[purpose.index()][kind.index()]
    }

    /// Returns the count of one kind over all purposes.
    #[must_use]
    pub fn of_kind(&self, kind: RequestKind) -> IoCount {
        let mut sum = IoCount::default();
        for purpose in IoPurpose::ALL {
            sum += self.of(purpose, kind);
        }
        sum
    }

    /// Returns the count of one purpose over all kinds.
    #[must_use]
    pub fn of_purpose(&self, purpose: IoPurpose) -> IoCount {
        let mut sum = IoCount::default();
        for kind in RequestKind::ALL {
            sum += self.of(purpose, kind);
        }
        sum
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        RequestKind::ALL.iter().map(|&kind| self.of_kind(kind).requests).sum()
    }

    /// Returns the number of reads.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.of_kind(RequestKind::Read).requests
    }

    /// Returns the number of writes, written through or not.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.of_kind(RequestKind::Write).requests
    }

    /// Returns the number of flushes.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.of_kind(RequestKind::Flush).requests
    }

    /// Returns the number of write-through writes.
    #[must_use]
    pub fn write_throughs(&self) -> u64 {
        self.write_throughs
    }
}

impl Sub for IoCounts {
    type Output = IoCounts;

    fn sub(self, earlier: IoCounts) -> IoCounts {
        let mut difference = self;
        difference.write_throughs -= earlier.write_throughs;
        for (row, earlier_row) in difference.counts.iter_mut().zip(&earlier.counts) {
            for (count, before) in row.iter_mut().zip(earlier_row) {
                assert!(count.requests >= before.requests, "the later counts come first");
                count.requests -= before.requests;
                count.bytes -= before.bytes;
            }
        }
        difference
    }
}

impl fmt::Debug for IoCounts {
    /// Omits zero counts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_map();
        for purpose in IoPurpose::ALL {
            for kind in RequestKind::ALL {
                let count = self.of(purpose, kind);
                if count.requests > 0 {
                    let text = format!("{} ({} bytes)", count.requests, count.bytes);
                    list.entry(&format_args!("{purpose:?} {kind}"), &format_args!("{text}"));
                }
            }
        }
        list.finish()
    }
}

/// Counters that threads update concurrently.
#[derive(Debug, Default)]
pub struct IoCounters {
    requests: [[AtomicU64; KIND_COUNT]; PURPOSE_COUNT],
    bytes: [[AtomicU64; KIND_COUNT]; PURPOSE_COUNT],
    write_throughs: AtomicU64,
}

impl IoCounters {
    /// Counts one request.
    pub fn add(&self, purpose: IoPurpose, operation: &DeviceOperation) {
        self.count(purpose, operation.kind(), operation.length_bytes());
        if let DeviceOperation::WriteThrough { .. } = operation {
            self.write_throughs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one request that is not a write-through.
    pub fn count(&self, purpose: IoPurpose, kind: RequestKind, length_bytes: u64) {
        let (row, column) = (purpose.index(), kind.index());
        self.requests[row][column].fetch_add(1, Ordering::Relaxed);
        self.bytes[row][column].fetch_add(length_bytes, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        let write_throughs = self.write_throughs.load(Ordering::Relaxed);
        let mut counts = IoCounts { write_throughs, ..IoCounts::default() };
        for purpose in IoPurpose::ALL {
            for kind in RequestKind::ALL {
                let (row, column) = (purpose.index(), kind.index());
                counts.counts[row][column] = IoCount {
                    requests: self.requests[row][column].load(Ordering::Relaxed),
                    bytes: self.bytes[row][column].load(Ordering::Relaxed),
                };
            }
        }
        counts
    }
}
