//! Replacing a member. The replacement gets every write at once. A rebuild walks from the start of
//! the pool to its end, in pieces ([`super::composite::Composite::piece_at`]).
//!
//! # Invariants
//!
//! - JN1: Below the cursor the joining member stays up to date with the others. A piece is rebuilt
//!   while its range is held (RH1), so the rebuild reads every earlier write, and every later write
//!   goes to the joining member too.
//! - JN2: The caller names the redundancy of a piece, and ensures that it does not change during
//!   the rebuild of the piece.
//!
//! # Crashes
//!
//! The cursor is in the labels, and everything below it was flushed before, so the walk resumes
//! there. Writes below the cursor may be torn as on any member: recovery rewrites home locations on
//! the joining member too.
//!
//! Each member has superblocks of its own, which are not copied. Decision 0066 has the argument for
//! stripes.

use super::Membership;
use std::collections::VecDeque;
use std::ops::Range;

use format::disk_group::{DiskGroup, GroupRange};
use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use format::members::{Layout, Member, MemberState};
use format::missed::part_bytes;
use format::superblock::{SUPERBLOCK_BYTES, Superblock};
use runtime::planted;

use super::composite::{Choose, RebuildRequest, RebuiltPiece};
use super::set::LabelChange;
use super::slot::{MemberSlot, MemberTenure};
use crate::convert::to_u64;
use crate::device::{DeviceError, SharedDevice};

/// Unit of the cursor, and of pieces outside stripes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;
const READ_AHEAD_MAX: usize = 2;

/// Why a device cannot replace a member.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// Only pools of several devices have members to replace.
    #[error(
        "the pool lies on one device, and there is no other copy: `holdfast device add POOL NEW \
         --mirror OLD` attaches one, and `holdfast device remove POOL OLD --accept-no-redundancy` \
         removes the old one then"
    )]
    NotSeveral,
    /// Name another slot.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Slot.
        slot: usize,
    },
    /// Replace another member first, or bring one back.
    #[error("without the member in slot {slot} too few have all that the pool holds: {way}")]
    Needed {
        /// Slot.
        slot: usize,
        /// What to do instead, by the kind of its disk group.
        way: &'static str,
    },
    /// Wait until the rebuild of the joining member is complete.
    #[error("the member in slot {slot} is joining already: wait until it has all")]
    Joins {
        /// Slot.
        slot: usize,
    },
    /// Give a larger device.
    #[error("{device}: {found_bytes} bytes, and a member has {needed_bytes}: give a larger device")]
    TooSmall {
        /// Device name.
        device: String,
        /// Bytes of the device.
        found_bytes: u64,
        /// Bytes required.
        needed_bytes: u64,
    },
    /// Give another device.
    #[error(
        "{device}: its sectors have {found_bytes} bytes, and those of the pool {most_bytes}: give \
         a device with smaller sectors, or mount the pool with it in place"
    )]
    Sectors {
        /// Device name.
        device: String,
        /// Sector bytes of the device.
        found_bytes: u32,
        /// Sector bytes of the pool.
        most_bytes: u32,
    },
    /// Choose another spare.
    #[error("the device is a spare of the pool no longer")]
    NoSpare,
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl ReplaceError {
    /// Returns the refusal for the member in `slot`, which holds what no other does.
    #[must_use]
    pub fn needed(label: &Superblock, slot: usize) -> ReplaceError {
        let added = label.added.iter().find(|group| group.slots.contains(slot));
        let way = match added.map_or(label.layout, |group| group.layout) {
            Layout::Mirror | Layout::Raid5 { .. } => {
                "bring the others back (`holdfast device online POOL DEVICE`) or replace them first"
            }
            Layout::Single => {
                "add a copy (`holdfast device add POOL NEW --mirror OLD`), and remove the old one \
                 when that has all (`holdfast device remove POOL OLD --accept-no-redundancy`)"
            }
            Layout::RoundRobin => "`holdfast device remove POOL OLD` moves its files to the others",
            Layout::Stripe { .. } => {
                "add a device (`holdfast device add POOL NEW --stripe OLD`), and remove the old \
                 one when its job has ended (`holdfast device remove POOL OLD`)"
            }
        };
        ReplaceError::Needed { slot, way }
    }
}

/// Progress of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberCopyProgress {
    /// MiB of the pool that are done.
    pub done_mib: u32,
    /// MiB in all.
    pub total_mib: u32,
}

impl Membership<'_> {
    /// Replaces the member in `slot` by `device`, which gets every write from now on, instead of
    /// the old member.
    /// [`Membership::rebuild_pieces`](crate::volume::membership::Membership::rebuild_pieces)
    /// rebuilds it, and [`Membership::end_join`](crate::volume::membership::Membership::end_join)
    /// makes it online.
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

    /// Replaces a member by spare `id`, if the label still lists that: otherwise it may be in
    /// another pool.
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
        // CRASH: the label of the replacement is written last (see `change_last`).
        members.change_last(Some(slot), |slots, label| {
            refusal = self.cannot_replace(slots, label, slot, &device).err();
            if is_spare && !label.spares.iter().any(|spare| spare.id == id) {
                refusal = Some(ReplaceError::NoSpare);
            }
            let (Some(at), Some(member)) = (slots.get_mut(slot), label.members.get_mut(slot))
            else {
                return LabelChange::Nothing;
            };
            if refusal.is_some() {
                return LabelChange::Nothing;
            }
            let id = if planted!(ReplacedKeepsIdentity) { member.id } else { id };
            *member = Member::new(id, found_bytes);
            if name.starts_with('/') {
                member.set_path(name.as_bytes());
            }
            *at = MemberSlot::new(Some(device), MemberState::Joining);
            label.spares.retain(|spare| spare.id != id);
            LabelChange::States
        })?;
        refusal.map_or(Ok(()), Err)
    }

    /// Refuses an unfit replacement. LOCK: under the label's lock.
    fn cannot_replace(
        &self,
        slots: &[MemberSlot],
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
            return Err(ReplaceError::needed(label, slot));
        }
        Ok(())
    }

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

    /// Returns the slot of the joining member, and its progress.
    #[must_use]
    pub fn joining(&self) -> Option<(usize, MemberCopyProgress)> {
        let members = self.members()?;
        let is_joining =
            |slot: &MemberSlot| slot.state == MemberState::Joining && slot.device.is_some();
        let slot = members.all().iter().position(is_joining)?;
        let label = members.label()?;
        let walked = self.walked_for(&label, slot);
        let first_mib = u32::try_from(walked.start / PIECE_BYTES).unwrap_or(u32::MAX);
        let done_mib = label.members.get(slot)?.copied_mib.max(first_mib);
        Some((slot, MemberCopyProgress { done_mib, total_mib: total_mib(walked.end) }))
    }

    /// Returns which member is in `slot`. `None` past the last slot.
    #[must_use]
    pub fn stay_in(&self, slot: usize) -> Option<MemberTenure> {
        Some(self.members()?.all().get(slot)?.stay())
    }

    /// Returns the range that a rebuild of the member in `slot` walks.
    fn walked_for(&self, label: &Superblock, slot: usize) -> Range<u64> {
        let geometry = self.geometry();
        let group = label.added.iter().find(|group| group.slots.contains(slot));
        if group.is_some_and(|group| group.has_journal) {
            let journal = geometry.group_layout().journal_range();
            return if planted!(JournalNotWalked) { journal.end..journal.end } else { journal };
        }
        let of_group = |group: &DiskGroup| {
            let is_own = |range: &&GroupRange| {
                let at = group.slots.position(slot);
                let own = range.lane.is_none_or(|lane| at == Some(usize::from(lane)));
                range.disk_group == group.number && own
            };
            geometry.added.iter().find(is_own)
        };
        let range = group.and_then(of_group).map(|range| geometry.group_layout().bytes_of(range));
        range.unwrap_or(0..main_end(geometry))
    }

    /// Returns the range that a rebuild of the member in `slot` walks.
    #[must_use]
    pub fn walked(&self, slot: usize) -> Range<u64> {
        let label = self.members().and_then(|members| members.label());
        label.map_or(0..0, |label| self.walked_for(&label, slot))
    }

    /// Returns the stale bytes of the returning member in `slot`. `None` for a full rebuild.
    #[must_use]
    pub fn missed_bytes(&self, slot: usize) -> Option<u64> {
        let missed = self.members()?.all().get(slot)?.missed?;
        Some(u64::from(missed.count()) * part_bytes(self.geometry()))
    }

    /// Returns the piece at byte `offset` of the pool. `None` past the end, and on one device.
    #[must_use]
    pub fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        self.composite()?.piece_at(offset)
    }

    /// Rebuilds pieces for the joining member in `slot`, in order (JN1), with [`READ_AHEAD_MAX`]
    /// pieces of readahead, and passes each to `each`. `choose` selects among differing mirror
    /// copies. Returns the number done, which is smaller if a write to the next is in flight (retry
    /// later), or if the member is no longer joining.
    ///
    /// LOCK: `each` is called while the next pieces are held, so it must not block.
    ///
    /// # Errors
    ///
    /// A needed member failed. A failed joining member is no error.
    pub fn rebuild_pieces(
        &self,
        slot: usize,
        pieces: &[RebuildRequest],
        choose: &Choose<'_>,
        mut each: impl FnMut(usize, RebuiltPiece),
    ) -> Result<usize, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(0) };
        let (mut left, mut ahead, mut made) = (pieces.iter(), VecDeque::new(), 0);
        loop {
            while ahead.len() <= READ_AHEAD_MAX
                && let Some(wanted) = left.next()
            {
                let hold = composite.try_hold(wanted.piece.clone());
                if hold.is_none() && !planted!(CopiedWithoutHold) {
                    left = [].iter();
                    break;
                }
                ahead.push_back((hold, composite.begin_rebuild(slot, wanted, choose)));
            }
            let Some((hold, remaking)) = ahead.pop_front() else { return Ok(made) };
            let Some(rebuilt) = remaking()? else { return Ok(made) };
            drop(hold);
            each(made, rebuilt);
            made += 1;
        }
    }

    /// Flushes, and then advances the cursor in the labels to byte `to` of the pool, unless another
    /// `stay` ([`MemberTenure`]) has begun in the slot.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub fn note_walked(
        &self,
        (slot, stay): (usize, &MemberTenure),
        to: u64,
    ) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        let Some((set, _)) = members.of_slot(slot) else { return Ok(()) };
        // CRASH: everything below the cursor is durable before the labels name it.
        if !set.flushes_or_is_lost()? {
            return Ok(());
        }
        let cursor = if planted!(CursorAhead) { to + PIECE_BYTES } else { to };
        let copied_mib = u32::try_from(cursor / PIECE_BYTES).unwrap_or(u32::MAX);
        members.change(|slots, label| {
            let is_same = slots.get(slot).is_some_and(|at| at.stay() == *stay);
            let member = label.members.get_mut(slot).filter(|_| is_same);
            if let Some(member) = member.filter(|it| it.state == MemberState::Joining) {
                member.copied_mib = copied_mib;
                return LabelChange::Table;
            }
            LabelChange::Nothing
        })
    }

    /// Puts the rebuilt member online, unless another `stay` has begun in the slot.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub fn end_join(&self, slot: usize, stay: &MemberTenure) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        // CRASH: the rebuild is durable before the labels call the member online.
        let Some((set, _)) = members.of_slot(slot) else { return Ok(()) };
        if !planted!(OnlineBeforeFlush) && !set.flushes_or_is_lost()? {
            return Ok(());
        }
        members.change_last(Some(slot), |slots, _| {
            let is_same =
                |at: &&mut MemberSlot| at.state == MemberState::Joining && at.stay() == *stay;
            let Some(at) = slots.get_mut(slot).filter(is_same) else { return LabelChange::Nothing };
            (at.state, at.missed) = (MemberState::Online, None);
            LabelChange::States
        })
    }
}

/// Returns the end of a walk: of the last added group, or of the main disk group without its
/// labels.
pub(super) fn copied_end(geometry: &Geometry) -> u64 {
    let ends = geometry.added.iter().map(|range| geometry.group_layout().bytes_of(range).end);
    ends.max().unwrap_or(0).max(main_end(geometry))
}

fn main_end(geometry: &Geometry) -> u64 {
    match geometry.main_first {
        0 => geometry.device_bytes - 2 * SUPERBLOCK_AREA_BYTES,
        _ => geometry.group_layout().main_bytes().end,
    }
}

fn total_mib(end: u64) -> u32 {
    let pieces = end.div_ceil(PIECE_BYTES);
    u32::try_from(pieces).expect("the largest pool has 2^31 MiB")
}

pub(super) fn mib_at(offset: u64, end: u64) -> Option<Range<u64>> {
    (offset < end).then(|| offset..((offset / PIECE_BYTES + 1) * PIECE_BYTES).min(end))
}

/// Returns `range` without the superblock copies at the front.
pub(super) fn without_labels(range: Range<u64>) -> Vec<Range<u64>> {
    let label_bytes = to_u64(SUPERBLOCK_BYTES);
    let between =
        [label_bytes..SUPERBLOCK_AREA_BYTES, SUPERBLOCK_AREA_BYTES + label_bytes..u64::MAX];
    let cut = |part: Range<u64>| part.start.max(range.start)..part.end.min(range.end);
    between.into_iter().map(cut).filter(|part| part.start < part.end).collect()
}
