//! Handles, as an NFS server of the kernel keeps them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use crate::calls::{handle_of, open_handle};
use crate::{Mounted, can_mount, errno, write};

/// Goal: handles of files and directories mean the same after a restart, and never another file.
#[test]
fn handles_outlive_a_remount_and_never_name_another_file() {
    if !can_mount("handles_outlive_a_remount_and_never_name_another_file") {
        return;
    }
    let mounted = Mounted::new();
    fs::create_dir_all(mounted.path("a/b")).expect("mkdir");
    write(&mounted.path("a/b/file"), b"data");
    write(&mounted.path("gone"), b"");
    let names = ["a/b/file", "a/b", "a", "", "gone"];
    let handles = names.map(|name| handle_of(&mounted.path(name)).expect("name_to_handle_at"));
    let inos = names.map(|name| fs::metadata(mounted.path(name)).expect("stat").ino());
    for is_remounted in [false, true] {
        if is_remounted {
            fs::remove_file(mounted.path("gone")).expect("unlink");
            // Takes the number, most likely, and another generation.
            write(&mounted.path("new"), b"other");
            mounted.remount(&[]);
        }
        let root = File::open(mounted.root()).expect("open");
        for (index, name) in names.into_iter().enumerate().take(4) {
            let opened = open_handle(&root, &handles[index], libc::O_RDONLY);
            let mut opened = opened.unwrap_or_else(|e| panic!("{name} {is_remounted}: {e}"));
            assert_eq!(opened.metadata().expect("stat").ino(), inos[index], "{name}");
            if index == 0 {
                let mut text = String::new();
                opened.read_to_string(&mut text).expect("read");
                assert_eq!(text, "data");
            }
        }
        let gone = open_handle(&root, &handles[4], libc::O_RDONLY);
        if is_remounted {
            assert_eq!(errno(gone), libc::ESTALE);
        } else {
            gone.expect("it is still there");
        }
    }
    mounted.finish();
}
