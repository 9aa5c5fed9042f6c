//! The space allocator: free maps, space counts, segments and pages.
//!
//! Mechanism only. `policy` states a preference. This module checks it, falls back, and enforces
//! the rules of reuse.
//!
//! # Invariants
//!
//! - G1: A fragment in use is not allocated again before it was freed and released.
//! - G2: A freed fragment is released only when the checkpoint that wrote back the freeing pages
//!   has moved the log's tail past them (K3). Until then it is *pending* (deferred free).
//! - G3: A segment changes its kind only while none of its fragments is used or pending.
//! - G4: Fragments used, promised, reserved for blocks, pending, or out of reach of blocks never
//!   exceed the capacity less the reserve. So each accepted write can be mapped, and a full pool
//!   can delete, checkpoint and clean. (Promised: set aside for a write until its map update.)
//! - G5: An overwrite of stored or reserved blocks may use three quarters of the reserve. The next
//!   checkpoint releases the old version, so after a checkpoint an overwrite has room.
//! - G6: A pinned segment is neither opened nor given another kind, even when it is empty.
//! - G7: Where the main disk group holds metadata only, metadata is checked against its room, and
//!   data against the room of the other disk groups (`apart`).
//! - G8: Where the main disk group holds data too, enough whole segments there stay free of data
//!   for promised metadata, since pages cannot use holes between blocks. Data is moved elsewhere
//!   before a request is refused for this.
//!
//! # Concurrency
//!
//! One lock. A group's maps are read under it, once per open of the pool.
//!
//! Not here: the order of writes in a segment (`segment`), and emptying segments (`vnode`'s
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

pub(crate) use apart::MetadataHeadroom;
pub(crate) use discard::{DiscardSelection, HeldSegments};
pub(crate) use disk_groups::{GroupsInUse, LeavingDiskGroup, RemovalVerdict};
pub(crate) use extent::{Extent, Extents};
pub(crate) use level::LifetimeLevel;
pub(crate) use pin::SegmentPin;
pub use preference::PlacementError;
pub(crate) use preference::PlacementPreference;
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
use runtime::if_planted;
use storage::volume::Volume;

use crate::buffer::{Cache, PageBuffer, corrupt, page_of};
use crate::convert::{index, narrow};
use crate::error::{FsError, FsResult};
use crate::journal::{Journal, Tx};
use crate::sync::{Condvar, Mutex};
use crate::usage::UnusedReservations;

use self::apart::MetadataSpace;
use self::change::LastUsedPages;
use self::discard::ExpiredDiscards;
use self::group::{AllocationGroup, OWN_PLACES};
use self::policy::{PlacementPolicy, SegmentView};
use self::share::{SegmentSource, capacity_of, main_of, parts_of};
use self::spare::GroupSpareSpace;

/// Free segments reserved for the cleaner's copies.
const CLEANER_SEGMENTS: u32 = 2;
/// Free pages that creating names must leave in a pool without free segments, for removals and map
/// pages.
const PAGES_KEPT: u64 = 16;
/// The background cleaner starts below this many free segments.
pub(crate) const LOW_SEGMENTS: u32 = 8;
/// Below this many free segments writers clean: hardly more than the cleaner's own are left.
pub(crate) const FEW_SEGMENTS: u32 = CLEANER_SEGMENTS + 2;
/// Free segments to reach after a refusal, at whatever cost in copying.
pub(crate) const PROMISED_SEGMENTS: u32 = CLEANER_SEGMENTS + 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId {
    pub(crate) group: u32,
    pub(crate) segment: u32,
}

impl SegmentId {
    pub(crate) const FIRST: SegmentId = SegmentId { group: 0, segment: 0 };
}

/// Space that a running transaction has taken and freed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    taken: Vec<Extent>,
    freed: Vec<Extent>,
    /// Promised fragments that the transaction turns into used ones.
    installed: u64,
    /// Fragments newly reserved.
    reserved: u64,
    unreserved: u64,
}

/// How far a request may go into the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A user's write, refused when the pool is full.
    User,
    /// A user's overwrite of stored or reserved blocks (G5).
    Held,
    /// A rename, a removal or a size change. May use half of the reserve.
    Name,
    /// Work that must go on in a full pool: cleaning, removal.
    System,
}

#[derive(Debug)]
struct AllocatorState {
    groups: BTreeMap<u32, AllocationGroup>,
    /// Groups with unreadable maps, retried after some minutes.
    unread: BTreeSet<u32>,
    ticks: u64,
    /// Used fragments of groups outside memory, as far as counted.
    used_at_rest: BTreeMap<u32, u32>,
    used: u64,
    promised: u64,
    /// Fragments reserved for blocks not stored, or not in full.
    reserved: u64,
    pending: VecDeque<(Lsn, Vec<Extent>)>,
    pending_fragments: u64,
    /// The disk groups that give segments, the main one first.
    shares: Vec<SegmentSource>,
    capacity: u64,
    reserve: u64,
    /// Counts of a main disk group for metadata only.
    apart: Option<MetadataSpace>,
    /// Discards in flight, and discards ended (DH2).
    discarding: u32,
    discards_ended: u64,
}

#[derive(Debug)]
pub(crate) struct Allocator {
    volume: Volume,
    cache: Arc<Cache>,
    journal: Arc<Journal>,
    policy: Box<dyn PlacementPolicy>,
    /// Injected refusals, for tests.
    shortage: Option<Arc<Shortage>>,
    /// Root of the group table, with the pool's totals.
    root: Arc<PageBuffer>,
    pub(crate) kept: UnusedReservations,
    /// Binary logarithm of the default block size.
    block_shift: u8,
    block_fragments: u64,
    /// Fragments of a segment that blocks of the default size cannot use.
    lost_fragments: u32,
    pub(crate) withheld: ExpiredDiscards,
    state: Mutex<AllocatorState>,
    discard_ended: Condvar,
}

/// Space counts of the pool, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceCounts {
    /// Available to files and metadata together.
    pub capacity: u64,
    /// In use.
    pub used: u64,
    /// Accepted and not yet in use (delayed allocation).
    pub promised: u64,
    /// Preallocated and not yet written.
    pub reserved: u64,
    /// Kept back, so that a full pool can be emptied and cleaned.
    pub reserve: u64,
    /// Freed, and unusable before the next checkpoint.
    pub pending: u64,
    /// Out of reach of blocks: free metadata pages, and fronts of unused groups.
    pub spare: u64,
    /// Unused parts of the reservations of filesets.
    pub kept: u64,
    /// Available to metadata only.
    pub metadata_free: u64,
    /// Available to one more file, in a fileset without a reservation.
    pub available: u64,
}

impl Allocator {
    /// Opens the allocator after journal recovery.
    ///
    /// # Errors
    ///
    /// Fails if the totals of the pool are unreadable or damaged.
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
        let capacity = geometry
            .group_layout()
            .groups()
            .map(|number| capacity_of(geometry, number))
            .sum::<u64>();
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
        let mut main = SegmentSource::main(geometry);
        main.note_in_use(groups_used);
        let state = AllocatorState {
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
            kept: UnusedReservations::default(),
            block_shift,
            block_fragments,
            lost_fragments,
            withheld: ExpiredDiscards::default(),
            state,
            discard_ended: Condvar::default(),
        };
        if !parts_of(allocator.geometry()).is_empty() {
            let of_first = groups_used.saturating_sub(allocator.group_space().note_disk_groups()?);
            let apart = allocator.group_space().apart_at_open()?;
            let mut state = allocator.state.lock();
            state.shares[0].note_in_use(of_first);
            state.apart = apart;
        }
        allocator.count_first();
        Ok(allocator)
    }

    /// Counts a request for space, which a test may refuse.
    fn need(&self) -> FsResult<()> {
        self.shortage.as_ref().map_or(Ok(()), |shortage| shortage.need())
    }

    fn geometry(&self) -> &Geometry {
        self.volume.geometry()
    }

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
            metadata_free: state.apart.as_ref().map_or(0, MetadataSpace::spare),
            available: self.available(&state),
        }
    }

    /// Updates a share's spare count after a change in group `number`.
    fn note_spare(state: &mut AllocatorState, number: u32, before: GroupSpareSpace) {
        let after = state.groups.get(&number).map(AllocationGroup::free).unwrap_or_default();
        if let Some(share) = Self::share_of(state, number).filter(|share| share.has_pages()) {
            share.spare.change(before, after);
        }
    }

    /// Promises `fragments`, which the caller uses or returns. `own` is its fileset's unused
    /// reservation.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] beyond the limit for `urgency` (G4).
    pub(crate) fn promise(&self, fragments: u64, urgency: Urgency, own: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        let is_data = matches!(urgency, Urgency::User | Urgency::Held);
        let spare = if is_data { self.spare(&state) } else { 0 };
        let kept = self.kept_from(&state, urgency, own);
        if self.taken(&state) + spare + fragments + kept > state.capacity {
            return Err(FsError::NoSpace);
        }
        self.group_space().check_apart(&state, fragments, urgency)?;
        self.group_space().check_reach(&mut state, fragments, urgency)?;
        state.promised += fragments;
        Ok(())
    }

    /// Checks that metadata may take `fragments`, spare pages included. `own` is the fileset's
    /// unused reservation.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] beyond the limit for `urgency`.
    pub(crate) fn check_room(&self, fragments: u64, urgency: Urgency, own: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        let wanted = self.taken(&state) + fragments + self.kept_from(&state, urgency, own);
        if wanted > state.capacity {
            return Err(FsError::NoSpace);
        }
        self.group_space().check_apart(&state, fragments, urgency)?;
        self.group_space().check_reach(&mut state, fragments, urgency)
    }

    /// Returns the fragments that are not free. Pending ones cannot be written yet.
    fn taken(&self, state: &AllocatorState) -> u64 {
        state.used + state.promised + state.reserved + state.pending_fragments
    }

    /// Returns the fragments that a request must leave free. `own` is its fileset's unused
    /// reservation.
    fn kept_from(&self, state: &AllocatorState, urgency: Urgency, own: u64) -> u64 {
        let for_others = self.kept.fragments().saturating_sub(own);
        match urgency {
            Urgency::User => state.reserve + for_others,
            Urgency::Name => state.reserve / 2 + for_others,
            // Less than what `Name` leaves, so that names cannot use up an overwrite's room.
            Urgency::Held => state.reserve / 4,
            Urgency::System => 0,
        }
    }

    pub(crate) fn unpromise(&self, fragments: u64) {
        let mut state = self.state.lock();
        state.promised = state.promised.checked_sub(fragments).expect("was promised");
    }

    /// Allocates a metadata page, near `near` if possible.
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
        state: &mut AllocatorState,
        (tx, ledger): (&mut Tx, &mut Ledger),
        near: Place,
    ) -> FsResult<Place> {
        // Groups that are being given up allocate nothing (GR2).
        let main = state.shares[0].numbers.clone();
        let count = main.end.saturating_sub(main.start);
        // The policy counts groups from the first of the main disk group.
        let hot = state.shares[0].cursor.group.saturating_sub(main.start);
        let near = near.group().saturating_sub(main.start);
        let mut first = main.start + self.policy.metadata_group(near, hot, count);
        let has_page = |state: &AllocatorState, number| {
            state.groups.get(&number).is_some_and(|group| group.free_pages > 0)
        };
        self.can_give(state, first)?;
        let barred = self.shortage.as_ref().map(|shortage| shortage.barred()).unwrap_or_default();
        let known = state.shares[0].spare.known();
        if (!has_page(state, first) || barred.contains(&first)) && known > 0 {
            // No segment becomes metadata while another group has a free page: blocks need
            // segments.
            let roomy = |(number, group): &(&u32, &AllocationGroup)| {
                group.free_pages > 0 && !barred.contains(number)
            };
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
            MetadataSpace::change(state, number, |apart| apart.used += u64::from(extent.fragments));
            ledger.taken.push(extent);
            let group = &state.groups[&number];
            self.log_change(tx, group, extent, true, &mut LastUsedPages::default())?;
            return Ok(place);
        }
        Err(FsError::NoSpace)
    }

    /// Returns a metadata segment with a free page, perhaps a converted free segment.
    fn metadata_segment(&self, group: &mut AllocationGroup, number: u32) -> FsResult<Option<u32>> {
        if let Some(segment) = group.metadata_with_room() {
            return Ok(Some(segment));
        }
        let Some(segment) = group.lowest_free() else { return Ok(None) };
        // In a transaction of its own, so that an undo of the caller's transaction keeps the
        // conversion.
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

    fn add_lsn_pages(&self, tx: &mut Tx, descriptor: &Arc<PageBuffer>, group: u32, segment: u32) {
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

    fn usage_buffer(&self, group: u32, segment: u32) -> FsResult<Arc<PageBuffer>> {
        let page = segment / format::group::USAGES_PER_PAGE;
        let owner = PageOwner { index: group_page_index(group, page), ..PageOwner::default() };
        let place = self.geometry().usage_place(group, page);
        self.cache.page(place, PageKind::SegmentUsage, owner)
    }

    fn free_map_buffer(&self, group: u32, page: u32) -> FsResult<Arc<PageBuffer>> {
        let owner = PageOwner { index: group_page_index(group, page), ..PageOwner::default() };
        self.cache.page(self.geometry().free_map_place(group, page), PageKind::FreeMap, owner)
    }

    /// Reserves `fragments` for a block. The caller has checked for space.
    pub(crate) fn reserve(&self, tx: &mut Tx, ledger: &mut Ledger, fragments: u32) {
        self.state.lock().reserved += u64::from(fragments);
        ledger.reserved += u64::from(fragments);
        tx.add_u64(&self.root, TOTAL_FRAGMENTS_RESERVED_OFFSET, i64::from(fragments));
    }

    /// Ends a reservation at the end of the transaction.
    pub(crate) fn unreserve(&self, tx: &mut Tx, ledger: &mut Ledger, fragments: u32) {
        ledger.unreserved += u64::from(fragments);
        tx.add_u64(&self.root, TOTAL_FRAGMENTS_RESERVED_OFFSET, -i64::from(fragments));
    }

    /// Adds `delta` bytes to the pool's total of reservations.
    pub(crate) fn count_reservations(&self, tx: &mut Tx, delta: i64) {
        tx.add_u64(&self.root, TOTAL_RESERVATIONS_OFFSET, delta);
    }

    pub(crate) fn has_reservations(&self) -> bool {
        read_u64(page_of(&self.root.bytes()), TOTAL_RESERVATIONS_OFFSET) > 0
    }

    pub(crate) fn count_anodes(&self, tx: &mut Tx, delta: i64) {
        tx.add_u64(&self.root, format::group::TOTAL_ANODES_USED_OFFSET, delta);
    }

    /// Logs how far a segment is filled, in a transaction of its own, because transactions that map
    /// its blocks may end in any order or be undone.
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

    fn state_of(&self, group: &AllocationGroup, id: SegmentId) -> SegmentUsage {
        let segment = &group.segments[index(id.segment)];
        SegmentUsage {
            kind: segment.kind,
            filled: segment.filled,
            incarnation: segment.incarnation,
            newest: self.journal.birth(),
            ..SegmentUsage::FREE
        }
    }

    /// Logs a segment's usage except its live count, which concurrent transactions change.
    /// `newly_used` is the group's descriptor if the segment was free.
    fn log_usage(
        &self,
        usage: &SegmentUsage,
        id: SegmentId,
        newly_used: Option<&Arc<PageBuffer>>,
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

    pub(crate) fn settle(&self, ledger: Ledger, lsn: Lsn) {
        // Most transactions free nothing, and allocations are already counted.
        if ledger.installed == 0 && ledger.unreserved == 0 && ledger.freed.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        state.used += ledger.installed;
        state.promised = state.promised.checked_sub(ledger.installed).expect("was promised");
        // Saturating: a damaged count may contradict the pointers.
        state.reserved = state.reserved.saturating_sub(ledger.unreserved);
        if ledger.freed.is_empty() {
            return;
        }
        for extent in &ledger.freed {
            let fragments = u64::from(extent.fragments);
            state.used = state.used.saturating_sub(fragments);
            state.pending_fragments += fragments;
            MetadataSpace::change(&mut state, extent.place.group(), |apart| {
                apart.free_later(fragments)
            });
            let segment = self.geometry().segment_of(extent.place);
            let group = state.groups.get_mut(&extent.place.group()).expect("freed from it");
            group.segments[index(segment)].pending += extent.fragments;
        }
        state.pending.push_back((lsn, ledger.freed));
        drop(state);
        if_planted!(FreedSpaceUsedAtOnce, self.release(Lsn(u64::MAX)));
    }

    /// Takes back the allocations of an undone transaction.
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
                MetadataSpace::change(&mut state, number, |apart| {
                    apart.give_back(extent.fragments)
                });
            } else {
                group.segments[index(segment)].held -= extent.fragments;
            }
        }
        // The promise stays with the caller.
        let _ = installed;
    }

    /// Releases all extents freed before `tail` (G2).
    pub(crate) fn release(&self, tail: Lsn) {
        let mut state = self.state.lock();
        while state.pending.front().is_some_and(|(lsn, _)| *lsn < tail) {
            let (_, extents) = state.pending.pop_front().expect("looked at it");
            for extent in extents {
                state.pending_fragments -= u64::from(extent.fragments);
                let number = extent.place.group();
                MetadataSpace::change(&mut state, number, |apart| apart.release(extent.fragments));
                let group = state.groups.get_mut(&number).expect("freed from it");
                let spare = group.free();
                group.release(extent, self.geometry());
                Self::note_spare(&mut state, number, spare);
            }
        }
    }

    /// Returns the policy's group for a directory and its files' data.
    pub(crate) fn home_group(&self, directory: AnodeNo) -> Option<u32> {
        let main = main_of(self.geometry());
        let count = main.end.saturating_sub(main.start);
        self.policy.home_group(directory.0, count).map(|group| main.start + group)
    }

    /// Opens a segment for data, if possible in group `home` and as `preference` wants.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if only the cleaner's segments are free.
    pub(crate) fn open_segment(
        &self,
        urgency: Urgency,
        home: Option<u32>,
        preference: PlacementPreference,
    ) -> FsResult<(SegmentId, Epoch)> {
        let mut state = self.state.lock();
        self.need()?;
        let is_data = matches!(urgency, Urgency::User | Urgency::Held);
        let kept = if is_data { CLEANER_SEGMENTS } else { 0 };
        while self.group_space().count_free(&mut state, kept + 1)? <= kept {
            if !self.await_discard(&mut state) {
                return Err(FsError::NoSpace);
            }
        }
        let id = self.group_space().take_free(&mut state, home, preference)?;
        let incarnation = self.journal.birth();
        let group = state.groups.get_mut(&id.group).expect("found in it");
        let was_free = group.segments[index(id.segment)].kind == SegmentKind::Free;
        group.open(id.segment, incarnation);
        let usage = self.state_of(group, id);
        let logged = self.log_usage(&usage, id, was_free.then_some(&group.descriptor));
        if let Err(error) = logged {
            // No block was written to it.
            state.groups.get_mut(&id.group).expect("found in it").close(id.segment);
            return Err(error);
        }
        Ok((id, incarnation))
    }

    /// Closes a segment once each of its blocks is mapped or dead.
    pub(crate) fn close_segment(&self, id: SegmentId) {
        let mut state = self.state.lock();
        let group = state.groups.get_mut(&id.group).expect("the group of an open segment");
        group.close(id.segment);
    }

    /// Counts free segments, up to `enough`.
    pub(crate) fn free_segments(&self, enough: u32) -> FsResult<u32> {
        self.group_space().count_free(&mut self.state.lock(), enough)
    }

    /// Returns the cleaner's candidates: closed, non-empty data segments in memory. Evacuation
    /// empties those of a disk group that leaves.
    pub(crate) fn candidates(&self) -> Vec<SegmentView> {
        let state = self.state.lock();
        let mut candidates = Vec::new();
        let stays = |number: &u32| !GroupSpace::group_leaves(&state, *number);
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

    pub(crate) fn incarnation_of(&self, id: SegmentId) -> Option<Epoch> {
        let state = self.state.lock();
        let segment = state.groups.get(&id.group)?.segments.get(index(id.segment))?;
        (segment.kind == SegmentKind::Data).then_some(segment.incarnation)
    }
}

pub(crate) fn group_page_index(group: u32, page: u32) -> u64 {
    u64::from(group) << 16 | u64::from(page)
}

/// Returns the reserve: the cleaner's target of free segments, and metadata of necessary work.
fn reserve_of(geometry: &Geometry, capacity: u64, block_shift: u8) -> u64 {
    let segments = u64::from(CLEANER_SEGMENTS + LOW_SEGMENTS) + 2;
    let segment = u64::from(geometry.segment_fragments);
    let fixed = segments * segment;
    let summaries = capacity / segment * lost_of(geometry, block_shift);
    (fixed.max(capacity / 50) + summaries).min(capacity / 3)
}

/// Returns the fragments of a segment lost to summaries and a short tail.
fn lost_of(geometry: &Geometry, block_shift: u8) -> u64 {
    let blocks = blocks_per_segment(geometry, block_shift);
    u64::from(geometry.segment_fragments) - blocks * block_fragments(geometry, block_shift)
}

fn block_fragments(geometry: &Geometry, block_shift: u8) -> u64 {
    (1_u64 << block_shift).div_ceil(geometry.fragment_bytes())
}

fn blocks_per_segment(geometry: &Geometry, block_shift: u8) -> u64 {
    let segment = u64::from(geometry.segment_fragments);
    let (block, page) =
        (block_fragments(geometry, block_shift), u64::from(geometry.page_fragments()));
    let entries = crate::convert::wide(format::summary::ENTRIES_PER_SUMMARY);
    let fits = |blocks: &u64| blocks * block + blocks.div_ceil(entries) * page <= segment;
    (0..=segment / block).rev().find(fits).unwrap_or(0)
}

runtime::view! {
    /// The allocator's view of disk groups: adding, growing, removing them, and choosing the main
    /// one.
    pub(crate) struct GroupSpace of Allocator;
    fn group_space;
}
