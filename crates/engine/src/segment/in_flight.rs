//! Bytes on their way to the disk: a read must see them before the device does.

use std::collections::BTreeMap;

use format::ids::Place;
use storage::device::SharedBytes;

/// Number of a write that has not been submitted: the bytes ride in the log so far.
pub(super) const NOT_SUBMITTED: u64 = 0;

#[derive(Debug)]
struct InFlightBlock {
    write: u64,
    fragments: u32,
    data: SharedBytes,
}

/// Blocks whose write is not answered yet, by place and by the number of the write.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    blocks: BTreeMap<Place, InFlightBlock>,
    by_write: BTreeMap<u64, Vec<Place>>,
}

impl InFlight {
    /// Returns the block that has the fragment at `place`, and how many fragments lie before it.
    pub(super) fn get(&self, place: Place) -> Option<(SharedBytes, u32)> {
        let (start, block) = self.blocks.range(..=place).next_back()?;
        let before = place.bits() - start.bits();
        let before = u32::try_from(before).ok().filter(|before| *before < block.fragments)?;
        Some((block.data.clone(), before))
    }

    /// Returns the number of the write that carries the block at `place`.
    pub(super) fn write_of(&self, place: Place) -> Option<u64> {
        self.blocks.get(&place).map(|block| block.write)
    }

    /// The bytes of `place` are on their way with write `number`.
    pub(super) fn insert(&mut self, place: Place, fragments: u32, number: u64, data: SharedBytes) {
        self.blocks.insert(place, InFlightBlock { write: number, fragments, data });
        if number != NOT_SUBMITTED {
            self.by_write.entry(number).or_default().push(place);
        }
    }

    /// What rode in the log so far goes with write `number`.
    pub(super) fn submitted(&mut self, place: Place, number: u64) {
        if let Some(known) = self.blocks.get_mut(&place) {
            known.write = number;
            self.by_write.entry(number).or_default().push(place);
        }
    }

    /// Every write up to `answered` is answered: the device has their bytes.
    pub(super) fn drop_answered(&mut self, answered: u64) {
        while let Some(entry) = self.by_write.first_entry()
            && *entry.key() <= answered
        {
            let (number, places) = entry.remove_entry();
            for place in places {
                if self.write_of(place) == Some(number) {
                    self.blocks.remove(&place);
                }
            }
        }
    }
}
