//! What a run is made of: [`clock`], chance ([`prng`]), locks ([`sync`], with the scheduler of
//! simulated runs) and the bugs that tests plant ([`planted`]). Knows nothing of Holdfast.

pub mod clock;
pub mod planted;
pub mod prng;
pub mod sync;
