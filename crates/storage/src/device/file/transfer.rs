//! The part of a transfer that every transport has: the kernel may do less than it was asked.

use std::io::IoSlice;

use rustix::io::Errno;

use crate::device::SharedBytes;

/// Interruptions in a row before a transfer is given up: a signal storm, not a disk.
pub(super) const RETRIES_MAX: u32 = 1_000;

/// Why a transfer did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// What the system said.
    System(Errno),
    /// The file is shorter than it was when it was opened.
    Truncated,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::System(errno) => write!(f, "{}", std::io::Error::from(*errno)),
            Failure::Truncated => f.write_str("it became shorter while it was open"),
        }
    }
}

/// How far a transfer is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    length: usize,
    done: usize,
    retries: u32,
}

impl Progress {
    pub(super) fn new(length: usize) -> Progress {
        Progress { length, done: 0, retries: 0 }
    }

    pub(super) fn done(&self) -> usize {
        self.done
    }

    /// Takes in what one system call did; returns how it ended, if it did.
    pub(super) fn advance(&mut self, step: Result<usize, Errno>) -> Option<Result<(), Failure>> {
        match step {
            Ok(0) => return Some(Err(Failure::Truncated)),
            Ok(count) => {
                self.done += count;
                self.retries = 0;
            }
            Err(Errno::INTR | Errno::AGAIN) if self.retries < RETRIES_MAX => self.retries += 1,
            Err(errno) => return Some(Err(Failure::System(errno))),
        }
        assert!(self.done <= self.length, "the kernel did more than it was asked");
        (self.done == self.length).then_some(Ok(()))
    }
}

/// Calls `step` with how much is done until `length` bytes are.
pub(super) fn transfer(
    length: usize,
    mut step: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), Failure> {
    let mut progress = Progress::new(length);
    loop {
        if let Some(end) = progress.advance(step(progress.done())) {
            return end;
        }
    }
}

/// Returns what is left of `data` after its first `done` bytes.
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
        assert_eq!(transfer(8, |_| Ok(0)), Err(Failure::Truncated));
        assert_eq!(transfer(8, |_| Err(Errno::IO)), Err(Failure::System(Errno::IO)));
        assert_eq!(transfer(8, |_| Err(Errno::INTR)), Err(Failure::System(Errno::INTR)));
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
