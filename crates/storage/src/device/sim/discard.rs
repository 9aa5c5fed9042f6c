//! Discards of a simulated device: the time and the contents (D6).
//!
//! A discard takes effect at a random request up to its completion, or at any later one if
//! abandoned. Depending on the seed, the range stays unchanged, becomes uniform, or becomes a mix
//! of old pages, zeros, junk, and copies of the preceding page.

use std::sync::Arc;

use super::SimDeviceState;
use crate::convert::{to_u64, to_usize};
use crate::device::{AlignedBuffer, IO_ALIGN_BYTES, SharedBytes};

/// Byte value of a range discarded uniformly.
pub(super) const DISCARDED_BYTE: u8 = 0xdc;

/// A longer discard changes nothing, to save memory.
pub(super) const DISCARD_BYTES_MAX: u64 = 16 << 20;

/// Odds, per request, that a discard in flight takes effect.
const LANDS_ONE_IN: u64 = 32;

#[derive(Clone, Debug)]
struct SimDiscard {
    id: u64,
    offset: u64,
    length_bytes: u64,
    /// Ids of the resulting writes, or `None` before it takes effect.
    landed: Option<Vec<u64>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimDiscards {
    begun: u64,
    in_flight: Vec<SimDiscard>,
}

impl SimDeviceState {
    pub(super) fn begin_discard(&mut self, offset: u64, length_bytes: u64) -> u64 {
        let discards = &mut self.discards;
        discards.begun += 1;
        let id = discards.begun;
        discards.in_flight.push(SimDiscard { id, offset, length_bytes, landed: None });
        id
    }

    /// Applies discards in flight at random.
    pub(super) fn land_discards(&mut self) {
        for index in 0..self.discards.in_flight.len() {
            if self.discards.in_flight[index].landed.is_none() && self.prng.one_in(LANDS_ONE_IN) {
                self.land_discard(index);
            }
        }
    }

    /// Completes a discard, which must have taken effect by then.
    pub(super) fn answer_discard(&mut self, id: u64) {
        let is_it = |discard: &SimDiscard| discard.id == id;
        let Some(index) = self.discards.in_flight.iter().position(is_it) else { return };
        if self.discards.in_flight[index].landed.is_none() {
            self.land_discard(index);
        }
        let discard = self.discards.in_flight.swap_remove(index);
        discard.landed.into_iter().flatten().for_each(|id| self.answer_write(id));
    }

    fn land_discard(&mut self, index: usize) {
        let SimDiscard { offset, length_bytes, .. } = self.discards.in_flight[index];
        let mut writes = Vec::new();
        if length_bytes <= DISCARD_BYTES_MAX {
            for (offset, pieces) in self.discarded(offset, length_bytes) {
                writes.push(self.take_write(offset, &pieces));
            }
        }
        self.discards.in_flight[index].landed = Some(writes);
    }

    /// Returns the contents of a discarded range, as runs of changed pages.
    fn discarded(&mut self, offset: u64, length_bytes: u64) -> Vec<(u64, Vec<SharedBytes>)> {
        let page = |byte: u8| {
            let mut page = AlignedBuffer::zeroed(IO_ALIGN_BYTES);
            page.fill(byte);
            Arc::new(page)
        };
        let count = length_bytes / to_u64(IO_ALIGN_BYTES);
        let whole =
            |page: &Arc<AlignedBuffer>| SharedBytes::new(Arc::clone(page), 0..IO_ALIGN_BYTES);
        if self.prng.one_in(2) {
            return Vec::new();
        }
        let known = page(DISCARDED_BYTE);
        if self.prng.one_in(2) {
            return vec![(offset, (0..count).map(|_| whole(&known)).collect())];
        }
        let (zeros, mut junk) = (page(0), AlignedBuffer::zeroed(IO_ALIGN_BYTES));
        for word in junk.chunks_exact_mut(size_of::<u64>()) {
            word.copy_from_slice(&self.prng.next_u64().to_le_bytes());
        }
        let junk = Arc::new(junk);
        let (mut runs, mut run): (Vec<_>, Vec<SharedBytes>) = (Vec::new(), Vec::new());
        for nth in 0..count {
            let at = offset + nth * to_u64(IO_ALIGN_BYTES);
            let piece = match self.prng.below(5) {
                0 => None,
                1 => Some(whole(&zeros)),
                2 => Some(whole(&junk)),
                3 => Some(whole(&known)),
                _ if nth == 0 => None,
                _ => {
                    let mut copy = AlignedBuffer::zeroed(IO_ALIGN_BYTES);
                    self.cache.seen().read(at - to_u64(IO_ALIGN_BYTES), &mut copy);
                    Some(SharedBytes::from(copy))
                }
            };
            match piece {
                Some(piece) => run.push(piece),
                None if !run.is_empty() => {
                    let start = at - to_u64(run.len() * IO_ALIGN_BYTES);
                    runs.push((start, std::mem::take(&mut run)));
                }
                None => {}
            }
        }
        if !run.is_empty() {
            let start = offset + to_u64((to_usize(count) - run.len()) * IO_ALIGN_BYTES);
            runs.push((start, run));
        }
        runs
    }
}
