//! A disk group becomes longer while the pool is in use.
//!
//! Its allocation groups stay as they are, and new ones come into being when they are first needed.
//! But the last of them may have been shorter than the others, and has more segments from then on.
//! What memory has of it, and what the volume says of its length, change under one lock: whoever
//! counts segments by the one looks them up in the other.
//!
//! # Crashes
//!
//! The labels say first how long the disk group is. What the descriptor of its last group says, and
//! the group table, follows in a transaction: at once, or after a crash when the group is loaded
//! again ([`Allocator::ensure_group`]). Nothing lies in the segments between before that
//! transaction: those that speak of them come behind it in the log.

use std::sync::Arc;

use format::geometry::Geometry;

use super::apart::Apart;
use super::disk_groups::Found;
use super::share::lengthen;
use super::{Allocator, State};
use crate::buffer::Buffer;
use crate::error::{FsError, FsResult};

/// What is to be changed of groups in memory, once the labels say so.
#[derive(Debug, Default)]
struct Longer {
    /// Groups in use that have more segments, with their pages of the group table.
    groups: Vec<(u32, Option<Arc<Buffer>>)>,
    /// What the fronts take of disk groups that leave, in fragments.
    fronts: u64,
}

impl Allocator {
    /// Asks `write` to make durable, and to show, that the pool has the geometry `coming`, in which
    /// one disk group is longer; its room counts from then on. The lock is held meanwhile. LOCK:
    /// that of the labels is below it; whoever calls changes the disk groups alone
    /// ([`storage::volume::Changing`]).
    ///
    /// # Errors
    ///
    /// What `write` says, or a failure to read the maps: nothing was changed here.
    pub(crate) fn become_longer<E: From<FsError>>(
        &self,
        coming: &Geometry,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let mut state = self.state.lock();
        // Whatever can fail is done before the labels say so.
        let longer = self.look_at_longer(&mut state, coming)?;
        write()?;
        self.note_longer(&mut state, &longer);
        Ok(())
    }

    fn look_at_longer(&self, state: &mut State, coming: &Geometry) -> FsResult<Longer> {
        let geometry = self.geometry();
        let mut longer = Longer::default();
        let has_more = |number: &u32| geometry.segments_of(*number) < coming.segments_of(*number);
        for number in geometry.groups().filter(has_more) {
            // One that cannot be read is not in memory, and has its old length until it is.
            if self.is_initialised(number)? && self.can_give(state, number)? {
                longer.groups.push((number, self.table_buffer(number)?));
            }
        }
        longer.fronts = self.fronts_of_leaving(state);
        Ok(longer)
    }

    /// It cannot fail: the labels say so already.
    fn note_longer(&self, state: &mut State, longer: &Longer) {
        let geometry = self.geometry();
        for (number, table) in &longer.groups {
            if let Some(group) = state.groups.get_mut(number) {
                group.become_longer(geometry.segments_of(*number));
                self.describe_longer(*number, &group.descriptor, table.as_ref());
            }
        }
        lengthen(&mut state.shares, geometry);
        self.note(state, geometry, &Found::of_fronts(longer.fronts));
        if let Some(Apart { used, pending, .. }) = state.apart {
            let apart = self.apart_with(geometry, used);
            state.apart = Some(Apart { pending, ..apart });
        }
    }
}
