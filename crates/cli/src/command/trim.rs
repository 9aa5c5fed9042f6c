//! `holdfast trim`: discards what a pool has free.

use serde_json::json;

use super::controlled::{Controlled, Opener};

use crate::args::device::TrimArgs;
use crate::backend::Backend;
use crate::control::{Answer, Request, TrimFacts};
use crate::exit;
use crate::output::Output;
use crate::patience::Patience;
use crate::size::ByteSize;

pub(crate) fn run(args: &TrimArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let at = Controlled::find(&args.pool, opener, true)?;
    let pool = at.pool.display().to_string();
    let begun = at.ask(&Request::Trim {}).map(|_| ());
    let found = begun.and_then(|()| wait(&at, output));
    let found = at.finish(found)?;
    output.fact(&text_of(&pool, &found), &json!(found));
    Ok(if found.failed == 0 { exit::DONE } else { exit::FAILED })
}

fn wait(at: &Controlled, output: &Output) -> anyhow::Result<TrimFacts> {
    let (mut progress, mut patience) = (output.progress(), Patience::new());
    loop {
        let Answer::Trim(Some(found)) = at.ask(&Request::TrimStatus {})? else {
            anyhow::bail!("{}: the server ended during the trim: run it again", at.pool.display());
        };
        if found.is_done {
            progress.finish();
            return Ok(found);
        }
        let jobs = at.jobs()?;
        let job = jobs.iter().find(|job| job.name == "trim");
        if let Some(job) = job.filter(|job| job.is_paused || job.failure.is_some()) {
            let why = job.failure.clone().unwrap_or_else(|| "it was paused".to_owned());
            let (pool, id) = (at.pool.display(), job.id);
            anyhow::bail!(
                "{pool}: the trim has stopped ({why}): run `holdfast job resume {pool} {id}`"
            );
        }
        let (done, total) = job.map_or((0, 0), |job| (job.done, job.total));
        progress.tell("allocation groups trimmed", done, total);
        patience.wait();
    }
}

fn text_of(pool: &str, found: &TrimFacts) -> String {
    let mut text = format!("{pool}: {} discarded", ByteSize(found.discarded_bytes));
    if found.refused_bytes > 0 {
        text += &format!(
            "; {} are free, but their device or file system does not support discard",
            ByteSize(found.refused_bytes)
        );
    }
    if found.striped_bytes > 0 {
        let bytes = ByteSize(found.striped_bytes);
        text += &format!("; {bytes} of raid5 or stripe disk groups are never discarded");
    }
    if found.failed > 0 {
        text += &format!("; {} discards failed: see the log", found.failed);
    }
    text
}
