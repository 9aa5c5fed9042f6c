//! Every crash point of a workload, and every image of it that is tried.

use std::collections::BTreeSet;
use std::sync::Arc;

use storage::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions, Strategy};
use storage::prng::Prng;

use super::run::{Run, new_pool, open, run};
use super::workload::Workload;
use super::{Found, fnv1a};
use crate::crash::{History, judge};

/// Explores workloads, and remembers what was judged.
pub(super) struct Explorer {
    base: Image,
    /// What a new pool holds, durable.
    empty: History,
    strategy: Strategy,
    /// Image and history of each state that was judged; asked, never walked.
    judged: BTreeSet<u64>,
    images: BTreeSet<u64>,
    pub(super) report: super::Report,
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
            report: super::Report::default(),
        })
    }

    /// Runs a workload and judges what every power cut may leave of it.
    pub(super) fn explore(&mut self, workload: &Workload) -> Result<(), Found> {
        self.report.workloads += 1;
        let whole = |message| Found { position: 0, image: 0, message };
        let done = run(&self.base, workload).map_err(whole)?;
        self.report.incomplete += u64::from(!done.unsupported.is_empty());
        for &what in &done.unsupported {
            *self.report.unsupported.entry(what).or_insert(0) += 1;
        }
        let recording = done.device.recording();
        let mut last_known = usize::MAX;
        let mut history = self.empty.again();
        let mut history_hash = 0;
        for point in recording.points() {
            self.report.points += 1;
            let known = known_at(&done, point.position());
            if known != last_known {
                history = self.history_at(&done, point.position());
                let words: String = history.events().iter().map(ToString::to_string).collect();
                history_hash = fnv1a(words.into_bytes());
                last_known = known;
            }
            for (number, image) in point.images(&self.strategy).enumerate() {
                self.report.states += 1;
                let found = self.judge_once(&image.image, &history, history_hash, true);
                found.map_err(|message| Found {
                    position: point.position(),
                    image: number,
                    message: format!("{message} (survived: {:?})", image.survived),
                })?;
            }
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
        history: &History,
        history_hash: u64,
        is_first_cut: bool,
    ) -> Result<(), String> {
        let hash = image.content_hash();
        if !self.judged.insert(hash ^ history_hash.rotate_left(32)) {
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
        judge(history, &pool).map_err(|findings| {
            let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
            lines.join("\n")
        })?;
        drop(pool);
        let shared: SharedDevice = device;
        let report = check::run(shared, check::Options::default(), &mut |_| ());
        if !report.is_clean() {
            return Err(report.to_text());
        }
        let Some(recovery) = recovered else { return Ok(()) };
        // One more cut, somewhere in that recovery.
        let mut prng = Prng::from_seed(hash ^ self.strategy.seed);
        let points: Vec<_> = recovery.points().collect();
        let nth = prng.below(crate::number::u64_of(points.len()));
        let strategy = Strategy { seed: prng.next_u64(), ..self.strategy };
        let point = &points[crate::number::usize_of(nth)];
        let skipped = crate::number::usize_of(prng.below(8));
        let Some(second) = point.images(&strategy).take(skipped + 1).last() else { return Ok(()) };
        self.report.second_states += 1;
        self.judge_once(&second.image, history, history_hash, false)
            .map_err(|message| format!("after a second cut in the recovery: {message}"))
    }
}

/// How many operations had begun and how many had ended: with these the history changes.
fn known_at(done: &Run, position: usize) -> usize {
    let begun = done.recorded.iter().filter(|entry| entry.began < position).count();
    let has_ended = |entry: &&super::run::Recorded| {
        entry.ended.as_ref().is_some_and(|(ended, _)| *ended <= position)
    };
    begun * 1000 + done.recorded.iter().filter(has_ended).count()
}
