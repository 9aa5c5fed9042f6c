//! Cache coherence between several fronts of one fileset: a change through one front invalidates
//! the kernel caches of the other mounts.
//!
//! ```text
//!   mount A --> Teller --\                      /--> one file system
//!   mount B --> Teller ---+--- each change ----+
//!   exports --> Teller --/          |
//!                                   v
//!                        Viewers of the other mounts: inodes to invalidate
//! ```
//!
//! A [`NotifyingFileSystem`] forwards a front's operations and reports changed inodes to the
//! [`Viewer`] of every other mount of the fileset. A viewer makes the next open of a changed file
//! repeat its lookup, and sends the kernel invalidations of attributes. An unshared mount has
//! neither.
//!
//! # Invariants
//!
//! - SH1: Before a change is answered, every other viewer of the fileset has it. So a later open
//!   serves the changed contents (close-to-open consistency).
//! - SH2: Reporting a change never waits for a kernel, which may wait for a request that needs the
//!   reporter's locks. [`Viewer::tell_each`] runs on a thread of its own.
//! - SH3: A viewer's memory is bounded ([`NOTICES_MAX`], [`CHANGED_MAX`], [`ASKED_MAX`]). On
//!   overflow every file counts as changed. The kernel caches names and attributes for a second at
//!   most.
//! - SH4: References of a mount's kernel are released when the mount ends, as the kernel sends no
//!   FORGET then.
//! - SH5: Before a change redirects a name, its old target is looked up while no other front can
//!   change the name. So the replaced file is reported, even a recent one.
//!
//! Not here: messages to the kernel (`fuse`), cache lifetimes (`fuse::kernel::encode`).

mod teller;
mod viewer;

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use engine::api::Ino;
use parking_lot::{Mutex, MutexGuard, RwLock};
use runtime::clock::Clock;

use crate::locks::LockTable;

pub use teller::NotifyingFileSystem;
pub use viewer::{
    ASKED_MAX, ASKED_TIME_NS, CHANGED_MAX, CHANGED_TIME_NS, NOTICES_MAX, Viewer, ViewerCounts,
};

/// Locks of names. Changes of one name exclude each other. Two names seldom share a lock.
const NAME_LOCKS: usize = 64;
const LOCKS_U64: u64 = 64;

/// The viewers of all shared filesets of a pool.
pub struct SharedFilesets {
    clock: Arc<dyn Clock>,
    viewers: RwLock<Vec<Weak<Viewer>>>,
    /// Live viewers. Zero makes every change skip the reporting.
    count: Arc<AtomicUsize>,
    /// Locks of names (SH5), indexed by a hash of directory and name.
    names: [Mutex<()>; NAME_LOCKS],
    /// Advisory locks of files.
    locks: Arc<LockTable>,
}

impl std::fmt::Debug for SharedFilesets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").field("count", &self.count).finish_non_exhaustive()
    }
}

impl SharedFilesets {
    /// Returns a registry without viewers.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<SharedFilesets> {
        let names = std::array::from_fn(|_| Mutex::new(()));
        let locks = Arc::new(LockTable::new(Arc::clone(&clock)));
        let (viewers, count) = (RwLock::default(), Arc::default());
        Arc::new(SharedFilesets { clock, viewers, count, names, locks })
    }

    /// Returns the locks that processes hold on the files.
    #[must_use]
    pub fn locks(&self) -> &Arc<LockTable> {
        &self.locks
    }

    /// Registers a mount of the fileset of `root`, until the viewer is dropped.
    #[must_use]
    pub fn join(&self, root: Ino) -> Arc<Viewer> {
        let (clock, count) = (Arc::clone(&self.clock), Arc::clone(&self.count));
        let viewer = Arc::new(Viewer::new(root, clock, count));
        let mut viewers = self.viewers.write();
        viewers.retain(|other| other.strong_count() > 0);
        viewers.push(Arc::downgrade(&viewer));
        viewer
    }

    /// Blocks changes of these names by other fronts until the guards are dropped (SH5).
    fn lock_names(&self, names: &[(Ino, &[u8])]) -> Vec<MutexGuard<'_, ()>> {
        let index_of = |(directory, name): &(Ino, &[u8])| {
            let mut hasher = std::hash::DefaultHasher::new();
            (directory, name).hash(&mut hasher);
            usize::try_from(hasher.finish() % LOCKS_U64).unwrap_or(0)
        };
        let mut indexes: Vec<usize> = names.iter().map(index_of).collect();
        // LOCK: by rising index, and no lock twice.
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().map(|index| self.names[index].lock()).collect()
    }

    fn others(&self, ino: Ino, own: Option<&Arc<Viewer>>) -> Vec<Arc<Viewer>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let is_other = |viewer: &Arc<Viewer>| {
            viewer.root().slot() == ino.slot() && !own.is_some_and(|own| Arc::ptr_eq(own, viewer))
        };
        self.viewers.read().iter().filter_map(Weak::upgrade).filter(is_other).collect()
    }
}
