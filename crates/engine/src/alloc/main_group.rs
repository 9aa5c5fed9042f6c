//! Change of the main disk group, which gets all new metadata.
//!
//! The contents of the former one stay, and count as before. It may take data, and its free pages
//! become unusable.
//!
//! Not here: the fixed regions (`storage::volume`), and the order of the steps
//! (`pool::main_group`).

use super::GroupSpace;
use format::anode::ANODE_BYTES;
use format::geometry::Geometry;
use format::page::{PAGE_HEADER_BYTES, PageKind, PageOwner, SLOTS_PER_PAGE};

use super::AllocatorState;
use super::apart::MetadataSpace;
use super::giving_up::pending_in;
use super::share::{SegmentSource, capacity_of, kept_of, main_of};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

impl GroupSpace<'_> {
    /// Initialises group `number` of a possible main disk group, and logs a copy of the root page
    /// there. The caller prevents changes of the root page.
    ///
    /// # Errors
    ///
    /// Damage of either page or of the group's maps.
    pub(crate) fn copy_root(&self, number: u32) -> FsResult<()> {
        self.ensure_group(&mut self.state.lock(), number)?;
        let (geometry, owner) = (self.geometry(), PageOwner::default());
        let from = self.cache.page(geometry.group_layout().root_place(), PageKind::Anode, owner)?;
        let to = self.cache.page(
            geometry.group_layout().root_place_in(number),
            PageKind::Anode,
            owner,
        )?;
        let slots = PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + SLOTS_PER_PAGE * ANODE_BYTES;
        let said = page_of(&from.bytes())[slots.clone()].to_vec();
        let mut tx = self.journal.begin_unreserved();
        for (at, slot) in slots.step_by(ANODE_BYTES).zip(said.chunks(ANODE_BYTES)) {
            tx.put(&to, at, slot);
        }
        self.journal.end(tx);
        Ok(())
    }

    /// Changes the main disk group. `write` receives the fragments missing for promised metadata,
    /// and makes the geometry `coming` durable and visible, or refuses. LOCK: as
    /// [`GroupSpace::begin_leaving`](crate::alloc::GroupSpace::begin_leaving).
    ///
    /// # Errors
    ///
    /// An error of `write`, or a failure to read the maps: nothing has changed here.
    pub(crate) fn become_main<E: From<FsError>>(
        &self,
        coming: &Geometry,
        write: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let numbers = main_of(coming);
        // Everything that can fail comes before the labels change. This caches the counts of groups
        // outside memory.
        self.space_of(numbers.clone())?;
        let mut state = self.state.lock();
        let used_of = |number: u32| match state.groups.get(&number) {
            Some(group) => group.used(),
            None => state.used_at_rest.get(&number).copied().unwrap_or(0),
        };
        let used = numbers.clone().map(|number| u64::from(used_of(number))).sum();
        let found = self.look_at(&state, coming, None)?;
        let is_it = |share: &SegmentSource| !share.is_leaving && share.numbers == numbers;
        let at = state.shares.iter().position(is_it).unwrap_or(0);
        let lacks = self.lacks_as_main(&mut state, at, (coming, used))?;
        write(lacks)?;
        let geometry = self.geometry();
        state.shares[0].is_main = false;
        state.shares.swap(0, at);
        state.shares[0].is_main = true;
        state.shares[0].has_data = geometry.main_has_data;
        let pending = pending_in(&state, numbers);
        let apart = (!geometry.main_has_data).then(|| self.apart_with(geometry, used));
        state.apart = apart.map(|apart| MetadataSpace { pending, ..apart });
        self.note(&mut state, geometry, &found);
        Ok(())
    }

    /// Returns the fragments missing if share `at`, of which `used` are in use, became the main
    /// disk group.
    fn lacks_as_main(
        &self,
        state: &mut AllocatorState,
        at: usize,
        (coming, used): (&Geometry, u64),
    ) -> FsResult<u64> {
        let segment = u64::from(coming.segment_fragments);
        let lacks = if coming.main_has_data {
            // Pages need whole segments, which data will avoid (GR1).
            let wanted = kept_of(coming);
            let free = self.count_free_in(state, at, wanted)?;
            u64::from(wanted.saturating_sub(free)) * segment
        } else {
            let apart = self.apart_with(coming, used);
            (state.promised + apart.reserve).saturating_sub(apart.free())
        };
        // If the old main disk group gives no room afterwards, its contents count as used
        // elsewhere.
        let old = &state.shares[0];
        let (Some(apart), true) = (&state.apart, !old.has_data) else { return Ok(lacks) };
        let all: u64 = old.numbers.clone().map(|it| capacity_of(coming, it)).sum();
        let gone = all.saturating_sub(apart.spare() + self.fronts_in(old.numbers.clone())?);
        let room = state.capacity.saturating_sub(self.taken(state) + self.spare(state));
        Ok(lacks.max((gone + state.reserve).saturating_sub(room)))
    }
}
