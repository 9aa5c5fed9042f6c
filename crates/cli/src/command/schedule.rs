//! `holdfast schedule` and `holdfast notify`: scheduled snapshots and scrubs, and test notices.

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use crate::args::schedule::{
    NotifyArgs, NotifyCommand, ScheduleArgs, ScheduleCommand, ScrubIntervalArgument,
};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{IfAny, Left};
use control::text::printable;
use control::{Answer, Request, SnapshotSchedule};
use server::backend::Backend;
use server::named::PoolArgument;

pub(crate) fn run(
    args: &ScheduleArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let argument = args.command.path();
    let at = ControlledPool::find(argument, Opener::plain(backend), false)?;
    let at = at.need_server("schedules are of a server")?;
    let pool = at.pool.display().to_string();
    match &args.command {
        ScheduleCommand::Set { keep, gone, .. } => {
            let (fileset, is_gone) = (at.named(argument)?, *gone);
            at.ask(&Request::ScheduleSet { fileset: fileset.clone(), keep: *keep, is_gone })?;
            let facts = json!({ "fileset": fileset, "keep": keep, "gone": gone, "pool": pool });
            let which = if is_gone { ", which is gone," } else { "" };
            output.fact(&format!("{pool}:{fileset}{which} keeps {}", keep.text()), &facts);
        }
        ScheduleCommand::List { .. } => {
            let Answer::Schedules(list) = at.ask(&Request::ScheduleList {})? else {
                anyhow::bail!("{pool}: the server answered nonsense")
            };
            let meant = PoolArgument::of(argument)?.fileset.map(|name| name.to_string());
            let is_meant = |schedule: &&SnapshotSchedule| {
                meant.as_ref().is_none_or(|name| {
                    let rest = schedule.fileset.strip_prefix(name.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
            };
            let meant_ones: Vec<&SnapshotSchedule> = list.iter().filter(is_meant).collect();
            if let (true, Some(name)) = (meant_ones.is_empty(), &meant) {
                at.known(name, &at.filesets()?)?;
            }
            let columns = [Left("FILESET"), Left("KEEPS"), IfAny("NOTES")];
            let none = "No snapshots are taken by schedule.";
            output.list(&meant_ones, none, columns, |schedule| {
                let (fileset, keeps) = (schedule.fileset.clone(), schedule.keep.text());
                [fileset, keeps, notes_of(schedule, &pool)]
            });
            if meant.is_none() {
                show_scrubs(&at, output)?;
            }
        }
        ScheduleCommand::Scrub { every: None, .. } => show_scrubs(&at, output)?,
        ScheduleCommand::Scrub { every: Some(ScrubIntervalArgument(every)), .. } => {
            at.ask(&Request::ScrubScheduleSet { every: *every })?;
            show_scrubs(&at, output)?;
        }
    }
    Ok(exit::DONE)
}

fn notes_of(schedule: &SnapshotSchedule, pool: &str) -> String {
    let mut notes = Vec::new();
    if schedule.is_configured {
        notes.push("by the configuration".to_owned());
    }
    notes.extend(schedule.is_gone.then(|| match schedule.is_configured {
        true => "there is no such fileset: change the [[schedule]]".to_owned(),
        false => format!(
            "the fileset is gone: `holdfast schedule set {pool}:{} none --gone`",
            schedule.fileset
        ),
    }));
    let aside = schedule.set_aside.as_ref();
    notes.extend(aside.map(|it| format!("instead of {}, by a command", it.text())));
    notes.extend(schedule.stays.iter().map(|stays| format!("not deleted: {stays}")));
    notes.join("; ")
}

fn show_scrubs(at: &ControlledPool, output: &Output) -> anyhow::Result<()> {
    let Answer::ScrubSchedule(said) = at.ask(&Request::ScrubSchedule {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    output.fact(&printable(&said.line()), &json!({ "scrub": said }));
    Ok(())
}

pub(crate) fn notify(
    args: &NotifyArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let NotifyCommand::Test { pool } = &args.command;
    let at = ControlledPool::find(pool, Opener::plain(backend), false)?;
    let at = at.need_server("notices are of a server")?;
    let Answer::Told(told) = at.ask(&Request::NotifyTest {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    let pool = at.pool.display();
    anyhow::ensure!(
        !told.is_empty(),
        "{pool}: nobody is told: write a [[notify]] into the configuration of its server, and \
         `holdfast reload {pool}`"
    );
    for came in &told {
        let outcome = came.error.as_deref().unwrap_or("told");
        output.fact(&printable(&format!("{}: {outcome}", came.receiver)), &json!(came));
    }
    let is_all_told = told.iter().all(|came| came.ok);
    Ok(if is_all_told { exit::DONE } else { exit::FAILED })
}
