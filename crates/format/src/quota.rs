//! Quotas of users, groups and projects: pages of records in an internal container of the fileset.
//!
//! # Layout
//!
//! ```text
//!   0                128       192       256                                    4096
//!   +----------------+---------+---------+---------+----------------------------+
//!   | header         | record  | record  | record  | ... 62 records of 64 bytes |
//!   +----------------+---------+---------+---------+----------------------------+
//! ```
//!
//! Record 0 of page 0 is the head, with the progress of counting.
//!
//! # Invariants
//!
//! - QR1: Each kind and id has one record at most.
//! - QR2: Operations change the usage in a record, the holder of the fileset's lock its limits and
//!   graces. So only the page has a checksum over both.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::{
    ANODE_BYTES, Anode, AnodeKind, FRAGMENTS_OFFSET, GID_OFFSET, KIND_OFFSET, PROJECT_OFFSET,
    UID_OFFSET,
};
use crate::ids::{ANODES_MAX, FRAGMENTS_MAX};
use crate::page::{PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes, read_u64};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Records of a page.
pub const RECORDS_PER_PAGE: u64 = 62;
/// Most records of a fileset: 64 MiB of pages, 200 MiB of memory while mounted.
pub const RECORDS_MAX: u64 = 1 << 20;
/// Default grace of a soft limit: seven days, as in xfs_quota(8).
pub const GRACE_SECONDS: u64 = 7 * 24 * 60 * 60;
/// Largest inode limit; larger ones mean no limit.
pub const INODES_LIMIT_MAX: u64 = 0xFFFF_FFFF;
/// Offset of the count of fragments in a record.
pub const USED_FRAGMENTS_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, fragments);
/// Offset of the count of inodes in a record.
pub const USED_INODES_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, inodes);
/// Offset of limits and graces, which fill the rest of a record.
pub const LIMITS_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, fragments_soft);

const _: () = assert!(PAGE_BODY_BYTES / RECORD_BYTES == 62);
const _: () = assert!(USED_FRAGMENTS_OFFSET.is_multiple_of(8) && LIMITS_OFFSET == 24);

const KIND_HEAD: u8 = 4;
const STATE_OFF: u8 = 0;
const STATE_CLEARING: u8 = 1;
const STATE_COUNTING: u8 = 2;
const STATE_ON: u8 = 3;

/// Subject of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// The owner of files.
    User = 1,
    /// The group of files.
    Group = 2,
    /// The project of files.
    Project = 3,
}

impl QuotaKind {
    /// Every kind.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }

    /// Returns the code on disk.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Format: `docs/FORMAT.md#quota-record`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct QuotaRecordDisk {
    /// 1: user; 2: group; 3: project. 0: free.
    kind: u8,
    reserved: [u8; 3],
    id: U32,
    /// Used fragments. Is there room for more?
    fragments: U64,
    /// Files. May one more be made?
    inodes: U64,
    /// Start of the grace; 0: no limit.
    fragments_soft: U64,
    /// 0: no limit.
    fragments_hard: U64,
    /// Start of the grace; 0: no limit.
    inodes_soft: U32,
    /// 0: no limit.
    inodes_hard: U32,
    /// Seconds since 1970; 0: within the soft limit. Are writes refused?
    fragments_grace_end: U64,
    /// Seconds since 1970; 0: within the soft limit. Are new files refused?
    inodes_grace_end: U64,
}

/// Format: `docs/FORMAT.md#quota-head`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct QuotaHeadDisk {
    /// 4: the head.
    kind: u8,
    /// 0: off; 1: clearing old counts; 2: counting anodes; 3: on.
    state: u8,
    reserved_a: [u8; 6],
    /// Clearing: next page of the container. Counting: first uncounted anode.
    cursor: U64,
    fragments_grace: U64,
    inodes_grace: U64,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<QuotaRecordDisk>() == RECORD_BYTES);
const _: () = assert!(size_of::<QuotaHeadDisk>() == RECORD_BYTES);

/// Progress of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaState {
    /// Not counting; usage in the records is meaningless.
    #[default]
    Off,
    /// Clearing old counts; done up to this page of the container.
    Clearing(u64),
    /// Counting; done for anodes below this number. Limits are not enforced.
    Counting(u64),
    /// All anodes are counted, and limits are enforced.
    On,
}

impl QuotaState {
    /// Returns the number below which a changed anode changes the usage.
    #[must_use]
    pub fn counted_below(self) -> u64 {
        match self {
            QuotaState::Off | QuotaState::Clearing(_) => 0,
            QuotaState::Counting(cursor) => cursor,
            QuotaState::On => u64::MAX,
        }
    }
}

/// Head of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaHead {
    /// Progress of counting.
    pub state: QuotaState,
    /// Grace of soft limits of fragments, in seconds.
    pub fragments_grace: u64,
    /// Grace of soft limits of inodes, in seconds.
    pub inodes_grace: u64,
}

impl Default for QuotaHead {
    fn default() -> QuotaHead {
        let grace = GRACE_SECONDS;
        QuotaHead { state: QuotaState::Off, fragments_grace: grace, inodes_grace: grace }
    }
}

impl QuotaHead {
    /// Returns the bytes of record 0 of page 0.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let (state, cursor) = match self.state {
            QuotaState::Off => (STATE_OFF, 0),
            QuotaState::Clearing(page) => (STATE_CLEARING, page),
            QuotaState::Counting(cursor) => (STATE_COUNTING, cursor),
            QuotaState::On => (STATE_ON, 0),
        };
        let disk = QuotaHeadDisk {
            kind: KIND_HEAD,
            state,
            reserved_a: [0; 6],
            cursor: U64::new(cursor),
            fragments_grace: U64::new(self.fragments_grace),
            inodes_grace: U64::new(self.inodes_grace),
            reserved: [0; 32],
        };
        zerocopy::transmute!(disk)
    }

    /// Decodes the head in page 0; `None` if it is malformed.
    #[must_use]
    pub fn of(page: &PageBytes) -> Option<QuotaHead> {
        let bytes: &[u8; RECORD_BYTES] = page.get(record_offset(0)..)?.first_chunk()?;
        let disk: &QuotaHeadDisk = zerocopy::transmute_ref!(bytes);
        let cursor = disk.cursor.get();
        let state = match disk.state {
            STATE_OFF => QuotaState::Off,
            STATE_CLEARING if cursor <= RECORDS_MAX => QuotaState::Clearing(cursor),
            STATE_COUNTING if cursor <= ANODES_MAX => QuotaState::Counting(cursor),
            STATE_ON => QuotaState::On,
            _ => return None,
        };
        let (fragments_grace, inodes_grace) = (disk.fragments_grace.get(), disk.inodes_grace.get());
        let is_sound =
            disk.kind == KIND_HEAD && fragments_grace <= SECONDS_MAX && inodes_grace <= SECONDS_MAX;
        is_sound.then_some(QuotaHead { state, fragments_grace, inodes_grace })
    }
}

/// Bound on times and graces, so that sums can't wrap.
const SECONDS_MAX: u64 = 1 << 62;

/// Limits of one user, group or project, and ends of graces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Soft limit of fragments, which starts the grace; 0: none.
    pub fragments_soft: u64,
    /// Hard limit of fragments; 0: none.
    pub fragments_hard: u64,
    /// Soft limit of inodes, which starts the grace; 0: none.
    pub inodes_soft: u32,
    /// Hard limit of inodes; 0: none.
    pub inodes_hard: u32,
    /// End of the grace of fragments, in seconds since 1970; 0: within the soft limit.
    pub fragments_grace_end: u64,
    /// End of the grace of inodes, in seconds since 1970; 0: within the soft limit.
    pub inodes_grace_end: u64,
}

impl QuotaLimits {
    /// Returns the bytes of a record from [`LIMITS_OFFSET`] on.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES - LIMITS_OFFSET] {
        let record =
            QuotaRecord { kind: QuotaKind::User, id: 0, fragments: 0, inodes: 0, limits: *self };
        let bytes = record.encode();
        let mut limits = [0; RECORD_BYTES - LIMITS_OFFSET];
        limits.copy_from_slice(&bytes[LIMITS_OFFSET..]);
        limits
    }
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRecord {
    /// Kind of the id.
    pub kind: QuotaKind,
    /// User, group or project.
    pub id: u32,
    /// Used fragments.
    pub fragments: u64,
    /// Files.
    pub inodes: u64,
    /// Limits.
    pub limits: QuotaLimits,
}

impl QuotaRecord {
    /// Returns the bytes of the record.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let limits = &self.limits;
        let disk = QuotaRecordDisk {
            kind: self.kind.code(),
            reserved: [0; 3],
            id: U32::new(self.id),
            fragments: U64::new(self.fragments),
            inodes: U64::new(self.inodes),
            fragments_soft: U64::new(limits.fragments_soft),
            fragments_hard: U64::new(limits.fragments_hard),
            inodes_soft: U32::new(limits.inodes_soft),
            inodes_hard: U32::new(limits.inodes_hard),
            fragments_grace_end: U64::new(limits.fragments_grace_end),
            inodes_grace_end: U64::new(limits.inodes_grace_end),
        };
        zerocopy::transmute!(disk)
    }

    /// Decodes a record; `Ok(None)` if it is free or the head.
    ///
    /// # Errors
    ///
    /// The name of the malformed field.
    pub fn decode_in(page: &PageBytes, index: u64) -> Result<Option<QuotaRecord>, &'static str> {
        let bytes = page.get(record_offset(index)..).and_then(|rest| rest.first_chunk());
        let bytes: &[u8; RECORD_BYTES] = bytes.ok_or("index")?;
        let disk: &QuotaRecordDisk = zerocopy::transmute_ref!(bytes);
        let kind = match disk.kind {
            0 if bytes.iter().all(|&byte| byte == 0) => return Ok(None),
            KIND_HEAD => return Ok(None),
            code => QuotaKind::ALL.into_iter().find(|kind| kind.code() == code).ok_or("kind")?,
        };
        let limits = QuotaLimits {
            fragments_soft: disk.fragments_soft.get(),
            fragments_hard: disk.fragments_hard.get(),
            inodes_soft: disk.inodes_soft.get(),
            inodes_hard: disk.inodes_hard.get(),
            fragments_grace_end: disk.fragments_grace_end.get(),
            inodes_grace_end: disk.inodes_grace_end.get(),
        };
        let checks = [
            (disk.fragments.get() <= FRAGMENTS_MAX, "fragments"),
            (disk.inodes.get() <= ANODES_MAX, "inodes"),
            (limits.fragments_soft <= FRAGMENTS_MAX, "fragments_soft"),
            (limits.fragments_hard <= FRAGMENTS_MAX, "fragments_hard"),
            (limits.fragments_grace_end <= SECONDS_MAX, "fragments_grace_end"),
            (limits.inodes_grace_end <= SECONDS_MAX, "inodes_grace_end"),
        ];
        if let Some((_, field)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(field);
        }
        Ok(Some(QuotaRecord {
            kind,
            id: disk.id.get(),
            fragments: disk.fragments.get(),
            inodes: disk.inodes.get(),
            limits,
        }))
    }
}

/// Returns the offset of record `index` in its page.
#[must_use]
pub fn record_offset(index: u64) -> usize {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    PAGE_HEADER_BYTES.saturating_add(index.saturating_mul(RECORD_BYTES))
}

/// Accounts and usage of a file: the amounts moved when its anode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaCharge {
    /// Owner, group and project, in the order of [`QuotaKind::ALL`].
    pub ids: [u32; 3],
    /// Used fragments.
    pub fragments: u64,
}

impl QuotaCharge {
    /// Reads the accounts from an anode slot; `None` if it is free or internal.
    #[must_use]
    pub fn in_slot(slot: &[u8; ANODE_BYTES]) -> Option<QuotaCharge> {
        let kind = *slot.get(KIND_OFFSET)?;
        if kind == 0 || kind == AnodeKind::Internal.code() {
            return None;
        }
        let id = |offset: usize| {
            let bytes = slot.get(offset..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes))
        };
        let ids = [id(UID_OFFSET), id(GID_OFFSET), id(PROJECT_OFFSET)];
        Some(QuotaCharge { ids, fragments: read_u64(slot, FRAGMENTS_OFFSET) })
    }

    /// Returns the accounts of an anode; `None` if it is internal.
    #[must_use]
    pub fn of(anode: &Anode) -> Option<QuotaCharge> {
        let ids = [anode.uid, anode.gid, anode.project];
        let fragments = anode.fragments;
        (anode.kind != AnodeKind::Internal).then_some(QuotaCharge { ids, fragments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AnodeNo, FilesetId};
    use crate::page::PAGE_BYTES;

    fn sample() -> QuotaRecord {
        QuotaRecord {
            kind: QuotaKind::Project,
            id: 70_000,
            fragments: 5,
            inodes: 3,
            limits: QuotaLimits {
                fragments_soft: 4,
                fragments_hard: 9,
                inodes_soft: 2,
                inodes_hard: 7,
                fragments_grace_end: 1_900_000_000,
                inodes_grace_end: 1_900_000_001,
            },
        }
    }

    #[test]
    fn records_and_heads_are_read_as_they_were_written() {
        let mut page = [0; PAGE_BYTES];
        let states =
            [QuotaState::Off, QuotaState::Clearing(7), QuotaState::Counting(4000), QuotaState::On];
        for state in states {
            let head = QuotaHead { state, fragments_grace: 60, inodes_grace: 0 };
            page[record_offset(0)..record_offset(1)].copy_from_slice(&head.encode());
            assert_eq!(QuotaHead::of(&page), Some(head));
        }
        let last = RECORDS_PER_PAGE - 1;
        page[record_offset(last)..].copy_from_slice(&sample().encode());
        assert_eq!(QuotaRecord::decode_in(&page, last), Ok(Some(sample())));
        assert_eq!(QuotaRecord::decode_in(&page, 1), Ok(None), "free");
        assert_eq!(QuotaRecord::decode_in(&page, 0), Ok(None), "the head");
        assert_eq!(sample().encode()[LIMITS_OFFSET..], sample().limits.encode());
    }

    #[test]
    fn what_no_record_can_say_is_refused() {
        let mut page = [0; PAGE_BYTES];
        for (offset, value) in [(0, 9), (15, 1), (23, 1), (31, 1), (39, 1), (55, 0x80)] {
            page[record_offset(1)..record_offset(2)].copy_from_slice(&sample().encode());
            page[record_offset(1) + offset] = value;
            assert!(QuotaRecord::decode_in(&page, 1).is_err(), "byte {offset}");
        }
        page[record_offset(0) + 1] = 9;
        assert_eq!(QuotaHead::of(&page), None);
        assert!(QuotaRecord::decode_in(&page, RECORDS_PER_PAGE).is_err());
    }

    #[test]
    fn a_slot_and_its_anode_say_the_same_of_whose_it_is() {
        let mut anode = Anode::new(AnodeKind::Regular, AnodeNo(77), FilesetId(5), 14);
        (anode.uid, anode.gid, anode.project, anode.fragments) = (1, 2, 3, 4);
        assert_eq!(QuotaCharge::in_slot(&anode.encode()), QuotaCharge::of(&anode));
        assert_eq!(QuotaCharge::of(&anode), Some(QuotaCharge { ids: [1, 2, 3], fragments: 4 }));
        anode.kind = AnodeKind::Internal;
        assert_eq!((QuotaCharge::in_slot(&anode.encode()), QuotaCharge::of(&anode)), (None, None));
        assert_eq!(QuotaCharge::in_slot(&[0; ANODE_BYTES]), None);
    }
}
