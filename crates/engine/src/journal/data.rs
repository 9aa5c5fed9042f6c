//! File data writes that commits depend on.
//!
//! Each submitted data write gets a sequence number. A commit that points to its blocks waits until
//! that number is durable: data is durable before the transaction that points to it commits.

use std::collections::VecDeque;

use format::ids::Place;
use format::page::PAGE_BYTES;
use runtime::unless_planted;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, Ticket};
use storage::volume::Volume;

use crate::sync::Mutex;

#[derive(Debug)]
pub(super) struct DataWrites {
    volume: Volume,
    state: Mutex<DataWritesState>,
    /// Held by the thread that waits and flushes: one flush serves all threads that wait for this
    /// lock.
    settling: Mutex<()>,
}

#[derive(Debug, Default)]
struct DataWritesState {
    submitted: u64,
    seen: u64,
    in_flight: VecDeque<(u64, Ticket)>,
    /// Every write up to this number has succeeded. After a failure, later ones may be in memory
    /// alone. Their places must not be reused, because a late write may still arrive there.
    answered: u64,
    durable: u64,
    /// The first failed write: nothing becomes durable after it (T5).
    failure: Option<DeviceError>,
}

impl DataWritesState {
    fn answered_up_to(&mut self, sequence: u64) {
        if self.failure.is_none() {
            self.answered = self.answered.max(sequence);
        }
    }
}

impl DataWrites {
    pub(super) fn new(volume: Volume) -> DataWrites {
        DataWrites {
            volume,
            state: Mutex::new(DataWritesState::default()),
            settling: Mutex::new(()),
        }
    }

    pub(super) fn submitted(&self, ticket: Ticket) -> u64 {
        let mut state = self.state.lock();
        state.submitted += 1;
        let sequence = state.submitted;
        state.in_flight.push_back((sequence, ticket));
        sequence
    }

    pub(super) fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    pub(super) fn in_flight(&self) -> usize {
        self.state.lock().in_flight.len()
    }

    /// Makes every write up to `sequence` durable: waits, then flushes once.
    pub(super) fn settle(&self, sequence: u64) -> Result<(), DeviceError> {
        if self.durable() >= sequence {
            return Ok(());
        }
        let _settling = self.settling.lock();
        if self.durable() >= sequence {
            return Ok(());
        }
        let reached = self.wait_all()?;
        unless_planted!(DataNotFlushed, self.volume.flush(IoPurpose::Data)?);
        let mut state = self.state.lock();
        state.durable = state.durable.max(reached);
        Ok(())
    }

    /// Waits for all writes in flight. Returns their highest number; they are not yet durable.
    fn wait_all(&self) -> Result<u64, DeviceError> {
        let (reached, tickets) = {
            let mut state = self.state.lock();
            (state.submitted, std::mem::take(&mut state.in_flight))
        };
        for (sequence, ticket) in tickets {
            self.wait_for(sequence, ticket);
        }
        let state = self.state.lock();
        state.failure.clone().map_or(Ok(reached), Err)
    }

    fn wait_for(&self, sequence: u64, ticket: Ticket) {
        let answer = ticket.wait();
        let mut state = self.state.lock();
        match answer {
            Ok(_) => state.answered_up_to(sequence),
            Err(error) => {
                state.failure.get_or_insert(error);
            }
        }
    }

    /// Returns the number up to which all writes have succeeded.
    pub(super) fn answered(&self) -> u64 {
        self.state.lock().answered
    }

    pub(super) fn wait_until(&self, count: usize) -> Result<(), DeviceError> {
        while self.in_flight() > count {
            let _settling = self.settling.lock();
            let Some((sequence, ticket)) = self.state.lock().in_flight.pop_front() else {
                return Ok(());
            };
            self.wait_for(sequence, ticket);
        }
        self.state.lock().failure.clone().map_or(Ok(()), Err)
    }

    /// Collects the results of all writes if none was submitted since the last call, so that an
    /// idle pool detects a failed write too. A busy pool collects them in later submissions and
    /// commits.
    pub(super) fn collect_idle(&self) -> Result<(), DeviceError> {
        let is_idle = {
            let mut state = self.state.lock();
            let submitted = state.submitted;
            std::mem::replace(&mut state.seen, submitted) == submitted
        };
        if !is_idle || self.in_flight() == 0 {
            return Ok(());
        }
        self.drain().map(drop)
    }

    /// Waits for the writes in flight without a flush. Returns the number up to which writes are
    /// durable once the caller has flushed and called [`DataWrites::flushed`].
    pub(super) fn drain(&self) -> Result<u64, DeviceError> {
        let _settling = self.settling.lock();
        self.wait_all()
    }

    /// Records the caller's flush after [`DataWrites::drain`] returned `sequence`.
    pub(super) fn flushed(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(sequence);
    }
}

/// Reads pages that are about to be overwritten in part. An unreadable page becomes zeros, with a
/// warning, except on a degraded pool, where an absent member may hold it.
pub(super) fn read_around(
    volume: &Volume,
    start: Place,
    length: usize,
) -> Result<AlignedBuffer, DeviceError> {
    let whole = volume.read(IoPurpose::Data, start, length);
    if whole.is_ok() || volume.members().is_some_and(|members| members.is_degraded()) {
        return whole;
    }
    let mut pages = AlignedBuffer::zeroed(length);
    let step = volume.geometry().page_fragments();
    for (number, page) in (0..).zip(pages.chunks_mut(PAGE_BYTES)) {
        let place = start.advance(number * step);
        match volume.read(IoPurpose::Data, place, page.len()) {
            Ok(found) => page.copy_from_slice(&found),
            Err(error) => tracing::warn!(%error, %place, "the log writes over a bad sector"),
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use format::geometry::{Geometry, GeometryOptions};
    use storage::device::{DeviceCompletion, DeviceError, MemoryDevice, Ticket};

    use super::*;

    /// Goal: the bytes and the place of a failed write are kept, even if results are collected
    /// between the failure and the end of the journal (SG3).
    #[test]
    fn a_write_that_failed_and_what_follows_it_never_count_as_answered() {
        let options = GeometryOptions {
            device_bytes: 16 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        let geometry = Geometry::plan(&options).expect("a pool fits");
        let writes = DataWrites::new(Volume::new(MemoryDevice::new("memory", 16 << 20), geometry));
        let good = || Ticket::ready(Ok(DeviceCompletion::default()));
        let failed = DeviceError::Failed { device: "memory".to_owned() };
        writes.submitted(good());
        writes.submitted(Ticket::ready(Err(failed)));
        writes.submitted(good());
        writes.wait_until(1).expect_err("the second write failed");
        assert_eq!(writes.answered(), 1);
        writes.settle(3).expect_err("it stays failed");
        assert_eq!((writes.answered(), writes.durable()), (1, 0));
    }
}
