//! The vnodes in memory, and the references that front ends hold on files.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::Vnode;
use super::api::Ino;
use crate::convert::index_wide;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;

/// Shards of the table.
const SHARDS: usize = 32;
/// Idle vnodes kept in memory: about 1 KiB each.
const VNODES_PER_SHARD: usize = 2048;

/// The vnodes in memory.
#[derive(Debug)]
pub(crate) struct VnodeTable {
    shards: Vec<Mutex<Shard>>,
    dirty: Mutex<DirtyFiles>,
}

/// Files with changes that are not in the journal.
#[derive(Debug, Default)]
struct DirtyFiles {
    /// All of them, and since when.
    since_ns: BTreeMap<Ino, u64>,
    /// Those of which the changes could not be put there, and why.
    failed: BTreeMap<Ino, FsError>,
}

impl DirtyFiles {
    fn remove(&mut self, ino: Ino) {
        self.since_ns.remove(&ino);
        self.failed.remove(&ino);
    }
}

#[derive(Debug, Default)]
struct Shard {
    vnodes: FxHashMap<Ino, Arc<Vnode>>,
    /// Order in which vnodes came, for eviction.
    order: std::collections::VecDeque<Ino>,
    /// References that front ends hold on files without a vnode (V6).
    references: FxHashMap<Ino, u64>,
    /// Vnodes on which they hold any.
    referenced_vnodes: usize,
    /// Files that never had a name and may still get one, on which there are references.
    linkable: FxHashSet<Ino>,
    /// Files that are, or were to be, without a name and are not freed yet.
    nameless: FxHashSet<Ino>,
}

/// The references on a vnode, which only the shard that it is in touches, under its lock (V6).
#[derive(Debug, Default)]
pub(super) struct References(AtomicU64);

impl References {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, count: u64) {
        self.0.store(count, Ordering::Relaxed);
    }

    /// Returns the count and sets it to none.
    fn take(&self) -> u64 {
        let count = self.get();
        self.set(0);
        count
    }
}

/// What becomes of a file whose references are given back.
#[derive(Debug)]
pub(crate) enum Left {
    /// It stays: there are other references, or it has a name.
    Stays,
    /// It is to be freed if it has no name indeed; the vnode, if it is in memory.
    Nameless(Option<Arc<Vnode>>),
}

impl Default for VnodeTable {
    fn default() -> VnodeTable {
        VnodeTable {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect(),
            dirty: Mutex::default(),
        }
    }
}

impl VnodeTable {
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[index_wide(ino.0) % SHARDS]
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<Vnode>> {
        self.shard(ino).lock().vnodes.get(&ino).map(Arc::clone)
    }

    /// V1: loads a vnode under the lock of its shard, so that two never do it at once.
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

    /// Returns the vnode of a file, or what `read` says while none is in memory, nor comes there:
    /// what is stored is all there is of the file then (V1, V2).
    pub(crate) fn find_or_read<R>(
        &self,
        ino: Ino,
        read: impl FnOnce() -> R,
    ) -> Result<Arc<Vnode>, R> {
        let shard = self.shard(ino).lock();
        shard.vnodes.get(&ino).map(Arc::clone).ok_or_else(read)
    }

    /// Enters the vnode of a new file, with a reference, in place of an earlier file's of that
    /// ino.
    pub(crate) fn insert(&self, vnode: Arc<Vnode>) {
        let mut shard = self.shard(vnode.ino).lock();
        let ino = vnode.ino;
        shard.insert(vnode);
        shard.add_reference(ino);
    }

    /// Enters the vnode of a new file on which nobody has a reference.
    pub(crate) fn insert_unreferenced(&self, vnode: Arc<Vnode>) {
        self.shard(vnode.ino).lock().insert(vnode);
    }

    /// Forgets the vnode of a freed file, which the caller has, so that nobody evicts it. That of a
    /// file which was given its number since stays, with all that is noted of it.
    pub(crate) fn remove(&self, vnode: &Arc<Vnode>) {
        let ino = vnode.ino;
        let mut shard = self.shard(ino).lock();
        if shard.vnodes.get(&ino).is_some_and(|found| Arc::ptr_eq(found, vnode)) {
            shard.take_vnode(ino);
            shard.nameless.remove(&ino);
            self.dirty.lock().remove(ino);
        }
    }

    /// Forgets all of the fileset in `slot`, which nobody uses and whose tree is another now.
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

    /// Adds a reference; returns the vnode, if it is in memory.
    pub(crate) fn add_reference(&self, ino: Ino) -> Option<Arc<Vnode>> {
        self.shard(ino).lock().add_reference(ino).map(Arc::clone)
    }

    /// Adds references that fronts had elsewhere.
    pub(crate) fn add_references(&self, ino: Ino, count: u64) {
        if count > 0 {
            self.shard(ino).lock().add_references(ino, count);
        }
    }

    /// Gives references back.
    pub(crate) fn drop_references(&self, ino: Ino, count: u64) -> Left {
        let mut shard = self.shard(ino).lock();
        if shard.drop_references(ino, count) > 0 {
            return Left::Stays;
        }
        shard.linkable.remove(&ino);
        if shard.nameless.contains(&ino) {
            Left::Nameless(shard.vnodes.get(&ino).map(Arc::clone))
        } else {
            Left::Stays
        }
    }

    /// Notes that a file is about to lose its last name, before it does. A change that is given up
    /// leaves the note behind, which costs those a look who give references back.
    pub(crate) fn mark_nameless(&self, ino: Ino) {
        self.shard(ino).lock().nameless.insert(ino);
    }

    /// Notes that a file without a name, on which there is a reference, may get one.
    pub(crate) fn mark_linkable(&self, ino: Ino) {
        self.shard(ino).lock().linkable.insert(ino);
    }

    /// A file without a name has got one.
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

    /// Returns the files of the fileset in `slot` on which there are references, and how many.
    pub(crate) fn references_of(&self, slot: u32) -> Vec<(Ino, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let counts = shard.vnodes.values().map(|vnode| (vnode.ino, vnode.references.get()));
            let counts = counts.chain(shard.references.iter().map(|(ino, count)| (*ino, *count)));
            all.extend(counts.filter(|(ino, count)| ino.slot() == slot && *count > 0));
        }
        // Reaping makes changes, whose order a test must be able to repeat.
        all.sort_unstable();
        all
    }

    /// V2: the file has changes that are not in the journal, since `now_ns` or before.
    pub(crate) fn mark_dirty(&self, ino: Ino, now_ns: u64) {
        self.dirty.lock().since_ns.entry(ino).or_insert(now_ns);
    }

    pub(crate) fn mark_clean(&self, ino: Ino) {
        self.dirty.lock().remove(ino);
    }

    /// Notes that the changes of a dirty file could not be put into the journal: it counts as dirty
    /// since `now_ns` only.
    pub(crate) fn put_off(&self, ino: Ino, now_ns: u64, error: FsError) {
        let mut dirty = self.dirty.lock();
        if let Some(since_ns) = dirty.since_ns.get_mut(&ino) {
            *since_ns = now_ns;
            dirty.failed.insert(ino, error);
        }
    }

    /// Notes that nothing has kept the changes of a file from the journal.
    pub(crate) fn note_flushed(&self, ino: Ino) {
        self.dirty.lock().failed.remove(&ino);
    }

    /// Returns why the changes of the first of the files are not in the journal of which they could
    /// not be put there; `None`: there is no such file.
    pub(crate) fn flush_failure(&self) -> Option<FsError> {
        self.dirty.lock().failed.values().next().cloned()
    }

    /// Returns the files that have been dirty since `since_ns` or before.
    pub(crate) fn dirty_since(&self, since_ns: u64) -> BTreeSet<Ino> {
        let dirty = self.dirty.lock();
        let aged = dirty.since_ns.iter().filter(|(_, since)| **since <= since_ns);
        aged.map(|(ino, _)| *ino).collect()
    }

    /// Returns the files of the fileset in `slot` that are dirty.
    pub(crate) fn dirty_of(&self, slot: u32) -> BTreeSet<Ino> {
        let dirty = self.dirty.lock();
        dirty.since_ns.keys().filter(|ino| ino.slot() == slot).copied().collect()
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty.lock().since_ns.len()
    }

    pub(crate) fn reference_count(&self) -> usize {
        let count_in = |shard: &Shard| shard.references.len() + shard.referenced_vnodes;
        self.shards.iter().map(|shard| count_in(&shard.lock())).sum()
    }
}

impl Shard {
    /// Adds a reference; returns the vnode, if it is in memory.
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

    /// Gives references back; returns how many are left.
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

    /// Takes a vnode out; the references on it stay (V6).
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

    /// Files that were freed leave their numbers in the line, and may come again under them.
    fn bound_order(&mut self) {
        if self.order.len() > 2 * self.vnodes.len() + VNODES_PER_SHARD {
            let mut seen = FxHashSet::with_capacity_and_hasher(self.vnodes.len(), FxBuildHasher);
            let vnodes = &self.vnodes;
            self.order.retain(|ino| vnodes.contains_key(ino) && seen.insert(*ino));
        }
    }

    /// Drops the vnode that came first if nobody uses it and nothing of it is unwritten; else it
    /// goes to the end of the line.
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

    /// Goal: whoever frees a file late takes nothing from the one that was given its number.
    /// Method: the number is used again, and the new file held and dirty, before the old one is
    /// taken out.
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
        assert!(matches!(table.drop_references(new.ino, 1), Left::Nameless(Some(_))));
        table.remove(&new);
        assert!(table.find(new.ino).is_none());
        assert_eq!(table.dirty_count(), 0);
    }

    /// Goal: no reference is lost or made when vnodes come and go, and none is counted twice (V6).
    /// Method: references on three times as many files as a shard keeps, one in three without; most
    /// of their vnodes go, come again, go for good, and come under numbers that are used again.
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
                assert!(matches!(dropped, Left::Stays), "{nth} has {left} left");
            }
            let dropped = table.drop_references(ino_of(nth), 1);
            assert!(matches!(dropped, Left::Nameless(_)), "{nth} has none left");
        }
        assert_eq!(table.reference_count(), 0);
    }

    /// Goal: idle files do not fill the memory, and one in use stays. Method: three times as many
    /// files as a shard keeps, all of one shard.
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
