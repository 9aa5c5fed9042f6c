//! Protocols to vnode operations and back; nothing else.
//!
//! A front holds no state that a crash may lose, and sees nothing below
//! [`engine::api::FileSystem`]. So any front may stop at any moment, and any client's handle
//! means the same after a restart.
//!
//! Layers, lowest first: `failure`, `log_limit`, `counts`, `peer`, `relay`, `locks`, `shared`,
//! `watch`, `fuse`, `nfs`.

pub mod counts;
mod failure;
pub mod fuse;
pub mod locks;
pub mod log_limit;
pub mod nfs;
pub mod peer;
pub mod relay;
pub mod shared;
pub mod watch;
