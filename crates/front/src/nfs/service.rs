//! What each call means: from the bytes of a record to the bytes of its answer, or to a commit that
//! the answer waits for.
//!
//! A [`Service`] knows no socket: a connection, or a test, hands it records and is a [`ReplySink`].
//!
//! # Concurrency
//!
//! [`Service::serve`] may be called from any number of threads; order is the file system's affair.
//! Changes that wait for group commit hold no thread, but for the one that leads it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::vnode::api::{Around, Attr, Caller, Checks, FileSystem, FsError, FsResult, Handle};
use parking_lot::{Mutex, RwLock};
use runtime::planted::{self, Planted};

use super::counts::{About, Counts, Running};
use super::duplicate::{Arrival, Duplicates, InProgress, RequestKey};
use super::export::Export;
use super::handle::{ExportId, HANDLE_BYTES, HandleKey};
use super::mount::{self, Mounts};
use super::protocol::{
    self, HANDLE_BYTES_MAX, PROCEDURE_NAMES, Status, fsid_of, put_attr, put_before, put_some_attr,
};
use super::rpc::{self, Call, Credentials, Unserved};
use super::turns::Turns;
use super::used::{Used, is_same};
use super::xdr::{Garbage, Reader, Writer};
use super::{attributes, data, listing, names, nlm, portmap};
use crate::counts::OperationCounts;
use crate::failure::log_failure;
use crate::log_limit::LogLimit;
use crate::watch::{Asker, Watch};

/// Most exports of a server.
const EXPORTS_MAX: usize = 1024;

/// Where an answer goes.
pub trait ReplySink: Send + Sync {
    /// Sends an answer, with its record mark, or drops it where nobody is there any more. Must not
    /// block.
    fn send(&self, reply: Vec<u8>);

    /// There will be no answer to a request here: it goes elsewhere.
    fn forgo(&self) {}
}

/// Why something is not exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Choose another name, or remove that one.
    #[error("{name}: there is an export of that name already: choose another")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Remove some.
    #[error("{name}: there are {EXPORTS_MAX} exports already: remove one")]
    TooMany {
        /// The name.
        name: String,
    },
}

/// Answers the calls of NFS, MOUNT, NLM and of a portmapper.
pub struct Service {
    /// Seals handles of exports that have no key of their own.
    key: HandleKey,
    exports: RwLock<Vec<Arc<Export>>>,
    /// How often they have changed.
    changes: AtomicU64,
    /// Of how many pools they are.
    pool_count: AtomicUsize,
    /// Answers to changes of names and attributes.
    name_changes: Arc<Duplicates>,
    /// Answers to WRITE, kept apart: there are many, and to write again does no harm.
    writes: Arc<Duplicates>,
    mounts: Mutex<Mounts>,
    /// Mounts that were refused, in the log.
    refused_mounts: LogLimit,
    counts: Arc<Counts>,
    /// Where NFS and MOUNT are, for who asks the portmapper.
    port: u16,
}

/// An answer that goes out when what was done is durable.
#[must_use]
pub struct Commit {
    held: Held,
    done: Box<dyn FnOnce(FsResult<()>) + Send>,
}

impl Commit {
    /// Makes what was done durable and has the answers sent: now, or from another thread's call.
    /// May keep this thread for as long as others come with theirs.
    pub fn run(self) {
        Commit::run_together(vec![self]);
    }

    /// Does so for several at once, which share writes: those of one file system.
    pub(super) fn run_together(commits: Vec<Commit>) {
        let Some(first) = commits.first() else { return };
        let fs = Arc::clone(first.held.export.fs());
        let split = |Commit { held, done }| (held, done);
        let (held, done): (Vec<Held>, Vec<_>) = commits.into_iter().map(split).unzip();
        let inos = held.iter().map(|held| held.attr.ino);
        let files = inos.zip(done).collect();
        fs.commit_each(&Caller::root(), files);
        drop(held);
    }

    /// Returns them by file system.
    pub(super) fn by_file_system(mut commits: Vec<Commit>) -> Vec<Vec<Commit>> {
        let mut groups = Vec::new();
        while let Some(first) = commits.first() {
            let fs = Arc::clone(first.held.export.fs());
            let is_same = |other: &Commit| is_same(&fs, other.held.export.fs());
            let (same, others) = commits.into_iter().partition(is_same);
            commits = others;
            groups.push(same);
        }
        groups
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commit").field("ino", &self.held.attr.ino).finish_non_exhaustive()
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("exports", &self.exports).finish_non_exhaustive()
    }
}

impl Service {
    /// Returns a service without exports whose handles are sealed by `key`, and that is to be found
    /// at `port`.
    #[must_use]
    pub fn new(key: HandleKey, port: u16) -> Service {
        Service {
            key,
            exports: RwLock::default(),
            changes: AtomicU64::new(0),
            pool_count: AtomicUsize::new(0),
            name_changes: Arc::default(),
            writes: Arc::default(),
            mounts: Mutex::default(),
            refused_mounts: LogLimit::default(),
            counts: Arc::default(),
            port,
        }
    }

    /// Exports what `export` says, from now on.
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        self.replace(&[], vec![export])
    }

    /// Exports `new` in place of the exports that are called `old`, all at once: no request finds
    /// some of them. With an error nothing has changed.
    pub fn replace(&self, old: &[&str], new: Vec<Export>) -> Result<(), ExportError> {
        let new = self.joined(new);
        let mut exports = self.exports.write();
        let mut next: Vec<Arc<Export>> = exports.clone();
        next.retain(|export| !old.contains(&export.rules().name.as_str()));
        for export in new {
            check_new(&next, &export)?;
            next.push(export);
        }
        let before = std::mem::replace(&mut *exports, next);
        self.note_change(&exports);
        // LOCK: what an export keeps may wait for a device when it is dropped.
        drop(exports);
        drop(before);
        Ok(())
    }

    /// Exports it no more: its handles are stale from now on. Returns whether it was there.
    pub fn remove(&self, name: &str) -> bool {
        let is_removed = |export: &mut Arc<Export>| export.rules().name == name;
        let mut exports = self.exports.write();
        let removed: Vec<Arc<Export>> = exports.extract_if(.., is_removed).collect();
        self.note_change(&exports);
        // LOCK: as in `replace`.
        drop(exports);
        !removed.is_empty()
    }

    /// Returns exports that have their turns together with those of the same pool.
    fn joined(&self, new: Vec<Export>) -> Vec<Arc<Export>> {
        let mut all = self.exports();
        let first = all.len();
        for export in new {
            let export = export.beside(&all);
            all.push(Arc::new(export));
        }
        all.split_off(first)
    }

    fn note_change(&self, exports: &[Arc<Export>]) {
        let pools: BTreeSet<*const Turns> =
            exports.iter().map(|export| Arc::as_ptr(export.turns())).collect();
        self.pool_count.store(pools.len(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many of so many threads the requests of one pool may keep: half of them, or all
    /// but one where there is no other pool.
    pub(super) fn turns_of(&self, thread_count: usize) -> usize {
        let is_alone = self.pool_count.load(Ordering::Relaxed) <= 1;
        let turns = if is_alone { thread_count.saturating_sub(1) } else { thread_count / 2 };
        turns.max(1)
    }

    /// Returns how often the exports have changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Whether any export admits requests of `peer`: else it is a *stranger*.
    pub(super) fn admits(&self, peer: SocketAddr) -> bool {
        self.exports.read().iter().any(|export| export.admits(peer))
    }

    /// Whether any export may be used from `address`, by whatever port.
    pub(super) fn knows(&self, address: IpAddr) -> bool {
        self.exports.read().iter().any(|export| export.is_for(address))
    }

    /// Returns the exports.
    #[must_use]
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.read().clone()
    }

    /// Returns how many calls were answered, and how long that took, by procedure.
    #[must_use]
    pub fn counts(&self) -> Vec<OperationCounts> {
        self.counts.get()
    }

    /// From now on `watch` sees what is asked.
    pub fn watched_by(&self, watch: &Arc<Watch>) {
        self.counts.watched_by(watch);
    }

    /// Returns the handle by which clients name a file of an export.
    pub(super) fn seal(&self, export: &Export, handle: Handle) -> [u8; HANDLE_BYTES] {
        export.key().unwrap_or(&self.key).seal(export.id(), handle)
    }

    /// Returns the export by which a handle was given out, and what the handle names. The handle
    /// must be sealed by a key of that export (`Export::believing`): the secret of one pool makes
    /// no handles of another.
    fn unseal(&self, bytes: &[u8]) -> Result<(Arc<Export>, Handle), Status> {
        let id = ExportId::named_in(bytes).ok_or(Status::BADHANDLE)?;
        let exports = self.exports.read();
        if let Some(export) = exports.iter().find(|export| export.id() == id) {
            let unsealed = self.keys_of(export).find_map(|key| key.unseal(bytes));
            let (_, handle) = unsealed.ok_or(Status::BADHANDLE)?;
            return Ok((Arc::clone(export), handle));
        }
        // Handles of an export that was removed are stale; anything else was made up.
        let mut keys = exports.iter().flat_map(|export| self.keys_of(export));
        let is_ours =
            self.key.unseal(bytes).is_some() || keys.any(|key| key.unseal(bytes).is_some());
        Err(if is_ours { Status::STALE } else { Status::BADHANDLE })
    }

    /// Returns the keys by which handles of an export may be sealed, the one that is in use first.
    fn keys_of<'k>(&'k self, export: &'k Export) -> impl Iterator<Item = &'k HandleKey> {
        std::iter::once(export.key().unwrap_or(&self.key)).chain(export.earlier_keys())
    }

    pub(super) fn mounts(&self) -> &Mutex<Mounts> {
        &self.mounts
    }

    pub(super) fn refused_mounts(&self) -> &LogLimit {
        &self.refused_mounts
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns where the answer to a change is kept, in case that it is asked again; `None`: it is
    /// no change, or one that no export admits, of which nothing is kept.
    fn duplicates_of(
        &self,
        call: &Call,
        args: &Reader<'_>,
        peer: SocketAddr,
    ) -> Option<&Arc<Duplicates>> {
        if !protocol::is_change(call.procedure) {
            return None;
        }
        // Each change begins with a handle.
        let handle = args.clone().opaque(HANDLE_BYTES_MAX).ok()?;
        let (export, _) = self.unseal(handle).ok()?;
        let is_write = call.procedure == protocol::procedure::WRITE;
        let duplicates = if is_write { &self.writes } else { &self.name_changes };
        export.admits(peer).then_some(duplicates)
    }

    /// Returns whether `record` may wait for a device, or moves many bytes.
    #[must_use]
    pub fn may_take_long(record: &[u8]) -> bool {
        let call = rpc::peek(record);
        call.is_none_or(|(program, procedure)| {
            program == protocol::PROGRAM && protocol::may_take_long(procedure)
        })
    }

    /// Carries out the call in `record`, which came from `peer`. The answer goes to `sink`, at once
    /// or after the commit that is returned. An error: this is no call, and nothing that comes
    /// behind it can be trusted.
    pub fn serve(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<Commit>, NoCall> {
        self.serve_with(peer, record, sink, &mut Used::of(usize::MAX))
    }

    /// As [`Service::serve`]; tells `used` of the file system that the call is about.
    pub(super) fn serve_with(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
        used: &mut Used,
    ) -> Result<Option<Commit>, NoCall> {
        let served = self.serve_call(peer, record, sink, used);
        used.turn = None;
        served
    }

    fn serve_call(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
        used: &mut Used,
    ) -> Result<Option<Commit>, NoCall> {
        let mut args = Reader::new(record);
        let call = Call::read(&mut args).map_err(|Garbage| NoCall)?;
        let refuse = |why| {
            sink.send(rpc::refusal(call.xid, why));
            Ok(None)
        };
        if !call.is_known_version() {
            return refuse(Unserved::Rpc);
        }
        match (call.program, call.version) {
            (protocol::PROGRAM, protocol::VERSION) => {
                let (used, about) = (RefCell::new(used), Cell::new(None));
                let asked = Asked { peer, record, used, about };
                self.serve_files(&call, args, asked, sink).or_else(refuse)
            }
            (protocol::PROGRAM, _) => {
                refuse(Unserved::Version(protocol::VERSION, protocol::VERSION))
            }
            (mount::PROGRAM, mount::VERSION_FIRST..=mount::VERSION_LAST) => {
                self.serve_beside(mount::answer, peer, &call, args, sink).or_else(refuse)
            }
            (mount::PROGRAM, _) => {
                refuse(Unserved::Version(mount::VERSION_FIRST, mount::VERSION_LAST))
            }
            (nlm::PROGRAM, nlm::VERSION) => {
                self.serve_beside(nlm::answer, peer, &call, args, sink).or_else(refuse)
            }
            (nlm::PROGRAM, _) => refuse(Unserved::Version(nlm::VERSION, nlm::VERSION)),
            (portmap::PROGRAM, portmap::VERSION_FIRST..=portmap::VERSION_LAST) => {
                self.serve_beside(portmap::answer, peer, &call, args, sink).or_else(refuse)
            }
            (portmap::PROGRAM, _) => {
                refuse(Unserved::Version(portmap::VERSION_FIRST, portmap::VERSION_LAST))
            }
            _ => refuse(Unserved::Program),
        }
    }

    /// Answers a call to a program beside NFS, at once.
    fn serve_beside(
        &self,
        answer: AnswerBeside,
        peer: SocketAddr,
        call: &Call,
        mut args: Reader<'_>,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<Commit>, Unserved> {
        let mut out = rpc::begin_answer(call.xid, 256);
        answer(self, peer, call, &mut args, &mut out)?;
        sink.send(rpc::end_answer(out));
        Ok(None)
    }

    fn serve_files<'s>(
        &'s self,
        call: &'s Call,
        args: Reader<'_>,
        asked: Asked<'s>,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<Commit>, Unserved> {
        let absent = protocol::absent_words(call.procedure).ok_or(Unserved::Procedure)?;
        let asker = asker_of(&asked, &call.credentials);
        if call.procedure == protocol::procedure::NULL {
            let running = Running::new(&self.counts, call.procedure, asker);
            let answerer = Answerer { running, to: Whom::Other(Arc::clone(sink)) };
            answerer.answer(rpc::end_answer(rpc::begin_answer(call.xid, 64)), false);
            return Ok(None);
        }
        if call.credentials == Credentials::Other {
            return Err(Unserved::Credentials);
        }
        let running = Running::new(&self.counts, call.procedure, asker);
        let to = if let Some(duplicates) = self.duplicates_of(call, &args, asked.peer) {
            let number = (call.xid, call.program, call.procedure);
            match duplicates.arrive(RequestKey::new(asked.peer, number, asked.record), sink) {
                Arrival::New(new) => Whom::Change(new),
                Arrival::Busy => return Ok(None),
                Arrival::Done(reply) => {
                    sink.send(reply);
                    return Ok(None);
                }
            }
        } else {
            Whom::Other(Arc::clone(sink))
        };
        let mut answerer = Answerer { running, to };
        let work = Work { service: self, asked, credentials: &call.credentials };
        let mut out = rpc::begin_answer(call.xid, 512);
        let results = out.len();
        let is_async_procedure = call.procedure != protocol::procedure::WRITE
            && call.procedure != protocol::procedure::COMMIT;
        let failed = Failure { xid: call.xid, procedure: call.procedure, absent };
        let done = work.dispatch(call.procedure, args, &mut out);
        answerer.running.about = work.asked.about.take();
        match done {
            Ok(Done::Now) => answerer.answer(rpc::end_answer(out), false),
            Ok(Done::Durable(_)) if planted::is(Planted::AnsweredBeforeCommit) => {
                answerer.answer(rpc::end_answer(out), false);
            }
            Ok(Done::Durable(target)) if target.export.rules().is_async && is_async_procedure => {
                answerer.answer(rpc::end_answer(out), false);
            }
            Ok(Done::Durable(target)) => {
                let done = Box::new(move |done: FsResult<()>| {
                    let is_failed = done.is_err();
                    let reply = match done {
                        Ok(()) => rpc::end_answer(out),
                        Err(error) => failed.answer(&Refused::Failed(error)),
                    };
                    answerer.answer(reply, is_failed);
                });
                return Ok(Some(Commit { held: target.held, done }));
            }
            Err(Refused::Garbage) => {
                answerer.answer(rpc::refusal(call.xid, Unserved::Arguments), true);
            }
            Err(Refused::Seen(status, seen)) => {
                out.truncate(results);
                out.u32(status.0);
                put_some_attr(&mut out, Some(&seen.0), seen.1);
                answerer.answer(rpc::end_answer(out), true);
            }
            Err(refused) => answerer.answer(failed.answer(&refused), true),
        }
        Ok(None)
    }
}

/// Refuses an export that cannot be beside `others`.
fn check_new(others: &[Arc<Export>], export: &Export) -> Result<(), ExportError> {
    let name = &export.rules().name;
    if others.iter().any(|other| other.rules().name == *name || other.id() == export.id()) {
        return Err(ExportError::NameTaken { name: name.clone() });
    }
    if others.len() >= EXPORTS_MAX {
        return Err(ExportError::TooMany { name: name.clone() });
    }
    Ok(())
}

/// How a program beside NFS answers a call.
type AnswerBeside =
    fn(&Service, SocketAddr, &Call, &mut Reader<'_>, &mut Writer) -> Result<(), Unserved>;

/// What came is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCall;

/// A record, whose it is, and whom it tells of what it is about.
struct Asked<'s> {
    peer: SocketAddr,
    record: &'s [u8],
    used: RefCell<&'s mut Used>,
    /// Which file it is about, once that is known.
    about: Cell<Option<About>>,
}

/// Returns who asks.
fn asker_of(asked: &Asked<'_>, credentials: &Credentials) -> Asker {
    let uid = match credentials {
        Credentials::Sys { uid, .. } => Some(*uid),
        Credentials::None | Credentials::Other => None,
    };
    Asker { address: Some(asked.peer), uid, thread: None }
}

/// Who gets the answer, and what is counted of it.
struct Answerer {
    running: Running,
    to: Whom,
}

enum Whom {
    Change(InProgress),
    Other(Arc<dyn ReplySink>),
}

impl Answerer {
    fn answer(self, reply: Vec<u8>, is_failed: bool) {
        self.running.end(is_failed);
        match self.to {
            Whom::Change(change) => change.end(reply),
            Whom::Other(sink) => sink.send(reply),
        }
    }
}

/// What an answer needs that says why a call failed.
struct Failure {
    xid: u32,
    procedure: u32,
    absent: usize,
}

impl Failure {
    /// Returns the answer, and logs what the administrator must see.
    fn answer(&self, refused: &Refused) -> Vec<u8> {
        let status = match refused {
            Refused::Status(status) | Refused::Seen(status, _) => *status,
            Refused::Garbage => Status::INVAL,
            Refused::Failed(error) => {
                let name =
                    usize::try_from(self.procedure).ok().and_then(|at| PROCEDURE_NAMES.get(at));
                log_failure("nfs", name.copied().unwrap_or("?"), None, error);
                Status::from(error)
            }
        };
        let mut out = rpc::begin_answer(self.xid, 64);
        out.u32(status.0);
        (0..self.absent).for_each(|_| out.u32(0));
        rpc::end_answer(out)
    }
}

/// How a call was carried out.
pub(super) enum Done {
    /// The answer can go.
    Now,
    /// The answer waits until what was done to this file is durable.
    Durable(Target),
}

/// Why a call was not carried out.
#[derive(Debug)]
pub(super) enum Refused {
    /// Its arguments make no sense.
    Garbage,
    /// As the protocol says it.
    Status(Status),
    /// As the file system says it.
    Failed(FsError),
    /// With the attributes of the file that was asked about.
    Seen(Status, Box<(Attr, u64)>),
}

impl From<Garbage> for Refused {
    fn from(Garbage: Garbage) -> Refused {
        Refused::Garbage
    }
}

impl From<FsError> for Refused {
    fn from(error: FsError) -> Refused {
        Refused::Failed(error)
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused::Status(status)
    }
}

/// A file that is there for as long as this is: nobody else's has its number.
pub(super) struct Held {
    export: Arc<Export>,
    /// As it was when the handle was looked at.
    pub(super) attr: Attr,
}

impl Held {
    /// Takes over a reference that somebody was given with `attr`.
    pub(super) fn new(export: &Arc<Export>, attr: Attr) -> Held {
        Held { export: Arc::clone(export), attr }
    }

    pub(super) fn fs(&self) -> &dyn FileSystem {
        &**self.export.fs()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.fs().forget(self.attr.ino, 1);
    }
}

/// What a call is about: a file, through an export, for somebody.
pub(super) struct Target {
    pub(super) export: Arc<Export>,
    pub(super) caller: Caller,
    pub(super) held: Held,
    pub(super) fsid: u64,
}

impl Target {
    pub(super) fn fs(&self) -> &dyn FileSystem {
        &**self.export.fs()
    }

    pub(super) fn ino(&self) -> engine::vnode::api::Ino {
        self.held.attr.ino
    }

    /// Returns another file as what the same call is about.
    pub(super) fn beside(&self, held: Held) -> Target {
        let (export, caller) = (Arc::clone(&self.export), self.caller.clone());
        Target { export, caller, held, fsid: self.fsid }
    }

    /// Refuses a change through an export that allows none.
    pub(super) fn check_writable(&self) -> Result<(), Refused> {
        if self.export.rules().is_writable { Ok(()) } else { Err(Status::ROFS.into()) }
    }

    /// Returns somebody who may do what an owner may who has the file open: permission was asked at
    /// the open, which is the client's, and NFS has none (RFC 1813, 4.4). `None`: nobody.
    pub(super) fn owner(&self) -> Option<Caller> {
        let is_owner = self.caller.uid == self.held.attr.uid;
        // Limits hold for him as before.
        is_owner.then(|| Caller { checks: Checks::ByKernel, ..self.caller.clone() })
    }

    /// Returns the attributes as they are now, if they can be read.
    pub(super) fn attr_now(&self) -> Option<Attr> {
        self.fs().getattr(&self.caller, self.ino()).ok()
    }

    /// Begins an answer that begins with the attributes of the file as they were at first.
    pub(super) fn put_ok(&self, out: &mut Writer) {
        out.u32(Status::OK.0);
        self.put_some_attr(out, Some(&self.held.attr));
    }

    /// Begins an answer that begins with the attributes of the file around a change.
    pub(super) fn put_changed(&self, out: &mut Writer, around: &Around) {
        out.u32(Status::OK.0);
        self.put_around(out, around);
    }

    pub(super) fn put_attr(&self, out: &mut Writer, attr: &Attr) {
        put_attr(out, attr, self.fsid);
    }

    pub(super) fn put_some_attr(&self, out: &mut Writer, attr: Option<&Attr>) {
        put_some_attr(out, attr, self.fsid);
    }

    /// Writes attributes around a change (`wcc_data`), which have to be of the same moment: where
    /// the change did not tell, only what is now.
    pub(super) fn put_around(&self, out: &mut Writer, around: &Around) {
        if let (Some(before), Some(after)) = (&around.before, &around.after) {
            put_before(out, Some(before));
            self.put_some_attr(out, Some(after));
        } else {
            put_before(out, None);
            self.put_some_attr(out, self.attr_now().as_ref());
        }
    }
}

/// A call to NFS, before it is known what it is about.
pub(super) struct Work<'s> {
    pub(super) service: &'s Service,
    asked: Asked<'s>,
    credentials: &'s Credentials,
}

impl Work<'_> {
    fn dispatch(
        &self,
        procedure: u32,
        mut args: Reader<'_>,
        out: &mut Writer,
    ) -> Result<Done, Refused> {
        use protocol::procedure as is;
        let args = &mut args;
        match procedure {
            is::GETATTR => attributes::get(self, args, out),
            is::SETATTR => attributes::set(self, args, out),
            is::LOOKUP => names::lookup(self, args, out),
            is::ACCESS => attributes::access(self, args, out),
            is::READLINK => attributes::read_link(self, args, out),
            is::READ => data::read(self, args, out),
            is::WRITE => data::write(self, args, out),
            is::CREATE => names::create(self, args, out),
            is::MKDIR => names::make_directory(self, args, out),
            is::SYMLINK => names::symlink(self, args, out),
            is::MKNOD => names::make_node(self, args, out),
            is::REMOVE => names::remove(self, args, out, false),
            is::RMDIR => names::remove(self, args, out, true),
            is::RENAME => names::rename(self, args, out),
            is::LINK => names::link(self, args, out),
            is::READDIR => listing::read_dir(self, args, out),
            is::READDIRPLUS => listing::read_dir_plus(self, args, out),
            is::FSSTAT => attributes::fs_stat(self, args, out),
            is::FSINFO => attributes::fs_info(self, args, out),
            is::PATHCONF => attributes::path_conf(self, args, out),
            is::COMMIT => data::commit(self, args, out),
            _ => Err(Status::SERVERFAULT.into()),
        }
    }

    /// Reads a handle that this server has given out.
    fn unsealed(&self, args: &mut Reader<'_>) -> Result<(Arc<Export>, Handle), Refused> {
        let handle = args.opaque(HANDLE_BYTES_MAX)?;
        Ok(self.service.unseal(handle)?)
    }

    /// Reads a handle and returns what it names, if this client may use it.
    pub(super) fn target(&self, args: &mut Reader<'_>) -> Result<Target, Refused> {
        let (export, handle) = self.unsealed(args)?;
        if !export.admits(self.asked.peer) {
            return Err(Status::ACCES.into());
        }
        // TU1.
        self.asked.used.borrow_mut().begin(&export)?;
        let caller = export.caller(self.credentials).ok_or(Status::ACCES)?;
        self.asked.about.set(Some((Arc::clone(export.place()), handle.ino)));
        let held = hold(&export, &caller, handle)?;
        let fsid = fsid_of(export.fileset());
        Ok(Target { export, caller, held, fsid })
    }

    /// Reads one more handle, of the export that `target` is of.
    pub(super) fn second(&self, args: &mut Reader<'_>, target: &Target) -> Result<Held, Refused> {
        let (export, handle) = self.unsealed(args)?;
        if export.id() != target.export.id() {
            return Err(Status::XDEV.into());
        }
        Ok(hold(&target.export, &target.caller, handle)?)
    }

    /// Returns the handle of a file of the export that `target` is of.
    pub(super) fn seal(&self, target: &Target, attr: &Attr) -> [u8; HANDLE_BYTES] {
        self.service.seal(&target.export, target.export.handle_of(attr))
    }
}

fn hold(export: &Arc<Export>, caller: &Caller, handle: Handle) -> FsResult<Held> {
    export.fs().resolve(caller, handle).map(|attr| Held::new(export, attr))
}
