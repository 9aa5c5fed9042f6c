//! Deadline for all that is read from one side of a socket.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reader of a socket with one deadline for all bytes. The socket's own timeout would restart with
/// each byte.
pub(crate) struct DeadlineReader<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl<'s> DeadlineReader<'s> {
    pub(crate) fn new(stream: &'s UnixStream, patience: Duration) -> DeadlineReader<'s> {
        DeadlineReader { stream, end: Instant::now() + patience }
    }

    /// Returns the socket with the remaining time as its read timeout.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] after the deadline.
    pub(crate) fn stream(&self) -> std::io::Result<&'s UnixStream> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        Ok(self.stream)
    }
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.stream()?.read(bytes)
    }
}
