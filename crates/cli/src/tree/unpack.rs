//! A tar into a tree.
//!
//! One thread reads the archive, makes directories, and writes large files as they come. Small
//! files are read into memory and written by others, for a file costs more than its bytes: a
//! bounded number of them waits ([`WAITING_BYTES_MAX`]).
//!
//! Times of a directory are set when all is in it, for what is made in it changes them. Those of
//! all directories are held until the archive ends, or there are too many
//! ([`DIRECTORIES_BYTES_MAX`]): then those that the archive has left. Of one that it comes back to
//! after that, as no walk does, the modification time is that of the import.
//!
//! Names come from whoever made the archive (TE1): one that leads out of the tree is left out and
//! told, and so is one below what is no directory, such as a symbolic link.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use engine::vnode::api::FileKind;

use super::archive::{Archive, ArchiveError, Entry, Ranges, What};
use super::beside::Beside;
use super::copy::{OnMoved, Purpose, Task, Unsynced, below, compare_metas};
use super::differences::Differences;
use super::placing::{self, Making, Spot};
use super::totals::count;
use super::{
    Meta, PIECE_BYTES, Rules, Totals, Tree, TreeError, TreeResult, aside, is_same, names_of, rights,
};
use links::{Absence, Absent};

mod links;

/// Files up to this size are written by another thread than the one that reads.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Bytes and files that wait for a thread.
const WAITING_BYTES_MAX: u64 = 64 << 20;
const WAITING_FILES_MAX: usize = 4096;
/// Bytes of directories that are held until all is in them; tests have fewer.
pub(super) const DIRECTORIES_BYTES_MAX: usize = if cfg!(test) { 256 << 10 } else { 64 << 20 };
/// Directories from which what killed processes left is removed: those that come first.
const ENTERED_MAX: usize = 1 << 16;

/// Does `task` with the archive in `reader` and `target`.
pub(crate) fn run<R: Read, T: Tree>(
    (reader, target): (R, &T),
    task: impl Into<Task>,
    threads: usize,
    totals: &Totals,
    moved: OnMoved<'_>,
) {
    run_beside((reader, target), (task.into(), None), threads, totals, moved);
}

/// Compares the archive in `reader`, which [`super::pack`] has made of all of `target`, with that:
/// what it lacks differs too.
pub(crate) fn verify_all_of<R: Read, T: Tree>(
    (reader, target): (R, &T),
    threads: usize,
    totals: &Totals,
    moved: OnMoved<'_>,
) {
    match Beside::new(target) {
        Ok(beside) => {
            let beside = Some(beside);
            run_beside((reader, target), (Purpose::Verify.into(), beside), threads, totals, moved);
        }
        Err(error) => totals.fail(b".", &error),
    }
}

fn run_beside<R: Read, T: Tree>(
    (reader, target): (R, &T),
    (task, beside): (Task, Option<Beside<'_, T>>),
    threads: usize,
    totals: &Totals,
    moved: OnMoved<'_>,
) {
    let Task { purpose, rules } = task;
    let job = Job {
        target,
        purpose,
        rules,
        totals,
        differences: Mutex::default(),
        absent: Mutex::default(),
        queue: Mutex::default(),
        changed: Condvar::new(),
        unsynced: Unsynced::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| job.work());
        }
        let (directories, entered) = (BTreeMap::new(), BTreeSet::new());
        let reading = Reading { job: &job, directories, held_bytes: 0, entered, beside };
        // A bug ends the import, and not its caller.
        let read = catch_unwind(AssertUnwindSafe(|| reading.all(reader, moved)));
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
    if purpose == Purpose::Copy {
        job.unsynced.settle(target, totals);
        if let Err(error) = target.sync() {
            totals.fail(b".", &error);
        }
    }
}

/// A small file with all of its content.
struct Small<N> {
    directory: N,
    name: Vec<u8>,
    entry: Entry,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl<N> Small<N> {
    fn held_bytes(&self) -> u64 {
        let pieces = self.pieces.len().saturating_mul(size_of::<(u64, Vec<u8>)>());
        let bytes = held_bytes(&self.entry).saturating_add(pieces);
        self.entry.stored_bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// Returns how many bytes are held of a file beside its content.
fn held_bytes(entry: &Entry) -> usize {
    let one = |it: &(Vec<u8>, Vec<u8>)| size_of_val(it) + it.0.len() + it.1.len();
    let attributes: usize = entry.attributes.iter().map(one).sum();
    // The path stands in a map besides.
    size_of::<Entry>() + 2 * entry.path.len() + entry.target.len() + attributes
}

/// Returns the error of an import that has met a bug.
fn bug() -> TreeError {
    TreeError::of_all("the import met a bug: see the log")
}

struct Queue<N> {
    small: VecDeque<Small<N>>,
    bytes: u64,
    /// Paths of files that wait or are written.
    under_way: BTreeSet<Vec<u8>>,
    has_ended: bool,
}

impl<N> Default for Queue<N> {
    fn default() -> Queue<N> {
        Queue { small: VecDeque::new(), bytes: 0, under_way: BTreeSet::new(), has_ended: false }
    }
}

struct Job<'j, T: Tree> {
    target: &'j T,
    purpose: Purpose,
    rules: Rules,
    totals: &'j Totals,
    differences: Mutex<Differences>,
    absent: Mutex<Absent>,
    queue: Mutex<Queue<T::Node>>,
    changed: Condvar,
    unsynced: Unsynced<T::Node>,
}

impl<T: Tree> Job<'_, T> {
    fn lock(&self) -> MutexGuard<'_, Queue<T::Node>> {
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
                self.absent().add(&small.entry.path, Absence::Failed);
            } else {
                // A bug ends the import, and not its other threads.
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

    /// Begins an entry of this path, when no earlier one of it, or of what is above it, is under
    /// way: what was found of an earlier one counts no more.
    fn begins(&self, path: &[u8]) {
        drop(self.wait(|queue| is_clear(queue, path)));
        self.absent().begins(path);
        self.differences().begins(path);
    }

    /// Notes that an entry is left out on purpose.
    fn leave_out(&self, path: &[u8], why: &str) {
        self.absent().add(path, Absence::LeftOut);
        self.totals.leave_out(path, why);
    }

    /// Tells what is wrong with an entry, now or when the archive ends.
    fn wrong(&self, path: &[u8], error: TreeError, target: Option<Vec<u8>>) {
        if self.purpose == Purpose::Copy {
            self.absent().add(path, Absence::Failed);
        }
        let mut differences = self.differences();
        if self.purpose == Purpose::Copy || error.is_final || differences.is_full() {
            return self.totals.fail(path, &error);
        }
        differences.add(path, error, target);
    }

    fn differences(&self) -> MutexGuard<'_, Differences> {
        self.differences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn absent(&self) -> MutexGuard<'_, Absent> {
        self.absent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more comes: the threads end once they have written what waits.
    fn end(&self) {
        self.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Waits until `is_enough` of what is under way.
    fn wait(&self, is_enough: impl Fn(&Queue<T::Node>) -> bool) -> MutexGuard<'_, Queue<T::Node>> {
        let mut queue = self.lock();
        while !is_enough(&queue) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }

    fn give(&self, small: Small<T::Node>) {
        let mut queue = self
            .wait(|queue| queue.bytes < WAITING_BYTES_MAX && queue.small.len() < WAITING_FILES_MAX);
        queue.bytes += small.held_bytes();
        queue.under_way.insert(small.entry.path.clone());
        queue.small.push_back(small);
        self.changed.notify_all();
    }

    fn small(&self, small: &Small<T::Node>) -> TreeResult<()> {
        let Small { directory, name, entry, pieces } = small;
        if self.purpose == Purpose::Verify {
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

    /// Makes a file; `None`: it is there already, and that is enough.
    fn make(
        &self,
        directory: &T::Node,
        name: &[u8],
        entry: &Entry,
    ) -> TreeResult<Option<Making<T::Node>>> {
        let (meta, wanted) = (&entry.meta, &entry.attributes);
        let there = self.target.find(directory, name)?;
        let same = there.as_ref().filter(|there| self.rules.skips_same && is_same(meta, there));
        if let Some(there) = same {
            let node = self.target.open(directory, name, there)?;
            let is_link = meta.kind == FileKind::Symlink;
            let has_target = !is_link || self.target.target(&node)? == entry.target;
            let is_right = rights::has_rights(self.target, (&node, there), meta, wanted)?;
            // Other names of it may be those of files that are none of this one's owner's.
            if has_target && (is_right || there.links <= 1) {
                if !is_right {
                    self.tell_all(entry, rights::give(self.target, &node, meta, wanted)?);
                }
                count(&self.totals.skipped);
                return Ok(None);
            }
        }
        let spot = Spot { directory, name, path: &entry.path };
        let of = (meta, &entry.target[..], wanted);
        placing::begin(self.target, spot, of, there.as_ref()).map(Some)
    }

    fn tell_all(&self, entry: &Entry, told: Vec<TreeError>) {
        for error in told {
            self.totals.fail(&entry.path, &error);
        }
    }

    /// The content of a regular file is written, or that has failed.
    fn finish(
        &self,
        making: Making<T::Node>,
        (directory, name): (&T::Node, &[u8]),
        entry: &Entry,
        written: TreeResult<()>,
    ) -> TreeResult<()> {
        let (meta, spot) = (&entry.meta, Spot { directory, name, path: &entry.path });
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

    /// Compares all but the content.
    fn compare(&self, directory: &T::Node, name: &[u8], entry: &Entry) -> TreeResult<T::Node> {
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

    /// What lies from `start` to `end` is to be zeros: a hole, or written.
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
                // Nothing: somebody has cut it meanwhile.
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

struct Reading<'j, 'r, T: Tree> {
    job: &'r Job<'j, T>,
    /// The directories of the archive: their own attributes are set when all is in them.
    directories: BTreeMap<Vec<u8>, Entry>,
    held_bytes: usize,
    /// Directories from which what killed processes left was removed, by id.
    entered: BTreeSet<(u64, u64)>,
    /// Where the archive is to have all of the tree.
    beside: Option<Beside<'j, T>>,
}

impl<T: Tree> Reading<'_, '_, T> {
    fn all(mut self, reader: impl Read, moved: OnMoved<'_>) -> Result<(), ArchiveError> {
        let done = self.entries(reader, moved);
        // What was read is written, however the reading has ended.
        drop(self.job.wait(|queue| queue.under_way.is_empty()));
        self.job.end();
        if done.is_ok() && !self.job.totals.is_stopped() {
            self.passes(None);
            self.finish_directories(None);
        }
        done
    }

    fn entries(&mut self, reader: impl Read, moved: OnMoved<'_>) -> Result<(), ArchiveError> {
        let mut archive = Archive::new(reader);
        let totals = self.job.totals;
        loop {
            match self.next(&mut archive) {
                Ok(true) => {}
                Ok(false) => {
                    let mut goes_on = |at| moved(at) && !totals.is_stopped();
                    if archive.drain(&mut goes_on)? && self.job.purpose == Purpose::Copy {
                        let why = "data after the end of the archive was not imported: import it \
                                   as an archive of its own";
                        totals.leave_out(b"the archive", why);
                    }
                    return Ok(());
                }
                // TE3: what is behind it is read.
                Err(ArchiveError::OfFile { path, cause }) => {
                    totals.fail(&path, &TreeError::of_file(cause));
                    if let (Ok(names), Purpose::Copy) = (names_of(&path), self.job.purpose) {
                        self.job.absent().add(&names.join(&b'/'), Absence::Failed);
                    }
                }
                Err(error) => return Err(error),
            }
            totals.moved_bytes.store(archive.position, Ordering::Relaxed);
            if totals.is_stopped() {
                return Ok(());
            }
            if !moved(archive.position) {
                totals.stop("whoever asked for it has gone, or the pool is being closed");
                return Ok(());
            }
        }
    }

    fn passes(&mut self, path: Option<&[u8]>) {
        if let Some(beside) = &mut self.beside {
            beside.go_to(path, (self.job.target, self.job.totals));
        }
    }

    /// Takes the next file; `false`: there is none.
    fn next<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<bool, ArchiveError> {
        let Some(mut entry) = archive.next()? else { return Ok(false) };
        let job = self.job;
        let is_copy = job.purpose == Purpose::Copy;
        for why in entry.left_out.iter().filter(|_| is_copy) {
            job.totals.leave_out(&entry.path, why);
        }
        for why in entry.wrong.iter().filter(|_| is_copy) {
            job.totals.fail(&entry.path, &TreeError::of_file(why.clone()));
        }
        entry.meta = job.rules.of(entry.meta);
        let told = is_copy.then_some((&entry.path[..], job.totals));
        entry.attributes = rights::fitting(job.target, entry.attributes, job.rules, told);
        let (path, done) = match names_of(&entry.path) {
            Ok(names) => {
                let name = names.last().map(|name| name.to_vec());
                let path = names.join(&b'/');
                self.passes(Some(&path));
                entry.path.clone_from(&path);
                job.begins(&path);
                let target = (entry.what == What::Link).then(|| names_of(&entry.target).ok());
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

    /// The outer error is one of the archive, the inner one costs this file.
    fn entry<R: Read>(
        &mut self,
        archive: &mut Archive<R>,
        entry: Entry,
        name: Option<Vec<u8>>,
    ) -> Result<TreeResult<()>, ArchiveError> {
        if let What::Other(kind) = entry.what {
            let kind = char::from(kind).escape_default();
            let why = format!("it is of kind `{kind}`, which no file system has");
            self.job.leave_out(&entry.path, &why);
            return Ok(Ok(()));
        }
        if self.job.rules.leaves_out(entry.meta.kind) {
            self.job.leave_out(&entry.path, "devices are left out (--no-devices)");
            return Ok(Ok(()));
        }
        let Some(name) = name else {
            // The root itself.
            let is_directory = entry.what == What::File(FileKind::Directory);
            return Ok(if is_directory { self.hold(entry) } else { Ok(()) });
        };
        let parent = entry.path.strip_suffix(&name[..]).unwrap_or_default();
        let directory = match self.directory(parent) {
            Ok(directory) => directory,
            Err(error) => return Ok(Err(error)),
        };
        match entry.what {
            What::Link => Ok(self.link(&directory, &name, &entry)),
            What::File(FileKind::Directory) => {
                let done = self.enter(&directory, &name, &entry.meta, true);
                Ok(done.and_then(|_| self.hold(entry)))
            }
            What::File(FileKind::Regular) if entry.stored_bytes > SMALL_BYTES_MAX => {
                self.large(archive, &directory, &name, &entry)
            }
            What::File(_) | What::Other(_) => {
                let pieces = pieces_of(archive, &entry)?;
                self.job.give(Small { directory, name, entry, pieces });
                Ok(Ok(()))
            }
        }
    }

    /// Returns the directory at a path, and makes what is missing of it.
    fn directory(&mut self, path: &[u8]) -> TreeResult<T::Node> {
        let mut at = self.job.target.root();
        let mut so_far = Vec::new();
        for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            so_far = below(&so_far, name);
            let implied = Entry::implied(so_far.clone());
            let (node, is_new) = self.enter(&at, name, &implied.meta, false)?;
            at = node;
            if is_new {
                self.hold(implied)?;
            }
        }
        Ok(at)
    }

    /// Removes what killed processes left in a directory, when it is entered for the first time.
    fn remove_left(&mut self, directory: &T::Node, id: (u64, u64)) -> TreeResult<()> {
        if self.job.purpose == Purpose::Verify
            || self.entered.len() >= ENTERED_MAX
            || !self.entered.insert(id)
        {
            return Ok(());
        }
        aside::remove_left(self.job.target, directory, |_| false)
    }

    /// Returns a directory, and whether it was made.
    fn enter(
        &mut self,
        directory: &T::Node,
        name: &[u8],
        meta: &Meta,
        replaces: bool,
    ) -> TreeResult<(T::Node, bool)> {
        let target = self.job.target;
        let is_copy = self.job.purpose == Purpose::Copy;
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
            None if self.job.purpose == Purpose::Verify => {
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
        entry: &Entry,
    ) -> Result<TreeResult<()>, ArchiveError> {
        let job = self.job;
        // Before it is made: the map may be wrong.
        let ranges = archive.ranges(entry)?;
        let made = match job.purpose {
            Purpose::Verify => job.compare(directory, name, entry).map(|node| (node, None)),
            Purpose::Copy => match job.make(directory, name, entry) {
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
        let spot = Spot { directory, name, path: &entry.path };
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

    /// Writes or compares what an archive has of a file.
    fn large_content<R: Read>(
        &self,
        archive: &mut Archive<R>,
        node: &T::Node,
        (entry, ranges): (&Entry, Ranges),
    ) -> Result<TreeResult<()>, ArchiveError> {
        let job = self.job;
        let mut bytes = vec![0; PIECE_BYTES];
        let mut hole = 0;
        // The last one has nothing but the hole before it.
        for (mut offset, length) in ranges.into_iter().chain([(entry.meta.size_bytes, 0)]) {
            let end = offset.saturating_add(length);
            if job.purpose == Purpose::Verify
                && let Err(error) = job.compare_hole(node, (hole, offset))
            {
                return Ok(Err(error));
            }
            hole = end;
            while offset < end {
                let most = usize::try_from(end - offset).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
                let count = archive.content(&mut bytes[..most])?;
                let done = match job.purpose {
                    Purpose::Verify => job.compare_piece(node, offset, &bytes[..count]),
                    Purpose::Copy => job.target.write(node, offset, &bytes[..count]),
                };
                if let Err(error) = done {
                    return Ok(Err(error));
                }
                offset += u64::try_from(count).unwrap_or(0);
            }
        }
        Ok(Ok(()))
    }

    /// Holds a directory until all is in it.
    fn hold(&mut self, entry: Entry) -> TreeResult<()> {
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
        // An entry of a later one of its own replaces what was implied.
        let before = self.directories.insert(entry.path.clone(), entry);
        self.held_bytes += bytes;
        self.held_bytes -= before.as_ref().map_or(0, held_bytes);
        Ok(())
    }

    /// Finishes the directories that are held; with a path those alone that the archive has left
    /// where it has come to that.
    fn finish_directories(&mut self, at: Option<&[u8]>) {
        // What is written in them has its effect on their times.
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

    fn finish_directory(&self, entry: &Entry) -> TreeResult<()> {
        let (target, mut at) = (self.job.target, self.job.target.root());
        for name in entry.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
            let there = target.find(&at, name)?;
            let there = there.ok_or_else(|| TreeError::of_file("it was removed meanwhile"))?;
            if there.kind != FileKind::Directory {
                // The archive has put something else in its place.
                return Ok(());
            }
            at = target.open(&at, name, &there)?;
        }
        if self.job.purpose == Purpose::Verify {
            compare_metas(&entry.meta, &target.meta(&at)?)?;
            if target.attributes(&at)? != entry.attributes {
                return Err(TreeError::of_file("its extended attributes or access lists differ"));
            }
            count(&self.job.totals.verified);
            return Ok(());
        }
        if entry.is_implied {
            // As mkdir(1) would have made it; its times are those of what was put into it.
            self.job.tell_all(entry, target.set_owner_and_mode(&at, &entry.meta)?);
            return Ok(());
        }
        self.job.tell_all(entry, rights::give(target, &at, &entry.meta, &entry.attributes)?);
        target.set_times(&at, &entry.meta)
    }
}

/// Whether neither a path nor anything above it is under way.
fn is_clear<N>(queue: &Queue<N>, path: &[u8]) -> bool {
    let mut ends = (0..path.len()).filter(|&at| path[at] == b'/').chain([path.len()]);
    ends.all(|end| !queue.under_way.contains(&path[..end]))
}

/// Reads all content of a small file.
fn pieces_of<R: Read>(
    archive: &mut Archive<R>,
    entry: &Entry,
) -> Result<Vec<(u64, Vec<u8>)>, ArchiveError> {
    if entry.meta.kind != FileKind::Regular || entry.stored_bytes == 0 {
        return Ok(Vec::new());
    }
    let mut pieces = Vec::new();
    for (offset, length) in archive.ranges(entry)? {
        // The sum is what is stored, which is small.
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        archive.content(&mut bytes)?;
        pieces.push((offset, bytes));
    }
    Ok(pieces)
}
