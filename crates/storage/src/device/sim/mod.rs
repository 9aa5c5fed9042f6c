//! A simulated disk, with virtual time, a volatile write cache, faults, power cuts, and a recording
//! of all writes.
//!
//! The simulation grants nothing that a real disk does not. A completed write can be lost before a
//! flush (D1), requests in flight are unordered (D2), and a failed flush fails the device (D3). A
//! late request still takes effect after its waiter has left. So code that works here for every
//! seed works on a disk.
//!
//! After a power cut, open another device on the remaining contents: [`SimDevice::reboot`], or any
//! image from [`SimDevice::recording`].
//!
//! # Concurrency
//!
//! On a thread of a [`sim::Scheduler`] a submission is a scheduling point, and a wait sleeps in
//! virtual time. Elsewhere the device has its own clock. The lock is held for a copy only, so it is
//! a plain one.

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
pub use recording::{
    CrashImage, CrashPoint, Images, Points, RecordedEvent, Recording, Strategy, Timeline,
};
pub use volatile::{RecordedWrite, WriteSurvival};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::health::{Health, TimedRequest};
use super::length::{DeviceLengths, END_BYTES};
use super::range::check_request;
use super::{
    AlignedBuffer, DEADLINE_DEFAULT, Device, DeviceCompletion, DeviceError, DeviceInfo,
    DeviceOperation, IoPurpose, PendingRequest, RequestKind, SharedBytes, Ticket,
};
use crate::convert::{to_u64, to_usize};
use crate::device::counters::{IoCounters, IoCounts};
use discard::SimDiscards;
use fault::{Timing, UnstoredRange, WriteFate};
use late::{LateEffect, LateRequests};
use model::Disk;
use runtime::prng::Prng;
use runtime::sync::sim;
use volatile::WriteCache;

/// Options of a simulated device.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Device name.
    pub name: String,
    /// Sector size: 512 to 4096.
    pub sector_bytes: u32,
    /// Whether write-through is supported.
    pub has_write_through: bool,
    /// Whether discard is supported.
    pub has_discard: bool,
    /// Initial size, until [`SimDevice::extend`]. `None` for the size of the image.
    pub end_bytes: Option<u64>,
    /// Timing model.
    pub model: DiskModel,
    /// Planned faults.
    pub faults: FaultPlan,
    /// Deadline in virtual time.
    pub deadline: Duration,
    /// Power supply, shared with other devices.
    pub power: PowerSupply,
    /// Orders events across devices.
    pub timeline: Timeline,
    /// Whether to record for [`SimDevice::recording`].
    pub is_recorded: bool,
    /// Seed of random outcomes.
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

/// A simulated disk. Clients share it.
#[derive(Debug)]
pub struct SimDevice {
    shared: Arc<SimDeviceInner>,
}

#[derive(Debug)]
struct SimDeviceInner {
    lengths: DeviceLengths,
    /// Physical size, of which less may be in use.
    end_bytes: AtomicU64,
    options: SimOptions,
    counters: IoCounters,
    health: Health,
    state: Mutex<SimDeviceState>,
}

#[derive(Debug)]
struct SimDeviceState {
    cache: WriteCache,
    disk: Disk,
    prng: Prng,
    /// Virtual time of threads without a scheduler.
    now_ns: u64,
    late: LateRequests,
    discards: SimDiscards,
    recording: Option<Recording>,
    faults: FaultPlan,
    /// Requests begun since the fault plan was armed, by kind.
    begun: [u64; RequestKind::ALL.len()],
    /// Writes begun since the fault plan was armed, by purpose.
    writes_begun: [u64; IoPurpose::ALL.len()],
    harm: FaultEffects,
}

/// Effects of the fault plans so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultEffects {
    /// Failed reads.
    pub failed_reads: u64,
    /// Failed writes and flushes, for any reason.
    pub failed_writes: u64,
    /// Silent faults: lost or misdirected writes, and bit rot.
    pub lies: u64,
}

#[derive(Debug)]
enum SimOutcome {
    Read(AlignedBuffer),
    /// Write id, or `None` if the write was lost.
    Write(Option<u64>),
    /// Id of the write that becomes durable.
    WriteThrough(u64),
    /// Ids of the writes that become durable.
    Flush(Vec<u64>),
    /// Discard id.
    Discard(u64),
    Fails(DeviceError),
    /// The request takes effect at its time.
    Late,
}

#[derive(Debug)]
struct SimRequest {
    shared: Arc<SimDeviceInner>,
    asked: TimedRequest,
    deadline_ns: u64,
    answer_ns: u64,
    outcome: SimOutcome,
    /// Set once the waiter has left.
    is_overdue: Arc<AtomicBool>,
}

impl SimDevice {
    /// Creates a device of zeros.
    #[must_use]
    pub fn new(size_bytes: u64, options: SimOptions) -> Arc<SimDevice> {
        SimDevice::open(Image::blank(size_bytes), options)
    }

    /// Creates a device with the contents of `image`.
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
        let state = SimDeviceState {
            disk: Disk::new(options.model, image.size_bytes()),
            cache: WriteCache::new(image, sector_bytes),
            prng: Prng::from_seed(options.seed),
            now_ns: 0,
            late: LateRequests::default(),
            discards: SimDiscards::default(),
            recording,
            faults: options.faults.clone(),
            begun: [0; RequestKind::ALL.len()],
            writes_begun: [0; IoPurpose::ALL.len()],
            harm: FaultEffects::default(),
        };
        let (counters, state) = (IoCounters::default(), Mutex::new(state));
        let health = Health::new(options.deadline);
        let (lengths, end_bytes) = (DeviceLengths::new(info), AtomicU64::new(end_bytes));
        let shared = SimDeviceInner { lengths, end_bytes, options, counters, health, state };
        Arc::new(SimDevice { shared: Arc::new(shared) })
    }

    /// Grows the device, at most to the size of its image, as if a file in use were extended.
    pub fn extend(&self, end_bytes: u64) {
        let image_bytes = self.image().size_bytes();
        self.shared.end_bytes.fetch_max(end_bytes.min(image_bytes), Ordering::SeqCst);
    }

    /// Returns contents that a power cut at this moment could leave, chosen by `prng`.
    #[must_use]
    pub fn crash_image(&self, prng: &mut Prng) -> Image {
        self.shared.state.lock().cache.crash(prng)
    }

    /// Returns the contents after an orderly end: all writes, except what [`Fault::StopsStoring`]
    /// does not store.
    #[must_use]
    pub fn image(&self) -> Image {
        self.shared.state.lock().cache.stored()
    }

    /// Returns the contents that survive every power cut.
    #[must_use]
    pub fn durable_image(&self) -> Image {
        self.shared.state.lock().cache.durable().clone()
    }

    /// Simulates a power cut and a restart without faults, except [`Fault::StopsStoring`], which
    /// lasts.
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

    /// Returns a copy of the recording since the device was opened.
    ///
    /// # Panics
    ///
    /// Unless [`SimOptions::is_recorded`] is set.
    #[must_use]
    pub fn recording(&self) -> Recording {
        self.shared.state.lock().recording.clone().expect("SimOptions::is_recorded is set")
    }

    /// Returns the timeline.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.shared.options.timeline
    }

    /// Returns [`Recording::position`], or 0 without a recording.
    #[must_use]
    pub fn position(&self) -> usize {
        self.shared.state.lock().recording.as_ref().map_or(0, Recording::position)
    }

    /// Returns the time on the timeline (see [`Recording::point_at`]).
    #[must_use]
    pub fn time(&self) -> u64 {
        self.shared.options.timeline.now()
    }

    /// Returns the request counts.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        self.shared.counters.counts()
    }

    /// Returns the virtual time: the scheduler's on its threads, elsewhere the device's own.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        now_of(&self.shared.state.lock())
    }

    /// Replaces the fault plan, and restarts the counts for `nth`. A device that has failed stays
    /// so (D3).
    pub fn arm(&self, faults: FaultPlan) {
        let mut state = self.shared.state.lock();
        state.faults = faults;
        state.begun = [0; RequestKind::ALL.len()];
        state.writes_begun = [0; IoPurpose::ALL.len()];
    }

    /// Returns the effects of the fault plans.
    #[must_use]
    pub fn harm(&self) -> FaultEffects {
        self.shared.state.lock().harm
    }

    /// Whether the device has failed. A failing flush sets this when it begins, but counts as harm
    /// only at its completion.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.health.has_failed()
    }

    /// Advances the time of threads without a scheduler, and applies late requests.
    pub fn advance_ns(&self, nanoseconds: u64) {
        let mut state = self.shared.state.lock();
        state.now_ns = state.now_ns.saturating_add(nanoseconds);
        self.shared.land(&mut state);
    }

    /// Returns the number of overdue calls.
    #[must_use]
    pub fn overdue(&self) -> usize {
        self.shared.health.overdue()
    }

    /// Inverts the bits of `mask` in the byte at `offset`.
    pub fn rot(&self, offset: u64, mask: u8) {
        self.shared.state.lock().rot(offset, mask);
    }
}

fn now_of(state: &SimDeviceState) -> u64 {
    sim::current().map_or(state.now_ns, |scheduler| scheduler.now_ns())
}

impl SimDeviceState {
    fn record(&mut self, event: impl FnOnce() -> RecordedEvent) {
        if let Some(recording) = &mut self.recording {
            recording.push(event());
        }
    }

    fn rot(&mut self, offset: u64, mask: u8) {
        self.cache.rot(offset, mask);
        self.record(|| RecordedEvent::Rotted { offset, mask });
    }

    /// Counts a write, and returns its index within its purpose.
    fn next_write_of(&mut self, purpose: IoPurpose) -> (IoPurpose, u64) {
        let begun = &mut self.writes_begun[purpose.index()];
        *begun += 1;
        (purpose, *begun - 1)
    }

    fn take_write(&mut self, offset: u64, data: &[SharedBytes]) -> u64 {
        self.store(RecordedWrite::new(offset, data))
    }

    fn store(&mut self, write: RecordedWrite) -> u64 {
        let write = Arc::new(write);
        self.record(|| RecordedEvent::Submitted(Arc::clone(&write)));
        self.cache.write(&write)
    }

    /// Stores a write, except what a fault leaves out. Returns its id, or `None` if nothing is
    /// stored.
    fn take_stored(
        &mut self,
        unstored: Option<UnstoredRange>,
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
        self.record(|| RecordedEvent::Answered(id));
    }

    fn answer_write_through(&mut self, id: u64) {
        self.answer_write(id);
        let covered = self.cache.begin_write_through(id);
        self.answer_flush(covered);
    }

    fn answer_flush(&mut self, covered: Vec<u64>) {
        self.cache.answer_flush(&covered);
        self.record(|| RecordedEvent::Flushed(covered));
    }
}

impl SimDeviceInner {
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

    fn land(&self, state: &mut SimDeviceState) {
        if self.options.power.is_cut() {
            return;
        }
        state.land_discards();
        for late in state.late.take_due(now_of(state)) {
            if late.is_overdue.load(Ordering::SeqCst) {
                self.health.returned(late.kind);
            }
            match late.effect {
                LateEffect::Nothing => {}
                LateEffect::Write { offset, data } => {
                    let id = state.take_write(offset, &data);
                    state.answer_write(id);
                }
                LateEffect::WriteThrough { offset, data } => {
                    let id = state.take_write(offset, &data);
                    state.answer_write_through(id);
                }
                LateEffect::Flush => {
                    let covered = state.cache.begin_flush();
                    state.answer_flush(covered);
                }
            }
        }
    }

    /// Determines result and completion time of a request.
    fn begin(
        self: &Arc<SimDeviceInner>,
        asked: TimedRequest,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> SimRequest {
        let mut state = self.state.lock();
        let now_ns = now_of(&state);
        // A scheduler attached later begins at time 0. Earlier requests must not count against the
        // deadline.
        let allowed_from_ns = now_ns.max(state.now_ns);
        let kind = asked.kind.index();
        let is_overdue = Arc::new(AtomicBool::new(false));
        let (answer_ns, outcome) = match state.faults.timing(asked.kind, state.begun[kind]) {
            Timing::InTime => self.decide(&mut state, (now_ns, purpose), operation),
            Timing::Never { takes_effect: false } => {
                state.begun[kind] += 1;
                (u64::MAX, SimOutcome::Late)
            }
            Timing::Never { takes_effect: true } => {
                match self.decide(&mut state, (now_ns, purpose), operation).1 {
                    SimOutcome::Flush(covered) => state.answer_flush(covered),
                    SimOutcome::WriteThrough(id) => state.answer_write_through(id),
                    SimOutcome::Read(_)
                    | SimOutcome::Write(_)
                    | SimOutcome::Discard(_)
                    | SimOutcome::Fails(_)
                    | SimOutcome::Late => {}
                }
                (u64::MAX, SimOutcome::Late)
            }
            Timing::Late { delay_ns } => {
                let answer_ns = allowed_from_ns.saturating_add(delay_ns);
                let (effect, outcome) = match operation {
                    DeviceOperation::Write { offset, data } => {
                        state.begun[kind] += 1;
                        (LateEffect::Write { offset, data }, SimOutcome::Late)
                    }
                    DeviceOperation::WriteThrough { offset, data } => {
                        state.begun[kind] += 1;
                        (LateEffect::WriteThrough { offset, data }, SimOutcome::Late)
                    }
                    DeviceOperation::Flush => {
                        state.begun[kind] += 1;
                        (LateEffect::Flush, SimOutcome::Late)
                    }
                    DeviceOperation::Read { .. } | DeviceOperation::Discard { .. } => (
                        LateEffect::Nothing,
                        self.decide(&mut state, (now_ns, purpose), operation).1,
                    ),
                };
                state.late.push((answer_ns, asked.kind), effect, &is_overdue);
                (answer_ns, outcome)
            }
        };
        let deadline_ns = allowed_from_ns.saturating_add(asked.allowed_ns);
        let shared = Arc::clone(self);
        SimRequest { shared, asked, deadline_ns, answer_ns, outcome, is_overdue }
    }

    /// Determines result and completion time of a request without a timing fault.
    fn decide(
        &self,
        state: &mut SimDeviceState,
        (now_ns, purpose): (u64, IoPurpose),
        operation: DeviceOperation,
    ) -> (u64, SimOutcome) {
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
            DeviceOperation::Read { mut buffer, .. } => {
                let answer_ns = state.disk.read(now_ns, offset, length_bytes);
                if fails {
                    return (
                        answer_ns,
                        SimOutcome::Fails(self.io_error(kind, offset, length_bytes)),
                    );
                }
                state.cache.seen().read(offset, &mut buffer);
                (answer_ns, SimOutcome::Read(buffer))
            }
            DeviceOperation::Write { data, .. } => {
                let answer_ns = state.disk.write(now_ns, offset, length_bytes);
                let nth = (index, state.next_write_of(purpose));
                (answer_ns, self.begin_write(state, nth, offset, &data))
            }
            DeviceOperation::WriteThrough { data, .. } => {
                let written_ns = state.disk.write(now_ns, offset, length_bytes);
                let nth = (index, state.next_write_of(purpose));
                let outcome = self.begin_write(state, nth, offset, &data);
                (state.disk.flush(written_ns), self.through(outcome))
            }
            DeviceOperation::Flush => {
                let answer_ns = state.disk.flush(now_ns);
                (answer_ns, self.begin_flush(state, fails))
            }
            DeviceOperation::Discard { .. } => {
                (now_ns, self.begin_discard(state, (fails, purpose), offset, length_bytes))
            }
        }
    }

    fn begin_write(
        &self,
        state: &mut SimDeviceState,
        (index, of_purpose): (u64, (IoPurpose, u64)),
        offset: u64,
        data: &[SharedBytes],
    ) -> SimOutcome {
        let length_bytes: u64 = data.iter().map(|piece| to_u64(piece.len())).sum();
        let seen = state.cache.seen();
        let new_bytes = seen.new_bytes(offset, length_bytes);
        let room_bytes = state.faults.room_bytes().saturating_sub(seen.allocated_bytes());
        if new_bytes > room_bytes {
            return SimOutcome::Fails(DeviceError::NoSpace {
                device: self.info().name.clone(),
                offset,
            });
        }
        match state.faults.fate_of_write(index, of_purpose, offset) {
            WriteFate::HasNoRoom => {
                let device = self.info().name.clone();
                SimOutcome::Fails(DeviceError::NoSpace { device, offset })
            }
            WriteFate::Lands { offset: landed } => {
                state.harm.lies += u64::from(landed != offset);
                let offset = landed;
                let end = self.info().size_bytes - length_bytes;
                let unstored = state.faults.unstored(index, of_purpose.0);
                let id = state.take_stored(unstored, offset.min(end), data);
                self.cut_power_if_planned(state);
                SimOutcome::Write(id)
            }
            WriteFate::IsLost => {
                state.harm.lies += 1;
                self.cut_power_if_planned(state);
                SimOutcome::Write(None)
            }
            WriteFate::Fails => {
                // A random prefix may have been written.
                let piece_count = to_usize(state.prng.below(to_u64(data.len()) + 1));
                if piece_count > 0 {
                    let id = state.take_write(offset, &data[..piece_count]);
                    state.answer_write(id);
                }
                SimOutcome::Fails(self.io_error(RequestKind::Write, offset, length_bytes))
            }
        }
    }

    /// Converts the outcome of a write to that of a write-through.
    fn through(&self, outcome: SimOutcome) -> SimOutcome {
        if let SimOutcome::Fails(_) = outcome {
            // The device fails (D3).
            self.health.fail();
        }
        if let SimOutcome::Write(Some(id)) = outcome {
            SimOutcome::WriteThrough(id)
        } else {
            outcome
        }
    }

    fn begin_flush(&self, state: &mut SimDeviceState, fails: bool) -> SimOutcome {
        if fails {
            // The device fails (D3).
            self.health.fail();
            return SimOutcome::Fails(self.io_error(RequestKind::Flush, 0, 0));
        }
        let covered = state.cache.begin_flush();
        self.cut_power_if_planned(state);
        SimOutcome::Flush(covered)
    }

    fn begin_discard(
        &self,
        state: &mut SimDeviceState,
        (fails, purpose): (bool, IoPurpose),
        offset: u64,
        length_bytes: u64,
    ) -> SimOutcome {
        if !self.options.has_discard {
            return SimOutcome::Fails(DeviceError::NoDiscard { device: self.info().name.clone() });
        }
        if fails {
            // The discard may have taken effect in part.
            let id = state.begin_discard(offset, length_bytes);
            state.answer_discard(id);
            return SimOutcome::Fails(self.io_error(RequestKind::Discard, offset, length_bytes));
        }
        if state.faults.unstored(state.begun[RequestKind::Write.index()], purpose).is_some() {
            // A discard without any effect is legal.
            return SimOutcome::Write(None);
        }
        SimOutcome::Discard(state.begin_discard(offset, length_bytes))
    }

    fn cut_power_if_planned(&self, state: &SimDeviceState) {
        let count = |kind: RequestKind| state.begun[kind.index()];
        // Includes this request.
        let index = count(RequestKind::Write) + count(RequestKind::Flush) - 1;
        if state.faults.cuts_power_at(index) {
            self.options.power.cut();
        }
    }

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
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
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
            SimOutcome::Read(buffer) => return Ok(DeviceCompletion { buffer: Some(buffer) }),
            SimOutcome::Write(None) | SimOutcome::Late => {}
            SimOutcome::Write(Some(id)) => {
                state.answer_write(id);
            }
            SimOutcome::WriteThrough(id) => state.answer_write_through(id),
            SimOutcome::Flush(covered) => state.answer_flush(covered),
            SimOutcome::Discard(id) => state.answer_discard(id),
            SimOutcome::Fails(error) => {
                match asked.kind {
                    RequestKind::Read => state.harm.failed_reads += 1,
                    RequestKind::Write | RequestKind::Flush => state.harm.failed_writes += 1,
                    RequestKind::Discard => {}
                }
                return Err(error);
            }
        }
        Ok(DeviceCompletion::default())
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

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
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
