//! Goal: a pool is mounted once, by whatever names its device is known. Two servers that write to
//! one pool lose all of it.

use std::fs;
use std::process::Command;

use crate::{Mounted, can_mount, write};

/// A loop device, detached with it.
struct Loop(String);

impl Loop {
    /// Returns `None`, loudly, where there is none to be had.
    fn new(file: &str) -> Option<Loop> {
        let output = Command::new("losetup").args(["-f", "--show", file]).output();
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
