//! Layouts `raid5` and `stripe`. Data is in full stripes, each written once, with a parity unit in
//! a raid5. Pages of metadata have two copies on two members, and fixed regions a copy on each.
//!
//! `format::stripes` maps bytes to members. A *share* is the bytes of a range that one member
//! stores. The purpose of a request selects stripes or copies ([`IoPurpose::redundancy`]), which
//! matters to writes and to degraded reads.
//!
//! # Invariants
//!
//! - R5: A write of data covers full stripes. Data and parity are written together, without a read.
//!   A partial write, whose parity would need a read, is refused.
//! - R6: The share of an absent member is reconstructed from the rest of the row, or read from the
//!   second copy. Data in a `stripe` has neither: a read of an absent share is an error, never
//!   zeros.
//! - R7: A write of data to a `stripe` completes only when every member has its share.
//!
//! # Crashes
//!
//! A stripe in flight may become any mixture of old and new units. No pointer refers to it:
//! decisions 0065 (raid5) and 0081 (stripe).
//!
//! Not here: the failure of a member (`set.rs`), and the walk of a rebuild (`joining.rs`).

mod heal;
mod known;
mod moving;
mod parity;
mod read;
mod rebuild;
mod write;

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use format::geometry::SUPERBLOCK_AREA_BYTES;
use format::page::PAGE_BYTES;
use format::reshape::StripeMapping;
use format::stripes::{ExcludedMembers, Stripes, UnitPlace};

use super::composite::{
    Choose, Composite, ParityCheckOutcome, PendingRebuild, RebuildRequest, RedundancyComparison,
    RepairOutcome, Verify,
};
use super::joining::mib_at;
use super::mirror::Mirror;
use super::parity_reads::ParityReader;
use super::salvage::{Salvage, SalvagedRange};
use super::set::{MemberSet, MemberView};
use super::slot::MemberSlot;
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, Redundancy, Ticket,
    check_request,
};

pub use known::KnownRows;

#[derive(Debug)]
pub(super) struct Striped {
    info: DeviceInfo,
    set: Arc<MemberSet>,
    /// The fixed regions, mirrored on all members.
    fixed: Mirror,
    /// The layout of segments, unless [`MemberSet::lay`] has another.
    stripes: Stripes,
}

/// The bytes of a range that lie in one unit.
#[derive(Clone, Copy, Debug)]
struct UnitPart {
    place: UnitPlace,
    length_bytes: usize,
    /// Offset in the range.
    at: usize,
}

impl UnitPart {
    fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.length_bytes
    }

    fn pages(self) -> impl Iterator<Item = UnitPart> {
        (0..self.length_bytes).step_by(PAGE_BYTES).map(move |ahead| {
            let length_bytes = PAGE_BYTES.min(self.length_bytes - ahead);
            let mut page = UnitPart { length_bytes, at: self.at + ahead, ..self };
            page.place.member_offset += to_u64(ahead);
            page
        })
    }

    /// Returns where this page is in the bytes of `whole`.
    fn within(&self, whole: &UnitPart) -> std::ops::Range<usize> {
        self.at - whole.at..self.at - whole.at + self.length_bytes
    }

    fn member_end(&self) -> u64 {
        self.place.member_offset + to_u64(self.length_bytes)
    }
}

/// Splits a range of the allocation groups at unit borders.
fn parts_of(stripes: &Stripes, offset: u64, length_bytes: usize) -> Vec<UnitPart> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < length_bytes {
        let Some(place) = stripes.locate(offset + to_u64(at)) else { break };
        let length = to_usize(place.rest_bytes).min(length_bytes - at);
        parts.push(UnitPart { place, length_bytes: length, at });
        at += length;
    }
    parts
}

fn count_parity(
    reader: ParityReader,
    (stripes, view): (&Stripes, &[MemberSlot]),
    members: Range<usize>,
    range: &Range<u64>,
) {
    if !stripes.shape.has_parity || range.start < stripes.groups_offset {
        return;
    }
    let mut row = (range.start - stripes.groups_offset) >> stripes.shape.unit_shift;
    while stripes.row_offset(row) < range.end {
        let own = stripes.row_offset(row).max(range.start)..stripes.row_offset(row + 1);
        let member = stripes.parity_member(row).filter(|member| members.contains(member));
        let slot = member.and_then(|member| view.get(member));
        if let Some(slot) = slot.filter(|slot| slot.readable().is_some()) {
            slot.count_parity(reader, own.end.min(range.end) - own.start);
        }
        row += 1;
    }
}

impl Striped {
    pub(super) fn new(info: DeviceInfo, set: Arc<MemberSet>, stripes: Stripes) -> Striped {
        let fixed = Mirror::new(info.clone(), Arc::clone(&set), stripes.groups_offset);
        Striped { info, set, fixed, stripes }
    }

    fn lay(&self) -> StripeMapping {
        self.set.lay().unwrap_or_else(|| StripeMapping::from(self.stripes))
    }

    /// Returns the layout of the segment at `offset`.
    fn at(&self, offset: u64) -> Stripes {
        self.lay().at(offset)
    }

    fn parts(&self, offset: u64, length_bytes: usize) -> Vec<UnitPart> {
        parts_of(&self.at(offset), offset, length_bytes)
    }

    /// Returns `view` without the members that store nothing in `stripes`: their slots are empty.
    fn sharing(view: &MemberView, stripes: &Stripes) -> MemberView {
        if stripes.without == ExcludedMembers::NONE {
            return Arc::clone(view);
        }
        let own = |(member, slot): (usize, &MemberSlot)| match stripes.has_member(member) {
            true => slot.clone(),
            false => MemberSlot::gone(),
        };
        Arc::new(view.iter().enumerate().map(own).collect())
    }

    /// Reads `range` of each member. A member that stores nothing there counts as zeros, which
    /// leave a parity sum unchanged.
    fn salvage(
        &self,
        view: &MemberView,
        stripes: &Stripes,
        range: &Range<u64>,
    ) -> Result<Vec<Option<SalvagedRange>>, DeviceError> {
        let salvage =
            self.set.begin_salvage(&Striped::sharing(view, stripes), IoPurpose::Cleaner, range);
        self.end_salvage(salvage, stripes, range)
    }

    fn end_salvage(
        &self,
        salvage: Salvage,
        stripes: &Stripes,
        range: &Range<u64>,
    ) -> Result<Vec<Option<SalvagedRange>>, DeviceError> {
        let mut shares = self.set.end_salvage(salvage)?;
        for (member, share) in shares.iter_mut().enumerate() {
            if !stripes.has_member(member) {
                let bytes = AlignedBuffer::zeroed(to_usize(range.end - range.start));
                *share = Some(SalvagedRange { bytes, bad: Vec::new() });
            }
        }
        Ok(shares)
    }

    /// Whether an operation is in the fixed regions or the labels at the end.
    fn is_fixed(&self, operation: &DeviceOperation) -> bool {
        let offset = operation.offset().unwrap_or(0);
        offset + operation.length_bytes() <= self.stripes.groups_offset
            || offset >= self.info.size_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES)
    }

    /// Returns the purpose and offset for a read. If a reshape has copied the segment to another
    /// one, that is read, as data.
    fn seen_at(&self, purpose: IoPurpose, offset: u64) -> (IoPurpose, u64) {
        let (seen, _) = self.lay().seen_at(offset);
        if seen == offset { (purpose, offset) } else { (IoPurpose::Cleaner, seen) }
    }

    fn refused(&self, operation: &DeviceOperation) -> Ticket {
        Ticket::ready(Err(DeviceError::OutOfRange {
            device: self.info.name.clone(),
            kind: operation.kind(),
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
        }))
    }
}

fn absent(slots: &[MemberSlot], member: usize) -> DeviceError {
    let device = slots.get(member).and_then(|slot| slot.device.as_ref());
    let device = device.map_or_else(
        || format!("member {member}, which is not there"),
        |device| device.info().name.clone(),
    );
    DeviceError::Failed { device }
}

impl Device for Striped {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn composite(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let composite: Arc<dyn Composite> = self;
        Some(Box::new(composite))
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.fixed.check_end()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.fixed.lock_identity()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if let Err(error) = check_request(&self.info, purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        if matches!(operation, DeviceOperation::Flush) {
            return self.set.submit_flush(purpose);
        }
        if self.is_fixed(&operation) {
            return self.fixed.submit(purpose, operation);
        }
        let is_behind = operation.offset().is_some_and(|at| at >= self.stripes.groups_offset);
        match operation {
            DeviceOperation::Read { offset, buffer } => self.submit_read(purpose, offset, buffer),
            DeviceOperation::Write { offset, data } if is_behind => match purpose.redundancy() {
                Redundancy::Parity => self.submit_stripes(purpose, offset, data),
                Redundancy::Copies => self.submit_copies(purpose, offset, &data),
            },
            // Parity would no longer match (DQ4).
            DeviceOperation::Discard { .. } => {
                let device = self.info.name.clone();
                Ticket::ready(Err(DeviceError::NoDiscard { device }))
            }
            DeviceOperation::Write { .. }
            | DeviceOperation::WriteThrough { .. }
            | DeviceOperation::Flush => self.refused(&operation),
        }
    }
}

impl Composite for Striped {
    fn members(&self) -> &Arc<MemberSet> {
        &self.set
    }

    fn read_copy(
        &self,
        copy: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        if offset + to_u64(length_bytes) <= self.stripes.groups_offset {
            return self.fixed.read_copy(copy, purpose, offset, length_bytes);
        }
        let (purpose, offset) = self.seen_at(purpose, offset);
        match purpose.redundancy() {
            Redundancy::Copies => self.read_copy_of_pages(copy, purpose, offset, length_bytes),
            Redundancy::Parity => self.read_version(copy, purpose, offset, length_bytes),
        }
    }

    fn agrees(&self, purpose: IoPurpose, offset: u64, length_bytes: usize) -> bool {
        let has_parity = self.stripes.shape.has_parity;
        let is_held = purpose.redundancy() == Redundancy::Parity && has_parity;
        !is_held || self.rows_agree(purpose, offset, length_bytes)
    }

    fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<KnownRows> {
        Some(self.read_rows_known(offset, length_bytes, known))
    }

    fn heal(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<RepairOutcome, DeviceError> {
        if offset + to_u64(length_bytes) <= self.stripes.groups_offset {
            return self.fixed.heal(purpose, offset, length_bytes, verify, returning);
        }
        let (purpose, offset) = self.seen_at(purpose, offset);
        let (range, view) = (offset..offset + to_u64(length_bytes), self.set.view_with(returning));
        match purpose.redundancy() {
            Redundancy::Copies => self.heal_pages(purpose, &view, range, verify),
            Redundancy::Parity => self.heal_blocks(purpose, view, range, verify),
        }
    }

    fn look(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let is_fixed = offset + to_u64(length_bytes) <= self.stripes.groups_offset;
        let (purpose, seen) = self.seen_at(purpose, offset);
        match purpose.redundancy() {
            Redundancy::Parity if !is_fixed => {
                self.look_at_blocks(purpose, seen, length_bytes, verify)
            }
            Redundancy::Parity | Redundancy::Copies => {
                let read = |copy| self.read_copy(copy, purpose, offset, length_bytes);
                RepairOutcome::of_copies((0..).map_while(read), verify)
            }
        }
    }

    fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        let Some(behind) = offset.checked_sub(self.stripes.groups_offset) else {
            return mib_at(offset, self.stripes.groups_offset);
        };
        let segment_bytes = self.stripes.segment_bytes;
        let start = self.stripes.groups_offset + behind / segment_bytes * segment_bytes;
        let end = self.info.size_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES);
        (start + segment_bytes <= end).then(|| start..start + segment_bytes)
    }

    fn has_share(&self, slot: usize, piece: &Range<u64>) -> bool {
        let own = self.set.own_of(slot).filter(|_| piece.start >= self.stripes.groups_offset);
        own.is_none_or(|own| self.at(piece.start).has_member(own))
    }

    fn begin_rebuild<'a>(
        &'a self,
        slot: usize,
        wanted: &RebuildRequest,
        choose: &Choose<'a>,
    ) -> PendingRebuild<'a> {
        if wanted.piece.end <= self.stripes.groups_offset {
            return self.fixed.begin_rebuild(slot, wanted, choose);
        }
        match self.set.own_of(slot) {
            Some(own) => self.begin_segment(own, wanted.clone()),
            None => Box::new(|| Ok(None)),
        }
    }

    fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<RedundancyComparison, DeviceError> {
        if piece.end <= self.stripes.groups_offset {
            return self.fixed.compare(piece, kept, returning);
        }
        let view = self.set.view_with(returning);
        match kept {
            Redundancy::Parity if self.stripes.shape.has_parity => {
                self.compare_rows(ParityReader::Scrub, &view, piece)
            }
            Redundancy::Parity => self.compare_units(&view, piece),
            Redundancy::Copies => self.compare_pages(&view, piece),
        }
    }

    fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityCheckOutcome, DeviceError> {
        self.mend_rows(rows, verify, returning)
    }
}
