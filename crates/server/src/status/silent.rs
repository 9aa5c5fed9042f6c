//! Mounts whose server does not answer, described by the kernel's mount table.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use front::fuse::mountpoint::{MOUNT_TYPE, MountEntry};
use serde_json::{Value, json};

use super::{AT_ONCE, DiscoveredServer, check_way, connect, key_of, socket_to};
use crate::holders::holders_of;
use crate::named::pools_in;
use crate::run_directory;

const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// Reason why a mount's server does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswerReason {
    /// The process exists, but is stopped or stuck.
    DoesNotAnswer,
    /// The process is gone.
    Gone,
    /// The socket does not exist: its run directory was removed, or its server ended.
    NotReachable,
}

impl NoAnswerReason {
    fn advice(self, directory: &Path, pid: Option<i32>) -> String {
        let directory = directory.display();
        match self {
            NoAnswerReason::DoesNotAnswer => {
                let (who, which) = match pid {
                    Some(pid) => (format!(" (process {pid})"), pid.to_string()),
                    None => (String::new(), "PROCESS".to_owned()),
                };
                format!(
                    "its server does not answer{who}: `kill -CONT {which}` if it was stopped; \
                     `holdfast unmount --lazy {directory}` takes the directory away"
                )
            }
            NoAnswerReason::Gone => format!(
                "its server is gone: `holdfast unmount {directory}` clears it away, and the next \
                 mount recovers the pool"
            ),
            NoAnswerReason::NotReachable => {
                let sockets = run_directory::to_ask().unwrap_or_default();
                let sockets: Vec<_> = sockets.iter().map(|it| it.display().to_string()).collect();
                let (sockets, whether) = match pid {
                    Some(_) => (sockets.join(", "), "programs go on with its files"),
                    None => (sockets.join(", "), "its process is not found either"),
                };
                format!(
                    "server not reachable: it has no socket in {sockets} (removed?); {whether}: \
                     `holdfast unmount` of the directory, then `holdfast mount`, bring a server \
                     that answers"
                )
            }
        }
    }
}

/// Returns the mounts of the server on `socket`, which did not answer.
pub(super) fn silent(socket: &Path, mounts: &[MountEntry]) -> Option<DiscoveredServer> {
    let is_of_socket = |entry: &&MountEntry| {
        entry.kind == MOUNT_TYPE && pools_in(&entry.source).any(|pool| is_socket_of(socket, &pool))
    };
    let entry = mounts.iter().rfind(is_of_socket)?;
    let (pid, silence) = match connect(socket, AT_ONCE) {
        Ok(stream) => (front::peer::ids(&stream).ok()?.pid, NoAnswerReason::DoesNotAnswer),
        // A process listens, because the queue is full. The kernel does not report its PID.
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            (None, NoAnswerReason::DoesNotAnswer)
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => (None, NoAnswerReason::Gone),
        Err(_) => return None,
    };
    let others = mounts.iter().filter(is_of_socket).filter(|it| it.id != entry.id);
    let all: Vec<&MountEntry> = [entry].into_iter().chain(others).collect();
    let is_it = |pool: &String| is_socket_of(socket, pool);
    let pool = pools_in(&entry.source).find(is_it).unwrap_or_else(|| entry.source.clone());
    Some(found_of(&pool, &all, socket.to_owned(), (silence, pid)))
}

fn found_of(
    pool: &str,
    all: &[&MountEntry],
    socket: PathBuf,
    (silence, pid): (NoAnswerReason, Option<i32>),
) -> DiscoveredServer {
    let mount = |entry: &&MountEntry| {
        json!({
            "directory": entry.directory.to_string_lossy(),
            "directory_bytes": entry.directory.as_os_str().as_bytes(),
            "device": entry.device,
        })
    };
    let mounts: Vec<Value> = all.iter().map(mount).collect();
    let mut server = mounts.first().cloned().unwrap_or(Value::Null);
    let directory = all.first().map_or(Path::new(""), |entry| &entry.directory);
    server["pool"] = json!(pool);
    server["pid"] = json!(pid);
    server["problem"] = json!(silence.advice(directory, pid));
    server["mounts"] = json!(mounts);
    DiscoveredServer { status: json!({ "server": server }), socket, silence: Some(silence) }
}

/// Returns this user's mounts, grouped by pool, that no server in `found` lists: their run
/// directory was removed, as at logout, or their server ended.
pub(super) fn unreachable(
    mounts: &[MountEntry],
    found: &[DiscoveredServer],
) -> Vec<DiscoveredServer> {
    let told = |entry: &MountEntry| {
        let all = |it: &DiscoveredServer| {
            it.status["server"]["mounts"].as_array().cloned().unwrap_or_default()
        };
        found.iter().any(|it| {
            it.is_on(&entry.directory)
                || all(it).iter().any(|mount| mount["device"] == *entry.device)
        })
    };
    let own = format!("user_id={}", rustix::process::geteuid().as_raw());
    let is_own = |entry: &MountEntry| entry.options.0.split(',').any(|word| word == own);
    let mut left: Vec<&MountEntry> = mounts
        .iter()
        .filter(|entry| entry.kind == MOUNT_TYPE && is_own(entry) && !told(entry))
        .collect();
    let mut unreachable = Vec::new();
    while let Some(entry) = left.first() {
        let pool = &pool_of(&entry.source);
        let (all, others) = left.iter().partition(|it| pools_in(&it.source).any(|it| it == *pool));
        left = others;
        let pid = server_of(pool);
        let socket = socket_to(Path::new(pool)).unwrap_or_default();
        // If the socket exists by now, the server has just started.
        if is_of_our_run_directory(pid) && !socket.exists() {
            unreachable.push(found_of(pool, &all, socket, (NoAnswerReason::NotReachable, pid)));
        }
    }
    unreachable
}

fn pool_of(source: &str) -> String {
    let is_there = |pool: &String| check_way(Path::new(pool)).is_ok() && Path::new(pool).exists();
    pools_in(source).find(is_there).unwrap_or_else(|| source.to_owned())
}

fn server_of(pool: &str) -> Option<i32> {
    let is_looked_at = check_way(Path::new(pool)).is_ok();
    is_looked_at.then(|| holders_of(Path::new(pool)).into_iter().next()).flatten()
}

/// Whether the process would have its socket in this process's run directory, by its
/// `HOLDFAST_RUN_DIR`. If its environment is unreadable, it counts as without the variable.
fn is_of_our_run_directory(pid: Option<i32>) -> bool {
    let own = std::env::var_os("HOLDFAST_RUN_DIR");
    let environment = pid.and_then(|pid| {
        use std::io::Read as _;
        let file = std::fs::File::open(format!("/proc/{pid}/environ")).ok()?;
        let mut bytes = Vec::new();
        file.take(ENVIRONMENT_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    });
    let Some(environment) = environment else { return own.is_none() };
    let mut variables = environment.split(|&byte| byte == 0);
    let its = variables.find_map(|variable| variable.strip_prefix(b"HOLDFAST_RUN_DIR="));
    its == own.as_deref().map(std::ffi::OsStr::as_bytes)
}

fn is_socket_of(socket: &Path, pool: &str) -> bool {
    let stem = socket.file_stem().unwrap_or_default().as_bytes();
    let stem = stem.strip_suffix(b".users").unwrap_or(stem);
    stem == key_of(Path::new(pool)).as_bytes()
}
