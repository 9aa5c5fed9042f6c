//! A pool as text, read-only: pages and the log (`dump`), and the layers between a name and a byte
//! (`explain`).
//!
//! It reads like the checker, without the engine. Not here: verdicts (`check`).
//!
//! Layers, lowest first: `opened`, `stripe`, `dump`, `explain`.

pub mod dump;
pub mod explain;
mod opened;
mod stripe;

pub use opened::{InspectError, InspectedPool};
