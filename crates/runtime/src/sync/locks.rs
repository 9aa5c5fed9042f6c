//! The production locks: `parking_lot` with hooks for simulated runs.
//!
//! A lock checks one thread-local flag; the rest of the hooks is out of line.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(feature = "sim")]
use super::sim::{self, LockKey, LockRelease};

/// Mutual exclusion over a value.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
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
        let key = LockKey::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_lock());
        MutexGuard { inner, _release: LockRelease::to(key) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = LockKey::of_lock(&self.inner);
            return self
                .inner
                .try_lock()
                .map(|inner| MutexGuard { inner, _release: LockRelease::to(key) });
        }
        self.inner.try_lock().map(MutexGuard::plain)
    }

    /// Returns the value. `&mut self` excludes other users, so no lock is taken.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Access to the value of a [`Mutex`], until dropped.
#[must_use = "dropping the guard unlocks at once"]
pub struct MutexGuard<'a, T: ?Sized> {
    inner: parking_lot::MutexGuard<'a, T>,
    // Dropped after `inner`, so that woken threads find the lock free.
    #[cfg(feature = "sim")]
    _release: LockRelease,
}

impl<'a, T: ?Sized> MutexGuard<'a, T> {
    /// Guard of a thread outside a scheduler.
    fn plain(inner: parking_lot::MutexGuard<'a, T>) -> Self {
        MutexGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: LockRelease::to_nobody(),
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
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock for reading, once no writer holds it. Never twice on one thread: a writer in
    /// between would block both.
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
        let key = LockKey::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_read());
        RwLockReadGuard { inner, _release: LockRelease::to(key) }
    }

    /// Takes the lock for writing, once it is free.
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
        let key = LockKey::of_lock(&self.inner);
        let inner = sim::acquire(key, || self.inner.try_write());
        RwLockWriteGuard { inner, _release: LockRelease::to(key) }
    }

    /// Takes the lock for reading if no writer holds it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = LockKey::of_lock(&self.inner);
            return self
                .inner
                .try_read()
                .map(|inner| RwLockReadGuard { inner, _release: LockRelease::to(key) });
        }
        self.inner.try_read().map(RwLockReadGuard::plain)
    }

    /// Takes the lock for writing if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::schedule();
            let key = LockKey::of_lock(&self.inner);
            return self
                .inner
                .try_write()
                .map(|inner| RwLockWriteGuard { inner, _release: LockRelease::to(key) });
        }
        self.inner.try_write().map(RwLockWriteGuard::plain)
    }

    /// Returns the value. `&mut self` excludes other users, so no lock is taken.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Shared access to the value of a [`RwLock`], until dropped.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    #[cfg(feature = "sim")]
    _release: LockRelease,
}

impl<'a, T: ?Sized> RwLockReadGuard<'a, T> {
    fn plain(inner: parking_lot::RwLockReadGuard<'a, T>) -> Self {
        RwLockReadGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: LockRelease::to_nobody(),
        }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// Sole access to the value of a [`RwLock`], until dropped.
#[must_use = "dropping the guard unlocks at once"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    #[cfg(feature = "sim")]
    _release: LockRelease,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    fn plain(inner: parking_lot::RwLockWriteGuard<'a, T>) -> Self {
        RwLockWriteGuard {
            inner,
            #[cfg(feature = "sim")]
            _release: LockRelease::to_nobody(),
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

/// A condition variable. Wakeups may be spurious: check the condition in a loop.
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
    /// Returns a condition variable without waiters.
    #[must_use]
    pub const fn new() -> Condvar {
        Condvar { inner: parking_lot::Condvar::new() }
    }

    /// Unlocks, blocks until notified, and locks again.
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::wait_condition(LockKey::of_condition(self), &mut guard.inner, None);
            return;
        }
        self.inner.wait(&mut guard.inner);
    }

    /// Waits for at most `timeout_ns` nanoseconds. Returns whether the time ran out.
    #[track_caller]
    #[must_use]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, timeout_ns: u64) -> bool {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            let key = LockKey::of_condition(self);
            return sim::wait_condition(key, &mut guard.inner, Some(timeout_ns));
        }
        self.inner.wait_for(&mut guard.inner, Duration::from_nanos(timeout_ns)).timed_out()
    }

    /// Wakes one waiter, an unspecified one.
    pub fn notify_one(&self) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::notify_one(LockKey::of_condition(self));
            return;
        }
        self.inner.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        #[cfg(feature = "sim")]
        if sim::is_registered() {
            sim::notify_all(LockKey::of_condition(self));
            return;
        }
        self.inner.notify_all();
    }
}
