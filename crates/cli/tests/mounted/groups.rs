//! Disk groups as a user meets them: devices that are added and removed one by one, files that
//! prefer one, and each file on one device of a round-robin.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use crate::several::{other, status};
use crate::{Mounted, can_mount, write};

const PLACEMENT: &str = "user.holdfast.placement";
const FILE_BYTES: usize = 400_000;

/// Returns whether the program did what it was told, and what it said.
fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Returns what `explain` says of a file that is durable.
fn explained(mounted: &Mounted, name: &str) -> String {
    let file = File::open(mounted.path(name)).expect("it is there");
    file.sync_all().expect("there is room");
    told(mounted, &["explain", &mounted.text(&format!("mnt/{name}"))]).1
}

fn placement_of(path: &Path) -> String {
    let mut value = [0; 32];
    let length = rustix::fs::getxattr(path, PLACEMENT, &mut value).expect("each has one");
    String::from_utf8_lossy(&value[..length]).into_owned()
}

/// Goal: a device is added to a pool in use, files prefer it, and it is removed with all that it
/// holds moved elsewhere; what cannot be is refused in words, and nothing is left behind.
#[test]
fn a_device_is_added_preferred_and_removed() {
    if !can_mount("a_device_is_added_preferred_and_removed") {
        return;
    }
    let mounted = Mounted::new();
    let (directory, more) = (mounted.text("mnt"), mounted.text("more.hf"));
    let (is_added, refusal) = told(&mounted, &["device", "add", &directory, &more]);
    assert!(!is_added && refusal.contains("--size"), "{refusal}");
    assert!(!Path::new(&more).exists());
    mounted.holdfast(&["device", "add", &directory, &more, "--size", "128M"]);
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    let row = list.lines().find(|row| row.starts_with(&more)).unwrap_or_default();
    assert_eq!(row.split_whitespace().nth(2), Some("1"), "{list}");

    fs::create_dir(mounted.path("films")).expect("the name is new");
    mounted.holdfast(&["placement", "set", &directory, "films", "1"]);
    let (_, shown) = told(&mounted, &["placement", "show", &directory, "films"]);
    assert!(shown.contains("films has placement 1"), "{shown}");
    for number in 0..6_u8 {
        let name = format!("films/f{number}");
        write(&mounted.path(&name), &[number; FILE_BYTES]);
        assert_eq!(placement_of(&mounted.path(&name)), "1");
        let explained = explained(&mounted, &name);
        assert!(explained.contains("comes from disk group 1"), "{explained}");
        assert!(explained.contains("of disk group 1: Data"), "{explained}");
    }
    let set = |value: &str| {
        let value = value.as_bytes();
        rustix::fs::setxattr(mounted.path("films/f0"), PLACEMENT, value, XattrFlags::empty())
    };
    set("0").expect("it is there");
    assert_eq!(placement_of(&mounted.path("films/f0")), "0");
    assert_eq!(set("2"), Err(Errno::INVAL));
    let (is_set, refusal) = told(&mounted, &["placement", "set", &directory, "films", "2"]);
    assert!(!is_set && refusal.contains("there is no disk group 2"), "{refusal}");
    let (is_set, refusal) = told(&mounted, &["placement", "set", &directory, "films", "fast"]);
    assert!(!is_set && refusal.contains("is no placement"), "{refusal}");

    // A fileset has it from the start, or from now on; what none serves makes nothing.
    let fileset = format!("{}:fast", mounted.text("pool.hf"));
    let (is_made, refusal) = told(&mounted, &["fileset", "create", &fileset, "placement=2"]);
    assert!(!is_made && refusal.contains("there is no disk group 2"), "{refusal}");
    mounted.holdfast(&["fileset", "create", &fileset, "placement=1", "--quota", "64M"]);
    let listed = || told(&mounted, &["fileset", "list", &fileset]).1;
    assert!(listed().contains(" 64M ") && listed().contains("placement 1"), "{}", listed());
    let words = ["placement=striped", "readonly=on"];
    let (is_set, refusal) = told(&mounted, &[&["fileset", "set", &fileset], &words[..]].concat());
    assert!(!is_set && refusal.contains("no disk group is striped"), "{refusal}");
    mounted.holdfast(&["fileset", "set", &fileset, "placement=0", "readonly=on"]);
    assert!(listed().contains("placement 0, read-only"), "{}", listed());
    let (is_set, refusal) = told(&mounted, &["fileset", "set", &fileset, "placement=1"]);
    assert!(!is_set && !refusal.is_empty(), "{refusal}");
    mounted.holdfast(&["fileset", "set", &fileset, "placement=any", "readonly=off"]);
    let (_, json) = told(&mounted, &["fileset", "list", &fileset, "--json"]);
    assert!(json.contains(r#""placement":"any""#), "{json}");
    mounted.holdfast(&["fileset", "set", &directory, "placement=any"]);

    let (is_gone, refusal) = told(&mounted, &["device", "remove", &directory, "0"]);
    assert!(!is_gone && refusal.contains("has the metadata, and no other has room"), "{refusal}");
    let (is_gone, refusal) = told(&mounted, &["device", "remove", &directory, "7"]);
    assert!(!is_gone && refusal.contains("no device 7"), "{refusal}");
    mounted.holdfast(&["device", "remove", &directory, &more, "--wait"]);
    let (_, list) = told(&mounted, &["device", "list", &directory]);
    assert!(!list.contains(&more), "{list}");
    for number in 0..6_u8 {
        let content = fs::read(mounted.path(&format!("films/f{number}")));
        assert!(content.expect("it is there") == [number; FILE_BYTES], "file {number}");
    }
    let explained = explained(&mounted, "films/f3");
    assert!(explained.contains("1, which is preferred, takes none or is gone"), "{explained}");
    mounted.unmount();
    let (is_pool, _) = told(&mounted, &["check", &more]);
    assert!(!is_pool, "its label is off");
    // A pool that is not mounted is opened for it.
    mounted.holdfast(&["device", "add", &mounted.text("pool.hf"), &more, "--force"]);
    mounted.holdfast(&["device", "remove", &mounted.text("pool.hf"), "1"]);
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: a device that would take the redundancy of a pool is added only where that is said, and
/// one of a mirror of two is removed only so.
#[test]
fn a_device_of_several_is_not_added_or_removed_alone() {
    if !can_mount("a_device_of_several_is_not_added_or_removed_alone") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, other, more] = ["m0", "m1", "more"].map(|name| mounted.text(name));
    let group = format!("mirror:{first},{other}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    let size = ["--size", "64M"];
    let add = ["device", "add", &first, &more];
    let (is_added, refusal) = told(&mounted, &[&add[..], &size].concat());
    assert!(!is_added && refusal.contains("group add"), "{refusal}");
    let missing = fs::metadata(&more).expect_err("nothing is left behind");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let (is_gone, refusal) = told(&mounted, &["device", "remove", &first, &other]);
    assert!(!is_gone && refusal.contains("--accept-no-redundancy"), "{refusal}");
    mounted.holdfast(&["device", "add", &first, &more, "--spare", "--force"]);
    mounted.holdfast(&["device", "remove", &first, &more]);
    mounted.holdfast(&["check", &first]);
}

/// Goal: files on a mounted round-robin lie each on one device, in turn, and read back after a
/// mount that was told of any one of its devices.
#[test]
fn files_of_a_round_robin_lie_each_on_one_device() {
    if !can_mount("files_of_a_round_robin_lie_each_on_one_device") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [meta, one, two] = ["meta", "r0", "r1"].map(|name| mounted.text(name));
    let [metadata, data] =
        [format!("single:{meta}=metadata,journal"), { format!("round-robin:{one},{two}=data") }];
    let groups = ["--group", &metadata, "--group", &data, "--size", "64M"];
    mounted.holdfast(&[&["create"], &groups[..]].concat());
    let directory = mounted.text("mnt");
    mounted.holdfast(&["mount", &two, &directory, "--daemon"]);
    let mut turns = Vec::new();
    for number in 0..6_u8 {
        let name = format!("f{number}");
        write(&mounted.path(&name), &[number; FILE_BYTES]);
        let explained = explained(&mounted, &name);
        let on = |device: u8| explained.contains(&format!("on its device {device}"));
        assert!(on(0) != on(1), "file {number}: {explained}");
        turns.push(on(1));
    }
    assert!(turns.contains(&true) && turns.contains(&false), "{turns:?}");
    mounted.unmount();
    mounted.holdfast(&["check", &one]);
    mounted.holdfast(&["mount", &meta, &directory, "--daemon"]);
    for number in 0..6_u8 {
        let content = fs::read(mounted.path(&format!("f{number}"))).expect("it is there");
        assert!(content == [number; FILE_BYTES], "file {number}");
    }
    mounted.unmount();
    // A file beside the others would be found by its label.
    fs::create_dir(mounted.text("far")).expect("the name is new");
    fs::rename(&one, mounted.text("far/r0")).expect("it is ours");
    let (is_mounted, refusal) = told(&mounted, &["mount", &meta, &directory, "--daemon"]);
    assert!(!is_mounted && refusal.contains(&one), "{refusal}");
    fs::rename(mounted.text("far/r0"), &one).expect("it is ours");
    mounted.holdfast(&["check", &two]);
}

/// Goal: on a mounted round-robin a device comes, another is exchanged and one leaves, by three
/// commands; files are whole, no device that left is of the pool, and what is left of two is a
/// single that becomes a round-robin again.
#[test]
fn devices_of_a_round_robin_come_and_go() {
    if !can_mount("devices_of_a_round_robin_come_and_go") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [meta, one, two, three, four, five] =
        ["meta", "r0", "r1", "r2", "r3", "r4"].map(|name| mounted.text(name));
    let [metadata, data] =
        [format!("single:{meta}=metadata,journal"), { format!("round-robin:{one},{two}=data") }];
    let groups = ["--group", &metadata, "--group", &data, "--size", "64M"];
    mounted.holdfast(&[&["create"], &groups[..]].concat());
    let directory = mounted.text("mnt");
    mounted.holdfast(&["mount", &meta, &directory, "--daemon"]);
    let judge = |when: &str| {
        for number in 0..9_u8 {
            let content = fs::read(mounted.path(&format!("f{number}"))).expect("it is there");
            assert!(content == [number; FILE_BYTES], "{when}: file {number}");
        }
    };
    let list = || told(&mounted, &["group", "list", &directory]).1;
    for number in 0..9_u8 {
        write(&mounted.path(&format!("f{number}")), &[number; FILE_BYTES]);
    }
    let (is_added, words) =
        told(&mounted, &["device", "add", &directory, &three, "--round-robin", &one]);
    assert!(is_added && words.contains("has its turn of new files"), "{words}");
    assert!(list().contains(&format!("{one},{two},{three}")), "{}", list());
    let (is_copy, words) = told(&mounted, &["device", "add", &directory, &four, "--mirror", &one]);
    assert!(!is_copy && !fs::exists(&four).expect("it can be looked up"), "{words}");
    let replace = ["device", "replace", &directory, &one, &four, "--wait"];
    let (is_replaced, words) = told(&mounted, &replace);
    assert!(is_replaced && words.contains("of no pool any more"), "{words}");
    assert!(words.contains(&format!("{four} joins {one}: ")), "{words}");
    assert!(list().contains(&format!("{two},{three},{four}")), "{}", list());
    judge("exchanged");
    // Two of three by one command: one after the other.
    let (is_gone, words) = told(&mounted, &["device", "remove", &directory, &two, &four, "--wait"]);
    assert!(is_gone, "{words}");
    let left = list();
    assert!(left.contains("single") && left.contains(&three) && !left.contains(&two), "{left}");
    judge("on one");
    let (is_gone, words) = told(&mounted, &["device", "remove", &directory, &three]);
    assert!(!is_gone && words.contains("is the last that data may lie in"), "{words}");
    let again = ["device", "add", &directory, &five, "--round-robin", &three];
    let (is_added, words) = told(&mounted, &again);
    assert!(is_added, "{words}");
    assert!(list().contains("round-robin"), "{}", list());
    mounted.unmount();
    mounted.holdfast(&["check", &meta]);
    let (is_pool, words) = told(&mounted, &["check", &two]);
    assert!(!is_pool, "{words}");
    mounted.holdfast(&["mount", &five, &directory, "--daemon"]);
    judge("mounted again");
}

/// Goal: the journal of a pool in use moves to a device of its own and back by two commands; what
/// was written is whole, and each command says what is so. A journal that is made apart is there
/// after a crash, and the pool is refused by the path of its device when that is away.
#[test]
fn the_journal_has_devices_of_its_own() {
    if !can_mount("the_journal_has_devices_of_its_own") {
        return;
    }
    let mounted = Mounted::new();
    let (directory, pool) = (mounted.text("mnt"), mounted.text("pool.hf"));
    let [one, two, moved] = ["j0", "j1", "moved"].map(|name| mounted.text(name));
    let list = || told(&mounted, &["group", "list", &directory]).1;
    let group = format!("mirror:{one},{two}=journal");
    let add = ["group", "add", &directory, &group, "--size", "32M"];
    write(&mounted.path("before"), &[1; FILE_BYTES]);
    let (is_added, words) = told(&mounted, &add);
    assert!(is_added, "{words}");
    assert!(list().contains("journal") && list().contains("data,metadata  "), "{}", list());
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(status.contains("group 1: mirror (journal)"), "{status}");
    let again = format!("single:{moved}=journal");
    let (is_added, words) = told(&mounted, &["group", "add", &directory, &again, "--size", "32M"]);
    assert!(!is_added && words.contains("has the journal already"), "{words}");
    assert!(!fs::exists(&moved).expect("it can be looked up"), "nothing is left behind");
    let wrong = format!("single:{moved}=journal,data");
    let (is_added, words) = told(&mounted, &["group", "add", &directory, &wrong, "--size", "32M"]);
    assert!(!is_added && words.contains("with the metadata or alone"), "{words}");
    write(&mounted.path("apart"), &[2; FILE_BYTES]);
    File::open(mounted.path("apart")).and_then(|file| file.sync_all()).expect("there is room");
    mounted.unmount();
    mounted.holdfast(&["check", &pool]);
    fs::rename(&two, &moved).expect("it is there");
    mounted.holdfast(&["mount", &pool, &directory, "--daemon"]);
    mounted.unmount();
    // It was found where it is called otherwise; elsewhere nobody looks.
    let gone = mounted.text("away/j0");
    fs::create_dir(mounted.text("away")).expect("the name is new");
    fs::rename(&one, &gone).expect("it is there");
    fs::rename(&moved, mounted.text("away/j1")).expect("it is there");
    let (is_mounted, words) = told(&mounted, &["mount", &pool, &directory, "--daemon"]);
    assert!(!is_mounted && words.contains(&one), "{words}");
    fs::rename(&gone, &one).expect("it is there");
    mounted.holdfast(&["mount", &pool, &directory, "--daemon"]);
    let (is_gone, words) = told(&mounted, &["group", "remove", &directory, "1", "--wait"]);
    assert!(is_gone && words.contains("disk group 1 is gone"), "{words}");
    write(&mounted.path("back"), &[3; FILE_BYTES]);
    mounted.unmount();
    fs::remove_file(&one).expect("it is there");
    mounted.holdfast(&["check", &pool]);
    mounted.holdfast(&["mount", &pool, &directory, "--daemon"]);
    for (name, byte) in [("before", 1), ("apart", 2), ("back", 3)] {
        assert!(fs::read(mounted.path(name)).expect("it is there") == [byte; FILE_BYTES], "{name}");
    }
}

/// Goal: the metadata of a pool that is mounted moves to another device, and the one that the pool
/// was made on goes: the files are there, and the pool is opened by what is left.
#[test]
fn the_device_that_a_pool_was_made_on_goes() {
    if !can_mount("the_device_that_a_pool_was_made_on_goes") {
        return;
    }
    let mounted = Mounted::new();
    let (directory, more) = (mounted.text("mnt"), mounted.text("more.hf"));
    for number in 0..6_u8 {
        write(&mounted.path(&format!("f{number}")), &[number; FILE_BYTES]);
    }
    let list = || told(&mounted, &["group", "list", &directory]).1;
    let group = format!("single:{more}=data,metadata");
    let add = |group: &str| told(&mounted, &["group", "add", &directory, group, "--size", "128M"]);
    let (is_added, words) = add(&group);
    assert!(!is_added && words.contains("add journal to the roles"), "{words}");
    assert!(!Path::new(&more).exists(), "nothing is left behind");
    let (is_added, words) = add(&format!("{group},journal"));
    assert!(is_added, "{words}");
    assert!(list().contains("data,room-for-metadata"), "{}", list());
    mounted.holdfast(&["group", "metadata", &directory, "0"]);
    let (is_moved, words) = told(&mounted, &["group", "metadata", &directory, "1"]);
    assert!(is_moved && words.starts_with("the metadata is there now: 1 "), "{words}");
    assert_eq!(words.lines().count(), 1, "{words}");
    let (_, status) = told(&mounted, &["status", &directory]);
    assert!(status.contains("group 1: single (data, metadata, journal)"), "{status}");
    mounted.holdfast(&["group", "remove", &directory, "0", "--wait"]);
    assert!(!list().contains("pool.hf") && list().contains(&more), "{}", list());
    for number in 0..6_u8 {
        let content = fs::read(mounted.path(&format!("f{number}")));
        assert!(content.expect("it is there") == [number; FILE_BYTES], "file {number}");
    }
    mounted.unmount();
    mounted.holdfast(&["check", &more]);
    mounted.holdfast(&["mount", &more, &directory, "--daemon"]);
    let content = fs::read(mounted.path("f3"));
    assert!(content.expect("it is there") == [3; FILE_BYTES]);
    mounted.unmount();
}

/// Goal: devices that were made for a disk group stay where it was added, and only the metadata
/// could not move there: the pool cannot be opened without them. Method: a device has failed, so
/// nothing moves; then it is back, and the move is asked for alone.
#[test]
fn devices_that_were_made_stay_where_only_the_metadata_did_not_move() {
    if !can_mount("devices_that_were_made_stay_where_only_the_metadata_did_not_move") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let [first, other, one, two] = ["m0", "m1", "n0", "n1"].map(|name| mounted.text(name));
    let directory = mounted.text("mnt");
    let group = format!("mirror:{first},{other}");
    mounted.holdfast(&["create", "--group", &group, "--size", "64M"]);
    mounted.holdfast(&["mount", &first, &directory, "--daemon"]);
    mounted.holdfast(&["device", "fail", &directory, &other]);
    let group = format!("mirror:{one},{two}=data,metadata,journal");
    let add = ["group", "add", &directory, &group, "--size", "64M"];
    let (is_added, words) = told(&mounted, &add);
    assert!(!is_added && words.contains("the metadata is where it was"), "{words}");
    assert!(Path::new(&one).exists() && Path::new(&two).exists(), "they are of the pool");
    write(&mounted.path("file"), &[1; FILE_BYTES]);
    mounted.unmount();
    mounted.holdfast(&["mount", &one, &directory, "--daemon"]);
    mounted.holdfast(&["device", "online", &directory, &other, "--wait"]);
    mounted.holdfast(&["group", "metadata", &directory, "1"]);
    let content = fs::read(mounted.path("file")).expect("it is there");
    assert!(content == [1; FILE_BYTES]);
    mounted.unmount();
    mounted.holdfast(&["check", &two]);
}

/// Goal: the device that a pool was opened by names it no more once it was given back: the pool
/// says so, and by which to name it, and no command that is meant for what is there now reaches it.
/// Method: the device is given back in use, and another pool is made on it.
#[test]
fn a_device_that_was_given_back_names_its_pool_no_more() {
    if !can_mount("a_device_that_was_given_back_names_its_pool_no_more") {
        return;
    }
    let mounted = Mounted::new();
    let elsewhere = other(&mounted);
    let (directory, there) = (mounted.text("mnt"), mounted.text("other"));
    let (first, more) = (mounted.text("pool.hf"), mounted.text("more.hf"));
    let group = format!("single:{more}=data,metadata,journal");
    mounted.holdfast(&["group", "add", &directory, &group, "--size", "128M"]);
    let (_, shown) = told(&mounted, &["status", &first]);
    assert!(!shown.contains("is no device of it"), "{shown}");
    let (is_gone, words) = told(&mounted, &["group", "remove", &directory, "0", "--wait"]);
    assert!(is_gone && words.contains("of no pool any more"), "{words}");
    let (_, shown) = told(&mounted, &["status", &directory]);
    let warned = format!("{first}, by which the pool was opened, is no device of it any more");
    assert!(shown.contains(&warned) && shown.contains(&format!("device: {more}")), "{shown}");
    assert_eq!(status(&mounted, &directory)["pool"]["named_by"], more);
    let refused = |arguments: &[&str], expected: &str| {
        let (is_done, words) = told(&mounted, arguments);
        assert!(!is_done && words.contains(expected), "{arguments:?}: {words}");
    };
    refused(&["status", &first], "is not mounted by a server of yours");
    refused(&["device", "list", &first], "not a Holdfast pool");
    refused(&["mount", &first, &there, "--daemon"], "not a Holdfast pool");
    assert!(told(&mounted, &["device", "list", &more]).0, "the other names it");
    refused(&["group", "remove", &directory, "9"], &format!("{more}: there is no disk group 9"));

    mounted.holdfast(&["create", &first, "--size", "256M", "--force"]);
    mounted.holdfast(&["fileset", "create", &format!("{first}:new")]);
    let (_, filesets) = told(&mounted, &["fileset", "list", &directory]);
    assert!(!filesets.contains("new"), "{filesets}");
    refused(&["mount", &first, &there, "--daemon"], "another pool was opened by this path");
    assert_eq!(front::fuse::mountpoint::mounted_on(&elsewhere.0).expect("it is read"), None);
    mounted.unmount();
    mounted.holdfast(&["check", &more]);
    mounted.mount(&[]);
    mounted.finish();
}
