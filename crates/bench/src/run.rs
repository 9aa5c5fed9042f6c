//! Rounds: every target does the same, one after the other, in an order that changes.
//!
//! Whatever slows the machine down for a while slows all targets down, and a pair of one round has
//! seen the same machine. So the ratio of a pair says more than the ratio of two averages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::Serialize;

use crate::access::Access;
use crate::noise::Noise;
use crate::number::{to_f64, to_u64};
use crate::plan::Plan;
use crate::workload::{self, GROUPS, Group, LapContext, Measure, Timed, is_stopped};

/// Space that a file system needs beside the files: its journal, its own metadata.
const SLACK_BYTES: u64 = 64 << 20;

/// What sort of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// Holdfast: told as a ratio to what it is measured against.
    Holdfast,
    /// Something to measure against.
    Given,
}

/// A file system that takes part.
#[derive(Debug)]
pub struct Target {
    /// Its name in the table.
    pub name: String,
    /// What it is, in a few words.
    pub what: String,
    /// What sort.
    pub kind: TargetKind,
    /// How it is asked.
    pub access: Box<dyn Access>,
    /// The process that serves it.
    pub server: Server,
}

/// The process that serves a target, if one does. Another takes its place when the target is taken
/// into use again.
#[derive(Clone, Debug, Default)]
pub struct Server(Arc<AtomicU32>);

impl Server {
    /// Notes which process it is now; `None`: none that is known.
    pub fn set(&self, pid: Option<u32>) {
        self.0.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns which process it is.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often.
    pub rounds: u32,
    /// How much.
    pub plan: Plan,
    /// Numbers of client threads, for groups that are threaded.
    pub threads: Vec<usize>,
    /// Names of groups and measures; empty: all.
    pub only: Vec<String>,
}

/// Why a run cannot begin. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Look at the list.
    #[error("no workload or measure is called `{name}`: --list shows them")]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// Give less to do, or more space.
    #[error(
        "{target} has {free} MiB free and this run may need {needed} MiB there: give a smaller \
         --scale, fewer workloads with --only, or more space"
    )]
    NoSpace {
        /// The target's name.
        target: String,
        /// What is free.
        free: u64,
        /// What is needed.
        needed: u64,
    },
    /// The cause says what to do.
    #[error("{what}: {cause}")]
    Failed {
        /// What was tried.
        what: String,
        /// What happened.
        cause: io::Error,
    },
}

/// One workload on one target in one round.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Index of the target.
    pub target: usize,
    /// From 0.
    pub round: u32,
    /// What was timed.
    pub timed: Timed,
}

/// A workload that a target could not do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The target's name.
    pub target: String,
    /// The workload's name.
    pub workload: String,
    /// What happened.
    pub cause: String,
}

/// What a run gave.
#[derive(Debug, Default)]
pub struct Outcome {
    /// All samples, in the order in which they were taken.
    pub samples: Vec<Sample>,
    /// What did not work; not tried again in later rounds.
    pub failures: Vec<Failure>,
    /// Rounds that were completed.
    pub rounds: u32,
    /// Whether it was told to stop before it was done.
    pub was_stopped: bool,
}

/// One group, with a number of threads.
#[derive(Clone, Copy, Debug)]
struct Step {
    group: &'static Group,
    threads: usize,
}

impl Options {
    /// Returns the most bytes that the workloads have in files at a time, with some to spare.
    pub fn needed_bytes(&self) -> Result<u64, RunError> {
        let steps = self.steps()?;
        let most = steps.iter().map(|step| (step.group.bytes)(&self.plan)).max().unwrap_or(0);
        Ok(most + most / 4 + SLACK_BYTES)
    }

    fn steps(&self) -> Result<Vec<Step>, RunError> {
        for name in &self.only {
            let is_known = GROUPS.iter().any(|group| is_named(group, name));
            if !is_known {
                return Err(RunError::Unknown { name: name.clone() });
            }
        }
        let wanted = GROUPS.iter().filter(|group| {
            group.measures.iter().any(|measure| self.is_wanted(group, measure.name))
        });
        Ok(wanted
            .flat_map(|group| {
                let threads = if group.is_threaded { self.threads.clone() } else { vec![1] };
                threads.into_iter().map(move |threads| Step { group, threads })
            })
            .collect())
    }

    fn is_wanted(&self, group: &Group, measure: &str) -> bool {
        let is_named = |name: &String| name == group.name || name == measure;
        self.only.is_empty() || self.only.iter().any(is_named)
    }
}

fn is_named(group: &Group, name: &str) -> bool {
    group.name == name || group.measures.iter().any(|measure: &Measure| measure.name == name)
}

/// Refuses targets that have no room for the run.
pub fn check_space(targets: &[Target], options: &Options) -> Result<(), RunError> {
    let needed = options.needed_bytes()?;
    for target in targets {
        let free = target.access.free_bytes().map_err(|cause| RunError::Failed {
            what: format!("the free space of {}", target.name),
            cause,
        })?;
        if free < needed {
            let target = target.name.clone();
            return Err(RunError::NoSpace { target, free: free >> 20, needed: needed >> 20 });
        }
    }
    Ok(())
}

/// Runs all rounds. `progress` is told what is done now, and how many steps of how many.
pub fn run(
    targets: &[Target],
    options: &Options,
    noise: &mut Noise,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Outcome, RunError> {
    check_space(targets, options)?;
    let steps = options.steps()?;
    let total = u64::from(options.rounds) * to_u64(steps.len() * targets.len());
    let mut outcome = Outcome::default();
    let mut done = 0;
    for round in 0..options.rounds {
        for (number, step) in steps.iter().enumerate() {
            let sampled = noise.sample();
            sampled.map_err(|cause| RunError::Failed { what: "the calibration".into(), cause })?;
            for index in order(targets.len(), to_u64(number) + u64::from(round)) {
                let Some(target) = targets.get(index) else { continue };
                progress(&format!("{} on {}", step.group.name, target.name), done, total);
                lap(&mut outcome, (index, target), *step, (round, options, stop));
                done += 1;
                if stop.load(Ordering::Relaxed) {
                    outcome.was_stopped = true;
                    return Ok(outcome);
                }
            }
        }
        outcome.rounds = round + 1;
    }
    progress("done", total, total);
    Ok(outcome)
}

/// Returns the targets in an order that begins elsewhere each time.
fn order(count: usize, turn: u64) -> impl Iterator<Item = usize> {
    let first = usize::try_from(turn % to_u64(count.max(1))).unwrap_or(0);
    (0..count).map(move |index| (first + index) % count)
}

fn lap(
    outcome: &mut Outcome,
    (index, target): (usize, &Target),
    step: Step,
    (round, options, stop): (u32, &Options, &AtomicBool),
) {
    let Step { group, threads } = step;
    let has_failed =
        |failure: &Failure| failure.target == target.name && failure.workload == group.name;
    if outcome.failures.iter().any(has_failed) {
        return;
    }
    let context = LapContext {
        access: target.access.as_ref(),
        plan: &options.plan,
        threads,
        seed: u64::from(round) + 1,
        stop,
        is_wanted: &|measure| options.is_wanted(group, measure),
        server_cpu: &|| target.server.pid().and_then(cpu_seconds_of),
    };
    let name = format!("{}-{threads}-{round}", group.name);
    let done = target.access.settle().and_then(|()| workload::run(group, &name, &context));
    match done {
        Ok(timed) => {
            let samples = timed.into_iter().map(|timed| Sample { target: index, round, timed });
            outcome.samples.extend(samples);
        }
        Err(error) if is_stopped(&error) && stop.load(Ordering::Relaxed) => {}
        Err(error) => outcome.failures.push(Failure {
            target: target.name.clone(),
            workload: group.name.to_owned(),
            cause: error.to_string(),
        }),
    }
}

/// Returns the processor time of all threads of a process; `None`: it is gone, or the system does
/// not say.
fn cpu_seconds_of(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0_u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread may end meanwhile.
        let Ok(text) = std::fs::read_to_string(task.ok()?.path().join("schedstat")) else {
            continue;
        };
        let on_cpu: u64 = text.split_whitespace().next()?.parse().ok()?;
        nanoseconds += on_cpu;
    }
    Some(to_f64(nanoseconds) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(only: &[&str]) -> Options {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        Options { rounds: 1, plan: Plan::new(0.01), threads: vec![1, 2], only }
    }

    #[test]
    fn only_names_groups_and_measures_and_nothing_else() {
        let steps = |only: &[&str]| options(only).steps().map(|steps| steps.len()).ok();
        assert_eq!(steps(&["names"]), Some(2));
        assert_eq!(steps(&["unlink", "stream"]), Some(3));
        assert_eq!(steps(&["nothing"]), None);
        assert!(steps(&[]) > Some(GROUPS.len()));
    }

    #[test]
    fn every_target_is_first_as_often_as_the_others() {
        let firsts: Vec<_> = (0..6).filter_map(|turn| order(3, turn).next()).collect();
        assert_eq!(firsts, [0, 1, 2, 0, 1, 2]);
        assert_eq!(order(3, 1).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order(0, 1).count(), 0);
    }

    #[test]
    fn processor_time_of_a_process_is_known() {
        let own = std::process::id();
        let before = cpu_seconds_of(own).expect("this process runs");
        let mut sum = 0_u64;
        while cpu_seconds_of(own).expect("it runs") <= before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert_eq!(cpu_seconds_of(u32::MAX), None);
    }
}
