//! Blocks that outlive a device. Knows no files.
//!
//! Layers, lowest first: [`device`] with its [`counters`], [`volume`], [`pool`].

mod convert;
pub mod counters;
pub mod device;
pub mod heartbeat;
pub mod pool;
pub mod volume;
