//! A journal that was on devices of its own, of which the last has failed, is made anew on the
//! main disk group.
//!
//! What a recovery would read is in memory as it was handed over to be written (J4), so it becomes
//! there what it was, and the log goes on behind it (`docs/decisions/0105`).
//!
//! # Invariants
//!
//! - NJ1: Whoever has the turn to write the log looks whether the journal is lost after a write or
//!   flush of it, whatever that has come to. If it is, nothing counts as durable until it was made
//!   anew: not by the turn of another, for nobody else has one.
//! - NJ2: The volume may lose the journal's devices only while all of the log is kept.
//!
//! # Crashes
//!
//! The log is durable on the main disk group, with the data that it points to, before a label says
//! that it is there. Until then it is where the labels say, with what was acknowledged, and nothing
//! more is acknowledged.
//!
//! Not here: what the labels say meanwhile (`storage::volume`).

use format::geometry::JOURNAL_HEADS;
use format::ids::Lsn;
use format::journal::JournalHead;
use format::page::PAGE_BYTES;
use runtime::planted::{self, Planted};
use storage::device::{AlignedBuffer, DeviceError, Operation, Purpose, SharedBytes};

use super::checkpoint::copies_of;
use super::copies::active_pieces;
use super::log::SealedChunk;
use super::{Journal, ring_bytes};
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};

/// Bytes of the log that are written at once, and the pieces that they may lie in.
const BYTES_PER_WRITE: u64 = 1 << 20;
const PIECES_PER_WRITE: usize = 64;

impl Journal {
    /// Keeps the log from now on if the journal, of which there is nothing yet, is apart.
    pub(super) fn keep_log_if_apart(&self) {
        if self.volume.geometry().journal_group.is_some() {
            self.state.lock().log.keep(Some(Vec::new()));
            self.volume.note_journal_kept();
        }
    }

    /// Keeps the log from its tail on, for a journal that comes to be apart; for whoever has it at
    /// rest.
    ///
    /// # Errors
    ///
    /// What the device said on which it is: nothing is kept.
    pub(crate) fn keep_log(&self) -> Result<(), DeviceError> {
        let (tail, end) = {
            let state = self.state.lock();
            (state.tail.0, state.log.handed_over().0)
        };
        let mut pieces = Vec::new();
        for (at, bytes) in active_pieces(self.volume.geometry(), Lsn(tail), Lsn(end)) {
            let (from, to) = (at.max(tail), (at + bytes.end - bytes.start).min(end));
            if from < to {
                let length = index_wide((to - at).next_multiple_of(wide(PAGE_BYTES)));
                let read = self.volume.read_fixed(Purpose::Journal, bytes.start, length)?;
                let own = AlignedBuffer::copy_of(&read[index_wide(from - at)..index_wide(to - at)]);
                let bytes = SharedBytes::from(own);
                // It is durable, and so is what it points to.
                let data_sequence = 0;
                pieces.push(SealedChunk { lsn: Lsn(from), end: Lsn(to), bytes, data_sequence });
            }
        }
        self.state.lock().log.keep(Some(pieces));
        Ok(())
    }

    /// The journal has devices of its own again.
    pub(crate) fn forget_lost(&self) {
        *self.lost.lock() = None;
    }

    /// Keeps nothing of the log any more.
    pub(crate) fn keep_no_log(&self) {
        self.state.lock().log.keep(None);
    }

    /// Returns what the devices were called that the journal was on when the last of them failed.
    pub(crate) fn lost_devices(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    /// Returns the error of a write or flush of the log. The journal fails with it, unless it can
    /// be made anew.
    pub(super) fn not_written(&self, error: &DeviceError) -> FsError {
        if self.volume.has_lost_journal() {
            FsError::io(error.to_string())
        } else {
            self.fail(error)
        }
    }

    /// Makes a lost journal anew, if nobody has: who writes the log does so too.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`].
    pub(crate) fn make_anew_if_lost(&self) -> FsResult<()> {
        let is_there = || !self.volume.has_lost_journal();
        if is_there() {
            return Ok(());
        }
        let Some(_writer) = self.writer_unless(|_| is_there())? else { return Ok(()) };
        self.write_or_make_anew(None, || Ok(None)).map(drop)
    }

    /// Writes and flushes something of the log, with the turn to do so: `write` does it, and
    /// returns up to where the log is durable then, if it has written some. Where the journal is
    /// lost by then it is made anew, with `head` if that was to be written (NJ1).
    pub(super) fn write_or_make_anew(
        &self,
        head: Option<&JournalHead>,
        write: impl FnOnce() -> FsResult<Option<Lsn>>,
    ) -> FsResult<Option<Lsn>> {
        if !self.volume.has_lost_journal() {
            let written = write();
            if !self.volume.has_lost_journal() {
                return written;
            }
            if planted::is(Planted::LostAcknowledged) {
                return Ok(self.state.lock().log.kept_end());
            }
        }
        self.make_anew(head.filter(|_| !planted::is(Planted::LostHeadForgotten)))
    }

    /// Returns up to where the log is durable then; `None`: where it was.
    fn make_anew(&self, head: Option<&JournalHead>) -> FsResult<Option<Lsn>> {
        self.check_alive()?;
        let (mut kept, head) = {
            let mut state = self.state.lock();
            // What waits goes along.
            drop(state.log.hand_over());
            let head = head.copied().unwrap_or(state.head);
            (state.log.kept_from(head.tail).expect("NJ2: all of it is kept"), head)
        };
        let end = kept.last().map(|chunk| chunk.end);
        self.check_ring(end.unwrap_or(head.tail))?;
        if planted::is(Planted::LostLogCut) {
            let durable = self.state.lock().log.durable;
            kept.retain(|chunk| chunk.end > durable);
        }
        // CRASH: data first, as ever.
        let data = kept.iter().map(|chunk| chunk.data_sequence).max().unwrap_or(0);
        self.data.settle(data).map_err(|error| self.fail(&error))?;
        let devices = self.volume.journal_devices().join(", ");
        let log = self.log_anew(&kept, &head, end.unwrap_or(head.tail));
        let made = self.volume.changing().make_journal_anew(log);
        made.map_err(|error| {
            let reason = error.to_string();
            self.fail_with(&reason);
            FsError::io(reason)
        })?;
        self.keep_no_log();
        tracing::error!(
            devices,
            "the last device of the journal has failed; it is where the metadata is, with all that \
             was acknowledged, and commits wait for that: give it devices of its own again \
             (holdfast group add POOL mirror:A,B=journal)"
        );
        *self.lost.lock() = Some(devices);
        Ok(end)
    }

    /// Returns the writes that make a journal of `chunks`, which end at `end`, and `head`.
    fn log_anew(&self, chunks: &[SealedChunk], head: &JournalHead, end: Lsn) -> Vec<Operation> {
        let geometry = self.volume.geometry();
        let ring_offset = geometry.journal_offset + JOURNAL_HEADS * 4096;
        let at = |lsn: Lsn| ring_offset + lsn.0 % ring_bytes(geometry);
        let mut writes: Vec<Operation> = Vec::new();
        for chunk in chunks {
            let here = at(chunk.lsn);
            let bytes = chunk.bytes.clone();
            match writes.last_mut() {
                Some(Operation::Write { offset, data })
                    if data.len() < PIECES_PER_WRITE
                        && *offset + length_of(data) == here
                        && length_of(data) + wide(bytes.len()) <= BYTES_PER_WRITE =>
                {
                    data.push(bytes);
                }
                _ => writes.push(Operation::Write { offset: here, data: vec![bytes] }),
            }
        }
        // As much behind it as a chunk may be long: nothing may seem to go on there.
        for (lsn, bytes) in active_pieces(geometry, head.tail, end) {
            let offset = bytes.start + end.0.saturating_sub(lsn);
            if offset < bytes.end {
                let zeros = AlignedBuffer::zeroed(index_wide(bytes.end - offset));
                writes.push(Operation::Write { offset, data: vec![SharedBytes::from(zeros)] });
            }
        }
        for sequence in [head.sequence - 1, head.sequence] {
            let head = JournalHead { sequence, ..*head };
            let (offset, copies) = copies_of(geometry, self.cache.pool_id(), &head);
            writes.push(Operation::Write { offset, data: vec![SharedBytes::from(copies)] });
        }
        writes
    }
}

fn length_of(pieces: &[SharedBytes]) -> u64 {
    pieces.iter().map(|piece| wide(piece.len())).sum()
}
