//! The server behind `holdfast serve`: its pools, their exports, and access to them.
//!
//! ```text
//!   status socket of each pool --+
//!                                +--> Asked --> Hub --> pools, exports (NFS), state directory
//!   HTTP (hub::http) ------------+
//! ```
//!
//! The hub handles requests about the server (exports, clients, schedules), and forwards all others
//! to the pool.
//!
//! # Invariants
//!
//! - SV1: An acknowledged `export add` is durable in the state directory. The next server exports
//!   it again.
//! - SV2: Changes of exports are serialized. Requests of NFS clients never wait for such a change.
//!
//! # Concurrency
//!
//! All methods may be called from any thread. LOCK: `Hub::changing` is taken before any lock of a
//! pool or of NFS.

pub mod config;
pub mod exports;
pub mod handle_keys;
mod history;
pub mod http;
mod moving;
pub(crate) mod notices;
pub mod notify;
mod receivers;
pub mod schedule;
pub mod scrubs;
mod state;
mod timetable;
pub mod token;
mod unserved;

use crate::facts;
use crate::facts::operation_facts;
use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use engine::api::{FileSystem, FilesetUuid};
use format::fileset::{FilesetName, NamePart};
use front::counts::OperationCounts;
use front::nfs::{Export, NfsServer, Service};
use front::watch::Watch;
use serde_json::{Value, json};

use self::config::Config;
use self::exports::Exports;
use self::handle_keys::ExportedFilesets;
use self::history::LoadHistory;
use self::notices::Notice;
use self::receivers::NoticeReceivers;
use self::schedule::Schedules;
use self::scrubs::Scrubs;
pub use self::state::StateDirectory;
pub use self::timetable::ScheduleThread;
use crate::backend::{BackendError, ExplainTarget, OpenPool};
use crate::bugs;
use crate::events::now_seconds;
use crate::mounts::{PoolMounts, sum};
use crate::peer::Peer;
use crate::roles::PoolGrants;
use crate::transfer::OnTransfer;
use control::wire::ExplainStep;
use control::{
    Answer, CLIENTS_MAX, ClientFacts, FilesetFacts, JobFacts, NoticeTestFacts, OperationFacts,
    Request, Transfer,
};

/// Longest wait for the results of a test notice. The command waits 5 s for the server.
const TEST_TIME: Duration = Duration::from_secs(3);

/// A pool of the server.
pub struct ServedPool {
    /// Path of the pool.
    pub path: PathBuf,
    /// Identity of the pool, as 32 hexadecimal digits.
    pub id: String,
    /// The open pool.
    pub pool: Arc<dyn OpenPool>,
    /// Mounts of the pool, and the other uses of its filesets.
    pub mounts: Arc<PoolMounts>,
    /// Rights of users other than administrators.
    pub roles: Arc<PoolGrants>,
}

impl ServedPool {
    /// Returns `pool`, opened at `path`, without mounts.
    pub fn new(path: PathBuf, pool: Arc<dyn OpenPool>) -> ServedPool {
        let mounts = PoolMounts::new(&path, &pool);
        ServedPool::with_mounts(path, pool, mounts)
    }

    /// Returns `pool` with its existing mounts.
    pub fn with_mounts(
        path: PathBuf,
        pool: Arc<dyn OpenPool>,
        mounts: Arc<PoolMounts>,
    ) -> ServedPool {
        let id = pool.status()["pool_id"].as_str().unwrap_or("unknown").to_owned();
        ServedPool { path, id, pool, mounts, roles: Arc::default() }
    }

    /// Returns the pool's name at present, or its id if it has none.
    pub fn name(&self) -> String {
        let status = self.pool.status();
        let name = status["label"].as_str().filter(|name| !name.is_empty());
        name.unwrap_or(&self.id).to_owned()
    }

    fn failed(&self, cause: impl Into<String>) -> BackendError {
        BackendError::Failed { device: self.path.clone(), cause: cause.into() }
    }
}

/// The NFS side of a server.
pub struct Nfs {
    /// The NFS service.
    pub service: Arc<Service>,
    /// Listening address.
    pub address: SocketAddr,
    /// Keys of other pools with which handles of exported filesets may be sealed.
    filesets: ExportedFilesets,
    /// The listening server. `None` before [`Nfs::begin`] and after [`Nfs::end`].
    server: Mutex<Option<NfsServer>>,
}

impl Nfs {
    /// Returns an NFS service for `address` that does not listen yet.
    pub fn new(service: Arc<Service>, address: SocketAddr, filesets: ExportedFilesets) -> Nfs {
        Nfs { service, address, filesets, server: Mutex::new(None) }
    }

    /// Makes an export accept handles that its fileset got in other pools. Records that this pool
    /// exports the fileset. While clients are served the record is stored at once, otherwise by
    /// [`Nfs::begin`].
    fn believing(&self, served: &ServedPool, export: Export) -> Export {
        let (key, fileset) = (handle_keys::of(served), export.fileset());
        let earlier = self.filesets.note(key, fileset);
        if self.with_server(|_| ()).is_some() {
            self.filesets.keep();
        }
        export.believing(earlier)
    }

    fn with_server<T>(&self, look: impl FnOnce(&NfsServer) -> T) -> Option<T> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    /// Stores the keys of exports durably, and sets the listening server.
    pub fn begin(&self, server: NfsServer) {
        self.filesets.keep();
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// Stops listening. Requests in flight have been answered when this returns.
    pub fn end(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
    }

    fn clients(&self) -> Vec<ClientFacts> {
        let facts = |client: front::nfs::ConnectedClient| ClientFacts {
            front: "nfs".to_owned(),
            address: client.address.to_string(),
            since: client.since,
            connections: client.connections.try_into().unwrap_or(u64::MAX),
            requests: client.requests,
            received_bytes: client.received_bytes,
            sent_bytes: client.sent_bytes,
            in_flight: client.in_flight.try_into().unwrap_or(u64::MAX),
        };
        let clients = self.with_server(NfsServer::clients).unwrap_or_default();
        clients.into_iter().take(CLIENTS_MAX).map(facts).collect()
    }

    fn status(&self) -> Value {
        let counts = self.service.counts();
        let answered: u64 = counts.iter().map(|count| count.answered).sum();
        let failed: u64 = counts.iter().map(|count| count.failed).sum();
        let of_server = |server: &NfsServer| {
            json!({
                "connections": server.connection_count(),
                "held_bytes": server.held_bytes(),
                "bugs": server.panic_count(),
            })
        };
        let mut status = self.with_server(of_server).unwrap_or_else(|| json!({}));
        status["address"] = json!(self.address.to_string());
        status["exports"] = json!(self.service.exports().len());
        status["answered"] = json!(answered);
        status["failed"] = json!(failed);
        status
    }
}

/// A running server.
pub struct Hub {
    /// The pools.
    pub pools: Vec<ServedPool>,
    /// The NFS side. `None` without NFS.
    pub nfs: Option<Nfs>,
    /// State directory, which outlives the server.
    pub state: StateDirectory,
    pub(crate) history: LoadHistory,
    /// Observers of client requests, by directory and latency.
    pub(crate) watch: Arc<Watch>,
    pub(crate) started_seconds: u64,
    /// The configuration with its path. `None` if the server was started without one.
    config: Mutex<Option<(PathBuf, Config)>>,
    reloading: Mutex<()>,
    exports: Exports,
    /// Kept exports that cannot be served at present.
    unserved: unserved::UnservedExports,
    arriving: exports::ArrivingFilesets,
    schedules: Mutex<Schedules>,
    /// Whether the stored schedules were read. Until then none may be written.
    has_read_schedules: AtomicBool,
    /// Snapshots that schedules should delete but that are in use, by pool index.
    stays: Mutex<BTreeMap<usize, Vec<String>>>,
    scrubs: Mutex<Scrubs>,
    /// Receivers of notices. `None` before the first configuration.
    receivers: Mutex<Option<NoticeReceivers>>,
    notify_counts: Arc<receivers::NoticeCounts>,
    /// Held while exports change (SV2).
    changing: Mutex<()>,
    moving: Mutex<()>,
    moved_now: moving::CurrentMove,
    /// Held during a pass of a pool's snapshot schedules. A move waits until it is free.
    keeping: Mutex<()>,
}

impl Hub {
    /// Returns a server of `pools` without exports.
    pub fn new(pools: Vec<ServedPool>, nfs: Option<Nfs>, state: StateDirectory) -> Hub {
        let watch = Arc::default();
        pools.iter().for_each(|served| served.mounts.watched_by(&watch));
        nfs.iter().for_each(|nfs| nfs.service.watched_by(&watch));
        Hub {
            pools,
            nfs,
            state,
            history: LoadHistory::default(),
            watch,
            started_seconds: now_seconds(),
            config: Mutex::default(),
            reloading: Mutex::default(),
            exports: Exports::default(),
            unserved: unserved::UnservedExports::default(),
            arriving: Mutex::default(),
            schedules: Mutex::default(),
            has_read_schedules: AtomicBool::new(false),
            stays: Mutex::default(),
            scrubs: Mutex::default(),
            receivers: Mutex::default(),
            notify_counts: Arc::default(),
            changing: Mutex::default(),
            moving: Mutex::default(),
            moved_now: moving::CurrentMove::default(),
            keeping: Mutex::default(),
        }
    }

    /// Applies a request to pool `index`. The caller has checked the rights of `peer`.
    pub fn control(
        &self,
        index: usize,
        request: &Request,
        peer: Peer,
    ) -> Result<Answer, BackendError> {
        let answer = self.control_one(index, request, peer);
        // After these requests, a kept export that could not be served may be servable.
        if answer.is_ok()
            && matches!(
                request,
                Request::ExportRemove { .. }
                    | Request::Reload {}
                    | Request::FilesetHere { .. }
                    | Request::FilesetRename { .. }
            )
        {
            self.serve_unserved();
        }
        answer
    }

    #[allow(clippy::wildcard_enum_match_arm, reason = "what is not the server's is the pool's")]
    fn control_one(
        &self,
        index: usize,
        request: &Request,
        peer: Peer,
    ) -> Result<Answer, BackendError> {
        let served = &self.pools[index];
        if let Some(answer) = facts::answer(&self.watch, request) {
            return answer.map_err(|cause| served.failed(cause));
        }
        match request {
            Request::PoolRename { name } => {
                let is_taken = |other: &&ServedPool| other.id != served.id && other.name() == *name;
                if let Some(other) = self.pools.iter().find(is_taken) {
                    let (id, path) = (&other.id, other.path.display());
                    return Err(served.failed(format!(
                        "the pool {id} on {path}, which this server has too, is called {name}: \
                         choose another name for {}",
                        served.id
                    )));
                }
                served.pool.control(request, peer)
            }
            Request::ExportList { after } => self.export_list(index, after),
            Request::ExportAdd { export } => self.export_add(index, export),
            Request::ExportRemove { name } => self.export_remove(index, name),
            Request::OperationList {} => Ok(Answer::Operations(self.operations())),
            Request::ScheduleSet { fileset, keep, is_gone } => {
                self.schedule_set(index, fileset, keep, *is_gone)
            }
            Request::ScheduleList {} => self.schedule_list(index),
            Request::ScrubScheduleSet { every } => self.scrub_schedule_set(index, *every),
            Request::ScrubSchedule {} => {
                Ok(Answer::ScrubSchedule(self.scrub_schedule(index, now_seconds())))
            }
            Request::Scrub {} => self.scrub(index, peer),
            Request::NotifyTest {} => Ok(Answer::Told(self.test_receivers(&shown(&served.path)))),
            Request::Reload {} => {
                let reloaded = self.reload();
                reloaded
                    .map(|()| Answer::Done)
                    .map_err(|error| served.failed(format!("{error:#}; what was set before stays")))
            }
            Request::ClientList {} => Ok(Answer::Clients(self.clients())),
            Request::LockList {} => Ok(Answer::Locks(served.mounts.locks())),
            Request::FilesetHere { name } => {
                // LOCK: no move may run, because the outcome of a move also decides which pool has
                // the fileset. Fails at once if one runs.
                let _alone = self.no_move(index)?;
                self.check_word(index, name)?;
                let answer = served.pool.control(request, peer)?;
                // Requests through mounts and exports may still be refused for the move.
                served.mounts.uses.seat_of(name).inspect(|seat| seat.go_on());
                Ok(answer)
            }
            other => {
                served.mounts.uses.check(other)?;
                let mut answer = served.pool.control(other, peer)?;
                served.mounts.uses.tell(&mut answer);
                if matches!(other, Request::FilesetRename { .. }) {
                    self.filesets_renamed(index);
                }
                Ok(answer)
            }
        }
    }

    pub(crate) fn status_of(self: &Arc<Hub>, index: usize) -> Value {
        let mut status = HubPool::about(self, index).status();
        bugs::add_to(&mut status);
        status
    }

    /// Applies `config`, read from `path`: exports, receivers, roles.
    pub fn configure(&self, path: PathBuf, config: Config) -> anyhow::Result<()> {
        self.export_configured(&config.exports)?;
        let mut current = self.receivers();
        let started =
            NoticeReceivers::start(&config.notify, &self.notify_counts, current.as_ref())?;
        if let Some(before) = current.replace(started) {
            before.retire();
        }
        drop(current);
        for (index, served) in self.pools.iter().enumerate() {
            served.roles.set(config.grants_of(index));
            served.mounts.end_without_role(&served.roles, Peer::own());
        }
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = Some((path, config));
        Ok(())
    }

    /// Reloads the configuration. An invalid one changes nothing.
    pub fn reload(&self) -> anyhow::Result<()> {
        // The configuration read last must be the one that applies.
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.config.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (path, before) = before
            .context("the server was started without --config: there is nothing to reload")?;
        let config = Config::read(&path)?;
        if let Some(what) = before.fixed_difference(&config) {
            anyhow::bail!(
                "{}: `{what}` has changed, which needs the server to be started again",
                path.display()
            );
        }
        for (index, served) in self.pools.iter().enumerate() {
            schedule::check_configured(&config, index, served)?;
        }
        self.configure(path, config)
    }

    fn receivers(&self) -> MutexGuard<'_, Option<NoticeReceivers>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, pool: &str, notice: &Notice) {
        if let Some(receivers) = &*self.receivers() {
            receivers.tell(pool, notice);
        }
    }

    fn test_receivers(&self, pool: &str) -> Vec<NoticeTestFacts> {
        let notice = Notice::new(notices::TEST, "a test: somebody has asked for it");
        let tested = self.receivers().as_ref().map(|it| it.test(pool, &notice));
        tested.map(|it| it.wait(TEST_TIME)).unwrap_or_default()
    }

    /// Returns counts by front end and operation since the server started, in a fixed order.
    pub(crate) fn counts(&self) -> Vec<(&'static str, OperationCounts)> {
        let nfs = self.nfs.iter().flat_map(|nfs| nfs.service.counts()).map(|it| ("nfs", it));
        let mounts = self.pools.iter().map(|served| served.mounts.operations());
        let fuse = named_once(mounts.fold(Vec::new(), sum).into_iter());
        nfs.chain(fuse.into_iter().map(|it| ("fuse", it))).collect()
    }

    /// Returns counts as facts. Operations of mounts that did not occur are left out.
    pub(crate) fn operations(&self) -> Vec<OperationFacts> {
        let facts = |(front, count): (&str, OperationCounts)| operation_facts(front, &count);
        let is_told =
            |(front, count): &(&str, OperationCounts)| *front == "nfs" || count.answered > 0;
        self.counts().into_iter().filter(is_told).map(facts).collect()
    }

    pub(crate) fn clients(&self) -> Vec<ClientFacts> {
        let mut clients = self.nfs.as_ref().map(Nfs::clients).unwrap_or_default();
        clients.extend(self.pools.iter().flat_map(|served| served.mounts.clients()));
        clients.truncate(CLIENTS_MAX);
        clients
    }

    /// Returns the jobs of a pool that `job list` shows.
    fn jobs_of(&self, index: usize) -> Vec<JobFacts> {
        match self.pools[index].pool.control(&Request::JobList {}, Peer::own()) {
            Ok(Answer::Jobs(jobs)) => jobs,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    fn limited_filesets(&self, index: usize) -> Vec<FilesetFacts> {
        let (mut limited, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let request = Request::FilesetList { from: slot };
            let Ok(Answer::Filesets { list, next }) =
                self.pools[index].pool.control(&request, Peer::own())
            else {
                break;
            };
            limited.extend(list.into_iter().filter(|it| it.quota_bytes.is_some()));
            from = next.filter(|&next| next > slot);
        }
        limited
    }

    fn schedules(&self) -> MutexGuard<'_, Schedules> {
        self.schedules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served_by_nfs(&self, served: &ServedPool) -> Result<&Nfs, BackendError> {
        self.nfs.as_ref().ok_or_else(|| {
            served.failed("the server does not serve NFS: start it with --nfs ADDRESS:PORT")
        })
    }
}

/// One pool of a server, as its status socket sees it. Requests about the server go to the hub.
pub struct HubPool {
    hub: Arc<Hub>,
    index: usize,
}

impl HubPool {
    /// Returns pool `index` of a server.
    pub fn about(hub: &Arc<Hub>, index: usize) -> Arc<dyn OpenPool> {
        Arc::new(HubPool { hub: Arc::clone(hub), index })
    }

    fn pool(&self) -> &dyn OpenPool {
        self.hub.pools[self.index].pool.as_ref()
    }
}

impl OpenPool for HubPool {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.pool().file_system()
    }

    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        snapshot: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        self.pool().hold_fileset(name, snapshot)
    }

    fn release_fileset(&self, fileset: FilesetUuid) {
        self.pool().release_fileset(fileset);
    }

    fn fileset_name(&self, fileset: FilesetUuid) -> Option<String> {
        self.pool().fileset_name(fileset)
    }

    fn secret(&self) -> [u8; 16] {
        self.pool().secret()
    }

    fn status(&self) -> Value {
        let mut status = self.pool().status();
        if let Some(nfs) = &self.hub.nfs {
            status["nfs"] = nfs.status();
            status["nfs"]["exports_not_served"] = json!(self.hub.unserved.count());
        }
        if let Some(schedules) = self.hub.schedule_status(self.index) {
            status["schedules"] = schedules;
        }
        status["scrubs"] = json!(self.hub.scrub_schedule(self.index, now_seconds()));
        if let Some(receivers) = &*self.hub.receivers() {
            status["notify"] = self.hub.notify_counts.facts(receivers.count());
        }
        status
    }

    fn explain(&self, target: &ExplainTarget) -> Result<Vec<ExplainStep>, BackendError> {
        self.pool().explain(target)
    }

    fn control(&self, request: &Request, peer: Peer) -> Result<Answer, BackendError> {
        self.hub.control(self.index, request, peer)
    }

    fn transfer(
        &self,
        request: &Transfer,
        peer: Peer,
        file: &mut File,
        fronts: Option<Arc<dyn FileSystem>>,
        progress: OnTransfer<'_>,
    ) -> Result<Value, BackendError> {
        match request {
            Transfer::Move { .. } => self.hub.move_fileset(self.index, request, progress),
            Transfer::Diff { .. }
            | Transfer::Send { .. }
            | Transfer::Receive { .. }
            | Transfer::CopyIn { .. }
            | Transfer::CopyOut { .. } => {
                self.pool().transfer(request, peer, file, fronts, progress)
            }
        }
    }

    fn close(&self) -> Result<(), BackendError> {
        self.pool().close()
    }
}

/// Returns the command line that mounts export `name` on a client.
pub fn mount_line(address: SocketAddr, name: &str) -> String {
    let host = match address {
        _ if address.ip().is_unspecified() => "SERVER".to_owned(),
        SocketAddr::V4(v4) => v4.ip().to_string(),
        SocketAddr::V6(v6) => format!("[{}]", v6.ip()),
    };
    let port = address.port();
    format!(
        "mount -t nfs -o vers=3,tcp,nolock,port={port},mountport={port} {host}:{name} DIRECTORY"
    )
}

fn named_once(counts: impl Iterator<Item = OperationCounts>) -> Vec<OperationCounts> {
    let mut all: Vec<OperationCounts> = Vec::new();
    for count in counts {
        match all.iter_mut().find(|it| it.name == count.name) {
            Some(same) => same.add(&count),
            None => all.push(count),
        }
    }
    all
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
