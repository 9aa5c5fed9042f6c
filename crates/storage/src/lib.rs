//! Block storage that survives the loss of a device. Has no notion of files.
//!
//! Layers, lowest first: `convert`, `parity`, `device`, `members`, `pool`, `volume`, `heartbeat`.

mod convert;
pub mod device;
pub mod heartbeat;
pub mod members;
pub mod parity;
pub mod pool;
pub mod volume;

pub use device::counters;
