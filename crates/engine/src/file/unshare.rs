//! Copy-on-write of metadata pages shared with snapshots.
//!
//! A change that needs a shared page is abandoned with [`FsError::Shared`]. Its caller, without
//! locks, has the page and its path copied, and repeats the operation. Each repetition meets one
//! shared page less. So a change reserves no more log credits than without snapshots, and only the
//! first change of a path pays for the copies.
//!
//! The copy is a separate transaction behind the closed gate. Readers continue in the old pages.

use format::anode::{Anode, AnodeKind, QUOTA_ANODE, StorageMode};
use format::fileset::ANODE_TABLE_ANODE;
use format::ids::Epoch;
use format::page::{PageKind, PageOwner};

use runtime::planted;

use crate::alloc::Urgency;
use crate::error::{FsError, FsResult};
use crate::file::{Core, Files, OpenFileset, VnodeState};
use crate::journal::LogCredits;
use crate::store::Change;

/// Most pages copied at once, except in maps of billions of blocks: two paths of three map pages,
/// and their leaves.
pub(crate) const PATH_PAGES: u64 = 8;
/// Most repetitions without progress: a new snapshot shares the same page again, or an account is
/// missing again.
const TRIES_MAX: usize = 1024;

impl Core {
    /// Repeats `operation` after each copied page or added account. Called with no lock held.
    pub(crate) fn with_unsharing<T>(
        &self,
        fileset: &OpenFileset,
        urgency: Urgency,
        mut operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        for _ in 0..TRIES_MAX {
            match self.with_unsharing_pages(fileset, urgency, &mut operation) {
                Err(FsError::Uncounted { kind, id }) => {
                    self.quotas().add_account(fileset, (kind, id))?
                }
                other => return other,
            }
        }
        Err(FsError::TryLater)
    }

    pub(crate) fn with_unsharing_pages<T>(
        &self,
        fileset: &OpenFileset,
        urgency: Urgency,
        mut operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        // Copies of different pages are progress: a whole file may meet all pages of its map.
        let (mut last, mut tries) = (None, 0);
        while tries < TRIES_MAX {
            match operation() {
                Err(FsError::Shared { kind, owner }) => {
                    let is_further = last.replace((kind, owner)) != Some((kind, owner));
                    tries = if is_further { 0 } else { tries + 1 };
                    self.space_reclaim().with_reclaim(|| {
                        self.check_space_of(fileset, PATH_PAGES, urgency)?;
                        self.unshare(fileset, (kind, owner))
                    })?;
                }
                other => return other,
            }
        }
        Err(FsError::TryLater)
    }

    /// Copies a shared page and its path. Called with no lock held.
    pub(crate) fn unshare(
        &self,
        fileset: &OpenFileset,
        page: (PageKind, PageOwner),
    ) -> FsResult<()> {
        loop {
            let mut pot = self.store.fill_pot(1)?;
            if let Some(_closed) = fileset.gate.try_close() {
                // GT1: the epoch is newer than every snapshot's, so the copies are unshared.
                let change = pot.begin(LogCredits::LARGE, Epoch(0)).ok_or(FsError::TryLater)?;
                return self.unshare_alone(fileset, change, page);
            }
            // GT4: returns the log credits first, since the closer of the gate may be waiting for
            // the log.
            drop(pot);
            fileset.gate.wait_until_open();
        }
    }

    /// Copies a shared page in `change`, with the gate closed by the caller.
    pub(super) fn unshare_alone(
        &self,
        fileset: &OpenFileset,
        mut change: Change<'_>,
        (kind, owner): (PageKind, PageOwner),
    ) -> FsResult<()> {
        let shared_epoch = fileset.gate.shared_epoch();
        let page = (kind, owner);
        // The fileset may have been deleted or restored since.
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
        if let Some(anode) = copied.filter(|_| !planted!(CopyNotToldToFile)) {
            self.tell_copied(fileset, &anode, applied.class);
        }
        Ok(())
    }

    /// Puts the copied map into the file's vnode. Its lock waits for readers of the file and of its
    /// attribute containers, since the old page may be freed next.
    fn tell_copied(&self, fileset: &OpenFileset, copied: &Anode, class: u64) {
        let is_internal = copied.kind == AnodeKind::Internal;
        let number = if is_internal { copied.parent } else { copied.number };
        let Some(vnode) = self.table.find(fileset.ino(number)) else { return };
        let mut state = vnode.state.write();
        if !is_internal {
            take_root(&mut state, copied, class);
        }
    }

    pub(crate) fn shared_epoch_of(&self, state: &VnodeState) -> Epoch {
        let fileset = self.filesets.by_slot(state.fileset_slot);
        fileset.map_or(Epoch(0), |fileset| fileset.gate.shared_epoch())
    }
}

impl Files<'_> {
    pub(crate) fn unsharing<T>(
        &self,
        urgency: Urgency,
        operation: impl FnMut() -> FsResult<T>,
    ) -> FsResult<T> {
        self.with_unsharing(self.fileset, urgency, operation)
    }

    /// Refuses a change in memory while the anode's page is shared: at the later write there might
    /// be no room to copy the page.
    pub(super) fn check_anode_own(&self, state: &VnodeState) -> FsResult<()> {
        let shared_epoch = self.fileset.gate.shared_epoch();
        if shared_epoch == Epoch(0) {
            return Ok(());
        }
        self.fileset.anodes.check_own(&self.store, state.anode()?.number, shared_epoch)
    }
}

/// Replaces only the map: the rest of the anode in memory may be newer.
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
    use crate::api::{Caller, FileSystem, XattrMode};
    use crate::container::content_owner;
    use crate::transfer::leave::tests::{part, pool_with_one};

    /// Time within which the copy would have ended if it did not wait for readers.
    const NOT_WAITING: Duration = Duration::from_millis(300);

    /// Goal: a copy waits for readers of the old page, which may be freed as soon as the gate
    /// opens.
    #[test]
    fn who_copies_attributes_waits_for_their_readers() {
        let (pool, _) = pool_with_one();
        let (core, root) = (pool.core(), pool.root());
        let (value, mode) = ([7; 2000], XattrMode::Set);
        pool.setxattr(&Caller::root(), root, b"user.x", &value, mode, None).expect("it fits");
        core.snapshotter()
            .create_snapshot(&[part("root")], &part("c"), [3; 16])
            .expect("there is room");

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
