//! The volume: maps every place of the pool to bytes on its devices, and performs all I/O of a
//! pool. The layers above hold no device.
//!
//! On one device a place is an offset. Over several, a [`Composite`] is itself a device, the
//! *linear space* of the pool, and [`Geometry::device_offset`] is an offset in it.
//!
//! # How another layout is added
//!
//! 1. It gets a variant of [`format::members::Layout`], and `members::judge` decides which members
//!    it can lose.
//! 2. `volume/NAME.rs` implements [`Composite`] over a [`MemberSet`]. The set sends requests
//!    ([`MemberSet::submit`], [`MemberSet::together`]), flushes, writes labels, and fails members.
//!    The layout adds the mapping from the linear space to slots and offsets, repair
//!    ([`Composite::heal`]), rebuild ([`Composite::begin_rebuild`]) and comparison of copies
//!    ([`Composite::compare`]). `needed` of [`MemberSet::new`] is the number of members that it
//!    cannot lose.
//! 3. `volume/open.rs` puts it over the members. Its `info().size_bytes` is the device size of the
//!    geometry.
//!
//! Fixed regions, below [`Geometry::groups_offset`], lie at equal offsets of several members
//! ([`Composite::copies`]). Superblocks are private to a member (`set.rs`). Heartbeat, journal,
//! double-write area and group table are mirrored. In allocation groups the purpose of a request
//! selects the redundancy ([`IoPurpose::redundancy`]).

mod attaching;
mod below;
mod composite;
mod discard;
mod durable;
mod groups;
mod growth;
mod joining;
mod journal_apart;
mod lanes;
mod lone;
mod longer;
mod main_group;
mod membership;
mod mirror;
mod narrowing;
mod open;
mod parity_reads;
mod ranges;
mod reshaping;
mod returning;
mod salvage;
mod scrubbed;
mod set;
mod shared_ticket;
mod slot;
mod spares;
mod striped;

pub use attaching::{AttachError, DetachError, Detached};
pub use composite::{
    Choose, Composite, ParityCheckOutcome, RebuildRequest, RebuiltPiece, RedundancyComparison,
    RepairOutcome, Verify,
};
pub use growth::{AddGroupError, DiskGroupSpec, LayoutChangeGuard};
pub use joining::{MemberCopyProgress, ReplaceError};
pub use journal_apart::ActiveJournalRanges;
pub use lanes::{LaneError, LaneRemoval};
pub use longer::{GrowError, PossibleGrowth, PreparedGrowth, why_no_more};
pub use main_group::MainGroupError;
pub use membership::Membership;
pub use narrowing::{NarrowError, PlannedNarrowing};
pub use open::VolumeDevices;
pub use parity_reads::{ParityReader, ParityReads};
pub use ranges::{InFlightWrite, RangeHold};
pub use reshaping::{
    KindOf, ReshapeProgress, SegmentBusyError, SegmentMoveMode, SegmentMoveOutcome,
};
pub use returning::ReturnError;
pub use set::{LabelChange, MemberFailure, MemberSet, MemberView, RepairCounting};
pub use slot::{MemberCounts, MemberSlot, MemberTenure};
pub use spares::{ActiveSpare, SpareError};
pub use striped::KnownRows;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use self::below::OverlayBase;
use self::groups::PoolPart;
use self::lone::SingleDevice;
use format::geometry::Geometry;
use format::ids::Place;
use format::page::PAGE_BYTES;
use format::superblock::Superblock;
use runtime::planted;

use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, DeviceError, DeviceOperation, IoPurpose, Redundancy, RequestKind, SharedBytes,
    SharedDevice, Ticket,
};
use runtime::sync::Mutex;

use crate::members::paths_of;
use crate::pool::{PoolError, check_writable, update_all_superblocks, write_first_superblocks};

/// The layout of the pool between two changes of its disk groups.
#[derive(Debug)]
struct Edition {
    device: SharedDevice,
    /// `device` as a layout over several members. `None` on one device.
    composite: Option<Arc<dyn Composite>>,
    /// The layout under an overlay, for reads of its copies.
    below: Option<OverlayBase>,
    /// The disk groups under `composite`. Empty on one device.
    parts: Vec<PoolPart>,
    geometry: Geometry,
}

/// All editions since the open, kept as long as the volume so that readers need no lock. Each
/// change of the disk groups by an administrator leaves one to four.
#[derive(Debug, Default)]
struct Editions {
    /// Apart, since most pools never get another: reading it costs less than the table.
    first: OnceLock<Edition>,
    later: boxcar::Vec<Edition>,
    /// 0 for the first, else one more than the number in `later`.
    current: AtomicUsize,
    changing: Mutex<()>,
    lone: OnceLock<Arc<SingleDevice>>,
}

/// The space of a pool.
#[derive(Clone, Debug)]
pub struct Volume {
    editions: Arc<Editions>,
}

impl Volume {
    /// Returns the space that `geometry` lays out on `device`.
    #[must_use]
    pub fn new(device: SharedDevice, geometry: Geometry) -> Volume {
        let composite = composite::of_device(&device);
        let volume = Volume { editions: Arc::default() };
        let (below, parts) = (None, Vec::new());
        volume.set_edition(Edition { device, composite, below, parts, geometry });
        volume
    }

    /// Returns the space on a single device, to which others may be attached later.
    fn alone(device: SharedDevice, geometry: Geometry) -> Volume {
        let lone = SingleDevice::new(device);
        let device: SharedDevice = Arc::<SingleDevice>::clone(&lone);
        let volume = Volume::new(device, geometry);
        let _ = volume.editions.lone.set(lone);
        volume
    }

    /// Makes `edition` the current one.
    fn set_edition(&self, edition: Edition) {
        if let Err(edition) = self.editions.first.set(edition) {
            let number = self.editions.later.push(edition);
            self.editions.current.store(number + 1, Ordering::Release);
        }
    }

    /// Returns the current edition. An older one stays valid for its groups.
    fn now(&self) -> &Edition {
        let edition = match self.editions.current.load(Ordering::Acquire) {
            0 => self.editions.first.get(),
            later => self.editions.later.get(later - 1),
        };
        edition.expect("an edition is set before it counts")
    }

    fn composite(&self) -> Option<&Arc<dyn Composite>> {
        self.now().composite.as_ref()
    }

    fn below(&self) -> Option<&OverlayBase> {
        self.now().below.as_ref()
    }

    /// Returns the geometry of the pool.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.now().geometry
    }

    /// Opens a pool from one device, which may be the last member of several. Returns its space and
    /// its superblock.
    ///
    /// # Errors
    ///
    /// See [`Volume::open_members`].
    pub fn open(device: SharedDevice) -> Result<(Volume, Superblock), PoolError> {
        Volume::open_members(VolumeDevices::of_one(device))
    }

    /// Returns the linear space as one device.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.now().device
    }

    /// Returns the members of the first disk group. `None` on one device.
    #[must_use]
    pub fn members(&self) -> Option<&Arc<MemberSet>> {
        self.composite().map(|composite| composite.members())
    }

    /// Returns each full copy of the fixed region at byte `offset`, as a volume for fixed reads
    /// only. Empty on one device. Under an overlay these are the copies on the members.
    #[must_use]
    pub fn fixed_copies(&self, offset: u64) -> Vec<Volume> {
        let below = self.below().map(|below| &below.composite);
        let Some(composite) = self.composite().or(below) else { return Vec::new() };
        let of_one = |device| {
            let volume = Volume { editions: Arc::default() };
            let geometry = self.geometry().clone();
            let (composite, below, parts) = (None, None, Vec::new());
            volume.set_edition(Edition { device, composite, below, parts, geometry });
            volume
        };
        composite.copies(offset).into_iter().map(of_one).collect()
    }

    /// Reads all copies of a range that failed `verify`, or reconstructs it, and returns good
    /// bytes. Rewrites bad copies. Reads nothing on one device.
    ///
    /// # Errors
    ///
    /// See [`Composite::heal`].
    pub fn heal(
        &self,
        purpose: IoPurpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<RepairOutcome, DeviceError> {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = || self.offset_of(RequestKind::Read, place, wide);
        if let Some(below) = self.below() {
            return Ok(below.look(purpose, offset()?, length_bytes, verify));
        }
        let Some(composite) = self.composite() else { return Ok(RepairOutcome::default()) };
        composite.heal(purpose, offset()?, length_bytes, verify, None)
    }

    /// [`Volume::heal`] without rewriting or logging.
    #[must_use]
    pub fn look(
        &self,
        purpose: IoPurpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> RepairOutcome {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes));
        let Ok(offset) = offset else { return RepairOutcome::default() };
        match (self.below(), self.composite()) {
            (Some(below), _) => below.look(purpose, offset, length_bytes, verify),
            (None, Some(composite)) => composite.look(purpose, offset, length_bytes, verify),
            (None, None) => RepairOutcome::default(),
        }
    }

    /// Reads whole stripe rows that have no write in flight. `known` replaces some pages, by byte
    /// offset in the range: see [`Composite::read_known`]. `None` outside stripe rows.
    #[must_use]
    pub fn read_known(
        &self,
        place: Place,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<KnownRows> {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes)).ok()?;
        match self.below() {
            Some(below) => below.read_known(offset, length_bytes, known),
            None => self.composite()?.read_known(offset, length_bytes, known),
        }
    }

    /// Returns the number of failed reads of members since the open. Those served by another copy
    /// are included, and call for [`Volume::heal`].
    #[must_use]
    pub fn read_errors(&self) -> u64 {
        let Some(members) = self.members() else { return 0 };
        members.all().iter().map(|slot| slot.counts().read_errors).sum()
    }

    /// Ends repairs of a pool that is read-only or stopped. Further damage is logged once.
    pub fn mend_no_more(&self) {
        if let Some(members) = self.members() {
            members.mend_no_more();
        }
    }

    /// Counts repairs without logging each, until the guard is dropped.
    #[must_use]
    pub fn count_mends(&self) -> Option<RepairCounting> {
        self.members().map(|members| members.count_mends())
    }

    /// Whether [`Volume::heal`] rewrites bad copies.
    #[must_use]
    pub fn mends(&self) -> bool {
        self.members().is_some_and(|members| members.mends())
    }

    /// Does as [`Volume::heal`], and also reads the returning member in `slot`. `verify` must
    /// detect stale contents (RN5), so it uses the checksum in a block pointer or summary, not that
    /// in the page itself.
    ///
    /// # Errors
    ///
    /// See [`Composite::heal`].
    pub fn heal_with(
        &self,
        slot: usize,
        purpose: IoPurpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<RepairOutcome, DeviceError> {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes))?;
        let Some(composite) = self.composite() else { return Ok(RepairOutcome::default()) };
        composite.heal(purpose, offset, length_bytes, verify, Some(slot))
    }

    /// Whether the stripe rows of a range agree with their parity: see [`Composite::agrees`].
    #[must_use]
    pub fn agrees(&self, purpose: IoPurpose, place: Place, length_bytes: usize) -> bool {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = self.offset_of(RequestKind::Read, place, wide);
        let agree = |composite: &Arc<dyn Composite>| {
            offset.is_ok_and(|offset| composite.agrees(purpose, offset, length_bytes))
        };
        self.composite().is_none_or(agree)
    }

    /// Whether contents of groups may have several copies to read ([`Volume::read_copy`]).
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.below().is_some() || self.composite().is_some()
    }

    /// Reads from readable copy number `copy`. `None` past the last copy, and on one device.
    #[must_use]
    pub fn read_copy(
        &self,
        copy: usize,
        purpose: IoPurpose,
        place: Place,
        length_bytes: usize,
    ) -> Option<Result<AlignedBuffer, DeviceError>> {
        let (below, composite) = (self.below(), self.composite());
        if below.is_none() && composite.is_none() {
            return None;
        }
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = match self.offset_of(RequestKind::Read, place, wide) {
            Ok(offset) => offset,
            Err(error) => return Some(Err(error)),
        };
        match below {
            Some(below) => below.read_copy(copy, purpose, offset, length_bytes),
            None => composite?.read_copy(copy, purpose, offset, length_bytes),
        }
    }

    /// Returns where a walk over the whole pool ends, in bytes of the pool.
    #[must_use]
    pub fn used_end(&self) -> u64 {
        joining::copied_end(self.geometry())
    }

    /// Compares the copies of `piece`, stored with redundancy `kept`, including the returning
    /// member in slot `returning`: see [`Composite::compare`]. `None` on one device. Also `None`
    /// while a write to the stripes is in flight: retry later.
    ///
    /// # Errors
    ///
    /// See [`Composite::compare`].
    pub fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<Option<RedundancyComparison>, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(None) };
        if !self.geometry().has_stripes() || piece.end <= self.geometry().groups_offset {
            return composite.compare(piece, kept, returning).map(Some);
        }
        // A stripe with a write in flight would differ from its parity.
        let Some(hold) = composite.try_hold(piece.clone()) else { return Ok(None) };
        let compared = composite.compare(piece, kept, returning);
        drop(hold);
        compared.map(Some)
    }

    /// Rewrites wrong parity of `rows`, in bytes of the pool, if `verify` accepts their data: see
    /// [`Composite::mend_parity`].
    ///
    /// # Errors
    ///
    /// See [`Composite::mend_parity`].
    pub fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityCheckOutcome, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(ParityCheckOutcome::Agrees) };
        composite.mend_parity(rows, verify, returning)
    }

    /// Marks a range stale on absent members, durably, though no write is in flight.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub fn note_missed(&self, place: Place, length_bytes: usize) -> Result<(), DeviceError> {
        let Some(composite) = self.composite() else { return Ok(()) };
        let offset = self.offset_of(RequestKind::Write, place, to_u64(length_bytes))?;
        let members = composite.members_at(offset);
        let in_flight = members.begin_write(offset..offset + to_u64(length_bytes));
        members.note_missed(&in_flight.parts())
    }

    /// Copies part of a fixed region from `source`, one of [`Volume::fixed_copies`], to the other
    /// members. Not durable before a flush.
    ///
    /// # Errors
    ///
    /// A device error.
    pub fn copy_fixed(
        &self,
        source: &Volume,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<(), DeviceError> {
        self.check_fixed(RequestKind::Write, offset, to_u64(length_bytes))?;
        let Some(composite) = self.composite() else { return Ok(()) };
        let members = composite.members_at(offset);
        let view = members.view();
        let is_other = |slot: &&MemberSlot| {
            slot.writable().is_some_and(|device| !Arc::ptr_eq(device, source.device()))
        };
        if !view.iter().any(|slot| is_other(&slot)) {
            return Ok(());
        }
        let bytes = SharedBytes::from(source.device().read(purpose, offset, length_bytes)?);
        let submit = |slot: &MemberSlot| {
            let data = vec![bytes.clone()];
            members.submit(slot, purpose, DeviceOperation::Write { offset, data })
        };
        let tickets = (0..).zip(view.iter()).filter(|(_, slot)| is_other(slot));
        let tickets: Vec<_> = tickets.map(|(at, slot)| (at, submit(slot))).collect();
        members.together(&view, tickets, None).wait().map(drop)
    }

    /// Returns the paths of absent members that [`Volume::begin_writing`] would mark missing.
    #[must_use]
    pub fn newly_absent(&self) -> Option<String> {
        let members = self.members()?;
        let (slots, label) = (members.all(), members.label()?);
        let table = label.members.iter().zip(&slots);
        let mut absent = table.filter(|(_, slot)| set::is_newly_absent(slot)).peekable();
        absent.peek()?;
        Some(paths_of(absent.map(|(member, _)| member)))
    }

    /// Marks absent members missing, durably: see [`MemberSet::leave_absent_behind`]. Also
    /// completes a label update that a crash cut short, so that later writes belong to the epoch in
    /// the labels. Must precede the first write. Sets `superblock` to the written label.
    ///
    /// # Errors
    ///
    /// A needed member failed.
    pub fn begin_writing(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let before = superblock.sequence;
        if let Some(members) = self.members() {
            members.leave_absent_behind()?;
            if let Some(label) = members.label() {
                superblock.sequence = label.sequence;
                set::take_table(superblock, &label);
            }
        }
        // With one epoch there was no change to interrupt.
        let has_changed = superblock.memberships.len() > 1;
        if superblock.sequence == before && has_changed && !planted!(BegunNotEnded) {
            self.update_superblocks(superblock)?;
        }
        Ok(())
    }

    /// Returns the name of the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device().info().name
    }

    /// Returns the name of the transport.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.device().info().transport
    }

    /// Returns the unit of atomicity and of addressing.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.device().info().sector_bytes
    }

    /// Whether the device refuses all writes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.device().info().is_read_only
    }

    /// Whether all devices take [`DeviceOperation::WriteThrough`].
    #[must_use]
    pub fn has_write_through(&self) -> bool {
        // A device that joined after the open may not support it.
        let all_have = |members: &Arc<MemberSet>| {
            let has = |slot: &MemberSlot| {
                let device = slot.device.as_ref().filter(|_| !slot.is_away());
                device.is_none_or(|device| device.info().has_write_through)
            };
            members.view().iter().all(has)
        };
        let journal_offset = self.geometry().journal_offset;
        let has_all = |composite: &Arc<dyn Composite>| {
            all_have(composite.members()) && all_have(composite.members_at(journal_offset))
        };
        self.device().info().has_write_through && self.composite().is_none_or(has_all)
    }

    /// Refuses a read-only device before the first write.
    ///
    /// # Errors
    ///
    /// [`DeviceError::ReadOnly`].
    pub fn check_writable(&self) -> Result<(), PoolError> {
        check_writable(self.device().as_ref())
    }

    /// Checks for a truncated device, without a request to it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Shortened`].
    pub fn check_end(&self) -> Result<(), DeviceError> {
        self.device().check_end()
    }

    /// See [`crate::device::Device::lock_identity`].
    pub(crate) fn lock_identity(&self) -> Option<[u64; 2]> {
        self.device().lock_identity()
    }

    /// Writes every superblock copy of a new pool, durably. The last write creates it.
    ///
    /// # Errors
    ///
    /// A device error: there is no pool.
    pub fn write_first_superblocks(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        match self.members() {
            Some(members) => members.write_first_labels(superblock),
            None => write_first_superblocks(self.device(), superblock),
        }
    }

    /// Writes every superblock copy, durably, with the next sequence number.
    ///
    /// # Errors
    ///
    /// A device error: the pool must stop writing.
    pub fn update_superblocks(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        match self.members() {
            Some(members) => members.update_labels(superblock),
            None => update_all_superblocks(self.device(), superblock),
        }
    }

    /// Refuses a range outside the fixed regions.
    fn check_fixed(
        &self,
        kind: RequestKind,
        offset: u64,
        length_bytes: u64,
    ) -> Result<(), DeviceError> {
        let is_in = offset
            .checked_add(length_bytes)
            .is_some_and(|end| end <= self.geometry().groups_offset);
        let device = || self.name().to_owned();
        is_in.then_some(()).ok_or_else(|| DeviceError::OutOfRange {
            device: device(),
            kind,
            offset,
            length_bytes,
        })
    }

    /// Reads from byte `offset` of the fixed regions.
    ///
    /// # Errors
    ///
    /// A device error.
    pub fn read_fixed(
        &self,
        purpose: IoPurpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        self.check_fixed(RequestKind::Read, offset, to_u64(length_bytes))?;
        self.device().read(purpose, offset, length_bytes)
    }

    /// Writes `data` at byte `offset` of the fixed regions. Not durable before a flush.
    ///
    /// # Errors
    ///
    /// A device error.
    pub fn write_fixed(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: AlignedBuffer,
    ) -> Result<(), DeviceError> {
        self.check_fixed(RequestKind::Write, offset, to_u64(data.len()))?;
        self.device().write(purpose, offset, data)
    }

    /// Starts a write of the concatenated `data` at byte `offset` of the fixed regions.
    pub fn submit_fixed_write(
        &self,
        purpose: IoPurpose,
        offset: u64,
        data: Vec<SharedBytes>,
    ) -> Ticket {
        let write = DeviceOperation::Write { offset, data };
        match self.check_fixed(RequestKind::Write, offset, write.length_bytes()) {
            Ok(()) => self.device().submit(purpose, write),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    /// Starts a read at any byte of the device, for a check that does not rely on places.
    pub fn submit_read_at(&self, purpose: IoPurpose, offset: u64, buffer: AlignedBuffer) -> Ticket {
        self.device().submit(purpose, DeviceOperation::Read { offset, buffer })
    }

    /// Returns the size of the device. The pool may be shorter.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device().info().size_bytes
    }

    /// Submits requests for fixed regions at once, and returns their tickets in order. If one is
    /// out of range, starts none, and returns one failed ticket.
    pub fn submit_fixed(
        &self,
        purpose: IoPurpose,
        operations: Vec<DeviceOperation>,
    ) -> Vec<Ticket> {
        let refused = operations.iter().find_map(|operation| {
            let offset = operation.offset().unwrap_or(0);
            self.check_fixed(operation.kind(), offset, operation.length_bytes()).err()
        });
        match refused {
            Some(error) => vec![Ticket::ready(Err(error))],
            None => self.device().submit_all(purpose, operations),
        }
    }

    fn offset_of(
        &self,
        kind: RequestKind,
        place: Place,
        length_bytes: u64,
    ) -> Result<u64, DeviceError> {
        let fragment_bytes = self.geometry().fragment_bytes();
        let fragments = u32::try_from(length_bytes.div_ceil(fragment_bytes)).unwrap_or(u32::MAX);
        self.geometry().device_offset(place, fragments).ok_or_else(|| DeviceError::OutOfRange {
            device: self.device().info().name.clone(),
            kind,
            offset: place.bits(),
            length_bytes,
        })
    }

    /// Returns the whole pages around `fragments` at `place`: place, bytes, and offset of the
    /// fragments in them. Devices transfer whole pages.
    #[must_use]
    pub fn pages_around(&self, place: Place, fragments: u32) -> (Place, usize, usize) {
        let page = self.geometry().page_fragments();
        let lead = place.fragment() % page;
        let start = Place::new(place.disk_group(), place.group(), place.fragment() - lead);
        let bytes = |fragments: u32| {
            usize::try_from(u64::from(fragments) << self.geometry().fragment_shift)
                .expect("a request fits in memory")
        };
        (start, bytes((lead + fragments).next_multiple_of(page)), bytes(lead))
    }

    /// Starts one read for each place and length of `wanted`, all at once. Returns tickets in
    /// order.
    pub fn submit_reads(
        &self,
        purpose: IoPurpose,
        wanted: impl Iterator<Item = (Place, usize)>,
    ) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut reads = Vec::new();
        for (place, length_bytes) in wanted {
            let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
            match self.offset_of(RequestKind::Read, place, wide) {
                Ok(offset) => {
                    let buffer = AlignedBuffer::for_reading(length_bytes);
                    reads.push(DeviceOperation::Read { offset, buffer });
                    tickets.push(None);
                }
                Err(error) => tickets.push(Some(Ticket::ready(Err(error)))),
            }
        }
        let mut begun = self.device().submit_all(purpose, reads).into_iter();
        tickets.into_iter().filter_map(|refused| refused.or_else(|| begun.next())).collect()
    }

    /// Starts a write of the concatenated `data` at `place`.
    pub fn submit_write(&self, purpose: IoPurpose, place: Place, data: Vec<SharedBytes>) -> Ticket {
        let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        match self.offset_of(RequestKind::Write, place, wide) {
            Ok(offset) => self.device().submit(purpose, DeviceOperation::Write { offset, data }),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    /// Reads `length_bytes` at `place`.
    ///
    /// # Errors
    ///
    /// A device error.
    pub fn read(
        &self,
        purpose: IoPurpose,
        place: Place,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = self.offset_of(RequestKind::Read, place, wide)?;
        self.device().read(purpose, offset, length_bytes)
    }

    /// Reads the page at `place`, unverified.
    ///
    /// # Errors
    ///
    /// A device error.
    pub fn read_page(
        &self,
        purpose: IoPurpose,
        place: Place,
    ) -> Result<AlignedBuffer, DeviceError> {
        self.read(purpose, place, PAGE_BYTES)
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    ///
    /// A device error. Never retry: the device may have dropped writes.
    pub fn flush(&self, purpose: IoPurpose) -> Result<(), DeviceError> {
        self.device().flush(purpose)
    }

    /// Starts a flush of every completed write.
    pub fn submit_flush(&self, purpose: IoPurpose) -> Ticket {
        self.device().submit(purpose, DeviceOperation::Flush)
    }
}
