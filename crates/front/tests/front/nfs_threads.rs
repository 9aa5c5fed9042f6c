//! Threads of the NFS front that a file system keeps.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use front::nfs::{Export, ExportRules, HandleKey, NfsServer, ServerOptions, Service};

use super::memory_fs::{HANGING, MemoryFs};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;

/// A client that knows two calls.
struct Client(TcpStream);

impl Client {
    fn new(address: SocketAddr) -> Client {
        let socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("it is long");
        Client(socket)
    }

    /// Calls with opaque bytes; returns the status of the answer and what follows.
    fn call(&mut self, program: u32, procedure: u32, all: &[&[u8]]) -> (u32, Vec<u8>) {
        let head = [1, 0, 2, program, 3, procedure, 0, 0, 0, 0];
        let mut record: Vec<u8> = head.into_iter().flat_map(word).collect();
        for bytes in all {
            record.extend(word(u32::try_from(bytes.len()).expect("they are few")));
            record.extend(*bytes);
            record.resize(record.len().next_multiple_of(4), 0);
        }
        let mark = 1 << 31 | u32::try_from(record.len()).expect("it is short");
        self.0.write_all(&[&word(mark)[..], &record].concat()).expect("it reads");
        let mut mark = [0; 4];
        self.0.read_exact(&mut mark).expect("it is answered");
        let mut reply = vec![0; number(&mark) & 0x7fff_ffff];
        self.0.read_exact(&mut reply).expect("it is answered");
        // Number, direction, verdict, verifier and how it was accepted.
        let results = reply.split_off(24);
        (u32::try_from(number(&results[..4])).expect("a word"), results[4..].to_vec())
    }

    fn mount(&mut self, path: &str) -> Vec<u8> {
        let (status, results) = self.call(MOUNT, 1, &[path.as_bytes()]);
        assert_eq!(status, 0, "{path}");
        results[4..4 + number(&results[..4])].to_vec()
    }

    #[track_caller]
    fn getattr(&mut self, handle: &[u8]) {
        assert_eq!(self.call(NFS, 1, &[handle]).0, 0);
    }
}

#[expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]
fn word(word: u32) -> [u8; 4] {
    word.to_be_bytes()
}

#[expect(clippy::big_endian_bytes, reason = "XDR is big-endian")]
fn number(bytes: &[u8]) -> usize {
    let word = u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
    usize::try_from(word).expect("it fits")
}

fn export(name: &str, fs: &Arc<MemoryFs>) -> Export {
    let rules = format!("{name}:insecure,squash=none").parse::<ExportRules>();
    let fs = Arc::<MemoryFs>::clone(fs);
    Export::new(rules.expect("a test writes rules"), fs).expect("it is there")
}

/// Goal: a pool that hangs keeps a part of the threads: who asks another is answered, and who asks
/// this one is told to ask again later; what was under way is answered in the end. Method: more
/// requests that hang than there are threads, of two exports of one pool.
#[test]
fn a_pool_that_hangs_leaves_threads_to_others() {
    const NOENT: u32 = 2;
    const JUKEBOX: u32 = 10_008;
    const THREADS: usize = 8;
    let (hangs, works) = (Arc::new(MemoryFs::new()), Arc::new(MemoryFs::new()));
    let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
    for (name, fs) in [("/hangs", &hangs), ("/too", &hangs), ("/works", &works)] {
        service.add(export(name, fs)).expect("it has a name of its own");
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let options = ServerOptions { thread_count: THREADS, ..ServerOptions::default() };
    let server =
        NfsServer::start(Arc::clone(&service), vec![listener], &options).expect("it starts");
    let mut client = Client::new(address);
    let first = [client.mount("/hangs"), client.mount("/too")];
    let second = client.mount("/works");
    let shut = hangs.hangs.lock();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..2 * THREADS)
            .map(|number| {
                let handle = &first[number % 2];
                scope.spawn(move || Client::new(address).call(NFS, 3, &[handle, HANGING]).0)
            })
            .collect();
        let since = Instant::now();
        // Some are told by then that it hangs.
        while !asked.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            assert!(since.elapsed() < PATIENCE, "all wait");
            client.getattr(&second);
        }
        client.getattr(&second);
        drop(shut);
        let statuses = asked.into_iter().map(|asked| asked.join().expect("it is answered"));
        let statuses: Vec<u32> = statuses.collect();
        let count = |status: u32| statuses.iter().filter(|&&it| it == status).count();
        assert_eq!(count(NOENT) + count(JUKEBOX), 2 * THREADS, "{statuses:?}");
        assert!(count(NOENT) >= THREADS / 2 && count(JUKEBOX) > 0, "{statuses:?}");
    });
    assert_eq!(client.call(NFS, 3, &[&first[0], HANGING]).0, NOENT);
    drop(server);
}

/// Goal: what one file system has put off keeps nobody who asks another, and nobody who changes
/// exports, however long it takes, and it is done by those who asked for it. Method: one whose work
/// does not end.
#[test]
fn what_one_file_system_has_put_off_keeps_no_other() {
    let (hangs, works) = (Arc::new(MemoryFs::new()), Arc::new(MemoryFs::new()));
    let service = Arc::new(Service::new(HandleKey([7; 16]), 2049));
    service.add(export("/hangs", &hangs)).expect("the first");
    service.add(export("/works", &works)).expect("it has a name of its own");
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = listener.local_addr().expect("it has one");
    let options = ServerOptions::default();
    let server =
        NfsServer::start(Arc::clone(&service), vec![listener], &options).expect("it starts");
    let mut client = Client::new(address);
    let (first, second) = (client.mount("/hangs"), client.mount("/works"));
    let shut = hangs.deferred.gate.lock();
    hangs.deferred.is_there.store(true, Ordering::SeqCst);
    client.getattr(&first);
    let begun = || hangs.deferred.begun.load(Ordering::SeqCst);
    let since = Instant::now();
    while begun() == 0 {
        assert!(since.elapsed() < PATIENCE, "nobody does what was put off");
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            service.add(export("/more", &works)).expect("it has a name of its own");
            service.replace(&["/more"], vec![export("/other", &works)]).expect("its name is free");
            service.remove("/other")
        });
        // More than there are threads.
        for _ in 0..100 {
            client.getattr(&second);
        }
        let since = Instant::now();
        while !changes.is_finished() && since.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        let is_done = changes.is_finished();
        let count = begun();
        drop(shut);
        assert!(is_done, "exports cannot be changed");
        assert_eq!(count, 1, "who asks for another file system does it");
        assert!(changes.join().expect("it does not panic"));
    });
    drop(server);
}
