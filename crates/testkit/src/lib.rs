//! What tests of the whole system are made of. Ships nothing.
//!
//! Everything here speaks [`engine::api::FileSystem`] and knows no implementation but the
//! reference [`model`]; only [`torture::PoolGround`] and [`families`] make pools.
//!
//! Layers, lowest first: `number`, `canon`, `model`, `ops`, `crash`, `torture`, `families`,
//! `prove`.

pub mod canon;
pub mod crash;
pub mod families;
pub mod model;
mod number;
pub mod ops;
pub mod prove;
pub mod torture;
