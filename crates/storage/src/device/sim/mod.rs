//! A simulated disk: virtual time, a volatile write cache, faults, power cuts, and a memory of all
//! that was written.
//!
//! It answers as a disk may, and no better: a write that was answered can be lost until a flush is
//! answered (D1), requests in flight together have no order (D2), and a failed flush fails the
//! device (D3). It may also be late, or never answer: a request whose deadline has passed is given
//! up by its waiter, and takes effect all the same when its time has come. So what works on it for
//! every seed works on a disk.
//!
//! Life after a power cut is another device, opened on what the cut left: [`SimDevice::reboot`], or
//! any image of [`SimDevice::recording`].
//!
//! # Concurrency
//!
//! On a thread of a [`sim::Scheduler`] a submission is a scheduling point and a wait sleeps in
//! virtual time until the request is answered. Elsewhere the device moves a clock of its own. Its
//! lock is held for no longer than a copy, so it is a plain one.
//!
//! Not here: counts and budgets on other devices (`counting.rs`).

mod discard;
mod fault;
mod image;
mod late;
mod model;
mod recording;
mod volatile;

#[cfg(test)]
mod tests;

pub use fault::{Fault, FaultPlan, PowerSupply, StoppedExtent, StoppedReads};
pub use image::Image;
pub use model::{CHANNELS_MAX, DiskModel};
pub use recording::{CrashImage, CrashPoint, Event, Images, Points, Recording, Strategy, Timeline};
pub use volatile::{Keep, RecordedWrite};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::health::{Asked, Health};
use super::length::{END_BYTES, Lengths};
use super::range::check_request;
use super::{
    AlignedBuffer, Completion, DEADLINE_DEFAULT, Device, DeviceError, DeviceInfo, Operation,
    PendingRequest, Purpose, RequestKind, SharedBytes, Ticket,
};
use crate::convert::{to_u64, to_usize};
use crate::counters::{IoCounters, IoCounts};
use discard::Discards;
use fault::{Timing, Unstored, WriteFate};
use late::{Effect, LateEffects};
use model::Disk;
use runtime::prng::Prng;
use runtime::sync::sim;
use volatile::WriteCache;

/// How a simulated device is set up.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// What it is called.
    pub name: String,
    /// Bytes of a sector: 512 to 4096.
    pub sector_bytes: u32,
    /// Whether writes can be durable by themselves.
    pub has_write_through: bool,
    /// Whether it can discard.
    pub has_discard: bool,
    /// Where it ends as long as nobody makes it longer ([`SimDevice::extend`]); `None`: where its
    /// image does.
    pub end_bytes: Option<u64>,
    /// How long things take.
    pub model: DiskModel,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// How long it may take to answer, in virtual time.
    pub deadline: Duration,
    /// What feeds it.
    pub power: PowerSupply,
    /// What orders its events among those of other devices.
    pub timeline: Timeline,
    /// Whether to keep what [`SimDevice::recording`] returns.
    pub is_recorded: bool,
    /// Of what is left to chance in its answers.
    pub seed: u64,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            name: "sim:0".to_owned(),
            sector_bytes: 512,
            has_write_through: true,
            has_discard: true,
            end_bytes: None,
            model: DiskModel::instant(),
            faults: FaultPlan::none(),
            deadline: DEADLINE_DEFAULT,
            power: PowerSupply::new(),
            timeline: Timeline::default(),
            is_recorded: false,
            seed: 0,
        }
    }
}

/// See the module's header.
#[derive(Debug)]
pub struct SimDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    lengths: Lengths,
    /// Where the device ends, whatever of it is in use.
    end_bytes: AtomicU64,
    options: SimOptions,
    counters: IoCounters,
    health: Health,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    cache: WriteCache,
    disk: Disk,
    prng: Prng,
    /// Virtual time of threads without a scheduler.
    now_ns: u64,
    late: LateEffects,
    discards: Discards,
    recording: Option<Recording>,
    faults: FaultPlan,
    /// Requests begun since the fault plan was armed, by kind: what it counts.
    begun: [u64; RequestKind::ALL.len()],
    /// Writes begun since then, by purpose.
    writes_begun: [u64; Purpose::ALL.len()],
    /// What the fault plans did.
    harm: Harm,
}

/// How often the fault plans of a device hit, and were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Harm {
    /// Reads that failed.
    pub failed_reads: u64,
    /// Writes and flushes that failed, for whatever reason: what they should have made durable is
    /// not.
    pub failed_writes: u64,
    /// Writes lost or misdirected, and bytes that rotted: nobody was told.
    pub lies: u64,
}

/// What a request comes to when it is answered.
#[derive(Debug)]
enum Outcome {
    Read(AlignedBuffer),
    /// The write's number, unless it was lost.
    Write(Option<u64>),
    /// The number of a write that is durable then.
    WriteThrough(u64),
    /// The writes it makes durable.
    Flush(Vec<u64>),
    /// The discard's number.
    Discard(u64),
    Fails(DeviceError),
    /// It takes effect when its time has come.
    Late,
}

#[derive(Debug)]
struct SimRequest {
    shared: Arc<Shared>,
    asked: Asked,
    /// When the waiter leaves.
    deadline_ns: u64,
    answer_ns: u64,
    outcome: Outcome,
    /// Set when the waiter has left.
    is_overdue: Arc<AtomicBool>,
}

impl SimDevice {
    /// Returns a device of zeros.
    #[must_use]
    pub fn new(size_bytes: u64, options: SimOptions) -> Arc<SimDevice> {
        SimDevice::open(Image::blank(size_bytes), options)
    }

    /// Returns a device that holds `image`.
    #[must_use]
    pub fn open(image: Image, options: SimOptions) -> Arc<SimDevice> {
        assert!(options.sector_bytes.is_power_of_two());
        assert!((512..=4096).contains(&options.sector_bytes));
        let end_bytes = options.end_bytes.unwrap_or(image.size_bytes()).min(image.size_bytes());
        let info = DeviceInfo {
            name: options.name.clone(),
            size_bytes: end_bytes,
            sector_bytes: options.sector_bytes,
            is_read_only: false,
            has_write_through: options.has_write_through,
            is_sparse: false,
            transport: "simulated",
        };
        let sector_bytes = u64::from(options.sector_bytes);
        let recording = options
            .is_recorded
            .then(|| Recording::new(image.clone(), sector_bytes, options.timeline.clone()));
        let state = State {
            disk: Disk::new(options.model, image.size_bytes()),
            cache: WriteCache::new(image, sector_bytes),
            prng: Prng::from_seed(options.seed),
            now_ns: 0,
            late: LateEffects::default(),
            discards: Discards::default(),
            recording,
            faults: options.faults.clone(),
            begun: [0; RequestKind::ALL.len()],
            writes_begun: [0; Purpose::ALL.len()],
            harm: Harm::default(),
        };
        let (counters, state) = (IoCounters::default(), Mutex::new(state));
        let health = Health::new(options.deadline);
        let (lengths, end_bytes) = (Lengths::new(info), AtomicU64::new(end_bytes));
        let shared = Shared { lengths, end_bytes, options, counters, health, state };
        Arc::new(SimDevice { shared: Arc::new(shared) })
    }

    /// Makes the device end at `end_bytes`, as far as its image goes, as somebody does who makes a
    /// file longer that is in use. It never becomes shorter.
    pub fn extend(&self, end_bytes: u64) {
        let image_bytes = self.image().size_bytes();
        self.shared.end_bytes.fetch_max(end_bytes.min(image_bytes), Ordering::SeqCst);
    }

    /// Returns what a power cut now would leave; `prng` picks among what it may.
    #[must_use]
    pub fn crash_image(&self, prng: &mut Prng) -> Image {
        self.shared.state.lock().cache.crash(prng)
    }

    /// Returns what an orderly end would leave: what is read now, but for writes that are not
    /// stored ([`Fault::StopsStoring`]).
    #[must_use]
    pub fn image(&self) -> Image {
        self.shared.state.lock().cache.stored()
    }

    /// Returns what no power cut can take away.
    #[must_use]
    pub fn durable_image(&self) -> Image {
        self.shared.state.lock().cache.durable().clone()
    }

    /// Returns the device after a power cut now, with the power back and no faults planned; one
    /// that had stopped storing goes on so ([`Fault::StopsStoring`]).
    #[must_use]
    pub fn reboot(&self, prng: &mut Prng) -> Arc<SimDevice> {
        let faults = {
            let state = self.shared.state.lock();
            state.faults.after_reboot(state.begun[RequestKind::Write.index()])
        };
        let options = SimOptions {
            faults,
            power: PowerSupply::new(),
            end_bytes: Some(self.shared.end_bytes.load(Ordering::SeqCst)),
            seed: prng.next_u64(),
            ..self.shared.options.clone()
        };
        SimDevice::open(self.crash_image(prng), options)
    }

    /// Returns a copy of what happened since the device was opened.
    ///
    /// # Panics
    ///
    /// If the device was not set up to be recorded.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.shared.state.lock().recording.clone().expect("SimOptions::is_recorded is set")
    }

    /// Returns what orders its events among those of other devices.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.shared.options.timeline
    }

    /// Returns the position in the recording: see [`Recording::position`].
    #[must_use]
    pub fn position(&self) -> usize {
        self.shared.state.lock().recording.as_ref().map_or(0, Recording::position)
    }

    /// Returns the time of its timeline: see [`Recording::point_at`].
    #[must_use]
    pub fn time(&self) -> u64 {
        self.shared.options.timeline.now()
    }

    /// Returns the counts of the requests so far.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        self.shared.counters.counts()
    }

    /// Returns the virtual time: the scheduler's on its threads, elsewhere the device's own.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        now_of(&self.shared.state.lock())
    }

    /// Replaces the plan of what goes wrong; `nth` counts from here. What happened stays: after a
    /// failed flush the device takes no more writes (D3).
    pub fn arm(&self, faults: FaultPlan) {
        let mut state = self.shared.state.lock();
        state.faults = faults;
        state.begun = [0; RequestKind::ALL.len()];
        state.writes_begun = [0; Purpose::ALL.len()];
    }

    /// Returns how often something went wrong as planned.
    #[must_use]
    pub fn harm(&self) -> Harm {
        self.shared.state.lock().harm
    }

    /// Whether the device takes no more writes. A flush that fails makes it so when it begins, and
    /// counts as harm only when it is answered.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.health.has_failed()
    }

    /// Lets time pass, for threads without a scheduler, and what is late take effect.
    pub fn advance_ns(&self, nanoseconds: u64) {
        let mut state = self.shared.state.lock();
        state.now_ns = state.now_ns.saturating_add(nanoseconds);
        self.shared.land(&mut state);
    }

    /// Returns how many calls are overdue.
    #[must_use]
    pub fn overdue(&self) -> usize {
        self.shared.health.overdue()
    }

    /// Turns over the bits of `mask` in the byte at `offset` now.
    pub fn rot(&self, offset: u64, mask: u8) {
        self.shared.state.lock().rot(offset, mask);
    }
}

fn now_of(state: &State) -> u64 {
    sim::current().map_or(state.now_ns, |scheduler| scheduler.now_ns())
}

impl State {
    fn record(&mut self, event: impl FnOnce() -> Event) {
        if let Some(recording) = &mut self.recording {
            recording.push(event());
        }
    }

    fn rot(&mut self, offset: u64, mask: u8) {
        self.cache.rot(offset, mask);
        self.record(|| Event::Rotted { offset, mask });
    }

    /// Counts a write for `purpose`; returns which it is.
    fn next_write_of(&mut self, purpose: Purpose) -> (Purpose, u64) {
        let begun = &mut self.writes_begun[purpose.index()];
        *begun += 1;
        (purpose, *begun - 1)
    }

    fn take_write(&mut self, offset: u64, data: &[SharedBytes]) -> u64 {
        self.store(RecordedWrite::new(offset, data))
    }

    fn store(&mut self, write: RecordedWrite) -> u64 {
        let write = Arc::new(write);
        self.record(|| Event::Submitted(Arc::clone(&write)));
        self.cache.write(&write)
    }

    /// Takes a write of which a part may not be stored; returns its number, `None` if nothing is.
    fn take_stored(
        &mut self,
        unstored: Option<Unstored>,
        offset: u64,
        data: &[SharedBytes],
    ) -> Option<u64> {
        let mut write = RecordedWrite::new(offset, data);
        if let Some((range, reads)) = unstored {
            let lost = write.take_out(&range);
            self.harm.lies += u64::from(!lost.is_empty());
            if reads == StoppedReads::Written {
                self.cache.show(&lost);
            }
        }
        (!write.is_empty()).then(|| self.store(write))
    }

    fn answer_write(&mut self, id: u64) {
        self.cache.answer_write(id);
        self.record(|| Event::Answered(id));
    }

    fn answer_write_through(&mut self, id: u64) {
        self.answer_write(id);
        let covered = self.cache.begin_write_through(id);
        self.answer_flush(covered);
    }

    fn answer_flush(&mut self, covered: Vec<u64>) {
        self.cache.answer_flush(&covered);
        self.record(|| Event::Flushed(covered));
    }
}

impl Shared {
    fn info(&self) -> &DeviceInfo {
        self.lengths.now()
    }

    fn power_cut(&self) -> DeviceError {
        DeviceError::PowerCut { device: self.info().name.clone() }
    }

    fn io_error(&self, kind: RequestKind, offset: u64, length_bytes: u64) -> DeviceError {
        let (device, cause) = (self.info().name.clone(), "a fault was planned".to_owned());
        DeviceError::Io { device, kind, offset, length_bytes, cause }
    }

    /// Lets the late effects happen whose time has come.
    fn land(&self, state: &mut State) {
        if self.options.power.is_cut() {
            return;
        }
        state.land_discards();
        for late in state.late.take_due(now_of(state)) {
            if late.is_overdue.load(Ordering::SeqCst) {
                self.health.returned(late.kind);
            }
            match late.effect {
                Effect::Nothing => {}
                Effect::Write { offset, data } => {
                    let id = state.take_write(offset, &data);
                    state.answer_write(id);
                }
                Effect::WriteThrough { offset, data } => {
                    let id = state.take_write(offset, &data);
                    state.answer_write_through(id);
                }
                Effect::Flush => {
                    let covered = state.cache.begin_flush();
                    state.answer_flush(covered);
                }
            }
        }
    }

    /// Decides what the request will come to and when.
    fn begin(
        self: &Arc<Shared>,
        asked: Asked,
        purpose: Purpose,
        operation: Operation,
    ) -> SimRequest {
        let mut state = self.state.lock();
        let now_ns = now_of(&state);
        // A scheduler that comes after threads without one begins at 0: until then the device works
        // off what those waited for, and nobody's time runs out over that.
        let allowed_from_ns = now_ns.max(state.now_ns);
        let kind = asked.kind.index();
        let is_overdue = Arc::new(AtomicBool::new(false));
        let (answer_ns, outcome) = match state.faults.timing(asked.kind, state.begun[kind]) {
            Timing::InTime => self.decide(&mut state, (now_ns, purpose), operation),
            Timing::Never { takes_effect: false } => {
                state.begun[kind] += 1;
                (u64::MAX, Outcome::Late)
            }
            Timing::Never { takes_effect: true } => {
                match self.decide(&mut state, (now_ns, purpose), operation).1 {
                    Outcome::Flush(covered) => state.answer_flush(covered),
                    Outcome::WriteThrough(id) => state.answer_write_through(id),
                    Outcome::Read(_)
                    | Outcome::Write(_)
                    | Outcome::Discard(_)
                    | Outcome::Fails(_)
                    | Outcome::Late => {}
                }
                (u64::MAX, Outcome::Late)
            }
            Timing::Late { delay_ns } => {
                let answer_ns = allowed_from_ns.saturating_add(delay_ns);
                let (effect, outcome) = match operation {
                    Operation::Write { offset, data } => {
                        state.begun[kind] += 1;
                        (Effect::Write { offset, data }, Outcome::Late)
                    }
                    Operation::WriteThrough { offset, data } => {
                        state.begun[kind] += 1;
                        (Effect::WriteThrough { offset, data }, Outcome::Late)
                    }
                    Operation::Flush => {
                        state.begun[kind] += 1;
                        (Effect::Flush, Outcome::Late)
                    }
                    Operation::Read { .. } | Operation::Discard { .. } => {
                        (Effect::Nothing, self.decide(&mut state, (now_ns, purpose), operation).1)
                    }
                };
                state.late.push((answer_ns, asked.kind), effect, &is_overdue);
                (answer_ns, outcome)
            }
        };
        let deadline_ns = allowed_from_ns.saturating_add(asked.allowed_ns);
        let shared = Arc::clone(self);
        SimRequest { shared, asked, deadline_ns, answer_ns, outcome, is_overdue }
    }

    /// Decides what a request that is answered as usual will come to and when.
    fn decide(
        &self,
        state: &mut State,
        (now_ns, purpose): (u64, Purpose),
        operation: Operation,
    ) -> (u64, Outcome) {
        let kind = operation.kind();
        let index = state.begun[kind.index()];
        let total: u64 = state.begun.iter().sum();
        state.begun[kind.index()] += 1;
        let (offset, length_bytes) = (operation.offset().unwrap_or(0), operation.length_bytes());
        let rots: Vec<(u64, u8)> = state.faults.rots_before(total).collect();
        for (offset, mask) in rots {
            state.rot(offset, mask);
            state.harm.lies += 1;
        }
        let fails = state.faults.fails(kind, index)
            || kind == RequestKind::Read && state.faults.has_bad_sector(offset, length_bytes);
        if kind == RequestKind::Write {
            state.faults.mend_sectors(offset, length_bytes);
        }
        match operation {
            Operation::Read { mut buffer, .. } => {
                let answer_ns = state.disk.read(now_ns, offset, length_bytes);
                if fails {
                    return (answer_ns, Outcome::Fails(self.io_error(kind, offset, length_bytes)));
                }
                state.cache.seen().read(offset, &mut buffer);
                (answer_ns, Outcome::Read(buffer))
            }
            Operation::Write { data, .. } => {
                let answer_ns = state.disk.write(now_ns, offset, length_bytes);
                let nth = (index, state.next_write_of(purpose));
                (answer_ns, self.begin_write(state, nth, offset, &data))
            }
            Operation::WriteThrough { data, .. } => {
                let written_ns = state.disk.write(now_ns, offset, length_bytes);
                let nth = (index, state.next_write_of(purpose));
                let outcome = self.begin_write(state, nth, offset, &data);
                (state.disk.flush(written_ns), self.through(outcome))
            }
            Operation::Flush => {
                let answer_ns = state.disk.flush(now_ns);
                (answer_ns, self.begin_flush(state, fails))
            }
            Operation::Discard { .. } => {
                (now_ns, self.begin_discard(state, (fails, purpose), offset, length_bytes))
            }
        }
    }

    fn begin_write(
        &self,
        state: &mut State,
        (index, of_purpose): (u64, (Purpose, u64)),
        offset: u64,
        data: &[SharedBytes],
    ) -> Outcome {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let seen = state.cache.seen();
        let new_bytes = seen.new_bytes(offset, length_bytes);
        let room_bytes = state.faults.room_bytes().saturating_sub(seen.allocated_bytes());
        if new_bytes > room_bytes {
            return Outcome::Fails(DeviceError::NoSpace {
                device: self.info().name.clone(),
                offset,
            });
        }
        match state.faults.fate_of_write(index, of_purpose, offset) {
            WriteFate::HasNoRoom => {
                let device = self.info().name.clone();
                Outcome::Fails(DeviceError::NoSpace { device, offset })
            }
            WriteFate::Lands { offset: landed } => {
                state.harm.lies += u64::from(landed != offset);
                let offset = landed;
                let end = self.info().size_bytes - length_bytes;
                let unstored = state.faults.unstored(index, of_purpose.0);
                let id = state.take_stored(unstored, offset.min(end), data);
                self.cut_power_if_planned(state);
                Outcome::Write(id)
            }
            WriteFate::IsLost => {
                state.harm.lies += 1;
                self.cut_power_if_planned(state);
                Outcome::Write(None)
            }
            WriteFate::Fails => {
                // Part of it may have landed.
                let piece_count = to_usize(state.prng.below(to_u64(data.len()) + 1));
                if piece_count > 0 {
                    let id = state.take_write(offset, &data[..piece_count]);
                    state.answer_write(id);
                }
                Outcome::Fails(self.io_error(RequestKind::Write, offset, length_bytes))
            }
        }
    }

    /// Makes of what a write comes to what it comes to if it is written through.
    fn through(&self, outcome: Outcome) -> Outcome {
        if let Outcome::Fails(_) = outcome {
            // D3.
            self.health.fail();
        }
        if let Outcome::Write(Some(id)) = outcome { Outcome::WriteThrough(id) } else { outcome }
    }

    fn begin_flush(&self, state: &mut State, fails: bool) -> Outcome {
        if fails {
            // D3.
            self.health.fail();
            return Outcome::Fails(self.io_error(RequestKind::Flush, 0, 0));
        }
        let covered = state.cache.begin_flush();
        self.cut_power_if_planned(state);
        Outcome::Flush(covered)
    }

    fn begin_discard(
        &self,
        state: &mut State,
        (fails, purpose): (bool, Purpose),
        offset: u64,
        length_bytes: u64,
    ) -> Outcome {
        if !self.options.has_discard {
            return Outcome::Fails(DeviceError::NoDiscard { device: self.info().name.clone() });
        }
        if fails {
            // It may have taken effect in part all the same.
            let id = state.begin_discard(offset, length_bytes);
            state.answer_discard(id);
            return Outcome::Fails(self.io_error(RequestKind::Discard, offset, length_bytes));
        }
        if state.faults.unstored(state.begun[RequestKind::Write.index()], purpose).is_some() {
            // It may discard nothing, as any device.
            return Outcome::Write(None);
        }
        Outcome::Discard(state.begin_discard(offset, length_bytes))
    }

    fn cut_power_if_planned(&self, state: &State) {
        let count = |kind: RequestKind| state.begun[kind.index()];
        // This request is among those begun.
        let index = count(RequestKind::Write) + count(RequestKind::Flush) - 1;
        if state.faults.cuts_power_at(index) {
            self.options.power.cut();
        }
    }

    /// Waits until `answer_ns`.
    fn pass_time(&self, answer_ns: u64) {
        if sim::current().is_some() {
            sim::sleep_until(answer_ns);
        } else {
            let mut state = self.state.lock();
            state.now_ns = state.now_ns.max(answer_ns);
        }
        self.land(&mut self.state.lock());
    }
}

impl PendingRequest for SimRequest {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let SimRequest { shared, asked, deadline_ns, answer_ns, outcome, is_overdue } = *self;
        shared.pass_time(answer_ns.min(deadline_ns));
        if shared.options.power.is_cut() {
            return Err(shared.power_cut());
        }
        if answer_ns > deadline_ns {
            is_overdue.store(true, Ordering::SeqCst);
            return Err(shared.health.expire(shared.info(), &asked, true));
        }
        let mut state = shared.state.lock();
        match outcome {
            Outcome::Read(buffer) => return Ok(Completion { buffer: Some(buffer) }),
            Outcome::Write(None) | Outcome::Late => {}
            Outcome::Write(Some(id)) => {
                state.answer_write(id);
            }
            Outcome::WriteThrough(id) => state.answer_write_through(id),
            Outcome::Flush(covered) => state.answer_flush(covered),
            Outcome::Discard(id) => state.answer_discard(id),
            Outcome::Fails(error) => {
                match asked.kind {
                    RequestKind::Read => state.harm.failed_reads += 1,
                    RequestKind::Write | RequestKind::Flush => state.harm.failed_writes += 1,
                    RequestKind::Discard => {}
                }
                return Err(error);
            }
        }
        Ok(Completion::default())
    }
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        self.shared.info()
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        Ok(self.shared.end_bytes.load(Ordering::SeqCst))
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        let end_bytes = self.length_now()?;
        let offset = end_bytes.saturating_sub(END_BYTES);
        {
            let state = self.shared.state.lock();
            let seen = state.cache.seen();
            let room_bytes = state.faults.room_bytes().saturating_sub(seen.allocated_bytes());
            let is_longer = end_bytes > self.info().size_bytes;
            if is_longer && seen.new_bytes(offset, end_bytes - offset) > room_bytes {
                let device = self.info().name.clone();
                return Err(DeviceError::NoSpace { device, offset });
            }
        }
        self.shared.lengths.lengthen(end_bytes)
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        sim::schedule();
        let shared = &self.shared;
        if shared.options.power.is_cut() {
            return Ticket::ready(Err(shared.power_cut()));
        }
        if let Err(error) = check_request(shared.info(), purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        shared.land(&mut shared.state.lock());
        let asked = match shared.health.admit(shared.info(), &operation) {
            Ok(asked) => asked,
            Err(error) => return Ticket::ready(Err(error)),
        };
        shared.counters.add(purpose, &operation);
        let request = shared.begin(asked, purpose, operation);
        if let Some(scheduler) = sim::current() {
            scheduler.note(shared.state.lock().cache.seen().content_hash());
        }
        Ticket::new(Box::new(request))
    }
}
