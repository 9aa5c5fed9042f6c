//! The members that have failed since the pool was opened, why, and which spares replaced them.
//! Kept for `status`, because another device may have the slot by then.

use std::collections::VecDeque;

use runtime::planted::{self, Planted};

use super::MemberSet;
use crate::convert::to_u64;
use crate::volume::Volume;

/// Most failures that are kept: more than a pool has slots to lose one by one and stay.
const FAILURES_MAX: usize = 32;

/// A member that failed, or whose place a spare took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberFailure {
    /// Counts failures since the pool was opened, from 1.
    pub number: u64,
    /// Its slot.
    pub slot: usize,
    /// What its device is called.
    pub device: String,
    /// What was said of it.
    pub cause: String,
    /// The spare that took its place.
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
    /// Returns the members that have failed since the pool was opened, the first first.
    #[must_use]
    pub fn failures(&self) -> Vec<MemberFailure> {
        self.roster.failures.lock().kept.iter().cloned().collect()
    }

    /// A spare has taken the place of the member in `slot`, which was `gone` and `state`.
    pub(in crate::volume) fn note_spare(&self, slot: usize, gone: (String, &str), spare: &str) {
        if !planted::is(Planted::SpareHidesFailure) {
            self.roster.failures.lock().note_spare(slot, gone, spare);
        }
    }

    /// Forgets devices that failed in `slot` and for which another stands.
    pub(in crate::volume) fn forget_replaced(&self, slot: usize) {
        let stays = |failure: &MemberFailure| failure.slot != slot || failure.replaced_by.is_none();
        self.roster.failures.lock().kept.retain(stays);
    }

    /// Forgets what failed in `slot`: an administrator has put another device there, or the same
    /// again.
    pub(in crate::volume) fn forget_failures(&self, slot: usize) {
        self.roster.failures.lock().kept.retain(|failure| failure.slot != slot);
    }
}

impl Volume {
    /// Returns the members that have failed since the pool was opened, or that a spare stands for,
    /// the first first.
    #[must_use]
    pub fn failures(&self) -> Vec<MemberFailure> {
        self.members().map_or_else(Vec::new, |members| members.failures())
    }

    /// Counts the errors of the member in `slot` anew, and forgets the devices that failed there
    /// before; `None`: of all members.
    pub fn clear_errors(&self, slot: Option<usize>) {
        let Some(members) = self.members() else { return };
        for (at, member) in members.all().iter().enumerate() {
            if slot.is_none_or(|slot| slot == at) {
                member.clear_errors();
                members.forget_replaced(at);
            }
        }
    }

    /// Forgets what failed in `slot`.
    pub(in crate::volume) fn forget_failures(&self, slot: usize) {
        if let Some(members) = self.members() {
            members.forget_failures(slot);
        }
    }
}
