//! Reader of a pool: many requests in flight, and the replay's writes as an overlay on the device.
//!
//! All reads go through [`PoolReader`], so a check of a pool that was not closed sees the state of
//! the next mount, while the device stays unchanged.

mod lsn;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use format::defect::{DefectCode, FoundDefect};
use format::geometry::Geometry;
use format::ids::{Lsn, Place, PoolId};
use format::page::{PAGE_BYTES, PageBytes, PageError, PageHeader, PageKind, PageOwner, page_lsn};
use storage::device::{
    AlignedBuffer, DeviceError, IO_ALIGN_BYTES, IoPurpose, SharedBytes, SharedDevice, Ticket,
};
use storage::volume::Volume;

use crate::convert::{to_u64, to_usize};

use self::lsn::LsnPageCache;

/// Reads in flight: more than 32 gain little, and 64 hide the latency of a slow device.
const READS_IN_FLIGHT: usize = 64;
const READ_BYTES_IN_FLIGHT: usize = 16 << 20;
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Unit of the overlay: the smallest fragment.
const UNIT_BYTES: u64 = 1024;
/// Bound of the overlay: 8 times the bound of the active log, so that no log can fill memory.
pub(crate) const OVERLAY_BYTES_MAX: u64 = 256 << 20;

#[derive(Debug, Default)]
pub(crate) struct Overlay {
    units: BTreeMap<u64, Box<[u8; 1024]>>,
}

impl Overlay {
    pub(crate) fn bytes(&self) -> u64 {
        to_u64(self.units.len()) * UNIT_BYTES
    }

    fn holds(&self, offset: u64, length: u64) -> bool {
        let units = offset / UNIT_BYTES..(offset + length).div_ceil(UNIT_BYTES);
        self.units.range(units).next().is_some()
    }

    fn apply(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset + to_u64(bytes.len());
        for (&unit, content) in self.units.range(offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES)) {
            let start = unit * UNIT_BYTES;
            let (from, to) = (start.max(offset), (start + UNIT_BYTES).min(end));
            let source = &content[to_usize(from - start)..to_usize(to - start)];
            bytes[to_usize(from - offset)..to_usize(to - offset)].copy_from_slice(source);
        }
    }
}

/// Returns whether every page of the fixed regions has a place: pages are counted in 32 bits.
pub fn regions_have_places(geometry: &Geometry) -> bool {
    let ends = [
        geometry.groups_offset,
        geometry.journal_offset.saturating_add(geometry.journal_bytes),
        geometry.double_write_offset.saturating_add(geometry.double_write_pages * 2 * 4096),
    ];
    ends.iter().all(|&end| end <= u64::from(u32::MAX) * 4096)
}

/// Reads ranges and pages of one pool.
#[derive(Debug)]
pub struct PoolReader {
    volume: Volume,
    overlay: Overlay,
    /// The copy of the fixed regions with the chosen log, on several devices.
    pub(crate) fixed: Option<Volume>,
    /// Pages and blocks taken from another copy than the first.
    from_copies: AtomicU64,
    /// Pages changed by the log: each must verify after the replay.
    pub(crate) logged: BTreeSet<Place>,
    pub(crate) lsn_pages: LsnPageCache,
    /// End of the log: copies of a page with a higher LSN are damage.
    pub(crate) log_end: Lsn,
    /// Layout of the pool.
    pub geometry: Geometry,
    /// Identity of the pool, checked in each page.
    pub pool_id: PoolId,
}

/// Why a page is unusable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// The device could not read it.
    #[error("{code}: {0}", code = self.code())]
    Device(#[from] DeviceError),
    /// The bytes are not the wanted page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// The place is in no group.
    #[error("{code} at {0}: outside the pool", code = self.code())]
    Outside(Place),
}

impl FoundDefect for ReadError {
    fn code(&self) -> DefectCode {
        match self {
            ReadError::Device(_) => DefectCode::IO001,
            ReadError::Page(error) => error.code(),
            ReadError::Outside(_) => DefectCode::MP001,
        }
    }

    fn place(&self) -> Option<Place> {
        match self {
            ReadError::Device(_) => None,
            ReadError::Page(error) => error.place(),
            ReadError::Outside(place) => Some(*place),
        }
    }
}

/// Receives the index and bytes of each range.
pub(crate) type Each<'each> = &'each mut dyn FnMut(usize, Result<&[u8], DeviceError>);

/// A page to read, and its expected identity.
#[derive(Clone, Copy, Debug)]
pub struct PageRequest {
    /// Place of the page.
    pub place: Place,
    /// Expected kind.
    pub kind: PageKind,
    /// Expected owner; `None` for pages identified by their place alone.
    pub owner: Option<PageOwner>,
}

impl PoolReader {
    /// Returns a reader of the pool with layout `geometry` on `device`.
    #[must_use]
    pub fn new(device: SharedDevice, geometry: Geometry, pool_id: PoolId) -> PoolReader {
        let (overlay, lsn_pages) = (Overlay::default(), LsnPageCache::default());
        let volume = Volume::new(device, geometry.clone());
        let (logged, from_copies) = (BTreeSet::new(), AtomicU64::new(0));
        let (fixed, log_end) = (None, Lsn(u64::MAX));
        PoolReader {
            volume,
            overlay,
            fixed,
            from_copies,
            logged,
            lsn_pages,
            log_end,
            geometry,
            pool_id,
        }
    }

    /// Returns the size of the device; the pool may be smaller.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.volume.device_bytes()
    }

    pub(crate) fn overlay_bytes(&self) -> u64 {
        self.overlay.bytes()
    }

    pub(crate) fn is_replayed(&self, place: Place) -> bool {
        self.page_offset(place).is_some_and(|offset| self.overlay.holds(offset, to_u64(PAGE_BYTES)))
    }

    /// Reads `length` bytes from `offset`; neither need be aligned.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn read(&self, offset: u64, length: usize) -> Result<SharedBytes, DeviceError> {
        self.finish(self.submit(IoPurpose::Check, offset, length), offset, length)
    }

    /// Returns all copies of a fixed region; none on one device.
    pub(crate) fn fixed_copies(&self, offset: u64) -> Vec<Volume> {
        self.volume.fixed_copies(offset)
    }

    pub(crate) fn read_fixed(
        &self,
        offset: u64,
        length: usize,
    ) -> Result<SharedBytes, DeviceError> {
        let Some(copy) = &self.fixed else { return self.read(offset, length) };
        let (start, end) = aligned(offset, length);
        let bytes = copy.read_fixed(IoPurpose::Check, start, to_usize(end - start))?;
        let skip = to_usize(offset - start);
        Ok(SharedBytes::new(Arc::new(bytes), skip..skip + length))
    }

    pub(crate) fn page_of_copy(
        &self,
        copy: usize,
        place: Place,
    ) -> Option<Result<Box<PageBytes>, DeviceError>> {
        let read = self.volume.read_copy(copy, IoPurpose::Check, place, PAGE_BYTES)?;
        Some(read.map(|bytes| boxed(&bytes)))
    }

    pub(crate) fn count_from_copy(&self) {
        self.from_copies.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads `length` bytes of blocks or summaries from `offset`; neither need be aligned.
    ///
    /// # Errors
    ///
    /// The device's error.
    pub fn read_data(&self, offset: u64, length: usize) -> Result<SharedBytes, DeviceError> {
        self.finish(self.submit(IoPurpose::CheckData, offset, length), offset, length)
    }

    /// Reads `ranges` with many requests in flight, joining those with small gaps, and calls `each`
    /// in order.
    pub(crate) fn read_many(
        &self,
        (purpose, gap_bytes_max): (IoPurpose, u64),
        ranges: &[(u64, usize)],
        each: Each<'_>,
    ) {
        let mut in_flight = VecDeque::new();
        let (mut next, mut bytes) = (0, 0);
        loop {
            let is_room = in_flight.len() < READS_IN_FLIGHT && bytes < READ_BYTES_IN_FLIGHT;
            if next < ranges.len() && is_room {
                let run = run_at(ranges, next, gap_bytes_max);
                let ticket = self.submit(purpose, run.offset, run.length);
                in_flight.push_back((next, run, ticket));
                bytes += run.length;
                next += run.count;
                continue;
            }
            let Some((first, run, ticket)) = in_flight.pop_front() else { return };
            bytes -= run.length;
            let parts = ranges.get(first..first + run.count).unwrap_or(&[]);
            let read = self.finish(ticket, run.offset, run.length);
            self.hand_on(purpose, (first, parts, run), read, each);
        }
    }

    /// Passes on the ranges of a run. If it failed, reads each range alone: a bad sector costs no
    /// neighbour.
    fn hand_on(
        &self,
        purpose: IoPurpose,
        (first, parts, run): (usize, &[(u64, usize)], ReadRun),
        read: Result<SharedBytes, DeviceError>,
        each: Each<'_>,
    ) {
        match read {
            Ok(bytes) => {
                for (position, &(offset, length)) in parts.iter().enumerate() {
                    let start = to_usize(offset - run.offset);
                    each(first + position, Ok(&bytes[start..start + length]));
                }
            }
            Err(error) if parts.len() == 1 => each(first, Err(error)),
            Err(_) => {
                for (position, &(offset, length)) in parts.iter().enumerate() {
                    let alone = self.submit(purpose, offset, length);
                    let alone = self.finish(alone, offset, length);
                    each(first + position, alone.as_deref().map_err(Clone::clone));
                }
            }
        }
    }

    pub(crate) fn submit(&self, purpose: IoPurpose, offset: u64, length: usize) -> Ticket {
        let (start, end) = aligned(offset, length);
        let buffer = AlignedBuffer::for_reading(to_usize(end - start));
        self.volume.submit_read_at(purpose, start, buffer)
    }

    pub(crate) fn finish(
        &self,
        ticket: Ticket,
        offset: u64,
        length: usize,
    ) -> Result<SharedBytes, DeviceError> {
        let mut buffer = ticket.wait()?.buffer.expect("a read returns its buffer");
        let skip = to_usize(offset - aligned(offset, length).0);
        let range = skip..skip + length;
        self.overlay.apply(offset, &mut buffer[range.clone()]);
        Ok(SharedBytes::new(Arc::new(buffer), range))
    }

    /// Returns the page's device offset; `None` outside the pool.
    pub(crate) fn page_offset(&self, place: Place) -> Option<u64> {
        self.geometry.device_offset(place, self.geometry.page_fragments())
    }

    /// Reads the page at `place` without verification.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn read_raw_page(&self, place: Place) -> Result<Box<PageBytes>, ReadError> {
        let offset = self.page_offset(place).ok_or(ReadError::Outside(place))?;
        Ok(boxed(&self.read(offset, PAGE_BYTES)?))
    }

    /// Reads and verifies one page.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn read_page(&self, wanted: &PageRequest) -> Result<Box<PageBytes>, ReadError> {
        let bytes = self.read_raw_page(wanted.place)?;
        self.verified(wanted, bytes)
    }

    /// Returns `bytes` if they are the wanted page, confirmed by its LSN page, else the copy that a
    /// mount would choose.
    pub(crate) fn verified(
        &self,
        wanted: &PageRequest,
        bytes: Box<PageBytes>,
    ) -> Result<Box<PageBytes>, ReadError> {
        let found = self.verify(wanted, &bytes);
        if found.is_ok() && (!self.has_copies() || self.is_told(wanted.place)) {
            return Ok(bytes);
        }
        let is_page = |page: &PageBytes| self.expect(wanted, page).is_ok();
        let newest = self.newest_copy(wanted.place, &is_page);
        let newest = newest.filter(|page| self.verify(wanted, page).is_ok());
        let Some(newest) = newest else { return found.map(|()| bytes) };
        if newest != bytes {
            self.count_from_copy();
        }
        Ok(newest)
    }

    /// Returns the newest copy that `is_page` accepts, with an LSN up to the end of the log. `None`
    /// on one device, or if the replay changed the page.
    pub(crate) fn newest_copy(
        &self,
        place: Place,
        is_page: &dyn Fn(&PageBytes) -> bool,
    ) -> Option<Box<PageBytes>> {
        if !self.has_copies() || self.is_replayed(place) {
            return None;
        }
        let copies = (0..).map_while(|copy| self.page_of_copy(copy, place)).filter_map(Result::ok);
        let is_right = |page: &PageBytes| is_page(page) && page_lsn(page) <= self.log_end;
        let newer = |one: Box<PageBytes>, other: Box<PageBytes>| {
            if page_lsn(&other) > page_lsn(&one) { other } else { one }
        };
        copies.filter(|page| is_right(page)).reduce(newer)
    }

    /// Returns bytes that pass `is_it`, from another copy or from parity. `None` on one device, or
    /// if the replay changed the range.
    pub(crate) fn other_copy(
        &self,
        purpose: IoPurpose,
        (place, length): (Place, usize),
        is_it: &dyn Fn(&[u8]) -> bool,
    ) -> Option<AlignedBuffer> {
        self.volume.members()?;
        let fragments = to_u64(length).div_ceil(self.geometry.fragment_bytes());
        let offset = self.geometry.device_offset(place, u32::try_from(fragments).ok()?)?;
        if self.overlay.holds(offset, to_u64(length)) {
            return None;
        }
        let found = self.volume.look(purpose, place, length, is_it).bytes?;
        self.count_from_copy();
        Some(found)
    }

    pub(crate) fn has_copies(&self) -> bool {
        self.volume.members().is_some()
    }

    /// Returns how many pages and blocks were taken from another copy than the first.
    #[must_use]
    pub fn from_copies(&self) -> u64 {
        self.from_copies.load(Ordering::Relaxed)
    }

    /// Reads and verifies pages, with results in the order of `wanted`.
    pub(crate) fn read_pages(
        &self,
        wanted: &[PageRequest],
    ) -> Vec<Result<Box<PageBytes>, ReadError>> {
        let offset_of = |wanted: &PageRequest| self.page_offset(wanted.place);
        let inside: Vec<usize> =
            (0..wanted.len()).filter(|&index| offset_of(&wanted[index]).is_some()).collect();
        let ranges: Vec<_> = inside
            .iter()
            .filter_map(|&index| offset_of(&wanted[index]))
            .map(|offset| (offset, PAGE_BYTES))
            .collect();
        let mut answers: Vec<Result<Box<PageBytes>, ReadError>> =
            wanted.iter().map(|wanted| Err(ReadError::Outside(wanted.place))).collect();
        self.read_many((IoPurpose::Check, 0), &ranges, &mut |position, result| {
            let index = inside[position];
            answers[index] = match result {
                Ok(bytes) => self.verified(&wanted[index], boxed(bytes)),
                Err(error) => Err(ReadError::Device(error)),
            };
        });
        answers
    }

    /// Verifies that `bytes` are the current version of the wanted page.
    pub(crate) fn verify(&self, wanted: &PageRequest, bytes: &PageBytes) -> Result<(), ReadError> {
        let header = self.expect(wanted, bytes)?;
        self.compare_lsn(&header)?;
        Ok(())
    }

    /// [`PoolReader::verify`] without the LSN page.
    fn expect(&self, wanted: &PageRequest, bytes: &PageBytes) -> Result<PageHeader, PageError> {
        let header = PageHeader::decode(bytes, self.pool_id, wanted.place)?;
        header.expect(wanted.kind, wanted.owner.unwrap_or(header.owner))?;
        Ok(header)
    }

    /// Writes into the overlay. Partly covered units are completed from the device. If that cannot
    /// be read, the unit becomes zeros with `restarts`; otherwise the write is skipped, and the
    /// unit stays unreadable.
    pub(crate) fn overwrite(&mut self, offset: u64, bytes: &[u8], restarts: bool) {
        let end = offset + to_u64(bytes.len());
        for unit in offset / UNIT_BYTES..end.div_ceil(UNIT_BYTES) {
            let start = unit * UNIT_BYTES;
            let (from, to) = (start.max(offset), (start + UNIT_BYTES).min(end));
            if !self.overlay.units.contains_key(&unit) {
                let is_covered = to - from == UNIT_BYTES;
                let content = if is_covered {
                    [0; 1024]
                } else {
                    match self.read(start, to_usize(UNIT_BYTES)) {
                        Ok(content) => *content.first_chunk().expect("read as long as asked"),
                        Err(_) if restarts => [0; 1024],
                        Err(_) => continue,
                    }
                };
                self.overlay.units.insert(unit, Box::new(content));
            }
            let content = self.overlay.units.get_mut(&unit).expect("just inserted");
            content[to_usize(from - start)..to_usize(to - start)]
                .copy_from_slice(&bytes[to_usize(from - offset)..to_usize(to - offset)]);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ReadRun {
    offset: u64,
    length: usize,
    count: usize,
}

fn run_at(ranges: &[(u64, usize)], first: usize, gap_bytes_max: u64) -> ReadRun {
    let mut run = ReadRun { offset: ranges[first].0, length: ranges[first].1, count: 1 };
    for &(offset, length) in ranges.get(first + 1..).unwrap_or(&[]) {
        let end = run.offset + to_u64(run.length);
        let is_next = offset.checked_sub(end).is_some_and(|gap| gap <= gap_bytes_max);
        let whole = offset.saturating_sub(run.offset).saturating_add(to_u64(length));
        if !is_next || whole > RUN_BYTES_MAX {
            break;
        }
        run.length = to_usize(whole);
        run.count += 1;
    }
    run
}

fn aligned(offset: u64, length: usize) -> (u64, u64) {
    let align = to_u64(IO_ALIGN_BYTES);
    (offset / align * align, (offset + to_u64(length)).next_multiple_of(align))
}

fn boxed(bytes: &[u8]) -> Box<PageBytes> {
    Box::new(*bytes.first_chunk::<PAGE_BYTES>().expect("read as long as asked"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use format::geometry::GeometryOptions;
    use storage::device::{Device, MemoryDevice};

    fn reader() -> PoolReader {
        let device = MemoryDevice::new("memory", 16 << 20);
        let content: Vec<u8> = (0..16384_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        device.write(IoPurpose::Home, 0, AlignedBuffer::copy_of(&content)).expect("in range");
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 16 << 20,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        })
        .expect("large enough");
        PoolReader::new(device, geometry, PoolId([1; 16]))
    }

    #[test]
    fn what_was_overwritten_is_read_at_every_alignment() {
        let mut reader = reader();
        let before = reader.read(0, 16384).expect("in range").to_vec();
        reader.overwrite(1020, &[0xee; 10], false);
        reader.overwrite(5000, &[0xdd; 3000], false);
        let mut expected = before;
        expected[1020..1030].fill(0xee);
        expected[5000..8000].fill(0xdd);
        for (offset, length) in [(0, 16384), (1021, 3), (1023, 8000), (7999, 2), (512, 512)] {
            let read = reader.read(offset, length).expect("in range");
            let from = to_usize(offset);
            assert!(*read == expected[from..from + length], "{length} bytes from {offset}");
        }
        assert_eq!(reader.overlay_bytes(), 6 * 1024);
    }

    #[test]
    fn many_ranges_come_back_in_order() {
        let reader = reader();
        let start = |index: u64| if index.is_multiple_of(7) { index * 60 } else { index * 64 };
        let ranges: Vec<_> = (0..200_u64).map(|index| (start(index), 64)).collect();
        let mut seen = Vec::new();
        reader.read_many((IoPurpose::Check, 0), &ranges, &mut |position, result| {
            let bytes = result.expect("in range");
            assert_eq!(bytes, &*reader.read(ranges[position].0, 64).expect("in range"));
            seen.push(position);
        });
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
    }
}
