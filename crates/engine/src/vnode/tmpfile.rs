//! Files that are born without a name (`O_TMPFILE`), and the first name one may get.
//!
//! # Crashes
//!
//! Such a file is in the orphan list from its birth, so that the open after a crash frees it. Its
//! first name, its link count and its end as an orphan are one transaction.

use std::sync::Arc;

use format::anode::Anode;

use super::access::{SEARCH, WRITE, is_exempt};
use super::api::{Attr, Caller, FileKind, Ino, NewInode};
use super::names::{check_new_inode, check_owner};
use super::xattr::Lazy;
use super::{Files, Vnode, VnodeState, attr_of};
use crate::error::{FsError, FsResult};
use crate::store::Change;

impl Files<'_> {
    /// Makes a file without a name; see [`super::api::FileSystem::tmpfile`]. Takes a reference.
    pub(crate) fn make_nameless(
        &self,
        caller: &Caller,
        parent: Ino,
        new: NewInode,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        check_new_inode(&new, false)?;
        if new.kind != FileKind::Regular || new.verifier.is_some() {
            return Err(FsError::Invalid);
        }
        self.with_reclaim(|| self.make_nameless_once(caller, parent, new))
    }

    fn make_nameless_once(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let vnode = self.vnode(parent)?;
        let (mut change, state) = self.begin_making(&vnode)?;
        let directory = self.searched(caller, &state)?;
        self.check_access(caller, directory, WRITE | SEARCH)?;
        check_owner(caller, directory, &new)?;
        self.check_room()?;
        let mut fileset = Lazy::new(self);
        let mut anode = self.make_anode(caller, &mut change, &mut fileset, directory, new)?;
        anode.nlink = 0;
        self.orphan(fileset.guard(), &mut change, &mut anode)?;
        fileset.write_anode(&mut change, &anode)?;
        change.admit(is_exempt(caller))?;
        // V1: the vnode is there, locked, before anybody can find the anode on its page.
        let child = Arc::new(Vnode::new(self.ino(anode.number), anode));
        let mut child_state = child.state.write();
        self.table.insert(Arc::clone(&child));
        self.table.mark_linkable(child.ino);
        let applied = change.end();
        fileset.settle(applied.lsn);
        child_state.class = applied.class;
        attr_of(self, &child_state)
    }

    /// Takes a file out of the orphan list that is about to get its first name. One whose truncate
    /// is not finished stays in the list for that (F2).
    pub(crate) fn unorphan(
        &self,
        fileset: &mut Lazy<'_>,
        change: &mut Change<'_>,
        state: &VnodeState,
        anode: &mut Anode,
    ) -> FsResult<()> {
        if !self.table.is_linkable(self.ino(anode.number)) {
            return Err(FsError::NotFound);
        }
        if state.is_being_cut {
            return Ok(());
        }
        let Some(slot) = anode.orphan_slot.take() else { return Ok(()) };
        fileset.guard().remove_orphan(&self.store, change, slot)
    }
}
