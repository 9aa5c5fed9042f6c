//! What is told of what mounts are asked.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use front::counts::OperationCounts;
use front::fuse::MountedSession;
use front::watch::{Place, Watch};

use super::{Mounted, Mounts};
use crate::backend::BackendError;
use crate::control::{Answer, ClientFacts, OperationFacts, Request, watch};
use crate::uses::Claim;

impl Mounts {
    /// From now on `watch` sees what is asked of mounts that come. The first that is set stays.
    pub(crate) fn watched_by(&self, watch: &Arc<Watch>) {
        // A pool is in one server.
        let _ = self.watch.set(Arc::clone(watch));
    }

    /// From now on this tells who asks what: there is no server beside the mounts.
    pub(crate) fn answer_alone(&self) {
        self.answers_alone.store(true, Ordering::Relaxed);
    }

    /// Answers what a server would, where there is none beside the mounts; `None`: the pool is to
    /// answer.
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
                let facts = counts.map(|count| OperationFacts::of("fuse", &count)).collect();
                Some(Ok(Answer::Operations(facts)))
            }
            other => {
                let watch = self.watch.get_or_init(Arc::default);
                watch::answer(watch, other).map(|answer| answer.map_err(failed))
            }
        }
    }

    /// From now on what is asked of a mount is counted, and seen.
    pub(super) fn count(&self, session: &MountedSession, claim: &Claim) {
        let fs = claim.file_system();
        if let Ok(root) = fs.root_of(claim.fileset()) {
            let directory = session.directory().display().to_string();
            let place = Place::new("fuse", directory, &fs, root);
            session.counts().watched_by(self.watch.get_or_init(Arc::default), place, root);
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.add(session.counts());
    }

    /// Returns what all mounts were asked since the server began, by operation: those too that have
    /// ended.
    pub(crate) fn operations(&self) -> Vec<OperationCounts> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).get()
    }

    /// Returns each mount, and how many messages of it were answered.
    pub(crate) fn clients(&self) -> Vec<ClientFacts> {
        let facts = |mounted: &Mounted| {
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
