//! The members of a pool, as its superblock lists them, and how the pool lies on them.
//!
//! # Invariants
//!
//! - MB1: A slot names one member for as long as the member is there; a member that takes the place
//!   of another has an identity of its own.
//! - MB2: Each change of states has an epoch of membership of its own. Its number is one more than
//!   the last, and its id a digest of the one before and of the table: two halves of a pool that
//!   are opened apart have different tables, so their histories differ for ever.

use std::ops::RangeInclusive;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk_group::DiskGroup;
use crate::hash::siphash13;
use crate::ids::{PoolId, SEQUENCE_MAX};
use crate::lanes::Lanes;
use crate::missed::Parts;
use crate::slots::Slots;
use crate::stripes::{RAID5_WIDTH_MIN, STRIPE_WIDTH_MIN, StripeShape, UNIT_SHIFTS};
use crate::superblock::SuperblockError;

/// Most members.
pub const MEMBERS_MAX: usize = 255;
/// Most slots that a layout names.
pub const LAYOUT_SLOTS_MAX: usize = 32;
/// Most epochs of membership that a label remembers.
pub const MEMBERSHIPS_MAX: usize = 32;
/// Bytes kept for the path of a member: a longer one is not kept, for it is a hint.
pub const MEMBER_PATH_BYTES: usize = 72;
/// Most members of a mirror.
pub const MIRROR_WIDTH_MAX: usize = 3;
/// Most members of a round-robin: files of each have segments of their own open.
pub const ROUND_ROBIN_WIDTH_MAX: usize = 16;
/// Most spares: a pool that loses more than that before somebody looks has no use for another.
pub const SPARES_MAX: usize = 8;

const STATE_SPARE: u8 = 6;

const KIND_SINGLE: u8 = 1;
const KIND_MIRROR: u8 = 2;
const KIND_STRIPE: u8 = 3;
const KIND_ROUND_ROBIN: u8 = 4;
const KIND_RAID5: u8 = 5;
/// A round-robin whose layout says which range of allocation groups each member has.
const KIND_ROUND_ROBIN_APART: u8 = 6;
/// Stripe unit that a layout without stripes says: binary logarithm.
const UNIT_SHIFT: u8 = 16;

/// How an allocation group lies on devices. Format: `docs/FORMAT.md#layout`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LayoutDisk {
    /// 1: single; 2: mirror; 3: stripe; 4: round-robin; 5: raid5; 6: round-robin whose ranges are
    /// not one behind the other. 0: none.
    pub kind: u8,
    /// Slots that it names.
    pub width: u8,
    /// Stripe unit: binary logarithm of its bytes.
    pub unit_shift: u8,
    /// Zero.
    pub reserved: u8,
    /// Slots of members; of kind 6 from the 17th on which range each has.
    pub slots: [u8; LAYOUT_SLOTS_MAX],
}

/// A member. Format: `docs/FORMAT.md#member`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct MemberDisk {
    /// Identity of the device.
    pub id: [u8; 16],
    /// Bytes of the device when it became a member.
    pub size_bytes: U64,
    /// 0: none, the slot is free; 1: online; 2: missing; 3: failed; 4: joining; 5: leaving; 6: a
    /// spare.
    pub state: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// MiB of the pool, from the start, of which a joining member has its share; of one that is
    /// online one more than those that a scrub which is under way has held against others. Else 0.
    pub done_mib: U32,
    /// While it is away: the last update of the labels that it certainly has, by its sequence. Else
    /// 0.
    pub left_at: U64,
    /// Last path that it was opened by, padded with zeros: a hint.
    pub path: [u8; MEMBER_PATH_BYTES],
}

/// An epoch of membership. Format: `docs/FORMAT.md#membership`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct MembershipDisk {
    /// Rises by one at each change.
    pub number: U64,
    /// Digest of the epoch before and of the table. Tells two histories apart.
    pub id: U64,
    /// Sequence of the first label of this epoch; 0: a new pool's.
    pub sequence: U64,
}

/// What a member is to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all that it should have.
    Online,
    /// It was not there when the pool was opened, and has missed writes.
    Missing,
    /// A write or a flush failed, and it has missed writes.
    Failed,
    /// It takes the place of another, or comes back: it gets every write, and is not read until it
    /// has what was written before.
    Joining,
    /// There is none: its disk group was taken out, and another may have the slot.
    Gone,
}

impl MemberState {
    /// Returns the word for it.
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
    /// Bytes of the device when it became a member.
    pub size_bytes: u64,
    /// What it is to the pool.
    pub state: MemberState,
    /// Last path that it was opened by, without zeros at its end: a hint. Empty: none.
    pub path: Vec<u8>,
    /// MiB of the pool of which it has its share while it is joining; else 0.
    pub copied_mib: u32,
    /// One more than the MiB of the pool that a scrub which is under way has held against others,
    /// while the member is online; 0: it came meanwhile, or there is none.
    pub scrubbed_mib: u32,
    /// The parts of the pool that it has not, for it was away when they were written; while it is
    /// joining these alone are made anew. `None`: of a member that is online, nothing; of another
    /// everything, for it never was.
    pub missed: Option<Parts>,
    /// While it is away: sequence of a label that it certainly has. One that comes back with an
    /// older label is not what went. Else 0.
    pub left_at: u64,
}

impl Member {
    /// Returns a member that is online and has no path.
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

    /// Returns what a slot has that nobody is in.
    #[must_use]
    pub fn gone() -> Member {
        Member { state: MemberState::Gone, ..Member::new([0; 16], 0) }
    }

    /// Whether the slot is free.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state == MemberState::Gone
    }

    /// Whether it has all that it should have.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.state == MemberState::Online
    }

    /// Whether it gets the writes of the pool.
    #[must_use]
    pub fn is_written(&self) -> bool {
        matches!(self.state, MemberState::Online | MemberState::Joining)
    }

    /// Notes the path that it was opened by; one that is too long is not kept.
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

/// A device that holds nothing, and takes the place of a member that fails or is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spare {
    /// Identity of the device; its own as a member too.
    pub id: [u8; 16],
    /// Bytes of the device when it became a spare.
    pub size_bytes: u64,
    /// Last path that it was opened by, without zeros at its end: a hint. Empty: none.
    pub path: Vec<u8>,
}

impl Spare {
    /// Returns a spare that has no path.
    #[must_use]
    pub fn new(id: [u8; 16], size_bytes: u64) -> Spare {
        Spare { id, size_bytes, path: Vec::new() }
    }

    /// Notes the path that it was opened by; one that is too long is not kept.
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

/// Returns the path in an entry; `None`: it is none.
fn path_of(disk: &MemberDisk) -> Option<Vec<u8>> {
    let length = disk.path.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let path = disk.path.get(..length).unwrap_or_default().to_owned();
    (!path.contains(&0)).then_some(path)
}

/// An epoch of membership: see MB2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Rises by one at each change.
    pub number: u64,
    /// Digest of the epoch before and of the table.
    pub id: u64,
    /// Sequence of the first label of this epoch.
    pub sequence: u64,
}

impl Membership {
    /// The epoch of a new pool.
    pub const FIRST: Membership = Membership { number: 1, id: 0, sequence: 0 };

    /// Returns the epoch that follows this one, in which the members are as `members` says, and the
    /// disk groups that were added as `added` does. Label number `sequence` is the first of it.
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

/// How a disk group lies on its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// On one.
    Single,
    /// The same on each of two or three.
    Mirror,
    /// Each file on one, the next file on the next: each has allocation groups of its own. For data
    /// alone.
    RoundRobin,
    /// Data in stripes over all, each byte once; metadata in two copies on two: see `stripes.rs`.
    Stripe {
        /// Stripe unit: binary logarithm of its bytes, in [`UNIT_SHIFTS`].
        unit_shift: u8,
    },
    /// Data in stripes with parity over all, metadata in two copies on two: see `stripes.rs`.
    Raid5 {
        /// Stripe unit: binary logarithm of its bytes, in [`UNIT_SHIFTS`].
        unit_shift: u8,
    },
}

impl Layout {
    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Layout::Single => "single",
            Layout::Mirror => "mirror",
            Layout::RoundRobin => "round-robin",
            Layout::Stripe { .. } => "stripe",
            Layout::Raid5 { .. } => "raid5",
        }
    }

    /// Returns how wide the stripes of a disk group with `members` members are; `None`: it has
    /// none.
    #[must_use]
    pub fn stripe(self, members: usize) -> Option<StripeShape> {
        let (unit_shift, has_parity) = match self {
            Layout::Single | Layout::Mirror | Layout::RoundRobin => return None,
            Layout::Stripe { unit_shift } => (unit_shift, false),
            Layout::Raid5 { unit_shift } => (unit_shift, true),
        };
        let members = u8::try_from(members).expect("a layout names few slots");
        Some(StripeShape { members, unit_shift, has_parity })
    }

    /// Whether each segment lies over all members, so that there can be one more or one less while
    /// the disk group is used ([`crate::reshape`]).
    #[must_use]
    pub fn spreads(self) -> bool {
        match self {
            Layout::Single | Layout::Mirror | Layout::RoundRobin => false,
            Layout::Stripe { .. } | Layout::Raid5 { .. } => true,
        }
    }

    pub(crate) fn to_disk(self, slots: &Slots) -> LayoutDisk {
        let (kind, unit_shift) = match self {
            Layout::Single => (KIND_SINGLE, UNIT_SHIFT),
            Layout::Mirror => (KIND_MIRROR, UNIT_SHIFT),
            Layout::RoundRobin => (KIND_ROUND_ROBIN, UNIT_SHIFT),
            Layout::Stripe { unit_shift } => (KIND_STRIPE, unit_shift),
            Layout::Raid5 { unit_shift } => (KIND_RAID5, unit_shift),
        };
        let width = u8::try_from(slots.len()).expect("a layout names few slots");
        let mut named = [0; LAYOUT_SLOTS_MAX];
        for (slot, number) in named.iter_mut().zip(slots.iter()) {
            *slot = u8::try_from(number).expect("a pool has few slots");
        }
        LayoutDisk { kind, width, unit_shift, reserved: 0, slots: named }
    }

    /// The same where each member has the range that `lanes` say.
    pub(crate) fn to_disk_with(self, slots: &Slots, lanes: &Lanes) -> LayoutDisk {
        let mut disk = self.to_disk(slots);
        if self == Layout::RoundRobin && !lanes.are_in_a_row() {
            disk.kind = KIND_ROUND_ROBIN_APART;
            let named = disk.slots.iter_mut().skip(ROUND_ROBIN_WIDTH_MAX);
            named.zip(lanes.iter()).for_each(|(to, lane)| *to = lane);
        }
        disk
    }

    /// Returns how many parts of a disk group with `members` members have allocation groups of
    /// their own.
    #[must_use]
    pub fn lanes(self, members: usize) -> u8 {
        match self {
            Layout::RoundRobin => u8::try_from(members).expect("a layout names few slots"),
            Layout::Single | Layout::Mirror | Layout::Stripe { .. } | Layout::Raid5 { .. } => 1,
        }
    }

    /// Returns how many members it can have.
    #[must_use]
    pub fn widths(self) -> RangeInclusive<usize> {
        match self {
            Layout::Single => 1..=1,
            Layout::Mirror => 2..=MIRROR_WIDTH_MAX,
            Layout::RoundRobin => 2..=ROUND_ROBIN_WIDTH_MAX,
            Layout::Stripe { .. } => STRIPE_WIDTH_MIN..=LAYOUT_SLOTS_MAX,
            Layout::Raid5 { .. } => RAID5_WIDTH_MIN..=LAYOUT_SLOTS_MAX,
        }
    }
}

/// Returns a layout, and the slots of its members. That each of these has one member, and no other
/// layout has it, is checked where all are known (DG2).
pub(crate) fn layout_of(disk: &LayoutDisk) -> Result<(Layout, Slots), SuperblockError> {
    let not = |what| Err(SuperblockError::NotImplemented { what });
    let layout = match disk.kind {
        KIND_SINGLE => Layout::Single,
        KIND_MIRROR => Layout::Mirror,
        KIND_STRIPE if UNIT_SHIFTS.contains(&disk.unit_shift) => {
            Layout::Stripe { unit_shift: disk.unit_shift }
        }
        KIND_ROUND_ROBIN | KIND_ROUND_ROBIN_APART => Layout::RoundRobin,
        KIND_RAID5 if UNIT_SHIFTS.contains(&disk.unit_shift) => {
            Layout::Raid5 { unit_shift: disk.unit_shift }
        }
        _ => return Err(SuperblockError::BadField { field: "layout" }),
    };
    let width = usize::from(disk.width);
    if !layout.widths().contains(&width) {
        return not("another number of devices than its layout has");
    }
    let named = disk.slots.iter().take(width);
    Ok((layout, named.map(|slot| usize::from(*slot)).collect()))
}

/// Returns which range each of the members of a disk group has whose layout, and number of members,
/// was found to be `found`.
pub(crate) fn lanes_of(
    disk: &LayoutDisk,
    (layout, members): (Layout, usize),
) -> Result<Lanes, SuperblockError> {
    if disk.kind != KIND_ROUND_ROBIN_APART {
        return Ok(Lanes::of_new(layout, members));
    }
    let named = disk.slots.get(ROUND_ROBIN_WIDTH_MAX..).and_then(|rest| rest.get(..members));
    let lanes = named.and_then(Lanes::of_disk);
    lanes.ok_or(SuperblockError::BadField { field: "layout" })
}

/// Returns the members that `disk` lists: each with another identity, at least one of them online.
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

/// Returns the spares that `disk` lists: each with another identity, also than those of `members`.
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

/// Returns the epochs of membership that `disk` lists; the last has the number `newest`.
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
        // Of two in one update, as an open that takes out what was being added and leaves an absent
        // member behind, both have the same first label.
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

    fn slots(range: std::ops::Range<usize>) -> Slots {
        range.into()
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        assert!(
            layout_of(&LayoutDisk { kind: 7, ..Layout::Mirror.to_disk(&slots(0..2)) }).is_err()
        );
        for (members, is_known) in [(1, false), (2, true), (16, true), (17, false)] {
            let disk = Layout::RoundRobin.to_disk(&slots(0..members));
            assert_eq!(layout_of(&disk).is_ok(), is_known, "{members}");
        }
        for of in [vec![0, 1], vec![4, 5, 6], vec![3, 0, 7]] {
            let of: Slots = of.into_iter().collect();
            let disk = Layout::Mirror.to_disk(&of);
            assert_eq!(layout_of(&disk), Ok((Layout::Mirror, of)));
        }
        assert!(layout_of(&Layout::Single.to_disk(&slots(0..2))).is_err());
        let raid5 = Layout::Raid5 { unit_shift: 14 };
        for (members, is_known) in [(2, false), (3, true), (32, true)] {
            assert_eq!(
                layout_of(&raid5.to_disk(&slots(0..members))).is_ok(),
                is_known,
                "{members}"
            );
        }
        let stripe = Layout::Stripe { unit_shift: 14 };
        for (members, is_known) in [(1, false), (2, true), (32, true)] {
            assert_eq!(
                layout_of(&stripe.to_disk(&slots(0..members))).is_ok(),
                is_known,
                "{members}"
            );
        }
        assert_eq!(layout_of(&stripe.to_disk(&slots(2..5))), Ok((stripe, slots(2..5))));
        assert!(layout_of(&Layout::Raid5 { unit_shift: 17 }.to_disk(&slots(0..3))).is_err());
        assert!(layout_of(&Layout::Stripe { unit_shift: 11 }.to_disk(&slots(0..3))).is_err());
        assert!(layout_of(&Layout::Mirror.to_disk(&slots(0..4))).is_err());
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
