//! Another disk group of an open pool becomes the main one: the fixed regions move there, and the
//! journal with them unless it has devices of its own.
//!
//! They lie at the same bytes of its members, for which it has had room since it was added
//! (`format::disk_group`, DG5). Nothing else moves: what the one that was the main disk group holds
//! stays there, and has the places that it had. Whoever calls sees to it that nobody writes the log
//! or a page home meanwhile, and that the pool's root page is in both disk groups.
//!
//! # Crashes
//!
//! The fixed regions are copied to the new members, and these are flushed. Then the labels of all
//! say which disk group is the main one. Whichever the newest label names, its fixed regions are
//! those of a pool at rest, the same in both, for nobody has written them meanwhile; they go on
//! there when the labels of all are durable. Where that fails the pool stops writing.
//!
//! What a recovery may read of other places is what it was: allocation groups keep their bytes.

use std::ops::Range;

use format::disk_group::{DiskGroup, DiskGroupState};
use format::geometry::Geometry;
use format::heartbeat::HEARTBEAT_OFFSET;
use format::members::{Layout, MemberState};
use format::page::PAGE_BYTES;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::composite::Composite;
use super::growth::{AddGroupError, Changing, changes_to_come};
use super::journal_apart::{Active, check_sectors, copy, copy_pieces};
use super::set::{Change, take_table};
use super::slot::{Slot, way_to_online};
use crate::convert::to_u64;
use crate::device::Purpose;

/// Why a disk group cannot become the main one. Nothing was changed, but after
/// [`MainError::Group`] with [`AddGroupError::Device`].
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MainError {
    /// Name another.
    #[error("there is no disk group {number}: `holdfast group list` shows them")]
    None {
        /// Which was named.
        number: u8,
    },
    /// Add one that has it.
    #[error(
        "disk group {number} has no room for the metadata: add one that has (holdfast group add \
         POOL KIND:DEVICE,...=data,metadata,journal)"
    )]
    NoRoom {
        /// Which was named.
        number: u8,
    },
    /// Wait until it is gone, or name another.
    #[error("disk group {number} leaves the pool: name another")]
    Leaving {
        /// Which was named.
        number: u8,
    },
    /// Wait for the job.
    #[error(
        "a disk group is being widened or narrowed: try again when that has ended (holdfast job \
         list)"
    )]
    Reshaped,
    /// Bring it back, or replace it.
    #[error("{path} is {state}: {}", way_to_online(.state))]
    Away {
        /// The device.
        path: String,
        /// What it is.
        state: &'static str,
    },
    /// See the cause.
    #[error(transparent)]
    Group(#[from] AddGroupError),
}

impl Changing<'_> {
    /// Returns the label of a pool whose main disk group is `number`.
    ///
    /// # Errors
    ///
    /// See [`MainError`]: nothing was written.
    pub fn plan_main(&self, label: &Superblock, number: u8) -> Result<Superblock, MainError> {
        let group = label.added.iter().find(|group| group.number == number);
        let group = group.ok_or(MainError::None { number })?;
        check(label, group)?;
        let mut coming = label.clone();
        coming.make_main(number).map_err(AddGroupError::from)?;
        Ok(coming)
    }

    /// Makes disk group `number` the main one: see the module's header. `active` is what a recovery
    /// would read of the journal; `superblock`, the current label, becomes what the labels say.
    ///
    /// # Errors
    ///
    /// See [`MainError`].
    pub fn make_main(
        &self,
        superblock: &mut Superblock,
        number: u8,
        active: &Active,
    ) -> Result<(), MainError> {
        let volume = self.volume();
        let mut parts = volume.parts_now(superblock);
        let edition = volume.next_edition(changes_to_come(superblock))?;
        let at = parts.iter().position(|part| part.disk_group == number);
        let (Some(at), Some(set)) = (at, volume.members()) else {
            return Err(MainError::None { number });
        };
        check_all_online(superblock, &set.all())?;
        let to = parts.remove(at);
        check_sectors(superblock, std::iter::once(to.composite.info().clone()))?;
        if !planted::is(Planted::FixedRegionsNotCopied) {
            let has_journal_apart = superblock.geometry.journal_group.is_some();
            self.copy_fixed(to.composite.as_ref(), has_journal_apart, active)?;
        }
        parts.insert(0, to);
        let mut made = Ok(());
        set.change(|slots, label| {
            let coming =
                check_all_online(label, slots).and_then(|()| self.plan_main(label, number));
            match coming {
                Ok(coming) => *label = coming,
                Err(error) => {
                    made = Err(error);
                    return Change::Nothing;
                }
            }
            // No map of what a member has missed is there: those go by parts of the pool.
            set.cut_anew(&label.geometry);
            Change::States
        })
        .map_err(AddGroupError::from)?;
        made?;
        if let Some(label) = set.label() {
            superblock.sequence = label.sequence;
            take_table(superblock, &label);
        }
        volume.set_parts(edition, parts, superblock);
        Ok(())
    }

    /// Copies the fixed regions behind the superblocks to the same bytes of another disk group.
    fn copy_fixed(
        &self,
        to: &dyn Composite,
        has_journal_apart: bool,
        active: &Active,
    ) -> Result<(), AddGroupError> {
        let device = self.volume().device().as_ref();
        let rest = behind_journal(self.volume().geometry());
        let copied = match has_journal_apart {
            true => Ok(()),
            false => copy(device, to, active),
        };
        copied
            .and_then(|()| copy_pieces(Purpose::Home, device, to, &[rest, heartbeat()]))
            .and_then(|()| match planted::is(Planted::MainBeforeFlush) {
                true => Ok(()),
                false => to.flush(Purpose::Home),
            })
            .map_err(AddGroupError::MainNotMoved)
    }
}

/// Whose the pool is: there may be that of who had it when this was the main disk group before.
fn heartbeat() -> Range<u64> {
    HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + to_u64(PAGE_BYTES)
}

/// The double-write area, and the group table.
fn behind_journal(geometry: &Geometry) -> Range<u64> {
    geometry.double_write_offset..geometry.groups_offset
}

fn check(label: &Superblock, group: &DiskGroup) -> Result<(), MainError> {
    let (geometry, number) = (&label.geometry, group.number);
    if !group.has_metadata || group.layout == Layout::RoundRobin {
        return Err(MainError::NoRoom { number });
    }
    if group.state != DiskGroupState::Online {
        return Err(MainError::Leaving { number });
    }
    if geometry.reshape.is_some() || geometry.last_groups.is_some() {
        return Err(MainError::Reshaped);
    }
    Ok(())
}

/// What a member has missed is noted by parts of the pool, which are others afterwards.
fn check_all_online(label: &Superblock, slots: &[Slot]) -> Result<(), MainError> {
    let is_away = |slot: &Slot| !matches!(slot.state, MemberState::Online | MemberState::Gone);
    match slots.iter().zip(&label.members).find(|(slot, _)| is_away(slot)) {
        Some((slot, member)) => {
            let path = String::from_utf8_lossy(&member.path).into_owned();
            Err(MainError::Away { path, state: slot.state.word() })
        }
        None => Ok(()),
    }
}
