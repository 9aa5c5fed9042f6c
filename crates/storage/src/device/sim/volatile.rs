//! The volatile write cache of a simulated device: what is durable, what is seen, what may be lost.
//!
//! # Invariants
//!
//! - VC1: A write leaves the cache for `durable` only by a flush that was submitted after the write
//!   was answered, and only when that flush is answered; or when it is answered that was to be
//!   written through.
//! - VC2: `seen` is `durable` with every cached write on top, in the order of submission, so a read
//!   returns what the last write put there, stored or not.
//! - VC3: A write that is not stored is in `seen` alone, until the device is opened again.
//!
//! # Crashes
//!
//! Each sector that a cached write covers independently holds, after a power cut, what is durable
//! or what any of the cached writes put there. No order among cached writes is kept.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::image::{Image, SharedPage, pages_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{IO_ALIGN_BYTES, SharedBytes};
use runtime::prng::Prng;

/// A write as it landed.
#[derive(Clone, Debug)]
pub struct RecordedWrite {
    /// First byte on the device.
    pub offset: u64,
    length_bytes: u64,
    /// In order; without a gap, but for what is not stored.
    parts: Vec<Part>,
}

/// What a write puts into one page of the device.
#[derive(Clone, Debug)]
enum Part {
    /// All of it, copied and hashed once for all images that it goes into.
    Page(SharedPage),
    /// Some sectors, and where they begin.
    Sectors(u64, Box<[u8]>),
}

impl Part {
    fn bytes(&self) -> &[u8] {
        match self {
            Part::Page(page) => page.bytes(),
            Part::Sectors(_, bytes) => bytes,
        }
    }

    /// First byte on the device.
    fn offset(&self) -> u64 {
        match self {
            Part::Page(page) => page.offset(),
            Part::Sectors(offset, _) => *offset,
        }
    }

    fn put_into(&self, image: &mut Image) {
        match self {
            Part::Page(page) => image.put(page),
            Part::Sectors(offset, bytes) => image.write(*offset, bytes),
        }
    }
}

/// What of an unflushed write survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Nothing.
    Nothing,
    /// Everything.
    All,
    /// So many sectors from the start.
    First(u64),
    /// So many sectors up to the end.
    Last(u64),
    /// Each sector or not, as the seed says.
    Scattered(u64),
}

impl Keep {
    /// Returns a way to tear a write of `sector_count` sectors, of which there must be two.
    pub(super) fn torn(prng: &mut Prng, sector_count: u64) -> Keep {
        let some = 1 + prng.below(sector_count - 1);
        match prng.below(3) {
            0 => Keep::First(some),
            1 => Keep::Last(some),
            _ => Keep::Scattered(prng.next_u64()),
        }
    }

    /// Returns whether each of `sector_count` sectors survives.
    fn survivors(self, sector_count: u64) -> Vec<bool> {
        let mut prng = match self {
            Keep::Scattered(seed) => Prng::from_seed(seed),
            Keep::Nothing | Keep::All | Keep::First(_) | Keep::Last(_) => Prng::from_seed(0),
        };
        let mut survives = |sector: u64| match self {
            Keep::Nothing => false,
            Keep::All => true,
            Keep::First(count) => sector < count,
            Keep::Last(count) => sector_count - sector <= count,
            Keep::Scattered(_) => prng.one_in(2),
        };
        (0..sector_count).map(&mut survives).collect()
    }
}

impl RecordedWrite {
    pub(super) fn new(offset: u64, data: &[SharedBytes]) -> RecordedWrite {
        let (mut parts, mut end) = (Vec::new(), offset);
        for piece in data {
            for (page, in_page, in_piece) in pages_of(end, piece.len()) {
                let start = page * to_u64(IO_ALIGN_BYTES) + to_u64(in_page);
                let bytes = &piece[in_piece];
                let whole = SharedPage::new(page, bytes).map(Part::Page);
                parts.push(whole.unwrap_or_else(|| Part::Sectors(start, bytes.into())));
            }
            end += to_u64(piece.len());
        }
        RecordedWrite { offset, length_bytes: end - offset, parts }
    }

    /// Takes out and returns what lies in `range`, in whole pages of the device.
    pub(super) fn take_out(&mut self, range: &Range<u64>) -> RecordedWrite {
        let parts = self.parts.extract_if(.., |part| range.contains(&part.offset())).collect();
        RecordedWrite { offset: self.offset, length_bytes: self.length_bytes, parts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns how many bytes were written.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn meets(&self, other: &RecordedWrite) -> bool {
        self.offset < other.offset + other.length_bytes
            && other.offset < self.offset + self.length_bytes
    }

    /// Walks what was written, piece after piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(Part::bytes)
    }

    /// Puts onto `image` what `keep` says of this write.
    pub(super) fn apply(&self, image: &mut Image, keep: Keep, sector_bytes: u64) {
        match keep {
            Keep::Nothing => {}
            Keep::All => self.parts.iter().for_each(|part| part.put_into(image)),
            Keep::First(_) | Keep::Last(_) | Keep::Scattered(_) => {
                let survivors = keep.survivors(self.length_bytes / sector_bytes);
                self.apply_torn(image, &survivors, to_usize(sector_bytes));
            }
        }
    }

    fn apply_torn(&self, image: &mut Image, survivors: &[bool], sector_bytes: usize) {
        for part in &self.parts {
            let start = to_usize(part.offset() - self.offset) / sector_bytes;
            let here = &survivors[start..start + part.bytes().len() / sector_bytes];
            if here.iter().all(|&survives| survives) {
                part.put_into(image);
            } else if here.contains(&true) {
                image.write_sectors(part.offset(), part.bytes(), here);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct CachedWrite {
    write: Arc<RecordedWrite>,
    is_answered: bool,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct WriteCache {
    durable: Image,
    seen: Image,
    cached: BTreeMap<u64, CachedWrite>,
    next_id: u64,
    sector_bytes: u64,
    /// Whether `seen` has writes that are not stored.
    shows_unstored: bool,
}

impl WriteCache {
    pub(super) fn new(image: Image, sector_bytes: u64) -> WriteCache {
        let (cached, next_id) = (BTreeMap::new(), 0);
        let (durable, shows_unstored) = (image.clone(), false);
        WriteCache { durable, seen: image, cached, next_id, sector_bytes, shows_unstored }
    }

    /// Shows a write that is not stored.
    pub(super) fn show(&mut self, write: &RecordedWrite) {
        write.apply(&mut self.seen, Keep::All, self.sector_bytes);
        self.shows_unstored |= !write.is_empty();
    }

    /// Returns what is seen of what is stored.
    pub(super) fn stored(&self) -> Image {
        if !self.shows_unstored {
            return self.seen.clone();
        }
        let mut image = self.durable.clone();
        for cached in self.cached.values() {
            cached.write.apply(&mut image, Keep::All, self.sector_bytes);
        }
        image
    }

    pub(super) fn seen(&self) -> &Image {
        &self.seen
    }

    pub(super) fn durable(&self) -> &Image {
        &self.durable
    }

    /// Takes a write in; returns its number, which counts from 0.
    pub(super) fn write(&mut self, write: &Arc<RecordedWrite>) -> u64 {
        write.apply(&mut self.seen, Keep::All, self.sector_bytes);
        let id = self.next_id;
        self.next_id += 1;
        self.cached.insert(id, CachedWrite { write: Arc::clone(write), is_answered: false });
        id
    }

    pub(super) fn answer_write(&mut self, id: u64) {
        if let Some(cached) = self.cached.get_mut(&id) {
            cached.is_answered = true;
        }
    }

    /// Returns the writes that a flush submitted now makes durable.
    pub(super) fn begin_flush(&self) -> Vec<u64> {
        let answered = self.cached.iter().filter(|(_, cached)| cached.is_answered);
        answered.map(|(&id, _)| id).collect()
    }

    /// Returns what is durable with the write of number `id`: itself, and what was there before it,
    /// which must not come back over it.
    pub(super) fn begin_write_through(&self, id: u64) -> Vec<u64> {
        let Some(through) = self.cached.get(&id) else { return Vec::new() };
        let older = self.cached.range(..=id);
        let covered = older.filter(|(_, cached)| cached.write.meets(&through.write));
        covered.map(|(&id, _)| id).collect()
    }

    pub(super) fn answer_flush(&mut self, covered: &[u64]) {
        for id in covered {
            // Another flush in flight at the same time may have been answered first.
            if let Some(cached) = self.cached.remove(id) {
                cached.write.apply(&mut self.durable, Keep::All, self.sector_bytes);
            }
        }
        if self.cached.is_empty() && !self.shows_unstored {
            // Equal now, and sharing their pages again. (Not equal if writes to one place were in
            // flight together, or bits turned over below a cached write: then what lasts is seen.)
            self.seen = self.durable.clone();
        }
    }

    /// Turns bits over, in the cache and on the medium.
    pub(super) fn rot(&mut self, offset: u64, mask: u8) {
        self.durable.flip(offset, mask);
        self.seen.flip(offset, mask);
    }

    /// Returns what one power cut leaves.
    ///
    /// The seed first picks a manner, because independent coins alone almost never give the images
    /// that find most: nothing lost but the last, or nothing kept but the last.
    pub(super) fn crash(&self, prng: &mut Prng) -> Image {
        let mut image = self.durable.clone();
        let manner = prng.below(7);
        let count = to_u64(self.cached.len());
        let chosen = prng.below(count + 1);
        for (nth, cached) in (0..).zip(self.cached.values()) {
            let sector_count = cached.write.length_bytes() / self.sector_bytes;
            let keep = match manner {
                0 => Keep::Nothing,
                1 => Keep::All,
                2 if nth < chosen => Keep::All,
                2 if nth > chosen => Keep::Nothing,
                3 if nth != chosen => Keep::All,
                4 if nth == chosen => Keep::All,
                4 => Keep::Nothing,
                5 if prng.one_in(2) => Keep::All,
                5 if prng.one_in(2) => Keep::Nothing,
                _ if sector_count < 2 => *one_of(prng, &[Keep::All, Keep::Nothing]),
                _ => Keep::torn(prng, sector_count),
            };
            cached.write.apply(&mut image, keep, self.sector_bytes);
        }
        image
    }
}

fn one_of<'a, T>(prng: &mut Prng, choices: &'a [T]) -> &'a T {
    &choices[to_usize(prng.below(to_u64(choices.len())))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivors(keep: Keep) -> Vec<bool> {
        keep.survivors(4)
    }

    #[test]
    fn first_and_last_keep_the_ends_they_name() {
        assert_eq!(survivors(Keep::First(1)), [true, false, false, false]);
        assert_eq!(survivors(Keep::Last(1)), [false, false, false, true]);
        assert_eq!(survivors(Keep::Last(3)), [false, true, true, true]);
        assert_eq!(survivors(Keep::Nothing), [false; 4]);
        assert_eq!(survivors(Keep::All), [true; 4]);
        assert_eq!(survivors(Keep::Scattered(5)), survivors(Keep::Scattered(5)));
    }
}
