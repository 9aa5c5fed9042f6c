//! A writable device over a read-only one. Writes stay in memory and are lost with the process.
//!
//! For the read-only mount of a pool that was not closed: its log is replayed without changing the
//! device.
//!
//! # Concurrency
//!
//! The lock is held for a copy only, never across a request to the device below, so it is a plain
//! one.

use std::collections::BTreeMap;

use parking_lot::RwLock;

use super::range::check_request;
use super::{
    AlignedBuffer, Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOperation, IoPurpose,
    RequestKind, SharedBytes, SharedDevice, Ticket,
};
use crate::convert::{to_u64, to_usize};

const PAGE: u64 = 4096;
const PAGE_LENGTH: usize = 4096;
/// Maximum pages held: 1 GiB. A recovery writes far less.
const PAGES_MAX: usize = 1 << 18;

type OverlayPage = Box<[u8; PAGE_LENGTH]>;

/// A device with an in-memory overlay.
#[derive(Debug)]
pub struct OverlayDevice {
    info: DeviceInfo,
    below: SharedDevice,
    /// Written pages. `None` for an unreadable page: its contents below are obsolete, and no others
    /// exist.
    pages: RwLock<BTreeMap<u64, Option<OverlayPage>>>,
}

impl OverlayDevice {
    /// Wraps `below`.
    #[must_use]
    pub fn new(below: SharedDevice) -> OverlayDevice {
        let info = DeviceInfo { is_read_only: false, ..below.info().clone() };
        OverlayDevice { info, below, pages: RwLock::default() }
    }

    /// Reads page by page, from memory where written, else from below.
    fn read_mixed(
        &self,
        purpose: IoPurpose,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), DeviceError> {
        let end = offset + to_u64(to.len());
        let mut at = offset;
        while at < end {
            let in_page = to_usize(at % PAGE);
            let length = (PAGE_LENGTH - in_page).min(to_usize(end - at));
            let from = to_usize(at - offset);
            let part = &mut to[from..from + length];
            let is_kept = match self.pages.read().get(&(at / PAGE)) {
                Some(None) => return Err(self.is_lost(at / PAGE * PAGE)),
                Some(Some(page)) => {
                    part.copy_from_slice(&page[in_page..in_page + length]);
                    true
                }
                None => false,
            };
            if !is_kept {
                part.copy_from_slice(&self.below.read(purpose, at, length)?);
            }
            at += to_u64(length);
        }
        Ok(())
    }

    /// Makes the pages of a range unreadable: their contents below are obsolete.
    pub(crate) fn lose(&self, offset: u64, length_bytes: u64) {
        let numbers = offset / PAGE..(offset + length_bytes).div_ceil(PAGE);
        self.pages.write().extend(numbers.map(|number| (number, None)));
    }

    fn is_lost(&self, offset: u64) -> DeviceError {
        DeviceError::Io {
            device: self.info.name.clone(),
            kind: RequestKind::Read,
            offset,
            length_bytes: PAGE,
            cause: "the log changes it, and it lies on devices that are away".to_owned(),
        }
    }

    /// Whether the overlay has any page of a range, so that the contents below are obsolete.
    pub(crate) fn has_any(&self, offset: u64, length_bytes: u64) -> bool {
        let pages = self.pages.read();
        pages.range(offset / PAGE..(offset + length_bytes).div_ceil(PAGE)).next().is_some()
    }

    fn write_piece(
        &self,
        purpose: IoPurpose,
        offset: u64,
        piece: &[u8],
    ) -> Result<(), DeviceError> {
        let end = offset + to_u64(piece.len());
        let mut at = offset;
        while at < end {
            let in_page = to_usize(at % PAGE);
            let length = (PAGE_LENGTH - in_page).min(to_usize(end - at));
            let from = to_usize(at - offset);
            let mut page: OverlayPage = Box::new([0; PAGE_LENGTH]);
            if length < PAGE_LENGTH {
                self.read_mixed(purpose, at / PAGE * PAGE, &mut page[..])?;
            }
            page[in_page..in_page + length].copy_from_slice(&piece[from..from + length]);
            let mut pages = self.pages.write();
            pages.insert(at / PAGE, Some(page));
            if pages.len() > PAGES_MAX {
                return Err(self.is_full(offset, piece.len()));
            }
            at += to_u64(length);
        }
        Ok(())
    }

    fn is_full(&self, offset: u64, length: usize) -> DeviceError {
        DeviceError::Io {
            device: self.info.name.clone(),
            kind: RequestKind::Write,
            offset,
            length_bytes: to_u64(length),
            cause: format!("more than {PAGES_MAX} pages would be kept in memory"),
        }
    }

    fn write(&self, purpose: IoPurpose, offset: u64, data: &[SharedBytes]) -> Ticket {
        let mut at = offset;
        for piece in data {
            if let Err(error) = self.write_piece(purpose, at, piece) {
                return Ticket::ready(Err(error));
            }
            at += to_u64(piece.len());
        }
        Ticket::ready(Ok(DeviceCompletion::default()))
    }
}

impl Device for OverlayDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn check_end(&self) -> Result<(), DeviceError> {
        self.below.check_end()
    }

    fn overdue(&self) -> usize {
        self.below.overdue()
    }

    fn lock_identity(&self) -> Option<[u64; 2]> {
        self.below.lock_identity()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        if let Err(error) = check_request(&self.info, purpose, &operation) {
            return Ticket::ready(Err(error));
        }
        match operation {
            DeviceOperation::Read { offset, buffer }
                if !self.has_any(offset, to_u64(buffer.len())) =>
            {
                self.below.submit(purpose, DeviceOperation::Read { offset, buffer })
            }
            DeviceOperation::Read { offset, buffer } => {
                let mut filled = AlignedBuffer::zeroed(buffer.len());
                let read = self.read_mixed(purpose, offset, &mut filled);
                Ticket::ready(read.map(|()| DeviceCompletion { buffer: Some(filled) }))
            }
            DeviceOperation::Write { offset, data }
            | DeviceOperation::WriteThrough { offset, data } => self.write(purpose, offset, &data),
            DeviceOperation::Flush | DeviceOperation::Discard { .. } => {
                Ticket::ready(Ok(DeviceCompletion::default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::MemoryDevice;
    use super::*;

    fn buffer(length: usize, byte: u8) -> AlignedBuffer {
        AlignedBuffer::copy_of(&vec![byte; length])
    }

    /// Goal: writes are visible in the overlay only. Method: whole pages, and journal sectors
    /// within a page.
    #[test]
    fn what_is_written_is_read_and_the_device_below_stays_as_it_is() {
        let below = MemoryDevice::new("below", 64 << 10);
        Device::write(below.as_ref(), IoPurpose::Data, 0, buffer(64 << 10, 7)).expect("it fits");
        let over = OverlayDevice::new(Arc::<MemoryDevice>::clone(&below));
        Device::write(&over, IoPurpose::Data, 8192, buffer(8192, 9)).expect("it fits");
        Device::write(&over, IoPurpose::Journal, 20_480 + 512, buffer(1024, 3)).expect("it fits");
        let found = over.read(IoPurpose::Data, 0, 64 << 10).expect("it is there");
        for (at, byte) in found.iter().enumerate() {
            let expected = match at {
                8192..16_384 => 9,
                20_992..22_016 => 3,
                _ => 7,
            };
            assert_eq!(*byte, expected, "byte {at}");
        }
        let sector = over.read(IoPurpose::Journal, 20_992, 512).expect("it is there");
        assert_eq!(sector[..], [3; 512]);
        over.lose(8192, 4096);
        let lost = over.read(IoPurpose::Data, 4096, 8192).expect_err("what is there is of before");
        assert!(lost.to_string().contains("devices that are away"), "{lost}");
        over.read(IoPurpose::Data, 12_288, 4096).expect("the page behind it is there");
        Device::write(&over, IoPurpose::Data, 8192, buffer(4096, 5)).expect("it is whole again");
        assert_eq!(over.read(IoPurpose::Data, 8192, 4096).expect("it is there")[..], [5; 4096]);
        let untouched = below.read(IoPurpose::Data, 0, 64 << 10).expect("it is there");
        assert!(untouched.iter().all(|byte| *byte == 7));
        assert!(over.read(IoPurpose::Data, 64 << 10, 4096).is_err(), "behind the end");
    }
}
