//! Trees of files into a pool and out of it.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::members::MemberPaths;
use control::TreeCopyRules;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast copy-in /srv/old pool.hf:home\n  \
    holdfast copy-in backup.tar pool.hf:home --path /old --verify\n  \
    zstd -dc backup.tar.zst | holdfast copy-in - pool.hf:home\n\nKeeps owners, modes, times, hard \
    links, holes, extended attributes, ACLs, devices and fifos.\nFrom a directory, files with \
    equal size and modification time are skipped, so an interrupted\ncopy continues when the \
    command is repeated. From an archive all files are written, and the\nlast entry of a name \
    wins; --skip-same skips. A file that differs is replaced atomically; a\nnon-empty directory is \
    never replaced. Other file systems mounted below a directory are\nomitted. The fileset may be \
    exported by NFS meanwhile, but not mounted.")]
pub(crate) struct CopyInArgs {
    /// Directory or tar archive; - reads an archive from standard input
    pub(crate) source: PathBuf,
    /// Target fileset, POOL:a/b [default: root]
    pub(crate) pool: PathBuf,
    /// Target directory in the fileset; created if it does not exist
    #[arg(long, value_name = "/DIRECTORY", default_value = "/")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) how: TreeCopyArgs,
    /// Skip files of an archive that exist with equal size and modification time, to continue an
    /// interrupted copy; always done for a directory
    #[arg(long, conflicts_with = "repair")]
    pub(crate) skip_same: bool,
    /// Omit setuid, setgid and file capabilities
    #[arg(long)]
    pub(crate) no_setuid: bool,
    /// Omit block and character devices
    #[arg(long)]
    pub(crate) no_devices: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast copy-out pool.hf:home@monday /mnt/copy\n  \
    holdfast copy-out pool.hf:home home.tar --path /ann --verify\n  \
    holdfast copy-out pool.hf:home - | zstd > home.tar.zst\n\nA target named *.tar, or -, is a tar \
    archive (pax, with holes and extended attributes as in GNU\ntar); any other is a directory, \
    created if it does not exist. An interrupted copy to a\ndirectory continues when the command \
    is repeated. The files of a fileset in use are not from\none \
    moment: name a snapshot for that.")]
pub(crate) struct CopyOutArgs {
    /// Fileset POOL:a/b, or snapshot POOL:a/b@monday
    pub(crate) pool: PathBuf,
    /// Directory, or new tar archive; - writes an archive to standard output
    pub(crate) target: PathBuf,
    /// Directory in the fileset to copy
    #[arg(long, value_name = "/DIRECTORY", default_value = "/")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) how: TreeCopyArgs,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
pub(crate) struct TreeCopyArgs {
    /// Compare all names, attributes and contents afterwards; fail on differences
    #[arg(long)]
    pub(crate) verify: bool,
    /// How to detect unchanged files (only for directories)
    #[arg(long, value_enum, default_value_t = CompareBy::Date)]
    pub(crate) compare: CompareBy,
    /// Same as --compare content --verify: rewrite files that differ; for an archive same as
    /// --verify
    #[arg(long, conflicts_with = "compare")]
    pub(crate) repair: bool,
    /// Number of copying threads [default: two per processor, 2 to 16]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// What two files are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompareBy {
    /// Size and modification time
    Date,
    /// Size, modification time and every byte
    Content,
}

impl TreeCopyArgs {
    /// Returns how it is copied, as far as both ways have it.
    pub(crate) fn rules(&self) -> TreeCopyRules {
        let compares_content = self.repair || self.compare == CompareBy::Content;
        TreeCopyRules { compares_content, ..TreeCopyRules::default() }
    }
}

/// Returns `path` unless it stands for a stream.
fn unless_stream(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| *path != Path::new("-"))
}

impl CopyInArgs {
    /// Returns what is read, if it has a path.
    pub(crate) fn way(&self) -> Option<&Path> {
        unless_stream(&self.source)
    }
}

impl CopyOutArgs {
    /// Returns what is written, if it has a path.
    pub(crate) fn way(&self) -> Option<&Path> {
        unless_stream(&self.target)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::CliArguments;

    #[test]
    fn a_copy_in_that_repairs_skips_nothing_by_date() {
        for (more, is_well) in [("", true), (" --skip-same", false), (" --compare date", false)] {
            let line = format!("holdfast copy-in t.tar p.hf --repair{more}");
            let parsed = CliArguments::try_parse_from(line.split_whitespace());
            assert_eq!(parsed.is_ok(), is_well, "{line}: {parsed:?}");
        }
    }
}
