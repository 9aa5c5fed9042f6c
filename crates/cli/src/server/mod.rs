//! What `holdfast serve` runs: pools, what of them is exported, and who may ask for what.
//!
//! ```text
//!   status socket of each pool --+
//!                                +--> Asked --> Hub --> pools, exports (NFS), state directory
//!   HTTP (server::http) ---------+
//! ```
//!
//! A request that is about the server (exports, clients) is done here, any other by the pool.
//!
//! # Invariants
//!
//! - SV1: What `export add` was answered is in the state directory, durable, and is exported again
//!   when the server is started again.
//! - SV2: Changes of exports are made one at a time; requests of clients wait for none of them.
//!
//! # Concurrency
//!
//! Any thread may ask. `Hub::changing` is taken first, and no lock of a pool or of NFS is held
//! while it is waited for.

pub(crate) mod config;
pub(crate) mod exports;
pub(crate) mod handle_keys;
mod history;
pub(crate) mod http;
mod moving;
pub(crate) mod notices;
pub(crate) mod notify;
mod receivers;
pub(crate) mod schedule;
pub(crate) mod scrubs;
mod state;
mod timetable;
pub(crate) mod token;
mod unserved;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use engine::vnode::api::{FileSystem, FilesetUuid};
use format::fileset::{FilesetName, NamePart};
use front::counts::OperationCounts;
use front::nfs::{Export, Server, Service};
use front::watch::Watch;
use serde_json::{Value, json};

use self::config::Config;
use self::exports::Exports;
use self::handle_keys::ExportedFilesets;
use self::history::History;
use self::notices::Notice;
use self::receivers::Receivers;
use self::schedule::Schedules;
use self::scrubs::Scrubs;
pub(crate) use self::state::StateDirectory;
pub(crate) use self::timetable::Timetable;
use crate::backend::{BackendError, ExplainStep, ExplainTarget, OpenPool};
use crate::bugs;
use crate::control::{
    Answer, CLIENTS_MAX, ClientFacts, FilesetFacts, JobFacts, OperationFacts, Peer, Request,
    ToldFacts, watch,
};
use crate::events::now_seconds;
use crate::mounts::{Mounts, sum};
use crate::roles::Roles;
use crate::transfer::{OnBytes, Transfer};

/// How long it is waited for what came of a test: whoever asks waits 5 s for the server.
const TEST_TIME: Duration = Duration::from_secs(3);

/// A pool that is served.
pub(crate) struct ServedPool {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Its identity, as 32 hexadecimal digits.
    pub(crate) id: String,
    /// It.
    pub(crate) pool: Arc<dyn OpenPool>,
    /// Its mounts, and who else uses which fileset.
    pub(crate) mounts: Arc<Mounts>,
    /// Who else than administrators may ask for what.
    pub(crate) roles: Arc<Roles>,
}

impl ServedPool {
    /// Returns `pool`, which was opened at `path`.
    pub(crate) fn new(path: PathBuf, pool: Arc<dyn OpenPool>) -> ServedPool {
        let mounts = Mounts::new(&path, &pool);
        ServedPool::with_mounts(path, pool, mounts)
    }

    /// Returns `pool`, which has mounts already.
    pub(crate) fn with_mounts(
        path: PathBuf,
        pool: Arc<dyn OpenPool>,
        mounts: Arc<Mounts>,
    ) -> ServedPool {
        let id = pool.status()["pool_id"].as_str().unwrap_or("unknown").to_owned();
        ServedPool { path, id, pool, mounts, roles: Arc::default() }
    }

    fn failed(&self, cause: impl Into<String>) -> BackendError {
        BackendError::Failed { device: self.path.clone(), cause: cause.into() }
    }
}

/// NFS, as far as it is served.
pub(crate) struct Nfs {
    /// What answers.
    pub(crate) service: Arc<Service>,
    /// Where.
    pub(crate) address: SocketAddr,
    /// By which keys handles of exported filesets may be sealed.
    filesets: ExportedFilesets,
    /// Who listens; `None`: nobody yet, or any more.
    server: Mutex<Option<Server>>,
}

impl Nfs {
    /// Returns an NFS service at `address` that nobody listens for yet.
    pub(crate) fn new(
        service: Arc<Service>,
        address: SocketAddr,
        filesets: ExportedFilesets,
    ) -> Nfs {
        Nfs { service, address, filesets, server: Mutex::new(None) }
    }

    /// Makes an export accept handles that its fileset got in other pools, and records that it is
    /// exported from this pool: at once if clients are served, else in `begin`.
    fn believing(&self, served: &ServedPool, export: Export) -> Export {
        let (key, fileset) = (handle_keys::of(served), export.fileset());
        let earlier = self.filesets.note(key, fileset);
        if self.with_server(|_| ()).is_some() {
            self.filesets.keep();
        }
        export.believing(earlier)
    }

    /// Calls `look` with the server, if it listens.
    fn with_server<T>(&self, look: impl FnOnce(&Server) -> T) -> Option<T> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(look)
    }

    /// From now on `server` listens.
    pub(crate) fn begin(&self, server: Server) {
        self.filesets.keep();
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// Nobody listens any more: what clients wait for is answered when this returns.
    pub(crate) fn end(&self) {
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(server);
    }

    fn clients(&self) -> Vec<ClientFacts> {
        let facts = |client: front::nfs::Client| ClientFacts {
            front: "nfs".to_owned(),
            address: client.address.to_string(),
            since: client.since,
            connections: client.connections.try_into().unwrap_or(u64::MAX),
            requests: client.requests,
            received_bytes: client.received_bytes,
            sent_bytes: client.sent_bytes,
            in_flight: client.in_flight.try_into().unwrap_or(u64::MAX),
        };
        let clients = self.with_server(Server::clients).unwrap_or_default();
        clients.into_iter().take(CLIENTS_MAX).map(facts).collect()
    }

    /// Returns counts for `status`.
    fn status(&self) -> Value {
        let counts = self.service.counts();
        let answered: u64 = counts.iter().map(|count| count.answered).sum();
        let failed: u64 = counts.iter().map(|count| count.failed).sum();
        let of_server = |server: &Server| {
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
pub(crate) struct Hub {
    /// What it serves.
    pub(crate) pools: Vec<ServedPool>,
    /// How clients reach files; `None`: they do not.
    pub(crate) nfs: Option<Nfs>,
    /// What outlives it.
    pub(crate) state: StateDirectory,
    /// What it has done.
    pub(crate) history: History,
    /// Sees what all clients ask.
    pub(crate) watch: Arc<Watch>,
    /// When it began: seconds since 1970.
    pub(crate) started_seconds: u64,
    /// What it was last configured by; `None`: the command line alone.
    config: Mutex<Option<(PathBuf, Config)>>,
    /// One reads the configuration again at a time.
    reloading: Mutex<()>,
    exports: Exports,
    /// What is kept and can't be served.
    unserved: unserved::AllUnserved,
    /// The filesets that are being moved.
    arriving: exports::Arriving,
    /// Clones by schedule.
    schedules: Mutex<Schedules>,
    /// Whether what was set before is in there.
    has_read_schedules: AtomicBool,
    /// By number of the pool: clones that a schedule would delete and something needs.
    stays: Mutex<BTreeMap<usize, Vec<String>>>,
    /// Scrubs by schedule.
    scrubs: Mutex<Scrubs>,
    /// Who is told what happens; `None`: nobody yet.
    receivers: Mutex<Option<Receivers>>,
    notify_counts: Arc<receivers::Counts>,
    /// SV2.
    changing: Mutex<()>,
    /// One fileset is moved at a time.
    moving: Mutex<()>,
    /// Which, for as long as that takes.
    moved_now: moving::MovedNow,
    /// Held while clones of a pool are taken and deleted by schedule.
    keeping: Mutex<()>,
}

impl Hub {
    /// Returns a server of `pools` that exports nothing yet.
    pub(crate) fn new(pools: Vec<ServedPool>, nfs: Option<Nfs>, state: StateDirectory) -> Hub {
        let watch = Arc::default();
        pools.iter().for_each(|served| served.mounts.watched_by(&watch));
        nfs.iter().for_each(|nfs| nfs.service.watched_by(&watch));
        Hub {
            pools,
            nfs,
            state,
            history: History::default(),
            watch,
            started_seconds: now_seconds(),
            config: Mutex::default(),
            reloading: Mutex::default(),
            exports: Exports::default(),
            unserved: unserved::AllUnserved::default(),
            arriving: Mutex::default(),
            schedules: Mutex::default(),
            has_read_schedules: AtomicBool::new(false),
            stays: Mutex::default(),
            scrubs: Mutex::default(),
            receivers: Mutex::default(),
            notify_counts: Arc::default(),
            changing: Mutex::default(),
            moving: Mutex::default(),
            moved_now: moving::MovedNow::default(),
            keeping: Mutex::default(),
        }
    }

    /// Does what is asked of the pool of number `index`. Who calls has seen to it that `peer` may.
    pub(crate) fn control(
        &self,
        index: usize,
        request: &Request,
        peer: Peer,
    ) -> Result<Answer, BackendError> {
        let answer = self.control_one(index, request, peer);
        // What kept an export from being served may have been that.
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
        if let Some(answer) = watch::answer(&self.watch, request) {
            return answer.map_err(|cause| served.failed(cause));
        }
        match request {
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
            Request::FilesetHere { name } => {
                // Which of both pools has the fileset, the move is about to decide.
                let _alone = self.no_move(index)?;
                self.check_word(index, name)?;
                let answer = served.pool.control(request, peer)?;
                // Its fronts may have waited for this word.
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

    /// Returns what is said of the pool of number `index`: bugs of the server are part of its
    /// health.
    pub(crate) fn status_of(self: &Arc<Hub>, index: usize) -> Value {
        let mut status = Asked::about(self, index).status();
        bugs::add_to(&mut status);
        status
    }

    /// Exports what `config`, which was read from `path`, says.
    pub(crate) fn configure(&self, path: PathBuf, config: Config) -> anyhow::Result<()> {
        self.export_configured(&config.exports)?;
        let mut current = self.receivers();
        let started = Receivers::start(&config.notify, &self.notify_counts, current.as_ref())?;
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

    /// Reads the configuration again, and does what it says now. With an error all is as before.
    pub(crate) fn reload(&self) -> anyhow::Result<()> {
        // What was read later is what stays.
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

    fn receivers(&self) -> MutexGuard<'_, Option<Receivers>> {
        self.receivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever wants to know; waits for nobody.
    fn tell(&self, pool: &str, notice: &Notice) {
        if let Some(receivers) = &*self.receivers() {
            receivers.tell(pool, notice);
        }
    }

    /// Tells all receivers a test, and returns what came of it.
    fn test_receivers(&self, pool: &str) -> Vec<ToldFacts> {
        let notice = Notice::new(notices::TEST, "a test: somebody has asked for it");
        let tested = self.receivers().as_ref().map(|it| it.test(pool, &notice));
        // Whoever asks how the server is waits for none of them.
        tested.map(|it| it.wait(TEST_TIME)).unwrap_or_default()
    }

    /// Returns what was asked by each front since the server began, by operation; always in one
    /// order.
    pub(crate) fn counts(&self) -> Vec<(&'static str, OperationCounts)> {
        let nfs = self.nfs.iter().flat_map(|nfs| nfs.service.counts()).map(|it| ("nfs", it));
        let mounts = self.pools.iter().map(|served| served.mounts.operations());
        let fuse = named_once(mounts.fold(Vec::new(), sum).into_iter());
        nfs.chain(fuse.into_iter().map(|it| ("fuse", it))).collect()
    }

    /// Returns the same for people and programs: kinds of which there was none by no mount are left
    /// out.
    pub(crate) fn operations(&self) -> Vec<OperationFacts> {
        let facts = |(front, count): (&str, OperationCounts)| OperationFacts::of(front, &count);
        let is_told =
            |(front, count): &(&str, OperationCounts)| *front == "nfs" || count.answered > 0;
        self.counts().into_iter().filter(is_told).map(facts).collect()
    }

    /// Returns who asks: machines by NFS, and mounts.
    pub(crate) fn clients(&self) -> Vec<ClientFacts> {
        let mut clients = self.nfs.as_ref().map(Nfs::clients).unwrap_or_default();
        clients.extend(self.pools.iter().flat_map(|served| served.mounts.clients()));
        clients.truncate(CLIENTS_MAX);
        clients
    }

    /// Returns the jobs of a pool that have an end.
    fn jobs_of(&self, index: usize) -> Vec<JobFacts> {
        match self.pools[index].pool.control(&Request::JobList {}, Peer::own()) {
            Ok(Answer::Jobs(jobs)) => jobs,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// Returns the filesets of a pool that have a quota.
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
            // Slots rise, so this ends.
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

/// A pool of a server, for its status socket: what is asked about the server goes there.
pub(crate) struct Asked {
    hub: Arc<Hub>,
    index: usize,
}

impl Asked {
    /// Returns the pool of number `index` of a server.
    pub(crate) fn about(hub: &Arc<Hub>, index: usize) -> Arc<dyn OpenPool> {
        Arc::new(Asked { hub: Arc::clone(hub), index })
    }

    fn pool(&self) -> &dyn OpenPool {
        self.hub.pools[self.index].pool.as_ref()
    }
}

impl OpenPool for Asked {
    fn file_system(&self) -> Arc<dyn FileSystem> {
        self.pool().file_system()
    }

    fn hold_fileset(
        &self,
        name: Option<&FilesetName>,
        clone: Option<&NamePart>,
    ) -> Result<FilesetUuid, BackendError> {
        self.pool().hold_fileset(name, clone)
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
        progress: OnBytes<'_>,
    ) -> Result<Value, BackendError> {
        match request {
            Transfer::Move { .. } => self.hub.move_fileset(self.index, request, progress),
            Transfer::Diff { .. }
            | Transfer::Send { .. }
            | Transfer::Receive { .. }
            | Transfer::Import { .. }
            | Transfer::ExportTree { .. } => {
                self.pool().transfer(request, peer, file, fronts, progress)
            }
        }
    }

    fn close(&self) -> Result<(), BackendError> {
        self.pool().close()
    }
}

/// Returns how a client mounts the export `name`.
pub(crate) fn mount_line(address: SocketAddr, name: &str) -> String {
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

/// Returns counts of which no two have one name.
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

/// Returns the path of a pool as people write it.
fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests;
