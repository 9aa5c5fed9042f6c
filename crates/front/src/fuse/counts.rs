//! Counts and latencies of FUSE requests by opcode.
//!
//! A request is counted just before its reply is sent, a sync when it completes, and each read of a
//! batch when its own data is ready. A [`Watch`], once set, gets each request too.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::api::Ino;

use super::kernel::opcode;
use super::protocol::{NodeId, NodeNumbers, Sender};
use crate::counts::{Count, OperationCounts};
use crate::watch::{AccessPoint, AnsweredRequest, RequestSource, Watch};

/// Opcodes counted separately. Higher ones are counted under index 0.
const OPERATIONS: usize = 64;

/// Request counters of one mount.
#[derive(Debug)]
pub struct FuseCounts {
    by_opcode: [Count; OPERATIONS],
    watched: OnceLock<WatchedMount>,
}

#[derive(Debug)]
struct WatchedMount {
    watch: Arc<Watch>,
    place: Arc<AccessPoint>,
    numbers: NodeNumbers,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FuseRequestOrigin {
    pub(super) opcode: u32,
    pub(super) node: NodeId,
    /// `None` for a batched read.
    pub(super) sender: Option<Sender>,
}

impl Default for FuseCounts {
    fn default() -> FuseCounts {
        let by_opcode = std::array::from_fn(|_| Count::default());
        FuseCounts { by_opcode, watched: OnceLock::new() }
    }
}

impl WatchedMount {
    #[cold]
    fn tell(&self, about: &FuseRequestOrigin, took: Duration, is_failed: bool) {
        let known = |number: u32| Some(number).filter(|_| number != 0);
        let asker = RequestSource {
            address: None,
            uid: about.sender.map(|sender| sender.uid),
            thread: about.sender.and_then(|sender| known(sender.thread)),
        };
        let (place, operation) = (&self.place, name_of(about.opcode));
        let ino = self.numbers.ino_of(about.node);
        let answered = AnsweredRequest { place, asker, operation, ino, took, is_failed };
        self.watch.tell(&answered, Instant::now());
    }
}

impl FuseCounts {
    /// Reports each request of the mount at `place` with root `root` to `watch`. Only the first
    /// call has an effect.
    pub fn watched_by(&self, watch: &Arc<Watch>, place: AccessPoint, root: Ino) {
        let (watch, place, numbers) = (Arc::clone(watch), Arc::new(place), NodeNumbers::new(root));
        // A server has at most one watch.
        let _ = self.watched.set(WatchedMount { watch, place, numbers });
    }

    /// Counts a request. `bytes` is the length of the data of a read or of the message of a write.
    pub(super) fn add(
        &self,
        about: &FuseRequestOrigin,
        took: Duration,
        is_failed: bool,
        bytes: usize,
    ) {
        let index = usize::try_from(about.opcode).unwrap_or(0);
        let index = if index < OPERATIONS { index } else { 0 };
        if let Some(count) = self.by_opcode.get(index) {
            count.add(took, is_failed, bytes);
        }
        if let Some(watched) = self.watched.get()
            && watched.watch.wants(took)
        {
            watched.tell(about, took, is_failed);
        }
    }

    /// Returns the counts of all opcodes, in a fixed order.
    #[must_use]
    pub fn get(&self) -> Vec<OperationCounts> {
        (0..).zip(&self.by_opcode).map(|(opcode, count)| count.get(name_of(opcode))).collect()
    }
}

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
        opcode::GETLK => "GETLK",
        opcode::SETLK => "SETLK",
        opcode::SETLKW => "SETLKW",
        opcode::ACCESS => "ACCESS",
        opcode::CREATE => "CREATE",
        opcode::INTERRUPT => "INTERRUPT",
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
    use crate::fuse::protocol::ROOT_NODE;

    #[test]
    fn what_has_no_name_is_counted_as_other() {
        let counts = FuseCounts::default();
        let about = |opcode| FuseRequestOrigin { opcode, node: ROOT_NODE, sender: None };
        let took = Duration::from_micros(60);
        counts.add(&about(opcode::READ), took, false, 4096);
        counts.add(&about(opcode::READ), took, true, 0);
        counts.add(&about(u32::MAX), took, false, 0);
        counts.add(&about(63), took, false, 0);
        let all = counts.get();
        let of = |name: &str| all.iter().filter(|it| it.name == name).map(|it| it.answered).sum();
        let read = all.iter().find(|it| it.name == "READ").expect("it has a name");
        assert_eq!((read.answered, read.failed, read.latency_ns), (2, 1, 120_000));
        assert_eq!(read.bytes, 4096);
        assert_eq!(read.buckets[3], 2, "at most 100 us");
        assert_eq!((of("OTHER"), of("WRITE")), (2_u64, 0_u64));
    }
}
