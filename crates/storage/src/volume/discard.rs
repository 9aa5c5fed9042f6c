//! Discards: ranges of groups whose content is not needed go back to the devices.
//!
//! # Invariants
//!
//! - DQ1: A discard is answered when every member has answered it: until then any of them may still
//!   change its range (D6). If one answer is an expiry, the discard has expired.
//! - DQ2: A member that does not support discard, or fails one, stays online, has missed nothing,
//!   and keeps its content. So copies of a discarded range may differ.
//! - DQ3: A discard counts as a write in flight: a range that a rebuild or a repair holds is not
//!   discarded (RH1), and members do not change meanwhile.
//! - DQ4: Disk groups of kind raid5 and stripe are not discarded: in a raid5 the parity of a
//!   discarded row would not match.
//!
//! Not here: which ranges are free, and that they stay unused until the answer (`engine`, `alloc`).

use std::sync::Arc;

use format::ids::Place;
use runtime::planted::{self, Planted};

use super::Volume;
use super::ranges::InFlight;
use crate::device::{
    Completion, DeviceError, Operation, PendingRequest, Purpose, RequestKind, Ticket,
};

/// A discard of several members.
pub(super) struct Discarding {
    pub(super) tickets: Vec<Ticket>,
    pub(super) in_flight: Option<InFlight>,
}

impl PendingRequest for Discarding {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let Discarding { tickets, in_flight } = *self;
        let awaited = if planted::is(Planted::OneDiscardAwaited) { 1 } else { tickets.len() };
        let answers = tickets.into_iter().take(awaited).map(Ticket::wait);
        // DQ1.
        let answers: Vec<Result<Completion, DeviceError>> = answers.collect();
        drop(in_flight);
        together(answers)
    }
}

/// Returns one answer for those of several members: an expiry if there is one, else a success.
fn together(answers: Vec<Result<Completion, DeviceError>>) -> Result<Completion, DeviceError> {
    let is_expired =
        |answer: &Result<_, DeviceError>| matches!(answer, Err(DeviceError::Expired { .. }));
    let is_expiry_there = answers.iter().any(is_expired);
    let mut chosen = answers.into_iter().filter(|answer| is_expired(answer) == is_expiry_there);
    let first = chosen.next().unwrap_or_else(|| Ok(Completion::default()));
    chosen.fold(first, |one, other| one.or(other))
}

impl Volume {
    /// Whether what lies in `group` may be discarded (DQ4).
    #[must_use]
    pub fn may_discard(&self, group: u32) -> bool {
        !self.is_read_only() && !self.geometry().is_striped(group)
    }

    /// Whether `place` lies on files with holes alone, to which a discard gives back room.
    #[must_use]
    pub fn is_sparse(&self, place: Place) -> bool {
        let Some(composite) = self.composite() else { return self.device().info().is_sparse };
        let Some(offset) = self.geometry().device_offset(place, 1) else { return false };
        let view = composite.members_at(offset).view();
        let mut devices = view.iter().filter_map(|slot| slot.device.as_ref()).peekable();
        devices.peek().is_some() && devices.all(|device| device.info().is_sparse)
    }

    /// Starts to discard `fragments` from `place` on: whole pages of segments that nobody reads or
    /// writes before the answer, nor after one that is [`DeviceError::Expired`].
    pub fn submit_discard(&self, place: Place, fragments: u32) -> Ticket {
        let length_bytes = u64::from(fragments) << self.geometry().fragment_shift;
        match self.offset_of(RequestKind::Discard, place, length_bytes) {
            Ok(offset) if self.may_discard(place.group()) => {
                let discard = Operation::Discard { offset, length_bytes };
                Arc::clone(self.device()).submit(Purpose::Cleaner, discard)
            }
            Ok(_) => {
                let device = self.name().to_owned();
                Ticket::ready(Err(DeviceError::NoDiscard { device }))
            }
            Err(error) => Ticket::ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expired() -> Result<Completion, DeviceError> {
        Err(DeviceError::Expired {
            device: "disk".to_owned(),
            kind: RequestKind::Discard,
            offset: 0,
            length_bytes: 4096,
            waited_ms: 1,
        })
    }

    fn refused() -> Result<Completion, DeviceError> {
        Err(DeviceError::NoDiscard { device: "disk".to_owned() })
    }

    /// DQ1, DQ2: whoever asked must know of an expiry, and one that refuses hides no success.
    #[test]
    fn an_expiry_counts_most_and_a_refusal_least() {
        let ok = || Ok(Completion::default());
        let is_expired = |answers| matches!(together(answers), Err(DeviceError::Expired { .. }));
        assert!(is_expired(vec![ok(), expired(), refused()]));
        assert!(is_expired(vec![refused(), expired()]));
        assert!(together(vec![refused(), ok()]).is_ok());
        assert!(together(vec![ok(), refused()]).is_ok());
        let both = together(vec![refused(), refused()]);
        assert!(matches!(both, Err(DeviceError::NoDiscard { .. })), "{both:?}");
    }
}
