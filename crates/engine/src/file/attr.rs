//! Attributes, used space, and access times.
//!
//! The reported space counts dirty blocks as if mapped, so that an attribute cached by a client
//! stays true. Only the map pages that a large file may need are unpredictable:
//! [`Attr::blocks_may_change`] marks such a file.

use std::sync::Arc;

use format::anode::Anode;
use format::ids::Epoch;
use format::map::ROOT_POINTERS;

use crate::api::{Attr, AttributeChange, Caller, Ino, SetAttr, SetTime};
use crate::container::LeafCursor;
use crate::error::FsResult;
use crate::file::access::{
    clear_set_bits_of_chown, clear_set_bits_of_write, is_exempt, set_owner_and_mode,
};
use crate::file::unit::BlockSpan;
use crate::file::write::StateGuard;
use crate::file::{Core, Files, Vnode, VnodeState, attr_of, seen, tell, to_disk};
use crate::journal::LogCredits;
use crate::segment::Block;
use crate::store::Change;

const RELATIME_SECONDS: i64 = 24 * 60 * 60;
/// Most files with dirty access times in memory. Beyond it, a reader writes its file's access time
/// at once. A fast reader dirties about as many between two flusher ticks, at 1 KiB each.
pub const DIRTY_FILES_MAX: usize = 8192;

impl Core {
    pub(super) fn blocks_512(&self, fragments: u64) -> u64 {
        fragments * self.store.geometry().fragment_bytes() / 512
    }

    /// Adjusts the space in `attr` for dirty blocks. Cold, since most files have none.
    #[cold]
    pub(super) fn count_waiting(&self, state: &VnodeState, attr: &mut Attr) -> FsResult<()> {
        let anode = state.anode()?;
        let (mut leaves, mut fragments) = (LeafCursor::new(&self.store), anode.fragments);
        for block in state.pending.values() {
            let BlockSpan { start, shift } = block.span();
            let (before, after) = leaves.held_by_version(anode, start, shift, block.fragments())?;
            fragments = fragments.saturating_add(after).saturating_sub(before);
        }
        attr.blocks_512 = self.blocks_512(fragments);
        attr.blocks_may_change = !is_all_in_root(state, anode);
        Ok(())
    }
}

fn is_chown(caller: &Caller, anode: &Anode, change: &SetAttr) -> bool {
    change.uid.is_some() || change.gid.is_some() || names_nobody(caller, anode, change)
}

/// Whether the change is a chown(2) without owner and group, by a caller permitted to make it.
fn names_nobody(caller: &Caller, anode: &Anode, change: &SetAttr) -> bool {
    *change == SetAttr::default() && [0, anode.uid].contains(&caller.uid)
}

impl Files<'_> {
    pub(crate) fn attributes(&self, ino: Ino) -> FsResult<Attr> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        attr_of(self, &state)
    }

    pub(crate) fn set_attributes(
        &self,
        caller: &Caller,
        ino: Ino,
        change: &SetAttr,
        mut around: Option<&mut AttributeChange>,
    ) -> FsResult<Attr> {
        self.check_writable()?;
        let vnode = self.vnode(ino)?;
        // Checked before any wait for the log, and again under the lock.
        self.check_change(caller, vnode.state.read().anode()?, change)?;
        if change.size_bytes.is_some() || is_chown(caller, vnode.state.read().anode()?, change) {
            self.xattrs().drop_capability(ino, &vnode)?;
        }
        match change.size_bytes {
            None => self.set_anode(caller, &vnode, change, around),
            // The owner changes first, so that the blocks are freed from the accounts of the new
            // owner.
            Some(_) if gives_away(change) && self.is_counted() => {
                let (uid, gid, project) = (change.uid, change.gid, change.project);
                let owner = SetAttr { uid, gid, project, ..SetAttr::default() };
                self.set_anode(caller, &vnode, &owner, None)?;
                let rest = SetAttr { uid: None, gid: None, project: None, ..*change };
                self.set_attributes(caller, ino, &rest, around)
            }
            Some(size_bytes) => self.space_reclaim().with_reclaim(|| {
                self.truncate(caller, &vnode, size_bytes, change, around.as_deref_mut())
            }),
        }
    }

    fn is_counted(&self) -> bool {
        self.fileset.anodes.quotas.is_switched_on()
    }

    fn set_anode(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        change: &SetAttr,
        around: Option<&mut AttributeChange>,
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

    /// Starts a change that may move the file to another account. Dirty blocks are charged to the
    /// old account, so they are mapped first.
    pub(super) fn begin_moving<'v>(
        &self,
        vnode: &'v Arc<Vnode>,
        moves: bool,
    ) -> FsResult<(Change<'_>, StateGuard<'v>)> {
        loop {
            let tx = self.begin(LogCredits::SMALL)?;
            let state = vnode.state.write();
            if !moves || state.pending.is_empty() || !self.fileset.anodes.quotas.is_switched_on() {
                return Ok((tx, state));
            }
            drop((state, tx));
            self.writeback().install_all(vnode)?;
        }
    }

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

    /// relatime: a read renews the access time if it is not newer than mtime and ctime, or a day
    /// old. The time stays in memory until the next change or flush.
    ///
    /// Must precede the reply, since clients that cache attributes fetch the access time once,
    /// after the read.
    pub(crate) fn touch_atime(
        &self,
        caller: &Caller,
        vnode: &Arc<Vnode>,
        is_read: &dyn Fn(&VnodeState) -> bool,
    ) {
        let is_kept = self.options.no_atime || self.options.is_read_only;
        if caller.keeps_atime || is_kept || self.fileset.is_snapshot() {
            return;
        }
        let now = self.now();
        let is_due = |state: &VnodeState| {
            state.anode.as_ref().is_some_and(|anode| {
                // With snapshots only after a day, since a renewal copies the anode's shared page.
                let has_snapshots = self.fileset.gate.shared_epoch() > Epoch(0);
                let is_old = !has_snapshots && anode.atime <= anode.mtime.max(anode.ctime)
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
                // Throttles readers of many files, whose vnodes stay in memory until written.
                if let Err(error) = self.writeback().install_all(vnode) {
                    tracing::debug!(%error, "an access time waits in memory");
                }
            }
        }
    }
}

fn gives_away(change: &SetAttr) -> bool {
    change.uid.is_some() || change.gid.is_some() || change.project.is_some()
}

/// Whether the anode has room for the pointers of all dirty blocks: then no map page is needed.
fn is_all_in_root(state: &VnodeState, anode: &Anode) -> bool {
    let is_in_root = |block: &Arc<Block>| {
        let BlockSpan { start, shift } = block.span();
        shift == anode.block_shift && start >> shift < ROOT_POINTERS
    };
    anode.height == 0 && state.pending.values().all(is_in_root)
}
