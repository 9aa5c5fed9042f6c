//! Shows any page, and the log, as text, even if damaged.

use std::fmt::Write as _;
use std::str::FromStr;

use format::acl::Acl;
use format::anode::{ANODE_BYTES, Anode, StorageMode, slot_offset};
use format::attributes::{self, AttributeName, AttributeValueLocation};
use format::bitmap::{self, BITS_PER_PAGE};
use format::directory;
use format::double_write::DoubleWriteHead;
use format::fileset::Fileset;
use format::geometry::{Geometry, SUPERBLOCK_COPIES};
use format::group::{
    DescriptorDisk, GROUPS_PER_TABLE_PAGE, GroupEntryDisk, SegmentUsage, TABLE_PAGES_MAX,
    TOTAL_ANODES_USED_OFFSET, TOTAL_FRAGMENTS_USED_OFFSET, TOTAL_GROUPS_USED_OFFSET,
    USAGES_PER_PAGE, entry_offset, is_table_page_used,
};
use format::ids::{AnodeNo, Place};
use format::journal::{LogRecord, PageUpdate, records};
use format::lsn_page::{LSNS_PER_PAGE, LsnEntry};
use format::map::{
    FINE_LEVEL, FINE_PER_COARSE, POINTERS_PER_PAGE, is_split, pointer_at, span_of_pointer,
};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, SLOTS_PER_PAGE, read_u64,
};
use format::pointer::BlockPointer;
use format::quota::{QuotaHead, QuotaRecord, RECORDS_PER_PAGE};
use format::summary::SegmentSummary;
use format::superblock::Superblock;
use storage::device::SharedDevice;
use storage::pool::read_superblock_bytes;
use zerocopy::FromBytes;

use crate::{InspectError, InspectedPool};
use check::convert::{to_u64, to_usize};
use check::replay::each_chunk_of;
use format::text::quoted;

/// What to dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpTarget {
    /// A superblock copy: 0 to 3.
    Superblock(u16),
    /// The log: heads, chunks and records.
    Journal,
    /// The page at a place.
    Page(Place),
    /// The page at this byte of the device.
    DeviceByte(u64),
}

impl FromStr for DumpTarget {
    type Err = InspectError;

    /// Parses `superblock`, `superblock:2`, `journal`, a place (`0:3:17`), or a byte (`65536`).
    fn from_str(text: &str) -> Result<DumpTarget, InspectError> {
        let bad = || {
            let why = "say superblock, superblock:COPY, journal, DISKGROUP:GROUP:FRAGMENT or BYTE";
            InspectError::not_there(text, why)
        };
        let numbers: Vec<u64> = text.split(':').filter_map(|part| part.parse().ok()).collect();
        match (text, numbers.as_slice()) {
            ("superblock", _) => Ok(DumpTarget::Superblock(0)),
            ("journal", _) => Ok(DumpTarget::Journal),
            (_, [copy]) if text.starts_with("superblock:") => {
                let copy = u16::try_from(*copy).ok().filter(|&copy| copy < SUPERBLOCK_COPIES);
                copy.map(DumpTarget::Superblock).ok_or_else(bad)
            }
            (_, [byte]) if !text.contains(':') => Ok(DumpTarget::DeviceByte(*byte)),
            (_, [disk_group, group, fragment]) if text.split(':').count() == 3 => {
                let disk_group = u8::try_from(*disk_group).map_err(|_| bad())?;
                let group = u32::try_from(*group).ok().filter(|&group| group < 1 << 24);
                let fragment = u32::try_from(*fragment).map_err(|_| bad())?;
                Ok(DumpTarget::Page(Place::new(disk_group, group.ok_or_else(bad)?, fragment)))
            }
            _ => Err(bad()),
        }
    }
}

/// Returns `target` as text, with its damage and its bytes.
///
/// # Errors
///
/// [`InspectError`] for no pool, no such place, or a failed read.
pub fn dump(device: &SharedDevice, target: DumpTarget) -> Result<String, InspectError> {
    match target {
        DumpTarget::Superblock(copy) => dump_superblock(device, copy),
        DumpTarget::Journal => dump_log(device),
        DumpTarget::Page(place) => {
            let opened = InspectedPool::raw(device)?;
            let geometry = &opened.reader.geometry;
            let offset = geometry.device_offset(place, geometry.page_fragments());
            let offset = offset.ok_or_else(|| {
                InspectError::not_there(place.to_string(), "is in no group of the pool")
            })?;
            dump_at(&opened, place, offset)
        }
        DumpTarget::DeviceByte(offset) => {
            let opened = InspectedPool::raw(device)?;
            let end = opened.reader.geometry.group_layout().space_end();
            if offset.checked_add(to_u64(PAGE_BYTES)).is_none_or(|page_end| page_end > end) {
                let why = "is past the last page of the pool";
                return Err(InspectError::not_there(offset.to_string(), why));
            }
            let is_fixed = offset < opened.reader.geometry.groups_offset;
            let place = match opened.reader.geometry.place_at(offset) {
                Some(place) => place,
                None if is_fixed => Geometry::fixed_place(offset),
                None => Place::NONE,
            };
            dump_at(&opened, place, offset)
        }
    }
}

fn dump_superblock(device: &SharedDevice, copy: u16) -> Result<String, InspectError> {
    let (offset, bytes) = read_superblock_bytes(device.as_ref(), copy)?;
    let mut text = format!("superblock copy {copy}, device byte {offset}\n");
    match Superblock::decode(&bytes, copy) {
        Ok(superblock) => {
            // Dumps may be published in reports, so the secret is left out.
            let shown = Superblock { secret: [0; 16], ..superblock };
            let _ = writeln!(text, "{shown:#?}\n(the secret is not shown)");
        }
        Err(error) => {
            let _ = writeln!(text, "does not verify: {error}");
            hex(&mut text, &bytes);
        }
    }
    Ok(text)
}

fn dump_at(opened: &InspectedPool, place: Place, offset: u64) -> Result<String, InspectError> {
    let bytes = opened.reader.read(offset, PAGE_BYTES)?;
    let bytes: &PageBytes = bytes.first_chunk().expect("read as long as asked");
    let mut text = format!("place {place}, device byte {offset}\n");
    match PageHeader::decode(bytes, opened.reader.pool_id, place) {
        Ok(_) => text.push_str("verifies\n"),
        Err(error) => {
            let _ = writeln!(text, "does not verify: {error}");
        }
    }
    let has_magic = bytes.starts_with(b"HFpg");
    match PageHeader::parse(bytes).filter(|_| has_magic) {
        Some(header) => {
            dump_header(&mut text, &header);
            dump_body(&mut text, opened, &header, bytes);
        }
        None => hex(&mut text, bytes),
    }
    Ok(text)
}

fn dump_header(text: &mut String, header: &PageHeader) {
    let owner = header.owner;
    let _ = writeln!(
        text,
        "kind {:?}, flags {:#x}, pool {}",
        header.kind, header.flags, header.pool_id
    );
    let _ = writeln!(
        text,
        "owner {} {} index {} level {}",
        owner.fileset, owner.anode, owner.index, owner.level
    );
    let _ = writeln!(
        text,
        "{} birth {} highest birth below {} term {} count {} aux {:?}",
        header.lsn, header.birth, header.birth_max, header.writer_term, header.count, header.aux
    );
}

fn dump_body(text: &mut String, opened: &InspectedPool, header: &PageHeader, bytes: &PageBytes) {
    match header.kind {
        PageKind::GroupTableRoot => dump_table_root(text, bytes),
        PageKind::GroupTable => dump_table(text, header.owner.index, bytes),
        PageKind::GroupDescriptor => {
            let _ = writeln!(text, "{:#?}", DescriptorDisk::of(bytes));
        }
        PageKind::FreeMap | PageKind::BusyMap | PageKind::AnodeMap => runs(text, bytes),
        PageKind::SegmentUsage => {
            for segment in 0..USAGES_PER_PAGE {
                match SegmentUsage::of(bytes, segment) {
                    Some(SegmentUsage::FREE) => {}
                    usage => {
                        let _ = writeln!(text, "entry {segment}: {usage:?}");
                    }
                }
            }
        }
        PageKind::FilesetTable | PageKind::Anode => dump_slots(text, header, bytes),
        PageKind::Map => {
            let (span, first, what) = match header.owner.level {
                FINE_LEVEL => (1, header.owner.index, "block of 4 KiB"),
                0 if is_split(bytes) => {
                    let first = header.owner.index.saturating_mul(FINE_PER_COARSE);
                    (POINTERS_PER_PAGE, first, "fine leaf from block")
                }
                level => (span_of_pointer(level), header.owner.index, "block"),
            };
            for slot in 0..POINTERS_PER_PAGE {
                if let Some(pointer) = pointer_at(bytes, to_usize(slot)) {
                    let index = first.saturating_add(slot.saturating_mul(span));
                    dump_pointer(text, what, index, &pointer);
                }
            }
        }
        PageKind::Directory => dump_directory(text, header, bytes),
        PageKind::Quota => dump_quotas(text, header.owner.index, bytes),
        PageKind::OrphanList => {
            for (slot, field) in bytes[PAGE_HEADER_BYTES..].as_chunks::<8>().0.iter().enumerate() {
                let number = u64::from_le_bytes(*field);
                if number != 0 {
                    let _ = writeln!(text, "slot {slot}: {}", AnodeNo(number));
                }
            }
        }
        PageKind::Summary => {
            let secret = &opened.superblock.secret;
            match SegmentSummary::decode(bytes, opened.reader.pool_id, secret, header.place) {
                Some(summary) => {
                    let _ = writeln!(text, "{summary:#?}");
                }
                None => {
                    text.push_str("not a summary of this pool: its seal or an entry is wrong\n")
                }
            }
        }
        PageKind::DoubleWriteHead => {
            let geometry = &opened.reader.geometry;
            let index = header.owner.index;
            let head = DoubleWriteHead::decode(bytes, opened.reader.pool_id, geometry, index);
            let _ = writeln!(text, "{head:#?}");
        }
        PageKind::JournalHead => {
            let [tail, crc, epoch, home] = header.aux;
            let sequence = header.owner.index;
            let _ = writeln!(
                text,
                "sequence {sequence} tail {tail} crc {crc:#010x} epoch {epoch} double-write groups \
                 home up to {home}"
            );
        }
        PageKind::Attributes => dump_attributes(text, bytes),
        PageKind::LsnPage => dump_lsns(text, header, bytes),
        PageKind::BusyAnodes | PageKind::Tombstone | PageKind::DeferredFree | PageKind::Remap => {
            hex(text, bytes)
        }
    }
}

fn dump_table_root(text: &mut String, bytes: &PageBytes) {
    let fields = [
        ("fragments in use", TOTAL_FRAGMENTS_USED_OFFSET),
        ("groups in use", TOTAL_GROUPS_USED_OFFSET),
        ("anodes in use", TOTAL_ANODES_USED_OFFSET),
    ];
    for (name, offset) in fields {
        let _ = writeln!(text, "{name}: {}", read_u64(bytes, offset));
    }
    for index in (0..TABLE_PAGES_MAX).filter(|&index| is_table_page_used(bytes, index)) {
        let _ = writeln!(text, "table page {index} is there");
    }
}

fn dump_table(text: &mut String, index: u64, bytes: &PageBytes) {
    for slot in 0..GROUPS_PER_TABLE_PAGE {
        let group = index.saturating_mul(GROUPS_PER_TABLE_PAGE).saturating_add(slot);
        let position = u32::try_from(slot).expect("62");
        let entry = bytes.get(entry_offset(position)..);
        if let Some(Ok((entry, _))) = entry.map(GroupEntryDisk::read_from_prefix)
            && entry.state != 0
        {
            let _ = writeln!(
                text,
                "group {group}: state {} layout {} fragments {} birth {}",
                entry.state, entry.layout, entry.fragments, entry.birth
            );
        }
    }
}

fn runs(text: &mut String, bytes: &PageBytes) {
    let mut bit = 0;
    while bit < BITS_PER_PAGE {
        if !bitmap::is_set(bytes, bit) {
            bit += 1;
            continue;
        }
        let first = bit;
        while bit < BITS_PER_PAGE && bitmap::is_set(bytes, bit) {
            bit += 1;
        }
        let _ = writeln!(text, "set: {first} to {}", bit - 1);
    }
}

fn dump_slots(text: &mut String, header: &PageHeader, bytes: &PageBytes) {
    for slot in 0..SLOTS_PER_PAGE {
        let number = header.owner.index.saturating_mul(to_u64(SLOTS_PER_PAGE));
        let number = number.saturating_add(to_u64(slot));
        let field = bytes.get(slot_offset(slot)..).and_then(|rest| rest.first_chunk());
        let field: &[u8; ANODE_BYTES] = field.expect("a page holds 7 slots");
        if header.kind == PageKind::FilesetTable {
            match Fileset::decode(field, u32::try_from(number).unwrap_or(u32::MAX)) {
                Ok(None) => {}
                Ok(Some(fileset)) => dump_fileset(text, &fileset),
                Err(error) => {
                    let _ = writeln!(text, "slot {slot}: {error}");
                }
            }
            continue;
        }
        match Anode::decode(field, header.owner.fileset, AnodeNo(number)) {
            Ok(None) => {}
            Ok(Some(anode)) => dump_anode(text, &anode),
            Err(error) => {
                let _ = writeln!(text, "slot {slot}: {error}");
            }
        }
    }
}

fn dump_fileset(text: &mut String, fileset: &Fileset) {
    let _ = writeln!(
        text,
        "slot {} {} {}: anodes {} end {} table pages {} fragments {} height {} quota {} \
         reservation {}",
        fileset.slot,
        fileset.id,
        quoted(fileset.name.as_str().as_bytes()),
        fileset.anodes_used,
        fileset.anodes_end,
        fileset.table_pages,
        fileset.table_fragments,
        fileset.height,
        fileset.quota_bytes,
        fileset.reservation_bytes
    );
    for (index, pointer) in check::lookup::root_pointers(&fileset.table_anode()) {
        dump_pointer(text, "block", index, &pointer);
    }
}

fn dump_anode(text: &mut String, anode: &Anode) {
    let _ = writeln!(
        text,
        "{} {:?} {} mode {:o} links {} uid {} gid {} size {} fragments {} parent {} entries {} \
         depth {} pages {} orphan {:?} version {} birth {}",
        anode.number,
        anode.kind,
        anode.generation,
        anode.mode,
        anode.nlink,
        anode.uid,
        anode.gid,
        anode.size_bytes,
        anode.fragments,
        anode.parent,
        anode.entries,
        anode.depth,
        anode.pages,
        anode.orphan_slot,
        anode.data_version,
        anode.birth
    );
    let _ = writeln!(
        text,
        "  {:?} height {} blocks of {} bytes, changed {}.{:09}",
        anode.storage,
        anode.height,
        anode.block_bytes(),
        anode.mtime.seconds,
        anode.mtime.nanoseconds
    );
    if anode.xattr.0 != 0 || anode.acl.0 != 0 {
        let _ = writeln!(text, "  attributes in {}, access lists in {}", anode.xattr, anode.acl);
    }
    for (name, value) in anode.attributes.iter() {
        let _ = writeln!(text, "  attribute {} {}", quoted(&name.full()), value_text(name, value));
    }
    if anode.storage == StorageMode::Inline {
        let length = to_usize(anode.size_bytes.min(to_u64(anode.root.len())));
        let _ = writeln!(text, "  inline {}", quoted(&anode.root[..length]));
    }
    for (index, pointer) in check::lookup::root_pointers(anode) {
        dump_pointer(text, "block", index, &pointer);
    }
}

fn value_text(name: AttributeName<'_>, value: &[u8]) -> String {
    match Acl::decode(value) {
        Ok(acl) if name.namespace.is_acl() => format!("{acl:?}"),
        Ok(_) | Err(_) => quoted(value),
    }
}

fn dump_attributes(text: &mut String, bytes: &PageBytes) {
    if let Err(defect) = attributes::verify(bytes) {
        let _ = writeln!(text, "{defect}");
    }
    if attributes::is_value_page(bytes) {
        let _ = writeln!(text, "{} bytes of a value", attributes::count(bytes));
        return hex(text, bytes);
    }
    let _ =
        writeln!(text, "{} attributes, next {}", attributes::count(bytes), attributes::next(bytes));
    for entry in attributes::entries(bytes) {
        let (name, length) = (quoted(&entry.name.full()), entry.value_bytes);
        let _ = match entry.value {
            AttributeValueLocation::Here(value) => {
                writeln!(text, "  {name} {length} bytes {}", value_text(entry.name, value))
            }
            AttributeValueLocation::Pages(first) => {
                writeln!(text, "  {name} {length} bytes from page {first}")
            }
        };
    }
}

fn dump_pointer(text: &mut String, what: &str, index: u64, pointer: &BlockPointer) {
    let flags = [
        (pointer.is_compressed, " compressed"),
        (pointer.is_encrypted, " encrypted"),
        (pointer.is_offline, " offline"),
        (pointer.is_reserved, " reserved"),
    ];
    let flags: String = flags.into_iter().filter(|(is, _)| *is).map(|(_, word)| word).collect();
    let _ = writeln!(
        text,
        "  {what} {index}: place {} fragments {} {} check {:?} {:08x?}{flags}",
        pointer.place, pointer.fragments, pointer.birth, pointer.check_kind, pointer.check
    );
}

fn dump_quotas(text: &mut String, page: u64, bytes: &PageBytes) {
    if page == 0 {
        let _ = writeln!(text, "{:?}", QuotaHead::of(bytes));
    }
    for index in 0..RECORDS_PER_PAGE {
        match QuotaRecord::decode_in(bytes, index) {
            Ok(None) => {}
            Ok(Some(record)) => {
                let _ = writeln!(text, "record {index}: {record:?}");
            }
            Err(field) => {
                let _ = writeln!(text, "record {index}: {field} is out of bounds");
            }
        }
    }
}

fn dump_lsns(text: &mut String, header: &PageHeader, bytes: &PageBytes) {
    let first = (header.owner.index & 0xffff) * u64::from(LSNS_PER_PAGE);
    for slot in 0..LSNS_PER_PAGE {
        let entry = LsnEntry { page: header.place, index: header.owner.index, slot };
        if let Some(listed) = entry.listed(bytes) {
            let page = first + u64::from(slot);
            let _ = writeln!(text, "page {page}: LSN ends in {listed:#010x}");
        }
    }
}

fn dump_directory(text: &mut String, header: &PageHeader, bytes: &PageBytes) {
    let _ = writeln!(
        text,
        "depth {}, {} names, {} bytes in use",
        directory::depth(bytes),
        directory::count(bytes),
        directory::used_bytes(bytes)
    );
    if let Err(defect) = directory::verify(bytes, header.owner.index) {
        let _ = writeln!(text, "{defect}");
    }
    for dirent in directory::dirents(bytes) {
        let _ = writeln!(
            text,
            "  byte {}: {:#018x} {:?} {} {} {}",
            dirent.offset,
            dirent.cookie,
            dirent.kind,
            dirent.anode,
            dirent.generation,
            quoted(dirent.name)
        );
    }
}

/// Prints lines of 16 bytes, without lines of zeros.
fn hex(text: &mut String, bytes: &[u8]) {
    let mut is_skipping = false;
    for (line, chunk) in (0_usize..).step_by(16).zip(bytes.chunks(16)) {
        if chunk.iter().all(|&byte| byte == 0) {
            if !is_skipping {
                text.push_str("  *\n");
            }
            is_skipping = true;
            continue;
        }
        is_skipping = false;
        let _ = write!(text, "  {line:04x} ");
        for byte in chunk {
            let _ = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
}

fn dump_log(device: &SharedDevice) -> Result<String, InspectError> {
    let mut opened = InspectedPool::raw(device)?;
    let mut text = String::new();
    let mut lines = |chunk: &check::replay::ReplayedChunk| {
        let header = &chunk.header;
        let _ = writeln!(
            text,
            "chunk {} of {} bytes, records {} bytes, term {}, durable {}, head {}",
            header.lsn,
            header.chunk_bytes,
            header.payload_bytes,
            header.writer_term,
            header.flushed,
            header.head
        );
        for record in records(&chunk.payload) {
            dump_record(&mut text, record.as_ref());
        }
    };
    let ends = each_chunk_of(&mut opened.reader, &mut lines)?;
    Ok(match ends {
        None => "neither head of the journal verifies (JR001)\n".to_owned(),
        Some((head, end)) => format!(
            "log from {} (head {}, chunk before {:#010x}, {}) to {end}\n{text}",
            head.tail, head.sequence, head.previous_crc, head.epoch
        ),
    })
}

fn dump_record(text: &mut String, record: Option<&LogRecord<'_>>) {
    let _ = match record {
        None => writeln!(text, "  a record that can't be so (JR003)"),
        Some(LogRecord::Update { class, epoch, pages }) => {
            let _ = writeln!(text, "  update class {class} {epoch}");
            for page in pages {
                dump_update(text, page);
            }
            Ok(())
        }
        Some(LogRecord::Commit { class, lsn, pages }) => {
            let _ = writeln!(text, "  commit class {class} stamps {lsn}");
            for (place, crc) in pages {
                let _ = writeln!(text, "    page {place} checksum {crc:#010x}");
            }
            Ok(())
        }
        Some(LogRecord::Merge { class, into }) => {
            writeln!(text, "  merge class {class} into {into}")
        }
        Some(LogRecord::LogData { class, place, owner, bytes }) => {
            writeln!(
                text,
                "  inline log data class {class} place {place} {} bytes {owner:?}",
                bytes.len()
            )
        }
    };
}

fn dump_update(text: &mut String, page: &PageUpdate<'_>) {
    let stamp = if page.old_stamp.is_some() { ", stamp as it was" } else { "" };
    let _ = write!(text, "    page {}{stamp}", page.place);
    if let Some(image) = page.image {
        let _ = write!(text, ", whole, {} bytes kept", image.len());
    }
    for run in &page.runs {
        let old = if run.old.is_some() { "" } else { ", from zeros" };
        let _ = write!(text, ", {} bytes at {}{old}", run.new.len(), run.offset);
    }
    text.push('\n');
}
