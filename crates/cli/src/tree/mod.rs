//! Trees of files on their way into a pool and out of it: `holdfast import` and
//! `holdfast export-tree`.
//!
//! ```text
//!   host   a directory of this machine --+                 +-- copy     all of one into the other
//!   pool   files of a fileset -----------+--> trait Tree --+   verify   one against the other
//!                                        |
//!   placing  rights  how a file comes to its name, and to its owner, mode and attributes
//!   aside            names that files have until then
//!
//!   archive   tar: headers               +-- unpack  a tar into a tree
//!                                            pack    a tree into a tar, by a walk
//! ```
//!
//! # Invariants
//!
//! - TE1: Names are never followed: each step is one name in one open directory, and none of them
//!   is `.`, `..` or holds a slash. So nothing outside of the two trees is read or changed.
//! - TE2: Of a regular file with content, the modification time is set last, when its content is
//!   durable where the tree can say so ([`Tree::TIMES_WAIT`]). So a file whose size and
//!   modification time are those of the other tree was copied to its end, whatever broke off.
//! - TE3: What is wrong with one file costs that file: it is told, and the others are copied. What
//!   is wrong with its rights or attributes costs those alone, and never content. What is wrong
//!   with the tree that is written (no space, a device) ends the copy.
//!
//! # Concurrency
//!
//! Threads share a tree and take work from one queue ([`copy`]). No thread waits for another but
//! for the directory it works in.

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

use engine::vnode::api::{FileKind, Timestamp};
use serde::{Deserialize, Serialize};

pub(crate) use self::totals::Totals;

/// Most threads that copy.
pub(crate) const THREADS_MAX: usize = 64;
/// Bytes that are read and written at once.
pub(crate) const PIECE_BYTES: usize = 1 << 20;
/// Longest value of an extended attribute that Linux has.
pub(crate) const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// The default access list of a directory: what is made in it inherits it.
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// The access list of a file.
pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// What a program may do whoever runs it.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// How a tree is copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// Of an archive: what is there with the same size and modification time is left alone.
    pub skips_same: bool,
    /// Of a directory: content is compared where size and modification time are the same.
    pub compares_content: bool,
    /// No setuid, setgid and capabilities come.
    pub no_setuid: bool,
    /// No devices come.
    pub no_devices: bool,
}

impl Rules {
    /// Returns `meta` as these rules let it come.
    pub(crate) fn of(self, meta: Meta) -> Meta {
        let drops = self.no_setuid && meta.kind != FileKind::Directory;
        Meta { mode: if drops { meta.mode & !0o6000 } else { meta.mode }, ..meta }
    }

    /// Whether a file of this kind stays away.
    pub(crate) fn leaves_out(self, kind: FileKind) -> bool {
        self.no_devices && matches!(kind, FileKind::BlockDevice | FileKind::CharDevice)
    }
}

/// What is known of a file beside its content and its extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) kind: FileKind,
    /// 12 bits.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Of a device, as Linux packs it.
    pub(crate) rdev: u32,
    pub(crate) size_bytes: u64,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    /// Names.
    pub(crate) links: u64,
    /// What tells it from all other files of its tree: device and number.
    pub(crate) id: (u64, u64),
}

/// Extended attributes, access lists among them, by name.
pub(crate) type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// Why something of a tree was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub(crate) struct TreeError {
    pub(crate) cause: String,
    /// Whether nothing more can be written to this tree.
    pub(crate) is_final: bool,
    /// Whether there is no room.
    pub(crate) is_room: bool,
}

impl TreeError {
    /// Returns an error of one file.
    pub(crate) fn of_file(cause: impl Into<String>) -> TreeError {
        TreeError { cause: cause.into(), is_final: false, is_room: false }
    }

    /// Returns an error that ends all.
    pub(crate) fn of_all(cause: impl Into<String>) -> TreeError {
        TreeError { cause: cause.into(), is_final: true, is_room: false }
    }

    /// What is wrong with the tree that is read concerns one file.
    pub(crate) fn while_reading(mut self) -> TreeError {
        self.is_final = false;
        self
    }
}

pub(crate) type TreeResult<T> = Result<T, TreeError>;

/// A tree of files.
pub(crate) trait Tree: Sync {
    /// A file or a directory that is in use. It stays what it is, whatever becomes of its name.
    type Node: Clone + Send + Sync;

    /// Whether modification times wait until content is durable (TE2). A tree that is no pool
    /// leaves that to its file system, which stores no size before the content.
    const TIMES_WAIT: bool;

    /// The directory that all is below.
    fn root(&self) -> Self::Node;

    /// Calls `each` for the names in a directory, without `.` and `..`.
    fn list(&self, directory: &Self::Node, each: &mut dyn FnMut(Vec<u8>)) -> TreeResult<()>;

    /// Returns what a name is; `None`: it is not there.
    fn find(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<Option<Meta>>;

    /// Returns what a name leads to, as `meta` has told it.
    fn open(&self, directory: &Self::Node, name: &[u8], meta: &Meta) -> TreeResult<Self::Node>;

    /// Whether a name is on another file system than `device`, and is to be named by itself.
    fn is_elsewhere(
        &self,
        _directory: &Self::Node,
        _name: &[u8],
        meta: &Meta,
        device: u64,
    ) -> TreeResult<bool> {
        Ok(meta.id.0 != device)
    }

    /// Returns what is known of a file.
    fn meta(&self, node: &Self::Node) -> TreeResult<Meta>;

    /// Returns the target of a symbolic link.
    fn target(&self, node: &Self::Node) -> TreeResult<Vec<u8>>;

    /// Returns the extended attributes, by name.
    fn attributes(&self, node: &Self::Node) -> TreeResult<Attributes>;

    /// Appends up to `length_bytes` from `offset` to `into`; fewer only at the end.
    fn read(
        &self,
        node: &Self::Node,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> TreeResult<usize>;

    /// Returns the next range from `offset` on that is no hole; `None`: there is none.
    fn data(&self, node: &Self::Node, offset: u64) -> TreeResult<Option<(u64, u64)>>;

    /// Whether the tree has extended attributes of this name; where it is not known, it has.
    fn keeps_attribute(&self, _name: &[u8]) -> bool {
        true
    }

    /// Makes a file of the kind that `meta` says, of the superuser and with the owner's bits alone
    /// (TP1); [`rights::give`] and [`Tree::set_times`] do the rest.
    fn make(
        &self,
        directory: &Self::Node,
        name: &[u8],
        meta: &Meta,
        target: &[u8],
    ) -> TreeResult<Self::Node>;

    /// Makes a regular file without a name, as [`Tree::make`] does; `None`: this tree has none.
    fn make_unnamed(&self, _directory: &Self::Node) -> TreeResult<Option<Self::Node>> {
        Ok(None)
    }

    /// Gives a file a name in the place of what has it, in one step.
    fn link_over(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Gives the file at the first name the second, in the place of what has that, in one step.
    /// Returns the file.
    fn rename(
        &self,
        node: &Self::Node,
        directory: &Self::Node,
        names: (&[u8], &[u8]),
    ) -> TreeResult<Self::Node>;

    /// Exchanges the file at the first name and what has the second, in one step where the tree
    /// can. Returns the file.
    fn exchange(
        &self,
        node: &Self::Node,
        directory: &Self::Node,
        names: (&[u8], &[u8]),
    ) -> TreeResult<Self::Node>;

    /// Whether a directory has no names.
    fn is_empty(&self, directory: &Self::Node) -> TreeResult<bool>;

    /// Makes the content of a file durable, where that is ours to see to ([`Tree::TIMES_WAIT`]).
    fn make_durable(&self, _node: &Self::Node) -> TreeResult<()> {
        Ok(())
    }

    /// Removes an empty directory.
    fn remove_directory(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Writes all of `bytes`.
    fn write(&self, node: &Self::Node, offset: u64, bytes: &[u8]) -> TreeResult<()>;

    /// Gives a file its size.
    fn resize(&self, node: &Self::Node, size_bytes: u64) -> TreeResult<()>;

    /// Gives a file one more name.
    fn link(&self, node: &Self::Node, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Removes a name that is no directory.
    fn remove(&self, directory: &Self::Node, name: &[u8]) -> TreeResult<()>;

    /// Sets owner, group and permission bits. Returns what could not be set: a file that does not
    /// get its owner is no setuid one.
    fn set_owner_and_mode(&self, node: &Self::Node, meta: &Meta) -> TreeResult<Vec<TreeError>>;

    /// Sets an extended attribute; `None`: removes it.
    fn set_attribute(&self, node: &Self::Node, name: &[u8], value: Option<&[u8]>)
    -> TreeResult<()>;

    /// Sets access and modification time.
    fn set_times(&self, node: &Self::Node, meta: &Meta) -> TreeResult<()>;

    /// Makes all that was done durable.
    fn sync(&self) -> TreeResult<()>;

    /// Does what was put off, if it is worth it; called between files.
    fn between_files(&self) {}

    /// Returns what keeps a file without keeping it open, for the time it is not used.
    fn parked(&self, node: &Self::Node) -> Self::Node {
        node.clone()
    }
}

/// Refuses what is no name of a file in a directory (TE1).
pub(crate) fn check_name(name: &[u8]) -> TreeResult<()> {
    let is_name = !matches!(name, b"" | b"." | b"..") && !name.iter().any(|it| b"/\0".contains(it));
    let shown = String::from_utf8_lossy(name).escape_debug().to_string();
    if is_name { Ok(()) } else { Err(TreeError::of_file(format!("`{shown}` is no name"))) }
}

/// Returns the names of a path that leads nowhere else than down. `Err`: what is wrong with it.
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

/// Why a directory is not replaced.
pub(crate) const HAS_CONTENT: &str =
    "a directory with content is there already: remove it, or import to another place with --path";

/// Returns a path for people.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

/// Whether a copy of what `source` is was made to its end, as far as attributes tell (TE2).
pub(crate) fn is_same(source: &Meta, target: &Meta) -> bool {
    let has_size = source.kind == FileKind::Regular;
    source.kind == target.kind
        && source.mtime == target.mtime
        && (!has_size || source.size_bytes == target.size_bytes)
        && source.rdev == target.rdev
}

/// Whether owner and permissions are the same.
pub(crate) fn has_same_owner_and_mode(source: &Meta, target: &Meta) -> bool {
    let has_mode = source.kind != FileKind::Symlink;
    (source.uid, source.gid) == (target.uid, target.gid)
        && (!has_mode || source.mode == target.mode)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod crash;
