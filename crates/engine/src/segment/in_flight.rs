//! Data writes in flight, so that reads find their bytes before the device has them.

use std::collections::BTreeMap;

use format::ids::Place;
use storage::device::SharedBytes;

/// Write number of inline log data before its write home.
pub(super) const NOT_SUBMITTED: u64 = 0;

/// Adjacent blocks, in adjacent memory, of one write.
#[derive(Debug)]
struct InFlightRun {
    write: u64,
    fragments: u32,
    data: SharedBytes,
}

#[derive(Debug, Default)]
pub(super) struct WritesInFlight {
    runs: BTreeMap<Place, InFlightRun>,
    by_write: BTreeMap<u64, Vec<Place>>,
}

impl WritesInFlight {
    /// Returns the buffer with the fragments at `place`, and their offset in it, in fragments.
    pub(super) fn get(&self, place: Place, fragments: u32) -> Option<(SharedBytes, u32)> {
        let (run, before) = self.run_at(place)?;
        let has_all = fragments <= run.fragments - before;
        has_all.then(|| (run.data.clone(), before))
    }

    pub(super) fn write_of(&self, place: Place) -> Option<u64> {
        self.run_at(place).map(|(run, _)| run.write)
    }

    /// Returns the run around `place`, and the offset in fragments.
    fn run_at(&self, place: Place) -> Option<(&InFlightRun, u32)> {
        let (start, run) = self.runs.range(..=place).next_back()?;
        let before = u32::try_from(place.bits() - start.bits()).ok()?;
        (before < run.fragments).then_some((run, before))
    }

    pub(super) fn insert(&mut self, place: Place, fragments: u32, number: u64, data: SharedBytes) {
        if self.extend(place, fragments, number, &data) {
            return;
        }
        self.runs.insert(place, InFlightRun { write: number, fragments, data });
        if number != NOT_SUBMITTED {
            self.by_write.entry(number).or_default().push(place);
        }
    }

    /// Joins a block to the run before it. Inline log data stays separate, as its write is known
    /// later.
    fn extend(&mut self, place: Place, fragments: u32, number: u64, data: &SharedBytes) -> bool {
        let Some((start, last)) = self.runs.range_mut(..=place).next_back() else { return false };
        let is_next = start.bits() + u64::from(last.fragments) == place.bits();
        if number == NOT_SUBMITTED || last.write != number || !is_next || !last.data.join(data) {
            return false;
        }
        last.fragments += fragments;
        true
    }

    /// Notes the write that carries inline log data home.
    pub(super) fn submitted(&mut self, place: Place, number: u64) {
        if let Some(known) = self.runs.get_mut(&place) {
            known.write = number;
            self.by_write.entry(number).or_default().push(place);
        }
    }

    /// Drops all writes up to `answered`: the device has their bytes.
    pub(super) fn drop_answered(&mut self, answered: u64) {
        while let Some(entry) = self.by_write.first_entry()
            && *entry.key() <= answered
        {
            let (number, places) = entry.remove_entry();
            for place in places {
                if self.runs.get(&place).is_some_and(|run| run.write == number) {
                    self.runs.remove(&place);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use storage::device::AlignedBuffer;

    use super::*;

    const BLOCK_BYTES: usize = 16 << 10;

    fn at(fragment: u32) -> Place {
        Place::new(0, 1, fragment)
    }

    /// Goal: adjacent blocks of a write form one run, and are found and dropped like single blocks.
    #[test]
    fn blocks_side_by_side_are_one_run_of_each_write() {
        let buffer = SharedBytes::from(AlignedBuffer::zeroed(4 * BLOCK_BYTES));
        let data = |block: usize| buffer.slice(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
        let mut in_flight = WritesInFlight::default();
        in_flight.insert(at(4), 4, NOT_SUBMITTED, data(1));
        assert_eq!(in_flight.write_of(at(4)), Some(NOT_SUBMITTED));
        for (block, write) in [(0, 7), (1, 7), (2, 7), (3, 8)] {
            in_flight.insert(at(4 * block), 4, write, data(usize::try_from(block).expect("few")));
        }
        let writes = [0, 4, 8, 11, 12, 16].map(|fragment| in_flight.write_of(at(fragment)));
        assert_eq!(writes, [Some(7), Some(7), Some(7), Some(7), Some(8), None]);
        let (bytes, before) = in_flight.get(at(9), 3).expect("three fragments are left");
        assert_eq!(
            bytes[crate::convert::index(before) * 4096..].as_ptr(),
            buffer[9 * 4096..].as_ptr()
        );
        assert!(in_flight.get(at(9), 4).is_none(), "the next one goes with another write");
        in_flight.drop_answered(7);
        assert_eq!((in_flight.write_of(at(8)), in_flight.write_of(at(12))), (None, Some(8)));
        assert!(in_flight.runs.len() == 1 && in_flight.by_write.len() == 1, "{in_flight:?}");
    }

    #[test]
    fn blocks_of_other_memory_are_runs_of_their_own() {
        let mut in_flight = WritesInFlight::default();
        for fragment in [0, 4] {
            in_flight.insert(at(fragment), 4, 7, AlignedBuffer::zeroed(BLOCK_BYTES).into());
        }
        assert_eq!(in_flight.runs.len(), 2);
        assert!(in_flight.get(at(0), 8).is_none());
    }
}
