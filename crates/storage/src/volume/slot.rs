//! A member at work: its device, what it is to the pool, what it has missed, and what happened to
//! it.
//!
//! Not here: when any of that changes (`set.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::members::MemberState;
use format::missed::Parts;
use runtime::planted::{self, Planted};

use super::durable::{Durable, Durables};
use super::parity_reads::{ParityReadCounters, ParityReader, ParityReads};
use crate::convert::to_u64;
use crate::counters::{IoCounters, IoCounts};
use crate::device::{Completion, DeviceError, PendingRequest, RequestKind, SharedDevice, Ticket};

/// Says what to do about a member that is in `state`, and that is to be online: one that gets what
/// it should have needs nothing but time.
pub(super) fn way_to_online(state: &str) -> &'static str {
    if state == MemberState::Joining.word() {
        return "wait until its rebuild has ended (`holdfast job list` shows its progress)";
    }
    "bring it back (`holdfast device online`) or replace it (`holdfast device replace`), and wait \
     until its rebuild has ended"
}

/// What happened to a member since the pool was opened.
#[derive(Debug, Default)]
pub(super) struct MemberCounters {
    pub(super) io: IoCounters,
    read_errors: AtomicU64,
    write_errors: AtomicU64,
    checksum_errors: AtomicU64,
    repaired: AtomicU64,
    parity_reads: ParityReadCounters,
    /// Requests that were not answered yet, or given up by who waited.
    pending: AtomicU64,
    durables: Durables,
}

/// The same at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberCounts {
    /// Requests and bytes, labels apart.
    pub io: IoCounts,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Ranges that were read and did not verify.
    pub checksum_errors: u64,
    /// Ranges that were written again with what another member had.
    pub repaired: u64,
    /// Bytes of parity that were read.
    pub parity_reads: ParityReads,
}

/// One stay of a member in a slot: from when it was put there until another is, or until it is put
/// there once more after it was away.
#[derive(Clone, Debug)]
pub struct Stay(Arc<MemberCounters>);

impl PartialEq for Stay {
    fn eq(&self, other: &Stay) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A slot, and the member in it.
#[derive(Clone, Debug)]
pub struct Slot {
    /// `None`: it was not found.
    pub device: Option<SharedDevice>,
    /// What it is to the pool.
    pub state: MemberState,
    /// What it has missed: see [`format::members::Member::missed`].
    pub missed: Option<Parts>,
    pub(super) counters: Arc<MemberCounters>,
}

impl Slot {
    /// Returns a slot whose counters stand at zero.
    #[must_use]
    pub fn new(device: Option<SharedDevice>, state: MemberState) -> Slot {
        Slot { device, state, missed: None, counters: Arc::default() }
    }

    /// Returns a slot that nobody is in.
    #[must_use]
    pub(super) fn gone() -> Slot {
        Slot::new(None, MemberState::Gone)
    }

    /// Returns the stay of the member that is in it.
    #[must_use]
    pub fn stay(&self) -> Stay {
        Stay(Arc::clone(&self.counters))
    }

    /// Whether it is away, and may come back.
    #[must_use]
    pub fn is_away(&self) -> bool {
        match self.state {
            MemberState::Missing | MemberState::Failed => true,
            MemberState::Online | MemberState::Joining | MemberState::Gone => false,
        }
    }

    /// Returns how many requests to it were not answered: what they change may still change.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        let overdue = self.device.as_ref().map_or(0, |device| device.overdue());
        self.counters.pending.load(Ordering::SeqCst) + to_u64(overdue)
    }

    /// Returns the number of the last flush that counts for it.
    pub(super) fn flushed(&self) -> u64 {
        self.counters.durables.flushed()
    }

    /// Notes that it has done flush number `flush`.
    ///
    /// # Errors
    ///
    /// What another request was told that was in flight with it: it has not.
    pub(super) fn note_flushed(&self, flush: u64) -> Result<(), DeviceError> {
        self.counters.durables.note_flushed(flush)
    }

    /// Sends requests to it: `submit` does it, and returns a ticket for each. Those that make
    /// something durable, as `which` says, are in flight from before that (FL1).
    pub(super) fn send(&self, which: &[bool], submit: impl FnOnce() -> Vec<Ticket>) -> Vec<Ticket> {
        if !which.contains(&true) {
            return submit();
        }
        let sent = self.counters.durables.send(which, submit).into_iter();
        let ticket =
            |durable| Ticket::new(Box::new(PendingDurable { slot: self.clone(), durable }));
        sent.map(|sent| sent.map_or_else(|other| other, ticket)).collect()
    }

    /// Sends one.
    pub(super) fn send_one(&self, makes_durable: bool, submit: impl FnOnce() -> Ticket) -> Ticket {
        if !makes_durable {
            return submit();
        }
        let durable = self.counters.durables.send_one(submit);
        PendingDurable { slot: self.clone(), durable }.into_ticket()
    }

    /// It goes, in `state` from now on; `unflushed` is what of the writes so far it may not have.
    pub(super) fn leave(&mut self, state: MemberState, unflushed: Parts) {
        let unflushed =
            if planted::is(Planted::UnflushedNotMissed) { Parts::NONE } else { unflushed };
        self.missed = match (self.state, self.missed) {
            // It never had all.
            (MemberState::Joining, None) => None,
            // What was made anew of it so far is not told apart.
            (MemberState::Joining, Some(_)) if planted::is(Planted::MissedForgotten) => {
                Some(unflushed)
            }
            (MemberState::Joining, Some(missed)) => Some(missed.with(unflushed)),
            (MemberState::Online, _) => Some(unflushed),
            (MemberState::Missing | MemberState::Failed | MemberState::Gone, missed) => missed,
        };
        self.state = state;
    }

    /// Returns the device that reads may go to.
    #[must_use]
    pub fn readable(&self) -> Option<&SharedDevice> {
        let is_read = match self.state {
            MemberState::Online => true,
            MemberState::Joining => {
                planted::is(Planted::ReturningBelieved) && self.missed.is_some()
            }
            MemberState::Missing | MemberState::Failed | MemberState::Gone => false,
        };
        self.device.as_ref().filter(|_| is_read)
    }

    /// Returns the device that writes go to (MS4).
    #[must_use]
    pub fn writable(&self) -> Option<&SharedDevice> {
        let is_written = match self.state {
            MemberState::Online => true,
            MemberState::Joining => !planted::is(Planted::JoiningMissesWrites),
            MemberState::Missing | MemberState::Failed | MemberState::Gone => false,
        };
        self.device.as_ref().filter(|_| is_written)
    }

    /// Returns what happened to it.
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

    /// Counts errors anew from now on.
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

    /// Counts parity that is read of it.
    pub(super) fn count_parity(&self, reader: ParityReader, bytes: u64) {
        self.counters.parity_reads.add(reader, bytes);
    }

    /// Counts a range that did not verify, and whether it was written again.
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

/// A request that counts as unanswered until this is dropped.
pub(super) struct Pending(Slot);

impl Pending {
    pub(super) fn new(slot: &Slot) -> Pending {
        slot.counters.pending.fetch_add(1, Ordering::SeqCst);
        Pending(slot.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.counters.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request that makes something durable.
struct PendingDurable {
    slot: Slot,
    durable: Arc<Durable>,
}

impl PendingDurable {
    fn into_ticket(self) -> Ticket {
        Ticket::new(Box::new(self))
    }
}

impl PendingRequest for PendingDurable {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.slot.counters.durables.wait(&self.durable).map(|()| Completion::default())
    }
}

/// A request to one member.
pub(super) struct Counted {
    pub(super) ticket: Ticket,
    pub(super) kind: RequestKind,
    pub(super) pending: Pending,
}

impl PendingRequest for Counted {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let Counted { ticket, kind, pending } = *self;
        ticket.wait().inspect_err(|_| pending.0.count_error(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::{AttachError, GrowError, NarrowError};

    /// Goal: a refusal while a member is being made whole says to wait, and nothing else.
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
