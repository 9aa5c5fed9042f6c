//! Shrinks a disk group while the pool is in use: gives up its last allocation groups.
//!
//! They leave as a disk group does (GR2, GR3). Once they are empty, their entries in the group
//! table are cleared, and the labels drop them.
//!
//! Not here: emptying them (`jobs::evacuation`), and the reason (`jobs::narrowing`).

use super::GroupSpace;
use std::ops::Range;

use format::geometry::Geometry;

use super::apart::MetadataSpace;
use super::disk_groups::GroupsInUse;
use super::share::{SegmentSource, capacity_of, front_of};
use super::spare::GroupSpareSpace;
use super::{Allocator, AllocatorState};
use crate::error::{FsError, FsResult};

impl GroupSpace<'_> {
    /// Begins to give up the last groups in `coming`. `decide` receives the fragments missing in
    /// the other groups, and makes the change durable and visible, or refuses it. The lock is held
    /// as in [`GroupSpace::begin_leaving`](crate::alloc::GroupSpace::begin_leaving).
    ///
    /// # Errors
    ///
    /// An error of `decide`, or a failure to read the maps: nothing has changed here.
    pub(crate) fn begin_giving_up<E: From<FsError>>(
        &self,
        coming: &Geometry,
        decide: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let Some(last) = coming.last_groups else { return decide(0) };
        let numbers = last.first..coming.group_layout().numbers_of(last.disk_group).end;
        // `uncount` below subtracts the counts of groups in memory: load them.
        for number in numbers.clone() {
            if self.is_initialised(number)? {
                self.ensure_group(&mut state, number)?;
            }
        }
        let found = self.look_at(&state, coming, None)?;
        let missing = self.missing_without_last(&state, last.disk_group, numbers.clone())?;
        decide(missing)?;
        // Must not fail from here on: the labels have changed.
        if last.disk_group == coming.main {
            self.uncount(&mut state, numbers);
        }
        self.note(&mut state, self.geometry(), &found);
        Ok(())
    }

    fn missing_without_last(
        &self,
        state: &AllocatorState,
        disk_group: u8,
        numbers: Range<u32>,
    ) -> FsResult<u64> {
        let geometry = self.geometry();
        let loaded = || state.groups.range(numbers.clone()).map(|(_, group)| group.free());
        let pages: u64 = loaded().map(|free| u64::from(free.pages)).sum();
        let segments: u64 = loaded().map(|free| u64::from(free.segments)).sum();
        let unused = u64::from(numbers.end - numbers.start) - count_loaded(state, &numbers);
        let is_main = disk_group == geometry.main;
        let first = numbers.start;
        let share = state.shares.iter().find(|share| share.numbers.contains(&first));
        let spare = match &state.apart {
            // The whole main disk group counts as spare.
            Some(_) if is_main => numbers.clone().map(|number| capacity_of(geometry, number)).sum(),
            _ if share.is_some_and(SegmentSource::has_pages) => {
                let front = u64::from(geometry.front_segments(first) * geometry.segment_fragments);
                let gaps = segments * u64::from(geometry.metadata_gap(first));
                pages * u64::from(geometry.page_fragments()) + gaps + unused * front
            }
            _ => unused * u64::from(front_of(geometry, first)),
        };
        let others = state.shares.iter().filter(|share| share.gives_room()).count();
        let missing = self.missing(state, numbers.clone(), (spare, others))?;
        let Some(apart) = state.apart.as_ref().filter(|_| is_main) else {
            return Ok(missing);
        };
        // Metadata must fit into the rest (G7).
        let gone: u64 = numbers.map(|number| capacity_of(geometry, number)).sum();
        let gap =
            u64::from(geometry.metadata_gap(first)) * gone / u64::from(geometry.segment_fragments);
        let rest = apart.capacity.saturating_sub(gone - gap.min(gone));
        Ok(missing.max((apart.used + apart.pending + apart.reserve).saturating_sub(rest)))
    }

    /// Subtracts groups of the main disk group from the room for metadata.
    fn uncount(&self, state: &mut AllocatorState, numbers: Range<u32>) {
        let unused = u64::from(numbers.end - numbers.start) - count_loaded(state, &numbers);
        let unused = u32::try_from(unused).unwrap_or(u32::MAX);
        if let Some(share) = Allocator::share_of(state, numbers.start) {
            share.unused = share.unused.saturating_sub(unused);
        }
        let loaded = || state.groups.range(numbers.clone()).map(|(_, group)| group);
        let free: Vec<GroupSpareSpace> =
            loaded().map(super::group::AllocationGroup::free).collect();
        let used: u64 = loaded().map(|group| u64::from(group.used())).sum();
        let pending = pending_in(state, numbers.clone());
        for free in free {
            if let Some(share) = Allocator::share_of(state, numbers.start) {
                share.spare.change(free, GroupSpareSpace::default());
            }
        }
        if let Some(before) = state.apart {
            let used = before.used.saturating_sub(used);
            let apart = self.apart_with(self.geometry(), used);
            let pending = before.pending.saturating_sub(pending);
            state.apart = Some(MetadataSpace { pending, ..apart });
        }
    }

    /// Completes the change after
    /// [`GroupSpace::forget_groups`](crate::alloc::GroupSpace::forget_groups). `write` makes it
    /// durable and visible. LOCK: as
    /// [`GroupSpace::begin_giving_up`](crate::alloc::GroupSpace::begin_giving_up).
    ///
    /// # Errors
    ///
    /// An error of `write`: nothing has changed here.
    pub(crate) fn become_shorter<E>(&self, write: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        let fronts = self.fronts_of_leaving(&state);
        write()?;
        self.note(&mut state, self.geometry(), &GroupsInUse::of_fronts(fronts));
        Ok(())
    }

    /// Returns the fragments of used fronts of leaving groups (GR3).
    pub(super) fn fronts_of_leaving(&self, state: &AllocatorState) -> u64 {
        let staying = state.shares.iter().filter(|share| share.gives_room());
        let staying = staying.flat_map(|share| share.numbers.clone());
        let staying: u64 = staying.map(|number| capacity_of(self.geometry(), number)).sum();
        state.capacity.saturating_sub(staying)
    }
}

pub(super) fn pending_in(state: &AllocatorState, numbers: Range<u32>) -> u64 {
    let segments = state.groups.range(numbers).flat_map(|(_, group)| &group.segments);
    segments.map(|segment| u64::from(segment.pending)).sum()
}

fn count_loaded(state: &AllocatorState, numbers: &Range<u32>) -> u64 {
    crate::convert::wide(state.groups.range(numbers.clone()).count())
}
