//! Whether a device can still be trusted, and how long it may take.
//!
//! Each request has a deadline, counted from its submission. One that is not answered by then ends
//! with [`DeviceError::Expired`], while the *call* goes on: it keeps its memory and its place until
//! it returns or the process ends. Such a call is *overdue*, and while there is one the device is
//! *stalled*: later requests get a [`STALLED_SHARE`]th of the time, and past [`OVERDUE_MAX`]
//! overdue calls they are refused at once. So a device that has stopped holds nothing up for more
//! than three deadlines: one request after the other takes two, and behind the lock of somebody who
//! asked just before the first expired another.
//!
//! A discard is a hint that may take a device long, so it counts apart: it has a
//! [`DISCARD_SHARE`]th of the time, one that is overdue makes no other request shorter, and until
//! it has returned the device is asked for no further discard.
//!
//! # Invariants
//!
//! D3, D4 and D5 of [`super`]: requests are refused here once the device has failed, a write or a
//! flush has expired, or the device was found to be shorter than it was. When an expired write
//! lands nobody knows, so nothing is written that it could overtake.

#![allow(clippy::disallowed_methods, reason = "a real device is waited for in the machine's time")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{DeviceError, DeviceInfo, Operation, RequestKind};

/// How long a device may take to answer, unless the user says otherwise: what Linux gives a disk
/// before it resets it. Long enough for a disk that spins up or tries a bad sector again.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);

/// Shortest deadline that may be chosen: below it a busy disk is taken for a dead one.
pub const DEADLINE_MIN: Duration = Duration::from_millis(100);

/// Overdue calls past which a device is asked nothing more: each keeps its memory, and a thread.
pub const OVERDUE_MAX: usize = 16;

/// A stalled device has such a part of the deadline for each further request.
pub const STALLED_SHARE: u64 = 16;

/// A discard has such a part of the deadline: the job that waits for it also has commits to make.
pub(super) const DISCARD_SHARE: u64 = 8;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Health {
    deadline_ns: u64,
    /// Of all kinds but discards.
    overdue: AtomicUsize,
    overdue_discards: AtomicUsize,
    has_failed: AtomicBool,
    is_shorter: AtomicBool,
}

/// What was asked, and how long the answer may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) kind: RequestKind,
    pub(super) offset: u64,
    pub(super) length_bytes: u64,
    pub(super) allowed_ns: u64,
}

impl Asked {
    /// Returns when the answer must be there if the request is submitted now.
    pub(super) fn deadline_from_now(&self) -> Instant {
        deadline_after(Duration::from_nanos(self.allowed_ns))
    }
}

/// Returns the moment `time` from now.
pub(super) fn deadline_after(time: Duration) -> Instant {
    let now = Instant::now();
    // Past what the machine's clock can tell there is no deadline to speak of.
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

/// Returns how long it is until `deadline`; `None` when it has passed.
pub(super) fn time_until(deadline: Instant) -> Option<Duration> {
    deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
}

fn is_change(kind: RequestKind) -> bool {
    match kind {
        RequestKind::Write | RequestKind::Flush => true,
        RequestKind::Read | RequestKind::Discard => false,
    }
}

fn shortened(info: &DeviceInfo) -> DeviceError {
    DeviceError::Shortened { device: info.name.clone(), size_bytes: info.size_bytes }
}

impl Health {
    pub(super) fn new(deadline: Duration) -> Health {
        let deadline = deadline.max(DEADLINE_MIN);
        Health {
            // Past 584 years there is no deadline to speak of.
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            overdue: AtomicUsize::new(0),
            overdue_discards: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            is_shorter: AtomicBool::new(false),
        }
    }

    /// Returns the deadline of a device that answers.
    pub(super) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns)
    }

    /// Takes a request in, or refuses it: D3, D4, D5, and what a stalled device is not asked.
    pub(super) fn admit(
        &self,
        info: &DeviceInfo,
        operation: &Operation,
    ) -> Result<Asked, DeviceError> {
        let kind = operation.kind();
        if is_change(kind) {
            self.check_end(info)?;
        }
        if is_change(kind) && self.has_failed() {
            return Err(DeviceError::Failed { device: info.name.clone() });
        }
        let overdue = self.overdue.load(Ordering::SeqCst);
        let discards = self.overdue_discards.load(Ordering::SeqCst);
        let is_discard = kind == RequestKind::Discard;
        if overdue >= OVERDUE_MAX || is_discard && discards > 0 {
            let overdue = overdue + discards;
            return Err(DeviceError::Stalled { device: info.name.clone(), overdue });
        }
        let is_stalled = overdue > 0;
        let share = match (is_stalled, is_discard) {
            (true, _) => STALLED_SHARE,
            (false, true) => DISCARD_SHARE,
            (false, false) => 1,
        };
        Ok(Asked {
            kind,
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
            allowed_ns: self.deadline_ns / share,
        })
    }

    /// The deadline of a request has passed; the call goes on if it `is_outstanding`.
    pub(super) fn expire(
        &self,
        info: &DeviceInfo,
        asked: &Asked,
        is_outstanding: bool,
    ) -> DeviceError {
        if is_outstanding {
            self.overdue_of(asked.kind).fetch_add(1, Ordering::SeqCst);
        }
        if is_change(asked.kind) {
            // D4.
            self.fail();
        }
        DeviceError::Expired {
            device: info.name.clone(),
            kind: asked.kind,
            offset: asked.offset,
            length_bytes: asked.length_bytes,
            waited_ms: asked.allowed_ns / 1_000_000,
        }
    }

    /// An overdue call of this kind has returned.
    pub(super) fn returned(&self, kind: RequestKind) {
        self.overdue_of(kind).fetch_sub(1, Ordering::SeqCst);
    }

    fn overdue_of(&self, kind: RequestKind) -> &AtomicUsize {
        match kind {
            RequestKind::Discard => &self.overdue_discards,
            RequestKind::Read | RequestKind::Write | RequestKind::Flush => &self.overdue,
        }
    }

    /// Returns how many calls are overdue.
    pub(super) fn overdue(&self) -> usize {
        self.overdue.load(Ordering::SeqCst) + self.overdue_discards.load(Ordering::SeqCst)
    }

    /// D5: whether it is known to have lost its end, whatever it has now.
    pub(super) fn check_end(&self, info: &DeviceInfo) -> Result<(), DeviceError> {
        if self.is_shorter.load(Ordering::SeqCst) { Err(shortened(info)) } else { Ok(()) }
    }

    /// D5: the device has lost its end.
    pub(super) fn shorten(&self, info: &DeviceInfo) -> DeviceError {
        self.is_shorter.store(true, Ordering::SeqCst);
        shortened(info)
    }

    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;

    fn read() -> Operation {
        Operation::Read { offset: 8192, buffer: AlignedBuffer::zeroed(4096) }
    }

    fn info() -> DeviceInfo {
        let name = "disk".to_owned();
        DeviceInfo {
            name,
            size_bytes: 1 << 20,
            sector_bytes: 512,
            is_read_only: false,
            has_write_through: true,
            is_sparse: false,
            transport: "memory",
        }
    }

    /// Goal: whatever is asked of a device that has stopped, one after the other, is over within
    /// two deadlines; and a device that comes back is asked again.
    #[test]
    fn a_stopped_device_costs_two_deadlines_and_is_asked_again_when_it_answers() {
        let health = Health::new(Duration::from_secs(1));
        let mut waited_ns = 0;
        for _ in 0..OVERDUE_MAX {
            let asked = health.admit(&info(), &read()).expect("below the bound");
            waited_ns += asked.allowed_ns;
            let error = health.expire(&info(), &asked, true).to_string();
            assert!(error.contains("disk: read of 4096 bytes at 8192"), "{error}");
        }
        assert!(waited_ns <= 2_000_000_000, "{waited_ns}");
        let refused = health.admit(&info(), &read()).expect_err("at the bound");
        assert!(matches!(refused, DeviceError::Stalled { overdue: OVERDUE_MAX, .. }), "{refused}");
        health.returned(RequestKind::Read);
        health.admit(&info(), &read()).expect("below the bound again");
        (1..OVERDUE_MAX).for_each(|_| health.returned(RequestKind::Read));
        let asked = health.admit(&info(), &Operation::Flush).expect("reads alone expired");
        assert_eq!(asked.allowed_ns, 1_000_000_000);
    }

    /// Goal: a discard that hangs costs other requests nothing, and no second discard is asked for
    /// before it has returned.
    #[test]
    fn a_discard_that_hangs_costs_other_requests_nothing() {
        let health = Health::new(Duration::from_secs(8));
        let discard = || Operation::Discard { offset: 0, length_bytes: 4096 };
        let asked = health.admit(&info(), &discard()).expect("healthy");
        assert_eq!(asked.allowed_ns, 1_000_000_000);
        health.expire(&info(), &asked, true);
        assert_eq!(health.overdue(), 1);
        for operation in [read(), Operation::Flush] {
            let asked = health.admit(&info(), &operation).expect("healthy");
            assert_eq!(asked.allowed_ns, 8_000_000_000, "{operation:?}");
        }
        let refused = health.admit(&info(), &discard()).expect_err("one is overdue");
        assert!(matches!(refused, DeviceError::Stalled { overdue: 1, .. }), "{refused}");
        health.returned(RequestKind::Discard);
        health.admit(&info(), &discard()).expect("it has returned");
    }

    #[test]
    fn an_expired_change_fails_the_device_for_changes_alone() {
        let health = Health::new(Duration::from_secs(1));
        let asked = health.admit(&info(), &Operation::Flush).expect("healthy");
        health.expire(&info(), &asked, true);
        let refused = health.admit(&info(), &Operation::Flush).expect_err("failed");
        assert!(matches!(refused, DeviceError::Failed { .. }), "{refused}");
        health.admit(&info(), &read()).expect("reads go on");
    }
}
