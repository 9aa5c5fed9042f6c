//! Unlinked files: freed after their last reference, or by recovery.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use format::anode::{Anode, StorageMode};
use format::ids::AnodeNo;
use runtime::if_planted;

use crate::alloc::Urgency;
use crate::container::ContainerContent;
use crate::error::{FsError, FsResult};
use crate::file::flush::FILES_COUNTED_PER_CHANGE;
use crate::file::table::ReleaseOutcome;
use crate::file::xattr::has_containers;
use crate::file::{Core, Files, Vnode, VnodeState};
use crate::fileset_table::FilesetGuard;
use crate::journal::LogCredits;
use crate::store::Change;
use crate::sync::Mutex;

/// Small files freed in one transaction, far below its limits.
const REAP_AT_ONCE: usize = 8;

/// Batch of small unreferenced unlinked files in the orphan list. Freeing them together costs
/// little more than freeing one. Lookups do not find them.
#[derive(Debug, Default)]
pub(crate) struct DeferredDeletes {
    numbers: Mutex<BTreeSet<AnodeNo>>,
    has_any: AtomicBool,
}

impl DeferredDeletes {
    pub(crate) fn contains(&self, number: AnodeNo) -> bool {
        self.has_any.load(Ordering::Acquire) && self.numbers.lock().contains(&number)
    }

    fn add(&self, number: AnodeNo) -> BTreeSet<AnodeNo> {
        let mut numbers = self.numbers.lock();
        numbers.insert(number);
        self.has_any.store(true, Ordering::Release);
        if numbers.len() < REAP_AT_ONCE {
            return BTreeSet::new();
        }
        self.has_any.store(false, Ordering::Release);
        std::mem::take(&mut numbers)
    }

    fn take(&self) -> BTreeSet<AnodeNo> {
        let mut numbers = self.numbers.lock();
        self.has_any.store(false, Ordering::Release);
        std::mem::take(&mut numbers)
    }
}

fn is_small(state: &VnodeState) -> bool {
    let is_bare = |anode: &Anode| anode.storage == StorageMode::Inline && !has_containers(anode);
    state.pending.is_empty() && state.anode.as_ref().is_some_and(is_bare)
}

impl Core {
    pub(crate) fn reap_all_doomed(&self) {
        self.all_files().for_each(|files| files.reap_doomed());
    }

    pub(crate) fn kill_pending(&self, state: &mut crate::file::VnodeState) {
        for block in std::mem::take(&mut state.pending).values() {
            self.segments.kill(block);
        }
        state.is_attr_dirty = false;
    }
}

impl Files<'_> {
    /// F2: adds an unlinked file to the orphan list.
    pub(crate) fn orphan(
        &self,
        fileset: &mut FilesetGuard<'_>,
        change: &mut Change<'_>,
        anode: &mut Anode,
    ) -> FsResult<()> {
        self.table.mark_nameless(self.ino(anode.number));
        if anode.orphan_slot.is_some() {
            // A truncate in progress has put the file into the list.
            return Ok(());
        }
        if_planted!(OrphanForgotten, return Ok(()));
        let slot = fileset.add_orphan(&self.store, change, anode.number)?;
        anode.orphan_slot = Some(slot);
        Ok(())
    }

    /// Frees an unreferenced unlinked file, in several transactions if necessary.
    pub(crate) fn reap(&self, number: AnodeNo) -> FsResult<()> {
        self.unsharing(Urgency::System, || self.free_file(number))
    }

    fn free_file(&self, number: AnodeNo) -> FsResult<()> {
        loop {
            let vnode = match self.vnode_of(number) {
                Err(FsError::Stale) => return Ok(()),
                other => other?,
            };
            let mut change = self.begin(LogCredits::LARGE)?;
            if self.fileset.is_leaving() {
                return Ok(());
            }
            let mut state = vnode.state.write();
            let Some(anode) = state.anode.as_ref() else { return Ok(()) };
            if !self.is_forgotten(anode) {
                return Ok(());
            }
            let mut anode = anode.clone();
            let content = ContainerContent::of(&anode);
            let is_inline = anode.storage == StorageMode::Inline;
            let mut is_done =
                is_inline || self.store.truncate_blocks(&mut change, &mut anode, 0, content)?;
            let mut guard = None;
            if is_done && has_containers(&anode) {
                let fileset = guard.insert(self.fileset.anodes.lock());
                is_done = self.xattrs().free_attributes(&mut change, fileset, &mut anode)?;
            }
            if !is_done {
                anode.size_bytes = 0;
                self.fileset.anodes.write_anode(&self.store, &mut change, &anode)?;
                let applied = change.end();
                if let Some(guard) = guard {
                    guard.settle(applied.lsn);
                }
                self.kill_pending(&mut state);
                state.anode = Some(anode);
                state.class = applied.class;
                continue;
            }
            let mut fileset = guard.unwrap_or_else(|| self.fileset.anodes.lock());
            if let Some(slot) = anode.orphan_slot {
                fileset.remove_orphan(&self.store, &mut change, slot)?;
            }
            fileset.free_anode(&self.store, &mut change, number)?;
            let applied = change.end();
            fileset.settle(applied.lsn);
            self.kill_pending(&mut state);
            state.anode = None;
            drop(state);
            self.table.remove(&vnode);
            return Ok(());
        }
    }

    pub(crate) fn forget(&self, ino: crate::api::Ino, count: u64) {
        let Ok(number) = self.number(ino) else { return };
        let ReleaseOutcome::Nameless(vnode) = self.table.drop_references(ino, count) else {
            return;
        };
        if self.options.is_read_only || self.fileset.is_snapshot() {
            return;
        }
        let is_nameless = |anode: &Anode| anode.nlink == 0;
        if let Some(vnode) = vnode {
            let is_doomed = vnode.state.read().anode.as_ref().is_some_and(is_nameless);
            if is_doomed {
                self.doom(&vnode);
            }
        } else {
            let read = self.fileset.anodes.read_anode(&self.store, number);
            if matches!(read, Ok(Some(anode)) if is_nameless(&anode)) {
                self.reap_if_possible(number);
            }
        }
    }

    /// Frees an unreferenced unlinked file, or batches it.
    pub(crate) fn doom(&self, vnode: &Vnode) {
        if is_small(&vnode.state.read()) {
            self.reap_together(&self.fileset.doomed.add(vnode.number));
        } else {
            self.reap_if_possible(vnode.number);
        }
    }

    pub(crate) fn reap_doomed(&self) {
        self.reap_together(&self.fileset.doomed.take());
    }

    /// Frees a batch, after an error one by one: a damaged file must not affect others.
    fn reap_together(&self, numbers: &BTreeSet<AnodeNo>) {
        if self.fileset.anodes.quotas.is_on() && numbers.len() > FILES_COUNTED_PER_CHANGE {
            let numbers: Vec<AnodeNo> = numbers.iter().copied().collect();
            for some in numbers.chunks(FILES_COUNTED_PER_CHANGE) {
                self.reap_together(&some.iter().copied().collect());
            }
            return;
        }
        if numbers.is_empty() {
            return;
        }
        let left = self.reap_small(numbers);
        let left = left.unwrap_or_else(|_| numbers.iter().copied().collect());
        left.into_iter().for_each(|number| self.reap_if_possible(number));
    }

    /// Frees those of `numbers` that are still small, unlinked and unreferenced. Returns the
    /// others.
    fn reap_small(&self, numbers: &BTreeSet<AnodeNo>) -> FsResult<Vec<AnodeNo>> {
        let vnodes = numbers.iter().map(|number| self.vnode_of(*number));
        let vnodes = vnodes.collect::<FsResult<Vec<_>>>()?;
        let mut change = self.begin(LogCredits::LARGE)?;
        if self.fileset.is_leaving() {
            return Ok(Vec::new());
        }
        // LOCK: files by rising number.
        let locked = vnodes.iter().map(|vnode| (vnode, vnode.state.write()));
        let (mut states, left): (Vec<_>, Vec<_>) = locked.partition(|(_, state)| {
            is_small(state) && state.anode().is_ok_and(|anode| self.is_forgotten(anode))
        });
        // Left over: files that have got a name, a reference or content since.
        let left: Vec<AnodeNo> = left.into_iter().map(|(vnode, _)| vnode.number).collect();
        let mut fileset = self.fileset.anodes.lock();
        let anodes = || states.iter().filter_map(|(_, state)| state.anode.as_ref());
        for slot in anodes().filter_map(|anode| anode.orphan_slot) {
            fileset.remove_orphan(&self.store, &mut change, slot)?;
        }
        let numbers: Vec<AnodeNo> = anodes().map(|anode| anode.number).collect();
        fileset.free_anodes(&self.store, &mut change, &numbers)?;
        let applied = change.end();
        fileset.settle(applied.lsn);
        for (vnode, state) in &mut states {
            state.anode = None;
            state.is_attr_dirty = false;
            self.table.remove(vnode);
        }
        Ok(left)
    }

    fn is_forgotten(&self, anode: &Anode) -> bool {
        anode.nlink == 0 && !self.table.is_referenced(self.ino(anode.number))
    }

    /// Performs [`Files::reap`], and logs a failure: the next open then frees the file.
    pub(crate) fn reap_if_possible(&self, number: AnodeNo) {
        if let Err(error) = self.reap(number) {
            let anode = number.0;
            tracing::warn!(%error, anode, "a file without a name is freed at the next open");
        }
    }

    /// Recovers after a crash: frees unlinked files, and finishes truncates. If that fails for a
    /// file, or snapshots leave no room for it, the file stays in the list, and the pool opens.
    ///
    /// # Errors
    ///
    /// The journal has failed: stop writing.
    pub(crate) fn finish_orphans(&self) -> FsResult<u64> {
        let orphans = self.fileset.anodes.orphans(&self.store).orphans;
        let count = crate::convert::wide(orphans.len());
        for (_, number) in orphans {
            if let Err(error) = self.finish_orphan(number) {
                self.store.journal.check_alive()?;
                let anode = number.0;
                tracing::warn!(%error, anode, "a file in the orphan list is kept");
            }
        }
        Ok(count)
    }

    fn finish_orphan(&self, number: AnodeNo) -> FsResult<()> {
        let vnode = match self.vnode_of(number) {
            Err(FsError::Stale) => return Ok(()),
            other => other?,
        };
        let nlink = vnode.state.read().anode()?.nlink;
        if nlink == 0 { self.reap(number) } else { self.finish_truncate(&vnode) }
    }
}

#[cfg(test)]
mod tests {
    use crate::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::file::payload::WritePayload;
    use crate::transfer::leave::tests::pool_with_one;

    /// Goal: a batched file is freed although it has grown. Method: a write through a vnode
    /// obtained before the unlink.
    #[test]
    fn a_small_file_that_grew_while_it_waited_to_be_freed_is_freed() {
        let (pool, _) = pool_with_one();
        let (caller, root) = (Caller::root(), pool.root());
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, root, b"file", new, None).expect("there is room").ino;
        let files = pool.core().main_files();
        let vnode = files.vnode(ino).expect("it is there");
        pool.unlink(&caller, root, b"file", None).expect("it is there");
        pool.forget(ino, 1);
        assert!(files.fileset.doomed.contains(vnode.number));
        let mut state = vnode.state.write();
        let data = WritePayload::Lent(&[1; 10_000]);
        files
            .writeback()
            .write_span(&mut files.writing(&mut state), 0, &data)
            .expect("there is room");
        drop(state);
        files.reap_doomed();
        assert!(vnode.state.read().anode.is_none());
    }
}
