//! One deadline for all that the other side of a socket sends, however slowly it does.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Reads a socket until a moment. The timeout of a socket alone begins again with each byte.
pub(crate) struct Until<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl<'s> Until<'s> {
    /// Returns a reader of `stream` for as long as `patience`.
    pub(crate) fn new(stream: &'s UnixStream, patience: Duration) -> Until<'s> {
        Until { stream, end: Instant::now() + patience }
    }

    /// Returns the socket, whose next read takes no longer than is left.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: nothing is left.
    pub(crate) fn stream(&self) -> std::io::Result<&'s UnixStream> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        Ok(self.stream)
    }
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.stream()?.read(bytes)
    }
}
