//! What can be asked of the program.

/// Makes two accessors of an argument that may be the name of a pool: one for the command, and one
/// to put the path of the pool in its place.
macro_rules! argument {
    ($(#[$meta:meta])* $name:ident, $name_mut:ident, $pattern:pat => $path:ident) => {
        $(#[$meta])*
        pub(crate) fn $name(&self) -> &Path {
            match self { $pattern => $path }
        }

        /// See [`CliCommand::pools_mut`](crate::args::CliCommand::pools_mut).
        pub(crate) fn $name_mut(&mut self) -> &mut PathBuf {
            match self { $pattern => $path }
        }
    };
}

pub(crate) mod clone;
pub(crate) mod device;
pub(crate) mod export;
pub(crate) mod fileset;
pub(crate) mod group;
pub(crate) mod locks;
pub(crate) mod members;
pub(crate) mod placement;
pub(crate) mod pool;
pub(crate) mod quota;
pub(crate) mod schedule;
pub(crate) mod snapshot;
pub(crate) mod top;
pub(crate) mod transfer;
pub(crate) mod tree;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use format::superblock::{LabelError, verify_pool_name};
use front::nfs::ExportRules;

use self::members::{GroupSpec, MemberArgs, MemberPaths, parse_group};
use crate::exit;
use control::size::{ByteSize, parse_time};

/// A file system and file server in user space.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct CliArguments {
    /// Print results as JSON, one object per line; a script names the version it expects: --json=1
    #[arg(long, global = true, value_name = "VERSION", num_args = 0..=1, require_equals = true,
          default_missing_value = VERSION_TEXT, value_parser = parse_version)]
    pub(crate) json: Option<u32>,
    /// Print only results, warnings and errors: no progress and no advice
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Create a pool
    Create(CreateArgs),
    /// List pools, and rename one
    Pool(pool::PoolArgs),
    /// Mount a fileset of a pool on a directory
    Mount(MountArgs),
    /// Unmount a directory, and wait until the pool is closed
    Unmount(UnmountArgs),
    /// Serve pools over the network by NFSv3, with a dashboard over HTTP
    Serve(ServeArgs),
    /// Show the state of mounted and served pools
    Status(StatusArgs),
    /// Create, list, change, rename, move and delete filesets
    Fileset(fileset::FilesetArgs),
    /// Create, list, hold and delete snapshots of filesets
    Snapshot(snapshot::SnapshotArgs),
    /// Create a writable fileset from a snapshot
    Clone(clone::CloneArgs),
    /// Add, list and remove NFS exports of a served pool
    Export(export::ExportArgs),
    /// Set and report quotas of users, groups and projects
    Quota(quota::QuotaArgs),
    /// Set or show the disk group that new data of a file or directory is written to
    Placement(placement::PlacementArgs),
    /// Set schedules of snapshots and scrubs
    Schedule(schedule::ScheduleArgs),
    /// Test the notifications of a server
    Notify(schedule::NotifyArgs),
    /// Show the current load by client, directory and operation
    Top(top::TopArgs),
    /// List the file locks of programs
    Locks(locks::LocksArgs),
    /// Show slow requests of clients
    Trace(top::TraceArgs),
    /// Make a server reread its configuration file
    Reload(ReloadArgs),
    /// List, add, replace, fail, grow and remove the devices of a pool
    Device(device::DeviceArgs),
    /// List, add and remove the disk groups of a pool
    Group(group::GroupArgs),
    /// Compare the copies and parity of a pool, and repair what differs
    Scrub(device::ScrubArgs),
    /// Discard the free space of a pool, like fstrim(8)
    Trim(device::TrimArgs),
    /// List the differences between two snapshots, or a snapshot and its fileset
    Diff(transfer::DiffArgs),
    /// Write a snapshot, or the changes since an earlier one, as a stream
    Send(transfer::SendArgs),
    /// Create or update a fileset from a stream
    Receive(transfer::ReceiveArgs),
    /// Copy a directory or a tar archive into a fileset
    CopyIn(tree::CopyInArgs),
    /// Copy a fileset or a snapshot to a directory or a tar archive
    CopyOut(tree::CopyOutArgs),
    /// List, pause, resume and pace the background jobs of a pool
    Job(fileset::JobArgs),
    /// Check the consistency of a pool, without changes
    Check(CheckArgs),
    /// Print the superblock, the journal or a page of a pool as text
    Dump(DumpArgs),
    /// Show how a file is stored: each layer from its name to the bytes on the devices
    Explain(ExplainArgs),
    /// Create and mount a small pool to try out
    Demo(DemoArgs),
    /// Write man pages and shell completions
    Generate(GenerateArgs),
}

impl CliCommand {
    /// Returns the paths, but no pools, that are looked at before anything else: of `unmount` what
    /// its directory is in, for at a mount itself it does not look. A path that a range may follow
    /// is not here.
    #[allow(clippy::wildcard_enum_match_arm, reason = "the others have pools alone")]
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let paths = match self {
            CliCommand::Create(args) => return args.devices(),
            CliCommand::Mount(args) => args.directory.as_deref(),
            CliCommand::Unmount(args) => args.directory.parent().map(or_here),
            CliCommand::Device(args) => {
                return args.command.new_devices().iter().map(PathBuf::as_path).collect();
            }
            CliCommand::Group(args) => {
                return args.command.new_devices().iter().map(PathBuf::as_path).collect();
            }
            CliCommand::CopyIn(args) => args.way(),
            CliCommand::CopyOut(args) => args.way(),
            CliCommand::Explain(args) => args.device.as_deref(),
            CliCommand::Demo(args) => Some(&*args.directory),
            _ => None,
        };
        paths.into_iter().collect()
    }

    /// Returns the arguments that may be names of pools.
    pub(crate) fn pools_mut(&mut self) -> Vec<&mut PathBuf> {
        let pools = match self {
            // A remount goes by the directory.
            CliCommand::Mount(args) if args.is_remount() => [None, None],
            CliCommand::Mount(args) => [args.device.as_mut(), None],
            CliCommand::Serve(args) => return args.pools.iter_mut().collect(),
            CliCommand::Status(args) => [args.of.as_mut(), None],
            CliCommand::Pool(args) => [args.command.pool_mut(), None],
            CliCommand::Fileset(args) => args.command.pools_mut(),
            CliCommand::Snapshot(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Clone(args) => args.command.pools_mut(),
            CliCommand::Export(args) => [Some(args.command.path_mut()), None],
            CliCommand::Quota(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Placement(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Schedule(args) => [Some(args.command.path_mut()), None],
            CliCommand::Notify(args) => [Some(args.pool()), None],
            CliCommand::Top(args) => [Some(&mut args.pool), None],
            CliCommand::Locks(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Trace(args) => [Some(&mut args.pool), None],
            CliCommand::Reload(args) => [Some(&mut args.pool), None],
            CliCommand::Device(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Group(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Scrub(args) => [Some(&mut args.pool), None],
            CliCommand::Trim(args) => [Some(&mut args.pool), None],
            CliCommand::Diff(args) => [Some(&mut args.from), Some(&mut args.to)],
            CliCommand::Send(args) => [Some(&mut args.snapshot), None],
            CliCommand::Receive(args) => [Some(&mut args.fileset), None],
            CliCommand::CopyIn(args) => [Some(&mut args.pool), None],
            CliCommand::CopyOut(args) => [Some(&mut args.pool), None],
            CliCommand::Job(args) => [Some(args.command.pool_mut()), None],
            CliCommand::Check(args) => [Some(&mut args.device), None],
            CliCommand::Dump(args) => [Some(&mut args.device), None],
            CliCommand::Explain(args) => [args.pool.as_mut(), None],
            CliCommand::Create(_)
            | CliCommand::Unmount(_)
            | CliCommand::Demo(_)
            | CliCommand::Generate(_) => [None, None],
        };
        pools.into_iter().flatten().collect()
    }
}

/// Returns `parent`, which has no name where a path is one name of the current directory.
fn or_here(parent: &Path) -> &Path {
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

/// Placement policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlacementName {
    /// Sequentially, in the order of writing
    Log,
    /// Near its inode, with directories spread over allocation groups
    Ffs,
    /// One allocation group at a time, in ascending order
    Hotspot,
}

/// Transport of FUSE requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// io_uring if supported, else /dev/fuse
    Auto,
    /// io_uring; if unsupported, /dev/fuse with a warning
    Uring,
    /// /dev/fuse
    Dev,
}

/// Whether to keep processors out of deep idle states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuLatencyName {
    /// Only on a virtual machine with at most 8 processors, as root
    Auto,
    /// If /dev/cpu_dma_latency can be opened
    On,
    /// Never
    Off,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast create pool.hf --size 16T\n  \
                        holdfast create --group mirror:d0.hf,d1.hf --size 2G\n  \
                        holdfast create --group raid5:d0,d1,d2,d3 --group \
                        mirror:m0,m1=metadata,journal")]
pub(crate) struct CreateArgs {
    /// A block device, or a file, which is created if it does not exist
    #[arg(required_unless_present = "groups", conflicts_with = "groups")]
    pub(crate) device: Option<PathBuf>,
    /// Disk group of the pool; repeat for several. KIND is single (1 device), mirror (2 or 3),
    /// raid5 (3 to 32, survives the loss of one), stripe or round-robin (no redundancy). ROLES is a
    /// list of data, metadata and journal; the journal is placed with the metadata, or on a single
    /// or mirror of its own [default: data; the first group without ROLES also gets metadata if no
    /// group names it]
    #[arg(long = "group", value_name = "KIND:DEVICE,...[=ROLES]", value_parser = parse_group)]
    pub(crate) groups: Vec<GroupSpec>,
    /// Size of each file that is created as a device
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,
    /// Use the whole of block devices [default: a pool of one disk group leaves 1 % of each unused,
    /// at most 1 GiB, so that a slightly smaller device can replace it]
    #[arg(long, conflicts_with = "size")]
    pub(crate) use_all: bool,
    /// Allocation unit: 1K, 2K or 4K
    #[arg(long, default_value = "4K")]
    pub(crate) fragment: ByteSize,
    /// Block size of files: a power of two from 4K to 1M, at most a quarter of a segment
    #[arg(long, default_value = "16K")]
    pub(crate) block: ByteSize,
    /// Size of an allocation group [default: depends on the pool size]
    #[arg(long)]
    pub(crate) allocation_group_size: Option<ByteSize>,
    /// Size of the journal [default: depends on the pool size]
    #[arg(long)]
    pub(crate) journal_size: Option<ByteSize>,
    /// Name of the pool, for `holdfast mount NAME:a/b DIR` [default: the file name of the first
    /// device, without its extension]
    #[arg(long, value_parser = parse_pool_name)]
    pub(crate) name: Option<String>,
    /// Overwrite existing data on the devices
    #[arg(long)]
    pub(crate) force: bool,
}

impl CreateArgs {
    /// Returns the devices that are named.
    pub(crate) fn devices(&self) -> Vec<&Path> {
        let grouped = self.groups.iter().flat_map(|group| &group.devices);
        self.device.iter().chain(grouped).map(PathBuf::as_path).collect()
    }
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast mount pool.hf /mnt --daemon\n  \
    holdfast mount pool.hf /mnt -o ro,noexec\n  \
    holdfast mount tank:home /home --daemon\n  \
    holdfast mount --all --config /etc/holdfast/holdfast.toml\n  \
    holdfast mount /home -o remount,ro\n\nIf the pool is already open, by another mount or by \
    `holdfast serve`, its server takes this\nmount too, and the command returns at once. A fileset \
    has one mount, or several that are all\nmade with --shared. The pool is closed with the last \
    mount.")]
pub(crate) struct MountArgs {
    /// Name or a device of the pool; POOL:a/b mounts the fileset a/b [default: root]
    #[arg(required_unless_present = "all")]
    pub(crate) device: Option<PathBuf>,
    /// The name by which the pool was given.
    #[arg(skip)]
    pub(crate) pool_name: Option<String>,
    /// Mount point; -o remount needs only this
    pub(crate) directory: Option<PathBuf>,
    /// Mount all mount entries of the configuration that are not mounted, in the background
    #[arg(long, requires = "config", conflicts_with_all = ["device", "directory"])]
    pub(crate) all: bool,
    /// Configuration file with mount entries: pool, fileset, directory, options
    #[arg(long, value_name = "FILE", requires = "all")]
    pub(crate) config: Option<PathBuf>,
    /// Run in the background; return when the mount is ready
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Mount options, separated by commas: ro, noexec, nodev, nosuid, noatime, allow_other and
    /// others of mount(8); remount: change an existing mount; noxattr: no extended attributes, ACLs
    /// and capabilities, which saves requests; inode32: 32-bit inode numbers; share: as
    /// --shared does; direct_io: bypass the page cache; direct_io=marked: only for files with the
    /// attribute user.holdfast.direct_io; discard: discard free space of block devices too;
    /// nodiscard: discard nothing [default: punch holes in files]
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Memory for the server's metadata cache
    #[arg(long, default_value = "256M")]
    pub(crate) cache: ByteSize,
    /// Placement policy for new data
    #[arg(long, value_enum, default_value = "log")]
    pub(crate) placement: PlacementName,
    /// Longest time until unsynced changes are committed
    #[arg(long, default_value = "5s", value_parser = parse_time)]
    pub(crate) commit_interval: Duration,
    /// Time after which a request to a device fails
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) device_deadline: Duration,
    /// Skip the check for another machine; use only if none has the pool open
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
    /// Number of request threads [default: two per processor, at least 4]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Time in microseconds to poll for the next request before sleeping; 0: off
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) poll_us: Option<u64>,
    /// Transport of FUSE requests
    #[arg(long, value_enum, default_value = "dev")]
    pub(crate) transport: TransportName,
    /// Keep processors out of deep idle states during requests: lower latency, more power
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) cpu_latency: CpuLatencyName,
    /// Use the kernel's writeback cache: faster, but a crash of the server loses writes before
    /// fsync
    #[arg(long)]
    pub(crate) writeback_cache: bool,
    /// Allow other shared mounts and exports of the fileset: changes by others are visible at open,
    /// and otherwise within a second
    #[arg(long)]
    pub(crate) shared: bool,
    /// Log file [default: standard error; with --daemon, next to the socket shown by `holdfast
    /// status`]
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
    /// Serve, and tell the waiting parent on standard output
    #[arg(long, hide = true)]
    pub(crate) answer_parent: bool,
}

impl MountArgs {
    fn is_remount(&self) -> bool {
        self.options.iter().flat_map(|words| words.split(',')).any(|word| word == "remount")
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast serve pool.hf --nfs 127.0.0.1:2049\n  \
    holdfast serve pool.hf:home --nfs 0.0.0.0:2049 --export /home:rw,to=10.0.0.0/8\n  \
    holdfast serve a.hf b.hf --nfs 0.0.0.0:2049 --listen 127.0.0.1:8080\n  \
    holdfast serve --config holdfast.toml\n  \
    holdfast serve --config holdfast.toml --check\n\nAn export is NAME or NAME:OPTION,... with the \
    options rw, ro [default], to=NETWORK (may be\nrepeated) [default: this machine], \
    squash=none|root|all [default: root], anon=UID:GID,\nfileset=a/b, dir=PATH, insecure (accept \
    unprivileged ports), async (reply to metadata changes\nbefore they are durable).")]
pub(crate) struct ServeArgs {
    /// A device of each pool; POOL:a/b serves the fileset a/b [default: root]
    #[arg(value_name = "POOL", required_unless_present = "config")]
    pub(crate) pools: Vec<PathBuf>,
    /// Configuration file, in addition to the arguments; reread on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Only verify the arguments, the configuration, and that exported filesets exist. Changes
    /// nothing; pools in use or not cleanly closed are reported and skipped
    #[arg(long)]
    pub(crate) check: bool,
    /// Address for NFS and MOUNT; port 0: any free port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) nfs: Option<SocketAddr>,
    /// Export of the first pool: NAME or NAME:OPTION,... as described below [default: those added
    /// by `holdfast export add`; if there never were any and one pool is served without --config,
    /// the pool as /, read-write, to this machine]
    #[arg(long = "export", value_name = "EXPORT")]
    pub(crate) exports: Vec<ExportRules>,
    /// Address for HTTP: dashboard, metrics and API; port 0: any free port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Additional host name accepted in HTTP requests; others are refused [default: localhost, on
    /// loopback]
    #[arg(long = "host", value_name = "NAME", requires = "listen")]
    pub(crate) hosts: Vec<String>,
    /// Certificate chain for HTTPS in PEM, the server's first
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "listen"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Allow HTTP without TLS on a network: the token can be read in transit
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,
    /// Address of a built-in portmapper (rpcbind), usually port 111
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) portmap: Option<SocketAddr>,
    /// Memory for the server's metadata cache
    #[arg(long, default_value = "256M")]
    pub(crate) cache: ByteSize,
    /// Longest time until unsynced changes are committed
    #[arg(long, default_value = "5s", value_parser = parse_time)]
    pub(crate) commit_interval: Duration,
    /// Time after which a request to a device fails
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) device_deadline: Duration,
    /// Skip the check for another machine; use only if none has the pool open
    #[arg(long)]
    pub(crate) force: bool,
    /// Number of request threads [default: 16]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// State directory: added exports, the HTTP token [default: /var/lib/holdfast for root, else
    /// ~/.local/state/holdfast]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
    /// Log file [default: standard error]
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast generate /tmp/holdfast-pages")]
pub(crate) struct GenerateArgs {
    /// Output directory; created if it does not exist
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    holdfast reload pool.hf\n\nExports change at once; clients of unchanged exports are not \
    affected. Invalid settings, and\nthose that need a restart, are refused, and the previous ones \
    stay.")]
pub(crate) struct ReloadArgs {
    /// A pool of the server
    pub(crate) pool: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast unmount /mnt")]
pub(crate) struct UnmountArgs {
    /// Mount point
    pub(crate) directory: PathBuf,
    /// Detach the mount now, even if files are in use
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Abort the connection: requests of processes that use files fail, in all mount namespaces
    #[arg(long, conflicts_with = "lazy")]
    pub(crate) force: bool,
    /// Longest wait for the server to close the pool
    #[arg(long, default_value = "60s", value_parser = parse_time)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast status\n  holdfast status /mnt --verbose")]
pub(crate) struct StatusArgs {
    /// Name or a device of a pool, or its mount point [default: all that you may see]
    pub(crate) of: Option<PathBuf>,
    /// Show all counters; --json always has them
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
#[command(after_help = exit::CHECK_HELP)]
pub(crate) struct CheckArgs {
    /// Name or a device of the pool
    pub(crate) device: PathBuf,
    /// Memory limit; large pools with many files need more
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) memory: ByteSize,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast dump pool.hf superblock:3\n  \
                        holdfast dump pool.hf 0:0:9")]
pub(crate) struct DumpArgs {
    /// Name or a device of the pool
    pub(crate) device: PathBuf,
    /// What to print: superblock, superblock:COPY (0 to 3), journal, a page by its place
    /// (DISKGROUP:GROUP:FRAGMENT) or by its byte offset
    #[arg(default_value = "superblock")]
    pub(crate) what: String,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast explain /mnt/file:0-4095\n  \
                        holdfast explain --pool pool.hf /file\n  \
                        holdfast explain --pool pool.hf:a/b /file\n  \
                        holdfast explain --device pool.hf --offset 1073741824")]
pub(crate) struct ExplainArgs {
    /// A file on a mount, or with --pool in the fileset; optionally with a byte range
    #[arg(
        value_name = "PATH[:FIRST-LAST]",
        required_unless_present = "device",
        conflicts_with = "device"
    )]
    pub(crate) path: Option<OsString>,
    /// A pool that is not mounted; POOL:a/b is the fileset a/b [default: root]
    #[arg(long, conflicts_with = "device")]
    pub(crate) pool: Option<PathBuf>,
    /// Explain an offset of this device
    #[arg(long, requires = "offset")]
    pub(crate) device: Option<PathBuf>,
    /// Offset in bytes from the start of the device
    #[arg(long, requires = "device")]
    pub(crate) offset: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast demo")]
pub(crate) struct DemoArgs {
    /// Directory for the pool and its mount point
    #[arg(long, default_value = "demo-pool")]
    pub(crate) directory: PathBuf,
    /// Size of the pool, a sparse file
    #[arg(long, default_value = "16G")]
    pub(crate) size: ByteSize,
}

/// The version of the JSON. A test compares it with [`control::VERSION`].
const VERSION_TEXT: &str = "1";

fn parse_version(text: &str) -> Result<u32, String> {
    let known = control::VERSION;
    text.parse().ok().filter(|version| *version == known).ok_or_else(|| {
        format!(
            "this holdfast prints version {known} of its JSON: write --json={known}, and change \
             the script as docs/CONTROL.md says, or run the holdfast that it was written for"
        )
    })
}

pub(crate) fn parse_pool_name(text: &str) -> Result<String, LabelError> {
    verify_pool_name(text).map(|()| text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        CliArguments::command().debug_assert();
    }

    #[test]
    fn json_of_another_version_is_refused_in_words() {
        let of = |words: &str| CliArguments::try_parse_from(words.split(' '));
        assert_eq!(VERSION_TEXT, control::VERSION.to_string());
        for words in
            ["holdfast --json status", "holdfast status --json", "holdfast status --json=1"]
        {
            assert_eq!(of(words).expect("it is spelled as promised").json, Some(1), "{words}");
        }
        assert_eq!(of("holdfast status").expect("it is spelled as promised").json, None);
        for other in ["0", "2", "one", ""] {
            let refused = of(&format!("holdfast status --json={other}")).expect_err("another");
            assert!(refused.to_string().contains("prints version 1 of its JSON"), "{refused}");
        }
        let mut pool = of("holdfast status --json pool.hf").expect("the path is no version");
        assert_eq!(pool.command.pools_mut(), [&mut PathBuf::from("pool.hf")]);
    }

    #[test]
    fn a_mount_of_one_name_is_in_the_current_directory() {
        let of = |directory: &str| {
            let words = ["holdfast", "unmount", directory];
            let arguments = CliArguments::try_parse_from(words).expect("it is spelled as promised");
            let paths = arguments.command.paths();
            paths.into_iter().map(Path::to_path_buf).collect::<Vec<_>>()
        };
        assert_eq!(of("mnt"), [Path::new(".")]);
        assert_eq!(of("a/mnt"), [Path::new("a")]);
        assert_eq!(of("/mnt"), [Path::new("/")]);
    }

    /// Goal: the commands are spelled as promised.
    #[test]
    fn promised_spellings_are_understood() {
        for line in [
            "create pool.hf --size 16T",
            "create pool.hf --size 1.5G --fragment 1K --block 16K --allocation-group-size 1G \
             --journal-size 64M --name x --force",
            "create --group mirror:d0,d1 --size 2G",
            "create --group single:d0",
            "pool list",
            "pool list -d /srv -d /dev/sda --json",
            "pool rename tank data",
            "mount tank:home DIR",
            "mount d0 DIR --member d1 --degraded --accept-missing",
            "check d0 --member d1",
            "mount pool.hf DIR --daemon",
            "mount pool.hf DIR -o ro,noexec -o nodev --cache 1G --placement ffs \
             --commit-interval 5s --device-deadline 10s --threads 4 --writeback-cache \
             --log-file x.log",
            "unmount DIR",
            "status",
            "status DIR --json",
            "fileset create pool.hf:a/b block=64K readonly=on",
            "fileset list pool.hf --json",
            "fileset set pool.hf:a readonly=off",
            "fileset rename pool.hf:a pool.hf:b",
            "fileset delete pool.hf:a --recursive --wait",
            "serve pool.hf --nfs 127.0.0.1:2049 --export /a:rw,to=10.0.0.0/8 --portmap 0.0.0.0:111",
            "serve a.hf b.hf --listen 127.0.0.1:8080 --state DIR",
            "serve --config holdfast.toml --check",
            "export add pool.hf:a /a --to 10.0.0.0/8,fd00::/8 --rw --squash all",
            "export list pool.hf --json",
            "export remove pool.hf /a",
            "reload pool.hf",
            "device list d0 --json",
            "device fail d0 d1",
            "device replace d0 d1 d2 --wait",
            "scrub d0 --wait",
            "trim pool.hf --json",
            "schedule set pool.hf:a hourly=24,daily=7",
            "schedule set pool.hf:a none",
            "schedule list pool.hf --json",
            "top pool.hf --every 1s --times 2 --depth 3",
            "trace pool.hf --slower 50ms --json",
            "locks list pool.hf --json",
            "job list pool.hf --json",
            "job pause pool.hf 1",
            "job resume pool.hf 1",
            "check pool.hf",
            "dump pool.hf",
            "explain DIR/file:0-10",
            "explain --device pool.hf --offset 10G",
            "demo",
        ] {
            let arguments = std::iter::once("holdfast").chain(line.split_whitespace());
            let parsed = CliArguments::try_parse_from(arguments);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn what_is_said_of_http_needs_an_address() {
        for (more, is_well) in [("", false), (" --listen 127.0.0.1:0", true)] {
            for said in ["--host a", "--insecure", "--tls-cert c --tls-key k"] {
                let line = format!("holdfast serve p.hf {said}{more}");
                let parsed = CliArguments::try_parse_from(line.split_whitespace());
                assert_eq!(parsed.is_ok(), is_well, "{line}: {parsed:?}");
            }
        }
    }

    #[test]
    fn each_command_has_an_example() {
        for command in CliArguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("holdfast {}", command.get_name());
            assert!(help.contains(&example), "{}: {help}", command.get_name());
        }
    }
}
