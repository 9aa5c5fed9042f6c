//! `holdfast job`: shows the jobs of a mounted pool, makes them pause and go on, sets their pace.

use serde_json::json;

use super::controlled::{Controlled, Opener};
use crate::args::fileset::{JobArgs, JobCommand};
use crate::backend::Backend;
use crate::control::{JobFacts, Request};
use crate::exit;
use crate::output::{Output, printable};
use crate::summary;

pub(crate) fn run(args: &JobArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let argument = args.command.pool();
    let at = Controlled::find(argument, Opener::plain(backend), false)?;
    if !at.is_served() {
        let pool = at.pool.display().to_string();
        at.finish(Ok(()))?;
        anyhow::bail!(
            "{pool}: jobs run while their pool is mounted, and this one is not: mount it"
        );
    }
    let (job, change) = match &args.command {
        JobCommand::List { .. } => {
            let jobs = at.jobs()?;
            if jobs.is_empty() {
                output.remark("No job is under way.");
            }
            jobs.iter().for_each(|job| output.fact(&summary::job_line(job), &json!(job)));
            return Ok(exit::DONE);
        }
        JobCommand::Pause { job, .. } => (job, Change::Pause(true)),
        JobCommand::Resume { job, .. } => (job, Change::Pause(false)),
        JobCommand::Pace { job, pace, .. } => (job, Change::Pace(pace.0)),
    };
    let pool = at.pool.display();
    let jobs = at.jobs()?;
    let is_meant = |it: &&JobFacts| it.id.to_string() == *job || it.name == *job;
    let Some(found) = jobs.iter().find(is_meant) else {
        anyhow::bail!("{pool}: there is no job {job}: `holdfast job list {pool}` shows them");
    };
    let job = found.id;
    let (request, words, facts) = match change {
        Change::Pause(is_paused) => {
            let words = if is_paused { "pauses" } else { "goes on" };
            let facts = json!({ "job": job, "is_paused": is_paused });
            (Request::JobPause { job, is_paused }, words.to_owned(), facts)
        }
        Change::Pace(percent) => {
            let words = percent.map_or("works as others let it".to_owned(), |percent| {
                format!("works {percent} % of the time")
            });
            let facts = json!({ "job": job, "pace_percent": percent });
            (Request::JobPace { job, percent }, words, facts)
        }
    };
    at.ask(&request)?;
    output.fact(&format!("{} {words}", printable(&found.name)), &facts);
    Ok(exit::DONE)
}

/// What is to become of a job.
enum Change {
    Pause(bool),
    Pace(Option<u8>),
}
