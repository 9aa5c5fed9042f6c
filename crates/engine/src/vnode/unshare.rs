//! What clones hold too is copied before it is changed.
//!
//! A change that comes to a page of theirs is given up, with [`FsError::Shared`]. Whoever started
//! it, and holds nothing any more, has the page copied, with what leads to it from the entry of the
//! fileset, and does the operation again: each time there is one page less that is shared. So a
//! change reserves no more than it did without clones, and the first touch of a path pays once.
//!
//! The copying is a transaction of its own, behind the closed gate: nobody else changes the fileset
//! meanwhile, and the old pages, which stay as they are, serve whoever reads.

use format::anode::{Anode, AnodeKind, QUOTA_ANODE, StorageMode};
use format::fileset::ANODE_TABLE_ANODE;
use format::ids::Epoch;
use format::page::{PageKind, PageOwner};

use runtime::planted::{self, Planted};

use super::{Core, Files, Fileset, VnodeState};
use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::journal::Reservation;
use crate::store::Change;

/// Pages that are copied at once, at most, but in maps of billions of blocks: those of two ways of
/// three map pages each, and what they lead to.
pub(super) const PATH_PAGES: u64 = 8;
/// Times that an operation is begun again without getting further: for a page that was copied for
/// it just before, because somebody made a clone again, or for an account.
const TRIES_MAX: usize = 1024;

impl Core {
    /// Does `operation`, and again each time that a page had to be copied for it. Called with no
    /// lock held.
    pub(crate) fn with_unsharing<T>(
        &self,
        fileset: &Fileset,
        urgency: Urgency,
        mut operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        for _ in 0..TRIES_MAX {
            match self.with_unsharing_pages(fileset, urgency, &mut operation) {
                Err(FsError::Uncounted { kind, id }) => self.add_account(fileset, (kind, id))?,
                other => return other,
            }
        }
        Err(FsError::TryLater)
    }

    /// As [`Core::with_unsharing`], of what counts for nobody.
    pub(super) fn with_unsharing_pages<T>(
        &self,
        fileset: &Fileset,
        urgency: Urgency,
        mut operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        // One that goes through a whole file comes to as many shared pages as its map has.
        let (mut last, mut tries) = (None, 0);
        while tries < TRIES_MAX {
            match operation() {
                Err(FsError::Shared { kind, owner }) => {
                    let is_further = last.replace((kind, owner)) != Some((kind, owner));
                    let is_counted = !is_further || planted::is(Planted::EachCopyIsATry);
                    tries = if is_counted { tries + 1 } else { 0 };
                    self.with_reclaim(|| {
                        self.check_space_of(fileset, PATH_PAGES, urgency)?;
                        self.unshare(fileset, (kind, owner))
                    })?;
                }
                other => return other,
            }
        }
        Err(FsError::TryLater)
    }

    /// Copies a page of a fileset that clones hold too, and what leads to it. Called with no lock
    /// held.
    pub(super) fn unshare(&self, fileset: &Fileset, page: (PageKind, PageOwner)) -> FsResult<()> {
        loop {
            if planted::is(Planted::CloserWaitsWithLog) {
                let change = self.store.begin_pool(Reservation::LARGE)?;
                let _closed = fileset.gate.close();
                return self.unshare_alone(fileset, change, page);
            }
            let mut pot = self.store.fill_pot(1)?;
            if let Some(_closed) = fileset.gate.try_close() {
                // GT1: its epoch is younger than every clone's, which holds nothing of the copies.
                let change = pot.begin(Reservation::LARGE, Epoch(0)).ok_or(FsError::TryLater)?;
                return self.unshare_alone(fileset, change, page);
            }
            // GT4: who has closed it may wait for the log.
            drop(pot);
            fileset.gate.wait_until_open();
        }
    }

    /// As [`Core::unshare`], in `change`, for whoever keeps the gate closed.
    pub(super) fn unshare_alone(
        &self,
        fileset: &Fileset,
        mut change: Change<'_>,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<()> {
        let shared_epoch = fileset.gate.shared_epoch();
        let page = (kind, owner);
        // Since its page was met it may have been deleted, or restored.
        let mut guard = fileset.anodes.lock_current()?;
        if owner.anode == ANODE_TABLE_ANODE {
            guard.unshare_table(&self.store, &mut change, shared_epoch, page)?;
            let applied = change.end();
            guard.settle(applied.lsn);
            return Ok(());
        }
        let copied = guard.unshare_container(&self.store, &mut change, shared_epoch, page)?;
        let applied = change.end();
        if let Some(container) = copied.as_ref().filter(|it| it.number == QUOTA_ANODE) {
            fileset.anodes.quotas.set_container(container);
        }
        guard.settle(applied.lsn);
        if let Some(anode) = copied.filter(|_| !planted::is(Planted::CopyNotToldToFile)) {
            self.tell_copied(fileset, &anode, applied.class);
        }
        Ok(())
    }

    /// The map of `copied` begins elsewhere: tells the file, and waits for those who read by the
    /// old one. A container of attributes is read under the lock of the file that has it.
    fn tell_copied(&self, fileset: &Fileset, copied: &Anode, class: u64) {
        let is_internal = copied.kind == AnodeKind::Internal;
        let number = if is_internal { copied.parent } else { copied.number };
        let Some(vnode) = self.table.find(fileset.ino(number)) else { return };
        let mut state = vnode.state.write();
        if !is_internal {
            take_root(&mut state, copied, class);
        }
    }

    /// Returns the epoch up to which what was born belongs to clones, too, of the fileset that a
    /// file is in.
    pub(super) fn shared_epoch_of(&self, state: &VnodeState) -> Epoch {
        let fileset = self.filesets.by_slot(state.fileset_slot);
        fileset.map_or(Epoch(0), |fileset| fileset.gate.shared_epoch())
    }
}

impl Files<'_> {
    /// As [`Core::with_unsharing`], of this fileset.
    pub(crate) fn unsharing<T>(
        &self,
        urgency: Urgency,
        operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        self.with_unsharing(self.fileset, urgency, operation)
    }

    /// Refuses to change a file in memory whose anode lies in a page that clones hold too: there
    /// may be no room for a copy of that when the file is written.
    pub(super) fn check_anode_own(&self, state: &VnodeState) -> FsResult<()> {
        let shared_epoch = self.fileset.gate.shared_epoch();
        if shared_epoch == Epoch(0) {
            return Ok(());
        }
        self.fileset.anodes.check_own(&self.store, state.anode()?.number, shared_epoch)
    }
}

/// The map of a file begins elsewhere: everything else of the anode in memory, which may not be
/// written yet, stays.
fn take_root(state: &mut VnodeState, copied: &Anode, class: u64) {
    let Some(anode) = state.anode.as_mut() else { return };
    if anode.storage == StorageMode::Blocked && copied.storage == StorageMode::Blocked {
        anode.root = copied.root;
    }
    state.class = class;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;
    use crate::container::content_owner;
    use crate::vnode::api::{Caller, FileSystem, XattrMode};
    use crate::vnode::leave::tests::{part, pool_with_one};

    /// Who does not wait has ended long before.
    const NOT_WAITING: Duration = Duration::from_millis(300);

    /// Goal: attributes of a file are read from a page that is copied; the old one may be freed as
    /// soon as the gate opens.
    #[test]
    fn who_copies_attributes_waits_for_their_readers() {
        let (pool, _) = pool_with_one();
        let (core, root) = (pool.core(), pool.root());
        let (value, mode) = ([7; 2000], XattrMode::Set);
        pool.setxattr(&Caller::root(), root, b"user.x", &value, mode, None).expect("it fits");
        core.create_clone(&[part("root")], &part("c"), [3; 16]).expect("there is room");

        let fileset = &core.filesets.main;
        let files = Files { core, fileset };
        let vnode = files.vnode(root).expect("it is there");
        let reader = vnode.state.read();
        let number = reader.anode().expect("it is there").xattr;
        let container = fileset.anodes.read_anode(&core.store, number).expect("it can be read");
        let owner = content_owner(&container.expect("the value is long"), 0);
        std::thread::scope(|scope| {
            let (tell, told) = channel();
            scope.spawn(move || {
                tell.send(()).expect("somebody waits");
                core.unshare(fileset, (PageKind::Attributes, owner)).expect("there is room");
                tell.send(()).expect("somebody waits");
            });
            told.recv().expect("it has begun");
            let waited = told.recv_timeout(NOT_WAITING);
            assert_eq!(waited, Err(RecvTimeoutError::Timeout), "somebody reads");
            drop(reader);
            told.recv().expect("nobody reads");
        });
    }
}
