//! The lives of one pool with filesets and snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{FileSystem, FsError, FsResult};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::{Clock, ManualClock};
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{
    Fault as DeviceFault, FaultPlan, Image, PowerSupply, SimDevice, SimOptions,
};

use super::apply::{
    apply, compare, compare_lists, give_up_streams, is_excused, listed, name, words,
};
use super::choose::{PROJECTS, USERS, node_op, one_of, owner_op};
use super::owners::check_sums;
use super::seat::{At, Done, Met, Seat};
use super::world::{Entered, NodeId, NodeOp, ROOT, World};
use super::{Finding, Options, SeedReport};
use crate::canon::Times;
use crate::crash::{History, Judge};
use crate::model::Model;
use crate::number::{u64_of, usize_of};
use crate::ops::{Generator, Op, Profile, Route};
use crate::torture::{PoolShape, create_options, guarded_words, open_options};

/// The first power cut at a write is below 2 to this power; every exponent is as likely.
const CUT_WRITE_POWER_MAX: u64 = 11;
/// The same while a pool is opened.
const RECOVERY_POWER_MAX: u64 = 7;
/// One opening in so many is cut.
const RECOVERY_CUT_ONE_IN: u64 = 3;
/// Time between two steps is less than 2 to a power below this, in nanoseconds: some are longer
/// than the commit interval of any pool.
const PAUSE_POWER_MAX: u64 = 34;
/// Ticks after which all that was deleted is free.
const TICKS_MAX: usize = 2000;
/// Pools larger than this are not filled: it takes too long. Of the others one life in so many
/// begins with a full pool.
const FULL_BYTES_MAX: u64 = 24 << 20;
const FULL_ONE_IN: u64 = 4;
/// Writes of one size that fill a pool, at most.
const BALLAST_WRITES_MAX: usize = 40;
/// Changes of quotas of users with which a life begins in which they work.
const OWNER_STEPS: usize = 3;
/// Snapshots of a life that are entered and read while it goes on, at most: they can't be deleted
/// then.
const READ_MAX: usize = 1;

/// The lives of one pool, one after the other.
pub(super) struct Lives {
    options: Options,
    random: Prng,
    shape: PoolShape,
    clock: Arc<ManualClock>,
    report: SeedReport,
    done: Done,
}

/// What a life leaves.
struct Left {
    image: Image,
    /// What the nodes may be: before the operation in flight, and after it.
    worlds: Vec<World>,
    histories: BTreeMap<NodeId, History>,
}

/// A life under way.
struct Life<'a> {
    pool: &'a Pool,
    power: &'a PowerSupply,
    seats: Vec<Seat<'a>>,
    world: World,
    /// What the operation in flight would have made, or a part of it.
    in_flight: Vec<World>,
    entered: Entered,
    read: usize,
}

impl Lives {
    pub(super) fn new(options: Options, seed: u64) -> Lives {
        Lives {
            options,
            random: Prng::from_seed(seed),
            shape: PoolShape::of(seed),
            clock: Arc::new(ManualClock::new()),
            report: SeedReport { seed, ..SeedReport::default() },
            done: Done::default(),
        }
    }

    pub(super) fn run(mut self) -> SeedReport {
        let mut life = 0;
        let found = guarded_words(|| self.live(&mut life)).and_then(|found| found);
        if let Err(what) = found {
            let (seed, done) = (self.report.seed, self.done.lines());
            self.report.finding = Some(Finding { seed, life, what, done });
        }
        self.report
    }

    fn live(&mut self, life: &mut u64) -> Result<(), String> {
        let mut image = self.formatted()?;
        let mut world = World::new(Arc::<ManualClock>::clone(&self.clock));
        while *life < self.options.lives {
            self.done.clear();
            image = self.recovered(image)?;
            let left = self.lived(&image, world)?;
            world = self.inspected(&left)?;
            image = left.image;
            *life += 1;
        }
        self.done.clear();
        self.dismantled(&image, world)
    }

    fn trace(&mut self, word: u64) {
        self.report.trace_hash =
            Prng::from_seed(self.report.trace_hash.rotate_left(1) ^ word).next_u64();
    }

    fn device(&mut self, image: &Image) -> (Arc<SimDevice>, PowerSupply) {
        let power = PowerSupply::new();
        let options = SimOptions {
            // Every third pool is on a device that has flushes alone.
            has_write_through: !self.report.seed.is_multiple_of(3),
            power: power.clone(),
            seed: self.random.next_u64(),
            ..SimOptions::default()
        };
        (SimDevice::open(image.clone(), options), power)
    }

    fn formatted(&mut self) -> Result<Image, String> {
        let (device, _) = self.device(&Image::blank(self.shape.device_bytes));
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let options = create_options(self.report.seed);
        words("the pool is not made", Pool::create(&shared, &*self.clock, &options))?;
        Ok(device.crash_image(&mut self.random))
    }

    fn open(&mut self, device: &Arc<SimDevice>, fileset: &str) -> Result<Pool, String> {
        let shared: SharedDevice = Arc::<SimDevice>::clone(device);
        let options = open_options(self.random.next_u64());
        let options = PoolOpenOptions { fileset: Some(name(fileset)), ..options };
        let clock = Arc::<ManualClock>::clone(&self.clock);
        Pool::open(shared, clock, options).map_err(|error| format!("does not open: {error}"))
    }

    /// Opens the pool and cuts the power meanwhile, or soon after.
    fn recovered(&mut self, image: Image) -> Result<Image, String> {
        if !self.random.one_in(RECOVERY_CUT_ONE_IN) {
            return Ok(image);
        }
        let (device, power) = self.device(&image);
        let nth = self.random.below_power(RECOVERY_POWER_MAX);
        device.arm(FaultPlan::none().with(DeviceFault::CutPower { nth }));
        let opened = self.open(&device, ROOT);
        if !power.is_cut() {
            opened?;
            power.cut();
        }
        self.report.counts.recovery_cuts += 1;
        let image = device.crash_image(&mut self.random);
        self.trace(image.content_hash());
        Ok(image)
    }

    fn profile(&mut self) -> Profile {
        let like = match self.random.below(3) {
            0 => Profile::syncing(),
            1 => Profile::crash(),
            // Larger files have leaves.
            _ => Profile { near_bytes_max: 1 << 20, io_bytes_max: 96 << 10, ..Profile::crash() },
        };
        // Half of the time users work too, who are checked and may be limited.
        let uids =
            if self.random.one_in(2) { vec![0, USERS[0], USERS[0], USERS[1]] } else { vec![0] };
        // And the superuser gives what there is to projects.
        let projects = if uids.len() > 1 { vec![0, PROJECTS[0], PROJECTS[1]] } else { Vec::new() };
        Profile { whiteout_one_in: 4, uids, projects, ..like }
    }

    /// Lets one life pass.
    fn lived(&mut self, image: &Image, mut world: World) -> Result<Left, String> {
        let (device, power) = self.device(image);
        let filesets: Vec<(NodeId, String)> =
            world.filesets().map(|(id, node)| (id, node.name.clone())).collect();
        let main = one_of(&mut self.random, &filesets).ok_or("there is no fileset")?;
        let other = one_of(&mut self.random, &filesets).filter(|other| *other != main);
        self.done.add(format!("mount {} of {:?}", main.1, self.shape));
        let pool = self.open(&device, &main.1)?;
        give_up_streams(&pool)?;
        let served: Vec<(NodeId, String)> = [main].into_iter().chain(other).collect();
        let (mut generators, mut has_users) = (Vec::new(), Vec::new());
        for (id, _) in &served {
            let model = &world.node(*id).expect("it was chosen of these").model;
            let (seed, profile) = (self.random.next_u64(), self.profile());
            has_users.push(profile.uids.len() > 1);
            let generator = Generator::below(seed, profile, Route::default(), model);
            world.set_model(*id, generator.model());
            generators.push(generator);
        }
        let models: Vec<Arc<Model>> = generators.iter().map(Generator::model).collect();
        let (mut seats, mut entered) = (Vec::new(), Entered::default());
        for ((id, name_of), (generator, model)) in
            served.into_iter().zip(generators.into_iter().zip(&models))
        {
            let uuid = words(
                "a fileset is not served",
                pool.fileset_admin().hold_fileset(&name(&name_of)),
            )?;
            let root = words("a fileset has no root", pool.root_of(uuid))?;
            entered.add(id);
            let at = At { pool: &pool, root, uuid };
            let mut seat = Seat::new((id, name_of), generator, model, &at)?;
            seat.has_users = has_users[seats.len()];
            seats.push(seat);
        }
        if !self.random.one_in(3) {
            let nth = self.random.below_power(CUT_WRITE_POWER_MAX);
            device.arm(FaultPlan::none().with(DeviceFault::CutPower { nth }));
        }
        let (in_flight, read) = (Vec::new(), 0);
        let mut life = Life { pool: &pool, power: &power, seats, world, in_flight, entered, read };
        if self.shape.device_bytes <= FULL_BYTES_MAX && self.random.one_in(FULL_ONE_IN) {
            self.fill(&mut life)?;
        }
        self.open_to_users(&mut life)?;
        let steps = 1 + self.random.below(self.options.steps_max);
        for _ in 0..steps {
            if power.is_cut() {
                break;
            }
            self.step(&mut life)?;
        }
        let is_closed = !power.is_cut() && self.random.one_in(3) && self.closed(&mut life)?;
        self.report.counts.moved_fragments += pool.status().cleaner.since_mount.moved_fragments;
        self.report.counts.crashes += u64::from(!is_closed);
        power.cut();
        let image = if is_closed { device.image() } else { device.crash_image(&mut self.random) };
        self.trace(image.content_hash());
        let Life { seats, world, in_flight, .. } = life;
        self.report.counts.crashes_in_node_operations += u64::from(!in_flight.is_empty());
        let worlds = [world].into_iter().chain(in_flight).collect();
        let histories = seats.into_iter().map(|seat| (seat.id, seat.history)).collect();
        Ok(Left { image, worlds, histories })
    }

    /// Lets users make files at the root of what is changed, where they work at all, and limits
    /// some.
    fn open_to_users(&mut self, life: &mut Life<'_>) -> Result<(), String> {
        let (power, now) = (life.power, self.clock.now());
        for seat in life.seats.iter_mut().filter(|seat| seat.has_users) {
            let node = life.world.node(seat.id).expect("nobody deletes what is mounted");
            let limits = (node.quota_bytes, node.parent.is_some());
            seat.open_to_all((limits, now), &|| power.is_cut(), &mut self.done)?;
        }
        let with_users = life.seats.iter().filter(|seat| seat.has_users);
        let names: Vec<String> = with_users.map(|seat| seat.name.clone()).collect();
        for fileset in names.into_iter().flat_map(|name| vec![name; OWNER_STEPS]) {
            if !life.power.is_cut() {
                let op = owner_op(&mut self.random, &life.world, fileset);
                self.node_step(life, op)?;
            }
        }
        Ok(())
    }

    fn fill(&mut self, life: &mut Life<'_>) -> Result<(), String> {
        let Some(seat) = life.seats.first_mut() else { return Ok(()) };
        let node = life.world.node(seat.id).expect("nobody deletes what is mounted");
        let limits = (node.quota_bytes, node.parent.is_some());
        let power = life.power;
        self.report.counts.full += 1;
        let limits = (limits, self.clock.now());
        seat.fill(BALLAST_WRITES_MAX, limits, &|| power.is_cut(), &mut self.done)
    }

    /// Closes the pool; returns whether the power was on until the end.
    fn closed(&mut self, life: &mut Life<'_>) -> Result<bool, String> {
        self.done.add("unmount".to_owned());
        let numbers: Vec<usize> = life.seats.iter_mut().map(Seat::begin_sync).collect();
        if self.random.one_in(2) {
            life.seats.iter_mut().for_each(Seat::close_all);
        }
        let closed = life.pool.close();
        if life.power.is_cut() {
            return Ok(false);
        }
        words("it does not close", closed)?;
        life.seats.iter_mut().zip(numbers).for_each(|(seat, number)| seat.end_sync(number));
        Ok(true)
    }

    fn step(&mut self, life: &mut Life<'_>) -> Result<(), String> {
        let pause_ns = self.random.below_power(PAUSE_POWER_MAX);
        self.clock.advance_ns(pause_ns);
        let pool = life.pool;
        match self.random.below(100) {
            0..70 => self.file_step(life),
            70..83 => {
                let op = node_op(&mut self.random, &life.world);
                self.node_step(life, op)
            }
            83..88 => {
                let names: Vec<String> = life.seats.iter().map(|seat| seat.name.clone()).collect();
                let Some(fileset) = one_of(&mut self.random, &names) else { return Ok(()) };
                let op = owner_op(&mut self.random, &life.world, fileset);
                self.node_step(life, op)
            }
            88..92 => self.background(life, "clean", Pool::clean),
            92..95 => self.background(life, "checkpoint", Pool::checkpoint),
            95..98 => self.background(life, "tick", Pool::tick),
            98 => life.seats.iter().try_for_each(|seat| match seat.check_sums() {
                Err(_) if life.power.is_cut() => Ok(()),
                checked => checked,
            }),
            _ if life.read < READ_MAX => self.read_snapshot(life),
            _ => self.background(life, "sync", |_| pool.sync()),
        }
    }

    /// What must never fail, whatever is full.
    fn background(
        &mut self,
        life: &mut Life<'_>,
        what: &str,
        work: impl FnOnce(&Pool) -> FsResult<()>,
    ) -> Result<(), String> {
        self.done.add(what.to_owned());
        let numbers: Vec<usize> = match what {
            "sync" => life.seats.iter_mut().map(Seat::begin_sync).collect(),
            _ => Vec::new(),
        };
        let done = work(life.pool);
        if life.power.is_cut() {
            return Ok(());
        }
        words(what, done)?;
        life.seats.iter_mut().zip(numbers).for_each(|(seat, number)| seat.end_sync(number));
        Ok(())
    }

    fn file_step(&mut self, life: &mut Life<'_>) -> Result<(), String> {
        let count = u64_of(life.seats.len());
        let chosen = usize_of(self.random.below(count));
        let seat = &mut life.seats[chosen];
        if seat.is_uncertain {
            return Ok(());
        }
        let node = life.world.node(seat.id).expect("nobody deletes what is mounted");
        let limits = (node.quota_bytes, node.parent.is_some());
        let power = life.power;
        let now = self.clock.now();
        let (met, op) = seat.step((limits, now), &|| power.is_cut(), &mut self.done)?;
        self.report.counts.over_limit += u64::from(met == Met::OverLimit);
        self.report.counts.operations += 1;
        self.report.counts.full += u64::from(met == Met::Full);
        // Every sync is the pool's.
        if op == Op::Sync && met == Met::Nothing && !power.is_cut() {
            for (index, other) in life.seats.iter_mut().enumerate().filter(|it| it.0 != chosen) {
                debug_assert!(index != chosen);
                let number = other.begin_sync();
                other.end_sync(number);
            }
        }
        Ok(())
    }

    /// NT1.
    fn node_step(&mut self, life: &mut Life<'_>, op: NodeOp) -> Result<(), String> {
        let mut taken: Vec<NodeId> = Vec::new();
        if let NodeOp::Take { fileset, .. } = &op {
            let is_it = |(_, node): &(NodeId, &super::world::Node)| node.name == *fileset;
            taken.extend(life.world.filesets().filter(is_it).map(|(id, _)| id));
        } else if let NodeOp::TakeBelow { fileset, .. } = &op {
            taken = life.world.at_and_below(fileset);
        }
        let is_of = |seat: &&mut Seat<'_>| taken.contains(&seat.id);
        if life.seats.iter().any(|seat| seat.is_uncertain && taken.contains(&seat.id)) {
            // Nobody knows what the snapshot would be.
            return Ok(());
        }
        self.done.add(op.to_string());
        let expected = life.world.after(&op, &life.entered);
        let halfway = half_of(&op).and_then(|half| life.world.after(&half, &life.entered).ok());
        // NT4: who takes a snapshot syncs.
        let numbers: Vec<usize> =
            life.seats.iter_mut().filter(is_of).map(|seat| seat.begin_sync()).collect();
        let answer = apply(life.pool, &op, &mut self.random);
        if life.power.is_cut() {
            life.in_flight = expected.ok().into_iter().chain(halfway).collect();
            return Ok(());
        }
        match (expected, answer) {
            (Ok(after), Ok(())) => {
                self.report.counts.node_operations += 1;
                self.report.counts.snapshots += u64::from(!taken.is_empty());
                life.world = after;
                let seats = life.seats.iter_mut().filter(is_of);
                seats.zip(numbers).for_each(|(seat, number)| seat.end_sync(number));
                Ok(())
            }
            (expected, Err(error)) => {
                self.done.note(&error.to_string());
                let is_full = matches!(error, FsError::NoSpace) && op.takes_space();
                self.report.counts.full += u64::from(is_full);
                self.report.counts.refusals += u64::from(!is_full);
                let is_right = expected.as_ref().err().is_some_and(|it| it.is(&error));
                if is_right || is_full || is_excused(life.pool, &error)? {
                    // What differs may have found no room, or no quiet, when the rest was there.
                    if let Some(half) = halfway.filter(|it| compare_lists(life.pool, it).is_ok()) {
                        life.world = half;
                    }
                    return Ok(());
                }
                let expected =
                    expected.err().map_or_else(|| "done".to_owned(), |it| format!("{it:?}"));
                Err(format!("{op}: refused: {error}; the model says: {expected}"))
            }
            (Err(refusal), Ok(())) => Err(format!("{op}: done; the model says: {refusal:?}")),
        }
    }

    /// NT3, of one snapshot while the pool is at work: its files stay in memory. One that is given
    /// back can be deleted all the same.
    fn read_snapshot(&mut self, life: &mut Life<'_>) -> Result<(), String> {
        let snapshots: Vec<NodeId> = life.world.snapshots().map(|(id, ..)| id).collect();
        let Some(chosen) = one_of(&mut self.random, &snapshots) else { return Ok(()) };
        self.done.add(format!("read {}", life.world.name_of(chosen)));
        let compared = compare(life.pool, &life.world, chosen, Times::Ignored);
        if life.power.is_cut() {
            return Ok(());
        }
        let uuid = compared?;
        if self.random.one_in(2) {
            life.pool.fileset_admin().release_fileset(uuid);
        } else {
            life.entered.add(chosen);
            life.read += 1;
        }
        self.report.counts.compared += 1;
        Ok(())
    }

    /// NT2 to NT5: looks at what a life has left, on a copy; returns what that is.
    fn inspected(&mut self, left: &Left) -> Result<World, String> {
        let (device, _) = self.device(&left.image);
        checked("as it was left", &device)?;
        let pool = self.open(&device, ROOT)?;
        let mut found = Err("there is no world".to_owned());
        for world in left.worlds.iter().rev() {
            let listed = listed(&pool, world)?;
            if found.is_err() {
                found = Err(format!("there are {listed:?}"));
            }
            if world.listed() == listed {
                found = self.adopted(&pool, world.clone(), &left.histories);
                if found.is_ok() {
                    break;
                }
            }
        }
        let expected = |why: String| {
            let worlds: Vec<_> = left.worlds.iter().map(World::listed).collect();
            format!("{why}\n  of what there may be: {worlds:?}")
        };
        let world = found.map_err(expected)?;
        words("it does not close", pool.close())?;
        drop(pool);
        checked("after it was opened and closed", &device)?;
        Ok(world)
    }

    fn adopted(
        &mut self,
        pool: &Pool,
        mut world: World,
        histories: &BTreeMap<NodeId, History>,
    ) -> Result<World, String> {
        let all: Vec<NodeId> = world.nodes().map(|(id, _)| id).collect();
        for id in all {
            self.report.counts.compared += 1;
            let Some(history) = histories.get(&id) else {
                compare(pool, &world, id, Times::Ignored)?;
                continue;
            };
            let what = world.name_of(id);
            let uuid = words(&what, pool.fileset_admin().hold_fileset(&name(&what)))?;
            let root = words(&what, pool.root_of(uuid))?;
            Judge::new(history).judge_below(pool, root).map_err(|findings| {
                let told: Vec<String> = findings.iter().map(ToString::to_string).collect();
                format!("{what}: {}", told.join("\n  "))
            })?;
            let clock = Arc::<ManualClock>::clone(&self.clock);
            let (model, _) = words(&what, Model::copy_below(pool, root, clock))?;
            check_sums(pool, &what, (root, true))?;
            world.set_model(id, Arc::new(model));
        }
        Ok(world)
    }

    /// Deletes all snapshots, and all filesets but the first: none is refused for want of space,
    /// and nothing is left of them.
    fn dismantled(&mut self, image: &Image, mut world: World) -> Result<(), String> {
        let (device, _) = self.device(image);
        let pool = self.open(&device, ROOT)?;
        give_up_streams(&pool)?;
        let main = world.filesets().find(|(_, node)| node.name == ROOT).map(|(id, _)| id);
        let mut entered = Entered::default();
        entered.add(main.ok_or("the first fileset is gone")?);
        freed(&pool)?;
        while world.nodes().count() > 1 {
            let before = world.nodes().count();
            for op in all_deletions(&world) {
                let Ok(after) = world.after(&op, &entered) else { continue };
                self.done.add(op.to_string());
                words(&op.to_string(), apply(&pool, &op, &mut self.random))?;
                freed(&pool)?;
                world = after;
            }
            // Who is called after one and goes back to by another must be called after the other.
            if world.nodes().count() == before && !self.promoted(&pool, &mut world)? {
                return Err(format!("nobody can delete any of {:?}", world.listed()));
            }
        }
        words("it does not close", pool.close())?;
        drop(pool);
        checked("after all was deleted", &device)
    }
}

impl Lives {
    /// Lets the first fileset that can be promoted take over the snapshots that it goes back to.
    fn promoted(&mut self, pool: &Pool, world: &mut World) -> Result<bool, String> {
        let mut filesets: Vec<String> =
            world.filesets().map(|(_, node)| node.name.clone()).collect();
        filesets.sort_by_key(|fileset| fileset != ROOT);
        for fileset in filesets {
            let op = NodeOp::Promote { fileset };
            if let Ok(after) = world.after(&op, &Entered::default()) {
                self.done.add(op.to_string());
                words(&op.to_string(), apply(pool, &op, &mut self.random))?;
                *world = after;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What of an operation may be done though the rest is not.
fn half_of(op: &NodeOp) -> Option<NodeOp> {
    let NodeOp::Receive { fileset, from: Some(from), into, .. } = op else { return None };
    let (fileset, snapshot, into) = (fileset.clone(), from.clone(), into.clone());
    Some(NodeOp::Receive { fileset, snapshot, from: None, into })
}

fn all_deletions(world: &World) -> Vec<NodeOp> {
    let mut all = Vec::new();
    for (_, fileset, node) in world.snapshots() {
        for hold in &node.holds {
            let (fileset, snapshot) = (fileset.to_owned(), node.name.clone());
            all.push(NodeOp::Release { fileset, snapshot, hold: hold.clone() });
        }
        all.push(NodeOp::DeleteSnapshot {
            fileset: fileset.to_owned(),
            snapshot: node.name.clone(),
        });
    }
    let fileset = |(_, node): (_, &super::world::Node)| node.name.clone();
    all.extend(world.filesets().map(fileset).map(|fileset| NodeOp::DeleteFileset { fileset }));
    all
}

/// Ticks until nothing is being freed any more.
fn freed(pool: &Pool) -> Result<(), String> {
    for _ in 0..TICKS_MAX {
        if !words("is anything being freed", pool.fileset_admin().is_freeing())? {
            return Ok(());
        }
        words("tick", pool.tick())?;
    }
    Err(format!("a deletion does not end: {:?}", pool.jobs()))
}

fn checked(when: &str, device: &Arc<SimDevice>) -> Result<(), String> {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
    if report.is_clean() { Ok(()) } else { Err(format!("{when}: {}", report.to_text())) }
}
