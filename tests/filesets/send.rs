//! Streams of snapshots: what comes out is what went in, wherever a stream is cut, and nothing else
//! is ever seen.
//!
//! Long: the cases of one operation, over one set of helpers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::api::{Caller, Fallocate, FileKind, FileSystem, FsError, NewInode, Seek, XattrMode};
use engine::{
    FilesOptions, Pool, PoolCreateOptions, PoolOpenOptions, ReceiveError, ReceiveFailure, Received,
    ResumeToken,
};
use format::fileset::NamePart;
use runtime::clock::ManualClock;
use runtime::prng::Prng;
use storage::device::sim::{Fault, FaultPlan, Image, SimDevice, SimOptions, Strategy};
use storage::device::{IoPurpose, MemoryDevice, RequestKind, SharedDevice};
use testkit::canon::{Times, Tree, differences, walk_identified};

use super::{assert_clean, expect_clean, free_all, name, names, work};

pub(super) const POOL_BYTES: u64 = 96 << 20;
/// Holes are kept by this: blocks of files.
const HOLE_BYTES: u64 = 16 << 10;

pub(super) fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

pub(super) fn pool_of(bytes: u64, seed: u8) -> SharedDevice {
    let device: SharedDevice = MemoryDevice::new("memory", bytes);
    let create = PoolCreateOptions::new(bytes, [seed; 64]);
    Pool::create(&device, &ManualClock::new(), &create).expect("a pool fits");
    device
}

pub(super) fn open(device: &SharedDevice, fileset: &str, snapshot: Option<&str>) -> Pool {
    let fileset = Some(name(fileset));
    // Whoever reads what is received must not change it.
    let files = FilesOptions { no_atime: true, ..FilesOptions::default() };
    let options = PoolOpenOptions {
        fileset,
        snapshot: snapshot.map(part),
        files,
        ..PoolOpenOptions::default()
    };
    let clock = Arc::new(ManualClock::new());
    Pool::open(Arc::clone(device), clock, options).expect("the pool opens")
}

/// All that is equal on both sides: the tree with its times, and numbers, generations and holes.
#[derive(Debug, PartialEq)]
pub(super) struct Known {
    tree: Tree,
    identities: Vec<(u64, u64)>,
    holes: BTreeMap<u64, Vec<(u64, u64)>>,
}

pub(super) fn known(pool: &Pool) -> Known {
    let (tree, identities) = walk_identified(pool, Times::Changes).expect("it can be read");
    let mut holes = BTreeMap::new();
    for (inode, identity) in tree.inodes.iter().zip(&identities) {
        if inode.attr.kind == FileKind::Regular {
            holes.insert(identity.ino.0 & 0xff_ffff_ffff, holes_of(pool, identity.ino));
        }
    }
    let number = |it: &testkit::canon::Identity| (it.ino.0 & 0xff_ffff_ffff, it.generation);
    Known { identities: identities.iter().map(number).collect(), tree, holes }
}

fn holes_of(pool: &Pool, ino: engine::api::Ino) -> Vec<(u64, u64)> {
    let (mut at, mut holes) = (0, Vec::new());
    while let Ok(start) = pool.seek(&Caller::root(), ino, at, Seek::Hole) {
        let end = pool.seek(&Caller::root(), ino, start, Seek::Data).unwrap_or(u64::MAX);
        // A hole of a part of a block may be stored as zeros elsewhere.
        let (first, last) = (start.next_multiple_of(HOLE_BYTES), end / HOLE_BYTES * HOLE_BYTES);
        holes.extend((first < last).then_some((first, last)));
        at = end;
    }
    holes
}

#[track_caller]
pub(super) fn assert_same(found: &Known, kept: &Known, what: &str) {
    let differ = differences(&kept.tree, &found.tree);
    assert!(differ.is_empty(), "{what}: {:?}", differ.first());
    assert_eq!(found.identities, kept.identities, "{what}");
    // What a difference brings may lie in larger blocks, with zeros where a hole was.
    let is_whole = what.ends_with("c0");
    assert!(!is_whole || found.holes == kept.holes, "{what}: its holes differ");
}

pub(super) fn take(pool: &Pool, snapshot: &str) {
    let random = [snapshot.as_bytes()[1]; 16];
    pool.fileset_admin()
        .create_snapshot(&name("root"), &part(snapshot), random)
        .expect("there is room");
}

pub(super) fn send_from(
    pool: &Pool,
    from: Option<&str>,
    to: &str,
    token: Option<ResumeToken>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let from = from.map(part);
    pool.fileset_admin()
        .send((&name("root"), &part(to)), from.as_ref(), token, &mut out, &mut |_, _| ())
        .expect("it can be read");
    out
}

pub(super) fn receive(pool: &Pool, stream: &[u8]) -> Result<Received, ReceiveFailure> {
    pool.fileset_admin().receive(&name("copy"), &mut &stream[..], [0x5a; 32], &mut |_, _| ())
}

/// A pool with snapshots c0, c1, ... of a random history, and what each is.
pub(super) struct Source {
    device: SharedDevice,
    pub(super) pool: Pool,
    known: Vec<Known>,
}

/// Things that random histories seldom make: a hole, an access list, a long link, a large
/// directory, a hard link, a device.
fn special(pool: &Pool, round: u64) {
    let (caller, root) = (Caller::root(), pool.root());
    let name = format!("special{round}").into_bytes();
    let new = NewInode::new(FileKind::Directory, 0o755);
    let directory = pool.create(&caller, root, &name, new, None).expect("there is room").ino;
    let file = NewInode::new(FileKind::Regular, 0o640);
    let made = pool.create(&caller, directory, b"file", file, None).expect("there is room");
    pool.write(&caller, made.ino, 0, &[7; 70_000]).expect("there is room");
    pool.write(&caller, made.ino, 1 << 20, &[8; 40_000]).expect("there is room");
    pool.link(&caller, made.ino, root, &[&name[..], b"-link"].concat(), None).expect("it fits");
    let value = vec![round.to_le_bytes()[0]; 3000];
    pool.setxattr(&caller, made.ino, b"user.long", &value, XattrMode::Set, None).expect("it fits");
    let target = vec![b'x'; 900];
    pool.symlink(
        &caller,
        directory,
        b"long",
        &target,
        NewInode::new(FileKind::Symlink, 0o777),
        None,
    )
    .expect("it fits");
    for number in 0..120 {
        let name = format!("a-rather-long-name-of-a-file-{number}");
        pool.create(&caller, directory, name.as_bytes(), file, None).expect("there is room");
    }
}

pub(super) fn source(seed: u64, snapshots: u64) -> Source {
    let device = pool_of(POOL_BYTES, 3);
    let pool = open(&device, "root", None);
    for number in 0..snapshots {
        special(&pool, number);
        work(&pool, seed * 100 + number, if number == 0 { 200 } else { 60 });
        take(&pool, &format!("c{number}"));
    }
    work(&pool, seed * 100 + 50, 60);
    pool.close().expect("nothing fails");
    drop(pool);
    let known = (0..snapshots).map(|number| {
        let pool = open(&device, "root", Some(&format!("c{number}")));
        let known = known(&pool);
        pool.close().expect("nothing fails");
        known
    });
    let known = known.collect();
    let pool = open(&device, "root", None);
    Source { device, pool, known }
}

#[track_caller]
fn assert_received(device: &SharedDevice, snapshot: Option<&str>, kept: &Known, what: &str) {
    assert_clean(device);
    let pool = open(device, "copy", snapshot);
    assert_same(&known(&pool), kept, what);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(device);
}

/// Goal: a stream makes the same tree elsewhere, numbers, generations, holes and times too, and the
/// next ones its next states; the snapshots that come along stay what they are, and the fileset can
/// be used. Method: random histories of three snapshots, sent to another pool.
#[test]
fn what_is_received_is_what_was_sent() {
    for seed in 0..6 {
        let source = source(seed, 3);
        let device = pool_of(POOL_BYTES, 9);
        for (number, from) in [(0, None), (1, Some("c0")), (2, Some("c1"))] {
            let to = format!("c{number}");
            let stream = send_from(&source.pool, from, &to, None);
            let pool = open(&device, "root", None);
            let received = receive(&pool, &stream).expect("there is room");
            assert_eq!(received.snapshot, part(&to));
            pool.close().expect("nothing fails");
            drop(pool);
            let what = format!("seed {seed}, {to}");
            assert_received(&device, None, &source.known[number], &what);
            assert_received(&device, Some(&to), &source.known[number], &what);
        }
        let pool = open(&device, "copy", None);
        work(&pool, seed, 80);
        pool.close().expect("nothing fails");
        drop(pool);
        assert_received(&device, Some("c0"), &source.known[0], "after changes");
        source.pool.close().expect("nothing fails");
        assert_clean(&source.device);
    }
}

/// Goal: in one server the next states come one after the other, and c0 to c2 at once as well.
#[test]
fn a_pool_receives_one_state_after_the_other() {
    let source = source(11, 3);
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    for (from, to) in [(None, "c0"), (Some("c0"), "c2")] {
        receive(&pool, &send_from(&source.pool, from, to, None)).expect("there is room");
        pool.tick().expect("nothing fails");
    }
    assert_eq!(names(&pool), ["copy", "copy@c0", "copy@c2", "root"]);
    pool.fileset_admin().delete_snapshot(&name("copy"), &part("c0")).expect("nobody needs it");
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_received(&device, None, &source.known[2], "c2");
}

/// Where the records of a stream begin.
pub(super) fn records(stream: &[u8]) -> Vec<usize> {
    let (mut at, mut starts) = (0, Vec::new());
    while at < stream.len() {
        starts.push(at);
        let length: [u8; 4] = stream[at + 8..at + 12].try_into().expect("4 bytes");
        at += 32 + usize::try_from(u32::from_le_bytes(length)).expect("small");
    }
    starts
}

/// Goal: a stream that breaks off anywhere, between records or in one, shows nothing and goes on by
/// its token to the same tree, over a close too. Method: cut again and again, at steps through all
/// records.
#[test]
fn a_stream_that_breaks_off_goes_on_by_its_token() {
    for (from, to) in [(None, "c0"), (Some("c0"), "c1")] {
        let source = source(21, 2);
        let whole = send_from(&source.pool, from, to, None);
        let starts = records(&whole);
        for step in [1, starts.len() / 7 + 1] {
            let device = pool_of(POOL_BYTES, 9);
            if from.is_some() {
                let pool = open(&device, "root", None);
                receive(&pool, &send_from(&source.pool, None, "c0", None)).expect("there is room");
                pool.close().expect("nothing fails");
            }
            let (mut token, mut cuts) = (None, 0);
            loop {
                let stream = send_from(&source.pool, from, to, token);
                let starts = records(&stream);
                let pool = open(&device, "root", None);
                let before = names(&pool);
                // In the head of a record, in its body, behind it.
                let cut = starts.get(step + cuts % 2).map(|at| at + [0, 9, 40][cuts % 3]);
                let cut = cut.filter(|_| cuts < 60).unwrap_or(stream.len()).min(stream.len());
                let done = receive(&pool, &stream[..cut]);
                cuts += 1;
                let failure = match done {
                    Ok(_) => {
                        pool.close().expect("nothing fails");
                        break;
                    }
                    Err(failure) => failure,
                };
                assert!(matches!(failure.error, ReceiveError::Truncated { .. }), "{failure:?}");
                assert_eq!(names(&pool), before, "nothing of it is seen");
                token = Some(failure.token.expect("it goes on"));
                pool.close().expect("nothing fails");
                drop(pool);
                if cuts % 8 == 0 {
                    assert_clean(&device);
                }
            }
            let kept = &source.known[usize::from(from.is_some())];
            assert_received(&device, None, kept, &format!("{from:?}, step {step}"));
        }
    }
}

fn used(pool: &Pool) -> u64 {
    // What is given up comes back behind checkpoints, and the list of it last.
    for _ in 0..3 {
        pool.tick().expect("nothing fails");
        pool.sync().expect("nothing fails");
        pool.checkpoint().expect("nothing fails");
    }
    pool.status().space.used
}

/// Goal: no bytes end a receiver, show anything or keep space: records missing, twice, swapped, of
/// another stream, bits flipped, cut; nor a whole stream whose checksums are right and whose
/// records make no sense. Method: a good stream changed by seed; checksums made right half of
/// the time.
#[test]
fn a_hostile_stream_leaves_nothing() {
    let source = source(31, 2);
    let good = send_from(&source.pool, Some("c0"), "c1", None);
    let other = send_from(&source.pool, None, "c1", None);
    let first = send_from(&source.pool, None, "c0", None);
    let fresh = || {
        let device = pool_of(POOL_BYTES, 9);
        let pool = open(&device, "root", None);
        receive(&pool, &first).expect("there is room");
        (device, pool)
    };
    let (mut device, mut pool) = fresh();
    let (starts, foreign) = (records(&good), records(&other));
    let before = used(&pool);
    let seeds = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
    let (mut refused, mut senseless) = (0, 0);
    for seed in 0..seeds.unwrap_or(120_u64) {
        let mut prng = Prng::from_seed(seed);
        let mut below = |end: usize| {
            usize::try_from(prng.below(u64::try_from(end).expect("small"))).expect("small")
        };
        let record = |stream: &[u8], starts: &[usize], at: usize| {
            let end = starts.get(at + 1).copied().unwrap_or(stream.len());
            stream[starts[at]..end].to_vec()
        };
        let mut all: Vec<Vec<u8>> =
            (0..starts.len()).map(|at| record(&good, &starts, at)).collect();
        let at = 1 + below(all.len() - 1);
        match below(6) {
            0 => drop(all.remove(at)),
            1 => all.insert(at, all[at].clone()),
            2 => {
                let with = 1 + below(all.len() - 1);
                all.swap(at, with);
            }
            3 => all[at] = record(&other, &foreign, 1 + below(foreign.len() - 1)),
            _ => {
                let bytes = &mut all[at];
                let byte = below(bytes.len());
                bytes[byte] ^= 1 << below(8);
            }
        }
        let is_mended = seed % 2 == 0;
        if is_mended {
            all.iter_mut()
                .zip(0_u64..)
                .for_each(|(record, sequence)| mend(record, sequence, &good));
        }
        let stream = all.concat();
        let shown = names(&pool);
        match receive(&pool, &stream) {
            Ok(_) => {
                assert!(is_mended, "seed {seed}: it was received");
                // What was changed is a byte of a file, or a time: the pool is as good as any.
                pool.close().expect("nothing fails");
                drop(pool);
                assert_clean(&device);
                (device, pool) = fresh();
                continue;
            }
            Err(failure) => {
                refused += 1;
                let is_senseless = matches!(failure.error, ReceiveError::Senseless { .. });
                senseless += u64::from(is_senseless);
                if failure.token.is_some() {
                    assert!(
                        pool.fileset_admin().abort_receiving(&name("copy")).expect("nobody sends"),
                        "{seed}"
                    );
                }
            }
        }
        assert_eq!(names(&pool), shown, "seed {seed}");
        free_all(&pool);
        if seed % 10 == 0 {
            // A slot is given once while a pool is open, so the table of filesets grows.
            let table = seed / 7 + 1;
            let now = used(&pool);
            assert!(now <= before + table, "seed {seed}: {now} of {before}");
        }
    }
    assert!(refused > 10 && senseless > 0, "{refused} refused, {senseless} of them senseless");
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Makes checksum, number and stream of a record right again.
pub(super) fn mend(record: &mut [u8], sequence: u64, good: &[u8]) {
    record[16..24].copy_from_slice(&sequence.to_le_bytes());
    record[24..32].copy_from_slice(&good[24..32]);
    let crc = format::checksum::crc32c(&record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
}

const CRASH_POOL_BYTES: u64 = 40 << 20;

fn sim_pool(device: &Arc<SimDevice>, fileset: &str, snapshot: Option<&str>) -> Pool {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    open(&shared, fileset, snapshot)
}

fn check_image(device: &Arc<SimDevice>, when: &str) -> Result<(), String> {
    let shared: SharedDevice = Arc::<SimDevice>::clone(device);
    expect_clean(&shared, when)
}

/// What a fileset may be after a crash, by what names the pool has then.
struct States<'s> {
    before: Option<&'s Known>,
    after: &'s Known,
    snapshot: &'s str,
    stream: &'s [u8],
}

/// Opens an image; holds what it shows against the state before and the one after; receives the
/// stream again where it is not there.
fn judge(image: &Image, states: &States<'_>, is_acknowledged: bool) -> Result<bool, String> {
    let device = SimDevice::open(image.clone(), SimOptions::default());
    check_image(&device, "before the open")?;
    let pool = sim_pool(&device, "root", None);
    let shown = names(&pool);
    let is_after = shown.contains(&format!("copy@{}", states.snapshot));
    if is_acknowledged && !is_after {
        return Err(format!("it was acknowledged, and is gone: {shown:?}"));
    }
    check_image(&device, "after the open")?;
    let seen = |snapshot: Option<&str>, kept: &Known| {
        let pool = sim_pool(&device, "copy", snapshot);
        let found = known(&pool);
        pool.close().map_err(|error| error.to_string())?;
        if found == *kept { Ok(()) } else { Err(format!("{snapshot:?} is neither state")) }
    };
    if !is_after {
        if let Some(before) = states.before {
            pool.close().map_err(|error| error.to_string())?;
            seen(None, before)?;
            let pool = sim_pool(&device, "root", None);
            receive(&pool, states.stream).map_err(|failure| format!("again: {}", failure.error))?;
            pool.close().map_err(|error| error.to_string())?;
        } else {
            receive(&pool, states.stream).map_err(|failure| format!("again: {}", failure.error))?;
            pool.close().map_err(|error| error.to_string())?;
        }
    } else {
        pool.close().map_err(|error| error.to_string())?;
    }
    seen(None, states.after)?;
    seen(Some(states.snapshot), states.after)?;
    check_image(&device, "at the end")?;
    Ok(is_after)
}

/// Goal: whatever a crash leaves of a receive, it shows the old state or the new one, the stream
/// can be received again, and no fragment is lost. Method: cut at every write and flush of
/// receiving a whole stream, and the next one.
#[test]
fn a_crash_while_receiving_shows_the_old_state_or_the_new_one() {
    let source = source(41, 2);
    let whole = send_from(&source.pool, None, "c0", None);
    let next = send_from(&source.pool, Some("c0"), "c1", None);
    let device = SimDevice::new(CRASH_POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let mut base = device.durable_image();
    let states = [
        States { before: None, after: &source.known[0], snapshot: "c0", stream: &whole },
        States {
            before: Some(&source.known[0]),
            after: &source.known[1],
            snapshot: "c1",
            stream: &next,
        },
    ];
    let (mut judged, mut shown) = (0, 0);
    for (states, seed) in states.iter().zip(0..) {
        let options = SimOptions { is_recorded: true, ..SimOptions::default() };
        let device = SimDevice::open(base.clone(), options);
        let pool = sim_pool(&device, "root", None);
        receive(&pool, states.stream).expect("there is room");
        let acknowledged = device.position();
        let strategy =
            Strategy { exhaustive_writes_max: 2, random_subsets: 1, torn_variants: 1, seed };
        let mut seen = BTreeSet::new();
        for point in device.recording().points() {
            let at = point.position();
            for image in point.images(&strategy) {
                if seen.insert((image.image.content_hash(), at >= acknowledged)) {
                    judged += 1;
                    let is_after =
                        judge(&image.image, states, at >= acknowledged).unwrap_or_else(|finding| {
                            panic!("{} cut at {at}: {finding}", states.snapshot)
                        });
                    shown += usize::from(is_after);
                }
            }
        }
        pool.close().expect("nothing fails");
        base = device.durable_image();
    }
    assert!(judged > 60 && shown > 1 && shown < judged, "{judged} images, {shown} with all");
}

/// Goal: a pool that runs full in the middle keeps nothing of a stream, and goes on.
#[test]
fn a_pool_that_runs_full_keeps_nothing_of_a_stream() {
    let source = source(51, 1);
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let big = source.pool.create(&caller, source.pool.root(), b"big", new, None).expect("it fits");
    source.pool.write(&caller, big.ino, 0, &vec![5; 30 << 20]).expect("there is room");
    take(&source.pool, "c9");
    let stream = send_from(&source.pool, None, "c9", None);
    let device = pool_of(24 << 20, 9);
    let pool = open(&device, "root", None);
    let before = used(&pool);
    let failure = receive(&pool, &stream).expect_err("it does not fit");
    assert!(matches!(failure.error, ReceiveError::Fs(FsError::NoSpace)), "{failure:?}");
    assert!(failure.token.is_none());
    free_all(&pool);
    assert_eq!(names(&pool), ["root"]);
    let now = used(&pool);
    println!("{before} fragments in use, then {now}, {:?}", pool.status().space);
    work(&pool, 1, 40);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: a pool that runs full during an incremental receive keeps the earlier state of the fileset
/// and its snapshot, and nothing of the stream.
#[test]
fn a_pool_that_runs_full_keeps_nothing_of_a_difference() {
    let source = source(52, 1);
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let big = source.pool.create(&caller, source.pool.root(), b"big", new, None).expect("it fits");
    source.pool.write(&caller, big.ino, 0, &vec![5; 30 << 20]).expect("there is room");
    take(&source.pool, "c9");
    let device = pool_of(32 << 20, 9);
    let pool = open(&device, "root", None);
    receive(&pool, &send_from(&source.pool, None, "c0", None)).expect("there is room");
    let before = used(&pool);
    let next = send_from(&source.pool, Some("c0"), "c9", None);
    let failure = receive(&pool, &next).expect_err("it does not fit");
    assert!(matches!(failure.error, ReceiveError::Fs(FsError::NoSpace)), "{failure:?}");
    assert!(failure.token.is_none());
    free_all(&pool);
    assert_eq!(names(&pool), ["copy", "copy@c0", "root"]);
    let (now, page) = (used(&pool), 64);
    assert!(now <= before + page, "{now} fragments in use, and {before} before");
    pool.close().expect("nothing fails");
    drop(pool);
    assert_received(&device, None, &source.known[0], "seed 52, c0");
    assert_received(&device, Some("c0"), &source.known[0], "seed 52, c0");
}

/// Goal: what cannot be received is refused with its reason, and what is there stays.
#[test]
fn what_cannot_be_received_is_refused_by_name() {
    let source = source(61, 3);
    let whole = send_from(&source.pool, None, "c0", None);
    let next = send_from(&source.pool, Some("c0"), "c1", None);
    let later = send_from(&source.pool, Some("c1"), "c2", None);
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    let refused = |pool: &Pool, stream: &[u8], words: &str| {
        let failure = receive(pool, stream).expect_err("it can't be");
        assert!(failure.error.to_string().contains(words), "{words}: {failure:?}");
        let dry =
            pool.fileset_admin().verify_stream(&name("copy"), &mut &stream[..], &mut |_, _| ());
        assert!(dry.is_err(), "{words}");
    };
    refused(&pool, &next, "no fileset copy");
    pool.fileset_admin()
        .verify_stream(&name("copy"), &mut &whole[..], &mut |_, _| ())
        .expect("it could");
    assert_eq!(names(&pool), ["root"], "a dry run makes nothing");
    receive(&pool, &whole).expect("there is room");
    refused(&pool, &whole, "already");
    refused(&pool, &later, "newest snapshot");
    let mut other = next.clone();
    other[32 + 8] = 9;
    mend(&mut other[..256], 0, &next);
    refused(&pool, &other, "version 9");
    pool.close().expect("nothing fails");
    drop(pool);
    let served = open(&device, "copy", None);
    refused(&served, &next, "unmount");
    let new = NewInode::new(FileKind::Regular, 0o644);
    served.create(&Caller::root(), served.root(), b"mine", new, None).expect("there is room");
    served.close().expect("nothing fails");
    drop(served);
    let pool = open(&device, "root", None);
    refused(&pool, &next, "has changed since");
    let token = {
        let failure = pool
            .fileset_admin()
            .receive(&name("second"), &mut &whole[..whole.len() / 2], [7; 32], &mut |_, _| ())
            .expect_err("it breaks off");
        failure.token.expect("it goes on")
    };
    let foreign = source.pool.fileset_admin().send(
        (&name("root"), &part("c1")),
        None,
        Some(token),
        &mut Vec::new(),
        &mut |_, _| (),
    );
    assert!(foreign.is_err_and(|it| it.to_string().contains("another stream")));
    let refused =
        pool.fileset_admin().receive(&name("second"), &mut &next[..], [7; 32], &mut |_, _| ());
    assert!(refused.is_err());
    assert!(pool.fileset_admin().abort_receiving(&name("second")).expect("nobody sends"));
    assert!(!pool.fileset_admin().abort_receiving(&name("second")).expect("nobody sends"));
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: what a token says has come is there after any crash from then on. Method: a stream breaks
/// off; at every later point, and whatever the device kept, the rest makes the whole of it.
#[test]
fn what_a_token_says_outlives_a_crash() {
    let source = source(71, 1);
    let whole = send_from(&source.pool, None, "c0", None);
    let starts = records(&whole);
    let options = SimOptions { is_recorded: true, ..SimOptions::default() };
    let device = SimDevice::new(CRASH_POOL_BYTES, options);
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    let create = PoolCreateOptions::new(CRASH_POOL_BYTES, [9; 64]);
    Pool::create(&shared, &ManualClock::new(), &create).expect("a pool fits");
    let pool = sim_pool(&device, "root", None);
    let cut = starts[starts.len() * 2 / 3];
    let token = receive(&pool, &whole[..cut]).expect_err("it breaks off").token;
    let told = device.position();
    work(&pool, 7, 20);
    pool.sync().expect("nothing fails");
    let rest = send_from(&source.pool, None, "c0", Some(token.expect("it goes on")));
    assert!(records(&rest).len() < starts.len() / 2, "it does not begin anew");
    let strategy =
        Strategy { exhaustive_writes_max: 2, random_subsets: 2, torn_variants: 1, seed: 5 };
    let mut judged = 0;
    for point in device.recording().points().filter(|point| point.position() >= told) {
        for image in point.images(&strategy) {
            judged += 1;
            let device = SimDevice::open(image.image.clone(), SimOptions::default());
            let pool = sim_pool(&device, "root", None);
            receive(&pool, &rest).expect("the rest is enough");
            pool.close().expect("nothing fails");
            let pool = sim_pool(&device, "copy", None);
            assert_same(&known(&pool), &source.known[0], "after a crash");
            pool.close().expect("nothing fails");
            check_image(&device, "at the end").expect("it is clean");
        }
    }
    assert!(judged > 3, "{judged} images");
}

/// Goal: a stream whose records are right, each for itself, and that leaves a file out, is refused:
/// a name would lead nowhere. Method: all records of one new file are taken out, numbers and totals
/// made right.
#[test]
fn a_stream_without_one_of_its_files_is_refused() {
    let source = source(81, 1);
    let whole = send_from(&source.pool, None, "c0", None);
    let starts = records(&whole);
    let end = |at: usize| starts.get(at + 1).copied().unwrap_or(whole.len());
    let mut all: Vec<Vec<u8>> =
        (0..starts.len()).map(|at| whole[starts[at]..end(at)].to_vec()).collect();
    // An anode, of a file, and whole.
    let is_file = |record: &Vec<u8>| record[4] == 2 && record[5] & 1 == 1 && record[36] == 1;
    let first = all.iter().position(is_file).expect("there is one");
    let last = first + all[first..].iter().position(|it| it[4] == 7).expect("it ends");
    let gone: Vec<Vec<u8>> = all.drain(first..=last).collect();
    let data: usize = gone.iter().filter(|it| it[4] == 3).map(|it| it.len() - 40).sum();
    let totals = all.last_mut().expect("there is an end");
    let mut less = |at: usize, count: usize| {
        let field: [u8; 8] = totals[at..at + 8].try_into().expect("8 bytes");
        let left = u64::from_le_bytes(field) - u64::try_from(count).expect("small");
        totals[at..at + 8].copy_from_slice(&left.to_le_bytes());
    };
    less(32, gone.len());
    less(40, 1);
    less(56, data);
    all.iter_mut().zip(0_u64..).for_each(|(record, sequence)| mend(record, sequence, &whole));
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    let failure = receive(&pool, &all.concat()).expect_err("a name leads nowhere");
    assert!(matches!(failure.error, ReceiveError::Senseless { .. }), "{failure:?}");
    assert!(failure.error.to_string().contains("nowhere"), "{failure:?}");
    assert_eq!(names(&pool), ["root"]);
    free_all(&pool);
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
}

/// Goal: a hole that was made between two snapshots is one where the difference is received.
#[test]
fn a_hole_made_since_is_received() {
    let device = pool_of(POOL_BYTES, 3);
    let pool = open(&device, "root", None);
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = pool.create(&caller, pool.root(), b"file", new, None).expect("there is room").ino;
    pool.write(&caller, file, 0, &[7; 256 << 10]).expect("there is room");
    take(&pool, "c0");
    pool.fallocate(&caller, file, 32 << 10, 64 << 10, Fallocate::PunchHole).expect("it can be");
    take(&pool, "c1");
    let streams = [send_from(&pool, None, "c0", None), send_from(&pool, Some("c0"), "c1", None)];
    let target = pool_of(POOL_BYTES, 9);
    let copy = open(&target, "root", None);
    streams.iter().for_each(|stream| drop(receive(&copy, stream).expect("there is room")));
    copy.close().expect("nothing fails");
    drop(copy);
    let copy = open(&target, "copy", None);
    let found = copy.lookup(&caller, copy.root(), b"file").expect("it is there").ino;
    assert_eq!(holes_of(&copy, found), holes_of(&pool, file));
    let mut bytes = Vec::new();
    copy.read(&caller, found, 32 << 10, 64 << 10, &mut bytes).expect("it reads");
    assert!(bytes.iter().all(|&byte| byte == 0));
    copy.close().expect("nothing fails");
}

/// Goal: a read that fails once changes nothing of a stream, whichever of several under way it is.
#[test]
fn a_read_that_fails_once_changes_nothing_of_a_stream() {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    Pool::create(&shared, &ManualClock::new(), &PoolCreateOptions::new(POOL_BYTES, [3; 64]))
        .expect("a pool fits");
    let pool = open(&shared, "root", None);
    let caller = Caller::root();
    let new = NewInode::new(FileKind::Regular, 0o644);
    let file = pool.create(&caller, pool.root(), b"file", new, None).expect("there is room").ino;
    let mut prng = Prng::from_seed(5);
    // More than is read at once, and no whole number of records.
    let bytes: Vec<u8> = (0..(9 << 20) + 777).map(|_| prng.next_u64().to_le_bytes()[0]).collect();
    for (part, at) in bytes.chunks(1 << 20).zip((0..).step_by(1 << 20)) {
        pool.write(&caller, file, at, part).expect("there is room");
    }
    take(&pool, "c0");
    let before = device.counts().of(IoPurpose::Data, RequestKind::Read).requests;
    let stream = send_from(&pool, None, "c0", None);
    let reads = device.counts().of(IoPurpose::Data, RequestKind::Read).requests - before;
    assert!(reads >= 10, "{reads} reads");
    for nth in 0..reads {
        let faults = FaultPlan::none();
        device.arm(faults.with(Fault::Fail { kind: RequestKind::Read, nth, persists: false }));
        assert!(send_from(&pool, None, "c0", None) == stream, "read {nth} fails");
    }
}

/// Goal: nobody is brought back to what he had before by snapshots that were given the wrong way
/// round, and what somebody has already is not received again.
#[test]
fn a_stream_that_goes_back_in_time_is_refused() {
    let source = source(63, 3);
    let whole = send_from(&source.pool, None, "c0", None);
    let next = send_from(&source.pool, Some("c0"), "c1", None);
    let later = send_from(&source.pool, Some("c1"), "c2", None);
    for (to, from, words) in [
        ("c0", "c1", "root@c0 is earlier than root@c1"),
        ("c0", "c2", "root@c0 is earlier than root@c2"),
        ("c1", "c1", "root@c1 is sent from itself"),
    ] {
        let (mut out, from) = (Vec::new(), part(from));
        let to = (&name("root"), &part(to));
        let told =
            source.pool.fileset_admin().send(to, Some(&from), None, &mut out, &mut |_, _| ());
        let told = told.expect_err("it goes back").to_string();
        assert!(told.starts_with(words) && out.is_empty(), "{told}");
    }
    let device = pool_of(POOL_BYTES, 9);
    let pool = open(&device, "root", None);
    receive(&pool, &whole).expect("there is room");
    receive(&pool, &next).expect("there is room");
    // It goes back itself; a stream of what it has already is not how it comes forward again.
    pool.fileset_admin().restore_fileset(&name("copy"), &part("c0")).expect("nobody has it");
    free_all(&pool);
    let failure = receive(&pool, &next).expect_err("it has that");
    let told = failure.error.to_string();
    assert!(told.contains("has what the stream brings already, as its snapshot c1"), "{told}");
    pool.fileset_admin().restore_fileset(&name("copy"), &part("c1")).expect("nobody has it");
    free_all(&pool);
    receive(&pool, &later).expect("it goes on");
    pool.close().expect("nothing fails");
    drop(pool);
    assert_clean(&device);
    assert_received(&device, None, &source.known[2], "after what was refused");
}
