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
        "a raid5 does without one device, and more are not there or have missed \
         writes: {missing}. Attach them, or name where they are with --member PATH"
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
    /// See [`crate::pool::SuperblockReport::epoch`].
    pub epoch: Membership,
}

impl Found {
    /// Returns what was `read` of the device called `name`.
    #[must_use]
    pub fn new(name: String, read: SuperblockReport) -> Found {
        Found { name, label: read.current, settled: read.settled, epoch: read.epoch }
    }

    /// Returns the epoch by which the device is judged where `newest` is the newest label (MJ10).
    pub(crate) fn judged_by(&self, newest: &Superblock) -> Membership {
        let own = self.label.membership();
        let is_known = newest.memberships.contains(&own);
        if is_known || planted::is(Planted::BegunEpochIsApart) { own } else { self.epoch }
    }

    /// See [`SuperblockReport::age`].
    fn age(&self) -> (u64, u64) {
        (self.epoch.number, self.label.sequence)
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

/// Judges `found`, all that was found of one pool.
///
/// # Errors
///
/// See [`MembersError`]. Nothing may be written then.
pub fn judge(found: &[Found]) -> Result<Judged, MembersError> {
    let any = found.first().ok_or(MembersError::Nothing)?;
    // MJ5.
    let is_of_member =
        |found: &Found| !found.label.is_of_spare() || planted::is(Planted::SpareBelieved);
    let of_members = found.iter().enumerate().filter(|(_, found)| is_of_member(found));
    let Some((newest, first)) = of_members.max_by_key(|(_, found)| found.age()) else {
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
        check_group(layout, &own, table, &judged.slots)?;
    }
    Ok(judged)
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
mod tests {
    use format::geometry::{Geometry, GeometryOptions};
    use format::ids::{Epoch, Lsn, PoolId};
    use format::members::Spare;
    use format::superblock::{Consistency, LABEL_BYTES};

    use super::*;

    /// Returns the labels of a new mirror of `width`.
    fn pool(width: u8) -> Vec<Found> {
        let options = GeometryOptions {
            device_bytes: 16 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        };
        let members: Vec<Member> =
            (0..width).map(|slot| Member::new([slot + 1; 16], 16 << 20)).collect();
        let label = Superblock {
            pool_id: PoolId([9; 16]),
            sequence: 1,
            device_index: 0,
            is_open: false,
            consistency: Consistency::Journal,
            features_compatible: 0,
            features_read_only: 0,
            features_incompatible: 0,
            members,
            spares: Vec::new(),
            layout: if width == 1 { Layout::Single } else { Layout::Mirror },
            slots: (0..usize::from(width)).into(),
            added: Vec::new(),
            memberships: vec![Membership::FIRST],
            label: [0; LABEL_BYTES],
            created_seconds: 0,
            mount_count: 0,
            writer_term: 1,
            sector_bytes: 512,
            block_shift: 14,
            geometry: Geometry::plan(&options).expect("16 MiB are enough"),
            lsn_base: Lsn(0),
            epoch_base: Epoch(2),
            busy_generation: 1,
            is_scrubbing: false,
            secret: [0; 16],
            voids: Vec::new(),
            busy_groups: Vec::new(),
        };
        (0..u16::from(width))
            .map(|slot| Found {
                name: format!("d{slot}"),
                label: Superblock { device_index: slot, ..label.clone() },
                settled: label.sequence,
                epoch: label.membership(),
            })
            .collect()
    }

    /// Says in the label of `found` that the member in `slot` is in `state` from now on.
    fn leave_behind(found: &mut Found, slot: usize, state: MemberState) {
        found.label.members[slot].state = state;
        found.label.add_membership();
        found.label.sequence += 1;
        found.epoch = found.label.membership();
    }

    #[test]
    fn all_members_of_a_new_pool_are_current_in_any_order() {
        let mut found = pool(3);
        found.reverse();
        let judged = judge(&found).expect("they are one pool");
        assert_eq!(judged.slots, [Slot::Current(2), Slot::Current(1), Slot::Current(0)]);
        assert!(!judged.is_degraded());
        let alone = judge(&pool(1)).expect("one device");
        assert_eq!(alone.slots, [Slot::Current(0)]);
    }

    /// Goal: a pool in stripes does without one member, whether it is absent or has missed writes,
    /// and names those that are away where they are more.
    #[test]
    fn a_pool_in_stripes_does_without_one_member_and_names_those_that_are_away() {
        let in_stripes = || {
            let mut found = pool(4);
            for (slot, device) in found.iter_mut().enumerate() {
                device.label.layout = Layout::Raid5 { unit_shift: 14 };
                for (number, member) in device.label.members.iter_mut().enumerate() {
                    member.set_path(format!("/srv/d{number}").as_bytes());
                }
                assert_eq!(usize::from(device.label.device_index), slot);
            }
            found
        };
        for away in 0..4 {
            let mut found = in_stripes();
            found.remove(away);
            let judged = judge(&found).expect("three of four have all");
            assert_eq!(judged.slots[away], Slot::Absent);
            assert!(judged.is_degraded());
        }
        let mut stale = in_stripes();
        leave_behind(&mut stale[0], 2, MemberState::Failed);
        assert_eq!(judge(&stale).expect("three have all").slots[2], Slot::Stale(2));
        stale.remove(1);
        let error = judge(&stale).expect_err("one is away, one has missed writes").to_string();
        assert!(error.contains("/srv/d1, /srv/d2"), "{error}");
        assert!(!error.contains("/srv/d0") && !error.contains("/srv/d3"), "{error}");
    }

    #[test]
    fn a_member_that_missed_writes_is_not_current_and_alone_it_is_no_pool_if_it_knows() {
        let mut found = pool(2);
        leave_behind(&mut found[0], 1, MemberState::Failed);
        let judged = judge(&found).expect("one of them has all");
        assert_eq!(
            (judged.newest, judged.slots.as_slice()),
            (0, &[Slot::Current(0), Slot::Stale(1)][..])
        );
        assert!(judged.is_degraded());
        // The label that was written last lies on a device whose table calls it failed: its member
        // alone has nothing to give.
        let mut knows = found.split_off(1);
        knows[0].label.members[1].state = MemberState::Missing;
        knows[0].label.members[0].set_path(b"/srv/d0");
        let error = judge(&knows).expect_err("it has missed writes").to_string();
        assert!(error.contains("/srv/d0"), "{error}");
    }

    /// Goal: a crash between the labels of an update leaves a pool. Method: the newest label tells
    /// of a member that failed; that of another that is online does not yet.
    #[test]
    fn the_table_of_the_newest_label_decides_not_the_age_of_others() {
        let mut found = pool(3);
        leave_behind(&mut found[1], 2, MemberState::Failed);
        let judged = judge(&found).expect("two of three have all");
        assert_eq!(judged.newest, 1);
        assert_eq!(judged.slots, [Slot::Current(0), Slot::Current(1), Slot::Stale(2)]);
    }

    #[test]
    fn halves_that_were_opened_apart_are_refused_by_name() {
        let mut found = pool(2);
        leave_behind(&mut found[0], 1, MemberState::Missing);
        leave_behind(&mut found[1], 0, MemberState::Missing);
        for further in 0..2 {
            let error = judge(&found).expect_err("their histories differ");
            assert!(matches!(error, MembersError::Apart { .. }), "{further}: {error}");
            let text = error.to_string();
            assert!(text.contains("d0") && text.contains("d1"), "{text}");
            // One half goes on for longer: its history does not hold that of the other either.
            found[0].label.add_membership();
            found[0].epoch = found[0].label.membership();
        }
    }

    /// Goal: a member whose label is older than one that all had is told from one whose label a
    /// crash left behind.
    #[test]
    fn an_older_copy_is_known_by_a_label_that_all_had() {
        for (own, settled, is_older) in [(3, 4, true), (3, 3, false), (4, 4, false), (1, 6, true)] {
            let mut found = pool(3);
            for device in &mut found {
                (device.label.sequence, device.settled) = (settled + 1, settled);
            }
            (found[1].label.sequence, found[1].settled) = (own, own);
            let judged = judge(&found).expect("two of three have all");
            let expected = if is_older { Slot::Older(1) } else { Slot::Current(1) };
            assert_eq!(judged.slots, [Slot::Current(0), expected, Slot::Current(2)]);
            assert_eq!(judged.settled, settled);
        }
        let mut found = pool(2);
        (found[0].label.sequence, found[0].settled) = (5, 5);
        let judged = judge(&found).expect("one has all");
        check_enough(&judged, &found[0].label).expect("the other is known to be older");
        let mut stripes = pool(3);
        stripes.iter_mut().for_each(|found| found.label.layout = Layout::Raid5 { unit_shift: 14 });
        (stripes[0].label.sequence, stripes[0].settled) = (5, 5);
        let error = judge(&stripes).expect_err("two are older, and parity is for one");
        assert!(matches!(error, MembersError::TooManyAway { .. }), "{error}");
    }

    /// Goal: a half that went on without an epoch of the other is told from a member that a crash
    /// left with the last label before it.
    #[test]
    fn a_half_that_went_on_in_the_epoch_before_is_refused() {
        for (own, settled, is_apart) in [(6, 6, true), (4, 4, true), (4, 3, false), (3, 3, false)] {
            let mut found = pool(2);
            (found[1].label.sequence, found[1].settled) = (3, 3);
            leave_behind(&mut found[1], 0, MemberState::Missing);
            found[1].settled = 4;
            (found[0].label.sequence, found[0].settled) = (own, settled);
            let judged = judge(&found);
            assert_eq!(matches!(judged, Err(MembersError::Apart { .. })), is_apart, "{judged:?}");
            if let Ok(judged) = judged {
                assert_eq!(judged.slots, [Slot::Stale(0), Slot::Current(1)]);
            }
        }
    }

    /// Goal: a spare is found whatever its label says of the pool, and never decides. Method: its
    /// label is older than all epochs that are remembered, and has the highest sequence.
    #[test]
    fn a_spare_is_found_by_its_id_and_its_label_decides_nothing() {
        let mut found = pool(3);
        for device in &mut found {
            device.label.spares =
                vec![Spare::new([70; 16], 1 << 30), Spare::new([71; 16], 1 << 30)];
        }
        let mut label = Superblock { device_index: 4, ..found[0].label.clone() };
        label.sequence += 1000;
        let settled = label.sequence;
        let epoch = label.membership();
        found.push(Found { name: "s1".to_owned(), label, settled, epoch });
        for _ in 0..40 {
            leave_behind(&mut found[0], 2, MemberState::Failed);
        }
        for device in 1..3 {
            let label = found[0].label.clone();
            found[device].label = Superblock { device_index: index_of(device), ..label };
        }
        let judged = judge(&found).expect("two of three have all");
        assert!(judged.newest < 3, "not the spare, whose sequence is the highest");
        assert_eq!(judged.slots[2], Slot::Stale(2));
        assert_eq!(judged.spares, [None, Some(3)]);
        // It has the place of a member; its own label does not know yet.
        for device in &mut found[..3] {
            device.label.members[2] = Member::new([71; 16], 1 << 30);
            device.label.spares.remove(1);
        }
        leave_behind(&mut found[0], 2, MemberState::Joining);
        found.remove(2);
        let judged = judge(&found).expect("two of three have all");
        assert_eq!(judged.slots[2], Slot::Joining(2));
        assert_eq!(judged.spares, [None]);
        found[0].label.members[2] = Member::new([72; 16], 1 << 30);
        leave_behind(&mut found[0], 2, MemberState::Failed);
        let error = judge(&found).expect_err("it is a spare no more").to_string();
        assert!(error.contains("s1") && error.contains("no member"), "{error}");
        let error = judge(&found[2..]).expect_err("it holds nothing").to_string();
        assert!(error.contains("s1 is a spare"), "{error}");
    }

    /// Goal: epochs that were only begun are neither the newest nor those of a half.
    #[test]
    fn one_that_only_began_an_epoch_has_missed_what_others_did_since() {
        let mut found = pool(2);
        for _ in 0..3 {
            leave_behind(&mut found[0], 1, MemberState::Failed);
        }
        leave_behind(&mut found[1], 0, MemberState::Missing);
        found[1].settled = found[1].label.sequence;
        let error = judge(&found).expect_err("both may have answered somebody");
        assert!(matches!(error, MembersError::Apart { .. }), "{error}");
        found[0].epoch = Membership::FIRST;
        let judged = judge(&found).expect("one has begun epochs, and answered nobody");
        assert_eq!(judged.newest, 1);
        assert_eq!(judged.slots, [Slot::Stale(0), Slot::Current(1)]);
        // It went on in the epoch before.
        found[0].settled = found[1].label.sequence;
        let error = judge(&found).expect_err("it was used as well");
        assert!(matches!(error, MembersError::Apart { .. }), "{error}");
    }

    fn index_of(slot: usize) -> u16 {
        u16::try_from(slot).expect("small")
    }

    #[test]
    fn strangers_copies_and_replaced_members_are_refused() {
        let mut other = pool(2);
        other[1].label.pool_id = PoolId([8; 16]);
        assert!(matches!(judge(&other), Err(MembersError::OtherPool { .. })));
        let mut twice = pool(2);
        twice[1] = Found { name: "copy".to_owned(), ..twice[0].clone() };
        assert!(matches!(judge(&twice), Err(MembersError::Twice { .. })));
        let mut replaced = pool(2);
        replaced[0].label.members[1].id = [7; 16];
        replaced[0].label.add_membership();
        replaced[0].epoch = replaced[0].label.membership();
        let device = "d1".to_owned();
        assert_eq!(judge(&replaced), Err(MembersError::Replaced { device }));
        assert_eq!(judge(&[]), Err(MembersError::Nothing));
    }
}
