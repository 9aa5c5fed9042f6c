//! How many calls of NFS a server answers in a second: it and its clients in one process, over
//! loopback, the pool in memory or where it is told.
//!
//! `nfs-calls getattr|create|write CLIENTS WINDOW COUNT [POOL]`: each client has WINDOW calls on
//! their way, and makes COUNT of them. `write` is durable, of 4 KiB, each client in a file of its
//! own. Clients take part of the processors: on two of them a server alone would be faster.

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use engine::vnode::api::FileSystem;
use engine::{CreateOptions, OpenOptions, Pool};
use front::nfs::{Export, HandleKey, Server, ServerOptions, Service};
use runtime::clock::SystemClock;
use storage::device::{FileDevice, FileOptions, MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 4 << 30;
const WRITE_BYTES: u32 = 4096;
const NFS: [u32; 2] = [100_003, 3];
const MOUNT: [u32; 2] = [100_005, 3];
/// Bytes of an answer before its results: record mark and head.
const HEAD_BYTES: usize = 28;

#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn u32(mut self, word: u32) -> Words {
        self.0.extend(word.to_be_bytes());
        self
    }

    fn opaque(self, bytes: &[u8]) -> Words {
        let mut words = self.u32(u32::try_from(bytes.len()).expect("it is short"));
        words.0.extend(bytes);
        words.0.resize(words.0.len().next_multiple_of(4), 0);
        words
    }
}

/// Returns the record of a call by the superuser.
fn call(xid: u32, program: [u32; 2], number: u32, args: &Words) -> Vec<u8> {
    let sys = [0, 0, 0, 0, 0].into_iter().fold(Words::default(), Words::u32);
    let head = [xid, 0, 2, program[0], program[1], number, 1];
    let words = head.into_iter().fold(Words::default(), Words::u32).opaque(&sys.0).u32(0).u32(0);
    let length = u32::try_from(words.0.len() + args.0.len()).expect("it is short");
    let mark = (1 << 31 | length).to_be_bytes();
    [&mark[..], &words.0, &args.0].concat()
}

struct Client {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Returns the next answer, with its mark; `None`: it is not all there.
    fn answer(&mut self) -> Option<Vec<u8>> {
        let mark = u32::from_be_bytes(*self.buffer.first_chunk()?);
        let length = usize::try_from(mark & !(1 << 31)).expect("it is short") + 4;
        (self.buffer.len() >= length).then(|| self.buffer.drain(..length).collect())
    }

    fn fill(&mut self) {
        let mut bytes = [0; 65_536];
        let count = self.socket.read(&mut bytes).expect("the server answers");
        assert!(count > 0, "the server has hung up");
        self.buffer.extend(&bytes[..count]);
    }

    fn ask(&mut self, record: &[u8]) -> Vec<u8> {
        self.socket.write_all(record).expect("the server reads");
        loop {
            if let Some(answer) = self.answer() {
                return answer;
            }
            self.fill();
        }
    }

    /// Makes `count` calls with `window` of them on their way.
    fn run(&mut self, window: u32, count: u32, record: &dyn Fn(u32) -> Vec<u8>) {
        let (mut asked, mut answered) = (0, 0);
        let mut room = window;
        while answered < count {
            let next = room.min(count - asked);
            let batch: Vec<u8> = (asked..asked + next).flat_map(record).collect();
            self.socket.write_all(&batch).expect("the server reads");
            (asked, room) = (asked + next, 0);
            self.fill();
            while let Some(answer) = self.answer() {
                assert_eq!(answer[HEAD_BYTES..HEAD_BYTES + 4], [0; 4], "a call failed");
                (answered, room) = (answered + 1, room + 1);
            }
        }
    }
}

fn connect(address: SocketAddr) -> Client {
    let socket = TcpStream::connect(address).expect("the server listens");
    socket.set_nodelay(true).expect("it is a socket");
    Client { socket, buffer: Vec::new() }
}

fn device_of(path: Option<&str>) -> SharedDevice {
    let Some(path) = path else { return MemoryDevice::new("memory", POOL_BYTES) };
    let file = std::fs::File::create(path).expect("it can be made");
    file.set_len(POOL_BYTES).expect("there is room");
    FileDevice::open(Path::new(path), FileOptions::default()).expect("it opens")
}

fn serve(path: Option<&str>) -> (Arc<Pool>, Server, SocketAddr) {
    let device = device_of(path);
    Pool::create(&device, &SystemClock::new(), &CreateOptions::new(POOL_BYTES, [3; 64]))
        .expect("a pool fits");
    let pool = Pool::open(device, Arc::new(SystemClock::new()), OpenOptions::default());
    let pool = Arc::new(pool.expect("it opens"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let service = Arc::new(Service::new(HandleKey([1; 16]), address.port()));
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
    let rules = "/:rw,squash=none,insecure".parse().expect("it is one");
    service.add(Export::new(rules, fs).expect("it is there")).expect("it is the first");
    let options = ServerOptions::default();
    (pool, Server::start(service, vec![listener], &options).expect("it starts"), address)
}

/// Makes the calls of one client.
fn work(address: SocketAddr, what: &str, number: u32, window: u32, count: u32) {
    let mut client = connect(address);
    let mounted = client.ask(&call(0, MOUNT, 1, &Words::default().opaque(b"/")));
    let root = mounted[HEAD_BYTES + 8..HEAD_BYTES + 8 + 48].to_vec();
    let no_set = |words: Words| [0; 6].into_iter().fold(words, Words::u32);
    let make = |xid: u32, name: &str| {
        let place = Words::default().opaque(&root).opaque(name.as_bytes()).u32(1);
        call(xid, NFS, 8, &no_set(place))
    };
    match what {
        "getattr" => {
            let ask = |xid| call(xid, NFS, 1, &Words::default().opaque(&root));
            client.run(window, count, &ask);
        }
        "create" => client.run(window, count, &|xid| make(xid, &format!("f{number}-{xid}"))),
        "write" => {
            let made = client.ask(&make(0, &format!("f{number}")));
            let file = made[HEAD_BYTES + 12..HEAD_BYTES + 12 + 48].to_vec();
            let data = vec![7; usize::try_from(WRITE_BYTES).expect("it is small")];
            let ask = |xid: u32| {
                let place = Words::default().opaque(&file).u32(0).u32(xid % 256 * WRITE_BYTES);
                call(xid, NFS, 7, &place.u32(WRITE_BYTES).u32(2).opaque(&data))
            };
            client.run(window, count, &ask);
        }
        _ => panic!("{what} is none of getattr, create, write"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [what, clients, window, count, rest @ ..] = &words[..] else {
        panic!("nfs-calls getattr|create|write CLIENTS WINDOW COUNT [POOL]")
    };
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let (clients, window, count) = (number(clients), number(window), number(count));
    let (pool, server, address) = serve(rest.first().copied());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || work(address, what, client, window, count));
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let rate = f64::from(clients) * f64::from(count) / seconds;
    println!("{what}: {clients} clients, window {window}: {rate:.0} calls/s");
    drop(server);
    pool.close().expect("nothing fails");
}
