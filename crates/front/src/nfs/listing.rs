//! READDIR and READDIRPLUS.
//!
//! Cookies, and a directory's cookie verifier, come from the file system and are valid across
//! restarts. A client with another verifier must restart its listing.

use engine::api::{Attr, DirEntry, FileKind};

use super::handle::HANDLE_BYTES;
use super::protocol::{ATTR_BYTES, NfsStatus, TRANSFER_BYTES_MAX};
use super::service::{CallError, CallExecution, CallTarget, ReplyTiming};
use super::xdr::{XdrReader, XdrWriter};

const FRAME_BYTES: usize = 4 + 4 + ATTR_BYTES + 8 + 4 + 4;
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
const PLUS_BYTES: usize = 4 + ATTR_BYTES + 4 + 4 + HANDLE_BYTES;

struct ReplySpace {
    /// Bytes left for names and cookies.
    names: usize,
    /// Bytes left for the whole reply.
    whole: usize,
}

impl ReplySpace {
    fn take(&mut self, name: &[u8], more: usize) -> bool {
        let bytes = ENTRY_BYTES + name.len().next_multiple_of(4);
        if bytes > self.names || bytes + more > self.whole {
            return false;
        }
        self.names -= bytes;
        self.whole -= bytes + more;
        true
    }
}

fn bounded(count: u32) -> usize {
    usize::try_from(count.min(TRANSFER_BYTES_MAX)).expect("TRANSFER_BYTES_MAX fits in a usize")
}

/// Begins a reply. Refuses a cookie with an outdated verifier.
fn begin(
    target: &CallTarget,
    (cookie, verifier): (u64, u64),
    out: &mut XdrWriter,
) -> Result<(), CallError> {
    if target.held.attr.kind != FileKind::Directory {
        return Err(NfsStatus::NOTDIR.into());
    }
    let own = target.fs().cookie_verifier(&target.caller, target.ino())?;
    if cookie != 0 && verifier != own {
        return Err(NfsStatus::BAD_COOKIE.into());
    }
    out.u32(NfsStatus::OK.0);
    target.put_some_attr(out, target.attr_now().as_ref());
    out.u64(own);
    Ok(())
}

fn put_entry(out: &mut XdrWriter, entry: &DirEntry) {
    out.bool(true);
    out.u64(entry.ino.0);
    out.opaque(&entry.name);
    out.u64(entry.cookie);
}

fn end(out: &mut XdrWriter, listed: usize, is_all: bool) -> Result<ReplyTiming, CallError> {
    if listed == 0 && !is_all {
        return Err(NfsStatus::TOOSMALL.into());
    }
    out.bool(false);
    out.bool(is_all);
    Ok(ReplyTiming::Now)
}

pub(super) fn read_dir(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let (cookie, verifier, count) = (args.u64()?, args.u64()?, args.u32()?);
    begin(&target, (cookie, verifier), out)?;
    let whole = bounded(count).saturating_sub(FRAME_BYTES);
    let mut room = ReplySpace { names: whole, whole };
    let (mut listed, mut is_all) = (0, true);
    target.fs().readdir(&target.caller, target.ino(), cookie, &mut |entry| {
        is_all = room.take(&entry.name, 0);
        if is_all {
            put_entry(out, entry);
            listed += 1;
        }
        is_all
    })?;
    end(out, listed, is_all)
}

pub(super) fn read_dir_plus(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let (cookie, verifier) = (args.u64()?, args.u64()?);
    let (names, whole) = (bounded(args.u32()?), bounded(args.u32()?));
    begin(&target, (cookie, verifier), out)?;
    let mut room = ReplySpace { names, whole: whole.saturating_sub(FRAME_BYTES) };
    let (mut listed, mut is_all) = (0, true);
    let mut references = Vec::new();
    let mut each = |entry: &DirEntry, attr: Option<&Attr>| {
        is_all = room.take(&entry.name, PLUS_BYTES);
        if is_all {
            put_entry(out, entry);
            put_file(work, &target, attr, out);
            references.extend(attr.map(|attr| attr.ino));
            listed += 1;
        }
        is_all
    };
    let done = target.fs().readdir_plus(&target.caller, target.ino(), cookie, &mut each);
    for ino in references {
        target.fs().forget(ino, 1);
    }
    done?;
    end(out, listed, is_all)
}

fn put_file(
    work: &CallExecution<'_>,
    target: &CallTarget,
    attr: Option<&Attr>,
    out: &mut XdrWriter,
) {
    target.put_some_attr(out, attr);
    out.bool(attr.is_some());
    if let Some(attr) = attr {
        out.opaque(&work.seal(target, attr));
    }
}
