//! The superblock: the root record of a pool, in four copies on every device.
//!
//! # Invariants
//!
//! - S1: The valid copy with the highest sequence is current. An update replaces all older copies,
//!   but never writes both copies of a pair between two flushes, so a valid one survives.
//! - S2: A reader refuses unknown incompatible features, and opens read-only with unknown
//!   read-only-compatible ones.
//! - S3: Creation writes copies with sequence 1, and writes the first copy when all others are
//!   durable. So a blank first copy means an interrupted creation, not a pool.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::disk_group::{DiskGroup, DiskGroupState};
use crate::geometry::{BLOCK_SHIFTS, Geometry};
use crate::ids::{EPOCH_MAX, Epoch, LSN_MAX, Lsn, PoolId, SEQUENCE_MAX};
use crate::members::{
    Layout, LayoutDisk, MEMBERS_MAX, MEMBERSHIPS_MAX, MIRROR_WIDTH_MAX, Member, MemberDisk,
    Membership, MembershipDisk, Spare, members_of, memberships_of, spares_of,
};
use crate::missed::{MISSED_MAX, StalePartsDisk};
use crate::reshape::ReshapeDisk;
use crate::slots::Slots;
pub use crate::superblock_error::{SuperblockError, VERSION_MAJOR, VERSION_MINOR};

use self::groups::{
    added_of, has_own_members, journal_group_of, main_layout_of, main_of, not_implemented,
    ranges_of, roles_of, roles_of_main,
};
pub use self::label::{LabelError, label_of, name_in, name_like, verify_pool_name};
use self::missed::{missed_to_disk, note_missed};
use self::reshape::{narrower, reshape_of, reshape_to_disk, verify_reshape};

/// Bytes of a superblock copy.
pub const SUPERBLOCK_BYTES: usize = 32_768;
/// First bytes of every device of a pool.
pub const MAGIC: [u8; 8] = *b"HOLDFAST";
/// Most busy groups.
pub const BUSY_GROUPS_MAX: usize = 256;
/// Most void intervals; beyond that the two oldest are merged.
pub const VOID_INTERVALS_MAX: usize = 32;
/// Bytes of a label.
pub const LABEL_BYTES: usize = 64;
/// Most layouts.
pub const LAYOUTS_MAX: usize = 8;
/// Most disk groups.
pub const DISK_GROUPS_MAX: usize = 8;

/// Known incompatible features: none. A pool lists the ones in use.
pub const INCOMPATIBLE_KNOWN: u64 = 0;
/// Known read-only-compatible features: none.
pub const READ_ONLY_COMPATIBLE_KNOWN: u64 = 0;

const _: () = assert!(LABEL_BYTES == 64);
const _: () = assert!(DISK_GROUPS_MAX * (MIRROR_WIDTH_MAX - 1) <= MISSED_MAX);

/// LSNs and epochs of a part of the log that a crash made void.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
struct VoidIntervalDisk {
    lsn_first: U64,
    lsn_end: U64,
    epoch_first: U64,
    epoch_end: U64,
}

/// A disk group. Format: `docs/FORMAT.md#disk-group`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
struct DiskGroupDisk {
    /// Bits: 1 data, 2 metadata, 4 journal, 8 nvram. 0: no disk group.
    roles: u8,
    /// Index in `layouts`.
    layout: u8,
    /// 1: online; 2: adding; 3: leaving.
    state: u8,
    /// In entry 0 the number of the main disk group, in others zero.
    main: u8,
    first_group: U32,
    member_bytes: U64,
}

/// Format: `docs/FORMAT.md#superblock`. For fields without comment see [`Superblock`] and
/// [`Geometry`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SuperblockDisk {
    /// First in every version, so that any version recognises a pool.
    magic: [u8; 8],
    /// CRC-32C of every byte after this field. Detects torn writes and rot.
    crc32c: U32,
    /// A reader refuses an unknown one.
    version_major: U16,
    /// A reader ignores an unknown one.
    version_minor: U16,
    /// Detects a device of another pool.
    pool_id: [u8; 16],
    /// Rises by one at each update. Which copy is current?
    sequence: U64,
    /// Detects a misdirected write.
    copy_index: U16,
    /// Slot of this device; of a spare, its number behind the members.
    device_index: U16,
    device_count: U16,
    /// 0: closed cleanly; 1: open, or crashed. Is recovery needed?
    state: u8,
    /// 0: journal; 1: working-set; 2: scan.
    consistency: u8,
    /// A reader may ignore unknown bits.
    features_compatible: U64,
    /// A reader opens read-only on unknown bits.
    features_read_only: U64,
    /// A reader refuses unknown bits.
    features_incompatible: U64,
    /// Detects a device in another's slot.
    device_id: [u8; 16],
    /// Newest epoch in `memberships`. Detects a device left behind.
    membership_epoch: U64,
    label: [u8; LABEL_BYTES],
    created: U64,
    mount_count: U64,
    /// Term of the writer. A higher one fences lower ones.
    writer_term: U32,
    /// Chunks of the log fill whole sectors of this size.
    sector_bytes: U32,
    /// Bytes used of each member of the main disk group.
    device_bytes: U64,
    fragment_shift: u8,
    block_shift: u8,
    /// 0: no reshape; 1: a member is added; 2: last groups are emptied; 3: a member is removed.
    reshaping: u8,
    /// 1: a scrub is in progress. The members have its progress.
    scrubbing: u8,
    segment_fragments: U32,
    group_fragments: U32,
    group_count: U32,
    journal_offset: U64,
    journal_bytes: U64,
    double_write_offset: U64,
    double_write_pages: U64,
    group_table_offset: U64,
    groups_offset: U64,
    lsn_base: U64,
    epoch_base: U64,
    /// Are busy marks valid? Only in groups with this generation.
    busy_generation: U64,
    /// Keeps a file from forging a segment summary.
    secret: [u8; 16],
    busy_count: U16,
    void_count: U16,
    membership_count: U16,
    /// Spares in `members`, behind the last member.
    spare_count: u8,
    missed_count: u8,
    layouts: [LayoutDisk; LAYOUTS_MAX],
    disk_groups: [DiskGroupDisk; DISK_GROUPS_MAX],
    /// Which summaries must be ignored?
    voids: [VoidIntervalDisk; VOID_INTERVALS_MAX],
    /// Disk group in the upper 8 bits, group in the lower 24.
    busy_groups: [U32; BUSY_GROUPS_MAX],
    /// Oldest first. Do two devices share a history?
    memberships: [MembershipDisk; MEMBERSHIPS_MAX],
    /// Members by slot, then spares, then zeros.
    members: [MemberDisk; MEMBERS_MAX],
    /// By rising slots. Which parts need a rebuild?
    missed: [StalePartsDisk; MISSED_MAX],
    reshape: ReshapeDisk,
}

const _: () = assert!(size_of::<SuperblockDisk>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(SuperblockDisk, crc32c) == 8);
const CRC_COVERS_FROM: usize = 12;
/// Bytes in use in a small pool: at most [`HEAD_MEMBERS_MAX`] members and spares, no stale parts,
/// no reshape. A reader takes the rest as zeros.
pub const SUPERBLOCK_HEAD_BYTES: usize = 4096;
/// Most members and spares of a copy that is only a head.
pub const HEAD_MEMBERS_MAX: usize = 5;
const _: () = assert!(
    std::mem::offset_of!(SuperblockDisk, members) + HEAD_MEMBERS_MAX * size_of::<MemberDisk>()
        <= SUPERBLOCK_HEAD_BYTES
);

/// Returns the bytes in use of a copy that begins with `head`.
#[must_use]
pub fn bytes_in_use(head: &[u8]) -> usize {
    let at = std::mem::offset_of!(SuperblockDisk, device_count);
    let members = head.get(at..).and_then(|count| count.first_chunk());
    let members = members.map(|members| usize::from(u16::from_le_bytes(*members)));
    let byte = |at: usize| head.get(at).map(|count| usize::from(*count));
    let spares = byte(std::mem::offset_of!(SuperblockDisk, spare_count));
    let both = members.zip(spares).map(|(members, spares)| members + spares);
    let is_none = |at: usize| byte(at) == Some(0);
    let is_short = is_none(std::mem::offset_of!(SuperblockDisk, missed_count))
        && is_none(std::mem::offset_of!(SuperblockDisk, reshaping));
    if both.is_some_and(|both| both <= HEAD_MEMBERS_MAX) && is_short {
        SUPERBLOCK_HEAD_BYTES
    } else {
        SUPERBLOCK_BYTES
    }
}

/// Returns a copy with the unused bytes behind its head zeroed.
#[must_use]
pub fn without_rest(mut bytes: [u8; SUPERBLOCK_BYTES]) -> [u8; SUPERBLOCK_BYTES] {
    let in_use = bytes_in_use(&bytes);
    bytes[in_use..].fill(0);
    bytes
}

/// Bytes under the checksum before version 4.0, to recognise an old pool.
const SUPERBLOCK_BYTES_BEFORE_4: usize = 4096;

/// LSNs and epochs of a part of the log that a crash made void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VoidInterval {
    /// First void LSN.
    pub lsn_first: Lsn,
    /// First LSN behind the interval.
    pub lsn_end: Lsn,
    /// First void epoch.
    pub epoch_first: Epoch,
    /// First epoch behind the interval.
    pub epoch_end: Epoch,
}

/// Trade-off between costs of commits and of crashes, chosen at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Log first, pages later; replay after a crash.
    Journal,
    /// Pages in order after busy marks; a check of these after a crash.
    WorkingSet,
    /// Pages in order; a full check after a crash.
    Scan,
}

/// A verified superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the pool.
    pub pool_id: PoolId,
    /// Rises by one at each update.
    pub sequence: u64,
    /// Slot of this label's member; of a spare, its number behind the members.
    pub device_index: u16,
    /// Whether the pool is open, or crashed.
    pub is_open: bool,
    /// Method of commits.
    pub consistency: Consistency,
    /// Features that a reader may ignore.
    pub features_compatible: u64,
    /// Features that a writer must know.
    pub features_read_only: u64,
    /// Features that a reader must know.
    pub features_incompatible: u64,
    /// Members by slot: 1 to [`MEMBERS_MAX`].
    pub members: Vec<Member>,
    /// Spares: at most [`crate::members::SPARES_MAX`].
    pub spares: Vec<Spare>,
    /// Layout of the main disk group.
    pub layout: Layout,
    /// Slots of the main disk group.
    pub slots: Slots,
    /// Other disk groups, by number: at most [`DISK_GROUPS_MAX`] less one.
    pub added: Vec<DiskGroup>,
    /// Epochs of membership, oldest first: 1 to [`MEMBERSHIPS_MAX`].
    pub memberships: Vec<Membership>,
    /// Name from the user, padded with zeros.
    pub label: [u8; LABEL_BYTES],
    /// Creation, in seconds since 1970.
    pub created_seconds: u64,
    /// Number of mounts.
    pub mount_count: u64,
    /// Term of the writer.
    pub writer_term: u32,
    /// Largest sector, in bytes, of any device that the pool was on.
    pub sector_bytes: u32,
    /// Default block size: binary logarithm.
    pub block_shift: u8,
    /// Geometry.
    pub geometry: Geometry,
    /// LSN at which this life of the pool began.
    pub lsn_base: Lsn,
    /// Epoch at which this life of the pool began.
    pub epoch_base: Epoch,
    /// Generation of groups with valid busy marks.
    pub busy_generation: u64,
    /// Whether a scrub is unfinished. Members hold its progress.
    pub is_scrubbing: bool,
    /// Pool secret: key of the seals in segment summaries, and source of other keys.
    pub secret: [u8; 16],
    /// Void intervals, oldest first: at most [`VOID_INTERVALS_MAX`].
    pub voids: Vec<VoidInterval>,
    /// Busy groups: disk group (8 bits) and group (24 bits), at most [`BUSY_GROUPS_MAX`].
    pub busy_groups: Vec<u32>,
}

impl Superblock {
    /// Verifies a copy read from the place of `copy_index`.
    ///
    /// # Errors
    ///
    /// [`SuperblockError`]: the variant names the action.
    pub fn decode(
        bytes: &[u8; SUPERBLOCK_BYTES],
        copy_index: u16,
    ) -> Result<Superblock, SuperblockError> {
        let disk: &SuperblockDisk = zerocopy::transmute_ref!(bytes);
        if disk.magic != MAGIC {
            return Err(SuperblockError::BadMagic { found: disk.magic });
        }
        let (stored, computed) = (disk.crc32c.get(), crc32c(&bytes[CRC_COVERS_FROM..]));
        let (major, minor) = (disk.version_major.get(), disk.version_minor.get());
        if stored != computed {
            let is_old = major < VERSION_MAJOR
                && stored == crc32c(&bytes[CRC_COVERS_FROM..SUPERBLOCK_BYTES_BEFORE_4]);
            return Err(if is_old {
                SuperblockError::OldVersion { major, minor }
            } else {
                SuperblockError::BadChecksum { stored, computed }
            });
        }
        if major > VERSION_MAJOR {
            return Err(SuperblockError::UnsupportedVersion { major, minor });
        }
        if major < VERSION_MAJOR {
            return Err(SuperblockError::OldVersion { major, minor });
        }
        let features = disk.features_incompatible.get() & !INCOMPATIBLE_KNOWN;
        if features != 0 {
            return Err(SuperblockError::UnsupportedFeatures { features });
        }
        let found = disk.copy_index.get();
        if found != copy_index {
            return Err(SuperblockError::Misplaced { expected: copy_index, found });
        }
        Self::parse(disk)
    }

    fn parse(disk: &SuperblockDisk) -> Result<Superblock, SuperblockError> {
        let bad = |field| SuperblockError::BadField { field };
        let device_count = usize::from(disk.device_count.get());
        if usize::from(main_of(disk)) >= DISK_GROUPS_MAX {
            return Err(bad("disk_groups"));
        }
        let (layout, slots) = main_layout_of(disk)?;
        let (reshape, last_groups) = reshape_of(disk)?;
        let main = disk.disk_groups[usize::from(main_of(disk))];
        let own = layout.stripe(slots.len() - narrower(reshape.as_ref(), main_of(disk)));
        let member_bytes = disk.device_bytes.get();
        let mut geometry = Geometry {
            device_bytes: member_bytes,
            fragment_shift: disk.fragment_shift,
            segment_fragments: disk.segment_fragments.get(),
            group_fragments: disk.group_fragments.get(),
            main: main_of(disk),
            main_first: main.first_group.get(),
            group_count: disk.group_count.get(),
            journal_offset: disk.journal_offset.get(),
            journal_bytes: disk.journal_bytes.get(),
            double_write_offset: disk.double_write_offset.get(),
            double_write_pages: disk.double_write_pages.get(),
            group_table_offset: disk.group_table_offset.get(),
            groups_offset: disk.groups_offset.get(),
            main_stripe: own,
            main_has_data: main.roles & groups::ROLES_DATA != 0,
            journal_group: None,
            added: Vec::new(),
            reshape,
            last_groups,
        };
        geometry.verify_segments().map_err(bad)?;
        if let Some(shape) = own {
            let bytes = geometry.striped_bytes(member_bytes, geometry.groups_offset, shape);
            geometry.device_bytes = bytes;
        }
        geometry.verify().map_err(bad)?;
        if !BLOCK_SHIFTS.contains(&disk.block_shift) {
            return Err(bad("block_shift"));
        }
        let sector_bytes = disk.sector_bytes.get();
        if !sector_bytes.is_power_of_two() || !(512..=4096).contains(&sector_bytes) {
            return Err(bad("sector_bytes"));
        }
        let bounds = [
            (disk.sequence.get() <= SEQUENCE_MAX, "sequence"),
            (disk.mount_count.get() <= SEQUENCE_MAX, "mount_count"),
            (disk.writer_term.get() < u32::MAX, "writer_term"),
            (disk.lsn_base.get() <= LSN_MAX, "lsn_base"),
            (disk.epoch_base.get() <= EPOCH_MAX, "epoch_base"),
            (disk.scrubbing <= 1, "scrubbing"),
        ];
        if let Some(&(_, field)) = bounds.iter().find(|(holds, _)| !holds) {
            return Err(bad(field));
        }
        let consistency = match disk.consistency {
            0 => Consistency::Journal,
            1 => Consistency::WorkingSet,
            2 => Consistency::Scan,
            _ => return Err(bad("consistency")),
        };
        if let Some(what) = not_implemented(disk) {
            return Err(SuperblockError::NotImplemented { what });
        }
        let added = added_of(disk)?;
        geometry.added = ranges_of(&geometry, &added, reshape.as_ref())?;
        geometry.journal_group = journal_group_of(&geometry, &added)?;
        if main.roles != roles_of_main(&geometry) {
            return Err(bad("disk_groups"));
        }
        geometry.verify().map_err(bad)?;
        let groups = ((layout, &slots), added.as_slice());
        verify_reshape(&geometry, groups).map_err(bad)?;
        let members = disk.members.get(..device_count).ok_or(bad("device_count"))?;
        let mut members = members_of(members)?;
        let missed = disk.missed.get(..usize::from(disk.missed_count)).ok_or(bad("missed"))?;
        note_missed(missed, &mut members)?;
        let spares_end = device_count + usize::from(disk.spare_count);
        let spares = disk.members.get(device_count..spares_end).ok_or(bad("spares"))?;
        let spares = spares_of(spares, &members)?;
        let mut ids = members.iter().map(|it| it.id).chain(spares.iter().map(|it| it.id));
        let own = ids.nth(usize::from(disk.device_index.get()));
        if own != Some(disk.device_id) {
            return Err(bad("device_index"));
        }
        let membership_count = usize::from(disk.membership_count.get());
        let memberships = disk.memberships.get(..membership_count).ok_or(bad("memberships"))?;
        let memberships = memberships_of(memberships, disk.membership_epoch.get())?;
        // An epoch can't begin with a later label than this one.
        if memberships.last().is_some_and(|last| last.sequence > disk.sequence.get()) {
            return Err(bad("memberships"));
        }
        let voids = disk.voids.get(..usize::from(disk.void_count.get())).ok_or(bad("voids"))?;
        let busy_count = usize::from(disk.busy_count.get());
        let busy_groups = disk.busy_groups.get(..busy_count).ok_or(bad("busy_groups"))?;
        let superblock = Superblock {
            pool_id: PoolId(disk.pool_id),
            sequence: disk.sequence.get(),
            device_index: disk.device_index.get(),
            is_open: disk.state != 0,
            consistency,
            features_compatible: disk.features_compatible.get(),
            features_read_only: disk.features_read_only.get(),
            features_incompatible: disk.features_incompatible.get(),
            members,
            spares,
            layout,
            slots,
            added,
            memberships,
            label: disk.label,
            created_seconds: disk.created.get(),
            mount_count: disk.mount_count.get(),
            writer_term: disk.writer_term.get(),
            sector_bytes,
            block_shift: disk.block_shift,
            geometry,
            lsn_base: Lsn(disk.lsn_base.get()),
            epoch_base: Epoch(disk.epoch_base.get()),
            busy_generation: disk.busy_generation.get(),
            is_scrubbing: disk.scrubbing != 0,
            secret: disk.secret,
            voids: voids.iter().map(void_of).collect(),
            busy_groups: busy_groups.iter().map(|group| group.get()).collect(),
        };
        if !has_own_members(&superblock) {
            return Err(bad("disk_groups"));
        }
        Ok(superblock)
    }

    /// Returns the identity of this label's member or spare.
    #[must_use]
    pub fn device_id(&self) -> [u8; 16] {
        let at = usize::from(self.device_index);
        let member = self.members.get(at).map(|member| member.id);
        let spare = || Some(self.spares.get(at.checked_sub(self.members.len())?)?.id);
        member.or_else(spare).unwrap_or_default()
    }

    /// Whether this is the label of a spare, valid only for its identity.
    #[must_use]
    pub fn is_of_spare(&self) -> bool {
        usize::from(self.device_index) >= self.members.len()
    }

    /// Returns the newest epoch of membership.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.memberships.last().copied().unwrap_or_default()
    }

    /// Begins an epoch of membership for the changed table.
    pub fn add_membership(&mut self) {
        let table = (&self.members[..], &self.added[..]);
        let next = self.membership().next(self.pool_id, table, self.sequence.saturating_add(1));
        if self.memberships.len() >= MEMBERSHIPS_MAX {
            self.memberships.remove(0);
        }
        self.memberships.push(next);
    }

    /// Adds a void interval. In a full list the two oldest are merged, and all between them becomes
    /// void.
    ///
    /// Nothing acknowledged is lost by that: intervals matter only to summaries behind a fill mark,
    /// which list no committed block once the pool was opened again. `docs/FORMAT.md#void-interval`
    /// has the argument.
    pub fn add_void(&mut self, void: VoidInterval) {
        if self.voids.len() >= VOID_INTERVALS_MAX {
            let oldest = self.voids.remove(0);
            if let Some(next) = self.voids.first_mut() {
                next.lsn_first = next.lsn_first.min(oldest.lsn_first);
                next.lsn_end = next.lsn_end.max(oldest.lsn_end);
                next.epoch_first = next.epoch_first.min(oldest.epoch_first);
                next.epoch_end = next.epoch_end.max(oldest.epoch_end);
            }
        }
        self.voids.push(void);
    }

    /// Returns the bytes of copy `copy_index`.
    ///
    /// # Panics
    ///
    /// If a list is longer than its bound.
    #[must_use]
    pub fn encode(&self, copy_index: u16) -> [u8; SUPERBLOCK_BYTES] {
        let mut disk = SuperblockDisk::new_zeroed();
        let geometry = &self.geometry;
        disk.magic = MAGIC;
        disk.version_major = U16::new(VERSION_MAJOR);
        disk.version_minor = U16::new(VERSION_MINOR);
        disk.pool_id = self.pool_id.0;
        disk.sequence = U64::new(self.sequence);
        disk.copy_index = U16::new(copy_index);
        disk.device_index = U16::new(self.device_index);
        assert!(self.members.len() + self.spares.len() <= MEMBERS_MAX);
        assert!(self.memberships.len() <= MEMBERSHIPS_MAX);
        disk.device_count = U16::new(u16::try_from(self.members.len()).expect("bounded"));
        disk.membership_count = U16::new(u16::try_from(self.memberships.len()).expect("bounded"));
        disk.spare_count = u8::try_from(self.spares.len()).expect("bounded");
        let missed = missed_to_disk(&self.members);
        disk.missed_count = u8::try_from(missed.len()).expect("few members are away at one time");
        for (to, missed) in disk.missed.iter_mut().zip(missed) {
            *to = missed;
        }
        disk.state = u8::from(self.is_open);
        disk.consistency = match self.consistency {
            Consistency::Journal => 0,
            Consistency::WorkingSet => 1,
            Consistency::Scan => 2,
        };
        disk.features_compatible = U64::new(self.features_compatible);
        disk.features_read_only = U64::new(self.features_read_only);
        disk.features_incompatible = U64::new(self.features_incompatible);
        disk.device_id = self.device_id();
        disk.membership_epoch = U64::new(self.membership().number);
        disk.label = self.label;
        disk.created = U64::new(self.created_seconds);
        disk.mount_count = U64::new(self.mount_count);
        disk.writer_term = U32::new(self.writer_term);
        disk.sector_bytes = U32::new(self.sector_bytes);
        disk.device_bytes = U64::new(geometry.member_bytes());
        disk.fragment_shift = geometry.fragment_shift;
        disk.block_shift = self.block_shift;
        disk.segment_fragments = U32::new(geometry.segment_fragments);
        disk.group_fragments = U32::new(geometry.group_fragments);
        disk.group_count = U32::new(geometry.group_count);
        disk.journal_offset = U64::new(geometry.journal_offset);
        disk.journal_bytes = U64::new(geometry.journal_bytes);
        disk.double_write_offset = U64::new(geometry.double_write_offset);
        disk.double_write_pages = U64::new(geometry.double_write_pages);
        disk.group_table_offset = U64::new(geometry.group_table_offset);
        disk.groups_offset = U64::new(geometry.groups_offset);
        (disk.reshaping, disk.reshape) = reshape_to_disk(geometry);
        disk.lsn_base = U64::new(self.lsn_base.0);
        disk.epoch_base = U64::new(self.epoch_base.0);
        disk.busy_generation = U64::new(self.busy_generation);
        disk.scrubbing = u8::from(self.is_scrubbing);
        disk.secret = self.secret;
        let main = usize::from(geometry.main);
        disk.layouts[main] = self.layout.to_disk(&self.slots);
        let spares = self.spares.iter().map(Spare::to_disk);
        let entries = self.members.iter().map(Member::to_disk).chain(spares);
        for (to, entry) in disk.members.iter_mut().zip(entries) {
            *to = entry;
        }
        for (to, membership) in disk.memberships.iter_mut().zip(&self.memberships) {
            *to = membership.to_disk();
        }
        disk.disk_groups[main] = DiskGroupDisk {
            roles: roles_of_main(geometry),
            layout: geometry.main,
            state: DiskGroupState::Online.number(),
            main: 0,
            first_group: U32::new(geometry.main_first),
            member_bytes: disk.device_bytes,
        };
        assert!(self.added.len() < DISK_GROUPS_MAX);
        for group in &self.added {
            let at = usize::from(group.number);
            disk.layouts[at] = group.layout.to_disk_with(&group.slots, &group.lanes);
            disk.disk_groups[at] = DiskGroupDisk {
                roles: roles_of(group),
                layout: group.number,
                state: group.state.number(),
                main: 0,
                first_group: U32::new(group.first_group),
                member_bytes: U64::new(group.member_bytes),
            };
        }
        disk.disk_groups[0].main = geometry.main;
        assert!(self.voids.len() <= VOID_INTERVALS_MAX);
        assert!(self.busy_groups.len() <= BUSY_GROUPS_MAX);
        disk.void_count = U16::new(u16::try_from(self.voids.len()).expect("bounded"));
        disk.busy_count = U16::new(u16::try_from(self.busy_groups.len()).expect("bounded"));
        for (to, void) in disk.voids.iter_mut().zip(&self.voids) {
            *to = void_to_disk(void);
        }
        for (to, group) in disk.busy_groups.iter_mut().zip(&self.busy_groups) {
            *to = U32::new(*group);
        }
        let mut bytes: [u8; SUPERBLOCK_BYTES] = zerocopy::transmute!(disk);
        let crc = crc32c(&bytes[CRC_COVERS_FROM..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        // Pair assertion: never write what could not be read back.
        assert_eq!(Superblock::decode(&bytes, copy_index).as_ref(), Ok(self));
        bytes
    }
}

fn void_of(disk: &VoidIntervalDisk) -> VoidInterval {
    VoidInterval {
        lsn_first: Lsn(disk.lsn_first.get()),
        lsn_end: Lsn(disk.lsn_end.get()),
        epoch_first: Epoch(disk.epoch_first.get()),
        epoch_end: Epoch(disk.epoch_end.get()),
    }
}

fn void_to_disk(void: &VoidInterval) -> VoidIntervalDisk {
    VoidIntervalDisk {
        lsn_first: U64::new(void.lsn_first.0),
        lsn_end: U64::new(void.lsn_end.0),
        epoch_first: U64::new(void.epoch_first.0),
        epoch_end: U64::new(void.epoch_end.0),
    }
}

mod groups;
mod label;
mod missed;
mod reshape;
#[cfg(test)]
mod tests;
