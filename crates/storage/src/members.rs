//! Judges, from labels alone and without I/O, which devices are members of a pool and current.
//!
//! # Invariants
//!
//! - MJ1: The label with the newest epoch of membership is authoritative, including its table of
//!   member states. The age of a member's own label is not: a crash amid an update leaves older
//!   labels on members that have every acknowledged write.
//! - MJ2: If a device's epoch is missing from the newest label's history, the pool was opened in
//!   two halves. Only the user can choose between them.
//! - MJ3: A stale or joining member is never read.
//! - MJ4: Fewer than half of the online members are refused unless the user accepts it, because the
//!   absent ones may have been used without these. Of two, one is enough: neither can know of the
//!   other.
//! - MJ5: The label of a spare may be old and is not authoritative. The newest label of a member
//!   determines whether the device is a spare or has become a member.
//! - MJ6: If a member with the only copy of some data is absent, the pool opens only if the user
//!   accepts it, and read-only.
//! - MJ7: A settled label update was durable on all members that got it. So a member with an older
//!   label is an outdated copy or has lost writes, whatever its state in the table, and an unknown
//!   part of its contents is stale.
//! - MJ8: A device whose label is of the preceding epoch, and is settled no earlier than the first
//!   update of the next epoch, was used apart from the others: a half of the pool (MJ2).
//! - MJ9: A label older than every epoch in the newest history is that of a long absent member,
//!   whose contents are not used. The device is a half (MJ2) only if its label lists all online
//!   members of the newest label as away.
//! - MJ10: An epoch whose label update a device only began decides nothing, because nothing that
//!   waited for it was acknowledged. If the epoch of the newest label is in no history, the device
//!   is judged by the epoch before ([`crate::pool::SuperblockReport::epoch`]).
//! - MJ11: If a label whose update was only begun causes a refusal, the pool is judged by the label
//!   before, unless the absent members could have gone on alone.

use format::disk_group::{DiskGroup, DiskGroupState};
use format::members::{Layout, Member, MemberState, Membership};
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted;

/// Why devices do not form a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembersError {
    /// The list of devices is empty.
    #[error("no device was given: name one of the pool")]
    Nothing,
    /// The devices are of two pools.
    #[error("{first} and {other} are of different pools: name the devices of one pool")]
    OtherPool {
        /// Device with the newest label.
        first: String,
        /// Device of the other pool.
        other: String,
    },
    /// One member was found twice: a copy, or one device under two names.
    #[error("{first} and {other} are the same member of the pool: leave one out, it is a copy")]
    Twice {
        /// First device.
        first: String,
        /// Second device.
        other: String,
    },
    /// The pool was opened in two halves, and both were written.
    #[error(
        "{first} and {other} are of one pool, but were opened apart and differ since: nothing was \
         changed. Decide which one to keep, and leave the other out"
    )]
    Apart {
        /// Device with the newest label.
        first: String,
        /// Device with another history.
        other: String,
    },
    /// A former member, replaced by another device.
    #[error("{device} is no member of the pool any more: leave it out")]
    Replaced {
        /// Device name.
        device: String,
    },
    /// Only spares were given, which hold no data.
    #[error("{device} is a spare of the pool, and no member was found: name one of its devices")]
    OnlySpares {
        /// Name of one spare.
        device: String,
    },
    /// Fewer than half of the current members were found (MJ4).
    #[error(
        "fewer than half of the pool's devices were found, and the others may hold newer writes; \
         missing: {missing}. Attach them, or name where they are with --member PATH; if they are \
         gone for good, --accept-missing opens what is left"
    )]
    TooFew {
        /// Paths of the absent members.
        missing: String,
    },
    /// More members of a raid5 are away than its parity covers.
    #[error(
        "a raid5 can lose one device, and more are missing or have missed writes: {missing}. \
         Connect them, or give their paths with --member PATH; if they are lost for good, \
         `holdfast mount POOL DIRECTORY -o ro --accept-missing` shows what is left"
    )]
    TooManyAway {
        /// Paths of the members that are away.
        missing: String,
    },
    /// A stripe lacks a member, and so data.
    #[error(
        "a stripe holds each byte of data once, and a device of it is not there or has missed \
         writes: {missing}. Attach it, or name where it is with --member PATH; if it is gone for \
         good, --accept-missing together with -o ro shows what is left, and `holdfast check` \
         names the files that have lost something"
    )]
    DataAway {
        /// Paths of the members that are away.
        missing: String,
    },
    /// More members of a stripe are away than its metadata copies cover.
    #[error(
        "a stripe has its metadata in two copies, and two of its devices or more are not there or \
         have missed writes: {missing}. Attach them, or name where they are with --member PATH"
    )]
    MetadataAway {
        /// Paths of the members that are away.
        missing: String,
    },
    /// No device found is current.
    #[error(
        "none of the devices found has all that the pool holds; missing: {missing}. Attach \
         them, or name where they are with --member PATH"
    )]
    NoneCurrent {
        /// Paths of the current members.
        missing: String,
    },
}

/// A device found, with its label.
#[derive(Clone, Debug)]
pub struct LabelledDevice {
    /// Device name.
    pub name: String,
    /// Newest label.
    pub label: Superblock,
    /// See [`crate::pool::SuperblockReport::settled`].
    pub settled: u64,
    /// See [`crate::pool::SuperblockReport::before`].
    pub before: Option<Box<Superblock>>,
}

impl LabelledDevice {
    /// Returns the device with the label before the update that was only begun.
    fn before(&self) -> LabelledDevice {
        let label = self.before.as_deref().unwrap_or(&self.label).clone();
        LabelledDevice { label, before: None, ..self.clone() }
    }

    fn epoch(&self) -> Membership {
        self.before.as_deref().unwrap_or(&self.label).membership()
    }

    /// Returns the epoch by which the device is judged against the label `newest` (MJ10).
    pub(crate) fn judged_by(&self, newest: &Superblock) -> Membership {
        let own = self.label.membership();
        let is_known = newest.memberships.contains(&own);
        if is_known || planted!(BegunEpochIsApart) { own } else { self.epoch() }
    }

    fn age(&self) -> (u64, u64) {
        (self.epoch().number, self.label.sequence)
    }
}

/// State of a member slot. A number is the device's index among the devices found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberSlotState {
    /// A member with all of its data.
    Current(usize),
    /// A stale member.
    Stale(usize),
    /// A joining member, not yet complete.
    Joining(usize),
    /// An online or joining member with too old a label (MJ7, MJ9).
    Older(usize),
    /// The member was not found.
    Absent,
    /// The slot is unused.
    Free,
}

/// The members of a pool, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAssessment {
    /// Index of the device with the authoritative label (MJ1).
    pub newest: usize,
    /// State of each slot.
    pub slots: Vec<MemberSlotState>,
    /// Newest settled label sequence.
    pub settled: u64,
    /// Device index of each spare in the newest label, or `None` if absent.
    pub spares: Vec<Option<usize>>,
}

impl MemberAssessment {
    /// Whether a member is absent or not current.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.slots
            .iter()
            .any(|slot| !matches!(slot, MemberSlotState::Current(_) | MemberSlotState::Free))
    }
}

#[derive(Debug)]
pub(crate) struct AuthoritativeLabel {
    pub(crate) judged: MemberAssessment,
    pub(crate) label: Superblock,
    /// The newest label, if it was set aside because its update was only begun (MJ11).
    pub(crate) begun: Option<Superblock>,
}

/// Judges `found` ([`judge`]), and refuses too few members ([`check_enough`]) unless the user
/// accepts them. After a refusal, judges by the label before an update that was only begun (MJ11).
///
/// # Errors
///
/// [`MembersError`]. Write nothing then.
pub(crate) fn believe(
    found: &[LabelledDevice],
    accepts_missing: bool,
) -> Result<AuthoritativeLabel, MembersError> {
    let by = |found: &[LabelledDevice], begun| {
        let judged = judge_within(found, accepts_missing)?;
        let label = found.get(judged.newest).ok_or(MembersError::Nothing)?.label.clone();
        if !accepts_missing {
            check_enough(&judged, &label)?;
        }
        Ok(AuthoritativeLabel { judged, label, begun })
    };
    by(found, None).or_else(|refused| {
        let Some(begun) = begun_in_vain(found, &refused) else { return Err(refused) };
        let before: Vec<LabelledDevice> = found.iter().map(LabelledDevice::before).collect();
        by(&before, Some(begun)).map_err(|_| refused)
    })
}

/// Returns the newest label, if its update was only begun and the absent members could not have
/// gone on alone (MJ11).
fn begun_in_vain(found: &[LabelledDevice], refused: &MembersError) -> Option<Superblock> {
    let is_short = match refused {
        MembersError::Replaced { .. }
        | MembersError::TooFew { .. }
        | MembersError::TooManyAway { .. }
        | MembersError::DataAway { .. }
        | MembersError::MetadataAway { .. }
        | MembersError::NoneCurrent { .. } => true,
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
        if member.is_online() && !is_there(member.id) {
            MemberSlotState::Current(0)
        } else {
            MemberSlotState::Absent
        }
    };
    let others: Vec<MemberSlotState> = label.members.iter().map(of_others).collect();
    let mut groups = disk_groups(label);
    let go_on =
        groups.all(|(layout, own)| check_group(layout, own, &label.members, &others).is_ok());
    (!go_on).then(|| label.clone())
}

/// Judges all devices found of one pool.
///
/// # Errors
///
/// [`MembersError`]. Write nothing then.
pub fn judge(found: &[LabelledDevice]) -> Result<MemberAssessment, MembersError> {
    judge_within(found, false)
}

/// Does as [`judge`], but with `accepts_missing` a raid5 may lack more members than its parity
/// covers (MJ6).
fn judge_within(
    found: &[LabelledDevice],
    accepts_missing: bool,
) -> Result<MemberAssessment, MembersError> {
    let any = found.first().ok_or(MembersError::Nothing)?;
    let Some((newest, first)) = newest_of(found) else {
        return Err(MembersError::OnlySpares { device: any.name.clone() });
    };
    let table = &first.label.members;
    let settled = settled_of(found.iter().filter(|found| is_of_member(found)), &first.label);
    let of_nobody = |member: &Member| {
        if member.is_gone() { MemberSlotState::Free } else { MemberSlotState::Absent }
    };
    let mut slots: Vec<MemberSlotState> = table.iter().map(of_nobody).collect();
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
        if let MemberSlotState::Current(other)
        | MemberSlotState::Stale(other)
        | MemberSlotState::Joining(other)
        | MemberSlotState::Older(other) = *slot
        {
            return Err(twice(other));
        }
        let at = table.iter().position(|member| member.id == id).unwrap_or(usize::MAX);
        let is_older = settled.get(at).is_some_and(|settled| device.label.sequence < *settled)
            && !planted!(OlderCopyBelieved);
        // Stale and joining members are not read (MJ3).
        *slot = match member.state {
            MemberState::Online | MemberState::Joining if is_older || is_forgotten => {
                MemberSlotState::Older(number)
            }
            MemberState::Online => MemberSlotState::Current(number),
            MemberState::Joining => MemberSlotState::Joining(number),
            MemberState::Missing | MemberState::Failed => MemberSlotState::Stale(number),
            MemberState::Gone => MemberSlotState::Free,
        };
    }
    let settled = settled.iter().copied().max().unwrap_or_default();
    let judged = MemberAssessment { newest, slots, settled, spares };
    let coming = first.label.coming_slot().map(|(_, slot)| slot);
    for (layout, own) in disk_groups(&first.label) {
        // A member that is being added to its disk group holds no data yet.
        let own: Slots = own.iter().filter(|slot| Some(*slot) != coming).collect();
        let checked = check_group(layout, &own, table, &judged.slots);
        let has_some =
            own.pick(&judged.slots).any(|slot| matches!(slot, MemberSlotState::Current(_)));
        match checked {
            Err(MembersError::TooManyAway { .. }) if accepts_missing && has_some => {}
            checked => checked?,
        }
    }
    Ok(judged)
}

/// Whether the label is authoritative (MJ5).
fn is_of_member(found: &LabelledDevice) -> bool {
    !found.label.is_of_spare() || planted!(SpareBelieved)
}

/// Returns the device with the newest label, and its index. `None` if only spares were found.
fn newest_of(found: &[LabelledDevice]) -> Option<(usize, &LabelledDevice)> {
    let of_members = found.iter().enumerate().filter(|(_, found)| is_of_member(found));
    of_members.max_by_key(|(_, found)| found.age())
}

/// Returns for each slot the newest settled label in its disk group. Each group counts alone,
/// because one being added or removed gets its labels separately.
fn settled_of<'f>(found: impl Iterator<Item = &'f LabelledDevice>, label: &Superblock) -> Vec<u64> {
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

/// Returns layout and slots of each disk group that may hold data: all but those being added.
pub(crate) fn disk_groups(label: &Superblock) -> impl Iterator<Item = (Layout, &Slots)> + '_ {
    let is_needed = |group: &&DiskGroup| group.state != DiskGroupState::Adding;
    let added = label.added.iter().filter(is_needed);
    let added = added.map(|group| (group.layout, &group.slots));
    std::iter::once((label.layout, &label.slots)).chain(added)
}

/// Refuses a disk group with too few current members to provide its data.
fn check_group(
    layout: Layout,
    own: &Slots,
    table: &[Member],
    slots: &[MemberSlotState],
) -> Result<(), MembersError> {
    let is_current = |slot: &MemberSlotState| matches!(slot, MemberSlotState::Current(_));
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

fn away_of<'a>(members: impl Iterator<Item = (&'a Member, &'a MemberSlotState)>) -> String {
    let is_current = |slot: &MemberSlotState| matches!(slot, MemberSlotState::Current(_));
    paths_of(members.filter(|(_, slot)| !is_current(slot)).map(|(member, _)| member))
}

fn check_pool(first: &LabelledDevice, device: &LabelledDevice) -> Result<(), MembersError> {
    if device.label.pool_id == first.label.pool_id {
        return Ok(());
    }
    Err(MembersError::OtherPool { first: first.name.clone(), other: device.name.clone() })
}

/// Refuses a device that was used apart from `first` (MJ2, MJ10).
fn check_history(first: &LabelledDevice, device: &LabelledDevice) -> Result<(), MembersError> {
    let (history, own) = (&first.label.memberships, device.judged_by(&first.label));
    let next = history.iter().find(|next| next.number == own.number + 1);
    // Used apart in the preceding epoch (MJ8).
    let went_on =
        next.is_some_and(|next| device.settled >= next.sequence) && !planted!(OlderCopyBelieved);
    let is_one_of_them = history.contains(&own)
        || is_forgotten(&first.label, own) && !is_half(&first.label, &device.label);
    if is_one_of_them && !went_on {
        return Ok(());
    }
    Err(MembersError::Apart { first: first.name.clone(), other: device.name.clone() })
}

/// Whether the epoch `own` predates all that the label `newest` remembers (MJ9).
pub(crate) fn is_forgotten(newest: &Superblock, own: Membership) -> bool {
    newest.memberships.first().is_some_and(|oldest| own.number < oldest.number)
}

/// Whether `own` lists all members that `newest` lists as online as away: the two halves of the
/// pool were used apart.
fn is_half(newest: &Superblock, own: &Superblock) -> bool {
    let known = |member: &Member| own.members.iter().find(|own| own.id == member.id);
    let is_away = |own: &Member| matches!(own.state, MemberState::Missing | MemberState::Failed);
    let mut online = newest.members.iter().filter(|member| member.is_online()).filter_map(known);
    // Also true if no online member is in `own`: the device was split off.
    online.all(is_away)
}

/// Judges a device that returns to a pool, and returns its slot.
///
/// # Errors
///
/// [`MembersError`]. Do not write to the device then.
pub fn judge_return(pool: &LabelledDevice, device: &LabelledDevice) -> Result<usize, MembersError> {
    check_pool(pool, device)?;
    if !device.label.is_of_spare() && !planted!(ReturnOfStranger) {
        check_history(pool, device)?;
    }
    let id = device.label.device_id();
    let slot = pool.label.members.iter().position(|member| member.id == id);
    slot.ok_or_else(|| MembersError::Replaced { device: device.name.clone() })
}

/// Refuses a pool with fewer than half of its current members (MJ4), or a stripe without a member
/// that may hold data (MJ6).
///
/// # Errors
///
/// [`MembersError::TooFew`], [`MembersError::DataAway`].
pub fn check_enough(judged: &MemberAssessment, label: &Superblock) -> Result<(), MembersError> {
    for (layout, own) in disk_groups(label) {
        let members = || own.pick(&label.members).zip(own.pick(&judged.slots));
        let has_all = |slot: usize| {
            let is_coming = label.coming_slot().is_some_and(|(_, coming)| coming == slot);
            let is_current = |slot: &MemberSlotState| matches!(slot, MemberSlotState::Current(_));
            is_coming || judged.slots.get(slot).is_some_and(is_current)
        };
        let is_whole = own.iter().all(has_all);
        if matches!(layout, Layout::Stripe { .. }) && !is_whole {
            return Err(MembersError::DataAway { missing: away_of(members()) });
        }
        let current = members().filter(|(member, _)| member.is_online());
        // A member with an older label cannot have gone on without the others.
        let is_older = |slot: &MemberSlotState| matches!(slot, MemberSlotState::Older(_));
        let current = current.filter(|(_, slot)| !is_older(slot));
        let (found, absent): (Vec<_>, Vec<_>) =
            current.partition(|(_, slot)| matches!(slot, MemberSlotState::Current(_)));
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
