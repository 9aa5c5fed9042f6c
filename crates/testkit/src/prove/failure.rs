//! Every request of a workload, and every need of space, failing in turn.
//!
//! A workload runs with its n-th read, write, flush or need of space refused, that one or it and
//! all after it, for every n until nothing is left to refuse. Then, with the device well again,
//! what it holds is judged: all of what was written, what was durable alone, and one state between.
//!
//! # What is asked
//!
//! - An operation is refused only after something failed, with an error that says so.
//! - What was refused did not happen; of a chain (a write, a truncation), and of the operation that
//!   a pool died of, a part may have. There the workload ends; after any other it goes on.
//! - Nothing acknowledged is lost; what is found is a state that [`crate::crash`] allows; the check
//!   is clean.

use std::fmt;
use std::sync::Arc;

use engine::api::{FsError, FsResult};
use engine::{Pool, Shortage};
use storage::device::RequestKind;
use storage::device::sim::{Fault, FaultEffects, FaultPlan, SimDevice};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A request to the device.
    Request(RequestKind),
    /// A need of space in the pool.
    Space,
}

impl Target {
    /// All that a workload has.
    pub(super) const ALL: [Target; 4] = [
        Target::Request(RequestKind::Read),
        Target::Request(RequestKind::Write),
        Target::Request(RequestKind::Flush),
        Target::Space,
    ];
}

/// One failure, or one and all after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) target: Target,
    /// Which, from 0, since the pool was opened.
    pub(super) nth: u64,
    pub(super) persists: bool,
    /// How much lands of a write that fails.
    pub(super) seed: u64,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.target {
            Target::Request(kind) => kind.to_string(),
            Target::Space => "need of space".to_owned(),
        };
        let end = if self.persists { " and all after it fail" } else { " fails" };
        write!(f, "{what} {}{end}", self.nth)
    }
}

/// A device and a pool that something fails on, once it has begun.
pub(super) struct Failing {
    device: Arc<SimDevice>,
    shortage: Arc<Shortage>,
}

impl Failing {
    pub(super) fn new(device: Arc<SimDevice>) -> Failing {
        Failing { device, shortage: Arc::new(Shortage::default()) }
    }

    /// What the pool is to be opened with.
    pub(super) fn shortage(&self) -> Option<Arc<Shortage>> {
        Some(Arc::clone(&self.shortage))
    }

    pub(super) fn begin(&self, failure: Failure) {
        let Failure { target, nth, persists, seed: _ } = failure;
        match target {
            Target::Request(kind) => {
                self.device.arm(FaultPlan::none().with(Fault::Fail { kind, nth, persists }));
            }
            Target::Space => self.shortage.begin(nth, persists),
        }
    }

    fn is_device_harmed(&self) -> bool {
        self.device.harm() != FaultEffects::default()
    }

    /// Whether anything has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.is_device_harmed() || self.shortage.refused() > 0
    }

    /// Whether the pool takes no changes any more; asked only after something failed.
    pub(super) fn is_pool_dead(&self, pool: &Pool) -> bool {
        self.is_device_harmed() && pool.status().read_only.is_some()
    }

    /// Whether what failed is a reason for this answer. A pool that has died may have placed blocks
    /// that never came to the device, and finds them damaged.
    pub(super) fn excuses(&self, error: &FsError) -> bool {
        let is_of_device = matches!(
            error,
            FsError::Io { .. } | FsError::ReadOnly { .. } | FsError::Corrupt { .. }
        );
        let is_of_space = *error == FsError::NoSpace && self.shortage.refused() > 0;
        is_of_space || is_of_device && self.is_device_harmed()
    }

    /// Leaves out an error that is excused.
    pub(super) fn excused(&self, done: FsResult<()>) -> FsResult<()> {
        match done {
            Err(error) if self.excuses(&error) => Ok(()),
            other => other,
        }
    }
}
