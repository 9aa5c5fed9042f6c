//! The FUSE front: a mounted directory whose files are a [`FileSystem`].
//!
//! ```text
//!   kernel <-> transport <-> server <-> engine::vnode::api::FileSystem
//!              (`kernel`:    (`server`: what each request means)
//!               /dev/fuse;
//!               or a test's)
//! ```
//!
//! `protocol` has the words that transport and server share; it knows no bytes of the protocol.
//! `mount` puts a directory's files under the kernel and takes them away again; `mountpoint` looks
//! at what is mounted; `run` waits for the end.
//!
//! # What the kernel is promised
//!
//! - FU1: Only requests through this mount change what it shows, if it is alone. So the kernel may
//!   keep names, attributes, symbolic links and data for as long as it likes, and no open needs a
//!   round trip.
//! - FU2: A node id is an inode number and means the same after every restart.
//! - FU3: Each entry in a reply is one reference on the inode, given back by FORGET.
//! - FU4: The kernel has checked permissions (`default_permissions`), and applied the umask unless
//!   the file system has access lists.
//! - FU5: Attributes that the kernel keeps are those that the server would tell. What changes them
//!   is a request after whose answer the kernel asks again for what the request may change. Where
//!   it would not, they are not kept (setuid and setgid of a file, which go with a write; space
//!   that is not known yet), or the kernel is told (the access time of what a copy reads).
//! - FU6: Pages that the kernel keeps are the file. What a direct write, a hole or a copy has
//!   changed it drops behind the answer. Behind the answer to an asynchronous direct write it drops
//!   nothing, though a reader may have brought old pages meanwhile, so none is asynchronous.
//! - FU7: Where others change files too ([`crate::shared`]), the kernel keeps names and attributes
//!   for a second, asks before it opens, and drops its pages then, and when size or time of change
//!   are not those of before. A file that others have changed of late is stale to whoever opens it
//!   first: the kernel then looks up all names on the way to it, and opens what it has found. A
//!   notice that attributes are to be asked for again shortens that second. There are no notices of
//!   names and of pages: the kernel takes locks for them that a request may hold
//!   (docs/decisions/0077-shared-mounts.md).
//! - FU8: A WRITE of pages that the kernel holds (what was written to a mapping, or with a
//!   writeback cache) is answered with its whole count or with an error. The kernel takes the
//!   pages to be written whatever the reply counts, and only an error comes to msync(2) and
//!   fsync(2).
//!
//! # Crashes
//!
//! Nothing is kept here. A mount whose server died answers "Transport endpoint is not connected"
//! until it is detached, which [`mount()`] does by itself.
//!
//! [`FileSystem`]: engine::vnode::api::FileSystem

mod counts;
mod given;
mod kernel;
mod mount;
pub mod mountpoint;
mod options;
pub mod protocol;
mod run;
mod server;
mod small;
mod switches;
mod transport;

pub use counts::FuseCounts;
pub use kernel::exchange::{Exchange, KeptReplies, Replies, ReplyParts};
pub use kernel::inbox::{Apart, Incoming};
pub use kernel::notices::tell_changes;
pub use mount::{Attached, MountError, MountedSession, Unmounted, attach, mount, serve_attached};
pub use options::{
    CpuLatency, DIRECT_IO_MARK, DirectIo, MountOptions, POLL_TIME_DEFAULT, POLL_TIME_MAX,
    THREADS_MAX, TransportChoice, UnknownOption,
};
pub use run::{EndCause, StopSignals, run};
pub use server::{Server, Told};
pub use switches::Remounter;
pub use transport::{Transport, TransportError, TransportUsed};
