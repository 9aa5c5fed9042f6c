//! Counters of parity reads by reason. A write must never read parity (R5 of `striped.rs`): this is
//! asserted.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason of a parity read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityReader {
    /// A degraded read.
    Degraded,
    /// A repair of a range that does not verify.
    Repair,
    /// Recovery after a crash, or a check.
    Recovery,
    /// A rebuild, or a move of a segment to stripes of another width.
    Rebuild,
    /// A scrub.
    Scrub,
    /// A read of several units, which includes the parity units between.
    Beside,
}

impl ParityReader {
    /// Every reason, in the order of the counters.
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

/// Bytes of parity read from a member, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParityReads([u64; ParityReader::ALL.len()]);

impl ParityReads {
    /// Returns the bytes for one reason.
    #[must_use]
    pub fn of(&self, reader: ParityReader) -> u64 {
        self.0[reader.index()]
    }
}

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
    static HANDING: Cell<u32> = const { Cell::new(0) };
}

/// A submission of a write to stripes by this thread. A read during it would be for the write. Not
/// `Send`.
#[derive(Debug)]
pub(super) struct StripeSubmission(PhantomData<*const ()>);

impl StripeSubmission {
    pub(super) fn begin() -> StripeSubmission {
        HANDING.set(HANDING.get() + 1);
        StripeSubmission(PhantomData)
    }

    /// Asserts that a read request is not part of a write.
    pub(super) fn assert_none(is_read: bool) {
        debug_assert!(!is_read || HANDING.get() == 0, "a write of stripes reads (R5)");
    }
}

impl Drop for StripeSubmission {
    fn drop(&mut self) {
        HANDING.set(HANDING.get() - 1);
    }
}
