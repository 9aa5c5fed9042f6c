//! /dev/fuse: descriptors of a connection to the kernel.
//!
//! Unsafe code: `ioctl(2)`.
#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

use super::exchange::ReplyParts;
use super::fuse_kernel::IOCTL_CLONE;

/// Most parts of one reply: `UIO_MAXIOV` of `include/uapi/linux/uio.h`.
const PARTS_MAX: usize = 1024;

/// Device number: `Documentation/admin-guide/devices.txt`.
const DEVICE_NUMBER: (u32, u32) = (10, 229);
/// Time limit of the kernel for each message of the handshake.
pub(super) const FIRST_REQUEST_TIME: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A descriptor of a connection. A request must be answered on the descriptor it was read from.
#[derive(Debug)]
pub(super) struct FuseDevice(OwnedFd);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FuseReadOutcome {
    Message(usize),
    /// No message, on a nonblocking descriptor.
    Nothing,
    Ended,
}

impl FuseDevice {
    /// Opens the device, not yet a connection. The kernel demands `O_RDWR`.
    pub(super) fn open() -> io::Result<FuseDevice> {
        Ok(FuseDevice(rustix::fs::open(
            "/dev/fuse",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?))
    }

    pub(super) fn from_descriptor(descriptor: OwnedFd) -> FuseDevice {
        FuseDevice(descriptor)
    }

    /// Refuses a descriptor from outside that is not a mounted connection. On a mounted one the
    /// INIT request is waiting already.
    pub(super) fn check(&self) -> io::Result<()> {
        let stat = rustix::fs::fstat(&self.0)?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        let number = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        if !is_device || number != DEVICE_NUMBER {
            return Err(io::Error::other("the descriptor that was handed over is no /dev/fuse"));
        }
        let mut asked = [PollFd::new(&self.0, PollFlags::IN)];
        let is_there = poll(&mut asked, Some(&FIRST_REQUEST_TIME))? > 0
            && asked[0].revents().contains(PollFlags::IN);
        if is_there {
            Ok(())
        } else {
            Err(io::Error::other("the /dev/fuse that was handed over is mounted nowhere"))
        }
    }

    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    /// Returns another descriptor of this connection. Each has its own queue of requests in
    /// progress, so that threads do not contend for a lock.
    pub(super) fn cloned(&self) -> io::Result<FuseDevice> {
        let snapshot = FuseDevice::open()?;
        // The kernel reads the number of the original descriptor.
        let number: RawFd = self.0.as_raw_fd();
        // SAFETY: FUSE_DEV_IOC_CLONE reads 4 bytes at its pointer, which `Setter` points to
        // `number`, and writes nothing.
        unsafe {
            type Clone = Setter<{ opcode::read::<u32>(IOCTL_CLONE.0, IOCTL_CLONE.1) }, RawFd>;
            ioctl(&snapshot.0, Clone::new(number))?;
        }
        Ok(snapshot)
    }

    /// Returns whether the kernel has ended the connection: fuse_dev_poll() then reports an error.
    pub(super) fn has_ended(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::empty())];
        let answer = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        answer.is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    pub(super) fn set_blocking(&self, blocks: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, !blocks)?)
    }

    /// Reads one message into the parts of `room`, which must hold the largest message.
    pub(super) fn read(&self, room: &mut [IoSliceMut<'_>]) -> io::Result<FuseReadOutcome> {
        loop {
            match rustix::io::readv(self.0.as_fd(), room) {
                Ok(count) => return Ok(FuseReadOutcome::Message(count)),
                // NOENT: the request was interrupted during the read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(FuseReadOutcome::Nothing),
                // Unmounted, or aborted by an administrator.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(FuseReadOutcome::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads one message. Returns `Nothing` if none comes within `time`, or if another process with
    /// this connection takes the message.
    pub(super) fn read_within(
        &self,
        time: &Timespec,
        room: &mut [IoSliceMut<'_>],
    ) -> io::Result<FuseReadOutcome> {
        self.set_blocking(false)?;
        let mut asked = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut asked, Some(time)))?;
        let read = self.read(room);
        self.set_blocking(true)?;
        read
    }

    /// Sends a reply. A reply to an interrupted request is dropped.
    pub(super) fn write(&self, reply: &ReplyParts<'_>) -> io::Result<()> {
        let gathered;
        let mut parts = Vec::with_capacity(1 + reply.data.len());
        parts.push(IoSlice::new(reply.head));
        if reply.data.len() < PARTS_MAX {
            parts.extend(reply.data.iter().map(|piece| IoSlice::new(piece)));
        } else {
            gathered = reply.data.concat();
            parts.push(IoSlice::new(&gathered));
        }
        loop {
            match rustix::io::writev(self.0.as_fd(), &parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // The request was interrupted, or the connection has ended. The next read reports
                // the end.
                Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for FuseDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a handshake does not block if another process takes the connection's requests. Method:
    /// an empty pipe, and then one with data.
    #[test]
    fn a_message_is_waited_for_so_long() {
        let (reader, writer) = std::io::pipe().expect("there is room");
        let device = FuseDevice::from_descriptor(reader.into());
        let time = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut room = [0; 8];
        let mut read = || device.read_within(&time, &mut [IoSliceMut::new(&mut room)]);
        assert_eq!(read().expect("it is a pipe"), FuseReadOutcome::Nothing);
        rustix::io::write(&writer, b"abc").expect("there is room");
        assert_eq!(read().expect("it is a pipe"), FuseReadOutcome::Message(3));
    }
}
