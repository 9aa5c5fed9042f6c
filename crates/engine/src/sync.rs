//! Locks, so that a test build may put a scheduler beneath them.
//!
//! Lock order, top first; each lock is taken only while none below it is held:
//!
//! 1. `preallocating`: one preallocation of a file at a time (`vnode`).
//! 2. `refused`: one writer at a time who found no room (`vnode`).
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
//! Whoever moves blocks that clones hold keeps others from opening filesets, by trial, before he
//! enters gates (`vnode`).
//!
//! What a fileset references (`usage`) is locked with nothing below it.
//!
//! What listings note for those who read ahead (`vnode`) is locked with nothing else.

pub(crate) use runtime::sync::{Condvar, Mutex, MutexGuard, RwLock};
