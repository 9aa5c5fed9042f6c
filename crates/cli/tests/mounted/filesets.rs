//! Filesets of one pool, each mounted by its name.

use std::fs;
use std::sync::Arc;

use engine::{NewFileset, OpenOptions, Pool};
use runtime::clock::SystemClock;
use storage::device::{Access, FileDevice, FileOptions};

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
    let options = FileOptions { access: Access::ReadWrite, ..FileOptions::default() };
    let device = FileDevice::open(&mounted.work.join("pool.hf"), options).expect("it is there");
    let pool = Pool::open(device, Arc::new(SystemClock::new()), OpenOptions::default());
    let pool = pool.expect("it is whole");
    let name = "a".parse().expect("it is a name");
    pool.create_fileset(&name, &NewFileset::default()).expect("there is room");
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
        ("b", "there is no fileset b: check the name"),
        ("a/", "a part of the name is empty"),
        ("a@monday", "there is no fileset a@monday"),
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
        // What is refused deletes nothing, and clones are deleted one behind the other.
        does("fileset create POOL:a/c/d");
        for clone in 1..=4 {
            does(&format!("clone create POOL:a@c{clone}"));
        }
        refuses("fileset delete POOL:a --recursive", ":a has clones: a@c1, a@c2, a@c3, a@c4");
        let listed = |words: &str| does(words).lines().filter(|it| !it.is_empty()).count();
        assert_eq!(listed("fileset list POOL:a"), 3);
        assert_eq!(listed("fileset list POOL:a/c"), 2);
        refuses("fileset list POOL:nothere", "there is no fileset nothere");
        refuses("clone list POOL:nothere", "there is no fileset nothere");
        for clone in 1..=4 {
            does(&format!("clone delete POOL:a@c{clone}"));
        }
        refuses("fileset delete POOL:root", "first fileset of the pool");
        let deleted = does("fileset delete POOL:a --recursive --wait");
        assert!(deleted.contains(":a/c is deleted") && deleted.contains(":a is deleted"));
        assert_eq!(does("fileset list POOL").lines().count(), 1);
        refuses("job pause POOL 7", if is_mounted { "there is no job 7" } else { "mount it" });
    }
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: clones of one fileset that are deleted at once are all deleted: each command waits for its
/// turn. Method: twelve commands, and in each clone something that it alone holds.
#[test]
fn clones_that_are_deleted_at_once_wait_for_each_other() {
    if !can_mount("clones_that_are_deleted_at_once_wait_for_each_other") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    let clones: Vec<String> = (0..12).map(|number| format!("{pool}:root@c{number}")).collect();
    for clone in &clones {
        write(&mounted.path("f"), &[7; 1 << 20]);
        mounted.holdfast(&["clone", "create", clone]);
    }
    std::thread::scope(|scope| {
        for clone in &clones {
            let mounted = &mounted;
            scope.spawn(move || {
                let (is_done, text) = told(mounted, &["clone", "delete", clone]);
                assert!(is_done, "{clone}: {text}");
            });
        }
    });
    let (_, left) = told(&mounted, &["clone", "list", &pool]);
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
    assert!(status.starts_with(&format!("{pool}:a on ")), "{status}");
    let below = mounted.text("mnt/below");
    assert!(!told(&mounted, &["fileset", "set", &below, "readonly=on"]).0);
    mounted.holdfast(&["clone", "create", &format!("{directory}@x")]);
    write(&mounted.path("since"), b"x");
    for from in [named("a@x"), format!("{directory}@x")] {
        let (is_done, text) = told(&mounted, &["diff", &from, &directory]);
        assert!(is_done && text.contains("created   since"), "{text}");
    }
    mounted.holdfast(&["clone", "delete", &format!("{directory}@x")]);
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
    assert!(status.starts_with(&format!("{pool}:b on ")), "{status}");
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

/// Goal: a clone is taken of a mounted fileset and of one that is not, is listed, shown by a mount
/// of its own, read-only, stays what the fileset was, and is deleted.
#[test]
fn clones_are_taken_mounted_and_deleted() {
    if !can_mount("clones_are_taken_mounted_and_deleted") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    write(&mounted.path("file"), b"on monday");
    let monday = format!("{pool}:root@monday");
    let (is_done, said) = told(&mounted, &["clone", "create", &monday]);
    assert!(is_done && said.contains("root@monday is taken"), "{said}");
    let (is_done, said) = told(&mounted, &["clone", "create", &monday]);
    assert!(!is_done && said.contains("root@monday already: choose another name"), "{said}");
    write(&mounted.path("file"), b"on tuesday, longer");
    fs::write(mounted.path("new"), b"new").expect("there is room");
    mounted.unmount();
    let tuesday = format!("{pool}:root@tuesday");
    let (is_done, said) = told(&mounted, &["clone", "create", &tuesday]);
    assert!(is_done, "{said}");
    let (is_done, said) = told(&mounted, &["clone", "list", &pool]);
    assert!(is_done && said.contains("root@monday") && said.contains("root@tuesday"), "{said}");
    let (is_done, said) = told(&mounted, &["fileset", "list", &pool]);
    assert!(is_done && !said.contains('@'), "{said}");
    let (is_done, said) = told(&mounted, &["fileset", "delete", &monday]);
    assert!(!is_done && said.contains("a clone is no fileset"), "{said}");
    let (is_done, said) = told(&mounted, &["clone", "create", &format!("{pool}:root")]);
    assert!(!is_done && said.contains("name a clone as POOL:a/b@monday"), "{said}");
    for (clone, content, has_new) in
        [(&monday, &b"on monday"[..], false), (&tuesday, b"on tuesday, longer", true)]
    {
        let mount = ["mount", clone, &mounted.text("mnt"), "--daemon"];
        let (is_done, said) = told(&mounted, &mount);
        assert!(is_done, "{said}");
        assert_eq!(fs::read(mounted.path("file")).expect("it is there"), content);
        assert_eq!(mounted.path("new").exists(), has_new);
        let refused = fs::write(mounted.path("file"), b"x").expect_err("a clone is read-only");
        assert_eq!(refused.raw_os_error(), Some(30));
        mounted.unmount();
    }
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on tuesday, longer");
    let (is_done, said) = told(&mounted, &["clone", "delete", &monday, "--wait"]);
    assert!(is_done && said.contains("root@monday is deleted"), "{said}");
    let (is_done, said) = told(&mounted, &["clone", "delete", &monday]);
    assert!(!is_done && said.contains("there is no fileset root@monday"), "{said}");
    write(&mounted.path("file"), b"later");
    let (is_done, said) = told(&mounted, &["clone", "delete", &tuesday]);
    assert!(is_done, "{said}");
    let (is_done, said) = told(&mounted, &["clone", "list", &pool]);
    assert!(is_done && !said.contains('@'), "{said}");
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"later");
    mounted.finish();
}

/// Goal: forks, restores, promotions, holds and `.clones` through the program, on a mounted pool
/// and on one that nobody serves.
#[test]
fn forks_and_restores_begin_as_their_clone_is() {
    if !can_mount("forks_and_restores_begin_as_their_clone_is") {
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
    done(&["clone", "create", &monday], "root@monday is taken");
    write(&mounted.path("file"), b"on tuesday");
    assert!(
        !fs::read_dir(mounted.path("."))
            .expect("a directory")
            .flatten()
            .any(|entry| { entry.file_name() == ".clones" })
    );
    let inside = mounted.path(".clones/monday/file");
    assert_eq!(fs::read(&inside).expect("it is reached"), b"on monday");
    let error = fs::write(&inside, b"x").expect_err("a clone is read-only");
    assert_eq!(error.raw_os_error(), Some(30));
    // copy_file_range(2), as cp and this have it.
    let copied = fs::copy(&inside, mounted.path("copied")).expect("it may be copied out");
    assert_eq!(copied, 9);
    assert_eq!(fs::read(mounted.path("copied")).expect("it is there"), b"on monday");
    let error = fs::hard_link(&inside, mounted.path("linked")).expect_err("it is another fileset");
    assert_eq!(error.raw_os_error(), Some(18));
    let error = fs::create_dir(mounted.path(".clones")).expect_err("the name is taken");
    assert_eq!(error.raw_os_error(), Some(17));
    assert!(!mounted.path(".clones/wednesday").exists());
    done(&["clone", "create", &format!("{pool}:root@wednesday")], "is taken");
    assert!(mounted.path(".clones/wednesday/file").exists(), "the kernel remembers no absence");
    let trial = format!("{pool}:trial");
    done(&["fileset", "fork", &monday, &trial], "trial is made, and begins as root@monday is");
    refused(&["fileset", "restore", &monday], "with --shared too: `holdfast unmount");
    mounted.unmount();
    done(&["clone", "hold", &monday, "backup"], "is held by backup");
    done(&["clone", "list", &pool], "held by backup");
    done(&["fileset", "restore", &monday, "--wait"], "root is what root@monday is");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on monday");
    write(&mounted.path("file"), b"again");
    mounted.unmount();
    done(&["mount", &trial, &mounted.text("mnt"), "--daemon"], "");
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), b"on monday");
    mounted.unmount();
    refused(&["clone", "delete", &monday], "backup");
    done(&["clone", "release", &monday, "backup"], "no longer has backup");
    refused(&["clone", "delete", &monday], "trial");
    done(&["fileset", "promote", &trial], "trial@monday");
    done(&["clone", "create", "--recursive", &format!("{pool}:root@all")], "root@all is taken");
    refused(&["fileset", "delete", &trial], "trial@monday");
    mounted.mount(&[]);
    mounted.finish();
}
