//! Moves of filesets between two pools that are open in one process (decision 0078).

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use engine::{Fronts, Move, MoveError, MoveServices, Pipe, ReceiveFailure, Received, SendError};
use format::fileset::{FilesetName, MoveState};
use format::stream::StreamTotals;
use serde_json::{Value, json};

use super::transfer::TransferFile;
use super::{failed, random_bytes};
use crate::backend::{BackendError, OnTransfer, PoolLease};
use control::name_of;
use control::wire::TransferProgress;

const STREAM_BUFFER_BYTES: usize = 1 << 20;
const TELL_TIME: Duration = Duration::from_millis(100);
/// Pause between checks while a job of the engine frees space.
const WAIT_TIME: Duration = Duration::from_millis(20);

#[derive(Default)]
struct MoveProgress {
    done: AtomicU64,
    total: AtomicU64,
    is_sent: AtomicBool,
    is_received: AtomicBool,
}

struct ThreadedPipe<'p> {
    lent: [&'p PoolLease<'p>; 2],
    progress: &'p MoveProgress,
    tell: std::cell::RefCell<OnTransfer<'p>>,
}

/// Sets a flag and wakes the waiting thread when dropped: at a thread's end, even by a panic.
struct ThreadEndSignal<'e>(&'e AtomicBool, Thread);

impl Drop for ThreadEndSignal<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.unpark();
    }
}

impl Pipe for ThreadedPipe<'_> {
    fn carry(
        &self,
        send: &mut (dyn FnMut(&mut dyn Write) -> Result<StreamTotals, SendError> + Send),
        receive: &mut (dyn FnMut(&mut dyn Read) -> Result<Received, ReceiveFailure> + Send),
    ) -> Result<Received, MoveError> {
        let (input, output) = std::io::pipe().map_err(SendError::Write)?;
        let (input, output) = (File::from(OwnedFd::from(input)), File::from(OwnedFd::from(output)));
        let MoveProgress { done, total, is_sent, is_received } = self.progress;
        is_sent.store(false, Ordering::Release);
        is_received.store(false, Ordering::Release);
        let [source, target] = self.lent;
        let waiter = std::thread::current();
        let [to_sender, to_receiver] = [waiter.clone(), waiter];
        std::thread::scope(|scope| {
            let sending = scope.spawn(move || {
                let (_ended, mut output) = (ThreadEndSignal(is_sent, to_sender), output);
                let watched = TransferFile::new(&mut output, source.is_closing);
                let mut output = BufWriter::with_capacity(STREAM_BUFFER_BYTES, watched);
                let sent = send(&mut output)?;
                output.flush().map_err(SendError::Write)?;
                Ok::<_, SendError>(sent)
            });
            let receiving = scope.spawn(move || {
                let (_ended, mut input) = (ThreadEndSignal(is_received, to_receiver), input);
                let watched = TransferFile::new(&mut input, target.is_closing);
                receive(&mut BufReader::with_capacity(STREAM_BUFFER_BYTES, watched))
            });
            while !(is_sent.load(Ordering::Acquire) && is_received.load(Ordering::Acquire)) {
                let (done, total) = (done.load(Ordering::Relaxed), total.load(Ordering::Relaxed));
                // The answer (whether to continue) is ignored: a move goes on without its client.
                let at = TransferProgress { items: done, items_total: total, ..Default::default() };
                (self.tell.borrow_mut())(at);
                std::thread::park_timeout(TELL_TIME);
            }
            let met_a_bug = || MoveError::Refused("the server met a bug: see its log".to_owned());
            let sent = sending.join().map_err(|_| met_a_bug())?;
            let received = receiving.join().map_err(|_| met_a_bug())?;
            match (received, sent) {
                (Ok(received), Ok(_)) => Ok(received),
                // A broken pipe at the sender is a consequence of the receiver's error, which is
                // reported.
                (Err(failure), Err(SendError::Write(_)) | Ok(_)) => {
                    Err(MoveError::Receive(failure.error))
                }
                (_, Err(error)) => Err(error.into()),
            }
        })
    }
}

/// The task of a call to [`run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveTask {
    /// Execute the whole move.
    Run,
    /// Give the move up and discard the data in the target pool.
    GiveUp,
}

fn with_how<T>(
    lent: [&PoolLease<'_>; 2],
    fronts: Option<&dyn Fronts>,
    tell: OnTransfer<'_>,
    work: impl FnOnce(&mut MoveServices<'_>) -> T,
) -> Result<T, BackendError> {
    let progress = MoveProgress::default();
    let pipe = ThreadedPipe { lent, progress: &progress, tell: std::cell::RefCell::new(tell) };
    // Drawn in advance, because the engine's callback has no way to fail.
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
    let mut how = MoveServices {
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

/// Random values drawn for one move. It needs a token, and two values for each of the perhaps forty
/// increments that bring a fileset in use up to date.
const RANDOMS: usize = 128;

/// Moves a fileset from one pool to another, or gives the move up.
pub fn run(
    (source, fileset): (&PoolLease<'_>, &str),
    (target, to): (&PoolLease<'_>, &str),
    fronts: Option<&dyn Fronts>,
    task: MoveTask,
    tell: OnTransfer<'_>,
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

#[cfg(test)]
pub(crate) fn run_until(
    (source, fileset): (&PoolLease<'_>, &str),
    (target, to): (&PoolLease<'_>, &str),
    last: engine::MoveStep,
) -> Result<(), MoveError> {
    let (from, name) = (name_of(fileset).expect("a name"), name_of(to).expect("a name"));
    let this = Move { source: (&source.pool, &from), target: (&target.pool, &name) };
    let done = with_how([source, target], None, &mut |_| true, |how| {
        let how = &mut MoveServices {
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

/// Settles the moves that were interrupted by the end of a server: decides which pool has each
/// fileset, and finishes moves that have arrived. Reports each result through `tell`.
pub(crate) fn settle_all(all: &[PoolLease<'_>], tell: &mut dyn FnMut(&Path, String)) {
    let with_id = |id: [u8; 16]| all.iter().find(|lent| lent.pool.status().pool_id.0 == id);
    for lent in all {
        let moves = match lent.pool.fileset_admin().moves() {
            Ok(moves) => moves,
            Err(error) => {
                tell(lent.path, format!("what is on its way to other pools is not known: {error}"));
                continue;
            }
        };
        for (name, moving) in moves {
            let other = match moving {
                MoveState::Leaving { to, .. } => to,
                MoveState::Arrived { from, .. } => from,
                MoveState::Arriving { .. } => {
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
                (Some(other), MoveState::Leaving { .. }) => {
                    let words = settle((lent, &name), other, moving);
                    tell(lent.path, words);
                }
                (None, MoveState::Leaving { .. }) => tell(
                    lent.path,
                    format!(
                        "{name} is on its way to another pool, which is not served here, and \
                         nobody uses it: serve both, or say that it is here (`holdfast fileset \
                         move {}:{name} --here`)",
                        lent.path.display()
                    ),
                ),
                // A fileset has arrived: ends the move when the source pool has no record of it any
                // more.
                (Some(other), _) => {
                    let is_left = other.pool.fileset_admin().moves().is_ok_and(|moves| {
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

fn settle(
    (source, from): (&PoolLease<'_>, &FilesetName),
    target: &PoolLease<'_>,
    moving: MoveState,
) -> String {
    let there = target.pool.fileset_admin().moves().unwrap_or_default();
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
    (source, from): (&PoolLease<'_>, &FilesetName),
    (target, to): (&PoolLease<'_>, &FilesetName),
    moving: MoveState,
) -> String {
    let this = Move { source: (&source.pool, from), target: (&target.pool, to) };
    let finished = with_how([source, target], None, &mut |_| true, |how| {
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
