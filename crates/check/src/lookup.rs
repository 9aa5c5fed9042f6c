//! Direct lookups without a walk: a block of a container, an anode, a fileset, a name.

use format::anode::{ANODE_BYTES, Anode, POOL_FILESET_TABLE, page_and_slot, slot_offset};
use format::directory;
use format::fileset::Fileset;
use format::ids::{AnodeNo, FilesetId};
use format::map::{self, FINE_LEVEL};
use format::page::{PageBytes, PageKind, PageOwner, SLOT_BYTES, SLOTS_PER_PAGE};
use format::pointer::BlockPointer;

use crate::convert::to_u64;
use crate::map::{page_pointers, split_pointers};
use crate::reader::{PageRequest, PoolReader};
use format::text::shown;

pub use crate::map::{Indexed, root_pointers, wanted_page};

/// Bound of the depth of a path.
pub const DEPTH_MAX: usize = 128;
/// Enough for a directory of a million names.
const PAGES_SEARCHED_MAX: usize = 32_768;
const FILESET_PAGES_MAX: usize = 4096;

/// Returns the pointer to block `index` of `anode`; `None` for a hole or an unreadable map.
pub fn find_block(reader: &PoolReader, anode: &Anode, index: u64) -> Option<BlockPointer> {
    if index >= map::capacity_of_height(anode.height) {
        return None;
    }
    let (first, pointer) = root_pointers(anode).into_iter().rfind(|(first, _)| *first <= index)?;
    let mut found: Indexed = (first, pointer);
    let is_inside = |found: &Indexed, level| index - found.0 < map::span_of_pointer(level);
    for level in (0..anode.height).rev() {
        if !is_inside(&found, level + 1) {
            return None;
        }
        let wanted = wanted_page(anode, PageKind::Map, level, &found);
        let page = reader.read_page(&wanted).ok()?;
        found = page_pointers(&page, found.0, level).into_iter().rfind(|p| p.0 <= index)?;
    }
    (found.0 == index).then_some(found.1)
}

/// Returns the pointer to the map page at `level` above block `index`.
pub fn find_map_page(
    reader: &PoolReader,
    anode: &Anode,
    index: u64,
    level: u8,
) -> Option<BlockPointer> {
    let mut found = root_pointers(anode).into_iter().rfind(|(first, _)| *first <= index)?;
    for above in (level + 1..anode.height).rev() {
        let page = reader.read_page(&wanted_page(anode, PageKind::Map, above, &found)).ok()?;
        found = page_pointers(&page, found.0, above).into_iter().rfind(|p| p.0 <= index)?;
    }
    Some(found.1)
}

/// A pointer to a block of a file.
#[derive(Clone, Copy, Debug)]
pub struct FoundBlock {
    /// Block number, in units of its own size.
    pub index: u64,
    /// Binary logarithm of the block's size.
    pub shift: u8,
    /// The pointer.
    pub pointer: BlockPointer,
}

/// Returns the block with the byte at `offset` of a file; `None` for a hole or an unreadable map.
pub fn find_data(reader: &PoolReader, anode: &Anode, offset: u64) -> Option<FoundBlock> {
    let index = offset >> anode.block_shift;
    if anode.height > 0 && index < map::capacity_of_height(anode.height) {
        let leaf = (map::page_index(index, 0), find_map_page(reader, anode, index, 0)?);
        let page = reader.read_page(&wanted_page(anode, PageKind::Map, 0, &leaf)).ok()?;
        if map::is_split(&page) {
            let index = offset >> map::FINE_SHIFT;
            let fine = split_pointers(&page, leaf.0).into_iter().rfind(|p| p.0 <= index)?;
            let page = reader.read_page(&wanted_page(anode, PageKind::Map, FINE_LEVEL, &fine));
            let found = page_pointers(&*page.ok()?, fine.0, 0).into_iter().find(|p| p.0 == index);
            let found = found.filter(|(_, pointer)| pointer.stored().is_some());
            return found.map(|(index, pointer)| FoundBlock {
                index,
                shift: map::FINE_SHIFT,
                pointer,
            });
        }
    }
    let pointer = find_block(reader, anode, index)?.stored()?;
    Some(FoundBlock { index, shift: anode.block_shift, pointer })
}

/// Reads anode `number` of the fileset with anode table `table`.
pub fn read_anode(reader: &PoolReader, table: &Anode, number: AnodeNo) -> Option<Anode> {
    let (index, slot) = page_and_slot(number);
    let page = read_content(reader, table, PageKind::Anode, index)?;
    let bytes: &[u8; ANODE_BYTES] = page.get(slot_offset(slot)..)?.first_chunk()?;
    Anode::decode(bytes, table.fileset, number).ok()?
}

/// Reads page `index` of a container of pages.
pub fn read_content(
    reader: &PoolReader,
    anode: &Anode,
    kind: PageKind,
    index: u64,
) -> Option<Box<PageBytes>> {
    let pointer = find_block(reader, anode, index)?;
    reader.read_page(&wanted_page(anode, kind, 0, &(index, pointer))).ok()
}

/// Visits the pages of content of `anode`, until `each` returns `false` or `pages_max` pages were
/// read.
pub fn each_block(
    reader: &PoolReader,
    anode: &Anode,
    pages_max: usize,
    each: &mut dyn FnMut(&Indexed) -> bool,
) {
    each_data(reader, anode, pages_max, &mut |found| each(&(found.index, found.pointer)));
}

/// Visits the blocks of `anode`, until `each` returns `false` or `pages_max` pages were read.
pub fn each_data(
    reader: &PoolReader,
    anode: &Anode,
    pages_max: usize,
    each: &mut dyn FnMut(&FoundBlock) -> bool,
) {
    let mut left = pages_max;
    // Level, or `FINE_LEVEL` for a fine leaf.
    let mut stack: Vec<(u8, u8, Indexed)> = root_pointers(anode)
        .into_iter()
        .rev()
        .map(|pointer| (anode.height, anode.block_shift, pointer))
        .collect();
    while let Some((level, shift, pointer)) = stack.pop() {
        if left == 0 {
            return;
        }
        left -= 1;
        if level == 0 {
            let found = FoundBlock { index: pointer.0, shift, pointer: pointer.1 };
            if each(&found) {
                continue;
            }
            return;
        }
        let is_fine = level == FINE_LEVEL;
        let page_level = if is_fine { FINE_LEVEL } else { level - 1 };
        let wanted = wanted_page(anode, PageKind::Map, page_level, &pointer);
        let Ok(page) = reader.read_page(&wanted) else { continue };
        let (below, shift, pointers) = if is_fine {
            (0, map::FINE_SHIFT, page_pointers(&page, pointer.0, 0))
        } else if page_level == 0 && map::is_split(&page) {
            (FINE_LEVEL, map::FINE_SHIFT, split_pointers(&page, pointer.0))
        } else {
            (page_level, shift, page_pointers(&page, pointer.0, page_level))
        };
        stack.extend(pointers.into_iter().rev().map(|pointer| (below, shift, pointer)));
    }
}

/// Returns the name of `target` in `directory`.
pub fn name_in(reader: &PoolReader, directory: &Anode, target: AnodeNo) -> Option<String> {
    let mut name = None;
    each_block(reader, directory, PAGES_SEARCHED_MAX, &mut |pointer| {
        let wanted = wanted_page(directory, PageKind::Directory, 0, pointer);
        if let Ok(page) = reader.read_page(&wanted) {
            let found = directory::dirents(page.as_slice()).find(|d| d.anode == target);
            name = found.map(|dirent| shown(dirent.name));
        }
        name.is_none()
    });
    name
}

/// Returns the container of the fileset table.
pub fn fileset_table(reader: &PoolReader) -> Option<Anode> {
    let place = reader.geometry.group_layout().root_place();
    let owner = Some(PageOwner::default());
    let root = reader.read_page(&PageRequest { place, kind: PageKind::Anode, owner }).ok()?;
    let slot: &[u8; SLOT_BYTES] = root.get(slot_offset(0)..)?.first_chunk()?;
    Anode::decode(slot, FilesetId(0), POOL_FILESET_TABLE).ok()?
}

/// Returns the readable filesets of the pool.
pub fn filesets(reader: &PoolReader) -> Vec<Fileset> {
    let mut filesets = Vec::new();
    let Some(table) = fileset_table(reader) else { return filesets };
    each_block(reader, &table, FILESET_PAGES_MAX, &mut |pointer| {
        let wanted = wanted_page(&table, PageKind::FilesetTable, 0, pointer);
        let Ok(page) = reader.read_page(&wanted) else { return true };
        for slot in 0..SLOTS_PER_PAGE {
            let number = pointer.0.saturating_mul(7).saturating_add(to_u64(slot));
            let bytes = page.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
            let (Some(bytes), Ok(number)) = (bytes, u32::try_from(number)) else { continue };
            filesets.extend(Fileset::decode(bytes, number).ok().flatten());
        }
        true
    });
    filesets
}

/// Returns the user's name of the fileset in `slot`, with `?` for unknown parts.
pub fn fileset_name(filesets: &[Fileset], slot: u32) -> String {
    let mut parts = Vec::new();
    let mut next = Some(slot);
    while let Some(slot) = next.filter(|_| parts.len() <= filesets.len()) {
        let found = filesets.iter().find(|fileset| fileset.slot == slot);
        parts.push(found.map_or("?", |fileset| fileset.name.as_str()));
        next = found.and_then(|fileset| fileset.above);
    }
    parts.reverse();
    parts.join("/")
}

/// Returns the page that would hold `name`, with its number.
pub fn directory_page(
    reader: &PoolReader,
    directory: &Anode,
    name: &[u8],
) -> Option<(u64, Box<PageBytes>)> {
    let hash = directory::hash_of(directory.key, name);
    (0..=directory::DEPTH_MAX).find_map(|depth| {
        let number = directory::page_number(hash, depth);
        let page = read_content(reader, directory, PageKind::Directory, number)?;
        (directory::depth(page.as_slice()) == depth).then_some((number, page))
    })
}
