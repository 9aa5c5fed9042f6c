//! What can be asked of exports.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::control::SquashName;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  holdfast export add pool.hf:home /home --to 10.0.0.0/8 --rw\n  \
                        holdfast export list pool.hf\n  \
                        holdfast export remove pool.hf /home\n\n\
                        The pool is served meanwhile (`holdfast serve`). What is added or removed \
                        counts at once, and\nstays so when the server is started again."
)]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    pub(crate) command: ExportCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExportCommand {
    /// Export a fileset, or a directory of one, to clients
    #[command(after_help = "Examples:\n  \
                            holdfast export add pool.hf:home /home --to 10.0.0.0/8,fd00::/8\n  \
                            holdfast export add pool.hf:pub /pub --to 0.0.0.0/0 --squash all")]
    Add {
        /// POOL:a/b; POOL alone: the fileset that it is served with
        fileset: PathBuf,
        /// What clients mount: a path from /
        name: String,
        /// Networks of clients that may use it [default: this machine]
        #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
        to: Vec<String>,
        /// Let clients change what is in it
        #[arg(long)]
        rw: bool,
        /// Which users of a client act as nobody
        #[arg(long, value_enum, default_value = "root")]
        squash: SquashName,
        /// User and group of nobody [default: 65534:65534]
        #[arg(long, value_name = "UID:GID", value_parser = parse_ids)]
        anon: Option<(u32, u32)>,
        /// Export only this directory of the fileset
        #[arg(long, value_name = "PATH")]
        dir: Option<String>,
        /// Let requests come from any port: any user of a client may then claim to be any other
        #[arg(long)]
        insecure: bool,
        /// Answer changes of names and attributes before they are durable: a crash may lose what
        /// clients were told is done
        #[arg(long = "async")]
        is_async: bool,
    },
    /// Show what a server exports, each with the line that mounts it
    #[command(after_help = "Example:\n  holdfast export list pool.hf --json")]
    List {
        /// A served pool
        pool: PathBuf,
    },
    /// Export it no more; clients that have it mounted get ESTALE
    #[command(after_help = "Example:\n  holdfast export remove pool.hf /home")]
    Remove {
        /// A served pool
        pool: PathBuf,
        /// What clients mount
        name: String,
    },
}

impl ExportCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn path(&self) -> &Path {
        match self {
            ExportCommand::Add { fileset: path, .. }
            | ExportCommand::List { pool: path }
            | ExportCommand::Remove { pool: path, .. } => path,
        }
    }
}

/// Reads `UID:GID`.
fn parse_ids(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    ids.ok_or_else(|| "write it as UID:GID, two numbers".to_owned())
}
