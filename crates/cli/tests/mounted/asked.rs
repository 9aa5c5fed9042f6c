//! What a server says of itself, whatever it is asked and whatever is done to its pool's file.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{Mounted, can_mount, write};

/// Returns what `status` says of a mount to programs.
fn status(mounted: &Mounted) -> serde_json::Value {
    let output = mounted.run(&["status", &mounted.text("mnt"), "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).expect("one object")
}

fn socket(mounted: &Mounted) -> PathBuf {
    let files = fs::read_dir(&mounted.work).expect("it is ours");
    let mut paths = files.map(|file| file.expect("it is ours").path());
    paths.find(|path| path.extension().is_some_and(|e| e == "sock")).expect("it is served")
}

/// Sends a line to the server; returns what it answers.
fn ask(mounted: &Mounted, line: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket(mounted)).expect("it listens");
    // A line that is too long is not read to its end.
    let _ = stream.write_all(line).and_then(|()| stream.write_all(b"\n"));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Goal: no number and no line that a client sends ends the thread that answers, nor meets a bug.
/// Method: numbers at the edges as ranges and as inodes, by the command and as raw lines, and lines
/// that are no questions; then the server is asked how it is.
#[test]
fn whatever_is_asked_the_server_answers_the_next() {
    if !can_mount("whatever_is_asked_the_server_answers_the_next") {
        return;
    }
    let mounted = Mounted::new();
    write(&mounted.path("file"), &vec![7; 100_000]);
    const EDGES: [u64; 13] = [
        0,
        1,
        2,
        3,
        4095,
        1 << 31,
        0xffff_ffff,
        1 << 40,
        (1 << 40) + 1,
        1 << 62,
        u64::MAX / 2,
        u64::MAX - 1,
        u64::MAX,
    ];
    let file = mounted.text("mnt/file");
    for last in EDGES {
        let output = mounted.run(&["explain", &format!("{file}:0-{last}")]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("block"), "{last}: {text}");
    }
    for node in EDGES {
        let pairs = EDGES.iter().flat_map(|&first| EDGES.map(|last| (first, last)));
        // The root's ranges are all tried, of the others a few.
        for (first, last) in pairs.take(if node == 1 { usize::MAX } else { 3 }) {
            let question = format!(r#"{{"ask":"explain","node":{node},"range":[{first},{last}]}}"#);
            let answer = ask(&mounted, question.as_bytes());
            assert!(answer.ends_with("}\n") && !answer.contains("bug"), "{question}: {answer}");
        }
    }
    let nested = vec![b'['; 1 << 19];
    let long = vec![b'x'; 3 << 20];
    let lines: [&[u8]; 7] = [
        b"",
        b"null",
        b"\xff\0",
        &nested,
        &long,
        br#"{"ask":"explain","node":-1,"range":null}"#,
        br#"{"ask":"explain","node":18446744073709551616,"range":[1e400,0]}"#,
    ];
    for line in lines {
        let answer = ask(&mounted, line);
        // Of a line that is too long the answer may be lost with what was not read.
        assert!(answer.contains("is not understood") || line.len() > 1 << 16, "{answer}");
    }
    for (request, words) in [
        (r#""version":9,"request":{"do":"job-list"}"#, "version 9"),
        (r#""version":1,"request":{"do":"burn"}"#, "burn"),
        (r#""version":1,"request":{"do":"job-list","x":1}"#, "`x`"),
        (r#""version":1,"request":{"do":"fileset-delete","name":"../a"}"#, "../a"),
        (r#""version":1,"request":{"do":"job-pause","job":7,"is_paused":true}"#, "no job 7"),
    ] {
        let answer = ask(&mounted, format!(r#"{{"ask":"control",{request}}}"#).as_bytes());
        assert!(answer.contains("error") && answer.contains(words), "{request}: {answer}");
    }
    let status = status(&mounted);
    assert_eq!(status["bugs"]["count"], 0, "{status}");
    assert_eq!(status["pool"]["health"], "ok", "{status}");
    mounted.finish();
}

/// Goal: whoever removes the file of a mounted pool is told that all is lost when the server ends.
#[test]
fn a_pool_whose_file_was_removed_says_so() {
    if !can_mount("a_pool_whose_file_was_removed_says_so") {
        return;
    }
    let mounted = Mounted::new();
    let (pool, moved) = (mounted.work.join("pool.hf"), mounted.work.join("moved.hf"));
    write(&mounted.path("file"), b"data");
    fs::rename(&pool, &moved).expect("it is ours");
    assert_eq!(status(&mounted)["pool"]["health"], "ok", "a new name is no loss");
    fs::remove_file(&moved).expect("it is ours");
    let health = status(&mounted)["pool"]["health"].to_string();
    assert!(health.contains("the pool's file was removed"), "{health}");
    let log = status(&mounted)["server"]["log"].as_str().expect("a daemon has one").to_owned();
    let asked = Instant::now();
    while !fs::read_to_string(&log).expect("it logs").contains("the pool's file was removed") {
        assert!(asked.elapsed() < Duration::from_secs(30), "nobody logs it");
        std::thread::yield_now();
    }
    assert_eq!(fs::read(mounted.path("file")).expect("it serves on"), b"data");
    mounted.unmount();
}

/// Goal: nobody but the owner reads a new pool's file, or keeps it from being mounted; of a file
/// that others may open that is told, and who holds it is named. Method: another user tries to
/// read it; then its mode is loosened, and it is held by a shared lock as anybody could.
#[test]
fn a_pool_is_its_owners_alone_or_that_is_told() {
    if !can_mount("a_pool_is_its_owners_alone_or_that_is_told") {
        return;
    }
    let mounted = Mounted::new();
    let pool = mounted.text("pool.hf");
    let others_read = || {
        let read = Command::new("head").args(["-c1", &pool]).uid(65_534).gid(65_534).output();
        read.expect("head is there").status.success()
    };
    assert!(!others_read(), "anybody reads the files of all");
    assert_eq!(status(&mounted)["warnings"], serde_json::Value::Null);
    assert_eq!(status(&mounted)["pool"]["warnings"], serde_json::json!([]));
    fs::set_permissions(&pool, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let warning = format!("{pool} has mode 0644");
    assert!(status(&mounted)["pool"]["warnings"].to_string().contains(&warning));
    mounted.unmount();

    let held = fs::File::open(&pool).expect("it is ours");
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).expect("nobody holds it");
    let mount = ["mount", &pool, &mounted.text("mnt"), "--daemon"];
    let told = mounted.run(&mount);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    let holder = format!("in use by process {} (", std::process::id());
    assert!(told.contains(&holder), "{told}");
    drop(held);
    let told = mounted.run(&mount);
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(told.contains(&warning) && told.contains("chmod 600"), "{told}");
    mounted.finish();
}

/// Goal: a person reads in a few lines how a pool is and what a power failure would cost now; more
/// is there for whoever asks. Method: a file is written, and then synced.
#[test]
fn a_status_for_people_is_a_few_lines() {
    if !can_mount("a_status_for_people_is_a_few_lines") {
        return;
    }
    let mounted = Mounted::new();
    mounted.remount(&["--commit-interval", "10m"]);
    let told = |arguments: &[&str]| {
        let output = mounted.run(&[&["status", &mounted.text("mnt")], arguments].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    write(&mounted.path("file"), &vec![1; 50_000]);
    let text = told(&[]);
    assert!(text.lines().count() <= 7, "{text}");
    for words in ["health: ok", "space: ", "now: ", "in the last 600 s would be lost (1 files)"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    fs::File::open(mounted.path("file")).and_then(|file| file.sync_all()).expect("synced");
    rustix::fs::syncfs(fs::File::open(mounted.root()).expect("it is a directory")).expect("synced");
    assert!(told(&[]).contains("power failed now: nothing would be lost"), "{}", told(&[]));
    let all = told(&["--verbose"]);
    for words in ["health: ok", "socket: ", "journal:", "dirty_pages_max: ", "recovery:"] {
        assert!(all.contains(words), "{words}: {all}");
    }
    mounted.finish();
}
