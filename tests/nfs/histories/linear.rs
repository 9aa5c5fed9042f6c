//! Whether a history could have been: is there an order of what clients asked, within the times in
//! which they asked it, that a tree answers in the same way?
//!
//! The search is that of J. Wing and C. Gong, *Testing and verifying concurrent objects*, 1993,
//! which forgets no arrangement that failed (G. Lowe, *Testing for linearizability*, 2017), with
//! deaths of the server between: what is done in a life is seen by all in that life, and at its end
//! only that is left which was *kept*.
//!
//! # Invariants
//! - LH1: A request is done at most once in each life of the server in which it arrived, after it
//!   was sent and before it was answered; exactly once in the life that answered.
//! - LH2: What was answered as durable is kept, with the same answer. What was not answered, and
//!   what is unstable, may be kept or not. After a COMMIT all of the file is kept.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use super::model::{Answer, EXISTS, Handles, How, Op, STALE, Tree};

/// Arrangements that are looked at before a history counts as one that could not have been.
const STEPS_MAX: usize = 400_000;
/// How often what seems to have been kept may have been lost, or the other way round, in a search.
const SURPRISES: [usize; 5] = [0, 1, 2, 4, usize::MAX];
/// Requests of one life.
pub(super) const PARTS_MAX: usize = 128;

/// One request in one life of the server.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) client: usize,
    pub(super) op: Op,
    /// When it was sent first in this life, and when it was answered, or the life ended.
    pub(super) from: usize,
    pub(super) until: usize,
    /// `None`: it was not answered in this life, and perhaps not done.
    pub(super) answer: Option<Answer<usize>>,
    /// When it arrived first: there it is tried first. Nothing depends on it but time.
    pub(super) hint: usize,
    pub(super) seems_kept: bool,
}

/// The requests of one life of the server.
pub(super) type Life = Vec<Part>;

/// Why no order was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is none.
    None,
    /// The search was given up.
    GivenUp,
}

struct Search<'h> {
    lives: &'h [Life],
    failed: BTreeSet<u64>,
    steps: usize,
    limit: usize,
    /// How far any arrangement has come: the life, and how many of its requests.
    best: (usize, u32),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct State {
    /// As clients see it.
    seen: Tree,
    /// What is left of it when the server dies.
    kept: Tree,
    handles: Handles,
}

/// Looks for an order of all requests.
pub(super) fn linearise(lives: &mut [Life]) -> Result<usize, (Failure, (usize, u32))> {
    for life in lives.iter_mut() {
        assert!(life.len() <= PARTS_MAX, "a life is short");
        life.sort_by_key(|part| part.hint);
    }
    let mut search = Search { lives, failed: BTreeSet::new(), steps: 0, limit: 0, best: (0, 0) };
    // First with few that were kept or lost against all appearance.
    for surprises in SURPRISES {
        search.failed.clear();
        search.limit = search.steps + STEPS_MAX;
        if search.go(0, 0, &State::default(), surprises) {
            return Ok(search.steps);
        }
    }
    let is_given_up = search.steps >= search.limit;
    Err((if is_given_up { Failure::GivenUp } else { Failure::None }, search.best))
}

/// Takes `cost` off a bound, if there is one.
fn less(bound: usize, cost: usize) -> Option<usize> {
    if bound == usize::MAX { Some(bound) } else { bound.checked_sub(cost) }
}

impl Search<'_> {
    fn go(&mut self, life: usize, done: u128, state: &State, surprises: usize) -> bool {
        let Some(parts) = self.lives.get(life) else { return true };
        self.steps += 1;
        self.best = self.best.max((life, done.count_ones()));
        if self.steps >= self.limit {
            return false;
        }
        let mut hasher = DefaultHasher::new();
        (life, done, state, surprises).hash(&mut hasher);
        let key = hasher.finish();
        if self.failed.contains(&key) {
            return false;
        }
        let is_open = |at: &usize| done & 1 << at == 0;
        let must = parts.iter().enumerate().filter(|(at, p)| is_open(at) && p.answer.is_some());
        let until = must.clone().map(|(_, part)| part.until).min();
        let first = usize::MAX;
        let ends = 'order: {
            for at in (0..parts.len()).filter(is_open) {
                if parts[at].from > until.unwrap_or(first) {
                    continue;
                }
                let states = self.after(life, at, state);
                let changes_nothing = states.len() == 1 && states[0] == *state;
                for (cost, next) in states.into_iter().enumerate() {
                    let Some(left) = less(surprises, cost) else { break };
                    if self.go(life, done | 1 << at, &next, left) {
                        return true;
                    }
                }
                // What was answered and changed nothing may as well be now as at any later time.
                if changes_nothing && parts[at].answer.is_some() {
                    break 'order false;
                }
            }
            until.is_none()
        };
        if ends {
            let kept = state.kept.clone().after_death();
            let handles = state.handles.clone();
            if self.go(life + 1, 0, &State { seen: kept.clone(), kept, handles }, surprises) {
                return true;
            }
        }
        if self.steps < self.limit {
            self.failed.insert(key);
        }
        false
    }

    /// Returns what may be after a request, the likely first.
    fn after(&self, life: usize, at: usize, state: &State) -> Vec<State> {
        let part = &self.lives[life][at];
        let me = self.lives[..life].iter().map(Vec::len).sum::<usize>() + at;
        let mut next = state.clone();
        let own = next.seen.run(&part.op, me, &state.handles);
        let file = part.op.handle().and_then(|handle| state.handles.file(handle));
        let is_nameless = file.is_some_and(|file| state.seen.is_nameless(file));
        if let Some(came) = &part.answer {
            // Nobody has to keep a file without a name.
            if is_nameless && *came == Answer::Failed(STALE) {
                return vec![state.clone()];
            }
            if !next.handles.match_answer(&own, came) {
                let Op::Create(place, How::Exclusive(number)) = part.op else { return Vec::new() };
                let is_forgotten = state.seen.may_have_forgotten(place, number);
                if !is_forgotten || *came != Answer::Failed(EXISTS) {
                    return Vec::new();
                }
                let mut next = state.clone();
                next.seen.forget(place);
                return vec![next];
            }
        }
        if let (Op::Read(..), Some(file)) = (part.op, file) {
            next.seen.loosen(file);
            next.kept.loosen(file);
        }
        if let (Op::Commit(_), Some(file)) = (part.op, file) {
            let is_kept = is_nameless || next.seen.agrees_on(&next.kept, file);
            return if is_kept { vec![next] } else { Vec::new() };
        }
        if !part.op.is_change() || matches!(own, Answer::Failed(_)) {
            return vec![next];
        }
        let mut kept = next.clone();
        let same = kept.kept.run(&part.op, me, &next.handles);
        if part.answer.is_some() && part.op.is_durable() {
            // LH2.
            return if same == own || is_nameless { vec![kept] } else { Vec::new() };
        }
        if part.seems_kept { vec![kept, next] } else { vec![next, kept] }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::NOT_FOUND;
    use super::*;

    fn part(op: Op, from: usize, until: usize, answer: Option<Answer<usize>>) -> Part {
        Part { client: 0, op, from, until, answer, hint: from, seems_kept: true }
    }

    const A: (u64, u64) = (0, 0);
    const MAKE: Op = Op::Create(A, How::Guarded);

    /// Goal: what the search must let pass, and what not.
    #[test]
    fn orders_are_found_where_there_are_any() {
        let made = || Some(Answer::File(7));
        let exists = || Some(Answer::Failed(EXISTS));
        let missing = || Some(Answer::Failed(NOT_FOUND));
        let (remove, look) = (Op::Remove(A), Op::Lookup(A));
        let check = |mut lives: Vec<Life>| linearise(&mut lives).is_ok();
        // Two at once: one makes it.
        assert!(check(vec![vec![part(MAKE, 0, 3, exists()), part(MAKE, 1, 2, made())]]));
        assert!(!check(vec![vec![part(MAKE, 0, 3, made()), part(MAKE, 1, 2, made())]]));
        // One after the other.
        assert!(!check(vec![vec![part(MAKE, 0, 1, exists()), part(MAKE, 2, 3, made())]]));
        // What was answered is there after a death; what was not, perhaps.
        assert!(!check(vec![vec![part(MAKE, 0, 1, made())], vec![part(look, 2, 3, missing())]]));
        for found in [made(), missing()] {
            assert!(check(vec![vec![part(MAKE, 0, 1, None)], vec![part(look, 2, 3, found)]]));
        }
        // Seen by somebody before it was lost, and again under the same handle as another file.
        let (lost, again) = (part(MAKE, 0, 3, None), part(MAKE, 5, 6, made()));
        let seen = part(look, 1, 2, made());
        let gone = part(look, 4, 4, missing());
        assert!(!check(vec![vec![lost, seen], vec![gone, again]]));
        // An exclusive creation that comes again is known as long as nobody has changed the file.
        let make_once = Op::Create(A, How::Exclusive(3));
        let again = |answer| part(make_once, 4, 5, answer);
        let first = || part(make_once, 0, 1, made());
        let change = Op::Write { of: 7, cell: 0, tag: 5, is_stable: true };
        assert!(check(vec![vec![first(), again(made())]]));
        assert!(!check(vec![vec![first(), again(exists())]]));
        let read = || part(Op::Read(7, 0), 2, 3, Some(Answer::Content(None)));
        assert!(check(vec![vec![first(), read(), again(made())]]));
        assert!(check(vec![vec![first(), read(), again(exists())]]));
        // A read that was not answered may have been done, until the life ends.
        let unanswered = || part(Op::Read(7, 0), 2, 9, None);
        assert!(check(vec![vec![first(), unanswered(), again(made())]]));
        assert!(check(vec![vec![first(), unanswered(), again(exists())]]));
        let other = || part(Op::Read(8, 0), 2, 9, None);
        assert!(!check(vec![vec![first(), other(), again(exists())]]));
        let change = || part(change, 2, 3, Some(Answer::Done));
        assert!(check(vec![vec![first(), change(), again(exists())]]));
        assert!(!check(vec![vec![first(), change(), again(made())]]));
        // A removal that answers that there was nothing has done it in the life before.
        let made_first = part(MAKE, 0, 1, made());
        let twice = vec![
            vec![made_first.clone(), part(remove, 2, 3, None)],
            vec![part(remove, 4, 5, missing())],
        ];
        assert!(check(twice));
        assert!(!check(vec![vec![made_first, part(remove, 2, 3, missing())]]));
        // A write that COMMIT has answered is kept, one that it has not may be lost.
        let make = part(MAKE, 0, 1, made());
        let write = Op::Write { of: 7, cell: 0, tag: 5, is_stable: false };
        let write = part(write, 2, 3, Some(Answer::Done));
        let commit = part(Op::Commit(7), 4, 5, Some(Answer::Done));
        let lost = vec![part(Op::Read(7, 0), 6, 7, Some(Answer::Content(None)))];
        assert!(check(vec![vec![make.clone(), write.clone()], lost.clone()]));
        assert!(!check(vec![vec![make, write, commit], lost]));
    }
}
