//! The programs of the workspace, run as processes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_holdfast-lab");

/// Returns the program `holdfast` beside `holdfast-lab`: cargo builds it for the workspace's tests.
fn holdfast_path() -> PathBuf {
    let path = PathBuf::from(LAB).with_file_name("holdfast");
    assert!(path.exists(), "{} is missing: build it with `cargo build -p cli`", path.display());
    path
}

/// The output of a finished program.
pub(crate) struct Ran(Output);

impl Ran {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout()).expect("one object")
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ran {
        assert_eq!(self.0.status.code(), Some(code), "{}{}", self.stdout(), self.stderr());
        self
    }
}

pub(crate) fn lab(arguments: &[&str]) -> Ran {
    Ran(lab_output(arguments))
}

pub(crate) fn lab_output(arguments: &[&str]) -> Output {
    Command::new(LAB).args(arguments).output().expect("the program can be started")
}

pub(crate) fn holdfast(arguments: &[&str]) -> Output {
    Command::new(holdfast_path()).args(arguments).output().expect("the program can be started")
}

/// A running `holdfast serve`.
pub(crate) struct Serving {
    child: Child,
    /// Its first line of output: it serves.
    pub(crate) line: String,
}

impl Serving {
    pub(crate) fn start(arguments: &[&str]) -> Serving {
        let mut child = Command::new(holdfast_path())
            .args(["--json", "serve"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("the server prints a line");
        Serving { child, line }
    }

    pub(crate) fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
