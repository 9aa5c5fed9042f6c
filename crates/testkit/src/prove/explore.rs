//! Every crash point of a workload, or every failure, and every image of it that is tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{CrashPoint, Image, Recording, SimDevice, SimOptions, Strategy};

use super::failure::{Failure, Target};
use super::run::{Run, SnapshotTaken, new_pool, open, open_snapshot, run, run_failing};
use super::workload::Workload;
use super::{Found, fnv1a};
use crate::canon::{Times, differences, walk};
use crate::crash::{History, Judge};

/// No workload makes more requests of one kind, or needs space more often.
const FAILURES_MAX: u64 = 10_000;

/// Explores workloads, and remembers what was judged.
pub(super) struct Explorer {
    base: Image,
    /// What a new pool holds, durable.
    empty: History,
    strategy: Strategy,
    /// Image and history of each state that was judged; asked, never walked.
    judged: BTreeSet<u64>,
    images: BTreeSet<u64>,
    /// Recovered images that were checked.
    checked: BTreeSet<u64>,
    pub(super) report: super::Report,
}

/// What was known of the history at some crash points.
struct Known<'a> {
    judge: Judge<'a>,
    /// Snapshots that must be there.
    snapshots: Vec<&'a SnapshotTaken>,
    hash: u64,
}

impl<'a> Known<'a> {
    fn new(history: &'a History, snapshots: Vec<&'a SnapshotTaken>) -> Known<'a> {
        let mut words: String = history.events().iter().map(ToString::to_string).collect();
        words.extend(snapshots.iter().map(|snapshot| snapshot.name.as_str()));
        Known { judge: Judge::new(history), snapshots, hash: fnv1a(words.into_bytes()) }
    }

    /// Holds each snapshot against what it was when it was taken.
    fn judge_snapshots(&self, device: &Arc<SimDevice>) -> Result<(), String> {
        for snapshot in &self.snapshots {
            let of_snapshot = |what: String| format!("the snapshot {}: {what}", snapshot.name);
            let pool = open_snapshot(device, &snapshot.name).map_err(of_snapshot)?;
            let found =
                walk(&pool, Times::Ignored).map_err(|error| of_snapshot(error.to_string()))?;
            if let Some(first) = differences(&snapshot.tree, &found).first() {
                return Err(of_snapshot(format!("{first:?}")));
            }
        }
        Ok(())
    }
}

impl Explorer {
    pub(super) fn new(strategy: Strategy) -> Result<Explorer, String> {
        let base = new_pool();
        let device = SimDevice::open(base.clone(), SimOptions::default());
        let pool = open(&device, Arc::new(ManualClock::new()))?;
        let empty = History::after(&pool).map_err(|error| error.to_string())?;
        Ok(Explorer {
            base,
            empty,
            strategy,
            judged: BTreeSet::new(),
            images: BTreeSet::new(),
            checked: BTreeSet::new(),
            report: super::Report::default(),
        })
    }

    /// Runs a workload and judges what every power cut may leave of it.
    pub(super) fn explore(&mut self, workload: &Workload) -> Result<(), Found> {
        self.report.workloads += 1;
        let whole = |message| Found { position: 0, image: 0, message };
        let done = run(&self.base, workload).map_err(whole)?;
        self.note_unsupported(&done);
        let points: Vec<CrashPoint> = done.device.recording().points().collect();
        let knows_the_same = |a: &CrashPoint, b: &CrashPoint| {
            known_at(&done, a.position()) == known_at(&done, b.position())
        };
        for points in points.chunk_by(knows_the_same) {
            let history = self.history_at(&done, points[0].position());
            let known = Known::new(&history, snapshots_at(&done, points[0].position()));
            points.iter().try_for_each(|point| self.explore_point(point, &known))?;
        }
        Ok(())
    }

    /// Runs a workload with each of its requests and needs of space failing in turn, once and from
    /// then on, and judges what that leaves.
    pub(super) fn fail_each(&mut self, workload: &Workload) -> Result<(), Found> {
        self.report.workloads += 1;
        let whole = |message| Found { position: 0, image: 0, message };
        let done = run(&self.base, workload).map_err(whole)?;
        self.note_unsupported(&done);
        for target in Target::ALL {
            for persists in [false, true] {
                for nth in 0.. {
                    // Another for each: the same write is the first of many workloads.
                    let seed = self.strategy.seed ^ self.report.failures;
                    if !self.fail(workload, Failure { target, nth, persists, seed })? {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether there was something to fail.
    fn fail(&mut self, workload: &Workload, failure: Failure) -> Result<bool, Found> {
        let found = |image, message| {
            let message = format!("{failure}: {message}");
            Found { position: crate::number::usize_of(failure.nth), image, message }
        };
        let done = run_failing(&self.base, workload, failure);
        let done = done.map_err(|message| found(0, message))?;
        if !done.has_failed {
            return Ok(false);
        }
        if failure.nth == FAILURES_MAX {
            return Err(found(0, "the workload never succeeds".to_owned()));
        }
        self.report.failures += 1;
        let history = self.history_at(&done, usize::MAX);
        let known = Known::new(&history, snapshots_at(&done, usize::MAX));
        let mut prng = Prng::from_seed(failure.seed);
        let device = &done.device;
        let images = [device.image(), device.durable_image(), device.crash_image(&mut prng)];
        for (number, image) in images.iter().enumerate() {
            self.report.states += 1;
            self.judge_once(image, &known, true).map_err(|message| found(number, message))?;
        }
        Ok(true)
    }

    fn note_unsupported(&mut self, done: &Run) {
        self.report.incomplete += u64::from(!done.unsupported.is_empty());
        for &what in &done.unsupported {
            *self.report.unsupported.entry(what).or_insert(0) += 1;
        }
    }

    fn explore_point(&mut self, point: &CrashPoint, known: &Known<'_>) -> Result<(), Found> {
        self.report.points += 1;
        for (number, image) in point.images(&self.strategy).enumerate() {
            self.report.states += 1;
            self.judge_once(&image.image, known, true).map_err(|message| Found {
                position: point.position(),
                image: number,
                message: format!("{message} (survived: {:?})", image.survived),
            })?;
        }
        Ok(())
    }

    /// Returns the history as it was known when the recording stood at `position`.
    fn history_at(&self, done: &Run, position: usize) -> History {
        let mut history = self.empty.again();
        for entry in done.recorded.iter().filter(|entry| entry.began < position) {
            let number = history.begin(0, entry.step.clone());
            if let Some((ended, applied)) = &entry.ended
                && *ended <= position
            {
                history.end(number, applied);
            }
        }
        history
    }

    /// Judges a state unless the same bytes were judged with the same history.
    fn judge_once(
        &mut self,
        image: &Image,
        known: &Known<'_>,
        is_first_cut: bool,
    ) -> Result<(), String> {
        let hash = image.content_hash();
        if !self.judged.insert(hash ^ known.hash.rotate_left(32)) {
            return Ok(());
        }
        self.images.insert(hash);
        self.report.judged += 1;
        self.report.images = crate::number::u64_of(self.images.len());
        let options = SimOptions { is_recorded: is_first_cut, ..SimOptions::default() };
        let device = SimDevice::open(image.clone(), options);
        let pool = open(&device, Arc::new(ManualClock::new()))
            .map_err(|error| format!("does not open: {error}"))?;
        let recovered = is_first_cut.then(|| device.recording());
        known.judge.judge(&pool).map_err(|findings| {
            let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
        drop(pool);
        known.judge_snapshots(&device)?;
        self.check_once(device)?;
        let Some(recovery) = recovered else { return Ok(()) };
        self.cut_again(&recovery, known, Prng::from_seed(hash ^ self.strategy.seed))
    }

    /// Judges what one more cut, somewhere in a recovery, leaves.
    fn cut_again(
        &mut self,
        recovery: &Recording,
        known: &Known<'_>,
        mut prng: Prng,
    ) -> Result<(), String> {
        let points: Vec<CrashPoint> = recovery.points().collect();
        let nth = prng.below(crate::number::u64_of(points.len()));
        let second = points[crate::number::usize_of(nth)].image(&mut prng);
        self.report.second_states += 1;
        self.judge_once(&second.image, known, false)
            .map_err(|message| format!("after a second cut in the recovery: {message}"))
    }

    /// Checks a recovered pool unless the same bytes were checked.
    fn check_once(&mut self, device: Arc<SimDevice>) -> Result<(), String> {
        if !self.checked.insert(device.image().content_hash()) {
            return Ok(());
        }
        self.report.checked += 1;
        let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
        if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
    }
}

/// Returns the snapshots that must be there after a cut at `position`.
fn snapshots_at(done: &Run, position: usize) -> Vec<&SnapshotTaken> {
    done.snapshots.iter().filter(|snapshot| snapshot.is_at(position)).collect()
}

/// How many operations had begun, how many had ended, and which snapshots must be there: with these
/// what is known changes.
fn known_at(done: &Run, position: usize) -> (usize, usize, Vec<&str>) {
    let begun = done.recorded.iter().filter(|entry| entry.began < position).count();
    let has_ended = |entry: &&super::run::Recorded| {
        entry.ended.as_ref().is_some_and(|(ended, _)| *ended <= position)
    };
    let snapshots = snapshots_at(done, position).into_iter().map(|snapshot| snapshot.name.as_str());
    (begun, done.recorded.iter().filter(has_ended).count(), snapshots.collect())
}
