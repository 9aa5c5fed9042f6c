//! The canonical form of a tree: what two implementations must answer alike, and nothing else.
//!
//! # What may differ
//!
//! 1. Numbers of inodes and their generations; the canonical form numbers inodes in the order in
//!    which a walk by sorted names meets them, so that the topology of links is compared.
//! 2. Cookies, and the order of readdir but for `.` and `..`, which come first.
//! 3. The size of a directory.
//! 4. `blocks_512`, the answers of statfs, and where zeros are holes.
//! 5. atime, which programs may switch off, and all times where the clock is not shared: see
//!    [`Times`].
//! 6. `rdev` of what is no device.
//! 7. The words inside an error: only its number is compared.
//!
//! The walk itself holds an implementation to what needs no second one: kinds in dirents are those
//! of the inodes, cookies rise, `.` and `..` lead where they should, link counts are what the names
//! add up to.

mod compare;
#[cfg(test)]
mod tests;
mod walk;

pub use compare::{DIFFERENCES_MAX, Difference, Side, compare_trees, differences};
pub use walk::{WalkError, walk, walk_below, walk_identified, walk_identified_below};

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use engine::api::{Attr, FileKind, Ino, Timestamp};

/// Bytes of a page of canonical content.
pub const PAGE_BYTES: usize = 4096;

/// Content of one page.
pub type Page = Arc<[u8; PAGE_BYTES]>;

/// What tells an inode from every other that ever was in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Its number.
    pub ino: Ino,
    /// Its age.
    pub generation: u64,
}

/// Which times are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// None: the clocks differ, or the file system was reopened.
    Ignored,
    /// mtime, ctime and btime.
    Changes,
    /// These and atime. The walk itself reads, and so may move it.
    All,
}

/// A path below the root, its names joined by `/`; the root is empty.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(pub Vec<u8>);

impl Path {
    /// Returns the path of `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Path {
        let mut joined = self.0.clone();
        if !joined.is_empty() {
            joined.push(b'/');
        }
        joined.extend_from_slice(name);
        Path(joined)
    }
}

impl Path {
    /// Returns the directory and the name in it; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(Path, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|&byte| byte == b'/') {
            Some(at) => Some((Path(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Path::default(), &self.0)),
        }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.escape_ascii())
    }
}

/// Attributes without what may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonAttr {
    /// What sort of file.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The project that it counts for.
    pub project: u32,
    /// Device number; 0 of what is no device.
    pub rdev: u32,
    /// Bytes; 0 of a directory.
    pub size_bytes: u64,
    /// atime, where it is compared.
    pub atime: Option<Timestamp>,
    /// mtime, where times are compared.
    pub mtime: Option<Timestamp>,
    /// ctime, where times are compared.
    pub ctime: Option<Timestamp>,
    /// btime, where times are compared.
    pub btime: Option<Timestamp>,
}

impl CanonAttr {
    /// Returns what of `attr` is compared.
    #[must_use]
    pub fn of(attr: &Attr, times: Times) -> CanonAttr {
        let is_device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        let is_directory = attr.kind == FileKind::Directory;
        let change = |time| (times != Times::Ignored).then_some(time);
        CanonAttr {
            kind: attr.kind,
            mode: attr.mode,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            project: attr.project,
            rdev: if is_device { attr.rdev } else { 0 },
            size_bytes: if is_directory { 0 } else { attr.size_bytes },
            atime: (times == Times::All).then_some(attr.atime),
            mtime: change(attr.mtime),
            ctime: change(attr.ctime),
            btime: change(attr.btime),
        }
    }
}

/// Extended attributes, by name.
pub type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an inode holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Data {
    /// Pages of a regular file that are not all zeros, by page number.
    Pages(BTreeMap<u64, Page>),
    /// Target of a symbolic link.
    Target(Vec<u8>),
    /// Nothing that is not in the names.
    Nothing,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Pages(pages) => write!(f, "pages {:?}", pages.keys().collect::<Vec<_>>()),
            Data::Target(target) => write!(f, "target {}", target.escape_ascii()),
            Data::Nothing => f.write_str("nothing"),
        }
    }
}

/// One inode of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub attr: CanonAttr,
    /// What it holds.
    pub data: Data,
    /// Its extended attributes, as the superuser sees them.
    pub attributes: Attributes,
}

/// A whole tree in canonical form: equal trees are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Inodes, in the order in which the walk met them.
    pub inodes: Vec<Inode>,
    /// Which inode each path names.
    pub names: BTreeMap<Path, usize>,
}

impl Tree {
    /// Returns the inode that `path` names.
    #[must_use]
    pub fn get(&self, path: &Path) -> Option<&Inode> {
        self.names.get(path).map(|&index| &self.inodes[index])
    }
}
