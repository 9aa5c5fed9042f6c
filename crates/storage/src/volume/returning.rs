//! The return of an absent member. It is joining, like a replacement (`joining.rs`), but keeps its
//! contents, and only pieces that its map of stale parts includes are rebuilt.
//!
//! # Invariants
//!
//! - RN1: A device returns only to the slot with its id, with a label of the pool's history, and
//!   without unanswered requests: none of them may overwrite later contents.
//! - RN2: The map of a member is kept until the labels list it as online. If the member leaves
//!   before, later stale parts are added to the map.
//! - RN3: A member whose label is older than at its departure is an outdated copy: its map is not
//!   valid, and it gets a full rebuild. So does a member whose absence is older than the history in
//!   the labels (MJ9).
//! - RN4: A page of data that is unreadable on all other members stays as it is on a returning
//!   member. Whether it is right is left to the checksums of blocks.
//! - RN5: Until its piece is rebuilt, a returning member may serve to repair damage on the others.
//!   Its contents are used only if proven current: a block by the checksum in a summary or pointer,
//!   a page of metadata by the LSN in its LSN page. A checksum in the page itself proves nothing.
//!
//! # Crashes
//!
//! The label of the member is written after those of the others, both when it becomes joining and
//! when it becomes online. If a crash prevents that, the other labels list the member.
//!
//! Parts outside the map are durable on the member (MS5, decision 0064). After a crash the member
//! is joining, with its map and its cursor, and the rebuild resumes.

use super::Membership;
use format::members::MemberState;
use format::missed::StaleParts;
use format::superblock::Superblock;
use runtime::{if_planted, planted};

use super::joining::ReplaceError;
use super::set::LabelChange;
use super::slot::MemberSlot;
use crate::device::{DeviceError, SharedDevice};
use crate::members::{LabelledDevice, MembersError, is_forgotten, judge_return};
use crate::pool::{PoolError, read_superblock};

/// Why a member cannot return.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReturnError {
    /// The device could not replace a member either.
    #[error(transparent)]
    Unfit(#[from] ReplaceError),
    /// The member is online, or in a rebuild.
    #[error("the member in slot {slot} is not away: there is nothing to bring back")]
    NotAway {
        /// Slot.
        slot: usize,
    },
    /// Name the device by its path.
    #[error("the member in slot {slot} was not found: attach it, and name it by its path")]
    NotThere {
        /// Slot.
        slot: usize,
    },
    /// Wait for the answers.
    #[error(
        "{device}: {requests} requests from before are not answered, and may still change what is \
         on it; try again when the device answers, or mount the pool again"
    )]
    Unanswered {
        /// Device name.
        device: String,
        /// Number of requests.
        requests: u64,
    },
    /// The device is of another pool or history.
    #[error(transparent)]
    Member(#[from] MembersError),
    /// The label is unreadable, or of another device.
    #[error(transparent)]
    Label(#[from] PoolError),
    /// A member error: the pool must stop writing.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Membership<'_> {
    /// Brings back the member on `device`, and returns its slot. The member gets every write from
    /// now on.
    /// [`Membership::rebuild_pieces`](crate::volume::membership::Membership::rebuild_pieces)
    /// rebuilds the pieces for which
    /// [`Membership::must_rebuild`](crate::volume::membership::Membership::must_rebuild) is true,
    /// and [`Membership::end_join`](crate::volume::membership::Membership::end_join) makes the
    /// member online.
    ///
    /// # Errors
    ///
    /// See [`ReturnError`]. Nothing was written to the device.
    pub fn begin_return(&self, device: SharedDevice) -> Result<usize, ReturnError> {
        let members = self.members().ok_or(ReplaceError::NotSeveral)?;
        let name = device.info().name.clone();
        let found = LabelledDevice::new(name, read_superblock(device.as_ref())?);
        // Read without a lock, because a slot belongs to one member while it is listed (MB1).
        let (pool, id) = (members.label(), found.label.device_id());
        let last = pool.and_then(|pool| pool.members.iter().position(|member| member.id == id));
        let mut judged = Err(ReplaceError::NotSeveral.into());
        // Completes requests whose answers no caller has collected (RN1).
        if members.all().iter().any(|slot| slot.is_away() && slot.unanswered() > 0) {
            members.end_writes();
        }
        members.change_last(last, |slots, label| {
            judged = self.judge_absent(slots, label, &found, &device);
            let Ok(slot) = judged else { return LabelChange::Nothing };
            let (Some(at), Some(member)) = (slots.get_mut(slot), label.members.get_mut(slot))
            else {
                return LabelChange::Nothing;
            };
            if found.name.starts_with('/') {
                member.set_path(found.name.as_bytes());
            }
            // Writes in flight may have begun while the member was absent.
            let mut in_flight = members.in_flight();
            if_planted!(InFlightNotMissed, in_flight = StaleParts::NONE);
            // Full rebuild of an outdated copy (RN3).
            let is_older = found.label.sequence < member.left_at && !planted!(OlderCopyBelieved);
            let is_older = is_older || is_forgotten(label, found.judged_by(label));
            let missed = at.missed.filter(|_| !is_older).map(|missed| missed.with(in_flight));
            *at = MemberSlot::new(Some(device), MemberState::Joining);
            at.missed = missed;
            LabelChange::States
        })?;
        if let Ok(slot) = judged {
            self.forget_failures(slot);
        }
        judged
    }

    /// Returns the slot of the absent member on `device`. LOCK: under the label's lock.
    fn judge_absent(
        &self,
        slots: &[MemberSlot],
        label: &Superblock,
        found: &LabelledDevice,
        device: &SharedDevice,
    ) -> Result<usize, ReturnError> {
        let settled = label.sequence;
        let pool = LabelledDevice {
            name: self.name().to_owned(),
            label: label.clone(),
            settled,
            before: None,
        };
        let slot = judge_return(&pool, found)?;
        self.check_fits(label, slot, device)?;
        if let Some(slot) = slots.iter().position(|slot| slot.state == MemberState::Joining) {
            return Err(ReplaceError::Joins { slot }.into());
        }
        let old = slots.get(slot).ok_or(ReplaceError::NoSlot { slot })?;
        if !old.is_away() {
            return Err(ReturnError::NotAway { slot });
        }
        // They could overwrite later contents (RN1).
        let requests = old.unanswered();
        if requests > 0 {
            return Err(ReturnError::Unanswered { device: found.name.clone(), requests });
        }
        Ok(slot)
    }

    /// Brings back the member in `slot`, whose device is still open.
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

    /// Returns the slot of a member that the open marked missing although its device was present.
    #[must_use]
    pub fn found_again(&self) -> Option<usize> {
        let members = self.members().filter(|members| members.is_degraded())?;
        let is_it = |slot: &MemberSlot| slot.state == MemberState::Missing && slot.device.is_some();
        members.all().iter().position(is_it)
    }

    /// Whether the joining member in `slot` is a returning one.
    #[must_use]
    pub fn is_returning(&self, slot: usize) -> bool {
        let view = self.members().map(|members| members.all());
        let at = view.as_ref().and_then(|view| view.get(slot));
        at.is_some_and(|at| at.state == MemberState::Joining && at.missed.is_some())
    }

    /// Whether the joining member in `slot` stores any of a piece, and for a returning member any
    /// that is stale.
    #[must_use]
    pub fn must_rebuild(&self, slot: usize, piece: &std::ops::Range<u64>) -> bool {
        let Some(members) = self.members() else { return false };
        let view = members.all();
        let has_share = self.composite().is_none_or(|it| it.has_share(slot, piece));
        has_share && view.get(slot).is_none_or(|at| members.has_missed(at, piece))
    }
}
