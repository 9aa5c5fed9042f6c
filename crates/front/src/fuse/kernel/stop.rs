//! Ends the service of a connection without unmounting it. A mounter controls the path, which may
//! lead elsewhere at any time.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::device::{FuseDevice, FuseReadOutcome};
use super::inbox::Inbox;

const ONE: [u8; 8] = 1_u64.to_le_bytes();

/// Signal for threads that wait for messages.
#[derive(Debug)]
pub(in crate::fuse) struct ServiceStop {
    is_set: AtomicBool,
    event: OwnedFd,
}

impl ServiceStop {
    pub(super) fn new() -> io::Result<ServiceStop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(ServiceStop { is_set: AtomicBool::new(false), event })
    }

    pub(in crate::fuse) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // Never read, so the event stays set and wakes every waiter.
        let _ = rustix::io::write(&self.event, &ONE);
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits for a message on `device`, which must be nonblocking. Returns `Ended` after the
    /// signal.
    pub(super) fn read(
        &self,
        device: &FuseDevice,
        inbox: &mut Inbox,
    ) -> io::Result<FuseReadOutcome> {
        loop {
            if self.is_set() {
                return Ok(FuseReadOutcome::Ended);
            }
            match device.read(&mut inbox.room())? {
                FuseReadOutcome::Nothing => {}
                read @ (FuseReadOutcome::Message(_) | FuseReadOutcome::Ended) => return Ok(read),
            }
            let flags = PollFlags::IN;
            match poll(&mut [PollFd::new(device, flags), PollFd::new(&self.event, flags)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
