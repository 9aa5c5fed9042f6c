//! `holdfast explain`: shows where a file's bytes lie on disk, and what lies at a place on disk.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::Context;
use serde_json::json;

use crate::args::ExplainArgs;
use crate::exit;
use crate::output::Output;
use control::UsageError;
use control::size::ByteSize;
use control::wire::{ExplainStep, WireAnswer, WireRequest};
use server::backend::{Backend, ExplainTarget};
use server::named::PoolArgument;
use server::status::{self, DiscoveredServer};

pub(crate) fn run(
    args: &ExplainArgs,
    backend: &dyn Backend,
    output: &Output,
) -> anyhow::Result<u8> {
    let members = args.members.hints();
    let steps = match (&args.device, args.offset, &args.pool, &args.path) {
        (Some(device), Some(ByteSize(offset)), ..) => {
            backend.explain(device, &members, &ExplainTarget::Offset { offset })?
        }
        (_, _, Some(pool), Some(path)) => {
            let (path, range) = split_range(path)?;
            let named = PoolArgument::of_no_snapshot(pool, "name the fileset without @")?;
            let (device, fileset) = (named.pool, named.fileset);
            let path = path.as_bytes().to_vec();
            backend.explain(&device, &members, &ExplainTarget::Path { fileset, path, range })?
        }
        (_, _, None, Some(path)) => explain_mounted(path)?,
        _ => return Err(UsageError::new("give PATH, or --device and --offset").into()),
    };
    for (depth, step) in depths(&steps).into_iter().zip(&steps) {
        let text = format!("{}{}: {}", "  ".repeat(depth), step.layer, step.fact);
        output.fact(&text, &json!(step));
    }
    Ok(exit::DONE)
}

/// Returns the indentation of each step. Each step is one deeper than its parent: a name than the
/// directory, a map page than the level above, a block than its map page, a segment than its block.
fn depths(steps: &[ExplainStep]) -> Vec<usize> {
    let (mut name, mut map) = (0, None);
    let mut depths: Vec<usize> = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let before =
            index.checked_sub(1).and_then(|index| Some((depths[index], steps.get(index)?)));
        let depth = match (step.layer.as_str(), before) {
            ("map", Some((depth, before))) if before.layer == "map" => depth + 1,
            ("map" | "attribute" | "data", _) => name,
            ("block", _) => map.map_or(name, |map| map + 1),
            ("segment", Some((depth, _))) => depth + 1,
            _ => {
                name += 1;
                name - 1
            }
        };
        if step.layer == "map" {
            map = Some(depth);
        }
        depths.push(depth);
    }
    depths
}

fn explain_mounted(path: &OsStr) -> anyhow::Result<Vec<ExplainStep>> {
    let (path, range) = split_range(path)?;
    let path = Path::new(path);
    let shown = path.display();
    status::check_way(path)?;
    let metadata = std::fs::symlink_metadata(path).with_context(|| format!("{shown}"))?;
    let found = match status::find(path)? {
        Some(found) if !found.advice().is_empty() => anyhow::bail!("{shown}: {}", found.advice()),
        Some(found) => node_in(&found, path, &metadata).map(|(mount, node)| (found, mount, node)),
        None => None,
    };
    let Some((found, mount, node)) = found else {
        anyhow::bail!(
            "{shown} is in no mounted pool of yours: for one that is not mounted give --pool"
        );
    };
    match status::ask(&found.socket, &WireRequest::Explain { mount, node, range })? {
        WireAnswer::Explain(steps) => Ok(steps),
        WireAnswer::Error(error) => Err(anyhow::anyhow!(error)),
        WireAnswer::Closing => Err(anyhow::anyhow!(status::CLOSING)),
        WireAnswer::Status(_)
        | WireAnswer::Control(_)
        | WireAnswer::Ready
        | WireAnswer::Mounted(_)
        | WireAnswer::Progress { .. }
        | WireAnswer::Transferred(_) => anyhow::bail!("the server answered nonsense"),
    }
}

/// Returns the index of the mount that contains `path`, and the inode number. A symbolic link
/// outside the mounts is followed.
fn node_in(found: &DiscoveredServer, path: &Path, named: &Metadata) -> Option<(usize, u64)> {
    let device_of = |directory: &Path| Some(std::fs::metadata(directory).ok()?.dev());
    let devices = found.mounts().into_iter().map(|(directory, _)| device_of(&directory));
    let devices: Vec<Option<u64>> = devices.collect();
    let mount_of = |device: u64| devices.iter().position(|it| *it == Some(device));
    if let Some(mount) = mount_of(named.dev()) {
        return Some((mount, named.ino()));
    }
    let meant = std::fs::metadata(path).ok()?;
    mount_of(meant.dev()).map(|mount| (mount, meant.ino()))
}

/// First and last byte of a range.
type OptionalByteRange = Option<(u64, u64)>;

/// Splits `PATH:FIRST-LAST`, `PATH:FIRST+COUNT` or `PATH:OFFSET`. If no range follows the colon,
/// the colon belongs to the path.
fn split_range(text: &OsStr) -> anyhow::Result<(&OsStr, OptionalByteRange)> {
    let bytes = text.as_bytes();
    let Some(colon) = bytes.iter().rposition(|&byte| byte == b':') else { return Ok((text, None)) };
    let (path, range) = bytes.split_at(colon);
    let Ok(range) = std::str::from_utf8(&range[1..]) else { return Ok((text, None)) };
    let size = |text: &str| text.parse::<ByteSize>().ok().map(|size| size.0);
    let parsed = if let Some((first, last)) = range.split_once('-') {
        size(first).zip(size(last))
    } else if let Some((first, count)) = range.split_once('+') {
        size(first)
            .zip(size(count))
            .and_then(|(first, count)| Some((first, first.checked_add(count.checked_sub(1)?)?)))
    } else {
        size(range).map(|offset| (offset, offset))
    };
    match parsed {
        None => Ok((text, None)),
        Some((first, last)) if last < first => {
            Err(UsageError::new(format!("{range}: the last byte is before the first")).into())
        }
        Some(range) => Ok((OsStr::from_bytes(path), Some(range))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_that_of_the_structure() {
        let steps = |layers: &str| -> Vec<ExplainStep> {
            let step = |layer: &str| ExplainStep { layer: layer.to_owned(), fact: String::new() };
            layers.split(' ').map(step).collect()
        };
        for (layers, expected) in [
            ("superblock fileset anode dirent anode attribute data", vec![0, 1, 2, 3, 4, 5, 5]),
            ("anode block segment block segment", vec![0, 1, 2, 1, 2]),
            (
                "anode map map block segment block segment map map block segment data",
                vec![0, 1, 2, 3, 4, 3, 4, 1, 2, 3, 4, 1],
            ),
            ("group segment page", vec![0, 1, 1]),
        ] {
            assert_eq!(depths(&steps(layers)), expected, "{layers}");
        }
    }

    #[test]
    fn a_range_may_follow_a_path() {
        for (text, path, range) in [
            ("/m/f", "/m/f", None),
            ("/m/f:0-4095", "/m/f", Some((0, 4095))),
            ("/m/f:16K+4K", "/m/f", Some((16_384, 20_479))),
            ("/m/f:7", "/m/f", Some((7, 7))),
            ("/m/a:b", "/m/a:b", None),
            ("/m/a:b:1-2", "/m/a:b", Some((1, 2))),
            ("/m/f:5+0", "/m/f:5+0", None),
        ] {
            let split = split_range(text.as_ref()).expect("well formed");
            assert_eq!(split, (path.as_ref(), range), "{text}");
        }
        assert!(split_range("/m/f:9-1".as_ref()).is_err());
        let bytes = OsStr::from_bytes;
        let split = split_range(bytes(b"/m/\xff:7")).expect("well formed");
        assert_eq!(split, (bytes(b"/m/\xff"), Some((7, 7))));
        let split = split_range(bytes(b"/m/f:\xff")).expect("well formed");
        assert_eq!(split, (bytes(b"/m/f:\xff"), None));
    }
}
