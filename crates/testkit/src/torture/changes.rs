//! What is done to the disk groups and members of a pool beside its clients.
//!
//! Disk groups come and go, get members and lose them, and are preferred; and where the kind of the
//! pool says so, devices become spares, or longer, scrubs begin, and a raid5 gets a member or loses
//! one. All is drawn when the pool is opened, by the seed of that life.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::{DiskGroupStatus, Pool};
use format::disk_group::DiskGroupState;
use format::fileset::ROOT_NAME;
use format::members::{Layout, MemberState};
use format::placement::Placement;
use runtime::prng::Prng;
use storage::device::{AlignedBuffer, IoPurpose, SharedDevice};
use storage::volume::DiskGroupSpec;

use super::events::Event;
use super::members::{Members, WeakId, groups_of, id_of};
use super::shapes::GroupShape;
use super::slice::{Ends, Slice, SliceFaults};
use super::{GroupTally, JobStep};
use crate::number::{u64_of, usize_of};

/// Disk groups that come and go in one life, at most.
const CHANGES_MAX: u64 = 7;
/// Times that a placement is set in one life, at most.
const PLACEMENTS_MAX: u64 = 2;
/// Before each less than 2 to a power below this passes, in virtual nanoseconds.
const CHANGE_NS_POWER_MAX: u64 = 25;
/// The write that fails of a member that comes is below 2 to a power below this.
const WRITE_POWER_MAX: u64 = 9;
/// Times that a pool gets a spare, becomes longer, is scrubbed or reshaped in one life, at most.
const MORE_MAX: u64 = 3;
/// As [`CHANGE_NS_POWER_MAX`], of these: jobs go on after them.
const MORE_NS_POWER_MAX: u64 = 17;

/// A disk group that comes or goes, gets or loses a member, or is preferred.
#[derive(Debug)]
enum Change {
    /// To the disk group of one of the members, not of the weak one: which, modulo their number.
    Attach {
        which: u64,
        device: SharedDevice,
        id: [u8; 16],
    },
    /// One of the same.
    Detach {
        which: u64,
    },
    Add(DiskGroupSpec),
    /// One of those that may: which, modulo their number.
    Remove {
        which: u64,
    },
    /// Of what is made in the root directory from then on.
    Place(Placement),
    /// A device waits for a member to fail.
    AddSpare(SharedDevice, [u8; 16]),
    /// All devices become longer, and all disk groups then.
    Lengthen(Lengthening),
    Scrub,
    /// The disk group that has the member in a slot, or the first, gets another.
    Widen {
        beside: Option<u64>,
        device: SharedDevice,
        id: [u8; 16],
    },
    /// A round-robin, or what was left of one, gets a member: which, modulo their members.
    AddLane {
        which: u64,
        device: SharedDevice,
        id: [u8; 16],
    },
    /// A round-robin loses one: which, modulo their number.
    RemoveLane {
        which: u64,
    },
    /// The first disk group loses one that is not weak: which, modulo their number.
    Narrow {
        which: u64,
        stays: Vec<u64>,
    },
}

/// How all slices of a device become longer.
#[derive(Debug)]
pub(super) struct Lengthening {
    pub(super) ends: Ends,
    /// Says durably how long they are, on the device that they are slices of, from this byte on.
    pub(super) device: SharedDevice,
    pub(super) notes_at: u64,
}

impl Lengthening {
    /// Makes devices longer, durably, before anybody uses that. Returns whether they are.
    fn make(&self) -> bool {
        let steps = self.ends.steps() + 1;
        if steps > self.ends.lengths.steps {
            return false;
        }
        let mut page = [0; 4096];
        page[0] = u8::try_from(steps).expect("few");
        let page = AlignedBuffer::copy_of(&page);
        let written = self.device.write(IoPurpose::Superblock, self.notes_at, page);
        if written.and_then(|()| self.device.flush(IoPurpose::Superblock)).is_err() {
            return false;
        }
        self.ends.set(steps);
        true
    }
}

/// Slices for what comes in a life.
#[derive(Debug)]
pub(super) struct Free {
    pub(super) slices: Vec<u64>,
    /// Those that may be weak members which the pool does not have.
    pub(super) weak: Vec<(u64, WeakId)>,
    /// How all weak members are told, and those of what comes that fail in this life.
    pub(super) weak_ids: Vec<WeakId>,
}

/// Slices of a disk group that comes.
#[derive(Debug)]
struct Taken {
    slices: Vec<u64>,
    /// Which of them is the weak member.
    weak: Option<(u64, WeakId)>,
}

impl Free {
    /// Takes those of a disk group of this shape; `None`: there are too few. Only one that does
    /// without a member gets the weak one, and then so it does.
    fn take(&mut self, shape: GroupShape, random: &mut Prng) -> Option<Taken> {
        let weak = self.weak.first().copied().filter(|_| shape.is_redundant());
        let more = usize_of(shape.width) - usize::from(weak.is_some());
        if more > self.slices.len() {
            return None;
        }
        let mut slices: Vec<u64> = self.slices.drain(..more).collect();
        let weak = weak.map(|(slice, weak_id)| {
            self.weak.remove(0);
            let at = random.below(shape.width);
            slices.insert(usize_of(at), slice);
            (at, weak_id)
        });
        Some(Taken { slices, weak })
    }
}

/// What may not be changed, for more would be wrong then than a layout is for.
#[derive(Clone, Debug, Default)]
struct Stays {
    weak: Vec<WeakId>,
    /// Whether the metadata moves, and the disk group that has a weak member may leave with it.
    moves_metadata: bool,
}

/// Disk groups that come and go in one life, each after so many virtual nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Changes {
    queue: VecDeque<(u64, Change)>,
    stays: Stays,
}

impl Changes {
    /// Returns the work of a thread that makes them; `None`: there are none.
    pub(super) fn job(self, pool: &Arc<Pool>, tally: &Arc<GroupTally>) -> Option<JobStep> {
        let Changes { queue: mut changes, stays } = self;
        let (worker, tally) = (Arc::clone(pool), Arc::clone(tally));
        let mut next = None;
        (!changes.is_empty()).then(|| -> JobStep {
            Box::new(move || {
                if let Some(change) = next.take() {
                    let main = || stays.moves_metadata.then(|| main_of(&worker));
                    let before = main();
                    make(&worker, change, &stays, &tally);
                    if main() != before {
                        tally.events.count(Event::MainMoved);
                    }
                }
                let (after_ns, change) = changes.pop_front()?;
                next = Some(change);
                Some(after_ns)
            })
        })
    }
}

/// Makes a change; a pool that cannot goes on as it is.
fn make(pool: &Pool, change: Change, stays: &Stays, tally: &GroupTally) {
    let count = match change {
        Change::Add(new) => match pool.devices().add_disk_group(&new) {
            Ok(_) => &tally.added,
            Err(_) => &tally.refused,
        },
        Change::Attach { which, device, id } => {
            let Some(beside) = one_of(pool, which, stays) else { return };
            match pool.devices().attach_member(beside, device, id) {
                Ok(_) => &tally.attached,
                Err(_) => &tally.refused,
            }
        }
        Change::Detach { which } => {
            let Some(slot) = one_of(pool, which, stays) else { return };
            match pool.devices().detach_member(slot, true) {
                Ok(detached) => {
                    // What it still says nobody believes.
                    let _ = detached.blank();
                    &tally.detached
                }
                Err(_) => &tally.refused,
            }
        }
        Change::Remove { which } => {
            let groups = pool.status().groups;
            let own = if stays.moves_metadata { Vec::new() } else { groups_of(&stays.weak, pool) };
            let can_follow = |main: &DiskGroupStatus| {
                groups.iter().any(|it| it.number != main.number && it.can_be_main())
            };
            let may_go = groups.iter().filter(|group| {
                group.state == DiskGroupState::Online
                    && !own.contains(&group.number)
                    && (!group.is_main || can_follow(group))
            });
            let may_go: Vec<u8> = may_go.map(|group| group.number).collect();
            let Some(number) = which.checked_rem(u64_of(may_go.len())) else { return };
            // The first of them more often, where that is what it is about.
            let is_first = stays.moves_metadata && which & 1 << 32 == 0;
            let number = if is_first { 0 } else { number };
            match pool.devices().remove_disk_group(may_go[usize_of(number)]) {
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
        Change::AddSpare(..)
        | Change::Lengthen(_)
        | Change::Scrub
        | Change::Widen { .. }
        | Change::AddLane { .. }
        | Change::RemoveLane { .. }
        | Change::Narrow { .. } => return make_more(pool, change, tally),
    };
    count.fetch_add(1, Ordering::Relaxed);
}

/// Makes a change of those that only some kinds of pools see.
fn make_more(pool: &Pool, change: Change, tally: &GroupTally) {
    let events = &tally.events;
    match change {
        Change::AddSpare(device, id) => {
            if pool.devices().add_spare(device, id).is_ok() {
                events.count(Event::SpareAdded);
            }
        }
        Change::Lengthen(lengthening) => {
            if !lengthening.make() {
                return;
            }
            for group in pool.status().groups {
                if pool.devices().grow_disk_group(group.number).is_ok() {
                    events.count(Event::Lengthened);
                }
            }
        }
        Change::Scrub => {
            if pool.devices().scrub().is_ok_and(|is_new| is_new) {
                events.count(Event::ScrubBegun);
            }
        }
        Change::Widen { beside, device, id } => {
            let groups = pool.status().groups;
            let first = groups.first().and_then(|group| group.slots.iter().next());
            let Some(beside) = beside.map(usize_of).or(first) else { return };
            if pool.devices().widen(beside, device, id).is_ok() {
                events.count(Event::Widening);
            }
        }
        Change::AddLane { which, device, id } => {
            let Some(beside) = lane_of(pool, which, |_| true) else { return };
            if pool.devices().add_lane(beside, device, id).is_ok() {
                events.count(Event::LaneAdded);
            }
        }
        Change::RemoveLane { which } => {
            let is_one = |layout| layout == Layout::RoundRobin;
            let Some(slot) = lane_of(pool, which, is_one) else { return };
            if pool.devices().remove_lane(slot).is_ok() {
                events.count(Event::LaneLeaving);
            }
        }
        Change::Narrow { which, stays } => {
            let groups = pool.status().groups;
            let slots = groups.first().into_iter().flat_map(|group| group.slots.iter());
            let may: Vec<usize> = slots.filter(|slot| !stays.contains(&u64_of(*slot))).collect();
            // One that a crash kept from having a label.
            let missing = MemberState::Missing;
            let members =
                pool.devices().members().into_iter().filter(|it| it.member.state == missing);
            for slot in members.map(|it| it.slot).filter(|slot| may.contains(slot)) {
                if let Ok(Some(taken)) = pool.devices().take_member_back(slot) {
                    let _ = taken.blank();
                    events.count(Event::TakenBack);
                    return;
                }
            }
            let Some(at) = which.checked_rem(u64_of(may.len())) else { return };
            if pool.devices().narrow(may[usize_of(at)]).is_ok() {
                events.count(Event::Narrowing);
            }
        }
        Change::Attach { .. }
        | Change::Detach { .. }
        | Change::Add(_)
        | Change::Remove { .. }
        | Change::Place(_) => {}
    }
}

/// Returns the number of the main disk group.
fn main_of(pool: &Pool) -> Option<u8> {
    let groups = pool.status().groups;
    groups.iter().find(|group| group.is_main).map(|group| group.number)
}

/// Returns the slot of a member of a disk group that is a single or a mirror, and has no weak one:
/// `which`, modulo their number.
fn one_of(pool: &Pool, which: u64, stays: &Stays) -> Option<usize> {
    let (groups, stays) = (pool.status().groups, groups_of(&stays.weak, pool));
    let is_it = |layout| matches!(layout, Layout::Single | Layout::Mirror);
    let may = groups.iter().filter(|it| !stays.contains(&it.number) && is_it(it.layout));
    let slots: Vec<usize> = may.flat_map(|group| group.slots.iter()).collect();
    let at = which.checked_rem(u64_of(slots.len()))?;
    slots.get(usize_of(at)).copied()
}

/// Returns the slot of a member of a disk group that is not the main one, stays, and of whose
/// layout `is_meant`: `which`, modulo their number.
fn lane_of(pool: &Pool, which: u64, is_meant: impl Fn(Layout) -> bool) -> Option<usize> {
    let groups = pool.status().groups;
    let stays = |state| state == DiskGroupState::Online;
    let may = groups.iter().filter(|group| !group.is_main && stays(group.state));
    let may = may.filter(|group| is_meant(group.layout));
    let slots: Vec<usize> = may.flat_map(|group| group.slots.iter()).collect();
    slots.get(usize_of(which.checked_rem(u64_of(slots.len()))?)).copied()
}

impl Members {
    /// Draws the disk groups that come and go in a life, on slices of `free`.
    pub(super) fn changes(
        &self,
        device: &SharedDevice,
        mut free: Free,
        random: &mut Prng,
        ends: &Ends,
    ) -> Changes {
        let comes = self.kind.comes();
        if comes.is_empty() {
            return Changes::default();
        }
        let moves_metadata = self.kind.moves_metadata();
        // So that what was begun may end in the same life.
        let power_max = if moves_metadata { MORE_NS_POWER_MAX } else { CHANGE_NS_POWER_MAX };
        let mut changes = VecDeque::new();
        for _ in 0..random.below(CHANGES_MAX + 1) {
            let after_ns = random.below_power(power_max);
            let shape = comes[usize_of(random.below(u64_of(comes.len())))];
            // Before another has come the metadata stays where it is.
            let comes_first = moves_metadata && changes.is_empty();
            let change = if comes_first && let Some(own) = free.take(shape, random) {
                let (new, fails) = self.new_group((device, ends), shape, own, random);
                free.weak_ids.extend(fails);
                Change::Add(new)
            } else if random.one_in(3) {
                Change::Remove { which: random.next_u64() }
            } else if random.one_in(3) {
                Change::Detach { which: random.next_u64() }
            } else if random.one_in(3) && !free.slices.is_empty() {
                let device = self.slice(device, free.slices.remove(0), ends);
                Change::Attach { which: random.next_u64(), device, id: id_of(random) }
            } else if let Some(own) = free.take(shape, random) {
                let (new, fails) = self.new_group((device, ends), shape, own, random);
                free.weak_ids.extend(fails);
                Change::Add(new)
            } else {
                continue;
            };
            changes.push_back((after_ns, change));
        }
        for _ in 0..random.below(PLACEMENTS_MAX + 1) {
            let after_ns = random.below_power(power_max);
            let number = u8::try_from(random.below(4)).expect("below 4");
            let some = [
                Placement::Any,
                Placement::RoundRobin,
                Placement::Striped,
                Placement::Group(number),
            ];
            let placement = some[usize_of(random.below(u64_of(some.len())))];
            let at = usize_of(random.below(u64_of(changes.len() + 1)));
            changes.insert(at, (after_ns, Change::Place(placement)));
        }
        Changes { queue: changes, stays: Stays { weak: free.weak_ids, moves_metadata } }
    }

    /// Returns a disk group that comes; one of its members may fail if it does without, the weak
    /// one if it has that, and all of the journal's where these are lost. Which one fails is told
    /// apart: the others must stay.
    fn new_group(
        &self,
        (device, ends): (&SharedDevice, &Ends),
        shape: GroupShape,
        Taken { slices, weak }: Taken,
        random: &mut Prng,
    ) -> (DiskGroupSpec, Option<WeakId>) {
        let failing = (shape.is_redundant() && random.one_in(4)).then(|| {
            let power = random.below(WRITE_POWER_MAX);
            let which = random.below(shape.width);
            (weak.map_or(which, |(at, _)| at), random.below(1 << power))
        });
        let member = |(at, number): (u64, u64)| {
            let writes = failing.filter(|(which, _)| *which == at).map(|(_, nth)| nth);
            let is_lost = self.kind.also().loses_journal && shape.roles.journal;
            let writes = if is_lost { Some(random.below_power(WRITE_POWER_MAX)) } else { writes };
            let faults = SliceFaults { writes, ..SliceFaults::default() };
            let id = match weak {
                Some((which, weak_id)) if which == at => weak_id.draw(random),
                Some(_) | None => id_of(random),
            };
            (Slice::of(device, number, ends, faults), id)
        };
        let devices: Vec<_> = (0..).zip(slices).map(member).collect();
        let fails = failing.and_then(|(at, _)| devices.get(usize_of(at)));
        let fails = fails.map(|(_, id)| WeakId::of_one(*id));
        (DiskGroupSpec { layout: shape.layout, devices, roles: shape.roles }, fails)
    }

    /// Draws what only some kinds of pools see in a life, on slices of `free`.
    pub(super) fn more(
        &self,
        device: &SharedDevice,
        mut free: Vec<u64>,
        random: &mut Prng,
        ends: &Ends,
    ) -> Changes {
        let (also, mut changes) = (self.kind.also(), VecDeque::new());
        for _ in 0..=random.below(MORE_MAX) {
            let after_ns = random.below_power(MORE_NS_POWER_MAX);
            let id = id_of(random);
            let change = if also.lengthens {
                let (device, notes_at) = (Arc::clone(device), self.notes_at());
                Change::Lengthen(Lengthening { ends: ends.clone(), device, notes_at })
            } else if also.scrubs {
                Change::Scrub
            } else if also.reshapes && (free.is_empty() || random.one_in(2)) {
                let stays = self.weak.iter().map(|weak| weak.slot).collect();
                Change::Narrow { which: random.next_u64(), stays }
            } else if also.lanes && (free.is_empty() || random.one_in(2)) {
                Change::RemoveLane { which: random.next_u64() }
            } else if free.is_empty() {
                continue;
            } else if also.lanes {
                let device = self.slice(device, free.remove(0), ends);
                Change::AddLane { which: random.next_u64(), device, id }
            } else if also.reshapes {
                let device = self.slice(device, free.remove(0), ends);
                let beside = self.weak.first().map(|weak| weak.slot);
                Change::Widen { beside, device, id }
            } else if also.spares {
                Change::AddSpare(self.slice(device, free.remove(0), ends), id)
            } else {
                continue;
            };
            changes.push_back((after_ns, change));
        }
        Changes { queue: changes, stays: Stays::default() }
    }
}
