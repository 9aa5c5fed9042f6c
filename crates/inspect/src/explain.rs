//! Explains the layers between a name and a byte on disk, in both directions.
//!
//! A pool that was not closed is shown as after the next mount.

use std::fmt::Write as _;
use std::ops::Range;

use format::anode::{Anode, ROOT_ANODE, StorageMode, page_and_slot, slot_offset};
use format::directory;
use format::fileset::{Fileset, FilesetName, ROOT_FILESET};
use format::geometry::{Geometry, JOURNAL_HEADS, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_COPIES};
use format::group::{SegmentUsage, USAGES_PER_PAGE};
use format::heartbeat::HEARTBEAT_OFFSET;
use format::ids::{AnodeNo, FilesetId, Place};
use format::map::{height_for, page_index};
use format::page::{PAGE_BYTES, PageBytes, PageHeader, PageKind, SLOTS_PER_PAGE};
use format::placement::Placement;
use format::pointer::{BlockPointer, CheckKind};
use format::summary::{SegmentSummary, SummaryKind};
use format::text::{quoted, shown};
use storage::device::SharedDevice;

use crate::stripe::{Mirrors, members_of};
use crate::{InspectError, InspectedPool};
use check::convert::{index_of, to_u64, to_usize};
use check::lookup::{
    DEPTH_MAX, FoundBlock, directory_page, each_block, each_data, fileset_name, filesets,
    find_block, find_data, find_map_page, name_in, read_anode, wanted_page,
};
use check::reader::{PageRequest, PoolReader};
use check::report::json_string;

/// Most blocks in one explanation.
pub const BLOCKS_MAX: u64 = 1000;
/// Most pages per container in a search for the owner of a block.
const SEARCH_PAGES_MAX: usize = 1 << 20;

/// One layer between a name and a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Kind of layer: `superblock`, `fileset`, `dirent`, `anode`, `map`, `block`, `segment` ...
    pub layer: &'static str,
    /// Description.
    pub what: String,
    /// Place in the pool.
    pub place: Option<Place>,
    /// Byte of the device.
    pub device_offset: Option<u64>,
}

/// The layers, from the requested one on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Layers in order.
    pub layers: Vec<Layer>,
    mirrors: Mirrors,
}

impl Explanation {
    fn of(opened: &InspectedPool) -> Explanation {
        Explanation { layers: Vec::new(), mirrors: Mirrors::of(&opened.superblock) }
    }

    fn add_copies(&mut self, geometry: &Geometry, place: Place, fragments: u32) {
        if let Some(copies) = self.mirrors.copies_of(geometry, place, fragments) {
            self.add("copies", None, None, copies);
        }
    }

    fn add(
        &mut self,
        layer: &'static str,
        place: Option<Place>,
        device_offset: Option<u64>,
        what: String,
    ) {
        self.layers.push(Layer { layer, what, place, device_offset });
    }

    fn add_at(&mut self, geometry: &Geometry, layer: &'static str, place: Place, what: String) {
        self.add(layer, Some(place), geometry.device_offset(place, 1), what);
        for line in members_of(geometry, place, 1, true) {
            self.add("copies", None, None, line);
        }
        self.add_copies(geometry, place, 1);
    }

    /// Returns the explanation as text, one line a layer.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for layer in &self.layers {
            let _ = write!(text, "{:<12}{}", layer.layer, layer.what);
            if let Some(place) = layer.place {
                let _ = write!(text, ", place {place}");
            }
            if let Some(offset) = layer.device_offset {
                let _ = write!(text, ", device byte {offset}");
            }
            text.push('\n');
        }
        text
    }

    /// Returns the explanation as a JSON array.
    #[must_use]
    pub fn to_json(&self) -> String {
        let number = |number: Option<u64>| number.map_or("null".to_owned(), |n| n.to_string());
        let place = |place: Option<Place>| {
            place.map_or("null".to_owned(), |place| json_string(&place.to_string()))
        };
        let layers: Vec<String> = self
            .layers
            .iter()
            .map(|layer| {
                format!(
                    "{{\"layer\":\"{}\",\"what\":{},\"place\":{},\"device_offset\":{}}}",
                    layer.layer,
                    json_string(&layer.what),
                    place(layer.place),
                    number(layer.device_offset)
                )
            })
            .collect();
        format!("[{}]", layers.join(","))
    }
}

/// Selects the fileset of a path.
#[derive(Clone, Copy, Debug)]
pub enum FilesetSelector<'a> {
    /// The root fileset.
    First,
    /// The fileset of this name.
    Named(&'a FilesetName),
    /// The fileset with this UUID.
    Uuid([u8; 16]),
}

impl FilesetSelector<'_> {
    fn is(self, all: &[Fileset], fileset: &Fileset) -> bool {
        let is_live = fileset.state.cursor().is_none();
        match self {
            FilesetSelector::First => fileset.id == ROOT_FILESET,
            FilesetSelector::Named(name) => {
                is_live && fileset_name(all, fileset.slot) == name.to_string()
            }
            FilesetSelector::Uuid(uuid) => is_live && fileset.uuid == uuid,
        }
    }
}

/// Explains `path` and its bytes in `range` (all by default), up to [`BLOCKS_MAX`] blocks.
///
/// # Errors
///
/// [`InspectError`] for no pool or no such name.
pub fn explain_path(
    device: &SharedDevice,
    whose: FilesetSelector<'_>,
    path: &[u8],
    range: Option<Range<u64>>,
) -> Result<Explanation, InspectError> {
    let opened = InspectedPool::replayed(device)?;
    let reader = &opened.reader;
    let mut explanation = Explanation::of(&opened);
    explain_superblock(&opened, &mut explanation);
    let name = || shown(path);
    let all = filesets(reader);
    let fileset = all.iter().find(|fileset| whose.is(&all, fileset)).ok_or_else(|| {
        let why = match whose {
            FilesetSelector::Named(name) => format!("there is no fileset {name}"),
            FilesetSelector::First | FilesetSelector::Uuid(_) => {
                "its fileset can't be read".to_owned()
            }
        };
        InspectError::not_there(name(), why)
    })?;
    explain_fileset(reader, (&all, fileset), &mut explanation);
    let table = fileset.table_anode();
    let mut anode = explain_anode(reader, &table, ROOT_ANODE, &mut explanation)
        .ok_or_else(|| InspectError::not_there(name(), "the root directory can't be read"))?;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let number = explain_name(reader, &anode, part, &mut explanation).ok_or_else(|| {
            let part = shown(part);
            InspectError::not_there(name(), format!("there is no {part}"))
        })?;
        anode = explain_anode(reader, &table, number, &mut explanation)
            .ok_or_else(|| InspectError::not_there(name(), format!("{number} can't be read")))?;
    }
    explain_blocks(reader, &anode, range, &mut explanation);
    Ok(explanation)
}

fn explain_superblock(opened: &InspectedPool, explanation: &mut Explanation) {
    let superblock = &opened.superblock;
    let state = if superblock.is_open { "open, or not closed; log replayed" } else { "closed" };
    let mut what = format!("pool {} sequence {}, {state}", superblock.pool_id, superblock.sequence);
    if !superblock.spares.is_empty() {
        what.push_str(&format!(", spares: {}", superblock.spares.len()));
    }
    for (slot, member) in superblock.members.iter().enumerate() {
        if let Some(missed) = member.missed {
            what.push_str(&format!(", slot {slot} has missed {} of 256 parts", missed.count()));
        }
    }
    explanation.add("superblock", None, Some(0), what);
}

fn explain_fileset(
    reader: &PoolReader,
    (all, fileset): (&[Fileset], &Fileset),
    explanation: &mut Explanation,
) {
    let (name, slot) = (fileset_name(all, fileset.slot), fileset.slot);
    let what = format!("{name} ({}) in slot {slot} of the fileset table", fileset.id);
    let page = check::lookup::fileset_table(reader)
        .and_then(|table| find_block(reader, &table, u64::from(fileset.slot) / 7));
    match page {
        Some(pointer) => {
            explanation.add_at(&reader.geometry, "fileset", pointer.place, what);
        }
        None => explanation.add("fileset", None, None, what),
    }
}

fn explain_anode(
    reader: &PoolReader,
    table: &Anode,
    number: AnodeNo,
    explanation: &mut Explanation,
) -> Option<Anode> {
    let (index, slot) = page_and_slot(number);
    let pointer = find_block(reader, table, index)?;
    let anode = read_anode(reader, table, number)?;
    let what = format!(
        "{number} {} in slot {slot} of page {index} of the anode table: {:?}, {:?}, {} bytes, {} \
         links, height {}",
        anode.generation, anode.kind, anode.storage, anode.size_bytes, anode.nlink, anode.height
    );
    explanation.add_at(&reader.geometry, "anode", pointer.place, what);
    if anode.placement != Placement::Any {
        let what = placement_of(reader, anode.placement);
        explanation.add_at(&reader.geometry, "placement", pointer.place, what);
    }
    explain_attributes(reader, table, &anode, pointer.place, explanation);
    Some(anode)
}

fn placement_of(reader: &PoolReader, placement: Placement) -> String {
    let geometry = &reader.geometry;
    let stays = |number: u8| {
        let mut added = geometry.added.iter();
        added.any(|range| range.disk_group == number && !range.is_leaving)
            || number == geometry.main && geometry.main_has_data
    };
    match placement {
        Placement::Group(number) if stays(number) => {
            format!("new data comes from disk group {number} while that has room")
        }
        Placement::Group(number) => format!(
            "new data comes from any disk group: {number}, which is preferred, takes none or is \
             gone"
        ),
        Placement::Any | Placement::RoundRobin | Placement::Striped => {
            format!("new data comes from a disk group that is {placement} while one has room")
        }
    }
}

/// Adds the names of inline attributes, and of the attributes in each entry page.
fn explain_attributes(
    reader: &PoolReader,
    table: &Anode,
    anode: &Anode,
    place: Place,
    explanation: &mut Explanation,
) {
    for (name, value) in anode.attributes.iter() {
        let name = quoted(&name.full());
        let what = format!("{name} in the anode, {} bytes", value.len());
        explanation.add_at(&reader.geometry, "attribute", place, what);
    }
    for number in [anode.xattr, anode.acl].into_iter().filter(|number| number.0 != 0) {
        let Some(container) = read_anode(reader, table, number) else { continue };
        each_block(reader, &container, SEARCH_PAGES_MAX, &mut |pointer| {
            let wanted = wanted_page(&container, PageKind::Attributes, 0, pointer);
            if let Ok(page) = reader.read_page(&wanted) {
                let names = format::attributes::entries(&page);
                let names: Vec<_> = names.map(|entry| quoted(&entry.name.full())).collect();
                let what = if format::attributes::is_value_page(&page) {
                    format!("page {} of {number}, part of a value", pointer.0)
                } else {
                    format!("page {} of {number}: {}", pointer.0, names.join(", "))
                };
                explanation.add_at(&reader.geometry, "attribute", pointer.1.place, what);
            }
            true
        });
    }
}

/// Adds the dirent, and returns its anode number.
fn explain_name(
    reader: &PoolReader,
    anode: &Anode,
    name: &[u8],
    explanation: &mut Explanation,
) -> Option<AnodeNo> {
    let (number, page) = directory_page(reader, anode, name)?;
    let hash = directory::hash_of(anode.key, name);
    let dirent = directory::find(page.as_slice(), hash, name)?;
    let place = PageHeader::parse(&page)?.place;
    let what = format!(
        "{} at byte {} of page {number} of the directory, hash {hash:#x}: {} {}",
        quoted(name),
        dirent.offset,
        dirent.anode,
        dirent.generation
    );
    explanation.add_at(&reader.geometry, "dirent", place, what);
    Some(dirent.anode)
}

fn explain_blocks(
    reader: &PoolReader,
    anode: &Anode,
    range: Option<Range<u64>>,
    explanation: &mut Explanation,
) {
    if anode.storage == StorageMode::Inline {
        explanation.add("data", None, None, "in the anode itself".to_owned());
        return;
    }
    let is_pages = anode.size_bytes == 0 && anode.pages > 0;
    let size = if is_pages { u64::MAX } else { anode.size_bytes };
    let range = range.unwrap_or(0..size);
    let (first, last) = (range.start, range.end.min(size).max(range.start));
    let mut shown = 0;
    let mut leaf = None;
    each_data(reader, anode, SEARCH_PAGES_MAX, &mut |found| {
        let start = found.index.saturating_mul(1 << found.shift);
        if start >= last || shown == BLOCKS_MAX {
            return false;
        }
        if start.saturating_add(1 << found.shift) > first {
            shown += 1;
            explain_map(reader, anode, start >> anode.block_shift, &mut leaf, explanation);
            explain_block(reader, anode, found, explanation);
        }
        true
    });
    if shown == 0 {
        explanation.add("data", None, None, format!("a hole: no block in bytes {first} to {last}"));
    } else if shown == BLOCKS_MAX {
        let what = format!("only the first {BLOCKS_MAX} blocks are shown; give a range");
        explanation.add("data", None, None, what);
    }
}

/// Adds the map pages on the path to a block, unless shown already.
fn explain_map(
    reader: &PoolReader,
    anode: &Anode,
    index: u64,
    leaf: &mut Option<u64>,
    explanation: &mut Explanation,
) {
    if anode.height == 0 || *leaf == Some(page_index(index, 0)) {
        return;
    }
    *leaf = Some(page_index(index, 0));
    debug_assert!(height_for(index) <= anode.height);
    for level in (0..anode.height).rev() {
        if let Some(pointer) = find_map_page(reader, anode, index, level) {
            let owner = page_index(index, level);
            let page = (owner, pointer);
            let page = reader.read_page(&wanted_page(anode, PageKind::Map, level, &page));
            let is_split = level == 0 && page.is_ok_and(|page| format::map::is_split(&page));
            let split = if is_split { ", split into leaves of 4 KiB blocks" } else { "" };
            let what = format!("page of level {level} from block {owner}{split}");
            explanation.add_at(&reader.geometry, "map", pointer.place, what);
        }
    }
}

fn explain_block(
    reader: &PoolReader,
    anode: &Anode,
    found: &FoundBlock,
    explanation: &mut Explanation,
) {
    let FoundBlock { index, shift, pointer } = found;
    let bytes = u64::from(pointer.fragments) * reader.geometry.fragment_bytes();
    let offset = reader.geometry.device_offset(pointer.place, pointer.fragments);
    let is_page = pointer.check_kind == CheckKind::Page;
    let read = |offset| match is_page {
        true => reader.read(offset, to_usize(bytes)),
        false => reader.read_data(offset, to_usize(bytes)),
    };
    let verdict = match offset.map(read) {
        None => "which is outside the pool",
        Some(Err(_)) => "which can't be read",
        Some(Ok(_)) if is_page => "a page",
        Some(Ok(data)) if pointer.verifies(&data) => "verifies",
        Some(Ok(_)) => "fails its checksum",
    };
    let size = if *shift == anode.block_shift { "" } else { " of 4 KiB" };
    let what = format!("{index}{size}: {bytes} bytes, {}, {verdict}", pointer.birth);
    explanation.add("block", Some(pointer.place), offset, what);
    for line in members_of(&reader.geometry, pointer.place, pointer.fragments, is_page) {
        explanation.add("stripe", None, None, line);
    }
    explanation.add_copies(&reader.geometry, pointer.place, pointer.fragments);
    explain_segment(reader, pointer.place, explanation);
}

fn explain_segment(reader: &PoolReader, place: Place, explanation: &mut Explanation) {
    let geometry = &reader.geometry;
    if geometry.device_offset(place, 1).is_none() || place.disk_group() != 0 {
        return;
    }
    let segment = geometry.segment_of(place);
    let usage = usage_of(reader, place.group(), segment);
    let what = match usage {
        Some(usage) => format!("{:?}, {} live fragments", usage.kind, usage.live),
        None => "of no known use".to_owned(),
    };
    let of = disk_group_of(geometry, place);
    let what = format!("{segment} of group {}{of}: {what}", place.group());
    let start = geometry.segment_place(place.group(), segment);
    explanation.add("segment", Some(start), geometry.device_offset(start, 1), what);
}

/// Returns disk group and round-robin device; empty in a pool with one disk group.
fn disk_group_of(geometry: &Geometry, place: Place) -> String {
    match geometry.group_layout().disk_group_of(place.group()) {
        Some(disk_group) if !geometry.added.is_empty() => {
            let lane = geometry.group_layout().range_of(place.group()).and_then(|range| range.lane);
            let lane = lane.map(|lane| format!(", on its device {lane}")).unwrap_or_default();
            format!(" of disk group {disk_group}{lane}")
        }
        Some(_) | None => String::new(),
    }
}

fn usage_of(reader: &PoolReader, group: u32, segment: u32) -> Option<SegmentUsage> {
    let place = reader.geometry.usage_place(group, segment / USAGES_PER_PAGE);
    let wanted = PageRequest { place, kind: PageKind::SegmentUsage, owner: None };
    SegmentUsage::of(&*reader.read_page(&wanted).ok()?, segment)
}

/// Explains the owner of byte `offset` of the device.
///
/// # Errors
///
/// [`InspectError`] for no pool, or a byte past its end.
pub fn explain_offset(device: &SharedDevice, offset: u64) -> Result<Explanation, InspectError> {
    let opened = InspectedPool::replayed(device)?;
    let geometry = &opened.reader.geometry;
    let mut explanation = Explanation::of(&opened);
    if offset >= opened.reader.device_bytes() {
        let why = "is past the end of the device";
        return Err(InspectError::not_there(offset.to_string(), why));
    }
    if let Some(place) = geometry.place_at(offset) {
        explain_place(&opened, place, offset, &mut explanation);
        return Ok(explanation);
    }
    let (layer, what) = region_of(geometry, offset, opened.reader.device_bytes());
    explanation.add(layer, None, Some(offset), what);
    Ok(explanation)
}

fn region_of(geometry: &Geometry, offset: u64, size_bytes: u64) -> (&'static str, String) {
    if (HEARTBEAT_OFFSET..HEARTBEAT_OFFSET + to_u64(PAGE_BYTES)).contains(&offset) {
        return ("heartbeat", format!("byte {} of its page", offset - HEARTBEAT_OFFSET));
    }
    for copy in 0..SUPERBLOCK_COPIES {
        let start = Geometry::superblock_offset(size_bytes, copy);
        if (start..start + SUPERBLOCK_AREA_BYTES).contains(&offset) {
            return ("superblock", format!("copy {copy}, byte {} of its area", offset - start));
        }
    }
    let page = to_u64(PAGE_BYTES);
    let within =
        |start: u64, bytes: u64| offset.checked_sub(start).filter(|&behind| behind < bytes);
    if let Some(behind) = within(geometry.journal_offset, geometry.journal_bytes) {
        return match behind.checked_sub(JOURNAL_HEADS * page) {
            None => ("journal", format!("head {}", behind / page)),
            Some(ring) => ("journal", format!("byte {ring} of the ring")),
        };
    }
    let heads = geometry.double_write_heads();
    let pages = geometry.double_write_pages.saturating_add(heads);
    if let Some(behind) = within(geometry.double_write_offset, pages.saturating_mul(page)) {
        let index = behind / page;
        return match index.checked_sub(heads) {
            None => ("double-write", format!("head {index}")),
            Some(index) => ("double-write", format!("page {index}")),
        };
    }
    let table_pages = geometry.group_table_pages() + 1;
    if let Some(behind) = within(geometry.group_table_offset, table_pages * page) {
        return match (behind / page).checked_sub(1) {
            None => ("group table", "its root".to_owned()),
            Some(index) => ("group table", format!("page {index}")),
        };
    }
    ("unused", "between the regions of the pool".to_owned())
}

fn explain_place(opened: &InspectedPool, place: Place, offset: u64, explanation: &mut Explanation) {
    let reader = &opened.reader;
    let geometry = &reader.geometry;
    let of = disk_group_of(geometry, place);
    let what = format!("group {}{of}, fragment {}", place.group(), place.fragment());
    explanation.add("group", Some(place), Some(offset), what);
    explain_segment(reader, place, explanation);
    if place.fragment() < geometry.front_fragments(place.group()) {
        explanation.add("front", Some(place), None, front_page(geometry, place));
        return;
    }
    if explain_page(reader, place, explanation) {
        return;
    }
    let owner = owner_by_summary(opened, place).or_else(|| owner_by_search(reader, place));
    match owner {
        Some((anode, found)) => {
            explain_owner(reader, anode.fileset, anode.number, explanation);
            explain_block(reader, &anode, &found, explanation);
        }
        None => explanation.add("free", None, None, "nothing points here".to_owned()),
    }
}

fn front_page(geometry: &Geometry, place: Place) -> String {
    let page = place.fragment() / geometry.page_fragments();
    let maps = geometry.map_pages();
    let usages = geometry.usage_pages();
    match page {
        0 => "descriptor".to_owned(),
        page if page <= maps => format!("page {} of the free map", page - 1),
        page if page <= 2 * maps => format!("page {} of the busy map", page - 1 - maps),
        page if page <= 2 * maps + usages => {
            format!("page {} of the segment usage", page - 1 - 2 * maps)
        }
        _ => "busy anodes".to_owned(),
    }
}

/// Explains the page that contains `place`: it may begin up to three fragments earlier.
fn explain_page(reader: &PoolReader, place: Place, explanation: &mut Explanation) -> bool {
    for back in 0..reader.geometry.page_fragments() {
        let Some(fragment) = place.fragment().checked_sub(back) else { break };
        let start = Place::new(place.disk_group(), place.group(), fragment);
        let Ok(bytes) = reader.read_raw_page(start) else { continue };
        let Ok(header) = PageHeader::decode(&bytes, reader.pool_id, start) else { continue };
        let owner = header.owner;
        let what = format!(
            "{:?} page {} level {} of {} {}, stamped {}",
            header.kind, owner.index, owner.level, owner.fileset, owner.anode, header.lsn
        );
        explanation.add_at(&reader.geometry, "page", start, what);
        if owner.fileset.0 != 0 {
            explain_owner(reader, owner.fileset, owner.anode, explanation);
        }
        return true;
    }
    false
}

/// Adds the fileset and anode of an owner and, if found, the anode's path.
fn explain_owner(
    reader: &PoolReader,
    fileset: FilesetId,
    number: AnodeNo,
    explanation: &mut Explanation,
) {
    let all = filesets(reader);
    let Some(entry) = all.iter().find(|entry| entry.family == fileset) else {
        explanation.add("fileset", None, None, format!("{fileset}, which is not there"));
        return;
    };
    explain_fileset(reader, (&all, entry), explanation);
    if number.0 == 0 {
        explanation.add("anode", None, None, "the fileset's anode table".to_owned());
        return;
    }
    let table = entry.table_anode();
    let Some(anode) = explain_anode(reader, &table, number, explanation) else {
        explanation.add("anode", None, None, format!("{number}, which is not there"));
        return;
    };
    if let Some(path) = path_by_parents(reader, &table, &anode) {
        explanation.add("path", None, None, path);
    }
}

/// Returns the path of `anode`, built from parent numbers.
fn path_by_parents(reader: &PoolReader, table: &Anode, anode: &Anode) -> Option<String> {
    let mut parts = Vec::new();
    let mut anode = anode.clone();
    while anode.number != ROOT_ANODE {
        if parts.len() == DEPTH_MAX {
            return None;
        }
        let parent = read_anode(reader, table, anode.parent)?;
        parts.push(name_in(reader, &parent, anode.number)?);
        anode = parent;
    }
    parts.reverse();
    Some(format!("/{}", parts.join("/")))
}

/// An anode and one of its blocks.
pub type AnodeBlock = (Anode, FoundBlock);

/// Finds the owner of a block in the summaries of its segment, if the map confirms it.
pub fn owner_by_summary(opened: &InspectedPool, place: Place) -> Option<AnodeBlock> {
    let reader = &opened.reader;
    let geometry = &reader.geometry;
    let segment = geometry.segment_place(place.group(), geometry.segment_of(place));
    let start = geometry.device_offset(segment, geometry.segment_fragments)?;
    let bytes = reader.read_data(start, to_usize(geometry.segment_bytes())).ok()?;
    let fragment_bytes = to_usize(geometry.fragment_bytes());
    let wanted = place.fragment() - segment.fragment();
    for (offset, _) in (0..geometry.segment_fragments).zip(bytes.chunks(fragment_bytes)) {
        let page = bytes.get(index_of(offset) * fragment_bytes..).and_then(|b| b.first_chunk());
        let Some(page): Option<&PageBytes> = page else { break };
        let secret = &opened.superblock.secret;
        let at = segment.advance(offset);
        let Some(summary) = SegmentSummary::decode(page, reader.pool_id, secret, at) else {
            continue;
        };
        for entry in summary.entries.iter().filter(|entry| entry.kind == SummaryKind::Block) {
            let end = entry.offset.saturating_add(entry.fragments);
            if !(entry.offset..end).contains(&wanted) {
                continue;
            }
            let filesets = filesets(reader);
            let Some(fileset) = filesets.iter().find(|found| found.family == entry.fileset) else {
                continue;
            };
            let before = u64::from(wanted - entry.offset) << geometry.fragment_shift;
            let start = entry.index.saturating_mul(1 << entry.block_shift.min(63));
            let anode = read_anode(reader, &fileset.table_anode(), entry.anode);
            let found = anode.and_then(|anode| {
                let found = find_data(reader, &anode, start.saturating_add(before))?;
                Some((anode, found))
            });
            if found.as_ref().is_some_and(|(_, found)| holds(&found.pointer, place)) {
                return found;
            }
        }
    }
    None
}

fn holds(pointer: &BlockPointer, place: Place) -> bool {
    let first = pointer.place;
    first.disk_group() == place.disk_group()
        && first.group() == place.group()
        && place.fragment().checked_sub(first.fragment()).is_some_and(|at| at < pointer.fragments)
}

/// Finds the owner of a block in the maps of all files: as slow as a check without data.
fn owner_by_search(reader: &PoolReader, place: Place) -> Option<AnodeBlock> {
    let mut found = None;
    for fileset in filesets(reader) {
        let table = fileset.table_anode();
        each_block(reader, &table, SEARCH_PAGES_MAX, &mut |indexed| {
            let Ok(page) = reader.read_page(&wanted_page(&table, PageKind::Anode, 0, indexed))
            else {
                return true;
            };
            let anodes = anodes_of(&page, fileset.family, indexed.0);
            found = anodes.iter().find_map(|anode| block_that_holds(reader, anode, place));
            found.is_none()
        });
        if found.is_some() {
            break;
        }
    }
    found
}

/// Returns the readable anodes of page `index` of an anode table.
fn anodes_of(page: &PageBytes, fileset: FilesetId, index: u64) -> Vec<Anode> {
    let slots = 0..SLOTS_PER_PAGE;
    slots
        .filter_map(|slot| {
            let bytes = page.get(slot_offset(slot)..)?.first_chunk()?;
            let number = index.saturating_mul(to_u64(SLOTS_PER_PAGE)).saturating_add(to_u64(slot));
            Anode::decode(bytes, fileset, AnodeNo(number)).ok()?
        })
        .collect()
}

fn block_that_holds(reader: &PoolReader, anode: &Anode, place: Place) -> Option<AnodeBlock> {
    let mut owner = None;
    each_data(reader, anode, SEARCH_PAGES_MAX, &mut |found| {
        if holds(&found.pointer, place) {
            owner = Some((anode.clone(), *found));
        }
        owner.is_none()
    });
    owner
}
