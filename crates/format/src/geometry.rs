//! Positions of the parts of a pool: pure arithmetic.
//!
//! # Layout
//!
//! ```text
//!   0        64K      128K                                                  end-128K  end-64K
//!   +--------+--------+---------+--------------+-------------+-------------+--------+--------+
//!   | copy 0 | copy 1 | journal | double-write | group table | groups ...  | copy 2 | copy 3 |
//!   +--------+--------+---------+--------------+-------------+-------------+--------+--------+
//!
//!   group:  descriptor | free maps | busy maps | usage | busy anodes | LSN pages
//!           | metadata ... | segments
//! ```
//!
//! The group table's own LSN pages follow it ([`Geometry::lsn_entry`]). The front of a group,
//! rounded up to a segment, is its first metadata segments.
//!
//! For striped groups `stripes.rs` maps these positions to members. A segment is whole stripes, and
//! pages are only in the lower half of a metadata segment ([`Geometry::metadata_fragments`]).

mod defaults;
mod grown;
mod range;
mod striped;

pub use grown::GrowthLimit;
pub(crate) use range::LAST_SEGMENTS_MIN;
pub use range::{ADDED_GROUPS_OFFSET, GroupRange};

use std::ops::RangeInclusive;

use self::defaults::{default_group_bytes, default_journal_bytes, default_segment_bytes};
use crate::bitmap::BITS_PER_PAGE;
use crate::group::{GROUPS_PER_TABLE_PAGE, USAGES_PER_PAGE};
use crate::ids::Place;
use crate::lsn_page::{LSN_PAGES_PER_GROUP_MAX, LSNS_PER_PAGE, LsnEntry};
use crate::page::PAGE_BYTES;
use crate::reshape::{EvacuatingGroups, Reshape};
use crate::stripes::{StripeShape, StripeWidth};

/// Block sizes of files, as binary logarithms.
pub const BLOCK_SHIFTS: RangeInclusive<u8> = 12..=20;
/// Copies of the superblock on a device.
pub const SUPERBLOCK_COPIES: u16 = 4;
/// Bytes reserved for each copy of the superblock.
pub const SUPERBLOCK_AREA_BYTES: u64 = 64 << 10;
/// Disk group of places in the fixed regions: pages from the start of the device, in group 0.
pub const FIXED_DISK_GROUP: u8 = 255;
/// Smallest pool: two groups with room for the cleaner.
pub const POOL_BYTES_MIN: u64 = 8 << 20;
/// Largest pool: the group table's capacity with groups of 4 GiB, rounded down.
pub const POOL_BYTES_MAX: u64 = 1 << 51;
/// Most groups: 16,384 pages of the group table with 62 groups each.
pub const GROUPS_MAX: u64 = 16_384 * GROUPS_PER_TABLE_PAGE;
/// Bytes of added disk groups that the group table has room for, as a multiple of the first one.
const TABLE_ROOM: u64 = 8;
/// Most pages of one map of a group: the descriptor's bits.
pub const GROUP_MAP_PAGES_MAX: u32 = 64;
/// End of the fixed regions: a place can name pages up to here.
const FIXED_BYTES_MAX: u64 = 1 << 44;
/// Default largest group: 9 pages for each map, and 16,384 groups for 16 TiB.
pub const GROUP_BYTES_DEFAULT: u64 = 1 << 30;
/// Fewest pages of the double-write area: room for several transactions that move content.
pub const DOUBLE_WRITE_PAGES_MIN: u64 = 64;
/// Most pages of the double-write area.
pub const DOUBLE_WRITE_PAGES_MAX: u64 = 4096;
/// Entries in a head page of the double-write area.
pub const DOUBLE_WRITE_ENTRIES_PER_HEAD: u64 = 330;
/// Default journal: twice the bound of 32 MiB on the active log.
pub const JOURNAL_BYTES_DEFAULT: u64 = 64 << 20;
/// Smallest journal.
pub const JOURNAL_BYTES_MIN: u64 = 1 << 20;
/// Head pages of the journal: two heads, one whole while the other is written, in two copies.
pub const JOURNAL_HEADS: u64 = 4;
/// Adjacent copies of each journal head.
pub const JOURNAL_HEAD_COPIES: u64 = 2;

const PAGE: u64 = 4096;
const PAGE_SHIFT: u8 = 12;
const _: () = assert!(PAGE_BYTES == 4096);
const MIB: u64 = 1 << 20;
/// Largest segment: as many pages as one vectored write can have.
const SEGMENT_BYTES_MAX: u64 = 4 * MIB;

/// Geometry of a pool, stored in the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the pool; without stripes also those used of each device
    /// ([`Geometry::member_bytes`]).
    pub device_bytes: u64,
    /// Binary logarithm of the fragment size: 10, 11 or 12.
    pub fragment_shift: u8,
    /// Fragments of a segment.
    pub segment_fragments: u32,
    /// Fragments of a group; the last may have fewer.
    pub group_fragments: u32,
    /// Number of the main disk group.
    pub main: u8,
    /// First group of the main disk group.
    pub main_first: u32,
    /// Groups of the main disk group.
    pub group_count: u32,
    /// First byte of the journal.
    pub journal_offset: u64,
    /// Bytes of the journal, heads included.
    pub journal_bytes: u64,
    /// First byte of the double-write area.
    pub double_write_offset: u64,
    /// Pages of the double-write area without its heads.
    pub double_write_pages: u64,
    /// First byte of the group table.
    pub group_table_offset: u64,
    /// First byte of group 0, and of groups on members of the main disk group.
    pub groups_offset: u64,
    /// Stripes of the main disk group, if any.
    pub main_stripe: Option<StripeShape>,
    /// Whether the main disk group may hold data. It always may hold metadata.
    pub main_has_data: bool,
    /// Disk group of the journal, if not the main one.
    pub journal_group: Option<u8>,
    /// Group ranges of the other disk groups.
    pub added: Vec<GroupRange>,
    /// Reshape in progress in this label. Sizes and ends are those of the narrow stripes.
    pub reshape: Option<Reshape>,
    /// Allocation groups to give up before a disk group loses a member.
    pub last_groups: Option<EvacuatingGroups>,
}

/// Choices at creation.
#[derive(Clone, Debug)]
pub struct GeometryOptions {
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Bytes of a fragment: 1024, 2048 or 4096.
    pub fragment_bytes: u32,
    /// Bytes of a segment; by default 1 MiB, less in small pools.
    pub segment_bytes: Option<u64>,
    /// Bytes of a group; by default 1 GiB, less in small pools, 4 GiB past 512 TiB.
    pub group_bytes: Option<u64>,
    /// Bytes of the journal; by default 64 MiB, less in small pools.
    pub journal_bytes: Option<u64>,
}

/// Further disk groups of a pool at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdditionalDiskGroups {
    /// Stripe width of the first striped disk group among these. Segments are whole stripes of this
    /// width unless the first disk group is striped.
    pub stripe: Option<StripeWidth>,
    /// Capacity in bytes.
    pub bytes: u64,
}

/// Why a pool can't have this geometry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Choose a larger device.
    #[error("{bytes} bytes are too few for a pool: at least {POOL_BYTES_MIN}")]
    TooSmall {
        /// Bytes of the device.
        bytes: u64,
    },
    /// Choose a smaller size.
    #[error("{bytes} bytes are too many for a pool: at most {POOL_BYTES_MAX}")]
    TooLarge {
        /// Bytes of the device.
        bytes: u64,
    },
    /// Choose another value.
    #[error("{what} of {value} bytes: {rule}")]
    BadOption {
        /// Name of the option.
        what: &'static str,
        /// The rejected value.
        value: u64,
        /// The rule for the value.
        rule: &'static str,
    },
}

impl Geometry {
    /// Lays out a pool.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] for unusable options.
    pub fn plan(options: &GeometryOptions) -> Result<Geometry, GeometryError> {
        Geometry::plan_beside(options, &AdditionalDiskGroups::default())
    }

    /// Lays out an unstriped first disk group beside others.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] for unusable options.
    pub fn plan_beside(
        options: &GeometryOptions,
        beside: &AdditionalDiskGroups,
    ) -> Result<Geometry, GeometryError> {
        let mut wanted = options.clone();
        if let Some(width) = beside.stripe {
            wanted = Geometry::options_in_stripes(options, (width, options.device_bytes), beside)?;
        }
        Geometry::plan_with(&wanted, (beside.stripe, None), beside.bytes)
    }

    fn plan_with(
        options: &GeometryOptions,
        (stripe, main_stripe): (Option<StripeWidth>, Option<StripeShape>),
        beside_bytes: u64,
    ) -> Result<Geometry, GeometryError> {
        let bytes = options.device_bytes / PAGE * PAGE;
        if bytes < POOL_BYTES_MIN {
            return Err(GeometryError::TooSmall { bytes });
        }
        if bytes > POOL_BYTES_MAX {
            return Err(GeometryError::TooLarge { bytes });
        }
        let fragment_bytes = u64::from(options.fragment_bytes);
        if ![1024, 2048, 4096].contains(&fragment_bytes) {
            let rule = "a fragment is 1024, 2048 or 4096 bytes";
            return Err(GeometryError::BadOption { what: "fragment", value: fragment_bytes, rule });
        }
        let segment_bytes = options.segment_bytes.unwrap_or_else(|| default_segment_bytes(bytes));
        let all_bytes = bytes.saturating_add(beside_bytes);
        let group_bytes = options.group_bytes.unwrap_or_else(|| default_group_bytes(all_bytes));
        let journal_bytes =
            options.journal_bytes.unwrap_or_else(|| default_journal_bytes(bytes)) / PAGE * PAGE;
        check_options(bytes, (segment_bytes, stripe), group_bytes, journal_bytes)?;

        let journal_offset = 2 * SUPERBLOCK_AREA_BYTES;
        let double_write_offset = journal_offset + journal_bytes;
        let double_write_pages =
            (bytes / 256 / PAGE).clamp(DOUBLE_WRITE_PAGES_MIN, DOUBLE_WRITE_PAGES_MAX);
        let double_write_heads = double_write_pages.div_ceil(DOUBLE_WRITE_ENTRIES_PER_HEAD);
        let group_table_offset =
            double_write_offset + (double_write_pages + double_write_heads) * PAGE;
        let wanted = (all_bytes.div_ceil(group_bytes) * TABLE_ROOM).min(GROUPS_MAX);
        let table_pages = 1 + wanted.div_ceil(GROUPS_PER_TABLE_PAGE);
        let table_pages = table_pages + table_pages.div_ceil(u64::from(LSNS_PER_PAGE));
        let groups_offset = (group_table_offset + table_pages * PAGE).next_multiple_of(PAGE * 16);
        let narrow = |value: u64| u32::try_from(value).expect("options are checked");
        let whole = |shape: StripeShape| {
            let ends = groups_offset + 2 * SUPERBLOCK_AREA_BYTES;
            let rows = shape.rows_of_bytes(bytes.saturating_sub(ends), segment_bytes);
            ends + shape.bytes_of_rows(rows, segment_bytes)
        };
        let mut geometry = Geometry {
            device_bytes: main_stripe.map_or(bytes, whole),
            fragment_shift: u8::try_from(fragment_bytes.ilog2()).expect("10 to 12"),
            segment_fragments: narrow(segment_bytes / fragment_bytes),
            group_fragments: narrow(group_bytes / fragment_bytes),
            main: 0,
            main_first: 0,
            group_count: 0,
            journal_offset,
            journal_bytes,
            double_write_offset,
            double_write_pages,
            group_table_offset,
            groups_offset,
            main_stripe,
            main_has_data: true,
            journal_group: None,
            added: Vec::new(),
            reshape: None,
            last_groups: None,
        };
        let groups_end = bytes - 2 * SUPERBLOCK_AREA_BYTES;
        let group_count = geometry.groups_in(groups_end.saturating_sub(groups_offset));
        geometry.group_count = narrow(group_count);
        if geometry.map_pages() > GROUP_MAP_PAGES_MAX
            || geometry.lsn_pages() > LSN_PAGES_PER_GROUP_MAX
            || geometry.usage_pages() > GROUP_MAP_PAGES_MAX
            || u64::from(geometry.group_count) > GROUPS_MAX
        {
            let rule = "a group has at most 64 map pages (1.9 GiB with fragments of 1 KiB, 7.7 GiB \
                        with 4 KiB) and a pool at most 1,015,808 groups";
            return Err(GeometryError::BadOption { what: "group", value: group_bytes, rule });
        }
        if geometry.group_count == 0 || geometry.front_segments(0) + 4 > geometry.segments_of(0) {
            return Err(GeometryError::TooSmall { bytes });
        }
        Ok(geometry)
    }

    /// Checks a geometry read from disk.
    ///
    /// # Errors
    ///
    /// The name of the field out of its bounds.
    pub fn verify(&self) -> Result<(), &'static str> {
        self.verify_segments()?;
        let region_ends = [
            self.journal_offset.checked_add(self.journal_bytes),
            self.double_write_offset
                .checked_add(self.double_write_pages.saturating_mul(PAGE).saturating_mul(2)),
        ];
        let is_inside = |end: &Option<u64>| end.is_some_and(|end| end <= self.device_bytes);
        let table_room = self.group_table_pages() * GROUPS_PER_TABLE_PAGE;
        let checks = [
            (self.device_bytes >= POOL_BYTES_MIN, "device_bytes"),
            (self.device_bytes <= POOL_BYTES_MAX, "device_bytes"),
            (self.group_fragments >= self.segment_fragments, "group_fragments"),
            (self.group_fragments <= 1 << 30, "group_fragments"),
            (self.group_fragments.is_multiple_of(self.segment_fragments.max(1)), "group_fragments"),
            (self.group_count >= 1, "group_count"),
            (u64::from(self.group_count) <= GROUPS_MAX, "group_count"),
            (self.groups_offset <= FIXED_BYTES_MAX, "groups_offset"),
            (self.map_pages() <= GROUP_MAP_PAGES_MAX, "group_fragments"),
            (self.has_few_lsn_pages(), "group_fragments"),
            (self.has_few_usage_pages(), "segment_fragments"),
            (self.journal_bytes >= JOURNAL_BYTES_MIN, "journal_bytes"),
            (self.journal_offset.is_multiple_of(PAGE), "journal_offset"),
            (self.double_write_offset.is_multiple_of(PAGE), "double_write_offset"),
            (self.double_write_pages >= DOUBLE_WRITE_PAGES_MIN, "double_write_pages"),
            (self.double_write_pages <= DOUBLE_WRITE_PAGES_MAX, "double_write_pages"),
            (self.group_table_offset.is_multiple_of(PAGE), "group_table_offset"),
            (self.groups_offset.is_multiple_of(PAGE), "groups_offset"),
            (region_ends.iter().all(is_inside), "regions"),
            (table_room >= u64::from(self.group_count), "group_table_offset"),
            (self.groups_offset < self.device_bytes, "groups_offset"),
        ];
        if let Some(&(_, field)) = checks.iter().find(|(holds, _)| !holds) {
            return Err(field);
        }
        let last_start = self.groups_offset.saturating_add(
            u64::from(self.group_count - 1)
                .saturating_mul(u64::from(self.group_fragments) << self.fragment_shift),
        );
        if last_start.saturating_add(8 * self.segment_bytes()) > self.groups_end() {
            return Err("group_count");
        }
        self.group_layout().verify_added()
    }

    fn has_few_usage_pages(&self) -> bool {
        self.segment_fragments > 0 && self.usage_pages() <= GROUP_MAP_PAGES_MAX
    }

    fn has_few_lsn_pages(&self) -> bool {
        (10..=12).contains(&self.fragment_shift) && self.lsn_pages() <= LSN_PAGES_PER_GROUP_MAX
    }

    fn groups_end(&self) -> u64 {
        self.device_bytes - 2 * SUPERBLOCK_AREA_BYTES
    }

    /// Whether files may have blocks of `1 << shift` bytes: a segment must hold four.
    #[must_use]
    pub fn can_have_blocks(&self, shift: u8) -> bool {
        let segment_bytes = u64::from(self.segment_fragments) << self.fragment_shift;
        BLOCK_SHIFTS.contains(&shift) && segment_bytes >= 4 << shift
    }

    /// Returns the bytes of a fragment.
    #[must_use]
    pub fn fragment_bytes(&self) -> u64 {
        1 << self.fragment_shift
    }

    /// Returns the fragments of a page.
    #[must_use]
    pub fn page_fragments(&self) -> u32 {
        1 << (12 - self.fragment_shift)
    }

    /// Returns the bytes of a segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_fragments) << self.fragment_shift
    }

    /// Returns the byte offset of `group` in the pool.
    #[must_use]
    pub fn group_offset(&self, group: u32) -> u64 {
        self.groups_offset
            + u64::from(group) * (u64::from(self.group_fragments) << self.fragment_shift)
    }

    /// Returns the fragments of `group`: fewer in the last of a disk group, 0 if there is no such
    /// group.
    #[must_use]
    pub fn fragments_of(&self, group: u32) -> u32 {
        if !self.group_layout().main_numbers().contains(&group) {
            let range = self.group_layout().range_of(group);
            let is_last = |range: &GroupRange| group + 1 == range.numbers().end;
            let of = |range: &GroupRange| match is_last(range) {
                true => range.last_fragments,
                false => self.group_fragments,
            };
            return range.map_or(0, of);
        }
        let before = u64::from(group - self.main_first) * self.group_bytes();
        let bytes = self.groups_end().saturating_sub(self.groups_offset + before);
        let whole = bytes / self.segment_bytes() * u64::from(self.segment_fragments);
        self.group_fragments.min(u32::try_from(whole).unwrap_or(u32::MAX))
    }

    /// Returns the segments of `group`.
    #[must_use]
    pub fn segments_of(&self, group: u32) -> u32 {
        self.fragments_of(group) / self.segment_fragments
    }

    /// Returns the pages of each bitmap of a group.
    #[must_use]
    pub fn map_pages(&self) -> u32 {
        self.group_fragments.div_ceil(BITS_PER_PAGE)
    }

    /// Returns the pages of segment usage of a group.
    #[must_use]
    pub fn usage_pages(&self) -> u32 {
        (self.group_fragments / self.segment_fragments).div_ceil(USAGES_PER_PAGE)
    }

    /// Returns the place of the descriptor of `group`.
    #[must_use]
    pub fn descriptor_place(&self, group: u32) -> Place {
        Place::new(0, group, 0)
    }

    /// Returns the place of page `index` of the free map.
    #[must_use]
    pub fn free_map_place(&self, group: u32, index: u32) -> Place {
        self.page_place(group, 1 + index)
    }

    /// Returns the place of page `index` of the busy map.
    #[must_use]
    pub fn busy_map_place(&self, group: u32, index: u32) -> Place {
        self.page_place(group, 1 + self.map_pages() + index)
    }

    /// Returns the place of page `index` of the segment usage.
    #[must_use]
    pub fn usage_place(&self, group: u32, index: u32) -> Place {
        self.page_place(group, 1 + 2 * self.map_pages() + index)
    }

    /// Returns the LSN pages of a full group.
    #[must_use]
    pub fn lsn_pages(&self) -> u32 {
        self.group_fragments.div_ceil(self.page_fragments()).div_ceil(LSNS_PER_PAGE)
    }

    /// Returns the place of LSN page `index` of `group`.
    #[must_use]
    pub fn lsn_page_place(&self, group: u32, index: u32) -> Place {
        self.page_place(group, self.lsn_pages_start() + index)
    }

    fn lsn_pages_start(&self) -> u32 {
        2 + 2 * self.map_pages() + self.usage_pages()
    }

    /// Returns the LSN pages that cover `segment`.
    #[must_use]
    pub fn lsn_pages_of_segment(&self, segment: u32) -> std::ops::Range<u32> {
        let pages = self.segment_fragments / self.page_fragments();
        segment * pages / LSNS_PER_PAGE..((segment + 1) * pages).div_ceil(LSNS_PER_PAGE)
    }

    /// Returns the position of a page's LSN; `None` for LSN pages, other fixed regions, and places
    /// without a page.
    #[must_use]
    pub fn lsn_entry(&self, place: Place) -> Option<LsnEntry> {
        if place.disk_group() == FIXED_DISK_GROUP {
            let root = self.group_table_root_place().fragment();
            let page = u64::from(place.fragment().checked_sub(root)?);
            let is_in_table = page < self.group_table_root_pages() && place.group() == 0;
            return is_in_table.then(|| {
                let (index, slot) = LsnEntry::position(u32::try_from(page).unwrap_or(u32::MAX));
                LsnEntry { page: self.group_table_lsn_place(index), index: u64::from(index), slot }
            });
        }
        let page = place.fragment() / self.page_fragments();
        let is_page = place.fragment().is_multiple_of(self.page_fragments())
            && self.device_offset(place, self.page_fragments()).is_some();
        if !is_page || self.is_lsn_page(place) {
            return None;
        }
        let (index, slot) = LsnEntry::position(page);
        let group = place.group();
        let at = self.lsn_page_place(group, index);
        Some(LsnEntry { page: at, index: u64::from(group) << 16 | u64::from(index), slot })
    }

    /// Whether `place` is that of an LSN page.
    #[must_use]
    pub fn is_lsn_page(&self, place: Place) -> bool {
        if place.disk_group() == FIXED_DISK_GROUP {
            let first = self.group_table_lsn_place(0).fragment();
            let page = place.fragment().checked_sub(first).map(u64::from);
            return page.is_some_and(|page| page < self.group_table_lsn_pages());
        }
        let (start, step) = (self.lsn_pages_start(), self.page_fragments());
        let in_segment = place.fragment() % self.segment_fragments;
        let (index, pages) = (in_segment / step, self.metadata_pages(place.group()));
        let page = self.segment_of(place) * pages + index;
        index < pages
            && in_segment.is_multiple_of(step)
            && (start..start + self.lsn_pages()).contains(&page)
    }

    /// Returns the first fragment of `group` that a file may use.
    #[must_use]
    pub fn front_fragments(&self, group: u32) -> u32 {
        self.page_fragment(group, self.group_layout().kept_pages(group))
    }

    /// Returns the metadata segments under the front of `group`.
    #[must_use]
    pub fn front_segments(&self, group: u32) -> u32 {
        self.front_segments_in(self.group_layout().stripe_of(group))
    }

    pub(crate) fn front_segments_in(&self, stripe: Option<StripeShape>) -> u32 {
        // The pool's root page follows the front of the first group (DG5).
        (self.front_pages() + 1).div_ceil(self.pages_of_segment(stripe))
    }

    /// Returns the place of the next page. Places in fixed regions count pages, others fragments.
    #[must_use]
    pub fn page_behind(&self, place: Place) -> Place {
        let is_fixed = place.disk_group() == FIXED_DISK_GROUP;
        place.advance(if is_fixed { 1 } else { self.page_fragments() })
    }

    /// Returns the place for byte `offset` of a fixed region.
    #[must_use]
    pub fn fixed_place(offset: u64) -> Place {
        let page = u32::try_from(offset / PAGE).expect("fixed regions lie in the first 16 TiB");
        Place::new(FIXED_DISK_GROUP, 0, page)
    }

    /// Returns the place of the group table's root.
    #[must_use]
    pub fn group_table_root_place(&self) -> Place {
        Self::fixed_place(self.group_table_offset)
    }

    /// Returns the place of the group table page with `group`.
    #[must_use]
    pub fn group_table_place(&self, group: u32) -> Place {
        let index = u64::from(group) / GROUPS_PER_TABLE_PAGE;
        Self::fixed_place(self.group_table_offset + (1 + index) * PAGE)
    }

    /// Returns the group table's pages without its root: all the room in front of the groups.
    #[must_use]
    pub fn group_table_pages(&self) -> u64 {
        let pages = self.groups_offset.saturating_sub(self.group_table_offset) / PAGE;
        let lsn_pages = pages.div_ceil(u64::from(LSNS_PER_PAGE) + 1);
        (pages - lsn_pages).saturating_sub(1).min(GROUPS_MAX / GROUPS_PER_TABLE_PAGE)
    }

    /// Returns the group table's pages with its root.
    #[must_use]
    pub fn group_table_root_pages(&self) -> u64 {
        1 + self.group_table_pages()
    }

    /// Returns the LSN pages of the group table, which follow it.
    #[must_use]
    pub fn group_table_lsn_pages(&self) -> u64 {
        self.group_table_root_pages().div_ceil(u64::from(LSNS_PER_PAGE))
    }

    /// Returns the place of LSN page `index` of the group table.
    #[must_use]
    pub fn group_table_lsn_place(&self, index: u32) -> Place {
        let behind = self.group_table_root_pages() + u64::from(index);
        Self::fixed_place(self.group_table_offset + behind * PAGE)
    }

    /// Returns the head pages of the double-write area.
    #[must_use]
    pub fn double_write_heads(&self) -> u64 {
        self.double_write_pages.div_ceil(DOUBLE_WRITE_ENTRIES_PER_HEAD)
    }

    /// Returns the byte offset of `count` fragments; `None` unless one group or the fixed regions
    /// contain them.
    #[must_use]
    pub fn device_offset(&self, place: Place, count: u32) -> Option<u64> {
        if place.disk_group() == FIXED_DISK_GROUP {
            let offset = u64::from(place.fragment()) * PAGE;
            let end = offset + u64::from(count) * self.fragment_bytes();
            return (end <= self.groups_offset && place.group() == 0).then_some(offset);
        }
        if place.disk_group() != 0 || !self.group_layout().has_group(place.group()) {
            return None;
        }
        let end = place.fragment().checked_add(count)?;
        let offset = u64::from(place.fragment()) << self.fragment_shift;
        (end <= self.fragments_of(place.group())).then(|| self.group_offset(place.group()) + offset)
    }

    /// Returns the place at byte `offset` of the pool, if a group has it.
    #[must_use]
    pub fn place_at(&self, offset: u64) -> Option<Place> {
        let behind = offset.checked_sub(self.groups_offset)?;
        let group_bytes = u64::from(self.group_fragments) << self.fragment_shift;
        let group = u32::try_from(behind / group_bytes).ok()?;
        let fragment = u32::try_from((behind % group_bytes) >> self.fragment_shift).ok()?;
        let is_inside = group < 1 << 24 && fragment < self.fragments_of(group);
        is_inside.then(|| Place::new(0, group, fragment))
    }

    /// Returns the segment with `place`.
    #[must_use]
    pub fn segment_of(&self, place: Place) -> u32 {
        place.fragment() / self.segment_fragments
    }

    /// Returns the place of the first fragment of `segment`.
    #[must_use]
    pub fn segment_place(&self, group: u32, segment: u32) -> Place {
        Place::new(0, group, segment * self.segment_fragments)
    }

    /// Returns the byte offset of superblock copy `copy` on a device of `device_bytes`.
    #[must_use]
    pub fn superblock_offset(device_bytes: u64, copy: u16) -> u64 {
        let end = device_bytes / PAGE * PAGE;
        match copy {
            0 => 0,
            1 => SUPERBLOCK_AREA_BYTES,
            2 => end - 2 * SUPERBLOCK_AREA_BYTES,
            _ => end - SUPERBLOCK_AREA_BYTES,
        }
    }
}

fn check_options(
    device_bytes: u64,
    (segment_bytes, stripe): (u64, Option<StripeWidth>),
    group_bytes: u64,
    journal_bytes: u64,
) -> Result<(), GeometryError> {
    let bad = |what, value, rule| Err(GeometryError::BadOption { what, value, rule });
    if let Some(width) = stripe {
        let is_whole = segment_bytes.is_multiple_of(width.data_bytes().saturating_mul(2).max(1));
        if !is_whole || !(64 << 10..=SEGMENT_BYTES_MAX).contains(&segment_bytes) {
            let rule = "a segment is an even number of stripes, from 64 KiB to 4 MiB";
            return bad("segment", segment_bytes, rule);
        }
    } else if !segment_bytes.is_power_of_two()
        || !(128 << 10..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
    {
        let rule = "a segment is a power of two from 128 KiB to 4 MiB";
        return bad("segment", segment_bytes, rule);
    }
    if !group_bytes.is_multiple_of(segment_bytes)
        || !(16 * segment_bytes..=1 << 40).contains(&group_bytes)
    {
        let rule = "a group is whole segments, at least 16 of them";
        return bad("group", group_bytes, rule);
    }
    if !(JOURNAL_BYTES_MIN..=device_bytes / 4).contains(&journal_bytes) {
        let rule = "a journal is at least 1 MiB and at most a quarter of the device";
        return bad("journal", journal_bytes, rule);
    }
    Ok(())
}

runtime::view! {
    /// The places of disk groups in a geometry.
    pub struct GroupLayout of Geometry;
    /// Returns the places of disk groups.
    fn group_layout;
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn options(device_bytes: u64, fragment_bytes: u32) -> GeometryOptions {
        GeometryOptions {
            device_bytes,
            fragment_bytes,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        }
    }

    #[test]
    fn regions_of_pools_of_all_sizes_do_not_overlap() {
        for shift in 23..=51 {
            for fragment_bytes in [1024, 2048, 4096] {
                // In pools past 512 TiB the groups are too long for small fragments.
                if shift > 49 && fragment_bytes < 4096 {
                    continue;
                }
                for odd in [0, 12_345_678] {
                    let bytes = ((1_u64 << shift) + odd)
                        .min(POOL_BYTES_MAX >> (if fragment_bytes < 4096 { 2 } else { 0 }));
                    let geometry = Geometry::plan(&options(bytes, fragment_bytes)).expect("fits");
                    assert_eq!(geometry.verify(), Ok(()), "{bytes} {geometry:?}");
                    let last = geometry.group_count - 1;
                    let end = geometry.group_offset(last)
                        + (u64::from(geometry.fragments_of(last)) << geometry.fragment_shift);
                    assert!(end <= geometry.groups_end(), "{bytes} {geometry:?}");
                    let place = Place::new(0, last, geometry.fragments_of(last) - 1);
                    let offset = geometry.device_offset(place, 1).expect("inside");
                    assert_eq!(geometry.place_at(offset), Some(place));
                    assert_eq!(geometry.device_offset(place, 2), None);
                }
            }
        }
    }

    #[test]
    fn the_page_behind_a_page_is_the_next_one_on_the_device() {
        for fragment_bytes in [1024, 2048, 4096] {
            let geometry = Geometry::plan(&options(64 << 20, fragment_bytes)).expect("fits");
            for place in [geometry.group_table_root_place(), geometry.group_layout().root_place()] {
                let offset = |place| geometry.device_offset(place, geometry.page_fragments());
                let behind = offset(geometry.page_behind(place));
                assert_eq!(behind, offset(place).map(|offset| offset + PAGE), "{fragment_bytes}");
            }
        }
    }

    /// Goal: pages have distinct LSN entries, LSN pages none.
    #[test]
    fn each_page_has_an_lsn_of_its_own() {
        for fragment_bytes in [1024, 4096] {
            let geometry = Geometry::plan(&options(64 << 20, fragment_bytes)).expect("fits");
            let step = geometry.page_fragments();
            let mut seen = std::collections::BTreeSet::new();
            for group in 0..geometry.group_count {
                for page in 0..geometry.fragments_of(group) / step {
                    let place = Place::new(0, group, page * step);
                    let Some(entry) = geometry.lsn_entry(place) else { continue };
                    assert!(seen.insert((entry.page, entry.slot)), "{place}");
                    assert_eq!(geometry.lsn_entry(entry.page), None, "{place}");
                    assert!(geometry.is_lsn_page(entry.page) && !geometry.is_lsn_page(place));
                    let segment = geometry.segment_of(place);
                    let index = u32::try_from(entry.index & 0xffff).expect("16 bits");
                    assert!(geometry.lsn_pages_of_segment(segment).contains(&index), "{place}");
                    if fragment_bytes == 1024 {
                        assert_eq!(geometry.lsn_entry(place.advance(1)), None, "no page");
                    }
                }
                let pages = geometry.fragments_of(group) / step - geometry.lsn_pages();
                assert_eq!(u64::try_from(seen.len()).ok(), Some(u64::from(pages)), "{group}");
                seen.clear();
            }
            let root = geometry.group_table_root_place();
            assert_eq!(geometry.lsn_entry(root).expect("it has one").slot, 0);
            assert_eq!(geometry.lsn_entry(geometry.group_table_place(0)).expect("has").slot, 1);
            assert_eq!(geometry.lsn_entry(geometry.group_table_lsn_place(0)), None);
        }
    }

    #[test]
    fn absurd_options_are_refused() {
        assert!(Geometry::plan(&options(POOL_BYTES_MIN - 1, 4096)).is_err());
        assert!(Geometry::plan(&options(POOL_BYTES_MAX + 4096, 4096)).is_err());
        assert!(Geometry::plan(&options(1 << 30, 512)).is_err());
        for value in [0, 1, 4095, 1 << 60, u64::MAX] {
            let base = options(1 << 30, 4096);
            let value = Some(value);
            let tries = [
                GeometryOptions { segment_bytes: value, ..base.clone() },
                GeometryOptions { group_bytes: value, ..base.clone() },
                GeometryOptions { journal_bytes: value, ..base },
            ];
            for options in &tries {
                assert!(Geometry::plan(options).is_err(), "{options:?}");
            }
        }
    }
}
