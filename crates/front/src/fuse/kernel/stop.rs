//! The end of a connection that this process is not to unmount: what a mounter calls its directory
//! is his word, and a path leads elsewhere when he likes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::device::{Device, Read};
use super::inbox::Inbox;

/// What raises the count of an eventfd(2).
const ONE: [u8; 8] = 1_u64.to_le_bytes();

/// Says to threads that wait for messages that no more are to be answered.
#[derive(Debug)]
pub(in crate::fuse) struct Stop {
    is_set: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    /// Returns one that is not said.
    pub(super) fn new() -> io::Result<Stop> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { is_set: AtomicBool::new(false), event })
    }

    /// Says it.
    pub(in crate::fuse) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        // It is never read: once is enough.
        let _ = rustix::io::write(&self.event, &ONE);
    }

    /// Whether it was said.
    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    /// Waits for a message of `device`, which is set not to block; it has ended when this is said.
    pub(super) fn read(&self, device: &Device, inbox: &mut Inbox) -> io::Result<Read> {
        loop {
            if self.is_set() {
                return Ok(Read::Ended);
            }
            match device.read(&mut inbox.room())? {
                Read::Nothing => {}
                read @ (Read::Message(_) | Read::Ended) => return Ok(read),
            }
            let flags = PollFlags::IN;
            match poll(&mut [PollFd::new(device, flags), PollFd::new(&self.event, flags)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
