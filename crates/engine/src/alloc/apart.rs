//! Space for metadata in the main disk group, which holds metadata only, or data too.
//!
//! In a main disk group for metadata only, blocks cannot use the free space: it counts as spare,
//! and metadata is also checked against it (G4). How much of a promise becomes metadata is unknown
//! before the map update, so the whole promise counts against both limits. A refused writer first
//! maps its dirty blocks, which settles their promises. A long run needs few map pages
//! ([`pages_for`]).

use super::GroupSpace;
use format::geometry::Geometry;
use format::map::POINTERS_PER_PAGE;

use super::policy::{SegmentName, SegmentView};
use super::share::{capacity_of, kept_of, main_of};
use super::{AllocatorState, LOW_SEGMENTS, Urgency, reserve_of};
use crate::error::{FsError, FsResult};

/// Most fragments of a promise that are assumed to need a map page each.
const SCATTERED_MAX: u64 = 1024;

/// Returns an upper bound of the map pages for `fragments`.
fn pages_for(fragments: u64) -> u64 {
    fragments.min(SCATTERED_MAX) + fragments / POINTERS_PER_PAGE
}

/// Free space for metadata in a main disk group that also holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataHeadroom {
    /// All segments kept for metadata are free.
    Enough,
    /// Fewer are free, but other disk groups have room for data.
    LessThanOthers,
    /// Fewer are free, and other disk groups are nearly full.
    Little,
}

/// Counts of a main disk group for metadata only, in fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetadataSpace {
    pub(super) total: u64,
    /// Fragments that pages can use.
    pub(super) capacity: u64,
    pub(super) used: u64,
    pub(super) pending: u64,
    pub(super) reserve: u64,
}

impl MetadataSpace {
    /// Changes the counts, if they include group `number`.
    pub(super) fn change(
        state: &mut AllocatorState,
        number: u32,
        change: impl FnOnce(&mut MetadataSpace),
    ) {
        let is_first = state.shares[0].numbers.contains(&number);
        if let Some(apart) = state.apart.as_mut().filter(|_| is_first) {
            change(apart);
        }
    }

    pub(super) fn free_later(&mut self, fragments: u64) {
        self.used = self.used.saturating_sub(fragments);
        self.pending += fragments;
    }

    pub(super) fn give_back(&mut self, fragments: u32) {
        self.used = self.used.saturating_sub(fragments.into());
    }

    pub(super) fn release(&mut self, fragments: u32) {
        self.pending = self.pending.saturating_sub(fragments.into());
    }

    pub(super) fn spare(&self) -> u64 {
        self.total.saturating_sub(self.used + self.pending)
    }

    /// Returns the free fragments that pages can use.
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used + self.pending)
    }
}

impl GroupSpace<'_> {
    /// Counts the main disk group, if it holds metadata only.
    pub(super) fn apart_at_open(&self) -> FsResult<Option<MetadataSpace>> {
        let geometry = self.geometry();
        if geometry.main_has_data {
            return Ok(None);
        }
        let (_, used) = self.space_of(main_of(geometry))?;
        Ok(Some(self.apart_with(geometry, used)))
    }

    pub(super) fn apart_with(&self, geometry: &Geometry, used: u64) -> MetadataSpace {
        let numbers = main_of(geometry);
        let first = numbers.start;
        let total: u64 = numbers.map(|number| capacity_of(geometry, number)).sum();
        // With stripes, half of each metadata segment holds second copies.
        let gap = u64::from(geometry.metadata_gap(first)) * total;
        let capacity = total - gap / u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, capacity, self.block_shift);
        MetadataSpace { total, capacity, used, pending: 0, reserve }
    }

    /// Checks that metadata may take `fragments` (G7).
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] beyond the limit for `urgency`.
    pub(super) fn check_apart(
        &self,
        state: &AllocatorState,
        fragments: u64,
        urgency: Urgency,
    ) -> FsResult<()> {
        let Some(apart) = &state.apart else { return Ok(()) };
        let kept = match urgency {
            Urgency::User => apart.reserve,
            Urgency::Name => apart.reserve / 2,
            Urgency::Held => apart.reserve / 4,
            // The reserve is for this: never refused.
            Urgency::System => return Ok(()),
        };
        let main = &state.shares[0];
        let front = self.geometry().front_fragments(main.numbers.start);
        let fronts = u64::from(main.unused) * u64::from(front);
        let wanted = state.promised + pages_for(fragments) + fronts + kept;
        if apart.free() >= wanted { Ok(()) } else { Err(FsError::NoSpace) }
    }

    fn shares_main(&self, state: &AllocatorState) -> bool {
        let others_give = (1..state.shares.len()).any(|at| self.gives_data(state, at));
        others_give && self.gives_data(state, 0)
    }

    /// Returns the free space for metadata in a main disk group with data (G8).
    ///
    /// # Errors
    ///
    /// See [`Allocator::free_segments`](crate::alloc::Allocator::free_segments).
    pub(crate) fn main_has(&self) -> FsResult<MetadataHeadroom> {
        let mut state = self.state.lock();
        if !self.shares_main(&state) {
            return Ok(MetadataHeadroom::Enough);
        }
        let kept = kept_of(self.geometry());
        if self.count_free_in(&mut state, 0, kept)? >= kept {
            return Ok(MetadataHeadroom::Enough);
        }
        let mut elsewhere = 0;
        for at in 1..state.shares.len() {
            if self.gives_data(&state, at) && elsewhere < LOW_SEGMENTS {
                elsewhere += self.count_free_in(&mut state, at, LOW_SEGMENTS - elsewhere)?;
            }
        }
        let has_others = elsewhere >= LOW_SEGMENTS;
        Ok(match has_others {
            true => MetadataHeadroom::LessThanOthers,
            false => MetadataHeadroom::Little,
        })
    }

    /// Returns the candidate with the fewest live fragments in the main disk group.
    pub(crate) fn least_of_main(&self, candidates: &[SegmentView]) -> Option<SegmentName> {
        let main = self.geometry().group_layout().main_numbers();
        let of_first = candidates.iter().filter(|view| main.contains(&view.segment.group));
        of_first.min_by_key(|view| (view.live_fragments, view.segment)).map(|view| view.segment)
    }

    /// Checks that free pages and whole free segments suffice for `fragments` of metadata (G8).
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] beyond the limit for `urgency`.
    pub(super) fn check_reach(
        &self,
        state: &mut AllocatorState,
        fragments: u64,
        urgency: Urgency,
    ) -> FsResult<()> {
        if !self.shares_main(state) {
            return Ok(());
        }
        let geometry = self.geometry();
        let kept = match urgency {
            Urgency::User => kept_of(geometry) / 2,
            Urgency::Name => kept_of(geometry) / 4,
            Urgency::Held => kept_of(geometry) / 8,
            // The reserve is for this: never refused.
            Urgency::System => return Ok(()),
        };
        let first = state.shares[0].numbers.start;
        let of_segment = u64::from(geometry.metadata_fragments(first).max(1));
        // Pages of a long run are allocated gradually, while data moves away.
        let pages = pages_for(fragments).min(u64::from(kept_of(geometry) / 2) * of_segment);
        let wanted = state.promised + pages + u64::from(kept) * of_segment;
        let pages = state.shares[0].spare.known() * u64::from(geometry.page_fragments());
        let Some(missing) = wanted.checked_sub(pages) else { return Ok(()) };
        let enough = u32::try_from(missing.div_ceil(of_segment)).unwrap_or(u32::MAX);
        let has_room = self.count_free_in(state, 0, enough)? >= enough;
        if has_room { Ok(()) } else { Err(FsError::NoSpace) }
    }

    pub(super) fn gives_data(&self, state: &AllocatorState, at: usize) -> bool {
        let share = &state.shares[at];
        !share.is_leaving && share.has_data
    }
}
