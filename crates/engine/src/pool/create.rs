//! Creation of a pool: its first pages, and then the superblocks that lead to them.
//!
//! # Crashes
//!
//! The superblocks are written last, after everything they lead to is durable. An interrupted
//! creation leaves no pool.

use std::ops::RangeInclusive;
use std::sync::Arc;

use format::anode::{
    ANODE_MAP_ANODE, Anode, DiskTime, FIRST_FILE_ANODE, ORPHAN_ANODE, slot_offset,
};
use format::bitmap;
use format::disk_group::{DiskGroup, DiskGroupRoles, DiskGroupState, may_have_journal};
use format::fileset::{COUNTS_BYTES, Fileset, NamePart, ROOT_FILESET, ROOT_SLOT, counts_offset};
use format::geometry::{AdditionalDiskGroups, Geometry, GeometryOptions, POOL_BYTES_MIN};
use format::group::{GROUP_ENTRY_BYTES, TABLE_BITMAP_OFFSET, entry_offset};
use format::hash::siphash13;
use format::ids::{AnodeNo, Epoch, FilesetId, Lsn, Place, PoolId};
use format::lsn_page::LsnEntry;
use format::members::{Layout, MEMBERS_MAX, Member, Membership};
use format::page::{
    PAGE_BYTES, PAGE_HEADER_BYTES, PageBytes, PageHeader, PageKind, PageOwner, stamp, write_u64,
};
use format::placement::Placement;
use format::pointer::BlockPointer;
use format::slots::Slots;
use format::stripes::StripeShape;
use format::superblock::{Consistency, DISK_GROUPS_MAX, Superblock, label_of};
use runtime::clock::Clock;
use storage::device::{AlignedBuffer, IoPurpose, SharedBytes, SharedDevice};
use storage::volume::{AddGroupError, Volume};
use zerocopy::IntoBytes;

use super::{Pool, PoolOpenError};
use crate::alloc::group::{GroupPages, table_page};
use crate::convert::{narrow, wide};
use crate::fileset_table::birth::{FIRST_ANODES, NewRoot, internal, root_directory};
use crate::journal;

/// Pages in use after the front of group 0: pool root, fileset table, anode table, anode map.
const FIRST_PAGES: u32 = 4;

/// Properties of a new pool.
#[derive(Clone, Debug)]
pub struct PoolCreateOptions {
    /// Sizes.
    pub geometry: GeometryOptions,
    /// Default block size of files: binary logarithm, 12 to 20.
    pub block_shift: u8,
    /// Name given by the user: at most 64 bytes, no control characters.
    pub label: String,
    /// 64 random bytes: identity of the pool and of the device, secret, key of the root directory.
    pub random: [u8; 64],
    /// Owner and group of the root directory.
    pub owner: (u32, u32),
}

impl PoolCreateOptions {
    /// Returns the defaults for a device of `device_bytes`.
    #[must_use]
    pub fn new(device_bytes: u64, random: [u8; 64]) -> PoolCreateOptions {
        PoolCreateOptions {
            geometry: GeometryOptions {
                device_bytes,
                fragment_bytes: 4096,
                segment_bytes: None,
                group_bytes: None,
                journal_bytes: None,
            },
            block_shift: 14,
            label: String::new(),
            random,
            owner: (0, 0),
        }
    }

    /// Returns the layout of a pool with these options. Touches no device.
    ///
    /// # Errors
    ///
    /// [`PoolOpenError::Geometry`], [`PoolOpenError::Block`] or [`PoolOpenError::Label`].
    pub fn plan(&self) -> Result<Geometry, PoolOpenError> {
        self.plan_on(Layout::Single, 1)
    }

    /// Returns the layout of a pool on `members` devices, each as large as the options state.
    ///
    /// # Errors
    ///
    /// [`PoolOpenError::NoMetadata`] for a round-robin, [`PoolOpenError::Width`] for an unsuitable
    /// count of members; otherwise as [`PoolCreateOptions::plan`].
    pub fn plan_on(&self, layout: Layout, members: usize) -> Result<Geometry, PoolOpenError> {
        self.plan_beside(layout, members, &AdditionalDiskGroups::default())
    }

    fn plan_beside(
        &self,
        layout: Layout,
        members: usize,
        beside: &AdditionalDiskGroups,
    ) -> Result<Geometry, PoolOpenError> {
        let geometry = match layout {
            Layout::RoundRobin => return Err(PoolOpenError::NoMetadata { kind: layout.word() }),
            Layout::Single | Layout::Mirror => Geometry::plan_beside(&self.geometry, beside)?,
            Layout::Stripe { .. } | Layout::Raid5 { .. } => {
                let stripe = stripe_on(layout, members)?;
                Geometry::plan_striped_beside(&self.geometry, stripe, beside)?
            }
        };
        if !geometry.can_have_blocks(self.block_shift) {
            return Err(PoolOpenError::Block);
        }
        label_of(&self.label)?;
        Ok(geometry)
    }

    /// Returns the layout of a pool of several disk groups, all metadata in the first.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn plan_groups(&self, groups: &[GroupPlan]) -> Result<Layouts, PoolOpenError> {
        let Some((first, others)) = groups.split_first() else { return Err(PoolOpenError::NoData) };
        if !groups.iter().any(|group| group.roles.data) {
            return Err(PoolOpenError::NoData);
        }
        check_roles(first, others)?;
        if groups.len() > DISK_GROUPS_MAX {
            return Err(AddGroupError::TooMany.into());
        }
        let mut beside = AdditionalDiskGroups::default();
        for group in others.iter().filter(|group| group.roles.data) {
            let widths = group.layout.widths();
            if !widths.contains(&group.members) {
                return Err(wrong_width(group.layout, group.members, &widths));
            }
            let width = match group.layout {
                Layout::Single | Layout::Mirror | Layout::RoundRobin => None,
                Layout::Stripe { .. } | Layout::Raid5 { .. } => {
                    Some(stripe_on(group.layout, group.members)?.width())
                }
            };
            let lanes = group.layout.lanes(group.members);
            let data = width.map_or(lanes, |width| width.units);
            beside.bytes =
                beside.bytes.saturating_add(group.member_bytes.saturating_mul(data.into()));
            beside.stripe = beside.stripe.or(width);
        }
        let mut of_first = self.clone();
        of_first.geometry.device_bytes = first.member_bytes;
        let mut geometry = of_first.plan_beside(first.layout, first.members, &beside)?;
        geometry.main_has_data = first.roles.data;
        let (mut added, mut slot) = (Vec::new(), first.members);
        for (number, group) in (1..).zip(others) {
            let slots = slot..slot + group.members;
            slot = slots.end;
            let slots = slots.into();
            let made = plan_other(&geometry, number, group, slots)?;
            if made.has_journal {
                geometry.journal_group = Some(number);
                added.push(made);
                continue;
            }
            let ranges = geometry.group_layout().ranges_of(&made, made.slots.len());
            geometry.added.extend(ranges.into_iter().flatten());
            added.push(made);
        }
        if slot > MEMBERS_MAX {
            return Err(AddGroupError::TooManyMembers.into());
        }
        Ok(Layouts { geometry, added })
    }
}

/// Plan of a disk group in a new pool.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Layout on its devices.
    pub layout: Layout,
    /// Count of devices.
    pub members: usize,
    /// Size of the smallest device in bytes.
    pub member_bytes: u64,
    /// What it may hold.
    pub roles: DiskGroupRoles,
}

/// Layout of a new pool.
#[derive(Clone, Debug)]
pub struct Layouts {
    /// Geometry of the first disk group, and the allocation groups of all.
    pub geometry: Geometry,
    /// The other disk groups.
    pub added: Vec<DiskGroup>,
}

/// A disk group for a new pool, with its devices.
#[derive(Clone, Debug)]
pub struct NewDiskGroup {
    /// Layout on its devices.
    pub layout: Layout,
    /// The devices.
    pub devices: Vec<SharedDevice>,
    /// What it may hold.
    pub roles: DiskGroupRoles,
}

impl NewDiskGroup {
    fn plan(&self) -> GroupPlan {
        let sizes = self.devices.iter().map(|device| device.info().size_bytes);
        GroupPlan {
            layout: self.layout,
            members: self.devices.len(),
            member_bytes: sizes.min().unwrap_or(0),
            roles: self.roles,
        }
    }
}

fn stripe_on(layout: Layout, members: usize) -> Result<StripeShape, PoolOpenError> {
    let widths = layout.widths();
    let stripe = widths.contains(&members).then(|| layout.stripe(members)).flatten();
    stripe.ok_or_else(|| wrong_width(layout, members, &widths))
}

/// Refuses impossible roles. Exactly one disk group has the journal (DG4): the first, beside the
/// metadata, or a single or mirror that has nothing else.
fn check_roles(first: &GroupPlan, others: &[GroupPlan]) -> Result<(), PoolOpenError> {
    let own = others.iter().filter(|group| group.roles.journal);
    if own.clone().count() + usize::from(first.roles.journal) != 1 {
        return Err(PoolOpenError::Journals);
    }
    if own.clone().any(|group| group.roles.data) {
        return Err(PoolOpenError::JournalWithData);
    }
    let odd = own.clone().find(|group| !may_have_journal(group.layout));
    odd.map_or(Ok(()), |group| {
        Err(AddGroupError::JournalLayout { kind: group.layout.word() }.into())
    })
}

fn plan_other(
    geometry: &Geometry,
    number: u8,
    group: &GroupPlan,
    slots: Slots,
) -> Result<DiskGroup, PoolOpenError> {
    let widths = group.layout.widths();
    if !widths.contains(&group.members) {
        return Err(wrong_width(group.layout, group.members, &widths));
    }
    if geometry.fragment_bytes() != wide(PAGE_BYTES) {
        return Err(AddGroupError::Fragment { bytes: geometry.fragment_bytes() }.into());
    }
    if group.roles.journal {
        let made =
            geometry.group_layout().plan_journal(number, group.layout, slots, group.member_bytes);
        let made = made.ok_or(PoolOpenError::JournalTooSmall {
            found_bytes: group.member_bytes,
            needed_bytes: geometry.group_layout().journal_member_bytes(),
        })?;
        return Ok(DiskGroup { state: DiskGroupState::Online, ..made });
    }
    let kind = (
        group.layout,
        geometry.group_layout().with_room(group.roles, group.layout, group.member_bytes),
    );
    let made = geometry.group_layout().plan_added(number, kind, slots, group.member_bytes);
    let made = made.filter(|_| group.member_bytes >= POOL_BYTES_MIN);
    let made = made.ok_or_else(|| AddGroupError::TooSmall {
        device: format!("a device of disk group {number}"),
        found_bytes: group.member_bytes,
        group_bytes: u64::from(geometry.group_fragments) << geometry.fragment_shift,
    })?;
    Ok(DiskGroup { state: DiskGroupState::Online, ..made })
}

fn take<const N: usize>(random: &[u8; 64], from: usize) -> [u8; N] {
    *random[from..].first_chunk::<N>().expect("64 bytes are enough")
}

impl Pool {
    /// Creates a pool on `device`. Overwrites it without further question.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn create(
        device: &SharedDevice,
        clock: &dyn Clock,
        options: &PoolCreateOptions,
    ) -> Result<(), PoolOpenError> {
        Pool::create_on(std::slice::from_ref(device), Layout::Single, clock, options)
    }

    /// Refuses a count of members that [`Pool::create_on`] would refuse. Touches no device.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn check_members(
        layout: Layout,
        count: usize,
        options: &PoolCreateOptions,
    ) -> Result<(), PoolOpenError> {
        check_width(layout, count, &options.plan_on(layout, count)?)
    }

    /// Creates a pool on `devices` in `layout`. Each device is at least as large as the options
    /// state.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn create_on(
        devices: &[SharedDevice],
        layout: Layout,
        clock: &dyn Clock,
        options: &PoolCreateOptions,
    ) -> Result<(), PoolOpenError> {
        let geometry = options.plan_on(layout, devices.len())?;
        check_layout(layout, devices, &geometry)?;
        Pool::write_first(
            devices,
            layout,
            clock,
            (options, Layouts { geometry, added: Vec::new() }),
        )
    }

    /// Creates a pool of several disk groups. The first has the fixed regions and all metadata, and
    /// the journal unless another one has it. Of each device the first uses as much as its smallest
    /// device has.
    ///
    /// # Errors
    ///
    /// See [`PoolOpenError`].
    pub fn create_groups(
        groups: &[NewDiskGroup],
        clock: &dyn Clock,
        options: &PoolCreateOptions,
    ) -> Result<(), PoolOpenError> {
        let plans: Vec<GroupPlan> = groups.iter().map(NewDiskGroup::plan).collect();
        let layouts = options.plan_groups(&plans)?;
        let Some(first) = groups.first() else { return Err(PoolOpenError::NoData) };
        check_layout(first.layout, &first.devices, &layouts.geometry)?;
        let devices: Vec<SharedDevice> =
            groups.iter().flat_map(|group| group.devices.iter().map(Arc::clone)).collect();
        Pool::write_first(&devices, first.layout, clock, (options, layouts))
    }

    fn write_first(
        devices: &[SharedDevice],
        layout: Layout,
        clock: &dyn Clock,
        (options, layouts): (&PoolCreateOptions, Layouts),
    ) -> Result<(), PoolOpenError> {
        let Layouts { geometry, added } = layouts;
        let of_others: usize = added.iter().map(|group| group.slots.len()).sum();
        let label = label_of(&options.label)?;
        let now = clock.now();
        let mut superblock = Superblock {
            pool_id: PoolId(take(&options.random, 0)),
            sequence: 0,
            device_index: 0,
            is_open: false,
            consistency: Consistency::Journal,
            features_compatible: 0,
            features_read_only: 0,
            features_incompatible: 0,
            members: members_on(devices, take(&options.random, 16)),
            spares: Vec::new(),
            layout,
            slots: (0..devices.len() - of_others).into(),
            added,
            memberships: vec![Membership::FIRST],
            label,
            created_seconds: u64::try_from(now.seconds).unwrap_or(0),
            mount_count: 0,
            writer_term: 1,
            // Chunks of the log end at multiples of this: the largest sector size of all devices.
            sector_bytes: devices.iter().map(|one| one.info().sector_bytes).max().unwrap_or(512),
            block_shift: options.block_shift,
            lsn_base: journal::first_head(&geometry).tail,
            epoch_base: Epoch(2),
            geometry,
            busy_generation: 1,
            is_scrubbing: false,
            secret: take(&options.random, 32),
            voids: Vec::new(),
            busy_groups: Vec::new(),
        };
        let volume = Volume::of_new(devices, &superblock)?;
        volume.check_writable()?;
        let created = DiskTime { seconds: now.seconds, nanoseconds: now.nanoseconds };
        let pages = first_pages(&superblock, options, created);
        let mut tickets = Vec::with_capacity(pages.len());
        for (place, bytes) in pages {
            let data = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes))];
            tickets.push(volume.submit_write(IoPurpose::Home, place, data));
        }
        for ticket in tickets {
            ticket.wait()?;
        }
        // Erases the head page of an earlier pool's double-write area.
        let offset = superblock.geometry.double_write_offset;
        volume.write_fixed(IoPurpose::DoubleWrite, offset, AlignedBuffer::zeroed(PAGE_BYTES))?;
        storage::heartbeat::write_first(&volume, superblock.pool_id)?;
        journal::write_first_heads(&volume, superblock.pool_id)?;
        volume.flush(IoPurpose::Home)?;
        // CRASH: everything else is durable before the superblocks, which make the pool (S3).
        volume.write_first_superblocks(&mut superblock)?;
        Ok(())
    }
}

fn wrong_width(layout: Layout, found: usize, widths: &RangeInclusive<usize>) -> PoolOpenError {
    let (least, most) = (*widths.start(), *widths.end());
    PoolOpenError::Width { kind: layout.word(), found, least, most }
}

fn check_layout(
    layout: Layout,
    devices: &[SharedDevice],
    geometry: &Geometry,
) -> Result<(), PoolOpenError> {
    check_width(layout, devices.len(), geometry)?;
    match devices.iter().find(|device| device.info().size_bytes < geometry.member_bytes()) {
        Some(small) => Err(PoolOpenError::SmallMember {
            device: small.info().name.clone(),
            found_bytes: small.info().size_bytes,
            needed_bytes: geometry.member_bytes(),
        }),
        None => Ok(()),
    }
}

fn check_width(layout: Layout, found: usize, geometry: &Geometry) -> Result<(), PoolOpenError> {
    let widths = layout.widths();
    if !widths.contains(&found) {
        return Err(wrong_width(layout, found, &widths));
    }
    if layout != Layout::Single && geometry.fragment_bytes() != wide(PAGE_BYTES) {
        return Err(PoolOpenError::Fragment { kind: layout.word() });
    }
    Ok(())
}

/// Returns the members of a new pool. All identities but the first are derived from the first.
fn members_on(devices: &[SharedDevice], first: [u8; 16]) -> Vec<Member> {
    let (low, high) = first.split_at(8);
    let key = [low, high].map(|half| half.first_chunk().map_or(0, |h| u64::from_le_bytes(*h)));
    let member = |(number, device): (u64, &SharedDevice)| {
        let half = |half: u64| siphash13(key, &[number.to_le_bytes(), half.to_le_bytes()].concat());
        let other = u128::from(half(0)) << 64 | u128::from(half(1));
        let id = if number == 0 { first } else { other.to_le_bytes() };
        let mut member = Member::new(id, device.info().size_bytes);
        if devices.len() > 1 {
            member.set_path(device.info().name.as_bytes());
        }
        member
    };
    (0..).zip(devices).map(member).collect()
}

fn first_pages(
    superblock: &Superblock,
    options: &PoolCreateOptions,
    created: DiskTime,
) -> Vec<(Place, PageBytes)> {
    let (geometry, pool_id) = (&superblock.geometry, superblock.pool_id);
    let epoch = Epoch(1);
    let group = GroupPages::build(geometry, pool_id, 0, FIRST_PAGES, epoch);
    let page_fragments = geometry.page_fragments();
    let behind_front = |index: u32| geometry.page_place(0, geometry.front_pages() + index);
    let pointer = |index| BlockPointer::to_page(behind_front(index), page_fragments, epoch);
    let mut pages = group.pages;
    let mut add = |place, kind, owner, fill: &mut dyn FnMut(&mut PageBytes)| {
        let mut bytes = [0; PAGE_BYTES];
        let mut header = PageHeader::new(kind, pool_id, place, owner);
        header.birth = epoch;
        header.encode(&mut bytes);
        fill(&mut bytes);
        pages.push((place, bytes));
    };
    let pool_owner = PageOwner::default();
    add(behind_front(0), PageKind::Anode, pool_owner, &mut |bytes| {
        let anode = with_page(internal(AnodeNo(0), FilesetId(0), epoch), &pointer(1));
        put_slot(bytes, 0, &anode.encode());
    });
    add(behind_front(1), PageKind::FilesetTable, pool_owner, &mut |bytes| {
        let shift = superblock.block_shift;
        let mut fileset = Fileset::new(ROOT_FILESET, ROOT_SLOT, NamePart::root(), shift);
        let mut table = fileset.table_anode();
        table.set_root_pointer(0, Some(&pointer(2)));
        table.pages = 1;
        table.fragments = u64::from(page_fragments);
        fileset.set_table_anode(&table);
        fileset.anodes_used = FIRST_ANODES;
        fileset.anodes_end = FIRST_FILE_ANODE.0;
        fileset.created_seconds = superblock.created_seconds;
        fileset.uuid = first_uuid(pool_id);
        // Root page of the anode table, and page of the anode map.
        fileset.fragments = 2 * u64::from(page_fragments);
        put_slot(bytes, 0, &fileset.encode());
        let counts = counts_offset(0);
        bytes[counts..counts + COUNTS_BYTES].copy_from_slice(&fileset.encode_counts());
    });
    let owner = PageOwner { fileset: ROOT_FILESET, ..PageOwner::default() };
    add(behind_front(2), PageKind::Anode, owner, &mut |bytes| {
        let key = [48, 56].map(|from| u64::from_le_bytes(take(&options.random, from)));
        let placement = Placement::Any;
        let root = NewRoot { owner: options.owner, key, created, placement };
        let map = internal(ANODE_MAP_ANODE, ROOT_FILESET, epoch);
        put_slot(bytes, 1, &root_directory(ROOT_FILESET, &root, epoch).encode());
        put_slot(bytes, 2, &with_page(map, &pointer(3)).encode());
        put_slot(bytes, 3, &internal(ORPHAN_ANODE, ROOT_FILESET, epoch).encode());
    });
    let owner = PageOwner { fileset: ROOT_FILESET, anode: ANODE_MAP_ANODE, ..owner };
    add(behind_front(3), PageKind::AnodeMap, owner, &mut |bytes| {
        (0..16).for_each(|bit| bitmap::set(bytes, bit, true));
    });
    add(geometry.group_table_root_place(), PageKind::GroupTableRoot, pool_owner, &mut |bytes| {
        let totals = PAGE_HEADER_BYTES;
        write_u64(bytes, totals, u64::from(group.fragments_used));
        write_u64(bytes, totals + 8, 1);
        write_u64(bytes, totals + 16, FIRST_ANODES);
        bytes[TABLE_BITMAP_OFFSET] = 1;
    });
    let place = geometry.group_table_place(0);
    let mut bytes = [0; PAGE_BYTES];
    table_page(&mut bytes, pool_id, place, 0);
    let at = entry_offset(0);
    bytes[at..at + GROUP_ENTRY_BYTES].copy_from_slice(group.entry.as_bytes());
    pages.push((place, bytes));
    for index in 0..geometry.group_table_lsn_pages() {
        let place = geometry.group_table_lsn_place(narrow(index));
        let owner = PageOwner { index, ..PageOwner::default() };
        let mut bytes = [0; PAGE_BYTES];
        PageHeader::new(PageKind::LsnPage, pool_id, place, owner).encode(&mut bytes);
        pages.push((place, bytes));
    }
    let lsn = lsn_of_creation(superblock);
    list_lsns(geometry, &mut pages, lsn);
    for (_, bytes) in &mut pages {
        stamp(bytes, lsn);
    }
    pages
}

/// Returns the LSN of a new pool's pages. It is below that of the first log chunk, because two
/// versions of a page must not have equal LSNs.
fn lsn_of_creation(superblock: &Superblock) -> Lsn {
    Lsn(superblock.lsn_base.0.saturating_sub(1))
}

fn list_lsns(geometry: &Geometry, pages: &mut [(Place, PageBytes)], lsn: Lsn) {
    let entries: Vec<LsnEntry> =
        pages.iter().filter_map(|(place, _)| geometry.lsn_entry(*place)).collect();
    for (place, bytes) in pages {
        for entry in entries.iter().filter(|entry| entry.page == *place) {
            entry.list(bytes, 0, lsn);
        }
    }
}

fn put_slot(bytes: &mut PageBytes, slot: usize, content: &[u8; 512]) {
    bytes[slot_offset(slot)..slot_offset(slot) + content.len()].copy_from_slice(content);
}

fn with_page(mut anode: Anode, page: &BlockPointer) -> Anode {
    anode.set_root_pointer(0, Some(page));
    anode.pages = 1;
    anode.fragments = u64::from(page.fragments);
    anode
}

/// Returns the UUID of the first fileset, derived from the pool's identity but different from it.
fn first_uuid(pool: PoolId) -> [u8; 16] {
    (u128::from_le_bytes(pool.0) ^ u128::from(ROOT_FILESET.0) << 64).to_le_bytes()
}
