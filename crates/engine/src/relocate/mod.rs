//! Blocks and pages that change their place on the devices: for the cleaner, for evacuations, and
//! for reshapes.

pub(crate) mod block;
pub(crate) mod pages;
pub(crate) mod shared;
