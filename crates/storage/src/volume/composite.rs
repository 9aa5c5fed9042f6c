//! The interface of a layout over several devices: a [`Device`] with requests for redundant copies.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::ranges::RangeHold;
use super::set::MemberSet;
use super::striped::KnownRows;
use crate::device::{AlignedBuffer, Device, DeviceError, IoPurpose, Redundancy, SharedDevice};

/// Whether bytes are the expected contents.
pub type Verify<'a> = &'a dyn Fn(&[u8]) -> bool;

/// The outcome of a repair.
#[derive(Debug, Default)]
pub struct RepairOutcome {
    /// Bytes that verify. `None` if no copy does, or there is no other copy.
    pub bytes: Option<AlignedBuffer>,
    /// Number of copies that verify.
    pub good: u64,
    /// Number of copies that do not verify or are unreadable.
    pub bad: u64,
    /// Number of bad copies that were rewritten.
    pub repaired: u64,
    /// First read error, if no copy verifies.
    pub unread: Option<DeviceError>,
}

impl RepairOutcome {
    /// Judges every copy by `verify`. Rewrites none.
    pub(super) fn of_copies(
        copies: impl Iterator<Item = Result<AlignedBuffer, DeviceError>>,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let mut healed = RepairOutcome::default();
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

/// A request to rebuild a piece ([`Composite::piece_at`]) for a joining member.
#[derive(Clone, Debug)]
pub struct RebuildRequest {
    /// Bytes of the pool.
    pub piece: Range<u64>,
    /// How the contents are stored (JN2).
    pub kept: Redundancy,
    /// Byte offsets of pages that the returning member keeps, even if the others differ (RN4).
    pub keeps: BTreeSet<u64>,
}

/// The contents of a piece that was rebuilt for a joining member.
#[derive(Debug)]
pub struct RebuiltPiece {
    /// The contents, read from the other members.
    pub bytes: AlignedBuffer,
    /// Byte offsets of unreadable pages, written as zeros.
    pub lost: Vec<u64>,
    /// Byte offsets of pages whose mirror copies differ.
    pub differing: Vec<u64>,
    /// Whether a mirror copy was unreadable, so that the comparison is incomplete.
    pub is_unsure: bool,
}

impl RebuiltPiece {
    pub(super) fn new(bytes: AlignedBuffer, lost: Vec<u64>) -> RebuiltPiece {
        RebuiltPiece { bytes, lost, differing: Vec::new(), is_unsure: false }
    }
}

/// Returns the index of the right copy among those of the page at a byte offset of the pool. `None`
/// if the contents do not decide. LOCK: takes no hold, since the caller holds the piece.
pub type Choose<'a> = Rc<dyn Fn(u64, &[&[u8]]) -> Option<usize> + 'a>;

/// A rebuild with its reads in flight. The call completes it.
pub(super) type PendingRebuild<'a> =
    Box<dyn FnOnce() -> Result<Option<RebuiltPiece>, DeviceError> + 'a>;

/// The contents of a piece, and whether all redundant copies agree.
#[derive(Debug)]
pub struct RedundancyComparison {
    /// The contents. Zeros where no copy is readable.
    pub bytes: AlignedBuffer,
    /// Byte offsets of pages with differing or unreadable copies.
    pub differing: Vec<u64>,
    /// Byte offsets of pages with one readable copy, because a member is absent: each must verify
    /// by its own checksum. With parity and an absent member, so must every page outside
    /// `differing`.
    pub alone: Vec<u64>,
    /// Whether an absent member stores a part of the piece. Always false on a mirror.
    pub is_short: bool,
}

/// The outcome of a check of parity against its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityCheckOutcome {
    /// The parity agrees.
    Agrees,
    /// The parity was wrong and is rewritten.
    Written,
    /// The parity is wrong and was left: the data does not verify, or a write is in flight.
    Left,
}

/// Returns the layout over several devices that `device` is, if any.
pub(super) fn of_device(device: &SharedDevice) -> Option<Arc<dyn Composite>> {
    let composite = Arc::clone(device).composite()?;
    let composite = composite.downcast().expect("a layout boxes an `Arc<dyn Composite>`");
    Some(*composite)
}

/// A layout over several devices. As a [`Device`] it is the linear space of the pool.
pub trait Composite: Device {
    /// Returns the members: with several disk groups, those of the first.
    fn members(&self) -> &Arc<MemberSet>;

    /// Returns the members that store byte `offset` of the fixed regions.
    fn members_at(&self, offset: u64) -> &Arc<MemberSet> {
        let _ = offset;
        self.members()
    }

    /// Holds a range of the pool against writers. `None` while a write to it is in flight.
    fn try_hold(&self, range: Range<u64>) -> Option<RangeHold> {
        self.members().try_hold(range)
    }

    /// Returns each readable member that stores byte `offset` of the fixed regions.
    fn copies(&self, offset: u64) -> Vec<SharedDevice> {
        let view = self.members_at(offset).view();
        view.iter().filter_map(|slot| slot.readable().map(Arc::clone)).collect()
    }

    /// Reads a range of the pool from the `copy`-th (from 0) readable copy. `None` past the last
    /// one.
    fn read_copy(
        &self,
        copy: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>>;

    /// Whether the stripe rows of a range agree with their parity. True without parity, and false
    /// while a member is absent, because that cannot be known.
    fn agrees(&self, purpose: IoPurpose, offset: u64, length_bytes: usize) -> bool {
        let _ = (purpose, offset, length_bytes);
        true
    }

    /// Reads whole stripe rows that have no write in flight. `known` replaces some pages, by byte
    /// offset in the range. Others are reconstructed. `None` outside stripe rows.
    fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<KnownRows> {
        let _ = (offset, length_bytes, known);
        None
    }

    /// Reads a range from every copy, or by reconstruction, and returns bytes that pass `verify`.
    /// Rewrites bad copies, unless a write to the range is in flight. With the returning member in
    /// slot `returning`, `verify` must detect stale contents (RN5).
    ///
    /// # Errors
    ///
    /// A rewrite failed on a member that the layout needs.
    fn heal(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<RepairOutcome, DeviceError>;

    /// [`Composite::heal`] without rewriting or logging.
    fn look(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let read = |copy| self.read_copy(copy, purpose, offset, length_bytes);
        RepairOutcome::of_copies((0..).map_while(read), verify)
    }

    /// Returns the piece at byte `offset` of the pool, the unit of rebuilds and comparisons. `None`
    /// past the end.
    fn piece_at(&self, offset: u64) -> Option<Range<u64>>;

    /// Whether the member in `slot` of the pool stores a share of a piece. A member that a reshape
    /// adds has none in segments not yet moved.
    fn has_share(&self, slot: usize, piece: &Range<u64>) -> bool {
        let _ = (slot, piece);
        true
    }

    /// Starts the reads for a rebuild of a piece, which the caller holds until the end. The
    /// returned closure writes the part of the joining member in `slot`, not durable before a
    /// flush. It returns `None` if that member is no longer joining, and fails if a member is
    /// entirely unreadable, or a needed one fails. A mirror reads all members, and `choose` selects
    /// among differing copies.
    fn begin_rebuild<'a>(
        &'a self,
        slot: usize,
        wanted: &RebuildRequest,
        choose: &Choose<'a>,
    ) -> PendingRebuild<'a>;

    /// Compares all copies of a piece. Pages with a write in flight may differ. The returned bytes
    /// are those of the returning member in slot `returning` where it has them.
    ///
    /// # Errors
    ///
    /// A member failed without which nothing can be compared.
    fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<RedundancyComparison, DeviceError>;

    /// Rewrites parity that disagrees with its rows, if `verify` accepts all of their data,
    /// including that of the returning member in slot `returning` (RN5). Not durable before a
    /// flush.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityCheckOutcome, DeviceError> {
        let _ = (rows, verify, returning);
        Ok(ParityCheckOutcome::Agrees)
    }
}
