//! `holdfast fileset move`: moves a fileset to another pool, by the server of both pools or, if
//! neither has one, in this process.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::waiting::carry;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::text::printable;
use control::{Transfer, UsageError};
use server::named::PoolArgument;
use server::pool_names;
use server::transfer::OnTransfer;
pub(super) use server::wiring::moves::{self, MoveTask};

pub(crate) fn run(
    from: &Path,
    to: &Path,
    gives_up: bool,
    opener: Opener<'_>,
    output: &Output,
) -> anyhow::Result<()> {
    let source = ControlledPool::find(from, opener, true)?;
    let done = move_from(&source, (from, to), gives_up, opener, output);
    source.finish(done)
}

fn move_from(
    source: &ControlledPool,
    (from, to): (&Path, &Path),
    gives_up: bool,
    opener: Opener<'_>,
    output: &Output,
) -> anyhow::Result<()> {
    let fileset = source.named(from)?;
    let there = PoolArgument::of(to)?;
    let named = there.fileset.clone().filter(|_| there.snapshot.is_none());
    let name = named.map(|name| name.to_string()).ok_or_else(|| {
        UsageError::new(format!("{}: name the fileset there as OTHER:c", to.display()))
    })?;
    let (unit, what) = (WorkUnit::Items("inodes"), "moved");
    let mut facts = if source.is_served() {
        let pool = absolute(&there.pool)?;
        // The server finds its pools by path, so the path must lead to the pool that is there now.
        pool_names::server_at(&pool, opener.backend)?;
        let request = Transfer::Move { fileset: fileset.clone(), pool, to: name.clone(), gives_up };
        // A transfer needs a descriptor, but a move passes no data through it.
        let file = File::open("/dev/null").context("/dev/null")?;
        let (own, other) = (source.pool.display(), there.pool.display());
        let continues = format!(
            "The move goes on in the server: `holdfast fileset list {own}` shows it, and `holdfast \
             fileset move {own}:{fileset} {other}:{name} --abort` gives it up"
        );
        carry(source, &request, file, (unit, what, output), &continues)?
    } else {
        let target = ControlledPool::find(to, Opener::plain(opener.backend), true)?;
        let mut progress = output.progress();
        let tell = &mut |now| {
            progress.show(unit, what, now);
            true
        };
        let moved = by_this_command((source, &fileset), (&target, &name), gives_up, tell);
        progress.finish();
        target.finish(moved)?
    };
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

/// Returns text on the longest pause of requests during the move.
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
    (source, fileset): (&ControlledPool, &str),
    (target, name): (&ControlledPool, &str),
    gives_up: bool,
    tell: OnTransfer<'_>,
) -> anyhow::Result<serde_json::Value> {
    let (Some(from), Some(to)) = (source.lend(), target.lend()) else {
        let (pool, other) = (source.pool.display(), target.pool.display());
        anyhow::bail!(
            "{other} has a server and {pool} has none: end that server, or serve both by one \
             (`holdfast serve {pool} {other} --nfs ADDRESS:PORT`)"
        );
    };
    let task = if gives_up { MoveTask::GiveUp } else { MoveTask::Run };
    Ok(moves::run((&from, fileset), (&to, name), None, task, tell)?)
}
