//! A stripe as a user meets it: made, mounted, explained, and without one of its devices.

use std::fs::{self, File};

use rustix::io::Errno;

use crate::attach::told;
use crate::{Mounted, can_mount, errno, write};

/// Goal: a pool that lacks a device of a stripe says which, is looked at only where the user says
/// so twice, gives an error for what is not there, and is whole again when the device is back.
#[test]
fn a_stripe_without_a_device_shows_what_is_left_and_names_what_is_not() {
    if !can_mount("a_stripe_without_a_device_shows_what_is_left_and_names_what_is_not") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, lost, last] = ["s0", "s1", "s2"].map(|name| mounted.text(name));
    let told = |arguments: &[&str]| told(&mounted, arguments);
    let group = format!("stripe:{first},{lost},{last}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    let directory = mounted.text("mnt");
    mounted.holdfast(&["mount", &last, &directory, "--daemon"]);
    for number in 0..40 {
        write(&mounted.path(&format!("f{number}")), &[b'a' + number % 20; 16_000]);
    }
    let (_, explained) = told(&["explain", &mounted.text("mnt/f3")]);
    assert!(explained.contains("no parity, and no other copy"), "{explained}");
    assert!(explained.contains("second copy on member"), "{explained}");
    mounted.unmount();
    mounted.holdfast(&["check", &first]);
    let (_, status) = told(&["device", "list", &first]);
    assert!(status.contains("s1"), "{status}");

    fs::rename(&lost, mounted.text("elsewhere.gone")).expect("it is ours");
    fs::create_dir(mounted.text("far")).expect("the name is new");
    fs::rename(mounted.text("elsewhere.gone"), mounted.text("far/s1")).expect("it is ours");
    let (is_mounted, refusal) = told(&["mount", &first, &directory, "--daemon"]);
    assert!(!is_mounted && refusal.contains(&lost), "{refusal}");
    let named = ["--member", &last, "--accept-missing"];
    let (is_mounted, refusal) =
        told(&[&["mount", &first, &directory, "--daemon"], &named[..]].concat());
    assert!(!is_mounted && refusal.contains("-o ro"), "{refusal}");
    mounted
        .holdfast(&[&["mount", &first, &directory, "--daemon", "-o", "ro"], &named[..]].concat());
    let mut broken = Vec::new();
    for number in 0..40 {
        let name = format!("f{number}");
        match fs::read(mounted.path(&name)) {
            Ok(bytes) => assert_eq!(bytes, [b'a' + number % 20; 16_000], "{name}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}");
                broken.push(name);
            }
        }
    }
    assert!((5..35).contains(&broken.len()), "{broken:?}");
    assert_eq!(errno(File::create(mounted.path("new"))), Errno::ROFS.raw_os_error());
    let (_, status) = told(&["status", &directory]);
    assert!(status.contains("data is missing with") && status.contains(&lost), "{status}");
    mounted.unmount();
    let (is_clean, report) = told(&["check", &first]);
    assert!(!is_clean, "{report}");
    for name in &broken {
        assert!(report.contains(&format!("/{name}")), "{name} is not named: {report}");
    }

    fs::rename(mounted.text("far/s1"), &lost).expect("it is ours");
    mounted.holdfast(&["mount", &lost, &directory, "--daemon"]);
    for name in broken {
        fs::read(mounted.path(&name)).expect("it is there again");
    }
    write(&mounted.path("new"), b"new");
    mounted.unmount();
    mounted.holdfast(&["check", &last]);
}

/// Goal: a device of a mounted stripe is exchanged for another, in use: one comes, another leaves,
/// and nobody needs that any more. A stripe of two cannot lose one.
#[test]
fn a_device_of_a_mounted_stripe_is_exchanged() {
    if !can_mount("a_device_of_a_mounted_stripe_is_exchanged") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, second, new] = ["s0", "s1", "s2"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let group = format!("stripe:{first},{second}");
    mounted.holdfast(&["create", "--group", &group, "--size", "400M"]);
    mounted.holdfast(&["mount", &second, &directory, "--daemon"]);
    for name in 0..100_u8 {
        write(&mounted.path(&format!("f{name}")), &vec![name; 3_000_000]);
    }
    let remove = ["device", "remove", &directory, &first, "--wait"];
    let (is_removed, refusal) = told(&mounted, &remove);
    assert!(!is_removed && refusal.contains("--stripe"), "{refusal}");
    let replace = ["device", "replace", &directory, &first, &new];
    let (is_replaced, refusal) = told(&mounted, &replace);
    assert!(!is_replaced && refusal.contains("--stripe"), "{refusal}");
    let add = ["device", "add", &directory, &new, "--stripe", &first, "--size", "400M", "--wait"];
    let (is_added, words) = told(&mounted, &add);
    assert!(is_added, "{words}");
    let (is_removed, words) = told(&mounted, &remove);
    assert!(is_removed && words.contains("of no pool any more"), "{words}");
    write(&mounted.path("after"), &[8; 300_000]);
    mounted.unmount();
    fs::remove_file(&first).expect("nobody has it");
    let (is_clean, report) = told(&mounted, &["check", &new]);
    assert!(is_clean, "{report}");
    mounted.holdfast(&["mount", &new, &directory, "--daemon"]);
    for name in 0..100_u8 {
        let found = fs::read(mounted.path(&format!("f{name}"))).expect("it is there");
        assert!(found == vec![name; 3_000_000], "file {name}");
    }
    assert!(fs::read(mounted.path("after")).expect("it is there") == [8; 300_000]);
    mounted.unmount();
}
