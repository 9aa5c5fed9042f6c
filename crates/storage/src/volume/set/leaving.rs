//! A set whose disk group is taken out.

use std::sync::{Arc, Weak};

use super::{MemberSet, Standing};
use crate::device::SharedDevice;
use crate::volume::slot::Slot;

impl MemberSet {
    /// Labels are written to these members no more.
    pub(in crate::volume) fn leave_roster(self: &Arc<MemberSet>) {
        *self.standing.write() = Standing::Gone;
        let is_other = |set: &Weak<MemberSet>| !std::ptr::eq(set.as_ptr(), Arc::as_ptr(self));
        self.roster.sets.write().retain(is_other);
    }

    /// Lets go of its members' devices, and returns them: whoever has asked one of them something
    /// keeps it until that is answered, and nobody asks more. The set itself stays with the
    /// editions of the volume in which it was.
    pub(in crate::volume) fn let_go_of_all(&self) -> Vec<SharedDevice> {
        let mut view = self.view.write();
        let gone = view.iter().map(|_| Slot::gone()).collect();
        let before = std::mem::replace(&mut *view, Arc::new(gone));
        drop(view);
        before.iter().filter_map(|slot| slot.device.clone()).collect()
    }
}
