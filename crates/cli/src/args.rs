//! What can be asked of the program.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit;
use crate::size::{ByteSize, parse_time};

/// A file system and file server in user space.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Print facts as JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a pool
    Create(CreateArgs),
    /// Put a pool's files under a directory
    Mount(MountArgs),
    /// Take a pool's files away again, and wait until the pool is closed
    Unmount(UnmountArgs),
    /// Show mounted pools
    Status(StatusArgs),
    /// Verify a whole pool, changing nothing
    Check(CheckArgs),
    /// Show the superblock, the journal or any page of a pool as text
    Dump(DumpArgs),
    /// Show each layer from a name to the byte on the disk, or back
    Explain(ExplainArgs),
    /// Crash simulated pools, over and over, and judge what is left
    Torture(TortureArgs),
    /// Try every power cut of every small workload
    Prove(ProveArgs),
    /// Make and mount a small pool to play with
    Demo(DemoArgs),
}

/// How data is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementName {
    /// In the order it is written
    Log,
    /// Near its inode, directories spread
    Ffs,
    /// One allocation group at a time, strictly forward
    Hotspot,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast create pool.hf --size 16T")]
pub(crate) struct CreateArgs {
    /// A file (made if it is missing) or block device
    pub(crate) device: PathBuf,
    /// Size of a new file; a block device is used whole
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,
    /// Unit of allocation: 1K, 2K or 4K
    #[arg(long, default_value = "4K")]
    pub(crate) fragment: ByteSize,
    /// Unit of a file's map: a power of two from 4K to 1M, a quarter of a segment at most
    #[arg(long, default_value = "16K")]
    pub(crate) block: ByteSize,
    /// Size of an allocation group [default: by the size of the pool]
    #[arg(long)]
    pub(crate) group_size: Option<ByteSize>,
    /// Size of the journal [default: by the size of the pool]
    #[arg(long)]
    pub(crate) journal_size: Option<ByteSize>,
    /// A name for people
    #[arg(long, default_value = "")]
    pub(crate) label: String,
    /// Overwrite what is on the device
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  holdfast mount pool.hf /mnt --daemon\n  \
                        holdfast mount pool.hf /mnt -o ro,noexec")]
pub(crate) struct MountArgs {
    /// The pool's device
    pub(crate) device: PathBuf,
    /// Where its files appear
    pub(crate) directory: PathBuf,
    /// Return when the mount answers, and serve in the background
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Options as mount(8) has them: ro, noexec, nodev, nosuid, noatime, allow_other, ...
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Memory for pages
    #[arg(long, default_value = "256M")]
    pub(crate) cache: ByteSize,
    /// How data is placed
    #[arg(long, value_enum, default_value = "log")]
    pub(crate) placement: PlacementName,
    /// Age at which what was not synced is committed
    #[arg(long, default_value = "5s", value_parser = parse_time)]
    pub(crate) commit_interval: Duration,
    /// Threads that answer the kernel [default: two for each processor, at least 4]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Let the kernel gather writes: faster, and lost with the server until fsync
    #[arg(long)]
    pub(crate) writeback_cache: bool,
    /// Where the server writes its log [default: standard error; with --daemon, beside the socket
    /// that `holdfast status` shows]
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
    /// Serve, and tell the waiting parent on standard output
    #[arg(long, hide = true)]
    pub(crate) answer_parent: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast unmount /mnt")]
pub(crate) struct UnmountArgs {
    /// Where the files appear
    pub(crate) directory: PathBuf,
    /// Take the directory away now, although files are in use
    #[arg(long)]
    pub(crate) lazy: bool,
    /// How long to wait for the server to end
    #[arg(long, default_value = "60s", value_parser = parse_time)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast status\n  holdfast status /mnt --json")]
pub(crate) struct StatusArgs {
    /// A pool's device or the directory it is mounted on [default: all that you may see]
    pub(crate) of: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = exit::CHECK_HELP)]
pub(crate) struct CheckArgs {
    /// The pool's device
    pub(crate) device: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast dump pool.hf superblock:3\n  \
                        holdfast dump pool.hf 0:0:9")]
pub(crate) struct DumpArgs {
    /// The pool's device
    pub(crate) device: PathBuf,
    /// What to show: superblock, superblock:COPY (0 to 3), journal, the page at a place
    /// (DISKGROUP:GROUP:FRAGMENT), or the page at a BYTE of the device
    #[arg(default_value = "superblock")]
    pub(crate) what: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast explain /mnt/file:0-4095\n  \
                        holdfast explain --pool pool.hf /file\n  \
                        holdfast explain --device pool.hf --offset 1073741824")]
pub(crate) struct ExplainArgs {
    /// A file under a mount, or with --pool in the pool; a range of bytes may follow a colon
    #[arg(
        value_name = "PATH[:FIRST-LAST]",
        required_unless_present = "device",
        conflicts_with = "device"
    )]
    pub(crate) path: Option<String>,
    /// A pool that is not mounted
    #[arg(long, conflicts_with = "device")]
    pub(crate) pool: Option<PathBuf>,
    /// Explain a place on this device
    #[arg(long, requires = "offset")]
    pub(crate) device: Option<PathBuf>,
    /// The place, in bytes from the start of the device
    #[arg(long, requires = "device")]
    pub(crate) offset: Option<ByteSize>,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast torture --seeds 1000\n  \
                        holdfast torture --seeds 1 --seed 4711     (one seed again)")]
pub(crate) struct TortureArgs {
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    pub(crate) seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast prove\n  \
                        holdfast prove --bound 2 --sample 1000 --seed 7\n  \
                        holdfast prove --only 42 --export-log logs     (one workload again)")]
pub(crate) struct ProveArgs {
    /// Operations of a workload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub(crate) bound: u32,
    /// Only so many workloads, by chance [default: all]
    #[arg(long)]
    pub(crate) sample: Option<u64>,
    /// Of what is left to chance
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Only the workload of this number
    #[arg(long, conflicts_with = "sample")]
    pub(crate) only: Option<u64>,
    /// Write each workload as a base image and a log in the form of the kernel's dm-log-writes
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) export_log: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast demo")]
pub(crate) struct DemoArgs {
    /// Where the pool and its mount are made
    #[arg(long, default_value = "demo-pool")]
    pub(crate) directory: PathBuf,
    /// Size of the pool; a sparse file takes only what is used
    #[arg(long, default_value = "16G")]
    pub(crate) size: ByteSize,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    /// Goal: the commands are spelled as promised.
    #[test]
    fn promised_spellings_are_understood() {
        for line in [
            "create pool.hf --size 16T",
            "create pool.hf --size 1.5G --fragment 1K --block 16K --group-size 1G \
             --journal-size 64M --label x --force",
            "mount pool.hf DIR --daemon",
            "mount pool.hf DIR -o ro,noexec -o nodev --cache 1G --placement ffs \
             --commit-interval 5s --threads 4 --writeback-cache --log-file x.log",
            "unmount DIR",
            "status",
            "status DIR --json",
            "check pool.hf",
            "dump pool.hf",
            "explain DIR/file:0-10",
            "explain --device pool.hf --offset 10G",
            "torture --seeds 1000",
            "torture --seeds 1 --seed 7",
            "prove --bound 2",
            "prove --bound 1 --seed 3 --sample 10 --export-log DIR --json",
            "demo",
        ] {
            let arguments = std::iter::once("holdfast").chain(line.split_whitespace());
            let parsed = Arguments::try_parse_from(arguments);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn each_command_has_an_example() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("holdfast {}", command.get_name());
            assert!(help.contains(&example), "{}: {help}", command.get_name());
        }
    }
}
