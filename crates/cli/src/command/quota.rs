//! `holdfast quota`: counts and limits what users, groups and projects have in a fileset.

use std::path::Path;

use serde_json::json;

use super::clone::time_of;
use super::controlled::{Controlled, Opener};
use crate::args::quota::{OwnerArgs, ProjectCommand, QuotaArgs, QuotaCommand};
use crate::backend::Backend;
use crate::control::{
    AccountFacts, Answer, Limits, OwnerKind, QuotaFacts, QuotaState, Request, limit_of,
};
use crate::exit::{self, UsageError};
use crate::output::Output;
use crate::size::ByteSize;

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
            let limits = Limits {
                blocks_soft_bytes: bytes_of(blocks_soft.as_deref())?,
                blocks_hard_bytes: bytes_of(blocks_hard.as_deref())?,
                inodes_soft: count_of(inodes_soft.as_deref())?,
                inodes_hard: count_of(inodes_hard.as_deref())?,
            };
            if limits == Limits::default() {
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
        QuotaCommand::Report { fileset, user, group, project } => {
            let is_all = !(*user || *group || *project);
            let kinds = [
                (OwnerKind::User, *user),
                (OwnerKind::Group, *group),
                (OwnerKind::Project, *project),
            ];
            let kinds = kinds.into_iter().filter(|(_, is_wanted)| is_all || *is_wanted);
            let kinds: Vec<OwnerKind> = kinds.map(|(kind, _)| kind).collect();
            report(fileset, opener, output, &kinds)?;
        }
    }
    Ok(exit::DONE)
}

/// Asks for something of the fileset that `argument` names, and tells what came of it.
pub(super) fn with(
    argument: &Path,
    opener: Opener<'_>,
    is_change: bool,
    output: &Output,
    ask: impl FnOnce(&Controlled, &str) -> anyhow::Result<(String, serde_json::Value)>,
) -> anyhow::Result<()> {
    let at = Controlled::find(argument, opener, is_change)?;
    let asked = at.named(argument).and_then(|name| Ok((ask(&at, &name)?, name)));
    let pool = at.pool.display().to_string();
    let ((line, facts), name) = at.finish(asked)?;
    output.fact(&format!("{pool}:{name}: {line}"), &facts);
    Ok(())
}

/// Switches quotas on, and waits until all is counted.
fn switch_on(at: &Controlled, name: &str) -> anyhow::Result<QuotaFacts> {
    loop {
        let Answer::Quota(quota) = at.ask(&Request::QuotaOn { fileset: name.to_owned() })? else {
            anyhow::bail!("{}: the server answered nonsense", at.pool.display())
        };
        // Each call counts for some seconds.
        if quota.state != QuotaState::Counting {
            return Ok(quota);
        }
    }
}

fn report(
    argument: &Path,
    opener: Opener<'_>,
    output: &Output,
    kinds: &[OwnerKind],
) -> anyhow::Result<()> {
    let at = Controlled::find(argument, opener, false)?;
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
                // Ids rise, so this ends.
                next = rest.filter(|&rest| rest > from);
            }
        }
        Ok((name, quota, all))
    });
    let pool = at.pool.display().to_string();
    let (name, quota, all) = at.finish(asked)?;
    match quota.as_ref().map(|quota| (quota.state, quota.counted_permille)) {
        Some((QuotaState::Off, _)) => output.remark(&format!(
            "The quotas of {pool}:{name} are off: `holdfast quota on` switches them on."
        )),
        Some((QuotaState::Counting, permille)) => output.remark(&format!(
            "Not all is counted yet, but {} %: nobody is refused.",
            permille.unwrap_or(0) / 10
        )),
        Some((QuotaState::On, _)) | None => {}
    }
    all.iter().for_each(|account| output.fact(&line_of(account), &json!(account)));
    Ok(())
}

fn line_of(account: &AccountFacts) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("none".to_owned(), |it| ByteSize(it).to_string());
    let count = |count: Option<u64>| count.map_or("none".to_owned(), |it| it.to_string());
    let grace = |end: Option<u64>| {
        end.map_or(String::new(), |end| format!(", grace ends {}", time_of(end)))
    };
    let (word, id) = (account.kind.kind().word(), account.id);
    format!(
        "{word} {id}: {} (soft {}, hard {}{}), {} inodes (soft {}, hard {}{})",
        ByteSize(account.used_bytes),
        size(account.blocks_soft_bytes),
        size(account.blocks_hard_bytes),
        grace(account.blocks_grace_end_seconds),
        account.inodes,
        count(account.inodes_soft),
        count(account.inodes_hard),
        grace(account.inodes_grace_end_seconds),
    )
}

/// Returns a grace as it is written: `7d`.
fn grace_of(seconds: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(24 * 60 * 60, "d"), (60 * 60, "h"), (60, "m")];
    let fits = |(unit, _): &&(u64, &str)| seconds > 0 && seconds.is_multiple_of(*unit);
    let (unit, word) = UNITS.iter().find(fits).copied().unwrap_or((1, "s"));
    format!("{}{word}", seconds / unit)
}

fn owner_of(owner: &OwnerArgs) -> Result<(OwnerKind, u32), UsageError> {
    if let Some(user) = &owner.user {
        return id_of(user, "user", "/etc/passwd").map(|id| (OwnerKind::User, id));
    }
    if let Some(group) = &owner.group {
        return id_of(group, "group", "/etc/group").map(|id| (OwnerKind::Group, id));
    }
    Ok((OwnerKind::Project, owner.project.unwrap_or(0)))
}

/// Returns the number that `text` is, or that a name has in `file`, whose lines begin as
/// `name:x:number:`.
fn id_of(text: &str, what: &str, file: &str) -> Result<u32, UsageError> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let lines = std::fs::read_to_string(file).unwrap_or_default();
    let number = lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        let is_it = fields.next() == Some(text);
        fields.nth(1).filter(|_| is_it)?.parse().ok()
    });
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
        let line = line_of(&account);
        assert!(line.contains(", grace ends 2024-03-01 00:00:00 UTC)"), "{line}");
    }
}
