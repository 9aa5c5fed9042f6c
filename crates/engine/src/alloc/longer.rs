//! Growth of a disk group while the pool is in use.
//!
//! Whole groups are added unused. A shorter last group gains segments. Its length in memory and in
//! the volume change under one lock, since segments counted by the one are looked up in the other.
//!
//! # Crashes
//!
//! The labels state the length first. The last group's descriptor and table entry follow in a
//! transaction, at once or at the next load
//! ([`Allocator::ensure_group`](crate::alloc::Allocator::ensure_group)). Nothing is allocated in
//! the added segments before that transaction, so the log's records of such allocations come after
//! it.

use super::GroupSpace;
use std::sync::Arc;

use format::geometry::Geometry;

use super::AllocatorState;
use super::apart::MetadataSpace;
use super::disk_groups::GroupsInUse;
use super::share::lengthen;
use crate::buffer::PageBuffer;
use crate::error::{FsError, FsResult};

/// Changes of groups in memory, due once the labels have changed.
#[derive(Debug, Default)]
struct GroupGrowth {
    /// Groups in use that gain segments, with their group table pages.
    groups: Vec<(u32, Option<Arc<PageBuffer>>)>,
    /// Fragments of used fronts of leaving groups.
    fronts: u64,
}

impl GroupSpace<'_> {
    /// Grows a disk group. `write` makes the geometry `coming` durable and visible. LOCK: the
    /// labels' lock is below the allocator's; the caller changes the disk groups alone
    /// ([`LayoutChangeGuard`](storage::volume::LayoutChangeGuard)).
    ///
    /// # Errors
    ///
    /// An error of `write`, or a failure to read the maps: nothing has changed here.
    pub(crate) fn become_longer<E: From<FsError>>(
        &self,
        coming: &Geometry,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        // Everything that can fail comes before the labels change.
        let longer = self.look_at_longer(&mut state, coming)?;
        write()?;
        self.note_longer(&mut state, &longer);
        Ok(())
    }

    fn look_at_longer(
        &self,
        state: &mut AllocatorState,
        coming: &Geometry,
    ) -> FsResult<GroupGrowth> {
        let geometry = self.geometry();
        let mut longer = GroupGrowth::default();
        let has_more = |number: &u32| geometry.segments_of(*number) < coming.segments_of(*number);
        for number in geometry.group_layout().groups().filter(has_more) {
            // An unreadable group keeps its old length until it is loaded.
            if self.is_initialised(number)? && self.can_give(state, number)? {
                longer.groups.push((number, self.table_buffer(number)?));
            }
        }
        longer.fronts = self.fronts_of_leaving(state);
        Ok(longer)
    }

    /// Must not fail, since the labels have changed: everything that can fail is in
    /// `look_at_longer`.
    fn note_longer(&self, state: &mut AllocatorState, longer: &GroupGrowth) {
        let geometry = self.geometry();
        for (number, table) in &longer.groups {
            if let Some(group) = state.groups.get_mut(number) {
                group.become_longer(geometry.segments_of(*number));
                self.describe_longer(*number, &group.descriptor, table.as_ref());
            }
        }
        lengthen(&mut state.shares, geometry);
        self.note(state, geometry, &GroupsInUse::of_fronts(longer.fronts));
        if let Some(MetadataSpace { used, pending, .. }) = state.apart {
            let apart = self.apart_with(geometry, used);
            state.apart = Some(MetadataSpace { pending, ..apart });
        }
    }
}
