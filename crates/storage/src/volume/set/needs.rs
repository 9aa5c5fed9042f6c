//! The number of members that a disk group needs (MS3).
//!
//! During a reshape, a member without segments is *idle*: the layout neither needs it nor counts
//! it. So the pool survives its failure, and it makes up for no other member.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use format::members::MemberState;
use format::superblock::Superblock;

use super::{MemberSet, NOBODY};
use crate::volume::open::needed_of;
use crate::volume::slot::MemberSlot;

impl MemberSet {
    pub(in crate::volume) fn needed(&self) -> usize {
        self.needed.load(Ordering::SeqCst)
    }

    pub(in crate::volume) fn need(&self, needed: usize, idle: Option<usize>) {
        self.needed.store(needed, Ordering::SeqCst);
        self.idle.store(idle.unwrap_or(NOBODY), Ordering::SeqCst);
    }

    /// Sets the number of needed members by `label`, if as many of `slots` are online. Returns
    /// whether they are. Called inside a label change.
    pub(in crate::volume) fn need_as(&self, label: &Superblock, slots: &[MemberSlot]) -> bool {
        let before = (self.needed(), self.idle());
        let first = self.numbers().into_iter().find(|number| *number != NOBODY);
        let Some((number, layout, own)) = first.and_then(|slot| label.group_of_slot(slot)) else {
            return true;
        };
        let coming = label.coming_slot().filter(|(of, _)| *of == number);
        let idle = coming.and_then(|(_, slot)| self.own_of(slot));
        self.need(needed_of(layout, own.len() - usize::from(coming.is_some())), idle);
        let is_met = self.online_of(slots) >= self.needed();
        if !is_met {
            self.need(before.0, before.1);
        }
        is_met
    }

    fn idle(&self) -> Option<usize> {
        Some(self.idle.load(Ordering::SeqCst)).filter(|own| *own != NOBODY)
    }

    fn counts(&self, own: usize, slot: &MemberSlot) -> bool {
        slot.state == MemberState::Online && Some(own) != self.idle()
    }

    /// Counts the online members that are not idle, among `slots` of the pool.
    pub(super) fn online_of(&self, slots: &[MemberSlot]) -> usize {
        let numbers = self.numbers();
        let own = numbers.iter().enumerate();
        own.filter(|(own, number)| slots.get(**number).is_some_and(|it| self.counts(*own, it)))
            .count()
    }

    /// Counts as [`MemberSet::online_of`] the own `slots` without `lost`.
    pub(super) fn online_but(&self, slots: &[MemberSlot], lost: &BTreeSet<usize>) -> usize {
        let others = slots.iter().enumerate().filter(|(own, _)| !lost.contains(own));
        others.filter(|(own, slot)| self.counts(*own, slot)).count()
    }

    /// Whether the layout survives the loss of the member in `slot`.
    #[must_use]
    pub fn can_lose(&self, slot: &MemberSlot) -> bool {
        let view = self.view();
        let lost = view.iter().position(|other| other.stay() == slot.stay());
        self.online_but(&view, &lost.into_iter().collect()) >= self.needed()
    }

    /// Whether the layout survives the loss of its member in `slot` of the pool.
    pub(in crate::volume) fn can_lose_of(&self, slots: &[MemberSlot], slot: usize) -> bool {
        let is_counted = |own| slots.get(slot).is_some_and(|it| self.counts(own, it));
        let lost = usize::from(self.own_of(slot).is_some_and(is_counted));
        self.online_of(slots) >= self.needed() + lost
    }
}
