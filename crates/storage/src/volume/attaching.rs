//! Attaching a member to a single or mirror of an open pool, which becomes a wider mirror, or
//! detaching one.
//!
//! # Invariants
//!
//! - AD1: An attached member is joining from the label update that first lists it: it gets every
//!   write and is not read (MS4) until its rebuild is complete (JN1).
//! - AD2: A member is detached only if all of its contents are on online members. An online member
//!   is detached only if all others of its disk group are online.
//! - AD3: The label of a detached member is blanked after the remaining labels are durable without
//!   it.
//!
//! # Crashes
//!
//! *Attach.* The labels of the present members are durable before that of the attached device is
//! written. After a crash between the two, the labels list a joining member without a device:
//! nothing is lost, and the open reports it missing. After a later crash, see `joining.rs`.
//!
//! *Detach.* One label update: the newest label decides (MJ1), and until then the member gets every
//! write. An open refuses a detached device with its old label, because its id is in no table.
//!
//! Decision 0088 has the argument.

use super::Membership;
use format::members::{Layout, MEMBERS_MAX, MIRROR_WIDTH_MAX, Member, MemberState};
use format::page::PAGE_BYTES;
use format::slots::Slots;
use format::superblock::{Superblock, SuperblockError};
use runtime::if_planted;

use super::growth::note_paths;
use super::joining::ReplaceError;
use super::set::{LabelChange, MemberSet};
use super::slot::{MemberSlot, way_to_online};
use super::spares::blank_label;
use crate::convert::to_u64;
use crate::device::{DeviceError, SharedDevice};

/// Why a device cannot be attached, or added, to a disk group.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The device could not replace a member either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// Add a disk group, or replace devices.
    #[error(
        "disk group {number} is a {kind}, and only a single or a mirror gets a copy more: \
         `holdfast group add POOL mirror:NEW,NEW` adds a mirror beside it"
    )]
    Kind {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
    },
    /// Remove a device first.
    #[error(
        "disk group {number} is a mirror of {MIRROR_WIDTH_MAX}, and has no room for another: \
         `holdfast device replace POOL OLD NEW` puts a device in a place, and `holdfast device \
         remove POOL OLD` frees one"
    )]
    Full {
        /// Disk group.
        number: u8,
    },
    /// Copy the files to another pool.
    #[error(
        "the pool has fragments of {bytes} bytes, and a mirror has them of {PAGE_BYTES}: copy the \
         files to a new pool (`holdfast send`)"
    )]
    Fragment {
        /// Fragment size of the pool.
        bytes: u64,
    },
    /// Remove devices first.
    #[error("a pool has at most {MEMBERS_MAX} devices: remove some first")]
    TooManyMembers,
    /// Add a disk group, or attach a copy.
    #[error(
        "disk group {number} is a {kind}, and only a raid5 or stripe gets a device more to spread \
         its data over: `holdfast group add POOL KIND:NEW,...` adds a disk group beside it, and a \
         mirror gets copies by `holdfast device add POOL NEW --mirror OLD`"
    )]
    NoStripes {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
    },
    /// Wait for the end of the reshape.
    #[error(
        "a disk group of this pool gets a device already, or is losing one: wait until all has \
         moved (`holdfast job list POOL`)"
    )]
    Reshaped,
    /// Add a disk group.
    #[error(
        "disk group {number} has {most} devices, and more it cannot have: add a disk group (\
         `holdfast group add POOL KIND:NEW,...`)"
    )]
    Wide {
        /// Disk group.
        number: u8,
        /// Most devices that the group can have.
        most: usize,
    },
    /// Wait until all members are online.
    #[error(
        "a device can be added to a disk group only while all of its devices are online, and the \
         member in slot {slot} is {state}: {}",
        way_to_online(.state)
    )]
    Lacking {
        /// Slot of the member that is not online.
        slot: usize,
        /// State.
        state: &'static str,
    },
    /// Add a disk group.
    #[error(
        "disk group {number} could not use what it would gain: {why}; give devices for a disk \
         group of their own (`holdfast group add POOL KIND:NEW,...`)"
    )]
    NoNumbers {
        /// Disk group.
        number: u8,
        /// Reason why the added space is unusable.
        why: String,
    },
    /// Wait until the group is gone.
    #[error("disk group {number} leaves the pool: it gets no device")]
    Leaving {
        /// Disk group.
        number: u8,
    },
    /// Add a disk group.
    #[error(
        "disk group {number} would have no more room with a device more, for its segments of \
         {segment_bytes} bytes would take as many rows as now: give devices for a disk group of \
         their own (`holdfast group add POOL KIND:NEW,...=data,metadata,journal`); what this group \
         holds moves there with `holdfast group remove POOL {number}`"
    )]
    NoGain {
        /// Disk group.
        number: u8,
        /// Bytes of a segment.
        segment_bytes: u64,
    },
    /// The planned label is invalid: a bug, or a forged label.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// Reopen the pool.
    #[error(
        "the disk groups of this pool have changed too often since it was opened: unmount it and \
         mount it again"
    )]
    Often,
}

/// Why a member cannot be detached.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachError {
    /// Name another slot.
    #[error("there is no member in slot {slot}")]
    NoSlot {
        /// Slot in the request.
        slot: usize,
    },
    /// Replace the member, or move its data.
    #[error("disk group {number} is a {kind}, and none of its devices has what another has: {way}")]
    Kind {
        /// Disk group.
        number: u8,
        /// Kind.
        kind: &'static str,
        /// What to do instead, in words.
        way: String,
    },
    /// Accept it, or attach another device first.
    #[error(
        "the disk group is a mirror of two, and each byte would be on one device alone, so that \
         what that loses is lost: `holdfast device remove POOL OLD --accept-no-redundancy` does \
         it, and `holdfast device add POOL NEW --mirror OLD` attaches another device first"
    )]
    NoRedundancy,
    /// Wait, or detach the other member.
    #[error(
        "the member in slot {other} is {state} and has no complete copy: {}, or remove that member",
        way_to_online(.state)
    )]
    Others {
        /// Slot of the incomplete member.
        other: usize,
        /// State.
        state: &'static str,
    },
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A detached member.
#[derive(Debug)]
#[must_use]
pub struct Detached {
    slot: Option<MemberSlot>,
}

impl Detached {
    pub(super) fn of(slot: MemberSlot) -> Detached {
        Detached { slot: Some(slot) }
    }

    /// Returns the name of its device. `None` if the member was absent.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        Some(&self.slot.as_ref()?.device.as_ref()?.info().name)
    }

    /// Returns the number of unanswered requests, which may still change the device.
    #[must_use]
    pub fn unanswered(&self) -> u64 {
        self.slot.as_ref().map_or(0, MemberSlot::unanswered)
    }

    /// Blanks the label of its device, durably (AD3).
    ///
    /// # Errors
    ///
    /// A device error. The device is detached all the same.
    pub fn blank(&self) -> Result<(), DeviceError> {
        let device = self.slot.as_ref().and_then(|slot| slot.device.as_ref());
        device.map_or(Ok(()), blank_label)
    }
}

impl Membership<'_> {
    /// Attaches `device` to the disk group of the member in slot `beside`, which becomes a mirror.
    /// Returns the slot of the attached member, which gets every write from now on. Then
    /// [`Membership::rebuild_pieces`](crate::volume::membership::Membership::rebuild_pieces)
    /// rebuilds it, and [`Membership::end_join`](crate::volume::membership::Membership::end_join)
    /// makes it online.
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
        // CRASH: the label of the attached member is written last: see `change_last`.
        let changed = members.change_with(|slots, label| {
            let number = match self.may_attach(slots, label, beside, &device) {
                Ok(number) => number,
                Err(refusal) => {
                    attached = Err(refusal);
                    return (LabelChange::Nothing, None);
                }
            };
            let Some((set, _)) = members.of_slot(beside) else {
                return (LabelChange::Nothing, None);
            };
            // A pool of one device has no path in its label.
            note_paths(label, slots);
            let slot = label.attach(number, member_on(&device, id));
            // Not read before it is rebuilt (AD1).
            take_in(&set, slots, slot, MemberSlot::new(Some(device), MemberState::Joining));
            attached = Ok(slot);
            (LabelChange::States, Some(slot))
        });
        changed.map_err(ReplaceError::Device)?;
        attached
    }

    /// Returns the disk group of slot `beside`, if `device` may be attached. LOCK: under the
    /// label's lock.
    fn may_attach(
        &self,
        slots: &[MemberSlot],
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

    /// Detaches the member in `slot` from its mirror, durably. A mirror of two requires
    /// `accepts_single`. The caller then blanks the device ([`Detached::blank`]).
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
                return LabelChange::Nothing;
            }
            let Some((set, _)) = members.of_slot(slot) else { return LabelChange::Nothing };
            let Some(at) = slots.get_mut(slot) else { return LabelChange::Nothing };
            let out = std::mem::replace(at, MemberSlot::gone());
            if_planted!(BlankedBeforeLabels, drop(out.device.as_ref().map(blank_label)));
            detached = Ok(Detached::of(out));
            set.leave_slot(slot);
            label.detach(slot);
            LabelChange::States
        })?;
        detached
    }
}

pub(super) fn member_on(device: &SharedDevice, id: [u8; 16]) -> Member {
    let mut member = Member::new(id, device.info().size_bytes);
    if device.info().name.starts_with('/') {
        member.set_path(device.info().name.as_bytes());
    }
    member
}

fn take_in(set: &MemberSet, slots: &mut Vec<MemberSlot>, slot: usize, new: MemberSlot) {
    set.take_slot(slot);
    put_in(slots, slot, new);
}

pub(super) fn put_in(slots: &mut Vec<MemberSlot>, slot: usize, new: MemberSlot) {
    while slots.len() <= slot {
        slots.push(MemberSlot::gone());
    }
    slots[slot] = new;
}

/// Refuses a further member while another joins, or when the member table is full.
pub(super) fn check_place(slots: &[MemberSlot], label: &Superblock) -> Result<(), AttachError> {
    if let Some(slot) = slots.iter().position(|it| it.state == MemberState::Joining) {
        return Err(ReplaceError::Joins { slot }.into());
    }
    let has_room = label.members.iter().any(Member::is_gone)
        || label.members.len() + label.spares.len() < MEMBERS_MAX;
    if has_room { Ok(()) } else { Err(AttachError::TooManyMembers) }
}

fn may_detach(
    slots: &[MemberSlot],
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

/// Refuses a detachment that loses contents (AD2).
fn check_others(slots: &[MemberSlot], own: &Slots, slot: usize) -> Result<(), DetachError> {
    let state_of = |slot: usize| slots.get(slot).map_or(MemberState::Gone, |slot| slot.state);
    let is_online = |slot: usize| state_of(slot) == MemberState::Online;
    let mut others = own.iter().filter(|other| *other != slot);
    let lacking = match is_online(slot) {
        true => others.find(|other| !is_online(*other)),
        // To lose an absent member, one online member is enough: it has all contents.
        false if others.clone().any(is_online) => None,
        false => others.next(),
    };
    let refusal = |other| DetachError::Others { other, state: state_of(other).word() };
    lacking.map_or(Ok(()), |other| Err(refusal(other)))
}

/// Returns what to do instead of detaching a device from a disk group that is no mirror.
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
