//! What can be asked of what clients do now.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use control::size::parse_time;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast top pool.hf\n  \
    holdfast top pool.hf --depth 3 --every 5s\n  \
    holdfast top pool.hf --times 3 --json\n\nShows requests per second since the last update, and \
    their latency, by client, directory and\noperation. Requests are counted by directory only \
    while `top` runs.")]
pub(crate) struct TopArgs {
    /// Name or a device of a mounted or served pool, or its mount point
    pub(crate) pool: PathBuf,
    /// Interval between updates
    #[arg(long, default_value = "2s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// Number of updates [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
    /// Depth of directories shown: 1 is /a, 2 is /a/b; 0: none
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) depth: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast trace pool.hf --slower 50ms\n  \
    holdfast trace pool.hf --times 1 --json\n\nShows time, duration, client, user, operation and \
    path of each slow request. The server keeps\nthe last 1024 requests of 250 ms or longer; \
    shorter ones are recorded only while `trace` runs.")]
pub(crate) struct TraceArgs {
    /// Name or a device of a mounted or served pool, or its mount point
    pub(crate) pool: PathBuf,
    /// Shortest duration of the requests shown
    #[arg(long, default_value = "250ms", value_parser = parse_time)]
    pub(crate) slower: Duration,
    /// Interval between updates
    #[arg(long, default_value = "1s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// Number of updates; 1 shows only the requests so far [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
}
