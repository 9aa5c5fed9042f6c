//! The double-write area: first destination of pages that must reach home together.
//!
//! # Layout
//!
//! Head pages, each with 330 entries of place and checksum, then the pages. Recovery copies these
//! pages home only if every head of one sequence verifies and every page has its checksum.

use crate::geometry::{DOUBLE_WRITE_ENTRIES_PER_HEAD, Geometry};
use crate::ids::{Lsn, Place, PoolId};
use crate::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, read_u32, read_u64,
    stamp, write_u32, write_u64,
};

/// Bytes of an entry: place and checksum.
pub const DOUBLE_WRITE_ENTRY_BYTES: usize = 12;

const _: () = assert!(PAGE_HEADER_BYTES + 330 * DOUBLE_WRITE_ENTRY_BYTES <= PAGE_BYTES);

/// One head page of the double-write area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleWriteHead {
    /// Rises with each group.
    pub sequence: u64,
    /// Index of the head in its group.
    pub head_index: u64,
    /// Pages of the whole group.
    pub page_count: u64,
    /// Durable end of the log at the time of the write.
    pub lsn: Lsn,
    /// Place and checksum of this head's pages.
    pub entries: Vec<(Place, u32)>,
}

impl DoubleWriteHead {
    /// Returns the bytes of the head.
    ///
    /// # Panics
    ///
    /// If there are too many entries.
    #[must_use]
    pub fn encode(&self, pool_id: PoolId, geometry: &Geometry) -> PageBytes {
        let mut bytes = [0; PAGE_BYTES];
        let place = Self::place(geometry, self.head_index);
        let owner = PageOwner { index: self.head_index, ..PageOwner::default() };
        let mut header = PageHeader::new(PageKind::DoubleWriteHead, pool_id, place, owner);
        header.count = u32::try_from(self.entries.len()).expect("bounded");
        header.aux = [self.sequence, self.page_count, 0, 0];
        header.encode(&mut bytes);
        for (slot, (place, crc)) in self.entries.iter().enumerate() {
            let offset = PAGE_HEADER_BYTES + slot * DOUBLE_WRITE_ENTRY_BYTES;
            write_u64(&mut bytes, offset, place.bits());
            write_u32(&mut bytes, offset + 8, *crc);
        }
        stamp(&mut bytes, self.lsn);
        bytes
    }

    /// Returns the head in `bytes`; `None` if it does not verify.
    #[must_use]
    pub fn decode(
        bytes: &PageBytes,
        pool_id: PoolId,
        geometry: &Geometry,
        head_index: u64,
    ) -> Option<DoubleWriteHead> {
        let place = Self::place(geometry, head_index);
        let header = PageHeader::decode(bytes, pool_id, place).ok()?;
        let count = usize::try_from(header.count).ok()?;
        let is_sane = header.kind == PageKind::DoubleWriteHead
            && header.owner.index == head_index
            && u64::from(header.count) <= DOUBLE_WRITE_ENTRIES_PER_HEAD;
        is_sane.then(|| DoubleWriteHead {
            sequence: header.aux[0],
            head_index,
            page_count: header.aux[1],
            lsn: header.lsn,
            entries: (0..count)
                .map(|slot| {
                    let offset = PAGE_HEADER_BYTES + slot * DOUBLE_WRITE_ENTRY_BYTES;
                    (Place::from_bits(read_u64(bytes, offset)), read_u32(bytes, offset + 8))
                })
                .collect(),
        })
    }

    fn place(geometry: &Geometry, head_index: u64) -> Place {
        Geometry::fixed_place(Self::head_offset(geometry, head_index))
    }

    /// Returns the byte offset of head `head_index` on the device.
    #[must_use]
    pub fn head_offset(geometry: &Geometry, head_index: u64) -> u64 {
        geometry.double_write_offset + head_index * 4096
    }

    /// Returns the byte offset of page `index` of the area on the device.
    #[must_use]
    pub fn page_offset(geometry: &Geometry, index: u64) -> u64 {
        geometry.double_write_offset + (geometry.double_write_heads() + index) * 4096
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::GeometryOptions;

    #[test]
    fn encode_then_decode_returns_the_head() {
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: 1 << 30,
            fragment_bytes: 4096,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        })
        .expect("1 GiB is enough");
        let head = DoubleWriteHead {
            sequence: 4,
            head_index: 2,
            page_count: 700,
            lsn: Lsn(9),
            entries: vec![(Place::new(0, 1, 2), 77); 330],
        };
        let bytes = head.encode(PoolId([1; 16]), &geometry);
        let pool = PoolId([1; 16]);
        assert_eq!(DoubleWriteHead::decode(&bytes, pool, &geometry, 2), Some(head));
        assert_eq!(DoubleWriteHead::decode(&bytes, pool, &geometry, 1), None);
    }
}
