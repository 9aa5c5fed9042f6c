//! `holdfast diff`: paths that differ between two nodes of a family.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::controlled::{ControlledPool, Opener};
use crate::args::transfer::DiffArgs;
use crate::exit;
use crate::output::Output;
use control::text::printable;
use control::{Transfer, UsageError};
use server::backend::Backend;
use server::named::PoolArgument;
use server::pool_names;

const RANGES_SHOWN: usize = 8;

struct DiffNode {
    pool: PathBuf,
    fileset: Option<String>,
    snapshot: Option<String>,
}

impl DiffNode {
    fn of(argument: &Path, opener: Opener<'_>) -> anyhow::Result<DiffNode> {
        let named = PoolArgument::of(argument)?;
        let device = named.device()?;
        let snapshot = named.snapshot.map(|snapshot| snapshot.as_str().to_owned());
        let whole = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if !device.is_dir() {
            let fileset = named.fileset.map(|name| name.to_string());
            let found = pool_names::server_at(&device, opener.backend)?;
            let pool = found.map_or(device, |found| whole(Path::new(found.pool())));
            return Ok(DiffNode { pool, fileset, snapshot });
        }
        // A mount directory has a server, so this opens no pool.
        let at = ControlledPool::find(argument, opener, false)?;
        let pool = whole(&at.pool);
        let (fileset, mounted) = match at.fileset.as_deref().and_then(|name| name.split_once('@')) {
            Some((fileset, snapshot)) => (Some(fileset.to_owned()), Some(snapshot.to_owned())),
            None => (at.fileset.clone(), None),
        };
        at.finish(Ok(DiffNode { pool, fileset, snapshot: snapshot.or(mounted) }))
    }
}

pub(crate) fn run(args: &DiffArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let (from, to) = (DiffNode::of(&args.from, opener)?, DiffNode::of(&args.to, opener)?);
    if to.pool != from.pool {
        let (from, to) = (args.from.display(), args.to.display());
        let message = format!("{from} and {to}: the two are of one pool, and of one family");
        return Err(UsageError::new(message).into());
    }
    // To compare with a fileset, the pool takes a snapshot, which needs it open for writing.
    let at = ControlledPool::find(&args.from, opener, to.snapshot.is_none())?;
    let done = tell(&at, &args.from, (from, to), output);
    at.finish(done)?;
    Ok(exit::DONE)
}

fn tell(
    at: &ControlledPool,
    argument: &Path,
    (from, to): (DiffNode, DiffNode),
    output: &Output,
) -> anyhow::Result<()> {
    let (Some(fileset), Some(from)) = (from.fileset, from.snapshot) else {
        let message = format!("{}: name a snapshot as POOL:a/b@monday", argument.display());
        return Err(UsageError::new(message).into());
    };
    let to_fileset = to.fileset.unwrap_or_else(|| fileset.clone());
    let request = Transfer::Diff { fileset, from, to_fileset, to: to.snapshot };
    let (read, write) = std::io::pipe()?;
    std::thread::scope(|scope| {
        let file = File::from(OwnedFd::from(write));
        let asked = scope.spawn(|| at.transfer(&request, file, &mut |_| true));
        for line in BufReader::new(read).lines() {
            let value: Value = serde_json::from_str(&line?)?;
            output.fact(&line_of(&value), &value);
        }
        asked.join().map_err(|_| anyhow::anyhow!("the comparison met a bug"))?.map(drop)
    })
}

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
