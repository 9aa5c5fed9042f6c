//! Who may do what: permission bits, the sticky bit, and what becomes of setuid and setgid.
//!
//! A caller whom a kernel has checked passes every test here, as the superuser does.

use engine::api::{AccessRights, Caller, FileKind, FsError, FsResult, PermissionChecks};

use super::{Node, acl};

pub(super) const SETUID: u16 = 0o4000;
pub(super) const SETGID: u16 = 0o2000;
pub(super) const STICKY: u16 = 0o1000;
const GROUP_BITS: u16 = 0o070;
const GROUP_EXECUTE: u16 = 0o010;
const EXECUTE_BITS: u16 = 0o111;

/// Permission to read, as one digit of a mode.
pub(super) const READ: u16 = 0o4;
/// Permission to write, as one digit of a mode.
pub(super) const WRITE: u16 = 0o2;
/// Permission to execute a file or to pass through a directory.
pub(super) const SEARCH: u16 = 0o1;

pub(super) fn is_privileged(caller: &Caller) -> bool {
    caller.checks == PermissionChecks::ByKernel || caller.uid == 0
}

pub(super) fn is_in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

pub(super) fn is_owner(caller: &Caller, node: &Node) -> bool {
    is_privileged(caller) || caller.uid == node.uid
}

/// Refuses with `EACCES` where one of the bits `wanted` is missing in the class of `caller`.
pub(super) fn require(caller: &Caller, node: &Node, wanted: u16) -> FsResult<()> {
    if is_privileged(caller) {
        return Ok(());
    }
    let granted = if caller.uid == node.uid {
        node.mode >> 6
    } else if let Some(list) = node.access.as_ref().filter(|_| node.mode & GROUP_BITS != 0) {
        // As Linux, which does not ask a list whose mask gives nothing.
        let is_permitted = acl::permits(list, caller, (node.uid, node.gid), wanted);
        return if is_permitted { Ok(()) } else { Err(FsError::AccessDenied) };
    } else if is_in_group(caller, node.gid) {
        node.mode >> 3
    } else {
        node.mode
    };
    if granted & wanted == wanted { Ok(()) } else { Err(FsError::AccessDenied) }
}

/// What `caller` may do with `node`.
pub(super) fn access_of(caller: &Caller, node: &Node) -> AccessRights {
    let may = |wanted| require(caller, node, wanted).is_ok();
    let is_plain = node.kind == FileKind::Regular && node.mode & EXECUTE_BITS == 0;
    // Even to the superuser, what nobody may execute is no program.
    let is_refused = is_plain && caller.checks == PermissionChecks::Here;
    AccessRights { reads: may(READ), writes: may(WRITE), executes: may(SEARCH) && !is_refused }
}

/// Refuses whom open(2) would refuse, however the file is to be opened.
pub(super) fn require_any(caller: &Caller, node: &Node) -> FsResult<()> {
    require(caller, node, READ).or_else(|_| require(caller, node, WRITE))
}

/// Whether `caller` may take the name of `victim` out of `directory`.
pub(super) fn require_removal(caller: &Caller, directory: &Node, victim: &Node) -> FsResult<()> {
    require(caller, directory, WRITE | SEARCH)?;
    let is_held_back =
        directory.mode & STICKY != 0 && !is_owner(caller, victim) && !is_owner(caller, directory);
    if is_held_back { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// As `protected_hardlinks` of Linux: who owns it, or who may use a plain file fully.
pub(super) fn require_link(caller: &Caller, node: &Node) -> FsResult<()> {
    let is_plain =
        node.kind == FileKind::Regular && node.mode & 0o4000 == 0 && node.mode & 0o2010 != 0o2010;
    if is_owner(caller, node) || is_plain && require(caller, node, READ | WRITE).is_ok() {
        return Ok(());
    }
    Err(FsError::NotPermitted)
}

/// Takes from a regular file what it loses when `caller` writes to it or truncates it.
pub(super) fn lose_by_write(caller: &Caller, node: &mut Node) {
    node.attributes.remove(super::xattr::CAPABILITY);
    if caller.loses_set_bits {
        node.mode = without_set_bits(node, is_in_group(caller, node.gid));
    }
}

/// Takes from `node` what it loses when its owner or group is set, even to what it was. Linux takes
/// that away from the superuser's files too.
pub(super) fn lose_by_chown(caller: &Caller, node: &mut Node) {
    if node.kind == FileKind::Regular {
        node.attributes.remove(super::xattr::CAPABILITY);
    }
    if node.kind != FileKind::Directory {
        let is_member = is_privileged(caller) || is_in_group(caller, node.gid);
        node.mode = without_set_bits(node, is_member);
    }
}

/// `mode` as `caller` may set it on a file of group `gid`: setgid only by a member.
pub(super) fn mode_allowed(caller: &Caller, mode: u16, gid: u32) -> u16 {
    if is_privileged(caller) || is_in_group(caller, gid) { mode } else { mode & !SETGID }
}

/// `mode` as `caller` may set it with an access list: of one that a kernel has checked, that kernel
/// knows whether it is a member.
pub(super) fn mode_allowed_with_list(caller: &Caller, mode: u16, gid: u32) -> u16 {
    let mode = mode_allowed(caller, mode, gid);
    let is_told = caller.checks == PermissionChecks::ByKernel && caller.loses_set_bits;
    if is_told { mode & !SETGID } else { mode }
}

/// Setgid without group execution once meant mandatory locking, so a member of the group keeps it.
fn without_set_bits(node: &Node, is_member: bool) -> u16 {
    let keeps_setgid = node.mode & GROUP_EXECUTE == 0 && is_member;
    node.mode & !SETUID & !if keeps_setgid { 0 } else { SETGID }
}

/// Mode and group of a new inode of `kind` in `parent`.
pub(super) fn inherited(caller: &Caller, parent: &Node, kind: FileKind, mode: u16) -> (u16, u32) {
    if parent.mode & SETGID == 0 {
        return (mode, caller.gid);
    }
    if kind == FileKind::Directory {
        return (mode | SETGID, parent.gid);
    }
    let is_program = mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
    let mode = if is_program { mode_allowed(caller, mode, parent.gid) } else { mode };
    (mode, parent.gid)
}

/// A directory of a project takes only what is of it from elsewhere.
pub(super) fn require_project(node: &Node, directory: &Node) -> FsResult<()> {
    let is_kept_out = directory.project != 0 && directory.project != node.project;
    if is_kept_out { Err(FsError::CrossFileset) } else { Ok(()) }
}
