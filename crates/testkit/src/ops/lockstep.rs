//! Two implementations side by side, step by step.

use std::fmt;

use engine::api::FileSystem;
use runtime::clock::ManualClock;

use super::{Op, Outcome, Place, Route, Session, Step, history_to_text};
use crate::canon::{CanonAttr, Difference, Times, compare_trees};

/// How far the clock moves at each step: more than any file system's resolution of times.
const STEP_NS: u64 = 20_000_000;

/// How closely two implementations are compared.
#[derive(Clone, Copy)]
pub struct LockstepOptions<'a> {
    /// The clock that both go by; it is moved before each step. With `None`, no times are compared.
    pub clock: Option<&'a ManualClock>,
    /// Whole trees are compared each time so many steps were done, and at the end.
    pub walk_every: usize,
    /// Called before each step: work that must not change any answer.
    pub background: &'a dyn Fn(),
}

/// Where two implementations went apart.
#[derive(Clone, Debug)]
pub enum Divergence {
    /// They answered one step differently.
    Outcome {
        /// Which step, from 0.
        index: usize,
        /// The step.
        step: Step,
        /// The answer of the first.
        left: Outcome,
        /// The answer of the second.
        right: Outcome,
    },
    /// After a step, what it was about has different attributes.
    Attr {
        /// Which step, from 0.
        index: usize,
        /// The step.
        step: Step,
        /// What has them.
        place: Place,
        /// In the first; `None`: not there.
        left: Option<Box<CanonAttr>>,
        /// In the second.
        right: Option<Box<CanonAttr>>,
    },
    /// After a step, the trees differ.
    Trees {
        /// Which step, from 0.
        index: usize,
        /// How.
        differences: Vec<Difference>,
    },
}

impl Divergence {
    /// Returns how many steps it takes.
    #[must_use]
    pub fn step_count(&self) -> usize {
        match self {
            Divergence::Outcome { index, .. }
            | Divergence::Attr { index, .. }
            | Divergence::Trees { index, .. } => index + 1,
        }
    }

    /// Returns the divergence and `history`, as a person reads it and a test replays it.
    #[must_use]
    pub fn report(&self, history: &[Step]) -> String {
        format!("{self}\nhistory:\n{}", history_to_text(history))
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Divergence::Outcome { index, step, left, right } => {
                write!(f, "step {index}, {step}:\n  left  {left:?}\n  right {right:?}")
            }
            Divergence::Attr { index, step, place, left, right } => {
                write!(f, "step {index}, {step}: {place}:\n  left  {left:?}\n  right {right:?}")
            }
            Divergence::Trees { index, differences } => {
                write!(f, "after step {index}:")?;
                differences.iter().try_for_each(|difference| write!(f, "\n  {difference}"))
            }
        }
    }
}

/// Does `history` on both, and compares each answer, what the step was about, and the trees.
///
/// # Errors
///
/// Where they go apart.
pub fn run_lockstep(
    left: &dyn FileSystem,
    right: &dyn FileSystem,
    history: &[Step],
    options: LockstepOptions<'_>,
) -> Result<(), Box<Divergence>> {
    let times = if options.clock.is_some() { Times::Changes } else { Times::Ignored };
    let mut sessions = [left, right].map(|fs| Session::new(fs, times));
    for (index, step) in history.iter().enumerate() {
        if let Some(clock) = options.clock {
            clock.advance_ns(STEP_NS);
        }
        (options.background)();
        let [left, right] = sessions.each_mut().map(|session| session.apply(step).outcome);
        if !left.agrees(&right) {
            let step = step.clone();
            return Err(Box::new(Divergence::Outcome { index, step, left, right }));
        }
        compare_touched(&sessions, index, step, times)?;
        if (index + 1) % options.walk_every.max(1) == 0 {
            compare_walks(left_and_right(&sessions), index, times)?;
        }
    }
    sessions.iter_mut().for_each(Session::close_all);
    compare_walks(left_and_right(&sessions), history.len().saturating_sub(1), times)
}

fn left_and_right<'a>(sessions: &[Session<'a>; 2]) -> [&'a dyn FileSystem; 2] {
    [sessions[0].file_system(), sessions[1].file_system()]
}

fn compare_walks(
    [left, right]: [&dyn FileSystem; 2],
    index: usize,
    times: Times,
) -> Result<(), Box<Divergence>> {
    let differences = compare_trees(left, right, times);
    if differences.is_empty() {
        return Ok(());
    }
    Err(Box::new(Divergence::Trees { index, differences }))
}

fn compare_touched(
    sessions: &[Session<'_>; 2],
    index: usize,
    step: &Step,
    times: Times,
) -> Result<(), Box<Divergence>> {
    for place in places_of(&step.op) {
        let [left, right] = sessions
            .each_ref()
            .map(|session| session.probe(&place).map(|attr| Box::new(CanonAttr::of(&attr, times))));
        if left != right {
            let step = step.clone();
            return Err(Box::new(Divergence::Attr { index, step, place, left, right }));
        }
    }
    Ok(())
}

/// Returns the inodes a step names, and the directories those names are in.
#[must_use]
pub fn places_of(op: &Op) -> Vec<Place> {
    let mut places = Vec::new();
    let mut add_route = |route: &Route| {
        if let Some((parents, _)) = route.split() {
            places.push(Place::At(Route(parents.to_vec())));
        }
        places.push(Place::At(route.clone()));
    };
    let file = match op {
        Op::Create { at, .. }
        | Op::Symlink { at, .. }
        | Op::Unlink { at }
        | Op::Rmdir { at }
        | Op::Open { at, .. } => {
            add_route(at);
            None
        }
        Op::Nameless { slot, directory, .. } => {
            add_route(directory);
            places.push(Place::Slot(*slot));
            None
        }
        Op::Link { file, at } => {
            add_route(at);
            Some(file)
        }
        Op::Rename { source, target, .. } => {
            add_route(source);
            add_route(target);
            None
        }
        Op::Write { file, .. }
        | Op::Read { file, .. }
        | Op::Truncate { file, .. }
        | Op::SetMode { file, .. }
        | Op::SetOwner { file, .. }
        | Op::SetProject { file, .. }
        | Op::SetTimes { file, .. }
        | Op::GetAttr { file }
        | Op::ReadLink { file }
        | Op::SetXattr { file, .. }
        | Op::SetAcl { file, .. }
        | Op::GetXattr { file, .. }
        | Op::ListXattr { file }
        | Op::RemoveXattr { file, .. }
        | Op::List { directory: file }
        | Op::Fallocate { file, .. }
        | Op::Seek { file, .. }
        | Op::Fsync { file, .. } => Some(file),
        Op::Copy { source, target, .. } => {
            places.push(source.clone());
            Some(target)
        }
        Op::Close { .. } | Op::Sync => None,
    };
    places.extend(file.cloned());
    places
}
