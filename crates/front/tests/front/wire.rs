//! The protocol's bytes, without a kernel: messages as a kernel sends them, and as none does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::api::{AlignedBuffer, Caller, FileKind, FileSystem, NewInode, SharedBytes, Timestamp};
use front::fuse::{CollectedReplies, Exchange, FuseServer, Incoming, MessageData};
use rustix::io::Errno;

use crate::memory_fs::{MemoryFs, PANICKING};

const HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;
const WRITE: u32 = 16;
const WRITE_HEAD_BYTES: usize = 80;
/// Opcodes whose messages have no reply.
const SILENT: [u32; 3] = [2, 41, 42];
/// Cases of each fuzz test; a debug build does some 200,000 a second.
const CASES: u64 = 100_000;

struct Kernel {
    fs: Arc<MemoryFs>,
    exchange: Exchange,
    sent: Arc<CollectedReplies>,
    /// Whether the data of the next WRITE comes apart from what is before it, as it does by turns.
    is_apart: bool,
}

impl Kernel {
    fn new() -> Kernel {
        let fs = Arc::new(MemoryFs::new());
        let server = FuseServer::new(fs.clone());
        let sent = Arc::new(CollectedReplies::default());
        let exchange = Exchange::new(Arc::new(server), sent.clone());
        Kernel { fs, exchange, sent, is_apart: false }
    }

    /// Makes a file; returns its node.
    fn make(&mut self, name: &[u8]) -> u64 {
        let new = NewInode::new(FileKind::Regular, 0o600);
        self.fs.create(&Caller::root(), self.fs.root(), name, new, None).expect("the name is new");
        let (_, entry) = self.ask(1, 1, &[name, b"\0"].concat()).expect("a reply");
        long(&entry, 0)
    }

    /// Sends a message and returns the error and what follows it in the reply.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        self.send(&message(opcode, node, body))
    }

    /// Sends bytes; any reply must be one that a kernel takes.
    fn send(&mut self, message: &[u8]) -> Option<(i32, Vec<u8>)> {
        self.is_apart = !self.is_apart;
        let is_write = message.len() > WRITE_HEAD_BYTES && word(message, 4) == WRITE;
        let (head, data) = if is_write && self.is_apart {
            let (head, data) = message.split_at(WRITE_HEAD_BYTES);
            (head, Some(SharedBytes::from(AlignedBuffer::copy_of(data))))
        } else {
            (message, None)
        };
        self.exchange.answer(Incoming { head, data: data.as_ref().map(MessageData::Shared) });
        let mut replies = self.sent.take();
        assert!(replies.len() <= 1, "{} replies", replies.len());
        let whole = replies.pop()?;
        assert!(whole.len() <= OUT_HEADER_BYTES + (1 << 20), "a reply of {} bytes", whole.len());
        assert_eq!(word(&whole, 0), u32::try_from(whole.len()).expect("it is short"));
        assert_eq!(&whole[8..16], &message[8..16], "the reply to another request");
        let error = word(&whole, 4).cast_signed();
        assert!((-511..=0).contains(&error), "{error} is no error");
        assert!(error == 0 || whole.len() == OUT_HEADER_BYTES, "an error with data");
        Some((error, whole[OUT_HEADER_BYTES..].to_vec()))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).expect("it is short");
    let mut bytes = Vec::new();
    for word in [length, opcode] {
        bytes.extend(word.to_le_bytes());
    }
    for long in [0x1122_3344_5566_7788, node] {
        bytes.extend(long.to_le_bytes());
    }
    for word in [1000_u32, 100, 4711, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Joins numbers and names to the arguments of a message.
macro_rules! body {
    ($($part:expr),*) => {{
        let mut bytes: Vec<u8> = Vec::new();
        $(bytes.extend(Vec::from($part.to_bytes()));)*
        bytes
    }};
}

trait ToBytes {
    fn to_bytes(&self) -> Vec<u8>;
}

impl ToBytes for u32 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl ToBytes for u64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl ToBytes for i64 {
    fn to_bytes(&self) -> Vec<u8> {
        self.to_le_bytes().to_vec()
    }
}

impl ToBytes for &str {
    fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }
}

/// SETATTR of both times.
fn set_times(seconds: i64, nanoseconds: u32) -> Vec<u8> {
    let valid = 1_u32 << 4 | 1 << 5;
    let (no, nothing) = (0_u32, 0_u64);
    body!(
        valid,
        no,
        nothing,
        nothing,
        nothing,
        seconds,
        seconds,
        0_i64,
        nanoseconds,
        nanoseconds,
        no,
        no,
        no,
        no,
        no,
        no
    )
}

/// Returns one good message of every opcode there is.
fn good_messages(file: u64) -> Vec<Vec<u8>> {
    let (no, nothing) = (0_u32, 0_u64);
    let read = body!(nothing, nothing, 4096_u32, no, nothing, no, no);
    let bodies: Vec<(u32, u64, Vec<u8>)> = vec![
        (1, 1, body!("file\0")),
        (2, file, body!(nothing)),
        (3, file, body!(no, no, nothing)),
        (4, file, set_times(i64::MIN, 0)),
        (5, file, body!("")),
        (6, 1, body!("link\0target\0")),
        (8, 1, body!(0o100_644_u32, no, no, no, "node\0")),
        (9, 1, body!(0o755_u32, no, "directory\0")),
        (10, 1, body!("node\0")),
        (11, 1, body!("directory\0")),
        (12, 1, body!(1_u64, "file\0moved\0")),
        (13, 1, body!(file, "second\0")),
        (14, file, body!(no, no)),
        (15, file, read.clone()),
        (16, file, body!(nothing, nothing, 4_u32, no, nothing, no, no, "data")),
        (17, 1, body!("")),
        (18, file, body!(nothing, no, no, nothing)),
        (20, file, body!(nothing, 1_u32, no)),
        (21, file, body!(5_u32, no, "user.x\0value")),
        (22, file, body!(0_u32, no, "user.x\0")),
        (23, file, body!(100_u32, no)),
        (24, file, body!("user.x\0")),
        (25, file, body!(nothing, no, no, nothing)),
        (26, 1, body!(7_u32, 45_u32, no, no)),
        (27, 1, body!(no, no)),
        (28, 1, read.clone()),
        (29, 1, body!(nothing, no, no, nothing)),
        (30, 1, body!(nothing, no, no)),
        (31, file, body!(nothing)),
        (34, file, body!(4_u32, no)),
        (35, 1, body!(0o102_u32, 0o100_644_u32, 0o22_u32, no, "created\0")),
        (36, 0, body!(nothing)),
        (37, file, body!(nothing, no, no)),
        (38, 0, body!("")),
        (39, file, body!(nothing, no, no, nothing, no, no)),
        (40, file, body!(nothing, nothing, no, no)),
        (41, file, body!("")),
        (42, 0, body!(2_u32, no, file, nothing, file, nothing)),
        (43, file, body!(nothing, nothing, 4096_u64, no, no)),
        (44, 1, read),
        (45, 1, body!(1_u64, 1_u32, no, "moved\0file\0")),
        (46, file, body!(nothing, nothing, 3_u32, no)),
        (47, file, body!(nothing, nothing, file, nothing, nothing, 1_u64, nothing)),
        (51, 1, body!(no, 0o100_644_u32, no, no, "/\0")),
        (52, file, body!(no, no, nothing, no, no)),
        (53, file, body!(nothing, nothing, file, nothing, nothing, 1_u64, nothing)),
    ];
    bodies.into_iter().map(|(opcode, node, body)| message(opcode, node, &body)).collect()
}

fn with_file() -> (Kernel, u64) {
    let mut kernel = Kernel::new();
    let body = body!(0o100_644_u32, 0_u32, 0o22_u32, 0_u32, "file\0");
    let (error, reply) = kernel.ask(8, 1, &body).expect("MKNOD has a reply");
    assert_eq!((error, reply.len()), (0, 128));
    let node = long(&reply, 0);
    (kernel, node)
}

#[test]
fn a_file_is_created_looked_up_and_listed_as_the_protocol_has_it() {
    let (mut kernel, node) = with_file();
    let (_, entry) = kernel.ask(1, 1, b"file\0").expect("a reply");
    assert_eq!(long(&entry, 0), node);
    assert_eq!(word(&entry, 40 + 60), 0o100_644, "the mode, to which the kernel put the umask");
    let (error, absent) = kernel.ask(1, 1, b"absent\0").expect("a reply");
    assert_eq!((error, long(&absent, 0)), (0, 0), "node 0: there is none, and that is for good");

    let read = body!(0_u64, 0_u64, 4096_u32, 0_u32, 0_u64, 0_u32, 0_u32);
    let (_, names) = kernel.ask(28, 1, &read).expect("a reply");
    // Three names of at most 8 bytes behind 24 each.
    assert_eq!(names.len(), 3 * 32);
    assert_eq!(&names[64 + 24..64 + 28], b"file");
    let (_, nodes) = kernel.ask(44, 1, &read).expect("a reply");
    assert_eq!(nodes.len(), 3 * (128 + 32));
    let each: Vec<u64> = (0..3).map(|number| long(&nodes, number * 160)).collect();
    assert_eq!(each, [0, 0, node], "no attributes of `.` and `..`");
}

/// Goal: what one of the fields cannot mean is refused by itself, with the error it deserves.
#[test]
fn nonsense_is_refused_with_the_error_it_deserves() {
    let (mut kernel, file) = with_file();
    let nothing = 0_u64;
    let write =
        |offset: u64, size: u32| body!(0_u64, offset, size, 0_u32, 0_u64, 0_u32, 0_u32, "data");
    let fallocate = |offset: u64, mode: u32| body!(0_u64, offset, 1_u64, mode, 0_u32);
    let cases: Vec<(&str, u32, Vec<u8>, Errno)> = vec![
        ("a name without an end", 1, body!("file"), Errno::INVAL),
        ("no name", 1, body!("\0"), Errno::INVAL),
        ("a path for a name", 1, body!("a/b\0"), Errno::INVAL),
        ("removing `..`", 10, body!("..\0"), Errno::INVAL),
        ("a second name that is missing", 12, body!(1_u64, "file\0"), Errno::INVAL),
        ("a rename of two modes", 45, body!(1_u64, 3_u32, 0_u32, "a\0b\0"), Errno::INVAL),
        ("an exchange with a whiteout", 45, body!(1_u64, 6_u32, 0_u32, "a\0b\0"), Errno::INVAL),
        ("a node without a kind", 8, body!(0o644_u32, 0_u32, 0_u32, 0_u32, "n\0"), Errno::INVAL),
        ("more data than is there", 16, write(0, 5), Errno::INVAL),
        ("a write before the start", 16, write(u64::MAX, 4), Errno::INVAL),
        ("a write past the largest file", 16, write((1 << 63) - 3, 4), Errno::FBIG),
        ("a billion nanoseconds", 4, set_times(0, 1_000_000_000), Errno::INVAL),
        ("punching that changes the size", 43, fallocate(0, 2), Errno::OPNOTSUPP),
        ("a range past the largest file", 43, fallocate((1 << 63) - 1, 0), Errno::FBIG),
        ("an unknown whence", 46, body!(nothing, nothing, 9_u32, 0_u32), Errno::INVAL),
        ("a second handshake", 26, body!(7_u32, 45_u32, 0_u32, 0_u32), Errno::PROTO),
        ("an opcode of another protocol", 4096, body!(""), Errno::NOSYS),
    ];
    for (what, opcode, body, error) in cases {
        let node = if [1, 10, 12, 45, 8].contains(&opcode) { 1 } else { file };
        let reply = kernel.ask(opcode, node, &body).expect("a reply");
        assert_eq!(reply, (-error.raw_os_error(), Vec::new()), "{what}");
    }
    let mut short = message(1, 1, b"file\0");
    short.pop();
    let refused = Some((-Errno::INVAL.raw_os_error(), Vec::new()));
    assert_eq!(kernel.send(&short), refused, "less than the header says");
    assert_eq!(kernel.send(&short[..39]), None, "no header, so nothing that could be answered");
    let mut extended = message(3, file, &body!(0_u32, 0_u32, 0_u64));
    extended[36] = 3;
    assert_eq!(kernel.send(&extended), refused, "extensions longer than the message");
}

/// Goal: FU8. Pages of the kernel's cache that do not all find room are an error; of a write(2) the
/// program is told how much found room. Method: room for two of four bytes.
#[test]
fn pages_of_the_cache_are_written_whole_or_refused() {
    const OF_CACHE: u32 = 1 << 0;
    let (mut kernel, file) = with_file();
    let write = |flags: u32| body!(0_u64, 0_u64, 4_u32, flags, 0_u64, 0_u32, 0_u32, "data");
    let no_space = (-Errno::NOSPC.raw_os_error(), Vec::new());
    let written = |count: u32| (0, body!(count, 0_u32));
    // Twice: the data comes with the message or apart from it.
    for _ in 0..2 {
        kernel.fs.size_bytes_max.store(2, Ordering::SeqCst);
        assert_eq!(kernel.ask(16, file, &write(OF_CACHE)), Some(no_space.clone()));
    }
    for _ in 0..2 {
        assert_eq!(kernel.ask(16, file, &write(0)), Some(written(2)));
    }
    kernel.fs.size_bytes_max.store(u64::MAX, Ordering::SeqCst);
    assert_eq!(kernel.ask(16, file, &write(OF_CACHE)), Some(written(4)));
}

#[test]
fn a_rename_does_what_its_flags_say() {
    const WHITEOUT_MODE: u32 = 0o020_000;
    let (mut kernel, file) = with_file();
    let mut rename = |flags: u32, names: &str| {
        kernel.ask(45, 1, &body!(1_u64, flags, 0_u32, names)).expect("a reply").0
    };
    let exists = -Errno::EXIST.raw_os_error();
    assert_eq!(rename(5, "file\0file\0"), exists, "a whiteout, and the target stays");
    assert_eq!(rename(1, "file\0file\0"), exists);
    assert_eq!(rename(4, "file\0moved\0"), 0, "a whiteout");
    assert_eq!(rename(2, "file\0moved\0"), 0, "an exchange");
    assert_eq!(rename(5, "moved\0new\0"), 0, "a whiteout, and there is no target");
    let mut find = |name: &[u8]| {
        let (_, entry) = kernel.ask(1, 1, name).expect("a reply");
        (long(&entry, 0), word(&entry, 40 + 60))
    };
    assert_eq!(find(b"file\0"), (file, 0o100_644));
    assert_eq!(find(b"new\0").1, WHITEOUT_MODE);
    assert_eq!(find(b"moved\0").1, WHITEOUT_MODE);
    assert_ne!(find(b"moved\0").0, find(b"new\0").0);
}

#[test]
fn the_ends_of_time_come_through() {
    let (mut kernel, file) = with_file();
    for seconds in [i64::MIN, -1, 0, i64::MAX] {
        let (error, reply) = kernel.ask(4, file, &set_times(seconds, 7)).expect("a reply");
        assert_eq!(error, 0);
        assert_eq!(long(&reply, 16 + 24).cast_signed(), seconds);
        let attr = kernel.fs.lookup(&Caller::root(), kernel.fs.root(), b"file").expect("there");
        assert_eq!(attr.mtime, Timestamp { seconds, nanoseconds: 7 });
        let (_, statx) = kernel.ask(52, file, &body!(0_u32, 0_u32, 0_u64)).expect("a reply");
        assert_eq!(long(&statx, 32 + 64 + 48).cast_signed(), seconds, "mtime");
        assert_eq!(long(&statx, 32 + 64 + 16), 1_000_000_000, "the time of birth");
    }
}

#[test]
fn a_panic_costs_one_request_and_forgets_stay_silent() {
    let mut kernel = Kernel::new();
    let new = NewInode::new(FileKind::Regular, 0o600);
    let root = kernel.fs.root();
    kernel.fs.create(&Caller::root(), root, PANICKING, new, None).expect("the name is new");
    let (_, entry) = kernel.ask(1, 1, &[PANICKING, b"\0"].concat()).expect("a reply");
    let read = body!(0_u64, 0_u64, 4096_u32, 0_u32, 0_u64, 0_u32, 0_u32);
    let reply = kernel.ask(15, long(&entry, 0), &read).expect("a reply");
    assert_eq!(reply.0, -Errno::IO.raw_os_error());
    assert_eq!(kernel.exchange.panic_count(), 1);
    let forget = body!(2_u32, 0_u32, long(&entry, 0), 1_u64, long(&entry, 0), 1_u64);
    assert_eq!(kernel.ask(42, 0, &forget), None);
    assert_eq!(kernel.ask(42, 0, &body!(3_u32, 0_u32)), None, "broken, and silent all the same");
    assert_eq!(kernel.ask(2, 1, &[]), None);
}

/// Goal: reads that are answered together are answered once each, and a bug in one costs that one.
#[test]
fn reads_are_answered_together_and_a_panic_costs_one_of_them() {
    let mut kernel = Kernel::new();
    let (sound, panicking) = (kernel.make(b"sound"), kernel.make(PANICKING));
    let write = body!(0_u64, 0_u64, 3_u32, 0_u32, 0_u64, 0_u32, 0_u32, "abc");
    kernel.ask(16, sound, &write).expect("a reply");
    let read = |offset: u64| body!(0_u64, offset, 4096_u32, 0_u32, 0_u64, 0_u32, 0_u32);
    assert!(!kernel.exchange.gather(message(1, 1, b"sound\0")[..].into()), "it is no read");
    for (node, offset) in [(sound, 0), (panicking, 0), (999, 0), (sound, 2)] {
        assert!(kernel.exchange.gather(message(15, node, &read(offset))[..].into()));
    }
    kernel.exchange.answer_gathered();
    let told = |reply: Vec<u8>| (word(&reply, 4).cast_signed(), reply[OUT_HEADER_BYTES..].to_vec());
    let mut replies: Vec<_> = kernel.sent.take().into_iter().map(told).collect();
    replies.sort();
    let (stale, io) = (-Errno::STALE.raw_os_error(), -Errno::IO.raw_os_error());
    let expected = [(stale, ""), (io, ""), (0, "abc"), (0, "c")];
    assert_eq!(replies, expected.map(|(error, data)| (error, data.as_bytes().to_vec())));
    kernel.exchange.answer_gathered();
    assert!(kernel.sent.take().is_empty(), "nothing is left");
}

/// Goal: a sync gets one reply, whoever sends it and whatever happens (EX1), and others are
/// answered meanwhile.
#[test]
fn a_sync_is_answered_once_when_it_is_over() {
    let mut kernel = Kernel::new();
    let (sound, panicking) = (kernel.make(b"sound"), kernel.make(PANICKING));
    let sync = body!(0_u64, 0_u32, 0_u32);
    let (stale, io) = (-Errno::STALE.raw_os_error(), -Errno::IO.raw_os_error());
    assert_eq!(kernel.ask(20, sound, &sync), Some((0, Vec::new())), "over at once");
    kernel.fs.later.begin();
    let error_of = |replies: Vec<Vec<u8>>| {
        let [reply] = &replies[..] else { panic!("{} replies", replies.len()) };
        assert_eq!(reply.len(), OUT_HEADER_BYTES);
        word(reply, 4).cast_signed()
    };
    for (opcode, node, expected) in [(20, sound, 0), (30, 1, 0), (20, 999, stale)] {
        assert_eq!(kernel.ask(opcode, node, &sync), None, "it is not over");
        let getattr = body!(0_u32, 0_u32, 0_u64);
        assert!(kernel.ask(3, sound, &getattr).is_some_and(|(error, _)| error == 0));
        let (told, done) = kernel.fs.later.take().expect("it was asked for");
        std::thread::spawn(move || told(done)).join().expect("it sends a reply");
        assert_eq!(error_of(kernel.sent.take()), expected);
    }
    assert_eq!(kernel.ask(20, sound, &sync), None);
    drop(kernel.fs.later.take().expect("it was asked for"));
    assert_eq!(error_of(kernel.sent.take()), io, "nobody will tell");
    assert_eq!(kernel.ask(20, panicking, &sync), Some((io, Vec::new())));
}

/// Goal: what is gathered is bounded, in number and in bytes.
#[test]
fn reads_are_gathered_up_to_a_bound() {
    let mut kernel = Kernel::new();
    let mut gathered = |bytes: u32| {
        let read = body!(0_u64, 0_u64, bytes, 0_u32, 0_u64, 0_u32, 0_u32);
        let mut count = 0;
        while kernel.exchange.has_room() {
            assert!(kernel.exchange.gather(message(15, 1, &read)[..].into()));
            count += 1;
        }
        kernel.exchange.answer_gathered();
        count
    };
    assert_eq!([4096, 128 << 10, 1 << 20, u32::MAX].map(&mut gathered), [32, 8, 1, 1]);
}

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("it is small");
        usize::try_from(self.next() % end).expect("it is small")
    }

    /// Numbers that are often at an edge of something.
    fn edge(&mut self) -> u64 {
        let near = 1_u64 << self.below(64);
        match self.below(4) {
            0 => near,
            1 => near - 1,
            2 => u64::MAX,
            _ => self.next(),
        }
    }
}

/// Goal: RQ1 and EX1. Good messages with something changed: a field, bytes, the length, the opcode.
#[test]
fn any_change_of_a_message_gets_one_reply() {
    let (mut kernel, file) = with_file();
    let good = good_messages(file);
    for seed in 0..CASES {
        // A file system that was changed at random for long holds too much.
        if seed % 1000 == 0 {
            kernel = with_file().0;
        }
        let mut random = Random(seed);
        let mut bytes = good[random.below(good.len())].clone();
        for _ in 0..random.below(4) {
            mutate(&mut random, &mut bytes);
        }
        let opcode = word(&bytes, 4);
        let reply = kernel.send(&bytes);
        let has_reply = !SILENT.contains(&opcode);
        assert_eq!(reply.is_some(), has_reply, "seed={seed} opcode={opcode}");
        assert_eq!(kernel.exchange.panic_count(), 0, "seed={seed} opcode={opcode}");
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(5) {
        0 => {
            let at = random.below(bytes.len());
            bytes[at] = random.next().to_le_bytes()[0];
        }
        // A field of 4 or 8 bytes.
        1 | 2 => {
            let width = 4 << random.below(2);
            let at = random.below(bytes.len() / 4) * 4;
            let end = (at + width).min(bytes.len());
            let value = random.edge().to_le_bytes();
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        // Shorter or longer, and the header says so, or not.
        3 => {
            let length = HEADER_BYTES + random.below(bytes.len());
            bytes.resize(length, 0);
            if random.below(4) != 0 {
                let length = u32::try_from(length).expect("it is short");
                bytes[..4].copy_from_slice(&length.to_le_bytes());
            }
        }
        _ => {
            let opcode = u32::try_from(random.below(60)).expect("it is small");
            bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
        }
    }
}

#[test]
fn random_bytes_get_at_most_one_reply() {
    let mut kernel = with_file().0;
    for seed in 0..CASES {
        let mut random = Random(seed);
        let length = random.below(300);
        let mut bytes: Vec<u8> = (0..length)
            .map(|_| random.next().to_le_bytes()[0] & random.edge().to_le_bytes()[0])
            .collect();
        if length >= HEADER_BYTES && random.below(8) != 0 {
            let length = u32::try_from(length).expect("it is short");
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[5..8].fill(0);
            bytes[36..40].fill(0);
        }
        let reply = kernel.send(&bytes);
        let can_answer = length >= HEADER_BYTES && !SILENT.contains(&word(&bytes, 4));
        assert_eq!(reply.is_some(), can_answer, "seed={seed}");
        assert_eq!(kernel.exchange.panic_count(), 0, "seed={seed}");
    }
}

/// Goal: each message is counted once, with its operation, its error and how long it took: reads
/// that are answered together, and syncs, too.
#[test]
fn messages_are_counted_by_operation() {
    let mut kernel = Kernel::new();
    let node = kernel.make(b"a");
    let read = [0_u64.to_le_bytes(), 0_u64.to_le_bytes(), 8_u64.to_le_bytes()].concat();
    let read = [read, vec![0; 16]].concat();
    for _ in 0..3 {
        kernel.ask(15, node, &read);
        kernel.ask(3, node, &[0; 16]);
    }
    for _ in 0..2 {
        assert!(kernel.exchange.gather(message(15, node, &read).as_slice().into()));
    }
    kernel.exchange.answer_gathered();
    assert_eq!(kernel.sent.take().len(), 2);
    kernel.ask(20, node, &[0; 16]);
    // That there is no such name is an answer.
    let (errno, _) = kernel.ask(1, 1, b"none\0").expect("a reply");
    assert_eq!(errno, 0);
    // And that there is none to remove.
    assert_eq!(kernel.ask(10, 1, b"none\0").expect("a reply").0, -2);
    kernel.ask(4711, node, &[]);
    let counts = kernel.exchange.counts().get();
    let of = |name: &str| {
        let own = counts.iter().find(|it| it.name == name && it.answered > 0);
        own.map(|it| (it.answered, it.failed))
    };
    assert_eq!(of("READ"), Some((5, 0)));
    assert_eq!(of("GETATTR"), Some((3, 0)));
    assert_eq!(of("FSYNC"), Some((1, 0)));
    assert_eq!(of("LOOKUP"), Some((2, 0)));
    assert_eq!(of("UNLINK"), Some((1, 0)));
    assert_eq!(of("OTHER"), Some((1, 1)));
    assert_eq!(of("WRITE"), None);
    assert!(counts.iter().all(|it| (it.answered == 0) == (it.latency_ns == 0)));
}
