//! Which devices a pool is opened with, as its user learns of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use crate::several::refused;
use crate::twice::Loop;
use crate::{HOLDFAST, Mounted, can_mount, write};

/// Makes a pool on new files of 64 MiB below `folder`, with one file in it, unmounted; returns the
/// paths.
fn pool_in(mounted: &Mounted, folder: &str, (kind, count): (&str, usize)) -> Vec<String> {
    mounted.unmount();
    fs::create_dir(mounted.text(folder)).expect("the name is new");
    let paths: Vec<String> =
        (0..count).map(|number| mounted.text(&format!("{folder}/d{number}"))).collect();
    let group = format!("{kind}:{}", paths.join(","));
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &paths[0], &mounted.text("mnt"), "--daemon"]);
    write(&mounted.path("file"), &[7; 100_000]);
    mounted.unmount();
    paths
}

fn online(mounted: &Mounted) -> usize {
    let list = mounted.run(&["device", "list", &mounted.text("mnt")]);
    String::from_utf8_lossy(&list.stdout).matches(" online ").count()
}

/// Goal: a member whose first label has rotted in one byte, or at the front altogether, is a member
/// all the same: with another away, and by its own name.
#[test]
fn a_member_whose_first_label_rotted_is_there() {
    if !can_mount("a_member_whose_first_label_rotted_is_there") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_in(&mounted, "p", ("raid5", 4));
    let directory = mounted.text("mnt");
    let away = mounted.text("away");
    for (rot, gone) in [(1, 3), (1, 0), (4096, 3), (128 << 10, 0)] {
        let file = File::options().write(true).open(&paths[1]).expect("it is there");
        file.write_all_at(&vec![b'X'; rot], 0).expect("it can be written");
        mounted.holdfast(&["check", &paths[1]]);
        mounted.holdfast(&["mount", &paths[0], &directory, "--daemon"]);
        assert_eq!(online(&mounted), 4, "{rot} bytes");
        mounted.unmount();
        file.write_all_at(&vec![b'X'; rot], 0).expect("it can be written");
        fs::rename(&paths[gone], &away).expect("it is ours");
        let first = if gone == 0 { &paths[1] } else { &paths[0] };
        mounted.holdfast(&["mount", first, &directory, "-o", "ro", "--daemon"]);
        assert_eq!(fs::read(mounted.path("file")).expect("it is there"), [7; 100_000]);
        mounted.unmount();
        fs::rename(&away, &paths[gone]).expect("it is ours");
        mounted.holdfast(&["mount", &paths[1], &directory, "--daemon"]);
        let back = ["device", "online", &directory, &paths[gone], "--wait"];
        let _ = mounted.run(&back);
        assert_eq!(online(&mounted), 4, "{rot} bytes");
        mounted.unmount();
    }
}

/// Goal: what is done to a copy of a pool changes no byte of the original, whether that is mounted
/// meanwhile or not; of a copy that lacks a member nothing is taken from the original either.
#[test]
fn a_mounted_copy_of_a_pool_leaves_the_original_alone() {
    if !can_mount("a_mounted_copy_of_a_pool_leaves_the_original_alone") {
        return;
    }
    let mounted = Mounted::new();
    let own = pool_in(&mounted, "p", ("raid5", 3));
    let directory = mounted.text("mnt");
    fs::create_dir(mounted.text("copy")).expect("the name is new");
    let copies: Vec<String> = (0..3).map(|at| mounted.text(&format!("copy/d{at}"))).collect();
    let copy = || {
        for (own, copy) in own.iter().zip(&copies) {
            fs::copy(own, copy).expect("there is room");
        }
    };
    let bytes = || own.iter().map(|path| fs::read(path).expect("it is there")).collect::<Vec<_>>();
    let before = bytes();
    copy();
    for round in 0..2 {
        mounted.holdfast(&["mount", &copies[0], &directory, "--daemon"]);
        let list = mounted.run(&["device", "list", &directory]);
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        assert!(copies.iter().all(|path| list.contains(path.as_str())), "{list}");
        write(&mounted.path(&format!("new-{round}")), &[9; 3_000_000]);
        mounted.unmount();
        assert!(bytes() == before, "the original was written to");
    }
    // Of the copy one is not there: the original has the same member, and is not asked for it.
    copy();
    fs::remove_file(&copies[2]).expect("it is ours");
    for path in [&copies[0], &own[0]] {
        refused(&mounted, &["mount", &copies[0], &directory, "--daemon"], path);
    }
    let meant = ["--member", &copies[0], "--member", &copies[1]];
    mounted.holdfast(&[&["mount", &copies[0], &directory, "--daemon"][..], &meant].concat());
    assert_eq!(online(&mounted), 2);
    write(&mounted.path("alone"), &[9; 100_000]);
    mounted.unmount();
    assert!(bytes() == before, "the original was written to");
    // While the original is mounted.
    copy();
    let other = mounted.text("other");
    fs::create_dir(&other).expect("the name is new");
    mounted.holdfast(&["mount", &own[0], &other, "-o", "ro", "--daemon"]);
    mounted.holdfast(&["mount", &copies[1], &directory, "--daemon"]);
    write(&mounted.path("both"), &[9; 100_000]);
    mounted.unmount();
    mounted.holdfast(&["unmount", &other]);
    assert!(bytes() == before, "the original was written to");
    mounted.holdfast(&["check", &own[0]]);
    mounted.holdfast(&["check", &copies[0]]);
}

/// Goal: of two equal copies of a member in one folder neither is opened, and both are named;
/// `--member` decides.
#[test]
fn of_equal_copies_of_a_member_none_is_opened_unless_it_is_named() {
    if !can_mount("of_equal_copies_of_a_member_none_is_opened_unless_it_is_named") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_in(&mounted, "p", ("mirror", 2));
    let (directory, copy) = (mounted.text("mnt"), mounted.text("p/copy"));
    fs::copy(&paths[1], &copy).expect("there is room");
    let before = fs::read(&copy).expect("it is there");
    let mount = ["mount", &paths[0], &directory, "--daemon"];
    for words in [&paths[1], &copy, "--member"] {
        refused(&mounted, &mount, words);
        refused(&mounted, &["check", &paths[0]], words);
    }
    mounted.holdfast(&[&mount[..], &["--member", &paths[1]]].concat());
    mounted.unmount();
    let output = mounted.run(&mount);
    let told = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && told.contains(&copy), "{told}");
    assert_eq!(online(&mounted), 2);
    mounted.unmount();
    assert!(fs::read(&copy).expect("it is there") == before, "the copy was written to");
}

/// Goal: a device that is gone goes by a relative path, by one through a folder that is a link, by
/// a link to it and by its slot, in `replace` and `remove`, mounted or not.
#[test]
fn a_missing_device_goes_by_every_path_that_led_to_it() {
    if !can_mount("a_missing_device_goes_by_every_path_that_led_to_it") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_in(&mounted, "p", ("mirror", 3));
    let directory = mounted.text("mnt");
    let folder = mounted.text("p");
    std::os::unix::fs::symlink(&folder, mounted.text("link")).expect("the name is new");
    std::os::unix::fs::symlink(&paths[2], mounted.text("by-id")).expect("the name is new");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(HOLDFAST);
        command.args(arguments).env("HOLDFAST_RUN_DIR", &mounted.work).current_dir(&folder);
        let output = command.output().expect("the program can be started");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}");
    };
    for (is_mounted, is_replaced, name) in [
        (true, true, "d2"),
        (true, false, "../link/d2"),
        (false, true, "../by-id"),
        (false, false, "d2"),
        (true, true, "../p/d2"),
        (false, false, "./d2"),
        (true, false, "2"),
    ] {
        fs::remove_file(&paths[2]).expect("it is ours");
        if is_mounted {
            mounted.holdfast(&["mount", &paths[0], &directory, "--daemon"]);
        }
        match is_replaced {
            true => run(&["device", "replace", "d0", name, "new", "--wait"]),
            false => run(&["device", "remove", "d0", name]),
        }
        let back = if is_replaced { "new" } else { "2" };
        if is_replaced {
            run(&["device", "remove", "d0", back]);
        }
        run(&["device", "add", "d0", "d2", "--mirror", "d0", "--wait", "--force"]);
        let _ = fs::remove_file(mounted.text("p/new"));
        if is_mounted {
            assert_eq!(online(&mounted), 3, "{name}");
            mounted.unmount();
        }
    }
}

/// Goal: a device that is a little smaller takes the place of another, unless the pool was made to
/// use all of it. Method: loop devices, the second as long as two pages less.
#[test]
fn a_device_that_is_a_little_smaller_replaces_another() {
    if !can_mount("a_device_that_is_a_little_smaller_replaces_another") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let directory = mounted.text("mnt");
    let file = |name: &str, size_bytes: u64| {
        let path = mounted.text(name);
        File::create(&path).and_then(|file| file.set_len(size_bytes)).expect("there is room");
        path
    };
    let whole = [file("a", 300 << 20), file("b", 300 << 20), file("c", (300 << 20) - 8192)];
    let mut devices = Vec::new();
    for path in &whole {
        let Some(device) = Loop::new(path) else { return };
        devices.push(device);
    }
    let [a, b, c] = [0, 1, 2].map(|at| devices[at].0.as_str());
    let group = format!("mirror:{a},{b}");
    for is_replaced in [true, false] {
        let create = ["create", "--group", &group, "--force", "--use-all"];
        mounted.holdfast(if is_replaced { &create[..4] } else { &create });
        mounted.holdfast(&["mount", a, &directory, "--daemon"]);
        let replace = ["device", "replace", a, b, c, "--wait", "--force"];
        match is_replaced {
            true => mounted.holdfast(&replace),
            false => refused(&mounted, &replace, "larger device"),
        }
        mounted.unmount();
    }
}

/// Goal: of a raid5 that lacks two devices each of the others tells what its label says, and what
/// is left can be mounted where the user says so.
#[test]
fn what_is_left_of_a_raid5_without_two_devices_can_be_looked_at() {
    if !can_mount("what_is_left_of_a_raid5_without_two_devices_can_be_looked_at") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_in(&mounted, "p", ("raid5", 4));
    let directory = mounted.text("mnt");
    let mut mounts = 0;
    for (first, other) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        let aside = |at: usize| mounted.text(&format!("away-{at}"));
        for at in [first, other] {
            fs::rename(&paths[at], aside(at)).expect("it is ours");
        }
        let left: Vec<&String> =
            (0..4).filter(|at| ![first, other].contains(at)).map(|at| &paths[at]).collect();
        refused(&mounted, &["mount", left[0], &directory, "--daemon"], "--accept-missing");
        for path in &left {
            let list = mounted.run(&["device", "list", path]);
            let told = String::from_utf8_lossy(&list.stdout).into_owned();
            assert!(list.status.success(), "{list:?}");
            let count = |state: &str| told.matches(state).count();
            assert_eq!((count(" online "), count(" missing ")), (2, 2), "{told}");
            mounted.holdfast(&["dump", path, "superblock"]);
        }
        let mount = ["mount", left[0], &directory, "-o", "ro", "--daemon", "--accept-missing"];
        let output = mounted.run(&[&mount[..], &["--member", left[1]]].concat());
        if output.status.success() {
            mounts += 1;
            if let Ok(bytes) = fs::read(mounted.path("file")) {
                assert!(bytes == [7; 100_000], "it is another");
            }
            mounted.unmount();
        }
        for at in [first, other] {
            fs::rename(aside(at), &paths[at]).expect("it is ours");
        }
    }
    assert!(mounts > 0, "nothing was left of any");
    mounted.holdfast(&["mount", &paths[0], &directory, "--daemon"]);
    assert_eq!(online(&mounted), 4);
    assert_eq!(fs::read(mounted.path("file")).expect("it is there"), [7; 100_000]);
    mounted.unmount();
}
