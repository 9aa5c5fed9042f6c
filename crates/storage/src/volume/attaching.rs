//! A mirror gets a member more, or one less, while the pool is in use; a single becomes a mirror of
//! two, and a mirror of two a single.
//!
//! # Invariants
//!
//! - AD1: A member that is attached is joining from the update of the labels that first names it:
//!   it gets every write and is not read (MS4) until it has all (JN1).
//! - AD2: A member is taken out only where all that it has is on members that are online: one that
//!   is online goes only where all others of its disk group are.
//! - AD3: Its label is blanked when the labels of all that remain are durable without it.
//!
//! # Crashes
//!
//! *Attach.* The labels of the members that the pool has are written first, that of the new one
//! when they are durable. A cut before leaves a member that is joining and was not found: the pool
//! has what it had, and the open calls that member missing. From then on all is as in `joining.rs`.
//!
//! *Detach.* One update of the labels: the newest of them says whether the member is there (MJ1),
//! and until one of them is written it gets every write. Whoever finds both the new labels and its
//! own old one refuses it by name: its id is in no table. After that its label is blanked.
//!
//! Decision 0088 has the argument.

use format::members::{Layout, MEMBERS_MAX, MIRROR_WIDTH_MAX, Member, MemberState};
use format::page::PAGE_BYTES;
use format::slots::Slots;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::growth::note_paths;
use super::joining::ReplaceError;
use super::set::{Change, MemberSet};
use super::slot::{Slot, way_to_online};
use super::spares::blank_label;
use crate::convert::to_u64;
use crate::device::{DeviceError, SharedDevice};

/// Why a device cannot become a further member of a disk group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// What a device in the place of a member could not be either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// Add a disk group, or replace devices.
    #[error(
        "disk group {number} is a {kind}, and only a single or a mirror gets a copy more: `group \
         add` adds a mirror beside it, and `device replace` puts another device in a place"
    )]
    Kind {
        /// Number of the disk group.
        number: u8,
        /// What it is.
        kind: &'static str,
    },
    /// Remove one first.
    #[error(
        "disk group {number} is a mirror of {MIRROR_WIDTH_MAX}, and has no room for another: \
         `device replace` puts a device in a place, and `device remove` frees one"
    )]
    Full {
        /// Number of the disk group.
        number: u8,
    },
    /// Copy the files to a new pool.
    #[error(
        "the pool has fragments of {bytes} bytes, and a mirror has them of {PAGE_BYTES}: copy the \
         files to a new pool (holdfast send)"
    )]
    Fragment {
        /// What the pool has.
        bytes: u64,
    },
    /// Remove some first.
    #[error("a pool has at most {MEMBERS_MAX} devices: remove some first")]
    TooManyMembers,
    /// Add a disk group, or attach a copy.
    #[error(
        "disk group {number} is a {kind}, and only a raid5 or stripe gets a device more to spread \
         its data over: `group add` adds a disk group beside it, and a mirror gets copies by \
         `device add --mirror`"
    )]
    NoStripes {
        /// Number of the disk group.
        number: u8,
        /// What it is.
        kind: &'static str,
    },
    /// Wait for it.
    #[error(
        "a disk group of this pool gets a device already, or is losing one: wait until all has \
         moved (holdfast job list)"
    )]
    Reshaped,
    /// Add a disk group.
    #[error("disk group {number} has {most} devices, and more it cannot have: add a disk group")]
    Wide {
        /// Number of the disk group.
        number: u8,
        /// How many it can have.
        most: usize,
    },
    /// Bring it back, or replace it, and wait until it has all.
    #[error(
        "a device can be added to a disk group only while all of its devices are online, and the \
         member in slot {slot} is {state}: {}",
        way_to_online(.state)
    )]
    Lacking {
        /// Which one.
        slot: usize,
        /// What it is.
        state: &'static str,
    },
    /// Add a disk group.
    #[error(
        "disk group {number} could not use what it would gain: {why}; give devices for a disk \
         group of their own (holdfast group add)"
    )]
    NoNumbers {
        /// Number of the disk group.
        number: u8,
        /// What is in its way.
        why: String,
    },
    /// Wait until it is gone.
    #[error("disk group {number} leaves the pool: it gets no device")]
    Leaving {
        /// Its number.
        number: u8,
    },
    /// Add a disk group.
    #[error(
        "disk group {number} would have no more room with a device more, for its segments of \
         {segment_bytes} bytes would take as many rows as now: give devices for a disk group of \
         their own (holdfast group add); to exchange a device, remove the old one first (holdfast \
         device remove), and then add the new one"
    )]
    NoGain {
        /// Number of the disk group.
        number: u8,
        /// How long a segment is.
        segment_bytes: u64,
    },
    /// Close the pool and open it again.
    #[error(
        "the disk groups of this pool have changed too often since it was opened: unmount it and \
         mount it again"
    )]
    Often,
}

/// Why a member cannot be taken out of its disk group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError {
    /// Name another.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Which was named.
        slot: usize,
    },
    /// Replace it, or move the data of its disk group.
    #[error("disk group {number} is a {kind}, and none of its devices has what another has: {way}")]
    Kind {
        /// Number of the disk group.
        number: u8,
        /// What it is.
        kind: &'static str,
        /// What can be done.
        way: String,
    },
    /// Say so, or attach another first.
    #[error(
        "the disk group is a mirror of two, and each byte would be on one device alone, so that \
         what that loses is lost: `--accept-no-redundancy` does it, and `device add --mirror` \
         attaches another device first"
    )]
    NoRedundancy,
    /// Wait, bring it back, replace it, or remove that one.
    #[error(
        "the member in slot {other} is {state} and has no complete copy: {}, or remove that member",
        way_to_online(.state)
    )]
    Others {
        /// Which one.
        other: usize,
        /// What it is.
        state: &'static str,
    },
    /// What a member said: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A member that was taken out.
#[derive(Debug)]
#[must_use]
pub struct Detached {
    slot: Option<Slot>,
}

impl Detached {
    pub(super) fn of(slot: Slot) -> Detached {
        Detached { slot: Some(slot) }
    }

    /// Returns what its device is called; `None`: it was not there.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(&self.slot.as_ref()?.device.as_ref()?.info().name)
    }

    /// Returns how many requests to it were not answered: what they write may still land.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.slot.as_ref().map_or(0, Slot::unanswered)
    }

    /// Makes its device one that no pool knows, durably (AD3).
    ///
    /// # Errors
    ///
    /// What the device said. It is of no pool all the same, and is refused by name.
    pub fn blank(&self) -> Result<(), DeviceError> {
        let device = self.slot.as_ref().and_then(|slot| slot.device.as_ref());
        device.map_or(Ok(()), blank_label)
    }
}

impl Volume {
    /// Makes `device` a further member of the disk group that has the member in slot `beside`; that
    /// is a mirror from now on. The device is written to from now on; [`Volume::remake_pieces`] is
    /// to make it whole, and then [`Volume::end_join`] says so. Returns its slot.
    ///
    /// # Errors
    ///
    /// See [`AttachError`].
    pub fn begin_attach(
        &self,
        beside: usize,
        device: SharedDevice,
        id: [u8; 16],
    ) -> Result<usize, AttachError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let mut attached = Err(ReplaceError::NoSlot { slot: beside }.into());
        // CRASH: the label of the new member is the last to be written: see `change_last`.
        let changed = members.change_with(|slots, label| {
            let number = match self.may_attach(slots, label, beside, &device) {
                Ok(number) => number,
                Err(refusal) => {
                    attached = Err(refusal);
                    return (Change::Nothing, None);
                }
            };
            let Some((set, _)) = members.of_slot(beside) else { return (Change::Nothing, None) };
            // Of what was one device alone nobody has noted where it is.
            note_paths(label, slots);
            let slot = label.attach(number, member_on(&device, id));
            // AD1.
            let is_early = planted::is(Planted::AttachedReadAtOnce);
            let state = if is_early { MemberState::Online } else { MemberState::Joining };
            take_in(&set, slots, slot, Slot::new(Some(device), state));
            attached = Ok(slot);
            (Change::States, Some(slot))
        });
        changed.map_err(ReplaceError::Device)?;
        attached
    }

    /// Returns the number of the disk group that has the member in slot `beside`, if `device` may
    /// become a further member of it. Called with the label's lock held.
    fn may_attach(
        &self,
        slots: &[Slot],
        label: &Superblock,
        beside: usize,
        device: &SharedDevice,
    ) -> Result<u8, AttachError> {
        let group = label.group_of_slot(beside);
        let (number, layout, own) = group.ok_or(ReplaceError::NoSlot { slot: beside })?;
        match layout {
            Layout::Single | Layout::Mirror => {}
            Layout::RoundRobin | Layout::Stripe { .. } | Layout::Raid5 { .. } => {
                return Err(AttachError::Kind { number, kind: layout.word() });
            }
        }
        if own.len() >= MIRROR_WIDTH_MAX {
            return Err(AttachError::Full { number });
        }
        let bytes = label.geometry.fragment_bytes();
        if bytes != to_u64(PAGE_BYTES) {
            return Err(AttachError::Fragment { bytes });
        }
        check_place(slots, label)?;
        self.check_fits(label, beside, device)?;
        Ok(number)
    }

    /// Takes the member in `slot` out of its disk group, a mirror; of two only where
    /// `accepts_single`. The labels of all that remain say so, durably, when this returns; the
    /// device is to be blanked then ([`Detached::blank`]).
    ///
    /// # Errors
    ///
    /// See [`DetachError`].
    pub fn detach(&self, slot: usize, accepts_single: bool) -> Result<Detached, DetachError> {
        let members = self.members().ok_or(DetachError::NoSlot { slot })?;
        let mut detached = Err(DetachError::NoSlot { slot });
        members.change(|slots, label| {
            if let Err(refusal) = may_detach(slots, label, slot, accepts_single) {
                detached = Err(refusal);
                return Change::Nothing;
            }
            let Some((set, _)) = members.of_slot(slot) else { return Change::Nothing };
            let Some(at) = slots.get_mut(slot) else { return Change::Nothing };
            let out = std::mem::replace(at, Slot::gone());
            if planted::is(Planted::BlankedBeforeLabels) {
                let _ = out.device.as_ref().map(blank_label);
            }
            detached = Ok(Detached::of(out));
            set.leave_slot(slot);
            label.detach(slot);
            Change::States
        })?;
        detached
    }
}

/// Returns what the table says of a new member on `device`.
pub(super) fn member_on(device: &SharedDevice, id: [u8; 16]) -> Member {
    let mut member = Member::new(id, device.info().size_bytes);
    if device.info().name.starts_with('/') {
        member.set_path(device.info().name.as_bytes());
    }
    member
}

/// Makes `new` the member of `set` in `slot` of the pool's `slots`: called while the labels come to
/// tell of it ([`MemberSet::change`]).
fn take_in(set: &MemberSet, slots: &mut Vec<Slot>, slot: usize, new: Slot) {
    set.take_slot(slot);
    put_in(slots, slot, new);
}

/// Puts `new` into `slot` of the pool's `slots`.
pub(super) fn put_in(slots: &mut Vec<Slot>, slot: usize, new: Slot) {
    while slots.len() <= slot {
        slots.push(Slot::gone());
    }
    slots[slot] = new;
}

/// Refuses a further member while another joins, or where the table is full.
pub(super) fn check_place(slots: &[Slot], label: &Superblock) -> Result<(), AttachError> {
    if let Some(slot) = slots.iter().position(|it| it.state == MemberState::Joining) {
        return Err(ReplaceError::Joins { slot }.into());
    }
    let has_room = label.members.iter().any(Member::is_gone)
        || label.members.len() + label.spares.len() < MEMBERS_MAX;
    if has_room { Ok(()) } else { Err(AttachError::TooManyMembers) }
}

/// Refuses to take the member in `slot` out, by what the members and the label are now.
fn may_detach(
    slots: &[Slot],
    label: &Superblock,
    slot: usize,
    accepts_single: bool,
) -> Result<(), DetachError> {
    let group = label.group_of_slot(slot);
    let (number, layout, own) = group.ok_or(DetachError::NoSlot { slot })?;
    if layout != Layout::Mirror {
        let has_journal = label.added.iter().any(|it| it.number == number && it.has_journal);
        let is_main = number == label.geometry.main;
        let way = way_of((number, is_main), layout, has_journal);
        return Err(DetachError::Kind { number, kind: layout.word(), way });
    }
    if own.len() == 2 && !accepts_single {
        return Err(DetachError::NoRedundancy);
    }
    check_others(slots, own, slot)
}

/// AD2.
fn check_others(slots: &[Slot], own: &Slots, slot: usize) -> Result<(), DetachError> {
    let state_of = |slot: usize| slots.get(slot).map_or(MemberState::Gone, |slot| slot.state);
    let is_online = |slot: usize| state_of(slot) == MemberState::Online;
    let mut others = own.iter().filter(|other| *other != slot);
    let lacking = match is_online(slot) {
        true => others.find(|other| !is_online(*other)),
        // Nothing is only there.
        false if others.clone().any(is_online) => None,
        false => others.next(),
    };
    let refusal = |other| DetachError::Others { other, state: state_of(other).word() };
    lacking.map_or(Ok(()), |other| Err(refusal(other)))
}

/// Returns what can be done with a disk group none of whose devices can go.
fn way_of((number, is_main): (u8, bool), layout: Layout, has_journal: bool) -> String {
    match layout {
        Layout::Single if is_main => {
            "`device add --mirror` attaches a copy, and then it can be removed".to_owned()
        }
        Layout::Stripe { .. } | Layout::Raid5 { .. } => {
            "`device remove` moves what it holds to the others".to_owned()
        }
        Layout::Single | Layout::Mirror | Layout::RoundRobin if has_journal => {
            format!("`group remove {number}` moves the journal to where the metadata is")
        }
        Layout::Single | Layout::Mirror | Layout::RoundRobin => format!(
            "`group add` adds room elsewhere, and `group remove {number}` then moves its data there"
        ),
    }
}
