//! Counts and sizes of the workloads, scaled by one factor.
//!
//! Scale 1 has the amounts in the project's goals: trees of 50,000 files, streams of 4 GiB. Each
//! amount has a minimum, below which the clock resolution would dominate.

use serde::Serialize;

use crate::number::scaled;

/// Smallest scale.
pub const SCALE_MIN: f64 = 0.001;
/// Largest scale, which still fits on a typical benchmark machine.
pub const SCALE_MAX: f64 = 10.0;
/// Maximum rounds. More would take days.
pub const ROUNDS_MAX: u32 = 1000;
/// Maximum client threads.
pub const THREADS_MAX: usize = 64;
/// Size of a small file, overwrite or read.
pub const SMALL_BYTES: usize = 4096;
/// Request size of a stream.
pub const STREAM_REQUEST_BYTES: usize = 1 << 20;
/// Overwrites per fsync.
pub const OVERWRITES_PER_SYNC: u64 = 32;
/// Average file size of a generated tree, rounded up.
const TREE_FILE_BYTES: u64 = 16 << 10;

/// Counts and sizes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BenchPlan {
    /// Scale.
    pub scale: f64,
    /// Files for name operations, over all threads.
    pub names: u64,
    /// Small files to write.
    pub small_files: u64,
    /// Small files to write and sync.
    pub durable_files: u64,
    /// Small files to write in one long sequence, and then remove.
    pub sustained_files: u64,
    /// Files in the tree.
    pub tree_files: u64,
    /// Source files that the Andrew-like phases copy and build.
    pub andrew_files: u64,
    /// Files per Connectathon-like test.
    pub connectathon_files: u64,
    /// Operations in the mix.
    pub mixed_operations: u64,
    /// Overwrites of 4 KiB.
    pub overwrites: u64,
    /// Reads of 4 KiB.
    pub random_reads: u64,
    /// Size of the file for random overwrites and reads.
    pub random_file_bytes: u64,
    /// Size of a stream.
    pub stream_bytes: u64,
}

impl BenchPlan {
    /// Returns the amounts at `scale`, clamped to its bounds.
    #[must_use]
    pub fn new(scale: f64) -> BenchPlan {
        let scale = scale.clamp(SCALE_MIN, SCALE_MAX);
        let mebibytes = |count: u64, least: u64| scaled(count, scale, least) << 20;
        BenchPlan {
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

    /// Returns the size of the tree's files, rounded up.
    #[must_use]
    pub fn tree_bytes(&self) -> u64 {
        self.tree_files * TREE_FILE_BYTES
    }

    /// Returns the size of the Andrew-like files: source, copy and objects.
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
        let plan = BenchPlan::new(1.0);
        assert_eq!((plan.tree_files, plan.stream_bytes), (50_000, 4 << 30));
        assert_eq!(BenchPlan::new(100.0), BenchPlan::new(SCALE_MAX));
        assert_eq!(BenchPlan::new(SCALE_MIN).stream_bytes, 4 << 20);
    }
}
