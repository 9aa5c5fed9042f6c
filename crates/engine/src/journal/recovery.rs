//! Recovery: what opening does after a crash.
//!
//! 1. A whole group in the double-write area that the head does not call home is copied home.
//! 2. The log is read from its tail to the first chunk that is not whole or not next (L1, L2).
//! 3. Redo: every update is applied, in order, unconditionally: new bytes, whole pages, and, where
//!    a class commits, its pages' stamps. Torn pages heal, because every byte that changed since
//!    the last checkpoint is in the log.
//! 4. Undo: updates of classes without a commit are taken back, in reverse order: old bytes, old
//!    stamps.
//! 5. Every page that was touched must now verify. Neither redo nor undo computes a checksum, so
//!    one that does not is a defect, never something to be made to fit.
//! 6. The LSNs of these pages are listed in their LSN pages (`lsn_pages.rs`).
//! 7. Pages and inline log data go home; the caller sees to what its layers need before the log is
//!    given up (a summary for what was inline); then a new head is written at a position that no
//!    chunk of the lost life can have.
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
use format::journal::{CHUNK_BYTES_MAX, ChunkHeader, JournalHead, LogDataOwner, Record, records};
use format::page::{
    PAGE_BYTES, PageBytes, PageError, PageHeader, STAMP_OFFSET, write_u32, write_u64,
};
use format::pointer::{BLOCK_FRAGMENTS_MAX, BlockPointer};
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose, SharedBytes, Ticket};
use storage::volume::Volume;

use super::copies::{Log, furthest_log};
use super::double_write::{restore_double_writes, write_group};
use super::log::CHUNK_BYTES_SOFT;
use super::lsn_pages::Recovered;
use super::ring::Ring;
use super::{JournalStart, checkpoint, ring_bytes};
use crate::buffer::{PageRef, page_of, page_of_mut};
use crate::convert::{index_wide, narrow, wide};

/// The log is read in pieces of this size.
const READ_BYTES: u64 = 1 << 20;
/// Chunks begin at multiples of this: of the smallest sector, for a pool may have been written on a
/// device with that and copied to one with larger ones.
const CHUNK_ALIGN_BYTES: u64 = 512;
/// Of a pool that was closed only the end of the log is read.
const READ_AT_REST_BYTES: u64 = 64 << 10;
/// Epochs that a lost life may have given out behind the last one in its log: more than half a
/// ring of the shortest records.
pub(super) const EPOCH_JUMP: u64 = 1 << 24;

/// Why a pool can't be recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The device could not be read or written.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The log may go on where the device can't be read.
    #[error(
        "{error}: the log may go on there, at {at}, and without it what was acknowledged could be \
         lost. Nothing was changed: try again, or restore from a backup"
    )]
    Unread {
        /// Where the next chunk would be.
        at: Lsn,
        /// What the device said.
        error: DeviceError,
    },
    /// Neither head of the journal verifies: the journal is lost. Use another road.
    #[error("{}: neither head page of the journal verifies: {cause}", DefectCode::JR001)]
    NoHead {
        /// What is wrong with the second.
        cause: PageError,
    },
    /// The log is damaged before what was durable.
    #[error("{}: the log is damaged at {at}, before {flushed} that was durable", DefectCode::JR002)]
    Damaged {
        /// Where a whole chunk should be.
        at: Lsn,
        /// What a later chunk says was durable.
        flushed: Lsn,
    },
    /// The newest head is lost, and the log before it may have been written over.
    #[error(
        "{}: {device}: both copies of head {lost} of the journal are damaged (the chunk at {at} \
         was written after it; the newest that verifies is head {newest}): to go on from there \
         could lose what was acknowledged. Nothing was changed. Copy the device, run `holdfast \
         check` on the copy, and restore from a backup; docs/CHECK.md says more",
        DefectCode::JR006
    )]
    HeadLost {
        /// Where.
        device: String,
        /// Sequence of the head that is lost.
        lost: u64,
        /// Sequence of the newest head that verifies.
        newest: u64,
        /// The chunk that tells of it.
        at: Lsn,
    },
    /// A record that can't be so, under a good checksum: a bug, or malice.
    #[error("{}: a record in the chunk at {at} can't be so", DefectCode::JR003)]
    BadRecord {
        /// The chunk.
        at: Lsn,
    },
    /// Positions or epochs are past what the format holds.
    #[error(
        "{}: {what} {value} leaves no room for another life of the pool: damage, or 14 years of \
         writing at 10 GB/s. Copy what can be read to a new pool",
        DefectCode::JR007
    )]
    Exhausted {
        /// Which number.
        what: &'static str,
        /// As it was found.
        value: u64,
    },
    /// A page does not verify after redo and undo.
    #[error("{code}: a page does not verify after recovery: {0}", code = DefectCode::JR004)]
    Page(PageError),
}

/// What a recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Whether there was anything in the log.
    pub was_needed: bool,
    /// Bytes of log read back.
    pub log_bytes: u64,
    /// Pages redone or undone.
    pub pages: u64,
    /// Classes that were kept.
    pub classes_kept: u64,
    /// Updates that were undone.
    pub updates_undone: u64,
    /// Inline log data written home.
    pub log_data: u64,
    /// Inline log data that no summary listed: one was written.
    pub log_data_listed: u64,
    /// Pages copied home from the double-write area.
    pub double_writes: u64,
    /// Blocks that no member gave, beside inline log data: what is in use of them is named when the
    /// pool is open.
    pub lost_blocks: u64,
}

/// Inline log data of a class that is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptLogData<'a> {
    /// Where it is: inside a group, all of it.
    pub(crate) place: Place,
    /// Fragments it takes.
    pub(crate) fragments: u32,
    /// Whose it is.
    pub(crate) owner: LogDataOwner,
    /// As in its pointer.
    pub(crate) check: [u32; 4],
    /// What is stored of it.
    pub(crate) bytes: &'a [u8],
}

/// What is done with the inline log data before the log is given up: see [`recover`].
pub(crate) type BeforeHead<'a> =
    &'a dyn Fn(&[KeptLogData<'_>], &Range<Lsn>) -> Result<u64, DeviceError>;

/// The result of a recovery.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Where the journal goes on.
    pub(crate) start: JournalStart,
    /// The LSNs and epochs that are void now.
    pub(crate) void: format::superblock::VoidInterval,
    /// What was found and done.
    pub(crate) report: RecoveryReport,
}

pub(super) struct Chunk {
    lsn: Lsn,
    bytes: AlignedBuffer,
    payload_bytes: usize,
}

impl Chunk {
    fn records(&self) -> impl Iterator<Item = Result<Record<'_>, RecoveryError>> {
        let start = format::journal::CHUNK_HEADER_BYTES;
        let payload = &self.bytes[start..start + self.payload_bytes];
        records(payload).map(|record| record.ok_or(RecoveryError::BadRecord { at: self.lsn }))
    }
}

/// A head, and whether a newer one may be lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    /// The newest head that verifies.
    pub(super) newest: JournalHead,
    /// No copy of the other head verifies: one of them may have been newer.
    pub(super) is_in_doubt: bool,
}

/// Reads all heads, and returns the newest that verifies. A copy that cannot be read is one that
/// does not verify: each head has two.
pub(super) fn read_heads(volume: &Volume, pool_id: PoolId) -> Result<Heads, RecoveryError> {
    let geometry = volume.geometry();
    let mut heads = Vec::new();
    let (mut cause, mut unread) = (None, None);
    for slot in 0..JOURNAL_HEADS {
        let offset = geometry.journal_offset + slot * 4096;
        let bytes = match volume.read_fixed(Purpose::Journal, offset, PAGE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::warn!(%error, slot, "a copy of a journal head cannot be read");
                if planted::is(Planted::UnreadStopsOpen) {
                    return Err(error.into());
                }
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
    Ok(Heads { newest, is_in_doubt })
}

/// Returns the head at which the log of a pool that was closed ends; `None` if the log goes on
/// behind it: then the newest head is lost, or somebody synced when it was being closed, and only a
/// recovery tells what the log holds.
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

/// Replays the log of a pool that was not closed, or finds that there is nothing to replay.
///
/// `before_head` is called with the inline log data, which is home and durable, or in stripes for
/// it to write, and the last chunk of the log, to its end, before the log is given up; it returns
/// how many it has listed.
pub(crate) fn recover(
    volume: &Volume,
    pool_id: PoolId,
    epoch_base: Epoch,
    before_head: BeforeHead<'_>,
) -> Result<Recovery, RecoveryError> {
    let Log { heads, chunks, end, double_writes } = furthest_log(volume, pool_id)?;
    let head = heads.newest;
    let area = double_writes.as_ref().unwrap_or(volume);
    let (double_writes, mut double_write_sequence) =
        restore_double_writes(volume, area, pool_id, &head)?;
    let mut replay = Replay::of(volume, pool_id, &chunks)?;
    replay.report.double_writes = double_writes;
    let lsn_pages = Recovered { volume, pool_id, end }.list(&replay.pages)?;
    if !lsn_pages.is_empty() {
        double_write_sequence += 1;
        replay.add_lsn_pages(volume, pool_id, (double_write_sequence, end), lsn_pages)?;
    }
    let data = replay.write_home(volume, &chunks)?;
    if let Some(last) = chunks.last().filter(|_| !data.is_empty()) {
        replay.report.log_data_listed = before_head(&data, &(last.lsn..end))?;
        volume.flush(Purpose::Data)?;
    }

    let ring = ring_bytes(volume.geometry());
    let epoch_seen = replay.epoch_max.max(head.epoch.0).max(epoch_base.0);
    // Nothing of the lost life can lie past one more ring, so its chunks never fit in again.
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
    volume.flush(Purpose::Journal)?;
    Ok(Recovery { start, void, report: replay.report })
}

/// Refuses a life that would begin past what the format holds.
pub(crate) fn check_room(lsn: Lsn, epoch: u64) -> Result<(), RecoveryError> {
    if lsn.0 > LSN_MAX {
        return Err(RecoveryError::Exhausted { what: "log position", value: lsn.0 });
    }
    if epoch > EPOCH_MAX - 2 * EPOCH_JUMP {
        return Err(RecoveryError::Exhausted { what: "epoch", value: epoch });
    }
    Ok(())
}

/// Reads whole chunks from the tail on, of one that cannot be read from `unread` on those before.
/// Returns them and where they end.
pub(super) fn read_log(
    volume: &Volume,
    pool_id: PoolId,
    heads: &Heads,
    unread: Option<Lsn>,
) -> Result<(Vec<Chunk>, Lsn), RecoveryError> {
    let head = &heads.newest;
    let mut reader = LogReader::new(volume, READ_BYTES);
    let (mut at, mut crc, mut chunks, mut total) = (head.tail, head.previous_crc, Vec::new(), 0);
    while total < reader.ring && Some(at) != unread {
        let next = reader.chunk_at(at, pool_id);
        let next = next.map_err(|error| RecoveryError::Unread { at, error });
        let next = if planted::is(Planted::UnreadIsEnd) { next.or(Ok(None)) } else { next };
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

/// L4: refuses to go on from a head while a chunk tells of a newer one. Behind a durable head the
/// log and freed space are given out again, so what an older one leads to may be gone or be
/// something else.
fn check_head(header: &ChunkHeader, heads: &Heads, volume: &Volume) -> Result<(), RecoveryError> {
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
/// What of the ring cannot be read stops the open where the log may go on in it: a page in which
/// the next chunk would begin, or that a chunk lies in which says that it is next. Its bytes may be
/// what was acknowledged, and the log would seem to end before them. Any other page is of an older
/// lap, or behind the end, and nobody asks for it; but while a head is missing each is asked
/// whether it tells of it (L4).
struct LogReader<'a> {
    volume: &'a Volume,
    ring: u64,
    pieces: Ring<'a>,
}

impl<'a> LogReader<'a> {
    fn new(volume: &'a Volume, piece_bytes: u64) -> LogReader<'a> {
        let ring = ring_bytes(volume.geometry());
        LogReader { volume, ring, pieces: Ring::new(volume, piece_bytes) }
    }

    /// Returns what looks like a chunk's header at ring offset `offset`. Chunks begin at sectors,
    /// and no sector lies in two pieces.
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
    ) -> Result<Option<(Chunk, ChunkHeader, u32)>, DeviceError> {
        let offset = lsn.0 % self.ring;
        let Some(header) = self.peek_at(offset, pool_id)? else { return Ok(None) };
        if header.lsn != lsn {
            // Of an older lap: nobody needs what else there is of it.
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
        Ok(Some((Chunk { lsn, bytes, payload_bytes }, header, crc)))
    }

    /// Looks behind `end`, where the log breaks off, for a whole chunk that says that it should
    /// not: that more was durable (L3), or a newer head (L4). Looks where the chunk may begin that
    /// comes next: as far ahead as chunks are long that are written, and at the start of the ring
    /// if one may not have had room before its end; if a head is missing, at the whole ring.
    fn look_behind(
        &mut self,
        heads: &Heads,
        end: Lsn,
        pool_id: PoolId,
    ) -> Result<(), RecoveryError> {
        let from = end.0 % self.ring / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;
        let longest = 2 * wide(CHUNK_BYTES_SOFT);
        let behind = match planted::is(Planted::ChunkBehindPieceUnseen) {
            true => self.pieces.piece_end(from).min(self.ring),
            false => (from + longest + CHUNK_ALIGN_BYTES).min(self.ring),
        };
        let may_go_around = from + 2 * longest >= self.ring && !heads.is_in_doubt;
        let around = if may_go_around { 0..CHUNK_ALIGN_BYTES } else { 0..0 };
        let first = if heads.is_in_doubt { 0..self.ring } else { from..behind };
        let step = index_wide(CHUNK_ALIGN_BYTES);
        for at in first.step_by(step).chain(around.step_by(step)) {
            let header = match self.peek_at(at, pool_id) {
                Ok(header) => header,
                // It is one place of many that may tell that the log was damaged before it.
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
        heads: &Heads,
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

/// The state of a replay.
pub(super) struct Replay {
    kept: BTreeSet<u64>,
    pages: BTreeMap<Place, AlignedBuffer>,
    epoch_max: u64,
    report: RecoveryReport,
}

impl Replay {
    /// Finds which classes are kept: those with a commit, and those that merged into one.
    fn new(chunks: &[Chunk]) -> Result<Replay, RecoveryError> {
        let (mut kept, mut merges, mut epoch_max) = (BTreeSet::new(), Vec::new(), 0);
        for chunk in chunks {
            for record in chunk.records() {
                match record? {
                    Record::Commit { class, .. } => {
                        kept.insert(class);
                        epoch_max = epoch_max.max(class);
                    }
                    Record::Merge { class, into } => merges.push((class, into)),
                    Record::Update { epoch, class, .. } => {
                        epoch_max = epoch_max.max(epoch.0).max(class);
                    }
                    Record::LogData { .. } => {}
                }
            }
        }
        for (class, into) in merges.into_iter().rev() {
            if kept.contains(&into) && !planted::is(Planted::MergeForgotten) {
                kept.insert(class);
            }
        }
        let report = RecoveryReport {
            was_needed: !chunks.is_empty(),
            log_bytes: chunks.iter().map(|chunk| wide(chunk.bytes.len())).sum(),
            classes_kept: wide(kept.len()),
            ..RecoveryReport::default()
        };
        Ok(Replay { kept, pages: BTreeMap::new(), epoch_max, report })
    }

    /// Redoes and undoes what `chunks` say. A page that does not verify then begins as the next of
    /// its copies has it: an older copy never does, for its stamp is of the newest.
    pub(super) fn of(
        volume: &Volume,
        pool_id: PoolId,
        chunks: &[Chunk],
    ) -> Result<Replay, RecoveryError> {
        let mut others: BTreeMap<Place, usize> = BTreeMap::new();
        loop {
            let mut replay = Replay::new(chunks)?;
            replay.read_pages(volume, chunks)?;
            for (place, copy) in &others {
                let bytes = volume.read_copy(*copy, Purpose::Home, *place, PAGE_BYTES);
                replay.pages.extend(bytes.and_then(Result::ok).map(|bytes| (*place, bytes)));
            }
            replay.redo(chunks)?;
            replay.undo(chunks)?;
            let mut has_more = false;
            for (place, error) in replay.not_verified(pool_id) {
                let copy = others.get(&place).map_or(0, |copy| copy + 1);
                let has_copy = volume.read_copy(copy, Purpose::Home, place, PAGE_BYTES).is_some();
                // Of an LSN page what an earlier recovery of this log has listed is not in the log.
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

    /// Reads the pages that updates name, many at a time, as they are at home.
    fn read_pages(&mut self, volume: &Volume, chunks: &[Chunk]) -> Result<(), RecoveryError> {
        let mut places = BTreeSet::new();
        let mut begun_whole = BTreeSet::new();
        for chunk in chunks {
            for record in chunk.records() {
                let Record::Update { pages, .. } = record? else { continue };
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
            let tickets = volume.submit_reads(Purpose::Home, reads);
            for (place, ticket) in places.iter().zip(tickets) {
                let read = ticket.wait();
                // It begins anew if it does not verify.
                let begins_anew = volume.geometry().is_lsn_page(*place);
                let bytes = match read {
                    Err(_) if begins_anew && !planted::is(Planted::UnreadStopsOpen) => {
                        AlignedBuffer::zeroed(PAGE_BYTES)
                    }
                    // Where devices are away for good all else can be read.
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

    fn redo(&mut self, chunks: &[Chunk]) -> Result<(), RecoveryError> {
        for chunk in chunks {
            for record in chunk.records() {
                match record? {
                    Record::Update { pages, .. } => {
                        for update in pages {
                            if let Some(page) = self.pages.get_mut(&update.place) {
                                redo_page(page_of_mut(page), &update);
                            }
                        }
                    }
                    Record::Commit { lsn, pages, .. } => {
                        for (place, crc) in pages {
                            if let Some(page) = self.pages.get_mut(&place) {
                                write_u32(page, STAMP_OFFSET, crc);
                                write_u64(page, STAMP_OFFSET + 4, lsn.0);
                            }
                        }
                    }
                    Record::Merge { .. } | Record::LogData { .. } => {}
                }
            }
        }
        Ok(())
    }

    fn undo(&mut self, chunks: &[Chunk]) -> Result<(), RecoveryError> {
        for chunk in chunks.iter().rev().filter(|_| !planted::is(Planted::UndoForgotten)) {
            let records: Result<Vec<_>, _> = chunk.records().collect();
            for record in records?.into_iter().rev() {
                let Record::Update { class, pages, .. } = record else { continue };
                if self.kept.contains(&class) {
                    continue;
                }
                self.report.updates_undone += 1;
                for update in pages.iter().rev() {
                    if update.image.is_some() {
                        // Nothing kept points to a page that a lost class made.
                        self.pages.remove(&update.place);
                    } else if let Some(page) = self.pages.get_mut(&update.place) {
                        undo_page(page_of_mut(page), update);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the pages that do not verify.
    fn not_verified(&self, pool_id: PoolId) -> Vec<(Place, PageError)> {
        let error_of = |(place, page): (&Place, &AlignedBuffer)| {
            let error = PageHeader::decode(page_of(page), pool_id, *place).err()?;
            Some((*place, error))
        };
        self.pages.iter().filter_map(error_of).collect()
    }

    /// Takes LSN pages with what was listed into the double-write area, durably, as a group of
    /// `sequence`; they go home with all others. What has no room there can be torn by a crash, and
    /// then begins anew.
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
        // CRASH: whole in the double-write area before the first of them is written over.
        volume.flush(Purpose::DoubleWrite)?;
        self.pages.extend(lsn_pages);
        Ok(())
    }

    /// Writes pages and inline log data home and flushes; returns the latter. In stripes it is
    /// written with the summaries that list it, by whole stripes (`segment::after_crash`).
    fn write_home<'c>(
        &mut self,
        volume: &Volume,
        chunks: &'c [Chunk],
    ) -> Result<Vec<KeptLogData<'c>>, RecoveryError> {
        let (mut tickets, mut data) = (Vec::new(), Vec::new());
        for (place, page) in std::mem::take(&mut self.pages) {
            let pieces = vec![SharedBytes::from(page)];
            tickets.push(volume.submit_write(Purpose::Home, place, pieces));
        }
        for chunk in chunks {
            for record in chunk.records() {
                let Record::LogData { class, place, owner, bytes } = record? else { continue };
                if self.kept.contains(&class) && !planted::is(Planted::LogDataLost) {
                    self.report.log_data += 1;
                    let kept = kept_log_data(volume, place, owner, bytes);
                    data.push(kept.ok_or(RecoveryError::BadRecord { at: chunk.lsn })?);
                    if !volume.geometry().is_striped(place.group()) {
                        tickets.push(write_log_data(volume, place, bytes)?);
                    }
                }
            }
        }
        for ticket in tickets {
            ticket.wait()?;
        }
        if self.report.was_needed && !planted::is(Planted::RecoveryNotFlushed) {
            volume.flush(Purpose::Home)?;
        }
        Ok(data)
    }
}

/// Returns what is known of inline log data; `None` if it can't be so.
fn kept_log_data<'c>(
    volume: &Volume,
    place: Place,
    owner: LogDataOwner,
    bytes: &'c [u8],
) -> Option<KeptLogData<'c>> {
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
    is_sane.then_some(KeptLogData { place, fragments, owner, check: pointer.check, bytes })
}

/// Writes inline log data home. What shares its first or last page is either home already, inline
/// log data too, or belongs to nobody; what shares a page is written one after the other.
fn write_log_data(volume: &Volume, place: Place, bytes: &[u8]) -> Result<Ticket, RecoveryError> {
    let fragments = wide(bytes.len()).div_ceil(volume.geometry().fragment_bytes());
    let (start, length, lead) = volume.pages_around(place, narrow(fragments));
    if length == bytes.len() {
        let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(bytes))];
        return Ok(volume.submit_write(Purpose::Data, start, pieces));
    }
    let mut pages = super::data::read_around(volume, start, length)?;
    pages[lead..lead + bytes.len()].copy_from_slice(bytes);
    let done = volume.submit_write(Purpose::Data, start, vec![SharedBytes::from(pages)]).wait()?;
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
