//! Names: special files, the limit of links, permissions of several users.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::calls::become_user;
use crate::{Mounted, can_mount, errno, write};

#[test]
fn devices_fifos_and_sockets_are_what_they_are_elsewhere() {
    if !can_mount("devices_fifos_and_sockets_are_what_they_are_elsewhere") {
        return;
    }
    let mounted = Mounted::new();
    let (null, fifo, socket) = (mounted.path("null"), mounted.path("fifo"), mounted.path("socket"));
    let make = |path, kind, device| mknodat(CWD, path, kind, Mode::from(0o600), device);
    make(&null, FileType::CharacterDevice, makedev(1, 3)).expect("a device node");
    make(&fifo, FileType::Fifo, 0).expect("a fifo");
    let listener = UnixListener::bind(&socket).expect("a socket");
    mounted.remount_while_nothing_is_open(listener);
    assert!(fs::metadata(&null).expect("stat").file_type().is_char_device());
    assert_eq!(fs::metadata(&null).expect("stat").rdev(), makedev(1, 3));
    File::options().write(true).open(&null).expect("open").write_all(b"gone").expect("write");
    assert_eq!(File::open(&null).expect("open").read(&mut [0; 8]).expect("read"), 0);
    thread::scope(|scope| {
        scope.spawn(|| fs::write(&fifo, b"through").expect("write"));
        assert_eq!(fs::read(&fifo).expect("read"), b"through");
    });
    assert!(fs::metadata(&socket).expect("stat").file_type().is_socket());
    fs::remove_file(&socket).expect("unlink");
    let listener = UnixListener::bind(&socket).expect("a socket");
    UnixStream::connect(&socket).expect("connect").write_all(b"hi").expect("write");
    let mut text = String::new();
    listener.accept().expect("accept").0.read_to_string(&mut text).expect("read");
    assert_eq!(text, "hi");
    drop(listener);
    mounted.finish();
}

impl Mounted {
    fn remount_while_nothing_is_open<T>(&self, opened: T) {
        drop(opened);
        self.remount(&[]);
    }
}

#[test]
fn a_file_has_65535_names_and_no_more() {
    if !can_mount("a_file_has_65535_names_and_no_more") {
        return;
    }
    let mounted = Mounted::new();
    let first = mounted.path("file");
    write(&first, b"data");
    for number in 1..65_535 {
        fs::hard_link(&first, mounted.path(&number.to_string())).expect("there is room");
    }
    assert_eq!(fs::metadata(&first).expect("stat").nlink(), 65_535);
    assert_eq!(errno(fs::hard_link(&first, mounted.path("more"))), libc::EMLINK);
    fs::remove_file(mounted.path("77")).expect("unlink");
    fs::hard_link(&first, mounted.path("more")).expect("there is room again");
    assert_eq!(errno(fs::hard_link(&first, mounted.path("77"))), libc::EMLINK);
    mounted.finish();
}

#[test]
fn the_umask_and_setgid_directories_count() {
    if !can_mount("the_umask_and_setgid_directories_count") {
        return;
    }
    let mounted = Mounted::new();
    let directory = mounted.path("shared");
    fs::create_dir(&directory).expect("mkdir");
    rustix::fs::chown(&directory, None, Some(rustix::fs::Gid::from_raw(4711))).expect("chown");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2777)).expect("chmod");
    let status = std::process::Command::new("sh")
        .args(["-c", "umask 027; cd \"$1\" && : >file && mkdir sub", "sh"])
        .arg(&directory)
        .status();
    assert!(status.expect("sh is there").success());
    let of = |name: &str| fs::metadata(directory.join(name)).expect("stat");
    assert_eq!((of("file").mode() & 0o7777, of("file").gid()), (0o640, 4711));
    assert_eq!((of("sub").mode() & 0o7777, of("sub").gid()), (0o2750, 4711));
    mounted.finish();
}

/// Goal: the kernel refuses others what the modes refuse them.
#[test]
fn users_are_held_to_the_permission_bits() {
    if !can_mount("users_are_held_to_the_permission_bits") {
        return;
    }
    let mounted = Mounted::new();
    fs::set_permissions(mounted.root(), fs::Permissions::from_mode(0o1777)).expect("chmod");
    let secret = mounted.path("secret");
    write(&secret, b"data");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o640)).expect("chmod");
    rustix::fs::chown(&secret, None, Some(rustix::fs::Gid::from_raw(4711))).expect("chown");
    let as_user = |groups: &'static [u32]| {
        let (secret, own) = (secret.clone(), mounted.path(&format!("own-{}", groups.len())));
        let all = move || {
            become_user(1234, 1234, groups);
            let read = fs::read(&secret).map_err(|e| e.raw_os_error());
            let written = File::options().write(true).open(&secret).map(drop);
            let removed = fs::remove_file(&secret);
            fs::write(&own, b"own").expect("the directory is open to all");
            assert_eq!(fs::metadata(&own).expect("stat").uid(), 1234);
            (read, errno(written), errno(removed))
        };
        thread::spawn(all).join().expect("the user's thread")
    };
    let denied = Some(libc::EACCES);
    assert_eq!(as_user(&[]), (Err(denied), libc::EACCES, libc::EPERM));
    assert_eq!(as_user(&[4711]), (Ok(b"data".to_vec()), libc::EACCES, libc::EPERM));
    mounted.finish();
}
