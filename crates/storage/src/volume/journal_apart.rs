//! The journal of an open pool moves to devices of its own, or back to the main disk group.
//!
//! Whoever calls sees to it that nobody writes the log meanwhile, and says which bytes of the pool
//! a recovery would read of it.
//!
//! # Crashes
//!
//! To devices of their own: the labels say *adding*, as for any disk group (`growth.rs`); the new
//! members get a label; then what a recovery would read is copied to them and flushed, and the
//! labels of all say *online*. From the first label that says so on the journal is read there, and
//! it is the same in both places, for nobody has written meanwhile. What goes wrong before is taken
//! back, also while nobody writes: a label that says *online* must not be found by an open after
//! the log has gone on in the old place.
//!
//! Back: what a recovery would read is copied to the main disk group and flushed, then the labels
//! of all that remain are without the disk group, then its own are blanked.
//!
//! Where the last device of the journal has failed, what a recovery would read comes from memory
//! instead, and nothing is written to that device any more (`docs/decisions/0105`).
//!
//! What else lies in the ring where it goes to is of another pool, or older: a record tells its
//! pool and its position, and positions only rise.

use std::ops::Range;
use std::sync::Arc;

use format::disk_group::{DiskGroup, may_have_journal};
use format::members::Layout;
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::composite::Composite;
use super::growth::{AddGroupError, Changing, NewGroup};
use super::set::MemberSet;
use crate::convert::to_usize;
use crate::device::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, Operation, Purpose, SharedBytes,
};

/// The bytes of the pool that a recovery reads of the journal.
#[derive(Clone, Debug, Default)]
pub struct Active {
    /// Its heads, and its records.
    pub read: Vec<Range<u64>>,
    /// Behind its end, as far as a chunk reaches: nothing of the log may seem to be there.
    pub behind: Vec<Range<u64>>,
}

/// What is copied at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Writes of a journal that is made anew that are in flight at one time.
const WRITTEN_AT_ONCE: usize = 16;

impl Changing<'_> {
    /// Makes `new` the disk group that has the journal: see the module's header. `active` is
    /// what a recovery would read of it, and memory has it ([`Volume::note_journal_kept`]).
    /// `superblock`, the current label, becomes what the labels say. Returns the number of the disk
    /// group.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]; only after [`AddGroupError::Device`] must the pool stop writing, and
    /// before anybody writes the log.
    pub fn add_journal(
        &self,
        superblock: &mut Superblock,
        new: &NewGroup,
        active: &Active,
    ) -> Result<u8, AddGroupError> {
        let plan = |superblock: &Superblock| Ok((Volume::plan_group(superblock, new)?, None));
        self.add_planned(superblock, new, plan, |addition| {
            let to = addition.new_parts().first();
            let to = to.filter(|_| !planted::is(Planted::JournalNotCopied));
            let from = self.volume().device().as_ref();
            let copied = to.map_or(Ok(()), |to| copy(from, to.composite.as_ref(), active));
            copied.map_err(AddGroupError::NewDevice)?;
            // Before anybody else may ask something of it.
            addition.new_parts().iter().for_each(|part| part.composite.members().note_kept());
            Ok(())
        })
    }

    /// Moves the journal to the main disk group, and takes the one that had it out. `active` is
    /// what a recovery would read of it.
    ///
    /// # Errors
    ///
    /// As [`Changing::add_journal`].
    pub fn take_journal_back(&self, active: &Active) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let parts = volume.now().parts.clone();
        let number = volume.geometry().journal_group;
        let (Some(first), Some(number)) = (parts.first(), number) else { return Ok(()) };
        if !planted::is(Planted::JournalNotCopied) {
            let copied = copy(volume.device().as_ref(), first.composite.as_ref(), active);
            copied.map_err(AddGroupError::JournalNotMoved)?;
        }
        volume.take_group_out_with(self, number)
    }

    /// Writes a lost journal to the main disk group, where `log` is all that a recovery would read
    /// of it, and takes the disk group that had it out.
    ///
    /// # Errors
    ///
    /// As [`Changing::add_journal`]: the pool must stop writing after any.
    pub fn make_journal_anew(&self, log: Vec<Operation>) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let number = volume.geometry().journal_group;
        let parts = volume.now().parts.clone();
        let (Some(first), Some(number)) = (parts.first(), number) else { return Ok(()) };
        if planted::is(Planted::LostLabelledFirst) {
            volume.take_group_out_with(self, number)?;
        }
        let mut log = log.into_iter();
        loop {
            let some: Vec<Operation> = log.by_ref().take(WRITTEN_AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let tickets = first.composite.submit_all(Purpose::Journal, some);
            tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        }
        // CRASH: of all that there are, for whoever needs the log may need what is home as well.
        volume.flush(Purpose::Home)?;
        volume.take_group_out_with(self, number)
    }
}

impl Volume {
    fn journal_set(&self) -> Option<&Arc<MemberSet>> {
        let number = self.geometry().journal_group?;
        let mut parts = self.now().parts.iter();
        Some(parts.find(|part| part.disk_group == number)?.composite.members())
    }

    /// Memory has all that a recovery would read of a journal that is apart from now on, as long as
    /// it is there: the pool does not need its devices.
    pub fn note_journal_kept(&self) {
        if let Some(set) = self.journal_set() {
            set.note_kept();
        }
    }

    /// Whether the last device of a journal that is apart has failed, which memory has
    /// ([`Volume::note_journal_kept`]). What was made durable there does not count.
    #[must_use]
    pub fn has_lost_journal(&self) -> bool {
        self.journal_set().is_some_and(|set| set.is_lost())
    }

    /// Returns what the devices of a journal that is apart are called.
    #[must_use]
    pub fn journal_devices(&self) -> Vec<String> {
        let slots = self.journal_set().map(|set| set.view());
        let slots = slots.iter().flat_map(|view| view.iter());
        slots.filter_map(|slot| Some(slot.device.as_ref()?.info().name.clone())).collect()
    }
}

/// Copies what is active of the journal to the same bytes of a disk group, durably; what lies
/// behind its end nobody needs to read.
pub(super) fn copy(
    from: &dyn Device,
    to: &dyn Composite,
    active: &Active,
) -> Result<(), DeviceError> {
    copy_pieces(Purpose::Journal, from, to, &active.read)?;
    for range in &active.behind {
        let zeros = AlignedBuffer::zeroed(to_usize(range.end - range.start));
        let data = vec![SharedBytes::from(zeros)];
        let write = Operation::Write { offset: range.start, data };
        to.submit(Purpose::Journal, write).wait()?;
    }
    to.flush(Purpose::Journal)
}

/// Copies `ranges` to the same bytes of a disk group.
pub(super) fn copy_pieces(
    purpose: Purpose,
    from: &dyn Device,
    to: &dyn Composite,
    ranges: &[Range<u64>],
) -> Result<(), DeviceError> {
    for range in ranges {
        for offset in (range.start..range.end).step_by(to_usize(PIECE_BYTES)) {
            let length = to_usize(PIECE_BYTES.min(range.end - offset));
            let data = vec![SharedBytes::from(from.read(purpose, offset, length)?)];
            to.submit(purpose, Operation::Write { offset, data }).wait()?;
        }
    }
    Ok(())
}

/// Refuses a device whose sectors are longer than those of the pool: what is written of the log
/// ends at these.
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

/// Returns a disk group for the journal, with the free number and slots that it is given, on
/// devices of which `smallest` is the smallest.
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
    let needed_bytes = superblock.geometry.journal_member_bytes();
    let plan = superblock.geometry.plan_journal(number, layout, slots, found_bytes);
    plan.ok_or(AddGroupError::JournalTooSmall { device, found_bytes, needed_bytes })
}
