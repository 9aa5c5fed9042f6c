//! READDIR and READDIRPLUS.
//!
//! Cookies are the file system's, and mean the same after a restart. Their verifier is that of the
//! directory; a client that goes on with another is told to begin anew.

use engine::vnode::api::{Attr, DirEntry, FileKind};

use super::handle::HANDLE_BYTES;
use super::protocol::{ATTR_BYTES, Status, TRANSFER_BYTES_MAX};
use super::service::{Done, Refused, Target, Work};
use super::xdr::{Reader, Writer};

/// Bytes of an answer besides names: attributes of the directory, verifier, the end.
const FRAME_BYTES: usize = 4 + 4 + ATTR_BYTES + 8 + 4 + 4;
/// Bytes of an entry besides its name.
const ENTRY_BYTES: usize = 4 + 8 + 4 + 8;
/// Bytes that an entry has more of where attributes and handle come with it.
const PLUS_BYTES: usize = 4 + ATTR_BYTES + 4 + 4 + HANDLE_BYTES;

/// How much a listing may bring.
struct Room {
    /// Of names and cookies.
    names: usize,
    /// Of all.
    whole: usize,
}

impl Room {
    /// Takes what an entry needs; returns whether it was there.
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

/// Begins an answer; refuses a cookie of another life of the directory.
fn begin(target: &Target, (cookie, verifier): (u64, u64), out: &mut Writer) -> Result<(), Refused> {
    if target.held.attr.kind != FileKind::Directory {
        return Err(Status::NOTDIR.into());
    }
    let own = target.fs().cookie_verifier(&target.caller, target.ino())?;
    if cookie != 0 && verifier != own {
        return Err(Status::BAD_COOKIE.into());
    }
    out.u32(Status::OK.0);
    target.put_some_attr(out, target.attr_now().as_ref());
    out.u64(own);
    Ok(())
}

fn put_entry(out: &mut Writer, entry: &DirEntry) {
    out.bool(true);
    out.u64(entry.ino.0);
    out.opaque(&entry.name);
    out.u64(entry.cookie);
}

/// Ends an answer: `listed` names are in it, and there are more or not.
fn end(out: &mut Writer, listed: usize, is_all: bool) -> Result<Done, Refused> {
    if listed == 0 && !is_all {
        return Err(Status::TOOSMALL.into());
    }
    out.bool(false);
    out.bool(is_all);
    Ok(Done::Now)
}

pub(super) fn read_dir(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    let (cookie, verifier, count) = (args.u64()?, args.u64()?, args.u32()?);
    begin(&target, (cookie, verifier), out)?;
    let whole = bounded(count).saturating_sub(FRAME_BYTES);
    let mut room = Room { names: whole, whole };
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
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    let (cookie, verifier) = (args.u64()?, args.u64()?);
    let (names, whole) = (bounded(args.u32()?), bounded(args.u32()?));
    begin(&target, (cookie, verifier), out)?;
    let mut room = Room { names, whole: whole.saturating_sub(FRAME_BYTES) };
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

/// Writes attributes and handle of an entry, where it has any.
fn put_file(work: &Work<'_>, target: &Target, attr: Option<&Attr>, out: &mut Writer) {
    target.put_some_attr(out, attr);
    out.bool(attr.is_some());
    if let Some(attr) = attr {
        out.opaque(&work.seal(target, attr));
    }
}
