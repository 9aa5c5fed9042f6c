//! Torture: clients and jobs at work on one pool, the power cut under them, again and again.
//!
//! A *seed* is one pool. Its lives follow each other: clients and jobs run as threads of a
//! [`runtime::sync::sim::Scheduler`], so that several operations are in flight at one time and the
//! seed alone decides who goes on; the power is cut at a moment of virtual time or at a write; the
//! device keeps what a cut may leave; the pool is opened again, sometimes with a second cut during
//! recovery; [`crate::crash::judge`] and the ground's own check say whether what is there was
//! promised; and the next life begins with it. The same seed gives the same run: see
//! [`SeedReport::trace_hash`].
//!
//! Things besides the power go wrong in some lives: requests fail, the device or the pool runs
//! full, the device lies. `fault_plan.rs` says which answers that excuses.
//!
//! Pools with members have a weak one, to which all of that happens but the power, and some have
//! disk groups that come and go: `members.rs`; `shapes.rs` has the table of pools.
//!
//! Each client works below a directory of its own, and every answer that it gets is compared with
//! the reference.
//!
//! A seed none of whose crashes had two operations in flight says nothing about concurrency:
//! [`Report`] counts it apart.
//!
//! Where snapshots are asked for, they are taken and deleted beside the clients, and segments are
//! emptied; `snapshots.rs` says what each must be.
//!
//! How a pool is made and opened is the [`Ground`]'s: [`PoolGround`] is the engine, and
//! [`ReferenceGround`] tells whether the torture itself is fair.

mod changes;
mod client;
mod events;
mod fault_plan;
mod life;
mod members;
mod pool;
mod reference;
mod shapes;
mod slice;
mod snapshots;
mod survey;
#[cfg(test)]
mod tests;

pub use events::{Event, EventTally, Events};
pub(crate) use fault_plan::{is_chain, is_change, takes_space};
pub use pool::{PoolGround, PoolShape};
pub(crate) use pool::{create_options, open_options};
pub use reference::{ReferenceGround, Wrong};
pub use shapes::{Also, GroupShape, PoolKind, Pools};
pub use snapshots::Snapshots;

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use engine::api::FileSystem;
use runtime::clock::Clock;
use storage::device::SharedDevice;

/// What a pool is opened with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The device, simulated.
    pub device: SharedDevice,
    /// Virtual time.
    pub clock: Arc<dyn Clock>,
    /// Of all that is left to chance in this life.
    pub seed: u64,
    /// The seed of the pool, the same in all its lives: what a ground chooses once.
    pub pool_seed: u64,
}

/// Work that goes on beside the clients: a step with a budget; returns virtual nanoseconds until
/// the next, or `None` when there is nothing left to do in this life.
pub type JobStep = Box<dyn FnMut() -> Option<u64> + Send>;

/// Says whether a pool takes no changes any more, because a device failed.
pub type HasFailed = Box<dyn Fn() -> bool + Send + Sync>;

/// Ends a pool in order; fails where the device does.
pub type Close = Box<dyn Fn() -> Result<(), String>>;

/// How often disk groups came and went.
#[derive(Debug, Default)]
pub struct GroupTally {
    /// Added.
    pub added: AtomicU64,
    /// Removals that were admitted.
    pub leaving: AtomicU64,
    /// Those that came to their end.
    pub gone: AtomicU64,
    /// Additions and removals that were refused.
    pub refused: AtomicU64,
    /// Times that the placement of the root directory was set.
    pub placed: AtomicU64,
    /// Members that were attached to a disk group.
    pub attached: AtomicU64,
    /// Those that were taken out of one.
    pub detached: AtomicU64,
    /// What else happened.
    pub events: Arc<EventTally>,
}

/// A pool that is open. Dropped without an orderly end, unless it was closed: the power is cut.
pub struct Opened {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Whether it has failed.
    pub has_failed: HasFailed,
    /// Ends it.
    pub close: Close,
    /// Its jobs, each with a name for reports.
    pub jobs: Vec<(String, JobStep)>,
    /// Snapshots of the pool. `None` if the run takes none.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// What its jobs do to its disk groups.
    pub groups: Arc<GroupTally>,
}

/// What is tortured.
pub trait Ground: Sync {
    /// Returns the bytes of the device of the pool with this seed; a multiple of 4 KiB.
    fn device_bytes(&self, pool_seed: u64) -> u64;

    /// Returns where on that device the log lies.
    fn log_range(&self, pool_seed: u64) -> Range<u64>;

    /// Whether the pool with this seed has members, of which the ground fails one by itself. Then
    /// nothing else goes wrong but the power.
    fn has_members(&self, _pool_seed: u64) -> bool {
        false
    }

    /// Makes an empty pool on a blank device.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    fn format(&self, start: &Start) -> Result<(), String>;

    /// Opens the pool, after a power cut as after `format`.
    ///
    /// # Errors
    ///
    /// Why not, in words. With the power on that is a finding.
    fn open(&self, start: &Start) -> Result<Opened, String>;

    /// Verifies the whole pool on a device of its own that holds what a synced pool holds, and
    /// returns the defects.
    fn check(&self, start: &Start) -> Vec<String>;
}

/// How much torture.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first seed.
    pub first_seed: u64,
    /// How many, one after the other.
    pub seeds: u64,
    /// Power cuts of each.
    pub crashes: u64,
    /// Most clients at one time; at least two work.
    pub clients_max: u64,
    /// Most operations of a client in one life.
    pub steps_max: u64,
    /// Whether snapshots are taken and deleted beside the clients.
    pub has_snapshots: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            first_seed: 0,
            seeds: 1,
            crashes: 4,
            clients_max: 4,
            steps_max: 150,
            has_snapshots: false,
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which seed.
    pub seed: u64,
    /// In which of its lives, from 0.
    pub life: u64,
    /// Whether snapshots were taken beside the clients.
    pub has_snapshots: bool,
    /// What.
    pub fault: Fault,
}

/// Sorts of findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The pool could not be made or opened.
    Unusable(String),
    /// Something panicked, or no thread could go on.
    Panic(String),
    /// A client got another answer than the reference gives.
    Answer {
        /// Which client.
        client: usize,
        /// What it asked.
        step: String,
        /// What it was told.
        told: String,
        /// What the reference says.
        expected: String,
    },
    /// What survived is none of the promised states.
    Survivor(Vec<String>),
    /// The check found defects.
    Check(Vec<String>),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, life {}: ", self.seed, self.life)?;
        match &self.fault {
            Fault::Unusable(why) => write!(f, "the pool cannot be opened: {why}")?,
            Fault::Panic(why) => write!(f, "panic: {why}")?,
            Fault::Answer { client, step, told, expected } => {
                write!(f, "client {client}, {step}:\n  told {told}\n  not  {expected}")?;
            }
            Fault::Survivor(findings) => {
                f.write_str("what survived was not promised:")?;
                findings.iter().try_for_each(|finding| write!(f, "\n  {finding}"))?;
            }
            Fault::Check(defects) => {
                f.write_str("check finds:")?;
                defects.iter().try_for_each(|defect| write!(f, "\n  {defect}"))?;
            }
        }
        write!(f, "\nreplay: {}", replay_line(self.seed, self.has_snapshots))
    }
}

/// Returns the command that repeats a seed.
#[must_use]
pub fn replay_line(seed: u64, has_snapshots: bool) -> String {
    let option = if has_snapshots { "--snapshots " } else { "" };
    format!("holdfast-lab torture {option}--seed {seed} --seeds 1")
}

/// What one seed did.
#[derive(Clone, Debug, Default)]
pub struct SeedReport {
    /// Which.
    pub seed: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Those with two operations in flight or more.
    pub concurrent_crashes: u64,
    /// Power cuts during recovery.
    pub recovery_cuts: u64,
    /// Requests to devices that failed.
    pub device_errors: u64,
    /// Lives in which a client was told that there is no space.
    pub full_pools: u64,
    /// Lives on a device that lies.
    pub lives_of_lies: u64,
    /// Writes lost and misdirected, bytes that rotted.
    pub lies: u64,
    /// Answers that tell of any of that.
    pub errors_told: u64,
    /// Operations that clients did.
    pub operations: u64,
    /// Snapshots that were judged, each once after every cut.
    pub snapshots_judged: u64,
    /// Disk groups that were added.
    pub groups_added: u64,
    /// Removals of disk groups that were admitted.
    pub groups_leaving: u64,
    /// Disk groups that were emptied and taken out.
    pub groups_gone: u64,
    /// Times that what is made in the root directory was given another placement.
    pub placements: u64,
    /// Members attached to a disk group.
    pub attached: u64,
    /// Those taken out of one.
    pub detached: u64,
    /// What else happened to members.
    pub events: Events,
    /// Hash of every decision, and of what each cut left: equal for equal runs.
    pub trace_hash: u64,
    /// What ended it early.
    pub finding: Option<Finding>,
}

/// What all seeds did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds that ran.
    pub seeds: u64,
    /// Seeds that never had two operations in flight when the power was cut.
    pub seeds_apart: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Those with two operations in flight or more.
    pub concurrent_crashes: u64,
    /// Power cuts during recovery.
    pub recovery_cuts: u64,
    /// Requests to devices that failed.
    pub device_errors: u64,
    /// Lives in which a client was told that there is no space.
    pub full_pools: u64,
    /// Lives on a device that lies.
    pub lives_of_lies: u64,
    /// Writes lost and misdirected, bytes that rotted.
    pub lies: u64,
    /// Answers that tell of any of that.
    pub errors_told: u64,
    /// Operations that clients did.
    pub operations: u64,
    /// Snapshots that were judged, each once after every cut.
    pub snapshots_judged: u64,
    /// Disk groups that were added.
    pub groups_added: u64,
    /// Removals of disk groups that were admitted.
    pub groups_leaving: u64,
    /// Disk groups that were emptied and taken out.
    pub groups_gone: u64,
    /// Times that what is made in the root directory was given another placement.
    pub placements: u64,
    /// Members attached to a disk group.
    pub attached: u64,
    /// Those taken out of one.
    pub detached: u64,
    /// What else happened to members.
    pub events: Events,
    /// What was found, by seed.
    pub findings: Vec<Finding>,
}

impl Report {
    fn add(&mut self, seed: &SeedReport) {
        self.seeds += 1;
        self.seeds_apart += u64::from(seed.concurrent_crashes == 0);
        self.crashes += seed.crashes;
        self.concurrent_crashes += seed.concurrent_crashes;
        self.recovery_cuts += seed.recovery_cuts;
        self.device_errors += seed.device_errors;
        self.full_pools += seed.full_pools;
        self.lives_of_lies += seed.lives_of_lies;
        self.lies += seed.lies;
        self.errors_told += seed.errors_told;
        self.operations += seed.operations;
        self.snapshots_judged += seed.snapshots_judged;
        self.groups_added += seed.groups_added;
        self.groups_leaving += seed.groups_leaving;
        self.groups_gone += seed.groups_gone;
        self.placements += seed.placements;
        self.attached += seed.attached;
        self.detached += seed.detached;
        self.events.add(&seed.events);
        self.findings.extend(seed.finding.clone());
    }
}

/// Runs every seed, and tells `progress` of each.
pub fn run(
    ground: &dyn Ground,
    options: &Options,
    mut progress: impl FnMut(&SeedReport),
) -> Report {
    let mut report = Report::default();
    for seed in (options.first_seed..).take(crate::number::usize_of(options.seeds)) {
        let seed = run_seed(ground, options, seed);
        report.add(&seed);
        progress(&seed);
    }
    report
}

/// Runs one seed.
#[must_use]
pub fn run_seed(ground: &dyn Ground, options: &Options, seed: u64) -> SeedReport {
    life::Lives::new(ground, *options, seed).run()
}

/// Runs `work`; a panic becomes words.
pub(crate) fn guarded_words<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|payload| format!("panic: {}", words_of(&*payload)))
}

/// Runs `work`; a panic becomes a fault.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| Fault::Panic(words_of(&*payload)))
}

/// What a panic says, without addresses, which differ from run to run.
fn words_of(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "without words".to_owned());
    let words = text.split(' ').filter(|word| !word.starts_with("0x"));
    words.collect::<Vec<_>>().join(" ")
}
