//! Which disk group new data goes to, where a pool has several.
//!
//! # Invariants
//!
//! - GR1: New metadata goes to the main disk group alone, but for the fronts of others, and data to
//!   those alone that have the role. So a main one that has data keeps free segments that no data
//!   takes while another has room ([`kept_of`]), and what it keeps counts as reserve (G4). One that
//!   was the main one has pages of before; what is free between them nobody can have.
//! - GR2: Nothing new is put into a disk group that leaves.
//! - GR3: A disk group that leaves has room for nothing: the capacity is that of those that stay,
//!   and of the fronts that go with it. So what must move counts as used where it is to go (G4),
//!   writers are refused before they take that, and what a removal was admitted with holds until it
//!   ends.
//! - GR4: Blocks of a file that go to a round-robin go to one member of it, that of the file's
//!   number, while that has a free segment.
//! - GR5: Blocks of a file that has a placement go to disk groups that it says, while one of them
//!   has a free segment; then to any other. So a placement refuses nobody who has room.
//!
//! New segments are shared by free space: each disk group is credited with the free segments that
//! it has, and the one with most credit gives the segment and pays what all were credited with.
//!
//! Not here: where in a disk group (`policy`), and what a file prefers (`preference`).

use format::disk_group::GroupRange;
use format::geometry::Geometry;
use format::group::{
    SegmentKind, SegmentUsage, TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET,
};
use runtime::planted::{self, Planted};

use super::preference::Preference;
use super::share::{
    Share, capacity_of, front_of, gives_room, kept_of, main_of, may_have_pages, parts_of,
};
use super::{Allocator, SegmentId, State, reserve_of};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

/// Groups whose entries one transaction clears.
const GROUPS_PER_TX: usize = 32;

/// What is to leave: a disk group, or one of the devices of a round-robin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Going {
    /// The number of the disk group.
    pub(crate) disk_group: u8,
    /// Which part of it: see [`format::disk_group::GroupRange::lane`]; `None`: all.
    pub(crate) lane: Option<u8>,
}

impl Going {
    fn has(self, disk_group: u8, lane: Option<u8>) -> bool {
        self.disk_group == disk_group && (self.lane.is_none() || self.lane == lane)
    }

    fn has_range(self, range: &GroupRange) -> bool {
        self.has(range.disk_group, range.lane)
    }

    fn has_share(self, share: &Share) -> bool {
        self.has(share.disk_group, share.lane)
    }
}

/// Whether a disk group can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CanLeave {
    /// What it holds fits elsewhere.
    Yes,
    /// No other may have data.
    LastForData,
    /// So many fragments are missing elsewhere.
    NoRoom { fragments: u64 },
}

/// What is in allocation groups that leave.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Bytes in use, or freed and not released.
    pub(crate) bytes: u64,
    /// How many of these are freed and not released.
    pub(crate) freed_bytes: u64,
    /// Closed segments with something live.
    pub(crate) segments: Vec<SegmentId>,
    /// Metadata segments with pages in use, besides fronts.
    pub(crate) pages: Vec<SegmentId>,
}

/// What was read of disk groups before they are noted.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// How many groups are in use, of ranges that are not known yet.
    used: Vec<(GroupRange, u32)>,
    /// What the fronts take of disk groups that leave, in fragments.
    fronts: u64,
}

impl Found {
    /// Nothing but what the fronts take of disk groups that leave.
    pub(super) fn of_fronts(fronts: u64) -> Found {
        Found { fronts, ..Found::default() }
    }
}

/// What allocation groups have room for and hold.
#[derive(Debug, Default)]
pub(crate) struct GroupsSpace {
    /// Fragments that files and metadata can have.
    pub(crate) capacity: u64,
    /// Of those in use, as far as they are counted.
    pub(crate) used: u64,
    /// Whether all are.
    pub(crate) is_counted: bool,
    /// Why not, if that could not be read.
    pub(crate) failure: Option<FsError>,
}

impl Allocator {
    /// Notes which disk groups there are now, and how much the pool has. Those that are known
    /// already go on as they are. Returns how many groups of the others are in use.
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

    /// Reads what is to be noted of a disk group that is being added, when the pool will have
    /// `geometry`: the labels do not say so yet.
    ///
    /// # Errors
    ///
    /// A failure to read the group table.
    pub(crate) fn look_at_coming(&self, geometry: &Geometry) -> FsResult<Found> {
        let state = self.state.lock();
        let mut found = self.look_at(&state, geometry, None)?;
        if planted::is(Planted::LeavingIsRoomAgain) {
            let leaving = geometry.added.iter().filter(|range| range.is_leaving);
            let leaving = leaving.flat_map(GroupRange::numbers);
            found.fronts = leaving.map(|number| capacity_of(geometry, number)).sum();
        }
        Ok(found)
    }

    /// Notes it, now that the labels say so: it cannot fail. Whoever calls changes the disk groups
    /// alone ([`storage::volume::Changing`]).
    pub(crate) fn note_coming(&self, mut coming: Found) {
        let (mut state, geometry) = (self.state.lock(), self.geometry());
        // What leaves may have become less since it was looked at, and the capacity with it (GR3).
        if !planted::is(Planted::LeavingIsRoomAgain) {
            coming.fronts = self.fronts_of_leaving(&state);
        }
        self.note(&mut state, geometry, &coming);
    }

    /// Reads what is to be noted of the disk groups of `geometry`, if `leaving` leaves too.
    pub(super) fn look_at(
        &self,
        state: &State,
        geometry: &Geometry,
        leaving: Option<Going>,
    ) -> FsResult<Found> {
        let parts = parts_of(geometry);
        let is_known = |range: &GroupRange| state.shares.iter().any(|share| share.is_of(range));
        let mut found = Found::default();
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
            found.fronts += if planted::is(Planted::LeavingIsRoom) {
                range.numbers().map(|number| capacity_of(geometry, number)).sum()
            } else {
                self.fronts_in(range.numbers())?
            };
        }
        Ok(found)
    }

    /// Notes the disk groups of `geometry`, of which `found` was read. It cannot fail: labels may
    /// say so already.
    pub(super) fn note(&self, state: &mut State, geometry: &Geometry, found: &Found) {
        let parts = parts_of(geometry);
        let has = |share: &Share| parts.iter().any(|part| share.is_of(part));
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
            let mut share = Share::added(range);
            share.note_in_use(used.into());
            // Of what is given up groups are in memory.
            for (number, group) in state.groups.range(range.numbers()) {
                share.note_loaded(*number, group.free());
            }
            state.shares.push(share);
        }
        let staying = geometry.groups().filter(|number| gives_room(geometry, *number));
        let staying: u64 = staying.map(|number| capacity_of(geometry, number)).sum();
        // GR3.
        state.capacity = staying + found.fronts;
        // Where data is elsewhere metadata has all of the main one; once others have left, too.
        let mut others = state.shares.iter().filter(|share| share.disk_group != geometry.main);
        let gives = others.any(|share| share.has_data && !share.is_leaving);
        let is_shared = gives && geometry.main_has_data;
        let kept = if is_shared { kept_of(geometry) } else { 0 };
        let kept = u64::from(kept) * u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, staying, self.block_shift) + kept;
        state.reserve = reserve.min(staying / 3);
    }

    /// Returns how many fragments the fronts of those of groups `numbers` have that are in use.
    pub(super) fn fronts_in(&self, numbers: impl Iterator<Item = u32>) -> FsResult<u64> {
        let mut fronts = 0;
        for number in numbers {
            let is_used = self.is_initialised(number)?;
            let front = u64::from(front_of(self.geometry(), number));
            fronts += if is_used { front } else { 0 };
        }
        Ok(fronts)
    }

    /// Asks `decide`, who is told whether what is to go can, to make durable that it leaves; if
    /// it is so its room counts no more. The lock is held from the answer on: nobody takes
    /// meanwhile what was found to be there for what must move (GR3). LOCK: that of the labels is
    /// below it; whoever calls changes the disk groups alone ([`storage::volume::Changing`]).
    ///
    /// # Errors
    ///
    /// What `decide` says, or a failure to read the maps: it has not begun to leave then.
    pub(crate) fn begin_leaving<E: From<FsError>>(
        &self,
        going: Going,
        decide: impl FnOnce(CanLeave) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let answer = self.can_leave(&state, going)?;
        // Whatever can fail is done before the labels say so.
        let found = self.look_at(&state, self.geometry(), Some(going))?;
        decide(answer)?;
        self.note(&mut state, self.geometry(), &found);
        Ok(())
    }

    /// Returns whether the main disk group could go, if another took the metadata over.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn main_can_leave(&self) -> FsResult<CanLeave> {
        let state = self.state.lock();
        if !(1..state.shares.len()).any(|at| self.gives_data(&state, at)) {
            return Ok(CanLeave::LastForData);
        }
        let main = &state.shares[0];
        let (numbers, spare) = (main.numbers.clone(), self.spare_of(&state, main));
        let gives = |share: &&Share| !share.is_main && share.gives_room();
        let others = state.shares.iter().filter(gives).count();
        Ok(match self.missing(&state, numbers, (spare, others))? {
            0 => CanLeave::Yes,
            fragments => CanLeave::NoRoom { fragments },
        })
    }

    fn can_leave(&self, state: &State, going: Going) -> FsResult<CanLeave> {
        let mut others = (0..state.shares.len()).filter(|at| self.gives_data(state, *at));
        if others.all(|at| going.has_share(&state.shares[at])) {
            return Ok(CanLeave::LastForData);
        }
        Ok(match self.missing_without(state, going)? {
            0 => CanLeave::Yes,
            fragments => CanLeave::NoRoom { fragments },
        })
    }

    /// Returns how many fragments are missing elsewhere for what is to go; 0: it can.
    fn missing_without(&self, state: &State, going: Going) -> FsResult<u64> {
        let geometry = self.geometry();
        let own = geometry.added.iter().filter(|range| going.has_range(range));
        // What is given up of it counts no more.
        let staying = own.flat_map(GroupRange::numbers).filter(|number| !geometry.leaves(*number));
        let is_own = |share: &&Share| going.has_share(share) && !share.is_leaving;
        let pages = self.missing_for_pages(state, staying.clone())?;
        let own = state.shares.iter().filter(is_own);
        if own.clone().any(|share| !share.gives_room()) {
            // All of it counts as used elsewhere already.
            return Ok(pages);
        }
        let spare: u64 = own.map(|share| self.spare_of(state, share)).sum();
        let stays = |share: &&Share| !going.has_share(share) && !share.is_leaving;
        let others = state.shares.iter().filter(stays).filter(|share| share.has_data).count();
        // The fronts of that count as room and as used.
        Ok(self.missing(state, staying, (spare, others))?.max(pages))
    }

    /// Returns how many fragments are missing for what is in use where allocation groups `numbers`
    /// are gone. Of what is spare they have `spare`, and `others` disk groups are left.
    pub(super) fn missing(
        &self,
        state: &State,
        numbers: impl Iterator<Item = u32> + Clone,
        (spare, others): (u64, usize),
    ) -> FsResult<u64> {
        let geometry = self.geometry();
        let capacity: u64 = numbers.clone().map(|number| capacity_of(geometry, number)).sum();
        let fronts = self.fronts_in(numbers)?;
        let spare = self.spare(state).saturating_sub(spare);
        let kept = self.kept.fragments();
        // What is kept back is less without it.
        let rest = state.capacity.saturating_sub(capacity);
        let is_shared = others > 1 && geometry.main_has_data;
        let for_metadata = if is_shared { kept_of(geometry) } else { 0 };
        let for_metadata = u64::from(for_metadata) * u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, rest, self.block_shift) + for_metadata;
        let taken = self.taken(state).saturating_sub(fronts);
        let wanted = taken + spare + reserve.min(rest / 3) + kept;
        Ok(wanted.saturating_sub(rest))
    }

    /// Whether group `number` is of a disk group that leaves.
    pub(super) fn group_leaves(state: &State, number: u32) -> bool {
        let mut leaving = state.shares.iter().filter(|share| share.is_leaving);
        leaving.any(|share| share.numbers.contains(&number))
    }

    /// Whether an allocation group is of a disk group.
    pub(crate) fn is_of(&self, group: u32, disk_group: u8) -> bool {
        self.geometry().disk_group_of(group) == Some(disk_group)
    }

    /// Returns what is in groups `numbers`, which leave, besides their fronts.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn left_in(&self, numbers: impl Iterator<Item = u32>) -> FsResult<Left> {
        let mut state = self.state.lock();
        let geometry = self.geometry();
        let mut left = Left::default();
        for number in numbers {
            if !state.groups.contains_key(&number) && !self.is_initialised(number)? {
                continue;
            }
            self.ensure_group(&mut state, number)?;
            for (segment, at) in state.groups[&number].segments.iter().zip(0..) {
                let id = SegmentId { group: number, segment: at };
                if segment.kind == SegmentKind::Metadata {
                    let front = front_of(geometry, number);
                    // It lies where pages can be, of one segment after the other.
                    let room = geometry.metadata_fragments(number);
                    let front = front.saturating_sub(at.saturating_mul(room)).min(room);
                    let pages = segment.held.saturating_sub(front);
                    left.bytes += u64::from(pages) << geometry.fragment_shift;
                    left.freed_bytes += u64::from(segment.pending) << geometry.fragment_shift;
                    left.pages.extend((pages > segment.pending).then_some(id));
                    continue;
                }
                let bytes = u64::from(segment.held) << geometry.fragment_shift;
                // An open one has what is not installed yet.
                left.bytes += if segment.is_open { bytes.max(1) } else { bytes };
                left.freed_bytes += u64::from(segment.pending) << geometry.fragment_shift;
                if segment.held > segment.pending && !segment.is_open {
                    left.segments.push(id);
                }
            }
        }
        Ok(left)
    }

    /// Clears the entries of groups `numbers`, which leave, if nothing is in them. Returns whether
    /// it is so. Nothing of them is in memory afterwards.
    ///
    /// # Errors
    ///
    /// A failure to read the group table.
    pub(crate) fn forget_groups(
        &self,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> FsResult<bool> {
        let left = self.left_in(numbers.clone())?;
        let is_planted = planted::is(Planted::TakenOutWithLiveBlocks);
        if left.bytes > 0 && !is_planted {
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
            // GR3.
            state.capacity = state.capacity.saturating_sub(fragments);
        }
        Ok(true)
    }

    /// Returns what allocation groups have room for and hold.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn space_of(&self, numbers: impl Iterator<Item = u32>) -> FsResult<(u64, u64)> {
        let space = self.space_within(numbers, &mut { u32::MAX });
        space.failure.map_or(Ok((space.capacity, space.used)), Err)
    }

    /// The same, but no more than `budget` descriptors are read for it, which becomes less by those
    /// that were; what was read once is known from then on.
    pub(crate) fn space_within(
        &self,
        numbers: impl Iterator<Item = u32>,
        budget: &mut u32,
    ) -> GroupsSpace {
        let mut space = GroupsSpace { is_counted: true, ..GroupsSpace::default() };
        // Who has nothing to spend asks for what memory knows alone.
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

    /// Returns how many fragments of a group are in use; `None`: the budget is spent. One that is
    /// not in memory does not change, so it is read once.
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

    /// Fragments that the pages of a disk group that goes take of the main one; 0: it has no more
    /// than there is room for. What is missing, else.
    fn missing_for_pages(
        &self,
        state: &State,
        numbers: impl Iterator<Item = u32> + Clone,
    ) -> FsResult<u64> {
        // G7: where data is elsewhere metadata has the main disk group alone.
        let Some(apart) = &state.apart else { return Ok(0) };
        let geometry = self.geometry();
        let mut pages = 0;
        for number in numbers {
            if geometry.range_of(number).is_some_and(may_have_pages) {
                pages += self.pages_held(number)?;
            }
        }
        if pages == 0 {
            return Ok(0);
        }
        Ok((pages + apart.reserve + state.promised).saturating_sub(apart.free()))
    }

    /// Returns how many fragments pages have of an allocation group, its front left out.
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

    /// Returns about how many segments of a disk group are free: of groups in use that are not in
    /// memory half.
    fn free_of(&self, state: &State, share: &Share) -> i64 {
        if share.is_leaving && !planted::is(Planted::LeavingGetsSegments) {
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

    /// Returns the disk groups in the order in which they are asked for a segment: positions in
    /// `shares`.
    pub(super) fn order_of_shares(&self, state: &mut State, preference: Preference) -> Vec<usize> {
        if state.shares.len() == 1 {
            return vec![0];
        }
        let kept = i64::from(kept_of(self.geometry()));
        let free = |at: usize| {
            let share = &state.shares[at];
            match (share.is_main, self.gives_data(state, at)) {
                // GR1.
                (true, true) => (self.free_of(state, share) - kept).max(0),
                (_, false) if share.is_main || !share.has_data => 0,
                _ => self.free_of(state, share),
            }
        };
        let weights: Vec<i64> = (0..state.shares.len()).map(free).collect();
        let mut is_wanted: Vec<bool> =
            state.shares.iter().map(|share| preference.serves(share)).collect();
        // GR5: where what is wanted is full, the others share as if nothing were.
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
        let is_planted = planted::is(Planted::LeavingGetsSegments);
        let may_give = |at: &usize| self.gives_data(state, *at) || is_planted;
        let mut order: Vec<usize> = (0..state.shares.len()).filter(may_give).collect();
        let lanes = |share: &Share| {
            let is_of = |other: &&Share| other.disk_group == share.disk_group;
            state.shares.iter().filter(is_of).count()
        };
        // One without room is asked last, whatever credit it has left.
        order.sort_by_key(|at| {
            let share = &state.shares[*at];
            let is_anothers = preference.is_anothers_turn(share, lanes(share));
            (weights[*at] == 0, !is_wanted[*at], is_anothers, -share.credit)
        });
        if planted::is(Planted::PlacementIsLimit) && preference.is_placed() {
            order.retain(|at| preference.serves(&state.shares[*at]));
        }
        if let Some(first) = order.first() {
            state.shares[*first].credit -= total;
        }
        order
    }

    /// Finds a free segment in the disk group at `at` of `shares`, from `start` on.
    pub(super) fn find_free_in(
        &self,
        state: &mut State,
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

    /// Returns how many segments are free in the disk groups that give any, counting no further
    /// than `enough`.
    pub(super) fn count_free(&self, state: &mut State, enough: u32) -> FsResult<u32> {
        let mut free = 0;
        for at in 0..state.shares.len() {
            if self.gives_data(state, at) {
                free += self.count_free_in(state, at, enough.saturating_sub(free))?;
            }
        }
        Ok(free)
    }

    /// The same of one disk group.
    pub(super) fn count_free_in(&self, state: &mut State, at: usize, enough: u32) -> FsResult<u32> {
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

    /// Opens a free segment of any disk group that gives one.
    pub(super) fn take_free(
        &self,
        state: &mut State,
        home: Option<u32>,
        preference: Preference,
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
