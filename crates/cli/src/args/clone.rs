//! What can be asked of clones.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast clone create pool.hf:home@monday\n  \
                        holdfast clone create --recursive pool.hf:home@noon\n  \
                        holdfast clone list pool.hf:home --unique\n  \
                        holdfast mount pool.hf:home@monday /mnt\n  \
                        holdfast clone delete pool.hf:home@monday --wait\n\n\
                        A clone is what a fileset was like at one moment. It takes no space by \
                        itself: it keeps\nwhat the fileset changes or deletes from then on. Nobody \
                        can change it.\nA mounted pool is asked through its server; another is \
                        opened for the command.\nThe directory of a mount stands for its fileset.")]
pub(crate) struct CloneArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: CloneCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CloneCommand {
    /// Take a clone of a fileset, in constant time
    #[command(after_help = "Examples:\n  holdfast clone create pool.hf:home@monday\n  \
                            holdfast clone create --recursive pool.hf:home@monday")]
    Create {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// Take clones of the filesets below it too, all at one moment or none
        #[arg(long)]
        recursive: bool,
    },
    /// Keep a clone from being deleted, by a name
    #[command(after_help = "Example:\n  holdfast clone hold pool.hf:home@monday backup")]
    Hold {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// By whom it is held, or for what
        name: String,
    },
    /// Take a hold of a clone back
    #[command(after_help = "Example:\n  holdfast clone release pool.hf:home@monday backup")]
    Release {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// The name of the hold, as `clone list` shows it
        name: String,
    },
    /// Delete a clone; refused while it is mounted or held, or several go back to it
    #[command(after_help = "Example:\n  holdfast clone delete pool.hf:home@monday --wait\n\n\
                            What only the newest clone held is freed at once, and nobody can \
                            change the fileset\nmeanwhile; what an older one held is freed in the \
                            background.")]
    Delete {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// Return when all that it alone held is free
        #[arg(long)]
        wait: bool,
    },
    /// Show the clones of a fileset, or all of a pool
    #[command(after_help = "Examples:\n  holdfast clone list pool.hf:home --json\n  \
                            holdfast clone list pool.hf --unique     (most first)")]
    List {
        /// POOL:a/b, or a pool, or a directory that a fileset is mounted on
        fileset: PathBuf,
        /// Show what deleting each clone, and no other, would give back. Looks at what each has
        /// differently from the one before it
        #[arg(long)]
        unique: bool,
    },
}

impl CloneCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn path(&self) -> &Path {
        match self {
            CloneCommand::Create { clone, .. }
            | CloneCommand::Hold { clone, .. }
            | CloneCommand::Release { clone, .. }
            | CloneCommand::Delete { clone, .. } => clone,
            CloneCommand::List { fileset, .. } => fileset,
        }
    }
}
