//! `holdfast diff`: which paths two nodes have differently.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::controlled::{Controlled, Opener};
use crate::args::transfer::DiffArgs;
use crate::backend::Backend;
use crate::exit::{self, UsageError};
use crate::named::Named;
use crate::output::{Output, printable};
use crate::transfer::Transfer;

/// Ranges of a file that are told to people.
const RANGES_SHOWN: usize = 8;

/// A node that the command line names: by name, or by the directory of a mount.
struct Node {
    pool: PathBuf,
    fileset: Option<String>,
    clone: Option<String>,
}

impl Node {
    fn of(argument: &Path, opener: Opener<'_>) -> anyhow::Result<Node> {
        let named = Named::of(argument)?;
        let device = named.device()?;
        let clone = named.clone.map(|clone| clone.as_str().to_owned());
        if !device.is_dir() {
            let fileset = named.fileset.map(|name| name.to_string());
            return Ok(Node { pool: device, fileset, clone });
        }
        // Only a server has a directory, so nothing is opened.
        let at = Controlled::find(argument, opener, false)?;
        let pool = std::fs::canonicalize(&at.pool).unwrap_or_else(|_| at.pool.clone());
        // What is mounted there may be a clone itself.
        let (fileset, mounted) = match at.fileset.as_deref().and_then(|name| name.split_once('@')) {
            Some((fileset, clone)) => (Some(fileset.to_owned()), Some(clone.to_owned())),
            None => (at.fileset.clone(), None),
        };
        at.finish(Ok(Node { pool, fileset, clone: clone.or(mounted) }))
    }
}

pub(crate) fn run(args: &DiffArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let (from, to) = (Node::of(&args.from, opener)?, Node::of(&args.to, opener)?);
    if to.pool != from.pool {
        let (from, to) = (args.from.display(), args.to.display());
        let message = format!("{from} and {to}: the two are of one pool, and of one family");
        return Err(UsageError::new(message).into());
    }
    // Of the fileset itself a clone is taken.
    let at = Controlled::find(&args.from, opener, to.clone.is_none())?;
    let done = tell(&at, &args.from, (from, to), output);
    at.finish(done)?;
    Ok(exit::DONE)
}

fn tell(
    at: &Controlled,
    argument: &Path,
    (from, to): (Node, Node),
    output: &Output,
) -> anyhow::Result<()> {
    let (Some(fileset), Some(from)) = (from.fileset, from.clone) else {
        let message = format!("{}: name a clone as POOL:a/b@monday", argument.display());
        return Err(UsageError::new(message).into());
    };
    let to_fileset = to.fileset.unwrap_or_else(|| fileset.clone());
    let request = Transfer::Diff { fileset, from, to_fileset, to: to.clone };
    let (read, write) = std::io::pipe()?;
    std::thread::scope(|scope| {
        let file = File::from(OwnedFd::from(write));
        let asked = scope.spawn(|| at.transfer(&request, file, &mut |_, _| true));
        for line in BufReader::new(read).lines() {
            let value: Value = serde_json::from_str(&line?)?;
            output.fact(&line_of(&value), &value);
        }
        asked.join().map_err(|_| anyhow::anyhow!("the comparison met a bug"))?.map(drop)
    })
}

/// Returns a difference as people read it.
fn line_of(value: &Value) -> String {
    let text = |name: &str| printable(value[name].as_str().unwrap_or(""));
    let mut line = format!("{:<8}  {}", text("became"), text("path"));
    if value["from"].is_string() {
        line.push_str(&format!(" (was {})", text("from")));
    }
    let mut facts: Vec<String> = Vec::new();
    let ranges = value["ranges"].as_array().map_or(&[][..], Vec::as_slice);
    for range in ranges.iter().take(RANGES_SHOWN) {
        facts.push(format!("bytes {} to {}", range[0], range[1]));
    }
    if let Some(more) = ranges.len().checked_sub(RANGES_SHOWN + 1) {
        facts.push(format!("{} more ranges", more + 1));
    }
    if value["size_before"] != value["size_after"] {
        facts.push(format!("size {} to {}", value["size_before"], value["size_after"]));
    }
    if value["has_attributes"] == true {
        facts.push("attributes".to_owned());
    }
    if !facts.is_empty() {
        line.push_str(&format!(": {}", facts.join(", ")));
    }
    line
}
