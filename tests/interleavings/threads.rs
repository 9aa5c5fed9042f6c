//! Threads of the simulator: the seed hands the baton on.

use std::sync::Arc;

use runtime::sync::sim::{Scheduler, SimThreadTask};
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};

/// Programs, or orders of one program, in one run of a test.
const PROGRAMS: u64 = 1000;

/// What a thread does.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Who goes on.
pub(crate) struct Threads(Arc<Scheduler>);

/// Returns how many programs, or orders of one program, to run.
pub(crate) fn programs() -> u64 {
    PROGRAMS
}

/// Calls `judge` for the order that `seed` chooses.
pub(crate) fn explore(seed: u64, judge: impl Fn(&Threads)) {
    judge(&Threads(Scheduler::new(seed)));
}

impl Threads {
    /// Returns a device of `size_bytes`, each request to which is a point where others may go on.
    pub(crate) fn device(&self, size_bytes: u64) -> SharedDevice {
        let seed = self.0.seed();
        let has_write_through = seed.is_multiple_of(2);
        SimDevice::new(size_bytes, SimOptions { seed, has_write_through, ..SimOptions::default() })
    }

    /// Lets each of `works` be a thread, to their ends.
    pub(crate) fn run(&self, works: Vec<Work>) {
        let job = |(nth, work)| (format!("thread {nth}"), work);
        let jobs: Vec<SimThreadTask<'_>> = works.into_iter().enumerate().map(job).collect();
        self.0.run(jobs);
    }
}
