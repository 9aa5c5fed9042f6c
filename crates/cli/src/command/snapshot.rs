//! `holdfast snapshot`: takes, shows and deletes snapshots of filesets.

use std::path::Path;

use serde_json::json;

use engine::vnode::api::ANOTHER_IS_FREED;

use super::controlled::{Controlled, Opener};
use crate::args::snapshot::{SnapshotArgs, SnapshotCommand};
use crate::backend::Backend;
use crate::control::{Answer, FilesetFacts, Request};
use crate::exit;
use crate::output::{Output, printable};
use crate::size::ByteSize;

pub(crate) fn run(
    args: &SnapshotArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        SnapshotCommand::Create { snapshot: argument, recursive: true } => {
            let at = Controlled::find(argument, opener, true)?;
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
            let at = Controlled::find(argument, opener, true)?;
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
            let at = Controlled::find(argument, opener, true)?;
            let done = delete(&at, argument, *must_wait, output);
            at.finish(done)?;
        }
        SnapshotCommand::List { fileset, unique } => {
            let at = Controlled::find(fileset, opener, false)?;
            // The directory of a mount stands for the fileset that it shows, or for that
            // snapshot's.
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
            all.iter().for_each(|snapshot| output.fact(&line_of(snapshot), &json!(snapshot)));
        }
    }
    Ok(exit::DONE)
}

/// Asks what each snapshot alone holds, and sorts them by that, most first.
fn weigh(at: &Controlled, snapshots: &mut [FilesetFacts]) -> anyhow::Result<()> {
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
    let at = Controlled::find(argument, opener, true)?;
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
    at: &Controlled,
    argument: &Path,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let (fileset, snapshot) = at.named_snapshot(argument)?;
    let (name, pool) = (format!("{fileset}@{snapshot}"), at.pool.display().to_string());
    let request = Request::SnapshotDelete { fileset, snapshot, uuid: None };
    // Another deletion may begin between the two: each turn is the end of one.
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

/// Returns a time as people write it, in UTC.
pub(super) fn time_of(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that a leap day is the last of its year: civil_from_days, Howard
    // Hinnant, "chrono-Compatible Low-Level Date Algorithms", 2013.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, is_next) = (day_of_year - (153 * month + 2) / 5 + 1, month >= 10);
    let (year, month) = (year + era * 400 + u64::from(is_next), (month + 2) % 12 + 1);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02} UTC", second % 60)
}

fn line_of(snapshot: &FilesetFacts) -> String {
    let used: String = snapshot.used_by.iter().map(|it| format!(", {}", it.words())).collect();
    let used = printable(&used);
    let held = match &snapshot.holds[..] {
        [] => String::new(),
        holds => format!(", held by {}", printable(&holds.join(", "))),
    };
    let taken = time_of(snapshot.created_seconds);
    let unique = snapshot.unique_bytes.map(|bytes| format!(", {} its own", ByteSize(bytes)));
    let unique = unique.unwrap_or_default();
    format!(
        "{}  {taken}  {} inodes{unique}{held}{used}",
        printable(&snapshot.name),
        snapshot.inodes
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00:00 UTC"),
            (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(time_of(seconds), text);
        }
    }
}
