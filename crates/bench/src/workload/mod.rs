//! What is done, and how it is timed.
//!
//! A [`Group`] is a few phases that follow from each other: files are made, looked at, renamed and
//! removed. It runs as a whole in a directory of its own, on one target, once a round; each phase
//! that is timed is a *measure* of the run.

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

use crate::access::{Access, Handle, Offline};
use crate::number::{to_f64, to_u64};
use crate::plan::Plan;

/// Deepest directory that is removed: what a generated tree has, and some.
const REMOVE_DEPTH_MAX: usize = 64;

/// What a measure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Operations.
    Operations,
    /// Files.
    Files,
    /// Mebibytes.
    Mebibytes,
}

impl Unit {
    /// Returns how a rate in this unit is written.
    #[must_use]
    pub fn rate(self) -> &'static str {
        match self {
            Unit::Operations => "op/s",
            Unit::Files => "files/s",
            Unit::Mebibytes => "MiB/s",
        }
    }
}

/// One timed phase.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Its name, unique among all groups.
    pub name: &'static str,
    /// What is done, in a few words.
    pub what: &'static str,
    /// What is counted.
    pub unit: Unit,
}

/// Phases that run together.
#[derive(Clone, Copy)]
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// What is timed, in order.
    pub measures: &'static [Measure],
    /// Whether it runs once for each number of client threads; else with those it has.
    pub is_threaded: bool,
    /// Most bytes that it has in files at a time.
    pub bytes: fn(&Plan) -> u64,
    run: fn(&mut Lap<'_>) -> io::Result<()>,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group({})", self.name)
    }
}

/// Everything that can be run, in the order in which it is.
pub const GROUPS: [&Group; 12] = [
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

/// What one phase took.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Which phase.
    pub measure: &'static Measure,
    /// Client threads.
    pub threads: usize,
    /// What was done, in the measure's unit.
    pub count: f64,
    /// How long it took.
    pub seconds: f64,
    /// Processor time of this process.
    pub client_cpu_seconds: f64,
    /// Processor time of the server; `None`: none is known.
    pub server_cpu_seconds: Option<f64>,
}

/// Where a group runs, how much it does, and what its phases took.
pub struct Lap<'a> {
    group: &'static Group,
    access: &'a dyn Access,
    /// Its directory's name.
    name: &'a str,
    /// An empty directory.
    dir: Handle,
    plan: &'a Plan,
    threads: usize,
    seed: u64,
    stop: &'a AtomicBool,
    is_wanted: &'a dyn Fn(&str) -> bool,
    server_cpu: &'a dyn Fn() -> Option<f64>,
    timed: Vec<Timed>,
}

/// What a [`Lap`] needs to know.
pub struct LapContext<'a> {
    /// The target.
    pub access: &'a dyn Access,
    /// How much is done.
    pub plan: &'a Plan,
    /// Client threads, for groups that are threaded.
    pub threads: usize,
    /// What random choices follow from: the same for all targets of a round.
    pub seed: u64,
    /// Says when to stop.
    pub stop: &'a AtomicBool,
    /// Which measures are wanted.
    pub is_wanted: &'a dyn Fn(&str) -> bool,
    /// Processor time of the server so far, in seconds.
    pub server_cpu: &'a dyn Fn() -> Option<f64>,
}

/// One client thread of a phase.
pub(crate) struct Worker<'a> {
    pub(crate) access: &'a dyn Access,
    /// From 0.
    pub(crate) index: usize,
    pub(crate) prng: Prng,
    stop: &'a AtomicBool,
}

impl Worker<'_> {
    /// Calls `each` with 0 to `count` - 1, unless the run is to stop.
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

    /// Fails if the run is to stop.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        go_on(self.stop)
    }
}

/// Says that a run was told to stop: the error that workloads then end with.
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

/// Runs `group` in a new directory `name` of the target and removes it again, whatever happens.
pub fn run(group: &'static Group, name: &str, context: &LapContext<'_>) -> io::Result<Vec<Timed>> {
    let access = context.access;
    in_root(access, |root| access.make_dir(root, name))?;
    let done = run_in(group, name, context);
    let removed = in_root(access, |root| remove_all(access, root, name, 0));
    let timed = done?;
    removed?;
    Ok(timed)
}

fn in_root<T>(access: &dyn Access, work: impl FnOnce(&Handle) -> io::Result<T>) -> io::Result<T> {
    let root = access.root()?;
    let done = work(&root);
    access.close(root);
    done
}

fn run_in(group: &'static Group, name: &str, context: &LapContext<'_>) -> io::Result<Vec<Timed>> {
    let LapContext { access, plan, threads, seed, stop, is_wanted, server_cpu } = *context;
    let dir = in_root(access, |root| access.open_dir(root, name))?;
    let timed = Vec::new();
    let mut lap =
        Lap { group, access, name, dir, plan, threads, seed, stop, is_wanted, server_cpu, timed };
    let done = (group.run)(&mut lap);
    access.close(lap.dir);
    done.map(|()| lap.timed)
}

/// Removes what `name` stands for, with all below it.
pub(crate) fn remove_all(
    access: &dyn Access,
    at: &Handle,
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
    /// Whether any of these measures is asked for.
    pub(crate) fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|name| (self.is_wanted)(name))
    }

    /// Whether a measure after `name` in the group is asked for, or `name` itself: so that the last
    /// phases are left out where nobody asks, and the first are done for those behind.
    pub(crate) fn wants_from(&self, name: &str) -> bool {
        let from = self.group.measures.iter().skip_while(|measure| measure.name != name);
        from.into_iter().any(|measure| (self.is_wanted)(measure.name))
    }

    /// Returns the worker that prepares what is not timed.
    pub(crate) fn preparer(&self) -> Worker<'a> {
        self.worker(usize::MAX)
    }

    fn worker(&self, index: usize) -> Worker<'a> {
        let seed = self.seed ^ to_u64(index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Worker { access: self.access, index, prng: Prng::from_seed(seed), stop: self.stop }
    }

    /// Takes the target out of use, calls `work`, and takes it into use again, with nothing of it
    /// in a cache. Whether the target can be is to be asked first.
    pub(crate) fn out_of_use(
        &mut self,
        offline: &dyn Offline,
        work: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        let (access, name) = (self.access, self.name);
        access.close(std::mem::replace(&mut self.dir, Handle::Closed));
        offline.close()?;
        let done = work(self);
        offline.open()?;
        self.dir = in_root(access, |root| access.open_dir(root, name))?;
        done
    }

    /// Makes and opens a directory for each thread.
    pub(crate) fn thread_dirs(&self) -> io::Result<Vec<Handle>> {
        (0..self.threads)
            .map(|index| {
                let name = format!("client-{index}");
                self.access.make_dir(&self.dir, &name)?;
                self.access.open_dir(&self.dir, &name)
            })
            .collect()
    }

    /// Closes what [`Lap::thread_dirs`] opened.
    pub(crate) fn close_all(&self, handles: Vec<Handle>) {
        handles.into_iter().for_each(|handle| self.access.close(handle));
    }

    /// Returns each thread's part of `count`, at least 1.
    pub(crate) fn part_of(&self, count: u64) -> u64 {
        (count / to_u64(self.threads)).max(1)
    }

    /// Times `work` on as many threads as the lap has; each is to do `count` of the unit.
    pub(crate) fn time(
        &mut self,
        name: &str,
        count: f64,
        work: impl Fn(&mut Worker<'_>) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        self.time_on(self.threads, name, count, work)
    }

    /// As [`Lap::time`], on `threads` threads.
    pub(crate) fn time_on(
        &mut self,
        threads: usize,
        name: &str,
        count: f64,
        work: impl Fn(&mut Worker<'_>) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        go_on(self.stop)?;
        let found = self.group.measures.iter().find(|measure| measure.name == name);
        let measure = found.ok_or_else(|| io::Error::other(format!("no measure {name}")))?;
        let server_before = (self.server_cpu)();
        let took = race(threads, |index| self.worker(index), &work)?;
        let server_after = (self.server_cpu)();
        if (self.is_wanted)(name) {
            let server = server_before.zip(server_after);
            self.timed.push(Timed {
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

/// Runs `work` on `threads` threads that start together; returns seconds and seconds of processor.
fn race<'a>(
    threads: usize,
    worker: impl Fn(usize) -> Worker<'a>,
    work: &(impl Fn(&mut Worker<'_>) -> io::Result<()> + Sync),
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

/// Returns the processor time of this process so far.
fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    to_f64(seconds) + to_f64(u64::try_from(time.tv_nsec).unwrap_or(0)) / 1e9
}

/// Returns names that do not cost a phase their making.
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

    /// A target that stays where it is.
    #[derive(Debug)]
    struct Nothing;

    impl Offline for Nothing {
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

    fn run_all(stop: &AtomicBool, is_wanted: &dyn Fn(&str) -> bool) -> io::Result<Vec<Timed>> {
        let name = format!("bench-laps-{:?}", std::thread::current().id());
        let place = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir(&place)?;
        let context = LapContext {
            access: &KernelAccess::new(&place, Some(Arc::new(Nothing)))?,
            plan: &Plan::new(crate::plan::SCALE_MIN),
            threads: 2,
            seed: 1,
            stop,
            is_wanted,
            server_cpu: &|| Some(0.0),
        };
        let laps = GROUPS.iter().map(|group| run(group, group.name, &context));
        let laps: io::Result<Vec<_>> = laps.collect();
        // Nothing is left, or this fails.
        std::fs::remove_dir(&place)?;
        Ok(laps?.concat())
    }

    /// Goal: every measure that is asked for is timed once, and all that was made is removed.
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

    /// Goal: one measure alone gives the same count, whatever has to be done before it.
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
