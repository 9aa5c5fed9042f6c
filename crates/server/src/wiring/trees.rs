//! Copy-in and copy-out of trees, in the process that has the pool open.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::Pool;
use engine::api::{FileSystem, FilesetUuid};
use serde_json::Value;

use super::failed;
use super::requests::{advised, refused};
use super::transfer::{ToldFile, TransferFile};
use crate::backend::{BackendError, OnTransfer};
use crate::tree::copy::{self, CopyPurpose, TreeCopyTask};
use crate::tree::host::HostTree;
use crate::tree::pool::PoolTree;
use crate::tree::walk::TreeWork;
use crate::tree::{THREADS_MAX, TreeCopyTotals, TreeError, pack, unpack};
use control::wire::TransferProgress;
use control::{TreeSpec, name_of, snapshot_of};

const BUFFER_BYTES: usize = 1 << 20;

struct FilesetHold<'p>(&'p Pool, FilesetUuid);

impl Drop for FilesetHold<'_> {
    fn drop(&mut self) {
        self.0.fileset_admin().release_fileset(self.1);
    }
}

fn hold<'p>(path: &Path, pool: &'p Pool, spec: &TreeSpec) -> Result<FilesetHold<'p>, BackendError> {
    let fileset = name_of(&spec.fileset).map_err(|cause| failed(path, cause))?;
    let snapshot = spec.snapshot.as_deref().map(snapshot_of).transpose();
    let uuid = match snapshot.map_err(|cause| failed(path, cause))? {
        Some(snapshot) => pool.fileset_admin().hold_snapshot(&fileset, &snapshot),
        None => pool.fileset_admin().hold_fileset(&fileset),
    };
    uuid.map(|uuid| FilesetHold(pool, uuid)).map_err(|error| refused(path, &error))
}

fn open(
    path: &Path,
    fs: &Arc<dyn FileSystem>,
    (hold, spec): (&FilesetHold<'_>, &TreeSpec),
    makes: bool,
) -> Result<PoolTree, BackendError> {
    let root = fs.root_of(hold.1).map_err(|error| refused(path, &error))?;
    PoolTree::below(fs, root, &spec.path, makes).map_err(|error| failed(path, error))
}

fn end(path: &Path, totals: &TreeCopyTotals, what: &str) -> Result<Value, BackendError> {
    match totals.last_word() {
        None => Ok(totals.facts()),
        Some(word) => {
            Err(failed(path, format!("{word}: {what} is not whole: {}", totals.so_far())))
        }
    }
}

fn snapshot_of_file(path: &Path, file: &mut TransferFile<'_>) -> Result<File, BackendError> {
    file.file().try_clone().map_err(|error| failed(path, error))
}

fn path_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn rewind(path: &Path, file: &mut TransferFile<'_>) -> Result<(), BackendError> {
    file.file().rewind().map_err(|error| {
        let advice = "what comes or goes through a pipe is not there to be compared";
        failed(path, format!("--verify: {advice}: leave it out, or name a file ({error})"))
    })
}

fn threads_of(spec: &TreeSpec) -> usize {
    spec.threads.clamp(1, THREADS_MAX)
}

/// Copies a tree into a fileset. Writes go through `fronts`, so that shared mounts are notified.
pub(super) fn copy_in(
    path: &Path,
    (pool, fronts): (&Arc<Pool>, Option<Arc<dyn FileSystem>>),
    spec: &TreeSpec,
    file: &mut TransferFile<'_>,
    progress: OnTransfer<'_>,
) -> Result<Value, BackendError> {
    if spec.snapshot.is_some() {
        return Err(failed(path, "a snapshot never changes: copy into a fileset"));
    }
    let is_seekable = !spec.is_archive || file.file().stream_position().is_ok();
    if spec.verifies && !is_seekable {
        rewind(path, file)?;
    }
    // Declared before `tree`, because `tree` must be dropped before the hold.
    let hold = hold(path, pool, spec)?;
    let fs = fronts.unwrap_or_else(|| Arc::<Pool>::clone(pool));
    let tree = open(path, &fs, (&hold, spec), true)?;
    // The client passed only a descriptor, so the path for messages comes from the kernel.
    let root = (!spec.is_archive).then(|| path_of(file.file())).flatten();
    let (totals, work, threads) =
        (TreeCopyTotals::below(root), TreeWork::default(), threads_of(spec));
    let length_bytes = if spec.is_archive { file.length_bytes() } else { 0 };
    let report = CopyReport { totals: &totals, work: &work, passes: passes(spec), length_bytes };
    std::thread::scope(|scope| {
        // Ends the counting, also after an error: the scope waits for it.
        let _counting = work.while_copying();
        if spec.counts_work && !spec.is_archive {
            let source = HostTree::new(snapshot_of_file(path, file)?);
            let work = &work;
            scope.spawn(move || work.count(&source));
        }
        for purpose in purposes(spec) {
            if totals.is_stopped() {
                break;
            }
            let task = TreeCopyTask { purpose, rules: spec.rules };
            if spec.is_archive {
                if purpose == CopyPurpose::Verify {
                    rewind(path, file)?;
                }
                let reader =
                    ToldFile { file: &mut *file, report: |bytes| progress(report.at(bytes)) };
                let reader = BufReader::with_capacity(BUFFER_BYTES, reader);
                unpack::run((reader, &tree), task, threads, &totals);
            } else {
                let source = HostTree::new(snapshot_of_file(path, file)?);
                let mut moved = |bytes| progress(report.at(bytes)) && !file.is_closing();
                copy::run((&source, &tree), task, threads, &totals, &mut moved);
            }
        }
        Ok::<_, BackendError>(())
    })?;
    let what = match pool.status().full {
        Some(full) => format!("{}: what was copied in", advised(&full)),
        None => "what was copied in".to_owned(),
    };
    end(path, &totals, &what)
}

fn purposes(spec: &TreeSpec) -> impl Iterator<Item = CopyPurpose> {
    [CopyPurpose::Copy].into_iter().chain(spec.verifies.then_some(CopyPurpose::Verify))
}

fn passes(spec: &TreeSpec) -> u64 {
    1 + u64::from(spec.verifies)
}

/// What the progress reports of a copy are made from.
#[derive(Clone, Copy)]
struct CopyReport<'r> {
    totals: &'r TreeCopyTotals,
    work: &'r TreeWork,
    passes: u64,
    /// Length of an archive to read. 0 if unknown.
    length_bytes: u64,
}

impl CopyReport<'_> {
    fn at(&self, bytes: u64) -> TransferProgress {
        let (counted_bytes, items_total) = self.work.total(self.passes);
        let bytes_total = counted_bytes.max(self.length_bytes.saturating_mul(self.passes));
        TransferProgress { bytes, bytes_total, items: self.totals.items(), items_total }
    }
}

pub(super) fn copy_out(
    path: &Path,
    pool: &Arc<Pool>,
    spec: &TreeSpec,
    file: &mut TransferFile<'_>,
    progress: OnTransfer<'_>,
) -> Result<Value, BackendError> {
    let hold = hold(path, pool, spec)?;
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
    let tree = open(path, &fs, (&hold, spec), false)?;
    let (totals, work, threads) =
        (TreeCopyTotals::default(), TreeWork::default(), threads_of(spec));
    let report = CopyReport { totals: &totals, work: &work, passes: passes(spec), length_bytes: 0 };
    std::thread::scope(|scope| {
        // Ends the counting, also after an error: the scope waits for it.
        let _counting = work.while_copying();
        if spec.counts_work {
            let (work, tree) = (&work, &tree);
            scope.spawn(move || work.count(tree));
        }
        for purpose in purposes(spec) {
            if totals.is_stopped() {
                break;
            }
            if !spec.is_archive {
                let target = HostTree::new(snapshot_of_file(path, file)?);
                let task = TreeCopyTask { purpose, rules: spec.rules };
                let mut moved = |bytes| progress(report.at(bytes)) && !file.is_closing();
                copy::run((&tree, &target), task, threads, &totals, &mut moved);
                continue;
            }
            if purpose == CopyPurpose::Verify {
                rewind(path, file)?;
            }
            let archive = ToldFile { file: &mut *file, report: |bytes| progress(report.at(bytes)) };
            if purpose == CopyPurpose::Verify {
                let reader = BufReader::with_capacity(BUFFER_BYTES, archive);
                unpack::verify_all_of((reader, &tree), threads, &totals);
                continue;
            }
            pack::run(&tree, archive, &totals);
            let is_file = file.file().metadata().is_ok_and(|it| it.is_file());
            if let Some(error) = file.file().sync_all().err().filter(|_| is_file) {
                totals.fail(b"the archive", &TreeError::of_all(error.to_string()));
            }
        }
        Ok::<_, BackendError>(())
    })?;
    end(path, &totals, "what was exported")
}
