//! Mounts and exports of one fileset at once.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::several::{other, refused, status};
use crate::{Mounted, can_mount, write};

/// What a look at attributes may be behind: the second that the kernel keeps them, and some for a
/// machine that has other things to do.
const BEHIND_MAX: Duration = Duration::from_millis(1100);

/// Goal: two mounts of one fileset see each other's changes: at each open what was closed before,
/// otherwise within a second. Method: content, size, appending by turns, a file that is replaced,
/// made, removed; directories; a mapping; and what is asked without opening anything.
#[test]
fn two_mounts_of_one_fileset_see_each_other() {
    if !can_mount("two_mounts_of_one_fileset_see_each_other") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    refused(&mounted, &["mount", &pool, &second], "mount it with --shared here too");
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    let (a, b) = (mounted.root(), other.0.clone());
    let read = |at: &Path, name: &str| fs::read(at.join(name)).expect("it is there");
    let append = |at: &Path, bytes: &[u8]| {
        let file = OpenOptions::new().append(true).create(true).open(at.join("log"));
        file.expect("it opens").write_all(bytes).expect("there is room");
    };
    for round in 0..50_usize {
        let text = "x".repeat(round * 100);
        write(&a.join("file"), text.as_bytes());
        assert_eq!(read(&b, "file"), text.as_bytes(), "round {round}");
        append(&a, b"a");
        append(&b, b"b");
        assert_eq!(read(&a, "log"), "ab".repeat(round + 1).as_bytes(), "round {round}");
        write(&b.join("t"), text.as_bytes());
        fs::rename(b.join("t"), b.join("replaced")).expect("it is there");
        assert_eq!(read(&a, "replaced"), text.as_bytes(), "round {round}");
        let directory = format!("d{round}");
        fs::create_dir(a.join(&directory)).expect("the name is free");
        write(&b.join(&directory).join("f"), b"f");
        let names = fs::read_dir(a.join(&directory)).expect("it is there");
        assert_eq!(names.count(), 1, "round {round}");
        fs::remove_file(b.join("replaced")).expect("it is there");
        let opened = File::open(a.join("replaced")).expect_err("it is gone");
        assert_eq!(opened.kind(), std::io::ErrorKind::NotFound, "round {round}");
    }
    write(&a.join("stat"), b"");
    for size in 1..20_u64 {
        assert!(fs::metadata(b.join("stat")).is_ok());
        let file = OpenOptions::new().write(true).open(a.join("stat")).expect("it is there");
        file.set_len(size).expect("there is room");
        let since = Instant::now();
        loop {
            let asked = since.elapsed();
            if fs::metadata(b.join("stat")).expect("it is there").size() == size {
                break;
            }
            assert!(asked < BEHIND_MAX, "size {size} is not seen");
        }
    }
    let facts = status(&mounted, &second);
    let told = &facts["server"]["mounts"][1]["shared"];
    assert!(told["notices"].as_u64() > Some(0) && told["opens_again"].as_u64() > Some(0), "{told}");
    // One that goes does not take the other's files with it.
    let held = File::open(a.join("log")).expect("it is there");
    mounted.holdfast(&["unmount", &second]);
    fs::remove_file(a.join("log")).expect("it is there");
    assert_eq!(held.metadata().expect("it is open").size(), 100);
    drop(held);
    mounted.finish();
}

/// Goal: a mount that is alone stays so: it refuses others, says how they could come, and is told
/// nothing; and a cache that keeps what is written goes with no other mount.
#[test]
fn a_mount_that_is_alone_refuses_a_shared_one() {
    if !can_mount("a_mount_that_is_alone_refuses_a_shared_one") {
        return;
    }
    let mounted = Mounted::new();
    let _other = other(&mounted);
    let (pool, first, second) =
        (mounted.text("pool.hf"), mounted.text("mnt"), mounted.text("other"));
    refused(
        &mounted,
        &["mount", &pool, &second, "--shared"],
        "mount it with --shared where it was",
    );
    let both = ["mount", &pool, &second, "-o", "shared", "--writeback-cache"];
    refused(&mounted, &both, "give one of them");
    assert!(status(&mounted, &first)["server"]["mounts"][0]["shared"].is_null());
    mounted.finish();
}
