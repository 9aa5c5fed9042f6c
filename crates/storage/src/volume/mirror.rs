//! A mirror: a device made of devices with equal contents. A disk group of one device is a mirror
//! of one.
//!
//! A write goes to all members in parallel and completes when all have answered. Reads of the fixed
//! regions go to the first online member. Reads of allocation groups rotate over the members, by
//! MiB. A failed read is retried on the others.
//!
//! The last superblock copies lie at the end of each member, which may be larger than the pool.
//!
//! Not here: the failure of a member (`set.rs`).

use std::any::Any;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use format::geometry::SUPERBLOCK_AREA_BYTES;
use format::members::MemberState;
use format::page::PAGE_BYTES;
use runtime::planted;

use super::composite::{
    Choose, Composite, PendingRebuild, RebuildRequest, RebuiltPiece, RedundancyComparison,
    RepairOutcome, Verify,
};
use super::discard::PendingDiscard;
use super::joining::{mib_at, without_labels};
use super::salvage::{Salvage, SalvagedRange};
use super::set::{MemberSet, MemberView};
use super::slot::MemberSlot;
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose,
    PendingRequest, Redundancy, SharedBytes, Ticket, check_request,
};

/// Unit of rotation: large enough that a long read is one request, small enough that one file is
/// read from all members.
const TURN_SHIFT: u32 = 20;

#[derive(Debug)]
pub(super) struct Mirror {
    info: DeviceInfo,
    set: Arc<MemberSet>,
    groups_offset: u64,
}

impl Mirror {
    pub(super) fn new(info: DeviceInfo, set: Arc<MemberSet>, groups_offset: u64) -> Mirror {
        Mirror { info, set, groups_offset }
    }

    /// Returns the slots to read `offset` from, the preferred one first.
    fn order(&self, view: &MemberView, offset: u64) -> Vec<usize> {
        let is_readable = |at: &usize| view[*at].readable().is_some();
        let mut slots: Vec<usize> = (0..view.len()).filter(is_readable).collect();
        if offset >= self.groups_offset && !slots.is_empty() {
            let turn = (offset >> TURN_SHIFT) % to_u64(slots.len());
            slots.rotate_left(usize::try_from(turn).unwrap_or(0));
        }
        slots
    }

    fn offset_on(&self, slot: &MemberSlot, offset: u64) -> u64 {
        let labels = 2 * SUPERBLOCK_AREA_BYTES;
        let own_bytes = slot.device.as_ref().map_or(0, |device| device.info().size_bytes);
        match offset.checked_sub(self.info.size_bytes.saturating_sub(labels)) {
            Some(behind) => own_bytes.saturating_sub(labels) + behind,
            None => offset,
        }
    }

    fn nobody(&self) -> Ticket {
        Ticket::ready(Err(DeviceError::Failed { device: self.info.name.clone() }))
    }

    fn submit_change(&self, purpose: IoPurpose, operation: &DeviceOperation) -> Ticket {
        let range = operation.offset().map(|start| start..start + operation.length_bytes());
        let in_flight = range.map(|range| self.set.begin_write(range));
        let view = self.set.view();
        let writable = (0..).zip(view.iter()).filter(|(_, slot)| slot.writable().is_some());
        let submit = |(at, slot): (usize, &MemberSlot)| {
            (at, self.set.submit(slot, purpose, again(operation)))
        };
        let tickets: Vec<(usize, Ticket)> = writable.map(submit).collect();
        if tickets.is_empty() {
            return self.nobody();
        }
        self.set.together(&view, tickets, in_flight)
    }

    /// Starts a discard on every member (DQ1, DQ2).
    fn submit_discard(&self, purpose: IoPurpose, operation: &DeviceOperation) -> Ticket {
        let range = operation.offset().map(|start| start..start + operation.length_bytes());
        let in_flight = range.map(|range| self.set.begin_write(range));
        let view = self.set.view();
        let writable = view.iter().filter(|slot| slot.writable().is_some());
        let submit = |slot: &MemberSlot| self.set.submit(slot, purpose, again(operation));
        let tickets: Vec<Ticket> = writable.map(submit).collect();
        Ticket::new(Box::new(PendingDiscard { tickets, in_flight }))
    }

    fn submit_reads(&self, purpose: IoPurpose, reads: Vec<(u64, AlignedBuffer)>) -> Vec<Ticket> {
        let view = self.set.view();
        let orders: Vec<(u64, usize, Vec<usize>)> = reads
            .iter()
            .map(|(offset, buffer)| (*offset, buffer.len(), self.order(&view, *offset)))
            .collect();
        let mut of_slot: Vec<Vec<DeviceOperation>> = view.iter().map(|_| Vec::new()).collect();
        for ((offset, buffer), (.., order)) in reads.into_iter().zip(&orders) {
            if let Some(&first) = order.first() {
                let offset = self.offset_on(&view[first], offset);
                of_slot[first].push(DeviceOperation::Read { offset, buffer });
            }
        }
        let mut begun: Vec<_> = of_slot
            .into_iter()
            .zip(view.iter())
            .map(|(operations, slot)| match operations.is_empty() {
                true => Vec::new().into_iter(),
                false => self.set.submit_all(slot, purpose, operations).into_iter(),
            })
            .collect();
        let ticket = |(offset, length_bytes, order): (u64, usize, Vec<usize>)| {
            let first = order.first().and_then(|&first| begun[first].next());
            let Some(first) = first else { return self.nobody() };
            let (set, view) = (Arc::clone(&self.set), Arc::clone(&view));
            let others = order[1..].iter().map(|&at| (at, self.offset_on(&view[at], offset)));
            let others = others.collect();
            let at = (order[0], self.offset_on(&view[order[0]], offset));
            let read = PendingRead { set, view, purpose, length_bytes, first, at, others };
            Ticket::new(Box::new(read))
        };
        orders.into_iter().map(ticket).collect()
    }
}

fn again(operation: &DeviceOperation) -> DeviceOperation {
    match operation {
        DeviceOperation::Read { offset, buffer } => DeviceOperation::Read {
            offset: *offset,
            buffer: AlignedBuffer::for_reading(buffer.len()),
        },
        DeviceOperation::Write { offset, data } => {
            DeviceOperation::Write { offset: *offset, data: data.clone() }
        }
        DeviceOperation::WriteThrough { offset, data } => {
            DeviceOperation::WriteThrough { offset: *offset, data: data.clone() }
        }
        DeviceOperation::Flush => DeviceOperation::Flush,
        DeviceOperation::Discard { offset, length_bytes } => {
            DeviceOperation::Discard { offset: *offset, length_bytes: *length_bytes }
        }
    }
}

struct PendingRead {
    set: Arc<MemberSet>,
    view: MemberView,
    purpose: IoPurpose,
    length_bytes: usize,
    first: Ticket,
    at: (usize, u64),
    /// Slots to try next, with offsets.
    others: Vec<(usize, u64)>,
}

impl PendingRequest for PendingRead {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let PendingRead { set, view, purpose, length_bytes, first, at, others } = *self;
        let error = match first.wait() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        for (other, offset) in others {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            let read = DeviceOperation::Read { offset, buffer };
            if let Ok(done) = set.submit(&view[other], purpose, read).wait() {
                if set.is_news(at.0, at.1) {
                    tracing::warn!("{error}; read from another member");
                }
                return Ok(done);
            }
        }
        Err(error)
    }
}

impl Device for Mirror {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn composite(self: Arc<Self>) -> Option<Box<dyn Any>> {
        let composite: Arc<dyn Composite> = self;
        Some(Box::new(composite))
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        for (at, slot) in (0..).zip(self.set.view().iter()) {
            if let Some(device) = slot.writable()
                && let Err(error) = device.check_end()
            {
                self.set.fail(at, slot, error)?;
            }
        }
        Ok(())
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.set.view().iter().find_map(|slot| slot.readable()?.lock_identity())
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        // A request that no device could serve must not count as a member's failure.
        if let Err(error) = check_request(&self.info, purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        match operation {
            DeviceOperation::Read { offset, buffer } => {
                let tickets = self.submit_reads(purpose, vec![(offset, buffer)]);
                tickets.into_iter().next().unwrap_or_else(|| self.nobody())
            }
            DeviceOperation::Flush => self.set.submit_flush(purpose),
            DeviceOperation::Write { .. } | DeviceOperation::WriteThrough { .. } => {
                self.submit_change(purpose, &operation)
            }
            DeviceOperation::Discard { .. } => self.submit_discard(purpose, &operation),
        }
    }

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        let is_read =
            |operation: &DeviceOperation| matches!(operation, DeviceOperation::Read { .. });
        let is_plain = |operation: &DeviceOperation| {
            is_read(operation) && check_request(&self.info, purpose, operation).is_ok()
        };
        if !operations.iter().all(is_plain) {
            return operations.into_iter().map(|one| self.submit(purpose, one)).collect();
        }
        let reads = operations.into_iter().filter_map(|operation| match operation {
            DeviceOperation::Read { offset, buffer } => Some((offset, buffer)),
            DeviceOperation::Write { .. }
            | DeviceOperation::WriteThrough { .. }
            | DeviceOperation::Flush
            | DeviceOperation::Discard { .. } => None,
        });
        self.submit_reads(purpose, reads.collect())
    }
}

impl Composite for Mirror {
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
        let view = self.set.view();
        let slot = view.iter().filter(|slot| slot.readable().is_some()).nth(copy)?;
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let read = self.set.submit(slot, purpose, DeviceOperation::Read { offset, buffer }).wait();
        Some(read.map(|done| done.buffer.expect("a read returns its buffer")))
    }

    fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        mib_at(offset, self.info.size_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES))
    }

    fn begin_rebuild<'a>(
        &'a self,
        slot: usize,
        wanted: &RebuildRequest,
        choose: &Choose<'a>,
    ) -> PendingRebuild<'a> {
        let (piece, keeps, choose) =
            (wanted.piece.clone(), wanted.keeps.clone(), Rc::clone(choose));
        let ranges = without_labels(piece.clone());
        let view = self.set.view();
        let begin = |range: &Range<u64>| self.set.begin_salvage(&view, IoPurpose::Cleaner, range);
        let reads: Vec<Salvage> = ranges.iter().map(begin).collect();
        let own = self.set.own_of(slot);
        Box::new(move || {
            let Some(slot) = own else { return Ok(None) };
            let bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
            let mut rebuilt = RebuiltPiece::new(bytes, Vec::new());
            let view = self.set.view();
            for (range, read) in ranges.iter().zip(reads) {
                let joining = view.get(slot).filter(|slot| slot.state == MemberState::Joining);
                let Some(joining) = joining else { return Ok(None) };
                let MergedCopies { mut bytes, mut lost, differing } =
                    match self.set.end_salvage(read) {
                        Ok(copies) => merge(copies, range, &choose),
                        // A member is entirely unreadable, though not marked failed: its copies
                        // cannot be compared.
                        Err(_) => {
                            let length = to_usize(range.end - range.start);
                            rebuilt.is_unsure = true;
                            MergedCopies::of(self.read(IoPurpose::Cleaner, range.start, length)?)
                        }
                    };
                rebuilt.differing.extend(differing);
                for &page in keeps.range(range.clone()) {
                    let own = self.set.page_of(joining, IoPurpose::Cleaner, page);
                    if let Ok(own) = own {
                        let at = to_usize(page - range.start);
                        bytes[at..at + PAGE_BYTES].copy_from_slice(&own);
                        lost.retain(|lost| *lost != page);
                    }
                }
                rebuilt.lost.extend(lost);
                let at = to_usize(range.start - piece.start);
                rebuilt.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                let (offset, data) = (range.start, vec![SharedBytes::from(bytes)]);
                let write = DeviceOperation::Write { offset, data };
                let write = self.set.submit(joining, IoPurpose::Cleaner, write);
                self.set.together(&view, vec![(slot, write)], None).wait()?;
            }
            Ok(Some(rebuilt))
        })
    }

    fn compare(
        &self,
        piece: Range<u64>,
        _kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<RedundancyComparison, DeviceError> {
        let view = self.set.view_with(returning);
        let returning = returning.and_then(|slot| self.set.own_of(slot));
        let copies = self.set.salvage(&view, IoPurpose::Cleaner, &piece)?;
        let Some(first) = copies.iter().flatten().next() else {
            return Err(DeviceError::Failed { device: self.info.name.clone() });
        };
        let is_same = |at: &usize| {
            let page = |bytes: &AlignedBuffer| bytes[*at..*at + PAGE_BYTES].to_vec();
            let expected = page(&first.bytes);
            copies.iter().flatten().all(|copy| copy.has(*at) && page(&copy.bytes) == expected)
        };
        let pages = (0..first.bytes.len()).step_by(PAGE_BYTES);
        let differing =
            pages.filter(|at| !is_same(at)).map(|at| piece.start + to_u64(at)).collect();
        let own = returning.and_then(|at| copies.get(at)?.as_ref());
        let bytes = AlignedBuffer::clone(&own.unwrap_or(first).bytes);
        Ok(RedundancyComparison { bytes, differing, alone: Vec::new(), is_short: false })
    }

    fn heal(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<RepairOutcome, DeviceError> {
        let range = offset..offset + to_u64(length_bytes);
        let hold = self.set.try_hold(range);
        let view = self.set.view_with(returning);
        let returning = returning.and_then(|slot| self.set.own_of(slot));
        let copies = self.set.read_each(&view, purpose, offset, length_bytes);
        let is_good = |copy: &(usize, Result<AlignedBuffer, DeviceError>)| {
            copy.1.as_ref().is_ok_and(|bytes| verify(bytes))
        };
        let (good, mut bad): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_good);
        // Damage of a returning member is expected, and its rebuild repairs it.
        bad.retain(|(at, _)| Some(*at) != returning);
        let (good_count, bad_count) = (to_u64(good.len()), to_u64(bad.len()));
        let mut healed =
            RepairOutcome { good: good_count, bad: bad_count, ..RepairOutcome::default() };
        let Some((_, Ok(bytes))) = good.into_iter().next() else {
            let was_read = bad.iter().filter(|(_, copy)| copy.is_ok());
            was_read.for_each(|(at, _)| view[*at].count_damage(false));
            healed.unread = bad.into_iter().find_map(|(_, copy)| copy.err());
            return Ok(healed);
        };
        // With the hold, the bytes read are current (RH1).
        let may_write = (hold.is_some() || planted!(RepairWithoutHold)) && !self.info.is_read_only;
        for (at, _) in bad {
            if !self.set.is_news(at, self.offset_on(&view[at], offset)) {
                continue;
            }
            let is_repaired = may_write && self.repair(&view, at, purpose, offset, &bytes)?;
            if let Some(hold) = hold.as_ref().filter(|_| is_repaired) {
                hold.note_written();
            }
            view[at].count_damage(is_repaired);
            healed.repaired += u64::from(is_repaired);
            if !self.set.tells_mends() {
                continue;
            }
            let name = view[at].device.as_ref().map_or("", |device| &device.info().name);
            tracing::warn!(
                device = name,
                offset,
                length_bytes,
                is_repaired,
                "what was read does not verify; another member has it"
            );
        }
        healed.bytes = Some(bytes);
        Ok(healed)
    }
}

impl Mirror {
    /// Rewrites a range of the member in slot `at`, or fails the member.
    fn repair(
        &self,
        view: &MemberView,
        at: usize,
        purpose: IoPurpose,
        offset: u64,
        bytes: &AlignedBuffer,
    ) -> Result<bool, DeviceError> {
        let data = vec![SharedBytes::from(AlignedBuffer::clone(bytes))];
        let write = self.set.submit(&view[at], purpose, DeviceOperation::Write { offset, data });
        let Err(error) = write.wait() else { return Ok(true) };
        self.set.fail(at, &view[at], error)?;
        Ok(false)
    }
}

struct MergedCopies {
    bytes: AlignedBuffer,
    /// Pages without a readable copy, as byte offsets of the pool.
    lost: Vec<u64>,
    /// Pages with differing copies, as byte offsets of the pool.
    differing: Vec<u64>,
}

impl MergedCopies {
    fn of(bytes: AlignedBuffer) -> MergedCopies {
        MergedCopies { bytes, lost: Vec::new(), differing: Vec::new() }
    }
}

/// Merges copies. Where they differ, `choose` selects one. Without a choice the first is used.
fn merge(
    copies: Vec<Option<SalvagedRange>>,
    range: &Range<u64>,
    choose: &Choose<'_>,
) -> MergedCopies {
    let mut copies: Vec<SalvagedRange> = copies.into_iter().flatten().collect();
    let is_whole = copies.iter().all(|copy| copy.bad.is_empty());
    let is_same = copies.windows(2).all(|pair| pair[0].bytes[..] == pair[1].bytes[..]);
    if is_whole && is_same && !copies.is_empty() {
        return MergedCopies::of(copies.swap_remove(0).bytes);
    }
    let mut merged = MergedCopies::of(AlignedBuffer::zeroed(to_usize(range.end - range.start)));
    for (number, page) in (0..).zip(merged.bytes.as_chunks_mut::<PAGE_BYTES>().0) {
        let at = number * PAGE_BYTES;
        let offset = range.start + to_u64(at);
        let given = copies.iter().filter(|copy| copy.has(at));
        let given: Vec<&[u8]> = given.map(|copy| &copy.bytes[at..at + PAGE_BYTES]).collect();
        let Some(&first) = given.first() else {
            merged.lost.push(offset);
            continue;
        };
        let mut right = first;
        if given.iter().any(|other| *other != first) {
            merged.differing.push(offset);
            right = choose(offset, &given).and_then(|it| given.get(it).copied()).unwrap_or(first);
        }
        page.copy_from_slice(right);
    }
    merged
}
