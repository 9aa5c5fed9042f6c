//! Deadlines for a device that has none: one whose calls block.

use std::sync::Arc;
use std::time::Duration;

use super::health::Health;
use super::threads::{Blocking, Threads};
use super::{
    Completion, Device, DeviceError, DeviceInfo, Operation, Purpose, SharedDevice, Ticket,
};

/// Makes each call of another device on a thread, and ends it at its deadline; see `health.rs`.
#[derive(Debug)]
pub struct DeadlineDevice {
    target: Arc<Target>,
    threads: Threads,
}

#[derive(Debug)]
struct Target {
    inner: SharedDevice,
    health: Health,
}

impl Blocking for Target {
    fn execute(&self, purpose: Purpose, operation: Operation) -> Result<Completion, DeviceError> {
        let kind = operation.kind();
        let answer = self.inner.submit(purpose, operation).wait();
        if answer.is_err() && kind == super::RequestKind::Flush {
            // D3.
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
    /// Returns a device that passes on to `inner` and answers within `deadline`, whatever `inner`
    /// does.
    #[must_use]
    pub fn new(inner: SharedDevice, deadline: Duration) -> Arc<DeadlineDevice> {
        let target = Arc::new(Target { inner, health: Health::new(deadline) });
        let threads = Threads::new(Arc::<Target>::clone(&target));
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

    fn submit(&self, purpose: Purpose, operation: Operation) -> Ticket {
        match self.target.health.admit(self.target.info(), &operation) {
            Ok(asked) => self.threads.submit(purpose, operation, asked),
            Err(error) => Ticket::ready(Err(error)),
        }
    }
}
