//! `holdfast status`: shows pools that are mounted or served.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::exit;
use crate::output::{Output, printable};
use crate::size::ByteSize;
use crate::status::{self, Found, Silence};
use crate::summary;

pub(crate) fn run(args: &StatusArgs, output: &Output) -> anyhow::Result<u8> {
    let found = match &args.of {
        None => status::all()?,
        Some(path) => match status::find_now(path)? {
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
        output.fact(&text_of(server, args.verbose), &server.status);
    }
    let is_unreachable = |it: &Found| it.silence == Some(Silence::NotReachable);
    Ok(if found.iter().any(is_unreachable) { exit::FAILED } else { exit::DONE })
}

/// Returns a server's status for people: a few lines, and every count if that `is_verbose`.
pub(crate) fn text_of(found: &Found, is_verbose: bool) -> String {
    let pid = found.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let pool = printable(found.pool());
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
    text.push_str(&members_of(&found.status["pool"]));
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
            // The first lines have them.
            counts.as_object_mut().and_then(|counts| counts.remove(said));
        }
        flatten(&mut text, 1, &counts);
    }
    text
}

/// Returns a line for each mount that a client is handing over: its fileset is held meanwhile.
fn hand_overs_of(server: &Value) -> String {
    let line = |it: &Value| {
        let fileset = it["fileset"].as_str().map_or_else(|| "the pool".to_owned(), printable);
        let by = it["mounter"].as_u64().map_or(String::new(), |uid| format!(", by user {uid}"));
        let (directory, seconds) = (word(it, "directory"), count(it, "seconds"));
        format!("  being mounted: {fileset} on {directory}{by}, for {seconds} s\n")
    };
    server["hand_overs"].as_array().into_iter().flatten().map(line).collect()
}

/// Draws the devices of a pool of several, below the disk groups that they are members of: what
/// each is, how full, and its errors by kind. A server of another version tells of no disk groups.
fn members_of(pool: &Value) -> String {
    let list = |name: &str| pool[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let (members, spares) = (list("members"), list("spares"));
    if members.is_empty() {
        return String::new();
    }
    let whole = json!({ "kind": pool["layout"] });
    let groups =
        if list("groups").is_empty() { std::slice::from_ref(&whole) } else { list("groups") };
    let names: Vec<String> = groups.iter().map(|group| name_of(group, groups.len())).collect();
    let paths = members.iter().chain(spares).map(|device| word(device, "path").len() + 2);
    let width = paths.chain(names.iter().map(String::len)).max().unwrap_or(0);
    let mut text = format!(
        "  {:<width$}  {:<8}  {:>5} {:>5} {:>5} {:>8}\n",
        "member", "state", "read", "write", "check", "repaired"
    );
    for (group, name) in groups.iter().zip(&names) {
        let own = || members.iter().filter(|member| is_of(member, group));
        let is_degraded = own().any(|member| member["state"] != "online");
        let state = match (word(group, "state").as_str(), is_degraded) {
            ("leaving", _) => "leaving",
            ("adding", _) => "adding",
            (_, true) => "degraded",
            (_, false) => "online",
        };
        let _ = writeln!(text, "  {name:<width$}  {state:<8}{}", fullness_of(group));
        own().for_each(|member| text.push_str(&line_of(member, width)));
    }
    if !spares.is_empty() {
        text.push_str("  spares\n");
    }
    for spare in spares {
        let (path, width) = (word(spare, "path"), width - 2);
        let _ = writeln!(text, "    {path:<width$}  {}", word(spare, "state"));
    }
    text
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

fn word(value: &Value, name: &str) -> String {
    printable(value[name].as_str().unwrap_or("?"))
}

/// Returns what a disk group is called: of several its number too, and what it is for.
fn name_of(group: &Value, groups: usize) -> String {
    let kind = word(group, "kind");
    let Some(number) = group["number"].as_u64().filter(|_| groups > 1) else { return kind };
    let roles = group["roles"].as_array().into_iter().flatten().filter_map(Value::as_str);
    format!("group {number}: {kind} ({})", printable(&roles.collect::<Vec<_>>().join(", ")))
}

/// Whether a member is of a disk group; of one that tells nothing of slots all are.
fn is_of(member: &Value, group: &Value) -> bool {
    let slots = group["slots"].as_array();
    slots.is_none_or(|slots| slots.iter().any(|slot| *slot == member["slot"]))
}

fn fullness_of(group: &Value) -> String {
    let Some(total) = group["total_bytes"].as_u64() else { return String::new() };
    match group["used_bytes"].as_u64() {
        Some(used) => format!("  {} of {} used", ByteSize(used), ByteSize(total)),
        None => format!("  {}, not counted yet", ByteSize(total)),
    }
}

fn line_of(member: &Value, width: usize) -> String {
    let width = width - 2;
    let mut line = format!(
        "    {:<width$}  {:<8}  {:>5} {:>5} {:>5} {:>8}",
        word(member, "path"),
        word(member, "state"),
        count(member, "read_errors"),
        count(member, "write_errors"),
        count(member, "checksum_errors"),
        count(member, "repaired"),
    );
    if member["state"] == "joining" {
        line += &format!("  {} copied", ByteSize(count(member, "copied_bytes")));
    }
    line.push('\n');
    line
}

/// Writes an object as indented lines. A name that ends in `_bytes` has its value as a size.
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

    /// Goal: each device is below its disk group, with what that is and how full, and a disk group
    /// whose member is away is degraded. Columns stand below each other.
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
        let text = members_of(&pool);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 10, "{text}");
        assert!(lines[1].starts_with("  group 0: mirror (metadata, journal)  "), "{text}");
        assert!(lines[1].contains("degraded  5M of 10M used"), "{text}");
        assert!(lines[2].starts_with("    /m0 ") && lines[3].contains("failed"), "{text}");
        assert!(lines[4].contains("group 1: single (data)") && lines[4].contains("leaving"));
        assert!(lines[5].contains("/with/a/longer"), "{text}");
        assert!(lines[6].contains("online    10M, not counted yet"), "{text}");
        assert!(lines[7].contains("/d4") && lines[8] == "  spares" && lines[9].contains("/s"));
        let column = lines[0].find("state").expect("it has a title");
        for line in &lines[1..8] {
            assert!(!line[column..].starts_with(' ') && line[..column].ends_with("  "), "{text}");
        }
        // One disk group is called by its kind, as by a server that does not tell of any.
        let old = json!({ "layout": "mirror", "members": [member(0, "/m0", "online")] });
        assert!(members_of(&old).contains("\n  mirror "), "{}", members_of(&old));
        assert_eq!(members_of(&json!({ "members": [] })), "");
    }
}
