//! `holdfast clone`: takes, shows and deletes clones of filesets.

use std::path::Path;

use serde_json::json;

use engine::vnode::api::ANOTHER_IS_FREED;

use super::controlled::{Controlled, Opener};
use crate::args::clone::{CloneArgs, CloneCommand};
use crate::backend::Backend;
use crate::control::{Answer, FilesetFacts, Request};
use crate::exit;
use crate::output::{Output, printable};
use crate::size::ByteSize;

pub(crate) fn run(args: &CloneArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        CloneCommand::Create { clone: argument, recursive: true } => {
            let at = Controlled::find(argument, opener, true)?;
            let asked = at.named_clone(argument).and_then(|(fileset, clone)| {
                at.ask_names(&Request::CloneCreateBelow { fileset, clone })
            });
            let pool = at.pool.display().to_string();
            for name in at.finish(asked)? {
                let facts = json!({ "created": name, "pool": pool });
                output.fact(&format!("{pool}:{name} is taken"), &facts);
            }
        }
        CloneCommand::Hold { clone, name } => hold(clone, name, true, (opener, output))?,
        CloneCommand::Release { clone, name } => hold(clone, name, false, (opener, output))?,
        CloneCommand::Create { clone: argument, recursive: false } => {
            let at = Controlled::find(argument, opener, true)?;
            let asked = at.named_clone(argument).and_then(|(fileset, clone)| {
                let name = format!("{fileset}@{clone}");
                at.ask(&Request::CloneCreate { fileset, clone }).map(|_| name)
            });
            let pool = at.pool.display().to_string();
            let name = at.finish(asked)?;
            let facts = json!({ "created": name, "pool": pool });
            output.fact(&format!("{pool}:{name} is taken"), &facts);
        }
        CloneCommand::Delete { clone: argument, wait: must_wait } => {
            let at = Controlled::find(argument, opener, true)?;
            let done = delete(&at, argument, *must_wait, output);
            at.finish(done)?;
        }
        CloneCommand::List { fileset, unique } => {
            let at = Controlled::find(fileset, opener, false)?;
            // The directory of a mount stands for the fileset that it shows, or for that clone's.
            let of = at.fileset.as_deref().map(|name| name.split('@').next().unwrap_or(name));
            let start = of.map(|name| format!("{name}@"));
            let is_of = |it: &FilesetFacts| {
                it.is_clone && start.as_ref().is_none_or(|start| it.name.starts_with(start))
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
            all.iter().for_each(|clone| output.fact(&line_of(clone), &json!(clone)));
        }
    }
    Ok(exit::DONE)
}

/// Asks what each clone alone holds, and sorts them by that, most first.
fn weigh(at: &Controlled, clones: &mut [FilesetFacts]) -> anyhow::Result<()> {
    for facts in clones.iter_mut() {
        let Some((fileset, clone)) = facts.name.split_once('@') else { continue };
        let (fileset, clone) = (fileset.to_owned(), clone.to_owned());
        let Answer::Bytes(bytes) = at.ask(&Request::CloneUnique { fileset, clone })? else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        facts.unique_bytes = Some(bytes);
    }
    clones.sort_by_key(|facts| std::cmp::Reverse(facts.unique_bytes));
    Ok(())
}

fn hold(
    argument: &Path,
    hold: &str,
    is_held: bool,
    (opener, output): (Opener<'_>, &Output),
) -> anyhow::Result<()> {
    let at = Controlled::find(argument, opener, true)?;
    let asked = at.named_clone(argument).and_then(|(fileset, clone)| {
        let name = format!("{fileset}@{clone}");
        let request = Request::CloneHold { fileset, clone, hold: hold.to_owned(), is_held };
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
    let (fileset, clone) = at.named_clone(argument)?;
    let (name, pool) = (format!("{fileset}@{clone}"), at.pool.display().to_string());
    let request = Request::CloneDelete { fileset, clone, uuid: None };
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

fn line_of(clone: &FilesetFacts) -> String {
    let used: String = clone.used_by.iter().map(|it| format!(", {}", it.words())).collect();
    let used = printable(&used);
    let held = match &clone.holds[..] {
        [] => String::new(),
        holds => format!(", held by {}", printable(&holds.join(", "))),
    };
    let taken = time_of(clone.created_seconds);
    let unique = clone.unique_bytes.map(|bytes| format!(", {} its own", ByteSize(bytes)));
    let unique = unique.unwrap_or_default();
    format!("{}  {taken}  {} inodes{unique}{held}{used}", printable(&clone.name), clone.inodes)
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
