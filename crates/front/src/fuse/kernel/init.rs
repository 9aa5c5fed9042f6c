//! The handshake: what is asked of the kernel, and what it grants.
//!
//! | capability | asked | why |
//! |---|---|---|
//! | `DO_READDIRPLUS` with `AUTO` | yes | a listing that is stat'ed costs no lookups |
//! | `PARALLEL_DIROPS`, `ASYNC_READ` | yes | the server is multi-threaded |
//! | `ASYNC_DIO` | no | behind an asynchronous direct write the kernel drops no page (FU6) |
//! | `BIG_WRITES`, `MAX_PAGES` | yes | requests of 1 MiB |
//! | `EXPORT_SUPPORT` | but of one user's | handles survive a restart (FU2), and have no path |
//! | `CACHE_SYMLINKS` | yes | what a link says never changes |
//! | `EXPLICIT_INVAL_DATA` | where it is alone | only the kernel changes things (FU1) |
//! | `NO_OPEN_SUPPORT`, `NO_OPENDIR_SUPPORT` | where it is alone | `ENOSYS` then ends opens |
//! | `AUTO_INVAL_DATA` | where it is not | pages go with the size or mtime of before (FU7) |
//! | `POSIX_ACL`, `SETXATTR_EXT` | where there are access lists | the kernel decides by them |
//! | `DONT_MASK` | with them | the umask counts only where a directory's list does not |
//! | `WRITEBACK_CACHE` | by option | writes are then lost by `kill -9` until fsync |
//! | `ATOMIC_O_TRUNC` | no | OPEN would truncate, and OPEN is not sent |
//! | `HANDLE_KILLPRIV_V2` | yes | else the kernel asks for `security.capability` at each write |
//! | `HANDLE_KILLPRIV` | no | would take setuid and setgid from files of the superuser too |
//! | `OVER_IO_URING`, `INIT_EXT` | where queues are ready | a request is served where it is asked |
//! | `SPLICE_*` | no | data is copied once, into a segment or out of the kernel's pages |
//! | `POSIX_LOCKS`, `FLOCK_LOCKS` | no | locks are among the processes of one kernel |

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::decode::Dialect;
use super::fuse_kernel::{
    InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, OutHeader, init as flag, opcode,
};
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Requests the kernel may have under way that no process waits for (read-ahead, write-back).
/// Its own default, 12, keeps one disk busy but not several threads.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// Bytes of a page, the unit of [`InitOut::max_pages`]. A kernel with larger pages grants more.
const PAGE_BYTES: u32 = 4096;

/// What to ask for beside what is always asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Requested {
    pub(super) has_writeback_cache: bool,
    pub(super) has_acls: bool,
    pub(super) has_queues: bool,
    /// Whether others change the files too.
    pub(super) is_shared: bool,
    /// Whether there may be files of which the kernel keeps nothing, and which it is to map too.
    pub(super) has_direct_io: bool,
    /// Whether it answers for what it has named alone (GN1).
    pub(super) is_of_one_user: bool,
}

/// How the handshake goes on.
pub(super) enum Answer {
    /// Send this; it is done.
    Agreed(InitOut, Dialect),
    /// Send this; the kernel begins again with our major version.
    Again(InitOut),
    /// Send the error; the kernel is too old, or this was no INIT.
    Refused(Errno),
}

/// Answers INIT. `None`: the message is too short to be answered.
pub(super) fn answer(message: &[u8], requested: Requested) -> Option<(u64, Answer)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let answer = match InitIn::read_from_prefix(body) {
        Ok((offer, rest)) if header.opcode == opcode::INIT => agree(&offer, rest, requested),
        Ok(_) | Err(_) => Answer::Refused(Errno::PROTO),
    };
    Some((header.unique, answer))
}

fn agree(offer: &InitIn, rest: &[u8], requested: Requested) -> Answer {
    if offer.major > MAJOR {
        return Answer::Again(reply(offer, 0));
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return Answer::Refused(Errno::PROTO);
    }
    let upper = match u32::read_from_prefix(rest) {
        Ok((upper, _)) if u64::from(offer.flags) & flag::INIT_EXT != 0 => upper,
        Ok(_) | Err(_) => 0,
    };
    let offered = u64::from(offer.flags) | u64::from(upper) << 32;
    // A kernel without one of these is slower, not wrong.
    let mut granted = wanted(requested) & offered;
    // Of no use without each other.
    let acls = flag::POSIX_ACL | flag::DONT_MASK | flag::SETXATTR_EXT;
    if granted & acls != acls {
        granted &= !acls;
    }
    let dialect = Dialect {
        has_long_setxattr: granted & flag::SETXATTR_EXT != 0,
        leaves_umask: granted & flag::DONT_MASK != 0,
        has_queues: granted & flag::OVER_IO_URING != 0,
    };
    Answer::Agreed(reply(offer, granted), dialect)
}

fn wanted(requested: Requested) -> u64 {
    let mut wanted = flag::DO_READDIRPLUS
        | flag::READDIRPLUS_AUTO
        | flag::PARALLEL_DIROPS
        | flag::ASYNC_READ
        | flag::BIG_WRITES
        | flag::MAX_PAGES
        | flag::CACHE_SYMLINKS
        | flag::HANDLE_KILLPRIV_V2;
    if !requested.is_of_one_user {
        wanted |= flag::EXPORT_SUPPORT;
    }
    if requested.is_shared {
        wanted |= flag::AUTO_INVAL_DATA;
    } else {
        wanted |= flag::EXPLICIT_INVAL_DATA | flag::NO_OPEN_SUPPORT | flag::NO_OPENDIR_SUPPORT;
    }
    if requested.has_writeback_cache {
        wanted |= flag::WRITEBACK_CACHE;
    }
    if requested.has_acls {
        wanted |= flag::POSIX_ACL | flag::DONT_MASK | flag::SETXATTR_EXT;
    }
    if requested.has_direct_io {
        wanted |= flag::INIT_EXT | flag::DIRECT_IO_ALLOW_MMAP;
    }
    if requested.has_queues {
        // The second word counts only with the first of these.
        wanted |= flag::INIT_EXT | flag::OVER_IO_URING;
    }
    wanted
}

fn reply(offer: &InitIn, granted: u64) -> InitOut {
    let lower = u32::try_from(granted & u64::from(u32::MAX)).expect("32 bits");
    InitOut {
        major: MAJOR,
        minor: MINOR.min(offer.minor),
        max_readahead: REQUEST_BYTES_MAX.min(offer.max_readahead),
        flags: lower,
        max_background: BACKGROUND_REQUESTS_MAX,
        // The kernel's own proportion; it only says when a disk is called congested.
        congestion_threshold: BACKGROUND_REQUESTS_MAX / 4 * 3,
        max_write: REQUEST_BYTES_MAX,
        time_gran: 1,
        max_pages: u16::try_from(REQUEST_BYTES_MAX / PAGE_BYTES).expect("256 fits"),
        map_alignment: 0,
        flags2: u32::try_from(granted >> 32).expect("32 bits"),
        max_stack_depth: 0,
        request_timeout: 0,
        unused: [0; 11],
    }
}

/// Returns what goes before [`InitOut`].
pub(super) fn head(unique: u64) -> Vec<u8> {
    let len = u32::try_from(size_of::<OutHeader>() + size_of::<InitOut>()).expect("80 fits");
    OutHeader { len, error: 0, unique }.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(major: u32, minor: u32, flags: u64) -> Vec<u8> {
        let offer = InitIn { major, minor, max_readahead: 131_072, flags: lower(flags) };
        let mut bytes = vec![0; size_of::<InHeader>()];
        bytes[4..8].copy_from_slice(opcode::INIT.as_bytes());
        bytes.extend_from_slice(offer.as_bytes());
        bytes.extend_from_slice(&[0; 48]);
        bytes
    }

    fn lower(flags: u64) -> u32 {
        u32::try_from(flags & 0xffff_ffff).expect("32 bits")
    }

    fn agreed(minor: u32, flags: u64, requested: Requested) -> (InitOut, Dialect) {
        match answer(&message(MAJOR, minor, flags), requested) {
            Some((_, Answer::Agreed(out, dialect))) => (out, dialect),
            _ => panic!("refused"),
        }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let (out, _) = agreed(40, flag::ASYNC_READ | flag::MAX_PAGES, Requested::default());
        assert_eq!(u64::from(out.flags), flag::ASYNC_READ | flag::MAX_PAGES);
        assert_eq!((out.minor, out.max_readahead, out.max_write), (40, 131_072, 1 << 20));
        let (out, _) = agreed(99, u64::MAX, Requested::default());
        assert_eq!(out.minor, MINOR);
        assert_eq!(u64::from(out.flags) & flag::WRITEBACK_CACHE, 0);
    }

    /// Goal: where others change files the kernel is to say what it opens, and to drop old pages.
    #[test]
    fn a_mount_that_is_not_alone_hears_of_opens() {
        let asked = |is_shared| {
            let (out, _) = agreed(45, u64::MAX, Requested { is_shared, ..Requested::default() });
            u64::from(out.flags)
        };
        let alone = flag::NO_OPEN_SUPPORT | flag::NO_OPENDIR_SUPPORT | flag::EXPLICIT_INVAL_DATA;
        let both = alone | flag::AUTO_INVAL_DATA;
        assert_eq!(asked(false) & both, alone);
        assert_eq!(asked(true) & both, flag::AUTO_INVAL_DATA);
    }

    /// Goal: no handle is made where a number that no reply has named is not answered (GN1).
    #[test]
    fn a_mount_of_one_user_has_no_handles() {
        let has_handles = |is_of_one_user| {
            let requested = Requested { is_of_one_user, ..Requested::default() };
            let (out, _) = agreed(45, u64::MAX, requested);
            u64::from(out.flags) & flag::EXPORT_SUPPORT != 0
        };
        assert!(has_handles(false) && !has_handles(true));
    }

    #[test]
    fn access_lists_come_whole_or_not_at_all() {
        let requested = Requested { has_acls: true, ..Requested::default() };
        let (_, dialect) = agreed(45, u64::MAX, requested);
        assert!(dialect.has_long_setxattr && dialect.leaves_umask);
        let (out, dialect) = agreed(45, u64::MAX ^ flag::SETXATTR_EXT, requested);
        assert_eq!(u64::from(out.flags) & (flag::POSIX_ACL | flag::DONT_MASK), 0);
        assert!(!dialect.has_long_setxattr && !dialect.leaves_umask);
    }

    #[test]
    fn other_versions_are_told_so() {
        let of = |major, minor| answer(&message(major, minor, 0), Requested::default());
        assert!(matches!(of(8, 0), Some((_, Answer::Again(_)))));
        assert!(matches!(of(7, 30), Some((_, Answer::Refused(_)))));
        assert!(matches!(of(6, 45), Some((_, Answer::Refused(_)))));
        assert!(answer(&[0; 39], Requested::default()).is_none());
        assert!(matches!(
            answer(&[0; 100], Requested::default()),
            Some((0, Answer::Refused(Errno::PROTO)))
        ));
    }
}
