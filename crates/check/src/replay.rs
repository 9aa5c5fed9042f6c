//! What the next mount will make of the log: a replay into memory, laid over the device.
//!
//! An implementation of its own of the recovery rules in `docs/FORMAT.md#recovery`, so that the
//! checker does not inherit a bug of the engine's.
//!
//! The order:
//!
//! 1. The double-write area: a whole group that the journal's head does not say is home, page by
//!    page where what is at home does not verify or is older.
//! 2. Whole chunks from the tail on, as far as each names the one before (L1) and lies at its own
//!    position (L2). A later chunk that claims more was durable means damage (L3); one that tells
//!    of a newer head means that this one is stale (L4).
//! 3. Redo, in order: new bytes of every update, stamps of every commit, inline log data of the
//!    classes that committed.
//! 4. Undo, backwards: old bytes and old stamps of the classes that did not.
//!
//! # Memory
//!
//! The log is read a chunk at a time and twice: once to learn which classes committed, once to
//! redo. Undo keeps what it needs of the losers.

use std::collections::{BTreeMap, BTreeSet};

use format::double_write::DoubleWriteHead;
use format::geometry::JOURNAL_HEADS;
use format::ids::{Lsn, Place};
use format::journal::{
    CHUNK_BYTES_MAX, CHUNK_HEADER_BYTES, ChunkHeader, JournalHead, PageUpdate, Record, records,
};
use format::page::{
    PAGE_BYTES, PageBytes, PageHeader, STAMP_BYTES, STAMP_OFFSET, page_crc, page_lsn, write_u32,
    write_u64,
};
use storage::device::DeviceError;

use crate::convert::{to_u64, to_usize};
use crate::reader::{OVERLAY_BYTES_MAX, Reader};
use crate::report::{Finding, Report};
use format::defect::DefectCode;

/// Chunks lie at multiples of the smallest sector.
const SECTOR_BYTES: u64 = 512;
/// Bytes that the search for chunks behind the end of the log reads at once: what stays in the
/// cache of a processor while it is looked at.
const SCAN_BYTES: usize = 64 << 10;

/// A whole chunk of the log.
#[derive(Debug)]
pub struct Chunk {
    /// Its position in the log.
    pub lsn: Lsn,
    /// Its header, verified.
    pub header: ChunkHeader,
    /// The records in it.
    pub payload: Vec<u8>,
}

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Chunks of the log.
    pub chunks: u64,
    /// Records in them.
    pub records: u64,
    /// Classes that are kept.
    pub classes_kept: u64,
    /// Classes that were undone.
    pub classes_undone: u64,
    /// Pages taken from the double-write area.
    pub double_written: u64,
}

/// Lays over the device what the next mount would write, and notes it in `report`.
pub fn replay_into(reader: &mut Reader, report: &mut Report) {
    let mut replay = Replay { reader, report, done: Replayed::default() };
    if let Err(error) = replay.run() {
        replay.defect(DefectCode::IO001, None, error.to_string());
    }
    let done = replay.done;
    report.notes.push(format!(
        "the pool is open, or was not closed: checked is the state after a replay in memory of {} \
         chunks and {} records of the log, {} classes kept, {} undone, {} pages from the \
         double-write area; a pool that is in use may change under the check",
        done.chunks, done.records, done.classes_kept, done.classes_undone, done.double_written
    ));
}

/// Looks whether the head at which a pool was closed is the newest that there was; if not, lays
/// over the device what the next mount would write.
pub(crate) fn verify_rest(reader: &mut Reader, report: &mut Report) {
    let mut replay = Replay { reader, report, done: Replayed::default() };
    let is_at_rest = replay.is_at_rest();
    match is_at_rest {
        Ok(true) => {}
        Ok(false) => replay_into(reader, report),
        Err(error) => replay.defect(DefectCode::IO001, None, error.to_string()),
    }
}

/// Hands each whole chunk of the log to `each`, and returns the head and where the log ends; `None`
/// if no head verifies.
///
/// # Errors
///
/// What the device said.
pub fn each_chunk_of(
    reader: &mut Reader,
    each: &mut dyn FnMut(&Chunk),
) -> Result<Option<(JournalHead, Lsn)>, DeviceError> {
    let mut report = Report::default();
    let mut replay = Replay { reader, report: &mut report, done: Replayed::default() };
    let Some(head) = replay.read_head()? else { return Ok(None) };
    let end = replay.each_chunk(&head, &mut |_, chunk| {
        each(chunk);
        Ok(())
    })?;
    Ok(Some((head, end)))
}

struct Replay<'run> {
    reader: &'run mut Reader,
    report: &'run mut Report,
    done: Replayed,
}

/// Which classes are kept.
#[derive(Debug, Default)]
struct Classes {
    seen: BTreeSet<u64>,
    committed: BTreeSet<u64>,
    merged: BTreeMap<u64, u64>,
}

impl Classes {
    /// Whether `class`, or what it became part of, committed.
    fn is_kept(&self, class: u64) -> bool {
        let mut next = class;
        for _ in 0..=self.merged.len() {
            if self.committed.contains(&next) {
                return true;
            }
            match self.merged.get(&next) {
                Some(&into) => next = into,
                None => return false,
            }
        }
        false
    }
}

/// Bytes to put back at an offset of a page.
struct Undo {
    place: Place,
    offset: usize,
    old: Vec<u8>,
}

impl Replay<'_> {
    fn run(&mut self) -> Result<(), DeviceError> {
        let Some(head) = self.read_head()? else {
            let offset = self.reader.geometry.journal_offset;
            self.defect(DefectCode::JR001, Some(offset), "no head verifies".to_owned());
            return Ok(());
        };
        self.double_write(&head)?;
        let mut classes = Classes::default();
        let end = self.each_chunk(&head, &mut |replay, chunk| {
            replay.learn(chunk, &mut classes);
            Ok(())
        })?;
        self.look_behind(&head, end)?;
        let (mut undos, mut lost) = (Vec::new(), BTreeSet::new());
        self.each_chunk(&head, &mut |replay, chunk| {
            replay.note_pages(chunk, &classes, &mut lost);
            replay.redo(chunk, &classes, &mut undos)
        })?;
        self.reader.logged.retain(|place| !lost.contains(place));
        for undo in undos.into_iter().rev() {
            self.write_page_bytes(undo.place, undo.offset, &undo.old)?;
        }
        let kept = classes.seen.iter().filter(|&&class| classes.is_kept(class)).count();
        self.done.classes_kept = to_u64(kept);
        self.done.classes_undone = to_u64(classes.seen.len() - kept);
        Ok(())
    }

    /// Whether the log of a closed pool ends at its head.
    fn is_at_rest(&mut self) -> Result<bool, DeviceError> {
        let Some(head) = self.read_head()? else {
            let offset = self.reader.geometry.journal_offset;
            self.defect(DefectCode::JR001, Some(offset), "no head verifies".to_owned());
            return Ok(true);
        };
        let next = self.read_chunk(head.tail)?;
        let goes_on = next.is_some_and(|(_, header, _)| {
            header.lsn == head.tail && header.previous_crc == head.previous_crc
        });
        // One of the two heads is always whole: the other may have been newer.
        let is_in_doubt =
            self.read_heads()?.iter().all(|other| other.first_slot() == head.first_slot());
        if !goes_on && is_in_doubt {
            self.look_behind(&head, head.tail)?;
        }
        Ok(!goes_on)
    }

    fn defect(&mut self, code: DefectCode, device_offset: Option<u64>, what: String) {
        self.report.add(Finding { defect: code.found(what), path: None, device_offset });
    }

    /// Reads every copy of the heads.
    fn read_heads(&self) -> Result<Vec<JournalHead>, DeviceError> {
        let geometry = &self.reader.geometry;
        let bytes = to_usize(JOURNAL_HEADS) * PAGE_BYTES;
        let bytes = self.reader.read(geometry.journal_offset, bytes)?;
        let copies = (0..).zip(bytes.chunks(PAGE_BYTES));
        let decoded = copies.filter_map(|(slot, copy)| {
            JournalHead::decode(&page_of(copy), self.reader.pool_id, geometry, slot).ok()
        });
        Ok(decoded.collect())
    }

    fn read_head(&self) -> Result<Option<JournalHead>, DeviceError> {
        Ok(self.read_heads()?.into_iter().max_by_key(|head| head.sequence))
    }

    fn ring(&self) -> (u64, u64) {
        let geometry = &self.reader.geometry;
        let heads = JOURNAL_HEADS * to_u64(PAGE_BYTES);
        (geometry.journal_offset + heads, geometry.journal_bytes.saturating_sub(heads).max(1))
    }

    /// Hands each whole chunk to `each`, and returns where the log ends.
    fn each_chunk(
        &mut self,
        head: &JournalHead,
        each: &mut dyn FnMut(&mut Self, &Chunk) -> Result<(), DeviceError>,
    ) -> Result<Lsn, DeviceError> {
        let (_, ring_bytes) = self.ring();
        let (mut next, mut previous_crc) = (head.tail, head.previous_crc);
        // No more than one round of the ring: past it, chunks would be overwritten ones.
        let end = Lsn(head.tail.0.saturating_add(ring_bytes));
        while next < end {
            let Some((crc, header, chunk)) = self.read_chunk(next)? else { break };
            if header.lsn != next || header.previous_crc != previous_crc {
                break;
            }
            if header.payload_bytes > 0 {
                each(self, &chunk)?;
            }
            previous_crc = crc;
            next = Lsn(next.0.saturating_add(u64::from(header.chunk_bytes)));
        }
        Ok(next)
    }

    /// Reads the chunk whose position is `lsn`; `None` if there is no whole one.
    fn read_chunk(&self, lsn: Lsn) -> Result<Option<(u32, ChunkHeader, Chunk)>, DeviceError> {
        let (ring_offset, ring_bytes) = self.ring();
        let at = lsn.0 % ring_bytes;
        let left = ring_bytes - at;
        if left < to_u64(CHUNK_HEADER_BYTES) {
            return Ok(None);
        }
        let head = self.reader.read(ring_offset + at, CHUNK_HEADER_BYTES)?;
        let Some(header) = ChunkHeader::peek(&head, self.reader.pool_id) else { return Ok(None) };
        let covered = to_u64(CHUNK_HEADER_BYTES) + u64::from(header.payload_bytes);
        let is_step = header.chunk_bytes > 0 && u64::from(header.chunk_bytes) <= left;
        if !is_step || covered > to_u64(CHUNK_BYTES_MAX + CHUNK_HEADER_BYTES) {
            return Ok(None);
        }
        let bytes = self.reader.read(ring_offset + at, to_usize(covered))?;
        Ok(ChunkHeader::decode(&bytes, self.reader.pool_id).map(|(crc, header, payload)| {
            (crc, header, Chunk { lsn, header, payload: payload.to_vec() })
        }))
    }

    /// Looks in the whole ring for a chunk that was written after more was durable (L3), or after a
    /// head that is not there any more (L4).
    fn look_behind(&mut self, head: &JournalHead, end: Lsn) -> Result<(), DeviceError> {
        let (ring_offset, ring_bytes) = self.ring();
        let mut at = 0;
        while at < ring_bytes {
            let length = SCAN_BYTES.min(to_usize(ring_bytes - at));
            let bytes = self.reader.read(ring_offset + at, length)?;
            let sectors = bytes.chunks(to_usize(SECTOR_BYTES));
            for (position, sector) in (at..).step_by(to_usize(SECTOR_BYTES)).zip(sectors) {
                let Some(header) = ChunkHeader::peek(sector, self.reader.pool_id) else { continue };
                let is_at_home = header.lsn.0 % ring_bytes == position;
                if is_at_home
                    && header.head > head.sequence
                    && self.read_chunk(header.lsn)?.is_some()
                {
                    let what = format!(
                        "the newest head that verifies is {}, but the chunk at {} was written \
                         after head {} was durable",
                        head.sequence, header.lsn, header.head
                    );
                    self.defect(DefectCode::JR006, Some(self.reader.geometry.journal_offset), what);
                    return Ok(());
                }
                let is_behind = header.lsn > end
                    && header.lsn.0 - end.0 < ring_bytes
                    && is_at_home
                    && header.flushed > end;
                if is_behind && self.read_chunk(header.lsn)?.is_some() {
                    let what = format!(
                        "the log ends at {end}, but the chunk at {} says that all before {} was \
                         durable",
                        header.lsn, header.flushed
                    );
                    self.defect(DefectCode::JR002, Some(ring_offset + end.0 % ring_bytes), what);
                    return Ok(());
                }
            }
            at += to_u64(length);
        }
        Ok(())
    }

    /// Learns from a chunk which classes there are, and which of them committed.
    fn learn(&mut self, chunk: &Chunk, classes: &mut Classes) {
        self.done.chunks += 1;
        for record in records(&chunk.payload) {
            self.done.records += 1;
            match record {
                None => {
                    let what = format!("the chunk at {} has a record that can't be so", chunk.lsn);
                    self.defect(DefectCode::JR003, None, what);
                }
                Some(Record::Update { class, .. } | Record::LogData { class, .. }) => {
                    classes.seen.insert(class);
                }
                Some(Record::Commit { class, .. }) => {
                    classes.seen.insert(class);
                    classes.committed.insert(class);
                }
                Some(Record::Merge { class, into }) => {
                    classes.seen.insert(class);
                    classes.merged.insert(class, into);
                }
            }
        }
    }

    /// Notes which pages the chunk changes; `lost`: those that a class made that is not kept, so
    /// that nothing leads there.
    fn note_pages(&mut self, chunk: &Chunk, classes: &Classes, lost: &mut BTreeSet<Place>) {
        for record in records(&chunk.payload).flatten() {
            let Record::Update { class, pages, .. } = record else { continue };
            for page in pages {
                if page.image.is_some() && !classes.is_kept(class) {
                    lost.insert(page.place);
                }
                // Of an LSN page what an earlier recovery has listed is not in the log.
                if !self.reader.geometry.is_lsn_page(page.place) {
                    self.reader.logged.insert(page.place);
                }
            }
        }
    }

    fn redo(
        &mut self,
        chunk: &Chunk,
        classes: &Classes,
        undos: &mut Vec<Undo>,
    ) -> Result<(), DeviceError> {
        for record in records(&chunk.payload).flatten() {
            match record {
                Record::Update { class, pages, .. } => {
                    let is_kept = classes.is_kept(class);
                    for page in &pages {
                        self.redo_page(page)?;
                        if !is_kept {
                            remember(page, undos);
                        }
                    }
                }
                Record::Commit { lsn, pages, .. } => {
                    for (place, crc) in pages {
                        let mut stamp = [0; STAMP_BYTES];
                        write_u32(&mut stamp, 0, crc);
                        write_u64(&mut stamp, 4, lsn.0);
                        self.write_page_bytes(place, STAMP_OFFSET, &stamp)?;
                    }
                }
                Record::Merge { .. } => {}
                Record::LogData { class, place, bytes, .. } => {
                    if classes.is_kept(class) {
                        self.put_log_data(place, bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn redo_page(&mut self, page: &PageUpdate<'_>) -> Result<(), DeviceError> {
        if let Some(image) = page.image {
            let mut bytes = [0; PAGE_BYTES];
            if let Some(kept) = bytes.get_mut(..image.len()) {
                kept.copy_from_slice(image);
            }
            self.write_page_bytes(page.place, 0, &bytes)?;
        }
        for run in &page.runs {
            self.write_page_bytes(page.place, run.offset, run.new)?;
        }
        Ok(())
    }

    fn put_log_data(&mut self, place: Place, bytes: &[u8]) -> Result<(), DeviceError> {
        let geometry = &self.reader.geometry;
        let count = to_u64(bytes.len()).div_ceil(geometry.fragment_bytes());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match geometry.device_offset(place, count) {
            Some(offset) => self.overwrite(offset, bytes),
            None => {
                let what = format!("{} inline log data for {place}", bytes.len());
                self.defect(DefectCode::JR003, None, what);
                Ok(())
            }
        }
    }

    fn write_page_bytes(
        &mut self,
        place: Place,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        let geometry = &self.reader.geometry;
        let is_inside = offset + bytes.len() <= PAGE_BYTES;
        match geometry.device_offset(place, geometry.page_fragments()).filter(|_| is_inside) {
            Some(page) => self.overwrite(page + to_u64(offset), bytes),
            None => {
                self.defect(DefectCode::JR003, None, format!("a record for {place}"));
                Ok(())
            }
        }
    }

    /// Overwrites in memory, up to the bound; past it the log is absurd and the rest is left out.
    fn overwrite(&mut self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if self.reader.overlay_bytes() > OVERLAY_BYTES_MAX {
            let what = format!("the log changes more than {OVERLAY_BYTES_MAX} bytes");
            self.defect(DefectCode::JR003, None, what);
            return Ok(());
        }
        self.reader.overwrite(offset, bytes)
    }

    /// Takes what is in the double-write area, if it holds a whole group that is not home yet: the
    /// places of one that is may be something else by now.
    fn double_write(&mut self, head: &JournalHead) -> Result<(), DeviceError> {
        let Some(entries) = self.double_write_entries(head)? else { return Ok(()) };
        let mut pages = Vec::new();
        for (index, (place, crc)) in (0..).zip(entries) {
            let offset = DoubleWriteHead::page_offset(&self.reader.geometry, index);
            let copy = page_of(&self.reader.read(offset, PAGE_BYTES)?);
            if page_crc(&copy) != crc {
                return Ok(());
            }
            pages.push((place, copy));
        }
        for (place, copy) in pages {
            let geometry = &self.reader.geometry;
            let Some(offset) = geometry.device_offset(place, geometry.page_fragments()) else {
                self.defect(DefectCode::JR003, None, format!("the double-write area has {place}"));
                continue;
            };
            let home = page_of(&self.reader.read(offset, PAGE_BYTES)?);
            let is_whole = PageHeader::decode(&home, self.reader.pool_id, place).is_ok();
            if !is_whole || page_lsn(&home) < page_lsn(&copy) {
                self.done.double_written += 1;
                self.overwrite(offset, &copy)?;
            }
        }
        Ok(())
    }

    /// Returns what the heads of the double-write area list, if they are of one whole group.
    fn double_write_entries(
        &self,
        journal: &JournalHead,
    ) -> Result<Option<Vec<(Place, u32)>>, DeviceError> {
        let geometry = &self.reader.geometry;
        let mut entries = Vec::new();
        let mut group: Option<(u64, u64)> = None;
        for index in 0..geometry.double_write_heads() {
            let offset = DoubleWriteHead::head_offset(geometry, index);
            let bytes = page_of(&self.reader.read(offset, PAGE_BYTES)?);
            let head = DoubleWriteHead::decode(&bytes, self.reader.pool_id, geometry, index);
            let Some(head) = head else { return Ok(None) };
            let found = (head.sequence, head.page_count);
            let is_home = head.sequence <= journal.double_write_sequence;
            if *group.get_or_insert(found) != found || is_home {
                return Ok(None);
            }
            entries.extend(head.entries);
            if to_u64(entries.len()) >= head.page_count {
                break;
            }
        }
        Ok(group.filter(|&(_, count)| count == to_u64(entries.len())).map(|_| entries))
    }
}

/// Keeps what it takes to undo one page of a loser. A page that is logged whole is new, and
/// nothing that is kept points to it.
fn remember(page: &PageUpdate<'_>, undos: &mut Vec<Undo>) {
    if let Some(stamp) = page.old_stamp {
        undos.push(Undo { place: page.place, offset: STAMP_OFFSET, old: stamp.to_vec() });
    }
    for run in &page.runs {
        let old = run.old.map_or_else(|| vec![0; run.new.len()], <[u8]>::to_vec);
        undos.push(Undo { place: page.place, offset: run.offset, old });
    }
}

fn page_of(bytes: &[u8]) -> PageBytes {
    *bytes.first_chunk::<PAGE_BYTES>().expect("read as long as asked")
}

const _: () = assert!(CHUNK_HEADER_BYTES < 512, "a header lies in one sector");
