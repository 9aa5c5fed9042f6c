//! The volume: every place of the pool as bytes on its devices.
//!
//! So far one device, layout `single`: a place is an offset. Stripes, parity and mirrors come in
//! here, beneath the same calls.

use std::sync::Arc;

use format::geometry::Geometry;
use format::ids::Place;
use format::page::PAGE_BYTES;

use crate::device::{
    AlignedBuffer, DeviceError, Operation, Purpose, RequestKind, SharedBytes, SharedDevice, Ticket,
};

/// The space of a pool.
#[derive(Clone, Debug)]
pub struct Volume {
    device: SharedDevice,
    geometry: Arc<Geometry>,
}

impl Volume {
    /// Returns the space that `geometry` lays out on `device`.
    #[must_use]
    pub fn new(device: SharedDevice, geometry: Geometry) -> Volume {
        Volume { device, geometry: Arc::new(geometry) }
    }

    /// Returns where everything lies.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    fn offset_of(
        &self,
        kind: RequestKind,
        place: Place,
        length_bytes: u64,
    ) -> Result<u64, DeviceError> {
        let fragment_bytes = self.geometry.fragment_bytes();
        let fragments = u32::try_from(length_bytes.div_ceil(fragment_bytes)).unwrap_or(u32::MAX);
        self.geometry.device_offset(place, fragments).ok_or_else(|| DeviceError::OutOfRange {
            device: self.device.info().name.clone(),
            kind,
            offset: place.bits(),
            length_bytes,
        })
    }

    /// Returns the whole pages that `fragments` at `place` lie in, as a place and bytes, and where
    /// in those bytes they begin: devices are read and written in whole pages, and a fragment may
    /// be less.
    #[must_use]
    pub fn pages_around(&self, place: Place, fragments: u32) -> (Place, usize, usize) {
        let page = self.geometry.page_fragments();
        let lead = place.fragment() % page;
        let start = Place::new(place.disk_group(), place.group(), place.fragment() - lead);
        let bytes = |fragments: u32| {
            usize::try_from(u64::from(fragments) << self.geometry.fragment_shift)
                .expect("a request fits in memory")
        };
        (start, bytes((lead + fragments).next_multiple_of(page)), bytes(lead))
    }

    /// Starts to read what each of `wanted` says, a place and bytes, all handed to the device at
    /// once. Returns their tickets in order.
    pub fn submit_reads(
        &self,
        purpose: Purpose,
        wanted: impl Iterator<Item = (Place, usize)>,
    ) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut reads = Vec::new();
        for (place, length_bytes) in wanted {
            let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
            match self.offset_of(RequestKind::Read, place, wide) {
                Ok(offset) => {
                    let buffer = AlignedBuffer::for_reading(length_bytes);
                    reads.push(Operation::Read { offset, buffer });
                    tickets.push(None);
                }
                Err(error) => tickets.push(Some(Ticket::ready(Err(error)))),
            }
        }
        let mut begun = self.device.submit_all(purpose, reads).into_iter();
        tickets.into_iter().filter_map(|refused| refused.or_else(|| begun.next())).collect()
    }

    /// Starts to write `data`, one piece after the other, from `place` on.
    pub fn submit_write(&self, purpose: Purpose, place: Place, data: Vec<SharedBytes>) -> Ticket {
        let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        match self.offset_of(RequestKind::Write, place, wide) {
            Ok(offset) => self.device.submit(purpose, Operation::Write { offset, data }),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    /// Reads `length_bytes` from `place`.
    ///
    /// # Errors
    ///
    /// What the device said.
    pub fn read(
        &self,
        purpose: Purpose,
        place: Place,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = self.offset_of(RequestKind::Read, place, wide)?;
        self.device.read(purpose, offset, length_bytes)
    }

    /// Reads the page at `place`, unverified.
    ///
    /// # Errors
    ///
    /// What the device said.
    pub fn read_page(&self, purpose: Purpose, place: Place) -> Result<AlignedBuffer, DeviceError> {
        self.read(purpose, place, PAGE_BYTES)
    }

    /// Makes every write answered so far durable.
    ///
    /// # Errors
    ///
    /// What the device said. Never try again.
    pub fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.device.flush(purpose)
    }
}
