//! Blocks of files: their bytes against the checksums of the pointers to them.
//!
//! A walk only notes which blocks there are. They are read later, in the order in which they lie on
//! the device, neighbours together, whichever files they are of: the blocks of small files would
//! be a request each, and be waited for one by one.
//!
//! # Memory
//!
//! [`BLOCKS_WAITING_MAX`] blocks are noted, then they are read: 24 MiB, and 16 bytes for each while
//! they are.

use std::sync::Arc;

use format::defect::{DefectCode, Subject};
use format::pointer::BlockPointer;
use storage::device::Purpose;

use crate::convert::{to_u64, to_usize};
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
                Ok(_) => {
                    let what = format!("block {index} fails its checksum");
                    self.defect(DefectCode::MP005, subject, place, what);
                }
            }
        });
        // The memory serves the next.
        blocks.clear();
        self.blocks_waiting = blocks;
    }
}
