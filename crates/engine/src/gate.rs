//! The gate of a fileset: who changes what is in it goes in, and a clone shuts it.
//!
//! A change gets its number (its *epoch*) when it begins and reaches the tree when it ends; a write
//! is accepted long before its block is in the map. A clone that takes the tree in between would
//! have half of either. So it closes the gate and waits until nobody is inside (decision 0047).
//!
//! # Invariants
//!
//! - GT1: An epoch that stands in a page, a pointer or a generation of a fileset was given out
//!   while its taker was inside; that of a sealed block was read under the lock of the open
//!   segments.
//! - GT2: Whoever has closed the gate is alone: no change of the fileset is open, and no block of
//!   it is placed.
//! - GT3: From the seal of the one who has closed the gate until it opens, no block of the
//!   fileset is filling.
//! - GT4: Nobody waits to enter while he holds a vnode, the fileset, a reservation or a turn;
//!   nobody inside waits for the log, for space, for a checkpoint, or at a gate. Nor does anybody
//!   wait with a reservation for another closer to open: that one may wait for the log. A debug
//!   build counts what each thread has reserved ([`Reserves`]), and asserts so.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use format::ids::Epoch;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Set while somebody closes the gate, or has.
const CLOSED: u64 = 1;
/// One of those inside.
const ONE: u64 = 2;

#[cfg(debug_assertions)]
thread_local! {
    /// How many parts of the log the thread has reserved.
    static RESERVED: Cell<usize> = const { Cell::new(0) };
}

/// A part of the log that a thread has reserved: until this is dropped it waits at no gate (GT4).
/// It stays with the thread.
#[derive(Debug)]
pub(crate) struct Reserves(PhantomData<*const ()>);

impl Reserves {
    pub(crate) fn new() -> Reserves {
        #[cfg(debug_assertions)]
        RESERVED.with(|reserved| reserved.set(reserved.get() + 1));
        Reserves(PhantomData)
    }
}

#[cfg(debug_assertions)]
impl Drop for Reserves {
    fn drop(&mut self) {
        RESERVED.with(|reserved| reserved.set(reserved.get() - 1));
    }
}

/// GT4: who may wait at a gate has nothing reserved, whether he has to wait now or not.
#[track_caller]
fn assert_nothing_reserved() {
    #[cfg(debug_assertions)]
    RESERVED.with(|reserved| {
        if runtime::sync::SHARES_ONE_THREAD {
            // What it has reserved is anybody's.
            return;
        }
        assert_eq!(reserved.get(), 0, "whoever waits at a gate has a part of the log reserved");
    });
}

/// The gate of one fileset.
#[derive(Debug)]
pub(crate) struct Gate {
    /// How many are inside, and whether it is closed.
    word: AtomicU64,
    /// What was born in this epoch or before it, clones hold too. Changed while it is closed.
    shared_epoch: AtomicU64,
    /// Held for a moment by whoever looks before he waits, and by whoever ends a wait.
    waiting: Mutex<()>,
    opened: Condvar,
    left: Condvar,
}

/// Somebody inside; he leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'g>(&'g Gate);

/// A closed gate with nobody inside; it opens when this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'g>(&'g Gate);

impl Closed<'_> {
    /// From now on clones hold what was born in `epoch` or before it.
    pub(crate) fn share(&self, epoch: Epoch) {
        self.0.shared_epoch.store(epoch.0, Ordering::Release);
    }
}

impl Gate {
    /// Returns the open gate of a fileset of which clones hold what was born in `shared_epoch` or
    /// before it.
    pub(crate) fn new(shared_epoch: Epoch) -> Gate {
        Gate {
            word: AtomicU64::new(0),
            shared_epoch: AtomicU64::new(shared_epoch.0),
            waiting: Mutex::new(()),
            opened: Condvar::new(),
            left: Condvar::new(),
        }
    }

    /// Returns the epoch up to which what was born belongs to clones, too; 0: nothing does. It
    /// stays as it is for whoever is inside.
    pub(crate) fn shared_epoch(&self) -> Epoch {
        Epoch(self.shared_epoch.load(Ordering::Acquire))
    }

    /// Goes in, unless it is closed. Waits for nobody.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        let enter = |word: u64| (word & CLOSED == 0).then_some(word + ONE);
        let entered = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
        entered.is_ok().then(|| Inside(self))
    }

    /// Goes in, once it is open. Called with no lock held (GT4).
    pub(crate) fn enter(&self) -> Inside<'_> {
        assert_nothing_reserved();
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.wait_until_open();
        }
    }

    /// Waits until it is open, for as long as the one who has closed it works. Called with no lock
    /// held (GT4).
    pub(crate) fn wait_until_open(&self) {
        assert_nothing_reserved();
        let mut waiting = self.waiting.lock();
        while self.word.load(Ordering::Acquire) & CLOSED != 0 {
            self.opened.wait(&mut waiting);
        }
    }

    /// As [`Gate::new`], but closed: whoever calls [`Gate::take`] opens it.
    pub(crate) fn new_closed(shared_epoch: Epoch) -> Gate {
        let gate = Gate::new(shared_epoch);
        gate.word.store(CLOSED, Ordering::Release);
        gate
    }

    /// Takes over a gate that was closed from the start. Called once.
    pub(crate) fn take(&self) -> Closed<'_> {
        Closed(self)
    }

    /// Closes it, and waits until nobody is inside. A second closer waits until the first has
    /// opened. Called with no part of the log reserved (GT4).
    pub(crate) fn close(&self) -> Closed<'_> {
        assert_nothing_reserved();
        let mut waiting = self.waiting.lock();
        while self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            self.opened.wait(&mut waiting);
        }
        self.alone(&mut waiting)
    }

    /// As [`Gate::close`], for whoever has a part of the log reserved; `None`: somebody else has
    /// closed it, and may wait for that part. Waits for nobody but those inside.
    pub(crate) fn try_close(&self) -> Option<Closed<'_>> {
        let mut waiting = self.waiting.lock();
        let is_closed = self.word.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0;
        (!is_closed).then(|| self.alone(&mut waiting))
    }

    fn alone(&self, waiting: &mut MutexGuard<'_, ()>) -> Closed<'_> {
        while self.word.load(Ordering::Acquire) != CLOSED {
            self.left.wait(waiting);
        }
        Closed(self)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let before = self.0.word.fetch_sub(ONE, Ordering::AcqRel);
        if before == CLOSED + ONE {
            // The closer looks and begins to wait under this lock: he misses no call.
            let _waiting = self.0.waiting.lock();
            self.0.left.notify_all();
        }
    }
}

impl Drop for Closed<'_> {
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
        let gate = Gate::new(Epoch(0));
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
        let gate = Gate::new(Epoch(0));
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
