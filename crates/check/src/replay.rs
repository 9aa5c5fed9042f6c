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
//! # What can't be read
//!
//! What a mount does not ask for, or has elsewhere, costs nothing here either: `log.rs` and
//! `double_write.rs` say which that is. Where bytes of the log go over a page that can't be read
//! the page stays as it is, and whoever needs it says so. Where the log itself is lost the state is
//! torn ([`Replayed::is_whole`]), and nothing may be concluded from it.
//!
//! # Memory
//!
//! The log is read a chunk at a time: to find its end, to learn which classes committed, to note
//! which pages it changes, and to redo. Undo keeps what it needs of the losers.

mod copies;
mod double_write;
mod log;

use std::collections::{BTreeMap, BTreeSet};

use format::ids::{Lsn, Place};
use format::journal::{ChunkHeader, JournalHead, PageUpdate, Record, records};
use format::page::{PAGE_BYTES, PageBytes, STAMP_BYTES, STAMP_OFFSET, write_u32, write_u64};
use storage::device::DeviceError;

pub(crate) use self::log::copies_of_heads;
use self::log::{Chunks, Log, Lost};
use crate::convert::to_u64;
use crate::reader::{OVERLAY_BYTES_MAX, Reader};
use crate::report::{Finding, Report};
use format::defect::DefectCode;

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
    /// Bytes of memory that it took beside what it left in the reader.
    pub memory_bytes: u64,
    /// Whether the state is all that was durable: what of a log is lost may be missing, or half
    /// there.
    pub is_whole: bool,
}

/// Lays over the device what the next mount would write, and notes it in `report`.
pub fn replay_into(reader: &mut Reader, report: &mut Report) -> Replayed {
    let mut replay = Replay::new(reader, report);
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

/// Looks whether the head at which a pool was closed is the newest that there was; if not, lays
/// over the device what the next mount would write.
pub(crate) fn verify_rest(reader: &mut Reader, report: &mut Report) -> Replayed {
    match copies::is_at_rest(reader) {
        Ok(true) => Replayed { is_whole: true, ..Replayed::default() },
        Ok(false) => replay_into(reader, report),
        Err(lost) => {
            Replay::new(reader, report).lost(lost);
            Replayed::default()
        }
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
    let Ok(heads) = log::read_heads(reader) else { return Ok(None) };
    let mut chunks = Chunks::of(reader, &heads.newest);
    while let Some(chunk) = chunks.read_next(reader)? {
        each(&chunk);
    }
    Ok(Some((heads.newest, chunks.next)))
}

struct Replay<'run> {
    reader: &'run mut Reader,
    report: &'run mut Report,
    done: Replayed,
    /// Pages that begin as another device has them; `None`: all is done, and in the reader.
    bases: Option<BTreeMap<Place, Box<PageBytes>>>,
}

/// Which classes are kept.
#[derive(Debug, Default)]
struct Classes {
    seen: BTreeSet<u64>,
    /// What committed; when all was learnt, also what became part of that.
    kept: BTreeSet<u64>,
    /// What became part of each class.
    parts: BTreeMap<u64, Vec<u64>>,
}

/// Memory for a class, in all that there is of it.
const CLASS_BYTES: u64 = 96;

impl Classes {
    /// Finds what became part of what is kept, whichever way round the log says it: each class is
    /// looked at once.
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

/// Bytes to put back at an offset of a page.
struct Undo {
    place: Place,
    offset: usize,
    old: Vec<u8>,
}

impl<'run> Replay<'run> {
    fn new(reader: &'run mut Reader, report: &'run mut Report) -> Replay<'run> {
        Replay { reader, report, done: Replayed::default(), bases: None }
    }
}

impl Replay<'_> {
    fn run(&mut self) -> Result<(), Lost> {
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

    /// Redoes the whole log, and undoes what is not kept. Returns the bytes that took.
    fn redo_all(&mut self, log: &Log, classes: &Classes) -> Result<u64, Lost> {
        let mut undos = Vec::new();
        self.each_chunk(log, &mut |replay, chunk| replay.redo(chunk, classes, &mut undos))?;
        let bytes: usize = undos.iter().map(|undo| size_of::<Undo>() + undo.old.len()).sum();
        for undo in undos.into_iter().rev() {
            self.write_page_bytes(undo.place, undo.offset, &undo.old);
        }
        Ok(to_u64(bytes))
    }

    fn defect(&mut self, code: DefectCode, device_offset: Option<u64>, what: String) {
        self.report.add(Finding { defect: code.found(what), path: None, device_offset });
    }

    fn lost(&mut self, lost: Lost) {
        self.defect(lost.code, lost.device_offset, lost.what);
    }

    /// Hands each chunk that was found to `each`.
    fn each_chunk(
        &mut self,
        log: &Log,
        each: &mut dyn FnMut(&mut Self, &Chunk),
    ) -> Result<(), Lost> {
        let mut chunks = Chunks::of(self.reader, &log.head);
        while chunks.next < log.end {
            let next = chunks.read_next(self.reader);
            match next.map_err(|error| Lost::unread(self.reader, chunks.next, &error))? {
                Some(chunk) => each(self, &chunk),
                None => break,
            }
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
                    classes.kept.insert(class);
                }
                Some(Record::Merge { class, into }) => {
                    classes.seen.insert(class);
                    classes.parts.entry(into).or_default().push(class);
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

    fn redo(&mut self, chunk: &Chunk, classes: &Classes, undos: &mut Vec<Undo>) {
        for record in records(&chunk.payload).flatten() {
            match record {
                Record::Update { class, pages, .. } => {
                    let is_kept = classes.is_kept(class);
                    for page in &pages {
                        self.redo_page(page);
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
                        self.write_page_bytes(place, STAMP_OFFSET, &stamp);
                    }
                }
                Record::Merge { .. } => {}
                Record::LogData { class, place, bytes, .. } => {
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
            // What shares its last unit belongs to nobody.
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
        let begins_anew = geometry.is_lsn_page(place);
        match geometry.device_offset(place, geometry.page_fragments()).filter(|_| is_inside) {
            Some(page) => self.overwrite(page + to_u64(offset), bytes, begins_anew),
            None => self.defect(DefectCode::JR003, None, format!("a record for {place}")),
        }
    }

    /// Overwrites in memory, up to the bound; past it the log is absurd and the rest is left out.
    /// `begins_anew`: what lies around, and can't be read, is as if it were zeros.
    fn overwrite(&mut self, offset: u64, bytes: &[u8], begins_anew: bool) {
        if self.reader.overlay_bytes() > OVERLAY_BYTES_MAX {
            let what = format!("the log changes more than {OVERLAY_BYTES_MAX} bytes");
            self.defect(DefectCode::JR003, None, what);
            return;
        }
        self.reader.overwrite(offset, bytes, begins_anew);
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
