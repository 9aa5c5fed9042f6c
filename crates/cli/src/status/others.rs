//! What a server answers mounters and readers.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Answer, Answering, Question, Served};
use super::{bug, closing_facts, not_understood, read_line, send, status_of};
use crate::control::{self, Peer};
use crate::mounts::{Maker, MountSpec};
use crate::places::{Place, Places};
use crate::roles::{Role, Roles};
use crate::until::Until;

/// Questions of mounters and readers that a server listens to at a time.
pub(super) const OTHERS_MAX: usize = 16;

/// Of them, those of one user.
pub(super) const OTHERS_OF_ONE_MAX: usize = 4;

/// How old the status may be that they are told: each is a walk over all that a server has.
const STATUS_TIME: Duration = Duration::from_secs(1);

/// How long such a question may take to come, from its first byte to its last.
pub(super) const OTHERS_TIME: Duration = Duration::from_secs(2);

impl Served {
    pub(super) fn role_of(&self, peer: Peer, own: Peer) -> Role {
        let roles = self.roles.as_ref();
        roles.map_or_else(|| Roles::default().of(peer, own), |roles| roles.of(peer, own))
    }
}

/// What is known of those who ask.
#[derive(Debug)]
pub(super) struct Others {
    places: Places,
    /// Places of each user who has any.
    of: Arc<Mutex<BTreeMap<u32, usize>>>,
    /// The status, as it was told last.
    told: Mutex<Option<(Instant, Value)>>,
}

impl Default for Others {
    fn default() -> Others {
        Others { places: Places::new(OTHERS_MAX), of: Arc::default(), told: Mutex::default() }
    }
}

/// A place of one user.
pub(super) struct PlaceOf {
    of: Arc<Mutex<BTreeMap<u32, usize>>>,
    uid: u32,
    _place: Place,
}

impl Drop for PlaceOf {
    fn drop(&mut self) {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let left = of.get(&self.uid).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => drop(of.remove(&self.uid)),
            left => drop(of.insert(self.uid, left)),
        }
    }
}

impl Others {
    /// Takes a place for `uid`. `None`: he has as many as one may have, or all are taken.
    pub(super) fn take(&self, uid: u32) -> Option<PlaceOf> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        let count = of.get(&uid).copied().unwrap_or(0);
        if count >= OTHERS_OF_ONE_MAX {
            return None;
        }
        let place = self.places.take()?;
        of.insert(uid, count + 1);
        Some(PlaceOf { of: Arc::clone(&self.of), uid, _place: place })
    }

    /// Returns the status, which is asked for once in [`STATUS_TIME`], however many ask.
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

impl Answering {
    /// RO1: answers one who is no administrator, in a thread of his own.
    pub(super) fn serve_other(
        self: &Arc<Answering>,
        stream: &UnixStream,
        (peer, own): (Peer, Peer),
    ) -> anyhow::Result<()> {
        let role = match self.served.role_of(peer, own) {
            // RO4.
            Role::Administrator => {
                let words = "administrators ask by the other socket (without .users)";
                return send(stream, &Answer::Error(words.to_owned()));
            }
            role @ Role::Nobody => {
                return send(stream, &Answer::Error(role.refusal(peer, Some(own))));
            }
            role @ (Role::Mounter(_) | Role::Reader) => role,
        };
        let Some(place) = self.others.take(peer.uid) else {
            let words = format!(
                "{OTHERS_MAX} others ask already, or {OTHERS_OF_ONE_MAX} programs of user {}: try \
                 again in a moment",
                peer.uid
            );
            return send(stream, &Answer::Error(words));
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

/// Answers a mounter or a reader: what he may ask for, or why it is refused.
fn answer_other(
    stream: &UnixStream,
    answering: &Answering,
    role: &Role,
    (peer, own): (Peer, Peer),
) -> anyhow::Result<()> {
    let Answering { served, pool, others, .. } = answering;
    let line = read_line(&mut Until::new(stream, OTHERS_TIME), control::LINE_BYTES_MAX)?;
    let question = match serde_json::from_slice(&line) {
        Ok(question) => question,
        Err(error) => return send(stream, &Answer::Error(not_understood(&error))),
    };
    let is_over = served.mounts.is_over();
    let answer = match question {
        Question::Status if is_over => {
            Answer::Status(role.told(&closing_facts(served), Vec::new()))
        }
        Question::Status => {
            let own = match role {
                Role::Mounter(_) => served.mounts.facts_of(peer.uid),
                Role::Administrator | Role::Reader | Role::Nobody => Vec::new(),
            };
            let status = others.status(|| status_of(served, pool.as_ref()));
            Answer::Status(role.told(&status, own))
        }
        Question::Mount { .. } if is_over => Answer::Closing,
        Question::Mount { version, request } if matches!(role, Role::Mounter(_)) => {
            let begun = control::parse_as(version, request).and_then(|spec: MountSpec| {
                let directory = PathBuf::from(OsString::from_vec(spec.directory.clone()));
                // What is too long is not logged either.
                spec.check_lengths()?;
                role.check_mount(&spec, &directory, peer).inspect_err(|words| {
                    served.mounts.audit(&spec, Maker::Mounter(peer), Some(words.clone()));
                })?;
                let begun = served.mounts.begin(stream, spec, Maker::Mounter(peer));
                begun.map_err(|error| format!("{error:#}"))
            });
            match begun {
                // The rest is said by the mount's own thread.
                Ok(()) => return Ok(()),
                Err(words) => Answer::Error(words),
            }
        }
        Question::Mount { .. }
        | Question::Remount { .. }
        | Question::Explain { .. }
        | Question::Control { .. }
        | Question::Transfer { .. } => Answer::Error(role.refusal(peer, Some(own))),
    };
    send(stream, &answer)
}
