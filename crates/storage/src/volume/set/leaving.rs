//! A set whose disk group is taken out.

use std::sync::{Arc, Weak};

use super::{MemberSet, MemberSetState};
use crate::device::SharedDevice;
use crate::volume::slot::MemberSlot;

impl MemberSet {
    pub(in crate::volume) fn leave_roster(self: &Arc<MemberSet>) {
        *self.standing.write() = MemberSetState::Gone;
        let is_other = |set: &Weak<MemberSet>| !std::ptr::eq(set.as_ptr(), Arc::as_ptr(self));
        self.roster.sets.write().retain(is_other);
    }

    /// Drops the devices of the members, and returns them. Requests in flight keep theirs.
    pub(in crate::volume) fn let_go_of_all(&self) -> Vec<SharedDevice> {
        let mut view = self.view.write();
        let gone = view.iter().map(|_| MemberSlot::gone()).collect();
        let before = std::mem::replace(&mut *view, Arc::new(gone));
        drop(view);
        before.iter().filter_map(|slot| slot.device.clone()).collect()
    }
}
