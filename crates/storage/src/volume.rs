//! The volume: every place of the pool as bytes on its devices.
//!
//! It owns all I/O of a pool, the fixed regions' too: nobody above it has a device, only the one
//! who hands it over.
//!
//! On one device a place is an offset, and nothing is between the volume and the device. Over
//! several lies a [`Composite`], which is a device too, the *linear space* of the pool: byte n of
//! it is what [`Geometry::device_offset`] names.
//!
//! # How another layout is added
//!
//! 1. It gets a variant of [`format::members::Layout`], and `members::judge` says which members it
//!    can do without.
//! 2. `volume/NAME.rs` implements [`Composite`] over a [`MemberSet`], which knows the members,
//!    sends to one ([`MemberSet::submit`]) or waits for several ([`MemberSet::together`]), flushes
//!    all, writes labels, and fails members. The layout adds the arithmetic from a byte of the
//!    linear space to slots and offsets, what it does where a read fails or does not verify
//!    ([`Composite::heal`]), and how what a member should have is made anew
//!    ([`Composite::begin_remake`]) and verified ([`Composite::compare`]). `needed` of
//!    [`MemberSet::new`] is how many it cannot do without.
//! 3. `volume/open.rs` puts it over the members. `info().size_bytes` of it is what the geometry
//!    calls the bytes of the device.
//!
//! Fixed regions, below [`Geometry::groups_offset`], lie at the same offset of several members
//! ([`Composite::copies`]): superblocks each member has for itself (`set.rs`), and heartbeat,
//! journal, double-write area and group table go to all. Of what is in groups the purpose of a
//! request says how it is kept ([`Purpose::redundancy`]).

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
pub use composite::{Choose, Compared, Composite, Healed, ParityMended, Remade, ToRemake, Verify};
pub use growth::{AddGroupError, Changing, NewGroup};
pub use joining::{Copied, ReplaceError};
pub use journal_apart::Active;
pub use lanes::{LaneError, LeavingLane};
pub use longer::{GrowError, Growing, Room, why_no_more};
pub use main_group::MainError;
pub use narrowing::{NarrowError, Narrowing};
pub use open::Opening;
pub use parity_reads::{ParityReader, ParityReads};
pub use ranges::{Hold, InFlight};
pub use reshaping::{Busy, KindOf, Moved, Reshaping, Way};
pub use returning::ReturnError;
pub use set::{Change, MemberFailure, MemberSet, MendsCounted, View};
pub use slot::{MemberCounts, Slot, Stay};
pub use spares::{SpareError, TakenSpare};
pub use striped::RowsKnown;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use self::below::Below;
use self::groups::Part;
use self::lone::Lone;
use format::geometry::Geometry;
use format::ids::Place;
use format::page::PAGE_BYTES;
use format::superblock::Superblock;
use runtime::planted::{self, Planted};

use crate::convert::to_u64;
use crate::device::{
    AlignedBuffer, DeviceError, Operation, Purpose, Redundancy, RequestKind, SharedBytes,
    SharedDevice, Ticket,
};
use runtime::sync::Mutex;

use crate::members::paths_of;
use crate::pool::{PoolError, check_writable, update_all_superblocks, write_first_superblocks};

/// Most times that the disk groups of an open pool change: each time leaves an edition in memory.
const EDITIONS_MAX: usize = 64;

/// What the space of a pool is between two changes of its disk groups.
#[derive(Debug)]
struct Edition {
    device: SharedDevice,
    /// The same as `device`, over several; `None`: there is one.
    composite: Option<Arc<dyn Composite>>,
    /// Of a space whose changes stay in memory: what else there is to read.
    below: Option<Below>,
    /// The disk groups that `composite` is made of; none where there is one.
    parts: Vec<Part>,
    geometry: Geometry,
}

/// All that the space was since the pool was opened. None goes before the last user of the volume
/// does, so whoever looks needs no lock.
#[derive(Debug)]
struct Editions {
    all: [OnceLock<Edition>; EDITIONS_MAX],
    /// Which of them counts.
    current: AtomicUsize,
    /// Held by whoever makes another.
    changing: Mutex<()>,
    /// The device of a pool that was opened on one alone.
    lone: OnceLock<Arc<Lone>>,
}

impl Default for Editions {
    fn default() -> Editions {
        let all = std::array::from_fn(|_| OnceLock::new());
        let (changing, lone) = (Mutex::default(), OnceLock::new());
        Editions { all, current: AtomicUsize::new(0), changing, lone }
    }
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
        let composite = Arc::clone(&device).composite();
        let volume = Volume { editions: Arc::default() };
        let (below, parts) = (None, Vec::new());
        volume.set_edition(0, Edition { device, composite, below, parts, geometry });
        volume
    }

    /// Returns the space that `geometry` lays out on `device`, to which others may come while it is
    /// in use.
    fn alone(device: SharedDevice, geometry: Geometry) -> Volume {
        let lone = Lone::new(device);
        let device: SharedDevice = Arc::<Lone>::clone(&lone);
        let volume = Volume::new(device, geometry);
        let _ = volume.editions.lone.set(lone);
        volume
    }

    /// Makes `edition` the one that counts. Of two with one number the first stays.
    fn set_edition(&self, number: usize, edition: Edition) {
        if let Some(empty) = self.editions.all.get(number) {
            let _ = empty.set(edition);
            self.editions.current.store(number, Ordering::Release);
        }
    }

    /// Returns what counts now. A change replaces it, and what was read of it before stays true of
    /// the groups that were there.
    fn now(&self) -> &Edition {
        let current = self.editions.current.load(Ordering::Acquire);
        let edition = self.editions.all.get(current).and_then(OnceLock::get);
        edition.expect("an edition is set before it counts")
    }

    fn composite(&self) -> Option<&Arc<dyn Composite>> {
        self.now().composite.as_ref()
    }

    fn below(&self) -> Option<&Below> {
        self.now().below.as_ref()
    }

    /// Returns where everything lies.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.now().geometry
    }

    /// Reads the superblocks on `device`; returns the space of its pool, and what the current one
    /// says. It may be all that is left of several.
    ///
    /// # Errors
    ///
    /// See [`Volume::open_members`].
    pub fn open(device: SharedDevice) -> Result<(Volume, Superblock), PoolError> {
        Volume::open_members(Opening::of_one(device))
    }

    /// Returns the pool as a device, for who reads it as one; of several the composite.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.now().device
    }

    /// Returns the members, where there are several: of several disk groups those of the first.
    #[must_use]
    pub fn members(&self) -> Option<&Arc<MemberSet>> {
        self.composite().map(|composite| composite.members())
    }

    /// Returns each whole copy of the fixed region that has byte `offset` as a volume of its own,
    /// of which nothing else is to be asked for; none where there is one device. For who has to
    /// know which copy says what. Of a space whose changes stay in memory: what the members have.
    #[must_use]
    pub fn fixed_copies(&self, offset: u64) -> Vec<Volume> {
        let below = self.below().map(|below| &below.composite);
        let Some(composite) = self.composite().or(below) else { return Vec::new() };
        let of_one = |device| {
            let volume = Volume { editions: Arc::default() };
            let geometry = self.geometry().clone();
            let (composite, below, parts) = (None, None, Vec::new());
            volume.set_edition(0, Edition { device, composite, below, parts, geometry });
            volume
        };
        composite.copies(offset).into_iter().map(of_one).collect()
    }

    /// Looks for bytes that verify, where what was read from `place` does not: in each copy, or in
    /// what can be computed. Copies that do not verify are written again. Where there is one device
    /// nothing is read.
    ///
    /// # Errors
    ///
    /// See [`Composite::heal`].
    pub fn heal(
        &self,
        purpose: Purpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Healed, DeviceError> {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = || self.offset_of(RequestKind::Read, place, wide);
        if let Some(below) = self.below() {
            return Ok(below.look(purpose, offset()?, length_bytes, verify));
        }
        let Some(composite) = self.composite() else { return Ok(Healed::default()) };
        composite.heal(purpose, offset()?, length_bytes, verify, None)
    }

    /// As [`Volume::heal`], but that nothing is written again, and nothing is told.
    #[must_use]
    pub fn look(
        &self,
        purpose: Purpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Healed {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes));
        let Ok(offset) = offset else { return Healed::default() };
        match (self.below(), self.composite()) {
            (Some(below), _) => below.look(purpose, offset, length_bytes, verify),
            (None, Some(composite)) => composite.look(purpose, offset, length_bytes, verify),
            (None, None) => Healed::default(),
        }
    }

    /// Reads whole rows that nobody writes to, with whole pages that are known whatever the members
    /// give, by where they lie in it: see [`Composite::read_known`]. `None`: they are no rows.
    #[must_use]
    pub fn read_known(
        &self,
        place: Place,
        length_bytes: usize,
        known: &BTreeMap<usize, &[u8]>,
    ) -> Option<RowsKnown> {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes)).ok()?;
        match self.below() {
            Some(below) => below.read_known(offset, length_bytes, known),
            None => self.composite()?.read_known(offset, length_bytes, known),
        }
    }

    /// Returns how many reads members have not answered since the pool was opened, of several: one
    /// that another answered is among them, and is to be healed ([`Volume::heal`]).
    #[must_use]
    pub fn read_errors(&self) -> u64 {
        let Some(members) = self.members() else { return 0 };
        members.all().iter().map(|slot| slot.counts().read_errors).sum()
    }

    /// From now on what is found bad is told once, and not written again: nobody may write, or all
    /// writes fail.
    pub fn mend_no_more(&self) {
        if let Some(members) = self.members() {
            members.mend_no_more();
        }
    }

    /// Counts what [`Volume::heal`] writes again, and tells the log nothing of it, until what this
    /// returns is dropped: for a walk that tells of all together.
    #[must_use]
    pub fn count_mends(&self) -> Option<MendsCounted> {
        self.members().map(|members| members.count_mends())
    }

    /// Whether [`Volume::heal`] writes again what is bad.
    #[must_use]
    pub fn mends(&self) -> bool {
        self.members().is_some_and(|members| members.mends())
    }

    /// As [`Volume::heal`], but that the member in `slot`, which has come back, is looked at too.
    /// `verify` must tell what is there now from what was there before (RN5): a checksum in a
    /// pointer or a summary does, one that a page has in itself does not.
    ///
    /// # Errors
    ///
    /// See [`Composite::heal`].
    pub fn heal_with(
        &self,
        slot: usize,
        purpose: Purpose,
        place: Place,
        length_bytes: usize,
        verify: Verify<'_>,
    ) -> Result<Healed, DeviceError> {
        let offset = self.offset_of(RequestKind::Read, place, to_u64(length_bytes))?;
        let Some(composite) = self.composite() else { return Ok(Healed::default()) };
        composite.heal(purpose, offset, length_bytes, verify, Some(slot))
    }

    /// Whether the units of the rows that a range lies in agree with their parity: see
    /// [`Composite::agrees`].
    #[must_use]
    pub fn agrees(&self, purpose: Purpose, place: Place, length_bytes: usize) -> bool {
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        let offset = self.offset_of(RequestKind::Read, place, wide);
        let agree = |composite: &Arc<dyn Composite>| {
            offset.is_ok_and(|offset| composite.agrees(purpose, offset, length_bytes))
        };
        self.composite().is_none_or(agree)
    }

    /// Whether what lies in groups may be read in several ways ([`Volume::read_copy`]).
    #[must_use]
    pub fn has_copies(&self) -> bool {
        self.below().is_some() || self.composite().is_some()
    }

    /// Reads `length_bytes` from `place` as copy number `copy` has them, of those that may be read;
    /// `None`: there is no such copy, or only one device.
    #[must_use]
    pub fn read_copy(
        &self,
        copy: usize,
        purpose: Purpose,
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

    /// Returns where what the pool uses of each member ends.
    #[must_use]
    pub fn used_end(&self) -> u64 {
        joining::copied_end(self.geometry())
    }

    /// Reads a piece of the pool, which is kept as `kept` says, in every way that there is: see
    /// [`Composite::compare`]; the member in slot `returning` too. In stripes no write is at it
    /// meanwhile; `None`: one is, to be tried again a little later.
    ///
    /// # Errors
    ///
    /// See [`Composite::compare`].
    pub fn compare(
        &self,
        piece: Range<u64>,
        kept: Redundancy,
        returning: Option<usize>,
    ) -> Result<Option<Compared>, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(None) };
        if !self.geometry().has_stripes() || piece.end <= self.geometry().groups_offset {
            return composite.compare(piece, kept, returning).map(Some);
        }
        // A stripe in flight agrees with nothing.
        let Some(hold) = composite.try_hold(piece.clone()) else { return Ok(None) };
        let compared = composite.compare(piece, kept, returning);
        drop(hold);
        compared.map(Some)
    }

    /// Writes parity anew where it does not agree with its row, if the data of the row is what it
    /// should be: see [`Composite::mend_parity`]. `rows` are bytes of the pool; `returning` is the
    /// slot of a member that has come back and is read too.
    ///
    /// # Errors
    ///
    /// See [`Composite::mend_parity`].
    pub fn mend_parity(
        &self,
        rows: Range<u64>,
        verify: Verify<'_>,
        returning: Option<usize>,
    ) -> Result<ParityMended, DeviceError> {
        let Some(composite) = self.composite() else { return Ok(ParityMended::Agrees) };
        composite.mend_parity(rows, verify, returning)
    }

    /// Says in the labels that members that are away have missed a range that nothing is written
    /// to now: what others have of it is not what they have.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub fn note_missed(&self, place: Place, length_bytes: usize) -> Result<(), DeviceError> {
        let Some(composite) = self.composite() else { return Ok(()) };
        let offset = self.offset_of(RequestKind::Write, place, to_u64(length_bytes))?;
        let members = composite.members_at(offset);
        let in_flight = members.begin_write(offset..offset + to_u64(length_bytes));
        members.note_missed(&in_flight.parts())
    }

    /// Copies a part of a fixed region from `source`, one of [`Volume::fixed_copies`], to all other
    /// members. Not durable before a flush.
    ///
    /// # Errors
    ///
    /// What a device said.
    pub fn copy_fixed(
        &self,
        source: &Volume,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<(), DeviceError> {
        self.check_fixed(RequestKind::Write, offset, to_u64(length_bytes))?;
        let Some(composite) = self.composite() else { return Ok(()) };
        let members = composite.members_at(offset);
        let view = members.view();
        let is_other = |slot: &&Slot| {
            slot.writable().is_some_and(|device| !Arc::ptr_eq(device, source.device()))
        };
        if !view.iter().any(|slot| is_other(&slot)) {
            return Ok(());
        }
        let bytes = SharedBytes::from(source.device().read(purpose, offset, length_bytes)?);
        let submit = |slot: &Slot| {
            let data = vec![bytes.clone()];
            members.submit(slot, purpose, Operation::Write { offset, data })
        };
        let tickets = (0..).zip(view.iter()).filter(|(_, slot)| is_other(slot));
        let tickets: Vec<_> = tickets.map(|(at, slot)| (at, submit(slot))).collect();
        members.together(&view, tickets, None).wait().map(drop)
    }

    /// Returns the paths of members that are not there, and that [`Volume::begin_writing`] would
    /// leave behind; `None`: there are none.
    #[must_use]
    pub fn newly_absent(&self) -> Option<String> {
        let members = self.members()?;
        let (slots, label) = (members.all(), members.label()?);
        let table = label.members.iter().zip(&slots);
        let mut absent = table.filter(|(_, slot)| set::is_newly_absent(slot)).peekable();
        absent.peek()?;
        Some(paths_of(absent.map(|(member, _)| member)))
    }

    /// Says in the labels that members which are not there have missed writes, durably: see
    /// [`MemberSet::leave_absent_behind`]. An update that a crash left only begun is ended by
    /// another, so that what is written from now on is of the epoch that the labels tell.
    /// `superblock` becomes what they say. To be called before anything else is written.
    ///
    /// # Errors
    ///
    /// What a member said that the layout needs.
    pub fn begin_writing(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        let before = superblock.sequence;
        if let Some(members) = self.members() {
            members.leave_absent_behind()?;
            if let Some(label) = members.label() {
                superblock.sequence = label.sequence;
                set::take_table(superblock, &label);
            }
        }
        // Nothing was ever begun in the epoch of a new pool.
        let has_changed = superblock.memberships.len() > 1;
        if superblock.sequence == before && has_changed && !planted::is(Planted::BegunNotEnded) {
            self.update_superblocks(superblock)?;
        }
        Ok(())
    }

    /// Returns what the user calls the device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device().info().name
    }

    /// Returns how requests travel.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        self.device().info().transport
    }

    /// Returns the unit of atomicity and of addressing.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.device().info().sector_bytes
    }

    /// Whether every write is known to be refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.device().info().is_read_only
    }

    /// Whether [`Operation::WriteThrough`] may be asked for.
    #[must_use]
    pub fn has_write_through(&self) -> bool {
        // One that has joined since the open may have none.
        let all_have = |members: &Arc<MemberSet>| {
            let has = |slot: &Slot| {
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

    /// Refuses a pool that is known to take no writes, before the first is tried.
    ///
    /// # Errors
    ///
    /// [`DeviceError::ReadOnly`].
    pub fn check_writable(&self) -> Result<(), PoolError> {
        check_writable(self.device().as_ref())
    }

    /// Looks whether the device has lost its end, which takes no request.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Shortened`].
    pub fn check_end(&self) -> Result<(), DeviceError> {
        self.device().check_end()
    }

    /// Returns what is locked while the pool is open: see [`crate::device::Device::lock_identity`].
    pub(crate) fn lock_identity(&self) -> Option<[u64; 2]> {
        self.device().lock_identity()
    }

    /// Writes every copy of the superblock of a new pool, durably: the last write makes the pool.
    ///
    /// # Errors
    ///
    /// What the device said: there is no pool.
    pub fn write_first_superblocks(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        match self.members() {
            Some(members) => members.write_first_labels(superblock),
            None => write_first_superblocks(self.device(), superblock),
        }
    }

    /// Writes every copy of the superblock, durably; its sequence rises.
    ///
    /// # Errors
    ///
    /// What the device said: the pool must stop writing.
    pub fn update_superblocks(&self, superblock: &mut Superblock) -> Result<(), DeviceError> {
        match self.members() {
            Some(members) => members.update_labels(superblock),
            None => update_all_superblocks(self.device(), superblock),
        }
    }

    /// Refuses what does not lie in the regions in front of the groups: heartbeat, journal,
    /// double-write area, group table. What is in groups has a [`Place`].
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

    /// Reads `length_bytes` of a fixed region, from byte `offset` of the pool.
    ///
    /// # Errors
    ///
    /// What the device said.
    pub fn read_fixed(
        &self,
        purpose: Purpose,
        offset: u64,
        length_bytes: usize,
    ) -> Result<AlignedBuffer, DeviceError> {
        self.check_fixed(RequestKind::Read, offset, to_u64(length_bytes))?;
        self.device().read(purpose, offset, length_bytes)
    }

    /// Writes `data` to a fixed region, at byte `offset` of the pool. Not durable before a flush.
    ///
    /// # Errors
    ///
    /// What the device said.
    pub fn write_fixed(
        &self,
        purpose: Purpose,
        offset: u64,
        data: AlignedBuffer,
    ) -> Result<(), DeviceError> {
        self.check_fixed(RequestKind::Write, offset, to_u64(data.len()))?;
        self.device().write(purpose, offset, data)
    }

    /// Starts to write the pieces of `data` to a fixed region, at byte `offset` of the pool.
    pub fn submit_fixed_write(
        &self,
        purpose: Purpose,
        offset: u64,
        data: Vec<SharedBytes>,
    ) -> Ticket {
        let write = Operation::Write { offset, data };
        match self.check_fixed(RequestKind::Write, offset, write.length_bytes()) {
            Ok(()) => self.device().submit(purpose, write),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    /// Starts to read from any byte of the device, as the one who checks a pool has to: what a
    /// place leads to may be what is wrong.
    pub fn submit_read_at(&self, purpose: Purpose, offset: u64, buffer: AlignedBuffer) -> Ticket {
        self.device().submit(purpose, Operation::Read { offset, buffer })
    }

    /// Returns how long the device is; the pool may be shorter.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        self.device().info().size_bytes
    }

    /// Hands several requests for fixed regions over, all at once. Returns their tickets in order;
    /// one alone if any is refused, and then none is begun.
    pub fn submit_fixed(&self, purpose: Purpose, operations: Vec<Operation>) -> Vec<Ticket> {
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

    /// Returns the whole pages that `fragments` at `place` lie in, as a place and bytes, and where
    /// in those bytes they begin: devices are read and written in whole pages, and a fragment may
    /// be less.
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

    /// Starts to read what each of `wanted` says, a place and bytes, all handed to the device at
    /// once. Returns their tickets in order.
    pub fn submit_reads(
        &self,
        purpose: Purpose,
        wanted: impl Iterator<Item = (Place, usize)>,
    ) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut reads = Vec::new();
        for (place, length_bytes) in wanted {
            let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
            match self.offset_of(RequestKind::Read, place, wide) {
                Ok(offset) => {
                    let buffer = AlignedBuffer::for_reading(length_bytes);
                    reads.push(Operation::Read { offset, buffer });
                    tickets.push(None);
                }
                Err(error) => tickets.push(Some(Ticket::ready(Err(error)))),
            }
        }
        let mut begun = self.device().submit_all(purpose, reads).into_iter();
        tickets.into_iter().filter_map(|refused| refused.or_else(|| begun.next())).collect()
    }

    /// Starts to write `data`, one piece after the other, from `place` on.
    pub fn submit_write(&self, purpose: Purpose, place: Place, data: Vec<SharedBytes>) -> Ticket {
        let length_bytes: usize = data.iter().map(|piece| piece.len()).sum();
        let wide = u64::try_from(length_bytes).unwrap_or(u64::MAX);
        match self.offset_of(RequestKind::Write, place, wide) {
            Ok(offset) => self.device().submit(purpose, Operation::Write { offset, data }),
            Err(error) => Ticket::ready(Err(error)),
        }
    }

    /// Reads `length_bytes` from `place`.
    ///
    /// # Errors
    ///
    /// What the device said.
    pub fn read(
        &self,
        purpose: Purpose,
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
    /// What the device said.
    pub fn read_page(&self, purpose: Purpose, place: Place) -> Result<AlignedBuffer, DeviceError> {
        self.read(purpose, place, PAGE_BYTES)
    }

    /// Makes every write answered so far durable.
    ///
    /// # Errors
    ///
    /// What the device said. Never try again.
    pub fn flush(&self, purpose: Purpose) -> Result<(), DeviceError> {
        self.device().flush(purpose)
    }

    /// Starts to make every write that was answered durable.
    pub fn submit_flush(&self, purpose: Purpose) -> Ticket {
        self.device().submit(purpose, Operation::Flush)
    }
}
