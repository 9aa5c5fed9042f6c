//! The journal of an open pool moves to devices of its own, or back to the first disk group.
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
//! Back: what a recovery would read is copied to the first disk group and flushed, then the labels
//! of all that remain are without the disk group, then its own are blanked.
//!
//! What else lies in the ring where it goes to is of another pool, or older: a record tells its
//! pool and its position, and positions only rise.

use std::ops::Range;

use format::disk_group::{DiskGroup, may_have_journal};
use format::members::Layout;
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::composite::Composite;
use super::growth::{AddGroupError, Changing, NewGroup};
use crate::convert::to_usize;
use crate::device::{Device, DeviceError, DeviceInfo, Operation, Purpose, SharedBytes};

/// What is copied at once.
const PIECE_BYTES: u64 = 1 << 20;

impl Changing<'_> {
    /// Makes `new` the disk group that has the journal: see the module's header. `active` are the
    /// bytes of the pool that a recovery would read of it. `superblock`, the current label, becomes
    /// what the labels say. Returns the number of the disk group.
    ///
    /// # Errors
    ///
    /// See [`AddGroupError`]; only after [`AddGroupError::Device`] must the pool stop writing, and
    /// before anybody writes the log.
    pub fn add_journal(
        &self,
        superblock: &mut Superblock,
        new: &NewGroup,
        active: &[Range<u64>],
    ) -> Result<u8, AddGroupError> {
        let volume = self.volume();
        let old_parts = volume.parts_now(superblock);
        let planned = (Volume::plan_group(superblock, new)?, None);
        let addition = volume.begin_adding(superblock, new, old_parts, planned)?;
        let prepared = addition.prepare().and_then(|()| {
            let Some(to) = addition.new_parts().first() else { return Ok(()) };
            if planted::is(Planted::JournalNotCopied) {
                return Ok(());
            }
            copy(volume.device().as_ref(), to.composite.as_ref(), active)
        });
        let said = prepared.map_err(AddGroupError::NewDevice);
        if let Err(error) = said.and_then(|()| addition.say_online()) {
            addition.give_up(superblock)?;
            return Err(error);
        }
        Ok(volume.end_adding(addition, superblock))
    }

    /// Moves the journal to the first disk group, and takes the one that had it out. `active` are
    /// the bytes of the pool that a recovery would read of it.
    ///
    /// # Errors
    ///
    /// As [`Changing::add_journal`].
    pub fn take_journal_back(&self, active: &[Range<u64>]) -> Result<(), AddGroupError> {
        let volume = self.volume();
        let number = volume.geometry().journal_group;
        let parts = volume.now().parts.clone();
        let (Some(first), true) = (parts.first(), number != 0) else { return Ok(()) };
        if !planted::is(Planted::JournalNotCopied) {
            copy(volume.device().as_ref(), first.composite.as_ref(), active)?;
        }
        volume.take_group_out_with(self, number)
    }
}

/// Copies `ranges` of the pool to the same bytes of a disk group, durably.
fn copy(from: &dyn Device, to: &dyn Composite, ranges: &[Range<u64>]) -> Result<(), DeviceError> {
    for range in ranges {
        for offset in (range.start..range.end).step_by(to_usize(PIECE_BYTES)) {
            let length = to_usize(PIECE_BYTES.min(range.end - offset));
            let data = vec![SharedBytes::from(from.read(Purpose::Journal, offset, length)?)];
            to.submit(Purpose::Journal, Operation::Write { offset, data }).wait()?;
        }
    }
    to.flush(Purpose::Journal)
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
    // What it writes of the log ends at sectors that the pool has.
    if smallest.sector_bytes > superblock.sector_bytes {
        return Err(AddGroupError::Sectors { device, bytes: smallest.sector_bytes });
    }
    let needed_bytes = superblock.geometry.journal_member_bytes();
    let plan = superblock.geometry.plan_journal(number, layout, slots, found_bytes);
    plan.ok_or(AddGroupError::JournalTooSmall { device, found_bytes, needed_bytes })
}
