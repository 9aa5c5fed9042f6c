//! Transfers, done by the engine.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::vnode::api::{Caller, FileSystem, FsError};
use engine::{Became, Difference, Pool, ReceiveError, ResumeToken, SendError};
use format::fileset::FilesetName;
use format::stream::Totals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::control::{advised, refused, refused_by};
use super::{failed, random_bytes, trees};
use crate::backend::BackendError;
use crate::control::{Peer, clone_of, name_of};
use crate::transfer::{OnBytes, Transfer};

/// Bytes that are written to, or read from, a pipe or file at once.
const STREAM_BUFFER_BYTES: usize = 1 << 20;

/// Most bytes that one write gives a pipe: whoever closes the pool waits for it.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// How long a pipe is waited for before somebody looks whether the pool is being closed.
const LOOK_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What a transfer reads or writes; it fails once the pool is being closed.
pub(super) struct Watched<'w> {
    file: &'w mut File,
    is_closing: &'w AtomicBool,
}

impl<'w> Watched<'w> {
    pub(super) fn new(file: &'w mut File, is_closing: &'w AtomicBool) -> Watched<'w> {
        Watched { file, is_closing }
    }

    /// Whether somebody closes the pool.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    /// The descriptor.
    pub(super) fn file(&mut self) -> &mut File {
        self.file
    }

    fn wait(&self, flags: PollFlags) -> std::io::Result<()> {
        while !self.is_closing.load(Ordering::Acquire) {
            let mut asked = [PollFd::new(&*self.file, flags)];
            if poll(&mut asked, Some(&LOOK_TIME))? > 0 {
                return Ok(());
            }
        }
        Err(std::io::Error::other("the pool is being closed"))
    }
}

impl Read for Watched<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::IN)?;
        self.file.read(bytes)
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.wait(PollFlags::OUT)?;
        self.file.write(&bytes[..bytes.len().min(WRITE_BYTES_MAX)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Does what `request` asks for. See [`crate::backend::OpenPool::transfer`].
pub(super) fn transfer(
    (path, pool): (&Path, &Arc<Pool>),
    request: &Transfer,
    _peer: Peer,
    (file, fronts): (&mut Watched<'_>, Option<Arc<dyn FileSystem>>),
    progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    match request {
        // Whoever has both pools does these.
        Transfer::Move { pool: other, .. } => {
            let other = other.display();
            let cause = format!(
                "the other pool, {other}, is not served by the same server: start `holdfast serve \
                 {} {other}`",
                path.display()
            );
            Err(failed(path, cause))
        }
        Transfer::Import { tree } => trees::import(path, (pool, fronts), tree, file, progress),
        Transfer::ExportTree { tree } => trees::export(path, pool, tree, file, progress),
        Transfer::Diff { fileset, from, to_fileset, to } => {
            let fileset = name_of(fileset).map_err(|cause| failed(path, cause))?;
            let to_fileset = name_of(to_fileset).map_err(|cause| failed(path, cause))?;
            let from = clone_of(from).map_err(|cause| failed(path, cause))?;
            let to = to.as_deref().map(clone_of).transpose();
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
            let done = pool.diff((&fileset, &from), (&to_fileset, to.as_ref()), random, &mut tell);
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
        Transfer::Send { fileset, clone, from, resume } => {
            send(path, pool, (fileset, clone, from.as_deref(), resume.as_deref()), file, progress)
        }
        Transfer::Receive { fileset, is_dry_run, discards_partial } => {
            let how = (*is_dry_run, *discards_partial);
            receive(path, (pool, fileset), how, file, progress)
        }
    }
}

fn send(
    path: &Path,
    pool: &Pool,
    (fileset, clone, from, resume): (&str, &str, Option<&str>, Option<&str>),
    file: &mut Watched<'_>,
    progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    let fileset = name_of(fileset).map_err(|cause| failed(path, cause))?;
    let clone = clone_of(clone).map_err(|cause| failed(path, cause))?;
    let from = from.map(clone_of).transpose().map_err(|cause| failed(path, cause))?;
    let token = resume.map(str::parse::<ResumeToken>).transpose();
    let token = token.map_err(|error| failed(path, error))?;
    let mut out = BufWriter::with_capacity(STREAM_BUFFER_BYTES, file);
    // Who does not listen any more closes the pipe, too.
    let tell = &mut |done, total| {
        progress(done, total);
    };
    let sent = pool.send((&fileset, &clone), from.as_ref(), token, &mut out, tell);
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
    file: &mut Watched<'_>,
    progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    let name = name_of(fileset).map_err(|cause| failed(path, cause))?;
    let mut input = BufReader::with_capacity(STREAM_BUFFER_BYTES, file);
    let tell = &mut |done, total| {
        progress(done, total);
    };
    let mut arrived = Vec::new();
    let failure = loop {
        let received = if is_dry_run {
            pool.verify_stream(&name, &mut input, tell)
        } else {
            let random = random_bytes()?;
            let random = *random.first_chunk().expect("32 of 64 bytes");
            match discards_partial {
                true => pool.receive_in_place(&name, &mut input, random, tell),
                false => pool.receive(&name, &mut input, random, tell),
            }
        };
        let received = match received {
            Ok(received) => received,
            Err(failure) => break failure,
        };
        arrived.push(received.clone.as_str().to_owned());
        let mut facts = totals_of(&received.totals);
        facts["clone"] = json!(received.clone.as_str());
        facts["clones"] = json!(arrived);
        if is_dry_run {
            // What follows continues a state that is not there yet: nothing can be said of it.
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
    let full = if is_full { pool.weigh_clones().unwrap_or_default() } else { None };
    let full = full.map_or_else(String::new, |full| format!(": {}", advised(&full)));
    let cause = match (&failure.error, failure.token) {
        (error, Some(token)) => format!(
            "{before}{error}{full}: the data received so far is kept, but not visible. Continue \
             with `holdfast send ... --resume {token}`, or drop it with `holdfast receive --abort`"
        ),
        (ReceiveError::Fs(error), None) if arrived.is_empty() => {
            return Err(refused_by(path, pool, error));
        }
        (error, None) => format!("{before}{error}"),
    };
    Err(failed(path, cause))
}

/// Returns what a failure says first where streams have come before.
fn words_of_arrived(fileset: &str, arrived: &[String]) -> String {
    match arrived.len() {
        0 => String::new(),
        _ => format!(
            "{fileset}@{} arrived, but the stream after it failed: ",
            arrived.join(&format!(", {fileset}@"))
        ),
    }
}

/// Whether anything but zeros follows, which some writers pad with.
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

/// Returns how much can be written to the fileset, by its quota and its reservation, or to a new
/// one.
fn available_bytes(pool: &Pool, name: &FilesetName) -> Option<u64> {
    let held = pool.hold_fileset(name).ok();
    let found = pool.statfs(&Caller::root(), held.unwrap_or_else(|| pool.main_fileset()));
    if let Some(held) = held {
        pool.release_fileset(held);
    }
    found.ok().map(|found| found.available_bytes)
}

fn totals_of(totals: &Totals) -> Value {
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
        Became::Created => json!("created"),
        Became::Removed => json!("removed"),
        Became::Renamed { from } => {
            value["from"] = json!(String::from_utf8_lossy(from));
            json!("renamed")
        }
        Became::Modified { ranges, has_attributes, size_before, size_after } => {
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

    /// Goal: what follows a stream is another one, or padding, and never dropped.
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
