//! The FUSE front, without a kernel and with one, and threads of the NFS front.

// A test may name the answers it expects and take the rest as a failure.
#![allow(clippy::wildcard_enum_match_arm)]

mod acting;
mod memory_fs;
mod mounted;
mod nfs_threads;
mod shared;
mod transport;
mod wire;
