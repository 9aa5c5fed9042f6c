//! Execution of calls: from a record to its reply, or to a commit that the reply waits for.
//!
//! A [`Service`] has no sockets. A connection, or a test, passes it records and is a [`ReplySink`].
//!
//! # Concurrency
//!
//! [`Service::serve`] may be called from any number of threads. The file system orders operations.
//! Changes that wait for a group commit occupy no thread but the leader's.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use engine::api::{
    Attr, AttributeChange, Caller, FileHandle, FileSystem, FsError, FsResult, PermissionChecks,
};
use parking_lot::{Mutex, RwLock};
use runtime::planted;

use super::counts::{NfsCallSubject, NfsCounts, RunningCall};
use super::duplicate::{Duplicates, RequestArrival, RequestInProgress, RequestKey};
use super::export::Export;
use super::handle::{ExportId, HANDLE_BYTES, HandleKey};
use super::mount::{self, ClientMounts};
use super::protocol::{
    self, HANDLE_BYTES_MAX, NfsStatus, PROCEDURE_NAMES, fsid_of, put_attr, put_before,
    put_some_attr,
};
use super::rpc::{self, Call, Credentials, RpcError};
use super::turns::ThreadPermits;
use super::used::{ExportUse, is_same};
use super::xdr::{XdrError, XdrReader, XdrWriter};
use super::{attributes, data, listing, names, nlm, portmap};
use crate::counts::OperationCounts;
use crate::failure::log_failure;
use crate::log_limit::LogLimit;
use crate::watch::{RequestSource, Watch};

const EXPORTS_MAX: usize = 1024;

/// Receiver of replies.
pub trait ReplySink: Send + Sync {
    /// Sends a reply with its record mark, or drops it if the client is gone. Must not block.
    fn send(&self, reply: Vec<u8>);

    /// Ends a request without a reply here: its retransmission gets the reply.
    fn forgo(&self) {}
}

/// Error of adding an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Choose another name, or remove the other export.
    #[error("{name}: there is an export of that name already: choose another")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// Remove an export.
    #[error("{name}: there are {EXPORTS_MAX} exports already: remove one")]
    TooMany {
        /// The name.
        name: String,
    },
}

/// Executes the calls of NFS, MOUNT, NLM and a portmapper.
pub struct Service {
    /// Seals handles of exports without a key of their own.
    key: HandleKey,
    exports: RwLock<Vec<Arc<Export>>>,
    changes: AtomicU64,
    pool_count: AtomicUsize,
    /// Duplicate request cache of changes of names and attributes.
    name_changes: Arc<Duplicates>,
    /// Duplicate request cache of WRITE. Separate, as WRITE calls are many and harmless to repeat.
    writes: Arc<Duplicates>,
    mounts: Mutex<ClientMounts>,
    refused_mounts: LogLimit,
    counts: Arc<NfsCounts>,
    port: u16,
}

/// A reply that waits for the durability of its change.
#[must_use]
pub struct DeferredReply {
    held: ReferencedFile,
    done: Box<dyn FnOnce(FsResult<()>) + Send>,
}

impl DeferredReply {
    /// Makes the change durable, then sends the reply, from this thread or another. May keep this
    /// thread as the commit leader.
    pub fn run(self) {
        DeferredReply::run_together(vec![self]);
    }

    /// Runs commits of one file system together, so that they share writes.
    pub(super) fn run_together(commits: Vec<DeferredReply>) {
        let Some(first) = commits.first() else { return };
        let fs = Arc::clone(first.held.export.fs());
        let split = |DeferredReply { held, done }| (held, done);
        let (held, done): (Vec<ReferencedFile>, Vec<_>) = commits.into_iter().map(split).unzip();
        let inos = held.iter().map(|held| held.attr.ino);
        let files = inos.zip(done).collect();
        fs.commit_each(&Caller::root(), files);
        drop(held);
    }

    pub(super) fn by_file_system(mut commits: Vec<DeferredReply>) -> Vec<Vec<DeferredReply>> {
        let mut groups = Vec::new();
        while let Some(first) = commits.first() {
            let fs = Arc::clone(first.held.export.fs());
            let is_same = |other: &DeferredReply| is_same(&fs, other.held.export.fs());
            let (same, others) = commits.into_iter().partition(is_same);
            commits = others;
            groups.push(same);
        }
        groups
    }
}

impl fmt::Debug for DeferredReply {
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
    /// Returns a service without exports. `key` seals handles. `port` is the server's port.
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

    /// Adds an export.
    pub fn add(&self, export: Export) -> Result<(), ExportError> {
        self.replace(&[], vec![export])
    }

    /// Atomically replaces the exports named `old` by `new`. An error changes nothing.
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
        // LOCK: drops exports outside the lock, as that may wait for a device.
        drop(exports);
        drop(before);
        Ok(())
    }

    /// Removes an export, whose handles become stale. Returns whether it existed.
    pub fn remove(&self, name: &str) -> bool {
        let is_removed = |export: &mut Arc<Export>| export.rules().name == name;
        let mut exports = self.exports.write();
        let removed: Vec<Arc<Export>> = exports.extract_if(.., is_removed).collect();
        self.note_change(&exports);
        // LOCK: drops exports outside the lock, as in `replace`.
        drop(exports);
        !removed.is_empty()
    }

    /// Makes exports of one pool share their thread permits.
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
        let pools: BTreeSet<*const ThreadPermits> =
            exports.iter().map(|export| Arc::as_ptr(export.turns())).collect();
        self.pool_count.store(pools.len(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many threads requests of one pool may occupy: half of `thread_count`, or all but
    /// one if there is only one pool.
    pub(super) fn turns_of(&self, thread_count: usize) -> usize {
        let is_alone = self.pool_count.load(Ordering::Relaxed) <= 1;
        let turns = if is_alone { thread_count.saturating_sub(1) } else { thread_count / 2 };
        turns.max(1)
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Returns whether any export admits requests of `peer`. If none does, `peer` is a *stranger*.
    pub(super) fn admits(&self, peer: SocketAddr) -> bool {
        self.exports.read().iter().any(|export| export.admits(peer))
    }

    /// Returns whether any export is for `address`, with any source port.
    pub(super) fn knows(&self, address: IpAddr) -> bool {
        self.exports.read().iter().any(|export| export.is_for(address))
    }

    /// Returns the exports.
    #[must_use]
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.read().clone()
    }

    /// Returns the counts and latencies by procedure.
    #[must_use]
    pub fn counts(&self) -> Vec<OperationCounts> {
        self.counts.get()
    }

    /// Reports calls to `watch`.
    pub fn watched_by(&self, watch: &Arc<Watch>) {
        self.counts.watched_by(watch);
    }

    pub(super) fn seal(&self, export: &Export, handle: FileHandle) -> [u8; HANDLE_BYTES] {
        export.key().unwrap_or(&self.key).seal(export.id(), handle)
    }

    /// Returns the export and contents of a handle. The seal must be by a key of that export
    /// ([`Export::believing`]): the secret of one pool must not make handles of another.
    fn unseal(&self, bytes: &[u8]) -> Result<(Arc<Export>, FileHandle), NfsStatus> {
        let id = ExportId::named_in(bytes).ok_or(NfsStatus::BADHANDLE)?;
        let exports = self.exports.read();
        if let Some(export) = exports.iter().find(|export| export.id() == id) {
            let unsealed = self.keys_of(export).find_map(|key| key.unseal(bytes));
            let (_, handle) = unsealed.ok_or(NfsStatus::BADHANDLE)?;
            return Ok((Arc::clone(export), handle));
        }
        // A handle of a removed export is stale. A handle without a valid seal is forged.
        let mut keys = exports.iter().flat_map(|export| self.keys_of(export));
        let is_ours =
            self.key.unseal(bytes).is_some() || keys.any(|key| key.unseal(bytes).is_some());
        Err(if is_ours { NfsStatus::STALE } else { NfsStatus::BADHANDLE })
    }

    fn keys_of<'k>(&'k self, export: &'k Export) -> impl Iterator<Item = &'k HandleKey> {
        std::iter::once(export.key().unwrap_or(&self.key)).chain(export.earlier_keys())
    }

    pub(super) fn mounts(&self) -> &Mutex<ClientMounts> {
        &self.mounts
    }

    pub(super) fn refused_mounts(&self) -> &LogLimit {
        &self.refused_mounts
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Returns the cache for the reply, or `None` if the call changes nothing or no export admits
    /// the client.
    fn duplicates_of(
        &self,
        call: &Call,
        args: &XdrReader<'_>,
        peer: SocketAddr,
    ) -> Option<&Arc<Duplicates>> {
        if !protocol::is_change(call.procedure) {
            return None;
        }
        // The arguments of each change begin with a handle.
        let handle = args.clone().opaque(HANDLE_BYTES_MAX).ok()?;
        let (export, _) = self.unseal(handle).ok()?;
        let is_write = call.procedure == protocol::procedure::WRITE;
        let duplicates = if is_write { &self.writes } else { &self.name_changes };
        export.admits(peer).then_some(duplicates)
    }

    /// Returns whether `record` may wait for a device, or moves much data.
    #[must_use]
    pub fn may_take_long(record: &[u8]) -> bool {
        let call = rpc::peek(record);
        call.is_none_or(|(program, procedure)| {
            program == protocol::PROGRAM && protocol::may_take_long(procedure)
        })
    }

    /// Executes the call in `record` from `peer`. The reply goes to `sink`: at once, or when the
    /// returned commit has run. After an error the connection must be closed.
    pub fn serve(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<DeferredReply>, NotCallError> {
        self.serve_with(peer, record, sink, &mut ExportUse::of(usize::MAX))
    }

    /// [`Service::serve`] that adds the call's file system to `used`.
    pub(super) fn serve_with(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
        used: &mut ExportUse,
    ) -> Result<Option<DeferredReply>, NotCallError> {
        let served = self.serve_call(peer, record, sink, used);
        used.turn = None;
        served
    }

    fn serve_call(
        &self,
        peer: SocketAddr,
        record: &[u8],
        sink: &Arc<dyn ReplySink>,
        used: &mut ExportUse,
    ) -> Result<Option<DeferredReply>, NotCallError> {
        let mut args = XdrReader::new(record);
        let call = Call::read(&mut args).map_err(|XdrError| NotCallError)?;
        let refuse = |why| {
            sink.send(rpc::refusal(call.xid, why));
            Ok(None)
        };
        if !call.is_known_version() {
            return refuse(RpcError::Rpc);
        }
        match (call.program, call.version) {
            (protocol::PROGRAM, protocol::VERSION) => {
                let (used, about) = (RefCell::new(used), Cell::new(None));
                let asked = CallContext { peer, record, used, about };
                self.serve_files(&call, args, asked, sink).or_else(refuse)
            }
            (protocol::PROGRAM, _) => {
                refuse(RpcError::Version(protocol::VERSION, protocol::VERSION))
            }
            (mount::PROGRAM, mount::VERSION_FIRST..=mount::VERSION_LAST) => {
                self.serve_beside(mount::answer, peer, &call, args, sink).or_else(refuse)
            }
            (mount::PROGRAM, _) => {
                refuse(RpcError::Version(mount::VERSION_FIRST, mount::VERSION_LAST))
            }
            (nlm::PROGRAM, nlm::VERSION) => {
                self.serve_beside(nlm::answer, peer, &call, args, sink).or_else(refuse)
            }
            (nlm::PROGRAM, _) => refuse(RpcError::Version(nlm::VERSION, nlm::VERSION)),
            (portmap::PROGRAM, portmap::VERSION_FIRST..=portmap::VERSION_LAST) => {
                self.serve_beside(portmap::answer, peer, &call, args, sink).or_else(refuse)
            }
            (portmap::PROGRAM, _) => {
                refuse(RpcError::Version(portmap::VERSION_FIRST, portmap::VERSION_LAST))
            }
            _ => refuse(RpcError::Program),
        }
    }

    fn serve_beside(
        &self,
        answer: AuxiliaryProcedure,
        peer: SocketAddr,
        call: &Call,
        mut args: XdrReader<'_>,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<DeferredReply>, RpcError> {
        let mut out = rpc::begin_answer(call.xid, 256);
        answer(self, peer, call, &mut args, &mut out)?;
        sink.send(rpc::end_answer(out));
        Ok(None)
    }

    fn serve_files<'s>(
        &'s self,
        call: &'s Call,
        args: XdrReader<'_>,
        asked: CallContext<'s>,
        sink: &Arc<dyn ReplySink>,
    ) -> Result<Option<DeferredReply>, RpcError> {
        let absent = protocol::absent_words(call.procedure).ok_or(RpcError::Procedure)?;
        let asker = asker_of(&asked, &call.credentials);
        if call.procedure == protocol::procedure::NULL {
            let running = RunningCall::new(&self.counts, call.procedure, asker, asked.record.len());
            let answerer = Answerer { running, to: ReplyRecipient::Other(Arc::clone(sink)) };
            answerer.answer(rpc::end_answer(rpc::begin_answer(call.xid, 64)), false);
            return Ok(None);
        }
        if call.credentials == Credentials::Other {
            return Err(RpcError::Credentials);
        }
        let running = RunningCall::new(&self.counts, call.procedure, asker, asked.record.len());
        let to = if let Some(duplicates) = self.duplicates_of(call, &args, asked.peer) {
            let number = (call.xid, call.program, call.procedure);
            match duplicates.arrive(RequestKey::new(asked.peer, number, asked.record), sink) {
                RequestArrival::New(new) => ReplyRecipient::Change(new),
                RequestArrival::Busy => return Ok(None),
                RequestArrival::Done(reply) => {
                    sink.send(reply);
                    return Ok(None);
                }
            }
        } else {
            ReplyRecipient::Other(Arc::clone(sink))
        };
        let mut answerer = Answerer { running, to };
        let work = CallExecution { service: self, asked, credentials: &call.credentials };
        let mut out = rpc::begin_answer(call.xid, 512);
        let results = out.len();
        let is_async_procedure = call.procedure != protocol::procedure::WRITE
            && call.procedure != protocol::procedure::COMMIT;
        let failed = FailedCall { xid: call.xid, procedure: call.procedure, absent };
        let done = work.dispatch(call.procedure, args, &mut out);
        answerer.running.about = work.asked.about.take();
        match done {
            Ok(ReplyTiming::Now) => answerer.answer(rpc::end_answer(out), false),
            Ok(ReplyTiming::Durable(target))
                if target.export.rules().is_async && is_async_procedure
                    || planted!(AnsweredBeforeCommit) =>
            {
                answerer.answer(rpc::end_answer(out), false);
            }
            Ok(ReplyTiming::Durable(target)) => {
                let done = Box::new(move |done: FsResult<()>| {
                    let refused = done.map_err(CallError::Failed).err();
                    let is_failed = refused.as_ref().is_some_and(CallError::is_failure);
                    let reply = match refused {
                        None => rpc::end_answer(out),
                        Some(refused) => failed.answer(&refused),
                    };
                    answerer.answer(reply, is_failed);
                });
                return Ok(Some(DeferredReply { held: target.held, done }));
            }
            Err(CallError::Garbage) => {
                answerer.answer(rpc::refusal(call.xid, RpcError::Arguments), true);
            }
            Err(CallError::Seen(status, seen)) => {
                let is_failed = status != NfsStatus::NOENT;
                out.truncate(results);
                out.u32(status.0);
                put_some_attr(&mut out, Some(&seen.0), seen.1);
                answerer.answer(rpc::end_answer(out), is_failed);
            }
            Err(refused) => answerer.answer(failed.answer(&refused), refused.is_failure()),
        }
        Ok(None)
    }
}

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

type AuxiliaryProcedure =
    fn(&Service, SocketAddr, &Call, &mut XdrReader<'_>, &mut XdrWriter) -> Result<(), RpcError>;

/// Error: the record is no call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCallError;

struct CallContext<'s> {
    peer: SocketAddr,
    record: &'s [u8],
    used: RefCell<&'s mut ExportUse>,
    about: Cell<Option<NfsCallSubject>>,
}

fn asker_of(asked: &CallContext<'_>, credentials: &Credentials) -> RequestSource {
    let uid = match credentials {
        Credentials::Sys { uid, .. } => Some(*uid),
        Credentials::None | Credentials::Other => None,
    };
    RequestSource { address: Some(asked.peer), uid, thread: None }
}

struct Answerer {
    running: RunningCall,
    to: ReplyRecipient,
}

enum ReplyRecipient {
    Change(RequestInProgress),
    Other(Arc<dyn ReplySink>),
}

impl Answerer {
    fn answer(self, reply: Vec<u8>, is_failed: bool) {
        self.running.end(is_failed, reply.len());
        match self.to {
            ReplyRecipient::Change(change) => change.end(reply),
            ReplyRecipient::Other(sink) => sink.send(reply),
        }
    }
}

struct FailedCall {
    xid: u32,
    procedure: u32,
    absent: usize,
}

impl FailedCall {
    /// Returns the reply, and logs errors for the administrator.
    fn answer(&self, refused: &CallError) -> Vec<u8> {
        let status = match refused {
            CallError::Status(status) | CallError::Seen(status, _) => *status,
            CallError::Garbage => NfsStatus::INVAL,
            CallError::Failed(error) => {
                let name =
                    usize::try_from(self.procedure).ok().and_then(|at| PROCEDURE_NAMES.get(at));
                log_failure("nfs", name.copied().unwrap_or("?"), None, error);
                NfsStatus::from(error)
            }
        };
        let mut out = rpc::begin_answer(self.xid, 64);
        out.u32(status.0);
        (0..self.absent).for_each(|_| out.u32(0));
        rpc::end_answer(out)
    }
}

pub(super) enum ReplyTiming {
    Now,
    /// Reply after the changes of this file are durable.
    Durable(CallTarget),
}

#[derive(Debug)]
pub(super) enum CallError {
    Garbage,
    Status(NfsStatus),
    Failed(FsError),
    /// A status with the attributes of the call's file.
    Seen(NfsStatus, Box<(Attr, u64)>),
}

impl CallError {
    /// Whether the call counts as failed. Absence of a name is an answer, not a failure.
    fn is_failure(&self) -> bool {
        match self {
            CallError::Garbage => true,
            CallError::Status(status) | CallError::Seen(status, _) => *status != NfsStatus::NOENT,
            CallError::Failed(error) => NfsStatus::from(error) != NfsStatus::NOENT,
        }
    }
}

impl From<XdrError> for CallError {
    fn from(XdrError: XdrError) -> CallError {
        CallError::Garbage
    }
}

impl From<FsError> for CallError {
    fn from(error: FsError) -> CallError {
        CallError::Failed(error)
    }
}

impl From<NfsStatus> for CallError {
    fn from(status: NfsStatus) -> CallError {
        CallError::Status(status)
    }
}

/// A file with a reference, so that its inode number is not reused.
pub(super) struct ReferencedFile {
    export: Arc<Export>,
    /// Attributes when the handle was resolved.
    pub(super) attr: Attr,
}

impl ReferencedFile {
    /// Takes over the reference that came with `attr`.
    pub(super) fn new(export: &Arc<Export>, attr: Attr) -> ReferencedFile {
        ReferencedFile { export: Arc::clone(export), attr }
    }

    pub(super) fn fs(&self) -> &dyn FileSystem {
        &**self.export.fs()
    }
}

impl Drop for ReferencedFile {
    fn drop(&mut self) {
        self.fs().forget(self.attr.ino, 1);
    }
}

/// The file of a call, its export and caller.
pub(super) struct CallTarget {
    pub(super) export: Arc<Export>,
    pub(super) caller: Caller,
    pub(super) held: ReferencedFile,
    pub(super) fsid: u64,
}

impl CallTarget {
    pub(super) fn fs(&self) -> &dyn FileSystem {
        &**self.export.fs()
    }

    pub(super) fn ino(&self) -> engine::api::Ino {
        self.held.attr.ino
    }

    pub(super) fn beside(&self, held: ReferencedFile) -> CallTarget {
        let (export, caller) = (Arc::clone(&self.export), self.caller.clone());
        CallTarget { export, caller, held, fsid: self.fsid }
    }

    pub(super) fn check_writable(&self) -> Result<(), CallError> {
        if self.export.rules().is_writable { Ok(()) } else { Err(NfsStatus::ROFS.into()) }
    }

    /// Returns a caller without permission checks if the user owns the file. Clients check
    /// permissions at open, and NFS has no open (RFC 1813, 4.4).
    pub(super) fn owner(&self) -> Option<Caller> {
        let is_owner = self.caller.uid == self.held.attr.uid;
        // Quota limits still apply.
        is_owner.then(|| Caller { checks: PermissionChecks::ByKernel, ..self.caller.clone() })
    }

    pub(super) fn attr_now(&self) -> Option<Attr> {
        self.fs().getattr(&self.caller, self.ino()).ok()
    }

    pub(super) fn put_ok(&self, out: &mut XdrWriter) {
        out.u32(NfsStatus::OK.0);
        self.put_some_attr(out, Some(&self.held.attr));
    }

    pub(super) fn put_changed(&self, out: &mut XdrWriter, around: &AttributeChange) {
        out.u32(NfsStatus::OK.0);
        self.put_around(out, around);
    }

    pub(super) fn put_attr(&self, out: &mut XdrWriter, attr: &Attr) {
        put_attr(out, attr, self.fsid);
    }

    pub(super) fn put_some_attr(&self, out: &mut XdrWriter, attr: Option<&Attr>) {
        put_some_attr(out, attr, self.fsid);
    }

    /// Writes `wcc_data`: the attributes before and after, if both are known, else only the current
    /// ones.
    pub(super) fn put_around(&self, out: &mut XdrWriter, around: &AttributeChange) {
        if let (Some(before), Some(after)) = (&around.before, &around.after) {
            put_before(out, Some(before));
            self.put_some_attr(out, Some(after));
        } else {
            put_before(out, None);
            self.put_some_attr(out, self.attr_now().as_ref());
        }
    }
}

pub(super) struct CallExecution<'s> {
    pub(super) service: &'s Service,
    asked: CallContext<'s>,
    credentials: &'s Credentials,
}

impl CallExecution<'_> {
    fn dispatch(
        &self,
        procedure: u32,
        mut args: XdrReader<'_>,
        out: &mut XdrWriter,
    ) -> Result<ReplyTiming, CallError> {
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
            _ => Err(NfsStatus::SERVERFAULT.into()),
        }
    }

    fn unsealed(&self, args: &mut XdrReader<'_>) -> Result<(Arc<Export>, FileHandle), CallError> {
        let handle = args.opaque(HANDLE_BYTES_MAX)?;
        Ok(self.service.unseal(handle)?)
    }

    /// Reads a handle and resolves it, if its export admits this client.
    pub(super) fn target(&self, args: &mut XdrReader<'_>) -> Result<CallTarget, CallError> {
        let (export, handle) = self.unsealed(args)?;
        if !export.admits(self.asked.peer) {
            return Err(NfsStatus::ACCES.into());
        }
        // Takes a thread permit (TU1).
        self.asked.used.borrow_mut().begin(&export)?;
        let caller = export.caller(self.credentials).ok_or(NfsStatus::ACCES)?;
        self.asked.about.set(Some((Arc::clone(export.place()), handle.ino)));
        let held = hold(&export, &caller, handle)?;
        let fsid = fsid_of(export.fileset());
        Ok(CallTarget { export, caller, held, fsid })
    }

    /// Reads another handle, which must be of the export of `target`.
    pub(super) fn second(
        &self,
        args: &mut XdrReader<'_>,
        target: &CallTarget,
    ) -> Result<ReferencedFile, CallError> {
        let (export, handle) = self.unsealed(args)?;
        if export.id() != target.export.id() {
            return Err(NfsStatus::XDEV.into());
        }
        Ok(hold(&target.export, &target.caller, handle)?)
    }

    pub(super) fn seal(&self, target: &CallTarget, attr: &Attr) -> [u8; HANDLE_BYTES] {
        self.service.seal(&target.export, target.export.handle_of(attr))
    }
}

fn hold(export: &Arc<Export>, caller: &Caller, handle: FileHandle) -> FsResult<ReferencedFile> {
    export.fs().resolve(caller, handle).map(|attr| ReferencedFile::new(export, attr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_name_is_an_answer_and_no_failure() {
        for (answer, is_failure) in [
            (CallError::Status(NfsStatus::NOENT), false),
            (CallError::Failed(FsError::NotFound), false),
            (CallError::Failed(FsError::NoSpace), true),
            (CallError::Status(NfsStatus::STALE), true),
            (CallError::Garbage, true),
        ] {
            assert_eq!(answer.is_failure(), is_failure, "{answer:?}");
        }
    }
}
