//! The properties of a device whose length may grow while it is open.
//!
//! An append-only list with the current entry last. Entries stay valid, so [`super::Device::info`]
//! needs no lock.

use std::sync::OnceLock;

use format::geometry::SUPERBLOCK_AREA_BYTES;

use super::{DeviceError, DeviceInfo};

/// Most entries, one per growth of an open device. Each stays in memory, and every request walks
/// the list.
pub(crate) const LENGTHS_MAX: usize = 32;

/// Bytes preallocated at the end before a device grows: a failing label write there would fail the
/// device.
pub(crate) const END_BYTES: u64 = 2 * SUPERBLOCK_AREA_BYTES;

#[derive(Debug)]
pub(crate) struct DeviceLengths {
    info: DeviceInfo,
    longer: OnceLock<Box<DeviceLengths>>,
}

impl DeviceLengths {
    pub(crate) fn new(info: DeviceInfo) -> DeviceLengths {
        DeviceLengths { info, longer: OnceLock::new() }
    }

    fn last(&self) -> (&DeviceLengths, usize) {
        let (mut at, mut count) = (self, 1);
        while let Some(longer) = at.longer.get() {
            (at, count) = (longer, count + 1);
        }
        (at, count)
    }

    pub(crate) fn now(&self) -> &DeviceInfo {
        &self.last().0.info
    }

    /// Grows the device to `size_bytes`, if that is more.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OftenLonger`].
    pub(crate) fn lengthen(&self, size_bytes: u64) -> Result<(), DeviceError> {
        loop {
            let (last, count) = self.last();
            if size_bytes <= last.info.size_bytes {
                return Ok(());
            }
            if count >= LENGTHS_MAX {
                return Err(DeviceError::OftenLonger { device: last.info.name.clone() });
            }
            let info = DeviceInfo { size_bytes, ..last.info.clone() };
            // Of two concurrent growths one is appended, and the other tries again.
            if last.longer.set(Box::new(DeviceLengths::new(info))).is_ok() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_becomes_longer_never_shorter_and_not_without_end() {
        let info = DeviceInfo {
            name: "disk".to_owned(),
            size_bytes: 4096,
            sector_bytes: 512,
            is_read_only: false,
            has_write_through: true,
            is_sparse: false,
            transport: "memory",
        };
        let lengths = DeviceLengths::new(info);
        let before = lengths.now();
        lengths.lengthen(8192).expect("the first time");
        lengths.lengthen(4096).expect("nothing to do");
        assert_eq!((before.size_bytes, lengths.now().size_bytes), (4096, 8192));
        for size in 3.. {
            let done = lengths.lengthen(size * 4096);
            if size > u64::try_from(LENGTHS_MAX).expect("small") {
                assert!(matches!(done, Err(DeviceError::OftenLonger { .. })), "{size}");
                break;
            }
            done.unwrap_or_else(|error| panic!("{size}: {error}"));
        }
    }
}
