//! Mounts whose server says nothing: what the kernel's tables tell of them.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use front::fuse::mountpoint::{MOUNT_TYPE, MountEntry};
use serde_json::{Value, json};

use super::{AT_ONCE, Found, check_way, connect, key_of, socket_to};
use crate::holders::holders_of;
use crate::named::pools_in;
use crate::run_directory;

/// Longest environment of a process that is read.
const ENVIRONMENT_BYTES_MAX: u64 = 1 << 20;

/// Why a mount's server says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// The process is there: stopped, or stuck.
    DoesNotAnswer,
    /// It was killed.
    Gone,
    /// It has no socket: the run directory was removed.
    NotReachable,
}

impl Silence {
    /// Returns what to say and what to do of the mount on `directory`.
    fn advice(self, directory: &Path, pid: Option<i32>) -> String {
        let directory = directory.display();
        match self {
            Silence::DoesNotAnswer => {
                let (who, which) = match pid {
                    Some(pid) => (format!(" (process {pid})"), pid.to_string()),
                    None => (String::new(), "PROCESS".to_owned()),
                };
                format!(
                    "its server does not answer{who}: `kill -CONT {which}` if it was stopped; \
                     `holdfast unmount --lazy {directory}` takes the directory away"
                )
            }
            Silence::Gone => format!(
                "its server is gone: `holdfast unmount {directory}` clears it away, and the next \
                 mount recovers the pool"
            ),
            Silence::NotReachable => {
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

/// Returns the mount whose server did not answer on `socket`, by what the kernel knows: the process
/// that listens there, and where its pool is mounted.
pub(super) fn silent(socket: &Path, mounts: &[MountEntry]) -> Option<Found> {
    let is_of_socket = |entry: &&MountEntry| {
        entry.kind == MOUNT_TYPE && pools_in(&entry.source).any(|pool| is_socket_of(socket, pool))
    };
    let entry = mounts.iter().rfind(is_of_socket)?;
    let (pid, silence) = match connect(socket, AT_ONCE) {
        Ok(stream) => (front::peer::ids(&stream).ok()?.pid, Silence::DoesNotAnswer),
        // Its queue is full: somebody listens, and the kernel does not say who.
        Err(error) if error.kind() == ErrorKind::WouldBlock => (None, Silence::DoesNotAnswer),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => (None, Silence::Gone),
        Err(_) => return None,
    };
    let others = mounts.iter().filter(is_of_socket).filter(|it| it.id != entry.id);
    let all: Vec<&MountEntry> = [entry].into_iter().chain(others).collect();
    let is_it = |pool: &&str| is_socket_of(socket, pool);
    let pool = pools_in(&entry.source).find(is_it).unwrap_or(&entry.source);
    Some(found_of(pool, &all, socket.to_owned(), (silence, pid)))
}

/// Returns what is told of the mounts `all` of a pool, the first of which stands for the others.
fn found_of(
    pool: &str,
    all: &[&MountEntry],
    socket: PathBuf,
    (silence, pid): (Silence, Option<i32>),
) -> Found {
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
    Found { status: json!({ "server": server }), socket, silence: Some(silence) }
}

/// Returns the mounts of this user that no server in `found` has told, by their pools: the run
/// directory was removed, as that of a user is at logout, or the server has ended without a trace.
pub(super) fn unreachable(mounts: &[MountEntry], found: &[Found]) -> Vec<Found> {
    let told = |entry: &MountEntry| {
        let all =
            |it: &Found| it.status["server"]["mounts"].as_array().cloned().unwrap_or_default();
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
        let pool = pool_of(&entry.source);
        let (all, others) = left.iter().partition(|it| pools_in(&it.source).any(|it| it == pool));
        left = others;
        let pid = server_of(pool);
        let socket = socket_to(Path::new(pool)).unwrap_or_default();
        // One that is starting may listen by now.
        if is_of_our_run_directory(pid) && !socket.exists() {
            unreachable.push(found_of(pool, &all, socket, (Silence::NotReachable, pid)));
        }
    }
    unreachable
}

/// Returns the pool that a source of the table of mounts names.
fn pool_of(source: &str) -> &str {
    let is_there = |pool: &&str| check_way(Path::new(pool)).is_ok() && Path::new(pool).exists();
    pools_in(source).find(is_there).unwrap_or(source)
}

/// Returns the process that has a pool open, as far as the kernel tells.
fn server_of(pool: &str) -> Option<i32> {
    let is_looked_at = check_way(Path::new(pool)).is_ok();
    is_looked_at.then(|| holders_of(Path::new(pool)).into_iter().next()).flatten()
}

/// Whether a server has its socket where this process looks for one: `HOLDFAST_RUN_DIR` keeps
/// servers apart. Of one whose environment cannot be read that is assumed where the variable is not
/// set here.
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

/// Whether a socket is called as that of a pool.
fn is_socket_of(socket: &Path, pool: &str) -> bool {
    let stem = socket.file_stem().unwrap_or_default().as_bytes();
    let stem = stem.strip_suffix(b".users").unwrap_or(stem);
    stem == key_of(Path::new(pool)).as_bytes()
}
