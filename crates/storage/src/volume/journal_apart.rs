//! Moving the journal of an open pool to devices of its own, or back to the main disk group. The
//! caller keeps the log idle, and passes the ranges that recovery would read.
//!
//! # Crashes
//!
//! *To devices of its own*: as in `growth.rs`. Between the states *adding* and *online* the ranges
//! are copied and flushed. From the first label with *online* on, an open reads the journal there,
//! and both places are equal. A failure before that is undone while the log is idle: no open may
//! find *online* once the log has gone on in the old place.
//!
//! *Back*: the ranges are copied to the main disk group and flushed. Then the remaining labels drop
//! the disk group of the journal, and its own labels are blanked. If its last device has failed,
//! the ranges come from memory (`docs/decisions/0105`).
//!
//! Other contents of the target ring are recognized as foreign or older: a record has the id of its
//! pool and its position, and positions only grow.

use std::ops::Range;
use std::sync::Arc;

use format::disk_group::{DiskGroup, may_have_journal};
use format::members::Layout;
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::{if_planted, planted};

use super::composite::Composite;
use super::growth::{AddGroupError, DiskGroupSpec, LayoutChangeGuard};
use super::set::MemberSet;
use super::{Membership, Volume};
use crate::convert::to_usize;
use crate::device::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, SharedBytes,
};

/// The ranges of the journal, in bytes of the pool, that recovery reads.
#[derive(Clone, Debug, Default)]
pub struct ActiveJournalRanges {
    /// Heads and records.
    pub read: Vec<Range<u64>>,
    /// The range behind the end of the log, as long as a chunk. It must not look like log.
    pub behind: Vec<Range<u64>>,
}

const PIECE_BYTES: u64 = 1 << 20;
/// Writes in flight while a lost journal is rewritten.
const WRITTEN_AT_ONCE: usize = 16;

impl LayoutChangeGuard<'_> {
    /// Adds `new` as the disk group of the journal, and returns its number. `active` are the ranges
    /// for recovery, which are in memory too ([`Volume::note_journal_kept`]). Sets `superblock`,
    /// the current label, to the written one.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]. Only after [`AddGroupError::Device`] must the pool stop writing,
    /// before the log goes on.
    pub fn add_journal(
        &self,
        superblock: &mut Superblock,
        new: &DiskGroupSpec,
        active: &ActiveJournalRanges,
    ) -> Result<u8, AddGroupError> {
        let plan = |superblock: &Superblock| Ok((Membership::plan_group(superblock, new)?, None));
        self.add_planned(superblock, new, plan, |addition| {
            let to = addition.new_parts().first();
            let to = to.filter(|_| !planted!(JournalNotCopied));
            let from = self.volume().device().as_ref();
            let copied = to.map_or(Ok(()), |to| copy(from, to.composite.as_ref(), active));
            copied.map_err(AddGroupError::NewDevice)?;
            // Before the first request to the members, in case it fails.
            addition.new_parts().iter().for_each(|part| part.composite.members().note_kept());
            Ok(())
        })
    }

    /// Moves the journal back to the main disk group. `active` are the ranges for recovery.
    ///
    /// # Errors
    ///
    /// See [`LayoutChangeGuard::add_journal`].
    pub fn take_journal_back(&self, active: &ActiveJournalRanges) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let parts = volume.now().parts.clone();
        let number = volume.geometry().journal_group;
        let (Some(first), Some(number)) = (parts.first(), number) else { return Ok(()) };
        let copied = copy(volume.device().as_ref(), first.composite.as_ref(), active);
        copied.map_err(AddGroupError::JournalNotMoved)?;
        volume.membership().take_group_out_with(self, number)
    }

    /// Writes the log of a lost journal to the main disk group. `log` is all that recovery would
    /// read.
    ///
    /// # Errors
    ///
    /// See [`LayoutChangeGuard::add_journal`]. After any error the pool must stop writing.
    pub fn rebuild_journal(&self, log: Vec<DeviceOperation>) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let number = volume.geometry().journal_group;
        let parts = volume.now().parts.clone();
        let (Some(first), Some(number)) = (parts.first(), number) else { return Ok(()) };
        if_planted!(LostLabelledFirst, volume.membership().take_group_out_with(self, number)?);
        let mut log = log.into_iter();
        loop {
            let some: Vec<DeviceOperation> = log.by_ref().take(WRITTEN_AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let tickets = first.composite.submit_all(IoPurpose::Journal, some);
            tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        }
        // CRASH: flushes all disk groups, because recovery from this log relies on earlier writes
        // to home locations.
        volume.flush(IoPurpose::Home)?;
        volume.membership().take_group_out_with(self, number)
    }
}

impl Volume {
    fn journal_set(&self) -> Option<&Arc<MemberSet>> {
        let number = self.geometry().journal_group?;
        let mut parts = self.now().parts.iter();
        Some(parts.find(|part| part.disk_group == number)?.composite.members())
    }

    /// Notes that memory holds the journal too, so that the pool survives the loss of its devices.
    pub fn note_journal_kept(&self) {
        if let Some(set) = self.journal_set() {
            set.note_kept();
        }
    }

    /// Whether a journal that is in memory too has lost its last device. Commits that are durable
    /// only there do not count.
    #[must_use]
    pub fn has_lost_journal(&self) -> bool {
        self.journal_set().is_some_and(|set| set.is_lost())
    }

    /// Returns the device names of a journal on devices of its own.
    #[must_use]
    pub fn journal_devices(&self) -> Vec<String> {
        let slots = self.journal_set().map(|set| set.view());
        let slots = slots.iter().flat_map(|view| view.iter());
        slots.filter_map(|slot| Some(slot.device.as_ref()?.info().name.clone())).collect()
    }
}

/// Copies `active` to equal offsets of a disk group, durably, and zeros the range behind the end.
pub(super) fn copy(
    from: &dyn Device,
    to: &dyn Composite,
    active: &ActiveJournalRanges,
) -> Result<(), DeviceError> {
    copy_pieces(IoPurpose::Journal, from, to, &active.read)?;
    for range in &active.behind {
        let zeros = AlignedBuffer::zeroed(to_usize(range.end - range.start));
        let data = vec![SharedBytes::from(zeros)];
        let write = DeviceOperation::Write { offset: range.start, data };
        to.submit(IoPurpose::Journal, write).wait()?;
    }
    to.flush(IoPurpose::Journal)
}

pub(super) fn copy_pieces(
    purpose: IoPurpose,
    from: &dyn Device,
    to: &dyn Composite,
    ranges: &[Range<u64>],
) -> Result<(), DeviceError> {
    for range in ranges {
        for offset in (range.start..range.end).step_by(to_usize(PIECE_BYTES)) {
            let length = to_usize(PIECE_BYTES.min(range.end - offset));
            let data = vec![SharedBytes::from(from.read(purpose, offset, length)?)];
            to.submit(purpose, DeviceOperation::Write { offset, data }).wait()?;
        }
    }
    Ok(())
}

/// Refuses sectors larger than those of the pool, because log writes fill sectors of that size.
pub(super) fn check_sectors(
    superblock: &Superblock,
    mut devices: impl Iterator<Item = DeviceInfo>,
) -> Result<(), AddGroupError> {
    let most_bytes = superblock.sector_bytes;
    match devices.find(|info| info.sector_bytes > most_bytes) {
        Some(DeviceInfo { name: device, sector_bytes: found_bytes, .. }) => {
            Err(AddGroupError::JournalSectors { device, found_bytes, most_bytes })
        }
        None => Ok(()),
    }
}

/// Plans a disk group for the journal, by its smallest device.
pub(super) fn plan_journal(
    superblock: &Superblock,
    layout: Layout,
    (number, slots): (u8, Slots),
    smallest: &DeviceInfo,
) -> Result<DiskGroup, AddGroupError> {
    if let Some(group) = superblock.added.iter().find(|group| group.has_journal) {
        return Err(AddGroupError::Journal { number: group.number });
    }
    if !may_have_journal(layout) {
        return Err(AddGroupError::JournalLayout { kind: layout.word() });
    }
    let (device, found_bytes) = (smallest.name.clone(), smallest.size_bytes);
    let needed_bytes = superblock.geometry.group_layout().journal_member_bytes();
    let plan = superblock.geometry.group_layout().plan_journal(number, layout, slots, found_bytes);
    plan.ok_or(AddGroupError::JournalTooSmall { device, found_bytes, needed_bytes })
}
