//! What a member has made durable, where several requests that say so are in flight at once.
//!
//! # Invariants
//!
//! - FL1: A flush counts for a member, and is answered, when all requests to it that make something
//!   durable and were in flight with it have been answered, each with success. What could not be
//!   made durable is told to one of them, and to no later one (D3).
//! - FL2: Of what a member has not made durable when it goes it may lack all since the last flush
//!   that was done before the first of those began which have not succeeded.
//!
//! # Concurrency
//!
//! A request is in flight from before it is sent: what it says may be known to the device, and told
//! to no later one, before whoever sends it goes on. Until it is sent others wait for that.
//!
//! Whoever comes first waits for the device, and others for them: so nobody waits for somebody who
//! waits for another ticket first. LOCK: that of a request is held while it is sent and while the
//! device is waited for, and nothing of a volume is locked behind it but the state here.

use std::sync::Arc;

use parking_lot::Mutex as PlainMutex;
use runtime::planted::{self, Planted};
use runtime::sync::Mutex;

use crate::device::{DeviceError, Ticket};

/// A request that makes something durable.
#[derive(Debug)]
pub(super) struct Durable {
    /// Number of the last flush that had been done when it began.
    flushed_before: u64,
    asked: Mutex<Asked>,
}

#[derive(Debug)]
enum Asked {
    InFlight(Ticket),
    Answered(Result<(), DeviceError>),
}

impl Durable {
    /// Waits for the answer, or says what it was.
    fn wait(&self) -> Result<(), DeviceError> {
        let mut asked = self.asked.lock();
        let answer = match std::mem::replace(&mut *asked, Asked::Answered(Ok(()))) {
            Asked::InFlight(ticket) => ticket.wait().map(drop),
            Asked::Answered(answer) => answer,
        };
        *asked = Asked::Answered(answer.clone());
        answer
    }
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last flush that it has done.
    flushed: u64,
    /// Those whose answer nobody has waited for yet.
    in_flight: Vec<Arc<Durable>>,
    /// The first that was not done, and the last flush before it.
    failed: Option<(DeviceError, u64)>,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Durables {
    /// Held for a copy or an exchange only, never across a scheduling point: a plain lock.
    state: PlainMutex<State>,
}

impl Durables {
    /// Returns a request that nobody else knows yet.
    fn new_one(&self) -> Arc<Durable> {
        let flushed_before = self.state.lock().flushed;
        Arc::new(Durable { flushed_before, asked: Mutex::new(Asked::Answered(Ok(()))) })
    }

    /// Sends a request that makes something durable: `submit` does it.
    pub(super) fn send_one(&self, submit: impl FnOnce() -> Ticket) -> Arc<Durable> {
        let durable = self.new_one();
        let mut asked = durable.asked.lock();
        self.state.lock().in_flight.push(Arc::clone(&durable));
        *asked = Asked::InFlight(submit());
        drop(asked);
        durable
    }

    /// Sends requests, of which those make something durable that `which` says: `submit` does it,
    /// and returns a ticket for each. Returns them, of those that make something durable noted.
    pub(super) fn send(
        &self,
        which: &[bool],
        submit: impl FnOnce() -> Vec<Ticket>,
    ) -> Vec<Result<Arc<Durable>, Ticket>> {
        let durables: Vec<Option<Arc<Durable>>> =
            which.iter().map(|is_durable| is_durable.then(|| self.new_one())).collect();
        let held: Vec<_> = durables
            .iter()
            .map(|durable| durable.as_ref().map(|durable| durable.asked.lock()))
            .collect();
        self.state.lock().in_flight.extend(durables.iter().flatten().cloned());
        let tickets = submit();
        let ended = held.into_iter().zip(tickets).map(|(held, ticket)| match held {
            Some(mut asked) => {
                *asked = Asked::InFlight(ticket);
                None
            }
            None => Some(ticket),
        });
        let others: Vec<Option<Ticket>> = ended.collect();
        let both = durables.into_iter().zip(others);
        both.filter_map(|(durable, other)| durable.map(Ok).or(other.map(Err))).collect()
    }

    /// Waits for a request that was begun.
    pub(super) fn wait(&self, durable: &Arc<Durable>) -> Result<(), DeviceError> {
        let answer = durable.wait();
        let mut state = self.state.lock();
        state.in_flight.retain(|other| !Arc::ptr_eq(other, durable));
        if let (Err(error), None) = (&answer, &state.failed) {
            state.failed = Some((error.clone(), durable.flushed_before));
        }
        answer
    }

    /// Notes that flush number `flush` is done (FL1).
    ///
    /// # Errors
    ///
    /// What was said to another that was in flight with it, or before: it counts for nothing.
    pub(super) fn note_flushed(&self, flush: u64) -> Result<(), DeviceError> {
        let is_planted = planted::is(Planted::FlushBesideFailureCounts);
        let beside = if is_planted { Vec::new() } else { self.state.lock().in_flight.clone() };
        // What each came to is noted.
        beside.iter().for_each(|other| drop(self.wait(other)));
        let mut state = self.state.lock();
        if let Some((error, _)) = state.failed.as_ref().filter(|_| !is_planted) {
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

    fn sent(of: &Durables, submit: impl FnOnce() -> Result<(), DeviceError>) -> Arc<Durable> {
        let answer = || submit().map(|()| crate::device::Completion::default());
        of.send_one(|| Ticket::ready(answer()))
    }

    fn begun(of: &Durables, answer: Result<(), DeviceError>) -> Arc<Durable> {
        sent(of, || answer)
    }

    fn failure() -> Result<(), DeviceError> {
        Err(DeviceError::Failed { device: "d".to_owned() })
    }

    #[test]
    fn a_flush_counts_if_none_that_was_in_flight_with_it_has_failed() {
        let of = Durables::default();
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

    /// Goal: a flush that was answered while another was in flight, which fails later, makes
    /// nothing durable: what the member lacks begins with the flush before both.
    #[test]
    fn what_is_in_flight_when_a_member_goes_makes_nothing_durable() {
        let of = Durables::default();
        let _in_flight = begun(&of, failure());
        of.state.lock().flushed = 7;
        assert_eq!(of.flushed(), 0);
    }

    /// Goal: a flush of which the device has told the error while it was being sent is in flight
    /// with another that ends meanwhile. Method: the other ends, or waits, in the midst of sending.
    #[test]
    fn a_flush_that_is_being_sent_is_in_flight() {
        let of = Durables::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let fails = sent(&of, || {
                let of = &of;
                scope.spawn(move || sender.send(of.note_flushed(2).is_ok()));
                // It must not end before this one is known to have failed.
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
