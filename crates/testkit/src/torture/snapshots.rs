//! Snapshots that are taken and deleted beside the clients, and what each must be: one moment of
//! the history, between the asking and the answer.
//!
//! A snapshot is a sync and a picture: what was answered before somebody asked for it is in it,
//! what began after its answer is not, and of what was under way then each is in it or not. So the
//! judge of crashes judges it, by the part of the history that it may have seen. Afterwards it must
//! stay as it was found.

use std::collections::BTreeMap;

use engine::api::{FileSystem, FsError, FsResult, Ino};
use runtime::prng::Prng;
use runtime::sync::sim;

use super::Fault;
use super::client::Shared;
use super::life::lock;
use crate::canon::{Times, Tree, differences, walk_below};
use crate::crash::{History, Judge};
use crate::number::{u64_of, usize_of};
use crate::ops::{Applied, Op, Outcome, Step};

/// Between two steps lies less than 2 to a power below this, in nanoseconds.
const PAUSE_NS_POWER_MAX: u64 = 23;
/// Snapshots at one time.
const SNAPSHOTS_MAX: usize = 5;

/// Snapshots of what is tortured.
pub trait Snapshots: Send + Sync {
    /// Takes a snapshot; it is durable when this returns.
    ///
    /// # Errors
    ///
    /// As `Pool::create_snapshot`.
    fn create(&self, name: &str, random: u64) -> FsResult<()>;

    /// Deletes a snapshot.
    ///
    /// # Errors
    ///
    /// As `Pool::delete_snapshot`.
    fn delete(&self, name: &str) -> FsResult<()>;

    /// Returns the names of all snapshots.
    ///
    /// # Errors
    ///
    /// As `Pool::filesets`.
    fn names(&self) -> FsResult<Vec<String>>;

    /// Enters a snapshot, which can't be deleted then; returns its root directory.
    ///
    /// # Errors
    ///
    /// As `Pool::hold_snapshot`.
    fn enter(&self, name: &str) -> FsResult<Ino>;

    /// Empties segments.
    ///
    /// # Errors
    ///
    /// As `Pool::clean`.
    fn clean(&self) -> FsResult<()>;

    /// Ends what is being freed in the background.
    ///
    /// # Errors
    ///
    /// As `Pool::tick`.
    fn free_all(&self) -> FsResult<()>;
}

/// What is known of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// What it was found to be; `None`: nobody has looked.
    tree: Option<Tree>,
    /// The event of the history that stands for it.
    event: usize,
    /// Whether it must be there.
    is_sure: bool,
}

/// The snapshots of a pool, over its lives.
#[derive(Debug, Default)]
pub(super) struct KnownSnapshots {
    known: BTreeMap<String, Known>,
    made: u64,
}

impl KnownSnapshots {
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(super) fn count(&self) -> u64 {
        u64_of(self.known.len())
    }

    /// Deletes all: that always works, however full the pool is.
    pub(super) fn delete_all(&mut self, snapshots: &dyn Snapshots) -> Result<(), Fault> {
        while let Some((name, _)) = self.known.pop_first() {
            let deleted = snapshots.free_all().and_then(|()| snapshots.delete(&name));
            deleted.and_then(|()| snapshots.free_all()).map_err(|error| {
                Fault::Unusable(format!("a full pool, and snapshot {name} is not deleted: {error}"))
            })?;
        }
        Ok(())
    }

    /// Judges all snapshots of a pool that was opened after a cut.
    pub(super) fn judge(
        &mut self,
        history: &History,
        fs: &dyn FileSystem,
        snapshots: &dyn Snapshots,
    ) -> Result<(), Fault> {
        let survivor =
            |name: &str, what: String| Fault::Survivor(vec![format!("snapshot {name}: {what}")]);
        let found = snapshots.names().map_err(|error| survivor("list", error.to_string()))?;
        for (name, known) in &self.known {
            if known.is_sure && !found.contains(name) {
                return Err(survivor(name, "it is gone".to_owned()));
            }
        }
        self.known.retain(|name, _| found.contains(name));
        for name in found {
            let Some(known) = self.known.get_mut(&name) else {
                return Err(survivor(&name, "nobody has taken it, or it was deleted".to_owned()));
            };
            known.is_sure = true;
            let root =
                snapshots.enter(&name).map_err(|error| survivor(&name, error.to_string()))?;
            let tree = walk_below(fs, root, Times::Ignored);
            let tree = tree.map_err(|error| survivor(&name, error.to_string()))?;
            if let Some(before) = &known.tree {
                if let Some(differ) = differences(before, &tree).first() {
                    return Err(survivor(&name, format!("it has changed: {differ}")));
                }
                continue;
            }
            let seen = history.as_of(known.event);
            Judge::new(&seen).judge_below(fs, root).map_err(|findings| {
                let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
                survivor(&name, told.join("\n  "))
            })?;
            known.tree = Some(tree);
        }
        Ok(())
    }
}

/// Takes and deletes snapshots beside the clients.
pub(super) struct Taker<'a> {
    pub(super) snapshots: &'a dyn Snapshots,
    pub(super) known: &'a mut KnownSnapshots,
    pub(super) random: Prng,
    /// Who it is in the history.
    pub(super) client: usize,
}

impl Taker<'_> {
    pub(super) fn live(&mut self, shared: &Shared<'_>) {
        while !shared.are_clients_done() && !shared.power.is_cut() {
            let pause_ns = self.random.below_power(PAUSE_NS_POWER_MAX);
            sim::sleep_until(shared.scheduler.now_ns() + pause_ns);
            if shared.power.is_cut() {
                return;
            }
            if let Err(fault) = self.step(shared) {
                lock(&shared.fault).get_or_insert(fault);
                shared.power.cut();
                return;
            }
        }
    }

    fn step(&mut self, shared: &Shared<'_>) -> Result<(), Fault> {
        let count = self.known.known.len();
        match self.random.below(7) {
            0..3 if count < SNAPSHOTS_MAX => self.create(shared),
            3..5 if count > 0 => self.delete(shared),
            5 => {
                let cleaned = self.snapshots.clean();
                if shared.power.is_cut() {
                    return Ok(());
                }
                cleaned.map_err(|error| self.fault("clean", &error))
            }
            _ => Ok(()),
        }
    }

    fn create(&mut self, shared: &Shared<'_>) -> Result<(), Fault> {
        self.known.made += 1;
        let name = format!("c{}", self.known.made);
        // Who takes a snapshot syncs.
        let event = lock(&shared.history).begin(self.client, Step::root(Op::Sync));
        let mark = shared.scheduler.operation();
        let taken = self.snapshots.create(&name, self.random.next_u64());
        let is_heard = !shared.power.is_cut();
        drop(mark);
        let known = Known { tree: None, event, is_sure: is_heard && taken.is_ok() };
        if !is_heard || known.is_sure {
            self.known.known.insert(name.clone(), known);
        }
        match taken {
            _ if !is_heard => Ok(()),
            Ok(()) => {
                let applied = Applied { outcome: Outcome::Done, made: None };
                lock(&shared.history).end(event, &applied);
                Ok(())
            }
            // Full, or more are in the family than the log can move together.
            Err(FsError::NoSpace | FsError::FilesetInUse { .. }) => Ok(()),
            Err(error) => Err(self.fault(&format!("snapshot create {name}"), &error)),
        }
    }

    fn delete(&mut self, shared: &Shared<'_>) -> Result<(), Fault> {
        let nth = usize_of(self.random.below(u64_of(self.known.known.len())));
        let Some(name) = self.known.known.keys().nth(nth).cloned() else { return Ok(()) };
        let mark = shared.scheduler.operation();
        let deleted = self.snapshots.delete(&name);
        let is_heard = !shared.power.is_cut();
        drop(mark);
        match deleted {
            _ if !is_heard => {
                if let Some(known) = self.known.known.get_mut(&name) {
                    known.is_sure = false;
                }
                Ok(())
            }
            Ok(()) => {
                self.known.known.remove(&name);
                Ok(())
            }
            // Another one is being freed.
            Err(FsError::FilesetInUse { .. }) => Ok(()),
            Err(error) => Err(self.fault(&format!("snapshot delete {name}"), &error)),
        }
    }

    fn fault(&self, what: &str, error: &FsError) -> Fault {
        Fault::Answer {
            client: self.client,
            step: what.to_owned(),
            told: error.to_string(),
            expected: "done".to_owned(),
        }
    }
}
