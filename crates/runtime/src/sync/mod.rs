//! Locks that a simulated run can schedule.
//!
//! Normally [`Mutex`], [`RwLock`] and [`Condvar`] are thin wrappers over `parking_lot`, without
//! poisoning or allocation. With the feature `sim`, on a thread of a `sim::Scheduler`, acquisitions
//! are scheduling points and the scheduler parks waiting threads, so that a seed determines the
//! run. With the feature `shuttle`, for tests only, they are that crate's locks, which explore many
//! thread orders.
//!
//! # Concurrency
//!
//! While a scheduler runs, other threads must not use its threads' locks: they don't wake the
//! waiters.
//!
//! Not here: the lock order; each lock's own comment gives its place.

#[cfg(feature = "shuttle")]
mod explored;
#[cfg(not(feature = "shuttle"))]
mod locks;
#[cfg(feature = "sim")]
#[cfg_attr(feature = "shuttle", allow(dead_code))]
pub mod sim;

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;

#[cfg(feature = "shuttle")]
use explored as chosen;
#[cfg(not(feature = "shuttle"))]
use locks as chosen;

/// Whether all threads of a test are one OS thread, with its thread-locals.
pub const SHARES_ONE_THREAD: bool = cfg!(feature = "shuttle");

pub use chosen::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
