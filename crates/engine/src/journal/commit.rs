//! Commit: closes classes and makes the log durable, with one durable write for many callers.
//!
//! # Crashes
//!
//! The commit of a class is in the log only after every data write that the class points to is
//! durable, and it is acknowledged only after the flush behind it (J1). Recovery stops at a torn
//! chunk, so neither that chunk nor a later one counts.
//!
//! # Commit waiters
//!
//! A caller that wants a class durable is a *commit waiter*. It blocks ([`Journal::commit`]), or it
//! leaves a completion callback and goes on ([`Journal::commit_then`]). The first caller that
//! leaves a callback becomes the *leader*: it writes the log, or waits for another writer, runs the
//! callbacks of all served waiters, and stays until no callback is left.
//!
//! On a slow device the leader waits before it writes (*commit delay*), until there are as many
//! waiters as the last write served plus those that arrived during that write (decision 0039).
//! Clients just completed come back soon; without the delay they would find a write in progress for
//! the few others. The delay is at most a quarter of the time of the last write, and at most
//! [`DELAY_NS_MAX`].
//!
//! - W1: While a callback is listed, there is a leader. Both change under the manager's lock.
//! - W2: Each callback runs once: with `Ok` only when the log is durable up to its waiter's `end`,
//!   else with the error of the failed journal. It is listed until then, so a panic in one callback
//!   costs the others an error at most.
//! - W3: At most [`CALLBACKS_MAX`] are kept; the next caller blocks.
//! - W4: A journal whose writer panicked has failed: chunks may be neither in the log nor on the
//!   list.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::defect::DefectCode;
use format::ids::Lsn;
use format::journal::{JournalHead, put_commit};
use format::page::stamp;
use runtime::{if_planted, planted};
use storage::device::{DeviceError, DeviceOperation, IoPurpose};
use storage::volume::ActiveJournalRanges;

use super::copies::active_pieces;
use super::log::SealedChunk;
use super::waiters::{CALLBACKS_MAX, CommitDelay, CommitWaiters};
use super::{EquivalenceClass, Journal, JournalState, commit_record_bytes, ring_bytes};
use crate::buffer::page_of_mut;
use crate::convert::index_wide;
use crate::error::{Completion, FsError, FsResult};
use crate::sync::MutexGuard;

/// Bounds each hold of the manager's lock to a tenth of a millisecond.
const PAGES_PER_CLOSING: usize = 128;

/// A log write that takes this long is worth a delay before the next one.
const SLOW_WRITE_NS: u64 = 1_000_000;
/// The delay is at most this fraction of the last write's time.
const DELAY_SHARE: u64 = 4;
/// Longest delay: on a slower disk a longer one would not pay.
const DELAY_NS_MAX: u64 = 4_000_000;

/// The thread that writes the log for waiters with callbacks, and runs the callbacks.
struct CommitLeader<'a> {
    journal: &'a Journal,
    has_left: bool,
}

impl CommitLeader<'_> {
    fn leaves(&mut self) -> bool {
        let waiters = &mut self.journal.state.lock().waiters;
        self.has_left = waiters.callbacks() == 0;
        waiters.has_leader = !self.has_left;
        self.has_left
    }

    fn next_left(&self) -> Option<Completion> {
        let waiters = &mut self.journal.state.lock().waiters;
        let callback = waiters.take_any();
        waiters.has_leader = callback.is_some();
        callback
    }
}

impl Drop for CommitLeader<'_> {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        // A panic ended the leader: no other thread would run the remaining callbacks (W2).
        while let Some(callback) = self.next_left() {
            let error = self.journal.check_alive().err();
            callback(Err(error.unwrap_or_else(|| FsError::io(self.journal.bug()))));
        }
    }
}

/// The right to write the log, one thread at a time. Released by the drop.
pub(super) struct LogWriteGuard<'a>(&'a Journal);

impl Drop for LogWriteGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A panic of the writer fails the journal (W4).
            self.0.fail_with(&self.0.bug());
        }
        self.0.state.lock().is_log_written = false;
        self.0.written.notify_all();
        self.0.came.notify_one();
    }
}

impl Journal {
    /// Makes a class durable, or the class that it was merged into.
    ///
    /// The next log writer closes it, with the classes of all other waiters: many callers share one
    /// closing, one chunk and one durable write.
    ///
    /// # Errors
    ///
    /// The device's error. The journal has failed then.
    pub(crate) fn commit(&self, class: u64) -> FsResult<()> {
        self.wait_for(self.state.lock(), class, None)
    }

    /// Asynchronous [`Journal::commit`]. The caller may become the leader as long as other
    /// callbacks arrive, so `done` must not wait for the caller.
    pub(crate) fn commit_then(&self, class: u64, done: Completion) {
        self.add_callbacks(self.state.lock(), [(class, None, done)]);
    }

    /// [`Journal::commit_all`] with a callback, as in [`Journal::commit_then`].
    pub(crate) fn commit_all_then(&self, done: Completion) {
        self.close_open();
        let mut state = self.state.lock();
        let end = state.log.cut();
        self.add_callbacks(state, [(0, Some(end), done)]);
    }

    /// [`Journal::commit_then`] for each class; `None` stands for everything applied so far. One
    /// write can serve all.
    pub(crate) fn commit_each_then(&self, classes: Vec<(Option<u64>, Completion)>) {
        let is_any_unknown = classes.iter().any(|(class, _)| class.is_none());
        if is_any_unknown {
            self.close_open();
        }
        let mut state = self.state.lock();
        let end_of_all = is_any_unknown.then(|| state.log.cut());
        let waiters = classes.into_iter().map(|(class, done)| match class {
            Some(class) => (class, None, done),
            None => (0, end_of_all, done),
        });
        self.add_callbacks(state, waiters);
    }

    fn wait_for(
        &self,
        mut state: MutexGuard<'_, JournalState>,
        class: u64,
        end: Option<Lsn>,
    ) -> FsResult<()> {
        let waiter = state.waiters.add(class, end, None);
        drop(state);
        let done = self.force_when(|state| state.waiters.end_of(waiter));
        self.state.lock().waiters.remove(waiter);
        done
    }

    /// Becomes the leader if there is none (W1). Blocks for waiters beyond the bound (W3).
    fn add_callbacks(
        &self,
        mut state: MutexGuard<'_, JournalState>,
        waiters: impl IntoIterator<Item = (u64, Option<Lsn>, Completion)>,
    ) {
        let mut crowded = Vec::new();
        let mut is_any_added = false;
        for (class, end, callback) in waiters {
            if state.waiters.callbacks() == CALLBACKS_MAX {
                crowded.push((class, end, callback));
            } else {
                state.waiters.add(class, end, Some(callback));
                is_any_added = true;
            }
        }
        if is_any_added && state.waiters.is_delay_over() {
            self.came.notify_one();
        }
        let leads = is_any_added && !std::mem::replace(&mut state.waiters.has_leader, true);
        drop(state);
        for (class, end, callback) in crowded {
            callback(self.wait_for(self.state.lock(), class, end));
        }
        if leads {
            self.lead();
        }
    }

    fn lead(&self) {
        let mut leader = CommitLeader { journal: self, has_left: false };
        while !leader.leaves() {
            self.delay();
            let done = self.force_when(|state| state.waiters.first_end());
            while let Some(callback) = self.next_served() {
                callback(Ok(()));
            }
            while done.is_err()
                && let Some(callback) = self.next_of_all()
            {
                callback(done.clone());
            }
        }
    }

    fn plan_delay(&self, waiters: &mut CommitWaiters, begun_ns: u64) {
        let now_ns = self.clock.monotonic_ns();
        let took_ns = now_ns.saturating_sub(begun_ns);
        // Callbacks just served (they have not run yet), and those that arrived since.
        let expected = if took_ns >= SLOW_WRITE_NS { waiters.callbacks() } else { 0 };
        let wait_ns = (took_ns / DELAY_SHARE).min(DELAY_NS_MAX);
        waiters.delay = CommitDelay { expected, until_ns: now_ns.saturating_add(wait_ns) };
    }

    /// Waits for the commit delay. Ends early if a callback can run or the journal has failed.
    fn delay(&self) {
        let mut state = self.state.lock();
        while !state.waiters.is_delay_over()
            && !state.waiters.is_any_served(state.log.durable)
            && self.check_alive().is_ok()
        {
            let left_ns = state.waiters.delay.until_ns.saturating_sub(self.clock.monotonic_ns());
            if left_ns == 0 || self.came.wait_for(&mut state, left_ns) {
                break;
            }
        }
    }

    fn next_served(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        let durable = state.log.durable;
        state.waiters.take_served(durable)
    }

    fn next_of_all(&self) -> Option<Completion> {
        self.state.lock().waiters.take_any()
    }

    fn bug(&self) -> String {
        let device = self.volume.name();
        format!("{device}: a bug ended whoever wrote the log: unmount, check, mount again")
    }

    /// Makes everything applied so far durable.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(crate) fn commit_all(&self) -> FsResult<()> {
        self.close_open();
        let end = self.state.lock().log.cut();
        self.force(end)
    }

    /// Makes durable all classes opened before `opened_before_ns`, including those closed for their
    /// size and not yet written.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(crate) fn commit_aged(&self, opened_before_ns: u64) -> FsResult<()> {
        if !self.close_opened_before(opened_before_ns) && !self.has_unwritten(opened_before_ns) {
            return Ok(());
        }
        let end = self.state.lock().log.cut();
        self.force(end)
    }

    fn has_unwritten(&self, opened_before_ns: u64) -> bool {
        let state = self.state.lock();
        let (behind, since_ns) = state.committed;
        state.log.durable < behind && since_ns <= opened_before_ns
    }

    /// Closes all classes: later transactions cannot become durable without them.
    pub(crate) fn close_open(&self) {
        self.close_opened_before(u64::MAX);
    }

    /// Closes aged classes, a few per hold of the lock. Returns whether there was one.
    pub(super) fn close_opened_before(&self, opened_before_ns: u64) -> bool {
        let aged: Vec<u64> = {
            let state = self.state.lock();
            let is_aged = |class: &EquivalenceClass| class.opened_ns <= opened_before_ns;
            let aged = state.classes.iter().filter(|(_, class)| is_aged(class));
            aged.map(|(id, _)| *id).collect()
        };
        let is_any = !aged.is_empty();
        self.close_each(aged);
        is_any
    }

    /// Closes the classes that `classes` were merged into, a few per hold of the lock.
    fn close_each(&self, mut classes: Vec<u64>) {
        while !classes.is_empty() {
            let mut state = self.state.lock();
            let mut pages = 0;
            while pages < PAGES_PER_CLOSING
                && let Some(class) = classes.pop()
            {
                let root = resolve(&state, class);
                if let Some(open) = state.classes.get(&root) {
                    pages += open.pages.len();
                    self.close(&mut state, root);
                }
            }
        }
    }

    pub(super) fn close_all(&self, state: &mut JournalState) {
        let open: Vec<u64> = state.classes.keys().copied().collect();
        for class in open {
            self.close(state, class);
        }
    }

    fn close_for_waiters(&self) {
        let (classes, last) = self.state.lock().waiters.classes();
        self.close_each(classes);
        let mut state = self.state.lock();
        let end = state.log.cut();
        state.waiters.serve(last, end);
    }

    pub(super) fn close(&self, state: &mut JournalState, id: u64) {
        let class = state.classes.remove(&id).expect("the caller found it open");
        for absorbed in &class.absorbed {
            state.merged.remove(absorbed);
        }
        self.counts.commits.fetch_add(1, Ordering::Relaxed);
        let record_bytes = index_wide(commit_record_bytes(class.pages.len()).next_multiple_of(8));
        let lsn = state.log.ensure_room(record_bytes);
        let mut stamps = Vec::with_capacity(class.pages.len());
        for buffer in &class.pages {
            let mut page = buffer.state.lock();
            let crc = stamp(page_of_mut(Arc::make_mut(&mut page.bytes)), lsn);
            stamps.push((buffer.place, crc));
            buffer.set_class(0);
            page.last_lsn = lsn;
        }
        let mut record = Vec::with_capacity(record_bytes);
        put_commit(&mut record, id, lsn, &stamps);
        state.log.append(&record);
        state.log.needs_data(class.data_sequence);
        let (behind, since_ns) = state.committed;
        let is_durable = state.log.durable >= behind;
        let since_ns = if is_durable { class.opened_ns } else { since_ns.min(class.opened_ns) };
        state.committed = (state.log.position(), since_ns);
    }

    /// Makes the log durable up to `end`. One caller writes for all waiters.
    ///
    /// # Errors
    ///
    /// The device's error. The journal has failed then (T5).
    pub(super) fn force(&self, end: Lsn) -> FsResult<()> {
        self.force_when(|_| Some(end))
    }

    /// [`Journal::force`] up to the position that `end` returns. `end` returns `None` until a log
    /// writer has closed the waiter's class.
    fn force_when(&self, end: impl Fn(&JournalState) -> Option<Lsn>) -> FsResult<()> {
        let is_done = |state: &JournalState| end(state).is_some_and(|end| state.log.durable >= end);
        let Some(_writer) = self.writer_unless(is_done)? else { return Ok(()) };
        let begun_ns = self.clock.monotonic_ns();
        self.close_for_waiters();
        let may_go_through = self.volume.has_write_through() && !planted!(CommitWithoutFlush);
        let written = self.lost_log().write_or_rebuild(None, || {
            let Some((reached, is_durable)) = self.write_sealed(may_go_through)? else {
                return Ok(None);
            };
            if !is_durable && !planted!(CommitWithoutFlush) {
                self.volume
                    .flush(IoPurpose::Journal)
                    .map_err(|error| self.lost_log().not_written(&error))?;
            }
            Ok(Some(reached))
        })?;
        let Some(reached) = written else { return Ok(()) };
        let mut state = self.state.lock();
        state.log.durable = reached;
        self.plan_delay(&mut state.waiters, begun_ns);
        Ok(())
    }

    /// Flushes a checkpoint's writes together with the complete chunks: one flush for both.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(super) fn flush_with_log(&self, purpose: IoPurpose) -> FsResult<()> {
        self.flush_with(purpose, None)
    }

    /// Writes a head, and flushes it together with the complete chunks.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(super) fn flush_head(&self, head: &JournalHead) -> FsResult<()> {
        self.flush_with(IoPurpose::Journal, Some(head))
    }

    fn flush_with(&self, purpose: IoPurpose, head: Option<&JournalHead>) -> FsResult<()> {
        let Some(_writer) = self.writer_unless(|_| false)? else { return Ok(()) };
        if self.state.lock().waiters.are_open() {
            self.close_for_waiters();
        }
        let written = self.lost_log().write_or_rebuild(head, || {
            let failed = |error: DeviceError| self.lost_log().not_written(&error);
            head.map_or(Ok(()), |head| self.write_head(head)).map_err(failed)?;
            let written = self.write_sealed(false)?;
            self.volume.flush(purpose).map_err(failed)?;
            Ok(written.map(|(reached, _)| reached))
        })?;
        if let Some(reached) = written {
            self.state.lock().log.durable = reached;
        }
        Ok(())
    }

    /// Calls `change` with the byte ranges that a recovery would read, while no thread writes the
    /// log or its heads, so that `change` can move the journal. Commits wait meanwhile.
    ///
    /// # Errors
    ///
    /// [`crate::api::FsError::ReadOnly`] if the journal has failed; `change` was not called.
    pub(crate) fn while_at_rest<T>(
        &self,
        change: impl FnOnce(&ActiveJournalRanges) -> T,
    ) -> FsResult<T> {
        // LOCK: the checkpointer before the writer, in the order of a checkpoint.
        let _checkpointer = self.checkpointer.lock();
        let _writer = self.writer_unless(|_| false)?;
        let geometry = self.volume.geometry();
        let (tail, end) = {
            let state = self.state.lock();
            (state.tail, state.log.position())
        };
        let heads = geometry.journal_offset;
        let mut active = ActiveJournalRanges::default();
        active.read.push(heads..heads + format::geometry::JOURNAL_HEADS * 4096);
        let read_end = end.0.next_multiple_of(4096);
        for (at, bytes) in active_pieces(geometry, tail, end) {
            let read = read_end.saturating_sub(at).min(bytes.end - bytes.start);
            let cut = bytes.start + read;
            active.read.extend(Some(bytes.start..cut).filter(|it| !it.is_empty()));
            active.behind.extend(Some(cut..bytes.end).filter(|it| !it.is_empty()));
        }
        Ok(change(&active))
    }

    /// Waits for the right to write the log; `None` once `is_done` returns true.
    pub(super) fn writer_unless(
        &self,
        is_done: impl Fn(&JournalState) -> bool,
    ) -> FsResult<Option<LogWriteGuard<'_>>> {
        let mut state = self.state.lock();
        loop {
            if is_done(&state) {
                return Ok(None);
            }
            self.check_alive()?;
            if !state.is_log_written {
                state.is_log_written = true;
                return Ok(Some(LogWriteGuard(self)));
            }
            self.written.wait(&mut state);
        }
    }

    /// Writes the complete chunks, after the data that they point to. Returns their end, if any,
    /// and whether they are durable: a single chunk may be written through the device's cache
    /// (`may_go_through`). Otherwise the caller flushes.
    fn write_sealed(&self, may_go_through: bool) -> FsResult<Option<(Lsn, bool)>> {
        let chunks = self.state.lock().log.hand_over();
        let Some(last) = chunks.last() else { return Ok(None) };
        let (reached, data) =
            (last.end, chunks.iter().map(|chunk| chunk.data_sequence).max().unwrap_or(0));
        self.check_ring(reached)?;
        if_planted!(MemberBehindAcknowledged, self.state.lock().log.durable = reached);
        if_planted!(MemberBehindAcknowledged, self.written.notify_all());
        // CRASH: data first. A commit must not be readable before the blocks it points to.
        self.data.settle(data).map_err(|error| self.lost_log().not_written(&error))?;
        // Everything before these chunks is durable (J1), so a single durable chunk extends the
        // durable log. Of several, a later one may become durable alone.
        let goes_through = may_go_through && chunks.len() == 1;
        let write_of = |chunk| self.write_of(chunk, goes_through);
        let writes = chunks.into_iter().map(write_of).collect();
        for ticket in self.volume.submit_fixed(IoPurpose::Journal, writes) {
            ticket.wait().map_err(|error| self.lost_log().not_written(&error))?;
        }
        Ok(Some((reached, goes_through)))
    }

    /// Fails the journal if the log would overwrite what a recovery needs (T4).
    pub(super) fn check_ring(&self, end: Lsn) -> FsResult<()> {
        if end.0 - self.state.lock().tail.0 > ring_bytes(self.volume.geometry()) {
            self.fail_of(&DefectCode::JR005.found("the log has outgrown its ring"));
            return self.check_alive();
        }
        Ok(())
    }

    fn write_of(&self, chunk: SealedChunk, goes_through: bool) -> DeviceOperation {
        let geometry = self.volume.geometry();
        let ring = geometry.journal_offset + format::geometry::JOURNAL_HEADS * 4096;
        let offset = ring + chunk.lsn.0 % ring_bytes(geometry);
        let data = vec![chunk.bytes];
        if goes_through {
            DeviceOperation::WriteThrough { offset, data }
        } else {
            DeviceOperation::Write { offset, data }
        }
    }
}

fn resolve(state: &JournalState, class: u64) -> u64 {
    let mut root = class;
    while let Some(&into) = state.merged.get(&root) {
        root = into;
    }
    root
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;
    use crate::api::{Caller, FileKind, FileSystem, NewInode};
    use crate::journal::testing::new_pool;

    const LOOKS_MAX: u32 = 10_000_000;

    fn listener() -> (Completion, Receiver<FsResult<()>>) {
        let (tell, told) = channel();
        (Box::new(move |done| tell.send(done).expect("the test listens")), told)
    }

    /// Goal: an asynchronous commit returns at once while there is a leader and room for its
    /// callback (W1, W3), which runs only when the log is durable (W2). Method: the test holds the
    /// right to write the log, so nothing becomes durable.
    #[test]
    fn an_async_commit_returns_at_once_and_completes_when_it_is_durable() {
        let pool = new_pool();
        let new = NewInode::new(FileKind::Regular, 0o600);
        let file =
            pool.create(&Caller::root(), pool.root(), b"f", new, None).expect("it is new").ino;
        let journal = &pool.core().store.journal;
        let count = Arc::new(AtomicUsize::new(0));
        let sync = || {
            let count = Arc::clone(&count);
            let told = move |done: FsResult<()>| {
                assert_eq!(done, Ok(()));
                count.fetch_add(1, Ordering::SeqCst);
            };
            pool.commit_then(&Caller::root(), file, false, Box::new(told));
        };
        let await_waiters = |wanted: usize| {
            for _ in 0..LOOKS_MAX {
                if journal.state.lock().waiters.count() == wanted {
                    return;
                }
                thread::yield_now();
            }
            panic!("nobody waits");
        };
        let writer = journal.writer_unless(|_| false).expect("it has not failed");
        thread::scope(|scope| {
            scope.spawn(sync);
            await_waiters(1);
            for _ in 1..CALLBACKS_MAX {
                sync();
            }
            assert_eq!(journal.state.lock().waiters.callbacks(), CALLBACKS_MAX);
            scope.spawn(sync);
            await_waiters(CALLBACKS_MAX + 1);
            assert_eq!(journal.state.lock().waiters.callbacks(), CALLBACKS_MAX);
            assert_eq!(count.load(Ordering::SeqCst), 0, "completed before it is durable");
            drop(writer);
        });
        assert_eq!(count.load(Ordering::SeqCst), CALLBACKS_MAX + 1);
        let state = journal.state.lock();
        assert!(state.waiters.count() == 0 && !state.waiters.has_leader);
    }

    /// Goal: the callbacks of a leader that panicked run all the same (W2).
    #[test]
    fn callbacks_that_a_leader_leaves_behind_hear_of_an_error() {
        let pool = new_pool();
        let journal = &pool.core().store.journal;
        let (tell, told) = listener();
        {
            let waiters = &mut journal.state.lock().waiters;
            waiters.add(1, None, Some(tell));
            waiters.has_leader = true;
        }
        drop(CommitLeader { journal, has_left: false });
        assert!(matches!(told.try_recv(), Ok(Err(FsError::Io { .. }))));
        let (tell, told) = listener();
        pool.commit_then(&Caller::root(), pool.root(), false, tell);
        assert_eq!(told.try_recv(), Ok(Ok(())), "there is no leader");
    }

    /// Goal: after a writer panicked with a chunk neither in the log nor queued, its changes are
    /// never reported durable, to blocked callers or to callbacks (W4).
    #[test]
    fn a_writer_that_panics_ends_the_journal() {
        let pool = new_pool();
        let new = NewInode::new(FileKind::Regular, 0o600);
        let file =
            pool.create(&Caller::root(), pool.root(), b"f", new, None).expect("it is new").ino;
        let journal = &pool.core().store.journal;
        let ended = thread::scope(|scope| {
            let writer = || {
                let _writer = journal.writer_unless(|_| false).expect("it has not failed");
                journal.state.lock().log.cut();
                journal.state.lock().log.sealed.clear();
                panic!("a bug, as the test wants it");
            };
            scope.spawn(writer).join()
        });
        assert!(ended.is_err());
        let (tell, told) = listener();
        pool.commit_then(&Caller::root(), file, false, tell);
        let told = told.try_recv().expect("it was told");
        for done in [told, pool.fsync(&Caller::root(), file, false), pool.sync()] {
            let Err(FsError::ReadOnly { reason }) = done else { panic!("{done:?}") };
            assert!(reason.contains("m: a bug") && reason.contains("unmount"), "{reason}");
        }
    }
}
