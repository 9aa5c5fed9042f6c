//! The suites, as programs that are run with a bug awake.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, pidfd_open, prlimit};

/// A suite that takes more seconds of processor time than this with a bug awake goes round for
/// ever: ten times what the longest takes asleep. Not seconds of the clock: other work on the
/// machine is no finding.
pub(crate) const SUITE_PROCESSOR_SECONDS_MAX: u64 = 1800;
/// One that takes this many seconds of the clock waits for ever: far beyond what other work on the
/// machine makes of the processor time above.
const SUITE_SECONDS_MAX: u64 = 4 * 3600;

/// A suite: a test binary, or the unit tests of a crate.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// Environment that makes it small or large.
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

/// What found a bug.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub(crate) test: String,
    /// Seeds it took, in words.
    pub(crate) seeds: String,
}

/// In order of cost.
const SUITES: &[Suite] = &[
    Suite { name: "engine", environment: &[] },
    Suite { name: "orders", environment: &[] },
    Suite { name: "members", environment: &[] },
    Suite { name: "posix", environment: &[] },
    Suite { name: "sim", environment: &[] },
    Suite { name: "budget", environment: &[] },
    Suite { name: "model", environment: &[] },
    Suite { name: "fault", environment: &[] },
    Suite { name: "full", environment: &[] },
    Suite { name: "filesets", environment: &[] },
    Suite { name: "nfs", environment: &[] },
    // Every bug that no other suite finds, and torture of so many seeds for those that need a rare
    // moment.
    Suite { name: "crash", environment: &[] },
    Suite { name: "sim", environment: &[("HOLDFAST_SOAK", "25")] },
];

impl Suite {
    pub(crate) fn named(name: &str) -> Suite {
        let found = SUITES.iter().find(|suite| suite.name == name);
        found.unwrap_or_else(|| panic!("no suite is called {name}")).clone()
    }
}

/// The programs of the suites, by name.
pub(crate) struct Suites {
    programs: BTreeMap<String, PathBuf>,
}

impl Suites {
    /// Builds every suite with the bugs in it, asleep.
    pub(crate) fn build() -> Suites {
        let mut cargo = Command::new(env!("CARGO"));
        // As `./test` builds them: where it has run, nothing is built here.
        cargo.args(["test", "--workspace", "--features", "whole-system/planted", "--no-run"]);
        cargo.arg("--lib");
        for suite in SUITES.iter().filter(|suite| suite.name != "engine") {
            cargo.args(["--test", suite.name]);
        }
        cargo.args(["--message-format=json", "--quiet"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let output = cargo.stderr(Stdio::inherit()).output().expect("cargo is there");
        assert!(output.status.success(), "the suites are built");
        let text = String::from_utf8_lossy(&output.stdout);
        let mut programs = BTreeMap::new();
        for line in text.lines() {
            let value = |key: &str| {
                let start = line.find(&format!("\"{key}\":\""))? + key.len() + 4;
                line[start..].split('"').next().map(str::to_owned)
            };
            let Some(program) = value("executable").map(PathBuf::from) else { continue };
            let stem = program.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = stem.as_deref().and_then(|stem| stem.rsplit_once('-'));
            let name = name.map_or_else(String::new, |(name, _)| name.to_owned());
            programs.insert(name, program);
        }
        Suites { programs }
    }

    /// Returns what finds `bug` first.
    pub(crate) fn find(&self, bug: &str) -> Option<Finding> {
        SUITES.iter().find_map(|suite| self.run(suite, None, bug))
    }

    /// Runs `suite`, or one `test` of it, with `bug` awake; `None` if it passes.
    pub(crate) fn run(&self, suite: &Suite, test: Option<&str>, bug: &str) -> Option<Finding> {
        let program = self.programs.get(suite.name);
        let program = program.unwrap_or_else(|| panic!("{} is not built", suite.name));
        let mut command = Command::new(program);
        command.env("HOLDFAST_PLANTED", bug).env("RUST_BACKTRACE", "0");
        command.envs(suite.environment.iter().copied());
        if let Some(test) = test {
            command.args(["--exact", test]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the suite starts");
        let mut stdout = child.stdout.take().expect("it is piped");
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            stdout.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
        });
        limit_processor_time(&child, SUITE_PROCESSOR_SECONDS_MAX);
        let status = ended(&mut child, Duration::from_secs(SUITE_SECONDS_MAX));
        let text = reader.join().expect("it only reads").unwrap_or_default();
        match status {
            End::Exited(status) if status.success() => None,
            End::Exited(_) => Some(finding(suite, &text)),
            End::Hung => {
                Some(Finding { test: format!("{}::*", suite.name), seeds: "hangs".to_owned() })
            }
        }
    }
}

/// How a program came to its end.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exited(ExitStatus),
    /// It was ended because it used up its processor time, or its time.
    Hung,
}

/// Lets the system end a program once it has used so many seconds of processor time.
fn limit_processor_time(child: &Child, seconds: u64) {
    let limit = Rlimit { current: Some(seconds), maximum: Some(seconds + 1) };
    let pid = Pid::from_child(child);
    // It may have ended by now.
    let _ = prlimit(Some(pid), Resource::Cpu, limit);
}

/// Waits for the end of a program, for `patience` at most.
fn ended(child: &mut Child, patience: Duration) -> End {
    let program = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("it is our child");
    let timeout = Timespec::try_from(patience).expect("it is minutes");
    let ends = poll(&mut [PollFd::new(&program, PollFlags::IN)], Some(&timeout));
    let in_time = ends.expect("nobody interrupts") == 1;
    if !in_time {
        child.kill().expect("it is our child");
    }
    let status = child.wait().expect("it is our child");
    if in_time && status.signal() != Some(Signal::XCPU.as_raw()) {
        End::Exited(status)
    } else {
        End::Hung
    }
}

/// Goal: what goes round for ever hangs, what waits for long does not. Method: a shell that does
/// nothing else, with a second of processor time; one that sleeps for two.
#[test]
fn a_program_hangs_by_its_processor_time_and_not_by_the_clock() {
    let patience = Duration::from_secs(SUITE_SECONDS_MAX);
    let end = |script: &str| {
        let mut child = Command::new("sh").args(["-c", script]).spawn().expect("a shell starts");
        limit_processor_time(&child, 1);
        ended(&mut child, patience)
    };
    assert_eq!(end("while :; do :; done"), End::Hung);
    assert_eq!(end("sleep 2; exit 3"), End::Exited(ExitStatus::from_raw(3 << 8)));
}

/// Reads from the output of a suite what failed, and after how many seeds.
fn finding(suite: &Suite, text: &str) -> Finding {
    let failures = text.rsplit("failures:").next().unwrap_or("");
    let test = failures.lines().map(str::trim).find(|line| !line.is_empty());
    let test = test.filter(|test| !test.contains(' ')).unwrap_or("*");
    let after = text.split("seed").nth(1).unwrap_or("");
    let digits: String = after
        .trim_start_matches(['=', ' ', ':', 's'])
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let seeds =
        digits.parse::<u64>().map_or_else(|_| String::new(), |seed| format!("{}", seed + 1));
    Finding { test: format!("{}::{test}", suite.name), seeds }
}
