//! What can be asked of snapshots.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast snapshot create pool.hf:home@monday\n  \
    holdfast snapshot create --recursive pool.hf:home@noon\n  \
    holdfast snapshot list pool.hf:home --unique\n  \
    holdfast mount pool.hf:home@monday /mnt\n  \
    holdfast snapshot delete pool.hf:home@monday --wait\n\nA snapshot is a read-only state of a \
    fileset. It shares blocks with the fileset, and takes\nspace only as the fileset changes. The \
    command uses the server of a mounted or served pool, and\nopens any other pool itself. A mount \
    point stands for its fileset.")]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Create a snapshot of a fileset, in constant time
    #[command(after_help = "Examples:\n  holdfast snapshot create pool.hf:home@monday\n  \
                            holdfast snapshot create --recursive pool.hf:home@monday")]
    Create {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Snapshot its descendants too, atomically
        #[arg(long)]
        recursive: bool,
    },
    /// Add a hold, which prevents the deletion of a snapshot
    #[command(after_help = "Example:\n  holdfast snapshot hold pool.hf:home@monday backup")]
    Hold {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Name of the hold
        name: String,
    },
    /// Remove a hold of a snapshot
    #[command(after_help = "Example:\n  holdfast snapshot release pool.hf:home@monday backup")]
    Release {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Name of the hold (see `snapshot list`)
        name: String,
    },
    /// Delete a snapshot; it must not be mounted or held, or have two dependents
    #[command(after_help = "Example:\n  \
        holdfast snapshot delete pool.hf:home@monday --wait\n\nTwo dependents are two clones, or a \
        clone and a newer snapshot. Deleting the newest\nsnapshot frees its space at once; changes \
        of the fileset wait meanwhile. For an older one this\nhappens in the background.")]
    Delete {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Wait until the freed space is available
        #[arg(long)]
        wait: bool,
    },
    /// List the snapshots of a fileset or of a pool
    #[command(after_help = "Examples:\n  holdfast snapshot list pool.hf:home --json\n  \
                            holdfast snapshot list pool.hf --unique     # most first")]
    List {
        /// POOL:a/b, a device of a pool, or a mount point
        fileset: PathBuf,
        /// Show the space that deleting only this snapshot would free; compares each with its
        /// predecessor, which may take long
        #[arg(long)]
        unique: bool,
    },
}

impl SnapshotCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn pool_mut(&mut self) -> &mut PathBuf {
        match self {
            SnapshotCommand::Create { snapshot, .. }
            | SnapshotCommand::Hold { snapshot, .. }
            | SnapshotCommand::Release { snapshot, .. }
            | SnapshotCommand::Delete { snapshot, .. } => snapshot,
            SnapshotCommand::List { fileset, .. } => fileset,
        }
    }
}
