//! `holdfast create`: makes a pool.

use std::path::{Path, PathBuf};

use serde_json::json;

use format::disk_group::Roles;

use crate::args::CreateArgs;
use crate::args::members::{GroupSpec, Role};
use crate::backend::{Backend, CreateOptions, CreateReport, GroupToMake};
use crate::exit::{self, UsageError};
use crate::output::Output;
use crate::size::ByteSize;

/// Fragments that the format has.
const FRAGMENTS: [u64; 3] = [1 << 10, 2 << 10, 4 << 10];
/// Blocks that the format has: 4 KiB to 1 MiB, powers of two.
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

/// Makes a pool.
pub(crate) fn create(
    backend: &dyn Backend,
    options: CreateOptions,
) -> anyhow::Result<CreateReport> {
    Ok(backend.create(&options)?)
}

fn options_of(args: &CreateArgs) -> anyhow::Result<CreateOptions> {
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
    let to_make = |(group, roles): &(&GroupSpec, Roles)| GroupToMake {
        layout: group.layout,
        width: group.devices.len(),
        roles: *roles,
    };
    let mut groups: Vec<GroupToMake> = specs.iter().map(to_make).collect();
    if groups.is_empty() {
        groups.push(GroupToMake::single());
    }
    if let (None, Some(missing)) = (args.size, devices.iter().find(|path| !path.exists())) {
        let message = format!(
            "{} does not exist: give --size to make a file, or check the path of the device",
            missing.display()
        );
        return Err(UsageError::new(message).into());
    }
    Ok(CreateOptions {
        devices,
        groups,
        size_bytes: args.size.map(|size| size.0),
        uses_all: args.use_all,
        fragment_bytes,
        block_bytes,
        group_bytes: args.allocation_group_size.map(|size| size.0),
        journal_bytes: args.journal_size.map(|size| size.0),
        label: args.label.clone(),
        owner_uid: rustix::process::geteuid().as_raw(),
        owner_gid: rustix::process::getegid().as_raw(),
        is_forced: args.force,
    })
}

/// Returns the disk groups, the one with the metadata first, and what beside metadata may lie on
/// each.
fn in_order(groups: &[GroupSpec]) -> Result<Vec<(&GroupSpec, Roles)>, String> {
    let has = |group: &GroupSpec, role| group.roles.as_ref().is_some_and(|own| own.contains(&role));
    let named = |role| groups.iter().filter(|group| has(group, role)).count();
    let (of_metadata, of_journal) = (named(Role::Metadata), named(Role::Journal));
    if of_metadata > 1 || of_journal > 1 {
        let role = if of_metadata > 1 { "metadata" } else { "journal" };
        return Err(format!("one disk group has the role {role}: name it once"));
    }
    // Where nobody says what has the metadata, the first of those that say nothing has it.
    let first = match of_metadata {
        0 => groups.iter().position(|group| group.roles.is_none()),
        _ => groups.iter().position(|group| has(group, Role::Metadata)),
    };
    let Some(first) = first else {
        return match groups.is_empty() {
            true => Ok(Vec::new()),
            false => Err("no disk group has the metadata: write =metadata behind the devices of \
                          one, with data if that is to lie there too"
                .to_owned()),
        };
    };
    let has_data = |group: &GroupSpec| group.roles.is_none() || has(group, Role::Data);
    if !groups.iter().any(has_data) {
        return Err("no disk group has the role data: files could have no content; write =data \
                    behind the devices of one, or leave its roles out"
            .to_owned());
    }
    let roles = |(at, group): (usize, &GroupSpec)| {
        let journal = has(group, Role::Journal) || (of_journal == 0 && at == first);
        Roles { data: has_data(group), metadata: at == first, journal }
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
        let shown = |(group, roles): (&GroupSpec, Roles)| {
            let data = if roles.data { " with data" } else { "" };
            let journal = if roles.journal { " with journal" } else { "" };
            format!("{}{data}{journal}", group.devices[0].display())
        };
        let shown: Vec<String> = in_order(&groups)?.into_iter().map(shown).collect();
        Ok(shown.join(", "))
    }

    /// Goal: the disk group with the metadata comes first, whoever is named first, and what cannot
    /// be is refused by what to write.
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
