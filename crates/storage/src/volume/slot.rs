//! A slot of the pool: the member in it, its state, stale parts and counters.
//!
//! Not here: changes of state (`set.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::members::MemberState;
use format::missed::StaleParts;
use runtime::planted;

use super::durable::{DurableRequest, DurableRequests};
use super::parity_reads::{ParityReadCounters, ParityReader, ParityReads};
use crate::convert::to_u64;
use crate::device::counters::{IoCounters, IoCounts};
use crate::device::{
    DeviceCompletion, DeviceError, PendingRequest, RequestKind, SharedDevice, Ticket,
};

/// Returns advice for a member that should be online. For a joining one: wait.
pub(super) fn way_to_online(state: &str) -> &'static str {
    if state == MemberState::Joining.word() {
        return "wait until its rebuild has ended (`holdfast job list` shows its progress)";
    }
    "bring it back (`holdfast device online`) or replace it (`holdfast device replace`), and wait \
     until its rebuild has ended"
}

#[derive(Debug, Default)]
pub(super) struct MemberCounters {
    pub(super) io: IoCounters,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    repaired: AtomicU64,
    parity_reads: ParityReadCounters,
    /// Unanswered requests, except those whose waiter gave up.
    pending: AtomicU64,
    durables: DurableRequests,
}

/// Counters of a member at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberCounts {
    /// Requests and bytes, without labels.
    pub io: IoCounts,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes and flushes.
    pub write_errors: u64,
    /// Ranges that did not verify.
    pub checksum_errors: u64,
    /// Ranges that were rewritten from another member.
    pub repaired: u64,
    /// Bytes of parity that were read.
    pub parity_reads: ParityReads,
}

/// One stay of a member in a slot, until the device is replaced, or returns after an absence.
#[derive(Clone, Debug)]
pub struct MemberTenure(Arc<MemberCounters>);

impl PartialEq for MemberTenure {
    fn eq(&self, other: &MemberTenure) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A slot, and the member in it.
#[derive(Clone, Debug)]
pub struct MemberSlot {
    /// The device. `None` if it was not found.
    pub device: Option<SharedDevice>,
    /// State of the member.
    pub state: MemberState,
    /// Stale parts: see [`format::members::Member::missed`].
    pub missed: Option<StaleParts>,
    pub(super) counters: Arc<MemberCounters>,
}

impl MemberSlot {
    /// Returns a slot with counters at zero.
    #[must_use]
    pub fn new(device: Option<SharedDevice>, state: MemberState) -> MemberSlot {
        MemberSlot { device, state, missed: None, counters: Arc::default() }
    }

    #[must_use]
    pub(super) fn gone() -> MemberSlot {
        MemberSlot::new(None, MemberState::Gone)
    }

    /// Returns the member's current stay.
    #[must_use]
    pub fn stay(&self) -> MemberTenure {
        MemberTenure(Arc::clone(&self.counters))
    }

    /// Whether the member is absent, and may return.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self.state {
            MemberState::Missing | MemberState::Failed => true,
            MemberState::Online | MemberState::Joining | MemberState::Gone => false,
        }
    }

    /// Returns the number of unanswered requests, which may still change the device.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        let overdue = self.device.as_ref().map_or(0, |device| device.overdue());
        self.counters.pending.load(Ordering::SeqCst) + to_u64(overdue)
    }

    pub(super) fn flushed(&self) -> u64 {
        self.counters.durables.flushed()
    }

    /// Records flush number `flush`.
    ///
    /// # Errors
    ///
    /// An earlier or concurrent flush or write-through failed: this flush does not count.
    pub(super) fn note_flushed(&self, flush: u64) -> Result<(), DeviceError> {
        self.counters.durables.note_flushed(flush)
    }

    /// Sends requests. Those that `which` marks make data durable, and are registered first (FL1).
    pub(super) fn send(&self, which: &[bool], submit: impl FnOnce() -> Vec<Ticket>) -> Vec<Ticket> {
        if !which.contains(&true) {
            return submit();
        }
        let sent = self.counters.durables.send(which, submit).into_iter();
        let ticket =
            |durable| Ticket::new(Box::new(PendingDurable { slot: self.clone(), durable }));
        sent.map(|sent| sent.map_or_else(|other| other, ticket)).collect()
    }

    pub(super) fn send_one(&self, makes_durable: bool, submit: impl FnOnce() -> Ticket) -> Ticket {
        if !makes_durable {
            return submit();
        }
        let durable = self.counters.durables.send_one(submit);
        PendingDurable { slot: self.clone(), durable }.into_ticket()
    }

    /// Changes the state of a member that fails or is missing. `unflushed` are the parts whose
    /// writes may not be durable on it.
    pub(super) fn leave(&mut self, state: MemberState, unflushed: StaleParts) {
        let unflushed = if planted!(UnflushedNotMissed) { StaleParts::NONE } else { unflushed };
        self.missed = match (self.state, self.missed) {
            // A replacement that never had the contents needs a full rebuild.
            (MemberState::Joining, None) => None,
            // The map does not shrink during a rebuild.
            (MemberState::Joining, Some(_)) if planted!(MissedForgotten) => Some(unflushed),
            (MemberState::Joining, Some(missed)) => Some(missed.with(unflushed)),
            (MemberState::Online, _) => Some(unflushed),
            (MemberState::Missing | MemberState::Failed | MemberState::Gone, missed) => missed,
        };
        self.state = state;
    }

    /// Returns the device, if reads may go to it.
    #[must_use]
    pub fn readable(&self) -> Option<&SharedDevice> {
        let is_read = match self.state {
            MemberState::Online => true,
            MemberState::Joining => planted!(ReturningBelieved) && self.missed.is_some(),
            MemberState::Missing | MemberState::Failed | MemberState::Gone => false,
        };
        self.device.as_ref().filter(|_| is_read)
    }

    /// Returns the device, if writes go to it (MS4).
    #[must_use]
    pub fn writable(&self) -> Option<&SharedDevice> {
        let is_written = match self.state {
            MemberState::Online => true,
            MemberState::Joining => !planted!(JoiningMissesWrites),
            MemberState::Missing | MemberState::Failed | MemberState::Gone => false,
        };
        self.device.as_ref().filter(|_| is_written)
    }

    /// Returns the counters.
    #[must_use]
    pub fn counts(&self) -> MemberCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemberCounts {
            io: self.counters.io.counts(),
            read_errors: of(&self.counters.read_errors),
            write_errors: of(&self.counters.write_errors),
            checksum_errors: of(&self.counters.checksum_errors),
            repaired: of(&self.counters.repaired),
            parity_reads: self.counters.parity_reads.counts(),
        }
    }

    pub(super) fn clear_errors(&self) {
        let counters = &self.counters;
        let all = [
            &counters.read_errors,
            &counters.write_errors,
            &counters.checksum_errors,
            &counters.repaired,
        ];
        all.into_iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }

    pub(super) fn count_parity(&self, reader: ParityReader, bytes: u64) {
        self.counters.parity_reads.add(reader, bytes);
    }

    /// Counts a range that did not verify, and its repair.
    pub fn count_damage(&self, is_repaired: bool) {
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
        self.counters.repaired.fetch_add(u64::from(is_repaired), Ordering::Relaxed);
    }

    pub(super) fn count_error(&self, kind: RequestKind) {
        match kind {
            RequestKind::Read => self.counters.read_errors.fetch_add(1, Ordering::Relaxed),
            RequestKind::Write | RequestKind::Flush => {
                self.counters.write_errors.fetch_add(1, Ordering::Relaxed)
            }
            RequestKind::Discard => 0,
        };
    }
}

/// A request that counts as unanswered, until dropped.
pub(super) struct UnansweredRequest(MemberSlot);

impl UnansweredRequest {
    pub(super) fn new(slot: &MemberSlot) -> UnansweredRequest {
        slot.counters.pending.fetch_add(1, Ordering::SeqCst);
        UnansweredRequest(slot.clone())
    }
}

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        self.0.counters.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

struct PendingDurable {
    slot: MemberSlot,
    durable: Arc<DurableRequest>,
}

impl PendingDurable {
    fn into_ticket(self) -> Ticket {
        Ticket::new(Box::new(self))
    }
}

impl PendingRequest for PendingDurable {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        self.slot.counters.durables.wait(&self.durable).map(|()| DeviceCompletion::default())
    }
}

pub(super) struct CountedRequest {
    pub(super) ticket: Ticket,
    pub(super) kind: RequestKind,
    pub(super) pending: UnansweredRequest,
}

impl PendingRequest for CountedRequest {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let CountedRequest { ticket, kind, pending } = *self;
        ticket.wait().inspect_err(|_| pending.0.count_error(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{AttachError, GrowError, NarrowError};

    /// Goal: a refusal during a rebuild advises to wait, and nothing else.
    #[test]
    fn a_refusal_while_a_member_joins_says_to_wait() {
        let (slot, path) = (1, "/d1".to_owned());
        for state in [MemberState::Joining, MemberState::Failed, MemberState::Missing] {
            let word = state.word();
            let refusals = [
                AttachError::Lacking { slot, state: word }.to_string(),
                NarrowError::Lacking { slot, state: word }.to_string(),
                GrowError::Away { disk_group: 0, path: path.clone(), state: word }.to_string(),
            ];
            for words in refusals {
                assert!(words.contains("its rebuild has ended"), "{words}");
                assert_eq!(
                    words.contains("device online"),
                    state != MemberState::Joining,
                    "{words}"
                );
            }
        }
    }
}
