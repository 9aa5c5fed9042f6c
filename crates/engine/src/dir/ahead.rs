//! Which pages of a directory hold the names that a listing will come to.

use format::anode::Anode;
use format::directory::{next_prefix, page_number};
use format::ids::Place;

use super::usual_depth;
use crate::store::Store;

/// Returns where the pages are that hold the names from `hash` on, most of them: those of `count`
/// parts of the names, at the depth that is usual. Reads none of them, and may tell of others: who
/// reads a page is told by it what it holds.
pub(crate) fn pages_from(store: &Store, anode: &Anode, hash: u64, count: usize) -> Vec<Place> {
    let depth = usual_depth(anode);
    let parts = std::iter::successors(Some(hash), |hash| next_prefix(*hash, depth)).take(count);
    let mut places: Vec<Place> = Vec::new();
    for hash in parts {
        // Where a page has not split so often, a shallower one has its names; where it has split
        // once more, its pointer says where the other half is.
        let number = |depth: u8| page_number(hash, depth);
        let pointer = |depth: u8| store.block(None, anode, number(depth)).ok().flatten();
        let Some(pointer) = (0..=depth).rev().find_map(pointer) else { continue };
        let sibling = pointer.split_hint().and_then(|hint| hint.sibling);
        for place in std::iter::once(pointer.place).chain(sibling) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}
