//! Moves of filesets between the pools of a server.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use engine::Fronts;
use engine::vnode::api::FilesetUuid;
use format::fileset::Moving;
use format::ids::PoolId;
use serde_json::{Value, json};

use super::{Hub, ServedPool, shown};
use crate::backend::BackendError;
use crate::control::FilesetFacts;
use crate::transfer::{OnBytes, Transfer};
use crate::uses::SeatFronts;
use crate::wiring::moves::{self, MoveTask};

/// What is on its way of a pool, by name.
type OnTheirWay = Vec<(String, Moving)>;

/// The fileset that is being moved, and the numbers of the pools.
pub(super) type MovedNow = Mutex<Option<(FilesetUuid, [usize; 2])>>;

/// Says which fileset is being moved, until it is dropped.
struct Marked<'h>(&'h MovedNow);

impl<'h> Marked<'h> {
    fn new(now: &'h MovedNow, fileset: Option<FilesetUuid>, pools: [usize; 2]) -> Marked<'h> {
        *lock(now) = fileset.map(|fileset| (fileset, pools));
        Marked(now)
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        *lock(self.0) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a fileset of this record is on its way from or to a pool.
fn is_between(moving: Moving, pool: &ServedPool) -> bool {
    match moving {
        Moving::Leaving { to: id, .. } | Moving::Arrived { from: id, .. } => {
            PoolId(id).to_string() == pool.id
        }
        Moving::Arriving { .. } => false,
    }
}

impl Hub {
    /// Returns which fileset is being moved, and the numbers of the pools.
    pub(super) fn moved_now(&self) -> Option<(FilesetUuid, [usize; 2])> {
        *lock(&self.moved_now)
    }

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
        // Where nobody uses it, it may have exports that are not served. One of which nothing is
        // left here has arrived, and its move is given once more to be finished.
        let identity = match by {
            Some(fronts) => Some(fronts.fileset()),
            None => match self.fileset_of(index, fileset)? {
                None => self.fileset_of(there_index, to)?,
                own => own,
            },
        };
        let marked = Marked::new(&self.moved_now, identity, [index, there_index]);
        // A schedule that takes a clone has not seen the mark: it is waited for.
        drop(lock(&self.keeping));
        if let Some(identity) = identity {
            self.exports_will_move(identity, there_index)?;
        }
        // MU4: whoever has asked may not listen.
        let tell = &mut |done, total| {
            fronts.as_ref().is_some_and(SeatFronts::is_stopped) || progress(done, total)
        };
        let mut done = moves::run((&from, fileset), (&there, to), by, task, tell);
        if let Some(identity) = identity {
            match self.is_moved(identity, (index, there_index)) {
                // Of one that is used its fronts have said so.
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

    /// Returns what identifies the fileset of this name.
    fn fileset_of(&self, index: usize, name: &str) -> Result<Option<FilesetUuid>, BackendError> {
        let names = self.fileset_names(index)?.into_iter();
        Ok(names.filter(|(_, own)| own == name).map(|(uuid, _)| uuid).next())
    }

    /// Returns whether a fileset has moved from one pool to the other, which is durable then, or
    /// has stayed. `None`: nobody knows, for the one says that it leaves, or can't be asked.
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
            // FM4: that was durable before the one was deleted.
            (None, Some(_)) => Some(true),
            (Some(_), _) => Some(false),
        }
    }

    /// Refuses an operator's word of where the fileset `name` is, where this server has both pools
    /// and they can say it themselves, or the other one can't say anything now.
    pub(super) fn check_word(&self, index: usize, name: &str) -> Result<(), BackendError> {
        self.check_word_by(index, name, &|served| {
            let moves = served.pool.lend().and_then(|lent| lent.moves())?;
            Some(moves.into_iter().map(|(name, moving)| (name.to_string(), moving)).collect())
        })
    }

    /// As [`Hub::check_word`], with what is on its way of a pool; `None`: that can't be read.
    pub(super) fn check_word_by(
        &self,
        index: usize,
        name: &str,
        moves_of: &dyn Fn(&ServedPool) -> Option<OnTheirWay>,
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
