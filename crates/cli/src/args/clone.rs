//! Arguments of `holdfast clone`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    holdfast clone create pool.hf:home@monday pool.hf:trial\n\nA clone is a writable fileset with \
    the contents of a snapshot. It shares the blocks of the\nsnapshot, and takes space only for \
    changes. It is managed by `fileset`, including promote.")]
pub(crate) struct CloneArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: CloneCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CloneCommand {
    /// Create a writable fileset from a snapshot, in constant time
    #[command(after_help = "Example:\n  \
            holdfast clone create pool.hf:home@monday pool.hf:trial\n\nThe snapshot cannot be \
            deleted while two things depend on it: two clones, or a clone and a newer\nsnapshot.")]
    Create {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// New fileset, POOL:c, in the same pool
        to: PathBuf,
    },
}

impl CloneCommand {
    /// Returns the paths that are looked at before anything else.
    pub(crate) fn pools_mut(&mut self) -> [Option<&mut PathBuf>; 2] {
        let CloneCommand::Create { snapshot, to } = self;
        [Some(snapshot), Some(to)]
    }
}
