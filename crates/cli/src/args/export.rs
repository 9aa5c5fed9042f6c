//! What can be asked of exports.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use control::SquashName;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        holdfast export add pool.hf:home /home --to 10.0.0.0/8 --rw\n  \
        holdfast export list pool.hf\n  \
        holdfast export remove pool.hf /home\n\nThe pool must be served (`holdfast serve`). \
        Changes take effect at once and are kept over\nrestarts.")]
pub(crate) struct ExportArgs {
    #[command(subcommand)]
    pub(crate) command: ExportCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExportCommand {
    /// Export a fileset, or a directory of it
    #[command(after_help = "Examples:\n  \
                            holdfast export add pool.hf:home /home --to 10.0.0.0/8,fd00::/8\n  \
                            holdfast export add pool.hf:pub /pub --to 0.0.0.0/0 --squash all")]
    Add {
        /// POOL:a/b [default: the fileset that the pool is served with]
        fileset: PathBuf,
        /// Name of the export, an absolute path that clients mount
        name: String,
        /// Networks that may access it [default: this machine]
        #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
        to: Vec<String>,
        /// Allow writes [default: read-only]
        #[arg(long)]
        rw: bool,
        /// Users of clients that are mapped to the anonymous user
        #[arg(long, value_enum, default_value = "root")]
        squash: SquashChoice,
        /// Anonymous user and group [default: 65534:65534]
        #[arg(long, value_name = "UID:GID", value_parser = parse_ids)]
        anon: Option<(u32, u32)>,
        /// Export only this directory of the fileset
        #[arg(long, value_name = "PATH")]
        dir: Option<String>,
        /// Accept requests from unprivileged ports: users of a client can then act as any user
        #[arg(long)]
        insecure: bool,
        /// Reply to metadata changes before they are durable: a crash may lose acknowledged changes
        #[arg(long = "async")]
        is_async: bool,
    },
    /// List the exports of a server, with the command that mounts each
    #[command(after_help = "Example:\n  holdfast export list pool.hf --json")]
    List {
        /// A served pool
        pool: PathBuf,
    },
    /// Remove an export; clients that have it mounted get ESTALE
    #[command(after_help = "Example:\n  holdfast export remove pool.hf /home")]
    Remove {
        /// A served pool
        pool: PathBuf,
        /// Name of the export
        name: String,
    },
}

/// Which users of a client act as nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SquashChoice {
    /// No users: root on a client is root here
    None,
    /// Root
    Root,
    /// All users
    All,
}

impl From<SquashChoice> for SquashName {
    fn from(choice: SquashChoice) -> SquashName {
        match choice {
            SquashChoice::None => SquashName::None,
            SquashChoice::Root => SquashName::Root,
            SquashChoice::All => SquashName::All,
        }
    }
}

impl ExportCommand {
    argument! {
        /// Returns the path that is looked at before anything else.
        path, path_mut,
            ExportCommand::Add { fileset: path, .. }
            | ExportCommand::List { pool: path }
            | ExportCommand::Remove { pool: path, .. } => path
    }
}

/// Reads `UID:GID`.
fn parse_ids(text: &str) -> Result<(u32, u32), String> {
    let ids = text.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
    ids.ok_or_else(|| "write it as UID:GID, two numbers".to_owned())
}
