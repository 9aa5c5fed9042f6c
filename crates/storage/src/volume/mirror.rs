//! A mirror: a device made of devices, each of which holds the same.
//!
//! A write goes to all members at once and is answered when all have answered. A read of the fixed
//! regions goes to the first member that is online, one of a group to the member that its offset
//! names, each MiB to the next; where it fails it goes to the others.
//!
//! The end of the space, where the last copies of the superblock lie, is the end of each member:
//! one may be larger than the pool.
//!
//! Not here: what becomes of a member that fails (`set.rs`).

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use format::geometry::SUPERBLOCK_AREA_BYTES;
use format::members::MemberState;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};

use super::composite::{Choose, Compared, Composite, Healed, Remade, Remaking, ToRemake, Verify};
use super::discard::Discarding;
use super::joining::{mib_at, without_labels};
use super::salvage::{Salvage, Salvaged};
use super::set::{MemberSet, View};
use super::slot::Slot;
use crate::convert::{to_u64, to_usize};
use crate::device::{
    AlignedBuffer, Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose,
    Redundancy, SharedBytes, Ticket, check_request,
};

/// Bytes of a group after which the next member is read: large enough that a long read is one
/// request, small enough that one file is read from all.
const TURN_SHIFT: u32 = 20;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Mirror {
    info: DeviceInfo,
    set: Arc<MemberSet>,
    /// Where the fixed regions end.
    groups_offset: u64,
}

impl Mirror {
    pub(super) fn new(info: DeviceInfo, set: Arc<MemberSet>, groups_offset: u64) -> Mirror {
        Mirror { info, set, groups_offset }
    }

    /// Returns the slots that a read of `offset` goes to, the first first.
    fn order(&self, view: &View, offset: u64) -> Vec<usize> {
        let is_readable = |at: &usize| view[*at].readable().is_some();
        let mut slots: Vec<usize> = (0..view.len()).filter(is_readable).collect();
        if offset >= self.groups_offset && !slots.is_empty() {
            let turn = (offset >> TURN_SHIFT) % to_u64(slots.len());
            slots.rotate_left(usize::try_from(turn).unwrap_or(0));
        }
        slots
    }

    /// Returns where byte `offset` of the space is on the member in a slot.
    fn offset_on(&self, slot: &Slot, offset: u64) -> u64 {
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

    /// Sends what changes something to every member.
    fn submit_change(&self, purpose: Purpose, operation: &Operation) -> Ticket {
        let range = operation.offset().map(|start| start..start + operation.length_bytes());
        let in_flight = range.map(|range| self.set.begin_write(range));
        let view = self.set.view();
        let writable = (0..).zip(view.iter()).filter(|(_, slot)| slot.writable().is_some());
        let submit =
            |(at, slot): (usize, &Slot)| (at, self.set.submit(slot, purpose, again(operation)));
        let tickets: Vec<(usize, Ticket)> = writable.map(submit).collect();
        if tickets.is_empty() {
            return self.nobody();
        }
        self.set.together(&view, tickets, in_flight)
    }

    /// Sends a discard to every member (DQ1, DQ2).
    fn submit_discard(&self, purpose: Purpose, operation: &Operation) -> Ticket {
        let range = operation.offset().map(|start| start..start + operation.length_bytes());
        let in_flight = range.map(|range| self.set.begin_write(range));
        let view = self.set.view();
        let writable = view.iter().filter(|slot| slot.writable().is_some());
        let submit = |slot: &Slot| self.set.submit(slot, purpose, again(operation));
        let tickets: Vec<Ticket> = writable.map(submit).collect();
        Ticket::new(Box::new(Discarding { tickets, in_flight }))
    }

    fn submit_reads(&self, purpose: Purpose, reads: Vec<(u64, AlignedBuffer)>) -> Vec<Ticket> {
        let view = self.set.view();
        let orders: Vec<(u64, usize, Vec<usize>)> = reads
            .iter()
            .map(|(offset, buffer)| (*offset, buffer.len(), self.order(&view, *offset)))
            .collect();
        let mut of_slot: Vec<Vec<Operation>> = view.iter().map(|_| Vec::new()).collect();
        for ((offset, buffer), (.., order)) in reads.into_iter().zip(&orders) {
            if let Some(&first) = order.first() {
                let offset = self.offset_on(&view[first], offset);
                of_slot[first].push(Operation::Read { offset, buffer });
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

/// Returns the same request once more; the bytes are shared.
fn again(operation: &Operation) -> Operation {
    match operation {
        Operation::Read { offset, buffer } => {
            Operation::Read { offset: *offset, buffer: AlignedBuffer::for_reading(buffer.len()) }
        }
        Operation::Write { offset, data } => {
            Operation::Write { offset: *offset, data: data.clone() }
        }
        Operation::WriteThrough { offset, data } => {
            Operation::WriteThrough { offset: *offset, data: data.clone() }
        }
        Operation::Flush => Operation::Flush,
        Operation::Discard { offset, length_bytes } => {
            Operation::Discard { offset: *offset, length_bytes: *length_bytes }
        }
    }
}

/// A read that goes to another member where the first fails.
struct PendingRead {
    set: Arc<MemberSet>,
    view: View,
    purpose: Purpose,
    length_bytes: usize,
    first: Ticket,
    /// Slot, and where it is on its member.
    at: (usize, u64),
    /// Slots, and where it is on their members.
    others: Vec<(usize, u64)>,
}

impl PendingRequest for PendingRead {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let PendingRead { set, view, purpose, length_bytes, first, at, others } = *self;
        let error = match first.wait() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        for (other, offset) in others {
            let buffer = AlignedBuffer::for_reading(length_bytes);
            let read = Operation::Read { offset, buffer };
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

    fn composite(self: Arc<Self>) -> Option<Arc<dyn Composite>> {
        Some(self)
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

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        // What no member could do is the fault of none of them.
        if let Err(error) = check_request(&self.info, purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        match operation {
            Operation::Read { offset, buffer } => {
                let tickets = self.submit_reads(purpose, vec![(offset, buffer)]);
                tickets.into_iter().next().unwrap_or_else(|| self.nobody())
            }
            Operation::Flush => self.set.submit_flush(purpose),
            Operation::Write { .. } | Operation::WriteThrough { .. } => {
                self.submit_change(purpose, &operation)
            }
            Operation::Discard { .. } => self.submit_discard(purpose, &operation),
        }
    }

    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        let is_read = |operation: &Operation| matches!(operation, Operation::Read { .. });
        let is_plain = |operation: &Operation| {
            is_read(operation) && check_request(&self.info, purpose, operation).is_ok()
        };
        if !operations.iter().all(is_plain) {
            return operations.into_iter().map(|one| self.submit(purpose, one)).collect();
        }
        let reads = operations.into_iter().filter_map(|operation| match operation {
            Operation::Read { offset, buffer } => Some((offset, buffer)),
            Operation::Write { .. }
            | Operation::WriteThrough { .. }
            | Operation::Flush
            | Operation::Discard { .. } => None,
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
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let view = self.set.view();
        let slot = view.iter().filter(|slot| slot.readable().is_some()).nth(copy)?;
        let buffer = AlignedBuffer::for_reading(length_bytes);
        let read = self.set.submit(slot, purpose, Operation::Read { offset, buffer }).wait();
        Some(read.map(|done| done.buffer.expect("a read returns its buffer")))
    }

    fn piece_at(&self, offset: u64) -> Option<Range<u64>> {
        mib_at(offset, self.info.size_bytes.saturating_sub(2 * SUPERBLOCK_AREA_BYTES))
    }

    fn begin_remake<'a>(
        &'a self,
        slot: usize,
        wanted: &ToRemake,
        choose: &Choose<'a>,
    ) -> Remaking<'a> {
        let (piece, keeps, choose) =
            (wanted.piece.clone(), wanted.keeps.clone(), Rc::clone(choose));
        let ranges = without_labels(piece.clone());
        let view = self.set.view();
        let begin = |range: &Range<u64>| self.set.begin_salvage(&view, Purpose::Cleaner, range);
        let reads: Vec<Salvage> = ranges.iter().map(begin).collect();
        let own = self.set.own_of(slot);
        Box::new(move || {
            let Some(slot) = own else { return Ok(None) };
            let bytes = AlignedBuffer::zeroed(to_usize(piece.end - piece.start));
            let mut remade = Remade::new(bytes, Vec::new());
            let view = self.set.view();
            for (range, read) in ranges.iter().zip(reads) {
                let joining = view.get(slot).filter(|slot| slot.state == MemberState::Joining);
                let Some(joining) = joining else { return Ok(None) };
                let Merged { mut bytes, mut lost, differing } = match self.set.end_salvage(read) {
                    Ok(copies) => merge(copies, range, &choose),
                    // A member gives nothing at all, and may not have failed yet.
                    Err(_) => {
                        let length = to_usize(range.end - range.start);
                        remade.is_unsure = true;
                        Merged::of(self.read(Purpose::Cleaner, range.start, length)?)
                    }
                };
                remade.differing.extend(differing);
                for &page in keeps.range(range.clone()) {
                    let own = self.set.page_of(joining, Purpose::Cleaner, page);
                    if let Ok(own) = own {
                        let at = to_usize(page - range.start);
                        bytes[at..at + PAGE_BYTES].copy_from_slice(&own);
                        lost.retain(|lost| *lost != page);
                    }
                }
                remade.lost.extend(lost);
                let at = to_usize(range.start - piece.start);
                remade.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                let (offset, data) = (range.start, vec![SharedBytes::from(bytes)]);
                let write = Operation::Write { offset, data };
                let write = self.set.submit(joining, Purpose::Cleaner, write);
                self.set.together(&view, vec![(slot, write)], None).wait()?;
            }
            Ok(Some(remade))
        })
    }

    fn compare(
        &self,
        piece: Range<u64>,
        _kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<Compared, DeviceError> {
        let view = self.set.view_with(returning);
        let returning = returning.and_then(|slot| self.set.own_of(slot));
        let copies = self.set.salvage(&view, Purpose::Cleaner, &piece)?;
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
        Ok(Compared { bytes, differing, alone: Vec::new(), is_short: false })
    }

    fn heal(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<Healed, DeviceError> {
        let range = offset..offset + to_u64(length_bytes);
        let hold = self.set.try_hold(range);
        let view = self.set.view_with(returning);
        let returning = returning.and_then(|slot| self.set.own_of(slot));
        let copies = self.set.read_each(&view, purpose, offset, length_bytes);
        let is_good = |copy: &(usize, Result<AlignedBuffer, DeviceError>)| {
            copy.1.as_ref().is_ok_and(|bytes| verify(bytes))
        };
        let (good, mut bad): (Vec<_>, Vec<_>) = copies.into_iter().partition(is_good);
        // One that has come back is no worse for it, and gets it when its piece is made anew.
        bad.retain(|(at, _)| Some(*at) != returning);
        let (good_count, bad_count) = (to_u64(good.len()), to_u64(bad.len()));
        let mut healed = Healed { good: good_count, bad: bad_count, ..Healed::default() };
        let Some((_, Ok(bytes))) = good.into_iter().next() else {
            let was_read = bad.iter().filter(|(_, copy)| copy.is_ok());
            was_read.for_each(|(at, _)| view[*at].count_damage(false));
            healed.unread = bad.into_iter().find_map(|(_, copy)| copy.err());
            return Ok(healed);
        };
        // RH1: what was read under the hold is what is there now.
        let may_write =
            (hold.is_some() || planted::is(Planted::RepairWithoutHold)) && !self.info.is_read_only;
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
    /// Writes `bytes` again to the member in slot `at`, which fails if it cannot.
    fn repair(
        &self,
        view: &View,
        at: usize,
        purpose: Purpose,
        offset: u64,
        bytes: &AlignedBuffer,
    ) -> Result<bool, DeviceError> {
        let data = vec![SharedBytes::from(AlignedBuffer::clone(bytes))];
        let write = self.set.submit(&view[at], purpose, Operation::Write { offset, data });
        let Err(error) = write.wait() else { return Ok(true) };
        self.set.fail(at, &view[at], error)?;
        Ok(false)
    }
}

/// A range, put together from what several members have of it.
struct Merged {
    /// Its bytes; zeros where no member gives a page.
    bytes: AlignedBuffer,
    /// Pages that no member gives: bytes of the pool.
    lost: Vec<u64>,
    /// Pages that members have differently: bytes of the pool.
    differing: Vec<u64>,
}

impl Merged {
    fn of(bytes: AlignedBuffer) -> Merged {
        Merged { bytes, lost: Vec::new(), differing: Vec::new() }
    }
}

/// Puts a range together. Of a page that the copies have differently the one is taken that `choose`
/// says, else the first.
fn merge(copies: Vec<Option<Salvaged>>, range: &Range<u64>, choose: &Choose<'_>) -> Merged {
    let mut copies: Vec<Salvaged> = copies.into_iter().flatten().collect();
    let is_whole = copies.iter().all(|copy| copy.bad.is_empty());
    let is_same = copies.windows(2).all(|pair| pair[0].bytes[..] == pair[1].bytes[..]);
    if is_whole && is_same && !copies.is_empty() {
        return Merged::of(copies.swap_remove(0).bytes);
    }
    let mut merged = Merged::of(AlignedBuffer::zeroed(to_usize(range.end - range.start)));
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
