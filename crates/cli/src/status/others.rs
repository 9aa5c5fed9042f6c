//! What a server answers mounters and readers.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Answer, Answering, Question, Served, bug, not_understood, send, status_of};
use crate::backend::OpenPool;
use crate::control::{self, Peer};
use crate::mounts::{self, Maker, MountSpec};
use crate::roles::{Role, Roles};

/// Questions of mounters and readers that a server listens to at a time.
pub(super) const OTHERS_MAX: usize = 16;

/// How long such a question may take to come, from its first byte to its last.
pub(super) const OTHERS_TIME: Duration = Duration::from_secs(2);

impl Served {
    pub(super) fn role_of(&self, peer: Peer, own: Peer) -> Role {
        let roles = self.roles.as_ref();
        roles.map_or_else(|| Roles::default().of(peer, own), |roles| roles.of(peer, own))
    }
}

impl Answering {
    /// RO1: answers one who is no administrator, in a thread of his own.
    pub(super) fn apart(
        &self,
        stream: &UnixStream,
        role: Role,
        (peer, own): (Peer, Peer),
    ) -> anyhow::Result<()> {
        let Some(place) = self.others.take() else {
            let words = format!("{OTHERS_MAX} others ask already: try again in a moment");
            return send(stream, &Answer::Error(words));
        };
        let (served, pool) = (Arc::clone(&self.served), Arc::clone(&self.pool));
        let stream = stream.try_clone()?;
        std::thread::Builder::new().name("others".to_owned()).spawn(move || {
            let _place = place;
            let done = catch_unwind(AssertUnwindSafe(|| {
                answer_other(&stream, (&served, pool.as_ref()), &role, (peer, own))
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
    (served, pool): (&Served, &dyn OpenPool),
    role: &Role,
    (peer, own): (Peer, Peer),
) -> anyhow::Result<()> {
    let until = Until { stream, end: Instant::now() + OTHERS_TIME };
    let mut line = Vec::new();
    BufReader::new(until).take(control::LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    let question = match serde_json::from_slice(&line) {
        Ok(question) => question,
        Err(error) => return send(stream, &Answer::Error(not_understood(&error))),
    };
    let answer = match question {
        Question::Status => {
            let own = match role {
                Role::Mounter(_) => served.mounts.facts_of(peer.uid),
                Role::Administrator | Role::Reader | Role::Nobody => Vec::new(),
            };
            Answer::Status(role.told(&status_of(served, pool), own))
        }
        Question::Mount { version, request } if matches!(role, Role::Mounter(_)) => {
            let begun = control::parse_as(version, request).and_then(|spec: MountSpec| {
                let directory = PathBuf::from(OsString::from_vec(spec.directory.clone()));
                role.check_mount(&spec, &directory, peer).inspect_err(|words| {
                    mounts::audit(&spec, peer, Some(words.clone()));
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
        | Question::Explain { .. }
        | Question::Control { .. }
        | Question::Transfer { .. } => Answer::Error(role.refusal(peer, Some(own))),
    };
    send(stream, &answer)
}

/// Reads until a moment, however slowly the other side sends.
struct Until<'s> {
    stream: &'s UnixStream,
    end: Instant,
}

impl Read for Until<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut stream = self.stream;
        stream.read(bytes)
    }
}
