//! What can be asked of the disk groups of a pool.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::{GroupSpec, MemberPaths, parse_group};
use crate::size::ByteSize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast group list pool.hf\n  \
                        holdfast group add pool.hf mirror:/dev/sdb,/dev/sdc\n  \
                        holdfast group add pool.hf single:more.hf --size 2G\n  \
                        holdfast group add pool.hf stripe:s0,s1,s2 --size 2G\n  \
                        holdfast group add pool.hf round-robin:r0,r1 --size 2G\n  \
                        holdfast group add pool.hf mirror:j0,j1=journal\n  \
                        holdfast group add pool.hf mirror:m0,m1=metadata,journal\n  \
                        holdfast group remove pool.hf 1 --wait\n\n\
                        POOL is any device of the pool, or a directory that it is mounted on. A \
                        mounted pool is asked\nthrough its server; another is opened for the \
                        command.")]
pub(crate) struct GroupArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: GroupCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Show the disk groups of a pool, and how full each is
    #[command(after_help = "Example:\n  holdfast group list pool.hf --json")]
    List {
        /// The pool
        pool: PathBuf,
    },
    /// Add a disk group: data goes there from now on, or the journal or the metadata
    #[command(after_help = "Examples:\n  holdfast group add pool.hf single:/dev/sdb\n  \
                            holdfast group add pool.hf mirror:m0.hf,m1.hf=data --size 2G\n\n\
                            A raid5 or a stripe can be of any width. \
                            A stripe that loses a device loses the data on it. A \
                            round-robin has each file on one of\nits devices, the next file on \
                            the next. With =journal, a single or a mirror, the journal\nmoves to \
                            it at once, and no data goes there: commits wait for these devices \
                            alone.\nThe pool cannot be opened without them. `group remove` moves \
                            it back.\nWith =metadata,journal, or =data,metadata,journal, \
                            new metadata goes there, and the journal moves\nthere at once; what \
                            is elsewhere stays until that disk group is removed.")]
    Add {
        /// The pool
        pool: PathBuf,
        /// The disk group: KIND:DEVICE,DEVICE, then =data, =journal, =metadata,journal or
        /// =data,metadata,journal
        #[arg(value_parser = parse_group, value_name = "GROUP")]
        group: GroupSpec,
        /// Size of devices that are files and not there yet
        #[arg(long)]
        size: Option<ByteSize>,
        /// Overwrite what is on the devices
        #[arg(long)]
        force: bool,
    },
    /// Move what a disk group holds elsewhere, and take it out
    #[command(after_help = "Example:\n  holdfast group remove pool.hf 1 --wait\n\n\
                            Refused where it does not fit elsewhere, with the missing bytes. A \
                            job moves (`holdfast job\nlist|pause|resume`); it goes on after a \
                            crash, and when the pool is opened again. The devices\nare of no \
                            pool when it has ended, and what lay there is not wiped: `--force` \
                            gives them\nagain. One with the journal is gone at once: the journal \
                            moves to where the\nmetadata is. One with the metadata goes if \
                            another has room for it (`group list` shows which),\nwhich has the \
                            metadata from then on.")]
    Remove {
        /// The pool
        pool: PathBuf,
        /// Its number, as `group list` shows it
        group: u8,
        /// Return when it is gone
        #[arg(long)]
        wait: bool,
    },
    /// Move the metadata to a disk group that has room for it
    #[command(after_help = "Example:\n  holdfast group metadata pool.hf 2\n\n\
                            For one that `group list` shows with room-for-metadata: it was added \
                            with =metadata, or had\nthe metadata before. New metadata goes there \
                            from now on, and the journal moves there, unless it\nhas devices of \
                            its own. What is elsewhere stays until that disk group is removed.")]
    Metadata {
        /// The pool
        pool: PathBuf,
        /// Its number, as `group list` shows it
        group: u8,
    },
}

impl GroupCommand {
    /// Returns the pool, or what it is mounted on.
    pub(crate) fn pool(&self) -> &Path {
        match self {
            GroupCommand::List { pool }
            | GroupCommand::Add { pool, .. }
            | GroupCommand::Metadata { pool, .. }
            | GroupCommand::Remove { pool, .. } => pool,
        }
    }

    /// Returns the pool, and the devices that are to come.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let new = match self {
            GroupCommand::Add { group, .. } => group.devices.as_slice(),
            GroupCommand::List { .. }
            | GroupCommand::Metadata { .. }
            | GroupCommand::Remove { .. } => &[],
        };
        std::iter::once(self.pool()).chain(new.iter().map(PathBuf::as_path)).collect()
    }
}
