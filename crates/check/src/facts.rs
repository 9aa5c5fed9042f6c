//! Facts about each anode of a fileset, by anode number.
//!
//! Numbers in use are dense, and a walk visits them nearly in order. So facts are kept in chunks of
//! [`CHUNK_ANODES`] neighbours: a tree of single anodes took a fifth of all processor time in a
//! check of 250,000 files.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use format::anode::AnodeKind;

use crate::convert::{to_u64, to_usize};

/// Small, since a stray number in a damaged name costs a whole chunk.
const CHUNK_ANODES: usize = 16;
const BRANCH_BYTES: usize = 48;

#[derive(Clone, Debug, Default)]
pub(crate) struct AnodeFacts {
    /// `None` if the slot is free.
    pub(crate) kind: Option<AnodeKind>,
    pub(crate) generation: u64,
    pub(crate) nlink: u32,
    pub(crate) parent: u64,
    pub(crate) orphan_slot: Option<u32>,
    pub(crate) names: u32,
    /// The kind that the first name found states.
    pub(crate) named_kind: Option<AnodeKind>,
    pub(crate) named_generation: u64,
    pub(crate) named_in: u64,
    pub(crate) names_differ: bool,
    pub(crate) subdirectories: u32,
    pub(crate) is_listed: bool,
    /// The path is known to end at the root or at a reported defect.
    pub(crate) is_rooted: bool,
    pub(crate) containers: [u64; 2],
    /// A container of attributes with inconsistent pages.
    pub(crate) is_scrambled: bool,
}

type AnodeFactsChunk = [Option<AnodeFacts>; CHUNK_ANODES];

#[derive(Debug, Default)]
pub(crate) struct AnodeFactsTable {
    chunks: BTreeMap<u64, Box<AnodeFactsChunk>>,
}

impl AnodeFactsTable {
    pub(crate) fn get(&self, number: u64) -> Option<&AnodeFacts> {
        let (chunk, slot) = position(number);
        self.chunks.get(&chunk)?.get(slot)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut AnodeFacts> {
        let (chunk, slot) = position(number);
        self.chunks.get_mut(&chunk)?.get_mut(slot)?.as_mut()
    }

    /// Returns the facts, created if absent, and the bytes of memory added.
    pub(crate) fn entry(&mut self, number: u64) -> (&mut AnodeFacts, u64) {
        let (chunk, slot) = position(number);
        let (chunk, added) = match self.chunks.entry(chunk) {
            Entry::Occupied(chunk) => (chunk.into_mut(), 0),
            Entry::Vacant(room) => (room.insert(Box::default()), chunk_bytes()),
        };
        (chunk[slot].get_or_insert_default(), added)
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        chunk_bytes().saturating_mul(to_u64(self.chunks.len()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &AnodeFacts)> {
        self.iter_from(0)
    }

    pub(crate) fn iter_from(&self, start: u64) -> impl Iterator<Item = (u64, &AnodeFacts)> {
        let known = self.chunks.range(position(start).0..).flat_map(|(&chunk, facts)| {
            let first = chunk * to_u64(CHUNK_ANODES);
            let numbers = (0..CHUNK_ANODES).map(move |slot| first + to_u64(slot));
            numbers.zip(facts.iter()).filter_map(|(number, facts)| Some((number, facts.as_ref()?)))
        });
        known.skip_while(move |&(number, _)| number < start)
    }
}

fn position(number: u64) -> (u64, usize) {
    let anodes = to_u64(CHUNK_ANODES);
    (number / anodes, to_usize(number % anodes))
}

fn chunk_bytes() -> u64 {
    to_u64(size_of::<AnodeFactsChunk>() + BRANCH_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_order_and_only_those_that_are_known() {
        let mut facts = AnodeFactsTable::default();
        let numbers = [0, 15, 16, 40, u64::MAX];
        for number in numbers.into_iter().rev() {
            facts.entry(number).0.nlink = 7;
        }
        assert_eq!(facts.iter().map(|(number, _)| number).collect::<Vec<_>>(), numbers);
        assert_eq!(facts.iter_from(15).map(|(number, _)| number).collect::<Vec<_>>(), numbers[1..]);
        assert_eq!(facts.iter_from(41).map(|(number, _)| number).collect::<Vec<_>>(), [u64::MAX]);
        assert_eq!(facts.get(40).map(|facts| facts.nlink), Some(7));
        assert!(facts.get(41).is_none() && facts.get_mut(u64::MAX - 1).is_none());
        assert_eq!(facts.memory_bytes(), 4 * chunk_bytes());
        assert_eq!((facts.entry(47).1, facts.entry(48).1), (0, chunk_bytes()));
    }
}
