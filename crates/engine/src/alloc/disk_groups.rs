//! The choice of a disk group for new data, and the removal of disk groups.
//!
//! # Invariants
//!
//! - GR1: New metadata goes to the main disk group only, except for *fronts* (the fixed pages at
//!   the start of each allocation group). Data goes only to disk groups with the data role. A main
//!   disk group with data keeps free segments that data takes only as a last resort ([`kept_of`]);
//!   they count as reserve (G4). The free space between pages of a former main disk group is
//!   unusable.
//! - GR2: A disk group that is being removed ("leaves") allocates nothing.
//! - GR3: The capacity is that of the other disk groups, plus the used fronts of the leaving one.
//!   So its contents already count as used where they will move (G4), writers are refused before
//!   they take that room, and the check at the start of the removal stays valid until its end.
//! - GR4: Blocks of a file in a round-robin group go to one member, chosen by the file's number,
//!   while it has a free segment.
//! - GR5: Blocks of a file with a placement go to disk groups that suit it while one has a free
//!   segment, then to any other. So a placement never causes ENOSPC.
//!
//! Segments are shared in proportion to free space: for each segment, every disk group is credited
//! with its free segments. The one with the most credit gives the segment, and pays the sum of
//! these credits.
//!
//! Not here: the choice within a disk group (`policy`), and the preference of a file
//! (`preference`).

use super::GroupSpace;
use format::disk_group::GroupRange;
use format::geometry::Geometry;
use format::group::{
    SegmentKind, SegmentUsage, TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET,
};
use runtime::planted;

use super::preference::PlacementPreference;
use super::share::{
    SegmentSource, capacity_of, front_of, gives_room, kept_of, main_of, may_have_pages, parts_of,
};
use super::{AllocatorState, SegmentId, reserve_of};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

const GROUPS_PER_TX: usize = 32;

/// A disk group, or one device of a round-robin group, that leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeavingDiskGroup {
    pub(crate) disk_group: u8,
    /// See [`format::disk_group::GroupRange::lane`]. `None` for all lanes.
    pub(crate) lane: Option<u8>,
}

impl LeavingDiskGroup {
    fn has(self, disk_group: u8, lane: Option<u8>) -> bool {
        self.disk_group == disk_group && (self.lane.is_none() || self.lane == lane)
    }

    fn has_range(self, range: &GroupRange) -> bool {
        self.has(range.disk_group, range.lane)
    }

    fn has_share(self, share: &SegmentSource) -> bool {
        self.has(share.disk_group, share.lane)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalVerdict {
    /// The contents fit into other disk groups.
    Yes,
    /// No other disk group takes data.
    LastForData,
    /// Fragments missing in other disk groups.
    NoRoom { fragments: u64 },
}

/// Remaining contents of allocation groups that leave.
#[derive(Debug, Default)]
pub(crate) struct RemainingContents {
    /// In use or pending.
    pub(crate) bytes: u64,
    /// Pending.
    pub(crate) freed_bytes: u64,
    /// Closed segments with live blocks.
    pub(crate) segments: Vec<SegmentId>,
    /// Metadata segments with pages in use besides fronts.
    pub(crate) pages: Vec<SegmentId>,
}

/// Group table facts, read before a change of the disk groups.
#[derive(Debug, Default)]
pub(crate) struct GroupsInUse {
    /// Used groups of each range without a share in memory.
    used: Vec<(GroupRange, u32)>,
    /// Fragments of used fronts of disk groups without room.
    fronts: u64,
}

impl GroupsInUse {
    pub(super) fn of_fronts(fronts: u64) -> GroupsInUse {
        GroupsInUse { fronts, ..GroupsInUse::default() }
    }
}

#[derive(Debug, Default)]
pub(crate) struct GroupsSpace {
    pub(crate) capacity: u64,
    /// Fragments in use, as far as counted.
    pub(crate) used: u64,
    pub(crate) is_counted: bool,
    /// The first read error.
    pub(crate) failure: Option<FsError>,
}

impl GroupSpace<'_> {
    /// Adopts the disk groups of the current geometry. Known shares keep their state. Returns the
    /// number of used groups of the others.
    ///
    /// # Errors
    ///
    /// A failure to read the group table.
    pub(crate) fn note_disk_groups(&self) -> FsResult<u64> {
        let (mut state, geometry) = (self.state.lock(), self.geometry());
        let found = self.look_at(&state, geometry, None)?;
        self.note(&mut state, geometry, &found);
        Ok(found.used.iter().map(|(_, used)| u64::from(*used)).sum())
    }

    /// Reads what [`GroupSpace::note_coming`] needs, before the labels state the added disk group.
    ///
    /// # Errors
    ///
    /// A failure to read the group table.
    pub(crate) fn look_at_coming(&self, geometry: &Geometry) -> FsResult<GroupsInUse> {
        let state = self.state.lock();
        self.look_at(&state, geometry, None)
    }

    /// Adopts the added disk group. Must not fail, because the labels already state it. The caller
    /// changes the disk groups alone ([`LayoutChangeGuard`](storage::volume::LayoutChangeGuard)).
    pub(crate) fn note_coming(&self, mut coming: GroupsInUse) {
        let (mut state, geometry) = (self.state.lock(), self.geometry());
        // Groups that leave may have lost fronts since the read (GR3).
        coming.fronts = self.fronts_of_leaving(&state);
        self.note(&mut state, geometry, &coming);
    }

    /// Reads the group table for [`GroupSpace::note`]. Treats `leaving` as a disk group that
    /// leaves.
    pub(super) fn look_at(
        &self,
        state: &AllocatorState,
        geometry: &Geometry,
        leaving: Option<LeavingDiskGroup>,
    ) -> FsResult<GroupsInUse> {
        let parts = parts_of(geometry);
        let is_known = |range: &GroupRange| state.shares.iter().any(|share| share.is_of(range));
        let mut found = GroupsInUse::default();
        for range in parts.iter().filter(|range| !is_known(range)) {
            let mut used = 0;
            for number in range.numbers() {
                used += u32::from(self.is_initialised(number)?);
            }
            found.used.push((*range, used));
        }
        let goes = |range: &GroupRange| leaving.is_some_and(|going| going.has_range(range));
        let leaves = |range: &&GroupRange| range.is_leaving || !range.has_data || goes(range);
        for range in parts.iter().filter(leaves) {
            found.fronts += self.fronts_in(range.numbers())?;
        }
        Ok(found)
    }

    /// Adopts the disk groups of `geometry`. Must not fail, because the labels may already state
    /// them.
    pub(super) fn note(
        &self,
        state: &mut AllocatorState,
        geometry: &Geometry,
        found: &GroupsInUse,
    ) {
        let parts = parts_of(geometry);
        let has = |share: &SegmentSource| parts.iter().any(|part| share.is_of(part));
        state.shares.retain(|share| share.is_main || has(share));
        if let Some(main) = state.shares.first_mut() {
            main.numbers = main_of(geometry);
            if !main.numbers.contains(&main.cursor.group) {
                main.cursor = SegmentId { group: main.numbers.start, segment: 0 };
            }
        }
        for range in &parts {
            let known = state.shares.iter_mut().find(|share| !share.is_main && share.is_of(range));
            if let Some(share) = known {
                share.become_part(range);
                continue;
            }
            let is_it = |(of, _): &&(GroupRange, u32)| of.first == range.first;
            let used = found.used.iter().find(is_it).map_or(0, |(_, used)| *used);
            let mut share = SegmentSource::added(range);
            share.note_in_use(used.into());
            // Groups of a part that is being given up may be in memory.
            for (number, group) in state.groups.range(range.numbers()) {
                share.note_loaded(*number, group.free());
            }
            state.shares.push(share);
        }
        let staying =
            geometry.group_layout().groups().filter(|number| gives_room(geometry, *number));
        let staying: u64 = staying.map(|number| capacity_of(geometry, number)).sum();
        // Fronts of leaving groups count as capacity (GR3).
        state.capacity = staying + found.fronts;
        // Segments are kept for metadata only while other disk groups take data.
        let mut others = state.shares.iter().filter(|share| share.disk_group != geometry.main);
        let gives = others.any(|share| share.has_data && !share.is_leaving);
        let is_shared = gives && geometry.main_has_data;
        let kept = if is_shared { kept_of(geometry) } else { 0 };
        let kept = u64::from(kept) * u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, staying, self.block_shift) + kept;
        state.reserve = reserve.min(staying / 3);
    }

    /// Returns the size of the fronts of groups in use.
    pub(super) fn fronts_in(&self, numbers: impl Iterator<Item = u32>) -> FsResult<u64> {
        let mut fronts = 0;
        for number in numbers {
            let is_used = self.is_initialised(number)?;
            let front = u64::from(front_of(self.geometry(), number));
            fronts += if is_used { front } else { 0 };
        }
        Ok(fronts)
    }

    /// Begins the removal of a disk group. `decide` receives the verdict, and makes the removal
    /// durable or refuses it. The lock is held from the check on (GR3). LOCK: the labels' lock is
    /// below this one; the caller changes the disk groups alone (`storage::volume::Changing`).
    ///
    /// # Errors
    ///
    /// An error of `decide`, or a failure to read the maps: nothing has changed.
    pub(crate) fn begin_leaving<E: From<FsError>>(
        &self,
        going: LeavingDiskGroup,
        decide: impl FnOnce(RemovalVerdict) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let answer = self.can_leave(&state, going)?;
        // Everything that can fail comes before `decide` changes the labels.
        let found = self.look_at(&state, self.geometry(), Some(going))?;
        decide(answer)?;
        self.note(&mut state, self.geometry(), &found);
        Ok(())
    }

    /// Returns whether the main disk group could leave if another replaced it.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn main_can_leave(&self) -> FsResult<RemovalVerdict> {
        let state = self.state.lock();
        if !(1..state.shares.len()).any(|at| self.gives_data(&state, at)) {
            return Ok(RemovalVerdict::LastForData);
        }
        let main = &state.shares[0];
        let (numbers, spare) = (main.numbers.clone(), self.spare_of(&state, main));
        let gives = |share: &&SegmentSource| !share.is_main && share.gives_room();
        let others = state.shares.iter().filter(gives).count();
        Ok(match self.missing(&state, numbers, (spare, others))? {
            0 => RemovalVerdict::Yes,
            fragments => RemovalVerdict::NoRoom { fragments },
        })
    }

    fn can_leave(
        &self,
        state: &AllocatorState,
        going: LeavingDiskGroup,
    ) -> FsResult<RemovalVerdict> {
        let mut others = (0..state.shares.len()).filter(|at| self.gives_data(state, *at));
        if others.all(|at| going.has_share(&state.shares[at])) {
            return Ok(RemovalVerdict::LastForData);
        }
        Ok(match self.missing_without(state, going)? {
            0 => RemovalVerdict::Yes,
            fragments => RemovalVerdict::NoRoom { fragments },
        })
    }

    /// Returns the fragments missing elsewhere for the contents of `going`.
    fn missing_without(&self, state: &AllocatorState, going: LeavingDiskGroup) -> FsResult<u64> {
        let geometry = self.geometry();
        let own = geometry.added.iter().filter(|range| going.has_range(range));
        // Parts already given up no longer count.
        let staying = own.flat_map(GroupRange::numbers).filter(|number| !geometry.leaves(*number));
        let is_own = |share: &&SegmentSource| going.has_share(share) && !share.is_leaving;
        let pages = self.missing_for_pages(state, staying.clone())?;
        let own = state.shares.iter().filter(is_own);
        if own.clone().any(|share| !share.gives_room()) {
            // The contents already count as used in other disk groups.
            return Ok(pages);
        }
        let spare: u64 = own.map(|share| self.spare_of(state, share)).sum();
        let stays = |share: &&SegmentSource| !going.has_share(share) && !share.is_leaving;
        let others = state.shares.iter().filter(stays).filter(|share| share.has_data).count();
        // The fronts count as room and as used, so they cancel out.
        Ok(self.missing(state, staying, (spare, others))?.max(pages))
    }

    /// Returns the fragments missing without groups `numbers`, which have `spare` of the pool's
    /// spare space. `others` disk groups remain.
    pub(super) fn missing(
        &self,
        state: &AllocatorState,
        numbers: impl Iterator<Item = u32> + Clone,
        (spare, others): (u64, usize),
    ) -> FsResult<u64> {
        let geometry = self.geometry();
        let capacity: u64 = numbers.clone().map(|number| capacity_of(geometry, number)).sum();
        let fronts = self.fronts_in(numbers)?;
        let spare = self.spare(state).saturating_sub(spare);
        let kept = self.kept.fragments();
        // The reserve shrinks with the capacity.
        let rest = state.capacity.saturating_sub(capacity);
        let is_shared = others > 1 && geometry.main_has_data;
        let for_metadata = if is_shared { kept_of(geometry) } else { 0 };
        let for_metadata = u64::from(for_metadata) * u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, rest, self.block_shift) + for_metadata;
        let taken = self.taken(state).saturating_sub(fronts);
        let wanted = taken + spare + reserve.min(rest / 3) + kept;
        Ok(wanted.saturating_sub(rest))
    }

    pub(super) fn group_leaves(state: &AllocatorState, number: u32) -> bool {
        let mut leaving = state.shares.iter().filter(|share| share.is_leaving);
        leaving.any(|share| share.numbers.contains(&number))
    }

    pub(crate) fn is_of(&self, group: u32, disk_group: u8) -> bool {
        self.geometry().group_layout().disk_group_of(group) == Some(disk_group)
    }

    /// Returns the contents of groups that leave.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn left_in(
        &self,
        numbers: impl Iterator<Item = u32>,
    ) -> FsResult<RemainingContents> {
        let mut state = self.state.lock();
        let geometry = self.geometry();
        let mut left = RemainingContents::default();
        for number in numbers {
            if !state.groups.contains_key(&number) && !self.is_initialised(number)? {
                continue;
            }
            self.ensure_group(&mut state, number)?;
            for (segment, at) in state.groups[&number].segments.iter().zip(0..) {
                let id = SegmentId { group: number, segment: at };
                if segment.kind == SegmentKind::Metadata {
                    let front = front_of(geometry, number);
                    // The front fills the metadata areas of the first segments.
                    let room = geometry.metadata_fragments(number);
                    let front = front.saturating_sub(at.saturating_mul(room)).min(room);
                    let pages = segment.held.saturating_sub(front);
                    left.bytes += u64::from(pages) << geometry.fragment_shift;
                    left.freed_bytes += u64::from(segment.pending) << geometry.fragment_shift;
                    left.pages.extend((pages > segment.pending).then_some(id));
                    continue;
                }
                let bytes = u64::from(segment.held) << geometry.fragment_shift;
                // An open segment counts as not empty: its blocks may await their map update.
                left.bytes += if segment.is_open { bytes.max(1) } else { bytes };
                left.freed_bytes += u64::from(segment.pending) << geometry.fragment_shift;
                if segment.held > segment.pending && !segment.is_open {
                    left.segments.push(id);
                }
            }
        }
        Ok(left)
    }

    /// Drops empty groups that leave from memory and from the group table. Returns false if one is
    /// not empty.
    ///
    /// # Errors
    ///
    /// A failure to read the group table.
    pub(crate) fn forget_groups(
        &self,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> FsResult<bool> {
        let left = self.left_in(numbers.clone())?;
        if left.bytes > 0 && !planted!(TakenOutWithLiveBlocks) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        let geometry = self.geometry();
        let numbers: Vec<u32> = numbers.collect();
        for some in numbers.chunks(GROUPS_PER_TX) {
            let mut tx = self.journal.begin_unreserved();
            let mut fragments = 0;
            for &number in some {
                if self.clear_entry(&mut tx, number)? {
                    fragments += i64::from(front_of(geometry, number));
                    tx.add_u64(&self.root, TOTAL_GROUPS_USED_OFFSET, -1);
                    if let Some(share) =
                        state.shares.iter_mut().find(|share| share.numbers.contains(&number))
                    {
                        share.unused += 1;
                    }
                }
                state.groups.remove(&number);
                state.unread.remove(&number);
                state.used_at_rest.remove(&number);
            }
            tx.add_u64(&self.root, TOTAL_FRAGMENTS_USED_OFFSET, -fragments);
            self.journal.end(tx);
            let fragments = u64::try_from(fragments).unwrap_or(0);
            state.used -= fragments;
            // The cleared fronts no longer count as capacity (GR3).
            state.capacity = state.capacity.saturating_sub(fragments);
        }
        Ok(true)
    }

    /// Returns capacity and used fragments.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn space_of(&self, numbers: impl Iterator<Item = u32>) -> FsResult<(u64, u64)> {
        let space = self.space_within(numbers, &mut { u32::MAX });
        space.failure.map_or(Ok((space.capacity, space.used)), Err)
    }

    /// Returns capacity and usage of groups, with at most `budget` reads of descriptors. Results
    /// are cached.
    pub(crate) fn space_within(
        &self,
        numbers: impl Iterator<Item = u32>,
        budget: &mut u32,
    ) -> GroupsSpace {
        let mut space = GroupsSpace { is_counted: true, ..GroupsSpace::default() };
        // Without a budget only memory is consulted.
        let may_look = *budget > 0;
        for number in numbers {
            space.capacity += capacity_of(self.geometry(), number);
            match self.used_within(number, budget, may_look) {
                Ok(Some(used)) => space.used += u64::from(used),
                Ok(None) => space.is_counted = false,
                Err(error) => {
                    space.is_counted = false;
                    space.failure.get_or_insert(error);
                }
            }
        }
        space
    }

    /// Returns the fragments in use, `None` if the budget is spent. The result is cached, since a
    /// group outside memory does not change.
    fn used_within(&self, number: u32, budget: &mut u32, may_look: bool) -> FsResult<Option<u32>> {
        let state = self.state.lock();
        if let Some(group) = state.groups.get(&number) {
            return Ok(Some(group.used()));
        }
        if let Some(used) = state.used_at_rest.get(&number) {
            return Ok(Some(*used));
        }
        drop(state);
        if !may_look {
            return Ok(None);
        }
        let mut used = 0;
        if self.is_initialised(number)? {
            if *budget == 0 {
                return Ok(None);
            }
            *budget -= 1;
            used = self.used_of(number)?;
        }
        self.state.lock().used_at_rest.insert(number, used);
        Ok(Some(used))
    }

    /// Returns the fragments missing in the main disk group for pages that leave.
    fn missing_for_pages(
        &self,
        state: &AllocatorState,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> FsResult<u64> {
        // Metadata has no limit of its own in a main disk group with data (G7).
        let Some(apart) = &state.apart else { return Ok(0) };
        let geometry = self.geometry();
        let mut pages = 0;
        for number in numbers {
            if geometry.group_layout().range_of(number).is_some_and(may_have_pages) {
                pages += self.pages_held(number)?;
            }
        }
        if pages == 0 {
            return Ok(0);
        }
        Ok((pages + apart.reserve + state.promised).saturating_sub(apart.free()))
    }

    /// Returns the fragments of metadata pages, without the front.
    fn pages_held(&self, number: u32) -> FsResult<u64> {
        if !self.is_initialised(number)? {
            return Ok(0);
        }
        let mut held = 0;
        for segment in 0..self.geometry().segments_of(number) {
            let buffer = self.usage_buffer(number, segment)?;
            let usage = SegmentUsage::of(page_of(&buffer.bytes()), segment);
            let usage = usage.filter(|usage| usage.kind == SegmentKind::Metadata);
            held += usage.map_or(0, |usage| u64::from(usage.live));
        }
        Ok(held.saturating_sub(front_of(self.geometry(), number).into()))
    }

    /// Estimates the free segments. Half of a used group outside memory counts as free.
    fn free_of(&self, state: &AllocatorState, share: &SegmentSource) -> i64 {
        if share.is_leaving {
            return 0;
        }
        let geometry = self.geometry();
        let loaded = state.groups.range(share.numbers.clone());
        let (groups, free) = loaded.fold((0_u32, 0_u64), |(groups, free), (_, group)| {
            (groups + 1, free + u64::from(group.free_count))
        });
        let front = geometry.front_segments(share.numbers.start);
        let whole = u64::from(geometry.segments_of(share.numbers.start).saturating_sub(front));
        let unused = share.unused;
        let count = share.numbers.end - share.numbers.start;
        let unknown = count.saturating_sub(groups).saturating_sub(unused);
        let free = free + u64::from(unused) * whole + u64::from(unknown) * whole / 2;
        i64::try_from(free).unwrap_or(i64::MAX >> 8)
    }

    /// Returns positions in `shares`, in the order of the search for a segment.
    pub(super) fn order_of_shares(
        &self,
        state: &mut AllocatorState,
        preference: PlacementPreference,
    ) -> Vec<usize> {
        if state.shares.len() == 1 {
            return vec![0];
        }
        let kept = i64::from(kept_of(self.geometry()));
        let free = |at: usize| {
            let share = &state.shares[at];
            match (share.is_main, self.gives_data(state, at)) {
                // Without the segments kept for metadata (GR1).
                (true, true) => (self.free_of(state, share) - kept).max(0),
                (_, false) if share.is_main || !share.has_data => 0,
                _ => self.free_of(state, share),
            }
        };
        let weights: Vec<i64> = (0..state.shares.len()).map(free).collect();
        let mut is_wanted: Vec<bool> =
            state.shares.iter().map(|share| preference.serves(share)).collect();
        // GR5: without room in preferred disk groups, the preference is ignored.
        if !weights.iter().zip(&is_wanted).any(|(weight, is_wanted)| *is_wanted && *weight > 0) {
            is_wanted.fill(true);
        }
        let mut total = 0;
        for ((share, weight), _) in
            state.shares.iter_mut().zip(&weights).zip(&is_wanted).filter(|(_, wanted)| **wanted)
        {
            share.credit += weight;
            total += weight;
        }
        let may_give = |at: &usize| self.gives_data(state, *at);
        let mut order: Vec<usize> = (0..state.shares.len()).filter(may_give).collect();
        let lanes = |share: &SegmentSource| {
            let is_of = |other: &&SegmentSource| other.disk_group == share.disk_group;
            state.shares.iter().filter(is_of).count()
        };
        // A full disk group comes last, whatever its credit.
        order.sort_by_key(|at| {
            let share = &state.shares[*at];
            let is_anothers = preference.is_anothers_turn(share, lanes(share));
            (weights[*at] == 0, !is_wanted[*at], is_anothers, -share.credit)
        });
        if let Some(first) = order.first() {
            state.shares[*first].credit -= total;
        }
        order
    }

    pub(super) fn find_free_in(
        &self,
        state: &mut AllocatorState,
        at: usize,
        start: SegmentId,
    ) -> FsResult<Option<SegmentId>> {
        let numbers = state.shares[at].numbers.clone();
        let count = numbers.end - numbers.start;
        let first = (start.group.saturating_sub(numbers.start)) % count.max(1);
        for step in 0..=count {
            let number = numbers.start + (first + step) % count.max(1);
            if !self.can_give(state, number)? {
                continue;
            }
            let from = if step == 0 { start.segment } else { 0 };
            if let Some(segment) = state.groups[&number].free_at_or_after(from) {
                return Ok(Some(SegmentId { group: number, segment }));
            }
        }
        Ok(None)
    }

    /// Counts free segments for data, up to `enough`.
    pub(super) fn count_free(&self, state: &mut AllocatorState, enough: u32) -> FsResult<u32> {
        let mut free = 0;
        for at in 0..state.shares.len() {
            if self.gives_data(state, at) {
                free += self.count_free_in(state, at, enough.saturating_sub(free))?;
            }
        }
        Ok(free)
    }

    /// Counts free segments of one disk group, up to `enough`.
    pub(super) fn count_free_in(
        &self,
        state: &mut AllocatorState,
        at: usize,
        enough: u32,
    ) -> FsResult<u32> {
        let (numbers, cursor) = (state.shares[at].numbers.clone(), state.shares[at].cursor);
        let count = numbers.end - numbers.start;
        let (first, mut free) = (cursor.group - numbers.start, 0);
        for step in 0..count {
            if free >= enough {
                break;
            }
            let number = numbers.start + (first + step) % count;
            if !self.can_give(state, number)? {
                continue;
            }
            free += state.groups[&number].free_count;
        }
        Ok(free)
    }

    pub(super) fn take_free(
        &self,
        state: &mut AllocatorState,
        home: Option<u32>,
        preference: PlacementPreference,
    ) -> FsResult<SegmentId> {
        for at in self.order_of_shares(state, preference) {
            let cursor = state.shares[at].cursor;
            let home = home.filter(|_| at == 0);
            let start: SegmentId = self.policy.next_segment(cursor.into(), home).into();
            if let Some(id) = self.find_free_in(state, at, start)? {
                state.shares[at].cursor = id;
                return Ok(id);
            }
        }
        Err(FsError::NoSpace)
    }
}
