//! `raid5` and `stripe`: a device made of devices. Data lies in stripes, each written once and
//! whole, with a unit of parity in a `raid5`; pages of metadata lie in two copies on two members,
//! fixed regions on all.
//!
//! `format::stripes` says where a byte lies. Which of the two ways something is kept the purpose
//! of a request says ([`Purpose::redundancy`]): of a pool that is whole, a read needs not know.
//!
//! # Invariants
//!
//! - R5: A write of data is of whole stripes; data and parity go out together, and nothing is
//!   read for it. Any other is refused: nothing could make parity agree but reading.
//! - R6: What a member that is out should have is in the rest of its row, or in the other copy. In
//!   a `stripe` the data of a member is nowhere else: a read of it is an error, never zeros.
//! - R7: A write of data to a `stripe` is answered when every member has its share: none is left
//!   out.
//!
//! # Crashes
//!
//! A stripe that was being written may be any mixture. Nobody points to what is in it: decision
//! 0065 has the argument; of a `stripe`, 0081.
//!
//! Not here: what becomes of a member that fails (`set.rs`), and how a walk over the pool makes a
//! member whole (`joining.rs`).

mod heal;
mod known;
mod moving;
mod parity;
mod read;
mod remake;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use format::geometry::SUPERBLOCK_AREA_BYTES;
use format::page::PAGE_BYTES;
use format::reshape::Lay;
use format::stripes::{Stripes, UnitPlace, Without};

use super::composite::{
    Choose, Compared, Composite, Healed, ParityMended, Remaking, ToRemake, Verify,
};
use super::joining::mib_at;
use super::mirror::Mirror;
use super::parity_reads::ParityReader;
use super::salvage::{Salvage, Salvaged};
use super::set::{MemberSet, View};
use super::slot::Slot;
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, Operation, Purpose, Redundancy, Ticket,
    check_request,
};

pub use known::RowsKnown;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Striped {
    info: DeviceInfo,
    set: Arc<MemberSet>,
    /// The fixed regions, which lie on each member.
    fixed: Mirror,
    /// How all segments lie, unless the set says otherwise ([`MemberSet::lay`]).
    stripes: Stripes,
}

/// What a range has in one unit.
#[derive(Clone, Copy, Debug)]
struct Part {
    place: UnitPlace,
    length_bytes: usize,
    /// Where it begins in the range.
    at: usize,
}

impl Part {
    /// Returns where it lies in the bytes of the range.
    fn range(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.length_bytes
    }

    /// Returns it page by page.
    fn pages(self) -> impl Iterator<Item = Part> {
        (0..self.length_bytes).step_by(PAGE_BYTES).map(move |ahead| {
            let length_bytes = PAGE_BYTES.min(self.length_bytes - ahead);
            let mut page = Part { length_bytes, at: self.at + ahead, ..self };
            page.place.member_offset += to_u64(ahead);
            page
        })
    }

    /// Returns where it lies in the bytes of `whole`, of which it is a page.
    fn within(&self, whole: &Part) -> std::ops::Range<usize> {
        self.at - whole.at..self.at - whole.at + self.length_bytes
    }

    /// Returns the first byte of its member behind it.
    fn member_end(&self) -> u64 {
        self.place.member_offset + to_u64(self.length_bytes)
    }
}

/// Returns what `length_bytes` from byte `offset` of the pool, in its groups, have in each unit.
fn parts_of(stripes: &Stripes, offset: u64, length_bytes: usize) -> Vec<Part> {
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < length_bytes {
        let Some(place) = stripes.locate(offset + to_u64(at)) else { break };
        let length = to_usize(place.rest_bytes).min(length_bytes - at);
        parts.push(Part { place, length_bytes: length, at });
        at += length;
    }
    parts
}

/// Counts the parity in `range` of each of `members`, which lie as `stripes` say and are read.
fn count_parity(
    reader: ParityReader,
    (stripes, view): (&Stripes, &[Slot]),
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

    fn lay(&self) -> Lay {
        self.set.lay().unwrap_or_else(|| Lay::from(self.stripes))
    }

    /// Returns how the segment lies that has byte `offset` of the pool.
    fn at(&self, offset: u64) -> Stripes {
        self.lay().at(offset)
    }

    /// Returns what a range of one segment has in each unit.
    fn parts(&self, offset: u64, length_bytes: usize) -> Vec<Part> {
        parts_of(&self.at(offset), offset, length_bytes)
    }

    /// Returns who of `view` has a share of what lies as `stripes` say; of the others nothing is
    /// there.
    fn sharing(view: &View, stripes: &Stripes) -> View {
        if stripes.without == Without::NONE {
            return Arc::clone(view);
        }
        let own = |(member, slot): (usize, &Slot)| match stripes.has_member(member) {
            true => slot.clone(),
            false => Slot::gone(),
        };
        Arc::new(view.iter().enumerate().map(own).collect())
    }

    /// Reads `range` of each member, of what lies as `stripes` say: one that has no share of it has
    /// zeros, which change no sum.
    fn salvage(
        &self,
        view: &View,
        stripes: &Stripes,
        range: &Range<u64>,
    ) -> Result<Vec<Option<Salvaged>>, DeviceError> {
        let salvage =
            self.set.begin_salvage(&Striped::sharing(view, stripes), Purpose::Cleaner, range);
        self.end_salvage(salvage, stripes, range)
    }

    fn end_salvage(
        &self,
        salvage: Salvage,
        stripes: &Stripes,
        range: &Range<u64>,
    ) -> Result<Vec<Option<Salvaged>>, DeviceError> {
        let mut shares = self.set.end_salvage(salvage)?;
        for (member, share) in shares.iter_mut().enumerate() {
            if !stripes.has_member(member) {
                let bytes = AlignedBuffer::zeroed(to_usize(range.end - range.start));
                *share = Some(Salvaged { bytes, bad: Vec::new() });
            }
        }
        Ok(shares)
    }

    /// Whether an operation lies in front of the groups, or is of the labels behind them.
    fn is_fixed(&self, operation: &Operation) -> bool {
        let offset = operation.offset().unwrap_or(0);
        offset + operation.length_bytes() <= self.stripes.groups_offset
            || offset >= self.info.size_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES)
    }

    /// Returns where the bytes from `offset` on are to be read, and what for: those of a segment
    /// that is kept elsewhere are data there.
    fn seen_at(&self, purpose: Purpose, offset: u64) -> (Purpose, u64) {
        let (seen, _) = self.lay().seen_at(offset);
        if seen == offset { (purpose, offset) } else { (Purpose::Cleaner, seen) }
    }

    fn refused(&self, operation: &Operation) -> Ticket {
        Ticket::ready(Err(DeviceError::OutOfRange {
            device: self.info.name.clone(),
            kind: operation.kind(),
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
        }))
    }
}

/// Returns the error of a member that may not be read.
fn absent(slots: &[Slot], member: usize) -> DeviceError {
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

    fn composite(self: Arc<Self>) -> Option<Arc<dyn Composite>> {
        Some(self)
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.fixed.check_end()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.fixed.lock_identity()
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        if let Err(error) = check_request(&self.info, purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        if matches!(operation, Operation::Flush) {
            return self.set.submit_flush(purpose);
        }
        if self.is_fixed(&operation) {
            return self.fixed.submit(purpose, operation);
        }
        let is_behind = operation.offset().is_some_and(|at| at >= self.stripes.groups_offset);
        match operation {
            Operation::Read { offset, buffer } => self.submit_read(purpose, offset, buffer),
            Operation::Write { offset, data } if is_behind => match purpose.redundancy() {
                Redundancy::Parity => self.submit_stripes(purpose, offset, data),
                Redundancy::Copies => self.submit_copies(purpose, offset, &data),
            },
            // DQ4.
            Operation::Discard { .. } => {
                let device = self.info.name.clone();
                Ticket::ready(Err(DeviceError::NoDiscard { device }))
            }
            Operation::Write { .. } | Operation::WriteThrough { .. } | Operation::Flush => {
                self.refused(&operation)
            }
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
        purpose: Purpose,
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

    fn agrees(&self, purpose: Purpose, offset: u64, length_bytes: usize) -> bool {
        let has_parity = self.stripes.shape.has_parity;
        let is_held = purpose.redundancy() == Redundancy::Parity && has_parity;
        !is_held || self.rows_agree(purpose, offset, length_bytes)
    }

    fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<RowsKnown> {
        Some(self.read_rows_known(offset, length_bytes, known))
    }

    fn heal(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<Healed, DeviceError> {
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
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        let is_fixed = offset + to_u64(length_bytes) <= self.stripes.groups_offset;
        let (purpose, seen) = self.seen_at(purpose, offset);
        match purpose.redundancy() {
            Redundancy::Parity if !is_fixed => {
                self.look_at_blocks(purpose, seen, length_bytes, verify)
            }
            Redundancy::Parity | Redundancy::Copies => {
                let read = |copy| self.read_copy(copy, purpose, offset, length_bytes);
                Healed::of_copies((0..).map_while(read), verify)
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

    fn begin_remake<'a>(
        &'a self,
        slot: usize,
        wanted: &ToRemake,
        choose: &Choose<'a>,
    ) -> Remaking<'a> {
        if wanted.piece.end <= self.stripes.groups_offset {
            return self.fixed.begin_remake(slot, wanted, choose);
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
    ) -> Result<Compared, DeviceError> {
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
    ) -> Result<ParityMended, DeviceError> {
        self.mend_rows(rows, verify, returning)
    }
}
