//! Commit: closing classes and making the log durable, many callers with one durable write.
//!
//! # Crashes
//!
//! The commit of a class is in the log only after every data write that the class points to is
//! durable, and it is acknowledged only after the flush behind it (J1). A chunk that is torn, or
//! lies behind a torn one, never counts: recovery stops there.
//!
//! # Commit waiters
//!
//! A caller that wants a class durable is a *commit waiter*. It blocks ([`Journal::commit`]), or it
//! leaves a completion callback and goes on ([`Journal::commit_then`]). The first caller that
//! leaves a callback becomes the *leader*: it writes the log, or waits for another that does, runs
//! the callbacks of all waiters that are served, and stays until no callback is left.
//!
//! On a slow device the leader keeps a *commit delay* before it writes: until as many waiters have
//! come as the last write served and as had come by its end (decision 0039). Clients that were just
//! completed come back soon, and would else find a write under way that serves the few that came
//! during the last one. The delay is at most a quarter of the time of that write, and at most
//! [`DELAY_NS_MAX`].
//!
//! - W1: While a callback is left, there is a leader. Both change under the manager's lock.
//! - W2: Each callback runs once: with `Ok` only when the log is durable up to the end of its
//!   waiter, else with the error of the journal that failed. It stays on the list until then, so
//!   that a bug in one callback costs the others an error at most.
//! - W3: At most [`CALLBACKS_MAX`] are kept; the next caller blocks.
//! - W4: A journal of which a writer panicked has failed: chunks may be neither in the log nor on
//!   the list any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::defect::DefectCode;
use format::ids::Lsn;
use format::journal::{JournalHead, put_commit};
use format::page::stamp;
use runtime::planted::{self, Planted};
use storage::device::{DeviceError, Operation, Purpose};
use storage::volume::Active;

use super::copies::active_pieces;
use super::log::SealedChunk;
use super::waiters::{CALLBACKS_MAX, CommitDelay, CommitWaiters};
use super::{Class, Journal, State, commit_record_bytes, ring_bytes};
use crate::buffer::page_of_mut;
use crate::convert::index_wide;
use crate::error::{Completion, FsError, FsResult};
use crate::sync::MutexGuard;

/// Pages of the classes that are closed in one step: it holds the manager up for a tenth of a
/// millisecond.
const PAGES_PER_CLOSING: usize = 128;

/// A write of the log that takes so long is worth a delay before the next one.
const SLOW_WRITE_NS: u64 = 1_000_000;
/// Of the time of a write, the part that the delay takes at most.
const DELAY_SHARE: u64 = 4;
/// Longest delay: on a disk that takes longer, waiters that come later do not lose much.
const DELAY_NS_MAX: u64 = 4_000_000;

/// Who writes the log for the waiters and runs their callbacks, until it leaves.
struct Leader<'a> {
    journal: &'a Journal,
    has_left: bool,
}

impl Leader<'_> {
    /// Leaves if no callback is left (W1); returns whether it did.
    fn leaves(&mut self) -> bool {
        let waiters = &mut self.journal.state.lock().waiters;
        self.has_left = waiters.callbacks() == 0;
        waiters.has_leader = !self.has_left;
        self.has_left
    }

    /// Takes out a callback; leaves if there is none.
    fn next_left(&self) -> Option<Completion> {
        let waiters = &mut self.journal.state.lock().waiters;
        let callback = waiters.take_any();
        waiters.has_leader = callback.is_some();
        callback
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        if self.has_left {
            return;
        }
        // W2: a bug ended it, and nobody else would run them.
        while let Some(callback) = self.next_left() {
            let error = self.journal.check_alive().err();
            callback(Err(error.unwrap_or_else(|| FsError::io(self.journal.bug()))));
        }
    }
}

/// Whoever writes the log, until it is dropped.
pub(super) struct Writer<'a>(&'a Journal);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // W4.
            self.0.fail_with(&self.0.bug());
        }
        self.0.state.lock().is_log_written = false;
        self.0.written.notify_all();
        self.0.came.notify_one();
    }
}

impl Journal {
    /// Makes the class that `class` is part of now durable.
    ///
    /// It is closed by whoever writes the log next, with those of all who wait by then: so many
    /// callers take one closing, one chunk and one durable write.
    ///
    /// # Errors
    ///
    /// What the device said; the journal has failed then.
    pub(crate) fn commit(&self, class: u64) -> FsResult<()> {
        self.wait_for(self.state.lock(), class, None)
    }

    /// Makes the class durable as [`Journal::commit`] does, and calls `done` with how that ended:
    /// now, or from another thread after this has returned. The caller may be kept as long as
    /// others call this. The callback must not wait for the caller.
    pub(crate) fn commit_then(&self, class: u64, done: Completion) {
        self.add_callbacks(self.state.lock(), [(class, None, done)]);
    }

    /// Makes everything applied so far durable as [`Journal::commit_all`] does, and calls `done`
    /// as [`Journal::commit_then`] does.
    pub(crate) fn commit_all_then(&self, done: Completion) {
        self.close_open();
        let mut state = self.state.lock();
        let end = state.log.cut();
        self.add_callbacks(state, [(0, Some(end), done)]);
    }

    /// Makes each of `classes` durable, and where there is none everything applied so far, as
    /// [`Journal::commit_then`] does: with one write for all that can share it, because all wait
    /// before this thread becomes the leader.
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

    /// Adds a waiter and blocks until it is served.
    fn wait_for(
        &self,
        mut state: MutexGuard<'_, State>,
        class: u64,
        end: Option<Lsn>,
    ) -> FsResult<()> {
        let waiter = state.waiters.add(class, end, None);
        drop(state);
        let done = self.force_when(|state| state.waiters.end_of(waiter));
        self.state.lock().waiters.remove(waiter);
        done
    }

    /// Adds waiters with callbacks, and then becomes the leader if there is none (W1); blocks for
    /// those for which there are too many callbacks (W3).
    fn add_callbacks(
        &self,
        mut state: MutexGuard<'_, State>,
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
        // What waits here is written by this thread, if nobody else does.
        for (class, end, callback) in crowded {
            callback(self.wait_for(self.state.lock(), class, end));
        }
        if leads {
            self.lead();
        }
    }

    /// Serves waiters until no callback is left.
    fn lead(&self) {
        let mut leader = Leader { journal: self, has_left: false };
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

    /// Says for how many waiters, and until when, the next write of the log is delayed, after one
    /// that was begun at `begun_ns` has ended.
    fn plan_delay(&self, waiters: &mut CommitWaiters, begun_ns: u64) {
        let now_ns = self.clock.monotonic_ns();
        let took_ns = now_ns.saturating_sub(begun_ns);
        // No callback has run yet: these are those that it served, and those that came meanwhile.
        let expected = if took_ns >= SLOW_WRITE_NS { waiters.callbacks() } else { 0 };
        let wait_ns = (took_ns / DELAY_SHARE).min(DELAY_NS_MAX);
        waiters.delay = CommitDelay { expected, until_ns: now_ns.saturating_add(wait_ns) };
    }

    /// The commit delay. It ends at once where a callback can run, or the journal has failed.
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

    /// Returns what is said when a bug ended whoever wrote the log.
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

    /// Closes and makes durable the classes that were opened before `opened_before_ns`; those too
    /// that were closed since, for they had become large, and that nobody has written.
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

    /// Whether a class was closed that was opened before `opened_before_ns`, and is not durable.
    fn has_unwritten(&self, opened_before_ns: u64) -> bool {
        let state = self.state.lock();
        let (behind, since_ns) = state.committed;
        state.log.durable < behind && since_ns <= opened_before_ns
    }

    /// Closes all classes that are open: what is applied from now on becomes durable after what was
    /// applied so far, or with it.
    pub(crate) fn close_open(&self) {
        self.close_opened_before(u64::MAX);
    }

    /// Closes the classes that are open and were opened before `opened_before_ns`, a few at a time,
    /// so that nobody waits long for the manager. Returns whether there was one.
    pub(super) fn close_opened_before(&self, opened_before_ns: u64) -> bool {
        let aged: Vec<u64> = {
            let state = self.state.lock();
            let is_aged = |class: &Class| class.opened_ns <= opened_before_ns;
            let aged = state.classes.iter().filter(|(_, class)| is_aged(class));
            aged.map(|(id, _)| *id).collect()
        };
        let is_any = !aged.is_empty();
        self.close_each(aged);
        is_any
    }

    /// Closes what `classes` are part of now, a few at a time. One that is not open any more was
    /// closed meanwhile, or before.
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

    pub(super) fn close_all(&self, state: &mut State) {
        let open: Vec<u64> = state.classes.keys().copied().collect();
        for class in open {
            self.close(state, class);
        }
    }

    /// Closes the classes of all commit waiters, and completes the chunk that is being filled.
    fn close_for_waiters(&self) {
        let (classes, last) = self.state.lock().waiters.classes();
        self.close_each(classes);
        let mut state = self.state.lock();
        // The commits of all of them lie before it, whoever closed them.
        let end = state.log.cut();
        state.waiters.serve(last, end);
    }

    /// Closes an open class: stamps its pages and logs its commit.
    pub(super) fn close(&self, state: &mut State, id: u64) {
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

    /// Makes the log durable up to `end`. One caller writes for all who wait.
    ///
    /// # Errors
    ///
    /// What the device said; the journal has failed then (T5).
    pub(super) fn force(&self, end: Lsn) -> FsResult<()> {
        self.force_when(|_| Some(end))
    }

    /// Makes the log durable up to what `end` tells, once it does: when somebody has begun to write
    /// the log at the latest, for all who wait.
    fn force_when(&self, end: impl Fn(&State) -> Option<Lsn>) -> FsResult<()> {
        let is_done = |state: &State| end(state).is_some_and(|end| state.log.durable >= end);
        let Some(_writer) = self.writer_unless(is_done)? else { return Ok(()) };
        let begun_ns = self.clock.monotonic_ns();
        self.close_for_waiters();
        let is_careless = planted::is(Planted::CommitWithoutFlush);
        let may_go_through = self.volume.has_write_through() && !is_careless;
        let written = self.write_or_make_anew(None, || {
            let Some((reached, is_durable)) = self.write_sealed(may_go_through)? else {
                return Ok(None);
            };
            if !is_durable && !is_careless {
                self.volume.flush(Purpose::Journal).map_err(|error| self.not_written(&error))?;
            }
            Ok(Some(reached))
        })?;
        let Some(reached) = written else { return Ok(()) };
        let mut state = self.state.lock();
        state.log.durable = reached;
        self.plan_delay(&mut state.waiters, begun_ns);
        Ok(())
    }

    /// Flushes what a checkpoint has written, and with it the chunks that others wait for: one
    /// flush for both, so that neither waits for the other's.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(super) fn flush_with_log(&self, purpose: Purpose) -> FsResult<()> {
        self.flush_with(purpose, None)
    }

    /// Writes a head, and flushes it with the chunks that others wait for.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(super) fn flush_head(&self, head: &JournalHead) -> FsResult<()> {
        self.flush_with(Purpose::Journal, Some(head))
    }

    fn flush_with(&self, purpose: Purpose, head: Option<&JournalHead>) -> FsResult<()> {
        let Some(_writer) = self.writer_unless(|_| false)? else { return Ok(()) };
        if self.state.lock().waiters.are_open() {
            self.close_for_waiters();
        }
        let written = self.write_or_make_anew(head, || {
            let failed = |error: DeviceError| self.not_written(&error);
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

    /// Calls `change` while nobody writes the log or its heads, with what a recovery would read
    /// of it: so that the journal can lie elsewhere from then on. What waits
    /// for a commit waits meanwhile.
    ///
    /// # Errors
    ///
    /// [`crate::vnode::api::FsError::ReadOnly`]: the journal has failed, and `change` was not
    /// called.
    pub(crate) fn while_at_rest<T>(&self, change: impl FnOnce(&Active) -> T) -> FsResult<T> {
        // LOCK: the checkpointer before the writer, as a checkpoint has them.
        let _checkpointer = self.checkpointer.lock();
        let _writer = self.writer_unless(|_| false)?;
        let geometry = self.volume.geometry();
        let (tail, end) = {
            let state = self.state.lock();
            (state.tail, state.log.position())
        };
        let heads = geometry.journal_offset;
        let mut active = Active::default();
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

    /// Waits until nobody writes the log and lets the caller do so; `None` if `is_done` says that
    /// what the caller wants was done meanwhile.
    pub(super) fn writer_unless(
        &self,
        is_done: impl Fn(&State) -> bool,
    ) -> FsResult<Option<Writer<'_>>> {
        let mut state = self.state.lock();
        loop {
            if is_done(&state) {
                return Ok(None);
            }
            self.check_alive()?;
            if !state.is_log_written {
                state.is_log_written = true;
                return Ok(Some(Writer(self)));
            }
            self.written.wait(&mut state);
        }
    }

    /// Writes the chunks that are complete, behind the data that they need. Returns where they end,
    /// and whether they are durable, which one chunk is if it may go through the device's cache;
    /// else the caller flushes. `None` if there is none.
    fn write_sealed(&self, may_go_through: bool) -> FsResult<Option<(Lsn, bool)>> {
        let chunks = self.state.lock().log.hand_over();
        let Some(last) = chunks.last() else { return Ok(None) };
        let (reached, data) =
            (last.end, chunks.iter().map(|chunk| chunk.data_sequence).max().unwrap_or(0));
        self.check_ring(reached)?;
        if planted::is(Planted::MemberBehindAcknowledged) {
            self.state.lock().log.durable = reached;
            self.written.notify_all();
        }
        // CRASH: data first. A commit must not be readable before what it points to.
        self.data.settle(data).map_err(|error| self.not_written(&error))?;
        // Everything before these chunks is durable (J1), so one that is durable by itself makes
        // the log durable up to its end. Of several, one might be without those before it.
        let goes_through = may_go_through && chunks.len() == 1;
        let write_of = |chunk| self.write_of(chunk, goes_through);
        let writes = chunks.into_iter().map(write_of).collect();
        for ticket in self.volume.submit_fixed(Purpose::Journal, writes) {
            ticket.wait().map_err(|error| self.not_written(&error))?;
        }
        Ok(Some((reached, goes_through)))
    }

    /// Refuses to write the log up to `end` where that would be over what a recovery needs.
    pub(super) fn check_ring(&self, end: Lsn) -> FsResult<()> {
        if end.0 - self.state.lock().tail.0 > ring_bytes(self.volume.geometry()) {
            // T4 is broken: rather stop.
            self.fail_of(&DefectCode::JR005.found("the log has outgrown its ring"));
            return self.check_alive();
        }
        Ok(())
    }

    /// Returns the write that takes `chunk` to its place.
    fn write_of(&self, chunk: SealedChunk, goes_through: bool) -> Operation {
        let geometry = self.volume.geometry();
        let ring = geometry.journal_offset + format::geometry::JOURNAL_HEADS * 4096;
        let offset = ring + chunk.lsn.0 % ring_bytes(geometry);
        let data = vec![chunk.bytes];
        if goes_through {
            Operation::WriteThrough { offset, data }
        } else {
            Operation::Write { offset, data }
        }
    }
}

/// Follows merges to the class that `class` is part of now.
fn resolve(state: &State, class: u64) -> u64 {
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
    use crate::journal::testing::new_pool;
    use crate::vnode::api::{Caller, FileKind, FileSystem, NewInode};

    /// How often a test looks for what another thread does: seconds.
    const LOOKS_MAX: u32 = 10_000_000;

    /// Returns a callback, and where what it is called with arrives.
    fn listener() -> (Completion, Receiver<FsResult<()>>) {
        let (tell, told) = channel();
        (Box::new(move |done| tell.send(done).expect("the test listens")), told)
    }

    /// Goal: an async commit returns at once while there is a leader and room for its callback (W1,
    /// W3), which runs when the log is durable and not before (W2). Method: the test has the turn
    /// to write the log, so nothing gets durable.
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
            // The leader waits for the turn; the others do not.
            scope.spawn(sync);
            await_waiters(1);
            for _ in 1..CALLBACKS_MAX {
                sync();
            }
            assert_eq!(journal.state.lock().waiters.callbacks(), CALLBACKS_MAX);
            // There is no room for its callback: it blocks.
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

    /// Goal: callbacks that a bug leaves run all the same (W2).
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
        drop(Leader { journal, has_left: false });
        assert!(matches!(told.try_recv(), Ok(Err(FsError::Io { .. }))));
        let (tell, told) = listener();
        pool.commit_then(&Caller::root(), pool.root(), false, tell);
        assert_eq!(told.try_recv(), Ok(Ok(())), "there is no leader");
    }

    /// Goal: what a bug ends while a chunk is neither in the log nor waits any more is never taken
    /// for durable, by callers that block and by callbacks (W4).
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
