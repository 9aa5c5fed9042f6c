//! The clients, the net between them and the server, and what they have seen.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::Pool;
use front::nfs::DeferredReply;
use runtime::prng::Prng;
use storage::device::SharedDevice;
use storage::device::sim::{SimDevice, SimOptions};

use super::super::client::{
    self, Answer as Reply, Client, Direct, FILE_SYNC, NFS, UNSTABLE, Words,
};
use super::super::{loopback, make_pool, open_pool, service_of};
use super::linear::{Life, PARTS_MAX, Part, linearise};
use super::model::{
    Answer, CELL_BYTES, CELL_STEP, CELLS, DIRECTORIES, FILE_NAMES, How, NAMES, Op, Place,
};

const CLIENTS: usize = 3;
/// Requests of one history, before all is looked at.
const ASKED: usize = 90;
/// Requests that a client has on their way.
const OPEN_MAX: usize = 3;
/// What happens rarely: once in so many events.
const DEATH: u64 = 120;
const ANEW: u64 = 250;
const BROKEN: u64 = 120;
const POOL_BYTES: u64 = 16 << 20;
/// Requests of one life before all is looked at.
const LIFE_MAX: usize = 40;
/// Events without progress after which the harness is broken.
const EVENTS_MAX: usize = 100_000;

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) asked: usize,
    pub(super) repeated: usize,
    pub(super) reordered: usize,
    pub(super) lost: usize,
    pub(super) unanswered: usize,
    pub(super) anew: usize,
    pub(super) deaths: usize,
    pub(super) steps: usize,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.asked += other.asked;
        self.repeated += other.repeated;
        self.reordered += other.reordered;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.anew += other.anew;
        self.deaths += other.deaths;
        self.steps += other.steps;
    }
}

/// A request that its client waits for.
struct Open {
    xid: u32,
    record: Vec<u8>,
    op: Op,
    /// When it was sent in this life, and when it arrived there.
    sent: Option<usize>,
    arrived: Option<usize>,
}

struct Actor {
    client: Client<Direct>,
    port: u16,
    /// How often it began anew.
    boots: u32,
    open: Vec<Open>,
    /// Files that it has seen.
    handles: BTreeSet<usize>,
    requests: Vec<Vec<u8>>,
    replies: Vec<Vec<u8>>,
}

struct Pending {
    commit: DeferredReply,
    of: Option<usize>,
}

pub(super) struct World {
    seed: u64,
    prng: Prng,
    device: Arc<SimDevice>,
    pool: Arc<Pool>,
    actors: Vec<Actor>,
    directories: Vec<Vec<u8>>,
    /// Handles in the order in which they were seen.
    handles: Vec<Vec<u8>>,
    /// Those of directories: nothing is asked by them.
    not_files: BTreeSet<usize>,
    pending: Vec<Pending>,
    now: usize,
    tag: u32,
    lives: Vec<Life>,
    verifiers: Vec<Option<u64>>,
    /// When something was last made durable, and of each file.
    committed: usize,
    committed_of: BTreeMap<usize, usize>,
    counts: Counts,
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("it is small")
}

fn shared(device: &Arc<SimDevice>) -> SharedDevice {
    Arc::<SimDevice>::clone(device)
}

fn name_of(name: u64) -> String {
    format!("n{name}")
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        let device = SimDevice::new(POOL_BYTES, SimOptions::default());
        make_pool(&shared(&device), POOL_BYTES);
        let pool = open_pool(&shared(&device), 1 << 20);
        let service = service_of(&pool, &["/:rw,squash=none"]);
        let actor = |number| {
            let port = 700 + number;
            let client = Client::new(Direct::new(&service, loopback(port)));
            let (requests, replies) = (Vec::new(), Vec::new());
            let (open, handles) = (Vec::new(), BTreeSet::new());
            Actor { client, port, boots: 0, open, handles, requests, replies }
        };
        let mut actors: Vec<Actor> = (0..u16::try_from(CLIENTS).expect("few")).map(actor).collect();
        let first = &mut actors[0].client;
        let root = first.mount("/").expect("it is exported");
        let make = |number| first.mkdir(&root, &format!("d{number}")).expect("it is new");
        let directories = (0..DIRECTORIES).map(make).collect();
        let prng = Prng::from_seed(seed);
        let (handles, pending, lives) = (Vec::new(), Vec::new(), vec![Life::new()]);
        let (committed_of, counts) = (BTreeMap::new(), Counts::default());
        let verifiers = vec![None];
        World {
            seed,
            prng,
            device,
            pool,
            actors,
            directories,
            handles,
            not_files: BTreeSet::new(),
            pending,
            now: 0,
            tag: 0,
            lives,
            verifiers,
            committed: 0,
            committed_of,
            counts,
        }
    }

    /// Lets it all happen, and looks whether it could have been.
    pub(super) fn run(mut self) -> Counts {
        while self.counts.asked < ASKED {
            self.event(true);
        }
        self.settle();
        self.look_at_all();
        self.die();
        self.look_at_all();
        assert!(self.pending.is_empty());
        match linearise(&mut self.lives) {
            Ok(steps) => self.counts.steps += steps,
            Err((why, best)) => {
                for (number, life) in self.lives.iter().enumerate() {
                    println!("life {number}:");
                    life.iter().for_each(|part| println!("  {}", line_of(part)));
                }
                let seed = self.seed;
                panic!(
                    "HOLDFAST_NFS_SEEDS={seed}..{}: no order of this history ({why:?}, as far as \
                     life {}, {} requests)",
                    seed + 1,
                    best.0,
                    best.1
                );
            }
        }
        self.pool.close().expect("nothing fails");
        let report = check::run(shared(&self.device), check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "seed {}: {}", self.seed, report.to_text());
        self.counts
    }

    fn one_of(&mut self, count: usize) -> Option<usize> {
        let count = u64::try_from(count).expect("it is small");
        (count > 0).then(|| index(self.prng.below(count)))
    }

    fn event(&mut self, is_wild: bool) {
        self.now += 1;
        let at = self.one_of(CLIENTS).expect("there are some");
        if is_wild {
            if self.prng.one_in(DEATH) || self.lives.last().map_or(0, Vec::len) > LIFE_MAX {
                return self.die();
            }
            if self.prng.one_in(BROKEN) {
                return self.reconnect(at);
            }
            if self.prng.one_in(ANEW) {
                return self.restart(at);
            }
        }
        match self.prng.below(12) {
            0 | 1 if is_wild => self.ask(at),
            2..=4 => self.deliver(at),
            5 | 6 => self.run_commit(),
            7 | 8 => self.take_reply(at),
            9 => self.repeat(at),
            10 if is_wild => {
                // A copy of a message, or one that is lost.
                let actor = &mut self.actors[at];
                let count = actor.requests.len();
                if let Some(one) = self.one_of(count) {
                    let copy = self.actors[at].requests[one].clone();
                    self.actors[at].requests.push(copy);
                    self.counts.repeated += 1;
                }
            }
            11 if is_wild => {
                if let Some(one) = self.one_of(self.actors[at].requests.len()) {
                    self.actors[at].requests.remove(one);
                    self.counts.lost += 1;
                }
                if let Some(one) = self.one_of(self.actors[at].replies.len()) {
                    self.actors[at].replies.remove(one);
                    self.counts.lost += 1;
                }
            }
            _ => {}
        }
    }

    /// Waits until all is answered.
    fn settle(&mut self) {
        for _ in 0..EVENTS_MAX {
            if self.actors.iter().all(|actor| actor.open.is_empty()) {
                self.pending.drain(..).for_each(|pending| pending.commit.run());
                for actor in &mut self.actors {
                    while actor.client.wire.told().is_some() {}
                    actor.requests.clear();
                    actor.replies.clear();
                }
                return;
            }
            self.event(false);
        }
        panic!("seed {}: a request is never answered", self.seed);
    }

    /// Asks what is everywhere, one after another.
    fn look_at_all(&mut self) {
        let mut ops: Vec<Op> = (0..DIRECTORIES).map(Op::List).collect();
        for handle in (0..self.handles.len()).filter(|it| !self.not_files.contains(it)) {
            ops.push(Op::Attributes(handle));
            ops.extend((0..CELLS).map(|cell| Op::Read(handle, cell)));
        }
        for op in ops {
            // A life is short.
            if self.lives.last().map_or(0, Vec::len) == PARTS_MAX {
                self.die();
            }
            self.send(0, op);
            self.settle();
        }
    }

    fn place(&mut self, names: std::ops::Range<u64>) -> Place {
        let name = names.start + self.prng.below(names.end - names.start);
        (self.prng.below(DIRECTORIES), name)
    }

    fn ask(&mut self, at: usize) {
        if self.actors[at].open.len() == OPEN_MAX {
            return;
        }
        let file = self.place(0..FILE_NAMES);
        let known: Vec<usize> = self.actors[at].handles.iter().copied().collect();
        // Those that were seen last, for the others are mostly gone.
        let recent = known.len().saturating_sub(4);
        let of = self.one_of(known.len() - recent).map(|one| known[recent + one]);
        self.tag += 1;
        let tag = self.tag;
        let op = match (self.prng.below(24), of) {
            (0..=2, _) => Op::Create(file, How::Guarded),
            (3, _) => Op::Create(file, How::Unchecked { truncates: self.prng.one_in(2) }),
            (4, _) => Op::Create(file, How::Exclusive(u64::from(tag) << 32 | u64::from(tag))),
            (5, _) => Op::MakeDirectory(self.place(FILE_NAMES..NAMES)),
            (6, _) => Op::RemoveDirectory(self.place(FILE_NAMES..NAMES)),
            (7..=9, _) => Op::Remove(file),
            (10..=12, _) => Op::Rename(file, self.place(0..FILE_NAMES)),
            (13, Some(of)) => Op::Link(of, file),
            (14, Some(of)) => Op::Attributes(of),
            (15 | 16, Some(of)) => Op::Read(of, self.prng.below(CELLS)),
            (17..=19, Some(of)) => {
                let cell = self.prng.below(CELLS);
                Op::Write { of, cell, tag, is_stable: self.prng.one_in(2) }
            }
            (20, Some(of)) => Op::Truncate(of),
            (21, Some(of)) => Op::Commit(of),
            (22, _) => Op::List(file.0),
            _ => Op::Lookup(file),
        };
        self.counts.asked += 1;
        self.send(at, op);
    }

    fn args(&self, op: &Op) -> (u32, Words) {
        let handle = |of: usize| Words::default().opaque(&self.handles[of]);
        let place = |words: Words, (directory, name): Place| {
            words.opaque(&self.directories[index(directory)]).opaque(name_of(name).as_bytes())
        };
        let new = |at| place(Words::default(), at);
        let at = |cell: u64| cell * CELL_STEP;
        let count = u32::try_from(CELL_BYTES).expect("it is small");
        match *op {
            Op::Create(to, How::Unchecked { truncates }) => {
                (8, new(to).u32(0).set(Some(0o644), truncates.then_some(0)))
            }
            Op::Create(to, How::Guarded) => (8, new(to).u32(1).set(Some(0o644), None)),
            Op::Create(to, How::Exclusive(verifier)) => (8, new(to).u32(2).u64(verifier)),
            Op::MakeDirectory(to) => (9, new(to).set(Some(0o755), None)),
            Op::Remove(of) => (12, new(of)),
            Op::RemoveDirectory(of) => (13, new(of)),
            Op::Rename(from, to) => (14, place(new(from), to)),
            Op::Link(of, to) => (15, place(handle(of), to)),
            Op::Lookup(of) => (3, new(of)),
            Op::List(of) => {
                let words = Words::default().opaque(&self.directories[index(of)]);
                (17, words.u64(0).u64(0).u32(8192).u32(8192))
            }
            Op::Attributes(of) => (1, handle(of)),
            Op::Read(of, cell) => (6, handle(of).u64(at(cell)).u32(count)),
            Op::Write { of, cell, tag, is_stable } => {
                let stable = if is_stable { FILE_SYNC } else { UNSTABLE };
                let words = handle(of).u64(at(cell)).u32(count).u32(stable);
                (7, words.opaque(&tag.to_be_bytes().repeat(index(CELL_BYTES / 4))))
            }
            Op::Truncate(of) => (2, handle(of).set(None, Some(0)).u32(0)),
            Op::Commit(of) => (21, handle(of).u64(0).u32(0)),
        }
    }

    fn send(&mut self, at: usize, op: Op) {
        let (number, args) = self.args(&op);
        let actor = &mut self.actors[at];
        let mut record = actor.client.record(NFS, number, &args);
        // A client that begins anew says so in its credentials, which have the time there.
        record[32..36].copy_from_slice(&actor.boots.to_be_bytes());
        let xid = actor.client.xid;
        actor.requests.push(record.clone());
        actor.open.push(Open { xid, record, op, sent: Some(self.now), arrived: None });
    }

    /// A client asks again what it waits for.
    fn repeat(&mut self, at: usize) {
        let Some(one) = self.one_of(self.actors[at].open.len()) else { return };
        let now = self.now;
        let actor = &mut self.actors[at];
        let open = &mut actor.open[one];
        actor.requests.push(open.record.clone());
        if open.sent.replace(open.sent.unwrap_or(now)).is_some() {
            self.counts.repeated += 1;
        }
    }

    fn deliver(&mut self, at: usize) {
        let Some(one) = self.one_of(self.actors[at].requests.len()) else { return };
        self.counts.reordered += usize::from(one > 0);
        let now = self.now;
        let actor = &mut self.actors[at];
        let record = actor.requests.remove(one);
        let open = actor.open.iter_mut().find(|open| open.record == record);
        let of = open.as_ref().and_then(|open| open.op.handle());
        if let Some(open) = open {
            open.arrived = open.arrived.or(Some(now));
        }
        let (reply, commit) = actor.client.wire.start(&record);
        actor.replies.extend(reply);
        self.pending.extend(commit.map(|commit| Pending { commit, of }));
    }

    fn run_commit(&mut self) {
        let Some(one) = self.one_of(self.pending.len()) else { return };
        let Pending { commit, of } = self.pending.swap_remove(one);
        commit.run();
        self.committed = self.now;
        if let Some(of) = of {
            self.committed_of.insert(of, self.now);
        }
        for actor in &mut self.actors {
            while let Some(reply) = actor.client.wire.told() {
                actor.replies.push(reply);
            }
        }
    }

    fn take_reply(&mut self, at: usize) {
        let Some(one) = self.one_of(self.actors[at].replies.len()) else { return };
        self.counts.reordered += usize::from(one > 0);
        let reply = self.actors[at].replies.remove(one);
        let xid = u32::from_be_bytes(reply[..4].try_into().expect("4 bytes"));
        let open = &mut self.actors[at].open;
        // Who has his answer already takes no other.
        let Some(found) = open.iter().position(|open| open.xid == xid) else { return };
        let open = open.remove(found);
        let answer = self.read(at, &open.op, client::open(xid, reply).expect("it is a result"));
        // What a server says is durable must be, also where it was not asked to make it so.
        let (op, answer) = match (open.op, answer) {
            (Op::Write { of, cell, tag, .. }, Answer::Written { is_stable }) => {
                (Op::Write { of, cell, tag, is_stable }, Answer::Done)
            }
            asked_and_told => asked_and_told,
        };
        let answer = Some(answer);
        // LH1.
        let from = open.arrived.expect("it arrived, as it is answered");
        let (hint, until) = (from, self.now);
        self.end_of_part(Part { client: at, op, from, until, answer, hint, seems_kept: true });
    }

    fn end_of_part(&mut self, part: Part) {
        self.lives.last_mut().expect("there is one").push(part);
    }

    fn known(&mut self, at: usize, handle: Vec<u8>) -> usize {
        let found = self.handles.iter().position(|other| *other == handle);
        let number = found.unwrap_or_else(|| {
            self.handles.push(handle);
            self.handles.len() - 1
        });
        self.actors[at].handles.insert(number);
        number
    }

    fn read(&mut self, at: usize, op: &Op, mut reply: Reply) -> Answer<usize> {
        let status = reply.u32();
        if status != 0 {
            return Answer::Failed(status);
        }
        match op {
            Op::Create(..) => {
                let handle = reply.made().0;
                Answer::File(self.known(at, handle))
            }
            Op::MakeDirectory(_) => {
                let handle = reply.made().0;
                Answer::File(self.directory(at, handle))
            }
            Op::Lookup(place) => {
                let handle = reply.opaque();
                let is_file = place.1 < FILE_NAMES;
                Answer::File(if is_file {
                    self.known(at, handle)
                } else {
                    self.directory(at, handle)
                })
            }
            Op::List(_) => {
                reply.some_attr();
                reply.u64();
                let mut names = Vec::new();
                while reply.u32() == 1 {
                    reply.u64();
                    let name = reply.opaque();
                    reply.u64();
                    reply.some_attr();
                    let handle = (reply.u32() == 1).then(|| reply.opaque());
                    let Some(name) = name.strip_prefix(b"n") else { continue };
                    let name = u64::from(name[0] - b'0');
                    let handle = handle.expect("it comes with its handle");
                    let is_file = name < FILE_NAMES;
                    let file =
                        if is_file { self.known(at, handle) } else { self.directory(at, handle) };
                    names.push((name, file));
                }
                names.sort_unstable();
                Answer::Names(names)
            }
            Op::Attributes(_) => {
                let attr = reply.attr();
                Answer::Attributes(attr.nlink, attr.size)
            }
            Op::Read(..) => {
                reply.some_attr();
                let _ = (reply.u32(), reply.u32());
                let bytes = reply.opaque();
                let tags: BTreeSet<&[u8]> = bytes.chunks(4).collect();
                assert!(tags.len() <= 1, "seed {}: a part of a write is there", self.seed);
                Answer::Content(tags.first().map(|tag| {
                    u32::from_be_bytes((*tag).try_into().expect("writes are of whole words"))
                }))
            }
            Op::Write { is_stable, .. } => {
                reply.wcc();
                let (count, committed) = (reply.u32(), reply.u32());
                assert_eq!(u64::from(count), CELL_BYTES, "seed {}: bytes written", self.seed);
                let asked = if *is_stable { FILE_SYNC } else { UNSTABLE };
                let levels = asked..=FILE_SYNC;
                assert!(levels.contains(&committed), "seed {}: {committed}", self.seed);
                self.check_verifier(reply.u64());
                Answer::Written { is_stable: committed > UNSTABLE }
            }
            Op::Commit(_) => {
                reply.wcc();
                self.check_verifier(reply.u64());
                Answer::Done
            }
            Op::RemoveDirectory(_)
            | Op::Remove(_)
            | Op::Rename(..)
            | Op::Link(..)
            | Op::Truncate(_) => Answer::Done,
        }
    }

    fn directory(&mut self, at: usize, handle: Vec<u8>) -> usize {
        let number = self.known(at, handle);
        self.actors[at].handles.remove(&number);
        self.not_files.insert(number);
        number
    }

    /// A life has one verifier, and no other life has it.
    fn check_verifier(&mut self, verifier: u64) {
        let (own, others) = self.verifiers.split_last_mut().expect("there is a life");
        assert_eq!(*own.get_or_insert(verifier), verifier, "seed {}", self.seed);
        assert!(!others.contains(&Some(verifier)), "seed {}: it died unseen", self.seed);
    }

    /// What a client waits for may have been done in this life, or may be yet.
    fn leave_open(&mut self, at: usize, until: usize) {
        let mut left = Vec::new();
        for open in &mut self.actors[at].open {
            open.sent = None;
            let Some(from) = open.arrived.take() else { continue };
            let hint = from;
            if open.op.leaves_a_trace() {
                let (op, seems_kept) = (open.op, false);
                left.push(Part { client: at, op, from, until, answer: None, hint, seems_kept });
            }
        }
        self.counts.unanswered += left.len();
        left.into_iter().for_each(|part| self.end_of_part(part));
    }

    /// The connection breaks. A client comes back from the same port.
    fn reconnect(&mut self, at: usize) {
        let actor = &mut self.actors[at];
        self.counts.lost += actor.requests.len() + actor.replies.len();
        actor.requests.clear();
        actor.replies.clear();
        let service = Arc::clone(actor.client.wire.service());
        actor.client.wire = Direct::new(&service, loopback(actor.port));
    }

    /// A client begins anew: with the numbers that it had, and knows nothing.
    fn restart(&mut self, at: usize) {
        self.counts.anew += 1;
        self.leave_open(at, usize::MAX);
        self.reconnect(at);
        let actor = &mut self.actors[at];
        actor.boots += 1;
        actor.client.xid = 1;
        actor.open.clear();
        actor.handles.clear();
    }

    /// The server dies, and another takes over.
    fn die(&mut self) {
        self.now += 1;
        self.counts.deaths += 1;
        // Some answers were on their way.
        for at in 0..CLIENTS {
            for _ in 0..self.actors[at].replies.len() {
                if self.prng.one_in(2) {
                    self.take_reply(at);
                }
            }
            self.leave_open(at, self.now);
        }
        let committed_of = std::mem::take(&mut self.committed_of);
        for part in self.lives.last_mut().expect("there is one") {
            let of = part.op.handle().and_then(|of| committed_of.get(&of).copied());
            let committed = if part.op.is_durable() { self.committed } else { of.unwrap_or(0) };
            part.seems_kept = committed > part.hint;
        }
        self.lives.push(Life::new());
        self.verifiers.push(None);
        self.pending.clear();
        let lives = u64::try_from(self.lives.len()).expect("few");
        // What was not flushed is there or not.
        let image = self.device.crash_image(&mut self.prng);
        self.device = SimDevice::open(image, SimOptions::default());
        self.pool = open_pool(&shared(&self.device), lives << 20);
        let service = service_of(&self.pool, &["/:rw,squash=none"]);
        for at in 0..CLIENTS {
            self.reconnect(at);
            self.actors[at].client.wire = Direct::new(&service, loopback(self.actors[at].port));
        }
    }
}

fn line_of(part: &Part) -> String {
    let Part { client, op, from, until, answer, hint, .. } = part;
    let until = if *until == usize::MAX { "end".to_owned() } else { until.to_string() };
    format!("{from:5} .. {until:5} (arrived {hint:5}) client {client}: {op:?} -> {answer:?}")
}

/// Goal: what was not answered is in the history if others may see that it was done: a read, too,
/// for it changes a time. Method: requests that arrived, and one that did not.
#[test]
fn what_was_not_answered_is_in_the_history() {
    let mut world = World::new(1);
    let open = |op, arrived| Open { xid: 9, record: Vec::new(), op, sent: Some(1), arrived };
    let (read, look) = (Op::Read(7, 0), Op::Lookup((0, 0)));
    let all = [(read, Some(2)), (look, Some(3)), (Op::Truncate(7), Some(4)), (read, None)];
    world.actors[0].open.extend(all.map(|(op, arrived)| open(op, arrived)));
    world.leave_open(0, 5);
    let life = world.lives.last().expect("there is one");
    let left: Vec<_> = life.iter().map(|part| (part.op, part.from, part.until)).collect();
    assert_eq!(left, [(read, 2, 5), (Op::Truncate(7), 4, 5)]);
}
