//! The locks as they are used: `parking_lot`'s, which a simulated run schedules.
//!
//! Every program pays for what a simulated run needs, so that is out of the way: a lock asks one
//! flag of its thread, and whatever follows from it is in functions of its own.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(feature = "sim")]
use super::sim::{self, Key, Release};

/// Mutual exclusion over a value.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex around `value`.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Blocks until the lock is free, and takes it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            return self.lock_scheduled();
        }
        MutexGuard::plain(self.inner.lock())
    }

    #[cfg(feature = "sim")]
    #[cold]
    #[track_caller]
    fn lock_scheduled(&self) -> MutexGuard<'_, T> {
        let key = Key::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_lock());
        MutexGuard { inner, _release: Release::to(key) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = Key::of_lock(&self.inner);
            return self
                .inner
                .try_lock()
                .map(|inner| MutexGuard { inner, _release: Release::to(key) });
        }
        self.inner.try_lock().map(MutexGuard::plain)
    }

    /// Returns the value; no lock is needed, for nobody else can hold a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Access to the value of a [`Mutex`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    inner: parking_lot::MutexGuard<'a, T>,
    // Dropped after `inner`: those it wakes find the lock free.
    #[cfg(feature = "sim")]
    _release: Release,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// A guard of a thread that no scheduler has: its drop unlocks, and that is all.
    fn plain(inner: parking_lot::MutexGuard<'a, T>) -> Self {
        MutexGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: Release::to_nobody(),
        }
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Many readers or one writer.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Returns an unlocked lock around `value`.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Blocks until no writer holds the lock, and takes it with the other readers.
    ///
    /// Not to be taken twice by one thread: a writer waiting in between would stop both.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            return self.read_scheduled();
        }
        RwLockReadGuard::plain(self.inner.read())
    }

    #[cfg(feature = "sim")]
    #[cold]
    #[track_caller]
    fn read_scheduled(&self) -> RwLockReadGuard<'_, T> {
        let key = Key::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_read());
        RwLockReadGuard { inner, _release: Release::to(key) }
    }

    /// Blocks until nobody holds the lock, and takes it.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            return self.write_scheduled();
        }
        RwLockWriteGuard::plain(self.inner.write())
    }

    #[cfg(feature = "sim")]
    #[cold]
    #[track_caller]
    fn write_scheduled(&self) -> RwLockWriteGuard<'_, T> {
        let key = Key::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_write());
        RwLockWriteGuard { inner, _release: Release::to(key) }
    }

    /// Takes the lock for reading if no writer holds it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = Key::of_lock(&self.inner);
            return self
                .inner
                .try_read()
                .map(|inner| RwLockReadGuard { inner, _release: Release::to(key) });
        }
        self.inner.try_read().map(RwLockReadGuard::plain)
    }

    /// Takes the lock for writing if nobody holds it.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = Key::of_lock(&self.inner);
            return self
                .inner
                .try_write()
                .map(|inner| RwLockWriteGuard { inner, _release: Release::to(key) });
        }
        self.inner.try_write().map(RwLockWriteGuard::plain)
    }

    /// Returns the value; no lock is needed, for nobody else can hold a reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Shared access to the value of a [`RwLock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    #[cfg(feature = "sim")]
    _release: Release,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    /// A guard of a thread that no scheduler has: its drop unlocks, and that is all.
    fn plain(inner: parking_lot::RwLockReadGuard<'a, T>) -> Self {
        RwLockReadGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: Release::to_nobody(),
        }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Sole access to the value of a [`RwLock`]; dropping it unlocks.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    #[cfg(feature = "sim")]
    _release: Release,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// A guard of a thread that no scheduler has: its drop unlocks, and that is all.
    fn plain(inner: parking_lot::RwLockWriteGuard<'a, T>) -> Self {
        RwLockWriteGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: Release::to_nobody(),
        }
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A place to wait for a change of what a [`Mutex`] guards.
///
/// A wait may end without a notification: check the condition in a loop.
#[derive(Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

impl Condvar {
    /// Returns a condition that nobody waits for.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar { inner: parking_lot::Condvar::new() }
    }

    /// Unlocks, blocks until notified, and locks again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::wait_condition(Key::of_condition(self), &mut guard.inner, None);
            return;
        }
        self.inner.wait(&mut guard.inner);
    }

    /// As [`Condvar::wait`], but for at most `timeout_ns` nanoseconds. Returns whether that time
    /// passed without a notification.
    #[track_caller]
    #[must_use]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout_ns: u64) -> bool {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            let key = Key::of_condition(self);
            return sim::wait_condition(key, &mut guard.inner, Some(timeout_ns));
        }
        self.inner.wait_for(&mut guard.inner, Duration::from_nanos(timeout_ns)).timed_out()
    }

    /// Wakes one of those who wait, if any; which one is not said.
    pub fn notify_one(&self) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::notify_one(Key::of_condition(self));
            return;
        }
        self.inner.notify_one();
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::notify_all(Key::of_condition(self));
            return;
        }
        self.inner.notify_all();
    }
}
