//! The FUSE front: serves a [`FileSystem`] as a mounted directory.
//!
//! ```text
//!   kernel <-> transport <-> server <-> engine::api::FileSystem
//!              (`kernel`:    (`server`: execution of requests)
//!               /dev/fuse;
//!               or a test's)
//! ```
//!
//! `protocol` has the types shared by transport and server, without wire formats. `mount` mounts
//! and unmounts, `mountpoint` inspects mount points, and `run` waits for the end.
//!
//! # Promises to the kernel
//!
//! - FU1: A mount that is not shared is the only source of changes it shows. So the kernel may
//!   cache names, attributes, symbolic links and data without limit, and no open needs a round
//!   trip.
//! - FU2: A node id is an inode number, valid across restarts.
//! - FU3: Each entry in a reply is one reference on the inode, released by FORGET.
//! - FU4: The kernel has checked permissions (`default_permissions`), and has applied the umask
//!   unless the file system has ACLs.
//! - FU5: Cached attributes equal the server's. After each change the kernel refetches the
//!   attributes it expects to change. Others are not cached (setuid and setgid, which a write
//!   clears; block counts before allocation) or are invalidated by a notice (the access time of a
//!   copy's source).
//! - FU6: Cached pages equal the file. After a direct write, a hole or a copy the kernel drops the
//!   affected pages. After an asynchronous direct write it would not, although a reader may have
//!   cached old pages during the write. So no direct write is asynchronous.
//! - FU7: On a shared mount ([`crate::shared`]) the kernel caches names and attributes for a second
//!   and sends every OPEN. It drops pages at open, and when size or mtime have changed. The first
//!   open of a recently changed file gets ESTALE, so that the kernel repeats the path lookup. A
//!   notice (FUSE_NOTIFY) invalidates the attributes of a changed file before the second ends. No
//!   notices invalidate names and pages: for them the kernel takes locks that a request may hold
//!   (docs/decisions/0077-shared-mounts.md).
//! - FU8: A WRITE of cached pages (from a mapping, or with a writeback cache) is answered with its
//!   full count or an error. The kernel marks the pages clean whatever the count, and only an error
//!   reaches msync(2) and fsync(2).
//! - FU9: Locks of a shared mount, of fcntl(2) and flock(2), are in one table with those of the
//!   pool's other shared mounts ([`crate::locks`]). They end with close(2), and with the mount. A
//!   waiting request holds no thread, and a signal ends it. Who gets a lock reads what was written
//!   before its last owner released it: a notice invalidates attributes before the answer. Locks of
//!   other mounts stay in the kernel.
//!
//! # Crashes
//!
//! No state is kept. Without its server a mount fails with "Transport endpoint is not connected"
//! until it is detached, as the next [`mount()`] does.
//!
//! [`FileSystem`]: engine::api::FileSystem

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
pub use kernel::exchange::{CollectedReplies, Exchange, Replies, ReplyParts};
pub use kernel::inbox::{Incoming, MessageData};
pub use kernel::notices::tell_changes;
pub use mount::{
    AttachedMount, MountError, MountedSession, UnmountOutcome, attach, mount, serve_attached,
};
pub use options::{
    CpuLatency, DIRECT_IO_MARK, DirectIo, FuseTransportChoice, MountOptions, POLL_TIME_DEFAULT,
    POLL_TIME_MAX, THREADS_MAX, UnknownOption,
};
pub use run::{EndCause, StopSignals, run};
pub use server::{FuseServer, ReadReceiver};
pub use switches::Remounter;
pub use transport::{FuseTransport, TransportError, TransportUsed};
