//! A part of a simulated device that is a member of a pool, and what goes wrong with it.
//!
//! A slice fails, hangs or is slow by itself, and may become longer while it is open: up to where
//! the next begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use runtime::prng::Prng;
use runtime::sync::sim;
use storage::device::{
    DEADLINE_DEFAULT, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation,
    IoPurpose, PendingRequest, RequestKind, STALLED_SHARE, SharedDevice, Ticket,
};

use super::events::{Event, EventTally};
use crate::number::{u64_of, usize_of};

/// The request that hangs or is slow is below 2 to a power below this.
const STALL_POWER_MAX: u64 = 8;
/// A slow answer is late by such a part of the deadline.
const SLOW_SHARE: u64 = 3;

/// How long slices are, one after the other as they become longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    /// From one to the next.
    pub(super) stride_bytes: u64,
    /// How long they are when the pool is made.
    pub(super) first_bytes: u64,
    /// How often they may become longer, by as much each time.
    pub(super) steps: usize,
}

impl Lengths {
    /// Returns how long slices are after so many steps.
    pub(super) fn after(&self, steps: usize) -> u64 {
        if self.steps == 0 {
            return self.first_bytes;
        }
        let step = (self.stride_bytes - self.first_bytes) / u64_of(self.steps) / 4096 * 4096;
        self.first_bytes + step * u64_of(steps.min(self.steps))
    }
}

/// How long the slices of a pool are now: all alike.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) lengths: Lengths,
    steps: Arc<AtomicUsize>,
}

impl Ends {
    pub(super) fn new(lengths: Lengths, steps: usize) -> Ends {
        Ends { lengths, steps: Arc::new(AtomicUsize::new(steps)) }
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, steps: usize) {
        self.steps.store(steps, Ordering::SeqCst);
    }
}

/// One request that a member does not answer in time, and perhaps all of its kind after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    kind: RequestKind,
    nth: u64,
    /// `None`: it never answers. Else it is late, but within its deadline.
    delay_ns: Option<u64>,
    /// Whether what was asked happens all the same.
    takes_effect: bool,
    persists: bool,
}

impl Stall {
    pub(super) fn draw(random: &mut Prng) -> Stall {
        let kinds = [RequestKind::Read, RequestKind::Write, RequestKind::Flush];
        let kind = kinds[usize_of(random.below(u64_of(kinds.len())))];
        let (nth, is_slow) = (random.below_power(STALL_POWER_MAX), random.one_in(4));
        let delay_ns = is_slow.then(|| deadline_ns() / SLOW_SHARE);
        let (takes_effect, persists) = (random.one_in(2), random.one_in(2) && !is_slow);
        Stall { kind, nth, delay_ns, takes_effect, persists }
    }
}

fn deadline_ns() -> u64 {
    u64::try_from(DEADLINE_DEFAULT.as_nanos()).expect("seconds")
}

fn now_ns() -> u64 {
    sim::current().map_or(0, |scheduler| scheduler.now_ns())
}

/// What goes wrong with a slice.
#[derive(Clone, Debug, Default)]
pub(super) struct SliceFaults {
    /// Writes until they fail.
    pub(super) writes: Option<u64>,
    /// Those for this purpose alone are counted; all fail.
    pub(super) counted: Option<IoPurpose>,
    /// What it does not answer.
    pub(super) stall: Option<Stall>,
    /// Counts that.
    pub(super) tally: Option<Arc<EventTally>>,
}

/// A part of a device that is a device.
#[derive(Debug)]
pub(super) struct Slice {
    /// One for each length that it may have.
    infos: Vec<DeviceInfo>,
    /// Which of them it has.
    used: AtomicUsize,
    inner: SharedDevice,
    start: u64,
    ends: Ends,
    /// Writes until they fail; `u64::MAX`: never.
    writes_left: AtomicU64,
    counted: Option<IoPurpose>,
    stall: Option<Stall>,
    /// Requests of the kind that stalls.
    asked: AtomicU64,
    /// Whether one was not answered by its deadline.
    is_stalled: AtomicBool,
    /// D4: a write or a flush was not.
    has_failed: AtomicBool,
    /// Counts what it did not answer in time.
    tally: Option<Arc<EventTally>>,
}

/// A request that is answered late, or at its deadline.
struct Late {
    until_ns: u64,
    answer: Result<Ticket, DeviceError>,
}

impl PendingRequest for Late {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        sim::sleep_until(self.until_ns);
        self.answer.and_then(Ticket::wait)
    }
}

impl Slice {
    pub(super) fn of(
        inner: &SharedDevice,
        number: u64,
        ends: &Ends,
        faults: SliceFaults,
    ) -> SharedDevice {
        let info = |steps| DeviceInfo {
            name: format!("/slice/{number}"),
            size_bytes: ends.lengths.after(steps),
            ..inner.info().clone()
        };
        Arc::new(Slice {
            infos: (0..=ends.lengths.steps).map(info).collect(),
            used: AtomicUsize::new(ends.steps()),
            inner: Arc::clone(inner),
            start: number * ends.lengths.stride_bytes,
            ends: ends.clone(),
            writes_left: AtomicU64::new(faults.writes.unwrap_or(u64::MAX)),
            counted: faults.counted,
            stall: faults.stall,
            asked: AtomicU64::new(0),
            is_stalled: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            tally: faults.tally,
        })
    }

    /// Whether a write that begins now fails.
    fn fails(&self, purpose: IoPurpose) -> bool {
        if self.counted.is_some_and(|counted| counted != purpose) {
            return self.writes_left.load(Ordering::Relaxed) == 0;
        }
        let count = |left: u64| match left {
            u64::MAX => None,
            left => Some(left.saturating_sub(1)),
        };
        self.writes_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count)
            .is_ok_and(|left| left == 0)
    }

    /// Returns the stall that meets a request of this kind. Labels are read: whoever looks for the
    /// devices of a pool leaves those out whose label does not come.
    fn stalls(&self, purpose: IoPurpose, kind: RequestKind) -> Option<Stall> {
        let is_label = purpose == IoPurpose::Superblock && kind == RequestKind::Read;
        let stall = self.stall.filter(|stall| stall.kind == kind && !is_label)?;
        let nth = self.asked.fetch_add(1, Ordering::Relaxed);
        (nth == stall.nth || (stall.persists && nth > stall.nth)).then_some(stall)
    }

    /// Asks for what is late, or never answered.
    fn submit_late(&self, stall: Stall, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if let Some(delay_ns) = stall.delay_ns {
            let answer = Ok(self.inner.submit(purpose, self.moved(operation)));
            let until_ns = now_ns().saturating_add(delay_ns);
            return Ticket::new(Box::new(Late { until_ns, answer }));
        }
        if let Some(tally) = &self.tally {
            tally.count(Event::Stalled);
        }
        let was_stalled = self.is_stalled.swap(true, Ordering::Relaxed);
        let waits_ns = if was_stalled { deadline_ns() / STALLED_SHARE } else { deadline_ns() };
        let kind = operation.kind();
        if kind != RequestKind::Read {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        let expired = DeviceError::Expired {
            device: self.info().name.clone(),
            kind,
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
            waited_ms: waits_ns / 1_000_000,
        };
        if stall.takes_effect && kind != RequestKind::Read {
            // Nobody waits for it.
            drop(self.inner.submit(purpose, self.moved(operation)));
        }
        let until_ns = now_ns().saturating_add(waits_ns);
        Ticket::new(Box::new(Late { until_ns, answer: Err(expired) }))
    }

    /// Returns the same request of the device that this is a part of.
    fn moved(&self, operation: DeviceOperation) -> DeviceOperation {
        match operation {
            DeviceOperation::Read { offset, buffer } => {
                DeviceOperation::Read { offset: offset + self.start, buffer }
            }
            DeviceOperation::Write { offset, data } => {
                DeviceOperation::Write { offset: offset + self.start, data }
            }
            DeviceOperation::WriteThrough { offset, data } => {
                DeviceOperation::WriteThrough { offset: offset + self.start, data }
            }
            DeviceOperation::Flush => DeviceOperation::Flush,
            DeviceOperation::Discard { offset, length_bytes } => {
                DeviceOperation::Discard { offset: offset + self.start, length_bytes }
            }
        }
    }
}

impl Device for Slice {
    fn info(&self) -> &DeviceInfo {
        &self.infos[self.used.load(Ordering::SeqCst)]
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        Ok(self.ends.lengths.after(self.ends.steps()))
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        self.used.store(self.ends.steps(), Ordering::SeqCst);
        Ok(())
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        let end = operation.offset().unwrap_or(0) + operation.length_bytes();
        assert!(end <= self.info().size_bytes, "a request past the end of a member");
        let kind = operation.kind();
        let is_write = kind == RequestKind::Write;
        let has_failed = self.has_failed.load(Ordering::Relaxed) && kind != RequestKind::Read;
        if has_failed || (is_write && self.fails(purpose)) {
            return Ticket::ready(Err(DeviceError::Failed { device: self.info().name.clone() }));
        }
        match self.stalls(purpose, kind) {
            Some(stall) => self.submit_late(stall, purpose, operation),
            None => self.inner.submit(purpose, self.moved(operation)),
        }
    }
}
