//! What was done before the power was cut, and what of it was acknowledged.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use engine::api::{FileSystem, Ino};
use runtime::clock::ManualClock;

use crate::canon::{Identity, WalkError};
use crate::model::Model;
use crate::ops::{Applied, Op, Step};

/// How an operation ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// When: a stamp that every begin and every end has, in the order in which they happened.
    pub stamp: u64,
    /// Whether it was done; if not, it was refused and changed nothing.
    pub is_done: bool,
    /// The inode that it made.
    pub made: Option<Identity>,
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which client did it.
    pub client: usize,
    /// What.
    pub step: Step,
    /// When it was issued.
    pub begun: u64,
    /// How it ended; `None`: in flight when the power was cut.
    pub ended: Option<Ended>,
}

/// Everything that was done since a moment at which all was durable.
#[derive(Debug)]
pub struct History {
    base: Model,
    identities: BTreeMap<Ino, Identity>,
    events: Vec<Event>,
    next_stamp: u64,
}

impl History {
    /// Begins with what `fs` holds, all of it durable.
    ///
    /// # Errors
    ///
    /// What is wrong with `fs`.
    pub fn after(fs: &dyn FileSystem) -> Result<History, WalkError> {
        History::after_below(fs, fs.root())
    }

    /// As [`History::after`], of the fileset whose root directory is `root`.
    ///
    /// # Errors
    ///
    /// As [`History::after`].
    pub fn after_below(fs: &dyn FileSystem, root: Ino) -> Result<History, WalkError> {
        let (base, identities) = Model::copy_below(fs, root, Arc::new(ManualClock::new()))?;
        Ok(History { base, identities, events: Vec::new(), next_stamp: 0 })
    }

    /// Begins again with the same base.
    #[must_use]
    pub fn again(&self) -> History {
        let (base, identities) = (self.base.reopened(), self.identities.clone());
        History { base, identities, events: Vec::new(), next_stamp: 0 }
    }

    fn stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// Notes that `client` issues `step`, and returns by which number it will end.
    pub fn begin(&mut self, client: usize, step: Step) -> usize {
        let begun = self.stamp();
        self.events.push(Event { client, step, begun, ended: None });
        self.events.len() - 1
    }

    /// Notes that an operation was answered. What is never answered was in flight.
    pub fn end(&mut self, number: usize, applied: &Applied) {
        let stamp = self.stamp();
        let is_done = applied.outcome.is_done();
        self.events[number].ended = Some(Ended { stamp, is_done, made: applied.made });
    }

    /// As [`History::end`], of an operation that was done in part only: as if it had been `step`.
    pub fn end_as(&mut self, number: usize, step: Step, applied: &Applied) {
        self.events[number].step = step;
        self.end(number, applied);
    }

    /// Returns the part of it that a picture may have seen which was taken between the begin and
    /// the end of event `number`, a sync: what had ended before is in it, what began later is not.
    #[must_use]
    pub fn as_of(&self, number: usize) -> History {
        let mut seen = self.again();
        let begun = self.events[number].begun;
        let end = self.events[number].ended.map_or(u64::MAX, |ended| ended.stamp);
        for (index, event) in self.events.iter().enumerate() {
            if event.begun >= end {
                break;
            }
            let mut event = event.clone();
            // What a sync covers that was answered later may be younger than the picture.
            let is_sync = matches!(event.step.op, Op::Fsync { .. } | Op::Sync);
            event.ended = event.ended.filter(|ended| !is_sync || ended.stamp <= begun);
            if index == number {
                event.ended = Some(Ended { stamp: end, is_done: true, made: None });
            }
            seen.events.push(event);
        }
        seen
    }

    /// Returns what was there at the beginning.
    #[must_use]
    pub fn base(&self) -> &Model {
        &self.base
    }

    /// Returns which inode each inode of the base stands for.
    #[must_use]
    pub fn identities(&self) -> &BTreeMap<Ino, Identity> {
        &self.identities
    }

    /// Returns the operations, in the order in which they were issued.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = match self.ended {
            None => "in flight",
            Some(Ended { is_done: true, .. }) => "done",
            Some(Ended { is_done: false, .. }) => "refused",
        };
        write!(f, "client {} {how}: {}", self.client, self.step)
    }
}
