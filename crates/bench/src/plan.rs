//! How much is done: every count and size of the workloads, by one factor.
//!
//! At scale 1 these are the amounts that the project's goals are stated for: trees of 50,000 files,
//! streams of 4 GiB. Each has a least value, below which a rate would tell of the clock alone.

use serde::Serialize;

use crate::number::scaled;

/// Smallest and largest factor.
pub const SCALE_MIN: f64 = 0.001;
/// See [`SCALE_MIN`]: what still fits on a machine that one would bench on.
pub const SCALE_MAX: f64 = 10.0;
/// Most rounds: more would take days.
pub const ROUNDS_MAX: u32 = 1000;
/// Most client threads.
pub const THREADS_MAX: usize = 64;
/// Bytes of a small file, and of a small overwrite or read.
pub const SMALL_BYTES: usize = 4096;
/// Bytes of a request of a stream.
pub const STREAM_REQUEST_BYTES: usize = 1 << 20;
/// Overwrites between two fsyncs.
pub const OVERWRITES_PER_SYNC: u64 = 32;
/// Bytes of the average file of a generated tree, rounded up.
const TREE_FILE_BYTES: u64 = 16 << 10;

/// Counts and sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The factor.
    pub scale: f64,
    /// Files whose names are worked on, by all threads together.
    pub names: u64,
    /// Small files that are written.
    pub small_files: u64,
    /// Small files that are written and synced.
    pub durable_files: u64,
    /// Small files that are written one after the other for long, and then removed.
    pub sustained_files: u64,
    /// Files of the tree.
    pub tree_files: u64,
    /// Files of the source that the Andrew-like phases copy and build.
    pub andrew_files: u64,
    /// Repetitions of the Connectathon-like tests' files.
    pub connectathon_files: u64,
    /// Operations of the mix.
    pub mixed_operations: u64,
    /// Overwrites of 4 KiB.
    pub overwrites: u64,
    /// Reads of 4 KiB.
    pub random_reads: u64,
    /// Bytes of the file that is overwritten and read at random.
    pub random_file_bytes: u64,
    /// Bytes of a stream.
    pub stream_bytes: u64,
}

impl Plan {
    /// Returns the amounts at `scale`, which is brought within its bounds.
    #[must_use]
    pub fn new(scale: f64) -> Plan {
        let scale = scale.clamp(SCALE_MIN, SCALE_MAX);
        let mebibytes = |count: u64, least: u64| scaled(count, scale, least) << 20;
        Plan {
            scale,
            names: scaled(50_000, scale, 64),
            small_files: scaled(20_000, scale, 64),
            durable_files: scaled(4000, scale, 64),
            sustained_files: scaled(250_000, scale, 64),
            tree_files: scaled(50_000, scale, 64),
            andrew_files: scaled(5000, scale, 32),
            connectathon_files: scaled(5000, scale, 32),
            mixed_operations: scaled(100_000, scale, 256),
            overwrites: scaled(20_000, scale, 64),
            random_reads: scaled(40_000, scale, 256),
            random_file_bytes: mebibytes(2048, 4),
            stream_bytes: mebibytes(4096, 4),
        }
    }

    /// Returns how many bytes the tree's files take, rounded up.
    #[must_use]
    pub fn tree_bytes(&self) -> u64 {
        self.tree_files * TREE_FILE_BYTES
    }

    /// Returns how many bytes the files of the Andrew-like phases take: source, copy, objects.
    #[must_use]
    pub fn andrew_bytes(&self) -> u64 {
        self.andrew_files * TREE_FILE_BYTES * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_one_is_what_the_goals_are_stated_for() {
        let plan = Plan::new(1.0);
        assert_eq!((plan.tree_files, plan.stream_bytes), (50_000, 4 << 30));
        assert_eq!(Plan::new(100.0), Plan::new(SCALE_MAX));
        assert_eq!(Plan::new(SCALE_MIN).stream_bytes, 4 << 20);
    }
}
