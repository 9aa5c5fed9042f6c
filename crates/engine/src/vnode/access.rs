//! Who may do what: permission bits and access lists, the sticky bit, what becomes of setuid and
//! setgid.
//!
//! Checks come in the order of Linux's path walk, so that programs see the errors they know: the
//! directory (no directory, not to be searched, gone), the length of the name, whether the name is
//! there, permission to change the directory, the sticky bit, kinds, and the rest last.
//!
//! Content comes in the order of open(2): the kind of the file, permission to read or write it, and
//! the rest last.
//!
//! A caller whom a kernel has checked ([`Checks::ByKernel`]) may do what the superuser may.

use format::anode::{Anode, AnodeKind};
use runtime::planted::{self, Planted};

use super::api::{Access, Caller, Checks, FileKind, Ino, NAME_BYTES_MAX, SetAttr, SetTime};
use super::file::check_regular_anode;
use super::{Files, VnodeState};
use crate::error::{FsError, FsResult};

/// Wanted access, as in the permission bits.
pub(crate) const READ: u16 = 4;
/// Wanted access, as in the permission bits.
pub(crate) const WRITE: u16 = 2;
/// Wanted access, as in the permission bits: to execute a file, to search a directory.
pub(crate) const SEARCH: u16 = 1;
/// Permission bits with setuid, setgid and sticky.
pub(crate) const MODE_MASK: u16 = 0o7777;
const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
const GROUP_EXECUTE: u16 = 0o0010;
const EXECUTE_BITS: u16 = 0o0111;
const NANOSECONDS_MAX: u32 = 999_999_999;

pub(crate) fn is_privileged(caller: &Caller) -> bool {
    caller.checks == Checks::ByKernel || caller.uid == 0
}

/// Whether the limits of users, groups and projects do not hold for the caller, as for who has
/// `CAP_SYS_RESOURCE` elsewhere.
pub(crate) fn is_exempt(caller: &Caller) -> bool {
    caller.uid == 0
}

/// Refuses to bring a file into a directory that hands down another project: it would count for a
/// project whose directory it has left. As XFS, with `EXDEV`: whoever moves it copies it.
pub(crate) fn check_project(file: &Anode, directory: &Anode) -> FsResult<()> {
    let is_handed_down = directory.project != 0 && !planted::is(Planted::ProjectsMixed);
    if is_handed_down && file.project != directory.project {
        return Err(FsError::CrossFileset);
    }
    Ok(())
}

pub(crate) fn is_in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

impl Files<'_> {
    /// Returns what the caller may do; see [`super::api::FileSystem::access`].
    pub(crate) fn access_of(&self, caller: &Caller, ino: Ino) -> FsResult<Access> {
        let vnode = self.vnode(ino)?;
        let state = vnode.state.read();
        let anode = state.anode()?;
        let may = |wanted| {
            let checked = self.check_access(caller, anode, wanted);
            let is_refused = checked == Err(FsError::AccessDenied);
            if is_refused { Ok(false) } else { checked.map(|()| true) }
        };
        let is_kept = matches!(anode.kind, AnodeKind::Regular | AnodeKind::Directory);
        // Not even the superuser executes what is no program to anybody (capabilities(7)).
        let is_no_program = caller.checks == Checks::Here
            && caller.uid == 0
            && anode.kind == AnodeKind::Regular
            && anode.mode & EXECUTE_BITS == 0;
        Ok(Access {
            reads: may(READ)?,
            writes: may(WRITE)? && !(is_kept && self.check_writable().is_err()),
            executes: may(SEARCH)? && !is_no_program,
        })
    }

    /// Checks that `state` is of a regular file with whose content the caller may do `wanted`.
    pub(crate) fn check_content(
        &self,
        caller: &Caller,
        state: &VnodeState,
        wanted: u16,
    ) -> FsResult<()> {
        let anode = state.anode()?;
        check_regular_anode(anode)?;
        self.check_access(caller, anode, wanted)
    }

    /// Checks that the caller could have opened the file: to sync it asks for no more.
    pub(crate) fn check_open(&self, caller: &Caller, anode: &Anode) -> FsResult<()> {
        let reads = self.check_access(caller, anode, READ);
        if reads == Err(FsError::AccessDenied) {
            return self.check_access(caller, anode, WRITE);
        }
        reads
    }

    /// Checks `wanted` against the permission bits, and the access list if there is one.
    pub(crate) fn check_access(&self, caller: &Caller, anode: &Anode, wanted: u16) -> FsResult<()> {
        if is_privileged(caller) {
            return Ok(());
        }
        let is_granted = if caller.uid == anode.uid {
            anode.mode >> 6 & wanted == wanted
        } else if let Some(is_granted) = self.acl_grants(caller, anode, wanted)? {
            is_granted
        } else {
            let shift = if is_in_group(caller, anode.gid) { 3 } else { 0 };
            anode.mode >> shift & wanted == wanted
        };
        if is_granted { Ok(()) } else { Err(FsError::AccessDenied) }
    }

    /// Checks that the caller may take the name of `file` out of `directory`: in a sticky
    /// directory only the owner of either may.
    pub(crate) fn check_removal(
        &self,
        caller: &Caller,
        directory: &Anode,
        file: &Anode,
    ) -> FsResult<()> {
        self.check_access(caller, directory, WRITE | SEARCH)?;
        let is_free = is_privileged(caller)
            || directory.mode & STICKY == 0
            || planted::is(Planted::StickyIgnored)
            || caller.uid == directory.uid
            || caller.uid == file.uid;
        if is_free { Ok(()) } else { Err(FsError::NotPermitted) }
    }

    /// Checks that the caller may give a file another name (`protected_hardlinks`): a link keeps a
    /// file that its owner removes, and brings it to where files of the linker are expected.
    pub(crate) fn check_link(&self, caller: &Caller, anode: &Anode) -> FsResult<()> {
        if is_privileged(caller) || caller.uid == anode.uid {
            return Ok(());
        }
        let runs_as_group = anode.mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
        let is_plain =
            anode.kind == AnodeKind::Regular && anode.mode & SETUID == 0 && !runs_as_group;
        let may_use = self.check_access(caller, anode, READ | WRITE);
        match (is_plain, may_use) {
            (true, Ok(())) => Ok(()),
            (false, _) | (true, Err(FsError::AccessDenied)) => Err(FsError::NotPermitted),
            (true, error) => error,
        }
    }

    /// Returns the anode of a directory that is still there and that the caller may search.
    pub(crate) fn searched<'s>(
        &self,
        caller: &Caller,
        state: &'s VnodeState,
    ) -> FsResult<&'s Anode> {
        let anode = state.anode()?;
        if anode.kind != AnodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        self.check_access(caller, anode, SEARCH)?;
        if anode.nlink == 0 { Err(FsError::NotFound) } else { Ok(anode) }
    }

    /// Refuses a change that makes no sense, whoever asks, or that the caller may not make
    /// (chmod(2), chown(2), truncate(2), utimensat(2)).
    pub(crate) fn check_change(
        &self,
        caller: &Caller,
        anode: &Anode,
        change: &SetAttr,
    ) -> FsResult<()> {
        check_sound(anode, change)?;
        if change.size_bytes.is_some() {
            self.check_access(caller, anode, WRITE)?;
        }
        if change.project.is_some() && !is_exempt(caller) {
            return Err(FsError::NotPermitted);
        }
        if is_privileged(caller) {
            return Ok(());
        }
        let is_owner = caller.uid == anode.uid;
        let may_set_uid = change.uid.is_none_or(|uid| is_owner && uid == anode.uid);
        let may_set_gid =
            change.gid.is_none_or(|gid| is_owner && (gid == anode.gid || is_in_group(caller, gid)));
        let may_set_mode = change.mode.is_none() || is_owner;
        if !may_set_uid || !may_set_gid || !may_set_mode {
            return Err(FsError::NotPermitted);
        }
        match (change.atime, change.mtime) {
            _ if is_owner => Ok(()),
            (None, None) => Ok(()),
            // utime(2) without times needs no more than permission to write.
            (Some(SetTime::Now), Some(SetTime::Now)) => self.check_access(caller, anode, WRITE),
            (Some(_), _) | (None, Some(_)) => Err(FsError::NotPermitted),
        }
    }
}

/// Refuses what is no name at all, and `.` and `..` where they are not names.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    let is_none = name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if is_none || name == b"." || name == b".." { Err(FsError::Invalid) } else { Ok(()) }
}

/// Refuses a name that no directory can have.
pub(crate) fn check_length(name: &[u8]) -> FsResult<()> {
    if name.len() > NAME_BYTES_MAX { Err(FsError::NameTooLong) } else { Ok(()) }
}

/// Returns mode and group of a new file of `kind` in `directory`.
pub(crate) fn inherited(
    caller: &Caller,
    directory: &Anode,
    kind: FileKind,
    mode: u16,
) -> (u16, u32) {
    if directory.mode & SETGID == 0 || planted::is(Planted::GroupNotInherited) {
        return (mode, caller.gid);
    }
    if kind == FileKind::Directory {
        return (mode | SETGID, directory.gid);
    }
    let is_program = mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
    let mode = if is_program { mode_allowed(caller, mode, directory.gid) } else { mode };
    (mode, directory.gid)
}

/// Returns `mode` as the caller may set it on a file of group `gid`: setgid only by a member.
pub(crate) fn mode_allowed(caller: &Caller, mode: u16, gid: u32) -> u16 {
    if is_privileged(caller) || is_in_group(caller, gid) { mode } else { mode & !SETGID }
}

/// Returns `mode` as the caller may set it with an access list on a file of group `gid`. A kernel
/// that has checked the caller has looked at its groups too.
pub(crate) fn mode_allowed_with_list(caller: &Caller, mode: u16, gid: u32) -> u16 {
    if caller.checks == Checks::ByKernel && caller.loses_set_bits {
        return mode & !SETGID;
    }
    mode_allowed(caller, mode, gid)
}

/// A write or a truncate by somebody without `CAP_FSETID` takes setuid and setgid away. That is a
/// privilege of its own: it is not had by who was checked elsewhere.
pub(crate) fn clear_set_bits_of_write(caller: &Caller, anode: &mut Anode) {
    if caller.loses_set_bits {
        clear_set_bits(is_in_group(caller, anode.gid), anode);
    }
}

/// Setgid without group execution once meant mandatory locking, so a member of the group keeps it.
fn clear_set_bits(is_member: bool, anode: &mut Anode) {
    if !planted::is(Planted::SetuidKept) {
        anode.mode &= !SETUID;
    }
    if anode.mode & GROUP_EXECUTE != 0 || !is_member {
        anode.mode &= !SETGID;
    }
}

fn check_sound(anode: &Anode, change: &SetAttr) -> FsResult<()> {
    if let Some(size_bytes) = change.size_bytes {
        check_regular_anode(anode)?;
        if size_bytes > super::api::FILE_BYTES_MAX {
            return Err(FsError::FileTooLarge);
        }
    }
    if change.mode.is_some() && anode.kind == AnodeKind::Symlink {
        return Err(FsError::NotSupported);
    }
    check_ids(change.uid, change.gid)?;
    let mut set = [change.atime, change.mtime, change.ctime.map(SetTime::To)].into_iter().flatten();
    if set.all(is_sound_time) { Ok(()) } else { Err(FsError::Invalid) }
}

/// Refuses the number that no user and no group has: chown(2) takes it for "leave it".
pub(crate) fn check_ids(uid: Option<u32>, gid: Option<u32>) -> FsResult<()> {
    if [uid, gid].contains(&Some(u32::MAX)) { Err(FsError::Invalid) } else { Ok(()) }
}

/// Whether a time is one at all.
pub(crate) fn is_sound_time(set: SetTime) -> bool {
    match set {
        SetTime::To(time) => time.nanoseconds <= NANOSECONDS_MAX,
        SetTime::Now => true,
    }
}

/// Takes setuid and setgid away, as Linux does even where the superuser sets what was there.
pub(crate) fn clear_set_bits_of_chown(caller: &Caller, anode: &mut Anode) {
    if anode.kind != AnodeKind::Directory {
        clear_set_bits(is_privileged(caller) || is_in_group(caller, anode.gid), anode);
    }
}

/// Sets owner, group and mode.
pub(crate) fn set_owner_and_mode(caller: &Caller, anode: &mut Anode, change: &SetAttr) {
    if change.uid.is_some() || change.gid.is_some() {
        clear_set_bits_of_chown(caller, anode);
    }
    anode.uid = change.uid.unwrap_or(anode.uid);
    anode.gid = change.gid.unwrap_or(anode.gid);
    if let Some(mode) = change.mode {
        anode.mode = mode_allowed(caller, mode & MODE_MASK, anode.gid);
    }
}
