//! Transfers, done by the engine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::vnode::api::FsError;
use engine::{Became, Difference, Pool};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use super::control::refused;
use super::{failed, random_bytes};
use crate::backend::BackendError;
use crate::control::{Peer, clone_of, name_of};
use crate::transfer::{OnBytes, Transfer};

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
    path: &Path,
    pool: &Pool,
    request: &Transfer,
    _peer: Peer,
    file: &mut Watched<'_>,
    _progress: OnBytes<'_>,
) -> Result<Value, BackendError> {
    match request {
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
    }
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
