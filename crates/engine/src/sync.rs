//! Locks, exported here so that a test build may put a scheduler beneath them.
//!
//! Lock order, top first. Each lock is taken only while none below it is held:
//!
//! 1. `preallocating`: one preallocation of a file at a time (`vnode`).
//! 2. `refused`: one writer at a time after a refusal of space (`vnode`).
//! 3. `rename`: one rename of directories at a time (`vnode`).
//! 4. gates of filesets, by rising slot (`gate`).
//! 5. vnodes, by rising inode number (`vnode`).
//! 6. the table of filesets, then the fileset (`fileset`).
//! 7. open segments (`segment`).
//! 8. the allocator (`alloc`).
//! 9. the turn to write the log (`journal`).
//! 10. the transaction manager (`journal`).
//! 11. cache shards, then buffers (`buffer`).
//!
//! A move of blocks shared with snapshots prevents the opening of filesets, by a try-lock, before
//! it enters gates (`vnode`).
//!
//! The lock of a fileset's counts (`usage`) is a leaf. That of the listings' notes for readahead
//! (`vnode`) is taken alone.

pub(crate) use runtime::sync::{Condvar, Mutex, MutexGuard, RwLock};
