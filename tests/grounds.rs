//! What behaviours are run on.

use std::sync::Arc;

use engine::vnode::api::FileSystem;
use storage::clock::ManualClock;
use testkit::canon::{Times, walk};
use testkit::model::Model;
use testkit::torture::{self, ReferenceGround, Wrong};

use crate::Ground;

/// Longer than any resolution of times.
const LATER_NS: u64 = 1_000_000_000;

/// The reference model.
pub fn model(body: impl FnOnce(&mut Ground<'_>)) {
    let clock = Arc::new(ManualClock::new());
    let model = Model::new(clock.clone());
    let pass_time = || clock.advance_ns(LATER_NS);
    let mut ground = Ground::new(&model, &pass_time);
    body(&mut ground);
    ground.close_all();
    walk(&model, Times::Ignored).expect("the tree is sound after the test");
}

/// A ground and the reference, both empty and on one clock.
pub struct Lockstep<'a> {
    /// The reference.
    pub model: &'a dyn FileSystem,
    /// What is compared with it.
    pub fs: &'a dyn FileSystem,
    /// The clock of both.
    pub clock: &'a ManualClock,
}

/// Makes an empty file system and the reference, and calls back with both.
pub type LockstepGround = fn(&mut dyn FnMut(Lockstep<'_>));

/// What is compared with the reference, step by step; one line each.
pub const LOCKSTEP_GROUNDS: &[(&str, LockstepGround)] = &[("model", model_in_lockstep)];

/// The reference against itself: tells whether the comparison is fair.
fn model_in_lockstep(body: &mut dyn FnMut(Lockstep<'_>)) {
    let clock = Arc::new(ManualClock::new());
    let (model, fs) = (Model::new(clock.clone()), Model::new(clock.clone()));
    body(Lockstep { model: &model, fs: &fs, clock: &clock });
}

/// Makes what is tortured.
pub type TortureGround = fn() -> Box<dyn torture::Ground>;

/// What is tortured; one line each.
pub const TORTURE_GROUNDS: &[(&str, TortureGround)] =
    &[("reference", || Box::new(ReferenceGround::new(Wrong::Nothing)))];
