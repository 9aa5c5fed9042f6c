//! What a member that comes back has, and the others do not give as it should be: they may have
//! rotted, or have a bad sector, since it went (RN4, RN5).
//!
//! Policy, for each page that the member has otherwise than the others, before its piece is made
//! anew:
//!
//! 1. In a metadata segment the page is looked for on the member if what the others give is not
//!    what went home last. It is taken if its LSN is the one that is listed for it.
//! 2. In a data segment the block that a summary lists there is looked for if it does not verify,
//!    and somebody has it: what nobody has may be listed where something else lies by now.
//! 3. Where only what the member has of it verifies, parity is bad: it is written anew if all else
//!    in its rows verifies. If the others do not give the block then either, the member keeps its
//!    own.
//! 4. A summary is looked for where the others give none, if somebody has a block that it lists.
//! 5. Of what no summary lists the member keeps what nobody else gives: who reads it compares.
//! 6. In front of the groups nothing is looked for: there are older states of all that lies there,
//!    and nothing tells them apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Place};
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{SummaryEntry, SummaryKind};
use runtime::planted::{self, Planted};
use storage::device::{Purpose, Redundancy};
use storage::volume::{Compared, ParityMended};

use crate::alloc::{Pin, SegmentId};
use crate::convert::{index_wide, wide};
use crate::jobs::pieces::{Kept, Listed, blocks_of, listed_of, rows_around, summary_of};
use crate::segment::read_segment;
use crate::vnode::Core;

/// See the module's header.
pub(super) struct Own<'c> {
    core: &'c Core,
    slot: usize,
    segments: BTreeMap<SegmentId, Segment<'c>>,
}

/// A segment that is looked at.
struct Segment<'c> {
    /// Keeps it what it is (G6); `None`: it is pinned already.
    _pin: Option<Pin<'c>>,
    /// How what lies there is kept; `None`: nothing in it is of use, or nobody knows.
    kept: Option<Redundancy>,
    /// Epoch in which it was opened.
    incarnation: Epoch,
    /// What is in it, if it is one for data.
    items: Vec<Item>,
}

/// A block, or a summary.
struct Item {
    block: Listed,
    /// Of a summary: what it lists.
    lists: Vec<Listed>,
}

impl Item {
    fn is_on(&self, range: &Range<usize>) -> bool {
        self.block.range.start < range.end && range.start < self.block.range.end
    }

    /// Whether somebody has it: else anything may lie there by now.
    fn is_needed(&self, core: &Core) -> bool {
        if planted::is(Planted::ReturnSavesDead) {
            return true;
        }
        let has = |block: &Listed| core.is_as_listed(&block.entry, block.place);
        if self.lists.is_empty() { has(&self.block) } else { self.lists.iter().any(has) }
    }
}

/// What became of a block or a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Became {
    /// The others give it.
    Given,
    /// Only with what the member has it verifies.
    IsOwn,
    /// It verifies in no way.
    Lost,
}

impl<'c> Own<'c> {
    /// Returns what knows of nothing yet that the member in `slot` has.
    pub(super) fn new(core: &'c Core, slot: usize) -> Own<'c> {
        Own { core, slot, segments: BTreeMap::new() }
    }

    /// Writes to the others what they do not give of `piece` and the member has. Returns the pages,
    /// as bytes of the pool, that it is to keep as it has them; `None`: a write is at the piece.
    pub(super) fn keeps(&mut self, piece: &Range<u64>, kept: &Kept<'_>) -> Option<BTreeSet<u64>> {
        let (mut keeps, mut judged) = (BTreeSet::new(), BTreeMap::new());
        let volume = &self.core.store.volume;
        let is_forgotten =
            planted::is(Planted::ReturnNotAsked) || planted::is(Planted::ReturnForgetsOwn);
        if piece.end <= self.core.store.geometry().groups_offset || is_forgotten {
            return Some(keeps);
        }
        let compared = volume.compare(piece.clone(), kept.redundancy(), Some(self.slot));
        // Who makes the piece anew is told so too, or it is the member that gives nothing.
        let Ok(compared) = compared else { return Some(keeps) };
        let Compared { bytes, differing, .. } = compared?;
        if !differing.is_empty() {
            self.list_own(piece, kept, &bytes);
        }
        for offset in differing {
            let Some(place) = self.core.store.geometry().place_at(offset) else { continue };
            let id = self.segment_at(place, kept);
            match self.segments.get(&id).and_then(|segment| segment.kept) {
                Some(Redundancy::Copies) => self.core.store.cache.save_from(self.slot, place),
                Some(Redundancy::Parity) => {
                    self.look_at(id, (place, offset), &mut judged, &mut keeps);
                }
                None => {}
            }
        }
        Some(keeps)
    }

    /// Returns the segment at `place`, after what is to be known of it is.
    fn segment_at(&mut self, place: Place, kept: &Kept<'_>) -> SegmentId {
        let (core, slot) = (self.core, self.slot);
        let id =
            SegmentId { group: place.group(), segment: core.store.geometry().segment_of(place) };
        self.segments.entry(id).or_insert_with(|| {
            let pin = match kept {
                Kept::Segment(_) => None,
                Kept::Alike => {
                    let pin = core.store.alloc.pin(id);
                    pin.or_else(|_| {
                        save_maps(core, slot, id.group);
                        core.store.alloc.pin(id)
                    })
                    .ok()
                    .flatten()
                }
            };
            let known = match kept {
                Kept::Segment(pin) => Some((pin.kept, pin.incarnation)),
                Kept::Alike => pin.as_ref().map(|pin| (pin.kept, pin.incarnation)),
            };
            let (kept, incarnation) = known.unzip();
            let incarnation = incarnation.unwrap_or_default();
            let blocks = match kept {
                Some(Redundancy::Parity) => {
                    let start = core.store.geometry().segment_place(id.group, id.segment);
                    let (bytes, _) = read_segment(&core.store.volume, start);
                    listed_of(core, id, incarnation, &bytes)
                }
                Some(Redundancy::Copies) | None => Vec::new(),
            };
            let items = blocks.into_iter().map(|block| Item { block, lists: Vec::new() });
            Segment { _pin: pin, kept, incarnation, items: items.collect() }
        });
        id
    }

    /// Adds the summaries that the member itself has in `bytes` of `piece`, and what they list.
    fn list_own(&mut self, piece: &Range<u64>, kept: &Kept<'_>, bytes: &[u8]) {
        let (core, geometry) = (self.core, self.core.store.geometry());
        for (offset, page) in (piece.start..).step_by(PAGE_BYTES).zip(bytes.chunks(PAGE_BYTES)) {
            let Some(place) = geometry.place_at(offset) else { continue };
            let Some(summary) = summary_of(core, page, place) else { continue };
            let id = self.segment_at(place, kept);
            let Some(segment) = self.segments.get_mut(&id) else { continue };
            if segment.incarnation != summary.incarnation {
                continue;
            }
            let start = geometry.segment_place(id.group, id.segment);
            let lists = blocks_of(core, start, summary.entries);
            let is_new = |block: &Listed| {
                let is_same = |item: &Item| {
                    (item.block.place, item.block.entry.check) == (block.place, block.entry.check)
                };
                !segment.items.iter().any(is_same)
            };
            let new: Vec<Listed> = lists.iter().filter(|block| is_new(block)).cloned().collect();
            segment.items.extend(new.into_iter().map(|block| Item { block, lists: Vec::new() }));
            segment.items.push(Item { block: summary_as_block(core, start, place, page), lists });
        }
    }

    /// Looks at a page of a data segment, at a place and a byte of the pool.
    fn look_at(
        &self,
        id: SegmentId,
        (place, offset): (Place, u64),
        judged: &mut BTreeMap<(Place, usize), Became>,
        keeps: &mut BTreeSet<u64>,
    ) {
        let (geometry, volume) = (self.core.store.geometry(), &self.core.store.volume);
        let start = geometry.segment_place(id.group, id.segment);
        let at = index_wide((place.bits() - start.bits()) << geometry.fragment_shift);
        let Some(segment) = self.segments.get(&id) else { return };
        let page = at..at + PAGE_BYTES;
        let here = || segment.items.iter().enumerate().filter(|(_, item)| item.is_on(&page));
        let (mut is_listed, mut is_given) = (false, true);
        for (number, item) in here() {
            let is_covered =
                || here().any(|(_, other)| other.lists.is_empty() && other.is_needed(self.core));
            if !item.lists.is_empty() && (self.gives_summary(segment, place) || is_covered()) {
                continue;
            }
            let save = || self.save(item, &segment.items);
            let became = *judged.entry((item.block.place, number)).or_insert_with(save);
            if became == Became::IsOwn {
                let first = offset + wide(item.block.range.start) - wide(at);
                let end = first + wide(item.block.range.len());
                keeps.extend((first..end).step_by(PAGE_BYTES));
            }
            (is_listed, is_given) = (true, is_given && became == Became::Given);
        }
        if (!is_listed || !is_given) && volume.read(Purpose::Cleaner, place, PAGE_BYTES).is_err() {
            keeps.insert(offset);
        }
    }

    /// Whether the others give a summary at `place`.
    fn gives_summary(&self, segment: &Segment<'_>, place: Place) -> bool {
        let read = self.core.store.volume.read(Purpose::Cleaner, place, PAGE_BYTES);
        let summary = read.ok().and_then(|page| summary_of(self.core, &page, place));
        summary.is_some_and(|summary| summary.incarnation == segment.incarnation)
    }

    /// Looks for a block with what the member has, if the others do not give it.
    fn save(&self, item: &Item, all: &[Item]) -> Became {
        let block = &item.block;
        let (place, volume) = (block.place, &self.core.store.volume);
        if self.is_given(block) {
            return Became::Given;
        }
        if !item.is_needed(self.core) {
            return Became::Lost;
        }
        let is_it = |bytes: &[u8]| block.is_it(bytes);
        match volume.heal_with(self.slot, Purpose::Cleaner, place, block.range.len(), &is_it) {
            Ok(healed) if healed.bytes.is_some() => {
                tracing::warn!(%place, "only a member that came back made a block whole");
                if self.is_given(block) || self.mend_parity(block, all) {
                    return Became::Given;
                }
                tracing::warn!(%place, "its rows do not agree: a scrub may mend them");
                Became::IsOwn
            }
            Ok(_) => Became::Lost,
            Err(error) => {
                tracing::warn!(%place, %error, "a block cannot be written again");
                Became::Lost
            }
        }
    }

    /// Whether the others give a block.
    fn is_given(&self, block: &Listed) -> bool {
        let read = self.core.store.volume.read(Purpose::Cleaner, block.place, block.range.len());
        read.is_ok_and(|bytes| block.is_it(&bytes))
    }

    /// Writes the parity of the rows that `block`, of which what the member has verifies, lies in
    /// anew, if all that is listed in them and that somebody has verifies with it. Returns whether
    /// the others give it then.
    fn mend_parity(&self, block: &Listed, all: &[Item]) -> bool {
        let geometry = self.core.store.geometry();
        if !geometry.is_striped(block.place.group()) {
            return false;
        }
        let rows = rows_around(geometry, block.place.group(), &block.range);
        let needed = all.iter().filter(|item| item.is_on(&rows) && item.is_needed(self.core));
        let is_inside =
            |other: &&Listed| rows.start <= other.range.start && other.range.end <= rows.end;
        let (inside, across): (Vec<&Listed>, Vec<&Listed>) =
            needed.map(|item| &item.block).partition(is_inside);
        let are_good = |bytes: &[u8]| {
            inside.iter().all(|other| {
                let at = other.range.start - rows.start..other.range.end - rows.start;
                bytes.get(at).is_some_and(|bytes| other.is_it(bytes))
            })
        };
        if !across.into_iter().all(|other| self.is_given(other)) {
            return false;
        }
        let start = geometry.device_offset(block.place, 1).unwrap_or(0) - wide(block.range.start);
        let pool = start + wide(rows.start)..start + wide(rows.end);
        let volume = &self.core.store.volume;
        let mended = volume.mend_parity(pool, &are_good, Some(self.slot));
        mended.is_ok_and(|mended| mended == ParityMended::Written) && self.is_given(block)
    }
}

/// Returns the summary in `page` at `place` as if it were a block: it is compared by its bytes.
fn summary_as_block(core: &Core, start: Place, place: Place, page: &[u8]) -> Listed {
    let fragments = core.store.geometry().page_fragments();
    let offset = place.fragment() - start.fragment();
    let from = core.stored_bytes(offset);
    let check = BlockPointer::to_data(place, fragments, Epoch(0), PAGE_BYTES, page).check;
    let entry = SummaryEntry {
        kind: SummaryKind::Block,
        block_shift: 12,
        fragments,
        offset,
        fileset: FilesetId(0),
        anode: AnodeNo(0),
        generation: Generation(0),
        index: 0,
        birth: Epoch(0),
        check,
    };
    Listed { place, range: from..from + PAGE_BYTES, entry }
}

/// Looks for the maps of a group on a member that comes back: without them nobody knows what lies
/// in its segments.
pub(super) fn save_maps(core: &Core, slot: usize, group: u32) {
    for place in core.store.alloc.pages_to_load(group) {
        core.store.cache.save_from(slot, place);
    }
}
