//! The main disk group where no data may lie there: metadata has room of its own.
//!
//! What is free there no block can have, so it counts as spare; and what takes metadata is held
//! against what is there, as all is held against the capacity (G4). How much of a promise will be
//! metadata nobody knows before it is installed, so all of it counts in both: a writer who is
//! refused for that installs what waits, and then it is known. One long run has few pages beside
//! its blocks ([`pages_for`]).

use format::geometry::Geometry;
use format::map::POINTERS_PER_PAGE;
use runtime::planted::{self, Planted};

use super::policy::{SegmentName, SegmentView};
use super::share::{capacity_of, kept_of, main_of};
use super::{Allocator, LOW_SEGMENTS, State, Urgency, reserve_of};
use crate::error::{FsError, FsResult};

/// Fragments that may be changed in so many places that each has a page of a map.
const SCATTERED_MAX: u64 = 1024;

/// Returns what one promise of `fragments` may come to in pages, in fragments.
fn pages_for(fragments: u64) -> u64 {
    fragments.min(SCATTERED_MAX) + fragments / POINTERS_PER_PAGE
}

/// What the main disk group has left for metadata where it has data too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MainHas {
    /// As many segments as are kept there for it.
    Enough,
    /// Fewer, and data finds room in others.
    LessThanOthers,
    /// Fewer, and there is little room anywhere: what is free may lie in holes.
    Little,
}

/// In fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Apart {
    /// What the main disk group has.
    pub(super) total: u64,
    /// Of that what pages can have.
    pub(super) capacity: u64,
    /// Of that in use.
    pub(super) used: u64,
    /// Of that freed, and not to be used before the next checkpoint.
    pub(super) pending: u64,
    /// Of that what is kept back.
    pub(super) reserve: u64,
}

impl Apart {
    /// Changes what is counted of the main disk group, if it is counted and has group `number`.
    pub(super) fn change(state: &mut State, number: u32, change: impl FnOnce(&mut Apart)) {
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

    /// What nobody has, and no block can have.
    pub(super) fn spare(&self) -> u64 {
        self.total.saturating_sub(self.used + self.pending)
    }

    /// What pages can have besides.
    pub(super) fn free(&self) -> u64 {
        self.capacity.saturating_sub(self.used + self.pending)
    }
}

impl Allocator {
    /// Counts what is in use of the main disk group, if no data may lie there.
    pub(super) fn apart_at_open(&self) -> FsResult<Option<Apart>> {
        let geometry = self.geometry();
        if geometry.main_has_data {
            return Ok(None);
        }
        let (_, used) = self.space_of(main_of(geometry))?;
        Ok(Some(self.apart_with(geometry, used)))
    }

    /// Returns what the main disk group of `geometry` has, of which `used` fragments are in use.
    pub(super) fn apart_with(&self, geometry: &Geometry, used: u64) -> Apart {
        let numbers = main_of(geometry);
        let first = numbers.start;
        let total: u64 = numbers.map(|number| capacity_of(geometry, number)).sum();
        // In stripes half of each metadata segment is for second copies.
        let gap = u64::from(geometry.metadata_gap(first)) * total;
        let capacity = total - gap / u64::from(geometry.segment_fragments);
        let reserve = reserve_of(geometry, capacity, self.block_shift);
        Apart { total, capacity, used, pending: 0, reserve }
    }

    /// G7: whether metadata may have `fragments`.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if they would touch what is kept from `urgency`.
    pub(super) fn check_apart(
        &self,
        state: &State,
        fragments: u64,
        urgency: Urgency,
    ) -> FsResult<()> {
        let Some(apart) = &state.apart else { return Ok(()) };
        let kept = match urgency {
            Urgency::User => apart.reserve,
            Urgency::Name => apart.reserve / 2,
            Urgency::Held => apart.reserve / 4,
            // It may not be refused, and finds what is kept.
            Urgency::System => return Ok(()),
        };
        let is_planted = planted::is(Planted::MetadataRoomForgotten);
        let main = &state.shares[0];
        let front = self.geometry().front_fragments(main.numbers.start);
        let fronts = u64::from(main.unused) * u64::from(front);
        let wanted = state.promised + pages_for(fragments) + fronts + kept;
        let has_room = apart.free() >= wanted;
        if has_room || is_planted { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Whether the main disk group has data beside all metadata, and others give data room too.
    fn shares_main(&self, state: &State) -> bool {
        let is_planted = planted::is(Planted::FirstGroupNotCounted);
        let others_give = (1..state.shares.len()).any(|at| self.gives_data(state, at));
        others_give && self.gives_data(state, 0) && !is_planted
    }

    /// G8: returns what the main disk group, which has data too, has left for metadata.
    ///
    /// # Errors
    ///
    /// See [`Allocator::free_segments`].
    pub(crate) fn main_has(&self) -> FsResult<MainHas> {
        let mut state = self.state.lock();
        if !self.shares_main(&state) {
            return Ok(MainHas::Enough);
        }
        let kept = kept_of(self.geometry());
        if self.count_free_in(&mut state, 0, kept)? >= kept {
            return Ok(MainHas::Enough);
        }
        let mut elsewhere = 0;
        for at in 1..state.shares.len() {
            if self.gives_data(&state, at) && elsewhere < LOW_SEGMENTS {
                elsewhere += self.count_free_in(&mut state, at, LOW_SEGMENTS - elsewhere)?;
            }
        }
        let has_others = elsewhere >= LOW_SEGMENTS;
        Ok(match has_others {
            true => MainHas::LessThanOthers,
            false if planted::is(Planted::HolesNotSought) => MainHas::Enough,
            false => MainHas::Little,
        })
    }

    /// Returns the one of `candidates` in the main disk group of which the least must be copied.
    pub(crate) fn least_of_main(&self, candidates: &[SegmentView]) -> Option<SegmentName> {
        let main = self.geometry().main_numbers();
        let of_first = candidates.iter().filter(|view| main.contains(&view.segment.group));
        of_first.min_by_key(|view| (view.live_fragments, view.segment)).map(|view| view.segment)
    }

    /// G8: whether metadata finds `fragments` in the main disk group, where that has data too: in
    /// free pages and free segments. Holes between blocks it cannot have.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`] if they would touch what is kept from `urgency`.
    pub(super) fn check_reach(
        &self,
        state: &mut State,
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
            // It may not be refused, and finds what is kept.
            Urgency::System => return Ok(()),
        };
        let first = state.shares[0].numbers.start;
        let of_segment = u64::from(geometry.metadata_fragments(first).max(1));
        // Pages of a long run come as it is installed, and data goes from there meanwhile.
        let pages = pages_for(fragments).min(u64::from(kept_of(geometry) / 2) * of_segment);
        let wanted = state.promised + pages + u64::from(kept) * of_segment;
        let pages = state.shares[0].spare.known() * u64::from(geometry.page_fragments());
        let Some(missing) = wanted.checked_sub(pages) else { return Ok(()) };
        let enough = u32::try_from(missing.div_ceil(of_segment)).unwrap_or(u32::MAX);
        let has_room = self.count_free_in(state, 0, enough)? >= enough;
        if has_room { Ok(()) } else { Err(FsError::NoSpace) }
    }

    /// Whether data may lie in the disk group at `at` of `shares`.
    pub(super) fn gives_data(&self, state: &State, at: usize) -> bool {
        let share = &state.shares[at];
        let has_role = share.has_data;
        !share.is_leaving && (has_role || planted::is(Planted::RoleForgotten))
    }
}
