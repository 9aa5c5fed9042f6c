//! Which disk group new data goes to, where a pool has several.
//!
//! # Invariants
//!
//! - GR1: Metadata lies in the first disk group alone, but for the fronts of others. So the first
//!   keeps free segments that no data takes while another has room ([`kept_of`]), and what it
//!   keeps counts as reserve (G4).
//! - GR2: Nothing new is put into a disk group that leaves.
//!
//! New segments are shared by free space: each disk group is credited with the free segments that
//! it has, and the one with most credit gives the segment and pays what all were credited with.
//!
//! Not here: where in a disk group (`policy`).

use std::ops::Range;

use format::geometry::Geometry;

use super::{Allocator, SegmentId, State, reserve_of};
use crate::error::{FsError, FsResult};

/// Of how many segments of the first disk group one is kept for metadata.
const KEPT_SHARE: u32 = 16;
/// Fewest that are kept, and most.
const KEPT_MIN: u32 = 4;
const KEPT_MAX: u32 = 256;

/// A disk group, as far as it gives segments.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Its number.
    pub(super) disk_group: u8,
    /// Numbers of its allocation groups.
    pub(super) numbers: Range<u32>,
    /// Where the last data segment was taken.
    pub(super) cursor: SegmentId,
    /// Its allocation groups that are not in use; of the first the state counts them.
    unused: u32,
    /// GR2.
    is_leaving: bool,
    credit: i64,
}

impl Share {
    pub(super) fn new(disk_group: u8, numbers: Range<u32>) -> Share {
        let cursor = SegmentId { group: numbers.start, segment: 0 };
        Share { disk_group, numbers, cursor, unused: 0, is_leaving: false, credit: 0 }
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

fn front_of(geometry: &Geometry) -> u32 {
    geometry.front_pages() * geometry.page_fragments()
}

/// Returns the segments of the first disk group that no data takes while another has room (GR1).
fn kept_of(geometry: &Geometry) -> u32 {
    let segments: u32 = (0..geometry.group_count).map(|group| geometry.segments_of(group)).sum();
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
        let mut state = self.state.lock();
        let geometry = self.geometry();
        let mut used_in_all = 0;
        for range in &geometry.added {
            if state.shares.iter().any(|share| share.disk_group == range.disk_group) {
                continue;
            }
            let mut share = Share::new(range.disk_group, range.numbers());
            let mut used = 0;
            for number in range.numbers() {
                used += u32::from(self.is_initialised(number)?);
            }
            share.unused = range.count - used;
            used_in_all += u64::from(used);
            state.shares.push(share);
        }
        let capacity = geometry.groups().map(|number| capacity_of(geometry, number)).sum();
        state.capacity = capacity;
        let kept = if state.shares.len() > 1 { kept_of(geometry) } else { 0 };
        let kept = u64::from(kept) * u64::from(geometry.segment_fragments);
        state.reserve = (reserve_of(geometry, capacity, self.block_shift) + kept).min(capacity / 3);
        Ok(used_in_all)
    }

    /// Returns the fragments that allocation groups can give, and how many of them are in use.
    ///
    /// # Errors
    ///
    /// A failure to read the maps.
    pub(crate) fn space_of(&self, numbers: Range<u32>) -> FsResult<(u64, u64)> {
        let (mut capacity, mut used) = (0, 0);
        for number in numbers {
            capacity += capacity_of(self.geometry(), number);
            if self.is_initialised(number)? {
                used += u64::from(self.used_of(number)?);
            }
        }
        Ok((capacity, used))
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
        let added: u64 = state.shares.iter().map(|share| u64::from(share.unused)).sum();
        added * u64::from(front_of(self.geometry()))
    }

    /// Returns about how many segments of a disk group are free: of groups in use that are not in
    /// memory half.
    fn free_of(&self, state: &State, share: &Share) -> i64 {
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
    pub(super) fn order_of_shares(&self, state: &mut State) -> Vec<usize> {
        if state.shares.len() == 1 {
            return vec![0];
        }
        let kept = i64::from(kept_of(self.geometry()));
        let free = |share: &Share| {
            let free = self.free_of(state, share);
            if share.disk_group == 0 { (free - kept).max(0) } else { free }
        };
        let weights: Vec<i64> = state.shares.iter().map(free).collect();
        let total: i64 = weights.iter().sum();
        for (share, weight) in state.shares.iter_mut().zip(&weights) {
            share.credit += weight;
        }
        let may_give = |at: &usize| !state.shares[*at].is_leaving;
        let mut order: Vec<usize> = (0..state.shares.len()).filter(may_give).collect();
        // One without room is asked last, whatever credit it has left.
        order.sort_by_key(|at| (weights[*at] == 0, -state.shares[*at].credit));
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
            self.ensure_group(state, number)?;
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
            if !state.shares[at].is_leaving {
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
            self.ensure_group(state, number)?;
            free += state.groups[&number].free_count;
        }
        Ok(free)
    }

    /// Opens a free segment of any disk group that gives one.
    pub(super) fn take_free(&self, state: &mut State, home: Option<u32>) -> FsResult<SegmentId> {
        for at in self.order_of_shares(state) {
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
