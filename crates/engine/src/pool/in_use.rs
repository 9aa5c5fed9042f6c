//! Move of a fileset that front ends are using. They continue after the move and notice only a
//! pause (decision 0082).
//!
//! After the copy, differences are sent until one is quick. Then requests are stopped: those in
//! progress are finished, and new ones wait. The rest is as in [`super::moving`]. At the end
//! requests resume in the target pool, or in the source if the move fails.
//!
//! # Invariants
//!
//! - MU1: From the stop to the end of the switch, no front end has a request in progress.
//!   Everything accepted before is in the last snapshot.
//! - MU2: Requests resume only in the pool that has the fileset. Before they resume in the target,
//!   the arrival is durable there. In the source they may resume before the record that the fileset
//!   stays is durable: once the receiver has ended, an arrival that the target does not hold in
//!   memory can no longer become durable. If neither is certain, requests are refused until a later
//!   attempt settles it.
//! - MU3: A switch that takes too long is given up: requests resume in the source before any
//!   further wait, and the move tries again. While differences take long, requests are not stopped.
//! - MU4: While requests wait, the move waits for nothing except the two pools.
//!
//! # Crashes
//!
//! A crash of the server ends its front ends too, so the cases are those of decision 0078. When a
//! switch is given up, requests resume while the source is still marked as leaving. The open after
//! a crash then queries the target. That has nothing, so the fileset stays in the source, with all
//! changes made since.
//!
//! Not here: how requests are kept waiting (`front::relay`).

use super::Pool;
use super::moving::{Move, MoveError, MoveResult, MoveServices, MoveStep, snapshots_of};
use crate::api::FilesetUuid;
use crate::error::FsError;
use crate::transfer::receive::FilesetArrival;
use format::fileset::MoveToken;
use format::ids::AnodeNo;

/// Most differences sent between the copy and the stop of requests.
const ROUNDS_MAX: usize = 4;
/// A difference sent within this time is small, and the last one will be smaller still.
const SMALL_NS: u64 = 60_000_000;
const TRIES: usize = 8;
/// Time limit for the last difference. The remaining time of [`PAUSE_NS_MAX`] is for making the
/// fileset visible, or for resuming in the source.
const SWITCH_NS: u64 = 120_000_000;
/// Longest pause of requests that a move is designed for.
pub const PAUSE_NS_MAX: u64 = 250_000_000;
const _: () = assert!(SWITCH_NS < PAUSE_NS_MAX);

const FRONT_HOLDS: usize = 1;

/// The front ends using a fileset that moves. Together they count as one hold on it.
pub trait Fronts {
    /// Returns the fileset in use.
    fn fileset(&self) -> FilesetUuid;

    /// Makes new requests wait, and waits for those in progress. Returns `false`, without any
    /// request waiting, if these take too long.
    fn stop(&self) -> bool;

    /// Releases references to files that front ends have dropped while requests wait.
    fn give_back(&self);

    /// Resumes requests in the source. Does nothing if none wait.
    fn go_on(&self);

    /// Resumes requests in the other pool, where the fileset has this slot.
    fn go_there(&self, slot: u32);

    /// Refuses waiting and new requests, because the fileset's pool is uncertain.
    fn refuse(&self, why: &str);
}

pub(super) struct LastDifference<'l> {
    pub(super) until_ns: u64,
    pub(super) nameless: &'l [AnodeNo],
}

impl LastDifference<'_> {
    /// Fails after the deadline (MU3).
    pub(super) fn check(&self, source: &Pool) -> MoveResult<()> {
        if source.monotonic_ns() > self.until_ns { Err(takes_long()) } else { Ok(()) }
    }
}

fn takes_long() -> MoveError {
    let words = "what changes while it moves takes longer to send than requests may wait";
    MoveError::Busy(words.to_owned())
}

pub(super) fn holds_of(fronts: Option<&dyn Fronts>) -> usize {
    if fronts.is_some() { FRONT_HOLDS } else { 0 }
}

impl Pool {
    fn monotonic_ns(&self) -> u64 {
        self.core.store.clock.monotonic_ns()
    }
}

impl Move<'_> {
    pub(super) fn move_used(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveServices<'_>,
        fronts: &dyn Fronts,
    ) -> MoveResult<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            let caught_up = self.catch_up((slot, token), how);
            match caught_up.and_then(|()| self.switch_used((slot, token), how, fronts)) {
                Err(MoveError::Busy(_)) if tries < TRIES && (how.wait)() => {}
                done => return done,
            }
        }
    }

    /// Deletes snapshots of earlier differences, except the newest that both pools have. A snapshot
    /// in use stays for a later call.
    fn delete_older(&self, (slot, token): (u32, MoveToken)) -> MoveResult<()> {
        let (source, target) = (self.source.0, self.target.0);
        let newest = self.newest_there(token)?;
        let there = target.core.transfers().find_of_move(token).map_err(MoveError::Target)?;
        let there = there.map(|found| (target, found.slot, snapshots_of(&found, token)));
        let here = (source, slot, self.own_snapshots(slot, token)?);
        for (pool, slot, own) in [here].into_iter().chain(there) {
            for older in own.into_iter().filter(|snapshot| *snapshot != newest) {
                match pool.fileset_admin().delete_snapshots(slot, &[older]) {
                    Ok(()) | Err(FsError::FilesetInUse { .. } | FsError::TryLater) => {}
                    Err(error) => return Err(MoveError::Source(error)),
                }
            }
        }
        Ok(())
    }

    /// Sends differences until one is quick. Fails if even the last one takes longer than a switch
    /// may, because the pause would be as long.
    fn catch_up(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveServices<'_>,
    ) -> MoveResult<()> {
        let mut took_ns = 0;
        for _ in 0..ROUNDS_MAX {
            let since_ns = self.source.0.monotonic_ns();
            self.forget_partial()?;
            self.reserve_there(slot, token)?;
            self.delete_older((slot, token))?;
            let next = self.take_snapshot(slot, token, how)?;
            let base = self.newest_there(token)?;
            let arrival = FilesetArrival { token, end: None };
            self.carry((slot, Some(&base), &next), None, arrival, None, how)?;
            how.tell(MoveStep::Followed)?;
            took_ns = self.source.0.monotonic_ns().saturating_sub(since_ns);
            if took_ns <= SMALL_NS {
                break;
            }
        }
        if took_ns > SWITCH_NS { Err(takes_long()) } else { Ok(()) }
    }

    fn switch_used(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveServices<'_>,
        fronts: &dyn Fronts,
    ) -> MoveResult<()> {
        let source = self.source.0;
        let until_ns = source.monotonic_ns().saturating_add(SWITCH_NS);
        if !fronts.stop() {
            let words = "requests that are under way take longer than others may wait";
            return Err(MoveError::Busy(words.to_owned()));
        }
        // MU1: no request is in progress here.
        let switched = self.switch_stopped((slot, token), how, fronts, until_ns);
        let error = match switched {
            Ok(()) => return self.take_over((slot, token), fronts),
            Err(error) => error,
        };
        // The caller has ended the move, and must settle it as after a crash.
        if matches!(error, MoveError::Ended) {
            fronts.refuse("its move was ended");
            return Err(error);
        }
        if self.goes_back((slot, token)) {
            // MU2, MU3: requests resume before any wait for a device.
            source.core.transfers().reopen(slot).map_err(MoveError::Source)?;
            fronts.go_on();
            let found = source.core.transfers().find_slot(slot).map_err(MoveError::Source)?;
            if found.is_some_and(|found| found.moving.is_some()) {
                source.core.transfers().stay(slot).map_err(MoveError::Source)?;
            }
            return Err(if source.monotonic_ns() > until_ns { takes_long() } else { error });
        }
        match self.settle_in(slot) {
            Ok(Some(token)) => self.take_over((slot, token), fronts),
            Ok(None) => {
                fronts.go_on();
                Err(error)
            }
            Err(unknown) => {
                fronts.refuse(&unknown.to_string());
                Err(error)
            }
        }
    }

    /// Whether it is certain that the fileset stays in the source. Does not wait for a device.
    fn goes_back(&self, (slot, token): (u32, MoveToken)) -> bool {
        let (source, target) = (&self.source.0.core, &self.target.0.core);
        let is_there = source.transfers().find_slot(slot).is_ok_and(|found| found.is_some());
        let is_alive = source.store.journal.check_alive().is_ok();
        is_there && is_alive && target.transfers().is_kept_out(token).unwrap_or(false)
    }

    fn switch_stopped(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveServices<'_>,
        fronts: &dyn Fronts,
        until_ns: u64,
    ) -> MoveResult<()> {
        how.tell(MoveStep::Stopped)?;
        // Files that are closed by now need not be sent as unlinked files.
        fronts.give_back();
        let nameless =
            self.source.0.core.transfers().nameless_of(slot).map_err(MoveError::Source)?;
        let nameless: Vec<_> = nameless.into_iter().map(|(number, _)| number).collect();
        let last = LastDifference { until_ns, nameless: &nameless };
        self.switch((slot, token), how, Some(&last))
    }

    /// Resumes the front ends in the other pool, with their references (FM5).
    pub(super) fn take_over(
        &self,
        (slot, token): (u32, MoveToken),
        fronts: &dyn Fronts,
    ) -> MoveResult<()> {
        let (source, target) = (&self.source.0.core, &self.target.0.core);
        let references = source.transfers().references_of(slot);
        let nameless = match source.transfers().nameless_of(slot) {
            Ok(nameless) => nameless,
            Err(error) => {
                fronts.refuse(&error.to_string());
                return Err(MoveError::Source(error));
            }
        };
        match target.transfers().take_over(token, &references, &nameless) {
            Ok(there) => {
                there.iter().for_each(|there| fronts.go_there(*there));
                source.transfers().let_go(slot).map_err(MoveError::Source)
            }
            Err(error) => {
                fronts.refuse(&error.to_string());
                Err(MoveError::Target(error))
            }
        }
    }

    /// Resumes front ends that an earlier attempt left waiting, after the fileset has arrived.
    pub(super) fn take_over_late(
        &self,
        token: MoveToken,
        how: &MoveServices<'_>,
    ) -> MoveResult<()> {
        let Some(fronts) = how.fronts else { return Ok(()) };
        let left = self.source.0.core.transfers().find_of_move(token).map_err(MoveError::Source)?;
        match left {
            Some(left) => self.take_over((left.slot, token), fronts),
            // The takeover is complete, since the source copy is deleted only after it.
            None => Ok(()),
        }
    }
}
