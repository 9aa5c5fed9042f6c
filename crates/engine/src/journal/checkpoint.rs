//! Checkpoint: taking pages home so that the log's tail can move.
//!
//! The only writer of pages. It closes every class and takes the dirty pages as they are at that
//! moment, so what goes home is always a committed state; changes that follow do not disturb it,
//! nor it them: it holds neither the manager nor the device for long.
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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::geometry::{Geometry, JOURNAL_HEAD_COPIES};
use format::ids::{Epoch, Lsn, Place, PoolId};
use format::journal::JournalHead;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, SharedBytes, Ticket};
use storage::volume::Volume;

use super::{Journal, State, double_write, ring_bytes};
use crate::buffer::{Buffer, PageRef};
use crate::convert::wide;
use crate::error::FsResult;

/// Pages that lie side by side are written together, at most so many.
const PAGES_PER_WRITE: usize = 64;
/// Pages that are written between two flushes: a device that is told to flush answers nobody until
/// all that it holds is written, so it is never given much.
const PAGES_PER_FLUSH: usize = 64;

/// What the next checkpoint goes on from.
#[derive(Debug)]
pub(super) struct Checkpointer {
    pub(super) head_sequence: u64,
    pub(super) double_write_sequence: u64,
    /// Pages of a checkpoint that failed: memory alone has them, so they stay there.
    pub(super) never_home: Vec<Arc<Buffer>>,
}

/// Pages by rising place.
type Pages = Vec<(Place, PageRef)>;

/// The dirty pages at the moment when all classes were closed, which nobody has looked at yet.
struct TakenSet {
    dirty: BTreeMap<Place, Arc<Buffer>>,
    newborn: BTreeSet<Place>,
    moved: BTreeSet<Place>,
    /// The log must be durable up to here before they go home.
    end: Lsn,
    /// The set that changes go into from then on.
    round: u64,
}

/// The dirty pages of one checkpoint, as they were when the classes closed.
struct Batch {
    /// Pages that nothing at home points to yet.
    newborn: Pages,
    /// Pages that go home together.
    moved: Pages,
    /// All others.
    others: Pages,
    /// Buffers stay in the cache until their pages are home.
    held: Vec<Arc<Buffer>>,
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
        let mut batch = self.take_pages(self.take_set());
        let logged =
            if planted::is(Planted::HomeBeforeLog) { Ok(()) } else { self.force(batch.end) };
        if let Some(hooks) = self.hooks() {
            // Behind the log, for which others wait: a device that makes it durable may write out
            // all that it holds.
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

    /// Takes the set of dirty pages, as they are when all classes are closed. Only for that moment
    /// is the manager held up.
    fn take_set(&self) -> TakenSet {
        self.close_opened_before(u64::MAX);
        let mut state = self.close_and_list();
        state.round += 1;
        state.dirty_from = None;
        state.is_set_being_taken = true;
        let end = state.log.cut();
        self.cache.log_ends_at(end);
        TakenSet {
            dirty: std::mem::take(&mut state.dirty),
            newborn: std::mem::take(&mut state.newborn),
            moved: std::mem::take(&mut state.moved),
            end,
            round: state.round,
        }
    }

    /// Takes the pages of a set as they were when it was taken; what changes before its page is
    /// come to, the manager keeps as it was.
    fn take_pages(&self, set: TakenSet) -> Batch {
        let TakenSet { dirty, newborn, moved, end, round } = set;
        let held: Vec<Arc<Buffer>> = dirty.into_values().collect();
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
        Batch { newborn: of_newborn, moved: of_moved, others, held, end }
    }

    fn take_home(&self, checkpointer: &mut Checkpointer, batch: &Batch) -> FsResult<Lsn> {
        let failed = |error: DeviceError| self.fail(&error);
        // CRASH: K2, newborn pages first.
        self.write_pages(&batch.newborn)?;
        if !batch.newborn.is_empty() && !planted::is(Planted::NewbornPagesLast) {
            self.flush_with_log(Purpose::Home)?;
        }
        if !batch.moved.is_empty() && !planted::is(Planted::DoubleWriteSkipped) {
            checkpointer.double_write_sequence += 1;
            self.write_group(checkpointer.double_write_sequence, batch.end, &batch.moved)?;
        }
        let drained = self.data.drain().map_err(failed)?;
        self.write_pages(&batch.moved)?;
        self.write_pages(&batch.others)?;
        if !planted::is(Planted::HeadBeforeHome) {
            self.flush_with_log(Purpose::Home)?;
        }
        self.data.flushed(drained);
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
        self.flush_head(&head)?;
        let mut state = self.state.lock();
        state.tail = tail;
        state.log.head = head.sequence;
        state.head = head;
        state.log.forget_before(tail);
        Ok(tail)
    }

    /// Returns the first position that a recovery would need now.
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

    /// Writes pages home, a few at a time: the last of them are not flushed.
    fn write_pages(&self, pages: &Pages) -> FsResult<()> {
        let mut portions = pages.chunks(PAGES_PER_FLUSH).peekable();
        while let Some(portion) = portions.next() {
            self.write_portion(portion).map_err(|error| self.fail(&error))?;
            if portions.peek().is_some() {
                self.flush_with_log(Purpose::Home)?;
            }
        }
        Ok(())
    }

    /// Writes pages home, those that lie side by side together.
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
        self.volume.submit_write(Purpose::Home, place, pieces)
    }

    /// Writes pages to the double-write area and flushes: from then on they reach home together.
    fn write_group(&self, sequence: u64, lsn: Lsn, pages: &Pages) -> FsResult<()> {
        double_write::write_group(&self.volume, self.cache.pool_id(), (sequence, lsn), pages)
            .map_err(|error| self.fail(&error))?;
        self.flush_with_log(Purpose::DoubleWrite)
    }
}

/// Takes a page as it is, unless it is in a later set than the one before `round` already.
fn take(buffer: &Buffer, round: u64) -> Option<PageRef> {
    let mut page = buffer.state.lock();
    if page.round == round {
        return None;
    }
    page.first_lsn = None;
    Some(PageRef::clone(&page.bytes))
}

fn oldest_needed(state: &State) -> Lsn {
    if planted::is(Planted::TailPastDirtyPages) {
        return state.log.position();
    }
    let open = state.classes.values().map(|class| class.first_lsn).min();
    let waiting = state.log_data.keys().next().map(|id| id.lsn);
    let waiting = waiting.filter(|_| !planted::is(Planted::TailPastLogData));
    [state.dirty_from, open, waiting].into_iter().flatten().min().unwrap_or(state.log.position())
}

/// Writes the copies of a head where their turn is.
pub(super) fn write_head(
    volume: &Volume,
    pool_id: PoolId,
    head: &JournalHead,
) -> Result<(), DeviceError> {
    let (offset, copies) = copies_of(volume.geometry(), pool_id, head);
    volume.write_fixed(Purpose::Journal, offset, copies)
}

/// Returns the copies of a head, and where their turn is.
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

/// Makes the first head of a new journal.
pub(crate) fn first_head(geometry: &Geometry) -> JournalHead {
    JournalHead {
        sequence: 1,
        tail: Lsn(ring_bytes(geometry)),
        previous_crc: 0,
        epoch: Epoch(1),
        double_write_sequence: 0,
    }
}

/// Writes both heads of a new journal, not yet durable.
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
    use crate::journal::Reservation;
    use crate::journal::testing::new_pool;
    use crate::vnode::api::{Caller, FileKind, FileSystem, NewInode};

    fn bytes_of(buffers: impl Iterator<Item = Arc<Buffer>>) -> BTreeMap<Place, Vec<u8>> {
        buffers.map(|buffer| (buffer.place, buffer.bytes().to_vec())).collect()
    }

    /// Goal: a checkpoint takes home no change that came after its set was taken, of whatever sort
    /// of page (K1). Method: names, data and pages of counts change between the two.
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

        let Batch { newborn, moved, others, .. } = journal.take_pages(set);
        let taken: BTreeMap<Place, Vec<u8>> = [newborn, moved, others]
            .into_iter()
            .flatten()
            .map(|(place, bytes)| (place, bytes.to_vec()))
            .collect();
        assert!(taken == before, "pages went home with what came later");
    }

    /// Goal: the tail stays before inline log data until it is known to be home. Method: between
    /// the end of a transaction and the moment when its segments hear of it there are two
    /// checkpoints, which so send nothing of them home.
    #[test]
    fn the_tail_waits_for_log_data_that_no_segment_knows_of() {
        let pool = new_pool();
        let journal = &pool.core().store.journal;
        let mut tx = journal.begin(Reservation::LARGE).expect("there is room");
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
