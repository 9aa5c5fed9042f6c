//! Readahead for listings: the directory pages with the next names.

use format::anode::Anode;
use format::directory::{next_prefix, page_number};
use format::ids::Place;

use super::usual_depth;
use crate::store::Store;

/// Returns the places of most pages with names from `hash` on, for `count` hash prefixes at the
/// usual depth. Reads none of them. The places are hints: a page's own content decides which names
/// it holds.
pub(crate) fn pages_from(store: &Store, anode: &Anode, hash: u64, count: usize) -> Vec<Place> {
    let depth = usual_depth(anode);
    let parts = std::iter::successors(Some(hash), |hash| next_prefix(*hash, depth)).take(count);
    let mut places: Vec<Place> = Vec::new();
    for hash in parts {
        // A page that has split less often holds the names at a shallower depth. A page that has
        // split once more points to the other half.
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
