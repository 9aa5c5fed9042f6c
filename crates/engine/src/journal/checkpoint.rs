//! Checkpoint: writes dirty pages back to their home locations, so that the log's tail can move.
//!
//! The only writer of pages. It closes every class and takes the dirty pages of that moment, so it
//! always writes a committed state. Later changes go into frozen copies or the next set, so the
//! manager's lock and the devices are never occupied for long.
//!
//! # Invariants
//!
//! - K1 (write-ahead): the log is durable up to the last record of every page that is written back.
//! - K2 (home order): a page that no page on disk points to yet is written back and flushed before
//!   the pages that point to it or gave it content. Pages between which content moved are written
//!   back together, through the double-write area. So the pages on disk never lose a name, even
//!   without the log.
//! - K3 (reuse): deferred frees reach the allocator only when the freeing pages are written back
//!   and flushed, and the head that moves the tail past them is durable.
//! - K4: A group of pages fits into the double-write area: `begin` reserves it.
//!
//! # Crashes
//!
//! Before the head is durable, recovery replays from the old tail and heals torn pages. First it
//! copies home a whole group in the double-write area that the head does not record as written
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::geometry::{Geometry, JOURNAL_HEAD_COPIES};
use format::ids::{Epoch, Lsn, Place, PoolId};
use format::journal::JournalHead;
use format::page::PAGE_BYTES;
use runtime::{if_planted, planted, unless_planted};
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedBytes, Ticket};
use storage::volume::Volume;

use super::{Journal, JournalState, double_write, ring_bytes};
use crate::buffer::{PageBuffer, PageRef};
use crate::convert::wide;
use crate::error::FsResult;

const PAGES_PER_WRITE: usize = 64;
/// Pages written between flushes: few, since a device may delay all requests until a flush has
/// emptied its cache.
const PAGES_PER_FLUSH: usize = 64;

#[derive(Debug)]
pub(super) struct Checkpointer {
    pub(super) head_sequence: u64,
    pub(super) double_write_sequence: u64,
    /// Buffers of a failed checkpoint, pinned: their content is only in memory.
    pub(super) never_home: Vec<Arc<PageBuffer>>,
}

/// Sorted by place.
type WriteBackPages = Vec<(Place, PageRef)>;

/// The dirty pages at the moment when all classes were closed, not yet copied.
struct DirtySet {
    dirty: BTreeMap<Place, Arc<PageBuffer>>,
    newborn: BTreeSet<Place>,
    moved: BTreeSet<Place>,
    end: Lsn,
    round: u64,
}

struct WriteBackBatch {
    newborn: WriteBackPages,
    moved: WriteBackPages,
    others: WriteBackPages,
    /// Pins the buffers until their pages are written back.
    held: Vec<Arc<PageBuffer>>,
    end: Lsn,
}

impl Journal {
    /// Writes back every dirty page and moves the tail.
    ///
    /// # Errors
    ///
    /// The device's error. The journal has failed then.
    pub(crate) fn checkpoint(&self) -> FsResult<()> {
        let mut checkpointer = self.checkpointer.lock();
        self.check_alive()?;
        let mut batch = self.take_pages(self.take_set());
        let logged = if planted!(HomeBeforeLog) { Ok(()) } else { self.force(batch.end) };
        if let Some(hooks) = self.hooks() {
            // After forcing the log, for which commits wait: a flush of the log may write out the
            // device's whole cache, these data included.
            hooks.submit_log_data();
        }
        let home = logged.and_then(|()| self.take_home(&mut checkpointer, &batch));
        let tail = match home {
            Ok(tail) => tail,
            Err(error) => {
                checkpointer.never_home.append(&mut batch.held);
                return Err(error);
            }
        };
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        let geometry = self.volume.geometry();
        let lsn_pages = batch.held.iter().filter(|buffer| geometry.is_lsn_page(buffer.place));
        self.counts.lsn_pages.fetch_add(wide(lsn_pages.count()), Ordering::Relaxed);
        self.counts.home_pages.fetch_add(wide(batch.held.len()), Ordering::Relaxed);
        if let Some(hooks) = self.hooks() {
            hooks.released(tail);
        }
        self.space.notify_all();
        Ok(())
    }

    /// Closes all classes and takes the set of dirty pages, under one hold of the manager's lock.
    fn take_set(&self) -> DirtySet {
        self.close_opened_before(u64::MAX);
        let mut state = self.close_and_list();
        state.round += 1;
        state.dirty_from = None;
        state.is_set_being_taken = true;
        let end = state.log.cut();
        self.cache.log_ends_at(end);
        DirtySet {
            dirty: std::mem::take(&mut state.dirty),
            newborn: std::mem::take(&mut state.newborn),
            moved: std::mem::take(&mut state.moved),
            end,
            round: state.round,
        }
    }

    /// Copies the pages of `set` as of the moment it was taken; those changed since are in
    /// `overtaken`.
    fn take_pages(&self, set: DirtySet) -> WriteBackBatch {
        let DirtySet { dirty, newborn, moved, end, round } = set;
        let held: Vec<Arc<PageBuffer>> = dirty.into_values().collect();
        let taken: Vec<Option<PageRef>> = held.iter().map(|buffer| take(buffer, round)).collect();
        let mut overtaken = {
            let mut state = self.state.lock();
            state.is_set_being_taken = false;
            std::mem::take(&mut state.overtaken)
        };
        let (mut of_newborn, mut of_moved, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (buffer, bytes) in held.iter().zip(taken) {
            let place = buffer.place;
            let bytes = bytes.or_else(|| overtaken.remove(&place));
            let bytes = bytes.expect("the manager keeps what it changes");
            let has_room = wide(of_moved.len()) < self.volume.geometry().double_write_pages;
            let pages = if newborn.contains(&place) {
                &mut of_newborn
            } else if has_room && moved.contains(&place) {
                &mut of_moved
            } else {
                &mut others
            };
            pages.push((place, bytes));
        }
        WriteBackBatch { newborn: of_newborn, moved: of_moved, others, held, end }
    }

    fn take_home(&self, checkpointer: &mut Checkpointer, batch: &WriteBackBatch) -> FsResult<Lsn> {
        let failed = |error: DeviceError| self.fail(&error);
        // CRASH: pages that nothing on disk points to go first (K2).
        self.write_pages(&batch.newborn)?;
        if !batch.newborn.is_empty() && !planted!(NewbornPagesLast) {
            self.flush_with_log(IoPurpose::Home)?;
        }
        if !batch.moved.is_empty() && !planted!(DoubleWriteSkipped) {
            checkpointer.double_write_sequence += 1;
            self.write_group(checkpointer.double_write_sequence, batch.end, &batch.moved)?;
        }
        let drained = self.data.drain().map_err(failed)?;
        self.write_pages(&batch.moved)?;
        self.write_pages(&batch.others)?;
        unless_planted!(HeadBeforeHome, self.flush_with_log(IoPurpose::Home)?);
        self.data.flushed(drained);
        // CRASH: the head only after the flush of the pages; freed space only after the head's
        // flush (K3).
        let (tail, previous_crc, epoch) = self.new_tail();
        checkpointer.head_sequence += 1;
        let head = JournalHead {
            sequence: checkpointer.head_sequence,
            tail,
            previous_crc,
            epoch,
            double_write_sequence: checkpointer.double_write_sequence,
        };
        self.flush_head(&head)?;
        let mut state = self.state.lock();
        state.tail = tail;
        state.log.head = head.sequence;
        state.head = head;
        state.log.forget_before(tail);
        Ok(tail)
    }

    fn new_tail(&self) -> (Lsn, u32, Epoch) {
        let durable = self.data.durable();
        let mut state = self.state.lock();
        state.log_data.retain(|_, home| !home.is_home(durable));
        let tail = oldest_needed(&state);
        (tail, state.log.previous_crc_at(tail), Epoch(state.next_epoch))
    }

    pub(super) fn write_head(&self, head: &JournalHead) -> Result<(), DeviceError> {
        write_head(&self.volume, self.cache.pool_id(), head)
    }

    fn write_pages(&self, pages: &WriteBackPages) -> FsResult<()> {
        let mut portions = pages.chunks(PAGES_PER_FLUSH).peekable();
        while let Some(portion) = portions.next() {
            self.write_portion(portion).map_err(|error| self.fail(&error))?;
            if portions.peek().is_some() {
                self.flush_with_log(IoPurpose::Home)?;
            }
        }
        Ok(())
    }

    fn write_portion(&self, pages: &[(Place, PageRef)]) -> Result<(), DeviceError> {
        let geometry = self.volume.geometry();
        let mut tickets = Vec::new();
        let mut run: Option<(Place, Vec<SharedBytes>)> = None;
        let mut next = None;
        for (place, bytes) in pages {
            let piece = SharedBytes::new(PageRef::clone(bytes), 0..PAGE_BYTES);
            let is_next = next == Some(*place);
            next = Some(geometry.page_behind(*place));
            match &mut run {
                Some((_, pieces)) if is_next && pieces.len() < PAGES_PER_WRITE => {
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
        self.volume.submit_write(IoPurpose::Home, place, pieces)
    }

    fn write_group(&self, sequence: u64, lsn: Lsn, pages: &WriteBackPages) -> FsResult<()> {
        double_write::write_group(&self.volume, self.cache.pool_id(), (sequence, lsn), pages)
            .map_err(|error| self.fail(&error))?;
        self.flush_with_log(IoPurpose::DoubleWrite)
    }
}

fn take(buffer: &PageBuffer, round: u64) -> Option<PageRef> {
    let mut page = buffer.state.lock();
    if page.round == round {
        return None;
    }
    page.first_lsn = None;
    Some(PageRef::clone(&page.bytes))
}

fn oldest_needed(state: &JournalState) -> Lsn {
    if_planted!(TailPastDirtyPages, return state.log.position());
    let open = state.classes.values().map(|class| class.first_lsn).min();
    let waiting = state.log_data.keys().next().map(|id| id.lsn);
    let waiting = waiting.filter(|_| !planted!(TailPastLogData));
    [state.dirty_from, open, waiting].into_iter().flatten().min().unwrap_or(state.log.position())
}

/// Writes both copies of a head to its slots.
pub(super) fn write_head(
    volume: &Volume,
    pool_id: PoolId,
    head: &JournalHead,
) -> Result<(), DeviceError> {
    let (offset, copies) = copies_of(volume.geometry(), pool_id, head);
    volume.write_fixed(IoPurpose::Journal, offset, copies)
}

pub(super) fn copies_of(
    geometry: &Geometry,
    pool_id: PoolId,
    head: &JournalHead,
) -> (u64, AlignedBuffer) {
    let first = head.first_slot();
    let copies = (first..first + JOURNAL_HEAD_COPIES)
        .flat_map(|slot| head.encode(pool_id, geometry, slot))
        .collect::<Vec<u8>>();
    (geometry.journal_offset + first * 4096, AlignedBuffer::copy_of(&copies))
}

pub(crate) fn first_head(geometry: &Geometry) -> JournalHead {
    JournalHead {
        sequence: 1,
        tail: Lsn(ring_bytes(geometry)),
        previous_crc: 0,
        epoch: Epoch(1),
        double_write_sequence: 0,
    }
}

/// Writes both heads of a new journal. Does not flush.
pub(crate) fn write_first_heads(volume: &Volume, pool_id: PoolId) -> Result<(), DeviceError> {
    let head = first_head(volume.geometry());
    for sequence in [head.sequence - 1, head.sequence] {
        let head = JournalHead { sequence, ..head };
        write_head(volume, pool_id, &head)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use format::ids::{AnodeNo, FilesetId, Generation};
    use format::journal::LogDataOwner;

    use super::*;
    use crate::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::journal::LogCredits;
    use crate::journal::testing::new_pool;

    fn bytes_of(buffers: impl Iterator<Item = Arc<PageBuffer>>) -> BTreeMap<Place, Vec<u8>> {
        buffers.map(|buffer| (buffer.place, buffer.bytes().to_vec())).collect()
    }

    /// Goal: a checkpoint writes back no change made after its set was taken, for any sort of page
    /// (K1). Method: names, data and count pages change between taking the set and copying it.
    #[test]
    fn what_changes_after_the_set_was_taken_is_not_in_its_pages() {
        let pool = new_pool();
        let (root, caller) = (pool.root(), Caller::root());
        let new = NewInode::new(FileKind::Regular, 0o600);
        let write = |name: &[u8]| {
            let file = pool.create(&caller, root, name, new, None).expect("it is new").ino;
            pool.write(&caller, file, 0, &[1; 50_000]).expect("there is room");
            pool.fsync(&Caller::root(), file, false).expect("memory does not fail");
            pool.forget(file, 1);
        };
        write(b"before");
        let journal = &pool.core().store.journal;
        let set = journal.take_set();
        let before = bytes_of(set.dirty.values().cloned());
        write(b"after");
        pool.unlink(&caller, root, b"before", None).expect("it is there");
        let after = bytes_of(set.dirty.values().cloned());
        let changed: Vec<Place> =
            before.keys().copied().filter(|place| before[place] != after[place]).collect();
        assert!(changed.len() > 4, "{} pages changed", changed.len());

        let WriteBackBatch { newborn, moved, others, .. } = journal.take_pages(set);
        let taken: BTreeMap<Place, Vec<u8>> = [newborn, moved, others]
            .into_iter()
            .flatten()
            .map(|(place, bytes)| (place, bytes.to_vec()))
            .collect();
        assert!(taken == before, "pages went home with what came later");
    }

    /// Goal: the tail stays before inline log data until the data is known to be home. Method: two
    /// checkpoints run between the end of a transaction and the registration of its partial
    /// segments.
    #[test]
    fn the_tail_waits_for_log_data_that_no_segment_knows_of() {
        let pool = new_pool();
        let journal = &pool.core().store.journal;
        let mut tx = journal.begin(LogCredits::LARGE).expect("there is room");
        let owner = LogDataOwner {
            fileset: FilesetId(1),
            anode: AnodeNo(1),
            generation: Generation(1),
            index: 0,
            birth: tx.epoch,
            block_shift: 12,
        };
        tx.add_log_data(Place::NONE, owner, SharedBytes::from(AlignedBuffer::zeroed(4096)));
        let id = journal.end(tx).log_data.expect("it has inline log data");
        for _ in 0..2 {
            pool.checkpoint().expect("memory does not fail");
            assert!(journal.state.lock().tail <= id.lsn, "the tail has passed it");
        }
        journal.log_data_waits(id, 0, 0);
        pool.checkpoint().expect("memory does not fail");
        assert!(journal.state.lock().tail > id.lsn, "nothing holds it any more");
    }
}
