//! What can be asked of filesets and jobs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast fileset create pool.hf:home\n  \
    holdfast fileset create pool.hf:home/ann block=64K --quota 10G\n  \
    holdfast fileset create pool.hf:mail --quota 10G --reservation 1G\n  \
    holdfast fileset list pool.hf\n  \
    holdfast fileset set pool.hf:home/ann quota=20G readonly=on\n  holdfast fileset rename \
    pool.hf:home/ann pool.hf:home/anna\n  \
    holdfast fileset restore pool.hf:home@monday\n  \
    holdfast fileset promote pool.hf:trial\n  \
    holdfast fileset move pool.hf:home big.hf:home\n  \
    holdfast fileset move pool.hf:home big.hf:home --abort\n  \
    holdfast fileset move pool.hf:home --here\n  \
    holdfast fileset delete pool.hf:home --recursive --wait\n\nThe command uses the server of a \
    mounted or served pool, and opens any other pool itself. A\nmount point stands for its \
    fileset.")]
pub(crate) struct FilesetArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: FilesetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FilesetCommand {
    /// Create a fileset; its parent must exist
    #[command(
        after_help = "Example:\n  holdfast fileset create pool.hf:home/ann block=64K --quota 10G"
    )]
    Create {
        /// POOL:a/b
        fileset: PathBuf,
        /// Properties: block=SIZE, readonly=on|off, quota=SIZE,
        /// placement=any|GROUP|round-robin|striped [default: those of the parent]
        #[arg(value_name = "KEY=VALUE")]
        properties: Vec<String>,
        /// Limit of referenced space [default: none]
        #[arg(long, value_name = "SIZE")]
        quota: Option<String>,
        /// Space reserved for the fileset, including what it references [default: none]
        #[arg(long, value_name = "SIZE")]
        reservation: Option<String>,
    },
    /// List the filesets of a pool, or one and its descendants
    #[command(after_help = "Examples:\n  holdfast fileset list pool.hf --json\n  \
                            holdfast fileset list pool.hf:home")]
    List {
        /// Name or a device of the pool, a mount point, or POOL:a/b
        pool: PathBuf,
    },
    /// Set properties of a fileset
    #[command(
        after_help = "Examples:\n  holdfast fileset set pool.hf:home readonly=on block=64K\n  \
                            holdfast fileset set pool.hf:home quota=none"
    )]
    Set {
        /// POOL:a/b
        fileset: PathBuf,
        /// Properties: block=SIZE (for new files), readonly=on|off, quota=SIZE|none,
        /// reservation=SIZE|none, placement=any|GROUP|round-robin|striped (for new files in its
        /// root directory)
        #[arg(value_name = "KEY=VALUE", required = true)]
        properties: Vec<String>,
    },
    /// Rename a fileset, with its descendants
    #[command(after_help = "Example:\n  holdfast fileset rename pool.hf:home/ann pool.hf:ann")]
    Rename {
        /// POOL:a/b
        fileset: PathBuf,
        /// New fileset, POOL:c, in the same pool
        to: PathBuf,
    },
    /// Roll a fileset back to a snapshot; it must not be mounted or exported
    #[command(after_help = "Example:\n  \
        holdfast fileset restore pool.hf:home@monday\n\nChanges since the snapshot are deleted: \
        take another snapshot first to keep them. Newer snapshots\nstay. The name, the inode \
        numbers and the NFS handles stay too.")]
    Restore {
        /// POOL:a/b@monday
        snapshot: PathBuf,
        /// Wait until the freed space is available
        #[arg(long)]
        wait: bool,
    },
    /// Promote a clone: it takes over the snapshots that it depends on
    #[command(after_help = "Example:\n  \
        holdfast fileset promote pool.hf:trial\n\nThe fileset that had the snapshots can be \
        deleted then.")]
    Promote {
        /// POOL:c
        fileset: PathBuf,
    },
    /// Move a fileset to another pool
    #[command(after_help = "Examples:\n  \
        holdfast fileset move pool.hf:home big.hf:home\n  \
        holdfast fileset move pool.hf:home big.hf:home --abort\n  \
        holdfast fileset move pool.hf:home --here\n\nBoth pools must be served by one server, or \
        by none. Contents, attributes and times are kept;\nthe upper bits of inode numbers change. \
        Snapshots are not moved. An interrupted move continues\nwith the same command; at any time \
        the fileset is in exactly one of the pools. --member is for\nthe source pool.")]
    Move {
        /// POOL:a/b
        fileset: PathBuf,
        /// Target pool and name, OTHER:c; must not exist
        #[arg(required_unless_present = "here")]
        to: Option<PathBuf>,
        /// Cancel the move, and remove what was received by the target pool
        #[arg(long)]
        abort: bool,
        /// Decide that the fileset is in this pool, because the other pool is lost
        #[arg(long, conflicts_with_all = ["to", "abort"])]
        here: bool,
    },
    /// Delete a fileset; it must not be mounted or have snapshots
    #[command(after_help = "Example:\n  holdfast fileset delete pool.hf:home --recursive --wait")]
    Delete {
        /// POOL:a/b
        fileset: PathBuf,
        /// Delete its descendants too
        #[arg(long)]
        recursive: bool,
        /// Wait until the freed space is available
        #[arg(long)]
        wait: bool,
    },
}

impl FilesetCommand {
    /// Returns the paths that are looked at before anything else.
    pub(crate) fn pools_mut(&mut self) -> [Option<&mut PathBuf>; 2] {
        match self {
            FilesetCommand::Create { fileset, .. }
            | FilesetCommand::Set { fileset, .. }
            | FilesetCommand::Promote { fileset }
            | FilesetCommand::Delete { fileset, .. } => [Some(fileset), None],
            FilesetCommand::Restore { snapshot, .. } => [Some(snapshot), None],
            FilesetCommand::List { pool } => [Some(pool), None],
            FilesetCommand::Rename { fileset, to } => [Some(fileset), Some(to)],
            FilesetCommand::Move { fileset, to, .. } => [Some(fileset), to.as_mut()],
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast job list pool.hf\n  \
    holdfast job pause pool.hf 1\n  \
    holdfast job pace pool.hf 1 20\n  \
    holdfast job resume /mnt 1\n\nJobs run while their pool is mounted or served.")]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    pub(crate) command: JobCommand,
}

/// How much of the time a job is to work: percent; `None`: as others let it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PaceArgument(pub(crate) Option<u8>);

fn parse_pace(text: &str) -> Result<PaceArgument, String> {
    if text == "auto" {
        return Ok(PaceArgument(None));
    }
    let number = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let percent = number.filter(|percent| (1..=100).contains(percent));
    percent.map(|percent| PaceArgument(Some(percent))).ok_or("give 1 to 100, or auto".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List the running jobs with their progress
    #[command(after_help = "Example:\n  holdfast job list pool.hf --json")]
    List {
        /// Name or a device of a mounted or served pool, or its mount point
        pool: PathBuf,
    },
    /// Pause a job
    #[command(after_help = "Example:\n  holdfast job pause pool.hf 1")]
    Pause {
        /// Name or a device of a mounted or served pool, or its mount point
        pool: PathBuf,
        /// Number or name of the job (see `job list`)
        job: String,
    },
    /// Limit the share of time that a job works
    #[command(
        after_help = "Examples:\n  holdfast job pace pool.hf 1 20\n  holdfast job pace pool.hf \
                            1 auto\n\nauto: all the time while nobody uses the pool, half of it \
                            while somebody does. 100: always all the time. A pace lasts until the \
                            job ends or the pool is unmounted."
    )]
    Pace {
        /// Name or a device of a mounted or served pool, or its mount point
        pool: PathBuf,
        /// Number or name of the job (see `job list`)
        job: String,
        /// Percent of the time, 1 to 100, or auto
        #[arg(value_parser = parse_pace)]
        pace: PaceArgument,
    },
    /// Resume a paused or failed job
    #[command(after_help = "Example:\n  holdfast job resume pool.hf 1")]
    Resume {
        /// Name or a device of a mounted or served pool, or its mount point
        pool: PathBuf,
        /// Number or name of the job (see `job list`)
        job: String,
    },
}

impl JobCommand {
    argument! {
        /// Returns the pool, or what it is mounted on.
        pool, pool_mut,
            JobCommand::List { pool }
            | JobCommand::Pause { pool, .. }
            | JobCommand::Pace { pool, .. }
            | JobCommand::Resume { pool, .. } => pool
    }
}
