//! Statistics of mounts: clients, operations, and requests by path.

use crate::facts;
use crate::facts::operation_facts;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use front::counts::OperationCounts;
use front::fuse::MountedSession;
use front::watch::{AccessPoint, Watch};

use super::{ActiveMount, PoolMounts};
use crate::backend::BackendError;
use crate::uses::FilesetUseGuard;
use control::{Answer, ClientFacts, Request};

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
