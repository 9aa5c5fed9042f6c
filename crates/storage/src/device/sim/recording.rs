//! A recording of writes and flushes, and every state that a power cut could leave.
//!
//! [`Recording::points`] visits the moments of a run that differ in the possible states, and
//! [`CrashPoint::images`] the states at one moment: all of them if few writes are unflushed, else a
//! selection by seed.
//!
//! # Crashes
//!
//! The images at one point, for `n` unflushed writes:
//!
//! 1. up to [`Strategy::exhaustive_writes_max`], every subset;
//! 2. beyond, every prefix, each one lost, each one alone, pairs lost, and random subsets;
//! 3. each of these again with torn writes (sectors of a write survive independently).
//!
//! Duplicate images at one point are omitted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::image::Image;
use super::volatile::{RecordedWrite, WriteSurvival};
use crate::convert::{to_u64, to_usize};
use runtime::prng::Prng;

/// Pairs of lost writes tried per point.
const PAIRS_MAX: usize = 64;

/// An event that changes the possible states after a power cut.
#[derive(Clone, Debug)]
pub enum RecordedEvent {
    /// A write began. Ids count from 0.
    Submitted(Arc<RecordedWrite>),
    /// A write completed.
    Answered(u64),
    /// A flush of these writes completed.
    Flushed(Vec<u64>),
    /// Bits on the medium flipped.
    Rotted {
        /// Offset of the byte.
        offset: u64,
        /// Flipped bits.
        mask: u8,
    },
}

impl RecordedEvent {
    /// Whether the possible images before and after the event differ.
    fn changes_images(&self) -> bool {
        match self {
            RecordedEvent::Submitted(_) | RecordedEvent::Rotted { .. } => true,
            RecordedEvent::Flushed(covered) => !covered.is_empty(),
            RecordedEvent::Answered(_) => false,
        }
    }
}

/// Event counter that orders the recordings of several devices.
#[derive(Clone, Debug, Default)]
pub struct Timeline(Arc<AtomicU64>);

impl Timeline {
    /// Returns the number of events on all devices.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// The events on a device since its opening.
#[derive(Clone, Debug)]
pub struct Recording {
    base: Image,
    events: Vec<RecordedEvent>,
    times: Vec<u64>,
    timeline: Timeline,
    sector_bytes: u64,
}

impl Recording {
    pub(super) fn new(base: Image, sector_bytes: u64, timeline: Timeline) -> Recording {
        Recording { base, events: Vec::new(), times: Vec::new(), timeline, sector_bytes }
    }

    pub(super) fn push(&mut self, event: RecordedEvent) {
        self.times.push(self.timeline.next());
        self.events.push(event);
    }

    /// Returns the crash point just before `time` on the timeline.
    #[must_use]
    pub fn point_at(&self, time: u64) -> CrashPoint {
        let count = self.times.partition_point(|&at| at < time);
        let mut points = self.points();
        for event in &self.events[..count] {
            points.apply(event);
        }
        CrashPoint {
            position: count,
            durable: points.durable,
            unflushed: points.cached.into_iter().collect(),
            sector_bytes: self.sector_bytes,
        }
    }

    /// Returns the number of events, which is the position of a crash point at this moment.
    ///
    /// A write acknowledged at position `p` must be in all images of points from `p` on.
    #[must_use]
    pub fn position(&self) -> usize {
        self.events.len()
    }

    /// Returns the events.
    #[must_use]
    pub fn events(&self) -> &[RecordedEvent] {
        &self.events
    }

    /// Returns the crash points in order. Of moments with equal images only the last is included,
    /// as it has the most acknowledged writes.
    #[must_use]
    pub fn points(&self) -> Points<'_> {
        let (durable, cached) = (self.base.clone(), BTreeMap::new());
        Points { recording: self, position: 0, writes_begun: 0, durable, cached, is_done: false }
    }
}

/// Iterator over the crash points of a [`Recording`].
#[derive(Debug)]
pub struct Points<'a> {
    recording: &'a Recording,
    position: usize,
    writes_begun: u64,
    durable: Image,
    cached: BTreeMap<u64, Arc<RecordedWrite>>,
    is_done: bool,
}

impl Points<'_> {
    fn apply(&mut self, event: &RecordedEvent) {
        match event {
            RecordedEvent::Submitted(write) => {
                self.cached.insert(self.writes_begun, Arc::clone(write));
                self.writes_begun += 1;
            }
            RecordedEvent::Answered(_) => {}
            RecordedEvent::Flushed(covered) => {
                for id in covered {
                    if let Some(write) = self.cached.remove(id) {
                        let sector_bytes = self.recording.sector_bytes;
                        write.apply(&mut self.durable, WriteSurvival::All, sector_bytes);
                    }
                }
            }
            RecordedEvent::Rotted { offset, mask } => self.durable.flip(*offset, *mask),
        }
    }
}

impl Iterator for Points<'_> {
    type Item = CrashPoint;

    fn next(&mut self) -> Option<CrashPoint> {
        if self.is_done {
            return None;
        }
        let events = &self.recording.events;
        while let Some(event) = events.get(self.position)
            && !event.changes_images()
        {
            self.position += 1;
        }
        let point = CrashPoint {
            position: self.position,
            durable: self.durable.clone(),
            unflushed: self.cached.iter().map(|(&id, w)| (id, Arc::clone(w))).collect(),
            sector_bytes: self.recording.sector_bytes,
        };
        match events.get(self.position) {
            Some(event) => {
                self.apply(event);
                self.position += 1;
            }
            None => self.is_done = true,
        }
        Some(point)
    }
}

/// Selection of the images at a point.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    /// Unflushed writes up to which all subsets are tried.
    pub exhaustive_writes_max: usize,
    /// Random subsets beyond that.
    pub random_subsets: usize,
    /// Torn variants per subset.
    pub torn_variants: usize,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy { exhaustive_writes_max: 10, random_subsets: 32, torn_variants: 1, seed: 0 }
    }
}

/// A moment of a possible power cut.
#[derive(Clone, Debug)]
pub struct CrashPoint {
    position: usize,
    durable: Image,
    unflushed: Vec<(u64, Arc<RecordedWrite>)>,
    sector_bytes: u64,
}

/// Contents after a power cut.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// Contents, for [`super::SimDevice::open`].
    pub image: Image,
    /// Ids of the surviving unflushed writes, and the extent of survival, for reports.
    pub survived: Vec<(u64, WriteSurvival)>,
}

impl CrashPoint {
    /// Returns the number of events before this point.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the contents without any unflushed write.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Returns the number of unflushed writes.
    #[must_use]
    pub fn unflushed_count(&self) -> usize {
        self.unflushed.len()
    }

    /// Returns the distinct images, in an order fixed by the strategy, so that an index identifies
    /// one.
    #[must_use]
    pub fn images(&self, strategy: &Strategy) -> Images<'_> {
        let mut prng = Prng::from_seed(strategy.seed ^ to_u64(self.position).rotate_left(32));
        let count = self.unflushed.len();
        let exhaustive_max = strategy.exhaustive_writes_max.min(EXHAUSTIVE_WRITES_LIMIT);
        let subsets = if count <= exhaustive_max {
            Subsets::Every { count, next: 0 }
        } else {
            let list = selected_subsets(count, strategy.random_subsets, &mut prng);
            Subsets::Selected(list.into_iter())
        };
        Images {
            point: self,
            subsets,
            torn_variants: strategy.torn_variants,
            waiting: Vec::new(),
            prng,
            seen: BTreeSet::new(),
        }
    }

    /// Returns one random image, without enumerating all.
    #[must_use]
    pub fn image(&self, prng: &mut Prng) -> CrashImage {
        let count = self.unflushed.len();
        let mut keeps = match prng.below(4) {
            0 => {
                let end = to_usize(prng.below(to_u64(count) + 1));
                (0..count).map(|nth| kept_if(nth < end)).collect()
            }
            1 if count > 0 => {
                let lost = to_usize(prng.below(to_u64(count)));
                (0..count).map(|nth| kept_if(nth != lost)).collect()
            }
            _ => (0..count).map(|_| kept_if(prng.one_in(2))).collect::<Vec<_>>(),
        };
        if prng.one_in(2) {
            self.tear(&mut keeps, prng);
        }
        self.crash_image(keeps)
    }

    fn crash_image(&self, keeps: Vec<WriteSurvival>) -> CrashImage {
        let mut image = self.durable.clone();
        for ((_, write), &keep) in self.unflushed.iter().zip(&keeps) {
            write.apply(&mut image, keep, self.sector_bytes);
        }
        let ids = self.unflushed.iter().map(|&(id, _)| id);
        let survived = ids.zip(keeps).filter(|&(_, keep)| keep != WriteSurvival::Nothing).collect();
        CrashImage { image, survived }
    }

    /// Tears one to three writes, kept or lost.
    fn tear(&self, keeps: &mut [WriteSurvival], prng: &mut Prng) {
        let sectors_of = |write: &RecordedWrite| write.length_bytes() / self.sector_bytes;
        let is_long = |nth: &usize| sectors_of(&self.unflushed[*nth].1) > 1;
        let long: Vec<usize> = (0..keeps.len()).filter(is_long).collect();
        if long.is_empty() {
            return;
        }
        for _ in 0..=prng.below(3) {
            let nth = long[to_usize(prng.below(to_u64(long.len())))];
            keeps[nth] = WriteSurvival::torn(prng, sectors_of(&self.unflushed[nth].1));
        }
    }
}

/// More writes are never tried exhaustively: 2^16 subsets of one point exceed any time budget.
const EXHAUSTIVE_WRITES_LIMIT: usize = 16;

#[derive(Debug)]
enum Subsets {
    Every { count: usize, next: u32 },
    Selected(std::vec::IntoIter<Vec<WriteSurvival>>),
}

impl Iterator for Subsets {
    type Item = Vec<WriteSurvival>;

    fn next(&mut self) -> Option<Vec<WriteSurvival>> {
        match self {
            Subsets::Every { count, next } => {
                if *next >= 1 << *count {
                    return None;
                }
                let bits = *next;
                *next += 1;
                Some((0..*count).map(|nth| kept_if(bits >> nth & 1 == 1)).collect())
            }
            Subsets::Selected(list) => list.next(),
        }
    }
}

fn kept_if(survives: bool) -> WriteSurvival {
    if survives { WriteSurvival::All } else { WriteSurvival::Nothing }
}

fn selected_subsets(count: usize, random_count: usize, prng: &mut Prng) -> Vec<Vec<WriteSurvival>> {
    let subset = |survives: &dyn Fn(usize) -> bool| -> Vec<WriteSurvival> {
        (0..count).map(|nth| kept_if(survives(nth))).collect()
    };
    let mut subsets = Vec::new();
    subsets.extend((0..=count).map(|end| subset(&|nth| nth < end)));
    subsets.extend((0..count).map(|lost| subset(&|nth| nth != lost)));
    subsets.extend((0..count).map(|alone| subset(&|nth| nth == alone)));
    for _ in 0..PAIRS_MAX.min(count * (count - 1) / 2) {
        let first = to_usize(prng.below(to_u64(count)));
        let second = to_usize(prng.below(to_u64(count)));
        subsets.push(subset(&|nth| nth != first && nth != second));
    }
    for _ in 0..random_count {
        let one_in = 2 + prng.below(3);
        subsets.push((0..count).map(|_| kept_if(prng.one_in(one_in))).collect());
    }
    subsets
}

/// Iterator over the images of a [`CrashPoint`].
#[derive(Debug)]
pub struct Images<'a> {
    point: &'a CrashPoint,
    subsets: Subsets,
    torn_variants: usize,
    /// Torn variants of the last subset, still to be returned.
    waiting: Vec<Vec<WriteSurvival>>,
    prng: Prng,
    /// Hashes of the images already returned.
    seen: BTreeSet<u64>,
}

impl Iterator for Images<'_> {
    type Item = CrashImage;

    fn next(&mut self) -> Option<CrashImage> {
        loop {
            let keeps = match self.waiting.pop() {
                Some(keeps) => keeps,
                None => {
                    let subset = self.subsets.next()?;
                    for _ in 0..self.torn_variants {
                        let mut torn = subset.clone();
                        self.point.tear(&mut torn, &mut self.prng);
                        self.waiting.push(torn);
                    }
                    subset
                }
            };
            let crash = self.point.crash_image(keeps);
            if self.seen.insert(crash.image.content_hash()) {
                return Some(crash);
            }
        }
    }
}
