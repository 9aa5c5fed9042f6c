//! Lists for people and for programs: tables with headings, and JSON with a version.

use std::fs;

use serde_json::Value;

use crate::{Mounted, can_mount, write};

/// Goal: a list is a table, an empty one a line on standard error. `status` counts the inodes of
/// all filesets, open or not, and names the last scrub. JSON has its version, and another version
/// is refused in words. Method: two filesets of a mirror, with a quota and a snapshot.
#[test]
fn lists_are_tables_and_status_counts_the_whole_pool() {
    if !can_mount("lists_are_tables_and_status_counts_the_whole_pool") {
        return;
    }
    let mounted = Mounted::new();
    let [directory, pool, there, copy] =
        ["mnt", "pool.hf", "there", "copy.hf"].map(|name| mounted.text(name));
    let told = |arguments: &[&str]| {
        let output = mounted.run(arguments);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let rows = |arguments: &[&str]| -> Vec<Vec<String>> {
        let (code, table, _) = told(arguments);
        assert_eq!(code, Some(0), "{arguments:?}");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        table.lines().map(words).collect()
    };
    let inodes = || {
        let (_, json, _) = told(&["status", &directory, "--json"]);
        let status: Value = serde_json::from_str(&json).expect("an object");
        assert_eq!(status["version"], 1, "{status}");
        status["pool"]["space"]["inodes"].as_u64().expect("a number")
    };
    let (code, table, remark) = told(&["snapshot", "list", &directory]);
    assert_eq!((code, &*table, &*remark), (Some(0), "", "There are no snapshots.\n"));
    assert_eq!(told(&["snapshot", "list", &directory, "--quiet"]).2, "");

    let home = format!("{pool}:home");
    mounted.holdfast(&["device", "add", &directory, &copy, "--mirror", &pool, "--wait"]);
    mounted.holdfast(&["fileset", "create", &home, "--quota", "64M"]);
    mounted.holdfast(&["snapshot", "create", &format!("{home}@monday")]);
    fs::create_dir(&there).expect("the name is new");
    let before = inodes();
    mounted.holdfast(&["mount", &home, &there, "--daemon"]);
    for number in 0..7 {
        write(&mounted.work.join(format!("there/{number}")), &[1; 5000]);
    }
    assert_eq!(inodes(), before + 7);
    let list = ["fileset", "list", &directory];
    let table = rows(&list);
    let headings = ["NAME", "USED", "AVAILABLE", "QUOTA", "MOUNTED", "SNAPSHOTS"];
    assert_eq!(table[0], headings, "{table:?}");
    let (home_row, root_row) = (&table[1], &table[2]);
    assert!(home_row[2].starts_with("63.") && home_row[3] == "64M", "{table:?}");
    assert_eq!((&*home_row[0], &home_row[4], &*home_row[5]), ("home", &there, "1"));
    assert_eq!((&*root_row[0], &*root_row[3], &*root_row[5]), ("root", "-", "-"));
    mounted.holdfast(&["unmount", &there]);
    assert_eq!(inodes(), before + 7, "those of a fileset that is closed");

    let line = |name: &str| {
        let (_, text, _) = told(&["status", &directory]);
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        line.unwrap_or_default().to_owned()
    };
    assert!(line("last scrub: ").ends_with("none is known"), "{}", line("last scrub: "));
    mounted.holdfast(&["scrub", &directory, "--wait"]);
    assert!(line("last scrub: ").ends_with("UTC, nothing wrong"), "{}", line("last scrub: "));
    let devices = "devices: 2 of 2 online, no spare left, none with errors";
    assert_eq!(line("devices: ").trim(), devices);

    let (_, json, _) = told(&[&list[..], &["--json=1"]].concat());
    let facts = json.lines().map(|line| serde_json::from_str::<Value>(line).expect("an object"));
    assert!(facts.clone().count() == 2 && facts.clone().all(|it| it["version"] == 1), "{json}");
    let (code, json, _) = told(&[&list[..], &["--json=2"]].concat());
    let refused: Value = serde_json::from_str(&json).expect("an object");
    let error = refused["error"].as_str().unwrap_or_default();
    assert!(code == Some(2) && error.contains("prints version 1 of its JSON"), "{json}");
    mounted.unmount();
    mounted.holdfast(&["check", &pool]);
}
