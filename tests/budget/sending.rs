//! What sending reads: the whole of a snapshot, and a difference.

use std::ops::ControlFlow;

use engine::api::{Caller, FileKind, FileSystem};
use format::fileset::NamePart;
use runtime::prng::Prng;
use storage::device::{IoPurpose, RequestKind};

use super::{Counted, open};

const POOL_BYTES: u64 = 512 << 20;
const DIRECTORIES: u64 = 300;
const FILES: u64 = 200;

fn part(text: &str) -> NamePart {
    NamePart::new(text).expect("a test writes a name")
}

/// Goal: after a change of one file in a thousand, at random, a diff and a stream of the difference
/// read at most 2.5 parts in a hundred of the metadata. Up to a MiB of it is what the cache tries
/// to read around the first pages that it misses, whatever the size of the tree.
#[test]
fn a_difference_reads_what_differs() {
    let counted = Counted::new(POOL_BYTES, 14);
    let root = "root".parse().expect("a name");
    let mut inos = Vec::new();
    for directory in 0..DIRECTORIES {
        let name = format!("directory {directory}");
        let parent = counted.make(counted.pool.root(), &name, FileKind::Directory);
        for file in 0..FILES {
            let ino = counted.make(parent, &format!("file {file}"), FileKind::Regular);
            counted.pool.write(&Caller::root(), ino, 0, &[7; 300]).expect("there is room");
            inos.push(ino);
        }
    }
    counted
        .pool
        .fileset_admin()
        .create_snapshot(&root, &part("a"), [1; 16])
        .expect("there is room");
    let mut random = Prng::from_seed(5);
    let changed = DIRECTORIES * FILES / 1000;
    for _ in 0..changed {
        let at = usize::try_from(random.below(DIRECTORIES * FILES)).expect("small");
        counted.pool.write(&Caller::root(), inos[at], 0, &[8; 300]).expect("there is room");
    }
    counted
        .pool
        .fileset_admin()
        .create_snapshot(&root, &part("b"), [2; 16])
        .expect("there is room");
    let device = counted.close();
    let shared: storage::device::SharedDevice = device.clone();
    let report = check::run(shared, check::CheckOptions::default(), &mut |_| ());
    assert!(report.is_clean(), "{}", report.to_text());
    // Of both snapshots and the fileset; what they share counts once.
    let metadata = report.totals.pages * 4096;
    let counted = open(&device);
    let mut told = 0;
    let snapshots = (part("a"), part("b"));
    let cost = counted.cost(|| {
        let mut tell = |_: &engine::Difference| {
            told += 1;
            ControlFlow::Continue(())
        };
        let (from, to) = ((&root, &snapshots.0), (&root, Some(&snapshots.1)));
        counted.pool.fileset_admin().diff(from, to, [0; 16], &mut tell).expect("both can be read");
    });
    let diffed = cost.of(IoPurpose::Home, RequestKind::Read);
    println!("diff: {told} files, {diffed:?} of {metadata} bytes of metadata");
    let counted = open(&counted.close());
    let mut stream = Vec::new();
    let cost = counted.cost(|| {
        let sent = counted.pool.fileset_admin().send(
            (&root, &snapshots.1),
            Some(&snapshots.0),
            None,
            &mut stream,
            &mut |_, _| (),
        );
        sent.expect("both can be read");
    });
    let sent = cost.of(IoPurpose::Home, RequestKind::Read);
    println!("send: {} bytes, {sent:?} of {metadata} bytes of metadata", stream.len());
    assert!(told >= changed * 9 / 10 && told <= changed);
    assert!(sent.bytes * 1000 <= metadata * 25, "{} bytes of {metadata}", sent.bytes);
}

/// Goal: a whole stream asks no more of the device than a program that reads all files from their
/// beginning to their end: 0.8 of its speed at least, where the device is what counts. Method:
/// requests and bytes are counted, with a cold cache each.
#[test]
fn a_whole_stream_reads_as_a_program_does() {
    let counted = Counted::new(POOL_BYTES, 14);
    let root = "root".parse().expect("a name");
    let mut files = Vec::new();
    for number in 0..24_u64 {
        let length = if number % 3 == 0 { 6 << 20 } else { 300_000 };
        let ino = counted.make(counted.pool.root(), &format!("f{number}"), FileKind::Regular);
        for at in (0..length).step_by(1 << 20) {
            let data = vec![7; usize::try_from((length - at).min(1 << 20)).expect("small")];
            counted.pool.write(&Caller::root(), ino, at, &data).expect("there is room");
            counted.pool.run_deferred_work();
        }
        files.push((ino, length));
    }
    counted
        .pool
        .fileset_admin()
        .create_snapshot(&root, &part("a"), [1; 16])
        .expect("there is room");
    let counted = open(&counted.close());
    let read = counted.cost(|| {
        let mut bytes = Vec::new();
        for (ino, length) in &files {
            for at in (0..*length).step_by(1 << 20) {
                bytes.clear();
                let done = counted.pool.read(&Caller::root(), *ino, at, 1 << 20, &mut bytes);
                done.expect("it can be read");
            }
        }
    });
    let counted = open(&counted.close());
    let mut stream = Vec::new();
    let sent = counted.cost(|| {
        let sent = counted.pool.fileset_admin().send(
            (&root, &part("a")),
            None,
            None,
            &mut stream,
            &mut |_, _| (),
        );
        sent.expect("it can be read");
    });
    let all: u64 = files.iter().map(|(_, length)| length).sum();
    assert!(stream.len() > usize::try_from(all).expect("small"));
    let (read, sent) = (read.of_kind(RequestKind::Read), sent.of_kind(RequestKind::Read));
    println!("{all} bytes: read {read:?}, sent {sent:?}");
    assert!(sent.bytes * 4 <= read.bytes * 5, "{sent:?}, and a read {read:?}");
    assert!(sent.requests * 4 <= read.requests * 5, "{sent:?}, and a read {read:?}");
}
