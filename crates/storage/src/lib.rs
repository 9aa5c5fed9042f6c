//! Blocks that outlive a device. Knows no files.
//!
//! Layers, lowest first: [`device`] with its [`counters`], [`volume`], [`pool`]; beside them
//! [`members`], which judges labels.

mod convert;
pub mod counters;
pub mod device;
pub mod heartbeat;
pub mod members;
pub mod parity;
pub mod pool;
pub mod volume;
