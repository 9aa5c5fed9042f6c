//! Moving metadata pages out of a segment that is to be removed, while the pool is in use.
//!
//! As for shared blocks ([`crate::relocate::shared`]), the pointers to a page in all nodes of its
//! family are changed in place, in snapshots too. But any operation may change a page, unlike the
//! copy of a block. So the gates of the family's nodes are closed during the move.
//!
//! # Invariants
//!
//! - PM1: A moved page keeps its birth, in its header and in every pointer.
//! - PM2: All pointers to a page change in one transaction, or none does. So does the split hint to
//!   a directory page, in the pointer to the page from which that was split.
//! - PM3: A move changes only places: no content, counts, thresholds or highest births.
//! - PM4: From the first lookup to the end of a move, only readers that repeat a failed lookup use
//!   the places of the family's pages. Places in memory are updated before other threads continue.
//! - PM5: A move frees a page once, when no node points to it. The old page keeps its contents,
//!   without a tombstone. The cache marks its place as left, so that a late reader repeats its
//!   lookup.
//!
//! # Crashes
//!
//! The copy, the pointers and the allocation bits of both places are in one transaction: a crash
//! keeps all or nothing. The copy includes changes of an open class, so the move joins that class.
//! All other classes are closed first, since the move relies on their changes of the family, such
//! as a deletion that just ended (FT5).
//!
//! A copy is written back before the pointers to it (K2). Other freed pages get a tombstone, which
//! shows a stale pointer as a defect. Here a pointer written back late must find the old page,
//! which verifies and has the copied content. The place is reused only after the checkpoint that
//! writes the pointers back (G2), and never in a group that is removed.
//!
//! # Concurrency
//!
//! No fileset can be opened during a move. Lock order: log credits; the gates of the open nodes, by
//! trial, since another closer may wait for those credits (GT4); files with moving pages, by rising
//! number; the table of filesets, which is the family's lock; the nodes, by rising slot. Readers
//! are protected as follows:
//!
//! - Readers of an anode, and readahead of table pages, compare the anode table with the one at
//!   their start. It differs after a move, and only then can an old place lead nowhere.
//! - Readers of a map, names or attributes hold the lock of the file.
//! - Readers through the snapshot directory are inside the snapshot's gate.
//! - A comparison, a send or a receive reads a copy of a node's entry. It pins the node, and while
//!   a node is pinned no page of the family is moved.
//! - A deletion and the weigher hold the table's lock. While a node is being freed no page of the
//!   family is moved, since pages that the deletion has passed are undefined.
//! - Readers of a page by a split hint ignore a hint that leads nowhere.
//!
//! A page of the table of filesets is moved under the table's lock. The gates of the filesets with
//! entries on the page are closed, since their usage is counted inside the gate.
//!
//! Not here: the choice of segments, and keeping allocations out of them.

use crate::file::BlockMover;
use std::collections::{BTreeMap, BTreeSet};

use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::fileset::ANODE_TABLE_ANODE;
use format::ids::{AnodeNo, Epoch, FilesetId, Place};
use format::page::{PageHeader, PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::if_planted;
use runtime::sync::RwLockWriteGuard;

use crate::alloc::SegmentId;
use crate::api::Ino;
use crate::buffer::page_of;
use crate::container::{PointerLocation, content_owner};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::file::{Core, OpenFileset, VnodeState};
use crate::fileset_table::family::{Family, FamilyNode};
use crate::fileset_table::moved::{AnodeLocation, PageRelocations};
use crate::fileset_table::table::{FilesetIndex, TableGuard};
use crate::gate::ClosedGate;
use crate::journal::LogCredits;
use crate::relocate::shared::ino_of;
use crate::store::Change;

/// Pages moved by one transaction; each is logged whole.
const PAGES_PER_MOVE: usize = 8;
/// Pages with pointers that one transaction may change, besides one per node.
const PARENTS_PER_MOVE: usize = 16;
/// Pointers and hints that one transaction may change, about 64 bytes of log each.
const POINTERS_PER_MOVE: usize = 600;
const TRIES: usize = 3;

/// Result of moving the metadata pages of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageMoveReport {
    /// Pages moved.
    pub moved: u64,
    /// Pages of families that are read, freed or locked: try again later.
    pub busy: u64,
    /// Pages for which there was no room elsewhere.
    pub no_room: u64,
    /// Pages that are unreadable, lead from no pointer, or are shared by too many snapshots. The
    /// log names them.
    pub bad: u64,
}

#[derive(Clone, Copy, Debug)]
struct MovingPage {
    place: Place,
    kind: PageKind,
    owner: PageOwner,
    birth: Epoch,
}

#[derive(Clone, Copy)]
enum PagePointerLocation {
    /// A fileset's slot, and the root slot of its anode table.
    Entry(u32, usize),
    /// An anode, and its root slot.
    Anode(AnodeLocation, usize),
    Map(PointerLocation),
}

struct PageHolder {
    above: PagePointerLocation,
    /// Location of the pointer that holds a split hint to the page, if any.
    hint: Option<PagePointerLocation>,
    /// File whose lock protects the page.
    file: Option<Ino>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageMoveOutcome {
    Moved,
    Busy,
    Nobodys,
    /// The page has more pointers than a transaction can change.
    Large,
}

/// A family whose gates are closed, with its locks.
struct QuiescedFamily<'l> {
    core: &'l Core,
    index: TableGuard<'l>,
    family: Family,
    states: BTreeMap<Ino, RwLockWriteGuard<'l, VnodeState>>,
    /// Pages with pointers that the transaction has room for, besides [`PARENTS_PER_MOVE`].
    reserved: usize,
}

impl PagePointerLocation {
    fn of(
        at: PointerLocation,
        root: impl FnOnce(usize) -> PagePointerLocation,
    ) -> PagePointerLocation {
        match at {
            PointerLocation::Anode(slot) => root(slot),
            PointerLocation::Map(..) => PagePointerLocation::Map(at),
        }
    }

    /// Returns the identity of a pointer: nodes that share the pointer's page have one pointer.
    fn key(self, core: &Core, index: &FilesetIndex) -> FsResult<(Place, u32, usize)> {
        Ok(match self {
            PagePointerLocation::Entry(slot, root_slot) => {
                (index.place_of_entry(&core.store, slot)?, slot, root_slot)
            }
            PagePointerLocation::Anode(at, root_slot) => {
                // These bits differ between the anodes of one page.
                let low = u32::try_from(at.number.0 & u64::from(u16::MAX)).unwrap_or(0);
                (at.place, low, root_slot)
            }
            PagePointerLocation::Map(PointerLocation::Map(page, slot)) => (page.place(), 0, slot),
            PagePointerLocation::Map(PointerLocation::Anode(_)) => return Err(FsError::Invalid),
        })
    }

    fn set_place(
        self,
        core: &Core,
        index: &FilesetIndex,
        change: &mut Change<'_>,
        place: Place,
    ) -> FsResult<()> {
        match self {
            PagePointerLocation::Entry(slot, root_slot) => {
                index.set_table_place(&core.store, change, (slot, root_slot), place)
            }
            PagePointerLocation::Anode(at, root_slot) => at.set_place(change, root_slot, place),
            PagePointerLocation::Map(PointerLocation::Map(page, slot)) => {
                page.set_place(change, slot, place)
            }
            PagePointerLocation::Map(PointerLocation::Anode(_)) => Err(FsError::Invalid),
        }
    }

    fn set_sibling(self, change: &mut Change<'_>, place: Place) -> FsResult<()> {
        match self {
            PagePointerLocation::Anode(at, root_slot) => at.set_sibling(change, root_slot, place),
            PagePointerLocation::Map(PointerLocation::Map(page, slot)) => {
                page.set_sibling(change, slot, place)
            }
            PagePointerLocation::Map(PointerLocation::Anode(_))
            | PagePointerLocation::Entry(..) => Err(FsError::Invalid),
        }
    }
}

impl PageHolder {
    fn pointers(&self) -> impl Iterator<Item = PagePointerLocation> {
        std::iter::once(self.above).chain(self.hint)
    }
}

struct StoredContainer {
    anode: Anode,
    /// `None` for the anode table.
    at: Option<AnodeLocation>,
}

impl StoredContainer {
    /// Returns the file whose lock protects the container.
    fn file(&self) -> Option<AnodeNo> {
        let is_internal = self.anode.kind == AnodeKind::Internal;
        let number = if is_internal { self.anode.parent } else { self.anode.number };
        let is_file = number == ROOT_ANODE || number >= FIRST_FILE_ANODE;
        Some(number).filter(|_| self.at.is_some() && is_file)
    }
}

impl BlockMover<'_> {
    fn container_of(
        &self,
        index: &FilesetIndex,
        change: Option<&Change<'_>>,
        slot: u32,
        page: &MovingPage,
    ) -> FsResult<Option<StoredContainer>> {
        let store = &self.store;
        let table = index.read_entry_in(store, change, slot)?.table_anode();
        if page.owner.anode == ANODE_TABLE_ANODE {
            return Ok(Some(StoredContainer { anode: table, at: None }));
        }
        let found = AnodeLocation::find_in(store, change, &table, page.owner.anode)?;
        let Some(at) = found else { return Ok(None) };
        let anode = at.read_in(store, change, page.owner.fileset)?;
        Ok(anode.map(|anode| StoredContainer { anode, at: Some(at) }))
    }

    fn look_for_page(
        &self,
        index: &FilesetIndex,
        change: Option<&Change<'_>>,
        slot: u32,
        page: &MovingPage,
    ) -> FsResult<Option<PageHolder>> {
        let Some(container) = self.container_of(index, change, slot, page)? else {
            return Ok(None);
        };
        let root = |root_slot| match container.at {
            None => PagePointerLocation::Entry(slot, root_slot),
            Some(at) => PagePointerLocation::Anode(at, root_slot),
        };
        let located = |what| self.store.locate_page(change, &container.anode, what);
        let found = located((page.kind, page.owner))?;
        let Some((at, _)) = found.filter(|(_, pointer)| pointer.place == page.place) else {
            return Ok(None);
        };
        let mut hint = None;
        if let Some(before) = page.splits_from() {
            let owner = content_owner(&container.anode, before);
            let tells = |pointer: &BlockPointer| {
                let sibling = pointer.split_hint().and_then(|hint| hint.sibling);
                sibling == Some(page.place)
            };
            let found = located((page.kind, owner))?.filter(|(_, pointer)| tells(pointer));
            hint = found.map(|(at, _)| PagePointerLocation::of(at, root));
        }
        let file = container.file().map(|number| ino_of(slot, number));
        Ok(Some(PageHolder { above: PagePointerLocation::of(at, root), hint, file }))
    }
}

impl MovingPage {
    /// Returns the index of the directory page from which this one was split.
    fn splits_from(&self) -> Option<u64> {
        let highest = self.owner.index.checked_ilog2()?;
        (self.kind == PageKind::Directory).then_some(self.owner.index & !(1 << highest))
    }
}

impl QuiescedFamily<'_> {
    fn holders(&self, change: &Change<'_>, page: &MovingPage) -> FsResult<Vec<PageHolder>> {
        let look = |member: &FamilyNode| {
            self.core.mover().look_for_page(&self.index, Some(change), member.slot, page)
        };
        let mut holders = self.family.holders(page.birth, look)?;
        if_planted!(PageMoveMissesHolder, holders.truncate(1));
        Ok(holders)
    }

    /// Whether the holder's file in an open node is not locked, or has a truncate in progress (V5).
    /// The truncate would continue at the old place.
    fn is_busy(&self, holder: &PageHolder, opened: &BTreeSet<u32>) -> bool {
        let Some(ino) = holder.file.filter(|ino| opened.contains(&ino.slot())) else {
            return false;
        };
        self.states.get(&ino).is_none_or(|state| state.is_being_cut)
    }
}

#[derive(Default)]
struct PageMovePlan {
    moved: PageRelocations,
    /// Changed pages. A page with several pointers is logged whole.
    above: BTreeSet<Place>,
    pointers: usize,
    fates: Vec<PageMoveOutcome>,
}

impl PageMovePlan {
    fn has_room(&self, keys: &BTreeSet<(Place, u32, usize)>, reserved: usize) -> bool {
        let above: BTreeSet<Place> = keys.iter().map(|(place, ..)| *place).collect();
        self.above.union(&above).count() <= reserved + PARENTS_PER_MOVE
            && self.pointers + keys.len() <= POINTERS_PER_MOVE
    }

    /// PM2: moves one page. Returns `false` if the transaction has no room.
    fn add(
        &mut self,
        still: &QuiescedFamily<'_>,
        change: &mut Change<'_>,
        page: &MovingPage,
        holders: &[PageHolder],
    ) -> FsResult<bool> {
        let (core, index) = (still.core, &*still.index);
        let key = |above: PagePointerLocation| above.key(core, index);
        let pointers = holders.iter().flat_map(PageHolder::pointers);
        let keys: BTreeSet<_> = pointers.map(key).collect::<FsResult<_>>()?;
        if !self.has_room(&keys, still.reserved) {
            return Ok(false);
        }
        let to = change.move_page(page.place, page.kind, page.owner)?;
        let mut done = BTreeSet::new();
        for holder in holders {
            let at = key(holder.above)?;
            if done.insert(at) {
                self.take(change, at.0);
                holder.above.set_place(core, index, change, to)?;
            }
            let Some(hint) = holder.hint else { continue };
            let at = key(hint)?;
            if done.insert(at) {
                self.take(change, at.0);
                hint.set_sibling(change, to)?;
            }
        }
        self.pointers += keys.len();
        self.moved.note(page.place, to);
        Ok(true)
    }

    fn take(&mut self, change: &mut Change<'_>, place: Place) {
        if !self.above.insert(place) {
            change.take_whole(place);
        }
    }
}

impl BlockMover<'_> {
    /// Moves the pages of a metadata segment, except fixed ones. Called by a job with no lock held.
    /// The job retries.
    ///
    /// # Errors
    ///
    /// Damaged maps of the group, or a failed journal: give up the segment.
    pub(crate) fn move_pages(&self, id: SegmentId) -> FsResult<PageMoveReport> {
        let used = self.store.alloc.pages_in_use(id)?;
        if used.is_empty() {
            return Ok(PageMoveReport::default());
        }
        let mut result = PageMoveReport::default();
        let mut families: BTreeMap<FilesetId, Vec<MovingPage>> = BTreeMap::new();
        for place in used {
            match self.page_at(place) {
                Ok(Some(page)) => families.entry(page.owner.fileset).or_default().push(page),
                // The page was freed since it was listed.
                Ok(None) => {}
                Err(error) => {
                    self.store.journal.check_alive()?;
                    tracing::warn!(%error, %place, "a metadata page is not moved");
                    result.bad += 1;
                }
            }
        }
        {
            let index = self.filesets.table.lock(&self.store)?;
            families.retain(|family, pages| {
                let is_busy = *family != FilesetId(0) && is_read_or_freed(&index, *family);
                result.busy += if is_busy { wide(pages.len()) } else { 0 };
                !is_busy
            });
        }
        if families.is_empty() {
            return Ok(result);
        }
        // Writes pages back, which ends their ordering dependencies.
        self.store.journal.checkpoint()?;
        for (family, mut pages) in families {
            // By container, since pages of one container have their pointers on the same pages.
            pages.sort_by_key(|page| (page.owner.anode, page.owner.index, page.owner.level));
            if family == FilesetId(0) {
                self.move_table_pages(&pages, &mut result)?;
            } else {
                self.move_family(family, &pages, &mut result)?;
            }
        }
        Ok(result)
    }

    fn page_at(&self, place: Place) -> FsResult<Option<MovingPage>> {
        let bytes = self.store.cache.any_page(place)?;
        let header = PageHeader::parse(page_of(&bytes));
        let header = header.filter(|header| header.kind != PageKind::Tombstone);
        Ok(header.map(|PageHeader { kind, owner, birth, .. }| MovingPage {
            place,
            kind,
            owner,
            birth,
        }))
    }

    fn move_family(
        &self,
        family: FilesetId,
        pages: &[MovingPage],
        result: &mut PageMoveReport,
    ) -> FsResult<()> {
        let (mut rest, mut most) = (pages, PAGES_PER_MOVE);
        while let Some(first) = rest.first() {
            let batch = &rest[..rest.len().min(most)];
            let fates = match self.move_some(family, batch) {
                Ok(Some(fates)) => fates,
                // The rest of the batch is of the same family.
                Ok(None) => {
                    result.busy += wide(rest.len());
                    return Ok(());
                }
                Err(FsError::NoSpace) => {
                    result.no_room += wide(rest.len());
                    return Ok(());
                }
                // One unreadable page must not stop other moves.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    if batch.len() > 1 {
                        most = 1;
                        continue;
                    }
                    tracing::warn!(%error, place = %first.place, "a metadata page is not moved");
                    vec![PageMoveOutcome::Nobodys]
                }
                Err(error) => return Err(error),
            };
            for (page, fate) in batch.iter().zip(&fates) {
                match fate {
                    PageMoveOutcome::Moved => result.moved += 1,
                    PageMoveOutcome::Busy => result.busy += 1,
                    PageMoveOutcome::Nobodys => self.note_nobodys(page, result),
                    PageMoveOutcome::Large => {
                        let place = page.place;
                        tracing::warn!(
                            %place,
                            "more snapshots share a page of metadata than one move takes: \
                             delete some"
                        );
                        result.bad += 1;
                    }
                }
            }
            rest = rest.get(fates.len().max(1)..).unwrap_or_default();
        }
        Ok(())
    }

    /// Counts a page to which no pointer leads as bad, unless the page was freed since it was
    /// listed.
    fn note_nobodys(&self, page: &MovingPage, result: &mut PageMoveReport) {
        let segment = self.store.geometry().segment_of(page.place);
        let id = SegmentId { group: page.place.group(), segment };
        let used = self.store.alloc.pages_in_use(id);
        if used.is_ok_and(|used| used.contains(&page.place)) {
            let (place, kind) = (page.place, page.kind);
            tracing::warn!(%place, ?kind, "a metadata page is in use, and nothing leads to it");
            result.bad += 1;
        }
    }

    /// Moves a prefix of the batch, as far as one transaction permits. Returns the results; `None`
    /// if the family is in use.
    fn move_some(
        &self,
        family: FilesetId,
        batch: &[MovingPage],
    ) -> FsResult<Option<Vec<PageMoveOutcome>>> {
        for _ in 0..TRIES {
            // Must come first. A node created later is unopened, and has no places in memory.
            let Some(opening) = self.filesets.keep_unopened() else {
                self.filesets.wait_until_unopened();
                continue;
            };
            let wanted = {
                let index = self.filesets.table.lock(&self.store)?;
                if is_read_or_freed(&index, family) {
                    return Ok(None);
                }
                Family::of(&index, family)
            };
            let most = self.store.journal.moved_members_max();
            if wanted.len() > most {
                return Ok(Some(vec![PageMoveOutcome::Large; batch.len()]));
            }
            // Room for the pages of a pointer and a hint in each node, if possible.
            let reserved = (2 * wanted.len()).min(most);
            let mut opened = self.opened_in(&wanted)?;
            opened.retain(|fileset| fileset.check_current().is_ok());
            let change = self.store.begin_pool(LogCredits::for_move(reserved))?;
            let closed: Vec<ClosedGate<'_>> =
                opened.iter().map_while(|fileset| fileset.gate.try_close()).collect();
            if closed.len() < opened.len() {
                // GT4: releases everything first, since the closer of the gate may wait for the
                // log.
                drop((closed, change, opening));
                opened.iter().for_each(|fileset| fileset.gate.wait_until_open());
                continue;
            }
            return self.move_still((family, wanted.len(), reserved), batch, &opened, change);
        }
        Ok(None)
    }

    /// Performs [`BlockMover::move_some`] behind closed gates, while no fileset can be opened.
    fn move_still(
        &self,
        (family, members, reserved): (FilesetId, usize, usize),
        batch: &[MovingPage],
        opened: &[&OpenFileset],
        mut change: Change<'_>,
    ) -> FsResult<Option<Vec<PageMoveOutcome>>> {
        let numbers = self.files_of_pages(family, batch)?;
        let vnodes = self.vnodes_of(opened, &numbers)?;
        let states = vnodes.iter().map(|(ino, vnode)| (*ino, vnode.state.write())).collect();
        let index = self.filesets.table.lock(&self.store)?;
        if is_read_or_freed(&index, family) || opened.iter().any(|it| it.check_current().is_err()) {
            return Ok(None);
        }
        let guards: Vec<_> = opened.iter().map(|fileset| fileset.anodes.lock()).collect();
        let family = Family::of(&index, family);
        if family.len() > members {
            // A snapshot was taken since, and the transaction has no room for its pointers.
            return Ok(None);
        }
        let slots: BTreeSet<u32> = opened.iter().map(|fileset| fileset.anodes.slot).collect();
        let mut still = QuiescedFamily { core: self, index, family, states, reserved };
        // CRASH: FT5: the move relies on changes of earlier classes, such as a deletion just ended.
        change.close_all_before();
        let mut plan = PageMovePlan::default();
        for page in batch {
            let holders = still.holders(&change, page)?;
            let fate = if holders.is_empty() {
                PageMoveOutcome::Nobodys
            } else if holders.iter().any(|holder| still.is_busy(holder, &slots)) {
                PageMoveOutcome::Busy
            } else if plan.add(&still, &mut change, page, &holders)? {
                PageMoveOutcome::Moved
            } else if plan.above.is_empty() {
                PageMoveOutcome::Large
            } else {
                break;
            };
            plan.fates.push(fate);
        }
        change.end();
        // After a journal failure nothing changes, and old places stay valid.
        self.store.journal.check_alive()?;
        // PM4: the only update of places in memory.
        guards.into_iter().for_each(|guard| guard.tell_moved(&plan.moved));
        for state in still.states.values_mut() {
            if let Some(anode) = state.anode.as_mut() {
                plan.moved.tell(anode);
            }
        }
        // PM5: must be last, since a reader that finds a place left repeats its lookup at once.
        plan.moved.left().for_each(|place| self.store.cache.leave(place));
        Ok(Some(plan.fates))
    }

    fn files_of_pages(
        &self,
        family: FilesetId,
        batch: &[MovingPage],
    ) -> FsResult<BTreeSet<AnodeNo>> {
        let index = self.filesets.table.lock(&self.store)?;
        let family = Family::of(&index, family);
        let mut numbers = BTreeSet::new();
        for page in batch {
            let look = |member: &FamilyNode| self.container_of(&index, None, member.slot, page);
            for container in family.holders(page.birth, look)? {
                numbers.extend(container.file());
            }
        }
        Ok(numbers)
    }

    /// Moves pages of the table of filesets, each in its own transaction.
    fn move_table_pages(&self, pages: &[MovingPage], result: &mut PageMoveReport) -> FsResult<()> {
        for page in pages {
            let fate = match self.move_table_page(page) {
                Err(FsError::NoSpace) => {
                    result.no_room += 1;
                    continue;
                }
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    tracing::warn!(%error, place = %page.place, "a metadata page is not moved");
                    result.bad += 1;
                    continue;
                }
                fate => fate?,
            };
            match fate {
                PageMoveOutcome::Moved => result.moved += 1,
                PageMoveOutcome::Busy => result.busy += 1,
                PageMoveOutcome::Nobodys | PageMoveOutcome::Large => {
                    self.note_nobodys(page, result)
                }
            }
        }
        Ok(())
    }

    fn move_table_page(&self, page: &MovingPage) -> FsResult<PageMoveOutcome> {
        for _ in 0..TRIES {
            let Some(opening) = self.filesets.keep_unopened() else {
                self.filesets.wait_until_unopened();
                continue;
            };
            // LOCK: filesets by rising slot.
            let mut opened: Vec<&OpenFileset> = self.filesets.iter().collect();
            opened.sort_by_key(|fileset| fileset.anodes.slot);
            opened.retain(|fileset| fileset.anodes.is_entry_at(page.place));
            let mut change = self.store.begin_pool(LogCredits::LARGE)?;
            let closed: Vec<ClosedGate<'_>> =
                opened.iter().map_while(|fileset| fileset.gate.try_close()).collect();
            if closed.len() < opened.len() {
                drop((closed, change, opening));
                opened.iter().for_each(|fileset| fileset.gate.wait_until_open());
                continue;
            }
            let mut index = self.filesets.table.lock(&self.store)?;
            let guards: Vec<_> = opened.iter().map(|fileset| fileset.anodes.lock()).collect();
            let found = index.locate_own(&self.store, (page.kind, page.owner))?;
            let Some((at, _)) = found.filter(|(_, pointer)| pointer.place == page.place) else {
                return Ok(PageMoveOutcome::Nobodys);
            };
            // CRASH: FT5: the move relies on changes of earlier classes, such as a deletion just
            // ended.
            change.close_all_before();
            let to = change.move_page(page.place, page.kind, page.owner)?;
            let table = match at {
                PointerLocation::Anode(slot) => {
                    Some(index.set_own_place(&self.store, &mut change, slot, to)?)
                }
                PointerLocation::Map(map, slot) => {
                    map.set_place(&mut change, slot, to)?;
                    None
                }
            };
            change.end();
            self.store.journal.check_alive()?;
            if let Some(table) = table {
                index.note_grown(table);
            }
            guards.iter().for_each(|guard| guard.tell_entry_moved(page.place, to));
            self.store.cache.leave(page.place);
            return Ok(PageMoveOutcome::Moved);
        }
        Ok(PageMoveOutcome::Busy)
    }
}

fn is_read_or_freed(index: &FilesetIndex, family: FilesetId) -> bool {
    index.is_family_freed(family) || index.family(family).any(|node| index.is_pinned(node.slot))
}
