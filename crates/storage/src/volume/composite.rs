//! What a layout over several devices is to the volume: a device with more to ask.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::ranges::Hold;
use super::set::MemberSet;
use super::striped::RowsKnown;
use crate::device::{AlignedBuffer, Device, DeviceError, Purpose, Redundancy, SharedDevice};

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
    /// Why one of the copies could not be read, where none verifies: it may be there all the same.
    pub unread: Option<DeviceError>,
}

impl Healed {
    /// Looks at what each copy gave.
    pub(super) fn of_copies(
        copies: impl Iterator<Item = Result<AlignedBuffer, DeviceError>>,
        verify: Verify<'_>,
    ) -> Healed {
        let mut healed = Healed::default();
        for found in copies {
            match found {
                Ok(bytes) if verify(&bytes) => {
                    healed.good += 1;
                    healed.bytes.get_or_insert(bytes);
                }
                Ok(_) => healed.bad += 1,
                Err(error) => {
                    healed.bad += 1;
                    healed.unread.get_or_insert(error);
                }
            }
        }
        if healed.bytes.is_some() {
            healed.unread = None;
        }
        healed
    }
}

/// A piece that is to be made anew for a joining member.
#[derive(Clone, Debug)]
pub struct ToRemake {
    /// Bytes of the pool.
    pub piece: Range<u64>,
    /// How what lies there is kept (JN2).
    pub kept: Redundancy,
    /// Pages of it, as bytes of the pool, that a member which has come back keeps as it has them,
    /// whatever the others give (RN4).
    pub keeps: BTreeSet<u64>,
}

/// What a piece holds, as it was made anew for a joining member.
#[derive(Debug)]
pub struct Remade {
    /// Its bytes, as all members together give them.
    pub bytes: AlignedBuffer,
    /// Pages of it that nobody gives: bytes of the pool. They were written as zeros.
    pub lost: Vec<u64>,
    /// Pages that members of a mirror have differently: bytes of the pool.
    pub differing: Vec<u64>,
    /// Whether a member of a mirror that has it gave nothing, so that it was compared with nothing.
    pub is_unsure: bool,
}

impl Remade {
    pub(super) fn new(bytes: AlignedBuffer, lost: Vec<u64>) -> Remade {
        Remade { bytes, lost, differing: Vec::new(), is_unsure: false }
    }
}

/// Returns the index of the right one of several copies of a page, by its offset in bytes of the
/// pool; `None`: its content does not say. Called while the piece is held: it takes no lock.
pub type Choose<'a> = Rc<dyn Fn(u64, &[&[u8]]) -> Option<usize> + 'a>;

/// A piece that is being made anew: what it is made from is being read, and the rest is done when
/// this is called. Nothing comes of one that is dropped.
pub(super) type Remaking<'a> = Box<dyn FnOnce() -> Result<Option<Remade>, DeviceError> + 'a>;

/// What a piece holds, and whether all ways to read it say the same.
#[derive(Debug)]
pub struct Compared {
    /// Its bytes, as they are read; zeros where nothing is.
    pub bytes: AlignedBuffer,
    /// Pages, as bytes of the pool, of which two ways to read them differ, or one fails.
    pub differing: Vec<u64>,
    /// Pages that there is one way alone to read, for a member is away: each has to verify by
    /// itself. Under parity all that is not in `differing` is so then.
    pub alone: Vec<u64>,
    /// Whether a member is away that has a share of the piece.
    pub is_short: bool,
}

/// What became of rows whose units did not agree with their parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityMended {
    /// They do.
    Agrees,
    /// They do now.
    Written,
    /// They do not: what is in them does not verify, or somebody writes there.
    Left,
}

/// A layout over several devices. As a [`Device`] it is the linear space of the pool.
pub trait Composite: Device {
    /// Returns its members; of several disk groups those of the first.
    fn members(&self) -> &Arc<MemberSet>;

    /// Returns the members that have byte `offset` of the fixed regions.
    fn members_at(&self, offset: u64) -> &Arc<MemberSet> {
        let _ = offset;
        self.members()
    }

    /// Holds a range, in bytes of the pool, against writers; `None` while one is at it.
    fn try_hold(&self, range: Range<u64>) -> Option<Hold> {
        self.members().try_hold(range)
    }

    /// Returns each member that may be read and has byte `offset` of the fixed regions, as a device
    /// with a whole copy of that region at its offset in the pool.
    fn copies(&self, offset: u64) -> Vec<SharedDevice> {
        let view = self.members_at(offset).view();
        view.iter().filter_map(|slot| slot.readable().map(Arc::clone)).collect()
    }

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

    /// Reads a range of whole rows that nobody writes to, with whole pages that are known whatever
    /// the members give, by where they lie in it, and what comes of both. `None`: it lies in no
    /// rows.
    fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<RowsKnown> {
        let _ = (offset, length_bytes, known);
        None
    }

    /// Reads a range of the pool in every way that there is, and returns what verifies. What does
    /// not is written again, unless a write is at the range: then it is left as it is.
    ///
    /// `returning` is the slot of a member that has come back, which is read as well: `verify` must
    /// then tell what is there now from what was there before (RN5).
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs and that failed at the repair.
    fn heal(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<Healed, DeviceError>;

    /// As [`Composite::heal`], but that nothing is written again, and nothing is told: what it
    /// finds, a heal would.
    fn look(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        let read = |copy| self.read_copy(copy, purpose, offset, length_bytes);
        Healed::of_copies((0..).map_while(read), verify)
    }

    /// Returns the piece that begins at byte `offset` of the pool, or has it: what is made anew, or
    /// compared, at one time. `None`: it lies behind what the pool uses.
    fn piece_at(&self, offset: u64) -> Option<Range<u64>>;

    /// Whether the member in `slot` of the pool has a share of a piece: in a disk group that is
    /// reshaped one has none of what is not moved yet.
    fn has_share(&self, slot: usize, piece: &Range<u64>) -> bool {
        let _ = (slot, piece);
        true
    }

    /// Begins to read what others have of a piece; what this returns then writes what the joining
    /// member in `slot` should have of it. Nobody else may write to the piece before that is done.
    /// Not durable before a flush. `None`: the member is not joining any more. An error is what a
    /// member said that gives nothing at all, or that the layout needs. A mirror of several members
    /// reads all of them, and `choose` says which copy of a page is right where they differ.
    fn begin_remake<'a>(
        &'a self,
        slot: usize,
        wanted: &ToRemake,
        choose: &Choose<'a>,
    ) -> Remaking<'a>;

    /// Reads a piece in every way that there is. Writes may be at it: a page that differs for a
    /// moment is told too. The member in slot `returning`, which has come back, is read as well:
    /// what it has is in the bytes then, where it is to have something.
    ///
    /// # Errors
    ///
    /// What a member said that gives nothing at all, or without which there is nothing to compare.
    fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<Compared, DeviceError>;

    /// Writes the parity of rows anew where it does not agree with them, if `verify` says that the
    /// data of all of them is what it should be, the member in slot `returning`, which has come
    /// back, read as well (RN5). Not durable before a flush.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityMended, DeviceError> {
        let _ = (rows, verify, returning);
        Ok(ParityMended::Agrees)
    }
}
