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
//! place of the other. A pool of which no disk group does without a member has no weak one.
//!
//! # Disk groups that come and go
//!
//! Where the kind of the pool says so, disk groups are added and removed beside the clients, on
//! slices that nobody has. The first stays, and that of the weak member. One member of a mirror
//! that comes may fail from one of its writes on, the first included: then it is not added, or does
//! without. Meanwhile what is made in the root directory is given placements. A single or a mirror
//! among them gets a member more, or loses one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::Pool;
use format::disk_group::DiskGroupState;
use format::fileset::ROOT_NAME;
use format::members::{Layout, MemberState};
use format::placement::Placement;
use format::superblock::Superblock;
use runtime::prng::Prng;
use storage::device::{
    AlignedBuffer, Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose,
    SharedDevice, Ticket,
};
use storage::pool::read_superblock;
use storage::volume::{NewGroup, Opening};

use super::shapes::{GroupShape, PoolKind};
use super::{GroupTally, JobStep, Start};
use crate::number::{u64_of, usize_of};

/// The write that fails is below 2 to a power below this.
const WRITE_POWER_MAX: u64 = 9;
/// Bits that turn over in one life, at most.
const ROTS_MAX: u64 = 64;
/// Ticks before a device takes the place of another are below 2 to a power below this.
const TICK_POWER_MAX: u64 = 6;
/// No rot in the superblocks of a member: of a device without a label nobody knows what it is.
const LABELS_BYTES: u64 = 128 << 10;
/// Slices for disk groups that come, besides those that others have left.
const FREE_SLICES: u64 = 3;
/// Disk groups that come and go in one life, at most.
const CHANGES_MAX: u64 = 7;
/// Times that a placement is set in one life, at most.
const PLACEMENTS_MAX: u64 = 2;
/// Before each less than 2 to a power below this passes, in virtual nanoseconds.
const CHANGE_NS_POWER_MAX: u64 = 25;

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
    /// Slot of the weak member, and the number of its disk group.
    weak: Option<(u64, u8)>,
    /// Whether bits of it may rot: else it must have all when it is online.
    may_rot: bool,
}

/// The members of a pool, by the newest label of those that are not weak.
struct Found {
    /// All but the weak one: their slices.
    strong: Vec<u64>,
    /// Slices that nobody has.
    free: Vec<u64>,
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

/// A disk group that comes or goes, gets or loses a member, or is preferred.
#[derive(Debug)]
enum Change {
    /// To the disk group of one of the members, but not of `stays`: which, modulo their number.
    Attach {
        which: u64,
        stays: Option<u8>,
        device: SharedDevice,
        id: [u8; 16],
    },
    /// One of the same.
    Detach {
        which: u64,
        stays: Option<u8>,
    },
    Add(NewGroup),
    /// One of those that may: which, modulo their number.
    Remove {
        which: u64,
        stays: Option<u8>,
    },
    /// Of what is made in the root directory from then on.
    Place(Placement),
}

/// Disk groups that come and go in one life, each after so many virtual nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Changes(VecDeque<(u64, Change)>);

impl Changes {
    /// Returns the work of a thread that makes them; `None`: there are none.
    pub(super) fn job(self, pool: &Arc<Pool>, tally: &Arc<GroupTally>) -> Option<JobStep> {
        let (worker, tally, mut changes) = (Arc::clone(pool), Arc::clone(tally), self.0);
        let mut next = None;
        (!changes.is_empty()).then(|| -> JobStep {
            Box::new(move || {
                if let Some(change) = next.take() {
                    make(&worker, change, &tally);
                }
                let (after_ns, change) = changes.pop_front()?;
                next = Some(change);
                Some(after_ns)
            })
        })
    }
}

/// Makes a change; a pool that cannot goes on as it is.
fn make(pool: &Pool, change: Change, tally: &GroupTally) {
    let count = match change {
        Change::Add(new) => match pool.add_disk_group(&new) {
            Ok(_) => &tally.added,
            Err(_) => &tally.refused,
        },
        Change::Attach { which, stays, device, id } => {
            let Some(beside) = one_of(pool, which, stays, 0) else { return };
            match pool.attach_member(beside, device, id) {
                Ok(_) => &tally.attached,
                Err(_) => &tally.refused,
            }
        }
        Change::Detach { which, stays } => {
            // Who checks a pool takes the members of the first for those that it was made on.
            let Some(slot) = one_of(pool, which, stays, 1) else { return };
            match pool.detach_member(slot, true) {
                Ok(detached) => {
                    // What it still says nobody believes.
                    let _ = detached.blank();
                    &tally.detached
                }
                Err(_) => &tally.refused,
            }
        }
        Change::Remove { which, stays } => {
            let groups = pool.status().groups;
            let is_online = |state| state == DiskGroupState::Online;
            let may_go = groups.iter().filter(|group| is_online(group.state));
            let may_go = may_go.map(|group| group.number);
            let may_go: Vec<u8> = may_go.filter(|it| *it > 0 && Some(*it) != stays).collect();
            let Some(number) = which.checked_rem(u64_of(may_go.len())) else { return };
            match pool.remove_disk_group(may_go[usize_of(number)]) {
                Ok(()) => &tally.leaving,
                Err(_) => &tally.refused,
            }
        }
        // Refused where the pool has none, or fails.
        Change::Place(placement) => {
            let name = ROOT_NAME.parse().expect("it is the name of the first fileset");
            if pool.set_placement(&name, &[], (placement, false)).is_err() {
                return;
            }
            &tally.placed
        }
    };
    count.fetch_add(1, Ordering::Relaxed);
}

/// Returns the slot of a member of a disk group that is a single or a mirror, from number `first`
/// on, but not of `stays`: `which`, modulo their number.
fn one_of(pool: &Pool, which: u64, stays: Option<u8>, first: u8) -> Option<usize> {
    let groups = pool.status().groups;
    let is_it = |layout| matches!(layout, Layout::Single | Layout::Mirror);
    let may = groups.iter().filter(|it| it.number >= first && Some(it.number) != stays);
    let may = may.filter(|group| is_it(group.layout));
    let slots: Vec<usize> = may.flat_map(|group| group.slots.iter()).collect();
    let at = which.checked_rem(u64_of(slots.len()))?;
    slots.get(usize_of(at)).copied()
}

impl Members {
    pub(super) fn of(kind: PoolKind, member_bytes: u64, pool_seed: u64) -> Members {
        let random = &mut Prng::from_seed(!pool_seed);
        let groups = (0..).zip(kind.slots()).filter(|(_, (group, _))| group.is_redundant());
        let may_be: Vec<(u64, u8)> =
            groups.flat_map(|(number, (_, slots))| slots.map(move |slot| (slot, number))).collect();
        let weak =
            (!may_be.is_empty()).then(|| may_be[usize_of(random.below(u64_of(may_be.len())))]);
        Members { kind, member_bytes, weak, may_rot: random.one_in(2) }
    }

    /// Returns how many slices the device of a pool of this kind has: two of the weak member.
    pub(super) fn slices(kind: PoolKind) -> u64 {
        let has_weak = kind.groups().iter().any(|group| group.is_redundant());
        let free = if kind.comes().is_empty() { 0 } else { FREE_SLICES };
        kind.members() + u64::from(has_weak) + free
    }

    fn slice(&self, device: &SharedDevice, number: u64) -> SharedDevice {
        Slice::of(device, number, self.member_bytes, u64::MAX)
    }

    /// Returns the devices that a pool is made on, by disk group.
    pub(super) fn first(&self, device: &SharedDevice) -> Vec<(GroupShape, Vec<SharedDevice>)> {
        let devices = |slots: std::ops::Range<u64>| slots.map(|slot| self.slice(device, slot));
        self.kind.slots().map(|(group, slots)| (group, devices(slots).collect())).collect()
    }

    fn is_weak(&self, number: u64) -> bool {
        self.weak.is_some_and(|(slot, _)| number == slot || number == self.kind.members())
    }

    /// Returns what the labels say.
    fn found(&self, device: &SharedDevice) -> Found {
        let label = |number: u64| -> Option<Superblock> {
            let read = read_superblock(self.slice(device, number).as_ref());
            read.ok().map(|read| read.current)
        };
        let age = |label: &Superblock| (label.membership().number, label.sequence);
        // Any may have the last update alone; of one that was taken out it is older.
        let all = (0..Members::slices(self.kind)).filter(|number| !self.is_weak(*number));
        let newest = all.filter_map(label).max_by_key(age);
        let is_member = |number: &u64| {
            let id = label(*number).map(|label| label.device_id());
            let members = newest.iter().flat_map(|label| &label.members);
            id.is_some_and(|id| members.into_iter().any(|member| member.id == id))
        };
        let others = (0..Members::slices(self.kind)).filter(|number| !self.is_weak(*number));
        let (strong, free) = others.partition(is_member);
        let Some((weak, _)) = self.weak else {
            return Found { strong, free, weak: None, state: None };
        };
        let named = newest.as_ref().and_then(|label| label.members.get(usize_of(weak)).cloned());
        let is_it = |number: &u64| {
            let id = label(*number).map(|label| label.device_id());
            id.is_some() && id == named.as_ref().map(|named| named.id)
        };
        let weak = [weak, self.kind.members()].into_iter().find(is_it);
        Found { strong, free, weak, state: named.map(|named| named.state) }
    }

    /// Returns how the pool is opened in a life, and what becomes of the weak member and of disk
    /// groups in it.
    pub(super) fn opening(&self, start: &Start) -> (Opening, Option<Replacement>, Changes) {
        let random = &mut Prng::from_seed(start.seed.rotate_left(7));
        let Found { strong, free, weak, .. } = self.found(&start.device);
        let strong = strong.into_iter().map(|number| self.slice(&start.device, number));
        let mut devices: Vec<SharedDevice> = strong.collect();
        let weakness = Weakness::draw(random, self.may_rot);
        let nth = if let Weakness::Fails { nth } = weakness { nth } else { u64::MAX };
        if let Some(number) = weak.filter(|_| weakness != Weakness::Away) {
            if weakness == Weakness::Rots {
                self.rot(&start.device, number, random);
            }
            devices.push(Slice::of(&start.device, number, self.member_bytes, nth));
        }
        let replacement = self.weak.and_then(|(slot, _)| {
            let spare = if weak == Some(slot) { self.kind.members() } else { slot };
            match weakness {
                Weakness::Replaced { after_ticks } => {
                    let other = Some((self.slice(&start.device, spare), id_of(random)));
                    Some(Replacement { after_ticks, slot: usize_of(slot), other })
                }
                Weakness::Returns { after_ticks } => {
                    Some(Replacement { after_ticks, slot: usize_of(slot), other: None })
                }
                Weakness::None | Weakness::Fails { .. } | Weakness::Away | Weakness::Rots => None,
            }
        });
        let changes = self.changes(&start.device, free, random);
        (Opening { devices, accepts_missing: false }, replacement, changes)
    }

    /// Draws the disk groups that come and go in a life, on slices of `free`.
    fn changes(&self, device: &SharedDevice, mut free: Vec<u64>, random: &mut Prng) -> Changes {
        let comes = self.kind.comes();
        if comes.is_empty() {
            return Changes::default();
        }
        let mut changes = VecDeque::new();
        for _ in 0..random.below(CHANGES_MAX + 1) {
            let power = random.below(CHANGE_NS_POWER_MAX);
            let after_ns = random.below(1 << power);
            let shape = comes[usize_of(random.below(u64_of(comes.len())))];
            let stays = self.weak.map(|(_, group)| group);
            let change = if random.one_in(3) {
                Change::Remove { which: random.next_u64(), stays }
            } else if random.one_in(3) {
                Change::Detach { which: random.next_u64(), stays }
            } else if random.one_in(3) && !free.is_empty() {
                let device = self.slice(device, free.remove(0));
                Change::Attach { which: random.next_u64(), stays, device, id: id_of(random) }
            } else if usize_of(shape.width) <= free.len() {
                let own = free.drain(..usize_of(shape.width)).collect();
                Change::Add(self.new_group(device, shape, own, random))
            } else {
                continue;
            };
            changes.push_back((after_ns, change));
        }
        for _ in 0..random.below(PLACEMENTS_MAX + 1) {
            let power = random.below(CHANGE_NS_POWER_MAX);
            let after_ns = random.below(1 << power);
            let number = u8::try_from(random.below(4)).expect("below 4");
            let some = [Placement::Any, Placement::RoundRobin, Placement::Group(number)];
            let placement = some[usize_of(random.below(u64_of(some.len())))];
            let at = usize_of(random.below(u64_of(changes.len() + 1)));
            changes.insert(at, (after_ns, Change::Place(placement)));
        }
        Changes(changes)
    }

    /// Returns a disk group that comes; one of its members may fail if it does without.
    fn new_group(
        &self,
        device: &SharedDevice,
        shape: GroupShape,
        slices: Vec<u64>,
        random: &mut Prng,
    ) -> NewGroup {
        let failing = (shape.is_redundant() && random.one_in(4)).then(|| {
            let power = random.below(WRITE_POWER_MAX);
            (random.below(shape.width), random.below(1 << power))
        });
        let member = |(at, number): (u64, u64)| {
            let nth = failing.filter(|(which, _)| *which == at).map_or(u64::MAX, |(_, nth)| nth);
            (Slice::of(device, number, self.member_bytes, nth), id_of(random))
        };
        NewGroup { layout: shape.layout, devices: (0..).zip(slices).map(member).collect() }
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
    /// that must have all without each other of its disk group.
    pub(super) fn checks(&self, device: &SharedDevice) -> Vec<Opening> {
        let Found { strong, weak, state, .. } = self.found(device);
        let opening = |numbers: &[u64]| {
            let devices = numbers.iter().map(|number| self.slice(device, *number)).collect();
            Opening { devices, accepts_missing: true }
        };
        let mut openings = vec![opening(&strong)];
        let is_online = state == Some(MemberState::Online);
        let whole = weak.filter(|_| is_online && !self.may_rot);
        if let (Some(number), Some((_, group))) = (whole, self.weak) {
            // Its disk group never leaves: the others are where they were made.
            let own = self.kind.slots().nth(usize::from(group)).map(|(_, slots)| slots);
            for left_out in own.into_iter().flatten().filter(|slot| strong.contains(slot)) {
                let others = strong.iter().copied().filter(|slot| *slot != left_out);
                openings.push(opening(&others.chain([number]).collect::<Vec<u64>>()));
            }
        }
        openings
    }
}

fn id_of(random: &mut Prng) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&random.next_u64().to_le_bytes());
    id
}
