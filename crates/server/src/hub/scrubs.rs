//! Scheduled scrubs: monthly for each pool, unless set otherwise.
//!
//! # Policy
//!
//! 1. The next scrub is due a day, a week or 30 days after the start of the last one, which may
//!    have been started by hand.
//! 2. If the end of a server interrupts a scrub, the pool may continue it. Otherwise a scrub is due
//!    at once.
//! 3. A pool that the server has not seen before counts as scrubbed at that time. So a server that
//!    is new, or has lost its state, does not scrub all of its pools at once.
//! 4. A server runs one scrub at a time, first of the pool whose scrub is overdue the longest. A
//!    scrub that is paused or has failed does not delay other pools, and is not restarted.
//! 5. A pool whose disk groups are all `single` is not scrubbed. A pool with an absent or joining
//!    device is scrubbed once all are online.
//! 6. A recorded time in the future, from a wrong clock, is replaced by the current time.
//! 7. A scrub refused by the pool is retried after an hour.
//!
//! The interval is the configuration's (`[[schedule]]`), or that set by a command, or monthly.
//! While the configuration sets it, a command that sets it is refused.
//!
//! [`due_at`] decides, from times. [`Hub::keep_scrubs`] acts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::schedule::SchedulePassResult;
use super::{Hub, ServedPool};
use crate::backend::BackendError;
use crate::events::now_seconds;
use crate::peer::Peer;
use control::{Answer, Request, ScrubFacts, ScrubResult};
pub use control::{ScrubEvery, ScrubSchedule, ScrubScheduleSource, moment};

/// Delay before another scrub is tried after a refusal, whose cause usually takes a while to go.
const RETRY_SECONDS: u64 = 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScrubRecord {
    every: Option<ScrubEvery>,
    /// Time when this server first saw the pool, in seconds since 1970.
    seen_seconds: u64,
    /// Start of the last scrub, in seconds since 1970.
    begun_seconds: Option<u64>,
    is_ended: bool,
    /// Result of the last scrub that has ended.
    #[serde(default)]
    result: Option<ScrubResult>,
}

impl ScrubRecord {
    fn new(now: u64) -> ScrubRecord {
        let (every, begun_seconds, result) = (None, None, None);
        ScrubRecord { every, seen_seconds: now, begun_seconds, is_ended: true, result }
    }

    /// Corrects times that a wrong clock has set (policy 6).
    fn set_right(&mut self, now: u64) {
        // If the clock is not set, there is no time to correct by. Times recorded while it was not
        // set become the current time.
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

#[derive(Debug, Default)]
pub(super) struct Scrubs {
    records: BTreeMap<usize, ScrubRecord>,
    /// Time of the last refusal of each pool.
    refused: BTreeMap<usize, u64>,
    /// Pools whose record could not be written.
    unwritten: BTreeSet<usize>,
    /// LOCK: held from the change of a record until its file is written. `Hub::scrubs` is released
    /// before the write, so that readers do not wait for the disk.
    writing: Arc<Mutex<()>>,
}

/// The year 2020. A clock that shows an earlier time is not set.
const CLOCK_SET_SECONDS: u64 = 1_577_836_800;

/// Returns when the next scrub is due (policy 1 to 3).
fn due_at(every: ScrubEvery, record: &ScrubRecord, now: u64) -> Option<u64> {
    let seconds = every.seconds()?;
    let is_cut = record.begun_seconds.is_some() && !record.is_ended;
    let last = record.begun_seconds.unwrap_or(record.seen_seconds);
    Some(if is_cut { last.min(now) } else { last.min(now) + seconds })
}

fn file_of(served: &ServedPool) -> String {
    format!("scrubs-{}.toml", served.id)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CurrentScrubState {
    Running,
    /// Paused, failed, or waiting for a device.
    Stopped,
    Ended,
    /// No scrub since the pool was opened.
    Absent,
}

impl Hub {
    fn scrubs(&self) -> MutexGuard<'_, Scrubs> {
        self.scrubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the record of each pool's scrubs. Before this no scheduled scrub starts.
    pub fn read_scrubs(&self, now: u64) {
        for (index, served) in self.pools.iter().enumerate() {
            let name = file_of(served);
            let path = self.state.path_of(&name);
            let read = self.state.read(&name).and_then(|text| {
                text.map(|text| toml::from_str(&text).map_err(anyhow::Error::from)).transpose()
            });
            let (record, is_known) = match read {
                Ok(Some(record)) => (record, true),
                Ok(None) => (ScrubRecord::new(now), false),
                // An unreadable record must not keep the server from starting.
                Err(error) => {
                    let path = path.display();
                    tracing::error!(
                        "{path}: {error:#}: until it can be read the pool is taken to be new, and \
                         what `schedule scrub` has said of it does not count"
                    );
                    (ScrubRecord::new(now), true)
                }
            };
            self.scrubs().records.insert(index, record);
            // If this write fails, the pool is seen as new again by the next server.
            if !is_known && let Err(error) = self.write_record(index, &record) {
                tracing::warn!("scrubs: {error}");
            }
        }
    }

    fn write_record(&self, index: usize, record: &ScrubRecord) -> Result<(), BackendError> {
        let served = &self.pools[index];
        let text = toml::to_string(record).map_err(|error| served.failed(error.to_string()))?;
        let written = self.state.write(&file_of(served), &text);
        written.map_err(|error| served.failed(format!("{error:#}")))
    }

    /// Changes a record and stores it. If storing fails, the change applies in memory, and the next
    /// change stores it.
    fn change_record(
        &self,
        index: usize,
        change: impl FnOnce(&mut ScrubRecord),
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

    fn record_of(&self, index: usize) -> Option<ScrubRecord> {
        self.scrubs().records.get(&index).copied()
    }

    pub(super) fn scrub(&self, index: usize, peer: Peer) -> Result<Answer, BackendError> {
        let is_on = matches!(
            self.scrub_now(index),
            CurrentScrubState::Running | CurrentScrubState::Stopped
        );
        let answer = self.pools[index].pool.control(&Request::Scrub {}, peer)?;
        if !is_on {
            self.note_record(index, |record| {
                // If the pool continues an interrupted scrub, its recorded start stays.
                if record.is_ended || record.begun_seconds.is_none() {
                    record.begun_seconds = Some(now_seconds());
                }
                record.is_ended = false;
            });
        }
        Ok(answer)
    }

    fn note_record(&self, index: usize, change: impl FnOnce(&mut ScrubRecord)) {
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

    pub(crate) fn scrub_schedule(&self, index: usize, now: u64) -> ScrubSchedule {
        // Without a record, the server has no timetable: it serves a single mount.
        let Some(record) = self.record_of(index) else {
            return ScrubSchedule { every: ScrubEvery::None, ..ScrubSchedule::default() };
        };
        let (every, said_by) = match (self.scrubs_configured(index), record.every) {
            (Some(every), _) => (every, ScrubScheduleSource::Configuration),
            (None, Some(every)) => (every, ScrubScheduleSource::Command),
            (None, None) => (ScrubEvery::default(), ScrubScheduleSource::Default),
        };
        let works = self.scrub_now(index);
        let is_on = matches!(works, CurrentScrubState::Running | CurrentScrubState::Stopped);
        let due_seconds = due_at(every, &record, now).filter(|_| !is_on);
        ScrubSchedule {
            every,
            said_by,
            begun_seconds: record.begun_seconds,
            is_ended: record.is_ended || works == CurrentScrubState::Ended,
            result: self.scrub_found(index).and_then(|it| it.result()).or(record.result),
            due_seconds,
            waits: match works {
                CurrentScrubState::Stopped => {
                    Some("it has stopped, or waits: `job list` tells why".to_owned())
                }
                CurrentScrubState::Running
                | CurrentScrubState::Ended
                | CurrentScrubState::Absent => due_seconds.and_then(|_| self.scrub_waits(index)),
            },
        }
    }

    /// Returns why a due scrub does not start. `None` if it can (policy 5).
    fn scrub_waits(&self, index: usize) -> Option<String> {
        let status = self.pools[index].pool.status();
        let kinds = status["groups"].as_array().into_iter().flatten().map(|it| &it["kind"]);
        if std::iter::once(&status["layout"]).chain(kinds).all(|kind| kind == "single") {
            return Some("the pool lies on one device: `holdfast check` verifies it".to_owned());
        }
        let words = "a device is away or joining: it waits until all are online";
        (status["is_degraded"] == true).then(|| words.to_owned())
    }

    fn scrub_found(&self, index: usize) -> Option<ScrubFacts> {
        let asked = self.pools[index].pool.control(&Request::ScrubStatus {}, Peer::own());
        if let Ok(Answer::Scrub(found)) = asked { found } else { None }
    }

    fn scrub_now(&self, index: usize) -> CurrentScrubState {
        let Some(found) = self.scrub_found(index) else { return CurrentScrubState::Absent };
        if found.is_done {
            return CurrentScrubState::Ended;
        }
        let jobs = self.jobs_of(index);
        let job = jobs.iter().find(|job| job.name == "scrub");
        let works = job.is_some_and(|job| !job.is_paused && job.failure.is_none());
        let goes_on = works && found.waits.is_none();
        if goes_on { CurrentScrubState::Running } else { CurrentScrubState::Stopped }
    }

    /// Starts a scrub that is due. Returns failures, with the index of the pool.
    pub(crate) fn keep_scrubs(&self, now: u64) -> Vec<(usize, String)> {
        if now < CLOCK_SET_SECONDS {
            return Vec::new();
        }
        let works: Vec<CurrentScrubState> =
            (0..self.pools.len()).map(|index| self.scrub_now(index)).collect();
        self.note_scrubs(now);
        if works.contains(&CurrentScrubState::Running) {
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
        let mut kept = SchedulePassResult::default();
        for (_, index) in due {
            if self.ask_for(index, &Request::Scrub {}, &mut kept) {
                self.scrubs().refused.remove(&index);
                break;
            }
            self.scrubs().refused.insert(index, now);
        }
        kept.failed
    }

    /// Records the state of each pool's scrub. Called at each run of the timetable and before the
    /// server ends.
    pub fn note_scrubs(&self, now: u64) {
        (0..self.pools.len()).for_each(|index| self.note_scrub(index, now));
    }

    fn note_scrub(&self, index: usize, now: u64) {
        let works = self.scrub_now(index);
        let result = self.scrub_found(index).and_then(|found| found.result());
        self.note_record(index, |record| {
            record.result = result.or(record.result);
            match works {
                CurrentScrubState::Ended => record.is_ended = true,
                CurrentScrubState::Running | CurrentScrubState::Stopped => {
                    // The scrub was started without a server, and the pool continues it.
                    if record.is_ended {
                        record.begun_seconds = Some(now);
                    }
                    record.is_ended = false;
                }
                CurrentScrubState::Absent => {}
            }
            record.set_right(now);
        });
    }
}
