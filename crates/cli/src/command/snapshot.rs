//! `holdfast snapshot`: takes, shows and deletes snapshots of filesets.

use std::path::Path;

use serde_json::json;

use engine::api::ANOTHER_IS_FREED;

use super::controlled::{ControlledPool, Opener};
use super::fileset::size_of;
use crate::args::snapshot::{SnapshotArgs, SnapshotCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{IfAny, Left, Right};
use control::size::ByteSize;
use control::{Answer, FilesetFacts, Request, UseFacts, moment};
use server::backend::Backend;

pub(crate) fn run(
    args: &SnapshotArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        SnapshotCommand::Create { snapshot: argument, recursive: true } => {
            let at = ControlledPool::find(argument, opener, true)?;
            let asked = at.named_snapshot(argument).and_then(|(fileset, snapshot)| {
                at.ask_names(&Request::SnapshotCreateBelow { fileset, snapshot })
            });
            let pool = at.pool.display().to_string();
            for name in at.finish(asked)? {
                let facts = json!({ "created": name, "pool": pool });
                output.fact(&format!("{pool}:{name} is taken"), &facts);
            }
        }
        SnapshotCommand::Hold { snapshot, name } => hold(snapshot, name, true, (opener, output))?,
        SnapshotCommand::Release { snapshot, name } => {
            hold(snapshot, name, false, (opener, output))?
        }
        SnapshotCommand::Create { snapshot: argument, recursive: false } => {
            let at = ControlledPool::find(argument, opener, true)?;
            let asked = at.named_snapshot(argument).and_then(|(fileset, snapshot)| {
                let name = format!("{fileset}@{snapshot}");
                at.ask(&Request::SnapshotCreate { fileset, snapshot }).map(|_| name)
            });
            let pool = at.pool.display().to_string();
            let name = at.finish(asked)?;
            let facts = json!({ "created": name, "pool": pool });
            output.fact(&format!("{pool}:{name} is taken"), &facts);
        }
        SnapshotCommand::Delete { snapshot: argument, wait: must_wait } => {
            let at = ControlledPool::find(argument, opener, true)?;
            let done = delete(&at, argument, *must_wait, output);
            at.finish(done)?;
        }
        SnapshotCommand::List { fileset, unique } => {
            let at = ControlledPool::find(fileset, opener, false)?;
            // The directory of a mount stands for the mounted fileset, or for the fileset of a
            // mounted snapshot.
            let of = at.fileset.as_deref().map(|name| name.split('@').next().unwrap_or(name));
            let start = of.map(|name| format!("{name}@"));
            let is_of = |it: &FilesetFacts| {
                it.is_snapshot && start.as_ref().is_none_or(|start| it.name.starts_with(start))
            };
            let listed = at.filesets().and_then(|mut all| {
                of.map(|name| at.known(name, &all)).transpose()?;
                all.retain(is_of);
                all.sort_by_key(|it| it.created_seconds);
                if *unique {
                    weigh(&at, &mut all)?;
                }
                Ok(all)
            });
            let all = at.finish(listed)?;
            let columns = [
                Left("NAME"),
                Left("TAKEN"),
                Right("INODES"),
                Right("REFERENCED"),
                Right("UNIQUE"),
                IfAny("NOTES"),
            ];
            output.list(&all, "There are no snapshots.", columns, row_of);
        }
    }
    Ok(exit::DONE)
}

fn weigh(at: &ControlledPool, snapshots: &mut [FilesetFacts]) -> anyhow::Result<()> {
    for facts in snapshots.iter_mut() {
        let Some((fileset, snapshot)) = facts.name.split_once('@') else { continue };
        let (fileset, snapshot) = (fileset.to_owned(), snapshot.to_owned());
        let Answer::Bytes(bytes) = at.ask(&Request::SnapshotUnique { fileset, snapshot })? else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        facts.unique_bytes = Some(bytes);
    }
    snapshots.sort_by_key(|facts| std::cmp::Reverse(facts.unique_bytes));
    Ok(())
}

fn hold(
    argument: &Path,
    hold: &str,
    is_held: bool,
    (opener, output): (Opener<'_>, &Output),
) -> anyhow::Result<()> {
    let at = ControlledPool::find(argument, opener, true)?;
    let asked = at.named_snapshot(argument).and_then(|(fileset, snapshot)| {
        let name = format!("{fileset}@{snapshot}");
        let request = Request::SnapshotHold { fileset, snapshot, hold: hold.to_owned(), is_held };
        at.ask(&request).map(|_| name)
    });
    let pool = at.pool.display().to_string();
    let name = at.finish(asked)?;
    let (done, words) =
        if is_held { ("held", "is held by") } else { ("released", "no longer has") };
    let facts = json!({ done: name, "hold": hold, "pool": pool });
    output.fact(&format!("{pool}:{name} {words} {hold}"), &facts);
    Ok(())
}

fn delete(
    at: &ControlledPool,
    argument: &Path,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (fileset, snapshot) = at.named_snapshot(argument)?;
    let (name, pool) = (format!("{fileset}@{snapshot}"), at.pool.display().to_string());
    let request = Request::SnapshotDelete { fileset, snapshot, uuid: None };
    // Another snapshot's deletion may begin between the wait and the request.
    loop {
        super::fileset::wait_for_family(at, &name, output)?;
        match at.ask(&request) {
            Err(error) if error.to_string().contains(ANOTHER_IS_FREED) => {}
            deleted => {
                deleted?;
                break;
            }
        }
    }
    let facts = json!({ "deleted": name, "pool": pool });
    output.fact(&format!("{pool}:{name} is deleted"), &facts);
    if must_wait { super::fileset::wait(at, output) } else { Ok(()) }
}

fn row_of(snapshot: &FilesetFacts) -> [String; 6] {
    let mut notes = Vec::new();
    if !snapshot.holds.is_empty() {
        notes.push(format!("held by {}", snapshot.holds.join(", ")));
    }
    notes.extend(snapshot.used_by.iter().map(UseFacts::words));
    [
        snapshot.name.clone(),
        moment(snapshot.created_seconds),
        snapshot.inodes.to_string(),
        ByteSize(snapshot.referenced_bytes).to_string(),
        size_of(snapshot.unique_bytes),
        notes.join(", "),
    ]
}
