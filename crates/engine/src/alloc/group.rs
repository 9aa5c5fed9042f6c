//! An allocation group in memory, and its initialisation on disk.

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
use runtime::planted;
use storage::device::IoPurpose;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::apart::MetadataSpace;
use super::discard::FreeSegmentContents;
use super::spare::GroupSpareSpace;
use super::{Allocator, AllocatorState, Extent, LifetimeLevel, group_page_index};
use crate::buffer::{PageBuffer, corrupt, io, newest_copy, page_of};
use crate::convert::{index, narrow, wide};
use crate::error::{FsError, FsResult};
use crate::journal::Tx;

pub(super) const OWN_PLACES: &str = "the geometry gives each page of a group a place of its own";

#[derive(Clone, Debug)]
pub(super) struct SegmentState {
    pub(super) kind: SegmentKind,
    /// Fragments used or pending.
    pub(super) held: u32,
    pub(super) pending: u32,
    /// Blocks are being written or mapped.
    pub(super) is_open: bool,
    pub(super) filled: u32,
    pub(super) incarnation: Epoch,
    pub(super) level: LifetimeLevel,
    /// Number of [`SegmentPin`](super::pin::SegmentPin)s (G6).
    pub(super) pins: u32,
    /// Held for a discard in flight or expired (DH1).
    pub(super) is_held: bool,
    /// Possible device contents while the segment is free.
    pub(super) below: FreeSegmentContents,
    /// A bit per page of a metadata segment, set if used or pending.
    pages: Vec<u64>,
}

impl SegmentState {
    const UNUSED: SegmentState = SegmentState {
        kind: SegmentKind::Free,
        held: 0,
        pending: 0,
        is_open: false,
        filled: 0,
        incarnation: Epoch(0),
        level: LifetimeLevel::MOVED,
        pins: 0,
        is_held: false,
        below: FreeSegmentContents::Nothing,
        pages: Vec::new(),
    };

    pub(super) fn is_free(&self) -> bool {
        let is_data_or_free = matches!(self.kind, SegmentKind::Free | SegmentKind::Data);
        let is_pinned = self.pins > 0 && !planted!(PinForgotten);
        self.held == 0 && !self.is_open && !is_pinned && !self.is_held && is_data_or_free
    }
}

#[derive(Debug)]
pub(super) struct AllocationGroup {
    pub(super) descriptor: Arc<PageBuffer>,
    pub(super) segments: Vec<SegmentState>,
    pub(super) free_count: u32,
    pub(super) free_pages: u32,
    metadata: Vec<u32>,
}

impl AllocationGroup {
    pub(super) fn used(&self) -> u32 {
        DescriptorDisk::of(page_of(&self.descriptor.bytes())).fragments_used.get()
    }

    /// Returns the length in fragments that the descriptor states.
    pub(super) fn stated(&self) -> u32 {
        DescriptorDisk::of(page_of(&self.descriptor.bytes())).fragments.get()
    }

    /// Extends the group by unused segments, to `segments`.
    pub(super) fn become_longer(&mut self, segments: u32) {
        let more = segments.saturating_sub(narrow(wide(self.segments.len())));
        self.segments.resize(index(segments), SegmentState::UNUSED);
        self.free_count += more;
    }

    pub(super) fn free(&self) -> GroupSpareSpace {
        GroupSpareSpace { pages: self.free_pages, segments: narrow(wide(self.metadata.len())) }
    }

    pub(super) fn metadata_with_room(&self) -> Option<u32> {
        let has_room = |segment: &u32| {
            let segment = &self.segments[index(*segment)];
            segment.pages.iter().any(|word| *word != u64::MAX)
        };
        self.metadata.iter().copied().find(has_room)
    }

    /// Returns whether `extent` can have been allocated. A damaged pointer may lead anywhere.
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
        let found = self.segments.iter().skip(index(from)).position(SegmentState::is_free)?;
        Some(from + narrow(wide(found)))
    }

    pub(super) fn become_metadata(
        &mut self,
        (number, segment): (u32, u32),
        incarnation: Epoch,
        geometry: &Geometry,
    ) {
        let entry = &mut self.segments[index(segment)];
        assert!(entry.is_free(), "G3: a segment changes its kind only while it is empty");
        entry.kind = SegmentKind::Metadata;
        (entry.incarnation, entry.filled) = (incarnation, 0);
        entry.below = FreeSegmentContents::Kept;
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
        entry.below = FreeSegmentContents::Kept;
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

    /// Takes a page. Returns its first fragment.
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

    /// Frees a page. A segment without used pages is free for any purpose.
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

    pub(super) fn release(&mut self, extent: Extent, geometry: &Geometry) {
        let fragment = extent.place.fragment();
        let segment = index(geometry.segment_of(extent.place));
        self.segments[segment].pending -= extent.fragments;
        if self.segments[segment].kind == SegmentKind::Metadata {
            self.release_page(fragment, geometry);
            return;
        }
        let entry = &mut self.segments[segment];
        // Saturating, because the count on disk may be wrong.
        entry.held = entry.held.saturating_sub(extent.fragments);
        if entry.is_free() {
            self.free_count += 1;
        }
    }
}

fn clear_bits(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_zeros()).sum()
}

/// Returns the page bits of an empty metadata segment. Bits without a page are set.
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
    /// Loads a group into memory, and initialises it on disk at its first use.
    pub(super) fn ensure_group(&self, state: &mut AllocatorState, number: u32) -> FsResult<()> {
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

    /// Returns whether a group may allocate; loads it if necessary. An unreadable group may not,
    /// until a retry some minutes later.
    ///
    /// # Errors
    ///
    /// Damage of the pool's totals, which concerns all groups, or a failed journal.
    pub(super) fn can_give(&self, state: &mut AllocatorState, number: u32) -> FsResult<bool> {
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
            Err(error) => {
                self.journal.check_alive()?;
                tracing::error!(
                    %error,
                    group = number,
                    "an allocation group cannot be read: nothing new goes there; run `holdfast \
                     check POOL`"
                );
                state.unread.insert(number);
                Ok(false)
            }
        }
    }

    /// Logs the longer length of a group, in a transaction of its own. Before that transaction
    /// nothing is allocated beyond the old length: see [`Geometry::can_have_had`].
    pub(super) fn describe_longer(
        &self,
        number: u32,
        descriptor: &Arc<PageBuffer>,
        table: Option<&Arc<PageBuffer>>,
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

    pub(super) fn table_buffer(&self, number: u32) -> FsResult<Option<Arc<PageBuffer>>> {
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

    /// Clears a group table entry. Returns whether it was in use.
    pub(super) fn clear_entry(&self, tx: &mut Tx, number: u32) -> FsResult<bool> {
        let Some(buffer) = self.table_buffer(number)? else { return Ok(false) };
        if !self.is_initialised(number)? {
            return Ok(false);
        }
        tx.put(&buffer, entry_offset(number), GroupEntryDisk::new_zeroed().as_bytes());
        Ok(true)
    }

    pub(super) fn used_of(&self, number: u32) -> FsResult<u32> {
        let owner = PageOwner { index: u64::from(number), ..PageOwner::default() };
        let place = self.geometry().descriptor_place(number);
        let descriptor = self.cache.page(place, PageKind::GroupDescriptor, owner)?;
        let bytes = descriptor.bytes();
        Ok(DescriptorDisk::of(page_of(&bytes)).fragments_used.get())
    }

    fn initialise(&self, state: &mut AllocatorState, number: u32) -> FsResult<()> {
        let unused = Self::share_of(state, number).map(|share| (share.is_main, share.unused));
        if unused == Some((true, 0)) {
            let what = format!("all groups are said to be in use, {number} is not");
            return Err(corrupt(DefectCode::AG007.found(what)));
        }
        self.check_never_used(number)?;
        let table = self.table_buffer(number)?;
        let mut tx = self.journal.begin_unreserved();
        let (geometry, pool_id) = (self.geometry(), self.cache.pool_id());
        let root = u32::from(geometry.group_layout().has_root_page(number));
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
        MetadataSpace::change(state, number, |apart| apart.used += u64::from(used));
        if let Some(share) = Self::share_of(state, number) {
            share.unused = share.unused.saturating_sub(1);
        }
        Ok(())
    }

    /// Refuses to initialise a group that already has a descriptor: the write of its group table
    /// entry was lost, and the group holds files.
    fn check_never_used(&self, number: u32) -> FsResult<()> {
        let place = self.geometry().descriptor_place(number);
        let is_descriptor = |bytes: &PageBytes| {
            let header = PageHeader::decode(bytes, self.cache.pool_id(), place);
            header.is_ok_and(|header| header.kind == PageKind::GroupDescriptor)
        };
        let copies = newest_copy(&self.volume, place, Lsn(u64::MAX), &is_descriptor);
        let bytes = match copies {
            Some(newest) => newest.bytes,
            None => self.volume.read_page(IoPurpose::Home, place).map_err(io)?,
        };
        if !is_descriptor(page_of(&bytes)) {
            return Ok(());
        }
        Err(self.journal.fail_corrupt(DefectCode::AG010.found(format!(
            "the group table says that group {number} was never used, and its descriptor lies \
             there: a write of the group table was lost. Nothing was changed; copy what can be \
             read, and run `holdfast check POOL`"
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

    /// Compares the descriptor's counts with the segment usage. Both change in one transaction, so
    /// a difference means a lost write, after which an allocation could overwrite space in use.
    fn check_counts(&self, group: &AllocationGroup, number: u32) -> FsResult<()> {
        let geometry = self.geometry();
        let mut marked_in_group = 0;
        for (segment, usage) in (0..).zip(&group.segments) {
            let marked = self.count_marked(number, segment)?;
            marked_in_group += marked;
            if marked != usage.held {
                return Err(self.journal.fail_corrupt(DefectCode::SG002.found(format!(
                    "segment {segment} of group {number} says {} live fragments, its free \
                     map {marked}: a write of one of them was lost. Nothing was changed; copy what \
                     can be read, and run `holdfast check POOL`",
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
                 changed; copy what can be read, and run `holdfast check POOL`",
                geometry.segments_of(number)
            ))));
        }
        Ok(())
    }

    /// Counts the used fragments of a segment in the free map.
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

    /// Returns the pages that a load reads.
    pub(crate) fn pages_to_load(&self, number: u32) -> Vec<Place> {
        let geometry = self.geometry();
        let maps = (0..geometry.map_pages()).map(|page| geometry.free_map_place(number, page));
        let usages = (0..geometry.usage_pages()).map(|page| geometry.usage_place(number, page));
        let descriptor = geometry.descriptor_place(number);
        std::iter::once(descriptor).chain(maps).chain(usages).collect()
    }

    fn load(&self, number: u32) -> FsResult<AllocationGroup> {
        let geometry = self.geometry();
        self.cache.bring_in(self.pages_to_load(number));
        let owner = PageOwner { index: u64::from(number), ..PageOwner::default() };
        let place = geometry.descriptor_place(number);
        let descriptor = self.cache.page(place, PageKind::GroupDescriptor, owner)?;
        let mut group = AllocationGroup {
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
            let mut entry = SegmentState {
                kind: usage.kind,
                held: usage.live,
                pending: 0,
                is_open: false,
                filled: usage.filled,
                incarnation: usage.incarnation,
                level: LifetimeLevel::MOVED,
                pins: 0,
                is_held: false,
                // Discards are not recorded on disk.
                below: match usage.kind {
                    SegmentKind::Free => FreeSegmentContents::Nothing,
                    SegmentKind::Data | SegmentKind::Metadata | SegmentKind::Journal => {
                        FreeSegmentContents::Kept
                    }
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

pub(crate) struct GroupPages {
    pub(crate) pages: Vec<(Place, PageBytes)>,
    /// Fragments of the front and the extra pages.
    pub(crate) fragments_used: u32,
    pub(crate) entry: GroupEntryDisk,
}

impl GroupPages {
    /// Builds the pages, with `extra_pages` in use behind the front.
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
            // A page's fragments never cross a map page.
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

/// Returns an empty root page, for a disk group that can become the main one.
fn root_page(
    geometry: &Geometry,
    pool_id: PoolId,
    number: u32,
    epoch: Epoch,
) -> (Place, PageBytes) {
    let place = geometry.group_layout().root_place_in(number);
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

pub(crate) fn table_page(bytes: &mut PageBytes, pool_id: PoolId, place: Place, page: u64) {
    let owner = PageOwner { index: page, ..PageOwner::default() };
    PageHeader::new(PageKind::GroupTable, pool_id, place, owner).encode(bytes);
}
