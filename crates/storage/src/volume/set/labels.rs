//! Writing the labels of all members.
//!
//! An update goes to all writable members, in two steps with a flush between: see [`crate::pool`].
//! LOCK: called under the label's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use format::members::{MemberState, Membership};
use format::missed::StaleParts;
use format::superblock::Superblock;
use runtime::planted;

use super::{MemberSet, is_short, unflushed};
use crate::device::{DeviceError, DeviceOperation, IoPurpose, RequestKind, SharedDevice, Ticket};
use crate::pool::{steps_of, submit_superblock_copy};
use crate::volume::slot::MemberSlot;

/// Values that no later label may reuse.
#[derive(Debug, Default)]
pub(super) struct UsedLabelValues {
    pub(super) sequence: u64,
    pub(super) memberships: Vec<Membership>,
}

impl UsedLabelValues {
    fn note(&mut self, label: &Superblock) {
        if label.sequence > self.sequence {
            self.sequence = label.sequence;
            self.memberships.clone_from(&label.memberships);
        }
    }
}

/// Copies members, disk groups and scrub state from `known` to `superblock`.
pub(in crate::volume) fn take_table(superblock: &mut Superblock, known: &Superblock) {
    superblock.members.clone_from(&known.members);
    superblock.layout = known.layout;
    superblock.slots.clone_from(&known.slots);
    superblock.spares.clone_from(&known.spares);
    superblock.memberships.clone_from(&known.memberships);
    superblock.added.clone_from(&known.added);
    superblock.geometry.clone_from(&known.geometry);
    superblock.is_scrubbing = known.is_scrubbing;
}

/// Writes `superblock` to the labels of all writable `slots`, to slot `last` after the others.
/// Marks a member failed after an error, and repeats. Skips lost sets (LO1).
pub(super) fn write_labels(
    sets: &[Arc<MemberSet>],
    slots: &mut [MemberSlot],
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
        // The second step begins only when the first is on all members: see
        // `SuperblockReport::settled`.
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

fn note_settled(sets: &[Arc<MemberSet>], sequence: u64) {
    if let Some(set) = sets.first() {
        set.roster.settled.fetch_max(sequence, Ordering::SeqCst);
    }
}

pub(super) fn note_states(
    sets: &[Arc<MemberSet>],
    superblock: &mut Superblock,
    slots: &mut [MemberSlot],
) {
    let settled = sets.first().map_or(0, |set| set.roster.settled.load(Ordering::SeqCst));
    // The parts of a map are of the whole pool, so only members of a main disk group at allocation
    // group 0 have one. Others get a full rebuild, but may have contents that the rest lacks (RN5).
    let has_maps = superblock.geometry.main_first == 0 || planted!(MovedMainKeepsMap);
    let of_main = |at: usize| has_maps && superblock.slots.contains(at);
    let added = slots.iter_mut().enumerate().filter(|(at, _)| !of_main(*at));
    added.for_each(|(_, slot)| slot.missed = slot.missed.map(|_| StaleParts::ALL));
    for (member, slot) in superblock.members.iter_mut().zip(slots) {
        // No set has this slot: only the table describes it.
        if slot.state == MemberState::Gone {
            continue;
        }
        // The last label that the member got before it left.
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

/// Writes copies of `superblock` to the writable members among `which` of `slots`, and flushes.
/// Returns the failures. `number` converts indexes to slots of the pool.
pub(super) fn write_copies(
    slots: &[MemberSlot],
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
        let submit = || device.submit(IoPurpose::Superblock, DeviceOperation::Flush);
        (at, slots[at].send_one(true, submit))
    };
    wait_for(devices.iter().map(flush).collect());
    failed
}

fn index_of(slot: usize) -> u16 {
    u16::try_from(slot).expect("a pool has few members")
}
