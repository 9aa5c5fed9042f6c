//! Numbers of inodes as programs see them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;

use crate::several::other;
use crate::{Mounted, can_mount, errno, write};

/// Returns the number of each name below `root`, by stat(2), which must be that of the listing.
fn numbers(root: &Path) -> BTreeMap<String, u64> {
    use std::os::unix::fs::DirEntryExt as _;
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).expect("it is a directory") {
        let entry = entry.expect("it is listed");
        let number = entry.metadata().expect("it is there").ino();
        assert_eq!(entry.ino(), number, "{:?}", entry.path());
        all.insert(entry.file_name().into_string().expect("ASCII"), number);
    }
    all
}

/// Goal: whatever fileset is mounted has numbers below 2^32, and so has a snapshot of it: those of
/// the fileset, each time. What is below `.snapshots` has numbers that nothing in the mount has.
#[test]
fn a_snapshot_shows_the_numbers_of_its_fileset() {
    if !can_mount("a_snapshot_shows_the_numbers_of_its_fileset") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    for fileset in ["a", "b"] {
        mounted.holdfast(&["fileset", "create", &format!("{pool}:{fileset}")]);
    }
    mounted.unmount();
    let directory = other(&mounted);
    let at = mounted.text("other");
    for fileset in ["root", "a", "b"] {
        let fileset = format!("{pool}:{fileset}");
        mounted.holdfast(&["mount", &fileset, &mounted.text("mnt"), "--daemon"]);
        for name in 0..20 {
            write(&mounted.path(&name.to_string()), b"data");
        }
        let own = numbers(&mounted.root());
        assert!(own.values().all(|number| u32::try_from(*number).is_ok()), "{own:?}");
        for night in ["monday", "tuesday"] {
            let snapshot = format!("{fileset}@{night}");
            mounted.holdfast(&["snapshot", "create", &snapshot]);
            mounted.holdfast(&["mount", &snapshot, &at]);
            assert_eq!(numbers(&directory.0), own, "{snapshot}");
            let below = numbers(&mounted.path(&format!(".snapshots/{night}")));
            let is_other = |number: &u64| u32::try_from(*number).is_err();
            assert!(below.len() == own.len() && below.values().all(is_other), "{below:?}");
            // What a number means is found again.
            mounted.holdfast(&["explain", &mounted.text("other/7")]);
            mounted.holdfast(&["explain", &mounted.text("mnt/7")]);
            mounted.holdfast(&["explain", &mounted.text(&format!("mnt/.snapshots/{night}/7"))]);
            mounted.holdfast(&["unmount", &at]);
        }
        mounted.unmount();
    }
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: `-o inode32` shows no number and no place in a directory that a program of 32 bits cannot
/// have, and refuses the rest; what is listed is all that is there.
#[test]
fn inode32_refuses_what_does_not_fit() {
    if !can_mount("inode32_refuses_what_does_not_fit") {
        return;
    }
    let mounted = Mounted::with(&["-o", "inode32"]);
    mounted.holdfast(&["snapshot", "create", &format!("{}:root@c", mounted.text("pool.hf"))]);
    for name in 0..3000 {
        write(&mounted.path(&name.to_string()), b"");
    }
    let own = numbers(&mounted.root());
    assert_eq!(own.len(), 3000);
    assert!(own.values().all(|number| u32::try_from(*number).is_ok()));
    let mut buffer = Vec::with_capacity(4096);
    let root = fs::File::open(mounted.root()).expect("it is a directory");
    let mut entries = rustix::fs::RawDir::new(&root, buffer.spare_capacity_mut());
    let (mut count, mut last) = (0, 0);
    while let Some(entry) = entries.next() {
        let place = entry.expect("it is listed").next_entry_cookie();
        assert!(place >= last && i32::try_from(place).is_ok(), "{place} after {last}");
        (count, last) = (count + 1, place);
    }
    assert_eq!(count, 3002, "`.` and `..` too");
    drop(root);
    assert_eq!(errno(mounted.path(".snapshots/c/1").metadata()), Errno::OVERFLOW.raw_os_error());
    mounted.remount(&[]);
    mounted.path(".snapshots/c").metadata().expect("it has a number of more bits");
    mounted.finish();
}
