//! Filesets and snapshots against a reference of whole trees, step by step.
//!
//! The reference of a snapshot is a copy of a tree: so what it holds says nothing of how the engine
//! shares it. After each step on one fileset what that step was about is compared there, and at
//! the same path in every snapshot and in every other fileset, where nothing may have changed;
//! after each change of filesets and snapshots, and around each opening, all trees are compared
//! whole, and so is the list of them. Power cuts come behind a sync; for those in the midst of
//! something see
//! [`testkit::families`].

use std::fmt::Write as _;
use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino};
use engine::{Pool, PoolOpenOptions};
use format::fileset::FilesetName;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};
use testkit::canon::{CanonAttr, Times};
use testkit::families::{
    Entered, NodeId, NodeOp, ROOT, World, apply, compare, compare_lists, enter, is_excused,
    node_op, one_of,
};
use testkit::model::Model;
use testkit::ops::{Generator, Op, Place, Profile, Route, Session, Step, places_of};

use crate::lockstep::{POOL_BYTES, background, create_options, open_options};

/// Steps on one fileset before another is chosen, at least, and how many more there may be.
const STEPS_MIN: u64 = 6;
const STEPS_MORE: u64 = 24;
/// One step in so many is about filesets and snapshots.
const NODE_ONE_IN: u64 = 7;
/// One change of the fileset that is worked on in so many is a new opening of the pool.
const OPEN_ONE_IN: u64 = 4;
/// Segments are emptied before one step in so many.
const CLEAN_ONE_IN: u64 = 48;
/// How far the clock moves at each step.
const STEP_NS: u64 = 20_000_000;
/// Bytes that are read of each other node at the place of a write.
const NEAR_BYTES: usize = 8 << 10;
/// The directory of snapshots.
const SNAPSHOTS: &[u8] = b".snapshots";

/// One line of a history. What makes no sense where it stands is passed over, so that a history
/// can be made short.
#[derive(Clone, Debug)]
pub enum Event {
    /// From here on this fileset is worked on.
    Seat(String),
    /// A step on it.
    File(Step),
    /// A step on filesets and snapshots.
    Node(NodeOp),
    /// The pool is closed, or lost after a sync, and this fileset mounted.
    Open {
        /// Whether it is lost.
        is_lost: bool,
        /// The fileset.
        main: String,
    },
}

/// Returns a history of `count` events.
#[must_use]
pub fn history(seed: u64, profile: &Profile, count: usize) -> Vec<Event> {
    let mut random = Prng::from_seed(seed);
    let mut world = World::new(Arc::new(ManualClock::new()));
    let (mut events, mut main) = (Vec::new(), ROOT.to_owned());
    while events.len() < count {
        let filesets: Vec<_> = world.filesets().map(|(id, node)| (id, node.name.clone())).collect();
        if random.one_in(OPEN_ONE_IN) {
            main = one_of(&mut random, &filesets).map_or(main, |(_, name)| name);
            events.push(Event::Open { is_lost: random.one_in(2), main: main.clone() });
        }
        let Some((id, name)) = one_of(&mut random, &filesets) else { break };
        let entered = entered(&world, &main, Some(id));
        let model = &world.node(id).expect("it was chosen of these").model;
        let mut generator =
            Generator::below(random.next_u64(), profile.clone(), Route::default(), model);
        let model = generator.model();
        world.set_model(id, Arc::clone(&model));
        let mut session = Session::new(&*model, Times::Ignored);
        events.push(Event::Seat(name));
        for _ in 0..STEPS_MIN + random.below(STEPS_MORE) {
            if !random.one_in(NODE_ONE_IN) {
                events.push(Event::File(generator.next_in(&mut session).0));
                continue;
            }
            let op = node_op(&mut random, &world);
            if matches!(op, NodeOp::Limit { .. }) {
                // What is left of a limit is no part of what trees are: see `testkit::families`.
                continue;
            }
            if let Ok(after) = world.after(&op, &entered) {
                world = after;
            }
            events.push(Event::Node(op));
        }
        session.close_all();
    }
    events
}

/// The fileset of this name, if there is one.
fn fileset_of(world: &World, name: &str) -> Option<NodeId> {
    world.filesets().find(|(_, node)| node.name == name).map(|(id, _)| id)
}

/// Who is mounted, and who is worked on.
fn entered(world: &World, main: &str, seat: Option<NodeId>) -> Entered {
    let mut entered = Entered::default();
    fileset_of(world, main).into_iter().chain(seat).for_each(|id| entered.add(id));
    entered
}

/// A history as a person reads it.
#[must_use]
pub fn to_text(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        match event {
            Event::Seat(name) => writeln!(text, "in {name}:"),
            Event::File(step) => writeln!(text, "    {step}"),
            Event::Node(op) => writeln!(text, "  {op}"),
            Event::Open { is_lost: true, main } => writeln!(text, "power cut; mount {main}"),
            Event::Open { is_lost: false, main } => writeln!(text, "unmount; mount {main}"),
        }
        .expect("a String takes it");
    }
    text
}

/// Does `events` on a pool, and compares it with the reference.
///
/// # Errors
///
/// Where they go apart, or what the checker found; after how many events.
pub fn run(seed: u64, events: &[Event]) -> Result<(), (usize, String)> {
    let clock = Arc::new(ManualClock::new());
    let mut random = Prng::from_seed(seed);
    let device = SimDevice::open(Image::blank(POOL_BYTES), sim_options(&mut random));
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = create_options(&mut random);
    Pool::create(&shared, clock.as_ref(), &create).expect("a pool fits");
    let world = World::new(Arc::<ManualClock>::clone(&clock));
    let mut lives = Lives { clock, random, world, main: ROOT.to_owned(), done: 0 };
    let mut image = device.crash_image(&mut lives.random);
    let is_opening = |event: &Event| matches!(event, Event::Open { .. });
    for life in events.split_inclusive(is_opening) {
        image = lives.lived(image, life).map_err(|text| (lives.done, text))?;
    }
    Ok(())
}

fn sim_options(random: &mut Prng) -> SimOptions {
    let has_write_through = !random.one_in(3);
    SimOptions { has_write_through, seed: random.next_u64(), ..SimOptions::default() }
}

fn words<T>(what: &str, result: Result<T, impl std::fmt::Display>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// The openings of one pool, one after the other.
struct Lives {
    clock: Arc<ManualClock>,
    random: Prng,
    world: World,
    main: String,
    done: usize,
}

impl Lives {
    fn lived(&mut self, image: Image, events: &[Event]) -> Result<Image, String> {
        let device = SimDevice::open(image, sim_options(&mut self.random));
        let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
        let fileset: Option<FilesetName> = Some(words("a name", self.main.parse())?);
        let options = PoolOpenOptions { fileset, ..open_options(&mut self.random) };
        let clock = Arc::<ManualClock>::clone(&self.clock);
        let pool = words("it does not open", Pool::open(Arc::clone(&shared), clock, options))?;
        self.compare_all(&pool, "after it was opened")?;
        let is_seat = |event: &Event| matches!(event, Event::Seat(_));
        let first = events.iter().position(is_seat).unwrap_or(events.len());
        let (before, mut rest) = events.split_at(first);
        self.seated(&pool, None, before)?;
        while let [Event::Seat(name), after @ ..] = rest {
            self.done += 1;
            let end = after.iter().position(is_seat).unwrap_or(after.len());
            self.seated(&pool, fileset_of(&self.world, name), &after[..end])?;
            rest = &after[end..];
        }
        self.compare_all(&pool, "before it ends")?;
        let end = events.last();
        if let Some(Event::Open { main, .. }) = end
            && fileset_of(&self.world, main).is_some()
        {
            self.main.clone_from(main);
        }
        let is_lost = matches!(end, Some(Event::Open { is_lost: true, .. }));
        if is_lost {
            words("sync", pool.sync())?;
            drop(pool);
        } else {
            words("close", pool.close())?;
        }
        let image = if is_lost { device.crash_image(&mut self.random) } else { device.image() };
        let left: SharedDevice = SimDevice::open(image.clone(), SimOptions::default());
        let report = check::run(left, check::CheckOptions::default(), &mut |_| ());
        if report.is_clean() { Ok(image) } else { Err(report.to_text()) }
    }

    fn compare_all(&mut self, pool: &Pool, when: &str) -> Result<(), String> {
        words(when, compare_lists(pool, &self.world))?;
        for (id, _) in self.world.nodes() {
            let held = words(when, compare(pool, &self.world, id, Times::Changes))?;
            pool.fileset_admin().release_fileset(held);
        }
        Ok(())
    }

    /// Works on one fileset.
    fn seated(
        &mut self,
        pool: &Pool,
        seat: Option<NodeId>,
        events: &[Event],
    ) -> Result<(), String> {
        let Some(id) = seat else {
            let none = Arc::new(Model::new(Arc::<ManualClock>::clone(&self.clock)));
            return self.work(pool, None, (&none, pool.root()), events);
        };
        let name = self.world.name_of(id);
        let held = words(&name, enter(pool, &name))?;
        let root = words(&name, pool.root_of(held))?;
        let model = Arc::new(self.world.node(id).expect("it was found").model.reopened());
        self.world.set_model(id, Arc::clone(&model));
        self.work(pool, seat, (&model, root), events)?;
        pool.fileset_admin().release_fileset(held);
        Ok(())
    }

    fn work(
        &mut self,
        pool: &Pool,
        seat: Option<NodeId>,
        (model, root): (&Model, Ino),
        events: &[Event],
    ) -> Result<(), String> {
        let mut expected = Session::new(model, Times::Changes);
        let mut found = Session::below(pool, root, Times::Changes);
        for event in events {
            self.clock.advance_ns(STEP_NS);
            background(pool, &mut self.random);
            if self.random.one_in(CLEAN_ONE_IN) {
                words("clean", pool.clean())?;
            }
            self.done += 1;
            match event {
                Event::Seat(_) | Event::Open { .. } => {}
                Event::Node(op) => self.node_step(pool, seat, op)?,
                Event::File(step) => {
                    let Some(id) = seat else { continue };
                    let [left, right] =
                        [&mut expected, &mut found].map(|session| session.apply(step).outcome);
                    if !left.agrees(&right) {
                        let name = self.world.name_of(id);
                        return Err(format!("{name}: {step}:\n  told {right:?}\n  not  {left:?}"));
                    }
                    self.compare_touched((&expected, &found), id, step)?;
                    self.compare_others(pool, root, id, step)?;
                }
            }
        }
        expected.close_all();
        found.close_all();
        Ok(())
    }

    fn node_step(&mut self, pool: &Pool, seat: Option<NodeId>, op: &NodeOp) -> Result<(), String> {
        let expected = self.world.after(op, &entered(&self.world, &self.main, seat));
        match (expected, apply(pool, op, &mut self.random)) {
            (Ok(after), Ok(())) => {
                self.world = after;
                self.compare_all(pool, &format!("after {op}"))
            }
            (Err(refusal), Ok(())) => Err(format!("{op}: done; the model says {refusal:?}")),
            (expected, Err(error)) => {
                let is_right = expected.as_ref().err().is_some_and(|refusal| refusal.is(&error));
                if is_right || is_excused(pool, &error)? {
                    return Ok(());
                }
                let expected = expected.err();
                Err(format!("{op}: refused: {error}; the model says {expected:?}"))
            }
        }
    }

    fn compare_touched(
        &self,
        (expected, found): (&Session<'_>, &Session<'_>),
        id: NodeId,
        step: &Step,
    ) -> Result<(), String> {
        for place in places_of(&step.op) {
            let [left, right] = [expected, found].map(|session| probed(session, &place));
            if left != right {
                let name = self.world.name_of(id);
                return Err(format!("{name}: {step}: {place}: {right:?}, not {left:?}"));
            }
        }
        Ok(())
    }

    /// What a step on one fileset was about is elsewhere what it was. Snapshots of that fileset are
    /// entered by its directory of snapshots half of the time, others by name.
    fn compare_others(
        &mut self,
        pool: &Pool,
        root: Ino,
        seat: NodeId,
        step: &Step,
    ) -> Result<(), String> {
        let places = places_of(&step.op);
        for (id, node) in self.world.nodes().filter(|(id, _)| *id != seat) {
            let name = self.world.name_of(id);
            let is_by_directory = node.of == Some(seat) && self.random.one_in(2);
            let held = match is_by_directory {
                true => None,
                false => Some(words(&name, enter(pool, &name))?),
            };
            let at = match held {
                Some(held) => words(&name, pool.root_of(held))?,
                None => by_directory(pool, root, &node.name)?,
            };
            let mut expected = Session::new(&*node.model, Times::Changes);
            let mut found = Session::below(pool, at, Times::Changes);
            for place in places.iter().filter(|place| matches!(place, Place::At(_))) {
                let [left, right] = [&expected, &found].map(|session| probed(session, place));
                if left != right {
                    return Err(format!("{name}, after {step}: {place}: {right:?}, not {left:?}"));
                }
                if left.is_none_or(|attr| attr.kind != FileKind::Regular) {
                    continue;
                }
                let read = Step::root(read_near(place, &step.op));
                let [left, right] =
                    [&mut expected, &mut found].map(|session| session.apply(&read).outcome);
                if !left.agrees(&right) {
                    return Err(format!("{name}, after {step}: {read}: not what it was"));
                }
            }
            match held {
                Some(held) => pool.fileset_admin().release_fileset(held),
                None => pool.forget(at, 1),
            }
        }
        Ok(())
    }
}

fn probed(session: &Session<'_>, place: &Place) -> Option<CanonAttr> {
    session.probe(place).map(|attr| CanonAttr::of(&attr, Times::Changes))
}

/// The root of a snapshot, as its fileset's directory of snapshots leads to it.
fn by_directory(pool: &Pool, root: Ino, snapshot: &str) -> Result<Ino, String> {
    let caller = Caller::root();
    let snapshots = words(".snapshots", pool.lookup(&caller, root, SNAPSHOTS))?;
    let found = words(snapshot, pool.lookup(&caller, snapshots.ino, snapshot.as_bytes()));
    pool.forget(snapshots.ino, 1);
    found.map(|attr| attr.ino)
}

/// A read of what a step may have changed, if anything was shared that must not be.
fn read_near(place: &Place, op: &Op) -> Op {
    let mut near = 0;
    if let Op::Write { offset, .. }
    | Op::Fallocate { offset, .. }
    | Op::Truncate { size_bytes: offset, .. }
    | Op::Copy { to: offset, .. } = op
    {
        near = *offset & !4095;
    }
    Op::Read { file: place.clone(), offset: near, length: NEAR_BYTES }
}
