//! Which writes are durable on one member, with several flushes and write-throughs in flight.
//!
//! # Invariants
//!
//! - FL1: A flush completes and counts only if all durable requests in flight with it have
//!   completed without error, because a device reports a failure to one request only (D3).
//! - FL2: Of a member that fails or goes missing, every write counts as lost since the flush that
//!   was the last before a durable request began that has not succeeded.
//!
//! # Concurrency
//!
//! A request counts as in flight from before its submission, which may already consume the report
//! of a failure. The first waiter waits for the device, and others for that waiter, so there is no
//! cycle. LOCK: the lock of a request is held during its submission, and while a thread waits for
//! the device. After it only `state` is locked.

use std::sync::Arc;

use parking_lot::Mutex as PlainMutex;
use runtime::planted;
use runtime::sync::Mutex;

use crate::device::{DeviceError, Ticket};

/// A durable request: a flush or a write-through.
#[derive(Debug)]
pub(super) struct DurableRequest {
    /// Number of the last completed flush when the request began.
    flushed_before: u64,
    asked: Mutex<DurableRequestState>,
}

#[derive(Debug)]
enum DurableRequestState {
    InFlight(Ticket),
    Answered(Result<(), DeviceError>),
}

impl DurableRequest {
    /// Waits for the answer. Later calls return a copy.
    fn wait(&self) -> Result<(), DeviceError> {
        let mut asked = self.asked.lock();
        let answer = match std::mem::replace(&mut *asked, DurableRequestState::Answered(Ok(()))) {
            DurableRequestState::InFlight(ticket) => ticket.wait().map(drop),
            DurableRequestState::Answered(answer) => answer,
        };
        *asked = DurableRequestState::Answered(answer.clone());
        answer
    }
}

#[derive(Debug, Default)]
struct DurableState {
    flushed: u64,
    /// Requests without a waiter so far.
    in_flight: Vec<Arc<DurableRequest>>,
    /// The first failure, and `flushed_before` of its request.
    failed: Option<(DeviceError, u64)>,
}

#[derive(Debug, Default)]
pub(super) struct DurableRequests {
    /// Plain lock, because it is never held across a scheduling point.
    state: PlainMutex<DurableState>,
}

impl DurableRequests {
    fn new_one(&self) -> Arc<DurableRequest> {
        let flushed_before = self.state.lock().flushed;
        Arc::new(DurableRequest {
            flushed_before,
            asked: Mutex::new(DurableRequestState::Answered(Ok(()))),
        })
    }

    pub(super) fn send_one(&self, submit: impl FnOnce() -> Ticket) -> Arc<DurableRequest> {
        let durable = self.new_one();
        let mut asked = durable.asked.lock();
        self.state.lock().in_flight.push(Arc::clone(&durable));
        *asked = DurableRequestState::InFlight(submit());
        drop(asked);
        durable
    }

    /// Sends requests. Those that `which` marks as durable are registered before (FL1).
    pub(super) fn send(
        &self,
        which: &[bool],
        submit: impl FnOnce() -> Vec<Ticket>,
    ) -> Vec<Result<Arc<DurableRequest>, Ticket>> {
        let durables: Vec<Option<Arc<DurableRequest>>> =
            which.iter().map(|is_durable| is_durable.then(|| self.new_one())).collect();
        let held: Vec<_> = durables
            .iter()
            .map(|durable| durable.as_ref().map(|durable| durable.asked.lock()))
            .collect();
        self.state.lock().in_flight.extend(durables.iter().flatten().cloned());
        let tickets = submit();
        let ended = held.into_iter().zip(tickets).map(|(held, ticket)| match held {
            Some(mut asked) => {
                *asked = DurableRequestState::InFlight(ticket);
                None
            }
            None => Some(ticket),
        });
        let others: Vec<Option<Ticket>> = ended.collect();
        let both = durables.into_iter().zip(others);
        both.filter_map(|(durable, other)| durable.map(Ok).or(other.map(Err))).collect()
    }

    pub(super) fn wait(&self, durable: &Arc<DurableRequest>) -> Result<(), DeviceError> {
        let answer = durable.wait();
        let mut state = self.state.lock();
        state.in_flight.retain(|other| !Arc::ptr_eq(other, durable));
        if let (Err(error), None) = (&answer, &state.failed) {
            state.failed = Some((error.clone(), durable.flushed_before));
        }
        answer
    }

    /// Records the completion of flush number `flush` (FL1).
    ///
    /// # Errors
    ///
    /// A failure of a durable request in flight with it, or earlier: the flush does not count.
    pub(super) fn note_flushed(&self, flush: u64) -> Result<(), DeviceError> {
        let beside = self.state.lock().in_flight.clone();
        // Each wait records its failure in `state`.
        beside.iter().for_each(|other| drop(self.wait(other)));
        let mut state = self.state.lock();
        let failed = state.failed.as_ref();
        if let Some((error, _)) = failed.filter(|_| !planted!(FlushBesideFailureCounts)) {
            return Err(error.clone());
        }
        state.flushed = state.flushed.max(flush);
        Ok(())
    }

    /// Returns the number of the last flush that counts (FL2).
    pub(super) fn flushed(&self) -> u64 {
        let state = self.state.lock();
        let in_flight = state.in_flight.iter().map(|durable| durable.flushed_before);
        let failed = state.failed.as_ref().map(|(_, before)| *before);
        in_flight.chain(failed).fold(state.flushed, u64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(
        of: &DurableRequests,
        submit: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Arc<DurableRequest> {
        let answer = || submit().map(|()| crate::device::DeviceCompletion::default());
        of.send_one(|| Ticket::ready(answer()))
    }

    fn begun(of: &DurableRequests, answer: Result<(), DeviceError>) -> Arc<DurableRequest> {
        sent(of, || answer)
    }

    fn failure() -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "d".to_owned() })
    }

    #[test]
    fn a_flush_counts_if_none_that_was_in_flight_with_it_has_failed() {
        let of = DurableRequests::default();
        let first = begun(&of, Ok(()));
        of.wait(&first).expect("it succeeds");
        of.note_flushed(1).expect("it was alone");
        let second = begun(&of, Ok(()));
        let third = begun(&of, Ok(()));
        of.wait(&third).expect("it succeeds");
        of.note_flushed(3).expect("the second succeeds too");
        of.wait(&second).expect("it has succeeded");
        assert_eq!(of.flushed(), 3);
        let fourth = begun(&of, failure());
        assert_eq!(of.flushed(), 3);
        let fifth = begun(&of, Ok(()));
        of.wait(&fifth).expect("the device says so");
        of.note_flushed(5).expect_err("the fourth fails");
        of.wait(&fourth).expect_err("it has failed");
        assert_eq!(of.flushed(), 3, "what was written since may be lost");
        of.note_flushed(6).expect_err("nothing is believed any more");
    }

    /// Goal: a flush with another in flight, which fails later, makes nothing durable. The lost
    /// writes begin with the flush before both.
    #[test]
    fn what_is_in_flight_when_a_member_goes_makes_nothing_durable() {
        let of = DurableRequests::default();
        let _in_flight = begun(&of, failure());
        of.state.lock().flushed = 7;
        assert_eq!(of.flushed(), 0);
    }

    /// Goal: a flush whose error the device reports during its submission is in flight with
    /// another. Method: the other completes, or waits, during the submission.
    #[test]
    fn a_flush_that_is_being_sent_is_in_flight() {
        let of = DurableRequests::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let fails = sent(&of, || {
                let of = &of;
                scope.spawn(move || sender.send(of.note_flushed(2).is_ok()));
                // The other flush must not complete before this failure is known.
                let early = receiver.recv_timeout(std::time::Duration::from_millis(200));
                assert!(early.is_err(), "the other was answered: {early:?}");
                failure()
            });
            let other = receiver.recv().expect("it ends now");
            assert!(!other, "it was in flight with one that failed");
            of.wait(&fails).expect_err("it has failed");
        });
        assert_eq!(of.flushed(), 0);
    }
}
