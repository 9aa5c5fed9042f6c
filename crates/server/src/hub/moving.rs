//! Moves of filesets between pools of one server.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use engine::Fronts;
use engine::api::FilesetUuid;
use format::fileset::MoveState;
use format::ids::PoolId;
use serde_json::{Value, json};

use super::{Hub, ServedPool, shown};
use crate::backend::BackendError;
use crate::transfer::OnTransfer;
use crate::uses::ActiveFilesetFronts;
use crate::wiring::moves::{self, MoveTask};
use control::{FilesetFacts, Transfer};

type MovesInProgress = Vec<(String, MoveState)>;

/// The moving fileset, with the indices of source and target pool.
pub(super) type CurrentMove = Mutex<Option<(FilesetUuid, [usize; 2])>>;

struct MoveMark<'h>(&'h CurrentMove);

impl<'h> MoveMark<'h> {
    fn new(now: &'h CurrentMove, fileset: Option<FilesetUuid>, pools: [usize; 2]) -> MoveMark<'h> {
        *lock(now) = fileset.map(|fileset| (fileset, pools));
        MoveMark(now)
    }
}

impl Drop for MoveMark<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_between(moving: MoveState, pool: &ServedPool) -> bool {
    match moving {
        MoveState::Leaving { to: id, .. } | MoveState::Arrived { from: id, .. } => {
            PoolId(id).to_string() == pool.id
        }
        MoveState::Arriving { .. } => false,
    }
}

impl Hub {
    pub(super) fn moved_now(&self) -> Option<(FilesetUuid, [usize; 2])> {
        *lock(&self.moved_now)
    }

    pub(super) fn move_fileset(
        &self,
        index: usize,
        request: &Transfer,
        progress: OnTransfer<'_>,
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
                "this server does not serve {other}: start `holdfast serve {own} {other} \
                 --nfs ADDRESS:PORT`"
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
        // A fileset without uses may still have unserved exports, so its identity is needed. If the
        // source no longer has the fileset, this request finishes a move that has arrived.
        let identity = match by {
            Some(fronts) => Some(fronts.fileset()),
            None => match self.fileset_of(index, fileset)? {
                None => self.fileset_of(there_index, to)?,
                own => own,
            },
        };
        let marked = MoveMark::new(&self.moved_now, identity, [index, there_index]);
        // LOCK: waits for the end of a pass of schedules that began before the mark was set.
        drop(lock(&self.keeping));
        if let Some(identity) = identity {
            self.exports_will_move(identity, there_index)?;
        }
        // MU4: `progress` may block, so it is not called while requests are stopped.
        let tell =
            &mut |at| fronts.as_ref().is_some_and(ActiveFilesetFronts::is_stopped) || progress(at);
        let mut done = moves::run((&from, fileset), (&there, to), by, task, tell);
        if let Some(identity) = identity {
            match self.is_moved(identity, (index, there_index)) {
                // If the fileset has fronts, these have called `moved` already.
                Some(true) if by.is_none() => self.exports_moved(identity, (index, there_index)),
                Some(false) => self.exports_stay(identity),
                Some(true) | None => {}
            }
        }
        if done.is_ok()
            && let Err(error) = self.schedules_follow()
        {
            tracing::error!("a schedule does not follow its fileset: {error}");
        }
        drop(marked);
        if let (Some(fronts), Ok(facts)) = (&fronts, &mut done) {
            facts["pauses_ms"] = json!(fronts.pauses_ms());
        }
        let result = done.as_ref().map_or_else(ToString::to_string, |_| "done".to_owned());
        tracing::info!(target: "holdfast::audit", ?request, result, "move");
        done
    }

    fn fileset_of(&self, index: usize, name: &str) -> Result<Option<FilesetUuid>, BackendError> {
        let names = self.fileset_names(index)?.into_iter();
        Ok(names.filter(|(_, own)| own == name).map(|(uuid, _)| uuid).next())
    }

    /// Returns whether a fileset has durably moved, or has stayed. `None` if that is unknown: it is
    /// leaving its pool, or a pool cannot be read.
    pub(super) fn is_moved(
        &self,
        fileset: FilesetUuid,
        (from, to): (usize, usize),
    ) -> Option<bool> {
        let uuid = format!("{:032x}", fileset.0);
        let moving_in = |index| {
            let all = self.filesets_of(index).ok()?.into_iter();
            let word = |it: FilesetFacts| it.moving.unwrap_or_default();
            Some(all.filter(|it| it.uuid == uuid).map(word).next())
        };
        match (moving_in(from)?.as_deref(), moving_in(to)?.as_deref()) {
            (None, None | Some("arriving")) | (Some("leaving"), _) => None,
            // FM4: the fileset is deleted in the source only after its arrival is durable in the
            // target.
            (None, Some(_)) => Some(true),
            (Some(_), _) => Some(false),
        }
    }

    /// Refuses `fileset here` if the move can be finished with both pools of this server instead,
    /// or if the other pool of the move is here and cannot be read.
    pub(super) fn check_word(&self, index: usize, name: &str) -> Result<(), BackendError> {
        self.check_word_by(index, name, &|served| {
            let moves = served.pool.lend().and_then(|lent| lent.moves())?;
            Some(moves.into_iter().map(|(name, moving)| (name.to_string(), moving)).collect())
        })
    }

    /// Does the work of [`Hub::check_word`]. `moves_of` returns the moves of a pool, or `None` if
    /// they cannot be read.
    pub(super) fn check_word_by(
        &self,
        index: usize,
        name: &str,
        moves_of: &dyn Fn(&ServedPool) -> Option<MovesInProgress>,
    ) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let unread = |pool: &ServedPool| {
            let pool = shown(&pool.path);
            served.failed(format!(
                "{name}: the table of filesets of {pool} can't be read, and says where it is: mend \
                 that pool (`holdfast check {pool}`), or end the server and serve the other alone"
            ))
        };
        let own = moves_of(served).ok_or_else(|| unread(served))?;
        let Some((_, moving)) = own.into_iter().find(|(own, _)| own == name) else { return Ok(()) };
        for other in self.pools.iter().filter(|other| other.id != served.id) {
            let Some(there) = moves_of(other) else {
                if is_between(moving, other) {
                    return Err(unread(other));
                }
                continue;
            };
            let same = there.into_iter().find(|(_, it)| it.token() == moving.token());
            let (from, to) = match (moving, same) {
                (MoveState::Arrived { .. }, Some((there, MoveState::Leaving { .. }))) => {
                    ((other, there), (served, name.to_owned()))
                }
                (MoveState::Leaving { .. }, Some((there, MoveState::Arrived { .. }))) => {
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

    /// Keeps moves from starting until the guard is dropped. Fails if a move runs.
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

    /// Settles the moves that the end of a server interrupted.
    pub fn settle_moves(&self) {
        let _alone = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        let lent: Vec<_> = self.pools.iter().filter_map(|served| served.pool.lend()).collect();
        moves::settle_all(&lent, &mut |pool, words| {
            tracing::warn!(pool = %pool.display(), "{words}");
        });
    }
}
