//! Inode numbers and cookies for 32-bit programs without large-file support (`-o inode32`).
//!
//! # Invariants
//!
//! - SN1: A file with an inode number above 32 bits is hidden: its lookup and listings with it fail
//!   with `EOVERFLOW`, as stat(2) of such a program would.
//! - SN2: A cookie has at most 31 bits: the first 30 of a name's hash, above the cookies of `.` and
//!   `..`. A cookie stands for all names up to the last one with this hash prefix. A listing
//!   resumed among such names repeats the first ones and omits none.

use super::protocol::{ListedName, Listing, NodeId};

/// First cookie of hashed names. Lower cookies belong to `.` and `..`.
const HASHES_FROM: u64 = 128;
/// Cookie bits dropped: the last 26 of 56 hash bits, and the 7 bits of the collision number.
const BITS_LEFT_OUT: u32 = 33;
const HASHES: u64 = 1 << 30;

pub(super) fn is_small(node: NodeId) -> bool {
    u32::try_from(node.0).is_ok()
}

fn place_of(cookie: u64) -> u64 {
    if cookie < HASHES_FROM { cookie } else { HASHES_FROM + (cookie >> BITS_LEFT_OUT) }
}

/// Returns the full cookie after which a listing resumes at `place`.
pub(super) fn cookie_at(place: u64) -> u64 {
    match place.checked_sub(HASHES_FROM) {
        None => place,
        Some(first) if first < HASHES => ((first + 1) << BITS_LEFT_OUT) - 1,
        // Never returned to a kernel. The listing ends.
        Some(_) => u64::MAX,
    }
}

struct DeferredName {
    name: Vec<u8>,
    listed: ListedName<'static>,
}

/// A listing with 31-bit cookies. Each name is held back until the next one: if both have an equal
/// small cookie, the held name gets the preceding cookie.
pub(super) struct SmallListing<'l> {
    listing: &'l mut dyn Listing,
    held: Option<DeferredName>,
    is_full: bool,
    is_too_large: bool,
}

impl<'l> SmallListing<'l> {
    pub(super) fn new(listing: &'l mut dyn Listing) -> SmallListing<'l> {
        SmallListing { listing, held: None, is_full: false, is_too_large: false }
    }

    pub(super) fn add(&mut self, listed: ListedName<'_>) -> bool {
        if !is_small(listed.id) {
            self.is_too_large = true;
            return false;
        }
        self.give(Some(listed.cookie));
        let name = listed.name.to_vec();
        self.held = Some(DeferredName { name, listed: ListedName { name: &[], ..listed } });
        !self.is_full
    }

    /// Ends the listing. Returns `false` if an inode number was too large.
    pub(super) fn end(mut self) -> bool {
        self.give(None);
        !self.is_too_large
    }

    fn give(&mut self, next: Option<u64>) {
        let Some(DeferredName { name, listed }) = self.held.take() else { return };
        let place = place_of(listed.cookie);
        let is_shared = next.is_some_and(|next| place_of(next) == place);
        let cookie = if is_shared { place - 1 } else { place };
        let fits =
            !self.is_full && self.listing.add(ListedName { name: &name, cookie, ..listed }, None);
        self.is_full |= !fits;
    }
}

#[cfg(test)]
mod tests {
    use engine::api::FileKind;

    use super::super::protocol::FuseNode;
    use super::*;

    struct BoundedListing(usize, Vec<(Vec<u8>, u64)>);

    impl Listing for BoundedListing {
        fn add(&mut self, listed: ListedName<'_>, _: Option<&FuseNode>) -> bool {
            let fits = self.1.len() < self.0;
            if fits {
                self.1.push((listed.name.to_vec(), listed.cookie));
            }
            fits
        }
    }

    fn list(cookies: &[u64], place: u64, room: usize) -> Vec<(Vec<u8>, u64)> {
        let mut given = BoundedListing(room, Vec::new());
        let mut listing = SmallListing::new(&mut given);
        let after = cookie_at(place);
        for &cookie in cookies.iter().filter(|&&cookie| cookie > after) {
            let (name, id) = (cookie.to_string(), NodeId(cookie >> 40));
            let listed = ListedName { name: name.as_bytes(), id, kind: FileKind::Regular, cookie };
            if !listing.add(listed) {
                break;
            }
        }
        assert!(listing.end());
        given.1
    }

    /// Goal: a listing resumes anywhere without loss, and ends (SN2). Method: names with equal hash
    /// prefixes, in buffers of three to nine names, each of which may be the last one taken.
    #[test]
    fn no_name_is_lost_between_two_requests() {
        let hash = |first: u64, rest: u64| (first << BITS_LEFT_OUT) | rest;
        let last = (1 << 63) - 1;
        let mut cookies = vec![1, 2, HASHES_FROM, hash(0, 1 << 20)];
        for first in [1, 2, 3, 900, 901, (1 << 30) - 2] {
            cookies.extend([hash(first, 0), hash(first, 1 << 10)]);
        }
        cookies.extend([hash(902, 5), last]);
        cookies.sort_unstable();
        for room in 3..10 {
            for stop in 1..=room {
                let (mut place, mut seen) = (0, std::collections::BTreeSet::new());
                for _ in 0..100 {
                    let given = list(&cookies, place, room);
                    let Some(end) = given.get(stop.min(given.len()).wrapping_sub(1)) else { break };
                    let taken = given.iter().position(|it| it == end).expect("it is there");
                    seen.extend(given.iter().take(taken + 1).map(|(name, _)| name.clone()));
                    assert!(given.iter().all(|(_, place)| i32::try_from(*place).is_ok()));
                    assert!(stop < 3 || end.1 > place, "it goes on");
                    place = end.1;
                }
                assert!(stop < 3 || seen.len() == cookies.len(), "{stop} of {room}: {seen:?}");
            }
        }
        assert!(list(&cookies, u64::MAX, 9).is_empty(), "no kernel was given that");
    }

    /// Goal: a 33-bit number is refused, not truncated (SN1).
    #[test]
    fn a_large_number_is_refused() {
        let mut given = BoundedListing(9, Vec::new());
        let mut listing = SmallListing::new(&mut given);
        let listed = |id| ListedName { name: b"a", id, kind: FileKind::Regular, cookie: 200 };
        assert!(listing.add(listed(NodeId(u64::from(u32::MAX)))));
        assert!(!listing.add(listed(NodeId(1 << 32))));
        assert!(!listing.end());
        assert_eq!(given.1.len(), 1);
    }
}
