//! Attributes: read, set, the space that a file takes, and the access times that reading sets.
//!
//! A program is told the space that the file takes once all that waits is stored, so that a number
//! which somebody keeps stays true: a block that waits takes the place of what the map has there,
//! and lies in the room that was reserved for it. What can't be known before are the pages that the
//! map of a large file grows by; whoever keeps attributes is told so ([`Attr::blocks_may_change`]).

use std::sync::Arc;

use format::anode::Anode;
use format::ids::Epoch;
use format::map::ROOT_POINTERS;

use super::access::{
    clear_set_bits_of_chown, clear_set_bits_of_write, is_exempt, set_owner_and_mode,
};
use super::api::{Around, Attr, Caller, Ino, SetAttr, SetTime};
use super::file::StateGuard;
use super::unit::Span;
use super::{Core, Files, Vnode, VnodeState, attr_of, seen, tell, to_disk};
use crate::container::Leaves;
use crate::error::FsResult;
use crate::journal::Reservation;
use crate::segment::Block;
use crate::store::Change;

/// Seconds after which relatime renews an access time all the same: a day.
const RELATIME_SECONDS: i64 = 24 * 60 * 60;
/// Files with new access times in memory past which a reader writes its own at once: what a fast
/// reader of many small files leaves behind between two ticks, at about 1 KiB each.
pub const DIRTY_FILES_MAX: usize = 8192;

impl Core {
    pub(super) fn blocks_512(&self, fragments: u64) -> u64 {
        fragments * self.store.geometry().fragment_bytes() / 512
    }

    /// Corrects what `attr` tells of space by the blocks that wait: most files have none, and their
    /// attributes are told often.
    #[cold]
    pub(super) fn count_waiting(&self, state: &VnodeState, attr: &mut Attr) -> FsResult<()> {
        let anode = state.anode()?;
        let (mut leaves, mut fragments) = (Leaves::new(&self.store), anode.fragments);
        for block in state.pending.values() {
            let Span { start, shift } = block.span();
            let (before, after) = leaves.held_by_version(anode, start, shift, block.fragments())?;
            fragments = fragments.saturating_add(after).saturating_sub(before);
        }
        attr.blocks_512 = self.blocks_512(fragments);
        attr.blocks_may_change = !is_all_in_root(state, anode);
        Ok(())
    }
}

/// Whether a change is chown(2), of whatever owner and group.
fn is_chown(caller: &Caller, anode: &Anode, change: &SetAttr) -> bool {
    change.uid.is_some() || change.gid.is_some() || names_nobody(caller, anode, change)
}

/// Whether a change is chown(2) that names neither owner nor group, by a caller who may do that.
fn names_nobody(caller: &Caller, anode: &Anode, change: &SetAttr) -> bool {
    *change == SetAttr::default() && [0, anode.uid].contains(&caller.uid)
}

impl Files<'_> {
    /// Returns the attributes of a file.
    pub(crate) fn attributes(&self, ino: Ino) -> FsResult<Attr> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        attr_of(self, &state)
    }

    /// Changes attributes; see [`super::api::FileSystem::setattr`].
    pub(crate) fn set_attributes(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        mut around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        // Before anything waits for the log; asked again under the lock.
        self.check_change(caller, vnode.state.read().anode()?, change)?;
        if change.size_bytes.is_some() || is_chown(caller, vnode.state.read().anode()?, change) {
            self.drop_capability(ino, &vnode)?;
        }
        match change.size_bytes {
            None => self.set_anode(caller, &vnode, change, around),
            // Whom the blocks count for is settled before some of them go.
            Some(_) if gives_away(change) && self.is_counted() => {
                let (uid, gid, project) = (change.uid, change.gid, change.project);
                let owner = SetAttr { uid, gid, project, ..SetAttr::default() };
                self.set_anode(caller, &vnode, &owner, None)?;
                let rest = SetAttr { uid: None, gid: None, project: None, ..*change };
                self.set_attributes(caller, ino, &rest, around)
            }
            Some(size_bytes) => self.with_reclaim(|| {
                self.truncate(caller, &vnode, size_bytes, change, around.as_deref_mut())
            }),
        }
    }

    /// Whether users, groups and projects are counted.
    fn is_counted(&self) -> bool {
        self.fileset.anodes.quotas.is_switched_on()
    }

    fn set_anode(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        change: &SetAttr,
        around: Option<&mut Around>,
    ) -> FsResult<Attr> {
        let moves = gives_away(change);
        let (mut tx, mut state) = self.begin_moving(vnode, moves)?;
        let before = seen(self, &around, &state)?;
        let mut anode = state.anode()?.clone();
        self.check_change(caller, &anode, change)?;
        if names_nobody(caller, &anode, change) {
            clear_set_bits_of_chown(caller, &mut anode);
        }
        self.apply_change(caller, &mut anode, change);
        self.fileset.anodes.write_anode(&self.store, &mut tx, &anode)?;
        if moves {
            tx.admit(is_exempt(caller))?;
        }
        let applied = tx.end();
        state.anode = Some(anode);
        state.class = applied.class;
        tell(self, around, before, &state)?;
        attr_of(self, &state)
    }

    /// Starts a change of a file, which may give it to somebody else. What waits is counted for
    /// whom it belonged to when it was written, so it is installed before.
    pub(super) fn begin_moving<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
        moves: bool,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        loop {
            let tx = self.begin(Reservation::SMALL)?;
            let state = vnode.state.write();
            if !moves || state.pending.is_empty() || !self.fileset.anodes.quotas.is_switched_on() {
                return Ok((tx, state));
            }
            drop((state, tx));
            self.install_all(vnode)?;
        }
    }

    /// Sets everything but the size.
    pub(crate) fn apply_change(&self, caller: &Caller, anode: &mut Anode, change: &SetAttr) {
        let now = self.now();
        if change.size_bytes.is_some() {
            clear_set_bits_of_write(caller, anode);
            anode.mtime = now;
            anode.data_version += 1;
        }
        set_owner_and_mode(caller, anode, change);
        anode.project = change.project.unwrap_or(anode.project);
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => to_disk(time),
        };
        anode.atime = change.atime.map_or(anode.atime, time);
        anode.mtime = change.mtime.map_or(anode.mtime, time);
        anode.ctime = change.ctime.map_or(now, to_disk);
    }

    /// relatime: a read renews the access time if that is no later than the last change, or a day
    /// old. In memory: it is written with the next change, or when the file is flushed.
    ///
    /// Before the answer: who keeps attributes asks for the access time behind it, once. Whether it
    /// is read at all, `is_read` says.
    pub(crate) fn touch_atime(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        is_read: &dyn Fn(&VnodeState) -> bool,
    ) {
        let is_kept = self.options.no_atime || self.options.is_read_only;
        if caller.keeps_atime || is_kept || self.fileset.is_clone() {
            return;
        }
        let now = self.now();
        let is_due = |state: &VnodeState| {
            state.anode.as_ref().is_some_and(|anode| {
                // Where clones are, the first time would copy the page that the anode is in.
                let has_clones = self.fileset.gate.shared_epoch() > Epoch(0);
                let is_old = !has_clones && anode.atime <= anode.mtime.max(anode.ctime)
                    || now.seconds.saturating_sub(anode.atime.seconds) >= RELATIME_SECONDS;
                is_old && is_read(state)
            })
        };
        if !is_due(&vnode.state.read()) {
            return;
        }
        let mut state = vnode.state.write();
        if is_due(&state)
            && let Some(anode) = state.anode.as_mut()
        {
            anode.atime = now;
            state.is_attr_dirty = true;
            self.note_dirty(vnode);
            let is_alone = state.pending.is_empty();
            drop(state);
            if is_alone && self.table.dirty_count() > DIRTY_FILES_MAX {
                // Who reads many files pays for it: each of them stays in memory till then.
                if let Err(error) = self.install_all(vnode) {
                    tracing::debug!(%error, "an access time waits in memory");
                }
            }
        }
    }
}

/// Whether a file may count for somebody else afterwards.
fn gives_away(change: &SetAttr) -> bool {
    change.uid.is_some() || change.gid.is_some() || change.project.is_some()
}

/// Whether all blocks that wait have their pointers in the anode, which then needs no map page.
fn is_all_in_root(state: &VnodeState, anode: &Anode) -> bool {
    let is_in_root = |block: &Arc<Block>| {
        let Span { start, shift } = block.span();
        shift == anode.block_shift && start >> shift < ROOT_POINTERS
    };
    anode.height == 0 && state.pending.values().all(is_in_root)
}
