//! Parity agrees with data while a rebuild runs beside writes to the same rows, whatever member
//! fails, is replaced or comes back, and whatever lands late.
//!
//! Who computes parity from what: a write of data has whole rows, so its parity is the sum of what
//! it writes, and both go to every member that is written to, the joining one too. A rebuild sums
//! what the others have, under a hold of the piece; so each write before is on all of them, and
//! each one behind goes to the joining member as well. A member that is away has the part in its
//! map before the write is answered. So every row sums to nothing whenever no write is at it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use engine::api::{Caller, FileSystem};
use format::ids::Place;
use format::members::MemberState;
use format::stripes::Stripes;
use runtime::prng::Prng;
use runtime::sync::Mutex;
use runtime::sync::sim::{Scheduler, current, sleep_until};
use storage::device::sim::{Fault, FaultPlan, Image};
use storage::device::{
    AlignedBuffer, Device, DeviceError, IoPurpose, Redundancy, RequestKind, SharedBytes, Ticket,
};
use storage::volume::{RebuildRequest, Volume, VolumeDevices};

use super::raid5::{MEMBER_BYTES, all_but, content, new_raid5};
use super::raid5_crash::setting;
use super::rebuild::{begin, finish, open, states};
use super::reshape::device;
use super::{Devices, devices_of, first_copy, get, put, reopened, shared};

const MEMBERS: usize = 4;
/// Segments that are written to.
const SEGMENTS: u32 = 3;
const WRITERS: u64 = 2;
const WRITES: usize = 40;
/// How often a member goes, and another takes its place or it comes back.
const LOSSES: usize = 4;
const MS_NS: u64 = 1_000_000;
/// Seeds, times `HOLDFAST_SOAK`.
const SEEDS: u64 = 60;
/// In 1804 an answer of before a member went came when it was back, and failed it again.
const SEEDS_KEPT: [u64; 1] = [1804];
/// What a seed may take at most until a member is whole again.
const STEPS_MAX: usize = 10_000;

fn seeds() -> Range<u64> {
    0..SEEDS * setting("HOLDFAST_SOAK").unwrap_or(1)
}

fn below(prng: &mut Prng, end: usize) -> usize {
    usize::try_from(prng.below(u64::try_from(end).expect("few"))).expect("few")
}

fn now_ns() -> u64 {
    current().expect("within a run").now_ns()
}

/// What is done with a member that went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    replaced: u64,
    returned: u64,
    pieces: u64,
    writes: u64,
}

/// A volume in stripes under test, and what was written to its rows.
struct Rows {
    /// The members by their slots, and those that take places.
    devices: Mutex<(Devices, Devices)>,
    volume: Volume,
    stripes: Stripes,
    segments: Vec<(Place, Range<u64>)>,
    /// Contents of rows, by where they begin in the pool.
    written: Mutex<BTreeMap<u64, Vec<u8>>>,
    counts: Mutex<Counts>,
    seed: u64,
}

impl Rows {
    fn new(base: &Devices, seed: u64) -> Rows {
        let images: Vec<Image> = base.iter().map(|device| device.image()).collect();
        let all = devices_of([images, vec![Image::blank(MEMBER_BYTES); LOSSES]].concat());
        let (members, spares) = (all[..MEMBERS].to_vec(), all[MEMBERS..].to_vec());
        let opening = VolumeDevices { devices: shared(&members), accepts_missing: false };
        let (volume, superblock) = Volume::open_members(opening).expect("all are there");
        let geometry = &superblock.geometry;
        let last = geometry.segments_of(0);
        let segment = |number: u32| {
            let place = geometry.segment_place(0, number);
            let start = geometry.device_offset(place, 1).expect("it is there");
            (place, start..start + geometry.segment_bytes())
        };
        Rows {
            devices: Mutex::new((members, spares)),
            stripes: geometry.stripes().expect("it has stripes"),
            segments: (last - SEGMENTS..last).map(segment).collect(),
            volume,
            written: Mutex::default(),
            counts: Mutex::default(),
            seed,
        }
    }

    /// Holds a segment as soon as nothing is at it, and asserts that each of its rows sums to
    /// nothing on the devices themselves.
    fn assert_sums(&self, bytes: &Range<u64>, what: &str) {
        let members = self.volume.members().expect("there are several");
        let hold = (0..STEPS_MAX).find_map(|_| {
            let hold = members.try_hold(bytes.clone());
            if hold.is_none() {
                sleep_until(now_ns() + MS_NS / 8);
            }
            hold
        });
        let Some(_hold) = hold else { panic!("seed {}: {what}: it is never free", self.seed) };
        let devices = self.devices.lock().0.clone();
        let view = members.view();
        if view.iter().any(|slot| slot.writable().is_none()) {
            return;
        }
        let rows = self.stripes.rows_of(bytes);
        for row in rows {
            let length = usize::try_from(self.stripes.shape.unit_bytes()).expect("small");
            let mut sum = vec![0; length];
            for device in &devices {
                let offset = self.stripes.row_offset(row);
                let unit = device.read(IoPurpose::Data, offset, length).expect("it can be read");
                sum.iter_mut().zip(unit.iter()).for_each(|(sum, byte)| *sum ^= byte);
            }
            let is_zero = sum.iter().all(|byte| *byte == 0);
            let states: Vec<MemberState> = view.iter().map(|slot| slot.state).collect();
            assert!(is_zero, "seed {}: {what}: row {row} does not agree, {states:?}", self.seed);
        }
    }

    /// Writes runs of the rows that are of this writer alone, and waits for some of them.
    fn write(&self, writer: u64) {
        let mut prng = Prng::from_seed(self.seed * 31 + writer);
        let mut in_flight: Vec<(Range<u64>, Ticket)> = Vec::new();
        for _ in 0..WRITES {
            let (place, bytes) = &self.segments[below(&mut prng, self.segments.len())];
            let rows = self.stripes.rows_of(bytes);
            let share = (rows.end - rows.start) / WRITERS;
            let ahead = prng.below(share);
            let first = rows.start + writer * share + ahead;
            let end = first + 1 + prng.below(share - ahead);
            let range = self.stripes.row_start(first)..self.stripes.row_start(end);
            // A place is written again when the write before has ended.
            let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
            let (before, others) = in_flight.into_iter().partition(|(it, _)| overlaps(it));
            in_flight = others;
            let before: Vec<(Range<u64>, Ticket)> = before;
            before.into_iter().for_each(|(_, ticket)| drop(ticket.wait().expect("one may fail")));
            let length = usize::try_from(range.end - range.start).expect("small");
            let salt = u8::try_from(prng.below(251)).expect("small");
            let bytes_new: Vec<u8> = content(salt, length);
            let pieces = vec![SharedBytes::from(AlignedBuffer::copy_of(&bytes_new))];
            let page = u32::try_from((range.start - bytes.start) / 4096).expect("small");
            let at = place.advance(page * self.volume.geometry().page_fragments());
            in_flight.push((range.clone(), self.volume.submit_write(IoPurpose::Data, at, pieces)));
            let mut from = 0;
            for row in first..end {
                let row_bytes = usize::try_from(self.stripes.row_bytes(row)).expect("small");
                let own = bytes_new[from..from + row_bytes].to_vec();
                self.written.lock().insert(self.stripes.row_start(row), own);
                from += row_bytes;
            }
            self.counts.lock().writes += 1;
            if prng.below(3) == 0 {
                let collected = in_flight.swap_remove(below(&mut prng, in_flight.len()));
                collected.1.wait().expect("one may fail");
            }
            sleep_until(now_ns() + prng.below(3 * MS_NS));
        }
        in_flight.into_iter().for_each(|(_, ticket)| drop(ticket.wait().expect("one may fail")));
    }

    /// Lets writes of each member be late, now and then.
    fn make_late(&self, prng: &mut Prng) {
        for device in self.devices.lock().0.iter() {
            let late = |_| Fault::Delay {
                kind: RequestKind::Write,
                nth: prng.below(30),
                delay_ns: 1 + prng.below(4 * MS_NS),
            };
            device.arm(FaultPlan { faults: (0..6).map(late).collect() });
        }
    }

    /// Lets a member go, and another take its place or itself come back, again and again.
    fn lose(&self) {
        let mut prng = Prng::from_seed(self.seed * 31 + 17);
        for _ in 0..LOSSES {
            self.make_late(&mut prng);
            sleep_until(now_ns() + prng.below(8 * MS_NS));
            let slot = below(&mut prng, MEMBERS);
            self.fail(slot, prng.below(2) == 0);
            sleep_until(now_ns() + prng.below(8 * MS_NS));
            let (mut members, mut spares) = {
                let devices = self.devices.lock();
                (devices.0.clone(), devices.1.clone())
            };
            members[slot].arm(FaultPlan::default());
            if prng.below(2) == 0 {
                let new = spares.pop().expect("there is one for each");
                let id = [u8::try_from(200 + spares.len()).expect("small"); 16];
                let taken = self.volume.membership().begin_replace(
                    slot,
                    device(std::slice::from_ref(&new), 0),
                    id,
                );
                taken.expect("the others have all");
                members[slot] = new;
                *self.devices.lock() = (members, spares);
                self.counts.lock().replaced += 1;
            } else {
                self.volume
                    .membership()
                    .begin_return_of(slot)
                    .expect("nothing of it is on its way");
                self.counts.lock().returned += 1;
            }
            self.make_whole(slot);
        }
    }

    /// Fails a member: by the command, or by a write that it does not take.
    fn fail(&self, slot: usize, by_command: bool) {
        let members = self.volume.members().expect("there are several");
        let stay = &members.view()[slot];
        if !by_command {
            let fault = Fault::Fail { kind: RequestKind::Write, nth: 0, persists: true };
            self.devices.lock().0[slot].arm(FaultPlan { faults: vec![fault] });
            sleep_until(now_ns() + 4 * MS_NS);
        }
        // A write may have failed it.
        let error = DeviceError::Failed { device: format!("d{slot}") };
        members.fail(slot, stay, error).expect("the others have all");
    }

    /// Makes the joining member whole, piece by piece.
    fn make_whole(&self, slot: usize) {
        let volume = &self.volume;
        let stay = volume.membership().stay_in(slot).expect("it is there");
        for (_, bytes) in &self.segments {
            if volume.membership().must_rebuild(slot, bytes) {
                let made = (0..STEPS_MAX).any(|_| {
                    let (kept, keeps) = (Redundancy::Parity, BTreeSet::new());
                    let wanted = RebuildRequest { piece: bytes.clone(), kept, keeps };
                    let made = volume.membership().rebuild_pieces(
                        slot,
                        &[wanted],
                        &first_copy(),
                        |_, _| {},
                    );
                    let is_made = made.expect("the others give all") == 1;
                    if !is_made {
                        sleep_until(now_ns() + MS_NS / 8);
                    }
                    is_made
                });
                assert!(made, "seed {}: a piece is never free", self.seed);
                self.counts.lock().pieces += 1;
            }
            self.assert_sums(bytes, "while it joins");
        }
        volume.membership().end_join(slot, &stay).expect("nothing fails");
        self.segments.iter().for_each(|(_, bytes)| self.assert_sums(bytes, "when it is online"));
    }

    /// Asserts that the data is what was written last.
    fn assert_data(&self) {
        let read = |start: u64, length: usize| {
            let (place, bytes) =
                self.segments.iter().find(|it| it.1.contains(&start)).expect("it is in one");
            let page = u32::try_from((start - bytes.start) / 4096).expect("small");
            let at = place.advance(page * self.volume.geometry().page_fragments());
            self.volume.read(IoPurpose::Data, at, length).expect("it can be read")
        };
        for (start, bytes) in self.written.lock().iter() {
            let is_it = read(*start, bytes.len())[..] == bytes[..];
            assert!(is_it, "seed {}: the row at {start} is another", self.seed);
        }
    }
}

/// Goal: at each step of a rebuild, and when it is over, each row sums to nothing on the devices,
/// while writers write to the same rows and do not collect all answers, writes are late, and
/// members fail by command or by a write, are replaced or come back.
#[test]
fn rows_agree_beside_a_rebuild_and_writers() {
    let base = new_raid5(MEMBERS);
    let mut all = Counts::default();
    for seed in seeds().chain(SEEDS_KEPT) {
        let rows = Rows::new(&base, seed);
        // What lies in free segments is of nobody, and is made to agree once.
        rows.segments.iter().for_each(|(place, bytes)| {
            let length = usize::try_from(bytes.end - bytes.start).expect("small");
            let pieces = vec![SharedBytes::from(AlignedBuffer::zeroed(length))];
            let written = rows.volume.submit_write(IoPurpose::Data, *place, pieces).wait();
            written.expect("nothing fails");
        });
        let scheduler = Scheduler::new(seed);
        let rows = &rows;
        let mut jobs: Vec<(String, Box<dyn FnOnce() + Send + '_>)> =
            vec![("members".to_owned(), Box::new(move || rows.lose()))];
        for writer in 0..WRITERS {
            jobs.push((format!("writer {writer}"), Box::new(move || rows.write(writer))));
        }
        scheduler.run(jobs);
        rows.assert_data();
        let counts = *rows.counts.lock();
        all.replaced += counts.replaced;
        all.returned += counts.returned;
        all.pieces += counts.pieces;
        all.writes += counts.writes;
    }
    println!("{all:?}");
    assert!(all.replaced > 20 && all.returned > 20 && all.pieces > 100, "{all:?}");
}

/// Goal: what files hold is there without any one member after a rebuild under load, so the parity
/// of all that is in use is right; a scrub at rest writes none again. Method: files are written and
/// removed, and not all are synced; a member fails, another takes its place or it comes back,
/// writes are late, and the job works between the operations.
#[test]
fn a_scrub_behind_a_rebuild_under_load_writes_no_parity() {
    let base = new_raid5(MEMBERS);
    for seed in seeds() {
        let what = format!("seed {seed}");
        let images: Vec<Image> = base.iter().map(|device| device.image()).collect();
        let devices = devices_of([images, vec![Image::blank(MEMBER_BYTES)]].concat());
        let mut prng = Prng::from_seed(seed);
        let pool = open(&devices[..MEMBERS].to_vec()).expect("all are there");
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut members = devices[..MEMBERS].to_vec();
        let slot = below(&mut prng, MEMBERS);
        for step in 0..120 {
            if step == 30 {
                pool.devices().fail_member(slot).expect("the others have all");
            }
            if step == 60 && seed % 2 == 0 {
                begin(&pool, slot, &devices[MEMBERS]);
                members[slot] = devices[MEMBERS].clone();
            } else if step == 60 {
                pool.devices().return_member_in(slot).expect("nothing of it is on its way");
            }
            if step % 20 == 0 {
                let faults = (0..4).map(|_| Fault::Delay {
                    kind: RequestKind::Write,
                    nth: prng.below(40),
                    delay_ns: 1 + prng.below(20 * MS_NS),
                });
                let faults = faults.collect();
                members[(slot + 1) % MEMBERS].arm(FaultPlan { faults });
            }
            work(&pool, &mut prng, &mut files);
            if prng.below(3) == 0 {
                pool.tick().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
            if prng.below(20) == 0 {
                pool.checkpoint().unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        finish(&pool);
        assert_eq!(states(&pool), [MemberState::Online; MEMBERS], "{what}");
        // Segments that were free, and were passed over, are filled in part.
        (0..12).for_each(|_| work(&pool, &mut prng, &mut files));
        pool.sync().expect("nothing fails");
        assert!(pool.devices().scrub().expect("there are several"), "{what}");
        let report = (0..1000).find_map(|_| {
            pool.tick().expect("nothing fails");
            pool.devices().scrub_report().filter(|report| report.is_done)
        });
        let report = report.unwrap_or_else(|| panic!("{what}: the scrub does not end"));
        assert_eq!(
            (report.parities, report.repaired, report.lost),
            (0, 0, 0),
            "{what}: {report:?}"
        );
        pool.close().expect("nothing fails");
        drop(pool);
        for lost in 0..MEMBERS {
            let left = reopened(&members, &all_but(MEMBERS, lost));
            let pool = open(&left).unwrap_or_else(|error| panic!("{what}: {error}"));
            for (name, content) in &files {
                let is_it = get(&pool, name).as_ref() == Some(content);
                assert!(is_it, "{what}, without {lost}: {name} is another");
            }
        }
    }
}

/// One operation on files: a new one or a part of one that is there, synced or not, or a removal.
fn work(pool: &engine::Pool, prng: &mut Prng, files: &mut BTreeMap<String, Vec<u8>>) {
    let caller = Caller::root();
    let name = format!("f{}", prng.below(24));
    let salt = u8::try_from(prng.below(251)).expect("small");
    let fill = content(salt, 1000 + below(prng, 120_000));
    let is_there = files.contains_key(&name);
    match prng.below(6) {
        0 if is_there => {
            let ino = pool.lookup(&caller, pool.root(), name.as_bytes()).expect("it is there").ino;
            pool.unlink(&caller, pool.root(), name.as_bytes(), None).expect("it is there");
            pool.forget(ino, 2);
            files.remove(&name);
        }
        1..=3 if is_there => {
            let ino = pool.lookup(&caller, pool.root(), name.as_bytes()).expect("it is there").ino;
            let at = below(prng, 60_000);
            let own = files.get_mut(&name).expect("it is there");
            own.resize(own.len().max(at + fill.len()), 0);
            own[at..at + fill.len()].copy_from_slice(&fill);
            pool.write(&caller, ino, u64::try_from(at).expect("small"), &fill).expect("it fits");
        }
        _ => {
            put(pool, &name, &fill).expect("there is room");
            let own = files.entry(name).or_default();
            own.resize(own.len().max(fill.len()), 0);
            own[..fill.len()].copy_from_slice(&fill);
        }
    }
}
