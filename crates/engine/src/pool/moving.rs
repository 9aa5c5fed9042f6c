//! The move of a fileset to another pool: a copy that nobody sees, then the last difference while
//! nobody uses the fileset, and the switch (decision 0078).
//!
//! Each step is durable before the next begins, and [`Move::run`] goes on wherever it was ended:
//! what it needs to know stands in the entries of both pools. FM1 to FM6 are in `vnode/leave.rs`.
//!
//! Not here: fronts that use the fileset meanwhile (`in_use.rs`).
//!
//! # Concurrency
//!
//! The caller sees to it that a fileset is moved by one at a time. No lock of a pool is held while
//! the other is asked.

use std::io::{Read, Write};

use format::fileset::{FilesetName, MoveToken, Moving, NamePart};
use format::stream::Totals;
use runtime::clock::Clock;
use runtime::planted::{self, Planted};

use super::Pool;
use super::in_use::{Fronts, Last, holds_of};
use crate::error::FsError;
use crate::fileset::table::on_its_way;
use crate::stream::{ReceiveError, ResumeToken, SendError};
use crate::vnode::{
    Arrival, ArrivalEnd, Found, Partial, ReceiveFailure, Received, clone_prefix, is_of_a_move,
};

/// Times that what is left of a moved fileset is looked at again, while something of it is freed.
const WAITS_MAX: usize = 3000;

/// What a move has done when it is told; for tests that end it there, and for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// What is copied first is kept.
    Cloned,
    /// A copy of the fileset is there, and nobody sees it.
    Copied,
    /// Of one in use: what differs since has followed.
    Followed,
    /// Of one in use: requests wait.
    Stopped,
    /// The fileset leaves: nobody uses it.
    Leaves,
    /// What it is last is kept.
    LastCloned,
    /// It has arrived.
    Arrived,
    /// What its users may have is said there.
    Limited,
    /// Nothing of it is left where it was.
    Deleted,
    /// The pool that it is in knows that.
    Settled,
}

/// Why a fileset was not moved. What came is kept: the move goes on when it is begun again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The pool that it is in says why.
    #[error(transparent)]
    Source(FsError),
    /// The pool that it goes to says why.
    #[error("in the other pool: {0}")]
    Target(FsError),
    /// It can't be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// What comes is refused.
    #[error("in the other pool: {0}")]
    Receive(ReceiveError),
    /// It is not as it should be.
    #[error("{0}")]
    Refused(String),
    /// It is used too much: try again when it is used less.
    #[error("it is in use, and stays: {0}; give the command again later")]
    Busy(String),
    /// Somebody has ended it.
    #[error("the move was ended: give the command again to go on with it, or to give it up")]
    Ended,
}

/// Carries a stream from who sends it to who receives it.
pub trait Pipe {
    /// Runs both until the stream has ended. What `receive` says counts, unless `send` has failed.
    ///
    /// # Errors
    ///
    /// [`MoveError`].
    fn carry(&self, send: SendPart<'_>, receive: ReceivePart<'_>) -> Result<Received, MoveError>;
}

/// Sends a stream.
type SendPart<'p> = &'p mut (dyn FnMut(&mut dyn Write) -> Result<Totals, SendError> + Send);
/// Receives it.
type ReceivePart<'p> =
    &'p mut (dyn FnMut(&mut dyn Read) -> Result<Received, ReceiveFailure> + Send);

/// What a move needs of whoever runs it.
pub struct MoveHow<'h> {
    /// Carries streams.
    pub pipe: &'h dyn Pipe,
    /// Random bits, others each time.
    pub random: &'h mut dyn FnMut() -> [u8; 32],
    /// Waits a moment: jobs free something. `false`: there is no time.
    pub wait: &'h mut dyn FnMut() -> bool,
    /// The fronts that use the fileset; `None`: nobody may.
    pub fronts: Option<&'h dyn Fronts>,
    /// Told of each step; `false`: the move ends there.
    pub on_step: &'h mut dyn FnMut(MoveStep) -> bool,
    /// Told which anode was sent, and below which number all are.
    pub progress: &'h mut (dyn FnMut(u64, u64) + Send),
}

impl MoveHow<'_> {
    pub(super) fn tell(&mut self, step: MoveStep) -> Result<(), MoveError> {
        if (self.on_step)(step) { Ok(()) } else { Err(MoveError::Ended) }
    }
}

/// A move of a fileset.
#[derive(Clone, Copy, Debug)]
pub struct Move<'m> {
    /// Where it is, and its name there.
    pub source: (&'m Pool, &'m FilesetName),
    /// Where it goes, and its name there.
    pub target: (&'m Pool, &'m FilesetName),
}

pub(super) type Done<T> = Result<T, MoveError>;

/// Returns the `number`th clone that a move takes.
fn clone_name(token: MoveToken, number: usize) -> NamePart {
    let text = format!("{}{number}", clone_prefix(token));
    NamePart::new(&text).expect("it has letters, digits and dashes, and is short")
}

/// Returns the clones of a fileset that this move has taken, the newest last.
pub(super) fn clones_of(found: &Found, token: MoveToken) -> Vec<NamePart> {
    let prefix = clone_prefix(token);
    let is_own = |name: &&NamePart| name.as_str().starts_with(&prefix);
    found.clones.iter().filter(is_own).cloned().collect()
}

impl Move<'_> {
    /// Moves the fileset, or goes on with a move of it that was ended, wherever.
    ///
    /// # Errors
    ///
    /// See [`MoveError`]. The fileset is in one of both pools then, and in use unless a pool has
    /// failed: which one, [`Move::settle`] finds out.
    pub fn run(&self, how: &mut MoveHow<'_>) -> Done<()> {
        if let Some(token) = self.settle()? {
            self.take_over_late(token, how)?;
            return self.finish(token, how);
        }
        if let Some(fronts) = how.fronts {
            fronts.go_on();
        }
        let (source, name) = self.source;
        let found = source.core.find_moving(name.parts()).map_err(MoveError::Source)?;
        let found = found
            .ok_or_else(|| MoveError::Source(FsError::NoFileset { name: name.to_string() }))?;
        self.check_meant(&found, how)?;
        let begun = self.begun(found.slot)?;
        let holds = holds_of(how.fronts);
        source.core.check_movable(found.slot, begun, holds).map_err(MoveError::Source)?;
        let token = match begun {
            Some(token) => token,
            None => self.begin(found.slot, how)?,
        };
        self.copy(found.slot, token, how)?;
        self.reserve_there(found.slot, token)?;
        how.tell(MoveStep::Copied)?;
        if let Some(fronts) = how.fronts {
            self.move_used((found.slot, token), how, fronts)?;
            return self.finish(token, how);
        }
        if let Err(error) = self.switch((found.slot, token), how, None) {
            // Who has ended it looks as a crash would.
            if !matches!(error, MoveError::Ended)
                && let Some(token) = self.settle_in(found.slot)?
            {
                return self.finish(token, how);
            }
            return Err(error);
        }
        self.finish(token, how)
    }

    /// Refuses a fileset that is another than the one whose fronts wait for it, or that both pools
    /// have.
    fn check_meant(&self, found: &Found, how: &MoveHow<'_>) -> Done<()> {
        let (from, target) = (self.source.1, self.target.0);
        let is_other = |fronts: &dyn Fronts| fronts.fileset().0 != u128::from_le_bytes(found.uuid);
        if how.fronts.is_some_and(is_other) {
            let words = format!("{from} is another fileset than a moment ago: try again");
            return Err(MoveError::Refused(words));
        }
        // What has arrived here from another pool is refused in words of its own.
        if matches!(found.moving, Some(Moving::Arrived { .. })) {
            return Ok(());
        }
        if let Some(same) = target.core.find_same(found.uuid).map_err(MoveError::Target)? {
            return Err(MoveError::Refused(format!(
                "{same} in the other pool is the same fileset, for somebody has said where it is \
                 (`--here`): use one of both, and delete the other"
            )));
        }
        Ok(())
    }

    /// Finds out where the fileset is, if a move of it was ended. Where it leaves and has not
    /// arrived, it stays. Returns which move has to be finished, for it has arrived.
    ///
    /// # Errors
    ///
    /// [`MoveError`] if one of both pools can't say, or what has arrived there has come from a
    /// fileset of another name, which is here still.
    pub fn settle(&self) -> Done<Option<MoveToken>> {
        let ((source, from), (target, to)) = (self.source, self.target);
        let ids = (source.core.store.pool_id(), target.core.store.pool_id());
        if ids.0 == ids.1 {
            let words = "both are one pool: `holdfast fileset rename` gives a fileset another name";
            return Err(MoveError::Refused(words.to_owned()));
        }
        let found = source.core.find_moving(from.parts()).map_err(MoveError::Source)?;
        let is_leaving = |found: &&Found| matches!(found.moving, Some(Moving::Leaving { .. }));
        if let Some(leaving) = found.as_ref().filter(is_leaving) {
            return self.settle_found(leaving);
        }
        let there = target.core.find_moving(to.parts()).map_err(MoveError::Target)?;
        let Some(Moving::Arrived { token, from: other }) = there.and_then(|there| there.moving)
        else {
            return Ok(None);
        };
        if other != ids.0.0 {
            return Ok(None);
        }
        // FM4: by the token, for it may be called otherwise than whoever asks believes.
        if let Some(left) = self.left_of(token)? {
            let name = left.name;
            return Err(MoveError::Refused(format!(
                "{to} has come from {name}, which is left there: finish that move first (`holdfast \
                 fileset move` of {name})"
            )));
        }
        // What it came from is deleted, and that was not said.
        Ok(found.is_none().then_some(token))
    }

    /// As [`Move::settle`], of the fileset in `slot`, whatever it is called by now.
    pub(super) fn settle_in(&self, slot: u32) -> Done<Option<MoveToken>> {
        let found = self.source.0.core.find_slot(slot).map_err(MoveError::Source)?;
        found.map_or(Ok(None), |found| self.settle_found(&found))
    }

    fn settle_found(&self, found: &Found) -> Done<Option<MoveToken>> {
        let ((source, _), (target, _)) = (self.source, self.target);
        let Some(Moving::Leaving { token, to }) = found.moving else { return Ok(None) };
        let from = &found.name;
        if to != target.core.store.pool_id().0 {
            let other = format::ids::PoolId(to);
            return Err(MoveError::Refused(format!(
                "{from} is on its way to the pool {other}, which is another: serve that one too"
            )));
        }
        let asks = !planted::is(Planted::MoveStaysUnasked);
        if asks && target.core.is_arrived(token).map_err(MoveError::Target)? {
            return Ok(Some(token));
        }
        // FM3: the mark is gone, and the fileset is not.
        let same = target.core.find_same(found.uuid).map_err(MoveError::Target)?;
        if let Some(same) = same.filter(|_| !planted::is(Planted::MoveMakesASecond)) {
            return Err(MoveError::Refused(format!(
                "{from} is leaving, and {same} in the other pool is the same fileset: somebody has \
                 said that it is there (`--here`). To keep that one: `holdfast fileset move \
                 POOL:{from} --here`, and delete {from}. To keep this one: delete {same} there, \
                 and give the command again"
            )));
        }
        source.core.stay(found.slot).map_err(MoveError::Source)?;
        Ok(None)
    }

    /// Returns what is left where it was of a fileset that leaves by this move.
    fn left_of(&self, token: MoveToken) -> Done<Option<Found>> {
        let found = self.source.0.core.find_of_move(token).map_err(MoveError::Source)?;
        let is_leaving = |found: &Found| matches!(found.moving, Some(Moving::Leaving { .. }));
        Ok(found.filter(is_leaving))
    }

    /// Returns of which move something has come of the fileset in `slot`. `None`: nothing has.
    fn begun(&self, slot: u32) -> Done<Option<MoveToken>> {
        let (target, to) = self.target;
        let taken = || {
            let name = to.to_string();
            MoveError::Target(FsError::FilesetExists { name })
        };
        let there = target.core.find_moving(to.parts()).map_err(MoveError::Target)?;
        let partial = target.core.find_partial(to.parts()).map_err(MoveError::Target)?;
        let moving = match (there, partial) {
            (Some(there), _) => there.moving,
            (None, Some(partial)) => partial.moving,
            (None, None) => return Ok(None),
        };
        let Some(Moving::Arriving { token }) = moving else { return Err(taken()) };
        if self.own_clones(slot, token)?.is_empty() {
            return Err(self.is_of_another());
        }
        Ok(Some(token))
    }

    /// Begins a move of which nothing has come: what others have left of theirs is deleted.
    fn begin(&self, slot: u32, how: &mut MoveHow<'_>) -> Done<MoveToken> {
        let source = self.source.0;
        waiting(how, &mut || {
            let Some(found) = source.core.find_slot(slot)? else { return Ok(()) };
            let left: Vec<_> = found.clones.into_iter().filter(is_of_a_move).collect();
            source.delete_clones(slot, &left)
        })
        .map_err(MoveError::Source)?;
        let random = (how.random)();
        let mut token = *random.first_chunk().expect("16 of 32 bytes");
        // None has all zeros.
        token[0] |= 1;
        self.take_clone(slot, MoveToken(token), how)?;
        how.tell(MoveStep::Cloned)?;
        Ok(MoveToken(token))
    }

    /// Puts a copy of the fileset into the other pool, where nobody sees it, unless it is there.
    fn copy(&self, slot: u32, token: MoveToken, how: &mut MoveHow<'_>) -> Done<()> {
        let (target, to) = self.target;
        if target.core.find_moving(to.parts()).map_err(MoveError::Target)?.is_some() {
            return Ok(());
        }
        let partial = target.core.find_partial(to.parts()).map_err(MoveError::Target)?;
        let own = self.own_clones(slot, token)?;
        let first = own.first().ok_or_else(|| self.is_of_another())?;
        self.carry((slot, None, first), partial, Arrival { token, end: None }, None, how)
    }

    /// FM6: what is kept free for the fileset is kept free where it goes before it leaves. What
    /// comes from then on draws on that.
    pub(super) fn reserve_there(&self, slot: u32, token: MoveToken) -> Done<()> {
        let (target, to) = self.target;
        let found = self.source.0.core.find_slot(slot).map_err(MoveError::Source)?;
        let there = target.core.find_of_move(token).map_err(MoveError::Target)?;
        let Some((found, there)) = found.zip(there) else { return Ok(()) };
        let bytes = found.reservation_bytes;
        if bytes == there.reservation_bytes || planted::is(Planted::MoveDropsReservation) {
            return Ok(());
        }
        let reserved = target.core.reserve_arriving(there.slot, token, bytes);
        reserved.map_err(|error| {
            if error != FsError::NoSpace {
                return MoveError::Target(error);
            }
            MoveError::Refused(format!(
                "{to}: the other pool has no room for its reservation of {bytes} bytes: make room \
                 there, or lower it where it is (`holdfast fileset set POOL:{} reservation=...`), \
                 and give the command again",
                found.name
            ))
        })
    }

    /// FM6: what users may have is set where the fileset is, before it is gone where it was. What
    /// they have is counted there.
    fn allow_there(&self, token: MoveToken) -> Done<()> {
        let (source, target) = (self.source.0, self.target.0);
        let there = target.core.find_of_move(token).map_err(MoveError::Target)?;
        let Some((left, there)) = self.left_of(token)?.zip(there) else { return Ok(()) };
        let allowed = source.allowed_in(left.slot).map_err(MoveError::Source)?;
        let Some(allowed) = allowed.filter(|_| !planted::is(Planted::MoveDropsLimits)) else {
            return Ok(());
        };
        target.allow_in(there.slot, &allowed).map_err(MoveError::Target)
    }

    /// Gives up what came of an earlier difference: it is of another clone.
    pub(super) fn forget_partial(&self) -> Done<()> {
        let (target, to) = self.target;
        target.core.abort_receiving(to.parts()).map_err(MoveError::Target)?;
        target.free_given_up().map_err(MoveError::Target)
    }

    /// Returns the newest clone of this move that has come.
    pub(super) fn newest_there(&self, token: MoveToken) -> Done<NamePart> {
        let there = self.target.0.core.find_of_move(token).map_err(MoveError::Target)?;
        let newest = there.and_then(|there| clones_of(&there, token).pop());
        newest.ok_or_else(|| self.is_of_another())
    }

    /// FM2, FM3: the fileset leaves, what it has changed since its copy follows, and it is there.
    /// `of_used` says how that of one in use goes. The fileset is known by its slot: it may get
    /// another name until it leaves, and has clones of the move, so it is not deleted.
    pub(super) fn switch(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveHow<'_>,
        of_used: Option<&Last<'_>>,
    ) -> Done<()> {
        let (source, target) = (self.source.0, self.target.0);
        let ids = (source.core.store.pool_id(), target.core.store.pool_id());
        let check_time = || of_used.map_or(Ok(()), |last| last.check(source));
        self.forget_partial()?;
        check_time()?;
        if !planted::is(Planted::MoveLeavesUnwritten) {
            let holds = holds_of(how.fronts);
            source.core.leave(slot, (token, ids.1), holds).map_err(MoveError::Source)?;
        }
        how.tell(MoveStep::Leaves)?;
        check_time()?;
        let last = self.take_clone(slot, token, how)?;
        how.tell(MoveStep::LastCloned)?;
        check_time()?;
        let base = self.newest_there(token)?;
        let found = source.core.find_slot(slot).map_err(MoveError::Source)?;
        let found = found.ok_or(MoveError::Source(FsError::Stale))?;
        let there = target.core.find_of_move(token).map_err(MoveError::Target)?;
        let kept = there.map_or(0, |there| there.reservation_bytes);
        if kept != found.reservation_bytes && !planted::is(Planted::MoveDropsReservation) {
            return Err(MoveError::Busy("its reservation has changed while it moved".to_owned()));
        }
        let end = ArrivalEnd {
            from: ids.0,
            uuid: found.uuid,
            is_read_only: found.is_read_only,
            quota_bytes: found.quota_bytes,
        };
        let arrival = Arrival { token, end: Some(end) };
        self.carry((slot, Some(&base), &last), None, arrival, of_used, how)?;
        how.tell(MoveStep::Arrived)
    }

    /// Deletes what is left of a fileset that has arrived, and tells the pool that it is in.
    ///
    /// # Errors
    ///
    /// [`MoveError`]: the fileset is in the other pool all the same, and in use there.
    pub fn finish(&self, token: MoveToken, how: &mut MoveHow<'_>) -> Done<()> {
        let (source, target) = (self.source.0, self.target.0);
        if planted::is(Planted::ArrivalForgottenEarly) {
            self.settle_target(token)?;
        }
        self.allow_there(token)?;
        how.tell(MoveStep::Limited)?;
        // By the token in both: neither must be called what whoever asks believes.
        waiting(how, &mut || {
            let Some(found) = source.core.find_of_move(token)? else { return Ok(()) };
            if !matches!(found.moving, Some(Moving::Leaving { .. })) {
                return Ok(());
            }
            source.delete_clones(found.slot, &clones_of(&found, token))?;
            source.delete_moving(found.slot)
        })
        .map_err(MoveError::Source)?;
        how.tell(MoveStep::Deleted)?;
        let arrived = target.core.find_of_move(token).map_err(MoveError::Target)?;
        if let Some(found) = arrived {
            let own = clones_of(&found, token);
            target.core.check_unheld(found.slot, &own).map_err(MoveError::Target)?;
        }
        let is_used = how.fronts.is_some();
        waiting(how, &mut || {
            let Some(found) = target.core.find_of_move(token)? else { return Ok(()) };
            let mut own = clones_of(&found, token);
            if is_used {
                // Whoever changes the fileset waits while its newest clone goes: one does so last.
                own.reverse();
            }
            target.delete_clones(found.slot, &own)
        })
        .map_err(MoveError::Target)?;
        self.settle_target(token)?;
        how.tell(MoveStep::Settled)
    }

    fn settle_target(&self, token: MoveToken) -> Done<()> {
        let target = self.target.0;
        let settled = || {
            let is_arrived = |found: &Found| matches!(found.moving, Some(Moving::Arrived { .. }));
            match target.core.find_of_move(token)?.filter(is_arrived) {
                Some(found) => target.core.settle_arrival(found.slot),
                None => Ok(()),
            }
        };
        settled().map_err(MoveError::Target)
    }

    /// Gives a move up that has not arrived: nothing of it is left in the other pool.
    ///
    /// # Errors
    ///
    /// [`MoveError::Refused`] if it has arrived, there is nothing to give up, or what has come is
    /// of another fileset.
    pub fn give_up(&self, how: &mut MoveHow<'_>) -> Done<()> {
        let ((source, from), (target, to)) = (self.source, self.target);
        if self.settle()?.is_some() {
            let words = format!("{from} has arrived: give the command without --abort to finish");
            return Err(MoveError::Refused(words));
        }
        let there = target.core.find_moving(to.parts()).map_err(MoveError::Target)?;
        let partial = target.core.find_partial(to.parts()).map_err(MoveError::Target)?;
        let moving = there.as_ref().and_then(|there| there.moving);
        let moving = moving.or(partial.and_then(|partial| partial.moving));
        let Some(Moving::Arriving { token }) = moving else {
            return Err(MoveError::Refused(format!("nothing is on its way to {to}")));
        };
        let found = source.core.find_moving(from.parts()).map_err(MoveError::Source)?;
        let own = found.map(|found| (found.slot, clones_of(&found, token)));
        let Some((slot, own)) = own.filter(|(_, own)| !own.is_empty()) else {
            return Err(self.is_of_another());
        };
        source.core.check_unheld(slot, &own).map_err(MoveError::Source)?;
        waiting(how, &mut || target.delete_arriving(to, token)).map_err(MoveError::Target)?;
        waiting(how, &mut || match source.core.find_slot(slot)? {
            Some(found) => source.delete_clones(found.slot, &clones_of(&found, token)),
            None => Ok(()),
        })
        .map_err(MoveError::Source)
    }

    fn is_of_another(&self) -> MoveError {
        let ((_, from), (_, to)) = (self.source, self.target);
        MoveError::Refused(format!(
            "what has come to {to} is not of {from}, or its clone is gone: name the fileset that \
             it is of, or delete it there (`holdfast fileset delete`; `holdfast receive --abort` \
             if it is not whole)"
        ))
    }

    pub(super) fn own_clones(&self, slot: u32, token: MoveToken) -> Done<Vec<NamePart>> {
        let found = self.source.0.core.find_slot(slot).map_err(MoveError::Source)?;
        Ok(found.map(|found| clones_of(&found, token)).unwrap_or_default())
    }

    /// Takes the next clone for a move.
    pub(super) fn take_clone(
        &self,
        slot: u32,
        token: MoveToken,
        how: &mut MoveHow<'_>,
    ) -> Done<NamePart> {
        let (source, _) = self.source;
        let own = self.own_clones(slot, token)?;
        let number = |name: &NamePart| name.as_str().rsplit('-').next()?.parse::<usize>().ok();
        let next = own.iter().filter_map(number).max().unwrap_or(0) + 1;
        let name = clone_name(token, next);
        let random = (how.random)();
        let random = *random.first_chunk().expect("16 of 32 bytes");
        source.core.clone_moving(slot, &name, random).map_err(MoveError::Source)?;
        Ok(name)
    }

    /// Sends one clone, and receives it; `of_used` as of [`Move::switch`].
    pub(super) fn carry(
        &self,
        (slot, base, clone): (u32, Option<&NamePart>, &NamePart),
        partial: Option<Partial>,
        arrival: Arrival,
        of_used: Option<&Last<'_>>,
        how: &mut MoveHow<'_>,
    ) -> Done<()> {
        let ((source, _), (target, to)) = (self.source, self.target);
        let pinned = |name: &NamePart| source.core.pin_moving(slot, name);
        let from = base.map(pinned).transpose().map_err(MoveError::Source)?;
        let node = pinned(clone).map_err(MoveError::Source)?;
        let resume = partial.map(|partial| ResumeToken {
            from: [0; 16],
            to: partial.origin,
            at: partial.at,
        });
        let random = (how.random)();
        let MoveHow { pipe, progress, .. } = how;
        let until_ns = of_used.map(|last| last.until_ns);
        let is_left = planted::is(Planted::MoveLeavesNameless);
        let nameless = of_used.filter(|_| !is_left).map_or(&[][..], |last| last.nameless);
        let mut send = |out: &mut dyn Write| {
            let mut out = Until { way: out, clock: &*source.core.store.clock, until_ns };
            let nodes = (from.as_ref(), &node);
            source.core.send_with(nodes, (resume, nameless), &mut out, &mut **progress)
        };
        let mut receive = |input: &mut dyn Read| {
            let mut input = Until { way: input, clock: &*source.core.store.clock, until_ns };
            let input: (&mut dyn Read, _, _) = (&mut input, Some(arrival), false);
            target.core.receive(to.parts(), input, random, &mut |_, _| ())
        };
        let done = pipe.carry(&mut send, &mut receive);
        target.free_given_up().map_err(MoveError::Target)?;
        done.map(drop)
    }
}

/// Takes and gives nothing any more once it is late.
struct Until<'u, W: ?Sized> {
    way: &'u mut W,
    clock: &'u dyn Clock,
    until_ns: Option<u64>,
}

impl<W: ?Sized> Until<'_, W> {
    fn check(&self) -> std::io::Result<()> {
        if self.until_ns.is_some_and(|until_ns| self.clock.monotonic_ns() > until_ns) {
            return Err(std::io::Error::other("it takes longer than requests may wait"));
        }
        Ok(())
    }
}

impl Write for Until<'_, dyn Write + '_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.check()?;
        self.way.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.way.flush()
    }
}

impl Read for Until<'_, dyn Read + '_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.check()?;
        self.way.read(bytes)
    }
}

/// Does what may have to wait until something is freed.
fn waiting(
    how: &mut MoveHow<'_>,
    work: &mut dyn FnMut() -> Result<(), FsError>,
) -> Result<(), FsError> {
    for _ in 0..WAITS_MAX {
        match work() {
            Err(FsError::FilesetInUse { .. } | FsError::TryLater) if (how.wait)() => {}
            done => return done,
        }
    }
    work()
}

impl Pool {
    /// Deletes clones that moves of the fileset in `of` have taken, the last one first.
    pub(super) fn delete_clones(&self, of: u32, names: &[NamePart]) -> Result<(), FsError> {
        for name in names.iter().rev() {
            let slot = self.core.delete_clone_moving(of, name)?;
            self.free_by_job(slot, name.as_str());
        }
        Ok(())
    }

    fn delete_moving(&self, slot: u32) -> Result<(), FsError> {
        let name = self.core.delete_moving(slot)?;
        self.free_by_job(slot, &name);
        Ok(())
    }

    /// Deletes what has come of a fileset by this move and has not arrived; it is nobody's loss,
    /// for it is where it was.
    fn delete_arriving(&self, name: &FilesetName, token: MoveToken) -> Result<(), FsError> {
        self.core.abort_receiving(name.parts())?;
        self.free_given_up()?;
        let Some(found) = self.core.find_moving(name.parts())? else { return Ok(()) };
        if found.moving != Some(Moving::Arriving { token }) {
            return Err(on_its_way(found.name));
        }
        self.delete_clones(found.slot, &clones_of(&found, token))?;
        self.delete_moving(found.slot)
    }

    /// Deletes a fileset that has begun to arrive, if this one is such: nobody asks the other pool.
    /// `false`: it is not.
    pub(super) fn delete_if_arriving(&self, name: &FilesetName) -> Result<bool, FsError> {
        let moving = self.core.find_moving(name.parts())?.and_then(|found| found.moving);
        let Some(Moving::Arriving { token }) = moving else { return Ok(false) };
        self.delete_arriving(name, token).map(|()| true)
    }

    /// Returns each fileset that is on its way to another pool, or has come from one that may not
    /// know yet.
    ///
    /// # Errors
    ///
    /// As [`Pool::filesets`].
    pub fn moves(&self) -> Result<Vec<(FilesetName, Moving)>, FsError> {
        let all = self.filesets()?.into_iter();
        let named = |info: super::FilesetInfo| Some((info.name.parse().ok()?, info.moving?));
        Ok(all.filter_map(named).collect())
    }

    /// Takes a fileset that leaves to be here, or one that has arrived to be known: because an
    /// operator says so, and nobody asks the other pool.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] if it is not on its way so.
    pub fn take_as_here(&self, name: &FilesetName) -> Result<(), FsError> {
        let none = || FsError::NoFileset { name: name.to_string() };
        let found = self.core.find_moving(name.parts())?.ok_or_else(none)?;
        match found.moving {
            Some(Moving::Leaving { .. }) => self.core.stay(found.slot),
            Some(Moving::Arrived { .. }) => self.core.settle_arrival(found.slot),
            Some(Moving::Arriving { .. }) | None => {
                let by = "it neither leaves nor has arrived: there is nothing to say".to_owned();
                Err(FsError::FilesetInUse { name: name.to_string(), by })
            }
        }
    }
}
