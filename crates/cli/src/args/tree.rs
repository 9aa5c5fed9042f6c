//! Trees of files into a pool and out of it.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::members::MemberPaths;
use crate::tree::Rules;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast import /srv/old pool.hf:home\n  \
                        holdfast import backup.tar pool.hf:home --path /old --verify\n  \
                        zstd -dc backup.tar.zst | holdfast import - pool.hf:home\n\n\
                        Owners, modes, times, hard links, holes, extended attributes, access \
                        lists, devices and\nfifos are kept. From a directory, files with the same \
                        size and modification time are skipped,\nso an interrupted import \
                        continues when it is run again. From a tar every file is written,\nand \
                        the last entry of a name wins; --skip-same skips. An existing file that \
                        differs is\nreplaced in one step; a directory with content is never \
                        replaced. Other file systems mounted\nbelow a directory are left out. \
                        The fileset may be exported by NFS, but not mounted meanwhile.")]
pub(crate) struct ImportArgs {
    /// A directory, a tar, or - for a tar on standard input
    pub(crate) source: PathBuf,
    /// POOL:a/b, the fileset that it goes to [default: the first, root]
    pub(crate) pool: PathBuf,
    /// The directory in the fileset; made if it is missing
    #[arg(long, value_name = "/DIRECTORY", default_value = "/")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    /// From a tar: skip files that exist with the same size and modification time, to continue an
    /// interrupted import; no effect on a directory
    #[arg(long, conflicts_with = "repair")]
    pub(crate) skip_same: bool,
    /// Leave setuid, setgid and file capabilities out
    #[arg(long)]
    pub(crate) no_setuid: bool,
    /// Leave block and character devices out
    #[arg(long)]
    pub(crate) no_devices: bool,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  holdfast export-tree pool.hf:home@monday /mnt/copy\n  \
                        holdfast export-tree pool.hf:home home.tar --path /ann --verify\n  \
                        holdfast export-tree pool.hf:home - | zstd > home.tar.zst\n\n\
                        A name that ends in .tar, or -, is a tar (pax, with holes and extended \
                        attributes as GNU\ntar writes them); any other is a directory, made if it \
                        is missing. An export to a directory\nthat broke off goes on when it is \
                        asked for again. Of a fileset that is being changed the\nfiles are not \
                        those of one moment: name a clone for that.")]
pub(crate) struct ExportTreeArgs {
    /// POOL:a/b, or a clone of it: POOL:a/b@monday
    pub(crate) pool: PathBuf,
    /// A directory, a tar that is not there yet, or - for a tar on standard output
    pub(crate) target: PathBuf,
    /// The directory in the fileset
    #[arg(long, value_name = "/DIRECTORY", default_value = "/")]
    pub(crate) path: PathBuf,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) members: MemberPaths,
}

#[derive(Debug, Args)]
pub(crate) struct HowArgs {
    /// Compare everything afterwards: names, attributes, every byte; fail where something differs
    #[arg(long)]
    pub(crate) verify: bool,
    /// How to decide that an existing file is the same (for directories, not for tars)
    #[arg(long, value_enum, default_value_t = CompareBy::Date)]
    pub(crate) compare: CompareBy,
    /// As --compare content --verify: rewrites files that differ; for a tar the same as --verify
    #[arg(long, conflicts_with = "compare")]
    pub(crate) repair: bool,
    /// Threads that copy [default: two for each processor, 2 to 16]
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

impl HowArgs {
    /// Returns how it is copied, as far as both ways have it.
    pub(crate) fn rules(&self) -> Rules {
        let compares_content = self.repair || self.compare == CompareBy::Content;
        Rules { compares_content, ..Rules::default() }
    }
}

/// Returns `path` unless it stands for a stream.
fn unless_stream(path: &Path) -> Option<&Path> {
    Some(path).filter(|path| *path != Path::new("-"))
}

impl ImportArgs {
    /// Returns what is read, if it has a path.
    pub(crate) fn way(&self) -> Option<&Path> {
        unless_stream(&self.source)
    }
}

impl ExportTreeArgs {
    /// Returns what is written, if it has a path.
    pub(crate) fn way(&self) -> Option<&Path> {
        unless_stream(&self.target)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Arguments;

    #[test]
    fn an_import_that_repairs_skips_nothing_by_date() {
        for (more, is_well) in [("", true), (" --skip-same", false), (" --compare date", false)] {
            let line = format!("holdfast import t.tar p.hf --repair{more}");
            let parsed = Arguments::try_parse_from(line.split_whitespace());
            assert_eq!(parsed.is_ok(), is_well, "{line}: {parsed:?}");
        }
    }
}
