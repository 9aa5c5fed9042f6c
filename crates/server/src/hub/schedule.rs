//! Scheduled snapshots: hourly, daily, weekly or monthly, with a limited number of each kept.
//!
//! # Policy
//!
//! 1. A snapshot is due if no snapshot has the name of the current period:
//!    `hourly-2026-11-23_19-00`, in UTC. So a server that was down takes it later, and if the clock
//!    is set back none is taken twice.
//! 2. Of the snapshots with names of this form, the newest are kept, by name, and at least one. The
//!    others are deleted. Snapshots with other names belong to the user.
//! 3. Snapshots whose name is in the future, because the clock was wrong, neither count nor are
//!    deleted.
//! 4. A snapshot that is in use (held, read, mounted, origin of a clone) counts but is not deleted,
//!    and is listed with the schedule ([`SnapshotSchedule::stays`]). If deleting a snapshot fails
//!    for another reason, the next one is tried.
//! 5. A pass deletes at most one snapshot of a fileset, and none while another one of the family is
//!    being freed, because the pool frees one at a time. A run of the schedules makes up to
//!    [`PASSES_MAX`] passes.
//! 6. While a fileset moves to another pool of the server, its snapshots are neither taken nor
//!    deleted, because a snapshot would end the move. A due snapshot is taken at the next run, in
//!    the pool that has the fileset then.
//! 7. A deletion names the snapshot's identity. So a snapshot that was taken again under the same
//!    name is not deleted.
//! 8. If a fileset has no room for a due snapshot, the oldest one of the due kind is deleted first,
//!    or one of another kind if the due kind has only one. A schedule that keeps more snapshots
//!    than a fileset can have is refused.
//!
//! A schedule is bound to the identity of its fileset. So it stays with a renamed fileset, and does
//! not apply to another one that gets the old name. The schedule of a deleted fileset is kept,
//! marked as gone, until it is removed. If the fileset is moved to another pool of the server, the
//! schedule follows ([`Hub::schedules_follow`]).
//!
//! The configuration (`[[schedule]]`) overrides the schedule set by a command. That is kept, and
//! applies again when the entry is removed from the configuration ([`configured`]).
//!
//! # Crashes
//!
//! When a schedule follows its fileset, the target pool's file is written before the source pool's.
//! So the next server finds the schedule in at least one file, and the fileset in one pool.
//!
//! [`plan`] decides, from the time and the names. [`Hub::keep_schedules`] acts.

mod configured;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

pub use control::{Period, SnapshotCounts, SnapshotSchedule, moment};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Hub, ServedPool};
use crate::backend::BackendError;
use crate::events::now_seconds;
use crate::peer::{Peer, audited};
use control::{Answer, Request, name_of};

pub use self::configured::{ConfiguredSchedule, check as check_configured};

/// Most passes per run, and so most deletions of a fileset's snapshots per run. With the pauses
/// between them they take less time than there is between two runs.
pub(crate) const PASSES_MAX: usize = 32;
const TRIES_MAX: usize = 16;
const STAYS_MAX: usize = 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct DueSnapshotActions {
    take: Vec<String>,
    delete: Vec<String>,
    /// Snapshots that may be deleted, in this order, if the fileset has no room for the due ones.
    spare: Vec<String>,
}

/// Returns what is due at `seconds` if the fileset has the snapshots `names`.
fn plan(counts: &SnapshotCounts, seconds: u64, names: &[String]) -> DueSnapshotActions {
    let (mut due, mut others) = (DueSnapshotActions::default(), Vec::new());
    for (period, count) in counts.of().into_iter().filter(|(_, count)| *count > 0) {
        let now = period.name_at(seconds);
        // Names in the future do not count (policy 3). The order of names is the order of time.
        let mut own: Vec<&String> =
            names.iter().filter(|name| period.has_named(name) && **name <= now).collect();
        own.sort_unstable();
        let is_missing = own.last() != Some(&&now);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // The oldest one is kept until the due one is taken, because taking it may fail.
        let kept = (count - usize::from(is_missing)).max(1);
        let surplus = own.len().saturating_sub(kept);
        // Of these, one may be deleted if the fileset has no room (policy 8).
        let stays = if is_missing { &mut due.spare } else { &mut others };
        stays.extend(own.iter().take(own.len().saturating_sub(1)).skip(surplus).copied().cloned());
        due.delete.extend(own.into_iter().take(surplus).cloned());
        due.take.extend(is_missing.then_some(now));
    }
    match due.take.is_empty() {
        true => due.spare.clear(),
        false => due.spare.append(&mut others),
    }
    due
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SchedulesFile {
    #[serde(default, rename = "schedule")]
    schedules: Vec<SnapshotSchedule>,
}

fn file_of(served: &ServedPool) -> String {
    format!("schedules-{}.toml", served.id)
}

pub(crate) type Schedules = BTreeMap<(usize, String), SnapshotSchedule>;

#[derive(Debug, Default)]
pub(super) struct ScheduledFileset {
    name: String,
    snapshots: Vec<String>,
    identities: BTreeMap<String, String>,
    needed: BTreeMap<String, String>,
    /// Whether a deleted node of the family is still being freed.
    is_freeing: bool,
    /// Most snapshots that the fileset can have, and how many more it can have now.
    snapshots_max: u64,
    snapshots_left: u64,
}

impl ScheduledFileset {
    /// Splits `delete` into snapshots that can be deleted, and the others with the reason.
    fn split(&self, delete: Vec<String>) -> (Vec<String>, Vec<String>) {
        let (mut can, mut stays) = (Vec::new(), Vec::new());
        for snapshot in delete {
            match self.needed.get(&snapshot) {
                None => can.push(snapshot),
                Some(by) => stays.push(format!("{}@{snapshot}: {by}", self.name)),
            }
        }
        (can, stays)
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SchedulePassResult {
    pub(crate) failed: Vec<(usize, String)>,
    pub(crate) has_more: bool,
}

fn shortened(mut stays: Vec<String>) -> Vec<String> {
    let more = stays.len().saturating_sub(STAYS_MAX);
    stays.truncate(STAYS_MAX);
    stays.extend((more > 0).then(|| format!("{more} more")));
    stays
}

impl Hub {
    /// Reads the stored schedules of all pools. Until then no schedule can be set, because writing
    /// the file would erase those that were not read.
    pub fn read_schedules(&self) -> anyhow::Result<()> {
        let mut all = Schedules::new();
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let Some(text) = self.state.read(&name)? else { continue };
            let path = self.state.path_of(&name);
            let kept: SchedulesFile = toml::from_str(&text).map_err(|error| {
                anyhow::anyhow!("{}: {error}: mend the file, or remove it", path.display())
            })?;
            let found = self.found(index)?;
            for mut schedule in kept.schedules {
                // An older server stored only the name of the fileset.
                if schedule.uuid.is_empty() {
                    let named = found.iter().find(|(_, it)| it.name == schedule.fileset);
                    let Some((uuid, _)) = named else {
                        let fileset = schedule.fileset;
                        tracing::warn!(fileset, "schedules: there is no such fileset");
                        continue;
                    };
                    schedule.uuid.clone_from(uuid);
                }
                all.insert((index, schedule.uuid.clone()), schedule);
            }
        }
        *self.schedules() = all;
        self.has_read_schedules.store(true, Ordering::Release);
        if let Err(error) = self.schedules_follow() {
            tracing::error!("schedules: {error}");
        }
        Ok(())
    }

    pub(super) fn schedules_follow(&self) -> Result<(), BackendError> {
        let all = 0..self.pools.len();
        let found: Vec<_> = all.clone().map(|index| self.found(index)).collect::<Result<_, _>>()?;
        let mut schedules = self.schedules();
        let (mut next, mut gain, mut lose) = (Schedules::new(), BTreeSet::new(), BTreeSet::new());
        for ((pool, uuid), schedule) in &*schedules {
            let is_at = |index: &usize| found[*index].contains_key(uuid);
            let there = if is_at(pool) { None } else { all.clone().find(is_at) };
            let Some(to) = there else {
                next.insert((*pool, uuid.clone()), schedule.clone());
                continue;
            };
            if !schedules.contains_key(&(to, uuid.clone())) {
                next.insert((to, uuid.clone()), schedule.clone());
            }
            gain.insert(to);
            lose.insert(*pool);
        }
        for index in &gain {
            next = renamed(&next, *index, &found[*index]);
        }
        // CRASH: files that gain a schedule are written first, so that each schedule is in at least
        // one file.
        for index in gain.iter().chain(lose.difference(&gain)) {
            self.write_schedules(*index, &next)?;
        }
        *schedules = next;
        Ok(())
    }

    fn write_schedules(&self, index: usize, schedules: &Schedules) -> Result<(), BackendError> {
        let served = &self.pools[index];
        if !self.has_read_schedules.load(Ordering::Acquire) {
            return Err(served.failed(
                "the server has not read yet which schedules there are: try again in a moment",
            ));
        }
        let file = SchedulesFile { schedules: list_of(schedules, index) };
        let text = toml::to_string(&file).map_err(|error| served.failed(error.to_string()))?;
        let written = self.state.write(&file_of(served), &text);
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    pub(super) fn schedule_set(
        &self,
        index: usize,
        fileset: &str,
        keep: &SnapshotCounts,
        is_gone: bool,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let is_none = *keep == SnapshotCounts::default();
        keep.check().map_err(|cause| served.failed(cause))?;
        name_of(fileset).map_err(|cause| served.failed(cause))?;
        if is_gone && !is_none {
            return Err(
                served.failed("a fileset that is gone has no snapshots to take: write none")
            );
        }
        if !is_gone {
            self.check_not_configured(index, fileset)?;
        }
        let found = self.found(index)?;
        if let Some(of) = found.values().find(|it| it.name == fileset && !is_gone) {
            keep.check_fits(fileset, of.snapshots_max).map_err(|cause| served.failed(cause))?;
        }
        let mut schedules = self.schedules();
        let mut next = renamed(&schedules, index, &found);
        let named = found.iter().find(|(_, it)| it.name == fileset).map(|(uuid, _)| uuid.clone());
        let is_gone_one = |(pool, _): &(usize, String), it: &SnapshotSchedule| {
            *pool == index && it.is_gone && it.fileset == fileset
        };
        match named.filter(|_| !is_gone) {
            Some(uuid) if !is_none => {
                let schedule = SnapshotSchedule::new(fileset, &uuid, *keep);
                next.insert((index, uuid), schedule);
            }
            // Only the fileset's own schedule, because a deleted fileset may have had the same
            // name.
            Some(uuid) => {
                let is_there = next.remove(&(index, uuid)).is_some();
                if !is_there && next.iter().any(|(key, it)| is_gone_one(key, it)) {
                    return Err(served.failed(format!(
                        "{fileset} has no schedule, but one that had this name and is gone has: \
                         `holdfast schedule set {}:{fileset} none --gone` takes that away",
                        served.path.display()
                    )));
                }
            }
            None if is_none => {
                let before = next.len();
                next.retain(|key, it| !is_gone_one(key, it));
                if is_gone && next.len() == before {
                    return Err(served.failed(format!(
                        "no fileset {fileset} that is gone has a schedule: `holdfast schedule \
                         list {}` shows them",
                        served.path.display()
                    )));
                }
            }
            None => {
                let list = format!("`holdfast fileset list {}`", served.path.display());
                let cause = format!("there is no fileset {fileset}: {list} shows them");
                return Err(served.failed(cause));
            }
        }
        self.write_schedules(index, &next)?;
        *schedules = next;
        Ok(Answer::Done)
    }

    pub(crate) fn schedule_list(&self, index: usize) -> Result<Answer, BackendError> {
        let found = self.found(index)?;
        let own = list_of(&renamed(&self.schedules(), index, &found), index);
        let mut list = configured::merged(own, &self.configured(index), &found);
        for schedule in &mut list {
            let Some(of) = found.get(&schedule.uuid) else { continue };
            let due = plan(&schedule.keep, now_seconds(), &of.snapshots);
            schedule.stays = shortened(of.split(due.delete).1);
        }
        list.sort_by(|a, b| (&a.fileset, a.is_gone).cmp(&(&b.fileset, b.is_gone)));
        Ok(Answer::Schedules(list))
    }

    /// Returns the part of `status` about a pool's schedules. `None` if there are none.
    pub(super) fn schedule_status(&self, index: usize) -> Option<Value> {
        let own = list_of(&self.schedules(), index);
        let is_more = |it: &&ConfiguredSchedule| own.iter().all(|own| own.fileset != it.fileset);
        let count = own.len() + self.configured(index).iter().filter(is_more).count();
        let stays = self.stays.lock().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<String> = stays.get(&index).cloned().unwrap_or_default();
        (count > 0).then(|| json!({ "filesets": count, "stays": own }))
    }

    /// Makes one pass at `seconds` since 1970. Failures are logged, and retried by the next pass.
    pub(crate) fn keep_schedules(&self, seconds: u64) -> SchedulePassResult {
        let mut kept = SchedulePassResult::default();
        for index in 0..self.pools.len() {
            let configured = self.configured(index);
            if configured.is_empty() && list_of(&self.schedules(), index).is_empty() {
                continue;
            }
            // No pass runs for a fileset that moves (policy 6). LOCK: a move waits until `keeping`
            // is released.
            let _keeping = self.keeping.lock().unwrap_or_else(PoisonError::into_inner);
            let moved = self.moved_now().map(|(fileset, _)| format!("{:032x}", fileset.0));
            let found = match self.found(index) {
                Ok(found) => found,
                Err(error) => {
                    tracing::error!("schedules: {error}");
                    kept.failed.push((index, error.to_string()));
                    continue;
                }
            };
            let own = {
                let mut schedules = self.schedules();
                *schedules = renamed(&schedules, index, &found);
                configured::merged(list_of(&schedules, index), &configured, &found)
            };
            let mut all_stay = Vec::new();
            for SnapshotSchedule { fileset, uuid, keep, is_configured, .. } in own {
                if moved.as_ref() == Some(&uuid) {
                    continue;
                }
                let Some(found) = found.get(&uuid) else {
                    let by = if is_configured { ", which the configuration names," } else { "" };
                    kept.failed.push((index, format!("the fileset {fileset}{by} is gone")));
                    continue;
                };
                let DueSnapshotActions { take, mut delete, spare } =
                    plan(&keep, seconds, &found.snapshots);
                let has_room =
                    u64::try_from(take.len()).is_ok_and(|count| found.snapshots_left >= count);
                if !has_room {
                    // A spare snapshot that is in use needs no listing, because the schedule would
                    // keep it.
                    delete.extend(found.split(spare).0.into_iter().take(1));
                }
                // Snapshots in use are listed and not deleted (policy 4).
                let (delete, stays) = found.split(delete);
                all_stay.extend(stays);
                if has_room || (delete.is_empty() && !found.is_freeing) {
                    self.take_snapshots(index, &fileset, take, &mut kept);
                }
                kept.has_more |= if found.is_freeing {
                    !delete.is_empty() || !has_room
                } else {
                    self.delete_one(index, found, delete, &mut kept)
                };
            }
            let mut stays = self.stays.lock().unwrap_or_else(PoisonError::into_inner);
            stays.insert(index, shortened(all_stay));
        }
        kept
    }

    fn take_snapshots(
        &self,
        index: usize,
        fileset: &str,
        take: Vec<String>,
        kept: &mut SchedulePassResult,
    ) {
        for snapshot in take {
            let fileset = fileset.to_owned();
            self.ask_for(index, &Request::SnapshotCreate { fileset, snapshot }, kept);
        }
    }

    /// Deletes the first snapshot that can be deleted. Returns whether one was, so that another
    /// pass may delete more.
    pub(super) fn delete_one(
        &self,
        index: usize,
        found: &ScheduledFileset,
        delete: Vec<String>,
        kept: &mut SchedulePassResult,
    ) -> bool {
        for snapshot in delete.into_iter().take(TRIES_MAX) {
            // The identity keeps a snapshot that was taken again under the same name (policy 7).
            let uuid = found.identities.get(&snapshot).cloned();
            let fileset = found.name.clone();
            if self.ask_for(index, &Request::SnapshotDelete { fileset, snapshot, uuid }, kept) {
                return true;
            }
        }
        false
    }

    pub(super) fn ask_for(
        &self,
        index: usize,
        request: &Request,
        kept: &mut SchedulePassResult,
    ) -> bool {
        let done = audited("schedule", request, || self.control(index, request, Peer::own()));
        if let Err(error) = &done {
            tracing::error!("schedules: {error}");
            kept.failed.push((index, error.to_string()));
        }
        done.is_ok()
    }

    #[cfg(test)]
    pub(super) fn found_of(&self, index: usize, name: &str) -> ScheduledFileset {
        let found = self.found(index).expect("it can be listed").into_values();
        found.into_iter().find(|it| it.name == name).expect("it is there")
    }

    fn found(&self, index: usize) -> Result<BTreeMap<String, ScheduledFileset>, BackendError> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        let served = &self.pools[index];
        while let Some(slot) = from {
            let request = Request::FilesetList { from: slot };
            let mut answer = served.pool.control(&request, Peer::own())?;
            served.mounts.uses.tell(&mut answer);
            let Answer::Filesets { list, next } = answer else { break };
            all.extend(list.into_iter().filter(|facts| !facts.is_receiving));
            from = next.filter(|&next| next > slot);
        }
        let (mut by_name, mut found) = (BTreeMap::new(), BTreeMap::new());
        for facts in all.iter().filter(|it| it.freed_permille.is_none() && !it.is_snapshot) {
            by_name.insert(facts.name.clone(), facts.uuid.clone());
            let is_freeing = facts.is_family_freed;
            let of = ScheduledFileset {
                name: facts.name.clone(),
                is_freeing,
                snapshots_max: facts.snapshots_max,
                snapshots_left: facts.snapshots_left,
                ..ScheduledFileset::default()
            };
            found.insert(facts.uuid.clone(), of);
        }
        for facts in all {
            let Some((fileset, snapshot)) = facts.name.split_once('@') else { continue };
            let of = by_name.get(fileset).and_then(|uuid| found.get_mut(uuid));
            let Some(of) = of else { continue };
            if facts.freed_permille.is_some() {
                continue;
            }
            of.snapshots.push(snapshot.to_owned());
            of.identities.insert(snapshot.to_owned(), facts.uuid.clone());
            let used = facts.used_by.first().map(|how| format!("it is {}", how.words()));
            if let Some(by) = used.or(facts.needed_by) {
                of.needed.insert(snapshot.to_owned(), by);
            }
        }
        Ok(found)
    }
}

/// Returns the schedules, with the current names of the filesets in pool `index`.
fn renamed(
    schedules: &Schedules,
    index: usize,
    found: &BTreeMap<String, ScheduledFileset>,
) -> Schedules {
    let mut next = schedules.clone();
    for ((_, uuid), schedule) in next.iter_mut().filter(|((pool, _), _)| *pool == index) {
        schedule.is_gone = !found.contains_key(uuid);
        if let Some(of) = found.get(uuid) {
            schedule.fileset.clone_from(&of.name);
        }
    }
    next
}

fn list_of(schedules: &Schedules, index: usize) -> Vec<SnapshotSchedule> {
    let own = schedules.iter().filter(|((pool, _), _)| *pool == index);
    own.map(|(_, schedule)| schedule.clone()).collect()
}

#[cfg(test)]
mod tests;
