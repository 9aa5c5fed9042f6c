//! A device takes the place of a member: it gets every write from the first moment, and all that
//! was there before is copied to it, from the start of the pool to its end.
//!
//! # Invariants
//!
//! - JN1: What lies below the cursor is the same on the joining member as on the others, whatever
//!   was written since. A piece is copied while its range is held (RH1): a write before it went to
//!   the others and is read with it, a write after it goes to the joining member too.
//!
//! # Crashes
//!
//! The cursor is in the table of the labels, and what lies below it was flushed before. A copy goes
//! on from there. What a crash leaves of writes below the cursor is what it may leave of any
//! member: recovery writes home to the joining one as well.
//!
//! The superblocks of a member are its own, and are not copied.

use std::ops::Range;
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use format::members::{Layout, Member, MemberState};
use format::superblock::SUPERBLOCK_BYTES;
use runtime::planted::{self, Planted};

use super::Volume;
use super::set::{MemberSet, Slot};
use crate::convert::{to_u64, to_usize};
use crate::device::{DeviceError, Operation, Purpose, SharedBytes, SharedDevice};

/// Unit of the cursor, and what is copied while its range is held.
const PIECE_BYTES: u64 = 1 << 20;
/// Parts of the whole after which the cursor is written to the labels: a crash repeats one.
const CURSOR_PARTS: u64 = 128;

/// Why a device cannot take the place of a member.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// Only mirrors have members to replace.
    #[error("the pool lies on one device: there is nothing to copy a member from")]
    NotSeveral,
    /// Only mirrors can.
    #[error("members of a pool that lies as {kind} cannot be replaced by this version")]
    Layout {
        /// How it lies.
        kind: &'static str,
    },
    /// Name another.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Which was named.
        slot: usize,
    },
    /// Replace another first, or attach one that is missing.
    #[error(
        "without the member in slot {slot} too few have all that the pool holds: replace or attach \
         another first"
    )]
    Needed {
        /// Which was named.
        slot: usize,
    },
    /// Wait for it, or let it fail.
    #[error("the member in slot {slot} is joining already: wait until it has all")]
    Joins {
        /// Which one.
        slot: usize,
    },
    /// Give a larger device.
    #[error("{device}: {found_bytes} bytes, and a member has {needed_bytes}: give a larger device")]
    TooSmall {
        /// Its name.
        device: String,
        /// How large it is.
        found_bytes: u64,
        /// How large it must be.
        needed_bytes: u64,
    },
    /// Give another device.
    #[error(
        "{device}: its sectors have {found_bytes} bytes, and those of the pool {most_bytes}: give \
         a device with smaller sectors, or mount the pool with it in place"
    )]
    Sectors {
        /// Its name.
        device: String,
        /// Of the device.
        found_bytes: u32,
        /// Of the pool.
        most_bytes: u32,
    },
    /// What a member said.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// MiB that are copied.
    pub done_mib: u32,
    /// MiB in all.
    pub total_mib: u32,
}

impl Volume {
    /// Puts `device` in the place of the member in `slot`, which gets nothing more from now on. It
    /// is written to from now on, and is to be copied to by [`Volume::copy_step`].
    ///
    /// # Errors
    ///
    /// See [`ReplaceError`].
    pub fn begin_replace(
        &self,
        slot: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<(), ReplaceError> {
        let members = self.mirror()?;
        let info = device.info();
        let (name, found_bytes) = (info.name.clone(), info.size_bytes);
        let needed_bytes = self.geometry().member_bytes();
        if found_bytes < needed_bytes {
            return Err(ReplaceError::TooSmall { device: name, found_bytes, needed_bytes });
        }
        if info.sector_bytes > self.sector_bytes() {
            let (found_bytes, most_bytes) = (info.sector_bytes, self.sector_bytes());
            return Err(ReplaceError::Sectors { device: name, found_bytes, most_bytes });
        }
        let view = members.view();
        let old = view.get(slot).ok_or(ReplaceError::NoSlot { slot })?;
        if let Some(slot) = view.iter().position(|slot| slot.state == MemberState::Joining) {
            return Err(ReplaceError::Joins { slot });
        }
        if !members.can_lose(old) {
            return Err(ReplaceError::Needed { slot });
        }
        members.change(|slots, label| {
            let (Some(at), Some(member)) = (slots.get_mut(slot), label.members.get_mut(slot))
            else {
                return false;
            };
            *member = Member::new(id, found_bytes);
            if name.starts_with('/') {
                member.set_path(name.as_bytes());
            }
            *at = Slot::new(Some(device), MemberState::Joining);
            true
        })?;
        Ok(())
    }

    /// Returns the members, if each has all that the pool holds, at the same offset.
    ///
    /// # Errors
    ///
    /// [`ReplaceError::NotSeveral`] or [`ReplaceError::Layout`].
    pub fn mirror(&self) -> Result<&Arc<MemberSet>, ReplaceError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        match members.label().map(|label| label.layout) {
            Some(Layout::Mirror) => Ok(members),
            Some(other) => Err(ReplaceError::Layout { kind: other.word() }),
            None => Err(ReplaceError::NotSeveral),
        }
    }

    /// Returns the slot of the member that is joining, and how far its copy is.
    #[must_use]
    pub fn joining(&self) -> Option<(usize, Copied)> {
        let members = self.members()?;
        let view = members.view();
        let is_joining = |slot: &Slot| slot.state == MemberState::Joining && slot.device.is_some();
        let slot = view.iter().position(is_joining)?;
        let label = members.label()?;
        let done_mib = label.members.get(slot)?.copied_mib;
        Some((slot, Copied { done_mib, total_mib: total_mib(self.geometry()) }))
    }

    /// Copies at most `pieces` MiB, from MiB `from` on, to the joining member in `slot`. Returns
    /// where it goes on; the same if a write is at the next piece: to be tried again a little
    /// later. At the end the member is online.
    ///
    /// # Errors
    ///
    /// What a member said that is read from, or that the layout needs. A joining member that fails
    /// is no error: it is failed then.
    pub fn copy_step(&self, slot: usize, from: u32, pieces: u32) -> Result<u32, DeviceError> {
        let Some(members) = self.members() else { return Ok(from) };
        let total = total_mib(self.geometry());
        let mut at = from;
        while at < total && at - from < pieces {
            if !self.copy_piece(members, slot, at)? {
                break;
            }
            at += 1;
        }
        let part = (total / u32::try_from(CURSOR_PARTS).unwrap_or(1)).max(1);
        if at >= total {
            self.end_join(members, slot)?;
        } else if at / part != from / part {
            self.note_cursor(members, slot, at)?;
        }
        Ok(at)
    }

    /// Copies one MiB (JN1). Returns whether it could be held.
    fn copy_piece(
        &self,
        members: &Arc<MemberSet>,
        slot: usize,
        piece: u32,
    ) -> Result<bool, DeviceError> {
        let start = u64::from(piece) * PIECE_BYTES;
        let end = (start + PIECE_BYTES).min(copied_end(self.geometry()));
        for range in without_labels(start..end) {
            let hold = members.try_hold(range.clone());
            if hold.is_none() && !planted::is(Planted::CopiedWithoutHold) {
                return Ok(false);
            }
            let length = to_usize(range.end - range.start);
            let bytes = self.device().read(Purpose::Cleaner, range.start, length)?;
            let view = members.view();
            let joining = view.get(slot).filter(|slot| slot.state == MemberState::Joining);
            let Some(joining) = joining else { return Ok(false) };
            let (offset, data) = (range.start, vec![SharedBytes::from(bytes)]);
            let write =
                members.submit(joining, Purpose::Cleaner, Operation::Write { offset, data });
            members.together(&view, vec![(slot, write)], None).wait()?;
            drop(hold);
        }
        Ok(true)
    }

    /// Says in the labels how far the copy is, after it is durable.
    fn note_cursor(
        &self,
        members: &Arc<MemberSet>,
        slot: usize,
        copied_mib: u32,
    ) -> Result<(), DeviceError> {
        members.submit_flush(Purpose::Cleaner).wait()?;
        members.change(|_, label| {
            let member = label.members.get_mut(slot);
            if let Some(member) = member.filter(|it| it.state == MemberState::Joining) {
                member.copied_mib = copied_mib;
            }
            false
        })
    }

    /// The joining member has all: it is online from now on.
    fn end_join(&self, members: &Arc<MemberSet>, slot: usize) -> Result<(), DeviceError> {
        // CRASH: all that was copied is durable before the labels say so.
        members.submit_flush(Purpose::Cleaner).wait()?;
        members.change(|slots, _| {
            let Some(at) = slots.get_mut(slot) else { return false };
            let has_all = at.state == MemberState::Joining;
            if has_all {
                at.state = MemberState::Online;
            }
            has_all
        })
    }
}

/// Where the labels at the end of the smallest member begin.
pub(super) fn copied_end(geometry: &Geometry) -> u64 {
    geometry.device_bytes - 2 * SUPERBLOCK_AREA_BYTES
}

fn total_mib(geometry: &Geometry) -> u32 {
    let pieces = copied_end(geometry).div_ceil(PIECE_BYTES);
    u32::try_from(pieces).expect("the largest pool has 2^31 MiB")
}

/// Returns what of `range` is not a superblock at the front of a member.
fn without_labels(range: Range<u64>) -> Vec<Range<u64>> {
    let label_bytes = to_u64(SUPERBLOCK_BYTES);
    let between =
        [label_bytes..SUPERBLOCK_AREA_BYTES, SUPERBLOCK_AREA_BYTES + label_bytes..u64::MAX];
    let cut = |part: Range<u64>| part.start.max(range.start)..part.end.min(range.end);
    between.into_iter().map(cut).filter(|part| part.start < part.end).collect()
}
