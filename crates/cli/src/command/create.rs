//! `holdfast create`: makes a pool.

use std::path::{Path, PathBuf};

use format::members::Layout;
use serde_json::json;

use crate::args::CreateArgs;
use crate::backend::{Backend, CreateOptions, CreateReport};
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
        output.remark(&format!("Warning: {warning}"));
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
    if args.groups.len() > 1 {
        let message = "this version makes pools of one group: give --group once";
        return Err(UsageError::new(message).into());
    }
    if args.groups.iter().any(|group| group.roles.is_some()) {
        let message = "the first disk group has all roles: leave them out";
        return Err(UsageError::new(message).into());
    }
    let layout = args.groups.first().map_or(Layout::Single, |group| group.layout);
    let devices: Vec<PathBuf> = args.devices().into_iter().map(Path::to_path_buf).collect();
    if let (None, Some(missing)) = (args.size, devices.iter().find(|path| !path.exists())) {
        let message = format!(
            "{} does not exist: give --size to make a file, or check the path of the device",
            missing.display()
        );
        return Err(UsageError::new(message).into());
    }
    Ok(CreateOptions {
        devices,
        layout,
        size_bytes: args.size.map(|size| size.0),
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
