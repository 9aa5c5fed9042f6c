//! Mounts and exports of one fileset at once.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::several::{other, refused, status};
use crate::transfer::{run_with, text_of};
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
        "mount it with --shared in both places",
    );
    let both = ["mount", &pool, &second, "-o", "shared", "--writeback-cache"];
    refused(&mounted, &both, "give one of them");
    assert!(status(&mounted, &first)["server"]["mounts"][0]["shared"].is_null());
    mounted.finish();
}

/// Goal: what is copied in each mount of the fileset sees as what another mount changes: at each
/// open at once. Method: both mounts have looked at a file that is replaced, have found that
/// another is not there, and hold the old one open.
#[test]
fn a_copy_in_is_seen_by_shared_mounts() {
    if !can_mount("a_copy_in_is_seen_by_shared_mounts") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    mounted.holdfast(&["mount", &pool, &second, "--shared"]);
    let (from, tree) = (mounted.text("tree"), mounted.work.join("tree"));
    fs::create_dir_all(tree.join("d")).expect("there is room");
    let mounts = [mounted.root(), other.0.clone()];
    let mut before: Option<String> = None;
    for round in 0..20_usize {
        let (text, new) = ("x".repeat(round * 100 + 1), format!("d/new{round}"));
        write(&tree.join("f"), text.as_bytes());
        write(&tree.join(&new), b"new");
        let mut held = Vec::new();
        for at in &mounts {
            assert!(fs::metadata(at.join(&new)).is_err(), "round {round}: it is not there yet");
            if let Some(before) = &before {
                assert_eq!(fs::read(at.join("f")).expect("it is there"), before.as_bytes());
                held.push(File::open(at.join("f")).expect("it is there"));
            }
        }
        mounted.holdfast(&["copy-in", &from, &pool]);
        for at in &mounts {
            let read = |name: &str| fs::read(at.join(name)).expect("it was copied in");
            assert!(read("f") == text.as_bytes(), "round {round}: the old file is read");
            assert_eq!(read(&new), b"new", "round {round}");
        }
        // What was replaced stays for whoever has it open.
        let old_bytes = before.as_ref().map(String::len);
        for file in held {
            let size = file.metadata().expect("it is open").size();
            assert_eq!(usize::try_from(size).ok(), old_bytes, "round {round}");
        }
        before = Some(text);
    }
    // What would go into its own source never came to an end.
    let (root, deep) = (mounted.text("mnt"), mounted.text("mnt/d"));
    for (source, path) in [(&root, "/copy"), (&deep, "/d/x/y"), (&root, "/")] {
        let output = mounted.run(&["copy-in", source, &pool, "--path", path]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains("in turn"), "{source}: {text}");
    }
    mounted.holdfast(&["copy-in", &deep, &pool, "--path", "/copy of d"]);
    assert_eq!(fs::read(mounts[1].join("copy of d/new0")).expect("it was copied in"), b"new");
    drop(other);
    mounted.finish();
}

/// Goal: what a fileset holds is not replaced as a whole while it has fronts, shared or not, and
/// the refusal names them and what ends them; without them it is. Method: a restore, and a stream.
#[test]
fn a_fileset_that_has_fronts_is_not_replaced() {
    if !can_mount("a_fileset_that_has_fronts_is_not_replaced") {
        return;
    }
    let mounted = Mounted::with(&["--shared"]);
    let other = other(&mounted);
    let (pool, second) = (mounted.text("pool.hf"), mounted.text("other"));
    let [home, monday, copy] = ["home", "home@monday", "copy"].map(|it| format!("{pool}:{it}"));
    mounted.holdfast(&["fileset", "create", &home]);
    let end = format!("`holdfast unmount {second}` first");
    for options in [&["--shared"][..], &[]] {
        mounted.holdfast(&[&["mount", &home, &second], options].concat());
        write(&other.0.join("file"), b"on monday");
        if options.is_empty() {
            write(&other.0.join("file"), b"on tuesday");
        } else {
            mounted.holdfast(&["snapshot", "create", &monday]);
        }
        let wanted = format!("would become other files, even with --shared: {end}");
        refused(&mounted, &["fileset", "restore", &monday], &wanted);
        mounted.holdfast(&["unmount", &second]);
    }
    mounted.holdfast(&["fileset", "restore", &monday, "--wait"]);
    let stream = mounted.run(&["send", &monday]).stdout;
    fs::write(mounted.work.join("stream"), &stream).expect("there is room");
    let receive = || run_with(&mounted, &["receive", &copy], "stream");
    let done = receive();
    assert!(done.status.success(), "{}", text_of(&done));
    mounted.holdfast(&["mount", &copy, &second, "--shared"]);
    assert_eq!(fs::read(other.0.join("file")).expect("it is there"), b"on monday");
    let told = receive();
    assert!(!told.status.success() && text_of(&told).contains(&end), "{}", text_of(&told));
    mounted.holdfast(&["unmount", &second]);
    mounted.finish();
}
