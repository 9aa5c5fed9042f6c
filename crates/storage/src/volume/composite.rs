//! What a layout over several devices is to the volume: a device with more to ask.

use std::sync::Arc;

use super::set::MemberSet;
use crate::device::{AlignedBuffer, Device, DeviceError, Purpose, SharedDevice};

/// Says whether bytes are what should be there.
pub type Verify<'a> = &'a dyn Fn(&[u8]) -> bool;

/// What became of a range that did not verify.
#[derive(Debug, Default)]
pub struct Healed {
    /// The bytes that verify; `None`: no copy does, or there is no other.
    pub bytes: Option<AlignedBuffer>,
    /// Copies that verify.
    pub good: u64,
    /// Copies that do not, or could not be read.
    pub bad: u64,
    /// Of those how many were written again.
    pub repaired: u64,
}

/// A layout over several devices. As a [`Device`] it is the linear space of the pool.
pub trait Composite: Device {
    /// Returns its members.
    fn members(&self) -> &Arc<MemberSet>;

    /// Returns each member that may be read, as a device with a whole copy of the fixed regions at
    /// their offsets in the pool.
    fn copies(&self) -> Vec<SharedDevice>;

    /// Reads a range of the pool as copy number `copy` has it, of those that may be read; `None`:
    /// there is no such copy.
    fn read_copy(
        &self,
        copy: usize,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>>;

    /// Whether the units of the rows that a range lies in agree with their parity, as far as can be
    /// told: of what is in copies, or while a member is out, nothing can.
    fn agrees(&self, purpose: Purpose, offset: u64, length_bytes: usize) -> bool {
        let _ = (purpose, offset, length_bytes);
        true
    }

    /// Reads a range of the pool in every way that there is, and returns what verifies. What does
    /// not is written again, unless a write is at the range: then it is left as it is.
    ///
    /// # Errors
    ///
    /// What a member said: the only one that could be read, or one that the layout needs and that
    /// failed at the repair.
    fn heal(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Healed, DeviceError>;
}
