//! A device that changes under a mount.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::{Mounted, can_mount, errno, write};

/// Goal: once the file of a pool has lost its end nothing is acknowledged any more, the pool says
/// why and what to do, and so does whoever opens it afterwards.
#[test]
fn a_pool_that_lost_its_end_acknowledges_nothing_more() {
    if !can_mount("a_pool_that_lost_its_end_acknowledges_nothing_more") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("before"), &vec![5; 20 << 20]);
    File::open(mounted.path("before")).expect("open").sync_all().expect("all is well");
    let pool = mounted.text("pool.hf");
    let cut = File::options().write(true).open(&pool).expect("it is there");
    let mut file = File::create(mounted.path("new")).expect("only in memory");
    file.write_all(b"new").expect("only in memory");
    cut.set_len(4 << 20).expect("it is ours");

    let (io, read_only) = (Errno::IO.raw_os_error(), Errno::ROFS.raw_os_error());
    // The sync finds it, or the background work just before.
    assert!([io, read_only].contains(&errno(file.sync_all())));
    assert_eq!(errno(file.sync_all()), read_only);
    assert_eq!(errno(File::create(mounted.path("later"))), read_only);
    drop(file);
    let advice = format!("truncate -s 268435456 {pool}");
    let told = |arguments: &[&str]| {
        let output = mounted.run(arguments);
        let text = [output.stdout, output.stderr].concat();
        assert!(String::from_utf8_lossy(&text).contains(&advice), "{arguments:?}: {text:?}");
    };
    told(&["status", &mounted.text("mnt"), "--json"]);
    mounted.run(&["unmount", &mounted.text("mnt")]);
    cut.set_len(4 << 20).expect("it is ours");
    told(&["check", &pool]);
    assert_eq!(fs::metadata(&pool).expect("stat").len(), 4 << 20, "left as it was");
}

/// Goal: a pool that nobody writes to says that its file was cut, whether or not a read met the end
/// that is missing, and though it is as long again. Method: the file is cut, `status` asked until it
/// says so, and the file made as long again before the last of it is asked for.
#[test]
fn an_idle_pool_says_that_it_has_lost_its_end() {
    if !can_mount("an_idle_pool_says_that_it_has_lost_its_end") {
        return;
    }
    for options in [&[][..], &["-o", "ro"]] {
        let mounted = Mounted::new();
        mounted.remount(options);
        let pool = mounted.text("pool.hf");
        let status = || {
            let output = mounted.run(&["status", &mounted.text("mnt"), "--json"]);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(status().contains(r#""health":"ok""#), "{options:?}: {}", status());
        let file = File::options().write(true).open(&pool).expect("it is there");
        file.set_len(200 << 20).expect("it is ours");
        let asked = Instant::now();
        while status().contains(r#""health":"ok""#) {
            assert!(asked.elapsed() < Duration::from_secs(30), "{options:?}: nobody looks");
            std::thread::yield_now();
        }
        file.set_len(256 << 20).expect("it is ours");
        assert!(status().contains("it became shorter than 268435456 bytes"), "{}", status());
        mounted.run(&["unmount", &mounted.text("mnt")]);
    }
}

/// A loop device that takes no writes, detached with it.
struct ReadOnlyLoop(String);

impl ReadOnlyLoop {
    /// Returns `None`, loudly, where there is none to be had.
    fn new(file: &str) -> Option<ReadOnlyLoop> {
        let output = Command::new("losetup").args(["-r", "-f", "--show", file]).output();
        let Some(output) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("\n*** SKIPPED: a read-only device: losetup -r does not work here ***\n");
            return None;
        };
        Some(ReadOnlyLoop(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }
}

impl Drop for ReadOnlyLoop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// Goal: who makes or mounts a pool on a device that takes no writes is told so, and of a log that
/// has to be replayed; a closed pool can be read there. Method: the image of a pool is taken while
/// it is mounted, and again when it is not.
#[test]
fn a_read_only_device_is_told_as_such() {
    if !can_mount("a_read_only_device_is_told_as_such") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    File::open(mounted.path("file")).expect("open").sync_all().expect("all is well");
    let (image, directory) = (mounted.text("image"), mounted.text("mnt"));
    fs::copy(mounted.text("pool.hf"), &image).expect("there is room");
    mounted.unmount();
    let told = |arguments: &[&str], expected: &str| {
        let output = mounted.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(expected), "{arguments:?}: {text}");
    };
    let Some(device) = ReadOnlyLoop::new(&image) else { return };
    told(&["create", &device.0, "--force"], "the device is read-only; make it writable");
    told(&["mount", &device.0, &directory, "--daemon"], "the device is read-only; make it");
    let read_only = ["mount", &device.0, &directory, "--daemon", "-o", "ro"];
    told(&read_only, "its log must be replayed");
    drop(device);
    let Some(device) = ReadOnlyLoop::new(&mounted.text("pool.hf")) else { return };
    mounted.holdfast(&["mount", &device.0, &directory, "--daemon", "-o", "ro"]);
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.finish();
}
