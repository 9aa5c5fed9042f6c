//! Several disk groups as one space: a device made of layouts, each of which has a part of the
//! pool.
//!
//! The first part has the fixed regions: it is of the main disk group, as is that with its
//! allocation groups, wherever these lie. Each other has the allocation groups of another disk
//! group, which lie on its members from `GroupRange::offset` on. Where a
//! disk group is for the journal, that is cut out of the first part: it lies at the same bytes on
//! the members of the other. `format::disk_group` says which byte of the pool belongs to whom. The
//! end of the space, where the last copies of the superblock lie, is that of the main disk group.
//!
//! # Invariants
//!
//! - VG1: A request lies in one part, and is refused otherwise: no group lies in two. So no byte of
//!   the journal is asked of the main disk group while another has it.
//! - VG2: A flush is answered when every part has flushed: what a commit points to may lie in any.
//!   One that is not of the log passes over a part that is lost (`set/lost.rs`): nothing else is
//!   there.
//!
//! Not here: how a part comes to be one (`growth.rs`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use format::geometry::{Geometry, SUPERBLOCK_AREA_BYTES};
use runtime::planted::{self, Planted};

use super::composite::{
    Choose, Compared, Composite, Healed, ParityMended, Remaking, ToRemake, Verify,
};
use super::ranges::Hold;
use super::set::MemberSet;
use super::striped::RowsKnown;
use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose,
    Redundancy, RequestKind, Ticket,
};

/// A disk group, or a member of one whose members have allocation groups of their own, and which
/// part of the pool it has.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its number.
    pub(super) disk_group: u8,
    /// Which of its ranges the part has: see [`format::disk_group::GroupRange::lane`].
    pub(super) lane: Option<u8>,
    /// The layout over its members.
    pub(super) composite: Arc<dyn Composite>,
}

/// A part, and the bytes of the pool that it has.
#[derive(Clone, Debug)]
struct Placed {
    part: Part,
    bytes: Range<u64>,
    /// Byte of the part at which they begin.
    offset: u64,
    /// Whether the part is there already, with other bytes: what goes to all parts goes to it once.
    is_rest: bool,
}

impl Placed {
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

/// See the module's header.
#[derive(Debug)]
pub(super) struct Groups {
    info: DeviceInfo,
    /// By the bytes that they have.
    parts: Vec<Placed>,
}

impl Groups {
    /// Returns the space that `geometry` lays out on `first`, and on `added` as far as it has a
    /// range for them.
    pub(super) fn new(first: Part, added: &[Part], geometry: &Geometry) -> Groups {
        let label_bytes = 2 * SUPERBLOCK_AREA_BYTES;
        let end = first.composite.info().size_bytes.saturating_sub(label_bytes);
        let mut info = first.composite.info().clone();
        // A pool with nothing added is as long as its main disk group says.
        let space_end = geometry.space_end();
        let has_more = space_end > geometry.device_bytes || geometry.main_first > 0;
        info.size_bytes = if has_more { space_end + label_bytes } else { info.size_bytes };
        let is_in_front = geometry.main_first == 0;
        let fixed_end = if is_in_front { end } else { geometry.groups_offset };
        let main = first.clone();
        let whole = Placed { part: first, bytes: 0..fixed_end, offset: 0, is_rest: false };
        let has_journal = |part: &&Part| Some(part.disk_group) == geometry.journal_group;
        let mut parts = match added.iter().find(has_journal) {
            Some(part) => {
                let (journal, more) = (geometry.journal_range(), part.composite.info());
                info.name = format!("{}, {}", info.name, more.name);
                info.is_read_only |= more.is_read_only;
                info.has_write_through &= more.has_write_through;
                info.sector_bytes = info.sector_bytes.max(more.sector_bytes);
                let (before, behind) = (0..journal.start, journal.end..fixed_end);
                let (part, offset) = (part.clone(), journal.start);
                vec![
                    Placed { bytes: before, ..whole.clone() },
                    Placed { part, bytes: journal, offset, is_rest: false },
                    Placed { offset: behind.start, bytes: behind, is_rest: true, ..whole },
                ]
            }
            None => vec![whole],
        };
        if !is_in_front {
            let (bytes, offset) = (geometry.main_bytes(), geometry.groups_offset);
            parts.push(Placed { part: main, bytes, offset, is_rest: true });
        }
        for range in &geometry.added {
            let is_it =
                |part: &&Part| part.disk_group == range.disk_group && part.lane == range.lane;
            let part = added.iter().find(is_it);
            let Some(part) = part else { continue };
            let bytes = geometry.bytes_of(range);
            let more = part.composite.info();
            info.name = format!("{}, {}", info.name, more.name);
            info.is_read_only |= more.is_read_only;
            let (part, offset) = (part.clone(), range.offset);
            parts.push(Placed { part, bytes, offset, is_rest: false });
        }
        parts.sort_by_key(|placed| placed.bytes.start);
        Groups { info, parts }
    }

    fn first(&self) -> &Part {
        &self.parts[0].part
    }

    /// Returns each part once.
    fn each(&self) -> impl Iterator<Item = &Placed> {
        self.parts.iter().filter(|placed| !placed.is_rest)
    }

    /// Returns the part that has all of a range of the pool, and where in it the range begins
    /// (VG1).
    fn part_of(&self, offset: u64, length_bytes: u64) -> Option<(&Placed, u64)> {
        let end = offset.checked_add(length_bytes)?;
        let labels = self.info.size_bytes - 2 * SUPERBLOCK_AREA_BYTES;
        if let Some(behind) = offset.checked_sub(labels) {
            let first = self.parts.first()?;
            let own = first.part.composite.info().size_bytes - 2 * SUPERBLOCK_AREA_BYTES;
            return (end <= self.info.size_bytes).then_some((first, own + behind));
        }
        let has = |placed: &&Placed| placed.bytes.start <= offset && end <= placed.bytes.end;
        let placed = self.parts.iter().find(has)?;
        Some((placed, placed.inner(offset)))
    }

    fn refused(&self, operation: &Operation) -> DeviceError {
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

    /// Returns which part an operation goes to, and what it is there.
    fn routed(&self, operation: Operation) -> Result<(&Placed, Operation), DeviceError> {
        let offset = operation.offset().unwrap_or(0);
        let Some((placed, inner)) = self.part_of(offset, operation.length_bytes()) else {
            return Err(self.refused(&operation));
        };
        let operation = match operation {
            Operation::Read { buffer, .. } => Operation::Read { offset: inner, buffer },
            Operation::Write { data, .. } => Operation::Write { offset: inner, data },
            Operation::WriteThrough { data, .. } => Operation::WriteThrough { offset: inner, data },
            Operation::Discard { length_bytes, .. } => {
                Operation::Discard { offset: inner, length_bytes }
            }
            Operation::Flush => Operation::Flush,
        };
        Ok((placed, operation))
    }

    /// VG2.
    fn submit_flush(&self, purpose: Purpose) -> Ticket {
        let is_planted = planted::is(Planted::FlushOfFirstGroupOnly);
        let parts = self.each().take(if is_planted { 1 } else { usize::MAX });
        let is_of_log = purpose == Purpose::Journal;
        let flush = |placed: &Placed| {
            let composite = Arc::clone(&placed.part.composite);
            let ticket = composite.submit(purpose, Operation::Flush);
            (composite, ticket)
        };
        let tickets = parts.filter(|placed| is_of_log || !placed.is_lost()).map(flush).collect();
        Ticket::new(Box::new(Flushes { tickets, is_of_log }))
    }
}

/// Flushes of all parts.
struct Flushes {
    tickets: Vec<(Arc<dyn Composite>, Ticket)>,
    is_of_log: bool,
}

impl PendingRequest for Flushes {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let mut answer = Ok(Completion::default());
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

    fn composite(self: Arc<Self>) -> Option<Arc<dyn Composite>> {
        Some(self)
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

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        if matches!(operation, Operation::Flush) {
            return self.submit_flush(purpose);
        }
        match self.routed(operation) {
            Ok((placed, operation)) => placed.part.composite.submit(purpose, operation),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        // Neighbours in the list that go to one part are handed over together.
        let mut tickets = Vec::with_capacity(operations.len());
        let mut waiting: Vec<Operation> = Vec::new();
        let mut target: Option<&Placed> = None;
        let hand_over = |target: Option<&Placed>, waiting: &mut Vec<Operation>| match target {
            Some(placed) if !waiting.is_empty() => {
                placed.part.composite.submit_all(purpose, std::mem::take(waiting))
            }
            Some(_) | None => Vec::new(),
        };
        for operation in operations {
            if matches!(operation, Operation::Flush) {
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

    fn try_hold(&self, range: Range<u64>) -> Option<Hold> {
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
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let (placed, inner) = self.part_of(offset, to_u64(length_bytes))?;
        placed.part.composite.read_copy(copy, purpose, inner, length_bytes)
    }

    fn agrees(&self, purpose: Purpose, offset: u64, length_bytes: usize) -> bool {
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
    ) -> Option<RowsKnown> {
        let (placed, inner) = self.part_of(offset, to_u64(length_bytes))?;
        placed.part.composite.read_known(inner, length_bytes, known)
    }

    fn heal(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<Healed, DeviceError> {
        let Some((placed, inner)) = self.part_of(offset, to_u64(length_bytes)) else {
            return Err(self.nowhere(offset, length_bytes));
        };
        placed.part.composite.heal(purpose, inner, length_bytes, verify, returning)
    }

    fn look(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        let part = self.part_of(offset, to_u64(length_bytes));
        part.map_or_else(Healed::default, |(placed, inner)| {
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
            // In a walk over the main disk group the journal of another may lie.
            let is_own = composite.members().own_of(slot).is_some();
            (is_own || planted::is(Planted::JournalWalkedForOthers))
                && composite.has_share(slot, &placed.inner_range(piece))
        })
    }

    fn begin_remake<'a>(
        &'a self,
        slot: usize,
        wanted: &ToRemake,
        choose: &Choose<'a>,
    ) -> Remaking<'a> {
        let ToRemake { piece, kept, keeps } = wanted;
        let Some((placed, _)) = self.part_of(piece.start, piece.end - piece.start) else {
            return Box::new(|| Ok(None));
        };
        let keeps = keeps.iter().map(|offset| placed.inner(*offset)).collect();
        let wanted = ToRemake { piece: placed.inner_range(piece), kept: *kept, keeps };
        let choose = Rc::clone(choose);
        let choose: Choose<'a> = Rc::new(move |at, copies| choose(placed.outer(at), copies));
        let remaking = placed.part.composite.begin_remake(slot, &wanted, &choose);
        Box::new(move || {
            Ok(remaking()?.map(|mut remade| {
                let offsets = remade.lost.iter_mut().chain(&mut remade.differing);
                offsets.for_each(|offset| *offset = placed.outer(*offset));
                remade
            }))
        })
    }

    fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<Compared, DeviceError> {
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
    ) -> Result<ParityMended, DeviceError> {
        let Some((placed, _)) = self.part_of(rows.start, rows.end - rows.start) else {
            return Ok(ParityMended::Left);
        };
        let inner = placed.inner_range(&rows);
        placed.part.composite.mend_parity(inner, verify, returning)
    }
}
