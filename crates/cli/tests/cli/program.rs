//! What a user or a script sees: exit codes, output, a server's life.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use cli::daemon::Relaunch;
use front::fuse::mountpoint::{self, Mountpoint};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::backend::{CLOSED_POOL, DAMAGED_POOL, FAILING_POOL, FakeBackend, POOL};

/// Carries the program's arguments, as a JSON list, to [`holdfast_as_a_process`].
const ARGUMENTS: &str = "HOLDFAST_TEST_ARGUMENTS";
/// How this test binary is made to be the program.
const AS_PROGRAM: [&str; 4] =
    ["--exact", "program::holdfast_as_a_process", "--ignored", "--nocapture"];

/// Not a test: the program, on the tests' backend.
#[test]
#[ignore = "a helper of other tests"]
fn holdfast_as_a_process() {
    let Some(arguments) = std::env::var_os(ARGUMENTS) else { return };
    let arguments = arguments.into_string().expect("the tests' arguments are UTF-8");
    let mut arguments: Vec<String> = serde_json::from_str(&arguments).expect("it is a list");
    let given: Vec<_> = arguments.iter().map(Into::into).collect();
    arguments.push("--answer-parent".to_owned());
    let again = serde_json::to_string(&arguments).expect("strings are plain data");
    let relaunch = Relaunch {
        program: std::env::current_exe().expect("a test has a path"),
        arguments: AS_PROGRAM.iter().map(Into::into).collect(),
        environment: vec![(ARGUMENTS.into(), again.into())],
    };
    let code = cli::run(&given, &FakeBackend, &relaunch);
    std::process::exit(code.into());
}

pub(crate) fn holdfast(arguments: &[&str]) -> Ran {
    holdfast_in(&std::env::temp_dir(), arguments)
}

/// Runs the program with its sockets and logs in `run_directory`.
fn holdfast_in(run_directory: &Path, arguments: &[&str]) -> Ran {
    let list = serde_json::to_string(arguments).expect("strings are plain data");
    let output = Command::new(std::env::current_exe().expect("a test has a path"))
        .args(AS_PROGRAM)
        .env(ARGUMENTS, list)
        .env("HOLDFAST_RUN_DIR", run_directory)
        .output()
        .expect("the program can be started");
    Ran(output)
}

pub(crate) struct Ran(Output);

impl Ran {
    fn code(&self) -> i32 {
        self.0.status.code().expect("it was not killed")
    }

    pub(crate) fn stdout(&self) -> String {
        let text = String::from_utf8_lossy(&self.0.stdout).into_owned();
        // The harness speaks first.
        text.split_once("running 1 test\n").map_or(text.clone(), |(_, rest)| rest.to_owned())
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout()).expect("one object")
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ran {
        assert_eq!(self.code(), code, "{}{}", self.stdout(), self.stderr());
        self
    }
}

/// A directory with a pool and a place to mount it.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("holdfast-cli-{}-{number}", std::process::id());
        let path = fs::canonicalize(std::env::temp_dir()).expect("there is one").join(name);
        fs::create_dir_all(path.join("mnt")).expect("the name is new");
        fs::write(path.join("pool.hf"), POOL).expect("the directory is ours");
        Place(path)
    }

    fn holdfast(&self, arguments: &[&str]) -> Ran {
        holdfast_in(&self.0, arguments)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the path is ASCII").to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = mountpoint::detach(&self.0.join("mnt"));
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn has_fuse(test: &str) -> bool {
    let opened = fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = &opened {
        eprintln!("\n*** SKIPPED: {test}: /dev/fuse: {error} ***\n");
    }
    opened.is_ok()
}

#[test]
fn nonsense_has_exit_codes_of_its_own() {
    holdfast(&["--help"]).expect(0);
    holdfast(&["check", "--help"]).expect(0);
    holdfast(&["create"]).expect(2);
    holdfast(&["frobnicate"]).expect(2);
    holdfast(&["check"]).expect(16);
    let place = Place::new();
    let (pool, directory) = (place.path("pool.hf"), place.path("mnt"));
    for arguments in [
        vec!["create", &place.path("new.hf")],
        vec!["create", &pool, "--fragment", "3K"],
        vec!["create", &pool, "--block", "24K"],
        vec!["create", &pool, "--size", "ten"],
        vec!["mount", &pool, &directory, "-o", "ro,frobnicate"],
        vec!["mount", &pool, &directory, "--threads", "0"],
        vec!["mount", &pool, &directory, "--cache", "1K"],
        vec!["create", &pool, "--name", "a\nb\u{1b}[31m"],
    ] {
        let ran = holdfast(&arguments).expect(2);
        assert!(!ran.stderr().is_empty(), "{arguments:?} is refused without a word");
    }
    assert_eq!(fs::read_to_string(pool).expect("it is there"), POOL, "the bytes are untouched");
}

/// Goal: a program that asked for JSON gets JSON, whatever it asked.
#[test]
fn wrong_usage_is_json_where_that_was_asked_for() {
    for (arguments, code) in [
        (&["--json", "check"][..], 16),
        (&["create", "new.hf", "--size", "1x", "--json"], 2),
        (&["--json", "frobnicate"], 2),
    ] {
        let ran = holdfast(arguments).expect(code);
        let told = ran.json();
        assert_eq!(told["exit"], code, "{told}");
        let error = told["error"].as_str().unwrap_or_default();
        assert!(!error.is_empty() && !error.starts_with("error"), "{told}");
        assert!(!ran.stderr().contains("error:"), "it is said once: {}", ran.stderr());
    }
}

#[test]
fn create_says_what_it_made() {
    let place = Place::new();
    let pool = place.path("new.hf");
    let ran = holdfast(&["create", &pool, "--size", "16T", "--json"]).expect(0);
    assert_eq!(ran.json()["pool"]["size_bytes"], 16_u64 << 40);
    let ran = holdfast(&["create", &pool, "--size", "16T"]).expect(0);
    assert!(ran.stdout().contains("16T"), "{}", ran.stdout());
}

#[test]
fn check_exits_as_fsck_does() {
    let place = Place::new();
    let pool = place.path("pool.hf");
    holdfast(&["check", &pool]).expect(0);
    fs::write(&pool, DAMAGED_POOL).expect("it is ours");
    let ran = holdfast(&["check", &pool]).expect(4);
    assert!(ran.stdout().contains("AG001: free count is wrong"), "{}", ran.stdout());
    let ran = holdfast(&["check", &pool, "--json"]).expect(4);
    assert_eq!(ran.json()["is_clean"], false);
    holdfast(&["check", &place.path("absent.hf")]).expect(8);
    fs::write(&pool, "something else").expect("it is ours");
    let ran = holdfast(&["check", &pool]).expect(8);
    assert!(ran.stderr().contains("--force"), "it says what to do: {}", ran.stderr());
}

/// Goal: where nobody watches there is the result and nothing else, and with `--quiet` nobody does.
#[test]
fn without_a_terminal_there_is_the_result_alone() {
    let place = Place::new();
    let pool = place.path("pool.hf");
    let ran = holdfast(&["check", &pool]).expect(0);
    assert!(ran.stdout().contains("clean"), "{}", ran.stdout());
    assert_eq!(ran.stderr(), "");
}

/// Goal: the commands of the laboratory name the program that has them, and do nothing.
#[test]
fn commands_of_the_laboratory_name_their_program() {
    for (arguments, line) in [
        (&["torture", "--seeds", "10"][..], "holdfast-lab torture --seeds 10"),
        (&["prove", "--bound", "2"], "holdfast-lab prove --bound 2"),
        (&["bench", "--list"], "holdfast-lab bench --list"),
        (&["lab", "qfs", "--json"], "holdfast-lab papers qfs --json"),
    ] {
        let refused = holdfast(arguments).expect(2);
        assert!(
            format!("{}{}", refused.stdout(), refused.stderr()).contains(line),
            "{arguments:?}"
        );
    }
}

#[test]
fn a_place_is_explained_without_a_mount() {
    let place = Place::new();
    let pool = place.path("pool.hf");
    let ran = holdfast(&["explain", "--device", &pool, "--offset", "4K"]).expect(0);
    assert!(ran.stdout().contains("offset: 4096"), "{}", ran.stdout());
    holdfast(&["explain", "--pool", &pool, "/file:0-9"]).expect(0);
    holdfast(&["explain", &place.path("pool.hf")]).expect(1);
    let ran = holdfast(&["dump", &pool, "superblock"]).expect(0);
    assert!(ran.stdout().contains("superblock: a pool"), "{}", ran.stdout());
}

/// Goal: the life of a server, as a user sees it.
#[test]
fn a_daemon_serves_answers_and_closes_the_pool() {
    if !has_fuse("a_daemon_serves_answers_and_closes_the_pool") {
        return;
    }
    let place = Place::new();
    let (pool, directory) = (place.path("pool.hf"), place.path("mnt"));
    let ran = place.holdfast(&["mount", &pool, &directory, "--daemon", "--cache", "8M"]).expect(0);
    assert!(ran.stdout().contains("is mounted on"), "{}", ran.stdout());
    let file = place.path("mnt/file");
    fs::write(&file, "data").expect("the mount answers when the program returns");

    let ran = place.holdfast(&["status", &directory, "--json"]).expect(0);
    let status = ran.json();
    assert_eq!(status["server"]["pool"], Value::from(pool.as_str()));
    assert_eq!(status["pool"]["cache_bytes"], 8 << 20);
    place.holdfast(&["status", &pool]).expect(0);
    let log = status["server"]["log"].as_str().expect("a daemon has a log").to_owned();

    let ran = place.holdfast(&["explain", &format!("{file}:1-2")]).expect(0);
    let ino = fs::metadata(&file).expect("stat").ino();
    assert_ne!(ino, 1, "the first inode is the one whose number the root has");
    assert!(ran.stdout().contains("Ino(1), range: Some((1, 2))"), "{}", ran.stdout());

    let ran = place.holdfast(&["mount", &pool, &directory]).expect(1);
    assert!(ran.stderr().contains("holdfast unmount"), "it says what to do: {}", ran.stderr());
    let held = fs::File::open(&file).expect("open");
    let ran = place.holdfast(&["unmount", &directory]).expect(1);
    assert!(ran.stderr().contains("in use"), "{}", ran.stderr());
    drop(held);

    place.holdfast(&["unmount", &directory]).expect(0);
    // Unmount has waited for the server to end.
    assert_eq!(fs::read_to_string(&pool).expect("it is there"), CLOSED_POOL);
    assert_eq!(mountpoint::inspect(Path::new(&directory)).expect("stat"), Mountpoint::Free);
    place.holdfast(&["status", &directory]).expect(1);
    place.holdfast(&["unmount", &directory]).expect(1);
    assert!(fs::read_to_string(&log).expect("it logs").contains("closed"));
}

#[test]
fn a_daemon_that_fails_tells_its_parent_why() {
    if !has_fuse("a_daemon_that_fails_tells_its_parent_why") {
        return;
    }
    let place = Place::new();
    let (pool, directory) = (place.path("pool.hf"), place.path("mnt"));
    let log = place.path("log");
    fs::write(&pool, "something else").expect("it is ours");
    let ran =
        place.holdfast(&["mount", &pool, &directory, "--daemon", "--log-file", &log]).expect(1);
    assert!(ran.stderr().contains("not a Holdfast pool"), "{}", ran.stderr());
    let ran =
        place.holdfast(&["mount", &pool, "/no/such", "--daemon", "--log-file", &log]).expect(1);
    assert!(ran.stderr().contains("/no/such"), "{}", ran.stderr());
}

/// Goal: whoever unmounts a pool learns that it could not be closed, and why.
#[test]
fn unmount_says_what_did_not_reach_the_device() {
    if !has_fuse("unmount_says_what_did_not_reach_the_device") {
        return;
    }
    let place = Place::new();
    let (pool, directory, log) = (place.path("pool.hf"), place.path("mnt"), place.path("log"));
    fs::write(&pool, FAILING_POOL).expect("it is ours");
    let mount = ["mount", &pool, &directory, "--daemon", "--log-file", &log];
    place.holdfast(&mount).expect(0);
    let ran = place.holdfast(&["unmount", &directory]).expect(1);
    let told = ran.stderr();
    assert!(told.contains("is unmounted, but not everything reached the device"), "{told}");
    assert!(told.contains("a write failed"), "{told}");
    fs::write(&pool, POOL).expect("it is ours");
    place.holdfast(&mount).expect(0);
    place.holdfast(&["unmount", &directory]).expect(0);
}

#[test]
fn a_killed_server_is_cleared_away() {
    if !has_fuse("a_killed_server_is_cleared_away") {
        return;
    }
    let place = Place::new();
    let (pool, directory, log) = (place.path("pool.hf"), place.path("mnt"), place.path("log"));
    let mount = ["mount", &pool, &directory, "--daemon", "--log-file", &log];
    let kill = || {
        let status = place.holdfast(&["status", &directory, "--json"]).expect(0).json();
        let pid = status["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).expect("it is a process");
        kill_process(pid, Signal::KILL).expect("it runs");
    };
    let is_dead = || mountpoint::inspect(Path::new(&directory)).expect("stat") == Mountpoint::Dead;

    place.holdfast(&mount).expect(0);
    kill();
    while !is_dead() {
        std::thread::yield_now();
    }
    let ran = place.holdfast(&mount).expect(0);
    assert!(ran.stdout().contains("detached a mount whose server died"), "{}", ran.stdout());
    kill();
    while !is_dead() {
        std::thread::yield_now();
    }
    let ran = place.holdfast(&["unmount", &directory, "--json"]).expect(0);
    assert_eq!(ran.json()["was_dead"], true);
}
