//! Snapshots compared, sent and received by the program, from a mounted pool and to one, and
//! without a server.

use std::fs::{self, File};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::{HOLDFAST, Mounted, can_mount, write};

/// Runs the program with a file as its standard input.
pub(crate) fn run_with(mounted: &Mounted, arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(HOLDFAST);
    command.args(arguments).env("HOLDFAST_RUN_DIR", &mounted.work);
    let input = File::open(mounted.work.join(input)).expect("the test wrote it");
    command.stdin(Stdio::from(input)).output().expect("the program can be started")
}

pub(crate) fn text_of(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Goal: diff, send and receive do the same on a mounted pool, through a descriptor that is passed
/// to its server, and on one that is not. Method: a small tree in three states, sent to a second
/// pool, with a stream that breaks off and goes on by the token that is told.
#[test]
fn snapshots_are_compared_sent_and_received_mounted_or_not() {
    if !can_mount("snapshots_are_compared_sent_and_received_mounted_or_not") {
        return;
    }
    for is_mounted in [true, false] {
        let mounted = Mounted::new();
        let (pool, vault) = (mounted.text("pool.hf"), mounted.text("vault.hf"));
        let does = |words: &str| {
            let words = words.replace("POOL", &pool).replace("VAULT", &vault);
            let output = mounted.run(&words.split(' ').collect::<Vec<_>>());
            assert!(output.status.success(), "{words}: {}", text_of(&output));
            output
        };
        does("create VAULT --size 64M");
        write(&mounted.path("kept"), b"kept");
        write(&mounted.path("gone"), b"gone");
        write(&mounted.path("moved"), b"moved");
        does("snapshot create POOL:root@a");
        fs::remove_file(mounted.path("gone")).expect("it is there");
        fs::rename(mounted.path("moved"), mounted.path("here")).expect("it is there");
        write(&mounted.path("new"), &[7; 100_000]);
        does("snapshot create POOL:root@b");
        write(&mounted.path("big"), &vec![9; 60 << 20]);
        does("snapshot create POOL:root@big");
        fs::remove_file(mounted.path("big")).expect("it is there");
        if !is_mounted {
            mounted.unmount();
        }
        let told = does("diff POOL:root@a POOL:root --json").stdout;
        let told: Vec<Value> = String::from_utf8_lossy(&told)
            .lines()
            .map(|line| serde_json::from_str(line).expect("one object a line"))
            .collect();
        let told: Vec<String> =
            told.iter().map(|it| format!("{} {}", it["became"], it["path"])).collect();
        let expected = [r#""removed" "gone""#, r#""renamed" "here""#, r#""created" "new""#];
        assert_eq!(told, expected);
        // A heading, and three snapshots.
        assert_eq!(
            does("snapshot list POOL:root").stdout.iter().filter(|&&it| it == b'\n').count(),
            4
        );

        let whole = does("send POOL:root@a").stdout;
        fs::write(mounted.work.join("whole"), &whole).expect("there is room");
        let next = does("send POOL:root@b --from @a").stdout;
        fs::write(mounted.work.join("next"), &next).expect("there is room");
        fs::write(mounted.work.join("half"), &next[..next.len() / 2]).expect("there is room");

        let small = mounted.text("small.hf");
        does(&format!("create {small} --size 64M"));
        let big = does("send POOL:root@big").stdout;
        fs::write(mounted.work.join("big"), &big).expect("there is room");
        let short = run_with(&mounted, &["receive", &format!("{small}:c"), "--dry-run"], "big");
        assert_eq!(short.status.code(), Some(1), "{}", text_of(&short));
        assert!(text_of(&short).contains("there is room for"), "{}", text_of(&short));

        let copy = format!("{vault}:copy");
        let receive = |input: &str, options: &[&str]| {
            run_with(&mounted, &[&["receive", &copy], options].concat(), input)
        };
        if is_mounted {
            // The vault is served as well: its server gets the descriptor.
            mounted.unmount();
            mounted.holdfast(&["mount", &vault, &mounted.text("mnt"), "--daemon"]);
        }
        let dry = receive("whole", &["--dry-run"]);
        assert!(dry.status.success(), "{}", text_of(&dry));
        let done = receive("whole", &[]);
        assert!(done.status.success(), "{}", text_of(&done));
        let broken = receive("half", &[]);
        let said = text_of(&broken);
        assert!(!broken.status.success() && said.contains("--resume "), "{said}");
        let token = said.split("--resume ").nth(1).and_then(|it| it.split('`').next());
        let token = token.expect("it is told");
        let list = text_of(&does("fileset list VAULT"));
        assert!(list.contains("receiving"), "{list}");
        let rest = does(&format!("send POOL:root@b --from @a --resume {token}")).stdout;
        fs::write(mounted.work.join("rest"), &rest).expect("there is room");
        let done = receive("rest", &["--json"]);
        assert!(done.status.success(), "{}", text_of(&done));
        let facts: Value = serde_json::from_slice(&done.stdout).expect("one object");
        assert_eq!(facts["snapshot"], "b");
        let again = receive("next", &[]);
        assert!(text_of(&again).contains("newest snapshot"), "{}", text_of(&again));
        let none = mounted.run(&["receive", &copy, "--abort"]);
        assert!(text_of(&none).contains("nothing of a stream"), "{}", text_of(&none));
        if is_mounted {
            mounted.unmount();
        }
        mounted.holdfast(&["mount", &copy, &mounted.text("mnt"), "--daemon"]);
        assert_eq!(fs::read(mounted.path("here")).expect("it is there"), b"moved");
        assert_eq!(fs::read(mounted.path("new")).expect("it is there"), [7; 100_000]);
        assert!(!mounted.path("gone").exists() && mounted.path("kept").exists());
        mounted.unmount();
        mounted.holdfast(&["check", &vault]);
    }
}
