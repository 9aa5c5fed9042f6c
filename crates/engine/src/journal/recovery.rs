//! Recovery: the work of opening a pool after a crash.
//!
//! 1. A whole group in the double-write area that the head does not record as written back is
//!    copied home.
//! 2. The log is read from its tail to the first chunk that is not whole or not next (L1, L2).
//! 3. Redo: every update is applied, in order, unconditionally: new bytes, whole pages, and, where
//!    a class commits, its pages' stamps. Torn pages heal, because every byte that changed since
//!    the last checkpoint is in the log.
//! 4. Undo: updates of classes without a commit are reverted, in reverse order: old bytes, old
//!    stamps.
//! 5. Every touched page must verify at the end. Redo and undo compute no checksum, so a mismatch
//!    is a defect, and is never hidden.
//! 6. The LSNs of these pages are listed in their LSN pages (`lsn_pages.rs`).
//! 7. Pages and inline log data are written home, and the caller writes summaries for inline data.
//!    Only then is the log given up: a new head is written at a position that no old chunk can
//!    have.
//!
//! # Crashes
//!
//! Until the new head is durable the log is untouched, so a second crash repeats the same steps
//! with the same result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::defect::DefectCode;
use format::geometry::{BLOCK_SHIFTS, JOURNAL_HEADS};
use format::ids::{EPOCH_MAX, Epoch, LSN_MAX, Lsn, Place, PoolId};
use format::journal::{
    CHUNK_BYTES_MAX, ChunkHeader, JournalHead, LogDataOwner, LogRecord, records,
};
use format::page::{
    PAGE_BYTES, PageBytes, PageError, PageHeader, STAMP_OFFSET, write_u32, write_u64,
};
use format::pointer::{BLOCK_FRAGMENTS_MAX, BlockPointer};
use runtime::planted;
use storage::device::{AlignedBuffer, DeviceError, IoPurpose, SharedBytes, Ticket};
use storage::volume::Volume;

use super::copies::{StoredLog, furthest_log};
use super::double_write::{restore_double_writes, write_group};
use super::log::CHUNK_BYTES_SOFT;
use super::lsn_pages::RecoveredLsns;
use super::ring::LogRing;
use super::{JournalStart, checkpoint, ring_bytes};
use crate::buffer::{PageRef, page_of, page_of_mut};
use crate::convert::{index_wide, narrow, wide};

const READ_BYTES: u64 = 1 << 20;
/// The smallest sector: a pool may be copied to a device with larger ones.
const CHUNK_ALIGN_BYTES: u64 = 512;
const READ_AT_REST_BYTES: u64 = 64 << 10;
/// Epochs skipped after a crash: more than a lost log can have assigned.
pub(super) const EPOCH_JUMP: u64 = 1 << 24;

/// Reasons why a pool cannot be recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A device could not be read or written. Retry once it works.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The log may continue in unreadable sectors. Retry, or restore from a backup.
    #[error(
        "{error}: the log may go on there, at {at}, and without it what was acknowledged could be \
         lost. Nothing was changed: try again, or restore from a backup"
    )]
    Unread {
        /// Position of the next chunk.
        at: Lsn,
        /// The device's error.
        error: DeviceError,
    },
    /// Neither head of the journal verifies: the journal is lost. Restore, or copy out what can be
    /// read.
    #[error("{}: neither head page of the journal verifies: {cause}", DefectCode::JR001)]
    NoHead {
        /// Decoding error of a head.
        cause: PageError,
    },
    /// The log is damaged before a position that was durable.
    #[error("{}: the log is damaged at {at}, before {flushed} that was durable", DefectCode::JR002)]
    Damaged {
        /// Position of the damaged chunk.
        at: Lsn,
        /// Durable position according to a later chunk.
        flushed: Lsn,
    },
    /// The newest head is lost, and the log before it may have been overwritten.
    #[error(
        "{}: {device}: both copies of head {lost} of the journal are damaged (the chunk at {at} \
         was written after it; the newest that verifies is head {newest}): to go on from there \
         could lose what was acknowledged. Nothing was changed. Copy the device, run `holdfast \
         check` on the copy, and restore from a backup; docs/CHECK.md says more",
        DefectCode::JR006
    )]
    HeadLost {
        /// Name of the device.
        device: String,
        /// Sequence of the lost head.
        lost: u64,
        /// Sequence of the newest head that verifies.
        newest: u64,
        /// The chunk that refers to the lost head.
        at: Lsn,
    },
    /// An impossible record under a good checksum: a bug, or malice.
    #[error("{}: a record in the chunk at {at} can't be so", DefectCode::JR003)]
    BadRecord {
        /// The chunk.
        at: Lsn,
    },
    /// Positions or epochs are past the limits of the format.
    #[error(
        "{}: {what} {value} leaves no room for another life of the pool: damage, or 14 years of \
         writing at 10 GB/s. Copy what can be read to a new pool",
        DefectCode::JR007
    )]
    Exhausted {
        /// Name of the number.
        what: &'static str,
        /// Value found.
        value: u64,
    },
    /// A page does not verify after redo and undo.
    #[error("{code}: a page does not verify after recovery: {0}", code = DefectCode::JR004)]
    Page(PageError),
}

/// Results of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Whether the log held anything.
    pub was_needed: bool,
    /// Bytes of log read.
    pub log_bytes: u64,
    /// Pages redone or undone.
    pub pages: u64,
    /// Classes kept.
    pub classes_kept: u64,
    /// Updates undone.
    pub updates_undone: u64,
    /// Blocks of inline log data kept.
    pub log_data: u64,
    /// Blocks of inline log data for which a summary was written, because none listed them.
    pub log_data_listed: u64,
    /// Pages copied home from the double-write area.
    pub double_writes: u64,
    /// Blocks beside inline log data that no member returned. Those in use are reported once the
    /// pool is open.
    pub lost_blocks: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayedLogData<'a> {
    /// Inside one segment of the main disk group.
    pub(crate) place: Place,
    pub(crate) fragments: u32,
    pub(crate) owner: LogDataOwner,
    /// Checksum of the block's pointer.
    pub(crate) check: [u32; 4],
    pub(crate) bytes: &'a [u8],
}

pub(crate) type BeforeHeadHook<'a> =
    &'a dyn Fn(&[ReplayedLogData<'_>], &Range<Lsn>) -> Result<u64, DeviceError>;

#[derive(Debug)]
pub(crate) struct Recovery {
    pub(crate) start: JournalStart,
    pub(crate) void: format::superblock::VoidInterval,
    pub(crate) report: RecoveryReport,
}

pub(super) struct LogChunk {
    lsn: Lsn,
    bytes: AlignedBuffer,
    payload_bytes: usize,
}

impl LogChunk {
    fn records(&self) -> impl Iterator<Item = Result<LogRecord<'_>, RecoveryError>> {
        let start = format::journal::CHUNK_HEADER_BYTES;
        let payload = &self.bytes[start..start + self.payload_bytes];
        records(payload).map(|record| record.ok_or(RecoveryError::BadRecord { at: self.lsn }))
    }
}

/// The newest head, and whether a newer one may be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct JournalHeads {
    pub(super) newest: JournalHead,
    /// No copy of the other head verifies, and that head may have been newer.
    pub(super) is_in_doubt: bool,
}

/// Returns the newest head that verifies. Each head has two copies, so an unreadable copy counts as
/// damaged.
pub(super) fn read_heads(volume: &Volume, pool_id: PoolId) -> Result<JournalHeads, RecoveryError> {
    let geometry = volume.geometry();
    let mut heads = Vec::new();
    let (mut cause, mut unread) = (None, None);
    for slot in 0..JOURNAL_HEADS {
        let offset = geometry.journal_offset + slot * 4096;
        let bytes = match volume.read_fixed(IoPurpose::Journal, offset, PAGE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, slot, "a copy of a journal head cannot be read");
                unread = Some(error);
                continue;
            }
        };
        match JournalHead::decode(page_of(&bytes), pool_id, geometry, slot) {
            Ok(head) => heads.push(head),
            Err(error) => cause = Some(error),
        }
    }
    let Some(newest) = heads.iter().copied().max_by_key(|head| head.sequence) else {
        return Err(match (unread, cause) {
            (Some(error), _) => error.into(),
            (None, cause) => RecoveryError::NoHead { cause: cause.expect("no head is whole") },
        });
    };
    let is_in_doubt = heads.iter().all(|head| head.first_slot() == newest.first_slot());
    Ok(JournalHeads { newest, is_in_doubt })
}

/// Returns the newest head of a closed pool, which is the end of its log. `None` if the log
/// continues behind that head and must be replayed: a newer head is lost, or a sync ran during the
/// close.
pub(super) fn head_at_rest_of(
    volume: &Volume,
    pool_id: PoolId,
) -> Result<Option<JournalHead>, RecoveryError> {
    let heads = read_heads(volume, pool_id)?;
    let head = heads.newest;
    let mut reader = LogReader::new(volume, READ_AT_REST_BYTES);
    let next = reader.chunk_at(head.tail, pool_id);
    if let Some((_, found, _)) =
        next.map_err(|error| RecoveryError::Unread { at: head.tail, error })?
        && found.lsn == head.tail
        && found.previous_crc == head.previous_crc
    {
        return Ok(None);
    }
    if heads.is_in_doubt {
        reader.look_behind(&heads, head.tail, pool_id)?;
    }
    Ok(Some(head))
}

/// Replays the log of a pool that was not closed, or finds nothing to replay.
///
/// `before_head` is called before the log is given up, with the kept inline log data and the
/// positions from the last chunk to the log's end. The data is home and durable, except in striped
/// groups, where the callback writes it. The callback returns how many blocks it listed in
/// summaries.
pub(crate) fn recover(
    volume: &Volume,
    pool_id: PoolId,
    epoch_base: Epoch,
    before_head: BeforeHeadHook<'_>,
) -> Result<Recovery, RecoveryError> {
    let StoredLog { heads, chunks, end, double_writes } = furthest_log(volume, pool_id)?;
    let head = heads.newest;
    let area = double_writes.as_ref().unwrap_or(volume);
    let (double_writes, mut double_write_sequence) =
        restore_double_writes(volume, area, pool_id, &head)?;
    let mut replay = LogReplay::of(volume, pool_id, &chunks)?;
    replay.report.double_writes = double_writes;
    let lsn_pages = RecoveredLsns { volume, pool_id, end }.list(&replay.pages);
    if !lsn_pages.is_empty() {
        double_write_sequence += 1;
        replay.add_lsn_pages(volume, pool_id, (double_write_sequence, end), lsn_pages)?;
    }
    let data = replay.write_home(volume, &chunks)?;
    if let Some(last) = chunks.last().filter(|_| !data.is_empty()) {
        replay.report.log_data_listed = before_head(&data, &(last.lsn..end))?;
        volume.flush(IoPurpose::Data)?;
    }

    let ring = ring_bytes(volume.geometry());
    let epoch_seen = replay.epoch_max.max(head.epoch.0).max(epoch_base.0);
    // An old chunk lies at most one ring ahead, so none can continue the log from here on.
    let base = Lsn((end.0 / ring + 2) * ring);
    check_room(base, epoch_seen)?;
    let void = format::superblock::VoidInterval {
        lsn_first: end,
        lsn_end: base,
        epoch_first: Epoch(epoch_seen + 1),
        epoch_end: Epoch(epoch_seen + EPOCH_JUMP),
    };
    let start = JournalStart {
        lsn: base,
        previous_crc: 0,
        epoch: void.epoch_end,
        head_sequence: head.sequence + 1,
        double_write_sequence,
    };
    let head = JournalHead {
        sequence: start.head_sequence,
        tail: base,
        previous_crc: 0,
        epoch: start.epoch,
        double_write_sequence,
    };
    // CRASH: everything is home and flushed; only now may the old log be given up.
    checkpoint::write_head(volume, pool_id, &head)?;
    volume.flush(IoPurpose::Journal)?;
    Ok(Recovery { start, void, report: replay.report })
}

pub(crate) fn check_room(lsn: Lsn, epoch: u64) -> Result<(), RecoveryError> {
    if lsn.0 > LSN_MAX {
        return Err(RecoveryError::Exhausted { what: "log position", value: lsn.0 });
    }
    if epoch > EPOCH_MAX - 2 * EPOCH_JUMP {
        return Err(RecoveryError::Exhausted { what: "epoch", value: epoch });
    }
    Ok(())
}

/// Reads whole chunks from the tail on, up to `unread`. Returns them and their end.
pub(super) fn read_log(
    volume: &Volume,
    pool_id: PoolId,
    heads: &JournalHeads,
    unread: Option<Lsn>,
) -> Result<(Vec<LogChunk>, Lsn), RecoveryError> {
    let head = &heads.newest;
    let mut reader = LogReader::new(volume, READ_BYTES);
    let (mut at, mut crc, mut chunks, mut total) = (head.tail, head.previous_crc, Vec::new(), 0);
    while total < reader.ring && Some(at) != unread {
        let next = reader.chunk_at(at, pool_id);
        let next = next.map_err(|error| RecoveryError::Unread { at, error });
        let next = if planted!(UnreadIsEnd) { next.or(Ok(None)) } else { next };
        let Some((chunk, header, found_crc)) = next? else { break };
        if header.lsn != at || header.previous_crc != crc {
            break;
        }
        check_head(&header, heads, volume)?;
        at = Lsn(at.0 + u64::from(header.chunk_bytes));
        total += u64::from(header.chunk_bytes);
        crc = found_crc;
        if chunk.payload_bytes > 0 {
            chunks.push(chunk);
        }
    }
    if unread.is_none() {
        reader.look_behind(heads, at, pool_id)?;
    }
    Ok((chunks, at))
}

/// Refuses a head older than one that a chunk refers to: the log, and space freed before the newer
/// head, were reused (L4).
fn check_head(
    header: &ChunkHeader,
    heads: &JournalHeads,
    volume: &Volume,
) -> Result<(), RecoveryError> {
    if header.head <= heads.newest.sequence {
        return Ok(());
    }
    Err(RecoveryError::HeadLost {
        device: volume.name().to_owned(),
        lost: header.head,
        newest: heads.newest.sequence,
        at: header.lsn,
    })
}

/// Follows the log in the ring.
///
/// An unreadable page stops the open if the log may continue in it: the next chunk would begin
/// there or reaches into it, and may have been acknowledged. Other unreadable pages are of an older
/// lap or behind the end. But while a head is missing every page is needed, because a chunk in it
/// may refer to that head (L4).
struct LogReader<'a> {
    volume: &'a Volume,
    ring: u64,
    pieces: LogRing<'a>,
}

impl<'a> LogReader<'a> {
    fn new(volume: &'a Volume, piece_bytes: u64) -> LogReader<'a> {
        let ring = ring_bytes(volume.geometry());
        LogReader { volume, ring, pieces: LogRing::new(volume, piece_bytes) }
    }

    /// Decodes a possible chunk header. No sector spans two pieces.
    fn peek_at(
        &mut self,
        offset: u64,
        pool_id: PoolId,
    ) -> Result<Option<ChunkHeader>, DeviceError> {
        let sector = index_wide(CHUNK_ALIGN_BYTES);
        let piece = self.pieces.from(offset)?;
        Ok(ChunkHeader::peek(&piece[..sector.min(piece.len())], pool_id))
    }

    fn chunk_at(
        &mut self,
        lsn: Lsn,
        pool_id: PoolId,
    ) -> Result<Option<(LogChunk, ChunkHeader, u32)>, DeviceError> {
        let offset = lsn.0 % self.ring;
        let Some(header) = self.peek_at(offset, pool_id)? else { return Ok(None) };
        if header.lsn != lsn {
            return Ok(None);
        }
        let covered = format::journal::CHUNK_HEADER_BYTES
            + usize::try_from(header.payload_bytes).unwrap_or(CHUNK_BYTES_MAX);
        if wide(covered) > self.ring - offset || u64::from(header.chunk_bytes) > self.ring - offset
        {
            return Ok(None);
        }
        let bytes = self.pieces.bytes_at(offset, wide(covered))?;
        let Some((crc, header, payload)) = ChunkHeader::decode(&bytes, pool_id) else {
            return Ok(None);
        };
        let payload_bytes = payload.len();
        Ok(Some((LogChunk { lsn, bytes, payload_bytes }, header, crc)))
    }

    /// Searches for a whole chunk that proves that more was durable (L3) or that a newer head
    /// existed (L4). Covers the places where the next chunk may begin: twice the usual chunk length
    /// ahead, and the start of the ring if a chunk may not have fitted before its end. With a head
    /// missing, covers the ring.
    fn look_behind(
        &mut self,
        heads: &JournalHeads,
        end: Lsn,
        pool_id: PoolId,
    ) -> Result<(), RecoveryError> {
        let from = end.0 % self.ring / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;
        let longest = 2 * wide(CHUNK_BYTES_SOFT);
        let looked_at = if planted!(ChunkBehindPieceUnseen) { 0 } else { longest };
        let behind = (from + looked_at + CHUNK_ALIGN_BYTES).min(self.ring);
        let may_go_around = from + 2 * longest >= self.ring && !heads.is_in_doubt;
        let around = if may_go_around { 0..CHUNK_ALIGN_BYTES } else { 0..0 };
        let first = if heads.is_in_doubt { 0..self.ring } else { from..behind };
        let step = index_wide(CHUNK_ALIGN_BYTES);
        for at in first.step_by(step).chain(around.step_by(step)) {
            let header = match self.peek_at(at, pool_id) {
                Ok(header) => header,
                Err(_) if !heads.is_in_doubt => None,
                Err(error) => return Err(error.into()),
            };
            if let Some(header) = header
                && header.lsn.0 % self.ring == at
            {
                self.check_behind(&header, heads, end, pool_id)?;
            }
        }
        Ok(())
    }

    fn check_behind(
        &mut self,
        header: &ChunkHeader,
        heads: &JournalHeads,
        end: Lsn,
        pool_id: PoolId,
    ) -> Result<(), RecoveryError> {
        let tells_head = header.head > heads.newest.sequence;
        let ahead = header.lsn.0.checked_sub(end.0);
        let is_next = ahead.is_some_and(|ahead| ahead < self.ring);
        let tells_flushed = is_next && header.flushed > end;
        if !tells_head && !tells_flushed || self.chunk_at(header.lsn, pool_id)?.is_none() {
            return Ok(());
        }
        check_head(header, heads, self.volume)?;
        Err(RecoveryError::Damaged { at: end, flushed: header.flushed })
    }
}

pub(super) struct LogReplay {
    kept: BTreeSet<u64>,
    pages: BTreeMap<Place, AlignedBuffer>,
    epoch_max: u64,
    report: RecoveryReport,
}

impl LogReplay {
    /// Finds the classes to keep: committed ones, and those merged into them.
    fn new(chunks: &[LogChunk]) -> Result<LogReplay, RecoveryError> {
        let (mut kept, mut merges, mut epoch_max) = (BTreeSet::new(), Vec::new(), 0);
        for chunk in chunks {
            for record in chunk.records() {
                match record? {
                    LogRecord::Commit { class, .. } => {
                        kept.insert(class);
                        epoch_max = epoch_max.max(class);
                    }
                    LogRecord::Merge { class, into } => merges.push((class, into)),
                    LogRecord::Update { epoch, class, .. } => {
                        epoch_max = epoch_max.max(epoch.0).max(class);
                    }
                    LogRecord::LogData { .. } => {}
                }
            }
        }
        for (class, into) in merges.into_iter().rev() {
            if kept.contains(&into) && !planted!(MergeForgotten) {
                kept.insert(class);
            }
        }
        let report = RecoveryReport {
            was_needed: !chunks.is_empty(),
            log_bytes: chunks.iter().map(|chunk| wide(chunk.bytes.len())).sum(),
            classes_kept: wide(kept.len()),
            ..RecoveryReport::default()
        };
        Ok(LogReplay { kept, pages: BTreeMap::new(), epoch_max, report })
    }

    /// Redoes and undoes `chunks`. If a page does not verify afterwards, repeats all from another
    /// copy of it. An old copy cannot verify, because the log gives it the newest stamp.
    pub(super) fn of(
        volume: &Volume,
        pool_id: PoolId,
        chunks: &[LogChunk],
    ) -> Result<LogReplay, RecoveryError> {
        let mut others: BTreeMap<Place, usize> = BTreeMap::new();
        loop {
            let mut replay = LogReplay::new(chunks)?;
            replay.read_pages(volume, chunks)?;
            for (place, copy) in &others {
                let bytes = volume.read_copy(*copy, IoPurpose::Home, *place, PAGE_BYTES);
                replay.pages.extend(bytes.and_then(Result::ok).map(|bytes| (*place, bytes)));
            }
            replay.redo(chunks)?;
            replay.undo(chunks)?;
            let mut has_more = false;
            for (place, error) in replay.not_verified(pool_id) {
                let copy = others.get(&place).map_or(0, |copy| copy + 1);
                let has_copy = volume.read_copy(copy, IoPurpose::Home, place, PAGE_BYTES).is_some();
                // An earlier recovery may have changed this LSN page without logging it: the page
                // is rebuilt instead.
                if !has_copy && !volume.geometry().is_lsn_page(place) {
                    return Err(RecoveryError::Page(error));
                }
                if has_copy {
                    others.insert(place, copy);
                }
                has_more |= has_copy;
            }
            if !has_more {
                return Ok(replay);
            }
        }
    }

    fn read_pages(&mut self, volume: &Volume, chunks: &[LogChunk]) -> Result<(), RecoveryError> {
        let mut places = BTreeSet::new();
        let mut begun_whole = BTreeSet::new();
        for chunk in chunks {
            for record in chunk.records() {
                let LogRecord::Update { pages, .. } = record? else { continue };
                for page in pages {
                    if page.image.is_some() && !places.contains(&page.place) {
                        begun_whole.insert(page.place);
                    }
                    places.insert(page.place);
                }
            }
        }
        self.report.pages = wide(places.len());
        let wanted: Vec<Place> = places.difference(&begun_whole).copied().collect();
        for places in wanted.chunks(64) {
            let reads = places.iter().map(|place| (*place, PAGE_BYTES));
            let tickets = volume.submit_reads(IoPurpose::Home, reads);
            for (place, ticket) in places.iter().zip(tickets) {
                let read = ticket.wait();
                // An LSN page is rebuilt if it does not verify.
                let restarts = volume.geometry().is_lsn_page(*place);
                let bytes = match read {
                    Err(_) if restarts => AlignedBuffer::zeroed(PAGE_BYTES),
                    Err(error) if volume.lose_page(*place) => {
                        tracing::warn!(
                            "{error}: the page at {place} is lost, and the log changes it"
                        );
                        continue;
                    }
                    read => read?.buffer.expect("a read returns its buffer"),
                };
                self.pages.insert(*place, bytes);
            }
        }
        for place in begun_whole {
            self.pages.insert(place, AlignedBuffer::zeroed(PAGE_BYTES));
        }
        Ok(())
    }

    fn redo(&mut self, chunks: &[LogChunk]) -> Result<(), RecoveryError> {
        for chunk in chunks {
            for record in chunk.records() {
                match record? {
                    LogRecord::Update { pages, .. } => {
                        for update in pages {
                            if let Some(page) = self.pages.get_mut(&update.place) {
                                redo_page(page_of_mut(page), &update);
                            }
                        }
                    }
                    LogRecord::Commit { lsn, pages, .. } => {
                        for (place, crc) in pages {
                            if let Some(page) = self.pages.get_mut(&place) {
                                write_u32(page, STAMP_OFFSET, crc);
                                write_u64(page, STAMP_OFFSET + 4, lsn.0);
                            }
                        }
                    }
                    LogRecord::Merge { .. } | LogRecord::LogData { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn undo(&mut self, chunks: &[LogChunk]) -> Result<(), RecoveryError> {
        for chunk in chunks.iter().rev().filter(|_| !planted!(UndoForgotten)) {
            let records: Result<Vec<_>, _> = chunk.records().collect();
            for record in records?.into_iter().rev() {
                let LogRecord::Update { class, pages, .. } = record else { continue };
                if self.kept.contains(&class) {
                    continue;
                }
                self.report.updates_undone += 1;
                for update in pages.iter().rev() {
                    if update.image.is_some() {
                        // Created by an undone class: no kept class points to it.
                        self.pages.remove(&update.place);
                    } else if let Some(page) = self.pages.get_mut(&update.place) {
                        undo_page(page_of_mut(page), update);
                    }
                }
            }
        }
        Ok(())
    }

    fn not_verified(&self, pool_id: PoolId) -> Vec<(Place, PageError)> {
        let error_of = |(place, page): (&Place, &AlignedBuffer)| {
            let error = PageHeader::decode(page_of(page), pool_id, *place).err()?;
            Some((*place, error))
        };
        self.pages.iter().filter_map(error_of).collect()
    }

    /// Writes LSN pages durably to the double-write area, and adds them to `pages`. Those that do
    /// not fit there may be torn by a crash, and are then rebuilt.
    fn add_lsn_pages(
        &mut self,
        volume: &Volume,
        pool_id: PoolId,
        sequence: (u64, Lsn),
        lsn_pages: BTreeMap<Place, AlignedBuffer>,
    ) -> Result<(), DeviceError> {
        let room = index_wide(volume.geometry().double_write_pages);
        let group: Vec<(Place, PageRef)> = lsn_pages
            .iter()
            .take(room)
            .map(|(place, page)| (*place, PageRef::new(AlignedBuffer::clone(page))))
            .collect();
        write_group(volume, pool_id, sequence, &group)?;
        // CRASH: whole in the double-write area before the first of them is overwritten at home.
        volume.flush(IoPurpose::DoubleWrite)?;
        self.pages.extend(lsn_pages);
        Ok(())
    }

    /// Writes pages and inline log data home and flushes. In striped groups `segment::after_crash`
    /// writes the data, in whole stripes with their summaries.
    fn write_home<'c>(
        &mut self,
        volume: &Volume,
        chunks: &'c [LogChunk],
    ) -> Result<Vec<ReplayedLogData<'c>>, RecoveryError> {
        let (mut tickets, mut data) = (Vec::new(), Vec::new());
        for (place, page) in std::mem::take(&mut self.pages) {
            let pieces = vec![SharedBytes::from(page)];
            tickets.push(volume.submit_write(IoPurpose::Home, place, pieces));
        }
        for chunk in chunks {
            for record in chunk.records() {
                let LogRecord::LogData { class, place, owner, bytes } = record? else { continue };
                if self.kept.contains(&class) && !planted!(LogDataLost) {
                    self.report.log_data += 1;
                    let kept = kept_log_data(volume, place, owner, bytes);
                    data.push(kept.ok_or(RecoveryError::BadRecord { at: chunk.lsn })?);
                    if !volume.geometry().group_layout().is_striped(place.group()) {
                        tickets.push(write_log_data(volume, place, bytes)?);
                    }
                }
            }
        }
        for ticket in tickets {
            ticket.wait()?;
        }
        if self.report.was_needed && !planted!(RecoveryNotFlushed) {
            volume.flush(IoPurpose::Home)?;
        }
        Ok(data)
    }
}

fn kept_log_data<'c>(
    volume: &Volume,
    place: Place,
    owner: LogDataOwner,
    bytes: &'c [u8],
) -> Option<ReplayedLogData<'c>> {
    let geometry = volume.geometry();
    let fragments = wide(bytes.len()).div_ceil(geometry.fragment_bytes());
    let fragments = u32::try_from(fragments).ok()?;
    geometry.device_offset(place, fragments)?;
    let end = u64::from(place.fragment() % geometry.segment_fragments) + u64::from(fragments);
    let is_sane = place.disk_group() == 0
        && (1..=BLOCK_FRAGMENTS_MAX).contains(&fragments)
        && end <= u64::from(geometry.segment_fragments)
        && BLOCK_SHIFTS.contains(&owner.block_shift)
        && owner.birth.0 <= EPOCH_MAX;
    let block_bytes = 1_usize << owner.block_shift.min(20);
    let pointer = BlockPointer::to_data(place, fragments, owner.birth, block_bytes, bytes);
    is_sane.then_some(ReplayedLogData { place, fragments, owner, check: pointer.check, bytes })
}

/// Writes inline log data home. The rest of its first and last page is home already, unused, or
/// inline log data too, so pages shared by two writes are written one after the other.
fn write_log_data(volume: &Volume, place: Place, bytes: &[u8]) -> Result<Ticket, RecoveryError> {
    let fragments = wide(bytes.len()).div_ceil(volume.geometry().fragment_bytes());
    let (start, length, lead) = volume.pages_around(place, narrow(fragments));
    if length == bytes.len() {
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
        return Ok(volume.submit_write(IoPurpose::Data, start, pieces));
    }
    let mut pages = super::data::read_around(volume, start, length)?;
    pages[lead..lead + bytes.len()].copy_from_slice(bytes);
    let done =
        volume.submit_write(IoPurpose::Data, start, vec![SharedBytes::from(pages)]).wait()?;
    Ok(Ticket::ready(Ok(done)))
}

fn redo_page(page: &mut PageBytes, update: &format::journal::PageUpdate<'_>) {
    if let Some(image) = update.image {
        page.fill(0);
        page[..image.len()].copy_from_slice(image);
    }
    for run in &update.runs {
        page[run.offset..run.offset + run.new.len()].copy_from_slice(run.new);
    }
}

fn undo_page(page: &mut PageBytes, update: &format::journal::PageUpdate<'_>) {
    for run in &update.runs {
        let bytes = &mut page[run.offset..run.offset + run.new.len()];
        match run.old {
            Some(old) => bytes.copy_from_slice(old),
            None => bytes.fill(0),
        }
    }
    if let Some(stamp) = update.old_stamp {
        page[STAMP_OFFSET..STAMP_OFFSET + stamp.len()].copy_from_slice(stamp);
    }
}
