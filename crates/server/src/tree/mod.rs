//! Copy-in and copy-out of trees of files: `holdfast copy-in` and `holdfast copy-out`.
//!
//! ```text
//!   host   a directory of this machine --+                 +-- copy    one tree into another
//!   pool   files of a fileset -----------+--> trait Tree --+   verify  comparison of two trees
//!                                        |
//!   placing  rights  name of a copied file; owner, mode and attributes
//!   aside            temporary names
//!
//!   archive   tar: headers               +-- unpack  a tar into a tree
//!                                            pack    a tree into a tar, by a walk
//! ```
//!
//! # Invariants
//!
//! - TE1: Paths are never followed. Each step is one name in one open directory, and no name is
//! - TE2: The modification time of a regular file with content is set last, after the content is
//!   durable where the tree needs that ([`FileTree::TIMES_WAIT`]). So a file whose size and
//!   modification time equal the source's is a complete copy, even if the copy of the tree was
//!   interrupted.
//! - TE3: An error of one file affects only that file: it is reported, and the copy goes on. An
//!   error of rights or attributes affects only those, and not the content. An error of the target
//!   tree as a whole (no space, a failed device) ends the copy.
//!
//! # Concurrency
//!
//! Threads take work from one queue ([`copy`]). A thread waits for another only for access to the
//! same directory.

pub(crate) mod acl;
pub(crate) mod archive;
pub(crate) mod aside;
pub(crate) mod beside;
pub(crate) mod copy;
pub(crate) mod differences;
pub(crate) mod host;
pub(crate) mod numbers;
pub(crate) mod pack;
pub(crate) mod placing;
pub(crate) mod pool;
pub(crate) mod rights;
pub(crate) mod sparse;
pub(crate) mod totals;
pub(crate) mod unpack;
pub(crate) mod walk;

use control::TreeCopyRules;
use engine::api::{FileKind, Timestamp};

pub(crate) use self::totals::TreeCopyTotals;

/// Target of the log lines of trees.
pub const LOG_TARGET: &str = module_path!();
/// Most copying threads.
pub const THREADS_MAX: usize = 64;
pub(crate) const PIECE_BYTES: usize = 1 << 20;
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Attribute with the default access list of a directory, which its new files inherit.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Attribute with the capabilities of a program, which apply whichever user runs it.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

pub(crate) fn allowed(rules: TreeCopyRules, meta: FileMetadata) -> FileMetadata {
    let drops = rules.no_setuid && meta.kind != FileKind::Directory;
    FileMetadata { mode: if drops { meta.mode & !0o6000 } else { meta.mode }, ..meta }
}

pub(crate) fn leaves_out(rules: TreeCopyRules, kind: FileKind) -> bool {
    rules.no_devices && matches!(kind, FileKind::BlockDevice | FileKind::CharDevice)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileMetadata {
    pub(crate) kind: FileKind,
    /// Permission bits with set-id and sticky bits, 12 bits in all.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Device number of a device file, in Linux's packed form.
    pub(crate) rdev: u32,
    pub(crate) size_bytes: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) links: u64,
    /// Device and inode number, which identify the file in the tree.
    pub(crate) id: (u64, u64),
}

/// Extended attributes, access lists included, sorted by name.
pub(crate) type ExtendedAttributes = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct TreeError {
    pub(crate) cause: String,
    /// Whether the tree as a whole has become unwritable, which ends the copy.
    pub(crate) is_final: bool,
    pub(crate) is_room: bool,
}

impl TreeError {
    pub(crate) fn of_file(cause: impl Into<String>) -> TreeError {
        TreeError { cause: cause.into(), is_final: false, is_room: false }
    }

    pub(crate) fn of_all(cause: impl Into<String>) -> TreeError {
        TreeError { cause: cause.into(), is_final: true, is_room: false }
    }

    /// Makes an error of reading affect only its file, because other files may be readable.
    pub(crate) fn while_reading(mut self) -> TreeError {
        self.is_final = false;
        self
    }
}

pub(crate) type TreeResult<T> = Result<T, TreeError>;

pub(crate) trait FileTree: Sync {
    /// An open file or directory. It stays valid if its name changes or is removed.
    type Node: Clone + Send + Sync;

    /// Whether the modification time of a file must wait until its content is durable (TE2). A
    /// host's file system stores no size before the content, so its tree does not need that.
    const TIMES_WAIT: bool;

    fn root(&self) -> Self::Node;

    /// Calls `each` for the names in a directory, without `.` and `..`.
    fn list(&self, directory: &Self::Node, each: &mut dyn FnMut(Vec<u8>)) -> TreeResult<()>;

    /// Looks a name up. `None` if it does not exist.
    fn find(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<Option<FileMetadata>>;

    /// Opens a name. `meta` is the result of the lookup.
    fn open(
        &self,
        directory: &Self::Node,
        name: &[u8],
        meta: &FileMetadata,
    ) -> TreeResult<Self::Node>;

    /// Returns whether a name is on another file system than `device`. A copy does not enter that.
    fn is_elsewhere(
        &self,
        _directory: &Self::Node,
        _name: &[u8],
        meta: &FileMetadata,
        device: u64,
    ) -> TreeResult<bool> {
        Ok(meta.id.0 != device)
    }

    fn meta(&self, node: &Self::Node) -> TreeResult<FileMetadata>;

    fn target(&self, node: &Self::Node) -> TreeResult<Vec<u8>>;

    /// Returns the extended attributes, sorted by name.
    fn attributes(&self, node: &Self::Node) -> TreeResult<ExtendedAttributes>;

    /// Appends up to `length_bytes` from `offset` to `into`. Returns fewer only at the end of the
    /// file.
    fn read(
        &self,
        node: &Self::Node,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> TreeResult<usize>;

    /// Returns the next data range at or after `offset`. `None` if only a hole follows.
    fn data(&self, node: &Self::Node, offset: u64) -> TreeResult<Option<(u64, u64)>>;

    /// Returns whether the tree can store an extended attribute of this name. True if unknown.
    fn keeps_attribute(&self, _name: &[u8]) -> bool {
        true
    }

    /// Creates a file of the kind in `meta`. It belongs to root, and only its owner has access
    /// (TP1) until [`rights::give`] and [`FileTree::set_times`] complete it.
    fn make(
        &self,
        directory: &Self::Node,
        name: &[u8],
        meta: &FileMetadata,
        target: &[u8],
    ) -> TreeResult<Self::Node>;

    /// Creates a regular file without a name, with the rights of [`FileTree::make`]. `None` if the
    /// tree does not support that.
    fn make_unnamed(&self, _directory: &Self::Node) -> TreeResult<Option<Self::Node>> {
        Ok(None)
    }

    /// Links a file at `name` and atomically replaces any old file of that name.
    fn link_over(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Renames `names.0` to `names.1`, and atomically replaces any old file there. Returns the
    /// renamed file.
    fn rename(
        &self,
        node: &Self::Node,
        directory: &Self::Node,
        names: (&[u8], &[u8]),
    ) -> TreeResult<Self::Node>;

    /// Exchanges two names, atomically if the tree supports that. Returns the file of the first
    /// name.
    fn exchange(
        &self,
        node: &Self::Node,
        directory: &Self::Node,
        names: (&[u8], &[u8]),
    ) -> TreeResult<Self::Node>;

    fn is_empty(&self, directory: &Self::Node) -> TreeResult<bool>;

    /// Makes the content of a file durable, if the tree needs that ([`FileTree::TIMES_WAIT`]).
    fn make_durable(&self, _node: &Self::Node) -> TreeResult<()> {
        Ok(())
    }

    fn remove_directory(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> TreeResult<()>;

    fn resize(&self, node: &Self::Node, size_bytes: u64) -> TreeResult<()>;

    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    fn remove(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Sets owner, group and permission bits. Returns the errors. If the owner could not be set,
    /// the set-id bits are not set.
    fn set_owner_and_mode(
        &self,
        node: &Self::Node,
        meta: &FileMetadata,
    ) -> TreeResult<Vec<TreeError>>;

    /// Sets an extended attribute, or removes it with `None`.
    fn set_attribute(&self, node: &Self::Node, name: &[u8], value: Option<&[u8]>)
    -> TreeResult<()>;

    fn set_times(&self, node: &Self::Node, meta: &FileMetadata) -> TreeResult<()>;

    /// Makes all changes of the tree durable.
    fn sync(&self) -> TreeResult<()>;

    /// Does work that the tree has put off until no file is in work.
    fn between_files(&self) {}

    /// Returns a node that keeps no file open, for a file that is not used for some time.
    fn parked(&self, node: &Self::Node) -> Self::Node {
        node.clone()
    }
}

/// Refuses an invalid name of a directory entry (TE1).
pub(crate) fn check_name(name: &[u8]) -> TreeResult<()> {
    let is_name = !matches!(name, b"" | b"." | b"..") && !name.iter().any(|it| b"/\0".contains(it));
    let shown = String::from_utf8_lossy(name).escape_debug().to_string();
    if is_name { Ok(()) } else { Err(TreeError::of_file(format!("`{shown}` is no name"))) }
}

/// Splits a relative path into names. Refuses one that could leave the tree.
pub(crate) fn names_of(path: &[u8]) -> Result<Vec<&[u8]>, String> {
    if path.first() == Some(&b'/') {
        return Err("its name begins with `/`, which leads out of the tree".to_owned());
    }
    let mut names = Vec::new();
    let is_step = |name: &&[u8]| !name.is_empty() && *name != b".";
    for name in path.split(|&byte| byte == b'/').filter(is_step) {
        if name == b".." {
            return Err("its name has `..`, which leads out of the tree".to_owned());
        }
        if name.contains(&0) {
            return Err("its name has a byte 0".to_owned());
        }
        names.push(name);
    }
    Ok(names)
}

/// Error for a directory that is not replaced, because it is not empty.
pub(crate) const HAS_CONTENT: &str =
    "a directory with content is there already: remove it, or copy to another place with --path";

pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Returns whether `target` is a complete copy of `source`: kind, modification time, size and
/// device number are equal (TE2).
pub(crate) fn is_same(source: &FileMetadata, target: &FileMetadata) -> bool {
    let has_size = source.kind == FileKind::Regular;
    source.kind == target.kind
        && source.mtime == target.mtime
        && (!has_size || source.size_bytes == target.size_bytes)
        && source.rdev == target.rdev
}

pub(crate) fn has_same_owner_and_mode(source: &FileMetadata, target: &FileMetadata) -> bool {
    let has_mode = source.kind != FileKind::Symlink;
    (source.uid, source.gid) == (target.uid, target.gid)
        && (!has_mode || source.mode == target.mode)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod crash;
