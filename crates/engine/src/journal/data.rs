//! Writes of file data that commits must wait for.
//!
//! A data write gets a sequence number when it is submitted. A commit that points to its blocks
//! asks for that number to be durable first ("data is durable before the transaction that points to
//! it commits").

use std::collections::VecDeque;

use format::ids::Place;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, Ticket};
use storage::volume::Volume;

use crate::sync::Mutex;

/// Data writes in flight and not yet flushed.
#[derive(Debug)]
pub(super) struct DataWrites {
    volume: Volume,
    state: Mutex<State>,
    /// Held while somebody waits and flushes: others who need the same find it done.
    settling: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    submitted: u64,
    /// What was submitted at the last [`DataWrites::collect_idle`].
    seen: u64,
    in_flight: VecDeque<(u64, Ticket)>,
    /// Every write up to this one was answered, and well: what comes after a failed one may be in
    /// memory alone, and its place is not for anybody else (a late write may still land there).
    answered: u64,
    durable: u64,
    /// The first write that failed: nothing becomes durable after it (T5).
    failure: Option<DeviceError>,
}

impl State {
    fn answered_up_to(&mut self, sequence: u64) {
        if self.failure.is_none() {
            self.answered = self.answered.max(sequence);
        }
    }
}

impl DataWrites {
    pub(super) fn new(volume: Volume) -> DataWrites {
        DataWrites { volume, state: Mutex::new(State::default()), settling: Mutex::new(()) }
    }

    /// Takes over a write that was submitted; returns its sequence number.
    pub(super) fn submitted(&self, ticket: Ticket) -> u64 {
        let mut state = self.state.lock();
        state.submitted += 1;
        let sequence = state.submitted;
        state.in_flight.push_back((sequence, ticket));
        sequence
    }

    /// Returns up to which number writes are durable.
    pub(super) fn durable(&self) -> u64 {
        self.state.lock().durable
    }

    /// Returns how many writes are in flight.
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
        if !planted::is(Planted::DataNotFlushed) {
            self.volume.flush(Purpose::Data)?;
        }
        let mut state = self.state.lock();
        state.durable = state.durable.max(reached);
        Ok(())
    }

    /// Waits for all that is in flight now; what was waited for is answered but not yet durable.
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

    /// Waits for one write and remembers its failure.
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

    /// Returns up to which number writes are answered.
    pub(super) fn answered(&self) -> u64 {
        self.state.lock().answered
    }

    /// Waits for the oldest writes until at most `count` are in flight.
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

    /// Collects the answers of all writes if none was submitted since the last call: an idle pool
    /// asks for nothing that would, and what has failed is to be known all the same. Where more are
    /// submitted, whoever submits or commits collects them.
    pub(super) fn collect_idle(&self) -> Result<(), DeviceError> {
        let is_idle = {
            let mut state = self.state.lock();
            let submitted = state.submitted;
            std::mem::replace(&mut state.seen, submitted) == submitted
        };
        if !is_idle || self.in_flight() == 0 || planted::is(Planted::WriteEndsWhenCollected) {
            return Ok(());
        }
        self.drain().map(drop)
    }

    /// Waits for what is in flight without a flush and says up to which number writes will be
    /// durable once the caller has flushed: tell by [`DataWrites::flushed`].
    pub(super) fn drain(&self) -> Result<u64, DeviceError> {
        let _settling = self.settling.lock();
        self.wait_all()
    }

    /// The caller has flushed after [`DataWrites::drain`] returned `sequence`.
    pub(super) fn flushed(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.durable = state.durable.max(sequence);
    }
}

/// Reads pages of which some are written over in part. Of one that cannot be read there are zeros,
/// unless a member is away, which may have it: the log says which, for whoever looks for what was
/// beside.
pub(super) fn read_around(
    volume: &Volume,
    start: Place,
    length: usize,
) -> Result<AlignedBuffer, DeviceError> {
    let whole = volume.read(Purpose::Data, start, length);
    if whole.is_ok() || volume.members().is_some_and(|members| members.is_degraded()) {
        return whole;
    }
    let mut pages = AlignedBuffer::zeroed(length);
    let step = volume.geometry().page_fragments();
    for (number, page) in (0..).zip(pages.chunks_mut(PAGE_BYTES)) {
        let place = start.advance(number * step);
        match volume.read(Purpose::Data, place, page.len()) {
            Ok(found) => page.copy_from_slice(&found),
            Err(error) => tracing::warn!(%error, %place, "the log writes over a bad sector"),
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use format::geometry::{Geometry, GeometryOptions};
    use storage::device::{Completion, DeviceError, MemoryDevice, Ticket};

    use super::*;

    /// SG3: the bytes of a write that failed, and its place, are kept; also by a tidy that comes
    /// between the failure and the end of the journal.
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
        let good = || Ticket::ready(Ok(Completion::default()));
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
