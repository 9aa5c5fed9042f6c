//! A ticket with several waiters: the caller of a write, and a job that needs the range.
//!
//! # Invariants
//!
//! - SHT1: The first waiter waits for the device, and does the work that follows the answer: it
//!   marks a failed member, or makes stale parts durable. Others wait for this thread, and get a
//!   copy of its answer.
//!
//! # Concurrency
//!
//! LOCK: the state stays locked during the wait and while labels are written, so the label's lock
//! is taken after it. A thread that holds the label's lock must not wait here.

use std::sync::{Arc, Weak};

use runtime::sync::Mutex;

use crate::device::{DeviceCompletion, DeviceError, PendingRequest, Ticket};

enum SharedTicketState {
    InFlight(Ticket),
    /// A thread waits, and has the state locked. Another thread sees this only after a panic.
    Awaited,
    Answered(Result<(), DeviceError>),
}

pub(super) struct SharedTicket(Mutex<SharedTicketState>);

impl std::fmt::Debug for SharedTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SharedTicket")
    }
}

impl SharedTicket {
    /// Shares the ticket of a request without a buffer. `make` gets a reference for other waiters.
    pub(super) fn of(make: impl FnOnce(Weak<SharedTicket>) -> Ticket) -> Arc<SharedTicket> {
        Arc::new_cyclic(|own| {
            SharedTicket(Mutex::new(SharedTicketState::InFlight(make(Weak::clone(own)))))
        })
    }

    /// Waits for the answer. Later calls return a copy (SHT1).
    pub(super) fn wait(&self) -> Result<(), DeviceError> {
        let mut state = self.0.lock();
        let answer = match std::mem::replace(&mut *state, SharedTicketState::Awaited) {
            SharedTicketState::InFlight(ticket) => ticket.wait().map(drop),
            SharedTicketState::Answered(answer) => answer,
            SharedTicketState::Awaited => {
                let device = "a request whose thread has ended".to_owned();
                Err(DeviceError::Failed { device })
            }
        };
        *state = SharedTicketState::Answered(answer.clone());
        answer
    }

    pub(super) fn ticket(self: Arc<SharedTicket>) -> Ticket {
        struct SharedTicketRequest(Arc<SharedTicket>);
        impl PendingRequest for SharedTicketRequest {
            fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
                self.0.wait().map(|()| DeviceCompletion::default())
            }
        }
        Ticket::new(Box::new(SharedTicketRequest(self)))
    }
}

/// Waits for those of `tickets` that are still in use.
pub(super) fn wait_all(tickets: Vec<Weak<SharedTicket>>) {
    for ticket in tickets.iter().filter_map(Weak::upgrade) {
        drop(ticket.wait());
    }
}
