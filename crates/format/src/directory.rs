//! Directory pages: dirents under their keyed hash.
//!
//! # Layout
//!
//! A directory is a container of pages. A page holds the names whose hash begins with the page's
//! prefix of `depth` bits; its number in the container is that prefix with its bits reversed, so
//! that a page which splits keeps its number and its new sibling takes `number + 2^depth`
//! (extendible hashing: Fagin and others, "Extendible Hashing - A Fast Access Method for Dynamic
//! Files", 1979). The container's own map says which pages there are; no other index is needed.
//!
//! ```text
//!   page:  header (count, bytes in use, depth) | dirent | dirent | free | dirent | free        |
//! ```
//!
//! # Invariants
//!
//! - H1: Entries tile the body: each begins where the one before it ends, the last at the end.
//! - H2: `count` dirents are in use, in `used` bytes; no two have the same cookie or name.
//! - H3: The hash of every name begins with the page's prefix.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::anode::AnodeKind;
use crate::defect::{DefectCode, FoundDefect};
use crate::hash::siphash13;
use crate::ids::{AnodeNo, Generation};
use crate::page::{AUX_OFFSET, COUNT_OFFSET, PAGE_BYTES, PAGE_HEADER_BYTES, read_u32, read_u64};
use crate::page::{write_u32, write_u64};

/// Bytes of a dirent in front of its name.
pub const DIRENT_HEAD_BYTES: usize = 24;
/// Entries begin at multiples of this many bytes.
pub const DIRENT_UNIT_BYTES: usize = 8;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Greatest depth of a page: so many bits of the hash number a page.
pub const DEPTH_MAX: u8 = 40;
/// Names that may share a hash: 7 bits tell them apart.
pub const COLLISIONS_MAX: u64 = 128;
/// Bits of the hash in a cookie.
const HASH_BITS: u32 = 56;
const COLLISION_BITS: u32 = 7;

/// Byte for byte. Format: `docs/FORMAT.md#dirent`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct DirentDisk {
    /// Keyed hash of the name (56 bits), collision number (7 bits); 0: free space.
    cookie: U64,
    /// Anode number: lower 32 bits.
    anode_low: U32,
    /// Anode number: upper 8 bits.
    anode_high: u8,
    /// An [`AnodeKind`].
    kind: u8,
    /// Bytes of the name.
    name_bytes: u8,
    /// Zero.
    reserved: u8,
    /// Generation of the anode, lower 32 bits. Detects a name of an earlier file.
    generation_low: U32,
    /// Generation of the anode, next 16 bits.
    generation_high: U16,
    /// Length of the entry, name and padding included, in units of 8 bytes.
    units: U16,
}

const _: () = assert!(size_of::<DirentDisk>() == DIRENT_HEAD_BYTES);

/// One name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'page> {
    /// Offset of the entry in the page.
    pub offset: usize,
    /// Keyed hash and collision number: the order of readdir.
    pub cookie: u64,
    /// What it names.
    pub anode: AnodeNo,
    /// Generation of what it names.
    pub generation: Generation,
    /// Kind of what it names.
    pub kind: AnodeKind,
    /// The name.
    pub name: &'page [u8],
}

/// What a new dirent says.
#[derive(Clone, Copy, Debug)]
pub struct NewDirent<'name> {
    /// Keyed hash and collision number.
    pub cookie: u64,
    /// What it names.
    pub anode: AnodeNo,
    /// Generation of what it names: below 2^48.
    pub generation: Generation,
    /// Kind of what it names.
    pub kind: AnodeKind,
    /// The name: 1 to 255 bytes.
    pub name: &'name [u8],
}

/// Why a directory page is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryDefect {
    /// H1: entries do not tile the body.
    #[error("{}: entry at {offset} has a length of {units} units", self.code())]
    BadLength {
        /// Of the entry in the page.
        offset: usize,
        /// On disk.
        units: u16,
    },
    /// A field that can't be so.
    #[error("{}: entry at {offset}: {field} is out of bounds", self.code())]
    BadField {
        /// Of the entry in the page.
        offset: usize,
        /// Which field.
        field: &'static str,
    },
    /// H2: the counts are wrong.
    #[error("{}: page says {stored} names, holds {counted}", self.code())]
    BadCount {
        /// On disk.
        stored: u32,
        /// Of the entries.
        counted: u32,
    },
    /// H2: the bytes in use are wrong.
    #[error("{}: page says {stored} bytes in use, holds {counted}", self.code())]
    BadUsed {
        /// On disk.
        stored: u64,
        /// Of the entries.
        counted: u64,
    },
    /// H2: two names have the same cookie.
    #[error("{}: two names with cookie {cookie:#x}", self.code())]
    DuplicateCookie {
        /// Which.
        cookie: u64,
    },
    /// H3: a name is in the wrong page.
    #[error("{}: entry at {offset}: hash does not begin with the page's prefix", self.code())]
    WrongPage {
        /// Of the entry in the page.
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

/// Returns the cookie of the `collision`-th name with `hash`.
#[must_use]
pub fn cookie_of(hash: u64, collision: u64) -> u64 {
    hash << COLLISION_BITS | collision
}

/// Returns the hash in a cookie.
#[must_use]
pub fn hash_in(cookie: u64) -> u64 {
    cookie >> COLLISION_BITS
}

/// Returns the number of the page at `depth` on the way to `hash`: its first bits, reversed.
#[must_use]
pub fn page_number(hash: u64, depth: u8) -> u64 {
    let first_bits_last = (hash << (64 - HASH_BITS)).reverse_bits();
    first_bits_last & ((1 << depth) - 1)
}

/// Returns the lowest hash whose first bits, reversed, are `number`.
fn number_hash(number: u64) -> u64 {
    number.reverse_bits() >> (64 - HASH_BITS)
}

/// Returns the first hash of the page at `depth` that holds `hash`.
#[must_use]
pub fn prefix_start(hash: u64, depth: u8) -> u64 {
    hash & !((1_u64 << (HASH_BITS - u32::from(depth))) - 1)
}

/// Returns the first hash after the page at `depth` that holds `hash`; `None` past the last page.
#[must_use]
pub fn next_prefix(hash: u64, depth: u8) -> Option<u64> {
    let next = prefix_start(hash, depth) + (1_u64 << (HASH_BITS - u32::from(depth)));
    (next < 1 << HASH_BITS).then_some(next)
}

/// Every hash, where the first bits of one are the first of 64.
pub const ALL_HASHES: Range<u128> = 0..1 << 64;

/// Returns the hashes that pages hold, as ranges that do not touch, in order; of each page its
/// number and depth. `None`: two pages hold the same.
///
/// A page's number is the first bits of its hashes, reversed; so the number reversed in 64 bits is
/// where its hashes begin, and it holds `2^(64 - depth)` of them.
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

/// Returns the bytes that a dirent with a name of `name_bytes` takes.
#[must_use]
pub fn entry_bytes(name_bytes: usize) -> usize {
    (DIRENT_HEAD_BYTES + name_bytes).next_multiple_of(DIRENT_UNIT_BYTES)
}

/// Returns how many names the page holds.
#[must_use]
pub fn count(page: &[u8]) -> u32 {
    read_u32(page, COUNT_OFFSET)
}

/// Returns how many bytes of the body are in use.
#[must_use]
pub fn used_bytes(page: &[u8]) -> u64 {
    read_u64(page, AUX_OFFSET)
}

/// Returns the depth of the page.
#[must_use]
pub fn depth(page: &[u8]) -> u8 {
    page.get(DEPTH_OFFSET).copied().unwrap_or(0).min(DEPTH_MAX)
}

/// The bytes of a page that count its names: whole words, from the term of the writer to the bytes
/// in use.
pub const COUNTS: Range<usize> = COUNT_OFFSET - 4..AUX_OFFSET + 8;
/// Where the count of names is in [`COUNTS`].
const COUNT_AT: usize = COUNT_OFFSET - COUNTS.start;
/// Where the bytes in use are in [`COUNTS`].
const USED_AT: usize = AUX_OFFSET - COUNTS.start;
const _: () = assert!(COUNTS.start.is_multiple_of(8) && COUNTS.end.is_multiple_of(8));

/// Offset of the depth: the second auxiliary field.
const DEPTH_OFFSET: usize = AUX_OFFSET + 8;

/// Makes an empty directory page of `depth` out of a page that has a header.
pub fn initialise(page: &mut [u8], depth: u8) {
    page[PAGE_HEADER_BYTES..].fill(0);
    write_u32(page, COUNT_OFFSET, 0);
    write_u64(page, AUX_OFFSET, 0);
    write_u64(page, DEPTH_OFFSET, u64::from(depth));
    write_free(page, PAGE_HEADER_BYTES, PAGE_BYTES - PAGE_HEADER_BYTES);
}

/// Changes the depth of the page.
pub fn set_depth(page: &mut [u8], depth: u8) {
    write_u64(page, DEPTH_OFFSET, u64::from(depth));
}

fn write_free(page: &mut [u8], offset: usize, bytes: usize) {
    // Below 24 bytes only the length fits: an 8-byte gap is part of the entry before it.
    let units = u16::try_from(bytes / DIRENT_UNIT_BYTES).expect("a page is small");
    let disk = DirentDisk { units: U16::new(units), ..DirentDisk::new_zeroed() };
    disk.write_to_prefix(&mut page[offset..]).expect("free entries are 24 bytes at least");
}

fn raw_entry(page: &[u8], offset: usize) -> Option<&DirentDisk> {
    let (disk, _) = DirentDisk::ref_from_prefix(page.get(offset..)?).ok()?;
    Some(disk)
}

/// Steps over the entries of a page, free ones included: offset, length in bytes, entry. Ends at
/// the first entry that can't be so.
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

/// Steps over the names of a page, in the order in which they lie.
pub fn dirents(page: &[u8]) -> impl Iterator<Item = Dirent<'_>> {
    raw_entries(page)
        .filter(|(_, _, disk)| disk.cookie.get() != 0)
        .filter_map(|(offset, _, disk)| dirent_at(page, offset, disk))
}

/// Finds `name`, whose hash is `hash`.
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
    /// Whether a name of `name_bytes` fits: what remains behind it must be nothing or a free entry.
    fn fits(&self, name_bytes: usize) -> bool {
        let need = entry_bytes(name_bytes);
        self.bytes == need || self.bytes >= need + DIRENT_HEAD_BYTES
    }

    /// Returns the bytes of the page that a name of `name_bytes` changes here, beside [`COUNTS`].
    #[must_use]
    pub fn range_for(&self, name_bytes: usize) -> Range<usize> {
        let need = entry_bytes(name_bytes);
        let behind = if self.bytes > need { DIRENT_HEAD_BYTES } else { 0 };
        self.offset..self.offset + need + behind
    }
}

/// What one look through a page tells of a name.
#[derive(Clone, Copy, Debug)]
pub struct Look<'page> {
    /// The name, if it is there.
    pub found: Option<Dirent<'page>>,
    /// Otherwise the lowest collision number that no name with this hash has; `None`: all are
    /// taken.
    pub collision: Option<u64>,
    /// Otherwise the first free entry that has room for it.
    pub gap: Option<Gap>,
}

/// Looks for `name`, whose hash is `hash`, and for where it would go.
#[must_use]
pub fn look<'page>(page: &'page [u8], hash: u64, name: &[u8]) -> Look<'page> {
    let (mut taken, mut gap) = (0_u128, None);
    for (offset, bytes, disk) in raw_entries(page) {
        let cookie = disk.cookie.get();
        if cookie == 0 {
            let free = Gap { offset, bytes };
            gap = gap.or_else(|| free.fits(name.len()).then_some(free));
        } else if hash_in(cookie) == hash {
            let dirent = dirent_at(page, offset, disk);
            if let Some(found) = dirent.filter(|dirent| dirent.name == name) {
                return Look { found: Some(found), collision: None, gap: None };
            }
            taken |= 1 << (cookie & (COLLISIONS_MAX - 1));
        }
    }
    let collision = u64::from(taken.trailing_ones());
    Look { found: None, collision: (collision < COLLISIONS_MAX).then_some(collision), gap }
}

/// Whether [`insert`] would find room for a name of `name_bytes`, perhaps after [`compact`].
#[must_use]
pub fn has_room(page: &[u8], name_bytes: usize) -> bool {
    let used = usize::try_from(used_bytes(page)).unwrap_or(PAGE_BYTES);
    let free = (PAGE_BYTES - PAGE_HEADER_BYTES).saturating_sub(used);
    // What remains behind the new entry must be nothing or a free entry.
    let need = entry_bytes(name_bytes);
    free == need || free >= need + DIRENT_HEAD_BYTES
}

/// Adds a name where there is a free entry that is long enough. Returns the offset of the dirent;
/// `None` if no free entry is: [`compact`] and try again, or split the page.
pub fn insert(page: &mut [u8], new: &NewDirent<'_>) -> Option<usize> {
    let gap = raw_entries(page)
        .filter(|(_, _, disk)| disk.cookie.get() == 0)
        .map(|(offset, bytes, _)| Gap { offset, bytes })
        .find(|gap| gap.fits(new.name.len()))?;
    put(&mut page[gap.range_for(new.name.len())], gap, new);
    add_to_counts(&mut page[COUNTS], entry_bytes(new.name.len()));
    Some(gap.offset)
}

/// Puts a name into a free entry that has room for it; `bytes` are those of [`Gap::range_for`].
///
/// # Panics
///
/// If it has not: a bug in the caller.
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

/// Counts one name more, of an entry of `bytes`, in the bytes [`COUNTS`] of its page.
pub fn add_to_counts(counts: &mut [u8], bytes: usize) {
    let (names, used) = (read_u32(counts, COUNT_AT), read_u64(counts, USED_AT));
    write_u32(counts, COUNT_AT, names + 1);
    write_u64(counts, USED_AT, used + u64::try_from(bytes).expect("small"));
}

/// Counts one name less, of an entry of `bytes`, in the bytes [`COUNTS`] of its page. Returns how
/// many are left.
pub fn subtract_from_counts(counts: &mut [u8], bytes: usize) -> u32 {
    let (names, used) = (read_u32(counts, COUNT_AT), read_u64(counts, USED_AT));
    let names = names.saturating_sub(1);
    write_u32(counts, COUNT_AT, names);
    write_u64(counts, USED_AT, used.saturating_sub(u64::try_from(bytes).expect("small")));
    names
}

/// Removes the dirent at `offset`, which a find in this very page returned. The free space is
/// joined with the free entry behind it, if there is one.
///
/// # Panics
///
/// If there is no dirent at `offset`: a bug in the caller.
pub fn remove(page: &mut [u8], offset: usize) {
    let cookie = raw_entry(page, offset).map_or(0, |disk| disk.cookie.get());
    let removal = removal(page, offset, cookie).expect("found in this page");
    put_gap(&mut page[removal.head()], removal.gap);
    subtract_from_counts(&mut page[COUNTS], removal.entry_bytes);
}

/// What the removal of a name leaves.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    /// Length of the entry of the name.
    pub entry_bytes: usize,
    /// The free entry that takes its place, and that of a free entry behind it.
    pub gap: Gap,
}

impl Removal {
    /// Returns the bytes of the page that change, beside [`COUNTS`].
    #[must_use]
    pub fn head(&self) -> Range<usize> {
        self.gap.offset..self.gap.offset + DIRENT_HEAD_BYTES
    }
}

/// Returns what the removal of the dirent at `offset`, which has `cookie`, leaves; `None` if there
/// is none such.
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

/// Returns the bytes of the page that [`retarget`] changes of the dirent at `offset`.
#[must_use]
pub fn head_at(offset: usize) -> Range<usize> {
    offset..offset + DIRENT_HEAD_BYTES
}

/// Changes what the dirent whose head is `head` names, its name and cookie unchanged.
///
/// # Panics
///
/// If there are fewer bytes than a head: a bug in the caller.
pub fn retarget(head: &mut [u8], anode: AnodeNo, generation: Generation, kind: AnodeKind) {
    let mut disk = *raw_entry(head, 0).expect("a head is long enough");
    disk.anode_low = U32::new(u32::try_from(anode.0 & 0xffff_ffff).expect("masked"));
    disk.anode_high = u8::try_from(anode.0 >> 32 & 0xff).expect("masked");
    disk.kind = kind.code();
    disk.generation_low = U32::new(u32::try_from(generation.0 & 0xffff_ffff).expect("masked"));
    disk.generation_high = U16::new(u16::try_from(generation.0 >> 32 & 0xffff).expect("masked"));
    disk.write_to_prefix(head).expect("a head is long enough");
}

/// Moves every name to the front, so that all free space is in one entry.
pub fn compact(page: &mut [u8]) {
    let old = page.to_vec();
    initialise(page, depth(&old));
    for dirent in dirents(&old) {
        copy_entry(page, &dirent);
    }
}

/// Adds a dirent of another page to this one, which has room for it.
///
/// # Panics
///
/// If it has not: a bug in the caller.
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

/// Checks every invariant of a page whose header has been verified, numbered `number` in its
/// directory.
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
        // `.` and `..` would lead a program that walks down a tree round in circles.
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

    /// Random inserts and removes against a map, `verify` after each.
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

    /// Goal: an entry has a name that programs can use.
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
