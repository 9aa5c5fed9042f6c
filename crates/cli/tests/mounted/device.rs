//! A device that changes under a mount.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

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
/// that is missing, and though it is as long again. Method: the file is cut, `status` asked until
/// it says so, and again when the file is as long as it was.
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

/// A directory bound to another, read-only; unmounted with it.
struct ReadOnlyPlace(std::path::PathBuf);

impl ReadOnlyPlace {
    fn new(of: &std::path::Path, at: std::path::PathBuf) -> ReadOnlyPlace {
        fs::create_dir(&at).expect("the name is new");
        rustix::mount::mount_bind(of, &at).expect("root may");
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(&at, flags, "").expect("root may");
        ReadOnlyPlace(at)
    }
}

impl Drop for ReadOnlyPlace {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Goal: who mounts a pool whose file is on a read-only file system is told what to do about that
/// file system, and not about a device or a mode; a closed pool can be read there. Method: the
/// image of a pool that was not closed, and the pool, in a directory that is bound read-only.
#[test]
fn a_read_only_file_system_is_told_as_such() {
    if !can_mount("a_read_only_file_system_is_told_as_such") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"data");
    File::open(mounted.path("file")).expect("open").sync_all().expect("all is well");
    let (files, directory) = (mounted.work.join("files"), mounted.text("mnt"));
    fs::create_dir(&files).expect("the name is new");
    fs::copy(mounted.text("pool.hf"), files.join("image")).expect("there is room");
    mounted.unmount();
    fs::copy(mounted.text("pool.hf"), files.join("closed")).expect("there is room");
    let place = ReadOnlyPlace::new(&files, mounted.work.join("bound"));
    let (image, closed) = (mounted.text("bound/image"), mounted.text("bound/closed"));
    for (arguments, expected) in [
        (&["create", &closed, "--force"][..], "the file system that holds it is read-only"),
        (&["mount", &closed, &directory], "the file system that holds it is read-only"),
        (&["mount", &image, &directory], "the file system that holds it is read-only"),
        (&["mount", &image, &directory, "-o", "ro"], "its log must be replayed"),
        (&["mount", &image, &directory, "-o", "ro"], "the file system that holds it is read-only"),
    ] {
        let output = mounted.run(arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("blockdev") && !text.contains("change its mode"), "{text}");
    }
    mounted.holdfast(&["mount", &closed, &directory, "--daemon", "-o", "ro"]);
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.unmount();
    drop(place);
    mounted.mount(&[]);
    mounted.finish();
}

/// Returns whether the server of the mount may write to the pool's file.
fn can_write(mounted: &Mounted) -> bool {
    let output = mounted.run(&["status", &mounted.text("mnt"), "--json"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let (_, pid) = text.split_once(r#""pid":"#).expect("the server has a process");
    let pid: String = pid.chars().take_while(char::is_ascii_digit).collect();
    let pool = mounted.work.join("pool.hf");
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours");
    let of_pool = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|to| to == pool);
    let open = open.map(|entry| entry.expect("it is ours")).find(of_pool).expect("it is open");
    let number = open.file_name().into_string().expect("a number");
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).expect("it is open");
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).expect("proc(5)");
    let flags = i32::from_str_radix(flags.trim(), 8).expect("proc(5)");
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Goal: a read-only mount cannot write to its device, unless its log must be replayed. Method: a
/// closed pool is mounted, and the image of one that was not.
#[test]
fn a_read_only_mount_opens_its_device_for_reading() {
    if !can_mount("a_read_only_mount_opens_its_device_for_reading") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, image, directory) =
        (mounted.text("pool.hf"), mounted.text("image"), mounted.text("mnt"));
    assert!(can_write(&mounted));
    write(&mounted.path("file"), b"data");
    File::open(mounted.path("file")).expect("open").sync_all().expect("all is well");
    fs::copy(&pool, &image).expect("there is room");
    mounted.remount(&["-o", "ro"]);
    assert!(!can_write(&mounted));
    let closed = fs::read(&pool).expect("it is there");
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.holdfast(&["explain", &mounted.text("mnt/file")]);
    let other = mounted.text("other");
    fs::create_dir(&other).expect("it is ours");
    let second = mounted.run(&["mount", &pool, &other, "-o", "ro", "--daemon"]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(told.contains("it is mounted on"), "{told}");
    mounted.unmount();
    assert!(fs::read(&pool).expect("it is there") == closed, "a read-only mount has written");
    fs::rename(&image, &pool).expect("both are ours");
    mounted.mount(&["-o", "ro"]);
    assert!(can_write(&mounted));
    assert_eq!(fs::read(mounted.path("file")).expect("read"), b"data");
    mounted.holdfast(&["unmount", &directory]);
    mounted.mount(&["-o", "ro"]);
    assert!(!can_write(&mounted), "the log was replayed, and the pool closed");
    mounted.finish();
}
