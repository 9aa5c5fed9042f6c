//! Writes of file data that commits must wait for.
//!
//! A data write gets a sequence number when it is submitted. A commit that points to its blocks
//! asks for that number to be durable first ("data is durable before the transaction that points to
//! it commits").

use std::collections::VecDeque;

use storage::device::{DeviceError, Purpose, Ticket};
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
    in_flight: VecDeque<(u64, Ticket)>,
    /// Every write up to this one was answered.
    answered: u64,
    durable: u64,
    /// The first write that failed: nothing becomes durable after it (T5).
    failure: Option<DeviceError>,
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
        self.volume.flush(Purpose::Data)?;
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
        for (_, ticket) in tickets {
            self.wait_for(ticket);
        }
        let mut state = self.state.lock();
        state.answered = state.answered.max(reached);
        state.failure.clone().map_or(Ok(reached), Err)
    }

    /// Waits for one write and remembers its failure.
    fn wait_for(&self, ticket: Ticket) {
        if let Err(error) = ticket.wait() {
            self.state.lock().failure.get_or_insert(error);
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
            self.wait_for(ticket);
            let mut state = self.state.lock();
            state.answered = state.answered.max(sequence);
        }
        self.state.lock().failure.clone().map_or(Ok(()), Err)
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
