//! Another disk group becomes the main one: from then on new metadata goes there.
//!
//! What the one that was it holds stays, and is counted as it was. Its free pages are of no use to
//! anybody from then on: it gets data, where it has the role, and no metadata.
//!
//! Not here: the fixed regions, which move there (`storage::volume`), and the order of all
//! (`pool::main_group`).

use format::anode::ANODE_BYTES;
use format::geometry::Geometry;
use format::page::{PAGE_HEADER_BYTES, PageKind, PageOwner, SLOTS_PER_PAGE};
use runtime::planted::{self, Planted};

use super::share::main_of;
use super::{Allocator, State};
use crate::buffer::page_of;
use crate::error::{FsError, FsResult};

impl Allocator {
    /// Brings allocation group `number`, the first of a disk group that can be the main one, into
    /// being, and logs there what the pool's root page says. Whoever calls keeps that as it is.
    ///
    /// # Errors
    ///
    /// What is wrong with either page, or with the maps of the group.
    pub(crate) fn copy_root(&self, number: u32) -> FsResult<()> {
        self.ensure_group(&mut self.state.lock(), number)?;
        if planted::is(Planted::RootLeftBehind) {
            return Ok(());
        }
        let (geometry, owner) = (self.geometry(), PageOwner::default());
        let from = self.cache.page(geometry.root_place(), PageKind::Anode, owner)?;
        let to = self.cache.page(geometry.root_place_in(number), PageKind::Anode, owner)?;
        let slots = PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + SLOTS_PER_PAGE * ANODE_BYTES;
        let said = page_of(&from.bytes())[slots.clone()].to_vec();
        let mut tx = self.journal.begin_unreserved();
        for (at, slot) in slots.step_by(ANODE_BYTES).zip(said.chunks(ANODE_BYTES)) {
            tx.put(&to, at, slot);
        }
        self.journal.end(tx);
        Ok(())
    }

    /// Asks `write` to make durable, and to show, that the pool has the geometry `coming`, in which
    /// another disk group is the main one; new metadata goes there from then on. `write` is told
    /// how many fragments that lacks for what metadata was promised. The lock is held from then on.
    /// LOCK: as [`Allocator::begin_leaving`].
    ///
    /// # Errors
    ///
    /// What `write` says, or a failure to read the maps: nothing was changed here.
    pub(crate) fn become_main<E: From<FsError>>(
        &self,
        coming: &Geometry,
        write: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let numbers = main_of(coming);
        // What can fail is done before the labels say so.
        let (_, used) = self.space_of(numbers.clone())?;
        let mut state = self.state.lock();
        let found = self.look_at(&state, coming, None)?;
        write(self.lacks_as_main(&state, coming, used))?;
        let geometry = self.geometry();
        let is_it = |share: &super::share::Share| !share.is_leaving && share.numbers == numbers;
        let at = state.shares.iter().position(is_it);
        if let Some(at) = at {
            state.shares[0].is_main = false;
            state.shares.swap(0, at);
            state.shares[0].is_main = true;
            state.shares[0].has_data = geometry.first_has_data;
        }
        let pending = self.pending_in_main(&state);
        let apart = (!geometry.first_has_data).then(|| self.apart_with(used));
        state.apart = apart.map(|apart| super::apart::Apart { pending, ..apart });
        self.note(&mut state, geometry, &found);
        Ok(())
    }

    /// Returns how many fragments metadata lacks where the main disk group is as in `coming`, of
    /// which `used` are in use.
    fn lacks_as_main(&self, state: &State, coming: &Geometry, used: u64) -> u64 {
        let numbers = main_of(coming);
        let total: u64 = numbers.clone().map(|it| u64::from(coming.fragments_of(it))).sum();
        let segment = u64::from(coming.segment_fragments);
        let gaps = total / segment * u64::from(coming.metadata_gap(numbers.start));
        let free = total.saturating_sub(gaps + used);
        let reserve = super::reserve_of(coming, total - gaps, self.block_shift);
        let promised = if coming.first_has_data { 0 } else { state.promised };
        (promised + reserve).saturating_sub(free)
    }

    /// Returns how many fragments of the main disk group are freed and not released.
    fn pending_in_main(&self, state: &State) -> u64 {
        let groups = state.groups.range(state.shares[0].numbers.clone());
        let segments = groups.flat_map(|(_, group)| &group.segments);
        segments.map(|segment| u64::from(segment.pending)).sum()
    }
}
