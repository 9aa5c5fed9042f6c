//! A hand-made pool, so that tests of the checker need no engine.
//!
//! ```text
//!   /a               empty                      /dir/sub/         empty
//!   /big             20 blocks of 16 KiB        /dir/hard         second name of /small
//!   /small           one short block            /many/n000..n199  names of one file
//!   /link /longlink  symlinks, inline and not   (no name)         an orphan
//!
//!   /small has attributes: one in its anode, one in an entry, one in pages
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use format::anode::{Anode, AnodeKind, QUOTA_ANODE, StorageMode, page_and_slot, slot_offset};
use format::attributes::{self, AttributeName, AttributeValueLocation, Namespace};
use format::directory::{self, NewDirent, cookie_of, hash_of, page_number};
use format::fileset::{Fileset, FilesetState, NamePart, ROOT_FILESET, counts_offset};
use format::geometry::{Geometry, GeometryOptions};
use format::group::{
    DescriptorDisk, GroupEntryDisk, SegmentKind, SegmentUsage, TABLE_BITMAP_OFFSET,
    TOTAL_FRAGMENTS_USED_OFFSET, entry_offset,
};
use format::ids::{AnodeNo, Epoch, FilesetId, Generation, Lsn, Place, PoolId};
use format::journal::JournalHead;
use format::members::{Layout, Member, Membership};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, stamp, write_u64,
};
use format::pointer::BlockPointer;
use format::quota::{
    QuotaCharge, QuotaHead, QuotaKind, QuotaLimits, QuotaRecord, QuotaState, record_offset,
};
use format::superblock::{Consistency, Superblock};
use format::{bitmap, map};
use storage::device::{Device, IoPurpose, MemoryDevice};
use zerocopy::{FromZeros, IntoBytes};

use crate::convert::{index_of, to_u64, to_usize};

const POOL_BYTES: u64 = 16 << 20;
pub(crate) const POOL: PoolId = PoolId([0x5a; 16]);
const SET: FilesetId = ROOT_FILESET;
/// Numbers of the anodes that tests use.
pub(crate) const ROOT: u64 = 1;
pub(crate) const EMPTY: u64 = 16;
pub(crate) const BIG: u64 = 17;
pub(crate) const SMALL: u64 = 18;
pub(crate) const DIR: u64 = 21;
pub(crate) const SUB: u64 = 22;
pub(crate) const MANY: u64 = 23;
pub(crate) const NAMED: u64 = 24;
pub(crate) const ORPHAN: u64 = 25;
/// Container of attributes of [`SMALL`].
pub(crate) const ATTRIBUTES: u64 = 26;
const ANODES_END: u64 = 27;
/// Group whose segments hold data.
const DATA_GROUP: u32 = 1;

pub(crate) struct TestImage {
    pub(crate) device: Arc<MemoryDevice>,
    pub(crate) geometry: Geometry,
    pub(crate) superblock: Superblock,
    /// Places of pages: the content pages of each container, and the pages of the anode table.
    pub(crate) places: BTreeMap<(u64, u64), Place>,
    used: BTreeMap<u32, Vec<bool>>,
    next: BTreeMap<u32, u32>,
    anodes: BTreeMap<u64, Anode>,
    /// Birth of everything that is created.
    epoch: Epoch,
}

/// The epoch that takes the snapshot of [`TestImage::with_snapshot`].
pub(crate) const SNAPSHOT_EPOCH: Epoch = Epoch(6);

/// Additions to the standard image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ImageExtras {
    Nothing,
    Quotas,
    Snapshot,
}

type TestImageNames = Vec<(Vec<u8>, u64)>;

impl TestImage {
    /// Returns a pool without defects.
    pub(crate) fn new(fragment_bytes: u32) -> TestImage {
        TestImage::make(fragment_bytes, ImageExtras::Nothing)
    }

    /// Returns a pool without defects, with quotas switched on.
    pub(crate) fn with_quotas() -> TestImage {
        TestImage::make(4096, ImageExtras::Quotas)
    }

    /// Returns a pool without defects, with a snapshot in slot 1. After the snapshot [`SMALL`] was
    /// rewritten, and the map leaf of [`BIG`] was copied with unchanged pointers.
    pub(crate) fn with_snapshot() -> TestImage {
        TestImage::make(4096, ImageExtras::Snapshot)
    }

    fn make(fragment_bytes: u32, beside: ImageExtras) -> TestImage {
        let geometry = Geometry::plan(&GeometryOptions {
            device_bytes: POOL_BYTES,
            fragment_bytes,
            segment_bytes: None,
            group_bytes: None,
            journal_bytes: None,
        })
        .expect("large enough");
        let superblock = superblock(&geometry);
        let mut image = TestImage {
            device: MemoryDevice::new("memory", POOL_BYTES),
            superblock,
            places: BTreeMap::new(),
            used: BTreeMap::new(),
            next: BTreeMap::new(),
            anodes: BTreeMap::new(),
            epoch: Epoch(5),
            geometry,
        };
        for group in 0..2 {
            let front = crate::space::front_fragments(&image.geometry, group);
            let fragments = index_of(image.geometry.fragments_of(group));
            let used = (0..fragments).map(|bit| bit < index_of(front)).collect();
            image.used.insert(group, used);
            image.next.insert(group, front.next_multiple_of(image.geometry.segment_fragments));
        }
        image.next.insert(0, crate::space::front_fragments(&image.geometry, 0));
        image.populate();
        if beside == ImageExtras::Quotas {
            image.write_quotas();
        }
        image.finish(beside);
        image
    }

    fn populate(&mut self) {
        for number in [EMPTY, BIG, SMALL, 19, 20, NAMED, ORPHAN] {
            let is_link = number == 19 || number == 20;
            let kind = if is_link { AnodeKind::Symlink } else { AnodeKind::Regular };
            self.add(kind, number, 1);
        }
        self.write_file(BIG, 20 * 16384 - 100);
        self.write_file(SMALL, 1000);
        self.write_file(20, 300);
        self.write_file(ORPHAN, 16384);
        let link = self.anode_mut(19);
        link.size_bytes = 5;
        link.root[..5].copy_from_slice(b"small");
        self.anode_mut(SMALL).nlink = 2;
        self.anode_mut(NAMED).nlink = 200;
        let orphan = self.anode_mut(ORPHAN);
        (orphan.nlink, orphan.orphan_slot) = (0, Some(0));
        for (number, parent, links) in
            [(ROOT, ROOT, 4), (DIR, ROOT, 3), (SUB, DIR, 2), (MANY, ROOT, 2)]
        {
            let directory = self.add(AnodeKind::Directory, number, links);
            directory.parent = AnodeNo(parent);
            directory.key = [number, 77];
        }
        self.write_attributes();
        let name = |name: &str, number| (name.as_bytes().to_vec(), number);
        let names: TestImageNames = [
            ("a", EMPTY),
            ("big", BIG),
            ("small", SMALL),
            ("link", 19),
            ("longlink", 20),
            ("dir", DIR),
            ("many", MANY),
        ]
        .map(|(text, number)| name(text, number))
        .to_vec();
        self.write_directory(ROOT, &names, 0);
        self.write_directory(DIR, &[name("sub", SUB), name("hard", SMALL)], 0);
        self.write_directory(SUB, &[], 0);
        let many: TestImageNames = (0..200).map(|n| name(&format!("n{n:03}"), NAMED)).collect();
        self.write_directory(MANY, &many, 4);
    }

    fn add(&mut self, kind: AnodeKind, number: u64, nlink: u32) -> &mut Anode {
        let mut anode = Anode::new(kind, AnodeNo(number), SET, 14);
        anode.generation = Generation(1000 + number);
        anode.nlink = nlink;
        if kind == AnodeKind::Directory || kind == AnodeKind::Internal {
            anode.block_shift = 12;
            anode.storage = StorageMode::Blocked;
        }
        self.anodes.insert(number, anode);
        self.anode_mut(number)
    }

    fn anode_mut(&mut self, number: u64) -> &mut Anode {
        self.anodes.get_mut(&number).expect("made before")
    }

    fn allocate(&mut self, group: u32, count: u32) -> Place {
        let next = self.next.get_mut(&group).expect("two groups");
        let first = *next;
        *next += count;
        let used = self.used.get_mut(&group).expect("two groups");
        used[index_of(first)..index_of(first + count)].fill(true);
        Place::new(0, group, first)
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let start = offset / 4096 * 4096;
        let end = (offset + to_u64(bytes.len())).next_multiple_of(4096);
        let mut whole =
            self.device.read(IoPurpose::Home, start, to_usize(end - start)).expect("in range");
        let skip = to_usize(offset - start);
        whole[skip..skip + bytes.len()].copy_from_slice(bytes);
        self.device.write(IoPurpose::Home, start, whole).expect("in range");
    }

    pub(crate) fn offset(&self, place: Place) -> u64 {
        self.geometry.device_offset(place, 1).expect("in the pool")
    }

    pub(crate) fn read_page(&self, place: Place) -> PageBytes {
        let offset = self.offset(place);
        let start = offset / 4096 * 4096;
        let bytes = self.device.read(IoPurpose::Home, start, 8192).expect("in range");
        *bytes[to_usize(offset - start)..].first_chunk().expect("8 KiB")
    }

    pub(crate) fn write_page(&self, place: Place, bytes: &PageBytes) {
        self.write(self.offset(place), bytes);
    }

    /// Writes a page with a valid header.
    fn put_page(
        &self,
        place: Place,
        kind: PageKind,
        owner: PageOwner,
        fill: impl FnOnce(&mut PageBytes),
    ) {
        let mut bytes = [0; PAGE_BYTES];
        PageHeader::new(kind, POOL, place, owner).encode(&mut bytes);
        fill(&mut bytes);
        stamp(&mut bytes, Lsn(1));
        self.write_page(place, &bytes);
    }

    fn write_file(&mut self, number: u64, size: u64) {
        let mut pointers = Vec::new();
        for index in 0..size.div_ceil(16384) {
            let left = (size - index * 16384).min(16384);
            let fragments = left.div_ceil(self.geometry.fragment_bytes());
            let fragments = u32::try_from(fragments).expect("small");
            let place = self.allocate(DATA_GROUP, fragments);
            let mut data = vec![0; to_usize(u64::from(fragments) * self.geometry.fragment_bytes())];
            for (position, byte) in data[..to_usize(left)].iter_mut().enumerate() {
                *byte = u8::try_from((to_u64(position) + index + number) % 251).expect("below 251");
            }
            self.write(self.offset(place), &data);
            let pointer = BlockPointer::to_data(place, fragments, self.epoch, 16384, &data);
            self.places.insert((number, index), place);
            pointers.push((index, pointer));
        }
        let mut anode = self.anodes.remove(&number).expect("made before");
        anode.size_bytes = size;
        self.set_map(&mut anode, pointers);
        self.anodes.insert(number, anode);
    }

    /// Writes pages of content, and points `anode` to them.
    fn write_container(&mut self, anode: &mut Anode, kind: PageKind, pages: &[(u64, PageBytes)]) {
        let fragments = self.geometry.page_fragments();
        let mut pointers = Vec::new();
        for (index, content) in pages {
            let place = self.allocate(0, fragments);
            let (fileset, number) = (anode.fileset, anode.number);
            let owner = PageOwner { fileset, anode: number, index: *index, level: 0 };
            self.put_page(place, kind, owner, |bytes| {
                let header_end = PAGE_HEADER_BYTES - 40;
                bytes[header_end..].copy_from_slice(&content[header_end..]);
                bytes[84..88].copy_from_slice(&content[84..88]);
            });
            let key = if number.0 == 0 { u64::MAX - anode.fileset.0 } else { number.0 };
            self.places.insert((key, *index), place);
            pointers.push((*index, BlockPointer::to_page(place, fragments, self.epoch)));
        }
        anode.pages = to_u64(pages.len());
        self.set_map(anode, pointers);
    }

    /// Builds the map of `anode` over `pointers`: height 0 or 1.
    fn set_map(&mut self, anode: &mut Anode, pointers: Vec<(u64, BlockPointer)>) {
        anode.storage = StorageMode::Blocked;
        anode.fragments = pointers.iter().map(|(_, pointer)| u64::from(pointer.fragments)).sum();
        let last = pointers.last().map_or(0, |(index, _)| *index);
        anode.height = map::height_for(last);
        if anode.height == 0 {
            for (index, pointer) in &pointers {
                anode.set_root_pointer(to_usize(*index), Some(pointer));
            }
            return;
        }
        assert_eq!(anode.height, 1, "images are small");
        let fragments = self.geometry.page_fragments();
        for slot in 0..8_usize {
            let first = to_u64(slot) * 124;
            let mine: Vec<_> =
                pointers.iter().filter(|(i, _)| (first..first + 124).contains(i)).collect();
            if mine.is_empty() {
                continue;
            }
            let place = self.allocate(0, fragments);
            let (fileset, number) = (anode.fileset, anode.number);
            let owner = PageOwner { fileset, anode: number, index: first, level: 0 };
            self.put_page(place, PageKind::Map, owner, |bytes| {
                for (index, pointer) in mine {
                    map::set_pointer(bytes, map::page_slot(*index, 0), Some(pointer));
                }
            });
            self.places.insert((number.0, u64::MAX - first), place);
            let pointer = BlockPointer::to_page(place, fragments, self.epoch);
            anode.set_root_pointer(slot, Some(&pointer));
            anode.fragments += u64::from(fragments);
        }
    }

    fn write_directory(&mut self, number: u64, names: &[(Vec<u8>, u64)], depth: u8) {
        let mut anode = self.anodes.remove(&number).expect("made before");
        let mut pages: Vec<PageBytes> = vec![[0; PAGE_BYTES]; 1 << depth];
        for page in &mut pages {
            directory::initialise(page, depth);
        }
        for (name, target) in names {
            let hash = hash_of(anode.key, name);
            let kind = match *target {
                DIR | SUB | MANY => AnodeKind::Directory,
                19 | 20 => AnodeKind::Symlink,
                _ => AnodeKind::Regular,
            };
            let new = NewDirent {
                cookie: cookie_of(hash, 0),
                anode: AnodeNo(*target),
                generation: Generation(1000 + target),
                kind,
                name,
            };
            let page = &mut pages[to_usize(page_number(hash, depth))];
            directory::insert(page, &new).expect("names are few");
        }
        anode.entries = u32::try_from(names.len()).expect("few");
        let pages: Vec<_> = (0..).zip(pages).collect();
        self.write_container(&mut anode, PageKind::Directory, &pages);
        self.anodes.insert(number, anode);
    }

    fn write_attributes(&mut self) {
        let name = |suffix| AttributeName { namespace: Namespace::User, suffix };
        let mut pages = [[0; PAGE_BYTES]; 3];
        let [entries, first, second] = &mut pages;
        assert!(attributes::insert(
            entries,
            name(b"note"),
            60,
            AttributeValueLocation::Here(&[7; 60])
        ));
        assert!(attributes::insert(entries, name(b"long"), 4000, AttributeValueLocation::Pages(1)));
        attributes::put_value(first, &[8; attributes::VALUE_PAGE_BYTES]);
        attributes::put_value(second, &[8; 32]);
        self.add(AnodeKind::Internal, ATTRIBUTES, 0).parent = AnodeNo(SMALL);
        let mut anode = self.anodes.remove(&ATTRIBUTES).expect("made before");
        let pages: Vec<_> = (0..).zip(pages).collect();
        self.write_container(&mut anode, PageKind::Attributes, &pages);
        self.anodes.insert(ATTRIBUTES, anode);
        let small = self.anode_mut(SMALL);
        small.xattr = AnodeNo(ATTRIBUTES);
        small.attributes = small.attributes.with(name(b"a"), b"inline").expect("short");
    }

    fn write_quotas(&mut self) {
        let mut usages = BTreeMap::new();
        for owned in self.anodes.values().filter_map(QuotaCharge::of) {
            for id in QuotaKind::ALL.into_iter().zip(owned.ids) {
                let (fragments, inodes) = usages.entry(id).or_insert((0, 0));
                (*fragments, *inodes) = (*fragments + owned.fragments, *inodes + 1);
            }
        }
        let mut page = [0; PAGE_BYTES];
        let head = QuotaHead { state: QuotaState::On, ..QuotaHead::default() };
        page[record_offset(0)..record_offset(1)].copy_from_slice(&head.encode());
        for (index, ((kind, id), (fragments, inodes))) in (1..).zip(usages) {
            let limits = QuotaLimits::default();
            let record = QuotaRecord { kind, id, fragments, inodes, limits };
            page[record_offset(index)..record_offset(index + 1)].copy_from_slice(&record.encode());
        }
        self.add(AnodeKind::Internal, QUOTA_ANODE.0, 1);
        let mut anode = self.anodes.remove(&QUOTA_ANODE.0).expect("made before");
        self.write_container(&mut anode, PageKind::Quota, &[(0, page)]);
        self.anodes.insert(QUOTA_ANODE.0, anode);
    }

    fn finish(&mut self, beside: ImageExtras) {
        self.add(AnodeKind::Internal, 2, 1);
        self.add(AnodeKind::Internal, 3, 1);
        let mut anode_map = [0; PAGE_BYTES];
        for number in (0..16).chain(EMPTY..ANODES_END) {
            bitmap::set(&mut anode_map, u32::try_from(number).expect("small"), true);
        }
        let mut orphans = [0; PAGE_BYTES];
        write_u64(&mut orphans, PAGE_HEADER_BYTES, ORPHAN);
        for (number, kind, page) in
            [(2, PageKind::AnodeMap, anode_map), (3, PageKind::OrphanList, orphans)]
        {
            let mut anode = self.anodes.remove(&number).expect("made before");
            self.write_container(&mut anode, kind, &[(0, page)]);
            self.anodes.insert(number, anode);
        }
        let mut fileset = self.write_table();
        let mut snapshot = None;
        if beside == ImageExtras::Snapshot {
            let (name, state) = (NamePart::new("monday").expect("a name"), FilesetState::Snapshot);
            let id = FilesetId(SNAPSHOT_EPOCH.0);
            snapshot = Some(Fileset { slot: 1, id, name, state, above: Some(0), ..fileset });
            self.epoch = Epoch(SNAPSHOT_EPOCH.0 + 1);
            self.write_file(SMALL, 1000);
            self.write_leaf_of_big();
            fileset = self.write_table();
            (fileset.parent, fileset.shared_epoch) = (Some(1), SNAPSHOT_EPOCH);
        }
        self.write_root(&fileset, snapshot.as_ref());
        let fragments_used: u64 = (0..2).map(|group| self.write_group(group)).sum();
        self.write_group_table(fragments_used);
        for slot in 0..4 {
            let head = JournalHead {
                sequence: slot / 2,
                tail: Lsn(0),
                previous_crc: 0,
                epoch: Epoch(9),
                double_write_sequence: 0,
            };
            let bytes = head.encode(POOL, &self.geometry, slot);
            self.write(self.geometry.journal_offset + slot * 4096, &bytes);
        }
        self.write_superblocks();
    }

    pub(crate) fn write_superblocks(&self) {
        for copy in 0..4 {
            let offset = Geometry::superblock_offset(POOL_BYTES, copy);
            self.write(offset, &self.superblock.encode(copy));
        }
    }

    fn write_table(&mut self) -> Fileset {
        let mut pages: BTreeMap<u64, PageBytes> = BTreeMap::new();
        for anode in self.anodes.values() {
            let (index, slot) = page_and_slot(anode.number);
            let page = pages.entry(index).or_insert([0; PAGE_BYTES]);
            let offset = slot_offset(slot);
            page[offset..offset + 512].copy_from_slice(&anode.encode());
        }
        let mut fileset = Fileset::new(SET, 0, NamePart::root(), 14);
        fileset.anodes_used = to_u64(self.anodes.len());
        fileset.anodes_end = ANODES_END;
        let mut table = fileset.table_anode();
        let pages: Vec<_> = pages.into_iter().collect();
        self.write_container(&mut table, PageKind::Anode, &pages);
        fileset.set_table_anode(&table);
        let fragments = self.anodes.values().map(|anode| anode.fragments);
        fileset.fragments = fragments.sum::<u64>() + table.fragments;
        fileset
    }

    fn write_leaf_of_big(&mut self) {
        let leaf = self.read_page(self.places[&(BIG, u64::MAX)]);
        let pointer = |index| Some((index, map::pointer_at(&leaf, map::page_slot(index, 0))?));
        let pointers = (0..124).filter_map(pointer).collect();
        let mut anode = self.anodes.remove(&BIG).expect("made before");
        self.set_map(&mut anode, pointers);
        self.anodes.insert(BIG, anode);
    }

    fn write_root(&mut self, fileset: &Fileset, snapshot: Option<&Fileset>) {
        let mut page = [0; PAGE_BYTES];
        for (slot, fileset) in [fileset].into_iter().chain(snapshot).enumerate() {
            page[slot_offset(slot)..slot_offset(slot + 1)].copy_from_slice(&fileset.encode());
            let counts = counts_offset(slot)..counts_offset(slot + 1);
            page[counts].copy_from_slice(&fileset.encode_counts());
        }
        let mut table = Anode::new(AnodeKind::Internal, AnodeNo(0), FilesetId(0), 12);
        self.write_container(&mut table, PageKind::FilesetTable, &[(0, page)]);
        let place = self.geometry.group_layout().root_place();
        self.put_page(place, PageKind::Anode, PageOwner::default(), |bytes| {
            bytes[slot_offset(0)..slot_offset(1)].copy_from_slice(&table.encode());
        });
    }

    /// Writes the fixed pages of `group`. Returns how many fragments are in use.
    fn write_group(&mut self, group: u32) -> u64 {
        let geometry = self.geometry.clone();
        let used = self.used[&group].clone();
        let place = geometry.free_map_place(group, 0);
        self.put_page(place, PageKind::FreeMap, PageOwner::default(), |bytes| {
            for (bit, is_used) in (0..).zip(&used) {
                bitmap::set(bytes, bit, *is_used);
            }
        });
        let front = geometry.front_segments(group);
        let mut segments_used = 0;
        let place = geometry.usage_place(group, 0);
        let mut page = [0; PAGE_BYTES];
        for (segment, bits) in (0..).zip(used.chunks(index_of(geometry.segment_fragments))) {
            let live = u32::try_from(bits.iter().filter(|&&bit| bit).count()).expect("small");
            let kind = match live {
                _ if segment < front => SegmentKind::Metadata,
                0 => SegmentKind::Free,
                _ if group == DATA_GROUP => SegmentKind::Data,
                _ => SegmentKind::Metadata,
            };
            segments_used += u32::from(kind != SegmentKind::Free);
            let filled = if kind == SegmentKind::Free { 0 } else { 1 };
            let usage = SegmentUsage { kind, live, filled, ..SegmentUsage::FREE };
            let offset = SegmentUsage::offset(segment);
            page[offset..offset + 32].copy_from_slice(&usage.encode());
        }
        self.put_page(place, PageKind::SegmentUsage, PageOwner::default(), |bytes| {
            bytes[PAGE_HEADER_BYTES..].copy_from_slice(&page[PAGE_HEADER_BYTES..]);
        });
        let fragments_used = u32::try_from(used.iter().filter(|&&bit| bit).count()).expect("small");
        let mut descriptor = DescriptorDisk::new_zeroed();
        descriptor.group = group.into();
        descriptor.fragments = geometry.fragments_of(group).into();
        descriptor.segment_fragments = geometry.segment_fragments.into();
        descriptor.segments = geometry.segments_of(group).into();
        descriptor.fragments_used = fragments_used.into();
        descriptor.segments_used = segments_used.into();
        descriptor.free_map_used[0] = 1;
        descriptor.usage_used[0] = 1;
        descriptor.lsn_pages_used[0] = 1;
        let owner = PageOwner { index: u64::from(group) << 16, ..PageOwner::default() };
        self.put_page(geometry.lsn_page_place(group, 0), PageKind::LsnPage, owner, |_| ());
        let owner = PageOwner { index: u64::from(group), ..PageOwner::default() };
        let place = geometry.descriptor_place(group);
        self.put_page(place, PageKind::GroupDescriptor, owner, |bytes| descriptor.store(bytes));
        u64::from(fragments_used)
    }

    fn write_group_table(&self, fragments_used: u64) {
        let place = self.geometry.group_table_lsn_place(0);
        self.put_page(place, PageKind::LsnPage, PageOwner::default(), |_| ());
        let place = self.geometry.group_table_root_place();
        self.put_page(place, PageKind::GroupTableRoot, PageOwner::default(), |bytes| {
            let totals = [fragments_used, 2, to_u64(self.anodes.len())];
            for (index, total) in totals.into_iter().enumerate() {
                write_u64(bytes, TOTAL_FRAGMENTS_USED_OFFSET + index * 8, total);
            }
            bytes[TABLE_BITMAP_OFFSET] = 1;
        });
        let place = self.geometry.group_table_place(0);
        self.put_page(place, PageKind::GroupTable, PageOwner::default(), |bytes| {
            for group in 0..2 {
                let mut entry = GroupEntryDisk::new_zeroed();
                entry.state = 1;
                entry.fragments = self.geometry.fragments_of(group).into();
                let offset = entry_offset(group);
                bytes[offset..offset + 64].copy_from_slice(entry.as_bytes());
            }
        });
    }

    /// Changes a page, and renews its checksum.
    pub(crate) fn edit(&self, place: Place, change: impl FnOnce(&mut PageBytes)) {
        let mut bytes = self.read_page(place);
        change(&mut bytes);
        stamp(&mut bytes, Lsn(2));
        self.write_page(place, &bytes);
    }

    /// Returns the place of the anode table page with `number`.
    pub(crate) fn table_place(&self, number: u64) -> Place {
        self.places[&(u64::MAX - SET.0, page_and_slot(AnodeNo(number)).0)]
    }

    /// Changes an anode, and renews the checksums of the anode and its page.
    pub(crate) fn edit_anode(&self, number: u64, change: impl FnOnce(&mut Anode)) {
        let offset = slot_offset(page_and_slot(AnodeNo(number)).1);
        self.edit(self.table_place(number), |bytes| {
            let slot = bytes[offset..].first_chunk().expect("a slot");
            let anode = Anode::decode(slot, SET, AnodeNo(number));
            let mut anode = anode.expect("whole").expect("in use");
            change(&mut anode);
            bytes[offset..offset + 512].copy_from_slice(&anode.encode());
        });
    }

    /// Changes the fileset entry, and renews the checksums of the entry and its page.
    pub(crate) fn edit_fileset(&self, change: impl FnOnce(&mut Fileset)) {
        let place = self.places[&(u64::MAX, 0)];
        self.edit(place, |bytes| {
            let slot = bytes[slot_offset(0)..].first_chunk().expect("a slot");
            let mut fileset = Fileset::decode(slot, 0).expect("whole").expect("in use");
            change(&mut fileset);
            bytes[slot_offset(0)..slot_offset(1)].copy_from_slice(&fileset.encode());
        });
    }
}

fn superblock(geometry: &Geometry) -> Superblock {
    let mut label = [0; 64];
    label[..4].copy_from_slice(b"test");
    Superblock {
        pool_id: POOL,
        sequence: 2,
        device_index: 0,
        is_open: false,
        consistency: Consistency::Journal,
        features_compatible: 0,
        features_read_only: 0,
        features_incompatible: 0,
        members: vec![Member::new([1; 16], geometry.device_bytes)],
        spares: Vec::new(),
        layout: Layout::Single,
        slots: (0..1).into(),
        added: Vec::new(),
        memberships: vec![Membership::FIRST],
        label,
        created_seconds: 0,
        mount_count: 1,
        writer_term: 0,
        sector_bytes: 512,
        block_shift: 14,
        geometry: geometry.clone(),
        lsn_base: Lsn(0),
        epoch_base: Epoch(0),
        busy_generation: 1,
        is_scrubbing: false,
        secret: [3; 16],
        voids: Vec::new(),
        busy_groups: Vec::new(),
    }
}
