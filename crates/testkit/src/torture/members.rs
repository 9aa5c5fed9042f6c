//! Pools with members for torture: slices of one simulated device, so that a power cut leaves any
//! subset of what all of them had not flushed.
//!
//! # The weak member
//!
//! One member of each pool is weak, and all that goes wrong besides the power goes wrong there, one
//! thing a life: its writes fail from one on, it is away, bits of it rot, another device takes its
//! place, or it is brought back. So there is never more wrong than a layout with one redundant
//! member is for, and nothing that was acknowledged may be lost, nor any error told. A weak member
//! that failed or was away is there in the next life with what it had, and must not be believed:
//! one that was away comes back by itself, one that failed when it is brought back, and gets what
//! it missed; the power may go, or it may fail, meanwhile.
//!
//! The device behind it has two slices for the weak member; the one that is no member takes the
//! place of the other.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Pool;
use format::members::{Layout, MemberState};
use format::superblock::Superblock;
use runtime::prng::Prng;
use storage::device::{
    AlignedBuffer, Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose,
    SharedDevice, Ticket,
};
use storage::pool::read_superblock;
use storage::volume::Opening;

use super::Start;
use crate::number::{u64_of, usize_of};

/// Stripe unit of pools in stripes: small, so that few bytes are many rows.
const UNIT_SHIFT: u8 = 13;
/// The write that fails is below 2 to a power below this.
const WRITE_POWER_MAX: u64 = 9;
/// Bits that turn over in one life, at most.
const ROTS_MAX: u64 = 64;
/// Ticks before a device takes the place of another are below 2 to a power below this.
const TICK_POWER_MAX: u64 = 6;
/// No rot in the superblocks of a member: of a device without a label nobody knows what it is.
const LABELS_BYTES: u64 = 128 << 10;

/// How a pool lies on devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// One device.
    Single,
    /// Two or three with the same.
    Mirror(u8),
    /// Three to five in stripes.
    Raid5(u8),
}

impl PoolKind {
    /// Every kind.
    pub const ALL: [PoolKind; 6] = [
        PoolKind::Single,
        PoolKind::Mirror(2),
        PoolKind::Mirror(3),
        PoolKind::Raid5(3),
        PoolKind::Raid5(4),
        PoolKind::Raid5(5),
    ];

    /// Returns how many members it has.
    #[must_use]
    pub fn members(self) -> u64 {
        match self {
            PoolKind::Single => 1,
            PoolKind::Mirror(members) | PoolKind::Raid5(members) => u64::from(members),
        }
    }

    /// Returns how many slices its device has: two of the weak member.
    #[must_use]
    pub fn slices(self) -> u64 {
        if self == PoolKind::Single { 1 } else { self.members() + 1 }
    }

    /// Returns its layout.
    #[must_use]
    pub fn layout(self) -> Layout {
        match self {
            PoolKind::Single => Layout::Single,
            PoolKind::Mirror(_) => Layout::Mirror,
            PoolKind::Raid5(_) => Layout::Raid5 { unit_shift: UNIT_SHIFT },
        }
    }
}

/// Which kinds of pools are tortured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pools {
    /// All of one kind.
    Of(PoolKind),
    /// Each seed chooses.
    Any,
}

impl Pools {
    /// Returns the kind of the pool of a seed.
    #[must_use]
    pub fn kind(self, pool_seed: u64) -> PoolKind {
        match self {
            Pools::Of(kind) => kind,
            Pools::Any => {
                let random = &mut Prng::from_seed(pool_seed ^ 0x6d65_6d62);
                PoolKind::ALL[usize_of(random.below(u64_of(PoolKind::ALL.len())))]
            }
        }
    }
}

impl fmt::Display for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pools::Of(kind) => kind.fmt(f),
            Pools::Any => f.write_str("any"),
        }
    }
}

impl FromStr for Pools {
    type Err = String;

    fn from_str(text: &str) -> Result<Pools, String> {
        if text == "any" { Ok(Pools::Any) } else { text.parse().map(Pools::Of) }
    }
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolKind::Single => f.write_str("single"),
            PoolKind::Mirror(members) => write!(f, "mirror{members}"),
            PoolKind::Raid5(members) => write!(f, "raid5-{members}"),
        }
    }
}

impl FromStr for PoolKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolKind, String> {
        let found = PoolKind::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| {
            let all: Vec<String> = PoolKind::ALL.iter().map(ToString::to_string).collect();
            format!("{text} is no kind of pool: any, {}", all.join(", "))
        })
    }
}

/// A part of a device that is a device.
#[derive(Debug)]
struct Slice {
    info: DeviceInfo,
    inner: SharedDevice,
    start: u64,
    /// Writes until they fail; `u64::MAX`: never.
    writes_left: AtomicU64,
}

struct Passed(Ticket);

impl PendingRequest for Passed {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        self.0.wait()
    }
}

impl Slice {
    fn of(inner: &SharedDevice, number: u64, size_bytes: u64, writes_left: u64) -> SharedDevice {
        let info =
            DeviceInfo { name: format!("/slice/{number}"), size_bytes, ..inner.info().clone() };
        let (inner, start) = (Arc::clone(inner), number * size_bytes);
        Arc::new(Slice { info, inner, start, writes_left: AtomicU64::new(writes_left) })
    }

    /// Whether a write that begins now fails.
    fn fails(&self) -> bool {
        let count = |left: u64| match left {
            u64::MAX => None,
            left => Some(left.saturating_sub(1)),
        };
        self.writes_left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, count)
            .is_ok_and(|left| left == 0)
    }
}

impl Device for Slice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        let end = operation.offset().unwrap_or(0) + operation.length_bytes();
        assert!(end <= self.info.size_bytes, "a request past the end of a member");
        let is_write =
            matches!(operation, Operation::Write { .. } | Operation::WriteThrough { .. });
        if is_write && self.fails() {
            return Ticket::ready(Err(DeviceError::Failed { device: self.info.name.clone() }));
        }
        let operation = match operation {
            Operation::Read { offset, buffer } => {
                Operation::Read { offset: offset + self.start, buffer }
            }
            Operation::Write { offset, data } => {
                Operation::Write { offset: offset + self.start, data }
            }
            Operation::WriteThrough { offset, data } => {
                Operation::WriteThrough { offset: offset + self.start, data }
            }
            Operation::Flush => Operation::Flush,
            Operation::Discard { offset, length_bytes } => {
                Operation::Discard { offset: offset + self.start, length_bytes }
            }
        };
        Ticket::new(Box::new(Passed(self.inner.submit(purpose, operation))))
    }
}

/// What goes wrong with the weak member in one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weakness {
    None,
    Fails { nth: u64 },
    Away,
    Rots,
    Replaced { after_ticks: u64 },
    Returns { after_ticks: u64 },
}

impl Weakness {
    fn draw(random: &mut Prng, may_rot: bool) -> Weakness {
        let below = |random: &mut Prng, power_max| {
            let power = random.below(power_max);
            random.below(1 << power)
        };
        match random.below(10) {
            0 | 1 => Weakness::Fails { nth: below(random, WRITE_POWER_MAX) },
            2 => Weakness::Away,
            3 if may_rot => Weakness::Rots,
            4..=6 => Weakness::Replaced { after_ticks: below(random, TICK_POWER_MAX) },
            7 | 8 => Weakness::Returns { after_ticks: below(random, TICK_POWER_MAX) },
            _ => Weakness::None,
        }
    }
}

/// The members of one pool, as its seed chooses them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Members {
    kind: PoolKind,
    member_bytes: u64,
    /// Slot of the weak member.
    weak: u64,
    /// Whether bits of it may rot: else it must have all when it is online.
    may_rot: bool,
}

/// The members of a pool, by the newest label of those that are not weak.
struct Found {
    /// All but the weak one.
    strong: Vec<SharedDevice>,
    /// The slice that is the weak one, if its label says so.
    weak: Option<u64>,
    /// The state of the weak one.
    state: Option<MemberState>,
}

/// A device that takes the place of the weak member when so many ticks are over, or the weak member
/// itself, which is brought back.
pub(super) struct Replacement {
    pub(super) after_ticks: u64,
    slot: usize,
    /// The other device, and its id; `None`: it is brought back.
    other: Option<(SharedDevice, [u8; 16])>,
}

impl Replacement {
    /// Begins it. A pool that cannot goes on as it is.
    pub(super) fn begin(self, pool: &Pool) {
        let Replacement { slot, other, .. } = self;
        // Refused while another joins, where the pool has failed, or nobody is away.
        match other {
            Some((device, id)) => drop(pool.replace_member(slot, device, id)),
            None => drop(pool.return_member_in(slot)),
        }
    }
}

impl Members {
    pub(super) fn of(kind: PoolKind, member_bytes: u64, pool_seed: u64) -> Members {
        let random = &mut Prng::from_seed(!pool_seed);
        Members {
            kind,
            member_bytes,
            weak: random.below(kind.members()),
            may_rot: random.one_in(2),
        }
    }

    fn slice(&self, device: &SharedDevice, number: u64) -> SharedDevice {
        Slice::of(device, number, self.member_bytes, u64::MAX)
    }

    /// Returns the devices that a pool is made on.
    pub(super) fn first(&self, device: &SharedDevice) -> Vec<SharedDevice> {
        (0..self.kind.members()).map(|slot| self.slice(device, slot)).collect()
    }

    /// Returns what the labels say.
    fn found(&self, device: &SharedDevice) -> Found {
        let strong = (0..self.kind.members()).filter(|slot| *slot != self.weak);
        let strong: Vec<SharedDevice> = strong.map(|slot| self.slice(device, slot)).collect();
        let label = |device: &SharedDevice| -> Option<Superblock> {
            read_superblock(device.as_ref()).ok().map(|read| read.current)
        };
        let age = |label: &Superblock| (label.membership().number, label.sequence);
        let newest = strong.iter().filter_map(label).max_by_key(age);
        let named = newest.and_then(|label| label.members.get(usize_of(self.weak)).cloned());
        let is_it = |number: &u64| {
            let id = label(&self.slice(device, *number)).map(|label| label.device_id());
            id.is_some() && id == named.as_ref().map(|named| named.id)
        };
        let weak = [self.weak, self.kind.members()].into_iter().find(is_it);
        Found { strong, weak, state: named.map(|named| named.state) }
    }

    /// Returns how the pool is opened in a life, and what becomes of the weak member in it.
    pub(super) fn opening(&self, start: &Start) -> (Opening, Option<Replacement>) {
        let random = &mut Prng::from_seed(start.seed.rotate_left(7));
        let Found { strong: mut devices, weak, .. } = self.found(&start.device);
        let weakness = Weakness::draw(random, self.may_rot);
        let nth = if let Weakness::Fails { nth } = weakness { nth } else { u64::MAX };
        if let Some(number) = weak.filter(|_| weakness != Weakness::Away) {
            if weakness == Weakness::Rots {
                self.rot(&start.device, number, random);
            }
            devices.push(Slice::of(&start.device, number, self.member_bytes, nth));
        }
        let spare = if weak == Some(self.weak) { self.kind.members() } else { self.weak };
        let replacement = match weakness {
            Weakness::Replaced { after_ticks } => {
                let mut id = [0; 16];
                id[..8].copy_from_slice(&random.next_u64().to_le_bytes());
                let other = Some((self.slice(&start.device, spare), id));
                Some(Replacement { after_ticks, slot: usize_of(self.weak), other })
            }
            Weakness::Returns { after_ticks } => {
                Some(Replacement { after_ticks, slot: usize_of(self.weak), other: None })
            }
            Weakness::None | Weakness::Fails { .. } | Weakness::Away | Weakness::Rots => None,
        };
        (Opening { devices, accepts_missing: false }, replacement)
    }

    /// Turns bits over on a slice, behind its labels.
    fn rot(&self, device: &SharedDevice, number: u64, random: &mut Prng) {
        let start = number * self.member_bytes;
        for _ in 0..random.below(ROTS_MAX) {
            let span = self.member_bytes - 2 * LABELS_BYTES;
            let offset = start + LABELS_BYTES + random.below(span / 4096) * 4096;
            let (at, mask) = (usize_of(random.below(4096)), 1 << random.below(8));
            let Ok(mut page) = device.read(Purpose::Check, offset, 4096) else { return };
            page[at] ^= mask;
            let page = AlignedBuffer::copy_of(&page);
            // With the power cut there is nobody left to be deceived.
            let _ = device.write(Purpose::Check, offset, page);
        }
        let _ = device.flush(Purpose::Check);
    }

    /// Returns the openings by which a pool at rest is checked: without the weak member, and where
    /// that must have all without each other.
    pub(super) fn checks(&self, device: &SharedDevice) -> Vec<Opening> {
        let Found { strong, weak, state } = self.found(device);
        let opening = |devices| Opening { devices, accepts_missing: true };
        let mut openings = vec![opening(strong.clone())];
        let is_online = state == Some(MemberState::Online);
        if let Some(number) = weak.filter(|_| is_online && !self.may_rot) {
            for left_out in 0..strong.len() {
                let mut devices = strong.clone();
                devices[left_out] = self.slice(device, number);
                openings.push(opening(devices));
            }
        }
        debug_assert!(u64_of(strong.len()) + 1 == self.kind.members());
        openings
    }
}
