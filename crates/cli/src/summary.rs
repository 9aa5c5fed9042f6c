//! The few lines of a status that a person reads first: health, space, what the pool is doing, and
//! what a power failure would cost now.
//!
//! Made of the facts that a server tells, so that it is the same for whoever asks; what a server of
//! another version does not tell is left out.

use serde_json::Value;

use crate::control::JobFacts;
use crate::output::printable;
use crate::size::ByteSize;

/// The log or the dirty pages are this full, in percent, before that is worth a word: at half a
/// checkpoint is taken, so past it the device is behind.
const FULL_PERCENT: u64 = 75;

/// Files that were mended and are named in the line that says so.
const MENDED_SHOWN_MAX: usize = 3;

/// Returns lines, each with its name.
pub(crate) fn lines(pool: &Value) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    lines.extend(text(&pool["health"]).map(|health| ("health", health)));
    let warnings = pool["warnings"].as_array().into_iter().flatten().filter_map(text);
    lines.extend(warnings.map(|warning| ("warning", warning)));
    lines.extend(space(&pool["space"]).map(|space| ("space", space)));
    lines.extend(growth(&pool["growth"]).map(|growth| ("grow", growth)));
    lines.extend(nfs(&pool["nfs"]).map(|nfs| ("nfs", nfs)));
    lines.extend(schedules(&pool["schedules"]).map(|stays| ("clones by schedule", stays)));
    lines.extend(mended(&pool["mended"]).map(|mended| ("mended", mended)));
    lines.extend(jobs(&pool["jobs"]).map(|job| ("job", job)));
    lines.extend(doing(pool).map(|doing| ("now", doing)));
    lines.extend(power(pool).map(|power| ("if power failed now", power)));
    lines
}

/// Returns a job as a line: how far it is, and when it ends.
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

/// Returns the jobs that are under way.
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
    let counts = format!("{answered} requests answered, {failed} of them with an error");
    let unserved = match nfs["exports_not_served"].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!(" and {count} that can't be served (`holdfast export list`)"),
    };
    Some(format!("{exports} exports{unserved}, {connections} connections, {counts}"))
}

/// Returns the last files of which a read found bytes bad on a device, and mended them.
fn mended(mended: &Value) -> Option<String> {
    // Who may not see paths is told none.
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

/// Returns what schedules would delete and can't; how they go else is no news.
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

/// Says that devices are longer than what the pool uses of them.
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

    /// Goal: each line says what the facts say, at the edges of numbers too, and a server that does
    /// not tell a fact costs no more than its line.
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
        let by_schedule = "clones by schedule";
        pool["schedules"] = json!({ "filesets": 2, "stays": [] });
        assert_eq!(line(&pool, by_schedule), "");
        pool["schedules"]["stays"] = json!(["a@x: it is held by me", "3 more"]);
        assert_eq!(line(&pool, by_schedule), "not deleted: a@x: it is held by me; 3 more");
        assert_eq!(lines(&json!({ "health": "ok" })).len(), 1);
        assert_eq!(lines(&Value::Null), []);
    }
}
