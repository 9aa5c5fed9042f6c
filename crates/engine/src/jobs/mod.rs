//! Jobs: background work in steps, above the operations on files.
//!
//! A [`Job`] does a bounded amount of work per step. [`JobRunner`] runs steps from `Pool::tick`:
//!
//! - *Standing jobs*: the flusher, quotas, deferred frees, discards, the cleaner, the weigher. Each
//!   does one step per tick, in this order. A failure does not stop the others, and the tick
//!   returns the first failure.
//! - *Walks*: jobs with an end, such as a deletion, a scrub, a rebuild. They take turns until all
//!   wait or [`TURNS_NS`] have passed. The tick then returns the time until the next call,
//!   according to their paces ([`pace`]). A failure stops only its own walk, whose status shows the
//!   reason.
//!
//! Writers without space call the cleaner directly, through [`SegmentReclaimer`].
//!
//! # Invariants
//!
//! - JO1: Between two steps a job holds no lock and no change. If the next step never comes, the
//!   pool is still consistent.
//! - JO2: A job that must resume after a crash keeps its cursor in the pool, and advances it in the
//!   transaction of the work. The open adds such a job again. The runner keeps no durable state.
//!
//! # Concurrency
//!
//! The lock of the list of walks is held to read or change the list, never during a step.

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
use self::discards::DiscardJob;
pub(crate) use self::discards::{DiscardCounters, Trim, TrimCounts};
pub use self::discards::{DiscardCounts, DiscardOptions, DiscardScope, TrimError, TrimReport};
use self::evacuation::{Evacuation, EvacuationScope};
pub use self::gauge::{CleanerCounts, CleanerGauge};
use self::pace::TickOutcome;
pub use self::pace::{Pace, Percent};
pub use self::rebuild::RebuildReport;
pub(crate) use self::rebuild::{Rebuild, RebuildCounts};
pub(crate) use self::scrub::{Scrub, ScrubCounts, scrub_lacks};
pub use self::scrub::{ScrubError, ScrubReport};

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use format::reshape::ReshapeDirection;

use self::cleaner::Cleaner;
use self::deferred::DeferredFrees;
use self::flusher::Flusher;
use self::quotas::QuotaCountJob;
use self::reshape::ReshapeJob;
use self::weigher::Weigher;
use crate::error::{FsError, FsResult};
use crate::file::{Core, SegmentReclaimer};
use crate::sync::Mutex;

const TURNS_NS: u64 = 100_000_000;
/// Most rounds of turns per tick, in case the clock stands still.
const TURNS_MAX: usize = 64;
/// Budget of a step: some tens of milliseconds on a slow disk.
const UNITS_PER_STEP: u32 = 8;

pub(crate) trait Job: Debug + Send + Sync {
    fn name(&self) -> &str;

    /// Does the work due at `now_ns`, within `budget`. Called by one thread at a time, without
    /// locks (JO1, JO2).
    fn step(&self, core: &Core, now_ns: u64, budget: StepBudget) -> FsResult<StepOutcome>;

    fn progress(&self, _core: &Core) -> Option<JobProgress> {
        None
    }
}

/// Bound of a step. The cleaner has its own, in segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepBudget {
    /// Transactions, or reads of some hundred KiB, which take about as long.
    pub(crate) units: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// Nothing more to do until the next tick.
    Wait,
    /// More to do now.
    Again,
    /// The job has ended, and its state in the pool is removed.
    Done,
}

/// Progress of a job, in units of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobProgress {
    /// Work done since the job began, earlier mounts included.
    pub done: u64,
    /// Expected total work.
    pub total: u64,
}

/// Status of a walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Number of the job since the mount.
    pub id: u64,
    /// Name of the job.
    pub name: String,
    /// Progress.
    pub progress: Option<JobProgress>,
    /// Estimated nanoseconds until the end. `None` if unknown.
    pub ends_in_ns: Option<u64>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// Share of the time.
    pub pace: Pace,
    /// Why the job has stopped. `None` while it runs or waits.
    pub failure: Option<String>,
}

#[derive(Clone, Debug)]
struct WalkJob {
    id: u64,
    job: Arc<dyn Job>,
    is_paused: bool,
    pace: Pace,
    rests_until_ns: u64,
    goes_on: bool,
    failure: Option<String>,
    done_before: u64,
    /// Running time since it was added, without pauses and failures.
    ran_ns: u64,
}

impl WalkJob {
    fn runs(&self) -> bool {
        !self.is_paused && self.failure.is_none()
    }
}

#[derive(Debug, Default)]
struct WalkList {
    list: Vec<WalkJob>,
    added: u64,
    last_ns: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct JobRunner {
    cleaner: Arc<Cleaner>,
    deferred_frees: DeferredFrees,
    discards: DiscardJob,
    walks: Mutex<WalkList>,
}

impl JobRunner {
    pub(crate) fn new(discards: DiscardOptions) -> JobRunner {
        JobRunner {
            cleaner: Arc::default(),
            deferred_frees: DeferredFrees::default(),
            discards: DiscardJob::new(discards),
            walks: Mutex::default(),
        }
    }

    pub(crate) fn discard_counters(&self) -> &Arc<DiscardCounters> {
        &self.discards.counters
    }

    /// Returns the cleaner, for writers without space.
    pub(crate) fn emptier(&self) -> Arc<dyn SegmentReclaimer> {
        let cleaner: Arc<Cleaner> = Arc::clone(&self.cleaner);
        cleaner
    }

    pub(crate) fn evacuation(&self, disk_group: u8) -> Arc<Evacuation> {
        Arc::new(Evacuation::new(EvacuationScope::DiskGroup(disk_group), &self.cleaner))
    }

    pub(crate) fn reshape(
        &self,
        core: &Core,
        disk_group: u8,
        towards: ReshapeDirection,
    ) -> Arc<ReshapeJob> {
        Arc::new(ReshapeJob::new(core, disk_group, towards, &self.cleaner))
    }

    pub(crate) fn cleaner_gauge(&self, core: &Core) -> CleanerGauge {
        self.cleaner.gauge(core)
    }

    /// Adds a walk. The caller adds one of a kind for each object.
    pub(crate) fn add(&self, core: &Core, job: Arc<dyn Job>) -> u64 {
        let done_before = job.progress(core).unwrap_or_default().done;
        let mut walks = self.walks.lock();
        walks.added += 1;
        let id = walks.added;
        walks.list.push(WalkJob {
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

    /// Runs due work, a few times a second, without locks. Returns the time until the next tick
    /// that the walks need, or `None` for the usual time.
    pub(crate) fn tick(&self, core: &Core) -> FsResult<Option<Duration>> {
        core.store.journal.check_alive()?;
        let now_ns = core.store.clock.monotonic_ns();
        let standing: [&dyn Job; 6] = [
            &Flusher,
            &QuotaCountJob,
            &self.deferred_frees,
            &self.discards,
            self.cleaner.as_ref(),
            &Weigher,
        ];
        let mut failure = None;
        for job in standing {
            let stepped = job.step(core, now_ns, StepBudget { units: UNITS_PER_STEP });
            core.store.journal.check_alive()?;
            if let Err(error) = stepped
                && error != FsError::NoSpace
            {
                failure.get_or_insert(error);
            }
        }
        let next_in = self.take_turns(core, now_ns)?.next_in();
        failure.map_or(Ok(next_in), Err)
    }

    fn take_turns(&self, core: &Core, now_ns: u64) -> FsResult<TickOutcome> {
        let mut turns = TickOutcome::default();
        let mut ready = self.begin_turns(now_ns);
        for _ in 0..TURNS_MAX {
            let (mut again, mut was_asked) = (Vec::new(), false);
            for (id, job, pace) in ready {
                let begun_ns = core.store.clock.monotonic_ns();
                let has_more = self.take_turn(core, (id, job.as_ref()), now_ns)?;
                let ended_ns = core.store.clock.monotonic_ns();
                let worked_ns = ended_ns.saturating_sub(begun_ns);
                // The step had to share the devices with any request since the last step.
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

    fn take_turn(&self, core: &Core, (id, job): (u64, &dyn Job), now_ns: u64) -> FsResult<bool> {
        match job.step(core, now_ns, StepBudget { units: UNITS_PER_STEP }) {
            // Without space the job waits for a checkpoint to release deferred frees.
            Ok(StepOutcome::Wait) | Err(FsError::NoSpace) => Ok(false),
            Ok(StepOutcome::Again) => Ok(true),
            Ok(StepOutcome::Done) => {
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

    fn change(&self, id: u64, change: impl FnOnce(&mut WalkJob)) -> bool {
        let mut walks = self.walks.lock();
        walks.list.iter_mut().find(|walk| walk.id == id).map(change).is_some()
    }

    /// Pauses or resumes a job, a failed one included. Returns whether it exists.
    pub(crate) fn pause(&self, id: u64, is_paused: bool) -> bool {
        self.change(id, |walk| {
            walk.is_paused = is_paused;
            walk.failure = walk.failure.take().filter(|_| is_paused);
        })
    }

    pub(crate) fn set_pace(&self, id: u64, pace: Pace) -> bool {
        self.change(id, |walk| (walk.pace, walk.rests_until_ns) = (pace, 0))
    }

    pub(crate) fn status(&self, core: &Core) -> Vec<JobStatus> {
        let tell = |walk: &WalkJob| {
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

fn ends_in_ns(at: JobProgress, done_before: u64, ran_ns: u64) -> Option<u64> {
    let done = u128::from(at.done.checked_sub(done_before)?);
    let left = u128::from(at.total.saturating_sub(at.done));
    u64::try_from((left * u128::from(ran_ns)).checked_div(done)?).ok()
}

#[cfg(test)]
mod tests;
