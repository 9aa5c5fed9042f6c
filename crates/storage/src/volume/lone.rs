//! The device of a pool that lies on one alone, until it gets others.
//!
//! Nothing is between it and the volume but a note of the ranges that are being written: so a
//! device that is attached later is not copied to where a write of before is still under way (RH1).
//!
//! # Invariants
//!
//! - LN1: A write goes to the device itself only if it told its range before there was a layout
//!   over it; else it goes to the layout. A range of the layout is held only where no write of
//!   before is at it ([`Before`]).
//!
//! # Concurrency
//!
//! Whoever has kept the device, and whoever looked at the volume just before it changed, still ends
//! here. A write tells its range, and only then looks whether the device is its own still; that it
//! gives up before a member is attached. So either the write goes to the layout, or its range is
//! told when the member comes. What it has given up it does not keep open: the layout alone says
//! when the device goes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use runtime::planted::{self, Planted};

use super::shared_ticket::{SharedTicket, wait_all};
use crate::device::length::Lengths;
use crate::device::{
    Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose, SharedDevice,
    Ticket,
};

/// The ranges of writes that went to the one device, as long as they are in flight.
#[derive(Debug, Default)]
pub(super) struct Before(Mutex<Writes>);

/// Held for a look or a change only, never across a scheduling point: a plain lock.
#[derive(Debug, Default)]
struct Writes {
    next: u64,
    /// Each with what ends it, from when it is handed to the device.
    ranges: BTreeMap<u64, (Range<u64>, Weak<SharedTicket>)>,
}

impl Writes {
    fn at(&self, range: &Range<u64>) -> impl Iterator<Item = &Weak<SharedTicket>> {
        let (start, end) = (range.start, range.end);
        let own = self.ranges.values();
        own.filter(move |(own, _)| own.start < end && start < own.end).map(|(_, ticket)| ticket)
    }
}

impl Before {
    /// Whether a write is at any byte of `range`.
    pub(super) fn is_at(&self, range: &Range<u64>) -> bool {
        self.0.lock().at(range).next().is_some()
    }

    /// Waits for the writes at `range` that the device has: their callers may collect the answers
    /// much later.
    pub(super) fn end_writes(&self, range: &Range<u64>) {
        if !planted::is(Planted::WriteEndsWhenCollected) {
            let tickets = self.0.lock().at(range).cloned().collect();
            wait_all(tickets);
        }
    }
}

/// A write in flight, until it is dropped.
struct InFlight {
    before: Arc<Before>,
    number: u64,
}

impl InFlight {
    /// Whoever waits for `ticket` ends it.
    fn ends_with(&self, ticket: Weak<SharedTicket>) {
        if let Some((_, own)) = self.before.0.lock().ranges.get_mut(&self.number) {
            *own = ticket;
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.before.0.lock().ranges.remove(&self.number);
    }
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Lone {
    lengths: Lengths,
    /// Itself; `None`: a layout has it. Held for a copy or an exchange only: a plain lock.
    own: RwLock<Option<SharedDevice>>,
    before: Arc<Before>,
    /// What lies over the device since others came. As the other: a plain lock.
    layout: RwLock<Option<SharedDevice>>,
}

impl Lone {
    pub(super) fn new(device: SharedDevice) -> Arc<Lone> {
        let (lengths, own) = (Lengths::new(device.info().clone()), RwLock::new(Some(device)));
        Arc::new(Lone { lengths, own, before: Arc::default(), layout: RwLock::new(None) })
    }

    /// Returns the device itself; `None`: a layout has it.
    pub(super) fn own(&self) -> Option<SharedDevice> {
        self.own.read().clone()
    }

    /// Returns the writes that went to it, for the layout over it.
    pub(super) fn before(&self) -> Arc<Before> {
        Arc::clone(&self.before)
    }

    /// From now on `layout` gets what is asked of this device; `None`: it is of the pool no more.
    pub(super) fn hand_over(&self, layout: Option<SharedDevice>) {
        *self.layout.write() = layout;
        if !planted::is(Planted::LoneForgotten) {
            self.own.write().take();
        }
    }

    fn layout(&self) -> Option<SharedDevice> {
        self.layout.read().clone()
    }

    /// Returns who is asked: whoever changes something has told its range before (LN1).
    fn asked(&self) -> Option<SharedDevice> {
        self.own().or_else(|| self.layout())
    }

    fn nobody(&self) -> DeviceError {
        DeviceError::Failed { device: self.info().name.clone() }
    }

    /// Tells the range of what changes something, before it is looked who gets it (LN1).
    fn begin(&self, operation: &Operation) -> Option<InFlight> {
        match operation {
            Operation::Read { .. } | Operation::Flush => None,
            Operation::Write { .. }
            | Operation::WriteThrough { .. }
            | Operation::Discard { .. } => {
                let start = operation.offset()?;
                let end = start.saturating_add(operation.length_bytes());
                let mut writes = self.before.0.lock();
                writes.next += 1;
                let number = writes.next;
                writes.ranges.insert(number, (start..end, Weak::new()));
                Some(InFlight { before: Arc::clone(&self.before), number })
            }
        }
    }
}

/// A write to the device, whose range counts as written to until it is answered.
struct Noted {
    ticket: Ticket,
    in_flight: InFlight,
}

impl PendingRequest for Noted {
    fn wait(self: Box<Self>) -> Result<Completion, DeviceError> {
        let Noted { ticket, in_flight } = *self;
        let answer = ticket.wait();
        drop(in_flight);
        answer
    }
}

fn noted(ticket: Ticket, in_flight: Option<InFlight>) -> Ticket {
    match in_flight {
        Some(in_flight) => {
            let shared = SharedTicket::of(|own| {
                in_flight.ends_with(own);
                Ticket::new(Box::new(Noted { ticket, in_flight }))
            });
            shared.ticket()
        }
        None => ticket,
    }
}

impl Device for Lone {
    fn info(&self) -> &DeviceInfo {
        self.lengths.now()
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.asked().map_or(Ok(()), |asked| asked.check_end())
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        self.asked().map_or_else(|| Ok(self.info().size_bytes), |asked| asked.length_now())
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        let Some(own) = self.own() else { return Ok(()) };
        own.lengthen()?;
        self.lengths.lengthen(own.info().size_bytes)
    }

    fn overdue(&self) -> usize {
        self.asked().map_or(0, |asked| asked.overdue())
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.asked()?.lock_identity()
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        let in_flight = self.begin(&operation);
        if let Some(own) = self.own() {
            return noted(own.submit(purpose, operation), in_flight);
        }
        drop(in_flight);
        match self.layout() {
            Some(layout) => layout.submit(purpose, operation),
            None => Ticket::ready(Err(self.nobody())),
        }
    }

    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        let is_read = |operation: &Operation| matches!(operation, Operation::Read { .. });
        // Of those nobody keeps a note, and most requests are.
        if operations.iter().all(is_read)
            && let Some(own) = self.own.read().as_ref().map(Arc::clone)
        {
            return own.submit_all(purpose, operations);
        }
        let in_flight: Vec<Option<InFlight>> =
            operations.iter().map(|operation| self.begin(operation)).collect();
        if let Some(own) = self.own() {
            let tickets = own.submit_all(purpose, operations);
            return tickets.into_iter().zip(in_flight).map(|(it, own)| noted(it, own)).collect();
        }
        drop(in_flight);
        match self.layout() {
            Some(layout) => layout.submit_all(purpose, operations),
            None => operations.iter().map(|_| Ticket::ready(Err(self.nobody()))).collect(),
        }
    }
}
