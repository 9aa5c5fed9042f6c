//! A journal on devices of its own, as its user learns what became of them.

use std::fs::{self, File};

use serde_json::Value;

use crate::several::{refused, status};
use crate::{Mounted, can_mount, write};

const FILE_BYTES: usize = 300_000;
const DEVICE_BYTES: u64 = 64 << 20;

/// Writes a file, and has it durable when this returns.
fn write_through(mounted: &Mounted, name: &str, byte: u8) {
    write(&mounted.path(name), &[byte; FILE_BYTES]);
    let file = File::open(mounted.path(name)).expect("it is there");
    file.sync_all().expect("the pool goes on");
}

fn warnings(mounted: &Mounted) -> String {
    let facts = status(mounted, &mounted.text("mnt"));
    let list = facts["pool"]["warnings"].as_array().expect("a list");
    list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; ")
}

/// Goal: when the last device of a journal apart fails the pool goes on, `status` warns and says
/// where the journal is; the devices that come back are of the pool no more and have their labels
/// yet, so `--force` gives the journal to them again, and the warning ends. Nothing that was synced
/// is lost, by a crash neither. Method: one device fails by hand, then the file of the other is cut
/// and made as long again.
#[test]
fn a_journal_that_has_lost_its_last_device_gets_devices_again_by_force() {
    if !can_mount("a_journal_that_has_lost_its_last_device_gets_devices_again_by_force") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, other, one, two] = ["m0", "m1", "j0", "j1"].map(|name| mounted.text(name));
    let (directory, journal) = (mounted.text("mnt"), format!("mirror:{one},{two}=journal"));
    let groups = ["--group", &format!("mirror:{first},{other}"), "--group", &journal];
    mounted.holdfast(&[&["create", "--size", "64M"], &groups[..]].concat());
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    write_through(&mounted, "before", 1);
    mounted.holdfast(&["device", "fail", &directory, &one]);
    refused(&mounted, &["device", "fail", &directory, &two], &two);
    assert!(warnings(&mounted).contains("degraded"), "{}", warnings(&mounted));

    let device = File::options().write(true).open(&two).expect("it is there");
    device.set_len(DEVICE_BYTES / 2).expect("it is ours");
    write_through(&mounted, "lost", 2);
    let said = format!("the journal was on {one}, {two}, and the last of these has failed");
    assert!(warnings(&mounted).contains(&said), "{}", warnings(&mounted));
    assert!(!warnings(&mounted).contains("degraded"), "{}", warnings(&mounted));
    let list = mounted.run(&["group", "list", &directory]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("data,metadata,journal") && list.lines().count() == 2, "{list}");

    device.set_len(DEVICE_BYTES).expect("it is ours");
    refused(&mounted, &["device", "online", &directory, &two], "is no member of the pool any more");
    let add = ["group", "add", &directory, &journal];
    refused(&mounted, &add, "`group add --force` overwrites what is there");
    assert!(warnings(&mounted).contains(&said), "{}", warnings(&mounted));
    mounted.holdfast(&[&add[..], &["--force"]].concat());
    assert_eq!(warnings(&mounted), "");
    write_through(&mounted, "again", 3);
    let pid = status(&mounted, &directory)["server"]["pid"].as_i64().expect("a number");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).expect("it is short"));
    let pid = pid.expect("it runs");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    mounted.run(&["unmount", &directory]);
    mounted.holdfast(&["mount", &other, &directory, "--daemon"]);
    for (name, byte) in [("before", 1), ("lost", 2), ("again", 3)] {
        let content = fs::read(mounted.path(name)).expect("it is there");
        assert!(content == [byte; FILE_BYTES], "{name}");
    }
    let shown = mounted.run(&["status", &directory]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("mirror (journal)"), "{shown}");
    mounted.unmount();
    mounted.holdfast(&["check", &two]);
}
