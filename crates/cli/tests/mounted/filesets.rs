//! Filesets of one pool, each mounted by its name.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use engine::{NewFileset, Pool, PoolOpenOptions};
use runtime::clock::SystemClock;
use storage::device::{DeviceAccess, FileDevice, FileOptions};

use crate::{Mounted, can_mount, write};

/// Goal: a mount shows the fileset that it names, and no other; without a name the first.
#[test]
fn a_mount_shows_the_fileset_that_it_names() {
    if !can_mount("a_mount_shows_the_fileset_that_it_names") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("of-root"), b"root");
    mounted.unmount();
    let options = FileOptions { access: DeviceAccess::ReadWrite, ..FileOptions::default() };
    let device = FileDevice::open(&mounted.work.join("pool.hf"), options).expect("it is there");
    let pool = Pool::open(device, Arc::new(SystemClock::new()), PoolOpenOptions::default());
    let pool = pool.expect("it is whole");
    let name = "a".parse().expect("it is a name");
    pool.fileset_admin().create_fileset(&name, &NewFileset::default()).expect("there is room");
    pool.close().expect("the device is there");
    drop(pool);

    let mount = |name: &str| {
        let named = format!("{}:{name}", mounted.text("pool.hf"));
        mounted.run(&["mount", &named, &mounted.text("mnt"), "--daemon"])
    };
    assert!(mount("a").status.success());
    assert!(!mounted.path("of-root").exists());
    write(&mounted.path("of-a"), b"a");
    mounted.unmount();
    assert!(mount("root").status.success());
    assert_eq!(fs::read(mounted.path("of-root")).expect("it is there"), b"root");
    assert!(!mounted.path("of-a").exists());
    mounted.unmount();
    for (name, words) in [
        ("b", "there is no fileset b: `holdfast fileset list"),
        ("a/", "a part of the name is empty"),
        ("a@monday", "there is no snapshot a@monday: `holdfast snapshot list"),
    ] {
        let refused = mount(name);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(words), "{said}");
    }
    mounted.mount(&[]);
    assert!(mounted.path("of-root").exists());
    mounted.finish();
}

/// Returns what a command printed, and whether it succeeded.
fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Goal: every command of filesets does the same on a mounted pool and on one that is not, and what
/// is refused is told with what to do. Method: the same commands, once by the server, once without.
#[test]
fn filesets_are_made_changed_and_deleted_mounted_or_not() {
    if !can_mount("filesets_are_made_changed_and_deleted_mounted_or_not") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    for is_mounted in [true, false] {
        if !is_mounted {
            mounted.unmount();
        }
        let does = |words: &str| {
            let words = words.replace("POOL", &pool);
            let (is_done, text) = told(&mounted, &words.split(' ').collect::<Vec<_>>());
            assert!(is_done, "{words}: {text}");
            text
        };
        let refuses = |words: &str, why: &str| {
            let words = words.replace("POOL", &pool);
            let (is_done, text) = told(&mounted, &words.split(' ').collect::<Vec<_>>());
            assert!(!is_done && text.contains(why), "{words}: {text}");
        };
        does("fileset create POOL:a");
        does("fileset create POOL:a/b block=64K readonly=on");
        refuses("fileset create POOL:a/b", "there is a fileset a/b already");
        refuses("fileset create POOL:x/y", "there is no fileset x: `holdfast fileset list");
        refuses("fileset create POOL:c block=5K", "a power of two");
        refuses("fileset create POOL:c colour=red", "no such property");
        refuses("fileset create POOL", "name a fileset as POOL:a/b");
        let list = does("fileset list POOL --json");
        let of_b = list.lines().find(|line| line.contains("\"a/b\"")).expect("it is listed");
        let of_b: serde_json::Value = serde_json::from_str(of_b).expect("one object a line");
        assert_eq!(of_b["block_bytes"], 65_536);
        assert_eq!(of_b["is_read_only"], true);
        does("fileset set POOL:a/b readonly=off");
        assert!(!does("fileset list POOL").contains("read-only"));
        does("fileset rename POOL:a/b POOL:a/c");
        refuses("fileset rename POOL:a POOL:a/c/d", "below itself");
        refuses("fileset rename POOL:root POOL:r", "keeps its name");
        refuses("fileset delete POOL:a", "these are below it: a/c");
        // What is refused deletes nothing, and snapshots are deleted one behind the other.
        does("fileset create POOL:a/c/d");
        for snapshot in 1..=4 {
            does(&format!("snapshot create POOL:a@c{snapshot}"));
        }
        refuses("fileset delete POOL:a --recursive", ":a has snapshots: a@c1, a@c2, a@c3, a@c4");
        let listed = |words: &str| does(words).lines().filter(|it| !it.is_empty()).count();
        assert_eq!(listed("fileset list POOL:a"), 4);
        assert_eq!(listed("fileset list POOL:a/c"), 3);
        refuses("fileset list POOL:nothere", "there is no fileset nothere");
        refuses("snapshot list POOL:nothere", "there is no fileset nothere");
        for snapshot in 1..=4 {
            does(&format!("snapshot delete POOL:a@c{snapshot}"));
        }
        refuses("fileset delete POOL:root", "first fileset of the pool");
        let deleted = does("fileset delete POOL:a --recursive --wait");
        assert!(deleted.contains(":a/c is deleted") && deleted.contains(":a is deleted"));
        assert_eq!(does("fileset list POOL").lines().count(), 2);
        refuses("job pause POOL 7", if is_mounted { "there is no job 7" } else { "mount it" });
    }
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: snapshots of one fileset that are deleted at once are all deleted: each command waits for
/// its turn. Method: twelve commands, and in each snapshot something that it alone holds.
#[test]
fn snapshots_that_are_deleted_at_once_wait_for_each_other() {
    if !can_mount("snapshots_that_are_deleted_at_once_wait_for_each_other") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    let snapshots: Vec<String> = (0..12).map(|number| format!("{pool}:root@c{number}")).collect();
    for snapshot in &snapshots {
        write(&mounted.path("f"), &[7; 1 << 20]);
        mounted.holdfast(&["snapshot", "create", snapshot]);
    }
    std::thread::scope(|scope| {
        for snapshot in &snapshots {
            let mounted = &mounted;
            scope.spawn(move || {
                let (is_done, text) = told(mounted, &["snapshot", "delete", snapshot]);
                assert!(is_done, "{snapshot}: {text}");
            });
        }
    });
    let (_, left) = told(&mounted, &["snapshot", "list", &pool]);
    assert!(!left.contains("@c"), "{left}");
    mounted.finish();
}

/// Goal: a mount point stands for its fileset, a directory in it does not, and `status` says which
/// fileset a mount has.
#[test]
fn a_mount_point_stands_for_its_fileset() {
    if !can_mount("a_mount_point_stands_for_its_fileset") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, directory) = (mounted.text("pool.hf"), mounted.text("mnt"));
    let named = |name: &str| format!("{pool}:{name}");
    mounted.holdfast(&["fileset", "create", &named("a")]);
    mounted.unmount();
    mounted.holdfast(&["mount", &named("a"), &directory, "--daemon"]);
    fs::create_dir(mounted.path("below")).expect("it can be written");
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(status.starts_with("pool:a on ") && status.contains(&pool), "{status}");
    let below = mounted.text("mnt/below");
    assert!(!told(&mounted, &["fileset", "set", &below, "readonly=on"]).0);
    mounted.holdfast(&["snapshot", "create", &format!("{directory}@x")]);
    write(&mounted.path("since"), b"x");
    for from in [named("a@x"), format!("{directory}@x")] {
        let (is_done, text) = told(&mounted, &["diff", &from, &directory]);
        assert!(is_done && text.contains("created   since"), "{text}");
    }
    mounted.holdfast(&["snapshot", "delete", &format!("{directory}@x")]);
    mounted.holdfast(&["fileset", "set", &directory, "readonly=on"]);
    assert!(fs::write(mounted.path("file"), b"x").is_err(), "it is read-only");
    mounted.holdfast(&["fileset", "set", &directory, "readonly=off"]);
    write(&mounted.path("file"), b"x");
    let (is_done, text) = told(&mounted, &["explain", &mounted.text("mnt/file")]);
    assert!(is_done && text.contains("a (fileset:") && text.contains("file"), "{text}");
    let (is_done, text) = told(&mounted, &["fileset", "delete", &directory]);
    assert!(!is_done && text.contains("`holdfast unmount "), "{text}");
    mounted.holdfast(&["fileset", "rename", &directory, &named("b")]);
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(status.starts_with("pool:b on "), "{status}");
    mounted.unmount();
    let explains = |pool: &str| told(&mounted, &["explain", "--pool", pool, "/file"]);
    let (is_done, text) = explains(&named("b"));
    assert!(is_done && text.contains("b (fileset:"), "{text}");
    let (is_done, text) = explains(&named("c"));
    assert!(!is_done && text.contains("there is no fileset c"), "{text}");
    assert!(!explains(&pool).0, "the first fileset has no such file");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: a snapshot is taken of a mounted fileset and of one that is not, is listed, shown by a
/// mount of its own, read-only, stays what the fileset was, and is deleted.
#[test]
fn snapshots_are_taken_mounted_and_deleted() {
    if !can_mount("snapshots_are_taken_mounted_and_deleted") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    write(&mounted.path("file"), b"on monday");
    let monday = format!("{pool}:root@monday");
    let (is_done, said) = told(&mounted, &["snapshot", "create", &monday]);
    assert!(is_done && said.contains("root@monday is taken"), "{said}");
    let (is_done, said) = told(&mounted, &["snapshot", "create", &monday]);
    assert!(!is_done && said.contains("root@monday already: choose another name"), "{said}");
    write(&mounted.path("file"), b"on tuesday, longer");
    fs::write(mounted.path("new"), b"new").expect("there is room");
    mounted.unmount();
    let tuesday = format!("{pool}:root@tuesday");
    let (is_done, said) = told(&mounted, &["snapshot", "create", &tuesday]);
    assert!(is_done, "{said}");
    let (is_done, said) = told(&mounted, &["snapshot", "list", &pool]);
    assert!(is_done && said.contains("root@monday") && said.contains("root@tuesday"), "{said}");
    let (is_done, said) = told(&mounted, &["fileset", "list", &pool]);
    assert!(is_done && !said.contains('@'), "{said}");
    let (is_done, said) = told(&mounted, &["fileset", "delete", &monday]);
    assert!(!is_done && said.contains("a snapshot is no fileset"), "{said}");
    let (is_done, said) = told(&mounted, &["snapshot", "create", &format!("{pool}:root")]);
    assert!(!is_done && said.contains("name a snapshot as POOL:a/b@monday"), "{said}");
    for (snapshot, content, has_new) in
        [(&monday, &b"on monday"[..], false), (&tuesday, b"on tuesday, longer", true)]
    {
        let mount = ["mount", snapshot, &mounted.text("mnt"), "--daemon"];
        let (is_done, said) = told(&mounted, &mount);
        assert!(is_done, "{said}");
        assert_eq!(fs::read(mounted.path("file")).expect("it is there"), content);
        assert_eq!(mounted.path("new").exists(), has_new);
        let refused = fs::write(mounted.path("file"), b"x").expect_err("a snapshot is read-only");
        assert_eq!(refused.raw_os_error(), Some(30));
        mounted.unmount();
    }
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on tuesday, longer");
    let (is_done, said) = told(&mounted, &["snapshot", "delete", &monday, "--wait"]);
    assert!(is_done && said.contains("root@monday is deleted"), "{said}");
    let (is_done, said) = told(&mounted, &["snapshot", "delete", &monday]);
    assert!(!is_done && said.contains("there is no snapshot root@monday"), "{said}");
    write(&mounted.path("file"), b"later");
    let (is_done, said) = told(&mounted, &["snapshot", "delete", &tuesday]);
    assert!(is_done, "{said}");
    let (is_done, said) = told(&mounted, &["snapshot", "list", &pool]);
    assert!(is_done && !said.contains('@'), "{said}");
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"later");
    mounted.finish();
}

/// Goal: commands of earlier versions end with 2, say what they are called now, and change nothing.
#[test]
fn old_words_change_nothing() {
    if !can_mount("old_words_change_nothing") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    let (monday, trial) = (format!("{pool}:root@monday"), format!("{pool}:trial"));
    let list = || {
        told(&mounted, &["fileset", "list", &pool]).1
            + &told(&mounted, &["snapshot", "list", &pool]).1
    };
    let before = list();
    let refused = |arguments: &[&str], words: &str| {
        let output = mounted.run(arguments);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    refused(&["clone", "create", &monday], &format!("holdfast snapshot create {monday}"));
    assert_eq!(list(), before);
    mounted.holdfast(&["snapshot", "create", &monday]);
    let before = list();
    refused(&["clone", "delete", &monday], "holdfast snapshot delete");
    refused(&["clone", "list", &pool, "--json"], "holdfast snapshot list");
    refused(&["fileset", "fork", &monday, &trial], "holdfast clone create");
    refused(&["import", "/etc", &pool, "--path", "/etc"], "holdfast copy-in /etc");
    refused(&["export-tree", &pool, &mounted.text("out.tar")], "holdfast copy-out");
    refused(&["clone", "create", &trial], "holdfast snapshot create");
    assert_eq!(list(), before);
    assert!(!mounted.path("etc").exists() && !Path::new(&mounted.text("out.tar")).exists());
    mounted.finish();
}

/// Goal: clones, restores, promotions, holds and `.snapshots` through the program, on a mounted
/// pool and on one that nobody serves.
#[test]
fn clones_and_restores_begin_as_their_snapshot_is() {
    if !can_mount("clones_and_restores_begin_as_their_snapshot_is") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    write(&mounted.path("file"), b"on monday");
    let monday = format!("{pool}:root@monday");
    let done = |arguments: &[&str], words: &str| {
        let (is_done, said) = told(&mounted, arguments);
        assert!(is_done && said.contains(words), "{arguments:?}: {said}");
    };
    let refused = |arguments: &[&str], words: &str| {
        let (is_done, said) = told(&mounted, arguments);
        assert!(!is_done && said.contains(words), "{arguments:?}: {said}");
    };
    done(&["snapshot", "create", &monday], "root@monday is taken");
    write(&mounted.path("file"), b"on tuesday");
    assert!(
        !fs::read_dir(mounted.path("."))
            .expect("a directory")
            .flatten()
            .any(|entry| { entry.file_name() == ".snapshots" })
    );
    let inside = mounted.path(".snapshots/monday/file");
    assert_eq!(fs::read(&inside).expect("it is reached"), b"on monday");
    let error = fs::write(&inside, b"x").expect_err("a snapshot is read-only");
    assert_eq!(error.raw_os_error(), Some(30));
    // copy_file_range(2), as cp and this have it.
    let copied = fs::copy(&inside, mounted.path("copied")).expect("it may be copied out");
    assert_eq!(copied, 9);
    assert_eq!(fs::read(mounted.path("copied")).expect("it is there"), b"on monday");
    let error = fs::hard_link(&inside, mounted.path("linked")).expect_err("it is another fileset");
    assert_eq!(error.raw_os_error(), Some(18));
    assert_eq!(fs::read_link(mounted.path(".clones")).expect("a link"), Path::new(".snapshots"));
    let by_old_name = fs::read(mounted.path(".clones/monday/file")).expect("it leads there");
    assert_eq!(by_old_name, b"on monday");
    let error = fs::create_dir(mounted.path(".snapshots")).expect_err("the name is taken");
    assert_eq!(error.raw_os_error(), Some(17));
    assert!(!mounted.path(".snapshots/wednesday").exists());
    done(&["snapshot", "create", &format!("{pool}:root@wednesday")], "is taken");
    assert!(mounted.path(".snapshots/wednesday/file").exists(), "the kernel remembers no absence");
    let trial = format!("{pool}:trial");
    done(&["clone", "create", &monday, &trial], "trial is made, and begins as root@monday is");
    refused(&["fileset", "restore", &monday], "even with --shared: `holdfast unmount");
    mounted.unmount();
    done(&["snapshot", "hold", &monday, "backup"], "is held by backup");
    done(&["snapshot", "list", &pool], "held by backup");
    done(&["fileset", "restore", &monday, "--wait"], "root is restored to root@monday");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on monday");
    write(&mounted.path("file"), b"again");
    mounted.unmount();
    done(&["mount", &trial, &mounted.text("mnt"), "--daemon"], "");
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on monday");
    mounted.unmount();
    refused(&["snapshot", "delete", &monday], "backup");
    done(&["snapshot", "release", &monday, "backup"], "no longer has backup");
    refused(&["snapshot", "delete", &monday], "trial");
    done(&["fileset", "promote", &trial], "trial@monday");
    done(&["snapshot", "create", "--recursive", &format!("{pool}:root@all")], "root@all is taken");
    refused(&["fileset", "delete", &trial], "trial@monday");
    mounted.mount(&[]);
    mounted.finish();
}
