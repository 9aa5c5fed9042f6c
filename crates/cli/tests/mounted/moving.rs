//! `holdfast fileset move`: by the server of both pools, and by the command alone; a server that is
//! killed in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::{HOLDFAST, first_line};

const FILES: usize = 40;
/// Times that a server is killed.
const KILLS: u32 = 8;

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
        both.does("import from one.hf:a");
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
        self.does(&format!("export-tree {pool}:a out"));
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
    both.does("export add one.hf:a /a");
    let told = both.refused("fileset move one.hf:a two.hf:a");
    assert!(told.contains("mounted or exported") && told.contains("not there yet"), "{told}");
    both.does("export remove one.hf /a");
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
