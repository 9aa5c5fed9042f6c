//! A device wrapper that counts requests, so that any device can have an I/O budget.

use std::sync::Arc;

use super::{
    AlignedBuffer, Device, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, RequestKind,
    SharedDevice, Ticket,
};
use crate::convert::to_u64;
use crate::device::counters::{IoCounters, IoCounts};

/// Forwards every request, and counts it at submission whatever the result.
#[derive(Debug)]
pub struct CountingDevice {
    inner: SharedDevice,
    counters: IoCounters,
}

impl CountingDevice {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: SharedDevice) -> Arc<CountingDevice> {
        Arc::new(CountingDevice { inner, counters: IoCounters::default() })
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn counts(&self) -> IoCounts {
        self.counters.counts()
    }
}

impl Device for CountingDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        self.counters.add(purpose, &operation);
        self.inner.submit(purpose, operation)
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.inner.check_end()
    }

    fn length_now(&self) -> Result<u64, DeviceError> {
        self.inner.length_now()
    }

    fn lengthen(&self) -> Result<(), DeviceError> {
        self.inner.lengthen()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.inner.lock_identity()
    }

    // Each method forwards to its counterpart, which may be cheaper than `submit`.

    fn submit_all(&self, purpose: IoPurpose, operations: Vec<DeviceOperation>) -> Vec<Ticket> {
        for operation in &operations {
            self.counters.add(purpose, operation);
        }
        self.inner.submit_all(purpose, operations)
    }

    fn read(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        self.counters.count(purpose, RequestKind::Read, to_u64(length_bytes));
        self.inner.read(purpose, offset, length_bytes)
    }

    fn write(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: AlignedBuffer,
    ) -> Result<(), DeviceError> {
        self.counters.count(purpose, RequestKind::Write, to_u64(data.len()));
        self.inner.write(purpose, offset, data)
    }

    fn flush(&self, purpose: IoPurpose) -> Result<(), DeviceError> {
        self.counters.count(purpose, RequestKind::Flush, 0);
        self.inner.flush(purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MemoryDevice;
    use crate::device::counters::IoCount;

    #[test]
    fn every_way_to_ask_is_counted_once_by_purpose_and_kind() {
        let device = CountingDevice::new(MemoryDevice::new("memory", 1 << 20));
        device.write(IoPurpose::Home, 0, AlignedBuffer::zeroed(8192)).expect("in range");
        let before = device.counts();
        assert_eq!(
            before.of(IoPurpose::Home, RequestKind::Write),
            IoCount { requests: 1, bytes: 8192 }
        );

        device.read(IoPurpose::Data, 4096, 4096).expect("in range");
        device.flush(IoPurpose::Journal).expect("memory does not fail");
        let read = DeviceOperation::Read { offset: 0, buffer: AlignedBuffer::zeroed(4096) };
        device.submit(IoPurpose::Data, read).wait().expect("in range");
        let reads = [0, 8192].map(|offset| {
            let buffer = AlignedBuffer::zeroed(4096);
            DeviceOperation::Read { offset, buffer }
        });
        for ticket in device.submit_all(IoPurpose::Data, reads.into()) {
            ticket.wait().expect("in range");
        }
        let discard = DeviceOperation::Discard { offset: 0, length_bytes: 4096 };
        device.submit(IoPurpose::Cleaner, discard).wait().expect("in range");

        let stretch = device.counts() - before;
        assert_eq!(
            stretch.of(IoPurpose::Data, RequestKind::Read),
            IoCount { requests: 4, bytes: 16384 }
        );
        assert_eq!(stretch.of_purpose(IoPurpose::Home), IoCount::default());
        assert_eq!((stretch.reads(), stretch.writes(), stretch.flushes()), (4, 0, 1));
        assert_eq!(stretch.request_count(), 6);
        let text = format!("{:?}", stretch);
        assert!(text.contains("Cleaner discard: 1 (4096 bytes)"), "{text}");
        assert!(!text.contains("Home"), "{text}");
    }
}
