//! Pools by name: created, found, mounted, renamed.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::create::Place;
use crate::{Mounted, can_mount, write};

/// Returns the pools that `pool list` finds in `folder`.
fn listed(place: &Place, folder: &str) -> Vec<Value> {
    let told = place.told(&["--json", "pool", "list", "-d", folder], 0);
    told.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
}

fn id_of(pool: &Value) -> &str {
    pool["id"].as_str().expect("it is text")
}

/// Goal: a pool has a name from its creation on, which commands understand, and `pool list` shows.
#[test]
fn a_pool_is_found_by_its_name() {
    let place = Place::new();
    place.told(&["create", "pool.hf", "--size", "16M"], 0);
    fs::create_dir(place.path("d")).expect("the name is new");
    place
        .told(&["create", "--group", "mirror:d/a.hf,d/b.hf", "--size", "16M", "--name", "tank"], 0);
    assert_eq!(listed(&place, ".").len(), 1, "folders below are not looked at");
    let found = [listed(&place, "."), listed(&place, "d")].concat();
    assert_eq!([&found[0]["name"], &found[1]["name"]], ["pool", "tank"]);
    assert_eq!(found[1]["devices"].as_array().map(Vec::len), Some(2));
    assert!(found.iter().all(|it| it["state"] == "closed" && it["is_copy"] == false));
    place.told(&["fileset", "create", "pool:home"], 0);
    let told = place.told(&["fileset", "list", "pool"], 0);
    assert!(told.contains("home"), "{told}");
    place.told(&["check", "pool"], 0);
    // The other one is in no default place.
    let told = place.told(&["fileset", "list", "tank"], 1);
    assert!(told.contains("no pool of that name") && told.contains("pool list"), "{told}");
    fs::remove_file(place.path("d/b.hf")).expect("it is there");
    let told = place.told(&["pool", "list", "-d", "d"], 0);
    assert!(told.starts_with("NAME") && told.contains("incomplete: 1 of 2 devices"), "{told}");
    let told = place.told(&["pool", "list", "-d", "nowhere"], 1);
    assert!(told.contains("check the path"), "{told}");
}

/// Goal: `pool list` writes nothing, not even to a pool that was not closed or lacks a device.
#[test]
fn a_list_opens_nothing_for_writing() {
    let place = Place::new();
    place.told(&["create", "--group", "mirror:a,b", "--size", "16M", "--name", "tank"], 0);
    fs::remove_file(place.path("b")).expect("it is there");
    let before = fs::read(place.path("a")).expect("it is there");
    fs::set_permissions(place.path("a"), PermissionsExt::from_mode(0o400)).expect("it is ours");
    assert_eq!(listed(&place, ".").len(), 1);
    assert!(fs::read(place.path("a")).expect("it is there") == before);
}

/// Goal: a name that two pools have opens neither, and both are named; a copy of a pool is no
/// second pool of the name.
#[test]
fn two_pools_of_one_name_are_refused_and_a_copy_is_none() {
    let place = Place::new();
    place.told(&["create", "a.hf", "--size", "16M", "--name", "tank"], 0);
    let copy = || fs::copy(place.path("a.hf"), place.path("0.hf")).expect("there is room");
    copy();
    let told = place.told(&["fileset", "create", "tank:a"], 2);
    assert!(told.contains("/a.hf") && told.contains("/0.hf"), "nothing tells which: {told}");
    // The one that is used from now on is the original.
    place.told(&["fileset", "create", "a.hf:first"], 0);
    let found = listed(&place, ".");
    let is_copy = |it: &Value| it["is_copy"] == true;
    let copy = found.iter().find(|it| is_copy(it)).expect("the copy is listed");
    assert!(copy["devices"][0].as_str().is_some_and(|it| it.ends_with("/0.hf")), "{copy}");
    assert_eq!((found.len(), id_of(&found[0])), (2, id_of(&found[1])));
    let told = place.told(&["pool", "list"], 0);
    assert!(told.contains("copy, closed"), "{told}");
    // It may have been the copy that was written since, so neither has the name.
    let told = place.told(&["fileset", "create", "tank:a"], 2);
    assert!(told.contains("two copies of one pool"), "{told}");
    fs::remove_file(place.path("0.hf")).expect("it is there");
    place.told(&["fileset", "create", "tank:a"], 0);
    let told = place.told(&["fileset", "list", "a.hf"], 0);
    assert!(told.lines().any(|line| line.starts_with('a')), "{told}");

    place.told(&["create", "b.hf", "--size", "16M", "--name", "tank"], 0);
    let found = listed(&place, ".");
    let before = ["a.hf", "b.hf"].map(|name| fs::read(place.path(name)).expect("it is there"));
    let told = place.told(&["fileset", "create", "tank:b"], 2);
    assert!(found.iter().all(|it| told.contains(id_of(it))), "{told}");
    assert!(told.contains("pool rename"), "{told}");
    let after = ["a.hf", "b.hf"].map(|name| fs::read(place.path(name)).expect("it is there"));
    assert!(before == after, "a refusal changed a pool");
    place.told(&["pool", "rename", "b.hf", "data"], 0);
    place.told(&["fileset", "create", "data:b"], 0);
    place.told(&["fileset", "create", "tank:b"], 0);
}

/// Goal: a path wins over a name; where another pool has the name, the command refuses and names
/// both, and `./x` is the path.
#[test]
fn a_name_that_is_a_path_too_is_refused() {
    let place = Place::new();
    place.told(&["create", "tank", "--size", "16M"], 0);
    place.told(&["check", "tank"], 0);
    place.told(&["create", "other.hf", "--size", "16M", "--name", "tank"], 0);
    let told = place.told(&["check", "tank"], 16);
    assert!(told.contains("./tank") && told.contains("/other.hf"), "{told}");
    place.told(&["pool", "rename", "./tank", "data"], 0);
    let told = place.told(&["pool", "rename", "data", "tank"], 1);
    assert!(told.contains("is called tank already"), "{told}");
    let told = place.told(&["check", "tank"], 16);
    assert!(told.contains("./tank") && told.contains("/other.hf"), "{told}");
    place.told(&["check", "./tank"], 0);
    place.told(&["check", "data"], 0);
    for name in ["", "a/b", "a:b", "a@b", ".a", "-a", "a b", &"n".repeat(65)] {
        let name = format!("--name={name}");
        let told = place.told(&["create", "new.hf", "--size", "16M", &name], 2);
        assert!(told.contains("the name of a pool"), "{told}");
        assert!(!place.path("new.hf").exists(), "{name} left a file");
    }
    let told = place.told(&["pool", "rename", "data", "a/b"], 2);
    assert!(told.contains("the name of a pool"), "{told}");
    let told = place.told(&["create", "new.hf", "--label", "x", "--size", "16M"], 2);
    assert!(told.contains("--name"), "{told}");
}

/// Goal: a command reaches the pool that is at a path now, and never the server of the pool that
/// was there before (PN4).
#[test]
fn a_server_does_not_answer_for_another_pool_at_its_path() {
    if !can_mount("a_server_does_not_answer_for_another_pool_at_its_path") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, directory) = (mounted.text("pool.hf"), mounted.text("mnt"));
    mounted.holdfast(&["fileset", "create", &format!("{directory}:home")]);
    fs::rename(&pool, mounted.text("old.hf")).expect("it is ours");
    mounted.holdfast(&["create", &pool, "--size", "16M", "--name", "new"]);
    for name in [&format!("{pool}:home"), "new:home"] {
        let told = mounted.run(&["fileset", "delete", name]);
        let text = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(2), "{name}: {text}");
        assert!(text.contains("the pool") && text.contains("still serves"), "{name}: {text}");
    }
    let other = mounted.text("other");
    fs::create_dir(&other).expect("the name is new");
    let (home, there) = (format!("{directory}:home"), format!("{pool}:x"));
    for command in [
        ["mount", &pool, &other, "--daemon"].as_slice(),
        &["status", &pool],
        &["fileset", "rename", &home, &there],
        &["fileset", "move", &home, &there],
    ] {
        let told = mounted.run(command);
        assert_eq!(told.status.code(), Some(2), "{command:?}: {told:?}");
    }
    let told = mounted.run(&["fileset", "list", &directory]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("home"), "{told:?}");
    mounted.unmount();
    let told = mounted.run(&["fileset", "list", "new"]);
    assert!(!String::from_utf8_lossy(&told.stdout).contains("home"), "{told:?}");
    fs::rename(mounted.text("old.hf"), &pool).expect("it is ours");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: a mount by name says so in the mount table, and every command finds its server by it.
#[test]
fn a_mount_by_name_is_found_by_its_source() {
    if !can_mount("a_mount_by_name_is_found_by_its_source") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let (pool, directory) = (mounted.text("pool.hf"), mounted.text("mnt"));
    mounted.holdfast(&["pool", "rename", &pool, "tank"]);
    mounted.holdfast(&["fileset", "create", "tank:home"]);
    mounted.holdfast(&["mount", "tank:home", &directory, "--daemon"]);
    write(&mounted.path("file"), b"by name");
    let entry = front::fuse::mountpoint::mounted_on(&mounted.root()).expect("it can be read");
    assert_eq!(entry.expect("it is mounted").source, "tank:home");
    for name in ["tank", &directory, &pool] {
        let told = mounted.run(&["status", name]);
        let text = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(text.starts_with("tank:home on "), "{name}: {text}");
        assert!(text.contains(&format!("  device: {pool}\n")), "{name}: {text}");
    }
    let told = mounted.run(&["pool", "list", "-d", &pool]);
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.status.success() && text.contains("  mounted  "), "{text}");
    mounted.holdfast(&["mount", "-o", "remount,ro", &directory]);
    mounted.holdfast(&["pool", "rename", "tank", "data"]);
    mounted.holdfast(&["fileset", "list", "data"]);
    mounted.unmount();
    // The server dies: its socket is left, and the name still leads to the pool.
    mounted.holdfast(&["mount", "data:home", &directory, "--daemon"]);
    let told = mounted.run(&["status", "data", "--json"]);
    let status: Value = serde_json::from_slice(&told.stdout).expect("an object");
    let pid = status["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(rustix::process::Pid::from_raw).expect("it is a process");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    // The kernel ends the mount's connection when the process is gone. It may have the attributes
    // of the directory, so a list is asked for.
    let lists = |mut list: fs::ReadDir| list.all(|entry| entry.is_ok());
    while fs::read_dir(&directory).is_ok_and(lists) {
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    let told = mounted.run(&["unmount", &directory]);
    let text = String::from_utf8_lossy(&[told.stdout, told.stderr].concat()).into_owned();
    assert!(told.status.success() && text.contains("whose server died"), "{text}");
    mounted.mount(&[]);
    mounted.finish();
}
