//! `holdfast job`: shows, pauses, resumes and paces the jobs of a mounted pool.

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use crate::args::fileset::{JobArgs, JobCommand};
use crate::exit;
use crate::output::Output;
use crate::table::Column::{Left, Right};
use control::text::printable;
use control::{JobFacts, Request};
use server::backend::Backend;

pub(crate) fn run(args: &JobArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let argument = args.command.pool();
    let at = ControlledPool::find(argument, Opener::plain(backend), false)?;
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
            let columns = [
                Right("ID"),
                Left("JOB"),
                Right("DONE"),
                Right("LEFT"),
                Right("PACE"),
                Left("STATE"),
            ];
            output.list(&jobs, "No job is under way.", columns, row_of);
            return Ok(exit::DONE);
        }
        JobCommand::Pause { job, .. } => (job, JobChange::Pause(true)),
        JobCommand::Resume { job, .. } => (job, JobChange::Pause(false)),
        JobCommand::Pace { job, pace, .. } => (job, JobChange::Pace(pace.0)),
    };
    let pool = at.pool.display();
    let jobs = at.jobs()?;
    let is_meant = |it: &&JobFacts| it.id.to_string() == *job || it.name == *job;
    let Some(found) = jobs.iter().find(is_meant) else {
        anyhow::bail!("{pool}: there is no job {job}: `holdfast job list {pool}` shows them");
    };
    let job = found.id;
    let (request, words, facts) = match change {
        JobChange::Pause(is_paused) => {
            let words = if is_paused { "pauses" } else { "goes on" };
            let facts = json!({ "job": job, "is_paused": is_paused });
            (Request::JobPause { job, is_paused }, words.to_owned(), facts)
        }
        JobChange::Pace(percent) => {
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

fn row_of(job: &JobFacts) -> [String; 6] {
    let done = job.done.saturating_mul(100).checked_div(job.total);
    let state = match &job.failure {
        Some(failure) => format!("stopped: {failure}"),
        None if job.is_paused => "paused".to_owned(),
        None => "running".to_owned(),
    };
    [
        job.id.to_string(),
        job.name.clone(),
        done.map_or_else(String::new, |percent| format!("{percent} %")),
        job.ends_in_seconds.map_or_else(String::new, |seconds| format!("{seconds} s")),
        job.pace_percent.map_or_else(|| "auto".to_owned(), |percent| format!("{percent} %")),
        state,
    ]
}

enum JobChange {
    Pause(bool),
    Pace(Option<u8>),
}
