//! The contents of a device as a value that is cheap to copy and compare.
//!
//! A copy-on-write tree of 4 KiB pages. A write copies one page and its ancestors, so a crash image
//! costs only its differences. A page that goes into many images is copied and hashed once
//! ([`SharedPage`]).
//!
//! # Layout
//!
//! ```text
//!   root -> 64 children -> ... -> 64 pages     an absent child is all zeros
//! ```

use std::sync::Arc;

use crate::convert::{to_u64, to_usize};
use crate::device::IO_ALIGN_BYTES;
use runtime::prng::Prng;

const PAGE_BYTES: usize = IO_ALIGN_BYTES;

/// Small, because a write copies one node per level.
const FANOUT: usize = 64;

#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "a page costs 4 KiB anyway, a box a cache miss")]
enum ImageNode {
    Inner([Option<Arc<ImageNode>>; FANOUT]),
    Page { bytes: Box<[u8; PAGE_BYTES]>, hash: u64 },
}

impl ImageNode {
    /// Returns the contribution of a page to the image hash.
    fn hash(&self) -> u64 {
        match self {
            ImageNode::Page { hash, .. } => *hash,
            ImageNode::Inner(_) => 0,
        }
    }
}

/// A page that can be put into any image.
#[derive(Clone)]
pub(super) struct SharedPage {
    page: u64,
    node: Arc<ImageNode>,
}

impl SharedPage {
    /// Returns a page. `None` if `bytes` is not one page long.
    pub(super) fn new(page: u64, bytes: &[u8]) -> Option<SharedPage> {
        let bytes: &[u8; PAGE_BYTES] = bytes.try_into().ok()?;
        let hash = page_hash(page, bytes);
        Some(SharedPage { page, node: Arc::new(ImageNode::Page { bytes: Box::new(*bytes), hash }) })
    }

    pub(super) fn offset(&self) -> u64 {
        self.page * to_u64(PAGE_BYTES)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match &*self.node {
            ImageNode::Page { bytes, .. } => &bytes[..],
            ImageNode::Inner(_) => unreachable!("made as a page"),
        }
    }
}

impl std::fmt::Debug for SharedPage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedPage({}, {:#018x})", self.page, self.node.hash())
    }
}

/// Contents of a device.
#[derive(Clone)]
pub struct Image {
    root: Option<Arc<ImageNode>>,
    /// Levels of inner nodes.
    levels: u32,
    size_bytes: u64,
    page_count: u64,
    /// Sum of the page hashes, so independent of the write order.
    hash: u64,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, pages, hash) = (self.size_bytes, self.page_count, self.hash);
        write!(f, "Image({size} bytes, {pages} pages, {hash:#018x})")
    }
}

impl Image {
    /// Returns an image of zeros.
    ///
    /// # Panics
    ///
    /// If `size_bytes` is not a multiple of [`IO_ALIGN_BYTES`].
    #[must_use]
    pub fn blank(size_bytes: u64) -> Image {
        assert!(size_bytes.is_multiple_of(to_u64(PAGE_BYTES)));
        let mut levels = 1;
        let mut covered = to_u64(FANOUT * PAGE_BYTES);
        while covered < size_bytes {
            levels += 1;
            covered = covered.saturating_mul(to_u64(FANOUT));
        }
        Image { root: None, levels, size_bytes, page_count: 0, hash: 0 }
    }

    /// Returns the device size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the size of the pages ever written.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.page_count * to_u64(PAGE_BYTES)
    }

    /// Returns a hash of the contents alone, maintained by each write. Unequal contents almost
    /// surely differ in it.
    #[must_use]
    pub fn content_hash(&self) -> u64 {
        self.hash
    }

    /// Fills `target` from `offset`.
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        for (page, in_page, in_request) in pages_of(offset, target.len()) {
            let part = &mut target[in_request];
            match self.page(page) {
                Some(bytes) => part.copy_from_slice(&bytes[in_page..in_page + part.len()]),
                None => part.fill(0),
            }
        }
    }

    /// Writes `source` at `offset`.
    pub fn write(&mut self, offset: u64, source: &[u8]) {
        assert!(offset + to_u64(source.len()) <= self.size_bytes);
        for (page, in_page, in_request) in pages_of(offset, source.len()) {
            let part = &source[in_request];
            self.change_page(page, |bytes| {
                bytes[in_page..in_page + part.len()].copy_from_slice(part);
            });
        }
    }

    /// Writes the surviving sectors of `source`, all in one page.
    pub(super) fn write_sectors(&mut self, offset: u64, source: &[u8], survives: &[bool]) {
        let sector_bytes = source.len() / survives.len();
        let start = to_usize(offset % to_u64(PAGE_BYTES));
        self.change_page(offset / to_u64(PAGE_BYTES), |bytes| {
            let target = bytes[start..start + source.len()].chunks_mut(sector_bytes);
            let sectors = target.zip(source.chunks(sector_bytes)).zip(survives);
            for ((target, source), _) in sectors.filter(|&(_, &survives)| survives) {
                target.copy_from_slice(source);
            }
        });
    }

    /// Replaces a page by a shared one.
    pub(super) fn put(&mut self, page: &SharedPage) {
        let slot = slot_of(&mut self.root, self.levels, page.page);
        let old = slot.replace(Arc::clone(&page.node));
        self.page_count += u64::from(old.is_none());
        let old_hash = old.map_or(0, |node| node.hash());
        self.hash = self.hash.wrapping_sub(old_hash).wrapping_add(page.node.hash());
    }

    /// Inverts the bits of `mask` in the byte at `offset`.
    pub fn flip(&mut self, offset: u64, mask: u8) {
        let in_page = to_usize(offset % to_u64(PAGE_BYTES));
        self.change_page(offset / to_u64(PAGE_BYTES), |bytes| bytes[in_page] ^= mask);
    }

    /// Visits the pages ever written, in order, with their offsets.
    pub fn for_each_page(&self, mut visit: impl FnMut(u64, &[u8])) {
        fn walk(node: &ImageNode, index: u64, visit: &mut impl FnMut(u64, &[u8])) {
            match node {
                ImageNode::Page { bytes, .. } => visit(index * to_u64(PAGE_BYTES), &bytes[..]),
                ImageNode::Inner(children) => {
                    for (child_index, child) in children.iter().enumerate() {
                        if let Some(child) = child {
                            walk(child, index * to_u64(FANOUT) + to_u64(child_index), visit);
                        }
                    }
                }
            }
        }
        if let Some(root) = &self.root {
            walk(root, 0, &mut visit);
        }
    }

    /// Returns the size of the unallocated pages in a range.
    #[must_use]
    pub fn new_bytes(&self, offset: u64, length_bytes: u64) -> u64 {
        let pages = pages_of(offset, to_usize(length_bytes));
        to_u64(pages.filter(|&(page, ..)| self.page(page).is_none()).count() * PAGE_BYTES)
    }

    fn page(&self, page: u64) -> Option<&[u8; PAGE_BYTES]> {
        let mut node = self.root.as_ref()?;
        let mut level = self.levels;
        loop {
            match &**node {
                ImageNode::Page { bytes, .. } => return Some(bytes),
                ImageNode::Inner(children) => {
                    level -= 1;
                    node = children[child_of(page, level)].as_ref()?;
                }
            }
        }
    }

    fn change_page(&mut self, page: u64, change: impl FnOnce(&mut [u8; PAGE_BYTES])) {
        let slot = slot_of(&mut self.root, self.levels, page);
        let leaf = slot.get_or_insert_with(|| {
            self.page_count += 1;
            Arc::new(ImageNode::Page { bytes: Box::new([0; PAGE_BYTES]), hash: 0 })
        });
        match Arc::make_mut(leaf) {
            ImageNode::Page { bytes, hash } => {
                change(bytes);
                let new_hash = page_hash(page, bytes);
                self.hash = self.hash.wrapping_sub(*hash).wrapping_add(new_hash);
                *hash = new_hash;
            }
            ImageNode::Inner(_) => unreachable!("the levels end at a page"),
        }
    }
}

/// Returns the slot of a page, and unshares its ancestors.
fn slot_of(
    root: &mut Option<Arc<ImageNode>>,
    levels: u32,
    page: u64,
) -> &mut Option<Arc<ImageNode>> {
    let mut slot = root;
    for level in (0..levels).rev() {
        let node = slot.get_or_insert_with(|| Arc::new(ImageNode::Inner([const { None }; FANOUT])));
        match Arc::make_mut(node) {
            ImageNode::Inner(children) => slot = &mut children[child_of(page, level)],
            ImageNode::Page { .. } => unreachable!("pages are below the last level"),
        }
    }
    slot
}

fn child_of(page: u64, level: u32) -> usize {
    to_usize((page / to_u64(FANOUT).pow(level)) % to_u64(FANOUT))
}

/// Splits a range by pages: page number, offset in the page, and range in the request.
pub(super) fn pages_of(
    offset: u64,
    length: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let at = offset + to_u64(done);
        let in_page = to_usize(at % to_u64(PAGE_BYTES));
        let count = (length - done).min(PAGE_BYTES - in_page);
        let in_request = done..done + count;
        done += count;
        Some((at / to_u64(PAGE_BYTES), in_page, in_request))
    })
}

/// Returns the hash of a page: 0 for zeros, so that such a page equals one never written.
fn page_hash(page: u64, bytes: &[u8; PAGE_BYTES]) -> u64 {
    const LANES: usize = 4;
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut lanes = [1_u64, 2, 3, 4];
    let mut any = 0;
    // Arrays of fixed length, so that bounds checks vanish.
    for words in bytes.as_chunks::<8>().0.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            let word = u64::from_le_bytes(words[lane]);
            any |= word;
            lanes[lane] = (lanes[lane] ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
        }
    }
    if any == 0 {
        return 0;
    }
    lanes.iter().fold(page, |hash, lane| Prng::from_seed(hash ^ lane).next_u64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_until_written_and_then_differ() {
        let mut first = Image::blank(16 << 40);
        first.write((16 << 40) - 4096, &[7; 4096]);
        let mut second = first.clone();
        assert_eq!(first.content_hash(), second.content_hash());
        second.write(4096 * 63 + 512, &[9; 8192]);
        assert_ne!(first.content_hash(), second.content_hash());
        assert_eq!(second.allocated_bytes(), 4 * 4096);

        let mut bytes = vec![1; 16384];
        second.read(4096 * 63, &mut bytes);
        let expected = [vec![0; 512], vec![9; 8192], vec![0; 16384 - 8704]].concat();
        assert_eq!(bytes, expected);
        first.read(4096 * 63, &mut bytes);
        assert_eq!(bytes, vec![0; 16384]);
    }

    #[test]
    fn hash_is_of_the_contents_and_not_of_the_history() {
        let mut first = Image::blank(1 << 30);
        let mut second = Image::blank(1 << 30);
        for page in 0..100 {
            first.write(page * 4096, &[1; 4096]);
            second.write((99 - page) * 4096, &[2; 4096]);
            second.write((99 - page) * 4096, &[1; 4096]);
        }
        assert_eq!(first.content_hash(), second.content_hash());
        second.flip(50 * 4096 + 17, 0x10);
        assert_ne!(first.content_hash(), second.content_hash());
        second.flip(50 * 4096 + 17, 0x10);
        assert_eq!(first.content_hash(), second.content_hash());

        second.write(1 << 20, &[0; 4096]);
        assert_eq!(first.content_hash(), second.content_hash(), "zeros written, or never");
        let (mut here, mut there) = (Image::blank(8192), Image::blank(8192));
        here.write(0, &[5; 4096]);
        there.write(4096, &[5; 4096]);
        assert_ne!(here.content_hash(), there.content_hash(), "the place is part of it");
    }

    /// Goal: putting a shared page equals writing its bytes, and later writes leave the shared page
    /// unchanged.
    #[test]
    fn a_page_that_is_put_is_as_if_it_was_written_and_stays_as_it_is() {
        let page = SharedPage::new(70, &[3; PAGE_BYTES]).expect("as long as a page");
        assert!(SharedPage::new(70, &[3; 512]).is_none());
        let (mut put, mut written) = (Image::blank(1 << 20), Image::blank(1 << 20));
        for image in [&mut put, &mut written] {
            image.write(70 * 4096 + 512, &[9; 512]);
        }
        put.put(&page);
        written.write(70 * 4096, &[3; 4096]);
        assert_eq!(put.content_hash(), written.content_hash());
        assert_eq!(put.allocated_bytes(), 4096);
        put.write_sectors(70 * 4096 + 1024, &[5; 1024], &[false, true]);
        written.write(70 * 4096 + 1536, &[5; 512]);
        assert_eq!(put.content_hash(), written.content_hash());
        assert_eq!(page.bytes(), [3; PAGE_BYTES], "changed below every image that holds it");
    }

    #[test]
    fn pages_are_visited_in_order() {
        let mut image = Image::blank(1 << 40);
        for page in [1 << 20, 3, 70_000, 64] {
            image.write(page * 4096, &[1; 512]);
        }
        let mut seen = Vec::new();
        image.for_each_page(|offset, bytes| seen.push((offset / 4096, bytes[0])));
        assert_eq!(seen, [(3, 1), (64, 1), (70_000, 1), (1 << 20, 1)]);
        assert_eq!(image.new_bytes(2 * 4096, 3 * 4096), 2 * 4096);
    }
}
