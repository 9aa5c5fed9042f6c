//! Rebuild of a lost journal: once the last device of a separate journal has failed, the journal
//! moves to the main disk group.
//!
//! Memory holds all chunks that a recovery would read (J4). They are written to the main disk group
//! unchanged, and the log continues behind them (`docs/decisions/0105`).
//!
//! # Invariants
//!
//! - NJ1: The thread that has the right to write the log checks after each write or flush,
//!   successful or not, whether the journal is lost. If so, nothing counts as durable until that
//!   thread has rebuilt the journal. It keeps the right until then.
//! - NJ2: The volume may lose the journal's devices only while all of the log is kept.
//!
//! # Crashes
//!
//! The log, and the data that it points to, is durable on the main disk group before a label names
//! that disk group as the journal's place. Until then the labels name the old place, which holds
//! everything acknowledged, and nothing more is acknowledged.
//!
//! Not here: the content of the labels during the rebuild (`storage::volume`).

use super::LostLog;
use format::geometry::JOURNAL_HEADS;
use format::ids::Lsn;
use format::journal::JournalHead;
use format::page::PAGE_BYTES;
use runtime::{if_planted, planted};
use storage::device::{AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, SharedBytes};

use super::checkpoint::copies_of;
use super::copies::active_pieces;
use super::log::SealedChunk;
use super::ring_bytes;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};

const BYTES_PER_WRITE: u64 = 1 << 20;
const PIECES_PER_WRITE: usize = 64;

impl LostLog<'_> {
    pub(super) fn keep_log_if_apart(&self) {
        if self.volume.geometry().journal_group.is_some() {
            self.state.lock().log.keep(Some(Vec::new()));
            self.volume.note_journal_kept();
        }
    }

    /// Reads the log from its tail on and keeps it, for a journal that is moved to its own devices.
    /// Called inside [`Journal::while_at_rest`](super::Journal::while_at_rest).
    ///
    /// # Errors
    ///
    /// The device's error; nothing is kept.
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
                let read = self.volume.read_fixed(IoPurpose::Journal, bytes.start, length)?;
                let own = AlignedBuffer::copy_of(&read[index_wide(from - at)..index_wide(to - at)]);
                let bytes = SharedBytes::from(own);
                let data_sequence = 0;
                pieces.push(SealedChunk { lsn: Lsn(from), end: Lsn(to), bytes, data_sequence });
            }
        }
        self.state.lock().log.keep(Some(pieces));
        Ok(())
    }

    pub(crate) fn forget_lost(&self) {
        *self.lost.lock() = None;
    }

    pub(crate) fn keep_no_log(&self) {
        self.state.lock().log.keep(None);
    }

    pub(crate) fn lost_devices(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    /// Fails the journal, unless it can be rebuilt.
    pub(super) fn not_written(&self, error: &DeviceError) -> FsError {
        if self.volume.has_lost_journal() {
            FsError::io(error.to_string())
        } else {
            self.fail(error)
        }
    }

    /// Rebuilds a lost journal, unless a log writer has done so already.
    ///
    /// # Errors
    ///
    /// As `commit`.
    pub(crate) fn rebuild_if_lost(&self) -> FsResult<()> {
        let is_there = || !self.volume.has_lost_journal();
        if is_there() {
            return Ok(());
        }
        let Some(_writer) = self.writer_unless(|_| is_there())? else { return Ok(()) };
        self.write_or_rebuild(None, || Ok(None)).map(drop)
    }

    /// Runs `write`, which returns the end of the durable log if it wrote any. If the journal is
    /// lost before or after, rebuilds it; `head` is the head that `write` was to write (NJ1).
    pub(super) fn write_or_rebuild(
        &self,
        head: Option<&JournalHead>,
        write: impl FnOnce() -> FsResult<Option<Lsn>>,
    ) -> FsResult<Option<Lsn>> {
        if !self.volume.has_lost_journal() {
            let written = write();
            if !self.volume.has_lost_journal() {
                return written;
            }
            if_planted!(LostAcknowledged, return Ok(self.state.lock().log.kept_end()));
        }
        self.rebuild(head.filter(|_| !planted!(LostHeadForgotten)))
    }

    /// Rebuilds the journal. Returns the end of the durable log; `None` if the kept log is empty.
    fn rebuild(&self, head: Option<&JournalHead>) -> FsResult<Option<Lsn>> {
        self.check_alive()?;
        let (kept, head) = {
            let mut state = self.state.lock();
            drop(state.log.hand_over());
            let head = head.copied().unwrap_or(state.head);
            (state.log.kept_from(head.tail).expect("NJ2: all of it is kept"), head)
        };
        let end = kept.last().map(|chunk| chunk.end);
        self.check_ring(end.unwrap_or(head.tail))?;
        // CRASH: data before the log that points to it.
        let data = kept.iter().map(|chunk| chunk.data_sequence).max().unwrap_or(0);
        self.data.settle(data).map_err(|error| self.fail(&error))?;
        let devices = self.volume.journal_devices().join(", ");
        let log = self.log_rebuild(&kept, &head, end.unwrap_or(head.tail));
        let made = self.volume.membership().changing().rebuild_journal(log);
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
             (`holdfast group add POOL mirror:NEW,NEW=journal`)"
        );
        *self.lost.lock() = Some(devices);
        Ok(end)
    }

    fn log_rebuild(
        &self,
        chunks: &[SealedChunk],
        head: &JournalHead,
        end: Lsn,
    ) -> Vec<DeviceOperation> {
        let geometry = self.volume.geometry();
        let ring_offset = geometry.journal_offset + JOURNAL_HEADS * 4096;
        let at = |lsn: Lsn| ring_offset + lsn.0 % ring_bytes(geometry);
        let mut writes: Vec<DeviceOperation> = Vec::new();
        for chunk in chunks {
            let here = at(chunk.lsn);
            let bytes = chunk.bytes.clone();
            match writes.last_mut() {
                Some(DeviceOperation::Write { offset, data })
                    if data.len() < PIECES_PER_WRITE
                        && *offset + length_of(data) == here
                        && length_of(data) + wide(bytes.len()) <= BYTES_PER_WRITE =>
                {
                    data.push(bytes);
                }
                _ => writes.push(DeviceOperation::Write { offset: here, data: vec![bytes] }),
            }
        }
        // A chunk's length of zeros behind the log, so that no old chunk seems to continue it.
        for (lsn, bytes) in active_pieces(geometry, head.tail, end) {
            let offset = bytes.start + end.0.saturating_sub(lsn);
            if offset < bytes.end {
                let zeros = AlignedBuffer::zeroed(index_wide(bytes.end - offset));
                writes
                    .push(DeviceOperation::Write { offset, data: vec![SharedBytes::from(zeros)] });
            }
        }
        for sequence in [head.sequence - 1, head.sequence] {
            let head = JournalHead { sequence, ..*head };
            let (offset, copies) = copies_of(geometry, self.cache.pool_id(), &head);
            writes.push(DeviceOperation::Write { offset, data: vec![SharedBytes::from(copies)] });
        }
        writes
    }
}

fn length_of(pieces: &[SharedBytes]) -> u64 {
    pieces.iter().map(|piece| wide(piece.len())).sum()
}
