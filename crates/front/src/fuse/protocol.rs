//! What a FUSE request asks and what a reply says, in words of our own.
//!
//! Transport and server share these types, and neither sees the other's. They carry what the
//! protocol carries and leave out what this front never uses (file handles, lock owners, open
//! flags): everything is addressed by node id.

use engine::vnode::api::{Attr, FileKind, Ino, RenameMode, SetAttr, StatFs};
use rustix::io::Errno;

/// Number of a file in the protocol. The root is always 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// The root's node id, fixed by the protocol.
pub const ROOT_NODE: NodeId = NodeId(1);

/// Stands, in a listing with attributes, for a file whose attributes cannot be read. The name is
/// still listed; no reference goes with it. No inode has this number (40 bits of anode all set).
pub const UNREADABLE_NODE: NodeId = NodeId(u64::MAX);

/// Translates between node ids and inode numbers.
///
/// The root and the inode whose number is 1 change places, and everything else keeps its number:
/// so each direction is total, one to one, and the same after every restart (F2).
#[derive(Clone, Copy, Debug)]
pub struct NodeNumbers {
    root: Ino,
}

impl NodeNumbers {
    /// Returns the translation for a file system whose root is `root`.
    #[must_use]
    pub fn new(root: Ino) -> NodeNumbers {
        NodeNumbers { root }
    }

    /// Returns the inode that `node` names.
    #[must_use]
    pub fn ino_of(&self, node: NodeId) -> Ino {
        Ino(self.swapped(node.0))
    }

    /// Returns the node id of `ino`.
    #[must_use]
    pub fn node_of(&self, ino: Ino) -> NodeId {
        NodeId(self.swapped(ino.0))
    }

    fn swapped(&self, number: u64) -> u64 {
        if number == ROOT_NODE.0 {
            self.root.0
        } else if number == self.root.0 {
            ROOT_NODE.0
        } else {
            number
        }
    }
}

/// Who sent a request. The kernel has checked what it may do (F4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
}

/// A file in a reply. One reference, where it stands for a name (F3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number in the protocol.
    pub id: NodeId,
    /// Its attributes; the inode number in them is not for the kernel.
    pub attr: Attr,
}

/// One name in a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListedName<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The number of what it names.
    pub id: NodeId,
    /// What sort of file it is.
    pub kind: FileKind,
    /// Where to go on after this name.
    pub cookie: u64,
}

/// Where a listing goes: a transport's reply of bounded size.
pub trait Listing {
    /// Adds a name, or returns `false`, changing nothing, where it does not fit.
    #[must_use]
    fn add(&mut self, name: ListedName<'_>) -> bool;

    /// Adds a name with its attributes, or returns `false` where it does not fit. `None` makes the
    /// kernel look the name up when it needs more: for `.`, `..` and [`UNREADABLE_NODE`].
    #[must_use]
    fn add_with_node(&mut self, name: ListedName<'_>, node: Option<&Node>) -> bool;
}

/// How CREATE treats a name that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateFlags {
    /// `O_EXCL`: refuse it.
    pub is_exclusive: bool,
    /// `O_TRUNC`: empty it.
    pub truncates: bool,
}

/// Operations that this front declines, so that the kernel helps itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// Opening a file or directory: there is no state to open.
    Open,
    /// close(2): nothing is held back that a close could report.
    Flush,
    /// access(2), which `default_permissions` answers.
    Access,
    /// Extended attributes.
    Xattr,
    /// fallocate(2).
    Fallocate,
    /// `SEEK_DATA` and `SEEK_HOLE`: the kernel then takes every file to be data.
    Seek,
    /// copy_file_range(2): the kernel then reads and writes.
    CopyFileRange,
    /// ioctl(2).
    Ioctl,
    /// poll(2): files are always ready.
    Poll,
    /// Locks, which the kernel keeps among its own processes.
    Lock,
    /// Mapping a file block to a device block.
    Bmap,
}

/// One request.
pub enum Request<'a> {
    /// Find a name. Takes a reference.
    Lookup {
        /// The directory; for the name `.`, a file of any kind.
        parent: NodeId,
        /// The name; `.` and `..` are names here.
        name: &'a [u8],
    },
    /// Give references back. Has no reply.
    Forget {
        /// The file.
        node: NodeId,
        /// How many.
        count: u64,
    },
    /// Tell the attributes.
    GetAttr {
        /// The file.
        node: NodeId,
    },
    /// Change attributes.
    SetAttr {
        /// The file.
        node: NodeId,
        /// What to change.
        change: SetAttr,
    },
    /// Tell the target of a symbolic link.
    ReadLink {
        /// The link.
        node: NodeId,
    },
    /// Make a file that is no symbolic link. Takes a reference.
    MakeNode {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// What sort of file.
        kind: FileKind,
        /// Permission bits.
        mode: u16,
        /// Device number.
        rdev: u32,
    },
    /// Make a regular file, unless the name is there, and open it. Takes a reference.
    Create {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// Permission bits.
        mode: u16,
        /// What to do where the name is there.
        flags: CreateFlags,
    },
    /// Make a symbolic link. Takes a reference.
    Symlink {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// Where it points.
        target: &'a [u8],
    },
    /// Give a file one more name. Takes a reference.
    Link {
        /// The file.
        node: NodeId,
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Remove a name that is no directory.
    Unlink {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Remove an empty directory.
    Rmdir {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
    },
    /// Move a name.
    Rename {
        /// The directory and the name it has.
        source: (NodeId, &'a [u8]),
        /// The directory and the name it gets.
        target: (NodeId, &'a [u8]),
        /// What to do where the target is there; `None`: a mode we do not know.
        mode: Option<RenameMode>,
    },
    /// Read data.
    Read {
        /// The file.
        node: NodeId,
        /// From where.
        offset: u64,
        /// How much at most.
        length_bytes: u32,
    },
    /// Write data.
    Write {
        /// The file.
        node: NodeId,
        /// Where.
        offset: u64,
        /// What.
        data: &'a [u8],
    },
    /// List names.
    ReadDir {
        /// The directory.
        node: NodeId,
        /// Go on after this one; 0: from the first.
        cookie: u64,
        /// Whether attributes are wanted too. Then each name but `.` and `..` takes a reference.
        with_nodes: bool,
        /// Where the names go.
        listing: &'a mut dyn Listing,
    },
    /// Make a file or directory durable.
    Fsync {
        /// The file.
        node: NodeId,
        /// Leave out attributes that reading does not need.
        data_only: bool,
    },
    /// Tell sizes and counts.
    StatFs,
    /// Something this front leaves to the kernel.
    Decline(Declined),
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Done; also: send the listing.
    Done,
    /// Nothing is sent: the request has no reply.
    Silence,
    /// A name's file, with one reference.
    Entry(Node),
    /// A name's file, with one reference, made and opened.
    Created(Node),
    /// Attributes.
    Attr(Node),
    /// Bytes read.
    Data(&'a [u8]),
    /// How many bytes were written.
    Written(u32),
    /// Sizes and counts.
    StatFs(StatFs),
    /// Refused or failed.
    Error(Errno),
}
