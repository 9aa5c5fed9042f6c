//! What can be asked of the placement of files and directories.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use format::placement::Placement;

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast placement set pool.hf:home films 1 --recursive\n  \
                        holdfast placement set /mnt scratch striped\n  \
                        holdfast placement show /mnt films\n\n\
                        The owner of a file can do the same on a mount: setfattr -n \
                        user.holdfast.placement -v 1 films")]
pub(crate) struct PlacementArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: PlacementCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PlacementCommand {
    /// Say which disk group the new data of a file or directory should come from
    #[command(after_help = "Examples:\n  holdfast placement set pool.hf:home films 1\n  \
                            holdfast placement set /mnt / any\n\n\
                            What is made in a directory has its placement too. It is a \
                            preference: where the disk\ngroup is full, data goes elsewhere. What \
                            is stored already stays where it is.")]
    Set {
        /// POOL:a/b, or a directory that it is mounted on
        fileset: PathBuf,
        /// Where it is in the fileset; / is its root directory
        path: String,
        /// any, the number of a disk group (`group list`), round-robin, or striped
        #[arg(value_parser = parse_placement, value_name = "PLACEMENT")]
        placement: Placement,
        /// Of all that is below it too
        #[arg(long)]
        recursive: bool,
    },
    /// Show which disk group that is
    #[command(after_help = "Example:\n  holdfast placement show pool.hf:home films --json")]
    Show {
        /// POOL:a/b, or a directory that it is mounted on
        fileset: PathBuf,
        /// Where it is in the fileset; / is its root directory
        path: String,
    },
}

impl PlacementCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn path(&self) -> &Path {
        match self {
            PlacementCommand::Set { fileset, .. } | PlacementCommand::Show { fileset, .. } => {
                fileset
            }
        }
    }
}

/// Returns what a placement is, or why `text` is none.
pub(crate) fn parse_placement(text: &str) -> Result<Placement, String> {
    Placement::from_text(text).ok_or_else(|| {
        format!(
            "`{text}` is no placement: write any, the number of a disk group (0 to 7), \
             round-robin, or striped"
        )
    })
}
