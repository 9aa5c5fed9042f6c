//! First lines of a status: health, space, current work, what a power failure would cost.
//!
//! All lines are made from the server's JSON. If a fact is missing, only its line is.

use std::collections::BTreeMap;

use serde_json::Value;

use control::size::ByteSize;
use control::text::printable;
use control::{JobFacts, ScrubFacts, ScrubResult, moment};

/// Fill of the log or of dirty memory that is reported, in percent. A checkpoint starts at half, so
/// a higher fill means that the device does not keep up.
const FULL_PERCENT: u64 = 75;

const MENDED_SHOWN_MAX: usize = 3;

/// Returns the lines, each with its label.
pub(crate) fn lines(pool: &Value) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    lines.extend(text(&pool["health"]).map(|health| ("health", health)));
    let warnings = pool["warnings"].as_array().into_iter().flatten().filter_map(text);
    lines.extend(warnings.map(|warning| ("warning", warning)));
    lines.extend(space(&pool["space"]).map(|space| ("space", space)));
    lines.extend(devices(pool).map(|devices| ("devices", devices)));
    lines.extend(scrub(pool).map(|scrub| ("last scrub", scrub)));
    lines.extend(growth(&pool["growth"]).map(|growth| ("grow", growth)));
    lines.extend(nfs(&pool["nfs"]).map(|nfs| ("nfs", nfs)));
    lines.extend(schedules(&pool["schedules"]).map(|stays| ("snapshots by schedule", stays)));
    lines.extend(mended(&pool["mended"]).map(|mended| ("mended", mended)));
    lines.extend(jobs(&pool["jobs"]).map(|job| ("job", job)));
    lines.extend(doing(pool).map(|doing| ("now", doing)));
    lines.extend(power(pool).map(|power| ("if power failed now", power)));
    lines
}

pub(crate) fn job_line(job: &JobFacts) -> String {
    let mut line = format!("{}  {}", job.id, printable(&job.name));
    if let Some(percent) = job.done.saturating_mul(100).checked_div(job.total) {
        line += &format!(": {percent} %");
    }
    match (&job.failure, job.is_paused, job.ends_in_seconds) {
        (Some(failure), ..) => line += &format!(", stopped: {}", printable(failure)),
        (None, true, _) => line += ", paused",
        (None, false, Some(seconds)) => line += &format!(", {seconds} s left"),
        (None, false, None) => {}
    }
    if let Some(percent) = job.pace_percent {
        line += &format!(", at {percent} % of the time");
    }
    line
}

fn jobs(jobs: &Value) -> impl Iterator<Item = String> {
    let jobs = jobs.as_array().into_iter().flatten();
    let facts = jobs.filter_map(|job| serde_json::from_value::<JobFacts>(job.clone()).ok());
    facts.map(|job| job_line(&job))
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).to_string()
}

fn nfs(nfs: &Value) -> Option<String> {
    let (exports, connections) = (nfs["exports"].as_u64()?, nfs["connections"].as_u64()?);
    let (answered, failed) = (nfs["answered"].as_u64()?, nfs["failed"].as_u64()?);
    let counts = format!("{answered} requests answered, {failed} failed");
    let unserved = match nfs["exports_not_served"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(" and {count} that can't be served (`holdfast export list`)"),
    };
    Some(format!("{exports} exports{unserved}, {connections} connections, {counts}"))
}

/// Describes the last files of which a read has repaired bad bytes.
fn mended(mended: &Value) -> Option<String> {
    // A user without the right to see paths gets them empty.
    let has_path = |file: &&Value| file["path"].as_str().is_some_and(|path| !path.is_empty());
    let mended: Vec<&Value> = mended.as_array()?.iter().filter(has_path).collect();
    let shown = mended.iter().take(MENDED_SHOWN_MAX).map(|file| {
        let fileset = file["fileset"].as_str().map_or_else(String::new, |name| format!("{name}:"));
        let path = fileset + file["path"].as_str().unwrap_or_default();
        match (file["bytes"][0].as_u64(), file["bytes"][1].as_u64()) {
            (Some(first), Some(last)) => format!("{path}, bytes {first} to {last}"),
            _ => path,
        }
    });
    let shown: Vec<String> = shown.collect();
    let more = mended.len().saturating_sub(shown.len());
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    (!shown.is_empty()).then(|| {
        format!("{}{more} (bad on a device, and written again from the others)", shown.join("; "))
    })
}

/// Describes the snapshots that schedules should have deleted but could not.
fn schedules(schedules: &Value) -> Option<String> {
    let stays = schedules["stays"].as_array()?.iter().filter_map(Value::as_str);
    let stays: Vec<&str> = stays.collect();
    (!stays.is_empty()).then(|| format!("not deleted: {}", stays.join("; ")))
}

fn space(space: &Value) -> Option<String> {
    let (total, used) = (space["total_bytes"].as_u64()?, space["used_bytes"].as_u64()?);
    let percent = u128::from(used) * 100 / u128::from(total.max(1));
    let mut text = format!("{} of {} used ({percent} %)", size(used), size(total));
    if let Some(available) = space["available_bytes"].as_u64() {
        text += &format!(", {} available", size(available));
    }
    if let Some(inodes) = space["inodes"].as_u64() {
        text += &format!(", {inodes} inodes");
    }
    Some(text)
}

/// Counts the devices by their states, the spares left, and names the devices with errors.
fn devices(pool: &Value) -> Option<String> {
    let list = |name: &str| pool[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let (members, spares) = (list("members"), list("spares"));
    let mut states: BTreeMap<&str, u64> = BTreeMap::new();
    for member in members {
        *states.entry(member["state"].as_str().unwrap_or("?")).or_default() += 1;
    }
    let online = states.remove("online").unwrap_or(0);
    let mut parts = vec![format!("{online} of {} online", members.len())];
    parts.extend(states.iter().map(|(state, count)| format!("{count} {state}")));
    match (members.len(), pool["spares_available"].as_u64().unwrap_or(0)) {
        (0, _) => return None,
        (1, _) if spares.is_empty() => {}
        (_, 0) => parts.push("no spare left".to_owned()),
        (_, left) => parts.push(format!("{left} of {} spares left", spares.len())),
    }
    let bad = members.iter().filter_map(|member| {
        let count = |name: &str| member[name].as_u64().unwrap_or(0);
        let kinds =
            [("read_errors", "read"), ("write_errors", "write"), ("checksum_errors", "checksum")];
        let kinds = kinds.into_iter().filter(|(name, _)| count(name) > 0);
        let errors: Vec<String> =
            kinds.map(|(name, word)| format!("{} {word}", count(name))).collect();
        let path = member["path"].as_str().unwrap_or("?");
        (!errors.is_empty()).then(|| format!("{path} ({})", errors.join(", ")))
    });
    let bad: Vec<String> = bad.collect();
    parts.push(match &bad[..] {
        [] => "none with errors".to_owned(),
        bad => format!("errors on {}", bad.join(", ")),
    });
    Some(parts.join(", "))
}

/// Describes the last scrub. `None` for a pool of `single` disk groups, which has no scrubs.
fn scrub(pool: &Value) -> Option<String> {
    let now = serde_json::from_value::<ScrubFacts>(pool["scrub"].clone()).ok();
    let kept = serde_json::from_value::<ScrubResult>(pool["scrubs"]["result"].clone()).ok();
    if let Some(now) = now.as_ref().filter(|now| !now.is_done) {
        let read = size(now.read_bytes);
        return Some(format!("under way, {read} compared, {} mended", now.repaired));
    }
    let Some(result) = now.and_then(|now| now.result()).or(kept) else {
        let mut kinds = pool["groups"].as_array()?.iter().map(|group| &group["kind"]);
        return kinds.any(|kind| kind != "single").then(|| "none is known".to_owned());
    };
    let found = match (result.repaired, result.damaged) {
        (0, 0) => "nothing wrong".to_owned(),
        (mended, 0) => format!("{mended} errors mended"),
        (mended, damaged) => format!("{mended} errors mended, {damaged} not mended"),
    };
    Some(format!("{}, {found}", moment(result.ended_seconds)))
}

fn growth(growth: &Value) -> Option<String> {
    let more = growth["more_bytes"].as_u64().filter(|more| *more > 0)?;
    let command = growth["command"].as_str()?;
    Some(format!("{} more, for its devices are longer than what it uses: {command}", size(more)))
}

fn doing(pool: &Value) -> Option<String> {
    let (journal, recent) = (&pool["journal"], &pool["cleaner"]["recent"]);
    let mut parts = Vec::new();
    if pool["is_read_only"] == true {
        parts.push("serving reads alone (ro)".to_owned());
    }
    let dirty = pool["files"]["dirty"].as_u64()?;
    if dirty > 0 {
        parts.push(format!("gathering changes of {dirty} files"));
    }
    if let Some(pending) = pool["space"]["pending_bytes"].as_u64().filter(|&bytes| bytes > 0) {
        parts.push(format!("{} freed, free again with the next checkpoint", size(pending)));
    }
    let is_full = |now: &str, max: &str| {
        let (now, max) = (journal[now].as_u64()?, journal[max].as_u64()?);
        Some(u128::from(now) * 100 >= u128::from(max) * u128::from(FULL_PERCENT) && max > 0)
    };
    if is_full("active_bytes", "active_bytes_max") == Some(true)
        || is_full("dirty_pages", "dirty_pages_max") == Some(true)
    {
        parts.push("waiting for a checkpoint: the device is behind".to_owned());
    }
    if let Some(segments) = recent["segments"].as_u64().filter(|&segments| segments > 0) {
        let seconds = pool["cleaner"]["recent_seconds"].as_u64().unwrap_or(0);
        parts.push(format!("cleaned {segments} segments in the last {seconds} s"));
    }
    Some(if parts.is_empty() { "nothing to do".to_owned() } else { parts.join("; ") })
}

fn power(pool: &Value) -> Option<String> {
    let log_bytes = pool["journal"]["active_bytes"].as_u64()?;
    let dirty = pool["files"]["dirty"].as_u64()?;
    let classes = pool["journal"]["open_classes"].as_u64()?;
    let is_read_only = pool["is_read_only"] == true;
    let replay = match log_bytes {
        _ if is_read_only => "nothing would be replayed".to_owned(),
        0 => "the next mount would have nothing to replay".to_owned(),
        bytes => format!("the next mount would replay {} of log", size(bytes)),
    };
    if is_read_only || dirty == 0 && classes == 0 {
        return Some(format!("nothing would be lost; {replay}"));
    }
    let seconds = pool["commit_interval_ms"].as_u64().unwrap_or(0).div_ceil(1000);
    Some(format!(
        "what was not synced in the last {seconds} s would be lost ({dirty} files); {replay}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(pool: &Value, name: &str) -> String {
        let line = lines(pool).into_iter().find(|line| line.0 == name);
        line.map(|line| line.1).unwrap_or_default()
    }

    #[test]
    fn devices_with_errors_and_spares_left_are_named() {
        let member = |path: &str, state: &str, errors: u64| -> Value {
            json!({ "path": path, "state": state, "read_errors": errors })
        };
        let mut pool = json!({ "members": [member("/a", "online", 0)], "spares": [] });
        assert_eq!(line(&pool, "devices"), "1 of 1 online, none with errors");
        pool["members"] = json!([member("/a", "online", 0), member("/b", "failed", 3)]);
        let text = "1 of 2 online, 1 failed, no spare left, errors on /b (3 read)";
        assert_eq!(line(&pool, "devices"), text);
        (pool["spares"], pool["spares_available"]) = (json!([{}, {}]), json!(1));
        assert!(line(&pool, "devices").contains(", 1 of 2 spares left, "));
    }

    #[test]
    fn the_last_scrub_is_that_of_this_mount_or_the_one_that_the_server_has_kept() {
        let mut pool = json!({ "groups": [{ "kind": "single" }] });
        assert_eq!(line(&pool, "last scrub"), "");
        pool["groups"][0]["kind"] = json!("mirror");
        assert_eq!(line(&pool, "last scrub"), "none is known");
        let kept = ScrubResult { ended_seconds: 951_782_400, repaired: 0, damaged: 0 };
        pool["scrubs"]["result"] = json!(kept);
        assert_eq!(line(&pool, "last scrub"), "2000-02-29 00:00:00 UTC, nothing wrong");
        let mut now = ScrubFacts { repaired: 3, unread: 1, lost: 1, ..ScrubFacts::default() };
        pool["scrub"] = json!(now);
        assert_eq!(line(&pool, "last scrub"), "under way, 0 compared, 3 mended");
        (now.is_done, now.ended_seconds) = (true, Some(1_709_251_200));
        pool["scrub"] = json!(now);
        let text = "2024-03-01 00:00:00 UTC, 3 errors mended, 2 not mended";
        assert_eq!(line(&pool, "last scrub"), text);
    }

    #[test]
    fn a_summary_says_what_the_facts_say() {
        let mut pool = json!({
            "health": "ok",
            "warnings": ["a mode"],
            "is_read_only": false,
            "commit_interval_ms": 5000,
            "space": {
                "total_bytes": 1 << 30, "used_bytes": 1 << 28, "available_bytes": 700 << 20,
                "pending_bytes": 0, "inodes": 12,
            },
            "journal": {
                "active_bytes": 0, "active_bytes_max": 32 << 20, "dirty_pages": 0,
                "dirty_pages_max": 4096, "open_classes": 0,
            },
            "files": { "dirty": 0 },
            "cleaner": { "recent": { "segments": 0 }, "recent_seconds": 600 },
        });
        assert_eq!(line(&pool, "health"), "ok");
        assert_eq!(line(&pool, "mended"), "", "nothing was");
        let named = |number: u64| format!("/f{number}");
        let file =
            |number: u64| json!({ "fileset": "a", "path": named(number), "bytes": [0, 4095] });
        pool["mended"] = (0..4).map(file).chain([json!({ "path": "/g", "bytes": null })]).collect();
        assert!(line(&pool, "mended").starts_with("a:/f0, bytes 0 to 4095; a:/f1,"));
        assert!(line(&pool, "mended").contains("; and 2 more (bad on a device"));
        assert_eq!(line(&pool, "warning"), "a mode");
        assert_eq!(line(&pool, "space"), "256M of 1G used (25 %), 700M available, 12 inodes");
        assert_eq!(line(&pool, "now"), "nothing to do");
        let power = "if power failed now";
        assert!(line(&pool, power).starts_with("nothing would be lost"), "{}", line(&pool, power));
        assert_eq!(line(&pool, "job"), "");
        pool["jobs"] = json!([{
            "id": 4, "name": "scrub", "done": 30, "total": 120, "ends_in_seconds": 90,
            "is_paused": false, "pace_percent": null, "failure": null,
        }]);
        assert_eq!(line(&pool, "job"), "4  scrub: 25 %, 90 s left");
        pool["files"]["dirty"] = json!(3);
        pool["journal"]["active_bytes"] = json!(u64::MAX);
        pool["cleaner"]["recent"]["segments"] = json!(7);
        let (now, lost) = (line(&pool, "now"), line(&pool, power));
        assert!(now.contains("3 files") && now.contains("behind"), "{now}");
        assert!(now.contains("cleaned 7 segments in the last 600 s"), "{now}");
        assert!(lost.contains("last 5 s would be lost (3 files)"), "{lost}");
        pool["files"]["dirty"] = json!(0);
        pool["journal"]["open_classes"] = json!(1);
        assert!(line(&pool, power).contains("would be lost (0 files)"));
        pool["is_read_only"] = json!(true);
        assert!(line(&pool, power).starts_with("nothing would be lost"));
        assert_eq!(line(&pool, "grow"), "");
        pool["growth"] = json!({ "more_bytes": 0, "command": "holdfast device grow /d" });
        assert_eq!(line(&pool, "grow"), "");
        pool["growth"] = json!({ "more_bytes": 1 << 30, "command": "holdfast device grow /d" });
        let grow = "1G more, for its devices are longer than what it uses: holdfast device grow /d";
        assert_eq!(line(&pool, "grow"), grow);
        let by_schedule = "snapshots by schedule";
        pool["schedules"] = json!({ "filesets": 2, "stays": [] });
        assert_eq!(line(&pool, by_schedule), "");
        pool["schedules"]["stays"] = json!(["a@x: it is held by me", "3 more"]);
        assert_eq!(line(&pool, by_schedule), "not deleted: a@x: it is held by me; 3 more");
        assert_eq!(lines(&json!({ "health": "ok" })).len(), 1);
        assert_eq!(lines(&Value::Null), []);
    }
}
