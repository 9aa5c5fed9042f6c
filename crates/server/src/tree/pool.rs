//! The files of a fileset as a [`FileTree`], accessed as root.

use std::sync::Arc;

use engine::api::{
    Attr, Caller, FileKind, FileSystem, FsError, Ino, NewInode, RenameMode, Seek, SetAttr, SetTime,
    XattrMode,
};
use format::attributes::Namespace;

use super::{ExtendedAttributes, FileMetadata, FileTree, TreeError, TreeResult, check_name};

/// Names in the root of a fileset that lead to its read-only snapshots.
const SNAPSHOTS_NAMES: [&[u8]; 2] = [b".snapshots", b".clones"];

pub(crate) struct PoolTree {
    fs: Arc<dyn FileSystem>,
    caller: Caller,
    root: PoolNode,
    top: Ino,
}

#[derive(Clone)]
pub(crate) struct PoolNode(Arc<PoolNodeInner>);

struct PoolNodeInner {
    fs: Arc<dyn FileSystem>,
    ino: Ino,
    is_counted: bool,
}

impl Drop for PoolNodeInner {
    fn drop(&mut self) {
        if self.is_counted {
            self.fs.forget(self.ino, 1);
        }
    }
}

/// Returns the caller of all operations: root, which does not update access times.
fn superuser() -> Caller {
    Caller { keeps_atime: true, ..Caller::root() }
}

#[allow(clippy::wildcard_enum_match_arm, reason = "what has no advice of its own is told as it is")]
fn failed(error: &FsError) -> TreeError {
    let is_final = matches!(
        error,
        FsError::NoSpace
            | FsError::ReadOnly { .. }
            | FsError::ReadOnlySnapshot
            | FsError::Stale
            | FsError::Io { .. }
            | FsError::Corrupt { .. }
    );
    TreeError { cause: error.to_string(), is_final, is_room: *error == FsError::NoSpace }
}

/// Returns the permission bits of a file that is not complete yet (TP1).
fn private_mode(kind: FileKind) -> u16 {
    if kind == FileKind::Directory { 0o700 } else { 0o600 }
}

fn meta_of(attr: &Attr) -> FileMetadata {
    let is_device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
    FileMetadata {
        kind: attr.kind,
        mode: attr.mode,
        uid: attr.uid,
        gid: attr.gid,
        rdev: if is_device { attr.rdev } else { 0 },
        size_bytes: attr.size_bytes,
        atime: attr.atime,
        mtime: attr.mtime,
        links: attr.nlink.into(),
        id: (0, attr.ino.0),
    }
}

impl PoolTree {
    /// Returns the tree below `path` in the fileset with root `root`. With `makes`, creates missing
    /// directories of `path`.
    pub(crate) fn below(
        fs: &Arc<dyn FileSystem>,
        root: Ino,
        path: &[u8],
        makes: bool,
    ) -> TreeResult<PoolTree> {
        let top = root;
        let root =
            PoolNode(Arc::new(PoolNodeInner { fs: Arc::clone(fs), ino: top, is_counted: false }));
        let mut tree = PoolTree { fs: Arc::clone(fs), caller: superuser(), root, top };
        let inside = path.strip_prefix(b"/").unwrap_or(path);
        let wrong = |cause: String| {
            TreeError::of_all(format!("{}: {cause}", String::from_utf8_lossy(path)))
        };
        for name in super::names_of(inside).map_err(wrong)? {
            let at = tree.root();
            if makes {
                tree.check_files(&at, name).map_err(|error| wrong(error.cause))?;
            }
            let found = tree.fs.lookup(&tree.caller, at.0.ino, name);
            let found = match found {
                Err(FsError::NotFound) if makes => {
                    let new = NewInode::new(FileKind::Directory, 0o755);
                    tree.fs.create(&tree.caller, at.0.ino, name, new, None)
                }
                found => found,
            };
            let attr = found.map_err(|error| wrong(error.to_string()))?;
            tree.root = tree.node(attr.ino);
            if attr.kind != FileKind::Directory {
                return Err(wrong("it is no directory: name one with --path".to_owned()));
            }
        }
        Ok(tree)
    }

    fn node(&self, ino: Ino) -> PoolNode {
        PoolNode(Arc::new(PoolNodeInner { fs: Arc::clone(&self.fs), ino, is_counted: true }))
    }

    /// Refuses a name that leads to snapshots, which cannot be changed (TE3). A listing omits that
    /// name, so a name from a listing is an ordinary file.
    fn check_files(&self, directory: &PoolNode, name: &[u8]) -> TreeResult<()> {
        if !SNAPSHOTS_NAMES.contains(&name) || directory.0.ino != self.top {
            return Ok(());
        }
        let mut is_file = false;
        self.list(directory, &mut |listed| is_file |= listed == name)?;
        let cause = "the snapshots of the fileset have this name: give it another, or copy below \
                     another directory with --path";
        if is_file { Ok(()) } else { Err(TreeError::of_file(cause)) }
    }
}

impl FileTree for PoolTree {
    type Node = PoolNode;

    const TIMES_WAIT: bool = true;

    fn root(&self) -> PoolNode {
        self.root.clone()
    }

    fn list(&self, directory: &PoolNode, each: &mut dyn FnMut(Vec<u8>)) -> TreeResult<()> {
        let mut tell = |entry: &engine::api::DirEntry| {
            if entry.name != b"." && entry.name != b".." {
                each(entry.name.clone());
            }
            true
        };
        let listed = self.fs.readdir(&self.caller, directory.0.ino, 0, &mut tell);
        listed.map_err(|error| failed(&error))
    }

    fn find(&self, directory: &PoolNode, name: &[u8]) -> TreeResult<Option<FileMetadata>> {
        check_name(name)?;
        self.check_files(directory, name)?;
        match self.fs.lookup(&self.caller, directory.0.ino, name) {
            Ok(attr) => {
                self.fs.forget(attr.ino, 1);
                Ok(Some(meta_of(&attr)))
            }
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    fn open(&self, directory: &PoolNode, name: &[u8], meta: &FileMetadata) -> TreeResult<PoolNode> {
        check_name(name)?;
        let found = self.fs.lookup(&self.caller, directory.0.ino, name);
        let attr = found.map_err(|error| failed(&error))?;
        let node = self.node(attr.ino);
        if meta_of(&attr).id != meta.id {
            return Err(TreeError::of_file("it was replaced while it was looked at: try again"));
        }
        Ok(node)
    }

    fn meta(&self, node: &PoolNode) -> TreeResult<FileMetadata> {
        let attr = self.fs.getattr(&self.caller, node.0.ino);
        attr.map(|attr| meta_of(&attr)).map_err(|error| failed(&error))
    }

    fn target(&self, node: &PoolNode) -> TreeResult<Vec<u8>> {
        self.fs.readlink(&self.caller, node.0.ino).map_err(|error| failed(&error))
    }

    fn attributes(&self, node: &PoolNode) -> TreeResult<ExtendedAttributes> {
        let names = match self.fs.listxattr(&self.caller, node.0.ino) {
            Err(FsError::NotSupported) => return Ok(Vec::new()),
            names => names.map_err(|error| failed(&error))?,
        };
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            match self.fs.getxattr(&self.caller, node.0.ino, &name) {
                Ok(value) => all.push((name, value)),
                Err(FsError::NoAttribute) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
        all.sort();
        Ok(all)
    }

    fn read(
        &self,
        node: &PoolNode,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> TreeResult<usize> {
        let read = self.fs.read(&self.caller, node.0.ino, offset, length_bytes, into);
        read.map_err(|error| failed(&error))
    }

    fn data(&self, node: &PoolNode, offset: u64) -> TreeResult<Option<(u64, u64)>> {
        let ino = node.0.ino;
        match self.fs.seek(&self.caller, ino, offset, Seek::Data) {
            Err(FsError::NoSuchOffset) => Ok(None),
            Err(error) => Err(failed(&error)),
            Ok(start) => {
                let end = self.fs.seek(&self.caller, ino, start, Seek::Hole);
                end.map(|end| Some((start, end))).map_err(|error| failed(&error))
            }
        }
    }

    fn make(
        &self,
        directory: &PoolNode,
        name: &[u8],
        meta: &FileMetadata,
        target: &[u8],
    ) -> TreeResult<PoolNode> {
        check_name(name)?;
        let mut new = NewInode::new(meta.kind, private_mode(meta.kind));
        // Otherwise the group would be inherited from a set-gid directory.
        (new.uid, new.gid) = (Some(0), Some(0));
        new.rdev = meta.rdev;
        let at = directory.0.ino;
        let made = if meta.kind == FileKind::Symlink {
            let new = NewInode { mode: NewInode::SYMLINK.mode, ..new };
            self.fs.symlink(&self.caller, at, name, target, new, None)
        } else {
            self.fs.create(&self.caller, at, name, new, None)
        };
        made.map(|attr| self.node(attr.ino)).map_err(|error| failed(&error))
    }

    fn keeps_attribute(&self, name: &[u8]) -> bool {
        Namespace::ALL.iter().any(|it| name.starts_with(it.prefix()))
    }

    fn make_unnamed(&self, directory: &PoolNode) -> TreeResult<Option<PoolNode>> {
        let mut new = NewInode::new(FileKind::Regular, private_mode(FileKind::Regular));
        (new.uid, new.gid) = (Some(0), Some(0));
        let made = self.fs.tmpfile(&self.caller, directory.0.ino, new);
        made.map(|attr| Some(self.node(attr.ino))).map_err(|error| failed(&error))
    }

    fn link_over(&self, node: &PoolNode, directory: &PoolNode, name: &[u8]) -> TreeResult<()> {
        check_name(name)?;
        self.check_files(directory, name)?;
        let linked = self.fs.link_over(&self.caller, node.0.ino, directory.0.ino, name);
        let attr = linked.map_err(|error| failed(&error))?;
        self.fs.forget(attr.ino, 1);
        Ok(())
    }

    fn rename(
        &self,
        node: &PoolNode,
        directory: &PoolNode,
        (from, to): (&[u8], &[u8]),
    ) -> TreeResult<PoolNode> {
        check_name(to)?;
        self.check_files(directory, to)?;
        let at = directory.0.ino;
        let renamed = self.fs.rename(&self.caller, (at, from), (at, to), RenameMode::Replace, None);
        renamed.map(|()| node.clone()).map_err(|error| failed(&error))
    }

    fn exchange(
        &self,
        node: &PoolNode,
        directory: &PoolNode,
        (from, to): (&[u8], &[u8]),
    ) -> TreeResult<PoolNode> {
        check_name(to)?;
        self.check_files(directory, to)?;
        let (at, mode) = (directory.0.ino, RenameMode::Exchange);
        let exchanged = self.fs.rename(&self.caller, (at, from), (at, to), mode, None);
        exchanged.map(|()| node.clone()).map_err(|error| failed(&error))
    }

    fn is_empty(&self, directory: &PoolNode) -> TreeResult<bool> {
        let mut is_empty = true;
        let mut look = |entry: &engine::api::DirEntry| {
            is_empty = entry.name == b"." || entry.name == b"..";
            is_empty
        };
        let listed = self.fs.readdir(&self.caller, directory.0.ino, 0, &mut look);
        listed.map_err(|error| failed(&error))?;
        Ok(is_empty)
    }

    fn make_durable(&self, node: &PoolNode) -> TreeResult<()> {
        self.fs.fsync(&self.caller, node.0.ino, true).map_err(|error| failed(&error))
    }

    fn remove_directory(&self, directory: &PoolNode, name: &[u8]) -> TreeResult<()> {
        let removed = self.fs.rmdir(&self.caller, directory.0.ino, name, None);
        removed.map_err(|error| {
            let is_full = error == FsError::NotEmpty;
            if is_full { TreeError::of_file(super::HAS_CONTENT) } else { failed(&error) }
        })
    }

    fn write(&self, node: &PoolNode, offset: u64, bytes: &[u8]) -> TreeResult<()> {
        let written = self.fs.write(&self.caller, node.0.ino, offset, bytes);
        written.map_err(|error| failed(&error))
    }

    fn resize(&self, node: &PoolNode, size_bytes: u64) -> TreeResult<()> {
        let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
        let resized = self.fs.setattr(&self.caller, node.0.ino, &change, None);
        resized.map(drop).map_err(|error| failed(&error))
    }

    fn link(&self, node: &PoolNode, directory: &PoolNode, name: &[u8]) -> TreeResult<()> {
        check_name(name)?;
        let linked = self.fs.link(&self.caller, node.0.ino, directory.0.ino, name, None);
        let attr = linked.map_err(|error| failed(&error))?;
        self.fs.forget(attr.ino, 1);
        Ok(())
    }

    fn remove(&self, directory: &PoolNode, name: &[u8]) -> TreeResult<()> {
        let removed = self.fs.unlink(&self.caller, directory.0.ino, name, None);
        removed.map_err(|error| failed(&error))
    }

    fn set_owner_and_mode(
        &self,
        node: &PoolNode,
        meta: &FileMetadata,
    ) -> TreeResult<Vec<TreeError>> {
        let mode = (meta.kind != FileKind::Symlink).then_some(meta.mode);
        let (uid, gid) = (Some(meta.uid), Some(meta.gid));
        let change = SetAttr { mode, uid, gid, ..SetAttr::default() };
        let set = self.fs.setattr(&self.caller, node.0.ino, &change, None);
        set.map(|_| Vec::new()).map_err(|error| failed(&error))
    }

    fn set_attribute(&self, node: &PoolNode, name: &[u8], value: Option<&[u8]>) -> TreeResult<()> {
        let ino = node.0.ino;
        let set = match value {
            Some(value) => self.fs.setxattr(&self.caller, ino, name, value, XattrMode::Set, None),
            None => self.fs.removexattr(&self.caller, ino, name, None),
        };
        set.map_err(|error| {
            let mut told = failed(&error);
            told.cause = format!("its attribute {}: {error}", String::from_utf8_lossy(name));
            if error == FsError::NoSpace {
                // The limit of one file's attributes causes this error. If the pool is full too,
                // writing the next content ends the copy.
                (told.is_final, told.is_room) = (false, false);
                told.cause += " (a file has at most 256 KiB of user attributes)";
            }
            told
        })
    }

    fn set_times(&self, node: &PoolNode, meta: &FileMetadata) -> TreeResult<()> {
        let change = SetAttr {
            atime: Some(SetTime::To(meta.atime)),
            mtime: Some(SetTime::To(meta.mtime)),
            ..SetAttr::default()
        };
        let set = self.fs.setattr(&self.caller, node.0.ino, &change, None);
        set.map(drop).map_err(|error| failed(&error))
    }

    fn sync(&self) -> TreeResult<()> {
        self.fs.sync().map_err(|error| failed(&error))
    }

    fn between_files(&self) {
        if self.fs.has_deferred_work() {
            self.fs.run_deferred_work();
        }
    }
}
