//! `holdfast trim`: discards the free space of a pool.

use serde_json::json;

use super::controlled::{ControlledPool, Opener};
use super::waiting::JobWait;

use crate::args::device::TrimArgs;
use crate::exit;
use crate::output::Output;
use crate::progress::WorkUnit;
use control::size::ByteSize;
use control::{Answer, Request, TrimFacts};
use server::backend::Backend;

pub(crate) fn run(args: &TrimArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let opener = Opener { backend, members: &args.members };
    let at = ControlledPool::find(&args.pool, opener, true)?;
    let pool = at.pool.display().to_string();
    let begun = at.ask(&Request::Trim {}).map(|_| ());
    let found = begun.and_then(|()| wait(&at, output));
    let found = at.finish(found)?;
    output.fact(&text_of(&pool, &found), &json!(found));
    Ok(if found.failed == 0 { exit::DONE } else { exit::FAILED })
}

fn wait(at: &ControlledPool, output: &Output) -> anyhow::Result<TrimFacts> {
    let mut waiting = JobWait::new(output)?;
    loop {
        let Answer::Trim(Some(found)) = at.ask(&Request::TrimStatus {})? else {
            anyhow::bail!("{}: the server ended during the trim: run it again", at.pool.display());
        };
        if found.is_done {
            waiting.finish();
            return Ok(found);
        }
        let jobs = at.jobs()?;
        let job = jobs.iter().find(|job| job.name == "trim");
        waiting.step(at, (WorkUnit::Items("allocation groups"), "trimmed"), job)?;
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
