//! Options of a mount.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use rustix::io::Errno;

use crate::{Mounted, can_mount, errno, write};

#[test]
fn a_read_only_mount_reads_and_refuses_every_change() {
    if !can_mount("a_read_only_mount_reads_and_refuses_every_change") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, b"data");
    mounted.remount(&["-o", "ro"]);
    let rofs = Errno::ROFS.raw_os_error();
    assert_eq!(fs::read(&path).expect("read"), b"data");
    assert_eq!(errno(File::create(mounted.path("new"))), rofs);
    assert_eq!(errno(File::options().write(true).open(&path)), rofs);
    assert_eq!(errno(fs::remove_file(&path)), rofs);
    assert_eq!(errno(fs::rename(&path, mounted.path("moved"))), rofs);
    assert_eq!(errno(fs::create_dir(mounted.path("dir"))), rofs);
    assert_eq!(errno(fs::hard_link(&path, mounted.path("link"))), rofs);
    mounted.finish();
}

/// Goal: what is read through a descriptor with `O_NOATIME` keeps its access time.
#[test]
fn o_noatime_leaves_access_times_alone() {
    if !can_mount("o_noatime_leaves_access_times_alone") {
        return;
    }
    let mounted = Mounted::new();
    let (path, directory) = (mounted.path("file"), mounted.path("directory"));
    write(&path, b"data");
    fs::create_dir(&directory).expect("mkdir");
    for (flags, is_renewed) in [(libc::O_NOATIME, false), (0, true)] {
        // So that the kernel has nothing of what is read.
        mounted.remount(&[]);
        let atimes =
            || [&path, &directory].map(|path| fs::metadata(path).expect("stat").atime_nsec());
        let before = atimes();
        let mut options = File::options();
        let mut file = options.read(true).custom_flags(flags).open(&path).expect("open");
        file.read_to_end(&mut Vec::new()).expect("read");
        let listed =
            options.custom_flags(flags | libc::O_DIRECTORY).open(&directory).expect("open");
        let names = rustix::fs::Dir::new(listed).expect("it is a directory");
        assert_eq!(names.count(), 2);
        let after = atimes();
        assert_eq!([0, 1].map(|at| before[at] != after[at]), [is_renewed; 2]);
    }
    mounted.finish();
}

/// Goal: reading renews the access time as relatime has it, and with noatime it does not.
#[test]
fn noatime_leaves_access_times_alone() {
    if !can_mount("noatime_leaves_access_times_alone") {
        return;
    }
    let mounted = Mounted::new();
    let path = mounted.path("file");
    write(&path, b"data");
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    let times = fs::FileTimes::new().set_accessed(old);
    for (option, is_renewed) in [("noatime", false), ("atime", true)] {
        mounted.remount(&["-o", option]);
        let file = File::options().read(true).write(true).open(&path).expect("open");
        file.set_times(times).expect("utimes");
        drop(file);
        // So that the kernel has neither the data nor the attributes.
        mounted.remount(&["-o", option]);
        fs::read(&path).expect("read");
        mounted.remount(&["-o", option]);
        let atime = fs::metadata(&path).expect("stat").atime();
        assert_eq!(atime != 1000, is_renewed, "{option}: {atime}");
    }
    mounted.finish();
}
