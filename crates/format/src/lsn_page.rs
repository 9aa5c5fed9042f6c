//! LSN pages: which LSN each metadata page had when it last went home, kept apart from the page.
//!
//! A page verifies itself, so an old version of it verifies too. What tells a page whose last write
//! the device dropped is its LSN, compared with the one that is kept here.
//!
//! # Layout
//!
//! An LSN page holds, behind its header, the lower 32 bits of the LSN of each of
//! [`LSNS_PER_PAGE`] pages that follow each other in a group. 0: not known, nothing is compared.
//! Where the entry of a page is, `Geometry::lsn_entry` says.
//!
//! # Invariants
//!
//! - LP1: The LSN of an LSN page is above every LSN that it lists, but for those that stood in it
//!   before.
//! - LP2: A page that goes home in a checkpoint is listed by it, before the page goes home.
//! - LP3: A page at home whose LSN is above the LSN of its LSN page was written after that one was:
//!   then it is the LSN page whose write was lost.

use crate::ids::{Lsn, Place, PoolId};
use crate::page::{
    PAGE_BODY_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, read_u32,
};

/// Pages that an LSN page lists: 3.875 MiB of a group.
pub const LSNS_PER_PAGE: u32 = 992;
/// Bytes of an entry.
const LSN_ENTRY_BYTES: usize = 4;
/// Most LSN pages of a group: the descriptor has a bit for each.
pub const LSN_PAGES_PER_GROUP_MAX: u32 = 2048;

const _: () = assert!(PAGE_BODY_BYTES / LSN_ENTRY_BYTES == 992);

/// Where the LSN of a page is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LsnEntry {
    /// The LSN page.
    pub page: Place,
    /// Its index, as in its header: group and number in the group, or number in the group table.
    pub index: u64,
    /// Which of its entries.
    pub slot: u32,
}

impl LsnEntry {
    /// Returns the LSN page of page `page` of its region, and its entry there.
    pub(crate) fn position(page: u32) -> (u32, u32) {
        (page / LSNS_PER_PAGE, page % LSNS_PER_PAGE)
    }

    /// Returns the owner that the LSN page names.
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

    /// Returns the lower bits of the LSN that is listed; `None`: not known.
    #[must_use]
    pub fn listed(&self, lsn_page: &PageBytes) -> Option<u32> {
        Some(read_u32(lsn_page, self.offset())).filter(|listed| *listed != 0)
    }

    /// Lists `lsn`. `bytes` are the LSN page from its byte `from` on.
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

/// What an LSN page says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The page is the one that last went home, or nothing is known of it.
    Current,
    /// The page is not the one that last went home: its write, or one over it, was lost.
    Stale {
        /// Lower bits of the LSN that last went home.
        listed: u32,
    },
    /// The LSN page is older than the page: its own write was lost.
    LsnPageStale,
}

/// Compares a page of `found` LSN with what `lsn_page` lists for it (LP3).
#[must_use]
pub fn compare(entry: &LsnEntry, lsn_page: &PageBytes, found: Lsn) -> Verdict {
    match entry.listed(lsn_page) {
        None => Verdict::Current,
        Some(listed) if listed == lower_bits(found) => Verdict::Current,
        Some(_) if found > crate::page::page_lsn(lsn_page) => Verdict::LsnPageStale,
        Some(listed) => Verdict::Stale { listed },
    }
}

/// Makes an LSN page that lists nothing, not stamped.
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
        assert_eq!(compare(&entry(5), &page, Lsn(77)), Verdict::Current, "nothing is known");
        for slot in [0, 5, LSNS_PER_PAGE - 1] {
            entry(slot).list(&mut page, 0, Lsn(7 << 32 | 400));
        }
        assert_eq!(compare(&entry(5), &page, Lsn(7 << 32 | 400)), Verdict::Current);
        let older = compare(&entry(5), &page, Lsn(7 << 32 | 300));
        assert_eq!(older, Verdict::Stale { listed: 400 });
        let newer = compare(&entry(991), &page, Lsn(7 << 32 | 501));
        assert_eq!(newer, Verdict::LsnPageStale);
        assert_eq!(compare(&entry(6), &page, Lsn(1)), Verdict::Current, "a neighbour");
    }
}
