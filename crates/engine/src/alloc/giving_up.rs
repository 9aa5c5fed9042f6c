//! The last allocation groups of a disk group are given up while the pool is in use: there will be
//! no room for them.
//!
//! They leave as those of a disk group do that leaves (GR2, GR3): nothing new goes there, what they
//! hold counts as used where it is to go, and once they are empty their entries in the group table
//! are cleared. Then the labels come to say that they are gone.
//!
//! Not here: who empties them (`jobs::evacuation`), and why (`jobs::narrowing`).

use std::ops::Range;

use format::geometry::Geometry;

use super::apart::Apart;
use super::disk_groups::Found;
use super::share::{Share, capacity_of, front_of};
use super::spare::Free;
use super::{Allocator, State};
use crate::error::{FsError, FsResult};

impl Allocator {
    /// Asks `decide`, who is told how many fragments are missing elsewhere for what the last
    /// allocation groups of `coming` hold, to make durable, and to show, that these are given up:
    /// their room counts no more then. The lock is held from the answer on, as in
    /// [`Allocator::begin_leaving`].
    ///
    /// # Errors
    ///
    /// What `decide` says, or a failure to read the maps: nothing was changed here.
    pub(crate) fn begin_giving_up<E: From<FsError>>(
        &self,
        coming: &Geometry,
        decide: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        let Some(last) = coming.last_groups else { return decide(0) };
        let numbers = last.first..coming.numbers_of(last.disk_group).end;
        // Of those in memory it is known what must be counted no more.
        for number in numbers.clone() {
            if self.is_initialised(number)? {
                self.ensure_group(&mut state, number)?;
            }
        }
        let found = self.look_at(&state, coming, None)?;
        let missing = self.missing_without_last(&state, last.disk_group, numbers.clone())?;
        decide(missing)?;
        // It cannot fail: the labels say so already.
        if last.disk_group == coming.main {
            self.uncount(&mut state, numbers);
        }
        self.note(&mut state, self.geometry(), &found);
        Ok(())
    }

    fn missing_without_last(
        &self,
        state: &State,
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
            // All of the main disk group is spare.
            Some(_) if is_main => numbers.clone().map(|number| capacity_of(geometry, number)).sum(),
            _ if share.is_some_and(Share::has_pages) => {
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
        // G7: metadata has the main disk group alone, and all that it holds.
        let gone: u64 = numbers.map(|number| capacity_of(geometry, number)).sum();
        let gap =
            u64::from(geometry.metadata_gap(first)) * gone / u64::from(geometry.segment_fragments);
        let rest = apart.capacity.saturating_sub(gone - gap.min(gone));
        Ok(missing.max((apart.used + apart.pending + apart.reserve).saturating_sub(rest)))
    }

    /// What `numbers`, of the main disk group, have left is no room for metadata any more.
    fn uncount(&self, state: &mut State, numbers: Range<u32>) {
        let unused = u64::from(numbers.end - numbers.start) - count_loaded(state, &numbers);
        let unused = u32::try_from(unused).unwrap_or(u32::MAX);
        if let Some(share) = Self::share_of(state, numbers.start) {
            share.unused = share.unused.saturating_sub(unused);
        }
        let loaded = || state.groups.range(numbers.clone()).map(|(_, group)| group);
        let free: Vec<Free> = loaded().map(super::group::Group::free).collect();
        let used: u64 = loaded().map(|group| u64::from(group.used())).sum();
        let pending = pending_in(state, numbers.clone());
        for free in free {
            if let Some(share) = Self::share_of(state, numbers.start) {
                share.spare.change(free, Free::default());
            }
        }
        if let Some(before) = state.apart {
            let used = before.used.saturating_sub(used);
            let apart = self.apart_with(self.geometry(), used);
            let pending = before.pending.saturating_sub(pending);
            state.apart = Some(Apart { pending, ..apart });
        }
    }

    /// Asks `write` to make durable, and to show, that what was given up is gone: its groups are
    /// forgotten ([`Allocator::forget_groups`]). LOCK: as [`Allocator::begin_giving_up`].
    ///
    /// # Errors
    ///
    /// What `write` says: nothing was changed here.
    pub(crate) fn become_shorter<E>(&self, write: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let mut state = self.state.lock();
        let fronts = self.fronts_of_leaving(&state);
        write()?;
        self.note(&mut state, self.geometry(), &Found::of_fronts(fronts));
        Ok(())
    }

    /// Returns what the fronts take of what leaves, in fragments (GR3).
    pub(super) fn fronts_of_leaving(&self, state: &State) -> u64 {
        let staying = state.shares.iter().filter(|share| share.gives_room());
        let staying = staying.flat_map(|share| share.numbers.clone());
        let staying: u64 = staying.map(|number| capacity_of(self.geometry(), number)).sum();
        state.capacity.saturating_sub(staying)
    }
}

/// Returns how many fragments of `numbers` are freed and not released.
pub(super) fn pending_in(state: &State, numbers: Range<u32>) -> u64 {
    let segments = state.groups.range(numbers).flat_map(|(_, group)| &group.segments);
    segments.map(|segment| u64::from(segment.pending)).sum()
}

/// Returns how many of `numbers` are in memory: all that are in use, once they were looked at.
fn count_loaded(state: &State, numbers: &Range<u32>) -> u64 {
    crate::convert::wide(state.groups.range(numbers.clone()).count())
}
