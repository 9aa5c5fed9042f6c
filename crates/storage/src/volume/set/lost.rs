//! Members that the pool can do without although their layout cannot: memory has all that they
//! have.
//!
//! So it is with the devices of the journal, where whoever writes the log keeps in memory what a
//! recovery would read of it (`docs/decisions/0105`). When the last of them fails the set is
//! *lost*: whoever asks something of it hears of that, and nobody else does.
//!
//! # Invariants
//!
//! - LO1: A set is lost for good. No label is written to its members any more, and none says that
//!   they have failed: they are away together with their disk group when that is taken out.
//! - LO2: Whoever makes durable what a set has looks *afterwards* whether it is lost: a flush of
//!   all may have passed over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{MemberSet, Slot};
use crate::device::{DeviceError, Purpose};

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Loss {
    is_kept: AtomicBool,
    is_lost: AtomicBool,
}

impl MemberSet {
    /// Memory has all that the members have from now on.
    pub(in crate::volume) fn note_kept(&self) {
        self.loss.is_kept.store(true, Ordering::SeqCst);
    }

    /// Whether the last member that the layout needed has failed, and memory has what it had.
    pub(in crate::volume) fn is_lost(&self) -> bool {
        self.loss.is_lost.load(Ordering::SeqCst)
    }

    /// Flushes all members, for a walk over one of them; `false`: they are lost, and so is what it
    /// has made.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub(in crate::volume) fn flushes_or_is_lost(
        self: &Arc<MemberSet>,
    ) -> Result<bool, DeviceError> {
        let flushed = self.submit_flush(Purpose::Cleaner).wait();
        if self.is_lost() { Ok(false) } else { flushed.map(|_| true) }
    }

    /// A member has failed that the layout needs. Returns whether the pool can do without all.
    pub(super) fn loses(&self, error: &DeviceError) -> bool {
        if !self.loss.is_kept.load(Ordering::SeqCst) {
            return false;
        }
        if !self.loss.is_lost.swap(true, Ordering::SeqCst) {
            tracing::error!("{error}; it was the last device of the journal, which memory has too");
        }
        true
    }

    /// The same of the member in `slot` of the pool's `slots`, if it is one of these, and needed.
    pub(super) fn loses_in(&self, slots: &[Slot], slot: usize, error: &DeviceError) -> bool {
        self.own_of(slot).is_some() && !self.can_lose_of(slots, slot) && self.loses(error)
    }
}
