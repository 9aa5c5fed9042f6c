//! The reference: a file system in memory, as simple as can be, that answers as Linux does.
//!
//! Tests compare an implementation with it after each step, and judge by it what survived a crash.
//! So where it is asked which of several errors comes first, it answers as the path walk of Linux
//! does: the parent (gone, not a directory), permission to search it, length of the name, whether
//! the name is there, permission to change the directory, the sticky bit, kinds, and the rest last.
//!
//! # Choices where Linux file systems differ
//!
//! - Unlinking a directory is `EISDIR`; linking one is `EPERM`.
//! - A number that names no inode is `ENOENT`; so is any name in a directory that was removed.
//! - Setting the mode of a symbolic link is `EOPNOTSUPP`.
//! - Setting owner or group, even to what it was, takes setuid, and setgid with group execution,
//!   off everything but directories, whoever asks. Writing and truncating do so only for a caller
//!   that is checked and not the superuser.
//! - Truncation sets mtime and ctime even where the size stays. A write of nothing changes nothing.
//! - Past the largest file is `EFBIG`, even where Linux calls the offset itself invalid.
//! - atime goes by the rule of `relatime`.
//! - Renaming one name of an inode onto another of its names changes nothing.
//! - Directories know no `EMLINK`; past 65,535 links they report 1.
//!
//! # Concurrency
//!
//! One lock around everything, held for one operation.
//!
//! Not here: what implementations may answer differently ([`crate::canon`]).

mod access;
mod acl;
mod attr;
mod content;
mod copy;
mod create;
mod file_system;
mod remove;
mod rename;
mod xattr;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use engine::api::{
    Attr, AttributeChange, Caller, DirEntry, FILE_BYTES_MAX, Fallocate, FileKind, FilesetUuid,
    FsError, FsResult, Ino, LINKS_MAX, NAME_BYTES_MAX, Timestamp,
};
use runtime::clock::Clock;

use crate::canon::{Attributes, PAGE_BYTES, Page};
use crate::number::u64_of;
use access::{READ, SEARCH, WRITE};
use content::Content;

const ROOT: Ino = Ino(1);
/// Numbers are never used again here.
const GENERATION: u64 = 1;
const FILESET: FilesetUuid = FilesetUuid(1);
const ROOT_MODE: u16 = 0o755;
/// Cookies of `.` and `..`; the first of a name is the next.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;
/// `relatime`: an atime older than this is set even where nothing changed since.
const ATIME_AGE_SECONDS_MAX: i64 = 24 * 60 * 60;
/// What `statfs` says the model can hold: nothing is refused at it.
const TOTAL_BYTES: u64 = 1 << 60;
const BLOCK_BYTES: u32 = 4096;

/// The reference implementation of [`FileSystem`](engine::api::FileSystem).
#[derive(Debug)]
pub struct Model {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    nodes: BTreeMap<Ino, Node>,
    next_ino: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    kind: FileKind,
    mode: u16,
    uid: u32,
    gid: u32,
    project: u32,
    rdev: u32,
    /// Names; of a directory, 1 while it has its name.
    names: u32,
    /// Whether it never had a name and may still get one.
    is_linkable: bool,
    references: u64,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
    btime: Timestamp,
    /// Extended attributes, by name.
    attributes: Attributes,
    /// Its access list, where the mode does not say all of it.
    access: Option<acl::List>,
    /// The list that a directory hands down.
    default: Option<acl::List>,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Regular(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Directory {
    parent: Ino,
    names: BTreeMap<Vec<u8>, Named>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
    subdirectories: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    ino: Ino,
    cookie: u64,
}

/// Who asks, and when.
#[derive(Clone, Copy)]
struct Asked<'a> {
    caller: &'a Caller,
    now: Timestamp,
}

impl Directory {
    fn new(parent: Ino) -> Directory {
        Directory {
            parent,
            names: BTreeMap::new(),
            by_cookie: BTreeMap::new(),
            next_cookie: COOKIE_PARENT + 1,
            subdirectories: 0,
        }
    }

    /// Adds a name, or gives one that is there to another inode.
    fn set(&mut self, name: &[u8], ino: Ino) {
        if let Some(named) = self.names.get_mut(name) {
            named.ino = ino;
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), Named { ino, cookie });
        self.by_cookie.insert(cookie, name.to_vec());
    }

    fn clear(&mut self, name: &[u8]) {
        let named = self.names.remove(name).expect("the caller has looked the name up");
        self.by_cookie.remove(&named.cookie);
    }
}

impl Node {
    fn directory(&self) -> FsResult<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            Body::Regular(_) | Body::Symlink(_) | Body::Special => Err(FsError::NotDirectory),
        }
    }

    fn directory_mut(&mut self) -> &mut Directory {
        match &mut self.body {
            Body::Directory(directory) => directory,
            Body::Regular(_) | Body::Symlink(_) | Body::Special => {
                unreachable!("the caller has seen that it is a directory")
            }
        }
    }

    fn content(&self) -> FsResult<&Content> {
        match &self.body {
            Body::Regular(content) => Ok(content),
            Body::Directory(_) => Err(FsError::IsDirectory),
            Body::Symlink(_) | Body::Special => Err(FsError::Invalid),
        }
    }

    fn content_mut(&mut self) -> FsResult<&mut Content> {
        match &mut self.body {
            Body::Regular(content) => Ok(content),
            Body::Directory(_) => Err(FsError::IsDirectory),
            Body::Symlink(_) | Body::Special => Err(FsError::Invalid),
        }
    }

    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    fn nlink(&self) -> u32 {
        match &self.body {
            Body::Directory(_) if self.names == 0 => 0,
            Body::Directory(directory) if directory.subdirectories > LINKS_MAX - 2 => 1,
            Body::Directory(directory) => directory.subdirectories + 2,
            Body::Regular(_) | Body::Symlink(_) | Body::Special => self.names,
        }
    }

    fn size_bytes(&self) -> u64 {
        match &self.body {
            Body::Regular(content) => content.size_bytes(),
            Body::Directory(directory) => u64_of(directory.names.len()),
            Body::Symlink(target) => u64_of(target.len()),
            Body::Special => 0,
        }
    }

    fn touch_atime(&mut self, caller: &Caller, now: Timestamp) {
        if caller.keeps_atime {
            return;
        }
        let is_behind = self.atime <= self.mtime || self.atime <= self.ctime;
        if is_behind || now.seconds - self.atime.seconds >= ATIME_AGE_SECONDS_MAX {
            self.atime = now;
        }
    }

    fn touch_content(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// Refuses what is no name at all, and `.` and `..` where they are not names.
fn require_name(name: &[u8]) -> FsResult<()> {
    let is_none = name.is_empty() || name.contains(&b'/') || name.contains(&0);
    if is_none || name == b"." || name == b".." {
        return Err(FsError::Invalid);
    }
    Ok(())
}

impl State {
    fn new(now: Timestamp) -> State {
        let root = Node {
            kind: FileKind::Directory,
            mode: ROOT_MODE,
            uid: 0,
            gid: 0,
            project: 0,
            rdev: 0,
            names: 1,
            is_linkable: false,
            references: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            attributes: Attributes::new(),
            access: None,
            default: None,
            body: Body::Directory(Directory::new(ROOT)),
        };
        State { nodes: BTreeMap::from([(ROOT, root)]), next_ino: ROOT.0 + 1 }
    }

    /// Does `work`, and tells the attributes of `ino` around it.
    fn around<T>(
        &mut self,
        ino: Ino,
        around: Option<&mut AttributeChange>,
        work: impl FnOnce(&mut State) -> FsResult<T>,
    ) -> FsResult<T> {
        let before = self.attr(ino).ok();
        let done = work(self)?;
        if let Some(around) = around {
            *around = AttributeChange { before, after: self.attr(ino).ok() };
        }
        Ok(done)
    }

    fn node(&self, ino: Ino) -> FsResult<&Node> {
        self.nodes.get(&ino).ok_or(FsError::NotFound)
    }

    fn node_mut(&mut self, ino: Ino) -> FsResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::NotFound)
    }

    /// A node that a name or an earlier look-up of the same operation led to.
    fn held(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).expect("an inode with a name or a reference is there")
    }

    fn attr(&self, ino: Ino) -> FsResult<Attr> {
        let node = self.node(ino)?;
        let blocks_512 = match &node.body {
            Body::Regular(content) => content.page_count() * u64_of(PAGE_BYTES / 512),
            Body::Directory(_) | Body::Symlink(_) | Body::Special => 0,
        };
        Ok(Attr {
            ino,
            generation: GENERATION,
            kind: node.kind,
            mode: node.mode,
            nlink: node.nlink(),
            uid: node.uid,
            gid: node.gid,
            project: node.project,
            rdev: node.rdev,
            size_bytes: node.size_bytes(),
            blocks_512,
            blocks_may_change: false,
            atime: node.atime,
            mtime: node.mtime,
            ctime: node.ctime,
            btime: node.btime,
        })
    }

    /// Gives the caller a reference and says what it is on.
    fn referenced(&mut self, ino: Ino) -> FsResult<Attr> {
        if ino != ROOT {
            self.held(ino).references += 1;
        }
        self.attr(ino)
    }

    /// The directory `parent`, which `caller` may search: the first steps of every path walk.
    fn searched(&self, caller: &Caller, parent: Ino) -> FsResult<&Directory> {
        let node = self.node(parent)?;
        let directory = node.directory()?;
        access::require(caller, node, SEARCH)?;
        if node.names == 0 { Err(FsError::NotFound) } else { Ok(directory) }
    }

    /// What `name` in `parent` names, if anything.
    fn find(&self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Option<Ino>> {
        let directory = self.searched(caller, parent)?;
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(directory.names.get(name).map(|named| named.ino))
    }

    fn lookup(&mut self, caller: &Caller, parent: Ino, name: &[u8]) -> FsResult<Attr> {
        let directory = self.searched(caller, parent)?;
        let ino = match name {
            b"." => parent,
            b".." => directory.parent,
            _ => {
                require_name(name)?;
                self.find(caller, parent, name)?.ok_or(FsError::NotFound)?
            }
        };
        self.referenced(ino)
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        let node = self.nodes.get_mut(&ino).expect("an inode with a reference is there");
        assert!(node.references >= count, "{ino:?}: {count} given back of {}", node.references);
        node.references -= count;
        self.drop_if_gone(ino);
    }

    /// An inode without a name lives as long as somebody holds a reference.
    fn drop_if_gone(&mut self, ino: Ino) {
        let node = self.held(ino);
        if node.names == 0 && node.references == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn readdir(&mut self, asked: Asked<'_>, ino: Ino, cookie: u64) -> FsResult<Vec<DirEntry>> {
        let node = self.node(ino)?;
        let directory = node.directory()?;
        access::require(asked.caller, node, READ)?;
        if node.names == 0 {
            return Err(FsError::NotFound);
        }
        let mut entries = Vec::new();
        for (name, ino, own) in
            [(b".".to_vec(), ino, COOKIE_SELF), (b"..".to_vec(), directory.parent, COOKIE_PARENT)]
        {
            if own > cookie {
                entries.push(DirEntry { name, ino, kind: FileKind::Directory, cookie: own });
            }
        }
        for (&own, name) in directory.by_cookie.range(cookie.saturating_add(1)..) {
            let ino = directory.names[name].ino;
            let kind = self.node(ino)?.kind;
            entries.push(DirEntry { name: name.clone(), ino, kind, cookie: own });
        }
        self.held(ino).touch_atime(asked.caller, asked.now);
        Ok(entries)
    }

    fn write(&mut self, asked: Asked<'_>, ino: Ino, offset: u64, data: &[u8]) -> FsResult<()> {
        let node = self.node_mut(ino)?;
        node.content()?;
        access::require(asked.caller, node, WRITE)?;
        if data.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(u64_of(data.len())).ok_or(FsError::FileTooLarge)?;
        if end > FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
        access::lose_by_write(asked.caller, node);
        node.content_mut()?.write(offset, data);
        node.touch_content(asked.now);
        Ok(())
    }

    fn fallocate(
        &mut self,
        asked: Asked<'_>,
        ino: Ino,
        (offset, length): (u64, u64),
        mode: Fallocate,
    ) -> FsResult<()> {
        let node = self.node_mut(ino)?;
        let size_bytes = node.content()?.size_bytes();
        access::require(asked.caller, node, WRITE)?;
        let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::FileTooLarge)?;
        if length == 0 {
            return Err(FsError::Invalid);
        }
        let extends = match mode {
            Fallocate::PunchHole => false,
            Fallocate::ZeroRange { keep_size } => !keep_size && end > size_bytes,
            Fallocate::Allocate { keep_size } => !keep_size && end > size_bytes,
            Fallocate::CollapseRange | Fallocate::InsertRange => {
                return Err(FsError::NotSupported);
            }
        };
        access::lose_by_write(asked.caller, node);
        let content = node.content_mut()?;
        if !matches!(mode, Fallocate::Allocate { .. }) {
            content.zero(offset, end);
        }
        if extends {
            content.resize(end);
        }
        node.touch_content(asked.now);
        Ok(())
    }
}

impl Model {
    /// An empty file system: a root directory of mode 0755 that belongs to the superuser.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Model {
        let state = Mutex::new(State::new(clock.now()));
        Model { state, clock }
    }

    /// Returns a copy, as of now, that goes its own way.
    #[must_use]
    pub fn fork(&self) -> Model {
        Model { state: Mutex::new(self.locked().clone()), clock: Arc::clone(&self.clock) }
    }

    /// Whether both will answer everything alike from now on, also with numbers and cookies.
    #[must_use]
    pub fn is_same(&self, other: &Model) -> bool {
        std::ptr::eq(self, other) || *self.locked() == *other.locked()
    }

    /// Returns a copy as it would be after a restart: nobody holds a reference, and inodes without
    /// a name are gone.
    #[must_use]
    pub fn reopened(&self) -> Model {
        let mut state = self.locked().clone();
        state.nodes.retain(|_, node| {
            node.references = 0;
            node.names > 0
        });
        Model { state: Mutex::new(state), clock: Arc::clone(&self.clock) }
    }

    /// Returns the pages of a regular file that were written, by number; none of what is no file.
    pub(crate) fn pages_of(&self, ino: Ino) -> Vec<(u64, Page)> {
        let state = self.locked();
        let content = state.node(ino).and_then(Node::content);
        content.map(Content::pages).unwrap_or_default()
    }

    /// Returns the extended attributes of an inode, as the superuser sees them.
    pub(crate) fn attributes_of(&self, ino: Ino) -> Attributes {
        let state = self.locked();
        state.node(ino).map(Node::all_attributes).unwrap_or_default()
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the model does not panic but on a misuse, which ends the test")
    }

    /// Does `work`, and tells the attributes of `ino` around it.
    fn changes<T>(
        &self,
        ino: Ino,
        around: Option<&mut AttributeChange>,
        work: impl FnOnce(&mut State) -> FsResult<T>,
    ) -> FsResult<T> {
        self.locked().around(ino, around, work)
    }

    fn asked<'a>(&self, caller: &'a Caller) -> Asked<'a> {
        Asked { caller, now: self.clock.now() }
    }
}
