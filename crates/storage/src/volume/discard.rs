//! Discards: unused ranges of allocation groups are given back to the devices.
//!
//! # Invariants
//!
//! - DQ1: A discard completes when every member has answered, since any of them may change its
//!   range until then (D6). If one answer is an expired deadline, so is that of the discard.
//! - DQ2: A member that does not support discard, or fails one, stays online, is not stale, and
//!   keeps its contents. So copies of a discarded range may differ.
//! - DQ3: A discard counts as a write in flight: it waits for holds (RH1), and members do not
//!   change meanwhile.
//! - DQ4: Disk groups of kind raid5 and stripe are not discarded: parity would not match.
//!
//! Not here: which ranges are free, and that they stay unused until the answer (`engine`, `alloc`).

use std::sync::Arc;

use format::ids::Place;

use super::Volume;
use super::ranges::InFlightWrite;
use crate::device::{
    DeviceCompletion, DeviceError, DeviceOperation, IoPurpose, PendingRequest, RequestKind, Ticket,
};

pub(super) struct PendingDiscard {
    pub(super) tickets: Vec<Ticket>,
    pub(super) in_flight: Option<InFlightWrite>,
}

impl PendingRequest for PendingDiscard {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let PendingDiscard { tickets, in_flight } = *self;
        let answers = tickets.into_iter().map(Ticket::wait);
        // Waits for every answer (DQ1).
        let answers: Vec<Result<DeviceCompletion, DeviceError>> = answers.collect();
        drop(in_flight);
        together(answers)
    }
}

/// Combines all answers: an expiry if there is one, else a success if there is one.
fn together(
    answers: Vec<Result<DeviceCompletion, DeviceError>>,
) -> Result<DeviceCompletion, DeviceError> {
    let is_expired =
        |answer: &Result<_, DeviceError>| matches!(answer, Err(DeviceError::Expired { .. }));
    let is_expiry_there = answers.iter().any(is_expired);
    let mut chosen = answers.into_iter().filter(|answer| is_expired(answer) == is_expiry_there);
    let first = chosen.next().unwrap_or_else(|| Ok(DeviceCompletion::default()));
    chosen.fold(first, |one, other| one.or(other))
}

impl Volume {
    /// Whether `group` may be discarded (DQ4).
    #[must_use]
    pub fn may_discard(&self, group: u32) -> bool {
        !self.is_read_only() && !self.geometry().group_layout().is_striped(group)
    }

    /// Whether `place` lies on sparse files only, where a discard frees space.
    #[must_use]
    pub fn is_sparse(&self, place: Place) -> bool {
        let Some(composite) = self.composite() else { return self.device().info().is_sparse };
        let Some(offset) = self.geometry().device_offset(place, 1) else { return false };
        let view = composite.members_at(offset).view();
        let mut devices = view.iter().filter_map(|slot| slot.device.as_ref()).peekable();
        devices.peek().is_some() && devices.all(|device| device.info().is_sparse)
    }

    /// Starts to discard `fragments` at `place`, whole unused pages. They must stay unused until
    /// the answer, and for good after [`DeviceError::Expired`].
    pub fn submit_discard(&self, place: Place, fragments: u32) -> Ticket {
        let length_bytes = u64::from(fragments) << self.geometry().fragment_shift;
        match self.offset_of(RequestKind::Discard, place, length_bytes) {
            Ok(offset) if self.may_discard(place.group()) => {
                let discard = DeviceOperation::Discard { offset, length_bytes };
                Arc::clone(self.device()).submit(IoPurpose::Cleaner, discard)
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

    fn expired() -> Result<DeviceCompletion, DeviceError> {
        Err(DeviceError::Expired {
            device: "disk".to_owned(),
            kind: RequestKind::Discard,
            offset: 0,
            length_bytes: 4096,
            waited_ms: 1,
        })
    }

    fn refused() -> Result<DeviceCompletion, DeviceError> {
        Err(DeviceError::NoDiscard { device: "disk".to_owned() })
    }

    /// Goal: the caller sees an expiry (DQ1), and a refusal hides no success (DQ2).
    #[test]
    fn an_expiry_counts_most_and_a_refusal_least() {
        let ok = || Ok(DeviceCompletion::default());
        let is_expired = |answers| matches!(together(answers), Err(DeviceError::Expired { .. }));
        assert!(is_expired(vec![ok(), expired(), refused()]));
        assert!(is_expired(vec![refused(), expired()]));
        assert!(together(vec![refused(), ok()]).is_ok());
        assert!(together(vec![ok(), refused()]).is_ok());
        let both = together(vec![refused(), refused()]);
        assert!(matches!(both, Err(DeviceError::NoDiscard { .. })), "{both:?}");
    }
}
