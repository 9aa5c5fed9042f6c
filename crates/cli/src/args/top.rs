//! What can be asked of what clients do now.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::size::parse_time;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast top pool.hf\n  holdfast top pool.hf --depth 3 \
                        --every 5s\n  holdfast top pool.hf --times 3 --json\n\n\
                        Shows the requests a second since the last look, and how long they took: \
                        by client, by directory\nand by kind of operation. Requests are counted \
                        by directory only while somebody looks.")]
pub(crate) struct TopArgs {
    /// A served pool, or one that is mounted
    pub(crate) pool: PathBuf,
    /// Time from one look to the next
    #[arg(long, default_value = "2s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// How many looks, and then end [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
    /// How deep directories are shown: 1 is /a, 2 is /a/b; 0: none
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub(crate) depth: u8,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast trace pool.hf --slower 50ms\n  holdfast trace \
                        pool.hf --times 1 --json\n\n\
                        Shows of each slow request when it was answered, how long it took, the \
                        client, the user, the\noperation and the path. The server keeps the last \
                        1024 that took 250 ms or longer; shorter ones\nit keeps while this runs.")]
pub(crate) struct TraceArgs {
    /// A served pool, or one that is mounted
    pub(crate) pool: PathBuf,
    /// Show requests that took so long or longer
    #[arg(long, default_value = "250ms", value_parser = parse_time)]
    pub(crate) slower: Duration,
    /// How often to ask for new ones
    #[arg(long, default_value = "1s", value_parser = parse_time)]
    pub(crate) every: Duration,
    /// How many times to ask, and then end: 1 shows those that are kept [default: until ^C]
    #[arg(long)]
    pub(crate) times: Option<u64>,
}
