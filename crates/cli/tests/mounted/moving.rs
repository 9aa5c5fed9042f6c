//! `holdfast fileset move`: by the server of both pools, and by the command alone; a server that is
//! killed in the middle.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use front::fuse::mountpoint;

use super::several::Other;
use super::{HOLDFAST, Over, can_mount, first_line};

const FILES: usize = 40;
/// Times that a server is killed.
const KILLS: u32 = 8;
/// Times that a move may find its fileset too busy.
const BUSY_MAX: usize = 10;

/// Two pools, one of them with a fileset `a` that has files.
struct Both {
    work: PathBuf,
}

impl Both {
    fn new(name: &str) -> Both {
        let work = std::env::temp_dir().join(format!("holdfast-{name}-{}", std::process::id()));
        fs::create_dir_all(work.join("from/below")).expect("the name is new");
        for number in 0..FILES {
            let bytes = vec![u8::try_from(number).expect("few"); 3000 * number];
            fs::write(work.join(format!("from/below/{number}")), bytes).expect("there is room");
        }
        let both = Both { work };
        for pool in ["one.hf", "two.hf"] {
            both.does(&format!("create {pool} --size 128M"));
        }
        both.does("fileset create one.hf:a");
        both.does("copy-in from one.hf:a");
        both
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(HOLDFAST);
        command.current_dir(&self.work).env("HOLDFAST_RUN_DIR", &self.work);
        command.args(words.split(' '));
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().expect("the program can be started")
    }

    fn does(&self, words: &str) -> String {
        let output = self.run(words);
        let told = [&output.stdout[..], &output.stderr].concat();
        let told = String::from_utf8_lossy(&told).into_owned();
        assert!(output.status.success(), "{words}: {told}");
        told
    }

    /// As [`Both::does`], of a move, which is given again where this machine is too busy for it.
    fn moves(&self, words: &str) -> String {
        for _ in 0..BUSY_MAX {
            let output = self.run(words);
            if !String::from_utf8_lossy(&output.stderr).contains("it is in use, and stays") {
                let told = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{words}: {output:?}");
                return told;
            }
        }
        panic!("{words}: it is always too busy");
    }

    fn refused(&self, words: &str) -> String {
        let output = self.run(words);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words} is done: {told}");
        told
    }

    fn serve(&self) -> Child {
        let mut child = self
            .command("--json serve one.hf two.hf --nfs 127.0.0.1:0 --state state")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started");
        let line = first_line(&mut child);
        assert!(line.contains("two.hf"), "{line}");
        child
    }

    /// Which of both pools have the fileset, so that it can be used.
    fn places(&self) -> Vec<&'static str> {
        let is_there = |name: &&&str| {
            let list = self.does(&format!("fileset list {}.hf", name));
            let mut lines = list.lines().filter(|line| line.starts_with("a  "));
            lines.any(|line| {
                !["deleted", "leaving", "arriving"].iter().any(|word| line.contains(word))
            })
        };
        ["one", "two"].iter().filter(is_there).copied().collect()
    }

    /// Holds what the fileset has in a pool against what was brought in.
    fn compare(&self, pool: &str) {
        let out = self.work.join("out");
        drop(fs::remove_dir_all(&out));
        fs::create_dir(&out).expect("the name is free");
        self.does(&format!("copy-out {pool}:a out"));
        for number in 0..FILES {
            let read =
                |at: &Path| fs::read(at.join(format!("below/{number}"))).expect("it is there");
            assert!(read(&out) == read(&self.work.join("from")), "file {number} in {pool}");
        }
    }

    fn check(&self) {
        for pool in ["one.hf", "two.hf"] {
            self.does(&format!("check {pool}"));
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.work));
    }
}

fn end(mut child: Child) {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}

/// Goal: a fileset moves by a command, with a server of both pools and without one, there and back;
/// what is used, or served by two, is refused in words.
#[test]
fn a_fileset_moves_by_a_command_with_a_server_and_without() {
    let both = Both::new("move");
    let told = both.does("fileset move one.hf:a two.hf:a");
    assert!(told.contains("one.hf:a is two.hf:a now"), "{told}");
    assert_eq!(both.places(), ["two"]);
    both.compare("two.hf");
    let serving = both.serve();
    both.does("fileset move two.hf:a one.hf:a");
    assert_eq!(both.places(), ["one"]);
    let told = both.refused("fileset move one.hf:a one.hf:b");
    assert!(told.contains("both are one pool"), "{told}");
    let told = both.refused("fileset move one.hf:a three.hf:b");
    assert!(told.contains("three.hf"), "{told}");
    let told = both.refused("fileset move one.hf:a two.hf:a --abort");
    assert!(told.contains("nothing is on its way"), "{told}");
    let told = both.refused("fileset move one.hf:a --here");
    assert!(told.contains("neither leaves nor has arrived"), "{told}");
    both.does("fileset move one.hf:a two.hf:a");
    end(serving);
    both.compare("two.hf");
    both.check();
}

/// Goal: a fileset that is exported moves, and its export goes along: it is listed and removed
/// where the fileset is, and exported from there by the next server.
#[test]
fn an_export_goes_along_with_its_fileset() {
    let both = Both::new("along");
    let serving = both.serve();
    both.does("export add one.hf:a /a");
    both.does("export add one.hf:root /root");
    let told = both.moves("fileset move one.hf:a two.hf:b");
    assert!(told.contains("waited"), "{told}");
    let listed = |pool: &str| both.does(&format!("export list {pool}"));
    assert!(listed("two.hf").contains("/a") && !listed("one.hf").contains("/a "));
    assert!(listed("one.hf").contains("/root"));
    both.does("export add two.hf:b /again");
    end(serving);
    let serving = both.serve();
    let told = listed("two.hf");
    assert!(told.contains("/a") && told.contains("/again"), "{told}");
    both.moves("fileset move two.hf:b one.hf:a");
    both.does("export remove one.hf /a");
    both.does("export remove one.hf /again");
    both.moves("fileset move one.hf:a two.hf:a");
    end(serving);
    both.compare("two.hf");
    both.check();
}

/// Goal: a fileset that is mounted moves under its programs: files stay open, with their numbers,
/// nothing that was written is lost, and a file that was removed and is open goes along.
#[test]
fn a_fileset_moves_under_the_programs_that_use_it() {
    if !can_mount("a_fileset_moves_under_the_programs_that_use_it") {
        return;
    }
    let both = Both::new("under");
    let mount = Other(both.work.join("mnt"));
    fs::create_dir(&mount.0).expect("the name is new");
    let serving = both.serve();
    both.does("mount one.hf:a mnt");
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let mut open = options.open(mount.0.join("open")).expect("there is room");
    open.write_all(b"before").expect("there is room");
    let number = open.metadata().expect("it is open").ino();
    let directory = fs::read_dir(mount.0.join("below")).expect("it is there");
    let is_over = AtomicBool::new(false);
    let (work, at) = (&both.work, &mount.0);
    let written = std::thread::scope(|scope| {
        let over = Over(&is_over);
        let writing = scope.spawn(|| write_until(at, &is_over));
        for [from, to] in [["one", "two"], ["two", "one"], ["one", "two"]] {
            both.moves(&format!("fileset move {from}.hf:a {to}.hf:a"));
            open.write_all(to.as_bytes()).expect("there is room");
            open.sync_all().expect("nothing fails");
        }
        drop(over);
        writing.join().expect("what was written is there")
    });
    assert!(written > 3, "{written} files say little");
    assert_eq!(open.metadata().expect("it is open").ino(), number);
    assert_eq!(fs::metadata(at.join("open")).expect("it has its name").ino(), number);
    assert_eq!(directory.count(), FILES);
    for count in 0..FILES {
        let read = |below: &Path| fs::read(below.join(format!("below/{count}"))).expect("there");
        assert!(read(at) == read(&work.join("from")), "file {count}");
    }
    fs::remove_file(at.join("open")).expect("it is there");
    both.moves("fileset move two.hf:a one.hf:a");
    both.moves("fileset move one.hf:a two.hf:a");
    let mut kept = String::new();
    std::io::Seek::rewind(&mut open).expect("it is open");
    std::io::Read::read_to_string(&mut open, &mut kept).expect("it is there");
    assert_eq!(kept, "beforetwoonetwo");
    drop(open);
    both.moves("fileset move two.hf:a one.hf:a");
    assert_eq!(both.places(), ["one"]);
    let status = both.does("status mnt --json");
    assert!(status.contains("\"fileset\":\"a\""), "{status}");
    both.does("unmount mnt");
    end(serving);
    both.compare("one.hf");
    both.check();
}

/// Goal: a server of several pools takes the mounts of all away at once, whoever uses them, and one
/// more signal ends the wait for all. Method: a file that is open in a mount of each pool.
#[test]
fn a_signal_takes_the_mounts_of_all_pools_away_at_once() {
    if !can_mount("a_signal_takes_the_mounts_of_all_pools_away_at_once") {
        return;
    }
    let both = Both::new("at-once");
    let mounts = ["m-one", "m-two"].map(|name| Other(both.work.join(name)));
    let mut serving = both.serve();
    let mut open = Vec::new();
    for (mount, words) in mounts.iter().zip(["one.hf:a m-one", "two.hf:root m-two"]) {
        fs::create_dir(&mount.0).expect("the name is new");
        both.does(&format!("mount {words}"));
        open.push(File::create(mount.0.join("open")).expect("there is room"));
    }
    let pid = rustix::process::Pid::from_child(&serving);
    let send = || rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let waited = |is_so: &mut dyn FnMut() -> bool| {
        (0..200).any(|_| {
            std::thread::park_timeout(Duration::from_millis(50));
            is_so()
        })
    };
    send().expect("it runs");
    let is_there = |mount: &Other| mountpoint::mounted_on(&mount.0).expect("mountinfo").is_some();
    assert!(waited(&mut || !mounts.iter().any(is_there)), "one waits for the other");
    assert_eq!(serving.try_wait().expect("it is a child"), None, "files are open");
    send().expect("it runs");
    assert!(waited(&mut || serving.try_wait().expect("it is a child").is_some()), "it waits");
    drop(open);
    both.check();
}

/// Writes files, reads each back, and renames and removes them; returns how many.
fn write_until(directory: &Path, is_over: &AtomicBool) -> usize {
    let mut written = 0;
    while !is_over.load(Ordering::Relaxed) {
        written += 1;
        let bytes = vec![u8::try_from(written % 251).expect("small"); 100 + written * 331 % 20_000];
        let [new, old] =
            ["new", "old"].map(|name| directory.join(format!("{name}{}", written % 9)));
        fs::write(&new, &bytes).expect("there is room");
        fs::rename(&new, &old).expect("it is there");
        assert!(fs::read(&old).expect("it is there") == bytes, "file {written}");
        if written % 3 == 0 {
            fs::remove_file(&old).expect("it is there");
        }
    }
    written
}

/// Goal: a server that is killed while it moves a fileset leaves it in exactly one pool once it is
/// started again, and the same command goes on.
#[test]
fn a_server_that_is_killed_leaves_a_fileset_in_exactly_one_pool() {
    let both = Both::new("kill");
    for kill in 0..KILLS {
        let mut serving = both.serve();
        let [from, to] = match both.places()[..] {
            ["one"] => ["one", "two"],
            ["two"] => ["two", "one"],
            ref other => panic!("it is in {other:?}"),
        };
        let words = format!("fileset move {from}.hf:a {to}.hf:a");
        let moving = both.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut moving = moving.expect("the program can be started");
        // Anywhere in a move is good; where, the speed of the machine says.
        std::thread::park_timeout(Duration::from_millis(12 * u64::from(kill + 1)));
        serving.kill().expect("it runs");
        drop((serving.wait(), moving.wait()));
        let serving = both.serve();
        let places = both.places();
        assert_eq!(places.len(), 1, "kill {kill}: it is in {places:?}");
        if places == [from] {
            both.does(&words);
        }
        assert_eq!(both.places(), [to], "kill {kill}");
        end(serving);
        both.compare(&format!("{to}.hf"));
        both.check();
    }
}
