//! The INIT handshake: capabilities requested from the kernel and granted by it.
//!
//! | capability | requested | reason |
//! |---|---|---|
//! | `DO_READDIRPLUS` with `AUTO` | yes | a listing with stat needs no lookups |
//! | `PARALLEL_DIROPS`, `ASYNC_READ` | yes | the server is multi-threaded |
//! | `ASYNC_DIO` | no | asynchronous direct writes drop no cached pages (FU6) |
//! | `BIG_WRITES`, `MAX_PAGES` | yes | requests of 1 MiB |
//! | `EXPORT_SUPPORT` | not if per-user | handles need no path and survive a restart (FU2) |
//! | `CACHE_SYMLINKS` | yes | the target of a link never changes |
//! | `EXPLICIT_INVAL_DATA` | if not shared | only this kernel changes files (FU1) |
//! | `NO_OPEN_SUPPORT`, `NO_OPENDIR_SUPPORT` | if not shared | `ENOSYS` stops all OPEN requests |
//! | `AUTO_INVAL_DATA` | if shared | a changed size or mtime drops pages (FU7) |
//! | `POSIX_ACL`, `SETXATTR_EXT` | with ACLs | the kernel checks them |
//! | `DONT_MASK` | with ACLs | the umask applies only without a default ACL |
//! | `WRITEBACK_CACHE` | by option | `kill -9` then loses writes before fsync |
//! | `ATOMIC_O_TRUNC` | no | OPEN would truncate, and OPEN is not sent |
//! | `HANDLE_KILLPRIV_V2` | yes | else each write fetches `security.capability` |
//! | `HANDLE_KILLPRIV` | no | would clear setuid and setgid for the superuser too |
//! | `OVER_IO_URING`, `INIT_EXT` | if queues are ready | requests stay on their CPU |
//! | `SPLICE_*` | no | data is copied once, into a segment or out of kernel pages |
//! | `POSIX_LOCKS`, `FLOCK_LOCKS` | if shared | mounts of one fileset exclude each other (FU9) |

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::decode::Dialect;
use super::fuse_kernel::{
    InHeader, InitIn, InitOut, MAJOR, MINOR, MINOR_MIN, OutHeader, init as flag, opcode,
};
use crate::fuse::server::REQUEST_BYTES_MAX;

/// Most background requests (readahead, write-back) in flight. The default, 12, keeps only one disk
/// busy.
const BACKGROUND_REQUESTS_MAX: u16 = 64;

/// Unit of [`InitOut::max_pages`]. A kernel with larger pages grants more bytes.
const PAGE_BYTES: u32 = 4096;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestedCapabilities {
    pub(super) has_writeback_cache: bool,
    pub(super) has_acls: bool,
    pub(super) has_queues: bool,
    /// Other fronts may change the files.
    pub(super) is_shared: bool,
    /// Some files may use direct I/O, and mmap must still work.
    pub(super) has_direct_io: bool,
    /// A per-user mount, which serves only inodes named in its replies (GN1).
    pub(super) is_of_one_user: bool,
}

pub(super) enum InitOutcome {
    /// Send this reply. The handshake is complete.
    Agreed(InitOut, Dialect),
    /// Send this reply. The kernel retries with our major version.
    Again(InitOut),
    /// Send this error: the kernel is too old, or the message is no INIT.
    Refused(Errno),
}

/// Answers INIT. Returns `None` if the message is too short to be answered.
pub(super) fn answer(
    message: &[u8],
    requested: RequestedCapabilities,
) -> Option<(u64, InitOutcome)> {
    let (header, body) = InHeader::read_from_prefix(message).ok()?;
    let answer = match InitIn::read_from_prefix(body) {
        Ok((offer, rest)) if header.opcode == opcode::INIT => agree(&offer, rest, requested),
        Ok(_) | Err(_) => InitOutcome::Refused(Errno::PROTO),
    };
    Some((header.unique, answer))
}

fn agree(offer: &InitIn, rest: &[u8], requested: RequestedCapabilities) -> InitOutcome {
    if offer.major > MAJOR {
        return InitOutcome::Again(reply(offer, 0));
    }
    if offer.major < MAJOR || offer.minor < MINOR_MIN {
        return InitOutcome::Refused(Errno::PROTO);
    }
    let upper = match u32::read_from_prefix(rest) {
        Ok((upper, _)) if u64::from(offer.flags) & flag::INIT_EXT != 0 => upper,
        Ok(_) | Err(_) => 0,
    };
    let offered = u64::from(offer.flags) | u64::from(upper) << 32;
    // Every capability is optional: its lack costs speed, not correctness.
    let mut granted = wanted(requested) & offered;
    // ACLs need all three capabilities.
    let acls = flag::POSIX_ACL | flag::DONT_MASK | flag::SETXATTR_EXT;
    if granted & acls != acls {
        granted &= !acls;
    }
    // One kind of lock alone would be half a promise.
    let locks = flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
    if granted & locks != locks {
        granted &= !locks;
    }
    let dialect = Dialect {
        has_long_setxattr: granted & flag::SETXATTR_EXT != 0,
        leaves_umask: granted & flag::DONT_MASK != 0,
        has_queues: granted & flag::OVER_IO_URING != 0,
        has_locks: granted & flag::POSIX_LOCKS != 0,
    };
    InitOutcome::Agreed(reply(offer, granted), dialect)
}

fn wanted(requested: RequestedCapabilities) -> u64 {
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
        wanted |= flag::AUTO_INVAL_DATA | flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
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
        // INIT_EXT makes the second flag word valid.
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
        // Three quarters, as in the kernel. Only decides when a device counts as congested.
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

    fn agreed(minor: u32, flags: u64, requested: RequestedCapabilities) -> (InitOut, Dialect) {
        match answer(&message(MAJOR, minor, flags), requested) {
            Some((_, InitOutcome::Agreed(out, dialect))) => (out, dialect),
            _ => panic!("refused"),
        }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let (out, _) =
            agreed(40, flag::ASYNC_READ | flag::MAX_PAGES, RequestedCapabilities::default());
        assert_eq!(u64::from(out.flags), flag::ASYNC_READ | flag::MAX_PAGES);
        assert_eq!((out.minor, out.max_readahead, out.max_write), (40, 131_072, 1 << 20));
        let (out, _) = agreed(99, u64::MAX, RequestedCapabilities::default());
        assert_eq!(out.minor, MINOR);
        assert_eq!(u64::from(out.flags) & flag::WRITEBACK_CACHE, 0);
    }

    /// Goal: the kernel of a shared mount sends OPEN and drops outdated pages.
    #[test]
    fn a_mount_that_is_not_alone_hears_of_opens() {
        let asked = |is_shared| {
            let (out, _) = agreed(
                45,
                u64::MAX,
                RequestedCapabilities { is_shared, ..RequestedCapabilities::default() },
            );
            u64::from(out.flags)
        };
        let alone = flag::NO_OPEN_SUPPORT | flag::NO_OPENDIR_SUPPORT | flag::EXPLICIT_INVAL_DATA;
        let both = alone | flag::AUTO_INVAL_DATA;
        assert_eq!(asked(false) & both, alone);
        assert_eq!(asked(true) & both, flag::AUTO_INVAL_DATA);
    }

    /// Goal: a mount that serves only named inodes has no exportable handles (GN1).
    #[test]
    fn a_mount_of_one_user_has_no_handles() {
        let has_handles = |is_of_one_user| {
            let requested =
                RequestedCapabilities { is_of_one_user, ..RequestedCapabilities::default() };
            let (out, _) = agreed(45, u64::MAX, requested);
            u64::from(out.flags) & flag::EXPORT_SUPPORT != 0
        };
        assert!(has_handles(false) && !has_handles(true));
    }

    #[test]
    fn access_lists_come_whole_or_not_at_all() {
        let requested =
            RequestedCapabilities { has_acls: true, ..RequestedCapabilities::default() };
        let (_, dialect) = agreed(45, u64::MAX, requested);
        assert!(dialect.has_long_setxattr && dialect.leaves_umask);
        let (out, dialect) = agreed(45, u64::MAX ^ flag::SETXATTR_EXT, requested);
        assert_eq!(u64::from(out.flags) & (flag::POSIX_ACL | flag::DONT_MASK), 0);
        assert!(!dialect.has_long_setxattr && !dialect.leaves_umask);
    }

    #[test]
    fn other_versions_are_told_so() {
        let of = |major, minor| answer(&message(major, minor, 0), RequestedCapabilities::default());
        assert!(matches!(of(8, 0), Some((_, InitOutcome::Again(_)))));
        assert!(matches!(of(7, 30), Some((_, InitOutcome::Refused(_)))));
        assert!(matches!(of(6, 45), Some((_, InitOutcome::Refused(_)))));
        assert!(answer(&[0; 39], RequestedCapabilities::default()).is_none());
        assert!(matches!(
            answer(&[0; 100], RequestedCapabilities::default()),
            Some((0, InitOutcome::Refused(Errno::PROTO)))
        ));
    }
}
