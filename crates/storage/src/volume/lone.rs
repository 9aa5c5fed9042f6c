//! The device of a pool that lies on one alone, until it gets others.
//!
//! Nothing is between it and the volume but a note of the ranges that are being written: so a
//! device that is attached later is not copied to where a write of before is still under way (RH1).
//!
//! # Invariants
//!
//! - LN1: A write goes to the device itself only if it told its range before there was a layout
//!   over it; else it goes to the layout. Whoever holds a range of that layout therefore knows that
//!   no write of before is at it.
//!
//! # Concurrency
//!
//! Whoever has kept the device, and whoever looked at the volume just before it changed, still ends
//! here. A write tells its range, and only then looks whether there is a layout; the layout is set
//! first, and members change with no write beginning ([`Ranges::close`]). So either the write sees
//! the layout, or it is in flight when a member is attached.

use std::sync::{Arc, OnceLock};

use format::geometry::Geometry;
use runtime::planted::{self, Planted};

use super::ranges::{InFlight, Ranges};
use crate::device::{
    Completion, Device, DeviceError, DeviceInfo, Operation, PendingRequest, Purpose, SharedDevice,
    Ticket,
};

/// See the module's header.
#[derive(Debug)]
pub(super) struct Lone {
    device: SharedDevice,
    ranges: Arc<Ranges>,
    /// What lies over the device since others came.
    layout: OnceLock<SharedDevice>,
}

impl Lone {
    pub(super) fn new(device: SharedDevice, geometry: &Geometry) -> Arc<Lone> {
        let (ranges, layout) = (Ranges::new(geometry), OnceLock::new());
        Arc::new(Lone { device, ranges, layout })
    }

    /// Returns the device itself.
    pub(super) fn inner(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns the ranges that writes to it tell, for the layout over it.
    pub(super) fn ranges(&self) -> &Arc<Ranges> {
        &self.ranges
    }

    /// From now on `layout` gets what is asked of this device.
    pub(super) fn hand_over(&self, layout: SharedDevice) {
        if !planted::is(Planted::LoneForgotten) {
            let _ = self.layout.set(layout);
        }
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
                Some(self.ranges.begin_write(start..end))
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
        Some(in_flight) => Ticket::new(Box::new(Noted { ticket, in_flight })),
        None => ticket,
    }
}

impl Device for Lone {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.layout.get().unwrap_or(&self.device).check_end()
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        self.device.length_now()
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        self.device.lengthen()
    }

    fn overdue(&self) -> usize {
        self.device.overdue()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.device.lock_identity()
    }

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        let in_flight = self.begin(&operation);
        if let Some(layout) = self.layout.get() {
            drop(in_flight);
            return layout.submit(purpose, operation);
        }
        noted(self.device.submit(purpose, operation), in_flight)
    }

    fn submit_all(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
        let in_flight: Vec<Option<InFlight>> =
            operations.iter().map(|operation| self.begin(operation)).collect();
        if let Some(layout) = self.layout.get() {
            drop(in_flight);
            return layout.submit_all(purpose, operations);
        }
        let tickets = self.device.submit_all(purpose, operations);
        tickets.into_iter().zip(in_flight).map(|(ticket, own)| noted(ticket, own)).collect()
    }
}
