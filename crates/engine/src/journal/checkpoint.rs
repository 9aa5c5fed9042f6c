//! Checkpoint: taking pages home so that the log's tail can move.
//!
//! The only writer of pages. It closes every class and takes the dirty pages as they are at that
//! moment, so what goes home is always a committed state; changes that follow do not disturb it.
//!
//! # Invariants
//!
//! - K1 (write-ahead): the log is durable up to the last record of every page that goes home.
//! - K2 (home order): pages that nothing at home points to yet go home and are flushed before the
//!   pages that point to them or that gave them content; pages between which content moved go home
//!   together, through the double-write area. So the home state alone never loses a name.
//! - K3 (reuse): what was freed is given to the allocator only when the pages that freed it are
//!   home and flushed and the head that moves the tail past them is durable.
//! - K4: The pages that go home together fit into the double-write area: `begin` reserves it.
//!
//! # Crashes
//!
//! Before the head is durable, recovery replays from the old tail and heals torn home writes. A
//! whole group in the double-write area that the head does not yet call home is copied home first.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use format::double_write::DoubleWriteHead;
use format::geometry::{DOUBLE_WRITE_ENTRIES_PER_HEAD, Geometry, JOURNAL_HEAD_COPIES};
use format::ids::{Epoch, Lsn, Place};
use format::journal::JournalHead;
use format::page::{PAGE_BYTES, page_crc};
use format::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Operation, Purpose, SharedBytes, Ticket};

use super::{Journal, State};
use crate::buffer::{PageRef, page_of};
use crate::convert::{index_wide, wide};
use crate::error::FsResult;

/// Pages that lie side by side are written together, at most so many.
const PAGES_PER_WRITE: usize = 64;

/// What the next checkpoint goes on from.
#[derive(Debug)]
pub(super) struct Checkpointer {
    pub(super) head_sequence: u64,
    pub(super) double_write_sequence: u64,
    /// Pages of a checkpoint that failed: memory alone has them, so they stay there.
    pub(super) never_home: Vec<std::sync::Arc<crate::buffer::Buffer>>,
}

/// The dirty pages of one checkpoint, as they were when the classes closed.
struct Batch {
    /// Pages that nothing at home points to yet.
    newborn: BTreeMap<Place, PageRef>,
    /// Pages that go home together.
    moved: BTreeMap<Place, PageRef>,
    /// All others.
    others: BTreeMap<Place, PageRef>,
    /// Buffers stay in the cache until their pages are home.
    held: Vec<std::sync::Arc<crate::buffer::Buffer>>,
    /// The log must be durable up to here first.
    end: Lsn,
}

impl Journal {
    /// Takes every dirty page home and moves the tail.
    ///
    /// # Errors
    ///
    /// What the device said; the journal has failed then.
    pub(crate) fn checkpoint(&self) -> FsResult<()> {
        let mut checkpointer = self.checkpointer.lock();
        self.check_alive()?;
        if let Some(hooks) = self.hooks() {
            hooks.submit_rides();
        }
        let mut batch = self.take_batch();
        let logged =
            if planted::is(Planted::HomeBeforeLog) { Ok(()) } else { self.force(batch.end) };
        let home = logged.and_then(|()| {
            self.take_home(&mut checkpointer, &batch).map_err(|error| self.fail(&error))
        });
        let tail = match home {
            Ok(tail) => tail,
            Err(error) => {
                checkpointer.never_home.append(&mut batch.held);
                return Err(error);
            }
        };
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        if let Some(hooks) = self.hooks() {
            hooks.released(tail);
        }
        self.space.notify_all();
        Ok(())
    }

    fn take_batch(&self) -> Batch {
        let mut state = self.state.lock();
        self.close_all(&mut state);
        let end = state.log.cut();
        let dirty = std::mem::take(&mut state.dirty);
        let newborn_places = std::mem::take(&mut state.newborn);
        let moved_places = std::mem::take(&mut state.moved);
        let mut batch = Batch {
            newborn: BTreeMap::new(),
            moved: BTreeMap::new(),
            others: BTreeMap::new(),
            held: Vec::with_capacity(dirty.len()),
            end,
        };
        for (place, buffer) in dirty {
            let mut page = buffer.state.lock();
            page.first_lsn = None;
            let bytes = PageRef::clone(&page.bytes);
            drop(page);
            let has_room = wide(batch.moved.len()) < self.volume.geometry().double_write_pages;
            if newborn_places.contains(&place) {
                batch.newborn.insert(place, bytes);
            } else if has_room && moved_places.contains(&place) {
                batch.moved.insert(place, bytes);
            } else {
                batch.others.insert(place, bytes);
            }
            batch.held.push(buffer);
        }
        batch
    }

    fn take_home(
        &self,
        checkpointer: &mut Checkpointer,
        batch: &Batch,
    ) -> Result<Lsn, DeviceError> {
        // CRASH: K2, newborn pages first.
        if !batch.newborn.is_empty() {
            self.write_pages(&batch.newborn)?;
            if !planted::is(Planted::NewbornPagesLast) {
                self.volume.flush(Purpose::Home)?;
            }
        }
        if !batch.moved.is_empty() && !planted::is(Planted::DoubleWriteSkipped) {
            checkpointer.double_write_sequence += 1;
            self.write_group(checkpointer.double_write_sequence, batch.end, &batch.moved)?;
        }
        let rides = self.data.drain()?;
        self.write_pages(&batch.moved)?;
        self.write_pages(&batch.others)?;
        if !planted::is(Planted::HeadBeforeHome) {
            self.volume.flush(Purpose::Home)?;
        }
        self.data.flushed(rides);
        // CRASH: the head only after that flush; freed space only after the head's (K3).
        let (tail, previous_crc, epoch) = self.new_tail();
        checkpointer.head_sequence += 1;
        let head = JournalHead {
            sequence: checkpointer.head_sequence,
            tail,
            previous_crc,
            epoch,
            double_write_sequence: checkpointer.double_write_sequence,
        };
        self.write_head(&head)?;
        self.volume.flush(Purpose::Journal)?;
        let mut state = self.state.lock();
        state.tail = tail;
        state.log.head = head.sequence;
        state.log.forget_before(tail);
        Ok(tail)
    }

    /// Returns the first position that a recovery would need now.
    fn new_tail(&self) -> (Lsn, u32, Epoch) {
        let durable = self.data.durable();
        let mut state = self.state.lock();
        state.rides.retain(|_, ride| !ride.is_home(durable));
        let tail = oldest_needed(&state);
        (tail, state.log.previous_crc_at(tail), Epoch(state.next_epoch))
    }

    pub(super) fn write_head(&self, head: &JournalHead) -> Result<(), DeviceError> {
        write_head(
            self.volume.device().as_ref(),
            self.cache.pool_id(),
            self.volume.geometry(),
            head,
        )
    }

    /// Writes pages home, those that lie side by side together.
    fn write_pages(&self, pages: &BTreeMap<Place, PageRef>) -> Result<(), DeviceError> {
        let step = self.volume.geometry().page_fragments();
        let mut tickets = Vec::new();
        let mut run: Option<(Place, Vec<SharedBytes>)> = None;
        for (place, bytes) in pages {
            let piece = SharedBytes::new(PageRef::clone(bytes), 0..PAGE_BYTES);
            match &mut run {
                Some((start, pieces))
                    if pieces.len() < PAGES_PER_WRITE
                        && start.bits() + wide(pieces.len()) * u64::from(step) == place.bits() =>
                {
                    pieces.push(piece);
                }
                _ => {
                    tickets.extend(run.take().map(|run| self.submit_run(run)));
                    run = Some((*place, vec![piece]));
                }
            }
        }
        tickets.extend(run.take().map(|run| self.submit_run(run)));
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
    }

    fn submit_run(&self, (place, pieces): (Place, Vec<SharedBytes>)) -> Ticket {
        self.volume.submit_write(Purpose::Home, place, pieces)
    }

    /// Writes pages to the double-write area and flushes: from then on they reach home together.
    fn write_group(
        &self,
        sequence: u64,
        lsn: Lsn,
        pages: &BTreeMap<Place, PageRef>,
    ) -> Result<(), DeviceError> {
        let geometry = self.volume.geometry();
        let device = self.volume.device();
        assert!(wide(pages.len()) <= geometry.double_write_pages, "begin bounds what moves");
        let mut tickets = Vec::new();
        let entries: Vec<(Place, u32)> =
            pages.iter().map(|(place, bytes)| (*place, page_crc(page_of(bytes)))).collect();
        for (index, bytes) in pages.values().enumerate() {
            let offset = DoubleWriteHead::page_offset(geometry, wide(index));
            let data = vec![SharedBytes::new(PageRef::clone(bytes), 0..PAGE_BYTES)];
            tickets.push(device.submit(Purpose::DoubleWrite, Operation::Write { offset, data }));
        }
        for (index, entries) in
            entries.chunks(index_wide(DOUBLE_WRITE_ENTRIES_PER_HEAD)).enumerate()
        {
            let head = DoubleWriteHead {
                sequence,
                head_index: wide(index),
                page_count: wide(pages.len()),
                lsn,
                entries: entries.to_vec(),
            };
            let offset = DoubleWriteHead::head_offset(geometry, wide(index));
            let bytes = AlignedBuffer::copy_of(&head.encode(self.cache.pool_id(), geometry));
            let data = vec![SharedBytes::from(bytes)];
            tickets.push(device.submit(Purpose::DoubleWrite, Operation::Write { offset, data }));
        }
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        self.volume.flush(Purpose::DoubleWrite)
    }
}

fn oldest_needed(state: &State) -> Lsn {
    if planted::is(Planted::TailPastDirtyPages) {
        return state.log.position();
    }
    let dirty = state.dirty.values().filter_map(|buffer| buffer.state.lock().first_lsn).min();
    let open = state.classes.values().map(|class| class.first_lsn).min();
    let riding = state.rides.keys().next().map(|ride| ride.lsn);
    let riding = riding.filter(|_| !planted::is(Planted::TailPastRides));
    [dirty, open, riding].into_iter().flatten().min().unwrap_or(state.log.position())
}

/// Writes the copies of a head where their turn is.
pub(super) fn write_head(
    device: &dyn storage::device::Device,
    pool_id: format::ids::PoolId,
    geometry: &Geometry,
    head: &JournalHead,
) -> Result<(), DeviceError> {
    let first = head.first_slot();
    let copies = (first..first + JOURNAL_HEAD_COPIES)
        .flat_map(|slot| head.encode(pool_id, geometry, slot))
        .collect::<Vec<u8>>();
    let offset = geometry.journal_offset + first * 4096;
    device.write(Purpose::Journal, offset, AlignedBuffer::copy_of(&copies))
}
