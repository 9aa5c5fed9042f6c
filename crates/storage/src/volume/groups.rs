//! Several disk groups as one space: a device that routes each request to one *part*
//! ([`PoolPart`]), with its own layout.
//!
//! The first part is the main disk group with the fixed regions. If its allocation groups do not
//! begin at 0, they are placed as a second part. Each other disk group is a part, whose allocation
//! groups begin at `GroupRange::offset` of its members. A disk group for the journal has the bytes
//! of the journal, at equal offsets. `format::disk_group` maps bytes of the pool to disk groups.
//! The last superblock copies, at the end of the space, are those of the main disk group.
//!
//! # Invariants
//!
//! - VG1: A request that does not lie in a single part is refused, since no allocation group spans
//!   two parts. So no request for the journal reaches the main disk group while another group has
//!   the journal.
//! - VG2: A flush completes when every part has flushed, because a commit may point to any part. A
//!   flush of the log includes a lost part (`set/lost.rs`), any other flush skips it: it has only
//!   the journal.
//!
//! Not here: how a disk group becomes a part (`growth.rs`).

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use runtime::planted;

use super::composite::{
    Choose, Composite, ParityCheckOutcome, PendingRebuild, RebuildRequest, RedundancyComparison,
    RepairOutcome, Verify,
};
use super::ranges::RangeHold;
use super::set::MemberSet;
use super::striped::KnownRows;
use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose,
    PendingRequest, Redundancy, RequestKind, Ticket,
};

/// A disk group, or one member of a round-robin, as a part of the pool.
#[derive(Clone, Debug)]
pub(super) struct PoolPart {
    pub(super) disk_group: u8,
    /// See [`format::disk_group::GroupRange::lane`].
    pub(super) lane: Option<u8>,
    pub(super) composite: Arc<dyn Composite>,
}

#[derive(Clone, Debug)]
struct PlacedPart {
    part: PoolPart,
    bytes: Range<u64>,
    /// Offset of `bytes.start` in the part.
    offset: u64,
    /// Whether an earlier entry has the same part. Requests to all parts skip this entry.
    is_rest: bool,
}

impl PlacedPart {
    fn inner(&self, offset: u64) -> u64 {
        offset - self.bytes.start + self.offset
    }

    fn outer(&self, offset: u64) -> u64 {
        offset - self.offset + self.bytes.start
    }

    fn is_lost(&self) -> bool {
        self.part.composite.members().is_lost()
    }

    fn outer_range(&self, range: &Range<u64>) -> Range<u64> {
        self.outer(range.start)..self.outer(range.end)
    }

    fn inner_range(&self, range: &Range<u64>) -> Range<u64> {
        self.inner(range.start)..self.inner(range.end)
    }
}

#[derive(Debug)]
pub(super) struct Groups {
    info: DeviceInfo,
    /// Sorted by `bytes`.
    parts: Vec<PlacedPart>,
}

impl Groups {
    /// Combines `first`, and each part of `added` with a range in `geometry`, into one space.
    pub(super) fn new(first: PoolPart, added: &[PoolPart], geometry: &Geometry) -> Groups {
        let label_bytes = 2 * SUPERBLOCK_AREA_BYTES;
        let end = first.composite.info().size_bytes.saturating_sub(label_bytes);
        let mut info = first.composite.info().clone();
        // A pool without other groups is as long as its main disk group.
        let space_end = geometry.group_layout().space_end();
        let has_more = space_end > geometry.device_bytes || geometry.main_first > 0;
        info.size_bytes = if has_more { space_end + label_bytes } else { info.size_bytes };
        let is_in_front = geometry.main_first == 0;
        let fixed_end = if is_in_front { end } else { geometry.groups_offset };
        let main = first.clone();
        let whole = PlacedPart { part: first, bytes: 0..fixed_end, offset: 0, is_rest: false };
        let has_journal = |part: &&PoolPart| Some(part.disk_group) == geometry.journal_group;
        let mut parts = match added.iter().find(has_journal) {
            Some(part) => {
                let (journal, more) =
                    (geometry.group_layout().journal_range(), part.composite.info());
                info.name = format!("{}, {}", info.name, more.name);
                info.is_read_only |= more.is_read_only;
                info.has_write_through &= more.has_write_through;
                info.sector_bytes = info.sector_bytes.max(more.sector_bytes);
                let (before, behind) = (0..journal.start, journal.end..fixed_end);
                let (part, offset) = (part.clone(), journal.start);
                vec![
                    PlacedPart { bytes: before, ..whole.clone() },
                    PlacedPart { part, bytes: journal, offset, is_rest: false },
                    PlacedPart { offset: behind.start, bytes: behind, is_rest: true, ..whole },
                ]
            }
            None => vec![whole],
        };
        if !is_in_front {
            let (bytes, offset) = (geometry.group_layout().main_bytes(), geometry.groups_offset);
            parts.push(PlacedPart { part: main, bytes, offset, is_rest: true });
        }
        for range in &geometry.added {
            let is_it =
                |part: &&PoolPart| part.disk_group == range.disk_group && part.lane == range.lane;
            let part = added.iter().find(is_it);
            let Some(part) = part else { continue };
            let bytes = geometry.group_layout().bytes_of(range);
            let more = part.composite.info();
            info.name = format!("{}, {}", info.name, more.name);
            info.is_read_only |= more.is_read_only;
            let (part, offset) = (part.clone(), range.offset);
            parts.push(PlacedPart { part, bytes, offset, is_rest: false });
        }
        parts.sort_by_key(|placed| placed.bytes.start);
        Groups { info, parts }
    }

    fn first(&self) -> &PoolPart {
        &self.parts[0].part
    }

    fn each(&self) -> impl Iterator<Item = &PlacedPart> {
        self.parts.iter().filter(|placed| !placed.is_rest)
    }

    /// Returns the part with all of a range, and the offset in it (VG1).
    fn part_of(&self, offset: u64, length_bytes: u64) -> Option<(&PlacedPart, u64)> {
        let end = offset.checked_add(length_bytes)?;
        let labels = self.info.size_bytes - 2 * SUPERBLOCK_AREA_BYTES;
        if let Some(behind) = offset.checked_sub(labels) {
            let first = self.parts.first()?;
            let own = first.part.composite.info().size_bytes - 2 * SUPERBLOCK_AREA_BYTES;
            return (end <= self.info.size_bytes).then_some((first, own + behind));
        }
        let has = |placed: &&PlacedPart| placed.bytes.start <= offset && end <= placed.bytes.end;
        let placed = self.parts.iter().find(has)?;
        Some((placed, placed.inner(offset)))
    }

    fn refused(&self, operation: &DeviceOperation) -> DeviceError {
        DeviceError::OutOfRange {
            device: self.info.name.clone(),
            kind: operation.kind(),
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
        }
    }

    fn nowhere(&self, offset: u64, length_bytes: usize) -> DeviceError {
        let (device, length_bytes) = (self.info.name.clone(), to_u64(length_bytes));
        DeviceError::OutOfRange { device, kind: RequestKind::Read, offset, length_bytes }
    }

    /// Returns the part for an operation, and the operation with its offset there.
    fn routed(
        &self,
        operation: DeviceOperation,
    ) -> Result<(&PlacedPart, DeviceOperation), DeviceError> {
        let offset = operation.offset().unwrap_or(0);
        let Some((placed, inner)) = self.part_of(offset, operation.length_bytes()) else {
            return Err(self.refused(&operation));
        };
        let operation = match operation {
            DeviceOperation::Read { buffer, .. } => DeviceOperation::Read { offset: inner, buffer },
            DeviceOperation::Write { data, .. } => DeviceOperation::Write { offset: inner, data },
            DeviceOperation::WriteThrough { data, .. } => {
                DeviceOperation::WriteThrough { offset: inner, data }
            }
            DeviceOperation::Discard { length_bytes, .. } => {
                DeviceOperation::Discard { offset: inner, length_bytes }
            }
            DeviceOperation::Flush => DeviceOperation::Flush,
        };
        Ok((placed, operation))
    }

    /// Starts a flush of every part (VG2).
    fn submit_flush(&self, purpose: IoPurpose) -> Ticket {
        let parts = self.each().take(if planted!(FlushOfFirstGroupOnly) { 1 } else { usize::MAX });
        let is_of_log = purpose == IoPurpose::Journal;
        let flush = |placed: &PlacedPart| {
            let composite = Arc::clone(&placed.part.composite);
            let ticket = composite.submit(purpose, DeviceOperation::Flush);
            (composite, ticket)
        };
        let tickets = parts.filter(|placed| is_of_log || !placed.is_lost()).map(flush).collect();
        Ticket::new(Box::new(PartFlushes { tickets, is_of_log }))
    }
}

struct PartFlushes {
    tickets: Vec<(Arc<dyn Composite>, Ticket)>,
    is_of_log: bool,
}

impl PendingRequest for PartFlushes {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let mut answer = Ok(DeviceCompletion::default());
        for (composite, ticket) in self.tickets {
            let done = ticket.wait();
            if self.is_of_log || !composite.members().is_lost() {
                answer = answer.and(done);
            }
        }
        answer
    }
}

impl Device for Groups {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn composite(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let composite: Arc<dyn Composite> = self;
        Some(Box::new(composite))
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.each().try_for_each(|placed| match placed.part.composite.check_end() {
            Err(_) if placed.is_lost() => Ok(()),
            checked => checked,
        })
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.first().composite.lock_identity()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if matches!(operation, DeviceOperation::Flush) {
            return self.submit_flush(purpose);
        }
        match self.routed(operation) {
            Ok((placed, operation)) => placed.part.composite.submit(purpose, operation),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        // Adjacent operations on one part are submitted together.
        let mut tickets = Vec::with_capacity(operations.len());
        let mut waiting: Vec<DeviceOperation> = Vec::new();
        let mut target: Option<&PlacedPart> = None;
        let hand_over =
            |target: Option<&PlacedPart>, waiting: &mut Vec<DeviceOperation>| match target {
                Some(placed) if !waiting.is_empty() => {
                    placed.part.composite.submit_all(purpose, std::mem::take(waiting))
                }
                Some(_) | None => Vec::new(),
            };
        for operation in operations {
            if matches!(operation, DeviceOperation::Flush) {
                tickets.extend(hand_over(target.take(), &mut waiting));
                tickets.push(self.submit_flush(purpose));
                continue;
            }
            match self.routed(operation) {
                Ok((placed, operation)) => {
                    let is_same = target.is_some_and(|other| std::ptr::eq(other, placed));
                    if !is_same {
                        tickets.extend(hand_over(target.replace(placed), &mut waiting));
                    }
                    waiting.push(operation);
                }
                Err(error) => {
                    tickets.extend(hand_over(target.take(), &mut waiting));
                    tickets.push(Ticket::ready(Err(error)));
                }
            }
        }
        tickets.extend(hand_over(target, &mut waiting));
        tickets
    }
}

impl Composite for Groups {
    fn members(&self) -> &Arc<MemberSet> {
        self.first().composite.members()
    }

    fn try_hold(&self, range: Range<u64>) -> Option<RangeHold> {
        let (placed, _) = self.part_of(range.start, range.end - range.start)?;
        placed.part.composite.try_hold(placed.inner_range(&range))
    }

    fn members_at(&self, offset: u64) -> &Arc<MemberSet> {
        let part = self.part_of(offset, 1).map_or_else(|| self.first(), |(placed, _)| &placed.part);
        part.composite.members()
    }

    fn read_copy(
        &self,
        copy: usize,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let (placed, inner) = self.part_of(offset, to_u64(length_bytes))?;
        placed.part.composite.read_copy(copy, purpose, inner, length_bytes)
    }

    fn agrees(&self, purpose: IoPurpose, offset: u64, length_bytes: usize) -> bool {
        let part = self.part_of(offset, to_u64(length_bytes));
        part.is_none_or(|(placed, inner)| {
            placed.part.composite.agrees(purpose, inner, length_bytes)
        })
    }

    fn read_known(
        &self,
        offset: u64,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<KnownRows> {
        let (placed, inner) = self.part_of(offset, to_u64(length_bytes))?;
        placed.part.composite.read_known(inner, length_bytes, known)
    }

    fn heal(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<RepairOutcome, DeviceError> {
        let Some((placed, inner)) = self.part_of(offset, to_u64(length_bytes)) else {
            return Err(self.nowhere(offset, length_bytes));
        };
        placed.part.composite.heal(purpose, inner, length_bytes, verify, returning)
    }

    fn look(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let part = self.part_of(offset, to_u64(length_bytes));
        part.map_or_else(RepairOutcome::default, |(placed, inner)| {
            placed.part.composite.look(purpose, inner, length_bytes, verify)
        })
    }

    fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        let placed = self.parts.iter().filter(|placed| offset < placed.bytes.end);
        placed.into_iter().find_map(|placed| {
            let inner = placed.inner(offset.max(placed.bytes.start));
            let piece = placed.part.composite.piece_at(inner)?;
            let end = piece.end.min(placed.inner(placed.bytes.end));
            (piece.start < end).then(|| placed.outer_range(&(piece.start.max(placed.offset)..end)))
        })
    }

    fn has_share(&self, slot: usize, piece: &Range<u64>) -> bool {
        self.part_of(piece.start, piece.end - piece.start).is_none_or(|(placed, _)| {
            let composite = &placed.part.composite;
            // A walk over the main disk group also covers the journal, which may be in another disk
            // group.
            let is_own = composite.members().own_of(slot).is_some();
            is_own && composite.has_share(slot, &placed.inner_range(piece))
        })
    }

    fn begin_rebuild<'a>(
        &'a self,
        slot: usize,
        wanted: &RebuildRequest,
        choose: &Choose<'a>,
    ) -> PendingRebuild<'a> {
        let RebuildRequest { piece, kept, keeps } = wanted;
        let Some((placed, _)) = self.part_of(piece.start, piece.end - piece.start) else {
            return Box::new(|| Ok(None));
        };
        let keeps = keeps.iter().map(|offset| placed.inner(*offset)).collect();
        let wanted = RebuildRequest { piece: placed.inner_range(piece), kept: *kept, keeps };
        let choose = Rc::clone(choose);
        let choose: Choose<'a> = Rc::new(move |at, copies| choose(placed.outer(at), copies));
        let remaking = placed.part.composite.begin_rebuild(slot, &wanted, &choose);
        Box::new(move || {
            Ok(remaking()?.map(|mut rebuilt| {
                let offsets = rebuilt.lost.iter_mut().chain(&mut rebuilt.differing);
                offsets.for_each(|offset| *offset = placed.outer(*offset));
                rebuilt
            }))
        })
    }

    fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<RedundancyComparison, DeviceError> {
        let Some((placed, _)) = self.part_of(piece.start, piece.end - piece.start) else {
            return Err(self.nowhere(piece.start, 0));
        };
        let inner = placed.inner_range(&piece);
        let mut compared = placed.part.composite.compare(inner, kept, returning)?;
        let offsets = compared.differing.iter_mut().chain(&mut compared.alone);
        offsets.for_each(|offset| *offset = placed.outer(*offset));
        Ok(compared)
    }

    fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityCheckOutcome, DeviceError> {
        let Some((placed, _)) = self.part_of(rows.start, rows.end - rows.start) else {
            return Ok(ParityCheckOutcome::Left);
        };
        let inner = placed.inner_range(&rows);
        placed.part.composite.mend_parity(inner, verify, returning)
    }
}
