//! A step, done.

use std::sync::Arc;

use engine::api::{
    AlignedBuffer, Attr, Caller, DirEntry, FileKind, FileSystem, FsError, FsResult, Ino, NewInode,
    RenameMode, Seek, SetAttr, Stability, WriteData, XattrMode,
};

use runtime::sync::{Condvar, Mutex};

use super::{Op, Place, Route, SLOTS, Step, bytes_of};
use crate::canon::{CanonAttr, Identity, Times};
use crate::number::{u64_of, usize_of};

/// Looks at what there is, whoever may.
const ROOT: Caller = Caller::root();
/// Device number that every device node of a history gets.
const RDEV: u32 = 0x0103;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Most bytes at either end of a hole that are compared.
const ZEROS_READ_MAX: u64 = 1 << 20;

/// What came of a step, without what may differ between implementations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did not happen.
    Refused(FsError),
    /// It happened.
    Done,
    /// It happened, and this is what it was about.
    Attr(Box<CanonAttr>),
    /// Bytes that were read, or the target of a symbolic link.
    Bytes(Vec<u8>),
    /// Names of a directory but `.` and `..`, sorted.
    Names(Vec<(Vec<u8>, FileKind)>),
    /// How many bytes it did.
    Count(u64),
    /// Data or a hole was found here, where the content says there is none.
    Misled(u64),
    /// Names of extended attributes, sorted.
    Attributes(Vec<Vec<u8>>),
}

impl Outcome {
    /// Whether the step happened.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !matches!(self, Outcome::Refused(_))
    }

    /// Whether two outcomes are the same answer to a program: of errors only the number counts.
    #[must_use]
    pub fn agrees(&self, other: &Outcome) -> bool {
        match (self, other) {
            (Outcome::Refused(left), Outcome::Refused(right)) => left.errno() == right.errno(),
            _ => self == other,
        }
    }
}

/// Makes a file durable as a front does that goes on and is told; waits for that. Returns what was
/// told, and what `when` returned at that moment.
pub fn sync_as_told<T: Send + 'static>(
    fs: &dyn FileSystem,
    caller: &Caller,
    ino: Ino,
    data_only: bool,
    when: impl FnOnce() -> T + Send + 'static,
) -> (FsResult<()>, T) {
    let (told, is_told) = (Arc::new(Mutex::new(None)), Arc::new(Condvar::new()));
    let (tell, wake) = (Arc::clone(&told), Arc::clone(&is_told));
    let then = move |done| {
        assert!(tell.lock().replace((done, when())).is_none(), "told twice");
        wake.notify_all();
    };
    fs.commit_then(caller, ino, data_only, Box::new(then));
    let mut told = told.lock();
    loop {
        if let Some(done) = told.take() {
            return done;
        }
        is_told.wait(&mut told);
    }
}

/// Makes a file durable: waits for it, or goes on and is told.
///
/// # Errors
///
/// As [`FileSystem::fsync`].
pub fn sync(
    fs: &dyn FileSystem,
    caller: &Caller,
    ino: Ino,
    data_only: bool,
    is_told: bool,
) -> FsResult<()> {
    match is_told {
        true => sync_as_told(fs, caller, ino, data_only, || ()).0,
        false => fs.fsync(caller, ino, data_only),
    }
}

/// What came of a step.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The answer.
    pub outcome: Outcome,
    /// The inode that it made.
    pub made: Option<Identity>,
}

/// One client of a file system: the slots it holds.
///
/// References in slots are given back by [`Session::close_all`], not when a session is dropped:
/// after a power cut there is nobody to give them back to.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    /// Where routes begin.
    root: Ino,
    times: Times,
    slots: [Option<Ino>; SLOTS],
    /// Every second sync is told how it ended, the others wait.
    syncs: u64,
}

fn identity(attr: &Attr) -> Identity {
    Identity { ino: attr.ino, generation: attr.generation }
}

impl<'a> Session<'a> {
    /// A client that holds nothing; outcomes tell `times`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, times: Times) -> Session<'a> {
        Session::below(fs, fs.root(), times)
    }

    /// A client of the fileset whose root directory is `root`: routes begin there.
    #[must_use]
    pub fn below(fs: &'a dyn FileSystem, root: Ino, times: Times) -> Session<'a> {
        Session { fs, root, times, slots: [None; SLOTS], syncs: 0 }
    }

    /// Returns the file system that this is a client of.
    #[must_use]
    pub fn file_system(&self) -> &'a dyn FileSystem {
        self.fs
    }

    /// Gives back what the slots hold.
    pub fn close_all(&mut self) {
        for slot in 0..SLOTS {
            if let Some(ino) = self.slots[slot].take() {
                self.forget(ino);
            }
        }
    }

    /// Does `step`.
    pub fn apply(&mut self, step: &Step) -> Applied {
        let mut made = None;
        let outcome = self.done(&step.caller(), &step.op, &mut made);
        Applied { outcome: outcome.unwrap_or_else(Outcome::Refused), made }
    }

    /// Returns the attributes of what `place` is now, if it is there.
    #[must_use]
    pub fn probe(&self, place: &Place) -> Option<Attr> {
        self.with(&ROOT, place, |ino| self.fs.getattr(&ROOT, ino)).ok()
    }

    fn done(&mut self, caller: &Caller, op: &Op, made: &mut Option<Identity>) -> FsResult<Outcome> {
        match op {
            Op::Create { at, kind, mode } => {
                let is_device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice);
                let rdev = if is_device { RDEV } else { 0 };
                let new = NewInode { rdev, ..NewInode::new(*kind, *mode) };
                let attr = self.at(caller, at, |parent, name| {
                    self.fs.create(caller, parent, name, new, None)
                })?;
                Ok(self.named(attr, Some(made)))
            }
            Op::Symlink { at, target } => {
                let attr = self.at(caller, at, |parent, name| {
                    self.fs.symlink(caller, parent, name, target, NewInode::SYMLINK, None)
                })?;
                Ok(self.named(attr, Some(made)))
            }
            Op::Link { file, at } => {
                let attr = self.with(caller, file, |ino| {
                    self.at(caller, at, |parent, name| {
                        self.fs.link(caller, ino, parent, name, None)
                    })
                })?;
                Ok(self.named(attr, None))
            }
            Op::Unlink { at } => self
                .at(caller, at, |parent, name| self.fs.unlink(caller, parent, name, None))
                .map(|()| Outcome::Done),
            Op::Rmdir { at } => self
                .at(caller, at, |parent, name| self.fs.rmdir(caller, parent, name, None))
                .map(|()| Outcome::Done),
            Op::Rename { source, target, mode } => {
                self.rename(caller, source, target, *mode, made).map(|()| Outcome::Done)
            }
            Op::Open { slot, at } => {
                let ino = self.walk(caller, &at.0)?;
                self.hold(*slot, ino);
                Ok(Outcome::Done)
            }
            Op::Nameless { slot, directory, mode } => {
                let new = NewInode::new(FileKind::Regular, *mode);
                let parent = self.walk(caller, &directory.0)?;
                let attr = self.fs.tmpfile(caller, parent, new);
                self.forget(parent);
                let attr = attr?;
                self.hold(*slot, attr.ino);
                *made = Some(identity(&attr));
                Ok(self.told(&attr))
            }
            Op::Close { slot } => {
                if let Some(ino) = self.slots[*slot].take() {
                    self.forget(ino);
                }
                Ok(Outcome::Done)
            }
            Op::Write { file, offset, length, fill } => {
                let data = bytes_of(*fill, *length);
                // Every other one comes in memory that the file system may keep.
                let write = |ino| {
                    if fill.is_multiple_of(2) {
                        let data = WriteData::Shared(AlignedBuffer::copy_of(&data).into());
                        let count = self.fs.write_some(
                            caller,
                            ino,
                            *offset,
                            &data,
                            Stability::Unstable,
                            None,
                        )?;
                        return if count == data.len() { Ok(()) } else { Err(FsError::NoSpace) };
                    }
                    self.fs.write(caller, ino, *offset, &data)
                };
                self.with(caller, file, write)?;
                // As a front does when it has answered.
                if fill.is_multiple_of(4) {
                    self.fs.run_deferred_work();
                }
                Ok(Outcome::Done)
            }
            Op::Fsync { file, data_only } => {
                self.syncs += 1;
                let is_told = self.syncs.is_multiple_of(2);
                self.with(caller, file, |ino| sync(self.fs, caller, ino, *data_only, is_told))?;
                Ok(Outcome::Done)
            }
            Op::Sync => self.fs.sync().map(|()| Outcome::Done),
            Op::Truncate { file, size_bytes } => {
                let size_bytes = Some(*size_bytes);
                self.set(caller, file, SetAttr { size_bytes, ..SetAttr::default() })
            }
            Op::SetMode { file, mode } => {
                self.set(caller, file, SetAttr { mode: Some(*mode), ..SetAttr::default() })
            }
            Op::SetOwner { file, uid, gid } => {
                self.set(caller, file, SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() })
            }
            Op::SetProject { file, project } => {
                let project = Some(*project);
                self.set(caller, file, SetAttr { project, ..SetAttr::default() })
            }
            Op::SetTimes { file, atime, mtime } => {
                let (atime, mtime) = (*atime, *mtime);
                self.set(caller, file, SetAttr { atime, mtime, ..SetAttr::default() })
            }
            Op::Read { file, offset, length } => {
                let mut bytes = Vec::new();
                self.with(caller, file, |ino| {
                    self.fs.read(caller, ino, *offset, *length, &mut bytes)
                })?;
                Ok(Outcome::Bytes(bytes))
            }
            Op::GetAttr { file } => {
                let attr = self.with(caller, file, |ino| self.fs.getattr(caller, ino))?;
                Ok(self.told(&attr))
            }
            Op::ReadLink { file } => {
                self.with(caller, file, |ino| self.fs.readlink(caller, ino)).map(Outcome::Bytes)
            }
            Op::SetXattr { file, name, length, fill, mode } => {
                let value = bytes_of(*fill, *length);
                self.with(caller, file, |ino| {
                    self.fs.setxattr(caller, ino, name, &value, *mode, None)
                })?;
                Ok(Outcome::Done)
            }
            Op::SetAcl { file, is_default, list } => {
                let name = if *is_default { DEFAULT_ACL } else { ACCESS_ACL };
                let value = list.to_value();
                self.with(caller, file, |ino| {
                    self.fs.setxattr(caller, ino, name, &value, XattrMode::Set, None)
                })?;
                Ok(Outcome::Done)
            }
            Op::GetXattr { file, name } => self
                .with(caller, file, |ino| self.fs.getxattr(caller, ino, name))
                .map(Outcome::Bytes),
            Op::ListXattr { file } => {
                let mut names = self.with(caller, file, |ino| self.fs.listxattr(caller, ino))?;
                names.sort_unstable();
                Ok(Outcome::Attributes(names))
            }
            Op::RemoveXattr { file, name } => {
                self.with(caller, file, |ino| self.fs.removexattr(caller, ino, name, None))?;
                Ok(Outcome::Done)
            }
            Op::Fallocate { file, offset, length, mode } => {
                self.with(caller, file, |ino| {
                    self.fs.fallocate(caller, ino, *offset, *length, *mode)
                })?;
                Ok(Outcome::Done)
            }
            Op::Seek { file, offset, what } => {
                self.with(caller, file, |ino| self.seek(caller, ino, *offset, *what))
            }
            Op::Copy { source, from, target, to, length } => self
                .with(caller, source, |source| {
                    self.with(caller, target, |target| {
                        let (source, target) = ((source, *from), (target, *to));
                        self.fs.copy_range(caller, source, target, *length)
                    })
                })
                .map(Outcome::Count),
            Op::List { directory } => self.with(caller, directory, |ino| self.list(caller, ino)),
        }
    }

    fn set(&self, caller: &Caller, file: &Place, change: SetAttr) -> FsResult<Outcome> {
        let attr = self.with(caller, file, |ino| self.fs.setattr(caller, ino, &change, None))?;
        Ok(self.told(&attr))
    }

    fn list(&self, caller: &Caller, ino: Ino) -> FsResult<Outcome> {
        let mut names = Vec::new();
        let mut each = |entry: &DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                names.push((entry.name.clone(), entry.kind));
            }
            true
        };
        self.fs.readdir(caller, ino, 0, &mut each)?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Outcome::Names(names))
    }

    /// Looks for data or a hole and compares what is found with the content: an implementation may
    /// take zeros for data, and never data for a hole.
    fn seek(&self, caller: &Caller, ino: Ino, offset: u64, what: Seek) -> FsResult<Outcome> {
        let size_bytes = self.fs.getattr(caller, ino)?.size_bytes;
        let found = match (self.fs.seek(caller, ino, offset, what), what) {
            (Err(FsError::NoSuchOffset), Seek::Data) if offset < size_bytes => size_bytes,
            (found, _) => found?,
        };
        let is_right = match what {
            Seek::Data => found >= offset && self.is_zero(ino, offset, found)?,
            Seek::Hole if found >= size_bytes => found == size_bytes,
            Seek::Hole => found >= offset && self.is_zero(ino, found, found + 1)?,
        };
        Ok(if is_right { Outcome::Done } else { Outcome::Misled(found) })
    }

    /// Whether a file reads as zeros from `start` to before `end`; of a long range only the ends
    /// are read.
    fn is_zero(&self, ino: Ino, start: u64, end: u64) -> FsResult<bool> {
        let length = usize_of((end - start).min(ZEROS_READ_MAX));
        let mut bytes = Vec::new();
        self.fs.read(&ROOT, ino, start, length, &mut bytes)?;
        self.fs.read(&ROOT, ino, end - u64_of(length), length, &mut bytes)?;
        Ok(bytes.iter().all(|&byte| byte == 0))
    }

    /// Puts a reference into a slot, and gives back what was there.
    fn rename(
        &self,
        caller: &Caller,
        source: &Route,
        target: &Route,
        mode: RenameMode,
        made: &mut Option<Identity>,
    ) -> FsResult<()> {
        let left = mode.leaves_whiteout().then(|| Place::At(source.clone()));
        let there = || left.as_ref().and_then(|left| self.probe(left)).map(|attr| identity(&attr));
        let before = there();
        self.at(caller, source, |source_parent, source| {
            self.at(caller, target, |target_parent, target| {
                let (source, target) = ((source_parent, source), (target_parent, target));
                self.fs.rename(caller, source, target, mode, None)
            })
        })?;
        // Two names of one file stay as they were.
        *made = there().filter(|after| Some(*after) != before);
        Ok(())
    }

    fn hold(&mut self, slot: usize, ino: Ino) {
        if let Some(before) = self.slots[slot].replace(ino) {
            self.forget(before);
        }
    }

    fn told(&self, attr: &Attr) -> Outcome {
        Outcome::Attr(Box::new(CanonAttr::of(attr, self.times)))
    }

    /// Gives back one reference; on the root none are counted.
    fn forget(&self, ino: Ino) {
        if ino != self.root {
            self.fs.forget(ino, 1);
        }
    }

    /// The outcome of an operation that gave a name and with it a reference.
    fn named(&self, attr: Attr, made: Option<&mut Option<Identity>>) -> Outcome {
        self.forget(attr.ino);
        if let Some(made) = made {
            *made = Some(identity(&attr));
        }
        self.told(&attr)
    }

    /// Walks `names` down from the root; the caller owes a reference.
    fn walk(&self, caller: &Caller, names: &[Vec<u8>]) -> FsResult<Ino> {
        let mut at = self.root;
        for name in names {
            let found = self.fs.lookup(caller, at, name);
            self.forget(at);
            at = found?.ino;
        }
        Ok(at)
    }

    fn at<T>(
        &self,
        caller: &Caller,
        route: &Route,
        work: impl FnOnce(Ino, &[u8]) -> FsResult<T>,
    ) -> FsResult<T> {
        // The root has no name that could be changed.
        let (parents, name) = route.split().ok_or(FsError::Invalid)?;
        let parent = self.walk(caller, parents)?;
        let answer = work(parent, name);
        self.forget(parent);
        answer
    }

    fn with<T>(
        &self,
        caller: &Caller,
        place: &Place,
        work: impl FnOnce(Ino) -> FsResult<T>,
    ) -> FsResult<T> {
        match place {
            Place::At(route) => {
                let ino = self.walk(caller, &route.0)?;
                let answer = work(ino);
                self.forget(ino);
                answer
            }
            Place::Slot(slot) => work(self.slots[*slot].ok_or(FsError::NotFound)?),
        }
    }
}
