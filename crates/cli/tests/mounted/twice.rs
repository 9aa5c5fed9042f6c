//! Goal: a pool is mounted once, by whatever names its device is known. Two servers that write to
//! one pool lose all of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

use format::heartbeat::{HEARTBEAT_OFFSET, Heartbeat};
use format::ids::PoolId;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Mounted, can_mount, errno, write};

/// A loop device, detached with it.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// Returns `None`, loudly, where there is none to be had.
    pub(crate) fn new(file: &str) -> Option<Loop> {
        Loop::with(&[file])
    }

    pub(crate) fn with(arguments: &[&str]) -> Option<Loop> {
        let output = Command::new("losetup").args(["-f", "--show"]).args(arguments).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("\n*** SKIPPED: a loop device: losetup does not work here ***\n");
            return None;
        };
        Some(Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Each of `asked` is refused, because the pool is in use.
#[track_caller]
fn refused(mounted: &Mounted, asked: &[&[&str]]) {
    for arguments in asked {
        let output = mounted.run(arguments);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains("in use"), "{arguments:?}: {told}");
    }
}

/// Goal: a pool file that is mounted is not used through a loop device, and the other way round.
/// Method: a name that the kernel keeps whole, and one that it cuts off.
#[test]
fn a_pool_is_not_mounted_through_its_file_and_a_loop_device_at_once() {
    if !can_mount("a_pool_is_not_mounted_through_its_file_and_a_loop_device_at_once") {
        return;
    }
    let mounted = Mounted::new();
    let other = mounted.text("other");
    fs::create_dir_all(&other).expect("it is ours");
    let (pool, long) = (mounted.text("pool.hf"), mounted.text(&"long".repeat(30)));
    fs::hard_link(&pool, &long).expect("both are ours");
    write(&mounted.path("file"), b"data");
    let Some(first) = Loop::new(&pool) else { return };
    let Some(second) = Loop::new(&long) else { return };
    let mount_first: &[&str] = &["mount", &first.0, &other, "--daemon"];
    let mount_second: &[&str] = &["mount", &second.0, &other, "--daemon"];
    let read_only: &[&str] = &["mount", &first.0, &other, "--daemon", "-o", "ro"];
    let create: &[&str] = &["create", &first.0, "--force"];
    refused(&mounted, &[mount_first, mount_second, read_only, create, &["check", &first.0]]);
    mounted.unmount();

    mounted.holdfast(&["mount", &first.0, &mounted.text("mnt"), "--daemon"]);
    refused(&mounted, &[mount_second, &["mount", &long, &other, "--daemon"]]);
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.unmount();
    drop((first, second));
    mounted.mount(&[]);
    mounted.finish();
}

/// Kills the server of the mount, and takes the directory back.
fn kill(mounted: &Mounted) {
    let output = mounted.run(&["status", &mounted.text("mnt"), "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, pid) = text.split_once(r#""pid":"#).expect("the server has a process");
    let pid: String = pid.chars().take_while(char::is_ascii_digit).collect();
    let pid = Pid::from_raw(pid.parse().expect("a number")).expect("no server has 0");
    kill_process(pid, Signal::KILL).expect("it is ours");
}

/// Goal: what no lock sees the heartbeat tells: a process of this machine that has the pool through
/// another device is found, and once it was killed nobody waits. Method: a loop device that shows a
/// part of its file stands for itself; this part is all of it.
#[test]
fn a_pool_is_not_mounted_twice_where_no_lock_sees_it() {
    if !can_mount("a_pool_is_not_mounted_twice_where_no_lock_sees_it") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    mounted.unmount();
    let (pool, directory, other) =
        (mounted.text("pool.hf"), mounted.text("mnt"), mounted.text("other"));
    fs::create_dir_all(&other).expect("it is ours");
    let Some(first) = Loop::with(&["--sizelimit", "268435456", &pool]) else { return };
    let Some(second) = Loop::with(&["--sizelimit", "268435456", &pool]) else { return };
    mounted.holdfast(&["mount", &first.0, &directory, "--daemon"]);
    let mount_second: &[&str] = &["mount", &second.0, &other, "--daemon"];
    let forced: &[&str] = &["mount", &second.0, &other, "--daemon", "--force"];
    refused(&mounted, &[mount_second, forced, &["create", &second.0, "--force"]]);
    kill(&mounted);
    let asked = Instant::now();
    mounted.holdfast(&["mount", &second.0, &directory, "--daemon"]);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.unmount();
    drop((first, second));
    mounted.mount(&[]);
    mounted.finish();
}

/// Writes the heartbeat in a pool's file as another machine would, `count` further on.
fn beat_elsewhere(file: &File, count: u64) {
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, HEARTBEAT_OFFSET).expect("it is there");
    let pool_id = PoolId(*bytes[16..].first_chunk().expect("a page has more"));
    let mut found = Heartbeat::decode(&bytes, pool_id).expect("the pool has one");
    found.holder.boot_id = [7; 16];
    found.holder.machine_name[..6].copy_from_slice(b"alpha\0");
    found.counter += count;
    file.write_all_at(&found.encode(), HEARTBEAT_OFFSET).expect("it is ours");
}

/// Goal: a pool that another machine has is not mounted; one that it had is when it has not moved
/// for two intervals, or at once if that is forced. And who loses his pool writes no more.
#[test]
fn the_pool_of_another_machine_is_left_alone_while_that_lives() {
    if !can_mount("the_pool_of_another_machine_is_left_alone_while_that_lives") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    File::open(mounted.path("file")).expect("open").sync_all().expect("all is well");
    let file = File::options().read(true).write(true).open(mounted.text("pool.hf"));
    let file = file.expect("it is ours");
    let (pool, directory) = (mounted.text("pool.hf"), mounted.text("mnt"));
    let mount = ["mount", &pool, &directory, "--daemon"];
    kill(&mounted);

    beat_elsewhere(&file, 0);
    let output = std::thread::scope(|scope| {
        let asked = scope.spawn(|| mounted.run(&mount));
        while !asked.is_finished() {
            std::thread::park_timeout(Duration::from_secs(1));
            beat_elsewhere(&file, 1);
        }
        asked.join().expect("it ends")
    });
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("in use by process") && told.contains("\"alpha\""), "{told}");

    let asked = Instant::now();
    mounted.holdfast(&mount);
    assert!(asked.elapsed() >= Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    kill(&mounted);
    beat_elsewhere(&file, 0);
    let asked = Instant::now();
    mounted.holdfast(&[&mount[..], &["--force"]].concat());
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());

    beat_elsewhere(&file, 0);
    let asked = Instant::now();
    let read_only = Errno::ROFS.raw_os_error();
    while let Ok(file) = File::create(mounted.path("new")) {
        drop(file);
        assert!(asked.elapsed() < Duration::from_secs(30), "it does not look");
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(errno(File::create(mounted.path("new"))), read_only);
    let output = mounted.run(&["status", &directory, "--json"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("the pool was taken by process"), "{told}");
    mounted.run(&["unmount", &directory]);
    mounted.mount(&["--force"]);
    mounted.finish();
}
