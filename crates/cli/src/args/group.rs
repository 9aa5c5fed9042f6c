//! What can be asked of the disk groups of a pool.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::{GroupSpec, MemberPaths, parse_group};
use control::size::ByteSize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast group list pool.hf\n  \
    holdfast group add pool.hf mirror:/dev/sdb,/dev/sdc\n  \
    holdfast group add pool.hf single:more.hf --size 2G\n  \
    holdfast group add pool.hf stripe:s0,s1,s2 --size 2G\n  \
    holdfast group add pool.hf round-robin:r0,r1 --size 2G\n  \
    holdfast group add pool.hf mirror:j0,j1=journal\n  \
    holdfast group add pool.hf mirror:m0,m1=metadata,journal\n  \
    holdfast group remove pool.hf 1 --wait\n\nPOOL is a device of the pool, or its mount point. \
    The command uses the server of a mounted or\nserved pool, and opens any other pool itself.")]
pub(crate) struct GroupArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: GroupCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List the disk groups of a pool, with their usage
    #[command(after_help = "Example:\n  holdfast group list pool.hf --json")]
    List {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
    },
    /// Add a disk group for data, metadata or the journal
    #[command(after_help = "Examples:\n  \
        holdfast group add pool.hf single:/dev/sdb\n  \
        holdfast group add pool.hf mirror:m0.hf,m1.hf=data --size 2G\n\nA stripe that loses a \
        device loses the data on it. A round-robin has each file on one of its\ndevices, in turn. \
        With =journal, a single or a mirror takes only the journal, which moves there\nat once; \
        the pool cannot be opened without it, and `group remove` moves it back. \
        With\n=metadata,journal or =data,metadata,journal, new metadata goes there, and the \
        journal moves\nthere at once; existing metadata stays until its disk group is removed.")]
    Add {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// KIND:DEVICE,...[=ROLES], with ROLES data, journal, metadata,journal or
        /// data,metadata,journal
        #[arg(value_parser = parse_group, value_name = "GROUP")]
        group: GroupSpec,
        /// Size of files that are created
        #[arg(long)]
        size: Option<ByteSize>,
        /// Overwrite existing data on the devices
        #[arg(long)]
        force: bool,
    },
    /// Move the contents of a disk group to the others, and remove it
    #[command(after_help = "Example:\n  \
        holdfast group remove pool.hf 1 --wait\n\nRefused if the contents do not fit elsewhere. A \
        job moves them (see `holdfast job list`); it\ncontinues after a crash, and when the pool \
        is opened again. The devices are free afterwards;\ntheir contents are not wiped, and \
        `--force` reuses them. A group with only the journal is\nremoved at once. A group with the \
        metadata can be removed if another has room for it (see\n`group list`).")]
    Remove {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Number of the disk group (see `group list`)
        group: u8,
        /// Wait until it is removed
        #[arg(long)]
        wait: bool,
    },
    /// Place new metadata in another disk group
    #[command(after_help = "Example:\n  \
        holdfast group metadata pool.hf 2\n\nFor a disk group that `group list` shows with \
        room-for-metadata: one that was added with\n=metadata, or had the metadata before. The \
        journal moves there too, unless it has devices of\nits own. Existing metadata stays until \
        its disk group is removed.")]
    Metadata {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Number of the disk group (see `group list`)
        group: u8,
    },
}

impl GroupCommand {
    argument! {
        /// Returns the pool, or what it is mounted on.
        pool, pool_mut,
            GroupCommand::List { pool }
            | GroupCommand::Add { pool, .. }
            | GroupCommand::Metadata { pool, .. }
            | GroupCommand::Remove { pool, .. } => pool
    }

    /// Returns the devices that are to come.
    pub(crate) fn new_devices(&self) -> &[PathBuf] {
        match self {
            GroupCommand::Add { group, .. } => group.devices.as_slice(),
            GroupCommand::List { .. }
            | GroupCommand::Metadata { .. }
            | GroupCommand::Remove { .. } => &[],
        }
    }
}
