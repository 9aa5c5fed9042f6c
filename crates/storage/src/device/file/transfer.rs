//! Continuation of short transfers, common to all transports.

use std::io::IoSlice;

use rustix::io::Errno;

use crate::device::SharedBytes;

/// Interruptions in a row before a transfer fails: a signal storm, not a disk.
pub(super) const RETRIES_MAX: u32 = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferError {
    /// System error.
    System(Errno),
    /// The file is shorter than when opened.
    Truncated,
}

impl std::fmt::Display for TransferError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TransferError::System(errno) => write!(f, "{}", std::io::Error::from(*errno)),
            TransferError::Truncated => f.write_str("it became shorter while it was open"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct TransferProgress {
    length: usize,
    done: usize,
    retries: u32,
}

impl TransferProgress {
    pub(super) fn new(length: usize) -> TransferProgress {
        TransferProgress { length, done: 0, retries: 0 }
    }

    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Accounts for one system call. Returns the result once the transfer has ended.
    pub(super) fn advance(
        &mut self,
        step: Result<usize, Errno>,
    ) -> Option<Result<(), TransferError>> {
        match step {
            Ok(0) => return Some(Err(TransferError::Truncated)),
            Ok(count) => {
                self.done += count;
                self.retries = 0;
            }
            Err(Errno::INTR | Errno::AGAIN) if self.retries < RETRIES_MAX => self.retries += 1,
            Err(errno) => return Some(Err(TransferError::System(errno))),
        }
        assert!(self.done <= self.length, "the kernel did more than it was asked");
        (self.done == self.length).then_some(Ok(()))
    }
}

/// Calls `step` with the bytes done so far, until `length` are done.
pub(super) fn transfer(
    length: usize,
    mut step: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), TransferError> {
    let mut progress = TransferProgress::new(length);
    loop {
        if let Some(end) = progress.advance(step(progress.done())) {
            return end;
        }
    }
}

/// Returns `data` without its first `done` bytes.
pub(super) fn slices_after(data: &[SharedBytes], done: usize) -> Vec<IoSlice<'_>> {
    let mut skip = done;
    let mut slices = Vec::with_capacity(data.len());
    for piece in data {
        let skipped = skip.min(piece.len());
        skip -= skipped;
        if skipped < piece.len() {
            slices.push(IoSlice::new(&piece[skipped..]));
        }
    }
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AlignedBuffer;

    #[test]
    fn short_and_interrupted_transfers_go_on_where_they_were() {
        let mut script = vec![Ok(3), Err(Errno::INTR), Ok(4), Err(Errno::AGAIN), Ok(1)];
        script.reverse();
        let mut asked = Vec::new();
        let result = transfer(8, |done| {
            asked.push(done);
            script.pop().expect("the transfer ends with the script")
        });
        assert_eq!(result, Ok(()));
        assert_eq!(asked, [0, 3, 3, 7, 7]);
    }

    #[test]
    fn end_of_file_errors_and_endless_interruptions_end_it() {
        assert_eq!(transfer(8, |_| Ok(0)), Err(TransferError::Truncated));
        assert_eq!(transfer(8, |_| Err(Errno::IO)), Err(TransferError::System(Errno::IO)));
        assert_eq!(transfer(8, |_| Err(Errno::INTR)), Err(TransferError::System(Errno::INTR)));
    }

    #[test]
    fn what_is_left_of_pieces_starts_inside_one() {
        let piece = |length: usize| SharedBytes::from(AlignedBuffer::zeroed(length));
        let data = [piece(10), piece(20), piece(30)];
        let lengths = |done: usize| -> Vec<usize> {
            slices_after(&data, done).iter().map(|slice| slice.len()).collect()
        };
        assert_eq!(lengths(0), [10, 20, 30]);
        assert_eq!(lengths(4), [6, 20, 30]);
        assert_eq!(lengths(10), [20, 30]);
        assert_eq!(lengths(29), [1, 30]);
        assert_eq!(lengths(60), [0; 0]);
    }
}
