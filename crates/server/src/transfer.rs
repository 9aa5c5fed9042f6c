//! Transfers: requests to an open pool that move bulk data, such as the difference of two
//! snapshots, a send stream, or a tree.
//!
//! The client passes a file descriptor over the server's socket (`SCM_RIGHTS`). The data goes
//! through that descriptor. The socket carries only the request, progress and the result.
//!
//! # Invariants
//!
//! - TF1: Only root and the server's own user may start a transfer, because a stream contains every
//!   file.
//! - TF2: Each transfer has its own thread, so the server keeps answering other clients. At most
//!   [`TRANSFERS_MAX`] run at a time.

use std::fs::File;
use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::io::{BufRead, BufReader};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use engine::api::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

pub use crate::backend::OnTransfer;
use crate::backend::{BackendError, OpenPool};
use crate::messages::{self, CLOSING, pass_descriptor, take_descriptor};
use crate::mounts::PoolMounts;
use crate::peer::Peer;
use crate::places::ConcurrencyLimit;
use crate::until::DeadlineReader;
use crate::uses::{FilesetUse, FilesetUseGuard};
use control::wire::{TransferProgress, WireAnswer};
use control::{Transfer, name_of};

/// Most transfers at a time. Each takes a thread and some megabytes.
const TRANSFERS_MAX: usize = 4;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
const DESCRIPTOR_TIME: Duration = Duration::from_secs(5);
/// Longest wait for the answer to a cancelled transfer.
pub(crate) const CANCEL_TIME: Duration = Duration::from_secs(10);

/// Claims the fileset that a copy-in writes to, until the transfer ends. Refuses to receive a
/// stream into a fileset in use, because that would replace its contents.
fn claim_for(
    request: &Transfer,
    mounts: &PoolMounts,
) -> Result<Option<FilesetUseGuard>, BackendError> {
    if let Transfer::Receive { fileset, is_dry_run: false, .. } = request {
        mounts.uses.check_replaced(fileset)?;
    }
    let Transfer::CopyIn { tree } = request else { return Ok(None) };
    let Ok(name) = name_of(&tree.fileset) else { return Ok(None) };
    mounts.uses.claim(Some(&name), None, FilesetUse::CopyIn).map(Some)
}

#[derive(Clone, Debug)]
pub(crate) struct Transfers(ConcurrencyLimit);

impl Default for Transfers {
    fn default() -> Transfers {
        Transfers(ConcurrencyLimit::new(TRANSFERS_MAX))
    }
}

impl Transfers {
    pub(crate) fn begin(
        &self,
        stream: &UnixStream,
        (pool, mounts): (&Arc<dyn OpenPool>, &PoolMounts),
        request: Transfer,
        peer: Peer,
    ) -> anyhow::Result<()> {
        let claim = claim_for(&request, mounts)?;
        let place = self.0.take().with_context(|| {
            format!("{TRANSFERS_MAX} transfers are under way: try again when one has ended")
        })?;
        let (stream, pool) = (stream.try_clone()?, Arc::clone(pool));
        tracing::info!(uid = peer.uid, ?request, "asked for a transfer");
        std::thread::Builder::new().name("transfer".to_owned()).spawn(move || {
            let _place = place;
            let fronts = claim.as_ref().map(FilesetUseGuard::outside);
            let done = || serve(&stream, (&*pool, fronts), &request, peer);
            let done = catch_unwind(AssertUnwindSafe(done));
            // The client may use the fileset as soon as it has the result.
            drop(claim);
            let answer = match done {
                Ok(Ok(value)) => WireAnswer::Transferred(value),
                Ok(Err(error)) => WireAnswer::Error(format!("{error:#}")),
                Err(_) => WireAnswer::Error("the server met a bug: see its log".to_owned()),
            };
            if let Err(error) = messages::send(&stream, &answer) {
                tracing::debug!(%error, "the client of a transfer has gone");
            }
        })?;
        Ok(())
    }
}

fn serve(
    stream: &UnixStream,
    (pool, fronts): (&dyn OpenPool, Option<Arc<dyn FileSystem>>),
    request: &Transfer,
    peer: Peer,
) -> anyhow::Result<Value> {
    messages::send(stream, &WireAnswer::Ready)?;
    let mut file = take_descriptor(&DeadlineReader::new(stream, DESCRIPTOR_TIME))?;
    let (mut last, mut has_gone) = (Instant::now(), false);
    let mut progress = |at| {
        if last.elapsed() >= PROGRESS_INTERVAL {
            last = Instant::now();
            has_gone = has_gone
                || has_hung_up(stream)
                || messages::send(stream, &WireAnswer::Progress(at)).is_err();
        }
        !has_gone
    };
    Ok(pool.transfer(request, peer, &mut file, fronts, &mut progress)?)
}

/// Returns whether the client has closed its side, which cancels the transfer. It may still wait
/// for the answer.
fn has_hung_up(stream: &UnixStream) -> bool {
    let mut asked = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Passes `file` for a transfer that the server on `stream` has already got the request for,
/// reports progress and returns the result. If `progress` returns false, cancels the transfer and
/// returns its error, which it waits for as long as `cancel_time`.
pub(crate) fn follow(
    stream: &UnixStream,
    file: File,
    progress: OnTransfer<'_>,
    cancel_time: Duration,
) -> anyhow::Result<Value> {
    stream.set_read_timeout(Some(PROGRESS_INTERVAL))?;
    let mut lines = BufReader::new(stream);
    let (mut file, mut line, mut at) = (Some(file), Vec::new(), TransferProgress::default());
    let mut cancelled: Option<Instant> = None;
    loop {
        if cancelled.is_none() && !progress(at) {
            cancelled = Some(Instant::now());
            stream.shutdown(Shutdown::Write)?;
        }
        let is_late = cancelled.is_some_and(|since| since.elapsed() >= cancel_time);
        anyhow::ensure!(!is_late, "interrupted");
        let count = match lines.read_until(b'\n', &mut line) {
            // What came of the line is kept.
            Err(error) if matches!(error.kind(), WouldBlock | TimedOut) => continue,
            count => count?,
        };
        anyhow::ensure!(count > 0, "the server has gone away: `holdfast status` shows those there");
        match serde_json::from_slice(&std::mem::take(&mut line))? {
            // Nothing is done before the server has the file.
            WireAnswer::Ready if cancelled.is_some() => anyhow::bail!("interrupted"),
            WireAnswer::Ready => match file.take() {
                Some(file) => pass_descriptor(stream, &file)?,
                None => anyhow::bail!("the server answered nonsense"),
            },
            WireAnswer::Progress(now) => at = now,
            WireAnswer::Transferred(value) => return Ok(value),
            WireAnswer::Error(error) => return Err(anyhow::Error::msg(error)),
            WireAnswer::Closing => anyhow::bail!(CLOSING),
            WireAnswer::Status(_)
            | WireAnswer::Explain(_)
            | WireAnswer::Control(_)
            | WireAnswer::Mounted(_) => {
                anyhow::bail!("the server answered nonsense")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use serde_json::json;

    use super::*;
    use control::{TreeCopyRules, TreeSpec, VERSION, parse_as};

    fn good() -> Vec<Transfer> {
        let name = || "a/b".to_owned();
        let to = Some("tuesday".to_owned());
        let from = || "monday".to_owned();
        let tree = TreeSpec {
            fileset: name(),
            snapshot: None,
            path: b"/\xff".to_vec(),
            is_archive: true,
            threads: 4,
            verifies: true,
            counts_work: true,
            rules: TreeCopyRules { skips_same: true, ..TreeCopyRules::default() },
        };
        vec![
            Transfer::Diff { fileset: name(), from: from(), to_fileset: name(), to },
            Transfer::Send { fileset: name(), snapshot: from(), from: None, resume: Some(from()) },
            Transfer::Receive { fileset: name(), is_dry_run: true, discards_partial: false },
            Transfer::Move { fileset: name(), pool: "/p".into(), to: from(), gives_up: true },
            Transfer::CopyIn { tree: tree.clone() },
            Transfer::CopyOut { tree },
        ]
    }

    /// Goal: ^C before the server is ready for the file ends the transfer, and says so.
    #[test]
    fn an_interrupted_transfer_sends_no_file() {
        let (own, server) = UnixStream::pair().expect("it is made");
        let mut ready = serde_json::to_vec(&WireAnswer::Ready).expect("it is JSON");
        ready.push(b'\n');
        (&server).write_all(&ready).expect("it is read");
        let file = File::open("/dev/null").expect("it is there");
        let done = follow(&own, file, &mut |_| false, Duration::from_secs(60));
        assert_eq!(done.expect_err("it is interrupted").to_string(), "interrupted");
    }

    #[test]
    fn a_request_survives_its_line_and_what_is_not_known_is_refused() {
        for request in good() {
            let mut value = serde_json::to_value(&request).expect("it is plain");
            let parse = parse_as::<Transfer>;
            assert_eq!(parse(VERSION, value.clone()), Ok(request));
            assert!(parse(0, value.clone()).is_err_and(|it| it.contains("version 0")));
            value["more"] = json!(1);
            assert!(parse(VERSION, value).is_err_and(|it| it.contains("more")));
        }
    }
}
