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
//! # More that happens
//!
//! Where the kind of the pool says so ([`super::shapes::Also`]):
//!
//! - Devices wait as spares, and take the place of the weak member when it fails or is away. One of
//!   them may be away as well, or fail when it has.
//! - All devices become longer, as a file does that is extended, and disk groups with them.
//! - What the pool has is scrubbed while bits of the weak member rot. A scrub loses nothing.
//! - The weak member does not answer a request, or all of a kind from one on; or it is late.
//! - A raid5 gets a member and loses one; the weak one stays.
//! - Two members are weak at once: two of a mirror of three, or one of each of two disk groups; so
//!   it is where the metadata moves.
//! - All devices of a journal that is apart fail, besides the weak member, which is none of them.
//!   They are there in the next life, with what they had. None fails while the pool is opened: that
//!   would be refused.
//!
//! # Which members there are
//!
//! The labels say: the newest of those that are not on slices for weak members. What disk groups
//! have which numbers, and which slots, changes while pools are in use. So a slice is a member if
//! its own id is listed there, and the weak member is the one whose id was given to a slice of its
//! own ([`WeakId`]).
//!
//! What is done to a pool beside its clients is in `changes.rs`, and so are disk groups that come
//! and go. The disk group of the weak member stays, unless the kind of the pool moves its metadata:
//! then it may leave. One that comes gets a slice for a weak member among its own, if it does
//! without a member, and there are two such members at most, of two disk groups.

use std::sync::Arc;

use engine::Pool;
use format::members::MemberState;
use format::superblock::Superblock;
use runtime::prng::Prng;
use storage::device::{AlignedBuffer, IoPurpose, SharedDevice};
use storage::pool::{SuperblockReport, read_superblock};
use storage::volume::VolumeDevices;

use super::changes::{Changes, Free};
use super::shapes::{GroupShape, PoolKind};
use super::slice::{Ends, Lengths, Slice, SliceFaults, Stall};
use super::{GroupTally, Start};
use crate::number::{u64_of, usize_of};

/// The write that fails is below 2 to a power below this.
const WRITE_POWER_MAX: u64 = 9;
/// Bits that turn over in one life, at most.
const ROTS_MAX: u64 = 64;
/// The same where what rots is scrubbed.
const ROTS_SCRUBBED_MAX: u64 = 1024;
/// Writes of the log to a device of the journal that do not fail, at least: an open has fewer.
const LOG_WRITES_OF_OPEN: u64 = 12;
/// Ticks before a device takes the place of another are below 2 to a power below this.
const TICK_POWER_MAX: u64 = 6;
/// No rot in the superblocks of a member: of a device without a label nobody knows what it is.
const LABELS_BYTES: u64 = 128 << 10;
/// Slices for disk groups that come, besides those that others have left, where they are few.
const FREE_SLICES: u64 = 3;
/// Slices for spares, and for members that a raid5 gets.
const MORE_SLICES: u64 = 2;
/// How often devices become longer.
const LENGTHS: usize = 4;
/// Where an id that was drawn says of which weak member it is, from 1 on; 0: of none.
const MARK_AT: usize = 15;
/// What is drawn of an id. Between them are zeros, as no id has that an engine draws.
const DRAWN_BYTES: usize = 8;
/// Where a device says how often its slices have become longer: one page.
const NOTES_BYTES: u64 = 4096;

/// What goes wrong with the weak member in one life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weakness {
    None,
    Fails { nth: u64 },
    Away,
    Rots,
    Replaced { after_ticks: u64 },
    Returns { after_ticks: u64 },
    Stalls(Stall),
}

impl Weakness {
    fn draw(random: &mut Prng, may_rot: bool) -> Weakness {
        match random.below(10) {
            0 | 1 => Weakness::Fails { nth: random.below_power(WRITE_POWER_MAX) },
            2 => Weakness::Away,
            3 if may_rot => Weakness::Rots,
            4..=6 => Weakness::Replaced { after_ticks: random.below_power(TICK_POWER_MAX) },
            7 | 8 => Weakness::Returns { after_ticks: random.below_power(TICK_POWER_MAX) },
            _ => Weakness::None,
        }
    }
}

/// A weak member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weak {
    /// The slice that it is made on, which has the slot of the same number; or one for a member
    /// of a disk group that comes.
    pub(super) slot: u64,
    /// The slice that takes the place of the one that it is made on.
    other: u64,
}

/// What the labels say of a weak member.
#[derive(Clone, Debug)]
struct FoundWeak {
    /// Its slot; `None`: its disk group has left, or none has come that has one.
    slot: Option<usize>,
    /// What is listed there.
    id: Option<[u8; 16]>,
    state: Option<MemberState>,
    /// The slice that is it, if its label says so.
    number: Option<u64>,
    /// The members of its disk group: their ids.
    own: Vec<[u8; 16]>,
}

/// Tells a weak member by its id, whether or not its slice has a label already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WeakId {
    /// The device that the pool was made on.
    first: Option<[u8; 16]>,
    /// The mark of those that came since.
    mark: u8,
}

impl WeakId {
    /// Returns how that of this number is told if it is a device that came.
    fn of_coming(index: usize) -> WeakId {
        WeakId { first: None, mark: u8::try_from(index + 1).expect("few") }
    }

    /// Returns how one with this id is told.
    pub(super) fn of_one(id: [u8; 16]) -> WeakId {
        WeakId { first: Some(id), mark: u8::MAX }
    }

    /// Draws the id of a device that is the weak member from now on.
    pub(super) fn draw(self, random: &mut Prng) -> [u8; 16] {
        let mut id = id_of(random);
        id[MARK_AT] = self.mark;
        id
    }

    fn is_it(self, id: [u8; 16]) -> bool {
        Some(id) == self.first || (is_drawn(id) && id[MARK_AT] == self.mark)
    }
}

/// Returns the numbers of the disk groups of an open pool that have weak members.
pub(super) fn groups_of(weak: &[WeakId], pool: &Pool) -> Vec<u8> {
    let (members, groups) = (pool.devices().members(), pool.status().groups);
    let is_weak = |id: [u8; 16]| weak.iter().any(|it| it.is_it(id));
    let weak = members.iter().filter(|it| is_weak(it.member.id));
    let group = |slot| groups.iter().find(|group| group.slots.contains(slot));
    weak.filter_map(|it| group(it.slot)).map(|group| group.number).collect()
}

/// The members of one pool, as its seed chooses them.
#[derive(Clone, Debug)]
pub(super) struct Members {
    pub(super) kind: PoolKind,
    lengths: Lengths,
    /// Members of which any may be lost, all at once.
    pub(super) weak: Vec<Weak>,
    /// Whether bits of it may rot: else it must have all when it is online.
    may_rot: bool,
}

/// Reads the labels of slices.
struct Labels<'a> {
    members: &'a Members,
    device: &'a SharedDevice,
    ends: &'a Ends,
}

impl Labels<'_> {
    fn of(&self, number: u64) -> Option<SuperblockReport> {
        read_superblock(self.members.slice(self.device, number, self.ends).as_ref()).ok()
    }

    fn id(&self, number: u64) -> Option<[u8; 16]> {
        self.of(number).map(|read| read.current.device_id())
    }
}

/// The members of a pool, by the newest label of those that are not weak.
struct Found {
    /// All but the weak ones: their slices.
    strong: Vec<u64>,
    /// Those of them that have the journal, where it is apart.
    journal: Vec<u64>,
    /// Slices that nobody has, but those of weak members.
    free: Vec<u64>,
    /// Slices that are spares.
    spares: Vec<u64>,
    weak: Vec<FoundWeak>,
}

fn newest_of(labels: impl Iterator<Item = SuperblockReport>) -> Option<Superblock> {
    labels.max_by_key(SuperblockReport::age).map(|read| read.current)
}

/// Leaves out of `devices` those that the newest label does not list, as who looks for the devices
/// of a pool does: a weak member may be the only one that has it.
fn leave_out_others(devices: &mut Vec<SharedDevice>) {
    let read = |device: &SharedDevice| read_superblock(device.as_ref()).ok();
    let Some(newest) = newest_of(devices.iter().filter_map(read)) else { return };
    devices.retain(|device| {
        let id = read(device).map(|read| read.current.device_id());
        newest.members.iter().any(|member| Some(member.id) == id)
    });
}

/// A device that takes the place of the weak member when so many ticks are over, or the weak member
/// itself, which is brought back.
pub(super) struct Replacement {
    pub(super) after_ticks: u64,
    slot: usize,
    /// Who was there when the pool was opened; `None`: whoever it is.
    id: Option<[u8; 16]>,
    /// The other device, and its id; `None`: it is brought back.
    other: Option<(SharedDevice, [u8; 16])>,
}

impl Replacement {
    /// Begins it. A pool that cannot goes on as it is.
    pub(super) fn begin(self, pool: &Pool) {
        let Replacement { slot, id, other, .. } = self;
        let is_there = |id: [u8; 16]| {
            pool.devices().members().iter().any(|it| (it.slot, it.member.id) == (slot, id))
        };
        // Its disk group may have left, and another member have its slot.
        if id.is_some_and(|id| !is_there(id)) {
            return;
        }
        // Refused while another joins, where the pool has failed, or nobody is away.
        match other {
            Some((device, id)) => drop(pool.devices().replace_member(slot, device, id)),
            None => drop(pool.devices().return_member_in(slot)),
        }
    }
}

impl Members {
    pub(super) fn of(kind: PoolKind, member_bytes: u64, pool_seed: u64) -> Members {
        let random = &mut Prng::from_seed(!pool_seed);
        let also = kind.also();
        let may_be_weak = |group: &GroupShape| {
            group.is_redundant() && !(also.loses_journal && group.roles.journal)
        };
        let groups = (0..).zip(kind.slots()).filter(|(_, (group, _))| may_be_weak(group));
        let mut may_be: Vec<(u64, u8)> =
            groups.flat_map(|(number, (_, slots))| slots.map(move |slot| (slot, number))).collect();
        let mut weak = Vec::new();
        while u64_of(weak.len()) < also.weak && !may_be.is_empty() {
            let (slot, group) = may_be[usize_of(random.below(u64_of(may_be.len())))];
            weak.push(Weak { slot, other: kind.members() + u64_of(weak.len()) });
            // A mirror of three does without two.
            let shape = kind.groups()[usize::from(group)];
            let is_another = shape.layout == format::members::Layout::Mirror && shape.width > 2;
            may_be.retain(|it| it.0 != slot && (is_another || it.1 != group));
        }
        if kind.moves_metadata() {
            // Of what comes, whether or not the first disk group has left with its own.
            let slot = kind.members() + u64_of(weak.len());
            weak.push(Weak { slot, other: slot + 1 });
        }
        let may_rot = random.one_in(2) || also.scrubs;
        let steps = if also.lengthens { LENGTHS } else { 0 };
        // Twice as long in the end.
        let stride_bytes = if also.lengthens { member_bytes * 2 } else { member_bytes };
        let lengths = Lengths { stride_bytes, first_bytes: member_bytes, steps };
        Members { kind, lengths, weak, may_rot }
    }

    /// Returns how many slices the device has: two of each weak member.
    fn slices(&self) -> u64 {
        let (also, comes) = (self.kind.also(), self.kind.comes());
        let widest = comes.iter().map(|group| group.width).max().unwrap_or(0);
        let free = if comes.is_empty() { 0 } else { widest.max(FREE_SLICES) };
        let more = if also.spares || also.reshapes || also.lanes { MORE_SLICES } else { 0 };
        let last_weak = self.weak.iter().map(|weak| weak.other + 1).max();
        last_weak.unwrap_or(self.kind.members()) + free + more
    }

    /// Returns how long the device is.
    pub(super) fn device_bytes(&self) -> u64 {
        self.notes_at() + if self.lengths.steps > 0 { NOTES_BYTES } else { 0 }
    }

    /// Returns where the device says how often its slices have become longer.
    pub(super) fn notes_at(&self) -> u64 {
        self.slices() * self.lengths.stride_bytes
    }

    /// Returns how long slices are now.
    fn ends(&self, device: &SharedDevice) -> Ends {
        if self.lengths.steps == 0 {
            return Ends::new(self.lengths, 0);
        }
        let page = device.read(IoPurpose::Superblock, self.notes_at(), usize_of(NOTES_BYTES));
        // With the power cut there is nobody left to use them.
        let steps = page.map_or(0, |page| usize::from(page[0]));
        Ends::new(self.lengths, steps)
    }

    pub(super) fn slice(&self, device: &SharedDevice, number: u64, ends: &Ends) -> SharedDevice {
        Slice::of(device, number, ends, SliceFaults::default())
    }

    /// Returns the devices that a pool is made on, by disk group.
    pub(super) fn first(&self, device: &SharedDevice) -> Vec<(GroupShape, Vec<SharedDevice>)> {
        let ends = &Ends::new(self.lengths, 0);
        let devices =
            |slots: std::ops::Range<u64>| slots.map(|slot| self.slice(device, slot, ends));
        self.kind.slots().map(|(group, slots)| (group, devices(slots).collect())).collect()
    }

    /// Returns the slices that a weak member may be on.
    fn of_weak(&self, weak: &Weak) -> Vec<u64> {
        let mut may_be = vec![weak.slot, weak.other];
        if self.kind.also().spares {
            may_be.extend(self.kind.members() + u64_of(self.weak.len())..self.slices());
        }
        may_be
    }

    fn is_weak(&self, number: u64) -> bool {
        self.weak.iter().any(|weak| self.of_weak(weak).contains(&number))
    }

    fn labels<'a>(&'a self, device: &'a SharedDevice, ends: &'a Ends) -> Labels<'a> {
        Labels { members: self, device, ends }
    }

    /// Returns how the weak member of this number is told from others.
    fn weak_id(&self, index: usize, labels: &Labels<'_>) -> WeakId {
        let first = self.weak.get(index).and_then(|weak| labels.id(weak.slot));
        WeakId { first, ..WeakId::of_coming(index) }
    }

    /// Returns what the labels say.
    fn found(&self, device: &SharedDevice) -> Found {
        let ends = &self.ends(device);
        let labels = self.labels(device, ends);
        // Any may have the last update alone; of one that was taken out it is older.
        let others = (0..self.slices()).filter(|number| !self.is_weak(*number));
        let newest = newest_of(others.clone().filter_map(|number| labels.of(number)));
        let members = newest.as_ref().map_or(&[][..], |label| label.members.as_slice());
        let slot_of = |number: &u64| {
            let id = labels.id(*number)?;
            members.iter().position(|member| member.id == id)
        };
        let (strong, mut free): (Vec<u64>, Vec<u64>) =
            others.partition(|number| slot_of(number).is_some());
        let has_journal = |number: &u64| {
            let mut groups = newest.iter().flat_map(|label| &label.added);
            let slot = slot_of(number);
            slot.is_some_and(|slot| groups.any(|it| it.has_journal && it.slots.contains(slot)))
        };
        let loses_journal = self.kind.also().loses_journal;
        let journal =
            strong.iter().copied().filter(|it| loses_journal && has_journal(it)).collect();
        let (mut weak, mut spares) = (Vec::new(), Vec::new());
        for (index, it) in self.weak.iter().enumerate() {
            let slot = match self.kind.moves_metadata() {
                true => {
                    let weak_id = self.weak_id(index, &labels);
                    members.iter().position(|member| weak_id.is_it(member.id))
                }
                // A spare may be there.
                false => Some(usize_of(it.slot)),
            };
            let named = slot.and_then(|slot| members.get(slot));
            let id = named.map(|named| named.id);
            let is_it = |number: &u64| id.is_some() && labels.id(*number) == id;
            let group = newest.as_ref().and_then(|label| label.group_of_slot(slot?));
            let own = group.into_iter().flat_map(|(.., slots)| slots.pick(members));
            weak.push(FoundWeak {
                slot,
                id,
                state: named.map(|named| named.state),
                number: self.of_weak(it).into_iter().find(is_it),
                own: own.map(|member| member.id).collect(),
            });
        }
        if self.kind.also().spares {
            let listed = newest.iter().flat_map(|label| &label.spares).map(|spare| spare.id);
            let listed: Vec<[u8; 16]> = listed.collect();
            let is_spare = |number: &u64| labels.id(*number).is_some_and(|id| listed.contains(&id));
            let others = self.weak.iter().flat_map(|it| self.of_weak(it));
            let others = others.filter(|number| weak.iter().all(|it| it.number != Some(*number)));
            (spares, free) = others.partition(is_spare);
        }
        Found { strong, journal, free, spares, weak }
    }

    /// Draws what becomes of each weak member in a life.
    fn draw(&self, random: &mut Prng, more: &mut Prng) -> Vec<Weakness> {
        let also = self.kind.also();
        let mut drawn: Vec<Weakness> = Vec::new();
        for _ in 0..self.weak.len().max(1) {
            let mut weakness = Weakness::draw(random, self.may_rot);
            if also.stalls && more.one_in(2) {
                weakness = Weakness::Stalls(Stall::draw(more));
            } else if also.scrubs && more.one_in(2) {
                weakness = Weakness::Rots;
            } else if (also.reshapes && !more.one_in(4))
                || (self.kind.moves_metadata() && !more.one_in(3))
            {
                // One that is away keeps all from moving.
                let after_ticks = more.below(TICK_POWER_MAX);
                weakness = Weakness::Returns { after_ticks };
            }
            // More than half must be there when a pool is opened.
            if weakness == Weakness::Away && drawn.contains(&weakness) {
                weakness = Weakness::None;
            }
            drawn.push(weakness);
        }
        drawn
    }

    /// Returns how the pool is opened in a life, and what becomes of the weak members and of disk
    /// groups in it.
    pub(super) fn opening(
        &self,
        start: &Start,
        tally: &GroupTally,
    ) -> (VolumeDevices, Vec<Replacement>, Changes) {
        let random = &mut Prng::from_seed(start.seed.rotate_left(7));
        let more = &mut Prng::from_seed(start.seed.rotate_left(13));
        let Found { strong, journal, mut free, spares, weak } = self.found(&start.device);
        let ends = &self.ends(&start.device);
        let slice = |number: u64| self.slice(&start.device, number, ends);
        let is_lost = !journal.is_empty() && !more.one_in(4);
        let mut strong_slice = |number: u64| {
            if !is_lost || !journal.contains(&number) {
                return slice(number);
            }
            let writes = Some(LOG_WRITES_OF_OPEN + more.below_power(WRITE_POWER_MAX));
            let counted = Some(IoPurpose::Journal);
            let faults = SliceFaults { writes, counted, ..SliceFaults::default() };
            Slice::of(&start.device, number, ends, faults)
        };
        let mut devices: Vec<SharedDevice> = strong.into_iter().map(&mut strong_slice).collect();
        let mut replacements = Vec::new();
        let drawn = self.draw(random, more);
        let mut coming_weak = Vec::new();
        for (index, ((it, found), weakness)) in self.weak.iter().zip(weak).zip(drawn).enumerate() {
            let Some(slot) = found.slot else {
                coming_weak.push((it.slot, WeakId::of_coming(index)));
                continue;
            };
            let id = found.id.filter(|_| self.kind.moves_metadata());
            let mut faults = SliceFaults::default();
            match weakness {
                Weakness::Fails { nth } => faults.writes = Some(nth),
                Weakness::Stalls(stall) => {
                    (faults.stall, faults.tally) = (Some(stall), Some(Arc::clone(&tally.events)));
                }
                Weakness::None
                | Weakness::Away
                | Weakness::Rots
                | Weakness::Replaced { .. }
                | Weakness::Returns { .. } => {}
            }
            if let Some(number) = found.number.filter(|_| weakness != Weakness::Away) {
                if weakness == Weakness::Rots {
                    self.rot(&start.device, number, random);
                }
                devices.push(Slice::of(&start.device, number, ends, faults));
            }
            match weakness {
                Weakness::Replaced { after_ticks } => {
                    let spare = if found.number == Some(it.slot) { it.other } else { it.slot };
                    let spare = Some(spare).filter(|number| !spares.contains(number));
                    let Some(spare) = spare else { continue };
                    free.retain(|number| *number != spare);
                    let other = (slice(spare), WeakId::of_coming(index).draw(random));
                    replacements.push(Replacement { after_ticks, slot, id, other: Some(other) });
                }
                Weakness::Returns { after_ticks } => {
                    replacements.push(Replacement { after_ticks, slot, id, other: None });
                }
                Weakness::None
                | Weakness::Fails { .. }
                | Weakness::Away
                | Weakness::Rots
                | Weakness::Stalls(_) => {}
            }
        }
        leave_out_others(&mut devices);
        for number in spares {
            // It may be away as well, or fail when it has taken the place of the weak member.
            let writes = more.one_in(8).then(|| more.below_power(WRITE_POWER_MAX));
            if !more.one_in(8) {
                let faults = SliceFaults { writes, ..SliceFaults::default() };
                devices.push(Slice::of(&start.device, number, ends, faults));
            }
        }
        let changes = if self.kind.has_more() && !self.kind.also().loses_journal {
            self.more(&start.device, free, more, ends)
        } else {
            let labels = self.labels(&start.device, ends);
            let weak_ids = (0..self.weak.len()).map(|it| self.weak_id(it, &labels)).collect();
            let free = Free { slices: free, weak: coming_weak, weak_ids };
            self.changes(&start.device, free, random, ends)
        };
        (VolumeDevices { devices, accepts_missing: false }, replacements, changes)
    }

    /// Turns bits over on a slice, behind its labels.
    fn rot(&self, device: &SharedDevice, number: u64, random: &mut Prng) {
        let start = number * self.lengths.stride_bytes;
        let most = if self.kind.also().scrubs { ROTS_SCRUBBED_MAX } else { ROTS_MAX };
        for _ in 0..random.below(most) {
            let span = self.lengths.first_bytes - 2 * LABELS_BYTES;
            let offset = start + LABELS_BYTES + random.below(span / 4096) * 4096;
            let (at, mask) = (usize_of(random.below(4096)), 1 << random.below(8));
            let Ok(mut page) = device.read(IoPurpose::Check, offset, 4096) else { return };
            page[at] ^= mask;
            let page = AlignedBuffer::copy_of(&page);
            // With the power cut there is nobody left to be deceived.
            let _ = device.write(IoPurpose::Check, offset, page);
        }
        let _ = device.flush(IoPurpose::Check);
    }

    /// Returns the openings by which a pool at rest is checked: without the weak members, and where
    /// one of them must have all without each other of its disk group.
    pub(super) fn checks(&self, device: &SharedDevice) -> Vec<VolumeDevices> {
        let Found { strong, weak, .. } = self.found(device);
        let ends = &self.ends(device);
        let labels = self.labels(device, ends);
        let opening = |numbers: &[u64]| {
            let devices = numbers.iter().map(|number| self.slice(device, *number, ends)).collect();
            VolumeDevices { devices, accepts_missing: true }
        };
        let mut openings = vec![opening(&strong)];
        for found in weak {
            let is_online = found.state == Some(MemberState::Online);
            let whole = found.number.filter(|_| is_online && !self.may_rot);
            let Some(number) = whole else { continue };
            let is_own = |slice: &u64| labels.id(*slice).is_some_and(|id| found.own.contains(&id));
            for left_out in strong.iter().copied().filter(is_own) {
                let others = strong.iter().copied().filter(|slot| *slot != left_out);
                openings.push(opening(&others.chain([number]).collect::<Vec<u64>>()));
            }
        }
        openings
    }
}

/// Draws the id of a device that a pool gets.
pub(super) fn id_of(random: &mut Prng) -> [u8; 16] {
    let mut id = [0; 16];
    id[..DRAWN_BYTES].copy_from_slice(&random.next_u64().to_le_bytes());
    id
}

/// Whether a device came to its pool; else the pool was made on it.
pub(super) fn is_drawn(id: [u8; 16]) -> bool {
    id[DRAWN_BYTES..MARK_AT].iter().all(|byte| *byte == 0)
}
