//! Workloads and their timing.
//!
//! A [`WorkloadGroup`] is a sequence of phases on one set of files. It runs once per round and
//! target, in its own directory. Each timed phase is a *measure*.

mod andrew;
mod cold;
mod connectathon;
mod mixed;
mod names;
mod random;
mod small;
mod stream;
mod tree;

use std::io;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use runtime::prng::Prng;
use rustix::time::{ClockId, clock_gettime};

use crate::access::{BenchHandle, TargetAccess, TargetReopener};
use crate::number::{to_f64, to_u64};
use crate::plan::BenchPlan;

/// Depth limit of removal, beyond any generated tree.
const REMOVE_DEPTH_MAX: usize = 64;

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureUnit {
    /// Operations.
    Operations,
    /// Files.
    Files,
    /// Mebibytes.
    Mebibytes,
}

impl MeasureUnit {
    /// Returns the unit of a rate.
    #[must_use]
    pub fn rate(self) -> &'static str {
        match self {
            MeasureUnit::Operations => "op/s",
            MeasureUnit::Files => "files/s",
            MeasureUnit::Mebibytes => "MiB/s",
        }
    }
}

/// One timed phase.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Name, unique over all groups.
    pub name: &'static str,
    /// Short description.
    pub what: &'static str,
    /// Unit.
    pub unit: MeasureUnit,
}

/// Phases that run together.
#[derive(Clone, Copy)]
pub struct WorkloadGroup {
    /// Name.
    pub name: &'static str,
    /// Timed phases in order.
    pub measures: &'static [Measure],
    /// Whether the group runs once per client thread count.
    pub is_threaded: bool,
    /// Maximum size of the files at any time.
    pub bytes: fn(&BenchPlan) -> u64,
    run: fn(&mut Lap<'_>) -> io::Result<()>,
}

impl std::fmt::Debug for WorkloadGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({})", self.name)
    }
}

/// All groups in execution order.
pub const GROUPS: [&WorkloadGroup; 12] = [
    &names::NAMES,
    &small::SMALL,
    &small::DURABLE,
    &small::SUSTAINED,
    &random::OVERWRITE,
    &tree::TREE,
    &cold::COLD,
    &stream::STREAM,
    &random::RANDOM_READ,
    &mixed::MIXED,
    &andrew::ANDREW,
    &connectathon::CONNECTATHON,
];

/// Timing of one phase.
#[derive(Clone, Debug)]
pub struct PhaseTiming {
    /// Phase.
    pub measure: &'static Measure,
    /// Client threads.
    pub threads: usize,
    /// Amount, in the measure's unit.
    pub count: f64,
    /// Elapsed time.
    pub seconds: f64,
    /// Processor time of this process.
    pub client_cpu_seconds: f64,
    /// Processor time of the server, if known.
    pub server_cpu_seconds: Option<f64>,
}

/// One run of a group on a target.
pub struct Lap<'a> {
    group: &'static WorkloadGroup,
    access: &'a dyn TargetAccess,
    name: &'a str,
    /// The open directory, initially empty.
    dir: BenchHandle,
    plan: &'a BenchPlan,
    threads: usize,
    seed: u64,
    stop: &'a AtomicBool,
    is_wanted: &'a dyn Fn(&str) -> bool,
    server_cpu: &'a dyn Fn() -> Option<f64>,
    timed: Vec<PhaseTiming>,
}

/// Parameters of a [`Lap`].
pub struct LapContext<'a> {
    /// Target.
    pub access: &'a dyn TargetAccess,
    /// Amounts.
    pub plan: &'a BenchPlan,
    /// Client threads, for threaded groups.
    pub threads: usize,
    /// Seed of random choices, common to all targets of a round.
    pub seed: u64,
    /// Set to stop the run.
    pub stop: &'a AtomicBool,
    /// Whether a measure is selected.
    pub is_wanted: &'a dyn Fn(&str) -> bool,
    /// Processor time of the server so far, in seconds.
    pub server_cpu: &'a dyn Fn() -> Option<f64>,
}

pub(crate) struct WorkloadThread<'a> {
    pub(crate) access: &'a dyn TargetAccess,
    pub(crate) index: usize,
    pub(crate) prng: Prng,
    stop: &'a AtomicBool,
}

impl WorkloadThread<'_> {
    /// Calls `each` with 0 to `count` - 1, until a stop.
    pub(crate) fn each(
        &mut self,
        count: u64,
        mut each: impl FnMut(u64, &mut Prng) -> io::Result<()>,
    ) -> io::Result<()> {
        for number in 0..count {
            self.go_on()?;
            each(number, &mut self.prng)?;
        }
        Ok(())
    }

    /// Fails after a stop.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        go_on(self.stop)
    }
}

/// Whether an error of a workload means that the run was stopped.
#[must_use]
pub fn is_stopped(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Interrupted
}

fn go_on(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "the run was told to stop"));
    }
    Ok(())
}

/// Runs `group` in a temporary directory `name` of the target.
pub fn run(
    group: &'static WorkloadGroup,
    name: &str,
    context: &LapContext<'_>,
) -> io::Result<Vec<PhaseTiming>> {
    let access = context.access;
    in_root(access, |root| access.make_dir(root, name))?;
    let done = run_in(group, name, context);
    let removed = in_root(access, |root| remove_all(access, root, name, 0));
    let timed = done?;
    removed?;
    Ok(timed)
}

fn in_root<T>(
    access: &dyn TargetAccess,
    work: impl FnOnce(&BenchHandle) -> io::Result<T>,
) -> io::Result<T> {
    let root = access.root()?;
    let done = work(&root);
    access.close(root);
    done
}

fn run_in(
    group: &'static WorkloadGroup,
    name: &str,
    context: &LapContext<'_>,
) -> io::Result<Vec<PhaseTiming>> {
    let LapContext { access, plan, threads, seed, stop, is_wanted, server_cpu } = *context;
    let dir = in_root(access, |root| access.open_dir(root, name))?;
    let timed = Vec::new();
    let mut lap =
        Lap { group, access, name, dir, plan, threads, seed, stop, is_wanted, server_cpu, timed };
    let done = (group.run)(&mut lap);
    access.close(lap.dir);
    done.map(|()| lap.timed)
}

pub(crate) fn remove_all(
    access: &dyn TargetAccess,
    at: &BenchHandle,
    name: &str,
    depth: usize,
) -> io::Result<()> {
    if depth > REMOVE_DEPTH_MAX {
        return Err(io::Error::other("a tree deeper than any that the bench makes"));
    }
    let dir = access.open_dir(at, name)?;
    let mut names = Vec::new();
    let listed = access.list(&dir, &mut |name, is_dir| names.push((name.to_owned(), is_dir)));
    let removed = listed.and_then(|()| {
        names.iter().try_for_each(|(name, is_dir)| match is_dir {
            true => remove_all(access, &dir, name, depth + 1),
            false => access.unlink(&dir, name),
        })
    });
    access.close(dir);
    removed?;
    access.remove_dir(at, name)
}

impl<'a> Lap<'a> {
    pub(crate) fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|name| (self.is_wanted)(name))
    }

    /// Whether `name` or a later measure of the group, which depends on it, is selected.
    pub(crate) fn wants_from(&self, name: &str) -> bool {
        let from = self.group.measures.iter().skip_while(|measure| measure.name != name);
        from.into_iter().any(|measure| (self.is_wanted)(measure.name))
    }

    /// Returns a worker for untimed preparation.
    pub(crate) fn preparer(&self) -> WorkloadThread<'a> {
        self.worker(usize::MAX)
    }

    fn worker(&self, index: usize) -> WorkloadThread<'a> {
        let seed = self.seed ^ to_u64(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        WorkloadThread { access: self.access, index, prng: Prng::from_seed(seed), stop: self.stop }
    }

    /// Closes the target, runs `work`, and reopens the target with empty caches.
    pub(crate) fn out_of_use(
        &mut self,
        offline: &dyn TargetReopener,
        work: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let (access, name) = (self.access, self.name);
        access.close(std::mem::replace(&mut self.dir, BenchHandle::Closed));
        offline.close()?;
        let done = work(self);
        offline.open()?;
        self.dir = in_root(access, |root| access.open_dir(root, name))?;
        done
    }

    /// Creates and opens a directory per thread.
    pub(crate) fn thread_dirs(&self) -> io::Result<Vec<BenchHandle>> {
        (0..self.threads)
            .map(|index| {
                let name = format!("client-{index}");
                self.access.make_dir(&self.dir, &name)?;
                self.access.open_dir(&self.dir, &name)
            })
            .collect()
    }

    pub(crate) fn close_all(&self, handles: Vec<BenchHandle>) {
        handles.into_iter().for_each(|handle| self.access.close(handle));
    }

    /// Divides `count` by the threads. At least 1.
    pub(crate) fn part_of(&self, count: u64) -> u64 {
        (count / to_u64(self.threads)).max(1)
    }

    /// Times `work` on each thread of the lap, with `count` units per thread.
    pub(crate) fn time(
        &mut self,
        name: &str,
        count: f64,
        work: impl Fn(&mut WorkloadThread<'_>) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        self.time_on(self.threads, name, count, work)
    }

    /// Times `work` on `threads` threads, with `count` units per thread.
    pub(crate) fn time_on(
        &mut self,
        threads: usize,
        name: &str,
        count: f64,
        work: impl Fn(&mut WorkloadThread<'_>) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        go_on(self.stop)?;
        let found = self.group.measures.iter().find(|measure| measure.name == name);
        let measure = found.ok_or_else(|| io::Error::other(format!("no measure {name}")))?;
        let server_before = (self.server_cpu)();
        let took = race(threads, |index| self.worker(index), &work)?;
        let server_after = (self.server_cpu)();
        if (self.is_wanted)(name) {
            let server = server_before.zip(server_after);
            self.timed.push(PhaseTiming {
                measure,
                threads,
                count: count * to_f64(to_u64(threads)),
                seconds: took.0,
                client_cpu_seconds: took.1,
                server_cpu_seconds: server.map(|(before, after)| (after - before).max(0.0)),
            });
        }
        Ok(())
    }
}

/// Runs `work` on threads that start together. Returns elapsed and processor seconds.
fn race<'a>(
    threads: usize,
    worker: impl Fn(usize) -> WorkloadThread<'a>,
    work: &(impl Fn(&mut WorkloadThread<'_>) -> io::Result<()> + Sync),
) -> io::Result<(f64, f64)> {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for index in 0..threads {
            let mut worker = worker(index);
            let barrier = &barrier;
            clients.push(scope.spawn(move || {
                barrier.wait();
                work(&mut worker)
            }));
        }
        let (start, cpu_before) = (Instant::now(), process_cpu_seconds());
        barrier.wait();
        let mut done = Ok(());
        for client in clients {
            let ended = client.join().map_err(|_| io::Error::other("a client panicked"));
            done = done.and(ended.and_then(|ended| ended));
        }
        let took = (start.elapsed().as_secs_f64(), process_cpu_seconds() - cpu_before);
        done.map(|()| took)
    })
}

fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    to_f64(seconds) + to_f64(u64::try_from(time.tv_nsec).unwrap_or(0)) / 1e9
}

/// Returns names created in advance, outside of the timed phase.
pub(crate) fn file_names(prefix: &str, count: u64) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number:07}")).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::access::KernelAccess;

    #[test]
    fn names_of_measures_are_unique_and_each_has_a_text() {
        let mut seen = BTreeSet::new();
        for measure in GROUPS.iter().flat_map(|group| group.measures) {
            assert!(seen.insert(measure.name), "{} twice", measure.name);
            assert!(measure.what.len() > 10, "{}", measure.name);
        }
    }

    /// A target whose closing has no effect.
    #[derive(Debug)]
    struct NoopReopener;

    impl TargetReopener for NoopReopener {
        fn close(&self) -> io::Result<()> {
            Ok(())
        }

        fn has_checker(&self) -> bool {
            true
        }

        fn check(&self) -> io::Result<()> {
            Ok(())
        }

        fn open(&self) -> io::Result<()> {
            Ok(())
        }
    }

    fn run_all(
        stop: &AtomicBool,
        is_wanted: &dyn Fn(&str) -> bool,
    ) -> io::Result<Vec<PhaseTiming>> {
        let name = format!("bench-laps-{:?}", std::thread::current().id());
        let place = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place)?;
        let context = LapContext {
            access: &KernelAccess::new(&place, Some(Arc::new(NoopReopener)))?,
            plan: &BenchPlan::new(crate::plan::SCALE_MIN),
            threads: 2,
            seed: 1,
            stop,
            is_wanted,
            server_cpu: &|| Some(0.0),
        };
        let laps = GROUPS.iter().map(|group| run(group, group.name, &context));
        let laps: io::Result<Vec<_>> = laps.collect();
        // Fails unless the directory is empty.
        std::fs::remove_dir(&place)?;
        Ok(laps?.concat())
    }

    /// Goal: every selected measure is timed once, and all files are removed.
    #[test]
    fn every_measure_is_timed_once_and_nothing_is_left() {
        let timed = run_all(&AtomicBool::new(false), &|_| true).expect("a directory can be used");
        let names: Vec<&str> = timed.iter().map(|timed| timed.measure.name).collect();
        let all: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.measures).map(|measure| measure.name).collect();
        assert_eq!(names, all);
        for timed in &timed {
            assert!(timed.count >= 1.0 && timed.seconds > 0.0, "{timed:?}");
        }
    }

    /// Goal: a measure selected alone is prepared and timed alone.
    #[test]
    fn a_measure_alone_is_prepared_and_timed_alone() {
        let go = AtomicBool::new(false);
        for wanted in ["unlink", "tree-remove", "stream-read-direct", "andrew-make"] {
            let timed = run_all(&go, &|name| name == wanted).expect("a directory can be used");
            let names: Vec<&str> = timed.iter().map(|timed| timed.measure.name).collect();
            assert_eq!(names, [wanted]);
        }
    }

    #[test]
    fn a_run_that_is_told_to_stop_removes_what_it_made() {
        let stopped = run_all(&AtomicBool::new(true), &|_| true);
        assert!(is_stopped(&stopped.expect_err("it stops")));
    }
}
