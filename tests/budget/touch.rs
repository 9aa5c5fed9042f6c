//! What the first change of a file costs after a snapshot of its fileset was taken.

use engine::api::{Caller, FileKind, FileSystem, Ino};
use format::fileset::NamePart;
use storage::device::RequestKind;

use super::Counted;

const POOL_BYTES: u64 = 256 << 20;
const DIRECTORIES: usize = 30;
const FILES: usize = 200;
const BLOCK_BYTES: usize = 4096;
/// Pages that a first change copies, at most: those of the ways from the entry of the fileset to
/// the anode and the directory, and what counts free space.
const COPIED_MAX: u64 = 12;

/// Overwrites a block, syncs it, and takes all home; returns how many pages went to the device.
fn pages_of_change(counted: &Counted, ino: Ino, byte: u8) -> u64 {
    let cost = counted.cost(|| {
        let written = counted.pool.write(&Caller::root(), ino, 0, &[byte; BLOCK_BYTES]);
        written.expect("there is room");
        counted.pool.fsync(&Caller::root(), ino, false).expect("nothing fails");
        counted.pool.checkpoint().expect("nothing fails");
    });
    cost.of_kind(RequestKind::Write).bytes / 4096
}

/// Goal: after a snapshot the first change of a file copies the pages that lead to it, and the
/// second costs what it costs without a snapshot.
#[test]
fn the_first_change_after_a_snapshot_copies_a_path() {
    let counted = Counted::new(POOL_BYTES, 14);
    let mut files = Vec::new();
    for directory in 0..DIRECTORIES {
        let name = format!("directory {directory}");
        let parent = counted.make(counted.pool.root(), &name, FileKind::Directory);
        for file in 0..FILES {
            files.push(counted.make(parent, &format!("file {file}"), FileKind::Regular));
        }
    }
    let middle = files[files.len() / 2];
    // Its block is there, and all is at home.
    pages_of_change(&counted, middle, 1);
    let without = pages_of_change(&counted, middle, 2);
    let (root, snapshot) = ("root".parse().expect("a name"), NamePart::new("c").expect("a name"));
    counted.pool.fileset_admin().create_snapshot(&root, &snapshot, [1; 16]).expect("there is room");
    counted.pool.checkpoint().expect("nothing fails");
    let first = pages_of_change(&counted, middle, 3);
    let second = pages_of_change(&counted, middle, 4);
    println!("{without} pages without a snapshot, {first} at first behind one, then {second}");
    // Each page that is copied is logged and goes home.
    assert!(first <= without + 2 * COPIED_MAX, "{first} pages, and {without} without a snapshot");
    assert!(second <= without + 1, "{second} pages, and {without} without a snapshot");
    counted.close();
}
