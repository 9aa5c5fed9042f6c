//! The commands of the documents, run as root: README, *A NAS in 15 minutes*, and each procedure of
//! OPERATIONS. `session.sh` makes what they need, in namespaces of its own.
//!
//! A block that cannot run has a line `<!-- not run: REASON -->` before it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::document;

/// Blocks that are not run, at most.
const NOT_RUN_MAX: usize = 6;
const COMMANDS_MAX: usize = 5;
const WORKERS: usize = 4;
/// Seconds for one document or procedure, on a busy machine.
const SESSION_SECONDS: &str = "240";
const NOT_RUN: &str = "<!-- not run: ";

/// Commands that are run one after the other, in one directory.
struct DocumentSession {
    name: String,
    /// Kind, `sh` or `toml`, and text.
    blocks: Vec<(String, String)>,
    not_run: usize,
}

fn session(name: &str, text: &str) -> DocumentSession {
    let (mut blocks, mut not_run) = (Vec::new(), 0);
    let (mut open, mut is_marked): (Option<(String, String)>, bool) = (None, false);
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind.to_owned(), String::new())),
            (None, None) => is_marked = line.starts_with(NOT_RUN) && line.ends_with(" -->"),
            (Some((_, body)), None) => *body += &format!("{line}\n"),
            (Some(_), Some(_)) => {
                let block = open.take().expect("it is open");
                match block.0.as_str() {
                    "sh" if is_marked => not_run += 1,
                    "sh" | "toml" => blocks.push(block),
                    _ => {}
                }
                is_marked = false;
            }
        }
    }
    DocumentSession { name: name.to_owned(), blocks, not_run }
}

/// Returns the procedures of OPERATIONS: heading and text.
fn procedures(text: &str) -> Vec<(&str, &str)> {
    let parts = text.split("\n### ").skip(1).map(|part| part.split("\n# ").next().unwrap_or(part));
    parts
        .map(|part| part.split("\n## ").next().unwrap_or(part))
        .filter_map(|it| it.split_once('\n'))
        .collect()
}

fn sessions() -> Vec<DocumentSession> {
    let whole = ["README.md", "docs/NAS.md"].map(|path| session(path, &document(path)));
    let text = document("docs/OPERATIONS.md");
    let all = procedures(&text).into_iter().map(|(name, text)| session(name, text));
    whole.into_iter().chain(all).collect()
}

/// Runs a session, and returns what it printed, where it failed.
fn run(session: &DocumentSession, work: &Path) -> Result<(), String> {
    fs::create_dir_all(work).expect("the name is new");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = fs::canonicalize(sources).expect("it is there");
    let mut command = Command::new("timeout");
    command.args(["-k", "1", SESSION_SECONDS, "unshare", "-mpfn", "--mount-proc"]);
    command.args(["--propagation", "private", "bash"]);
    command.arg(sources.join("crates/cli/tests/cli/documents/session.sh"));
    command.arg(work).arg(env!("CARGO_BIN_EXE_holdfast")).arg(&sources).arg(&session.name);
    for (index, (kind, text)) in session.blocks.iter().enumerate() {
        let path = work.join(format!("block{index}.{kind}"));
        fs::write(&path, text).expect("there is room");
        command.arg(path);
    }
    let output = command.stdin(Stdio::null()).output().expect("the tools are there");
    fs::remove_dir_all(work).expect("nothing uses it");
    if output.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}\n{told}", session.name, output.status))
}

/// Returns why the commands cannot be run here.
fn missing() -> Option<&'static str> {
    let works = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !rustix::process::geteuid().is_root() {
        return Some("root");
    }
    if fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse");
    }
    if !works("unshare", &["-mpfn", "--mount-proc", "ip", "link", "set", "lo", "up"]) {
        return Some("unshare, and ip of iproute2");
    }
    (!works("setfattr", &["--version"]) || !works("curl", &["--version"]))
        .then_some("setfattr and curl")
}

/// Goal: a reader who pastes a block gets what the document says.
#[test]
fn the_commands_of_the_documents_run() {
    if let Some(what) = missing() {
        eprintln!("\n*** SKIPPED: the_commands_of_the_documents_run: needs {what} ***\n");
        return;
    }
    let sessions = sessions();
    let has_commands =
        |session: &&DocumentSession| session.blocks.iter().any(|(kind, _)| kind == "sh");
    let all: Vec<&DocumentSession> = sessions.iter().filter(has_commands).collect();
    assert!(all.len() > 40, "{} sessions", all.len());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = fs::canonicalize(std::env::temp_dir()).expect("it is there");
    let worker = || {
        while let Some(session) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let name = format!("holdfast-documents-{}-{:p}", std::process::id(), *session);
            if let Err(told) = run(session, &work.join(name)) {
                failures.lock().expect("no worker panics").push(told);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(worker);
        }
    });
    let failures = failures.into_inner().expect("no worker panics");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Goal: a procedure is short, is found by the contents, and few blocks are left to trust.
#[test]
fn procedures_are_short_and_listed() {
    let not_run: usize = sessions().iter().map(|session| session.not_run).sum();
    assert!((1..=NOT_RUN_MAX).contains(&not_run), "{not_run} blocks are not run");
    let text = document("docs/OPERATIONS.md");
    let contents = text.split_once("## Contents\n").expect("it has them").1;
    let contents = contents.split("\n# ").next().unwrap_or_default();
    for (name, body) in procedures(&text) {
        let commands = session(name, body).blocks.into_iter().filter(|(kind, _)| kind == "sh");
        let count: usize = commands.map(|(_, text)| text.lines().count()).sum();
        assert!(count <= COMMANDS_MAX, "{name}: {count} commands");
        let slug: String = name.to_lowercase().replace([',', ':', '`'], "").replace(' ', "-");
        let is_part = text
            .split("## Measure and torture")
            .nth(1)
            .is_some_and(|it| it.contains(&format!("### {name}\n")));
        assert!(
            is_part || contents.contains(&format!("(#{slug})")),
            "{name} is not in the contents"
        );
    }
}
