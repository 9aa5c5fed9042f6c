//! Replay of the log into memory, as an overlay on the device: the state of the next mount.
//!
//! An independent implementation of the recovery rules in `docs/FORMAT.md#recovery`, so that the
//! checker does not inherit a bug of the engine's.
//!
//! The order:
//!
//! 1. The double-write area: a whole group that the journal's head does not record as written back,
//!    page by page where the home page does not verify or is older.
//! 2. Whole chunks from the tail on, as far as each names the one before (L1) and lies at its own
//!    position (L2). A later chunk that proves more was durable means damage (L3); one that refers
//!    to a newer head means that this head is stale (L4).
//! 3. Redo, in order: new bytes of every update, stamps of every commit, inline log data of the
//!    classes that committed.
//! 4. Undo, backwards: old bytes and old stamps of the other classes.
//!
//! # Unreadable sectors
//!
//! Sectors that a mount does not need, or has elsewhere, cost nothing here either (`log.rs`,
//! `double_write.rs`). If a page changed by the log cannot be read, it stays unreadable, and later
//! passes report it. If the log itself is lost, the state is torn ([`ReplayResult::is_whole`]) and
//! proves nothing.
//!
//! # Memory
//!
//! The log is read a chunk at a time: to find its end, to find committed classes, to note the pages
//! it changes, and to redo. Old bytes are kept only for classes to undo.

mod copies;
mod double_write;
mod log;

use std::collections::{BTreeMap, BTreeSet};

use format::ids::{Lsn, Place};
use format::journal::{ChunkHeader, JournalHead, LogRecord, PageUpdate, records};
use format::page::{PAGE_BYTES, PageBytes, STAMP_BYTES, STAMP_OFFSET, write_u32, write_u64};
use storage::device::DeviceError;

pub(crate) use self::log::copies_of_heads;
use self::log::{DeviceLog, LogChunkCursor, LogLoss};
use crate::convert::to_u64;
use crate::reader::{OVERLAY_BYTES_MAX, PoolReader};
use crate::report::{ConsistencyReport, DefectFinding};
use format::defect::DefectCode;

/// A whole chunk of the log.
#[derive(Debug)]
pub struct ReplayedChunk {
    /// Position in the log.
    pub lsn: Lsn,
    /// The verified header.
    pub header: ChunkHeader,
    /// The records.
    pub payload: Vec<u8>,
}

/// Results of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayResult {
    /// Chunks of the log.
    pub chunks: u64,
    /// Records in them.
    pub records: u64,
    /// Classes kept.
    pub classes_kept: u64,
    /// Classes undone.
    pub classes_undone: u64,
    /// Pages taken from the double-write area.
    pub double_written: u64,
    /// Memory used, without the overlay in the reader.
    pub memory_bytes: u64,
    /// Whether the state is complete. If not, parts of the lost log may be missing or half applied.
    pub is_whole: bool,
}

/// Lays the next mount's writes over the device, and reports the replay in `report`.
pub fn replay_into(reader: &mut PoolReader, report: &mut ConsistencyReport) -> ReplayResult {
    let mut replay = OverlayReplay::new(reader, report);
    replay.done.is_whole = replay.run().map_err(|lost| replay.lost(lost)).is_ok();
    let done = replay.done;
    report.notes.push(format!(
        "the pool is open, or was not closed: checked is the state after a replay in memory of {} \
         chunks and {} records of the log, {} classes kept, {} undone, {} pages from the \
         double-write area; a pool that is in use may change under the check",
        done.chunks, done.records, done.classes_kept, done.classes_undone, done.double_written
    ));
    done
}

/// Verifies that the head of a closed pool is the newest. If not, replays the log.
pub(crate) fn verify_rest(reader: &mut PoolReader, report: &mut ConsistencyReport) -> ReplayResult {
    match copies::is_at_rest(reader) {
        Ok(true) => ReplayResult { is_whole: true, ..ReplayResult::default() },
        Ok(false) => replay_into(reader, report),
        Err(lost) => {
            OverlayReplay::new(reader, report).lost(lost);
            ReplayResult::default()
        }
    }
}

/// Calls `each` with each whole chunk of the log, and returns the head and the log's end; `None` if
/// no head verifies.
///
/// # Errors
///
/// The device's error.
pub fn each_chunk_of(
    reader: &mut PoolReader,
    each: &mut dyn FnMut(&ReplayedChunk),
) -> Result<Option<(JournalHead, Lsn)>, DeviceError> {
    let Ok(heads) = log::read_heads(reader) else { return Ok(None) };
    let mut chunks = LogChunkCursor::of(reader, &heads.newest);
    while let Some(chunk) = chunks.read_next(reader)? {
        each(&chunk);
    }
    Ok(Some((heads.newest, chunks.next)))
}

struct OverlayReplay<'run> {
    reader: &'run mut PoolReader,
    report: &'run mut ConsistencyReport,
    done: ReplayResult,
    /// Pages replayed from another copy. `None` while the replay writes into the reader's overlay.
    bases: Option<BTreeMap<Place, Box<PageBytes>>>,
}

#[derive(Debug, Default)]
struct Classes {
    seen: BTreeSet<u64>,
    /// Committed classes; after [`Classes::resolve`], also the classes merged into them.
    kept: BTreeSet<u64>,
    parts: BTreeMap<u64, Vec<u64>>,
}

const CLASS_BYTES: u64 = 96;

impl Classes {
    /// Adds classes merged into kept ones, in any order of the log.
    fn resolve(&mut self) {
        let mut next: Vec<u64> = self.kept.iter().copied().collect();
        while let Some(class) = next.pop() {
            let parts = self.parts.remove(&class).unwrap_or_default();
            next.extend(parts.into_iter().filter(|part| self.kept.insert(*part)));
        }
    }

    fn is_kept(&self, class: u64) -> bool {
        self.kept.contains(&class)
    }
}

struct Undo {
    place: Place,
    offset: usize,
    old: Vec<u8>,
}

impl<'run> OverlayReplay<'run> {
    fn new(
        reader: &'run mut PoolReader,
        report: &'run mut ConsistencyReport,
    ) -> OverlayReplay<'run> {
        OverlayReplay { reader, report, done: ReplayResult::default(), bases: None }
    }
}

impl OverlayReplay<'_> {
    fn run(&mut self) -> Result<(), LogLoss> {
        let log = copies::find(self.reader, &mut self.report.notes)?;
        if log.lost.is_none() {
            self.reader.log_end = log.end;
        }
        if log.passed_over > 0 {
            self.report.notes.push(format!(
                "{} pages of the journal can't be read; the log is not in them, and is written \
                 over them in its turn",
                log.passed_over
            ));
        }
        self.double_write(&log.head);
        let mut classes = Classes::default();
        self.each_chunk(&log, &mut |replay, chunk| replay.learn(chunk, &mut classes))?;
        classes.resolve();
        let mut lost = BTreeSet::new();
        self.each_chunk(&log, &mut |replay, chunk| replay.note_pages(chunk, &classes, &mut lost))?;
        self.reader.logged.retain(|place| !lost.contains(place));
        let undo_bytes = self.redo_all(&log, &classes)?;
        self.done.memory_bytes = to_u64(classes.seen.len()) * CLASS_BYTES + undo_bytes;
        self.take_from_copies(&log, &classes)?;
        let kept = classes.seen.iter().filter(|&&class| classes.is_kept(class)).count();
        self.done.classes_kept = to_u64(kept);
        self.done.classes_undone = to_u64(classes.seen.len() - kept);
        log.lost.map_or(Ok(()), Err)
    }

    /// Redoes the log and undoes classes; returns the memory used.
    fn redo_all(&mut self, log: &DeviceLog, classes: &Classes) -> Result<u64, LogLoss> {
        let mut undos = Vec::new();
        self.each_chunk(log, &mut |replay, chunk| replay.redo(chunk, classes, &mut undos))?;
        let bytes: usize = undos.iter().map(|undo| size_of::<Undo>() + undo.old.len()).sum();
        for undo in undos.into_iter().rev() {
            self.write_page_bytes(undo.place, undo.offset, &undo.old);
        }
        Ok(to_u64(bytes))
    }

    fn defect(&mut self, code: DefectCode, device_offset: Option<u64>, what: String) {
        self.report.add(DefectFinding { defect: code.found(what), path: None, device_offset });
    }

    fn lost(&mut self, lost: LogLoss) {
        self.defect(lost.code, lost.device_offset, lost.what);
    }

    fn each_chunk(
        &mut self,
        log: &DeviceLog,
        each: &mut dyn FnMut(&mut Self, &ReplayedChunk),
    ) -> Result<(), LogLoss> {
        let mut chunks = LogChunkCursor::of(self.reader, &log.head);
        while chunks.next < log.end {
            let next = chunks.read_next(self.reader);
            match next.map_err(|error| LogLoss::unread(self.reader, chunks.next, &error))? {
                Some(chunk) => each(self, &chunk),
                None => break,
            }
        }
        Ok(())
    }

    fn learn(&mut self, chunk: &ReplayedChunk, classes: &mut Classes) {
        self.done.chunks += 1;
        for record in records(&chunk.payload) {
            self.done.records += 1;
            match record {
                None => {
                    let what = format!("the chunk at {} has a record that can't be so", chunk.lsn);
                    self.defect(DefectCode::JR003, None, what);
                }
                Some(LogRecord::Update { class, .. } | LogRecord::LogData { class, .. }) => {
                    classes.seen.insert(class);
                }
                Some(LogRecord::Commit { class, .. }) => {
                    classes.seen.insert(class);
                    classes.kept.insert(class);
                }
                Some(LogRecord::Merge { class, into }) => {
                    classes.seen.insert(class);
                    classes.parts.entry(into).or_default().push(class);
                }
            }
        }
    }

    /// Notes changed pages. `lost` gets those created by undone classes: no pointer leads to them.
    fn note_pages(&mut self, chunk: &ReplayedChunk, classes: &Classes, lost: &mut BTreeSet<Place>) {
        for record in records(&chunk.payload).flatten() {
            let LogRecord::Update { class, pages, .. } = record else { continue };
            for page in pages {
                if page.image.is_some() && !classes.is_kept(class) {
                    lost.insert(page.place);
                }
                // LSN pages need not verify: an earlier recovery may have changed them without
                // logging it.
                if !self.reader.geometry.is_lsn_page(page.place) {
                    self.reader.logged.insert(page.place);
                }
            }
        }
    }

    fn redo(&mut self, chunk: &ReplayedChunk, classes: &Classes, undos: &mut Vec<Undo>) {
        for record in records(&chunk.payload).flatten() {
            match record {
                LogRecord::Update { class, pages, .. } => {
                    let is_kept = classes.is_kept(class);
                    for page in &pages {
                        self.redo_page(page);
                        if !is_kept {
                            remember(page, undos);
                        }
                    }
                }
                LogRecord::Commit { lsn, pages, .. } => {
                    for (place, crc) in pages {
                        let mut stamp = [0; STAMP_BYTES];
                        write_u32(&mut stamp, 0, crc);
                        write_u64(&mut stamp, 4, lsn.0);
                        self.write_page_bytes(place, STAMP_OFFSET, &stamp);
                    }
                }
                LogRecord::Merge { .. } => {}
                LogRecord::LogData { class, place, bytes, .. } => {
                    if classes.is_kept(class) {
                        self.put_log_data(place, bytes);
                    }
                }
            }
        }
    }

    fn redo_page(&mut self, page: &PageUpdate<'_>) {
        if let Some(image) = page.image {
            let mut bytes = [0; PAGE_BYTES];
            if let Some(kept) = bytes.get_mut(..image.len()) {
                kept.copy_from_slice(image);
            }
            self.write_page_bytes(page.place, 0, &bytes);
        }
        for run in &page.runs {
            self.write_page_bytes(page.place, run.offset, run.new);
        }
    }

    fn put_log_data(&mut self, place: Place, bytes: &[u8]) {
        if self.bases.is_some() {
            return;
        }
        let geometry = &self.reader.geometry;
        let count = to_u64(bytes.len()).div_ceil(geometry.fragment_bytes());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        match geometry.device_offset(place, count) {
            // The rest of the last unit is unused, so it may become zeros.
            Some(offset) => self.overwrite(offset, bytes, true),
            None => {
                let what = format!("{} inline log data for {place}", bytes.len());
                self.defect(DefectCode::JR003, None, what);
            }
        }
    }

    fn write_page_bytes(&mut self, place: Place, offset: usize, bytes: &[u8]) {
        if self.is_for_copy(place, offset, bytes) {
            return;
        }
        let geometry = &self.reader.geometry;
        let is_inside = offset + bytes.len() <= PAGE_BYTES;
        let restarts = geometry.is_lsn_page(place);
        match geometry.device_offset(place, geometry.page_fragments()).filter(|_| is_inside) {
            Some(page) => self.overwrite(page + to_u64(offset), bytes, restarts),
            None => self.defect(DefectCode::JR003, None, format!("a record for {place}")),
        }
    }

    /// Past the bound of the overlay the log is absurd, and the rest is dropped. With
    /// `restarts`, unreadable surroundings become zeros.
    fn overwrite(&mut self, offset: u64, bytes: &[u8], restarts: bool) {
        if self.reader.overlay_bytes() > OVERLAY_BYTES_MAX {
            let what = format!("the log changes more than {OVERLAY_BYTES_MAX} bytes");
            self.defect(DefectCode::JR003, None, what);
            return;
        }
        self.reader.overwrite(offset, bytes, restarts);
    }
}

/// Keeps old bytes for an undo. A page logged whole is new and needs none.
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
