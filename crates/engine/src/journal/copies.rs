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
//! A member may have stored heads and not the log, or the log and not the heads. The newest head of
//! all members is right: when it was written, what lies before its tail was durable at home on all.
//! From its tail on the longest log of all members is right: all that was acknowledged is in it.
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
use super::{checkpoint, ring_bytes};
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
    fn read(volume: &Volume, pool_id: PoolId, heads: Heads) -> Result<Log, RecoveryError> {
        let (chunks, end) = read_log(volume, pool_id, &heads, None)?;
        Ok(Log { heads, chunks, end, double_writes: None })
    }
}

/// The log of a pool on several devices, and the copies that have its parts.
struct Furthest {
    /// Index of the copy with the newest head.
    heads_at: usize,
    /// Index of the copy with the longest log from that head on.
    log_at: usize,
    log: Log,
}

impl Furthest {
    fn reach(&self) -> (u64, Lsn) {
        (self.log.heads.newest.sequence, self.log.end)
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

/// Moves the place where the log of a closed pool goes on to the next sector of `sector_bytes`, if
/// it is at none: a pool that was copied to a device with larger sectors could not write it.
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
    volume.flush(Purpose::Journal)?;
    Ok(head)
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
        return Log::read(volume, pool_id, read_heads(volume, pool_id)?);
    }
    let mut dropped: Option<((u64, Lsn), DeviceError)> = None;
    loop {
        let furthest = furthest_of(&copies, pool_id)?;
        if let Some((reach, error)) = dropped.take_if(|(reach, _)| *reach > furthest.reach()) {
            return Err(RecoveryError::Unread { at: reach.1, error });
        }
        if planted::is(Planted::LogsNotMadeEqual) {
            return Ok(furthest.log);
        }
        match make_equal(volume, &copies, &furthest) {
            Ok(()) => {
                let double_writes = make_double_writes_equal(volume, pool_id)?;
                // CRASH: from here on every member gives the same log.
                volume.flush(Purpose::Journal)?;
                return Ok(Log { double_writes, ..furthest.log });
            }
            // The copy could be read a moment ago. Another copy of the log is taken if it is as
            // long, and is written over this one.
            Err((source, error)) if copies.len() > 1 => {
                tracing::warn!("{error}; the log of another member is looked for");
                copies.remove(source);
                dropped.get_or_insert((furthest.reach(), error));
            }
            Err((_, error)) => return Err(error.into()),
        }
    }
}

/// Reads the log that goes furthest, and changes nothing; an error says why it cannot be replayed.
pub(crate) fn check_log(volume: &Volume, pool_id: PoolId) -> Result<(), RecoveryError> {
    let copies = volume.fixed_copies(volume.geometry().journal_offset);
    if copies.is_empty() {
        return Ok(());
    }
    let furthest = furthest_of(&copies, pool_id)?;
    Replay::of(volume, pool_id, &furthest.log.chunks).map(drop)
}

/// Returns the log that goes furthest from the newest head of `copies` on.
fn furthest_of(copies: &[Volume], pool_id: PoolId) -> Result<Furthest, RecoveryError> {
    let (mut all_heads, mut failures) = (Vec::new(), Vec::new());
    for (at, copy) in copies.iter().enumerate() {
        match read_heads(copy, pool_id) {
            Ok(heads) => all_heads.push((at, heads)),
            Err(error) => failures.push(error),
        }
    }
    let sequence_of = |(_, heads): &&(usize, Heads)| heads.newest.sequence;
    let newest = all_heads.iter().rev().max_by_key(sequence_of);
    let newest = newest.map(|(at, heads)| (*at, heads.newest));
    let (mut furthest, mut cut): (Option<Furthest>, Option<Furthest>) = (None, None);
    for (at, own) in all_heads {
        let (heads_at, newest) = match newest {
            Some(newest) if !planted::is(Planted::LogGoesByItsOwnHead) => newest,
            _ => (at, own.newest),
        };
        let heads = Heads { newest, ..own };
        let (best, log) = match Log::read(&copies[at], pool_id, heads) {
            Ok(log) => (&mut furthest, log),
            Err(error) => {
                let unread = unread_at(&error);
                failures.push(error);
                let Some(unread) = unread else { continue };
                let before = read_log(&copies[at], pool_id, &heads, Some(unread));
                let Ok((chunks, end)) = before else { continue };
                (&mut cut, Log { heads, chunks, end, double_writes: None })
            }
        };
        let found = Furthest { heads_at, log_at: at, log };
        if best.as_ref().is_none_or(|other| found.reach() > other.reach()) {
            *best = Some(found);
        }
    }
    let Some(whole) = furthest else {
        return Err(worst_of(failures).expect("there is at least one copy"));
    };
    // Another copy ends before what cannot be read of this one: what is behind was not
    // acknowledged by all, and what lies before has all that the other has.
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

/// Of several failures the first that tells of what is lost, or the first.
fn worst_of(mut failures: Vec<RecoveryError>) -> Option<RecoveryError> {
    let tells = |error: &RecoveryError| {
        matches!(error, RecoveryError::HeadLost { .. } | RecoveryError::Damaged { .. })
    };
    let at = failures.iter().position(tells).unwrap_or(0);
    (at < failures.len()).then(|| failures.swap_remove(at))
}

/// Returns where a log may go on in what cannot be read.
fn unread_at(error: &RecoveryError) -> Option<Lsn> {
    if let RecoveryError::Unread { at, .. } = error { Some(*at) } else { None }
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

/// Copies the newest heads and the active log to all other members; a failure comes with the copy
/// that was read.
fn make_equal(
    volume: &Volume,
    copies: &[Volume],
    Furthest { heads_at, log_at, log }: &Furthest,
) -> Result<(), (usize, DeviceError)> {
    let first = volume.geometry().journal_offset;
    let source = &copies[*heads_at];
    // CRASH: a copy with the newest head and its own log is one that a crash may have left.
    for at in (first..).step_by(PAGE_BYTES).take(index_wide(JOURNAL_HEADS)) {
        // Each head lies there twice: one that cannot be read stays what it is on the others.
        if let Err(error) = source.read_fixed(Purpose::Journal, at, PAGE_BYTES) {
            tracing::warn!("{error}; it is a copy of a journal head, and the other is taken");
            continue;
        }
        volume
            .copy_fixed(source, Purpose::Journal, at, PAGE_BYTES)
            .map_err(|error| (*heads_at, error))?;
    }
    copy_log(volume, &copies[*log_at], log).map_err(|error| (*log_at, error))
}

/// Copies the active log of `source` to all other members, and as much behind its end as a chunk
/// may be long: a piece of a chunk that another has there must not make its log longer.
fn copy_log(volume: &Volume, source: &Volume, log: &Log) -> Result<(), DeviceError> {
    let geometry = volume.geometry();
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
