//! What it costs that operations are counted, and may be watched (`top`, `trace`): instructions,
//! counted by valgrind.
//!
//! ```text
//! valgrind --tool=callgrind --toggle-collect='*watched_measured*' \
//!     target/release/watched none|nobody|slow|top COUNT
//! ```
//!
//! Each carries out COUNT times one GETATTR of NFS, in memory, by one thread, without a socket:
//! `none` counts and has no watch, `nobody` has one at which nobody looks, as every server has;
//! `slow` has one who wants requests of 100 ms and more, `top` one who sees all. Two counts of one
//! kind differ by what is done for each call.

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use engine::api::FileSystem;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::nfs::{Export, ExportRules, HandleKey, ReplySink, Service};
use front::watch::Watch;
use runtime::clock::ManualClock;
use storage::device::{MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 64 << 20;
const NFS: [u32; 2] = [100_003, 3];
const MOUNT: [u32; 2] = [100_005, 3];
const KINDS: [&str; 4] = ["none", "nobody", "slow", "top"];
/// Bytes of an answer before its results: record mark and head.
const HEAD_BYTES: usize = 28;
const LOOK: Duration = Duration::from_secs(600);

/// Keeps the last answer.
#[derive(Default)]
struct Last(Mutex<Vec<u8>>);

impl ReplySink for Last {
    fn send(&self, reply: Vec<u8>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reply;
    }
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("short");
    let padding = bytes.len().next_multiple_of(4) - bytes.len();
    [&length.to_be_bytes()[..], bytes, &[0; 3][..padding]].concat()
}

/// Returns a call by the superuser, without its record mark.
fn call(program: [u32; 2], procedure: u32, args: &[u8]) -> Vec<u8> {
    let user = [0_u32; 5].map(u32::to_be_bytes).concat();
    let head = [7, 0, 2, program[0], program[1], procedure, 1].map(u32::to_be_bytes).concat();
    [&head[..], &opaque(&user), &[0; 8], args].concat()
}

#[inline(never)]
fn watched_measured(service: &Service, peer: SocketAddr, record: &[u8], count: u64) {
    let sink: Arc<dyn ReplySink> = Arc::<Last>::default();
    for _ in 0..count {
        let served = service.serve(peer, record, &sink);
        assert!(matches!(black_box(served), Ok(None)), "it is answered at once");
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [kind, count] if KINDS.contains(&kind.as_str()) => count.parse().ok().map(|it| (kind, it)),
        _ => None,
    };
    let Some((kind, count)) = parsed else {
        eprintln!("watched none|nobody|slow|top COUNT");
        return ExitCode::FAILURE;
    };
    let device: SharedDevice = MemoryDevice::new("memory", POOL_BYTES);
    let options = PoolCreateOptions::new(POOL_BYTES, [7; 64]);
    Pool::create(&device, &ManualClock::new(), &options).expect("a pool fits");
    let clock = Arc::new(ManualClock::new());
    let pool = Pool::open(device, clock, PoolOpenOptions::default()).expect("it was just made");
    let fs: Arc<dyn FileSystem> = Arc::new(pool);
    let service = Service::new(HandleKey([7; 16]), 0);
    let rules = ExportRules { needs_secure_port: false, ..ExportRules::new("/x") };
    let export = Export::new(rules, fs).expect("it has a root");
    service.add(export).expect("the name is free");
    let peer = SocketAddr::from(([127, 0, 0, 1], 700));
    let watch = Arc::<Watch>::default();
    let now = Instant::now();
    match kind.as_str() {
        "slow" => watch.keep_slow(1, Duration::from_millis(100), LOOK, now),
        "top" => watch.look(1, LOOK, now).map(drop),
        _ => Ok(()),
    }
    .expect("nobody looks yet");
    if kind != "none" {
        service.watched_by(&watch);
    }
    let last = Arc::<Last>::default();
    let sink: Arc<dyn ReplySink> = Arc::<Last>::clone(&last);
    let mounted = service.serve(peer, &call(MOUNT, 1, &opaque(b"/x")), &sink);
    assert!(matches!(mounted, Ok(None)), "it is answered at once");
    let answer = last.0.lock().expect("nobody panicked").clone();
    assert_eq!(answer[HEAD_BYTES..][..4], [0; 4], "the export can be mounted");
    let length = answer[HEAD_BYTES + 4..].first_chunk().expect("a handle is told");
    let length = usize::try_from(u32::from_be_bytes(*length)).expect("short");
    let handle = &answer[HEAD_BYTES + 8..][..length];
    watched_measured(&service, peer, &call(NFS, 1, &opaque(handle)), count);
    ExitCode::SUCCESS
}
