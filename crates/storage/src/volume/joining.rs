//! A device takes the place of a member: it gets every write from the first moment, and what it
//! should have of all that was there before is made anew on it, from the start of the pool to its
//! end. How that is done of one piece the layout knows
//! ([`super::composite::Composite::begin_remake`]).
//!
//! # Invariants
//!
//! - JN1: What lies below the cursor is on the joining member what the others say that it should
//!   be, whatever was written since. A piece is made anew while its range is held (RH1): a write
//!   before it went to the others and is read with it, a write after it goes to the joining member
//!   too.
//! - JN2: Whoever walks says how a piece is kept, and sees to it that nothing there comes to be
//!   kept in another way before the piece is done.
//!
//! # Crashes
//!
//! The cursor is in the table of the labels, and what lies below it was flushed before. The walk
//! goes on from there. What a crash leaves of writes below the cursor is what it may leave of any
//! member: recovery writes home to the joining one as well, without looking at what it has.
//!
//! The superblocks of a member are its own, and are not copied. Decision 0066 has the argument for
//! stripes.

use std::collections::VecDeque;
use std::ops::Range;

use format::disk_group::{DiskGroup, GroupRange};
use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use format::members::{Member, MemberState};
use format::missed::part_bytes;
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use runtime::planted::{self, Planted};

use super::Volume;
use super::composite::{Choose, Remade, ToRemake};
use super::set::Change;
use super::slot::{Slot, Stay};
use crate::convert::to_u64;
use crate::device::{DeviceError, SharedDevice};

/// Unit of the cursor, and a piece of what all members hold alike.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that are read while one is put together and written.
const READ_AHEAD_MAX: usize = 2;

/// Why a device cannot take the place of a member.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// Only pools of several devices have members to replace.
    #[error(
        "the pool lies on one device, and there is no other copy: `device add --mirror` attaches \
         one, and the first can be removed then"
    )]
    NotSeveral,
    /// Name another.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Which was named.
        slot: usize,
    },
    /// Replace another first, or attach one that is missing.
    #[error(
        "without the member in slot {slot} too few have all that the pool holds: replace or attach \
         another first, or, where it holds what no other does, add the new device (holdfast device \
         add --mirror, or --stripe) and then remove the old one (holdfast device remove)"
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
    /// Choose again.
    #[error("the device is a spare of the pool no longer")]
    NoSpare,
    /// What a member said: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// How far a walk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// MiB of the pool that are done.
    pub done_mib: u32,
    /// MiB in all.
    pub total_mib: u32,
}

impl Volume {
    /// Puts `device` in the place of the member in `slot`, which gets nothing more from now on. It
    /// is written to from now on; [`Volume::remake_pieces`] is to make it whole, some pieces at a
    /// time, and then [`Volume::end_join`] says so.
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
        self.replace_with(slot, device, id, false)?;
        self.forget_failures(slot);
        Ok(())
    }

    /// The same with the spare called `id`, if the labels list it still: whoever took it off the
    /// list may give it to another pool at once.
    pub(super) fn replace_with_spare(
        &self,
        slot: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<(), ReplaceError> {
        self.replace_with(slot, device, id, true)
    }

    fn replace_with(
        &self,
        slot: usize,
        device: SharedDevice,
        id: [u8; 16],
        is_spare: bool,
    ) -> Result<(), ReplaceError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let (name, found_bytes) = (device.info().name.clone(), device.info().size_bytes);
        let mut refusal = None;
        // CRASH: its label is the last to be written (see `change_last`).
        members.change_last(Some(slot), |slots, label| {
            refusal = self.cannot_replace(slots, label, slot, &device).err();
            if is_spare && !label.spares.iter().any(|spare| spare.id == id) {
                refusal = Some(ReplaceError::NoSpare);
            }
            let (Some(at), Some(member)) = (slots.get_mut(slot), label.members.get_mut(slot))
            else {
                return Change::Nothing;
            };
            if refusal.is_some() {
                return Change::Nothing;
            }
            let id = if planted::is(Planted::ReplacedKeepsIdentity) { member.id } else { id };
            *member = Member::new(id, found_bytes);
            if name.starts_with('/') {
                member.set_path(name.as_bytes());
            }
            *at = Slot::new(Some(device), MemberState::Joining);
            label.spares.retain(|spare| spare.id != id);
            Change::States
        })?;
        refusal.map_or(Ok(()), Err)
    }

    /// Refuses a device that cannot take the place of the member in `slot`, by what the members and
    /// the label are now. Called with the label's lock held.
    fn cannot_replace(
        &self,
        slots: &[Slot],
        label: &Superblock,
        slot: usize,
        device: &SharedDevice,
    ) -> Result<(), ReplaceError> {
        self.check_fits(label, slot, device)?;
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let is_there = slots.get(slot).is_some_and(|slot| slot.state != MemberState::Gone);
        let found = members.of_slot(slot).filter(|_| is_there);
        let (set, _) = found.ok_or(ReplaceError::NoSlot { slot })?;
        if let Some(slot) = slots.iter().position(|it| it.state == MemberState::Joining) {
            return Err(ReplaceError::Joins { slot });
        }
        if !set.can_lose_of(slots, slot) {
            return Err(ReplaceError::Needed { slot });
        }
        Ok(())
    }

    /// Refuses a device that could be no member in `slot` of the pool whose label is `label`.
    pub(super) fn check_fits(
        &self,
        label: &Superblock,
        slot: usize,
        device: &SharedDevice,
    ) -> Result<(), ReplaceError> {
        let (info, needed_bytes) = (device.info(), label.member_bytes(slot));
        let device = info.name.clone();
        if info.size_bytes < needed_bytes {
            let found_bytes = info.size_bytes;
            return Err(ReplaceError::TooSmall { device, found_bytes, needed_bytes });
        }
        let most_bytes = self.sector_bytes().max(label.sector_bytes);
        if info.sector_bytes > most_bytes {
            let found_bytes = info.sector_bytes;
            return Err(ReplaceError::Sectors { device, found_bytes, most_bytes });
        }
        Ok(())
    }

    /// Returns the slot of the member that is joining, and how far it is.
    #[must_use]
    pub fn joining(&self) -> Option<(usize, Copied)> {
        let members = self.members()?;
        let is_joining = |slot: &Slot| slot.state == MemberState::Joining && slot.device.is_some();
        let slot = members.all().iter().position(is_joining)?;
        let label = members.label()?;
        let walked = self.walked_for(&label, slot);
        let first_mib = u32::try_from(walked.start / PIECE_BYTES).unwrap_or(u32::MAX);
        let done_mib = label.members.get(slot)?.copied_mib.max(first_mib);
        Some((slot, Copied { done_mib, total_mib: total_mib(walked.end) }))
    }

    /// Returns the stay of the member in `slot`; `None`: there is no such slot.
    #[must_use]
    pub fn stay_in(&self, slot: usize) -> Option<Stay> {
        Some(self.members()?.all().get(slot)?.stay())
    }

    /// Returns the bytes of the pool of which the member in `slot` has a share.
    fn walked_for(&self, label: &Superblock, slot: usize) -> Range<u64> {
        let geometry = self.geometry();
        let group = label.added.iter().find(|group| group.slots.contains(slot));
        if group.is_some_and(|group| group.has_journal) {
            let journal = geometry.journal_range();
            let is_planted = planted::is(Planted::JournalNotWalked);
            return if is_planted { journal.end..journal.end } else { journal };
        }
        let of_group = |group: &DiskGroup| {
            let is_own = |range: &&GroupRange| {
                let at = group.slots.position(slot);
                let own = range.lane.is_none_or(|lane| at == Some(usize::from(lane)));
                range.disk_group == group.number && own
            };
            geometry.added.iter().find(is_own)
        };
        let range = group.and_then(of_group).map(|range| geometry.bytes_of(range));
        range.unwrap_or(0..main_end(geometry))
    }

    /// Returns the bytes of the pool of which the member in `slot` has a share.
    #[must_use]
    pub fn walked(&self, slot: usize) -> Range<u64> {
        let label = self.members().and_then(|members| members.label());
        label.map_or(0..0, |label| self.walked_for(&label, slot))
    }

    /// Returns how many bytes of the pool the member in `slot`, which has come back, has missed;
    /// `None`: it gets everything.
    #[must_use]
    pub fn missed_bytes(&self, slot: usize) -> Option<u64> {
        let missed = self.members()?.all().get(slot)?.missed?;
        Some(u64::from(missed.count()) * part_bytes(self.geometry()))
    }

    /// Returns the piece of the pool that begins at byte `offset`, or has it: what is walked in one
    /// step. `None`: it lies behind the end, or there is one device.
    #[must_use]
    pub fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        self.composite()?.piece_at(offset)
    }

    /// Makes what the joining member in `slot` should have of pieces anew, one after the other
    /// (JN1), and calls `each` with what a piece holds. While one is put together and written,
    /// those behind it are read ([`READ_AHEAD_MAX`]). With each piece goes how it is kept (JN2).
    /// Of a page that members of a mirror have differently the copy is taken that `choose` says.
    /// Returns how many were made: fewer where a write is at the next, to be tried again a little
    /// later, or where the member is not joining any more.
    ///
    /// Ranges are held while `each` is called: it must wait for nobody.
    ///
    /// # Errors
    ///
    /// What a member said that gives nothing at all, or that the layout needs. A joining member
    /// that fails is no error: it is failed then.
    pub fn remake_pieces(
        &self,
        slot: usize,
        pieces: &[ToRemake],
        choose: &Choose<'_>,
        mut each: impl FnMut(usize, Remade),
    ) -> Result<usize, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(0) };
        let (mut left, mut ahead, mut made) = (pieces.iter(), VecDeque::new(), 0);
        loop {
            while ahead.len() <= READ_AHEAD_MAX
                && let Some(wanted) = left.next()
            {
                let hold = composite.try_hold(wanted.piece.clone());
                if hold.is_none() && !planted::is(Planted::CopiedWithoutHold) {
                    left = [].iter();
                    break;
                }
                ahead.push_back((hold, composite.begin_remake(slot, wanted, choose)));
            }
            let Some((hold, remaking)) = ahead.pop_front() else { return Ok(made) };
            let Some(remade) = remaking()? else { return Ok(made) };
            drop(hold);
            each(made, remade);
            made += 1;
        }
    }

    /// Says in the labels that all below byte `to` of the pool is done, after it is durable;
    /// nothing if another stay in `slot` has begun.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub fn note_walked(&self, (slot, stay): (usize, &Stay), to: u64) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        let Some((set, _)) = members.of_slot(slot) else { return Ok(()) };
        // CRASH: what lies below the cursor is durable before the labels say so.
        if !set.flushes_or_is_lost()? {
            return Ok(());
        }
        let ahead = if planted::is(Planted::CursorAhead) { PIECE_BYTES } else { 0 };
        let copied_mib = u32::try_from((to + ahead) / PIECE_BYTES).unwrap_or(u32::MAX);
        members.change(|slots, label| {
            let is_same = slots.get(slot).is_some_and(|at| at.stay() == *stay);
            let member = label.members.get_mut(slot).filter(|_| is_same);
            if let Some(member) = member.filter(|it| it.state == MemberState::Joining) {
                member.copied_mib = copied_mib;
                return Change::Table;
            }
            Change::Nothing
        })
    }

    /// The joining member has all: it is online from now on, unless another stay in `slot` has
    /// begun than `stay`: what was made is not of that one.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub fn end_join(&self, slot: usize, stay: &Stay) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        if !planted::is(Planted::OnlineBeforeFlush) {
            // CRASH: all that was made anew is durable before the labels say so.
            let Some((set, _)) = members.of_slot(slot) else { return Ok(()) };
            if !set.flushes_or_is_lost()? {
                return Ok(());
            }
        }
        members.change_last(Some(slot), |slots, _| {
            let is_same = |at: &&mut Slot| at.state == MemberState::Joining && at.stay() == *stay;
            let Some(at) = slots.get_mut(slot).filter(is_same) else { return Change::Nothing };
            (at.state, at.missed) = (MemberState::Online, None);
            Change::States
        })
    }
}

/// Where what is walked over ends: the labels at the end of the main disk group begin, or the last
/// group of another ends.
pub(super) fn copied_end(geometry: &Geometry) -> u64 {
    let ends = geometry.added.iter().map(|range| geometry.bytes_of(range).end);
    ends.max().unwrap_or(0).max(main_end(geometry))
}

/// Where what the main disk group has of the pool ends.
fn main_end(geometry: &Geometry) -> u64 {
    match geometry.main_first {
        0 => geometry.device_bytes - 2 * SUPERBLOCK_AREA_BYTES,
        _ => geometry.main_bytes().end,
    }
}

fn total_mib(end: u64) -> u32 {
    let pieces = end.div_ceil(PIECE_BYTES);
    u32::try_from(pieces).expect("the largest pool has 2^31 MiB")
}

/// Returns the MiB, or what is left of it, that begins at `offset` or has it, up to `end`.
pub(super) fn mib_at(offset: u64, end: u64) -> Option<Range<u64>> {
    (offset < end).then(|| offset..((offset / PIECE_BYTES + 1) * PIECE_BYTES).min(end))
}

/// Returns what of `range` is not a superblock at the front of a member.
pub(super) fn without_labels(range: Range<u64>) -> Vec<Range<u64>> {
    let label_bytes = to_u64(SUPERBLOCK_BYTES);
    let between =
        [label_bytes..SUPERBLOCK_AREA_BYTES, SUPERBLOCK_AREA_BYTES + label_bytes..u64::MAX];
    let cut = |part: Range<u64>| part.start.max(range.start)..part.end.min(range.end);
    between.into_iter().map(cut).filter(|part| part.start < part.end).collect()
}
