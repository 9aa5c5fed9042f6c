//! The allocator: which fragments are free, and who gets them.
//!
//! Mechanism only: *where* is a preference that `policy` states; this module checks it, falls back,
//! and keeps the maps, the counts and the rules of reuse.
//!
//! # Invariants
//!
//! - G1: A fragment is given out at most once until it was freed and released.
//! - G2: A freed fragment is released only when the checkpoint that took the freeing pages home has
//!   moved the log's tail past them (K3). Until then it is *pending*.
//! - G3: A segment changes its kind only while nothing in it is held: neither used nor pending.
//! - G4: What is used, promised, reserved for blocks or pending, and what no block can have (free
//!   pages of metadata segments, the front of groups not yet in use), never exceeds the capacity
//!   less the reserve, so that what was accepted can be installed, and what a full pool must do
//!   (delete, checkpoint, clean) has room.
//! - G7: Where the main disk group has no data, metadata has its room and data that of the others:
//!   each of the two is held against its own (`apart`).
//! - G8: Where it has data too, so much of it is kept free of data that metadata finds what was
//!   promised: holes between blocks are of no use to pages. Who would be refused has data moved
//!   from there to the others.
//! - G5: A write of what its file holds already, stored or reserved, goes three quarters into the
//!   reserve: the new version counts beside the old one, or beside what is reserved for it, only
//!   until it is installed and a checkpoint has released the old one. So after a reclaim it has
//!   room, whatever else the pool holds.
//! - G6: A segment that is pinned is neither opened nor made one of another kind, though nothing in
//!   it is held any more: it is not free before the pin is gone.
//!
//! # Concurrency
//!
//! One lock. Maps of a group are read under it, once, when the group is first needed.
//!
//! Not here: the order of writes inside a segment (`segment`), and emptying segments (`vnode`'s
//! cleaner).

mod apart;
mod change;
mod discard;
mod disk_groups;
mod extent;
mod giving_up;
pub(crate) mod group;
mod level;
mod longer;
mod main_group;
mod pages;
mod pin;
pub mod policy;
mod preference;
mod share;
mod shortage;
mod spare;

pub(crate) use apart::MainHas;
pub(crate) use discard::{Discardable, HeldFree};
pub(crate) use disk_groups::{CanLeave, Found, Going};
pub(crate) use extent::{Extent, Extents};
pub(crate) use level::Level;
pub(crate) use pin::Pin;
pub use preference::PlacementError;
pub(crate) use preference::Preference;
pub use shortage::Shortage;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use format::defect::DefectCode;
use format::geometry::Geometry;
use format::group::{
    DESCRIPTOR_SEGMENTS_USED_OFFSET, SegmentKind, SegmentUsage, TOTAL_FRAGMENTS_RESERVED_OFFSET,
    TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET, TOTAL_RESERVATIONS_OFFSET,
    is_lsn_page_used, lsn_page_bit,
};
use format::ids::{AnodeNo, Epoch, Lsn, Place};
use format::page::{PageHeader, PageKind, PageOwner, read_u64};
use runtime::planted::{self, Planted};
use storage::volume::Volume;

use crate::buffer::{Buffer, Cache, corrupt, page_of};
use crate::convert::{index, narrow};
use crate::error::{FsError, FsResult};
use crate::journal::{Journal, Tx};
use crate::sync::{Condvar, Mutex};
use crate::usage::Kept;

use self::apart::Apart;
use self::change::Looked;
use self::discard::Withheld;
use self::group::{Group, OWN_PLACES};
use self::policy::{PlacementPolicy, SegmentView};
use self::share::{Share, capacity_of, main_of, parts_of};
use self::spare::Free;

/// Free segments that only the cleaner may take: it needs room to copy into.
const CLEANER_SEGMENTS: u32 = 2;
/// Free pages that new names leave in a pool without free segments: for removing, and for maps.
const PAGES_KEPT: u64 = 16;
/// The cleaner begins, in the background, when fewer segments than this are free.
pub(crate) const LOW_SEGMENTS: u32 = 8;
/// A writer cleans when fewer segments than this are free: the background did not keep up, and what
/// the cleaner copies into is all that is left behind them.
pub(crate) const FEW_SEGMENTS: u32 = CLEANER_SEGMENTS + 2;
/// A writer who was refused gets this many free segments, however much must be moved for them.
pub(crate) const PROMISED_SEGMENTS: u32 = CLEANER_SEGMENTS + 2;

/// A segment, named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId {
    pub(crate) group: u32,
    pub(crate) segment: u32,
}

impl SegmentId {
    /// The first that there can be.
    pub(crate) const FIRST: SegmentId = SegmentId { group: 0, segment: 0 };
}

/// What a transaction took and gave back: settled when it ends.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    taken: Vec<Extent>,
    freed: Vec<Extent>,
    /// Promised fragments that the transaction turns into used ones.
    installed: u64,
    /// Fragments that the transaction keeps for blocks, and those that it keeps no longer.
    reserved: u64,
    unreserved: u64,
}

/// Fragments promised to somebody and not yet used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A user's write: refused when the pool is full.
    User,
    /// A user's write of what the file holds already (G5).
    Held,
    /// A name that moves: it may use half of the reserve.
    Name,
    /// What must go on in a full pool: cleaning, removing.
    System,
}

#[derive(Debug)]
struct State {
    groups: BTreeMap<u32, Group>,
    /// Those that could not be read when space was looked for.
    unread: BTreeSet<u32>,
    ticks: u64,
    /// Fragments in use of groups that are not in memory, as far as somebody asked.
    used_at_rest: BTreeMap<u32, u32>,
    used: u64,
    promised: u64,
    /// Kept for blocks of files that are not stored, or not all of them.
    reserved: u64,
    pending: VecDeque<(Lsn, Vec<Extent>)>,
    pending_fragments: u64,
    /// The disk groups that give segments, the main one first.
    shares: Vec<Share>,
    /// Fragments that files and metadata can have altogether.
    capacity: u64,
    /// Of those what is kept back.
    reserve: u64,
    /// Of the main disk group where no data may lie there.
    apart: Option<Apart>,
    /// Discards that are not answered, and how many were (DH2).
    discarding: u32,
    discards_ended: u64,
}

/// The allocator of a pool.
#[derive(Debug)]
pub(crate) struct Allocator {
    volume: Volume,
    cache: Arc<Cache>,
    journal: Arc<Journal>,
    policy: Box<dyn PlacementPolicy>,
    /// Needs that are not met on purpose.
    shortage: Option<Arc<Shortage>>,
    /// The group table's root: the totals of the pool.
    root: Arc<Buffer>,
    /// What is kept free for filesets.
    pub(crate) kept: Kept,
    /// Default block size of files: binary logarithm.
    block_shift: u8,
    /// Fragments of a block of the default size.
    block_fragments: u64,
    /// Fragments of a segment that blocks of the default size can't have.
    lost_fragments: u32,
    /// What is held because its discard has expired.
    pub(crate) withheld: Withheld,
    state: Mutex<State>,
    /// A discard was answered.
    discard_ended: Condvar,
}

/// How full the pool is, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceCounts {
    /// All that files and metadata can have.
    pub capacity: u64,
    /// In use.
    pub used: u64,
    /// Accepted and not yet in use.
    pub promised: u64,
    /// Kept for what programs will write where they asked for space ahead.
    pub reserved: u64,
    /// Kept back, so that a full pool can be emptied and cleaned.
    pub reserve: u64,
    /// Freed, and not to be used before the next checkpoint.
    pub pending: u64,
    /// What blocks can't have: free pages among metadata, and what groups need once they are used.
    pub spare: u64,
    /// Kept free for filesets: the rests of their reservations.
    pub kept: u64,
    /// Free where no data may lie: what metadata can have besides.
    pub metadata_free: u64,
    /// What one file written now can have, in a fileset for which nothing is kept.
    pub available: u64,
}

impl Allocator {
    /// Opens the allocator of a pool whose journal is recovered.
    ///
    /// # Errors
    ///
    /// If the totals of the pool can't be read.
    pub(crate) fn open(
        volume: Volume,
        cache: Arc<Cache>,
        journal: Arc<Journal>,
        (policy, shortage): (Box<dyn PlacementPolicy>, Option<Arc<Shortage>>),
        block_shift: u8,
    ) -> FsResult<Allocator> {
        let geometry = volume.geometry();
        let place = geometry.group_table_root_place();
        let root = cache.page(place, PageKind::GroupTableRoot, PageOwner::default())?;
        let used = read_u64(page_of(&root.bytes()), TOTAL_FRAGMENTS_USED_OFFSET);
        let capacity = geometry.groups().map(|number| capacity_of(geometry, number)).sum::<u64>();
        if used > capacity {
            let what = format!("{used} fragments in use of {capacity}");
            return Err(corrupt(DefectCode::AG007.found(what)));
        }
        let reserved = read_u64(page_of(&root.bytes()), TOTAL_FRAGMENTS_RESERVED_OFFSET);
        if reserved > capacity {
            let what = format!("{reserved} fragments reserved of {capacity}");
            return Err(corrupt(DefectCode::AG007.found(what)));
        }
        let reserve = reserve_of(geometry, capacity, block_shift);
        let groups_used = read_u64(page_of(&root.bytes()), TOTAL_GROUPS_USED_OFFSET);
        let block_fragments = block_fragments(geometry, block_shift);
        let lost_fragments = narrow(lost_of(geometry, block_shift));
        let mut main = Share::main(geometry);
        main.note_in_use(groups_used);
        let state = State {
            groups: BTreeMap::new(),
            unread: BTreeSet::new(),
            ticks: 0,
            used_at_rest: BTreeMap::new(),
            used,
            promised: 0,
            reserved,
            pending: VecDeque::new(),
            pending_fragments: 0,
            shares: vec![main],
            capacity,
            reserve,
            apart: None,
            discarding: 0,
            discards_ended: 0,
        };
        let state = Mutex::new(state);
        let allocator = Allocator {
            volume,
            cache,
            journal,
            policy,
            shortage,
            root,
            kept: Kept::default(),
            block_shift,
            block_fragments,
            lost_fragments,
            withheld: Withheld::default(),
            state,
            discard_ended: Condvar::default(),
        };
        if !parts_of(allocator.geometry()).is_empty() {
            let of_first = groups_used.saturating_sub(allocator.note_disk_groups()?);
            let apart = allocator.apart_at_open()?;
            let mut state = allocator.state.lock();
            state.shares[0].note_in_use(of_first);
            state.apart = apart;
        }
        allocator.count_first();
        Ok(allocator)
    }

    /// Counts a need of space, and says whether it may be met.
    fn need(&self) -> FsResult<()> {
        self.shortage.as_ref().map_or(Ok(()), |shortage| shortage.need())
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

    /// Returns how full the pool is.
    pub(crate) fn counts(&self) -> SpaceCounts {
        let state = self.state.lock();
        SpaceCounts {
            capacity: state.capacity,
            used: state.used,
            promised: state.promised,
            reserved: state.reserved,
            reserve: state.reserve,
            pending: state.pending_fragments,
            spare: self.spare(&state),
            kept: self.kept.fragments(),
            metadata_free: state.apart.as_ref().map_or(0, Apart::spare),
            available: self.available(&state),
        }
    }

    /// Adds what changed of a group's free pages to the count of all.
    fn note_spare(state: &mut State, number: u32, before: Free) {
        let after = state.groups.get(&number).map(Group::free).unwrap_or_default();
        if let Some(share) = Self::share_of(state, number).filter(|share| share.has_pages()) {
            share.spare.change(before, after);
        }
    }

    /// Promises `fragments` to a caller who will use or return them. `own` is what is kept free for
    /// his fileset.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if a user's promise would touch the reserve (G4).
    pub(crate) fn promise(&self, fragments: u64, urgency: Urgency, own: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        let is_data = matches!(urgency, Urgency::User | Urgency::Held);
        let spare = if is_data { self.spare(&state) } else { 0 };
        let kept = self.kept_from(&state, urgency, own);
        if self.taken(&state) + spare + fragments + kept > state.capacity {
            return Err(FsError::NoSpace);
        }
        self.check_apart(&state, fragments, urgency)?;
        self.check_reach(&mut state, fragments, urgency)?;
        state.promised += fragments;
        Ok(())
    }

    /// Whether metadata may have `fragments`, spare pages among them. `own` is what is kept free
    /// for its fileset.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if they would touch what is kept from `urgency`.
    pub(crate) fn check_room(&self, fragments: u64, urgency: Urgency, own: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        let wanted = self.taken(&state) + fragments + self.kept_from(&state, urgency, own);
        if wanted > state.capacity {
            return Err(FsError::NoSpace);
        }
        self.check_apart(&state, fragments, urgency)?;
        self.check_reach(&mut state, fragments, urgency)
    }

    /// What was freed since the last checkpoint counts as used: it can't be written yet.
    fn taken(&self, state: &State) -> u64 {
        let reserved = if planted::is(Planted::ReservationIgnored) { 0 } else { state.reserved };
        state.used + state.promised + reserved + state.pending_fragments
    }

    /// Returns what is kept for others from somebody for whose fileset `own` is kept.
    fn kept_from(&self, state: &State, urgency: Urgency, own: u64) -> u64 {
        let for_others = self.kept.fragments().saturating_sub(own);
        match urgency {
            Urgency::User if planted::is(Planted::ReserveForgotten) => 0,
            Urgency::User => state.reserve + for_others,
            Urgency::Name => state.reserve / 2 + for_others,
            Urgency::Held if planted::is(Planted::HeldRefused) => state.reserve,
            // Less than names leave, so that they can't use up what it needs.
            Urgency::Held => state.reserve / 4,
            Urgency::System => 0,
        }
    }

    /// Takes a promise back.
    pub(crate) fn unpromise(&self, fragments: u64) {
        let mut state = self.state.lock();
        state.promised = state.promised.checked_sub(fragments).expect("was promised");
    }

    /// Gives out a page for metadata, near `near` if there is room.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`], or a failure to read the maps.
    pub(crate) fn allocate_page(
        &self,
        tx: &mut Tx,
        ledger: &mut Ledger,
        near: Place,
    ) -> FsResult<Place> {
        let mut state = self.state.lock();
        self.need()?;
        loop {
            match self.allocate_page_of(&mut state, (&mut *tx, &mut *ledger), near) {
                Err(FsError::NoSpace) if self.await_discard(&mut state) => {}
                allocated => return allocated,
            }
        }
    }

    fn allocate_page_of(
        &self,
        state: &mut State,
        (tx, ledger): (&mut Tx, &mut Ledger),
        near: Place,
    ) -> FsResult<Place> {
        // GR2: what is given up gives none.
        let main = state.shares[0].numbers.clone();
        let count = main.end.saturating_sub(main.start);
        // The policy counts from the first of them.
        let hot = state.shares[0].cursor.group.saturating_sub(main.start);
        let near = near.group().saturating_sub(main.start);
        let mut first = main.start + self.policy.metadata_group(near, hot, count);
        let has_page = |state: &State, number| {
            state.groups.get(&number).is_some_and(|group| group.free_pages > 0)
        };
        self.can_give(state, first)?;
        let barred = self.shortage.as_ref().map(|shortage| shortage.barred()).unwrap_or_default();
        let known = state.shares[0].spare.known();
        if (!has_page(state, first) || barred.contains(&first)) && known > 0 {
            // No segment becomes metadata while another group has a page to give: blocks need it.
            let roomy =
                |(number, group): &(&u32, &Group)| group.free_pages > 0 && !barred.contains(number);
            let behind = state.groups.range(first..main.end).find(roomy);
            let found = behind.or_else(|| state.groups.range(main.clone()).find(roomy));
            let found = found.map(|(number, _)| *number).or_else(|| {
                let elsewhere = state.shares[0].spare.elsewhere()?;
                self.can_give(state, elsewhere).is_ok_and(|can| can).then_some(elsewhere)
            });
            first = found.unwrap_or(first);
        }
        for step in 0..count {
            let number = main.start + (first - main.start + step) % count;
            if barred.contains(&number) || !self.can_give(state, number)? {
                continue;
            }
            let group = state.groups.get_mut(&number).expect("ensured");
            let spare = group.free();
            let Some(segment) = self.metadata_segment(group, number)? else { continue };
            let fragment = group.take_page(segment, self.geometry());
            Self::note_spare(state, number, spare);
            let place = Place::new(0, number, fragment);
            let extent = Extent { place, fragments: self.geometry().page_fragments() };
            state.used += u64::from(extent.fragments);
            Apart::change(state, number, |apart| apart.used += u64::from(extent.fragments));
            ledger.taken.push(extent);
            let group = &state.groups[&number];
            self.log_change(tx, group, extent, true, &mut Looked::default())?;
            return Ok(place);
        }
        Err(FsError::NoSpace)
    }

    /// Returns a metadata segment of `group` with a free page, making one if need be.
    fn metadata_segment(&self, group: &mut Group, number: u32) -> FsResult<Option<u32>> {
        if let Some(segment) = group.metadata_with_room() {
            return Ok(Some(segment));
        }
        let Some(segment) = group.lowest_free() else { return Ok(None) };
        // In a transaction of its own, so that it stands even if the caller's is given up.
        let mut tx = self.journal.begin_unreserved();
        let incarnation = tx.epoch;
        let was_free = group.segments[index(segment)].kind == SegmentKind::Free;
        let usage = SegmentUsage {
            kind: SegmentKind::Metadata,
            incarnation,
            newest: incarnation,
            ..SegmentUsage::FREE
        };
        let buffer = self.usage_buffer(number, segment)?;
        tx.put(&buffer, SegmentUsage::offset(segment), &usage.encode());
        self.add_lsn_pages(&mut tx, &group.descriptor, number, segment);
        if was_free {
            tx.add_u32(&group.descriptor, DESCRIPTOR_SEGMENTS_USED_OFFSET, 1);
        }
        self.journal.end(tx);
        group.become_metadata((number, segment), incarnation, self.geometry());
        Ok(Some(segment))
    }

    /// Brings the LSN pages that cover `segment` into being, as far as they are not there.
    fn add_lsn_pages(&self, tx: &mut Tx, descriptor: &Arc<Buffer>, group: u32, segment: u32) {
        let (geometry, page) = (self.geometry(), descriptor.bytes());
        for index in geometry.lsn_pages_of_segment(segment) {
            if is_lsn_page_used(page_of(&page), index) {
                continue;
            }
            let at = geometry.lsn_page_place(group, index);
            let owner = PageOwner { index: group_page_index(group, index), ..PageOwner::default() };
            let bytes = tx.new_page(at).expect(OWN_PLACES);
            PageHeader::new(PageKind::LsnPage, self.cache.pool_id(), at, owner).encode(bytes);
            tx.set_bits(descriptor, lsn_page_bit(index), 1, true);
        }
    }

    fn usage_buffer(&self, group: u32, segment: u32) -> FsResult<Arc<Buffer>> {
        let page = segment / format::group::USAGES_PER_PAGE;
        let owner = PageOwner { index: group_page_index(group, page), ..PageOwner::default() };
        let place = self.geometry().usage_place(group, page);
        self.cache.page(place, PageKind::SegmentUsage, owner)
    }

    fn free_map_buffer(&self, group: u32, page: u32) -> FsResult<Arc<Buffer>> {
        let owner = PageOwner { index: group_page_index(group, page), ..PageOwner::default() };
        self.cache.page(self.geometry().free_map_place(group, page), PageKind::FreeMap, owner)
    }

    /// Keeps `fragments` for a block that is not stored. Whether there is room the caller has seen.
    pub(crate) fn reserve(&self, tx: &mut Tx, ledger: &mut Ledger, fragments: u32) {
        self.state.lock().reserved += u64::from(fragments);
        ledger.reserved += u64::from(fragments);
        tx.add_u64(&self.root, TOTAL_FRAGMENTS_RESERVED_OFFSET, i64::from(fragments));
    }

    /// Keeps `fragments` no longer, once the transaction has ended.
    pub(crate) fn unreserve(&self, tx: &mut Tx, ledger: &mut Ledger, fragments: u32) {
        ledger.unreserved += u64::from(fragments);
        if !planted::is(Planted::ReservationLeaked) {
            tx.add_u64(&self.root, TOTAL_FRAGMENTS_RESERVED_OFFSET, -i64::from(fragments));
        }
    }

    /// Adds `delta` to the pool's count of bytes that filesets have reserved.
    pub(crate) fn count_reservations(&self, tx: &mut Tx, delta: i64) {
        tx.add_u64(&self.root, TOTAL_RESERVATIONS_OFFSET, delta);
    }

    /// Whether any fileset has a reservation.
    pub(crate) fn has_reservations(&self) -> bool {
        read_u64(page_of(&self.root.bytes()), TOTAL_RESERVATIONS_OFFSET) > 0
    }

    /// Adds `delta` to the pool's count of anodes in use.
    pub(crate) fn count_anodes(&self, tx: &mut Tx, delta: i64) {
        tx.add_u64(&self.root, format::group::TOTAL_ANODES_USED_OFFSET, delta);
    }

    /// Logs how far an open data segment is written, in a transaction of its own: two that install
    /// blocks of it may end in either order, or one not at all.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn segment_filled(&self, id: SegmentId, filled: u32) -> FsResult<()> {
        let mut state = self.state.lock();
        let group = state.groups.get_mut(&id.group).expect("the group of an open segment");
        group.segments[index(id.segment)].filled = filled;
        self.log_usage(&self.state_of(group, id), id, None)
    }

    fn state_of(&self, group: &Group, id: SegmentId) -> SegmentUsage {
        let segment = &group.segments[index(id.segment)];
        SegmentUsage {
            kind: segment.kind,
            filled: segment.filled,
            incarnation: segment.incarnation,
            newest: self.journal.birth(),
            ..SegmentUsage::FREE
        }
    }

    /// Logs a segment's usage but for its live count, which belongs to everyone. `newly_used`: the
    /// descriptor of its group, if the segment was free.
    fn log_usage(
        &self,
        usage: &SegmentUsage,
        id: SegmentId,
        newly_used: Option<&Arc<Buffer>>,
    ) -> FsResult<()> {
        let mut tx = self.journal.begin_unreserved();
        let buffer = self.usage_buffer(id.group, id.segment)?;
        let (offset, encoded) = (SegmentUsage::offset(id.segment), usage.encode());
        tx.put(&buffer, offset, &encoded[..4]);
        tx.put(&buffer, offset + 8, &encoded[8..24]);
        if let Some(descriptor) = newly_used {
            tx.add_u32(descriptor, DESCRIPTOR_SEGMENTS_USED_OFFSET, 1);
        }
        self.journal.end(tx);
        Ok(())
    }

    /// Settles what a transaction that ended at `lsn` took and freed.
    pub(crate) fn settle(&self, ledger: Ledger, lsn: Lsn) {
        // Most changes give nothing back, and what they took is counted already.
        if ledger.installed == 0 && ledger.unreserved == 0 && ledger.freed.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.used += ledger.installed;
        state.promised = state.promised.checked_sub(ledger.installed).expect("was promised");
        // Saturating: the count is the disk's, and the pointers that contradict it are too.
        state.reserved = state.reserved.saturating_sub(ledger.unreserved);
        if ledger.freed.is_empty() {
            return;
        }
        for extent in &ledger.freed {
            let fragments = u64::from(extent.fragments);
            state.used = state.used.saturating_sub(fragments);
            state.pending_fragments += fragments;
            Apart::change(&mut state, extent.place.group(), |apart| apart.free_later(fragments));
            let segment = self.geometry().segment_of(extent.place);
            let group = state.groups.get_mut(&extent.place.group()).expect("freed from it");
            group.segments[index(segment)].pending += extent.fragments;
        }
        let is_planted = planted::is(Planted::FreedSpaceUsedAtOnce);
        state.pending.push_back((if is_planted { Lsn(0) } else { lsn }, ledger.freed));
        drop(state);
        if is_planted {
            self.release(Lsn(1));
        }
    }

    /// Undoes what a transaction that was given up took.
    pub(crate) fn undo(&self, ledger: Ledger) {
        let mut state = self.state.lock();
        state.reserved = state.reserved.saturating_sub(ledger.reserved);
        let installed = ledger.installed;
        for extent in ledger.taken {
            let number = extent.place.group();
            let group = state.groups.get_mut(&number).expect("taken from it");
            let segment = self.geometry().segment_of(extent.place);
            if group.segments[index(segment)].kind == SegmentKind::Metadata {
                let spare = group.free();
                group.release_page(extent.place.fragment(), self.geometry());
                Self::note_spare(&mut state, number, spare);
                state.used -= u64::from(extent.fragments);
                Apart::change(&mut state, number, |apart| apart.give_back(extent.fragments));
            } else {
                group.segments[index(segment)].held -= extent.fragments;
            }
        }
        // The promise of what was to be installed is still the caller's.
        let _ = installed;
    }

    /// G2: everything freed before `tail` may be used again.
    pub(crate) fn release(&self, tail: Lsn) {
        let mut state = self.state.lock();
        while state.pending.front().is_some_and(|(lsn, _)| *lsn < tail) {
            let (_, extents) = state.pending.pop_front().expect("looked at it");
            for extent in extents {
                state.pending_fragments -= u64::from(extent.fragments);
                let number = extent.place.group();
                Apart::change(&mut state, number, |apart| apart.release(extent.fragments));
                let group = state.groups.get_mut(&number).expect("freed from it");
                let spare = group.free();
                group.release(extent, self.geometry());
                Self::note_spare(&mut state, number, spare);
            }
        }
    }

    /// Returns the group in which a directory and the data of its files belong, if the policy has
    /// one.
    pub(crate) fn home_group(&self, directory: AnodeNo) -> Option<u32> {
        let main = main_of(self.geometry());
        let count = main.end.saturating_sub(main.start);
        self.policy.home_group(directory.0, count).map(|group| main.start + group)
    }

    /// Opens a free segment for data that belongs in group `home`, if in any, and is wanted where
    /// `preference` says.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if none is free, or only those kept for the cleaner.
    pub(crate) fn open_segment(
        &self,
        urgency: Urgency,
        home: Option<u32>,
        preference: Preference,
    ) -> FsResult<(SegmentId, Epoch)> {
        let mut state = self.state.lock();
        self.need()?;
        let is_data = matches!(urgency, Urgency::User | Urgency::Held);
        let kept = if is_data { CLEANER_SEGMENTS } else { 0 };
        while self.count_free(&mut state, kept + 1)? <= kept {
            if !self.await_discard(&mut state) {
                return Err(FsError::NoSpace);
            }
        }
        let id = self.take_free(&mut state, home, preference)?;
        let incarnation = self.journal.birth();
        let group = state.groups.get_mut(&id.group).expect("found in it");
        let was_free = group.segments[index(id.segment)].kind == SegmentKind::Free;
        group.open(id.segment, incarnation);
        let usage = self.state_of(group, id);
        let logged = self.log_usage(&usage, id, was_free.then_some(&group.descriptor));
        if let Err(error) = logged {
            // Nobody has it.
            state.groups.get_mut(&id.group).expect("found in it").close(id.segment);
            return Err(error);
        }
        Ok((id, incarnation))
    }

    /// The segment takes no more blocks, and every block of it is installed or dead.
    pub(crate) fn close_segment(&self, id: SegmentId) {
        let mut state = self.state.lock();
        let group = state.groups.get_mut(&id.group).expect("the group of an open segment");
        group.close(id.segment);
    }

    /// Returns how many segments are free, counting no further than `enough`.
    pub(crate) fn free_segments(&self, enough: u32) -> FsResult<u32> {
        self.count_free(&mut self.state.lock(), enough)
    }

    /// Returns every data segment of the loaded groups that is closed and not empty, with what is
    /// live in it: the cleaner's candidates. To empty one of a disk group that leaves makes no
    /// room, and is done anyway: those are none.
    pub(crate) fn candidates(&self) -> Vec<SegmentView> {
        let state = self.state.lock();
        let mut candidates = Vec::new();
        let stays = |number: &u32| !Self::group_leaves(&state, *number);
        for (number, group) in state.groups.iter().filter(|(number, _)| stays(number)) {
            for (segment, usage) in group.segments.iter().enumerate() {
                let is_candidate = usage.kind == SegmentKind::Data && !usage.is_open;
                if !is_candidate || usage.held == 0 {
                    continue;
                }
                let segment = narrow(crate::convert::wide(segment));
                candidates.push(SegmentView {
                    segment: SegmentId { group: *number, segment }.into(),
                    live_fragments: usage.held.saturating_sub(usage.pending),
                    size_fragments: self.geometry().segment_fragments,
                    lost_fragments: self.lost_fragments,
                    newest: usage.incarnation.0,
                });
            }
        }
        candidates
    }

    /// Returns the epoch in which a data segment was opened; `None` if it is none.
    pub(crate) fn incarnation_of(&self, id: SegmentId) -> Option<Epoch> {
        let state = self.state.lock();
        let segment = state.groups.get(&id.group)?.segments.get(index(id.segment))?;
        (segment.kind == SegmentKind::Data).then_some(segment.incarnation)
    }
}

/// The index in the header of map and usage pages: group and page of the group.
pub(crate) fn group_page_index(group: u32, page: u32) -> u64 {
    u64::from(group) << 16 | u64::from(page)
}

/// What is kept back: room for the cleaner to copy into and for the metadata that removing,
/// cleaning and checkpoints can need.
fn reserve_of(geometry: &Geometry, capacity: u64, block_shift: u8) -> u64 {
    let segments = u64::from(CLEANER_SEGMENTS + LOW_SEGMENTS) + 2;
    let segment = u64::from(geometry.segment_fragments);
    let fixed = segments * segment;
    let summaries = capacity / segment * lost_of(geometry, block_shift);
    (fixed.max(capacity / 50) + summaries).min(capacity / 3)
}

/// What a full segment of blocks of the default size can't give to them: its summary, and an end
/// too short for a block.
fn lost_of(geometry: &Geometry, block_shift: u8) -> u64 {
    let blocks = blocks_per_segment(geometry, block_shift);
    u64::from(geometry.segment_fragments) - blocks * block_fragments(geometry, block_shift)
}

fn block_fragments(geometry: &Geometry, block_shift: u8) -> u64 {
    (1_u64 << block_shift).div_ceil(geometry.fragment_bytes())
}

/// Returns how many blocks of the default size a segment holds beside their summary.
fn blocks_per_segment(geometry: &Geometry, block_shift: u8) -> u64 {
    let segment = u64::from(geometry.segment_fragments);
    let (block, page) =
        (block_fragments(geometry, block_shift), u64::from(geometry.page_fragments()));
    let entries = crate::convert::wide(format::summary::ENTRIES_PER_SUMMARY);
    let fits = |blocks: &u64| blocks * block + blocks.div_ceil(entries) * page <= segment;
    (0..=segment / block).rev().find(fits).unwrap_or(0)
}
