//! Directory pages: dirents under a keyed hash.
//!
//! # Layout
//!
//! A directory is a container split by extendible hashing (Fagin and others, "Extendible Hashing -
//! A Fast Access Method for Dynamic Files", 1979). A page holds the names whose hash begins with
//! its prefix of `depth` bits. The page number is that prefix reversed, so a split page keeps its
//! number, and its sibling is `number + 2^depth`. The container's map is the only index.
//!
//! ```text
//!   page:  header (count, bytes in use, depth) | dirent | dirent | free | dirent | free        |
//! ```
//!
//! # Invariants
//!
//! - H1: Entries tile the body.
//! - H2: `count` dirents are in use, in `used` bytes; no two have the same cookie or name.
//! - H3: The hash of every name begins with the page's prefix.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::AnodeKind;
pub use crate::anode::DEPTH_MAX;
use crate::defect::{DefectCode, FoundDefect};
use crate::hash::siphash13;
use crate::ids::{AnodeNo, Generation};
use crate::page::{
    AUX_OFFSET, COUNT_OFFSET, PAGE_BYTES, PAGE_HEADER_BYTES, read_u32, read_u64, write_u32,
    write_u64,
};

/// Bytes in front of a name.
pub const DIRENT_HEAD_BYTES: usize = 24;
/// Alignment of entries.
pub const DIRENT_UNIT_BYTES: usize = 8;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Most names with one hash: the collision number has 7 bits.
pub const COLLISIONS_MAX: u64 = 128;
const HASH_BITS: u32 = 56;
const COLLISION_BITS: u32 = 7;

/// Format: `docs/FORMAT.md#dirent`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct DirentDisk {
    /// Keyed hash (56 bits), collision number (7 bits); 0: free space.
    cookie: U64,
    anode_low: U32,
    anode_high: u8,
    /// Spares readdir the anode.
    kind: u8,
    name_bytes: u8,
    reserved: u8,
    /// Detects a name of an earlier file. Lower 32 bits.
    generation_low: U32,
    generation_high: U16,
    /// Length with name and padding, in units of 8 bytes.
    units: U16,
}

const _: () = assert!(size_of::<DirentDisk>() == DIRENT_HEAD_BYTES);

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'page> {
    /// Offset in the page.
    pub offset: usize,
    /// Keyed hash and collision number: the order of readdir.
    pub cookie: u64,
    /// The named anode.
    pub anode: AnodeNo,
    /// Generation of the anode.
    pub generation: Generation,
    /// Kind of the anode.
    pub kind: AnodeKind,
    /// The name.
    pub name: &'page [u8],
}

/// Contents of a dirent to insert.
#[derive(Clone, Copy, Debug)]
pub struct NewDirent<'name> {
    /// Keyed hash and collision number.
    pub cookie: u64,
    /// The named anode.
    pub anode: AnodeNo,
    /// Generation of the anode: below 2^48.
    pub generation: Generation,
    /// Kind of the anode.
    pub kind: AnodeKind,
    /// 1 to 255 bytes.
    pub name: &'name [u8],
}

/// Damage in a directory page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryDefect {
    /// Bad length of an entry (H1).
    #[error("{}: entry at {offset} has a length of {units} units", self.code())]
    BadLength {
        /// Offset in the page.
        offset: usize,
        /// Length on disk.
        units: u16,
    },
    /// A field out of its bounds.
    #[error("{}: entry at {offset}: {field} is out of bounds", self.code())]
    BadField {
        /// Offset in the page.
        offset: usize,
        /// Name of the field.
        field: &'static str,
    },
    /// Wrong count of names (H2).
    #[error("{}: page says {stored} names, holds {counted}", self.code())]
    BadCount {
        /// Count on disk.
        stored: u32,
        /// Number of entries.
        counted: u32,
    },
    /// Wrong count of bytes in use (H2).
    #[error("{}: page says {stored} bytes in use, holds {counted}", self.code())]
    BadUsed {
        /// Count on disk.
        stored: u64,
        /// Sum of the entries.
        counted: u64,
    },
    /// Duplicate cookie (H2).
    #[error("{}: two names with cookie {cookie:#x}", self.code())]
    DuplicateCookie {
        /// The cookie.
        cookie: u64,
    },
    /// A name whose hash belongs in another page (H3).
    #[error("{}: entry at {offset}: hash does not begin with the page's prefix", self.code())]
    WrongPage {
        /// Offset in the page.
        offset: usize,
    },
}

impl FoundDefect for DirectoryDefect {
    fn code(&self) -> DefectCode {
        match self {
            DirectoryDefect::BadLength { .. } => DefectCode::DR001,
            DirectoryDefect::BadField { .. } => DefectCode::DR002,
            DirectoryDefect::BadCount { .. } => DefectCode::DR003,
            DirectoryDefect::BadUsed { .. } => DefectCode::DR004,
            DirectoryDefect::DuplicateCookie { .. } => DefectCode::DR005,
            DirectoryDefect::WrongPage { .. } => DefectCode::DR006,
        }
    }
}

/// Returns the 56-bit keyed hash of `name`: at least 1.
#[must_use]
pub fn hash_of(key: [u64; 2], name: &[u8]) -> u64 {
    (siphash13(key, name) >> (64 - HASH_BITS)).max(1)
}

/// Returns the cookie for `hash` and a collision number.
#[must_use]
pub fn cookie_of(hash: u64, collision: u64) -> u64 {
    hash << COLLISION_BITS | collision
}

/// Returns the hash in a cookie.
#[must_use]
pub fn hash_in(cookie: u64) -> u64 {
    cookie >> COLLISION_BITS
}

/// Returns the page number for `hash` at `depth`: the first bits, reversed.
#[must_use]
pub fn page_number(hash: u64, depth: u8) -> u64 {
    let first_bits_last = (hash << (64 - HASH_BITS)).reverse_bits();
    first_bits_last & ((1 << depth) - 1)
}

fn number_hash(number: u64) -> u64 {
    number.reverse_bits() >> (64 - HASH_BITS)
}

/// Returns the lowest hash of the page for `hash` at `depth`.
#[must_use]
pub fn prefix_start(hash: u64, depth: u8) -> u64 {
    hash & !((1_u64 << (HASH_BITS - u32::from(depth))) - 1)
}

/// Returns the first hash behind the page for `hash` at `depth`, if any.
#[must_use]
pub fn next_prefix(hash: u64, depth: u8) -> Option<u64> {
    let next = prefix_start(hash, depth) + (1_u64 << (HASH_BITS - u32::from(depth)));
    (next < 1 << HASH_BITS).then_some(next)
}

/// Every hash, scaled to 64 bits.
pub const ALL_HASHES: Range<u128> = 0..1 << 64;

/// Returns the hashes of `pages` (number, depth) as disjoint ranges; `None` if two overlap. A page
/// has `2^(64 - depth)` hashes, and its reversed number is the first of them.
#[must_use]
pub fn covered(pages: &mut [(u64, u8)]) -> Option<Vec<Range<u128>>> {
    pages.sort_unstable_by_key(|&(number, _)| number.reverse_bits());
    let mut all: Vec<Range<u128>> = Vec::new();
    for &(number, depth) in pages.iter() {
        let start = u128::from(number.reverse_bits());
        let end = start + (1 << (64 - u32::from(depth.min(DEPTH_MAX))));
        match all.last_mut() {
            Some(last) if last.end > start => return None,
            Some(last) if last.end == start => last.end = end,
            _ => all.push(start..end),
        }
    }
    Some(all)
}

/// Returns the length of a dirent.
#[must_use]
pub fn entry_bytes(name_bytes: usize) -> usize {
    (DIRENT_HEAD_BYTES + name_bytes).next_multiple_of(DIRENT_UNIT_BYTES)
}

/// Returns the number of names.
#[must_use]
pub fn count(page: &[u8]) -> u32 {
    read_u32(page, COUNT_OFFSET)
}

/// Returns the bytes in use.
#[must_use]
pub fn used_bytes(page: &[u8]) -> u64 {
    read_u64(page, AUX_OFFSET)
}

/// Returns the depth.
#[must_use]
pub fn depth(page: &[u8]) -> u8 {
    page.get(DEPTH_OFFSET).copied().unwrap_or(0).min(DEPTH_MAX)
}

/// The bytes of a page with its counts, in whole words.
pub const COUNTS: Range<usize> = COUNT_OFFSET - 4..AUX_OFFSET + 8;
const COUNT_AT: usize = COUNT_OFFSET - COUNTS.start;
const USED_AT: usize = AUX_OFFSET - COUNTS.start;
const _: () = assert!(COUNTS.start.is_multiple_of(8) && COUNTS.end.is_multiple_of(8));

const DEPTH_OFFSET: usize = AUX_OFFSET + 8;

/// Initialises the body of an empty page; the header is already written.
pub fn initialise(page: &mut [u8], depth: u8) {
    page[PAGE_HEADER_BYTES..].fill(0);
    write_u32(page, COUNT_OFFSET, 0);
    write_u64(page, AUX_OFFSET, 0);
    write_u64(page, DEPTH_OFFSET, u64::from(depth));
    write_free(page, PAGE_HEADER_BYTES, PAGE_BYTES - PAGE_HEADER_BYTES);
}

/// Sets the depth.
pub fn set_depth(page: &mut [u8], depth: u8) {
    write_u64(page, DEPTH_OFFSET, u64::from(depth));
}

fn write_free(page: &mut [u8], offset: usize, bytes: usize) {
    // A gap below 24 bytes stays part of the entry before it.
    let units = u16::try_from(bytes / DIRENT_UNIT_BYTES).expect("a page is small");
    let disk = DirentDisk { units: U16::new(units), ..DirentDisk::new_zeroed() };
    disk.write_to_prefix(&mut page[offset..]).expect("free entries are 24 bytes at least");
}

fn raw_entry(page: &[u8], offset: usize) -> Option<&DirentDisk> {
    let (disk, _) = DirentDisk::ref_from_prefix(page.get(offset..)?).ok()?;
    Some(disk)
}

/// Entries of a page, free ones included, up to the first malformed one.
struct RawEntries<'page> {
    page: &'page [u8],
    offset: usize,
}

impl<'page> Iterator for RawEntries<'page> {
    type Item = (usize, usize, &'page DirentDisk);

    fn next(&mut self) -> Option<Self::Item> {
        let disk = raw_entry(self.page, self.offset)?;
        let bytes = usize::from(disk.units.get()) * DIRENT_UNIT_BYTES;
        if bytes < DIRENT_HEAD_BYTES || self.offset + bytes > PAGE_BYTES {
            return None;
        }
        let offset = self.offset;
        self.offset += bytes;
        Some((offset, bytes, disk))
    }
}

fn raw_entries(page: &[u8]) -> RawEntries<'_> {
    RawEntries { page, offset: PAGE_HEADER_BYTES }
}

fn dirent_at<'page>(page: &'page [u8], offset: usize, disk: &DirentDisk) -> Option<Dirent<'page>> {
    let name_start = offset + DIRENT_HEAD_BYTES;
    let anode = u64::from(disk.anode_high) << 32 | u64::from(disk.anode_low.get());
    let generation =
        u64::from(disk.generation_high.get()) << 32 | u64::from(disk.generation_low.get());
    Some(Dirent {
        offset,
        cookie: disk.cookie.get(),
        anode: AnodeNo(anode),
        generation: Generation(generation),
        kind: AnodeKind::from_code(disk.kind)?,
        name: page.get(name_start..name_start + usize::from(disk.name_bytes))?,
    })
}

/// Iterates over the names, in page order.
pub fn dirents(page: &[u8]) -> impl Iterator<Item = Dirent<'_>> {
    raw_entries(page)
        .filter(|(_, _, disk)| disk.cookie.get() != 0)
        .filter_map(|(offset, _, disk)| dirent_at(page, offset, disk))
}

/// Finds `name`; `hash` is its hash.
#[must_use]
pub fn find<'page>(page: &'page [u8], hash: u64, name: &[u8]) -> Option<Dirent<'page>> {
    raw_entries(page)
        .filter(|(_, _, disk)| hash_in(disk.cookie.get()) == hash)
        .filter_map(|(offset, _, disk)| dirent_at(page, offset, disk))
        .find(|dirent| dirent.name == name)
}

/// A free entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Offset in the page.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

impl Gap {
    /// Whether a name fits. What remains of the entry must be nothing, or long enough for a free
    /// entry.
    fn fits(&self, name_bytes: usize) -> bool {
        let need = entry_bytes(name_bytes);
        self.bytes == need || self.bytes >= need + DIRENT_HEAD_BYTES
    }

    /// Returns the bytes that an insert changes, apart from [`COUNTS`].
    #[must_use]
    pub fn range_for(&self, name_bytes: usize) -> Range<usize> {
        let need = entry_bytes(name_bytes);
        let behind = if self.bytes > need { DIRENT_HEAD_BYTES } else { 0 };
        self.offset..self.offset + need + behind
    }
}

/// Result of [`look`].
#[derive(Clone, Copy, Debug)]
pub struct DirentSearch<'page> {
    /// The name, if present.
    pub found: Option<Dirent<'page>>,
    /// If absent, the lowest free collision number; `None` if all are used.
    pub collision: Option<u64>,
    /// If absent, the first free entry with room.
    pub gap: Option<Gap>,
}

/// Searches for `name`, and for the collision number and room for an insert.
#[must_use]
pub fn look<'page>(page: &'page [u8], hash: u64, name: &[u8]) -> DirentSearch<'page> {
    let (mut taken, mut gap) = (0_u128, None);
    for (offset, bytes, disk) in raw_entries(page) {
        let cookie = disk.cookie.get();
        if cookie == 0 {
            let free = Gap { offset, bytes };
            gap = gap.or_else(|| free.fits(name.len()).then_some(free));
        } else if hash_in(cookie) == hash {
            let dirent = dirent_at(page, offset, disk);
            if let Some(found) = dirent.filter(|dirent| dirent.name == name) {
                return DirentSearch { found: Some(found), collision: None, gap: None };
            }
            taken |= 1 << (cookie & (COLLISIONS_MAX - 1));
        }
    }
    let collision = u64::from(taken.trailing_ones());
    DirentSearch { found: None, collision: (collision < COLLISIONS_MAX).then_some(collision), gap }
}

/// Whether [`insert`] finds room, perhaps after [`compact`].
#[must_use]
pub fn has_room(page: &[u8], name_bytes: usize) -> bool {
    let used = usize::try_from(used_bytes(page)).unwrap_or(PAGE_BYTES);
    let free = (PAGE_BYTES - PAGE_HEADER_BYTES).saturating_sub(used);
    let need = entry_bytes(name_bytes);
    free == need || free >= need + DIRENT_HEAD_BYTES
}

/// Adds a name and returns its offset. On `None`, [`compact`] and retry, or split.
pub fn insert(page: &mut [u8], new: &NewDirent<'_>) -> Option<usize> {
    let gap = raw_entries(page)
        .filter(|(_, _, disk)| disk.cookie.get() == 0)
        .map(|(offset, bytes, _)| Gap { offset, bytes })
        .find(|gap| gap.fits(new.name.len()))?;
    put(&mut page[gap.range_for(new.name.len())], gap, new);
    add_to_counts(&mut page[COUNTS], entry_bytes(new.name.len()));
    Some(gap.offset)
}

/// Writes a name into a free entry, in the bytes of [`Gap::range_for`].
///
/// # Panics
///
/// If the entry is too short.
pub fn put(bytes: &mut [u8], gap: Gap, new: &NewDirent<'_>) {
    let need = entry_bytes(new.name.len());
    if gap.bytes > need {
        write_free(bytes, need, gap.bytes - need);
    }
    let disk = DirentDisk {
        cookie: U64::new(new.cookie),
        anode_low: U32::new(u32::try_from(new.anode.0 & 0xffff_ffff).expect("masked")),
        anode_high: u8::try_from(new.anode.0 >> 32 & 0xff).expect("masked"),
        kind: new.kind.code(),
        name_bytes: u8::try_from(new.name.len()).expect("names are at most 255 bytes"),
        reserved: 0,
        generation_low: U32::new(u32::try_from(new.generation.0 & 0xffff_ffff).expect("masked")),
        generation_high: U16::new(u16::try_from(new.generation.0 >> 32 & 0xffff).expect("masked")),
        units: U16::new(u16::try_from(need / DIRENT_UNIT_BYTES).expect("small")),
    };
    disk.write_to_prefix(&mut *bytes).expect("the entry is long enough");
    let name = &mut bytes[DIRENT_HEAD_BYTES..need];
    let (name, padding) = name.split_at_mut(new.name.len());
    name.copy_from_slice(new.name);
    padding.fill(0);
}

/// Counts an added entry of `bytes`. `counts` are the bytes [`COUNTS`] of the page.
pub fn add_to_counts(counts: &mut [u8], bytes: usize) {
    let (names, used) = (read_u32(counts, COUNT_AT), read_u64(counts, USED_AT));
    write_u32(counts, COUNT_AT, names + 1);
    write_u64(counts, USED_AT, used + u64::try_from(bytes).expect("small"));
}

/// Counts a removed entry of `bytes`, and returns the remaining names.
pub fn subtract_from_counts(counts: &mut [u8], bytes: usize) -> u32 {
    let (names, used) = (read_u32(counts, COUNT_AT), read_u64(counts, USED_AT));
    let names = names.saturating_sub(1);
    write_u32(counts, COUNT_AT, names);
    write_u64(counts, USED_AT, used.saturating_sub(u64::try_from(bytes).expect("small")));
    names
}

/// Removes the dirent at `offset`, and merges it with free space behind.
///
/// # Panics
///
/// If there is no dirent at `offset`.
pub fn remove(page: &mut [u8], offset: usize) {
    let cookie = raw_entry(page, offset).map_or(0, |disk| disk.cookie.get());
    let removal = removal(page, offset, cookie).expect("found in this page");
    put_gap(&mut page[removal.head()], removal.gap);
    subtract_from_counts(&mut page[COUNTS], removal.entry_bytes);
}

/// Effect of a removal.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// Length of the removed entry.
    pub entry_bytes: usize,
    /// The free entry that results, merged with one behind it.
    pub gap: Gap,
}

impl Removal {
    /// Returns the bytes that change, apart from [`COUNTS`].
    #[must_use]
    pub fn head(&self) -> Range<usize> {
        self.gap.offset..self.gap.offset + DIRENT_HEAD_BYTES
    }
}

/// Returns the effect of removing the dirent with `cookie` at `offset`.
#[must_use]
pub fn removal(page: &[u8], offset: usize, cookie: u64) -> Option<Removal> {
    let entry = |offset| RawEntries { page, offset }.next();
    let (_, entry_bytes, disk) = entry(offset)?;
    if disk.cookie.get() != cookie || cookie == 0 {
        return None;
    }
    let behind = entry(offset + entry_bytes)
        .filter(|(_, _, disk)| disk.cookie.get() == 0)
        .map_or(0, |(_, bytes, _)| bytes);
    Some(Removal { entry_bytes, gap: Gap { offset, bytes: entry_bytes + behind } })
}

/// Writes the head of a free entry; `bytes` are those of [`Removal::head`].
pub fn put_gap(bytes: &mut [u8], gap: Gap) {
    write_free(bytes, 0, gap.bytes);
}

/// Returns the bytes that [`retarget`] changes.
#[must_use]
pub fn head_at(offset: usize) -> Range<usize> {
    offset..offset + DIRENT_HEAD_BYTES
}

/// Points the dirent with `head` to another anode.
///
/// # Panics
///
/// If `head` is too short.
pub fn retarget(head: &mut [u8], anode: AnodeNo, generation: Generation, kind: AnodeKind) {
    let mut disk = *raw_entry(head, 0).expect("a head is long enough");
    disk.anode_low = U32::new(u32::try_from(anode.0 & 0xffff_ffff).expect("masked"));
    disk.anode_high = u8::try_from(anode.0 >> 32 & 0xff).expect("masked");
    disk.kind = kind.code();
    disk.generation_low = U32::new(u32::try_from(generation.0 & 0xffff_ffff).expect("masked"));
    disk.generation_high = U16::new(u16::try_from(generation.0 >> 32 & 0xffff).expect("masked"));
    disk.write_to_prefix(head).expect("a head is long enough");
}

/// Moves all free space into one entry.
pub fn compact(page: &mut [u8]) {
    let old = page.to_vec();
    initialise(page, depth(&old));
    for dirent in dirents(&old) {
        copy_entry(page, &dirent);
    }
}

/// Copies a dirent from another page.
///
/// # Panics
///
/// If there is no room.
pub fn copy_entry(page: &mut [u8], dirent: &Dirent<'_>) {
    let new = NewDirent {
        cookie: dirent.cookie,
        anode: dirent.anode,
        generation: dirent.generation,
        kind: dirent.kind,
        name: dirent.name,
    };
    insert(page, &new).expect("names that came out of one page fit into one");
}

/// Checks the tiling (H1), counts (H2), hashes (H3) and every field of page `number`.
///
/// # Errors
///
/// The first defect.
pub fn verify(page: &[u8], number: u64) -> Result<(), DirectoryDefect> {
    let (mut counted, mut used, mut end) = (0_u32, 0_u64, PAGE_HEADER_BYTES);
    let stored_depth = read_u64(page, DEPTH_OFFSET);
    if stored_depth > u64::from(DEPTH_MAX)
        || page_number(number_hash(number), depth(page)) != number
    {
        return Err(DirectoryDefect::BadField { offset: DEPTH_OFFSET, field: "depth" });
    }
    let mut cookies = std::collections::BTreeSet::new();
    for (offset, bytes, disk) in raw_entries(page) {
        end = offset + bytes;
        if disk.cookie.get() == 0 {
            continue;
        }
        let bad = |field| DirectoryDefect::BadField { offset, field };
        let dirent = dirent_at(page, offset, disk).ok_or(bad("kind"))?;
        if dirent.name.is_empty() || entry_bytes(dirent.name.len()) > bytes {
            return Err(bad("name_bytes"));
        }
        // `.` or `..` would send tree walks in circles.
        let is_dots = matches!(dirent.name, b"." | b"..");
        if is_dots || dirent.name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(bad("name"));
        }
        if page_number(hash_in(dirent.cookie), depth(page)) != number {
            return Err(DirectoryDefect::WrongPage { offset });
        }
        if !cookies.insert(dirent.cookie) {
            return Err(DirectoryDefect::DuplicateCookie { cookie: dirent.cookie });
        }
        counted += 1;
        used += u64::try_from(bytes).expect("small");
    }
    if end != PAGE_BYTES {
        let units = raw_entry(page, end).map_or(0, |disk| disk.units.get());
        return Err(DirectoryDefect::BadLength { offset: end, units });
    }
    let stored = count(page);
    if stored != counted {
        return Err(DirectoryDefect::BadCount { stored, counted });
    }
    let stored = used_bytes(page);
    if stored != used {
        return Err(DirectoryDefect::BadUsed { stored, counted: used });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u64; 2] = [1, 2];

    fn new_dirent(name: &[u8]) -> NewDirent<'_> {
        NewDirent {
            cookie: cookie_of(hash_of(KEY, name), 0),
            anode: AnodeNo(0xff_0000_0001),
            generation: Generation(0xffff_0000_0002),
            kind: AnodeKind::Regular,
            name,
        }
    }

    fn empty() -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        initialise(&mut page, 0);
        page
    }

    #[test]
    fn a_page_agrees_with_a_map_through_random_changes() {
        let mut state = 1_u64;
        let mut random = move |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        let (mut page, mut model) = (empty(), std::collections::BTreeMap::new());
        for step in 0..20_000 {
            let length = 1 + usize::try_from(random(40) * random(7)).expect("small");
            let name = format!("{:0length$}", random(60)).into_bytes();
            let name = &name[..name.len().min(NAME_BYTES_MAX)];
            let hash = hash_of(KEY, name);
            let looked = look(&page, hash, name);
            assert_eq!(looked.found, find(&page, hash, name));
            if let Some(dirent) = looked.found {
                assert!(model.remove(name).is_some());
                assert_eq!(dirent.anode, AnodeNo(0xff_0000_0001));
                assert_eq!(dirent.generation, Generation(0xffff_0000_0002));
                let offset = dirent.offset;
                remove(&mut page, offset);
            } else if has_room(&page, name.len()) {
                if insert(&mut page, &new_dirent(name)).is_none() {
                    compact(&mut page);
                    insert(&mut page, &new_dirent(name)).expect("has_room said so");
                }
                assert!(model.insert(name.to_vec(), ()).is_none());
            }
            assert_eq!(verify(&page, 0), Ok(()), "step {step}");
            assert_eq!(dirents(&page).count(), model.len());
        }
    }

    /// Goal: `verify` refuses names that programs can't use.
    #[test]
    fn names_that_no_directory_has_are_refused() {
        for name in [&b"."[..], b"..", b"a/b", b"/", b"a\0"] {
            let mut page = empty();
            insert(&mut page, &new_dirent(b"a")).expect("there is room");
            insert(&mut page, &new_dirent(name)).expect("there is room");
            let refused = verify(&page, 0).expect_err("it is no name");
            let is_name = matches!(refused, DirectoryDefect::BadField { field: "name", .. });
            assert!(is_name, "{refused:?}");
        }
        for name in [&b"..."[..], b".a", b"a."] {
            let mut page = empty();
            insert(&mut page, &new_dirent(name)).expect("there is room");
            assert_eq!(verify(&page, 0), Ok(()));
        }
    }

    #[test]
    fn damaged_pages_are_refused_without_panic() {
        let mut page = empty();
        for name in [&b"a"[..], b"bb", b"ccc"] {
            insert(&mut page, &new_dirent(name));
        }
        assert_eq!(verify(&page, 0), Ok(()));
        let mut refused = 0;
        for bit in PAGE_HEADER_BYTES * 8..(PAGE_HEADER_BYTES + 120) * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            refused += u32::from(verify(&page, 0).is_err());
            let _ = dirents(&page).count();
            page[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(refused > 50, "only {refused} damages seen");
    }

    #[test]
    fn page_numbers_of_a_split_are_the_old_one_and_its_sibling() {
        let hash = 0xab_cdef_0123_4567;
        for depth in 0..DEPTH_MAX {
            let (number, deeper) = (page_number(hash, depth), page_number(hash, depth + 1));
            assert!(deeper == number || deeper == number + (1 << depth));
        }
        let mut page = empty();
        for (number, depth, is_good) in
            [(0, 0, true), (1, 0, false), (5, 3, true), (5, 2, false), (0, 41, false)]
        {
            initialise(&mut page, depth);
            assert_eq!(verify(&page, number).is_ok(), is_good, "{number} {depth}");
        }
        assert_eq!(next_prefix(hash, 0), None);
        assert_eq!(next_prefix(1, 1), Some(1 << 55));
    }

    #[test]
    fn collisions_get_numbers_of_their_own() {
        let mut page = empty();
        for collision in 0..100 {
            let name = format!("{collision}");
            let looked = look(&page, 77, name.as_bytes());
            assert_eq!((looked.found, looked.collision), (None, Some(collision)));
            let cookie = cookie_of(77, collision);
            insert(&mut page, &NewDirent { cookie, ..new_dirent(name.as_bytes()) });
        }
    }

    #[test]
    fn pages_cover_hashes_and_two_never_the_same() {
        let whole = Some(vec![ALL_HASHES]);
        for pages in [&mut [(0, 0)][..], &mut [(1, 1), (0, 1)], &mut [(2, 2), (0, 2), (1, 1)]] {
            assert_eq!(covered(pages), whole);
        }
        assert_eq!(covered(&mut []), Some(Vec::new()));
        let quarters = 1 << 62;
        assert_eq!(
            covered(&mut [(0, 2), (1, 2)]),
            Some(vec![0..quarters, 2 * quarters..3 * quarters])
        );
        assert_eq!(covered(&mut [(0, 1), (1, 1), (3, 2)]), None, "an overlap");
        assert_eq!(covered(&mut [(0, 0), (0, 0)]), None, "one twice");
    }
}
