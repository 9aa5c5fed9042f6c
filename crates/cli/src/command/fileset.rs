//! `holdfast fileset`: makes, shows, changes, renames and deletes the filesets of a pool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use format::fileset::ROOT_SLOT;
use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::waiting::{JobWait, check_goes_on};
use crate::args::fileset::{FilesetArgs, FilesetCommand};
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use crate::table::Column::{IfAny, Left, Right};
use control::size::ByteSize;
use control::{FilesetFacts, Properties, Request, UsageError, UseFacts};
use server::backend::Backend;
use server::named::PoolArgument;
use server::pool_names;

/// Prefix of the names of the jobs that free deleted filesets.
const FREEING: &str = "freeing ";

pub(crate) fn run(
    args: &FilesetArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        FilesetCommand::List { pool } => {
            let at = ControlledPool::find(pool, opener, false)?;
            let all = at.filesets().and_then(|all| listed(&at, pool, all));
            let all = at.finish(all)?;
            if all.iter().any(|fileset| fileset.freed_permille.is_some()) {
                output.remark("Deleted filesets are listed until all that they held is free.");
            }
            list(all, output);
        }
        FilesetCommand::Create { fileset, properties, quota, reservation } => {
            let mut words = properties.clone();
            words.extend(quota.iter().map(|size| format!("quota={size}")));
            words.extend(reservation.iter().map(|size| format!("reservation={size}")));
            let properties = Properties::of(&words)?;
            let make = |name| Request::FilesetCreate { name, properties: properties.clone() };
            change(fileset, opener, output, ("created", "is made"), &make)?;
        }
        FilesetCommand::Set { fileset, properties } => {
            let properties = Properties::of(properties)?;
            let set = |name| Request::FilesetSet { name, properties: properties.clone() };
            change(fileset, opener, output, ("changed", "is changed"), &set)?;
        }
        FilesetCommand::Rename { fileset, to } => {
            let to = new_name(fileset, to, backend)?;
            let rename = |name| Request::FilesetRename { name, to: to.clone() };
            change(fileset, opener, output, ("renamed", &format!("is {to} now")), &rename)?;
        }
        FilesetCommand::Restore { snapshot, wait } => {
            let at = ControlledPool::find_beside(snapshot, opener)?;
            let done = restore(&at, snapshot, *wait, output);
            at.finish(done)?;
        }
        FilesetCommand::Promote { fileset } => {
            let at = ControlledPool::find(fileset, opener, true)?;
            let asked = at.named(fileset).and_then(|name| {
                let names = at.ask_names(&Request::FilesetPromote { name: name.clone() })?;
                Ok((name, names))
            });
            let pool = at.pool.display().to_string();
            let (name, names) = at.finish(asked)?;
            let facts = json!({ "promoted": name, "snapshots": names, "pool": pool });
            output.fact(
                &format!("{pool}:{name} has these snapshots now: {}", names.join(", ")),
                &facts,
            );
        }
        FilesetCommand::Move { fileset, to: Some(to), abort, .. } => {
            super::moving::run(fileset, to, *abort, opener, output)?;
        }
        FilesetCommand::Move { fileset, to: None, .. } => {
            let here = |name| Request::FilesetHere { name };
            change(fileset, opener, output, ("here", "is in this pool"), &here)?;
        }
        FilesetCommand::Delete { fileset, recursive, wait } => {
            let at = ControlledPool::find(fileset, opener, true)?;
            let done = delete(&at, fileset, (*recursive, *wait), output);
            at.finish(done)?;
        }
    }
    Ok(exit::DONE)
}

/// Returns the filesets to list: all, or the one in `argument` with those below it. Fails if that
/// one does not exist.
pub(super) fn listed(
    at: &ControlledPool,
    argument: &Path,
    mut all: Vec<FilesetFacts>,
) -> anyhow::Result<Vec<FilesetFacts>> {
    let Some(fileset) = PoolArgument::of(argument)?.fileset else { return Ok(all) };
    let name = at.known(&fileset.to_string(), &all)?;
    let is_meant = |it: &FilesetFacts| {
        let rest = it.name.strip_prefix(&name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    all.retain(is_meant);
    Ok(all)
}

fn change(
    argument: &Path,
    opener: Opener<'_>,
    output: &Output,
    done: (&str, &str),
    request: &dyn Fn(String) -> Request,
) -> anyhow::Result<()> {
    let at = ControlledPool::find(argument, opener, true)?;
    let name = at.named(argument);
    let asked = name.and_then(|name| at.ask(&request(name.clone())).map(|_| name));
    let pool = at.pool.display().to_string();
    let name = at.finish(asked)?;
    output.fact(&format!("{pool}:{name} {}", done.1), &json!({ done.0: name, "pool": pool }));
    Ok(())
}

/// Restores a fileset to a snapshot. Reports the later snapshots, which are kept and lead back to
/// the state before.
fn restore(
    at: &ControlledPool,
    argument: &Path,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (fileset, snapshot) = at.named_snapshot(argument)?;
    let (name, pool) = (format!("{fileset}@{snapshot}"), at.pool.display().to_string());
    let request = Request::FilesetRestore { fileset: fileset.clone(), snapshot };
    let later = at.ask_names(&request)?;
    let facts = json!({ "restored": fileset, "to": name, "later": later, "pool": pool });
    output.fact(&format!("{pool}:{fileset} is restored to {name}"), &facts);
    if !later.is_empty() {
        output.remark(&format!(
            "These newer snapshots stay. They hold the state before the restore: {}.",
            later.join(", ")
        ));
    }
    if must_wait { wait(at, output) } else { Ok(()) }
}

/// Returns the fileset's name in `to`. The pool of `to` must be that of `from`.
pub(super) fn new_name(from: &Path, to: &Path, backend: &dyn Backend) -> anyhow::Result<String> {
    let (old, new) = (PoolArgument::of(from)?, PoolArgument::of(to)?);
    let refused = |cause: &str| UsageError::new(format!("{}: {cause}", to.display()));
    let name = new.fileset.filter(|_| new.snapshot.is_none());
    let name = name.ok_or_else(|| refused("name the new fileset as POOL:c"))?;
    let path = |pool: &Path| std::fs::canonicalize(pool).unwrap_or_else(|_| pool.to_owned());
    // The pool of a mount directory is known to the server.
    let pool_of = |pool: &Path| -> anyhow::Result<_> {
        let found = pool_names::server_at(&path(pool), backend)?;
        Ok(found.map_or_else(|| path(pool), |found| path(Path::new(found.pool()))))
    };
    if pool_of(&old.pool)? != pool_of(&new.pool)? {
        return Err(refused(
            "rename stays in one pool: name the same pool twice, or use `holdfast fileset move`",
        )
        .into());
    }
    Ok(name.to_string())
}

/// Deletes a fileset and, if `is_recursive`, those below it, the deepest first.
fn delete(
    at: &ControlledPool,
    argument: &Path,
    (is_recursive, must_wait): (bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let name = at.named(argument)?;
    let pool = at.pool.display().to_string();
    let all = at.filesets()?;
    let mut names = doomed(&name, &all, (&pool, is_recursive))?;
    names.sort_by_key(|it| std::cmp::Reverse(it.matches('/').count()));
    for name in names.into_iter().chain([name]) {
        wait_for_snapshots(at, &name, output)?;
        at.ask(&Request::FilesetDelete { name: name.clone() })?;
        let facts = json!({ "deleted": name, "pool": pool });
        output.fact(&format!("{pool}:{name} is deleted"), &facts);
    }
    if must_wait {
        return wait(at, output);
    }
    if !at.is_served() {
        output.remark("What it held is freed while the pool is mounted; --wait frees it now.");
    }
    Ok(())
}

/// Returns the filesets below `name`. Fails if there are any and `is_recursive` is false, or if one
/// of those to delete cannot be deleted.
fn doomed(
    name: &str,
    all: &[FilesetFacts],
    (pool, is_recursive): (&str, bool),
) -> anyhow::Result<Vec<String>> {
    let below = format!("{name}/");
    let is_there = |it: &&FilesetFacts| it.freed_permille.is_none() && !it.is_snapshot;
    let there: Vec<_> = all.iter().filter(is_there).collect();
    let names: BTreeSet<&str> =
        there.iter().map(|it| it.name.as_str()).filter(|it| it.starts_with(&below)).collect();
    let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    anyhow::ensure!(
        is_recursive || names.is_empty(),
        "{pool}:{name}: these are below it: {}: delete them first, or give --recursive",
        names.join(", ")
    );
    let own = there.iter().filter(|it| it.name == name && !it.is_receiving);
    let in_the_way: Vec<String> = own
        .chain(there.iter().filter(|it| it.name.starts_with(&below)))
        .filter_map(|it| in_the_way_of(it, all, pool).or_else(|| coming(it, (name, pool))))
        .collect();
    anyhow::ensure!(in_the_way.is_empty(), "nothing is deleted: {}", in_the_way.join("; "));
    Ok(names)
}

/// Returns why a fileset that is being moved or received cannot be deleted together with `name`. An
/// arriving fileset can be deleted by its own name, because the source pool still has it.
fn coming(fileset: &FilesetFacts, (name, pool): (&str, &str)) -> Option<String> {
    let FilesetFacts { name: own, is_receiving, moving, .. } = fileset;
    if *is_receiving {
        return Some(format!(
            "{pool}:{own} receives a stream: `holdfast receive {pool}:{own} --abort` first, or \
             receive the rest"
        ));
    }
    match moving.as_deref()? {
        "arriving" if own == name => None,
        "arriving" => Some(format!(
            "{pool}:{own} arrives from another pool: cancel its move (`holdfast fileset move \
             OTHER:a {pool}:{own} --abort`), or delete it by its own name, first"
        )),
        "leaving" => Some(format!(
            "{pool}:{own} is on its way to another pool: run its `holdfast fileset move` again \
             first"
        )),
        _ => Some(format!(
            "{pool}:{own} has arrived from another pool, which may not know yet: run its \
             `holdfast fileset move` again first"
        )),
    }
}

fn in_the_way_of(fileset: &FilesetFacts, all: &[FilesetFacts], pool: &str) -> Option<String> {
    let name = &fileset.name;
    if fileset.slot == ROOT_SLOT {
        return Some(format!(
            "{pool}:{name} is the first fileset of the pool, which always has one"
        ));
    }
    if let Some(how) = fileset.used_by.first() {
        return Some(format!("{pool}:{name} is {}: {}", how.words(), how.advice(pool)));
    }
    let start = format!("{name}@");
    let snapshots: Vec<&str> = all
        .iter()
        .filter(|it| it.is_snapshot && it.name.starts_with(&start))
        .map(|it| it.name.as_str())
        .collect();
    // An arriving fileset is deleted with its snapshots, because the source pool has them.
    if snapshots.is_empty() || fileset.moving.as_deref() == Some("arriving") {
        return None;
    }
    let is_other =
        |it: &&FilesetFacts| !it.is_snapshot && it.name != *name && it.freed_permille.is_none();
    let clones = all.iter().filter(is_other);
    let mut clones =
        clones.filter(|it| it.origin.as_ref().is_some_and(|it| it.starts_with(&start)));
    if let Some(clone) = clones.next() {
        let (clone, origin) = (&clone.name, clone.origin.as_deref().unwrap_or_default());
        return Some(format!(
            "{pool}:{name} has the snapshot {origin}, which {pool}:{clone} depends on: `holdfast \
             fileset promote {pool}:{clone}` gives it that snapshot, or delete {clone} first"
        ));
    }
    let (first, all) = (snapshots[0], snapshots.join(", "));
    Some(format!(
        "{pool}:{name} has snapshots: {all}: delete these first (`holdfast snapshot delete \
         {pool}:{first}`)"
    ))
}

pub(super) fn wait(at: &ControlledPool, output: &Output) -> anyhow::Result<()> {
    wait_for(at, output, &|_, _| true)
}

/// Waits until the deleted snapshots of `fileset` are freed. The pool frees one at a time.
pub(super) fn wait_for_snapshots(
    at: &ControlledPool,
    fileset: &str,
    output: &Output,
) -> anyhow::Result<()> {
    let start = format!("{fileset}@");
    wait_for(at, output, &|_, freed| freed.name.starts_with(&start))
}

/// Waits while another node of the family of snapshot `name` is being freed.
pub(super) fn wait_for_family(
    at: &ControlledPool,
    name: &str,
    output: &Output,
) -> anyhow::Result<()> {
    let waits = |all: &[FilesetFacts]| all.iter().any(|it| it.name == name && it.is_family_freed);
    wait_for(at, output, &|all, _| waits(all))
}

/// Waits until the deleted filesets for which `is_meant` holds are freed. Its first argument is all
/// filesets.
fn wait_for(
    at: &ControlledPool,
    output: &Output,
    is_meant: &dyn Fn(&[FilesetFacts], &FilesetFacts) -> bool,
) -> anyhow::Result<()> {
    let mut waiting = JobWait::new(output)?;
    loop {
        let all = at.filesets()?;
        let freed = all.iter().filter(|it| it.freed_permille.is_some() && is_meant(&all, it));
        let freed: Vec<u64> = freed.filter_map(|it| it.freed_permille).collect();
        let jobs = at.jobs()?;
        let total = u64::try_from(freed.len()).unwrap_or(0) * 1000;
        if freed.is_empty() {
            waiting.finish();
            return Ok(());
        }
        jobs.iter().try_for_each(|job| check_goes_on(at, job))?;
        let job = jobs.iter().find(|job| job.name.starts_with(FREEING));
        let freed = (freed.iter().sum(), total);
        waiting.step_at(at, (WorkUnit::Share, "freed"), freed, job)?;
    }
}

/// Block size of a pool that is made without `--block`.
const USUAL_BLOCK_BYTES: u64 = 16 << 10;

fn list(all: Vec<FilesetFacts>, output: &Output) {
    let (snapshots, filesets): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.is_snapshot);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for (of, _) in snapshots.iter().filter_map(|it| it.name.split_once('@')) {
        *counts.entry(of).or_default() += 1;
    }
    let columns = [
        Left("NAME"),
        Right("USED"),
        Right("AVAILABLE"),
        Right("QUOTA"),
        Left("MOUNTED"),
        Right("SNAPSHOTS"),
        IfAny("NOTES"),
    ];
    output.list(&filesets, "There are no filesets.", columns, |fileset| {
        let mounts = fileset.used_by.iter().filter(|it| it.kind == "mount");
        let mounts: Vec<&str> = mounts.map(|it| it.at.as_str()).collect();
        [
            fileset.name.clone(),
            ByteSize(fileset.referenced_bytes).to_string(),
            size_of(fileset.available_bytes),
            size_of(fileset.quota_bytes),
            mounts.join(", "),
            counts.get(&*fileset.name).map_or_else(String::new, u64::to_string),
            notes_of(fileset),
        ]
    });
}

pub(super) fn size_of(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| ByteSize(bytes).to_string())
}

fn notes_of(fileset: &FilesetFacts) -> String {
    let mut notes = Vec::new();
    if fileset.block_bytes != USUAL_BLOCK_BYTES {
        notes.push(format!("blocks {}", ByteSize(fileset.block_bytes)));
    }
    notes.extend(fileset.reservation_bytes.map(|it| format!("reservation {}", ByteSize(it))));
    let placement = fileset.placement.as_deref().filter(|word| *word != "any");
    notes.extend(placement.map(|word| format!("placement {word}")));
    for (is_so, words) in
        [(fileset.is_read_only, "read-only"), (fileset.is_receiving, "receiving a stream")]
    {
        notes.extend(is_so.then(|| words.to_owned()));
    }
    let other_uses = fileset.used_by.iter().filter(|it| it.kind != "mount");
    notes.extend(other_uses.map(UseFacts::words));
    notes.extend(fileset.moving.as_deref().map(|word| match word {
        "leaving" => "leaving for another pool".to_owned(),
        word => format!("{word} from another pool"),
    }));
    // A fileset's own latest snapshot is not shown as its origin. That of a clone is.
    let own = format!("{}@", fileset.name);
    let origin = fileset.origin.as_ref().filter(|origin| !origin.starts_with(&own));
    notes.extend(origin.map(|origin| format!("origin {origin}")));
    notes.extend(fileset.freed_permille.map(|it| format!("deleted: {} % freed", it / 10)));
    notes.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fileset(name: &str, slot: u32) -> FilesetFacts {
        FilesetFacts { name: name.to_owned(), slot, ..FilesetFacts::default() }
    }

    /// Goal: nothing is deleted while a fileset below is being moved or receives a stream. All of
    /// these are named.
    #[test]
    fn what_is_on_its_way_below_is_named_before_anything_is_deleted() {
        let moving = |name: &str, slot, word: &str| {
            let moving = Some(word.to_owned());
            FilesetFacts { moving, ..fileset(name, slot) }
        };
        let mut all = vec![fileset("a", 1), fileset("a/b", 2), fileset("ab", 3)];
        let doomed = |all: &[FilesetFacts], name: &str, is_recursive: bool| {
            doomed(name, all, ("p", is_recursive)).map_err(|error| error.to_string())
        };
        assert_eq!(doomed(&all, "a", true), Ok(vec!["a/b".to_owned()]));
        all.push(moving("a/c", 4, "leaving"));
        all.push(moving("a/b/d", 5, "arriving"));
        all.push(moving("a/e", 6, "arrived"));
        all.push(FilesetFacts { is_receiving: true, ..fileset("a/f", 7) });
        // An update of the existing a/b is being received.
        all.push(FilesetFacts { is_receiving: true, ..fileset("a/b", 8) });
        let refused = doomed(&all, "a", true).expect_err("some are on their way");
        assert!(refused.starts_with("nothing is deleted"), "{refused}");
        for words in [
            "p:a/c is on its way",
            "p:a/b/d arrives",
            "p:a/e has arrived",
            "p:a/f receives a stream",
            "`holdfast receive p:a/b --abort`",
        ] {
            assert!(refused.contains(words), "{words}: {refused}");
        }
        let refused = doomed(&all, "a", false).expect_err("some are below it");
        assert!(refused.contains("a/b, a/b/d, a/c, a/e, a/f: delete them first"), "{refused}");
        assert_eq!(doomed(&all, "a/b/d", false), Ok(vec![]));
        assert_eq!(doomed(&all, "ab", false), Ok(vec![]));
        let refused = doomed(&all, "a/c", false).expect_err("it leaves");
        assert!(refused.contains("p:a/c is on its way"), "{refused}");
    }
}
