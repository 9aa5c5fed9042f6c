//! The walk: from a file system to its canonical tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Attr, Caller, DirEntry, FileKind, FileSystem, FsError, Ino, LINKS_MAX};

use super::{Attributes, CanonAttr, Data, Identity, Inode, PAGE_BYTES, Page, Path, Times, Tree};
use crate::number::{u64_of, usize_of};

/// Files up to this size are read whole; of larger ones, the start, the end, and the surroundings
/// of every power of two, which is where [`crate::ops`] writes.
const WHOLE_BYTES_MAX: u64 = 64 << 20;
/// How much is read at the start, at the end and on each side of a power of two.
const WINDOW_BYTES: u64 = 64 << 10;
/// Bytes of one read: a multiple of the page that is no power of two.
const READ_BYTES: u64 = 37 * 4096;
/// Most directories one inside the other, against a loop.
const DEPTH_MAX: usize = 4096;

/// Why a tree could not be walked: each is a defect of the implementation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// An operation failed that must not.
    #[error("{path}: {operation}: {error}")]
    Failed {
        /// Where.
        path: Path,
        /// Which operation of the interface.
        operation: &'static str,
        /// Its answer.
        error: FsError,
    },
    /// readdir does not begin with `.` and `..`, or they lead elsewhere.
    #[error("{path}: the first names are not . and .. of this directory and its parent")]
    DotNames {
        /// The directory.
        path: Path,
    },
    /// A cookie is 0, past 63 bits, or not above the one before.
    #[error("{path}: cookie {cookie} is 0, too large, or does not rise")]
    Cookie {
        /// The name it came with.
        path: Path,
        /// The cookie.
        cookie: u64,
    },
    /// readdir and lookup disagree about what a name names.
    #[error("{path}: readdir and lookup disagree")]
    DirEntry {
        /// The name.
        path: Path,
    },
    /// readdir returned one name twice, or listxattr did.
    #[error("{path}: listed twice")]
    Twice {
        /// The name.
        path: Path,
    },
    /// Going on from a cookie did not return what came after it the first time.
    #[error("{path}: readdir goes on differently from cookie {cookie}")]
    Resume {
        /// The directory.
        path: Path,
        /// Where it went on.
        cookie: u64,
    },
    /// The link count is not what the names add up to.
    #[error("{path}: nlink is {nlink}, names say {counted}")]
    LinkCount {
        /// One of the names.
        path: Path,
        /// As the attributes have it.
        nlink: u32,
        /// As counted.
        counted: u64,
    },
    /// A read before the end of the file returned less than was asked.
    #[error("{path}: short read of {count} bytes at {offset}")]
    ShortRead {
        /// The file.
        path: Path,
        /// Where.
        offset: u64,
        /// How much came.
        count: usize,
    },
    /// Directories lie deeper in one another than they can: a loop.
    #[error("{path}: too deep")]
    TooDeep {
        /// Where the walk gave up.
        path: Path,
    },
}

struct Walker<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
    times: Times,
    tree: Tree,
    identities: Vec<Identity>,
    /// Index in the tree, names met so far, and one of them.
    met: BTreeMap<Ino, (usize, u64, Path)>,
}

/// Walks the whole tree of `fs`.
///
/// Every reference that the walk takes is given back.
///
/// # Errors
///
/// The first defect: see [`WalkError`].
pub fn walk(fs: &dyn FileSystem, times: Times) -> Result<Tree, WalkError> {
    walk_below(fs, fs.root(), times)
}

/// As [`walk`], of the fileset whose root directory is `root`.
///
/// # Errors
///
/// As [`walk`].
pub fn walk_below(fs: &dyn FileSystem, root: Ino, times: Times) -> Result<Tree, WalkError> {
    walk_identified_below(fs, root, times).map(|(tree, _)| tree)
}

/// As [`walk`], and returns the identity of each inode of the tree, in its order.
///
/// # Errors
///
/// As [`walk`].
pub fn walk_identified(
    fs: &dyn FileSystem,
    times: Times,
) -> Result<(Tree, Vec<Identity>), WalkError> {
    walk_identified_below(fs, fs.root(), times)
}

/// As [`walk_below`], and returns the identity of each inode of the tree, in its order.
///
/// # Errors
///
/// As [`walk`].
pub fn walk_identified_below(
    fs: &dyn FileSystem,
    root: Ino,
    times: Times,
) -> Result<(Tree, Vec<Identity>), WalkError> {
    let mut walker = Walker {
        fs,
        caller: Caller::root(),
        times,
        tree: Tree::default(),
        identities: Vec::new(),
        met: BTreeMap::new(),
    };
    let root = fs.getattr(&Caller::root(), root).map_err(failed(&Path::default(), "getattr"))?;
    walker.directory(&root, root.ino, &Path::default(), 0)?;
    walker.check_links()?;
    Ok((walker.tree, walker.identities))
}

fn failed<'a>(path: &'a Path, operation: &'static str) -> impl Fn(FsError) -> WalkError + 'a {
    move |error| WalkError::Failed { path: path.clone(), operation, error }
}

impl Walker<'_> {
    fn add(&mut self, attr: &Attr, path: &Path, data: Data) -> Result<(), WalkError> {
        let index = self.tree.inodes.len();
        let attributes = self.attributes(attr.ino, path)?;
        self.tree.inodes.push(Inode { attr: CanonAttr::of(attr, self.times), data, attributes });
        self.identities.push(Identity { ino: attr.ino, generation: attr.generation });
        self.tree.names.insert(path.clone(), index);
        self.met.insert(attr.ino, (index, 1, path.clone()));
        Ok(())
    }

    /// Extended attributes; none where they are not supported.
    fn attributes(&self, ino: Ino, path: &Path) -> Result<Attributes, WalkError> {
        let names = match self.fs.listxattr(&self.caller, ino) {
            Err(FsError::NotSupported) => Vec::new(),
            other => other.map_err(failed(path, "listxattr"))?,
        };
        let mut attributes = Attributes::new();
        for name in names {
            let value = self.fs.getxattr(&self.caller, ino, &name);
            let value = value.map_err(failed(path, "getxattr"))?;
            if attributes.insert(name, value).is_some() {
                return Err(WalkError::Twice { path: path.clone() });
            }
        }
        Ok(attributes)
    }

    fn directory(
        &mut self,
        attr: &Attr,
        parent: Ino,
        path: &Path,
        depth: usize,
    ) -> Result<(), WalkError> {
        if depth > DEPTH_MAX || self.met.contains_key(&attr.ino) {
            return Err(WalkError::TooDeep { path: path.clone() });
        }
        self.add(attr, path, Data::Nothing)?;
        let mut entries = self.list(attr.ino, parent, path)?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let mut subdirectories = 0_u64;
        for entry in &entries {
            let path = path.join(&entry.name);
            if self.tree.names.contains_key(&path) {
                return Err(WalkError::Twice { path });
            }
            subdirectories += u64::from(entry.kind == FileKind::Directory);
            let found = self
                .fs
                .lookup(&self.caller, attr.ino, &entry.name)
                .map_err(failed(&path, "lookup"))?;
            let visited = self.visit(entry, &found, attr.ino, &path, depth);
            self.fs.forget(found.ino, 1);
            visited?;
        }
        let counted =
            if subdirectories + 2 > u64::from(LINKS_MAX) { 1 } else { subdirectories + 2 };
        if u64::from(attr.nlink) != counted {
            let path = path.clone();
            return Err(WalkError::LinkCount { path, nlink: attr.nlink, counted });
        }
        Ok(())
    }

    fn visit(
        &mut self,
        entry: &DirEntry,
        found: &Attr,
        parent: Ino,
        path: &Path,
        depth: usize,
    ) -> Result<(), WalkError> {
        if found.ino != entry.ino || found.kind != entry.kind {
            return Err(WalkError::DirEntry { path: path.clone() });
        }
        let attr = self.fs.getattr(&Caller::root(), found.ino).map_err(failed(path, "getattr"))?;
        if attr.kind == FileKind::Directory {
            return self.directory(&attr, parent, path, depth + 1);
        }
        if let Some((index, names, _)) = self.met.get_mut(&attr.ino) {
            *names += 1;
            self.tree.names.insert(path.clone(), *index);
            return Ok(());
        }
        let data = match attr.kind {
            FileKind::Regular => Data::Pages(self.pages(&attr, path)?),
            FileKind::Symlink => Data::Target(
                self.fs.readlink(&Caller::root(), attr.ino).map_err(failed(path, "readlink"))?,
            ),
            FileKind::Directory
            | FileKind::BlockDevice
            | FileKind::CharDevice
            | FileKind::Fifo
            | FileKind::Socket => Data::Nothing,
        };
        self.add(&attr, path, data)
    }

    /// The names of a directory but `.` and `..`, which are checked and left out.
    fn list(&self, ino: Ino, parent: Ino, path: &Path) -> Result<Vec<DirEntry>, WalkError> {
        let mut entries = self.listed_after(ino, 0, path)?;
        let mut before = 0;
        for entry in &entries {
            if entry.cookie <= before || entry.cookie > i64::MAX.unsigned_abs() {
                let path = path.join(&entry.name);
                return Err(WalkError::Cookie { path, cookie: entry.cookie });
            }
            before = entry.cookie;
        }
        let leads = |index: usize, name: &[u8], to: Ino| {
            entries.get(index).is_some_and(|entry| entry.name == name && entry.ino == to)
        };
        if !leads(0, b".", ino) || !leads(1, b"..", parent) {
            return Err(WalkError::DotNames { path: path.clone() });
        }
        let middle = entries.len() / 2;
        let cookie = entries[middle].cookie;
        if self.listed_after(ino, cookie, path)? != entries[middle + 1..] {
            return Err(WalkError::Resume { path: path.clone(), cookie });
        }
        entries.drain(..2);
        Ok(entries)
    }

    fn listed_after(&self, ino: Ino, cookie: u64, path: &Path) -> Result<Vec<DirEntry>, WalkError> {
        let mut entries = Vec::new();
        let mut each = |entry: &DirEntry| {
            entries.push(entry.clone());
            true
        };
        self.fs
            .readdir(&Caller::root(), ino, cookie, &mut each)
            .map_err(failed(path, "readdir"))?;
        Ok(entries)
    }

    fn pages(&self, attr: &Attr, path: &Path) -> Result<BTreeMap<u64, Page>, WalkError> {
        let mut pages = BTreeMap::new();
        for (first, end) in windows(attr.size_bytes) {
            let mut at = first;
            while at < end {
                let asked = usize_of(READ_BYTES.min(end - at));
                let mut bytes = Vec::new();
                let count = self
                    .fs
                    .read(&Caller::root(), attr.ino, at, asked, &mut bytes)
                    .map_err(failed(path, "read"))?;
                if count != asked || bytes.len() != asked {
                    return Err(WalkError::ShortRead { path: path.clone(), offset: at, count });
                }
                keep_pages(at, &bytes, &mut pages);
                at += u64_of(asked);
            }
        }
        Ok(pages)
    }

    /// The names that were met are all there are.
    fn check_links(&self) -> Result<(), WalkError> {
        for (index, counted, path) in self.met.values() {
            let attr = &self.tree.inodes[*index].attr;
            if attr.kind != FileKind::Directory && u64::from(attr.nlink) != *counted {
                let (path, counted) = (path.clone(), *counted);
                return Err(WalkError::LinkCount { path, nlink: attr.nlink, counted });
            }
        }
        Ok(())
    }
}

/// The ranges of a file of `size_bytes` that the walk reads: disjoint, rising, each beginning at a
/// page.
fn windows(size_bytes: u64) -> Vec<(u64, u64)> {
    if size_bytes <= WHOLE_BYTES_MAX {
        return vec![(0, size_bytes)];
    }
    let page = u64_of(PAGE_BYTES);
    let mut wanted = vec![(0, WINDOW_BYTES)];
    wanted.extend(
        (0..63)
            .map(|bit| 1_u64 << bit)
            .filter(|&at| at > WINDOW_BYTES)
            .map(|at| (at - WINDOW_BYTES, at + WINDOW_BYTES)),
    );
    wanted.push(((size_bytes - WINDOW_BYTES) / page * page, size_bytes));
    wanted.sort_unstable();
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for (first, end) in wanted {
        let read_to = windows.last().map_or(0, |&(_, end)| end);
        let (first, end) = (first.max(read_to), end.min(size_bytes));
        if first < end {
            windows.push((first, end));
        }
    }
    windows
}

fn keep_pages(offset: u64, bytes: &[u8], into: &mut BTreeMap<u64, Page>) {
    let first = offset / u64_of(PAGE_BYTES);
    for (number, chunk) in (first..).zip(bytes.chunks(PAGE_BYTES)) {
        if chunk.iter().any(|&byte| byte != 0) {
            let mut page = [0; PAGE_BYTES];
            page[..chunk.len()].copy_from_slice(chunk);
            into.insert(number, Arc::new(page));
        }
    }
}
