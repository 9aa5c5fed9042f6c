//! The metadata journal: transactions, their equivalence classes, and the write-ahead log.
//!
//! A change to metadata is built as a [`Tx`], applied to pages in memory and logged with old and
//! new bytes ([`Journal::end`]), made durable by the commit of its class ([`Journal::commit`]), and
//! written back to the pages' home locations later ([`Journal::checkpoint`]). After a crash
//! `recovery` redoes the log from its tail and undoes uncommitted classes.
//!
//! # Classes
//!
//! Transactions that touch the same page between two commits belong to one *equivalence class*,
//! which a crash keeps or undoes whole (Chutani and others, "The Episode File System", 1992). A
//! transaction declares and applies all its pages in one step under the manager's lock. So a class
//! has no running member when it closes, and closing stamps the pages at once, without a wait.
//!
//! # Invariants
//!
//! - T1: A page belongs to at most one open class; touching pages of two classes merges them.
//! - T2: Only `begin` waits, and its callers hold no lock. `end` neither waits nor fails.
//! - T3: Log records of a page are durable before the page is written back (`checkpoint` alone
//!   writes pages, after forcing the log).
//! - T4: The active log and the log credits of running transactions stay within half of the ring,
//!   so the log cannot overflow.
//! - T5: After a failed write or flush nothing more is acknowledged: the journal has *failed*, and
//!   every later operation gets that error.
//!
//! # Concurrency
//!
//! Lock order inside the journal: `turn` (waiters in `begin`), checkpoint, log writer, manager,
//! buffers.

mod begin;
mod checkpoint;
mod commit;
mod copies;
mod data;
mod double_write;
mod failure;
mod log;
mod lost;
mod lsn_pages;
mod recovery;
mod ring;
#[cfg(test)]
mod testing;
mod tx;
mod waiters;

pub(crate) use begin::LogCredits;
pub(crate) use checkpoint::{first_head, write_first_heads};
pub(crate) use copies::{align_head, check_log, head_at_rest};
pub use recovery::{RecoveryError, RecoveryReport};
pub(crate) use recovery::{ReplayedLogData, check_room, recover};
pub(crate) use tx::{Tx, TxPage, TxPageRange};

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
use runtime::planted;
use storage::device::{AlignedBuffer, Ticket};
use storage::volume::Volume;

use crate::buffer::{BufferState, Cache, PageBuffer, PageRef, page_of, page_of_mut};
use crate::convert::wide;
use crate::error::FsResult;
use crate::sync::{Condvar, Mutex};

use self::data::DataWrites;
use self::log::LogBuffer;
use self::tx::{TxMemory, buffers_of};
use self::waiters::CommitWaiters;

/// Bytes of active log: bounds the time of a replay.
pub(crate) const ACTIVE_LOG_BYTES_DEFAULT: u64 = 32 << 20;
pub(crate) const DIRTY_PAGES_DEFAULT: usize = 4096;
const CLASS_PAGES_MAX: usize = 128;
const SPARE_MEMORIES_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedTx {
    pub(crate) class: u64,
    pub(crate) lsn: Lsn,
    pub(crate) log_data: Option<LogDataId>,
}

/// Inline log data of one transaction. Several transactions may share an `lsn`, that of their
/// chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LogDataId {
    lsn: Lsn,
    epoch: Epoch,
}

#[derive(Clone, Copy, Debug)]
struct LogDataHome {
    /// Partial segments with its blocks that are not yet submitted.
    partial_segments: usize,
    sequence: u64,
}

impl LogDataHome {
    fn is_home(&self, durable: u64) -> bool {
        self.partial_segments == 0 && self.sequence <= durable
    }
}

pub(crate) trait CheckpointHooks: Send + Sync {
    /// Submits inline log data that is only in the log as data writes, so that the tail can pass
    /// it.
    fn submit_log_data(&self);
    /// Releases the deferred frees before `tail` for reuse.
    fn released(&self, tail: Lsn);
}

#[derive(Debug)]
struct EquivalenceClass {
    pages: Vec<Arc<PageBuffer>>,
    /// LSN of the first record: the tail stays at or before it.
    first_lsn: Lsn,
    opened_ns: u64,
    /// The class may commit only after this data write is durable.
    data_sequence: u64,
    absorbed: Vec<u64>,
}

#[derive(Debug)]
struct JournalState {
    log: LogBuffer,
    spare: Vec<TxMemory>,
    classes: BTreeMap<u64, EquivalenceClass>,
    /// Absorbed class to absorbing class, until that closes.
    merged: BTreeMap<u64, u64>,
    next_epoch: u64,
    reserved_bytes: u64,
    reserved_pages: usize,
    reserved_moves: usize,
    waiting: usize,
    is_log_written: bool,
    waiters: CommitWaiters,
    /// End of the last commit record, and the opening time (monotonic) of the oldest closed class
    /// that may not be durable.
    committed: (Lsn, u64),
    tail: Lsn,
    head: JournalHead,
    /// Dirty pages, without those that a running checkpoint has taken.
    dirty: BTreeMap<Place, Arc<PageBuffer>>,
    dirty_from: Option<Lsn>,
    /// Number of the current set of dirty pages; each checkpoint takes a set.
    round: u64,
    /// A checkpoint has taken a set and not yet copied all its pages.
    is_set_being_taken: bool,
    /// Frozen copies of pages of the taken set that changed before the checkpoint reached them.
    overtaken: BTreeMap<Place, PageRef>,
    /// Dirty pages that no written-back page points to: a checkpoint writes them first.
    newborn: BTreeSet<Place>,
    /// Dirty pages between which content moved: a checkpoint writes them as one group.
    moved: BTreeSet<Place>,
    log_data: BTreeMap<LogDataId, LogDataHome>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalOptions {
    pub(crate) active_bytes_max: u64,
    pub(crate) dirty_pages_max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalStart {
    pub(crate) lsn: Lsn,
    pub(crate) previous_crc: u32,
    pub(crate) epoch: Epoch,
    pub(crate) head_sequence: u64,
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

pub(crate) struct Journal {
    volume: Volume,
    cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    options: JournalOptions,
    state: Mutex<JournalState>,
    /// Signals the waiter in `begin` that holds `turn`.
    space: Condvar,
    /// Signalled when a log writer has finished.
    written: Condvar,
    /// Signals that a commit delay may end.
    came: Condvar,
    /// Held by the first waiter in `begin`.
    turn: Mutex<()>,
    checkpointer: Mutex<checkpoint::Checkpointer>,
    data: DataWrites,
    hooks: OnceLock<Weak<dyn CheckpointHooks>>,
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
    /// Names of the journal's own devices, once all have failed.
    lost: Mutex<Option<String>>,
    counts: JournalCounters,
}

#[derive(Debug, Default)]
struct JournalCounters {
    transactions: AtomicU64,
    commits: AtomicU64,
    checkpoints: AtomicU64,
    home_pages: AtomicU64,
    lsn_pages: AtomicU64,
    merges: AtomicU64,
}

/// Counters of the journal, and how full it is.
#[derive(Clone, Copy, Debug)]
pub struct JournalCounts {
    /// Transactions applied.
    pub transactions: u64,
    /// Classes committed.
    pub commits: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// Pages written back by checkpoints, LSN pages included.
    pub home_pages: u64,
    /// LSN pages written back by checkpoints.
    pub lsn_pages: u64,
    /// Classes merged into another.
    pub merges: u64,
    /// Classes that are open.
    pub open_classes: usize,
    /// Bytes of records logged.
    pub record_bytes: u64,
    /// Bytes of active log.
    pub active_bytes: u64,
    /// Bound of the active log, in bytes.
    pub active_bytes_max: u64,
    /// Dirty pages, without those that a running checkpoint has taken.
    pub dirty_pages: usize,
    /// Bound of the number of dirty pages.
    pub dirty_pages_max: usize,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Returns the size of the journal region without its heads.
pub(crate) fn ring_bytes(geometry: &Geometry) -> u64 {
    geometry.journal_bytes - JOURNAL_HEADS * 4096
}

impl Journal {
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
        let log = LogBuffer::new(
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
                .max(2 * LogCredits::LARGE.log_bytes)
                .min(ring_bytes / 2),
            // Below the worst case of one transaction, `begin` would wait for ever.
            dirty_pages_max: options
                .dirty_pages_max
                .max(2 * LogCredits::LARGE.pages)
                .min(dirty_limit.max(2 * LogCredits::LARGE.pages)),
        };
        let state = JournalState {
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
            counts: JournalCounters::default(),
        };
        journal.lost_log().keep_log_if_apart();
        journal
    }

    pub(crate) fn connect(&self, hooks: Weak<dyn CheckpointHooks>) {
        assert!(self.hooks.set(hooks).is_ok(), "a journal is connected once");
    }

    fn hooks(&self) -> Option<Arc<dyn CheckpointHooks>> {
        self.hooks.get().and_then(Weak::upgrade)
    }

    /// Returns whether half of the log or of the dirty pages is used up.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        let state = self.state.lock();
        let active = state.log.position().0 - state.tail.0;
        active * 2 > self.options.active_bytes_max
            || state.dirty.len() * 2 > self.options.dirty_pages_max
    }

    /// Declares, logs and applies all updates of a transaction, in one step (T2).
    pub(crate) fn end(&self, mut tx: Tx) -> AppliedTx {
        tx.memory.compare();
        self.end_in(&mut self.state.lock(), tx)
    }

    /// [`Journal::end`] after [`TxMemory::compare`], for a caller that holds the manager's lock.
    fn end_in(&self, state: &mut JournalState, mut tx: Tx) -> AppliedTx {
        self.give_back(state, tx.reservation);
        if tx.is_empty() && tx.log_data.is_empty() {
            state.keep(tx.memory);
            return AppliedTx { class: 0, lsn: state.log.position(), log_data: None };
        }
        if state.is_set_being_taken {
            state.leave_taken_set(&tx.memory);
        }
        if !tx.memory.apply_deltas() {
            self.fail_of(&DefectCode::AL001.found("a count would fall below zero"));
            return AppliedTx { class: 0, lsn: state.log.position(), log_data: None };
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
        AppliedTx { class, lsn, log_data }
    }

    fn put_log_data_of(&self, state: &mut JournalState, class: u64, tx: &Tx) -> Option<LogDataId> {
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

    /// Logs and changes the pages of `tx`; returns the record's LSN.
    fn apply(&self, state: &mut JournalState, class: u64, tx: &Tx) -> Lsn {
        let memory = &tx.memory;
        let JournalState { log, classes, dirty, dirty_from, round, newborn, .. } = state;
        let windows = || memory.windows.chunk_by(|a, b| a.place == b.place);
        let page_count = memory.page_count();
        let lsn = log.ensure_room(memory.record_bytes_max());
        let entry = classes.entry(class).or_insert_with(|| EquivalenceClass {
            pages: Vec::new(),
            first_lsn: lsn,
            opened_ns: self.clock.monotonic_ns(),
            data_sequence: 0,
            absorbed: Vec::new(),
        });
        entry.data_sequence = entry.data_sequence.max(tx.data_sequence);
        let mut enter = |buffer: &Arc<PageBuffer>, page: &mut BufferState| {
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

    /// Merges the classes of the transaction's pages (T1). Returns the result, or a new class.
    fn join_class(&self, state: &mut JournalState, memory: &mut TxMemory) -> u64 {
        let TxMemory { windows, delta_pages, classes, .. } = memory;
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
        for class in others.iter().filter(|_| !planted!(ClassSplit)) {
            self.merge(state, *class, into);
        }
        into
    }

    fn merge(&self, state: &mut JournalState, class: u64, into: u64) {
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

    /// Registers a data write; returns the sequence number that commits depend on.
    pub(crate) fn data_submitted(&self, ticket: Ticket) -> u64 {
        self.data.submitted(ticket)
    }

    /// Returns the number up to which all data writes have succeeded, durable or not.
    pub(crate) fn data_answered(&self) -> u64 {
        self.data.answered()
    }

    pub(crate) fn collect_idle_data(&self) -> FsResult<()> {
        self.data.collect_idle().map_err(|error| self.fail(&error))
    }

    pub(crate) fn wait_for_data(&self, count: usize) -> FsResult<()> {
        self.data.wait_until(count).map_err(|error| self.fail(&error))
    }

    /// Records that inline log data is in `partial_segments` unsubmitted partial segments, and for
    /// the rest in data writes up to `sequence`.
    pub(crate) fn log_data_waits(&self, id: LogDataId, partial_segments: usize, sequence: u64) {
        if let Some(home) = self.state.lock().log_data.get_mut(&id) {
            *home = LogDataHome { partial_segments, sequence };
        }
    }

    /// Records that one partial segment with the inline log data is submitted as data write
    /// `sequence`.
    pub(crate) fn log_data_submitted(&self, id: LogDataId, sequence: u64) {
        if let Some(home) = self.state.lock().log_data.get_mut(&id) {
            home.partial_segments = home.partial_segments.saturating_sub(1);
            home.sequence = home.sequence.max(sequence);
        }
    }

    pub(crate) fn birth(&self) -> Epoch {
        Epoch(self.state.lock().next_epoch)
    }

    pub(crate) fn position(&self) -> Lsn {
        self.state.lock().log.position()
    }

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

impl JournalState {
    /// Freezes the pages that `memory` is about to change, if the running checkpoint has taken but
    /// not yet copied them. They then belong to no set.
    ///
    /// CRASH: before the first byte changes. Otherwise the checkpoint would write back changes that
    /// are not in the log it has forced (K1).
    fn leave_taken_set(&mut self, memory: &TxMemory) {
        for buffer in buffers_of(&memory.windows, &memory.delta_pages) {
            let mut page = buffer.state.lock();
            if page.first_lsn.is_some() && page.round != self.round {
                self.overtaken.insert(buffer.place, PageRef::clone(&page.bytes));
                page.first_lsn = None;
                page.round = self.round;
            }
        }
    }

    fn keep(&mut self, mut memory: TxMemory) {
        if self.spare.len() < SPARE_MEMORIES_MAX {
            memory.clear();
            self.spare.push(memory);
        }
    }
}

/// Returns the page's stamp for the undo record, if no open class has changed the page yet.
fn first_stamp<'p>(buffer: &PageBuffer, page: &'p BufferState) -> Option<&'p [u8]> {
    (buffer.class() == 0).then(|| &page.bytes[STAMP_OFFSET..STAMP_OFFSET + STAMP_BYTES])
}

fn commit_record_bytes(pages: usize) -> u64 {
    wide(format::journal::RECORD_HEAD_BYTES + 8 + pages * format::journal::COMMIT_PAGE_BYTES)
}

runtime::view! {
    /// The journal, while its devices are lost or come back.
    pub(crate) struct LostLog of Journal;
    /// Returns the operations for a journal whose devices may be lost.
    fn lost_log;
}
