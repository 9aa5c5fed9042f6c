//! The locks under `shuttle`: each acquisition may switch threads.
//!
//! No lock is poisoned, because a panic ends the whole test.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use shuttle::sync as shuttled;

/// Mutual exclusion over a value.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    inner: shuttled::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Returns an unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { inner: shuttled::Mutex::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Blocks until the lock is free, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { inner: Some(self.inner.lock().unwrap_or_else(PoisonError::into_inner)) }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.inner.try_lock().ok().map(|inner| MutexGuard { inner: Some(inner) })
    }

    /// Returns the value. `&mut self` excludes other users, so no lock is taken.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
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
    /// `None` only during a condition wait.
    inner: Option<shuttled::MutexGuard<'a, T>>,
}

const HELD: &str = "only a wait takes it out, and puts it back";

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect(HELD)
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect(HELD)
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
    inner: shuttled::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Returns an unlocked lock.
    pub const fn new(value: T) -> RwLock<T> {
        RwLock { inner: shuttled::RwLock::new(value) }
    }

    /// Returns the value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Takes the lock for reading, once no writer holds it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard { inner: self.inner.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes the lock for writing, once it is free.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard { inner: self.inner.write().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes the lock for reading if no writer holds it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.inner.try_read().ok().map(|inner| RwLockReadGuard { inner })
    }

    /// Takes the lock for writing if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        self.inner.try_write().ok().map(|inner| RwLockWriteGuard { inner })
    }

    /// Returns the value. `&mut self` excludes other users, so no lock is taken.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
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
    inner: shuttled::RwLockReadGuard<'a, T>,
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
    inner: shuttled::RwLockWriteGuard<'a, T>,
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
    inner: shuttled::Condvar,
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
        Condvar { inner: shuttled::Condvar::new() }
    }

    /// Unlocks, blocks until notified, and locks again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.inner.take().expect(HELD);
        guard.inner = Some(self.inner.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits without a timeout, as there is no time here, and returns false.
    #[must_use]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _timeout_ns: u64) -> bool {
        self.wait(guard);
        false
    }

    /// Wakes one waiter, chosen by the schedule.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}
