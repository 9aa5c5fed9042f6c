//! What can be asked of the quotas of users, groups and projects.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::members::MemberPaths;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    holdfast quota on pool.hf:home\n  \
    holdfast quota set pool.hf:home --user ann --blocks-soft 9G --blocks-hard 10G\n  \
    holdfast quota set pool.hf:home --group 1002 --inodes-hard 100000\n  \
    holdfast quota grace pool.hf:home --blocks 7d --inodes 7d\n  \
    holdfast quota project set pool.hf:home src 7 --recursive\n  \
    holdfast quota report pool.hf:home --user --numeric\n\nThese are limits of users, groups and \
    projects in one fileset. The limit of the fileset itself\nis \
    `holdfast fileset set POOL:a quota=SIZE`. --bsoft, --bhard, --isoft and --ihard \
    are short\nforms, as in xfs_quota(8).")]
pub(crate) struct QuotaArgs {
    #[command(flatten)]
    pub(crate) members: MemberPaths,
    #[command(subcommand)]
    pub(crate) command: QuotaCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum QuotaCommand {
    /// Count usage and enforce limits in a fileset
    #[command(after_help = "Example:\n  \
        holdfast quota on pool.hf:home\n\nLimits are enforced once all files are counted. If \
        interrupted, counting continues while the\nfileset is mounted.")]
    On {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
    },
    /// Stop counting and enforcing; limits are kept
    #[command(after_help = "Example:\n  holdfast quota off pool.hf:home")]
    Off {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
    },
    /// Set the limits of a user, group or project
    #[command(
        after_help = "Examples:\n  holdfast quota set pool.hf:home --user ann --blocks-soft 9G \
                            --blocks-hard 10G\n  holdfast quota set /mnt --group 1002 \
                            --inodes-hard 100000\n  holdfast quota set /mnt --project 7 --bhard \
                            none\n\nA soft limit may be passed until the grace is over, a hard \
                            one never. What is not named stays.\nThe short names are those of \
                            xfs_quota(8). Nobody limits id 0, nor what root does."
    )]
    Set {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        #[command(flatten)]
        owner: OwnerArgs,
        /// Soft limit of bytes, or none
        #[arg(long, visible_alias = "bsoft", value_name = "SIZE")]
        blocks_soft: Option<String>,
        /// Hard limit of bytes, or none
        #[arg(long, visible_alias = "bhard", value_name = "SIZE")]
        blocks_hard: Option<String>,
        /// Soft limit of inodes, or none
        #[arg(long, visible_alias = "isoft", value_name = "N")]
        inodes_soft: Option<String>,
        /// Hard limit of inodes, or none
        #[arg(long, visible_alias = "ihard", value_name = "N")]
        inodes_hard: Option<String>,
    },
    /// Set or show the grace periods of soft limits
    #[command(after_help = "Examples:\n  holdfast quota grace pool.hf:home --blocks 7d --inodes \
                            12h\n  holdfast quota grace pool.hf:home\n\nGraces that have \
                            begun end as they did.")]
    Grace {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        /// Grace period for bytes: a number with s, m, h or d [initially 7d]
        #[arg(long, value_name = "TIME", value_parser = parse_grace)]
        blocks: Option<u64>,
        /// Grace period for inodes: a number with s, m, h or d [initially 7d]
        #[arg(long, value_name = "TIME", value_parser = parse_grace)]
        inodes: Option<u64>,
    },
    /// Assign directories to projects
    #[command(after_help = "Example:\n  holdfast quota project set pool.hf:home src/kernel 7")]
    Project {
        #[command(subcommand)]
        command: ProjectCommand,
    },
    /// Report usage and limits
    #[command(after_help = "Examples:\n  holdfast quota report pool.hf:home\n  \
                            holdfast quota report /mnt --group --json")]
    Report {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        /// Only users
        #[arg(long)]
        user: bool,
        /// Only groups
        #[arg(long)]
        group: bool,
        /// Only projects
        #[arg(long)]
        project: bool,
        /// Show numbers of users and groups, not names
        #[arg(long)]
        numeric: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ProjectCommand {
    /// Assign a directory to a project; new files in it inherit the project
    #[command(after_help = "Examples:\n  \
        holdfast quota project set pool.hf:home src/kernel 7 --recursive\n  \
        holdfast quota project set /mnt src/kernel 0\n\nFiles can be moved between directories of \
        different projects only by copying: rename and link\nreturn EXDEV.")]
    Set {
        /// POOL:a/b, or a mount point
        fileset: PathBuf,
        /// Path in the fileset; / is its root directory
        path: String,
        /// Number of the project; 0 removes it
        #[arg(value_name = "ID")]
        project: u32,
        /// Assign everything below it too
        #[arg(long)]
        recursive: bool,
    },
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct OwnerArgs {
    /// Name or number of a user
    #[arg(long, value_name = "NAME|UID")]
    pub(crate) user: Option<String>,
    /// Name or number of a group
    #[arg(long, value_name = "NAME|GID")]
    pub(crate) group: Option<String>,
    /// Number of a project
    #[arg(long, value_name = "ID")]
    pub(crate) project: Option<u32>,
}

impl QuotaCommand {
    /// Returns the path that is looked at before anything else.
    pub(crate) fn pool_mut(&mut self) -> &mut PathBuf {
        match self {
            QuotaCommand::On { fileset }
            | QuotaCommand::Off { fileset }
            | QuotaCommand::Set { fileset, .. }
            | QuotaCommand::Grace { fileset, .. }
            | QuotaCommand::Project { command: ProjectCommand::Set { fileset, .. } }
            | QuotaCommand::Report { fileset, .. } => fileset,
        }
    }
}

/// Returns how many seconds `7d` are.
fn parse_grace(text: &str) -> Result<u64, String> {
    let refused = || format!("`{text}` is no grace: write a number with s, m, h or d (7d)");
    let (unit, number) =
        text.char_indices().last().map(|(at, unit)| (unit, &text[..at])).ok_or_else(refused)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(refused()),
    };
    let number: u64 = number.parse().map_err(|_| refused())?;
    number.checked_mul(seconds).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::parse_grace;

    #[test]
    fn graces_are_read_with_their_unit() {
        assert_eq!(parse_grace("7d"), Ok(604_800));
        assert_eq!(parse_grace("12h"), Ok(43_200));
        for text in ["", "7", "d", "7w", "-1d", "99999999999999999999d", "400000000000000000d"] {
            assert!(parse_grace(text).is_err(), "{text}");
        }
    }
}
