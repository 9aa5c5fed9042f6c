//! What a FUSE request asks and what a reply says, in words of our own.
//!
//! Transport and server share these types, and neither sees the other's. They carry what the
//! protocol carries and leave out what this front never uses (file handles, lock owners, open
//! flags): everything is addressed by node id.

use engine::vnode::api::{
    Attr, Data, Fallocate, FileKind, Ino, RenameMode, Seek, SetAttr, StatFs, XattrMode,
};
use rustix::io::Errno;

/// Number of a file in the protocol. The root is always 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// The root's node id, fixed by the protocol.
pub const ROOT_NODE: NodeId = NodeId(1);

/// Translates between node ids and inode numbers.
///
/// 1. The slot of the mounted fileset and slot 0 change places: what is in the fileset itself has
///    its number there, the same for each snapshot of it, and all else (its `.clones`) a number of
///    more than 40 bits that nothing in it has.
/// 2. The root and the inode whose number is then 1 change places.
///
/// So each direction is total, one to one, and the same after every restart (FU2).
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

/// Who sent a request. The kernel has checked what it may do (FU4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// The thread, as the kernel numbers them; 0: none that it may tell.
    pub thread: u32,
}

/// A file in a reply. One reference, where it stands for a name (FU3).
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
    /// Adds a name, or returns `false`, changing nothing, where it does not fit. In a listing with
    /// attributes `None` makes the kernel look the name up when it needs more: for `.` and `..`,
    /// and for a file whose attributes cannot be read. No reference goes with it.
    #[must_use]
    fn add(&mut self, name: ListedName<'_>, node: Option<&Node>) -> bool;
}

/// What a file is born with, beside its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Permission bits.
    pub mode: u16,
    /// Permission bits to leave out, unless the directory has a default access list; 0 where the
    /// kernel has applied the umask.
    pub umask: u16,
}

/// Operations that this front declines, so that the kernel helps itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declined {
    /// close(2): nothing is held back that a close could report.
    Flush,
    /// access(2), which `default_permissions` answers.
    Access,
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
    /// Tell the attributes and the time of birth.
    Statx {
        /// The file.
        node: NodeId,
    },
    /// Change attributes.
    SetAttr {
        /// The file.
        node: NodeId,
        /// What to change.
        change: SetAttr,
        /// Whether a new size takes setuid and setgid away.
        kills_set_bits: bool,
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
        /// What it is born with.
        new: NewNode,
        /// Device number.
        rdev: u32,
    },
    /// Open a file or directory. A mount that is alone declines, unless it says of which files the
    /// kernel keeps nothing: there is no state to open.
    Open {
        /// The file.
        node: NodeId,
        /// Whether it is a directory.
        is_directory: bool,
    },
    /// Make a regular file and open it, in one. Takes a reference. A mount that is alone declines:
    /// the kernel makes the file and needs no word to open and close it, which is two messages and
    /// not three, and nobody comes in between, for it holds its own lock (FU1).
    Create {
        /// The directory.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// What it is born with.
        new: NewNode,
        /// Whether the name must be free (`O_EXCL`).
        is_exclusive: bool,
    },
    /// Make a regular file without a name, and open it. Takes a reference.
    Tmpfile {
        /// The directory.
        parent: NodeId,
        /// What it is born with.
        new: NewNode,
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
        /// What to do where the target is there.
        mode: RenameMode,
    },
    /// Write data.
    Write {
        /// The file.
        node: NodeId,
        /// Where.
        offset: u64,
        /// What.
        data: Data<'a>,
        /// Whether it takes setuid and setgid away.
        kills_set_bits: bool,
        /// Whether the kernel writes pages back that it holds (FU8).
        is_of_cache: bool,
    },
    /// List names.
    ReadDir {
        /// The directory.
        node: NodeId,
        /// Go on after this one; 0: from the first.
        cookie: u64,
        /// Whether attributes are wanted too. Then each name but `.` and `..` takes a reference.
        with_nodes: bool,
        /// Whether the directory keeps its access time (`O_NOATIME`).
        keeps_atime: bool,
        /// Where the names go.
        listing: &'a mut dyn Listing,
    },
    /// Tell an extended attribute, or with no room its size.
    GetXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
        /// How much at most; 0: tell how much it is.
        room_bytes: u32,
    },
    /// List the names of extended attributes, or with no room the size of the list.
    ListXattr {
        /// The file.
        node: NodeId,
        /// How much at most; 0: tell how much it is.
        room_bytes: u32,
    },
    /// Set an extended attribute.
    SetXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Whether it may be there.
        mode: XattrMode,
        /// Whether the setgid bit goes, as chmod(2) would take it from who is not in the group.
        kills_setgid: bool,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// The file.
        node: NodeId,
        /// The attribute.
        name: &'a [u8],
    },
    /// Take or give back space.
    Fallocate {
        /// The file.
        node: NodeId,
        /// From where.
        offset: u64,
        /// How much.
        length_bytes: u64,
        /// What to do.
        mode: Fallocate,
    },
    /// Find data or a hole.
    Seek {
        /// The file.
        node: NodeId,
        /// From where.
        offset: u64,
        /// What to find.
        what: Seek,
    },
    /// Copy from file to file.
    CopyRange {
        /// The file and where.
        source: (NodeId, u64),
        /// The file and where.
        target: (NodeId, u64),
        /// How much at most.
        length_bytes: u64,
        /// Whether the reply tells 64 bits; else 32.
        is_long: bool,
    },
    /// Tell sizes and counts.
    StatFs,
    /// Something this front leaves to the kernel.
    Decline(Declined),
}

impl Request<'_> {
    /// Returns the files that it asks about. Those of which it gives references back are none.
    pub(super) fn nodes(&self) -> [Option<NodeId>; 2] {
        match self {
            Request::Lookup { parent: node, .. }
            | Request::GetAttr { node }
            | Request::Statx { node }
            | Request::SetAttr { node, .. }
            | Request::ReadLink { node }
            | Request::MakeNode { parent: node, .. }
            | Request::Open { node, .. }
            | Request::Create { parent: node, .. }
            | Request::Tmpfile { parent: node, .. }
            | Request::Symlink { parent: node, .. }
            | Request::Unlink { parent: node, .. }
            | Request::Rmdir { parent: node, .. }
            | Request::Write { node, .. }
            | Request::ReadDir { node, .. }
            | Request::GetXattr { node, .. }
            | Request::ListXattr { node, .. }
            | Request::SetXattr { node, .. }
            | Request::RemoveXattr { node, .. }
            | Request::Fallocate { node, .. }
            | Request::Seek { node, .. } => [Some(*node), None],
            Request::Link { node, parent, .. } => [Some(*node), Some(*parent)],
            Request::Rename { source, target, .. } => [Some(source.0), Some(target.0)],
            Request::CopyRange { source, target, .. } => [Some(source.0), Some(target.0)],
            Request::Forget { .. } | Request::StatFs | Request::Decline(_) => [None, None],
        }
    }

    /// Whether it changes a file or a name.
    pub(super) fn is_change(&self) -> bool {
        match self {
            Request::SetAttr { .. }
            | Request::MakeNode { .. }
            | Request::Create { .. }
            | Request::Tmpfile { .. }
            | Request::Symlink { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::Rmdir { .. }
            | Request::Rename { .. }
            | Request::Write { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::Fallocate { .. }
            | Request::CopyRange { .. } => true,
            Request::Lookup { .. }
            | Request::Forget { .. }
            | Request::GetAttr { .. }
            | Request::Statx { .. }
            | Request::ReadLink { .. }
            | Request::Open { .. }
            | Request::ReadDir { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::Seek { .. }
            | Request::StatFs
            | Request::Decline(_) => false,
        }
    }

    /// Whether its answer takes a reference on one file.
    pub(super) fn takes_reference(&self) -> bool {
        matches!(
            self,
            Request::Lookup { .. }
                | Request::MakeNode { .. }
                | Request::Create { .. }
                | Request::Tmpfile { .. }
                | Request::Symlink { .. }
                | Request::Link { .. }
        )
    }
}

/// A read of data. It is no [`Request`], for it is asked for with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The file.
    pub node: NodeId,
    /// From where.
    pub offset: u64,
    /// How much at most.
    pub length_bytes: u32,
    /// Whether the file keeps its access time (`O_NOATIME`).
    pub keeps_atime: bool,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Done.
    Done,
    /// Nothing is sent: the request has no reply.
    Silence,
    /// There is no file of this name.
    Absent,
    /// A name's file, with one reference.
    Entry(Node),
    /// A file with one reference, made and opened.
    Created {
        /// The file.
        node: Node,
        /// Whether the kernel keeps nothing of it.
        is_direct: bool,
    },
    /// A file is opened.
    Opened {
        /// Whether the kernel keeps nothing of it.
        is_direct: bool,
    },
    /// Attributes.
    Attr(Node),
    /// Attributes with the time of birth.
    Statx(Node),
    /// The value of an extended attribute, a symbolic link, or a listing.
    Data(&'a [u8]),
    /// How many bytes were written, or copied where the reply has 32 bits.
    Written(u32),
    /// How many bytes were copied.
    Copied(u64),
    /// How many bytes an extended attribute or the list of them has.
    Room(u32),
    /// Where what was sought is.
    Offset(u64),
    /// Sizes and counts.
    StatFs(StatFs),
    /// Refused or failed.
    Error(Errno),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers are translated one to one, whatever slot the root is in, and those of its own
    /// fileset are small; those of other filesets are none of them.
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
