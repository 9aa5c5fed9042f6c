//! The members of a pool in its superblock.
//!
//! # Invariants
//!
//! - MB1: A slot keeps its member. A replacement has an identity of its own.
//! - MB2: Each change of states begins an epoch of membership, with the next number, and a digest
//!   of the previous epoch and of the table as id. Two halves of a pool opened apart have different
//!   tables, so their histories differ for ever.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk_group::DiskGroup;
use crate::hash::siphash13;
use crate::ids::{PoolId, SEQUENCE_MAX};
pub use crate::layout::{
    LAYOUT_SLOTS_MAX, Layout, LayoutDisk, MIRROR_WIDTH_MAX, ROUND_ROBIN_WIDTH_MAX,
};
use crate::missed::StaleParts;
use crate::superblock_error::SuperblockError;

/// Most members.
pub const MEMBERS_MAX: usize = 255;
/// Most epochs of membership in a label.
pub const MEMBERSHIPS_MAX: usize = 32;
/// Bytes for the path of a member, a hint. A longer one is dropped.
pub const MEMBER_PATH_BYTES: usize = 72;
/// Most hot spares, a bound on failures before an operator acts.
pub const SPARES_MAX: usize = 8;

const STATE_SPARE: u8 = 6;

/// A member. Format: `docs/FORMAT.md#member`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct MemberDisk {
    /// Identity of the device.
    pub id: [u8; 16],
    /// Bytes of the device when it joined.
    pub size_bytes: U64,
    /// 0: free slot; 1: online; 2: missing; 3: failed; 4: joining; 5: leaving; 6: hot spare.
    pub state: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Joining: MiB rebuilt. Online: MiB scrubbed plus one. Else 0.
    pub done_mib: U32,
    /// Absent: sequence of a label that the device certainly holds. Detects an older copy of the
    /// device.
    pub left_at: U64,
    /// Last device path, padded with zeros: a hint.
    pub path: [u8; MEMBER_PATH_BYTES],
}

/// An epoch of membership. Format: `docs/FORMAT.md#membership`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MembershipDisk {
    /// Rises by one at each change.
    pub number: U64,
    /// Digest of the previous epoch and of the table. Detects another history.
    pub id: U64,
    /// Sequence of the first label of the epoch; 0 in a new pool.
    pub sequence: U64,
}

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Complete and in use.
    Online,
    /// Absent at an open of the pool; stale since.
    Missing,
    /// Dropped after a failed write or flush; stale since.
    Failed,
    /// A new or returning member under rebuild: gets all writes, is not read.
    Joining,
    /// Free slot: the member was removed.
    Gone,
}

impl MemberState {
    /// Returns the word in messages.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            MemberState::Online => "online",
            MemberState::Missing => "missing",
            MemberState::Failed => "failed",
            MemberState::Joining => "joining",
            MemberState::Gone => "gone",
        }
    }

    fn number(self) -> u8 {
        match self {
            MemberState::Online => 1,
            MemberState::Missing => 2,
            MemberState::Failed => 3,
            MemberState::Joining => 4,
            MemberState::Gone => 0,
        }
    }
}

/// A device of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Identity of the device.
    pub id: [u8; 16],
    /// Bytes of the device when it joined.
    pub size_bytes: u64,
    /// State.
    pub state: MemberState,
    /// Last device path: a hint, perhaps empty.
    pub path: Vec<u8>,
    /// MiB of the pool rebuilt while joining; else 0.
    pub copied_mib: u32,
    /// MiB scrubbed plus one while online; 0 without a scrub, or if the member joined during it.
    pub scrubbed_mib: u32,
    /// Stale parts, to be rebuilt while joining. `None`: nothing is stale on an online member,
    /// everything on any other.
    pub missed: Option<StaleParts>,
    /// While absent: sequence of a label that the device certainly has. A device with an older
    /// label is an outdated copy. Else 0.
    pub left_at: u64,
}

impl Member {
    /// Returns an online member without a path.
    #[must_use]
    pub fn new(id: [u8; 16], size_bytes: u64) -> Member {
        let (state, path) = (MemberState::Online, Vec::new());
        Member {
            id,
            size_bytes,
            state,
            path,
            copied_mib: 0,
            scrubbed_mib: 0,
            missed: None,
            left_at: 0,
        }
    }

    /// Returns the entry of a free slot.
    #[must_use]
    pub fn gone() -> Member {
        Member { state: MemberState::Gone, ..Member::new([0; 16], 0) }
    }

    /// Whether the slot is free.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state == MemberState::Gone
    }

    /// Whether the member is complete and in use.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.state == MemberState::Online
    }

    /// Whether the member gets writes.
    #[must_use]
    pub fn is_written(&self) -> bool {
        matches!(self.state, MemberState::Online | MemberState::Joining)
    }

    /// Stores the device path; drops one that is too long.
    pub fn set_path(&mut self, path: &[u8]) {
        self.path = kept_path(path);
    }

    pub(crate) fn to_disk(&self) -> MemberDisk {
        MemberDisk {
            id: self.id,
            size_bytes: U64::new(self.size_bytes),
            state: self.state.number(),
            reserved: [0; 3],
            done_mib: U32::new(match self.state {
                MemberState::Online => self.scrubbed_mib,
                MemberState::Joining => self.copied_mib,
                MemberState::Missing | MemberState::Failed | MemberState::Gone => 0,
            }),
            left_at: U64::new(self.left_at),
            path: path_to_disk(&self.path),
        }
    }
}

/// A hot spare: an empty device that replaces a failed or missing member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Identity of the device, also once it is a member.
    pub id: [u8; 16],
    /// Bytes of the device when it became a spare.
    pub size_bytes: u64,
    /// Last device path: a hint, perhaps empty.
    pub path: Vec<u8>,
}

impl Spare {
    /// Returns a spare without a path.
    #[must_use]
    pub fn new(id: [u8; 16], size_bytes: u64) -> Spare {
        Spare { id, size_bytes, path: Vec::new() }
    }

    /// Stores the device path; drops one that is too long.
    pub fn set_path(&mut self, path: &[u8]) {
        self.path = kept_path(path);
    }

    pub(crate) fn to_disk(&self) -> MemberDisk {
        MemberDisk {
            id: self.id,
            size_bytes: U64::new(self.size_bytes),
            state: STATE_SPARE,
            reserved: [0; 3],
            done_mib: U32::new(0),
            left_at: U64::new(0),
            path: path_to_disk(&self.path),
        }
    }
}

fn kept_path(path: &[u8]) -> Vec<u8> {
    let fits = path.len() <= MEMBER_PATH_BYTES && !path.contains(&0);
    if fits { path.to_owned() } else { Vec::new() }
}

fn path_to_disk(path: &[u8]) -> [u8; MEMBER_PATH_BYTES] {
    let mut padded = [0; MEMBER_PATH_BYTES];
    padded[..path.len()].copy_from_slice(path);
    padded
}

fn path_of(disk: &MemberDisk) -> Option<Vec<u8>> {
    let length = disk.path.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let path = disk.path.get(..length).unwrap_or_default().to_owned();
    (!path.contains(&0)).then_some(path)
}

/// An epoch of membership (MB2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Rises by one at each change.
    pub number: u64,
    /// Digest of the previous epoch and of the table.
    pub id: u64,
    /// Sequence of the first label of the epoch.
    pub sequence: u64,
}

impl Membership {
    /// The epoch of a new pool.
    pub const FIRST: Membership = Membership { number: 1, id: 0, sequence: 0 };

    /// Returns the epoch for this table of members and disk groups, from label `sequence` on.
    #[must_use]
    pub fn next(
        self,
        pool_id: PoolId,
        (members, added): (&[Member], &[DiskGroup]),
        sequence: u64,
    ) -> Membership {
        let mut text = Vec::with_capacity(16 + members.len() * 17);
        text.extend(self.number.to_le_bytes());
        text.extend(self.id.to_le_bytes());
        for member in members {
            text.extend(member.id);
            text.push(member.state.number());
        }
        for group in added {
            text.extend([group.number, group.state.number()]);
            text.extend(group.first_group.to_le_bytes());
        }
        let (low, high) = pool_id.0.split_at(8);
        let half = |half: &[u8]| half.first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        let id = siphash13([half(low), half(high)], &text);
        Membership { number: self.number + 1, id, sequence }
    }

    pub(crate) fn to_disk(self) -> MembershipDisk {
        MembershipDisk {
            number: U64::new(self.number),
            id: U64::new(self.id),
            sequence: U64::new(self.sequence),
        }
    }
}

/// Decodes the members: identities are unique, at least one is online.
pub(crate) fn members_of(disk: &[MemberDisk]) -> Result<Vec<Member>, SuperblockError> {
    let bad = SuperblockError::BadField { field: "members" };
    let mut members: Vec<Member> = Vec::with_capacity(disk.len());
    for found in disk {
        let state = match found.state {
            0 if found.as_bytes().iter().all(|&byte| byte == 0) => {
                members.push(Member::gone());
                continue;
            }
            1 => MemberState::Online,
            2 => MemberState::Missing,
            3 => MemberState::Failed,
            4 => MemberState::Joining,
            5 => return Err(SuperblockError::NotImplemented { what: "devices that leave" }),
            _ => return Err(bad),
        };
        if members.iter().any(|member| member.id == found.id) {
            return Err(bad);
        }
        let path = path_of(found).ok_or_else(|| bad.clone())?;
        let (size_bytes, done_mib) = (found.size_bytes.get(), found.done_mib.get());
        let (copied_mib, scrubbed_mib) = match state {
            MemberState::Joining => (done_mib, 0),
            MemberState::Online => (0, done_mib),
            MemberState::Missing | MemberState::Failed | MemberState::Gone if done_mib != 0 => {
                return Err(bad);
            }
            MemberState::Missing | MemberState::Failed | MemberState::Gone => (0, 0),
        };
        let left_at = found.left_at.get();
        let is_away = matches!(state, MemberState::Missing | MemberState::Failed);
        if left_at != 0 && !is_away {
            return Err(bad);
        }
        let (id, missed) = (found.id, None);
        members.push(Member {
            id,
            size_bytes,
            state,
            path,
            copied_mib,
            scrubbed_mib,
            missed,
            left_at,
        });
    }
    let ends_with_one = members.last().is_some_and(|last| !last.is_gone());
    if ends_with_one && members.iter().any(Member::is_online) { Ok(members) } else { Err(bad) }
}

/// Decodes the spares: identities are unique, also among `members`.
pub(crate) fn spares_of(
    disk: &[MemberDisk],
    members: &[Member],
) -> Result<Vec<Spare>, SuperblockError> {
    let bad = SuperblockError::BadField { field: "spares" };
    let mut spares: Vec<Spare> = Vec::with_capacity(disk.len());
    for found in disk {
        let is_member = members.iter().any(|member| member.id == found.id);
        let is_twice = is_member || spares.iter().any(|spare| spare.id == found.id);
        let is_blank = found.done_mib.get() == 0 && found.left_at.get() == 0;
        if found.state != STATE_SPARE || !is_blank || is_twice {
            return Err(bad);
        }
        let path = path_of(found).ok_or_else(|| bad.clone())?;
        spares.push(Spare { id: found.id, size_bytes: found.size_bytes.get(), path });
    }
    if spares.len() <= SPARES_MAX { Ok(spares) } else { Err(bad) }
}

/// Decodes the epochs; the last has number `newest`.
pub(crate) fn memberships_of(
    disk: &[MembershipDisk],
    newest: u64,
) -> Result<Vec<Membership>, SuperblockError> {
    let found: Vec<Membership> = disk
        .iter()
        .map(|found| Membership {
            number: found.number.get(),
            id: found.id.get(),
            sequence: found.sequence.get(),
        })
        .collect();
    let rises = found.windows(2).all(|pair| {
        // Two epochs begin with one label if one update removes a disk group in state adding and
        // marks an absent member missing.
        pair[0].number.checked_add(1) == Some(pair[1].number)
            && pair[0].sequence <= pair[1].sequence
    });
    let last = found.last().map(|last| last.number);
    if rises && last == Some(newest) && newest < SEQUENCE_MAX {
        Ok(found)
    } else {
        Err(SuperblockError::BadField { field: "memberships" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Member> {
        vec![Member::new([1; 16], 1 << 30), Member::new([2; 16], 1 << 30)]
    }

    #[test]
    fn states_that_are_not_done_are_refused_by_name() {
        let mut joining = two()[0].to_disk();
        joining.state = 5;
        let error = members_of(&[joining]).expect_err("not done").to_string();
        assert!(error.contains("leave"), "{error}");
        joining.state = 1;
        joining.done_mib = U32::new(1);
        let scrubbed = members_of(&[joining]).expect("a scrub is under way");
        assert_eq!((scrubbed[0].scrubbed_mib, scrubbed[0].copied_mib), (1, 0));
        joining.state = 3;
        assert!(members_of(&[joining]).is_err(), "what has failed does nothing");
    }

    #[test]
    fn members_come_back_as_they_were_written_and_no_two_are_one() {
        let mut members = two();
        members[1].set_path(b"/srv/d1");
        members[0].set_path(&[b'a'; MEMBER_PATH_BYTES + 1]);
        members[0].state = MemberState::Joining;
        members[0].copied_mib = 7;
        let disk: Vec<MemberDisk> = members.iter().map(Member::to_disk).collect();
        assert_eq!(members_of(&disk), Ok(members.clone()));
        assert!(members_of(&[disk[1], disk[1]]).is_err(), "twice");
        assert!(members_of(&disk[..1]).is_err(), "none online");
        let gone = Member::gone().to_disk();
        let holed = members_of(&[gone, disk[1]]).expect("a slot is free");
        assert!(holed[0].is_gone() && holed[1].is_online());
        assert!(members_of(&[disk[1], gone]).is_err(), "the last is one");
        assert!(members[0].path.is_empty());
    }

    #[test]
    fn spares_come_back_as_they_were_written_and_are_no_members() {
        let members = two();
        let mut spares = vec![Spare::new([3; 16], 1 << 30), Spare::new([4; 16], 2 << 30)];
        spares[1].set_path(b"/srv/spare");
        let disk: Vec<MemberDisk> = spares.iter().map(Spare::to_disk).collect();
        assert_eq!(spares_of(&disk, &members), Ok(spares));
        assert!(spares_of(&[disk[0], disk[0]], &members).is_err(), "twice");
        assert!(members_of(&disk).is_err(), "a spare is in no slot");
        let is_member = Spare::new([1; 16], 1 << 30).to_disk();
        assert!(spares_of(&[is_member], &members).is_err(), "a member too");
        assert!(spares_of(&[members[0].to_disk()], &[]).is_err(), "online");
        let many: Vec<MemberDisk> =
            (10..19).map(|id| Spare::new([id; 16], 1 << 30).to_disk()).collect();
        assert!(spares_of(&many, &members).is_err(), "more than eight");
        assert!(spares_of(&many[1..], &members).is_ok());
    }

    #[test]
    fn halves_that_are_opened_apart_have_histories_apart() {
        let pool_id = PoolId([7; 16]);
        let [mut left, mut right] = [two(), two()];
        left[1].state = MemberState::Missing;
        right[0].state = MemberState::Missing;
        let [left, right] =
            [left, right].map(|members| Membership::FIRST.next(pool_id, (&members, &[]), 2));
        assert_eq!(left.number, right.number);
        assert_ne!(left.id, right.id);
    }
}
