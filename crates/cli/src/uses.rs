//! Who uses which fileset of an open pool, so that nobody does who must not.
//!
//! The kernel keeps for ever what it knows of a fileset that is mounted alone, so nobody else may
//! change what is in it (decision 0075). A fileset that is exported over the network may have an
//! import, for its clients ask again. One that is mounted to be shared may have more mounts of that
//! kind, and exports: they tell each other (decision 0077).
//!
//! # Invariants
//!
//! - UF1: A fileset that is mounted alone has one use.
//! - UF2: A fileset is held in the engine as long as it has a use, and given back behind the last
//!   request of that: a [`Claim`] is dropped when its threads have ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::vnode::api::FilesetUuid;
use format::fileset::{FilesetName, NamePart};

use crate::backend::{BackendError, OpenPool};
use crate::control::Request;

/// What a fileset is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Its files are below this directory, and the kernel takes itself to be alone with them.
    Mount(PathBuf),
    /// Its files are below this directory, and others may change them.
    SharedMount(PathBuf),
    /// Clients of a network reach it by this name.
    Export(String),
    /// A tree is written into it.
    Import,
}

impl Use {
    /// Whether a fileset may have both.
    fn goes_with(&self, other: &Use) -> bool {
        match (self, other) {
            (Use::Mount(_), _) | (_, Use::Mount(_)) => false,
            // An import would tell nobody of what it writes.
            (Use::SharedMount(_), Use::Import) | (Use::Import, Use::SharedMount(_)) => false,
            (Use::SharedMount(_) | Use::Export(_) | Use::Import, _) => true,
        }
    }

    fn words(&self) -> String {
        match self {
            Use::Mount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory}, and the kernel would not see what changes \
                     elsewhere: `holdfast unmount {directory}` first, and mount it with --shared \
                     where it was; or name another fileset"
                )
            }
            Use::SharedMount(directory) => {
                let directory = directory.display();
                format!(
                    "it is mounted on {directory} to be shared: mount it with --shared here too; \
                     for an import, `holdfast unmount {directory}` first"
                )
            }
            Use::Export(name) => format!(
                "it is exported as {name}, and a mount would not see what its clients change: \
                 mount it with --shared, or remove the export first"
            ),
            Use::Import => "a tree is being imported into it: wait until that has ended".to_owned(),
        }
    }
}

/// The uses of a pool's filesets.
pub(crate) struct Uses {
    path: PathBuf,
    pool: Arc<dyn OpenPool>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    uses: BTreeMap<u64, (FilesetUuid, Use)>,
}

/// A use, until it is dropped.
pub(crate) struct Claim {
    uses: Arc<Uses>,
    number: u64,
    fileset: FilesetUuid,
    is_held: bool,
}

impl Uses {
    /// Returns the uses of `pool`, which was opened at `path`: none.
    pub(crate) fn new(path: &Path, pool: &Arc<dyn OpenPool>) -> Arc<Uses> {
        let (path, pool) = (path.to_owned(), Arc::clone(pool));
        Arc::new(Uses { path, pool, table: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a fileset, or a clone of it; `None`: the one that the pool was opened with.
    pub(crate) fn claim(
        self: &Arc<Uses>,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
        how: Use,
    ) -> Result<Claim, BackendError> {
        let fileset = match name {
            Some(name) => self.pool.hold_fileset(name, clone)?,
            None => self.pool.file_system().main_fileset(),
        };
        // From here on it is given back, whatever comes.
        let mut claim =
            Claim { uses: Arc::clone(self), number: 0, fileset, is_held: name.is_some() };
        let mut table = self.lock();
        let found = table.uses.values().find(|(it, other)| *it == fileset && !how.goes_with(other));
        if let Some((_, other)) = found {
            let words = other.words();
            drop(table);
            let shown = self.pool.fileset_name(fileset).unwrap_or_default();
            let cause = format!("fileset {shown}: {words}");
            return Err(BackendError::Failed { device: self.path.clone(), cause });
        }
        table.next += 1;
        claim.number = table.next;
        table.uses.insert(claim.number, (fileset, how));
        Ok(claim)
    }
}

impl Uses {
    /// Refuses to delete a clone that is used, by what uses it. Another request may go on.
    pub(crate) fn check(&self, request: &Request) -> Result<(), BackendError> {
        let Request::CloneDelete { fileset, clone } = request else { return Ok(()) };
        let name = format!("{fileset}@{clone}");
        let uses: Vec<_> = self.lock().uses.values().cloned().collect();
        let is_it = |fileset: &FilesetUuid| {
            self.pool.fileset_name(*fileset).is_some_and(|found| found == name)
        };
        let Some((_, how)) = uses.iter().find(|(fileset, _)| is_it(fileset)) else { return Ok(()) };
        let by = match how {
            Use::Mount(directory) | Use::SharedMount(directory) => {
                let directory = directory.display();
                format!("it is mounted on {directory}: `holdfast unmount {directory}` first")
            }
            Use::Export(name) => {
                format!("it is exported as {name}: `holdfast export remove` it first")
            }
            Use::Import => "a tree is being copied: wait until that has ended".to_owned(),
        };
        let cause = format!("clone {name}: {by}");
        Err(BackendError::Failed { device: self.path.clone(), cause })
    }
}

impl Claim {
    /// Returns what is used.
    pub(crate) fn fileset(&self) -> FilesetUuid {
        self.fileset
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.uses.lock().uses.remove(&self.number);
        if self.is_held {
            self.uses.pool.release_fileset(self.fileset);
        }
    }
}
