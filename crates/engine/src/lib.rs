//! The file system, from buffers to vnode operations.
//!
//! The modules below are the layers, lowest first. A file uses only what comes earlier in the list.

mod convert;
pub mod error;
mod sync;

pub mod alloc;
mod buffer;
mod container;
mod dir;
mod fileset;
mod journal;
mod pool;
mod segment;
mod store;
pub mod vnode;

pub use alloc::SpaceCounts;
pub use buffer::CacheCounts;
pub use journal::{JournalCounts, RecoveryError, RecoveryReport};
pub use pool::{CreateOptions, OpenError, OpenOptions, Pool, PoolStatus};
pub use vnode::{CleanerCounts, FilesOptions};
