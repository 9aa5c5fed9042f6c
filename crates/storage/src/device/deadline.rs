//! Deadlines for a device with blocking calls.

use std::sync::Arc;
use std::time::Duration;

use super::health::Health;
use super::threads::{BlockingDevice, Threads};
use super::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, SharedDevice,
    Ticket,
};

/// Runs each call of the inner device on a thread, with a deadline (see `health.rs`).
#[derive(Debug)]
pub struct DeadlineDevice {
    target: Arc<DeadlineTarget>,
    threads: Threads,
}

#[derive(Debug)]
struct DeadlineTarget {
    inner: SharedDevice,
    health: Health,
}

impl BlockingDevice for DeadlineTarget {
    fn execute(
        &self,
        purpose: IoPurpose,
        operation: DeviceOperation,
    ) -> Result<DeviceCompletion, DeviceError> {
        let kind = operation.kind();
        let answer = self.inner.submit(purpose, operation).wait();
        if answer.is_err() && kind == super::RequestKind::Flush {
            // The device fails (D3).
            self.health.fail();
        }
        answer
    }

    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn health(&self) -> &Health {
        &self.health
    }
}

impl DeadlineDevice {
    /// Wraps `inner`, so that each request completes within `deadline`.
    #[must_use]
    pub fn new(inner: SharedDevice, deadline: Duration) -> Arc<DeadlineDevice> {
        let target = Arc::new(DeadlineTarget { inner, health: Health::new(deadline) });
        let threads = Threads::new(Arc::<DeadlineTarget>::clone(&target));
        Arc::new(DeadlineDevice { target, threads })
    }
}

impl Device for DeadlineDevice {
    fn info(&self) -> &DeviceInfo {
        self.target.info()
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.target.inner.check_end()
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        self.target.inner.length_now()
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        self.target.inner.lengthen()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.target.inner.lock_identity()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        match self.target.health.admit(self.target.info(), &operation) {
            Ok(asked) => self.threads.submit(purpose, operation, asked),
            Err(error) => Ticket::ready(Err(error)),
        }
    }
}
