//! The health of a device, and the deadlines of its requests.
//!
//! A request not completed by its deadline, counted from submission, fails with
//! [`DeviceError::Expired`]. Its system *call* goes on, keeps its memory, and is *overdue*. A
//! device with an overdue call is *stalled*: further requests get 1/[`STALLED_SHARE`] of the time,
//! and at [`OVERDUE_MAX`] overdue calls they fail at once. So a dead device costs a caller three
//! deadlines at most: one for the first request, one in all for the [`OVERDUE_MAX`] shortened ones
//! after it, and one waiting for a lock whose holder submitted its request just before the first
//! expiry.
//!
//! A discard may be slow and is only a hint. A discard gets 1/[`DISCARD_SHARE`] of the time, does
//! not stall other requests, and excludes other discards until it returns.
//!
//! # Invariants
//!
//! D3, D4 and D5 of [`super`] are enforced here. An expired write may still happen, so no later
//! write is issued, because the expired one could overtake it.

#![allow(clippy::disallowed_methods, reason = "a real device is waited for in the machine's time")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{DeviceError, DeviceInfo, DeviceOperation, RequestKind};

/// Default deadline: the time after which Linux resets a disk. Enough for a spin-up, or for retries
/// of a bad sector.
pub const DEADLINE_DEFAULT: Duration = Duration::from_secs(30);

/// Shortest deadline. Below it a busy disk appears dead.
pub const DEADLINE_MIN: Duration = Duration::from_millis(100);

/// Overdue calls at which a device takes no more requests. Each holds memory and a thread.
pub const OVERDUE_MAX: usize = 16;

/// Divisor of the deadline while a device is stalled.
pub const STALLED_SHARE: u64 = 16;

/// Divisor of the deadline for a discard: the job that waits for it has commits to make too.
pub(super) const DISCARD_SHARE: u64 = 8;

#[derive(Debug)]
pub(super) struct Health {
    deadline_ns: u64,
    /// Overdue calls other than discards.
    overdue: AtomicUsize,
    overdue_discards: AtomicUsize,
    has_failed: AtomicBool,
    is_shorter: AtomicBool,
}

/// A submitted request and its time limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimedRequest {
    pub(super) kind: RequestKind,
    pub(super) offset: u64,
    pub(super) length_bytes: u64,
    pub(super) allowed_ns: u64,
}

impl TimedRequest {
    pub(super) fn deadline_from_now(&self) -> Instant {
        deadline_after(Duration::from_nanos(self.allowed_ns))
    }
}

pub(super) fn deadline_after(time: Duration) -> Instant {
    let now = Instant::now();
    // If the clock cannot represent the deadline, one that is never reached in practice.
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

/// Returns the time until `deadline`. `None` once it has passed.
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
            // 584 years at most.
            deadline_ns: u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX),
            overdue: AtomicUsize::new(0),
            overdue_discards: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
            is_shorter: AtomicBool::new(false),
        }
    }

    pub(super) fn deadline(&self) -> Duration {
        Duration::from_nanos(self.deadline_ns)
    }

    /// Admits a request, or refuses it by D3, D4, D5 or the limits of a stalled device.
    pub(super) fn admit(
        &self,
        info: &DeviceInfo,
        operation: &DeviceOperation,
    ) -> Result<TimedRequest, DeviceError> {
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
        Ok(TimedRequest {
            kind,
            offset: operation.offset().unwrap_or(0),
            length_bytes: operation.length_bytes(),
            allowed_ns: self.deadline_ns / share,
        })
    }

    /// Records an expired request. With `is_outstanding` its system call goes on, and is overdue.
    pub(super) fn expire(
        &self,
        info: &DeviceInfo,
        asked: &TimedRequest,
        is_outstanding: bool,
    ) -> DeviceError {
        if is_outstanding {
            self.overdue_of(asked.kind).fetch_add(1, Ordering::SeqCst);
        }
        if is_change(asked.kind) {
            // Like a failed flush (D4).
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

    pub(super) fn returned(&self, kind: RequestKind) {
        self.overdue_of(kind).fetch_sub(1, Ordering::SeqCst);
    }

    fn overdue_of(&self, kind: RequestKind) -> &AtomicUsize {
        match kind {
            RequestKind::Discard => &self.overdue_discards,
            RequestKind::Read | RequestKind::Write | RequestKind::Flush => &self.overdue,
        }
    }

    pub(super) fn overdue(&self) -> usize {
        self.overdue.load(Ordering::SeqCst) + self.overdue_discards.load(Ordering::SeqCst)
    }

    /// Fails if the device was ever found shortened, even if it is long enough again (D5).
    pub(super) fn check_end(&self, info: &DeviceInfo) -> Result<(), DeviceError> {
        if self.is_shorter.load(Ordering::SeqCst) { Err(shortened(info)) } else { Ok(()) }
    }

    /// Records that the device is shortened (D5).
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

    fn read() -> DeviceOperation {
        DeviceOperation::Read { offset: 8192, buffer: AlignedBuffer::zeroed(4096) }
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

    /// Goal: a dead device costs a sequence of requests two deadlines, and is used again when it
    /// answers.
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
        let asked = health.admit(&info(), &DeviceOperation::Flush).expect("reads alone expired");
        assert_eq!(asked.allowed_ns, 1_000_000_000);
    }

    /// Goal: a hanging discard delays further discards only.
    #[test]
    fn a_discard_that_hangs_costs_other_requests_nothing() {
        let health = Health::new(Duration::from_secs(8));
        let discard = || DeviceOperation::Discard { offset: 0, length_bytes: 4096 };
        let asked = health.admit(&info(), &discard()).expect("healthy");
        assert_eq!(asked.allowed_ns, 1_000_000_000);
        health.expire(&info(), &asked, true);
        assert_eq!(health.overdue(), 1);
        for operation in [read(), DeviceOperation::Flush] {
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
        let asked = health.admit(&info(), &DeviceOperation::Flush).expect("healthy");
        health.expire(&info(), &asked, true);
        let refused = health.admit(&info(), &DeviceOperation::Flush).expect_err("failed");
        assert!(matches!(refused, DeviceError::Failed { .. }), "{refused}");
        health.admit(&info(), &read()).expect("reads go on");
    }
}
