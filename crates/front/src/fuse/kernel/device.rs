//! /dev/fuse: a connection to the kernel, and further descriptors of the same.
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

/// Number of the device: `Documentation/admin-guide/devices.txt`.
const DEVICE_NUMBER: (u32, u32) = (10, 229);
/// How long the kernel may take for a request of the handshake.
pub(super) const FIRST_REQUEST_TIME: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A descriptor of a connection. A request that was read from it is answered on it.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

/// What reading brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A message of this many bytes.
    Message(usize),
    /// None is there, and the descriptor does not block.
    Nothing,
    /// The connection has ended.
    Ended,
}

impl Device {
    /// Opens the device, which is not yet a connection. `O_RDWR` as the kernel demands.
    pub(super) fn open() -> io::Result<Device> {
        Ok(Device(rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// Takes over a descriptor that is a connection.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> Device {
        Device(descriptor)
    }

    /// Refuses a descriptor that somebody else has handed over and that is no connection on which
    /// the kernel has a request already, as it has one at once when it is mounted.
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

    /// Returns the descriptor.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.0
    }

    /// Returns one more descriptor of this connection. Each has a queue of its own for what was
    /// read and not yet answered, so that threads do not contend for one.
    pub(super) fn cloned(&self) -> io::Result<Device> {
        let clone = Device::open()?;
        // The kernel reads the number of the descriptor to clone.
        let number: RawFd = self.0.as_raw_fd();
        // SAFETY: FUSE_DEV_IOC_CLONE reads 4 bytes at the pointer it gets, which `Setter` makes
        // point to `number`; it writes nothing.
        unsafe {
            type Clone = Setter<{ opcode::read::<u32>(IOCTL_CLONE.0, IOCTL_CLONE.1) }, RawFd>;
            ioctl(&clone.0, Clone::new(number))?;
        }
        Ok(clone)
    }

    /// Whether the kernel has ended the connection: fuse_dev_poll() says so by an error.
    pub(super) fn has_ended(&self) -> bool {
        let mut asked = [PollFd::new(&self.0, PollFlags::empty())];
        let answer = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        answer.is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Says whether [`Device::read`] waits for a message.
    pub(super) fn set_blocking(&self, blocks: bool) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, !blocks)?)
    }

    /// Reads one message into `room`, one part after the other, which must hold the largest.
    pub(super) fn read(&self, room: &mut [IoSliceMut<'_>]) -> io::Result<Read> {
        loop {
            match rustix::io::readv(self.0.as_fd(), room) {
                Ok(count) => return Ok(Read::Message(count)),
                // NOENT: what would have been read was taken back just now.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(Read::Nothing),
                // Unmounted, or aborted by an administrator.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Read::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Device::read`]; nothing, if no message is there within `time`, or somebody else who has
    /// the connection takes it.
    pub(super) fn read_within(
        &self,
        time: &Timespec,
        room: &mut [IoSliceMut<'_>],
    ) -> io::Result<Read> {
        self.set_blocking(false)?;
        let mut asked = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut asked, Some(time)))?;
        let read = self.read(room);
        self.set_blocking(true)?;
        read
    }

    /// Sends a reply. What nobody waits for any more is dropped.
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
                // The request was taken back, or the connection has ended, as reading will tell.
                Err(Errno::NOENT | Errno::NODEV) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a connection whose requests somebody else takes keeps nobody waiting. Method: a pipe
    /// in which nothing is, and then something.
    #[test]
    fn a_message_is_waited_for_so_long() {
        let (reader, writer) = std::io::pipe().expect("there is room");
        let device = Device::from_descriptor(reader.into());
        let time = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut room = [0; 8];
        let mut read = || device.read_within(&time, &mut [IoSliceMut::new(&mut room)]);
        assert_eq!(read().expect("it is a pipe"), Read::Nothing);
        rustix::io::write(&writer, b"abc").expect("there is room");
        assert_eq!(read().expect("it is a pipe"), Read::Message(3));
    }
}
