//! Trees of files into a pool and out of it, in the process that has it.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::Pool;
use engine::vnode::api::{FileSystem, FilesetUuid};
use serde_json::Value;

use super::control::{advised, refused};
use super::failed;
use super::transfer::Watched;
use crate::backend::BackendError;
use crate::control::{clone_of, name_of};
use crate::transfer::{OnBytes, TreeSpec};
use crate::tree::copy::{self, Purpose, Task};
use crate::tree::host::HostTree;
use crate::tree::pool::PoolTree;
use crate::tree::{THREADS_MAX, Totals, TreeError, pack, unpack};

/// Bytes of an archive that are read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A fileset, until it is dropped.
struct Hold<'p>(&'p Pool, FilesetUuid);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.release_fileset(self.1);
    }
}

/// Opens the fileset, or the clone of it.
fn hold<'p>(path: &Path, pool: &'p Pool, spec: &TreeSpec) -> Result<Hold<'p>, BackendError> {
    let fileset = name_of(&spec.fileset).map_err(|cause| failed(path, cause))?;
    let clone = spec.clone.as_deref().map(clone_of).transpose();
    let uuid = match clone.map_err(|cause| failed(path, cause))? {
        Some(clone) => pool.hold_clone(&fileset, &clone),
        None => pool.hold_fileset(&fileset),
    };
    uuid.map(|uuid| Hold(pool, uuid)).map_err(|error| refused(path, &error))
}

/// Opens the directory in it.
fn open(
    path: &Path,
    fs: &Arc<dyn FileSystem>,
    (hold, spec): (&Hold<'_>, &TreeSpec),
    makes: bool,
) -> Result<PoolTree, BackendError> {
    let root = fs.root_of(hold.1).map_err(|error| refused(path, &error))?;
    PoolTree::below(fs, root, &spec.path, makes).map_err(|error| failed(path, error))
}

/// Returns what is done, or why it ended before.
fn end(path: &Path, totals: &Totals, what: &str) -> Result<Value, BackendError> {
    match totals.last_word() {
        None => Ok(totals.facts()),
        Some(word) => {
            Err(failed(path, format!("{word}: {what} is not whole: {}", totals.so_far())))
        }
    }
}

fn clone_of_file(path: &Path, file: &mut Watched<'_>) -> Result<File, BackendError> {
    file.file().try_clone().map_err(|error| failed(path, error))
}

/// Returns the path of an open file; `None`: it has none.
fn path_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn rewind(path: &Path, file: &mut Watched<'_>) -> Result<(), BackendError> {
    file.file().rewind().map_err(|error| {
        let advice = "what comes or goes through a pipe is not there to be compared";
        failed(path, format!("--verify: {advice}: leave it out, or name a file ({error})"))
    })
}

fn threads_of(spec: &TreeSpec) -> usize {
    spec.threads.clamp(1, THREADS_MAX)
}

/// Puts a tree into a fileset: through `fronts`, so that its shared mounts see it.
pub(super) fn import(
    path: &Path,
    (pool, fronts): (&Arc<Pool>, Option<Arc<dyn FileSystem>>),
    spec: &TreeSpec,
    file: &mut Watched<'_>,
    progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    if spec.clone.is_some() {
        return Err(failed(path, "a clone never changes: import into a fileset"));
    }
    let is_seekable = !spec.is_archive || file.file().stream_position().is_ok();
    if spec.verifies && !is_seekable {
        rewind(path, file)?;
    }
    // Given back behind the tree.
    let hold = hold(path, pool, spec)?;
    let fs = fronts.unwrap_or_else(|| Arc::<Pool>::clone(pool));
    let tree = open(path, &fs, (&hold, spec), true)?;
    // What came is a descriptor: the system knows the path of a directory.
    let root = (!spec.is_archive).then(|| path_of(file.file())).flatten();
    let (totals, threads) = (Totals::below(root), threads_of(spec));
    for purpose in purposes(spec) {
        if totals.is_stopped() {
            break;
        }
        if spec.is_archive {
            if purpose == Purpose::Verify {
                rewind(path, file)?;
            }
            let total =
                file.file().metadata().map_or(0, |it| if it.is_file() { it.len() } else { 0 });
            // Who closes the pool is heard by what reads the archive.
            let mut moved = |bytes: u64| progress(bytes, total);
            let reader = BufReader::with_capacity(BUFFER_BYTES, &mut *file);
            unpack::run(
                (reader, &tree),
                Task { purpose, rules: spec.rules },
                threads,
                &totals,
                &mut moved,
            );
        } else {
            let source = HostTree::new(clone_of_file(path, file)?);
            let mut moved = |bytes: u64| progress(bytes, 0) && !file.is_closing();
            copy::run(
                (&source, &tree),
                Task { purpose, rules: spec.rules },
                threads,
                &totals,
                &mut moved,
            );
        }
    }
    let what = match pool.status().full {
        Some(full) => format!("{}: what was imported", advised(&full)),
        None => "what was imported".to_owned(),
    };
    end(path, &totals, &what)
}

fn purposes(spec: &TreeSpec) -> impl Iterator<Item = Purpose> {
    [Purpose::Copy].into_iter().chain(spec.verifies.then_some(Purpose::Verify))
}

/// Writes files of a fileset into a tree.
pub(super) fn export(
    path: &Path,
    pool: &Arc<Pool>,
    spec: &TreeSpec,
    file: &mut Watched<'_>,
    progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    // Given back behind the tree.
    let hold = hold(path, pool, spec)?;
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
    let tree = open(path, &fs, (&hold, spec), false)?;
    let (totals, threads) = (Totals::default(), threads_of(spec));
    for purpose in purposes(spec) {
        if totals.is_stopped() {
            break;
        }
        match (spec.is_archive, purpose) {
            (true, Purpose::Copy) => {
                let mut moved = |bytes: u64| progress(bytes, 0);
                pack::run(&tree, &mut *file, &totals, &mut moved);
                // A pipe has nothing to make durable.
                let is_file = file.file().metadata().is_ok_and(|it| it.is_file());
                if let Some(error) = file.file().sync_all().err().filter(|_| is_file) {
                    totals.fail(b"the archive", &TreeError::of_all(error.to_string()));
                }
            }
            (true, Purpose::Verify) => {
                rewind(path, file)?;
                let mut moved = |bytes: u64| progress(bytes, 0);
                let reader = BufReader::with_capacity(BUFFER_BYTES, &mut *file);
                unpack::verify_all_of((reader, &tree), threads, &totals, &mut moved);
            }
            (false, purpose) => {
                let target = HostTree::new(clone_of_file(path, file)?);
                let mut moved = |bytes: u64| progress(bytes, 0) && !file.is_closing();
                copy::run(
                    (&tree, &target),
                    Task { purpose, rules: spec.rules },
                    threads,
                    &totals,
                    &mut moved,
                );
            }
        }
    }
    end(path, &totals, "what was exported")
}
