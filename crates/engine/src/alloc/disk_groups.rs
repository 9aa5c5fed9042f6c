//! Which disk group new data goes to, where a pool has several.
//!
//! # Invariants
//!
//! - GR1: Metadata lies in the first disk group alone, but for the fronts of others, and data in
//!   those alone that have the role. So a first one that has data keeps free segments that no data
//!   takes while another has room ([`kept_of`]), and what it keeps counts as reserve (G4).
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

use std::ops::Range;

use format::disk_group::GroupRange;
use format::geometry::Geometry;
use format::group::{SegmentKind, TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET};
use runtime::planted::{self, Planted};

use super::preference::{Kind, Preference};
use super::{Allocator, SegmentId, State, reserve_of};
use crate::error::{FsError, FsResult};

/// Of how many segments of the first disk group one is kept for metadata.
const KEPT_SHARE: u32 = 16;
/// Fewest that are kept, and most.
const KEPT_MIN: u32 = 4;
const KEPT_MAX: u32 = 256;

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

/// Makes `shares` as long as `geometry` says; what a disk group has more is not in use. Returns how
/// many allocation groups the first has more: who counts those of the others is their share.
pub(super) fn lengthen(shares: &mut [Share], geometry: &Geometry) -> u32 {
    let mut of_first = 0;
    let parts = parts_of(geometry);
    for share in shares {
        let is_it = |part: &&GroupRange| {
            (part.disk_group, part.lane, part.first)
                == (share.disk_group, share.lane, share.numbers.start)
        };
        let numbers = match parts.iter().find(is_it) {
            _ if share.is_first() => 0..geometry.staying_in(0),
            Some(part) => part.numbers(),
            None => share.numbers.clone(),
        };
        let more = numbers.end.saturating_sub(share.numbers.end);
        match share.is_first() {
            true => of_first = more,
            false => share.unused += more,
        }
        share.numbers = numbers;
    }
    of_first
}

/// Returns the parts that the allocation groups beside those of the first disk group are of: each
/// disk group that was added, or its lanes; and what is given up of one, which leaves, apart from
/// the rest.
pub(super) fn parts_of(geometry: &Geometry) -> Vec<GroupRange> {
    let mut parts = geometry.added.clone();
    let Some(last) = geometry.last_groups else { return parts };
    let end = geometry.numbers_of(last.disk_group).end;
    let given_up = |of: GroupRange| {
        let count = end.saturating_sub(last.first);
        GroupRange { first: last.first, count, is_leaving: true, ..of }
    };
    let of_first = || GroupRange {
        disk_group: 0,
        first: 0,
        count: end,
        last_fragments: geometry.fragments_of(end.saturating_sub(1)),
        stripe: geometry.first_stripe,
        lane: None,
        is_leaving: false,
    };
    let own = parts.iter_mut().find(|range| range.disk_group == last.disk_group);
    let part = given_up(own.as_deref().copied().unwrap_or_else(of_first));
    if let Some(own) = own.filter(|_| part.count > 0) {
        own.count = last.first.saturating_sub(own.first);
        own.last_fragments = geometry.group_fragments;
    }
    parts.extend(Some(part).filter(|part| part.count > 0));
    parts
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

/// A disk group, or a part of one that has allocation groups of its own, as far as it gives
/// segments.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Its number.
    pub(super) disk_group: u8,
    /// Which part of its disk group it is: see [`format::disk_group::GroupRange::lane`].
    lane: Option<u8>,
    /// What files may want it for.
    pub(super) kind: Kind,
    /// Numbers of its allocation groups.
    pub(super) numbers: Range<u32>,
    /// Where the last data segment was taken.
    pub(super) cursor: SegmentId,
    /// Its allocation groups that are not in use; of the first the state counts them.
    unused: u32,
    /// GR2.
    pub(super) is_leaving: bool,
    credit: i64,
}

impl Share {
    /// Returns that of the first disk group.
    pub(super) fn first(geometry: &Geometry) -> Share {
        let kind = Kind::new(0, None, geometry.first_stripe);
        Share::new((0, None, kind), 0..geometry.staying_in(0))
    }

    /// Whether it is that of the first disk group, and not what is given up of that.
    fn is_first(&self) -> bool {
        self.numbers.start == 0
    }

    /// Whether it is that of `range`: the same allocation groups. A device of a round-robin may
    /// have become a disk group of its own with them, and another disk group may have the number of
    /// one that went.
    fn is_of(&self, range: &GroupRange) -> bool {
        self.numbers == range.numbers()
    }

    fn added(range: &GroupRange) -> Share {
        let kind = Kind::new(range.disk_group, range.lane, range.stripe);
        Share::new((range.disk_group, range.lane, kind), range.numbers())
    }

    /// It is what `range` says from now on, with what it has.
    fn become_part(&mut self, range: &GroupRange) {
        (self.disk_group, self.lane) = (range.disk_group, range.lane);
        self.kind = Kind::new(range.disk_group, range.lane, range.stripe);
        self.is_leaving = range.is_leaving;
    }

    fn new((disk_group, lane, kind): (u8, Option<u8>, Kind), numbers: Range<u32>) -> Share {
        let cursor = SegmentId { group: numbers.start, segment: 0 };
        let (unused, is_leaving, credit) = (0, false, 0);
        Share { disk_group, lane, kind, numbers, cursor, unused, is_leaving, credit }
    }
}

/// Returns what an allocation group of an added disk group can give to data, and its front.
pub(super) fn capacity_of(geometry: &Geometry, number: u32) -> u64 {
    let fragments = geometry.fragments_of(number);
    if number < geometry.group_count {
        return fragments.into();
    }
    // What is behind its front in the same segments nobody can have (GR1).
    let rest = geometry.front_segments(number) * geometry.segment_fragments - front_of(geometry);
    u64::from(fragments.saturating_sub(rest))
}

pub(super) fn front_of(geometry: &Geometry) -> u32 {
    geometry.front_pages() * geometry.page_fragments()
}

/// Returns the segments of the first disk group that no data takes while another has room (GR1).
pub(super) fn kept_of(geometry: &Geometry) -> u32 {
    // Asked for each promise: all groups but the last have as many.
    let last = geometry.group_count.saturating_sub(1);
    let segments = last * geometry.segments_of(0) + geometry.segments_of(last);
    (segments / KEPT_SHARE).clamp(KEPT_MIN, KEPT_MAX)
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
        let leaves = |range: &&GroupRange| range.is_leaving || goes(range);
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
        state.shares.retain(|share| share.is_first() || has(share));
        if let Some(first) = state.shares.first_mut() {
            first.numbers = 0..geometry.staying_in(0);
            if !first.numbers.contains(&first.cursor.group) {
                first.cursor = SegmentId { group: 0, segment: 0 };
            }
        }
        for range in &parts {
            if let Some(share) = state.shares.iter_mut().find(|share| share.is_of(range)) {
                share.become_part(range);
                continue;
            }
            let is_it = |(of, _): &&(GroupRange, u32)| of.first == range.first;
            let used = found.used.iter().find(is_it).map_or(0, |(_, used)| *used);
            let mut share = Share::added(range);
            share.unused = range.count.saturating_sub(used);
            share.is_leaving = range.is_leaving;
            state.shares.push(share);
        }
        let stays = |number: &u32| !geometry.leaves(*number);
        let staying = geometry.groups().filter(stays);
        let staying: u64 = staying.map(|number| capacity_of(geometry, number)).sum();
        // GR3.
        state.capacity = staying + found.fronts;
        // Where data is elsewhere metadata has all of the first; so it has once others have left.
        let others = state.shares.iter().filter(|share| share.disk_group != 0 && !share.is_leaving);
        let is_shared = others.count() > 0 && geometry.first_has_data;
        let kept = if is_shared { kept_of(geometry) } else { 0 };
        let kept = u64::from(kept) * u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, staying, self.block_shift) + kept;
        state.reserve = reserve.min(staying / 3);
    }

    /// Returns how many fragments the fronts of those of groups `numbers` have that are in use.
    fn fronts_in(&self, numbers: impl Iterator<Item = u32>) -> FsResult<u64> {
        let mut fronts = 0;
        for number in numbers {
            let is_used = self.is_initialised(number)?;
            fronts += if is_used { u64::from(front_of(self.geometry())) } else { 0 };
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
        let own = state.shares.iter().filter(is_own);
        let unused: u64 = own.map(|share| u64::from(share.unused)).sum();
        let stays = |share: &&Share| !going.has_share(share) && !share.is_leaving;
        let others = state.shares.iter().filter(stays).count();
        // The fronts of that count as room and as used.
        self.missing(state, staying, (unused * u64::from(front_of(geometry)), others))
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
        let is_shared = others > 1 && geometry.first_has_data;
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
                    let front = front_of(geometry);
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
                    fragments += i64::from(front_of(geometry));
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

    /// A group of an added disk group has come into use.
    pub(super) fn note_used(state: &mut State, number: u32) {
        let share = state.shares.iter_mut().find(|share| share.numbers.contains(&number));
        if let Some(share) = share {
            share.unused = share.unused.saturating_sub(1);
        }
    }

    /// Fragments that the fronts of unused groups will take.
    pub(super) fn unused_fronts(&self, state: &State) -> u64 {
        let staying = state.shares.iter().filter(|share| !share.is_leaving);
        let added: u64 = staying.map(|share| u64::from(share.unused)).sum();
        added * u64::from(front_of(self.geometry()))
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
        let unused = match share.disk_group {
            0 => u32::try_from(state.groups_unused).unwrap_or(u32::MAX),
            _ => share.unused,
        };
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
            match (share.disk_group, self.gives_data(state, at)) {
                // GR1.
                (0, true) => (self.free_of(state, share) - kept).max(0),
                (0, false) => 0,
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
