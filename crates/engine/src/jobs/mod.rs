//! Jobs: work in steps that nobody waits for, beside the operations on files and above them.
//!
//! A [`Job`] does a bounded step each time it is asked. [`Jobs`] asks, from `Pool::tick`:
//!
//! - *Standing jobs*: the flusher, quotas, deferred frees, discards, the cleaner, the weigher. Each
//!   once a tick, in this order. What fails of one keeps no other from its step; the first failure
//!   is told when all that is due is done.
//! - *Walks*: what has an end, as a deletion, a scrub, a rebuild. Each in turn, until all wait or
//!   [`TURNS_NS`] have passed; then the tick says when it wants to be asked again, as their paces
//!   have it ([`pace`]). A failure stops this one alone; its status tells.
//!
//! Writers who find no room need the cleaner at once: they reach it through
//! [`Empties`].
//!
//! # Invariants
//!
//! - JO1: Between two steps a job holds no lock and no change: a step that is never followed by
//!   another leaves a pool that is whole.
//! - JO2: A job that must go on after a crash keeps its cursor in the pool, and changes it in the
//!   transaction that does the work up to there. The open adds such a job again. The runner keeps
//!   nothing.
//!
//! # Concurrency
//!
//! The list of walks is locked while it is read or changed, never during a step.

mod cleaner;
mod deferred;
mod deletion;
mod discards;
mod evacuation;
mod flusher;
mod gauge;
pub(crate) mod mended;
mod pace;
mod pieces;
mod quotas;
mod rebuild;
mod reshape;
mod scrub;
mod weigher;

pub(crate) use self::deletion::Deletion;
use self::discards::Discards;
pub(crate) use self::discards::{DiscardCounters, Trim, TrimCounts};
pub use self::discards::{DiscardCounts, DiscardOn, DiscardOptions, TrimError, TrimReport};
use self::evacuation::{Evacuation, Leaving};
pub use self::gauge::{CleanerCounts, CleanerGauge};
use self::pace::Turns;
pub use self::pace::{Pace, Percent};
pub use self::rebuild::RebuildReport;
pub(crate) use self::rebuild::{Rebuild, RebuildCounts};
pub(crate) use self::scrub::{Scrub, ScrubCounts, scrub_lacks};
pub use self::scrub::{ScrubError, ScrubReport};

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use format::reshape::Towards;

use self::cleaner::Cleaner;
use self::deferred::DeferredFrees;
use self::flusher::Flusher;
use self::quotas::QuotaKeeper;
use self::reshape::Reshape;
use self::weigher::Weigher;
use crate::error::{FsError, FsResult};
use crate::sync::Mutex;
use crate::vnode::{Core, Empties};

/// How long walks are asked for more in one tick: what else is due has its turn then.
const TURNS_NS: u64 = 100_000_000;
/// Turns in one tick at most: a clock that stands still must not keep the tick.
const TURNS_MAX: usize = 64;
/// What a step may do: together some tens of milliseconds on a slow disk.
const UNITS_PER_STEP: u32 = 8;

/// Work in steps.
pub(crate) trait Job: Debug + Send + Sync {
    /// Returns what people call it.
    fn name(&self) -> &str;

    /// Does what is due at `now_ns`, and no more than `budget`. Called with no lock held, by one
    /// thread at a time (JO1, JO2).
    fn step(&self, core: &Core, now_ns: u64, budget: Budget) -> FsResult<Step>;

    /// Returns how far it is, if it has an end.
    fn progress(&self, _core: &Core) -> Option<JobProgress> {
        None
    }
}

/// What a step may do at most. The cleaner has a bound of its own, in segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Transactions, or reads of some hundred KiB: each takes about as long as one of the other.
    pub(crate) units: u32,
}

/// What a job says after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing more is due until the next tick.
    Wait,
    /// There is more to do now.
    Again,
    /// It has ended, and what it kept in the pool is gone.
    Done,
}

/// How far a job is, in units of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobProgress {
    /// Done so far, since it began: before this mount too.
    pub done: u64,
    /// What will have been done at the end, as known by now.
    pub total: u64,
}

/// A job that has an end, as `status` tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Number of this job since the mount.
    pub id: u64,
    /// What people call it.
    pub name: String,
    /// How far it is.
    pub progress: Option<JobProgress>,
    /// In how many nanoseconds it ends if it goes on as it has; `None`: nobody knows.
    pub ends_in_ns: Option<u64>,
    /// Whether somebody has told it to pause.
    pub is_paused: bool,
    /// How much of the time it works.
    pub pace: Pace,
    /// Why it has stopped, if it has.
    pub failure: Option<String>,
}

/// A job that has an end.
#[derive(Clone, Debug)]
struct Walk {
    id: u64,
    job: Arc<dyn Job>,
    is_paused: bool,
    pace: Pace,
    /// It rests until then.
    rests_until_ns: u64,
    /// Whether it has more to do behind its rest.
    goes_on: bool,
    failure: Option<String>,
    /// How far it was when it was added.
    done_before: u64,
    /// How long it has run since: ticks in which it was neither paused nor at an end.
    ran_ns: u64,
}

impl Walk {
    /// Whether it is neither paused nor stopped.
    fn runs(&self) -> bool {
        !self.is_paused && self.failure.is_none()
    }
}

#[derive(Debug, Default)]
struct Walks {
    list: Vec<Walk>,
    added: u64,
    /// When walks were last given their turns.
    last_ns: Option<u64>,
}

/// The jobs of a pool.
#[derive(Debug)]
pub(crate) struct Jobs {
    cleaner: Arc<Cleaner>,
    deferred_frees: DeferredFrees,
    discards: Discards,
    walks: Mutex<Walks>,
}

impl Jobs {
    /// Returns the jobs of a pool that discards as `discards` says.
    pub(crate) fn new(discards: DiscardOptions) -> Jobs {
        Jobs {
            cleaner: Arc::default(),
            deferred_frees: DeferredFrees::default(),
            discards: Discards::new(discards),
            walks: Mutex::default(),
        }
    }

    /// Returns what counts the discards.
    pub(crate) fn discard_counters(&self) -> &Arc<DiscardCounters> {
        &self.discards.counters
    }

    /// Returns who empties segments for writers.
    pub(crate) fn emptier(&self) -> Arc<dyn Empties> {
        let cleaner: Arc<Cleaner> = Arc::clone(&self.cleaner);
        cleaner
    }

    /// Returns the job that takes a disk group out, which leaves.
    pub(crate) fn evacuation(&self, disk_group: u8) -> Arc<Evacuation> {
        Arc::new(Evacuation::new(Leaving::DiskGroup(disk_group), &self.cleaner))
    }

    /// Returns the job that moves the segments of a disk group which gets a member more, or is to
    /// have one less.
    pub(crate) fn reshape(&self, core: &Core, disk_group: u8, towards: Towards) -> Arc<Reshape> {
        Arc::new(Reshape::new(core, disk_group, towards, &self.cleaner))
    }

    /// Returns what cleaning has cost.
    pub(crate) fn cleaner_gauge(&self, core: &Core) -> CleanerGauge {
        self.cleaner.gauge(core)
    }

    /// Adds a job that has an end. Who adds sees to it that there are few: one of a kind for each
    /// thing that it is done to.
    pub(crate) fn add(&self, core: &Core, job: Arc<dyn Job>) -> u64 {
        let done_before = job.progress(core).unwrap_or_default().done;
        let mut walks = self.walks.lock();
        walks.added += 1;
        let id = walks.added;
        walks.list.push(Walk {
            id,
            job,
            is_paused: false,
            pace: Pace::default(),
            rests_until_ns: 0,
            goes_on: false,
            failure: None,
            done_before,
            ran_ns: 0,
        });
        id
    }

    /// Does what is due. Called a few times a second, with no lock held. Returns in how long walks
    /// want the next call; `None`: in its time.
    pub(crate) fn tick(&self, core: &Core) -> FsResult<Option<Duration>> {
        core.store.journal.check_alive()?;
        let now_ns = core.store.clock.monotonic_ns();
        let standing: [&dyn Job; 6] = [
            &Flusher,
            &QuotaKeeper,
            &self.deferred_frees,
            &self.discards,
            self.cleaner.as_ref(),
            &Weigher,
        ];
        let mut failure = None;
        for job in standing {
            let stepped = job.step(core, now_ns, Budget { units: UNITS_PER_STEP });
            core.store.journal.check_alive()?;
            // A full pool is no reason to stop the clock.
            if let Err(error) = stepped
                && error != FsError::NoSpace
            {
                failure.get_or_insert(error);
            }
        }
        let next_in = self.take_turns(core, now_ns)?.next_in();
        failure.map_or(Ok(next_in), Err)
    }

    /// Gives each walk a step, again and again, until all wait or rest, or the time is over.
    fn take_turns(&self, core: &Core, now_ns: u64) -> FsResult<Turns> {
        let mut turns = Turns::default();
        let mut ready = self.begin_turns(now_ns);
        for _ in 0..TURNS_MAX {
            let (mut again, mut was_asked) = (Vec::new(), false);
            for (id, job, pace) in ready {
                let begun_ns = core.store.clock.monotonic_ns();
                let has_more = self.take_turn(core, (id, job.as_ref()), now_ns)?;
                let ended_ns = core.store.clock.monotonic_ns();
                let worked_ns = ended_ns.saturating_sub(begun_ns);
                // Whoever asked since the last step shared the devices with it, or is about to.
                was_asked |= core.was_asked();
                let is_beside = pace == Pace::Auto && was_asked;
                let rest_ns = pace.rest_ns(worked_ns);
                self.change(id, |walk| {
                    walk.rests_until_ns = ended_ns.saturating_add(rest_ns);
                    walk.goes_on = has_more && rest_ns > 0;
                });
                turns.is_more |= has_more && rest_ns == 0;
                turns.beside_ns += if is_beside { worked_ns } else { 0 };
                if has_more && !is_beside && rest_ns == 0 {
                    again.push((id, job, pace));
                }
            }
            let is_over = core.store.clock.monotonic_ns().saturating_sub(now_ns) >= TURNS_NS;
            if again.is_empty() || is_over {
                break;
            }
            ready = again;
        }
        turns.rests_ns = self.first_rest_ns(core.store.clock.monotonic_ns());
        Ok(turns)
    }

    /// Gives a walk a step. Returns whether it has more to do now.
    fn take_turn(&self, core: &Core, (id, job): (u64, &dyn Job), now_ns: u64) -> FsResult<bool> {
        match job.step(core, now_ns, Budget { units: UNITS_PER_STEP }) {
            // Space comes back: what was freed waits for a checkpoint.
            Ok(Step::Wait) | Err(FsError::NoSpace) => Ok(false),
            Ok(Step::Again) => Ok(true),
            Ok(Step::Done) => {
                self.walks.lock().list.retain(|walk| walk.id != id);
                Ok(false)
            }
            Err(error) => {
                core.store.journal.check_alive()?;
                self.note_failure(id, &error);
                Ok(false)
            }
        }
    }

    /// Returns the walks that take turns now, and counts the time since the last for them.
    fn begin_turns(&self, now_ns: u64) -> Vec<(u64, Arc<dyn Job>, Pace)> {
        let mut walks = self.walks.lock();
        let passed_ns = walks.last_ns.map_or(0, |last_ns| now_ns.saturating_sub(last_ns));
        walks.last_ns = Some(now_ns);
        let mut ready = Vec::new();
        for walk in walks.list.iter_mut().filter(|walk| walk.runs()) {
            walk.ran_ns += passed_ns;
            if walk.rests_until_ns <= now_ns {
                ready.push((walk.id, Arc::clone(&walk.job), walk.pace));
            }
        }
        ready
    }

    /// Returns in how long the first of those that rest goes on: 0 if its rest is over by now.
    fn first_rest_ns(&self, now_ns: u64) -> Option<u64> {
        let walks = self.walks.lock();
        let resting = walks.list.iter().filter(|walk| walk.runs() && walk.goes_on);
        resting.map(|walk| walk.rests_until_ns.saturating_sub(now_ns)).min()
    }

    fn note_failure(&self, id: u64, error: &FsError) {
        self.change(id, |walk| {
            tracing::warn!(%error, job = walk.job.name(), "a job has stopped");
            walk.failure = Some(error.to_string());
        });
    }

    /// Changes what is kept of a walk. Returns whether there is such a one.
    fn change(&self, id: u64, change: impl FnOnce(&mut Walk)) -> bool {
        let mut walks = self.walks.lock();
        walks.list.iter_mut().find(|walk| walk.id == id).map(change).is_some()
    }

    /// Makes a job pause, or go on: also one that has failed. Returns whether there is such a job.
    pub(crate) fn pause(&self, id: u64, is_paused: bool) -> bool {
        self.change(id, |walk| {
            walk.is_paused = is_paused;
            walk.failure = walk.failure.take().filter(|_| is_paused);
        })
    }

    /// Sets how much of the time a job works, from its next step on. Returns whether there is
    /// such a job.
    pub(crate) fn set_pace(&self, id: u64, pace: Pace) -> bool {
        self.change(id, |walk| (walk.pace, walk.rests_until_ns) = (pace, 0))
    }

    /// Returns the jobs that have an end, oldest first.
    pub(crate) fn status(&self, core: &Core) -> Vec<JobStatus> {
        let tell = |walk: &Walk| {
            let progress = walk.job.progress(core);
            JobStatus {
                id: walk.id,
                name: walk.job.name().to_owned(),
                progress,
                ends_in_ns: progress.and_then(|at| ends_in_ns(at, walk.done_before, walk.ran_ns)),
                is_paused: walk.is_paused,
                pace: walk.pace,
                failure: walk.failure.clone(),
            }
        };
        let walks = self.walks.lock().list.clone();
        walks.iter().map(tell).collect()
    }
}

/// Returns how long a job still takes that was at `done_before` when it had run for no time.
fn ends_in_ns(at: JobProgress, done_before: u64, ran_ns: u64) -> Option<u64> {
    let done = u128::from(at.done.checked_sub(done_before)?);
    let left = u128::from(at.total.saturating_sub(at.done));
    u64::try_from((left * u128::from(ran_ns)).checked_div(done)?).ok()
}

#[cfg(test)]
mod tests;
