//! Scans folders for pools, by the labels of what is in them.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use format::geometry::POOL_BYTES_MIN;

use super::look::{LabelReadResult, LabelReader};
use super::search::number_of;
use crate::backend::{PoolScan, ScannedDevice};
use crate::holders::{is_below_another, is_one_device};

/// Most names read per folder, which takes a second on a disk.
const FOLDER_NAMES_MAX: usize = 1 << 18;
/// Most labels read per folder.
const FOLDER_LOOKS_MAX: usize = 1 << 12;

/// See [`crate::backend::Backend::scan`].
pub(super) fn scan(places: &[PathBuf], devices: &[PathBuf]) -> PoolScan {
    let (mut looks, mut seen) = (LabelReader::default(), BTreeSet::new());
    let mut found: Vec<ScannedDevice> = Vec::new();
    let paths = places.iter().flat_map(|place| match place.is_dir() {
        true => in_folder(place),
        false => vec![place.clone()],
    });
    // A link or a device may lead to a mount that is dead: only the reader has a deadline.
    let paths = paths.map(|path| (path.is_symlink(), path));
    let devices = devices.iter().map(|path| (true, path.clone()));
    for (may_hang, path) in paths.chain(devices) {
        let mut is_other = |path: &Path| {
            number_of(path).is_some_and(|it| seen.insert(it)) && !is_below_another(path)
        };
        if !may_hang && !is_other(&path) {
            continue;
        }
        let LabelReadResult::Label(label) = looks.at(&path, false) else { continue };
        if may_hang && !is_other(&path) {
            continue;
        }
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        let is_same = |it: &ScannedDevice| {
            let ids = |label: &format::superblock::Superblock| (label.pool_id, label.device_id());
            ids(&it.label) == ids(&label) && is_one_device(&it.path, &path)
        };
        if !found.iter().any(is_same) {
            found.push(ScannedDevice { path, label: *label });
        }
    }
    PoolScan { devices: found, unread: looks.into_unread() }
}

/// Returns what may be a device of a pool, by name.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let is_meant = |stat: &Metadata| {
        stat.file_type().is_block_device() || stat.is_file() && stat.len() >= POOL_BYTES_MIN
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries
        .take(FOLDER_NAMES_MAX)
        .filter(|entry| entry.metadata().is_ok_and(|stat| stat.is_symlink() || is_meant(&stat)))
        .map(|entry| entry.path())
        .collect();
    if paths.len() > FOLDER_LOOKS_MAX {
        let (folder, most) = (folder.display(), FOLDER_LOOKS_MAX);
        tracing::warn!("{folder} has more than {most} files: the rest is not looked at");
    }
    paths.sort();
    paths.truncate(FOLDER_LOOKS_MAX);
    paths
}
