//! How many messages of the kernel were answered, and how long that took: by operation.
//!
//! A message is counted when its reply is about to be sent; a sync when it is over; of reads that
//! are answered together each when its own bytes are there.

use std::time::Duration;

use super::kernel::opcode;
use crate::counts::{Count, OperationCounts};

/// Numbers of operations: those that are not here are counted as the first.
const OPERATIONS: usize = 64;

/// Messages of a mount, by operation.
#[derive(Debug)]
pub struct FuseCounts([Count; OPERATIONS]);

impl Default for FuseCounts {
    fn default() -> FuseCounts {
        FuseCounts(std::array::from_fn(|_| Count::default()))
    }
}

impl FuseCounts {
    /// One was answered.
    pub(super) fn add(&self, opcode: u32, took: Duration, is_failed: bool) {
        let index = usize::try_from(opcode).unwrap_or(0);
        let index = if index < OPERATIONS { index } else { 0 };
        if let Some(count) = self.0.get(index) {
            count.add(took, is_failed);
        }
    }

    /// Returns what is counted by now: all operations, in one order.
    #[must_use]
    pub fn get(&self) -> Vec<OperationCounts> {
        (0..).zip(&self.0).map(|(opcode, count)| count.get(name_of(opcode))).collect()
    }
}

/// Returns the name of an operation.
fn name_of(opcode: u32) -> &'static str {
    match opcode {
        opcode::LOOKUP => "LOOKUP",
        opcode::FORGET => "FORGET",
        opcode::GETATTR => "GETATTR",
        opcode::SETATTR => "SETATTR",
        opcode::READLINK => "READLINK",
        opcode::SYMLINK => "SYMLINK",
        opcode::MKNOD => "MKNOD",
        opcode::MKDIR => "MKDIR",
        opcode::UNLINK => "UNLINK",
        opcode::RMDIR => "RMDIR",
        opcode::RENAME => "RENAME",
        opcode::LINK => "LINK",
        opcode::OPEN => "OPEN",
        opcode::READ => "READ",
        opcode::WRITE => "WRITE",
        opcode::STATFS => "STATFS",
        opcode::RELEASE => "RELEASE",
        opcode::FSYNC => "FSYNC",
        opcode::SETXATTR => "SETXATTR",
        opcode::GETXATTR => "GETXATTR",
        opcode::LISTXATTR => "LISTXATTR",
        opcode::REMOVEXATTR => "REMOVEXATTR",
        opcode::FLUSH => "FLUSH",
        opcode::OPENDIR => "OPENDIR",
        opcode::READDIR => "READDIR",
        opcode::RELEASEDIR => "RELEASEDIR",
        opcode::FSYNCDIR => "FSYNCDIR",
        opcode::ACCESS => "ACCESS",
        opcode::CREATE => "CREATE",
        opcode::BATCH_FORGET => "BATCH_FORGET",
        opcode::FALLOCATE => "FALLOCATE",
        opcode::READDIRPLUS => "READDIRPLUS",
        opcode::RENAME2 => "RENAME2",
        opcode::LSEEK => "LSEEK",
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => "COPY_FILE_RANGE",
        opcode::TMPFILE => "TMPFILE",
        opcode::STATX => "STATX",
        _ => "OTHER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_name_is_counted_as_other() {
        let counts = FuseCounts::default();
        let took = Duration::from_micros(60);
        counts.add(opcode::READ, took, false);
        counts.add(opcode::READ, took, true);
        counts.add(u32::MAX, took, false);
        counts.add(63, took, false);
        let all = counts.get();
        let of = |name: &str| all.iter().filter(|it| it.name == name).map(|it| it.answered).sum();
        let read = all.iter().find(|it| it.name == "READ").expect("it has a name");
        assert_eq!((read.answered, read.failed, read.latency_ns), (2, 1, 120_000));
        assert_eq!(read.buckets[3], 2, "at most 100 us");
        assert_eq!((of("OTHER"), of("WRITE")), (2_u64, 0_u64));
    }
}
