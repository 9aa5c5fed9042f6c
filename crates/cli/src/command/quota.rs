//! `holdfast quota`: accounts and limits of users, groups and projects in a fileset.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::fileset::size_of;
use crate::args::quota::{OwnerArgs, ProjectCommand, QuotaArgs, QuotaCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{IfAny, Left, Right};
use control::size::ByteSize;
use control::{
    AccountFacts, Answer, OwnerKind, OwnerLimitsChange, QuotaFacts, QuotaStateName, Request,
    UsageError, limit_of, moment,
};
use server::backend::Backend;

pub(crate) fn run(args: &QuotaArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    match &args.command {
        QuotaCommand::On { fileset } => {
            with(fileset, opener, true, output, |at, name| {
                let quota = switch_on(at, name)?;
                let line = "users, groups and projects are counted, and their limits hold";
                Ok((line.to_owned(), json!({ "fileset": name, "quota": quota })))
            })?;
        }
        QuotaCommand::Off { fileset } => {
            with(fileset, opener, true, output, |at, name| {
                at.ask(&Request::QuotaOff { fileset: name.to_owned() })?;
                let line = "nobody is counted any more; limits are kept";
                Ok((line.to_owned(), json!({ "fileset": name, "quota": { "state": "off" } })))
            })?;
        }
        QuotaCommand::Set {
            fileset,
            owner,
            blocks_soft,
            blocks_hard,
            inodes_soft,
            inodes_hard,
        } => {
            let (kind, id) = owner_of(owner)?;
            let limits = OwnerLimitsChange {
                blocks_soft_bytes: bytes_of(blocks_soft.as_deref())?,
                blocks_hard_bytes: bytes_of(blocks_hard.as_deref())?,
                inodes_soft: count_of(inodes_soft.as_deref())?,
                inodes_hard: count_of(inodes_hard.as_deref())?,
            };
            if limits == OwnerLimitsChange::default() {
                let message = "no limit is named: say for example --blocks-hard 10G";
                return Err(UsageError::new(message.to_owned()).into());
            }
            with(fileset, opener, true, output, |at, name| {
                at.ask(&Request::QuotaSet { fileset: name.to_owned(), kind, id, limits })?;
                let line = format!("{} {id} has these limits now", kind.kind().word());
                Ok((line, json!({ "fileset": name, "kind": kind, "id": id, "limits": limits })))
            })?;
        }
        QuotaCommand::Grace { fileset, blocks: None, inodes: None } => {
            with(fileset, opener, false, output, |at, name| {
                let request = Request::QuotaReport {
                    fileset: name.to_owned(),
                    kind: OwnerKind::User,
                    from: 0,
                };
                let Answer::QuotaAccounts { quota, .. } = at.ask(&request)? else {
                    anyhow::bail!("{}: the server answered nonsense", at.pool.display())
                };
                let (blocks, inodes) = (quota.blocks_grace_seconds, quota.inodes_grace_seconds);
                let (of_blocks, of_inodes) = (grace_of(blocks), grace_of(inodes));
                let line = format!(
                    "soft limits may be passed for: blocks {of_blocks}, inodes \
                                    {of_inodes}"
                );
                let graces = json!({ "blocks": blocks, "inodes": inodes });
                Ok((line, json!({ "fileset": name, "grace_seconds": graces })))
            })?;
        }
        QuotaCommand::Grace { fileset, blocks, inodes } => {
            let (blocks_seconds, inodes_seconds) = (*blocks, *inodes);
            with(fileset, opener, true, output, |at, name| {
                let fileset = name.to_owned();
                at.ask(&Request::QuotaGrace { fileset, blocks_seconds, inodes_seconds })?;
                let graces = json!({ "blocks": blocks_seconds, "inodes": inodes_seconds });
                let facts = json!({ "fileset": name, "grace_seconds": graces });
                Ok(("soft limits may be passed for so long from now on".to_owned(), facts))
            })?;
        }
        QuotaCommand::Project {
            command: ProjectCommand::Set { fileset, path, project, recursive },
        } => {
            with(fileset, opener, true, output, |at, name| {
                let request = Request::QuotaProject {
                    fileset: name.to_owned(),
                    path: path.clone(),
                    project: *project,
                    is_recursive: *recursive,
                };
                let Answer::Count(changed) = at.ask(&request)? else {
                    anyhow::bail!("{}: the server answered nonsense", at.pool.display())
                };
                let line = format!("{path} is of project {project} now, {changed} files");
                let facts = json!({ "fileset": name, "path": path, "project": project,
                                    "files": changed });
                Ok((line, facts))
            })?;
        }
        QuotaCommand::Report { fileset, user, group, project, numeric } => {
            let is_all = !(*user || *group || *project);
            let kinds = [
                (OwnerKind::User, *user),
                (OwnerKind::Group, *group),
                (OwnerKind::Project, *project),
            ];
            let kinds = kinds.into_iter().filter(|(_, is_wanted)| is_all || *is_wanted);
            let kinds: Vec<OwnerKind> = kinds.map(|(kind, _)| kind).collect();
            report(fileset, opener, output, (&kinds, *numeric))?;
        }
    }
    Ok(exit::DONE)
}

pub(super) fn with(
    argument: &Path,
    opener: Opener<'_>,
    is_change: bool,
    output: &Output,
    ask: impl FnOnce(&ControlledPool, &str) -> anyhow::Result<(String, serde_json::Value)>,
) -> anyhow::Result<()> {
    let at = ControlledPool::find(argument, opener, is_change)?;
    let asked = at.named(argument).and_then(|name| Ok((ask(&at, &name)?, name)));
    let pool = at.pool.display().to_string();
    let ((line, facts), name) = at.finish(asked)?;
    output.fact(&format!("{pool}:{name}: {line}"), &facts);
    Ok(())
}

/// Turns quotas on, and waits until usage has been counted.
fn switch_on(at: &ControlledPool, name: &str) -> anyhow::Result<QuotaFacts> {
    loop {
        let Answer::Quota(quota) = at.ask(&Request::QuotaOn { fileset: name.to_owned() })? else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        // No pause, because each request counts for some seconds.
        if quota.state != QuotaStateName::Counting {
            return Ok(quota);
        }
    }
}

fn report(
    argument: &Path,
    opener: Opener<'_>,
    output: &Output,
    (kinds, is_numeric): (&[OwnerKind], bool),
) -> anyhow::Result<()> {
    let at = ControlledPool::find(argument, opener, false)?;
    let asked = at.named(argument).and_then(|name| {
        let (mut all, mut quota) = (Vec::new(), None);
        for kind in kinds {
            let mut next = Some(0);
            while let Some(from) = next {
                let request = Request::QuotaReport { fileset: name.clone(), kind: *kind, from };
                let Answer::QuotaAccounts { quota: told, list, next: rest } = at.ask(&request)?
                else {
                    anyhow::bail!("{}: the server answered nonsense", at.pool.display())
                };
                quota = Some(told);
                all.extend(list);
                next = rest.filter(|&rest| rest > from);
            }
        }
        Ok((name, quota, all))
    });
    let pool = at.pool.display().to_string();
    let (name, quota, all) = at.finish(asked)?;
    let mut none = "No user, group or project has anything.".to_owned();
    match quota.as_ref().map(|quota| (quota.state, quota.counted_permille)) {
        Some((QuotaStateName::Off, _)) => {
            none = format!(
                "The quotas of {pool}:{name} are off: `holdfast quota on` switches \
                            them on."
            );
            if !all.is_empty() {
                output.remark(&none);
            }
        }
        Some((QuotaStateName::Counting, permille)) => output.remark(&format!(
            "Not all is counted yet, but {} %: nobody is refused.",
            permille.unwrap_or(0) / 10
        )),
        Some((QuotaStateName::On, _)) | None => {}
    }
    let [users, groups] = if is_numeric || output.is_json() {
        Default::default()
    } else {
        [USERS, GROUPS].map(|file| names_in(&text_of(file)))
    };
    let columns = [
        Left("KIND"),
        Left("NAME"),
        Right("USED"),
        Right("SOFT"),
        Right("HARD"),
        IfAny("GRACE ENDS"),
        Right("INODES"),
        Right("ISOFT"),
        Right("IHARD"),
        IfAny("IGRACE ENDS"),
    ];
    output.list(&all, &none, columns, |account| {
        let name = match account.kind {
            OwnerKind::User => users.get(&account.id),
            OwnerKind::Group => groups.get(&account.id),
            OwnerKind::Project => None,
        };
        row_of(account, name.map(String::as_str))
    });
    Ok(())
}

fn row_of(account: &AccountFacts, name: Option<&str>) -> [String; 10] {
    let count = |count: Option<u64>| count.map_or_else(String::new, |it| it.to_string());
    let time = |end: Option<u64>| end.map_or_else(String::new, moment);
    [
        account.kind.kind().word().to_owned(),
        name.map_or_else(|| account.id.to_string(), str::to_owned),
        ByteSize(account.used_bytes).to_string(),
        size_of(account.blocks_soft_bytes),
        size_of(account.blocks_hard_bytes),
        time(account.blocks_grace_end_seconds),
        account.inodes.to_string(),
        count(account.inodes_soft),
        count(account.inodes_hard),
        time(account.inodes_grace_end_seconds),
    ]
}

fn grace_of(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m")];
    let fits = |(unit, _): &&(u64, &str)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (unit, word) = UNITS.iter().find(fits).copied().unwrap_or((1, "s"));
    format!("{}{word}", seconds / unit)
}

fn owner_of(owner: &OwnerArgs) -> Result<(OwnerKind, u32), UsageError> {
    if let Some(user) = &owner.user {
        return id_of(user, "user", USERS).map(|id| (OwnerKind::User, id));
    }
    if let Some(group) = &owner.group {
        return id_of(group, "group", GROUPS).map(|id| (OwnerKind::Group, id));
    }
    Ok((OwnerKind::Project, owner.project.unwrap_or(0)))
}

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";
/// Most bytes of a file of names that are read. Later names are not known.
const NAMES_BYTES_MAX: u64 = 4 << 20;

/// Returns the begin of a file of names. Empty if it cannot be read.
fn text_of(file: &str) -> String {
    let mut bytes = Vec::new();
    let read = File::open(file).map(|it| it.take(NAMES_BYTES_MAX).read_to_end(&mut bytes));
    if read.is_ok() { String::from_utf8_lossy(&bytes).into_owned() } else { String::new() }
}

/// Returns the names by number. The lines are `name:x:number:`, and the first of a number counts.
fn names_in(text: &str) -> BTreeMap<u32, String> {
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty());
        let number = fields.nth(1).and_then(|number| number.parse().ok());
        if let (Some(name), Some(number)) = (name, number) {
            names.entry(number).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// Parses an ID. Otherwise looks for a name in `file`.
fn id_of(text: &str, what: &str, file: &str) -> Result<u32, UsageError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let names = names_in(&text_of(file));
    let number = names.into_iter().find(|(_, name)| name == text).map(|(number, _)| number);
    number.ok_or_else(|| {
        UsageError::new(format!("{file} has no {what} {text}: give the number, as `id` shows it"))
    })
}

fn bytes_of(text: Option<&str>) -> Result<Option<u64>, UsageError> {
    let bytes = text
        .map(|text| limit_of(text).map_err(|cause| UsageError::new(format!("`{text}`: {cause}"))));
    bytes.transpose()
}

fn count_of(text: Option<&str>) -> Result<Option<u64>, UsageError> {
    let count = |text: &str| match text {
        "none" => Ok(0),
        _ => text.parse::<u32>().ok().filter(|count| *count > 0).map(u64::from).ok_or_else(|| {
            let most = u32::MAX;
            UsageError::new(format!("`{text}` is no limit of inodes: write 1 to {most}, or none"))
        }),
    };
    text.map(count).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graces_are_written_as_they_are_given_and_their_ends_as_dates() {
        for (seconds, text) in
            [(7 * 86_400, "7d"), (12 * 3600, "12h"), (5400, "90m"), (61, "61s"), (0, "0s")]
        {
            assert_eq!(grace_of(seconds), text);
        }
        let account = AccountFacts {
            kind: OwnerKind::User,
            id: 7,
            used_bytes: 4096,
            inodes: 1,
            blocks_soft_bytes: Some(1024),
            blocks_hard_bytes: None,
            inodes_soft: None,
            inodes_hard: None,
            blocks_grace_end_seconds: Some(1_709_251_200),
            inodes_grace_end_seconds: None,
        };
        let row = row_of(&account, Some("ann"));
        assert_eq!(row[..6], ["user", "ann", "4K", "1K", "", "2024-03-01 00:00:00 UTC"]);
        assert_eq!(row_of(&account, None)[1], "7");
    }

    #[test]
    fn the_first_name_of_a_number_counts_and_bad_lines_do_not() {
        let names = names_in("root:x:0:0:r:/:/sh\ntoor:x:0:\n\n:x:5:\nann:x:seven:\nben:x:8");
        let names: Vec<(u32, &str)> = names.iter().map(|(id, name)| (*id, &**name)).collect();
        assert_eq!(names, [(0, "root"), (8, "ben")]);
    }
}
