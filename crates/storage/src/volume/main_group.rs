//! Making another disk group of an open pool the main one. The fixed regions move there, and the
//! journal with them unless it has devices of its own.
//!
//! They lie at equal offsets of the target, with room reserved since its addition
//! (`format::disk_group`, DG5). The old main disk group keeps its allocation groups. The caller
//! keeps log and write-back idle, and has stored the root page of the pool in both disk groups.
//!
//! # Crashes
//!
//! The fixed regions are copied to the target and flushed. Then all labels name the target. Until
//! these are durable, the regions do not change and are equal in both groups, so the old and the
//! new label are right. On failure the pool stops writing. Allocation groups keep their bytes, as
//! recovery requires.

use std::ops::Range;

use format::disk_group::{DiskGroup, DiskGroupState};
use format::geometry::Geometry;
use format::heartbeat::HEARTBEAT_OFFSET;
use format::members::{Layout, MemberState};
use format::page::PAGE_BYTES;
use format::superblock::Superblock;
use runtime::planted;

use super::composite::Composite;
use super::growth::{AddGroupError, LayoutChangeGuard};
use super::journal_apart::{ActiveJournalRanges, check_sectors, copy, copy_pieces};
use super::set::{LabelChange, take_table};
use super::slot::{MemberSlot, way_to_online};
use crate::convert::to_u64;
use crate::device::IoPurpose;

/// Why a disk group cannot become the main one. Nothing was changed, except after
/// [`MainGroupError::Group`] with [`AddGroupError::Device`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MainGroupError {
    /// Name another disk group.
    #[error("there is no disk group {number}: `holdfast group list POOL` shows them")]
    None {
        /// Disk group.
        number: u8,
    },
    /// Add a disk group with room.
    #[error(
        "disk group {number} has no room for the metadata: add one that has (`holdfast group add \
         POOL KIND:NEW,...=data,metadata,journal`)"
    )]
    NoRoom {
        /// Disk group.
        number: u8,
    },
    /// Name another disk group, or wait until this one is gone.
    #[error("disk group {number} leaves the pool: name another")]
    Leaving {
        /// Disk group.
        number: u8,
    },
    /// Wait for the job.
    #[error(
        "a disk group is being widened or narrowed: try again when that has ended (`holdfast job \
         list POOL`)"
    )]
    Reshaped,
    /// Bring the device back, or replace it.
    #[error("{path} is {state}: {}", way_to_online(.state))]
    Away {
        /// Path of the device.
        path: String,
        /// State.
        state: &'static str,
    },
    /// See the cause.
    #[error(transparent)]
    Group(#[from] AddGroupError),
}

impl LayoutChangeGuard<'_> {
    /// Returns the label with disk group `number` as the main one.
    ///
    /// # Errors
    ///
    /// See [`MainGroupError`]. Nothing was written.
    pub fn plan_main(&self, label: &Superblock, number: u8) -> Result<Superblock, MainGroupError> {
        let group = label.added.iter().find(|group| group.number == number);
        let group = group.ok_or(MainGroupError::None { number })?;
        check(label, group)?;
        let mut coming = label.clone();
        coming.make_main(number).map_err(AddGroupError::from)?;
        Ok(coming)
    }

    /// Makes disk group `number` the main one. `active` are the ranges of the journal for recovery.
    /// Sets `superblock`, the current label, to the written one.
    ///
    /// # Errors
    ///
    /// See [`MainGroupError`].
    pub fn make_main(
        &self,
        superblock: &mut Superblock,
        number: u8,
        active: &ActiveJournalRanges,
    ) -> Result<(), MainGroupError> {
        let volume = self.volume();
        let mut parts = volume.membership().parts_now(superblock);
        let at = parts.iter().position(|part| part.disk_group == number);
        let (Some(at), Some(set)) = (at, volume.members()) else {
            return Err(MainGroupError::None { number });
        };
        check_all_online(superblock, &set.all())?;
        let to = parts.remove(at);
        check_sectors(superblock, std::iter::once(to.composite.info().clone()))?;
        let has_journal_apart = superblock.geometry.journal_group.is_some();
        self.copy_fixed(to.composite.as_ref(), has_journal_apart, active)?;
        parts.insert(0, to);
        let mut made = Ok(());
        set.change(|slots, label| {
            let coming =
                check_all_online(label, slots).and_then(|()| self.plan_main(label, number));
            match coming {
                Ok(coming) => *label = coming,
                Err(error) => {
                    made = Err(error);
                    return LabelChange::Nothing;
                }
            }
            // The size of parts changes, so no member may have a map of stale parts.
            set.cut_rebuild(&label.geometry);
            LabelChange::States
        })
        .map_err(AddGroupError::from)?;
        made?;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        volume.membership().set_parts(parts, superblock);
        Ok(())
    }

    /// Copies the fixed regions after the superblocks to equal offsets of `to`.
    fn copy_fixed(
        &self,
        to: &dyn Composite,
        has_journal_apart: bool,
        active: &ActiveJournalRanges,
    ) -> Result<(), AddGroupError> {
        let device = self.volume().device().as_ref();
        let rest = behind_journal(self.volume().geometry());
        let copied = match has_journal_apart {
            true => Ok(()),
            false => copy(device, to, active),
        };
        copied
            .and_then(|()| copy_pieces(IoPurpose::Home, device, to, &[rest, heartbeat()]))
            .and_then(
                |()| if planted!(MainBeforeFlush) { Ok(()) } else { to.flush(IoPurpose::Home) },
            )
            .map_err(AddGroupError::MainNotMoved)
    }
}

/// Returns the range of the heartbeat, which may be old in a target that was the main group before.
fn heartbeat() -> Range<u64> {
    HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + to_u64(PAGE_BYTES)
}

fn behind_journal(geometry: &Geometry) -> Range<u64> {
    geometry.double_write_offset..geometry.groups_offset
}

fn check(label: &Superblock, group: &DiskGroup) -> Result<(), MainGroupError> {
    let (geometry, number) = (&label.geometry, group.number);
    if !group.has_metadata || group.layout == Layout::RoundRobin {
        return Err(MainGroupError::NoRoom { number });
    }
    if group.state != DiskGroupState::Online {
        return Err(MainGroupError::Leaving { number });
    }
    if geometry.reshape.is_some() || geometry.last_groups.is_some() {
        return Err(MainGroupError::Reshaped);
    }
    Ok(())
}

/// Refuses absent members: the size of parts changes, which would make their maps wrong.
fn check_all_online(label: &Superblock, slots: &[MemberSlot]) -> Result<(), MainGroupError> {
    let is_away =
        |slot: &MemberSlot| !matches!(slot.state, MemberState::Online | MemberState::Gone);
    match slots.iter().zip(&label.members).find(|(slot, _)| is_away(slot)) {
        Some((slot, member)) => {
            let path = String::from_utf8_lossy(&member.path).into_owned();
            Err(MainGroupError::Away { path, state: slot.state.word() })
        }
        None => Ok(()),
    }
}
