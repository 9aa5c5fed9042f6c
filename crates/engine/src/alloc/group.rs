//! One allocation group in memory, and how it comes into being.

use std::sync::Arc;

use format::bitmap;
use format::defect::DefectCode;
use format::geometry::Geometry;
use format::group::{
    DESCRIPTOR_FRAGMENTS_OFFSET, DESCRIPTOR_SEGMENTS_OFFSET, DescriptorDisk,
    ENTRY_FRAGMENTS_OFFSET, GroupEntryDisk, SegmentKind, SegmentUsage, TABLE_BITMAP_OFFSET,
    TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET, entry_offset, is_table_page_used,
};
use format::ids::{Epoch, Lsn, Place, PoolId};
use format::page::{PageBytes, PageHeader, PageKind, PageOwner};
use runtime::planted::{self, Planted};
use storage::device::Purpose;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::apart::Apart;
use super::discard::Below;
use super::spare::Free;
use super::{Allocator, Extent, Level, State, group_page_index};
use crate::buffer::{Buffer, corrupt, io, newest_copy, page_of};
use crate::convert::{index, narrow, wide};
use crate::error::{FsError, FsResult};
use crate::journal::Tx;

/// Why a transaction that brings a group into being has no page where it makes one.
pub(super) const OWN_PLACES: &str = "the geometry gives each page of a group a place of its own";

/// A segment in memory.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) kind: SegmentKind,
    /// Fragments in use or pending.
    pub(super) held: u32,
    /// Fragments freed and not yet released.
    pub(super) pending: u32,
    /// Blocks are being written to it, or are not yet installed.
    pub(super) is_open: bool,
    /// Fragments written so far.
    pub(super) filled: u32,
    /// Epoch in which it was opened.
    pub(super) incarnation: Epoch,
    /// How long its blocks are expected to last.
    pub(super) level: Level,
    /// How many have it pinned (G6).
    pub(super) pins: u32,
    /// What lies there is being discarded, or may be at any time (DH1).
    pub(super) is_held: bool,
    /// What may lie there while it is free.
    pub(super) below: Below,
    /// Of a metadata segment: a bit per page that is held.
    pages: Vec<u64>,
}

impl Segment {
    /// One that was never used.
    const UNUSED: Segment = Segment {
        kind: SegmentKind::Free,
        held: 0,
        pending: 0,
        is_open: false,
        filled: 0,
        incarnation: Epoch(0),
        level: Level::MOVED,
        pins: 0,
        is_held: false,
        below: Below::Nothing,
        pages: Vec::new(),
    };

    pub(super) fn is_free(&self) -> bool {
        let is_data_or_free = matches!(self.kind, SegmentKind::Free | SegmentKind::Data);
        let is_pinned = self.pins > 0 && !planted::is(Planted::PinForgotten);
        let is_held = self.is_held && !planted::is(Planted::DiscardNotHeld);
        self.held == 0 && !self.is_open && !is_pinned && !is_held && is_data_or_free
    }
}

/// An allocation group in memory.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) descriptor: Arc<Buffer>,
    pub(super) segments: Vec<Segment>,
    pub(super) free_count: u32,
    /// Pages of metadata segments that nobody has.
    pub(super) free_pages: u32,
    /// Numbers of its metadata segments.
    metadata: Vec<u32>,
}

impl Group {
    /// Returns how many of its fragments are in use.
    pub(super) fn used(&self) -> u32 {
        DescriptorDisk::of(page_of(&self.descriptor.bytes())).fragments_used.get()
    }

    /// Returns how many fragments its descriptor says that it has.
    pub(super) fn stated(&self) -> u32 {
        DescriptorDisk::of(page_of(&self.descriptor.bytes())).fragments.get()
    }

    /// It has `segments` from now on: those at its end nobody has used.
    pub(super) fn become_longer(&mut self, segments: u32) {
        let more = segments.saturating_sub(narrow(wide(self.segments.len())));
        self.segments.resize(index(segments), Segment::UNUSED);
        self.free_count += more;
    }

    /// Returns what its metadata segments have left.
    pub(super) fn free(&self) -> Free {
        Free { pages: self.free_pages, segments: narrow(wide(self.metadata.len())) }
    }

    pub(super) fn metadata_with_room(&self) -> Option<u32> {
        let has_room = |segment: &u32| {
            let segment = &self.segments[index(*segment)];
            segment.pages.iter().any(|word| *word != u64::MAX)
        };
        self.metadata.iter().copied().find(has_room)
    }

    /// Whether `extent` can have been given out: a damaged pointer may lead anywhere.
    pub(super) fn has_given(&self, extent: Extent, geometry: &Geometry) -> bool {
        let (fragment, step) = (extent.place.fragment(), geometry.page_fragments());
        let number = geometry.segment_of(extent.place);
        let Some(segment) = self.segments.get(index(number)) else { return false };
        let in_segment = fragment - number * geometry.segment_fragments;
        let is_one_page = || {
            let page = in_segment / step;
            let word = segment.pages.get(index(page / 64)).copied().unwrap_or(0);
            extent.fragments == step
                && fragment.is_multiple_of(step)
                && page < geometry.metadata_pages(extent.place.group())
                && word >> (page % 64) & 1 == 1
        };
        let is_of_kind = match segment.kind {
            SegmentKind::Data => true,
            SegmentKind::Metadata => is_one_page(),
            SegmentKind::Free | SegmentKind::Journal => false,
        };
        is_of_kind
            && fragment >= geometry.front_fragments(extent.place.group())
            && in_segment + extent.fragments <= geometry.segment_fragments
            && segment.held.saturating_sub(segment.pending) >= extent.fragments
    }

    pub(super) fn lowest_free(&self) -> Option<u32> {
        self.free_at_or_after(0)
    }

    pub(super) fn free_at_or_after(&self, from: u32) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        let found = self.segments.iter().skip(index(from)).position(Segment::is_free)?;
        Some(from + narrow(wide(found)))
    }

    /// `segment` of this group, which is group `number`, holds pages from epoch `incarnation` on.
    pub(super) fn become_metadata(
        &mut self,
        (number, segment): (u32, u32),
        incarnation: Epoch,
        geometry: &Geometry,
    ) {
        let entry = &mut self.segments[index(segment)];
        assert!(entry.is_free(), "G3: a segment changes its kind only while it is empty");
        entry.kind = SegmentKind::Metadata;
        if !planted::is(Planted::MetadataKeepsIncarnation) {
            (entry.incarnation, entry.filled) = (incarnation, 0);
        }
        entry.below = Below::Kept;
        entry.pages = empty_pages(geometry, number);
        self.free_pages += clear_bits(&entry.pages);
        self.free_count -= 1;
        self.metadata.push(segment);
        self.metadata.sort_unstable();
    }

    pub(super) fn open(&mut self, segment: u32, incarnation: Epoch) {
        let entry = &mut self.segments[index(segment)];
        assert!(entry.is_free(), "G3: a segment is opened only while it is empty");
        entry.is_open = true;
        entry.kind = SegmentKind::Data;
        entry.incarnation = incarnation;
        entry.below = Below::Kept;
        entry.filled = 0;
        self.free_count -= 1;
    }

    pub(super) fn close(&mut self, segment: u32) {
        let entry = &mut self.segments[index(segment)];
        assert!(entry.is_open, "an open segment is closed once");
        entry.is_open = false;
        if entry.is_free() {
            self.free_count += 1;
        }
    }

    /// Takes a page of a metadata segment that has room; returns its fragment in the group.
    pub(super) fn take_page(&mut self, segment: u32, geometry: &Geometry) -> u32 {
        let step = geometry.page_fragments();
        let entry = &mut self.segments[index(segment)];
        let word = entry.pages.iter().position(|word| *word != u64::MAX).expect("it has room");
        let bit = entry.pages[word].trailing_ones();
        entry.pages[word] |= 1 << bit;
        entry.held += step;
        self.free_pages -= 1;
        segment * geometry.segment_fragments + (narrow(wide(word)) * 64 + bit) * step
    }

    /// Gives back a page that was taken: at once, for nobody has seen it, or by a release. A
    /// segment that has none left is free for anything, as an empty data segment is.
    pub(super) fn release_page(&mut self, fragment: u32, geometry: &Geometry) {
        let step = geometry.page_fragments();
        let segment = fragment / geometry.segment_fragments;
        let entry = &mut self.segments[index(segment)];
        let page = fragment % geometry.segment_fragments / step;
        let mask = 1_u64 << (page % 64);
        assert!(entry.pages[index(page / 64)] & mask != 0, "G1: a page is given back twice");
        entry.pages[index(page / 64)] &= !mask;
        entry.held -= step;
        self.free_pages += 1;
        if entry.held == 0 {
            self.free_pages -= clear_bits(&entry.pages);
            entry.pages = Vec::new();
            entry.kind = SegmentKind::Data;
            self.free_count += u32::from(entry.is_free());
            self.metadata.retain(|number| *number != segment);
        }
    }

    /// Makes freed fragments free.
    pub(super) fn release(&mut self, extent: Extent, geometry: &Geometry) {
        let fragment = extent.place.fragment();
        let segment = index(geometry.segment_of(extent.place));
        self.segments[segment].pending -= extent.fragments;
        if self.segments[segment].kind == SegmentKind::Metadata {
            self.release_page(fragment, geometry);
            return;
        }
        let entry = &mut self.segments[segment];
        // Less than was freed only if the disk lied about a count: it is not believed, nor fatal.
        entry.held = entry.held.saturating_sub(extent.fragments);
        if entry.is_free() {
            self.free_count += 1;
        }
    }
}

fn clear_bits(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_zeros()).sum()
}

/// Returns a bit for each page of a metadata segment of `group`, set where none can be.
fn empty_pages(geometry: &Geometry, group: u32) -> Vec<u64> {
    let pages = geometry.metadata_pages(group);
    let mut words = vec![0_u64; index(pages.div_ceil(64))];
    if let Some(last) = words.last_mut()
        && !pages.is_multiple_of(64)
    {
        *last = u64::MAX << (pages % 64);
    }
    words
}

impl Allocator {
    /// Loads `number` into memory, bringing it into being on its first use.
    pub(super) fn ensure_group(&self, state: &mut State, number: u32) -> FsResult<()> {
        if state.groups.contains_key(&number) {
            return Ok(());
        }
        if !self.is_initialised(number)? {
            self.initialise(state, number)?;
            if let Some(share) = Self::share_of(state, number).filter(|share| share.has_pages()) {
                share.spare.add_group(number);
            }
        }
        let group = self.load(number)?;
        if group.stated() < self.geometry().fragments_of(number) {
            let table = self.table_buffer(number)?;
            self.describe_longer(number, &group.descriptor, table.as_ref());
        }
        if let Some(share) = Self::share_of(state, number) {
            share.note_loaded(number, group.free());
        }
        state.groups.insert(number, group);
        Ok(())
    }

    /// Whether space of group `number` can be given out: it is loaded if need be. One that cannot
    /// be read gives nothing, and keeps nobody from the others; it is asked again after some
    /// minutes, for it may have been mended.
    ///
    /// # Errors
    ///
    /// What is wrong with the totals of the pool: that is of all groups.
    pub(super) fn can_give(&self, state: &mut State, number: u32) -> FsResult<bool> {
        if state.groups.contains_key(&number) {
            return Ok(true);
        }
        if state.unread.contains(&number) {
            return Ok(false);
        }
        match self.ensure_group(state, number) {
            Ok(()) => Ok(true),
            Err(FsError::Corrupt { defect, file }) if defect.code == DefectCode::AG007 => {
                Err(FsError::Corrupt { defect, file })
            }
            Err(error) if planted::is(Planted::UnreadGroupStopsAll) => Err(error),
            Err(error) => {
                self.journal.check_alive()?;
                tracing::error!(
                    %error,
                    group = number,
                    "an allocation group cannot be read: nothing new goes there; run holdfast check"
                );
                state.unread.insert(number);
                Ok(false)
            }
        }
    }

    /// Says in the descriptor of a group, and in the group table, that it has as many fragments as
    /// the superblock says, in a transaction of its own. Until that is so nothing lies behind what
    /// they say: see [`Geometry::can_have_had`].
    pub(super) fn describe_longer(
        &self,
        number: u32,
        descriptor: &Arc<Buffer>,
        table: Option<&Arc<Buffer>>,
    ) {
        let geometry = self.geometry();
        let (fragments, segments) = (geometry.fragments_of(number), geometry.segments_of(number));
        let mut tx = self.journal.begin_unreserved();
        tx.put(descriptor, DESCRIPTOR_FRAGMENTS_OFFSET, &fragments.to_le_bytes());
        tx.put(descriptor, DESCRIPTOR_SEGMENTS_OFFSET, &segments.to_le_bytes());
        if let Some(table) = table {
            let offset = entry_offset(number) + ENTRY_FRAGMENTS_OFFSET;
            tx.put(table, offset, &fragments.to_le_bytes());
        }
        self.journal.end(tx);
    }

    pub(super) fn table_buffer(&self, number: u32) -> FsResult<Option<Arc<Buffer>>> {
        let page = u64::from(number) / format::group::GROUPS_PER_TABLE_PAGE;
        if !is_table_page_used(page_of(&self.root.bytes()), page) {
            return Ok(None);
        }
        let place = self.geometry().group_table_place(number);
        let owner = PageOwner { index: page, ..PageOwner::default() };
        self.cache.page(place, PageKind::GroupTable, owner).map(Some)
    }

    pub(super) fn is_initialised(&self, number: u32) -> FsResult<bool> {
        let Some(buffer) = self.table_buffer(number)? else { return Ok(false) };
        let bytes = buffer.bytes();
        let entry = GroupEntryDisk::read_from_prefix(&bytes[entry_offset(number)..]);
        Ok(entry.expect("inside a page").0.state != 0)
    }

    /// Clears the entry of a group; returns whether it was in use.
    pub(super) fn clear_entry(&self, tx: &mut Tx, number: u32) -> FsResult<bool> {
        let Some(buffer) = self.table_buffer(number)? else { return Ok(false) };
        if !self.is_initialised(number)? {
            return Ok(false);
        }
        tx.put(&buffer, entry_offset(number), GroupEntryDisk::new_zeroed().as_bytes());
        Ok(true)
    }

    /// Returns how many fragments of a group are in use, as its descriptor says.
    pub(super) fn used_of(&self, number: u32) -> FsResult<u32> {
        let owner = PageOwner { index: u64::from(number), ..PageOwner::default() };
        let place = self.geometry().descriptor_place(number);
        let descriptor = self.cache.page(place, PageKind::GroupDescriptor, owner)?;
        let bytes = descriptor.bytes();
        Ok(DescriptorDisk::of(page_of(&bytes)).fragments_used.get())
    }

    /// Brings a group into being, in a transaction of its own.
    fn initialise(&self, state: &mut State, number: u32) -> FsResult<()> {
        let unused = Self::share_of(state, number).map(|share| (share.is_main, share.unused));
        if unused == Some((true, 0)) {
            let what = format!("all groups are said to be in use, {number} is not");
            return Err(corrupt(DefectCode::AG007.found(what)));
        }
        self.check_never_used(number)?;
        let table = self.table_buffer(number)?;
        let mut tx = self.journal.begin_unreserved();
        let (geometry, pool_id) = (self.geometry(), self.cache.pool_id());
        let root = u32::from(geometry.has_root_page(number));
        let mut pages = GroupPages::build(geometry, pool_id, number, root, tx.epoch);
        pages.pages.extend((root > 0).then(|| root_page(geometry, pool_id, number, tx.epoch)));
        let (used, entry) = (pages.fragments_used, pages.entry);
        for (place, bytes) in pages.pages {
            *tx.new_page(place).expect(OWN_PLACES) = bytes;
        }
        match table {
            Some(buffer) => tx.put(&buffer, entry_offset(number), entry.as_bytes()),
            None => self.add_table_page(&mut tx, number, &entry),
        }
        tx.add_u64(&self.root, TOTAL_FRAGMENTS_USED_OFFSET, i64::from(used));
        tx.add_u64(&self.root, TOTAL_GROUPS_USED_OFFSET, 1);
        self.journal.end(tx);
        state.used += u64::from(used);
        Apart::change(state, number, |apart| apart.used += u64::from(used));
        if let Some(share) = Self::share_of(state, number) {
            share.unused = share.unused.saturating_sub(1);
        }
        Ok(())
    }

    /// Refuses to bring a group into being where a descriptor of this pool lies: then it is the
    /// group table whose last write was lost, and the group is full of files.
    fn check_never_used(&self, number: u32) -> FsResult<()> {
        let place = self.geometry().descriptor_place(number);
        let is_descriptor = |bytes: &PageBytes| {
            let header = PageHeader::decode(bytes, self.cache.pool_id(), place);
            header.is_ok_and(|header| header.kind == PageKind::GroupDescriptor)
        };
        let copies = newest_copy(&self.volume, place, Lsn(u64::MAX), &is_descriptor);
        let bytes = match copies {
            Some(newest) => newest.bytes,
            None => self.volume.read_page(Purpose::Home, place).map_err(io)?,
        };
        if !is_descriptor(page_of(&bytes)) {
            return Ok(());
        }
        Err(self.journal.fail_corrupt(DefectCode::AG010.found(format!(
            "the group table says that group {number} was never used, and its descriptor lies \
             there: a write of the group table was lost. Nothing was changed; copy what can be \
             read, and run holdfast check"
        ))))
    }

    fn add_table_page(&self, tx: &mut Tx, number: u32, entry: &GroupEntryDisk) {
        let page = u64::from(number) / format::group::GROUPS_PER_TABLE_PAGE;
        let place = self.geometry().group_table_place(number);
        let bytes = tx.new_page(place).expect(OWN_PLACES);
        table_page(bytes, self.cache.pool_id(), place, page);
        entry.write_to_prefix(&mut bytes[entry_offset(number)..]).expect("inside a page");
        let position = crate::convert::index_wide(page);
        let root = self.root.bytes();
        let byte = TABLE_BITMAP_OFFSET + position / 8;
        tx.put(&self.root, byte, &[root[byte] | 1 << (position % 8)]);
    }

    /// Holds what the pages of a group say of its space against each other. They change in one
    /// transaction, so where they differ the last write of one of them was lost, and what is taken
    /// by one would be given out again by another.
    fn check_counts(&self, group: &Group, number: u32) -> FsResult<()> {
        let geometry = self.geometry();
        let mut marked_in_group = 0;
        for (segment, usage) in (0..).zip(&group.segments) {
            let marked = self.count_marked(number, segment)?;
            marked_in_group += marked;
            if marked != usage.held {
                return Err(self.journal.fail_corrupt(DefectCode::SG002.found(format!(
                    "segment {segment} of group {number} says {} live fragments, its free \
                     map {marked}: a write of one of them was lost. Nothing was changed; copy what \
                     can be read, and run holdfast check",
                    usage.held
                ))));
            }
        }
        let disk = DescriptorDisk::of(page_of(&group.descriptor.bytes()));
        let (stated, segments) = (disk.fragments_used.get(), disk.segments.get());
        let fragments = u64::from(segments) * u64::from(geometry.segment_fragments);
        let has_length = fragments == u64::from(disk.fragments.get())
            && geometry.can_have_had(number, disk.fragments.get());
        if stated != marked_in_group || !has_length {
            return Err(self.journal.fail_corrupt(DefectCode::AG005.found(format!(
                "group {number} says {stated} fragments in use of {segments} segments, its \
                 free map {marked_in_group} of {}: a write of one of them was lost. Nothing was \
                 changed; copy what can be read, and run holdfast check",
                geometry.segments_of(number)
            ))));
        }
        Ok(())
    }

    /// Returns how many fragments of a segment the free map marks as in use.
    fn count_marked(&self, number: u32, segment: u32) -> FsResult<u32> {
        let fragments = self.geometry().segment_fragments;
        let (mut at, end) = (segment * fragments, (segment + 1) * fragments);
        let mut marked = 0;
        while at < end {
            let page = at / bitmap::BITS_PER_PAGE;
            let first = page * bitmap::BITS_PER_PAGE;
            let until = end.min(first + bitmap::BITS_PER_PAGE);
            let buffer = self.free_map_buffer(number, page)?;
            marked += bitmap::count_set_in(page_of(&buffer.bytes()), at - first..until - first);
            at = until;
        }
        Ok(marked)
    }

    /// Returns every page that is looked at when a group is loaded.
    pub(crate) fn pages_to_load(&self, number: u32) -> Vec<Place> {
        let geometry = self.geometry();
        let maps = (0..geometry.map_pages()).map(|page| geometry.free_map_place(number, page));
        let usages = (0..geometry.usage_pages()).map(|page| geometry.usage_place(number, page));
        let descriptor = geometry.descriptor_place(number);
        std::iter::once(descriptor).chain(maps).chain(usages).collect()
    }

    fn load(&self, number: u32) -> FsResult<Group> {
        let geometry = self.geometry();
        self.cache.bring_in(self.pages_to_load(number));
        let owner = PageOwner { index: u64::from(number), ..PageOwner::default() };
        let place = geometry.descriptor_place(number);
        let descriptor = self.cache.page(place, PageKind::GroupDescriptor, owner)?;
        let mut group = Group {
            descriptor,
            segments: Vec::with_capacity(index(geometry.segments_of(number))),
            free_count: 0,
            free_pages: 0,
            metadata: Vec::new(),
        };
        for segment in 0..geometry.segments_of(number) {
            let buffer = self.usage_buffer(number, segment)?;
            let usage = SegmentUsage::of(page_of(&buffer.bytes()), segment)
                .ok_or_else(|| bad_usage(DefectCode::SG001, number, segment))?;
            if usage.live > geometry.segment_fragments {
                return Err(bad_usage(DefectCode::SG002, number, segment));
            }
            let mut entry = Segment {
                kind: usage.kind,
                held: usage.live,
                pending: 0,
                is_open: false,
                filled: usage.filled,
                incarnation: usage.incarnation,
                level: Level::MOVED,
                pins: 0,
                is_held: false,
                // Whether it was discarded no mount knows of the one before.
                below: match usage.kind {
                    SegmentKind::Free => Below::Nothing,
                    SegmentKind::Data | SegmentKind::Metadata | SegmentKind::Journal => Below::Kept,
                },
                pages: Vec::new(),
            };
            if usage.kind == SegmentKind::Metadata && usage.live == 0 {
                entry.kind = SegmentKind::Data;
            } else if usage.kind == SegmentKind::Metadata {
                entry.pages = self.load_pages(number, segment)?;
                group.free_pages += clear_bits(&entry.pages);
                group.metadata.push(segment);
            }
            group.free_count += u32::from(entry.is_free());
            group.segments.push(entry);
        }
        self.check_counts(&group, number)?;
        Ok(group)
    }

    fn load_pages(&self, number: u32, segment: u32) -> FsResult<Vec<u64>> {
        let geometry = self.geometry();
        let mut words = empty_pages(geometry, number);
        let step = geometry.page_fragments();
        for page in 0..geometry.metadata_pages(number) {
            let fragment = segment * geometry.segment_fragments + page * step;
            let buffer = self.free_map_buffer(number, fragment / bitmap::BITS_PER_PAGE)?;
            if bitmap::is_set(page_of(&buffer.bytes()), fragment % bitmap::BITS_PER_PAGE) {
                words[index(page / 64)] |= 1 << (page % 64);
            }
        }
        Ok(words)
    }
}

fn bad_usage(code: DefectCode, group: u32, segment: u32) -> FsError {
    corrupt(code.found(format!("usage of segment {segment} of group {group}")))
}

/// The pages that a group is born with.
pub(crate) struct GroupPages {
    /// Place and bytes of each.
    pub(crate) pages: Vec<(Place, PageBytes)>,
    /// Fragments in use from the start: the front, and `extra` pages behind it.
    pub(crate) fragments_used: u32,
    /// What the group table says of it.
    pub(crate) entry: GroupEntryDisk,
}

impl GroupPages {
    /// Builds the pages of `number`, with `extra_pages` in use behind its front.
    pub(crate) fn build(
        geometry: &Geometry,
        pool_id: PoolId,
        number: u32,
        extra_pages: u32,
        epoch: Epoch,
    ) -> GroupPages {
        let (step, per_segment) = (geometry.page_fragments(), geometry.metadata_pages(number));
        let front_pages = geometry.front_pages() + extra_pages;
        let front_segments = front_pages.div_ceil(per_segment);
        let fragments_used = front_pages * step;
        let mut pages = Vec::new();
        let page = |place, kind, index| {
            let mut bytes: PageBytes = [0; format::page::PAGE_BYTES];
            let owner = PageOwner { index, ..PageOwner::default() };
            let mut header = PageHeader::new(kind, pool_id, place, owner);
            header.birth = epoch;
            header.encode(&mut bytes);
            (place, bytes)
        };
        for map in 0..geometry.map_pages() {
            let place = geometry.free_map_place(number, map);
            let (place, mut bytes) = page(place, PageKind::FreeMap, group_page_index(number, map));
            // No page of fragments lies across two pages of the map.
            let first = map * bitmap::BITS_PER_PAGE;
            let fragments =
                (0..front_pages).map(|page| geometry.page_place(number, page).fragment());
            for bit in fragments.flat_map(|fragment| fragment..fragment + step) {
                if (first..first + bitmap::BITS_PER_PAGE).contains(&bit) {
                    bitmap::set(&mut bytes, bit - first, true);
                }
            }
            pages.push((place, bytes));
        }
        for usage in 0..geometry.usage_pages() {
            let place = geometry.usage_place(number, usage);
            let (place, mut bytes) =
                page(place, PageKind::SegmentUsage, group_page_index(number, usage));
            for segment in 0..front_segments {
                if segment / format::group::USAGES_PER_PAGE == usage {
                    let pages = (front_pages - segment * per_segment).min(per_segment);
                    put_front_usage(&mut bytes, segment, pages * step, epoch);
                }
            }
            pages.push((place, bytes));
        }
        let lsn_pages = geometry.lsn_pages_of_segment(front_segments - 1).end;
        for index in 0..lsn_pages {
            let place = geometry.lsn_page_place(number, index);
            pages.push(page(place, PageKind::LsnPage, group_page_index(number, index)));
        }
        let place = geometry.descriptor_place(number);
        let (place, mut bytes) = page(place, PageKind::GroupDescriptor, u64::from(number));
        let mut disk = descriptor(geometry, number, fragments_used, front_segments);
        (0..lsn_pages).for_each(|index| set_bit(&mut disk.lsn_pages_used, index));
        disk.store(&mut bytes);
        pages.push((place, bytes));
        let mut entry = GroupEntryDisk::new_zeroed();
        entry.state = 1;
        entry.fragments.set(geometry.fragments_of(number));
        entry.birth.set(epoch.0);
        GroupPages { pages, fragments_used, entry }
    }
}

/// Returns a root of the pool that says nothing: what `number`, the first of a disk group that can
/// be the main one, has behind its front until it is.
fn root_page(
    geometry: &Geometry,
    pool_id: PoolId,
    number: u32,
    epoch: Epoch,
) -> (Place, PageBytes) {
    let place = geometry.root_place_in(number);
    let mut bytes: PageBytes = [0; format::page::PAGE_BYTES];
    let mut header = PageHeader::new(PageKind::Anode, pool_id, place, PageOwner::default());
    header.birth = epoch;
    header.encode(&mut bytes);
    (place, bytes)
}

fn set_bit(bits: &mut [u8], bit: u32) {
    bits[index(bit / 8)] |= 1 << (bit % 8);
}

fn put_front_usage(bytes: &mut PageBytes, segment: u32, live: u32, epoch: Epoch) {
    let usage = SegmentUsage {
        kind: SegmentKind::Metadata,
        live,
        incarnation: epoch,
        newest: epoch,
        ..SegmentUsage::FREE
    };
    let offset = SegmentUsage::offset(segment);
    bytes[offset..offset + format::group::USAGE_BYTES].copy_from_slice(&usage.encode());
}

fn descriptor(
    geometry: &Geometry,
    number: u32,
    fragments_used: u32,
    segments_used: u32,
) -> DescriptorDisk {
    let ones = |count: u32| (u64::MAX >> (64 - count)).to_le_bytes();
    let mut disk = DescriptorDisk::new_zeroed();
    disk.group.set(number);
    disk.fragments.set(geometry.fragments_of(number));
    disk.segment_fragments.set(geometry.segment_fragments);
    disk.segments.set(geometry.segments_of(number));
    disk.fragments_used.set(fragments_used);
    disk.segments_used.set(segments_used);
    disk.free_map_used = ones(geometry.map_pages());
    disk.usage_used = ones(geometry.usage_pages());
    disk
}

/// Makes an empty page of the group table.
pub(crate) fn table_page(bytes: &mut PageBytes, pool_id: PoolId, place: Place, page: u64) {
    let owner = PageOwner { index: page, ..PageOwner::default() };
    PageHeader::new(PageKind::GroupTable, pool_id, place, owner).encode(bytes);
}
