//! Waits of commands: for a job of the pool, and for a transfer. Shows progress, and ends at ^C
//! with what goes on, and how.

use std::fs::File;

use serde_json::Value;

use super::controlled::ControlledPool;
use crate::exit::InterruptedError;
use crate::interrupt;
use crate::output::Output;
use crate::progress::{ProgressOutput, WorkUnit};
use control::text::printable;
use control::{JobFacts, Transfer};
use server::patience::PollBackoff;

/// The wait for a job.
pub(super) struct JobWait {
    progress: ProgressOutput,
    patience: PollBackoff,
}

impl JobWait {
    pub(super) fn new(output: &Output) -> anyhow::Result<JobWait> {
        interrupt::watch()?;
        Ok(JobWait { progress: output.progress(), patience: PollBackoff::default() })
    }

    /// Shows the progress of `job`, and waits until the next poll. Fails if the job has stopped, or
    /// at ^C.
    pub(super) fn step(
        &mut self,
        at: &ControlledPool,
        (unit, what): (WorkUnit, &str),
        job: Option<&JobFacts>,
    ) -> anyhow::Result<()> {
        let (done, total) = job.map_or((0, 0), |job| (job.done, job.total));
        self.step_at(at, (unit, what), (done, total), job)
    }

    /// As [`JobWait::step`], for work whose progress is not that of `job`.
    pub(super) fn step_at(
        &mut self,
        at: &ControlledPool,
        (unit, what): (WorkUnit, &str),
        (done, total): (u64, u64),
        job: Option<&JobFacts>,
    ) -> anyhow::Result<()> {
        job.map_or(Ok(()), |job| check_goes_on(at, job))?;
        interrupt::check(|| goes_on(&at.pool.display().to_string(), at.is_served(), job))?;
        if total > 0 {
            self.progress.tell_in(unit, what, done, total);
        }
        self.patience.wait();
        Ok(())
    }

    pub(super) fn finish(self) {
        self.progress.finish();
    }
}

/// Fails if `job` has stopped.
pub(super) fn check_goes_on(at: &ControlledPool, job: &JobFacts) -> anyhow::Result<()> {
    if !job.is_paused && job.failure.is_none() {
        return Ok(());
    }
    let why = job.failure.as_deref().unwrap_or("it was paused");
    let (pool, id, name) = (at.pool.display(), job.id, printable(&job.name));
    anyhow::bail!("{pool}: {name} has stopped ({why}): `holdfast job resume {pool} {id}`")
}

fn goes_on(pool: &str, is_served: bool, job: Option<&JobFacts>) -> String {
    let name = job.map_or("the job".into(), |job| printable(&job.name));
    if !is_served {
        return format!(
            "{pool}: interrupted: {name} has stopped with this command, and goes on when the pool \
             is mounted or served"
        );
    }
    let pause = job.map_or_else(String::new, |job| {
        format!(", `holdfast job pause {pool} {}` stops it", job.id)
    });
    format!(
        "{pool}: interrupted: {name} goes on in the server: `holdfast job list {pool}` shows its \
         progress{pause}"
    )
}

/// Carries a transfer out and shows its progress. At ^C the transfer stops, and the error ends with
/// `continues`: how to continue, empty if the error says that.
pub(super) fn carry(
    at: &ControlledPool,
    request: &Transfer,
    file: File,
    (unit, what, output): (WorkUnit, &str, &Output),
    continues: &str,
) -> anyhow::Result<Value> {
    interrupt::watch()?;
    let mut progress = output.progress();
    let carried = at.transfer(request, file, &mut |now| {
        progress.show(unit, what, now);
        !interrupt::has_come()
    });
    progress.finish();
    carried.map_err(|error| match interrupt::has_come() {
        true if continues.is_empty() => InterruptedError(format!("{error:#}")).into(),
        true => InterruptedError(format!("{error:#}. {continues}")).into(),
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: ^C in the wait for a job says whether the job goes on, and how to watch and stop it.
    #[test]
    fn an_interrupted_wait_says_what_goes_on() {
        let job = JobFacts {
            id: 7,
            name: "scrub".to_owned(),
            done: 1,
            total: 2,
            ends_in_seconds: None,
            is_paused: false,
            pace_percent: None,
            failure: None,
        };
        let served = goes_on("p.hf", true, Some(&job));
        for words in ["scrub goes on", "`holdfast job list p.hf`", "`holdfast job pause p.hf 7`"] {
            assert!(served.contains(words), "{served}");
        }
        let alone = goes_on("p.hf", false, Some(&job));
        assert!(alone.contains("scrub has stopped with this command"), "{alone}");
        assert!(!goes_on("p.hf", true, None).contains("pause"), "its number is not known");
    }
}
