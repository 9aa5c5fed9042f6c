//! Calls about attributes: of a file, and of the file system.

use engine::vnode::api::{
    Around, Caller, FILE_BYTES_MAX, FileKind, FsError, LINKS_MAX, NAME_BYTES_MAX, SetAttr,
};

use super::protocol::{
    LISTING_BYTES, Status, TRANSFER_BYTES_MAX, read_set_attr, read_time, seconds_of,
};
use super::service::{Done, Refused, Target, Work};
use super::xdr::{Reader, Writer, count_of};

/// What ACCESS asks about.
mod may {
    pub(super) const READ: u32 = 1;
    pub(super) const LOOKUP: u32 = 2;
    pub(super) const MODIFY: u32 = 4;
    pub(super) const EXTEND: u32 = 8;
    pub(super) const DELETE: u32 = 16;
    pub(super) const EXECUTE: u32 = 32;
}

/// What a file system of ours has (FSINFO): hard links, symbolic links, the same for every file,
/// times that can be set.
const PROPERTIES: u32 = 1 | 2 | 8 | 16;
/// Best multiple of a READ or a WRITE.
const TRANSFER_MULTIPLE: u32 = 4096;

pub(super) fn get(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    out.u32(Status::OK.0);
    target.put_attr(out, &target.held.attr);
    Ok(Done::Now)
}

pub(super) fn set(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    let change = read_set_attr(args)?;
    let guard = args.bool()?.then(|| read_time(args)).transpose()?;
    target.check_writable()?;
    if let Some(guard) = guard {
        let now = target.fs().getattr(&target.caller, target.ino())?;
        if seconds_of(guard) != seconds_of(now.ctime) {
            return Err(Status::NOT_SYNC.into());
        }
    }
    let mut around = Around::default();
    if change != SetAttr::default() {
        change_attr(&target, &change, &mut around)?;
    }
    target.put_changed(out, &around);
    Ok(Done::Durable(target))
}

/// Changes attributes. Who owns a file may truncate it whatever its mode: it may be open.
pub(super) fn change_attr(
    target: &Target,
    change: &SetAttr,
    around: &mut Around,
) -> Result<(), FsError> {
    let set = |caller: &Caller, around: &mut Around| {
        target.fs().setattr(caller, target.ino(), change, Some(around)).map(drop)
    };
    let refused = match set(&target.caller, around) {
        Err(FsError::AccessDenied) => FsError::AccessDenied,
        done => return done,
    };
    // A client says the times of a truncate with it.
    let (size_bytes, atime, mtime) = (change.size_bytes, change.atime, change.mtime);
    let only_size = SetAttr { size_bytes, atime, mtime, ..SetAttr::default() };
    match target.owner() {
        Some(owner) if *change == only_size => set(&owner, around),
        _ => Err(refused),
    }
}

pub(super) fn access(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
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
    Ok(Done::Now)
}

pub(super) fn read_link(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    if target.held.attr.kind != FileKind::Symlink {
        return Err(Status::INVAL.into());
    }
    let path = target.fs().readlink(&target.caller, target.ino())?;
    target.put_ok(out);
    out.opaque(&path);
    Ok(Done::Now)
}

pub(super) fn fs_stat(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    let sizes = target.fs().statfs(&target.caller, target.export.fileset())?;
    target.put_ok(out);
    let inodes = sizes.inode_count.saturating_add(sizes.inodes_free);
    let bytes = [sizes.total_bytes, sizes.free_bytes, sizes.available_bytes];
    let counts = [inodes, sizes.inodes_free, sizes.inodes_free];
    bytes.into_iter().chain(counts).for_each(|number| out.u64(number));
    // It may all be different in a moment.
    out.u32(0);
    Ok(Done::Now)
}

pub(super) fn fs_info(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    target.put_ok(out);
    let transfer = [TRANSFER_BYTES_MAX, TRANSFER_BYTES_MAX, TRANSFER_MULTIPLE];
    // To read, to write, to list.
    out.words(&transfer);
    out.words(&transfer);
    out.u32(LISTING_BYTES);
    out.u64(FILE_BYTES_MAX);
    // Times are exact to a nanosecond.
    out.words(&[0, 1, PROPERTIES]);
    Ok(Done::Now)
}

pub(super) fn path_conf(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let target = work.target(args)?;
    target.put_ok(out);
    out.words(&[LINKS_MAX, count_of(NAME_BYTES_MAX)]);
    // Long names are refused, giving files away too; the case of letters counts and is kept.
    [true, true, false, true].into_iter().for_each(|is| out.bool(is));
    Ok(Done::Now)
}
