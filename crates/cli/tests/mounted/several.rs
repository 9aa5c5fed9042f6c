//! Several mounts of one pool, served by one process.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use front::fuse::mountpoint;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{Mounted, Over, can_mount, write};

/// Detaches a mount that a test that failed has left.
pub(crate) struct Other(pub(crate) PathBuf);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = mountpoint::detach(&self.0);
    }
}

/// Makes a directory to mount on beside the first.
pub(crate) fn other(mounted: &Mounted) -> Other {
    let path = mounted.work.join("other");
    fs::create_dir(&path).expect("the name is new");
    Other(path)
}

fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn status(mounted: &Mounted, directory: &str) -> Value {
    let (is_done, text) = told(mounted, &["status", directory, "--json"]);
    assert!(is_done, "{text}");
    serde_json::from_str(text.lines().next().expect("a line")).expect("it is JSON")
}

pub(crate) fn refused(mounted: &Mounted, arguments: &[&str], words: &str) {
    let (is_done, text) = told(mounted, arguments);
    assert!(!is_done && text.contains(words), "{arguments:?}: {text}");
}

/// Goal: a second fileset of a mounted pool is mounted and served by the same process, alone in its
/// fileset, and each mount goes by itself; the pool is closed with the last.
#[test]
fn mounts_of_one_pool_have_one_server() {
    if !can_mount("mounts_of_one_pool_have_one_server") {
        return;
    }
    let mounted = Mounted::new();
    let other = other(&mounted);
    let (pool, first, second) =
        (mounted.text("pool.hf"), mounted.text("mnt"), mounted.text("other"));
    let named = |name: &str| format!("{pool}:{name}");
    mounted.holdfast(&["fileset", "create", &named("a")]);
    mounted.holdfast(&["snapshot", "create", &named("root@monday")]);
    let (is_done, text) = told(&mounted, &["mount", &named("a"), &second]);
    assert!(is_done && text.contains("serves it"), "{text}");
    write(&mounted.path("of-root"), b"root");
    write(&other.0.join("of-a"), b"a");
    assert!(!other.0.join("of-root").exists() && !mounted.path("of-a").exists());
    let facts = status(&mounted, &first);
    let mounts = facts["server"]["mounts"].as_array().expect("a list");
    let filesets: Vec<_> = mounts.iter().map(|mount| mount["fileset"].as_str()).collect();
    assert_eq!(filesets, [Some("root"), Some("a")]);
    assert_eq!(facts, status_without_counts(&mounted, &second, &facts));
    let (_, text) = told(&mounted, &["status"]);
    assert!(text.contains(&format!("also: pool:a on {second}")), "{text}");
    let (is_done, text) = told(&mounted, &["explain", &mounted.text("other/of-a")]);
    assert!(is_done && text.contains("a (fileset:") && text.contains("of-a"), "{text}");

    let third = mounted.text("third");
    fs::create_dir(&third).expect("the name is new");
    for name in ["a", "root"] {
        refused(&mounted, &["mount", &named(name), &third], "it is mounted on");
    }
    refused(&mounted, &["mount", &named("b"), &third], "there is no fileset b");
    refused(&mounted, &["mount", &named("a"), &third, "--cache", "1G"], "--cache is for the whole");
    refused(&mounted, &["mount", &named("a"), &second], "it is mounted on");
    refused(&mounted, &["mount", &named("b"), &second], "there is no fileset b");
    refused(&mounted, &["fileset", "delete", &named("a")], "is mounted on");
    assert!(fs::read_dir(&third).expect("nothing is mounted there").next().is_none());
    mounted.holdfast(&["mount", &named("root@monday"), &third, "-o", "ro"]);
    assert!(!Path::new(&third).join("of-root").exists());
    assert!(fs::write(Path::new(&third).join("x"), b"x").is_err(), "a snapshot is read-only");
    mounted.holdfast(&["unmount", &third]);

    let (is_done, text) = told(&mounted, &["unmount", &first]);
    assert!(is_done && text.contains("its pool stays open"), "{text}");
    assert_eq!(fs::read(other.0.join("of-a")).expect("it is served"), b"a");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("of-root")).expect("it is there"), b"root");
    mounted.holdfast(&["unmount", &second]);
    // Nobody has it any more.
    mounted.holdfast(&["fileset", "delete", &named("a"), "--wait"]);
    mounted.finish();
}

/// Goal: the files that the kernel of a mount has looked up are freed when they are deleted after
/// that mount, while others keep the pool open: also those of the fileset that the pool was opened
/// with. Method: 64 MiB, looked at, left behind by an unmount, and removed by the next mount; the
/// pool is kept by another mount, and then by a server with an export beside shared mounts.
#[test]
fn what_a_mount_has_looked_up_is_freed_after_it() {
    const FILES: u64 = 4;
    const FILE_BYTES: u64 = 16 << 20;
    if !can_mount("what_a_mount_has_looked_up_is_freed_after_it") {
        return;
    }
    let mounted = Mounted::new();
    let other = other(&mounted);
    let (pool, first) = (mounted.text("pool.hf"), mounted.text("mnt"));
    let a = format!("{pool}:a");
    mounted.holdfast(&["fileset", "create", &a]);
    let free_bytes = || {
        let found = rustix::fs::statvfs(&other.0).expect("it is mounted");
        found.f_bfree * found.f_frsize
    };
    let goes_round = |options: &[&str]| {
        let empty = free_bytes();
        let bytes = vec![7; usize::try_from(FILE_BYTES).expect("it fits")];
        for number in 0..FILES {
            let path = mounted.path(&number.to_string());
            write(&path, &bytes);
            assert!(path.metadata().expect("it is there").len() == FILE_BYTES);
        }
        mounted.unmount();
        mounted.holdfast(&[&["mount", &pool, &first][..], options].concat());
        assert!(free_bytes() < empty - FILES * FILE_BYTES / 2);
        // One is removed while it is open, and goes with its last user.
        let held = File::open(mounted.path("0")).expect("it is there");
        for number in 0..FILES {
            fs::remove_file(mounted.path(&number.to_string())).expect("it is there");
        }
        assert_eq!(held.metadata().expect("it is open").len(), FILE_BYTES);
        drop(held);
        let is_back = || free_bytes() > empty - FILE_BYTES / 2;
        let is_soon_back = (0..600).any(|_| {
            rustix::fs::syncfs(File::open(&other.0).expect("it is mounted")).expect("it syncs");
            std::thread::park_timeout(Duration::from_millis(50));
            is_back()
        });
        assert!(is_soon_back, "{} of {empty} bytes are free", free_bytes());
    };
    mounted.holdfast(&["mount", &a, &mounted.text("other")]);
    goes_round(&[]);
    mounted.unmount();
    mounted.holdfast(&["unmount", &mounted.text("other")]);

    let state = mounted.text("state");
    let serve = ["serve", &pool, "--nfs", "127.0.0.1:0", "--state", &state, "--export", "/:rw"];
    let mut server = Command::new(crate::HOLDFAST)
        .args(serve)
        .env("HOLDFAST_RUN_DIR", &mounted.work)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program can be started");
    crate::first_line(&mut server);
    mounted.holdfast(&["mount", &a, &mounted.text("other")]);
    mounted.holdfast(&["mount", &pool, &first, "--shared"]);
    goes_round(&["--shared"]);
    kill_process(Pid::from_child(&server), Signal::TERM).expect("it is ours");
    assert!(server.wait().expect("it is a child").success());
    mounted.mount(&[]);
    mounted.finish();
}

/// What is counted differs from one question to the next.
fn status_without_counts(mounted: &Mounted, directory: &str, like: &Value) -> Value {
    let mut facts = status(mounted, directory);
    for name in ["pool", "bugs"] {
        facts[name] = like[name].clone();
    }
    facts
}

/// Goal: after a signal each mount is gone and the pool is closed.
#[test]
fn a_signal_takes_every_mount_away() {
    if !can_mount("a_signal_takes_every_mount_away") {
        return;
    }
    let mounted = Mounted::new();
    let other = other(&mounted);
    let a = format!("{}:a", mounted.text("pool.hf"));
    mounted.holdfast(&["fileset", "create", &a]);
    mounted.holdfast(&["mount", &a, &mounted.text("other")]);
    write(&other.0.join("file"), b"kept");
    let pid = pid_of(&mounted);
    kill_process(pid, Signal::TERM).expect("it is ours");
    let is_there = |path: &Path| mountpoint::mounted_on(path).expect("mountinfo").is_some();
    for _ in 0..600 {
        if rustix::process::test_kill_process(pid).is_err() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert!(!is_there(&mounted.root()) && !is_there(&other.0));
    mounted.holdfast(&["check", &mounted.text("pool.hf")]);
    mounted.mount(&[]);
    mounted.finish();
}

pub(crate) fn pid_of(mounted: &Mounted) -> Pid {
    let facts = status(mounted, &mounted.text("mnt"));
    let pid = facts["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    Pid::from_raw(pid.expect("a number")).expect("no server has 0")
}

/// Writes files and syncs them until it is told to stop; returns how many are durable.
fn load(directory: &Path, is_over: &AtomicBool, durable: &AtomicUsize) {
    for number in 0..10_000 {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let synced = File::create(directory.join(number.to_string())).and_then(|mut file| {
            file.write_all(number.to_string().repeat(1000).as_bytes())?;
            file.sync_all()
        });
        if synced.is_err() {
            return;
        }
        durable.store(number + 1, Ordering::Release);
    }
}

/// Goal: a server that is killed with two mounts under load loses nothing that was synced in
/// either, both are taken back, and the pool is whole.
#[test]
fn two_mounts_survive_the_death_of_their_server() {
    if !can_mount("two_mounts_survive_the_death_of_their_server") {
        return;
    }
    let mounted = Mounted::new();
    let other = other(&mounted);
    let a = format!("{}:a", mounted.text("pool.hf"));
    mounted.holdfast(&["fileset", "create", &a]);
    mounted.holdfast(&["mount", &a, &mounted.text("other")]);
    let pid = pid_of(&mounted);
    let (is_over, counts) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 2]);
    let directories = [mounted.root(), other.0.clone()];
    std::thread::scope(|scope| {
        for (directory, count) in directories.iter().zip(&counts) {
            scope.spawn(|| load(directory, &is_over, count));
        }
        let begun = std::time::Instant::now();
        let is_enough = || counts.iter().all(|count| count.load(Ordering::Acquire) >= 20);
        while !is_enough() && begun.elapsed() < Duration::from_secs(30) {
            std::thread::park_timeout(Duration::from_millis(10));
        }
        kill_process(pid, Signal::KILL).expect("it is ours");
        is_over.store(true, Ordering::Release);
    });
    let (is_done, text) = told(&mounted, &["unmount", &mounted.text("other")]);
    assert!(is_done, "{text}");
    // The first is detached by whoever mounts there.
    mounted.mount(&[]);
    mounted.holdfast(&["mount", &a, &mounted.text("other")]);
    for (directory, count) in directories.iter().zip(&counts) {
        let count = count.load(Ordering::Acquire);
        assert!(count >= 20, "{} wrote {count}", directory.display());
        for number in 0..count {
            let bytes = fs::read(directory.join(number.to_string())).expect("it was synced");
            assert_eq!(bytes, number.to_string().repeat(1000).as_bytes(), "{number}");
        }
    }
    mounted.holdfast(&["unmount", &mounted.text("other")]);
    mounted.finish();
}

/// Goal: `mount --all` mounts what the configuration says, and a second time finds it mounted.
#[test]
fn mount_all_mounts_what_is_configured() {
    if !can_mount("mount_all_mounts_what_is_configured") {
        return;
    }
    let mounted = Mounted::new();
    let other = other(&mounted);
    mounted.holdfast(&["fileset", "create", &format!("{}:a", mounted.text("pool.hf"))]);
    mounted.unmount();
    let text = "[[mount]]\npool = \"pool.hf\"\ndirectory = \"mnt\"\n\
                [[mount]]\npool = \"pool.hf\"\nfileset = \"a\"\ndirectory = \"other\"\n\
                options = \"noexec\"\n";
    fs::write(mounted.work.join("holdfast.toml"), text).expect("it is ours");
    let config = mounted.text("holdfast.toml");
    let all = ["mount", "--all", "--config", &config];
    for words in ["is mounted on", "is mounted already"] {
        let (is_done, text) = told(&mounted, &all);
        assert!(is_done && text.matches(words).count() == 2, "{text}");
    }
    write(&other.0.join("file"), b"a");
    mounted.holdfast(&["unmount", &mounted.text("other")]);
    mounted.finish();
}

/// Goal: a mount without a server tells who asks about which directories, and which requests were
/// slow. Method: one directory is read and another written, for as long as somebody looks.
#[test]
fn a_mount_tells_what_is_asked_by_directory_and_what_was_slow() {
    if !can_mount("a_mount_tells_what_is_asked_by_directory_and_what_was_slow") {
        return;
    }
    let mounted = Mounted::new();
    let mount = mounted.text("mnt");
    for directory in ["wide", "deep", "deep/below"] {
        fs::create_dir(mounted.path(directory)).expect("there is room");
    }
    let json = |arguments: &[&str]| -> Vec<Value> {
        let (is_done, text) = told(&mounted, arguments);
        assert!(is_done, "{arguments:?}: {text}");
        text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
    };
    let is_over = AtomicBool::new(false);
    let write_on = || {
        let mut number = 0;
        while !is_over.load(Ordering::Relaxed) {
            write(&mounted.path(&format!("deep/below/{number}")), b"bytes");
            fs::write(mounted.path("wide/file"), b"bytes").expect("there is room");
            number += 1;
        }
    };
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(write_on);
        let top = json(&["--json", "top", &mount, "--every", "500ms", "--times", "2"]);
        let deeper =
            json(&["--json", "top", &mount, "--every", "500ms", "--times", "1", "--depth", "2"]);
        let none =
            json(&["--json", "top", &mount, "--every", "100ms", "--times", "1", "--depth", "0"]);
        let slow = json(&[
            "--json", "trace", &mount, "--slower", "0ms", "--every", "300ms", "--times", "2",
        ]);
        drop(over);
        let paths = |looks: &[Value]| -> Vec<String> {
            let list = looks.last().map(|look| look["paths"].clone());
            let list = list.and_then(|list| list.as_array().cloned()).unwrap_or_default();
            list.iter().map(|it| it["path"].as_str().unwrap_or("").to_owned()).collect()
        };
        for (looks, directory) in
            [(&top, "deep"), (&top, "wide"), (&deeper, "deep/below"), (&deeper, "wide")]
        {
            let path = format!("{mount}/{directory}");
            assert!(paths(looks).contains(&path), "{directory}: {looks:?}");
        }
        assert_eq!(top.len(), 2);
        assert!(top[0]["clients"][0]["requests_per_second"].as_u64() > Some(0), "{top:?}");
        assert_eq!(none[0]["paths"], Value::Null);
        let path = format!("{mount}/wide/file");
        let is_write = |it: &&Value| it["operation"] == "WRITE" && it["path"] == path.as_str();
        let found = slow.iter().find(is_write).unwrap_or_else(|| panic!("{slow:?}"));
        assert_eq!(
            (&found["front"], &found["client"]),
            (&Value::from("fuse"), &Value::from(mount.as_str()))
        );
        assert_eq!(found["user"], rustix::process::getuid().as_raw());
    });
    let (is_done, text) = told(&mounted, &["trace", &mount, "--slower", "1m", "--times", "1"]);
    assert!(is_done && text.is_empty(), "{text}");
}
