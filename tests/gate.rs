//! A device in memory that does not answer while its gate is shut, for tests that need threads of
//! the machine kept at one moment.

use std::sync::Arc;

use runtime::sync::{Condvar, Mutex};
use storage::device::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice,
    PendingRequest, RequestKind, Ticket,
};

/// What keeps writes and flushes from returning.
#[derive(Debug, Default)]
pub struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Shuts or opens it.
    pub fn shut(&self, is_shut: bool) {
        *self.is_shut.lock() = is_shut;
        self.opened.notify_all();
    }

    /// Shuts it until what this returns is dropped.
    pub fn keep_shut(self: &Arc<Gate>) -> Shut {
        self.shut(true);
        Shut(Arc::clone(self))
    }
}

/// A gate that is shut.
#[derive(Debug)]
pub struct Shut(Arc<Gate>);

impl Drop for Shut {
    fn drop(&mut self) {
        self.0.shut(false);
    }
}

/// A device in memory whose flushes and writes do not return while its gate is shut.
#[derive(Debug)]
pub struct GateDevice {
    inner: Arc<MemoryDevice>,
    gate: Arc<Gate>,
}

impl GateDevice {
    /// Puts a gate before a device.
    pub fn new(inner: Arc<MemoryDevice>, gate: &Arc<Gate>) -> Arc<GateDevice> {
        Arc::new(GateDevice { inner, gate: Arc::clone(gate) })
    }
}

struct Gated(Arc<Gate>, Ticket);

impl PendingRequest for Gated {
    fn wait(self: Box<Self>) -> Result<DeviceCompletion, DeviceError> {
        let Gated(gate, ticket) = *self;
        let mut is_shut = gate.is_shut.lock();
        while *is_shut {
            gate.opened.wait(&mut is_shut);
        }
        ticket.wait()
    }
}

impl Device for GateDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        match operation.kind() {
            RequestKind::Read | RequestKind::Discard => self.inner.submit(purpose, operation),
            RequestKind::Write | RequestKind::Flush => {
                let ticket = self.inner.submit(purpose, operation);
                Ticket::new(Box::new(Gated(Arc::clone(&self.gate), ticket)))
            }
        }
    }
}
