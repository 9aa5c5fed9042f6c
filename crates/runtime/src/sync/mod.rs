//! Locks that a simulated run can schedule.
//!
//! [`Mutex`], [`RwLock`] and [`Condvar`] are what the engine and the storage layers lock with. In
//! normal use they are thin wrappers over `parking_lot`: no poisoning, no allocation. With the
//! feature `sim`, on a thread that belongs to a `sim::Scheduler`, every acquisition is a point
//! where the seed may hand the baton to another thread, and a thread that must wait is parked in
//! the scheduler, so that the same seed gives the same run.
//!
//! With the feature `shuttle` they are that crate's instead, which runs a small test again and
//! again, each time with its threads in another order: such a build is for those tests alone.
//!
//! # Concurrency
//!
//! A lock that a simulated thread uses must be used by threads of the same scheduler only, for as
//! long as the scheduler runs: an outside thread does not know whom to wake.
//!
//! Not here: the order in which locks are taken; each lock's own comment names its place.

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

/// Whether those that these locks schedule run on one thread, and share what that has.
pub const SHARES_ONE_THREAD: bool = cfg!(feature = "shuttle");

pub use chosen::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
