//! `holdfast fileset move`: a fileset to another pool, by the server of both, or by this command
//! where nobody serves them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::exit::UsageError;
use crate::named::Named;
use crate::output::{Output, printable};
use crate::transfer::{OnBytes, Transfer};
use crate::wiring::moves::{self, MoveTask};

pub(crate) fn run(
    from: &Path,
    to: &Path,
    gives_up: bool,
    opener: Opener<'_>,
    output: &Output,
) -> anyhow::Result<()> {
    let source = Controlled::find(from, opener, true)?;
    let done = move_from(&source, (from, to), gives_up, opener, output);
    source.finish(done)
}

fn move_from(
    source: &Controlled,
    (from, to): (&Path, &Path),
    gives_up: bool,
    opener: Opener<'_>,
    output: &Output,
) -> anyhow::Result<()> {
    let fileset = source.named(from)?;
    let there = Named::of(to)?;
    let named = there.fileset.clone().filter(|_| there.clone.is_none());
    let name = named.map(|name| name.to_string()).ok_or_else(|| {
        UsageError::new(format!("{}: name the fileset there as OTHER:c", to.display()))
    })?;
    let mut progress = output.progress();
    let tell = &mut |done, total| {
        progress.tell("inodes", done, total);
        true
    };
    let moved = if source.is_served() {
        let pool = absolute(&there.pool)?;
        let request = Transfer::Move { fileset: fileset.clone(), pool, to: name.clone(), gives_up };
        // Nothing goes through it.
        let file = File::open("/dev/null").context("/dev/null")?;
        source.transfer(&request, file, tell)
    } else {
        let target = Controlled::find(to, Opener::plain(opener.backend), true)?;
        let moved = by_this_command((source, &fileset), (&target, &name), gives_up, tell);
        target.finish(moved)
    };
    progress.finish();
    let mut facts = moved?;
    let (pool, other) = (source.pool.display().to_string(), there.pool.display());
    facts["pool"] = json!(pool);
    let (fileset, name) = (printable(&fileset), printable(&name));
    let text = if gives_up {
        format!("{pool}:{fileset} stays, and nothing of it is in {other}")
    } else {
        format!("{pool}:{fileset} is {other}:{name} now{}", pauses_of(&facts))
    };
    output.fact(&text, &facts);
    Ok(())
}

/// Returns words for how long requests have waited, of a fileset that was used meanwhile.
fn pauses_of(facts: &serde_json::Value) -> String {
    let pauses = facts["pauses_ms"].as_array().into_iter().flatten();
    let longest = pauses.filter_map(serde_json::Value::as_u64).max();
    longest.map_or_else(String::new, |longest| {
        format!("; who uses it has waited {longest} ms at most")
    })
}

fn absolute(pool: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(pool).with_context(|| pool.display().to_string())
}

fn by_this_command(
    (source, fileset): (&Controlled, &str),
    (target, name): (&Controlled, &str),
    gives_up: bool,
    tell: OnBytes<'_>,
) -> anyhow::Result<serde_json::Value> {
    let (Some(from), Some(to)) = (source.lend(), target.lend()) else {
        let (pool, other) = (source.pool.display(), target.pool.display());
        anyhow::bail!(
            "{other} has a server and {pool} has none: end that server, or serve both by one \
             (`holdfast serve {pool} {other}`)"
        );
    };
    let task = if gives_up { MoveTask::GiveUp } else { MoveTask::Run };
    Ok(moves::run((&from, fileset), (&to, name), None, task, tell)?)
}
