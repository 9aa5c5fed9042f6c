//! What can be asked of the devices of a pool.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;
use crate::size::ByteSize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast device list d0.hf\n  \
                        holdfast device fail d0.hf d1.hf\n  \
                        holdfast device replace d0.hf d1.hf new.hf --wait\n  \
                        holdfast device online d0.hf d1.hf --wait\n  \
                        holdfast device add d0.hf spare.hf --spare\n  \
                        holdfast device add d0.hf /dev/sdb\n  \
                        holdfast device grow d0.hf\n  \
                        holdfast device add d0.hf /dev/sdb --mirror d0.hf --wait\n  \
                        holdfast device add d0.hf /dev/sde --raid5 d0.hf --wait\n  \
                        holdfast device add d0.hf /dev/sdf --stripe d0.hf --wait\n  \
                        holdfast device add d0.hf /dev/sdg --round-robin d0.hf\n  \
                        holdfast device remove d0.hf /dev/sdb --wait\n  \
                        holdfast device remove d0.hf d1.hf --accept-no-redundancy\n\n\
                        POOL is any device of the pool, or a directory that it is mounted on. A \
                        device is named by\nits path, its slot or its id, as `device list` shows \
                        them. A mounted pool is asked through its\nserver; another is opened for \
                        the command.")]
pub(crate) struct DeviceArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: DeviceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// Show the devices of a pool, what each is and what happened to it
    #[command(after_help = "Examples:\n  holdfast device list d0.hf --json\n  \
                            holdfast device list d0.hf d1.hf")]
    List {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of devices; none: all
        devices: Vec<String>,
    },
    /// Leave devices behind, as if they had failed
    #[command(after_help = "Examples:\n  holdfast device fail d0.hf d1.hf\n  \
                            holdfast device fail d0.hf d1.hf --wait\n\n\
                            Refused where the others do not have all that the pool holds. With \
                            --wait a spare takes the\nplace of each, and the next one is left \
                            behind when that has all; where there is no spare that is\nlarge \
                            enough, nothing is done.")]
    Fail {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of each
        #[arg(required = true)]
        devices: Vec<String>,
        /// Return when a spare has taken the place of each, and has all
        #[arg(long)]
        wait: bool,
    },
    /// Clear the error counters of devices, and forget devices that failed and were replaced
    #[command(after_help = "Examples:\n  holdfast device clear d0.hf\n  \
                            holdfast device clear d0.hf d1.hf\n\n\
                            `status` warns of a device with errors until it is replaced, its \
                            counters are cleared,\nor the pool is mounted anew. Clear them when \
                            the cause is fixed, for example a bad cable.")]
    Clear {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of each; none: all
        devices: Vec<String>,
    },
    /// Put another device in the place of one, and copy everything to it
    #[command(after_help = "Example:\n  holdfast device replace d0.hf d1.hf new.hf --wait\n\n\
                            The old device gets nothing more from now on. A job copies; it goes \
                            on after a crash, and\nwhen the pool is opened again. Of a \
                            round-robin the new one comes and takes files in turn, and\nthe old \
                            one leaves, as by `device remove`.")]
    Replace {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of the old one
        old: String,
        /// The new one: a file (made if it is missing) or block device
        new: PathBuf,
        /// Return when the new one has all
        #[arg(long)]
        wait: bool,
        /// Overwrite what is on the new one
        #[arg(long)]
        force: bool,
    },
    /// Bring back a device that was away: it gets what was written meanwhile, and no more
    #[command(after_help = "Example:\n  holdfast device online d0.hf d1.hf --wait\n\n\
                            For a device that failed, was missing or was failed by hand, and \
                            still has what it had.\nIt gets every write from now on, and a job \
                            copies what changed while it was away; until\nthen it is not read. \
                            One that is missing at a mount and is there at a later one comes \
                            back\nby itself.")]
    Online {
        /// The pool
        pool: PathBuf,
        /// Slot or id of each, or the path where it is now
        #[arg(required = true)]
        devices: Vec<String>,
        /// Return when they have all
        #[arg(long)]
        wait: bool,
    },
    /// Add a device to the pool: for data, as a copy of another, or as a spare
    #[command(after_help = "Examples:\n  holdfast device add d0.hf /dev/sdb\n  \
                            holdfast device add d0.hf /dev/sdb --mirror d0.hf --wait\n  \
                            holdfast device add d0.hf /dev/sde --raid5 d0.hf\n  \
                            holdfast device add d0.hf more.hf --size 2G\n  \
                            holdfast device add d0.hf spare.hf --spare\n  \
                            holdfast device add d0.hf /dev/sdf --spare --force\n\n\
                            A pool of single devices gets one more of them, a disk group of its \
                            own (`group list`): data\ngoes there too from now on. A pool that is \
                            one raid5 or stripe gets it as\nwith --raid5. In others with \
                            redundancy it must be said: `group add`, --mirror, --raid5.\n\n\
                            With --mirror OLD it becomes a copy more of the disk group of OLD: a \
                            single becomes a\nmirror of two, a mirror of two one of three. It gets \
                            every write from now on, a job copies\nthe rest, and until it has all \
                            it is not read.\n\n\
                            With --raid5 OLD, or --stripe OLD, the raid5 or stripe that OLD is in \
                            gets a device more: a\njob spreads what it holds over all of \
                            them, segment by segment, while the pool is in use, and\nthen it has \
                            more room. It goes on after a crash, and waits while a device is \
                            away.\n\n\
                            With --round-robin OLD the round-robin that OLD is in gets a device \
                            more: new files take it in turn\nwith the others from then on, and \
                            what there is stays where it is. A single that holds data alone\nis a \
                            round-robin of two then. It must be as large as the pool uses of the \
                            others.\n\n\
                            A spare holds nothing. When a device of the mounted pool has failed or \
                            is missing, the\nsmallest spare that is large enough takes its place, \
                            and a job makes it whole. A pool has up\nto 8 spares.")]
    Add {
        /// The pool
        pool: PathBuf,
        /// The devices: files (made if they are missing) or block devices
        #[arg(required = true)]
        devices: Vec<PathBuf>,
        /// Keep it as a spare
        #[arg(long)]
        spare: bool,
        #[command(flatten)]
        joins: Joins,
        /// Size of a file that is not there yet
        #[arg(long, conflicts_with = "spare")]
        size: Option<ByteSize>,
        /// Return when the copy has all, or all is spread
        #[arg(long, conflicts_with = "spare")]
        wait: bool,
        /// Overwrite what is on it
        #[arg(long)]
        force: bool,
    },
    /// Use all of devices that have become longer, while the pool is in use
    #[command(after_help = "Examples:\n  truncate -s 2G d0.hf && holdfast device grow d0.hf\n  \
                            holdfast device grow d0.hf --size 2G\n  \
                            lvextend -L +100G vg/pool && holdfast device grow /dev/vg/pool\n  \
                            holdfast device grow d0.hf d1.hf d2.hf\n\n\
                            A pool does not become longer by itself when its file, logical \
                            volume or partition does, or when\nall devices of a mirror or raid5 \
                            were replaced by larger ones: this makes it so, at once, and \
                            moves\nnothing. Without DEVICE all disk groups grow that can, else \
                            those that have one of the devices. Of a\nmirror, stripe or raid5 \
                            the smallest device counts. All devices of a disk group must be \
                            online. How much\ncould not be used, and why, is said. A pool never \
                            becomes shorter.")]
    Grow {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of devices; none: all
        devices: Vec<String>,
        /// Make files so long first
        #[arg(long)]
        size: Option<ByteSize>,
    },
    /// Take a device out of the pool: a spare, one of a mirror, raid5, stripe or round-robin, or a
    /// disk group of its own
    #[command(after_help = "Examples:\n  holdfast device remove d0.hf spare.hf\n  \
                            holdfast device remove d0.hf d2.hf\n  \
                            holdfast device remove d0.hf /dev/sdb --wait\n\n\
                            One of a mirror of three leaves a mirror of two; of two a single is \
                            left, without redundancy,\nwhich must be said. It is refused where \
                            the others do not have all. It is also how one that is\nmissing or \
                            has failed is forgotten for good.\n\n\
                            What a disk group of its own holds is moved elsewhere before, by a \
                            job, as `group remove`\ndoes; where that does not fit it is refused, \
                            with the missing bytes. Its label is taken off\nthen, so that it is \
                            of no pool any more.\n\n\
                            Of a raid5 of four or more, or a stripe of three or more, a job moves \
                            what the device holds\nto the others, which goes on after a crash. \
                            The pool has less room from the first moment on;\nwhere what it \
                            holds does not fit, it is refused, with the missing bytes. All \
                            devices of the disk\ngroup must be online.\n\n\
                            What a device of a round-robin holds is moved to the others, or \
                            elsewhere, in the same way; of two\nthe other is a single then.")]
    Remove {
        /// The pool
        pool: PathBuf,
        /// Path, slot or id of each
        #[arg(required = true)]
        devices: Vec<String>,
        /// Return when they are gone
        #[arg(long)]
        wait: bool,
        /// Of a mirror of two: let each byte be on one device alone from now on
        #[arg(long)]
        accept_no_redundancy: bool,
    },
}

/// Which disk group a device comes to.
#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with = "spare")]
pub(crate) struct Joins {
    /// Make it a copy more of the disk group of this device: path, slot or id
    #[arg(long, value_name = "OLD")]
    mirror: Option<String>,
    /// Spread the raid5 or stripe that this device is in over it too: path, slot or id
    #[arg(long, visible_alias = "stripe", value_name = "OLD")]
    raid5: Option<String>,
    /// Have it take files in turn with the round-robin that this device is in, or with this device:
    /// path, slot or id
    #[arg(long, value_name = "OLD")]
    round_robin: Option<String>,
}

/// What a device becomes that comes to a disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// A copy more.
    Copy,
    /// One more to spread over.
    Spread,
    /// One more that takes files in turn.
    InTurn,
}

impl Joins {
    /// Returns the device whose disk group it comes to, and what it becomes there.
    pub(crate) fn beside(&self) -> Option<(&str, Joining)> {
        let copy = self.mirror.as_deref().map(|old| (old, Joining::Copy));
        let spread = self.raid5.as_deref().map(|old| (old, Joining::Spread));
        let in_turn = self.round_robin.as_deref().map(|old| (old, Joining::InTurn));
        copy.or(spread).or(in_turn)
    }
}

impl DeviceCommand {
    /// Returns the pool, or what it is mounted on.
    pub(crate) fn pool(&self) -> &Path {
        match self {
            DeviceCommand::List { pool, .. }
            | DeviceCommand::Fail { pool, .. }
            | DeviceCommand::Clear { pool, .. }
            | DeviceCommand::Replace { pool, .. }
            | DeviceCommand::Online { pool, .. }
            | DeviceCommand::Add { pool, .. }
            | DeviceCommand::Grow { pool, .. }
            | DeviceCommand::Remove { pool, .. } => pool,
        }
    }

    /// Returns the pool, and the devices that are to come. One that the pool has may be named
    /// though it does not answer.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let new = match self {
            DeviceCommand::Add { devices, .. } => devices.as_slice(),
            DeviceCommand::Replace { new, .. } => std::slice::from_ref(new),
            DeviceCommand::List { .. }
            | DeviceCommand::Fail { .. }
            | DeviceCommand::Clear { .. }
            | DeviceCommand::Online { .. }
            | DeviceCommand::Grow { .. }
            | DeviceCommand::Remove { .. } => &[],
        };
        std::iter::once(self.pool()).chain(new.iter().map(PathBuf::as_path)).collect()
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast scrub d0.hf --wait\n\n\
                        Reads all copies, and writes again what is bad on one device and good on \
                        another. A job:\n`holdfast job list` shows how far it is. A pool that is \
                        not mounted is opened, and waited for.")]
pub(crate) struct ScrubArgs {
    /// Any device of the pool, or a directory that it is mounted on
    pub(crate) pool: PathBuf,
    /// Return when it has ended, and say what it has found
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast trim pool.hf\n\n\
                        Discards free segments once: punches holes in files, discards ranges of \
                        block devices.\nDisk groups of kind raid5 and stripe are not discarded. \
                        Each disk group keeps eight free\nsegments for writers meanwhile; one \
                        with no more than these is passed over. A pool that is\nnot mounted is \
                        opened. `mount -o discard` discards freed space all the time.")]
pub(crate) struct TrimArgs {
    /// Any device of the pool, or a directory that it is mounted on
    pub(crate) pool: PathBuf,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}
