//! How many calls of NFS a server answers in a second: it and its clients in one process, over
//! loopback, the pool in memory or where it is told; or any other server.
//!
//! `nfs-calls getattr|create|write|files CLIENTS WINDOW COUNT [POOL | HOST:PORT:MOUNTPORT:EXPORT]`:
//! each client has WINDOW calls on their way, and makes COUNT of them, in a directory of its own.
//! `write` is durable, of 4 KiB, each client in a file of its own. `files` makes COUNT files, each
//! by CREATE, an UNSTABLE WRITE of 4 KiB and COMMIT. Clients take part of the processors: on two of
//! them a server alone would be faster. What was made is removed when the time has been taken.

#![expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use engine::api::FileSystem;
use engine::{Pool, PoolCreateOptions, PoolOpenOptions};
use front::nfs::{Export, HandleKey, NfsServer, ServerOptions, Service};
use runtime::clock::SystemClock;
use storage::device::{FileDevice, FileOptions, MemoryDevice, SharedDevice};

const POOL_BYTES: u64 = 4 << 30;
const WRITE_BYTES: u32 = 4096;
const NFS: [u32; 2] = [100_003, 3];
const MOUNT: [u32; 2] = [100_005, 3];
/// Bytes of an answer before its results: record mark and head.
const HEAD_BYTES: usize = 28;
const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;

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

    /// Makes `count` calls with `window` of them on their way, and gives each answer's results to
    /// `taken`, with the number of its call.
    fn run(
        &mut self,
        window: u32,
        count: u32,
        record: &dyn Fn(u32) -> Vec<u8>,
        taken: &mut dyn FnMut(u32, &[u8]),
    ) {
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
                let xid = u32::from_be_bytes(*answer[4..].first_chunk().expect("it has one"));
                taken(xid, &answer[HEAD_BYTES + 4..]);
                (answered, room) = (answered + 1, room + 1);
            }
        }
    }
}

/// Returns the bytes that begin with their count.
fn opaque_of(bytes: &[u8]) -> Vec<u8> {
    let count = u32::from_be_bytes(*bytes.first_chunk().expect("they are counted"));
    bytes[4..][..usize::try_from(count).expect("it is short")].to_vec()
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

fn serve(path: Option<&str>) -> (Arc<Pool>, NfsServer, SocketAddr) {
    let device = device_of(path);
    Pool::create(&device, &SystemClock::new(), &PoolCreateOptions::new(POOL_BYTES, [3; 64]))
        .expect("a pool fits");
    let pool = Pool::open(device, Arc::new(SystemClock::new()), PoolOpenOptions::default());
    let pool = Arc::new(pool.expect("it opens"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let service = Arc::new(Service::new(HandleKey([1; 16]), address.port()));
    let fs: Arc<dyn FileSystem> = Arc::<Pool>::clone(&pool);
    let rules = "/:rw,squash=none,insecure".parse().expect("it is one");
    service.add(Export::new(rules, fs).expect("it is there")).expect("it is the first");
    let options = ServerOptions::default();
    (pool, NfsServer::start(service, vec![listener], &options).expect("it starts"), address)
}

/// What is asked, and how much of it.
#[derive(Clone, Copy)]
struct Job<'a> {
    what: &'a str,
    window: u32,
    count: u32,
}

/// Where a server answers, and what of it is mounted.
#[derive(Clone, Copy)]
struct Target<'a> {
    nfs: SocketAddr,
    mount: SocketAddr,
    export: &'a str,
}

impl<'a> Target<'a> {
    /// Reads `HOST:PORT:MOUNTPORT:EXPORT`; `None`: it is none.
    fn parse(text: &'a str) -> Option<Target<'a>> {
        let [host, nfs, mount, export] = text.splitn(4, ':').collect::<Vec<_>>()[..] else {
            return None;
        };
        let at = |port: &str| format!("{host}:{port}").parse().ok();
        Some(Target { nfs: at(nfs)?, mount: at(mount)?, export })
    }
}

/// A client with a directory of its own.
struct Worker<'a> {
    client: Client,
    job: Job<'a>,
    parent: Vec<u8>,
    name: String,
    home: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn begin(target: Target<'_>, job: Job<'a>, number: u32) -> Worker<'a> {
        let export = Words::default().opaque(target.export.as_bytes());
        let mounted = connect(target.mount).ask(&call(0, MOUNT, 1, &export));
        assert_eq!(mounted[HEAD_BYTES..][..4], [0; 4], "the export cannot be mounted");
        let parent = opaque_of(&mounted[HEAD_BYTES + 4..]);
        let name = format!("nfs-calls-{}-{number}", std::process::id());
        let mut client = connect(target.nfs);
        let place = Words::default().opaque(&parent).opaque(name.as_bytes());
        let place = place.u32(1).u32(0o755);
        let made = client.ask(&call(0, NFS, 9, &[0; 5].into_iter().fold(place, Words::u32)));
        assert_eq!(made[HEAD_BYTES..][..8], [0, 0, 0, 0, 0, 0, 0, 1], "no directory was made");
        let home = opaque_of(&made[HEAD_BYTES + 8..]);
        Worker { client, job, parent, name, home }
    }

    fn place(&self, number: u32) -> Words {
        Words::default().opaque(&self.home).opaque(format!("f{number}").as_bytes())
    }

    /// Makes the files `first..first + count`, and returns their handles.
    fn make(&mut self, first: u32, count: u32) -> Vec<Vec<u8>> {
        let mut handles = vec![Vec::new(); usize::try_from(count).expect("they fit")];
        let home = Words::default().opaque(&self.home).0;
        let record = |xid: u32| {
            let name = format!("f{}", first + xid);
            let place = Words(home.clone()).opaque(name.as_bytes()).u32(1);
            call(xid, NFS, 8, &[0; 6].into_iter().fold(place, Words::u32))
        };
        self.client.run(self.job.window, count, &record, &mut |xid, results| {
            assert_eq!(results[..4], [0, 0, 0, 1], "a file has no handle");
            handles[usize::try_from(xid).expect("it is small")] = opaque_of(&results[4..]);
        });
        handles
    }

    /// Makes so many files, each written and committed, a window of them at a time.
    fn files(&mut self) {
        let mut made = 0;
        while made < self.job.count {
            let next = self.job.window.min(self.job.count - made);
            let handles = self.make(made, next);
            let of = |xid: u32| &handles[usize::try_from(xid).expect("it is small")];
            let write = |xid: u32| write(xid, of(xid), 0, UNSTABLE);
            self.client.run(next, next, &write, &mut |_, _| ());
            let commit = |xid: u32| {
                call(xid, NFS, 21, &Words::default().opaque(of(xid)).u32(0).u32(0).u32(0))
            };
            self.client.run(next, next, &commit, &mut |_, _| ());
            made += next;
        }
    }

    /// Makes the calls whose time is taken; `file` is one that is there.
    fn work(&mut self, file: &[u8]) {
        let Job { what, window, count } = self.job;
        let home = self.home.clone();
        let getattr = |xid| call(xid, NFS, 1, &Words::default().opaque(&home));
        let writing = |xid: u32| write(xid, file, xid % 256 * WRITE_BYTES, FILE_SYNC);
        match what {
            "getattr" => self.client.run(window, count, &getattr, &mut |_, _| ()),
            "create" => drop(self.make(0, count)),
            "write" => self.client.run(window, count, &writing, &mut |_, _| ()),
            "files" => self.files(),
            _ => panic!("{what} is none of getattr, create, write, files"),
        }
    }

    fn tidy(&mut self, count: u32) {
        let places: Vec<Words> = (0..count).map(|number| self.place(number)).collect();
        let remove =
            |xid: u32| call(xid, NFS, 12, &places[usize::try_from(xid).expect("it is small")]);
        self.client.run(self.job.window, count, &remove, &mut |_, _| ());
        let place = Words::default().opaque(&self.parent).opaque(self.name.as_bytes());
        self.client.ask(&call(0, NFS, 13, &place));
    }
}

fn write(xid: u32, file: &[u8], offset: u32, stability: u32) -> Vec<u8> {
    let data = vec![7; usize::try_from(WRITE_BYTES).expect("it is small")];
    let place = Words::default().opaque(file).u32(0).u32(offset);
    call(xid, NFS, 7, &place.u32(WRITE_BYTES).u32(stability).opaque(&data))
}

/// Lets so many clients work, and returns the seconds that they took.
fn measure(target: Target<'_>, job: Job<'_>, clients: u32) -> f64 {
    let gate = Barrier::new(usize::try_from(clients).expect("they are few") + 1);
    std::thread::scope(|scope| {
        for number in 0..clients {
            let gate = &gate;
            scope.spawn(move || {
                let mut worker = Worker::begin(target, job, number);
                let made = u32::from(job.what == "write");
                let file = worker.make(0, made).pop().unwrap_or_default();
                gate.wait();
                worker.work(&file);
                gate.wait();
                let made = if matches!(job.what, "create" | "files") { job.count } else { made };
                worker.tidy(made);
            });
        }
        gate.wait();
        let begun = Instant::now();
        gate.wait();
        begun.elapsed().as_secs_f64()
    })
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [what, clients, window, count, rest @ ..] = &words[..] else {
        panic!(
            "nfs-calls getattr|create|write|files CLIENTS WINDOW COUNT \
             [POOL | HOST:PORT:MOUNTPORT:EXPORT]"
        )
    };
    let number = |text: &str| text.parse::<u32>().expect("a number");
    let (clients, window, count) = (number(clients), number(window), number(count));
    let job = Job { what, window, count };
    let place = rest.first().copied();
    let seconds = if let Some(target) = place.and_then(Target::parse) {
        measure(target, job, clients)
    } else {
        let (pool, server, address) = serve(place);
        let seconds = measure(Target { nfs: address, mount: address, export: "/" }, job, clients);
        drop(server);
        pool.close().expect("nothing fails");
        seconds
    };
    let rate = f64::from(clients) * f64::from(count) / seconds;
    let unit = if *what == "files" { "files" } else { "calls" };
    println!("{what}: {clients} clients, window {window}: {rate:.0} {unit}/s");
}
