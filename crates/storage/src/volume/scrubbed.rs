//! How far a scrub is, kept in the labels, so that one that a crash or a close interrupts goes on
//! where it was.
//!
//! # Invariants
//!
//! - SB1: What lies in front of what the labels tell of each member that is online was held
//!   against the others, and what was mended there is durable. The scrub itself may be further.
//! - SB2: Of a member that comes the labels tell nothing, and a walk raises what they tell of
//!   those alone who were there when it began to pass.
//!
//! What they tell is one more than the MiB that are done, so that 0 is nothing, and not the start.

use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::joining::PIECE_BYTES;
use super::set::Change;
use crate::device::{DeviceError, Purpose};

/// Returns what labels tell of a member up to byte `at` of the pool.
fn told_at(at: u64) -> u32 {
    u32::try_from(at / PIECE_BYTES).unwrap_or(u32::MAX - 1) + 1
}

impl Volume {
    /// Returns the byte of the pool at which a scrub goes on that was interrupted; `None`: there
    /// is none.
    #[must_use]
    pub fn scrubbed(&self) -> Option<u64> {
        let label = self.members()?.label().filter(|label| label.is_scrubbing)?;
        let online = label.members.iter().filter(|member| member.is_online());
        let told = online.map(|member| member.scrubbed_mib).min().unwrap_or(0);
        let start = self.geometry().group_table_offset;
        let done = u64::from(told.saturating_sub(1)) * PIECE_BYTES;
        // Behind the end of the pool there is nothing that was done.
        Some(if done > self.used_end() { start } else { done.max(start) })
    }

    /// Says in the labels that a scrub is under way, of all members that are there. Returns the
    /// byte of the pool at which it begins, or goes on.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs: the pool must stop writing.
    pub fn begin_scrub(&self) -> Result<u64, DeviceError> {
        let at = self.scrubbed().unwrap_or(self.geometry().group_table_offset);
        let start = told_at(self.geometry().group_table_offset);
        self.change_scrubbed(|label| {
            label.is_scrubbing = true;
            for member in label.members.iter_mut().filter(|member| member.is_online()) {
                member.scrubbed_mib = member.scrubbed_mib.max(start);
            }
        })?;
        Ok(at)
    }

    /// Says in the labels that all in front of byte `to` is done, after it is durable (SB1), of
    /// those of which they told at least `from` (SB2).
    ///
    /// # Errors
    ///
    /// As [`Volume::begin_scrub`].
    pub fn note_scrubbed(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        if !planted::is(Planted::ScrubNotFlushed) {
            // CRASH: what was mended there is durable before the labels say so.
            self.flush(Purpose::Cleaner)?;
        }
        let ahead = if planted::is(Planted::ScrubAhead) { 8 } else { 0 };
        let end = told_at(self.used_end());
        self.change_scrubbed(|label| {
            for member in label.members.iter_mut().filter(|member| member.is_online()) {
                let told = &mut member.scrubbed_mib;
                // Of a pool that was longer: it has gone past all of this one.
                if *told > end {
                    *told = told_at(to);
                } else if *told >= told_at(from) {
                    *told = (*told).max(told_at(to) + ahead);
                }
            }
        })
    }

    /// Says in the labels that the scrub has come to its end.
    ///
    /// # Errors
    ///
    /// As [`Volume::begin_scrub`].
    pub fn end_scrub(&self) -> Result<(), DeviceError> {
        self.flush(Purpose::Cleaner)?;
        self.change_scrubbed(|label| {
            label.is_scrubbing = false;
            label.members.iter_mut().for_each(|member| member.scrubbed_mib = 0);
        })
    }

    fn change_scrubbed(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        members.change(|_, label| {
            change(label);
            Change::Table
        })
    }
}
