//! Sets that the pool can lose entirely, because memory holds their contents too: the devices of a
//! separate journal (`docs/decisions/0105`). When the last needed device fails, the set is *lost*.
//! Requests to it fail, and the rest of the pool goes on.
//!
//! # Invariants
//!
//! - LO1: A set stays lost. No label is written to its members any more, and no label marks them
//!   failed: they are removed with their disk group.
//! - LO2: A flush of all disk groups skips a lost set. So a caller that needs a set durable checks
//!   *after* its flush whether the set is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{MemberSet, MemberSlot};
use crate::device::{DeviceError, IoPurpose};

#[derive(Debug, Default)]
pub(super) struct MemberSetLoss {
    is_kept: AtomicBool,
    is_lost: AtomicBool,
}

impl MemberSet {
    /// Records that memory has all contents of the members too.
    pub(in crate::volume) fn note_kept(&self) {
        self.loss.is_kept.store(true, Ordering::SeqCst);
    }

    pub(in crate::volume) fn is_lost(&self) -> bool {
        self.loss.is_lost.load(Ordering::SeqCst)
    }

    /// Flushes all members. Returns `false` if the set is lost.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub(in crate::volume) fn flushes_or_is_lost(
        self: &Arc<MemberSet>,
    ) -> Result<bool, DeviceError> {
        let flushed = self.submit_flush(IoPurpose::Cleaner).wait();
        if self.is_lost() { Ok(false) } else { flushed.map(|_| true) }
    }

    /// Called when a needed member fails. Returns whether the pool goes on, with this set lost.
    pub(super) fn loses(&self, error: &DeviceError) -> bool {
        if !self.loss.is_kept.load(Ordering::SeqCst) {
            return false;
        }
        if !self.loss.is_lost.swap(true, Ordering::SeqCst) {
            tracing::error!("{error}; it was the last device of the journal, which memory has too");
        }
        true
    }

    /// Does as [`MemberSet::loses`] if the member in `slot` of the pool is a needed one of this
    /// set.
    pub(super) fn loses_in(&self, slots: &[MemberSlot], slot: usize, error: &DeviceError) -> bool {
        self.own_of(slot).is_some() && !self.can_lose_of(slots, slot) && self.loses(error)
    }
}
