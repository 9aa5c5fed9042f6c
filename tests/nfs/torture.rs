//! Clients whose requests come twice, late, or to a server that has died since: nothing is done
//! twice, and nothing that was answered is lost.
//!
//! Each client has a directory of its own and knows what must be in it. Chance, from a seed, says
//! what it asks, which requests come again and when, and where the server dies: before what was
//! asked is durable, or after. What the server of a new life answers to a request of the one before
//! may tell that it was done.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::Pool;
use runtime::prng::Prng;
use storage::device::SharedDevice;

use super::client::{self, Answer, Client, Direct, FILE_SYNC, NFS, Trouble, UNSTABLE, Words};
use super::{loopback, new_device, open_pool, service_of};

const SEEDS: u64 = 12;
const STEPS: usize = 400;
const CLIENTS: u16 = 3;
const NAMES: u64 = 6;
/// A server dies at one request of so many.
const DEATH: u64 = 40;
/// Requests that are kept to come again.
const LATE_MAX: usize = 20;

const EXISTS: Trouble = Trouble::Status(17);
const NOT_FOUND: Trouble = Trouble::Status(2);

/// A file as its client knows it.
#[derive(Clone, Debug, Default)]
struct File {
    handle: Vec<u8>,
    content: Vec<u8>,
    /// Whether some of that may be lost with the server.
    is_unstable: bool,
}

struct Actor {
    client: Client<Direct>,
    port: u16,
    root: Vec<u8>,
    files: BTreeMap<String, File>,
    /// Requests of this life that were answered, and how: they may come again.
    late: Vec<(Vec<u8>, Vec<u8>)>,
}

struct World {
    device: SharedDevice,
    pool: Arc<Pool>,
    prng: Prng,
    lives: u64,
    repeated: usize,
    deaths: usize,
}

impl World {
    fn chance(&mut self, of: u64) -> bool {
        self.prng.one_in(of)
    }

    fn name(&mut self) -> String {
        format!("f{}", self.prng.below(NAMES))
    }

    /// The server dies as it is, and another takes over.
    fn die(&mut self, actors: &mut [Actor]) {
        (self.lives, self.deaths) = (self.lives + 1, self.deaths + 1);
        self.pool = open_pool(&self.device, self.lives << 20);
        let service = service_of(&self.pool, &["/:rw,squash=none"]);
        for actor in actors {
            actor.client.wire = Direct::new(&service, loopback(actor.port));
            actor.late.clear();
        }
    }

    /// Asks until there is an answer. Returns it, and whether the server has died in between.
    fn ask(
        &mut self,
        actors: &mut [Actor],
        at: usize,
        number: u32,
        args: &Words,
    ) -> (Result<Answer, Trouble>, bool) {
        let record = actors[at].client.record(NFS, number, args);
        let mut has_died = false;
        loop {
            let (reply, commit) = actors[at].client.wire.start(&record);
            if commit.is_some() && is_change(number) && self.chance(3) {
                let (again, second) = actors[at].client.wire.start(&record);
                assert!(again.is_none() && second.is_none(), "it is being done");
                self.repeated += 1;
            }
            let dies_before = self.chance(DEATH);
            if let Some(commit) = commit.filter(|_| !dies_before) {
                commit.run();
            }
            let reply = reply.or_else(|| actors[at].client.wire.told());
            if dies_before || self.chance(DEATH) {
                // The answer is lost with the server, if there was one.
                self.die(actors);
                has_died = true;
                continue;
            }
            let reply = reply.expect("there is an answer");
            let actor = &mut actors[at];
            if actor.late.len() == LATE_MAX {
                actor.late.remove(0);
            }
            if is_change(number) {
                actor.late.push((record.clone(), reply.clone()));
            }
            let opened =
                client::open(actor.client.xid, reply).and_then(|mut answer| match answer.u32() {
                    0 => Ok(answer),
                    status => Err(Trouble::Status(status)),
                });
            return (opened, has_died);
        }
    }

    /// A request of this life comes again: it is answered as it was, and nothing is done.
    fn repeat(&mut self, actor: &mut Actor) {
        if actor.late.is_empty() {
            return;
        }
        let at = self.prng.below(u64::try_from(actor.late.len()).expect("it is short"));
        let (record, answered) = &actor.late[usize::try_from(at).expect("it is short")];
        let (reply, commit) = actor.client.wire.start(record);
        assert!(commit.is_none(), "it was done");
        assert_eq!(reply.as_ref(), Some(answered));
        self.repeated += 1;
    }

    fn step(&mut self, actors: &mut [Actor], at: usize) {
        let name = self.name();
        let root = actors[at].root.clone();
        let place = Words::default().opaque(&root).opaque(name.as_bytes());
        let is_there = actors[at].files.contains_key(&name);
        match self.prng.below(6) {
            0 | 1 => {
                let args = place.clone().u32(1).set(Some(0o644), None);
                let (made, has_died) = self.ask(actors, at, 8, &args);
                match made {
                    Ok(mut made) => {
                        assert!(!is_there, "{name} was made twice");
                        let file = File { handle: made.made().0, ..File::default() };
                        actors[at].files.insert(name, file);
                    }
                    Err(EXISTS) if has_died && !is_there => {
                        let mut found = self.ask(actors, at, 3, &place).0.expect("it is there");
                        let file = File { handle: found.opaque(), ..File::default() };
                        actors[at].files.insert(name, file);
                    }
                    Err(error) => assert!(is_there && error == EXISTS, "{name}: {error:?}"),
                }
            }
            2 => {
                let (removed, has_died) = self.ask(actors, at, 12, &place);
                match removed.err() {
                    None => assert!(is_there, "{name} was removed twice"),
                    Some(error) => {
                        assert!(error == NOT_FOUND && (has_died || !is_there), "{error:?}");
                    }
                }
                actors[at].files.remove(&name);
            }
            3 => {
                let to = self.name();
                let args = place.opaque(&root).opaque(to.as_bytes());
                let (moved, has_died) = self.ask(actors, at, 14, &args);
                match moved.err() {
                    None => assert!(is_there, "{name} was moved twice"),
                    Some(error) => {
                        assert!(error == NOT_FOUND && (has_died || !is_there), "{error:?}");
                    }
                }
                if let Some(file) = actors[at].files.remove(&name) {
                    actors[at].files.insert(to, file);
                }
            }
            4 => self.write(actors, at, &name),
            _ => self.commit(actors, at, &name),
        }
    }

    fn write(&mut self, actors: &mut [Actor], at: usize, name: &str) {
        let Some(mut file) = actors[at].files.get(name).cloned() else { return };
        let byte = u8::try_from(self.prng.below(250)).expect("it is small") + 1;
        let offset = usize::try_from(self.prng.below(20_000)).expect("it is small");
        let length = usize::try_from(self.prng.below(9000)).expect("it is small") + 1;
        let end = offset + length;
        file.content.resize(file.content.len().max(end), 0);
        file.content[offset..end].fill(byte);
        let stable = if self.chance(2) { UNSTABLE } else { FILE_SYNC };
        // What was not committed comes with it: as a client does that sees another verifier.
        let bytes = if file.is_unstable { file.content.clone() } else { vec![byte; length] };
        let offset = if file.is_unstable { 0 } else { offset };
        let count = u32::try_from(bytes.len()).expect("it is short");
        let args = Words::default().opaque(&file.handle);
        let args = args.u64(u64::try_from(offset).expect("it is small")).u32(count).u32(stable);
        let mut answer = self.ask(actors, at, 7, &args.opaque(&bytes)).0.expect("there is room");
        answer.wcc();
        assert_eq!(answer.u32(), count);
        assert_eq!(answer.u32(), stable);
        file.is_unstable = stable == UNSTABLE;
        actors[at].files.insert(name.to_owned(), file);
    }

    fn commit(&mut self, actors: &mut [Actor], at: usize, name: &str) {
        let Some(file) = actors[at].files.get(name).cloned() else { return };
        if file.is_unstable {
            // All that may be lost is written again, durably.
            let count = u32::try_from(file.content.len()).expect("it is short");
            let args = Words::default().opaque(&file.handle).u64(0).u32(count).u32(UNSTABLE);
            let args = args.opaque(&file.content);
            let mut answer = self.ask(actors, at, 7, &args).0.expect("there is room");
            answer.wcc();
            let _ = (answer.u32(), answer.u32());
            let before = answer.u64();
            let args = Words::default().opaque(&file.handle).u64(0).u32(0);
            let mut answer = self.ask(actors, at, 21, &args).0.expect("it is there");
            answer.wcc();
            let is_durable = answer.u64() == before;
            actors[at].files.get_mut(name).expect("it is there").is_unstable = !is_durable;
        }
    }
}

fn is_change(number: u32) -> bool {
    (7..=15).contains(&number)
}

/// What is in each directory is what its client knows.
fn verify(actors: &mut [Actor], seed: u64) {
    for actor in actors {
        let mut names: Vec<String> = actor
            .client
            .list(&actor.root, 8192)
            .expect("it is one")
            .into_iter()
            .map(|n| n.0)
            .collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        let known: Vec<String> = actor.files.keys().cloned().collect();
        assert_eq!(names, known, "seed {seed}");
        for (name, file) in &actor.files {
            if file.is_unstable {
                continue;
            }
            let (bytes, _) = actor.client.read(&file.handle, 0, 1 << 20).expect("it is there");
            assert!(bytes == file.content, "seed {seed}: {name} is not what was written");
        }
    }
}

/// Goal: see the module. `HOLDFAST_SEED` is the seed to do again.
#[test]
fn nothing_is_done_twice_and_nothing_that_was_answered_is_lost() {
    let again = std::env::var("HOLDFAST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = again.map_or(1..=SEEDS, |seed| seed..=seed);
    let (mut repeated, mut deaths) = (0, 0);
    for seed in seeds {
        let device = new_device();
        let pool = open_pool(&device, 1 << 20);
        let service = service_of(&pool, &["/:rw,squash=none"]);
        let mut actors: Vec<Actor> = (0..CLIENTS)
            .map(|number| {
                let port = 700 + number;
                let mut client = Client::new(Direct::new(&service, loopback(port)));
                let top = client.mount("/").expect("it is exported");
                let root = client.mkdir(&top, &format!("d{number}")).expect("it is new");
                let (files, late) = (BTreeMap::new(), Vec::new());
                Actor { client, port, root, files, late }
            })
            .collect();
        let prng = Prng::from_seed(seed);
        let mut world = World { device, pool, prng, lives: 1, repeated: 0, deaths: 0 };
        for _ in 0..STEPS {
            let at = usize::try_from(world.prng.below(u64::from(CLIENTS))).expect("it is small");
            if world.chance(4) {
                world.repeat(&mut actors[at]);
            }
            world.step(&mut actors, at);
        }
        verify(&mut actors, seed);
        world.die(&mut actors);
        verify(&mut actors, seed);
        world.pool.close().expect("nothing fails");
        let report = check::run(world.device, check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "seed {seed}: {}", report.to_text());
        (repeated, deaths) = (repeated + world.repeated, deaths + world.deaths);
    }
    println!("{repeated} requests came again, the server died {deaths} times");
    assert!(again.is_some() || (repeated > 500 && deaths > 100), "too little happened");
}
