//! `holdfast group`: shows, adds and removes the disk groups of a pool.

use std::path::PathBuf;

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::waiting::JobWait;
use crate::args::group::{GroupArgs, GroupCommand};
use crate::args::members::{DiskGroupRole, GroupSpec};
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use crate::table::Column::{Left, Right};
use control::size::ByteSize;
use control::text::printable;
use control::{Answer, GroupFacts, NewGroup, Request, UsageError};
use server::backend::Backend;

pub(crate) fn run(args: &GroupArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let is_change = !matches!(args.command, GroupCommand::List { .. });
    let request = match &args.command {
        GroupCommand::List { .. } => Request::GroupList {},
        GroupCommand::Add { group, size, force, .. } => add(group, *size, *force)?,
        GroupCommand::Remove { group, .. } => Request::GroupRemove { group: *group },
        GroupCommand::Metadata { group, .. } => Request::GroupMetadata { group: *group },
    };
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(args.command.pool(), opener, is_change)?;
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
    if matches!(args.command, GroupCommand::List { .. }) {
        let columns = [
            Right("GROUP"),
            Left("KIND"),
            Left("ROLES"),
            Left("STATE"),
            Right("USED"),
            Right("SIZE"),
            Left("DEVICES"),
        ];
        output.list(&groups, "There are no disk groups.", columns, row_of);
        return Ok(exit::DONE);
    }
    for group in groups {
        let line = line_of(&group);
        let text = match args.command {
            GroupCommand::Metadata { group: number, .. } if group.number == u64::from(number) => {
                format!("the metadata is there now: {line}")
            }
            // Of all groups in the answer, only the new main group is printed.
            GroupCommand::Metadata { .. } => continue,
            GroupCommand::Add { .. } => format!("added: {line}"),
            GroupCommand::List { .. } | GroupCommand::Remove { .. } => line,
        };
        output.fact(&text, &json!(group));
    }
    Ok(exit::DONE)
}

/// Removes a disk group. Waits for the end if `must_wait`, or if there is no server to continue.
pub(super) fn remove(
    at: &ControlledPool,
    number: u8,
    must_wait: bool,
    output: &Output,
) -> anyhow::Result<()> {
    at.ask(&Request::GroupRemove { group: number })?;
    let pool = at.pool.display().to_string();
    // A group for the journal alone is gone at once.
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

pub(super) fn wait_until_gone(
    at: &ControlledPool,
    number: u8,
    output: &Output,
) -> anyhow::Result<()> {
    let mut waiting = JobWait::new(output)?;
    // The number may be given to another group, so the group is recognized by its devices.
    let mut own: Option<Vec<String>> = None;
    loop {
        let groups = at.groups()?;
        let jobs = at.jobs()?;
        let name = format!("emptying disk group {number}");
        let job = jobs.iter().find(|job| job.name == name);
        let found = groups.into_iter().find(|group| group.number == u64::from(number));
        let devices = found.map(|group| group.devices);
        if devices.is_none() || own.is_some() && own != devices {
            waiting.finish();
            return Ok(());
        }
        own = devices;
        waiting.step(at, (WorkUnit::Bytes(""), "moved"), job)?;
    }
}

fn add(group: &GroupSpec, size: Option<ByteSize>, is_forced: bool) -> anyhow::Result<Request> {
    let roles = group.roles.clone().unwrap_or_default();
    let has = |role| roles.contains(&role);
    if has(DiskGroupRole::Journal) && has(DiskGroupRole::Data) && !has(DiskGroupRole::Metadata) {
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

fn row_of(group: &GroupFacts) -> [String; 7] {
    [
        group.number.to_string(),
        group.kind.clone(),
        group.roles.join(","),
        group.state.clone(),
        ByteSize(group.used_bytes).to_string(),
        ByteSize(group.total_bytes).to_string(),
        group.devices.join(","),
    ]
}

fn line_of(group: &GroupFacts) -> String {
    let [number, kind, roles, state, used, size, devices] = row_of(group);
    printable(&format!("{number} {kind} {state}, {roles}, {used} of {size} used, {devices}"))
}
