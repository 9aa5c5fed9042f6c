//! What can be asked of what clients do now.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::size::parse_time;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast top pool.hf\n  holdfast top pool.hf --depth 3 \
                        --every 5s\n  holdfast top pool.hf --times 3 --json\n\n\
                        Shows, of each client, of each directory that clients use and of each \
                        kind of operation, how\nmany there were a second since the last look, and \
                        how long they took. Requests are counted by\ndirectory while somebody \
                        looks, and not otherwise.")]
pub(crate) struct TopArgs {
    /// A served pool, or one that is mounted
    pub(crate) pool: PathBuf,
    /// How long to look
    #[arg(long, default_value = "2s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// How often [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
    /// By how many names of a path directories are told apart; 0: no directories
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) depth: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast trace pool.hf --slower 50ms\n  holdfast trace \
                        pool.hf --times 1 --json\n\n\
                        Shows requests of clients that took long, as they come: when each was \
                        answered, how long it\ntook, whose it was and what it was about. The \
                        server keeps the last 1024 that took 250 ms, and\nshorter ones while \
                        somebody wants to see them.")]
pub(crate) struct TraceArgs {
    /// A served pool, or one that is mounted
    pub(crate) pool: PathBuf,
    /// Show requests that took so long, or longer
    #[arg(long, default_value = "250ms", value_parser = parse_time)]
    pub(crate) slower: Duration,
    /// How often to ask for new ones
    #[arg(long, default_value = "1s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// How often to ask: 1 shows those that are kept [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
}
