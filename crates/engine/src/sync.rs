//! Locks, so that a test build may put a scheduler beneath them.
//!
//! Lock order, top first; each lock is taken only while none below it is held:
//!
//! 1. `rename`: one rename of directories at a time (`vnode`).
//! 2. vnodes, by rising inode number (`vnode`).
//! 3. the fileset (`fileset`).
//! 4. open segments (`segment`).
//! 5. the allocator (`alloc`).
//! 6. the log writer (`journal`).
//! 7. the transaction manager (`journal`).
//! 8. cache shards, then buffers (`buffer`).

pub(crate) use storage::sync::{Condvar, Mutex, MutexGuard, RwLock};
