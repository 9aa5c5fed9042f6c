//! Start of a background server (`--daemon`).
//!
//! The parent starts this program again with `--answer-parent`, and reads a pipe from the child's
//! standard output. The child writes one line when its mount is ready or has failed. The parent
//! prints that and ends. There is no fork(2), which would lose threads.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// Prefix of the line for the parent, which ignores other lines.
const ANSWER_PREFIX: &str = "holdfast-answer: ";

const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A log that is larger at the start is renamed, so there are at most two.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How to start this program again in the background.
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Arguments, `--answer-parent` among them.
    pub arguments: Vec<OsString>,
    /// Variables to set.
    pub environment: Vec<(OsString, OsString)>,
}

impl Relaunch {
    /// Returns how to start the current program again with `arguments`.
    #[must_use]
    pub fn of_this_program(arguments: &[OsString]) -> Relaunch {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("holdfast"));
        let mut arguments = arguments.to_vec();
        arguments.push("--answer-parent".into());
        Relaunch { program, arguments, environment: Vec::new() }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DaemonAnswer {
    /// Why the mount failed. `None` if it is ready.
    pub(crate) error: Option<String>,
    pub(crate) text: String,
    pub(crate) value: serde_json::Value,
}

/// Starts the server with its standard error in `log`. Waits for its answer.
pub(crate) fn start(relaunch: &Relaunch, log: &Path) -> anyhow::Result<DaemonAnswer> {
    let log_file = open_log(log)?;
    let mut child = Command::new(&relaunch.program)
        .args(&relaunch.arguments)
        .envs(relaunch.environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("cannot start the server")?;
    let output = child.stdout.take().expect("it is piped");
    let answer = BufReader::new(output.take(ANSWER_BYTES_MAX))
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(serde_json::from_str(line.strip_prefix(ANSWER_PREFIX)?)));
    match answer {
        Some(answer) => answer.context("the server's answer is not understood"),
        None => {
            let status = child.wait().context("cannot wait for the server")?;
            anyhow::bail!("the server ended ({status}) before it answered: see {}", log.display())
        }
    }
}

/// Writes the answer, then redirects standard output to `/dev/null`, which closes the pipe.
pub(crate) fn answer_parent(answer: &DaemonAnswer) -> anyhow::Result<()> {
    let line = serde_json::to_string(answer).context("an answer is plain data")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{ANSWER_PREFIX}{line}").and_then(|()| stdout.flush())?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Starts a session without a terminal, so that the server gets no hangup signal from the parent's
/// terminal. Changes to `/`.
pub(crate) fn leave_terminal() -> anyhow::Result<()> {
    // Fails only for the leader of a process group, which has no need of it.
    let _ = rustix::process::setsid();
    // A working directory would keep its file system busy for umount(2).
    std::env::set_current_dir("/").context("cannot leave the directory")
}

/// Error of a failed close, which is recorded for `holdfast unmount`.
#[derive(Debug, Serialize, Deserialize)]
struct CloseFailure {
    pid: u32,
    error: String,
}

pub(crate) fn leave_last_words(path: &Path, error: &anyhow::Error) -> anyhow::Result<()> {
    let words = CloseFailure { pid: std::process::id(), error: format!("{error:#}") };
    let bytes = serde_json::to_vec(&words).context("words are plain data")?;
    let mut file = OpenOptions::new();
    let file = file.create(true).truncate(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(&bytes));
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub(crate) fn has_last_words(path: &Path, pid: u32) -> bool {
    let words = std::fs::read(path).ok();
    let words = words.and_then(|words| serde_json::from_slice::<CloseFailure>(&words).ok());
    words.is_some_and(|words| words.pid == pid)
}

/// Returns and removes the close error that the process `pid` recorded. `None` if it closed the
/// pool without an error or was killed.
pub(crate) fn take_last_words(path: &Path, pid: u32) -> Option<String> {
    let words: CloseFailure = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let is_of_process = words.pid == pid;
    if is_of_process {
        // If removing fails, the pool's next server overwrites the file.
        let _ = std::fs::remove_file(path);
    }
    is_of_process.then_some(words.error)
}

/// Opens a log for appending. A large log is renamed to `.old` first.
pub(crate) fn open_log(path: &Path) -> anyhow::Result<File> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".old");
        std::fs::rename(path, aside).with_context(|| format!("{}", path.display()))?;
    }
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write the log {}", path.display()))
}
