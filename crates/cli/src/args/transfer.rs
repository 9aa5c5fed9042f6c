//! What can be asked of nodes as a whole: their difference, their streams.

use std::path::PathBuf;

use clap::Args;

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast diff pool.hf:home@monday pool.hf:home@tuesday\n  \
    holdfast diff pool.hf:home@monday pool.hf:home --json\n\nLists created, removed, renamed and \
    modified paths, with the changed byte ranges of files. The\ncontents of a renamed directory \
    are not listed. Reads only what differs. For a fileset, a\ntemporary snapshot is taken.")]
pub(crate) struct DiffArgs {
    /// POOL:a/b@monday
    pub(crate) from: PathBuf,
    /// POOL:a/b@tuesday, or POOL:a/b
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast send pool.hf:home@monday > monday.stream\n  \
    holdfast send pool.hf:home@tuesday --from @monday | ssh vault \\\n    holdfast receive \
    /srv/vault.hf:home\n\nWrites a stream to standard output: the whole snapshot, or with --from \
    only the changes since\nan earlier one, which must be the newest snapshot of the receiving \
    fileset. Inode numbers,\ngenerations, ACLs, times, holes and hard links are kept. The snapshot \
    cannot be deleted\nmeanwhile. After an interruption, `receive` prints a token for --resume. \
    Totals are printed on\nstandard error, with --json as one object.")]
pub(crate) struct SendArgs {
    /// POOL:a/b@tuesday
    pub(crate) snapshot: PathBuf,
    /// Send only the changes since this earlier snapshot: @monday
    #[arg(long, value_name = "@SNAPSHOT")]
    pub(crate) from: Option<String>,
    /// Resume an interrupted stream of the same snapshots
    #[arg(long, value_name = "TOKEN")]
    pub(crate) resume: Option<String>,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast receive vault.hf:home < monday.stream\n  \
    holdfast receive vault.hf:home --dry-run < monday.stream\n  \
    holdfast receive vault.hf:home --abort\n\nCreates a fileset, or updates it to the next \
    snapshot. The data is not visible before the\nstream is complete and verified. The fileset \
    must not be mounted, and must be unchanged since\nits newest snapshot. An interrupted stream \
    can be resumed with the token that is printed;\n--abort discards it.")]
pub(crate) struct ReceiveArgs {
    /// POOL:a/b
    pub(crate) fileset: PathBuf,
    /// Only verify the stream, and that the fileset could receive it; change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Discard the data of an interrupted stream
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) abort: bool,
    /// Discard the data of another interrupted stream, and receive this one
    #[arg(long, conflicts_with_all = ["dry_run", "abort"])]
    pub(crate) discard_partial: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}
