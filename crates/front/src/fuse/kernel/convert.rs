//! Between the library's types and ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::vnode::api::{Attr, FileKind, RenameMode, SetTime, Timestamp};
use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};

use crate::fuse::protocol::{ListedName, Node, Reply};

/// Returns the error a reply stands for; a reply of the wrong sort is our bug, and says `EIO`.
pub(super) fn error_of(reply: &Reply<'_>) -> Errno {
    match reply {
        Reply::Error(error) => Errno::from_i32(error.raw_os_error()),
        Reply::Done
        | Reply::Silence
        | Reply::Entry(_)
        | Reply::Created(_)
        | Reply::Attr(_)
        | Reply::Data(_)
        | Reply::Written(_)
        | Reply::StatFs(_) => {
            debug_assert!(false, "a reply of the wrong sort: {reply:?}");
            Errno::EIO
        }
    }
}

pub(super) fn error_unless_done(reply: &Reply<'_>) -> Option<Errno> {
    if *reply == Reply::Done { None } else { Some(error_of(reply)) }
}

pub(super) fn permission_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).expect("12 bits fit in 16")
}

pub(super) fn made_kind(mode: u32) -> Option<FileKind> {
    match rustix::fs::FileType::from_raw_mode(mode) {
        rustix::fs::FileType::RegularFile => Some(FileKind::Regular),
        rustix::fs::FileType::BlockDevice => Some(FileKind::BlockDevice),
        rustix::fs::FileType::CharacterDevice => Some(FileKind::CharDevice),
        rustix::fs::FileType::Fifo => Some(FileKind::Fifo),
        rustix::fs::FileType::Socket => Some(FileKind::Socket),
        rustix::fs::FileType::Directory
        | rustix::fs::FileType::Symlink
        | rustix::fs::FileType::Unknown => None,
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    if flags.is_empty() {
        Some(RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Some(RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Some(RenameMode::Exchange)
    } else {
        None
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

pub(super) fn file_attr(node: &Node, block_bytes: u32) -> FileAttr {
    let Attr { kind, mode, nlink, uid, gid, rdev, size_bytes, blocks_512, .. } = node.attr;
    FileAttr {
        ino: INodeNo(node.id.0),
        size: size_bytes,
        blocks: blocks_512,
        atime: system_time(node.attr.atime),
        mtime: system_time(node.attr.mtime),
        ctime: system_time(node.attr.ctime),
        crtime: system_time(node.attr.btime),
        kind: file_type(kind),
        perm: mode,
        nlink,
        uid,
        gid,
        rdev,
        blksize: block_bytes,
        flags: 0,
    }
}

/// Returns attributes of which the kernel takes the number and the kind for the listing, and no
/// more: it refuses a size past [`i64::MAX`], gives the reference back, and looks up the name when
/// it needs it. (The protocol has node id 0 for this; the library always sends the inode number.)
pub(super) fn name_only_attr(name: &ListedName<'_>) -> FileAttr {
    FileAttr {
        ino: INodeNo(name.id.0),
        size: u64::MAX,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: file_type(name.kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// Converts to the standard library's time; the library sends it on without loss.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let start = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    start
        .and_then(|t| t.checked_add(Duration::from_nanos(time.nanoseconds.into())))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timestamp_from_library(time)),
    }
}

/// Converts a time that the library made of the kernel's (seconds, nanoseconds).
///
/// Before 1970 the library subtracts both from the epoch, where the nanoseconds should be added; so
/// here they are taken apart the same way, which gives back what the kernel sent.
pub(super) fn timestamp_from_library(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            seconds: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: after.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |s| -s);
            Timestamp { seconds, nanoseconds: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a time survives the way in and the way out, before 1970 too.
    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // What the library makes of the kernel's (-2, 800_000_000).
        let from_library = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let time = timestamp_from_library(from_library);
        assert_eq!(time, Timestamp { seconds: -2, nanoseconds: 800_000_000 });
        // -2 s + 0.8 s is 1.2 s before the epoch.
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::from_millis(1200));
    }

    #[test]
    fn the_ends_of_time_do_not_panic() {
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(Timestamp { seconds, nanoseconds: 999_999_999 });
        }
    }

    #[test]
    fn rename_modes_that_are_not_known_are_none() {
        assert_eq!(rename_mode(RenameFlags::empty()), Some(RenameMode::Replace));
        assert_eq!(rename_mode(RenameFlags::RENAME_NOREPLACE), Some(RenameMode::NoReplace));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!(rename_mode(RenameFlags::all()), None);
    }
}
