//! NFSv3 (RFC 1813): numbers, attributes, and the mapping of errors.

use engine::api::{Attr, FileKind, FilesetUuid, FsError, SetAttr, SetTime, Timestamp};

use super::xdr::{XdrError, XdrReader, XdrWriter};

pub(super) const PROGRAM: u32 = 100_003;
pub(super) const VERSION: u32 = 3;

pub(super) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
pub(super) const LISTING_BYTES: u32 = 64 << 10;
/// Longest name or path decoded. Names that are too long are refused later.
pub(super) const PATH_BYTES_MAX: usize = 4096;
pub(super) const HANDLE_BYTES_MAX: usize = 64;
pub(super) const ATTR_BYTES: usize = 84;

pub(super) const PROCEDURE_NAMES: [&str; 22] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];

pub(super) mod procedure {
    pub(crate) const NULL: u32 = 0;
    pub(crate) const GETATTR: u32 = 1;
    pub(crate) const SETATTR: u32 = 2;
    pub(crate) const LOOKUP: u32 = 3;
    pub(crate) const ACCESS: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const READ: u32 = 6;
    pub(crate) const WRITE: u32 = 7;
    pub(crate) const CREATE: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const SYMLINK: u32 = 10;
    pub(crate) const MKNOD: u32 = 11;
    pub(crate) const REMOVE: u32 = 12;
    pub(crate) const RMDIR: u32 = 13;
    pub(crate) const RENAME: u32 = 14;
    pub(crate) const LINK: u32 = 15;
    pub(crate) const READDIR: u32 = 16;
    pub(crate) const READDIRPLUS: u32 = 17;
    pub(crate) const FSSTAT: u32 = 18;
    pub(crate) const FSINFO: u32 = 19;
    pub(crate) const PATHCONF: u32 = 20;
    pub(crate) const COMMIT: u32 = 21;
}

/// Returns the number of zero words ("no attributes follow") in an error reply: for the attributes
/// before and after. `None` for an unknown procedure.
pub(super) fn absent_words(number: u32) -> Option<usize> {
    const WORDS: [usize; 22] = [0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 3, 1, 1, 1, 1, 1, 2];
    WORDS.get(usize::try_from(number).ok()?).copied()
}

/// Returns whether the procedure is not idempotent.
pub(super) fn is_change(number: u32) -> bool {
    (procedure::WRITE..=procedure::LINK).contains(&number) || number == procedure::SETATTR
}

pub(super) fn may_take_long(number: u32) -> bool {
    use procedure::{COMMIT, READ, READDIR, READDIRPLUS, SETATTR, WRITE};
    [READ, WRITE, SETATTR, READDIR, READDIRPLUS, COMMIT].contains(&number)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NfsStatus(pub(super) u32);

impl NfsStatus {
    pub(super) const OK: NfsStatus = NfsStatus(0);
    pub(super) const PERM: NfsStatus = NfsStatus(1);
    pub(super) const NOENT: NfsStatus = NfsStatus(2);
    pub(super) const ACCES: NfsStatus = NfsStatus(13);
    pub(super) const EXIST: NfsStatus = NfsStatus(17);
    pub(super) const XDEV: NfsStatus = NfsStatus(18);
    pub(super) const NOTDIR: NfsStatus = NfsStatus(20);
    pub(super) const INVAL: NfsStatus = NfsStatus(22);
    pub(super) const ROFS: NfsStatus = NfsStatus(30);
    pub(super) const STALE: NfsStatus = NfsStatus(70);
    pub(super) const BADHANDLE: NfsStatus = NfsStatus(10_001);
    pub(super) const NOT_SYNC: NfsStatus = NfsStatus(10_002);
    pub(super) const BAD_COOKIE: NfsStatus = NfsStatus(10_003);
    pub(super) const TOOSMALL: NfsStatus = NfsStatus(10_005);
    pub(super) const SERVERFAULT: NfsStatus = NfsStatus(10_006);
    pub(super) const BADTYPE: NfsStatus = NfsStatus(10_007);
    pub(super) const JUKEBOX: NfsStatus = NfsStatus(10_008);
}

impl From<&FsError> for NfsStatus {
    fn from(error: &FsError) -> NfsStatus {
        // RFC 1813 mostly uses the numbers of errno(3).
        NfsStatus(match error.errno() {
            same @ (1 | 2 | 5 | 6 | 13 | 17 | 18 | 20 | 21 | 22 | 27 | 28 | 30 | 31) => {
                u32::try_from(same).expect("they are small")
            }
            11 => 10_008,
            36 => 63,
            39 => 66,
            95 => 10_004,
            116 => 70,
            117 => 5,
            122 => 69,
            _ => return NfsStatus::SERVERFAULT,
        })
    }
}

pub(super) fn fsid_of(fileset: FilesetUuid) -> u64 {
    let mut folded = [0; 8];
    for (at, byte) in fileset.0.to_le_bytes().into_iter().enumerate() {
        folded[at % 8] ^= byte;
    }
    u64::from_le_bytes(folded)
}

/// Writes `fattr3`.
pub(super) fn put_attr(out: &mut XdrWriter, attr: &Attr, fsid: u64) {
    let kind = match attr.kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::BlockDevice => 3,
        FileKind::CharDevice => 4,
        FileKind::Symlink => 5,
        FileKind::Socket => 6,
        FileKind::Fifo => 7,
    };
    let (major, minor) = unpacked(attr.rdev);
    out.words(&[kind, u32::from(attr.mode), attr.nlink, attr.uid, attr.gid]);
    out.u64(attr.size_bytes);
    out.u64(attr.blocks_512.saturating_mul(512));
    out.words(&[major, minor]);
    out.u64(fsid);
    out.u64(attr.ino.0);
    [attr.atime, attr.mtime, attr.ctime].into_iter().for_each(|time| put_time(out, time));
}

/// Writes `post_op_attr`.
pub(super) fn put_some_attr(out: &mut XdrWriter, attr: Option<&Attr>, fsid: u64) {
    out.bool(attr.is_some());
    if let Some(attr) = attr {
        put_attr(out, attr, fsid);
    }
}

/// Writes `pre_op_attr`.
pub(super) fn put_before(out: &mut XdrWriter, attr: Option<&Attr>) {
    out.bool(attr.is_some());
    if let Some(attr) = attr {
        out.u64(attr.size_bytes);
        put_time(out, attr.mtime);
        put_time(out, attr.ctime);
    }
}

/// Returns a protocol time, clamped to 1970 to 2106.
pub(super) fn seconds_of(time: Timestamp) -> (u32, u32) {
    match u32::try_from(time.seconds) {
        Ok(seconds) => (seconds, time.nanoseconds),
        Err(_) if time.seconds < 0 => (0, 0),
        Err(_) => (u32::MAX, time.nanoseconds),
    }
}

fn put_time(out: &mut XdrWriter, time: Timestamp) {
    let (seconds, nanoseconds) = seconds_of(time);
    out.u32(seconds);
    out.u32(nanoseconds);
}

pub(super) fn read_time(reader: &mut XdrReader<'_>) -> Result<Timestamp, XdrError> {
    Ok(Timestamp { seconds: i64::from(reader.u32()?), nanoseconds: reader.u32()? })
}

/// Reads `sattr3`.
pub(super) fn read_set_attr(reader: &mut XdrReader<'_>) -> Result<SetAttr, XdrError> {
    let mode = reader.bool()?.then(|| reader.u32()).transpose()?;
    Ok(SetAttr {
        mode: mode.map(mode_of),
        uid: reader.bool()?.then(|| reader.u32()).transpose()?,
        gid: reader.bool()?.then(|| reader.u32()).transpose()?,
        project: None,
        size_bytes: reader.bool()?.then(|| reader.u64()).transpose()?,
        atime: read_set_time(reader)?,
        mtime: read_set_time(reader)?,
        ctime: None,
    })
}

fn mode_of(word: u32) -> u16 {
    u16::try_from(word & 0o7777).expect("12 bits")
}

fn read_set_time(reader: &mut XdrReader<'_>) -> Result<Option<SetTime>, XdrError> {
    match reader.u32()? {
        0 => Ok(None),
        1 => Ok(Some(SetTime::Now)),
        2 => read_time(reader).map(|time| Some(SetTime::To(time))),
        _ => Err(XdrError),
    }
}

/// Returns a device number in Linux's encoding, or `None` if it does not fit.
pub(super) fn packed(major: u32, minor: u32) -> Option<u32> {
    let is_possible = major < 1 << 12 && minor < 1 << 20;
    is_possible.then_some(minor & 0xff | major << 8 | (minor & !0xff) << 12)
}

fn unpacked(rdev: u32) -> (u32, u32) {
    (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_linux() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, (1 << 20) - 1)] {
            let rdev = packed(major, minor).expect("Linux has it");
            assert_eq!(unpacked(rdev), (major, minor));
        }
        assert_eq!(packed(4096, 0), None);
        assert_eq!(packed(0, 1 << 20), None);
    }

    #[test]
    fn times_that_the_protocol_lacks_are_the_nearest_that_it_has() {
        let at = |seconds| seconds_of(Timestamp { seconds, nanoseconds: 5 });
        assert_eq!(at(-1), (0, 0));
        assert_eq!(at(77), (77, 5));
        assert_eq!(at(1 << 33), (u32::MAX, 5));
    }

    #[test]
    fn every_error_has_a_status_of_the_protocol() {
        for (error, status) in [
            (FsError::NotFound, 2),
            (FsError::NameTooLong, 63),
            (FsError::NotEmpty, 66),
            (FsError::QuotaExceeded, 69),
            (FsError::Stale, 70),
            (FsError::NotSupported, 10_004),
            (FsError::TryLater, 10_008),
            (FsError::Range, 10_006),
            (FsError::ReadOnlySnapshot, 30),
        ] {
            assert_eq!(NfsStatus::from(&error), NfsStatus(status), "{error}");
        }
    }
}
