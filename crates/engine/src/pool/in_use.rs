//! The move of a fileset that fronts use: they go on behind it, and notice a pause (decision 0082).
//!
//! Differences follow the copy until one takes little time. Then requests are stopped: those under
//! way are answered, those that come wait. The rest is as of a fileset that nobody uses
//! ([`super::moving`]), and requests go on in the other pool, or where they were.
//!
//! # Invariants
//!
//! - MU1: From the stop to the end of the switch no request of a front is under way. What was
//!   accepted before is in the last clone.
//! - MU2: Requests go on where the fileset is. That it has arrived is durable before they do. That
//!   it stays is known before it is durable: what the target has not in memory, once whoever
//!   received has ended, it never has. Where neither can be told they are refused, until somebody
//!   asks again.
//! - MU3: What takes too long is given up: requests go on where they were, before anything more is
//!   waited for, and the move tries again. None are stopped while differences take long.
//! - MU4: Nobody but the pools is waited for while requests wait.
//!
//! # Crashes
//!
//! Fronts die with their server, so a crash finds what decision 0078 says, and no more. On the way
//! back requests go on while the source still says "leaving": a crash then asks the target, which
//! has nothing, and the fileset stays, with all that was done to it since.
//!
//! Not here: how requests are kept waiting (`front::relay`).

use super::Pool;
use super::moving::{Done, Move, MoveError, MoveHow, MoveStep, clones_of};
use crate::error::FsError;
use crate::vnode::Arrival;
use crate::vnode::api::FilesetUuid;
use format::fileset::MoveToken;
use format::ids::AnodeNo;
use runtime::planted::{self, Planted};

/// Differences that follow the copy before requests are stopped, at most.
const ROUNDS_MAX: usize = 4;
/// A difference that takes no longer is small: the last one is smaller still.
const SMALL_NS: u64 = 60_000_000;
/// Times that requests are stopped for a switch.
const TRIES: usize = 8;
/// How long the last difference may take to be sent and applied. What is left of [`PAUSE_NS_MAX`]
/// is for showing it, or for the way back.
const SWITCH_NS: u64 = 120_000_000;
/// Longest pause that a move means to make.
pub const PAUSE_NS_MAX: u64 = 250_000_000;
const _: () = assert!(SWITCH_NS < PAUSE_NS_MAX);

/// How often the fronts that a move knows hold the fileset.
const FRONT_HOLDS: usize = 1;

/// The fronts that use a fileset while it moves. They hold it once.
pub trait Fronts {
    /// Returns the fileset that they use.
    fn fileset(&self) -> FilesetUuid;

    /// Keeps requests waiting that come from now on, and waits for those under way. `false`: these
    /// take too long, and none waits any more.
    fn stop(&self) -> bool;

    /// Gives references back that fronts have given back while requests wait.
    fn give_back(&self);

    /// Requests go on where they were. Nothing where none waits.
    fn go_on(&self);

    /// Requests go on in the other pool, where the fileset is in this slot.
    fn go_there(&self, slot: u32);

    /// Requests that wait, and all that come, are refused: nobody knows where the fileset is.
    fn refuse(&self, why: &str);
}

/// The last difference of a fileset in use.
pub(super) struct Last<'l> {
    /// It is given up at this time, unless it is sent by then.
    pub(super) until_ns: u64,
    /// Files without a name that go along.
    pub(super) nameless: &'l [AnodeNo],
}

impl Last<'_> {
    /// MU3.
    pub(super) fn check(&self, source: &Pool) -> Done<()> {
        if source.monotonic_ns() > self.until_ns { Err(takes_long()) } else { Ok(()) }
    }
}

fn takes_long() -> MoveError {
    let words = "what changes while it moves takes longer to send than requests may wait";
    MoveError::Busy(words.to_owned())
}

/// Returns how often a fileset may be held that moves.
pub(super) fn holds_of(fronts: Option<&dyn Fronts>) -> usize {
    if fronts.is_some() { FRONT_HOLDS } else { 0 }
}

impl Pool {
    fn monotonic_ns(&self) -> u64 {
        self.core.store.clock.monotonic_ns()
    }
}

impl Move<'_> {
    /// Moves the rest of a fileset that `fronts` use, of which a copy has been made.
    pub(super) fn move_used(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveHow<'_>,
        fronts: &dyn Fronts,
    ) -> Done<()> {
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

    /// Deletes what earlier differences have left: the next begins from the newest clone that both
    /// pools have. What can't go yet goes with the next one, or at the end.
    fn delete_older(&self, (slot, token): (u32, MoveToken)) -> Done<()> {
        let (source, target) = (self.source.0, self.target.0);
        let newest = self.newest_there(token)?;
        let there = target.core.find_of_move(token).map_err(MoveError::Target)?;
        let there = there.map(|found| (target, found.slot, clones_of(&found, token)));
        let here = (source, slot, self.own_clones(slot, token)?);
        for (pool, slot, own) in [here].into_iter().chain(there) {
            for older in own.into_iter().filter(|clone| *clone != newest) {
                match pool.delete_clones(slot, &[older]) {
                    Ok(()) | Err(FsError::FilesetInUse { .. } | FsError::TryLater) => {}
                    Err(error) => return Err(MoveError::Source(error)),
                }
            }
        }
        Ok(())
    }

    /// Sends differences until one takes little time. Where even the last one takes longer than a
    /// switch may, requests are not stopped: the pause would be as long.
    fn catch_up(&self, (slot, token): (u32, MoveToken), how: &mut MoveHow<'_>) -> Done<()> {
        let mut took_ns = 0;
        for _ in 0..ROUNDS_MAX {
            let since_ns = self.source.0.monotonic_ns();
            self.forget_partial()?;
            self.reserve_there(slot, token)?;
            self.delete_older((slot, token))?;
            let next = self.take_clone(slot, token, how)?;
            let base = self.newest_there(token)?;
            let arrival = Arrival { token, end: None };
            self.carry((slot, Some(&base), &next), None, arrival, None, how)?;
            how.tell(MoveStep::Followed)?;
            took_ns = self.source.0.monotonic_ns().saturating_sub(since_ns);
            if took_ns <= SMALL_NS {
                break;
            }
        }
        let is_slow = took_ns > SWITCH_NS && !planted::is(Planted::MoveStopsWhenBusy);
        if is_slow { Err(takes_long()) } else { Ok(()) }
    }

    /// Stops requests, and lets them go on in the other pool, or where they were.
    fn switch_used(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveHow<'_>,
        fronts: &dyn Fronts,
    ) -> Done<()> {
        let source = self.source.0;
        let until_ns = source.monotonic_ns().saturating_add(SWITCH_NS);
        if !fronts.stop() {
            let words = "requests that are under way take longer than others may wait";
            return Err(MoveError::Busy(words.to_owned()));
        }
        // MU1.
        let switched = self.switch_stopped((slot, token), how, fronts, until_ns);
        let error = match switched {
            Ok(()) => return self.take_over((slot, token), fronts),
            Err(error) => error,
        };
        // Who has ended it looks as a crash would.
        if matches!(error, MoveError::Ended) {
            fronts.refuse("its move was ended");
            return Err(error);
        }
        if self.goes_back((slot, token)) {
            // MU2, MU3: before any device is waited for.
            source.core.reopen(slot).map_err(MoveError::Source)?;
            fronts.go_on();
            let found = source.core.find_slot(slot).map_err(MoveError::Source)?;
            let is_left = planted::is(Planted::MoveGoesBackLeaving);
            if !is_left && found.is_some_and(|found| found.moving.is_some()) {
                source.core.stay(slot).map_err(MoveError::Source)?;
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

    /// Whether the fileset is known to stay, without a wait for a device.
    fn goes_back(&self, (slot, token): (u32, MoveToken)) -> bool {
        let (source, target) = (&self.source.0.core, &self.target.0.core);
        let is_there = source.find_slot(slot).is_ok_and(|found| found.is_some());
        let is_alive = source.store.journal.check_alive().is_ok();
        is_there && is_alive && target.is_kept_out(token).unwrap_or(false)
    }

    fn switch_stopped(
        &self,
        (slot, token): (u32, MoveToken),
        how: &mut MoveHow<'_>,
        fronts: &dyn Fronts,
        until_ns: u64,
    ) -> Done<()> {
        how.tell(MoveStep::Stopped)?;
        // What was closed meanwhile need not come along.
        fronts.give_back();
        let nameless = self.source.0.core.nameless_of(slot).map_err(MoveError::Source)?;
        let nameless: Vec<_> = nameless.into_iter().map(|(number, _)| number).collect();
        let last = Last { until_ns, nameless: &nameless };
        self.switch((slot, token), how, Some(&last))
    }

    /// FM5: the fronts go on in the other pool.
    pub(super) fn take_over(
        &self,
        (slot, token): (u32, MoveToken),
        fronts: &dyn Fronts,
    ) -> Done<()> {
        let (source, target) = (&self.source.0.core, &self.target.0.core);
        let mut references = source.references_of(slot);
        let nameless = match source.nameless_of(slot) {
            Ok(nameless) => nameless,
            Err(error) => {
                fronts.refuse(&error.to_string());
                return Err(MoveError::Source(error));
            }
        };
        if planted::is(Planted::MoveForgetsReferences) {
            references.clear();
        }
        match target.take_over(token, &references, &nameless) {
            Ok(there) => {
                there.iter().for_each(|there| fronts.go_there(*there));
                source.let_go(slot).map_err(MoveError::Source)
            }
            Err(error) => {
                fronts.refuse(&error.to_string());
                Err(MoveError::Target(error))
            }
        }
    }

    /// Lets fronts go on that an earlier try has left waiting: the fileset has arrived.
    pub(super) fn take_over_late(&self, token: MoveToken, how: &MoveHow<'_>) -> Done<()> {
        let Some(fronts) = how.fronts else { return Ok(()) };
        let left = self.source.0.core.find_of_move(token).map_err(MoveError::Source)?;
        match left {
            Some(left) => self.take_over((left.slot, token), fronts),
            // It is deleted, which comes behind that.
            None => Ok(()),
        }
    }
}
