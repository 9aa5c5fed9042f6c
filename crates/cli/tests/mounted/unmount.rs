//! Unmounting what somebody else keeps: copies of the mount in other mount namespaces, and here.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use front::fuse::mountpoint;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::several::status;
use crate::{Mounted, can_mount, errno, first_line, write};

/// Far below `--timeout`, which is what an unmount that finds nobody would take.
const SOON: Duration = Duration::from_secs(30);

/// A process in a mount namespace of its own, as a container has one; ended with it.
struct Elsewhere(Child);

impl Elsewhere {
    /// Runs `script` there, says that it is ready, and asks for `root` when it gets a line.
    fn new(script: &str, root: &str) -> Elsewhere {
        let mut child = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sh", "-ec"])
            .arg(format!("{script}\necho ready; read line; stat -f {root} >/dev/null 2>&1"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        assert_eq!(first_line(&mut child), "ready\n");
        Elsewhere(child)
    }

    /// Lets it ask; returns whether it was answered. The kernel answers nothing of this itself.
    fn again(&mut self) -> bool {
        self.0.stdin.as_mut().expect("it is piped").write_all(b"\n").expect("it waits");
        self.0.wait().expect("it is a child").success()
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command that exits with `code`, well before any timeout; returns what it says.
#[track_caller]
fn told(mounted: &Mounted, arguments: &[&str], code: i32) -> String {
    let begun = Instant::now();
    let output = mounted.run(arguments);
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(begun.elapsed() < SOON, "it waited: {text}");
    text
}

/// Goal: a copy of the mount that some namespace inherited and nobody uses does not keep the pool
/// open: it is closed, and who has the copy is named.
#[test]
fn a_copy_that_nobody_uses_does_not_keep_a_pool_open() {
    if !can_mount("a_copy_that_nobody_uses_does_not_keep_a_pool_open") {
        return;
    }
    let mounted = Mounted::new();
    let mut elsewhere = Elsewhere::new(":", &mounted.text("mnt"));
    write(&mounted.path("file"), b"data");
    let text = told(&mounted, &["unmount", &mounted.text("mnt")], 0);
    let holder = format!("process {} (sh)", elsewhere.0.id());
    assert!(text.contains(&holder) && text.contains(&mounted.text("mnt")), "{text}");
    told(&mounted, &["check", &mounted.text("pool.hf")], 0);
    assert!(!elsewhere.again(), "what was cut off answers");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it was written"), b"data");
    mounted.finish();
}

/// Goal: who uses a copy of the mount elsewhere is named, at once, and left alone; `--force` cuts
/// it off and closes the pool with all that was written. Method: a process in another namespace
/// has a file open, or its directory there; it is let go, or not.
#[test]
fn who_uses_a_copy_elsewhere_is_named_and_cut_off_by_force() {
    if !can_mount("who_uses_a_copy_elsewhere_is_named_and_cut_off_by_force") {
        return;
    }
    let mounted = Mounted::new();
    let root = mounted.text("mnt");
    write(&mounted.path("file"), b"data");
    let uses = [format!("exec 3<{root}/file"), format!("cd {root}; cat file >/dev/null")];
    for (script, is_forced) in uses.iter().flat_map(|script| [(script, true), (script, false)]) {
        let mut elsewhere = Elsewhere::new(script, &root);
        write(&mounted.path("new"), b"new");
        let text = told(&mounted, &["unmount", &root], 1);
        let holder = format!("process {} (sh)", elsewhere.0.id());
        for words in [&*holder, "uses it", "--force`", "synced"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert_eq!(mountpoint::mounted_on(&mounted.root()).expect("readable"), None);
        if is_forced {
            told(&mounted, &["unmount", "--force", &root], 0);
            assert!(!elsewhere.again(), "what was cut off answers");
        } else {
            assert!(elsewhere.again(), "who was left alone can go on");
            while fs::read_dir(&mounted.work)
                .expect("ours")
                .any(|file| file.expect("ours").path().extension().is_some_and(|end| end == "sock"))
            {
                std::thread::yield_now();
            }
        }
        told(&mounted, &["check", &mounted.text("pool.hf")], 0);
        mounted.mount(&[]);
        assert_eq!(fs::read(mounted.path("new")).expect("it was synced"), b"new");
    }
    mounted.finish();
}

/// Goal: `--force` unmounts a directory in use here, and where it is bound to another.
#[test]
fn force_cuts_off_whoever_uses_a_mount_here() {
    if !can_mount("force_cuts_off_whoever_uses_a_mount_here") {
        return;
    }
    let mounted = Mounted::new();
    let (root, other) = (mounted.text("mnt"), mounted.text("other"));
    write(&mounted.path("file"), b"data");
    let held = fs::File::open(mounted.path("file")).expect("it is there");
    told(&mounted, &["unmount", &root], 1);
    told(&mounted, &["unmount", "--force", &root], 0);
    let mut byte = [0];
    let cut = errno(std::os::unix::fs::FileExt::read_at(&held, &mut byte, 0));
    assert!([Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error).contains(&cut), "{cut}");
    mounted.mount(&[]);

    fs::create_dir(&other).expect("the name is new");
    rustix::mount::mount_bind(&root, &other).expect("root may");
    let text = told(&mounted, &["unmount", &root], 1);
    assert!(text.contains(&format!("still mounted on {other}")), "{text}");
    told(&mounted, &["unmount", "--force", &root], 0);
    assert_eq!(mountpoint::mounted_on(other.as_ref()).expect("readable"), None);
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: `--force` of a directory that was detached cuts off what was mounted there, and no other
/// mount of its server. Method: two filesets of one pool; the second is detached while a file is
/// open.
#[test]
fn force_of_a_detached_directory_cuts_off_no_other_mount() {
    if !can_mount("force_of_a_detached_directory_cuts_off_no_other_mount") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, other) = (mounted.text("pool.hf"), mounted.text("other"));
    fs::create_dir(&other).expect("the name is new");
    mounted.holdfast(&["fileset", "create", &format!("{pool}:a")]);
    mounted.holdfast(&["mount", &format!("{pool}:a"), &other]);
    write(&mounted.work.join("other/file"), b"data");
    let held = fs::File::open(format!("{other}/file")).expect("it is there");
    mountpoint::detach(other.as_ref()).expect("root may");
    told(&mounted, &["unmount", "--force", &other], 0);
    let cut = errno(held.metadata());
    assert!([Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error).contains(&cut), "{cut}");
    write(&mounted.path("file"), b"the other mount answers");
    mounted.finish();
}

/// The server of the pool, whose sockets are taken away.
fn without_sockets(mounted: &Mounted) -> Pid {
    let facts = status(mounted, &mounted.text("mnt"));
    let pid = facts["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
    for entry in fs::read_dir(&mounted.work).expect("it is ours").flatten() {
        if entry.path().extension().is_some_and(|end| end == "sock") {
            fs::remove_file(entry.path()).expect("it is ours");
        }
    }
    pid.and_then(Pid::from_raw).expect("it has a number")
}

/// Goal: a mount whose server has no socket any more is told by `status`, which fails, and by each
/// command that is given the directory, a path below it, or the pool; it is unmounted all the same.
/// Servers of other run directories are none of those.
#[test]
fn a_server_without_a_socket_is_told_as_not_reachable() {
    if !can_mount("a_server_without_a_socket_is_told_as_not_reachable") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, root) = (mounted.text("pool.hf"), mounted.text("mnt"));
    write(&mounted.path("file"), b"data");
    let server = without_sockets(&mounted);
    let text = told(&mounted, &["status"], 1);
    let process = format!("{pool} on {root} (process {})", server.as_raw_nonzero());
    assert!(text.contains(&process) && text.contains("server not reachable"), "{text}");
    assert!(!text.contains("No pool is mounted"), "{text}");
    for arguments in [
        &["status", &root][..],
        &["status", &pool],
        &["status", &mounted.text("mnt/file")],
        &["snapshot", "create", &format!("{root}@a")],
        &["snapshot", "create", &format!("{pool}:root@a")],
        &["fileset", "list", &root],
        &["quota", "report", &root],
        &["explain", &mounted.text("mnt/file")],
        &["mount", &root, "-o", "remount,noatime"],
    ] {
        let text = told(&mounted, arguments, 1);
        let is_told = text.contains("server not reachable") && text.contains("holdfast unmount");
        assert!(is_told, "{arguments:?}: {text}");
    }
    let elsewhere = mounted.work.join("elsewhere");
    fs::create_dir(&elsewhere).expect("the name is new");
    let other = Command::new(crate::HOLDFAST)
        .args(["status", "--json"])
        .env("HOLDFAST_RUN_DIR", &elsewhere)
        .output()
        .expect("it starts");
    assert!(other.status.success() && other.stdout.is_empty(), "{other:?}");
    told(&mounted, &["unmount", &root], 0);
    told(&mounted, &["status"], 0);

    // The directory of the run directory has gone, too.
    let (outer, run) = (mounted.work.join("outer"), mounted.work.join("outer/run"));
    fs::create_dir(&outer).expect("the name is new");
    let told_in = |arguments: &[&str], code: i32| {
        let mut command = Command::new(crate::HOLDFAST);
        let output = command.args(arguments).env("HOLDFAST_RUN_DIR", &run).output();
        let output = output.expect("it starts");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        text
    };
    told_in(&["mount", &pool, &root, "--daemon"], 0);
    fs::remove_dir_all(&outer).expect("it is ours");
    for arguments in [&["status"][..], &["status", &root], &["fileset", "list", &root]] {
        assert!(told_in(arguments, 1).contains("server not reachable"));
    }
    told_in(&["unmount", &root], 0);
    told_in(&["status"], 0);
    let text = told_in(&["mount", &pool, &root, "--daemon"], 1);
    assert!(text.contains("set HOLDFAST_RUN_DIR"), "{text}");
    mounted.mount(&[]);
    assert_eq!(fs::read(mounted.path("file")).expect("it was written"), b"data");
    mounted.finish();
}

/// Goal: where the server cannot be asked, for its socket is gone, an unmount ends when the pool is
/// closed, and fails where it is not. Method: the server is stopped, goes on, is killed.
#[test]
fn an_unmount_waits_for_a_server_that_is_not_found() {
    if !can_mount("an_unmount_waits_for_a_server_that_is_not_found") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, root) = (mounted.text("pool.hf"), mounted.text("mnt"));
    write(&mounted.path("file"), b"data");
    without_sockets(&mounted);
    told(&mounted, &["unmount", &root], 0);
    told(&mounted, &["check", &pool], 0);

    mounted.mount(&[]);
    let server = without_sockets(&mounted);
    kill_process(server, Signal::STOP).expect("it runs");
    let text = told(&mounted, &["unmount", "--timeout", "1s", &root], 1);
    assert!(text.contains("did not answer") && text.contains("--lazy"), "{text}");
    let text = told(&mounted, &["unmount", "--lazy", "--timeout", "1s", &root], 1);
    let words = format!("still being closed by process {}", server.as_raw_nonzero());
    assert!(text.contains(&words), "{text}");
    kill_process(server, Signal::CONT).expect("it is there");
    mounted.mount(&[]);

    write(&mounted.path("new"), &[7; 100_000]);
    let server = without_sockets(&mounted);
    kill_process(server, Signal::STOP).expect("it runs");
    let text = std::thread::scope(|scope| {
        let unmount =
            scope.spawn(|| told(&mounted, &["unmount", "--lazy", "--timeout", "3s", &root], 1));
        while mountpoint::mounted_on(root.as_ref()).expect("readable").is_some() {
            std::thread::yield_now();
        }
        kill_process(server, Signal::KILL).expect("it is there");
        unmount.join().expect("it says so")
    });
    assert!(text.contains("ended without closing the pool"), "{text}");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: where the server cannot be asked and has another mount of the pool, an unmount does not
/// wait for its end.
#[test]
fn an_unmount_beside_another_mount_waits_for_no_end() {
    if !can_mount("an_unmount_beside_another_mount_waits_for_no_end") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, other) = (mounted.text("pool.hf"), mounted.text("other"));
    fs::create_dir(&other).expect("the name is new");
    mounted.holdfast(&["fileset", "create", &format!("{pool}:a")]);
    mounted.holdfast(&["mount", &format!("{pool}:a"), &other]);
    without_sockets(&mounted);
    let text = told(&mounted, &["unmount", &other], 0);
    assert!(text.contains("stays open") && text.contains(&mounted.text("mnt")), "{text}");
    write(&mounted.path("file"), b"data");
    mounted.finish();
}

/// Goal: a mount right behind umount(2) succeeds, however it comes: of a pool that is being closed,
/// with options that are for the whole pool, and of a fileset beside another mount.
#[test]
fn a_mount_right_behind_an_umount_waits_for_its_end() {
    if !can_mount("a_mount_right_behind_an_umount_waits_for_its_end") {
        return;
    }
    let mounted = Mounted::new();
    let root = mounted.root();
    for round in 0..20_usize {
        write(&mounted.path("file"), &vec![7; 100_000 * (round + 1)]);
        mountpoint::unmount(&root).expect("root may");
        let size = ["128M", "256M"][round % 2];
        let options = ["--cache", size];
        mounted.mount(if round % 4 < 2 { &options } else { &[] });
        assert_eq!(fs::metadata(mounted.path("file")).expect("it is").len() % 100_000, 0);
    }
    let (pool, other) = (mounted.text("pool.hf"), mounted.text("other"));
    fs::create_dir(&other).expect("the name is new");
    mounted.holdfast(&["fileset", "create", &format!("{pool}:a")]);
    for _ in 0..20 {
        mounted.holdfast(&["mount", &format!("{pool}:a"), &other]);
        write(&mounted.work.join("other/file"), &[7; 300_000]);
        mountpoint::unmount(other.as_ref()).expect("root may");
    }
    mounted.finish();
}
