//! Which members a disk group can do without (MS3).
//!
//! While no segment lies on a member that a disk group in stripes is getting, or is to lose, that
//! one is *idle*: it is not among those that are needed, and not among those that are counted. So
//! it can fail, and the pool goes on; and while it works it stands in for nobody.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use format::members::MemberState;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::{MemberSet, NOBODY};
use crate::volume::open::needed_of;
use crate::volume::slot::Slot;

impl MemberSet {
    pub(in crate::volume) fn needed(&self) -> usize {
        self.needed.load(Ordering::SeqCst)
    }

    /// Its layout cannot do without `needed` online members from now on, the one in its own slot
    /// `idle` apart.
    pub(in crate::volume) fn need(&self, needed: usize, idle: Option<usize>) {
        self.needed.store(needed, Ordering::SeqCst);
        self.idle.store(idle.unwrap_or(NOBODY), Ordering::SeqCst);
    }

    /// Needs from now on those that `label` says of the disk group, where that can be met by the
    /// pool's `slots`; returns whether it can. Called while the labels come to tell of it.
    pub(in crate::volume) fn need_as(&self, label: &Superblock, slots: &[Slot]) -> bool {
        let before = (self.needed(), self.idle());
        let first = self.numbers().into_iter().find(|number| *number != NOBODY);
        let Some((number, layout, own)) = first.and_then(|slot| label.group_of_slot(slot)) else {
            return true;
        };
        let coming = label.coming_slot().filter(|(of, _)| *of == number);
        let idle = coming.and_then(|(_, slot)| self.own_of(slot));
        self.need(needed_of(layout, own.len() - usize::from(coming.is_some())), idle);
        let is_met = self.online_of(slots) >= self.needed();
        if !is_met && !planted::is(Planted::MovedToFailed) {
            self.need(before.0, before.1);
        }
        is_met || planted::is(Planted::MovedToFailed)
    }

    fn idle(&self) -> Option<usize> {
        Some(self.idle.load(Ordering::SeqCst)).filter(|own| *own != NOBODY)
    }

    fn counts(&self, own: usize, slot: &Slot) -> bool {
        slot.state == MemberState::Online && Some(own) != self.idle()
    }

    /// Returns how many of its members are online and not idle, by the pool's `slots`.
    pub(super) fn online_of(&self, slots: &[Slot]) -> usize {
        let numbers = self.numbers();
        let own = numbers.iter().enumerate();
        own.filter(|(own, number)| slots.get(**number).is_some_and(|it| self.counts(*own, it)))
            .count()
    }

    /// The same, by its own slots, without those that `lost` names.
    pub(super) fn online_but(&self, slots: &[Slot], lost: &BTreeSet<usize>) -> usize {
        let others = slots.iter().enumerate().filter(|(own, _)| !lost.contains(own));
        others.filter(|(own, slot)| self.counts(*own, slot)).count()
    }

    /// Whether the layout can do without the member in `slot`.
    #[must_use]
    pub fn can_lose(&self, slot: &Slot) -> bool {
        let view = self.view();
        let lost = view.iter().position(|other| other.stay() == slot.stay());
        self.online_but(&view, &lost.into_iter().collect()) >= self.needed()
    }

    /// The same of its member that is in `slot` of the pool's `slots`.
    pub(in crate::volume) fn can_lose_of(&self, slots: &[Slot], slot: usize) -> bool {
        let is_counted = |own| slots.get(slot).is_some_and(|it| self.counts(own, it));
        let lost = usize::from(self.own_of(slot).is_some_and(is_counted));
        self.online_of(slots) >= self.needed() + lost
    }
}
