//! What permission checks cost, for an instruction counter: a checked caller at work below three
//! directories, with access lists on everything or on nothing.
//!
//! `access plain|lists walk|create|times COUNT`. Run it under `valgrind --tool=callgrind` with two
//! counts: the difference of the totals is what the operations cost, without the start.

use std::sync::Arc;

use engine::api::{Attr, Caller, FileKind, FileSystem, Ino, NewInode, SetAttr, SetTime, XattrMode};
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use runtime::clock::SystemClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 1 << 30;
const FILES: u64 = 500;
const DIRECTORY_LIST: [(u16, u16, u32); 7] = [
    (0x01, 7, u32::MAX),
    (0x02, 5, 9),
    (0x02, 7, 7),
    (0x04, 5, u32::MAX),
    (0x08, 5, 100),
    (0x10, 7, u32::MAX),
    (0x20, 5, u32::MAX),
];

fn name(number: u64) -> Vec<u8> {
    format!("file-{number:06}").into_bytes()
}

fn list() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in DIRECTORY_LIST {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

struct Bench {
    pool: Pool,
    caller: Caller,
}

impl Bench {
    fn make(&self, parent: Ino, name: &[u8], kind: FileKind, has_lists: bool) -> Ino {
        let new = NewInode::new(kind, 0o777);
        let made =
            self.pool.create(&Caller::root(), parent, name, new, None).expect("there is room");
        if has_lists {
            let names: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
            let count = if kind == FileKind::Directory { 2 } else { 1 };
            for list_name in &names[..count] {
                let set = &list()[..];
                self.pool
                    .setxattr(&Caller::root(), made.ino, list_name, set, XattrMode::Set, None)
                    .expect("a list");
            }
        }
        made.ino
    }

    fn walk(&self, number: u64) -> Attr {
        let mut at = self.pool.root();
        for part in [&b"a"[..], b"b", b"c"] {
            at = self.pool.lookup(&self.caller, at, part).expect("it is there").ino;
        }
        self.pool.lookup(&self.caller, at, &name(number % FILES)).expect("it is there")
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let has_lists = arguments.next().is_some_and(|word| word == "lists");
    let what = arguments.next().expect("walk, create or times");
    let count: u64 = arguments.next().and_then(|text| text.parse().ok()).expect("a count");
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let clock = Arc::new(SystemClock::new());
    Pool::create(&device, clock.as_ref(), &PoolCreateOptions::new(POOL_BYTES, [1; 64]))
        .expect("a pool fits");
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("a new pool opens");
    let caller = Caller::checked(7, 7, vec![100]);
    let bench = Bench { pool, caller };
    let mut at = bench.pool.root();
    for part in [&b"a"[..], b"b", b"c"] {
        at = bench.make(at, part, FileKind::Directory, has_lists);
    }
    for number in 0..FILES {
        bench.make(at, &name(number), FileKind::Regular, has_lists);
    }
    for number in 0..count {
        match what.as_str() {
            "walk" => {
                let attr = bench.walk(number);
                bench.pool.getattr(&Caller::root(), attr.ino).expect("it is there");
            }
            "create" => {
                let new = NewInode::new(FileKind::Regular, 0o640);
                let made = bench.pool.create(&bench.caller, at, b"new", new, None).expect("it may");
                bench.pool.forget(made.ino, 1);
                bench.pool.unlink(&bench.caller, at, b"new", None).expect("it may");
            }
            _ => {
                let now = Some(SetTime::Now);
                let change = SetAttr { atime: now, mtime: now, ..SetAttr::default() };
                let ino = bench.walk(number).ino;
                bench.pool.setattr(&bench.caller, ino, &change, None).expect("it may");
            }
        }
    }
}
