//! The search for an order of whole calls that explains what several threads were answered.
//!
//! A history is *linearizable* (Herlihy and Wing, 1990) if each call can be given one moment
//! between its beginning and its end, so that the reference, called at these moments, answers the
//! same. The search is that of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993): of
//! the calls that come first in their threads, those that began before any of them had ended are
//! tried in turn. What was tried from one state is not tried again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use engine::api::{FileSystem, Ino};
use testkit::model::Model;

use super::call::{Answer, Call, Held, entries_of};

/// A call, its answer, and the stamps between which it happened.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) call: Call,
    pub(crate) answer: Answer,
    pub(crate) begun: usize,
    pub(crate) ended: usize,
}

impl Answered {
    fn changed_nothing(&self) -> bool {
        self.call.only_asks() || matches!(self.answer, Answer::Refused(_))
    }
}

/// Which inode of the reference an inode of the pool is, and its generation. A number that is used
/// again means the inode that has it last.
type Numbers = BTreeMap<Ino, (u64, Ino)>;

/// The reference after some of the calls.
struct Moment {
    model: Model,
    numbers: Numbers,
}

/// A search among the orders of the calls of `threads`, as the reference makes them.
struct Search<'a> {
    held: &'a Held,
    threads: Vec<Vec<Answered>>,
    /// By how many calls of each thread came before: the moments from which no order goes on.
    in_vain: BTreeMap<Vec<usize>, Vec<Moment>>,
}

/// Whether some order of the calls of `threads` explains their answers. The two [`Held`] are what
/// the reference and the pool call the inodes that are held.
pub(crate) fn is_explained(
    model: Model,
    (model_held, pool_held): (&Held, &Held),
    threads: &[Vec<Answered>],
) -> bool {
    let mut numbers = Numbers::new();
    for (pool, model) in pool_held.all().iter().zip(model_held.all()) {
        numbers.insert(pool.ino, (pool.generation, model.ino));
    }
    let Some(threads) = with_listings_apart(threads) else { return false };
    let done = vec![0; threads.len()];
    let mut search = Search { held: model_held, threads, in_vain: BTreeMap::new() };
    search.goes_on(Moment { model, numbers }, &done)
}

/// A listing is of no one moment: each name that it tells or leaves out becomes a thread of its
/// own. `None` if a listing is none.
fn with_listings_apart(threads: &[Vec<Answered>]) -> Option<Vec<Vec<Answered>>> {
    let mut all = Vec::new();
    for calls in threads {
        let mut rest = Vec::new();
        for answered in calls {
            match (&answered.call, &answered.answer) {
                (&Call::List(directory), Answer::Names(names)) => {
                    all.extend(entries_of(directory, names)?.map(|(call, answer)| {
                        vec![Answered {
                            call,
                            answer,
                            begun: answered.begun,
                            ended: answered.ended,
                        }]
                    }));
                }
                _ => rest.push(answered.clone()),
            }
        }
        all.push(rest);
    }
    Some(all)
}

impl Search<'_> {
    /// Whether some order of what is left after `done` calls of each thread explains the rest.
    fn goes_on(&mut self, moment: Moment, done: &[usize]) -> bool {
        let firsts = || self.threads.iter().zip(done).map(|(calls, &done)| calls.get(done));
        let Some(first_end) = firsts().flatten().map(|first| first.ended).min() else {
            return true;
        };
        let tried = self.in_vain.get(done);
        if tried.is_some_and(|tried| tried.iter().any(|other| moment.is_same(other))) {
            return false;
        }
        let with = |thread: usize| {
            let mut done = done.to_vec();
            done[thread] += 1;
            done
        };
        let mut changes = Vec::new();
        for (thread, first) in firsts().enumerate() {
            let Some(next) = first.filter(|first| first.begun < first_end) else { continue };
            let Some(after) = moment.after(next, self.held) else { continue };
            if next.changed_nothing() {
                // It may as well come at once: whatever explains the rest still does.
                return self.goes_on(after, &with(thread));
            }
            changes.push((thread, after));
        }
        if changes.into_iter().any(|(thread, after)| self.goes_on(after, &with(thread))) {
            return true;
        }
        self.in_vain.entry(done.to_vec()).or_default().push(moment);
        false
    }
}

impl Moment {
    fn is_same(&self, other: &Moment) -> bool {
        self.numbers == other.numbers && self.model.is_same(&other.model)
    }

    /// Returns the moment after `next`, if the reference answers it alike.
    fn after(&self, next: &Answered, held: &Held) -> Option<Moment> {
        let model = self.model.fork();
        let mut numbers = self.numbers.clone();
        let answer = next.call.on(&model, held);
        if let Some(ino) = answer.reference(&model) {
            model.forget(ino, 1);
        }
        let is_new = matches!(next.call, Call::Create(..));
        are_alike(&next.answer, &answer, &mut numbers, is_new).then_some(Moment { model, numbers })
    }
}

/// Whether the pool and the reference answer alike; a new inode is noted in `numbers`.
fn are_alike(pool: &Answer, model: &Answer, numbers: &mut Numbers, is_new: bool) -> bool {
    match (pool, model) {
        (Answer::Named(pool, pool_attr), Answer::Named(model, model_attr)) => {
            if is_new {
                numbers.insert(pool.ino, (pool.generation, model.ino));
            }
            let known = (pool.generation, model.ino);
            numbers.get(&pool.ino) == Some(&known) && pool_attr == model_attr
        }
        (Answer::Entry(Some((kind, ino))), Answer::Entry(Some((model_kind, model_ino)))) => {
            let known = numbers.get(ino).map(|known| known.1);
            kind == model_kind && known == Some(*model_ino)
        }
        (pool, model) => pool == model,
    }
}

/// Tells what the threads were answered.
pub(crate) fn told(threads: &[Vec<Answered>]) -> String {
    let mut text = String::new();
    let mut calls: Vec<(usize, &Answered)> = threads
        .iter()
        .enumerate()
        .flat_map(|(thread, calls)| calls.iter().map(move |call| (thread, call)))
        .collect();
    calls.sort_by_key(|(_, call)| call.begun);
    for (thread, Answered { call, answer, begun, ended }) in calls {
        let short = if let Answer::Bytes(bytes) = answer {
            format!("{} bytes", bytes.len())
        } else {
            format!("{answer:?}")
        };
        writeln!(text, "{begun:>3} to {ended:>3}, thread {thread}: {call:?}: {short}")
            .expect("a String takes any text");
    }
    text
}
