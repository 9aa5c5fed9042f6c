//! Scrubs by schedule: each pool once a month, unless somebody says otherwise.
//!
//! # Policy
//!
//! 1. A scrub is due when the last one began a day, a week or 30 days ago. One that somebody has
//!    begun by hand counts.
//! 2. One that has not come to its end with its server goes on where the pool goes on with it, and
//!    is due again where it does not.
//! 3. Of a pool that this server has not seen before the first is due as if one had begun then: a
//!    server that is new, or has lost its state, does not begin with scrubs of all pools.
//! 4. One at a time on a server, the pool first that waits longest; one that is paused or has
//!    failed keeps no other waiting, and is not begun anew.
//! 5. None of a pool that has nothing to be held against, or of which a device is away or joining:
//!    it waits.
//! 6. What is later than now, by a clock that was wrong, is taken to be now.
//! 7. What the pool refuses is tried again in an hour.
//!
//! How often is said by the configuration (`[[schedule]]`), else by a command, else it is a month.
//! A command is refused while the configuration says it.
//!
//! [`due_at`] decides, from times; [`Hub::keep_scrubs`] does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schedule::{Kept, moment};
use super::{Hub, ServedPool};
use crate::backend::BackendError;
use crate::control::{Answer, Peer, Request};
use crate::events::now_seconds;

const DAY: u64 = 24 * 3600;
/// After which what was refused is tried again: what it waits for takes longer than a look.
const RETRY_SECONDS: u64 = 3600;

/// How often a pool is scrubbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubEvery {
    /// Never by schedule.
    None,
    /// Each day.
    Daily,
    /// Every 7 days.
    Weekly,
    /// Every 30 days.
    #[default]
    Monthly,
}

impl ScrubEvery {
    /// Returns from the begin of one to that of the next.
    fn seconds(self) -> Option<u64> {
        match self {
            ScrubEvery::None => None,
            ScrubEvery::Daily => Some(DAY),
            ScrubEvery::Weekly => Some(7 * DAY),
            ScrubEvery::Monthly => Some(30 * DAY),
        }
    }

    /// Returns it as it is written.
    pub(crate) fn text(self) -> &'static str {
        match self {
            ScrubEvery::None => "none",
            ScrubEvery::Daily => "daily",
            ScrubEvery::Weekly => "weekly",
            ScrubEvery::Monthly => "monthly",
        }
    }

    /// Reads `monthly`, or `none`.
    pub(crate) fn parse(text: &str) -> Result<ScrubEvery, String> {
        let all = [ScrubEvery::None, ScrubEvery::Daily, ScrubEvery::Weekly, ScrubEvery::Monthly];
        let found = all.into_iter().find(|it| it.text() == text);
        found.ok_or_else(|| format!("`{text}`: write it as daily, weekly, monthly or none"))
    }
}

/// Who says how often a pool is scrubbed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SaidBy {
    /// Nobody.
    #[default]
    Default,
    /// `holdfast schedule scrub`.
    Command,
    /// `holdfast.toml`.
    Configuration,
}

impl SaidBy {
    /// Returns its word.
    pub(crate) fn text(self) -> &'static str {
        match self {
            SaidBy::Default => "default",
            SaidBy::Command => "command",
            SaidBy::Configuration => "configuration",
        }
    }
}

/// What is said of a pool's scrubs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScrubSchedule {
    /// How often.
    pub every: ScrubEvery,
    /// Who says so.
    pub said_by: SaidBy,
    /// When the last one began, as far as this server knows: seconds since 1970.
    pub begun_seconds: Option<u64>,
    /// Whether that has come to its end.
    pub is_ended: bool,
    /// When the next is due: seconds since 1970.
    pub due_seconds: Option<u64>,
    /// Why it does not begin when it is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

impl ScrubSchedule {
    /// Returns it as a line for people.
    pub(crate) fn line(&self) -> String {
        let mut line = format!("scrub  {} ({})", self.every.text(), self.said_by.text());
        if let Some(begun) = self.begun_seconds {
            line += &format!(", the last began {}", moment(begun));
        }
        match (&self.waits, self.due_seconds, self.is_ended) {
            (Some(waits), ..) => line += &format!(", {waits}"),
            (None, Some(due), _) => line += &format!(", next {}", moment(due)),
            (None, None, false) if self.begun_seconds.is_some() => line += ", under way",
            (None, None, _) => {}
        }
        line
    }
}

/// What is kept of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// What a command has said.
    every: Option<ScrubEvery>,
    /// Since when this server knows the pool: seconds since 1970.
    seen_seconds: u64,
    /// When the last scrub began.
    begun_seconds: Option<u64>,
    is_ended: bool,
}

impl Record {
    fn new(now: u64) -> Record {
        Record { every: None, seen_seconds: now, begun_seconds: None, is_ended: true }
    }

    /// The policy's sixth sentence.
    fn set_right(&mut self, now: u64) {
        // Of a clock that nobody has set nothing is taken, and what it has given before is now.
        if now < CLOCK_SET_SECONDS {
            return;
        }
        let is_set = |it: u64| if it < CLOCK_SET_SECONDS { now } else { it };
        self.begun_seconds = self.begun_seconds.map(is_set);
        self.seen_seconds = is_set(self.seen_seconds);
        self.begun_seconds = self.begun_seconds.map(|it| it.min(now));
        self.seen_seconds = self.seen_seconds.min(now);
    }
}

/// By number of the pool.
#[derive(Debug, Default)]
pub(super) struct Scrubs {
    records: BTreeMap<usize, Record>,
    /// When the last was refused.
    refused: BTreeMap<usize, u64>,
    /// Of which the file does not tell what is known.
    unwritten: BTreeSet<usize>,
    /// Held by who changes a record, while it is written: who asks waits for no disk.
    writing: Arc<Mutex<()>>,
}

/// Times before that are of a clock that nobody has set: the year 2020.
const CLOCK_SET_SECONDS: u64 = 1_577_836_800;

/// Returns when the next scrub is due, by the policy's first three sentences.
fn due_at(every: ScrubEvery, record: &Record, now: u64) -> Option<u64> {
    let seconds = every.seconds()?;
    let is_cut = record.begun_seconds.is_some() && !record.is_ended;
    let last = record.begun_seconds.unwrap_or(record.seen_seconds);
    Some(if is_cut { last.min(now) } else { last.min(now) + seconds })
}

fn file_of(served: &ServedPool) -> String {
    format!("scrubs-{}.toml", served.id)
}

/// What a pool's own scrub does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// It works.
    Running,
    /// Somebody has paused it, it has failed, or it waits for a device: an administrator knows.
    Stopped,
    /// It has come to its end.
    Ended,
    /// There is none since the pool was opened.
    Absent,
}

impl Hub {
    fn scrubs(&self) -> MutexGuard<'_, Scrubs> {
        self.scrubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is kept of each pool's scrubs. Before this none begins by schedule.
    pub(crate) fn read_scrubs(&self, now: u64) {
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let path = self.state.path_of(&name);
            let read = self.state.read(&name).and_then(|text| {
                text.map(|text| toml::from_str(&text).map_err(anyhow::Error::from)).transpose()
            });
            let (record, is_known) = match read {
                Ok(Some(record)) => (record, true),
                Ok(None) => (Record::new(now), false),
                // Schedules of scrubs are no reason to serve nothing.
                Err(error) => {
                    let path = path.display();
                    tracing::error!(
                        "{path}: {error:#}: until it can be read the pool is taken to be new, and \
                         what `schedule scrub` has said of it does not count"
                    );
                    (Record::new(now), true)
                }
            };
            self.scrubs().records.insert(index, record);
            // Where it can't be kept the pool is seen anew by the next server.
            if !is_known && let Err(error) = self.write_record(index, &record) {
                tracing::warn!("scrubs: {error}");
            }
        }
    }

    fn write_record(&self, index: usize, record: &Record) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let text = toml::to_string(record).map_err(|error| served.failed(error.to_string()))?;
        let written = self.state.write(&file_of(served), &text);
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    /// Changes what is known of a pool, and keeps it for the next server. What cannot be kept is
    /// known here all the same.
    fn change_record(
        &self,
        index: usize,
        change: impl FnOnce(&mut Record),
    ) -> Result<(), BackendError> {
        let writing = Arc::clone(&self.scrubs().writing);
        let _writing = writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(before) = self.record_of(index) else { return Ok(()) };
        let mut record = before;
        change(&mut record);
        let is_written = !self.scrubs().unwritten.contains(&index);
        if record == before && is_written {
            return Ok(());
        }
        {
            let mut scrubs = self.scrubs();
            scrubs.records.insert(index, record);
            scrubs.unwritten.insert(index);
        }
        self.write_record(index, &record)?;
        self.scrubs().unwritten.remove(&index);
        Ok(())
    }

    fn record_of(&self, index: usize) -> Option<Record> {
        self.scrubs().records.get(&index).copied()
    }

    /// Begins a scrub of a pool, or lets one go on, and notes when it began.
    pub(super) fn scrub(&self, index: usize, peer: Peer) -> Result<Answer, BackendError> {
        let is_on = matches!(self.scrub_now(index), Now::Running | Now::Stopped);
        let answer = self.pools[index].pool.control(&Request::Scrub {}, peer)?;
        if !is_on {
            self.note_record(index, |record| {
                // One that was cut goes on where it was.
                if record.is_ended || record.begun_seconds.is_none() {
                    record.begun_seconds = Some(now_seconds());
                }
                record.is_ended = false;
            });
        }
        Ok(answer)
    }

    /// Notes what has happened.
    fn note_record(&self, index: usize, change: impl FnOnce(&mut Record)) {
        if let Err(error) = self.change_record(index, change) {
            tracing::error!("scrubs: {error}");
        }
    }

    fn scrubs_configured(&self, index: usize) -> Option<ScrubEvery> {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        config.as_ref().and_then(|(_, config)| config.scrubs.get(&index).copied())
    }

    pub(super) fn scrub_schedule_set(
        &self,
        index: usize,
        every: Option<ScrubEvery>,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        if let Some(said) = self.scrubs_configured(index) {
            let pool = served.path.display();
            return Err(served.failed(format!(
                "the configuration of the server says {}: change its [[schedule]], then `holdfast \
                 reload {pool}`",
                said.text()
            )));
        }
        if self.record_of(index).is_none() {
            return Err(served.failed("the server keeps no schedules of scrubs"));
        }
        self.change_record(index, |record| record.every = every).map(|()| Answer::Done)
    }

    /// Returns what is said of a pool's scrubs at a time.
    pub(crate) fn scrub_schedule(&self, index: usize, now: u64) -> ScrubSchedule {
        // A server of one mount has no clock: it scrubs nothing by schedule.
        let Some(record) = self.record_of(index) else {
            return ScrubSchedule { every: ScrubEvery::None, ..ScrubSchedule::default() };
        };
        let (every, said_by) = match (self.scrubs_configured(index), record.every) {
            (Some(every), _) => (every, SaidBy::Configuration),
            (None, Some(every)) => (every, SaidBy::Command),
            (None, None) => (ScrubEvery::default(), SaidBy::Default),
        };
        let works = self.scrub_now(index);
        let is_on = matches!(works, Now::Running | Now::Stopped);
        let due_seconds = due_at(every, &record, now).filter(|_| !is_on);
        ScrubSchedule {
            every,
            said_by,
            begun_seconds: record.begun_seconds,
            is_ended: record.is_ended || works == Now::Ended,
            due_seconds,
            waits: match works {
                Now::Stopped => Some("it has stopped, or waits: `job list` tells why".to_owned()),
                Now::Running | Now::Ended | Now::Absent => {
                    due_seconds.and_then(|_| self.scrub_waits(index))
                }
            },
        }
    }

    /// The policy's fifth sentence.
    fn scrub_waits(&self, index: usize) -> Option<String> {
        let status = self.pools[index].pool.status();
        let kinds = status["groups"].as_array().into_iter().flatten().map(|it| &it["kind"]);
        if std::iter::once(&status["layout"]).chain(kinds).all(|kind| kind == "single") {
            return Some("the pool lies on one device: `holdfast check` verifies it".to_owned());
        }
        let words = "a device is away or joining: it waits until all are online";
        (status["is_degraded"] == true).then(|| words.to_owned())
    }

    fn scrub_now(&self, index: usize) -> Now {
        let asked = self.pools[index].pool.control(&Request::ScrubStatus {}, Peer::own());
        let Ok(Answer::Scrub(Some(found))) = asked else { return Now::Absent };
        if found.is_done {
            return Now::Ended;
        }
        let jobs = self.jobs_of(index);
        let job = jobs.iter().find(|job| job.name == "scrub");
        let works = job.is_some_and(|job| !job.is_paused && job.failure.is_none());
        let goes_on = works && found.waits.is_none();
        if goes_on { Now::Running } else { Now::Stopped }
    }

    /// Begins what is due at `now`. Returns what could not be, by number of the pool.
    pub(crate) fn keep_scrubs(&self, now: u64) -> Vec<(usize, String)> {
        if now < CLOCK_SET_SECONDS {
            return Vec::new();
        }
        let works: Vec<Now> = (0..self.pools.len()).map(|index| self.scrub_now(index)).collect();
        self.note_scrubs(now);
        if works.contains(&Now::Running) {
            return Vec::new();
        }
        let mut due: Vec<(u64, usize)> = Vec::new();
        for index in 0..self.pools.len() {
            let said = self.scrub_schedule(index, now);
            let is_refused = self.scrubs().refused.get(&index).copied();
            let may_try = is_refused.is_none_or(|at| now < at || at + RETRY_SECONDS <= now);
            let at = said.due_seconds.filter(|at| *at <= now && said.waits.is_none() && may_try);
            due.extend(at.map(|at| (at, index)));
        }
        due.sort_unstable();
        let mut kept = Kept::default();
        for (_, index) in due {
            if self.ask_for(index, &Request::Scrub {}, &mut kept) {
                self.scrubs().refused.remove(&index);
                break;
            }
            self.scrubs().refused.insert(index, now);
        }
        kept.failed
    }

    /// Notes what has become of the last scrub of each pool: at each look, and before the end.
    pub(crate) fn note_scrubs(&self, now: u64) {
        (0..self.pools.len()).for_each(|index| self.note_scrub(index, now));
    }

    /// Notes what has become of the last scrub, and sets times right.
    fn note_scrub(&self, index: usize, now: u64) {
        let works = self.scrub_now(index);
        self.note_record(index, |record| {
            match works {
                Now::Ended => record.is_ended = true,
                Now::Running | Now::Stopped => {
                    // The pool has one of before, which was begun where no server saw it.
                    if record.is_ended {
                        record.begun_seconds = Some(now);
                    }
                    record.is_ended = false;
                }
                Now::Absent => {}
            }
            record.set_right(now);
        });
    }
}
