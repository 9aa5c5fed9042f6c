//! Calls about names.
//!
//! A name comes as any bytes; the file system wants names to change that are names. So what is
//! none is refused here: as Linux's server does.

use engine::vnode::api::{
    Around, Attr, FileKind, FsError, NewInode, RenameMode, SYMLINK_BYTES_MAX, SetAttr,
};

use super::attributes::change_attr;
use super::protocol::{PATH_BYTES_MAX, Status, packed, read_set_attr};
use super::service::{Done, Held, Refused, Target, Work};
use super::xdr::{Reader, Writer};

/// Permission bits of a file whose maker says nothing of them. Nobody else may use it until its
/// mode is set: after an exclusive creation that is the next call.
const MODE_UNSAID: u16 = 0;

/// Refuses a name that is none; `dots` is the answer to `.` and `..`.
fn check_name(name: &[u8], dots: Status) -> Result<(), Refused> {
    if name == b"." || name == b".." {
        return Err(dots.into());
    }
    let is_none = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_none { Err(Status::INVAL.into()) } else { Ok(()) }
}

/// Reads a directory and a name in it, for a change of that.
fn place<'m>(
    work: &Work<'_>,
    args: &mut Reader<'m>,
    dots: Status,
) -> Result<(Target, &'m [u8]), Refused> {
    let directory = work.target(args)?;
    let name = args.opaque(PATH_BYTES_MAX)?;
    directory.check_writable()?;
    check_name(name, dots)?;
    Ok((directory, name))
}

pub(super) fn lookup(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let directory = work.target(args)?;
    let mut name = args.opaque(PATH_BYTES_MAX)?;
    if directory.held.attr.kind != FileKind::Directory {
        return Err(Status::NOTDIR.into());
    }
    if name == b".." {
        if directory.export.is_root(directory.ino()) {
            name = b".";
        } else {
            directory.export.check_inside(directory.ino())?;
        }
    }
    if name != b"." && name != b".." {
        check_name(name, Status::INVAL)?;
    }
    let found = match directory.fs().lookup(&directory.caller, directory.ino(), name) {
        Err(error @ (FsError::NotFound | FsError::AccessDenied)) => {
            let seen = (directory.held.attr.clone(), directory.fsid);
            return Err(Refused::Seen(Status::from(&error), Box::new(seen)));
        }
        found => found?,
    };
    directory.fs().forget(found.ino, 1);
    out.u32(Status::OK.0);
    out.opaque(&work.seal(&directory, &found));
    directory.put_some_attr(out, Some(&found));
    directory.put_some_attr(out, Some(&directory.held.attr));
    Ok(Done::Now)
}

/// Answers a creation: a handle, attributes, and those of the directory around it.
fn made(
    work: &Work<'_>,
    directory: Target,
    attr: &Attr,
    around: &Around,
    out: &mut Writer,
) -> Result<Done, Refused> {
    directory.fs().forget(attr.ino, 1);
    put_made(work, &directory, attr, around, out);
    Ok(Done::Durable(directory))
}

/// Writes the answer to a creation.
fn put_made(work: &Work<'_>, directory: &Target, attr: &Attr, around: &Around, out: &mut Writer) {
    out.u32(Status::OK.0);
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
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    const UNCHECKED: u32 = 0;
    const GUARDED: u32 = 1;
    const EXCLUSIVE: u32 = 2;
    let (directory, name) = place(work, args, Status::EXIST)?;
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
        _ => return Err(Refused::Garbage),
    };
    let mut around = Around::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = match fs.create(caller, directory.ino(), name, new, Some(&mut around)) {
        Err(FsError::Exists) if how == UNCHECKED => {
            around = Around::default();
            fs.lookup(caller, directory.ino(), name)?
        }
        made => made?,
    };
    let size_bytes =
        size_bytes.filter(|&size| attr.kind == FileKind::Regular && size != attr.size_bytes);
    let Some(size_bytes) = size_bytes else {
        return made(work, directory, &attr, &around, out);
    };
    let file = directory.beside(Held::new(&directory.export, attr.clone()));
    let change = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    let mut resized = Around::default();
    change_attr(&file, &change, &mut resized)?;
    let attr = resized.after.unwrap_or(attr);
    // Its class is the last, so that the directory's is durable with it.
    put_made(work, &directory, &attr, &around, out);
    Ok(Done::Durable(file))
}

pub(super) fn make_directory(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let (directory, name) = place(work, args, Status::EXIST)?;
    let asked = read_set_attr(args)?;
    make(work, directory, name, new_inode(FileKind::Directory, &asked), out)
}

pub(super) fn make_node(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let (directory, name) = place(work, args, Status::EXIST)?;
    let kind = match args.u32()? {
        3 => FileKind::BlockDevice,
        4 => FileKind::CharDevice,
        6 => FileKind::Socket,
        7 => FileKind::Fifo,
        1 | 2 | 5 => return Err(Status::BADTYPE.into()),
        _ => return Err(Refused::Garbage),
    };
    let mut new = new_inode(kind, &read_set_attr(args)?);
    if matches!(kind, FileKind::BlockDevice | FileKind::CharDevice) {
        let (major, minor) = (args.u32()?, args.u32()?);
        if directory.caller.uid != 0 {
            return Err(Status::PERM.into());
        }
        new.rdev = packed(major, minor).ok_or(Status::INVAL)?;
    }
    make(work, directory, name, new, out)
}

fn make(
    work: &Work<'_>,
    directory: Target,
    name: &[u8],
    new: NewInode,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let mut around = Around::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = fs.create(caller, directory.ino(), name, new, Some(&mut around))?;
    made(work, directory, &attr, &around, out)
}

pub(super) fn symlink(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let (directory, name) = place(work, args, Status::EXIST)?;
    let asked = read_set_attr(args)?;
    let path = args.opaque(PATH_BYTES_MAX)?;
    if path.is_empty() || path.contains(&0) {
        return Err(Status::INVAL.into());
    }
    if path.len() > SYMLINK_BYTES_MAX {
        return Err(FsError::NameTooLong.into());
    }
    let new = NewInode { mode: 0o777, ..new_inode(FileKind::Symlink, &asked) };
    let mut around = Around::default();
    let (fs, caller) = (directory.fs(), &directory.caller);
    let attr = fs.symlink(caller, directory.ino(), name, path, new, Some(&mut around))?;
    made(work, directory, &attr, &around, out)
}

pub(super) fn remove(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
    is_directory: bool,
) -> Result<Done, Refused> {
    let (directory, name) = place(work, args, Status::INVAL)?;
    let mut around = Around::default();
    let (fs, caller, parent) = (directory.fs(), &directory.caller, directory.ino());
    if is_directory {
        fs.rmdir(caller, parent, name, Some(&mut around))?;
    } else {
        fs.unlink(caller, parent, name, Some(&mut around))?;
    }
    directory.put_changed(out, &around);
    Ok(Done::Durable(directory))
}

pub(super) fn rename(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let (from, old) = place(work, args, Status::INVAL)?;
    let to = work.second(args, &from)?;
    let new = args.opaque(PATH_BYTES_MAX)?;
    check_name(new, Status::INVAL)?;
    let mut around = [Around::default(), Around::default()];
    let (source, target) = ((from.ino(), old), (to.attr.ino, new));
    from.fs().rename(&from.caller, source, target, RenameMode::Replace, Some(&mut around))?;
    from.put_changed(out, &around[0]);
    from.beside(to).put_around(out, &around[1]);
    Ok(Done::Durable(from))
}

pub(super) fn link(
    work: &Work<'_>,
    args: &mut Reader<'_>,
    out: &mut Writer,
) -> Result<Done, Refused> {
    let file = work.target(args)?;
    let parent = work.second(args, &file)?;
    let name = args.opaque(PATH_BYTES_MAX)?;
    file.check_writable()?;
    check_name(name, Status::EXIST)?;
    let mut around = Around::default();
    let (fs, caller) = (file.fs(), &file.caller);
    let attr = fs.link(caller, file.ino(), parent.attr.ino, name, Some(&mut around))?;
    fs.forget(attr.ino, 1);
    out.u32(Status::OK.0);
    file.put_some_attr(out, Some(&attr));
    let directory = file.beside(parent);
    directory.put_around(out, &around);
    Ok(Done::Durable(directory))
}
