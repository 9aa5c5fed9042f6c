//! Salvage from a returning member. Before a piece is rebuilt, the member's old contents may
//! replace blocks that have become bad on the other members since it left (RN4, RN5).
//!
//! Policy, for each page that differs from the other members' version:
//!
//! 1. In a metadata segment, the member's page is used if the others do not supply the last version
//!    written back, and if its LSN is the listed one.
//! 2. In a data segment, a listed block is salvaged if it does not verify from the others and a
//!    file still maps it. The place of an unmapped block may have other contents by now.
//! 3. If the block verifies only with the member's contents, parity is bad. Parity is rewritten if
//!    all other blocks in its rows verify. If the others still do not supply the block, the member
//!    keeps its own page.
//! 4. A summary is salvaged if the others supply none, and a file maps a block that it lists.
//! 5. In an unlisted page the member keeps contents that the others cannot supply. Readers verify
//!    them.
//! 6. The fixed regions are not salvaged: an older version could not be told from the present one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Place};
use format::page::PAGE_BYTES;
use format::pointer::BlockPointer;
use format::summary::{SummaryEntry, SummaryKind};
use runtime::{if_planted, planted};
use storage::device::{IoPurpose, Redundancy};
use storage::volume::{ParityCheckOutcome, RedundancyComparison};

use crate::alloc::{SegmentId, SegmentPin};
use crate::convert::{index_wide, wide};
use crate::file::Core;
use crate::jobs::pieces::{
    ListedBlock, PieceRedundancy, blocks_of, listed_of, rows_around, summary_of,
};
use crate::segment::read_segment;

pub(super) struct MemberSalvage<'c> {
    core: &'c Core,
    slot: usize,
    segments: BTreeMap<SegmentId, SalvageSegment<'c>>,
}

struct SalvageSegment<'c> {
    /// Keeps the segment's use unchanged (G6). `None` if the caller holds a pin of its own.
    _pin: Option<SegmentPin<'c>>,
    kept: Option<Redundancy>,
    /// Epoch in which the segment was opened.
    incarnation: Epoch,
    items: Vec<SalvageBlock>,
}

struct SalvageBlock {
    block: ListedBlock,
    lists: Vec<ListedBlock>,
}

impl SalvageBlock {
    fn is_on(&self, range: &Range<usize>) -> bool {
        self.block.range.start < range.end && range.start < self.block.range.end
    }

    /// Whether a file maps the block as listed. Otherwise its place may have other contents.
    fn is_needed(&self, core: &Core) -> bool {
        if_planted!(ReturnSavesDead, return true);
        let has = |block: &ListedBlock| core.is_as_listed(&block.entry, block.place);
        if self.lists.is_empty() { has(&self.block) } else { self.lists.iter().any(has) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SalvageOutcome {
    /// Supplied by the other members.
    Given,
    /// Verifies only with the member's contents.
    IsOwn,
    /// Does not verify.
    Lost,
}

impl<'c> MemberSalvage<'c> {
    pub(super) fn new(core: &'c Core, slot: usize) -> MemberSalvage<'c> {
        MemberSalvage { core, slot, segments: BTreeMap::new() }
    }

    /// Writes salvaged contents of `piece` to the other members. Returns the pages, as bytes of the
    /// pool, that the returning member keeps. `None` if a write is in progress.
    pub(super) fn keeps(
        &mut self,
        piece: &Range<u64>,
        kept: &PieceRedundancy<'_>,
    ) -> Option<BTreeSet<u64>> {
        let (mut keeps, mut judged) = (BTreeSet::new(), BTreeMap::new());
        let volume = &self.core.store.volume;
        let groups_offset = self.core.store.geometry().groups_offset;
        if piece.end <= groups_offset || planted!(ReturnForgetsOwn) {
            return Some(keeps);
        }
        let compared = volume.compare(piece.clone(), kept.redundancy(), Some(self.slot));
        // The rebuild reports this error too, unless only the returning member causes it.
        let Ok(compared) = compared else { return Some(keeps) };
        let RedundancyComparison { bytes, differing, .. } = compared?;
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

    fn segment_at(&mut self, place: Place, kept: &PieceRedundancy<'_>) -> SegmentId {
        let (core, slot) = (self.core, self.slot);
        let id =
            SegmentId { group: place.group(), segment: core.store.geometry().segment_of(place) };
        self.segments.entry(id).or_insert_with(|| {
            let pin = match kept {
                PieceRedundancy::Segment(_) => None,
                PieceRedundancy::Alike => {
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
                PieceRedundancy::Segment(pin) => Some((pin.kept, pin.incarnation)),
                PieceRedundancy::Alike => pin.as_ref().map(|pin| (pin.kept, pin.incarnation)),
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
            let items = blocks.into_iter().map(|block| SalvageBlock { block, lists: Vec::new() });
            SalvageSegment { _pin: pin, kept, incarnation, items: items.collect() }
        });
        id
    }

    fn list_own(&mut self, piece: &Range<u64>, kept: &PieceRedundancy<'_>, bytes: &[u8]) {
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
            let is_new = |block: &ListedBlock| {
                let is_same = |item: &SalvageBlock| {
                    (item.block.place, item.block.entry.check) == (block.place, block.entry.check)
                };
                !segment.items.iter().any(is_same)
            };
            let new: Vec<ListedBlock> =
                lists.iter().filter(|block| is_new(block)).cloned().collect();
            segment
                .items
                .extend(new.into_iter().map(|block| SalvageBlock { block, lists: Vec::new() }));
            segment
                .items
                .push(SalvageBlock { block: summary_as_block(core, start, place, page), lists });
        }
    }

    fn look_at(
        &self,
        id: SegmentId,
        (place, offset): (Place, u64),
        judged: &mut BTreeMap<(Place, usize), SalvageOutcome>,
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
            if became == SalvageOutcome::IsOwn {
                let first = offset + wide(item.block.range.start) - wide(at);
                let end = first + wide(item.block.range.len());
                keeps.extend((first..end).step_by(PAGE_BYTES));
            }
            (is_listed, is_given) = (true, is_given && became == SalvageOutcome::Given);
        }
        if (!is_listed || !is_given) && volume.read(IoPurpose::Cleaner, place, PAGE_BYTES).is_err()
        {
            keeps.insert(offset);
        }
    }

    fn gives_summary(&self, segment: &SalvageSegment<'_>, place: Place) -> bool {
        let read = self.core.store.volume.read(IoPurpose::Cleaner, place, PAGE_BYTES);
        let summary = read.ok().and_then(|page| summary_of(self.core, &page, place));
        summary.is_some_and(|summary| summary.incarnation == segment.incarnation)
    }

    fn save(&self, item: &SalvageBlock, all: &[SalvageBlock]) -> SalvageOutcome {
        let block = &item.block;
        let (place, volume) = (block.place, &self.core.store.volume);
        if self.is_given(block) {
            return SalvageOutcome::Given;
        }
        if !item.is_needed(self.core) {
            return SalvageOutcome::Lost;
        }
        let is_it = |bytes: &[u8]| block.is_it(bytes);
        match volume.heal_with(self.slot, IoPurpose::Cleaner, place, block.range.len(), &is_it) {
            Ok(healed) if healed.bytes.is_some() => {
                tracing::warn!(%place, "only a member that came back made a block whole");
                if self.is_given(block) || self.mend_parity(block, all) {
                    return SalvageOutcome::Given;
                }
                tracing::warn!(%place, "its rows do not agree: a scrub may mend them");
                SalvageOutcome::IsOwn
            }
            Ok(_) => SalvageOutcome::Lost,
            Err(error) => {
                tracing::warn!(%place, %error, "a block cannot be written again");
                SalvageOutcome::Lost
            }
        }
    }

    fn is_given(&self, block: &ListedBlock) -> bool {
        let read = self.core.store.volume.read(IoPurpose::Cleaner, block.place, block.range.len());
        read.is_ok_and(|bytes| block.is_it(&bytes))
    }

    /// Rewrites the parity of the rows of `block`, if every other mapped block in them verifies.
    /// Returns whether the other members then supply the block.
    fn mend_parity(&self, block: &ListedBlock, all: &[SalvageBlock]) -> bool {
        let geometry = self.core.store.geometry();
        if !geometry.group_layout().is_striped(block.place.group()) {
            return false;
        }
        let rows = rows_around(geometry, block.place.group(), &block.range);
        let needed = all.iter().filter(|item| item.is_on(&rows) && item.is_needed(self.core));
        let is_inside =
            |other: &&ListedBlock| rows.start <= other.range.start && other.range.end <= rows.end;
        let (inside, across): (Vec<&ListedBlock>, Vec<&ListedBlock>) =
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
        mended.is_ok_and(|mended| mended == ParityCheckOutcome::Written) && self.is_given(block)
    }
}

fn summary_as_block(core: &Core, start: Place, place: Place, page: &[u8]) -> ListedBlock {
    let fragments = core.store.geometry().page_fragments();
    let offset = place.fragment() - start.fragment();
    let from = core.reader().stored_bytes(offset);
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
    ListedBlock { place, range: from..from + PAGE_BYTES, entry }
}

/// Salvages the maps of a group, without which the use of its segments is unknown.
pub(super) fn save_maps(core: &Core, slot: usize, group: u32) {
    for place in core.store.alloc.pages_to_load(group) {
        core.store.cache.save_from(slot, place);
    }
}
