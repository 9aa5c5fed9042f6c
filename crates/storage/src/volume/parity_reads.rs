//! Why parity is read: for reads with a member away or a range that does not verify, for recovery,
//! and by jobs. Never for a write (R5 of `striped.rs`), which is asserted.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who reads parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityReader {
    /// A read of what a member does not give.
    Degraded,
    /// A read of what does not verify, and its repair.
    Repair,
    /// Recovery after a crash, and a check.
    Recovery,
    /// What makes a member whole, or moves a segment to stripes of another width.
    Rebuild,
    /// A scrub.
    Scrub,
    /// A read of several units: what lies between them on a member comes with them, unused.
    Beside,
}

impl ParityReader {
    /// Every reader, in the order of the counters.
    pub const ALL: [ParityReader; 6] = [
        ParityReader::Degraded,
        ParityReader::Repair,
        ParityReader::Recovery,
        ParityReader::Rebuild,
        ParityReader::Scrub,
        ParityReader::Beside,
    ];

    fn index(self) -> usize {
        match self {
            ParityReader::Degraded => 0,
            ParityReader::Repair => 1,
            ParityReader::Recovery => 2,
            ParityReader::Rebuild => 3,
            ParityReader::Scrub => 4,
            ParityReader::Beside => 5,
        }
    }
}

/// Bytes of parity that were read of a member, by who did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityReads([u64; ParityReader::ALL.len()]);

impl ParityReads {
    /// Returns what one reader has read.
    #[must_use]
    pub fn of(&self, reader: ParityReader) -> u64 {
        self.0[reader.index()]
    }
}

/// Counts that threads add to.
#[derive(Debug, Default)]
pub(super) struct ParityReadCounters([AtomicU64; ParityReader::ALL.len()]);

impl ParityReadCounters {
    pub(super) fn add(&self, reader: ParityReader, bytes: u64) {
        self.0[reader.index()].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> ParityReads {
        ParityReads(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

thread_local! {
    /// Writes to stripes that this thread is handing to members.
    static HANDING: Cell<u32> = const { Cell::new(0) };
}

/// A write to stripes that is being handed to members: whatever this thread reads of one before it
/// is dropped is read for the write. It stays on its thread, whose count it is in.
#[derive(Debug)]
pub(super) struct Handing(PhantomData<*const ()>);

impl Handing {
    pub(super) fn begin() -> Handing {
        HANDING.set(HANDING.get() + 1);
        Handing(PhantomData)
    }

    /// Asserts that a request which reads, if `is_read`, is for no write.
    pub(super) fn assert_none(is_read: bool) {
        debug_assert!(!is_read || HANDING.get() == 0, "a write of stripes reads (R5)");
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        HANDING.set(HANDING.get() - 1);
    }
}
