//! Several devices in one command, and a failed one whose spare is waited for.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use crate::several::{other, refused, status};
use crate::twice::Loop;
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
    assert_eq!(some.lines().count(), 3, "{some}");
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
    let both = ["device", "remove", &directory, &paths[0], &paths[1]];
    refused(&mounted, &both, "the fewest of a raid5");
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
    assert!(!said.contains("rebuilt, in bytes"), "progress is for terminals: {said}");
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

/// Goal: where one of several devices could not leave, none begins to.
#[test]
fn what_cannot_all_leave_does_not_begin_to() {
    if !can_mount("what_cannot_all_leave_does_not_begin_to") {
        return;
    }
    for (kind, names) in [("raid5", &["r0", "r1", "r2", "r3"][..]), ("stripe", &["s0", "s1", "s2"])]
    {
        let mounted = Mounted::new();
        let paths = pool_of(&mounted, kind, names);
        let directory = mounted.text("mnt");
        let both = ["device", "remove", &directory, &paths[1], &paths[2]];
        refused(&mounted, &both, "Nothing was done");
        let list = done(&mounted, &["group", "list", &directory]);
        assert!(paths.iter().all(|path| list.contains(path)), "{list}");
        let jobs = done(&mounted, &["job", "list", &directory]);
        assert!(!jobs.contains("taking a device out"), "{jobs}");
        mounted.unmount();
    }
}

/// A file system of another kind on a loop device, mounted; gone with it.
struct Foreign {
    device: Loop,
    directory: String,
}

impl Foreign {
    /// Makes one in the file `name`. Returns `None`, loudly, where that cannot be.
    fn new(mounted: &Mounted, name: &str) -> Option<Foreign> {
        let (file, directory) = (mounted.text(name), mounted.text("foreign"));
        fs::create_dir(&directory).expect("the name is new");
        File::create(&file).and_then(|it| it.set_len(64 << 20)).expect("there is room");
        let is_done = |command: &str, arguments: &[&str]| {
            let output = Command::new(command).args(arguments).output();
            output.is_ok_and(|output| output.status.success())
        };
        let device = Loop::new(&file)?;
        let is_made = is_done("mkfs.ext4", &["-q", &device.0]);
        if !is_made || !is_done("mount", &["-t", "ext4", &device.0, &directory]) {
            eprintln!("\n*** SKIPPED: another file system: mkfs.ext4 does not work here ***\n");
            return None;
        }
        Some(Foreign { device, directory })
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.directory, UnmountFlags::DETACH);
    }
}

/// Goal: a device that is used by something else becomes no member and no spare, by force neither,
/// and who uses it is named. Method: a loop device with a mounted file system, the file behind it,
/// another loop device of that file, one on the first, a device that a loop device shows, a file
/// that one shows, a member of a pool that another server has, and that behind a loop device.
#[test]
fn a_device_that_something_else_uses_is_refused_and_its_user_named() {
    if !can_mount("a_device_that_something_else_uses_is_refused_and_its_user_named") {
        return;
    }
    let (mounted, another) = (Mounted::new(), Mounted::new());
    let foreign_pool = another.text("pool.hf");
    let paths = pool_of(&mounted, "mirror", &["m0", "m1"]);
    let (directory, shown) = (mounted.text("mnt"), mounted.text("shown"));
    let Some(foreign) = Foreign::new(&mounted, "ext4") else { return };
    // It is shown by what it is, whatever it was called.
    let below = mounted.text("linked");
    fs::hard_link(mounted.text("ext4"), &below).expect("there is room");
    fs::remove_file(mounted.text("ext4")).expect("it has another name");
    let Some(stacked) = Loop::new(&foreign.device.0) else { return };
    let Some(third) = Loop::new(&stacked.0) else { return };
    let plain = mounted.text("under");
    File::create(&plain).and_then(|it| it.set_len(64 << 20)).expect("there is room");
    let Some(under) = Loop::new(&plain) else { return };
    let Some(over) = Loop::new(&under.0) else { return };
    let Some(second) = Loop::new(&below) else { return };
    File::create(&shown).and_then(|file| file.set_len(64 << 20)).expect("there is room");
    let Some(showing) = Loop::new(&shown) else { return };
    let Some(of_pool) = Loop::new(&foreign_pool) else { return };
    let part = ["-o", "8M", "--sizelimit", "64M", &foreign_pool];
    let Some(part_of_pool) = Loop::with(&part) else { return };
    let on = format!("as the file system (ext4) mounted on {}", foreign.directory);
    let by_loop = format!("by {}, a loop device that shows it", foreign.device.0);
    // A device that is locked is asked for again for two seconds.
    for (device, users, commands) in [
        (&foreign.device.0, [on.as_str(), "umount"], 6),
        (&below, [by_loop.as_str(), on.as_str()], 6),
        (&second.0, [by_loop.as_str(), on.as_str()], 6),
        (&stacked.0, [on.as_str(), "umount"], 6),
        (&third.0, [on.as_str(), "umount"], 6),
        (&under.0, [over.0.as_str(), "losetup -d"], 6),
        (&shown, [showing.0.as_str(), "losetup -d"], 6),
        (&foreign_pool, ["the pool is in use by process", "(holdfast)"], 4),
        (&of_pool.0, ["the pool is in use by process", "(holdfast)"], 1),
        (&part_of_pool.0, ["by whoever has locked", foreign_pool.as_str()], 6),
    ] {
        // Before its own superblock ext4 writes nothing; a pool has its label there.
        let head = || {
            let mut head = [0; 1024];
            File::open(device).and_then(|it| it.read_exact_at(&mut head, 0)).expect("it is there");
            head
        };
        let before = head();
        let new = mounted.text("new");
        let [single, mirror] = [format!("single:{device}"), format!("mirror:{new},{device}")];
        let all = [
            &["device", "add", &directory, device, "--mirror", "0", "--force"][..],
            &["device", "add", &directory, device, "--spare", "--force"],
            &["device", "replace", &directory, "1", device, "--force"],
            &["group", "add", &directory, &single, "--force"],
            &["group", "add", &directory, &mirror, "--size", "64M", "--force"],
            &["create", device, "--force"],
        ];
        for asked in all.into_iter().take(commands) {
            let output = mounted.run(asked);
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{asked:?}");
            for words in users.into_iter().chain(["in use ", device]) {
                assert!(text.contains(words), "{asked:?}: {text}");
            }
            assert!(!Path::new(&new).exists(), "{asked:?} leaves a file behind");
        }
        assert!(head() == before, "{device} was written to");
    }
    // What a loop device shows can be had through that, and itself when nobody shows it.
    done(&mounted, &["device", "add", &directory, &showing.0, "--spare"]);
    done(&mounted, &["device", "remove", &directory, &showing.0]);
    drop(showing);
    done(&mounted, &["device", "add", &directory, &shown, "--spare"]);
    mounted.unmount();
    mounted.holdfast(&["check", &paths[0]]);
    drop((of_pool, part_of_pool));
    another.finish();
}

/// Goal: a device that is named twice is refused by `create` and `group add`, by whatever names,
/// with what to do, and leaves nothing behind.
#[test]
fn a_device_that_is_named_twice_becomes_no_disk_group() {
    let folder = format!("holdfast-twice-{}", std::process::id());
    let folder = fs::canonicalize(std::env::temp_dir()).expect("there is one").join(folder);
    fs::create_dir(&folder).expect("the name is new");
    let told = |arguments: &[&str]| {
        let mut command = Command::new(crate::HOLDFAST);
        command.args(arguments).current_dir(&folder).env("HOLDFAST_RUN_DIR", &folder);
        let output = command.output().expect("the program can be started");
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let file = |name: &str| folder.join(name);
    File::create(file("old")).and_then(|it| it.set_len(64 << 20)).expect("there is room");
    fs::hard_link(file("old"), file("link")).expect("both are ours");
    let (is_made, text) = told(&["create", "pool", "--size", "64M"]);
    assert!(is_made, "{text}");
    for (first, second) in [("a", "a"), ("a", "./a"), ("old", "link"), ("old", "old")] {
        let (group, name) = (format!("mirror:{first},{second}"), second.trim_start_matches("./"));
        for asked in [&["create", "--group"][..], &["group", "add", "pool"]] {
            let (is_done, text) = told(&[asked, &[&group, "--size", "64M"]].concat());
            let is_advised = text.contains("name each once") || text.contains("name each device");
            assert!(!is_done && is_advised && text.contains(name), "{asked:?} {group}: {text}");
            assert!(!file("a").exists(), "{asked:?} leaves a file behind");
        }
    }
    let (is_whole, text) = told(&["check", "pool"]);
    assert!(is_whole, "{text}");
    fs::remove_dir_all(&folder).expect("it is ours");
}

/// Returns the numbers that follow each `words` in `text`.
fn numbers_after(text: &str, words: &str) -> Vec<u64> {
    let digits = |rest: &str| rest.chars().take_while(char::is_ascii_digit).collect::<String>();
    text.split(words).skip(1).filter_map(|rest| digits(rest).parse().ok()).collect()
}

/// Returns bytes of a device of a pool.
fn bytes_at(path: &str, byte: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    File::open(path).and_then(|it| it.read_exact_at(&mut bytes, byte)).expect("it is there");
    bytes
}

/// Goal: `explain` tells where each copy of a block and of a page of a mirror lies, and it is
/// there, also in a disk group that was added. Method: what is told is read from the devices.
#[test]
fn explain_tells_where_the_copies_of_a_mirror_are() {
    if !can_mount("explain_tells_where_the_copies_of_a_mirror_are") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_of(&mounted, "mirror", &["m0", "m1"]);
    let directory = mounted.text("mnt");
    let more = ["n0", "n1"].map(|name| mounted.text(name));
    let group = format!("mirror:{},{}", more[0], more[1]);
    mounted.holdfast(&["group", "add", &directory, &group, "--size", "64M"]);
    mounted.holdfast(&["placement", "set", &directory, "/", "1"]);
    let content: Vec<u8> = (0..16_384_u32).flat_map(u32::to_le_bytes).collect();
    write(&mounted.path("added"), &content);
    mounted.holdfast(&["placement", "set", &directory, "/", "0"]);
    write(&mounted.path("first"), &content);
    mounted.unmount();
    for (name, devices, slots) in [("/first", &paths[..], [0, 1]), ("/added", &more[..], [2, 3])] {
        let told = done(&mounted, &["explain", "--pool", &paths[0], name]);
        let blocks =
            told.lines().map(str::trim_start).skip_while(|line| !line.starts_with("block: "));
        let copies = blocks.skip(1).find(|line| line.starts_with("copies: ")).unwrap_or_default();
        for ((copy, device), slot) in (1..).zip(devices).zip(slots) {
            let words = format!("copy {copy} on member {slot} {device}, byte ");
            let byte = numbers_after(copies, &words);
            assert_eq!(byte.len(), 1, "{name}: {told}");
            assert!(bytes_at(device, byte[0], 4096) == content[..4096], "{name}: {told}");
        }
        let dirent =
            told.lines().map(str::trim_start).skip_while(|line| !line.starts_with("dirent: "));
        let copies = dirent.skip(1).find(|line| line.starts_with("copies: ")).unwrap_or_default();
        let byte = numbers_after(copies, &format!("copy 2 on member 1 {}, byte ", paths[1]));
        let page = bytes_at(&paths[1], byte[0], 4096);
        let is_there = page.windows(5).any(|window| window == &name.as_bytes()[1..6]);
        assert!(is_there, "{name}: {told}");
    }
}

/// Goal: `explain` tells where each unit of a block of a raid5 lies and its parity, and they are
/// there. Method: the units of a row and its parity, as it tells them, are read from the devices:
/// they are what was written, and the devices are zero together.
#[test]
fn explain_tells_where_the_parity_of_a_raid5_is() {
    if !can_mount("explain_tells_where_the_parity_of_a_raid5_is") {
        return;
    }
    let mounted = Mounted::new();
    let paths = pool_of(&mounted, "raid5", &["r0", "r1", "r2"]);
    let content: Vec<u8> = (0..131_072_u32).flat_map(u32::to_le_bytes).collect();
    write(&mounted.path("file"), &content);
    mounted.unmount();
    let told = done(&mounted, &["explain", "--pool", &paths[0], "/file"]);
    let units: Vec<&str> =
        told.lines().map(str::trim_start).filter(|line| line.starts_with("stripe: ")).collect();
    assert!(units.len() >= 8, "{told}");
    let mut at = 0;
    for unit in units {
        let of = |words: &str| *numbers_after(unit, words).first().expect(unit);
        let (member, parity) = (of(" on member "), of("parity on member "));
        // The unit's own byte is told first, that of the parity is where the row begins.
        let [own, row] = numbers_after(unit, ", byte ")[..] else { panic!("{unit}") };
        assert_ne!(member, parity, "{unit}");
        let device = |number: u64| &paths[usize::try_from(number).expect("there are three")];
        let wanted = &content[at..at + 4096];
        assert!(bytes_at(device(member), own, 4096) == wanted, "byte {at}: {unit}");
        let third = (0..3).find(|it| ![member, parity].contains(it)).expect("there are three");
        assert!((row..row + 16_384).contains(&own), "{unit}");
        let [unit, parity, third] =
            [member, parity, third].map(|it| bytes_at(device(it), own, 4096));
        let is_zero = (0..4096).all(|at| unit[at] ^ parity[at] ^ third[at] == 0);
        assert!(is_zero, "byte {at}");
        at += 16_384;
    }
}

/// Goal: a device that lies in the pool itself, on its mount, is refused in words by each command
/// that takes one, and nothing is made there. Method: a path on the mount, one that a symbolic link
/// leads to, and one below a bind mount of it.
#[test]
fn a_device_on_the_mount_of_its_pool_is_refused() {
    if !can_mount("a_device_on_the_mount_of_its_pool_is_refused") {
        return;
    }
    let mounted = Mounted::new();
    let elsewhere = other(&mounted);
    let paths = pool_of(&mounted, "mirror", &["m0", "m1"]);
    let directory = mounted.text("mnt");
    fs::create_dir(mounted.path("below")).expect("it is empty");
    std::os::unix::fs::symlink("mnt/below", mounted.text("link")).expect("the name is new");
    rustix::mount::mount_bind(mounted.path("below"), &elsewhere.0).expect("as root");
    for new in ["mnt/new", "mnt/below/new", "link/new", "other/new"].map(|name| mounted.text(name))
    {
        let group = format!("mirror:{},{new}", mounted.text("beside"));
        for asked in [
            &["device", "add", &directory, &new, "--mirror", "0"][..],
            &["device", "add", &directory, &new, "--spare"],
            &["device", "replace", &directory, "1", &new],
            &["group", "add", &directory, &group, "--size", "64M"],
        ] {
            refused(&mounted, asked, "each would wait for the other");
            assert!(!Path::new(&new).exists(), "{asked:?} leaves a file behind");
            assert!(!Path::new(&mounted.text("beside")).exists(), "{asked:?}");
        }
    }
    drop(elsewhere);
    mounted.unmount();
    mounted.holdfast(&["check", &paths[0]]);
}
