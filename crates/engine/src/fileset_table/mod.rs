//! A fileset: its anode table, the map of free anodes, and the orphan list.
//!
//! # Invariants
//!
//! - F1: The anode map has a bit for each anode in use, and for no other.
//! - F2: An unlinked anode is in the orphan list until it is freed. A file with a truncate in
//!   progress is there until all blocks past its end are freed. Recovery completes both.
//! - F3: A freed anode number is reused only after a checkpoint has written the freeing back.
//! - F4: Beside the entry is the sum of the fragments of all anodes and of the anode table: the
//!   space referenced by the fileset. A write of an anode adds the difference from the slot's old
//!   contents.
//!
//! # Concurrency
//!
//! [`FilesetGuard`] is the fileset's lock, held from the first allocation of an anode or orphan
//! slot to the end of the transaction. Reading anodes needs only the vnode's lock.
//!
//! Long: the state under the lock and its restoration after an abandoned change belong together.

pub(crate) mod birth;
pub(crate) mod deletion;
pub(crate) mod diff;
pub(crate) mod family;
pub(crate) mod moved;
mod orphans;
mod over;
pub(crate) mod places;
pub(crate) mod quota;
mod received;
pub(crate) mod reserved;
pub(crate) mod table;
mod unshare;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::orphans::ORPHANS_PER_PAGE;
use self::quota::{PreviousAnodeUsage, QuotaTables};
use format::anode::{
    ANODE_BYTES, ANODE_MAP_ANODE, Anode, FIRST_FILE_ANODE, FRAGMENTS_OFFSET, ORPHAN_ANODE,
    page_and_slot, slot_offset,
};
use format::bitmap::{self, BITS_PER_PAGE};
use format::bytes::is_zero;
use format::defect::DefectCode;
use format::fileset::{Fileset, FilesetState, MoveState, counts_offset};
use format::ids::{ANODES_MAX, AnodeNo, Epoch, FilesetId, Lsn, Place};
use format::page::{PAGE_BYTES, PageBytes, PageKind, PageOwner, SLOTS_PER_PAGE, read_u64};
use format::quota::QuotaCharge;
use runtime::planted;

use crate::buffer::corrupt;
use crate::container::{content_owner, no_page};
use crate::convert::{narrow, wide};
use crate::error::{FsError, FsResult};
use crate::store::{Change, Store};
use crate::sync::{Mutex, MutexGuard, RwLock};
use crate::usage::{FilesetLimits, Usage};

const NO_PAGE: u64 = u64::MAX;
/// First anode number that no file can have. The last two numbers belong to the virtual directory
/// of snapshots and to the link to it.
pub(crate) const FILE_NUMBERS_END: u64 = ANODES_MAX - 2;

#[derive(Debug)]
pub(crate) struct MountedFileset {
    /// Owner recorded in its pages and blocks.
    pub(crate) family: FilesetId,
    /// Identity in file handles.
    pub(crate) uuid: [u8; 16],
    pub(crate) slot: u32,
    /// Default block size of files: binary logarithm.
    pub(crate) block_shift: u8,
    pub(crate) usage: Arc<Usage>,
    pub(crate) quotas: QuotaTables,
    /// Place of the fileset table page with the entry. Changes only with the gate closed, and the
    /// fileset and the table locked.
    entry_place: AtomicU64,
    /// Added to an epoch to make a generation.
    generation_base: u64,
    table: RwLock<Arc<Anode>>,
    /// Number of a table page that a running change frees, until `table` reflects that.
    page_given_up: AtomicU64,
    state: Mutex<MountedFilesetState>,
}

#[derive(Debug)]
struct MountedFilesetState {
    entry: Fileset,
    /// Whether the fileset has ended: its slot has another entry, or none.
    is_over: bool,
    /// No anode number below this is free, except for deferred frees.
    first_free: u64,
    /// Deferred frees of anodes (F3).
    pending: VecDeque<(Lsn, u64)>,
    pending_set: BTreeSet<u64>,
    orphan_anode: Anode,
    orphan_slots_free: BTreeSet<u64>,
    orphan_slots_end: u64,
    map_anode: Anode,
}

/// The fileset's lock, together with the state of the change that holds it.
pub(crate) struct FilesetGuard<'f> {
    fileset: &'f MountedFileset,
    state: MutexGuard<'f, MountedFilesetState>,
    before: Option<Box<FilesetRollback>>,
    freed: Vec<u64>,
    table: Arc<Anode>,
    /// Whether the change has modified `table`. The added pages are private to this guard until the
    /// change ends.
    is_table_new: bool,
    /// Number and place of the table page that this change used last.
    table_page: Option<(u64, Place)>,
}

#[derive(Clone, Copy, Debug)]
enum OrphanSlotChange {
    Taken(u64),
    Freed(u64),
}

#[derive(Clone, Debug)]
struct FilesetRollback {
    entry: Fileset,
    first_free: u64,
    /// `None` if unchanged.
    orphan_anode: Option<Anode>,
    slot_changes: Vec<OrphanSlotChange>,
    orphan_slots_end: u64,
    map_anode: Option<Anode>,
}

impl MountedFileset {
    pub(crate) fn open(store: &Store, slot: u32) -> FsResult<MountedFileset> {
        let (entry, entry_place) = read_entry(store, slot)?;
        if entry.state.cursor().is_some() {
            return Err(FsError::Stale);
        }
        let table = Arc::new(entry.table_anode());
        let read = |number| {
            read_anode_in(store, &table, None, entry.family, number)?
                .ok_or_else(|| corrupt(DefectCode::AN006.found("is free").of(entry.family, number)))
        };
        let (orphan_anode, map_anode) = (read(ORPHAN_ANODE)?, read(ANODE_MAP_ANODE)?);
        let geometry = store.geometry();
        if orphan_anode.pages > geometry.device_bytes / wide(PAGE_BYTES) {
            let what = "the orphan list has more pages than the pool has room for";
            return Err(corrupt(DefectCode::AN005.found(what).of(entry.family, ORPHAN_ANODE)));
        }
        let quotas = QuotaTables::load(store, &table, entry.family)?;
        let limits = limits_of(&entry, geometry.fragment_shift);
        let usage = Arc::new(Usage::new(entry.fragments, limits, store.alloc.kept.clone()));
        let state = MountedFilesetState {
            first_free: FIRST_FILE_ANODE.0,
            pending: VecDeque::new(),
            pending_set: BTreeSet::new(),
            orphan_slots_free: BTreeSet::new(),
            orphan_slots_end: orphan_anode.pages * ORPHANS_PER_PAGE,
            orphan_anode,
            map_anode,
            entry: entry.clone(),
            is_over: false,
        };
        let fileset = MountedFileset {
            family: entry.family,
            uuid: entry.uuid,
            slot,
            block_shift: entry.block_shift,
            usage,
            quotas,
            entry_place: AtomicU64::new(entry_place.bits()),
            generation_base: entry.generation_base,
            table: RwLock::new(table),
            page_given_up: AtomicU64::new(NO_PAGE),
            state: Mutex::new(state),
        };
        fileset.find_free_orphan_slots(store);
        Ok(fileset)
    }

    pub(crate) fn read_anode(&self, store: &Store, number: AnodeNo) -> FsResult<Option<Anode>> {
        loop {
            let table = Arc::clone(&self.table.read());
            let found = read_anode_in(store, &table, None, self.family, number);
            let is_going = self.page_given_up.load(Ordering::SeqCst) == page_and_slot(number).0;
            if self.is_still(&table) {
                // The place of `page_given_up` may be in use again before `table` is updated. The
                // page had only free anodes.
                let is_other = matches!(&found, Err(FsError::Corrupt { defect, .. })
                    if defect.code == DefectCode::PG007);
                return if is_going && is_other { Ok(None) } else { found };
            }
        }
    }

    /// Whether `table` is current. If not, a page found through it may be freed or outdated, and
    /// the caller retries.
    fn is_still(&self, table: &Arc<Anode>) -> bool {
        Arc::ptr_eq(table, &self.table.read())
    }

    /// Reads an anode through the pages dirtied by `change`, under its vnode's lock.
    pub(crate) fn read_anode_of(
        &self,
        store: &Store,
        change: &Change<'_>,
        number: AnodeNo,
    ) -> FsResult<Option<Anode>> {
        let table = Arc::clone(&self.table.read());
        read_anode_in(store, &table, Some(change), self.family, number)
    }

    pub(crate) fn write_anode(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        anode: &Anode,
    ) -> FsResult<()> {
        let table = Arc::clone(&self.table.read());
        let before = self.write_anode_in(store, &table, change, anode)?;
        self.count_anode(store, change, before, Some(anode))
    }

    /// Counts the difference that a write of an anode makes (F4).
    fn count_anode(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        before: PreviousAnodeUsage,
        after: Option<&Anode>,
    ) -> FsResult<()> {
        if let Some(owned) = before.counted {
            self.count_owners(store, change, owned, after.and_then(QuotaCharge::of))?;
        }
        let fragments = after.map_or(0, |anode| anode.fragments);
        self.count_fragments(change, i64_of(fragments) - i64_of(before.fragments))
    }

    fn write_anode_in(
        &self,
        store: &Store,
        table: &Anode,
        change: &mut Change<'_>,
        anode: &Anode,
    ) -> FsResult<PreviousAnodeUsage> {
        let (place, bytes) = anode_slot(store, table, change, anode.number)?;
        let before = self.before(anode.number, bytes);
        bytes.copy_from_slice(&anode.encode());
        anode_is_at(change, anode.number, place)?;
        Ok(before)
    }

    /// Adds to the count of referenced fragments (F4).
    fn count_fragments(&self, change: &mut Change<'_>, fragments: i64) -> FsResult<()> {
        if fragments == 0 {
            return Ok(());
        }
        let (page, slot) = entry_position(self.slot);
        let at = (self.entry_place(), PageKind::FilesetTable, entry_owner(page));
        change.add_to_count(at, counts_offset(slot), fragments)?;
        change.note_usage(&self.usage, fragments, 0);
        Ok(())
    }

    fn entry_place(&self) -> Place {
        Place::from_bits(self.entry_place.load(Ordering::Acquire))
    }

    pub(crate) fn lock(&self) -> FilesetGuard<'_> {
        let state = self.state.lock();
        FilesetGuard {
            fileset: self,
            state,
            before: None,
            freed: Vec::new(),
            table: Arc::clone(&self.table.read()),
            is_table_new: false,
            table_page: None,
        }
    }

    /// Makes anodes freed before `tail` available (F3).
    pub(crate) fn release(&self, tail: Lsn) {
        let mut state = self.state.lock();
        while state.pending.front().is_some_and(|(lsn, _)| *lsn < tail) {
            let (_, number) = state.pending.pop_front().expect("looked at it");
            state.pending_set.remove(&number);
            state.first_free = state.first_free.min(number);
        }
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        self.state.lock().entry.state == FilesetState::Snapshot
    }

    /// Returns the epoch up to which its blocks may be shared with its parent.
    pub(crate) fn shared_epoch(&self) -> Epoch {
        self.state.lock().entry.shared_epoch
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().entry.moving.is_some_and(MoveState::is_closed)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.state.lock().entry.is_read_only
    }

    pub(crate) fn anodes_end(&self) -> u64 {
        self.state.lock().entry.anodes_end
    }

    pub(crate) fn anodes_used(&self) -> u64 {
        self.state.lock().entry.anodes_used
    }
}

impl FilesetGuard<'_> {
    fn save(&mut self) {
        if self.before.is_none() {
            let state = &self.state;
            self.before = Some(Box::new(FilesetRollback {
                entry: state.entry.clone(),
                first_free: state.first_free,
                orphan_anode: None,
                slot_changes: Vec::new(),
                orphan_slots_end: state.orphan_slots_end,
                map_anode: None,
            }));
        }
    }

    fn saved(&mut self) -> (&mut MountedFilesetState, &mut FilesetRollback) {
        self.save();
        (&mut self.state, self.before.as_mut().expect("saved above"))
    }

    fn note_slot(&mut self, change: OrphanSlotChange) {
        self.saved().1.slot_changes.push(change);
    }

    /// Allocates an anode number. The caller writes the anode.
    pub(crate) fn allocate_anode(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
    ) -> FsResult<AnodeNo> {
        self.save();
        let (number, map_page) = self.find_free(store, change)?;
        let map_page = match map_page {
            Some(place) => place,
            None => self.ensure_map_page(store, change, number)?,
        };
        self.ensure_table_page(store, change, number)?;
        self.check_free(store, change, number)?;
        self.mark(change, map_page, number, true)?;
        let state = &mut *self.state;
        state.first_free = number + 1;
        state.entry.anodes_end = state.entry.anodes_end.max(number + 1);
        state.entry.anodes_used += 1;
        change.count_anodes(1);
        self.write_entry(change)?;
        Ok(AnodeNo(number))
    }

    /// Refuses a number that is free in the anode map but in use in the table: a map write was
    /// lost, and a new file would overwrite the old one.
    fn check_free(&self, store: &Store, change: &Change<'_>, number: u64) -> FsResult<()> {
        let (page, slot) = page_and_slot(AnodeNo(number));
        let Some((_, place)) = self.table_page.filter(|(known, _)| *known == page) else {
            return Ok(());
        };
        let at = (place, PageKind::Anode, content_owner(&self.table, page));
        if store.peek(Some(change), at, slot_range(slot), is_zero)? {
            return Ok(());
        }
        Err(store.journal.fail_corrupt(DefectCode::AM001.found(format!(
            "anode {number} of {} is free in the anode map and in use in the anode table: a \
             write of one of them was lost. Copy what can be read, and run `holdfast check POOL`",
            self.fileset.family
        ))))
    }

    fn find_free(&self, store: &Store, change: &Change<'_>) -> FsResult<(u64, Option<Place>)> {
        let (mut number, end) = (self.state.first_free, self.state.entry.anodes_end);
        let mut last = None;
        while number < end {
            let page = number / u64::from(BITS_PER_PAGE);
            let Some(place) = self.map_page(store, change, page)? else {
                return Ok((number, None));
            };
            last = Some((page, place));
            let owner = content_owner(&self.state.map_anode, page);
            let view = store.view(Some(change), place, PageKind::AnodeMap, owner)?;
            let first = page * u64::from(BITS_PER_PAGE);
            let limit = narrow((end - first).min(u64::from(BITS_PER_PAGE)));
            match bitmap::first_clear(&view, narrow(number - first), limit) {
                Some(bit)
                    if self.state.pending_set.contains(&(first + u64::from(bit)))
                        && !planted!(AnodeReusedEarly) =>
                {
                    number = first + u64::from(bit) + 1;
                }
                Some(bit) => return Ok((first + u64::from(bit), Some(place))),
                None => number = first + u64::from(BITS_PER_PAGE),
            }
        }
        let fresh = end.max(FIRST_FILE_ANODE.0);
        if fresh >= FILE_NUMBERS_END {
            return Err(FsError::NoSpace);
        }
        let place = last.filter(|(page, _)| fresh / u64::from(BITS_PER_PAGE) == *page);
        Ok((fresh, place.map(|(_, place)| place)))
    }

    fn map_page(&self, store: &Store, change: &Change<'_>, page: u64) -> FsResult<Option<Place>> {
        let pointer = store.block(Some(change), &self.state.map_anode, page)?;
        Ok(pointer.map(|pointer| pointer.place))
    }

    fn ensure_map_page(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: u64,
    ) -> FsResult<Place> {
        let page = number / u64::from(BITS_PER_PAGE);
        if let Some(place) = self.map_page(store, change, page)? {
            return Ok(place);
        }
        let (state, saved) = self.saved();
        saved.map_anode.get_or_insert_with(|| state.map_anode.clone());
        store.add_content(change, &mut state.map_anode, page, PageKind::AnodeMap)?;
        let anode = self.state.map_anode.clone();
        self.fileset.write_anode(store, change, &anode)?;
        self.map_page(store, change, page)?.ok_or_else(|| no_page(&anode, page))
    }

    fn ensure_table_page(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: u64,
    ) -> FsResult<()> {
        let (page, _) = page_and_slot(AnodeNo(number));
        if let Some(pointer) = store.block(Some(change), &self.table, page)? {
            self.table_page = Some((page, pointer.place));
            return Ok(());
        }
        let mut table = Anode::clone(&self.table);
        store.add_content(change, &mut table, page, PageKind::Anode)?;
        self.set_table(change, table)?;
        self.table_page = None;
        Ok(())
    }

    fn set_table(&mut self, change: &mut Change<'_>, table: Anode) -> FsResult<()> {
        let more = i64_of(table.fragments) - i64_of(self.table.fragments);
        self.fileset.count_fragments(change, more)?;
        self.state.entry.set_table_anode(&table);
        self.table = Arc::new(table);
        self.is_table_new = true;
        Ok(())
    }

    /// Reads an anode through the pages dirtied by `change`, and through the change's own table.
    pub(crate) fn read_anode(
        &self,
        store: &Store,
        change: &Change<'_>,
        number: AnodeNo,
    ) -> FsResult<Option<Anode>> {
        read_anode_in(store, &self.table, Some(change), self.fileset.family, number)
    }

    pub(crate) fn write_anode(
        &self,
        store: &Store,
        change: &mut Change<'_>,
        anode: &Anode,
    ) -> FsResult<()> {
        let (page, slot) = page_and_slot(anode.number);
        let known = self.table_page.filter(|(known, _)| *known == page);
        let before = match known {
            None => self.fileset.write_anode_in(store, &self.table, change, anode)?,
            Some((_, place)) => {
                let owner = content_owner(&self.table, page);
                let bytes = change.edit_range(place, PageKind::Anode, owner, slot_range(slot))?;
                let before = self.fileset.before(anode.number, bytes);
                bytes.copy_from_slice(&anode.encode());
                anode_is_at(change, anode.number, place)?;
                before
            }
        };
        self.fileset.count_anode(store, change, before, Some(anode))
    }

    fn mark(
        &self,
        change: &mut Change<'_>,
        map_page: Place,
        number: u64,
        is_used: bool,
    ) -> FsResult<()> {
        let page = number / u64::from(BITS_PER_PAGE);
        let bit = narrow(number % u64::from(BITS_PER_PAGE));
        let owner = content_owner(&self.state.map_anode, page);
        change.set_bit(map_page, PageKind::AnodeMap, owner, bit, is_used)
    }

    /// Returns the entry as changed so far. Its fragments are those before the change.
    pub(crate) fn entry(&self) -> Fileset {
        let fragments = self.fileset.usage.counts().used;
        Fileset { fragments, ..self.state.entry.clone() }
    }

    pub(crate) fn entry_place(&self) -> Place {
        self.fileset.entry_place()
    }

    pub(crate) fn change_entry(
        &mut self,
        change: &mut Change<'_>,
        edit: impl FnOnce(&mut Fileset),
    ) -> FsResult<Fileset> {
        // CRASH: earlier changes of the index are durable first, or together (FT5).
        change.close_all_before();
        self.save();
        edit(&mut self.state.entry);
        self.write_entry(change)?;
        Ok(self.entry())
    }

    fn write_entry(&self, change: &mut Change<'_>) -> FsResult<()> {
        self.check_current()?;
        let (page, slot) = entry_position(self.fileset.slot);
        let (place, owner) = (self.entry_place(), entry_owner(page));
        let bytes = change.edit_range(place, PageKind::FilesetTable, owner, slot_range(slot))?;
        bytes.copy_from_slice(&self.state.entry.encode());
        Ok(())
    }

    pub(crate) fn free_anode(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: AnodeNo,
    ) -> FsResult<()> {
        self.free_anodes(store, change, &[number])
    }

    /// Frees anodes with empty containers.
    pub(crate) fn free_anodes(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        numbers: &[AnodeNo],
    ) -> FsResult<()> {
        self.save();
        for number in numbers {
            self.clear_anode(store, change, *number)?;
        }
        self.write_entry(change)
    }

    fn clear_anode(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: AnodeNo,
    ) -> FsResult<()> {
        let (_, bytes) = anode_slot(store, &self.table, change, number)?;
        let before = self.fileset.before(number, bytes);
        bytes.fill(0);
        self.fileset.count_anode(store, change, before, None)?;
        self.drop_empty_page(store, change, number)?;
        let page = number.0 / u64::from(BITS_PER_PAGE);
        let place = self.map_page(store, change, page)?;
        let place = place.ok_or_else(|| no_page(&self.state.map_anode, page))?;
        self.mark(change, place, number.0, false)?;
        let used = self.state.entry.anodes_used.checked_sub(1);
        self.state.entry.anodes_used = used
            .ok_or_else(|| corrupt(DefectCode::FS003.found("counts fewer anodes than it has")))?;
        change.count_anodes(-1);
        self.freed.push(number.0);
        Ok(())
    }

    /// Frees an anode table page without used anodes. A later allocation recreates it.
    fn drop_empty_page(
        &mut self,
        store: &Store,
        change: &mut Change<'_>,
        number: AnodeNo,
    ) -> FsResult<()> {
        let (page, _) = page_and_slot(number);
        let pointer = store.block(Some(change), &self.table, page)?;
        let place = pointer.ok_or_else(|| no_page(&self.table, page))?.place;
        let at = (place, PageKind::Anode, content_owner(&self.table, page));
        for slot in 0..SLOTS_PER_PAGE {
            if !store.peek(Some(change), at, slot_range(slot), is_zero)? {
                return Ok(());
            }
        }
        let mut table = Anode::clone(&self.table);
        self.fileset.page_given_up.store(page, Ordering::SeqCst);
        store.remove_content(change, &mut table, page, PageKind::Anode)?;
        self.table_page = None;
        self.set_table(change, table)
    }

    /// Makes the allocations permanent. The change has ended at `lsn`.
    pub(crate) fn settle(mut self, lsn: Lsn) {
        self.before = None;
        if self.is_table_new {
            *self.fileset.table.write() = Arc::clone(&self.table);
        }
        for number in std::mem::take(&mut self.freed) {
            self.state.pending.push_back((lsn, number));
            self.state.pending_set.insert(number);
        }
    }
}

impl Drop for FilesetGuard<'_> {
    fn drop(&mut self) {
        self.fileset.page_given_up.store(NO_PAGE, Ordering::SeqCst);
        let Some(before) = self.before.take() else { return };
        self.state.entry = before.entry;
        self.state.first_free = before.first_free;
        self.state.orphan_slots_end = before.orphan_slots_end;
        if let Some(orphan_anode) = before.orphan_anode {
            self.state.orphan_anode = orphan_anode;
        }
        if let Some(map_anode) = before.map_anode {
            self.state.map_anode = map_anode;
        }
        for change in before.slot_changes.into_iter().rev() {
            match change {
                OrphanSlotChange::Taken(slot) => self.state.orphan_slots_free.insert(slot),
                OrphanSlotChange::Freed(slot) => self.state.orphan_slots_free.remove(&slot),
            };
        }
        // Drops free slots on pages whose allocation is undone.
        self.state.orphan_slots_free.split_off(&before.orphan_slots_end);
    }
}

fn entry_position(slot: u32) -> (u64, usize) {
    page_and_slot(AnodeNo(u64::from(slot)))
}

fn entry_owner(page: u64) -> PageOwner {
    PageOwner { index: page, ..PageOwner::default() }
}

fn read_entry(store: &Store, slot: u32) -> FsResult<(Fileset, Place)> {
    let table = table::read_table(store)?;
    let (page, entry_slot) = entry_position(slot);
    let pointer = store.block(None, &table, page)?;
    let place = pointer.ok_or_else(|| no_page(&table, page))?.place;
    let view = store.view(None, place, PageKind::FilesetTable, entry_owner(page))?;
    let entry = Fileset::decode_in(&view, entry_slot, slot).map_err(corrupt)?;
    Ok((entry.ok_or(FsError::NotFound)?, place))
}

pub(crate) fn limits_of(entry: &Fileset, fragment_shift: u8) -> FilesetLimits {
    let quota = (entry.quota_bytes > 0).then_some(entry.quota_bytes >> fragment_shift);
    FilesetLimits { quota, reservation: entry.reservation_bytes >> fragment_shift }
}

fn fragments_in(slot: &[u8]) -> u64 {
    read_u64(slot, FRAGMENTS_OFFSET)
}

pub(crate) fn i64_of(fragments: u64) -> i64 {
    i64::try_from(fragments).unwrap_or(i64::MAX)
}

fn decode_slot(
    page: &PageBytes,
    fileset: FilesetId,
    number: AnodeNo,
    slot: usize,
) -> FsResult<Option<Anode>> {
    let bytes: &[u8; ANODE_BYTES] =
        page[slot_offset(slot)..].first_chunk().expect("slots lie inside the page");
    Anode::decode(bytes, fileset, number).map_err(corrupt)
}

fn read_anode_in(
    store: &Store,
    table: &Anode,
    change: Option<&Change<'_>>,
    fileset: FilesetId,
    number: AnodeNo,
) -> FsResult<Option<Anode>> {
    let (page, slot) = page_and_slot(number);
    match store.content(change, table, page, PageKind::Anode)? {
        Some(view) => decode_slot(&view, fileset, number, slot),
        None => Ok(None),
    }
}

fn anode_slot<'c>(
    store: &Store,
    table: &Anode,
    change: &'c mut Change<'_>,
    number: AnodeNo,
) -> FsResult<(Place, &'c mut [u8])> {
    let (page, slot) = page_and_slot(number);
    let pointer = store.block(Some(change), table, page)?;
    let pointer = pointer.ok_or_else(|| no_page(table, page))?;
    let owner = content_owner(table, page);
    let bytes = change.edit_range(pointer.place, PageKind::Anode, owner, slot_range(slot))?;
    Ok((pointer.place, bytes))
}

fn anode_is_at(change: &mut Change<'_>, number: AnodeNo, place: Place) -> FsResult<()> {
    if change.anode_is_at(number, place) { Ok(()) } else { Err(FsError::NoSpace) }
}

fn slot_range(slot: usize) -> Range<usize> {
    slot_offset(slot)..slot_offset(slot) + ANODE_BYTES
}

const _: () = assert!(ANODE_BYTES == 512 && format::fileset::FILESET_BYTES == ANODE_BYTES);
