//! Reading of a group's free map.

use format::bitmap::BITS_PER_PAGE;
use format::group::is_bit_set;
use format::ids::Place;
use format::page::{PAGE_HEADER_BYTES, PageBytes, PageKind};

use crate::convert::index_of;
use crate::reader::{PageRequest, PoolReader, ReadError};
use crate::space::StatedGroup;

/// Reads the used pages of a group's free map. Calls `each` with the place of each page and its
/// error, if any. Bits of unusable pages are 0.
pub(crate) fn read_free_map(
    reader: &PoolReader,
    group: u32,
    stated: &StatedGroup,
    each: &mut dyn FnMut(Place, Option<ReadError>),
) -> Vec<u64> {
    let geometry = &reader.geometry;
    let is_used = |&index: &u32| is_bit_set(&stated.free_map_used, index);
    let indexes: Vec<u32> = (0..geometry.map_pages()).filter(is_used).collect();
    let place_of = |index| geometry.free_map_place(group, index);
    let wanted =
        |&index: &u32| PageRequest { place: place_of(index), kind: PageKind::FreeMap, owner: None };
    let wanted: Vec<PageRequest> = indexes.iter().map(wanted).collect();
    let mut marked = vec![0; index_of(geometry.fragments_of(group).div_ceil(64))];
    for (&index, page) in indexes.iter().zip(reader.read_pages(&wanted)) {
        if let Ok(page) = &page {
            copy_bits(page, index, &mut marked);
        }
        each(place_of(index), page.err());
    }
    marked
}

fn copy_bits(page: &PageBytes, index: u32, marked: &mut [u64]) {
    let first_word = index_of(index * (BITS_PER_PAGE / 64));
    let (words, _) = page[PAGE_HEADER_BYTES..].as_chunks::<8>();
    for (to, word) in marked.iter_mut().skip(first_word).zip(words) {
        *to = u64::from_le_bytes(*word);
    }
}
