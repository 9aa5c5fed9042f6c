//! A pool on which a command acts: through the pool's server or, without one, opened by the
//! command.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::args::members::MemberPaths;
use control::wire::{WireAnswer, WireRequest};
use control::{
    self, Answer, ExportFacts, FilesetFacts, GroupFacts, JobFacts, Request, Transfer, UsageError,
};
use serde_json::Value;
use server::backend::{
    Backend, BackendOpenOptions, DiscardMode, OpenPool, PlacementPolicyKind, PoolLease,
};
use server::named::PoolArgument;
use server::peer::Peer;
use server::pool_names;
use server::status::{self, DiscoveredServer};
use server::transfer::OnTransfer;

const CACHE_BYTES: u64 = 64 << 20;
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
const DEVICE_DEADLINE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy)]
pub(crate) struct Opener<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) members: &'a MemberPaths,
}

impl<'a> Opener<'a> {
    pub(crate) fn plain(backend: &'a dyn Backend) -> Opener<'a> {
        Opener { backend, members: MemberPaths::NONE }
    }
}

enum PoolControlRoute {
    Server(PathBuf),
    Opened(Arc<dyn OpenPool>),
}

pub(crate) struct ControlledPool {
    way: PoolControlRoute,
    pub(crate) pool: PathBuf,
    /// The pool's id, if a server has told it.
    pub(crate) id: Option<String>,
    pub(crate) fileset: Option<String>,
    pub(crate) snapshot: Option<String>,
}

impl ControlledPool {
    /// Finds the server of the pool in `argument`. Without one, opens the pool, for writing if
    /// `is_change`.
    pub(crate) fn find(
        argument: &Path,
        opener: Opener<'_>,
        is_change: bool,
    ) -> anyhow::Result<ControlledPool> {
        ControlledPool::find_serving(argument, opener, (is_change, false))
    }

    /// Finds a pool to change the fileset of the snapshot in `argument`. If the pool must be
    /// opened, it is opened with the snapshot, so that the fileset is not in use.
    pub(crate) fn find_beside(
        argument: &Path,
        opener: Opener<'_>,
    ) -> anyhow::Result<ControlledPool> {
        ControlledPool::find_serving(argument, opener, (true, true))
    }

    fn find_serving(
        argument: &Path,
        opener: Opener<'_>,
        (is_change, is_snapshot_served): (bool, bool),
    ) -> anyhow::Result<ControlledPool> {
        let shown = argument.display();
        let named = PoolArgument::of(argument)?;
        let device = named.device()?;
        let served_snapshot = named.snapshot.clone().filter(|_| is_snapshot_served);
        let served_fileset = named.fileset.clone().filter(|_| served_snapshot.is_some());
        let snapshot = named.snapshot.map(|name| name.as_str().to_owned());
        let fileset = named.fileset.map(|name| name.to_string());
        // A path inside a mount means no pool.
        if let Some(found) = pool_names::server_at(&device, opener.backend)? {
            let advice = found.advice();
            anyhow::ensure!(advice.is_empty(), "{shown}: {advice}");
            if let Some(pool) = found.moved_to(&device) {
                // In the pool of this server, the name may belong to another fileset.
                anyhow::bail!(
                    "{shown}: the fileset that is mounted there has moved to the pool {pool}: \
                     name it as {pool}:FILESET (`holdfast fileset list {pool}` has them)"
                );
            }
            let mounts = found.mounts();
            let mounted = mounts.iter().find(|(directory, _)| *directory == device);
            let mounted = mounted.and_then(|(_, fileset)| *fileset);
            let fileset = fileset.or_else(|| mounted.map(str::to_owned));
            let at = ControlledPool::of(found);
            return Ok(ControlledPool { fileset, snapshot, ..at });
        }
        anyhow::ensure!(
            !device.is_dir(),
            "{}: no pool of yours is mounted there: `holdfast status` lists those that are",
            named.pool.display()
        );
        let options = BackendOpenOptions {
            device: device.clone(),
            members: opener.members.hints(),
            is_read_only: !is_change,
            may_replay: true,
            has_no_atime: true,
            cache_bytes: CACHE_BYTES,
            placement: PlacementPolicyKind::Log,
            commit_interval: COMMIT_INTERVAL,
            device_deadline: DEVICE_DEADLINE,
            discards: DiscardMode::Off,
            is_forced: false,
            fileset: served_fileset,
            snapshot: served_snapshot,
        };
        let way = PoolControlRoute::Opened(opener.backend.open(&options)?);
        Ok(ControlledPool { way, pool: device, id: None, fileset, snapshot })
    }

    /// Returns the pool of a server.
    pub(crate) fn of(found: DiscoveredServer) -> ControlledPool {
        let pool = PathBuf::from(found.pool());
        let id = Some(found.pool_id().to_owned()).filter(|id| !id.is_empty());
        let way = PoolControlRoute::Server(found.socket);
        ControlledPool { way, pool, id, fileset: None, snapshot: None }
    }

    pub(crate) fn is_served(&self) -> bool {
        matches!(self.way, PoolControlRoute::Server(_))
    }

    pub(crate) fn named(&self, argument: &Path) -> anyhow::Result<String> {
        if self.snapshot.is_some() {
            let message =
                format!("{}: a snapshot is no fileset: name it without @", argument.display());
            return Err(UsageError::new(message).into());
        }
        self.fileset.clone().ok_or_else(|| {
            let message = format!("{}: name a fileset as POOL:a/b", argument.display());
            UsageError::new(message).into()
        })
    }

    pub(crate) fn named_snapshot(&self, argument: &Path) -> anyhow::Result<(String, String)> {
        let both = self.fileset.clone().zip(self.snapshot.clone());
        both.ok_or_else(|| {
            let message = format!("{}: name a snapshot as POOL:a/b@monday", argument.display());
            UsageError::new(message).into()
        })
    }

    /// Returns `name`. Fails if no fileset in `all` has it.
    pub(crate) fn known(&self, name: &str, all: &[FilesetFacts]) -> anyhow::Result<String> {
        let pool = self.pool.display();
        anyhow::ensure!(
            all.iter().any(|it| it.name == name),
            "{pool}: there is no fileset {name}: `holdfast fileset list {pool}` shows those that \
             are there"
        );
        Ok(name.to_owned())
    }

    pub(crate) fn ask(&self, request: &Request) -> anyhow::Result<Answer> {
        let socket = match &self.way {
            PoolControlRoute::Opened(pool) => return Ok(pool.control(request, Peer::own())?),
            PoolControlRoute::Server(socket) => socket,
        };
        let question = WireRequest::Control {
            version: control::VERSION,
            request: serde_json::to_value(request)?,
        };
        match status::ask(socket, &question)? {
            WireAnswer::Control(answer) => Ok(answer),
            WireAnswer::Error(error) => Err(anyhow::Error::msg(error)),
            WireAnswer::Closing => Err(anyhow::Error::msg(status::CLOSING)),
            WireAnswer::Status(_)
            | WireAnswer::Explain(_)
            | WireAnswer::Ready
            | WireAnswer::Progress { .. }
            | WireAnswer::Mounted(_)
            | WireAnswer::Transferred(_) => {
                anyhow::bail!("{}: the server answered nonsense", self.pool.display())
            }
        }
    }

    pub(crate) fn lend(&self) -> Option<PoolLease<'_>> {
        match &self.way {
            PoolControlRoute::Opened(pool) => pool.lend(),
            PoolControlRoute::Server(_) => None,
        }
    }

    pub(crate) fn transfer(
        &self,
        request: &Transfer,
        mut file: File,
        progress: OnTransfer<'_>,
    ) -> anyhow::Result<Value> {
        match &self.way {
            PoolControlRoute::Opened(pool) => {
                Ok(pool.transfer(request, Peer::own(), &mut file, None, progress)?)
            }
            PoolControlRoute::Server(socket) => status::transfer(socket, request, file, progress),
        }
    }

    pub(crate) fn filesets(&self) -> anyhow::Result<Vec<FilesetFacts>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let Answer::Filesets { list, next } = self.ask(&Request::FilesetList { from: slot })?
            else {
                anyhow::bail!("{}: the server answered nonsense", self.pool.display())
            };
            all.extend(list);
            from = next.filter(|&next| next > slot);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    pub(crate) fn jobs(&self) -> anyhow::Result<Vec<JobFacts>> {
        let Answer::Jobs(jobs) = self.ask(&Request::JobList {})? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(jobs)
    }

    pub(crate) fn groups(&self) -> anyhow::Result<Vec<GroupFacts>> {
        let Answer::Groups(groups) = self.ask(&Request::GroupList {})? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(groups)
    }

    pub(crate) fn ask_names(&self, request: &Request) -> anyhow::Result<Vec<String>> {
        let Answer::Names(names) = self.ask(request)? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(names)
    }

    pub(crate) fn exports(&self) -> anyhow::Result<Vec<ExportFacts>> {
        let mut all: Vec<ExportFacts> = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |last| last.export.name.clone());
            let Answer::Exports { list, has_more } = self.ask(&Request::ExportList { after })?
            else {
                anyhow::bail!("{}: the server answered nonsense", self.pool.display())
            };
            let has_more = has_more && !list.is_empty();
            all.extend(list);
            if !has_more {
                return Ok(all);
            }
        }
    }

    pub(crate) fn need_server(self, what: &str) -> anyhow::Result<ControlledPool> {
        if self.is_served() {
            return Ok(self);
        }
        let pool = self.pool.display().to_string();
        self.finish(Ok(()))?;
        anyhow::bail!(
            "{pool}: {what}, and none serves this pool: start `holdfast serve {pool} --nfs \
             ADDRESS:PORT`"
        )
    }

    /// Closes the pool if it was opened here. Returns `done`, or else the error of the close.
    pub(crate) fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let closed = match self.way {
            PoolControlRoute::Opened(pool) => pool.close(),
            PoolControlRoute::Server(_) => Ok(()),
        };
        let done = done?;
        closed?;
        Ok(done)
    }
}
