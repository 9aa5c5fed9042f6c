//! `holdfast status`: shows mounted or served pools.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::output::Output;
use crate::table::Column::{IfAny, Left, Right};
use crate::table::table;
use crate::{exit, summary};
use control::size::ByteSize;
use control::text::printable;
use server::backend::Backend;
use server::pool_names;
use server::status::{self, DiscoveredServer, NoAnswerReason};

pub(crate) fn run(args: &StatusArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let verified = |path: &Path| {
        status::find_now(path)?.map_or(Ok(None), |found| pool_names::verified(found, path, backend))
    };
    let found = match &args.of {
        None => status::all()?,
        Some(path) => match verified(path)? {
            Some(found) => {
                let advice = found.advice();
                anyhow::ensure!(advice.is_empty(), "{}: {advice}", path.display());
                vec![found]
            }
            None => anyhow::bail!(
                "{} is not mounted by a server of yours: `holdfast status` lists those that are",
                path.display()
            ),
        },
    };
    if found.is_empty() {
        output.remark("No pool is mounted.");
    }
    for server in &found {
        output.fact(&text_of(server, args.verbose, output.width()), &server.status);
    }
    let is_unreachable = |it: &DiscoveredServer| it.silence == Some(NoAnswerReason::NotReachable);
    Ok(if found.iter().any(is_unreachable) { exit::FAILED } else { exit::DONE })
}

pub(crate) fn text_of(found: &DiscoveredServer, is_verbose: bool, width: Option<usize>) -> String {
    let pid = found.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let pool = printable(found.pool_name().unwrap_or_else(|| found.pool()));
    let mounts = found.mounts();
    let named = |fileset: Option<&str>| {
        fileset.map_or(String::new(), |name| format!(":{}", printable(name)))
    };
    let nfs = found.status["server"]["nfs"].as_str().map(printable);
    let (fileset, place) = match (mounts.first(), nfs) {
        (Some((directory, fileset)), _) => {
            (named(*fileset), format!("on {}", printable(&directory.to_string_lossy())))
        }
        (None, Some(address)) => {
            (named(found.status["pool"]["fileset"].as_str()), format!("by NFS at {address}"))
        }
        (None, None) => (named(found.status["pool"]["fileset"].as_str()), "by a server".to_owned()),
    };
    let mut text = format!("{pool}{fileset} {place} (process {pid})\n");
    if found.pool_name().is_some() {
        let _ = writeln!(text, "  device: {}", printable(found.pool()));
    }
    for (directory, fileset) in mounts.iter().skip(1) {
        let directory = printable(&directory.to_string_lossy());
        let _ = writeln!(text, "  also: {pool}{} on {directory}", named(*fileset));
    }
    text.push_str(&hand_overs_of(&found.status["server"]));
    if !found.advice().is_empty() {
        let _ = writeln!(text, "  {}", found.advice());
    }
    for (name, line) in summary::lines(&found.status["pool"]) {
        let _ = writeln!(text, "  {name}: {}", printable(&line));
    }
    text.push_str(&members_of(&found.status["pool"], width));
    let transport = &found.status["server"]["transport"];
    if let (Some(name), Some(reason)) = (transport["name"].as_str(), transport["reason"].as_str()) {
        let _ = writeln!(text, "  requests: by {name} ({})", printable(reason));
    }
    if is_verbose {
        let _ = writeln!(text, "  socket: {}", found.socket.display());
        if !found.text("log").is_empty() {
            let _ = writeln!(text, "  log: {}", printable(found.text("log")));
        }
        let mut counts = found.status["pool"].clone();
        for said in ["health", "warnings"] {
            counts.as_object_mut().and_then(|counts| counts.remove(said));
        }
        flatten(&mut text, 1, &counts);
    }
    text
}

/// Returns a line for each hand-over of a mount, which reserves its fileset.
fn hand_overs_of(server: &Value) -> String {
    let line = |it: &Value| {
        let fileset = it["fileset"].as_str().map_or_else(|| "the pool".to_owned(), printable);
        let by = it["mounter"].as_u64().map_or(String::new(), |uid| format!(", by user {uid}"));
        let (directory, seconds) = (word(it, "directory"), count(it, "seconds"));
        format!("  being mounted: {fileset} on {directory}{by}, for {seconds} s\n")
    };
    server["hand_overs"].as_array().into_iter().flatten().map(line).collect()
}

/// Returns a table of the devices, grouped by disk group. A server of another version may report no
/// groups.
fn members_of(pool: &Value, width: Option<usize>) -> String {
    let list = |name: &str| pool[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let (members, spares) = (list("members"), list("spares"));
    if members.is_empty() {
        return String::new();
    }
    let whole = json!({ "kind": pool["layout"] });
    let groups =
        if list("groups").is_empty() { std::slice::from_ref(&whole) } else { list("groups") };
    let mut rows = Vec::new();
    for group in groups {
        let own = || members.iter().filter(|member| is_of(member, group));
        let is_degraded = own().any(|member| member["state"] != "online");
        let state = match (word(group, "state").as_str(), is_degraded) {
            ("leaving", _) => "leaving",
            ("adding", _) => "adding",
            (_, true) => "degraded",
            (_, false) => "online",
        };
        let sums = COUNTS.map(|name| own().map(|member| count(member, name)).sum());
        rows.push(row(name_of(group, groups.len()), state, Some(sums), fullness_of(group)));
        rows.extend(own().map(|member| {
            let is_joining = member["state"] == "joining";
            let copied = || format!("{} copied", ByteSize(count(member, "copied_bytes")));
            let notes = if is_joining { copied() } else { String::new() };
            let counts = COUNTS.map(|name| count(member, name));
            let path = format!("  {}", word(member, "path"));
            row(path, &word(member, "state"), Some(counts), notes)
        }));
    }
    rows.extend(
        spares
            .iter()
            .map(|spare| row(word(spare, "path"), &word(spare, "state"), None, String::new())),
    );
    let columns = [
        Left("DEVICE"),
        Left("STATE"),
        Right("READ"),
        Right("WRITE"),
        Right("CKSUM"),
        Right("REPAIRED"),
        IfAny("NOTES"),
    ];
    let text = table(columns, rows, width.map(|width| width.saturating_sub(2)));
    text.lines().map(|line| format!("  {line}\n")).collect()
}

const COUNTS: [&str; 4] = ["read_errors", "write_errors", "checksum_errors", "repaired"];

fn row(name: String, state: &str, counts: Option<[u64; 4]>, notes: String) -> [String; 7] {
    let counts = counts.map(|counts| counts.map(|count| count.to_string()));
    let [read, write, checksum, repaired] = counts.unwrap_or_default();
    [name, state.to_owned(), read, write, checksum, repaired, notes]
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn word(value: &Value, name: &str) -> String {
    printable(value[name].as_str().unwrap_or("?"))
}

/// Returns the kind of a disk group. If there are several, also its number and roles.
fn name_of(group: &Value, groups: usize) -> String {
    let kind = word(group, "kind");
    let Some(number) = group["number"].as_u64().filter(|_| groups > 1) else { return kind };
    let roles = group["roles"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!("group {number}: {kind} ({})", printable(&roles.collect::<Vec<_>>().join(", ")))
}

/// Whether a device belongs to a disk group. A group without slots has all devices.
fn is_of(member: &Value, group: &Value) -> bool {
    let slots = group["slots"].as_array();
    slots.is_none_or(|slots| slots.iter().any(|slot| *slot == member["slot"]))
}

fn fullness_of(group: &Value) -> String {
    let Some(total) = group["total_bytes"].as_u64() else { return String::new() };
    match group["used_bytes"].as_u64() {
        Some(used) => format!("{} of {} used", ByteSize(used), ByteSize(total)),
        None => format!("{}, not counted yet", ByteSize(total)),
    }
}

/// Writes an object as indented lines. Fields in `_bytes` are written as sizes.
fn flatten(text: &mut String, depth: usize, value: &Value) {
    let Some(object) = value.as_object() else { return };
    for (name, value) in object {
        let indent = "  ".repeat(depth);
        let _ = match (value, name.strip_suffix("_bytes"), value.as_u64()) {
            (Value::Object(_), ..) => writeln!(text, "{indent}{name}:"),
            (_, Some(name), Some(bytes)) => writeln!(text, "{indent}{name}: {}", ByteSize(bytes)),
            (Value::String(value), ..) => writeln!(text, "{indent}{name}: {}", printable(value)),
            (value, ..) => writeln!(text, "{indent}{name}: {value}"),
        };
        flatten(text, depth + 1, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: devices are listed below their disk groups, a group with a missing device is degraded,
    /// and columns align.
    #[test]
    fn devices_are_drawn_below_their_disk_groups() {
        let member = |slot: u64, path: &str, state: &str| -> Value {
            json!({ "slot": slot, "path": path, "state": state })
        };
        let group = |number: u64, kind: &str, slots: &[u64], state: &str| {
            json!({
                "number": number, "kind": kind, "state": state, "slots": slots,
                "roles": if number == 0 { json!(["metadata", "journal"]) } else { json!(["data"]) },
                "total_bytes": 10 << 20,
                "used_bytes": if number == 2 { Value::Null } else { json!(5 << 20) },
            })
        };
        let pool = json!({
            "layout": "mirror",
            "is_degraded": true,
            "members": [
                member(0, "/m0", "online"), member(1, "/m1", "failed"),
                member(2, "/with/a/longer/name/than/others", "online"), member(4, "/d4", "online"),
            ],
            "spares": [json!({ "path": "/s", "state": "spare" })],
            "groups": [
                group(0, "mirror", &[0, 1], "online"), group(1, "single", &[2], "leaving"),
                group(2, "single", &[4], "online"),
            ],
        });
        let text = members_of(&pool, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 9, "{text}");
        assert!(lines[1].starts_with("  group 0: mirror (metadata, journal)  "), "{text}");
        assert!(lines[1].contains("degraded") && lines[1].ends_with("5M of 10M used"), "{text}");
        assert!(lines[2].starts_with("    /m0 ") && lines[3].contains("failed"), "{text}");
        assert!(lines[4].contains("group 1: single (data)") && lines[4].contains("leaving"));
        assert!(lines[5].contains("/with/a/longer"), "{text}");
        assert!(lines[6].contains("online") && lines[6].ends_with("10M, not counted yet"));
        assert!(lines[7].contains("/d4") && lines[8].contains("/s") && lines[8].contains("spare"));
        let column = lines[0].find("STATE").expect("it has a title");
        for line in &lines[1..] {
            assert!(!line[column..].starts_with(' ') && line[..column].ends_with("  "), "{text}");
        }
        let old = json!({ "layout": "mirror", "members": [member(0, "/m0", "online")] });
        let text = members_of(&old, Some(40));
        assert!(text.contains("\n  mirror ") && text.lines().all(|it| it.len() <= 40), "{text}");
        assert_eq!(members_of(&json!({ "members": [] }), None), "");
    }
}
