//! Torture of filesets and snapshots: random histories over several of them, the power cut, again
//! and again; what each node holds is compared with a model of whole trees.
//!
//! A *seed* is one pool. In each of its lives one or two filesets are changed by random steps of
//! [`crate::ops`], and between these snapshots are taken and cloned, filesets restored, promoted,
//! held and deleted, sent and received, filesets made and deleted, quotas set, of users too,
//! segments emptied. A life ends in order, or the power is cut at a write or behind the last
//! answer; the pool is opened, sometimes with a second cut during that, and what came of a stream
//! is given up; and the next life begins with what is there. At the end all snapshots and all
//! filesets but the first are deleted.
//!
//! # What is asked
//!
//! - NT1: What an operation on nodes answers is what the model (`world.rs`) says: done, or why
//!   refused. Only what makes something may be refused for want of space, so deleting frees always.
//! - NT2: After each life there are the nodes that the model has: with the operation in flight or
//!   without it.
//! - NT3: Each snapshot, and each fileset that nobody changed, is the model's tree, whole.
//! - NT4: A fileset that was changed is one of the states that [`crate::crash`] promises; a
//!   snapshot syncs its fileset.
//! - NQ1 to NQ4, in `owners.rs`: users and groups are refused and counted as their limits say.
//! - NT5: The checker finds nothing, as the cut left the pool and after it was opened and closed:
//!   no fragment is in use that no node reaches, and none is reached that is not.
//!
//! One thread, so a seed alone decides everything: see [`SeedReport::trace_hash`].
//!
//! Not here: clients at work at one time ([`crate::torture`]).

mod apply;
mod choose;
mod life;
mod owners;
mod seat;
#[cfg(test)]
mod tests;
mod world;

pub use apply::{apply, compare, compare_lists, enter, is_excused};
pub use choose::{node_op, one_of};
pub use owners::{Limits, Quotas};
pub use world::{Entered, Node, NodeId, NodeOp, ROOT, Refusal, World};

use std::fmt;

/// How much torture.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The first seed.
    pub first_seed: u64,
    /// How many, one after the other.
    pub seeds: u64,
    /// Lives of each.
    pub lives: u64,
    /// Most steps of a life.
    pub steps_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { first_seed: 0, seeds: 1, lives: 6, steps_max: 200 }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Which seed.
    pub seed: u64,
    /// In which of its lives, from 0.
    pub life: u64,
    /// What, in words.
    pub what: String,
    /// What was done in that life, the newest last.
    pub done: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, life {}: {}", self.seed, self.life, self.what)?;
        self.done.iter().try_for_each(|line| write!(f, "\n    {line}"))?;
        write!(f, "\nreplay: {}", replay_line(self.seed))
    }
}

/// Returns the command that repeats a seed.
#[must_use]
pub fn replay_line(seed: u64) -> String {
    format!("holdfast-lab torture --filesets --seed {seed} --seeds 1")
}

/// Counts of one seed or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps on files.
    pub operations: u64,
    /// Operations on filesets and snapshots that were done.
    pub node_operations: u64,
    /// Snapshots that were taken.
    pub snapshots: u64,
    /// Operations on filesets and snapshots that were refused, as they should be.
    pub refusals: u64,
    /// Answers that the pool is full, or a quota.
    pub full: u64,
    /// Answers that a limit of a user or a group is passed.
    pub over_limit: u64,
    /// Power cuts.
    pub crashes: u64,
    /// Those in the midst of an operation on filesets and snapshots.
    pub crashes_in_node_operations: u64,
    /// Power cuts while a pool was opened.
    pub recovery_cuts: u64,
    /// Nodes whose tree was compared with the model's.
    pub compared: u64,
    /// Fragments that the cleaner moved.
    pub moved_fragments: u64,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.operations += other.operations;
        self.node_operations += other.node_operations;
        self.snapshots += other.snapshots;
        self.refusals += other.refusals;
        self.full += other.full;
        self.over_limit += other.over_limit;
        self.crashes += other.crashes;
        self.crashes_in_node_operations += other.crashes_in_node_operations;
        self.recovery_cuts += other.recovery_cuts;
        self.compared += other.compared;
        self.moved_fragments += other.moved_fragments;
    }
}

/// What one seed did.
#[derive(Clone, Debug, Default)]
pub struct SeedReport {
    /// Which.
    pub seed: u64,
    /// What it did.
    pub counts: Counts,
    /// Hash of what each life left: equal for equal runs.
    pub trace_hash: u64,
    /// What ended it early.
    pub finding: Option<Finding>,
}

/// What all seeds did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds that ran.
    pub seeds: u64,
    /// What they did.
    pub counts: Counts,
    /// What was found, by seed.
    pub findings: Vec<Finding>,
}

/// Runs every seed, and tells `progress` of each.
pub fn run(options: &Options, mut progress: impl FnMut(&SeedReport)) -> Report {
    let mut report = Report::default();
    for seed in (options.first_seed..).take(crate::number::usize_of(options.seeds)) {
        let seed = run_seed(options, seed);
        report.seeds += 1;
        report.counts.add(&seed.counts);
        report.findings.extend(seed.finding.clone());
        progress(&seed);
    }
    report
}

/// Runs one seed.
#[must_use]
pub fn run_seed(options: &Options, seed: u64) -> SeedReport {
    life::Lives::new(*options, seed).run()
}
