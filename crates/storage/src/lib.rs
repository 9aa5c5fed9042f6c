//! Blocks that outlive a device. Knows no files.
//!
//! Layers, lowest first: [`sync`] and [`clock`] (what a run is made of), [`device`].

pub mod clock;
pub mod device;
pub mod pool;
pub mod prng;
pub mod sync;
pub mod volume;
