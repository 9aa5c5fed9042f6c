//! What can be asked of schedules, and of who is told what happens.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

pub(crate) use server::hub::schedule::SnapshotCounts;
pub(crate) use server::hub::scrubs::ScrubEvery;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast schedule set pool.hf:home hourly=24,daily=7\n  \
    holdfast schedule list pool.hf\n  \
    holdfast schedule set pool.hf:home none\n  \
    holdfast schedule set pool.hf:home none --gone\n  \
    holdfast schedule scrub pool.hf weekly\n\nThe server takes snapshots at each full hour, day, \
    week (from Monday) and month in UTC, named\nhourly-2026-11-23_19-00, and deletes the oldest \
    ones beyond the numbers to keep.")]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Set the snapshot schedule of a fileset of a served pool
    #[command(after_help = "Example:\n  holdfast schedule set pool.hf:home \
                            hourly=24,daily=7,weekly=4,monthly=12")]
    Set {
        /// POOL:a/b
        fileset: PathBuf,
        /// Numbers of snapshots to keep: hourly=N,daily=N,weekly=N,monthly=N, each optional; or
        /// none: take no more, and keep existing ones
        #[arg(value_parser = SnapshotCounts::parse)]
        keep: SnapshotCounts,
        /// Remove schedules of deleted filesets of this name
        #[arg(long)]
        gone: bool,
    },
    /// List the schedules of a served pool, or of a fileset and its descendants
    #[command(after_help = "Examples:\n  holdfast schedule list pool.hf --json\n  \
                            holdfast schedule list pool.hf:home")]
    List {
        /// A served pool, or POOL:a/b
        pool: PathBuf,
    },
    /// Set or show the scrub interval of a served pool
    #[command(after_help = "Examples:\n  \
        holdfast schedule scrub pool.hf weekly\n  \
        holdfast schedule scrub pool.hf none\n  \
        holdfast schedule scrub pool.hf default\n\nThe default is monthly: 30 days after the last \
        scrub began, by command or schedule. A server\nscrubs one pool at a time, and waits while \
        a device of the pool is missing.")]
    Scrub {
        /// A served pool
        pool: PathBuf,
        /// daily, weekly, monthly, none, or default [default: show what is set]
        #[arg(value_parser = ScrubIntervalArgument::parse)]
        every: Option<ScrubIntervalArgument>,
    },
}

impl ScheduleCommand {
    argument! {
        /// Returns the path that is looked at before anything else.
        path, path_mut,
            ScheduleCommand::Set { fileset: path, .. }
            | ScheduleCommand::List { pool: path }
            | ScheduleCommand::Scrub { pool: path, .. } => path
    }
}

/// How often a pool is to be scrubbed; `None`: as where nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScrubIntervalArgument(pub(crate) Option<ScrubEvery>);

impl ScrubIntervalArgument {
    fn parse(text: &str) -> Result<ScrubIntervalArgument, String> {
        match text {
            "default" => Ok(ScrubIntervalArgument(None)),
            text => ScrubEvery::parse(text).map(|every| ScrubIntervalArgument(Some(every))),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
    holdfast notify test pool.hf\n\nReceivers are configured by [[notify]] in the server's \
    configuration file.")]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    pub(crate) command: NotifyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyCommand {
    /// Send a test notification to all receivers, and show the results
    #[command(after_help = "Example:\n  holdfast notify test pool.hf")]
    Test {
        /// A served pool
        pool: PathBuf,
    },
}

impl NotifyArgs {
    /// Returns the pool.
    pub(crate) fn pool(&mut self) -> &mut PathBuf {
        let NotifyCommand::Test { pool } = &mut self.command;
        pool
    }
}
