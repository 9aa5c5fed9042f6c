//! What can be asked of nodes as a whole: their difference, their streams.

use std::path::PathBuf;

use clap::Args;

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast diff pool.hf:home@monday pool.hf:home@tuesday\n  \
                        holdfast diff pool.hf:home@monday pool.hf:home --json\n\n\
                        Tells, by path, what was created, removed and renamed from the first to \
                        the second, and\nwhich bytes of a file were written since. A directory \
                        that moved takes what is in it along\nwithout a word. It reads what \
                        differs, not what is there.\nOf a fileset itself a clone is taken for \
                        that, and deleted again.")]
pub(crate) struct DiffArgs {
    /// POOL:a/b@monday
    pub(crate) from: PathBuf,
    /// POOL:a/b@tuesday, or POOL:a/b
    pub(crate) to: PathBuf,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast send pool.hf:home@monday > monday.stream\n  \
                        holdfast send pool.hf:home@tuesday --from @monday | ssh vault \\\n    \
                        holdfast receive /srv/vault.hf:home\n\n\
                        Writes a stream of a clone to standard output: whole, or with --from what \
                        changed since an\nearlier clone, which whoever receives must have as its \
                        newest. Numbers of inodes, generations,\naccess lists, times, holes and \
                        hard links are kept. A clone can't be deleted while it is sent.\nWhere a \
                        stream broke off, `receive` tells a token; --resume goes on from there.\n\
                        Totals go to standard error, with --json as one object.")]
pub(crate) struct SendArgs {
    /// POOL:a/b@tuesday
    pub(crate) clone: PathBuf,
    /// An earlier clone of the same fileset: @monday
    #[arg(long, value_name = "@CLONE")]
    pub(crate) from: Option<String>,
    /// Go on where a stream of the same two clones broke off
    #[arg(long, value_name = "TOKEN")]
    pub(crate) resume: Option<String>,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast receive vault.hf:home < monday.stream\n  \
                        holdfast receive vault.hf:home --dry-run < monday.stream\n  \
                        holdfast receive vault.hf:home --abort\n\n\
                        Makes a fileset of a stream, or its next state, and the clone that was \
                        sent. Nobody sees\nanything of it before it is whole and verified. The \
                        fileset must not be mounted, and must\nbe what it was when its newest \
                        clone was taken. A stream that breaks off can go on by the\ntoken that is \
                        told; --abort gives up what came.")]
pub(crate) struct ReceiveArgs {
    /// POOL:a/b
    pub(crate) fileset: PathBuf,
    /// Verify the stream, and look whether the fileset could receive it, and has room for its data;
    /// change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Give up what came of a stream that broke off
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) abort: bool,
    /// Give up what came of another stream that broke off; the same one goes on
    #[arg(long, conflicts_with_all = ["dry_run", "abort"])]
    pub(crate) discard_partial: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}
