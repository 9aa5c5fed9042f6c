//! Reading the content of files.

use std::ops::Range;

use format::anode::AnodeKind;
use format::ids::Place;
use format::planted::{self, Planted};
use format::pointer::{BlockPointer, QUARTER_BYTES};
use storage::device::{AlignedBuffer, Purpose};

use super::api::Ino;
use super::file::check_regular;
use super::inline::{inline_bytes, is_inline};
use super::unit::Span;
use super::{Files, VnodeState};
use crate::buffer::io;
use crate::container::Unit;
use crate::convert::{index_wide, wide};
use crate::error::{FsError, FsResult};

/// Most bytes that one device read brings in.
const RUN_BYTES_MAX: u64 = 1 << 20;

/// Part of a block that was asked for.
struct Part {
    /// Where its bytes go.
    into: Range<usize>,
    /// Where they begin in the block.
    from: usize,
    pointer: BlockPointer,
}

/// Blocks that lie side by side on the device.
struct Run {
    place: Place,
    fragments: u32,
    parts: Vec<Part>,
}

impl Files {
    /// Reads; see [`super::api::FileSystem::read`].
    pub(crate) fn read_file(
        &self,
        ino: Ino,
        offset: u64,
        length_bytes: usize,
        into: &mut Vec<u8>,
    ) -> FsResult<usize> {
        let vnode = self.vnode(ino)?;
        let count = {
            let state = vnode.state.read();
            check_regular(&state)?;
            let behind = state.size_bytes.saturating_sub(offset);
            let count = index_wide(behind.min(wide(length_bytes)));
            let start = into.len();
            into.resize(start + count, 0);
            if let Err(error) = self.fill(&state, offset, &mut into[start..]) {
                into.truncate(start);
                return Err(error);
            }
            count
        };
        if length_bytes > 0 {
            self.touch_atime(&vnode);
        }
        Ok(count)
    }

    /// Fills `bytes` with what the file holds from `offset` on; the caller has cut it to the size.
    pub(crate) fn fill(&self, state: &VnodeState, offset: u64, bytes: &mut [u8]) -> FsResult<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + wide(bytes.len());
        let mut runs: Vec<Run> = Vec::new();
        let mut at = offset;
        while at < end {
            if let Some(block) = state.waiting_at(at) {
                let span = block.span();
                let next = span.end().min(end);
                let stored = self.stored_bytes(block.fragments());
                let into = index_wide(at - offset)..index_wide(next - offset);
                let from = index_wide(at - span.start);
                copy_part(&mut bytes[into], &block.data()[..stored], from);
                at = next;
                continue;
            }
            let waiting = state.pending.range(at..end).next();
            let next = waiting.map_or(end, |(start, _)| *start);
            let anode = state.anode()?;
            if is_inline(anode) {
                let stored = inline_bytes(anode, at..next);
                let from = index_wide(at - offset);
                bytes[from..from + stored.len()].copy_from_slice(stored);
                at = next;
                continue;
            }
            for unit in self.store.units(anode, at, next)? {
                self.fill_unit(&unit, at..next, offset, bytes, &mut runs);
            }
            at = next;
        }
        self.read_runs(runs, bytes)
    }

    /// Fills what of `wanted` lies in `unit`, or notes it in `runs`; `bytes` begin at `offset`.
    fn fill_unit(
        &self,
        unit: &Unit,
        wanted: Range<u64>,
        offset: u64,
        bytes: &mut [u8],
        runs: &mut Vec<Run>,
    ) {
        let Some(pointer) = unit.pointer else { return };
        let (start, end) = (unit.start.max(wanted.start), unit.end().min(wanted.end));
        let into = index_wide(start - offset)..index_wide(end - offset);
        let from = index_wide(start - unit.start);
        let fragment_shift = self.store.geometry().fragment_shift;
        let is_whole = start == unit.start && end == unit.end();
        if is_whole || !pointer.is_divisible() {
            self.fill_part(Part { into, from, pointer }, bytes, runs);
            return;
        }
        // Only the quarters that are asked for: each has a check of its own.
        let mut at = from;
        while at < from + into.len() {
            let (quarter, skip) = (at / QUARTER_BYTES, at % QUARTER_BYTES);
            let count = (QUARTER_BYTES - skip).min(from + into.len() - at);
            let start = into.start + (at - from);
            if let Some(pointer) = pointer.quarter(quarter, fragment_shift) {
                let part = Part { into: start..start + count, from: skip, pointer };
                self.fill_part(part, bytes, runs);
            }
            at += count;
        }
    }

    fn fill_part(&self, part: Part, bytes: &mut [u8], runs: &mut Vec<Run>) {
        match self.segments.in_flight(part.pointer.place) {
            Some((data, before)) => {
                let stored = before..before + self.stored_bytes(part.pointer.fragments);
                copy_part(&mut bytes[part.into], &data[stored], part.from);
            }
            None => self.add_to_runs(runs, part),
        }
    }

    pub(crate) fn stored_bytes(&self, fragments: u32) -> usize {
        crate::convert::index(fragments) << self.store.geometry().fragment_shift
    }

    fn add_to_runs(&self, runs: &mut Vec<Run>, part: Part) {
        let (place, fragments) = (part.pointer.place, part.pointer.fragments);
        let limit = RUN_BYTES_MAX >> self.store.geometry().fragment_shift;
        match runs.last_mut() {
            // A pointer may name any place: no device has looked at it yet.
            Some(run)
                if run.place.bits().checked_add(run.fragments.into()) == Some(place.bits())
                    && u64::from(run.fragments + fragments) <= limit =>
            {
                run.fragments += fragments;
                run.parts.push(part);
            }
            _ => runs.push(Run { place, fragments, parts: vec![part] }),
        }
    }

    fn read_runs(&self, runs: Vec<Run>, bytes: &mut [u8]) -> FsResult<()> {
        if let [run] = &runs[..] {
            let (start, length, lead) = self.store.volume.pages_around(run.place, run.fragments);
            let data = self.store.volume.read(Purpose::Data, start, length).map_err(io)?;
            return self.take_run(run, &data[lead..], bytes);
        }
        let tickets: Vec<_> = runs
            .iter()
            .map(|run| {
                let volume = &self.store.volume;
                let (start, length, lead) = volume.pages_around(run.place, run.fragments);
                (lead, volume.submit_read(Purpose::Data, start, length))
            })
            .collect();
        for (run, (lead, ticket)) in runs.iter().zip(tickets) {
            let data = ticket.wait().map_err(io)?.buffer.expect("a read returns its buffer");
            self.take_run(run, &data[lead..], bytes)?;
        }
        Ok(())
    }

    fn take_run(&self, run: &Run, data: &[u8], bytes: &mut [u8]) -> FsResult<()> {
        let mut at = 0;
        for part in &run.parts {
            let stored = self.stored_bytes(part.pointer.fragments);
            let block = &data[at..at + stored];
            if !part.pointer.verifies(block) && !planted::is(Planted::DataChecksumNotCompared) {
                return Err(bad_data(&part.pointer));
            }
            copy_part(&mut bytes[part.into.clone()], block, part.from);
            at += stored;
        }
        Ok(())
    }

    /// Returns the whole of a block, its first `valid_bytes` as stored and zeros behind them.
    pub(crate) fn block_content(
        &self,
        state: &VnodeState,
        span: Span,
        valid_bytes: usize,
    ) -> FsResult<AlignedBuffer> {
        let mut buffer = AlignedBuffer::zeroed(index_wide(span.bytes()));
        self.fill(state, span.start, &mut buffer[..valid_bytes])?;
        Ok(buffer)
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn read_link(&self, ino: Ino) -> FsResult<Vec<u8>> {
        let vnode = self.vnode(ino)?;
        let target = self.target_of_link(&vnode.state.read())?;
        self.touch_atime(&vnode);
        Ok(target)
    }

    fn target_of_link(&self, state: &VnodeState) -> FsResult<Vec<u8>> {
        let anode = state.anode()?;
        if anode.kind != AnodeKind::Symlink {
            return Err(FsError::Invalid);
        }
        let length = index_wide(anode.size_bytes);
        if anode.storage == format::anode::StorageMode::Inline {
            return Ok(anode.root[..length.min(anode.root.len())].to_vec());
        }
        let mut target = vec![0; length.min(super::api::SYMLINK_BYTES_MAX)];
        self.fill(state, 0, &mut target)?;
        Ok(target)
    }
}

/// Copies what a block stores from `from` on; past its end it reads as zeros.
fn copy_part(into: &mut [u8], stored: &[u8], from: usize) {
    let stored = stored.get(from..).unwrap_or(&[]);
    let count = stored.len().min(into.len());
    into[..count].copy_from_slice(&stored[..count]);
    into[count..].fill(0);
}

pub(crate) fn bad_data(pointer: &BlockPointer) -> FsError {
    FsError::Corrupt { defect: format!("DT001: block at {} fails its checksum", pointer.place) }
}
