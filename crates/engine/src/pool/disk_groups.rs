//! The disk groups of an open pool: what they are, and one that is added.

use format::disk_group::{DiskGroup, DiskGroupState};
use format::members::Layout;
use storage::volume::{AddGroupError, NewGroup};

use super::Pool;
use crate::error::{FsError, FsResult};

/// Why a disk group was not added.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DiskGroupError {
    /// See the cause.
    #[error(transparent)]
    Add(#[from] AddGroupError),
    /// The pool takes no changes, or its maps cannot be read.
    #[error(transparent)]
    Files(#[from] FsError),
}

/// What is told of a disk group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskGroupStatus {
    /// Its number.
    pub number: u8,
    /// How it lies on its members.
    pub layout: Layout,
    /// What it is to the pool.
    pub state: DiskGroupState,
    /// Slots of its members.
    pub slots: std::ops::Range<usize>,
    /// Whether it has metadata and the fixed regions, besides data.
    pub has_metadata: bool,
    /// Its allocation groups.
    pub allocation_groups: u32,
    /// Bytes that it uses of each member.
    pub member_bytes: u64,
    /// What it has room for.
    pub total_bytes: u64,
    /// What of it is in use.
    pub used_bytes: u64,
}

impl Pool {
    /// Returns the disk groups, by number.
    ///
    /// # Errors
    ///
    /// What is wrong with the maps of their groups: each is looked at.
    pub fn disk_groups(&self) -> FsResult<Vec<DiskGroupStatus>> {
        let (layout, width, added) = {
            let superblock = self.superblock.lock();
            (superblock.layout, superblock.width, superblock.added.clone())
        };
        let geometry = self.volume().geometry();
        let of = |group: Option<&DiskGroup>| -> FsResult<DiskGroupStatus> {
            let range = group.map_or(Some(0..geometry.group_count), |group| {
                let own = geometry.added.iter().find(|range| range.disk_group == group.number);
                own.map(|range| range.numbers())
            });
            let range = range.unwrap_or_default();
            let (total, used) = self.core.store.alloc.space_of(range.clone())?;
            let bytes = |fragments: u64| fragments << geometry.fragment_shift;
            Ok(DiskGroupStatus {
                number: group.map_or(0, |group| group.number),
                layout: group.map_or(layout, |group| group.layout),
                state: group.map_or(DiskGroupState::Online, |group| group.state),
                slots: group.map_or(0..width, |group| group.slots.clone()),
                has_metadata: group.is_none(),
                allocation_groups: range.end - range.start,
                member_bytes: group.map_or(geometry.member_bytes(), |group| group.member_bytes),
                total_bytes: bytes(total),
                used_bytes: bytes(used),
            })
        };
        std::iter::once(None).chain(added.iter().map(Some)).map(of).collect()
    }

    /// Adds a disk group. Its room counts, and data goes there, when this returns. The labels say
    /// so then, durably; a crash before leaves the pool with all of it or as it was.
    ///
    /// # Errors
    ///
    /// See [`DiskGroupError`].
    pub fn add_disk_group(&self, new: &NewGroup) -> Result<u8, DiskGroupError> {
        let journal = &self.core.store.journal;
        journal.check_alive()?;
        if self.is_read_only {
            let reason = "it was opened read-only".to_owned();
            return Err(FsError::ReadOnly { reason }.into());
        }
        let mut superblock = self.superblock.lock();
        let number = self.volume().add_group(&mut superblock, new).inspect_err(|error| {
            if let AddGroupError::Device(cause) = error {
                let _ = journal.fail(cause);
            }
        })?;
        drop(superblock);
        self.core.store.alloc.note_disk_groups()?;
        Ok(number)
    }
}
