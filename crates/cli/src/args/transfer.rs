//! What can be asked of nodes as a whole: their difference, their streams.

use std::path::PathBuf;

use clap::Args;

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
}
