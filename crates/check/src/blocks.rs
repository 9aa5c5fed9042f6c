//! Blocks of files: their bytes against the checksums of the pointers to them, and their births
//! against the summaries of their segments.
//!
//! A walk only notes which blocks there are. They are read later, in the order in which they lie on
//! the device, neighbours together, whichever files they are of: the blocks of small files would
//! be a request each, and be waited for one by one.
//!
//! # Memory
//!
//! [`BLOCKS_WAITING_MAX`] blocks are noted, then they are read: 24 MiB, and 64 bytes for each while
//! they are; summaries are kept of one segment at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::defect::{DefectCode, Subject};
use format::ids::{Epoch, Place};
use format::page::{PAGE_BYTES, PageBytes};
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryKind};
use runtime::planted::{self, Planted};
use storage::device::{DeviceError, Purpose};

use crate::convert::{index_of, to_usize};
use crate::reader::Reader;
use crate::space::StatedSegment;
use crate::tree::Tree;
use crate::{Check, Stop};

/// Blocks that wait to be read: so many of 4 KiB are 1 GiB, in which neighbours are found.
const BLOCKS_WAITING_MAX: usize = 1 << 18;
/// Gap between blocks over which a read goes on: what is read in the time that a request of its own
/// takes.
const GAP_BYTES_MAX: u64 = 64 << 10;

/// A block that waits to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockWaiting {
    pub(crate) subject: Subject,
    pub(crate) index: u64,
    pub(crate) pointer: BlockPointer,
}

const _: () = assert!(size_of::<BlockWaiting>() <= 96);

/// Reads the blocks that still wait.
pub(crate) fn run(check: &mut Check<'_>, _: &mut Tree) -> Result<(), Stop> {
    check.verify_blocks();
    Ok(())
}

/// What one of the ranges that are read is for.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    /// The block of this number.
    Block(usize),
    /// What lies between blocks of a segment, from this place on: there may be summaries.
    Between(Place),
}

/// Summaries that were read of a segment, by where in it they lie.
type Summaries = BTreeMap<u32, Summary>;

impl Check<'_> {
    /// Notes a block that was claimed, for its bytes to be verified.
    pub(crate) fn wait_for_block(&mut self, block: BlockWaiting) {
        self.blocks_waiting.push(block);
        if self.blocks_waiting.len() == BLOCKS_WAITING_MAX {
            self.verify_blocks();
        }
    }

    /// Reads and verifies the blocks that wait, in physical order, and the summaries among them.
    pub(crate) fn verify_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.blocks_waiting);
        blocks.sort_unstable_by_key(|block| block.pointer.place.bits());
        let reader: Arc<Reader> = Arc::clone(&self.reader);
        let (wanted, ranges) = self.wanted(&blocks);
        // Blocks from `compared` on are not held against their summaries yet.
        let (mut compared, mut summaries) = (0, Summaries::new());
        let how = (Purpose::CheckData, GAP_BYTES_MAX);
        reader.read_many(how, &ranges, &mut |position, result| match wanted.get(position) {
            None => (),
            Some(&Wanted::Between(start)) => {
                self.find_summaries(start, result.unwrap_or(&[]), &mut summaries);
            }
            Some(&Wanted::Block(at)) => {
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
        // The memory serves the next.
        blocks.clear();
        self.blocks_waiting = blocks;
    }

    /// Returns what is read for `blocks`, and from where: the blocks, and what lies between those
    /// of a segment, where its summaries are.
    fn wanted(&self, blocks: &[BlockWaiting]) -> (Vec<Wanted>, Vec<(u64, usize)>) {
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
            add(Wanted::Block(at), place, fragments);
            let (group, segment) = segment_of(&self.reader, block);
            let segment_start = geometry.segment_place(group, segment);
            let start = offset_in(segment_start, place).saturating_add(fragments);
            let of_next = blocks
                .get(at + 1)
                .filter(|next| segment_of(&self.reader, next) == (group, segment));
            let (start, end) = match of_next {
                Some(next) => (start, offset_in(segment_start, next.pointer.place)),
                // The last summary ends where the segment is filled.
                None => {
                    let filled = self.stated(group, segment).map_or(0, |stated| stated.filled);
                    (start.max(filled.saturating_sub(gap_max)), filled)
                }
            };
            let gap = end.saturating_sub(start);
            if (geometry.page_fragments()..=gap_max).contains(&gap) {
                let place = segment_start.advance(start);
                add(Wanted::Between(place), place, gap);
            }
        }
        (wanted, ranges)
    }

    /// Holds what was read of a block against the checksum of its pointer.
    fn verify_block(&mut self, block: &BlockWaiting, read: Result<&[u8], DeviceError>) {
        let &BlockWaiting { subject, index, pointer } = block;
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
            let is_asked = read.is_ok() || !planted::is(Planted::UnreadTakenForLost);
            is_asked && self.reader.other_copy(Purpose::CheckData, at, &is_it).is_some()
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

    /// Adds the summaries that lie in `bytes`, which were read from `start`, to those that were
    /// found of this segment.
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

    fn summary(&self, page: &PageBytes, place: Place) -> Option<Summary> {
        let superblock = &self.superblock.current;
        Summary::decode(page, superblock.pool_id, &superblock.secret, place)
    }

    /// Returns what the usage page of a group says of a segment.
    fn stated(&self, group: u32, segment: u32) -> Option<&StatedSegment> {
        self.space.groups.get(&group)?.segments.get(index_of(segment))
    }

    /// Holds the births of blocks of one segment against its summaries, as far as these are known:
    /// after a crash the last may be missing.
    fn compare_births(&mut self, blocks: &[BlockWaiting], summaries: &Summaries) {
        let Some(first) = blocks.first() else { return };
        let (group, segment) = segment_of(&self.reader, first);
        let start = self.reader.geometry.segment_place(group, segment);
        let from = offset_in(start, first.pointer.place);
        let born = self.births_in((group, segment), from, summaries);
        for BlockWaiting { subject, index, pointer } in blocks {
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

    /// Returns the summary at `place`, which lies among data.
    fn read_summary(&self, place: Place) -> Option<Summary> {
        let offset = self.reader.geometry.device_offset(place, 1)?;
        let bytes = self.reader.read_data(offset, PAGE_BYTES).ok()?;
        self.summary(bytes.first_chunk()?, place)
    }

    /// Returns the blocks from `from` on that the summaries of a segment list, by where each
    /// begins: how long it is, and its birth. The summaries are followed from the last one to the
    /// first; those that `found` has not are read.
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
        // A summary lists what lies before it.
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

/// Returns how many fragments behind `segment` a place of it lies.
fn offset_in(segment: Place, place: Place) -> u32 {
    u32::try_from(place.bits().saturating_sub(segment.bits())).unwrap_or(u32::MAX)
}

/// Returns the group and the number of the segment that a block lies in.
fn segment_of(reader: &Reader, block: &BlockWaiting) -> (u32, u32) {
    let place = block.pointer.place;
    (place.group(), reader.geometry.segment_of(place))
}
