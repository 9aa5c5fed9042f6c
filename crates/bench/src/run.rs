//! Runs the rounds: all targets get the same work in turn, in a rotating order.
//!
//! A slow period of the machine affects all targets of a round. So a paired ratio is more reliable
//! than a ratio of averages.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::Serialize;

use crate::access::TargetAccess;
use crate::noise::Noise;
use crate::number::{to_f64, to_u64};
use crate::plan::BenchPlan;
use crate::workload::{self, GROUPS, LapContext, Measure, PhaseTiming, WorkloadGroup, is_stopped};

/// Extra space for a file system's journal and metadata.
const SLACK_BYTES: u64 = 64 << 20;

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetKind {
    /// Holdfast, compared with the given targets.
    Holdfast,
    /// A reference.
    Given,
}

/// A file system under test.
#[derive(Debug)]
pub struct SystemUnderTest {
    /// Name in the table.
    pub name: String,
    /// Short description.
    pub what: String,
    /// Kind.
    pub kind: TargetKind,
    /// Access to the files.
    pub access: Box<dyn TargetAccess>,
    /// Server process.
    pub server: ServerProcess,
}

/// The server process of a target, if any. Can change when the target is reopened.
#[derive(Clone, Debug, Default)]
pub struct ServerProcess(Arc<AtomicU32>);

impl ServerProcess {
    /// Sets the process, if known.
    pub fn set(&self, pid: Option<u32>) {
        self.0.store(pid.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the process id, if known.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&pid| pid != 0)
    }
}

/// Options of a run.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Number of rounds.
    pub rounds: u32,
    /// Amounts.
    pub plan: BenchPlan,
    /// Client thread counts, for threaded groups.
    pub threads: Vec<usize>,
    /// Names of groups and measures, or empty for all.
    pub only: Vec<String>,
}

/// Why a run cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Unknown workload or measure.
    #[error("no workload or measure is called `{name}`: --list shows them")]
    Unknown {
        /// The name.
        name: String,
    },
    /// Not enough space.
    #[error(
        "{target} has {free} MiB free and this run may need {needed} MiB there: give a smaller \
         --scale, fewer workloads with --only, or more space"
    )]
    NoSpace {
        /// Target name.
        target: String,
        /// Free MiB.
        free: u64,
        /// Needed MiB.
        needed: u64,
    },
    /// A system call failed.
    #[error("{what}: {cause}")]
    Failed {
        /// Operation.
        what: String,
        /// System error.
        cause: io::Error,
    },
}

/// One timed measure of a workload, target and round.
#[derive(Clone, Debug)]
pub struct MeasureSample {
    /// Target index.
    pub target: usize,
    /// Round, from 0.
    pub round: u32,
    /// Measurement.
    pub timed: PhaseTiming,
}

/// A workload that failed on a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkloadFailure {
    /// Target name.
    pub target: String,
    /// Workload name.
    pub workload: String,
    /// Error message.
    pub cause: String,
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct BenchOutcome {
    /// All samples in order.
    pub samples: Vec<MeasureSample>,
    /// Failed workloads, which are skipped in later rounds.
    pub failures: Vec<WorkloadFailure>,
    /// Completed rounds.
    pub rounds: u32,
    /// Whether the run was interrupted.
    pub was_stopped: bool,
}

#[derive(Clone, Copy, Debug)]
struct WorkloadStep {
    group: &'static WorkloadGroup,
    threads: usize,
}

impl BenchOptions {
    /// Returns the maximum size of the files at any time, with a margin.
    pub fn needed_bytes(&self) -> Result<u64, RunError> {
        let steps = self.steps()?;
        let most = steps.iter().map(|step| (step.group.bytes)(&self.plan)).max().unwrap_or(0);
        Ok(most + most / 4 + SLACK_BYTES)
    }

    fn steps(&self) -> Result<Vec<WorkloadStep>, RunError> {
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
                threads.into_iter().map(move |threads| WorkloadStep { group, threads })
            })
            .collect())
    }

    fn is_wanted(&self, group: &WorkloadGroup, measure: &str) -> bool {
        let is_named = |name: &String| name == group.name || name == measure;
        self.only.is_empty() || self.only.iter().any(is_named)
    }
}

fn is_named(group: &WorkloadGroup, name: &str) -> bool {
    group.name == name || group.measures.iter().any(|measure: &Measure| measure.name == name)
}

/// Refuses targets with too little free space.
pub fn check_space(targets: &[SystemUnderTest], options: &BenchOptions) -> Result<(), RunError> {
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

/// Runs all rounds. `progress` gets the current step, the steps done, and their total.
pub fn run(
    targets: &[SystemUnderTest],
    options: &BenchOptions,
    noise: &mut Noise,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<BenchOutcome, RunError> {
    check_space(targets, options)?;
    let steps = options.steps()?;
    let total = u64::from(options.rounds) * to_u64(steps.len() * targets.len());
    let mut outcome = BenchOutcome::default();
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

fn order(count: usize, turn: u64) -> impl Iterator<Item = usize> {
    let first = usize::try_from(turn % to_u64(count.max(1))).unwrap_or(0);
    (0..count).map(move |index| (first + index) % count)
}

fn lap(
    outcome: &mut BenchOutcome,
    (index, target): (usize, &SystemUnderTest),
    step: WorkloadStep,
    (round, options, stop): (u32, &BenchOptions, &AtomicBool),
) {
    let WorkloadStep { group, threads } = step;
    let has_failed =
        |failure: &WorkloadFailure| failure.target == target.name && failure.workload == group.name;
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
            let samples =
                timed.into_iter().map(|timed| MeasureSample { target: index, round, timed });
            outcome.samples.extend(samples);
        }
        Err(error) if is_stopped(&error) && stop.load(Ordering::Relaxed) => {}
        Err(error) => outcome.failures.push(WorkloadFailure {
            target: target.name.clone(),
            workload: group.name.to_owned(),
            cause: error.to_string(),
        }),
    }
}

/// Returns the processor time of all threads of a process. `None` if unavailable.
fn cpu_seconds_of(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0_u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // The thread may have ended.
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

    fn options(only: &[&str]) -> BenchOptions {
        let only = only.iter().map(|name| (*name).to_owned()).collect();
        BenchOptions { rounds: 1, plan: BenchPlan::new(0.01), threads: vec![1, 2], only }
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
