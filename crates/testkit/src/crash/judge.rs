//! The judgement: the least set of operations that must have survived, and whether it explains
//! what is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use engine::api::{FileSystem, Ino};

use super::content::{Candidates, ContentFault};
use super::history::{Event, History};
use super::replay::{Life, Moment, NodeState, Replay, Touch, replay};
use crate::canon::{Data, Identity, Inode, Path, Times, Tree, WalkError, walk_identified_below};

/// Most findings that are told of one crash.
const FINDINGS_MAX: usize = 10;
/// How many of the operations that touched an inode a finding prints, the newest.
const EVENTS_TOLD_MAX: usize = 12;

/// What survived, when it is one of the promised states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Operations that changed something, in flight ones included.
    pub changes: usize,
    /// How many of them had to survive.
    pub required: usize,
    /// How many must have, as what is found shows.
    pub survived: usize,
}

/// Why what is found is none of the promised states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The tree cannot be walked.
    Walk(WalkError),
    /// An operation was acknowledged that no file system of ours would do.
    Unbelievable,
    /// Two inodes were made with one number and generation.
    Reused,
    /// Nobody made this inode (C6).
    Stranger,
    /// It is not there, and must be.
    Missing,
    /// It is there, and must not be (C6).
    Undead,
    /// Its attributes are of no moment that they may be of.
    Attr,
    /// Its extended attributes are of no moment that they may be of.
    Attributes,
    /// Its names are of no moment that they may be of.
    Names,
    /// It leads elsewhere.
    Target,
    /// Its size is none that it may have (C5).
    Size,
    /// This page of 4 KiB is as it was at no time that it may be of (C5).
    Page(u64),
}

/// One inode, or the whole, that is not as promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A name of it.
    pub path: Path,
    /// What is wrong.
    pub reason: Reason,
    /// What was done to it, the newest last, and whether that must have survived.
    pub told: Vec<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", self.path, self.reason)?;
        self.told.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

/// Judges what `survivor` holds after `history` and a power cut.
///
/// # Errors
///
/// What is not as promised in the header of [`crate::crash`]; at least one finding.
pub fn judge(history: &History, survivor: &dyn FileSystem) -> Result<Verdict, Vec<Finding>> {
    Judge::new(history).judge(survivor)
}

/// A history that many survivors are judged by: it is repeated on the model once.
#[derive(Debug)]
pub struct Judge<'a> {
    history: &'a History,
    replay: Replay,
}

impl<'a> Judge<'a> {
    /// Repeats `history`.
    #[must_use]
    pub fn new(history: &'a History) -> Judge<'a> {
        Judge { history, replay: replay(history) }
    }

    /// As [`judge`].
    ///
    /// # Errors
    ///
    /// As [`judge`].
    pub fn judge(&self, survivor: &dyn FileSystem) -> Result<Verdict, Vec<Finding>> {
        self.judge_below(survivor, survivor.root())
    }

    /// As [`judge`], of the fileset, or a snapshot of it, whose root directory is `root`.
    ///
    /// # Errors
    ///
    /// As [`judge`].
    pub fn judge_below(
        &self,
        survivor: &dyn FileSystem,
        root: Ino,
    ) -> Result<Verdict, Vec<Finding>> {
        let whole = |reason, told| vec![Finding { path: Path::default(), reason, told }];
        let walked = walk_identified_below(survivor, root, Times::Ignored);
        let (tree, identities) = walked.map_err(|error| whole(Reason::Walk(error), Vec::new()))?;
        let identities = self.in_slot_of_base(&identities, root);
        let found = Found::new(tree, &identities);
        if let Some(number) = self.replay.unbelievable {
            let told = vec![self.history.events()[number].to_string()];
            return Err(whole(Reason::Unbelievable, told));
        }
        Judgement::new(self.history, &self.replay, &found)?.settled()
    }
}

impl Judge<'_> {
    /// A snapshot has its fileset's inodes, by other numbers: the upper bits say whose they are.
    fn in_slot_of_base(&self, found: &[Identity], root: Ino) -> Vec<Identity> {
        let base_root = self.history.base().root();
        let base = self.history.identities().get(&base_root).map_or(root, |it| it.ino);
        let moved = |identity: &Identity| {
            let ino = Ino(identity.ino.0.wrapping_sub(root.0).wrapping_add(base.0));
            Identity { ino, ..*identity }
        };
        found.iter().map(moved).collect()
    }
}

/// What was found.
struct Found {
    tree: Tree,
    by_identity: BTreeMap<Identity, usize>,
    /// Names in each directory, and the inodes that they name.
    names: Vec<BTreeMap<Vec<u8>, Identity>>,
}

impl Found {
    fn new(tree: Tree, identities: &[Identity]) -> Found {
        let mut names = vec![BTreeMap::new(); tree.inodes.len()];
        for (path, &index) in &tree.names {
            if let Some((parent, name)) = path.split() {
                names[tree.names[&parent]].insert(name.to_vec(), identities[index]);
            }
        }
        let by_identity = identities.iter().copied().zip(0..).collect();
        Found { tree, by_identity, names }
    }

    fn get(&self, identity: Identity) -> Option<(usize, &Inode)> {
        let index = *self.by_identity.get(&identity)?;
        Some((index, &self.tree.inodes[index]))
    }

    fn path_of(&self, index: usize) -> Path {
        let mut named = self.tree.names.iter().filter(|&(_, &named)| named == index);
        named.next().map(|(path, _)| path.clone()).unwrap_or_default()
    }
}

/// Which inode each life is. What an operation in flight made is what is found under its name, if
/// nobody else made that.
fn identities_of(
    events: &[Event],
    lives: &BTreeMap<Ino, Life>,
    found: &Found,
) -> BTreeMap<Ino, Identity> {
    let told = lives.iter().filter_map(|(&ino, life)| Some((ino, life.identity?)));
    let mut identities: BTreeMap<Ino, Identity> = told.collect();
    let known: BTreeSet<Identity> = identities.values().copied().collect();
    for (&ino, life) in lives {
        let Some(Moment { event, .. }) = life.moments.first() else { continue };
        let Some(at) = events[*event].step.op.made_at() else { continue };
        if life.identity.is_some() || life.start.is_some() {
            continue;
        }
        let path = Path(at.0.join(&b'/'));
        let index = found.tree.names.get(&path);
        let mut inodes = found.by_identity.iter();
        let identity = inodes.find(|&(_, at)| Some(at) == index).map(|(&identity, _)| identity);
        if let Some(identity) = identity.filter(|identity| !known.contains(identity)) {
            identities.insert(ino, identity);
        }
    }
    identities
}

/// The set of operations that must have survived, while it grows.
struct Judgement<'a> {
    events: &'a [Event],
    lives: &'a BTreeMap<Ino, Life>,
    identities: BTreeMap<Ino, Identity>,
    found: &'a Found,
    /// Inodes that each operation is ordered by.
    touches: Vec<Vec<Ino>>,
    survived: Vec<bool>,
    required: usize,
    /// How many moments of each life have durable content.
    durable_end: BTreeMap<Ino, usize>,
}

impl<'a> Judgement<'a> {
    fn new(
        history: &'a History,
        replay: &'a Replay,
        found: &'a Found,
    ) -> Result<Judgement<'a>, Vec<Finding>> {
        let events = history.events();
        let mut judgement = Judgement {
            events,
            lives: &replay.lives,
            identities: identities_of(events, &replay.lives, found),
            found,
            touches: vec![Vec::new(); events.len()],
            survived: vec![false; events.len()],
            required: 0,
            durable_end: BTreeMap::new(),
        };
        judgement.require_known()?;
        for (&ino, life) in &replay.lives {
            for moment in life.moments.iter().filter(|moment| moment.touch.is_ordered()) {
                judgement.touches[moment.event].push(ino);
            }
        }
        for sync in &replay.syncs {
            for (&ino, life) in &replay.lives {
                if sync.ino.is_none_or(|synced| synced == ino) {
                    judgement.require(ino, life, sync.begun, sync.data_only);
                }
            }
        }
        judgement.required = judgement.survived.iter().filter(|&&survived| survived).count();
        Ok(judgement)
    }

    /// Every inode that is found was made once.
    fn require_known(&self) -> Result<(), Vec<Finding>> {
        let mut known = BTreeMap::new();
        let told = Vec::new();
        for (ino, life) in self.lives {
            let Some(&identity) = self.identities.get(ino) else { continue };
            if known.insert(identity, life).is_some() {
                let path = life.path.clone();
                return Err(vec![Finding { path, reason: Reason::Reused, told }]);
            }
        }
        for (identity, &index) in &self.found.by_identity {
            if !known.contains_key(identity) {
                let path = self.found.path_of(index);
                return Err(vec![Finding { path, reason: Reason::Stranger, told }]);
            }
        }
        Ok(())
    }

    /// C3, C4: what touched `ino` and was acknowledged before `begun` survives.
    fn require(&mut self, ino: Ino, life: &Life, begun: u64, data_only: bool) {
        for (index, moment) in life.moments.iter().enumerate() {
            let ended = self.events[moment.event].ended;
            if ended.is_none_or(|ended| ended.stamp > begun) {
                break;
            }
            match moment.touch {
                Touch::Attr if data_only => {}
                Touch::Names | Touch::Attr | Touch::Truncated(_) => self.add(moment.event),
                Touch::Wrote { .. } => {}
            }
            let end = self.durable_end.entry(ino).or_default();
            *end = (*end).max(index + 1);
        }
    }

    /// C2: adds an operation, and all that it follows.
    fn add(&mut self, event: usize) {
        let mut pending = vec![event];
        while let Some(event) = pending.pop() {
            if std::mem::replace(&mut self.survived[event], true) {
                continue;
            }
            for ino in &self.touches[event] {
                let moments = self.lives[ino].moments.iter();
                let earlier = moments.filter(|moment| moment.touch.is_ordered());
                pending.extend(
                    earlier.map(|moment| moment.event).take_while(|&earlier| earlier < event),
                );
            }
        }
    }

    /// Grows the set until it explains everything, or cannot.
    fn settled(mut self) -> Result<Verdict, Vec<Finding>> {
        loop {
            let mut findings = Vec::new();
            let mut has_grown = false;
            for (&ino, life) in self.lives {
                let Some(reason) = self.mismatch(ino, life) else { continue };
                let next = life
                    .moments
                    .iter()
                    .find(|moment| moment.touch.is_ordered() && !self.survived[moment.event]);
                match next {
                    Some(next) => {
                        self.add(next.event);
                        has_grown = true;
                    }
                    None if findings.len() < FINDINGS_MAX => {
                        findings.push(self.finding(ino, life, reason));
                    }
                    None => {}
                }
            }
            // A finding may only be a consequence of what has just been added elsewhere.
            if has_grown {
                continue;
            }
            if !findings.is_empty() {
                return Err(findings);
            }
            break;
        }
        let survived = self.survived.iter().filter(|&&survived| survived).count();
        let changes = self.touches.iter().filter(|touches| !touches.is_empty()).count();
        Ok(Verdict { changes, required: self.required, survived })
    }

    fn finding(&self, ino: Ino, life: &Life, reason: Reason) -> Finding {
        let skipped = life.moments.len().saturating_sub(EVENTS_TOLD_MAX);
        let found = self.found(ino).map(|(index, inode)| {
            let (attr, names) = (&inode.attr, self.found.names[index].keys());
            let names: Vec<String> = names.map(|name| name.escape_ascii().to_string()).collect();
            format!("found: {attr:?}, names {names:?}")
        });
        let told = life.moments[skipped..].iter().map(|moment| {
            let must = if self.survived[moment.event] { "must survive" } else { "may be lost" };
            format!("#{} {must}, {}", moment.event, self.events[moment.event])
        });
        let told = found.into_iter().chain(told).collect();
        Finding { path: life.path.clone(), reason, told }
    }

    fn found(&self, ino: Ino) -> Option<(usize, &Inode)> {
        self.found.get(*self.identities.get(&ino)?)
    }

    /// How `life` is not as it was after exactly those of its operations that survived.
    fn mismatch(&self, ino: Ino, life: &Life) -> Option<Reason> {
        let survives = |moment: &Moment| self.survived[moment.event];
        let is_ordered = |moment: &&Moment| moment.touch.is_ordered();
        let ordered = life.moments.iter().filter(is_ordered).filter(|m| survives(m)).count();
        let durable_end = self.durable_end.get(&ino).copied().unwrap_or(0);
        let states = possible_states(life, ordered, durable_end);
        let found = self.found(ino);
        let (index, inode) = match (found, states.is_empty()) {
            (None, true) => return None,
            (None, false) => return Some(Reason::Missing),
            (Some(_), true) => return Some(Reason::Undead),
            (Some(found), false) => found,
        };
        if let Some(reason) = self.state_mismatch(&states, index, inode) {
            return Some(reason);
        }
        let Data::Pages(pages) = &inode.data else { return None };
        let candidates = Candidates::of(life, ordered, durable_end);
        candidates.fault(inode.attr.size_bytes, pages).map(|fault| match fault {
            ContentFault::Size => Reason::Size,
            ContentFault::Page(number) => Reason::Page(number),
        })
    }

    fn state_mismatch(&self, states: &[&NodeState], index: usize, inode: &Inode) -> Option<Reason> {
        let mut attr = inode.attr.clone();
        if matches!(inode.data, Data::Pages(_)) {
            attr.size_bytes = 0;
        }
        if !states.iter().any(|state| state.attr == attr) {
            return Some(Reason::Attr);
        }
        if !states.iter().any(|state| state.attributes == inode.attributes) {
            return Some(Reason::Attributes);
        }
        // Names and targets do not change between ordered operations.
        let state = states[0];
        let identity_of = |ino: &Ino| self.identities.get(ino);
        let names = &self.found.names[index];
        let are_same = state.names.len() == names.len()
            && state.names.iter().all(|(name, ino)| identity_of(ino) == names.get(name));
        if !are_same || state.names.values().any(|ino| identity_of(ino).is_none()) {
            return Some(Reason::Names);
        }
        match &inode.data {
            Data::Target(target) if *target != state.target => Some(Reason::Target),
            Data::Target(_) | Data::Pages(_) | Data::Nothing => None,
        }
    }
}

/// The states that `life` may be in after exactly `ordered` of its ordered operations: the one that
/// the last of them left, and those that writes after it left (they may take setuid away). None: it
/// has no name then.
fn possible_states(life: &Life, ordered: usize, durable_end: usize) -> Vec<&NodeState> {
    let mut states: Vec<&NodeState> = life.start.iter().map(|start| &start.state).collect();
    let mut ordered_seen = 0;
    for (index, moment) in life.moments.iter().enumerate() {
        if moment.touch.is_ordered() {
            ordered_seen += 1;
            if ordered_seen > ordered {
                break;
            }
            states.clear();
        } else if index < durable_end {
            states.clear();
        }
        states.extend(&moment.after);
    }
    states
}
