//! Moving metadata pages out of a segment that is to go, while the pool is in use.
//!
//! A page is moved as a block is that clones hold ([`super::held`]): a page's header says whose it
//! is, so each node of that family is asked whether its map leads to this place, and each pointer
//! that does is changed where it is, in clones too. A block waits in no page while it moves; a page
//! is changed by whoever has it. So those who change a family are kept out for the moment: the
//! gates of all its nodes are closed.
//!
//! # Invariants
//!
//! - PM1: A page that was moved has the birth that it had, in its header and in every pointer.
//! - PM2: All pointers of all nodes to a page change in one transaction, and so does the hint that
//!   tells where a page of a directory is that split off another; or none does.
//! - PM3: A move changes nobody's content, counts, threshold or highest birth; only places.
//! - PM4: From the first look to the end nobody has the place of a page of the family in hand but
//!   those who look again when it leads nowhere; and whatever in memory has one that changed is
//!   told before anybody may go on.
//! - PM5: A page is freed by a move once, and nobody holds it then. What lies there stays as it
//!   was: no tombstone is put there. The cache tells whoever still looks there that it was left.
//!
//! # Crashes
//!
//! The copy, the pointers and the bits of both places are of one transaction, and so of one class:
//! a crash keeps all or nothing. What an open class has put into the page is in the copy, so the
//! move is of that class. All other classes are closed first: the move relies on who is of the
//! family, and on what a deletion that has just ended has given up (FT5).
//!
//! A copy goes home before what leads to it (K2). A page that is given up otherwise gets a
//! tombstone, and who is led there by a page that went home late finds a defect. Here the old page
//! is what such a pointer should find: it verifies, and holds what the copy did when it was made.
//! It is given out again only behind the checkpoint that took the pointers home (G2), and where its
//! group leaves, never.
//!
//! # Concurrency
//!
//! Nobody opens a fileset meanwhile. Then, in this order: room in the log; the gates of all nodes
//! of the family that are opened, closed by trial, for who has closed one may wait for that room
//! (GT4); files whose pages move, by rising number; the table of filesets, which is the family's
//! lock; the nodes, by rising slot. Whoever reads without one of these:
//!
//! - An anode, or pages of the anode table read ahead: he looks whether the table is still the one
//!   that he began with, and it never is after a move. Only then the old place leads nowhere.
//! - A map, names or attributes: under the lock of the file.
//! - A clone through the directory of clones: inside its gate.
//! - A node that is compared, sent, or received into, from a copy of its entry: it is pinned, and
//!   the pages of its family stay until it is not.
//! - A deletion, or one who weighs clones: under the table's lock. While a node of the family is
//!   being freed its pages stay: what lies behind its cursor may be anything (WK3).
//! - A page with a hint: a hint that leads nowhere is not followed.
//!
//! Pages of the table of filesets itself are moved under its lock, with the gates closed of those
//! whose entries are in them: who counts what a fileset has does so inside.
//!
//! Not here: which segments are to be emptied, and that nothing new comes there.

use std::collections::{BTreeMap, BTreeSet};

use format::anode::{Anode, AnodeKind, FIRST_FILE_ANODE, ROOT_ANODE};
use format::fileset::ANODE_TABLE_ANODE;
use format::ids::{AnodeNo, Epoch, FilesetId, Place};
use format::page::{PageHeader, PageKind, PageOwner};
use format::pointer::BlockPointer;
use runtime::planted::{self, Planted};
use runtime::sync::RwLockWriteGuard;

use super::api::Ino;
use super::held::ino_of;
use super::{Core, Fileset, VnodeState};
use crate::alloc::SegmentId;
use crate::buffer::page_of;
use crate::container::{PointerAt, content_owner};
use crate::convert::wide;
use crate::error::{FsError, FsResult};
use crate::fileset::family::{Family, Member};
use crate::fileset::moved::{AnodeAt, MovedPages};
use crate::fileset::table::{Index, TableGuard};
use crate::gate::Closed;
use crate::journal::Reservation;
use crate::store::Change;

/// Pages that one transaction moves: each is logged whole.
const PAGES_PER_MOVE: usize = 8;
/// Pages that lead to them and may be changed, beside one of each node.
const PARENTS_PER_MOVE: usize = 16;
/// Pointers and hints that one transaction may change: each is some 64 bytes of log.
const POINTERS_PER_MOVE: usize = 600;
/// Times that a closed gate, or one who opens a fileset, is waited for.
const TRIES: usize = 3;

/// What became of metadata pages that are to go elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagesMoved {
    /// Are elsewhere.
    pub moved: u64,
    /// Could not be moved now: somebody has the family in use, or there is no room elsewhere. Time
    /// helps.
    pub busy: u64,
    /// Could not be moved, for there is no room elsewhere.
    pub no_room: u64,
    /// Can't be read, are nobody's, or are of too many: the log names them.
    pub bad: u64,
}

/// A page, by what its header says.
#[derive(Clone, Copy, Debug)]
struct Page {
    place: Place,
    kind: PageKind,
    owner: PageOwner,
    birth: Epoch,
}

/// What has a pointer to a page.
#[derive(Clone, Copy)]
enum Above {
    /// The entry of the node in this slot, in this slot of its anode table's root.
    Entry(u32, usize),
    /// An anode, in this slot of its root.
    Anode(AnodeAt, usize),
    /// A map page.
    Map(PointerAt),
}

/// One who holds a page.
struct Holder {
    above: Above,
    /// The pointer with the hint that tells where the page is.
    hint: Option<Above>,
    /// The file that must be locked.
    file: Option<Ino>,
}

/// What became of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Moved,
    Busy,
    Nobodys,
    /// More lead there than one transaction can change.
    Large,
}

/// A family of which nobody changes anything.
struct Still<'l> {
    core: &'l Core,
    index: TableGuard<'l>,
    family: Family,
    states: BTreeMap<Ino, RwLockWriteGuard<'l, VnodeState>>,
    /// Pages that may change beside a few.
    reserved: usize,
}

impl Above {
    fn of(at: PointerAt, root: impl FnOnce(usize) -> Above) -> Above {
        match at {
            PointerAt::Anode(slot) => root(slot),
            PointerAt::Map(..) => Above::Map(at),
        }
    }

    /// Returns the page that the pointer is in, and which one of it: what several nodes have in
    /// common is changed once.
    fn key(self, core: &Core, index: &Index) -> FsResult<(Place, u32, usize)> {
        Ok(match self {
            Above::Entry(slot, root_slot) => {
                (index.place_of_entry(&core.store, slot)?, slot, root_slot)
            }
            Above::Anode(at, root_slot) => {
                // Anodes of one page are told apart by their low bits.
                let low = u32::try_from(at.number.0 & u64::from(u16::MAX)).unwrap_or(0);
                (at.place, low, root_slot)
            }
            Above::Map(PointerAt::Map(page, slot)) => (page.place(), 0, slot),
            Above::Map(PointerAt::Anode(_)) => return Err(FsError::Invalid),
        })
    }

    fn set_place(
        self,
        core: &Core,
        index: &Index,
        change: &mut Change<'_>,
        place: Place,
    ) -> FsResult<()> {
        match self {
            Above::Entry(slot, root_slot) => {
                index.set_table_place(&core.store, change, (slot, root_slot), place)
            }
            Above::Anode(at, root_slot) => at.set_place(change, root_slot, place),
            Above::Map(PointerAt::Map(page, slot)) => page.set_place(change, slot, place),
            Above::Map(PointerAt::Anode(_)) => Err(FsError::Invalid),
        }
    }

    fn set_sibling(self, change: &mut Change<'_>, place: Place) -> FsResult<()> {
        match self {
            Above::Anode(at, root_slot) => at.set_sibling(change, root_slot, place),
            Above::Map(PointerAt::Map(page, slot)) => page.set_sibling(change, slot, place),
            Above::Map(PointerAt::Anode(_)) | Above::Entry(..) => Err(FsError::Invalid),
        }
    }
}

impl Holder {
    fn pointers(&self) -> impl Iterator<Item = Above> {
        std::iter::once(self.above).chain(self.hint)
    }
}

/// A node's container, as its pages have it, and whose it is.
struct Container {
    anode: Anode,
    /// `None`: it is the anode table.
    at: Option<AnodeAt>,
}

impl Container {
    /// Returns the file whose lock is that of the container.
    fn file(&self) -> Option<AnodeNo> {
        let is_internal = self.anode.kind == AnodeKind::Internal;
        let number = if is_internal { self.anode.parent } else { self.anode.number };
        let is_file = number == ROOT_ANODE || number >= FIRST_FILE_ANODE;
        Some(number).filter(|_| self.at.is_some() && is_file)
    }
}

impl Core {
    /// Returns the container of a page in the node in `slot`; `None`: it has none.
    fn container_of(
        &self,
        index: &Index,
        change: Option<&Change<'_>>,
        slot: u32,
        page: &Page,
    ) -> FsResult<Option<Container>> {
        let store = &self.store;
        let table = index.read_entry_in(store, change, slot)?.table_anode();
        if page.owner.anode == ANODE_TABLE_ANODE {
            return Ok(Some(Container { anode: table, at: None }));
        }
        let found = AnodeAt::find_in(store, change, &table, page.owner.anode)?;
        let Some(at) = found else { return Ok(None) };
        let anode = at.read_in(store, change, page.owner.fileset)?;
        Ok(anode.map(|anode| Container { anode, at: Some(at) }))
    }

    /// Returns what the node in `slot` has that leads to a page; `None`: nothing does.
    fn look_for_page(
        &self,
        index: &Index,
        change: Option<&Change<'_>>,
        slot: u32,
        page: &Page,
    ) -> FsResult<Option<Holder>> {
        let Some(container) = self.container_of(index, change, slot, page)? else {
            return Ok(None);
        };
        let root = |root_slot| match container.at {
            None => Above::Entry(slot, root_slot),
            Some(at) => Above::Anode(at, root_slot),
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
                sibling == Some(page.place) && !planted::is(Planted::PageMoveKeepsHint)
            };
            let found = located((page.kind, owner))?.filter(|(_, pointer)| tells(pointer));
            hint = found.map(|(at, _)| Above::of(at, root));
        }
        let file = container.file().map(|number| ino_of(slot, number));
        Ok(Some(Holder { above: Above::of(at, root), hint, file }))
    }
}

impl Page {
    /// Returns the page of the directory that this one once split off.
    fn splits_from(&self) -> Option<u64> {
        let highest = self.owner.index.checked_ilog2()?;
        (self.kind == PageKind::Directory).then_some(self.owner.index & !(1 << highest))
    }
}

impl Still<'_> {
    /// Returns all who hold a page.
    fn holders(&self, change: &Change<'_>, page: &Page) -> FsResult<Vec<Holder>> {
        let look =
            |member: &Member| self.core.look_for_page(&self.index, Some(change), member.slot, page);
        let mut holders = self.family.holders(page.birth, look)?;
        if planted::is(Planted::PageMoveMissesHolder) && holders.len() > 1 {
            holders.pop();
        }
        Ok(holders)
    }

    /// Whether the file of one who holds a page is not locked, or is being cut (V5): it goes on
    /// with that from where it was.
    fn is_busy(&self, holder: &Holder, opened: &BTreeSet<u32>) -> bool {
        let Some(ino) = holder.file.filter(|ino| opened.contains(&ino.slot())) else {
            return false;
        };
        self.states.get(&ino).is_none_or(|state| state.is_being_cut)
    }
}

/// What one transaction moves.
#[derive(Default)]
struct Plan {
    moved: MovedPages,
    /// Pages that lead to them: of one with several pointers or hints the whole is taken.
    above: BTreeSet<Place>,
    pointers: usize,
    fates: Vec<Fate>,
}

impl Plan {
    /// Whether the transaction can change what leads to one more page, where so many changes are
    /// reserved.
    fn has_room(&self, keys: &BTreeSet<(Place, u32, usize)>, reserved: usize) -> bool {
        let above: BTreeSet<Place> = keys.iter().map(|(place, ..)| *place).collect();
        self.above.union(&above).count() <= reserved + PARENTS_PER_MOVE
            && self.pointers + keys.len() <= POINTERS_PER_MOVE
    }

    /// PM2: moves one page; returns whether the transaction had room for that.
    fn add(
        &mut self,
        still: &Still<'_>,
        change: &mut Change<'_>,
        page: &Page,
        holders: &[Holder],
    ) -> FsResult<bool> {
        let (core, index) = (still.core, &*still.index);
        let key = |above: Above| above.key(core, index);
        let pointers = holders.iter().flat_map(Holder::pointers);
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

    /// A pointer in the page at `place` is about to change.
    fn take(&mut self, change: &mut Change<'_>, place: Place) {
        if !self.above.insert(place) {
            change.take_whole(place);
        }
    }
}

impl Core {
    /// Moves the pages of a metadata segment elsewhere, those left out that are fixed there. Called
    /// with no lock held, by a job; what is busy it tries again later.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of the group; the journal has failed.
    pub(crate) fn move_pages(&self, id: SegmentId) -> FsResult<PagesMoved> {
        let used = self.store.alloc.pages_in_use(id)?;
        if used.is_empty() {
            return Ok(PagesMoved::default());
        }
        let mut result = PagesMoved::default();
        let mut families: BTreeMap<FilesetId, Vec<Page>> = BTreeMap::new();
        for place in used {
            match self.page_at(place) {
                Ok(Some(page)) => families.entry(page.owner.fileset).or_default().push(page),
                // It was freed meanwhile.
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
        // What is at home needs no other page to go there with it.
        self.store.journal.checkpoint()?;
        for (family, mut pages) in families {
            // Those of one container together: what leads to them is the same.
            pages.sort_by_key(|page| (page.owner.anode, page.owner.index, page.owner.level));
            if family == FilesetId(0) {
                self.move_table_pages(&pages, &mut result)?;
            } else {
                self.move_family(family, &pages, &mut result)?;
            }
        }
        Ok(result)
    }

    fn page_at(&self, place: Place) -> FsResult<Option<Page>> {
        let bytes = self.store.cache.any_page(place)?;
        let header = PageHeader::parse(page_of(&bytes));
        let header = header.filter(|header| header.kind != PageKind::Tombstone);
        Ok(header.map(|PageHeader { kind, owner, birth, .. }| Page { place, kind, owner, birth }))
    }

    /// Moves pages of one family.
    fn move_family(
        &self,
        family: FilesetId,
        pages: &[Page],
        result: &mut PagesMoved,
    ) -> FsResult<()> {
        let (mut rest, mut most) = (pages, PAGES_PER_MOVE);
        while let Some(first) = rest.first() {
            let batch = &rest[..rest.len().min(most)];
            let fates = match self.move_some(family, batch) {
                Ok(Some(fates)) => fates,
                // The next one would find it so, too.
                Ok(None) => {
                    result.busy += wide(rest.len());
                    return Ok(());
                }
                Err(FsError::NoSpace) => {
                    result.no_room += wide(rest.len());
                    return Ok(());
                }
                // One page that can't be read must not keep others from being moved.
                Err(error @ (FsError::Corrupt { .. } | FsError::Io { .. })) => {
                    self.store.journal.check_alive()?;
                    if batch.len() > 1 {
                        most = 1;
                        continue;
                    }
                    tracing::warn!(%error, place = %first.place, "a metadata page is not moved");
                    vec![Fate::Nobodys]
                }
                Err(error) => return Err(error),
            };
            for (page, fate) in batch.iter().zip(&fates) {
                match fate {
                    Fate::Moved => result.moved += 1,
                    Fate::Busy => result.busy += 1,
                    Fate::Nobodys => self.note_nobodys(page, result),
                    Fate::Large => {
                        let place = page.place;
                        tracing::warn!(
                            %place,
                            "too many clones have a metadata page to move it: delete some of them"
                        );
                        result.bad += 1;
                    }
                }
            }
            rest = rest.get(fates.len().max(1)..).unwrap_or_default();
        }
        Ok(())
    }

    /// Counts a page that nobody holds: it was freed since it was found, or its room is lost.
    fn note_nobodys(&self, page: &Page, result: &mut PagesMoved) {
        let segment = self.store.geometry().segment_of(page.place);
        let id = SegmentId { group: page.place.group(), segment };
        let used = self.store.alloc.pages_in_use(id);
        if used.is_ok_and(|used| used.contains(&page.place)) {
            let (place, kind) = (page.place, page.kind);
            tracing::warn!(%place, ?kind, "a metadata page is in use, and nothing leads to it");
            result.bad += 1;
        }
    }

    /// Moves pages of one family, as many from the front as one transaction can. Returns what
    /// became of each; `None`: the family is in use.
    fn move_some(&self, family: FilesetId, batch: &[Page]) -> FsResult<Option<Vec<Fate>>> {
        for _ in 0..TRIES {
            // First: who is made from now on is not opened, and has no place in memory.
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
                return Ok(Some(vec![Fate::Large; batch.len()]));
            }
            // A pointer and a hint of each, if there is room for so many.
            let reserved = (2 * wanted.len()).min(most);
            let mut opened = self.opened_in(&wanted)?;
            opened.retain(|fileset| fileset.check_current().is_ok());
            let change = self.store.begin_pool(Reservation::for_move(reserved))?;
            let closed: Vec<Closed<'_>> =
                opened.iter().map_while(|fileset| fileset.gate.try_close()).collect();
            if closed.len() < opened.len() {
                // GT4: who has closed it may wait for the log.
                drop((closed, change, opening));
                opened.iter().for_each(|fileset| fileset.gate.wait_until_open());
                continue;
            }
            return self.move_still((family, wanted.len(), reserved), batch, &opened, change);
        }
        Ok(None)
    }

    /// As [`Core::move_some`], for whoever keeps the gates closed of those of the family that are
    /// `opened`, and others from being opened.
    fn move_still(
        &self,
        (family, members, reserved): (FilesetId, usize, usize),
        batch: &[Page],
        opened: &[&Fileset],
        mut change: Change<'_>,
    ) -> FsResult<Option<Vec<Fate>>> {
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
            // A clone was taken meanwhile, for which nothing is reserved.
            return Ok(None);
        }
        let slots: BTreeSet<u32> = opened.iter().map(|fileset| fileset.anodes.slot).collect();
        let mut still = Still { core: self, index, family, states, reserved };
        // CRASH: FT5.
        change.close_all_before();
        let mut plan = Plan::default();
        for page in batch {
            let holders = still.holders(&change, page)?;
            let fate = if holders.is_empty() {
                Fate::Nobodys
            } else if holders.iter().any(|holder| still.is_busy(holder, &slots)) {
                Fate::Busy
            } else if plan.add(&still, &mut change, page, &holders)? {
                Fate::Moved
            } else if plan.above.is_empty() {
                Fate::Large
            } else {
                break;
            };
            plan.fates.push(fate);
        }
        change.end();
        // Nobody can change anything any more then, and what is in memory leads to whole pages.
        self.store.journal.check_alive()?;
        // PM4: here, and nowhere else.
        guards.into_iter().for_each(|guard| guard.tell_moved(&plan.moved));
        for state in still.states.values_mut() {
            if let Some(anode) = state.anode.as_mut() {
                plan.moved.tell(anode);
            }
        }
        // PM5: last, for whoever looked for an anode before sees only now that he must look again.
        plan.moved.left().for_each(|place| self.store.cache.leave(place));
        Ok(Some(plan.fates))
    }

    /// Returns the files whose lock covers one of these pages, in any node of the family: while
    /// nobody changes one.
    fn files_of_pages(&self, family: FilesetId, batch: &[Page]) -> FsResult<BTreeSet<AnodeNo>> {
        let index = self.filesets.table.lock(&self.store)?;
        let family = Family::of(&index, family);
        let mut numbers = BTreeSet::new();
        for page in batch {
            let look = |member: &Member| self.container_of(&index, None, member.slot, page);
            for container in family.holders(page.birth, look)? {
                numbers.extend(container.file());
            }
        }
        Ok(numbers)
    }

    /// Moves pages of the table of filesets, and of its map, each in a transaction of its own.
    fn move_table_pages(&self, pages: &[Page], result: &mut PagesMoved) -> FsResult<()> {
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
                Fate::Moved => result.moved += 1,
                Fate::Busy => result.busy += 1,
                Fate::Nobodys | Fate::Large => self.note_nobodys(page, result),
            }
        }
        Ok(())
    }

    fn move_table_page(&self, page: &Page) -> FsResult<Fate> {
        for _ in 0..TRIES {
            let Some(opening) = self.filesets.keep_unopened() else {
                self.filesets.wait_until_unopened();
                continue;
            };
            // LOCK: by rising slot.
            let mut opened: Vec<&Fileset> = self.filesets.iter().collect();
            opened.sort_by_key(|fileset| fileset.anodes.slot);
            opened.retain(|fileset| fileset.anodes.is_entry_at(page.place));
            let mut change = self.store.begin_pool(Reservation::LARGE)?;
            let closed: Vec<Closed<'_>> =
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
                return Ok(Fate::Nobodys);
            };
            // CRASH: FT5.
            change.close_all_before();
            let to = change.move_page(page.place, page.kind, page.owner)?;
            let table = match at {
                PointerAt::Anode(slot) => {
                    Some(index.set_own_place(&self.store, &mut change, slot, to)?)
                }
                PointerAt::Map(map, slot) => {
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
            return Ok(Fate::Moved);
        }
        Ok(Fate::Busy)
    }
}

/// Whether somebody reads a node of the family from a copy of its entry, or one is being freed.
fn is_read_or_freed(index: &Index, family: FilesetId) -> bool {
    index.is_family_freed(family) || index.family(family).any(|node| index.is_pinned(node.slot))
}
