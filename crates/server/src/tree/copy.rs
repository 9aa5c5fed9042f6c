//! Copies a whole tree into another, or compares the two, with several threads.
//!
//! Work items are a directory to list, or some names in a directory. Threads take the last item of
//! the queue, so the walk is depth first and the queue stays short.
//!
//! An existing file that equals the source's is skipped (TE2). A different one is replaced by a new
//! file, so that other hard links of the old file keep their content ([`placing`]). If only the
//! rights differ, they are changed in place, provided that all names of the target file are names
//! of the source file too. Otherwise the file is replaced, because its other names may belong to
//! another user.
//!
//! # Concurrency
//!
//! The thread that meets the first name of a hard-linked file creates the file. Until it is
//! created, threads that meet its other names queue them for the creating thread.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use engine::api::FileKind;

use super::placing::{self, TreeLocation};
use super::totals::count;
use super::{
    ExtendedAttributes, FileMetadata, FileTree, PIECE_BYTES, TreeCopyTotals, TreeError, TreeResult,
    aside, has_same_owner_and_mode, is_same, rights,
};
use control::TreeCopyRules;

const NAMES_TOGETHER: usize = 64;
/// Number of queued items from which a listing thread processes names itself.
const QUEUE_MAX: usize = 4096;
/// Bounds of the files that wait for a sync before their times are set. At either, a sync is made.
const UNSYNCED_FILES_MAX: usize = 16_384;
const UNSYNCED_BYTES_MAX: u64 = 1 << 30;
const TELL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyPurpose {
    Copy,
    Verify,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeCopyTask {
    pub(crate) purpose: CopyPurpose,
    pub(crate) rules: TreeCopyRules,
}

impl From<CopyPurpose> for TreeCopyTask {
    fn from(purpose: CopyPurpose) -> TreeCopyTask {
        TreeCopyTask { purpose, rules: TreeCopyRules::default() }
    }
}

/// Progress callback: bytes moved. Returns whether to continue.
pub(crate) type OnMoved<'p> = &'p mut dyn FnMut(u64) -> bool;

pub(crate) fn run<S: FileTree, T: FileTree>(
    (source, target): (&S, &T),
    task: impl Into<TreeCopyTask>,
    threads: usize,
    totals: &TreeCopyTotals,
    moved: OnMoved<'_>,
) {
    let TreeCopyTask { purpose, rules } = task.into();
    let job = CopyJob {
        source,
        target,
        purpose,
        rules,
        totals,
        device: OnceLock::new(),
        queue: Mutex::default(),
        changed: Condvar::new(),
        ended: Condvar::new(),
        links: Mutex::default(),
        shared: Mutex::default(),
        unsynced: UnsyncedFiles::default(),
    };
    match job.first() {
        Ok(first) => job.push(CopyWork::Directory(Arc::new(first))),
        Err(error) => totals.fail(b".", &TreeError { is_final: true, ..error }),
    }
    std::thread::scope(|scope| {
        let job = &job;
        let spawned = (0..threads).map(|_| scope.spawn(|| job.work()));
        let workers: Vec<_> = spawned.collect();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            job.wait_for_end();
            if !moved(totals.moved_bytes.load(Ordering::Relaxed)) {
                totals.stop("interrupted, or the pool is being closed");
            }
        }
    });
    if purpose == CopyPurpose::Copy {
        job.unsynced.settle(target, totals);
        if let Err(error) = target.sync() {
            totals.fail(b".", &error);
        }
    }
}

struct DirectoryPair<S: FileTree, T: FileTree> {
    source: S::Node,
    target: T::Node,
    meta: FileMetadata,
    path: Vec<u8>,
    is_new: bool,
    /// Unfinished work items. After the last one, the directory's own attributes are set.
    left: AtomicUsize,
}

enum CopyWork<S: FileTree, T: FileTree> {
    Directory(Arc<DirectoryPair<S, T>>),
    Names(Arc<DirectoryPair<S, T>>, Vec<Vec<u8>>),
    /// A name to be replaced by a new file, because the target file also has names outside the
    /// source.
    Apart(Arc<DirectoryPair<S, T>>, Vec<u8>),
}

struct CopyQueue<S: FileTree, T: FileTree> {
    work: Vec<CopyWork<S, T>>,
    busy: usize,
}

impl<S: FileTree, T: FileTree> Default for CopyQueue<S, T> {
    fn default() -> CopyQueue<S, T> {
        CopyQueue { work: Vec::new(), busy: 0 }
    }
}

type DirectoryPairName<S, T> = (Arc<DirectoryPair<S, T>>, Vec<u8>);

/// Names, so far, of a target file whose rights differ from the source's. Once all names of the
/// file were met as names of one source file, the rights are changed.
struct HardLinkedTarget<S: FileTree, T: FileTree> {
    source: (u64, u64),
    names: Vec<DirectoryPairName<S, T>>,
    is_mixed: bool,
}

/// Target files whose names were not all met yet, by id.
type HardLinkedTargets<S, T> = HashMap<(u64, u64), HardLinkedTarget<S, T>>;

enum HardLinkedSource<S: FileTree, T: FileTree> {
    /// A thread is creating the file, and will link these names to it.
    Making(Vec<DirectoryPairName<S, T>>),
    Made(T::Node),
}

/// Complete files whose times are set after the next sync (TE2).
pub(crate) struct UnsyncedFiles<N>(Mutex<UnsyncedFileList<N>>);

type UnsyncedFileList<N> = (Vec<(N, FileMetadata)>, u64);

impl<N> Default for UnsyncedFiles<N> {
    fn default() -> UnsyncedFiles<N> {
        UnsyncedFiles(Mutex::new((Vec::new(), 0)))
    }
}

impl<N: Clone> UnsyncedFiles<N> {
    /// Sets the times of the complete file `node`, now or after the next sync (TE2).
    pub(crate) fn add<T: FileTree<Node = N>>(
        &self,
        tree: &T,
        node: &N,
        meta: &FileMetadata,
        totals: &TreeCopyTotals,
    ) -> TreeResult<()> {
        if !T::TIMES_WAIT {
            return tree.set_times(node, meta);
        }
        let is_much = {
            let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.0.push((tree.parked(node), meta.clone()));
            waiting.1 = waiting.1.saturating_add(meta.size_bytes);
            waiting.0.len() >= UNSYNCED_FILES_MAX || waiting.1 >= UNSYNCED_BYTES_MAX
        };
        if is_much {
            self.settle(tree, totals);
        }
        Ok(())
    }

    pub(crate) fn settle<T: FileTree<Node = N>>(&self, tree: &T, totals: &TreeCopyTotals) {
        let (files, _) =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if files.is_empty() {
            return;
        }
        if let Err(error) = tree.sync() {
            totals.fail(b".", &error);
            return;
        }
        for (node, meta) in files {
            if let Err(error) = tree.set_times(&node, &meta) {
                totals.fail(b".", &error);
            }
        }
    }
}

struct CopyJob<'j, S: FileTree, T: FileTree> {
    source: &'j S,
    target: &'j T,
    purpose: CopyPurpose,
    rules: TreeCopyRules,
    totals: &'j TreeCopyTotals,
    /// Device of the source's root. Files on other devices are on other file systems.
    device: OnceLock<u64>,
    queue: Mutex<CopyQueue<S, T>>,
    changed: Condvar,
    ended: Condvar,
    links: Mutex<HashMap<(u64, u64), HardLinkedSource<S, T>>>,
    shared: Mutex<HardLinkedTargets<S, T>>,
    unsynced: UnsyncedFiles<T::Node>,
}

impl<S: FileTree, T: FileTree> CopyJob<'_, S, T> {
    fn first(&self) -> TreeResult<DirectoryPair<S, T>> {
        let (source, target) = (self.source.root(), self.target.root());
        let meta = self.source.meta(&source)?;
        let _ = self.device.set(meta.id.0);
        let left = AtomicUsize::new(1);
        Ok(DirectoryPair { source, target, meta, path: Vec::new(), is_new: false, left })
    }

    fn lock(&self) -> MutexGuard<'_, CopyQueue<S, T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, work: CopyWork<S, T>) {
        self.lock().work.push(work);
        self.changed.notify_one();
    }

    fn wait_for_end(&self) {
        let queue = self.lock();
        if queue.busy > 0 || !queue.work.is_empty() {
            drop(self.ended.wait_timeout(queue, TELL_INTERVAL));
        }
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if self.totals.is_stopped() {
                queue.work.clear();
            }
            let Some(work) = queue.work.pop() else {
                if queue.busy == 0 {
                    let apart = self.names_apart();
                    if !apart.is_empty() {
                        queue.work = apart;
                        self.changed.notify_all();
                        continue;
                    }
                    self.changed.notify_all();
                    self.ended.notify_all();
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            queue.busy += 1;
            drop(queue);
            let (CopyWork::Directory(pair) | CopyWork::Names(pair, _) | CopyWork::Apart(pair, _)) =
                &work;
            // A panic stops the copy. The other threads end as usual.
            let done = catch_unwind(AssertUnwindSafe(|| match &work {
                CopyWork::Directory(pair) => self.list(pair),
                CopyWork::Names(pair, names) => self.each(pair, names, false),
                CopyWork::Apart(pair, name) => self.each(pair, std::slice::from_ref(name), true),
            }));
            let left = catch_unwind(AssertUnwindSafe(|| self.leave(pair)));
            if done.and(left).is_err() {
                self.totals.fail(&pair.path, &TreeError::of_all("the copy met a bug: see the log"));
            }
            queue = self.lock();
            queue.busy -= 1;
        }
    }

    fn list(&self, pair: &Arc<DirectoryPair<S, T>>) {
        if let Err(error) = self.remove_left(pair) {
            self.totals.fail(&pair.path, &error);
        }
        let mut names = Vec::new();
        let listed = self.source.list(&pair.source, &mut |name| {
            names.push(name);
            if names.len() == NAMES_TOGETHER {
                self.give(pair, std::mem::take(&mut names));
            }
        });
        self.give(pair, names);
        if let Err(error) = listed {
            self.totals.fail(&pair.path, &error.while_reading());
        }
    }

    fn remove_left(&self, pair: &DirectoryPair<S, T>) -> TreeResult<()> {
        if pair.is_new || self.purpose == CopyPurpose::Verify {
            return Ok(());
        }
        // Names that exist in the source too are part of the tree.
        let is_of_source = |name: &[u8]| !matches!(self.source.find(&pair.source, name), Ok(None));
        aside::remove_left(self.target, &pair.target, is_of_source)
    }

    fn give(&self, pair: &Arc<DirectoryPair<S, T>>, names: Vec<Vec<u8>>) {
        if names.is_empty() {
            return;
        }
        if self.lock().work.len() >= QUEUE_MAX {
            return self.each(pair, &names, false);
        }
        pair.left.fetch_add(1, Ordering::AcqRel);
        self.push(CopyWork::Names(Arc::clone(pair), names));
    }

    /// Returns the names whose target files also have names outside the source. All names were met.
    fn names_apart(&self) -> Vec<CopyWork<S, T>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let names = shared.drain().flat_map(|(_, shared)| shared.names);
        let is_stopped = self.totals.is_stopped();
        names.filter(|_| !is_stopped).map(|(pair, name)| CopyWork::Apart(pair, name)).collect()
    }

    fn each(&self, pair: &Arc<DirectoryPair<S, T>>, names: &[Vec<u8>], is_apart: bool) {
        for name in names {
            if self.totals.is_stopped() {
                return;
            }
            if let Err(error) = self.one(pair, name, is_apart) {
                self.totals.fail(&below(&pair.path, name), &error);
            }
            self.target.between_files();
        }
    }

    fn one(&self, pair: &Arc<DirectoryPair<S, T>>, name: &[u8], is_apart: bool) -> TreeResult<()> {
        let found = self.source.find(&pair.source, name).map_err(TreeError::while_reading)?;
        let Some(meta) = found else { return Ok(()) };
        let meta = super::allowed(self.rules, meta);
        if super::leaves_out(self.rules, meta.kind) {
            self.totals.leave_out(&below(&pair.path, name), "devices are left out (--no-devices)");
            return Ok(());
        }
        let device = self.device.get().copied().unwrap_or(meta.id.0);
        let is_elsewhere = self.source.is_elsewhere(&pair.source, name, &meta, device);
        if is_elsewhere.map_err(TreeError::while_reading)? {
            let why = "another file system is mounted there: name it by itself";
            self.totals.leave_out(&below(&pair.path, name), why);
            return Ok(());
        }
        let there = self.target.find(&pair.target, name)?;
        match (meta.kind, there) {
            (FileKind::Directory, there) => self.directory(pair, name, meta, there),
            (_, there) if meta.links > 1 => self.linked(pair, name, &meta, (there, is_apart)),
            (_, there) => self.file(pair, name, &meta, (there, is_apart)).map(drop),
        }
    }

    fn directory(
        &self,
        pair: &Arc<DirectoryPair<S, T>>,
        name: &[u8],
        meta: FileMetadata,
        there: Option<FileMetadata>,
    ) -> TreeResult<()> {
        let opened = self.source.open(&pair.source, name, &meta);
        let source = opened.map_err(TreeError::while_reading)?;
        let at = (&pair.target, name);
        let is_new = there.as_ref().is_none_or(|there| there.kind != FileKind::Directory);
        let target = match there {
            Some(there) if !is_new => self.target.open(&pair.target, name, &there)?,
            Some(there) if self.purpose == CopyPurpose::Copy => {
                placing::make_directory_over(self.target, at, (&meta, &there), self.totals)?
            }
            Some(_) => return Err(TreeError::of_file("it is not a directory in the target")),
            None if self.purpose == CopyPurpose::Verify => return Err(missing()),
            None => {
                count(&self.totals.directories);
                self.target.make(&pair.target, name, &meta, b"")?
            }
        };
        let (path, left) = (below(&pair.path, name), AtomicUsize::new(1));
        let pair = DirectoryPair { source, target, meta, path, is_new, left };
        self.push(CopyWork::Directory(Arc::new(pair)));
        Ok(())
    }

    /// Ends a work item of a directory. After the last item, sets the directory's own attributes.
    fn leave(&self, pair: &DirectoryPair<S, T>) {
        if pair.left.fetch_sub(1, Ordering::AcqRel) > 1 || self.totals.is_stopped() {
            return;
        }
        if let Err(error) = self.finish_directory(pair) {
            self.totals.fail(&pair.path, &error);
        }
    }

    fn finish_directory(&self, pair: &DirectoryPair<S, T>) -> TreeResult<()> {
        let wanted = self.wanted(&pair.source, &pair.path)?;
        if self.purpose == CopyPurpose::Verify {
            return self.compare_attributes(&pair.meta, &wanted, &pair.target);
        }
        for error in rights::give(self.target, &pair.target, &pair.meta, &wanted)? {
            self.totals.fail(&pair.path, &error);
        }
        self.target.set_times(&pair.target, &pair.meta)
    }

    /// Returns the source file's attributes that the target can store and the rules allow.
    fn wanted(&self, source: &S::Node, path: &[u8]) -> TreeResult<ExtendedAttributes> {
        let wanted = self.source.attributes(source).map_err(TreeError::while_reading)?;
        let told = (self.purpose == CopyPurpose::Copy).then_some((path, self.totals));
        Ok(rights::fitting(self.target, wanted, self.rules, told))
    }

    fn linked(
        &self,
        pair: &Arc<DirectoryPair<S, T>>,
        name: &[u8],
        meta: &FileMetadata,
        (there, is_apart): (Option<FileMetadata>, bool),
    ) -> TreeResult<()> {
        let lock = || self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match lock().get_mut(&meta.id) {
            Some(HardLinkedSource::Making(waiting)) => {
                waiting.push((Arc::clone(pair), name.to_vec()));
                // Counts the name as a work item, so that the directory is finished after it.
                pair.left.fetch_add(1, Ordering::AcqRel);
                return Ok(());
            }
            Some(HardLinkedSource::Made(node)) => Some(node.clone()),
            None => None,
        };
        if let Some(node) = made {
            return self.link(pair, name, &node, there);
        }
        // Another thread may have begun to create the file.
        let is_first = {
            let mut links = lock();
            let is_first = !links.contains_key(&meta.id);
            if is_first {
                links.insert(meta.id, HardLinkedSource::Making(Vec::new()));
            }
            is_first
        };
        if !is_first {
            return self.linked(pair, name, meta, (there, is_apart));
        }
        let done = self.file(pair, name, meta, (there, is_apart));
        let mut links = lock();
        let waiting = links.remove(&meta.id);
        if let Ok(None) = &done {
            drop(links);
            return self.again(waiting);
        }
        let done = done.and_then(|node| node.ok_or_else(missing));
        if let Ok(node) = &done {
            links.insert(meta.id, HardLinkedSource::Made(self.target.parked(node)));
        }
        drop(links);
        if let Some(HardLinkedSource::Making(waiting)) = waiting {
            for (other, name) in waiting {
                let linked = match &done {
                    Ok(node) => self
                        .target
                        .find(&other.target, &name)
                        .and_then(|there| self.link(&other, &name, node, there)),
                    Err(error) => Err(error.clone()),
                };
                if let Err(error) = linked {
                    self.totals.fail(&below(&other.path, &name), &error);
                }
                self.leave(&other);
            }
        }
        done.map(drop)
    }

    /// Processes the queued names again: the file was not created, because its rights are set once
    /// all of its names were met.
    fn again(&self, waiting: Option<HardLinkedSource<S, T>>) -> TreeResult<()> {
        let Some(HardLinkedSource::Making(waiting)) = waiting else { return Ok(()) };
        for (other, name) in waiting {
            self.each(&other, &[name], false);
            self.leave(&other);
        }
        Ok(())
    }

    /// Handles a name whose target file has several names and differs only in rights. Sets the
    /// rights with the last name, and returns true. Returns false for the others, which are queued.
    fn share(
        &self,
        (pair, name): (&Arc<DirectoryPair<S, T>>, &[u8]),
        (meta, there): (&FileMetadata, &FileMetadata),
        give: impl FnOnce() -> TreeResult<()>,
    ) -> TreeResult<bool> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || HardLinkedTarget { source: meta.id, names: Vec::new(), is_mixed: false };
        let shared = all.entry(there.id).or_insert_with(new);
        shared.is_mixed |= shared.source != meta.id;
        let count_there = u64::try_from(shared.names.len()).unwrap_or(u64::MAX).saturating_add(1);
        if shared.is_mixed || count_there < there.links {
            shared.names.push((Arc::clone(pair), name.to_vec()));
            pair.left.fetch_add(1, Ordering::AcqRel);
            return Ok(false);
        }
        let names = all.remove(&there.id).map(|shared| shared.names).unwrap_or_default();
        drop(all);
        let given = give();
        for (other, name) in names {
            match &given {
                Ok(()) => count(&self.totals.skipped),
                Err(error) => self.totals.fail(&below(&other.path, &name), error),
            }
            self.leave(&other);
        }
        given.map(|()| true)
    }

    fn link(
        &self,
        pair: &DirectoryPair<S, T>,
        name: &[u8],
        node: &T::Node,
        there: Option<FileMetadata>,
    ) -> TreeResult<()> {
        let is_it = match &there {
            Some(there) => self.target.meta(node)?.id == there.id,
            None => false,
        };
        match (self.purpose, is_it) {
            (CopyPurpose::Verify, true) => count(&self.totals.verified),
            (CopyPurpose::Verify, false) => {
                return Err(TreeError::of_file("it is no name of the same file there"));
            }
            (CopyPurpose::Copy, true) => count(&self.totals.skipped),
            (CopyPurpose::Copy, false) => {
                let at = (&pair.target, name);
                placing::link(self.target, node, at, there.as_ref(), self.totals)?;
            }
        }
        Ok(())
    }

    /// Copies or compares the file of a name. `None` if the target file's rights are to be set
    /// later, with the last of its names.
    fn file(
        &self,
        pair: &Arc<DirectoryPair<S, T>>,
        name: &[u8],
        meta: &FileMetadata,
        (there, is_apart): (Option<FileMetadata>, bool),
    ) -> TreeResult<Option<T::Node>> {
        let opened = self.source.open(&pair.source, name, meta);
        let source = opened.map_err(TreeError::while_reading)?;
        let path = below(&pair.path, name);
        let wanted = self.wanted(&source, &path)?;
        let target = if meta.kind == FileKind::Symlink {
            self.source.target(&source).map_err(TreeError::while_reading)?
        } else {
            Vec::new()
        };
        if self.purpose == CopyPurpose::Verify {
            let there = there.ok_or_else(missing)?;
            let node = self.target.open(&pair.target, name, &there)?;
            self.compare(meta, (&source, &node), (&wanted, &target))?;
            return Ok(Some(node));
        }
        if let Some(there) = there.as_ref().filter(|there| is_same(meta, there)) {
            let node = self.target.open(&pair.target, name, there)?;
            if self.has_content((meta, &target), (&source, &node))? {
                let is_right = rights::has_rights(self.target, (&node, there), meta, &wanted)?;
                if is_right || there.links <= 1 {
                    if !is_right {
                        self.give_rights(&node, (meta, &wanted), &path)?;
                    }
                    count(&self.totals.skipped);
                    return Ok(Some(node));
                }
                // Other names of the target file may not be names of the source file.
                let give = || self.give_rights(&node, (meta, &wanted), &path);
                if !is_apart && meta.links > 1 {
                    let is_given = self.share((pair, name), (meta, there), give)?;
                    is_given.then(|| count(&self.totals.skipped));
                    return Ok(is_given.then_some(node));
                }
            }
        }
        let spot = TreeLocation { directory: &pair.target, name, path: &path };
        let making = placing::begin(self.target, spot, (meta, &target, &wanted), there.as_ref())?;
        if meta.kind == FileKind::Regular
            && meta.size_bytes > 0
            && let Err(error) = self.content(meta, &source, &making.node)
        {
            return Err(placing::give_up(self.target, making, spot, error));
        }
        let done = (&self.unsynced, self.totals);
        let node = placing::end(self.target, making, spot, (meta, &wanted), done)?;
        self.totals.count_made(meta.kind);
        Ok(Some(node))
    }

    fn give_rights(
        &self,
        node: &T::Node,
        (meta, wanted): (&FileMetadata, &ExtendedAttributes),
        path: &[u8],
    ) -> TreeResult<()> {
        for error in rights::give(self.target, node, meta, wanted)? {
            self.totals.fail(path, &error);
        }
        Ok(())
    }

    /// Returns whether the content of a file equals the source's, given that size and time are
    /// equal.
    fn has_content(
        &self,
        (meta, target): (&FileMetadata, &[u8]),
        (source, node): (&S::Node, &T::Node),
    ) -> TreeResult<bool> {
        if meta.kind == FileKind::Symlink {
            return Ok(self.target.target(node)? == target);
        }
        if meta.kind != FileKind::Regular || !self.rules.compares_content {
            let skipped = if meta.kind == FileKind::Regular { meta.size_bytes } else { 0 };
            self.totals.moved_bytes.fetch_add(skipped, Ordering::Relaxed);
            return Ok(true);
        }
        match self.compare_content(meta, source, node) {
            Err(error) if error.is_final => Err(error),
            compared => Ok(compared.is_ok()),
        }
    }

    fn content(&self, meta: &FileMetadata, source: &S::Node, target: &T::Node) -> TreeResult<()> {
        let (mut at, mut moved, mut bytes) = (0, 0, Vec::new());
        while let Some((start, end)) =
            self.source.data(source, at).map_err(TreeError::while_reading)?
        {
            at = start;
            // Data appended since the lookup is left to the next copy.
            while at < end.min(meta.size_bytes) && !self.totals.is_stopped() {
                bytes.clear();
                let length = PIECE_BYTES.min(usize::try_from(end - at).unwrap_or(PIECE_BYTES));
                let read = self.source.read(source, at, length, &mut bytes);
                let length = read.map_err(TreeError::while_reading)?;
                if length == 0 {
                    break;
                }
                self.target.write(target, at, &bytes)?;
                let length = u64::try_from(length).unwrap_or(0);
                at += length;
                moved += length;
                self.totals.bytes.fetch_add(length, Ordering::Relaxed);
                self.totals.moved_bytes.fetch_add(length, Ordering::Relaxed);
            }
            if at < end || self.totals.is_stopped() {
                break;
            }
        }
        if self.totals.is_stopped() {
            return Err(TreeError::of_file("it was not copied to its end"));
        }
        if at < meta.size_bytes {
            self.target.resize(target, meta.size_bytes)?;
        }
        // Holes count as moved, because the total is the sum of sizes.
        let holes = meta.size_bytes.saturating_sub(moved);
        self.totals.moved_bytes.fetch_add(holes, Ordering::Relaxed);
        let now = self.source.meta(source).map_err(TreeError::while_reading)?;
        if (now.size_bytes, now.mtime) == (meta.size_bytes, meta.mtime) {
            Ok(())
        } else {
            Err(TreeError::of_file("it was changed while it was read: copy it again"))
        }
    }

    fn compare(
        &self,
        meta: &FileMetadata,
        (source, target): (&S::Node, &T::Node),
        (wanted, link): (&ExtendedAttributes, &[u8]),
    ) -> TreeResult<()> {
        self.compare_attributes(meta, wanted, target)?;
        if meta.kind == FileKind::Symlink && self.target.target(target)? != link {
            return Err(TreeError::of_file("it leads elsewhere there"));
        }
        if meta.kind == FileKind::Regular {
            self.compare_content(meta, source, target)?;
        }
        count(&self.totals.verified);
        Ok(())
    }

    fn compare_content(
        &self,
        meta: &FileMetadata,
        source: &S::Node,
        target: &T::Node,
    ) -> TreeResult<()> {
        let (mut at, mut one, mut other) = (0, Vec::new(), Vec::new());
        while at < meta.size_bytes && !self.totals.is_stopped() {
            one.clear();
            other.clear();
            let read = self.source.read(source, at, PIECE_BYTES, &mut one);
            let length = read.map_err(TreeError::while_reading)?;
            self.target.read(target, at, PIECE_BYTES, &mut other)?;
            if one != other || length == 0 {
                let differs = one.iter().zip(&other).position(|(a, b)| a != b);
                let first = at + u64::try_from(differs.unwrap_or(length)).unwrap_or(0);
                return Err(TreeError::of_file(format!(
                    "its content differs from byte {first} on"
                )));
            }
            let length = u64::try_from(length).unwrap_or(0);
            at += length;
            self.totals.moved_bytes.fetch_add(length, Ordering::Relaxed);
        }
        Ok(())
    }

    fn compare_attributes(
        &self,
        meta: &FileMetadata,
        wanted: &ExtendedAttributes,
        target: &T::Node,
    ) -> TreeResult<()> {
        let found = self.target.attributes(target)?;
        compare_metas(meta, &self.target.meta(target)?)?;
        if found == *wanted {
            Ok(())
        } else {
            Err(TreeError::of_file("its extended attributes or access lists differ"))
        }
    }
}

pub(crate) fn compare_metas(source: &FileMetadata, target: &FileMetadata) -> TreeResult<()> {
    let differs = |what: &str| TreeError::of_file(format!("its {what} differs"));
    if source.kind != target.kind {
        return Err(differs("kind"));
    }
    if source.kind == FileKind::Regular && source.size_bytes != target.size_bytes {
        return Err(differs("size"));
    }
    if source.mtime != target.mtime {
        return Err(differs("modification time"));
    }
    if source.rdev != target.rdev {
        return Err(differs("device number"));
    }
    if has_same_owner_and_mode(source, target) { Ok(()) } else { Err(differs("owner or mode")) }
}

fn missing() -> TreeError {
    TreeError::of_file("it is missing there")
}

pub(crate) fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut whole = path.to_vec();
    if !whole.is_empty() {
        whole.push(b'/');
    }
    whole.extend_from_slice(name);
    whole
}
