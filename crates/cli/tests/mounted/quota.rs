//! Quotas of filesets and of users, as programs of real users meet them.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{fs, io};

use serde_json::Value;

use crate::{Mounted, can_mount, errno, write};

/// Users of the tests: nobody has these numbers.
const ANN: u32 = 40_001;
const BEN: u32 = 40_002;
const EDQUOT: i32 = 122;

/// Runs a line of a shell as a user; returns whether all of it was done, and what was said.
fn as_user(mounted: &Mounted, uid: u32, line: &str) -> (bool, String) {
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(mounted.root()).uid(uid).gid(uid);
    let output = shell.output().expect("there is a shell");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn lines(mounted: &Mounted, arguments: &[&str]) -> Vec<Value> {
    let output = mounted.run(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
}

fn used(mounted: &Mounted, kind: &str, id: u32) -> (u64, u64) {
    let report = lines(mounted, &["quota", "report", &mounted.text("mnt"), kind, "--json"]);
    let account = report.iter().find(|it| it["id"] == id);
    account.map_or((0, 0), |it| {
        (it["used_bytes"].as_u64().unwrap_or(0), it["inodes"].as_u64().unwrap_or(0))
    })
}

/// Goal: a user is stopped at his limits, another is not, root is not; what he has follows a chown,
/// and all is there after a mount.
#[test]
fn users_are_stopped_at_their_limits() {
    if !can_mount("users_are_stopped_at_their_limits") {
        return;
    }
    let mounted = Mounted::new();
    let directory = mounted.text("mnt");
    fs::set_permissions(mounted.root(), fs::Permissions::from_mode(0o1777)).expect("it is ours");
    mounted.holdfast(&["quota", "on", &directory]);
    let (ann, ben) = (ANN.to_string(), BEN.to_string());
    let set = |words: &[&str]| {
        mounted.holdfast(&[&["quota", "set", &directory, "--user", &ann], words].concat());
    };
    set(&["--blocks-hard", "1M", "--ihard", "4"]);
    let graces =
        |words: &[&str]| lines(&mounted, &[&["quota", "grace", &directory], words].concat());
    graces(&["--blocks", "2d", "--json"]);
    let shown = graces(&["--json"]);
    assert_eq!(shown[0]["grace_seconds"]["blocks"], 2 * 86_400, "{shown:?}");
    assert_eq!(shown[0]["grace_seconds"]["inodes"], 7 * 86_400, "{shown:?}");
    let fill = "dd if=/dev/zero of=FILE bs=64k count=32 conv=fsync";
    let (is_done, said) = as_user(&mounted, ANN, &fill.replace("FILE", "a"));
    assert!(!is_done && said.contains("quota"), "{said}");
    let (bytes, inodes) = used(&mounted, "--user", ANN);
    // A map page may go past the limit.
    let most = (1 << 20) + (4 << 10);
    assert!((960 << 10..=most).contains(&bytes) && inodes == 1, "{bytes} in {inodes}");
    let (is_done, said) = as_user(&mounted, BEN, &fill.replace("FILE", "b"));
    assert!(is_done, "{said}");
    assert_eq!(used(&mounted, "--user", BEN).1, 1);
    assert_eq!(used(&mounted, "--group", BEN), used(&mounted, "--user", BEN));
    let (is_done, said) = as_user(&mounted, ANN, "touch n1 n2 n3 n4");
    assert!(!is_done && said.contains("n4") && said.contains("quota"), "{said}");
    let (is_done, said) = as_user(&mounted, ANN, "rm a n1; dd if=/dev/zero of=c bs=64k count=4");
    assert!(is_done, "{said}");

    // What root does for him is not refused.
    write(&mounted.path("root"), &vec![1; 2 << 20]);
    std::os::unix::fs::chown(mounted.path("root"), Some(ANN), None).expect("root may");
    assert!(used(&mounted, "--user", ANN).0 > 2 << 20);
    let (is_done, _) = as_user(&mounted, ANN, "dd if=/dev/zero of=d bs=64k count=1");
    assert!(!is_done, "past the limit");
    mounted.unmount();
    let offline = format!("{}:root", mounted.text("pool.hf"));
    let report = lines(&mounted, &["quota", "report", &offline, "--user", "--json"]);
    let of_ann = report.iter().find(|it| it["id"] == ANN).expect("she has files");
    assert_eq!(of_ann["blocks_hard_bytes"], 1 << 20);
    let unlimited = ["--blocks-hard", "none", "--ihard", "none"];
    mounted.holdfast(&[&["quota", "set", &offline, "--user", &ann], &unlimited[..]].concat());
    mounted.holdfast(&["quota", "set", &offline, "--user", &ben, "--bsoft", "4K"]);
    mounted.mount(&[]);
    let (is_done, said) = as_user(&mounted, ANN, "dd if=/dev/zero of=d bs=64k count=1");
    assert!(is_done, "{said}");
    let (is_done, said) = as_user(&mounted, BEN, "echo x > e; rm b");
    assert!(is_done, "in the grace: {said}");
    // Nobody but root and the server's own user changes limits.
    let refused = mounted.run(&["quota", "set", &directory, "--user", "0", "--ihard", "1"]);
    assert!(!refused.status.success(), "id 0 has no limits");
    mounted.holdfast(&["quota", "off", &directory]);
    mounted.finish();
}

/// Goal: a quota of a fileset stops root too, `df` tells what is left, and deleting makes room.
#[test]
fn a_quota_of_a_fileset_stops_everybody() {
    if !can_mount("a_quota_of_a_fileset_stops_everybody") {
        return;
    }
    let mounted = Mounted::new();
    let directory = mounted.text("mnt");
    mounted.holdfast(&["fileset", "set", &directory, "quota=4M"]);
    let sizes = rustix::fs::statvfs(mounted.root()).expect("it is mounted");
    assert_eq!(sizes.f_blocks * sizes.f_frsize, 4 << 20);
    let fill = |name: &str| -> io::Result<()> {
        fs::write(mounted.path(name), vec![7; 8 << 20])?;
        fs::File::open(mounted.path(name))?.sync_all()
    };
    assert_eq!(errno(fill("large")), EDQUOT);
    fs::remove_file(mounted.path("large")).expect("deleting works");
    fs::write(mounted.path("small"), vec![7; 2 << 20]).expect("there is room");
    mounted.holdfast(&["fileset", "set", &directory, "quota=1M"]);
    assert_eq!(errno(fill("large")), EDQUOT);
    mounted.holdfast(&["fileset", "set", &directory, "quota=none"]);
    fill("large").expect("there is no quota");
    mounted.finish();
}
