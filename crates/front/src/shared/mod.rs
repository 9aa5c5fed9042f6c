//! Several fronts of one fileset: who is told what the others have changed.
//!
//! ```text
//!   mount A --> Teller --\                      /--> the same file system
//!   mount B --> Teller ---+--- each change ----+
//!   exports --> Teller --/          |
//!                                   v
//!                        Viewer of A, of B: what to ask again
//! ```
//!
//! A front reaches the file system through a [`Teller`], which does what is asked, and then tells
//! the [`Viewer`] of every other mount of that fileset. A mount that is alone has neither. What a
//! viewer does with it: a file that is opened is asked for again, whatever the kernel remembers of
//! it; and the kernel is told that attributes are to be asked for again, by a thread of the mount.
//!
//! # Invariants
//!
//! - SH1: When a change is answered, every other viewer of its fileset knows of it. So whoever
//!   opens a file afterwards is served what was changed: close-to-open.
//! - SH2: Whoever tells a viewer never waits for a kernel: a request would wait for another, whose
//!   locks it may hold. [`Viewer::tell_each`] has a thread of its own.
//! - SH3: What a viewer knows is bounded ([`NOTICES_MAX`], [`CHANGED_MAX`], [`ASKED_MAX`]). What
//!   does not fit is taken to be changed: names and attributes are kept for a second at most.
//! - SH4: The references that a mount holds are given back when it ends: its kernel does not.
//! - SH5: Where a name led that a change leads elsewhere is looked up while no other front changes
//!   that name: so the file that was replaced is told, whoever made it a moment ago.
//!
//! Not here: what the kernel is sent (`fuse`), and how long it keeps what it was told
//! (`fuse::kernel::encode`).

mod teller;
mod viewer;

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use engine::vnode::api::Ino;
use parking_lot::{Mutex, MutexGuard, RwLock};
use runtime::clock::Clock;

pub use teller::Teller;
pub use viewer::{
    ASKED_MAX, ASKED_TIME_NS, CHANGED_MAX, CHANGED_TIME_NS, NOTICES_MAX, Told, Viewer,
};

/// Locks of names: two changes of one name are apart, and of others seldom wait for each other.
const NAME_LOCKS: usize = 64;
const LOCKS_U64: u64 = 64;

/// Who is shown which fileset of a pool.
pub struct Shares {
    clock: Arc<dyn Clock>,
    /// Those that are there, beside some that have gone.
    viewers: RwLock<Vec<Weak<Viewer>>>,
    /// How many are there: whoever finds none has nobody to tell.
    count: Arc<AtomicUsize>,
    /// SH5. By a hash of directory and name.
    names: [Mutex<()>; NAME_LOCKS],
}

impl std::fmt::Debug for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Shares {
    /// Returns the shares of a pool that nobody is shown yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Shares> {
        let names = std::array::from_fn(|_| Mutex::new(()));
        Arc::new(Shares { clock, viewers: RwLock::default(), count: Arc::default(), names })
    }

    /// Shows somebody the fileset of `root`, as long as the viewer lives.
    #[must_use]
    pub fn join(&self, root: Ino) -> Arc<Viewer> {
        let (clock, count) = (Arc::clone(&self.clock), Arc::clone(&self.count));
        let viewer = Arc::new(Viewer::new(root, clock, count));
        let mut viewers = self.viewers.write();
        viewers.retain(|other| other.strong_count() > 0);
        viewers.push(Arc::downgrade(&viewer));
        viewer
    }

    /// SH5: keeps others from changing where these names lead, until what this returns is dropped.
    fn lock_names(&self, names: &[(Ino, &[u8])]) -> Vec<MutexGuard<'_, ()>> {
        let index_of = |(directory, name): &(Ino, &[u8])| {
            let mut hasher = std::hash::DefaultHasher::new();
            (directory, name).hash(&mut hasher);
            usize::try_from(hasher.finish() % LOCKS_U64).unwrap_or(0)
        };
        let mut indexes: Vec<usize> = names.iter().map(index_of).collect();
        // LOCK: by rising index, each once.
        indexes.sort_unstable();
        indexes.dedup();
        indexes.into_iter().map(|index| self.names[index].lock()).collect()
    }

    /// Returns those who are shown the fileset of `ino`, but for `own`.
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
