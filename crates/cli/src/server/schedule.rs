//! Clones by schedule: one at each full hour, day, week or month, and only so many of each kept.
//!
//! # Policy
//!
//! 1. A clone is due when none has the name of the period that is now: `hourly-2026-11-23_19-00`,
//!    by UTC. So a server that was not there at the full hour takes it when it is back, and a clock
//!    that is set back takes none twice.
//! 2. Of the clones that are named so, the newest ones are kept, by their names, and one at least;
//!    the others are deleted. Whatever is named in another way is nobody's but the user's.
//! 3. What is named after now, by a clock that was wrong, neither counts nor is deleted.
//! 4. What something needs counts, and is passed over: what is held, read, mounted, or gone back
//!    to by a fork. It is told with the schedule ([`Schedule::stays`]). What is refused for another
//!    cause is passed over too.
//! 5. Of a fileset one clone is deleted at a pass, and none while another of its family is being
//!    freed: the pool frees one at a time. A look makes up to [`PASSES_MAX`] passes.
//! 6. While a fileset moves to another pool of the server nothing is taken or deleted of it: a
//!    clone would be in the way. What is due then is taken at the next look, where it is then.
//! 7. What is deleted is the clone that was seen: one that somebody has taken anew by that name
//!    meanwhile is another, and stays.
//! 8. Where a fileset has as many clones as it can have, the oldest one that the schedule has taken
//!    of the kind that is due goes first; of a kind that has but one that stays, and one of the
//!    others goes. A schedule that keeps more than a fileset can have is refused.
//!
//! A schedule is of a fileset, whatever that is called: it goes by identity, so a rename changes
//! nothing, and another fileset that gets the name has no schedule. One whose fileset is gone stays
//! and is shown so until it is taken away. One whose fileset is in another pool of the server is of
//! that pool from then on ([`Hub::schedules_follow`]).
//!
//! What the configuration says of a fileset (`[[schedule]]`) counts before what a command has said,
//! which is kept and counts again once the configuration says nothing ([`configured`]).
//!
//! # Crashes
//!
//! A schedule that follows its fileset is in the file of the new pool before it is out of the
//! other's. The next server finds it in one of both or in both, and the fileset in one.
//!
//! [`plan`] decides, from the time and the names; [`Hub::keep_schedules`] does.

mod configured;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Hub, ServedPool};
use crate::backend::BackendError;
use crate::control::{Answer, Peer, Request, audited, name_of};
use crate::events::now_seconds;

pub(crate) use self::configured::{ConfiguredSchedule, check as check_configured};

/// Most clones of one kind that a schedule keeps.
const KEPT_MAX: u32 = 1000;
/// Most passes of one look, and so most clones of a fileset that it deletes: with the time between
/// them they take less than a look comes after the last.
pub(crate) const PASSES_MAX: usize = 32;
/// Clones of a fileset that are tried at one pass, until one can be deleted.
const TRIES_MAX: usize = 16;
/// Clones that a schedule can't delete and are told by name.
const STAYS_MAX: usize = 10;
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// The first of January 1970 was a Thursday: so many days before the next Monday week began.
const MONDAY_OFFSET_DAYS: u64 = 3;

/// How many clones of each kind are kept; 0: none is taken, and none deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Counts {
    /// One an hour.
    pub hourly: u32,
    /// One a day.
    pub daily: u32,
    /// One a week, from Monday.
    pub weekly: u32,
    /// One a month.
    pub monthly: u32,
}

/// A schedule of a fileset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Schedule {
    /// The fileset: what it is called now, or was last.
    pub fileset: String,
    /// What identifies it, as 32 hexadecimal digits.
    #[serde(default)]
    pub uuid: String,
    /// What is kept of it.
    pub keep: Counts,
    /// Whether there is no such fileset any more.
    #[serde(default)]
    pub is_gone: bool,
    /// Whether the configuration of the server says this, and not a command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_configured: bool,
    /// What a command has said beside the configuration: it counts once that says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set_aside: Option<Counts>,
    /// Clones that it would delete and something needs, and what: ten at most, and how many more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stays: Vec<String>,
}

impl Schedule {
    /// Returns what a command says of a fileset.
    fn new(fileset: &str, uuid: &str, keep: Counts) -> Schedule {
        let (fileset, uuid) = (fileset.to_owned(), uuid.to_owned());
        let (is_gone, is_configured) = (false, false);
        Schedule { fileset, uuid, keep, is_gone, is_configured, set_aside: None, stays: Vec::new() }
    }
}

impl Counts {
    fn of(&self) -> [(Period, u32); 4] {
        [
            (Period::Hour, self.hourly),
            (Period::Day, self.daily),
            (Period::Week, self.weekly),
            (Period::Month, self.monthly),
        ]
    }

    /// Returns how many clones are kept in all.
    fn total(&self) -> u64 {
        self.of().iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Returns why a fileset that has at most `clones_max` clones can't have these; 0: not known.
    fn check_fits(&self, fileset: &str, clones_max: u64) -> Result<(), String> {
        if clones_max == 0 || self.total() <= clones_max {
            return Ok(());
        }
        Err(format!(
            "{} keeps {} clones, and {fileset} can have {clones_max} at most in this pool: keep \
             fewer",
            self.text(),
            self.total()
        ))
    }

    /// Returns why these make no sense.
    pub(crate) fn check(&self) -> Result<(), String> {
        let is_possible = self.of().iter().all(|(_, count)| *count <= KEPT_MAX);
        let most = format!("a schedule keeps at most {KEPT_MAX} clones of a kind");
        if is_possible { Ok(()) } else { Err(most) }
    }

    /// Reads `hourly=24,daily=7`, or `none`.
    pub(crate) fn parse(text: &str) -> Result<Counts, String> {
        let mut counts = Counts::default();
        if text == "none" {
            return Ok(counts);
        }
        for word in text.split(',') {
            let wrong =
                || format!("`{word}`: write it as hourly=24,daily=7,weekly=4,monthly=12, or none");
            let (kind, count) = word.split_once('=').ok_or_else(wrong)?;
            let field = match kind {
                "hourly" => &mut counts.hourly,
                "daily" => &mut counts.daily,
                "weekly" => &mut counts.weekly,
                "monthly" => &mut counts.monthly,
                _ => return Err(wrong()),
            };
            *field = count.parse().map_err(|_| wrong())?;
        }
        counts.check().map(|()| counts)
    }

    /// Returns them as they are written.
    pub(crate) fn text(&self) -> String {
        let kept = self.of().into_iter().filter(|(_, count)| *count > 0);
        let words: Vec<_> = kept.map(|(period, n)| format!("{}={n}", period.word())).collect();
        if words.is_empty() { "none".to_owned() } else { words.join(",") }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Hour,
    Day,
    Week,
    Month,
}

impl Period {
    fn word(self) -> &'static str {
        match self {
            Period::Hour => "hourly",
            Period::Day => "daily",
            Period::Week => "weekly",
            Period::Month => "monthly",
        }
    }

    /// Returns the name of the clone of the period that `seconds` is in.
    fn name_at(self, seconds: u64) -> String {
        let day = seconds / DAY;
        let begin = match self {
            Period::Hour => seconds / HOUR * HOUR,
            Period::Day => day * DAY,
            Period::Week => {
                let weekday = (day + MONDAY_OFFSET_DAYS) % 7;
                day.saturating_sub(weekday) * DAY
            }
            Period::Month => (day + 1 - date_of(day).2) * DAY,
        };
        let (year, month, day) = date_of(begin / DAY);
        let hour = begin % DAY / HOUR;
        format!("{}-{year:04}-{month:02}-{day:02}_{hour:02}-00", self.word())
    }

    /// Returns whether a schedule has named a clone so: its periods begin with an hour, or with a
    /// day, of a month the first.
    fn has_named(self, name: &str) -> bool {
        let shape: &[u8; 16] = match self {
            Period::Hour => b"dddd-dd-dd_dd-00",
            Period::Day | Period::Week => b"dddd-dd-dd_00-00",
            Period::Month => b"dddd-dd-01_00-00",
        };
        let rest = name.strip_prefix(self.word()).and_then(|rest| rest.strip_prefix('-'));
        let fits = |(have, shape): (u8, &u8)| match shape {
            b'd' => have.is_ascii_digit(),
            other => have == *other,
        };
        rest.is_some_and(|rest| rest.len() == shape.len() && rest.bytes().zip(shape).all(fits))
    }
}

/// Returns year, month and day of a day after the first of January 1970 (days_from_civil of
/// H. Hinnant, the other way round).
fn date_of(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

/// Returns a time as people read it.
pub(crate) fn moment(seconds: u64) -> String {
    let (year, month, day) = date_of(seconds / DAY);
    let (hour, minute) = (seconds % DAY / HOUR, seconds % HOUR / 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

/// What is to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Due {
    take: Vec<String>,
    delete: Vec<String>,
    /// What goes, the first first, where the fileset can have no clone more and one is to be taken.
    spare: Vec<String>,
}

/// Returns what is due at `seconds` where there are clones of these `names`.
fn plan(counts: &Counts, seconds: u64, names: &[String]) -> Due {
    let (mut due, mut others) = (Due::default(), Vec::new());
    for (period, count) in counts.of().into_iter().filter(|(_, count)| *count > 0) {
        let now = period.name_at(seconds);
        // The policy's second and third sentence: names are in the order of time.
        let mut own: Vec<&String> =
            names.iter().filter(|name| period.has_named(name) && **name <= now).collect();
        own.sort_unstable();
        let is_missing = own.last() != Some(&&now);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // The last one stays until there is another: that may not be taken after all.
        let kept = (count - usize::from(is_missing)).max(1);
        let surplus = own.len().saturating_sub(kept);
        // The policy's eighth sentence.
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

/// What is in the file of a pool's schedules.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptFile {
    #[serde(default, rename = "schedule")]
    schedules: Vec<Schedule>,
}

fn file_of(served: &ServedPool) -> String {
    format!("schedules-{}.toml", served.id)
}

/// Schedules of a server's pools: by number of the pool and identity of the fileset.
pub(crate) type Schedules = BTreeMap<(usize, String), Schedule>;

/// What there is of a fileset.
#[derive(Debug, Default)]
pub(super) struct Found {
    name: String,
    clones: Vec<String>,
    /// What identifies each of them.
    identities: BTreeMap<String, String>,
    /// Clones that something needs, and what.
    needed: BTreeMap<String, String>,
    /// Whether one of its family was deleted and is not all free.
    is_freeing: bool,
    /// How many clones it can have, and how many more.
    clones_max: u64,
    clones_left: u64,
}

impl Found {
    /// Splits what is to be deleted into what can be and what stays, and why.
    fn split(&self, delete: Vec<String>) -> (Vec<String>, Vec<String>) {
        let (mut can, mut stays) = (Vec::new(), Vec::new());
        for clone in delete {
            match self.needed.get(&clone) {
                None => can.push(clone),
                Some(by) => stays.push(format!("{}@{clone}: {by}", self.name)),
            }
        }
        (can, stays)
    }
}

/// What came of a pass over all schedules.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// What could not be done, by number of the pool.
    pub(crate) failed: Vec<(usize, String)>,
    /// Whether there may be more to delete.
    pub(crate) has_more: bool,
}

/// Returns the first of what stays, and how many more do.
fn shortened(mut stays: Vec<String>) -> Vec<String> {
    let more = stays.len().saturating_sub(STAYS_MAX);
    stays.truncate(STAYS_MAX);
    stays.extend((more > 0).then(|| format!("{more} more")));
    stays
}

impl Hub {
    /// Reads the schedules that were set of each pool. Before this none can be set: the file would
    /// lose those that were not read.
    pub(crate) fn read_schedules(&self) -> anyhow::Result<()> {
        let mut all = Schedules::new();
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let Some(text) = self.state.read(&name)? else { continue };
            let path = self.state.path_of(&name);
            let kept: KeptFile = toml::from_str(&text).map_err(|error| {
                anyhow::anyhow!("{}: {error}: mend the file, or remove it", path.display())
            })?;
            let found = self.found(index)?;
            for mut schedule in kept.schedules {
                // An older server wrote names alone.
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

    /// Schedules of filesets that are in another pool of this server by now are of that pool.
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
            // One that was set there since comes first.
            if !schedules.contains_key(&(to, uuid.clone())) {
                next.insert((to, uuid.clone()), schedule.clone());
            }
            gain.insert(to);
            lose.insert(*pool);
        }
        for index in &gain {
            next = renamed(&next, *index, &found[*index]);
        }
        // CRASH: it is in both files rather than in none.
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
        let file = KeptFile { schedules: list_of(schedules, index) };
        let text = toml::to_string(&file).map_err(|error| served.failed(error.to_string()))?;
        let written = self.state.write(&file_of(served), &text);
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    pub(super) fn schedule_set(
        &self,
        index: usize,
        fileset: &str,
        keep: &Counts,
        is_gone: bool,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        let is_none = *keep == Counts::default();
        keep.check().map_err(|cause| served.failed(cause))?;
        name_of(fileset).map_err(|cause| served.failed(cause))?;
        if is_gone && !is_none {
            return Err(served.failed("a fileset that is gone has no clones to take: write none"));
        }
        if !is_gone {
            self.check_not_configured(index, fileset)?;
        }
        let found = self.found(index)?;
        if let Some(of) = found.values().find(|it| it.name == fileset && !is_gone) {
            keep.check_fits(fileset, of.clones_max).map_err(|cause| served.failed(cause))?;
        }
        let mut schedules = self.schedules();
        let mut next = renamed(&schedules, index, &found);
        let named = found.iter().find(|(_, it)| it.name == fileset).map(|(uuid, _)| uuid.clone());
        let is_gone_one = |(pool, _): &(usize, String), it: &Schedule| {
            *pool == index && it.is_gone && it.fileset == fileset
        };
        match named.filter(|_| !is_gone) {
            Some(uuid) if !is_none => {
                let schedule = Schedule::new(fileset, &uuid, *keep);
                next.insert((index, uuid), schedule);
            }
            // By identity: one that is gone may have had the name too.
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
            let due = plan(&schedule.keep, now_seconds(), &of.clones);
            schedule.stays = shortened(of.split(due.delete).1);
        }
        list.sort_by(|a, b| (&a.fileset, a.is_gone).cmp(&(&b.fileset, b.is_gone)));
        Ok(Answer::Schedules(list))
    }

    /// Returns what the status of a pool says of its schedules; `None`: it has none.
    pub(super) fn schedule_status(&self, index: usize) -> Option<Value> {
        let own = list_of(&self.schedules(), index);
        let is_more = |it: &&ConfiguredSchedule| own.iter().all(|own| own.fileset != it.fileset);
        let count = own.len() + self.configured(index).iter().filter(is_more).count();
        let stays = self.stays.lock().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<String> = stays.get(&index).cloned().unwrap_or_default();
        (count > 0).then(|| json!({ "filesets": count, "stays": own }))
    }

    /// Does what schedules want at `seconds` after 1970, as far as one pass comes. Failures are
    /// logged, and tried again at the next call.
    pub(crate) fn keep_schedules(&self, seconds: u64) -> Kept {
        let mut kept = Kept::default();
        for index in 0..self.pools.len() {
            let configured = self.configured(index);
            if configured.is_empty() && list_of(&self.schedules(), index).is_empty() {
                continue;
            }
            // The policy's sixth sentence. None begins to move before this has ended.
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
            for Schedule { fileset, uuid, keep, is_configured, .. } in own {
                if moved.as_ref() == Some(&uuid) {
                    continue;
                }
                let Some(found) = found.get(&uuid) else {
                    let by = if is_configured { ", which the configuration names," } else { "" };
                    kept.failed.push((index, format!("the fileset {fileset}{by} is gone")));
                    continue;
                };
                let Due { take, mut delete, spare } = plan(&keep, seconds, &found.clones);
                let has_room =
                    u64::try_from(take.len()).is_ok_and(|count| found.clones_left >= count);
                if !has_room {
                    // What the eighth sentence has go and something needs is no surplus.
                    delete.extend(found.split(spare).0.into_iter().take(1));
                }
                // The policy's fourth and fifth sentence.
                let (delete, stays) = found.split(delete);
                all_stay.extend(stays);
                if has_room || (delete.is_empty() && !found.is_freeing) {
                    self.take_clones(index, &fileset, take, &mut kept);
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

    fn take_clones(&self, index: usize, fileset: &str, take: Vec<String>, kept: &mut Kept) {
        for clone in take {
            let fileset = fileset.to_owned();
            self.ask_for(index, &Request::CloneCreate { fileset, clone }, kept);
        }
    }

    /// Deletes the first clone that can be. Returns whether it has: then another pass looks what is
    /// left, and what stays.
    pub(super) fn delete_one(
        &self,
        index: usize,
        found: &Found,
        delete: Vec<String>,
        kept: &mut Kept,
    ) -> bool {
        for clone in delete.into_iter().take(TRIES_MAX) {
            // The policy's seventh sentence.
            let uuid = found.identities.get(&clone).cloned();
            let fileset = found.name.clone();
            if self.ask_for(index, &Request::CloneDelete { fileset, clone, uuid }, kept) {
                return true;
            }
        }
        false
    }

    /// Returns whether it was done.
    pub(super) fn ask_for(&self, index: usize, request: &Request, kept: &mut Kept) -> bool {
        let done = audited("schedule", request, || self.control(index, request, Peer::own()));
        if let Err(error) = &done {
            tracing::error!("schedules: {error}");
            kept.failed.push((index, error.to_string()));
        }
        done.is_ok()
    }

    /// Returns what there is of the fileset of this name.
    #[cfg(test)]
    pub(super) fn found_of(&self, index: usize, name: &str) -> Found {
        let found = self.found(index).expect("it can be listed").into_values();
        found.into_iter().find(|it| it.name == name).expect("it is there")
    }

    /// Returns what there is of each fileset, by identity.
    fn found(&self, index: usize) -> Result<BTreeMap<String, Found>, BackendError> {
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
        for facts in all.iter().filter(|it| it.freed_permille.is_none() && !it.is_clone) {
            by_name.insert(facts.name.clone(), facts.uuid.clone());
            let is_freeing = facts.is_family_freed;
            let of = Found {
                name: facts.name.clone(),
                is_freeing,
                clones_max: facts.clones_max,
                clones_left: facts.clones_left,
                ..Found::default()
            };
            found.insert(facts.uuid.clone(), of);
        }
        for facts in all {
            let Some((fileset, clone)) = facts.name.split_once('@') else { continue };
            let of = by_name.get(fileset).and_then(|uuid| found.get_mut(uuid));
            let Some(of) = of else { continue };
            if facts.freed_permille.is_some() {
                continue;
            }
            of.clones.push(clone.to_owned());
            of.identities.insert(clone.to_owned(), facts.uuid.clone());
            let used = facts.used_by.first().map(|how| format!("it is {}", how.words()));
            if let Some(by) = used.or(facts.needed_by) {
                of.needed.insert(clone.to_owned(), by);
            }
        }
        Ok(found)
    }
}

/// Returns the schedules with the names that the filesets of the pool of number `index` have now.
fn renamed(schedules: &Schedules, index: usize, found: &BTreeMap<String, Found>) -> Schedules {
    let mut next = schedules.clone();
    for ((_, uuid), schedule) in next.iter_mut().filter(|((pool, _), _)| *pool == index) {
        schedule.is_gone = !found.contains_key(uuid);
        if let Some(of) = found.get(uuid) {
            schedule.fileset.clone_from(&of.name);
        }
    }
    next
}

fn list_of(schedules: &Schedules, index: usize) -> Vec<Schedule> {
    let own = schedules.iter().filter(|((pool, _), _)| *pool == index);
    own.map(|(_, schedule)| schedule.clone()).collect()
}

#[cfg(test)]
mod tests;
