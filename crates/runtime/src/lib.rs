//! Parts of a run, independent of Holdfast: [`clock`], random numbers ([`prng`]), locks and the
//! simulation scheduler ([`sync`]), planted bugs ([`mod@planted`]), views of large types
//! ([`view!`]).
//!
//! Layers, lowest first: `planted`, `view`, `prng`, `sync`, `clock`.

pub mod clock;
pub mod planted;
pub mod prng;
pub mod sync;
pub mod view;
