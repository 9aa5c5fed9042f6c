//! The file system, from buffers to vnode operations.

pub mod error;
pub mod vnode;
