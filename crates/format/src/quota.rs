//! Quotas of users, groups and projects: pages of records in a container of the fileset's own.
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
//! Record 0 of page 0 is the head, which says how far counting has come.
//!
//! # Invariants
//!
//! - QR1: Each kind and id has one record at most.
//! - QR2: Usage is changed by operations, limits and graces by whoever holds the fileset's lock: no
//!   checksum of a record covers both. The page has its own.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::{ANODE_BYTES, FRAGMENTS_OFFSET};
use crate::anode::{Anode, AnodeKind, GID_OFFSET, KIND_OFFSET, PROJECT_OFFSET, UID_OFFSET};
use crate::ids::{ANODES_MAX, FRAGMENTS_MAX};
use crate::page::{PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes, read_u64};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 64;
/// Records of a page.
pub const RECORDS_PER_PAGE: u64 = 62;
/// Most records of a fileset: 64 MiB of pages, and about 200 MiB of memory while it is mounted.
pub const RECORDS_MAX: u64 = 1 << 20;
/// How long a soft limit may be passed unless somebody says otherwise: seven days, as xfs_quota(8)
/// has it.
pub const GRACE_SECONDS: u64 = 7 * 24 * 60 * 60;
/// Most inodes that a limit can say; above that there is none.
pub const INODES_LIMIT_MAX: u64 = 0xFFFF_FFFF;
/// Where in a record the count of fragments is.
pub const USED_FRAGMENTS_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, fragments);
/// Where in a record the count of inodes is.
pub const USED_INODES_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, inodes);
/// Where in a record the limits and graces begin, which go on to its end.
pub const LIMITS_OFFSET: usize = std::mem::offset_of!(QuotaRecordDisk, fragments_soft);

const _: () = assert!(PAGE_BODY_BYTES / RECORD_BYTES == 62);
const _: () = assert!(USED_FRAGMENTS_OFFSET.is_multiple_of(8) && LIMITS_OFFSET == 24);

const KIND_HEAD: u8 = 4;
const STATE_OFF: u8 = 0;
const STATE_CLEARING: u8 = 1;
const STATE_COUNTING: u8 = 2;
const STATE_ON: u8 = 3;

/// Whom a quota is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QuotaKind {
    /// The owner of files.
    User = 1,
    /// Their group.
    Group = 2,
    /// Their project.
    Project = 3,
}

impl QuotaKind {
    /// Every kind.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::Group => "group",
            QuotaKind::Project => "project",
        }
    }

    /// Returns the byte that stands for this kind.
    #[must_use]
    #[expect(clippy::as_conversions, reason = "the discriminant is the code")]
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Byte for byte. Format: `docs/FORMAT.md#quota-record`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct QuotaRecordDisk {
    /// 1: a user; 2: a group; 3: a project. 0: free.
    kind: u8,
    /// Zero.
    reserved: [u8; 3],
    /// Whose it is.
    id: U32,
    /// Fragments that his files take. Is there room for more?
    fragments: U64,
    /// His files.
    inodes: U64,
    /// Fragments past which the grace begins; 0: no limit.
    fragments_soft: U64,
    /// Most fragments; 0: no limit.
    fragments_hard: U64,
    /// Inodes past which the grace begins; 0: no limit.
    inodes_soft: U32,
    /// Most inodes; 0: no limit.
    inodes_hard: U32,
    /// When the grace of fragments ends: seconds since 1970; 0: he is not past the soft limit.
    fragments_grace_end: U64,
    /// When the grace of inodes ends; as above.
    inodes_grace_end: U64,
}

/// Byte for byte. Format: `docs/FORMAT.md#quota-head`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct QuotaHeadDisk {
    /// 4: the head.
    kind: u8,
    /// 0: off; 1: what was counted before is cleared; 2: anodes are counted; 3: on.
    state: u8,
    /// Zero.
    reserved_a: [u8; 6],
    /// Being cleared: the next page of the container. Being counted: anodes below this number are.
    cursor: U64,
    /// Seconds for which a soft limit of fragments may be passed.
    fragments_grace: U64,
    /// Seconds for which a soft limit of inodes may be passed.
    inodes_grace: U64,
    /// Zero.
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<QuotaRecordDisk>() == RECORD_BYTES);
const _: () = assert!(size_of::<QuotaHeadDisk>() == RECORD_BYTES);

/// How far counting has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaState {
    /// Nobody counts, and what the records say of usage is of no use.
    #[default]
    Off,
    /// What was counted before is cleared, up to this page of the container.
    Clearing(u64),
    /// Anodes below this number are counted; nobody is refused.
    Counting(u64),
    /// All anodes are counted, and limits hold.
    On,
}

impl QuotaState {
    /// Returns the number below which anodes are counted by whoever changes them.
    #[must_use]
    pub fn counted_below(self) -> u64 {
        match self {
            QuotaState::Off | QuotaState::Clearing(_) => 0,
            QuotaState::Counting(cursor) => cursor,
            QuotaState::On => u64::MAX,
        }
    }
}

/// What the container says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaHead {
    /// How far counting has come.
    pub state: QuotaState,
    /// Seconds for which a soft limit of fragments may be passed.
    pub fragments_grace: u64,
    /// Seconds for which a soft limit of inodes may be passed.
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

    /// Returns the head of a container whose page 0 this is; `None`: it can't be so.
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

/// Latest second, and longest grace, that a record may say: past that sums would wrap.
const SECONDS_MAX: u64 = 1 << 62;

/// Limits of one user, group or project, in fragments and inodes, and when graces end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Fragments past which the grace begins; 0: no limit.
    pub fragments_soft: u64,
    /// Most fragments; 0: no limit.
    pub fragments_hard: u64,
    /// Inodes past which the grace begins; 0: no limit.
    pub inodes_soft: u32,
    /// Most inodes; 0: no limit.
    pub inodes_hard: u32,
    /// When the grace of fragments ends: seconds since 1970; 0: the soft limit is not passed.
    pub fragments_grace_end: u64,
    /// When the grace of inodes ends; as above.
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
    /// Of what kind the id is.
    pub kind: QuotaKind,
    /// Whose it is.
    pub id: u32,
    /// Fragments that his files take.
    pub fragments: u64,
    /// His files.
    pub inodes: u64,
    /// His limits.
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

    /// Returns record `index` of a page; `Ok(None)`: it is free, or the head.
    ///
    /// # Errors
    ///
    /// What can't be so.
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

/// Returns where in its page record `index` of the page is.
#[must_use]
pub fn record_offset(index: u64) -> usize {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    PAGE_HEADER_BYTES.saturating_add(index.saturating_mul(RECORD_BYTES))
}

/// Whose a file is, and what it takes: what moves from account to account when its anode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Owner, group and project, as [`QuotaKind::ALL`] has them.
    pub ids: [u32; 3],
    /// Fragments that it takes.
    pub fragments: u64,
}

impl Owned {
    /// Returns whose the anode in a slot is; `None`: it is free, or the fileset's own.
    #[must_use]
    pub fn in_slot(slot: &[u8; ANODE_BYTES]) -> Option<Owned> {
        let kind = *slot.get(KIND_OFFSET)?;
        if kind == 0 || kind == AnodeKind::Internal.code() {
            return None;
        }
        let id = |offset: usize| {
            let bytes = slot.get(offset..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes: &[u8; 4]| u32::from_le_bytes(*bytes))
        };
        let ids = [id(UID_OFFSET), id(GID_OFFSET), id(PROJECT_OFFSET)];
        Some(Owned { ids, fragments: read_u64(slot, FRAGMENTS_OFFSET) })
    }

    /// Returns whose an anode is; `None`: the fileset's own.
    #[must_use]
    pub fn of(anode: &Anode) -> Option<Owned> {
        let ids = [anode.uid, anode.gid, anode.project];
        let fragments = anode.fragments;
        (anode.kind != AnodeKind::Internal).then_some(Owned { ids, fragments })
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
        assert_eq!(Owned::in_slot(&anode.encode()), Owned::of(&anode));
        assert_eq!(Owned::of(&anode), Some(Owned { ids: [1, 2, 3], fragments: 4 }));
        anode.kind = AnodeKind::Internal;
        assert_eq!((Owned::in_slot(&anode.encode()), Owned::of(&anode)), (None, None));
        assert_eq!(Owned::in_slot(&[0; ANODE_BYTES]), None);
    }
}
