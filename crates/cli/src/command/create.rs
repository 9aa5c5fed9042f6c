//! `holdfast create`: makes a pool.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use format::disk_group::DiskGroupRoles;
use format::superblock::name_like;

use crate::args::CreateArgs;
use crate::args::members::{DiskGroupRole, GroupSpec};
use crate::exit;
use crate::output::Output;
use control::UsageError;
use control::size::ByteSize;
use server::backend::{Backend, BackendCreateOptions, CreateReport, GroupLayoutSpec};

const FRAGMENTS: [u64; 3] = [1 << 10, 2 << 10, 4 << 10];
const BLOCK_BYTES_MIN: u64 = 4 << 10;
const BLOCK_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn run(args: &CreateArgs, backend: &dyn Backend, output: &Output) -> anyhow::Result<u8> {
    let report = create(backend, options_of(args)?)?;
    let devices: Vec<_> = args.devices().iter().map(|path| path.to_string_lossy()).collect();
    let first = args.devices().first().map_or_else(PathBuf::new, |path| path.to_path_buf());
    let facts = json!({ "created": devices.join(","), "pool": report });
    output.fact(&text_of(&first, &report), &facts);
    for warning in &report.warnings {
        output.warning(warning);
    }
    Ok(exit::DONE)
}

/// Creates a pool.
pub fn create(
    backend: &dyn Backend,
    options: BackendCreateOptions,
) -> anyhow::Result<CreateReport> {
    Ok(backend.create(&options)?)
}

fn options_of(args: &CreateArgs) -> anyhow::Result<BackendCreateOptions> {
    let (fragment_bytes, block_bytes) = (args.fragment.0, args.block.0);
    if !FRAGMENTS.contains(&fragment_bytes) {
        return Err(UsageError::new("--fragment must be 1K, 2K or 4K").into());
    }
    let is_block =
        (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) && block_bytes.is_power_of_two();
    if !is_block {
        return Err(UsageError::new("--block must be a power of two from 4K to 1M").into());
    }
    let specs = in_order(&args.groups).map_err(UsageError::new)?;
    let grouped = specs.iter().flat_map(|(group, _)| &group.devices);
    let devices: Vec<PathBuf> = args.device.iter().chain(grouped).cloned().collect();
    let to_make = |(group, roles): &(&GroupSpec, DiskGroupRoles)| GroupLayoutSpec {
        layout: group.layout,
        width: group.devices.len(),
        roles: *roles,
    };
    let mut groups: Vec<GroupLayoutSpec> = specs.iter().map(to_make).collect();
    if groups.is_empty() {
        groups.push(GroupLayoutSpec::single());
    }
    if let (None, Some(missing)) = (args.size, devices.iter().find(|path| !path.exists())) {
        let message = format!(
            "{} does not exist: give --size to make a file, or check the path of the device",
            missing.display()
        );
        return Err(UsageError::new(message).into());
    }
    Ok(BackendCreateOptions {
        devices,
        groups,
        size_bytes: args.size.map(|size| size.0),
        uses_all: args.use_all,
        fragment_bytes,
        block_bytes,
        group_bytes: args.allocation_group_size.map(|size| size.0),
        journal_bytes: args.journal_size.map(|size| size.0),
        label: args.name.clone().unwrap_or_else(|| name_of(args.devices().first().copied())),
        owner_uid: rustix::process::geteuid().as_raw(),
        owner_gid: rustix::process::getegid().as_raw(),
        is_forced: args.force,
    })
}

/// Returns the name of a pool whose first device is `device`: that of a file without its ending, or
/// the last part of a block device's path.
fn name_of(device: Option<&Path>) -> String {
    let is_block = |it: &Path| it.metadata().is_ok_and(|stat| stat.file_type().is_block_device());
    let name = device.and_then(|it| if is_block(it) { it.file_name() } else { it.file_stem() });
    name_like(&name.unwrap_or_default().to_string_lossy())
}

/// Returns the disk groups with their roles. The group for metadata is first.
fn in_order(groups: &[GroupSpec]) -> Result<Vec<(&GroupSpec, DiskGroupRoles)>, String> {
    let has = |group: &GroupSpec, role| group.roles.as_ref().is_some_and(|own| own.contains(&role));
    let named = |role| groups.iter().filter(|group| has(group, role)).count();
    let (of_metadata, of_journal) = (named(DiskGroupRole::Metadata), named(DiskGroupRole::Journal));
    if of_metadata > 1 || of_journal > 1 {
        let role = if of_metadata > 1 { "metadata" } else { "journal" };
        return Err(format!("one disk group has the role {role}: name it once"));
    }
    // Without a group for metadata, the first one without roles takes it.
    let first = match of_metadata {
        0 => groups.iter().position(|group| group.roles.is_none()),
        _ => groups.iter().position(|group| has(group, DiskGroupRole::Metadata)),
    };
    let Some(first) = first else {
        return match groups.is_empty() {
            true => Ok(Vec::new()),
            false => Err("no disk group has the metadata: write =metadata behind the devices of \
                          one, with data if that is to lie there too"
                .to_owned()),
        };
    };
    let has_data = |group: &GroupSpec| group.roles.is_none() || has(group, DiskGroupRole::Data);
    if !groups.iter().any(has_data) {
        return Err("no disk group has the role data: files could have no content; write =data \
                    behind the devices of one, or leave its roles out"
            .to_owned());
    }
    let roles = |(at, group): (usize, &GroupSpec)| {
        let journal = has(group, DiskGroupRole::Journal) || (of_journal == 0 && at == first);
        DiskGroupRoles { data: has_data(group), metadata: at == first, journal }
    };
    let mut ordered: Vec<_> = groups.iter().zip(groups.iter().enumerate().map(roles)).collect();
    let of_first = ordered.remove(first);
    ordered.insert(0, of_first);
    Ok(ordered)
}

fn text_of(device: &Path, report: &CreateReport) -> String {
    let CreateReport { pool_id, group_count, pages_written, .. } = report;
    format!(
        "{}: pool {pool_id}, {}\n  {group_count} allocation groups of {}, journal {}, blocks {}, \
         fragments {}; {pages_written} pages written\n\
         Mount it: holdfast mount {} DIR --daemon",
        device.display(),
        ByteSize(report.size_bytes),
        ByteSize(report.group_bytes),
        ByteSize(report.journal_bytes),
        ByteSize(report.block_bytes),
        ByteSize(report.fragment_bytes),
        device.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::members::parse_group;

    fn ordered(texts: &[&str]) -> Result<String, String> {
        let groups: Result<Vec<GroupSpec>, String> =
            texts.iter().map(|text| parse_group(text)).collect();
        let groups = groups?;
        let shown = |(group, roles): (&GroupSpec, DiskGroupRoles)| {
            let data = if roles.data { " with data" } else { "" };
            let journal = if roles.journal { " with journal" } else { "" };
            format!("{}{data}{journal}", group.devices[0].display())
        };
        let shown: Vec<String> = in_order(&groups)?.into_iter().map(shown).collect();
        Ok(shown.join(", "))
    }

    #[test]
    fn the_disk_group_with_the_metadata_comes_first() {
        let cases: [(&[&str], &str); 9] = [
            (&[], ""),
            (&["mirror:a,b"], "a with data with journal"),
            (&["single:a", "single:b"], "a with data with journal, b with data"),
            (&["single:a=data", "single:b"], "b with data with journal, a with data"),
            (&["single:d", "mirror:m,n=metadata,journal"], "m with journal, d with data"),
            (&["single:d=data", "mirror:m,n=metadata"], "m with journal, d with data"),
            (&["single:j=journal", "single:a"], "a with data, j with journal"),
            (
                &["single:j=journal", "single:a", "single:b=metadata"],
                "b, j with journal, a with data",
            ),
            (&["single:a=data,metadata", "mirror:j,k=journal"], "a with data, j with journal"),
        ];
        for (texts, expected) in cases {
            assert_eq!(ordered(texts).as_deref(), Ok(expected), "{texts:?}");
        }
        for (texts, words) in [
            (&["single:a=journal", "single:b=data"][..], "=metadata"),
            (&["single:a=metadata", "single:b=metadata"], "once"),
            (&["single:a", "single:b=journal", "single:c=journal"], "once"),
            (&["single:a=data", "single:b=data"], "behind the devices of one"),
            (&["single:a=metadata,journal"], "role data"),
        ] {
            let error = ordered(texts).expect_err("it cannot be");
            assert!(error.contains(words), "{texts:?}: {error}");
        }
    }
}
