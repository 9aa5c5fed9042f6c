//! Filesets that leave a pool and arrive in one: differences, streams, and moves between pools.

pub(crate) mod diff;
pub(crate) mod leave;
pub(crate) mod receive;
pub(crate) mod send;
