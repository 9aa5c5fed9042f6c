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
        ("a@monday", "clones cannot be mounted by this version"),
    ] {
        let refused = mount(name);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(words), "{said}");
    }
    mounted.mount(&[]);
    assert!(mounted.path("of-root").exists());
    mounted.finish();
}
