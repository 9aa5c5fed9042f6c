//! What can be said of the devices of a pool.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use format::members::Layout;
use format::stripes::UNIT_SHIFT_DEFAULT;

use server::backend::MemberSearchOptions;

/// Where members of a pool are that nothing else leads to, wherever one is opened by a path.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MemberPaths {
    /// Path of a device of the pool that cannot be found; others are found by the paths in the
    /// labels, and in the directories of the given devices
    #[arg(long = "member", value_name = "PATH", global = true)]
    paths: Vec<PathBuf>,
}

impl MemberPaths {
    /// None is named.
    pub(crate) const NONE: &'static MemberPaths = &MemberPaths { paths: Vec::new() };

    /// Whether none is named.
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns where to look. Paths are absolute: a server leaves this directory.
    pub(crate) fn hints(&self) -> MemberSearchOptions {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        MemberSearchOptions {
            hints: self.paths.iter().map(absolute).collect(),
            accepts_missing: false,
        }
    }
}

/// How a pool of several devices is opened to be served or checked.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct MemberArgs {
    #[command(flatten)]
    pub(crate) paths: MemberPaths,
    /// Accepted for old scripts, and without effect; see --accept-missing
    #[arg(long)]
    pub(crate) degraded: bool,
    /// Open the pool with only the given devices, though missing ones may have newer writes or data
    /// that no other has (in that case with -o ro)
    #[arg(long)]
    pub(crate) accept_missing: bool,
}

/// `KIND:DEVICE,DEVICE[=ROLE,...]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupSpec {
    /// How it lies on them.
    pub(crate) layout: Layout,
    /// The devices.
    pub(crate) devices: Vec<PathBuf>,
    /// What it is for; `None`: nothing is said.
    pub(crate) roles: Option<Vec<DiskGroupRole>>,
}

/// What a disk group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskGroupRole {
    /// Blocks of files.
    Data,
    /// All else but the journal.
    Metadata,
    /// The journal.
    Journal,
}

impl DiskGroupRole {
    /// Returns the word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            DiskGroupRole::Data => "data",
            DiskGroupRole::Metadata => "metadata",
            DiskGroupRole::Journal => "journal",
        }
    }
}

fn parse_role(role: &str) -> Result<DiskGroupRole, String> {
    match role {
        "data" => Ok(DiskGroupRole::Data),
        "metadata" => Ok(DiskGroupRole::Metadata),
        "journal" => Ok(DiskGroupRole::Journal),
        _ => Err(format!(
            "there is no role {role} (what follows the last = are roles): data, metadata, journal"
        )),
    }
}

/// Kinds that the format has.
const KINDS: &str = "single, mirror, stripe, round-robin, raid5";

/// Returns the group that `text` spells.
pub(crate) fn parse_group(text: &str) -> Result<GroupSpec, String> {
    let (kind, rest) = text
        .split_once(':')
        .ok_or_else(|| format!("spell it KIND:DEVICE,DEVICE; kinds are {KINDS}"))?;
    let layout = match kind {
        "single" => Layout::Single,
        "mirror" => Layout::Mirror,
        "stripe" => Layout::Stripe { unit_shift: UNIT_SHIFT_DEFAULT },
        "raid5" => Layout::Raid5 { unit_shift: UNIT_SHIFT_DEFAULT },
        "round-robin" => Layout::RoundRobin,
        _ => return Err(format!("there is no kind {kind}; kinds are {KINDS}")),
    };
    let (devices, roles) = match rest.rsplit_once('=') {
        None => (rest, None),
        Some((devices, roles)) => {
            let roles: Result<Vec<DiskGroupRole>, String> =
                roles.split(',').map(parse_role).collect();
            (devices, Some(roles?))
        }
    };
    let devices: Vec<PathBuf> =
        devices.split(',').map(|path| OsStr::from_bytes(path.as_bytes()).into()).collect();
    if devices.iter().any(|path| path.as_os_str().is_empty()) {
        return Err("a device has no name: write them with a comma between two".to_owned());
    }
    Ok(GroupSpec { layout, devices, roles })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_spelled_kind_devices_roles() {
        let group = parse_group("mirror:d0,/a:b/d1").expect("the kind ends at the first colon");
        assert_eq!(group.layout, Layout::Mirror);
        assert_eq!(group.devices, [PathBuf::from("d0"), PathBuf::from("/a:b/d1")]);
        let group = parse_group("single:a=b=data").expect("roles begin at the last =");
        assert_eq!(group.devices, [PathBuf::from("a=b")]);
        assert_eq!(group.roles, Some(vec![DiskGroupRole::Data]));
        for (text, words) in [
            ("mirror", "KIND:"),
            ("mirrored:a,b", "no kind mirrored"),
            ("mirror:a=b,c", "no role b"),
            ("mirror:a,,b", "no name"),
            ("single:", "no name"),
        ] {
            let error = parse_group(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
