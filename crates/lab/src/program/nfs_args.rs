//! What `holdfast-lab bench nfs` can be asked.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What is measured beside file systems.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Put an NFSv3 server under a mix of calls: response time against throughput
    Nfs(BenchNfsArgs),
    /// Kill a server under load: how long until it serves again, and what is lost
    Kill(BenchKillArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  holdfast-lab bench kill --out docs/pictures

Writers create files of 4 KiB and sync each. After half of the time the server gets SIGKILL, and the
pool is mounted again. Then each file whose sync was answered is compared. Exit 1: one is lost.")]
pub(crate) struct BenchKillArgs {
    /// Where the pool is made, in a directory of the bench's own that it removes again
    #[arg(long, default_value = ".", value_name = "DIR")]
    pub(crate) place: PathBuf,
    /// How long it takes
    #[arg(long, default_value_t = 2)]
    pub(crate) seconds: u64,
    /// Writers
    #[arg(long, default_value_t = 4)]
    pub(crate) writers: usize,
    /// Also write kill.svg there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Which calls come how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MixName {
    /// That of nhfsstone and LADDIS: writes are durable when they are answered
    Laddis,
    /// That of SPEC SFS 97 for NFSv3: a COMMIT makes writes durable
    Sfs97,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  holdfast serve pool.hf --nfs 127.0.0.1:2049 --export /a:rw,squash=none,insecure
  holdfast-lab bench nfs 127.0.0.1:2049 /a --mix sfs97 --clients 16 --seconds 30 --out results

The first step makes calls as fast as it goes; what it reaches, the others offer 10, 25, 50, 75, 90
and 100 % of. Each client has a connection and one call on its way. Everything is made in a new
directory of the export, holdfast-bench-nfs, and removed at the end. Clients take part of the
processors of this machine.")]
pub(crate) struct BenchNfsArgs {
    /// Where the server answers NFS and MOUNT
    #[arg(value_name = "ADDRESS:PORT")]
    pub(crate) address: SocketAddr,
    /// The export: writable, for the superuser of this machine
    #[arg(value_name = "EXPORT")]
    pub(crate) export: String,
    /// Which calls
    #[arg(long, value_enum, default_value = "laddis")]
    pub(crate) mix: MixName,
    /// Clients
    #[arg(long, default_value_t = 8)]
    pub(crate) clients: usize,
    /// How long each of the seven steps takes
    #[arg(long, default_value_t = 10)]
    pub(crate) seconds: u64,
    /// Files of each client
    #[arg(long, default_value_t = 100)]
    pub(crate) files: u64,
    /// What tells one run's choices from another's
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Also write bench-nfs.json, bench-nfs.md and bench-nfs.svg there
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}
