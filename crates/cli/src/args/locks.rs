//! What can be asked of file locks.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast locks list pool.hf")]
pub(crate) struct LocksArgs {
    #[command(subcommand)]
    pub(crate) command: LocksCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LocksCommand {
    /// List the file locks that programs hold or wait for
    #[command(after_help = "Examples:\n  holdfast locks list pool.hf\n  \
        holdfast locks list /home --json\n\nLists locks of fcntl(2) and flock(2) through mounts \
        with --shared: waiting locks first, then\nheld ones, each from the oldest, at most 500. \
        For other mounts use lslocks(8).")]
    List {
        /// Name or a device of a mounted or served pool, or its mount point
        pool: PathBuf,
    },
}

impl LocksCommand {
    pub(crate) fn pool_mut(&mut self) -> &mut PathBuf {
        match self {
            LocksCommand::List { pool } => pool,
        }
    }
}
