//! Progress of a scrub in the labels, so that it resumes after a crash or a close.
//!
//! # Invariants
//!
//! - SB1: In each online member, the range below its progress was compared, and repairs there are
//!   durable. The scrub itself may be further.
//! - SB2: A step of a scrub advances only members whose progress reaches its start. So a member
//!   added during a scrub gets none, and an interrupted scrub begins again if such a member is
//!   online.
//!
//! The stored progress is MiB done plus one, and 0 means none.

use format::superblock::Superblock;
use runtime::unless_planted;

use super::Volume;
use super::joining::PIECE_BYTES;
use super::set::LabelChange;
use crate::device::{DeviceError, IoPurpose};

fn told_at(at: u64) -> u32 {
    u32::try_from(at / PIECE_BYTES).unwrap_or(u32::MAX - 1) + 1
}

impl Volume {
    /// Returns the byte of the pool at which an interrupted scrub resumes.
    #[must_use]
    pub fn scrubbed(&self) -> Option<u64> {
        let label = self.members()?.label().filter(|label| label.is_scrubbing)?;
        let online = label.members.iter().filter(|member| member.is_online());
        let told = online.map(|member| member.scrubbed_mib).min().unwrap_or(0);
        let start = self.geometry().group_table_offset;
        let done = u64::from(told.saturating_sub(1)) * PIECE_BYTES;
        // Progress past the end is from before the pool became shorter, and does not count.
        Some(if done > self.used_end() { start } else { done.max(start) })
    }

    /// Starts or resumes a scrub in the labels, and returns its first byte of the pool.
    ///
    /// # Errors
    ///
    /// A needed member failed: the pool must stop writing.
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

    /// Advances members with progress of at least `from` (SB2) to byte `to`, after a flush (SB1).
    ///
    /// # Errors
    ///
    /// See [`Volume::begin_scrub`].
    pub fn note_scrubbed(&self, from: u64, to: u64) -> Result<(), DeviceError> {
        // CRASH: repairs are durable before the labels advance.
        unless_planted!(ScrubNotFlushed, self.flush(IoPurpose::Cleaner)?);
        let end = told_at(self.used_end());
        self.change_scrubbed(|label| {
            for member in label.members.iter_mut().filter(|member| member.is_online()) {
                let told = &mut member.scrubbed_mib;
                // Progress past the end is from before the pool became shorter.
                if *told > end {
                    *told = told_at(to);
                } else if *told >= told_at(from) {
                    *told = (*told).max(told_at(to));
                }
            }
        })
    }

    /// Ends the scrub in the labels.
    ///
    /// # Errors
    ///
    /// See [`Volume::begin_scrub`].
    pub fn end_scrub(&self) -> Result<(), DeviceError> {
        self.flush(IoPurpose::Cleaner)?;
        self.change_scrubbed(|label| {
            label.is_scrubbing = false;
            label.members.iter_mut().for_each(|member| member.scrubbed_mib = 0);
        })
    }

    fn change_scrubbed(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), DeviceError> {
        let Some(members) = self.members() else { return Ok(()) };
        members.change(|_, label| {
            change(label);
            LabelChange::Table
        })
    }
}
