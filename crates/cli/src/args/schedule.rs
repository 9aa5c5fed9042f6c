//! What can be asked of schedules, and of who is told what happens.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::server::schedule::Counts;
use crate::server::scrubs::ScrubEvery;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast schedule set pool.hf:home hourly=24,daily=7\n  \
                        holdfast schedule list pool.hf\n  \
                        holdfast schedule set pool.hf:home none\n  \
                        holdfast schedule set pool.hf:home none --gone\n  \
                        holdfast schedule scrub pool.hf weekly\n\n\
                        The server takes a clone at each full hour, day, week (from Monday) and \
                        month, by UTC, named\nhourly-2026-11-23_19-00, and deletes the oldest of \
                        those that are more than are kept.")]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    pub(crate) command: ScheduleCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// Set how many clones of each kind are kept of a served fileset
    #[command(after_help = "Example:\n  holdfast schedule set pool.hf:home \
                            hourly=24,daily=7,weekly=4,monthly=12")]
    Set {
        /// POOL:a/b
        fileset: PathBuf,
        /// How many are kept: hourly=N,daily=N,weekly=N,monthly=N, each if it is wanted; or none:
        /// no more are taken, and those that are there stay
        #[arg(value_parser = Counts::parse)]
        keep: Counts,
        /// Remove the schedules of filesets that had this name and were deleted
        #[arg(long)]
        gone: bool,
    },
    /// Show the schedules of a served pool, of clones and of scrubs, or those of a fileset and of
    /// the ones below it
    #[command(after_help = "Examples:\n  holdfast schedule list pool.hf --json\n  \
                            holdfast schedule list pool.hf:home")]
    List {
        /// A served pool, or POOL:a/b
        pool: PathBuf,
    },
    /// Set how often a served pool is scrubbed, or show it
    #[command(after_help = "Examples:\n  holdfast schedule scrub pool.hf weekly\n  \
                            holdfast schedule scrub pool.hf none\n  \
                            holdfast schedule scrub pool.hf default\n\n\
                            The default is monthly: 30 days after the last one began, by hand or \
                            by schedule. A server\nscrubs one pool at a time, and waits with a \
                            pool of which a device is away.")]
    Scrub {
        /// A served pool
        pool: PathBuf,
        /// daily, weekly, monthly, none, or default [default: show what is set]
        #[arg(value_parser = Often::parse)]
        every: Option<Often>,
    },
}

impl ScheduleCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn path(&self) -> &Path {
        match self {
            ScheduleCommand::Set { fileset: path, .. }
            | ScheduleCommand::List { pool: path }
            | ScheduleCommand::Scrub { pool: path, .. } => path,
        }
    }
}

/// How often a pool is to be scrubbed; `None`: as where nobody says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Often(pub(crate) Option<ScrubEvery>);

impl Often {
    fn parse(text: &str) -> Result<Often, String> {
        match text {
            "default" => Ok(Often(None)),
            text => ScrubEvery::parse(text).map(|every| Often(Some(every))),
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  holdfast notify test pool.hf\n\n\
                        Who is told, and of what, is in holdfast.toml of the server: [[notify]].")]
pub(crate) struct NotifyArgs {
    #[command(subcommand)]
    pub(crate) command: NotifyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NotifyCommand {
    /// Tell all a test, and show what came of it
    #[command(after_help = "Example:\n  holdfast notify test pool.hf")]
    Test {
        /// A served pool
        pool: PathBuf,
    },
}

impl NotifyArgs {
    /// Returns the pool.
    pub(crate) fn pool(&self) -> &Path {
        let NotifyCommand::Test { pool } = &self.command;
        pool
    }
}
