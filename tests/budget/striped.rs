//! What overwrites cost in a pool in stripes: bytes that reach the members beside those that users
//! gave, as the pool fills up; and that no write reads.

use std::sync::Arc;

use engine::api::{Caller, FileKind, FileSystem, Ino, NewInode, SetAttr};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use format::members::Layout;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::counters::IoCounts;
use storage::device::{CountingDevice, IoPurpose, RequestKind, SharedDevice};
use storage::volume::VolumeDevices;

use super::counting;

/// Those of a larger pool.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes of all members but one: few, and yet more than two hundred segments of data.
const DATA_BYTES: u64 = 256 << 20;
const LAYOUT: Layout = Layout::Raid5 { unit_shift: 13 };
const BLOCK_BYTES: u64 = 4096;
/// Overwrites before anything is counted, and while it is, as parts of what the file has.
const ROUNDS_BEFORE: u64 = 6;
const ROUNDS: u64 = 3;

/// Returns how many of `count` members have data, of each row.
fn units(count: usize) -> u64 {
    u64::try_from(count).expect("few").saturating_sub(1).max(1)
}

/// A pool in stripes, or on one device, whose requests are counted, member by member.
struct Members {
    devices: Vec<Arc<CountingDevice>>,
    clock: Arc<ManualClock>,
    pool: Pool,
}

impl Members {
    fn new(count: usize) -> Members {
        let member_bytes = DATA_BYTES / units(count);
        let devices: Vec<_> = (0..count).map(|_| counting(member_bytes)).collect();
        let shared = || -> Vec<SharedDevice> {
            devices.iter().map(|it| -> SharedDevice { Arc::<CountingDevice>::clone(it) }).collect()
        };
        let mut options = PoolCreateOptions::new(member_bytes, [3; 64]);
        options.block_shift = 12;
        options.geometry.journal_bytes = Some(4 << 20);
        options.geometry.segment_bytes = Some(SEGMENT_BYTES);
        let layout = if count == 1 { Layout::Single } else { LAYOUT };
        Pool::create_on(&shared(), layout, &ManualClock::new(), &options).expect("a pool fits");
        let clock = Arc::new(ManualClock::new());
        let opening = VolumeDevices { devices: shared(), accepts_missing: false };
        let pool = Pool::open_members(opening, clock.clone(), PoolOpenOptions::default());
        Members { devices, clock, pool: pool.expect("a pool opens") }
    }

    fn counts(&self) -> Vec<IoCounts> {
        self.devices.iter().map(|device| device.counts()).collect()
    }

    /// Returns a file of as many blocks as fill `percent` of the data space.
    fn filled(&self, percent: u64) -> (Ino, u64) {
        let (caller, pool) = (Caller::root(), &self.pool);
        let new = NewInode::new(FileKind::Regular, 0o644);
        let ino = pool.create(&caller, pool.root(), b"file", new, None).expect("there is room").ino;
        let data = vec![1; 1 << 20];
        let mut end = 0;
        while pool.write(&caller, ino, end, &data).is_ok() {
            end += 1 << 20;
            assert!(end < 1 << 40, "the pool never runs full");
        }
        let blocks = end / BLOCK_BYTES * percent / 100;
        let cut = SetAttr { size_bytes: Some(blocks * BLOCK_BYTES), ..SetAttr::default() };
        pool.setattr(&caller, ino, &cut, None).expect("a full pool can be cut");
        pool.sync().expect("nothing fails");
        (ino, blocks)
    }

    /// Overwrites `writes` blocks, nine in ten of them in the first tenth of the file.
    fn overwrite(&self, (ino, blocks): (Ino, u64), writes: u64, prng: &mut Prng) {
        let hot = blocks / 10;
        for number in 0..writes {
            let is_hot = prng.below(10) < 9;
            let block = if is_hot { prng.below(hot) } else { hot + prng.below(blocks - hot) };
            let data = [u8::try_from(number % 251).expect("small"); 4096];
            let written = self.pool.write(&Caller::root(), ino, block * BLOCK_BYTES, &data);
            written.unwrap_or_else(|error| panic!("overwrite {number} of {writes}: {error}"));
            // As fast as the blocks of 16 KiB in `cleaning.rs`: 16 MiB a second.
            self.clock.advance_ns(250_000);
            if number % 256 == 0 {
                self.pool.tick().expect("nothing fails");
            }
        }
        self.pool.sync().expect("nothing fails");
    }
}

/// Returns bytes of data written to `count` members, in hundredths of the bytes that were given,
/// and what of them cleaning asks for.
fn amplification(count: usize, percent: u64) -> (u64, u64) {
    let members = Members::new(count);
    let file = members.filled(percent);
    let mut prng = Prng::from_seed(percent);
    members.overwrite(file, ROUNDS_BEFORE * file.1, &mut prng);
    let before = members.counts();
    let cleaner = members.pool.status().cleaner.since_mount;
    let writes = ROUNDS * file.1;
    members.overwrite(file, writes, &mut prng);
    let sum = |purpose, kind| -> u64 {
        let counts = members.counts();
        counts.iter().zip(&before).map(|(now, then)| (*now - *then).of(purpose, kind).bytes).sum()
    };
    let written: u64 = [IoPurpose::Data, IoPurpose::Summary, IoPurpose::Cleaner]
        .into_iter()
        .map(|purpose| sum(purpose, RequestKind::Write))
        .sum();
    // Blocks are given whole: nothing is read for them. The cleaner reads under its own name.
    for purpose in [IoPurpose::Data, IoPurpose::Summary] {
        assert_eq!(sum(purpose, RequestKind::Read), 0, "{purpose:?}, {percent} % full");
    }
    let status = members.pool.status();
    let after = status.cleaner.since_mount;
    let logged =
        (after.written_fragments - cleaner.written_fragments) << status.geometry.fragment_shift;
    let hundredths = |bytes: u64| bytes * 100 / (writes * BLOCK_BYTES);
    let (written, cost) = (hundredths(written), hundredths(logged));
    println!(
        "{count} members, {percent} % full, {} blocks: {written} % written, write cost {cost} %",
        file.1
    );
    (written, cost)
}

/// Goal: parity costs its share and nothing more, whatever cleaning asks for: N members get at most
/// N / (N - 1) x 1.05 of what cleaning costs, and that has a bound.
fn judge(count: usize, percent: u64, cost_max: u64) {
    let (written, cost) = amplification(count, percent);
    let parity = |cost: u64| cost * (units(count) + 1) * 105 / units(count) / 100;
    let what = format!("{count} members, {percent} % full: {written} %, {cost} %");
    assert!(cost <= cost_max && written <= parity(cost), "{what}");
}

#[test]
fn overwrites_of_stripes_cost_their_parity_and_what_cleaning_costs() {
    judge(3, 75, 160);
    judge(5, 75, 160);
}

/// Blocks are a quarter of those in `cleaning.rs`, and each flush pads to the stripe: 2.5 is what
/// it costs on one device.
#[test]
fn overwrites_of_stripes_at_nine_tenths() {
    judge(5, 90, 280);
}
