//! The pool's fileset table: all filesets and snapshots, by slot and by name.
//!
//! The entries on disk are the truth. The index in memory is built at its first use. Opening a
//! fileset by its slot does not need it.
//!
//! # Invariants
//!
//! - FT1: No two filesets in use have the same name below the same fileset.
//! - FT2: A fileset is below one that is in use, and no fileset is below itself.
//! - FT3: A slot that was freed is not reused while the pool is open, because state in memory is
//!   keyed by slot and anode.
//! - FT4: The nodes of a family are a tree. The parent of a snapshot is an older snapshot. The
//!   parent of a fileset is its last snapshot or its origin as a clone. A fileset has no children.
//! - FT5: The state of the index on which an entry's change relies is durable before that change or
//!   with it, because entries that refer to each other may be on different pages.
//!
//! # Concurrency
//!
//! LOCK: the table's lock is above a fileset's. It is held from the first use of the index to the
//! end of the transaction that changes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use format::anode::{ANODE_BYTES, Anode, POOL_FILESET_TABLE, page_and_slot};
use format::defect::DefectCode;
use format::fileset::{
    COUNTS_BYTES, Fileset, FilesetState, MoveState, NamePart, counts_offset, joined,
};
use format::ids::{EPOCH_MAX, Epoch, FILESET_SLOTS_MAX, FilesetId, Place};
use format::page::{PAGE_BODY_BYTES, PageKind, PageOwner, SLOTS_PER_PAGE};

use super::{decode_slot, entry_owner, entry_position, slot_range};
use crate::buffer::corrupt;
use crate::container::no_page;
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};
use crate::sync::{Mutex, MutexGuard};

/// Most holds of a snapshot, since a refusal to delete it lists them all.
pub(crate) const HOLDS_MAX: usize = 16;
/// Most filesets in a pool. Bounds the memory of the index.
pub(crate) const FILESETS_MAX: usize = 1 << 17;
/// Most pages added together. Contiguous pages need few reads.
const GROWTH_PAGES_MAX: u64 = 24;
const _: () = assert!(PAGE_BODY_BYTES >= SLOTS_PER_PAGE * ANODE_BYTES);

#[derive(Clone, Debug)]
pub(crate) struct FilesetNode {
    /// For a snapshot, the epoch that took it.
    pub(crate) id: FilesetId,
    pub(crate) family: FilesetId,
    pub(crate) slot: u32,
    pub(crate) above: Option<u32>,
    pub(crate) name: NamePart,
    pub(crate) state: FilesetState,
    pub(crate) parent: Option<u32>,
    /// No block of the node was born later.
    pub(crate) epoch: Epoch,
    /// Blocks born in this epoch or earlier belong to the parent too.
    pub(crate) shared_epoch: Epoch,
    pub(crate) is_read_only: bool,
    pub(crate) block_shift: u8,
    pub(crate) created_seconds: u64,
    pub(crate) uuid: [u8; 16],
    /// Anodes in use when the index was built or the fileset created.
    pub(crate) anodes_used: u64,
    pub(crate) anodes_end: u64,
    /// Fragments referenced when the index was built or the fileset created.
    pub(crate) fragments: u64,
    /// Upper bound of referenced bytes. 0 for no limit.
    pub(crate) quota_bytes: u64,
    pub(crate) reservation_bytes: u64,
    pub(crate) moving: Option<MoveState>,
}

impl FilesetNode {
    fn of(entry: &Fileset) -> FilesetNode {
        FilesetNode {
            id: entry.id,
            family: entry.family,
            slot: entry.slot,
            above: entry.above,
            name: entry.name.clone(),
            state: entry.state,
            parent: entry.parent,
            epoch: match entry.state {
                state if state.is_of_snapshot() => Epoch(entry.id.0),
                _ => Epoch(EPOCH_MAX),
            },
            shared_epoch: entry.shared_epoch,
            is_read_only: entry.is_read_only,
            block_shift: entry.block_shift,
            created_seconds: entry.created_seconds,
            uuid: entry.uuid,
            anodes_used: entry.anodes_used,
            anodes_end: entry.anodes_end,
            fragments: entry.fragments,
            quota_bytes: entry.quota_bytes,
            reservation_bytes: entry.reservation_bytes,
            moving: entry.moving,
        }
    }

    /// Returns the unused part of its reservation, in fragments (QT4).
    pub(crate) fn kept(&self, fragment_shift: u8) -> u64 {
        let reservation = self.reservation_bytes >> fragment_shift;
        if self.is_live() { reservation.saturating_sub(self.fragments) } else { 0 }
    }

    /// Returns how much of a deleted fileset is freed, and the total: in anodes, plus one for the
    /// table.
    pub(crate) fn freed(&self) -> Option<(u64, u64)> {
        let done = self.state.cursor()?.container.min(self.anodes_end);
        Some((done, self.anodes_end + 1))
    }

    /// Whether it is a snapshot in use.
    pub(crate) fn is_snapshot(&self) -> bool {
        self.state == FilesetState::Snapshot
    }

    /// Whether it is deleted and still being freed.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state.cursor().is_some()
    }

    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.state, FilesetState::Receiving(_))
    }

    /// Whether it is a fileset in use.
    pub(crate) fn is_live(&self) -> bool {
        self.state == FilesetState::Writable
    }
}

#[derive(Debug, Default)]
pub(crate) struct FilesetTable {
    index: Mutex<Option<FilesetIndex>>,
    /// Inodes in use when they were last counted.
    pub(crate) inodes_seen: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct FilesetIndex {
    pub(super) table: Anode,
    nodes: BTreeMap<u32, FilesetNode>,
    names: BTreeMap<(Option<u32>, NamePart), u32>,
    /// Snapshots, by fileset and name.
    snapshots: BTreeMap<(u32, NamePart), u32>,
    /// Holds, by snapshot and name.
    holds: BTreeMap<(u32, NamePart), u32>,
    hold_slots: BTreeSet<u32>,
    families: BTreeSet<(FilesetId, u32)>,
    /// Slots of parent and child (FT4).
    children: BTreeSet<(u32, u32)>,
    receiving: BTreeSet<u32>,
    /// Snapshots being read, with the count of readers. They are not deleted.
    pinned: BTreeMap<u32, usize>,
    /// Allocation of slots starts here (FT3).
    next_slot: u32,
    snapshots_changes: u64,
}

/// A slot that a change has allocated.
#[derive(Clone)]
pub(crate) struct AllocatedSlot {
    pub(crate) slot: u32,
    grown: Option<Anode>,
}

pub(crate) struct TableGuard<'t>(MutexGuard<'t, Option<FilesetIndex>>);

impl std::ops::Deref for TableGuard<'_> {
    type Target = FilesetIndex;

    fn deref(&self) -> &FilesetIndex {
        self.0.as_ref().expect("it was made when the lock was taken")
    }
}

impl std::ops::DerefMut for TableGuard<'_> {
    fn deref_mut(&mut self) -> &mut FilesetIndex {
        self.0.as_mut().expect("it was made when the lock was taken")
    }
}

impl FilesetTable {
    /// Takes the lock. Builds the index at the first use.
    pub(crate) fn lock(&self, store: &Store) -> FsResult<TableGuard<'_>> {
        FilesetTable::built(self.index.lock(), store)
    }

    /// Takes the lock, unless a thread has it, which may be waiting for a device.
    pub(crate) fn try_lock(&self, store: &Store) -> FsResult<Option<TableGuard<'_>>> {
        self.index.try_lock().map(|index| FilesetTable::built(index, store)).transpose()
    }

    fn built<'t>(
        mut index: MutexGuard<'t, Option<FilesetIndex>>,
        store: &Store,
    ) -> FsResult<TableGuard<'t>> {
        if index.is_none() {
            *index = Some(FilesetIndex::read(store)?);
        }
        Ok(TableGuard(index))
    }
}

impl FilesetIndex {
    fn new(table: Anode) -> FilesetIndex {
        FilesetIndex {
            table,
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            holds: BTreeMap::new(),
            hold_slots: BTreeSet::new(),
            families: BTreeSet::new(),
            children: BTreeSet::new(),
            receiving: BTreeSet::new(),
            pinned: BTreeMap::new(),
            next_slot: 0,
            snapshots_changes: 0,
        }
    }

    fn read(store: &Store) -> FsResult<FilesetIndex> {
        let mut index = FilesetIndex::new(read_table(store)?);
        // The table has no holes: slots are allocated from the lowest, and pages are never freed.
        for page in 0..index.table.pages {
            let pointer = store.block(None, &index.table, page)?;
            let place = pointer.ok_or_else(|| no_page(&index.table, page))?.place;
            let view = store.view(None, place, PageKind::FilesetTable, entry_owner(page))?;
            for slot in 0..SLOTS_PER_PAGE {
                let number = page * wide(SLOTS_PER_PAGE) + wide(slot);
                let Ok(number) = u32::try_from(number) else { continue };
                if let Some(entry) = Fileset::decode_in(&view, slot, number).map_err(corrupt)? {
                    index.enter(FilesetNode::of(&entry));
                }
            }
        }
        Ok(index)
    }

    fn enter(&mut self, node: FilesetNode) {
        if let (FilesetState::Hold, Some(snapshot)) = (node.state, node.above) {
            self.holds.insert((snapshot, node.name), node.slot);
            self.hold_slots.insert(node.slot);
            return;
        }
        if node.is_live() {
            self.names.insert((node.above, node.name.clone()), node.slot);
        }
        if node.is_receiving() {
            self.receiving.insert(node.slot);
        }
        self.families.insert((node.family, node.slot));
        self.children.extend(node.parent.map(|parent| (parent, node.slot)));
        if let (true, Some(of)) = (node.is_snapshot(), node.above) {
            self.snapshots.insert((of, node.name.clone()), node.slot);
            self.snapshots_changes += 1;
        }
        self.nodes.insert(node.slot, node);
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &FilesetNode> {
        self.nodes_from(0)
    }

    pub(crate) fn nodes_from(&self, slot: u32) -> impl Iterator<Item = &FilesetNode> {
        self.nodes.range(slot..).map(|(_, node)| node)
    }

    pub(crate) fn node(&self, slot: u32) -> Option<&FilesetNode> {
        self.nodes.get(&slot)
    }

    pub(crate) fn holds_of(&self, snapshot: u32) -> impl Iterator<Item = &NamePart> {
        let all = self.holds.range((snapshot, NamePart::first())..);
        all.take_while(move |((of, _), _)| *of == snapshot).map(|((_, name), _)| name)
    }

    pub(crate) fn hold_of(&self, snapshot: u32, name: &NamePart) -> Option<u32> {
        self.holds.get(&(snapshot, name.clone())).copied()
    }

    /// Returns the nodes of a family by slot, deleted ones included.
    pub(crate) fn family(&self, family: FilesetId) -> impl Iterator<Item = &FilesetNode> {
        let of_family = self.families.range((family, 0)..=(family, u32::MAX));
        of_family.filter_map(|(_, slot)| self.nodes.get(slot))
    }

    pub(crate) fn children_in_family(&self, slot: u32) -> impl Iterator<Item = &FilesetNode> {
        let children = self.children.range((slot, 0)..=(slot, u32::MAX));
        children.filter_map(|(_, child)| self.nodes.get(child))
    }

    /// Returns the nearest ancestor in use of the node in `slot`.
    pub(crate) fn origin_of(&self, slot: u32) -> Option<u32> {
        let mut next = self.nodes.get(&slot)?.parent;
        // Bounded, because a damaged table may have a cycle.
        for _ in 0..self.nodes.len() {
            let node = self.nodes.get(&next?)?;
            if !node.is_deleted() {
                return next;
            }
            next = node.parent;
        }
        None
    }

    /// Whether the node in `origin` is an ancestor of that in `slot`.
    pub(crate) fn goes_back_to(&self, slot: u32, origin: u32) -> bool {
        let mut next = self.origin_of(slot);
        // Bounded, because a damaged table may have a cycle.
        for _ in 0..self.nodes.len() {
            match next {
                Some(found) if found == origin => return true,
                Some(found) => next = self.origin_of(found),
                None => return false,
            }
        }
        false
    }

    /// Prevents deletion of a snapshot until [`FilesetIndex::unpin`].
    pub(crate) fn pin(&mut self, slot: u32) {
        *self.pinned.entry(slot).or_insert(0) += 1;
    }

    /// Undoes one [`FilesetIndex::pin`].
    pub(crate) fn unpin(&mut self, slot: u32) {
        let left = self.pinned.remove(&slot).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            self.pinned.insert(slot, left);
        }
    }

    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        self.pinned.contains_key(&slot)
    }

    pub(crate) fn find(&self, path: &[NamePart]) -> Option<&FilesetNode> {
        let mut slot = None;
        for part in path {
            slot = Some(*self.names.get(&(slot, part.clone()))?);
        }
        self.nodes.get(&slot?)
    }

    /// Returns the slot of the fileset at `path`, unless it is moving.
    pub(crate) fn slot_of(&self, path: &[NamePart]) -> FsResult<u32> {
        let no_fileset = || FsError::NoFileset { name: joined(path) };
        let node = self.find(path).ok_or_else(no_fileset)?;
        self.check_here(node.slot)?;
        Ok(node.slot)
    }

    /// Refuses a fileset that is moving to another pool (FM1).
    pub(crate) fn check_here(&self, slot: u32) -> FsResult<()> {
        let moving = self.node(slot).and_then(|node| node.moving);
        if moving.is_some_and(MoveState::is_closed) {
            return Err(on_its_way(self.path_of(slot)));
        }
        Ok(())
    }

    pub(crate) fn child(&self, above: Option<u32>, name: &NamePart) -> Option<&FilesetNode> {
        self.nodes.get(self.names.get(&(above, name.clone()))?)
    }

    pub(crate) fn snapshot_of(&self, of: u32, name: &NamePart) -> Option<&FilesetNode> {
        self.nodes.get(self.snapshots.get(&(of, name.clone()))?)
    }

    pub(crate) fn slot_of_node(
        &self,
        path: &[NamePart],
        snapshot: Option<&NamePart>,
    ) -> FsResult<u32> {
        let of = self.slot_of(path)?;
        let Some(name) = snapshot else { return Ok(of) };
        let no_snapshot = || FsError::NoFileset { name: snapshot_name(&joined(path), name) };
        self.snapshot_of(of, name).map(|node| node.slot).ok_or_else(no_snapshot)
    }

    pub(crate) fn snapshots_of(&self, slot: u32) -> impl Iterator<Item = &FilesetNode> {
        let all = self.snapshots.range((slot, NamePart::first())..);
        let of_slot = all.take_while(move |((of, _), _)| *of == slot);
        of_slot.filter_map(|(_, slot)| self.nodes.get(slot))
    }

    pub(crate) fn is_family_freed(&self, family: FilesetId) -> bool {
        self.family(family).any(FilesetNode::is_deleted)
    }

    pub(crate) fn is_snapshot_freed(&self, family: FilesetId) -> bool {
        self.family(family).any(|node| node.is_deleted() && node.state.is_of_snapshot())
    }

    /// Returns the filesets directly below `slot`, including those that receive a stream.
    pub(crate) fn children(&self, slot: u32) -> impl Iterator<Item = &FilesetNode> {
        let named = self.names.range((Some(slot), NamePart::first())..);
        let named = named.take_while(move |((above, _), _)| *above == Some(slot));
        let live = named.map(|(_, slot)| slot).filter_map(|slot| self.nodes.get(slot));
        let receiving = self.receiving.iter().filter_map(|slot| self.nodes.get(slot));
        live.chain(receiving.filter(move |node| node.above == Some(slot)))
    }

    /// Returns the full name, with slashes.
    pub(crate) fn path_of(&self, slot: u32) -> String {
        if let Some(node) = self.nodes.get(&slot).filter(|node| node.state.is_of_snapshot()) {
            return snapshot_name(
                &node.above.map_or_else(String::new, |of| self.path_of(of)),
                &node.name,
            );
        }
        let (mut parts, mut next) = (Vec::new(), Some(slot));
        // Bounded, because a damaged table may violate FT2.
        while let Some(node) = next.and_then(|slot| self.nodes.get(&slot))
            && parts.len() <= self.nodes.len()
        {
            parts.push(node.name.as_str());
            next = node.above;
        }
        parts.reverse();
        parts.join("/")
    }

    /// Refuses `count` more entries beyond the bound.
    pub(crate) fn check_count(&self, count: usize) -> FsResult<()> {
        let is_full = self.nodes.len() + self.hold_slots.len() + count > FILESETS_MAX;
        if is_full { Err(FsError::TooManyFilesets { most: FILESETS_MAX }) } else { Ok(()) }
    }

    /// Allocates a slot, and a table page for it if needed.
    pub(crate) fn take_slot(
        &self,
        store: &Store,
        change: &mut Change<'_>,
    ) -> FsResult<AllocatedSlot> {
        self.check_count(1)?;
        self.take_slot_after(store, change, None)
    }

    /// Allocates one more slot in a change that allocated `last`. The caller has checked the total
    /// number with [`FilesetIndex::check_count`].
    pub(crate) fn take_slot_after(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        last: Option<&AllocatedSlot>,
    ) -> FsResult<AllocatedSlot> {
        let first = last.map_or(self.next_slot, |last| last.slot + 1);
        let mut free = first.max(self.next_slot)..FILESET_SLOTS_MAX;
        let is_free =
            |slot: &u32| !self.nodes.contains_key(slot) && !self.hold_slots.contains(slot);
        let slot = free.find(is_free).ok_or(FsError::TooManyFilesets { most: FILESETS_MAX })?;
        let grown = last.and_then(|last| last.grown.clone());
        let (page, _) = entry_position(slot);
        if store.block(Some(change), grown.as_ref().unwrap_or(&self.table), page)?.is_some() {
            return Ok(AllocatedSlot { slot, grown });
        }
        let mut table = grown.unwrap_or_else(|| self.table.clone());
        store.add_content(change, &mut table, page, PageKind::FilesetTable)?;
        write_table(store, change, &table)?;
        Ok(AllocatedSlot { slot, grown: Some(table) })
    }

    /// Returns how many pages to add before the next slot, or 0. The table doubles, up to a bound
    /// per step.
    pub(crate) fn pages_to_grow(&self) -> u64 {
        let (page, _) = entry_position(self.next_slot);
        let is_full = page >= self.table.pages;
        if is_full && self.next_slot < FILESET_SLOTS_MAX {
            self.table.pages.min(GROWTH_PAGES_MAX)
        } else {
            0
        }
    }

    /// Adds empty pages to the table. After the change has ended, the caller calls
    /// [`FilesetIndex::note_grown`].
    pub(crate) fn grow(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        pages: u64,
    ) -> FsResult<Anode> {
        let mut table = self.table.clone();
        for page in self.table.pages..self.table.pages.saturating_add(pages) {
            store.add_content(change, &mut table, page, PageKind::FilesetTable)?;
        }
        write_table(store, change, &table)?;
        Ok(table)
    }

    pub(crate) fn note_grown(&mut self, table: Anode) {
        self.table = table;
    }

    pub(crate) fn entry_place(
        &self,
        store: &Store,
        change: &Change<'_>,
        taken: &AllocatedSlot,
    ) -> FsResult<Place> {
        let table = taken.grown.as_ref().unwrap_or(&self.table);
        FilesetIndex::entry_at(store, Some(change), table, taken.slot).map(|(place, ..)| place)
    }

    /// Returns the place of the page with the entry of `slot`, and the slot in the page.
    fn entry_at(
        store: &Store,
        change: Option<&Change<'_>>,
        table: &Anode,
        slot: u32,
    ) -> FsResult<(Place, PageOwner, usize)> {
        let (page, in_page) = entry_position(slot);
        let pointer = store.block(change, table, page)?;
        let place = pointer.ok_or_else(|| no_page(table, page))?.place;
        Ok((place, entry_owner(page), in_page))
    }

    pub(crate) fn place_of_entry(&self, store: &Store, slot: u32) -> FsResult<Place> {
        FilesetIndex::entry_at(store, None, &self.table, slot).map(|(place, ..)| place)
    }

    /// Makes `change` depend on other changes of the page with the entry in `slot`: they join one
    /// class.
    pub(crate) fn note_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u32,
    ) -> FsResult<()> {
        let (place, owner, _) = FilesetIndex::entry_at(store, None, &self.table, slot)?;
        change.note(place, PageKind::FilesetTable, owner)
    }

    /// Writes the entry of a fileset that is not mounted.
    pub(crate) fn write_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        entry: &Fileset,
        taken: Option<&AllocatedSlot>,
    ) -> FsResult<()> {
        let table = taken.and_then(|taken| taken.grown.as_ref()).unwrap_or(&self.table);
        let bytes = FilesetIndex::entry_to_edit(store, change, table, entry.slot)?;
        bytes.copy_from_slice(&entry.encode());
        if taken.is_some() {
            // Later changes of the counts are deltas.
            let counts = FilesetIndex::counts_to_edit(store, change, table, entry.slot)?;
            counts.copy_from_slice(&entry.encode_counts());
        }
        Ok(())
    }

    pub(crate) fn clear_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u32,
    ) -> FsResult<()> {
        FilesetIndex::entry_to_edit(store, change, &self.table, slot)?.fill(0);
        FilesetIndex::counts_to_edit(store, change, &self.table, slot)?.fill(0);
        Ok(())
    }

    fn counts_to_edit<'c>(
        store: &Store,
        change: &'c mut Change<'_>,
        table: &Anode,
        slot: u32,
    ) -> FsResult<&'c mut [u8]> {
        let (place, owner, in_page) = FilesetIndex::entry_at(store, Some(change), table, slot)?;
        let range = counts_offset(in_page)..counts_offset(in_page) + COUNTS_BYTES;
        change.edit_range(place, PageKind::FilesetTable, owner, range)
    }

    fn entry_to_edit<'c>(
        store: &Store,
        change: &'c mut Change<'_>,
        table: &Anode,
        slot: u32,
    ) -> FsResult<&'c mut [u8]> {
        // CRASH: earlier changes of the index are durable first, or together (FT5). They have
        // ended, since they held the lock.
        change.close_all_before();
        let (place, owner, in_page) = FilesetIndex::entry_at(store, Some(change), table, slot)?;
        change.edit_range(place, PageKind::FilesetTable, owner, slot_range(in_page))
    }

    pub(crate) fn read_entry(&self, store: &Store, slot: u32) -> FsResult<Fileset> {
        self.read_entry_in(store, None, slot)
    }

    /// Reads the entry in `slot` through the pages dirtied by `change`.
    pub(crate) fn read_entry_in(
        &self,
        store: &Store,
        change: Option<&Change<'_>>,
        slot: u32,
    ) -> FsResult<Fileset> {
        let (place, owner, in_page) = FilesetIndex::entry_at(store, change, &self.table, slot)?;
        let view = store.view(change, place, PageKind::FilesetTable, owner)?;
        Fileset::decode_in(&view, in_page, slot).map_err(corrupt)?.ok_or(FsError::NotFound)
    }

    pub(crate) fn snapshots_changes(&self) -> u64 {
        self.snapshots_changes
    }

    /// Applies a written entry to the index, once the change has ended.
    pub(crate) fn note(&mut self, entry: &Fileset) {
        self.drop_names(entry.slot);
        self.enter(FilesetNode::of(entry));
    }

    pub(crate) fn note_new(&mut self, entry: &Fileset, taken: AllocatedSlot) {
        self.next_slot = taken.slot + 1;
        self.table = taken.grown.unwrap_or_else(|| self.table.clone());
        self.note(entry);
    }

    pub(crate) fn note_cleared(&mut self, slot: u32) {
        self.drop_names(slot);
        self.nodes.remove(&slot);
        self.next_slot = self.next_slot.max(slot + 1);
    }

    fn drop_names(&mut self, slot: u32) {
        if self.hold_slots.remove(&slot) {
            self.holds.retain(|_, hold| *hold != slot);
        }
        self.receiving.remove(&slot);
        if let Some(old) = self.nodes.get(&slot) {
            let name = (old.above, old.name.clone());
            if self.names.get(&name) == Some(&slot) {
                self.names.remove(&name);
            }
            if let (true, Some(of)) = (old.is_snapshot(), old.above) {
                self.snapshots.remove(&(of, old.name.clone()));
                self.snapshots_changes += 1;
            }
            self.families.remove(&(old.family, slot));
            if let Some(parent) = old.parent {
                self.children.remove(&(parent, slot));
            }
        }
    }
}

pub(crate) fn on_its_way(name: String) -> FsError {
    let by = "it is on its way to another pool, and nobody uses it: `holdfast fileset move` goes \
              on with that, or gives it up";
    FsError::FilesetInUse { name, by: by.to_owned() }
}

fn snapshot_name(of: &str, name: &NamePart) -> String {
    format!("{of}@{}", name.as_str())
}

/// Returns the fileset table as a container, from the pool's root page.
pub(super) fn read_table(store: &Store) -> FsResult<Anode> {
    let root_place = store.geometry().group_layout().root_place();
    let root = store.view(None, root_place, PageKind::Anode, PageOwner::default())?;
    let (_, root_slot) = page_and_slot(POOL_FILESET_TABLE);
    decode_slot(&root, FilesetId(0), POOL_FILESET_TABLE, root_slot)?
        .ok_or_else(|| corrupt(DefectCode::FS007.found("its anode is free")))
}

pub(super) fn write_table(store: &Store, change: &mut Change<'_>, table: &Anode) -> FsResult<()> {
    let root_place = store.geometry().group_layout().root_place();
    let (_, root_slot) = page_and_slot(POOL_FILESET_TABLE);
    let range = slot_range(root_slot);
    let bytes = change.edit_range(root_place, PageKind::Anode, PageOwner::default(), range)?;
    bytes.copy_from_slice(&table.encode());
    Ok(())
}

#[cfg(test)]
mod tests {
    use format::anode::AnodeKind;
    use format::ids::AnodeNo;

    use super::*;

    fn node(slot: u32, above: Option<u32>) -> FilesetNode {
        let name = NamePart::new(&format!("f{slot}")).expect("a name");
        let mut entry = Fileset::new(FilesetId(u64::from(slot) + 1), slot, name, 12);
        entry.above = above;
        FilesetNode::of(&entry)
    }

    /// Goal: a table accepts as many filesets as its limit, refuses one more with a clear message,
    /// and finds the filesets below one among all of them.
    #[test]
    fn a_full_table_of_filesets_refuses_one_more() {
        let table = Anode::new(AnodeKind::Internal, AnodeNo(1), FilesetId(0), 12);
        let mut index = FilesetIndex::new(table);
        let all = u32::try_from(FILESETS_MAX).expect("it is a number of slots");
        for slot in 0..all {
            assert_eq!(index.check_count(1), Ok(()), "{slot}");
            index.enter(node(slot, (slot > 0).then_some(slot / 1000)));
        }
        let refused = index.check_count(1).expect_err("it is full");
        assert_eq!(refused.errno(), 28);
        assert!(refused.to_string().contains("131072 filesets"), "{refused}");
        let below: Vec<u32> = index.children(131).map(|node| node.slot).collect();
        let mut expected: Vec<u32> = (131_000..all).collect();
        expected.sort_by_key(|slot| format!("f{slot}"));
        assert_eq!(below, expected);
        index.note_cleared(131_000);
        assert_eq!(index.check_count(1), Ok(()));
        for at_once in 2..=16 {
            let refused = index.check_count(at_once);
            assert!(refused.is_err(), "one of {at_once} at one moment has room");
        }
    }
}
