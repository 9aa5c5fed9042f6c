//! A ticket for which several may wait: the caller of a write, and a job that needs the range.
//!
//! # Invariants
//!
//! - SHT1: The device is waited for once, by the thread that comes first, and what follows an
//!   answer (a failure settled, a missed mark made durable) is done by that thread. Every other one
//!   waits for it, and gets the same answer.
//!
//! # Concurrency
//!
//! LOCK: the state is locked while the device is waited for and while labels are written, so the
//! lock of the label is behind it: no thread that holds the label waits here.

use std::sync::{Arc, Weak};

use runtime::sync::Mutex;

use crate::device::{Completion, DeviceError, PendingRequest, Ticket};

enum State {
    InFlight(Ticket),
    /// A thread waits, with the state locked. Seen only if that thread has ended meanwhile.
    Awaited,
    Answered(Result<(), DeviceError>),
}

/// See the module's header.
pub(super) struct SharedTicket(Mutex<State>);

impl std::fmt::Debug for SharedTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedTicket")
    }
}

impl SharedTicket {
    /// Shares the ticket of a request that returns no buffer. `make` is given what others find it
    /// by.
    pub(super) fn of(make: impl FnOnce(Weak<SharedTicket>) -> Ticket) -> Arc<SharedTicket> {
        Arc::new_cyclic(|own| SharedTicket(Mutex::new(State::InFlight(make(Weak::clone(own))))))
    }

    /// Waits for the answer, or returns what it was (SHT1).
    ///
    /// # Errors
    ///
    /// What the device said, or what it came to.
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        let mut state = self.0.lock();
        let answer = match std::mem::replace(&mut *state, State::Awaited) {
            State::InFlight(ticket) => ticket.wait().map(drop),
            State::Answered(answer) => answer,
            State::Awaited => {
                let device = "a request whose thread has ended".to_owned();
                Err(DeviceError::Failed { device })
            }
        };
        *state = State::Answered(answer.clone());
        answer
    }

    /// Returns the ticket of the caller.
    pub(super) fn ticket(self: Arc<SharedTicket>) -> Ticket {
        struct Caller(Arc<SharedTicket>);
        impl PendingRequest for Caller {
            fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
                self.0.wait().map(|()| Completion::default())
            }
        }
        Ticket::new(Box::new(Caller(self)))
    }
}

/// Waits for those of `tickets` whose caller still has them. What they came to the caller is told.
pub(super) fn wait_all(tickets: Vec<Weak<SharedTicket>>) {
    for ticket in tickets.iter().filter_map(Weak::upgrade) {
        drop(ticket.wait());
    }
}
