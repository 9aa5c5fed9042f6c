//! READ, WRITE and COMMIT.
//!
//! An UNSTABLE write is answered when accepted, other writes and COMMIT when durable. A crash loses
//! accepted writes and changes the verifier, so that clients send them again (C. Juszczak,
//! *Improving the write performance of an NFS server*, 1994).

use engine::api::{AttributeChange, Caller, FileKind, FsError, FsResult, Stability, WriteData};

use super::protocol::{ATTR_BYTES, NfsStatus, TRANSFER_BYTES_MAX, put_attr};
use super::service::{CallError, CallExecution, CallTarget, ReplyTiming};
use super::xdr::{XdrReader, XdrWriter, count_of};

const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

fn check_regular(target: &CallTarget) -> Result<(), CallError> {
    match target.held.attr.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(FsError::IsDirectory.into()),
        FileKind::Symlink
        | FileKind::BlockDevice
        | FileKind::CharDevice
        | FileKind::Fifo
        | FileKind::Socket => Err(NfsStatus::INVAL.into()),
    }
}

/// Reads for the caller. Whatever the mode, the owner may read, as the file may be open, and a
/// caller with execute permission may, to load a program.
fn read_into(
    target: &CallTarget,
    offset: u64,
    count: usize,
    into: &mut Vec<u8>,
) -> FsResult<usize> {
    let read = |caller: &Caller, into: &mut Vec<u8>| {
        target.fs().read(caller, target.ino(), offset, count, into)
    };
    let refused = match read(&target.caller, into) {
        Err(FsError::AccessDenied) => FsError::AccessDenied,
        done => return done,
    };
    let executes = || target.fs().access(&target.caller, target.ino()).is_ok_and(|a| a.executes);
    match target.owner() {
        Some(owner) => read(&owner, into),
        None if executes() => read(&Caller { uid: 0, ..target.caller.clone() }, into),
        None => Err(refused),
    }
}

pub(super) fn read(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let (offset, count) = (args.u64()?, args.u32()?.min(TRANSFER_BYTES_MAX));
    check_regular(&target)?;
    let count = usize::try_from(count).expect("TRANSFER_BYTES_MAX fits in a usize");
    out.u32(NfsStatus::OK.0);
    out.bool(true);
    let attr_at = out.len();
    out.raw(&[0; ATTR_BYTES]);
    let counts_at = out.len();
    out.words(&[0; 3]);
    out.inner().reserve(count);
    let bytes = read_into(&target, offset, count, out.inner())?;
    out.pad();
    let attr = target.fs().getattr(&target.caller, target.ino())?;
    let end = offset.saturating_add(u64::from(count_of(bytes)));
    let mut head = XdrWriter::with_room(ATTR_BYTES);
    put_attr(&mut head, &attr, target.fsid);
    out.set_raw(attr_at, &head.into_inner());
    out.set_u32(counts_at, count_of(bytes));
    out.set_u32(counts_at + 4, u32::from(bytes < count || end >= attr.size_bytes));
    out.set_u32(counts_at + 8, count_of(bytes));
    Ok(ReplyTiming::Now)
}

pub(super) fn write(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let (offset, count, stable) = (args.u64()?, args.u32()?, args.u32()?);
    let bytes = args.opaque(usize::try_from(TRANSFER_BYTES_MAX).expect("it is 1 MiB"))?;
    if stable > FILE_SYNC {
        return Err(CallError::Garbage);
    }
    target.check_writable()?;
    check_regular(&target)?;
    let count = usize::try_from(count).ok().and_then(|count| bytes.get(..count));
    let bytes = WriteData::Lent(count.ok_or(NfsStatus::INVAL)?);
    let mut around = AttributeChange::default();
    let write = |caller: &Caller, around: &mut AttributeChange| {
        let unstable = Stability::Unstable;
        target.fs().write_some(caller, target.ino(), offset, &bytes, unstable, Some(around))
    };
    let written = match (write(&target.caller, &mut around), target.owner()) {
        (Err(FsError::AccessDenied), Some(owner)) => write(&owner, &mut around)?,
        (done, _) => done?,
    };
    target.put_changed(out, &around);
    out.u32(count_of(written));
    out.u32(if stable == UNSTABLE { UNSTABLE } else { FILE_SYNC });
    out.u64(target.fs().verifier());
    if stable == UNSTABLE { Ok(ReplyTiming::Now) } else { Ok(ReplyTiming::Durable(target)) }
}

/// Commits the whole file and ignores the range.
pub(super) fn commit(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let target = work.target(args)?;
    let (_offset, _count) = (args.u64()?, args.u32()?);
    target.check_writable()?;
    target.put_changed(out, &AttributeChange::default());
    out.u64(target.fs().verifier());
    Ok(ReplyTiming::Durable(target))
}
