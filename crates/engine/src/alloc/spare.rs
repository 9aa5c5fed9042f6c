//! What nobody has and blocks can't have: free pages of metadata segments, and what groups take
//! once they come into use; so what one file written now can have.
//!
//! Groups are loaded when they are needed, and free pages are known of groups in memory. Those of
//! the others are counted from their segment usage, in order of number: of the first groups when
//! the pool is opened, of the rest a few at a time in the background, so that no open takes long.
//! Until then a group counts as one that is new, as most groups of a large pool are: all pages of
//! its front segments but the front itself are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::geometry::Geometry;
use format::group::{SegmentKind, SegmentUsage};
use format::map::POINTERS_PER_PAGE;
use runtime::planted::{self, Planted};

use super::share::{Share, front_of};
use super::{Allocator, CLEANER_SEGMENTS, PAGES_KEPT, State};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

/// Groups that are counted when a pool is opened: all of a pool of 16 GiB, for a read of each.
const COUNTED_AT_OPEN: u32 = 16;
/// Groups that are counted at a tick: 1 TiB in about a minute.
const COUNTED_AT_TICK: u32 = 4;
/// Ticks after which groups that could not be read are asked again: about five minutes.
const UNREAD_TICKS: u64 = 1200;

/// What the metadata segments of a group have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    /// Pages that nobody has.
    pub(super) pages: u32,
    /// Metadata segments: in stripes, each has fragments that nothing can have.
    pub(super) segments: u32,
}

/// Free pages of metadata segments, and how many such segments there are.
#[derive(Clone, Debug)]
pub(super) struct Spare {
    /// Free pages of groups in memory.
    loaded: u64,
    /// Metadata segments of groups in memory.
    loaded_segments: u64,
    /// Those of groups that were counted and are not in memory, where there are any.
    counted: BTreeMap<u32, Free>,
    /// The sum of their pages.
    counted_sum: u64,
    /// The sum of their segments.
    counted_segments: u64,
    /// The groups that it is of.
    numbers: Range<u32>,
    /// The first group that nobody has tried to count.
    next: u32,
    /// Those before it that could not be read: they are among the unknown ones.
    uncounted: BTreeSet<u32>,
    /// Groups in use that are neither in memory nor counted.
    unknown_groups: u64,
}

impl Spare {
    /// Nothing is known of `groups_used` groups of `numbers`.
    pub(super) fn new(numbers: Range<u32>, groups_used: u64) -> Spare {
        Spare {
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

    /// Returns how many pages are known to be free.
    pub(super) fn known(&self) -> u64 {
        self.loaded + self.counted_sum
    }

    /// Returns a group that is not in memory and has a page to give.
    pub(super) fn elsewhere(&self) -> Option<u32> {
        let mut counted = self.counted.iter();
        counted.find(|(_, free)| free.pages > 0).map(|(number, _)| *number)
    }

    /// Group `number` has come into use.
    pub(super) fn add_group(&mut self, number: u32) {
        if number >= self.next {
            self.unknown_groups += 1;
        }
    }

    /// Group `number`, which is in use, is in memory from now on.
    pub(super) fn forget(&mut self, number: u32) {
        if number >= self.next || self.uncounted.remove(&number) {
            self.unknown_groups = self.unknown_groups.saturating_sub(1);
        } else if let Some(free) = self.counted.remove(&number) {
            self.counted_sum -= u64::from(free.pages);
            self.counted_segments -= u64::from(free.segments);
        }
    }

    /// A group in memory had `before` and has `after`.
    pub(super) fn change(&mut self, before: Free, after: Free) {
        self.loaded = self.loaded + u64::from(after.pages) - u64::from(before.pages);
        let segments = self.loaded_segments + u64::from(after.segments);
        self.loaded_segments = segments - u64::from(before.segments);
    }

    /// Group `next`, which is in use and not in memory, has so many.
    fn count(&mut self, free: Free) {
        self.unknown_groups = self.unknown_groups.saturating_sub(1);
        if free != Free::default() {
            self.counted.insert(self.next, free);
            self.counted_sum += u64::from(free.pages);
            self.counted_segments += u64::from(free.segments);
        }
    }
}

/// Returns the pages of a group's front segments that are free in a group that is new.
fn front_pages(geometry: &Geometry, group: u32) -> u32 {
    geometry.front_segments(group) * geometry.metadata_pages(group) - geometry.front_pages()
}

impl Allocator {
    /// Counts the free pages of the first groups, as a pool is opened.
    pub(super) fn count_first(&self) {
        self.count_groups(COUNTED_AT_OPEN);
    }

    /// Counts the free pages of a few more groups, if there are any that are not counted. Called
    /// at each tick.
    pub(crate) fn count_more(&self) {
        let mut state = self.state.lock();
        state.ticks += 1;
        if state.ticks.is_multiple_of(UNREAD_TICKS) {
            state.unread.clear();
        }
        drop(state);
        self.count_groups(COUNTED_AT_TICK);
    }

    /// Whether new names, and `count` pages besides, may take pages.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if they would take the segments that the cleaner needs.
    pub(crate) fn check_pages(&self, count: u32) -> FsResult<()> {
        let mut state = self.state.lock();
        self.need()?;
        // GR1.
        let wanted = PAGES_KEPT + u64::from(count);
        loop {
            if self.count_free_in(&mut state, 0, CLEANER_SEGMENTS + 1)? > CLEANER_SEGMENTS
                || state.shares[0].spare.known() >= wanted
            {
                return Ok(());
            }
            if !self.await_discard(&mut state) {
                return Err(FsError::NoSpace);
            }
        }
    }

    /// Takes allocation groups into use until `pages` free pages are known: their fronts have pages
    /// that blocks can't have, so that no segment that blocks can have becomes one for pages.
    ///
    /// # Errors
    ///
    /// What is wrong with the totals of the pool.
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

    /// Returns how many of `pages` more pages free pages of metadata segments don't give.
    pub(crate) fn pages_beyond_spare(&self, pages: u64) -> u64 {
        let state = self.state.lock();
        let known = if state.apart.is_some() { 0 } else { state.shares[0].spare.known() };
        pages.saturating_sub(known)
    }

    fn count_groups(&self, groups: u32) {
        for _ in 0..groups {
            let mut state = self.state.lock();
            let State { shares, groups: loaded, .. } = &mut *state;
            // The total of groups in use may say more than the table has: a load tells of it.
            let is_left =
                |spare: &&mut Spare| spare.unknown_groups > 0 && spare.next < spare.numbers.end;
            let mut spares = shares.iter_mut().map(|share| &mut share.spare);
            let Some(spare) = spares.find(is_left) else { return };
            let number = spare.next;
            // A group that can't be read keeps what is assumed of it; who needs it is told why.
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

    /// Returns the free pages in metadata segments of a group as the disk has them; `None`: it is
    /// not in use.
    fn free_pages_of(&self, number: u32) -> FsResult<Option<Free>> {
        if !self.is_initialised(number)? {
            return Ok(None);
        }
        let geometry = self.geometry();
        let (mut free, mut segments) = (0, 0);
        for segment in 0..geometry.segments_of(number) {
            let buffer = self.usage_buffer(number, segment)?;
            let usage = SegmentUsage::of(page_of(&buffer.bytes()), segment);
            if let Some(usage) = usage.filter(|usage| usage.kind == SegmentKind::Metadata) {
                // One without a page in use is free for anything.
                let rest = geometry.metadata_fragments(number).saturating_sub(usage.live);
                free += if usage.live > 0 { rest } else { 0 };
                segments += u32::from(usage.live > 0);
            }
        }
        Ok(Some(Free { pages: free / geometry.page_fragments(), segments }))
    }

    /// What blocks can't have of what nobody has.
    pub(super) fn spare(&self, state: &State) -> u64 {
        let shares = state.shares.iter().filter(|share| share.gives_room());
        shares.map(|share| self.spare_of(state, share)).sum()
    }

    /// The same of one disk group.
    pub(super) fn spare_of(&self, state: &State, share: &Share) -> u64 {
        if let Some(apart) = state.apart.as_ref().filter(|_| share.is_main) {
            // G7: what blocks can't have is all of the main disk group.
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

    /// Fragments of metadata segments in which no page can be.
    fn gaps(&self, share: &Share) -> u64 {
        let (spare, group) = (&share.spare, share.numbers.start);
        let unknown = spare.unknown_groups * u64::from(self.geometry().front_segments(group));
        let segments = spare.loaded_segments + spare.counted_segments + unknown;
        segments * u64::from(self.geometry().metadata_gap(group))
    }

    /// Free pages of metadata segments, of groups of which nothing is known as of new ones.
    fn spare_pages(&self, share: &Share) -> u64 {
        let front = u64::from(front_pages(self.geometry(), share.numbers.start));
        share.spare.known() + share.spare.unknown_groups * front
    }

    /// What one file written now can have: room for blocks less the map pages that they need and
    /// that spare pages don't give.
    pub(super) fn available(&self, state: &State) -> u64 {
        let geometry = self.geometry();
        let segment = u64::from(geometry.segment_fragments);
        let room =
            state.capacity.saturating_sub(self.taken(state) + self.spare(state) + state.reserve);
        let room = room.saturating_sub(self.kept.fragments());
        if planted::is(Planted::StatfsLies) {
            return room + self.spare(state);
        }
        if let Some(apart) = &state.apart {
            // The map pages have room of their own, which may end first.
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
