//! Locks, so that a test build may put a scheduler beneath them.
//!
//! Lock order, top first; each lock is taken only while none below it is held:
//!
//! 1. `refused`: one writer at a time who found no room (`vnode`).
//! 2. `rename`: one rename of directories at a time (`vnode`).
//! 3. vnodes, by rising inode number (`vnode`).
//! 4. the fileset (`fileset`).
//! 5. open segments (`segment`).
//! 6. the allocator (`alloc`).
//! 7. the turn to write the log (`journal`).
//! 8. the transaction manager (`journal`).
//! 9. cache shards, then buffers (`buffer`).
//!
//! What listings note for those who read ahead (`vnode`) is locked with nothing else.

pub(crate) use storage::sync::{Condvar, Mutex, MutexGuard, RwLock};
