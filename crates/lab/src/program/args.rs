//! Arguments of `holdfast-lab`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::nfs_args;
use super::paper_args::PaperArgs;

/// Measure Holdfast, and torture it on simulated disks.
#[derive(Debug, Parser)]
#[command(name = "holdfast-lab", version, max_term_width = 100)]
pub(crate) struct LabArguments {
    /// Print facts as JSON, one object a line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print facts, warnings and errors alone: no progress, and no advice
    #[arg(long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Crash simulated pools, over and over, and judge what is left
    Torture(TortureArgs),
    /// Try every power cut, or every failure, of every small workload
    Prove(ProveArgs),
    /// Measure Holdfast beside other file systems
    Bench(Box<BenchArgs>),
    /// Repeat measurements of papers on simulated disks
    Papers(PaperArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast-lab torture --seeds 1000\n  \
                        holdfast-lab torture --seeds 100 --pools any\n  \
                        holdfast-lab torture --seeds 1 --seed 4711     (one seed again)\n  \
                        holdfast-lab torture --snapshots --seeds 100      (beside the clients)\n  \
                        holdfast-lab torture --filesets --seeds 100    (clones and restores too)")]
pub(crate) struct TortureArgs {
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    pub(crate) seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Take and delete snapshots beside the clients
    #[arg(long)]
    pub(crate) snapshots: bool,
    /// Pools with several filesets, of which snapshots and clones are made, restored and deleted
    #[arg(long, conflicts_with_all = ["snapshots", "pools"])]
    pub(crate) filesets: bool,
    /// What pools lie on: single, mirror2, mirror3, raid5-3, raid5-4, raid5-5, several disk groups
    /// (as single-grows, raid5-3+mirror2), or any (each seed chooses). With members one of them
    /// fails, is away, rots or is replaced, and disk groups come and go
    #[arg(long, default_value = "single", value_name = "KIND")]
    pub(crate) pools: String,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast-lab prove\n  \
                        holdfast-lab prove --bound 2 --sample 1000 --seed 7\n  \
                        holdfast-lab prove --bound 2 --part 3/16           (one part of all)\n  \
                        holdfast-lab prove --bound 3                 (an hour)\n  \
                        holdfast-lab prove --bound 3 --alphabet kinds --part 1/512\n  \
                        holdfast-lab prove --failures                (requests fail, not power)\n  \
                        holdfast-lab prove --only 42 --export-log logs     (one workload again)")]
pub(crate) struct ProveArgs {
    /// Operations of a workload
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub(crate) bound: u32,
    /// Which operations [default: all; where the bound is 3: core]
    #[arg(long, value_enum)]
    pub(crate) alphabet: Option<ProveAlphabetName>,
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
pub(crate) enum ProveAlphabetName {
    /// All 76 of bounded black-box crash testing
    All,
    /// 19: each kind once, with the arguments that do the most
    Kinds,
    /// 8: one for each thing that a recovery puts together
    Core,
    /// 10: these, and snapshots that are taken and deleted
    Snapshots,
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
    pub(crate) command: Option<nfs_args::BenchCommand>,
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

/// Shown by `holdfast-lab bench --help`.
const BENCH_HELP: &str = "\
Examples:
  holdfast-lab bench                                 a mount, in process, in memory: quick
  holdfast-lab bench --against ext4=/mnt/ext4 --against xfs=/mnt/xfs --out results
  holdfast-lab bench --only names,durable --threads 1,2,8 --rounds 10 --targets fuse \\
      --against ext4=/mnt/ext4
  holdfast-lab bench --targets fuse --mounted \"gathered=--writeback-cache\"
  holdfast-lab bench --scale 1 --rounds 15           as large as the goals are stated for: hours
  holdfast-lab bench --list
  holdfast-lab bench nfs 127.0.0.1:2049 /a --mix sfs97 --clients 16 --seconds 30 --out results

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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        LabArguments::command().debug_assert();
    }

    /// Goal: the commands are spelled as promised.
    #[test]
    fn promised_spellings_are_understood() {
        for line in [
            "torture --seeds 1000",
            "torture --seeds 1 --seed 7",
            "torture --snapshots --seeds 10",
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
            "papers qfs",
        ] {
            let arguments = std::iter::once("holdfast-lab").chain(line.split_whitespace());
            let parsed = LabArguments::try_parse_from(arguments);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn each_command_has_an_example() {
        for command in LabArguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("holdfast-lab {}", command.get_name());
            assert!(help.contains(&example), "{}: {help}", command.get_name());
        }
    }
}
