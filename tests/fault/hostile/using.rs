//! Everything that somebody may do with a pool that lies.

use std::sync::{Arc, LazyLock};

use engine::Pool;
use engine::api::{
    Attr, Caller, Fallocate, FileKind, FileSystem, Ino, NewInode, RenameMode, Seek, SetAttr,
    XattrMode,
};
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::bases::open_on;
use super::{content, index_below};

/// Names that a walk looks at.
const WALK_MAX: usize = 300;
/// Of those, how many are changed.
const CHANGES_MAX: usize = 60;
/// Attributes of a file that a walk looks at.
const XATTRS_MAX: usize = 8;
const FALLOCATES: [Fallocate; 7] = [
    Fallocate::Allocate { keep_size: false },
    Fallocate::Allocate { keep_size: true },
    Fallocate::PunchHole,
    Fallocate::ZeroRange { keep_size: false },
    Fallocate::ZeroRange { keep_size: true },
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

/// A name that a walk has found: its directory, itself, and what it names.
type Found = (Ino, Vec<u8>, Attr);

/// What is written, made once.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| content(1, 20_000));

/// Looks at everything, bounded; returns what was found.
fn walk(pool: &Pool) -> Vec<Found> {
    let (mut found, mut directories) = (Vec::new(), vec![pool.root()]);
    while let Some(directory) = directories.pop() {
        let mut names = Vec::new();
        let _ = pool.readdir(&Caller::root(), directory, 0, &mut |entry| {
            names.push(entry.name.clone());
            names.len() < WALK_MAX
        });
        for name in names {
            if found.len() >= WALK_MAX {
                return found;
            }
            let Ok(attr) = pool.lookup(&Caller::root(), directory, &name) else { continue };
            pool.forget(attr.ino, 1);
            let is_dot = name == b"." || name == b"..";
            if attr.kind == FileKind::Directory && !is_dot {
                directories.push(attr.ino);
            }
            found.push((directory, name, attr));
        }
    }
    found
}

/// Reads what there is of a file; what it answers does not matter.
fn look_at(pool: &Pool, attr: &Attr, bytes: &mut Vec<u8>) {
    let (root, ino) = (Caller::root(), attr.ino);
    bytes.clear();
    let _ = pool.read(&Caller::root(), ino, 0, 40_000, bytes);
    let _ = pool.read(&Caller::root(), ino, attr.size_bytes.saturating_sub(100), 5000, bytes);
    let _ = pool.readlink(&Caller::root(), ino);
    let _ = pool.path_of(ino);
    let _ = pool.seek(&Caller::root(), ino, 0, Seek::Hole);
    let _ = pool.seek(&Caller::root(), ino, attr.size_bytes / 2, Seek::Data);
    for name in pool.listxattr(&root, ino).unwrap_or_default().iter().take(XATTRS_MAX) {
        let _ = pool.getxattr(&root, ino, name);
    }
}

fn make_files(pool: &Pool) {
    for number in 0..8 {
        let new = NewInode::new(FileKind::Regular, 0o755);
        let name = format!("new {number}");
        let made = pool.create(&Caller::root(), pool.root(), name.as_bytes(), new, None);
        let Ok(Attr { ino, .. }) = made else { continue };
        pool.forget(ino, 1);
        let _ = pool.write(&Caller::root(), ino, number * 9000, &CONTENT);
        let _ = if number % 2 == 0 { pool.fsync(&Caller::root(), ino, false) } else { pool.sync() };
    }
}

/// Changes something about what a name names, or the name.
fn change(pool: &Pool, (parent, name, attr): &Found, other: &Found, prng: &mut Prng) {
    let (root, ino) = (Caller::root(), attr.ino);
    let _ = match prng.below(14) {
        0 => pool.unlink(&root, *parent, name, None),
        1 => pool.rmdir(&root, *parent, name, None),
        2 => {
            let target = (pool.root(), &b"moved"[..]);
            pool.rename(&root, (*parent, name), target, RenameMode::Replace, None)
        }
        3 => pool.rename(&root, (*parent, name), (other.0, &other.1), RenameMode::Exchange, None),
        4 => pool.write(&root, ino, prng.below(100_000), &CONTENT[..10_000]),
        5 => pool.write(&root, ino, attr.size_bytes, &CONTENT[..100]),
        6 | 7 => {
            let size = if prng.below(2) == 0 { 0 } else { prng.below(1 << 20) };
            let change = SetAttr { size_bytes: Some(size), ..SetAttr::default() };
            pool.setattr(&root, ino, &change, None).map(drop)
        }
        8 => {
            let change = SetAttr { mode: Some(0o640), uid: Some(7), ..SetAttr::default() };
            pool.setattr(&root, ino, &change, None).map(drop)
        }
        9 => {
            let value = &CONTENT[..index_below(prng, 5000)];
            pool.setxattr(&root, ino, b"user.new", value, XattrMode::Set, None)
        }
        10 => {
            let names = pool.listxattr(&root, ino).unwrap_or_default();
            names.iter().try_for_each(|name| pool.removexattr(&root, ino, name, None))
        }
        11 | 12 => {
            // Whole blocks, which some kinds ask for, as often as not.
            let unit = if prng.below(2) == 0 { 1 << 14 } else { 1 };
            let mode = FALLOCATES[index_below(prng, FALLOCATES.len())];
            let (offset, length) = (prng.below(10) * unit, (1 + prng.below(10)) * unit);
            pool.fallocate(&root, ino, offset, length, mode)
        }
        _ => {
            let _ = pool.link(&root, ino, pool.root(), b"linked", None);
            let _ = pool.copy_range(&root, (ino, 0), (other.2.ino, prng.below(50_000)), 30_000);
            pool.fsync(&Caller::root(), ino, false)
        }
    };
}

/// Uses a pool.
fn using(pool: &Pool, prng: &mut Prng) {
    let found = walk(pool);
    let mut bytes = Vec::new();
    for (_, _, attr) in &found {
        look_at(pool, attr, &mut bytes);
    }
    let _ = pool.statfs(&Caller::root(), pool.main_fileset());
    make_files(pool);
    for name in found.iter().take(CHANGES_MAX) {
        change(pool, name, &found[index_below(prng, found.len())], prng);
    }
    let _ = pool.sync();
    let _ = pool.checkpoint();
    let _ = pool.tick();
    let _ = pool.status();
}

fn check(device: &SharedDevice) {
    let options =
        check::CheckOptions { memory_bytes_max: 64 << 20, ..check::CheckOptions::default() };
    let report = check::run(Arc::clone(device), options, &mut |_| {});
    let _ = report.to_text();
}

/// Returns whether the pool could be opened.
pub(super) fn examine(image: Image, prng: &mut Prng) -> bool {
    let device = SimDevice::open(image, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    if prng.below(2) == 0 {
        check(&shared);
    }
    let mut was_open = false;
    for _ in 0..=u64::from(prng.below(4) == 0) {
        let Ok(pool) = open_on(&shared) else { break };
        was_open = true;
        using(&pool, prng);
        let _ = pool.close();
    }
    if was_open && prng.below(2) == 0 {
        check(&shared);
    }
    was_open
}
