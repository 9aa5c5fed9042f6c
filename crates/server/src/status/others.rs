//! Requests of mounters and readers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    ServerContext, StatusService, bug, closing_facts, not_understood, read_line, send, status_of,
};
use crate::mounts::{MountCreator, MountSpec};
use crate::peer::Peer;
use crate::places::{ConcurrencyLimit, ConcurrencyPermit};
use crate::roles::{PeerRole, PoolGrants};
use crate::until::DeadlineReader;
use control;
use control::wire::{WireAnswer, WireRequest};

pub(super) const OTHERS_MAX: usize = 16;

pub(super) const OTHERS_OF_ONE_MAX: usize = 4;

/// Time for which a computed status is reused, because each computation walks all of the server's
/// state.
const STATUS_TIME: Duration = Duration::from_secs(1);

pub(super) const OTHERS_TIME: Duration = Duration::from_secs(2);

impl ServerContext {
    pub(super) fn role_of(&self, peer: Peer, own: Peer) -> PeerRole {
        let roles = self.roles.as_ref();
        roles.map_or_else(|| PoolGrants::default().of(peer, own), |roles| roles.of(peer, own))
    }
}

#[derive(Debug)]
pub(super) struct UserRequestLimiter {
    places: ConcurrencyLimit,
    of: Arc<Mutex<BTreeMap<u32, usize>>>,
    told: Mutex<Option<(Instant, Value)>>,
}

impl Default for UserRequestLimiter {
    fn default() -> UserRequestLimiter {
        UserRequestLimiter {
            places: ConcurrencyLimit::new(OTHERS_MAX),
            of: Arc::default(),
            told: Mutex::default(),
        }
    }
}

pub(super) struct UserRequestPermit {
    of: Arc<Mutex<BTreeMap<u32, usize>>>,
    uid: u32,
    _place: ConcurrencyPermit,
}

impl Drop for UserRequestPermit {
    fn drop(&mut self) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let left = of.get(&self.uid).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => drop(of.remove(&self.uid)),
            left => drop(of.insert(self.uid, left)),
        }
    }
}

impl UserRequestLimiter {
    pub(super) fn take(&self, uid: u32) -> Option<UserRequestPermit> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let count = of.get(&uid).copied().unwrap_or(0);
        if count >= OTHERS_OF_ONE_MAX {
            return None;
        }
        let place = self.places.take()?;
        of.insert(uid, count + 1);
        Some(UserRequestPermit { of: Arc::clone(&self.of), uid, _place: place })
    }

    fn status(&self, make: impl FnOnce() -> Value) -> Value {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match &*told {
            Some((since, status)) if since.elapsed() < STATUS_TIME => status.clone(),
            _ => {
                let status = make();
                *told = Some((Instant::now(), status.clone()));
                status
            }
        }
    }
}

impl StatusService {
    /// Handles a client on the users' socket, in a thread of its own (RO1).
    pub(super) fn serve_other(
        self: &Arc<StatusService>,
        stream: &UnixStream,
        (peer, own): (Peer, Peer),
    ) -> anyhow::Result<()> {
        let role = match self.served.role_of(peer, own) {
            // RO4: this socket grants no administrator's rights.
            PeerRole::Administrator => {
                let words = "administrators ask by the other socket (without .users)";
                return send(stream, &WireAnswer::Error(words.to_owned()));
            }
            role @ PeerRole::Nobody => {
                return send(stream, &WireAnswer::Error(role.refusal(peer, Some(own))));
            }
            role @ (PeerRole::Mounter(_) | PeerRole::Reader) => role,
        };
        let Some(place) = self.others.take(peer.uid) else {
            let words = format!(
                "{OTHERS_MAX} others ask already, or {OTHERS_OF_ONE_MAX} programs of user {}: try \
                 again in a moment",
                peer.uid
            );
            return send(stream, &WireAnswer::Error(words));
        };
        let answering = Arc::clone(self);
        let stream = stream.try_clone()?;
        std::thread::Builder::new().name("others".to_owned()).spawn(move || {
            let _place = place;
            let done = catch_unwind(AssertUnwindSafe(|| {
                answer_other(&stream, &answering, &role, (peer, own))
            }));
            let done = done.unwrap_or_else(|_| send(&stream, &bug()));
            if let Err(error) = done {
                tracing::debug!(%error, uid = peer.uid, "a client was dropped");
            }
        })?;
        Ok(())
    }
}

fn answer_other(
    stream: &UnixStream,
    answering: &StatusService,
    role: &PeerRole,
    (peer, own): (Peer, Peer),
) -> anyhow::Result<()> {
    let StatusService { served, pool, others, .. } = answering;
    let line = read_line(&mut DeadlineReader::new(stream, OTHERS_TIME), control::LINE_BYTES_MAX)?;
    let question = match serde_json::from_slice(&line) {
        Ok(question) => question,
        Err(error) => return send(stream, &WireAnswer::Error(not_understood(&error))),
    };
    let is_over = served.mounts.is_over();
    let answer = match question {
        WireRequest::Status if is_over => {
            WireAnswer::Status(role.told(&closing_facts(served), Vec::new()))
        }
        WireRequest::Status => {
            let own = match role {
                PeerRole::Mounter(_) => served.mounts.facts_of(peer.uid),
                PeerRole::Administrator | PeerRole::Reader | PeerRole::Nobody => Vec::new(),
            };
            let status = others.status(|| status_of(served, pool.as_ref()));
            WireAnswer::Status(role.told(&status, own))
        }
        WireRequest::Mount { .. } if is_over => WireAnswer::Closing,
        WireRequest::Mount { version, request } if matches!(role, PeerRole::Mounter(_)) => {
            let begun = control::parse_as(version, request).and_then(|spec: MountSpec| {
                let directory = PathBuf::from(OsString::from_vec(spec.directory.clone()));
                // Checked before the audit, so that oversized text is not logged.
                spec.check_lengths()?;
                role.check_mount(&spec, &directory, peer).inspect_err(|words| {
                    served.mounts.audit(&spec, MountCreator::Mounter(peer), Some(words.clone()));
                })?;
                let begun = served.mounts.begin(stream, spec, MountCreator::Mounter(peer));
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                Ok(()) => return Ok(()),
                Err(words) => WireAnswer::Error(words),
            }
        }
        WireRequest::Mount { .. }
        | WireRequest::Remount { .. }
        | WireRequest::Explain { .. }
        | WireRequest::Control { .. }
        | WireRequest::Transfer { .. } => WireAnswer::Error(role.refusal(peer, Some(own))),
    };
    send(stream, &answer)
}
