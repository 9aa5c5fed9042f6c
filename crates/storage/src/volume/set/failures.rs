//! Failures of members since the open, for `status`. Kept apart from the slots, which may get other
//! devices.

use std::collections::VecDeque;

use super::MemberSet;
use crate::convert::to_u64;
use crate::volume::Volume;

/// Failures kept: more members than a pool can lose one by one.
const FAILURES_MAX: usize = 32;

/// A member that failed, or was replaced by a spare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFailure {
    /// Number of the failure since the open, from 1.
    pub number: u64,
    /// Slot.
    pub slot: usize,
    /// Device name.
    pub device: String,
    /// Error message.
    pub cause: String,
    /// Spare that replaced it.
    pub replaced_by: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Failures {
    kept: VecDeque<MemberFailure>,
    count: usize,
}

impl Failures {
    pub(super) fn note(&mut self, slot: usize, device: String, cause: String) {
        self.count += 1;
        if self.kept.len() == FAILURES_MAX {
            self.kept.pop_front();
        }
        let number = to_u64(self.count);
        self.kept.push_back(MemberFailure { number, slot, device, cause, replaced_by: None });
    }

    fn note_spare(&mut self, slot: usize, (gone, cause): (String, &str), spare: &str) {
        let is_it = |failure: &MemberFailure| failure.slot == slot && failure.replaced_by.is_none();
        if !self.kept.iter().any(is_it) {
            self.note(slot, gone, cause.to_owned());
        }
        if let Some(failure) = self.kept.iter_mut().rev().find(|failure| is_it(failure)) {
            failure.replaced_by = Some(spare.to_owned());
        }
    }
}

impl MemberSet {
    /// Returns the failures since the open, oldest first.
    #[must_use]
    pub fn failures(&self) -> Vec<MemberFailure> {
        self.roster.failures.lock().kept.iter().cloned().collect()
    }

    /// Records a replacement by a spare. `gone` are name and state of the member.
    pub(in crate::volume) fn note_spare(&self, slot: usize, gone: (String, &str), spare: &str) {
        self.roster.failures.lock().note_spare(slot, gone, spare);
    }

    pub(in crate::volume) fn forget_replaced(&self, slot: usize) {
        let stays = |failure: &MemberFailure| failure.slot != slot || failure.replaced_by.is_none();
        self.roster.failures.lock().kept.retain(stays);
    }

    /// Drops all failures in `slot`, once an administrator replaced or returned the device.
    pub(in crate::volume) fn forget_failures(&self, slot: usize) {
        self.roster.failures.lock().kept.retain(|failure| failure.slot != slot);
    }
}

impl Volume {
    /// Returns failures and replacements since the open, oldest first.
    #[must_use]
    pub fn failures(&self) -> Vec<MemberFailure> {
        self.members().map_or_else(Vec::new, |members| members.failures())
    }

    /// Resets the error counters of one member, or of all, and drops their failures that a
    /// replacement has settled.
    pub fn clear_errors(&self, slot: Option<usize>) {
        let Some(members) = self.members() else { return };
        for (at, member) in members.all().iter().enumerate() {
            if slot.is_none_or(|slot| slot == at) {
                member.clear_errors();
                members.forget_replaced(at);
            }
        }
    }

    pub(in crate::volume) fn forget_failures(&self, slot: usize) {
        if let Some(members) = self.members() {
            members.forget_failures(slot);
        }
    }
}
