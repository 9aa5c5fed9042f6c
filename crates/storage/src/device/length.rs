//! What a device is, where its length may become more while it is open.
//!
//! A list that only becomes longer: whoever has looked at an older entry keeps it, so that
//! [`super::Device::info`] needs no lock. The last counts.

use std::sync::OnceLock;

use format::geometry::SUPERBLOCK_AREA_BYTES;

use super::{DeviceError, DeviceInfo};

/// Most times that a device becomes longer while it is open: each keeps an entry in memory, and a
/// request walks over all of them.
pub(crate) const LENGTHS_MAX: usize = 32;

/// Bytes at the new end of a device for which there is room below it before it is longer: labels
/// are written there from then on, and a device that could not take them would fail.
pub(crate) const END_BYTES: u64 = 2 * SUPERBLOCK_AREA_BYTES;

/// See the module's header.
#[derive(Debug)]
pub(crate) struct Lengths {
    info: DeviceInfo,
    longer: OnceLock<Box<Lengths>>,
}

impl Lengths {
    /// Returns a device that is what `info` says.
    pub(crate) fn new(info: DeviceInfo) -> Lengths {
        Lengths { info, longer: OnceLock::new() }
    }

    fn last(&self) -> (&Lengths, usize) {
        let (mut at, mut count) = (self, 1);
        while let Some(longer) = at.longer.get() {
            (at, count) = (longer, count + 1);
        }
        (at, count)
    }

    /// Returns what the device is now.
    pub(crate) fn now(&self) -> &DeviceInfo {
        &self.last().0.info
    }

    /// From now on the device has `size_bytes`, if these are more.
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
            // Of two at one time the first is kept, and the other looks again.
            if last.longer.set(Box::new(Lengths::new(info))).is_ok() {
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
        let lengths = Lengths::new(info);
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
