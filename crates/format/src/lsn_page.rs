//! LSN pages: the LSN of each metadata page at its last write-back, apart from the page.
//!
//! They detect lost writes: an old version of a page passes its checksum, but has another LSN.
//!
//! # Layout
//!
//! An LSN page has the lower 32 bits of the LSNs of [`LSNS_PER_PAGE`] consecutive pages of a group;
//! 0 is unknown. `Geometry::lsn_entry` locates a page's entry.
//!
//! # Invariants
//!
//! - LP1: The LSN of an LSN page exceeds every LSN added since its previous version.
//! - LP2: A checkpoint enters the LSN of a page before its write-back.
//! - LP3: If the LSN of a page exceeds that of its LSN page, the write of the LSN page was lost.

use crate::ids::{Lsn, Place, PoolId};
use crate::page::{
    PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, read_u32,
};

/// Pages that an LSN page covers: 3.875 MiB of a group.
pub const LSNS_PER_PAGE: u32 = 992;
const LSN_ENTRY_BYTES: usize = 4;
/// Most LSN pages of a group: the descriptor has a bit for each.
pub const LSN_PAGES_PER_GROUP_MAX: u32 = 2048;

const _: () = assert!(PAGE_BODY_BYTES / LSN_ENTRY_BYTES == 992);

/// Location of a page's LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsnEntry {
    /// The LSN page.
    pub page: Place,
    /// Index in the page header: group and number in it, or number in the group table.
    pub index: u64,
    /// Entry in the LSN page.
    pub slot: u32,
}

impl LsnEntry {
    pub(crate) fn position(page: u32) -> (u32, u32) {
        (page / LSNS_PER_PAGE, page % LSNS_PER_PAGE)
    }

    /// Returns the owner in the LSN page's header.
    #[must_use]
    pub fn owner(&self) -> PageOwner {
        PageOwner { index: self.index, ..PageOwner::default() }
    }

    /// Returns the offset of the entry in the LSN page.
    #[must_use]
    pub fn offset(&self) -> usize {
        let slot = usize::try_from(self.slot).expect("below 992");
        PAGE_HEADER_BYTES + slot * LSN_ENTRY_BYTES
    }

    /// Returns the entry: the lower bits of the LSN, or `None` if unknown.
    #[must_use]
    pub fn listed(&self, lsn_page: &PageBytes) -> Option<u32> {
        Some(read_u32(lsn_page, self.offset())).filter(|listed| *listed != 0)
    }

    /// Enters `lsn` in `bytes`, which are those of the LSN page from byte `from` on.
    pub fn list(&self, bytes: &mut [u8], from: usize, lsn: Lsn) {
        let at = self.offset() - from;
        bytes[at..at + LSN_ENTRY_BYTES].copy_from_slice(&lower_bits(lsn).to_le_bytes());
    }
}

/// Returns the lower bits of an LSN.
#[must_use]
pub fn lower_bits(lsn: Lsn) -> u32 {
    u32::try_from(lsn.0 & u64::from(u32::MAX)).expect("32 bits are left")
}

/// Result of comparing a page with its LSN page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LsnComparison {
    /// The page is current, or its LSN is unknown.
    Current,
    /// The page is old: its last write was lost, or a lost write elsewhere was over it.
    Stale {
        /// Lower bits of the LSN in the LSN page.
        listed: u32,
    },
    /// The LSN page is older than the page: the LSN page's write was lost.
    LsnPageStale,
}

/// Compares LSN `found` of a page with that in its LSN page (LP3).
#[must_use]
pub fn compare(entry: &LsnEntry, lsn_page: &PageBytes, found: Lsn) -> LsnComparison {
    match entry.listed(lsn_page) {
        None => LsnComparison::Current,
        Some(listed) if listed == lower_bits(found) => LsnComparison::Current,
        Some(_) if found > crate::page::page_lsn(lsn_page) => LsnComparison::LsnPageStale,
        Some(listed) => LsnComparison::Stale { listed },
    }
}

/// Initialises an empty LSN page, unstamped.
pub fn empty(bytes: &mut PageBytes, pool_id: PoolId, entry: &LsnEntry) {
    bytes.fill(0);
    PageHeader::new(PageKind::LsnPage, pool_id, entry.page, entry.owner()).encode(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{PAGE_BYTES, stamp};

    fn entry(slot: u32) -> LsnEntry {
        LsnEntry { page: Place::new(0, 3, 12), index: 3 << 16, slot }
    }

    #[test]
    fn what_was_listed_is_compared() {
        let mut page = [0; PAGE_BYTES];
        empty(&mut page, PoolId([1; 16]), &entry(0));
        stamp(&mut page, Lsn(7 << 32 | 500));
        assert_eq!(compare(&entry(5), &page, Lsn(77)), LsnComparison::Current, "nothing is known");
        for slot in [0, 5, LSNS_PER_PAGE - 1] {
            entry(slot).list(&mut page, 0, Lsn(7 << 32 | 400));
        }
        assert_eq!(compare(&entry(5), &page, Lsn(7 << 32 | 400)), LsnComparison::Current);
        let older = compare(&entry(5), &page, Lsn(7 << 32 | 300));
        assert_eq!(older, LsnComparison::Stale { listed: 400 });
        let newer = compare(&entry(991), &page, Lsn(7 << 32 | 501));
        assert_eq!(newer, LsnComparison::LsnPageStale);
        assert_eq!(compare(&entry(6), &page, Lsn(1)), LsnComparison::Current, "a neighbour");
    }
}
