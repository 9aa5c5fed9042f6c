//! Pools of the engine, each as its seed chooses it: sizes, options and device differ, so that many
//! seeds see the maps, the journal, the cache and the space run full in different orders.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::alloc::policy::placement;
use engine::api::{FileSystem, FsResult, Ino};
use engine::{
    DiscardOptions, FilesOptions, NewDiskGroup, Pool, PoolCreateOptions, PoolOpenOptions,
};
use format::disk_group::DiskGroupState;
use format::fileset::{FilesetName, NamePart, ROOT_NAME};
use format::geometry::Geometry;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::volume::Volume;

use super::changes::Changes;
use super::events::Event;
use super::members::{Members, Replacement, is_drawn};
use super::{Ground, GroupTally, JobStep, Opened, PoolKind, Pools, Snapshots, Start};
use crate::number::{u64_of, usize_of};

const MIB: u64 = 1 << 20;
/// Ticks after which a deleted snapshot of these pools is freed.
const FREEING_TICKS_MAX: usize = 2000;
/// Bytes of the pools: from the smallest that is laid out well, which runs full, to one that does
/// not.
const POOL_BYTES: [u64; 5] = [10 * MIB, 16 * MIB, 24 * MIB, 48 * MIB, 96 * MIB];
/// Bytes of a member of a pool of several disk groups: at least and at most.
const GROUP_MEMBER_BYTES: [u64; 2] = [10 * MIB, 24 * MIB];
const FRAGMENT_BYTES: [u32; 4] = [1024, 2048, 4096, 4096];
const BLOCK_SHIFTS: [u8; 4] = [12, 14, 14, 16];
/// A quarter of a segment is a block at least.
const SEGMENT_BYTES: [Option<u64>; 3] = [None, Some(256 << 10), Some(128 << 10)];
const PLACEMENTS: [&str; 3] = ["log", "ffs", "hotspot"];
/// The first is as few pages as a cache may have.
const CACHE_BYTES: [usize; 3] = [1 << 20, 2 << 20, 256 << 20];
const ACTIVE_LOG_BYTES: [u64; 3] = [256 << 10, 1 << 20, 32 << 20];
const DIRTY_PAGES: [usize; 3] = [64, 512, 4096];
const LOG_DATA_BYTES: [usize; 3] = [0, 4 << 10, 32 << 10];
const COMMIT_INTERVALS_NS: [u64; 3] = [1_000_000, 100_000_000, 5_000_000_000];
/// How often the background work is done, in virtual time.
const TICKS_NS: [u64; 3] = [500_000, 2_000_000, 20_000_000];
/// How often pages are taken home whether or not it is due, in virtual time: so that a checkpoint
/// meets every moment of every operation.
const CHECKPOINTS_NS: [Option<u64>; 3] = [None, Some(20_000), Some(1_000_000)];

/// How often at least while members have work that would not end in a life.
const HURRIED_NS: u64 = 20_000;

/// What a seed chooses once for all lives of its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Bytes of a fragment.
    pub fragment_bytes: u32,
    /// Block size: binary logarithm.
    pub block_shift: u8,
    /// Bytes of a segment, unless the default.
    pub segment_bytes: Option<u64>,
    /// Whether the journal is as small as it may be.
    pub has_small_journal: bool,
    /// How often the background work is done, in virtual nanoseconds.
    pub tick_ns: u64,
    /// How often pages are taken home besides, in virtual nanoseconds.
    pub checkpoint_ns: Option<u64>,
}

impl PoolShape {
    /// Returns the shape that `seed` chooses.
    #[must_use]
    pub fn of(seed: u64) -> PoolShape {
        let random = &mut Prng::from_seed(seed);
        let block_shift = one_of(random, &BLOCK_SHIFTS);
        let segment_bytes = one_of(random, &SEGMENT_BYTES);
        PoolShape {
            device_bytes: one_of(random, &POOL_BYTES),
            fragment_bytes: one_of(random, &FRAGMENT_BYTES),
            block_shift,
            segment_bytes: if block_shift == 16 { Some(256 << 10) } else { segment_bytes },
            has_small_journal: random.one_in(2),
            tick_ns: one_of(random, &TICKS_NS),
            checkpoint_ns: one_of(random, &CHECKPOINTS_NS),
        }
    }
}

fn one_of<T: Copy>(random: &mut Prng, choices: &[T]) -> T {
    choices[usize_of(random.below(u64_of(choices.len())))]
}

/// Returns how one life opens its pool: caches and bounds may differ from life to life.
pub(crate) fn open_options(seed: u64) -> PoolOpenOptions {
    let random = &mut Prng::from_seed(seed);
    PoolOpenOptions {
        cache_bytes: one_of(random, &CACHE_BYTES),
        placement: placement(one_of(random, &PLACEMENTS)).expect("the names are known"),
        files: FilesOptions {
            log_data_bytes_max: one_of(random, &LOG_DATA_BYTES),
            commit_interval_ns: one_of(random, &COMMIT_INTERVALS_NS),
            ..FilesOptions::default()
        },
        active_log_bytes: one_of(random, &ACTIVE_LOG_BYTES),
        dirty_pages: one_of(random, &DIRTY_PAGES),
        // Every second life discards what is free, as soon as it is.
        discard: one_of(random, &[DiscardOptions::at_once(), DiscardOptions::default()]),
        ..PoolOpenOptions::default()
    }
}

/// The engine, on the simulated device, or on slices of it that are members.
#[derive(Clone, Copy, Debug)]
pub struct PoolGround {
    /// Of which kind pools are.
    pub pools: Pools,
}

impl Default for PoolGround {
    fn default() -> PoolGround {
        PoolGround { pools: Pools::Of(PoolKind::SINGLE) }
    }
}

impl PoolGround {
    /// Returns the members of the pool of a seed; `None`: it lies on one device.
    fn members(&self, pool_seed: u64) -> Option<Members> {
        let kind = self.pools.kind(pool_seed);
        let bytes = member_bytes(kind, pool_seed);
        (kind != PoolKind::SINGLE).then(|| Members::of(kind, bytes, pool_seed))
    }
}

/// Returns how large a member of a pool of this kind is.
fn member_bytes(kind: PoolKind, pool_seed: u64) -> u64 {
    let pool_bytes = PoolShape::of(pool_seed).device_bytes;
    if kind.has_groups() {
        // Small, so that they run full, and what leaves one does not always fit in the others.
        (pool_bytes / 2).clamp(GROUP_MEMBER_BYTES[0], GROUP_MEMBER_BYTES[1]) / 4096 * 4096
    } else if kind.is_striped() {
        (pool_bytes / kind.members()).max(8 * MIB) / 4096 * 4096
    } else {
        pool_bytes
    }
}

/// Returns how a pool of this kind with members is made: what these have no room for, or cannot do,
/// is left as the default.
fn member_options(kind: PoolKind, pool_seed: u64) -> PoolCreateOptions {
    let shape = PoolShape::of(pool_seed);
    let mut options = PoolCreateOptions::new(member_bytes(kind, pool_seed), [7; 64]);
    options.geometry.journal_bytes = Some(MIB);
    options.block_shift = shape.block_shift.min(14);
    if kind.also().reshapes {
        // So long that rows of another width make a difference, and short groups to give up.
        options.geometry.segment_bytes = Some(480 << 10);
        options.geometry.group_bytes = Some(4 * MIB);
    }
    if !kind.is_striped() {
        options.geometry.segment_bytes = Some(128 << 10);
        options.geometry.group_bytes = Some(2 * MIB);
    }
    options
}

/// Returns how the pool of `pool_seed` is made.
pub(crate) fn create_options(pool_seed: u64) -> PoolCreateOptions {
    let shape = PoolShape::of(pool_seed);
    let mut options = PoolCreateOptions::new(shape.device_bytes, [7; 64]);
    options.geometry.fragment_bytes = shape.fragment_bytes;
    options.geometry.segment_bytes = shape.segment_bytes;
    // A group has at least 16 segments.
    options.geometry.group_bytes = shape.segment_bytes.map(|bytes| (bytes * 16).max(2 * MIB));
    options.geometry.journal_bytes = shape.has_small_journal.then_some(MIB);
    options.block_shift = shape.block_shift;
    options
}

impl Ground for PoolGround {
    fn device_bytes(&self, pool_seed: u64) -> u64 {
        let kind = self.pools.kind(pool_seed);
        match self.members(pool_seed) {
            Some(members) => members.device_bytes(),
            None => member_bytes(kind, pool_seed),
        }
    }

    fn has_members(&self, pool_seed: u64) -> bool {
        self.members(pool_seed).is_some()
    }

    fn log_range(&self, pool_seed: u64) -> Range<u64> {
        let planned = Geometry::plan(&create_options(pool_seed).geometry);
        let geometry = planned.expect("every shape can be made");
        geometry.journal_offset..geometry.journal_offset + geometry.journal_bytes
    }

    fn format(&self, start: &Start) -> Result<(), String> {
        let kind = self.pools.kind(start.pool_seed);
        let made = match self.members(start.pool_seed) {
            None => {
                let options = create_options(start.pool_seed);
                Pool::create(&start.device, &*start.clock, &options)
            }
            Some(members) => {
                let options = member_options(kind, start.pool_seed);
                let groups = members.first(&start.device).into_iter();
                let mut groups: Vec<NewDiskGroup> = groups
                    .map(|(group, devices)| NewDiskGroup {
                        layout: group.layout,
                        devices,
                        roles: group.roles,
                    })
                    .collect();
                let is_apart = groups.iter().any(|group| group.roles.journal);
                if let Some(first) = groups.first_mut() {
                    first.roles.journal = !is_apart;
                }
                match groups.as_slice() {
                    [only] => Pool::create_on(&only.devices, only.layout, &*start.clock, &options),
                    groups => Pool::create_groups(groups, &*start.clock, &options),
                }
            }
        };
        made.map_err(|error| format!("{kind}, {:?}: {error}", PoolShape::of(start.pool_seed)))
    }

    fn open(&self, start: &Start) -> Result<Opened, String> {
        let (device, clock) = (Arc::clone(&start.device), Arc::clone(&start.clock));
        let options = open_options(start.seed);
        let (shape, groups) = (PoolShape::of(start.pool_seed), Arc::<GroupTally>::default());
        let (pool, replacements, changes) = match self.members(start.pool_seed) {
            None => (Pool::open(device, clock, options), Vec::new(), Changes::default()),
            Some(members) => {
                let (opening, replacements, changes) = members.opening(start, &groups);
                (Pool::open_members(opening, clock, options), replacements, changes)
            }
        };
        let pool = Arc::new(pool.map_err(|error| error.to_string())?);
        let kind = self.pools.kind(start.pool_seed);
        let leaves = !kind.comes().is_empty() || kind.has_more();
        let watched = leaves.then(|| Arc::clone(&groups));
        let tick = tick_of(&pool, shape.tick_ns, replacements, watched, kind);
        let mut jobs = vec![("tick".to_owned(), tick)];
        jobs.extend(changes.job(&pool, &groups).map(|step| ("groups".to_owned(), step)));
        if let Some(checkpoint_ns) = shape.checkpoint_ns {
            let worker = Arc::clone(&pool);
            let step: JobStep = Box::new(move || worker.checkpoint().ok().map(|()| checkpoint_ns));
            jobs.push(("checkpoint".to_owned(), step));
        }
        let (failing, closing) = (Arc::clone(&pool), Arc::clone(&pool));
        let has_failed = Box::new(move || failing.status().read_only.is_some());
        let close = Box::new(move || {
            let status = closing.status();
            let refused = status.segment_cache.refused + status.readahead.refused;
            if refused > 0 {
                return Err(format!("{refused} blocks that were read around or ahead were stale"));
            }
            closing.close().map_err(|error| error.to_string())
        });
        let snapshots: Option<Arc<dyn Snapshots>> =
            Some(Arc::new(PoolSnapshots(Arc::clone(&pool))));
        Ok(Opened { fs: pool, has_failed, close, jobs, snapshots, groups })
    }

    fn check(&self, start: &Start) -> Vec<String> {
        let defects_of = |device: SharedDevice| {
            let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
            if report.is_clean() { Vec::new() } else { vec![report.to_text()] }
        };
        let Some(members) = self.members(start.pool_seed) else {
            return defects_of(Arc::clone(&start.device));
        };
        let check = |opening| match Volume::open_members(opening) {
            Ok((volume, _)) => defects_of(Arc::clone(volume.device())),
            Err(error) => vec![error.to_string()],
        };
        members.checks(&start.device).into_iter().flat_map(check).collect()
    }
}

/// Snapshots of the first fileset of a pool.
struct PoolSnapshots(Arc<Pool>);

fn root_name() -> FilesetName {
    ROOT_NAME.parse().expect("it is the name of the first fileset")
}

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a letter and a number")
}

impl Snapshots for PoolSnapshots {
    fn create(&self, name: &str, random: u64) -> FsResult<()> {
        let mut bits = [0; 16];
        bits[..8].copy_from_slice(&random.to_le_bytes());
        self.0.fileset_admin().create_snapshot(&root_name(), &part(name), bits).map(drop)
    }

    fn delete(&self, name: &str) -> FsResult<()> {
        self.0.fileset_admin().delete_snapshot(&root_name(), &part(name))
    }

    fn names(&self) -> FsResult<Vec<String>> {
        let all = self.0.fileset_admin().filesets()?;
        let in_use = all.into_iter().filter(|it| it.freed_permille.is_none());
        Ok(in_use.filter_map(|it| Some(it.name.split_once('@')?.1.to_owned())).collect())
    }

    fn enter(&self, name: &str) -> FsResult<Ino> {
        self.0
            .fileset_admin()
            .hold_snapshot(&root_name(), &part(name))
            .and_then(|uuid| self.0.root_of(uuid))
    }

    fn clean(&self) -> FsResult<()> {
        self.0.clean()
    }

    fn free_all(&self) -> FsResult<()> {
        for _ in 0..FREEING_TICKS_MAX {
            if !self.0.fileset_admin().is_freeing()? {
                break;
            }
            self.0.tick()?;
        }
        Ok(())
    }
}

/// Returns the background work of a pool; after some of it devices take the places of others.
/// Where disk groups or members come and go, `groups` counts what became of them, and the work for
/// that may be hurried.
fn tick_of(
    pool: &Arc<Pool>,
    tick_ns: u64,
    mut replacements: Vec<Replacement>,
    groups: Option<Arc<GroupTally>>,
    kind: PoolKind,
) -> JobStep {
    let is_hurried = kind.has_more() || kind.moves_metadata();
    let (worker, mut ticks, mut has_lost_journal) = (Arc::clone(pool), 0, false);
    Box::new(move || {
        ticks += 1;
        for replacement in replacements.extract_if(.., |it| it.after_ticks < ticks) {
            replacement.begin(&worker);
        }
        let before = groups.as_ref().map(|_| Watched::of(&worker, kind));
        worker.tick().ok()?;
        if let (Some(tally), Some(before)) = (&groups, before) {
            let is_lost = worker.status().lost_journal.is_some();
            if is_lost && !has_lost_journal {
                tally.events.count(Event::JournalLost);
            }
            has_lost_journal = is_lost;
            let has_work = before.tell(&worker, kind, tally);
            expect_moving(&worker);
            if is_hurried && has_work {
                return Some(tick_ns.min(HURRIED_NS));
            }
        }
        Some(tick_ns)
    })
}

/// What is held against the same a tick later.
struct Watched {
    leaving: Vec<u8>,
    /// Whether the first disk group is there, where it may leave.
    has_first: bool,
    spares: usize,
    is_scrubbing: bool,
    is_reshaping: bool,
}

impl Watched {
    fn of(pool: &Pool, kind: PoolKind) -> Watched {
        Watched {
            leaving: leaving(pool),
            has_first: kind.moves_metadata() && has_first(pool),
            spares: pool.devices().spares().len(),
            is_scrubbing: pool.devices().scrub_report().is_some_and(|report| !report.is_done),
            is_reshaping: pool.devices().reshaping().is_some()
                || pool.devices().given_up().is_some(),
        }
    }

    /// Counts what has come to its end. What rots does so on a member without which all is there,
    /// so a scrub has lost nothing.
    /// Returns whether jobs have work.
    fn tell(&self, pool: &Pool, kind: PoolKind, tally: &GroupTally) -> bool {
        let (now, events) = (Watched::of(pool, kind), &tally.events);
        let gone = self.leaving.iter().filter(|number| !now.leaving.contains(number)).count();
        tally.gone.fetch_add(u64_of(gone), Ordering::Relaxed);
        if self.has_first && !now.has_first {
            events.count(Event::FirstLeft);
        }
        if now.spares < self.spares {
            events.count(Event::SpareTaken);
        }
        if let Some(report) = pool.devices().scrub_report().filter(|report| report.is_done) {
            assert_eq!(report.lost, 0, "a scrub has lost something: {report:?}");
            if self.is_scrubbing {
                events.count(Event::ScrubEnded);
                if report.repaired > 0 {
                    events.count(Event::Mended);
                }
            }
        }
        if self.is_reshaping && !now.is_reshaping {
            events.count(Event::Reshaped);
        }
        !pool.jobs().is_empty()
    }
}

/// Returns the disk groups that leave.
fn leaving(pool: &Pool) -> Vec<u8> {
    let groups = pool.status().groups.into_iter();
    let leaving = groups.filter(|group| group.state == DiskGroupState::Leaving);
    leaving.map(|group| group.number).collect()
}

/// Whether the disk group with number 0 has a device that the pool was made on: else it is another,
/// or there is none.
fn has_first(pool: &Pool) -> bool {
    let first = pool.status().groups.into_iter().find(|group| group.number == 0);
    let is_there = |slot: usize| first.as_ref().is_some_and(|first| first.slots.contains(slot));
    pool.devices().members().iter().any(|it| is_there(it.slot) && !is_drawn(it.member.id))
}

/// What a removal was admitted with holds until it ends, so nothing keeps it from moving what is
/// there.
fn expect_moving(pool: &Pool) {
    for job in pool.jobs() {
        let why = job.failure.filter(|why| why.contains("cannot be moved"));
        assert!(why.is_none(), "{}: {}", job.name, why.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::clock::ManualClock;
    use storage::device::MemoryDevice;

    #[test]
    fn every_shape_can_be_made_and_shapes_differ() {
        let mut shapes = Vec::new();
        for seed in 0..200 {
            let shape = PoolShape::of(seed);
            let device: SharedDevice = MemoryDevice::new("memory", shape.device_bytes);
            let clock = Arc::new(ManualClock::new());
            let start = Start { device, clock, seed, pool_seed: seed };
            let ground = PoolGround::default();
            ground.format(&start).expect("the shape is possible");
            assert!(ground.open(&start).is_ok(), "{shape:?}");
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        assert!(shapes.len() > 100, "{}", shapes.len());
    }

    #[test]
    fn pools_of_every_kind_can_be_made() {
        for (seed, kind) in PoolKind::all().enumerate() {
            assert_eq!(kind.to_string().parse(), Ok(Pools::Of(kind)));
            let (seed, ground) = (u64_of(seed), PoolGround { pools: Pools::Of(kind) });
            let device: SharedDevice = MemoryDevice::new("memory", ground.device_bytes(seed));
            let clock = Arc::new(ManualClock::new());
            let start = Start { device, clock, seed, pool_seed: seed };
            ground.format(&start).expect("the kind is possible");
            assert!(ground.open(&start).is_ok(), "{kind}");
        }
    }

    #[test]
    fn seeds_choose_pools_of_every_kind() {
        // So many that one kind is missed once in thousands of ways to number the kinds.
        let seeds = 16 * u64_of(PoolKind::all().count());
        for kind in PoolKind::all() {
            assert!((0..seeds).any(|seed| Pools::Any.kind(seed) == kind), "{kind}");
        }
    }
}
