//! `holdfast status`: shows pools that are mounted or served.

use std::fmt::Write;

use serde_json::Value;

use crate::args::StatusArgs;
use crate::exit;
use crate::output::{Output, printable};
use crate::size::ByteSize;
use crate::status::{self, Found};
use crate::summary;

pub(crate) fn run(args: &StatusArgs, output: &Output) -> anyhow::Result<u8> {
    let found = match &args.of {
        None => status::all()?,
        Some(path) => match status::find(path)? {
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
    Ok(exit::DONE)
}

/// Returns a server's status for people: a few lines, and every count if that `is_verbose`.
pub(crate) fn text_of(found: &Found, is_verbose: bool) -> String {
    let pid = found.pid().map_or_else(|| "?".to_owned(), |pid| pid.to_string());
    let pool = printable(found.text("pool"));
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

/// Draws the members of a pool of several devices: what each is, and its errors by kind.
fn members_of(pool: &Value) -> String {
    let members = pool["members"].as_array().filter(|members| !members.is_empty());
    let Some(members) = members else { return String::new() };
    let count = |member: &Value, name: &str| member[name].as_u64().unwrap_or(0);
    let word = |member: &Value, name: &str| printable(member[name].as_str().unwrap_or("?"));
    let state = if pool["is_degraded"] == true { "degraded" } else { "online" };
    let layout = printable(pool["layout"].as_str().unwrap_or("?"));
    let paths: Vec<String> = members.iter().map(|member| word(member, "path")).collect();
    let width = paths.iter().map(String::len).max().unwrap_or(0).max(layout.len());
    let mut text = format!(
        "  {:<width$}    {:<8}  {:>5} {:>5} {:>5} {:>8}\n",
        "member", "state", "read", "write", "check", "repaired"
    );
    let _ = writeln!(text, "  {layout:<width$}    {state}");
    for (member, path) in members.iter().zip(&paths) {
        let _ = write!(
            text,
            "    {path:<width$}  {:<8}  {:>5} {:>5} {:>5} {:>8}",
            word(member, "state"),
            count(member, "read_errors"),
            count(member, "write_errors"),
            count(member, "checksum_errors"),
            count(member, "repaired"),
        );
        if member["state"] == "joining" {
            let _ = write!(text, "  {} copied", ByteSize(count(member, "copied_bytes")));
        }
        text.push('\n');
    }
    for spare in pool["spares"].as_array().into_iter().flatten() {
        let (path, state) = (word(spare, "path"), word(spare, "state"));
        let _ = writeln!(text, "    {path:<width$}  {state}");
    }
    text
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
