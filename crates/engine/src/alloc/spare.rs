//! Spare space: free space that blocks cannot use, and the room for one more file.
//!
//! Spare space consists of free pages of metadata segments and the fronts of unused groups. Free
//! pages are exact for groups in memory. Other groups are counted from their segment usage, the
//! first ones at open and the rest in the background, to keep the open short. Until then a group
//! counts as if just initialised, as most groups of a large pool are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::geometry::Geometry;
use format::group::{SegmentKind, SegmentUsage};
use format::map::POINTERS_PER_PAGE;

use super::share::{SegmentSource, front_of};
use super::{Allocator, AllocatorState, CLEANER_SEGMENTS, PAGES_KEPT};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

/// Groups counted at open, one read each: all of a pool of 16 GiB.
const COUNTED_AT_OPEN: u32 = 16;
/// Groups counted per tick: 1 TiB in about a minute.
const COUNTED_AT_TICK: u32 = 4;
/// Ticks between retries of unreadable groups: about five minutes.
const UNREAD_TICKS: u64 = 1200;

/// Free pages and metadata segments of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupSpareSpace {
    pub(super) pages: u32,
    /// Metadata segments with pages. With stripes, a part of each is unusable.
    pub(super) segments: u32,
}

/// Free pages and metadata segments of a disk group.
#[derive(Clone, Debug)]
pub(super) struct SpareSpace {
    loaded: u64,
    loaded_segments: u64,
    /// Counted groups outside memory with metadata segments.
    counted: BTreeMap<u32, GroupSpareSpace>,
    counted_sum: u64,
    counted_segments: u64,
    numbers: Range<u32>,
    /// The first group not yet counted.
    next: u32,
    /// Unreadable groups before `next`, still among the unknown ones.
    uncounted: BTreeSet<u32>,
    /// Groups in use that are neither in memory nor counted.
    unknown_groups: u64,
}

impl SpareSpace {
    pub(super) fn new(numbers: Range<u32>, groups_used: u64) -> SpareSpace {
        SpareSpace {
            next: numbers.start,
            numbers,
            loaded: 0,
            loaded_segments: 0,
            counted: BTreeMap::new(),
            counted_sum: 0,
            counted_segments: 0,
            uncounted: BTreeSet::new(),
            unknown_groups: groups_used,
        }
    }

    pub(super) fn known(&self) -> u64 {
        self.loaded + self.counted_sum
    }

    /// Returns a group outside memory with a free page.
    pub(super) fn elsewhere(&self) -> Option<u32> {
        let mut counted = self.counted.iter();
        counted.find(|(_, free)| free.pages > 0).map(|(number, _)| *number)
    }

    pub(super) fn add_group(&mut self, number: u32) {
        if number >= self.next {
            self.unknown_groups += 1;
        }
    }

    /// Drops the count of a group that is now in memory.
    pub(super) fn forget(&mut self, number: u32) {
        if number >= self.next || self.uncounted.remove(&number) {
            self.unknown_groups = self.unknown_groups.saturating_sub(1);
        } else if let Some(free) = self.counted.remove(&number) {
            self.counted_sum -= u64::from(free.pages);
            self.counted_segments -= u64::from(free.segments);
        }
    }

    pub(super) fn change(&mut self, before: GroupSpareSpace, after: GroupSpareSpace) {
        self.loaded = self.loaded + u64::from(after.pages) - u64::from(before.pages);
        let segments = self.loaded_segments + u64::from(after.segments);
        self.loaded_segments = segments - u64::from(before.segments);
    }

    fn count(&mut self, free: GroupSpareSpace) {
        self.unknown_groups = self.unknown_groups.saturating_sub(1);
        if free != GroupSpareSpace::default() {
            self.counted.insert(self.next, free);
            self.counted_sum += u64::from(free.pages);
            self.counted_segments += u64::from(free.segments);
        }
    }
}

/// Returns the free pages of a group just initialised.
fn front_pages(geometry: &Geometry, group: u32) -> u32 {
    geometry.front_segments(group) * geometry.metadata_pages(group) - geometry.front_pages()
}

impl Allocator {
    pub(super) fn count_first(&self) {
        self.count_groups(COUNTED_AT_OPEN);
    }

    /// Counts a few more groups. Called at each tick.
    pub(crate) fn count_more(&self) {
        let mut state = self.state.lock();
        state.ticks += 1;
        if state.ticks.is_multiple_of(UNREAD_TICKS) {
            state.unread.clear();
        }
        drop(state);
        self.count_groups(COUNTED_AT_TICK);
    }

    /// Checks that creating names may take pages, and `count` more.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if they would take the cleaner's segments.
    pub(crate) fn check_pages(&self, count: u32) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        // Pages come from the main disk group (GR1).
        let wanted = PAGES_KEPT + u64::from(count);
        loop {
            if self.group_space().count_free_in(&mut state, 0, CLEANER_SEGMENTS + 1)?
                > CLEANER_SEGMENTS
                || state.shares[0].spare.known() >= wanted
            {
                return Ok(());
            }
            if !self.await_discard(&mut state) {
                return Err(FsError::NoSpace);
            }
        }
    }

    /// Initialises groups until `pages` free pages are known. Pages beside a front take no segment
    /// from blocks.
    ///
    /// # Errors
    ///
    /// Damage of the pool's totals.
    pub(crate) fn open_fronts(&self, pages: u64) -> FsResult<()> {
        let mut state = self.state.lock();
        if state.apart.is_some() {
            return Ok(());
        }
        for number in state.shares[0].numbers.clone() {
            let main = &state.shares[0];
            if main.spare.known() >= pages || main.unused == 0 {
                break;
            }
            let is_in_use = state.groups.contains_key(&number) || self.is_initialised(number)?;
            if !is_in_use {
                self.can_give(&mut state, number)?;
            }
        }
        Ok(())
    }

    /// Returns how many of `pages` exceed the known free pages.
    pub(crate) fn pages_beyond_spare(&self, pages: u64) -> u64 {
        let state = self.state.lock();
        let known = if state.apart.is_some() { 0 } else { state.shares[0].spare.known() };
        pages.saturating_sub(known)
    }

    fn count_groups(&self, groups: u32) {
        for _ in 0..groups {
            let mut state = self.state.lock();
            let AllocatorState { shares, groups: loaded, .. } = &mut *state;
            // `unknown_groups` may exceed the group table's count. Loading a group reports that.
            let is_left = |spare: &&mut SpareSpace| {
                spare.unknown_groups > 0 && spare.next < spare.numbers.end
            };
            let mut spares = shares.iter_mut().map(|share| &mut share.spare);
            let Some(spare) = spares.find(is_left) else { return };
            let number = spare.next;
            // An unreadable group stays assumed as just initialised. Its use reports the error.
            if !loaded.contains_key(&number) {
                match self.free_pages_of(number) {
                    Ok(Some(free)) => spare.count(free),
                    Ok(None) => {}
                    Err(_) => _ = spare.uncounted.insert(number),
                }
            }
            spare.next = number + 1;
        }
    }

    /// Returns the counts of a group on disk, `None` if unused.
    fn free_pages_of(&self, number: u32) -> FsResult<Option<GroupSpareSpace>> {
        if !self.is_initialised(number)? {
            return Ok(None);
        }
        let geometry = self.geometry();
        let (mut free, mut segments) = (0, 0);
        for segment in 0..geometry.segments_of(number) {
            let buffer = self.usage_buffer(number, segment)?;
            let usage = SegmentUsage::of(page_of(&buffer.bytes()), segment);
            if let Some(usage) = usage.filter(|usage| usage.kind == SegmentKind::Metadata) {
                // An empty metadata segment is free for any purpose.
                let rest = geometry.metadata_fragments(number).saturating_sub(usage.live);
                free += if usage.live > 0 { rest } else { 0 };
                segments += u32::from(usage.live > 0);
            }
        }
        Ok(Some(GroupSpareSpace { pages: free / geometry.page_fragments(), segments }))
    }

    pub(super) fn spare(&self, state: &AllocatorState) -> u64 {
        let shares = state.shares.iter().filter(|share| share.gives_room());
        shares.map(|share| self.spare_of(state, share)).sum()
    }

    pub(super) fn spare_of(&self, state: &AllocatorState, share: &SegmentSource) -> u64 {
        if let Some(apart) = state.apart.as_ref().filter(|_| share.is_main) {
            // Blocks cannot use the free space of a main disk group for metadata only (G7).
            return apart.spare();
        }
        let (geometry, group) = (self.geometry(), share.numbers.start);
        let unused = u64::from(share.unused);
        if !share.has_pages() {
            return unused * u64::from(front_of(geometry, group));
        }
        let front = u64::from(geometry.front_segments(group) * geometry.segment_fragments);
        let page = u64::from(geometry.page_fragments());
        self.spare_pages(share) * page + self.gaps(share) + unused * front
    }

    /// Returns the unusable fragments of metadata segments.
    fn gaps(&self, share: &SegmentSource) -> u64 {
        let (spare, group) = (&share.spare, share.numbers.start);
        let unknown = spare.unknown_groups * u64::from(self.geometry().front_segments(group));
        let segments = spare.loaded_segments + spare.counted_segments + unknown;
        segments * u64::from(self.geometry().metadata_gap(group))
    }

    /// Returns the free pages. Uncounted groups count as just initialised.
    fn spare_pages(&self, share: &SegmentSource) -> u64 {
        let front = u64::from(front_pages(self.geometry(), share.numbers.start));
        share.spare.known() + share.spare.unknown_groups * front
    }

    /// Returns the free space for one more file, less the map pages that spare pages do not cover.
    pub(super) fn available(&self, state: &AllocatorState) -> u64 {
        let geometry = self.geometry();
        let segment = u64::from(geometry.segment_fragments);
        let room =
            state.capacity.saturating_sub(self.taken(state) + self.spare(state) + state.reserve);
        let room = room.saturating_sub(self.kept.fragments());
        if let Some(apart) = &state.apart {
            // Map pages have a separate limit, which may be reached first.
            let pages = apart.free().saturating_sub(apart.reserve + state.promised)
                / u64::from(geometry.page_fragments());
            let mapped = pages.saturating_mul(POINTERS_PER_PAGE);
            return room.min(mapped.saturating_mul(self.block_fragments));
        }
        let main = &state.shares[0];
        let first = main.numbers.start;
        let unused_pages = u64::from(main.unused) * u64::from(front_pages(geometry, first));
        let spare_pages = self.spare_pages(main) + unused_pages;
        let map_pages = (room / self.block_fragments).div_ceil(POINTERS_PER_PAGE);
        let missing = map_pages.saturating_sub(spare_pages);
        room.saturating_sub(missing.div_ceil(u64::from(geometry.metadata_pages(first))) * segment)
    }
}
