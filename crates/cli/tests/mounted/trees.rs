//! `holdfast copy-in` and `holdfast copy-out`, by the server of a pool and without one.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{HOLDFAST, Mounted, can_mount, write};

fn told(mounted: &Mounted, arguments: &[&str]) -> (bool, String) {
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[track_caller]
fn done(mounted: &Mounted, arguments: &[&str], words: &str) {
    let (is_done, text) = told(mounted, arguments);
    assert!(is_done && text.contains(words), "{arguments:?}: {text}");
}

#[track_caller]
fn refused(mounted: &Mounted, arguments: &[&str], words: &str) {
    let (is_done, text) = told(mounted, arguments);
    assert!(!is_done && text.contains(words), "{arguments:?}: {text}");
}

/// A tree with what only root makes.
fn fill(root: &Path) {
    fs::create_dir_all(root.join("d/e")).expect("it is new");
    write(&root.join("d/file"), &b"content".repeat(10_000));
    fs::hard_link(root.join("d/file"), root.join("d/e/again")).expect("it is new");
    symlink("../file", root.join("d/e/link")).expect("it is new");
    std::os::unix::fs::chown(root.join("d/file"), Some(1234), Some(5678)).expect("root may");
    fs::set_permissions(root.join("d/file"), fs::Permissions::from_mode(0o6755)).expect("root may");
    let mode = rustix::fs::Mode::RUSR;
    let device = rustix::fs::makedev(1, 300);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("null"), kind, mode, device).expect("root may");
    let acl =
        Command::new("setfacl").args(["-d", "-m", "u:1234:rx"]).arg(root.join("d/e")).status();
    if acl.is_ok_and(|status| status.success()) {
        let _ = Command::new("setfacl").args(["-m", "u:77:r"]).arg(root.join("d/file")).status();
    }
}

#[track_caller]
fn same(one: &Path, other: &Path) {
    let mut diff = Command::new("diff");
    diff.args(["-r", "--no-dereference"]).arg(one.join("d")).arg(other.join("d"));
    let status = diff.status().expect("it is installed");
    assert!(status.success());
    let [one, other] = [one, other].map(|root| {
        let metadata = fs::symlink_metadata(root.join("d/file")).expect("it is there");
        let device = fs::symlink_metadata(root.join("null")).expect("it is there").rdev();
        let (mode, mtime) = (metadata.mode(), (metadata.mtime(), metadata.mtime_nsec()));
        (mode, metadata.uid(), metadata.gid(), metadata.nlink(), mtime, device)
    });
    assert_eq!(one, other);
}

/// Goal: the commands do the same with a server and without; what a mount would not see is refused.
#[test]
fn trees_go_in_and_out_served_or_not() {
    if !can_mount("trees_go_in_and_out_served_or_not") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, from) = (mounted.text("pool.hf"), mounted.text("from"));
    fill(Path::new(&from));
    let a = format!("{pool}:a");
    mounted.holdfast(&["fileset", "create", &a]);
    for is_served in [true, false] {
        if !is_served {
            mounted.unmount();
        }
        let path = format!("/served-{is_served}");
        done(&mounted, &["copy-in", &from, &a, "--path", &path, "--verify"], "are verified");
        done(&mounted, &["copy-in", &from, &a, "--path", &path], "0 files");
        let to = mounted.text(&format!("to-{is_served}"));
        done(&mounted, &["copy-out", &a, &to, "--path", &path, "--verify"], "are verified");
        same(Path::new(&from), Path::new(&to));
        done(&mounted, &["copy-out", &a, &to, "--path", &path], "0 files");
        let tar = mounted.text(&format!("{is_served}.tar"));
        done(&mounted, &["copy-out", &a, &tar, "--path", &path, "--verify"], "are verified");
        refused(&mounted, &["copy-out", &a, &tar, "--path", &path], "not there yet");
        let unpacked = mounted.text(&format!("unpacked-{is_served}"));
        fs::create_dir(&unpacked).expect("the name is new");
        let mut command = Command::new("tar");
        command.args(["-xpf", &tar, "-C", &unpacked, "--numeric-owner"]);
        assert!(command.status().expect("it is installed").success());
        same(Path::new(&from), Path::new(&unpacked));
        refused(&mounted, &["copy-in", &from, &format!("{pool}:none")], "there is no fileset none");
        // What was not found leaves nothing that would be in the way.
        for target in [mounted.text("left.tar"), mounted.text("left")] {
            for _ in 0..2 {
                let tried = ["copy-out", &a, &target, "--path", "/nothing"];
                refused(&mounted, &tried, "no such file");
                assert!(!Path::new(&target).exists(), "{target} is left");
            }
        }
    }
    mounted.mount(&[]);
    refused(&mounted, &["copy-in", &from, &format!("{pool}:root")], "it is mounted on");
    // It may be read, and so may its snapshots.
    write(&mounted.path("file"), b"of root");
    mounted.holdfast(&["snapshot", "create", &format!("{pool}:root@monday")]);
    let to = mounted.text("to-snapshot");
    done(&mounted, &["copy-out", &format!("{pool}:root@monday"), &to], "1 files");
    assert_eq!(fs::read(Path::new(&to).join("file")).expect("it is there"), b"of root");
    // What is written there would be read again.
    fs::create_dir(mounted.path("sub")).expect("the name is new");
    let root = mounted.text("mnt");
    for target in ["mnt/out", "mnt/sub", "mnt/sub/out", "mnt/all.tar"] {
        let target = mounted.text(target);
        refused(&mounted, &["copy-out", &root, &target], "into itself");
        assert!(!target.contains("out") || !Path::new(&target).exists(), "{target}");
    }
    let beside = mounted.text("mnt/beside");
    done(&mounted, &["copy-out", &root, &beside, "--path", "/sub"], "0 files");
    // Nobody holds it any more.
    mounted.holdfast(&["fileset", "delete", &a, "--wait"]);
    mounted.finish();
}

/// Goal: what GNU tar writes comes in, by a pipe too, with holes in each of its formats.
#[test]
fn archives_of_gnu_tar_come_in() {
    if !can_mount("archives_of_gnu_tar_come_in") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, from) = (mounted.text("pool.hf"), mounted.text("from"));
    fill(Path::new(&from));
    let long = Path::new(&from).join("n".repeat(200));
    write(&long, b"long");
    let holes = fs::File::create(Path::new(&from).join("holes")).expect("it is new");
    holes.set_len(4 << 20).expect("it is ours");
    std::os::unix::fs::FileExt::write_all_at(&holes, b"here", 2 << 20).expect("there is room");
    mounted.unmount();
    for (number, format) in ["--format=gnu", "--format=posix", "--format=ustar"].iter().enumerate()
    {
        let mut pack = Command::new("tar");
        pack.args(["-cf", "-", format, "-C", &from, "--numeric-owner"]);
        // One of them has neither holes nor names of that length.
        let is_old = *format == "--format=ustar";
        pack.args(if is_old { &["--exclude=holes", "--exclude=nnn*"][..] } else { &["-S"] });
        let packed = pack.arg(".").stdin(Stdio::null()).output().expect("it is installed");
        assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
        let path = format!("/{number}");
        let mut copying = Command::new(HOLDFAST);
        copying
            .args(["copy-in", "-", &pool, "--path", &path])
            .env("HOLDFAST_RUN_DIR", &mounted.work);
        copying.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut copying = copying.spawn().expect("it can be started");
        let mut pipe = copying.stdin.take().expect("it is piped");
        pipe.write_all(&packed.stdout).expect("it reads all");
        drop(pipe);
        let output = copying.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{format}: {text}{:?}", output.stdout);
    }
    mounted.mount(&[]);
    for number in 0..3 {
        let root = mounted.path(&number.to_string());
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).arg(Path::new(&from).join("d")).arg(root.join("d"));
        assert!(diff.status().expect("it is installed").success());
        if number < 2 {
            let one = fs::read(Path::new(&from).join("holes")).expect("it is there");
            let metadata = fs::metadata(root.join("holes")).expect("it is there");
            assert!(fs::read(root.join("holes")).expect("it is there") == one);
            assert!(metadata.blocks() * 512 < 1 << 20, "{} blocks", metadata.blocks());
            assert_eq!(fs::read(root.join("n".repeat(200))).expect("it is there"), b"long");
        }
    }
    mounted.finish();
}

/// Goal: ^C stops a copy-in in the server, exits with 130 and says how to continue. Method: an
/// archive from a pipe that never ends.
#[test]
fn an_interrupted_copy_in_says_how_to_continue() {
    if !can_mount("an_interrupted_copy_in_says_how_to_continue") {
        return;
    }
    let mounted = Mounted::new();
    let a = format!("{}:a", mounted.text("pool.hf"));
    mounted.holdfast(&["fileset", "create", &a]);
    let mut command = Command::new(HOLDFAST);
    command.args(["copy-in", "-", &a]).env("HOLDFAST_RUN_DIR", &mounted.work);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program can be started");
    let pid = rustix::process::Pid::from_child(&child);
    // Until the program catches SIGINT, bit 1 of the mask.
    let catches = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask");
        u64::from_str_radix(mask.trim(), 16).expect("it is hexadecimal") & 2 != 0
    };
    while !catches() {
        assert_eq!(child.try_wait().expect("it is ours"), None, "it ends too early");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let mut told = String::new();
    let mut stderr = child.stderr.take().expect("it is a pipe");
    std::io::Read::read_to_string(&mut stderr, &mut told).expect("it is text");
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{told}");
    assert!(told.contains("interrupted") && told.contains("--skip-same continues"), "{told}");
    // The server has stopped too.
    mounted.holdfast(&["fileset", "delete", &a, "--wait"]);
    mounted.finish();
}
