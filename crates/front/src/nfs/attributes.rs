//! Procedures about attributes of files and of the file system.

use engine::api::{
    AttributeChange, Caller, FILE_BYTES_MAX, FileKind, FsError, LINKS_MAX, NAME_BYTES_MAX, SetAttr,
};

use super::protocol::{
    LISTING_BYTES, NfsStatus, TRANSFER_BYTES_MAX, read_set_attr, read_time, seconds_of,
};
use super::service::{CallError, CallExecution, CallTarget, ReplyTiming};
use super::xdr::{XdrReader, XdrWriter, count_of};

/// Bits of ACCESS.
mod may {
    pub(super) const READ: u32 = 1;
    pub(super) const LOOKUP: u32 = 2;
    pub(super) const MODIFY: u32 = 4;
    pub(super) const EXTEND: u32 = 8;
    pub(super) const DELETE: u32 = 16;
    pub(super) const EXECUTE: u32 = 32;
}

/// FSINFO properties: hard links, symbolic links, homogeneous, settable times.
const PROPERTIES: u32 = 1 | 2 | 8 | 16;
const TRANSFER_MULTIPLE: u32 = 4096;

pub(super) fn get(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    out.u32(NfsStatus::OK.0);
    target.put_attr(out, &target.held.attr);
    Ok(ReplyTiming::Now)
}

pub(super) fn set(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let change = read_set_attr(args)?;
    let guard = args.bool()?.then(|| read_time(args)).transpose()?;
    target.check_writable()?;
    if let Some(guard) = guard {
        let now = target.fs().getattr(&target.caller, target.ino())?;
        if seconds_of(guard) != seconds_of(now.ctime) {
            return Err(NfsStatus::NOT_SYNC.into());
        }
    }
    let mut around = AttributeChange::default();
    if change != SetAttr::default() {
        change_attr(&target, &change, &mut around)?;
    }
    target.put_changed(out, &around);
    Ok(ReplyTiming::Durable(target))
}

/// Changes attributes. The owner may truncate a file whatever its mode, as it may be open.
pub(super) fn change_attr(
    target: &CallTarget,
    change: &SetAttr,
    around: &mut AttributeChange,
) -> Result<(), FsError> {
    let set = |caller: &Caller, around: &mut AttributeChange| {
        target.fs().setattr(caller, target.ino(), change, Some(around)).map(drop)
    };
    let refused = match set(&target.caller, around) {
        Err(FsError::AccessDenied) => FsError::AccessDenied,
        done => return done,
    };
    // Clients send times with a truncate.
    let (size_bytes, atime, mtime) = (change.size_bytes, change.atime, change.mtime);
    let only_size = SetAttr { size_bytes, atime, mtime, ..SetAttr::default() };
    match target.owner() {
        Some(owner) if *change == only_size => set(&owner, around),
        _ => Err(refused),
    }
}

pub(super) fn access(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let asked = args.u32()?;
    let access = target.fs().access(&target.caller, target.ino())?;
    let is_directory = target.held.attr.kind == FileKind::Directory;
    let writes = access.writes && target.export.rules().is_writable;
    let mut granted = 0;
    let mut grant = |is_granted: bool, bits: u32| {
        granted |= if is_granted { bits } else { 0 };
    };
    grant(access.reads, may::READ);
    if is_directory {
        grant(access.executes, may::LOOKUP);
        grant(writes && access.executes, may::MODIFY | may::EXTEND | may::DELETE);
    } else {
        grant(access.executes, may::EXECUTE);
        grant(writes, may::MODIFY | may::EXTEND);
    }
    target.put_ok(out);
    out.u32(granted & asked);
    Ok(ReplyTiming::Now)
}

pub(super) fn read_link(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    if target.held.attr.kind != FileKind::Symlink {
        return Err(NfsStatus::INVAL.into());
    }
    let path = target.fs().readlink(&target.caller, target.ino())?;
    target.put_ok(out);
    out.opaque(&path);
    Ok(ReplyTiming::Now)
}

pub(super) fn fs_stat(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let sizes = target.fs().statfs(&target.caller, target.export.fileset())?;
    target.put_ok(out);
    let inodes = sizes.inode_count.saturating_add(sizes.inodes_free);
    let bytes = [sizes.total_bytes, sizes.free_bytes, sizes.available_bytes];
    let counts = [inodes, sizes.inodes_free, sizes.inodes_free];
    bytes.into_iter().chain(counts).for_each(|number| out.u64(number));
    // `invarsec` is 0: sizes may change at any time.
    out.u32(0);
    Ok(ReplyTiming::Now)
}

pub(super) fn fs_info(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    target.put_ok(out);
    let transfer = [TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX, TRANSFER_MULTIPLE];
    // Transfer sizes for READ, WRITE and READDIR.
    out.words(&transfer);
    out.words(&transfer);
    out.u32(LISTING_BYTES);
    out.u64(FILE_BYTES_MAX);
    // Time resolution of one nanosecond.
    out.words(&[0, 1, PROPERTIES]);
    Ok(ReplyTiming::Now)
}

pub(super) fn path_conf(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    target.put_ok(out);
    out.words(&[LINKS_MAX, count_of(NAME_BYTES_MAX)]);
    // `no_trunc`, `chown_restricted`, case-sensitive, `case_preserving`.
    [true, true, false, true].into_iter().for_each(|is| out.bool(is));
    Ok(ReplyTiming::Now)
}
