//! Arguments of `holdfast pool`: the list of pools, and the change of a pool's name.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::members::MemberPaths;
use super::parse_pool_name;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast pool list\n  \
                        holdfast pool list -d /srv\n  \
                        holdfast pool rename tank data")]
pub(crate) struct PoolArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Show the pools that are found; nothing is opened for writing
    #[command(after_help = "Example:\n  holdfast pool list -d /srv --json\n\n\
                            Without -d: in the current folder, the folders of the pools in \
                            /etc/holdfast/holdfast.toml,\nand /dev; or in the folders that \
                            HOLDFAST_SCAN names, with colons between.")]
    List {
        /// A folder or device to look at; may be given several times
        #[arg(short = 'd', value_name = "FOLDER|DEVICE")]
        places: Vec<PathBuf>,
    },
    /// Give a pool another name
    #[command(after_help = "Example:\n  holdfast pool rename tank data")]
    Rename {
        /// The pool's name or device, or a directory that it is mounted on
        pool: PathBuf,
        /// The new name
        #[arg(value_parser = parse_pool_name)]
        name: String,
    },
}

impl PoolCommand {
    /// Returns the argument that may be the name of a pool.
    pub(crate) fn pool_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            PoolCommand::List { .. } => None,
            PoolCommand::Rename { pool, .. } => Some(pool),
        }
    }
}
