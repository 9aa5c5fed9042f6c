//! What changes of a disk group while it gets a member more: how its segments lie, and how many
//! members it cannot do without.

use std::sync::atomic::Ordering;

use format::reshape::Lay;

use super::MemberSet;

impl MemberSet {
    pub(in crate::volume) fn needed(&self) -> usize {
        self.needed.load(Ordering::SeqCst)
    }

    /// Its layout cannot do without `needed` online members from now on.
    pub(in crate::volume) fn need(&self, needed: usize) {
        self.needed.store(needed, Ordering::SeqCst);
    }

    /// Returns how segments lie if that was ever changed.
    pub(in crate::volume) fn lay(&self) -> Option<Lay> {
        *self.lay.read()
    }

    /// Segments lie so from now on.
    pub(in crate::volume) fn set_lay(&self, lay: Lay) {
        *self.lay.write() = Some(lay);
    }
}
