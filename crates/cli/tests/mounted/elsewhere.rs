//! A member of a pool that lies where neither a label nor a folder leads: `--member` names it, for
//! each command that opens the pool.

use std::fs;

use crate::{Mounted, can_mount, write};

/// Goal: whatever opens a pool by a path finds a member that was moved where `--member` says, and
/// names the one that is missing without it; a path that is not there, or of another pool, is
/// refused by name. Method: a pool of two disk groups, the device of the second in another folder.
#[test]
fn each_command_that_opens_a_pool_takes_a_member_from_elsewhere() {
    if !can_mount("each_command_that_opens_a_pool_takes_a_member_from_elsewhere") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let made = |folder: &str| fs::create_dir(mounted.text(folder)).expect("the name is new");
    ["a", "b"].into_iter().for_each(made);
    let [pool, other] = ["a/d0", "b/d1"].map(|name| mounted.text(name));
    let first = format!("mirror:{pool},{}", mounted.text("a/d2"));
    let second = format!("single:{other}");
    mounted.holdfast(&["create", "--group", &first, "--group", &second, "--size", "64M"]);
    let (directory, tree) = (mounted.text("mnt"), mounted.text("tree"));
    mounted.holdfast(&["mount", &pool, &directory, "--daemon"]);
    mounted.holdfast(&["placement", "set", &directory, "/", "1"]);
    write(&mounted.path("file"), &[7; 1 << 20]);
    mounted.holdfast(&["snapshot", "create", &format!("{pool}:root@monday")]);
    mounted.unmount();
    // What opens the pool to change it notes where its members are: each finds it anew.
    let mut far = other;
    let mut move_on = |number: usize| {
        made(&format!("far{number}"));
        let next = mounted.text(&format!("far{number}/d1"));
        fs::rename(std::mem::replace(&mut far, next.clone()), &next).expect("it is ours");
        next
    };
    let told = |arguments: &[&str]| {
        let output = mounted.run(arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let root = format!("{pool}:root");
    let [snapshot, later] = ["monday", "later"].map(|name| format!("{root}@{name}"));
    let (home, spare) = (format!("{pool}:home"), mounted.text("spare"));
    let (missing, foreign) = (mounted.text("nowhere"), mounted.text("pool.hf"));
    let commands: [&[&str]; 16] = [
        &["device", "list", &pool],
        &["device", "add", &pool, &spare, "--spare"],
        &["group", "list", &pool],
        &["scrub", &pool, "--wait"],
        &["fileset", "list", &pool],
        &["fileset", "create", &home],
        &["snapshot", "list", &root],
        &["snapshot", "create", &later],
        &["quota", "report", &root],
        &["placement", "show", &root, "/file"],
        &["diff", &snapshot, &later],
        &["send", &snapshot],
        &["copy-out", &pool, &tree],
        &["check", &pool],
        &["dump", &pool, "journal"],
        &["explain", "--pool", &pool, "/file"],
    ];
    for (number, command) in commands.into_iter().enumerate() {
        let far = move_on(number);
        let (is_done, refusal) = told(command);
        // What the labels say is told all the same, and why the pool is not open.
        let is_told = command.starts_with(&["device", "list"]);
        assert!(is_done == is_told && refusal.contains("/d1"), "{command:?}: {refusal}");
        for (wrong, words) in [(&missing, "nowhere"), (&foreign, "pool.hf")] {
            let (is_done, refusal) = told(&[command, &["--member", wrong]].concat());
            assert!(!is_done && refusal.contains(words), "{command:?}: {refusal}");
        }
        let (is_done, refusal) = told(&[command, &["--member", &far]].concat());
        assert!(is_done, "{command:?}: {refusal}");
    }
    let far = move_on(commands.len());
    mounted.holdfast(&["mount", &pool, &directory, "--daemon", "--member", &far]);
    mounted.unmount();
    mounted.holdfast(&["check", &pool, "--member", &far]);
}
