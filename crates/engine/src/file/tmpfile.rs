//! New unlinked files (`O_TMPFILE`), and their first link.
//!
//! # Crashes
//!
//! The file is in the orphan list from the start, for recovery to free it. Its first name, link
//! count and removal from the list are one transaction.

use crate::file::Names;
use std::sync::Arc;

use format::anode::Anode;

use crate::api::{Attr, Caller, FileKind, Ino, NewInode};
use crate::error::{FsError, FsResult};
use crate::file::access::{SEARCH, WRITE, is_exempt};
use crate::file::names::{check_new_inode, check_owner};
use crate::file::xattr::LazyFilesetGuard;
use crate::file::{Vnode, VnodeState, attr_of};
use crate::store::Change;

impl Names<'_> {
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
        self.space_reclaim().with_reclaim(|| self.make_nameless_once(caller, parent, new))
    }

    fn make_nameless_once(&self, caller: &Caller, parent: Ino, new: NewInode) -> FsResult<Attr> {
        let vnode = self.vnode(parent)?;
        let (mut change, state) = self.begin_making(&vnode)?;
        let directory = self.searched(caller, &state)?;
        self.check_access(caller, directory, WRITE | SEARCH)?;
        check_owner(caller, directory, &new)?;
        self.check_room()?;
        let mut fileset = LazyFilesetGuard::new(self);
        let mut anode = self.make_anode(caller, &mut change, &mut fileset, directory, new)?;
        anode.nlink = 0;
        self.orphan(fileset.guard(), &mut change, &mut anode)?;
        fileset.write_anode(&mut change, &anode)?;
        change.admit(is_exempt(caller))?;
        // V1: the locked vnode is in the table before the anode can be found on its page.
        let child = Arc::new(Vnode::new(self.ino(anode.number), anode));
        let mut child_state = child.state.write();
        self.table.insert(Arc::clone(&child));
        self.table.mark_linkable(child.ino);
        let applied = change.end();
        fileset.settle(applied.lsn);
        child_state.class = applied.class;
        attr_of(self, &child_state)
    }

    /// Takes a file out of the orphan list for its first link, unless a truncate in progress keeps
    /// it there (F2).
    pub(crate) fn unorphan(
        &self,
        fileset: &mut LazyFilesetGuard<'_>,
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
