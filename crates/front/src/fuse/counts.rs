//! How many messages of the kernel were answered, and how long that took: by operation.
//!
//! A message is counted when its reply is about to be sent; a sync when it is over; of reads that
//! are answered together each when its own bytes are there. A watch is told of it, once one is set.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::vnode::api::Ino;

use super::kernel::opcode;
use super::protocol::{NodeId, NodeNumbers, Sender};
use crate::counts::{Count, OperationCounts};
use crate::watch::{Answered, Asker, Place, Watch};

/// Numbers of operations: those that are not here are counted as the first.
const OPERATIONS: usize = 64;

/// Messages of a mount, by operation.
#[derive(Debug)]
pub struct FuseCounts {
    by_opcode: [Count; OPERATIONS],
    watched: OnceLock<Watched>,
}

/// Who sees what is asked, and where.
#[derive(Debug)]
struct Watched {
    watch: Arc<Watch>,
    place: Arc<Place>,
    numbers: NodeNumbers,
}

/// What a message asks, and who sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct About {
    pub(super) opcode: u32,
    pub(super) node: NodeId,
    /// `None`: the kernel, for whoever reads there.
    pub(super) sender: Option<Sender>,
}

impl Default for FuseCounts {
    fn default() -> FuseCounts {
        let by_opcode = std::array::from_fn(|_| Count::default());
        FuseCounts { by_opcode, watched: OnceLock::new() }
    }
}

impl Watched {
    #[cold]
    fn tell(&self, about: &About, took: Duration, is_failed: bool) {
        let known = |number: u32| Some(number).filter(|_| number != 0);
        let asker = Asker {
            address: None,
            uid: about.sender.map(|sender| sender.uid),
            thread: about.sender.and_then(|sender| known(sender.thread)),
        };
        let (place, operation) = (&self.place, name_of(about.opcode));
        let ino = self.numbers.ino_of(about.node);
        let answered = Answered { place, asker, operation, ino, took, is_failed };
        self.watch.tell(&answered, Instant::now());
    }
}

impl FuseCounts {
    /// From now on `watch` sees what is asked of the mount at `place`, whose root has the number
    /// `root`. The first that is set stays.
    pub fn watched_by(&self, watch: &Arc<Watch>, place: Place, root: Ino) {
        let (watch, place, numbers) = (Arc::clone(watch), Arc::new(place), NodeNumbers::new(root));
        // A mount is in one server, which has one watch.
        let _ = self.watched.set(Watched { watch, place, numbers });
    }

    /// One was answered.
    pub(super) fn add(&self, about: &About, took: Duration, is_failed: bool) {
        let index = usize::try_from(about.opcode).unwrap_or(0);
        let index = if index < OPERATIONS { index } else { 0 };
        if let Some(count) = self.by_opcode.get(index) {
            count.add(took, is_failed);
        }
        if let Some(watched) = self.watched.get()
            && watched.watch.wants(took)
        {
            watched.tell(about, took, is_failed);
        }
    }

    /// Returns what is counted by now: all operations, in one order.
    #[must_use]
    pub fn get(&self) -> Vec<OperationCounts> {
        (0..).zip(&self.by_opcode).map(|(opcode, count)| count.get(name_of(opcode))).collect()
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
    use crate::fuse::protocol::ROOT_NODE;

    #[test]
    fn what_has_no_name_is_counted_as_other() {
        let counts = FuseCounts::default();
        let about = |opcode| About { opcode, node: ROOT_NODE, sender: None };
        let took = Duration::from_micros(60);
        counts.add(&about(opcode::READ), took, false);
        counts.add(&about(opcode::READ), took, true);
        counts.add(&about(u32::MAX), took, false);
        counts.add(&about(63), took, false);
        let all = counts.get();
        let of = |name: &str| all.iter().filter(|it| it.name == name).map(|it| it.answered).sum();
        let read = all.iter().find(|it| it.name == "READ").expect("it has a name");
        assert_eq!((read.answered, read.failed, read.latency_ns), (2, 1, 120_000));
        assert_eq!(read.buckets[3], 2, "at most 100 us");
        assert_eq!((of("OTHER"), of("WRITE")), (2_u64, 0_u64));
    }
}
