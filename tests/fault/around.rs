//! What is read around small files is never served in the place of what is there now, and is
//! nobody's failure.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::api::{Caller, FileSystem, SetAttr};
use engine::{Pool, PoolOpenOptions};
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Image, SimDevice, SimOptions};
use storage::device::{
    Device, DeviceError, DeviceInfo, DeviceOperation, IoPurpose, MemoryDevice, RequestKind,
    SharedDevice, Ticket,
};

use super::{content, create, device_of, find, make, open, read};

/// Caches of which chunks get an eighth: some come and go, others stay until their segment is used
/// again.
const CACHE_BYTES: [usize; 4] = [1 << 20, 16 << 20, 64 << 20, 256 << 20];
const POOL_BYTES: u64 = 32 << 20;
const NAMES: u64 = 2_000;
const STEPS: u64 = 10_000;

/// What each file holds, by name: the seed of its content, and how long it is.
type Known = BTreeMap<String, (u64, usize)>;

fn rewrite(pool: &Pool, known: &mut Known, name: String, seed: u64, length: usize) {
    let caller = Caller::root();
    let made = if known.contains_key(&name) { find(pool, &name) } else { make(pool, &name) };
    let ino = made.expect("there is room");
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    pool.setattr(&caller, ino, &cut, None).expect("there is room");
    pool.write(&caller, ino, 0, &content(seed, length)).expect("there is room");
    known.insert(name, (seed, length));
}

/// Does something with a few files whose names follow one another.
fn step(pool: &Pool, known: &mut Known, random: &mut Prng, number: u64) {
    let first = random.below(NAMES);
    let names = (first..first + 1 + random.below(12)).map(|number| format!("file {number}"));
    match random.below(16) {
        0..=9 => {
            for name in names {
                let Some((seed, length)) = known.get(&name) else { continue };
                let found = read(pool, &name).expect("nothing fails");
                assert!(found == content(*seed, *length), "{name} at step {number}");
            }
        }
        10 => {
            for name in names.filter(|name| known.remove(name).is_some()) {
                let (caller, root) = (Caller::root(), pool.root());
                pool.unlink(&caller, root, name.as_bytes(), None).expect("it is there");
            }
        }
        11 => pool.tick().expect("nothing fails"),
        12 if number.is_multiple_of(7) => pool.checkpoint().expect("nothing fails"),
        12 if number.is_multiple_of(5) => pool.sync().expect("nothing fails"),
        _ => {
            for (name, more) in names.zip(0..) {
                let length = usize::try_from(random.below(9_000)).expect("small");
                rewrite(pool, known, name, 16 * number + more, length);
            }
        }
    }
}

/// Goal: no byte of a segment that was used again is found in memory, by construction and not by
/// its checksum. Method: small files are written, read and removed in a pool so small that its
/// segments are used again and again, by the cleaner too; no block may have failed its check.
#[test]
fn segments_that_are_used_again_are_never_served_from_memory() {
    for (seed, cache_bytes) in (0..).zip(CACHE_BYTES) {
        let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
        create(&device, POOL_BYTES);
        let clock = Arc::new(ManualClock::new());
        let options = PoolOpenOptions { cache_bytes, ..PoolOpenOptions::default() };
        let pool = Pool::open(device, clock.clone(), options).expect("a new pool opens");
        let (mut known, mut random) = (Known::new(), Prng::from_seed(seed));
        for number in 0..STEPS {
            step(&pool, &mut known, &mut random, number);
            clock.advance_ns(20_000_000);
        }
        let counts = pool.status().segment_cache;
        println!("seed {seed}: {counts:?}");
        assert_eq!(counts.refused, 0, "blocks that were not what their pointers name");
        assert!(counts.hits > 500 && counts.ahead_bytes > POOL_BYTES / 4, "{counts:?}");
    }
}

/// A device with a page that can't be read.
#[derive(Debug)]
struct BadPage {
    inner: SharedDevice,
    offset: u64,
}

impl Device for BadPage {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, purpose: IoPurpose, operation: DeviceOperation) -> Ticket {
        let start = operation.offset().unwrap_or(u64::MAX);
        let is_in = start <= self.offset && self.offset - start < operation.length_bytes();
        if operation.kind() == RequestKind::Read && is_in {
            return Ticket::ready(Err(DeviceError::Failed { device: "bad".to_owned() }));
        }
        self.inner.submit(purpose, operation)
    }
}

/// A closed pool of small files, and the place of one byte of each on its device.
fn small_files(count: u64) -> (Image, Vec<u64>) {
    let device = SimDevice::new(super::POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    create(&shared, super::POOL_BYTES);
    let pool = open(&shared).expect("a new pool opens");
    for number in 0..count {
        let name = format!("file{number}");
        let ino = make(&pool, &name).expect("there is room");
        let bytes = content(number, 3_000);
        pool.write(&Caller::root(), ino, 0, &bytes).expect("there is room");
    }
    pool.close().expect("nothing fails");
    let image = device.image();
    let mut places = vec![0; usize::try_from(count).expect("few")];
    image.for_each_page(|offset, bytes| {
        for (place, number) in places.iter_mut().zip(0..) {
            if bytes[..64] == content(number, 3_000)[..64] {
                *place = offset;
            }
        }
    });
    (image, places)
}

/// Goal: a sector that can't be read, and a block that rots, fail their own file alone. Method: one
/// of many files that lie side by side.
#[test]
fn a_bad_neighbour_is_nobody_elses_failure() {
    const FILES: u64 = 60;
    const BAD: u64 = 30;
    let (image, places) = small_files(FILES);
    let bad = places[usize::try_from(BAD).expect("few")];
    assert!(bad > 0, "its content is on the device");
    let unreadable: SharedDevice = Arc::new(BadPage { inner: device_of(&image), offset: bad });
    let rotten = SimDevice::open(image.clone(), SimOptions::default());
    rotten.rot(bad + 1_000, 4);
    for device in [unreadable, rotten] {
        let pool = open(&device).expect("no metadata is hurt");
        for round in 0..2 {
            for number in (0..FILES).rev() {
                let found = read(&pool, &format!("file{number}"));
                match found {
                    Ok(bytes) if number != BAD => assert!(bytes == content(number, 3_000)),
                    Err(_) if number == BAD => {}
                    other => panic!("round {round}, file {number}: {other:?}"),
                }
            }
        }
        assert!(pool.status().segment_cache.ahead_bytes > 0);
    }
    let pool = open(&device_of(&image)).expect("nothing is hurt");
    for number in 0..FILES {
        assert!(read(&pool, &format!("file{number}")).expect("it reads") == content(number, 3_000));
    }
    assert!(pool.status().segment_cache.hits > FILES / 2, "{:?}", pool.status().segment_cache);
}
