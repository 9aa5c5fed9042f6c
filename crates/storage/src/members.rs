//! Which of the devices found are members of a pool, and which of them are current: a judgement
//! over their labels, without I/O.
//!
//! # Invariants
//!
//! - MJ1: The label with the newest epoch of membership is believed, and what its table says of
//!   each member; not the age of a member's own label. A crash in the middle of an update leaves
//!   older labels on members that have all that was acknowledged.
//! - MJ2: A label whose newest epoch is not in the history of the newest label is of a half of the
//!   pool that was opened apart. Nobody decides which half is right but the user.
//! - MJ3: A member that has missed writes is never read, nor one that is joining.
//! - MJ4: Fewer than half of the members that should be current are not believed unless the user
//!   says so: the others may have gone on without them. Of two one is enough, for neither can tell.
//! - MJ5: What the label of a spare says is not believed: it may be old. Whether the device is a
//!   spare, or has become a member, the newest label of a member says.
//! - MJ6: A member without which data is nowhere is done without only where the user says so, and
//!   then nothing is written.
//! - MJ7: An update of the labels that is settled was durable on all members that got it. One that
//!   should be current and whose label is older is an older copy, or has lost writes: it has missed
//!   an unknown part, whatever the table says of it.
//! - MJ8: A label of the epoch before another, settled by an update as late as the first of that
//!   one, was written by a half that went on without it: as MJ2.
//! - MJ9: A label older than all epochs that the newest one remembers is of a member that was away
//!   for long: nothing that it holds is believed. Only if all members that are online now were away
//!   for it, it is of a half: as MJ2.
//! - MJ10: An epoch that a device has only begun decides nothing against another: all that waited
//!   for it was never acknowledged. The device is judged by the epoch before it
//!   ([`crate::pool::SuperblockReport::epoch`]) where its newest label is of no history.
//! - MJ11: Where a pool would be refused by a label that was only begun, it is judged by the label
//!   before, for nothing was acknowledged that waited for the other; but not if those that are not
//!   there could have gone on by themselves.
//!
//! Not here: how devices are found, and what is written to them.

use format::disk_group::{DiskGroup, DiskGroupState};
use format::members::{Layout, Member, MemberState, Membership};
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use crate::pool::SuperblockReport;

/// Why devices do not make a pool together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// Nothing was given.
    #[error("no device was given: name one of the pool")]
    Nothing,
    /// Devices of two pools were given together: name those of one.
    #[error("{first} and {other} are of different pools: name the devices of one pool")]
    OtherPool {
        /// The device with the newest label.
        first: String,
        /// The one that does not fit.
        other: String,
    },
    /// One member was found twice: a copy of a device, or one device under two names.
    #[error("{first} and {other} are the same member of the pool: leave one out, it is a copy")]
    Twice {
        /// One of them.
        first: String,
        /// The other.
        other: String,
    },
    /// The pool was opened by halves, and both were written to.
    #[error(
        "{first} and {other} are of one pool, but were opened apart and differ since: nothing was \
         changed. Decide which one to keep, and leave the other out"
    )]
    Apart {
        /// The device with the newest label.
        first: String,
        /// The one with another history.
        other: String,
    },
    /// It was a member once, and another device has its place.
    #[error("{device} is no member of the pool any more: leave it out")]
    Replaced {
        /// Its name.
        device: String,
    },
    /// Only spares were given, which hold nothing: name a member.
    #[error("{device} is a spare of the pool, and no member was found: name one of its devices")]
    OnlySpares {
        /// The name of one of them.
        device: String,
    },
    /// Fewer than half of those that have all were found: the others may have gone on without them.
    #[error(
        "fewer than half of the pool's devices were found, and the others may hold newer writes; \
         missing: {missing}. Attach them, or name where they are with --member PATH; if they are \
         gone for good, --accept-missing opens what is left"
    )]
    TooFew {
        /// The paths of those that were not found.
        missing: String,
    },
    /// More members of a raid5 are away than its parity is for.
    #[error(
        "a raid5 can lose one device, and more are missing or have missed writes: {missing}. \
         Connect them, or give their paths with --member PATH; if they are lost for good, \
         `holdfast mount -o ro --accept-missing` shows what is left"
    )]
    TooManyAway {
        /// The paths of those that are away.
        missing: String,
    },
    /// Data is missing with members that are away.
    #[error(
        "a stripe holds each byte of data once, and a device of it is not there or has missed \
         writes: {missing}. Attach it, or name where it is with --member PATH; if it is gone for \
         good, --accept-missing together with -o ro shows what is left, and `holdfast check` \
         names the files that have lost something"
    )]
    DataAway {
        /// The paths of those that are away.
        missing: String,
    },
    /// More members of a stripe are away than its metadata has copies.
    #[error(
        "a stripe has its metadata in two copies, and two of its devices or more are not there or \
         have missed writes: {missing}. Attach them, or name where they are with --member PATH"
    )]
    MetadataAway {
        /// The paths of those that are away.
        missing: String,
    },
    /// None that was found has all that the pool should have.
    #[error(
        "none of the devices found has all that the pool holds; missing: {missing}. Attach \
         them, or name where they are with --member PATH"
    )]
    NoneCurrent {
        /// The paths of those that have.
        missing: String,
    },
}

/// A device that was found, and its label.
#[derive(Clone, Debug)]
pub struct Found {
    /// What the user calls it.
    pub name: String,
    /// What its label says.
    pub label: Superblock,
    /// See [`crate::pool::SuperblockReport::settled`].
    pub settled: u64,
    /// See [`crate::pool::SuperblockReport::before`].
    pub before: Option<Box<Superblock>>,
}

impl Found {
    /// Returns what was `read` of the device called `name`.
    #[must_use]
    pub fn new(name: String, read: SuperblockReport) -> Found {
        let SuperblockReport { current, settled, before, .. } = read;
        Found { name, label: current, settled, before }
    }

    /// Returns it as it was before the update that was only begun.
    fn before(&self) -> Found {
        let label = self.before.as_deref().unwrap_or(&self.label).clone();
        Found { label, before: None, ..self.clone() }
    }

    /// See [`SuperblockReport::epoch`].
    fn epoch(&self) -> Membership {
        self.before.as_deref().unwrap_or(&self.label).membership()
    }

    /// Returns the epoch by which the device is judged where `newest` is the newest label (MJ10).
    pub(crate) fn judged_by(&self, newest: &Superblock) -> Membership {
        let own = self.label.membership();
        let is_known = newest.memberships.contains(&own);
        if is_known || planted::is(Planted::BegunEpochIsApart) { own } else { self.epoch() }
    }

    /// See [`SuperblockReport::age`].
    fn age(&self) -> (u64, u64) {
        (self.epoch().number, self.label.sequence)
    }
}

/// What became of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Its member has all that it should have: the number of the device among those found.
    Current(usize),
    /// It is there and has missed writes: the same number.
    Stale(usize),
    /// It takes the place of another, and does not have all yet: the same number.
    Joining(usize),
    /// It should be current or joining, and its label is older than that allows (MJ7): the same
    /// number.
    Older(usize),
    /// It was not found.
    Absent,
    /// Nobody is in it.
    Free,
}

/// The members of a pool as they were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The number of the device whose label is believed (MJ1).
    pub newest: usize,
    /// What became of each slot.
    pub slots: Vec<Slot>,
    /// Sequence of a label that all members have that are current.
    pub settled: u64,
    /// The spares of the newest label: the number of the device among those found; `None`: it is
    /// not there.
    pub spares: Vec<Option<usize>>,
}

impl Judged {
    /// Whether a member that should be current is not there.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.slots.iter().any(|slot| !matches!(slot, Slot::Current(_) | Slot::Free))
    }
}

/// What was found of a pool, judged.
#[derive(Debug)]
pub(crate) struct Believed {
    pub(crate) judged: Judged,
    /// The label that is believed.
    pub(crate) label: Superblock,
    /// The newest, which was only begun, where that is another (MJ11).
    pub(crate) begun: Option<Superblock>,
}

/// Judges `found` as [`judge`] does, and refuses as [`check_enough`] unless the user accepts that
/// members are missing; by the labels before those that were only begun if need be (MJ11).
///
/// # Errors
///
/// See [`MembersError`]. Nothing may be written then.
pub(crate) fn believe(found: &[Found], accepts_missing: bool) -> Result<Believed, MembersError> {
    let by = |found: &[Found], begun| {
        let judged = judge_within(found, accepts_missing)?;
        let label = found.get(judged.newest).ok_or(MembersError::Nothing)?.label.clone();
        if !accepts_missing {
            check_enough(&judged, &label)?;
        }
        Ok(Believed { judged, label, begun })
    };
    by(found, None).or_else(|refused| {
        let Some(begun) = begun_in_vain(found, &refused) else { return Err(refused) };
        let before: Vec<Found> = found.iter().map(Found::before).collect();
        by(&before, Some(begun)).map_err(|_| refused)
    })
}

/// Returns the newest label of `found`, which were `refused`, if it was only begun and those that
/// are not there could not have gone on by themselves.
fn begun_in_vain(found: &[Found], refused: &MembersError) -> Option<Superblock> {
    let is_short = match refused {
        MembersError::Replaced { .. }
        | MembersError::TooFew { .. }
        | MembersError::TooManyAway { .. }
        | MembersError::DataAway { .. }
        | MembersError::MetadataAway { .. }
        | MembersError::NoneCurrent { .. } => !planted::is(Planted::BegunDecides),
        MembersError::Nothing
        | MembersError::OtherPool { .. }
        | MembersError::Twice { .. }
        | MembersError::Apart { .. }
        | MembersError::OnlySpares { .. } => false,
    };
    let newest = newest_of(found).map(|(_, newest)| newest);
    let newest = newest.filter(|newest| is_short && newest.before.is_some())?;
    let label = &newest.label;
    let is_there = |id| found.iter().any(|found| found.label.device_id() == id);
    let of_others = |member: &Member| {
        if member.is_online() && !is_there(member.id) { Slot::Current(0) } else { Slot::Absent }
    };
    let others: Vec<Slot> = label.members.iter().map(of_others).collect();
    let mut groups = disk_groups(label);
    let go_on =
        groups.all(|(layout, own)| check_group(layout, own, &label.members, &others).is_ok());
    (!go_on).then(|| label.clone())
}

/// Judges `found`, all that was found of one pool.
///
/// # Errors
///
/// See [`MembersError`]. Nothing may be written then.
pub fn judge(found: &[Found]) -> Result<Judged, MembersError> {
    judge_within(found, false)
}

/// As [`judge`], but that a raid5 may lack more than its parity is for where the user accepts that
/// data is missing (MJ6).
fn judge_within(found: &[Found], accepts_missing: bool) -> Result<Judged, MembersError> {
    let any = found.first().ok_or(MembersError::Nothing)?;
    let Some((newest, first)) = newest_of(found) else {
        return Err(MembersError::OnlySpares { device: any.name.clone() });
    };
    let table = &first.label.members;
    let settled = settled_of(found.iter().filter(|found| is_of_member(found)), &first.label);
    let of_nobody = |member: &Member| if member.is_gone() { Slot::Free } else { Slot::Absent };
    let mut slots: Vec<Slot> = table.iter().map(of_nobody).collect();
    let mut spares = vec![None; first.label.spares.len()];
    for (number, device) in found.iter().enumerate() {
        check_pool(first, device)?;
        let id = device.label.device_id();
        let twice = |other: usize| {
            let first = found.get(other).map_or_else(String::new, |other| other.name.clone());
            MembersError::Twice { first, other: device.name.clone() }
        };
        let spare = first.label.spares.iter().zip(&mut spares).find(|(spare, _)| spare.id == id);
        if let Some((_, spare)) = spare {
            if let Some(other) = spare.replace(number) {
                return Err(twice(other));
            }
            continue;
        }
        let is_forgotten = if device.label.is_of_spare() {
            false
        } else {
            check_history(first, device)?;
            is_forgotten(&first.label, device.judged_by(&first.label))
        };
        let member =
            table.iter().zip(&mut slots).find(|(member, _)| member.id == id && !member.is_gone());
        let Some((member, slot)) = member else {
            return Err(MembersError::Replaced { device: device.name.clone() });
        };
        if let Slot::Current(other)
        | Slot::Stale(other)
        | Slot::Joining(other)
        | Slot::Older(other) = *slot
        {
            return Err(twice(other));
        }
        let at = table.iter().position(|member| member.id == id).unwrap_or(usize::MAX);
        let is_older = settled.get(at).is_some_and(|settled| device.label.sequence < *settled)
            && !planted::is(Planted::OlderCopyBelieved);
        // MJ3.
        *slot = match member.state {
            MemberState::Online | MemberState::Joining if is_older || is_forgotten => {
                Slot::Older(number)
            }
            MemberState::Online => Slot::Current(number),
            MemberState::Joining => Slot::Joining(number),
            MemberState::Missing | MemberState::Failed => Slot::Stale(number),
            MemberState::Gone => Slot::Free,
        };
    }
    let settled = settled.iter().copied().max().unwrap_or_default();
    let judged = Judged { newest, slots, settled, spares };
    let coming = first.label.coming_slot().map(|(_, slot)| slot);
    for (layout, own) in disk_groups(&first.label) {
        // Nothing lies on one that its disk group is only getting.
        let own: Slots = own.iter().filter(|slot| Some(*slot) != coming).collect();
        let checked = check_group(layout, &own, table, &judged.slots);
        let has_some = own.pick(&judged.slots).any(|slot| matches!(slot, Slot::Current(_)));
        match checked {
            Err(MembersError::TooManyAway { .. }) if accepts_missing && has_some => {}
            checked => checked?,
        }
    }
    Ok(judged)
}

/// Whether what the label says counts (MJ5).
fn is_of_member(found: &Found) -> bool {
    !found.label.is_of_spare() || planted::is(Planted::SpareBelieved)
}

/// Returns the newest of `found`, and its number; `None`: there are but spares.
fn newest_of(found: &[Found]) -> Option<(usize, &Found)> {
    let of_members = found.iter().enumerate().filter(|(_, found)| is_of_member(found));
    of_members.max_by_key(|(_, found)| found.age())
}

/// Returns for each slot the newest settled label of its disk group: members of one that is added
/// or taken out get their labels apart from those of others.
fn settled_of<'f>(found: impl Iterator<Item = &'f Found>, label: &Superblock) -> Vec<u64> {
    let mut settled = vec![0; label.members.len()];
    let added = label.added.iter().map(|group| group.slots.clone());
    let groups: Vec<Slots> = std::iter::once(label.slots.clone()).chain(added).collect();
    for device in found {
        let id = device.label.device_id();
        let Some(at) = label.members.iter().position(|member| member.id == id) else { continue };
        for slot in groups.iter().filter(|own| own.contains(at)).flat_map(Slots::iter) {
            if let Some(settled) = settled.get_mut(slot) {
                *settled = device.settled.max(*settled);
            }
        }
    }
    settled
}

/// Returns the disk groups that a pool cannot do without, and the slots of their members. One that
/// is being added holds nothing.
pub(crate) fn disk_groups(label: &Superblock) -> impl Iterator<Item = (Layout, &Slots)> + '_ {
    let is_needed = |group: &&DiskGroup| group.state != DiskGroupState::Adding;
    let added = label.added.iter().filter(is_needed);
    let added = added.map(|group| (group.layout, &group.slots));
    std::iter::once((label.layout, &label.slots)).chain(added)
}

/// Refuses a disk group whose members do not have all that it should hold.
fn check_group(
    layout: Layout,
    own: &Slots,
    table: &[Member],
    slots: &[Slot],
) -> Result<(), MembersError> {
    let is_current = |slot: &Slot| matches!(slot, Slot::Current(_));
    let current = own.pick(slots).filter(|slot| is_current(slot)).count();
    let away = || away_of(own.pick(table).zip(own.pick(slots)));
    match layout {
        Layout::Single | Layout::RoundRobin if current == own.len() => Ok(()),
        Layout::Mirror if current > 0 => Ok(()),
        Layout::Stripe { .. } | Layout::Raid5 { .. } if current + 1 >= own.len() => Ok(()),
        Layout::RoundRobin => Err(MembersError::NoneCurrent { missing: away() }),
        Layout::Single | Layout::Mirror => {
            let missing = paths_of(own.pick(table).filter(|member| member.is_online()));
            Err(MembersError::NoneCurrent { missing })
        }
        Layout::Stripe { .. } => Err(MembersError::MetadataAway { missing: away() }),
        Layout::Raid5 { .. } => Err(MembersError::TooManyAway { missing: away() }),
    }
}

/// Returns the paths of the members that do not have all.
fn away_of<'a>(members: impl Iterator<Item = (&'a Member, &'a Slot)>) -> String {
    let is_current = |slot: &Slot| matches!(slot, Slot::Current(_));
    paths_of(members.filter(|(_, slot)| !is_current(slot)).map(|(member, _)| member))
}

fn check_pool(first: &Found, device: &Found) -> Result<(), MembersError> {
    if device.label.pool_id == first.label.pool_id {
        return Ok(());
    }
    Err(MembersError::OtherPool { first: first.name.clone(), other: device.name.clone() })
}

/// MJ2, MJ10.
fn check_history(first: &Found, device: &Found) -> Result<(), MembersError> {
    let (history, own) = (&first.label.memberships, device.judged_by(&first.label));
    let next = history.iter().find(|next| next.number == own.number + 1);
    // MJ8.
    let went_on = next.is_some_and(|next| device.settled >= next.sequence)
        && !planted::is(Planted::OlderCopyBelieved);
    let is_one_of_them = history.contains(&own)
        || is_forgotten(&first.label, own)
            && !is_half(&first.label, &device.label)
            && !planted::is(Planted::ForgottenIsApart);
    if is_one_of_them && !went_on {
        return Ok(());
    }
    Err(MembersError::Apart { first: first.name.clone(), other: device.name.clone() })
}

/// Whether the epoch `own` is older than all that the label `newest` remembers (MJ9).
pub(crate) fn is_forgotten(newest: &Superblock, own: Membership) -> bool {
    newest.memberships.first().is_some_and(|oldest| own.number < oldest.number)
}

/// Whether all members that are online by the label `newest`, as far as the label `own` knows them,
/// were away by that one: both were used, each without the other.
fn is_half(newest: &Superblock, own: &Superblock) -> bool {
    let known = |member: &Member| own.members.iter().find(|own| own.id == member.id);
    let is_away = |own: &Member| matches!(own.state, MemberState::Missing | MemberState::Failed);
    let mut online = newest.members.iter().filter(|member| member.is_online()).filter_map(known);
    // One that knows none of them, for it was taken apart from them, is a half as well.
    online.all(is_away)
}

/// Judges a device that is to come back to a pool: returns the slot of the member that it is.
///
/// # Errors
///
/// See [`MembersError`]. Nothing may be written to it then.
pub fn judge_return(pool: &Found, device: &Found) -> Result<usize, MembersError> {
    check_pool(pool, device)?;
    if !device.label.is_of_spare() && !planted::is(Planted::ReturnOfStranger) {
        check_history(pool, device)?;
    }
    let id = device.label.device_id();
    let slot = pool.label.members.iter().position(|member| member.id == id);
    slot.ok_or_else(|| MembersError::Replaced { device: device.name.clone() })
}

/// Refuses what `judged` found of the pool whose label is `label` if it is fewer than half of the
/// members of a disk group that have all (MJ4), or if data is missing (MJ6). No segment lies on one
/// that a stripe is getting.
///
/// # Errors
///
/// [`MembersError::TooFew`], [`MembersError::DataAway`].
pub fn check_enough(judged: &Judged, label: &Superblock) -> Result<(), MembersError> {
    for (layout, own) in disk_groups(label) {
        let members = || own.pick(&label.members).zip(own.pick(&judged.slots));
        let has_all = |slot: usize| {
            let is_coming = label.coming_slot().is_some_and(|(_, coming)| coming == slot);
            let is_current = |slot: &Slot| matches!(slot, Slot::Current(_));
            is_coming || judged.slots.get(slot).is_some_and(is_current)
        };
        let is_whole = own.iter().all(has_all);
        if matches!(layout, Layout::Stripe { .. }) && !is_whole {
            return Err(MembersError::DataAway { missing: away_of(members()) });
        }
        let current = members().filter(|(member, _)| member.is_online());
        // What is older than the others cannot have gone on without them.
        let is_older = |slot: &Slot| matches!(slot, Slot::Older(_));
        let current = current.filter(|(_, slot)| !is_older(slot));
        let (found, absent): (Vec<_>, Vec<_>) =
            current.partition(|(_, slot)| matches!(slot, Slot::Current(_)));
        if found.len() < absent.len() {
            let missing = paths_of(absent.into_iter().map(|(member, _)| member));
            return Err(MembersError::TooFew { missing });
        }
    }
    Ok(())
}

pub(crate) fn paths_of<'a>(members: impl Iterator<Item = &'a Member>) -> String {
    let shown = |member: &Member| match member.path.as_slice() {
        [] => "a device whose path is not known".to_owned(),
        path => format::text::shown(path),
    };
    members.map(shown).collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests;
