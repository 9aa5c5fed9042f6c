//! Blocks that outlive a device. Knows no files.
//!
//! Layers, lowest first: [`sync`], [`clock`] and [`prng`] (what a run is made of), [`device`] with
//! its [`counters`].

pub mod clock;
mod convert;
pub mod counters;
pub mod device;
pub mod heartbeat;
pub mod pool;
pub mod prng;
pub mod sync;
pub mod volume;
