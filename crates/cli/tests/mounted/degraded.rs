//! A pool that goes on without a member, as its user learns of it.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::several::{refused, status};
use crate::{Mounted, can_mount, write};

/// Goal: a mirror without one of its devices is no pool that is well: `status` says so, and a check
/// says what it has not looked at, until the device is back.
#[test]
fn a_pool_without_a_member_does_not_call_itself_well() {
    if !can_mount("a_pool_without_a_member_does_not_call_itself_well") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second] = ["m0", "m1"].map(|name| mounted.text(name));
    let aside = mounted.text("aside");
    fs::create_dir(&aside).expect("the name is new");
    let text_of = |arguments: &[&str]| {
        let output = mounted.run(arguments);
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
        String::from_utf8_lossy(&text).into_owned()
    };
    let group = format!("mirror:{first},{second}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    let directory = mounted.text("mnt");
    let health = |mounted: &Mounted| status(mounted, &directory)["pool"]["health"].clone();

    fs::rename(&second, mounted.text("aside/m1")).expect("it is ours");
    let report = text_of(&["check", &first]);
    let note = format!("note: {second} (slot 1) is missing: nothing that only it holds");
    assert!(report.contains(&note) && report.contains(": clean"), "{report}");
    let warned = text_of(&["mount", &first, &directory, "--daemon"]);
    assert!(warned.contains("degraded"), "{warned}");
    write(&mounted.path("new"), b"new");
    assert_eq!(health(&mounted), "degraded");
    let shown = text_of(&["status", &directory]);
    assert!(shown.contains("health: degraded") && shown.contains("is missing"), "{shown}");
    mounted.unmount();

    fs::rename(mounted.text("aside/m1"), &second).expect("it is ours");
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    mounted.holdfast(&["device", "online", &directory, &second, "--wait"]);
    assert_eq!(health(&mounted), "ok");
    mounted.unmount();
    let report = text_of(&["check", &first]);
    assert!(!report.contains("note:"), "{report}");
}

/// Goal: what is told of a device that is away or comes back is never more than the pool uses of
/// it, whatever lies in front of its disk group; and `group list` says which one lacks a device.
/// Method: one of the disk group that has the metadata, and lies behind two others, fails and comes
/// back; all that is told meanwhile is looked at. The same of a device of the journal.
#[test]
fn a_device_that_comes_back_is_told_by_what_it_has() {
    if !can_mount("a_device_that_comes_back_is_told_by_what_it_has") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let text = |name: &str| mounted.text(name);
    let [first, late, journal, directory] = ["d0", "n1", "j1", "mnt"].map(text);
    let raid5 = format!("raid5:{first},{},{}", text("d1"), text("d2"));
    let metadata = format!("mirror:{},{}=metadata,journal", text("m0"), text("m1"));
    mounted.holdfast(&["create", "--group", &raid5, "--group", &metadata, "--size", "64M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    let added = [
        format!("mirror:{},{late}=data,metadata,journal", text("n0")),
        format!("mirror:{},{journal}=journal", text("j0")),
    ];
    for group in added {
        mounted.holdfast(&["group", "add", &directory, &group, "--size", "64M"]);
    }
    let facts_of = |path: &str| {
        let list = mounted.run(&["device", "list", &directory, path, "--json"]);
        let facts: Value = serde_json::from_slice(&list.stdout).expect("one line of JSON");
        let bytes = |name: &str| facts[name].as_u64().expect("a number");
        for name in ["copied_bytes", "missed_bytes"] {
            assert!(bytes(name) <= bytes("pool_bytes"), "{name}: {facts}");
        }
        facts
    };
    for (number, path) in [(2, &late), (3, &journal)] {
        mounted.holdfast(&["device", "fail", &directory, path]);
        write(&mounted.path(&format!("file-{number}")), &vec![7; 8 << 20]);
        assert_eq!(facts_of(path)["state"], "failed");
        let list = mounted.run(&["group", "list", &directory, "--json"]);
        for group in String::from_utf8_lossy(&list.stdout).lines() {
            let group: Value = serde_json::from_str(group).expect("it is JSON");
            let expected = if group["number"] == number { "degraded" } else { "online" };
            assert_eq!(group["state"], expected, "{group}");
        }
        mounted.holdfast(&["device", "online", &directory, path]);
        let asked = Instant::now();
        while facts_of(path)["state"] != "online" {
            assert!(asked.elapsed() < Duration::from_secs(60), "{path} does not come back");
        }
    }
    mounted.unmount();
    mounted.holdfast(&["check", &first]);
}

/// Goal: a device that failed can be rebuilt in its own place, by one command, though it was open
/// and data is being written; without `--force` what it has stays, and it comes back.
#[test]
fn a_device_that_failed_is_replaced_by_itself() {
    if !can_mount("a_device_that_failed_is_replaced_by_itself") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, directory] = ["m0", "m1", "mnt"].map(|name| mounted.text(name));
    let group = format!("mirror:{first},{second}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    let replace = ["device", "replace", &directory, &second, &second];
    let blank = mounted.text("blank");
    fs::File::create(&blank).and_then(|it| it.set_len(64 << 20)).expect("there is room");
    let online = ["device", "online", &directory, &blank];
    refused(&mounted, &online, &format!("{blank}: it has no label of a pool"));
    refused(&mounted, &[&replace[..], &["--force"]].concat(), "it is open here already");
    for asked in [
        &["device", "online", &directory, &second, "--wait"][..],
        &[&replace[..], &["--force", "--wait"]].concat(),
    ] {
        mounted.holdfast(&["device", "fail", &directory, &second]);
        // Nobody syncs it.
        write(&mounted.path("file"), &vec![7; 4 << 20]);
        refused(&mounted, &replace, "`device replace --force` overwrites what is there");
        mounted.holdfast(asked);
        assert_eq!(status(&mounted, &directory)["pool"]["health"], "ok", "{asked:?}");
    }
    mounted.unmount();
    mounted.holdfast(&["check", &second]);
}

/// Goal: halves of a pool that were mounted apart are refused together, and what the refusal tells
/// to do makes one pool of them, with what the half that was kept has. Method: each of a mirror is
/// mounted while the other is elsewhere.
#[test]
fn halves_that_were_mounted_apart_become_one_pool_as_told() {
    if !can_mount("halves_that_were_mounted_apart_become_one_pool_as_told") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, aside, directory] =
        ["m0", "m1", "aside", "mnt"].map(|name| mounted.text(name));
    fs::create_dir(&aside).expect("the name is new");
    let group = format!("mirror:{first},{second}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    for (half, other) in [(&first, &second), (&second, &first)] {
        let away = mounted.text("aside/other");
        fs::rename(other, &away).expect("it is ours");
        mounted.holdfast(&["mount", half, &directory, "--daemon"]);
        write(&mounted.path("half"), half.as_bytes());
        mounted.unmount();
        fs::rename(&away, other).expect("it is ours");
    }
    for asked in [&["mount", &first, &directory, "--daemon"][..], &["check", &second]] {
        refused(&mounted, asked, "were opened apart");
        refused(&mounted, asked, "mount that with --accept-missing");
    }
    mounted.holdfast(&["mount", &second, &directory, "--daemon", "--accept-missing"]);
    mounted.holdfast(&["device", "replace", &directory, &first, &first, "--force", "--wait"]);
    mounted.unmount();
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    assert_eq!(fs::read(mounted.path("half")).expect("it is there"), second.as_bytes());
    assert_eq!(status(&mounted, &directory)["pool"]["health"], "ok");
    mounted.unmount();
    mounted.holdfast(&["check", &second]);
}
