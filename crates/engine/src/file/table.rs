//! The vnodes in memory, and the references of front ends.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::api::Ino;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::file::Vnode;
use crate::sync::Mutex;

const SHARDS: usize = 32;
/// Idle vnodes that a shard keeps in memory, about 1 KiB each.
const VNODES_PER_SHARD: usize = 2048;

#[derive(Debug)]
pub(crate) struct VnodeTable {
    shards: Vec<Mutex<VnodeShard>>,
    dirty: Mutex<DirtyFiles>,
}

/// Files with changes that are not in the journal.
#[derive(Debug, Default)]
struct DirtyFiles {
    since_ns: BTreeMap<Ino, u64>,
    failed: BTreeMap<Ino, FsError>,
}

impl DirtyFiles {
    fn remove(&mut self, ino: Ino) {
        self.since_ns.remove(&ino);
        self.failed.remove(&ino);
    }
}

#[derive(Debug, Default)]
struct VnodeShard {
    vnodes: FxHashMap<Ino, Arc<Vnode>>,
    order: std::collections::VecDeque<Ino>,
    /// References on files without a vnode (V6).
    references: FxHashMap<Ino, u64>,
    referenced_vnodes: usize,
    /// Referenced files that were never linked (`O_TMPFILE`).
    linkable: FxHashSet<Ino>,
    /// Files that are unlinked or about to be, and not freed.
    nameless: FxHashSet<Ino>,
}

/// References on a vnode, accessed only under the lock of its shard (V6).
#[derive(Debug, Default)]
pub(super) struct References(AtomicU64);

impl References {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    fn take(&self) -> u64 {
        let count = self.get();
        self.set(0);
        count
    }
}

#[derive(Debug)]
pub(crate) enum ReleaseOutcome {
    Stays,
    /// The file is to be freed if it has no name; with its vnode, if in memory.
    Nameless(Option<Arc<Vnode>>),
}

impl Default for VnodeTable {
    fn default() -> VnodeTable {
        VnodeTable {
            shards: (0..SHARDS).map(|_| Mutex::new(VnodeShard::default())).collect(),
            dirty: Mutex::default(),
        }
    }
}

impl VnodeTable {
    fn shard(&self, ino: Ino) -> &Mutex<VnodeShard> {
        &self.shards[index_wide(ino.0) % SHARDS]
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<Vnode>> {
        self.shard(ino).lock().vnodes.get(&ino).map(Arc::clone)
    }

    /// V1: loads a vnode under the lock of its shard.
    pub(crate) fn find_or_load(
        &self,
        ino: Ino,
        load: impl FnOnce() -> FsResult<Vnode>,
    ) -> FsResult<Arc<Vnode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(vnode) = shard.vnodes.get(&ino) {
            return Ok(Arc::clone(vnode));
        }
        let vnode = Arc::new(load()?);
        shard.insert(Arc::clone(&vnode));
        Ok(vnode)
    }

    /// Returns the vnode, or the result of `read`. No vnode of the file is loaded during `read`, so
    /// that the stored anode is current (V1, V2).
    pub(crate) fn find_or_read<R>(
        &self,
        ino: Ino,
        read: impl FnOnce() -> R,
    ) -> Result<Arc<Vnode>, R> {
        let shard = self.shard(ino).lock();
        shard.vnodes.get(&ino).map(Arc::clone).ok_or_else(read)
    }

    /// Adds a new file with a reference. Replaces the vnode of a freed file with the same number.
    pub(crate) fn insert(&self, vnode: Arc<Vnode>) {
        let mut shard = self.shard(vnode.ino).lock();
        let ino = vnode.ino;
        shard.insert(vnode);
        shard.add_reference(ino);
    }

    pub(crate) fn insert_unreferenced(&self, vnode: Arc<Vnode>) {
        self.shard(vnode.ino).lock().insert(vnode);
    }

    /// Removes a freed file's vnode, but not the vnode of a newer file with this number. The
    /// caller's reference prevents eviction.
    pub(crate) fn remove(&self, vnode: &Arc<Vnode>) {
        let ino = vnode.ino;
        let mut shard = self.shard(ino).lock();
        if shard.vnodes.get(&ino).is_some_and(|found| Arc::ptr_eq(found, vnode)) {
            shard.take_vnode(ino);
            shard.nameless.remove(&ino);
            self.dirty.lock().remove(ino);
        }
    }

    /// Removes all vnodes of an unused fileset after its tree was replaced.
    pub(crate) fn remove_all_of(&self, slot: u32) {
        let is_other = |ino: &Ino| ino.slot() != slot;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let gone: Vec<Ino> =
                shard.vnodes.keys().copied().filter(|ino| !is_other(ino)).collect();
            gone.into_iter().for_each(|ino| shard.take_vnode(ino));
            shard.references.retain(|ino, _| is_other(ino));
            shard.linkable.retain(is_other);
            shard.nameless.retain(is_other);
        }
        let mut dirty = self.dirty.lock();
        dirty.since_ns.retain(|ino, _| is_other(ino));
        dirty.failed.retain(|ino, _| is_other(ino));
    }

    /// Adds a reference; returns the vnode, if in memory.
    pub(crate) fn add_reference(&self, ino: Ino) -> Option<Arc<Vnode>> {
        self.shard(ino).lock().add_reference(ino).map(Arc::clone)
    }

    /// Adds references of a front that moved here with its fileset from another pool.
    pub(crate) fn add_references(&self, ino: Ino, count: u64) {
        if count > 0 {
            self.shard(ino).lock().add_references(ino, count);
        }
    }

    pub(crate) fn drop_references(&self, ino: Ino, count: u64) -> ReleaseOutcome {
        let mut shard = self.shard(ino).lock();
        if shard.drop_references(ino, count) > 0 {
            return ReleaseOutcome::Stays;
        }
        shard.linkable.remove(&ino);
        if shard.nameless.contains(&ino) {
            ReleaseOutcome::Nameless(shard.vnodes.get(&ino).map(Arc::clone))
        } else {
            ReleaseOutcome::Stays
        }
    }

    /// Marks a file that is about to be unlinked. If the unlink is abandoned, the mark only makes
    /// lookups slower.
    pub(crate) fn mark_nameless(&self, ino: Ino) {
        self.shard(ino).lock().nameless.insert(ino);
    }

    pub(crate) fn mark_linkable(&self, ino: Ino) {
        self.shard(ino).lock().linkable.insert(ino);
    }

    pub(crate) fn mark_named(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        shard.linkable.remove(&ino);
        shard.nameless.remove(&ino);
    }

    pub(crate) fn is_linkable(&self, ino: Ino) -> bool {
        self.shard(ino).lock().linkable.contains(&ino)
    }

    pub(crate) fn is_referenced(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        match shard.vnodes.get(&ino) {
            Some(vnode) => vnode.references.get() > 0,
            None => shard.references.contains_key(&ino),
        }
    }

    pub(crate) fn references_of(&self, slot: u32) -> Vec<(Ino, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let counts = shard.vnodes.values().map(|vnode| (vnode.ino, vnode.references.get()));
            let counts = counts.chain(shard.references.iter().map(|(ino, count)| (*ino, *count)));
            all.extend(counts.filter(|(ino, count)| ino.slot() == slot && *count > 0));
        }
        // Sorted, since the order of the resulting changes must be deterministic.
        all.sort_unstable();
        all
    }

    /// V2: puts the file in the dirty list. Its dirty time is `now_ns`, unless it is in the list
    /// already.
    pub(crate) fn mark_dirty(&self, ino: Ino, now_ns: u64) {
        self.dirty.lock().since_ns.entry(ino).or_insert(now_ns);
    }

    pub(crate) fn mark_clean(&self, ino: Ino) {
        self.dirty.lock().remove(ino);
    }

    /// Notes a failed flush; the file counts as dirty since `now_ns`.
    pub(crate) fn put_off(&self, ino: Ino, now_ns: u64, error: FsError) {
        let mut dirty = self.dirty.lock();
        if let Some(since_ns) = dirty.since_ns.get_mut(&ino) {
            *since_ns = now_ns;
            dirty.failed.insert(ino, error);
        }
    }

    pub(crate) fn note_flushed(&self, ino: Ino) {
        self.dirty.lock().failed.remove(&ino);
    }

    pub(crate) fn flush_failure(&self) -> Option<FsError> {
        self.dirty.lock().failed.values().next().cloned()
    }

    pub(crate) fn dirty_since(&self, since_ns: u64) -> BTreeSet<Ino> {
        let dirty = self.dirty.lock();
        let aged = dirty.since_ns.iter().filter(|(_, since)| **since <= since_ns);
        aged.map(|(ino, _)| *ino).collect()
    }

    pub(crate) fn dirty_of(&self, slot: u32) -> BTreeSet<Ino> {
        let dirty = self.dirty.lock();
        dirty.since_ns.keys().filter(|ino| ino.slot() == slot).copied().collect()
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.lock().since_ns.len()
    }

    pub(crate) fn reference_count(&self) -> usize {
        let count_in = |shard: &VnodeShard| shard.references.len() + shard.referenced_vnodes;
        self.shards.iter().map(|shard| count_in(&shard.lock())).sum()
    }
}

impl VnodeShard {
    fn add_reference(&mut self, ino: Ino) -> Option<&Arc<Vnode>> {
        self.add_references(ino, 1)
    }

    fn add_references(&mut self, ino: Ino, count: u64) -> Option<&Arc<Vnode>> {
        let vnode = self.vnodes.get(&ino);
        if let Some(vnode) = vnode {
            let before = vnode.references.get();
            vnode.references.set(before + count);
            self.referenced_vnodes += usize::from(before == 0);
        } else {
            *self.references.entry(ino).or_insert(0) += count;
        }
        vnode
    }

    fn drop_references(&mut self, ino: Ino, count: u64) -> u64 {
        if let Some(vnode) = self.vnodes.get(&ino) {
            let before = vnode.references.get();
            let left = before.saturating_sub(count);
            vnode.references.set(left);
            self.referenced_vnodes -= usize::from(before > 0 && left == 0);
            return left;
        }
        let Entry::Occupied(mut held) = self.references.entry(ino) else { return 0 };
        let left = held.get().saturating_sub(count);
        if left == 0 {
            held.remove();
        } else {
            *held.get_mut() = left;
        }
        left
    }

    /// Removes a vnode, and keeps its references (V6).
    fn take_vnode(&mut self, ino: Ino) {
        let Some(vnode) = self.vnodes.remove(&ino) else { return };
        let count = vnode.references.take();
        if count > 0 {
            self.referenced_vnodes -= 1;
            self.references.insert(ino, count);
        }
    }

    fn insert(&mut self, vnode: Arc<Vnode>) {
        let ino = vnode.ino;
        let is_in_line = self.vnodes.contains_key(&ino);
        self.take_vnode(ino);
        if let Some(count) = self.references.remove(&ino) {
            vnode.references.set(count);
            self.referenced_vnodes += 1;
        }
        self.vnodes.insert(ino, vnode);
        if !is_in_line {
            self.order.push_back(ino);
        }
        self.bound_order();
        let mut tries = 8;
        while self.vnodes.len() > VNODES_PER_SHARD && tries > 0 {
            tries -= 1;
            self.evict_oldest();
        }
    }

    /// Drops the entries of freed files, and duplicates of reused numbers.
    fn bound_order(&mut self) {
        if self.order.len() > 2 * self.vnodes.len() + VNODES_PER_SHARD {
            let mut seen = FxHashSet::with_capacity_and_hasher(self.vnodes.len(), FxBuildHasher);
            let vnodes = &self.vnodes;
            self.order.retain(|ino| vnodes.contains_key(ino) && seen.insert(*ino));
        }
    }

    /// Evicts the oldest vnode, or moves it to the end if in use or dirty.
    fn evict_oldest(&mut self) {
        let Some(ino) = self.order.pop_front() else { return };
        let Some(vnode) = self.vnodes.get(&ino) else { return };
        let is_idle = Arc::strong_count(vnode) == 1
            && vnode.state.try_read().is_some_and(|state| !state.is_dirty() && !state.is_being_cut);
        if is_idle {
            self.take_vnode(ino);
        } else {
            self.order.push_back(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::anode::{Anode, AnodeKind};
    use format::ids::{AnodeNo, FilesetId};

    fn vnode(ino: Ino) -> Vnode {
        let anode = Anode::new(AnodeKind::Regular, AnodeNo(ino.0), FilesetId(1), 12);
        Vnode::new(ino, anode)
    }

    #[test]
    fn files_that_come_and_go_leave_nothing_in_the_line() {
        let table = VnodeTable::default();
        let ino = Ino(32);
        for _ in 0..10 * VNODES_PER_SHARD {
            let freed = Arc::new(vnode(ino));
            table.insert(Arc::clone(&freed));
            table.remove(&freed);
        }
        assert!(table.shard(ino).lock().order.len() <= VNODES_PER_SHARD + 2);
    }

    /// Method: the number is reused, and the new file held and dirty, before the removal.
    #[test]
    fn a_file_that_got_a_number_again_is_not_taken_out_for_the_one_before() {
        let table = VnodeTable::default();
        let (freed, new) = (Arc::new(vnode(Ino(32))), Arc::new(vnode(Ino(32))));
        table.insert_unreferenced(Arc::clone(&freed));
        table.insert(Arc::clone(&new));
        table.mark_dirty(new.ino, 7);
        table.mark_nameless(new.ino);
        table.remove(&freed);
        assert!(table.find(new.ino).is_some_and(|found| Arc::ptr_eq(&found, &new)));
        assert!(table.is_referenced(new.ino));
        assert_eq!(table.dirty_since(7), BTreeSet::from([new.ino]));
        assert!(matches!(table.drop_references(new.ino, 1), ReleaseOutcome::Nameless(Some(_))));
        table.remove(&new);
        assert!(table.find(new.ino).is_none());
        assert_eq!(table.dirty_count(), 0);
    }

    /// V6. Method: references on two thirds of three times as many files as a shard keeps; vnodes
    /// are evicted, reloaded, removed, and replaced.
    #[test]
    fn references_stay_when_their_vnode_goes_and_comes_again() {
        let table = VnodeTable::default();
        let files = crate::convert::wide(3 * VNODES_PER_SHARD);
        let ino_of = |nth: u64| Ino(32 + nth * crate::convert::wide(SHARDS));
        let vnode_of = |nth| vnode(ino_of(nth));
        let held = |nth: u64| nth % 3;
        let referenced = (0..files).filter(|nth| held(*nth) > 0).count();
        for nth in 0..files {
            table.insert_unreferenced(Arc::new(vnode_of(nth)));
            for _ in 0..held(nth) {
                table.add_reference(ino_of(nth)).expect("it came just now");
            }
        }
        assert!(table.find(ino_of(1)).is_none(), "its vnode went");
        let check = |what| {
            assert_eq!(table.reference_count(), referenced, "{what}");
            for nth in 0..files {
                assert_eq!(table.is_referenced(ino_of(nth)), held(nth) > 0, "{what}, {nth}");
            }
        };
        check("most vnodes went");
        (0..files).for_each(|nth| {
            table.find_or_load(ino_of(nth), || Ok(vnode_of(nth))).map(drop).expect("it loads");
        });
        check("each came once more");
        let vnodes = (0..files).step_by(5).filter_map(|nth| table.find(ino_of(nth)));
        vnodes.for_each(|freed| table.remove(&freed));
        check("some were taken out");
        (0..files).step_by(7).for_each(|nth| {
            table.insert(Arc::new(vnode_of(nth)));
            table.drop_references(ino_of(nth), 1);
        });
        check("some came under a number that was held");
        for nth in 0..files {
            table.mark_nameless(ino_of(nth));
            for left in (1..held(nth)).rev() {
                let dropped = table.drop_references(ino_of(nth), 1);
                assert!(matches!(dropped, ReleaseOutcome::Stays), "{nth} has {left} left");
            }
            let dropped = table.drop_references(ino_of(nth), 1);
            assert!(matches!(dropped, ReleaseOutcome::Nameless(_)), "{nth} has none left");
        }
        assert_eq!(table.reference_count(), 0);
    }

    /// Method: three times as many files as a shard keeps.
    #[test]
    fn idle_files_are_forgotten_and_held_ones_are_not() {
        let table = VnodeTable::default();
        let vnode_of = |nth: usize| Arc::new(vnode(Ino(32 + crate::convert::wide(nth * SHARDS))));
        let held = vnode_of(0);
        table.insert(Arc::clone(&held));
        (1..3 * VNODES_PER_SHARD).for_each(|nth| table.insert(vnode_of(nth)));
        let shard = table.shard(held.ino).lock();
        assert_eq!(shard.vnodes.len(), VNODES_PER_SHARD);
        assert!(shard.vnodes.contains_key(&held.ino));
    }
}
