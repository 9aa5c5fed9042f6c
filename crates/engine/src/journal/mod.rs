//! Transactions, their classes, and the log that makes them last.
//!
//! A change to metadata is built as a [`Tx`], applied to pages in memory and logged with old and
//! new bytes ([`Journal::end`]), made durable by the commit of its class ([`Journal::commit`]), and
//! taken to the pages' homes later ([`Journal::checkpoint`]). After a crash `recovery` redoes the
//! log from its tail and undoes what was not committed.
//!
//! # Classes
//!
//! Transactions that touch the same page between two commits belong to one *equivalence class*,
//! which a crash keeps or undoes whole (Chutani and others, "The Episode File System", 1992).
//! Because a transaction declares and applies all its pages in one step under the manager's lock,
//! a class never has a running member when it closes: closing stamps the pages at once and nobody
//! waits.
//!
//! # Invariants
//!
//! - T1: A page belongs to at most one open class; touching pages of two classes merges them.
//! - T2: Only `begin` waits, and it is called with no lock held. `end` neither waits nor fails.
//! - T3: Log records of a page are durable before the page goes home (`checkpoint` alone writes
//!   pages, after forcing the log).
//! - T4: The active log and the reservations of running transactions stay within half of the ring,
//!   so the log cannot overflow.
//! - T5: After a failed write or flush nothing more is acknowledged: the journal has *failed*, and
//!   says so to everyone.
//!
//! # Concurrency
//!
//! Lock order within: turn in `begin`, checkpoint, turn to write the log, manager, buffers.

mod anew;
mod begin;
mod checkpoint;
mod commit;
mod copies;
mod data;
mod double_write;
mod failure;
mod log;
mod lsn_pages;
mod recovery;
mod ring;
#[cfg(test)]
mod testing;
mod tx;
mod waiters;

pub(crate) use begin::Reservation;
pub(crate) use checkpoint::{first_head, write_first_heads};
pub(crate) use copies::{align_head, check_log, head_at_rest};
pub(crate) use recovery::KeptLogData;
pub use recovery::{RecoveryError, RecoveryReport};
pub(crate) use recovery::{check_room, recover};
pub(crate) use tx::{Own, OwnRange, Tx};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use format::defect::DefectCode;
use format::geometry::{Geometry, JOURNAL_HEADS};
use format::ids::{Epoch, Lsn, Place};
use format::journal::{JournalHead, PageRuns, put_log_data, put_merge, put_page_image, put_update};
use format::page::{STAMP_BYTES, STAMP_OFFSET};
use format::superblock::Superblock;
use runtime::clock::Clock;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, Ticket};
use storage::volume::Volume;

use crate::buffer::{Buffer, BufferState, Cache, PageRef, page_of, page_of_mut};
use crate::convert::wide;
use crate::error::FsResult;
use crate::sync::{Condvar, Mutex};

use self::data::DataWrites;
use self::log::Log;
use self::tx::{Memory, buffers_of};
use self::waiters::CommitWaiters;

/// Most bytes of active log, so that a replay is bounded.
pub(crate) const ACTIVE_LOG_BYTES_DEFAULT: u64 = 32 << 20;
/// Most pages whose changes are not at home, so that a replay is bounded.
pub(crate) const DIRTY_PAGES_DEFAULT: usize = 4096;
/// A class with more pages than this is closed at once.
const CLASS_PAGES_MAX: usize = 128;
/// Memories of ended transactions that are kept: about as many as run at a time.
const SPARE_MEMORIES_MAX: usize = 16;

/// What `end` tells: which class the transaction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    /// The class, at that moment.
    pub(crate) class: u64,
    /// Position of the transaction's record.
    pub(crate) lsn: Lsn,
    /// Its inline log data, if it has any.
    pub(crate) log_data: Option<LogDataId>,
}

/// The inline log data of one transaction. Several may share a position: that of their chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogDataId {
    /// Position of the first.
    lsn: Lsn,
    /// Number of the transaction.
    epoch: Epoch,
}

/// How far home the inline log data of one transaction is.
#[derive(Clone, Copy, Debug)]
struct LogDataHome {
    /// Pieces of segments with their bytes that are not submitted.
    partial_segments: usize,
    /// The last data write with bytes of them.
    sequence: u64,
}

impl LogDataHome {
    fn is_home(&self, durable: u64) -> bool {
        self.partial_segments == 0 && self.sequence <= durable
    }
}

/// What the journal asks of the layers above it.
pub(crate) trait CheckpointHooks: Send + Sync {
    /// Submits the inline log data that is not yet on its way home, so that the tail
    /// can pass it.
    fn submit_log_data(&self);
    /// Everything freed before `tail` may be used again.
    fn released(&self, tail: Lsn);
}

/// An open class.
#[derive(Debug)]
struct Class {
    /// Pages it has changed.
    pages: Vec<Arc<Buffer>>,
    /// Its first record: the tail stays at or before it.
    first_lsn: Lsn,
    /// When it was opened, on the monotonic clock.
    opened_ns: u64,
    /// It may commit only after this data write is durable.
    data_sequence: u64,
    /// Classes that became part of it.
    absorbed: Vec<u64>,
}

/// What the manager's lock protects.
#[derive(Debug)]
struct State {
    log: Log,
    /// For transactions to come.
    spare: Vec<Memory>,
    classes: BTreeMap<u64, Class>,
    /// Class to the class that absorbed it; entries go when that one closes.
    merged: BTreeMap<u64, u64>,
    next_epoch: u64,
    /// Log bytes and pages that running transactions may still take.
    reserved_bytes: u64,
    reserved_pages: usize,
    reserved_moves: usize,
    /// How many wait in `begin`.
    waiting: usize,
    /// Whether somebody writes the log.
    is_log_written: bool,
    /// What others wait for.
    waiters: CommitWaiters,
    /// Behind the last commit record, and since when the oldest change of those has been there of
    /// which it is not known that they are durable.
    committed: (Lsn, u64),
    /// The log is needed from here on.
    tail: Lsn,
    /// The newest head that is durable.
    head: JournalHead,
    /// Pages whose changes are not at home, but for those that a checkpoint has taken.
    dirty: BTreeMap<Place, Arc<Buffer>>,
    /// The first record of them.
    dirty_from: Option<Lsn>,
    /// Counts the sets of dirty pages that checkpoints have taken.
    round: u64,
    /// Whether a checkpoint has taken a set and has yet to come to some of its pages.
    is_set_being_taken: bool,
    /// Pages as they were when a checkpoint took their set, which it has not come to yet and which
    /// have changed since.
    overtaken: BTreeMap<Place, PageRef>,
    /// Dirty pages that nothing at home points to yet: they go home first.
    newborn: BTreeSet<Place>,
    /// Dirty pages between which content moved: they go home together.
    moved: BTreeSet<Place>,
    /// Inline log data that is not home.
    log_data: BTreeMap<LogDataId, LogDataHome>,
}

/// Options of a journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalOptions {
    /// Most bytes of active log.
    pub(crate) active_bytes_max: u64,
    /// Most pages whose changes are not at home.
    pub(crate) dirty_pages_max: usize,
}

/// Where a journal begins: at creation or after a recovery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalStart {
    /// Position of the first chunk.
    pub(crate) lsn: Lsn,
    /// Checksum of the chunk before it.
    pub(crate) previous_crc: u32,
    /// First epoch to give out.
    pub(crate) epoch: Epoch,
    /// Sequence of the last head written.
    pub(crate) head_sequence: u64,
    /// Sequence of the last group in the double-write area.
    pub(crate) double_write_sequence: u64,
}

impl JournalStart {
    fn head(&self) -> JournalHead {
        JournalHead {
            sequence: self.head_sequence,
            tail: self.lsn,
            previous_crc: self.previous_crc,
            epoch: self.epoch,
            double_write_sequence: self.double_write_sequence,
        }
    }
}

/// The journal of a pool.
pub(crate) struct Journal {
    volume: Volume,
    cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    options: JournalOptions,
    state: Mutex<State>,
    /// Somebody who waits in `begin` may look again.
    space: Condvar,
    /// Whoever wrote the log has done so: what others wait for may be durable.
    written: Condvar,
    /// A commit waiter has come, or what others wait for may be durable.
    came: Condvar,
    /// Held by the first of those who wait in `begin`: the others wait for it.
    turn: Mutex<()>,
    /// Held by whoever checkpoints.
    checkpointer: Mutex<checkpoint::Checkpointer>,
    data: DataWrites,
    hooks: OnceLock<Weak<dyn CheckpointHooks>>,
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
    /// What the devices were called that the journal was on, if the last of them has failed.
    lost: Mutex<Option<String>>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    transactions: AtomicU64,
    commits: AtomicU64,
    checkpoints: AtomicU64,
    home_pages: AtomicU64,
    lsn_pages: AtomicU64,
    merges: AtomicU64,
}

/// What the journal has done so far, and how full it is.
#[derive(Clone, Copy, Debug)]
pub struct JournalCounts {
    /// Transactions applied.
    pub transactions: u64,
    /// Classes committed.
    pub commits: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Pages that checkpoints took home, LSN pages among them.
    pub home_pages: u64,
    /// LSN pages among these.
    pub lsn_pages: u64,
    /// Classes that became part of another.
    pub merges: u64,
    /// Classes that are not committed now.
    pub open_classes: usize,
    /// Bytes of records logged.
    pub record_bytes: u64,
    /// Bytes of active log now.
    pub active_bytes: u64,
    /// Most bytes of active log.
    pub active_bytes_max: u64,
    /// Pages whose changes are not at home now.
    pub dirty_pages: usize,
    /// Most such pages.
    pub dirty_pages_max: usize,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Returns the bytes of the ring that `geometry` has room for.
pub(crate) fn ring_bytes(geometry: &Geometry) -> u64 {
    geometry.journal_bytes - JOURNAL_HEADS * 4096
}

impl Journal {
    /// Opens the journal of a pool at `start`.
    pub(crate) fn new(
        volume: Volume,
        cache: Arc<Cache>,
        clock: Arc<dyn Clock>,
        superblock: &Superblock,
        options: JournalOptions,
        start: JournalStart,
    ) -> Journal {
        cache.log_ends_at(start.lsn);
        let ring_bytes = ring_bytes(volume.geometry());
        let log = Log::new(
            superblock.pool_id,
            superblock.writer_term,
            superblock.sector_bytes,
            ring_bytes,
            start.lsn,
            start.previous_crc,
            start.head_sequence,
        );
        let dirty_limit = crate::convert::index_wide(volume.geometry().double_write_pages);
        let options = JournalOptions {
            // T4: commits, padding and chunk headers have the other half of the ring.
            active_bytes_max: options
                .active_bytes_max
                .max(2 * Reservation::LARGE.log_bytes)
                .min(ring_bytes / 2),
            // Below what one transaction may ask for, `begin` would wait for ever.
            dirty_pages_max: options
                .dirty_pages_max
                .max(2 * Reservation::LARGE.pages)
                .min(dirty_limit.max(2 * Reservation::LARGE.pages)),
        };
        let state = State {
            log,
            spare: Vec::new(),
            classes: BTreeMap::new(),
            merged: BTreeMap::new(),
            next_epoch: start.epoch.0.max(1),
            reserved_bytes: 0,
            reserved_pages: 0,
            reserved_moves: 0,
            waiting: 0,
            is_log_written: false,
            waiters: CommitWaiters::default(),
            committed: (Lsn(0), 0),
            tail: start.lsn,
            head: start.head(),
            dirty: BTreeMap::new(),
            dirty_from: None,
            round: 1,
            is_set_being_taken: false,
            overtaken: BTreeMap::new(),
            newborn: BTreeSet::new(),
            moved: BTreeSet::new(),
            log_data: BTreeMap::new(),
        };
        let journal = Journal {
            data: DataWrites::new(volume.clone()),
            volume,
            cache,
            clock,
            options,
            state: Mutex::new(state),
            space: Condvar::new(),
            written: Condvar::new(),
            came: Condvar::new(),
            turn: Mutex::new(()),
            checkpointer: Mutex::new(checkpoint::Checkpointer {
                head_sequence: start.head_sequence,
                double_write_sequence: start.double_write_sequence,
                never_home: Vec::new(),
            }),
            hooks: OnceLock::new(),
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            lost: Mutex::new(None),
            counts: Counts::default(),
        };
        journal.keep_log_if_apart();
        journal
    }

    /// Connects the layers above; once, before the first checkpoint.
    pub(crate) fn connect(&self, hooks: Weak<dyn CheckpointHooks>) {
        assert!(self.hooks.set(hooks).is_ok(), "a journal is connected once");
    }

    fn hooks(&self) -> Option<Arc<dyn CheckpointHooks>> {
        self.hooks.get().and_then(Weak::upgrade)
    }

    /// Whether a checkpoint is worth while: half of a bound is used up.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.state.lock();
        let active = state.log.position().0 - state.tail.0;
        active * 2 > self.options.active_bytes_max
            || state.dirty.len() * 2 > self.options.dirty_pages_max
    }

    /// Declares, logs and applies all updates of a transaction, in one step (T2).
    pub(crate) fn end(&self, mut tx: Tx) -> Applied {
        tx.memory.compare();
        self.end_in(&mut self.state.lock(), tx)
    }

    /// As [`Journal::end`], of a transaction that was compared, for whoever has the manager's lock.
    fn end_in(&self, state: &mut State, mut tx: Tx) -> Applied {
        self.give_back(state, tx.reservation);
        if tx.is_empty() && tx.log_data.is_empty() {
            state.keep(tx.memory);
            return Applied { class: 0, lsn: state.log.position(), log_data: None };
        }
        if state.is_set_being_taken {
            state.leave_taken_set(&tx.memory);
        }
        if !tx.memory.apply_deltas() {
            self.fail_of(&DefectCode::AL001.found("a count would fall below zero"));
            return Applied { class: 0, lsn: state.log.position(), log_data: None };
        }
        self.counts.transactions.fetch_add(1, Ordering::Relaxed);
        for window in tx.memory.windows.iter_mut().filter(|window| window.buffer.is_none()) {
            window.buffer = Some(self.cache.fresh(window.place));
        }
        let class = self.join_class(state, &mut tx.memory);
        let logged_before = state.log.record_bytes;
        let log_data = self.put_log_data_of(state, class, &tx);
        assert!(
            tx.moved.len() <= tx.reservation.moves,
            "a transaction moves more than it reserved"
        );
        state.moved.extend(tx.moved.iter().copied());
        let lsn = self.apply(state, class, &tx);
        debug_assert!(
            tx.reservation.bears(state.log.record_bytes - logged_before, tx.memory.page_count()),
            "T4: a transaction logs {} bytes of {} pages, and reserved {:?}",
            state.log.record_bytes - logged_before,
            tx.memory.page_count(),
            tx.reservation,
        );
        let pages = state.classes.get(&class).map_or(0, |class| class.pages.len());
        if pages > CLASS_PAGES_MAX {
            self.close(state, class);
        }
        state.keep(tx.memory);
        Applied { class, lsn, log_data }
    }

    /// Puts the inline log data of `tx` into the log.
    fn put_log_data_of(&self, state: &mut State, class: u64, tx: &Tx) -> Option<LogDataId> {
        let mut first = None;
        for data in &tx.log_data {
            let mut record = Vec::with_capacity(data.data.len() + 96);
            put_log_data(&mut record, class, data.place, &data.owner, &data.data);
            let lsn = state.log.ensure_room(record.len());
            state.log.append(&record);
            first.get_or_insert(lsn);
        }
        let id = LogDataId { lsn: first?, epoch: tx.epoch };
        state.log_data.insert(id, LogDataHome { partial_segments: 1, sequence: 0 });
        Some(id)
    }

    /// Logs the pages of `tx`, changes them, and enters them in the class. Returns where its record
    /// is.
    fn apply(&self, state: &mut State, class: u64, tx: &Tx) -> Lsn {
        let memory = &tx.memory;
        let State { log, classes, dirty, dirty_from, round, newborn, .. } = state;
        let windows = || memory.windows.chunk_by(|a, b| a.place == b.place);
        let page_count = memory.page_count();
        let lsn = log.ensure_room(memory.record_bytes_max());
        let entry = classes.entry(class).or_insert_with(|| Class {
            pages: Vec::new(),
            first_lsn: lsn,
            opened_ns: self.clock.monotonic_ns(),
            data_sequence: 0,
            absorbed: Vec::new(),
        });
        entry.data_sequence = entry.data_sequence.max(tx.data_sequence);
        let mut enter = |buffer: &Arc<Buffer>, page: &mut BufferState| {
            page.last_lsn = lsn;
            if page.first_lsn.is_none() {
                page.first_lsn = Some(lsn);
                page.round = *round;
                dirty.insert(buffer.place, Arc::clone(buffer));
                dirty_from.get_or_insert(lsn);
            }
            if buffer.class() != class {
                buffer.set_class(class);
                entry.pages.push(Arc::clone(buffer));
            }
        };
        let page_count = u16::try_from(page_count).expect("TX_PAGES_MAX");
        log.append_with(|log| {
            put_update(log, class, tx.epoch, page_count, |log| {
                for windows in windows() {
                    let first = windows.first().expect("no chunk is empty");
                    let buffer = first.buffer.as_ref().expect("the end gave new pages theirs");
                    let mut page = buffer.state.lock();
                    if first.is_new {
                        newborn.insert(first.place);
                        let image = memory.new_page(first);
                        put_page_image(log, first.place, image);
                        page.bytes = Arc::new(AlignedBuffer::copy_of(image));
                    } else {
                        let stamp = first_stamp(buffer, &page);
                        let mut runs = PageRuns::begin(log, first.place, stamp);
                        let current = page_of_mut(Arc::make_mut(&mut page.bytes));
                        for window in windows {
                            memory.log_and_apply(&mut runs, window, current);
                        }
                        runs.end();
                    }
                    enter(buffer, &mut page);
                }
                for delta_page in &memory.delta_pages {
                    let mut page = delta_page.buffer.state.lock();
                    let stamp = first_stamp(&delta_page.buffer, &page);
                    let mut runs = PageRuns::begin(log, delta_page.buffer.place, stamp);
                    memory.log_deltas(&mut runs, delta_page, page_of(&page.bytes));
                    runs.end();
                    enter(&delta_page.buffer, &mut page);
                }
            });
        });
        lsn
    }

    /// T1: returns the open class that all pages of a transaction are in or will be in, merging
    /// those they are in now.
    fn join_class(&self, state: &mut State, memory: &mut Memory) -> u64 {
        let Memory { windows, delta_pages, classes, .. } = memory;
        for buffer in buffers_of(windows, delta_pages) {
            let class = buffer.class();
            if class != 0 && !classes.contains(&class) {
                classes.push(class);
            }
        }
        classes.sort_unstable();
        let Some((&into, others)) = classes.split_first() else {
            let class = state.next_epoch;
            state.next_epoch += 1;
            return class;
        };
        for class in others.iter().filter(|_| !planted::is(Planted::ClassSplit)) {
            self.merge(state, *class, into);
        }
        into
    }

    fn merge(&self, state: &mut State, class: u64, into: u64) {
        self.counts.merges.fetch_add(1, Ordering::Relaxed);
        let mut record = Vec::new();
        put_merge(&mut record, class, into);
        state.log.ensure_room(record.len());
        state.log.append(&record);
        let absorbed = state.classes.remove(&class).expect("a page's class is open");
        for buffer in &absorbed.pages {
            buffer.set_class(into);
        }
        let target = state.classes.get_mut(&into).expect("a page's class is open");
        target.pages.extend(absorbed.pages);
        target.first_lsn = target.first_lsn.min(absorbed.first_lsn);
        target.opened_ns = target.opened_ns.min(absorbed.opened_ns);
        target.data_sequence = target.data_sequence.max(absorbed.data_sequence);
        target.absorbed.extend(absorbed.absorbed);
        target.absorbed.push(class);
        state.merged.insert(class, into);
    }

    /// Hands a submitted data write over; returns the number that commits wait for.
    pub(crate) fn data_submitted(&self, ticket: Ticket) -> u64 {
        self.data.submitted(ticket)
    }

    /// Returns up to which number data writes are answered.
    pub(crate) fn data_answered(&self) -> u64 {
        self.data.answered()
    }

    /// Collects the answers of data writes if none was submitted since the last call.
    pub(crate) fn collect_idle_data(&self) -> FsResult<()> {
        self.data.collect_idle().map_err(|error| self.fail(&error))
    }

    /// Waits until at most `count` data writes are in flight.
    pub(crate) fn wait_for_data(&self, count: usize) -> FsResult<()> {
        self.data.wait_until(count).map_err(|error| self.fail(&error))
    }

    /// The inline log data lies in `partial_segments` partial segments that are not submitted; the
    /// others go home with data writes up to `sequence`.
    pub(crate) fn log_data_waits(&self, id: LogDataId, partial_segments: usize, sequence: u64) {
        if let Some(home) = self.state.lock().log_data.get_mut(&id) {
            *home = LogDataHome { partial_segments, sequence };
        }
    }

    /// One partial segment with the inline log data goes home with data write `sequence`.
    pub(crate) fn log_data_submitted(&self, id: LogDataId, sequence: u64) {
        if let Some(home) = self.state.lock().log_data.get_mut(&id) {
            home.partial_segments = home.partial_segments.saturating_sub(1);
            home.sequence = home.sequence.max(sequence);
        }
    }

    /// Returns an epoch for the birth of blocks that are submitted now.
    pub(crate) fn birth(&self) -> Epoch {
        Epoch(self.state.lock().next_epoch)
    }

    /// Returns the position in the log, for summaries.
    pub(crate) fn position(&self) -> Lsn {
        self.state.lock().log.position()
    }

    /// Returns what the journal has done so far.
    pub(crate) fn counts(&self) -> JournalCounts {
        let state = self.state.lock();
        JournalCounts {
            transactions: self.counts.transactions.load(Ordering::Relaxed),
            commits: self.counts.commits.load(Ordering::Relaxed),
            checkpoints: self.counts.checkpoints.load(Ordering::Relaxed),
            home_pages: self.counts.home_pages.load(Ordering::Relaxed),
            lsn_pages: self.counts.lsn_pages.load(Ordering::Relaxed),
            merges: self.counts.merges.load(Ordering::Relaxed),
            open_classes: state.classes.len(),
            record_bytes: state.log.record_bytes,
            active_bytes: state.log.position().0 - state.tail.0,
            active_bytes_max: self.options.active_bytes_max,
            dirty_pages: state.dirty.len(),
            dirty_pages_max: self.options.dirty_pages_max,
        }
    }
}

impl State {
    /// Keeps what is about to change as it is, for the checkpoint that has taken its set of dirty
    /// pages, unless the checkpoint has been there. From here on it is in no set.
    ///
    /// CRASH: before the first byte changes, or the checkpoint would take home what is not in the
    /// log that it has forced (K1).
    fn leave_taken_set(&mut self, memory: &Memory) {
        for buffer in buffers_of(&memory.windows, &memory.delta_pages) {
            let mut page = buffer.state.lock();
            if page.first_lsn.is_some() && page.round != self.round {
                self.overtaken.insert(buffer.place, PageRef::clone(&page.bytes));
                page.first_lsn = None;
                page.round = self.round;
            }
        }
    }

    /// Keeps the memory of a transaction for others.
    fn keep(&mut self, mut memory: Memory) {
        if self.spare.len() < SPARE_MEMORIES_MAX {
            memory.clear();
            self.spare.push(memory);
        }
    }
}

/// The stamp as it is, if no open class has touched the page yet.
fn first_stamp<'p>(buffer: &Buffer, page: &'p BufferState) -> Option<&'p [u8]> {
    (buffer.class() == 0).then(|| &page.bytes[STAMP_OFFSET..STAMP_OFFSET + STAMP_BYTES])
}

/// Bytes that the commit of a class with `pages` pages takes.
fn commit_record_bytes(pages: usize) -> u64 {
    wide(format::journal::RECORD_HEAD_BYTES + 8 + pages * format::journal::COMMIT_PAGE_BYTES)
}
