//! A server as its user meets it: names of any bytes, signals, and a server that does not answer.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use front::fuse::mountpoint::{self, Mountpoint};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{HOLDFAST, Mounted, can_mount, write};

/// Runs the program, with its sockets in `work`.
fn holdfast(work: &Path, arguments: &[&OsStr]) -> Output {
    Command::new(HOLDFAST)
        .args(arguments)
        .env("HOLDFAST_RUN_DIR", work)
        .output()
        .expect("the program can be started")
}

/// Returns what the program says on both outputs, after asserting its exit code.
#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Goal: a path may be any bytes. Method: pool, directory, log and file have names that are no
/// UTF-8, and each command is given them, as text and as JSON.
#[test]
fn every_command_takes_names_that_are_no_text() {
    if !can_mount("every_command_takes_names_that_are_no_text") {
        return;
    }
    let mounted = Mounted::new();
    let work = mounted.work.clone();
    let named = |name: &[u8]| work.join(OsStr::from_bytes(name));
    let (pool, directory, log) = (named(b"p\xff.hf"), named(b"mn\xff"), named(b"l\xff"));
    fs::create_dir(&directory).expect("the name is new");
    let run = |arguments: &[&OsStr]| said(&holdfast(&work, arguments), 0);
    let word = OsStr::new;
    let (path, mount) = (pool.as_os_str(), directory.as_os_str());

    let created = run(&[word("--json"), word("create"), path, word("--size"), word("64M")]);
    assert!(created.contains("p\u{fffd}.hf"), "{created}");
    run(&[word("check"), path]);
    run(&[word("--json"), word("check"), path]);
    run(&[word("mount"), path, mount, word("--daemon"), word("--log-file"), log.as_os_str()]);
    assert!(log.exists(), "the log has the name that was given");
    let file: PathBuf = directory.join(OsStr::from_bytes(b"f\xfe"));
    write(&file, b"data");
    let ranged: OsString = [file.as_os_str(), word(":0-3")].into_iter().collect();
    run(&[word("explain"), &ranged]);
    run(&[word("--json"), word("explain"), file.as_os_str()]);
    for of in [path, mount] {
        let status = run(&[word("status"), of, word("--json")]);
        assert!(status.contains("mn\u{fffd}"), "{status}");
    }
    run(&[word("--json"), word("unmount"), mount]);
    let inside = OsStr::from_bytes(b"/f\xfe:0-3");
    run(&[word("explain"), word("--pool"), path, inside]);
    run(&[word("check"), path]);
    mounted.finish();
}

/// Serves the pool again, in the foreground, by a program that starts with the words of `before`;
/// returns it when the mount answers, and then its socket.
fn serve(mounted: &Mounted, before: &[&str]) -> Child {
    serve_logging_to(Stdio::null(), mounted, before)
}

fn serve_logging_to(log: Stdio, mounted: &Mounted, before: &[&str]) -> Child {
    let (pool, directory) = (mounted.text("pool.hf"), mounted.text("mnt"));
    let words = [before, &[HOLDFAST, "mount", &pool, &directory]].concat();
    let mut server = Command::new(words[0])
        .args(&words[1..])
        .env("HOLDFAST_RUN_DIR", &mounted.work)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("the program can be started");
    let is_live = || matches!(mountpoint::inspect(&mounted.root()), Ok(Mountpoint::Live { .. }));
    let has_status = || holdfast(&mounted.work, &["status", &directory].map(OsStr::new)).status;
    while !(is_live() && has_status().success()) {
        assert_eq!(server.try_wait().expect("it is ours"), None, "it ends instead of mounting");
        std::thread::yield_now();
    }
    server
}

/// Sends a signal; one that stops the server has stopped all its threads when this returns.
fn send(server: &Child, signal: Signal) {
    let server = Pid::from_child(server);
    kill_process(server, signal).expect("it runs");
    if signal == Signal::STOP {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(server), stopped).expect("it is a child");
    }
}

/// Goal: a signal that asks a server to go is no crash: the directory is free, the pool closed.
#[test]
fn signals_that_end_a_server_close_its_pool() {
    if !can_mount("signals_that_end_a_server_close_its_pool") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    // Whoever runs the tests may ignore SIGHUP, and so would they.
    let heeding = ["env", "--default-signal=HUP"];
    for signal in [Signal::HUP, Signal::QUIT, Signal::TERM, Signal::INT] {
        let mut server = serve(&mounted, &heeding);
        write(&mounted.path("file"), b"data");
        send(&server, signal);
        let ended = server.wait().expect("it is a child");
        assert!(ended.success(), "{signal:?}: {ended}");
        let state = mountpoint::inspect(&mounted.root()).expect("stat");
        assert_eq!(state, Mountpoint::Free, "{signal:?}");
    }
    let mut server = serve(&mounted, &["nohup"]);
    send(&server, Signal::HUP);
    assert_eq!(fs::read(mounted.path("file")).expect("it serves on"), b"data");
    let status = holdfast(&mounted.work, &["status", "--json"].map(OsStr::new));
    assert!(said(&status, 0).contains(r#""was_needed":false"#), "the pool was closed before");
    send(&server, Signal::TERM);
    assert!(server.wait().expect("it is a child").success());
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: where the log cannot be written, as on a full disk, nothing is lost but the log. Method: a
/// server that logs every request to a device that is always full.
#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    if !can_mount("a_log_that_cannot_be_written_stops_nothing") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let full = fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut server = serve_logging_to(full.into(), &mounted, &["env", "HOLDFAST_LOG=trace"]);
    write(&mounted.path("file"), b"data");
    assert_eq!(fs::read(mounted.path("file")).expect("it serves on"), b"data");
    send(&server, Signal::TERM);
    let ended = server.wait().expect("it is a child");
    assert!(ended.success(), "{ended}");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: a mount whose server never answers is shown, and taken away within the time that was
/// given; so is one whose server was killed. Method: a server is stopped, then killed.
#[test]
fn a_server_that_does_not_answer_is_told_and_unmounted() {
    if !can_mount("a_server_that_does_not_answer_is_told_and_unmounted") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let (work, directory) = (mounted.work.clone(), mounted.text("mnt"));
    let run = |arguments: &[&str]| {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        holdfast(&work, &arguments)
    };
    for mode in [&["--timeout", "100ms"][..], &["--lazy", "--timeout", "100ms"]] {
        let mut server = serve(&mounted, &[]);
        send(&server, Signal::STOP);
        let silent = format!("does not answer (process {})", server.id());
        let told = said(&run(&["status"]), 0);
        assert!(told.contains(&silent) && told.contains(&directory), "{told}");
        let told = said(&run(&["status", &directory]), 1);
        assert!(told.contains(&silent), "{told}");
        let told = said(&run(&[&["unmount", &directory], mode].concat()), 1);
        assert!(told.contains(&format!("(process {}) does not answer", server.id())), "{told}");
        let entry = mountpoint::mounted_on(&mounted.root()).expect("it is readable");
        assert_eq!(entry, None, "{mode:?}");
        send(&server, Signal::CONT);
        assert!(server.wait().expect("it is a child").success(), "it closes the pool");
    }
    let mut server = serve(&mounted, &[]);
    server.kill().expect("it runs");
    server.wait().expect("it is a child");
    for arguments in [&["status"][..], &["status", &directory]] {
        let told = run(arguments);
        let told = said(&told, i32::from(arguments.len() > 1));
        assert!(told.contains("its server is gone: `holdfast unmount"), "{told}");
    }
    let told = said(&run(&["unmount", &directory]), 0);
    assert!(told.contains("whose server died"), "{told}");
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: no command waits for a server that does not answer, whatever path leads to its mount; each
/// names the path, the process and what to do. Method: a server is stopped, and each command is
/// given a path below its mount, one by way of a link, and a minute.
#[test]
fn no_command_waits_for_a_server_that_does_not_answer() {
    if !can_mount("no_command_waits_for_a_server_that_does_not_answer") {
        return;
    }
    let mounted = Mounted::new();
    mounted.unmount();
    let mut server = serve(&mounted, &[]);
    fs::create_dir(mounted.path("below")).expect("it is empty");
    write(&mounted.path("file"), b"content");
    let (link, other) = (mounted.text("link"), mounted.text("other.hf"));
    std::os::unix::fs::symlink("mnt/below", &link).expect("the name is new");
    mounted.holdfast(&["create", &other, "--size", "64M"]);
    send(&server, Signal::STOP);
    let (root, below, file) =
        (mounted.text("mnt"), mounted.text("mnt/below"), mounted.text("mnt/file"));
    let group = format!("mirror:{other},{file}");
    let silent = format!("its server does not answer (process {})", server.id());
    let asked = [
        (&["mount", &other, &below, "--daemon"][..], &below, 1),
        (&["mount", &other, &root, "--daemon"], &root, 1),
        (&["mount", &file, &mounted.text("other"), "--daemon"], &file, 1),
        (&["status", &below], &below, 1),
        (&["explain", &file], &file, 1),
        (&["explain", &format!("{file}:0-3")], &file, 1),
        (&["explain", &format!("{root}:0")], &root, 1),
        (&["explain", &link], &link, 1),
        (&["unmount", &format!("{link}/more")], &link, 1),
        (&["check", &file], &file, 8),
        (&["create", &file, "--size", "64M"], &file, 1),
        (&["device", "add", &other, &file, "--spare", "--force"], &file, 1),
        (&["device", "replace", &other, "0", &file, "--force"], &file, 1),
        (&["group", "add", &other, &group, "--force"], &file, 1),
    ];
    let running = asked.map(|(arguments, path, code)| {
        let mut command = Command::new("timeout");
        command.args(["60", HOLDFAST]).args(arguments).env("HOLDFAST_RUN_DIR", &mounted.work);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        (child.expect("timeout is there"), path, code)
    });
    for (child, path, code) in running {
        let told = said(&child.wait_with_output().expect("it is a child"), code);
        for words in [path, &silent, "kill -CONT"] {
            assert!(told.contains(words), "{words}: {told}");
        }
    }
    send(&server, Signal::CONT);
    mounted.holdfast(&["explain", &file]);
    mounted.holdfast(&["mount", &other, &link, "--daemon"]);
    mounted.holdfast(&["unmount", &link]);
    mounted.holdfast(&["unmount", &root]);
    assert!(server.wait().expect("it is a child").success());
    mounted.mount(&[]);
    mounted.finish();
}

/// Goal: a number of another file system is never taken for one of the pool's. Method: a link from
/// elsewhere and the pool's own file are explained.
#[test]
fn a_link_from_elsewhere_is_explained_as_what_it_leads_to() {
    if !can_mount("a_link_from_elsewhere_is_explained_as_what_it_leads_to") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), b"content");
    let (link, file) = (mounted.text("link"), mounted.text("mnt/file"));
    std::os::unix::fs::symlink("mnt/file", &link).expect("the name is new");
    let explained = |path: &str| said(&mounted.run(&["explain", path]), 0);
    assert!(explained(&file).contains("dirent: \"file\""), "{}", explained(&file));
    assert_eq!(explained(&link), explained(&file));
    let told = said(&mounted.run(&["explain", &mounted.text("pool.hf")]), 1);
    assert!(told.contains("is in no mounted pool of yours"), "{told}");
    mounted.finish();
}

/// Goal: what makes no sense exits 2 and says what would, whoever notices it.
#[test]
fn the_real_program_refuses_nonsense_as_usage() {
    let work = std::env::temp_dir().join(format!("holdfast-usage-{}", std::process::id()));
    fs::create_dir_all(&work).expect("the name is new");
    let pool = work.join("pool.hf");
    let pool = pool.to_str().expect("the path is ASCII");
    for (arguments, code, words) in [
        (&["create", pool, "--size", "15E"][..], 2, "too many for a pool"),
        (&["create", pool, "--size", "16E"], 2, "a byte less than 16 EiB"),
        (&["create", pool, "--size", "64M"], 0, ""),
        (&["dump", pool, "senseless"], 2, "say superblock"),
    ] {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let told = said(&holdfast(&work, &arguments), code);
        assert!(told.contains(words), "{told}");
    }
    // A page that every mount reads, zeroed: the refusal says what to do.
    let root = holdfast(&work, &["explain", "--pool", pool, "/"].map(OsStr::new));
    let root = said(&root, 0);
    let offset = root.lines().find(|line| line.trim_start().starts_with("anode"));
    let offset = offset.and_then(|line| line.rsplit_once("device byte ")?.1.parse().ok());
    let device = fs::File::options().write(true).open(pool).expect("it is ours");
    device.write_all_at(&[0; 4096], offset.expect("it has a place")).expect("it is ours");
    let work_name = work.to_str().expect("the path is ASCII");
    let told = holdfast(&work, &["mount", pool, work_name].map(OsStr::new));
    let told = said(&told, 1);
    assert!(told.contains("corrupt") && told.contains("run `holdfast check"), "{told}");
    fs::remove_dir_all(&work).expect("it is ours");
}
