//! Requests of FUSE as no kernel sends them, to a pool: each gets at most one reply, none ends the
//! server, and the pool stays sound.
//!
//! `bolero`'s bytes are changes of a session (`corpus/requests.txt`): another opcode, another node,
//! a field, the length, the order.

use std::sync::Arc;

use engine::api::FileSystem;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::fuse::{CollectedReplies, Exchange, FuseServer, Incoming};
use runtime::clock::ManualClock;
use storage::device::SharedDevice;
use storage::device::sim::{Image, SimDevice, SimOptions};

use super::iterations;

const SESSION: &str = include_str!("corpus/requests.txt");
const POOL_BYTES: u64 = 10 << 20;
/// Opcodes whose messages have no reply.
const SILENT: [u32; 3] = [2, 41, 42];
const HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;
/// No reply carries more.
const REPLY_BYTES_MAX: usize = OUT_HEADER_BYTES + (1 << 20);
/// No body of a request is longer after a change.
const BODY_BYTES_MAX: usize = 600;
/// Opcodes that exist are below this.
const OPCODES_END: u32 = 60;
/// Nodes that a change chooses among: the root, the first files, some that are not there.
const NODES_END: u32 = 26;
/// A session costs more than a page: so many pages stand for one.
const PAGES_PER_SESSION: usize = 20;
/// Changes of a session, at most.
const CHANGES_MAX: usize = 12;

/// A request, before it is bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message {
    opcode: u32,
    node: u64,
    body: Vec<u8>,
}

impl Message {
    /// Reads a line of the corpus.
    fn parse(line: &str) -> Message {
        let mut parts = line.split_whitespace();
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        let (opcode, node) = (number().expect("an opcode"), number().expect("a node"));
        let mut body = Vec::new();
        for part in parts {
            let (kind, value) = part.split_at(1);
            match kind {
                "u" => body.extend(value.parse::<u32>().expect("a u32").to_le_bytes()),
                "q" => body.extend(value.parse::<u64>().expect("a u64").to_le_bytes()),
                "n" => body.extend([value.as_bytes(), b"\0"].concat()),
                "t" => body.extend(value.as_bytes()),
                _ => panic!("{part} is no part of a request"),
            }
        }
        Message { opcode: u32::try_from(opcode).expect("an opcode"), node, body }
    }

    fn bytes(&self, unique: u64) -> Vec<u8> {
        let length = u32::try_from(HEADER_BYTES + self.body.len()).expect("it is short");
        let mut bytes = Vec::new();
        [length, self.opcode].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        [unique, self.node].iter().for_each(|long| bytes.extend(long.to_le_bytes()));
        [0_u32, 0, 4711, 0].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(&self.body);
        bytes
    }
}

/// Numbers at an edge of something, by a byte; others as they come.
fn edge(choice: u8, value: u32) -> u64 {
    match choice % 6 {
        0 => u64::MAX,
        1 => 1 << 63,
        2 => (1 << 63) - 1,
        3 => 1 << (value % 64),
        4 => (1 << (value % 64)) - 1,
        _ => u64::from(value),
    }
}

/// Makes one change, told by eight bytes.
fn change(session: &mut Vec<Message>, told: [u8; 8]) {
    let [line, kind, low, high, a, b, c, d] = told;
    let at = usize::from(u16::from_le_bytes([low, high]));
    let value = u32::from_le_bytes([a, b, c, d]);
    let line = usize::from(line) % session.len();
    let other = usize::from(a) % session.len();
    let message = &mut session[line];
    let fields = message.body.len() / 4;
    match kind % 8 {
        0 => message.opcode = value % OPCODES_END,
        1 => message.node = u64::from(value % NODES_END),
        2 | 3 if fields > 0 => {
            let width = 4 << (kind >> 7);
            let start = at % fields * 4;
            let end = (start + width).min(message.body.len());
            let value = edge(kind >> 3, value).to_le_bytes();
            message.body[start..end].copy_from_slice(&value[..end - start]);
        }
        4 if !message.body.is_empty() => {
            let at = at % message.body.len();
            message.body[at] = a;
        }
        5 => message.body.resize(at % BODY_BYTES_MAX, b),
        6 => session.swap(line, other),
        _ => {
            let copy = session[other].clone();
            session.insert(line, copy);
        }
    }
}

/// Sends a session to a pool; every reply is one that a kernel takes. Returns what was refused.
fn send<'s>(pool: &Arc<Pool>, session: &'s [Message]) -> Vec<&'s Message> {
    let mut refused = Vec::new();
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(pool);
    let sent = Arc::new(CollectedReplies::default());
    let mut exchange = Exchange::new(Arc::new(FuseServer::new(fs)), sent.clone());
    for (unique, message) in (1..).zip(session) {
        let bytes = message.bytes(unique);
        exchange.answer(Incoming::from(&bytes[..]));
        let mut replies = sent.take();
        let is_silent = SILENT.contains(&message.opcode);
        assert_eq!(replies.len(), usize::from(!is_silent), "{message:?}: {replies:?}");
        let Some(whole) = replies.pop() else { continue };
        assert!(whole.len() <= REPLY_BYTES_MAX, "a reply of {} bytes", whole.len());
        let length = u32::try_from(whole.len()).expect("it is short");
        assert_eq!(whole[..4], length.to_le_bytes(), "{message:?}");
        assert_eq!(whole[8..16], unique.to_le_bytes(), "{message:?}");
        refused.extend((whole[4..8] != [0; 4]).then_some(message));
        assert_eq!(exchange.panic_count(), 0, "{message:?}");
    }
    refused
}

fn open(image: &Image) -> (SharedDevice, Arc<Pool>) {
    let device: SharedDevice = SimDevice::open(image.clone(), SimOptions::default());
    let options = PoolOpenOptions { cache_bytes: 1 << 20, ..PoolOpenOptions::default() };
    let pool = Pool::open(Arc::clone(&device), Arc::new(ManualClock::new()), options);
    (device, Arc::new(pool.expect("a new pool opens")))
}

/// Goal: no request harms the pool or the server. Method: see the module; afterwards the pool is
/// closed and checked.
#[test]
fn any_session_is_answered_and_leaves_the_pool_sound() {
    let device = SimDevice::new(POOL_BYTES, SimOptions::default());
    let shared: SharedDevice = Arc::<SimDevice>::clone(&device);
    Pool::create(&shared, &ManualClock::new(), &PoolCreateOptions::new(POOL_BYTES, [7; 64]))
        .expect("a pool fits");
    let base = device.durable_image();
    let lines = SESSION.lines().filter(|line| !line.starts_with('#'));
    let session: Vec<Message> = lines.map(Message::parse).collect();
    assert_eq!(send(&open(&base).1, &session), Vec::<&Message>::new(), "nothing is wrong with it");
    bolero::check!().with_iterations(iterations() / PAGES_PER_SESSION).for_each(
        |bytes: &[u8]| {
            let mut session = session.clone();
            for &told in bytes.as_chunks::<8>().0.iter().take(CHANGES_MAX) {
                change(&mut session, told);
            }
            let (device, pool) = open(&base);
            send(&pool, &session);
            pool.close().expect("nothing fails");
            let report = check::run(device, check::CheckOptions::default(), &mut |_| ());
            assert!(report.is_clean(), "{}", report.to_text());
        },
    );
}
