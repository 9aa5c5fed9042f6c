//! What can be asked of the devices of a pool.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::members::MemberPaths;
use control::size::ByteSize;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast device list d0.hf\n  \
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
    holdfast device remove d0.hf d1.hf --accept-no-redundancy\n\nPOOL is a device of the pool, or \
    its mount point. A device is named by its path, slot or id\n(see `device list`). The command \
    uses the server of a mounted or served pool, and opens any\nother pool itself.")]
pub(crate) struct DeviceArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: DeviceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List the devices of a pool with their states and error counters
    #[command(after_help = "Examples:\n  holdfast device list d0.hf --json\n  \
                            holdfast device list d0.hf d1.hf")]
    List {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of devices [default: all]
        devices: Vec<String>,
    },
    /// Mark devices as failed
    #[command(after_help = "Examples:\n  \
        holdfast device fail d0.hf d1.hf\n  \
        holdfast device fail d0.hf d1.hf --wait\n\nRefused if the remaining devices are not \
        complete. With --wait, a spare replaces each device\nand is rebuilt before the next device \
        is failed; without a spare that is large enough, nothing\nis done.")]
    Fail {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of devices
        #[arg(required = true)]
        devices: Vec<String>,
        /// Wait until spares have replaced them and are rebuilt
        #[arg(long)]
        wait: bool,
    },
    /// Clear error counters, and forget failed devices that were replaced
    #[command(after_help = "Examples:\n  \
        holdfast device clear d0.hf\n  \
        holdfast device clear d0.hf d1.hf\n\n`status` warns of a device with errors until it is \
        replaced, its counters are cleared, or the\npool is mounted again. Clear them when the \
        cause is fixed, for example a bad cable.")]
    Clear {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of devices [default: all]
        devices: Vec<String>,
    },
    /// Replace a device with a new one, and rebuild its contents
    #[command(after_help = "Example:\n  \
        holdfast device replace d0.hf d1.hf new.hf --wait\n\nThe old device is not written any \
        more. A job rebuilds the new one; it continues after a crash,\nand when the pool is opened \
        again. In a round-robin, the new device is added, and the old one\nis removed as by \
        `device remove`.")]
    Replace {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of the old device
        old: String,
        /// New device: a block device, or a file, which is created if it does not exist
        new: PathBuf,
        /// Wait until the rebuild has ended
        #[arg(long)]
        wait: bool,
        /// Overwrite existing data on the new device
        #[arg(long)]
        force: bool,
    },
    /// Bring a device back online, and copy what it has missed
    #[command(after_help = "Example:\n  \
        holdfast device online d0.hf d1.hf --wait\n\nFor a device that failed, was missing or was \
        failed by command, and still has its data. It gets\nall new writes, and a job copies what \
        it has missed; until then it is not read. A device that\nwas missing at a mount and is \
        there at the next comes back by itself.")]
    Online {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Slot, id or current path of devices
        #[arg(required = true)]
        devices: Vec<String>,
        /// Wait until they are rebuilt
        #[arg(long)]
        wait: bool,
    },
    /// Add devices: for data, to an existing disk group, or as spares
    #[command(after_help = "Examples:\n  \
        holdfast device add d0.hf /dev/sdb\n  \
        holdfast device add d0.hf /dev/sdb --mirror d0.hf --wait\n  \
        holdfast device add d0.hf /dev/sde --raid5 d0.hf\n  \
        holdfast device add d0.hf more.hf --size 2G\n  \
        holdfast device add d0.hf spare.hf --spare\n  \
        holdfast device add d0.hf /dev/sdf --spare --force\n\nWithout an option, a pool of single \
        devices gets a disk group of one device for data, and a\npool that is one raid5 or stripe \
        is widened. Other pools with redundancy need --mirror, --raid5\nor `group \
        add`.\n\n--mirror OLD attaches a further copy: a single becomes a mirror of two, a mirror \
        of two one of\nthree. A job rebuilds the device, which is not read until then.\n\n--raid5 \
        OLD, or --stripe OLD, widens the disk group of OLD: a job moves its segments to \
        wider\nstripes while the pool is in use, and then the space is available. It continues \
        after a crash,\nand waits while a device is missing.\n\n--round-robin OLD adds to the \
        round-robin of OLD: new files are placed on its devices in turn,\nand existing ones stay. \
        A single that holds only data becomes a round-robin of two. The device\nmust be as large \
        as the pool uses of the others.\n\nWhen a device of an open pool has failed or is missing, \
        the smallest spare that is large enough\nreplaces it, and a job rebuilds it. A pool has up \
        to 8 spares.")]
    Add {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Block devices, or files, which are created if they do not exist
        #[arg(required = true)]
        devices: Vec<PathBuf>,
        /// Add it as a hot spare
        #[arg(long)]
        spare: bool,
        #[command(flatten)]
        joins: AttachArgs,
        /// Size of files that are created
        #[arg(long, conflicts_with = "spare")]
        size: Option<ByteSize>,
        /// Wait until the rebuild or the rebalancing has ended
        #[arg(long, conflicts_with = "spare")]
        wait: bool,
        /// Overwrite existing data on the devices
        #[arg(long)]
        force: bool,
    },
    /// Use the added space of devices that were enlarged, online
    #[command(after_help = "Examples:\n  \
        truncate -s 2G d0.hf && holdfast device grow d0.hf\n  \
        holdfast device grow d0.hf --size 2G\n  \
        lvextend -L +100G vg/pool && holdfast device grow /dev/vg/pool\n  \
        holdfast device grow d0.hf d1.hf d2.hf\n\nUse this after a file, logical volume or \
        partition was enlarged, or after all devices of a\nmirror or raid5 were replaced by larger \
        ones. It takes effect at once and moves no data.\nWithout DEVICE all disk groups grow that \
        can. The smallest device of a mirror, stripe or raid5\ncounts, and all its devices must be \
        online. A pool cannot shrink.")]
    Grow {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of devices [default: all]
        devices: Vec<String>,
        /// Extend files to this size first
        #[arg(long)]
        size: Option<ByteSize>,
    },
    /// Remove devices: spares, members of a disk group, or disk groups of one device
    #[command(after_help = "Examples:\n  \
        holdfast device remove d0.hf spare.hf\n  \
        holdfast device remove d0.hf d2.hf\n  \
        holdfast device remove d0.hf /dev/sdb --wait\n\nA mirror of three becomes a mirror of two. \
        A mirror of two becomes a single without redundancy,\nwith --accept-no-redundancy. Refused \
        if the remaining devices are not complete. Also forgets a\nmissing or failed device for \
        good.\n\nThe contents of a disk group of one device are moved to the others by a job \
        first, as by `group\nremove`; if they do not fit, it is refused. Its label is erased at \
        the end.\n\nFrom a raid5 of four or more, or a stripe of three or more, a job moves the \
        data to the others;\nit continues after a crash. The pool has less space at once; if the \
        data does not fit, it is\nrefused. All devices of the disk group must be online.\n\nThe \
        files of a device of a round-robin are moved to the others in the same way; of two \
        devices\nthe other becomes a single.")]
    Remove {
        /// Name or a device of the pool, or its mount point
        pool: PathBuf,
        /// Path, slot or id of devices
        #[arg(required = true)]
        devices: Vec<String>,
        /// Wait until they are removed
        #[arg(long)]
        wait: bool,
        /// Allow a mirror of two to become a single device without redundancy
        #[arg(long)]
        accept_no_redundancy: bool,
    },
}

/// Which disk group a device comes to.
#[derive(Debug, Args)]
#[group(multiple = false, conflicts_with = "spare")]
pub(crate) struct AttachArgs {
    /// Attach as a further copy to the single or mirror of this device: path, slot or id
    #[arg(long, value_name = "OLD")]
    mirror: Option<String>,
    /// Widen the raid5 or stripe of this device: path, slot or id
    #[arg(long, visible_alias = "stripe", value_name = "OLD")]
    raid5: Option<String>,
    /// Add to the round-robin of this device, or make one with it: path, slot or id
    #[arg(long, value_name = "OLD")]
    round_robin: Option<String>,
}

/// What a device becomes that comes to a disk group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachModeName {
    /// A copy more.
    Copy,
    /// One more to spread over.
    Spread,
    /// One more that takes files in turn.
    InTurn,
}

impl AttachArgs {
    /// Returns the device whose disk group it comes to, and what it becomes there.
    pub(crate) fn beside(&self) -> Option<(&str, AttachModeName)> {
        let copy = self.mirror.as_deref().map(|old| (old, AttachModeName::Copy));
        let spread = self.raid5.as_deref().map(|old| (old, AttachModeName::Spread));
        let in_turn = self.round_robin.as_deref().map(|old| (old, AttachModeName::InTurn));
        copy.or(spread).or(in_turn)
    }
}

impl DeviceCommand {
    argument! {
        /// Returns the pool, or what it is mounted on.
        pool, pool_mut,
            DeviceCommand::List { pool, .. }
            | DeviceCommand::Fail { pool, .. }
            | DeviceCommand::Clear { pool, .. }
            | DeviceCommand::Replace { pool, .. }
            | DeviceCommand::Online { pool, .. }
            | DeviceCommand::Add { pool, .. }
            | DeviceCommand::Grow { pool, .. }
            | DeviceCommand::Remove { pool, .. } => pool
    }

    /// Returns the devices to be added. Devices of the pool are left out: a command may name one
    /// that does not answer.
    pub(crate) fn new_devices(&self) -> &[PathBuf] {
        match self {
            DeviceCommand::Add { devices, .. } => devices.as_slice(),
            DeviceCommand::Replace { new, .. } => std::slice::from_ref(new),
            DeviceCommand::List { .. }
            | DeviceCommand::Fail { .. }
            | DeviceCommand::Clear { .. }
            | DeviceCommand::Online { .. }
            | DeviceCommand::Grow { .. }
            | DeviceCommand::Remove { .. } => &[],
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    holdfast scrub d0.hf --wait\n\nReads all copies and parity, and rewrites bad ones from good \
    ones, as a background job (see\n`holdfast job list`). A pool that is neither mounted nor \
    served is opened for the command,\nwhich then waits.")]
pub(crate) struct ScrubArgs {
    /// Name or a device of the pool, or its mount point
    pub(crate) pool: PathBuf,
    /// Wait for the end, and report the result
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    holdfast trim pool.hf\n\nDiscards free segments: punches holes in files, discards ranges of \
    block devices. Skips raid5\nand stripe disk groups, and eight free segments of each other \
    group. `mount -o discard`\ndiscards continuously. A pool that is neither mounted nor served is \
    opened for the command.")]
pub(crate) struct TrimArgs {
    /// Name or a device of the pool, or its mount point
    pub(crate) pool: PathBuf,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}
