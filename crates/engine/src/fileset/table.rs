//! The pool's table of filesets: which there are, by slot and by name.
//!
//! The entries on disk are the truth. An index of them is made in memory when somebody first needs
//! it: a fileset that is opened by its slot needs none.
//!
//! # Invariants
//!
//! - FT1: No two filesets in use have the same name below the same fileset.
//! - FT2: A fileset is below one that is in use, and no fileset is below itself.
//! - FT3: A slot that was given up is not used again while the pool is open: what is in memory goes
//!   by slot and anode.
//! - FT4: The nodes of a family are a tree: a clone's parent is an older clone, a fileset's is the
//!   clone that it was taken of last or that it was forked from, and no fileset has children.
//! - FT5: What the index says when an entry is changed is durable before that change, or with it:
//!   entries that say something of each other may lie on different pages.
//!
//! # Concurrency
//!
//! The table's lock is taken above a fileset's. It is held from the first look at the index to the
//! end of the transaction that changes it.

use std::collections::{BTreeMap, BTreeSet};

use format::anode::{ANODE_BYTES, Anode, POOL_FILESET_TABLE, page_and_slot};
use format::defect::DefectCode;
use format::fileset::{
    COUNTS_BYTES, Fileset, FilesetState, Moving, NamePart, counts_offset, joined,
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

/// Most holds of a clone: a refusal to delete it names them all.
pub(crate) const HOLDS_MAX: usize = 16;
/// Most filesets of a pool: what the index of them takes in memory is bounded by it.
pub(crate) const FILESETS_MAX: usize = 1 << 17;
/// Pages that the table gets at once, at most: those lie side by side, so that few reads get them.
const GROWTH_PAGES_MAX: u64 = 24;
const _: () = assert!(PAGE_BODY_BYTES >= SLOTS_PER_PAGE * ANODE_BYTES);

/// What the index keeps of a fileset.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Of a clone: the epoch that took it.
    pub(crate) id: FilesetId,
    pub(crate) family: FilesetId,
    pub(crate) slot: u32,
    pub(crate) above: Option<u32>,
    pub(crate) name: NamePart,
    pub(crate) state: FilesetState,
    pub(crate) parent: Option<u32>,
    /// It holds nothing that was born later.
    pub(crate) epoch: Epoch,
    /// What was born in this epoch or before it belongs to the parent, too.
    pub(crate) shared_epoch: Epoch,
    pub(crate) is_read_only: bool,
    pub(crate) block_shift: u8,
    pub(crate) created_seconds: u64,
    pub(crate) uuid: [u8; 16],
    /// Anodes that were in use when the index was made, or the fileset was.
    pub(crate) anodes_used: u64,
    pub(crate) anodes_end: u64,
    /// Fragments that it referenced then.
    pub(crate) fragments: u64,
    /// Most bytes that it may reference; 0: no limit.
    pub(crate) quota_bytes: u64,
    /// Bytes that are kept free for it.
    pub(crate) reservation_bytes: u64,
    /// What it is on its way to another pool.
    pub(crate) moving: Option<Moving>,
}

impl Node {
    fn of(entry: &Fileset) -> Node {
        Node {
            id: entry.id,
            family: entry.family,
            slot: entry.slot,
            above: entry.above,
            name: entry.name.clone(),
            state: entry.state,
            parent: entry.parent,
            epoch: match entry.state {
                state if state.is_of_clone() => Epoch(entry.id.0),
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

    /// QT4: returns the rest of its reservation, in fragments.
    pub(crate) fn kept(&self, fragment_shift: u8) -> u64 {
        let reservation = self.reservation_bytes >> fragment_shift;
        if self.is_live() { reservation.saturating_sub(self.fragments) } else { 0 }
    }

    /// Returns how much of a deleted fileset is freed, and of how much: each anode is one, and the
    /// anode table as a whole one more. `None` for one in use.
    pub(crate) fn freed(&self) -> Option<(u64, u64)> {
        let done = self.state.cursor()?.container.min(self.anodes_end);
        Some((done, self.anodes_end + 1))
    }

    /// Whether it is a clone, and not deleted.
    pub(crate) fn is_clone(&self) -> bool {
        self.state == FilesetState::Clone
    }

    /// Whether it was deleted, and is not all freed yet.
    pub(crate) fn is_deleted(&self) -> bool {
        self.state.cursor().is_some()
    }

    /// Whether it receives a stream: nobody finds it.
    pub(crate) fn is_receiving(&self) -> bool {
        matches!(self.state, FilesetState::Receiving(_))
    }

    /// Whether it is in use, and no clone.
    pub(crate) fn is_live(&self) -> bool {
        self.state == FilesetState::Writable
    }
}

/// The table of filesets.
#[derive(Debug, Default)]
pub(crate) struct FilesetTable {
    index: Mutex<Option<Index>>,
}

/// All entries of the table, in memory.
#[derive(Debug)]
pub(crate) struct Index {
    /// The table as a container.
    pub(super) table: Anode,
    nodes: BTreeMap<u32, Node>,
    names: BTreeMap<(Option<u32>, NamePart), u32>,
    /// Clones, by the fileset that each was taken of and its own name.
    clones: BTreeMap<(u32, NamePart), u32>,
    /// Holds, by the clone that each keeps and its own name; and their slots.
    holds: BTreeMap<(u32, NamePart), u32>,
    hold_slots: BTreeSet<u32>,
    /// Slots of each family, those too that are being freed.
    families: BTreeSet<(FilesetId, u32)>,
    /// Children in the tree of a family: slots of the parent and of the child (FT4).
    children: BTreeSet<(u32, u32)>,
    /// Those that receive a stream: no name leads to them.
    receiving: BTreeSet<u32>,
    /// Clones that somebody reads, and how many do: they can't be deleted.
    pinned: BTreeMap<u32, usize>,
    /// No slot below this is given out: each is in use, or was since the pool was opened (FT3).
    next_slot: u32,
    /// How often names of clones have come or gone since the pool was opened.
    clones_changes: u64,
}

/// A slot that a change has taken.
#[derive(Clone)]
pub(crate) struct TakenSlot {
    pub(crate) slot: u32,
    /// The table with a page more; `None`: there was one for the slot.
    grown: Option<Anode>,
}

/// The table's lock, with its index.
pub(crate) struct TableGuard<'t>(MutexGuard<'t, Option<Index>>);

impl std::ops::Deref for TableGuard<'_> {
    type Target = Index;

    fn deref(&self) -> &Index {
        self.0.as_ref().expect("it was made when the lock was taken")
    }
}

impl std::ops::DerefMut for TableGuard<'_> {
    fn deref_mut(&mut self) -> &mut Index {
        self.0.as_mut().expect("it was made when the lock was taken")
    }
}

impl FilesetTable {
    /// Takes the table's lock; reads the table if nobody has yet.
    pub(crate) fn lock(&self, store: &Store) -> FsResult<TableGuard<'_>> {
        let mut index = self.index.lock();
        if index.is_none() {
            *index = Some(Index::read(store)?);
        }
        Ok(TableGuard(index))
    }
}

impl Index {
    fn new(table: Anode) -> Index {
        Index {
            table,
            nodes: BTreeMap::new(),
            names: BTreeMap::new(),
            clones: BTreeMap::new(),
            holds: BTreeMap::new(),
            hold_slots: BTreeSet::new(),
            families: BTreeSet::new(),
            children: BTreeSet::new(),
            receiving: BTreeSet::new(),
            pinned: BTreeMap::new(),
            next_slot: 0,
            clones_changes: 0,
        }
    }

    fn read(store: &Store) -> FsResult<Index> {
        let mut index = Index::new(read_table(store)?);
        // A table has no holes: slots are taken from the lowest, and its pages stay.
        for page in 0..index.table.pages {
            let pointer = store.block(None, &index.table, page)?;
            let place = pointer.ok_or_else(|| no_page(&index.table, page))?.place;
            let view = store.view(None, place, PageKind::FilesetTable, entry_owner(page))?;
            for slot in 0..SLOTS_PER_PAGE {
                let number = page * wide(SLOTS_PER_PAGE) + wide(slot);
                let Ok(number) = u32::try_from(number) else { continue };
                if let Some(entry) = Fileset::decode_in(&view, slot, number).map_err(corrupt)? {
                    index.enter(Node::of(&entry));
                }
            }
        }
        Ok(index)
    }

    fn enter(&mut self, node: Node) {
        if let (FilesetState::Hold, Some(clone)) = (node.state, node.above) {
            self.holds.insert((clone, node.name), node.slot);
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
        if let (true, Some(of)) = (node.is_clone(), node.above) {
            self.clones.insert((of, node.name.clone()), node.slot);
            self.clones_changes += 1;
        }
        self.nodes.insert(node.slot, node);
    }

    /// Returns every fileset, by slot.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes_from(0)
    }

    /// Returns every fileset in `slot` and the next ones, by slot.
    pub(crate) fn nodes_from(&self, slot: u32) -> impl Iterator<Item = &Node> {
        self.nodes.range(slot..).map(|(_, node)| node)
    }

    /// Returns the fileset in `slot`.
    pub(crate) fn node(&self, slot: u32) -> Option<&Node> {
        self.nodes.get(&slot)
    }

    /// Returns the names by which a clone is held.
    pub(crate) fn holds_of(&self, clone: u32) -> impl Iterator<Item = &NamePart> {
        let all = self.holds.range((clone, NamePart::first())..);
        all.take_while(move |((of, _), _)| *of == clone).map(|((_, name), _)| name)
    }

    /// Returns the slot of the hold of a clone that is called `name`.
    pub(crate) fn hold_of(&self, clone: u32, name: &NamePart) -> Option<u32> {
        self.holds.get(&(clone, name.clone())).copied()
    }

    /// Returns every node of a family by slot, those too that are being freed.
    pub(crate) fn family(&self, family: FilesetId) -> impl Iterator<Item = &Node> {
        let of_family = self.families.range((family, 0)..=(family, u32::MAX));
        of_family.filter_map(|(_, slot)| self.nodes.get(slot))
    }

    /// Returns the children of a node in the tree of its family: what was taken or forked right
    /// after it.
    pub(crate) fn children_in_family(&self, slot: u32) -> impl Iterator<Item = &Node> {
        let children = self.children.range((slot, 0)..=(slot, u32::MAX));
        children.filter_map(|(_, child)| self.nodes.get(child))
    }

    /// Returns the clone that the one in `slot` goes back to, if that is in use, or the next before
    /// it that is.
    pub(crate) fn origin_of(&self, slot: u32) -> Option<u32> {
        let mut next = self.nodes.get(&slot)?.parent;
        // Each is above fewer: a table that says else ends here.
        for _ in 0..self.nodes.len() {
            let node = self.nodes.get(&next?)?;
            if !node.is_deleted() {
                return next;
            }
            next = node.parent;
        }
        None
    }

    /// Whether the node in `slot` goes back to the one in `origin`.
    pub(crate) fn goes_back_to(&self, slot: u32, origin: u32) -> bool {
        let mut next = self.origin_of(slot);
        // As in `origin_of`: a table that makes a ring ends here.
        for _ in 0..self.nodes.len() {
            match next {
                Some(found) if found == origin => return true,
                Some(found) => next = self.origin_of(found),
                None => return false,
            }
        }
        false
    }

    /// Keeps a clone from being deleted until [`Index::unpin`].
    pub(crate) fn pin(&mut self, slot: u32) {
        *self.pinned.entry(slot).or_insert(0) += 1;
    }

    /// Takes one [`Index::pin`] back.
    pub(crate) fn unpin(&mut self, slot: u32) {
        let left = self.pinned.remove(&slot).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            self.pinned.insert(slot, left);
        }
    }

    /// Whether somebody reads a clone.
    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        self.pinned.contains_key(&slot)
    }

    /// Returns the fileset of this name.
    pub(crate) fn find(&self, path: &[NamePart]) -> Option<&Node> {
        let mut slot = None;
        for part in path {
            slot = Some(*self.names.get(&(slot, part.clone()))?);
        }
        self.nodes.get(&slot?)
    }

    /// Returns the slot of the fileset of this name, which anybody may use.
    pub(crate) fn slot_of(&self, path: &[NamePart]) -> FsResult<u32> {
        let no_fileset = || FsError::NoFileset { name: joined(path) };
        let node = self.find(path).ok_or_else(no_fileset)?;
        self.check_here(node.slot)?;
        Ok(node.slot)
    }

    /// FM1: refuses a fileset that is on its way to another pool.
    pub(crate) fn check_here(&self, slot: u32) -> FsResult<()> {
        let moving = self.node(slot).and_then(|node| node.moving);
        if moving.is_some_and(Moving::is_closed) {
            return Err(on_its_way(self.path_of(slot)));
        }
        Ok(())
    }

    /// Returns the fileset directly below `above` that is called `name`.
    pub(crate) fn child(&self, above: Option<u32>, name: &NamePart) -> Option<&Node> {
        self.nodes.get(self.names.get(&(above, name.clone()))?)
    }

    /// Returns the clone of the fileset in `of` that is called `name`.
    pub(crate) fn clone_of(&self, of: u32, name: &NamePart) -> Option<&Node> {
        self.nodes.get(self.clones.get(&(of, name.clone()))?)
    }

    /// Returns the slot of a fileset, or of a clone of it.
    pub(crate) fn slot_of_node(
        &self,
        path: &[NamePart],
        clone: Option<&NamePart>,
    ) -> FsResult<u32> {
        let of = self.slot_of(path)?;
        let Some(name) = clone else { return Ok(of) };
        let no_clone = || FsError::NoFileset { name: clone_name(&joined(path), name) };
        self.clone_of(of, name).map(|node| node.slot).ok_or_else(no_clone)
    }

    /// Returns the clones of the fileset in `slot`.
    pub(crate) fn clones_of(&self, slot: u32) -> impl Iterator<Item = &Node> {
        let all = self.clones.range((slot, NamePart::first())..);
        let of_slot = all.take_while(move |((of, _), _)| *of == slot);
        of_slot.filter_map(|(_, slot)| self.nodes.get(slot))
    }

    /// Whether anything of this family was deleted, and is not all freed yet.
    pub(crate) fn is_family_freed(&self, family: FilesetId) -> bool {
        self.family(family).any(Node::is_deleted)
    }

    /// Whether a clone of this family was.
    pub(crate) fn is_clone_freed(&self, family: FilesetId) -> bool {
        self.family(family).any(|node| node.is_deleted() && node.state.is_of_clone())
    }

    /// Returns the filesets directly below the one in `slot`, those too that receive a stream.
    pub(crate) fn children(&self, slot: u32) -> impl Iterator<Item = &Node> {
        let named = self.names.range((Some(slot), NamePart::first())..);
        let named = named.take_while(move |((above, _), _)| *above == Some(slot));
        let live = named.map(|(_, slot)| slot).filter_map(|slot| self.nodes.get(slot));
        let receiving = self.receiving.iter().filter_map(|slot| self.nodes.get(slot));
        live.chain(receiving.filter(move |node| node.above == Some(slot)))
    }

    /// Returns the name of a fileset: its parts from the top, with slashes.
    pub(crate) fn path_of(&self, slot: u32) -> String {
        if let Some(node) = self.nodes.get(&slot).filter(|node| node.state.is_of_clone()) {
            return clone_name(
                &node.above.map_or_else(String::new, |of| self.path_of(of)),
                &node.name,
            );
        }
        let (mut parts, mut next) = (Vec::new(), Some(slot));
        // No path is longer than there are filesets: a table that contradicts FT2 ends here.
        while let Some(node) = next.and_then(|slot| self.nodes.get(&slot))
            && parts.len() <= self.nodes.len()
        {
            parts.push(node.name.as_str());
            next = node.above;
        }
        parts.reverse();
        parts.join("/")
    }

    /// Refuses `count` more, if the table has no room for all of them.
    pub(crate) fn check_count(&self, count: usize) -> FsResult<()> {
        let is_full = self.nodes.len() + self.hold_slots.len() + count > FILESETS_MAX;
        if is_full { Err(FsError::TooManyFilesets { most: FILESETS_MAX }) } else { Ok(()) }
    }

    /// Returns a slot that is free, with a page of the table for it.
    pub(crate) fn take_slot(&self, store: &Store, change: &mut Change<'_>) -> FsResult<TakenSlot> {
        self.check_count(1)?;
        self.take_slot_after(store, change, None)
    }

    /// As [`Index::take_slot`], for one who has taken `last` in the same change, after asking
    /// [`Index::check_count`] for all that he takes.
    pub(crate) fn take_slot_after(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        last: Option<&TakenSlot>,
    ) -> FsResult<TakenSlot> {
        let first = last.map_or(self.next_slot, |last| last.slot + 1);
        let mut free = first.max(self.next_slot)..FILESET_SLOTS_MAX;
        let is_free =
            |slot: &u32| !self.nodes.contains_key(slot) && !self.hold_slots.contains(slot);
        let slot = free.find(is_free).ok_or(FsError::TooManyFilesets { most: FILESETS_MAX })?;
        let grown = last.and_then(|last| last.grown.clone());
        let (page, _) = entry_position(slot);
        if store.block(Some(change), grown.as_ref().unwrap_or(&self.table), page)?.is_some() {
            return Ok(TakenSlot { slot, grown });
        }
        let mut table = grown.unwrap_or_else(|| self.table.clone());
        store.add_content(change, &mut table, page, PageKind::FilesetTable)?;
        write_table(store, change, &table)?;
        Ok(TakenSlot { slot, grown: Some(table) })
    }

    /// Returns how many pages the table is to get before it takes a fileset more; 0: none. It gets
    /// as many as it has, up to a bound.
    pub(crate) fn pages_to_grow(&self) -> u64 {
        let (page, _) = entry_position(self.next_slot);
        let is_full = page >= self.table.pages;
        if is_full && self.next_slot < FILESET_SLOTS_MAX {
            self.table.pages.min(GROWTH_PAGES_MAX)
        } else {
            0
        }
    }

    /// Adds empty pages to the table, side by side where there is room for that. Nothing is noted
    /// before [`Index::note_grown`].
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

    /// Notes a table that [`Index::grow`] made: the change has ended.
    pub(crate) fn note_grown(&mut self, table: Anode) {
        self.table = table;
    }

    /// Returns where the page of the entry in `slot` is, for one who has `taken` it.
    pub(crate) fn entry_place(
        &self,
        store: &Store,
        change: &Change<'_>,
        taken: &TakenSlot,
    ) -> FsResult<Place> {
        let table = taken.grown.as_ref().unwrap_or(&self.table);
        Index::entry_at(store, Some(change), table, taken.slot).map(|(place, ..)| place)
    }

    /// Returns where the entry in `slot` is, in a table that may have grown: the place of its page,
    /// and its slot in the page.
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

    /// Returns where the page of the entry in `slot` is.
    pub(crate) fn place_of_entry(&self, store: &Store, slot: u32) -> FsResult<Place> {
        Index::entry_at(store, None, &self.table, slot).map(|(place, ..)| place)
    }

    /// Makes `change` part of the class that has changed the page of the entry in `slot` last, and
    /// whoever changes it next part of this one's.
    pub(crate) fn note_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u32,
    ) -> FsResult<()> {
        let (place, owner, _) = Index::entry_at(store, None, &self.table, slot)?;
        change.note(place, PageKind::FilesetTable, owner)
    }

    /// Writes the entry of a fileset that nobody has opened.
    pub(crate) fn write_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        entry: &Fileset,
        taken: Option<&TakenSlot>,
    ) -> FsResult<()> {
        let table = taken.and_then(|taken| taken.grown.as_ref()).unwrap_or(&self.table);
        let bytes = Index::entry_to_edit(store, change, table, entry.slot)?;
        bytes.copy_from_slice(&entry.encode());
        if taken.is_some() {
            // From now on operations add to them.
            let counts = Index::counts_to_edit(store, change, table, entry.slot)?;
            counts.copy_from_slice(&entry.encode_counts());
        }
        Ok(())
    }

    /// Clears the entry in `slot`.
    pub(crate) fn clear_entry(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        slot: u32,
    ) -> FsResult<()> {
        Index::entry_to_edit(store, change, &self.table, slot)?.fill(0);
        Index::counts_to_edit(store, change, &self.table, slot)?.fill(0);
        Ok(())
    }

    fn counts_to_edit<'c>(
        store: &Store,
        change: &'c mut Change<'_>,
        table: &Anode,
        slot: u32,
    ) -> FsResult<&'c mut [u8]> {
        let (place, owner, in_page) = Index::entry_at(store, Some(change), table, slot)?;
        let range = counts_offset(in_page)..counts_offset(in_page) + COUNTS_BYTES;
        change.edit_range(place, PageKind::FilesetTable, owner, range)
    }

    fn entry_to_edit<'c>(
        store: &Store,
        change: &'c mut Change<'_>,
        table: &Anode,
        slot: u32,
    ) -> FsResult<&'c mut [u8]> {
        // CRASH: FT5. Who changed the index has ended his change before he gave its lock back.
        change.close_all_before();
        let (place, owner, in_page) = Index::entry_at(store, Some(change), table, slot)?;
        change.edit_range(place, PageKind::FilesetTable, owner, slot_range(in_page))
    }

    /// Reads the entry in `slot`.
    pub(crate) fn read_entry(&self, store: &Store, slot: u32) -> FsResult<Fileset> {
        self.read_entry_in(store, None, slot)
    }

    /// Reads the entry in `slot` as `change` has it.
    pub(crate) fn read_entry_in(
        &self,
        store: &Store,
        change: Option<&Change<'_>>,
        slot: u32,
    ) -> FsResult<Fileset> {
        let (place, owner, in_page) = Index::entry_at(store, change, &self.table, slot)?;
        let view = store.view(change, place, PageKind::FilesetTable, owner)?;
        Fileset::decode_in(&view, in_page, slot).map_err(corrupt)?.ok_or(FsError::NotFound)
    }

    /// Returns a number that differs whenever names of clones have come or gone.
    pub(crate) fn clones_changes(&self) -> u64 {
        self.clones_changes
    }

    /// Notes an entry as it now is on disk: the change that wrote it has ended.
    pub(crate) fn note(&mut self, entry: &Fileset) {
        self.drop_names(entry.slot);
        self.enter(Node::of(entry));
    }

    /// Notes the entry of a new fileset, as [`Index::note`] does.
    pub(crate) fn note_new(&mut self, entry: &Fileset, taken: TakenSlot) {
        self.next_slot = taken.slot + 1;
        self.table = taken.grown.unwrap_or_else(|| self.table.clone());
        self.note(entry);
    }

    /// Notes that the entry in `slot` is cleared: the change that did so has ended.
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
            if let (true, Some(of)) = (old.is_clone(), old.above) {
                self.clones.remove(&(of, old.name.clone()));
                self.clones_changes += 1;
            }
            self.families.remove(&(old.family, slot));
            if let Some(parent) = old.parent {
                self.children.remove(&(parent, slot));
            }
        }
    }
}

/// Returns what is said to whoever would use a fileset that is on its way to another pool.
pub(crate) fn on_its_way(name: String) -> FsError {
    let by = "it is on its way to another pool, and nobody uses it: `holdfast fileset move` goes \
              on with that, or gives it up";
    FsError::FilesetInUse { name, by: by.to_owned() }
}

/// Returns the name of a clone, as users write it.
fn clone_name(of: &str, name: &NamePart) -> String {
    format!("{of}@{}", name.as_str())
}

/// Returns the fileset table as a container, from the pool's root page.
pub(super) fn read_table(store: &Store) -> FsResult<Anode> {
    let root_place = store.geometry().root_place();
    let root = store.view(None, root_place, PageKind::Anode, PageOwner::default())?;
    let (_, root_slot) = page_and_slot(POOL_FILESET_TABLE);
    decode_slot(&root, FilesetId(0), POOL_FILESET_TABLE, root_slot)?
        .ok_or_else(|| corrupt(DefectCode::FS007.found("its anode is free")))
}

/// Writes the fileset table's anode to the pool's root page.
pub(super) fn write_table(store: &Store, change: &mut Change<'_>, table: &Anode) -> FsResult<()> {
    let root_place = store.geometry().root_place();
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

    fn node(slot: u32, above: Option<u32>) -> Node {
        let name = NamePart::new(&format!("f{slot}")).expect("a name");
        let mut entry = Fileset::new(FilesetId(u64::from(slot) + 1), slot, name, 12);
        entry.above = above;
        Node::of(&entry)
    }

    /// Goal: a table takes as many filesets as it may, refuses one more in words, and finds those
    /// below one among all of them.
    #[test]
    fn a_full_table_of_filesets_refuses_one_more() {
        let table = Anode::new(AnodeKind::Internal, AnodeNo(1), FilesetId(0), 12);
        let mut index = Index::new(table);
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
