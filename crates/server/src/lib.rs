//! Server of pools: mounts, exports, schedules, HTTP and notices. Commands also use the crate to
//! find a running server, or to open a pool without one.
//!
//! Layers, lowest first: `run_directory`, `patience`, `until`, `messages`, `places`, `events`,
//! `bugs`, `peer`, `named`, `named_device`, `facts`, `holders`, `copies`, `backend`, `neighbours`,
//! `tree`, `wiring`, `uses`, `mount_spec`, `roles`, `mounts`, `transfer`, `status`, `hub`,
//! `pool_names`.

pub mod backend;
pub mod bugs;
pub mod copies;
pub mod events;
pub mod facts;
pub mod holders;
pub mod hub;
mod messages;
mod mount_spec;
pub mod mounts;
pub mod named;
pub mod named_device;
mod neighbours;
pub mod patience;
pub mod peer;
pub mod places;
pub mod pool_names;
pub mod roles;
pub mod run_directory;
pub mod status;
pub mod transfer;
pub mod tree;
pub mod until;
pub mod uses;
pub mod wiring;
