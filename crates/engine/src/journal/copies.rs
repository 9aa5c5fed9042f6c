//! Copies of the fixed regions on several members: chooses one when the pool is opened, and makes
//! the others equal.
//!
//! # Crashes
//!
//! All members get the same writes, and each step ends on all members before the next begins. So
//! each copy is a state that a crash may leave on a single device, and so is each mixture that
//! takes every write from one copy. But a later recovery may read other copies, because a member is
//! absent. Therefore the log to be replayed, its head and the double-write area are made equal on
//! all members, durably, before anything is written home (`docs/decisions/0060`).
//!
//! The log may lie on other members than the double-write area (`docs/decisions/0103`), so the copy
//! of each is chosen separately.
//!
//! A member may have stored heads but not the log, or the log but not the heads. The newest head of
//! all members is right: when it was written, everything before its tail was durable at home on all
//! of them. From that tail on the longest log is right: it has everything acknowledged.
//!
//! On one device this module reads and writes nothing.

use std::ops::Range;

use format::double_write::DoubleWriteHead;
use format::geometry::{DOUBLE_WRITE_ENTRIES_PER_HEAD, Geometry, JOURNAL_HEADS};
use format::ids::{Lsn, PoolId};
use format::journal::{CHUNK_BYTES_MAX, JournalHead};
use format::page::PAGE_BYTES;
use runtime::{if_planted, planted};
use storage::device::{AlignedBuffer, DeviceError, IoPurpose};
use storage::volume::Volume;

use super::double_write::{read_double_write_head, read_group};
use super::recovery::{
    JournalHeads, LogChunk, LogReplay, RecoveryError, head_at_rest_of, read_heads, read_log,
};
use super::{checkpoint, ring_bytes};
use crate::convert::{index_wide, wide};

const PIECE_BYTES: u64 = 1 << 20;

pub(super) struct StoredLog {
    pub(super) heads: JournalHeads,
    pub(super) chunks: Vec<LogChunk>,
    pub(super) end: Lsn,
    /// Copy of the double-write area with the newest group, since a member that drops writes may
    /// keep another.
    pub(super) double_writes: Option<Volume>,
}

impl StoredLog {
    fn read(
        volume: &Volume,
        pool_id: PoolId,
        heads: JournalHeads,
    ) -> Result<StoredLog, RecoveryError> {
        let (chunks, end) = read_log(volume, pool_id, &heads, None)?;
        Ok(StoredLog { heads, chunks, end, double_writes: None })
    }
}

struct FurthestLog {
    heads_at: usize,
    log_at: usize,
    log: StoredLog,
}

impl FurthestLog {
    fn reach(&self) -> (u64, Lsn) {
        (self.log.heads.newest.sequence, self.log.end)
    }
}

/// [`head_at_rest_of`] over all copies: `None` if the log continues on any, else the newest head.
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

/// Aligns the end of a closed pool's log, which may come from a device with smaller sectors.
pub(crate) fn align_head(
    volume: &Volume,
    pool_id: PoolId,
    head: JournalHead,
    sector_bytes: u32,
) -> Result<JournalHead, DeviceError> {
    let tail = Lsn(head.tail.0.next_multiple_of(u64::from(sector_bytes)));
    if tail == head.tail {
        return Ok(head);
    }
    let head = JournalHead { sequence: head.sequence + 1, tail, ..head };
    checkpoint::write_head(volume, pool_id, &head)?;
    volume.flush(IoPurpose::Journal)?;
    Ok(head)
}

trait NewestHead {
    fn max_by(self, other: JournalHead) -> Self;
}

impl NewestHead for Option<JournalHead> {
    fn max_by(self, other: JournalHead) -> Option<JournalHead> {
        Some(self.filter(|head| head.sequence >= other.sequence).unwrap_or(other))
    }
}

/// Reads the longest log, and copies it durably to the other members.
pub(super) fn furthest_log(volume: &Volume, pool_id: PoolId) -> Result<StoredLog, RecoveryError> {
    let mut copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return StoredLog::read(volume, pool_id, read_heads(volume, pool_id)?);
    }
    let mut dropped: Option<((u64, Lsn), DeviceError)> = None;
    loop {
        let furthest = furthest_of(&copies, pool_id)?;
        if let Some((reach, error)) = dropped.take_if(|(reach, _)| *reach > furthest.reach()) {
            return Err(RecoveryError::Unread { at: reach.1, error });
        }
        if_planted!(LogsNotMadeEqual, return Ok(furthest.log));
        match make_equal(volume, &copies, &furthest) {
            Ok(()) => {
                let double_writes = make_double_writes_equal(volume, pool_id)?;
                // CRASH: from here on every member has the same log.
                volume.flush(IoPurpose::Journal)?;
                return Ok(StoredLog { double_writes, ..furthest.log });
            }
            // This copy has just become unreadable: use another, if that is as long.
            Err((source, error)) if copies.len() > 1 => {
                tracing::warn!("{error}; the log of another member is looked for");
                copies.remove(source);
                dropped.get_or_insert((furthest.reach(), error));
            }
            Err((_, error)) => return Err(error.into()),
        }
    }
}

/// Returns the reason why the longest log cannot be replayed. Changes nothing.
pub(crate) fn check_log(volume: &Volume, pool_id: PoolId) -> Result<(), RecoveryError> {
    let copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return Ok(());
    }
    let furthest = furthest_of(&copies, pool_id)?;
    LogReplay::of(volume, pool_id, &furthest.log.chunks).map(drop)
}

fn furthest_of(copies: &[Volume], pool_id: PoolId) -> Result<FurthestLog, RecoveryError> {
    let (mut all_heads, mut failures) = (Vec::new(), Vec::new());
    for (at, copy) in copies.iter().enumerate() {
        match read_heads(copy, pool_id) {
            Ok(heads) => all_heads.push((at, heads)),
            Err(error) => failures.push(error),
        }
    }
    let sequence_of = |(_, heads): &&(usize, JournalHeads)| heads.newest.sequence;
    let newest = all_heads.iter().rev().max_by_key(sequence_of);
    let newest = newest.map(|(at, heads)| (*at, heads.newest));
    let (mut furthest, mut cut): (Option<FurthestLog>, Option<FurthestLog>) = (None, None);
    for (at, own) in all_heads {
        let (heads_at, newest) = match newest {
            Some(newest) if !planted!(LogGoesByItsOwnHead) => newest,
            _ => (at, own.newest),
        };
        let heads = JournalHeads { newest, ..own };
        let (best, log) = match StoredLog::read(&copies[at], pool_id, heads) {
            Ok(log) => (&mut furthest, log),
            Err(error) => {
                let unread = unread_at(&error);
                failures.push(error);
                let Some(unread) = unread else { continue };
                let before = read_log(&copies[at], pool_id, &heads, Some(unread));
                let Ok((chunks, end)) = before else { continue };
                (&mut cut, StoredLog { heads, chunks, end, double_writes: None })
            }
        };
        let found = FurthestLog { heads_at, log_at: at, log };
        if best.as_ref().is_none_or(|other| found.reach() > other.reach()) {
            *best = Some(found);
        }
    }
    let Some(whole) = furthest else {
        return Err(worst_of(failures).expect("there is at least one copy"));
    };
    // A whole log ends before the unreadable part, so its member never acknowledged that part.
    let further = cut.filter(|cut| cut.reach() > whole.reach());
    let furthest = further.unwrap_or(whole);
    for error in failures {
        if tells_of_more(&error, &furthest.log) {
            return Err(error);
        }
        tracing::warn!("{error}; another member has the whole log");
    }
    Ok(furthest)
}

/// Returns the first failure that proves a loss, else the first.
fn worst_of(mut failures: Vec<RecoveryError>) -> Option<RecoveryError> {
    let tells = |error: &RecoveryError| {
        matches!(error, RecoveryError::HeadLost { .. } | RecoveryError::Damaged { .. })
    };
    let at = failures.iter().position(tells).unwrap_or(0);
    (at < failures.len()).then(|| failures.swap_remove(at))
}

fn unread_at(error: &RecoveryError) -> Option<Lsn> {
    if let RecoveryError::Unread { at, .. } = error { Some(*at) } else { None }
}

/// Returns whether the error proves that more was durable than `log` has.
fn tells_of_more(error: &RecoveryError, log: &StoredLog) -> bool {
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

/// Copies the newest heads and the log to all members. An error has the index of the unreadable
/// copy.
fn make_equal(
    volume: &Volume,
    copies: &[Volume],
    FurthestLog { heads_at, log_at, log }: &FurthestLog,
) -> Result<(), (usize, DeviceError)> {
    let first = volume.geometry().journal_offset;
    let source = &copies[*heads_at];
    // CRASH: the newest head with another copy's log is a state that a crash may leave.
    for at in (first..).step_by(PAGE_BYTES).take(index_wide(JOURNAL_HEADS)) {
        // Each head has two copies, so skip an unreadable one.
        if let Err(error) = source.read_fixed(IoPurpose::Journal, at, PAGE_BYTES) {
            tracing::warn!("{error}; it is a copy of a journal head, and the other is taken");
            continue;
        }
        volume
            .copy_fixed(source, IoPurpose::Journal, at, PAGE_BYTES)
            .map_err(|error| (*heads_at, error))?;
    }
    copy_log(volume, &copies[*log_at], log).map_err(|error| (*log_at, error))
}

/// Copies the log of `source` and a chunk's length behind it, so that an old chunk there cannot
/// lengthen the log of another member.
fn copy_log(volume: &Volume, source: &Volume, log: &StoredLog) -> Result<(), DeviceError> {
    let geometry = volume.geometry();
    for (at, bytes) in active_pieces(geometry, log.heads.newest.tail, log.end) {
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        match volume.copy_fixed(source, IoPurpose::Journal, offset, index_wide(length)) {
            Err(DeviceError::Io { .. }) if at + length > log.end.0 => {
                copy_pages(volume, source, (at, at + length), (offset, log.end))?;
            }
            copied => copied?,
        }
    }
    Ok(())
}

/// Splits the log, and a chunk's length behind it, into pieces: each a log position and its byte
/// range in the pool.
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

/// Copies log positions `from` to `to` page by page. Replaces unreadable pages behind the end by
/// zeros: they hold no chunk.
fn copy_pages(
    volume: &Volume,
    source: &Volume,
    (from, to): (u64, u64),
    (offset, end): (u64, Lsn),
) -> Result<(), DeviceError> {
    for at in (from..to).step_by(PAGE_BYTES) {
        let here = offset + (at - from);
        match volume.copy_fixed(source, IoPurpose::Journal, here, PAGE_BYTES) {
            Err(error @ DeviceError::Io { .. }) if at >= end.0 => {
                tracing::warn!("{error}; nothing of the log is there, and it is written as zeros");
                let zeros = AlignedBuffer::zeroed(PAGE_BYTES);
                volume.write_fixed(IoPurpose::Journal, here, zeros)?;
            }
            copied => copied?,
        }
    }
    Ok(())
}

/// Copies the double-write area with the newest whole group, or else the newest head, to all
/// members. Returns that copy.
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

/// Returns the index of the copy, and the pages to copy.
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
        volume.copy_fixed(source, IoPurpose::DoubleWrite, offset, 4096)?;
    }
    let start = DoubleWriteHead::page_offset(geometry, 0);
    let mut at = 0;
    while at < pages * 4096 {
        let length = PIECE_BYTES.min(pages * 4096 - at);
        volume.copy_fixed(source, IoPurpose::DoubleWrite, start + at, index_wide(length))?;
        at += length;
    }
    Ok(())
}

fn heads_of(geometry: &Geometry) -> u64 {
    geometry.double_write_pages.div_ceil(DOUBLE_WRITE_ENTRIES_PER_HEAD)
}
