//! Devices that are attached to a mirror and removed from it, as their user sees them.

use std::fs;
use std::path::Path;

use crate::several::status;
use crate::{Mounted, can_mount, write};

/// Runs `holdfast`; returns whether it did what it was asked, and what it said.
pub(crate) fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Goal: a mounted mirror gets a device and loses others, down to one, and each time is what
/// `status` and `device list` say; what takes the redundancy must be said.
#[test]
fn a_mounted_mirror_gets_a_device_and_loses_others() {
    if !can_mount("a_mounted_mirror_gets_a_device_and_loses_others") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, third] = ["m0", "m1", "m2"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let group = format!("mirror:{first},{second}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    write(&mounted.path("before"), &[7; 300_000]);

    let (is_added, refusal) = told(&mounted, &["device", "add", &directory, &third]);
    assert!(!is_added && refusal.contains("--mirror OLD"), "{refusal}");
    let add = ["device", "add", &directory, &third, "--mirror"];
    let (is_added, refusal) = told(&mounted, &[&add[..], &["9"]].concat());
    assert!(!is_added && refusal.contains("no device 9"), "{refusal}");
    assert!(!Path::new(&third).exists(), "what was refused leaves nothing behind");
    let (is_added, refusal) = told(&mounted, &[&add[..], &["0", "--size", "32M"]].concat());
    assert!(!is_added && refusal.contains("give a larger device"), "{refusal}");
    assert!(!Path::new(&third).exists(), "what was refused leaves nothing behind");
    mounted.holdfast(&[&add[..], &[&first, "--wait"]].concat());
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    assert_eq!(list.matches("online").count(), 3, "{list}");
    let (is_added, refusal) = told(&mounted, &[&add[..], &["0"]].concat());
    assert!(!is_added && refusal.contains("it is open here already"), "{refusal}");

    let (_, said) = told(&mounted, &["device", "remove", &directory, &first]);
    assert!(said.contains("a mirror of 2"), "{said}");
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    let slots: Vec<_> = list.lines().map(|row| row.split_whitespace().nth(1)).collect();
    assert!(!list.contains(&first) && slots == [Some("SLOT"), Some("1"), Some("2")], "{list}");
    let (is_pool, _) = told(&mounted, &["check", &first]);
    assert!(!is_pool, "its label is off");
    fs::remove_file(&first).expect("nobody has it");
    write(&mounted.path("after"), &[8; 300_000]);
    mounted.unmount();

    mounted.holdfast(&["mount", &third, &directory, "--daemon"]);
    let (is_gone, refusal) = told(&mounted, &["device", "remove", &directory, "1"]);
    assert!(!is_gone && refusal.contains("--accept-no-redundancy"), "{refusal}");
    // Where nobody looks for it.
    fs::create_dir(mounted.text("away")).expect("the name is new");
    let aside = mounted.text("away/m1");
    fs::rename(&second, &aside).expect("it is ours");
    mounted.unmount();
    mounted.holdfast(&["mount", &third, &directory, "--daemon"]);
    assert_eq!(status(&mounted, &directory)["pool"]["health"], "degraded");
    let (is_gone, refusal) =
        told(&mounted, &["device", "remove", &directory, "2", "--accept-no-redundancy"]);
    assert!(!is_gone && refusal.contains("slot 1 is missing"), "{refusal}");
    mounted.holdfast(&["device", "remove", &directory, "1", "--accept-no-redundancy"]);
    let told_status = status(&mounted, &directory);
    assert_eq!(told_status["pool"]["health"], "ok", "{told_status}");
    assert_eq!(told_status["pool"]["layout"], "single", "{told_status}");
    mounted.unmount();
    let (is_opened, refusal) = told(&mounted, &["check", &third, "--member", &aside]);
    assert!(!is_opened && refusal.contains("no member of the pool any more"), "{refusal}");

    // A pool that is not mounted is opened for it, and what is there is overwritten by force alone.
    let again = ["device", "add", &third, &aside, "--mirror", "2"];
    let (is_added, refusal) = told(&mounted, &again);
    assert!(!is_added && refusal.contains("--force"), "{refusal}");
    mounted.holdfast(&[&again[..], &["--force"]].concat());
    fs::remove_file(&third).expect("nobody has it");
    mounted.holdfast(&["mount", &aside, &directory, "--daemon"]);
    assert!(fs::read(mounted.path("before")).expect("it is there") == [7; 300_000]);
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}

/// Goal: a mounted raid5 gets a device more and has more room then, and any one can be lost.
#[test]
fn a_mounted_raid5_gets_a_device() {
    if !can_mount("a_mounted_raid5_gets_a_device") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, third, new] = ["r0", "r1", "r2", "r3"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let group = format!("raid5:{first},{second},{third}");
    mounted.holdfast(&["create", "--group", &group, "--size", "300M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    for name in 0..40_u8 {
        write(&mounted.path(&format!("f{name}")), &vec![name; 1_000_000]);
    }
    let room =
        |mounted: &Mounted| status(mounted, &directory)["pool"]["space"]["total_bytes"].clone();
    let before = room(&mounted);
    let add = ["device", "add", &directory, &new];
    let (is_added, refusal) = told(&mounted, &[&add[..], &["--raid5", "7"]].concat());
    assert!(!is_added && refusal.contains("no device 7"), "{refusal}");
    let (is_added, refusal) = told(&mounted, &[&add[..], &["--mirror", "0"]].concat());
    assert!(!is_added && refusal.contains("is a raid5"), "{refusal}");
    assert!(!Path::new(&new).exists(), "what was refused leaves nothing behind");
    let (_, said) = told(&mounted, &[&add[..], &["--wait"]].concat());
    assert!(said.contains("a job spreads what there is over it"), "{said}");
    let after = room(&mounted);
    assert!(after.as_u64() > before.as_u64().map(|before| before * 5 / 4), "{before} {after}");
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    assert_eq!(list.matches("online").count(), 4, "{list}");
    write(&mounted.path("after"), &[8; 300_000]);
    mounted.unmount();
    let (is_clean, report) = told(&mounted, &["check", &first]);
    assert!(is_clean, "{report}");
    fs::remove_file(&second).expect("it is ours");
    mounted.holdfast(&["mount", &new, &directory, "--daemon"]);
    for name in 0..40_u8 {
        let found = fs::read(mounted.path(&format!("f{name}"))).expect("it is there");
        assert!(found == vec![name; 1_000_000], "file {name}");
    }
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}

/// Goal: a mounted raid5 with snapshots loses a device, of which nobody has anything then, and has
/// less room; any other can be lost afterwards.
#[test]
fn a_mounted_raid5_loses_a_device() {
    if !can_mount("a_mounted_raid5_loses_a_device") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, third, fourth] = ["r0", "r1", "r2", "r3"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let group = format!("raid5:{first},{second},{third},{fourth}");
    mounted.holdfast(&["create", "--group", &group, "--size", "300M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    for round in ["old", "new"] {
        fs::create_dir(mounted.path(round)).expect("there is room");
        for name in 0..100_u8 {
            write(&mounted.path(&format!("{round}/f{name}")), &vec![name; 3_000_000]);
        }
        mounted.holdfast(&["snapshot", "create", &format!("{directory}:root@{round}")]);
    }
    fs::remove_dir_all(mounted.path("old")).expect("it is there");
    let room =
        |mounted: &Mounted| status(mounted, &directory)["pool"]["space"]["total_bytes"].clone();
    let before = room(&mounted);
    let remove = ["device", "remove", &directory, &second, "--wait"];
    let (is_removed, refusal) = told(&mounted, &remove);
    assert!(!is_removed && refusal.contains("does not fit"), "{refusal}");
    assert_eq!(room(&mounted), before);
    for snapshot in ["old", "new"] {
        let snapshot = format!("{directory}:root@{snapshot}");
        mounted.holdfast(&["snapshot", "delete", &snapshot, "--wait"]);
    }
    mounted.holdfast(&["snapshot", "create", &format!("{directory}:root@now")]);
    let removed = told(&mounted, &remove);
    assert!(removed.0 && removed.1.contains("of no pool any more"), "{}", removed.1);
    let after = room(&mounted);
    assert!(after.as_u64() < before.as_u64().map(|before| before * 3 / 4), "{before} {after}");
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    assert_eq!(list.matches("online").count(), 3, "{list}");
    mounted.holdfast(&["create", &second, "--size", "64M", "--force"]);
    write(&mounted.path("after"), &[8; 300_000]);
    mounted.unmount();
    let (is_clean, report) = told(&mounted, &["check", &first]);
    assert!(is_clean, "{report}");
    fs::remove_file(&fourth).expect("it is ours");
    mounted.holdfast(&["mount", &third, &directory, "--daemon"]);
    for name in 0..100_u8 {
        let found = fs::read(mounted.path(&format!("new/f{name}"))).expect("it is there");
        assert!(found == vec![name; 3_000_000], "file {name}");
    }
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}

/// Goal: a pool of one device becomes a mirror while it is mounted, and then its first device goes;
/// nobody has that open any more, so it can come again at once.
#[test]
fn the_first_device_of_a_mounted_pool_is_exchanged() {
    if !can_mount("the_first_device_of_a_mounted_pool_is_exchanged") {
        return;
    }
    let mounted = Mounted::new();
    let (directory, first, other) =
        (mounted.text("mnt"), mounted.text("pool.hf"), mounted.text("other.hf"));
    write(&mounted.path("before"), &[7; 300_000]);
    mounted.holdfast(&["device", "add", &directory, &other, "--mirror", &first, "--wait"]);
    let told_status = status(&mounted, &directory);
    assert_eq!(told_status["pool"]["layout"], "mirror", "{told_status}");
    write(&mounted.path("after"), &[8; 300_000]);
    let (_, said) =
        told(&mounted, &["device", "remove", &directory, &first, "--accept-no-redundancy"]);
    assert!(said.contains("a single, without redundancy"), "{said}");
    let add = ["device", "add", &directory, &first, "--mirror", &other, "--wait", "--force"];
    mounted.holdfast(&add);
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    assert_eq!(list.matches("online").count(), 2, "{list}");
    mounted.holdfast(&["device", "remove", &directory, &other, "--accept-no-redundancy"]);
    mounted.remount(&[]);
    assert!(fs::read(mounted.path("before")).expect("it is there") == [7; 300_000]);
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.finish();
}

/// Goal: what was taken out of a mounted pool is closed, and comes again in the same mount: a
/// device that was replaced, one that a mirror lost, one that a raid5 lost, and a disk group.
#[test]
fn what_was_taken_out_comes_again_in_the_same_mount() {
    if !can_mount("what_was_taken_out_comes_again_in_the_same_mount") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [m0, m1, m2, r0, r1, r2, r3] =
        ["m0", "m1", "m2", "r0", "r1", "r2", "r3"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let done = |arguments: &[&str]| {
        let (is_done, words) = told(&mounted, arguments);
        assert!(is_done, "{arguments:?}: {words}");
    };
    mounted.holdfast(&["create", "--group", &format!("mirror:{m0},{m1}"), "--size", "300M"]);
    mounted.holdfast(&["mount", &m0, &directory, "--daemon"]);
    write(&mounted.path("before"), &[7; 300_000]);
    let add = |path: &str| {
        done(&["device", "add", &directory, path, "--mirror", "1", "--force", "--wait"])
    };
    done(&["device", "replace", &directory, &m0, &m2, "--wait"]);
    add(&m0);
    done(&["device", "remove", &directory, &m2]);
    add(&m2);

    let raid = format!("raid5:{r0},{r1},{r2}");
    done(&["group", "add", &directory, &raid, "--size", "300M"]);
    let add = ["device", "add", &directory, &r3, "--raid5", &r0, "--force", "--wait"];
    let remove = ["device", "remove", &directory, &r3, "--wait"];
    for arguments in [&add, &remove[..], &add] {
        done(arguments);
    }
    done(&["group", "remove", &directory, "1", "--wait"]);
    done(&["group", "add", &directory, &format!("raid5:{r0},{r1},{r2},{r3}"), "--force"]);
    write(&mounted.path("after"), &[8; 300_000]);
    mounted.unmount();
    mounted.holdfast(&["check", &m2]);
    mounted.holdfast(&["mount", &m0, &directory, "--daemon"]);
    assert!(fs::read(mounted.path("before")).expect("it is there") == [7; 300_000]);
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}
