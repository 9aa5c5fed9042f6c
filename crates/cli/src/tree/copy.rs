//! Copies all of a tree into another, or compares them, with several threads.
//!
//! The unit of work is a directory to list, or some names of one. Work is taken from the end of the
//! queue, so a tree is gone through depth first and the queue stays as short as the tree is wide.
//!
//! What is there already is left alone where it is the same (TE2), and replaced where it is not:
//! by a new file, so that other names of the old one keep what they have ([`placing`]). Rights of
//! one that is the same are changed where all of its names are names of that file of the source;
//! where it has others, which somebody else may have made, it is replaced too.
//!
//! # Concurrency
//!
//! A file with several names is made by whoever meets its first name; who meets another one
//! meanwhile leaves it to him.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use engine::vnode::api::FileKind;

use super::placing::{self, Spot};
use super::totals::count;
use super::{
    Attributes, Meta, PIECE_BYTES, Rules, Totals, Tree, TreeError, TreeResult, aside,
    has_same_owner_and_mode, is_same, rights,
};

/// Names of a directory that one thread works on.
const NAMES_TOGETHER: usize = 64;
/// Pieces of work past which whoever lists a directory works on its names himself.
const QUEUE_MAX: usize = 4096;
/// Files whose times wait for one sync, and how many bytes they may have.
const UNSYNCED_FILES_MAX: usize = 16_384;
const UNSYNCED_BYTES_MAX: u64 = 1 << 30;
/// How often whoever asked is told how far it is.
const TELL_INTERVAL: Duration = Duration::from_millis(200);

/// What is done with two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The second becomes what the first is.
    Copy,
    /// They are compared.
    Verify,
}

/// What is done, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) purpose: Purpose,
    pub(crate) rules: Rules,
}

impl From<Purpose> for Task {
    fn from(purpose: Purpose) -> Task {
        Task { purpose, rules: Rules::default() }
    }
}

/// Told how many bytes were moved; returns whether to go on.
pub(crate) type OnMoved<'p> = &'p mut dyn FnMut(u64) -> bool;

/// Does `task` with `source` and `target`, with `threads` threads, and counts in `totals`.
pub(crate) fn run<S: Tree, T: Tree>(
    (source, target): (&S, &T),
    task: impl Into<Task>,
    threads: usize,
    totals: &Totals,
    moved: OnMoved<'_>,
) {
    let Task { purpose, rules } = task.into();
    let job = Job {
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
        unsynced: Unsynced::default(),
    };
    match job.first() {
        Ok(first) => job.push(Work::Directory(Arc::new(first))),
        Err(error) => totals.fail(b".", &TreeError { is_final: true, ..error }),
    }
    std::thread::scope(|scope| {
        let job = &job;
        let spawned = (0..threads).map(|_| scope.spawn(|| job.work()));
        let workers: Vec<_> = spawned.collect();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            job.wait_for_end();
            if !moved(totals.moved_bytes.load(Ordering::Relaxed)) {
                totals.stop("whoever asked for it has gone, or the pool is being closed");
            }
        }
    });
    if purpose == Purpose::Copy {
        job.unsynced.settle(target, totals);
        if let Err(error) = target.sync() {
            totals.fail(b".", &error);
        }
    }
}

/// A directory of both trees.
struct Pair<S: Tree, T: Tree> {
    source: S::Node,
    target: T::Node,
    meta: Meta,
    /// From the root.
    path: Vec<u8>,
    /// Whether this copy has made the target.
    is_new: bool,
    /// Pieces of work that are left, before its own attributes are set.
    left: AtomicUsize,
}

enum Work<S: Tree, T: Tree> {
    Directory(Arc<Pair<S, T>>),
    Names(Arc<Pair<S, T>>, Vec<Vec<u8>>),
    /// A name whose file in the target has names that are none of this file's in the source.
    Apart(Arc<Pair<S, T>>, Vec<u8>),
}

struct Queue<S: Tree, T: Tree> {
    work: Vec<Work<S, T>>,
    /// Threads that work.
    busy: usize,
}

impl<S: Tree, T: Tree> Default for Queue<S, T> {
    fn default() -> Queue<S, T> {
        Queue { work: Vec::new(), busy: 0 }
    }
}

/// A name in a directory of both trees.
type Name<S, T> = (Arc<Pair<S, T>>, Vec<u8>);

/// Names of one file of the target, which is the same as one of the source but for its rights:
/// they are changed once all of its names have come, as names of that one.
struct Shared<S: Tree, T: Tree> {
    source: (u64, u64),
    names: Vec<Name<S, T>>,
    /// Whether names of it are names of different files in the source.
    is_mixed: bool,
}

/// Files of the target that wait for their other names, by id.
type AllShared<S, T> = HashMap<(u64, u64), Shared<S, T>>;

/// A file with several names, of which one was met.
enum Linked<S: Tree, T: Tree> {
    /// Somebody makes it; these names wait.
    Making(Vec<Name<S, T>>),
    /// It is there.
    Made(T::Node),
}

/// Files with content that is not durable yet: their times are set when it is.
pub(crate) struct Unsynced<N>(Mutex<Waiting<N>>);

/// They, and how many bytes they have.
type Waiting<N> = (Vec<(N, Meta)>, u64);

impl<N> Default for Unsynced<N> {
    fn default() -> Unsynced<N> {
        Unsynced(Mutex::new((Vec::new(), 0)))
    }
}

impl<N: Clone> Unsynced<N> {
    /// TE2: `node` has all of its content, and gets its times.
    pub(crate) fn add<T: Tree<Node = N>>(
        &self,
        tree: &T,
        node: &N,
        meta: &Meta,
        totals: &Totals,
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

    /// Makes what waits durable, and sets its times.
    pub(crate) fn settle<T: Tree<Node = N>>(&self, tree: &T, totals: &Totals) {
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

struct Job<'j, S: Tree, T: Tree> {
    source: &'j S,
    target: &'j T,
    purpose: Purpose,
    rules: Rules,
    totals: &'j Totals,
    /// The device of the source; what is on another is another file system.
    device: OnceLock<u64>,
    queue: Mutex<Queue<S, T>>,
    /// There is work, or there will be no more.
    changed: Condvar,
    /// A thread has ended.
    ended: Condvar,
    links: Mutex<HashMap<(u64, u64), Linked<S, T>>>,
    shared: Mutex<AllShared<S, T>>,
    unsynced: Unsynced<T::Node>,
}

impl<S: Tree, T: Tree> Job<'_, S, T> {
    fn first(&self) -> TreeResult<Pair<S, T>> {
        let (source, target) = (self.source.root(), self.target.root());
        let meta = self.source.meta(&source)?;
        let _ = self.device.set(meta.id.0);
        let left = AtomicUsize::new(1);
        Ok(Pair { source, target, meta, path: Vec::new(), is_new: false, left })
    }

    fn lock(&self) -> MutexGuard<'_, Queue<S, T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, work: Work<S, T>) {
        self.lock().work.push(work);
        self.changed.notify_one();
    }

    /// Waits a moment, or until all is done.
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
            let (Work::Directory(pair) | Work::Names(pair, _) | Work::Apart(pair, _)) = &work;
            // A bug ends the copy, and not its other threads.
            let done = catch_unwind(AssertUnwindSafe(|| match &work {
                Work::Directory(pair) => self.list(pair),
                Work::Names(pair, names) => self.each(pair, names, false),
                Work::Apart(pair, name) => self.each(pair, std::slice::from_ref(name), true),
            }));
            let left = catch_unwind(AssertUnwindSafe(|| self.leave(pair)));
            if done.and(left).is_err() {
                self.totals.fail(&pair.path, &TreeError::of_all("the copy met a bug: see the log"));
            }
            queue = self.lock();
            queue.busy -= 1;
        }
    }

    fn list(&self, pair: &Arc<Pair<S, T>>) {
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

    /// Removes what killed processes left in a directory of the target.
    fn remove_left(&self, pair: &Pair<S, T>) -> TreeResult<()> {
        if pair.is_new || self.purpose == Purpose::Verify {
            return Ok(());
        }
        // A name that the source has is a file of it.
        let is_of_source = |name: &[u8]| !matches!(self.source.find(&pair.source, name), Ok(None));
        aside::remove_left(self.target, &pair.target, is_of_source)
    }

    fn give(&self, pair: &Arc<Pair<S, T>>, names: Vec<Vec<u8>>) {
        if names.is_empty() {
            return;
        }
        if self.lock().work.len() >= QUEUE_MAX {
            return self.each(pair, &names, false);
        }
        pair.left.fetch_add(1, Ordering::AcqRel);
        self.push(Work::Names(Arc::clone(pair), names));
    }

    /// Returns the names of files that have more names in the target than this import has brought.
    fn names_apart(&self) -> Vec<Work<S, T>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let names = shared.drain().flat_map(|(_, shared)| shared.names);
        let is_stopped = self.totals.is_stopped();
        names.filter(|_| !is_stopped).map(|(pair, name)| Work::Apart(pair, name)).collect()
    }

    fn each(&self, pair: &Arc<Pair<S, T>>, names: &[Vec<u8>], is_apart: bool) {
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

    fn one(&self, pair: &Arc<Pair<S, T>>, name: &[u8], is_apart: bool) -> TreeResult<()> {
        let found = self.source.find(&pair.source, name).map_err(TreeError::while_reading)?;
        // Gone since it was listed.
        let Some(meta) = found else { return Ok(()) };
        let meta = self.rules.of(meta);
        if self.rules.leaves_out(meta.kind) {
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
        pair: &Arc<Pair<S, T>>,
        name: &[u8],
        meta: Meta,
        there: Option<Meta>,
    ) -> TreeResult<()> {
        let opened = self.source.open(&pair.source, name, &meta);
        let source = opened.map_err(TreeError::while_reading)?;
        let at = (&pair.target, name);
        let is_new = there.as_ref().is_none_or(|there| there.kind != FileKind::Directory);
        let target = match there {
            Some(there) if !is_new => self.target.open(&pair.target, name, &there)?,
            Some(there) if self.purpose == Purpose::Copy => {
                placing::make_directory_over(self.target, at, (&meta, &there), self.totals)?
            }
            Some(_) => return Err(TreeError::of_file("it is not a directory in the target")),
            None if self.purpose == Purpose::Verify => return Err(missing()),
            None => {
                count(&self.totals.directories);
                self.target.make(&pair.target, name, &meta, b"")?
            }
        };
        let (path, left) = (below(&pair.path, name), AtomicUsize::new(1));
        let pair = Pair { source, target, meta, path, is_new, left };
        self.push(Work::Directory(Arc::new(pair)));
        Ok(())
    }

    /// A piece of the work in a directory is done; with the last its own attributes are set.
    fn leave(&self, pair: &Pair<S, T>) {
        if pair.left.fetch_sub(1, Ordering::AcqRel) > 1 || self.totals.is_stopped() {
            return;
        }
        if let Err(error) = self.finish_directory(pair) {
            self.totals.fail(&pair.path, &error);
        }
    }

    fn finish_directory(&self, pair: &Pair<S, T>) -> TreeResult<()> {
        let wanted = self.wanted(&pair.source, &pair.path)?;
        if self.purpose == Purpose::Verify {
            return self.compare_attributes(&pair.meta, &wanted, &pair.target);
        }
        for error in rights::give(self.target, &pair.target, &pair.meta, &wanted)? {
            self.totals.fail(&pair.path, &error);
        }
        self.target.set_times(&pair.target, &pair.meta)
    }

    /// Returns the attributes that a file is to have in the target.
    fn wanted(&self, source: &S::Node, path: &[u8]) -> TreeResult<Attributes> {
        let wanted = self.source.attributes(source).map_err(TreeError::while_reading)?;
        let told = (self.purpose == Purpose::Copy).then_some((path, self.totals));
        Ok(rights::fitting(self.target, wanted, self.rules, told))
    }

    /// A name of a file that has several.
    fn linked(
        &self,
        pair: &Arc<Pair<S, T>>,
        name: &[u8],
        meta: &Meta,
        (there, is_apart): (Option<Meta>, bool),
    ) -> TreeResult<()> {
        let lock = || self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let made = match lock().get_mut(&meta.id) {
            Some(Linked::Making(waiting)) => {
                waiting.push((Arc::clone(pair), name.to_vec()));
                // Its directory is not done before the name is there.
                pair.left.fetch_add(1, Ordering::AcqRel);
                return Ok(());
            }
            Some(Linked::Made(node)) => Some(node.clone()),
            None => None,
        };
        if let Some(node) = made {
            return self.link(pair, name, &node, there);
        }
        // Between the two looks somebody else may have begun: then he makes it.
        let is_first = {
            let mut links = lock();
            let is_first = !links.contains_key(&meta.id);
            if is_first {
                links.insert(meta.id, Linked::Making(Vec::new()));
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
            links.insert(meta.id, Linked::Made(self.target.parked(node)));
        }
        drop(links);
        if let Some(Linked::Making(waiting)) = waiting {
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

    /// The file was left for the end: so are the names that have waited for it.
    fn again(&self, waiting: Option<Linked<S, T>>) -> TreeResult<()> {
        let Some(Linked::Making(waiting)) = waiting else { return Ok(()) };
        for (other, name) in waiting {
            self.each(&other, &[name], false);
            self.leave(&other);
        }
        Ok(())
    }

    /// A name whose file is there, but with other rights, and has several names there. Returns
    /// whether it was seen to: it waits for the other names, or all are there.
    fn share(
        &self,
        (pair, name): (&Arc<Pair<S, T>>, &[u8]),
        (meta, there): (&Meta, &Meta),
        give: impl FnOnce() -> TreeResult<()>,
    ) -> TreeResult<bool> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Shared { source: meta.id, names: Vec::new(), is_mixed: false };
        let shared = all.entry(there.id).or_insert_with(new);
        shared.is_mixed |= shared.source != meta.id;
        let count_there = u64::try_from(shared.names.len()).unwrap_or(u64::MAX).saturating_add(1);
        if shared.is_mixed || count_there < there.links {
            shared.names.push((Arc::clone(pair), name.to_vec()));
            // Its directory is not done before the name is.
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
        pair: &Pair<S, T>,
        name: &[u8],
        node: &T::Node,
        there: Option<Meta>,
    ) -> TreeResult<()> {
        let is_it = match &there {
            Some(there) => self.target.meta(node)?.id == there.id,
            None => false,
        };
        match (self.purpose, is_it) {
            (Purpose::Verify, true) => count(&self.totals.verified),
            (Purpose::Verify, false) => {
                return Err(TreeError::of_file("it is no name of the same file there"));
            }
            (Purpose::Copy, true) => count(&self.totals.skipped),
            (Purpose::Copy, false) => {
                let at = (&pair.target, name);
                placing::link(self.target, node, at, there.as_ref(), self.totals)?;
            }
        }
        Ok(())
    }

    /// Returns the file of the target for a name of the source. `None` if the file there has more
    /// names than were read from the source so far: it gets its rights with the last of them.
    fn file(
        &self,
        pair: &Arc<Pair<S, T>>,
        name: &[u8],
        meta: &Meta,
        (there, is_apart): (Option<Meta>, bool),
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
        if self.purpose == Purpose::Verify {
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
                // The file of the target may have more names than that of the source has.
                let give = || self.give_rights(&node, (meta, &wanted), &path);
                if !is_apart && meta.links > 1 {
                    let is_given = self.share((pair, name), (meta, there), give)?;
                    is_given.then(|| count(&self.totals.skipped));
                    return Ok(is_given.then_some(node));
                }
            }
        }
        let spot = Spot { directory: &pair.target, name, path: &path };
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
        (meta, wanted): (&Meta, &Attributes),
        path: &[u8],
    ) -> TreeResult<()> {
        for error in rights::give(self.target, node, meta, wanted)? {
            self.totals.fail(path, &error);
        }
        Ok(())
    }

    /// Whether a file that has the size and date of the source's is taken to have its content.
    fn has_content(
        &self,
        (meta, target): (&Meta, &[u8]),
        (source, node): (&S::Node, &T::Node),
    ) -> TreeResult<bool> {
        if meta.kind == FileKind::Symlink {
            return Ok(self.target.target(node)? == target);
        }
        if meta.kind != FileKind::Regular || !self.rules.compares_content {
            return Ok(true);
        }
        match self.compare_content(meta, source, node) {
            Err(error) if error.is_final => Err(error),
            compared => Ok(compared.is_ok()),
        }
    }

    fn content(&self, meta: &Meta, source: &S::Node, target: &T::Node) -> TreeResult<()> {
        let (mut at, mut bytes) = (0, Vec::new());
        while let Some((start, end)) =
            self.source.data(source, at).map_err(TreeError::while_reading)?
        {
            at = start;
            // What was added since belongs to the next copy.
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
        let now = self.source.meta(source).map_err(TreeError::while_reading)?;
        if (now.size_bytes, now.mtime) == (meta.size_bytes, meta.mtime) {
            Ok(())
        } else {
            Err(TreeError::of_file("it was changed while it was read: copy it again"))
        }
    }

    fn compare(
        &self,
        meta: &Meta,
        (source, target): (&S::Node, &T::Node),
        (wanted, link): (&Attributes, &[u8]),
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

    fn compare_content(&self, meta: &Meta, source: &S::Node, target: &T::Node) -> TreeResult<()> {
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
        meta: &Meta,
        wanted: &Attributes,
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

/// Says what differs between what is known of a file and of its copy.
pub(crate) fn compare_metas(source: &Meta, target: &Meta) -> TreeResult<()> {
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

/// Returns the path of a name in the directory at `path`.
pub(crate) fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut whole = path.to_vec();
    if !whole.is_empty() {
        whole.push(b'/');
    }
    whole.extend_from_slice(name);
    whole
}
