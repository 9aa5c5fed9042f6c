//! Geometry with stripes: lengths of pool and segments, and pages in metadata segments.

use std::ops::Range;

use super::{
    AdditionalDiskGroups, Geometry, GeometryError, GeometryOptions, MIB, PAGE, PAGE_SHIFT,
    SEGMENT_BYTES_MAX, SUPERBLOCK_AREA_BYTES, default_group_bytes, default_journal_bytes,
};
use crate::ids::Place;
use crate::stripes::{ExcludedMembers, StripeShape, StripeWidth, Stripes};

impl Geometry {
    /// Lays out a pool in stripes of `shape`, on members of `options.device_bytes` or more.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] for unusable options.
    pub fn plan_striped(
        options: &GeometryOptions,
        shape: StripeShape,
    ) -> Result<Geometry, GeometryError> {
        Geometry::plan_striped_beside(options, shape, &AdditionalDiskGroups::default())
    }

    /// Lays out a striped first disk group beside others.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] for unusable options.
    pub fn plan_striped_beside(
        options: &GeometryOptions,
        shape: StripeShape,
        beside: &AdditionalDiskGroups,
    ) -> Result<Geometry, GeometryError> {
        let member_bytes = options.device_bytes / PAGE * PAGE;
        let too_small = || GeometryError::TooSmall { bytes: options.device_bytes };
        let width = shape.width();
        let pool_bytes = member_bytes.saturating_mul(u64::from(width.units));
        let mut wanted = Geometry::options_in_stripes(options, (width, pool_bytes), beside)?;
        wanted.device_bytes = pool_bytes;
        let planned = Geometry::plan_with(&wanted, (Some(width), Some(shape)), beside.bytes)?;
        let segment_bytes = planned.segment_bytes();
        let ends = planned.groups_offset + 2 * SUPERBLOCK_AREA_BYTES;
        let mut rows = member_bytes.checked_sub(ends).ok_or_else(too_small)? >> shape.unit_shift;
        // Rounding may need more rows than there are: reduce them until the pool fits.
        loop {
            wanted.device_bytes = ends + shape.bytes_of_rows(rows, segment_bytes);
            let planned = Geometry::plan_with(&wanted, (Some(width), Some(shape)), beside.bytes)?;
            if planned.member_bytes() <= member_bytes {
                // Smaller fixed regions may leave room for one more segment.
                return Ok(planned.grown(member_bytes).0);
            }
            rows = rows.checked_sub(1).ok_or_else(too_small)?;
        }
    }

    /// Returns the options for segments of whole stripes of `width`.
    pub(super) fn options_in_stripes(
        options: &GeometryOptions,
        (width, first_bytes): (StripeWidth, u64),
        beside: &AdditionalDiskGroups,
    ) -> Result<GeometryOptions, GeometryError> {
        if options.fragment_bytes != 4096 {
            let rule = "a pool in stripes has fragments of 4096 bytes";
            let value = u64::from(options.fragment_bytes);
            return Err(GeometryError::BadOption { what: "fragment", value, rule });
        }
        let data = u64::from(width.units).max(1);
        let all_bytes = first_bytes.saturating_add(beside.bytes);
        let default = || default_striped_segment(all_bytes / data, data, width.data_bytes());
        let segment_bytes = options.segment_bytes.unwrap_or_else(default);
        let group_bytes = options.group_bytes.unwrap_or_else(|| default_group_bytes(all_bytes));
        let group_bytes = (group_bytes / segment_bytes.max(1)).max(16) * segment_bytes;
        let member_bytes = options.device_bytes / PAGE * PAGE;
        let journal_bytes =
            options.journal_bytes.unwrap_or_else(|| default_journal_bytes(member_bytes));
        Ok(GeometryOptions {
            segment_bytes: Some(segment_bytes),
            group_bytes: Some(group_bytes),
            journal_bytes: Some(journal_bytes),
            ..options.clone()
        })
    }

    /// Checks the fields for the segment length, before any use of it, and names the one at fault.
    pub(crate) fn verify_segments(&self) -> Result<(), &'static str> {
        let checks = [
            ((10..=12).contains(&self.fragment_shift), "fragment_shift"),
            (self.has_whole_segments(), "segment_fragments"),
            ((16..=4096).contains(&self.segment_fragments), "segment_fragments"),
        ];
        let wrong = checks.into_iter().find(|(holds, _)| !holds);
        wrong.map_or(Ok(()), |(_, field)| Err(field))
    }

    /// Whether the segment length is valid: with fragments of a page even, for the two copies in
    /// stripes; else a power of two.
    pub(super) fn has_whole_segments(&self) -> bool {
        if self.fragment_shift == PAGE_SHIFT {
            return self.segment_fragments.is_multiple_of(2);
        }
        self.segment_fragments.is_power_of_two()
    }

    /// Whether the pool can have striped disk groups: its fragments are pages.
    #[must_use]
    pub fn can_have_stripes(&self) -> bool {
        self.fragment_shift == PAGE_SHIFT
    }

    /// Whether a disk group is in stripes.
    #[must_use]
    pub fn has_stripes(&self) -> bool {
        self.main_stripe.is_some() || self.added.iter().any(|range| range.stripe.is_some())
    }

    /// Returns the bytes used of each member of the main disk group.
    #[must_use]
    pub fn member_bytes(&self) -> u64 {
        let Some(shape) = self.main_stripe else { return self.device_bytes };
        let ends = self.groups_offset.saturating_add(2 * SUPERBLOCK_AREA_BYTES);
        let groups_bytes = self.device_bytes.saturating_sub(ends);
        let rows = shape.rows_of_bytes(groups_bytes, self.segment_bytes());
        ends.saturating_add(rows << shape.unit_shift)
    }

    /// Sets the stripes and the length of the main disk group.
    pub(crate) fn reshape_main(&mut self, shape: StripeShape, bytes: u64) {
        self.main_stripe = Some(shape);
        self.device_bytes = self.groups_offset + bytes + 2 * SUPERBLOCK_AREA_BYTES;
    }

    /// Returns the bytes of a striped disk group on `member_bytes` of each member.
    #[must_use]
    pub fn striped_bytes(&self, member_bytes: u64, groups_offset: u64, shape: StripeShape) -> u64 {
        let ends = groups_offset.saturating_add(2 * SUPERBLOCK_AREA_BYTES);
        let rows = member_bytes.saturating_sub(ends) >> shape.unit_shift;
        ends.saturating_add(shape.bytes_of_rows(rows, self.segment_bytes()))
    }

    /// Returns the stripe mapping of the main disk group, if it is striped.
    #[must_use]
    pub fn stripes(&self) -> Option<Stripes> {
        let shape = self.main_stripe?;
        let segment_bytes = self.segment_bytes();
        Some(Stripes {
            shape,
            groups_offset: self.groups_offset,
            segment_bytes,
            without: ExcludedMembers::NONE,
        })
    }

    /// Returns the alignment of partial segment ends in fragments: a stripe, or a page.
    #[must_use]
    pub fn stripe_fragments(&self, group: u32) -> u32 {
        let Some(shape) = self.group_layout().stripe_of(group) else {
            return self.page_fragments();
        };
        let own = shape.data_bytes() >> self.fragment_shift;
        // A reshape may move the segment before the end is used, so it must align in both widths.
        let is_moved =
            self.group_layout().disk_group_of(group).is_some_and(|number| self.is_reshaped(number));
        let both = match is_moved {
            true => {
                let wide = shape.wider().data_bytes() >> self.fragment_shift;
                least_common_multiple(own, wide)
            }
            false => own,
        };
        u32::try_from(both).unwrap_or(u32::MAX).min(self.segment_fragments)
    }

    /// Returns the first stripe end at or behind fragment `at` of a segment.
    #[must_use]
    pub fn stripe_end(&self, group: u32, at: u32) -> u32 {
        at.next_multiple_of(self.stripe_fragments(group)).min(self.segment_fragments.max(at))
    }

    /// Returns the bytes of the whole stripes around `range` of a segment.
    #[must_use]
    pub fn stripes_around(&self, group: u32, range: &Range<u64>) -> Range<u64> {
        let stripe = u64::from(self.stripe_fragments(group)) << self.fragment_shift;
        let end = range.end.next_multiple_of(stripe.max(1));
        range.start / stripe.max(1) * stripe..end.min(self.segment_bytes())
    }

    /// Returns the fragments of a metadata segment for pages: in stripes half, for two copies.
    #[must_use]
    pub fn metadata_fragments(&self, group: u32) -> u32 {
        self.pages_of_segment(self.group_layout().stripe_of(group)) * self.page_fragments()
    }

    pub(super) fn pages_of_segment(&self, stripe: Option<StripeShape>) -> u32 {
        let pages = self.segment_fragments / self.page_fragments();
        if stripe.is_some() { pages / 2 } else { pages }
    }

    /// Returns the unusable fragments of a metadata segment.
    #[must_use]
    pub fn metadata_gap(&self, group: u32) -> u32 {
        self.segment_fragments - self.metadata_fragments(group)
    }

    /// Returns the pages of a metadata segment of `group`.
    #[must_use]
    pub fn metadata_pages(&self, group: u32) -> u32 {
        self.pages_of_segment(self.group_layout().stripe_of(group))
    }

    pub(super) fn page_fragment(&self, group: u32, index: u32) -> u32 {
        let pages = self.metadata_pages(group);
        let segment = index / pages;
        let in_segment = index % pages * self.page_fragments();
        segment * self.segment_fragments + in_segment
    }

    /// Returns the place of page `index` of `group`, its descriptor being page 0. In stripes
    /// metadata segments have gaps.
    #[must_use]
    pub fn page_place(&self, group: u32, index: u32) -> Place {
        Place::new(0, group, self.page_fragment(group, index))
    }

    /// Returns the pages of the front of a group.
    #[must_use]
    pub fn front_pages(&self) -> u32 {
        self.lsn_pages_start() + self.lsn_pages()
    }
}

fn least_common_multiple(one: u64, other: u64) -> u64 {
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    one / divisor.max(1) * other
}

/// Returns the default segment length. Its number of rows is
///
/// 1. large enough that little of the last stripe of a flush is empty, and
/// 2. large enough that one more member makes it smaller, and so adds room.
fn default_striped_segment(member_bytes: u64, data: u64, stripe_bytes: u64) -> u64 {
    let rows_max = (SEGMENT_BYTES_MAX / stripe_bytes.max(1) / 2 * 2).max(2);
    let to_gain = Some(2 * (data + 1)).filter(|rows| *rows <= rows_max);
    let (wanted, rows_min) = match member_bytes >= 256 * MIB {
        true => (MIB, to_gain.unwrap_or(0).max(8)),
        false => (128 << 10, 4),
    };
    (wanted / stripe_bytes.max(1) / 2 * 2).max(rows_min).min(rows_max) * stripe_bytes
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::*;

    /// Goal: striped pools of any width fit their members and use nearly all of them.
    #[test]
    fn pools_in_stripes_fit_on_their_members() {
        let widths = [3, 4, 5, 7, 8, 11, 16, 32].map(|members| (members, true));
        for (members, has_parity) in
            widths.into_iter().chain([2, 3, 4, 8, 10, 31].map(|m| (m, false)))
        {
            for unit_shift in [12, 14, 16] {
                let shape = StripeShape { members, unit_shift, has_parity };
                for member_bytes in [64 << 20, (300 << 20) + 12_345, 8 << 30, 1 << 40] {
                    let options = options(member_bytes, 4096);
                    let geometry = Geometry::plan_striped(&options, shape).expect("it fits");
                    assert_eq!(geometry.verify(), Ok(()), "{geometry:?}");
                    let used = geometry.member_bytes();
                    assert!(used <= member_bytes, "{geometry:?}");
                    let again = geometry.striped_bytes(used, geometry.groups_offset, shape);
                    assert_eq!(again, geometry.device_bytes, "{geometry:?}");
                    let (grown, _) = geometry.grown(member_bytes);
                    assert_eq!(grown, geometry, "it uses all from the beginning");
                    let stripes = geometry.stripes().expect("it has stripes");
                    assert!(stripes.segment_rows().is_multiple_of(2), "{geometry:?}");
                    let wider = shape.wider().segment_rows(geometry.segment_bytes());
                    let rows = 2 * ((shape.data_bytes() >> unit_shift) + 1);
                    let fits = rows * shape.data_bytes() <= SEGMENT_BYTES_MAX;
                    let can_gain = fits && member_bytes >= 256 * MIB;
                    assert!(wider < stripes.segment_rows() || !can_gain, "{geometry:?}");
                    let last = geometry.group_count - 1;
                    let end = Place::new(0, last, geometry.fragments_of(last) - 1);
                    let end = geometry.device_offset(end, 1).expect("inside");
                    let unit = stripes.locate(end).expect("in the groups");
                    assert!(unit.member_offset + PAGE <= used - 2 * SUPERBLOCK_AREA_BYTES);
                    assert!(end > geometry.device_bytes * 9 / 10, "{geometry:?}");
                    for index in 0..geometry.front_pages() + 4 {
                        let place = geometry.page_place(0, index);
                        let offset = geometry.device_offset(place, 1).expect("inside");
                        let first = stripes.locate(offset).expect("in the groups");
                        assert!(stripes.second_copy(&first).is_some(), "{index} {geometry:?}");
                        assert!(geometry.segment_of(place) < 1 + geometry.front_segments(0));
                    }
                    let lsn = geometry.lsn_page_place(0, geometry.lsn_pages() - 1);
                    assert!(geometry.is_lsn_page(lsn));
                    assert!(!geometry.is_lsn_page(geometry.group_layout().root_place()));
                }
            }
        }
        let shape = StripeShape { members: 4, unit_shift: 14, has_parity: true };
        for bad in [options(1 << 30, 1024), options(1 << 20, 4096)] {
            assert!(Geometry::plan_striped(&bad, shape).is_err(), "{bad:?}");
        }
        let odd = GeometryOptions { segment_bytes: Some(1 << 20), ..options(1 << 30, 4096) };
        assert!(Geometry::plan_striped(&odd, shape).is_err(), "1 MiB is not whole stripes");
    }
}
