//! A device that changes under a mount.

use std::fs::{self, File};
use std::io::Write;

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
    cut.set_len(4 << 20).expect("it is ours");

    let mut file = File::create(mounted.path("new")).expect("only in memory");
    file.write_all(b"new").expect("only in memory");
    let (io, read_only) = (Errno::IO.raw_os_error(), Errno::ROFS.raw_os_error());
    assert_eq!(errno(file.sync_all()), io);
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
