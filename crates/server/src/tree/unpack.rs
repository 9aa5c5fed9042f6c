//! Unpacks a tar archive into a tree, or compares the two.
//!
//! One thread reads the archive, creates directories and writes large files. A small file costs
//! more to create than to read, so small files are read into memory and written by other threads.
//! At most [`WAITING_BYTES_MAX`] are in memory.
//!
//! Attributes and times of a directory are set when its contents are complete, because each
//! creation in a directory changes its time. Until then they are held. Beyond
//! [`DIRECTORIES_BYTES_MAX`], directories other than the current one and its parents are finished
//! early.
//!
//! Names are untrusted (TE1). A name that leads out of the tree, or that is below a file other than
//! a directory, such as a symbolic link, is left out and reported.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use engine::api::FileKind;

use super::archive::{Archive, ArchiveEntry, ArchiveEntryKind, ArchiveError, Ranges};
use super::beside::ArchiveTreeComparison;
use super::copy::{CopyPurpose, TreeCopyTask, UnsyncedFiles, below, compare_metas};
use super::differences::Differences;
use super::placing::{self, FileCreation, TreeLocation};
use super::totals::count;
use super::{
    FileMetadata, FileTree, PIECE_BYTES, TreeCopyTotals, TreeError, TreeResult, aside, is_same,
    names_of, rights,
};
use control::TreeCopyRules;
use links::{MissingEntries, MissingEntryReason};

mod links;

const SMALL_BYTES_MAX: u64 = 1 << 20;
const WAITING_BYTES_MAX: u64 = 64 << 20;
const WAITING_FILES_MAX: usize = 4096;
/// Most bytes of attributes held for directories. Smaller in tests.
pub(super) const DIRECTORIES_BYTES_MAX: usize = if cfg!(test) { 256 << 10 } else { 64 << 20 };
const ENTERED_MAX: usize = 1 << 16;

pub(crate) fn run<R: Read, T: FileTree>(
    (reader, target): (R, &T),
    task: impl Into<TreeCopyTask>,
    threads: usize,
    totals: &TreeCopyTotals,
) {
    run_beside((reader, target), (task.into(), None), threads, totals);
}

/// Compares `target` with the archive that [`super::pack`] made of it. Files that the archive lacks
/// are reported too.
pub(crate) fn verify_all_of<R: Read, T: FileTree>(
    (reader, target): (R, &T),
    threads: usize,
    totals: &TreeCopyTotals,
) {
    match ArchiveTreeComparison::new(target) {
        Ok(beside) => {
            let beside = Some(beside);
            run_beside((reader, target), (CopyPurpose::Verify.into(), beside), threads, totals);
        }
        Err(error) => totals.fail(b".", &error),
    }
}

fn run_beside<R: Read, T: FileTree>(
    (reader, target): (R, &T),
    (task, beside): (TreeCopyTask, Option<ArchiveTreeComparison<'_, T>>),
    threads: usize,
    totals: &TreeCopyTotals,
) {
    let TreeCopyTask { purpose, rules } = task;
    let job = UnpackJob {
        target,
        purpose,
        rules,
        totals,
        differences: Mutex::default(),
        absent: Mutex::default(),
        queue: Mutex::default(),
        changed: Condvar::new(),
        unsynced: UnsyncedFiles::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| job.work());
        }
        let (directories, entered) = (BTreeMap::new(), BTreeSet::new());
        let reading = UnpackReader { job: &job, directories, held_bytes: 0, entered, beside };
        // A panic ends the copy-in, but not its caller.
        let read = catch_unwind(AssertUnwindSafe(|| reading.all(reader)));
        job.end();
        match read {
            Ok(Ok(())) => {}
            Ok(Err(error)) => totals.fail(b"the archive", &TreeError::of_all(error.to_string())),
            Err(_) => totals.fail(b"the archive", &bug()),
        }
    });
    for (path, error) in job.differences().take() {
        totals.fail(&path, &error);
    }
    if purpose == CopyPurpose::Copy {
        job.unsynced.settle(target, totals);
        if let Err(error) = target.sync() {
            totals.fail(b".", &error);
        }
    }
}

struct SmallFile<N> {
    directory: N,
    name: Vec<u8>,
    entry: ArchiveEntry,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl<N> SmallFile<N> {
    fn held_bytes(&self) -> u64 {
        let pieces = self.pieces.len().saturating_mul(size_of::<(u64, Vec<u8>)>());
        let bytes = held_bytes(&self.entry).saturating_add(pieces);
        self.entry.stored_bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

fn held_bytes(entry: &ArchiveEntry) -> usize {
    let one = |it: &(Vec<u8>, Vec<u8>)| size_of_val(it) + it.0.len() + it.1.len();
    let attributes: usize = entry.attributes.iter().map(one).sum();
    // Twice, because the path is also the key of a map.
    size_of::<ArchiveEntry>() + 2 * entry.path.len() + entry.target.len() + attributes
}

fn bug() -> TreeError {
    TreeError::of_all("the copy-in met a bug: see the log")
}

struct UnpackQueue<N> {
    small: VecDeque<SmallFile<N>>,
    bytes: u64,
    under_way: BTreeSet<Vec<u8>>,
    has_ended: bool,
}

impl<N> Default for UnpackQueue<N> {
    fn default() -> UnpackQueue<N> {
        UnpackQueue {
            small: VecDeque::new(),
            bytes: 0,
            under_way: BTreeSet::new(),
            has_ended: false,
        }
    }
}

struct UnpackJob<'j, T: FileTree> {
    target: &'j T,
    purpose: CopyPurpose,
    rules: TreeCopyRules,
    totals: &'j TreeCopyTotals,
    differences: Mutex<Differences>,
    absent: Mutex<MissingEntries>,
    queue: Mutex<UnpackQueue<T::Node>>,
    changed: Condvar,
    unsynced: UnsyncedFiles<T::Node>,
}

impl<T: FileTree> UnpackJob<'_, T> {
    fn lock(&self) -> MutexGuard<'_, UnpackQueue<T::Node>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            let Some(small) = queue.small.pop_front() else {
                if queue.has_ended {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            if self.totals.is_stopped() {
                self.absent().add(&small.entry.path, MissingEntryReason::Failed);
            } else {
                // A panic ends the copy-in. The other threads end as usual.
                let done = catch_unwind(AssertUnwindSafe(|| {
                    let done = self.small(&small);
                    self.target.between_files();
                    done
                }));
                if let Err(error) = done.unwrap_or_else(|_| Err(bug())) {
                    self.wrong(&small.entry.path, error, None);
                }
            }
            queue = self.lock();
            queue.bytes -= small.held_bytes();
            queue.under_way.remove(&small.entry.path);
            self.changed.notify_all();
        }
    }

    /// Begins an entry: waits until earlier entries of its path and of the directories above are
    /// written, and drops their results.
    fn begins(&self, path: &[u8]) {
        drop(self.wait(|queue| is_clear(queue, path)));
        self.absent().begins(path);
        self.differences().begins(path);
    }

    fn leave_out(&self, path: &[u8], why: &str) {
        self.absent().add(path, MissingEntryReason::LeftOut);
        self.totals.leave_out(path, why);
    }

    fn wrong(&self, path: &[u8], error: TreeError, target: Option<Vec<u8>>) {
        if self.purpose == CopyPurpose::Copy {
            self.absent().add(path, MissingEntryReason::Failed);
        }
        let mut differences = self.differences();
        if self.purpose == CopyPurpose::Copy || error.is_final || differences.is_full() {
            return self.totals.fail(path, &error);
        }
        differences.add(path, error, target);
    }

    fn differences(&self) -> MutexGuard<'_, Differences> {
        self.differences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, MissingEntries> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    fn wait(
        &self,
        is_enough: impl Fn(&UnpackQueue<T::Node>) -> bool,
    ) -> MutexGuard<'_, UnpackQueue<T::Node>> {
        let mut queue = self.lock();
        while !is_enough(&queue) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }

    fn give(&self, small: SmallFile<T::Node>) {
        let mut queue = self
            .wait(|queue| queue.bytes < WAITING_BYTES_MAX && queue.small.len() < WAITING_FILES_MAX);
        queue.bytes += small.held_bytes();
        queue.under_way.insert(small.entry.path.clone());
        queue.small.push_back(small);
        self.changed.notify_all();
    }

    fn small(&self, small: &SmallFile<T::Node>) -> TreeResult<()> {
        let SmallFile { directory, name, entry, pieces } = small;
        if self.purpose == CopyPurpose::Verify {
            let node = self.compare(directory, name, entry)?;
            let mut end = 0;
            for (offset, bytes) in pieces {
                self.compare_hole(&node, (end, *offset))?;
                self.compare_piece(&node, *offset, bytes)?;
                end = offset.saturating_add(u64::try_from(bytes.len()).unwrap_or(0));
            }
            if entry.meta.kind == FileKind::Regular {
                self.compare_hole(&node, (end, entry.meta.size_bytes))?;
            }
            count(&self.totals.verified);
            return Ok(());
        }
        let Some(making) = self.make(directory, name, entry)? else { return Ok(()) };
        let mut written = Ok(());
        for (offset, bytes) in pieces {
            written = written.and_then(|()| self.target.write(&making.node, *offset, bytes));
        }
        self.finish(making, (directory, name), entry, written)
    }

    /// Creates the file of an entry. `None` if the existing file is equal, and so is skipped.
    fn make(
        &self,
        directory: &T::Node,
        name: &[u8],
        entry: &ArchiveEntry,
    ) -> TreeResult<Option<FileCreation<T::Node>>> {
        let (meta, wanted) = (&entry.meta, &entry.attributes);
        let there = self.target.find(directory, name)?;
        let same = there.as_ref().filter(|there| self.rules.skips_same && is_same(meta, there));
        if let Some(there) = same {
            let node = self.target.open(directory, name, there)?;
            let is_link = meta.kind == FileKind::Symlink;
            let has_target = !is_link || self.target.target(&node)? == entry.target;
            let is_right = rights::has_rights(self.target, (&node, there), meta, wanted)?;
            // The rights of a file with several names are not changed, because other users may own
            // the others.
            if has_target && (is_right || there.links <= 1) {
                if !is_right {
                    self.tell_all(entry, rights::give(self.target, &node, meta, wanted)?);
                }
                count(&self.totals.skipped);
                return Ok(None);
            }
        }
        let spot = TreeLocation { directory, name, path: &entry.path };
        let of = (meta, &entry.target[..], wanted);
        placing::begin(self.target, spot, of, there.as_ref()).map(Some)
    }

    fn tell_all(&self, entry: &ArchiveEntry, told: Vec<TreeError>) {
        for error in told {
            self.totals.fail(&entry.path, &error);
        }
    }

    fn finish(
        &self,
        making: FileCreation<T::Node>,
        (directory, name): (&T::Node, &[u8]),
        entry: &ArchiveEntry,
        written: TreeResult<()>,
    ) -> TreeResult<()> {
        let (meta, spot) = (&entry.meta, TreeLocation { directory, name, path: &entry.path });
        let is_content = meta.kind == FileKind::Regular && meta.size_bytes > 0;
        let sized = written.and_then(|()| {
            if is_content && self.target.meta(&making.node)?.size_bytes != meta.size_bytes {
                self.target.resize(&making.node, meta.size_bytes)?;
            }
            Ok(())
        });
        if let Err(error) = sized {
            return Err(placing::give_up(self.target, making, spot, error));
        }
        let done = (&self.unsynced, self.totals);
        placing::end(self.target, making, spot, (meta, &entry.attributes), done)?;
        if is_content {
            self.totals.bytes.fetch_add(entry.stored_bytes, Ordering::Relaxed);
        }
        self.totals.count_made(meta.kind);
        Ok(())
    }

    fn compare(
        &self,
        directory: &T::Node,
        name: &[u8],
        entry: &ArchiveEntry,
    ) -> TreeResult<T::Node> {
        let there = self.target.find(directory, name)?;
        let there = there.ok_or_else(|| TreeError::of_file("it is missing there"))?;
        let node = self.target.open(directory, name, &there)?;
        compare_metas(&entry.meta, &there)?;
        if entry.meta.kind == FileKind::Symlink && self.target.target(&node)? != entry.target {
            return Err(TreeError::of_file("it leads elsewhere there"));
        }
        if self.target.attributes(&node)? != entry.attributes {
            return Err(TreeError::of_file("its extended attributes or access lists differ"));
        }
        Ok(node)
    }

    fn compare_piece(&self, node: &T::Node, offset: u64, bytes: &[u8]) -> TreeResult<()> {
        let mut there = Vec::with_capacity(bytes.len());
        self.target.read(node, offset, bytes.len(), &mut there)?;
        if there == bytes {
            return Ok(());
        }
        let differs = there.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(there.len());
        Err(content_differs(offset, differs))
    }

    fn compare_hole(&self, node: &T::Node, (start, end): (u64, u64)) -> TreeResult<()> {
        let (mut at, mut bytes) = (start, Vec::new());
        while at < end {
            let Some((data, data_end)) = self.target.data(node, at)? else { return Ok(()) };
            let data_end = data_end.min(end);
            at = data.max(at);
            while at < data_end {
                let most = usize::try_from(data_end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                bytes.clear();
                let read = self.target.read(node, at, most, &mut bytes)?;
                if let Some(differs) = bytes.iter().position(|&byte| byte != 0) {
                    return Err(content_differs(at, differs));
                }
                // Nothing is read if the file was truncated during the comparison.
                at += u64::try_from(if read == 0 { most } else { read }).unwrap_or(0);
            }
        }
        Ok(())
    }
}

fn content_differs(offset: u64, differs: usize) -> TreeError {
    let first = offset.saturating_add(u64::try_from(differs).unwrap_or(0));
    TreeError::of_file(format!("its content differs from byte {first} on"))
}

struct UnpackReader<'j, 'r, T: FileTree> {
    job: &'r UnpackJob<'j, T>,
    directories: BTreeMap<Vec<u8>, ArchiveEntry>,
    held_bytes: usize,
    entered: BTreeSet<(u64, u64)>,
    /// The walk that finds files missing in the archive, if it must contain the whole tree.
    beside: Option<ArchiveTreeComparison<'j, T>>,
}

impl<T: FileTree> UnpackReader<'_, '_, T> {
    fn all(mut self, reader: impl Read) -> Result<(), ArchiveError> {
        let done = self.entries(reader);
        // Even after an error of the archive, the files read so far are completed.
        drop(self.job.wait(|queue| queue.under_way.is_empty()));
        self.job.end();
        if done.is_ok() && !self.job.totals.is_stopped() {
            self.passes(None);
            self.finish_directories(None);
        }
        done
    }

    fn entries(&mut self, reader: impl Read) -> Result<(), ArchiveError> {
        let mut archive = Archive::new(reader);
        let totals = self.job.totals;
        loop {
            match self.next(&mut archive) {
                Ok(true) => {}
                Ok(false) => {
                    let mut goes_on = |_| !totals.is_stopped();
                    if archive.drain(&mut goes_on)? && self.job.purpose == CopyPurpose::Copy {
                        let why = "data after the end of the archive was not copied: copy it \
                                   as an archive of its own";
                        totals.leave_out(b"the archive", why);
                    }
                    return Ok(());
                }
                // TE3: the next file can be read.
                Err(ArchiveError::OfFile { path, cause }) => {
                    totals.fail(&path, &TreeError::of_file(cause));
                    if let (Ok(names), CopyPurpose::Copy) = (names_of(&path), self.job.purpose) {
                        self.job.absent().add(&names.join(&b'/'), MissingEntryReason::Failed);
                    }
                }
                Err(error) => return Err(error),
            }
            if totals.is_stopped() {
                return Ok(());
            }
        }
    }

    fn passes(&mut self, path: Option<&[u8]>) {
        if let Some(beside) = &mut self.beside {
            beside.go_to(path, (self.job.target, self.job.totals));
        }
    }

    fn next<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<bool, ArchiveError> {
        let Some(mut entry) = archive.next()? else { return Ok(false) };
        let job = self.job;
        let is_copy = job.purpose == CopyPurpose::Copy;
        for why in entry.left_out.iter().filter(|_| is_copy) {
            job.totals.leave_out(&entry.path, why);
        }
        for why in entry.wrong.iter().filter(|_| is_copy) {
            job.totals.fail(&entry.path, &TreeError::of_file(why.clone()));
        }
        entry.meta = super::allowed(job.rules, entry.meta);
        let told = is_copy.then_some((&entry.path[..], job.totals));
        entry.attributes = rights::fitting(job.target, entry.attributes, job.rules, told);
        let (path, done) = match names_of(&entry.path) {
            Ok(names) => {
                let name = names.last().map(|name| name.to_vec());
                let path = names.join(&b'/');
                self.passes(Some(&path));
                entry.path.clone_from(&path);
                job.begins(&path);
                let target =
                    (entry.what == ArchiveEntryKind::Link).then(|| names_of(&entry.target).ok());
                let target = target.flatten().map(|names| names.join(&b'/'));
                let done = self.entry(archive, entry, name)?;
                (path, done.map_err(|error| (error, target)))
            }
            Err(cause) => {
                let error = TreeError::of_file(format!("{cause}: it is left out"));
                (entry.path, Err((error, None)))
            }
        };
        if let Err((error, target)) = done {
            job.wrong(&path, error, target);
        }
        Ok(true)
    }

    /// Handles an entry. The outer error is one of the archive, the inner one affects only this
    /// file.
    fn entry<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        entry: ArchiveEntry,
        name: Option<Vec<u8>>,
    ) -> Result<TreeResult<()>, ArchiveError> {
        if let ArchiveEntryKind::Other(kind) = entry.what {
            let kind = char::from(kind).escape_default();
            let why = format!("it is of kind `{kind}`, which no file system has");
            self.job.leave_out(&entry.path, &why);
            return Ok(Ok(()));
        }
        if super::leaves_out(self.job.rules, entry.meta.kind) {
            self.job.leave_out(&entry.path, "devices are left out (--no-devices)");
            return Ok(Ok(()));
        }
        let Some(name) = name else {
            let is_directory = entry.what == ArchiveEntryKind::File(FileKind::Directory);
            return Ok(if is_directory { self.hold(entry) } else { Ok(()) });
        };
        let parent = entry.path.strip_suffix(&name[..]).unwrap_or_default();
        let directory = match self.directory(parent) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        match entry.what {
            ArchiveEntryKind::Link => Ok(self.link(&directory, &name, &entry)),
            ArchiveEntryKind::File(FileKind::Directory) => {
                let done = self.enter(&directory, &name, &entry.meta, true);
                Ok(done.and_then(|_| self.hold(entry)))
            }
            ArchiveEntryKind::File(FileKind::Regular) if entry.stored_bytes > SMALL_BYTES_MAX => {
                self.large(archive, &directory, &name, &entry)
            }
            ArchiveEntryKind::File(_) | ArchiveEntryKind::Other(_) => {
                let pieces = pieces_of(archive, &entry)?;
                self.job.give(SmallFile { directory, name, entry, pieces });
                Ok(Ok(()))
            }
        }
    }

    fn directory(&mut self, path: &[u8]) -> TreeResult<T::Node> {
        let mut at = self.job.target.root();
        let mut so_far = Vec::new();
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            so_far = below(&so_far, name);
            let implied = ArchiveEntry::implied(so_far.clone());
            let (node, is_new) = self.enter(&at, name, &implied.meta, false)?;
            at = node;
            if is_new {
                self.hold(implied)?;
            }
        }
        Ok(at)
    }

    fn remove_left(&mut self, directory: &T::Node, id: (u64, u64)) -> TreeResult<()> {
        if self.job.purpose == CopyPurpose::Verify
            || self.entered.len() >= ENTERED_MAX
            || !self.entered.insert(id)
        {
            return Ok(());
        }
        aside::remove_left(self.job.target, directory, |_| false)
    }

    fn enter(
        &mut self,
        directory: &T::Node,
        name: &[u8],
        meta: &FileMetadata,
        replaces: bool,
    ) -> TreeResult<(T::Node, bool)> {
        let target = self.job.target;
        let is_copy = self.job.purpose == CopyPurpose::Copy;
        match target.find(directory, name)? {
            Some(there) if there.kind == FileKind::Directory => {
                let node = target.open(directory, name, &there)?;
                self.remove_left(&node, there.id)?;
                Ok((node, false))
            }
            Some(there) if replaces && is_copy => {
                let (at, metas) = ((directory, name), (meta, &there));
                let made = placing::make_directory_over(target, at, metas, self.job.totals);
                made.map(|node| (node, true))
            }
            Some(_) => {
                let name = super::shown(name);
                let cause = format!("{name} is no directory there, and no link is followed");
                Err(TreeError::of_file(cause))
            }
            None if self.job.purpose == CopyPurpose::Verify => {
                Err(TreeError::of_file("it is missing there"))
            }
            None => {
                count(&self.job.totals.directories);
                let node = target.make(directory, name, meta, b"")?;
                Ok((node, true))
            }
        }
    }

    fn large<R: Read>(
        &self,
        archive: &mut Archive<R>,
        directory: &T::Node,
        name: &[u8],
        entry: &ArchiveEntry,
    ) -> Result<TreeResult<()>, ArchiveError> {
        let job = self.job;
        // Read before the file is created, because the map of ranges may be invalid.
        let ranges = archive.ranges(entry)?;
        let made = match job.purpose {
            CopyPurpose::Verify => job.compare(directory, name, entry).map(|node| (node, None)),
            CopyPurpose::Copy => match job.make(directory, name, entry) {
                Ok(None) => return Ok(Ok(())),
                Ok(Some(making)) => Ok((making.node.clone(), Some(making))),
                Err(error) => Err(error),
            },
        };
        let (node, making) = match made {
            Ok(made) => made,
            Err(error) => return Ok(Err(error)),
        };
        let moved = self.large_content(archive, &node, (entry, ranges));
        let spot = TreeLocation { directory, name, path: &entry.path };
        let moved = match (moved, making) {
            (Ok(moved), Some(making)) => {
                let done = job.finish(making, (directory, name), entry, moved);
                job.target.between_files();
                return Ok(done);
            }
            (Err(error), Some(making)) => {
                let cause = TreeError::of_file(error.to_string());
                placing::give_up(job.target, making, spot, cause);
                return Err(error);
            }
            (moved, None) => moved?,
        };
        if moved.is_ok() {
            count(&job.totals.verified);
        }
        Ok(moved)
    }

    fn large_content<R: Read>(
        &self,
        archive: &mut Archive<R>,
        node: &T::Node,
        (entry, ranges): (&ArchiveEntry, Ranges),
    ) -> Result<TreeResult<()>, ArchiveError> {
        let job = self.job;
        let mut bytes = vec![0; PIECE_BYTES];
        let mut hole = 0;
        // The empty range makes the last hole be compared too.
        for (mut offset, length) in ranges.into_iter().chain([(entry.meta.size_bytes, 0)]) {
            let end = offset.saturating_add(length);
            if job.purpose == CopyPurpose::Verify
                && let Err(error) = job.compare_hole(node, (hole, offset))
            {
                return Ok(Err(error));
            }
            hole = end;
            while offset < end {
                let most = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let count = archive.content(&mut bytes[..most])?;
                let done = match job.purpose {
                    CopyPurpose::Verify => job.compare_piece(node, offset, &bytes[..count]),
                    CopyPurpose::Copy => job.target.write(node, offset, &bytes[..count]),
                };
                if let Err(error) = done {
                    return Ok(Err(error));
                }
                offset += u64::try_from(count).unwrap_or(0);
            }
        }
        Ok(Ok(()))
    }

    fn hold(&mut self, entry: ArchiveEntry) -> TreeResult<()> {
        let bytes = held_bytes(&entry);
        if self.held_bytes + bytes > DIRECTORIES_BYTES_MAX {
            self.finish_directories(Some(&entry.path));
        }
        if self.held_bytes + bytes > DIRECTORIES_BYTES_MAX {
            let cause = format!(
                "it and the directories above it have names and extended attributes of more than \
                 {DIRECTORIES_BYTES_MAX} bytes: its own attributes and times are left out"
            );
            return Err(TreeError::of_file(cause));
        }
        // The directory may have been held already without an entry of its own.
        let before = self.directories.insert(entry.path.clone(), entry);
        self.held_bytes += bytes;
        self.held_bytes -= before.as_ref().map_or(0, held_bytes);
        Ok(())
    }

    /// Sets the attributes of the held directories: of all, or with `at` of all that are not above
    /// it.
    fn finish_directories(&mut self, at: Option<&[u8]>) {
        // Files that are still to be written would change the directories' times.
        drop(self.job.wait(|queue| queue.under_way.is_empty()));
        let is_above = |path: &[u8]| {
            at.and_then(|at| at.strip_prefix(path))
                .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest[0] == b'/')
        };
        for (path, entry) in std::mem::take(&mut self.directories) {
            if is_above(&path) {
                self.directories.insert(path, entry);
                continue;
            }
            self.held_bytes -= held_bytes(&entry);
            if self.job.totals.is_stopped() {
                continue;
            }
            if let Err(error) = self.finish_directory(&entry) {
                self.job.wrong(&entry.path, error, None);
            }
        }
    }

    fn finish_directory(&self, entry: &ArchiveEntry) -> TreeResult<()> {
        let (target, mut at) = (self.job.target, self.job.target.root());
        for name in entry.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let there = target.find(&at, name)?;
            let there = there.ok_or_else(|| TreeError::of_file("it was removed meanwhile"))?;
            if there.kind != FileKind::Directory {
                // A later entry has replaced the directory.
                return Ok(());
            }
            at = target.open(&at, name, &there)?;
        }
        if self.job.purpose == CopyPurpose::Verify {
            compare_metas(&entry.meta, &target.meta(&at)?)?;
            if target.attributes(&at)? != entry.attributes {
                return Err(TreeError::of_file("its extended attributes or access lists differ"));
            }
            count(&self.job.totals.verified);
            return Ok(());
        }
        if entry.is_implied {
            // Like mkdir(1), leaves the time of the last creation in the directory.
            self.job.tell_all(entry, target.set_owner_and_mode(&at, &entry.meta)?);
            return Ok(());
        }
        self.job.tell_all(entry, rights::give(target, &at, &entry.meta, &entry.attributes)?);
        target.set_times(&at, &entry.meta)
    }
}

/// Returns whether neither `path` nor anything above it is still to be written.
fn is_clear<N>(queue: &UnpackQueue<N>, path: &[u8]) -> bool {
    let mut ends = (0..path.len()).filter(|&at| path[at] == b'/').chain([path.len()]);
    ends.all(|end| !queue.under_way.contains(&path[..end]))
}

fn pieces_of<R: Read>(
    archive: &mut Archive<R>,
    entry: &ArchiveEntry,
) -> Result<Vec<(u64, Vec<u8>)>, ArchiveError> {
    if entry.meta.kind != FileKind::Regular || entry.stored_bytes == 0 {
        return Ok(Vec::new());
    }
    let mut pieces = Vec::new();
    for (offset, length) in archive.ranges(entry)? {
        // The ranges add up to the stored size, which is small here.
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        archive.content(&mut bytes)?;
        pieces.push((offset, bytes));
    }
    Ok(pieces)
}
