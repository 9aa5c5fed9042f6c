//! What can be asked of filesets and jobs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast fileset create pool.hf:home\n  \
                        holdfast fileset create pool.hf:home/ann block=64K --quota 10G\n  \
                        holdfast fileset create pool.hf:mail --quota 10G --reservation 1G\n  \
                        holdfast fileset list pool.hf\n  \
                        holdfast fileset set pool.hf:home/ann quota=20G readonly=on\n  \
                        holdfast fileset rename pool.hf:home/ann pool.hf:home/anna\n  \
                        holdfast fileset fork pool.hf:home@monday pool.hf:trial\n  \
                        holdfast fileset restore pool.hf:home@monday\n  \
                        holdfast fileset promote pool.hf:trial\n  \
                        holdfast fileset move pool.hf:home big.hf:home\n  \
                        holdfast fileset move pool.hf:home big.hf:home --abort\n  \
                        holdfast fileset move pool.hf:home --here\n  \
                        holdfast fileset delete pool.hf:home --recursive --wait\n\n\
                        A mounted pool is asked through its server; another is opened for the \
                        command.\nThe directory of a mount stands for its fileset.")]
pub(crate) struct FilesetArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: FilesetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FilesetCommand {
    /// Make a fileset; the one above it in its name must be there
    #[command(
        after_help = "Example:\n  holdfast fileset create pool.hf:home/ann block=64K --quota 10G"
    )]
    Create {
        /// POOL:a/b
        fileset: PathBuf,
        /// block=SIZE, readonly=on|off, placement=any|GROUP|round-robin|striped [default: as the
        /// fileset above it], quota=SIZE
        #[arg(value_name = "KEY=VALUE")]
        properties: Vec<String>,
        /// Most that it may reference [default: no limit]
        #[arg(long, value_name = "SIZE")]
        quota: Option<String>,
        /// Room that is kept free for it, less what it references [default: none]
        #[arg(long, value_name = "SIZE")]
        reservation: Option<String>,
    },
    /// Show the filesets of a pool, or one and those below it
    #[command(after_help = "Examples:\n  holdfast fileset list pool.hf --json\n  \
                            holdfast fileset list pool.hf:home")]
    List {
        /// The pool, or a directory that it is mounted on, or POOL:a/b
        pool: PathBuf,
    },
    /// Change what a fileset is like; blocks change for new files
    #[command(
        after_help = "Examples:\n  holdfast fileset set pool.hf:home readonly=on block=64K\n  \
                            holdfast fileset set pool.hf:home quota=none"
    )]
    Set {
        /// POOL:a/b
        fileset: PathBuf,
        /// block=SIZE, readonly=on|off, quota=SIZE|none, reservation=SIZE|none,
        /// placement=any|GROUP|round-robin|striped (which disk group new data comes from, of what
        /// is made in its root directory from now on)
        #[arg(value_name = "KEY=VALUE", required = true)]
        properties: Vec<String>,
    },
    /// Give a fileset another name; those below it move with it
    #[command(after_help = "Example:\n  holdfast fileset rename pool.hf:home/ann pool.hf:ann")]
    Rename {
        /// POOL:a/b
        fileset: PathBuf,
        /// POOL:c, in the same pool
        to: PathBuf,
    },
    /// Make a fileset that begins as a clone is, in constant time
    #[command(
        after_help = "Example:\n  holdfast fileset fork pool.hf:home@monday pool.hf:trial\n\n\
                            The clone can't be deleted while it has both a fork and a younger \
                            clone, or two forks."
    )]
    Fork {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// POOL:c, in the same pool
        to: PathBuf,
    },
    /// Make a fileset what a clone of it is; refused while it is mounted or served
    #[command(after_help = "Example:\n  holdfast fileset restore pool.hf:home@monday\n\n\
                            What the fileset held since is deleted: take a clone of it first to \
                            keep it. Younger\nclones stay. The name, the inode numbers and the \
                            NFS handles stay too.")]
    Restore {
        /// POOL:a/b@monday
        clone: PathBuf,
        /// Return when all that the fileset held since is free
        #[arg(long)]
        wait: bool,
    },
    /// Give a fork the clones that it goes back to: they are called after it from then on
    #[command(after_help = "Example:\n  holdfast fileset promote pool.hf:trial\n\n\
                            The fileset that had them can be deleted then.")]
    Promote {
        /// POOL:c
        fileset: PathBuf,
    },
    /// Move a fileset to another pool; refused while it is mounted or exported
    #[command(after_help = "Examples:\n  holdfast fileset move pool.hf:home big.hf:home\n  \
                            holdfast fileset move pool.hf:home big.hf:home --abort\n  \
                            holdfast fileset move pool.hf:home --here\n\n\
                            Both pools are served by one server, or by none. Files keep contents, \
                            attributes and times; the\nupper bits of their inode numbers change. \
                            A move that was interrupted goes on by the same command;\nwhenever \
                            that is, the fileset is in exactly one of the two pools. Clones do not \
                            move along.\n--member is of the pool that it leaves.")]
    Move {
        /// POOL:a/b
        fileset: PathBuf,
        /// OTHER:c, its pool and name from then on; there is no such fileset yet
        #[arg(required_unless_present = "here")]
        to: Option<PathBuf>,
        /// Give the move up: what has come to the other pool is removed there
        #[arg(long)]
        abort: bool,
        /// Decide that the fileset is in this pool, as the other one is lost and can't be asked
        #[arg(long, conflicts_with_all = ["to", "abort"])]
        here: bool,
    },
    /// Delete a fileset with all that is in it; refused while it is mounted, or others are below it
    #[command(after_help = "Example:\n  holdfast fileset delete pool.hf:home --recursive --wait")]
    Delete {
        /// POOL:a/b
        fileset: PathBuf,
        /// Delete those below it too
        #[arg(long)]
        recursive: bool,
        /// Return when all that they held is free
        #[arg(long)]
        wait: bool,
    },
}

impl FilesetCommand {
    /// Returns the paths that are looked at before anything else.
    pub(crate) fn paths(&self) -> [Option<&Path>; 2] {
        match self {
            FilesetCommand::Create { fileset, .. }
            | FilesetCommand::Set { fileset, .. }
            | FilesetCommand::Promote { fileset }
            | FilesetCommand::Delete { fileset, .. } => [Some(fileset), None],
            FilesetCommand::Fork { clone, to } => [Some(clone), Some(to)],
            FilesetCommand::Restore { clone, .. } => [Some(clone), None],
            FilesetCommand::List { pool } => [Some(pool), None],
            FilesetCommand::Rename { fileset, to } => [Some(fileset), Some(to)],
            FilesetCommand::Move { fileset, to, .. } => [Some(fileset), to.as_deref()],
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast job list pool.hf\n  \
                        holdfast job pause pool.hf 1\n  \
                        holdfast job pace pool.hf 1 20\n  \
                        holdfast job resume /mnt 1\n\n\
                        Jobs run while their pool is mounted.")]
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
    /// Show the jobs that have an end
    #[command(after_help = "Example:\n  holdfast job list pool.hf --json")]
    List {
        /// A mounted pool, or a directory that it is mounted on
        pool: PathBuf,
    },
    /// Make a job pause
    #[command(after_help = "Example:\n  holdfast job pause pool.hf 1")]
    Pause {
        /// A mounted pool, or a directory that it is mounted on
        pool: PathBuf,
        /// Number or name, as `job list` shows them
        job: String,
    },
    /// Set how much of the time a job works
    #[command(
        after_help = "Examples:\n  holdfast job pace pool.hf 1 20\n  holdfast job pace pool.hf \
                            1 auto\n\nauto: all the time while nobody uses the pool, half of it \
                            while somebody does. 100: always all the time. A pace lasts until the \
                            job ends or the pool is unmounted."
    )]
    Pace {
        /// A mounted pool, or a directory that it is mounted on
        pool: PathBuf,
        /// Number or name, as `job list` shows them
        job: String,
        /// Percent of the time, 1 to 100, or auto
        #[arg(value_parser = parse_pace)]
        pace: PaceArgument,
    },
    /// Make a job go on, also one that has failed
    #[command(after_help = "Example:\n  holdfast job resume pool.hf 1")]
    Resume {
        /// A mounted pool, or a directory that it is mounted on
        pool: PathBuf,
        /// Number or name, as `job list` shows them
        job: String,
    },
}

impl JobCommand {
    /// Returns the pool, or what it is mounted on.
    pub(crate) fn pool(&self) -> &Path {
        match self {
            JobCommand::List { pool }
            | JobCommand::Pause { pool, .. }
            | JobCommand::Pace { pool, .. }
            | JobCommand::Resume { pool, .. } => pool,
        }
    }
}
