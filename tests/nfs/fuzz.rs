//! Calls as no client makes them: each gets at most one answer, none ends the service, and the pool
//! stays sound.
//!
//! `bolero`'s bytes are changes of a session: a word, a byte, the length, the order, a call of
//! another. `HOLDFAST_FUZZ` is the number of sessions, times [`INPUTS_PER_SESSION`].

use std::sync::Arc;

use engine::Pool;
use storage::device::SharedDevice;

use super::client::{Client, Direct, FILE_SYNC, MOUNT, NFS, UNSTABLE, Wire, Words};
use super::{loopback, new_device, open_pool, service_of};

/// Inputs in CI.
const INPUTS: usize = 2000;
/// A session costs more than a decoder's input: so many of those stand for one.
const INPUTS_PER_SESSION: usize = 20;
/// Changes of a session, at most.
const CHANGES_MAX: usize = 12;
/// No call is longer after a change.
const CALL_BYTES_MAX: usize = 3000;
/// No answer is longer: a READ of 1 MiB, and its head.
const ANSWER_BYTES_MAX: usize = (1 << 20) + 4096;

/// Keeps what is sent.
struct Kept {
    direct: Direct,
    records: Vec<Vec<u8>>,
}

impl Wire for Kept {
    fn exchange(&mut self, record: &[u8]) -> Vec<u8> {
        self.records.push(record.to_vec());
        self.direct.exchange(record)
    }
}

fn direct() -> (SharedDevice, Arc<Pool>, Direct) {
    let device = new_device();
    let pool = open_pool(&device, 100);
    let service = service_of(&pool, &["/:rw,squash=none"]);
    (device, pool, Direct::new(&service, loopback(900)))
}

/// Returns the records of a session in which every procedure is called, and succeeds.
fn session() -> Vec<Vec<u8>> {
    let mut client = Client::new(Kept { direct: direct().2, records: Vec::new() });
    let root = client.mount("/").expect("it is exported");
    let fh = |handle: &[u8]| Words::default().opaque(handle);
    let dir = client.mkdir(&root, "d").expect("it is new");
    let file = client.create(&dir, "f").expect("it is new");
    client.write(&file, 0, &[5; 300], UNSTABLE).expect("there is room");
    client.write(&file, 8000, &[6; 2000], FILE_SYNC).expect("there is room");
    client.commit(&file).expect("it is there");
    client.read(&file, 0, 20_000).expect("it is there");
    for (number, args) in [
        (2, fh(&file).set(Some(0o600), Some(77)).u32(0)),
        (4, fh(&file).u32(63)),
        (15, fh(&file).opaque(&root).opaque(b"g")),
        (10, fh(&root).opaque(b"s").set(None, None).opaque(b"d/f")),
        (11, fh(&root).opaque(b"n").u32(7).set(Some(0o600), None)),
        (8, fh(&root).opaque(b"x").u32(2).u64(77)),
        (8, fh(&root).opaque(b"x").u32(0).set(None, Some(0))),
        (16, fh(&root).u64(0).u64(0).u32(4096)),
        (18, fh(&root)),
        (19, fh(&root)),
        (20, fh(&root)),
        (14, fh(&dir).opaque(b"f").opaque(&root).opaque(b"h")),
        (13, fh(&root).opaque(b"d")),
        (12, fh(&root).opaque(b"n")),
    ] {
        client.nfs(number, args).unwrap_or_else(|error| panic!("{number}: {error:?}"));
    }
    let (link, _) = client.lookup(&root, "s").expect("it is there");
    client.nfs(5, fh(&link)).expect("it is a link");
    client.list(&root, 4096).expect("it is one");
    client.call(NFS, 0, Words::default()).expect("it is there");
    for number in [0, 2, 4, 5] {
        client.call(MOUNT, number, Words::default()).expect("it is there");
    }
    client.call(MOUNT, 3, Words::default().opaque(b"/")).expect("it is there");
    for (version, number) in [(2, 3), (2, 4), (4, 3), (4, 4)] {
        let args = Words::default().u32(NFS.0).u32(3).u32(6).u32(0).u32(0).u32(0);
        client.call((100_000, version), number, args).expect("it is there");
    }
    client.wire.records
}

/// Numbers at an edge of something, by a byte; others as they come.
fn edge(choice: u8, value: u32) -> u32 {
    match choice % 5 {
        0 => u32::MAX,
        1 => 1 << 31,
        2 => 1 << (value % 32),
        3 => value % 70,
        _ => value,
    }
}

/// Makes one change, told by eight bytes.
fn change(session: &mut Vec<Vec<u8>>, told: [u8; 8]) {
    let [line, kind, low, high, a, b, c, d] = told;
    let at = usize::from(u16::from_le_bytes([low, high]));
    let value = u32::from_le_bytes([a, b, c, d]);
    let line = usize::from(line) % session.len();
    let other = usize::from(a) % session.len();
    let record = &mut session[line];
    let words = record.len() / 4;
    match kind % 8 {
        0..=2 if words > 0 => {
            let start = at % words * 4;
            record[start..start + 4].copy_from_slice(&edge(kind >> 3, value).to_be_bytes());
        }
        3 if !record.is_empty() => {
            let at = at % record.len();
            record[at] = a;
        }
        4 => record.truncate(at % CALL_BYTES_MAX),
        5 => record.resize(at % CALL_BYTES_MAX, b),
        6 => session.swap(line, other),
        _ => {
            let copy = session[other].clone();
            session.insert(line, copy);
        }
    }
}

/// Goal: no call harms the pool or the service. Method: see the module; afterwards the pool is
/// closed and checked.
#[test]
fn any_session_is_answered_and_leaves_the_pool_sound() {
    let base = session();
    let wanted = std::env::var("HOLDFAST_FUZZ").ok().and_then(|text| text.parse().ok());
    let sessions = wanted.unwrap_or(INPUTS) / INPUTS_PER_SESSION;
    bolero::check!().with_iterations(sessions).for_each(|bytes: &[u8]| {
        let mut session = base.clone();
        for &told in bytes.as_chunks::<8>().0.iter().take(CHANGES_MAX) {
            change(&mut session, told);
        }
        let (device, pool, mut direct) = direct();
        for record in &session {
            let Ok((reply, commit)) = direct.try_start(record) else { continue };
            assert!(reply.is_none() || commit.is_none(), "one answer: {record:?}");
            if let Some(commit) = commit {
                commit.run();
            }
            // A request that came before may be dropped: no other is.
            let reply = reply.or_else(|| direct.told()).expect("there is an answer");
            assert!(reply.len() <= ANSWER_BYTES_MAX, "{} bytes", reply.len());
            assert_eq!(reply[..4], record[..4], "it is to this call");
            assert_eq!(direct.told(), None, "there is one answer");
        }
        drop(direct);
        pool.close().expect("nothing fails");
        let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
        assert!(report.is_clean(), "{}", report.to_text());
    });
}
