//! Transfers, executed by the engine.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::api::{Caller, FileSystem, FsError};
use engine::{Difference, DifferenceKind, Pool, ReceiveError, ResumeToken, SendError};
use format::fileset::FilesetName;
use format::stream::StreamTotals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::requests::{advised, refused, refused_by};
use super::{failed, random_bytes, trees};
use crate::backend::{BackendError, OnTransfer};
use crate::peer::Peer;
use control::wire::TransferProgress;
use control::{Transfer, name_of, snapshot_of};

const STREAM_BUFFER_BYTES: usize = 1 << 20;

/// Most bytes per write to a pipe. The write may block, and closing the pool waits for it.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// Interval at which a wait for a pipe checks whether the pool is closing.
const LOOK_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The descriptor of a transfer. Reads and writes fail once the pool is being closed.
pub(super) struct TransferFile<'w> {
    file: &'w mut File,
    is_closing: &'w AtomicBool,
    /// Bytes read and written so far.
    passed_bytes: u64,
}

impl<'w> TransferFile<'w> {
    pub(super) fn new(file: &'w mut File, is_closing: &'w AtomicBool) -> TransferFile<'w> {
        TransferFile { file, is_closing, passed_bytes: 0 }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(super) fn file(&mut self) -> &mut File {
        self.file
    }

    /// Returns the length of a regular file, else 0.
    pub(super) fn length_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |it| if it.is_file() { it.len() } else { 0 })
    }

    /// Waits for [`LOOK_TIME`] until the descriptor is ready, and returns whether it is.
    pub(super) fn is_ready(&self, flags: PollFlags) -> std::io::Result<bool> {
        if self.is_closing() {
            return Err(std::io::Error::other("the pool is being closed"));
        }
        let mut asked = [PollFd::new(&*self.file, flags)];
        Ok(poll(&mut asked, Some(&LOOK_TIME))? > 0)
    }

    fn wait(&self, flags: PollFlags) -> std::io::Result<()> {
        while !self.is_ready(flags)? {}
        Ok(())
    }

    fn pass(&mut self, count: usize) -> usize {
        self.passed_bytes += u64::try_from(count).unwrap_or(0);
        count
    }
}

impl Read for TransferFile<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::IN)?;
        let count = self.file.read(bytes)?;
        Ok(self.pass(count))
    }
}

impl Write for TransferFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES_MAX)];
        let count = self.file.write(bytes)?;
        Ok(self.pass(count))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// A descriptor that reports the bytes passed at each request, and fails once `report` returns
/// false: the command was interrupted, or its client has gone.
pub(super) struct ToldFile<'t, 'f, F> {
    pub(super) file: &'t mut TransferFile<'f>,
    pub(super) report: F,
}

impl<F: FnMut(u64) -> bool> ToldFile<'_, '_, F> {
    /// Waits until the descriptor is ready, which may take a pipe long.
    fn wait(&mut self, flags: PollFlags) -> std::io::Result<()> {
        loop {
            if !(self.report)(self.file.passed_bytes) {
                return Err(std::io::Error::other("the command was interrupted"));
            }
            if self.file.is_ready(flags)? {
                return Ok(());
            }
        }
    }
}

impl<F: FnMut(u64) -> bool> Read for ToldFile<'_, '_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.file.read(bytes)
    }
}

impl<F: FnMut(u64) -> bool> Write for ToldFile<'_, '_, F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

pub(super) fn transfer(
    (path, pool): (&Path, &Arc<Pool>),
    request: &Transfer,
    _peer: Peer,
    (file, fronts): (&mut TransferFile<'_>, Option<Arc<dyn FileSystem>>),
    progress: OnTransfer<'_>,
) -> Result<Value, BackendError> {
    match request {
        // A server of both pools executes the move before it gets here.
        Transfer::Move { pool: other, .. } => {
            let other = other.display();
            let cause = format!(
                "the other pool, {other}, is not served by the same server: start `holdfast serve \
                 {} {other} --nfs ADDRESS:PORT`",
                path.display()
            );
            Err(failed(path, cause))
        }
        Transfer::CopyIn { tree } => trees::copy_in(path, (pool, fronts), tree, file, progress),
        Transfer::CopyOut { tree } => trees::copy_out(path, pool, tree, file, progress),
        Transfer::Diff { fileset, from, to_fileset, to } => {
            let fileset = name_of(fileset).map_err(|cause| failed(path, cause))?;
            let to_fileset = name_of(to_fileset).map_err(|cause| failed(path, cause))?;
            let from = snapshot_of(from).map_err(|cause| failed(path, cause))?;
            let to = to.as_deref().map(snapshot_of).transpose();
            let to = to.map_err(|cause| failed(path, cause))?;
            let random = random_bytes()?;
            let random = *random.first_chunk().expect("16 of 64 bytes");
            let mut out = BufWriter::new(file);
            let (mut count, mut unwritten) = (0_u64, Ok(()));
            let mut tell = |difference: &Difference| {
                count += 1;
                unwritten = writeln!(out, "{}", line_of(difference));
                if unwritten.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            };
            let done = pool.fileset_admin().diff(
                (&fileset, &from),
                (&to_fileset, to.as_ref()),
                random,
                &mut tell,
            );
            done.map_err(|error| {
                if error != FsError::Invalid {
                    return refused(path, &error);
                }
                let cause = format!(
                    "{fileset} and {to_fileset} are of different families: nothing of one is in \
                     the other"
                );
                failed(path, cause)
            })?;
            unwritten.and_then(|()| out.flush()).map_err(|error| failed(path, error))?;
            Ok(json!({ "differences": count }))
        }
        Transfer::Send { fileset, snapshot, from, resume } => send(
            path,
            pool,
            (fileset, snapshot, from.as_deref(), resume.as_deref()),
            file,
            progress,
        ),
        Transfer::Receive { fileset, is_dry_run, discards_partial } => {
            let how = (*is_dry_run, *discards_partial);
            receive(path, (pool, fileset), how, file, progress)
        }
    }
}

/// Returns what a stream reports at each request of its descriptor. `items` holds the inodes that
/// are done, and their total.
fn stream_report<'p>(
    bytes_total: u64,
    items: &'p Cell<(u64, u64)>,
    progress: OnTransfer<'p>,
) -> impl FnMut(u64) -> bool + use<'p> {
    move |bytes| {
        let (items, items_total) = items.get();
        progress(TransferProgress { bytes, bytes_total, items, items_total })
    }
}

fn send(
    path: &Path,
    pool: &Pool,
    (fileset, snapshot, from, resume): (&str, &str, Option<&str>, Option<&str>),
    file: &mut TransferFile<'_>,
    progress: OnTransfer<'_>,
) -> Result<Value, BackendError> {
    let fileset = name_of(fileset).map_err(|cause| failed(path, cause))?;
    let snapshot = snapshot_of(snapshot).map_err(|cause| failed(path, cause))?;
    let from = from.map(snapshot_of).transpose().map_err(|cause| failed(path, cause))?;
    let token = resume.map(str::parse::<ResumeToken>).transpose();
    let token = token.map_err(|error| failed(path, error))?;
    let items = Cell::default();
    let out = ToldFile { file, report: stream_report(0, &items, progress) };
    let mut out = BufWriter::with_capacity(STREAM_BUFFER_BYTES, out);
    let tell = &mut |done, total| items.set((done, total));
    let sent =
        pool.fileset_admin().send((&fileset, &snapshot), from.as_ref(), token, &mut out, tell);
    match sent {
        Ok(totals) => Ok(totals_of(&totals)),
        Err(SendError::Fs(error)) => Err(refused(path, &error)),
        Err(error) => Err(failed(path, error)),
    }
}

fn receive(
    path: &Path,
    (pool, fileset): (&Pool, &str),
    (is_dry_run, discards_partial): (bool, bool),
    file: &mut TransferFile<'_>,
    progress: OnTransfer<'_>,
) -> Result<Value, BackendError> {
    let name = name_of(fileset).map_err(|cause| failed(path, cause))?;
    let (items, bytes_total) = (Cell::default(), file.length_bytes());
    let input = ToldFile { file, report: stream_report(bytes_total, &items, progress) };
    let mut input = BufReader::with_capacity(STREAM_BUFFER_BYTES, input);
    let tell = &mut |done, total| items.set((done, total));
    let mut arrived = Vec::new();
    let failure = loop {
        let received = if is_dry_run {
            pool.fileset_admin().verify_stream(&name, &mut input, tell)
        } else {
            let random = random_bytes()?;
            let random = *random.first_chunk().expect("32 of 64 bytes");
            match discards_partial {
                true => pool.fileset_admin().receive_in_place(&name, &mut input, random, tell),
                false => pool.fileset_admin().receive(&name, &mut input, random, tell),
            }
        };
        let received = match received {
            Ok(received) => received,
            Err(failure) => break failure,
        };
        arrived.push(received.snapshot.as_str().to_owned());
        let mut facts = totals_of(&received.totals);
        facts["snapshot"] = json!(received.snapshot.as_str());
        facts["snapshots"] = json!(arrived);
        if is_dry_run {
            // A dry run ends after one stream, because the next would build on this one.
            facts["available_bytes"] = json!(available_bytes(pool, &name));
            return Ok(facts);
        }
        match has_more(&mut input) {
            Ok(true) => {}
            Ok(false) => return Ok(facts),
            Err(error) => {
                let before = words_of_arrived(fileset, &arrived);
                let cause = format!("{before}the next stream cannot be read: {error}");
                return Err(failed(path, cause));
            }
        }
    };
    let before = words_of_arrived(fileset, &arrived);
    let is_full = matches!(failure.error, ReceiveError::Fs(FsError::NoSpace));
    let full =
        if is_full { pool.fileset_admin().weigh_snapshots().unwrap_or_default() } else { None };
    let full = full.map_or_else(String::new, |full| format!(": {}", advised(&full)));
    let cause = match (&failure.error, failure.token) {
        (error, Some(token)) => format!(
            "{before}{error}{full}: the data received so far is kept, but not visible. Continue \
             by giving the `holdfast send` again with `--resume {token}`, or drop it with \
             `holdfast receive {}:{fileset} --abort`",
            path.display()
        ),
        (ReceiveError::Fs(error), None) if arrived.is_empty() => {
            return Err(refused_by(path, pool, error));
        }
        (error, None) => format!("{before}{error}"),
    };
    Err(failed(path, cause))
}

fn words_of_arrived(fileset: &str, arrived: &[String]) -> String {
    match arrived.len() {
        0 => String::new(),
        _ => format!(
            "{fileset}@{} arrived, but the stream after it failed: ",
            arrived.join(&format!(", {fileset}@"))
        ),
    }
}

/// Returns whether another stream follows. Zeros do not count, because some writers pad with them.
fn has_more(input: &mut impl BufRead) -> std::io::Result<bool> {
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(false);
        }
        let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
        let is_other = zeros < bytes.len();
        input.consume(zeros);
        if is_other {
            return Ok(true);
        }
    }
}

fn available_bytes(pool: &Pool, name: &FilesetName) -> Option<u64> {
    let held = pool.fileset_admin().hold_fileset(name).ok();
    let found = pool.statfs(&Caller::root(), held.unwrap_or_else(|| pool.main_fileset()));
    if let Some(held) = held {
        pool.fileset_admin().release_fileset(held);
    }
    found.ok().map(|found| found.available_bytes)
}

fn totals_of(totals: &StreamTotals) -> Value {
    json!({
        "records": totals.records,
        "anodes": totals.anodes,
        "removed": totals.removed,
        "data_bytes": totals.data_bytes,
    })
}

fn line_of(difference: &Difference) -> Value {
    let mut value = json!({
        "path": String::from_utf8_lossy(&difference.path),
        "kind": format!("{:?}", difference.kind).to_lowercase(),
    });
    value["became"] = match &difference.became {
        DifferenceKind::Created => json!("created"),
        DifferenceKind::Removed => json!("removed"),
        DifferenceKind::Renamed { from } => {
            value["from"] = json!(String::from_utf8_lossy(from));
            json!("renamed")
        }
        DifferenceKind::Modified { ranges, has_attributes, size_before, size_after } => {
            let ranges = ranges.iter().map(|range| json!([range.start, range.end - 1]));
            value["ranges"] = json!(ranges.collect::<Vec<_>>());
            value["has_attributes"] = json!(has_attributes);
            value["size_before"] = json!(size_before);
            value["size_after"] = json!(size_after);
            json!("modified")
        }
    };
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: another stream after a stream is distinguished from padding, and read from its first
    /// byte.
    #[test]
    fn what_follows_a_stream_is_seen() {
        let padded = [&[0; 5000][..], b"HFstream"].concat();
        let mut small = BufReader::with_capacity(64, &padded[..]);
        assert!(has_more(&mut small).expect("memory does not fail"));
        let mut rest = Vec::new();
        small.read_to_end(&mut rest).expect("memory does not fail");
        assert_eq!(rest, b"HFstream");
        for nothing in [&b""[..], &[0; 9000]] {
            assert!(!has_more(&mut BufReader::new(nothing)).expect("memory does not fail"));
        }
        assert_eq!(words_of_arrived("a", &[]), "");
        let both = words_of_arrived("a", &["one".to_owned(), "two".to_owned()]);
        assert!(both.starts_with("a@one, a@two arrived"), "{both}");
    }
}
