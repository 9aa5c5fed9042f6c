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
    let (pool, directory) = (printable(found.text("pool")), printable(found.text("directory")));
    let fileset = found.status["pool"]["fileset"].as_str().map(printable);
    let fileset = fileset.map_or(String::new(), |name| format!(":{name}"));
    let nfs = found.status["server"]["nfs"].as_str().map(printable);
    let place = match (directory.is_empty(), nfs) {
        (false, _) => format!("on {directory}"),
        (true, Some(address)) => format!("by NFS at {address}"),
        (true, None) => "by a server".to_owned(),
    };
    let mut text = format!("{pool}{fileset} {place} (process {pid})\n");
    if !found.advice().is_empty() {
        let _ = writeln!(text, "  {}", found.advice());
    }
    for (name, line) in summary::lines(&found.status["pool"]) {
        let _ = writeln!(text, "  {name}: {}", printable(&line));
    }
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
