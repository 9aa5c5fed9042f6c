//! The gate of a fileset: changes enter it, and the creation of a snapshot closes it.
//!
//! A change gets its number (its *epoch*) when it begins, and reaches the tree when it ends. A
//! write is accepted long before its map update. A snapshot in between would contain half a change.
//! So its creation closes the gate and waits until no change is inside (decision 0047).
//!
//! # Invariants
//!
//! - GT1: Each epoch in a page, pointer or generation of a fileset was assigned to a change inside
//!   the gate. That of a sealed block was read under the lock of the open segments.
//! - GT2: While the gate is closed and empty, only the thread that closed it works on the fileset:
//!   no change is open, and no block is placed.
//! - GT3: From the seal by the closing thread until the gate opens, no block of the fileset is
//!   unsealed.
//! - GT4: No thread waits to enter while it holds a vnode, a fileset, log credits or the turn in
//!   `begin`. No thread inside waits for the log, for space, for a checkpoint or at a gate. No
//!   thread with log credits waits for another's closing of a gate, which may itself wait for the
//!   log. A debug build asserts this ([`LogCreditGuard`]).

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Epoch;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// The gate is closed, or being closed.
const CLOSED: u64 = 1;
/// One change inside.
const ONE: u64 = 2;

#[cfg(debug_assertions)]
thread_local! {
    /// Number of this thread's [`LogCreditGuard`]s.
    static RESERVED: Cell<usize> = const { Cell::new(0) };
}

/// A thread's log credits. Until the drop the thread must not wait at a gate (GT4).
#[derive(Debug)]
pub(crate) struct LogCreditGuard(PhantomData<*const ()>);

impl LogCreditGuard {
    pub(crate) fn new() -> LogCreditGuard {
        #[cfg(debug_assertions)]
        RESERVED.with(|reserved| reserved.set(reserved.get() + 1));
        LogCreditGuard(PhantomData)
    }
}

#[cfg(debug_assertions)]
impl Drop for LogCreditGuard {
    fn drop(&mut self) {
        RESERVED.with(|reserved| reserved.set(reserved.get() - 1));
    }
}

/// Asserts that this thread has no log credits (GT4), even if no wait follows.
#[track_caller]
fn assert_nothing_reserved() {
    #[cfg(debug_assertions)]
    RESERVED.with(|reserved| {
        if runtime::sync::SHARES_ONE_THREAD {
            // Simulated threads share one thread, so the count is not per thread.
            return;
        }
        assert_eq!(reserved.get(), 0, "whoever waits at a gate has a part of the log reserved");
    });
}

#[derive(Debug)]
pub(crate) struct FilesetGate {
    /// [`CLOSED`], plus [`ONE`] for each change inside.
    word: AtomicU64,
    /// Snapshots share everything born in this epoch or before. Changed only while closed.
    shared_epoch: AtomicU64,
    /// Held by waiters while they test `word`, and by notifiers, so that no wake-up is lost.
    waiting: Mutex<()>,
    opened: Condvar,
    left: Condvar,
}

/// A change inside the gate, until the drop.
#[derive(Debug)]
pub(crate) struct GateGuard<'g>(&'g FilesetGate);

/// A closed and empty gate. Opens at the drop.
#[derive(Debug)]
pub(crate) struct ClosedGate<'g>(&'g FilesetGate);

impl ClosedGate<'_> {
    /// Declares everything born in `epoch` or before as shared with snapshots.
    pub(crate) fn share(&self, epoch: Epoch) {
        self.0.shared_epoch.store(epoch.0, Ordering::Release);
    }
}

impl FilesetGate {
    pub(crate) fn new(shared_epoch: Epoch) -> FilesetGate {
        FilesetGate {
            word: AtomicU64::new(0),
            shared_epoch: AtomicU64::new(shared_epoch.0),
            waiting: Mutex::new(()),
            opened: Condvar::new(),
            left: Condvar::new(),
        }
    }

    /// Returns the last epoch shared with snapshots, 0 without any. Constant while the caller is
    /// inside.
    pub(crate) fn shared_epoch(&self) -> Epoch {
        Epoch(self.shared_epoch.load(Ordering::Acquire))
    }

    /// Enters, unless the gate is closed. Does not wait.
    pub(crate) fn try_enter(&self) -> Option<GateGuard<'_>> {
        let enter = |word: u64| (word & CLOSED == 0).then_some(word + ONE);
        let entered = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
        entered.is_ok().then(|| GateGuard(self))
    }

    /// Enters, once the gate is open. Called without locks (GT4).
    pub(crate) fn enter(&self) -> GateGuard<'_> {
        assert_nothing_reserved();
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.wait_until_open();
        }
    }

    /// Waits until the gate is open. Called without locks (GT4).
    pub(crate) fn wait_until_open(&self) {
        assert_nothing_reserved();
        let mut waiting = self.waiting.lock();
        while self.word.load(Ordering::Acquire) & CLOSED != 0 {
            self.opened.wait(&mut waiting);
        }
    }

    /// Returns a closed gate, to be opened through [`FilesetGate::take`].
    pub(crate) fn new_closed(shared_epoch: Epoch) -> FilesetGate {
        let gate = FilesetGate::new(shared_epoch);
        gate.word.store(CLOSED, Ordering::Release);
        gate
    }

    /// Returns the guard of a gate that was created closed. Called once.
    pub(crate) fn take(&self) -> ClosedGate<'_> {
        ClosedGate(self)
    }

    /// Closes the gate, and waits until no change is inside. Several closers take turns. Called
    /// without log credits (GT4).
    pub(crate) fn close(&self) -> ClosedGate<'_> {
        assert_nothing_reserved();
        let mut waiting = self.waiting.lock();
        while self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            self.opened.wait(&mut waiting);
        }
        self.alone(&mut waiting)
    }

    /// Closes the gate for a caller with log credits. `None` if it is closed, because the thread
    /// that closed it may wait for these credits. Waits only for changes inside.
    pub(crate) fn try_close(&self) -> Option<ClosedGate<'_>> {
        let mut waiting = self.waiting.lock();
        let is_closed = self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0;
        (!is_closed).then(|| self.alone(&mut waiting))
    }

    fn alone(&self, waiting: &mut MutexGuard<'_, ()>) -> ClosedGate<'_> {
        while self.word.load(Ordering::Acquire) != CLOSED {
            self.left.wait(waiting);
        }
        ClosedGate(self)
    }
}

impl Drop for GateGuard<'_> {
    fn drop(&mut self) {
        let before = self.0.word.fetch_sub(ONE, Ordering::AcqRel);
        if before == CLOSED + ONE {
            // The closing thread tests `word` under this lock, so it misses no wake-up.
            let _waiting = self.0.waiting.lock();
            self.0.left.notify_all();
        }
    }
}

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        let _waiting = self.0.waiting.lock();
        self.0.word.fetch_and(!CLOSED, Ordering::AcqRel);
        self.0.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    #[test]
    fn who_closes_waits_for_those_inside_and_keeps_others_out() {
        let gate = FilesetGate::new(Epoch(0));
        let is_left = AtomicBool::new(false);
        let inside = gate.enter();
        std::thread::scope(|scope| {
            let closer = scope.spawn(|| {
                let closed = gate.close();
                assert!(is_left.load(Ordering::SeqCst), "somebody was inside");
                assert!(gate.try_enter().is_none(), "it is closed");
                drop(closed);
            });
            while gate.try_enter().is_some() {
                std::thread::yield_now();
            }
            is_left.store(true, Ordering::SeqCst);
            drop(inside);
            assert!(closer.join().is_ok());
        });
        assert!(gate.try_enter().is_some(), "it is open again");
    }

    #[test]
    fn many_who_enter_and_close_are_never_inside_together() {
        let gate = FilesetGate::new(Epoch(0));
        let (inside, closed) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let _inside = gate.enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(closed.load(Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let _closed = gate.close();
                        assert_eq!(closed.fetch_add(1, Ordering::SeqCst), 0);
                        assert_eq!(inside.load(Ordering::SeqCst), 0);
                        closed.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
