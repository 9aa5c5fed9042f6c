//! The device of a pool with a single device, until others are attached. Records the ranges of
//! writes in flight, so that the rebuild of an attached device waits for earlier writes (RH1).
//!
//! # Invariants
//!
//! - LN1: A write goes to the device only if its range was recorded before a layout was put over
//!   the device. Any other write goes to the layout, which holds a range only while no recorded
//!   write to it is in flight ([`SingleDeviceWrites`]).
//!
//! # Concurrency
//!
//! After the attachment, old references to the device still lead to [`SingleDevice`]. A write
//! records its range, and then reads `own`, which [`SingleDevice::hand_over`] clears before a
//! member is attached. So either the write goes to the layout, or its range was recorded in time.
//! Once cleared, `own` does not keep the device open.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use runtime::unless_planted;

use super::shared_ticket::{SharedTicket, wait_all};
use crate::device::length::DeviceLengths;
use crate::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, PendingRequest,
    SharedDevice, Ticket,
};

/// The ranges of writes in flight to the single device.
#[derive(Debug, Default)]
pub(super) struct SingleDeviceWrites(Mutex<SingleDeviceRanges>);

/// Held for a lookup or a change only: a plain lock.
#[derive(Debug, Default)]
struct SingleDeviceRanges {
    next: u64,
    /// Each range has its ticket, once submitted.
    ranges: BTreeMap<u64, (Range<u64>, Weak<SharedTicket>)>,
}

impl SingleDeviceRanges {
    fn at(&self, range: &Range<u64>) -> impl Iterator<Item = &Weak<SharedTicket>> {
        let (start, end) = (range.start, range.end);
        let own = self.ranges.values();
        own.filter(move |(own, _)| own.start < end && start < own.end).map(|(_, ticket)| ticket)
    }
}

impl SingleDeviceWrites {
    pub(super) fn is_at(&self, range: &Range<u64>) -> bool {
        self.0.lock().at(range).next().is_some()
    }

    /// Completes submitted writes to `range`, whose callers may collect the answers much later.
    pub(super) fn end_writes(&self, range: &Range<u64>) {
        let tickets = self.0.lock().at(range).cloned().collect();
        wait_all(tickets);
    }
}

/// A write in flight, until dropped.
struct SingleDeviceWrite {
    before: Arc<SingleDeviceWrites>,
    number: u64,
}

impl SingleDeviceWrite {
    fn ends_with(&self, ticket: Weak<SharedTicket>) {
        if let Some((_, own)) = self.before.0.lock().ranges.get_mut(&self.number) {
            *own = ticket;
        }
    }
}

impl Drop for SingleDeviceWrite {
    fn drop(&mut self) {
        self.before.0.lock().ranges.remove(&self.number);
    }
}

#[derive(Debug)]
pub(super) struct SingleDevice {
    lengths: DeviceLengths,
    /// `None` once a layout has the device. Held for a copy or an exchange only: a plain lock.
    own: RwLock<Option<SharedDevice>>,
    before: Arc<SingleDeviceWrites>,
    /// The layout over the device. Held for a copy only: a plain lock.
    layout: RwLock<Option<SharedDevice>>,
}

impl SingleDevice {
    pub(super) fn new(device: SharedDevice) -> Arc<SingleDevice> {
        let (lengths, own) = (DeviceLengths::new(device.info().clone()), RwLock::new(Some(device)));
        Arc::new(SingleDevice { lengths, own, before: Arc::default(), layout: RwLock::new(None) })
    }

    pub(super) fn own(&self) -> Option<SharedDevice> {
        self.own.read().clone()
    }

    pub(super) fn before(&self) -> Arc<SingleDeviceWrites> {
        Arc::clone(&self.before)
    }

    /// Redirects later requests to `layout`, or fails them with `None`, if the device left the
    /// pool.
    pub(super) fn hand_over(&self, layout: Option<SharedDevice>) {
        *self.layout.write() = layout;
        unless_planted!(LoneForgotten, self.own.write().take());
    }

    fn layout(&self) -> Option<SharedDevice> {
        self.layout.read().clone()
    }

    /// Returns the target of requests: the device, or the layout over it. A write must have
    /// recorded its range before this call (LN1).
    fn asked(&self) -> Option<SharedDevice> {
        self.own().or_else(|| self.layout())
    }

    fn nobody(&self) -> DeviceError {
        DeviceError::Failed { device: self.info().name.clone() }
    }

    /// Records the range of a write or discard, before its target is read (LN1).
    fn begin(&self, operation: &DeviceOperation) -> Option<SingleDeviceWrite> {
        match operation {
            DeviceOperation::Read { .. } | DeviceOperation::Flush => None,
            DeviceOperation::Write { .. }
            | DeviceOperation::WriteThrough { .. }
            | DeviceOperation::Discard { .. } => {
                let start = operation.offset()?;
                let end = start.saturating_add(operation.length_bytes());
                let mut writes = self.before.0.lock();
                writes.next += 1;
                let number = writes.next;
                writes.ranges.insert(number, (start..end, Weak::new()));
                Some(SingleDeviceWrite { before: Arc::clone(&self.before), number })
            }
        }
    }
}

/// A write whose range is recorded until its answer.
struct SingleDeviceRequest {
    ticket: Ticket,
    in_flight: SingleDeviceWrite,
}

impl PendingRequest for SingleDeviceRequest {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let SingleDeviceRequest { ticket, in_flight } = *self;
        let answer = ticket.wait();
        drop(in_flight);
        answer
    }
}

fn noted(ticket: Ticket, in_flight: Option<SingleDeviceWrite>) -> Ticket {
    match in_flight {
        Some(in_flight) => {
            let shared = SharedTicket::of(|own| {
                in_flight.ends_with(own);
                Ticket::new(Box::new(SingleDeviceRequest { ticket, in_flight }))
            });
            shared.ticket()
        }
        None => ticket,
    }
}

impl Device for SingleDevice {
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

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
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

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        let is_read =
            |operation: &DeviceOperation| matches!(operation, DeviceOperation::Read { .. });
        // Reads, the most frequent requests, are not recorded.
        if operations.iter().all(is_read)
            && let Some(own) = self.own.read().as_ref().map(Arc::clone)
        {
            return own.submit_all(purpose, operations);
        }
        let in_flight: Vec<Option<SingleDeviceWrite>> =
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
