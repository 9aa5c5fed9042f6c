//! Moves of filesets between the pools of a server.

use std::path::Path;
use std::sync::{MutexGuard, PoisonError, TryLockError};

use engine::Fronts;
use format::fileset::Moving;
use serde_json::{Value, json};

use super::{Hub, ServedPool, shown};
use crate::backend::BackendError;
use crate::transfer::{OnBytes, Transfer};
use crate::uses::SeatFronts;
use crate::wiring::moves::{self, MoveTask};

impl Hub {
    /// Moves a fileset of the pool of number `index`, or gives that up.
    pub(super) fn move_fileset(
        &self,
        index: usize,
        request: &Transfer,
        progress: OnBytes<'_>,
    ) -> Result<Value, BackendError> {
        let served = &self.pools[index];
        let Transfer::Move { fileset, pool, to, gives_up } = request else {
            return Err(served.failed("it is no move"));
        };
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let is_it = |path: &Path| real(path) == real(pool);
        let found = self.pools.iter().enumerate().find(|(_, other)| is_it(&other.path));
        let (there_index, target) = found.ok_or_else(|| {
            let (own, other) = (served.path.display(), pool.display());
            served.failed(format!(
                "this server does not serve {other}: start `holdfast serve {own} {other}`"
            ))
        })?;
        if target.id == served.id {
            return Err(served.failed(
                "both are one pool: `holdfast fileset rename` gives a fileset another name",
            ));
        }
        let _alone = self.no_move(index)?;
        let (Some(from), Some(there)) = (served.pool.lend(), target.pool.lend()) else {
            return Err(served.failed("its filesets can't move"));
        };
        let task = if *gives_up { MoveTask::GiveUp } else { MoveTask::Run };
        let (own, other) = (&served.mounts.uses, &target.mounts.uses);
        let seat = own.seat_of(fileset);
        let moved = |fileset| self.exports_moved(fileset, (index, there_index));
        let fronts = seat.as_ref().map(|seat| seat.fronts(own, other, &moved));
        let by = fronts.as_ref().map(|fronts| -> &dyn Fronts { fronts });
        if let Some(fronts) = by {
            self.exports_will_move(fronts.fileset(), there_index)?;
        }
        // MU4: whoever has asked may not listen.
        let tell = &mut |done, total| {
            fronts.as_ref().is_some_and(SeatFronts::is_stopped) || progress(done, total)
        };
        let mut done = moves::run((&from, fileset), (&there, to), by, task, tell);
        let stays = |moves: Vec<(_, Moving)>| {
            !moves.iter().any(|(_, moving)| matches!(moving, Moving::Leaving { .. }))
        };
        self.exports_settled(done.is_ok() || from.moves().is_some_and(stays));
        if let (Some(fronts), Ok(facts)) = (&fronts, &mut done) {
            facts["pauses_ms"] = json!(fronts.pauses_ms());
        }
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(target: "holdfast::audit", ?request, result, "move");
        done
    }

    /// Refuses an operator's word of where the fileset `name` is, where this server has both pools
    /// and they can say it themselves.
    pub(super) fn check_word(&self, index: usize, name: &str) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let moves_of = |served: &ServedPool| -> Vec<(String, Moving)> {
            let moves = served.pool.lend().and_then(|lent| lent.moves()).unwrap_or_default();
            moves.into_iter().map(|(name, moving)| (name.to_string(), moving)).collect()
        };
        let own = moves_of(served).into_iter().find(|(own, _)| own == name);
        let Some((_, moving)) = own else { return Ok(()) };
        for other in self.pools.iter().filter(|other| other.id != served.id) {
            let same = moves_of(other).into_iter().find(|(_, it)| it.token() == moving.token());
            let (from, to) = match (moving, same) {
                (Moving::Arrived { .. }, Some((there, Moving::Leaving { .. }))) => {
                    ((other, there), (served, name.to_owned()))
                }
                (Moving::Leaving { .. }, Some((there, Moving::Arrived { .. }))) => {
                    ((served, name.to_owned()), (other, there))
                }
                _ => continue,
            };
            let text =
                |(pool, name): (&ServedPool, String)| format!("{}:{name}", shown(&pool.path));
            return Err(served.failed(format!(
                "{name}: this server has both pools, and the fileset has arrived: `holdfast \
                 fileset move {} {}` finishes that",
                text(from),
                text(to)
            )));
        }
        Ok(())
    }

    /// Keeps others from moving a fileset until what this returns is dropped; refused while
    /// somebody does.
    pub(super) fn no_move(&self, index: usize) -> Result<MutexGuard<'_, ()>, BackendError> {
        match self.moving.try_lock() {
            Ok(alone) => Ok(alone),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let words = "a fileset is being moved: try again when that is done";
                Err(self.pools[index].failed(words))
            }
        }
    }

    /// Finds out where each fileset is that was on its way when a server ended.
    pub(crate) fn settle_moves(&self) {
        let _alone = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let lent: Vec<_> = self.pools.iter().filter_map(|served| served.pool.lend()).collect();
        moves::settle_all(&lent, &mut |pool, words| {
            tracing::warn!(pool = %pool.display(), "{words}");
        });
    }
}
