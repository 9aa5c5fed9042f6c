//! Serving in the background.
//!
//! The parent starts the program again with `--answer-parent`, in a session of its own, and waits
//! on a pipe that is the child's standard output. The child writes one line when its mount answers
//! or when it fails; the parent repeats that and exits. Nothing is forked, so no thread is lost.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// What the child's line begins with; other lines are not for the parent.
const ANSWER_PREFIX: &str = "holdfast-answer: ";

/// Most the parent reads of a child that says something else.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// A log larger than this is put aside when a server starts, so two of them are kept at most.
const LOG_BYTES_MAX: u64 = 1 << 20;

/// How this program is started again.
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments; `--answer-parent` is among them.
    pub arguments: Vec<OsString>,
    /// Variables to set.
    pub environment: Vec<(OsString, OsString)>,
}

impl Relaunch {
    /// Returns how this very program, now given `arguments`, is started again.
    #[must_use]
    pub fn of_this_program(arguments: &[OsString]) -> Relaunch {
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("holdfast"));
        let mut arguments = arguments.to_vec();
        arguments.push("--answer-parent".into());
        Relaunch { program, arguments, environment: Vec::new() }
    }
}

/// What the child tells the parent.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Why there is no mount; `None`: it answers.
    pub(crate) error: Option<String>,
    /// For people.
    pub(crate) text: String,
    /// For programs.
    pub(crate) value: serde_json::Value,
}

/// Starts the server and waits until it answers. Its standard error goes to `log`.
pub(crate) fn start(relaunch: &Relaunch, log: &Path) -> anyhow::Result<Answer> {
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

/// Tells the parent, then leaves its terminal, its pipe and its directory.
pub(crate) fn answer_parent(answer: &Answer) -> anyhow::Result<()> {
    let line = serde_json::to_string(answer).context("an answer is plain data")?;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{ANSWER_PREFIX}{line}").and_then(|()| stdout.flush())?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// Makes this process the leader of a session without a terminal, so that closing the parent's does
/// not reach it.
pub(crate) fn leave_terminal() -> anyhow::Result<()> {
    // Fails only for a process that leads a group already, which then has what it needs.
    let _ = rustix::process::setsid();
    // A server must not keep a directory busy that somebody wants to unmount.
    std::env::set_current_dir("/").context("cannot leave the directory")
}

/// What a server that failed at its end leaves for `unmount`, which is not its parent.
#[derive(Debug, Serialize, Deserialize)]
struct LastWords {
    pid: u32,
    error: String,
}

/// Leaves `error` at `path`, as the last words of this process.
pub(crate) fn leave_last_words(path: &Path, error: &anyhow::Error) -> anyhow::Result<()> {
    let words = LastWords { pid: std::process::id(), error: format!("{error:#}") };
    let bytes = serde_json::to_vec(&words).context("words are plain data")?;
    // Those of the run directory are open to be entered.
    let mut file = OpenOptions::new();
    let file = file.create(true).truncate(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(&bytes));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Returns whether the process `pid` has left last words at `path`.
pub(crate) fn has_last_words(path: &Path, pid: u32) -> bool {
    let words = std::fs::read(path).ok();
    let words = words.and_then(|words| serde_json::from_slice::<LastWords>(&words).ok());
    words.is_some_and(|words| words.pid == pid)
}

/// Takes the last words of the process `pid` from `path`; `None`: it ended well, or was killed.
pub(crate) fn take_last_words(path: &Path, pid: u32) -> Option<String> {
    let words: LastWords = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let is_of_process = words.pid == pid;
    if is_of_process {
        // The next server of the pool overwrites what stays.
        let _ = std::fs::remove_file(path);
    }
    is_of_process.then_some(words.error)
}

/// Opens a log to append to, putting a large one aside.
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
