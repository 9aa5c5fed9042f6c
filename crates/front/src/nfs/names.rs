//! Procedures about names.
//!
//! Changes of invalid names are refused here, with the errors of Linux's server.

use engine::api::{
    Attr, AttributeChange, FileKind, FsError, NewInode, RenameMode, SYMLINK_BYTES_MAX, SetAttr,
};

use super::attributes::change_attr;
use super::protocol::{NfsStatus, PATH_BYTES_MAX, packed, read_set_attr};
use super::service::{CallError, CallExecution, CallTarget, ReferencedFile, ReplyTiming};
use super::xdr::{XdrReader, XdrWriter};

/// Mode of a file created without a mode: no access for others. After an exclusive creation the
/// client's next call sets the mode.
const MODE_UNSAID: u16 = 0;

/// Refuses an invalid name. `dots` is the status for `.` and `..`.
fn check_name(name: &[u8], dots: NfsStatus) -> Result<(), CallError> {
    if name == b"." || name == b".." {
        return Err(dots.into());
    }
    let is_none = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_none { Err(NfsStatus::INVAL.into()) } else { Ok(()) }
}

fn place<'m>(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'m>,
    dots: NfsStatus,
) -> Result<(CallTarget, &'m [u8]), CallError> {
    let directory = work.target(args)?;
    let name = args.opaque(PATH_BYTES_MAX)?;
    directory.check_writable()?;
    check_name(name, dots)?;
    Ok((directory, name))
}

pub(super) fn lookup(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let directory = work.target(args)?;
    let mut name = args.opaque(PATH_BYTES_MAX)?;
    if directory.held.attr.kind != FileKind::Directory {
        return Err(NfsStatus::NOTDIR.into());
    }
    if name == b".." {
        if directory.export.is_root(directory.ino()) {
            name = b".";
        } else {
            directory.export.check_inside(directory.ino())?;
        }
    }
    if name != b"." && name != b".." {
        check_name(name, NfsStatus::INVAL)?;
    }
    let found = match directory.fs().lookup(&directory.caller, directory.ino(), name) {
        Err(error @ (FsError::NotFound | FsError::AccessDenied)) => {
            let seen = (directory.held.attr.clone(), directory.fsid);
            return Err(CallError::Seen(NfsStatus::from(&error), Box::new(seen)));
        }
        found => found?,
    };
    directory.fs().forget(found.ino, 1);
    out.u32(NfsStatus::OK.0);
    out.opaque(&work.seal(&directory, &found));
    directory.put_some_attr(out, Some(&found));
    directory.put_some_attr(out, Some(&directory.held.attr));
    Ok(ReplyTiming::Now)
}

fn made(
    work: &CallExecution<'_>,
    directory: CallTarget,
    attr: &Attr,
    around: &AttributeChange,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    directory.fs().forget(attr.ino, 1);
    put_made(work, &directory, attr, around, out);
    Ok(ReplyTiming::Durable(directory))
}

fn put_made(
    work: &CallExecution<'_>,
    directory: &CallTarget,
    attr: &Attr,
    around: &AttributeChange,
    out: &mut XdrWriter,
) {
    out.u32(NfsStatus::OK.0);
    out.bool(true);
    out.opaque(&work.seal(directory, attr));
    directory.put_some_attr(out, Some(attr));
    directory.put_around(out, around);
}

fn new_inode(kind: FileKind, asked: &SetAttr) -> NewInode {
    NewInode {
        uid: asked.uid,
        gid: asked.gid,
        atime: asked.atime,
        mtime: asked.mtime,
        ..NewInode::new(kind, asked.mode.unwrap_or(MODE_UNSAID))
    }
}

pub(super) fn create(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    const UNCHECKED: u32 = 0;
    const GUARDED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    let (directory, name) = place(work, args, NfsStatus::EXIST)?;
    let how = args.u32()?;
    let (new, size_bytes) = match how {
        UNCHECKED | GUARDED => {
            let asked = read_set_attr(args)?;
            (new_inode(FileKind::Regular, &asked), asked.size_bytes)
        }
        EXCLUSIVE => {
            let new = NewInode::new(FileKind::Regular, MODE_UNSAID);
            (NewInode { verifier: Some(args.u64()?), ..new }, None)
        }
        _ => return Err(CallError::Garbage),
    };
    let mut around = AttributeChange::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = match fs.create(caller, directory.ino(), name, new, Some(&mut around)) {
        Err(FsError::Exists) if how == UNCHECKED => {
            around = AttributeChange::default();
            fs.lookup(caller, directory.ino(), name)?
        }
        made => made?,
    };
    let size_bytes =
        size_bytes.filter(|&size| attr.kind == FileKind::Regular && size != attr.size_bytes);
    let Some(size_bytes) = size_bytes else {
        return made(work, directory, &attr, &around, out);
    };
    let file = directory.beside(ReferencedFile::new(&directory.export, attr.clone()));
    let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    let mut resized = AttributeChange::default();
    change_attr(&file, &change, &mut resized)?;
    let attr = resized.after.unwrap_or(attr);
    // The resize is the last transaction, so its commit makes the creation durable too.
    put_made(work, &directory, &attr, &around, out);
    Ok(ReplyTiming::Durable(file))
}

pub(super) fn make_directory(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let (directory, name) = place(work, args, NfsStatus::EXIST)?;
    let asked = read_set_attr(args)?;
    make(work, directory, name, new_inode(FileKind::Directory, &asked), out)
}

pub(super) fn make_node(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let (directory, name) = place(work, args, NfsStatus::EXIST)?;
    let kind = match args.u32()? {
        3 => FileKind::BlockDevice,
        4 => FileKind::CharDevice,
        6 => FileKind::Socket,
        7 => FileKind::Fifo,
        1 | 2 | 5 => return Err(NfsStatus::BADTYPE.into()),
        _ => return Err(CallError::Garbage),
    };
    let mut new = new_inode(kind, &read_set_attr(args)?);
    if matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
        let (major, minor) = (args.u32()?, args.u32()?);
        if directory.caller.uid != 0 {
            return Err(NfsStatus::PERM.into());
        }
        new.rdev = packed(major, minor).ok_or(NfsStatus::INVAL)?;
    }
    make(work, directory, name, new, out)
}

fn make(
    work: &CallExecution<'_>,
    directory: CallTarget,
    name: &[u8],
    new: NewInode,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let mut around = AttributeChange::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = fs.create(caller, directory.ino(), name, new, Some(&mut around))?;
    made(work, directory, &attr, &around, out)
}

pub(super) fn symlink(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let (directory, name) = place(work, args, NfsStatus::EXIST)?;
    let asked = read_set_attr(args)?;
    let path = args.opaque(PATH_BYTES_MAX)?;
    if path.is_empty() || path.contains(&0) {
        return Err(NfsStatus::INVAL.into());
    }
    if path.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    let new = NewInode { mode: 0o777, ..new_inode(FileKind::Symlink, &asked) };
    let mut around = AttributeChange::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = fs.symlink(caller, directory.ino(), name, path, new, Some(&mut around))?;
    made(work, directory, &attr, &around, out)
}

pub(super) fn remove(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
    is_directory: bool,
) -> Result<ReplyTiming, CallError> {
    let (directory, name) = place(work, args, NfsStatus::INVAL)?;
    let mut around = AttributeChange::default();
    let (fs, caller, parent) = (directory.fs(), &directory.caller, directory.ino());
    if is_directory {
        fs.rmdir(caller, parent, name, Some(&mut around))?;
    } else {
        fs.unlink(caller, parent, name, Some(&mut around))?;
    }
    directory.put_changed(out, &around);
    Ok(ReplyTiming::Durable(directory))
}

pub(super) fn rename(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let (from, old) = place(work, args, NfsStatus::INVAL)?;
    let to = work.second(args, &from)?;
    let new = args.opaque(PATH_BYTES_MAX)?;
    check_name(new, NfsStatus::INVAL)?;
    let mut around = [AttributeChange::default(), AttributeChange::default()];
    let (source, target) = ((from.ino(), old), (to.attr.ino, new));
    from.fs().rename(&from.caller, source, target, RenameMode::Replace, Some(&mut around))?;
    from.put_changed(out, &around[0]);
    from.beside(to).put_around(out, &around[1]);
    Ok(ReplyTiming::Durable(from))
}

pub(super) fn link(
    work: &CallExecution<'_>,
    args: &mut XdrReader<'_>,
    out: &mut XdrWriter,
) -> Result<ReplyTiming, CallError> {
    let file = work.target(args)?;
    let parent = work.second(args, &file)?;
    let name = args.opaque(PATH_BYTES_MAX)?;
    file.check_writable()?;
    check_name(name, NfsStatus::EXIST)?;
    let mut around = AttributeChange::default();
    let (fs, caller) = (file.fs(), &file.caller);
    let attr = fs.link(caller, file.ino(), parent.attr.ino, name, Some(&mut around))?;
    fs.forget(attr.ino, 1);
    out.u32(NfsStatus::OK.0);
    file.put_some_attr(out, Some(&attr));
    let directory = file.beside(parent);
    directory.put_around(out, &around);
    Ok(ReplyTiming::Durable(directory))
}
