//! Several devices in one command, and a failed one whose spare is waited for.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::several::{refused, status};
use crate::{Mounted, can_mount, write};

/// Returns what a command that must be done says.
#[track_caller]
fn done(mounted: &Mounted, arguments: &[&str]) -> String {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}");
    text
}

/// Returns the facts that a command tells, which must fail.
#[track_caller]
fn failed_facts(mounted: &Mounted, arguments: &[&str]) -> Vec<Value> {
    let output = mounted.run(arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{arguments:?}: {text}");
    text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

/// Makes a pool with one disk group on new files of 64 MiB, mounted; returns their paths.
fn pool_of(mounted: &Mounted, kind: &str, names: &[&str]) -> Vec<String> {
    mounted.unmount();
    let paths: Vec<String> = names.iter().map(|name| mounted.text(name)).collect();
    let group = format!("{kind}:{}", paths.join(","));
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &paths[0], &mounted.text("mnt"), "--daemon"]);
    paths
}

/// Goal: commands take several devices; what one of them refuses leaves those before it done and
/// the rest untouched, and that is said of each, for people and for programs. A device that is
/// named twice, by whatever names, changes nothing.
#[test]
fn a_command_takes_several_devices_and_says_what_became_of_each() {
    if !can_mount("a_command_takes_several_devices_and_says_what_became_of_each") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_of(&mounted, "mirror", &["m0", "m1", "m2"]);
    let directory = mounted.text("mnt");
    write(&mounted.path("file"), &[7; 300_000]);
    let [s0, s1, s2, small] = ["s0", "s1", "s2", "small"].map(|name| mounted.text(name));
    let list = |names: &[&str]| done(&mounted, &[&["device", "list", &directory], names].concat());

    // Named twice: by one path, by another that leads there, by path and slot.
    let add = ["device", "add", &directory];
    let spares = |names: &[&str]| -> Vec<String> {
        add.iter().chain(names).chain(&["--spare"]).map(|&word| word.to_owned()).collect()
    };
    let roundabout = mounted.text("mnt/../s0");
    for twice in [[&s0, &s1, &s0], [&s0, &s1, &roundabout]] {
        let arguments = spares(&twice.map(String::as_str));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        refused(&mounted, &arguments, "nothing was done; name each device once");
        assert!(!Path::new(&s0).exists() && !Path::new(&s1).exists());
    }
    refused(&mounted, &["device", "fail", &directory, &paths[1], "1"], "are one device: nothing");
    refused(&mounted, &["device", "fail", &directory, "1", "9"], "no device 9");
    assert_eq!(list(&[]).matches("online").count(), 3, "{}", list(&[]));

    // The second of three is too small.
    File::create(&small).and_then(|file| file.set_len(8 << 20)).expect("there is room");
    let arguments = spares(&[&s0, &small, &s1]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let words = format!("done: {s0}; not done: {small}; not tried: {s1}: {small}: ");
    refused(&mounted, &arguments, &words);
    assert!(!Path::new(&s1).exists(), "it was not tried");
    let arguments = spares(&[&s1, &small, &s2]);
    let arguments: Vec<&str> =
        ["--json"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let facts = failed_facts(&mounted, &arguments);
    assert_eq!(facts[0]["added"], s1.as_str(), "{facts:?}");
    assert_eq!(facts[1]["done"], serde_json::json!([s1]), "{facts:?}");
    assert_eq!(facts[1]["not_done"], small.as_str(), "{facts:?}");
    assert_eq!(facts[1]["not_tried"], serde_json::json!([s2]), "{facts:?}");
    assert!(facts[2]["error"].as_str().is_some_and(|words| words.contains("larger")), "{facts:?}");
    let some = list(&[&s1, "0"]);
    assert_eq!(some.lines().count(), 2, "{some}");
    assert!(some.contains(&s1) && some.contains(&paths[0]), "{some}");

    // Spares go, two members are left behind and come back; of three, two can be taken out.
    done(&mounted, &["device", "remove", &directory, &s1, &s0]);
    assert!(!list(&[]).contains("spare"), "{}", list(&[]));
    let fail = ["device", "fail", &directory, &paths[1], &paths[2], &paths[0]];
    let words = format!("done: {}, {}; not done: {}: ", paths[1], paths[2], paths[0]);
    refused(&mounted, &fail, &words);
    write(&mounted.path("after"), &[8; 300_000]);
    // What was sent to them before they were left behind may still be on its way.
    let online = ["device", "online", &directory, &paths[2], "1", "--wait"];
    let begun = Instant::now();
    let is_late = || {
        let output = mounted.run(&online);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || text.contains("are not answered"), "{text}");
        !output.status.success()
    };
    while is_late() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not come back");
        std::thread::park_timeout(Duration::from_millis(50));
    }
    assert_eq!(list(&[]).matches("online").count(), 3, "{}", list(&[]));
    let remove = ["device", "remove", &directory, "0", &paths[1]];
    refused(&mounted, &remove, &format!("done: 0; not done: {}: ", paths[1]));
    mounted.unmount();
    for name in ["m0", "m1"] {
        fs::remove_file(mounted.text(name)).expect("nobody has it");
    }
    mounted.holdfast(&["mount", &paths[2], &directory, "--daemon"]);
    assert!(fs::read(mounted.path("file")).expect("it is there") == [7; 300_000]);
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}

/// Goal: `device fail --wait` returns when a spare has all, one device after the other; where a
/// spare is missing for one of them nothing is done.
#[test]
fn who_fails_a_device_waits_for_its_spare() {
    if !can_mount("who_fails_a_device_waits_for_its_spare") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_of(&mounted, "raid5", &["r0", "r1", "r2"]);
    let directory = mounted.text("mnt");
    for name in 0..20_u8 {
        write(&mounted.path(&format!("f{name}")), &vec![name; 1_000_000]);
    }
    let [s0, s1] = ["s0", "s1"].map(|name| mounted.text(name));
    let fail = ["device", "fail", &directory, &paths[0], &paths[1], "--wait"];
    refused(&mounted, &fail, &format!("could take the place of {}", paths[0]));
    done(&mounted, &["device", "add", &directory, &s0, "--spare"]);
    refused(&mounted, &fail, &format!("could take the place of {}", paths[1]));
    let health = || status(&mounted, &directory)["pool"]["health"].clone();
    assert_eq!(health(), "ok", "nothing was done");
    done(&mounted, &["device", "add", &directory, &s1, "--spare"]);
    let said = done(&mounted, &fail);
    for spare in [&s0, &s1] {
        assert!(said.contains(&format!("{spare}, a spare, stands for it, and has all")), "{said}");
    }
    assert!(said.contains("made anew, in bytes"), "it tells how far it is: {said}");
    assert_eq!(health(), "ok");
    mounted.unmount();
    for gone in &paths[..2] {
        fs::remove_file(gone).expect("nobody has it");
    }
    mounted.holdfast(&["check", &paths[2]]);
    // Any one can be lost again.
    fs::remove_file(&paths[2]).expect("nobody has it");
    mounted.holdfast(&["mount", &s0, &directory, "--daemon"]);
    for name in 0..20_u8 {
        let found = fs::read(mounted.path(&format!("f{name}"))).expect("it is there");
        assert!(found == vec![name; 1_000_000], "file {name}");
    }
    mounted.unmount();
}
