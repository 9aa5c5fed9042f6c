//! Operations as values: histories that can be made by chance, applied to any implementation,
//! compared step by step, printed, shortened and replayed.
//!
//! A [`Step`] is one operation and who does it. It speaks of paths and slots, never of inode
//! numbers, so one history means the same on every implementation, and most of it still means
//! something when steps before are left out. One step is one line of text ([`Step`] and its
//! `Display` and `FromStr`), so a history is a file that a person can read and edit.
//!
//! A *slot* keeps a reference on an inode while it is open, as a program keeps a descriptor: what
//! it holds stays readable after its last name is gone.
//!
//! Not here: whether what survives a crash is right ([`crate::crash`]).

mod acl;
mod apply;
mod generate;
mod lockstep;
mod shrink;
#[cfg(test)]
mod tests;
mod text;

pub use acl::{AclEntry, AclText};
pub use apply::{Applied, Outcome, Session, sync, sync_as_told};
pub use generate::{Generator, NAMES_DEFAULT, Profile, Weights};
pub use lockstep::{Divergence, LockstepOptions, places_of, run_lockstep};
pub use shrink::{SHRINK_TRIES_MAX, drop_runs, shrink};
pub use text::{ParseError, history_from_text, history_to_text};

use engine::api::{Caller, Fallocate, FileKind, RenameMode, Seek, SetTime, XattrMode};
use runtime::prng::Prng;

/// How many slots a session has.
pub const SLOTS: usize = 8;
/// The group that every checked caller of a history belongs to, besides its own.
pub const COMMON_GID: u32 = 100;

/// Names from the root down; none: the root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route(pub Vec<Vec<u8>>);

impl Route {
    /// Returns the route of `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Route {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        Route(names)
    }

    /// Returns the directory and the name in it; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(&[Vec<u8>], &[u8])> {
        self.0.split_last().map(|(name, parents)| (parents, name.as_slice()))
    }
}

/// An inode that an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// What the route names.
    At(Route),
    /// What the slot holds.
    Slot(usize),
}

impl Place {
    fn route_mut(&mut self) -> Option<&mut Route> {
        match self {
            Place::At(route) => Some(route),
            Place::Slot(_) => None,
        }
    }
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a file, directory or special file.
    Create {
        /// Its first name.
        at: Route,
        /// What sort of file.
        kind: FileKind,
        /// Permission bits.
        mode: u16,
    },
    /// Makes a symbolic link.
    Symlink {
        /// Its first name.
        at: Route,
        /// Where it leads.
        target: Vec<u8>,
    },
    /// Gives a file one more name.
    Link {
        /// The file.
        file: Place,
        /// The name.
        at: Route,
    },
    /// Removes a name of a file.
    Unlink {
        /// The name.
        at: Route,
    },
    /// Removes a directory.
    Rmdir {
        /// The name.
        at: Route,
    },
    /// Moves a name.
    Rename {
        /// From here.
        source: Route,
        /// To here.
        target: Route,
        /// What becomes of a target that is there.
        mode: RenameMode,
    },
    /// Takes a reference into a slot, and gives back what was there.
    Open {
        /// The slot.
        slot: usize,
        /// What to hold.
        at: Route,
    },
    /// Makes a file without a name (`O_TMPFILE`) into a slot, and gives back what was there.
    Nameless {
        /// The slot.
        slot: usize,
        /// The directory that it could get a name in.
        directory: Route,
        /// Permission bits.
        mode: u16,
    },
    /// Gives back what a slot holds.
    Close {
        /// The slot.
        slot: usize,
    },
    /// Writes bytes that are a function of `fill`.
    Write {
        /// The file.
        file: Place,
        /// First byte.
        offset: u64,
        /// How many.
        length: usize,
        /// Which bytes: see [`bytes_of`].
        fill: u32,
    },
    /// Reads bytes.
    Read {
        /// The file.
        file: Place,
        /// First byte.
        offset: u64,
        /// How many.
        length: usize,
    },
    /// Sets the size.
    Truncate {
        /// The file.
        file: Place,
        /// Its new size.
        size_bytes: u64,
    },
    /// Sets permission bits.
    SetMode {
        /// The inode.
        file: Place,
        /// The bits.
        mode: u16,
    },
    /// Sets owner and group.
    SetOwner {
        /// The inode.
        file: Place,
        /// Owner.
        uid: Option<u32>,
        /// Group.
        gid: Option<u32>,
    },
    /// Gives to a project.
    SetProject {
        /// The inode.
        file: Place,
        /// The project; 0: none.
        project: u32,
    },
    /// Sets times.
    SetTimes {
        /// The inode.
        file: Place,
        /// Access time.
        atime: Option<SetTime>,
        /// Modification time.
        mtime: Option<SetTime>,
    },
    /// Asks for attributes.
    GetAttr {
        /// The inode.
        file: Place,
    },
    /// Asks where a symbolic link leads.
    ReadLink {
        /// The link.
        file: Place,
    },
    /// Lists a directory.
    List {
        /// The directory.
        directory: Place,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The inode.
        file: Place,
        /// Name of the attribute.
        name: Vec<u8>,
        /// Bytes of the value: see [`bytes_of`].
        length: usize,
        /// Which bytes.
        fill: u32,
        /// Whether it must be there, or must not.
        mode: XattrMode,
    },
    /// Sets an access list.
    SetAcl {
        /// The inode.
        file: Place,
        /// Whether it is the list that a directory hands down.
        is_default: bool,
        /// The list.
        list: AclText,
    },
    /// Asks for the value of an extended attribute.
    GetXattr {
        /// The inode.
        file: Place,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// Asks for the names of extended attributes.
    ListXattr {
        /// The inode.
        file: Place,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        file: Place,
        /// Name of the attribute.
        name: Vec<u8>,
    },
    /// Makes a hole or zeros, or asks for what is refused.
    Fallocate {
        /// The file.
        file: Place,
        /// First byte.
        offset: u64,
        /// How many.
        length: u64,
        /// What to do there.
        mode: Fallocate,
    },
    /// Looks for data or a hole.
    Seek {
        /// The file.
        file: Place,
        /// From here on.
        offset: u64,
        /// What to look for.
        what: Seek,
    },
    /// Copies bytes inside the server.
    Copy {
        /// From this file.
        source: Place,
        /// Its first byte.
        from: u64,
        /// To this file.
        target: Place,
        /// Its first byte.
        to: u64,
        /// How many.
        length: u64,
    },
    /// Makes an inode durable.
    Fsync {
        /// The inode.
        file: Place,
        /// Whether only its content matters.
        data_only: bool,
    },
    /// Makes everything durable.
    Sync,
}

impl Op {
    /// Returns every route that the operation names.
    fn routes_mut(&mut self) -> Vec<&mut Route> {
        let (first, second) = match self {
            Op::Create { at, .. }
            | Op::Symlink { at, .. }
            | Op::Unlink { at }
            | Op::Rmdir { at }
            | Op::Nameless { directory: at, .. }
            | Op::Open { at, .. } => (Some(at), None),
            Op::Link { file: Place::At(file), at } => (Some(file), Some(at)),
            Op::Link { file: Place::Slot(_), at } => (Some(at), None),
            Op::Rename { source, target, .. } => (Some(source), Some(target)),
            Op::Write { file, .. }
            | Op::Read { file, .. }
            | Op::Truncate { file, .. }
            | Op::SetMode { file, .. }
            | Op::SetOwner { file, .. }
            | Op::SetProject { file, .. }
            | Op::SetTimes { file, .. }
            | Op::GetAttr { file }
            | Op::ReadLink { file }
            | Op::SetXattr { file, .. }
            | Op::SetAcl { file, .. }
            | Op::GetXattr { file, .. }
            | Op::ListXattr { file }
            | Op::RemoveXattr { file, .. }
            | Op::List { directory: file }
            | Op::Fallocate { file, .. }
            | Op::Seek { file, .. }
            | Op::Fsync { file, .. } => match file {
                Place::At(route) => (Some(route), None),
                Place::Slot(_) => (None, None),
            },
            Op::Copy { source, target, .. } => {
                return [source, target].into_iter().filter_map(Place::route_mut).collect();
            }
            Op::Close { .. } | Op::Sync => (None, None),
        };
        first.into_iter().chain(second).collect()
    }

    /// Returns the first name of the inode that the operation makes.
    pub(crate) fn made_at(&self) -> Option<&Route> {
        if let Op::Create { at, .. } | Op::Symlink { at, .. } = self {
            return Some(at);
        }
        if let Op::Rename { source, mode, .. } = self {
            return mode.leaves_whiteout().then_some(source);
        }
        None
    }

    /// What is reached by the first route without this step is reached by the second after it:
    /// so it is with links and renames, and with directories that need not be.
    fn as_detour(&self) -> Option<(Route, Route)> {
        if let Op::Link { file: Place::At(earlier), at } = self {
            return Some((earlier.clone(), at.clone()));
        }
        if let Op::Rename { source, target, .. } = self {
            return Some((source.clone(), target.clone()));
        }
        if let Op::Create { at, kind: FileKind::Directory, .. } = self {
            return at.split().map(|(parents, _)| (Route(parents.to_vec()), at.clone()));
        }
        None
    }
}

/// One operation, and who does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who: 0 is a superuser whom nobody checks, others are checked.
    pub uid: u32,
    /// What.
    pub op: Op,
}

impl Step {
    /// A step of the superuser.
    #[must_use]
    pub fn root(op: Op) -> Step {
        Step { uid: 0, op }
    }

    /// Returns the caller this step is done as.
    #[must_use]
    pub fn caller(&self) -> Caller {
        if self.uid == 0 {
            return Caller::root();
        }
        Caller::checked(self.uid, self.uid, vec![COMMON_GID])
    }
}

/// The fill of a write of zeros.
pub const FILL_ZEROS: u32 = u32::MAX;
/// One bit of each byte.
const NO_BYTE_ZERO: u64 = 0x0101_0101_0101_0101;

/// Returns the `length` bytes that a write with `fill` writes; none of them is zero, so that a
/// hole is never taken for what was written, unless `fill` is [`FILL_ZEROS`].
#[must_use]
pub fn bytes_of(fill: u32, length: usize) -> Vec<u8> {
    if fill == FILL_ZEROS {
        return vec![0; length];
    }
    let mut random = Prng::from_seed(u64::from(fill));
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&(random.next_u64() | NO_BYTE_ZERO).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
