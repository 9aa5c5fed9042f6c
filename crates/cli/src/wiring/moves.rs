//! Moves of filesets between two open pools, done by the engine (decision 0078).

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::RwLockReadGuard;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use engine::{Fronts, Move, MoveError, MoveHow, Pipe, Pool, ReceiveFailure, Received, SendError};
use format::fileset::{FilesetName, Moving};
use format::stream::Totals;
use serde_json::{Value, json};

use super::transfer::Watched;
use super::{failed, random_bytes};
use crate::backend::BackendError;
use crate::control::name_of;
use crate::transfer::OnBytes;

/// Bytes of a stream that each side keeps.
const STREAM_BUFFER_BYTES: usize = 1 << 20;
/// How often it is told how far a stream is.
const TELL_TIME: Duration = Duration::from_millis(100);
/// How long a job is left alone that frees something.
const WAIT_TIME: Duration = Duration::from_millis(20);

/// An open pool, lent to a move: whoever closes it waits for that.
pub struct Lent<'p> {
    /// Its path.
    pub(super) path: &'p Path,
    /// It.
    pub(super) pool: Arc<Pool>,
    /// Whether somebody closes it.
    pub(super) is_closing: &'p AtomicBool,
    /// Who closes it waits for this.
    pub(super) _under_way: RwLockReadGuard<'p, ()>,
}

impl std::fmt::Debug for Lent<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lent({})", self.path.display())
    }
}

impl Lent<'_> {
    /// Returns what is on its way of it; `None`: that can't be read.
    pub(crate) fn moves(&self) -> Option<Vec<(FilesetName, Moving)>> {
        self.pool.moves().ok()
    }
}

/// How far a stream is.
#[derive(Default)]
struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    is_sent: AtomicBool,
    is_received: AtomicBool,
}

/// A pipe with a thread at each end.
struct ByThreads<'p> {
    lent: [&'p Lent<'p>; 2],
    progress: &'p Progress,
    tell: std::cell::RefCell<OnBytes<'p>>,
}

/// Says so when a thread has ended, whatever comes, and wakes who waits for that.
struct Ended<'e>(&'e AtomicBool, Thread);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

impl Pipe for ByThreads<'_> {
    fn carry(
        &self,
        send: &mut (dyn FnMut(&mut dyn Write) -> Result<Totals, SendError> + Send),
        receive: &mut (dyn FnMut(&mut dyn Read) -> Result<Received, ReceiveFailure> + Send),
    ) -> Result<Received, MoveError> {
        let (input, output) = std::io::pipe().map_err(SendError::Write)?;
        let (input, output) = (File::from(OwnedFd::from(input)), File::from(OwnedFd::from(output)));
        let Progress { done, total, is_sent, is_received } = self.progress;
        is_sent.store(false, Ordering::Release);
        is_received.store(false, Ordering::Release);
        let [source, target] = self.lent;
        let waiter = std::thread::current();
        let [to_sender, to_receiver] = [waiter.clone(), waiter];
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let (_ended, mut output) = (Ended(is_sent, to_sender), output);
                let watched = Watched::new(&mut output, source.is_closing);
                let mut output = BufWriter::with_capacity(STREAM_BUFFER_BYTES, watched);
                let sent = send(&mut output)?;
                output.flush().map_err(SendError::Write)?;
                Ok::<_, SendError>(sent)
            });
            let receiving = scope.spawn(move || {
                let (_ended, mut input) = (Ended(is_received, to_receiver), input);
                let watched = Watched::new(&mut input, target.is_closing);
                receive(&mut BufReader::with_capacity(STREAM_BUFFER_BYTES, watched))
            });
            while !(is_sent.load(Ordering::Acquire) && is_received.load(Ordering::Acquire)) {
                let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
                // Who does not listen any more finds the move where it is.
                (self.tell.borrow_mut())(done, total);
                std::thread::park_timeout(TELL_TIME);
            }
            let met_a_bug = || MoveError::Refused("the server met a bug: see its log".to_owned());
            let sent = sending.join().map_err(|_| met_a_bug())?;
            let received = receiving.join().map_err(|_| met_a_bug())?;
            match (received, sent) {
                (Ok(received), Ok(_)) => Ok(received),
                // Whoever sends is told no more than that nobody receives.
                (Err(failure), Err(SendError::Write(_)) | Ok(_)) => {
                    Err(MoveError::Receive(failure.error))
                }
                (_, Err(error)) => Err(error.into()),
            }
        })
    }
}

/// What of a move is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MoveTask {
    /// The whole.
    Run,
    /// What has come is given up.
    GiveUp,
}

/// Does `work` with what a move between two pools needs.
fn with_how<T>(
    lent: [&Lent<'_>; 2],
    fronts: Option<&dyn Fronts>,
    tell: OnBytes<'_>,
    work: impl FnOnce(&mut MoveHow<'_>) -> T,
) -> Result<T, BackendError> {
    let progress = Progress::default();
    let pipe = ByThreads { lent, progress: &progress, tell: std::cell::RefCell::new(tell) };
    // Drawn at once: each use takes 32 of other bytes.
    let mut drawn = Vec::new();
    for _ in 0..RANDOMS {
        drawn.push(*random_bytes()?.first_chunk().expect("32 of 64 bytes"));
    }
    let mut random = || drawn.pop().expect("a move draws fewer");
    let mut wait = || {
        std::thread::park_timeout(WAIT_TIME);
        !lent.iter().any(|lent| lent.is_closing.load(Ordering::Acquire))
    };
    let note = &progress;
    let mut how = MoveHow {
        pipe: &pipe,
        random: &mut random,
        wait: &mut wait,
        fronts,
        on_step: &mut |step| {
            tracing::debug!(?step, "a move");
            true
        },
        progress: &mut |done, total| {
            note.done.store(done, Ordering::Relaxed);
            note.total.store(total, Ordering::Relaxed);
        },
    };
    Ok(work(&mut how))
}

/// Draws of one move: a token; a clone and a stream for each difference, of which one in use may
/// need some forty.
const RANDOMS: usize = 128;

/// Moves a fileset of one pool to another, or gives that up.
pub(crate) fn run(
    (source, fileset): (&Lent<'_>, &str),
    (target, to): (&Lent<'_>, &str),
    fronts: Option<&dyn Fronts>,
    task: MoveTask,
    tell: OnBytes<'_>,
) -> Result<Value, BackendError> {
    let from = name_of(fileset).map_err(|cause| failed(source.path, cause))?;
    let name = name_of(to).map_err(|cause| failed(target.path, cause))?;
    let this = Move { source: (&source.pool, &from), target: (&target.pool, &name) };
    let done = with_how([source, target], fronts, tell, |how| match task {
        MoveTask::Run => this.run(how),
        MoveTask::GiveUp => this.give_up(how),
    })?;
    done.map_err(|error| failed(source.path, format!("{from}: {error}")))?;
    let word = if task == MoveTask::Run { "moved" } else { "given_up" };
    let other = target.path.display().to_string();
    Ok(json!({ word: fileset, "to": to, "to_pool": other }))
}

/// As [`run`], of a fileset that nobody uses, until it has told this step.
#[cfg(test)]
pub(crate) fn run_until(
    (source, fileset): (&Lent<'_>, &str),
    (target, to): (&Lent<'_>, &str),
    last: engine::MoveStep,
) -> Result<(), MoveError> {
    let (from, name) = (name_of(fileset).expect("a name"), name_of(to).expect("a name"));
    let this = Move { source: (&source.pool, &from), target: (&target.pool, &name) };
    let done = with_how([source, target], None, &mut |_, _| true, |how| {
        let how = &mut MoveHow {
            pipe: how.pipe,
            random: &mut *how.random,
            wait: &mut *how.wait,
            fronts: None,
            on_step: &mut |step| step != last,
            progress: &mut *how.progress,
        };
        this.run(how)
    });
    done.expect("there are random bits")
}

/// Finds out where each fileset is that was on its way when the server ended, and finishes moves
/// that have arrived. Tells of each what came of it.
pub(crate) fn settle_all(all: &[Lent<'_>], tell: &mut dyn FnMut(&Path, String)) {
    let with_id = |id: [u8; 16]| all.iter().find(|lent| lent.pool.status().pool_id.0 == id);
    for lent in all {
        let moves = match lent.pool.moves() {
            Ok(moves) => moves,
            Err(error) => {
                tell(lent.path, format!("what is on its way to other pools is not known: {error}"));
                continue;
            }
        };
        for (name, moving) in moves {
            let other = match moving {
                Moving::Leaving { to, .. } => to,
                Moving::Arrived { from, .. } => from,
                Moving::Arriving { .. } => {
                    tell(
                        lent.path,
                        format!(
                            "{name} is on its way here: `holdfast fileset move` \
                                             goes on with that, or gives it up"
                        ),
                    );
                    continue;
                }
            };
            match (with_id(other), moving) {
                (Some(other), Moving::Leaving { .. }) => {
                    let words = settle((lent, &name), other, moving);
                    tell(lent.path, words);
                }
                (None, Moving::Leaving { .. }) => tell(
                    lent.path,
                    format!(
                        "{name} is on its way to another pool, which is not served here, and \
                         nobody uses it: serve both, or say that it is here (`holdfast fileset \
                         move {}:{name} --here`)",
                        lent.path.display()
                    ),
                ),
                // Once the other pool has nothing of it any more.
                (Some(other), _) => {
                    let is_left = other.pool.moves().is_ok_and(|moves| {
                        moves.iter().any(|(_, it)| it.token() == moving.token())
                    });
                    if !is_left {
                        let words = finish((other, &name), (lent, &name), moving);
                        tell(lent.path, words);
                    }
                }
                (None, _) => {}
            }
        }
    }
}

fn settle((source, from): (&Lent<'_>, &FilesetName), target: &Lent<'_>, moving: Moving) -> String {
    let there = target.pool.moves().unwrap_or_default();
    let to = there.into_iter().find(|(_, it)| it.token() == moving.token());
    let to = to.map_or_else(|| from.clone(), |(name, _)| name);
    let this = Move { source: (&source.pool, from), target: (&target.pool, &to) };
    match this.settle() {
        Ok(Some(_)) => finish((source, from), (target, &to), moving),
        Ok(None) => format!("{from} was on its way to another pool, and has stayed"),
        Err(error) => format!("{from} is on its way to another pool, and nobody uses it: {error}"),
    }
}

fn finish(
    (source, from): (&Lent<'_>, &FilesetName),
    (target, to): (&Lent<'_>, &FilesetName),
    moving: Moving,
) -> String {
    let this = Move { source: (&source.pool, from), target: (&target.pool, to) };
    let finished = with_how([source, target], None, &mut |_, _| true, |how| {
        this.finish(moving.token(), how).map_err(|error| error.to_string())
    });
    match finished.map_err(|error| error.to_string()).flatten() {
        Ok(()) => format!("{from} has moved to {}:{to}", target.path.display()),
        Err(error) => format!(
            "{from} has moved to {}:{to}, and what is left of it is not freed: {error}",
            target.path.display()
        ),
    }
}
