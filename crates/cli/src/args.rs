//! What can be asked of the program.

pub(crate) mod bench;
pub(crate) mod clone;
pub(crate) mod device;
pub(crate) mod export;
pub(crate) mod fileset;
pub(crate) mod group;
pub(crate) mod lab;
pub(crate) mod members;
pub(crate) mod placement;
pub(crate) mod quota;
pub(crate) mod schedule;
pub(crate) mod top;
pub(crate) mod transfer;
pub(crate) mod tree;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use format::superblock::{LabelError, label_of};
use front::nfs::ExportRules;

use self::members::{GroupSpec, MemberArgs, MemberPaths, parse_group};
use crate::exit;
use crate::size::{ByteSize, parse_time};

/// A file system and file server in user space.
#[derive(Debug, Parser)]
#[command(name = "holdfast", version, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Print facts as JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print facts, warnings and errors alone: no progress, and no advice
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a pool
    Create(CreateArgs),
    /// Mount a pool: its files appear under a directory
    Mount(MountArgs),
    /// Unmount a pool, and wait until it is closed
    Unmount(UnmountArgs),
    /// Serve pools over the network: files by NFSv3, a dashboard by HTTP
    Serve(ServeArgs),
    /// Show mounted pools
    Status(StatusArgs),
    /// Make, show, change, rename and delete the filesets of a pool
    Fileset(fileset::FilesetArgs),
    /// Take clones of a fileset (snapshots), show and delete them
    Clone(clone::CloneArgs),
    /// Export filesets of a served pool over the network, show and remove exports
    Export(export::ExportArgs),
    /// Count and limit what users, groups and projects have in a fileset
    Quota(quota::QuotaArgs),
    /// Say which disk group the data of files and directories comes from, and show it
    Placement(placement::PlacementArgs),
    /// Take clones and scrub by schedule, and delete clones that are more than are kept
    Schedule(schedule::ScheduleArgs),
    /// Send a test to all whom a server tells what happens to its pools
    Notify(schedule::NotifyArgs),
    /// Show the load by client, directory and operation, as it is now
    Top(top::TopArgs),
    /// Show slow requests of clients, as they come
    Trace(top::TraceArgs),
    /// Make a server read its configuration again
    Reload(ReloadArgs),
    /// Show the devices of a pool, fail and replace them
    Device(device::DeviceArgs),
    /// Show the disk groups of a pool, add and remove them
    Group(group::GroupArgs),
    /// Read and compare all copies of what a pool has, and repair
    Scrub(device::ScrubArgs),
    /// Discard the free space of a pool, as fstrim(8) does
    Trim(device::TrimArgs),
    /// Show which paths two clones have differently, or a clone and its fileset
    Diff(transfer::DiffArgs),
    /// Write a stream of a clone: whole, or what changed since an earlier one
    Send(transfer::SendArgs),
    /// Make a fileset of a stream, or its next state
    Receive(transfer::ReceiveArgs),
    /// Put a directory or a tar into a fileset
    Import(tree::ImportArgs),
    /// Write the files of a fileset or a clone into a directory or a tar
    ExportTree(tree::ExportTreeArgs),
    /// Show the jobs of a mounted pool, make them pause and go on
    Job(fileset::JobArgs),
    /// Verify a whole pool, changing nothing
    Check(CheckArgs),
    /// Show the superblock, the journal or any page of a pool as text
    Dump(DumpArgs),
    /// Show each layer from a name to the byte on the disk, or back
    Explain(ExplainArgs),
    /// Crash simulated pools, over and over, and judge what is left
    Torture(TortureArgs),
    /// Try every power cut, or every failure, of every small workload
    Prove(ProveArgs),
    /// Measure Holdfast beside other file systems
    Bench(BenchArgs),
    /// Repeat measurements of papers on simulated disks
    Lab(lab::LabArgs),
    /// Make and mount a small pool to play with
    Demo(DemoArgs),
    /// Write man pages, and completions for shells
    Generate(GenerateArgs),
}

impl Command {
    /// Returns the paths that are looked at before anything else: of `unmount` what its directory
    /// is in, for at a mount itself it does not look. A path that a range may follow is not here.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        let paths = match self {
            Command::Create(args) => return args.devices(),
            Command::Mount(args) => [args.device.as_deref(), args.directory.as_deref()],
            Command::Unmount(args) => [args.directory.parent().map(or_here), None],
            Command::Serve(args) => return args.pools.iter().map(PathBuf::as_path).collect(),
            Command::Status(args) => [args.of.as_deref(), None],
            Command::Fileset(args) => args.command.paths(),
            Command::Clone(args) => [Some(args.command.path()), None],
            Command::Export(args) => [Some(args.command.path()), None],
            Command::Quota(args) => [Some(args.command.path()), None],
            Command::Placement(args) => [Some(args.command.path()), None],
            Command::Schedule(args) => [Some(args.command.path()), None],
            Command::Notify(args) => [Some(args.pool()), None],
            Command::Top(args) => [Some(&*args.pool), None],
            Command::Trace(args) => [Some(&*args.pool), None],
            Command::Reload(args) => [Some(&*args.pool), None],
            Command::Device(args) => return args.command.paths(),
            Command::Group(args) => return args.command.paths(),
            Command::Scrub(args) => [Some(&*args.pool), None],
            Command::Trim(args) => [Some(&*args.pool), None],
            Command::Diff(args) => [Some(&*args.from), Some(&*args.to)],
            Command::Send(args) => [Some(&*args.clone), None],
            Command::Receive(args) => [Some(&*args.fileset), None],
            Command::Import(args) => [args.way(), Some(&*args.pool)],
            Command::ExportTree(args) => [Some(&*args.pool), args.way()],
            Command::Job(args) => [Some(args.command.pool()), None],
            Command::Check(args) => [Some(&*args.device), None],
            Command::Dump(args) => [Some(&*args.device), None],
            Command::Explain(args) => [args.device.as_deref(), args.pool.as_deref()],
            Command::Demo(args) => [Some(&*args.directory), None],
            Command::Bench(args) => [Some(&*args.place), None],
            Command::Torture(_) | Command::Prove(_) | Command::Lab(_) | Command::Generate(_) => {
                [None, None]
            }
        };
        paths.into_iter().flatten().collect()
    }
}

/// Returns `parent`, which has no name where a path is one name of the current directory.
fn or_here(parent: &Path) -> &Path {
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
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

/// By what the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// By io_uring where that can be, else by /dev/fuse
    Auto,
    /// By io_uring; where that cannot be by /dev/fuse, with a warning
    Uring,
    /// By /dev/fuse
    Dev,
}

/// Whether processors are kept from halting while a client works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuLatencyName {
    /// On a virtual machine of at most 8 processors, as root
    Auto,
    /// Wherever /dev/cpu_dma_latency can be opened
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
    /// A file (made if it is missing) or block device
    #[arg(required_unless_present = "groups", conflicts_with = "groups")]
    pub(crate) device: Option<PathBuf>,
    /// A disk group: mirror:DEVICE,DEVICE of 2 or 3, each with all of it, or raid5 of 3 to 32, any
    /// of which may be lost; single:DEVICE is one. Several may be given; what each is for follows
    /// its devices: =data, =metadata, =journal, or several of them with a comma between. The
    /// journal lies with the metadata, or on a single or mirror of its own. Without roles the first
    /// has all that no other names, and the rest have data
    #[arg(long = "group", value_name = "KIND:DEVICE,...[=ROLES]", value_parser = parse_group)]
    pub(crate) groups: Vec<GroupSpec>,
    /// Size of each new file
    #[arg(long)]
    pub(crate) size: Option<ByteSize>,
    /// Use block devices whole; without this, a pool of one disk group leaves 1 % of each, at most
    /// 1 GiB, so that a slightly smaller device can replace it
    #[arg(long, conflicts_with = "size")]
    pub(crate) use_all: bool,
    /// Unit of allocation: 1K, 2K or 4K
    #[arg(long, default_value = "4K")]
    pub(crate) fragment: ByteSize,
    /// Unit of a file's map: a power of two from 4K to 1M, a quarter of a segment at most
    #[arg(long, default_value = "16K")]
    pub(crate) block: ByteSize,
    /// Size of an allocation group [default: by the size of the pool]
    #[arg(long)]
    pub(crate) allocation_group_size: Option<ByteSize>,
    /// Size of the journal [default: by the size of the pool]
    #[arg(long)]
    pub(crate) journal_size: Option<ByteSize>,
    /// A name for people
    #[arg(long, default_value = "", value_parser = parse_label)]
    pub(crate) label: String,
    /// Overwrite what is on the device
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
#[command(after_help = "Examples:\n  holdfast mount pool.hf /mnt --daemon\n  \
                        holdfast mount pool.hf /mnt -o ro,noexec\n  \
                        holdfast mount pool.hf:home /home --daemon\n  \
                        holdfast mount --all --config /etc/holdfast/holdfast.toml\n  \
                        holdfast mount /home -o remount,ro\n\n\
                        A pool that is open already, by another mount or by `holdfast serve`, \
                        serves this one too: the\ncommand returns when it does. Each fileset has \
                        one mount,\nunless all of them are made with --shared. The pool is closed \
                        with the last.")]
pub(crate) struct MountArgs {
    /// The pool's device; POOL:a/b is a fileset of it [default: its first, root]
    #[arg(required_unless_present = "all")]
    pub(crate) device: Option<PathBuf>,
    /// Where its files appear; -o remount takes it alone, too
    pub(crate) directory: Option<PathBuf>,
    /// Mount what the configuration says, each in the background, but what is mounted already
    #[arg(long, requires = "config", conflicts_with_all = ["device", "directory"])]
    pub(crate) all: bool,
    /// The configuration: its `[[mount]]` say pool, fileset, directory and options
    #[arg(long, value_name = "FILE", requires = "all")]
    pub(crate) config: Option<PathBuf>,
    /// Return when the mount answers, and serve in the background
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Options as mount(8) has them: ro, noexec, nodev, nosuid, noatime, allow_other, ...; remount:
    /// change the mount that is there; noxattr: no extended attributes, access lists and
    /// capabilities, and fewer messages; inode32: numbers for programs of 32 bits; share: as
    /// --shared does; direct_io: the kernel keeps nothing of any file; direct_io=marked: of files
    /// whose attribute user.holdfast.direct_io is on; discard: discard free space of files and of
    /// block devices; nodiscard: of neither [default: of files with holes only]
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub(crate) options: Vec<String>,
    /// Memory for pages
    #[arg(long, default_value = "256M")]
    pub(crate) cache: ByteSize,
    /// How data is placed
    #[arg(long, value_enum, default_value = "log")]
    pub(crate) placement: PlacementName,
    /// What no program syncs is made durable after so long
    #[arg(long, default_value = "5s", value_parser = parse_time)]
    pub(crate) commit_interval: Duration,
    /// How long the device may take to answer before a request fails
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) device_deadline: Duration,
    /// Mount a pool that was not closed although another machine may have it open: it has not
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
    /// Threads that answer the kernel [default: two for each processor, at least 4]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Microseconds that a thread looks for the next request before it sleeps; 0: none
    #[arg(long, value_name = "MICROSECONDS")]
    pub(crate) poll_us: Option<u64>,
    /// By what the kernel asks
    #[arg(long, value_enum, default_value = "dev")]
    pub(crate) transport: TransportName,
    /// Keep processors from halting while a client works: faster, and takes power
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) cpu_latency: CpuLatencyName,
    /// Let the kernel gather writes: faster, and lost with the server until fsync
    #[arg(long)]
    pub(crate) writeback_cache: bool,
    /// Share the fileset with other mounts of this kind, and with exports: each sees what another
    /// has changed when it opens a file, and within a second otherwise
    #[arg(long)]
    pub(crate) shared: bool,
    /// Where the server writes its log [default: standard error; with --daemon, beside the socket
    /// that `holdfast status` shows]
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
    /// Serve, and tell the waiting parent on standard output
    #[arg(long, hide = true)]
    pub(crate) answer_parent: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast serve pool.hf --nfs 127.0.0.1:2049\n  \
                        holdfast serve pool.hf:home --nfs 0.0.0.0:2049 --export \
                        /home:rw,to=10.0.0.0/8\n  \
                        holdfast serve a.hf b.hf --nfs 0.0.0.0:2049 --listen 127.0.0.1:8080\n  \
                        holdfast serve --config holdfast.toml\n  \
                        holdfast serve --config holdfast.toml --check\n\n\
                        An export is NAME or NAME:OPTION,...: rw, ro [default], to=NETWORK (once \
                        for each) [default: this machine], squash=none|root|all [default: root], \
                        anon=UID:GID, fileset=a/b, dir=PATH, insecure (any \
                        port), async (names and attributes \
                        are answered before they are durable)")]
pub(crate) struct ServeArgs {
    /// A device of each pool; POOL:a/b serves the fileset a/b of it [default: root, which each has]
    #[arg(value_name = "POOL", required_unless_present = "config")]
    pub(crate) pools: Vec<PathBuf>,
    /// What to serve, beside the command line: see the example below; SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Verify arguments, configuration, and whether the pools have what is exported; serve nothing.
    /// Changes nothing: a pool in use, or one that was not closed, is left alone, and is told
    #[arg(long)]
    pub(crate) check: bool,
    /// Where NFS and MOUNT listen; port 0: any that is free
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) nfs: Option<SocketAddr>,
    /// What of the first pool is exported while this server runs: NAME or NAME:OPTION,..., as below
    /// [default: what `holdfast export add` has added; where nothing ever was, and one pool is
    /// served without --config: all of it as /, read-write, to this machine]
    #[arg(long = "export", value_name = "EXPORT")]
    pub(crate) exports: Vec<ExportRules>,
    /// Where HTTP listens: dashboard, metrics, JSON; port 0: any that is free
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Another name by which clients reach the server by HTTP, beside its address; others are
    /// refused [default: localhost, on loopback]
    #[arg(long = "host", value_name = "NAME", requires = "listen")]
    pub(crate) hosts: Vec<String>,
    /// Certificates of HTTP, in PEM, with the server's first
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "listen"])]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of those certificates
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Listen for HTTP on a network without TLS: whoever reads along learns the token
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,
    /// Where a portmapper (rpcbind) listens, for clients that ask it for the port of NFS: port 111
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) portmap: Option<SocketAddr>,
    /// Memory for pages
    #[arg(long, default_value = "256M")]
    pub(crate) cache: ByteSize,
    /// What no program syncs is made durable after so long
    #[arg(long, default_value = "5s", value_parser = parse_time)]
    pub(crate) commit_interval: Duration,
    /// How long the device may take to answer before a request fails
    #[arg(long, default_value = "30s", value_parser = parse_time)]
    pub(crate) device_deadline: Duration,
    /// Serve a pool that was not closed, as no other machine has it open: you know that
    #[arg(long)]
    pub(crate) force: bool,
    /// Threads that answer clients [default: 16]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Where the server keeps what outlives it: exports that were added, the token of HTTP
    /// [default: /var/lib/holdfast for root, else ~/.local/state/holdfast]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
    /// Where the server writes its log [default: standard error]
    #[arg(long)]
    pub(crate) log_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast generate /tmp/holdfast-pages")]
pub(crate) struct GenerateArgs {
    /// Where they are written; made if it is missing
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast reload pool.hf\n\n\
                        Exports change at once, and clients of those that stay notice nothing. \
                        What is broken,\nor needs a new start, is refused, and what was set \
                        before stays.")]
pub(crate) struct ReloadArgs {
    /// A pool of the server
    pub(crate) pool: PathBuf,
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast unmount /mnt")]
pub(crate) struct UnmountArgs {
    /// Where the files appear
    pub(crate) directory: PathBuf,
    /// Take the directory away now, although files are in use
    #[arg(long)]
    pub(crate) lazy: bool,
    /// Cut off whoever still uses files, in other mount namespaces as well
    #[arg(long, conflicts_with = "lazy")]
    pub(crate) force: bool,
    /// How long to wait for the server to end
    #[arg(long, default_value = "60s", value_parser = parse_time)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast status\n  holdfast status /mnt --verbose")]
pub(crate) struct StatusArgs {
    /// A pool's device or the directory it is mounted on [default: all that you may see]
    pub(crate) of: Option<PathBuf>,
    /// Show every count; --json has them all, too
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
#[command(after_help = exit::CHECK_HELP)]
pub(crate) struct CheckArgs {
    /// The pool's device, or one of them
    pub(crate) device: PathBuf,
    /// Most memory that it takes; a pool with more files and more space needs more
    #[arg(long, value_name = "SIZE", default_value = "4G")]
    pub(crate) memory: ByteSize,
    #[command(flatten)]
    pub(crate) members: MemberArgs,
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
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast explain /mnt/file:0-4095\n  \
                        holdfast explain --pool pool.hf /file\n  \
                        holdfast explain --pool pool.hf:a/b /file\n  \
                        holdfast explain --device pool.hf --offset 1073741824")]
pub(crate) struct ExplainArgs {
    /// A file under a mount, or with --pool in the pool; a range of bytes may follow a colon
    #[arg(
        value_name = "PATH[:FIRST-LAST]",
        required_unless_present = "device",
        conflicts_with = "device"
    )]
    pub(crate) path: Option<OsString>,
    /// A pool that is not mounted; POOL:a/b is a fileset of it [default: its first, root]
    #[arg(long, conflicts_with = "device")]
    pub(crate) pool: Option<PathBuf>,
    /// Explain a place on this device
    #[arg(long, requires = "offset")]
    pub(crate) device: Option<PathBuf>,
    /// The place, in bytes from the start of the device
    #[arg(long, requires = "device")]
    pub(crate) offset: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast torture --seeds 1000\n  \
                        holdfast torture --seeds 100 --pools any\n  \
                        holdfast torture --seeds 1 --seed 4711     (one seed again)\n  \
                        holdfast torture --clones --seeds 100      (beside the clients)\n  \
                        holdfast torture --filesets --seeds 100    (forks and restores too)")]
pub(crate) struct TortureArgs {
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    pub(crate) seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Take and delete clones beside the clients
    #[arg(long)]
    pub(crate) clones: bool,
    /// Pools with several filesets, which are cloned, forked, restored and deleted
    #[arg(long, conflicts_with_all = ["clones", "pools"])]
    pub(crate) filesets: bool,
    /// What pools lie on: single, mirror2, mirror3, raid5-3, raid5-4, raid5-5, several disk groups
    /// (as single-grows, raid5-3+mirror2), or any (each seed chooses). With members one of them
    /// fails, is away, rots or is replaced, and disk groups come and go
    #[arg(long, default_value = "single", value_name = "KIND")]
    pub(crate) pools: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast prove\n  \
                        holdfast prove --bound 2 --sample 1000 --seed 7\n  \
                        holdfast prove --bound 2 --part 3/16           (one part of all)\n  \
                        holdfast prove --bound 3                 (an hour)\n  \
                        holdfast prove --bound 3 --alphabet kinds --part 1/512\n  \
                        holdfast prove --failures                (requests fail, not power)\n  \
                        holdfast prove --only 42 --export-log logs     (one workload again)")]
pub(crate) struct ProveArgs {
    /// Operations of a workload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub(crate) bound: u32,
    /// Which operations [default: all; where the bound is 3: core]
    #[arg(long, value_enum)]
    pub(crate) alphabet: Option<ProveAlphabet>,
    /// Only so many workloads, by chance [default: all]
    #[arg(long)]
    pub(crate) sample: Option<u64>,
    /// Of what is left to chance
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Only one part of so many: on several machines, or one after the other
    #[arg(long, value_name = "PART/PARTS", value_parser = parse_part, conflicts_with = "sample")]
    pub(crate) part: Option<(u64, u64)>,
    /// Only the workload of this number
    #[arg(long, conflicts_with_all = ["sample", "part"])]
    pub(crate) only: Option<u64>,
    /// Let each request to the device and each need of space fail in turn, once and from then on,
    /// instead of the power
    #[arg(long)]
    pub(crate) failures: bool,
    /// Write each workload as a base image and a log in the form of the kernel's dm-log-writes
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) export_log: Option<PathBuf>,
}

/// Which operations the workloads of `prove` are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProveAlphabet {
    /// All 76 of bounded black-box crash testing
    All,
    /// 19: each kind once, with the arguments that do the most
    Kinds,
    /// 8: one for each thing that a recovery puts together
    Core,
    /// 10: these, and clones that are taken and deleted
    Clones,
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

/// How a pool takes part in a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchTarget {
    /// A pool in a file, mounted
    Fuse,
    /// A pool in a file, without a kernel between
    Process,
    /// A pool in memory, without a kernel between
    Memory,
    /// No pool: only what --against names
    None,
}

#[derive(Debug, Args)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<bench::BenchCommand>,
    /// Where pools are made, in a directory of the bench's own that it removes again
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) place: PathBuf,
    /// The pools that take part
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fuse,process,memory")]
    pub(crate) targets: Vec<BenchTarget>,
    /// One more mount of a pool, with these options of `holdfast mount`
    #[arg(long, value_name = "NAME=OPTIONS", value_parser = parse_named)]
    pub(crate) mounted: Vec<(String, String)>,
    /// An empty directory of another file system to measure against
    #[arg(long, value_name = "NAME=DIR", value_parser = parse_named)]
    pub(crate) against: Vec<(String, String)>,
    /// The process that serves such a directory, so that its processor time is told
    #[arg(long, value_name = "NAME=PID", value_parser = parse_server)]
    pub(crate) server: Vec<(String, u32)>,
    /// Only these workloads or measures, as --list names them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub(crate) only: Vec<String>,
    /// Numbers of client threads, for workloads that have several
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(crate) threads: Vec<usize>,
    /// How often everything is done; below six an interval cannot reach 95 %
    #[arg(long, default_value_t = 6)]
    pub(crate) rounds: u32,
    /// How much is done: 1 is a tree of 50,000 files and streams of 4 GiB
    #[arg(long, default_value_t = 0.05)]
    pub(crate) scale: f64,
    /// Also write bench.json, bench.md and bench.svg there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Show what can be measured, and do nothing
    #[arg(long)]
    pub(crate) list: bool,
}

/// Shown by `holdfast bench --help`.
const BENCH_HELP: &str = "\
Examples:
  holdfast bench                                 a mount, in process, in memory: quick
  holdfast bench --against ext4=/mnt/ext4 --against xfs=/mnt/xfs --out results
  holdfast bench --only names,durable --threads 1,2,8 --rounds 10 --targets fuse \\
      --against ext4=/mnt/ext4
  holdfast bench --targets fuse --mounted \"gathered=--writeback-cache\"
  holdfast bench --scale 1 --rounds 15           as large as the goals are stated for: hours
  holdfast bench --list
  holdfast bench nfs 127.0.0.1:2049 /a --mix sfs97 --clients 16 --seconds 30 --out results

Everything that is made is removed, also on ^C. A ratio is the median of pairs of one round, with
the interval of the sign test; ~ marks one too wide to mean much. The machine's own noise is told.";

/// `3/16`: the third of sixteen parts.
fn parse_part(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| {
        let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
        (1..=parts).contains(&part).then_some((part, parts))
    });
    numbers.ok_or_else(|| "must be PART/PARTS, such as 3/16, counted from 1".to_owned())
}

fn parse_named(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && !value.is_empty() => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err(format!("`{text}`: write NAME=VALUE")),
    }
}

/// `ext4=17`: the process that serves a target.
fn parse_server(text: &str) -> Result<(String, u32), String> {
    let (name, pid) = parse_named(text)?;
    match pid.parse() {
        Ok(pid) if pid > 0 => Ok((name, pid)),
        _ => Err(format!("`{pid}` is not a process: write NAME=PID")),
    }
}

fn parse_label(text: &str) -> Result<String, LabelError> {
    label_of(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_mount_of_one_name_is_in_the_current_directory() {
        let of = |directory: &str| {
            let words = ["holdfast", "unmount", directory];
            let arguments = Arguments::try_parse_from(words).expect("it is spelled as promised");
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
             --journal-size 64M --label x --force",
            "create --group mirror:d0,d1 --size 2G",
            "create --group single:d0",
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
            "job list pool.hf --json",
            "job pause pool.hf 1",
            "job resume pool.hf 1",
            "check pool.hf",
            "dump pool.hf",
            "explain DIR/file:0-10",
            "explain --device pool.hf --offset 10G",
            "torture --seeds 1000",
            "torture --seeds 1 --seed 7",
            "torture --clones --seeds 10",
            "torture --filesets --seeds 10",
            "prove --bound 2",
            "prove --bound 2 --part 16/16",
            "prove --failures --only 3",
            "prove --bound 1 --seed 3 --sample 10 --export-log DIR --json",
            "bench",
            "bench --place DIR --targets fuse,process,memory --against ext4=DIR --against xfs=DIR \
             --server xfs=17 --mounted more=--threads=8 --only names,stream --threads 1,8 \
             --rounds 6 --scale 0.1 --out DIR --json",
            "bench --targets none --against a=DIR --list",
            "demo",
        ] {
            let arguments = std::iter::once("holdfast").chain(line.split_whitespace());
            let parsed = Arguments::try_parse_from(arguments);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn what_is_said_of_http_needs_an_address() {
        for (more, is_well) in [("", false), (" --listen 127.0.0.1:0", true)] {
            for said in ["--host a", "--insecure", "--tls-cert c --tls-key k"] {
                let line = format!("holdfast serve p.hf {said}{more}");
                let parsed = Arguments::try_parse_from(line.split_whitespace());
                assert_eq!(parsed.is_ok(), is_well, "{line}: {parsed:?}");
            }
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
