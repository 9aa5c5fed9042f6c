//! Arguments of `holdfast clone`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast clone create pool.hf:home@monday pool.hf:trial\n\n\
                        A clone is a writable fileset that begins as a snapshot is. It shares the \
                        blocks of the\nsnapshot, and takes space for what is changed in it. \
                        `fileset` shows, renames, promotes and\ndeletes it. What cannot be \
                        changed is a snapshot: `holdfast snapshot`.")]
pub(crate) struct CloneArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: CloneCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CloneCommand {
    /// Make a writable fileset that begins as a snapshot is, in constant time
    #[command(
        after_help = "Example:\n  holdfast clone create pool.hf:home@monday pool.hf:trial\n\n\
                      The snapshot can't be deleted while it has both a clone and a younger \
                      snapshot, or two clones."
    )]
    Create {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// POOL:c, in the same pool
        to: PathBuf,
    },
}

impl CloneCommand {
    /// Returns the paths that are looked at before anything else.
    pub(crate) fn paths(&self) -> [Option<&Path>; 2] {
        let CloneCommand::Create { snapshot, to } = self;
        [Some(snapshot), Some(to)]
    }
}
