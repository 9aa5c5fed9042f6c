//! How a running server is asked.
//!
//! Each server listens on a socket of its own, `KEY.sock` in the run directory, where KEY is made
//! of the pool's path. The run directory belongs to the user. Nobody else may enter it but where a
//! server has a configuration, which may give others a role ([`crate::roles`]): those ask by a
//! second one, `KEY.users.sock` ([`sockets`]). A client sends one line of JSON and gets one line
//! back.
//!
//! Limits: lines of at most [`LINE_BYTES_MAX`], answers of [`ANSWER_BYTES_MAX`]; one client at a
//! time is listened to; a client that neither sends nor reads within [`CLIENT_TIME`] is dropped.
//! What may take long has a thread of its own, of [`LONG_MAX`] at a time: whoever asks for the
//! status waits for none of them. Who is no administrator has a thread of his own, of
//! [`others::OTHERS_MAX`] at a time; who has no role is not listened to at all.

mod ending;
mod others;
mod silent;
mod sockets;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use front::fuse::MountOptions;
use front::fuse::mountpoint;
use front::fuse::protocol::{NodeId, NodeNumbers};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use crate::backend::{ExplainStep, ExplainTarget, OpenPool};
use crate::bugs;
use crate::control::{self, Peer, Request};
use crate::mounts::{self, Closing, Maker, MountSpec, Mounts};
use crate::named::pools_in;
use crate::output::path_as_text;
use crate::places::Places;
use crate::roles::{Role, Roles};
use crate::run_directory::{self, run_directory};
use crate::transfer::{self, Transfer, Transfers};
use crate::until::Until;
use ending::closing_facts;
pub(crate) use ending::{CLOSE_TIME, CLOSING, find};
use others::Others;
pub(crate) use silent::Silence;
use silent::{silent, unreachable};
pub(crate) use sockets::StatusServer;

/// Longest line in either direction: an explanation of a large range has thousands of steps.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Longest answer that is read: a list of schedules has some hundred bytes of each fileset.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How long one side waits for the other.
const CLIENT_TIME: Duration = Duration::from_secs(5);

/// How long a change is waited for: it is durable when it is answered, and takes a checkpoint of a
/// slow disk.
const CONTROL_TIME: Duration = Duration::from_secs(120);

/// Requests and explanations that a server works on at a time: each holds a thread, and may wait
/// for a device until its deadline.
const LONG_MAX: usize = 64;

/// How long whoever only looks whether somebody listens waits for a place in the queue.
const AT_ONCE: Duration = Duration::from_millis(1);

/// How long nobody is accepted after that has failed: it needs descriptors, which come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket younger than this may belong to a server that is just starting.
const SOCKET_YOUNG_TIME: Duration = Duration::from_secs(60);

/// How the socket is called by which others ask.
const OF_USERS: &str = ".users.sock";

/// Bytes of a pool's file name that its key keeps, so that people recognise it.
const KEY_NAME_BYTES_MAX: usize = 32;

/// A question.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub(crate) enum Question {
    /// How are you?
    Status,
    /// Where are these bytes?
    Explain {
        /// In which of the server's mounts, counted from 0.
        #[serde(default)]
        mount: usize,
        /// What stat(2) said.
        node: u64,
        /// First and last byte.
        range: Option<(u64, u64)>,
    },
    /// Do something that moves more than an answer.
    Transfer {
        /// Of the request.
        version: u32,
        /// See [`Transfer`].
        request: Value,
    },
    /// Serve a mount that the client makes.
    Mount {
        /// Of the request.
        version: u32,
        /// See [`crate::mounts::MountSpec`].
        request: Value,
    },
    /// Change a mount that is served.
    Remount {
        /// Of the request.
        version: u32,
        /// See [`crate::mounts::RemountSpec`].
        request: Value,
    },
    /// Do something beside files.
    Control {
        /// Of the request.
        version: u32,
        /// See [`Request`]: of another version it may be anything.
        request: Value,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    /// One object.
    Status(Value),
    /// From the name to the byte.
    Explain(Vec<ExplainStep>),
    /// What a request was answered.
    Control(control::Answer),
    /// Pass the descriptor now.
    Ready,
    /// How far a transfer is.
    Progress {
        /// Bytes done.
        done: u64,
        /// Of so many; 0: nobody knows.
        total: u64,
    },
    /// How a transfer came out.
    Transferred(Value),
    /// A mount is served; what `status` tells of it.
    Mounted(Value),
    /// Why there is no answer.
    Error(String),
    /// The pool is being closed: ask again when the server has ended.
    Closing,
}

/// What a server says of itself beside what the pool says.
#[derive(Clone, Serialize)]
pub(crate) struct Served {
    /// The pool's device.
    #[serde(serialize_with = "path_as_text")]
    pub(crate) pool: PathBuf,
    /// Its mounts.
    #[serde(skip)]
    pub(crate) mounts: Arc<Mounts>,
    /// Whether the server goes on without a mount.
    pub(crate) lasts: bool,
    /// The server's process.
    pub(crate) pid: u32,
    /// Where it logs.
    #[serde(serialize_with = "optional_path_as_text")]
    pub(crate) log: Option<PathBuf>,
    /// Where NFS is served.
    pub(crate) nfs: Option<SocketAddr>,
    /// Where HTTP is served.
    pub(crate) http: Option<SocketAddr>,
    /// Who else than administrators may ask; `None`: nobody ever, and the socket is closed to them.
    #[serde(skip)]
    pub(crate) roles: Option<Arc<Roles>>,
}

/// Returns what `status` says of the server: itself, and its mounts. What one mount has is said of
/// the server too, by the first.
pub(crate) fn server_facts(served: &Served) -> Value {
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

/// Returns the name that a pool's socket and log share: its file name and a hash of its path.
pub(crate) fn key_of(pool: &Path) -> String {
    let bytes = pool.as_os_str().as_bytes();
    // FNV-1a: any hash will do that stays the same; a collision costs the second its status.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let name = pool.file_name().unwrap_or_default().to_string_lossy();
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    let name: String = name.chars().map(safe).take(KEY_NAME_BYTES_MAX).collect();
    format!("{name}-{hash:016x}")
}

/// Returns where the server of `pool` listens.
pub(crate) fn socket_of(pool: &Path) -> anyhow::Result<PathBuf> {
    Ok(run_directory()?.join(format!("{}.sock", key_of(pool))))
}

/// Returns where the server of `pool` is asked: one of this user's, or the system's.
pub(crate) fn socket_to(pool: &Path) -> anyhow::Result<PathBuf> {
    let key = key_of(pool);
    let name = |directory: PathBuf| match run_directory::is_own(&directory) {
        true => directory.join(format!("{key}.sock")),
        false => directory.join(format!("{key}{OF_USERS}")),
    };
    let sockets: Vec<PathBuf> = run_directory::to_ask()?.into_iter().map(name).collect();
    let found = sockets.iter().find(|it| it.exists()).or(sockets.first());
    found.cloned().context("there is no run directory")
}

/// Returns where the server of `pool` says why it failed at its end.
pub(crate) fn last_words_of(pool: &Path) -> anyhow::Result<PathBuf> {
    Ok(socket_of(pool)?.with_extension("failed"))
}

/// Returns what a server says of itself and of its pool, its bugs being part of its health.
fn status_of(served: &Served, pool: &dyn OpenPool) -> Value {
    let (bugs, mut status) = (bugs::so_far(), pool.status());
    bugs::add_to(&mut status);
    json!({ "server": server_facts(served), "bugs": bugs, "pool": status })
}

/// What a socket answers for.
struct Answering {
    served: Arc<Served>,
    pool: Arc<dyn OpenPool>,
    transfers: Transfers,
    long: Places,
    others: Others,
}

impl Answering {
    /// Answers `stream` with what `work` returns, in a thread of its own.
    fn later(
        &self,
        stream: &UnixStream,
        work: impl FnOnce(&Served, &Arc<dyn OpenPool>) -> Answer + Send + 'static,
    ) -> anyhow::Result<()> {
        let Some(place) = self.long.take() else {
            let words = format!("{LONG_MAX} requests are under way: try again when one has ended");
            return send(stream, &Answer::Error(words));
        };
        let (served, pool) = (Arc::clone(&self.served), Arc::clone(&self.pool));
        let stream = stream.try_clone()?;
        std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&served, &pool)));
            // Whoever has the answer may ask for the next.
            drop((place, served, pool));
            if let Err(error) = send(&stream, &done.unwrap_or_else(|_| bug())) {
                tracing::debug!(%error, "a client has gone before its answer");
            }
        })?;
        Ok(())
    }
}

/// Returns the answer to a question that met a bug.
fn bug() -> Answer {
    tracing::error!("a question of a status client met a bug");
    Answer::Error("the server met a bug: see its log (`holdfast status`)".to_owned())
}

fn serve(
    stream: &UnixStream,
    answering: &Answering,
    (peer, own): (Peer, Peer),
) -> anyhow::Result<()> {
    let Answering { served, pool, transfers, .. } = answering;
    let role = served.role_of(peer, own);
    if role != Role::Administrator {
        // RO4: whatever he asks for.
        return send(stream, &Answer::Error(role.refusal(peer, Some(own))));
    }
    let line = receive_line(stream, control::LINE_BYTES_MAX, CLIENT_TIME)?;
    let question = match serde_json::from_slice(&line) {
        Ok(question) => question,
        Err(error) => return send(stream, &Answer::Error(not_understood(&error))),
    };
    if served.mounts.is_over() {
        let is_status = matches!(question, Question::Status);
        let status = || Answer::Status(closing_facts(served));
        return send(stream, &if is_status { status() } else { Answer::Closing });
    }
    let answer = match question {
        Question::Status => Answer::Status(status_of(served, pool.as_ref())),
        Question::Explain { mount, node, range } => {
            return answering.later(stream, move |served, pool| {
                let found = served.mounts.inode_of(mount, NodeId(node));
                let (pool, ino) = found.unwrap_or_else(|| {
                    let root = pool.file_system().root();
                    (Arc::clone(pool), NodeNumbers::new(root).ino_of(NodeId(node)))
                });
                match pool.explain(&ExplainTarget::Inode { ino, range }) {
                    Ok(steps) => Answer::Explain(steps),
                    Err(error) => Answer::Error(error.to_string()),
                }
            });
        }
        Question::Control { version, request } => {
            return answering.later(stream, move |served, pool| {
                controlled((pool.as_ref(), &served.mounts), (version, request), peer)
            });
        }
        Question::Remount { version, request } => {
            return answering.later(stream, move |served, _| {
                let done = control::parse_as(version, request).and_then(|spec| {
                    served.mounts.remount(&spec).map_err(|error| format!("{error:#}"))
                });
                done.map_or_else(Answer::Error, Answer::Mounted)
            });
        }
        Question::Mount { version, request } => {
            let begun = control::parse_as(version, request).and_then(|spec| {
                let begun = served.mounts.begin(stream, spec, Maker::Administrator(peer));
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                // The rest is said by the mount's own thread.
                Ok(()) => return Ok(()),
                Err(words) => Answer::Error(words),
            }
        }
        Question::Transfer { version, request } => {
            let begun = control::parse_as(version, request).and_then(|request| {
                let begun = transfers.begin(stream, (pool, &served.mounts), request, peer);
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                // The rest is the transfer's own thread's.
                Ok(()) => return Ok(()),
                Err(words) => Answer::Error(words),
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

/// CO1, TF1: does what `peer`, who is an administrator, asks.
fn controlled(
    (pool, mounts): (&dyn OpenPool, &Mounts),
    (version, request): (u32, Value),
    peer: Peer,
) -> Answer {
    let request = match Request::parse(version, request) {
        Ok(request) => request,
        Err(words) => return Answer::Error(words),
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
    match control::audited(&who, &request, done) {
        Ok(answer) => Answer::Control(answer),
        Err(error) => Answer::Error(error.to_string()),
    }
}

/// Connects to the server whose socket is `path`, and waits for `patience` at most while its queue
/// is full: that of a server that is stopped stays so, and connect(2) would wait for ever.
///
/// # Errors
///
/// [`ErrorKind::WouldBlock`] if the queue stays full, else what connect(2) says.
fn connect(path: &Path, patience: Duration) -> std::io::Result<UnixStream> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // unix(7): it bounds the wait of a connect, too.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// Whether a socket that is not connected to for this reason is that of a server that has ended.
fn has_ended(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Asks the server whose socket is `path`.
pub(crate) fn ask(path: &Path, question: &Question) -> anyhow::Result<Answer> {
    let stream = connect(path, CLIENT_TIME)
        .with_context(|| format!("no server answers on {}", path.display()))?;
    // Whoever has no role is answered before he has asked.
    let sent = send(&stream, question);
    let patience = match question {
        Question::Control { .. }
        | Question::Transfer { .. }
        | Question::Mount { .. }
        | Question::Remount { .. } => CONTROL_TIME,
        Question::Status | Question::Explain { .. } => CLIENT_TIME,
    };
    let line = receive_line(&stream, ANSWER_BYTES_MAX, patience);
    if line.is_err() {
        sent?;
    }
    Ok(serde_json::from_slice(&line?)?)
}

/// Asks the server whose socket is `path` for a transfer through `file`.
pub(crate) fn transfer(
    path: &Path,
    request: &Transfer,
    file: File,
    progress: transfer::OnBytes<'_>,
) -> anyhow::Result<Value> {
    let stream = connect(path, CLIENT_TIME)
        .with_context(|| format!("no server answers on {}", path.display()))?;
    let request = serde_json::to_value(request)?;
    send(&stream, &Question::Transfer { version: control::VERSION, request })?;
    transfer::follow(&stream, file, progress)
}

/// Asks the server whose socket is `path` to serve a mount that is made here. Returns what it says
/// of it, and whether a mount whose server had died was detached.
pub(crate) fn hand_over(
    path: &Path,
    spec: &MountSpec,
    directory: &Path,
    options: &MountOptions,
) -> anyhow::Result<(Value, bool)> {
    let closing = || Closing::of(Path::new(&options.fs_name));
    let stream = match connect(path, CLIENT_TIME) {
        // The server ended after it gave its status.
        Err(error) if has_ended(&error) => return Err(closing().into()),
        stream => stream.with_context(|| format!("no server answers on {}", path.display()))?,
    };
    let request = serde_json::to_value(spec)?;
    send(&stream, &Question::Mount { version: control::VERSION, request })
        .map_err(|_| closing())?;
    mounts::hand_over(&stream, directory, options)
}

/// Returns the next message of the other side, which says nothing more before it is answered.
pub(crate) fn receive_answer<T: DeserializeOwned>(stream: &UnixStream) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&receive_line(stream, LINE_BYTES_MAX, CONTROL_TIME)?)?)
}

pub(crate) fn send(mut stream: &UnixStream, message: &impl Serialize) -> anyhow::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIME))?;
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

/// Returns the next message of the other side, of at most `bytes_max`.
pub(crate) fn receive_until<T: DeserializeOwned>(
    until: &mut Until<'_>,
    bytes_max: u64,
) -> anyhow::Result<T> {
    Ok(serde_json::from_slice(&read_line(until, bytes_max)?)?)
}

/// Returns what the other side sends, at most `bytes_max` of it.
fn read_line(until: &mut Until<'_>, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(until).take(bytes_max).read_until(b'\n', &mut line)?;
    Ok(line)
}

/// Returns what the other side sends, at most `bytes_max` of it, all of it within `patience`.
fn receive_line(
    stream: &UnixStream,
    bytes_max: u64,
    patience: Duration,
) -> anyhow::Result<Vec<u8>> {
    let line = read_line(&mut Until::new(stream, patience), bytes_max)?;
    anyhow::ensure!(
        !line.is_empty(),
        "the other side ended before it answered: what was asked for may be done or not; \
         `holdfast status` shows whether the server is there, and the pool what it has"
    );
    Ok(line)
}

/// A server that answered, or a mount whose server does not.
#[derive(Debug)]
pub(crate) struct Found {
    /// What it said; where it does not answer, what the kernel says of it.
    pub(crate) status: Value,
    /// Its socket.
    pub(crate) socket: PathBuf,
    /// Why it did not answer.
    pub(crate) silence: Option<Silence>,
}

impl Found {
    /// Returns a text among the facts of the server: `pool`, `directory`, `log`.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.status["server"][name].as_str().unwrap_or("")
    }

    /// Returns where the files appear, exactly, and of which fileset: each mount.
    pub(crate) fn mounts(&self) -> Vec<(PathBuf, Option<&str>)> {
        let mounts = self.status["server"]["mounts"].as_array();
        let mount = |mount: &'_ Value| {
            let bytes = mount["directory_bytes"].as_array().into_iter().flatten();
            let bytes = bytes.filter_map(|byte| u8::try_from(byte.as_u64()?).ok());
            OsString::from_vec(bytes.collect()).into()
        };
        let each = mounts.into_iter().flatten();
        each.map(|it| (mount(it), it["fileset"].as_str())).collect()
    }

    /// Returns the pool that the fileset which is mounted on exactly `directory` has moved to
    /// since.
    pub(crate) fn moved_to(&self, directory: &Path) -> Option<&str> {
        let at = self.mounts().iter().position(|(it, _)| it == directory)?;
        self.status["server"]["mounts"][at]["moved_to"].as_str()
    }

    /// Returns where the fileset `fileset` of `pool` is mounted. It may have been in another pool
    /// when it was.
    pub(crate) fn directories_of(&self, pool: &Path, fileset: &str) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for (directory, name) in self.mounts() {
            let at = self.moved_to(&directory).unwrap_or_else(|| self.text("pool"));
            if Path::new(at) == pool && name == Some(fileset) {
                directories.push(directory);
            }
        }
        directories
    }

    /// Returns where the files of the first mount appear; `None`: nowhere, they are served over the
    /// network.
    pub(crate) fn directory(&self) -> Option<PathBuf> {
        self.mounts().into_iter().next().map(|(directory, _)| directory)
    }

    /// Returns the device number of the mount on exactly `directory` that its server still serves,
    /// though the kernel's table of mounts may not have it any more; else why it is not known.
    pub(crate) fn device_on(&self, directory: &Path) -> Result<String, &'static str> {
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

    /// Whether it has a mount on exactly `directory`.
    pub(crate) fn is_on(&self, directory: &Path) -> bool {
        self.mounts().iter().any(|(it, _)| it == directory)
    }

    /// Returns how many components the longest mount has that `path` is in; `None`: in none.
    fn depth_of(&self, path: &Path) -> Option<usize> {
        let above = self.mounts().into_iter().filter(|(it, _)| path.starts_with(it));
        above.map(|(it, _)| it.components().count()).max()
    }

    /// Whether a device of its pool is at `path`.
    pub(crate) fn has_member(&self, path: &Path) -> bool {
        let members = self.status["pool"]["members"].as_array().into_iter().flatten();
        let path = std::fs::canonicalize(path);
        path.is_ok_and(|path| {
            members.filter_map(|member| member["path"].as_str()).any(|own| Path::new(own) == path)
        })
    }

    /// Whether its pool is called by the path whose server listens at `socket`: a device that was
    /// given back, and may be another pool's by now, names it no more.
    pub(crate) fn is_called(&self, socket: &Path) -> bool {
        self.socket == socket && self.status["pool"]["named_by"].is_null()
    }

    /// Returns the path by which its pool is to be named: of the device that it was opened by, or
    /// of another where that was given back.
    pub(crate) fn pool(&self) -> &str {
        self.status["pool"]["named_by"].as_str().unwrap_or_else(|| self.text("pool"))
    }

    /// Whether the server is about to close the pool, or does so.
    pub(crate) fn is_ending(&self) -> bool {
        self.status["server"]["is_ending"] == true
    }

    /// Returns why there is no answer and what to do; empty: there was one.
    pub(crate) fn advice(&self) -> &str {
        self.text("problem")
    }

    /// Returns the server's process.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.status["server"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
    }
}

/// Asks every server of this user. A socket that nobody answers counts while its pool is mounted,
/// and so does a mount of this user's that no server has told.
pub(crate) fn all() -> anyhow::Result<Vec<Found>> {
    let mounts = mountpoint::mounts().context("cannot read the table of mounts")?;
    let mut found = Vec::new();
    let mut sockets = Vec::new();
    for directory in run_directory::to_ask()? {
        let is_own = run_directory::is_own(&directory);
        let entries = match std::fs::read_dir(directory) {
            // It has gone with its sockets.
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
            // Who may ask by the other.
            remove_if_abandoned(&socket);
            continue;
        }
        match ask(&socket, &Question::Status) {
            Ok(Answer::Status(status)) => found.push(Found { status, socket, silence: None }),
            Ok(_) => {}
            Err(_) => match silent(&socket, &mounts) {
                Some(silent) => found.push(silent),
                None => remove_if_abandoned(&socket),
            },
        }
    }
    let unreachable = unreachable(&mounts, &found);
    found.extend(unreachable);
    found.sort_by_cached_key(Found::directory);
    Ok(found)
}

/// Whether others ask by this socket.
fn is_of_users(socket: &Path) -> bool {
    socket.as_os_str().as_bytes().ends_with(OF_USERS.as_bytes())
}

/// Removes the socket of a server that was killed. A young one may not listen yet.
fn remove_if_abandoned(socket: &Path) {
    let is_refused =
        connect(socket, AT_ONCE).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    let age = std::fs::metadata(socket).and_then(|m| m.modified()).map(|time| time.elapsed());
    if is_refused && age.is_ok_and(|age| age.is_ok_and(|age| age > SOCKET_YOUNG_TIME)) {
        let _ = std::fs::remove_file(socket);
    }
}

/// As [`find`], without a wait.
pub(crate) fn find_now(path: &Path) -> anyhow::Result<Option<Found>> {
    let path = mountpoint::absolute(path).with_context(|| format!("{}", path.display()))?;
    let socket = socket_to(&path)?;
    match ask(&socket, &Question::Status) {
        Ok(Answer::Status(status)) => {
            let found = Found { status, socket: socket.clone(), silence: None };
            if found.is_called(&socket) {
                return Ok(Some(found));
            }
        }
        Ok(Answer::Error(refusal)) => anyhow::bail!("{}: {refusal}", path.display()),
        Ok(_) | Err(_) => {}
    }
    let is_in = |found: &Found| {
        found.is_called(&socket) || found.depth_of(&path).is_some() || found.has_member(&path)
    };
    // The innermost, where one is mounted inside another.
    Ok(all()?.into_iter().filter(is_in).max_by_key(|found| found.depth_of(&path)))
}

/// Refuses a path that leads into a mount whose server does not answer: whoever looked there would
/// wait for as long as it does not. Of servers that are not this user's nothing is known.
pub(crate) fn check_way(path: &Path) -> anyhow::Result<()> {
    mountpoint::follow(path, &mut |entry| {
        let sockets = pools_in(&entry.source).map(|pool| socket_to(Path::new(pool)));
        let sockets = sockets.collect::<anyhow::Result<Vec<_>>>()?;
        let socket = sockets.iter().find(|it| it.exists()).or(sockets.first());
        let Some(socket) = socket.cloned() else { return Ok(()) };
        if ask(&socket, &Question::Status).is_ok() {
            return Ok(());
        }
        let silent = silent(&socket, std::slice::from_ref(entry));
        match silent.filter(|found| found.silence == Some(Silence::DoesNotAnswer)) {
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
