//! Status and control sockets of running servers.
//!
//! Each server listens on `KEY.sock` in the run directory, where KEY derives from the pool's path.
//! The directory belongs to the user and is closed to others, unless a server has a configuration
//! with roles ([`crate::roles`]). Other users then have a second socket, `KEY.users.sock`
//! ([`sockets`]). A client sends one line of JSON and gets one line back.
//!
//! Limits: requests of [`control::LINE_BYTES_MAX`], answers of [`ANSWER_BYTES_MAX`]. Requests of
//! administrators are read one at a time, and a client that does not send its request within
//! [`CLIENT_TIME`] is dropped. Requests that take long run in threads of their own, at most
//! [`LONG_MAX`], so they do not delay `status`. Other users have at most [`others::OTHERS_MAX`]
//! threads. Users without a role are refused before their request is read.

mod ending;
mod others;
mod silent;
mod sockets;

use crate::peer::audited;
use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use format::superblock::verify_pool_name;
use front::fuse::MountOptions;
use front::fuse::mountpoint::{self, MOUNT_TYPE, MountEntry};
use front::fuse::protocol::{NodeId, NodeNumbers};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::backend::{ExplainTarget, OpenPool};
use crate::bugs;
pub use crate::messages::CLOSING;
use crate::messages::{CLIENT_TIME, CONTROL_TIME, read_line, receive_line, send};
use crate::mounts::{self, MountCreator, MountSpec, PoolClosingError, PoolMounts};
use crate::named::pools_in;
use crate::peer::Peer;
use crate::places::ConcurrencyLimit;
use crate::roles::{PeerRole, PoolGrants};
use crate::run_directory::{self, run_directory};
use crate::transfer::{self, Transfers};
use control::text::path_as_text;
use control::wire::{WireAnswer, WireRequest};
use control::{self, Request, Transfer};
use ending::closing_facts;
pub use ending::{CLOSE_TIME, find};
use others::UserRequestLimiter;
pub use silent::NoAnswerReason;
use silent::{silent, unreachable};
pub use sockets::StatusServer;

/// Longest answer. The longest is a list of schedules, with some hundred bytes per fileset.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Most requests executed at a time. Each has a thread, and may wait until a device's deadline.
const LONG_MAX: usize = 64;

/// Longest wait to connect, if the caller only checks whether a server listens.
const AT_ONCE: Duration = Duration::from_millis(1);

/// Pause after a failed accept(2), such as one without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Age below which a dead socket is kept, because its server may be starting.
const SOCKET_YOUNG_TIME: Duration = Duration::from_secs(60);

const OF_USERS: &str = ".users.sock";

/// Bytes of the pool's file name in its key. The name is there for people.
const KEY_NAME_BYTES_MAX: usize = 32;

/// Facts about a server, for its status.
#[derive(Clone, Serialize)]
pub struct ServerContext {
    /// The pool's device.
    #[serde(serialize_with = "path_as_text")]
    pub pool: PathBuf,
    /// The pool's mounts.
    #[serde(skip)]
    pub mounts: Arc<PoolMounts>,
    /// Whether the server goes on when it has no mounts.
    pub lasts: bool,
    /// PID of the server.
    pub pid: u32,
    /// Log file.
    #[serde(serialize_with = "optional_path_as_text")]
    pub log: Option<PathBuf>,
    /// Address of NFS.
    pub nfs: Option<SocketAddr>,
    /// Address of HTTP.
    pub http: Option<SocketAddr>,
    /// Roles of other users. `None` if the server has no socket for them.
    #[serde(skip)]
    pub roles: Option<Arc<PoolGrants>>,
}

/// Returns the server's part of `status`, with its mounts. The fields of the first mount are also
/// at the top level.
pub fn server_facts(served: &ServerContext) -> Value {
    let mut facts = json!(served);
    let mounts = served.mounts.facts();
    for name in ["directory", "directory_bytes", "device", "transport"] {
        facts[name] = mounts.first().map_or(Value::Null, |first| first[name].clone());
    }
    facts["mounts"] = json!(mounts);
    facts["hand_overs"] = json!(served.mounts.hand_overs());
    facts["is_ending"] = json!(!served.lasts && served.mounts.is_ending());
    facts
}

fn optional_path_as_text<S: Serializer>(
    path: &Option<PathBuf>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match path {
        Some(path) => path_as_text(path, serializer),
        None => serializer.serialize_none(),
    }
}

/// Returns the key of a pool: its file name and a hash of its path. Sockets and logs are named by
/// it.
pub fn key_of(pool: &Path) -> String {
    let bytes = pool.as_os_str().as_bytes();
    // FNV-1a, because the hash must be the same in every build. If two pools collide, the status of
    // the second is not available.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let name = pool.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    let name: String = name.chars().map(safe).take(KEY_NAME_BYTES_MAX).collect();
    format!("{name}-{hash:016x}")
}

/// Returns the socket on which the server of `pool` listens.
pub fn socket_of(pool: &Path) -> anyhow::Result<PathBuf> {
    Ok(run_directory()?.join(format!("{}.sock", key_of(pool))))
}

/// Returns the path of the server's socket that this user may use, in this user's run directory or
/// in root's.
pub fn socket_to(pool: &Path) -> anyhow::Result<PathBuf> {
    let key = key_of(pool);
    let name = |directory: PathBuf| match run_directory::is_own(&directory) {
        true => directory.join(format!("{key}.sock")),
        false => directory.join(format!("{key}{OF_USERS}")),
    };
    let sockets: Vec<PathBuf> = run_directory::to_ask()?.into_iter().map(name).collect();
    let found = sockets.iter().find(|it| it.exists()).or(sockets.first());
    found.cloned().context("there is no run directory")
}

/// Records in the run directory that the pool `name` is at `pool`, and returns whether the record
/// leads there. While another pool of that name is open, or is the source of a mount, its record
/// stays, and the result is false.
pub fn take_name(name: &str, pool: &Path) -> bool {
    let known = run_directory::pools_named(name);
    if known.iter().any(|path| path == pool) {
        return true;
    }
    let is_open = |other: &PathBuf| {
        let connected = socket_to(other).map(|socket| connect(&socket, AT_ONCE));
        connected.is_ok_and(|it| it.map_or_else(|error| !has_ended(&error), |_| true))
    };
    let is_of_name = |entry: &MountEntry| {
        let rest = entry.source.strip_prefix(name);
        entry.kind == MOUNT_TYPE && rest.is_some_and(|it| it.is_empty() || it.starts_with(':'))
    };
    let is_mounted = || mountpoint::mounts().is_ok_and(|all| all.iter().any(is_of_name));
    let is_taken = known.iter().any(is_open) || is_mounted();
    !is_taken && run_directory::record_name(name, pool).is_ok()
}

/// Returns the path of the file in which a server leaves the error of a failed close.
pub fn last_words_of(pool: &Path) -> anyhow::Result<PathBuf> {
    Ok(socket_of(pool)?.with_extension("failed"))
}

fn status_of(served: &ServerContext, pool: &dyn OpenPool) -> Value {
    let (bugs, mut status) = (bugs::so_far(), pool.status());
    bugs::add_to(&mut status);
    json!({ "server": server_facts(served), "bugs": bugs, "pool": status })
}

struct StatusService {
    served: Arc<ServerContext>,
    pool: Arc<dyn OpenPool>,
    transfers: Transfers,
    long: ConcurrencyLimit,
    others: UserRequestLimiter,
}

impl StatusService {
    fn later(
        &self,
        stream: &UnixStream,
        work: impl FnOnce(&ServerContext, &Arc<dyn OpenPool>) -> WireAnswer + Send + 'static,
    ) -> anyhow::Result<()> {
        let Some(place) = self.long.take() else {
            let words = format!("{LONG_MAX} requests are under way: try again when one has ended");
            return send(stream, &WireAnswer::Error(words));
        };
        let (served, pool) = (Arc::clone(&self.served), Arc::clone(&self.pool));
        let stream = stream.try_clone()?;
        std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&served, &pool)));
            // The permit is returned before the answer, so that the client's next request finds it
            // free.
            drop((place, served, pool));
            if let Err(error) = send(&stream, &done.unwrap_or_else(|_| bug())) {
                tracing::debug!(%error, "a client has gone before its answer");
            }
        })?;
        Ok(())
    }
}

fn bug() -> WireAnswer {
    tracing::error!("a question of a status client met a bug");
    WireAnswer::Error("the server met a bug: see its log (`holdfast status`)".to_owned())
}

fn serve(
    stream: &UnixStream,
    answering: &StatusService,
    (peer, own): (Peer, Peer),
) -> anyhow::Result<()> {
    let StatusService { served, pool, transfers, .. } = answering;
    let role = served.role_of(peer, own);
    if role != PeerRole::Administrator {
        // RO4: other users are refused here, whatever they request.
        return send(stream, &WireAnswer::Error(role.refusal(peer, Some(own))));
    }
    let line = receive_line(stream, control::LINE_BYTES_MAX, CLIENT_TIME)?;
    let question = match serde_json::from_slice(&line) {
        Ok(question) => question,
        Err(error) => return send(stream, &WireAnswer::Error(not_understood(&error))),
    };
    if served.mounts.is_over() {
        let is_status = matches!(question, WireRequest::Status);
        let status = || WireAnswer::Status(closing_facts(served));
        return send(stream, &if is_status { status() } else { WireAnswer::Closing });
    }
    let answer = match question {
        WireRequest::Status => WireAnswer::Status(status_of(served, pool.as_ref())),
        WireRequest::Explain { mount, node, range } => {
            return answering.later(stream, move |served, pool| {
                let found = served.mounts.inode_of(mount, NodeId(node));
                let (pool, ino) = found.unwrap_or_else(|| {
                    let root = pool.file_system().root();
                    (Arc::clone(pool), NodeNumbers::new(root).ino_of(NodeId(node)))
                });
                match pool.explain(&ExplainTarget::Inode { ino, range }) {
                    Ok(steps) => WireAnswer::Explain(steps),
                    Err(error) => WireAnswer::Error(error.to_string()),
                }
            });
        }
        WireRequest::Control { version, request } => {
            return answering.later(stream, move |served, pool| {
                controlled((pool.as_ref(), &served.mounts), (version, request), peer)
            });
        }
        WireRequest::Remount { version, request } => {
            return answering.later(stream, move |served, _| {
                let done = control::parse_as(version, request).and_then(|spec| {
                    served.mounts.remount(&spec).map_err(|error| format!("{error:#}"))
                });
                done.map_or_else(WireAnswer::Error, WireAnswer::Mounted)
            });
        }
        WireRequest::Mount { version, request } => {
            let begun = control::parse_as(version, request).and_then(|spec| {
                let begun = served.mounts.begin(stream, spec, MountCreator::Administrator(peer));
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                Ok(()) => return Ok(()),
                Err(words) => WireAnswer::Error(words),
            }
        }
        WireRequest::Transfer { version, request } => {
            let begun = control::parse_as(version, request).and_then(|request| {
                let begun = transfers.begin(stream, (pool, &served.mounts), request, peer);
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                Ok(()) => return Ok(()),
                Err(words) => WireAnswer::Error(words),
            }
        }
    };
    send(stream, &answer)
}

fn peer_of(stream: &UnixStream) -> anyhow::Result<Peer> {
    let peer = front::peer::ids(stream)?;
    Ok(Peer { uid: peer.uid, gid: peer.gid })
}

fn not_understood(error: &serde_json::Error) -> String {
    let most = control::LINE_BYTES_MAX;
    format!(
        "the question is not understood ({error}): it is one line of JSON of at most {most} bytes, \
         from a `holdfast` of the server's version"
    )
}

/// Handles a request of an administrator (CO1, TF1).
fn controlled(
    (pool, mounts): (&dyn OpenPool, &PoolMounts),
    (version, request): (u32, Value),
    peer: Peer,
) -> WireAnswer {
    let request = match Request::parse(version, request) {
        Ok(request) => request,
        Err(words) => return WireAnswer::Error(words),
    };
    let who = format!("user {}", peer.uid);
    let done = || {
        if let Some(answer) = mounts.control(&request) {
            return answer;
        }
        mounts.uses.check(&request)?;
        let mut answer = pool.control(&request, peer)?;
        mounts.uses.tell(&mut answer);
        Ok(answer)
    };
    match audited(&who, &request, done) {
        Ok(answer) => WireAnswer::Control(answer),
        Err(error) => WireAnswer::Error(error.to_string()),
    }
}

/// Connects to the server on `path`. Waits up to `patience` while the server's queue is full.
/// connect(2) would wait without limit if the server is stopped.
///
/// # Errors
///
/// [`ErrorKind::WouldBlock`] if the queue stays full, else the error of connect(2).
fn connect(path: &Path, patience: Duration) -> std::io::Result<UnixStream> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // The send timeout bounds connect(2) too (unix(7)).
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn has_ended(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Sends a request to the server on `path`, and returns the answer.
pub fn ask(path: &Path, question: &WireRequest) -> anyhow::Result<WireAnswer> {
    let stream = connect(path, CLIENT_TIME)
        .with_context(|| format!("no server answers on {}", path.display()))?;
    // Sending may fail for a user without a role, because the server refuses before it reads. The
    // refusal can still be received.
    let sent = send(&stream, question);
    let patience = match question {
        WireRequest::Control { .. }
        | WireRequest::Transfer { .. }
        | WireRequest::Mount { .. }
        | WireRequest::Remount { .. } => CONTROL_TIME,
        WireRequest::Status | WireRequest::Explain { .. } => CLIENT_TIME,
    };
    let line = receive_line(&stream, ANSWER_BYTES_MAX, patience);
    if line.is_err() {
        sent?;
    }
    Ok(serde_json::from_slice(&line?)?)
}

/// Requests a transfer through `file` from the server on `path`.
pub fn transfer(
    path: &Path,
    request: &Transfer,
    file: File,
    progress: transfer::OnTransfer<'_>,
) -> anyhow::Result<Value> {
    let stream = connect(path, CLIENT_TIME)
        .with_context(|| format!("no server answers on {}", path.display()))?;
    let is_move = matches!(request, Transfer::Move { .. });
    let request = serde_json::to_value(request)?;
    send(&stream, &WireRequest::Transfer { version: control::VERSION, request })?;
    // A move goes on in the server without its client.
    let cancel_time = if is_move { Duration::ZERO } else { transfer::CANCEL_TIME };
    transfer::follow(&stream, file, progress, cancel_time)
}

/// Mounts `directory` and hands the mount to the server on `path`. Returns the mount's facts, and
/// whether a dead mount had to be detached first.
pub fn hand_over(
    path: &Path,
    spec: &MountSpec,
    directory: &Path,
    options: &MountOptions,
) -> anyhow::Result<(Value, bool)> {
    let closing = || PoolClosingError::of(Path::new(&options.fs_name));
    let stream = match connect(path, CLIENT_TIME) {
        // The server has ended since the caller got its status.
        Err(error) if has_ended(&error) => return Err(closing().into()),
        stream => stream.with_context(|| format!("no server answers on {}", path.display()))?,
    };
    let request = serde_json::to_value(spec)?;
    send(&stream, &WireRequest::Mount { version: control::VERSION, request })
        .map_err(|_| closing())?;
    mounts::hand_over(&stream, directory, options)
}

/// A server that answered, or the mounts of a server that did not.
#[derive(Debug)]
pub struct DiscoveredServer {
    /// The answer, or facts from the kernel's tables.
    pub status: Value,
    /// Socket of the server.
    pub socket: PathBuf,
    /// Why the server did not answer.
    pub silence: Option<NoAnswerReason>,
}

impl DiscoveredServer {
    /// Returns a text field of the server: `pool`, `directory`, `log`.
    pub fn text(&self, name: &str) -> &str {
        self.status["server"][name].as_str().unwrap_or("")
    }

    /// Returns the directory (exact bytes) and the fileset of each mount.
    pub fn mounts(&self) -> Vec<(PathBuf, Option<&str>)> {
        let mounts = self.status["server"]["mounts"].as_array();
        let mount = |mount: &'_ Value| {
            let bytes = mount["directory_bytes"].as_array().into_iter().flatten();
            let bytes = bytes.filter_map(|byte| u8::try_from(byte.as_u64()?).ok());
            OsString::from_vec(bytes.collect()).into()
        };
        let each = mounts.into_iter().flatten();
        each.map(|it| (mount(it), it["fileset"].as_str())).collect()
    }

    /// Returns the pool of the fileset mounted on exactly `directory`, if that fileset has moved to
    /// another pool.
    pub fn moved_to(&self, directory: &Path) -> Option<&str> {
        let at = self.mounts().iter().position(|(it, _)| it == directory)?;
        self.status["server"]["mounts"][at]["moved_to"].as_str()
    }

    /// Returns the mount points of a fileset that is in `pool` at present.
    pub fn directories_of(&self, pool: &Path, fileset: &str) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for (directory, name) in self.mounts() {
            let at = self.moved_to(&directory).unwrap_or_else(|| self.text("pool"));
            if Path::new(at) == pool && name == Some(fileset) {
                directories.push(directory);
            }
        }
        directories
    }

    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.mounts().into_iter().next().map(|(directory, _)| directory)
    }

    /// Returns the device number of the mount on exactly `directory`, by the server: the mount
    /// table may lack the mount. Fails if the number is not reliable.
    pub fn device_on(&self, directory: &Path) -> Result<String, &'static str> {
        let mounts = self.status["server"]["mounts"].as_array().map_or(&[][..], Vec::as_slice);
        let at = self.mounts().iter().map(|(it, _)| it == directory).collect::<Vec<_>>();
        let mut those = mounts.iter().zip(at).filter(|(_, is_it)| *is_it).map(|(mount, _)| mount);
        let (Some(mount), None) = (those.next(), those.next()) else {
            return Err("its server does not list exactly one mount on that directory");
        };
        if !mount["mounter"].is_null() {
            return Err("its device number was reported by a mounter and is not trusted");
        }
        if mount["has_gone"] == true {
            return Err("the kernel has already ended its connection");
        }
        let device = mount["device"].as_str().ok_or("its device number is not known")?;
        if mounts.iter().filter(|it| it["device"] == device).count() > 1 {
            return Err("its server lists another mount with the same device number");
        }
        Ok(device.to_owned())
    }

    /// Whether a mount is on exactly `directory`.
    pub fn is_on(&self, directory: &Path) -> bool {
        self.mounts().iter().any(|(it, _)| it == directory)
    }

    fn depth_of(&self, path: &Path) -> Option<usize> {
        let above = self.mounts().into_iter().filter(|(it, _)| path.starts_with(it));
        above.map(|(it, _)| it.components().count()).max()
    }

    /// Returns the pool's id, empty if the server did not answer.
    pub fn pool_id(&self) -> &str {
        self.status["pool"]["pool_id"].as_str().unwrap_or("")
    }

    /// Returns whether the server has pool `id`, or did not tell which it has.
    pub fn may_have(&self, id: &str) -> bool {
        [id, ""].contains(&self.pool_id())
    }

    /// Returns the pool's name, if the server answered and this user may see it.
    pub fn pool_name(&self) -> Option<&str> {
        let name = self.status["pool"]["label"].as_str();
        name.filter(|name| verify_pool_name(name).is_ok())
    }

    /// Returns the paths of the pool's devices.
    pub fn devices(&self) -> Vec<PathBuf> {
        let members = self.status["pool"]["members"].as_array().into_iter().flatten();
        let paths = members.filter_map(|member| member["path"].as_str()).map(PathBuf::from);
        std::iter::once(PathBuf::from(self.pool())).chain(paths).collect()
    }

    /// Whether `path` is a device of the pool.
    pub fn has_member(&self, path: &Path) -> bool {
        let members = self.status["pool"]["members"].as_array().into_iter().flatten();
        let path = std::fs::canonicalize(path);
        path.is_ok_and(|path| {
            members.filter_map(|member| member["path"].as_str()).any(|own| Path::new(own) == path)
        })
    }

    /// Whether the server on `socket` still serves the pool named by that socket. A pool goes on
    /// under another name after its named device was removed from it.
    pub fn is_called(&self, socket: &Path) -> bool {
        self.socket == socket && self.status["pool"]["named_by"].is_null()
    }

    /// Returns the pool's name: the device with which it was opened, or another member if that
    /// device was removed from the pool.
    pub fn pool(&self) -> &str {
        self.status["pool"]["named_by"].as_str().unwrap_or_else(|| self.text("pool"))
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.status["server"]["is_ending"] == true
    }

    /// Returns the problem and the remedy, empty if the server answered.
    pub fn advice(&self) -> &str {
        self.text("problem")
    }

    /// Returns the server's PID.
    pub fn pid(&self) -> Option<i32> {
        self.status["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
    }
}

/// Returns the status of every server of this user, and this user's mounts whose server does not
/// answer or cannot be reached.
pub fn all() -> anyhow::Result<Vec<DiscoveredServer>> {
    let mounts = mountpoint::mounts().context("cannot read the table of mounts")?;
    let mut found = Vec::new();
    let mut sockets = Vec::new();
    for directory in run_directory::to_ask()? {
        let is_own = run_directory::is_own(&directory);
        let entries = match std::fs::read_dir(directory) {
            // A run directory that was removed contains no sockets.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            sockets.push((entry?.path(), is_own));
        }
    }
    for (socket, is_own) in sockets {
        if socket.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        if is_of_users(&socket) == is_own {
            // This user asks the server by its other socket.
            remove_if_abandoned(&socket);
            continue;
        }
        match ask(&socket, &WireRequest::Status) {
            Ok(WireAnswer::Status(status)) => {
                found.push(DiscoveredServer { status, socket, silence: None })
            }
            Ok(_) => {}
            Err(_) => match silent(&socket, &mounts) {
                Some(silent) => found.push(silent),
                None => remove_if_abandoned(&socket),
            },
        }
    }
    let unreachable = unreachable(&mounts, &found);
    found.extend(unreachable);
    found.sort_by_cached_key(DiscoveredServer::directory);
    Ok(found)
}

fn is_of_users(socket: &Path) -> bool {
    socket.as_os_str().as_bytes().ends_with(OF_USERS.as_bytes())
}

/// Removes the socket of a killed server. A recent socket is kept, because its server may be about
/// to listen.
fn remove_if_abandoned(socket: &Path) {
    let is_refused =
        connect(socket, AT_ONCE).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let age = std::fs::metadata(socket).and_then(|m| m.modified()).map(|time| time.elapsed());
    if is_refused && age.is_ok_and(|age| age.is_ok_and(|age| age > SOCKET_YOUNG_TIME)) {
        let _ = std::fs::remove_file(socket);
    }
}

/// As [`find`], but does not wait for a server that is closing its pool.
pub fn find_now(path: &Path) -> anyhow::Result<Option<DiscoveredServer>> {
    let path = mountpoint::absolute(path).with_context(|| format!("{}", path.display()))?;
    let socket = socket_to(&path)?;
    match ask(&socket, &WireRequest::Status) {
        Ok(WireAnswer::Status(status)) => {
            let found = DiscoveredServer { status, socket: socket.clone(), silence: None };
            if found.is_called(&socket) {
                return Ok(Some(found));
            }
        }
        Ok(WireAnswer::Error(refusal)) => anyhow::bail!("{}: {refusal}", path.display()),
        Ok(_) | Err(_) => {}
    }
    let is_in = |found: &DiscoveredServer| {
        found.is_called(&socket) || found.depth_of(&path).is_some() || found.has_member(&path)
    };
    // Of nested mounts, the innermost counts.
    Ok(all()?.into_iter().filter(is_in).max_by_key(|found| found.depth_of(&path)))
}

/// Refuses a path below a mount with a stopped server, where a lookup would block. A mount whose
/// server is another user's is not checked.
pub fn check_way(path: &Path) -> anyhow::Result<()> {
    mountpoint::follow(path, &mut |entry| {
        let sockets = pools_in(&entry.source).map(|pool| socket_to(Path::new(&pool)));
        let sockets = sockets.collect::<anyhow::Result<Vec<_>>>()?;
        let socket = sockets.iter().find(|it| it.exists()).or(sockets.first());
        let Some(socket) = socket.cloned() else { return Ok(()) };
        if ask(&socket, &WireRequest::Status).is_ok() {
            return Ok(());
        }
        let silent = silent(&socket, std::slice::from_ref(entry));
        match silent.filter(|found| found.silence == Some(NoAnswerReason::DoesNotAnswer)) {
            Some(found) => anyhow::bail!(
                "{} is below {}: {}",
                path.display(),
                entry.directory.display(),
                found.advice()
            ),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests;
