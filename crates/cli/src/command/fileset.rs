//! `holdfast fileset`: makes, shows, changes, renames and deletes the filesets of a pool.

use std::collections::BTreeSet;
use std::path::Path;

use format::fileset::ROOT_SLOT;
use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::fileset::{FilesetArgs, FilesetCommand};
use crate::backend::Backend;
use crate::control::{FilesetFacts, Properties, Request};
use crate::exit::{self, UsageError};
use crate::named::Named;
use crate::output::{Output, printable};
use crate::patience::Patience;
use crate::size::ByteSize;
use crate::status;

pub(crate) fn run(
    args: &FilesetArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        FilesetCommand::List { pool } => {
            let at = Controlled::find(pool, opener, false)?;
            let all = at.filesets().and_then(|all| listed(&at, pool, all));
            let mut all = at.finish(all)?;
            all.retain(|fileset| !fileset.is_clone);
            if all.iter().any(|fileset| fileset.freed_permille.is_some()) {
                output.remark("Deleted filesets are listed until all that they held is free.");
            }
            all.iter().for_each(|fileset| output.fact(&line_of(fileset), &json!(fileset)));
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
            let to = new_name(fileset, to)?;
            let rename = |name| Request::FilesetRename { name, to: to.clone() };
            change(fileset, opener, output, ("renamed", &format!("is {to} now")), &rename)?;
        }
        FilesetCommand::Fork { clone, to } => {
            let new = new_name(clone, to)?;
            let at = Controlled::find(clone, opener, true)?;
            let asked = at.named_clone(clone).and_then(|(fileset, own)| {
                let from = format!("{fileset}@{own}");
                let fork = Request::FilesetFork { fileset, clone: own, to: new.clone() };
                at.ask(&fork).map(|_| from)
            });
            let pool = at.pool.display().to_string();
            let from = at.finish(asked)?;
            let facts = json!({ "created": new, "from": from, "pool": pool });
            output.fact(&format!("{pool}:{new} is made, and begins as {from} is"), &facts);
        }
        FilesetCommand::Restore { clone, wait } => {
            let at = Controlled::find_beside(clone, opener)?;
            let done = restore(&at, clone, *wait, output);
            at.finish(done)?;
        }
        FilesetCommand::Promote { fileset } => {
            let at = Controlled::find(fileset, opener, true)?;
            let asked = at.named(fileset).and_then(|name| {
                let names = at.ask_names(&Request::FilesetPromote { name: name.clone() })?;
                Ok((name, names))
            });
            let pool = at.pool.display().to_string();
            let (name, names) = at.finish(asked)?;
            let facts = json!({ "promoted": name, "clones": names, "pool": pool });
            output.fact(&format!("{pool}:{name} has these now: {}", names.join(", ")), &facts);
        }
        FilesetCommand::Move { fileset, to: Some(to), abort, .. } => {
            super::moving::run(fileset, to, *abort, opener, output)?;
        }
        FilesetCommand::Move { fileset, to: None, .. } => {
            let here = |name| Request::FilesetHere { name };
            change(fileset, opener, output, ("here", "is in this pool"), &here)?;
        }
        FilesetCommand::Delete { fileset, recursive, wait } => {
            let at = Controlled::find(fileset, opener, true)?;
            let done = delete(&at, fileset, (*recursive, *wait), output);
            at.finish(done)?;
        }
    }
    Ok(exit::DONE)
}

/// Returns what is listed of `all`: if `argument` names a fileset that and those below it, with
/// their clones. One that is not there is refused.
pub(super) fn listed(
    at: &Controlled,
    argument: &Path,
    mut all: Vec<FilesetFacts>,
) -> anyhow::Result<Vec<FilesetFacts>> {
    let Some(fileset) = Named::of(argument)?.fileset else { return Ok(all) };
    let name = at.known(&fileset.to_string(), &all)?;
    let is_meant = |it: &FilesetFacts| {
        let rest = it.name.strip_prefix(&name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
    };
    all.retain(is_meant);
    Ok(all)
}

/// Does one change of a fileset, and says `done` of it: for programs, for people.
fn change(
    argument: &Path,
    opener: Opener<'_>,
    output: &Output,
    done: (&str, &str),
    request: &dyn Fn(String) -> Request,
) -> anyhow::Result<()> {
    let at = Controlled::find(argument, opener, true)?;
    let name = at.named(argument);
    let asked = name.and_then(|name| at.ask(&request(name.clone())).map(|_| name));
    let pool = at.pool.display().to_string();
    let name = at.finish(asked)?;
    output.fact(&format!("{pool}:{name} {}", done.1), &json!({ done.0: name, "pool": pool }));
    Ok(())
}

/// Makes a fileset what its clone is, and tells which clones hang on what it was.
fn restore(
    at: &Controlled,
    argument: &Path,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (fileset, clone) = at.named_clone(argument)?;
    let (name, pool) = (format!("{fileset}@{clone}"), at.pool.display().to_string());
    let request = Request::FilesetRestore { fileset: fileset.clone(), clone };
    let later = at.ask_names(&request)?;
    let facts = json!({ "restored": fileset, "to": name, "later": later, "pool": pool });
    output.fact(&format!("{pool}:{fileset} is what {name} is"), &facts);
    if !later.is_empty() {
        output.remark(&format!(
            "These clones stay, and go back to what the fileset was: {}.",
            later.join(", ")
        ));
    }
    if must_wait { wait(at, output) } else { Ok(()) }
}

/// Returns the new name in `to`, which is in the pool of `from`.
fn new_name(from: &Path, to: &Path) -> anyhow::Result<String> {
    let (old, new) = (Named::of(from)?, Named::of(to)?);
    let refused = |cause: &str| UsageError::new(format!("{}: {cause}", to.display()));
    let name = new.fileset.filter(|_| new.clone.is_none());
    let name = name.ok_or_else(|| refused("name the new fileset as POOL:c"))?;
    let path = |pool: &Path| std::fs::canonicalize(pool).unwrap_or_else(|_| pool.to_owned());
    // The directory of a mount stands for its fileset, so its pool is found by its server.
    let pool_of = |pool: &Path| -> anyhow::Result<_> {
        let found = if pool.is_dir() { status::find(pool)? } else { None };
        Ok(found.map_or_else(|| path(pool), |found| path(Path::new(found.text("pool")))))
    };
    if pool_of(&old.pool)? != pool_of(&new.pool)? {
        return Err(refused("a fileset stays in its pool: name the same pool twice").into());
    }
    Ok(name.to_string())
}

/// Deletes a fileset, and if that `is_recursive` those below it, the deepest first.
fn delete(
    at: &Controlled,
    argument: &Path,
    (is_recursive, must_wait): (bool, bool),
    output: &Output,
) -> anyhow::Result<()> {
    let name = at.named(argument)?;
    let pool = at.pool.display().to_string();
    let all = at.filesets()?;
    let mut names = doomed(&name, &all, (&pool, is_recursive))?;
    // Those with more parts are below others.
    names.sort_by_key(|it| std::cmp::Reverse(it.matches('/').count()));
    for name in names.into_iter().chain([name]) {
        wait_for_clones(at, &name, output)?;
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

/// Returns the filesets below `name`, which are deleted with it if that `is_recursive`; refused if
/// one of them, or it, can't be.
fn doomed(
    name: &str,
    all: &[FilesetFacts],
    (pool, is_recursive): (&str, bool),
) -> anyhow::Result<Vec<String>> {
    let below = format!("{name}/");
    let is_there = |it: &&FilesetFacts| it.freed_permille.is_none() && !it.is_clone;
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

/// Returns why a fileset that is on its way is not deleted with `name`, and what to do. What only
/// begins to arrive can be deleted by its own name, for it is where it comes from.
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
            "{pool}:{own} arrives from another pool: give its move up (`holdfast fileset move \
             --abort`), or delete it by its own name, first"
        )),
        "leaving" => Some(format!(
            "{pool}:{own} is on its way to another pool: give its `holdfast fileset move` again \
             first"
        )),
        _ => Some(format!(
            "{pool}:{own} has arrived from another pool, which may not know yet: give its \
             `holdfast fileset move` again first"
        )),
    }
}

/// Returns what keeps a fileset from being deleted, and what to do.
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
    let clones: Vec<&str> = all
        .iter()
        .filter(|it| it.is_clone && it.name.starts_with(&start))
        .map(|it| it.name.as_str())
        .collect();
    // One that arrives goes with its clones: where it comes from it stays.
    if clones.is_empty() || fileset.moving.as_deref() == Some("arriving") {
        return None;
    }
    let clones = clones.join(", ");
    Some(format!("{pool}:{name} has clones: {clones}: `holdfast clone delete` these first"))
}

/// Waits until all that was deleted is free.
pub(super) fn wait(at: &Controlled, output: &Output) -> anyhow::Result<()> {
    wait_for(at, output, &|_, _| true)
}

/// Waits until the clones of `fileset` that were deleted are free: one is freed at a time, for
/// what each of two holds alone is found by comparing it with the other.
pub(super) fn wait_for_clones(
    at: &Controlled,
    fileset: &str,
    output: &Output,
) -> anyhow::Result<()> {
    let start = format!("{fileset}@");
    wait_for(at, output, &|_, freed| freed.name.starts_with(&start))
}

/// Waits until nothing that has blocks in common with the clone `name` is being freed.
pub(super) fn wait_for_family(at: &Controlled, name: &str, output: &Output) -> anyhow::Result<()> {
    let waits = |all: &[FilesetFacts]| all.iter().any(|it| it.name == name && it.is_family_freed);
    wait_for(at, output, &|all, _| waits(all))
}

/// Waits until all of what was deleted that `is_meant` is free, among all that there is.
fn wait_for(
    at: &Controlled,
    output: &Output,
    is_meant: &dyn Fn(&[FilesetFacts], &FilesetFacts) -> bool,
) -> anyhow::Result<()> {
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    loop {
        let all = at.filesets()?;
        let freed = all.iter().filter(|it| it.freed_permille.is_some() && is_meant(&all, it));
        let freed: Vec<u64> = freed.filter_map(|it| it.freed_permille).collect();
        let stopped = at.jobs()?.into_iter().find(|job| job.is_paused || job.failure.is_some());
        let total = u64::try_from(freed.len()).unwrap_or(0) * 1000;
        if freed.is_empty() {
            progress.finish();
            return Ok(());
        }
        progress.tell("freed, in parts of 1,000", freed.iter().sum(), total);
        if let Some(job) = stopped {
            let why = job.failure.unwrap_or_else(|| "it was paused".to_owned());
            let (pool, id) = (at.pool.display(), job.id);
            anyhow::bail!(
                "{pool}: {} has stopped ({why}): `holdfast job resume {pool} {id}`",
                job.name
            );
        }
        patience.wait();
    }
}

fn line_of(fileset: &FilesetFacts) -> String {
    let mut line = format!(
        "{}  {} inodes, references {}, blocks {}",
        printable(&fileset.name),
        fileset.inodes,
        ByteSize(fileset.referenced_bytes),
        ByteSize(fileset.block_bytes)
    );
    for (limit, word) in
        [(fileset.quota_bytes, "quota"), (fileset.reservation_bytes, "reservation")]
    {
        line += &limit.map_or_else(String::new, |bytes| format!(", {word} {}", ByteSize(bytes)));
    }
    if let Some(placement) = fileset.placement.as_deref().filter(|word| *word != "any") {
        line += &format!(", placement {}", printable(placement));
    }
    for (is_so, words) in
        [(fileset.is_read_only, ", read-only"), (fileset.is_receiving, ", receiving a stream")]
    {
        line.push_str(if is_so { words } else { "" });
    }
    for how in &fileset.used_by {
        line += &format!(", {}", printable(&how.words()));
    }
    if let Some(word) = &fileset.moving {
        line += match word.as_str() {
            "leaving" => ", leaving for another pool",
            "arriving" => ", arriving from another pool",
            _ => ", arrived from another pool",
        };
    }
    // A fork is another fileset's; a fileset goes back to its own last clone by itself.
    let own = format!("{}@", fileset.name);
    if let Some(origin) = fileset.origin.as_ref().filter(|origin| !origin.starts_with(&own)) {
        line += &format!(", goes back to {}", printable(origin));
    }
    if let Some(permille) = fileset.freed_permille {
        line += &format!(", deleted: {} % freed", permille / 10);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fileset(name: &str, slot: u32) -> FilesetFacts {
        FilesetFacts { name: name.to_owned(), slot, ..FilesetFacts::default() }
    }

    /// Goal: nothing is deleted where something below is on its way, or comes as a stream, and all
    /// of that is named; what arrives can be deleted by its own name.
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
        // The next state of one that is there.
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
