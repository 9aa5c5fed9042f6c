//! Statistics of mounts: clients, operations, and requests by path.

use crate::facts;
use crate::facts::operation_facts;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use engine::api::{FILE_BYTES_MAX, Timestamp};
use front::counts::OperationCounts;
use front::fuse::MountedSession;
use front::locks::{Lock, LockFacts, LockInterface, LockMode};
use front::watch::{AccessPoint, Watch, paths_of};

use super::{ActiveMount, PoolMounts};
use crate::backend::BackendError;
use crate::uses::FilesetUseGuard;
use control::{Answer, ClientFacts, LIST_MAX, LocksFacts, Request};

impl PoolMounts {
    /// Sets the observers for later mounts. Only the first call has an effect.
    pub(crate) fn watched_by(&self, watch: &Arc<Watch>) {
        // The first call suffices, because a pool has one server.
        let _ = self.watch.set(Arc::clone(watch));
    }

    /// Makes [`PoolMounts::control`] answer statistics requests, because no network server runs
    /// beside the mounts.
    pub fn answer_alone(&self) {
        self.answers_alone.store(true, Ordering::Relaxed);
    }

    /// Answers a request about statistics if no network server runs beside the mounts. `None` if
    /// the caller must pass the request to the pool.
    #[allow(clippy::wildcard_enum_match_arm, reason = "what is not of mounts is the pool's")]
    pub(crate) fn control(&self, request: &Request) -> Option<Result<Answer, BackendError>> {
        if !self.answers_alone.load(Ordering::Relaxed) {
            return None;
        }
        let failed = |cause| BackendError::Failed { device: self.path.clone(), cause };
        match request {
            Request::ClientList {} => Some(Ok(Answer::Clients(self.clients()))),
            Request::LockList {} => Some(Ok(Answer::Locks(self.locks()))),
            Request::OperationList {} => {
                let counts = self.operations().into_iter().filter(|it| it.answered > 0);
                let facts = counts.map(|count| operation_facts("fuse", &count)).collect();
                Some(Ok(Answer::Operations(facts)))
            }
            other => {
                let watch = self.watch.get_or_init(Arc::default);
                facts::answer(watch, other).map(|answer| answer.map_err(failed))
            }
        }
    }

    pub(super) fn count(&self, session: &MountedSession, claim: &FilesetUseGuard) {
        let fs = claim.file_system();
        if let Ok(root) = fs.root_of(claim.fileset()) {
            let directory = session.directory().display().to_string();
            let place = AccessPoint::new("fuse", directory, &fs, root);
            session.counts().watched_by(self.watch.get_or_init(Arc::default), place, root);
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.add(session.counts());
    }

    /// Returns the locks of all mounts.
    pub(crate) fn locks(&self) -> LocksFacts {
        let mut found: Vec<(Arc<AccessPoint>, LockFacts)> = Vec::new();
        for mounted in &self.lock().mounted {
            let locks = mounted.session.locks();
            let fs = mounted.claim.file_system();
            let Ok(root) = fs.root_of(mounted.claim.fileset()) else { continue };
            let directory = mounted.session.directory().display().to_string();
            let place = Arc::new(AccessPoint::new("fuse", directory, &fs, root));
            found.extend(locks.into_iter().map(|facts| (Arc::clone(&place), facts)));
        }
        let waiting = found.iter().filter(|(_, facts)| facts.is_waiting).count();
        let held = found.len() - waiting;
        found.sort_by_key(|(_, facts)| (!facts.is_waiting, facts.since));
        found.truncate(LIST_MAX);
        // Without the list of mounts locked, as the search takes time.
        let files: Vec<_> = found.iter().map(|(at, it)| (Arc::clone(at), it.file.ino)).collect();
        let list = found.iter().zip(paths_of(&files)).map(|((place, facts), path)| {
            let Lock { interface, mode, range, pid, .. } = facts.lock;
            control::LockFacts {
                front: place.front.to_owned(),
                client: place.name.clone(),
                pid,
                interface: match interface {
                    LockInterface::Fcntl => "fcntl".to_owned(),
                    LockInterface::Flock => "flock".to_owned(),
                },
                is_exclusive: mode == LockMode::Exclusive,
                first_byte: range.first,
                last_byte: Some(range.last).filter(|last| *last < FILE_BYTES_MAX),
                path,
                inode: facts.file.ino.in_slot(0).0,
                is_waiting: facts.is_waiting,
                since_ms: milliseconds(facts.since),
            }
        });
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        LocksFacts { list: list.collect(), held: count(held), waiting: count(waiting) }
    }

    pub(crate) fn operations(&self) -> Vec<OperationCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).get()
    }

    pub(crate) fn clients(&self) -> Vec<ClientFacts> {
        let facts = |mounted: &ActiveMount| {
            let counts = mounted.session.counts().get();
            ClientFacts {
                front: "fuse".to_owned(),
                address: mounted.session.directory().display().to_string(),
                since: mounted.number,
                connections: 1,
                requests: counts.iter().map(|count| count.answered).sum(),
                received_bytes: 0,
                sent_bytes: 0,
                in_flight: 0,
            }
        };
        self.lock().mounted.iter().map(facts).collect()
    }
}

fn milliseconds(time: Timestamp) -> u64 {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::from(time.nanoseconds) / 1_000_000)
}
