//! The fixed regions of a pool on several devices, when it is opened: which copy is believed, and
//! how the others are made equal.
//!
//! # Crashes
//!
//! All members get the same writes, and no step begins before the one before has ended on all. So
//! each copy is what a crash may leave on a single device, and so is each mixture of them that
//! takes every write from one. What is new is that a later recovery may find another mixture,
//! because a member is gone. Therefore the log that is replayed, its head and the double-write area
//! are made equal on all members, durably, before anything is written home (`docs/decisions/0060`).
//!
//! The log may lie on other members than the double-write area (`docs/decisions/0103`): each of the
//! two has copies of its own.
//!
//! On one device nothing of this reads or writes anything.

use std::ops::Range;

use format::double_write::DoubleWriteHead;
use format::geometry::{DOUBLE_WRITE_ENTRIES_PER_HEAD, Geometry, JOURNAL_HEADS};
use format::ids::{Lsn, PoolId};
use format::journal::{CHUNK_BYTES_MAX, JournalHead};
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Purpose};
use storage::volume::Volume;

use super::double_write::{read_double_write_head, read_group};
use super::recovery::{Chunk, Heads, RecoveryError, Replay, head_at_rest_of, read_heads, read_log};
use super::ring_bytes;
use crate::convert::{index_wide, wide};

/// What is copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// A log, and where it ends.
pub(super) struct Log {
    pub(super) heads: Heads,
    pub(super) chunks: Vec<Chunk>,
    pub(super) end: Lsn,
    /// Of several copies of the double-write area the one that has the newest group. The others
    /// were told to become it, and a member that stores nothing has not.
    pub(super) double_writes: Option<Volume>,
}

impl Log {
    fn read(volume: &Volume, pool_id: PoolId) -> Result<Log, RecoveryError> {
        let heads = read_heads(volume, pool_id)?;
        let (chunks, end) = read_log(volume, pool_id, &heads)?;
        Ok(Log { heads, chunks, end, double_writes: None })
    }

    fn reach(&self) -> (u64, Lsn) {
        (self.heads.newest.sequence, self.end)
    }
}

/// As `head_at_rest_of`, on each copy: one that goes on decides, else the newest head.
pub(crate) fn head_at_rest(
    volume: &Volume,
    pool_id: PoolId,
) -> Result<Option<JournalHead>, RecoveryError> {
    let copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return head_at_rest_of(volume, pool_id);
    }
    let (mut newest, mut failure): (Option<JournalHead>, _) = (None, None);
    for copy in &copies {
        match head_at_rest_of(copy, pool_id) {
            Ok(None) => return Ok(None),
            Ok(Some(head)) => newest = newest.max_by(head),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match (newest, failure) {
        (None, Some(error)) => Err(error),
        (newest, _) => Ok(newest),
    }
}

trait Newest {
    fn max_by(self, other: JournalHead) -> Self;
}

impl Newest for Option<JournalHead> {
    fn max_by(self, other: JournalHead) -> Option<JournalHead> {
        Some(self.filter(|head| head.sequence >= other.sequence).unwrap_or(other))
    }
}

/// Reads the log that goes furthest, and makes the other copies equal to it, durably.
pub(super) fn furthest_log(volume: &Volume, pool_id: PoolId) -> Result<Log, RecoveryError> {
    let mut copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return Log::read(volume, pool_id);
    }
    loop {
        let (source, log) = furthest_of(&copies, pool_id)?;
        if planted::is(Planted::LogsNotMadeEqual) {
            return Ok(log);
        }
        match make_equal(volume, &copies[source], &log) {
            Ok(()) => {
                let double_writes = make_double_writes_equal(volume, pool_id)?;
                // CRASH: from here on every member gives the same log.
                volume.flush(Purpose::Journal)?;
                return Ok(Log { double_writes, ..log });
            }
            // It could be read a moment ago: the others have all that was acknowledged, and it gets
            // what they have.
            Err(error) if copies.len() > 1 => {
                tracing::warn!("{error}; the log of another member is taken");
                copies.remove(source);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the log that goes furthest, and changes nothing; an error says why it cannot be replayed.
pub(crate) fn check_log(volume: &Volume, pool_id: PoolId) -> Result<(), RecoveryError> {
    let copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return Ok(());
    }
    let (_, log) = furthest_of(&copies, pool_id)?;
    Replay::of(volume, pool_id, &log.chunks).map(drop)
}

/// Returns which of `copies` has the log that goes furthest, and that log.
fn furthest_of(copies: &[Volume], pool_id: PoolId) -> Result<(usize, Log), RecoveryError> {
    let (mut furthest, mut failure): (Option<(usize, Log)>, _) = (None, None);
    for (at, copy) in copies.iter().enumerate() {
        match Log::read(copy, pool_id) {
            Ok(log) => {
                let is_further =
                    furthest.as_ref().is_none_or(|(_, other)| log.reach() > other.reach());
                if is_further {
                    furthest = Some((at, log));
                }
            }
            Err(error) => failure = worse(failure, error),
        }
    }
    let Some((at, log)) = furthest else {
        return Err(failure.expect("there is at least one copy"));
    };
    if let Some(error) = failure {
        if tells_of_more(&error, &log) {
            return Err(error);
        }
        tracing::warn!("{error}; another member has the whole log");
    }
    Ok((at, log))
}

/// Of two failures the one that tells of what is lost.
fn worse(known: Option<RecoveryError>, error: RecoveryError) -> Option<RecoveryError> {
    let tells = |error: &RecoveryError| {
        matches!(error, RecoveryError::HeadLost { .. } | RecoveryError::Damaged { .. })
    };
    Some(known.filter(|known| tells(known) || !tells(&error)).unwrap_or(error))
}

/// Whether a copy that cannot be used proves that more was durable than `log` has.
fn tells_of_more(error: &RecoveryError, log: &Log) -> bool {
    match error {
        RecoveryError::HeadLost { lost, .. } => *lost > log.heads.newest.sequence,
        RecoveryError::Damaged { flushed, .. } => *flushed > log.end,
        RecoveryError::Device(_)
        | RecoveryError::Unread { .. }
        | RecoveryError::NoHead { .. }
        | RecoveryError::BadRecord { .. }
        | RecoveryError::Exhausted { .. }
        | RecoveryError::Page(_) => false,
    }
}

/// Copies the heads and the active log of `source` to all other members, and as much behind its end
/// as a chunk may be long: a piece of a chunk that another has there must not make its log longer.
fn make_equal(volume: &Volume, source: &Volume, log: &Log) -> Result<(), DeviceError> {
    let geometry = volume.geometry();
    let heads = geometry.journal_offset;
    volume.copy_fixed(source, Purpose::Journal, heads, index_wide(JOURNAL_HEADS * 4096))?;
    for (at, bytes) in active_pieces(geometry, log.heads.newest.tail, log.end) {
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        match volume.copy_fixed(source, Purpose::Journal, offset, index_wide(length)) {
            Err(DeviceError::Io { .. }) if at + length > log.end.0 => {
                copy_pages(volume, source, (at, at + length), (offset, log.end))?;
            }
            copied => copied?,
        }
    }
    Ok(())
}

/// Returns the pieces of the ring that have the log from `tail` to `end`, and as much behind it as
/// a chunk may be long: for each the position in the log of its first byte, and its bytes of the
/// pool.
pub(super) fn active_pieces(geometry: &Geometry, tail: Lsn, end: Lsn) -> Vec<(u64, Range<u64>)> {
    let (ring, ring_offset) =
        (ring_bytes(geometry), geometry.journal_offset + JOURNAL_HEADS * 4096);
    let tail = tail.0 / 4096 * 4096;
    let end = (end.0 + wide(CHUNK_BYTES_MAX)).next_multiple_of(4096).min(tail + ring);
    let (mut at, mut pieces) = (tail, Vec::new());
    while at < end {
        let in_ring = at % ring;
        let length = PIECE_BYTES.min(end - at).min(ring - in_ring);
        let offset = ring_offset + in_ring;
        pieces.push((at, offset..offset + length));
        at += length;
    }
    pieces
}

/// As `make_equal`, for positions of the log, whose first is at byte `offset`, page by page: a page
/// wholly behind the end that `source` does not give becomes zeros on all, for no chunk is in it.
fn copy_pages(
    volume: &Volume,
    source: &Volume,
    (from, to): (u64, u64),
    (offset, end): (u64, Lsn),
) -> Result<(), DeviceError> {
    for at in (from..to).step_by(PAGE_BYTES) {
        let here = offset + (at - from);
        match volume.copy_fixed(source, Purpose::Journal, here, PAGE_BYTES) {
            Err(error @ DeviceError::Io { .. }) if at >= end.0 => {
                tracing::warn!("{error}; nothing of the log is there, and it is written as zeros");
                let zeros = AlignedBuffer::zeroed(PAGE_BYTES);
                volume.write_fixed(Purpose::Journal, here, zeros)?;
            }
            copied => copied?,
        }
    }
    Ok(())
}

/// Copies the double-write area of the member that has the newest whole group, or else its newest
/// head, to all others; returns it. Where that cannot be read any more, that of another.
fn make_double_writes_equal(
    volume: &Volume,
    pool_id: PoolId,
) -> Result<Option<Volume>, RecoveryError> {
    let mut copies = volume.fixed_copies(volume.geometry().double_write_offset);
    loop {
        let Some((source, pages)) = newest_double_write(&copies, pool_id) else { return Ok(None) };
        match copy_double_write(volume, &copies[source], pages) {
            Err(error) if copies.len() > 1 => {
                tracing::warn!("{error}; the double-write area of another member is taken");
                copies.remove(source);
            }
            copied => {
                copied?;
                return Ok(Some(copies.swap_remove(source)));
            }
        }
    }
}

/// Returns which of `copies` has the newest group, and how many pages of it are to be copied.
fn newest_double_write(copies: &[Volume], pool_id: PoolId) -> Option<(usize, u64)> {
    let mut newest: Option<((bool, u64), usize, u64)> = None;
    for (at, copy) in copies.iter().enumerate() {
        let geometry = copy.geometry();
        let Ok(first) = read_double_write_head(copy, pool_id, 0) else { continue };
        let (sequence, pages) = first.as_ref().map_or((0, 0), |f| (f.sequence, f.page_count));
        let group = first.map(|first| read_group(copy, pool_id, geometry, &first));
        let is_whole = matches!(group, Some(Ok(Some(_))));
        let (rank, pages) = ((is_whole, sequence), if is_whole { pages } else { 0 });
        if newest.is_none_or(|(other, ..)| rank > other) {
            newest = Some((rank, at, pages));
        }
    }
    newest.map(|(_, at, pages)| (at, pages))
}

fn copy_double_write(volume: &Volume, source: &Volume, pages: u64) -> Result<(), DeviceError> {
    let geometry = volume.geometry();
    for index in 0..heads_of(geometry) {
        let offset = DoubleWriteHead::head_offset(geometry, index);
        volume.copy_fixed(source, Purpose::DoubleWrite, offset, 4096)?;
    }
    let start = DoubleWriteHead::page_offset(geometry, 0);
    let mut at = 0;
    while at < pages * 4096 {
        let length = PIECE_BYTES.min(pages * 4096 - at);
        volume.copy_fixed(source, Purpose::DoubleWrite, start + at, index_wide(length))?;
        at += length;
    }
    Ok(())
}

fn heads_of(geometry: &Geometry) -> u64 {
    geometry.double_write_pages.div_ceil(DOUBLE_WRITE_ENTRIES_PER_HEAD)
}
