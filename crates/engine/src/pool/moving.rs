//! Move of a fileset to another pool: an invisible copy, then the last difference while the fileset
//! is out of use, then the switch (decision 0078).
//!
//! Each step is durable before the next begins. [`Move::run`] resumes an interrupted move from the
//! state in both pools' fileset entries. FM1 to FM6 are in `transfer/leave.rs`.
//!
//! Not here: moves of a fileset that front ends use (`in_use.rs`).
//!
//! # Concurrency
//!
//! The caller ensures that at most one move of a fileset runs. No lock of one pool is held during a
//! call to the other.

use super::PoolFilesets;
use std::io::{Read, Write};

use format::fileset::{FilesetName, MoveState, MoveToken, NamePart};
use format::stream::StreamTotals;
use runtime::clock::Clock;
use runtime::{if_planted, planted};

use super::Pool;
use super::in_use::{Fronts, LastDifference, holds_of};
use crate::error::FsError;
use crate::fileset_table::table::on_its_way;
use crate::stream::{ReceiveError, ResumeToken, SendError};
use crate::transfer::leave::{FilesetMoveInfo, PartialFileset, is_of_a_move, snapshot_prefix};
use crate::transfer::receive::{ArrivalEnd, FilesetArrival, ReceiveFailure, Received};

/// Most attempts to delete the remains of a moved fileset, while part of it is still being freed.
const WAITS_MAX: usize = 3000;

/// Steps of a move, for display and for tests that interrupt it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// The first snapshot is taken.
    SnapshotTaken,
    /// An invisible copy of the fileset is in the target.
    Copied,
    /// For a fileset in use: a difference is sent.
    Followed,
    /// For a fileset in use: requests wait.
    Stopped,
    /// The fileset is marked as leaving, and is out of use.
    Leaves,
    /// The last snapshot is taken.
    LastSnapshot,
    /// The fileset has arrived.
    Arrived,
    /// Quota limits are set in the target.
    Limited,
    /// The source has deleted its copy.
    Deleted,
    /// The target has recorded that the move is complete.
    Settled,
}

/// Why a fileset was not moved. Received data is kept, and a repeated move resumes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// Error of the source pool.
    #[error(transparent)]
    Source(FsError),
    /// Error of the target pool.
    #[error("in the other pool: {0}")]
    Target(FsError),
    /// The fileset can't be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The target refuses the stream.
    #[error("in the other pool: {0}")]
    Receive(ReceiveError),
    /// A precondition does not hold.
    #[error("{0}")]
    Refused(String),
    /// Too much in use: try again when it is used less.
    #[error("it is in use, and stays: {0}; give the command again later")]
    Busy(String),
    /// The caller has ended the move.
    #[error("the move was ended: give the command again to go on with it, or to give it up")]
    Ended,
}

/// Transports a stream from the sender to the receiver.
pub trait Pipe {
    /// Runs both until the end of the stream. Returns the result of `receive` unless `send` has
    /// failed.
    ///
    /// # Errors
    ///
    /// [`MoveError`].
    fn carry(&self, send: SendPart<'_>, receive: ReceivePart<'_>) -> Result<Received, MoveError>;
}

type SendPart<'p> = &'p mut (dyn FnMut(&mut dyn Write) -> Result<StreamTotals, SendError> + Send);
type ReceivePart<'p> =
    &'p mut (dyn FnMut(&mut dyn Read) -> Result<Received, ReceiveFailure> + Send);

/// Services that a move needs from its caller.
pub struct MoveServices<'h> {
    /// Transports streams.
    pub pipe: &'h dyn Pipe,
    /// Fresh random bits for each call.
    pub random: &'h mut dyn FnMut() -> [u8; 32],
    /// Waits a moment while jobs free space. Returns `false` if there is no time left.
    pub wait: &'h mut dyn FnMut() -> bool,
    /// The front ends using the fileset. `None` requires that it is unused.
    pub fronts: Option<&'h dyn Fronts>,
    /// Receives each step. Returns `false` to end the move there.
    pub on_step: &'h mut dyn FnMut(MoveStep) -> bool,
    /// Receives the number of the anode sent, and the bound below which all are sent.
    pub progress: &'h mut (dyn FnMut(u64, u64) + Send),
}

impl MoveServices<'_> {
    pub(super) fn tell(&mut self, step: MoveStep) -> Result<(), MoveError> {
        if (self.on_step)(step) { Ok(()) } else { Err(MoveError::Ended) }
    }
}

/// A move of a fileset.
#[derive(Clone, Copy, Debug)]
pub struct Move<'m> {
    /// The source pool, and the fileset's name there.
    pub source: (&'m Pool, &'m FilesetName),
    /// The target pool, and the fileset's name there.
    pub target: (&'m Pool, &'m FilesetName),
}

pub(super) type MoveResult<T> = Result<T, MoveError>;

fn snapshot_name(token: MoveToken, number: usize) -> NamePart {
    let text = format!("{}{number}", snapshot_prefix(token));
    NamePart::new(&text).expect("it has letters, digits and dashes, and is short")
}

pub(super) fn snapshots_of(found: &FilesetMoveInfo, token: MoveToken) -> Vec<NamePart> {
    let prefix = snapshot_prefix(token);
    let is_own = |name: &&NamePart| name.as_str().starts_with(&prefix);
    found.snapshots.iter().filter(is_own).cloned().collect()
}

impl Move<'_> {
    /// Moves the fileset, or resumes an interrupted move.
    ///
    /// # Errors
    ///
    /// See [`MoveError`]. [`Move::settle`] then determines the pool that has the fileset, which is
    /// usable unless a pool has failed.
    pub fn run(&self, how: &mut MoveServices<'_>) -> MoveResult<()> {
        if let Some(token) = self.settle()? {
            self.take_over_late(token, how)?;
            return self.finish(token, how);
        }
        if let Some(fronts) = how.fronts {
            fronts.go_on();
        }
        let (source, name) = self.source;
        let found = source.core.transfers().find_moving(name.parts()).map_err(MoveError::Source)?;
        let found = found
            .ok_or_else(|| MoveError::Source(FsError::NoFileset { name: name.to_string() }))?;
        self.check_meant(&found, how)?;
        let begun = self.begun(found.slot)?;
        let holds = holds_of(how.fronts);
        source
            .core
            .transfers()
            .check_movable(found.slot, begun, holds)
            .map_err(MoveError::Source)?;
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
            // A move that the caller has ended must be settled by the caller, as after a crash.
            if !matches!(error, MoveError::Ended)
                && let Some(token) = self.settle_in(found.slot)?
            {
                return self.finish(token, how);
            }
            return Err(error);
        }
        self.finish(token, how)
    }

    /// Refuses a fileset that is not the one of the waiting front ends, or that is in both pools.
    fn check_meant(&self, found: &FilesetMoveInfo, how: &MoveServices<'_>) -> MoveResult<()> {
        let (from, target) = (self.source.1, self.target.0);
        let is_other = |fronts: &dyn Fronts| fronts.fileset().0 != u128::from_le_bytes(found.uuid);
        if how.fronts.is_some_and(is_other) {
            let words = format!("{from} is another fileset than a moment ago: try again");
            return Err(MoveError::Refused(words));
        }
        // A fileset that has arrived from another pool is refused later, with a more specific
        // reason.
        if matches!(found.moving, Some(MoveState::Arrived { .. })) {
            return Ok(());
        }
        if let Some(same) =
            target.core.transfers().find_same(found.uuid).map_err(MoveError::Target)?
        {
            return Err(MoveError::Refused(format!(
                "{same} in the other pool is the same fileset, for somebody has said where it is \
                 (`--here`): use one of both, and delete the other"
            )));
        }
        Ok(())
    }

    /// Determines the pool of a fileset after an interrupted move. A leaving fileset that has not
    /// arrived stays in the source. Returns the move to finish if the fileset has arrived.
    ///
    /// # Errors
    ///
    /// [`MoveError`] if a pool can't be read, or if the fileset in the target came from a source
    /// fileset of another name, whose move must be finished first.
    pub fn settle(&self) -> MoveResult<Option<MoveToken>> {
        let ((source, from), (target, to)) = (self.source, self.target);
        let ids = (source.core.store.pool_id(), target.core.store.pool_id());
        if ids.0 == ids.1 {
            let words = "both are one pool: `holdfast fileset rename` gives a fileset another name";
            return Err(MoveError::Refused(words.to_owned()));
        }
        let found = source.core.transfers().find_moving(from.parts()).map_err(MoveError::Source)?;
        let is_leaving =
            |found: &&FilesetMoveInfo| matches!(found.moving, Some(MoveState::Leaving { .. }));
        if let Some(leaving) = found.as_ref().filter(is_leaving) {
            return self.settle_found(leaving);
        }
        let there = target.core.transfers().find_moving(to.parts()).map_err(MoveError::Target)?;
        let Some(MoveState::Arrived { token, from: other }) = there.and_then(|there| there.moving)
        else {
            return Ok(None);
        };
        if other != ids.0.0 {
            return Ok(None);
        }
        // FM4: found by the token, because the fileset may have been renamed.
        if let Some(left) = self.left_of(token)? {
            let name = left.name;
            return Err(MoveError::Refused(format!(
                "{to} has come from {name}, which is left there: finish that move first (`holdfast \
                 fileset move` of {name})"
            )));
        }
        // The source is deleted, but the target has not recorded that yet.
        Ok(found.is_none().then_some(token))
    }

    /// Settles the fileset in `slot` as [`Move::settle`] does, whatever its name.
    pub(super) fn settle_in(&self, slot: u32) -> MoveResult<Option<MoveToken>> {
        let found = self.source.0.core.transfers().find_slot(slot).map_err(MoveError::Source)?;
        found.map_or(Ok(None), |found| self.settle_found(&found))
    }

    fn settle_found(&self, found: &FilesetMoveInfo) -> MoveResult<Option<MoveToken>> {
        let ((source, _), (target, _)) = (self.source, self.target);
        let Some(MoveState::Leaving { token, to }) = found.moving else { return Ok(None) };
        let from = &found.name;
        if to != target.core.store.pool_id().0 {
            let other = format::ids::PoolId(to);
            return Err(MoveError::Refused(format!(
                "{from} is on its way to the pool {other}, which is another: serve that one too"
            )));
        }
        let is_arrived = target.core.transfers().is_arrived(token).map_err(MoveError::Target)?;
        if is_arrived && !planted!(MoveStaysUnasked) {
            return Ok(Some(token));
        }
        // FM3: an operator has removed the mark of arrival, but the target has the fileset.
        let same = target.core.transfers().find_same(found.uuid).map_err(MoveError::Target)?;
        if let Some(same) = same.filter(|_| !planted!(MoveMakesASecond)) {
            return Err(MoveError::Refused(format!(
                "{from} is leaving, and {same} in the other pool is the same fileset: somebody has \
                 said that it is there (`--here`). To keep that one: `holdfast fileset move \
                 POOL:{from} --here`, and delete {from}. To keep this one: delete {same} there, \
                 and give the command again"
            )));
        }
        source.core.transfers().stay(found.slot).map_err(MoveError::Source)?;
        Ok(None)
    }

    fn left_of(&self, token: MoveToken) -> MoveResult<Option<FilesetMoveInfo>> {
        let found =
            self.source.0.core.transfers().find_of_move(token).map_err(MoveError::Source)?;
        let is_leaving =
            |found: &FilesetMoveInfo| matches!(found.moving, Some(MoveState::Leaving { .. }));
        Ok(found.filter(is_leaving))
    }

    /// Returns the move by which part of the fileset in `slot` has reached the target, if any.
    fn begun(&self, slot: u32) -> MoveResult<Option<MoveToken>> {
        let (target, to) = self.target;
        let taken = || {
            let name = to.to_string();
            MoveError::Target(FsError::FilesetExists { name })
        };
        let there = target.core.transfers().find_moving(to.parts()).map_err(MoveError::Target)?;
        let partial =
            target.core.transfers().find_partial(to.parts()).map_err(MoveError::Target)?;
        let moving = match (there, partial) {
            (Some(there), _) => there.moving,
            (None, Some(partial)) => partial.moving,
            (None, None) => return Ok(None),
        };
        let Some(MoveState::Arriving { token }) = moving else { return Err(taken()) };
        if self.own_snapshots(slot, token)?.is_empty() {
            return Err(self.is_of_another());
        }
        Ok(Some(token))
    }

    fn begin(&self, slot: u32, how: &mut MoveServices<'_>) -> MoveResult<MoveToken> {
        let source = self.source.0;
        waiting(how, &mut || {
            let Some(found) = source.core.transfers().find_slot(slot)? else { return Ok(()) };
            let left: Vec<_> = found.snapshots.into_iter().filter(is_of_a_move).collect();
            source.fileset_admin().delete_snapshots(slot, &left)
        })
        .map_err(MoveError::Source)?;
        let random = (how.random)();
        let mut token = *random.first_chunk().expect("16 of 32 bytes");
        // A token of all zeros is not allowed.
        token[0] |= 1;
        self.take_snapshot(slot, MoveToken(token), how)?;
        how.tell(MoveStep::SnapshotTaken)?;
        Ok(MoveToken(token))
    }

    fn copy(&self, slot: u32, token: MoveToken, how: &mut MoveServices<'_>) -> MoveResult<()> {
        let (target, to) = self.target;
        if target.core.transfers().find_moving(to.parts()).map_err(MoveError::Target)?.is_some() {
            return Ok(());
        }
        let partial =
            target.core.transfers().find_partial(to.parts()).map_err(MoveError::Target)?;
        let own = self.own_snapshots(slot, token)?;
        let first = own.first().ok_or_else(|| self.is_of_another())?;
        self.carry((slot, None, first), partial, FilesetArrival { token, end: None }, None, how)
    }

    /// Reserves space in the target before the fileset leaves (FM6). The arriving data uses it.
    pub(super) fn reserve_there(&self, slot: u32, token: MoveToken) -> MoveResult<()> {
        let (target, to) = self.target;
        let found = self.source.0.core.transfers().find_slot(slot).map_err(MoveError::Source)?;
        let there = target.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        let Some((found, there)) = found.zip(there) else { return Ok(()) };
        let bytes = found.reservation_bytes;
        if bytes == there.reservation_bytes {
            return Ok(());
        }
        let reserved = target.core.reserve_arriving(there.slot, token, bytes);
        reserved.map_err(|error| {
            if error != FsError::NoSpace {
                return MoveError::Target(error);
            }
            MoveError::Refused(format!(
                "{to}: the other pool has no room for its reservation of {bytes} bytes: make room \
                 there, or lower it where it is (`holdfast fileset set POOL:{} reservation=SIZE`), \
                 and give the command again",
                found.name
            ))
        })
    }

    /// Copies quota limits to the target before the source is deleted (FM6).
    fn allow_there(&self, token: MoveToken) -> MoveResult<()> {
        let (source, target) = (self.source.0, self.target.0);
        let there = target.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        let Some((left, there)) = self.left_of(token)?.zip(there) else { return Ok(()) };
        let allowed = source.fileset_admin().allowed_in(left.slot).map_err(MoveError::Source)?;
        let Some(allowed) = allowed.filter(|_| !planted!(MoveDropsLimits)) else {
            return Ok(());
        };
        target.fileset_admin().allow_in(there.slot, &allowed).map_err(MoveError::Target)
    }

    /// Discards the partial state of an earlier difference, which is of another snapshot.
    pub(super) fn forget_partial(&self) -> MoveResult<()> {
        let (target, to) = self.target;
        target.core.transfers().abort_receiving(to.parts()).map_err(MoveError::Target)?;
        target.fileset_admin().free_given_up().map_err(MoveError::Target)
    }

    pub(super) fn newest_there(&self, token: MoveToken) -> MoveResult<NamePart> {
        let there =
            self.target.0.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        let newest = there.and_then(|there| snapshots_of(&there, token).pop());
        newest.ok_or_else(|| self.is_of_another())
    }

    /// Marks the fileset as leaving, sends the last difference and makes it visible in the target
    /// (FM2, FM3). `of_used` has the limits for a fileset in use. The fileset is identified by
    /// slot, because it can be renamed until it leaves. The move's snapshots prevent its deletion.
    pub(super) fn switch(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveServices<'_>,
        of_used: Option<&LastDifference<'_>>,
    ) -> MoveResult<()> {
        let (source, target) = (self.source.0, self.target.0);
        let ids = (source.core.store.pool_id(), target.core.store.pool_id());
        let check_time = || of_used.map_or(Ok(()), |last| last.check(source));
        self.forget_partial()?;
        check_time()?;
        let holds = holds_of(how.fronts);
        source.core.transfers().leave(slot, (token, ids.1), holds).map_err(MoveError::Source)?;
        how.tell(MoveStep::Leaves)?;
        check_time()?;
        let last = self.take_snapshot(slot, token, how)?;
        how.tell(MoveStep::LastSnapshot)?;
        check_time()?;
        let base = self.newest_there(token)?;
        let found = source.core.transfers().find_slot(slot).map_err(MoveError::Source)?;
        let found = found.ok_or(MoveError::Source(FsError::Stale))?;
        let there = target.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        let kept = there.map_or(0, |there| there.reservation_bytes);
        if kept != found.reservation_bytes {
            return Err(MoveError::Busy("its reservation has changed while it moved".to_owned()));
        }
        let end = ArrivalEnd {
            from: ids.0,
            uuid: found.uuid,
            is_read_only: found.is_read_only,
            quota_bytes: found.quota_bytes,
        };
        let arrival = FilesetArrival { token, end: Some(end) };
        self.carry((slot, Some(&base), &last), None, arrival, of_used, how)?;
        how.tell(MoveStep::Arrived)
    }

    /// Deletes the source of an arrived fileset, and completes the move in the target.
    ///
    /// # Errors
    ///
    /// [`MoveError`]. The fileset is usable in the target all the same.
    pub fn finish(&self, token: MoveToken, how: &mut MoveServices<'_>) -> MoveResult<()> {
        let (source, target) = (self.source.0, self.target.0);
        if_planted!(ArrivalForgottenEarly, self.settle_target(token)?);
        self.allow_there(token)?;
        how.tell(MoveStep::Limited)?;
        // By the token in both pools, because either fileset may have been renamed.
        waiting(how, &mut || {
            let Some(found) = source.core.transfers().find_of_move(token)? else { return Ok(()) };
            if !matches!(found.moving, Some(MoveState::Leaving { .. })) {
                return Ok(());
            }
            source.fileset_admin().delete_snapshots(found.slot, &snapshots_of(&found, token))?;
            source.fileset_admin().delete_moving(found.slot)
        })
        .map_err(MoveError::Source)?;
        how.tell(MoveStep::Deleted)?;
        let arrived = target.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        if let Some(found) = arrived {
            let own = snapshots_of(&found, token);
            target.core.transfers().check_unheld(found.slot, &own).map_err(MoveError::Target)?;
        }
        let is_used = how.fronts.is_some();
        waiting(how, &mut || {
            let Some(found) = target.core.transfers().find_of_move(token)? else { return Ok(()) };
            let mut own = snapshots_of(&found, token);
            if is_used {
                // Oldest first: deleting the newest snapshot blocks writers, so only the last
                // deletion does.
                own.reverse();
            }
            target.fileset_admin().delete_snapshots(found.slot, &own)
        })
        .map_err(MoveError::Target)?;
        self.settle_target(token)?;
        how.tell(MoveStep::Settled)
    }

    fn settle_target(&self, token: MoveToken) -> MoveResult<()> {
        let target = self.target.0;
        let settled = || {
            let is_arrived =
                |found: &FilesetMoveInfo| matches!(found.moving, Some(MoveState::Arrived { .. }));
            match target.core.transfers().find_of_move(token)?.filter(is_arrived) {
                Some(found) => target.core.transfers().settle_arrival(found.slot),
                None => Ok(()),
            }
        };
        settled().map_err(MoveError::Target)
    }

    /// Gives up a move before the fileset has arrived, and deletes everything received.
    ///
    /// # Errors
    ///
    /// [`MoveError::Refused`] if the fileset has arrived, or nothing of it was received.
    pub fn give_up(&self, how: &mut MoveServices<'_>) -> MoveResult<()> {
        let ((source, from), (target, to)) = (self.source, self.target);
        if self.settle()?.is_some() {
            let words = format!("{from} has arrived: give the command without --abort to finish");
            return Err(MoveError::Refused(words));
        }
        let there = target.core.transfers().find_moving(to.parts()).map_err(MoveError::Target)?;
        let partial =
            target.core.transfers().find_partial(to.parts()).map_err(MoveError::Target)?;
        let moving = there.as_ref().and_then(|there| there.moving);
        let moving = moving.or(partial.and_then(|partial| partial.moving));
        let Some(MoveState::Arriving { token }) = moving else {
            return Err(MoveError::Refused(format!("nothing is on its way to {to}")));
        };
        let found = source.core.transfers().find_moving(from.parts()).map_err(MoveError::Source)?;
        let own = found.map(|found| (found.slot, snapshots_of(&found, token)));
        let Some((slot, own)) = own.filter(|(_, own)| !own.is_empty()) else {
            return Err(self.is_of_another());
        };
        source.core.transfers().check_unheld(slot, &own).map_err(MoveError::Source)?;
        waiting(how, &mut || target.fileset_admin().delete_arriving(to, token))
            .map_err(MoveError::Target)?;
        waiting(how, &mut || match source.core.transfers().find_slot(slot)? {
            Some(found) => {
                source.fileset_admin().delete_snapshots(found.slot, &snapshots_of(&found, token))
            }
            None => Ok(()),
        })
        .map_err(MoveError::Source)
    }

    fn is_of_another(&self) -> MoveError {
        let ((_, from), (_, to)) = (self.source, self.target);
        MoveError::Refused(format!(
            "what has come to {to} is not of {from}, or its snapshot is gone: name the fileset \
             that it is of, or delete it there (`holdfast fileset delete POOL:{to}`; `holdfast \
             receive POOL:{to} --abort` if it is not whole)"
        ))
    }

    pub(super) fn own_snapshots(&self, slot: u32, token: MoveToken) -> MoveResult<Vec<NamePart>> {
        let found = self.source.0.core.transfers().find_slot(slot).map_err(MoveError::Source)?;
        Ok(found.map(|found| snapshots_of(&found, token)).unwrap_or_default())
    }

    pub(super) fn take_snapshot(
        &self,
        slot: u32,
        token: MoveToken,
        how: &mut MoveServices<'_>,
    ) -> MoveResult<NamePart> {
        let (source, _) = self.source;
        let own = self.own_snapshots(slot, token)?;
        let number = |name: &NamePart| name.as_str().rsplit('-').next()?.parse::<usize>().ok();
        let next = own.iter().filter_map(number).max().unwrap_or(0) + 1;
        let name = snapshot_name(token, next);
        let random = (how.random)();
        let random = *random.first_chunk().expect("16 of 32 bytes");
        source.core.transfers().snapshot_moving(slot, &name, random).map_err(MoveError::Source)?;
        Ok(name)
    }

    /// Sends and receives one snapshot. [`Move::switch`] explains `of_used`.
    pub(super) fn carry(
        &self,
        (slot, base, snapshot): (u32, Option<&NamePart>, &NamePart),
        partial: Option<PartialFileset>,
        arrival: FilesetArrival,
        of_used: Option<&LastDifference<'_>>,
        how: &mut MoveServices<'_>,
    ) -> MoveResult<()> {
        let ((source, _), (target, to)) = (self.source, self.target);
        let pinned = |name: &NamePart| source.core.transfers().pin_moving(slot, name);
        let from = base.map(pinned).transpose().map_err(MoveError::Source)?;
        let node = pinned(snapshot).map_err(MoveError::Source)?;
        let resume = partial.map(|partial| ResumeToken {
            from: [0; 16],
            to: partial.origin,
            at: partial.at,
        });
        let random = (how.random)();
        let MoveServices { pipe, progress, .. } = how;
        let until_ns = of_used.map(|last| last.until_ns);
        let nameless = of_used.map_or(&[][..], |last| last.nameless);
        let mut send = |out: &mut dyn Write| {
            let mut out = DeadlineStream { way: out, clock: &*source.core.store.clock, until_ns };
            let nodes = (from.as_ref(), &node);
            source.core.transfers().send_with(nodes, (resume, nameless), &mut out, &mut **progress)
        };
        let mut receive = |input: &mut dyn Read| {
            let mut input =
                DeadlineStream { way: input, clock: &*source.core.store.clock, until_ns };
            let input: (&mut dyn Read, _, _) = (&mut input, Some(arrival), false);
            target.core.transfers().receive(to.parts(), input, random, &mut |_, _| ())
        };
        let done = pipe.carry(&mut send, &mut receive);
        target.fileset_admin().free_given_up().map_err(MoveError::Target)?;
        done.map(drop)
    }
}

struct DeadlineStream<'u, W: ?Sized> {
    way: &'u mut W,
    clock: &'u dyn Clock,
    until_ns: Option<u64>,
}

impl<W: ?Sized> DeadlineStream<'_, W> {
    fn check(&self) -> std::io::Result<()> {
        if self.until_ns.is_some_and(|until_ns| self.clock.monotonic_ns() > until_ns) {
            return Err(std::io::Error::other("it takes longer than requests may wait"));
        }
        Ok(())
    }
}

impl Write for DeadlineStream<'_, dyn Write + '_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.check()?;
        self.way.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.way.flush()
    }
}

impl Read for DeadlineStream<'_, dyn Read + '_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.check()?;
        self.way.read(bytes)
    }
}

fn waiting(
    how: &mut MoveServices<'_>,
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

impl PoolFilesets<'_> {
    /// Deletes snapshots that moves of the fileset in slot `of` have taken, newest first.
    pub(super) fn delete_snapshots(&self, of: u32, names: &[NamePart]) -> Result<(), FsError> {
        for name in names.iter().rev() {
            let slot = self.core.transfers().delete_snapshot_moving(of, name)?;
            self.free_by_job(slot, name.as_str());
        }
        Ok(())
    }

    fn delete_moving(&self, slot: u32) -> Result<(), FsError> {
        let name = self.core.transfers().delete_moving(slot)?;
        self.free_by_job(slot, &name);
        Ok(())
    }

    /// Deletes the received part of a fileset that has not arrived. The source keeps the fileset.
    fn delete_arriving(&self, name: &FilesetName, token: MoveToken) -> Result<(), FsError> {
        self.core.transfers().abort_receiving(name.parts())?;
        self.free_given_up()?;
        let Some(found) = self.core.transfers().find_moving(name.parts())? else { return Ok(()) };
        if found.moving != Some(MoveState::Arriving { token }) {
            return Err(on_its_way(found.name));
        }
        self.delete_snapshots(found.slot, &snapshots_of(&found, token))?;
        self.delete_moving(found.slot)
    }

    /// Deletes a fileset if it is arriving, without contacting the source pool. Returns whether it
    /// was arriving.
    pub(super) fn delete_if_arriving(&self, name: &FilesetName) -> Result<bool, FsError> {
        let moving =
            self.core.transfers().find_moving(name.parts())?.and_then(|found| found.moving);
        let Some(MoveState::Arriving { token }) = moving else { return Ok(false) };
        self.delete_arriving(name, token).map(|()| true)
    }

    /// Returns each fileset that is moving to another pool, or has come by an unfinished move.
    ///
    /// # Errors
    ///
    /// As [`PoolFilesets::filesets`](crate::pool::PoolFilesets::filesets).
    pub fn moves(&self) -> Result<Vec<(FilesetName, MoveState)>, FsError> {
        let all = self.filesets()?.into_iter();
        let named = |info: super::FilesetInfo| Some((info.name.parse().ok()?, info.moving?));
        Ok(all.filter_map(named).collect())
    }

    /// Declares, on an operator's word, that a leaving fileset stays in this pool, or that the move
    /// of an arrived one is complete.
    ///
    /// # Errors
    ///
    /// [`FsError::FilesetInUse`] if it neither leaves nor has arrived.
    pub fn take_as_here(&self, name: &FilesetName) -> Result<(), FsError> {
        let none = || FsError::NoFileset { name: name.to_string() };
        let found = self.core.transfers().find_moving(name.parts())?.ok_or_else(none)?;
        match found.moving {
            Some(MoveState::Leaving { .. }) => self.core.transfers().stay(found.slot),
            Some(MoveState::Arrived { .. }) => self.core.transfers().settle_arrival(found.slot),
            Some(MoveState::Arriving { .. }) | None => {
                let by = "it neither leaves nor has arrived: there is nothing to say".to_owned();
                Err(FsError::FilesetInUse { name: name.to_string(), by })
            }
        }
    }
}
