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

use super::apart::Apart;
use super::giving_up::pending_in;
use super::share::{Share, capacity_of, kept_of, main_of};
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
        // What can fail is done before the labels say so. What is not in memory stays as it is.
        self.space_of(numbers.clone())?;
        let mut state = self.state.lock();
        let used_of = |number: u32| match state.groups.get(&number) {
            Some(group) => group.used(),
            None => state.used_at_rest.get(&number).copied().unwrap_or(0),
        };
        let used = numbers.clone().map(|number| u64::from(used_of(number))).sum();
        let found = self.look_at(&state, coming, None)?;
        let is_it = |share: &Share| !share.is_leaving && share.numbers == numbers;
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
        state.apart = apart.map(|apart| Apart { pending, ..apart });
        self.note(&mut state, geometry, &found);
        Ok(())
    }

    /// Returns how many fragments are missing where the main disk group is as in `coming`, that of
    /// the share `at`, of which `used` are in use.
    fn lacks_as_main(
        &self,
        state: &mut State,
        at: usize,
        (coming, used): (&Geometry, u64),
    ) -> FsResult<u64> {
        let segment = u64::from(coming.segment_fragments);
        let lacks = if coming.main_has_data {
            // GR1: pages need whole segments, which data leaves there from then on.
            let wanted = kept_of(coming);
            let free = self.count_free_in(state, at, wanted)?;
            u64::from(wanted.saturating_sub(free)) * segment
        } else {
            let apart = self.apart_with(coming, used);
            (state.promised + apart.reserve).saturating_sub(apart.free())
        };
        // What the old one holds counts as used where data is, if it gives no room any more.
        let old = &state.shares[0];
        let (Some(apart), true) = (&state.apart, !old.has_data) else { return Ok(lacks) };
        let all: u64 = old.numbers.clone().map(|it| capacity_of(coming, it)).sum();
        let gone = all.saturating_sub(apart.spare() + self.fronts_in(old.numbers.clone())?);
        let room = state.capacity.saturating_sub(self.taken(state) + self.spare(state));
        Ok(lacks.max((gone + state.reserve).saturating_sub(room)))
    }
}
