//! Policy of notices about pools (decision 0079).
//!
//! # Policy
//!
//! 1. Each change of the text of a pool's health is reported once, and so is the return to health.
//!    That a pool is healthy at the start of the server is not reported.
//! 2. A pool that becomes 80 or 90 % full is reported once, and again only after its fill was 5 %
//!    lower. So is a fileset at 90 or 100 % of its quota.
//! 3. Each change of a member's state is reported, but not a member that is online at the first
//!    observation. A failure is one notice with its cause, the spare that replaces the member, and
//!    the number of spares left. A replacement names the replaced device.
//! 4. Further copies that did not verify, and damage in the log, are reported once per observation.
//!    During a scrub they are counted, and reported in one notice after its end.
//! 5. A failed job is reported once per failure. A failed schedule is reported once per text, and
//!    again only after it has succeeded.
//!
//! [`PreviousPoolState::look`] decides, without side effects. Delivery is in `receivers.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::backend::DEGRADED;
use control::text::printable;
use control::{FilesetFacts, JobFacts};

const POOL_LEVELS: [u64; 2] = [80, 90];
const QUOTA_LEVELS: [u64; 2] = [90, 100];
/// How far the fill must fall below a level before that level is reported again.
const BELOW_PERCENT: u64 = 5;
const TEXT_BYTES_MAX: usize = 4096;

pub(crate) const KINDS: [&str; 8] =
    ["trouble", "well", "member", "defect", "space", "quota", "job", "schedule"];
pub(crate) const TEST: &str = "test";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// One of [`KINDS`], or [`TEST`].
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

impl Notice {
    /// Returns a notice. Text beyond [`TEXT_BYTES_MAX`] is cut off.
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Notice {
        let mut text = text.into();
        let mut end = TEXT_BYTES_MAX.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Notice { kind, text }
    }
}

#[derive(Debug, Default)]
pub(super) struct PoolObservation {
    pub(super) status: Value,
    pub(super) jobs: Vec<JobFacts>,
    /// Filesets with a quota. `None` if quotas were not read for this observation.
    pub(super) filesets: Option<Vec<FilesetFacts>>,
    /// Schedules whose last run failed, as the text of each failure.
    pub(super) schedules: Vec<String>,
    /// Damage logged since the previous observation: number of messages, and text of the last.
    pub(super) damage: Option<(u64, String)>,
}

#[derive(Debug)]
pub(super) struct PreviousPoolState {
    health: String,
    level: u64,
    /// State of each member that was observed in another state than online, by slot.
    members: BTreeMap<u64, String>,
    paths: BTreeMap<u64, String>,
    checksum_errors: BTreeMap<u64, u64>,
    /// Number of the last failure reported, and whether a spare had replaced the member by then.
    failure: (u64, bool),
    damage: Option<(u64, String)>,
    jobs: BTreeMap<u64, String>,
    schedules: BTreeSet<String>,
    quotas: BTreeMap<String, u64>,
}

impl Default for PreviousPoolState {
    fn default() -> PreviousPoolState {
        PreviousPoolState {
            health: "ok".to_owned(),
            level: 0,
            members: BTreeMap::new(),
            paths: BTreeMap::new(),
            checksum_errors: BTreeMap::new(),
            failure: (0, false),
            damage: None,
            jobs: BTreeMap::new(),
            schedules: BTreeSet::new(),
            quotas: BTreeMap::new(),
        }
    }
}

/// Returns the highest level reached, to be stored, and whether to report it.
fn reached(before: u64, percent: u64, levels: [u64; 2]) -> (u64, bool) {
    let now = levels.into_iter().filter(|&level| percent >= level).max().unwrap_or(0);
    match now {
        _ if now > before => (now, true),
        _ if percent + BELOW_PERCENT < before => (now, false),
        _ => (before, false),
    }
}

fn percent_of(part: u64, whole: u64) -> u64 {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

impl PreviousPoolState {
    /// Compares `sight` with the previous observation. Returns the notices to send.
    pub(super) fn look(&mut self, sight: &PoolObservation) -> Vec<Notice> {
        let mut notices = Vec::new();
        self.look_at_health(&sight.status, &mut notices);
        self.look_at_space(&sight.status["space"], &mut notices);
        let told = self.look_at_failures(&sight.status, &mut notices);
        self.look_at_members(&sight.status["members"], &told, &mut notices);
        self.look_at_damage(sight, &mut notices);
        self.look_at_jobs(&sight.jobs, &mut notices);
        if let Some(filesets) = &sight.filesets {
            self.look_at_quotas(filesets, &mut notices);
        }
        let failed: BTreeSet<String> = sight.schedules.iter().cloned().collect();
        notices.extend(failed.difference(&self.schedules).map(|it| Notice::new("schedule", it)));
        self.schedules = failed;
        notices
    }

    fn look_at_health(&mut self, status: &Value, notices: &mut Vec<Notice>) {
        // An absent member is reported by its own notice.
        let health = status["health"].as_str().filter(|it| *it != DEGRADED).unwrap_or("ok");
        if health == self.health {
            return;
        }
        notices.push(match health {
            "ok" => Notice::new("well", format!("it is well again: it was {}", self.health)),
            trouble => Notice::new("trouble", trouble),
        });
        health.clone_into(&mut self.health);
    }

    fn look_at_space(&mut self, space: &Value, notices: &mut Vec<Notice>) {
        let bytes = |name: &str| space[name].as_u64();
        let both = bytes("total_bytes").zip(bytes("available_bytes"));
        let Some((total, available)) = both else { return };
        let full = percent_of(total.saturating_sub(available), total);
        let (level, is_told) = reached(self.level, full, POOL_LEVELS);
        self.level = level;
        if is_told {
            let text = format!("{full} % of it are not available any more");
            notices.push(Notice::new("space", text));
        }
    }

    /// Reports failed members, with the spares that replaced them. Returns their slots.
    fn look_at_failures(&mut self, status: &Value, notices: &mut Vec<Notice>) -> BTreeSet<u64> {
        let mut slots = BTreeSet::new();
        let left = match status["spares_available"].as_u64() {
            Some(1) => "1 spare is left".to_owned(),
            None | Some(0) => "no spare is left".to_owned(),
            Some(count) => format!("{count} spares are left"),
        };
        for failure in status["failures"].as_array().into_iter().flatten() {
            let (Some(number), Some(slot)) = (failure["number"].as_u64(), failure["slot"].as_u64())
            else {
                continue;
            };
            let text = |name: &str| printable(failure[name].as_str().unwrap_or_default());
            let spare = failure["replaced_by"].as_str().map(printable);
            if (number, spare.is_some()) <= self.failure {
                continue;
            }
            let is_first = number > self.failure.0;
            self.failure = (number, spare.is_some());
            slots.insert(slot);
            let (device, cause) = (text("device"), text("cause"));
            let replaced = match &spare {
                Some(spare) => format!("the spare {spare} takes its place"),
                None => "no spare took over (replace it: `holdfast device replace`)".to_owned(),
            };
            let failed = if is_first { "has failed" } else { "had failed" };
            let text = format!("{device} (slot {slot}) {failed} ({cause}): {replaced}, {left}");
            notices.push(Notice::new("member", text));
        }
        slots
    }

    /// Reports changes of state, but not in the slots `told`, whose failure was reported.
    fn look_at_members(
        &mut self,
        members: &Value,
        told: &BTreeSet<u64>,
        notices: &mut Vec<Notice>,
    ) {
        for member in members.as_array().into_iter().flatten() {
            let (Some(slot), Some(state)) = (member["slot"].as_u64(), member["state"].as_str())
            else {
                continue;
            };
            let path = printable(member["path"].as_str().unwrap_or_default());
            let before = self.members.get(&slot).map_or("online", String::as_str);
            let place = self.paths.insert(slot, path.clone()).filter(|old| *old != path);
            if state != before {
                let text = match place {
                    Some(old) => format!("{path} (slot {slot}) is {state}; it replaces {old}"),
                    None => format!("{path} (slot {slot}) is {state}; it was {before}"),
                };
                if !told.contains(&slot) {
                    notices.push(Notice::new("member", text));
                }
                self.members.insert(slot, state.to_owned());
            }
        }
    }

    fn look_at_damage(&mut self, sight: &PoolObservation, notices: &mut Vec<Notice>) {
        if let Some((count, text)) = &sight.damage {
            let before = self.damage.as_ref().map_or(0, |(count, _)| *count);
            self.damage = Some((before + count, text.clone()));
        }
        let is_scrubbing = sight.jobs.iter().any(|job| job.name == "scrub");
        if is_scrubbing {
            return;
        }
        if let Some((count, text)) = self.damage.take() {
            notices.push(Notice::new("defect", format!("{text} ({count} since the last look)")));
        }
        let (mut more, mut all) = (Vec::new(), 0);
        for member in sight.status["members"].as_array().into_iter().flatten() {
            let Some(slot) = member["slot"].as_u64() else { continue };
            let count = member["checksum_errors"].as_u64().unwrap_or(0);
            let before = self.checksum_errors.insert(slot, count).unwrap_or(0);
            if count > before {
                let path = printable(member["path"].as_str().unwrap_or_default());
                more.push(format!("{} on {path} (slot {slot})", count - before));
                all += count - before;
            }
        }
        if all > 0 {
            let text = format!(
                "{all} copies did not verify; a good copy was used where another device has one: \
                 {}",
                more.join(", ")
            );
            notices.push(Notice::new("defect", text));
        }
    }

    fn look_at_jobs(&mut self, jobs: &[JobFacts], notices: &mut Vec<Notice>) {
        let mut failed = BTreeMap::new();
        for job in jobs {
            let Some(failure) = &job.failure else { continue };
            if self.jobs.get(&job.id) != Some(failure) {
                notices.push(Notice::new("job", format!("{} has failed: {failure}", job.name)));
            }
            failed.insert(job.id, failure.clone());
        }
        self.jobs = failed;
    }

    fn look_at_quotas(&mut self, filesets: &[FilesetFacts], notices: &mut Vec<Notice>) {
        let mut levels = BTreeMap::new();
        for fileset in filesets {
            let Some(quota) = fileset.quota_bytes else { continue };
            let percent = percent_of(fileset.referenced_bytes, quota);
            let before = self.quotas.get(&fileset.uuid).copied().unwrap_or(0);
            let (level, is_told) = reached(before, percent, QUOTA_LEVELS);
            levels.insert(fileset.uuid.clone(), level);
            if is_told {
                let name = printable(&fileset.name);
                let text = format!("fileset {name} has used {percent} % of its quota");
                notices.push(Notice::new("quota", text));
            }
        }
        self.quotas = levels;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(failure: Option<&str>) -> JobFacts {
        JobFacts {
            id: 3,
            name: "scrub".to_owned(),
            done: 0,
            total: 0,
            ends_in_seconds: None,
            pace_percent: None,
            is_paused: false,
            failure: failure.map(str::to_owned),
        }
    }

    fn kinds(seen: &mut PreviousPoolState, sight: &PoolObservation) -> Vec<&'static str> {
        let notices = seen.look(sight);
        assert!(notices.iter().all(|it| KINDS.contains(&it.kind)), "{notices:?}");
        notices.into_iter().map(|it| it.kind).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let mut seen = PreviousPoolState::default();
        let mut look = |health: &str, available: u64| {
            let space = json!({ "total_bytes": 1000, "available_bytes": available });
            let status = json!({ "health": health, "space": space });
            kinds(&mut seen, &PoolObservation { status, ..PoolObservation::default() })
        };
        assert!(look("ok", 900).is_empty());
        assert_eq!(look("a device is gone", 900), ["trouble"]);
        assert!(look("a device is gone", 900).is_empty());
        assert_eq!(look("two devices are gone", 900), ["trouble"]);
        assert_eq!(look("ok", 200), ["well", "space"]);
        assert!(look("ok", 195).is_empty());
        // A value near a level, above and below, gives one notice.
        assert!(look("ok", 205).is_empty() && look("ok", 200).is_empty());
        assert_eq!(look("ok", 90), ["space"]);
        assert!(look("ok", 500).is_empty());
        assert_eq!(look("ok", 50), ["space"]);
        assert!(PreviousPoolState::default().look(&PoolObservation::default()).is_empty());
    }

    #[test]
    fn a_member_is_told_when_its_state_changes_and_bad_copies_when_there_are_more() {
        let mut seen = PreviousPoolState::default();
        let mut look = |state: &str, errors: u64| {
            let member = |slot: u64, state: &str| {
                let errors = json!(errors);
                json!({ "slot": slot, "path": "/d", "state": state, "checksum_errors": errors })
            };
            let status = json!({ "members": [member(0, "online"), member(1, state)] });
            kinds(&mut seen, &PoolObservation { status, ..PoolObservation::default() })
        };
        assert!(look("online", 0).is_empty());
        assert_eq!(look("failed", 0), ["member"]);
        assert_eq!(look("failed", 2), ["defect"]);
        assert!(look("failed", 2).is_empty());
        assert_eq!(look("online", 2), ["member"]);
        // A server that was restarted counts from 0.
        assert!(look("online", 0).is_empty());
        assert_eq!(look("online", 1), ["defect"]);
    }

    /// Goal: a failed device is reported by one notice, with its name, the cause, the spare, and
    /// the number of spares left.
    #[test]
    fn a_device_that_fails_is_told_with_its_spare() {
        let mut seen = PreviousPoolState::default();
        let mut look = |path: &str, state: &str, failures: Value, left: u64| {
            let status = json!({
                "members": [{ "slot": 1, "path": path, "state": state }],
                "failures": failures,
                "spares_available": left,
            });
            let notices = seen.look(&PoolObservation { status, ..PoolObservation::default() });
            notices.into_iter().map(|it| it.text).collect::<Vec<_>>()
        };
        let failure = |number: u64, device: &str, by: Option<&str>| {
            let cause = "a write was not done";
            json!({ "number": number, "slot": 1, "device": device, "cause": cause,
                "replaced_by": by })
        };
        assert!(look("/d1", "online", json!([]), 1).is_empty());
        let first = failure(1, "/d1", Some("/s"));
        assert_eq!(
            look("/s", "joining", json!([first.clone()]), 0),
            ["/d1 (slot 1) has failed (a write was not done): the spare /s takes its place, no \
                 spare is left"]
        );
        assert_eq!(
            look("/s", "online", json!([first.clone()]), 0),
            ["/s (slot 1) is online; it was joining"]
        );
        let second = failure(2, "/s", None);
        let told = look("/s", "failed", json!([first.clone(), second.clone()]), 0);
        assert_eq!(
            told,
            ["/s (slot 1) has failed (a write was not done): no spare took over (replace it: \
              `holdfast device replace`), no spare is left"]
        );
        assert!(look("/s", "failed", json!([first, second]), 0).is_empty());
        assert_eq!(look("/n", "joining", json!([]), 0), ["/n (slot 1) is joining; it replaces /s"]);
    }

    /// Goal: the findings of a scrub are reported by one notice with counts, however long it takes.
    #[test]
    fn what_a_scrub_finds_is_told_once() {
        let mut seen = PreviousPoolState::default();
        let scrub = job(None);
        let mut look = |errors: u64, is_scrubbing: bool| {
            let member = json!({ "slot": 1, "path": "/d", "state": "online",
                "checksum_errors": errors });
            let status = json!({ "members": [member] });
            let jobs = if is_scrubbing { vec![scrub.clone()] } else { Vec::new() };
            let damage = is_scrubbing.then(|| (5, "PG002: a page".to_owned()));
            let notices =
                seen.look(&PoolObservation { status, jobs, damage, ..PoolObservation::default() });
            notices.into_iter().map(|it| it.text).collect::<Vec<_>>()
        };
        for errors in 1..100 {
            assert!(look(errors, true).is_empty());
        }
        let told = look(100, false);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("PG002") && told[0].contains("495"), "{told:?}");
        assert!(told[1].starts_with("100 copies") && told[1].ends_with("/d (slot 1)"), "{told:?}");
        assert!(look(100, false).is_empty());
    }

    #[test]
    fn failures_of_jobs_and_schedules_quotas_and_damage_are_told() {
        let mut seen = PreviousPoolState::default();
        let mut of_job = |failure: Option<&str>| {
            kinds(
                &mut seen,
                &PoolObservation { jobs: vec![job(failure)], ..PoolObservation::default() },
            )
        };
        assert!(of_job(None).is_empty());
        assert_eq!(of_job(Some("no room")), ["job"]);
        assert!(of_job(Some("no room")).is_empty());
        assert!(of_job(None).is_empty());
        assert_eq!(of_job(Some("no room")), ["job"]);

        let mut of_schedule = |texts: &[&str]| {
            let schedules = texts.iter().map(|&it| it.to_owned()).collect();
            kinds(&mut seen, &PoolObservation { schedules, ..PoolObservation::default() })
        };
        assert_eq!(of_schedule(&["a: full", "a: full"]), ["schedule"]);
        assert!(of_schedule(&["a: full"]).is_empty());
        assert!(of_schedule(&[]).is_empty());
        assert_eq!(of_schedule(&["a: full"]), ["schedule"]);

        let mut of_quota = |used: Option<u64>| {
            let fileset = |used| FilesetFacts {
                name: "a".to_owned(),
                uuid: "u".to_owned(),
                quota_bytes: Some(1000),
                referenced_bytes: used,
                ..FilesetFacts::default()
            };
            let filesets = used.map(|used| vec![fileset(used)]);
            kinds(&mut seen, &PoolObservation { filesets, ..PoolObservation::default() })
        };
        assert!(of_quota(Some(899)).is_empty());
        assert_eq!(of_quota(Some(950)), ["quota"]);
        assert!(of_quota(None).is_empty());
        assert!(of_quota(Some(890)).is_empty());
        assert_eq!(of_quota(Some(1000)), ["quota"]);
        let damage = Some((2, "AN001: it is gone".to_owned()));
        assert_eq!(
            kinds(&mut seen, &PoolObservation { damage, ..PoolObservation::default() }),
            ["defect"]
        );
        let long = Notice::new("job", "\u{e9}".repeat(TEXT_BYTES_MAX));
        assert!(long.text.len() <= TEXT_BYTES_MAX && long.text.len() > TEXT_BYTES_MAX - 2);
    }
}
