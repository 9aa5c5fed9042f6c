//! Blocks of files: their bytes against the checksums of the pointers to them, and their births
//! against the summaries of their segments.
//!
//! A walk only notes which blocks there are. They are read later, in the order in which they lie on
//! the device, neighbours together, whichever files they are of: the blocks of small files would
//! be a request each, and be waited for one by one.
//!
//! # Memory
//!
//! [`BLOCKS_WAITING_MAX`] blocks are noted, then they are read: 24 MiB, and 16 bytes for each while
//! they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use format::defect::{DefectCode, Subject};
use format::ids::Epoch;
use format::pointer::BlockPointer;
use format::summary::{Summary, SummaryKind};
use storage::device::Purpose;

use crate::convert::{index_of, to_u64, to_usize};
use crate::reader::Reader;
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

impl Check<'_> {
    /// Notes a block that was claimed, for its bytes to be verified.
    pub(crate) fn wait_for_block(&mut self, block: BlockWaiting) {
        self.blocks_waiting.push(block);
        if self.blocks_waiting.len() == BLOCKS_WAITING_MAX {
            self.verify_blocks();
        }
    }

    /// Reads and verifies the blocks that wait, in physical order.
    fn verify_blocks(&mut self) {
        let mut blocks = std::mem::take(&mut self.blocks_waiting);
        blocks.sort_unstable_by_key(|block| block.pointer.place.bits());
        let reader: Arc<Reader> = Arc::clone(&self.reader);
        let ranges: Vec<(u64, usize)> = blocks
            .iter()
            .filter_map(|BlockWaiting { pointer, .. }| {
                let offset = reader.geometry.device_offset(pointer.place, pointer.fragments)?;
                let bytes = u64::from(pointer.fragments) << reader.geometry.fragment_shift;
                Some((offset, to_usize(bytes)))
            })
            .collect();
        let how = (Purpose::CheckData, GAP_BYTES_MAX);
        reader.read_many(how, &ranges, &mut |position, result| {
            let Some(&BlockWaiting { subject, index, pointer }) = blocks.get(position) else {
                return;
            };
            self.advance(u64::from(pointer.fragments));
            let place = Some(pointer.place);
            match result {
                Err(error) => {
                    let what = format!("block {index}: {error}");
                    self.defect(DefectCode::IO001, subject, place, what);
                }
                Ok(bytes) if pointer.verifies(bytes) => {
                    self.report.totals.data_bytes += to_u64(bytes.len());
                }
                Ok(bytes) => {
                    let is_it = |bytes: &[u8]| pointer.verifies(bytes);
                    if reader.other_copy(pointer.place, bytes.len(), &is_it).is_some() {
                        self.report.totals.data_bytes += to_u64(bytes.len());
                        return;
                    }
                    let what = format!("block {index} fails its checksum");
                    self.defect(DefectCode::MP005, subject, place, what);
                }
            }
        });
        for of_one in
            blocks.chunk_by(|one, next| segment_of(&reader, one) == segment_of(&reader, next))
        {
            self.compare_births(of_one);
        }
        // The memory serves the next.
        blocks.clear();
        self.blocks_waiting = blocks;
    }

    /// Holds the births of blocks of one segment against its summaries, as far as these are known:
    /// after a crash the last may be missing.
    fn compare_births(&mut self, blocks: &[BlockWaiting]) {
        let Some(first) = blocks.first() else { return };
        let (group, segment) = segment_of(&self.reader, first);
        let start = self.reader.geometry.segment_place(group, segment);
        let born = self.births_in(group, segment);
        for BlockWaiting { subject, index, pointer } in blocks {
            let ahead = pointer.place.bits().saturating_sub(start.bits());
            let Ok(offset) = u32::try_from(ahead) else { continue };
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

    /// Returns the blocks that the summaries of a segment list, by where each begins: how long it
    /// is, and its birth. The summaries are followed from the last one to the first.
    fn births_in(&self, group: u32, segment: u32) -> BTreeMap<u32, (u32, Epoch)> {
        let mut born = BTreeMap::new();
        let space = self.space.groups.get(&group);
        let stated = space.and_then(|space| space.segments.get(index_of(segment)));
        let Some(stated) = stated else { return born };
        let (geometry, superblock) = (&self.reader.geometry, &self.superblock.current);
        let start = geometry.segment_place(group, segment);
        let mut next = stated.filled.checked_sub(geometry.page_fragments());
        while let Some(offset) = next {
            let place = start.advance(offset);
            let Ok(page) = self.reader.read_raw_page(place) else { break };
            let summary = Summary::decode(&page, superblock.pool_id, &superblock.secret, place);
            let Some(summary) = summary.filter(|it| it.incarnation == stated.incarnation) else {
                break;
            };
            let blocks = summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block);
            born.extend(blocks.map(|entry| (entry.offset, (entry.fragments, entry.birth))));
            next = summary.previous.checked_sub(1).filter(|before| *before < offset);
        }
        born
    }
}

/// Returns the group and the number of the segment that a block lies in.
fn segment_of(reader: &Reader, block: &BlockWaiting) -> (u32, u32) {
    let place = block.pointer.place;
    (place.group(), reader.geometry.segment_of(place))
}
