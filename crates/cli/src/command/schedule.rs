//! `holdfast schedule` and `holdfast notify`: clones and scrubs by schedule, and who is told.

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::schedule::{NotifyArgs, Often, ScheduleArgs, ScheduleCommand};
use crate::backend::Backend;
use crate::control::{Answer, Request, Schedule};
use crate::exit;
use crate::named::Named;
use crate::output::{Output, printable};

pub(crate) fn run(
    args: &ScheduleArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let argument = args.command.path();
    let at = Controlled::find(argument, Opener::plain(backend), false)?;
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
            let meant = Named::of(argument)?.fileset.map(|name| name.to_string());
            let is_meant = |schedule: &&Schedule| {
                meant.as_ref().is_none_or(|name| {
                    let rest = schedule.fileset.strip_prefix(name.as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
            };
            let meant_ones: Vec<&Schedule> = list.iter().filter(is_meant).collect();
            if let (true, Some(name)) = (meant_ones.is_empty(), &meant) {
                at.known(name, &at.filesets()?)?;
            }
            if meant_ones.is_empty() {
                output.remark("No clones are taken by schedule.");
            }
            for schedule in meant_ones {
                let name = printable(&schedule.fileset);
                let mut line = format!("{name}  {}", schedule.keep.text());
                if schedule.is_gone && schedule.is_configured {
                    line += ", but there is no such fileset: change the [[schedule]]";
                } else if schedule.is_gone {
                    line += &format!(
                        ", but that fileset is gone: `holdfast schedule set {pool}:{name} none \
                         --gone`"
                    );
                }
                if schedule.is_configured {
                    line += " (configuration)";
                }
                if let Some(aside) = &schedule.set_aside {
                    line += &format!(
                        "\n  a command has said {}: it counts once the configuration says nothing",
                        aside.text()
                    );
                }
                for stays in &schedule.stays {
                    line += &format!("\n  is not deleted: {}", printable(stays));
                }
                output.fact(&line, &json!(schedule));
            }
            if meant.is_none() {
                show_scrubs(&at, output)?;
            }
        }
        ScheduleCommand::Scrub { every: None, .. } => show_scrubs(&at, output)?,
        ScheduleCommand::Scrub { every: Some(Often(every)), .. } => {
            at.ask(&Request::ScrubScheduleSet { every: *every })?;
            show_scrubs(&at, output)?;
        }
    }
    Ok(exit::DONE)
}

/// Shows how often a pool is scrubbed.
fn show_scrubs(at: &Controlled, output: &Output) -> anyhow::Result<()> {
    let Answer::ScrubSchedule(said) = at.ask(&Request::ScrubSchedule {})? else {
        anyhow::bail!("{}: the server answered nonsense", at.pool.display())
    };
    output.fact(&printable(&said.line()), &json!({ "scrub": said }));
    Ok(())
}

/// `holdfast notify test`.
pub(crate) fn notify(
    args: &NotifyArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let at = Controlled::find(args.pool(), Opener::plain(backend), false)?;
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
    // Each has said why above.
    let is_all_told = told.iter().all(|came| came.ok);
    Ok(if is_all_told { exit::DONE } else { exit::FAILED })
}
