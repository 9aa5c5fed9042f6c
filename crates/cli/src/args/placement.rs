//! What can be asked of the placement of files and directories.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use control::parse_placement;
use format::placement::Placement;

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast placement set pool.hf:home films 1 --recursive\n  \
    holdfast placement set /mnt scratch striped\n  \
    holdfast placement show /mnt films\n\nThe owner of a file can do the same on a mount: setfattr \
    -n user.holdfast.placement -v 1 films")]
pub(crate) struct PlacementArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: PlacementCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PlacementCommand {
    /// Set the preferred disk group of a file or directory
    #[command(after_help = "Examples:\n  \
        holdfast placement set pool.hf:home films 1\n  \
        holdfast placement set /mnt / any\n\nNew files and directories inherit the placement of \
        their directory. It is a preference: if the\ndisk group is full, data goes elsewhere. \
        Existing data stays.")]
    Set {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        /// Path in the fileset; / is its root directory
        path: String,
        /// any, the number of a disk group (see `group list`), round-robin, or striped
        #[arg(value_parser = parse_placement, value_name = "PLACEMENT")]
        placement: Placement,
        /// Apply to everything below it too
        #[arg(long)]
        recursive: bool,
    },
    /// Show the preferred disk group
    #[command(after_help = "Example:\n  holdfast placement show pool.hf:home films --json")]
    Show {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        /// Path in the fileset; / is its root directory
        path: String,
    },
}

impl PlacementCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn pool_mut(&mut self) -> &mut PathBuf {
        match self {
            PlacementCommand::Set { fileset, .. } | PlacementCommand::Show { fileset, .. } => {
                fileset
            }
        }
    }
}
