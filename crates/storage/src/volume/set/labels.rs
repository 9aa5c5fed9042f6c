//! Writing the labels of all members, and what they say of each.
//!
//! An update goes to all that get writes, in two steps with a flush between them: see
//! [`crate::pool`]. Called with the lock of the label held.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::members::{MemberState, Membership};
use format::missed::Parts;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::{MemberSet, is_short, unflushed};
use crate::device::{DeviceError, Operation, Purpose, RequestKind, SharedDevice, Ticket};
use crate::pool::{steps_of, submit_superblock_copy};
use crate::volume::slot::Slot;

/// Of a label that was begun, what no later one may use for something else.
#[derive(Debug, Default)]
pub(super) struct Begun {
    pub(super) sequence: u64,
    pub(super) memberships: Vec<Membership>,
}

impl Begun {
    fn note(&mut self, label: &Superblock) {
        if label.sequence > self.sequence {
            self.sequence = label.sequence;
            self.memberships.clone_from(&label.memberships);
        }
    }
}

/// Makes what `superblock` says of members and disk groups, and of a scrub, what `known` does.
pub(in crate::volume) fn take_table(superblock: &mut Superblock, known: &Superblock) {
    superblock.members.clone_from(&known.members);
    if !planted::is(Planted::AttachedForgotten) {
        superblock.layout = known.layout;
        superblock.slots.clone_from(&known.slots);
    }
    if !planted::is(Planted::SparesForgotten) {
        superblock.spares.clone_from(&known.spares);
    }
    superblock.memberships.clone_from(&known.memberships);
    superblock.added.clone_from(&known.added);
    superblock.geometry.clone_from(&known.geometry);
    superblock.is_scrubbing = known.is_scrubbing;
}

/// Writes `superblock` to the labels of all of `slots` that get writes. One that does not do it
/// fails, and the others are told. That in slot `last` is written when the others are durable.
/// Nothing is written to a set that is lost, or is found to be (LO1).
pub(super) fn write_labels(
    sets: &[Arc<MemberSet>],
    slots: &mut [Slot],
    superblock: &mut Superblock,
    last: Option<usize>,
) -> Result<(), DeviceError> {
    let all: Vec<usize> = (0..slots.len()).collect();
    let (late, early): (Vec<usize>, Vec<usize>) = all.into_iter().partition(|at| Some(*at) == last);
    loop {
        superblock.sequence += 1;
        if let Some(set) = sets.first() {
            set.roster.begun.lock().note(superblock);
        }
        let mut failed = Vec::new();
        // The second step begins when all have the first: see `SuperblockReport::settled`.
        let steps = steps_of(superblock.sequence);
        let lost: Vec<_> = sets.iter().filter(|set| set.is_lost()).collect();
        let is_told = |at: &usize| lost.iter().all(|set| set.own_of(*at).is_none());
        let of = |which: &[usize]| which.iter().copied().filter(is_told).collect::<Vec<usize>>();
        let (early, late) = (of(&early), of(&late));
        for (copies, which) in steps
            .into_iter()
            .flat_map(|copies| [&early, &late].map(|which| (copies, which)))
            .filter(|(_, which)| !which.is_empty())
        {
            failed.extend(write_copies(slots, which, |slot| slot, superblock, &copies));
            if !failed.is_empty() {
                break;
            }
        }
        if failed.is_empty() {
            note_settled(sets, superblock.sequence);
            return Ok(());
        }
        let mut is_any_away = false;
        for (at, error) in failed {
            let was_joining = slots[at].state == MemberState::Joining;
            slots[at].count_error(RequestKind::Write);
            if !was_joining && sets.iter().any(|set| set.loses_in(slots, at, &error)) {
                continue;
            }
            is_any_away = true;
            let unflushed = unflushed(sets, &slots[at], at);
            slots[at].leave(MemberState::Failed, unflushed);
            if !was_joining && is_short(sets, slots) {
                return Err(error);
            }
            tracing::error!("{error}; the member has failed: replace it");
        }
        if is_any_away {
            note_states(sets, superblock, slots);
            superblock.add_membership();
        }
    }
}

/// All members that get writes have label number `sequence`.
fn note_settled(sets: &[Arc<MemberSet>], sequence: u64) {
    if let Some(set) = sets.first() {
        set.roster.settled.fetch_max(sequence, Ordering::SeqCst);
    }
}

/// Notes in the table what `slots` are now.
pub(super) fn note_states(
    sets: &[Arc<MemberSet>],
    superblock: &mut Superblock,
    slots: &mut [Slot],
) {
    let settled = sets.first().map_or(0, |set| set.roster.settled.load(Ordering::SeqCst));
    // Maps are of a main disk group with allocation group 0, whose bytes are those of the pool:
    // members of another get all of it when they come back, and what they have may still be what
    // the others lack (RN5).
    let has_maps = superblock.geometry.main_first == 0 || planted::is(Planted::MovedMainKeepsMap);
    let of_main = |at: usize| has_maps && superblock.slots.contains(at);
    let added = slots.iter_mut().enumerate().filter(|(at, _)| !of_main(*at));
    let is_planted = planted::is(Planted::AddedComesBackBlank);
    added.for_each(|(_, slot)| {
        slot.missed = slot.missed.filter(|_| !is_planted).map(|_| Parts::ALL);
    });
    for (member, slot) in superblock.members.iter_mut().zip(slots) {
        // A slot that no set has: the table alone says what is there.
        if slot.state == MemberState::Gone {
            continue;
        }
        // It is from now on that it gets no labels.
        member.left_at = match (member.is_written(), slot.is_away()) {
            (true, true) => settled,
            (false, true) => member.left_at,
            (_, false) => 0,
        };
        member.state = slot.state;
        member.missed = slot.missed;
        if slot.state != MemberState::Joining {
            member.copied_mib = 0;
        }
        if slot.state != MemberState::Online {
            member.scrubbed_mib = 0;
        }
    }
}

/// Writes copies of `superblock` to those of `slots` that `which` names and that get writes, and
/// flushes. `number` says which slot of the pool one of `slots` is. Returns who has not done it.
pub(super) fn write_copies(
    slots: &[Slot],
    which: &[usize],
    number: impl Fn(usize) -> usize,
    superblock: &Superblock,
    copies: &[u16],
) -> Vec<(usize, DeviceError)> {
    let device_in = |at: &usize| Some((*at, slots.get(*at)?.writable()?));
    let devices: Vec<(usize, &SharedDevice)> = which.iter().filter_map(device_in).collect();
    let mut tickets = Vec::new();
    for &(at, device) in &devices {
        let own = Superblock { device_index: index_of(number(at)), ..superblock.clone() };
        for &copy in copies {
            tickets.push((at, submit_superblock_copy(device.as_ref(), &own, copy)));
        }
    }
    let mut failed: Vec<(usize, DeviceError)> = Vec::new();
    let mut wait_for = |tickets: Vec<(usize, Ticket)>| {
        for (at, ticket) in tickets {
            if let Err(error) = ticket.wait()
                && failed.iter().all(|(other, _)| *other != at)
            {
                failed.push((at, error));
            }
        }
    };
    wait_for(tickets);
    let flush = |&(at, device): &(usize, &SharedDevice)| {
        let submit = || device.submit(Purpose::Superblock, Operation::Flush);
        (at, slots[at].send_one(true, submit))
    };
    wait_for(devices.iter().map(flush).collect());
    failed
}

fn index_of(slot: usize) -> u16 {
    u16::try_from(slot).expect("a pool has few members")
}
