//! The volatile write cache of a simulated device.
//!
//! # Invariants
//!
//! - VC1: A cached write becomes durable only when a flush submitted after its completion
//!   completes, or at its own completion if written through.
//! - VC2: `seen` is `durable` with all cached writes in order of submission, so a read returns the
//!   last write, stored or not.
//! - VC3: A write that is not stored is in `seen` alone, until the device is reopened.
//!
//! # Crashes
//!
//! After a power cut each sector independently holds its durable contents, or those of any cached
//! write. Cached writes are unordered.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::image::{Image, SharedPage, pages_of};
use crate::convert::{to_u64, to_usize};
use crate::device::{IO_ALIGN_BYTES, SharedBytes};
use runtime::prng::Prng;

/// A write as it reached the device.
#[derive(Clone, Debug)]
pub struct RecordedWrite {
    /// Offset in bytes.
    pub offset: u64,
    length_bytes: u64,
    /// In order, with gaps only for parts not stored.
    parts: Vec<WritePart>,
}

/// The part of a write in one page.
#[derive(Clone, Debug)]
enum WritePart {
    /// A whole page, copied and hashed once for all images.
    Page(SharedPage),
    /// Offset, and some sectors.
    Sectors(u64, Box<[u8]>),
}

impl WritePart {
    fn bytes(&self) -> &[u8] {
        match self {
            WritePart::Page(page) => page.bytes(),
            WritePart::Sectors(_, bytes) => bytes,
        }
    }

    fn offset(&self) -> u64 {
        match self {
            WritePart::Page(page) => page.offset(),
            WritePart::Sectors(offset, _) => *offset,
        }
    }

    fn put_into(&self, image: &mut Image) {
        match self {
            WritePart::Page(page) => image.put(page),
            WritePart::Sectors(offset, bytes) => image.write(*offset, bytes),
        }
    }
}

/// The part of an unflushed write that survives a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteSurvival {
    /// No sector.
    Nothing,
    /// All sectors.
    All,
    /// A number of sectors at the start.
    First(u64),
    /// A number of sectors at the end.
    Last(u64),
    /// Random sectors, by this seed.
    Scattered(u64),
}

impl WriteSurvival {
    /// Returns a way to tear a write of at least two sectors.
    pub(super) fn torn(prng: &mut Prng, sector_count: u64) -> WriteSurvival {
        let some = 1 + prng.below(sector_count - 1);
        match prng.below(3) {
            0 => WriteSurvival::First(some),
            1 => WriteSurvival::Last(some),
            _ => WriteSurvival::Scattered(prng.next_u64()),
        }
    }

    fn survivors(self, sector_count: u64) -> Vec<bool> {
        let mut prng = match self {
            WriteSurvival::Scattered(seed) => Prng::from_seed(seed),
            WriteSurvival::Nothing
            | WriteSurvival::All
            | WriteSurvival::First(_)
            | WriteSurvival::Last(_) => Prng::from_seed(0),
        };
        let mut survives = |sector: u64| match self {
            WriteSurvival::Nothing => false,
            WriteSurvival::All => true,
            WriteSurvival::First(count) => sector < count,
            WriteSurvival::Last(count) => sector_count - sector <= count,
            WriteSurvival::Scattered(_) => prng.one_in(2),
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
                let whole = SharedPage::new(page, bytes).map(WritePart::Page);
                parts.push(whole.unwrap_or_else(|| WritePart::Sectors(start, bytes.into())));
            }
            end += to_u64(piece.len());
        }
        RecordedWrite { offset, length_bytes: end - offset, parts }
    }

    /// Removes and returns the parts in `range`, in whole pages.
    pub(super) fn take_out(&mut self, range: &Range<u64>) -> RecordedWrite {
        let parts = self.parts.extract_if(.., |part| range.contains(&part.offset())).collect();
        RecordedWrite { offset: self.offset, length_bytes: self.length_bytes, parts }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the length.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn meets(&self, other: &RecordedWrite) -> bool {
        self.offset < other.offset + other.length_bytes
            && other.offset < self.offset + self.length_bytes
    }

    /// Returns the contents part by part.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(WritePart::bytes)
    }

    /// Applies the surviving part of this write to `image`.
    pub(super) fn apply(&self, image: &mut Image, keep: WriteSurvival, sector_bytes: u64) {
        match keep {
            WriteSurvival::Nothing => {}
            WriteSurvival::All => self.parts.iter().for_each(|part| part.put_into(image)),
            WriteSurvival::First(_) | WriteSurvival::Last(_) | WriteSurvival::Scattered(_) => {
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

#[derive(Debug)]
pub(super) struct WriteCache {
    durable: Image,
    seen: Image,
    cached: BTreeMap<u64, CachedWrite>,
    next_id: u64,
    sector_bytes: u64,
    /// Whether `seen` includes unstored writes.
    shows_unstored: bool,
}

impl WriteCache {
    pub(super) fn new(image: Image, sector_bytes: u64) -> WriteCache {
        let (cached, next_id) = (BTreeMap::new(), 0);
        let (durable, shows_unstored) = (image.clone(), false);
        WriteCache { durable, seen: image, cached, next_id, sector_bytes, shows_unstored }
    }

    /// Applies an unstored write to `seen` only.
    pub(super) fn show(&mut self, write: &RecordedWrite) {
        write.apply(&mut self.seen, WriteSurvival::All, self.sector_bytes);
        self.shows_unstored |= !write.is_empty();
    }

    /// Returns `seen` without the unstored writes.
    pub(super) fn stored(&self) -> Image {
        if !self.shows_unstored {
            return self.seen.clone();
        }
        let mut image = self.durable.clone();
        for cached in self.cached.values() {
            cached.write.apply(&mut image, WriteSurvival::All, self.sector_bytes);
        }
        image
    }

    pub(super) fn seen(&self) -> &Image {
        &self.seen
    }

    pub(super) fn durable(&self) -> &Image {
        &self.durable
    }

    /// Caches a write and returns its id. Ids count from 0.
    pub(super) fn write(&mut self, write: &Arc<RecordedWrite>) -> u64 {
        write.apply(&mut self.seen, WriteSurvival::All, self.sector_bytes);
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

    /// Returns the writes covered by a flush submitted at this moment.
    pub(super) fn begin_flush(&self) -> Vec<u64> {
        let answered = self.cached.iter().filter(|(_, cached)| cached.is_answered);
        answered.map(|(&id, _)| id).collect()
    }

    /// Returns the writes made durable by write-through `id`: itself, and the older ones to the
    /// same place, which must not overwrite it later.
    pub(super) fn begin_write_through(&self, id: u64) -> Vec<u64> {
        let Some(through) = self.cached.get(&id) else { return Vec::new() };
        let older = self.cached.range(..=id);
        let covered = older.filter(|(_, cached)| cached.write.meets(&through.write));
        covered.map(|(&id, _)| id).collect()
    }

    pub(super) fn answer_flush(&mut self, covered: &[u64]) {
        for id in covered {
            // A concurrent flush may have completed first.
            if let Some(cached) = self.cached.remove(id) {
                cached.write.apply(&mut self.durable, WriteSurvival::All, self.sector_bytes);
            }
        }
        if self.cached.is_empty() && !self.shows_unstored {
            // Makes equal images share their pages again. They may differ after concurrent writes
            // to one place, or bit rot below a cached write: then the durable contents count.
            self.seen = self.durable.clone();
        }
    }

    pub(super) fn rot(&mut self, offset: u64, mask: u8) {
        self.durable.flip(offset, mask);
        self.seen.flip(offset, mask);
    }

    /// Returns contents that a power cut could leave.
    ///
    /// The seed first picks a manner, because independent choices rarely yield the most revealing
    /// images: only the last write lost, or only the last kept.
    pub(super) fn crash(&self, prng: &mut Prng) -> Image {
        let mut image = self.durable.clone();
        let manner = prng.below(7);
        let count = to_u64(self.cached.len());
        let chosen = prng.below(count + 1);
        for (nth, cached) in (0..).zip(self.cached.values()) {
            let sector_count = cached.write.length_bytes() / self.sector_bytes;
            let keep = match manner {
                0 => WriteSurvival::Nothing,
                1 => WriteSurvival::All,
                2 if nth < chosen => WriteSurvival::All,
                2 if nth > chosen => WriteSurvival::Nothing,
                3 if nth != chosen => WriteSurvival::All,
                4 if nth == chosen => WriteSurvival::All,
                4 => WriteSurvival::Nothing,
                5 if prng.one_in(2) => WriteSurvival::All,
                5 if prng.one_in(2) => WriteSurvival::Nothing,
                _ if sector_count < 2 => {
                    *one_of(prng, &[WriteSurvival::All, WriteSurvival::Nothing])
                }
                _ => WriteSurvival::torn(prng, sector_count),
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

    fn survivors(keep: WriteSurvival) -> Vec<bool> {
        keep.survivors(4)
    }

    #[test]
    fn first_and_last_keep_the_ends_they_name() {
        assert_eq!(survivors(WriteSurvival::First(1)), [true, false, false, false]);
        assert_eq!(survivors(WriteSurvival::Last(1)), [false, false, false, true]);
        assert_eq!(survivors(WriteSurvival::Last(3)), [false, true, true, true]);
        assert_eq!(survivors(WriteSurvival::Nothing), [false; 4]);
        assert_eq!(survivors(WriteSurvival::All), [true; 4]);
        assert_eq!(survivors(WriteSurvival::Scattered(5)), survivors(WriteSurvival::Scattered(5)));
    }
}
