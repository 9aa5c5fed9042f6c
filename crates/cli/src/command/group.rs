//! `holdfast group`: shows the disk groups of a pool, adds and removes them.

use std::path::PathBuf;

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::group::{GroupArgs, GroupCommand};
use crate::args::members::{GroupSpec, Role};
use crate::backend::Backend;
use crate::control::{Answer, GroupFacts, NewGroup, Request};
use crate::exit::{self, UsageError};
use crate::output::{Output, printable};
use crate::patience::Patience;
use crate::size::ByteSize;

pub(crate) fn run(args: &GroupArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let is_change = !matches!(args.command, GroupCommand::List { .. });
    // What is wrong with the words is said before anything is opened.
    let request = match &args.command {
        GroupCommand::List { .. } => Request::GroupList {},
        GroupCommand::Add { group, size, force, .. } => add(group, *size, *force)?,
        GroupCommand::Remove { group, .. } => Request::GroupRemove { group: *group },
        GroupCommand::Metadata { group, .. } => Request::GroupMetadata { group: *group },
    };
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(args.command.pool(), opener, is_change)?;
    if let GroupCommand::Remove { group, wait: must_wait, .. } = args.command {
        let done = remove(&at, group, must_wait, output);
        at.finish(done)?;
        return Ok(exit::DONE);
    }
    let answer = at.ask(&request);
    let pool = at.pool.display().to_string();
    let Answer::Groups(groups) = at.finish(answer)? else {
        anyhow::bail!("{pool}: the server answered nonsense");
    };
    for group in groups {
        let line = line_of(&group);
        let text = match args.command {
            GroupCommand::Metadata { group: number, .. } if group.number == u64::from(number) => {
                format!("the metadata is there now: {line}")
            }
            // The answer has all of them.
            GroupCommand::Metadata { .. } => continue,
            GroupCommand::Add { .. } => format!("added: {line}"),
            GroupCommand::List { .. } | GroupCommand::Remove { .. } => line,
        };
        output.fact(&text, &json!(group));
    }
    Ok(exit::DONE)
}

/// Takes a disk group out; waits for it if that is asked for, or nobody else goes on with it.
pub(super) fn remove(
    at: &Controlled,
    number: u8,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    at.ask(&Request::GroupRemove { group: number })?;
    let pool = at.pool.display().to_string();
    // One with the journal is gone by now.
    let is_left = |groups: Vec<GroupFacts>| groups.iter().any(|it| it.number == u64::from(number));
    if !must_wait && at.is_served() && is_left(at.groups()?) {
        let facts = json!({ "leaving": number, "pool": pool });
        output.fact(&format!("disk group {number} leaves: a job moves what it holds"), &facts);
        return Ok(());
    }
    wait_until_gone(at, number, output)?;
    let facts = json!({ "removed": number, "pool": pool });
    output
        .fact(&format!("disk group {number} is gone; its devices are of no pool any more"), &facts);
    Ok(())
}

/// Waits until a disk group that leaves is gone.
pub(super) fn wait_until_gone(at: &Controlled, number: u8, output: &Output) -> anyhow::Result<()> {
    let pool = at.pool.display();
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    // Its number may be that of another by then.
    let mut own: Option<Vec<String>> = None;
    loop {
        let groups = at.groups()?;
        let jobs = at.jobs()?;
        let name = format!("emptying disk group {number}");
        let job = jobs.into_iter().find(|job| job.name == name);
        let found = groups.into_iter().find(|group| group.number == u64::from(number));
        let devices = found.map(|group| group.devices);
        if devices.is_none() || own.is_some() && own != devices {
            progress.finish();
            return Ok(());
        }
        own = devices;
        if let Some(job) = job {
            if job.is_paused || job.failure.is_some() {
                let why = job.failure.unwrap_or_else(|| "it was paused".to_owned());
                anyhow::bail!(
                    "{pool}: {name} has stopped ({why}): `holdfast job resume {pool} {}`",
                    job.id
                );
            }
            progress.tell("moved, in bytes", job.done, job.total);
        }
        patience.wait();
    }
}

fn add(group: &GroupSpec, size: Option<ByteSize>, is_forced: bool) -> anyhow::Result<Request> {
    let roles = group.roles.clone().unwrap_or_default();
    let has = |role| roles.contains(&role);
    if has(Role::Journal) && has(Role::Data) && !has(Role::Metadata) {
        let message = "the journal lies with the metadata or alone: write =journal, or \
                       =data,metadata,journal";
        return Err(UsageError::new(message).into());
    }
    let missing = group.devices.iter().find(|path| !path.exists());
    if let (None, Some(missing)) = (size, missing) {
        let message = format!(
            "{} does not exist: give --size to make a file, or check the path of the device",
            missing.display()
        );
        return Err(UsageError::new(message).into());
    }
    let devices: Result<Vec<PathBuf>, _> = group.devices.iter().map(std::path::absolute).collect();
    Ok(Request::GroupAdd(NewGroup {
        kind: group.layout.word().to_owned(),
        devices: devices?,
        size_bytes: size.map(|size| size.0),
        is_forced,
        roles: roles.iter().map(|role| role.word().to_owned()).collect(),
    }))
}

fn line_of(group: &GroupFacts) -> String {
    let GroupFacts { number, kind, roles, state, used_bytes, total_bytes, devices, .. } = group;
    let devices: Vec<String> = devices.iter().map(|path| printable(path).to_string()).collect();
    format!(
        "{number}  {kind:<6}  {state:<7}  {}  {} of {} used  {}",
        roles.join(","),
        ByteSize(*used_bytes),
        ByteSize(*total_bytes),
        devices.join(",")
    )
}
