//! A member that was away comes back, and gets what it has missed.
//!
//! It is joining from then on, as a device that takes the place of another is (`joining.rs`); but
//! it still has what was written before it went, so only pieces in which the map of the labels has
//! a part are made anew.
//!
//! # Invariants
//!
//! - RN1: A device comes back only to the slot whose id it has, with a label of the pool's history,
//!   and while no request to it is unanswered: none of them may land later than what it gets now.
//! - RN2: The map of a member lives until the labels call it online. One that goes again meanwhile
//!   keeps all of it, and what it misses then besides.
//! - RN3: A member whose label is older than the one it had when it went is not what went, but an
//!   older copy of it: what its map says does not hold, and it gets everything. So does one that
//!   was away for longer than labels remember (MJ9).
//! - RN4: Where no other member gives a page of data, a member that comes back keeps its own as it
//!   is: it may be right, and is told from another by the checks of blocks.
//! - RN5: What the others do not give as it should be is looked for on a member that comes back
//!   before its piece is made anew. It is taken if it is what is there now: a block by the check
//!   that a summary or a pointer has of it, a page of metadata by the LSN that its LSN page lists.
//!   What verifies in itself alone may be of before, and is never taken.
//!
//! # Crashes
//!
//! The label of the member is written when those of the others say that it is joining, and later
//! that it is online: one that is lost in between is a member that they know.
//!
//! What the map does not have is on the member as it was durable there: MS5, and decision 0064. A
//! crash in the middle leaves it joining, with its map and its cursor, and the walk goes on.

use format::members::MemberState;
use format::missed::Parts;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use super::Volume;
use super::joining::ReplaceError;
use super::set::Change;
use super::slot::Slot;
use crate::device::{DeviceError, SharedDevice};
use crate::members::{Found, MembersError, is_forgotten, judge_return};
use crate::pool::{PoolError, read_superblock};

/// Why a member cannot come back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnError {
    /// What a new device could not be either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// It has all that it should have, or gets it.
    #[error("the member in slot {slot} is not away: there is nothing to bring back")]
    NotAway {
        /// Which one.
        slot: usize,
    },
    /// Name the device by its path.
    #[error("the member in slot {slot} was not found: attach it, and name it by its path")]
    NotThere {
        /// Which one.
        slot: usize,
    },
    /// Wait until they are.
    #[error(
        "{device}: {requests} requests from before are not answered, and may still change what is \
         on it; try again when the device answers, or mount the pool again"
    )]
    Unanswered {
        /// Its name.
        device: String,
        /// How many.
        requests: u64,
    },
    /// It is not of this pool, or of another history.
    #[error(transparent)]
    Member(#[from] MembersError),
    /// Its label cannot be read: it is of no use, or another device.
    #[error(transparent)]
    Label(#[from] PoolError),
    /// What a member said that the layout needs: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Volume {
    /// Brings back the member that `device` is. It gets every write from now on;
    /// [`Volume::remake_pieces`] is to make what it missed anew ([`Volume::must_remake`]), and then
    /// [`Volume::end_join`] says so. Returns its slot.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`]; nothing was written to the device then.
    pub fn begin_return(&self, device: SharedDevice) -> Result<usize, ReturnError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let name = device.info().name.clone();
        let found = Found::new(name, read_superblock(device.as_ref())?);
        // A slot is one member's for as long as it is there (MB1): the lock is not needed for it.
        let (pool, id) = (members.label(), found.label.device_id());
        let last = pool.and_then(|pool| pool.members.iter().position(|member| member.id == id));
        let mut judged = Err(ReplaceError::NotSeveral.into());
        // RN1: what it was sent before it went may be answered, and not collected.
        if members.all().iter().any(|slot| slot.is_away() && slot.unanswered() > 0) {
            members.end_writes();
        }
        members.change_last(last, |slots, label| {
            judged = self.judge_absent(slots, label, &found, &device);
            let Ok(slot) = judged else { return Change::Nothing };
            let (Some(at), Some(member)) = (slots.get_mut(slot), label.members.get_mut(slot))
            else {
                return Change::Nothing;
            };
            if found.name.starts_with('/') {
                member.set_path(found.name.as_bytes());
            }
            // A write that is in flight may have begun without it, and no more may begin now.
            let in_flight = if planted::is(Planted::InFlightNotMissed) {
                Parts::NONE
            } else {
                members.in_flight()
            };
            // RN3.
            let is_older =
                found.label.sequence < member.left_at && !planted::is(Planted::OlderCopyBelieved);
            let is_older = is_older || is_forgotten(label, found.judged_by(label));
            let missed = at.missed.filter(|_| !is_older).map(|missed| missed.with(in_flight));
            *at = Slot::new(Some(device), MemberState::Joining);
            at.missed = missed;
            Change::States
        })?;
        if let Ok(slot) = judged {
            self.forget_failures(slot);
        }
        judged
    }

    /// Returns the slot of the member that a device is which comes back, by what the members and
    /// the label are now. Called with the label's lock held.
    fn judge_absent(
        &self,
        slots: &[Slot],
        label: &Superblock,
        found: &Found,
        device: &SharedDevice,
    ) -> Result<usize, ReturnError> {
        let settled = label.sequence;
        let pool =
            Found { name: self.name().to_owned(), label: label.clone(), settled, before: None };
        let slot = judge_return(&pool, found)?;
        self.check_fits(label, slot, device)?;
        if let Some(slot) = slots.iter().position(|slot| slot.state == MemberState::Joining) {
            return Err(ReplaceError::Joins { slot }.into());
        }
        let old = slots.get(slot).ok_or(ReplaceError::NoSlot { slot })?;
        if !old.is_away() {
            return Err(ReturnError::NotAway { slot });
        }
        // RN1.
        let requests = old.unanswered();
        if requests > 0 {
            return Err(ReturnError::Unanswered { device: found.name.clone(), requests });
        }
        Ok(slot)
    }

    /// Brings back the member in `slot`, whose device was there at the open, or has not failed
    /// since.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`].
    pub fn begin_return_of(&self, slot: usize) -> Result<(), ReturnError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let view = members.all();
        let at = view.get(slot).ok_or(ReplaceError::NoSlot { slot })?;
        if !at.is_away() {
            return Err(ReturnError::NotAway { slot });
        }
        let device = at.device.clone().ok_or(ReturnError::NotThere { slot })?;
        self.begin_return(device).map(drop)
    }

    /// Returns the slot of a member that was missing and whose device was found at the open.
    #[must_use]
    pub fn found_again(&self) -> Option<usize> {
        let members = self.members().filter(|members| members.is_degraded())?;
        let is_it = |slot: &Slot| slot.state == MemberState::Missing && slot.device.is_some();
        members.all().iter().position(is_it)
    }

    /// Whether the joining member in `slot` still has what it had when it went: it has come back.
    #[must_use]
    pub fn is_returning(&self, slot: usize) -> bool {
        let view = self.members().map(|members| members.all());
        let at = view.as_ref().and_then(|view| view.get(slot));
        at.is_some_and(|at| at.state == MemberState::Joining && at.missed.is_some())
    }

    /// Whether a piece is to be made anew for the joining member in `slot`: all pieces, but for one
    /// that has come back.
    #[must_use]
    pub fn must_remake(&self, slot: usize, piece: &std::ops::Range<u64>) -> bool {
        let Some(members) = self.members() else { return false };
        let view = members.all();
        let has_share = self.composite().is_none_or(|it| it.has_share(slot, piece));
        has_share && view.get(slot).is_none_or(|at| members.has_missed(at, piece))
    }
}
