//! Threads of `shuttle`, which runs each program again and again.
//!
//! Half of the schedules are drawn at random; half change who goes on at few places, by chance
//! (Burckhardt and others, "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs",
//! 2010). One that fails is kept in a file, which it names: `HOLDFAST_SCHEDULE` is that file, to
//! run it again with its `HOLDFAST_SEED`.
//!
//! There is no time here: what waits with a deadline waits without one. So a thread that nobody
//! wakes is a deadlock, which in the simulator its deadline hides.

use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};
use storage::device::{MemoryDevice, SharedDevice};

/// The file of one order of one program, to be run again.
const SCHEDULE: &str = "HOLDFAST_SCHEDULE";
/// Programs, or orders of one program, in one run of a test.
const PROGRAMS: u64 = 60;
/// Orders of each program that are tried, by each way of choosing them.
const SCHEDULES: usize = 20;
/// Changes of who goes on, besides those that waiting forces.
const CHANGES_MAX: usize = 4;
/// The engine keeps pages on the stack.
const STACK_BYTES: usize = 1 << 20;

/// What a thread does.
pub(crate) type Work = Box<dyn FnOnce() + Send>;

/// Who goes on.
pub(crate) struct Threads;

/// Returns how many programs, or orders of one program, to run.
pub(crate) fn programs() -> u64 {
    if std::env::var_os(SCHEDULE).is_some() { 1 } else { PROGRAMS }
}

/// Calls `judge` for each order that is tried of the program of `seed`.
pub(crate) fn explore(seed: u64, judge: impl Fn(&Threads) + Clone + Send + Sync + 'static) {
    if let Ok(schedule) = std::env::var(SCHEDULE) {
        let scheduler = ReplayScheduler::new_from_file(&schedule);
        run(scheduler.unwrap_or_else(|error| panic!("{schedule}: {error}")), judge);
        return;
    }
    run(RandomScheduler::new_from_seed(seed, SCHEDULES), judge.clone());
    run(PctScheduler::new_from_seed(seed, CHANGES_MAX, SCHEDULES), judge);
}

fn run(scheduler: impl Scheduler + 'static, judge: impl Fn(&Threads) + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    let directory = env!("CARGO_TARGET_TMPDIR").into();
    config.failure_persistence = FailurePersistence::File(Some(directory));
    Runner::new(scheduler, config).run(move || judge(&Threads));
}

impl Threads {
    /// Returns a device of `size_bytes`.
    pub(crate) fn device(&self, size_bytes: u64) -> SharedDevice {
        MemoryDevice::new("memory", size_bytes)
    }

    /// Lets each of `works` be a thread, to their ends.
    pub(crate) fn run(&self, works: Vec<Work>) {
        let threads: Vec<_> = works.into_iter().map(shuttle::thread::spawn).collect();
        for thread in threads {
            thread.join().expect("a panic ends the test");
        }
    }
}
