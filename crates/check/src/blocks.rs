//! Verification of file blocks: their bytes with the checksums of the pointers, and their births
//! with the summaries of their segments.
//!
//! A walk only queues blocks. They are read later in physical order, across files, neighbours
//! together: small files would otherwise cost a request for each block.
//!
//! # Memory
//!
//! [`BLOCKS_WAITING_MAX`] queued blocks: 24 MiB, and 64 bytes for each during reading. Summaries
//! are kept for one segment at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::defect::DefectCode;
use format::ids::{Epoch, Place};
use format::page::{PAGE_BYTES, PageBytes};
use format::summary::{SegmentSummary, SummaryKind};
use runtime::planted;
use storage::device::{DeviceError, IoPurpose};

use crate::context::{Check, UncheckedBlock};
use crate::convert::{index_of, to_usize};
use crate::reader::PoolReader;
use crate::space::StatedSegment;

/// Queue length: with blocks of 4 KiB this is 1 GiB, in which neighbours are found.
const BLOCKS_WAITING_MAX: usize = 1 << 18;
/// Largest gap inside a read: read in about the time of a separate request.
const GAP_BYTES_MAX: u64 = 64 << 10;

#[derive(Clone, Copy, Debug)]
enum BlockReadTarget {
    Block(usize),
    /// A gap inside a segment, which may hold summaries.
    Between(Place),
}

type Summaries = BTreeMap<u32, SegmentSummary>;

impl Check<'_> {
    pub(crate) fn wait_for_block(&mut self, block: UncheckedBlock) {
        self.blocks_waiting.push(block);
        if self.blocks_waiting.len() == BLOCKS_WAITING_MAX {
            self.verify_blocks();
        }
    }

    pub(crate) fn verify_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.blocks_waiting);
        blocks.sort_unstable_by_key(|block| block.pointer.place.bits());
        let reader: Arc<PoolReader> = Arc::clone(&self.reader);
        let (wanted, ranges) = self.wanted(&blocks);
        let (mut compared, mut summaries) = (0, Summaries::new());
        let how = (IoPurpose::CheckData, GAP_BYTES_MAX);
        reader.read_many(how, &ranges, &mut |position, result| match wanted.get(position) {
            None => (),
            Some(&BlockReadTarget::Between(start)) => {
                self.find_summaries(start, result.unwrap_or(&[]), &mut summaries);
            }
            Some(&BlockReadTarget::Block(at)) => {
                let Some(block) = blocks.get(at) else { return };
                let before = blocks.get(compared..at).unwrap_or(&[]);
                let segment = segment_of(&reader, block);
                if before.last().is_some_and(|last| segment_of(&reader, last) != segment) {
                    self.compare_births(before, &std::mem::take(&mut summaries));
                    compared = at;
                }
                self.verify_block(block, result);
            }
        });
        self.compare_births(blocks.get(compared..).unwrap_or(&[]), &summaries);
        blocks.clear();
        self.blocks_waiting = blocks;
    }

    /// Returns the ranges to read: blocks, and the gaps inside segments that may hold summaries.
    fn wanted(&self, blocks: &[UncheckedBlock]) -> (Vec<BlockReadTarget>, Vec<(u64, usize)>) {
        let geometry = &self.reader.geometry;
        let gap_max = u32::try_from(GAP_BYTES_MAX >> geometry.fragment_shift).unwrap_or(0);
        let (mut wanted, mut ranges) = (Vec::new(), Vec::new());
        let mut add = |what, place, fragments: u32| {
            let Some(offset) = geometry.device_offset(place, fragments) else { return };
            wanted.push(what);
            ranges.push((offset, to_usize(u64::from(fragments) << geometry.fragment_shift)));
        };
        for (at, block) in blocks.iter().enumerate() {
            let (place, fragments) = (block.pointer.place, block.pointer.fragments);
            add(BlockReadTarget::Block(at), place, fragments);
            let (group, segment) = segment_of(&self.reader, block);
            let segment_start = geometry.segment_place(group, segment);
            let start = offset_in(segment_start, place).saturating_add(fragments);
            let of_next = blocks
                .get(at + 1)
                .filter(|next| segment_of(&self.reader, next) == (group, segment));
            let (start, end) = match of_next {
                Some(next) => (start, offset_in(segment_start, next.pointer.place)),
                // The summary of the last block ends at the fill mark.
                None => {
                    let filled = self.stated(group, segment).map_or(0, |stated| stated.filled);
                    (start.max(filled.saturating_sub(gap_max)), filled)
                }
            };
            let gap = end.saturating_sub(start);
            if (geometry.page_fragments()..=gap_max).contains(&gap) {
                let place = segment_start.advance(start);
                add(BlockReadTarget::Between(place), place, gap);
            }
        }
        (wanted, ranges)
    }

    fn verify_block(&mut self, block: &UncheckedBlock, read: Result<&[u8], DeviceError>) {
        let &UncheckedBlock { subject, index, pointer } = block;
        self.advance(u64::from(pointer.fragments));
        let place = Some(pointer.place);
        let is_it = |bytes: &[u8]| pointer.verifies(bytes);
        let length = u64::from(pointer.fragments) << self.reader.geometry.fragment_shift;
        let at = (pointer.place, to_usize(length));
        let is_read = match &read {
            Ok(bytes) => is_it(bytes),
            Err(_) => false,
        };
        let has_copy = || {
            let is_asked = read.is_ok() || !planted!(UnreadTakenForLost);
            is_asked && self.reader.other_copy(IoPurpose::CheckData, at, &is_it).is_some()
        };
        if is_read || has_copy() {
            self.report.totals.data_bytes += length;
            return;
        }
        let (code, what) = match read {
            Ok(_) => (DefectCode::MP005, format!("block {index} fails its checksum")),
            Err(error) => (DefectCode::IO001, format!("block {index}: {error}")),
        };
        self.defect(code, subject, place, what);
    }

    fn find_summaries(&self, start: Place, bytes: &[u8], found: &mut Summaries) {
        let geometry = &self.reader.geometry;
        let segment = geometry.segment_place(start.group(), geometry.segment_of(start));
        let step = to_usize(geometry.fragment_bytes());
        let mut place = start;
        for at in (0..bytes.len()).step_by(step) {
            let Some(page) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { return };
            if let Some(summary) = self.summary(page, place) {
                found.insert(offset_in(segment, place), summary);
            }
            place = place.advance(1);
        }
    }

    fn summary(&self, page: &PageBytes, place: Place) -> Option<SegmentSummary> {
        let superblock = &self.superblock.current;
        SegmentSummary::decode(page, superblock.pool_id, &superblock.secret, place)
    }

    fn stated(&self, group: u32, segment: u32) -> Option<&StatedSegment> {
        self.space.groups.get(&group)?.segments.get(index_of(segment))
    }

    /// Compares births with the summaries. After a crash the last summary may be missing.
    fn compare_births(&mut self, blocks: &[UncheckedBlock], summaries: &Summaries) {
        let Some(first) = blocks.first() else { return };
        let (group, segment) = segment_of(&self.reader, first);
        let start = self.reader.geometry.segment_place(group, segment);
        let from = offset_in(start, first.pointer.place);
        let born = self.births_in((group, segment), from, summaries);
        for UncheckedBlock { subject, index, pointer } in blocks {
            let offset = offset_in(start, pointer.place);
            let Some((first, (fragments, birth))) = born.range(..=offset).next_back() else {
                continue;
            };
            if offset - first < *fragments && *birth != pointer.birth {
                let what = format!(
                    "block {index} is of epoch {}, its segment says {}",
                    pointer.birth.0, birth.0
                );
                self.defect(DefectCode::MP008, *subject, Some(pointer.place), what);
            }
        }
    }

    fn read_summary(&self, place: Place) -> Option<SegmentSummary> {
        let offset = self.reader.geometry.device_offset(place, 1)?;
        let bytes = self.reader.read_data(offset, PAGE_BYTES).ok()?;
        self.summary(bytes.first_chunk()?, place)
    }

    /// Returns the blocks from offset `from` on that the segment's summaries list: offset to length
    /// and birth. Follows the summaries backwards from the last one, and reads those not in
    /// `found`.
    fn births_in(
        &self,
        (group, segment): (u32, u32),
        from: u32,
        found: &Summaries,
    ) -> BTreeMap<u32, (u32, Epoch)> {
        let mut born = BTreeMap::new();
        let Some(stated) = self.stated(group, segment) else { return born };
        let start = self.reader.geometry.segment_place(group, segment);
        let mut next = stated.filled.checked_sub(self.reader.geometry.page_fragments());
        // A summary lists the blocks before it.
        while let Some(offset) = next.filter(|offset| *offset > from) {
            let place = start.advance(offset);
            let read = || self.read_summary(place);
            let Some(summary) = found.get(&offset).cloned().or_else(read) else { break };
            if summary.incarnation != stated.incarnation {
                break;
            }
            let blocks = summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block);
            born.extend(blocks.map(|entry| (entry.offset, (entry.fragments, entry.birth))));
            next = summary.previous.checked_sub(1).filter(|before| *before < offset);
        }
        born
    }
}

fn offset_in(segment: Place, place: Place) -> u32 {
    u32::try_from(place.bits().saturating_sub(segment.bits())).unwrap_or(u32::MAX)
}

fn segment_of(reader: &PoolReader, block: &UncheckedBlock) -> (u32, u32) {
    let place = block.pointer.place;
    (place.group(), reader.geometry.segment_of(place))
}
