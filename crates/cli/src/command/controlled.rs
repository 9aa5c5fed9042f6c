//! A pool that commands ask for something beside its files: through its server, or opened for the
//! command where nobody serves it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::args::members::MemberPaths;
use crate::backend::{Backend, Discards, Lent, OpenOptions, OpenPool, Placement};
use crate::control::{
    self, Answer, ExportFacts, FilesetFacts, GroupFacts, JobFacts, Peer, Request,
};
use crate::exit::UsageError;
use crate::named::Named;
use crate::status::{self, Found, Question};
use crate::transfer::{OnBytes, Transfer};
use serde_json::Value;

/// Memory for pages of a pool that is opened for a command.
const CACHE_BYTES: u64 = 64 << 20;
/// As `mount` has them by default.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
const DEVICE_DEADLINE: Duration = Duration::from_secs(30);

/// What opens the pools that a command names, where nobody serves them.
#[derive(Clone, Copy)]
pub(crate) struct Opener<'a> {
    /// Opens them.
    pub(crate) backend: &'a dyn Backend,
    /// Where members are.
    pub(crate) members: &'a MemberPaths,
}

impl<'a> Opener<'a> {
    /// Returns that of a pool of which no members are named.
    pub(crate) fn plain(backend: &'a dyn Backend) -> Opener<'a> {
        Opener { backend, members: MemberPaths::NONE }
    }
}

/// Who answers for a pool.
enum Way {
    /// The server that listens there.
    Server(PathBuf),
    /// The pool itself.
    Opened(Arc<dyn OpenPool>),
}

/// Returns the server of the pool at `path`, or of what is mounted exactly there: a pool's file may
/// lie in another mount, and a directory in a mount is no fileset.
fn served(path: &Path) -> anyhow::Result<Option<Found>> {
    let socket = status::socket_to(path)?;
    let is_meant =
        |found: &Found| found.is_called(&socket) || found.is_on(path) || found.has_member(path);
    Ok(status::find(path)?.filter(is_meant))
}

/// A pool that answers.
pub(crate) struct Controlled {
    way: Way,
    /// The pool's path.
    pub(crate) pool: PathBuf,
    /// The fileset that the user named, by its name or by the directory it is mounted on.
    pub(crate) fileset: Option<String>,
    /// The clone of it that the user named.
    pub(crate) clone: Option<String>,
}

impl Controlled {
    /// Finds who answers for what `argument` names. A pool that nobody serves is opened to be
    /// changed, or only to be looked at.
    pub(crate) fn find(
        argument: &Path,
        opener: Opener<'_>,
        is_change: bool,
    ) -> anyhow::Result<Controlled> {
        Controlled::find_serving(argument, opener, (is_change, false))
    }

    /// As [`Controlled::find`], to change the fileset whose clone `argument` names: what the pool
    /// is opened with is the clone, so that nobody has the fileset.
    pub(crate) fn find_beside(argument: &Path, opener: Opener<'_>) -> anyhow::Result<Controlled> {
        Controlled::find_serving(argument, opener, (true, true))
    }

    fn find_serving(
        argument: &Path,
        opener: Opener<'_>,
        (is_change, is_clone_served): (bool, bool),
    ) -> anyhow::Result<Controlled> {
        let shown = argument.display();
        let named = Named::of(argument)?;
        let device = named.device()?;
        let served_clone = named.clone.clone().filter(|_| is_clone_served);
        let served_fileset = named.fileset.clone().filter(|_| served_clone.is_some());
        let clone = named.clone.map(|name| name.as_str().to_owned());
        let fileset = named.fileset.map(|name| name.to_string());
        if let Some(found) = served(&device)? {
            let advice = found.advice();
            anyhow::ensure!(advice.is_empty(), "{shown}: {advice}");
            if let Some(pool) = found.moved_to(&device) {
                // The name is of that pool; here another fileset may have it.
                anyhow::bail!(
                    "{shown}: the fileset that is mounted there has moved to the pool {pool}: \
                     name it as {pool}:FILESET (`holdfast fileset list {pool}` has them)"
                );
            }
            let mounts = found.mounts();
            let mounted = mounts.iter().find(|(directory, _)| *directory == device);
            let mounted = mounted.and_then(|(_, fileset)| *fileset);
            let fileset = fileset.or_else(|| mounted.map(str::to_owned));
            let pool = PathBuf::from(found.pool());
            let way = Way::Server(found.socket);
            return Ok(Controlled { way, pool, fileset, clone });
        }
        anyhow::ensure!(
            !device.is_dir(),
            "{}: no pool of yours is mounted there: `holdfast status` lists those that are",
            named.pool.display()
        );
        let options = OpenOptions {
            device: device.clone(),
            members: opener.members.hints(),
            is_read_only: !is_change,
            may_replay: true,
            has_no_atime: true,
            cache_bytes: CACHE_BYTES,
            placement: Placement::Log,
            commit_interval: COMMIT_INTERVAL,
            device_deadline: DEVICE_DEADLINE,
            discards: Discards::Off,
            is_forced: false,
            fileset: served_fileset,
            clone: served_clone,
        };
        let way = Way::Opened(opener.backend.open(&options)?);
        Ok(Controlled { way, pool: device, fileset, clone })
    }

    /// Whether a server answers.
    pub(crate) fn is_served(&self) -> bool {
        matches!(self.way, Way::Server(_))
    }

    /// Returns the fileset that `argument` named.
    pub(crate) fn named(&self, argument: &Path) -> anyhow::Result<String> {
        if self.clone.is_some() {
            let message =
                format!("{}: a clone is no fileset: name it without @", argument.display());
            return Err(UsageError::new(message).into());
        }
        self.fileset.clone().ok_or_else(|| {
            let message = format!("{}: name a fileset as POOL:a/b", argument.display());
            UsageError::new(message).into()
        })
    }

    /// Returns the fileset and the clone of it that `argument` named.
    pub(crate) fn named_clone(&self, argument: &Path) -> anyhow::Result<(String, String)> {
        let both = self.fileset.clone().zip(self.clone.clone());
        both.ok_or_else(|| {
            let message = format!("{}: name a clone as POOL:a/b@monday", argument.display());
            UsageError::new(message).into()
        })
    }

    /// Returns `name`, if it is that of one of the filesets in `all`.
    pub(crate) fn known(&self, name: &str, all: &[FilesetFacts]) -> anyhow::Result<String> {
        let pool = self.pool.display();
        anyhow::ensure!(
            all.iter().any(|it| it.name == name),
            "{pool}: there is no fileset {name}: `holdfast fileset list {pool}` shows those that \
             are there"
        );
        Ok(name.to_owned())
    }

    /// Asks for something.
    pub(crate) fn ask(&self, request: &Request) -> anyhow::Result<Answer> {
        let socket = match &self.way {
            Way::Opened(pool) => return Ok(pool.control(request, Peer::own())?),
            Way::Server(socket) => socket,
        };
        let question = Question::Control {
            version: control::VERSION,
            request: serde_json::to_value(request)?,
        };
        match status::ask(socket, &question)? {
            status::Answer::Control(answer) => Ok(answer),
            status::Answer::Error(error) => Err(anyhow::Error::msg(error)),
            status::Answer::Closing => Err(anyhow::Error::msg(status::CLOSING)),
            status::Answer::Status(_)
            | status::Answer::Explain(_)
            | status::Answer::Ready
            | status::Answer::Progress { .. }
            | status::Answer::Mounted(_)
            | status::Answer::Transferred(_) => {
                anyhow::bail!("{}: the server answered nonsense", self.pool.display())
            }
        }
    }

    /// Lends the pool to a move; `None`: a server has it.
    pub(crate) fn lend(&self) -> Option<Lent<'_>> {
        match &self.way {
            Way::Opened(pool) => pool.lend(),
            Way::Server(_) => None,
        }
    }

    /// Asks for something that moves more than an answer, through `file`.
    pub(crate) fn transfer(
        &self,
        request: &Transfer,
        mut file: File,
        progress: OnBytes<'_>,
    ) -> anyhow::Result<Value> {
        match &self.way {
            Way::Opened(pool) => {
                Ok(pool.transfer(request, Peer::own(), &mut file, None, progress)?)
            }
            Way::Server(socket) => status::transfer(socket, request, file, progress),
        }
    }

    /// Returns all filesets, by name.
    pub(crate) fn filesets(&self) -> anyhow::Result<Vec<FilesetFacts>> {
        let (mut all, mut from) = (Vec::new(), Some(0));
        while let Some(slot) = from {
            let Answer::Filesets { list, next } = self.ask(&Request::FilesetList { from: slot })?
            else {
                anyhow::bail!("{}: the server answered nonsense", self.pool.display())
            };
            all.extend(list);
            // Slots rise, so this ends.
            from = next.filter(|&next| next > slot);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Returns the jobs that have an end.
    pub(crate) fn jobs(&self) -> anyhow::Result<Vec<JobFacts>> {
        let Answer::Jobs(jobs) = self.ask(&Request::JobList {})? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(jobs)
    }

    /// Returns the disk groups of the pool.
    pub(crate) fn groups(&self) -> anyhow::Result<Vec<GroupFacts>> {
        let Answer::Groups(groups) = self.ask(&Request::GroupList {})? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(groups)
    }

    /// Asks for a change of which names are told.
    pub(crate) fn ask_names(&self, request: &Request) -> anyhow::Result<Vec<String>> {
        let Answer::Names(names) = self.ask(request)? else {
            anyhow::bail!("{}: the server answered nonsense", self.pool.display())
        };
        Ok(names)
    }

    /// Returns what the server exports of the pool, by name.
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

    /// Refuses what only a server can do where there is none.
    pub(crate) fn need_server(self, what: &str) -> anyhow::Result<Controlled> {
        if self.is_served() {
            return Ok(self);
        }
        let pool = self.pool.display().to_string();
        self.finish(Ok(()))?;
        anyhow::bail!("{pool}: {what}, and none serves this pool: start `holdfast serve {pool}`")
    }

    /// Lets go of the pool, and says how `done` what was asked came out.
    pub(crate) fn finish<T>(self, done: anyhow::Result<T>) -> anyhow::Result<T> {
        let closed = match self.way {
            Way::Opened(pool) => pool.close(),
            Way::Server(_) => Ok(()),
        };
        let done = done?;
        closed?;
        Ok(done)
    }
}
