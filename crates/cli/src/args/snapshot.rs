//! What can be asked of snapshots.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast snapshot create pool.hf:home@monday\n  \
                        holdfast snapshot create --recursive pool.hf:home@noon\n  \
                        holdfast snapshot list pool.hf:home --unique\n  \
                        holdfast mount pool.hf:home@monday /mnt\n  \
                        holdfast snapshot delete pool.hf:home@monday --wait\n\n\
                        A snapshot is what a fileset was like at one moment. It takes no space by \
                        itself: it keeps\nwhat the fileset changes or deletes from then on. Nobody \
                        can change it.\nA mounted pool is asked through its server; another is \
                        opened for the command.\nThe directory of a mount stands for its fileset.")]
pub(crate) struct SnapshotArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Take a snapshot of a fileset, in constant time
    #[command(after_help = "Examples:\n  holdfast snapshot create pool.hf:home@monday\n  \
                            holdfast snapshot create --recursive pool.hf:home@monday")]
    Create {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Take snapshots of the filesets below it too, all at one moment or none
        #[arg(long)]
        recursive: bool,
    },
    /// Keep a snapshot from being deleted, by a name
    #[command(after_help = "Example:\n  holdfast snapshot hold pool.hf:home@monday backup")]
    Hold {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// By whom it is held, or for what
        name: String,
    },
    /// Take a hold of a snapshot back
    #[command(after_help = "Example:\n  holdfast snapshot release pool.hf:home@monday backup")]
    Release {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// The name of the hold, as `snapshot list` shows it
        name: String,
    },
    /// Delete a snapshot; refused while it is mounted or held, or several go back to it
    #[command(after_help = "Example:\n  holdfast snapshot delete pool.hf:home@monday --wait\n\n\
                            What only the newest snapshot held is freed at once, and nobody can \
                            change the fileset\nmeanwhile; what an older one held is freed in the \
                            background.")]
    Delete {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Return when all that it alone held is free
        #[arg(long)]
        wait: bool,
    },
    /// Show the snapshots of a fileset, or all of a pool
    #[command(after_help = "Examples:\n  holdfast snapshot list pool.hf:home --json\n  \
                            holdfast snapshot list pool.hf --unique     (most first)")]
    List {
        /// POOL:a/b, or a pool, or a directory that a fileset is mounted on
        fileset: PathBuf,
        /// Show what deleting each snapshot, and no other, would give back. Looks at what each has
        /// differently from the one before it
        #[arg(long)]
        unique: bool,
    },
}

impl SnapshotCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn path(&self) -> &Path {
        match self {
            SnapshotCommand::Create { snapshot, .. }
            | SnapshotCommand::Hold { snapshot, .. }
            | SnapshotCommand::Release { snapshot, .. }
            | SnapshotCommand::Delete { snapshot, .. } => snapshot,
            SnapshotCommand::List { fileset, .. } => fileset,
        }
    }
}
