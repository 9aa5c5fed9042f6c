//! FUSE requests and replies, independent of their encoding.
//!
//! Transport and server share only these types. Parts of the protocol that this front never uses
//! are left out (file handles, lock owners, open flags). All operations address files by node id.

use engine::api::{
    Attr, Fallocate, FileKind, Ino, RenameMode, Seek, SetAttr, StatFs, WriteData, XattrMode,
};
use rustix::io::Errno;

use crate::locks::{Lock, LockInterface, LockMode, LockRange};

/// Protocol number of a file. The root is always 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// The root's node id, fixed by the protocol.
pub const ROOT_NODE: NodeId = NodeId(1);

/// Translation between node ids and inode numbers.
///
/// 1. Exchange the slot of the mounted fileset and slot 0. So files of the fileset have their small
///    numbers within the fileset, equal in each snapshot. All other numbers (below `.snapshots`)
///    have more than 40 bits.
/// 2. Exchange the number of the root and number 1.
///
/// So each direction is total, one to one, and stable across restarts (FU2).
#[derive(Clone, Copy, Debug)]
pub struct NodeNumbers {
    root: Ino,
}

impl NodeNumbers {
    /// Returns the translation for root `root`.
    #[must_use]
    pub fn new(root: Ino) -> NodeNumbers {
        NodeNumbers { root }
    }

    /// Returns the inode of `node`.
    #[must_use]
    pub fn ino_of(&self, node: NodeId) -> Ino {
        self.in_other_slot(Ino(self.with_root_first(node.0)))
    }

    /// Returns the node id of `ino`.
    #[must_use]
    pub fn node_of(&self, ino: Ino) -> NodeId {
        NodeId(self.with_root_first(self.in_other_slot(ino).0))
    }

    fn in_other_slot(&self, ino: Ino) -> Ino {
        let own = self.root.slot();
        match ino.slot() {
            slot if slot == own => ino.in_slot(0),
            0 => ino.in_slot(own),
            _ => ino,
        }
    }

    fn with_root_first(&self, number: u64) -> u64 {
        let root = self.root.in_slot(0).0;
        if number == ROOT_NODE.0 {
            root
        } else if number == root {
            ROOT_NODE.0
        } else {
            number
        }
    }
}

/// Credentials of a request. The kernel has checked permissions (FU4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Kernel id of the calling thread, or 0 if unknown.
    pub thread: u32,
}

/// A file in a reply. In the reply to a lookup or creation, the kernel gets one reference (FU3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseNode {
    /// Node id.
    pub id: NodeId,
    /// Attributes. The kernel gets `id` instead of their inode number.
    pub attr: Attr,
}

/// One name in a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedName<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The file's node id.
    pub id: NodeId,
    /// The file's type.
    pub kind: FileKind,
    /// Cookie to resume after this name.
    pub cookie: u64,
}

/// The buffer of a listing: a reply of bounded size.
pub trait Listing {
    /// Adds a name. Returns `false`, without a change, if the name does not fit. In a listing with
    /// attributes, `node` is `None` for `.`, `..` and files with unreadable attributes: the entry
    /// carries no reference, and the kernel looks the name up.
    #[must_use]
    fn add(&mut self, name: ListedName<'_>, node: Option<&FuseNode>) -> bool;
}

/// Initial attributes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits.
    pub mode: u16,
    /// Umask, which a default ACL overrides. 0 if the kernel has applied it.
    pub umask: u16,
}

/// Operations declined, so that the kernel uses its own implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// close(2): there are no delayed errors to report.
    Flush,
    /// access(2), answered by `default_permissions`.
    Access,
    /// ioctl(2).
    Ioctl,
    /// poll(2): files are always ready.
    Poll,
    /// Locks of a mount that is not shared, kept by the kernel for its own processes.
    Lock,
    /// Mapping of a file block to a device block.
    Bmap,
}

/// One request. A reply with an entry gives the kernel a reference (FU3).
pub enum FuseRequest<'a> {
    /// Looks a name up.
    Lookup {
        /// The directory, or a file of any kind for the name `.`.
        parent: NodeId,
        /// The name, maybe `.` or `..`.
        name: &'a [u8],
    },
    /// Releases references. Has no reply.
    Forget {
        /// The file.
        node: NodeId,
        /// References to release.
        count: u64,
    },
    /// Returns attributes.
    GetAttr {
        /// The file.
        node: NodeId,
    },
    /// Returns attributes with the birth time.
    Statx {
        /// The file.
        node: NodeId,
    },
    /// Changes attributes.
    SetAttr {
        /// The file.
        node: NodeId,
        /// The changes.
        change: SetAttr,
        /// A new size clears setuid and setgid.
        kills_set_bits: bool,
    },
    /// Returns the target of a symbolic link.
    ReadLink {
        /// The link.
        node: NodeId,
    },
    /// Creates a file other than a symbolic link.
    MakeNode {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// The file's type.
        kind: FileKind,
        /// Initial attributes.
        new: NewNode,
        /// Device number.
        rdev: u32,
    },
    /// Opens a file or directory. Declined on a mount that is not shared, as opens need no state,
    /// except if the mount selects files for direct I/O.
    Open {
        /// The file.
        node: NodeId,
        /// Opens a directory, not a file.
        is_directory: bool,
    },
    /// Creates and opens a regular file. Declined on a mount that is not shared: MKNOD without OPEN
    /// and RELEASE is two messages instead of three, and the kernel's directory lock prevents races
    /// (FU1).
    Create {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// Initial attributes.
        new: NewNode,
        /// The name must not exist (`O_EXCL`).
        is_exclusive: bool,
    },
    /// Creates and opens an unnamed regular file.
    Tmpfile {
        /// The directory.
        parent: NodeId,
        /// Initial attributes.
        new: NewNode,
    },
    /// Creates a symbolic link.
    Symlink {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// The link's target.
        target: &'a [u8],
    },
    /// Adds a name to a file.
    Link {
        /// The file.
        node: NodeId,
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Removes a name of a file other than a directory.
    Unlink {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Removes an empty directory.
    Rmdir {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Moves a name.
    Rename {
        /// The old directory and name.
        source: (NodeId, &'a [u8]),
        /// The new directory and name.
        target: (NodeId, &'a [u8]),
        /// Behaviour if the target exists.
        mode: RenameMode,
    },
    /// Writes data.
    Write {
        /// The file.
        node: NodeId,
        /// File offset.
        offset: u64,
        /// The data.
        data: WriteData<'a>,
        /// Clears setuid and setgid.
        kills_set_bits: bool,
        /// Write-back of cached pages (FU8).
        is_of_cache: bool,
        /// `O_APPEND`: at the end of the file. The kernel of a shared mount may know an old one.
        appends: bool,
    },
    /// Lists names.
    ReadDir {
        /// The directory.
        node: NodeId,
        /// Cookie to resume after, 0 for the beginning.
        cookie: u64,
        /// Attributes are wanted too. Each name but `.` and `..` then takes a reference.
        with_nodes: bool,
        /// `O_NOATIME`.
        keeps_atime: bool,
        /// The buffer for names.
        listing: &'a mut dyn Listing,
    },
    /// Returns an extended attribute, or its size.
    GetXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
        /// Buffer size. 0 requests the size of the value.
        room_bytes: u32,
    },
    /// Lists the names of extended attributes, or returns the size of the list.
    ListXattr {
        /// The file.
        node: NodeId,
        /// Buffer size. 0 requests the size of the list.
        room_bytes: u32,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
        /// The value.
        value: &'a [u8],
        /// Behaviour if the attribute exists.
        mode: XattrMode,
        /// Clears setgid, as chmod(2) would for a caller outside the group.
        kills_setgid: bool,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
    },
    /// Allocates or frees space.
    Fallocate {
        /// The file.
        node: NodeId,
        /// File offset.
        offset: u64,
        /// Length.
        length_bytes: u64,
        /// The operation.
        mode: Fallocate,
    },
    /// Finds data or a hole.
    Seek {
        /// The file.
        node: NodeId,
        /// File offset.
        offset: u64,
        /// Data or hole.
        what: Seek,
    },
    /// Copies between files.
    CopyRange {
        /// File and offset.
        source: (NodeId, u64),
        /// File and offset.
        target: (NodeId, u64),
        /// Most bytes to copy.
        length_bytes: u64,
        /// The reply has a 64-bit count, not a 32-bit one.
        is_long: bool,
    },
    /// Returns a lock that conflicts with this one.
    GetLock(NodeLock),
    /// Takes or releases a lock, without waiting.
    SetLock(NodeLock),
    /// close(2) of one of the references on an open file.
    Flush {
        /// The file.
        node: NodeId,
        /// Owner of the locks that end.
        owner: u64,
        /// Number in the reply to the open.
        open_file: u64,
    },
    /// The last close(2) of an open file.
    Release {
        /// The file.
        node: NodeId,
        /// Number in the reply to the open.
        open_file: u64,
    },
    /// Returns sizes and counts.
    StatFs,
    /// An operation left to the kernel.
    Decline(Declined),
}

impl FuseRequest<'_> {
    /// Returns the files that the request uses, other than those it releases.
    pub(super) fn nodes(&self) -> [Option<NodeId>; 2] {
        match self {
            FuseRequest::Lookup { parent: node, .. }
            | FuseRequest::GetAttr { node }
            | FuseRequest::Statx { node }
            | FuseRequest::SetAttr { node, .. }
            | FuseRequest::ReadLink { node }
            | FuseRequest::MakeNode { parent: node, .. }
            | FuseRequest::Open { node, .. }
            | FuseRequest::Create { parent: node, .. }
            | FuseRequest::Tmpfile { parent: node, .. }
            | FuseRequest::Symlink { parent: node, .. }
            | FuseRequest::Unlink { parent: node, .. }
            | FuseRequest::Rmdir { parent: node, .. }
            | FuseRequest::Write { node, .. }
            | FuseRequest::ReadDir { node, .. }
            | FuseRequest::GetXattr { node, .. }
            | FuseRequest::ListXattr { node, .. }
            | FuseRequest::SetXattr { node, .. }
            | FuseRequest::RemoveXattr { node, .. }
            | FuseRequest::Fallocate { node, .. }
            | FuseRequest::Seek { node, .. }
            | FuseRequest::GetLock(NodeLock { node, .. })
            | FuseRequest::SetLock(NodeLock { node, .. }) => [Some(*node), None],
            FuseRequest::Link { node, parent, .. } => [Some(*node), Some(*parent)],
            FuseRequest::Rename { source, target, .. } => [Some(source.0), Some(target.0)],
            FuseRequest::CopyRange { source, target, .. } => [Some(source.0), Some(target.0)],
            // A close only releases.
            FuseRequest::Flush { .. }
            | FuseRequest::Release { .. }
            | FuseRequest::Forget { .. }
            | FuseRequest::StatFs
            | FuseRequest::Decline(_) => [None, None],
        }
    }

    pub(super) fn is_change(&self) -> bool {
        match self {
            FuseRequest::SetAttr { .. }
            | FuseRequest::MakeNode { .. }
            | FuseRequest::Create { .. }
            | FuseRequest::Tmpfile { .. }
            | FuseRequest::Symlink { .. }
            | FuseRequest::Link { .. }
            | FuseRequest::Unlink { .. }
            | FuseRequest::Rmdir { .. }
            | FuseRequest::Rename { .. }
            | FuseRequest::Write { .. }
            | FuseRequest::SetXattr { .. }
            | FuseRequest::RemoveXattr { .. }
            | FuseRequest::Fallocate { .. }
            | FuseRequest::CopyRange { .. } => true,
            FuseRequest::Lookup { .. }
            | FuseRequest::Forget { .. }
            | FuseRequest::GetAttr { .. }
            | FuseRequest::Statx { .. }
            | FuseRequest::ReadLink { .. }
            | FuseRequest::Open { .. }
            | FuseRequest::ReadDir { .. }
            | FuseRequest::GetXattr { .. }
            | FuseRequest::ListXattr { .. }
            | FuseRequest::Seek { .. }
            | FuseRequest::GetLock(_)
            | FuseRequest::SetLock(_)
            | FuseRequest::Flush { .. }
            | FuseRequest::Release { .. }
            | FuseRequest::StatFs
            | FuseRequest::Decline(_) => false,
        }
    }

    /// Returns whether the reply takes a reference on one file.
    pub(super) fn takes_reference(&self) -> bool {
        matches!(
            self,
            FuseRequest::Lookup { .. }
                | FuseRequest::MakeNode { .. }
                | FuseRequest::Create { .. }
                | FuseRequest::Tmpfile { .. }
                | FuseRequest::Symlink { .. }
                | FuseRequest::Link { .. }
        )
    }
}

/// A lock of a file, to be taken, released or asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLock {
    /// The file.
    pub node: NodeId,
    /// The kernel's number of the owner.
    pub owner: u64,
    /// Number in the reply to the open.
    pub open_file: u64,
    /// System call.
    pub interface: LockInterface,
    /// `None` to release.
    pub mode: Option<LockMode>,
    /// Bytes.
    pub range: LockRange,
    /// Process id.
    pub pid: u32,
}

/// An open file, as the kernel is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenedFile {
    /// Repeated by the kernel in later requests. 0 on a mount that keeps no locks.
    pub number: u64,
    /// Use direct I/O.
    pub is_direct: bool,
}

/// A read of data. Separate from [`FuseRequest`], as reads are batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The file.
    pub node: NodeId,
    /// File offset.
    pub offset: u64,
    /// Most bytes to read.
    pub length_bytes: u32,
    /// `O_NOATIME`.
    pub keeps_atime: bool,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Success.
    Done,
    /// No reply is sent.
    Silence,
    /// No such name.
    Absent,
    /// A name's file, with one reference.
    Entry(FuseNode),
    /// A file created and opened, with one reference.
    Created {
        /// The file.
        node: FuseNode,
        /// How it is open.
        opened: OpenedFile,
    },
    /// An opened file.
    Opened(OpenedFile),
    /// A lock that conflicts, or none.
    Lock(Option<Lock>),
    /// Attributes.
    Attr(FuseNode),
    /// Attributes with the birth time.
    Statx(FuseNode),
    /// The value of an extended attribute, a symbolic link, or a listing.
    Data(&'a [u8]),
    /// Bytes written, or copied with a 32-bit count.
    Written(u32),
    /// Bytes copied.
    Copied(u64),
    /// Size of an extended attribute or of their list.
    Room(u32),
    /// Offset found.
    Offset(u64),
    /// Sizes and counts.
    StatFs(StatFs),
    /// An error.
    Error(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the translation is one to one for any root slot. The fileset's own numbers are small,
    /// and differ from those of other filesets.
    #[test]
    fn numbers_are_translated_one_to_one() {
        for slot in [0, 1, 77, (1 << 23) - 2] {
            let numbers = NodeNumbers::new(Ino::root_of_slot(slot));
            assert_eq!(numbers.node_of(Ino::root_of_slot(slot)), ROOT_NODE);
            let mut seen = std::collections::BTreeSet::new();
            for (other, number) in [0, 1, 77, 78, (1 << 23) - 2]
                .into_iter()
                .flat_map(|other| (0..20).chain([(1 << 40) - 1]).map(move |number| (other, number)))
            {
                let ino = Ino(number).in_slot(other);
                let node = numbers.node_of(ino);
                assert_eq!(numbers.ino_of(node), ino);
                assert!(seen.insert(node), "{ino:?} has the node of another");
                assert_eq!(node.0 >> 40 == 0, other == slot, "{ino:?}");
            }
        }
    }
}
